use std::collections::VecDeque;

use trace_common::{Cursor, Limits, ReadErrorKind};

use crate::event::Event;
use crate::event_header::{Decoded, Layout, decode, decode_alike, skip_alike};
use crate::framing::{Frame, Framing, Kind};
use crate::input::Input;
use crate::losses::{Gap, Loss};
use crate::metadata::Metadata;
use crate::order::Merge;
use crate::state::{Point, SequencePoint, Stats, StreamState, ThreadsBlock, ThreadsStep};
use crate::{Error, ErrorKind, Result, Trace};

/// The order in which events are returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Time order across all threads, as far as the format guarantees it. Events are held until the
    /// stream guarantees that no older ones follow. A runtime guarantees it for the first event of each
    /// thread, every 100 ms but only if there are new events: the last events of a process that
    /// becomes idle are held until its next event. [`Parser::flush`] and [`crate::Reader::flush`] return
    /// them.
    #[default]
    Time,
    /// Stream order: time order for each capture thread only, without delay.
    Stream,
}

/// Options of a [`Parser`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The order in which events are returned.
    pub order: Order,
    /// Limits on allocations sized by untrusted input.
    pub limits: Limits,
    /// Maximum number of bytes held back for sorting. Beyond it, events are returned early and
    /// [`Stats::early_flushes`] counts it. Streams of runtimes stay far below the default of 16 MiB
    /// while their writer keeps up.
    pub max_reorder_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { order: Order::Time, limits: Limits::default(), max_reorder_bytes: 16 << 20 }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the order of events.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the maximum number of bytes held back for sorting.
    #[must_use]
    pub fn max_reorder_bytes(mut self, bytes: usize) -> Self {
        self.max_reorder_bytes = bytes;
        self
    }
}

/// An item of a stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Item<'a> {
    /// The stream's `Trace` object: the first item.
    Trace(&'a Trace),
    /// A type of event was declared.
    Metadata(&'a Metadata),
    /// An event.
    Event(Event<'a>),
    /// Events were lost. Returned when the gap is detected, which may be before events that
    /// [`Order::Time`] holds back.
    Loss(Loss),
    /// All events before this time were returned.
    SequencePoint(SequencePoint),
}

/// The result of [`Parser::advance`]; [`Parser::view`] makes an [`Item`] of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Trace,
    Metadata(u32),
    /// The event at `current`, otherwise at `merge`.
    Event,
    Loss(Gap),
    SequencePoint(Point),
}

/// The event block that is being read in [`Order::Stream`].
#[derive(Debug)]
struct Current {
    event: Decoded,
    position: u64,
    end: u64,
    layout: Layout,
    /// The block is truncated: an event that does not fit is the truncation, not an error.
    partial: bool,
    /// No event of the block has been decoded.
    first: bool,
}

/// The block about threads that is being read: it can show a loss of each of them.
#[derive(Debug)]
struct Threads {
    block: ThreadsBlock,
    position: u64,
    end: u64,
}

/// Reads a NetTrace stream without I/O: push bytes in chunks of any size, and pull items.
///
/// ```no_run
/// # fn chunks() -> Vec<Vec<u8>> { Vec::new() }
/// let mut parser = nettrace::Parser::new(nettrace::Options::new());
/// for chunk in chunks() {
///     parser.push(&chunk);
///     while let Some(event) = parser.next_event()? {
///         println!("{} {}/{}", event.time(), event.provider(), event.name());
///     }
/// }
/// parser.finish();
/// while let Some(event) = parser.next_event()? {
///     println!("{} {}/{}", event.time(), event.provider(), event.name());
/// }
/// # Ok::<(), nettrace::Error>(())
/// ```
///
/// A damaged block yields one error and is skipped; the next call resumes with the next block. If
/// the block boundaries are lost, there is one error, then `None`.
#[derive(Debug)]
pub struct Parser {
    options: Options,
    input: Input,
    framing: Framing,
    state: StreamState,
    merge: Merge,
    current: Option<Current>,
    threads: Option<Threads>,
    pending: VecDeque<Result<Step>>,
    /// No more input will come.
    finished: bool,
    /// Nothing more can be read: the end mark was read, or the block boundaries were lost.
    done: bool,
    complete: bool,
    /// The error that ends the stream: returned after everything before it.
    ending: Option<Error>,
    /// Offset at which the held bytes were last compared with the maximum.
    held_checked_at: u64,
}

impl Parser {
    /// A parser at the start of a stream.
    pub fn new(options: Options) -> Self {
        Self {
            input: Input::default(),
            framing: Framing::new(options.limits.max_buffer),
            state: StreamState::new(options.limits),
            merge: Merge::default(),
            current: None,
            threads: None,
            pending: VecDeque::new(),
            finished: false,
            done: false,
            complete: false,
            ending: None,
            held_checked_at: 0,
            options,
        }
    }

    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.input.push(bytes);
    }

    /// Adds up to `len` bytes of the stream with a function that fills the beginning of a buffer
    /// and returns the number of filled bytes. This reads without another copy.
    ///
    /// # Errors
    ///
    /// The error of `fill`.
    pub fn push_with<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.make_room(len);
        let result = fill(self.input.room(len));
        let filled = result.as_ref().map_or(0, |n| (*n).min(len));
        self.input.fill(filled);
        result
    }

    /// Marks the end of the input: held events can then be returned, and a truncated stream is
    /// detected.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns the events that [`Order::Time`] holds back, although older events may follow. For a
    /// live stream that is idle.
    pub fn flush(&mut self) {
        self.merge.flush();
    }

    /// Whether the pushed input ends with a whole block.
    pub(crate) fn is_between_blocks(&self) -> bool {
        let rest = self.input.slice(self.framing.position, self.input.end());
        self.framing.is_between_blocks(rest)
    }

    /// Statistics of the stream so far.
    pub fn stats(&self) -> &Stats {
        &self.state.stats
    }

    /// The stream's `Trace` object, once it was read.
    pub fn trace(&self) -> Option<&Trace> {
        self.state.trace.as_ref()
    }

    /// Whether the stream's end mark has been read.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Events lost so far by capture thread (a thread id; in version 6 a thread index), of the threads that
    /// are still known. Those that have ended are not, by the sequence points of versions 4 and 5 and the removed
    /// threads of version 6. If there are more than [`Options::limits`] allow, all are forgotten.
    /// [`Stats::lost`] has all losses.
    pub fn lost_by_thread(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.state.losses.by_thread()
    }

    /// The next item; `None` when more bytes are needed, or after [`Parser::finish`] at the end.
    ///
    /// # Errors
    ///
    /// Damage and truncation of the stream, each once: see [`crate::Reader::next_item`].
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>> {
        match self.advance()? {
            Some(step) => Ok(Some(self.view(step))),
            None => Ok(None),
        }
    }

    /// The next event; `None` as in [`Parser::next_item`].
    ///
    /// # Errors
    ///
    /// Those of [`Parser::next_item`].
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        Ok(if self.advance_to_event()? { Some(self.event()) } else { None })
    }

    /// Whether nothing more can be read: [`Parser::finish`] was called, or the end mark was read.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished || self.done
    }

    /// Offset of the end of the pushed input.
    pub(crate) fn input_end(&self) -> u64 {
        self.input.end()
    }

    fn make_room(&mut self, more: usize) {
        if self.input.is_full(more) {
            self.input.compact(self.keep());
        }
    }

    /// Offset of the oldest byte that is still needed.
    fn keep(&self) -> u64 {
        let block = match &self.current {
            Some(current) if current.first => current.position,
            Some(current) => current.event.payload,
            None => self.framing.position,
        };
        let block = self.threads.as_ref().map_or(block, |threads| threads.position.min(block));
        self.merge.keep().map_or(block, |k| k.min(block))
    }

    /// The event that [`Parser::advance`] moved to.
    #[inline]
    pub(crate) fn event(&self) -> Event<'_> {
        const NONE: &Decoded = &Decoded::NONE;
        let decoded = match &self.current {
            Some(current) => &current.event,
            None => self.merge.event().unwrap_or(NONE),
        };
        let payload_end = decoded.payload + u64::from(decoded.header.payload_size);
        let (stack, stack_size) = decoded.stack;
        Event {
            header: &decoded.header,
            payload: self.input.slice(decoded.payload, payload_end),
            payload_offset: decoded.payload,
            inline_stack: self.input.slice(stack, stack + u64::from(stack_size)),
            metadata: self.state.metadata.get(decoded.metadata),
            state: &self.state,
        }
    }

    /// The result of [`Parser::advance`] as an item.
    pub(crate) fn view(&self, step: Step) -> Item<'_> {
        match (step, &self.state.trace) {
            (Step::Metadata(index), _) => Item::Metadata(self.state.metadata.get(index)),
            (Step::Loss(gap), _) => Item::Loss(gap.loss(|ticks| self.state.time(ticks))),
            (Step::SequencePoint(point), _) => {
                Item::SequencePoint(point.sequence_point(|ticks| self.state.time(ticks)))
            }
            (Step::Trace, Some(trace)) => Item::Trace(trace),
            (Step::Trace | Step::Event, _) => Item::Event(self.event()),
        }
    }

    /// Moves to the next event without borrowing it; `false` if there is none.
    #[inline]
    pub(crate) fn advance_to_event(&mut self) -> Result<bool> {
        loop {
            match self.advance()? {
                Some(Step::Event) => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Moves to the next item without borrowing it: see [`Parser::view`].
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<Option<Step>> {
        loop {
            if !self.pending.is_empty() {
                if let Some(step) = self.pending.pop_front() {
                    return step.map(Some);
                }
            }
            let event = match &self.current {
                Some(_) => match self.advance_in_block()? {
                    Some(step) => Some(step),
                    None => continue,
                },
                None => self.merge.next(&self.input, &self.state.metadata).then_some(Step::Event),
            };
            if let Some(step) = event {
                return Ok(Some(step));
            }
            if self.threads.is_some() {
                match self.advance_in_threads()? {
                    Some(step) => return Ok(Some(step)),
                    None => continue,
                }
            }
            if self.done {
                return self.ending.take().map_or(Ok(None), Err);
            }
            if !self.next_block()? {
                return Ok(None);
            }
        }
    }

    /// The next event of the current block, in stream order.
    #[inline]
    fn advance_in_block(&mut self) -> Result<Option<Step>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        let data = self.input.slice(current.position, current.end);
        if data.is_empty() {
            return self.leave_block(None);
        }
        let mut c = Cursor::with_base(data, current.position);
        let Current { event, layout, first, .. } = current;
        if !*first && decode_alike(&mut c, event, *layout) {
            current.position = c.offset();
            self.state.stats.count(1, current.event.metadata);
            return Ok(Some(Step::Event));
        }
        let before = current.event.header.place();
        let changes = match decode(&mut c, &mut current.event, current.layout) {
            Ok(changes) => changes,
            Err(e) => {
                // The decoded data is not an event: the run ended with the previous one.
                current.event.header.set_place(before);
                return self.leave_block(Some(e.into()));
            }
        };
        current.position = c.offset();
        let header = &current.event.header;
        let first = std::mem::take(&mut current.first);
        if changes.metadata || first {
            if current.layout == Layout::NetPerf && header.metadata_id == 0 {
                let start = current.event.payload;
                let end = start + u64::from(header.payload_size);
                let mut c = Cursor::with_base(self.input.slice(start, end), start);
                return match self.state.metadata_event(&mut c) {
                    Ok(index) => Ok(Some(Step::Metadata(index))),
                    Err(e) => self.leave_block(Some(e)),
                };
            }
            current.event.metadata = self.state.metadata.index(header.metadata_id);
        }
        if (changes.capture || first) && current.layout != Layout::NetPerf {
            let losses = &mut self.state.losses;
            if !first {
                losses.last_of_run(before);
            }
            if let Some(lost) = losses.first_of_run(header.place(), &self.state.limits) {
                // In the stream the loss precedes the event, but the event is already decoded.
                self.state.stats.lost = losses.total;
                self.pending.push_back(Ok(Step::Loss(lost)));
            }
        }
        self.state.stats.count(1, current.event.metadata);
        Ok(Some(Step::Event))
    }

    /// The next part of the current block about threads.
    #[cold]
    fn advance_in_threads(&mut self) -> Result<Option<Step>> {
        let Some(mut threads) = self.threads.take() else { return Ok(None) };
        let data = self.input.slice(threads.position, threads.end);
        let mut c = Cursor::with_base(data, threads.position);
        match self.state.next_of_threads(&mut c, &mut threads.block) {
            Ok(ThreadsStep::Loss(lost)) => {
                threads.position = c.offset();
                self.threads = Some(threads);
                Ok(Some(Step::Loss(lost)))
            }
            Ok(ThreadsStep::Point(point)) => Ok(Some(Step::SequencePoint(point))),
            Ok(ThreadsStep::End) => Ok(None),
            Err(e) => {
                self.state.stats.damaged_blocks += 1;
                Err(e)
            }
        }
    }

    #[cold]
    fn leave_block(&mut self, error: Option<Error>) -> Result<Option<Step>> {
        let Some(current) = self.current.take() else { return Ok(None) };
        if !current.first && current.layout != Layout::NetPerf {
            self.state.losses.last_of_run(current.event.header.place());
        }
        match error {
            Some(e) if !(current.partial && is_short(&e)) => {
                self.state.stats.damaged_blocks += 1;
                Err(e)
            }
            _ => Ok(None),
        }
    }

    /// Reads the next block; `false` if more input is needed.
    fn next_block(&mut self) -> Result<bool> {
        let rest = self.input.slice(self.framing.position, self.input.end());
        let frame = match self.framing.peek(rest) {
            Ok(Some(frame)) => frame,
            Ok(None) => return self.out_of_input(None),
            Err(e) => {
                self.end(Some(e));
                return Ok(true);
            }
        };
        if frame.end > self.input.end() {
            return self.out_of_input(Some(frame));
        }
        // Held events still refer to the tables that these blocks invalidate.
        let barrier = match frame.kind {
            Kind::SequencePoint | Kind::RemoveThread | Kind::End | Kind::Trace => true,
            Kind::Event
            | Kind::Metadata
            | Kind::Stack
            | Kind::Thread
            | Kind::LabelList
            | Kind::Unknown => false,
        };
        if barrier && !self.merge.is_empty() {
            // After the others, no event is older than those that are held.
            self.state.stats.early_flushes += u64::from(frame.kind == Kind::RemoveThread);
            self.merge.drain();
            return Ok(true);
        }
        self.framing.consume(&frame);
        self.state.stats.bytes = frame.end;
        self.state.stats.blocks += 1;
        let result = self.block(&frame);
        // The input after a held event is kept, whatever it is.
        self.bound_held();
        match result {
            Ok(()) => Ok(true),
            Err(e) => {
                self.state.stats.damaged_blocks += 1;
                Err(e)
            }
        }
    }

    /// All available blocks were read.
    fn out_of_input(&mut self, partial: Option<Frame>) -> Result<bool> {
        if !self.finished {
            return Ok(false);
        }
        let end = self.input.end();
        self.state.stats.bytes = end;
        self.state.stats.truncated_at = Some(end);
        self.end(Some(Error::new(end, ErrorKind::Truncated)));
        match partial {
            Some(frame) if frame.kind == Kind::Event && frame.start < end => {
                match self.event_block(&Frame { end, ..frame }, true) {
                    Err(e) if !is_short(&e) => Err(e),
                    _ => Ok(true),
                }
            }
            _ => Ok(true),
        }
    }

    fn end(&mut self, why: Option<Error>) {
        self.done = true;
        self.ending = why;
        self.merge.drain();
    }

    fn block(&mut self, frame: &Frame) -> Result<()> {
        let data = self.input.slice(frame.start, frame.end);
        let mut c = Cursor::with_base(data, frame.start);
        let state = &mut self.state;
        let pending = &mut self.pending;
        if state.trace.is_none() && !matches!(frame.kind, Kind::Trace | Kind::Unknown | Kind::End) {
            return Err(Error::new(frame.start, ErrorKind::NoTrace));
        }
        match frame.kind {
            Kind::Trace => {
                if state.trace.is_some() {
                    return Err(Error::invalid(frame.start, "second Trace object", 2));
                }
                let version = self.framing.version;
                state.trace = Some(if version >= 6 {
                    Trace::parse_v6(&mut c, version, &state.limits)?
                } else {
                    Trace::parse(&mut c, version)?
                });
                pending.push_back(Ok(Step::Trace));
            }
            Kind::Event => self.event_block(frame, false)?,
            Kind::Metadata => {
                state.metadata_block(&mut c, |row| pending.push_back(Ok(Step::Metadata(row))))?;
            }
            Kind::Stack => state.stack_block(&mut c)?,
            Kind::SequencePoint => {
                let block = ThreadsBlock::Point(state.begin_point(&mut c)?);
                let (position, end) = (c.offset(), frame.end);
                self.threads = Some(Threads { block, position, end });
            }
            Kind::Thread => state.thread_block(&mut c)?,
            Kind::RemoveThread => {
                let block = ThreadsBlock::Removed;
                let (position, end) = (frame.start, frame.end);
                self.threads = Some(Threads { block, position, end });
            }
            Kind::LabelList => state.label_block(&mut c)?,
            Kind::End => {
                self.complete = true;
                self.end(None);
            }
            Kind::Unknown => state.stats.unknown_blocks += 1,
        }
        Ok(())
    }

    fn event_block(&mut self, frame: &Frame, partial: bool) -> Result<()> {
        let data = self.input.slice(frame.start, frame.end);
        let mut c = Cursor::with_base(data, frame.start);
        let layout = self.state.block_layout(&mut c)?;
        // NetPerf is written in time order, and has no sorted marks.
        if self.options.order == Order::Stream || layout == Layout::NetPerf {
            self.current = Some(Current {
                event: Decoded::NONE,
                position: c.offset(),
                end: frame.end,
                layout,
                partial,
                first: true,
            });
            return Ok(());
        }
        let result = self.scan(frame, c.offset(), layout);
        self.state.stats.lost = self.state.losses.total;
        match result {
            Err(e) if partial && is_short(&e) => Ok(()),
            result => result,
        }
    }

    /// Splits a block into runs in time order, and tracks sequence numbers.
    fn scan(&mut self, frame: &Frame, start: u64, layout: Layout) -> Result<()> {
        let mut c = Cursor::with_base(self.input.slice(start, frame.end), start);
        let StreamState { losses, limits, metadata, stats, .. } = &mut self.state;
        let mut d = Decoded::NONE;
        let mut run = None;
        let most_pending = limits.max_buffer / size_of::<Result<Step>>();
        // End of the last valid event.
        let mut end = start;
        let mut result = Ok(());
        while !c.is_empty() {
            let before = d.header.place();
            let changes = match decode(&mut c, &mut d, layout) {
                Ok(changes) => changes,
                Err(e) => {
                    d.header.set_place(before);
                    result = Err(e.into());
                    break;
                }
            };
            let first = run.is_none();
            if changes.metadata || first {
                d.metadata = metadata.index(d.header.metadata_id);
            }
            let place = d.header.place();
            if changes.capture || first {
                if !first {
                    losses.last_of_run(before);
                }
                match losses.first_of_run(place, limits) {
                    None => {}
                    Some(_) if self.pending.len() >= most_pending => {
                        let lost = self.pending.len() as u64;
                        result = Err(Error::limit(end, "losses", lost, most_pending));
                        break;
                    }
                    Some(lost) => self.pending.push_back(Ok(Step::Loss(lost))),
                }
            }
            stats.count(1, d.metadata);
            if d.header.is_sorted {
                self.merge.raise(place.ticks);
            }
            if first || place.ticks < before.ticks {
                if let Some(slot) = run {
                    self.merge.extend(slot, end);
                }
                stats.early_flushes += u64::from(self.merge.is_late(place.ticks));
                run = Some(self.merge.start(d, c.offset(), layout));
            }
            let alike = skip_alike(&mut c, &mut d, layout);
            stats.count(alike.into(), d.metadata);
            end = c.offset();
        }
        if let Some(slot) = run {
            self.merge.extend(slot, end);
            losses.last_of_run(d.header.place());
        }
        result
    }

    /// Returns held events early if they exceed the maximum.
    fn bound_held(&mut self) {
        if self.merge.is_empty() {
            return;
        }
        let bound = self.options.max_reorder_bytes;
        let runs = self.merge.runs().saturating_mul(Merge::RUN_SIZE);
        let since = self.framing.position.saturating_sub(self.held_checked_at);
        if runs <= bound && since < bound as u64 / 16 {
            return;
        }
        self.held_checked_at = self.framing.position;
        let bytes = self.framing.position - self.keep().min(self.framing.position);
        if bytes.saturating_add(runs as u64) > bound as u64 {
            self.state.stats.early_flushes += 1;
            self.merge.drain();
        }
    }
}

const fn is_short(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Read(ReadErrorKind::UnexpectedEnd { .. }))
}
