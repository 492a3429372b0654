//! The sink that writes Perfetto's trace format.

#[cfg(feature = "compress")]
mod compress;
mod field;
mod proto;
mod sched;

#[cfg(feature = "compress")]
pub use compress::Compressor;

use crate::intern::{Frame, Interner, StackId, TextId};
use crate::model::{
    CounterValue, CpuMode, DebugAnnotation, Flow, Loss, Name, Sample, SchedSwitch, SchedWaking,
    Sink, Track, TrackEvent, TrackId, TrackKind, Unit, Value,
};
use field::{TRACE_PACKET, clock, event, interned, packet, sample, system, track};
use hashbrown::HashMap;
use proto::Buffer;
use sched::Bundle;
use std::io::{self, Write};
use trace_common::{ClockDomain, Timestamp};

/// The single packet sequence of a sink.
const SEQUENCE: u64 = 1;
/// `sequence_flags`: resets the interned data.
const STATE_CLEARED: u64 = 1;
/// `sequence_flags`: the packet refers to interned data or defaults.
const NEEDS_STATE: u64 = 2;
/// The clock of most packets, whose times are relative to the previous packet.
const DELTA_CLOCK: u64 = 64;
/// Size at which the buffer is written out, in bytes.
const FLUSH_AT: usize = 256 << 10;

/// Writes a timeline as a [Perfetto](https://perfetto.dev) trace, for <https://ui.perfetto.dev>
/// and its trace processor.
///
/// The format is a sequence of packets: memory does not grow with the trace, a truncated file is
/// readable up to its end, and the output is deterministic. States are drawn as slices, which every
/// version of the viewer supports. Names and stacks are written once and referred to by number;
/// when the tables get too large, writer and reader reset them.
///
/// The format can express everything in [`Sink`]. Times before 0 are moved to 0 and counted, an end
/// without a begin is omitted and counted: see [`PerfettoStats`].
///
/// # Clocks
///
/// Perfetto orders events by `CLOCK_BOOTTIME` and reports an import error for a clock that no
/// snapshot relates to it. So the first snapshot of the file always has `CLOCK_BOOTTIME`: the
/// reading passed to [`Sink::clock_snapshot`], if that was called with one before the first event,
/// as live recordings do. Without one, as when a recorded trace is converted, the sink assumes that
/// the machine was never suspended: `CLOCK_BOOTTIME` equals the timeline's clock. Times that the
/// viewer shows do not depend on it, because the timeline's clock is the primary clock of the file.
/// Scheduler events require the real offset and are an error without it.
#[derive(Debug)]
pub struct PerfettoSink<W> {
    writer: W,
    out: Buffer,
    domain: ClockDomain,
    names: Interner,
    /// The part of `names` that was written since the table was last reset.
    written: Written,
    /// The last time on [`DELTA_CLOCK`]; `None` before the first packet.
    last: Option<u64>,
    /// The time of the last snapshot: readers reject snapshots that go back.
    last_snapshot: u64,
    /// Whether a snapshot relates `domain` to `CLOCK_BOOTTIME`.
    is_related: bool,
    tracks: Vec<TrackState>,
    by_tid: HashMap<(i32, i32), TrackId>,
    losses: Option<TrackId>,
    flows: u64,
    cpus: Vec<Bundle>,
    /// The offset from a time to `CLOCK_BOOTTIME`.
    to_boottime: Option<i64>,
    stats: PerfettoStats,
}

/// Numbers of items that a [`PerfettoSink`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PerfettoStats {
    /// Bytes, including unflushed ones.
    pub bytes: u64,
    /// Tracks.
    pub tracks: u64,
    /// Slices, including states.
    pub slices: u64,
    /// Instants.
    pub instants: u64,
    /// Values of counters.
    pub counters: u64,
    /// Samples.
    pub samples: u64,
    /// Switches and wake-ups of the kernel's scheduler.
    pub sched: u64,
    /// Losses that were reported.
    pub losses: u64,
    /// Ends of slices that had not begun, omitted.
    pub unmatched_ends: u64,
    /// Times before 0, moved to 0.
    pub clamped_times: u64,
    /// Names and stacks that were used after they were evicted from the table.
    pub stale_ids: u64,
    /// Clock snapshots that were omitted because they were older than the previous one: Perfetto
    /// accepts ascending snapshots only.
    pub snapshots_skipped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct TrackState {
    /// Number of open slices, without a state.
    depth: u32,
    in_state: bool,
}

/// The part of the interner's current table that is in the file.
#[derive(Debug, Default)]
struct Written {
    epoch: Option<u32>,
    /// By text, a bit for each [`TextKind`].
    texts: Vec<u8>,
    frames: Vec<bool>,
    stacks: Vec<bool>,
}

/// The tables of texts in a file; all of them use the numbers of the interner.
#[derive(Clone, Copy)]
enum TextKind {
    EventName,
    ArgName,
    ArgValue,
    Function,
    SourcePath,
    Mapping,
}

impl TextKind {
    const fn bit(self) -> u8 {
        1 << self as u8
    }

    const fn field(self) -> u32 {
        match self {
            Self::EventName => interned::EVENT_NAMES,
            Self::ArgName => interned::DEBUG_ANNOTATION_NAMES,
            Self::ArgValue => interned::DEBUG_ANNOTATION_STRING_VALUES,
            Self::Function => interned::FUNCTION_NAMES,
            Self::SourcePath => interned::SOURCE_PATHS,
            Self::Mapping => interned::MAPPING_PATHS,
        }
    }
}

/// Sets `flags[index]`, growing the list; returns the previous value.
fn set(flags: &mut Vec<bool>, index: u32) -> bool {
    let index = index as usize;
    if index >= flags.len() {
        flags.resize(index + 1, false);
    }
    std::mem::replace(&mut flags[index], true)
}

/// Returns the number in the file of index `index` of a table: 0 represents none.
const fn iid(index: u32) -> u64 {
    index as u64 + 1
}

impl<W: Write> PerfettoSink<W> {
    /// Makes a sink that writes to `writer` in large pieces; all times are on the clock `domain`.
    ///
    /// A clock that belongs to the trace ([`ClockDomain::Local`], `CLOCK_TAI`) becomes the clock of
    /// the file.
    pub fn new(writer: W, domain: ClockDomain) -> Self {
        Self::with_limit(writer, domain, Interner::DEFAULT_LIMIT)
    }

    /// As [`PerfettoSink::new`], with a limit for the [tables of names](Interner::with_limit), in
    /// bytes.
    pub fn with_limit(writer: W, domain: ClockDomain, limit: usize) -> Self {
        Self {
            writer,
            out: Buffer::with_capacity(FLUSH_AT + (64 << 10)),
            domain,
            names: Interner::with_limit(limit),
            written: Written::default(),
            last: None,
            last_snapshot: 0,
            is_related: false,
            tracks: Vec::new(),
            by_tid: HashMap::new(),
            losses: None,
            flows: 0,
            cpus: Vec::new(),
            to_boottime: (domain == ClockDomain::Boottime).then_some(0),
            stats: PerfettoStats::default(),
        }
    }

    /// Sets the clock of the timeline. Call it before anything is written: it does not convert
    /// times that are already written.
    pub fn set_domain(&mut self, domain: ClockDomain) {
        self.domain = domain;
        self.to_boottime = (domain == ClockDomain::Boottime).then_some(0);
    }

    /// Writes the release of the Linux kernel that scheduler events come from, in the form of
    /// `uname(2)`. Call it first. Without it readers interpret the states in [`SchedSwitch`] as
    /// those of Linux 4.4, whose numbers differ: preempted threads are then not shown as such.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub fn kernel(&mut self, release: &[u8]) -> io::Result<()> {
        self.prepare()?;
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let info = out.open(packet::SYSTEM_INFO);
        let utsname = out.open(system::UTSNAME);
        out.text(system::SYSNAME, b"Linux");
        out.text(system::RELEASE, cut(release));
        out.close(utsname);
        out.close(info);
        out.close(message);
        Ok(())
    }

    /// Returns the numbers of written items so far.
    pub fn stats(&self) -> PerfettoStats {
        PerfettoStats { bytes: self.stats.bytes + self.out.len() as u64, ..self.stats }
    }

    /// Returns the writer. Call [`Sink::finish`] first.
    pub fn into_inner(self) -> W {
        self.writer
    }

    /// Writes out buffered data, so that a file that ends here contains everything up to now.
    ///
    /// Recorders call this about once a second, so that their output is usable even if they are
    /// killed.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub fn write_out(&mut self) -> io::Result<()> {
        for (cpu, bundle) in self.cpus.iter_mut().enumerate() {
            bundle.write(cpu as u32, SEQUENCE, &mut self.out);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.write_all(self.out.as_slice())?;
        self.stats.bytes += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Converts a time to that of the format: never below 0.
    fn nanos(&mut self, at: Timestamp) -> u64 {
        u64::try_from(at.nanos()).unwrap_or_else(|_| {
            self.stats.clamped_times += 1;
            0
        })
    }

    /// Must be called before every packet: writes out complete packets, and begins the sequence,
    /// again after each reset of the table of names.
    #[inline]
    fn prepare(&mut self) -> io::Result<()> {
        if self.out.len() >= FLUSH_AT {
            self.flush()?;
        }
        if self.written.epoch != Some(self.names.epoch()) {
            self.restart();
        }
        Ok(())
    }

    /// As [`PerfettoSink::prepare`], for a packet with a time.
    #[inline]
    fn prepare_at(&mut self, at: u64) -> io::Result<()> {
        self.prepare()?;
        if self.last.is_none() {
            self.start_delta_clock(at);
        }
        Ok(())
    }

    #[cold]
    fn restart(&mut self) {
        let first = self.written.epoch.is_none();
        self.written.epoch = Some(self.names.epoch());
        self.written.texts.clear();
        self.written.frames.clear();
        self.written.stacks.clear();

        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        out.varint(packet::SEQUENCE_FLAGS, STATE_CLEARED);
        if first {
            out.varint(packet::FIRST_PACKET_ON_SEQUENCE, 1);
        }
        let defaults = out.open(packet::TRACE_PACKET_DEFAULTS);
        out.varint(packet::TIMESTAMP_CLOCK_ID, DELTA_CLOCK);
        out.close(defaults);
        out.close(message);
        if let Some(last) = self.last {
            self.start_delta_clock(last);
        }
    }

    /// Makes times relative to `at`.
    #[cold]
    fn start_delta_clock(&mut self, at: u64) {
        let at = at.max(self.last_snapshot);
        self.last = Some(at);
        self.snapshot(at, &mut vec![(clock_id(self.domain), at), (DELTA_CLOCK, at)]);
    }

    /// Writes readings that were taken at `at`, the reading of the sink's clock.
    fn snapshot(&mut self, at: u64, readings: &mut Vec<(u64, u64)>) {
        let own = clock_id(self.domain);
        self.last_snapshot = at;
        let has_boottime = readings.iter().any(|(id, _)| *id == BOOTTIME);
        // Readers relate the primary clock of the file to all others themselves.
        if !self.is_related && !has_boottime && own != TRACE_FILE {
            readings.push((BOOTTIME, at));
        }
        self.is_related = true;
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        // The time of the packet itself, on a clock that needs no snapshot.
        out.varint(packet::TIMESTAMP, at);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        out.varint(packet::TIMESTAMP_CLOCK_ID, own);
        let snapshot = out.open(packet::CLOCK_SNAPSHOT);
        for (id, at) in &*readings {
            let reading = out.open(clock::CLOCKS);
            out.varint(clock::CLOCK_ID, *id);
            out.varint(clock::TIMESTAMP, *at);
            if *id == DELTA_CLOCK {
                out.varint(clock::IS_INCREMENTAL, 1);
            }
            out.close(reading);
        }
        out.varint(clock::PRIMARY_TRACE_CLOCK, own);
        out.close(snapshot);
        out.close(message);
    }

    /// Begins a packet: all fields before its content.
    #[inline]
    fn open_packet(&mut self, at: u64) -> proto::Open {
        let message = self.out.open(TRACE_PACKET);
        // Deltas are signed: a step back takes ten bytes, and the deltas after it are small again.
        let last = self.last.replace(at).unwrap_or_default();
        self.out.varint(packet::TIMESTAMP, at.wrapping_sub(last));
        const HEAD: [u8; 4] = [
            (packet::TRUSTED_PACKET_SEQUENCE_ID << 3) as u8,
            SEQUENCE as u8,
            (packet::SEQUENCE_FLAGS << 3) as u8,
            NEEDS_STATE as u8,
        ];
        self.out.raw(&HEAD);
        message
    }

    /// Writes an event of a track that has only a type.
    #[inline]
    fn bare_event(&mut self, at: Timestamp, track: TrackId, ty: u64) -> io::Result<()> {
        let at = self.nanos(at);
        self.prepare_at(at)?;
        let message = self.open_packet(at);
        let body = self.open_event(ty, track);
        self.out.close(body);
        self.out.close(message);
        Ok(())
    }

    #[inline]
    fn open_event(&mut self, ty: u64, track: TrackId) -> proto::Open {
        let body = self.out.open(packet::TRACK_EVENT);
        self.out.varint(event::TYPE, ty);
        self.out.varint(event::TRACK_UUID, uuid(track));
        body
    }

    /// Writes an event of a track.
    #[inline]
    fn track_event(
        &mut self,
        at: Timestamp,
        track: TrackId,
        ty: u64,
        entry: &TrackEvent<'_>,
    ) -> io::Result<()> {
        let at = self.nanos(at);
        self.prepare_at(at)?;
        // The data that the event refers to is written before it, except for its name.
        let stack = entry.stack.and_then(|id| self.stack_iid(id));
        self.write_arg_texts(entry.args);

        let message = self.open_packet(at);
        let name = match entry.name {
            Name::Text(id) => {
                let index = self.current_text(id);
                if !self.is_written(index, TextKind::EventName) {
                    // Within the packet: most names are short, and many are used once.
                    let data = self.out.open(packet::INTERNED_DATA);
                    self.write_text(index, TextKind::EventName);
                    self.out.close(data);
                }
                iid(index)
            }
            Name::Inline(_) => 0,
        };
        let body = self.open_event(ty, track);
        match entry.name {
            Name::Text(_) => self.out.varint(event::NAME_IID, name),
            Name::Inline(text) => self.out.text(event::NAME, cut(text)),
        }
        if let Some(iid) = stack {
            self.out.varint(event::CALLSTACK_IID, iid);
        }
        match entry.flow {
            Some(Flow::Through(id)) => self.out.fixed64(event::FLOW_IDS, id),
            Some(Flow::Ends(id)) => self.out.fixed64(event::TERMINATING_FLOW_IDS, id),
            None => {}
        }
        for arg in entry.args {
            self.arg(arg);
        }
        self.out.close(body);
        self.out.close(message);
        Ok(())
    }

    /// Writes the texts of `args` that are not in the file yet.
    #[inline]
    fn write_arg_texts(&mut self, args: &[DebugAnnotation<'_>]) {
        for arg in args {
            self.text_iid(arg.name, TextKind::ArgName);
            if let Value::Text(Name::Text(id)) = arg.value {
                self.text_iid(id, TextKind::ArgValue);
            }
        }
    }

    fn arg(&mut self, arg: &DebugAnnotation<'_>) {
        let name = self.text_iid(arg.name, TextKind::ArgName);
        let value = match arg.value {
            Value::Text(Name::Text(id)) => self.text_iid(id, TextKind::ArgValue),
            _ => 0,
        };
        let out = &mut self.out;
        let message = out.open(event::DEBUG_ANNOTATIONS);
        out.varint(event::ARG_NAME_IID, name);
        match arg.value {
            Value::Uint(value) => out.varint(event::ARG_UINT, value),
            Value::Int(value) => out.int(event::ARG_INT, value),
            Value::Double(value) => out.fixed64(event::ARG_DOUBLE, value.to_bits()),
            Value::Bool(value) => out.varint(event::ARG_BOOL, value.into()),
            Value::Text(Name::Text(_)) => out.varint(event::ARG_STRING_IID, value),
            Value::Text(Name::Inline(text)) => out.text(event::ARG_STRING, cut(text)),
        }
        out.close(message);
    }

    /// Returns the number of a text in the file, and writes the text if it is not there yet.
    #[inline]
    fn text_iid(&mut self, id: TextId, kind: TextKind) -> u64 {
        let index = self.current_text(id);
        if !self.is_written(index, kind) {
            let (message, data) = self.open_interned();
            self.write_text(index, kind);
            self.close_interned(message, data);
        }
        iid(index)
    }

    /// Returns the index of a text in the current table.
    #[inline]
    fn current_text(&mut self, id: TextId) -> u32 {
        match self.names.current_text(id) {
            Some(index) => index,
            None => self.stale_text(),
        }
    }

    /// Whether the text at an index of the current table is in the file.
    #[inline]
    fn is_written(&self, index: u32, kind: TextKind) -> bool {
        self.written.texts.get(index as usize).is_some_and(|bits| bits & kind.bit() != 0)
    }

    /// Returns the replacement of an evicted text.
    #[cold]
    fn stale_text(&mut self) -> u32 {
        self.stats.stale_ids += 1;
        // The table must not be reset here: that would evict the names of this event.
        self.names.text_in_place(b"?")
    }

    fn open_interned(&mut self) -> (proto::OpenLarge, proto::OpenLarge) {
        let message = self.out.open_large(TRACE_PACKET);
        self.out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        self.out.varint(packet::SEQUENCE_FLAGS, NEEDS_STATE);
        (message, self.out.open_large(packet::INTERNED_DATA))
    }

    fn close_interned(&mut self, message: proto::OpenLarge, data: proto::OpenLarge) {
        self.out.close_large(data);
        self.out.close_large(message);
    }

    /// Within interned data: writes a text, unless it is already written.
    fn write_text(&mut self, index: u32, kind: TextKind) -> u64 {
        let place = index as usize;
        if place >= self.written.texts.len() {
            self.written.texts.resize(place + 1, 0);
        }
        let bits = &mut self.written.texts[place];
        if *bits & kind.bit() == 0 {
            *bits |= kind.bit();
            let message = self.out.open(kind.field());
            self.out.varint(interned::IID, iid(index));
            self.out.text(interned::TEXT, self.names.text_at(index));
            self.out.close(message);
            if let TextKind::Mapping = kind {
                let message = self.out.open(interned::MAPPINGS);
                self.out.varint(interned::IID, iid(index));
                self.out.varint(interned::MAPPING_PATH, iid(index));
                self.out.close(message);
            }
        }
        iid(index)
    }

    /// Returns the number of a stack in the file, and writes the stack if it is not there yet.
    #[inline]
    fn stack_iid(&mut self, id: StackId) -> Option<u64> {
        let Some(index) = self.names.current_stack(id) else {
            self.stats.stale_ids += 1;
            return None;
        };
        if self.names.stack_at(index).is_empty() {
            return None;
        }
        if !set(&mut self.written.stacks, index) {
            let (message, data) = self.open_interned();
            self.write_stack(index);
            self.close_interned(message, data);
        }
        Some(iid(index))
    }

    /// Within interned data: writes a stack and everything it refers to.
    fn write_stack(&mut self, index: u32) {
        let depth = self.names.stack_at(index).len();
        for i in 0..depth {
            self.write_frame(self.names.stack_at(index)[i]);
        }
        let stack = self.out.open(interned::CALLSTACKS);
        self.out.varint(interned::IID, iid(index));
        // The format requires the outermost frame first.
        for &frame in self.names.stack_at(index).iter().rev() {
            self.out.varint(interned::CALLSTACK_FRAMES, iid(frame));
        }
        self.out.close(stack);
    }

    fn write_frame(&mut self, index: u32) {
        if set(&mut self.written.frames, index) {
            return;
        }
        let frame = self.names.frame_at(index);
        let function = self.write_text(frame.function, TextKind::Function);
        let has_file = !self.names.text_at(frame.file).is_empty();
        let file = has_file.then(|| self.write_text(frame.file, TextKind::SourcePath));
        let mapping = self.write_text(frame.module, TextKind::Mapping);
        let out = &mut self.out;
        let message = out.open(interned::FRAMES);
        out.varint(interned::IID, iid(index));
        out.varint(interned::FRAME_FUNCTION, function);
        out.varint(interned::FRAME_MAPPING, mapping);
        if frame.pc != 0 {
            out.varint(interned::FRAME_REL_PC, frame.pc);
        }
        if let Some(file) = file {
            out.varint(interned::FRAME_SOURCE_PATH, file);
        }
        if frame.line != 0 {
            out.varint(interned::FRAME_LINE, frame.line.into());
        }
        out.close(message);
    }

    /// Returns the bundle of CPU `cpu` and the time on `CLOCK_BOOTTIME`: viewers interpret the
    /// times of scheduler events on that clock only.
    fn bundle(&mut self, at: Timestamp, cpu: u32) -> io::Result<(u64, &mut Bundle)> {
        /// More CPUs than any kernel supports.
        const MAX_CPUS: u32 = 1 << 16;
        let Some(offset) = self.to_boottime else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "scheduler events need a clock snapshot with CLOCK_BOOTTIME before them",
            ));
        };
        if cpu >= MAX_CPUS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no processor {cpu}"),
            ));
        }
        let at = self.nanos(at.saturating_add_nanos(offset));
        self.prepare()?;
        let place = cpu as usize;
        if place >= self.cpus.len() {
            self.cpus.resize_with(place + 1, Bundle::default);
        }
        self.stats.sched += 1;
        Ok((at, &mut self.cpus[place]))
    }

    fn write_bundle_if_full(&mut self, cpu: u32) {
        let bundle = &mut self.cpus[cpu as usize];
        if bundle.is_full() {
            bundle.write(cpu, SEQUENCE, &mut self.out);
        }
    }

    fn track_state(&mut self, track: TrackId) -> io::Result<&mut TrackState> {
        self.tracks.get_mut(track.0 as usize).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the track is one of another sink")
        })
    }
}

const fn uuid(track: TrackId) -> u64 {
    track.0 as u64 + 1
}

/// Truncates texts that are not interned at the same length as interned ones.
fn cut(text: &[u8]) -> &[u8] {
    text.get(..Interner::MAX_TEXT).unwrap_or(text)
}

/// `CLOCK_BOOTTIME` in `BuiltinClock`.
const BOOTTIME: u64 = 6;
/// The clock of the trace file in `BuiltinClock`.
const TRACE_FILE: u64 = 11;

/// The number of a clock in `BuiltinClock`.
const fn clock_id(domain: ClockDomain) -> u64 {
    match domain {
        ClockDomain::Realtime => 1,
        ClockDomain::Monotonic => 3,
        ClockDomain::MonotonicRaw => 5,
        ClockDomain::Boottime => BOOTTIME,
        _ => TRACE_FILE,
    }
}

impl<W: Write> Sink for PerfettoSink<W> {
    fn domain(&self) -> ClockDomain {
        self.domain
    }

    fn clock_snapshot(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()> {
        let own = |domain| readings.iter().find(|(d, _)| *d == domain).map(|(_, at)| *at);
        let Some(at) = own(self.domain) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a clock snapshot lacks the clock of the timeline",
            ));
        };
        if let Some(boottime) = own(ClockDomain::Boottime) {
            self.to_boottime = Some(boottime.nanos_since(at));
        }
        self.prepare()?;
        let mut numbered = Vec::with_capacity(readings.len() + 1);
        for (domain, at) in readings {
            // Clocks that the format cannot name are omitted, and so is a second reading.
            let id = clock_id(*domain);
            let named = *domain == self.domain || id != clock_id(ClockDomain::Local(0));
            if named && numbered.iter().all(|(other, _)| *other != id) {
                numbered.push((id, self.nanos(*at)));
            }
        }
        let at = self.nanos(at);
        if at < self.last_snapshot {
            self.stats.snapshots_skipped += 1;
            return Ok(());
        }
        self.snapshot(at, &mut numbered);
        Ok(())
    }

    fn track(&mut self, new: &Track<'_>) -> io::Result<TrackId> {
        let ids = match new.kind {
            TrackKind::Process { pid } => Some((pid, pid)),
            // A process and its main thread have the same number.
            TrackKind::Thread { pid, tid } => Some((pid, !tid)),
            _ => None,
        };
        if let Some(&known) = ids.and_then(|ids| self.by_tid.get(&ids)) {
            return Ok(known);
        }
        let id = u32::try_from(self.tracks.len()).map(TrackId).map_err(io::Error::other)?;
        if let Some(parent) = new.parent {
            self.track_state(parent)?;
        }
        if let Some(ids) = ids {
            self.by_tid.insert(ids, id);
        }
        self.tracks.push(TrackState::default());
        self.stats.tracks += 1;
        self.prepare()?;

        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let descriptor = out.open(packet::TRACK_DESCRIPTOR);
        out.varint(track::UUID, uuid(id));
        if let Some(parent) = new.parent {
            out.varint(track::PARENT_UUID, uuid(parent));
        }
        match new.kind {
            TrackKind::Process { pid } => {
                let process = out.open(track::PROCESS);
                out.int(track::PROCESS_PID, pid.into());
                out.text(track::PROCESS_NAME, cut(new.name));
                out.close(process);
            }
            TrackKind::Thread { pid, tid } => {
                let thread = out.open(track::THREAD);
                out.int(track::THREAD_PID, pid.into());
                out.int(track::THREAD_TID, tid.into());
                // Without a name it keeps the name that the kernel reports.
                if !new.name.is_empty() {
                    out.text(track::THREAD_NAME, cut(new.name));
                }
                out.close(thread);
            }
            TrackKind::Custom => {
                out.text(track::NAME, cut(new.name));
                // Tracks of the same name are different tracks.
                out.varint(track::SIBLING_MERGE_BEHAVIOR, track::MERGE_NONE);
            }
            TrackKind::Counter(unit) => {
                out.text(track::NAME, cut(new.name));
                let counter = out.open(track::COUNTER);
                let unit = match unit {
                    Unit::Nanoseconds => 1,
                    Unit::Count => 2,
                    Unit::Bytes => 3,
                };
                if new.unit_name.is_empty() {
                    out.varint(track::COUNTER_UNIT, unit);
                } else {
                    out.text(track::COUNTER_UNIT_NAME, cut(new.unit_name));
                }
                out.close(counter);
            }
        }
        if new.ordered {
            out.varint(track::CHILD_ORDERING, track::ORDERING_EXPLICIT);
        }
        if new.rank != 0 {
            out.int(track::SIBLING_ORDER_RANK, new.rank.into());
        }
        if !new.description.is_empty() {
            out.text(track::DESCRIPTION, cut(new.description));
        }
        out.close(descriptor);
        out.close(message);
        Ok(id)
    }

    fn text(&mut self, text: &[u8]) -> TextId {
        self.names.text(text)
    }

    fn unique_text(&mut self, text: &[u8]) -> TextId {
        self.names.unique_text(text)
    }

    fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId {
        self.names.stack(frames)
    }

    #[inline]
    fn holds_text(&self, id: TextId) -> bool {
        self.names.holds_text(id)
    }

    #[inline]
    fn holds_stack(&self, id: StackId) -> bool {
        self.names.holds_stack(id)
    }

    fn state(
        &mut self,
        at: Timestamp,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()> {
        let state = self.track_state(track)?;
        if std::mem::replace(&mut state.in_state, entry.is_some()) {
            self.bare_event(at, track, event::SLICE_END)?;
        }
        if let Some(entry) = entry {
            self.stats.slices += 1;
            self.track_event(at, track, event::SLICE_BEGIN, entry)?;
        }
        Ok(())
    }

    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.track_state(track)?.depth += 1;
        self.stats.slices += 1;
        self.track_event(at, track, event::SLICE_BEGIN, entry)
    }

    fn new_flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    fn end(
        &mut self,
        at: Timestamp,
        track: TrackId,
        args: &[DebugAnnotation<'_>],
    ) -> io::Result<()> {
        self.state(at, track, None)?;
        let state = self.track_state(track)?;
        if state.depth == 0 {
            self.stats.unmatched_ends += 1;
            return Ok(());
        }
        state.depth -= 1;
        if args.is_empty() {
            return self.bare_event(at, track, event::SLICE_END);
        }
        let at = self.nanos(at);
        self.prepare_at(at)?;
        self.write_arg_texts(args);
        let message = self.open_packet(at);
        let body = self.open_event(event::SLICE_END, track);
        for arg in args {
            self.arg(arg);
        }
        self.out.close(body);
        self.out.close(message);
        Ok(())
    }

    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.track_state(track)?;
        self.stats.instants += 1;
        self.track_event(at, track, event::INSTANT, entry)
    }

    fn counter(&mut self, at: Timestamp, track: TrackId, value: CounterValue) -> io::Result<()> {
        self.track_state(track)?;
        self.stats.counters += 1;
        let at = self.nanos(at);
        self.prepare_at(at)?;
        let message = self.open_packet(at);
        let body = self.open_event(event::COUNTER, track);
        match value {
            CounterValue::Int(value) => self.out.int(event::COUNTER_VALUE, value),
            CounterValue::Double(value) => {
                self.out.fixed64(event::DOUBLE_COUNTER_VALUE, value.to_bits());
            }
        }
        self.out.close(body);
        self.out.close(message);
        Ok(())
    }

    fn sample(&mut self, at: Timestamp, taken: &Sample) -> io::Result<()> {
        self.stats.samples += 1;
        let at = self.nanos(at);
        self.prepare_at(at)?;
        let stack = taken.stack.and_then(|id| self.stack_iid(id));
        let message = self.open_packet(at);
        let out = &mut self.out;
        let body = out.open(packet::PERF_SAMPLE);
        if let Some(cpu) = taken.cpu {
            out.varint(sample::CPU, cpu.into());
        }
        out.int(sample::PID, taken.pid.into());
        out.int(sample::TID, taken.tid.into());
        if let Some(iid) = stack {
            out.varint(sample::CALLSTACK_IID, iid);
        }
        let mode = match taken.mode {
            CpuMode::Unknown => 0,
            CpuMode::Kernel => 1,
            CpuMode::User => 2,
            CpuMode::Hypervisor => 3,
            CpuMode::GuestKernel => 4,
            CpuMode::GuestUser => 5,
        };
        out.varint(sample::CPU_MODE, mode);
        out.close(body);
        out.close(message);
        Ok(())
    }

    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()> {
        let (at, bundle) = self.bundle(at, switch.cpu)?;
        bundle.switch(at, switch);
        self.write_bundle_if_full(switch.cpu);
        Ok(())
    }

    fn sched_waking(&mut self, at: Timestamp, waking: &SchedWaking<'_>) -> io::Result<()> {
        let (at, bundle) = self.bundle(at, waking.cpu)?;
        bundle.waking(at, waking);
        self.write_bundle_if_full(waking.cpu);
        Ok(())
    }

    fn lost(&mut self, at: Timestamp, on: Option<TrackId>, loss: &Loss<'_>) -> io::Result<()> {
        self.stats.losses += 1;
        let on = match on.or(self.losses) {
            Some(track) => track,
            None => {
                let track = Track::custom(b"Losses").description(b"What is not on this timeline");
                let track = self.track(&track)?;
                *self.losses.insert(track)
            }
        };
        let (what, count, why) = (self.text(b"what"), self.text(b"count"), self.text(b"why"));
        let args = [
            DebugAnnotation { name: what, value: Value::Text(Name::Inline(loss.what)) },
            DebugAnnotation { name: why, value: Value::Text(Name::Inline(loss.why)) },
            DebugAnnotation { name: count, value: Value::Uint(loss.count.unwrap_or_default()) },
        ];
        let known = if loss.count.is_some() { 3 } else { 2 };
        let name = [&b"lost: "[..], loss.what].concat();
        self.instant(at, on, &TrackEvent::new(&name[..]).args(&args[..known]))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.writer.flush()
    }
}
