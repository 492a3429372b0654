//! Events of tracks, and samples.

use super::PerfettoSink;
use super::clock::Delta;
use super::descriptor::cut;
use super::field::{TRACE_PACKET, event, packet, sample};
use super::interned::{TextKind, iid};
use super::sequence::SEQUENCE;
use crate::model::{
    Category, CounterValue, CpuMode, DebugAnnotation, Flow, Name, Sample, TrackEvent, Value,
};
use crate::proto::{LENGTH_DELIMITED, Open, Packed, Part, VARINT};
use std::io::Write;

/// The first bytes of a packet with a time: its tag, a length of 0, the tag of the time.
const PACKET_HEAD: u32 =
    TRACE_PACKET << 3 | LENGTH_DELIMITED | (packet::TIMESTAMP << 3 | VARINT) << 16;
/// What follows the time of an event: the sequence, the tag of the event, a length of 0, the tag of
/// its type, a type of 0, the tag of its track.
const EVENT_HEAD: u64 = {
    let sequence = (packet::TRUSTED_PACKET_SEQUENCE_ID << 3 | VARINT) as u64 | SEQUENCE << 8;
    let event = (packet::TRACK_EVENT << 3 | LENGTH_DELIMITED) as u64;
    let (ty, track) = (event::TYPE << 3 | VARINT, event::TRACK_UUID << 3 | VARINT);
    sequence | event << 16 | (ty as u64) << 32 | (track as u64) << 48
};

impl<W: Write> PerfettoSink<W> {
    /// Begins a packet with an event of a track.
    #[inline]
    pub(super) fn open_event(&mut self, delta: Delta, track: Packed, ty: u64) -> (Open, Open) {
        let message = self.out.open(TRACE_PACKET);
        self.packet_head(delta);
        let out = &mut self.out;
        let body = out.open(packet::TRACK_EVENT);
        out.varint(event::TYPE, ty);
        out.parts(|parts| parts.put(Part::varint(event::TRACK_UUID, track)));
        (message, body)
    }

    /// The time of an event that [`PerfettoSink::short_event`] can write: most have one.
    #[inline]
    fn short_time(delta: Delta) -> Option<Packed> {
        if delta.is_exception { None } else { Packed::new(delta.value) }
    }

    /// Writes an event of a track with these fields.
    #[inline]
    fn short_event<const N: usize>(
        &mut self,
        time: Packed,
        track: Packed,
        ty: u64,
        fields: [Part; N],
    ) {
        let body = 2 + 1 + track.len + fields.iter().map(|field| field.len).sum::<u32>();
        let message = 1 + time.len + 4 + body;
        let head = u64::from(PACKET_HEAD | message << 8) | u64::from(time.bytes) << 24;
        let event = EVENT_HEAD | u64::from(body) << 24 | ty << 40;
        self.out.parts(|parts| {
            parts.put(Part::new(head, 2 + 1 + time.len));
            parts.put(Part::new(event, 7));
            parts.put(Part::new(track.bytes.into(), track.len));
            fields.into_iter().for_each(|field| parts.put(field));
        });
    }

    /// Writes an event of a track that has only a type.
    #[inline]
    pub(super) fn bare_event(&mut self, at: u64, track: Packed, ty: u64) {
        let delta = self.delta(at);
        match Self::short_time(delta) {
            Some(time) => self.short_event(time, track, ty, []),
            None => self.long_bare_event(delta, track, ty),
        }
    }

    #[cold]
    fn long_bare_event(&mut self, delta: Delta, track: Packed, ty: u64) {
        let (message, body) = self.open_event(delta, track, ty);
        self.out.close(body);
        self.out.close(message);
    }

    /// Writes an event of a track.
    #[inline]
    pub(super) fn track_event(&mut self, at: u64, track: Packed, ty: u64, entry: &TrackEvent<'_>) {
        let delta = self.delta(at);
        match (self.written_fields(entry), Self::short_time(delta)) {
            (Some(fields), Some(time)) => self.short_event(time, track, ty, fields),
            _ => self.long_event(delta, track, ty, entry),
        }
    }

    /// Writes the end of a state and the begin of the next one.
    #[inline]
    pub(super) fn next_state(&mut self, at: u64, track: Packed, entry: &TrackEvent<'_>) {
        let delta = self.delta(at);
        match (self.written_fields(entry), Self::short_time(delta)) {
            (Some(fields), Some(time)) => {
                self.short_event(time, track, event::SLICE_END, []);
                self.clock.repeat();
                self.short_event(Packed::byte(0), track, event::SLICE_BEGIN, fields);
            }
            (_, Some(time)) => {
                self.short_event(time, track, event::SLICE_END, []);
                self.track_event(at, track, event::SLICE_BEGIN, entry);
            }
            _ => {
                self.long_bare_event(delta, track, event::SLICE_END);
                self.track_event(at, track, event::SLICE_BEGIN, entry);
            }
        }
    }

    /// The fields of an event whose name and stack are in the file, and which has no arguments.
    #[inline]
    fn written_fields(&mut self, entry: &TrackEvent<'_>) -> Option<[Part; 3]> {
        if !entry.args.is_empty() {
            return None;
        }
        let stack = match entry.stack {
            None => Part::NONE,
            Some(id) => {
                let index = self.names.current_stack(id)?;
                let iid = self.written.stacks.get(index as usize).filter(|iid| !iid.is_none())?;
                Part::varint(event::CALLSTACK_IID, *iid)
            }
        };
        let Name::Text(name) = entry.name else { return None };
        let index = self.names.current_text(name)?;
        let iid = self.written.names.get(index as usize).filter(|iid| !iid.is_none())?;
        let mut name = Part::varint(event::NAME_IID, *iid);
        if let Some(category) = entry.category {
            let category = Packed::byte(category_iid(category));
            name = name.then(Part::varint(event::CATEGORY_IIDS, category));
        }
        let flow = match entry.flow {
            None => Part::NONE,
            Some(flow) => {
                let (field, id) = flow_field(flow);
                Part::varint(field, Packed::new(id)?)
            }
        };
        Some([name, stack, flow])
    }

    /// Writes any event of a track.
    pub(super) fn long_event(
        &mut self,
        delta: Delta,
        track: Packed,
        ty: u64,
        entry: &TrackEvent<'_>,
    ) {
        let stack = entry.stack.and_then(|id| self.stack_index(id));
        let (message, body) = self.open_event(delta, track, ty);
        let mut new_name = None;
        match entry.name {
            Name::Text(id) => {
                let index = self.current_text(id);
                new_name = self.write_name(index).map(|iid| (iid, index));
            }
            Name::Inline(text) => self.out.text(event::NAME, cut(text)),
        }
        if let Some(category) = entry.category {
            self.out.varint(event::CATEGORY_IIDS, category_iid(category).into());
        }
        let mut new_stack = None;
        if let Some(index) = stack {
            new_stack = self.is_new_stack(index).then_some(index);
            self.out.varint(event::CALLSTACK_IID, iid(index));
        }
        if let Some(flow) = entry.flow {
            let (field, id) = flow_field(flow);
            self.out.varint(field, id);
        }
        for arg in entry.args {
            self.arg(arg);
        }
        self.out.close(body);
        if new_name.is_some() || new_stack.is_some() || !self.written.due.is_empty() {
            self.write_interned(new_name, new_stack);
        }
        self.out.close(message);
    }

    /// Writes the end of a slice, with arguments.
    pub(super) fn end_event(&mut self, at: u64, track: Packed, args: &[DebugAnnotation<'_>]) {
        let delta = self.delta(at);
        let (message, body) = self.open_event(delta, track, event::SLICE_END);
        for arg in args {
            self.arg(arg);
        }
        self.out.close(body);
        if !self.written.due.is_empty() {
            self.write_interned(None, None);
        }
        self.out.close(message);
    }

    /// Writes a value of a counter.
    pub(super) fn counter_event(&mut self, at: u64, track: Packed, value: CounterValue) {
        let delta = self.delta(at);
        let (message, body) = self.open_event(delta, track, event::COUNTER);
        match value {
            CounterValue::Int(value) => self.out.int(event::COUNTER_VALUE, value),
            CounterValue::Double(value) => {
                self.out.fixed64(event::DOUBLE_COUNTER_VALUE, value.to_bits());
            }
        }
        self.out.close(body);
        self.out.close(message);
    }

    /// Writes a sample of a thread.
    pub(super) fn write_sample(&mut self, at: u64, taken: &Sample) {
        let stack = taken.stack.and_then(|id| self.stack_index(id));
        let new_stack = stack.filter(|index| self.is_new_stack(*index));
        let message = self.open_packet(at);
        let out = &mut self.out;
        let body = out.open(packet::PERF_SAMPLE);
        if let Some(cpu) = taken.cpu {
            out.varint(sample::CPU, cpu.into());
        }
        out.int(sample::PID, taken.pid.into());
        out.int(sample::TID, taken.tid.into());
        if let Some(index) = stack {
            out.varint(sample::CALLSTACK_IID, iid(index));
        }
        let mode = match taken.mode {
            CpuMode::Kernel => 1,
            CpuMode::User => 2,
            CpuMode::Hypervisor => 3,
            CpuMode::GuestKernel => 4,
            CpuMode::GuestUser => 5,
            _ => 0,
        };
        if mode != 0 {
            out.varint(sample::CPU_MODE, mode);
        }
        out.close(body);
        if new_stack.is_some() {
            self.write_interned(None, new_stack);
        }
        self.out.close(message);
    }

    /// Writes an argument. Texts that are not in the file yet are due after it.
    #[inline]
    pub(super) fn arg(&mut self, arg: &DebugAnnotation<'_>) {
        let name = self.current_text(arg.name);
        self.require(name, TextKind::ArgName);
        let message = self.out.open(event::DEBUG_ANNOTATIONS);
        self.out.varint(event::ARG_NAME_IID, iid(name));
        match arg.value {
            Value::Uint(value) => self.out.varint(event::ARG_UINT, value),
            Value::Int(value) => self.out.int(event::ARG_INT, value),
            Value::Double(value) => self.out.fixed64(event::ARG_DOUBLE, value.to_bits()),
            Value::Bool(value) => self.out.varint(event::ARG_BOOL, value.into()),
            Value::Text(Name::Text(id)) => {
                let index = self.current_text(id);
                if self.is_first_use(index) {
                    self.out.text(event::ARG_STRING, self.names.text_at(index));
                } else {
                    self.require(index, TextKind::ArgValue);
                    self.out.varint(event::ARG_STRING_IID, iid(index));
                }
            }
            Value::Text(Name::Inline(text)) => self.out.text(event::ARG_STRING, cut(text)),
        }
        self.out.close(message);
    }
}

/// Returns the number of a category in the file.
pub(super) const fn category_iid(category: Category) -> u8 {
    category as u8 + 1
}

/// Returns the field of a flow, and its number.
pub(super) const fn flow_field(flow: Flow) -> (u32, u64) {
    match flow {
        Flow::Through(id) => (event::FLOW_IDS_OLD, id),
        Flow::Ends(id) => (event::TERMINATING_FLOW_IDS_OLD, id),
    }
}
