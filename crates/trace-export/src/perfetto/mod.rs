//! The sink that writes Perfetto's trace format.

mod clock;
#[cfg(feature = "compress")]
mod compress;
mod field;
mod proto;
mod sched;

#[cfg(feature = "compress")]
pub use compress::Compressor;

use crate::intern::{Frame, Interner, StackId, TextId};
use crate::model::{
    Category, CounterValue, CpuMode, DebugAnnotation, Flow, Loss, Name, Sample, SchedSwitch,
    SchedWaking, Sink, Track, TrackEvent, TrackId, TrackKind, Unit, Value,
};
use crate::process::Process;
use clock::{Delta, DeltaClock};
use field::{TRACE_PACKET, event, interned, packet, sample, system, track, tree};
use hashbrown::{HashMap, HashSet};
use proto::{Buffer, Fields, LENGTH_DELIMITED, Packed, VARINT};
use sched::Bundle;
use std::io::{self, Write};
use trace_common::{ClockDomain, Timestamp};

/// The single packet sequence of a sink.
const SEQUENCE: u64 = 1;
/// `sequence_flags`: resets the interned data.
const STATE_CLEARED: u64 = 1;
/// The replacement of an evicted text.
const EVICTED: &[u8] = b"?";
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
    clock: DeltaClock,
    /// The time of the last snapshot: readers reject snapshots that go back.
    last_snapshot: u64,
    /// Whether a snapshot relates `domain` to `CLOCK_BOOTTIME`.
    is_related: bool,
    tracks: Vec<TrackState>,
    by_tid: HashMap<(i32, i32), TrackId>,
    /// The processes of the process tree.
    tree: HashSet<i32>,
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

#[derive(Clone, Copy, Debug)]
struct TrackState {
    uuid: Packed,
    /// Number of open slices, without a state.
    depth: u32,
    in_state: bool,
}

/// The part of the interner's current table that is in the file.
#[derive(Debug, Default)]
struct Written {
    epoch: Option<u32>,
    /// By text: its number as the name of an event, or 0. They are counted separately: events
    /// that are named by small numbers are short.
    names: Vec<u32>,
    name_count: u32,
    /// By text, a bit for each [`TextKind`].
    texts: Vec<u8>,
    /// Texts of the arguments of an event that are not in the file yet.
    due: Vec<(u32, TextKind)>,
    frames: Vec<bool>,
    stacks: Vec<bool>,
}

/// The tables of texts in a file that use the numbers of the interner.
#[derive(Clone, Copy, Debug)]
enum TextKind {
    ArgName,
    ArgValue,
    Function,
    SourcePath,
    Mapping,
}

impl TextKind {
    /// The bit of a text that was written once as the value of an argument, in the event itself.
    /// Many values occur once: messages, addresses. The second time it gets a number.
    const SEEN: u8 = 1 << 7;

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    const fn field(self) -> u32 {
        match self {
            Self::ArgName => interned::DEBUG_ANNOTATION_NAMES,
            Self::ArgValue => interned::DEBUG_ANNOTATION_STRING_VALUES,
            Self::Function => interned::FUNCTION_NAMES,
            Self::SourcePath => interned::SOURCE_PATHS,
            Self::Mapping => interned::MAPPING_PATHS,
        }
    }
}

impl Written {
    /// The bits of a text.
    #[inline]
    fn bits(&mut self, index: u32) -> &mut u8 {
        let place = index as usize;
        if place >= self.texts.len() {
            self.texts.resize(place + 1, 0);
        }
        &mut self.texts[place]
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
            clock: DeltaClock::default(),
            last_snapshot: 0,
            is_related: false,
            tracks: Vec::new(),
            by_tid: HashMap::new(),
            tree: HashSet::new(),
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
        for cpu in 0..self.cpus.len() {
            self.write_bundle(cpu)?;
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
    #[inline]
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

    /// As [`PerfettoSink::prepare`], for packets with this time, which it returns.
    #[inline]
    fn prepare_at(&mut self, at: Timestamp) -> io::Result<u64> {
        let at = self.nanos(at);
        self.prepare()?;
        if self.clock.last().is_none() {
            self.start_delta_clock(at);
        }
        Ok(at)
    }

    #[cold]
    fn restart(&mut self) {
        let first = self.written.epoch.is_none();
        self.written.epoch = Some(self.names.epoch());
        self.written.names.clear();
        self.written.name_count = 0;
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
        self.clock.write_default(out);
        let data = out.open(packet::INTERNED_DATA);
        for category in Category::ALL {
            let entry = out.open(interned::EVENT_CATEGORIES);
            out.varint(interned::IID, category_iid(category).into());
            out.text(interned::TEXT, category.name().as_bytes());
            out.close(entry);
        }
        out.close(data);
        out.close(message);
        if let Some(last) = self.clock.last() {
            self.start_delta_clock(last);
        }
    }

    /// Makes times relative to `at`.
    #[cold]
    fn start_delta_clock(&mut self, at: u64) {
        let at = at.max(self.last_snapshot);
        if self.clock.start(at) {
            self.use_fine_clock();
        }
        self.snapshot(at, &mut vec![(clock_id(self.domain), at)], true);
    }

    /// Writes that the times of the following packets are in nanoseconds.
    #[cold]
    fn use_fine_clock(&mut self) {
        self.clock.refine();
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        self.clock.write_default(out);
        out.close(message);
    }

    /// Writes readings that were taken at `at`, the reading of the sink's clock; with those of the
    /// delta clock if it starts.
    fn snapshot(&mut self, at: u64, readings: &mut Vec<(u64, u64)>, starts: bool) {
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
            let reading = out.open(field::clock::CLOCKS);
            out.varint(field::clock::CLOCK_ID, *id);
            out.varint(field::clock::TIMESTAMP, *at);
            out.close(reading);
        }
        if starts {
            self.clock.write_start(at, out);
        }
        out.varint(field::clock::PRIMARY_TRACE_CLOCK, own);
        out.close(snapshot);
        out.close(message);
    }

    /// The time of a packet relative to a previous one. Call it before the packet is opened.
    ///
    /// Deltas are signed: a step back takes ten bytes, and the deltas after it are small again.
    #[inline]
    fn delta(&mut self, at: u64) -> Delta {
        match self.clock.delta(at) {
            Some(delta) => delta,
            None => self.fine_delta(at),
        }
    }

    #[cold]
    fn fine_delta(&mut self, at: u64) -> Delta {
        self.use_fine_clock();
        self.clock.delta(at).unwrap_or(Delta { value: 0, is_exception: false })
    }

    /// Writes the time and the sequence of a packet.
    #[inline]
    fn packet_head(&mut self, delta: Delta) {
        self.out.varint(packet::TIMESTAMP, delta.value);
        self.out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        if delta.is_exception {
            DeltaClock::write_exception(&mut self.out);
        }
    }

    /// Begins a packet: all fields before its content.
    ///
    /// It has no `SEQ_NEEDS_INCREMENTAL_STATE`: readers skip packets with that flag while the state
    /// of their sequence is not known. Here each file begins with the state, and no packet is lost.
    #[inline]
    fn open_packet(&mut self, at: u64) -> proto::Open {
        let delta = self.delta(at);
        let message = self.out.open(TRACE_PACKET);
        self.packet_head(delta);
        message
    }

    /// Begins a packet with an event of a track.
    #[inline]
    fn open_event(&mut self, delta: Delta, track: Packed, ty: u64) -> (proto::Open, proto::Open) {
        let message = self.out.open(TRACE_PACKET);
        self.packet_head(delta);
        let out = &mut self.out;
        let body = out.open(packet::TRACK_EVENT);
        out.varint(event::TYPE, ty);
        let uuid = Fields::NONE.varint(event::TRACK_UUID, track);
        out.word(uuid.bytes, uuid.len);
        (message, body)
    }

    /// Writes an event of a track with the fields `first` and then `second`. `false` if the event
    /// is longer than most are, and nothing is written.
    #[inline]
    fn short_event(
        &mut self,
        delta: Delta,
        track: Packed,
        ty: u64,
        first: Fields,
        second: Fields,
    ) -> bool {
        // All fields up to the track fit into 16 bytes, which are one store.
        let is_exception = delta.is_exception;
        let Some(delta) = Packed::new(delta.value) else { return false };
        if is_exception || delta.len + track.len > 6 {
            return false;
        }
        let before = 2 + 1 + delta.len;
        let body = 2 + 1 + track.len + first.len + second.len;
        let message = before - 2 + 4 + body;
        let bytes = u128::from(PACKET_HEAD | message << 8)
            | u128::from(delta.bytes) << 24
            | u128::from(EVENT_HEAD | u64::from(body) << 24 | ty << 40) << (8 * before)
            | u128::from(track.bytes) << (8 * (before + 7));
        self.out.word(bytes, before + 7 + track.len);
        if first.len > 0 {
            self.out.word(first.bytes, first.len);
        }
        if second.len > 0 {
            self.out.word(second.bytes, second.len);
        }
        true
    }

    /// Writes an event of a track that has only a type.
    #[inline]
    fn bare_event(&mut self, at: u64, track: Packed, ty: u64) {
        let delta = self.delta(at);
        if !self.short_event(delta, track, ty, Fields::NONE, Fields::NONE) {
            let (message, body) = self.open_event(delta, track, ty);
            self.out.close(body);
            self.out.close(message);
        }
    }

    /// Writes an event of a track.
    #[inline]
    fn track_event(&mut self, at: u64, track: Packed, ty: u64, entry: &TrackEvent<'_>) {
        let delta = self.delta(at);
        let stack = entry.stack.and_then(|id| self.stack_index(id));
        if !entry.args.is_empty() || !self.named_event(delta, track, ty, entry, stack) {
            self.long_event(delta, track, ty, entry, stack);
        }
    }

    /// Writes an event of a track whose name and stack are in the file, and which has no
    /// arguments. `false` if it is another one, and nothing is written.
    #[inline]
    fn named_event(
        &mut self,
        delta: Delta,
        track: Packed,
        ty: u64,
        entry: &TrackEvent<'_>,
        stack: Option<u32>,
    ) -> bool {
        let Name::Text(name) = entry.name else { return false };
        let Some(index) = self.names.current_text(name) else { return false };
        let name = self.written.names.get(index as usize).copied().unwrap_or(0);
        let Some(name) = Packed::new(name.into()).filter(|_| name != 0) else { return false };
        let mut first = Fields::NONE.varint(event::NAME_IID, name);
        if let Some(category) = entry.category {
            first = first.varint(event::CATEGORY_IIDS, Packed::byte(category_iid(category)));
        }
        if let Some(stack) = stack {
            let is_written = self.written.stacks.get(stack as usize) == Some(&true);
            let Some(stack) = Packed::new(iid(stack)).filter(|_| is_written) else { return false };
            first = first.varint(event::CALLSTACK_IID, stack);
        }
        let second = match entry.flow {
            None => Fields::NONE,
            Some(flow) => {
                let (field, id) = flow_field(flow);
                let Some(id) = Packed::new(id) else { return false };
                Fields::NONE.varint(field, id)
            }
        };
        self.short_event(delta, track, ty, first, second)
    }

    /// Writes any event of a track.
    fn long_event(
        &mut self,
        delta: Delta,
        track: Packed,
        ty: u64,
        entry: &TrackEvent<'_>,
        stack: Option<u32>,
    ) {
        let (message, body) = self.open_event(delta, track, ty);
        let mut new_name = None;
        match entry.name {
            Name::Text(id) => {
                let index = self.current_text(id);
                let (name, is_new) = self.name_iid(index);
                new_name = is_new.then_some((name, index));
                self.out.varint(event::NAME_IID, name.into());
            }
            Name::Inline(text) => self.out.text(event::NAME, cut(text)),
        }
        if let Some(category) = entry.category {
            self.out.varint(event::CATEGORY_IIDS, category_iid(category).into());
        }
        let mut new_stack = None;
        if let Some(index) = stack {
            new_stack = (!set(&mut self.written.stacks, index)).then_some(index);
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

    /// Returns the number of a text as the name of an event, and whether it is new.
    fn name_iid(&mut self, index: u32) -> (u32, bool) {
        let place = index as usize;
        if place >= self.written.names.len() {
            self.written.names.resize(place + 1, 0);
        }
        match self.written.names.get_mut(place) {
            Some(iid @ 0) => {
                self.written.name_count += 1;
                *iid = self.written.name_count;
                (*iid, true)
            }
            Some(iid) => (*iid, false),
            None => (0, false),
        }
    }

    /// Within a packet: writes the name, with its number, the stack and the texts of arguments that
    /// are not in the file yet.
    #[cold]
    fn write_interned(&mut self, name: Option<(u32, u32)>, stack: Option<u32>) {
        let data = self.out.open(packet::INTERNED_DATA);
        if let Some((iid, index)) = name {
            let message = self.out.open(interned::EVENT_NAMES);
            self.out.varint(interned::IID, iid.into());
            self.out.text(interned::TEXT, self.names.text_at(index));
            self.out.close(message);
        }
        if let Some(stack) = stack {
            self.write_stack(stack);
        }
        let mut due = std::mem::take(&mut self.written.due);
        for (index, kind) in due.drain(..) {
            self.write_text(index, kind);
        }
        self.written.due = due;
        self.out.close(data);
    }

    /// Writes an argument. Texts that are not in the file yet are due after it.
    #[inline]
    fn arg(&mut self, arg: &DebugAnnotation<'_>) {
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

    /// A text must be in the file after this event.
    #[inline]
    fn require(&mut self, index: u32, kind: TextKind) {
        let bits = self.written.texts.get(index as usize);
        if bits.is_none_or(|bits| bits & kind.bit() == 0) {
            self.written.due.push((index, kind));
        }
    }

    /// Whether a text is the value of an argument for the first time, or so short that a number is
    /// not shorter.
    #[inline]
    fn is_first_use(&mut self, index: u32) -> bool {
        const SHORT: usize = 3;
        let bits = self.written.bits(index);
        let is_first = *bits & (TextKind::SEEN | TextKind::ArgValue.bit()) == 0;
        *bits |= TextKind::SEEN;
        is_first || self.names.text_at(index).len() <= SHORT
    }

    /// Returns the index of a text in the current table.
    #[inline]
    fn current_text(&mut self, id: TextId) -> u32 {
        match self.names.current_text(id) {
            Some(index) => index,
            None => self.stale_text(),
        }
    }

    /// Returns the replacement of an evicted text.
    #[cold]
    fn stale_text(&mut self) -> u32 {
        self.stats.stale_ids += 1;
        // The table must not be reset here: that would evict the names of this event.
        self.names.text_in_place(EVICTED)
    }

    /// Within interned data: writes a text, unless it is already written.
    fn write_text(&mut self, index: u32, kind: TextKind) -> u64 {
        let bits = self.written.bits(index);
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

    /// Returns the index of a stack in the current table; `None` if it has no frames.
    #[inline]
    fn stack_index(&mut self, id: StackId) -> Option<u32> {
        let Some(index) = self.names.current_stack(id) else {
            self.stats.stale_ids += 1;
            return None;
        };
        // Stacks without frames are not written.
        let is_written = self.written.stacks.get(index as usize) == Some(&true);
        (is_written || !self.names.stack_at(index).is_empty()).then_some(index)
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
    #[inline]
    fn bundle(&mut self, at: Timestamp, cpu: u32) -> io::Result<(u64, &mut Bundle)> {
        let Some(offset) = self.to_boottime else { return Err(unrelated()) };
        let at = self.nanos(at.saturating_add_nanos(offset));
        let place = cpu as usize;
        if place >= self.cpus.len() {
            self.add_cpu(cpu)?;
        }
        self.stats.sched += 1;
        let bundle = self.cpus.get_mut(place).ok_or_else(|| no_cpu(cpu))?;
        Ok((at, bundle))
    }

    #[cold]
    fn add_cpu(&mut self, cpu: u32) -> io::Result<()> {
        /// More CPUs than any kernel supports.
        const MAX_CPUS: u32 = 1 << 16;
        if cpu >= MAX_CPUS {
            return Err(no_cpu(cpu));
        }
        self.cpus.resize_with(cpu as usize + 1, Bundle::default);
        Ok(())
    }

    #[cold]
    fn write_bundle(&mut self, cpu: usize) -> io::Result<()> {
        if self.cpus.get(cpu).is_none_or(Bundle::is_empty) {
            return Ok(());
        }
        self.prepare()?;
        if let Some(bundle) = self.cpus.get_mut(cpu) {
            bundle.write(cpu as u32, SEQUENCE, &mut self.out);
        }
        Ok(())
    }

    #[inline]
    fn track_state(&mut self, track: TrackId) -> io::Result<&mut TrackState> {
        self.tracks.get_mut(track.0 as usize).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the track is one of another sink")
        })
    }
}

#[cold]
fn unrelated() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "scheduler events need a clock snapshot with CLOCK_BOOTTIME before them",
    )
}

#[cold]
fn no_cpu(cpu: u32) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {cpu}"))
}

const fn uuid(track: TrackId) -> u64 {
    track.0 as u64 + 1
}

/// Returns the number of a category in the file.
const fn category_iid(category: Category) -> u8 {
    category as u8 + 1
}

/// Returns the field of a flow, and its number.
const fn flow_field(flow: Flow) -> (u32, u64) {
    match flow {
        Flow::Through(id) => (event::FLOW_IDS_OLD, id),
        Flow::Ends(id) => (event::TERMINATING_FLOW_IDS_OLD, id),
    }
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
        self.snapshot(at, &mut numbered, false);
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
        let packed = Packed::new(uuid(id)).ok_or_else(|| io::Error::other("too many tracks"))?;
        self.tracks.push(TrackState { uuid: packed, depth: 0, in_state: false });
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

    /// Viewers name a process by the first element of its command line, whatever its track is named:
    /// that is the name here, and the arguments follow. Nothing is written of a process without a
    /// known parent, which viewers would take to be process 0, and of one whose id was used before:
    /// viewers have one process for both.
    fn process(&mut self, new: &Process<'_>) -> io::Result<()> {
        let Some(parent) = new.parent.filter(|_| self.tree.insert(new.pid)) else {
            return Ok(());
        };
        self.prepare()?;
        let offset = self.to_boottime.unwrap_or(0);
        let start = new.start.map(|start| self.nanos(start.saturating_add_nanos(offset)));
        let program = new.command_line.iter().position(|byte| *byte == b' ');
        let arguments = program.and_then(|end| new.command_line.get(end + 1..));
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let tree = out.open(packet::PROCESS_TREE);
        let process = out.open(tree::PROCESSES);
        out.int(tree::PID, new.pid.into());
        out.int(tree::PPID, parent.into());
        out.text(tree::CMDLINE, cut(new.name));
        // A single element is cut at its first space.
        if arguments.is_some() || new.name.contains(&b' ') {
            out.text(tree::CMDLINE, cut(arguments.unwrap_or_default()));
        }
        if let Some(start) = start {
            out.varint(tree::PROCESS_START_FROM_BOOT, start);
        }
        out.close(process);
        out.close(tree);
        out.close(message);
        Ok(())
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
        let track = state.uuid;
        let was_in_state = std::mem::replace(&mut state.in_state, entry.is_some());
        if !was_in_state && entry.is_none() {
            return Ok(());
        }
        let at = self.prepare_at(at)?;
        if was_in_state {
            self.bare_event(at, track, event::SLICE_END);
        }
        if let Some(entry) = entry {
            self.stats.slices += 1;
            self.track_event(at, track, event::SLICE_BEGIN, entry);
        }
        Ok(())
    }

    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        let state = self.track_state(track)?;
        state.depth += 1;
        let track = state.uuid;
        self.stats.slices += 1;
        let at = self.prepare_at(at)?;
        self.track_event(at, track, event::SLICE_BEGIN, entry);
        Ok(())
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
        let track = state.uuid;
        let at = self.prepare_at(at)?;
        if args.is_empty() {
            self.bare_event(at, track, event::SLICE_END);
            return Ok(());
        }
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
        Ok(())
    }

    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        let track = self.track_state(track)?.uuid;
        self.stats.instants += 1;
        let at = self.prepare_at(at)?;
        self.track_event(at, track, event::INSTANT, entry);
        Ok(())
    }

    fn counter(&mut self, at: Timestamp, track: TrackId, value: CounterValue) -> io::Result<()> {
        let track = self.track_state(track)?.uuid;
        self.stats.counters += 1;
        let at = self.prepare_at(at)?;
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
        Ok(())
    }

    fn sample(&mut self, at: Timestamp, taken: &Sample) -> io::Result<()> {
        self.stats.samples += 1;
        let at = self.prepare_at(at)?;
        let stack = taken.stack.and_then(|id| self.stack_index(id));
        let new_stack = stack.filter(|index| !set(&mut self.written.stacks, *index));
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
            CpuMode::Unknown => 0,
            CpuMode::Kernel => 1,
            CpuMode::User => 2,
            CpuMode::Hypervisor => 3,
            CpuMode::GuestKernel => 4,
            CpuMode::GuestUser => 5,
        };
        if mode != 0 {
            out.varint(sample::CPU_MODE, mode);
        }
        out.close(body);
        if new_stack.is_some() {
            self.write_interned(None, new_stack);
        }
        self.out.close(message);
        Ok(())
    }

    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()> {
        let (at, bundle) = self.bundle(at, switch.cpu)?;
        bundle.switch(at, switch);
        if bundle.is_full() {
            self.write_bundle(switch.cpu as usize)?;
        }
        Ok(())
    }

    fn sched_waking(&mut self, at: Timestamp, waking: &SchedWaking<'_>) -> io::Result<()> {
        let (at, bundle) = self.bundle(at, waking.cpu)?;
        bundle.waking(at, waking);
        if bundle.is_full() {
            self.write_bundle(waking.cpu as usize)?;
        }
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
        let entry = TrackEvent::new(&name[..]).category(Category::Loss).args(&args[..known]);
        self.instant(at, on, &entry)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.writer.flush()
    }
}
