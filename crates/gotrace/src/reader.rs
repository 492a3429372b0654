use crate::error::{Error, ErrorKind, Position};
use crate::event::{Event, OwnedEvent, Record};
use crate::frontier::Frontier;
use crate::generation::{Generation, Loaded, Loader, Lost, Salvage, Salvaged};
use crate::header;
use crate::id::ThreadId;
use crate::order::{Advance, Blocked, Ordering};
use crate::recovery::{Counts, Recovery};
use crate::source::Source;
use crate::spec::{MAX_ARGS, Plan};
use crate::table::Table;
use crate::v1::V1;
use crate::version::Version;
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::mem;
use std::sync::Arc;
use trace_common::{ClockDomain, Limits};

/// Reads the events of a trace in order.
///
/// A reader accepts any [`Read`]: a file, a pipe, a socket, a slice. It does not need a
/// [`BufReader`](std::io::BufReader) around it. It holds one generation of the trace at a time,
/// about a second of the traced program's execution, and returns the events of a generation as soon
/// as the input contains all of it. (A v1 trace, of Go ≤ 1.21, is held as a whole.)
///
/// [`Reader::next_event`] returns borrowed events without an allocation per event; the [`Iterator`]
/// returns [`OwnedEvent`]s.
///
/// The first event of a trace is always a [`Sync`](crate::EventKind::Sync), and so is the last.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut reader = gotrace::Reader::new(std::fs::File::open("trace.out")?)?;
/// while let Some(event) = reader.next_event()? {
///     println!("{event}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    version: Version,
    limits: Limits,
    source: Source<R>,
    phase: Phase,
    order: Ordering,
    frontier: Frontier,
    /// The remaining CPU samples of the current generation, the earliest last.
    samples: Vec<Record>,
    /// Where its batches with CPU samples begin in the window.
    sample_batches: Vec<usize>,
    /// Number of bytes of the source that the current generation takes.
    generation_len: usize,
    /// The action after the current generation.
    after: After,
    /// The event to return, and its table.
    event: Record,
    table: Arc<Table>,
    /// The table of events without a generation: those of a v1 trace, or the last event.
    no_table: Arc<Table>,
    last_time: i64,
    syncs: u64,
    gaps: u64,
    /// The last generation that was begun, and its clock.
    last_generation: u64,
    nanos_per_tick: f64,
    /// The generation after which a gap would be silent.
    gap_base: u64,
    /// Start of the last accepted event, as an index into the source's bytes.
    event_start: usize,
    /// Whether `event` was accepted, but an error occurred before it could be returned.
    taken: bool,
    /// The counts of recovery.
    counts: Counts,
}

#[derive(Debug)]
enum Phase {
    /// In a v1 trace.
    V1(Box<V1>),
    /// In a generation, as long as the frontier or the samples have events left; then before the
    /// next generation.
    Load,
    /// In a damaged generation, before or after its sync event.
    Damaged(Box<Recovery>),
    /// A sync event was returned for this error, which comes next.
    Failing(Error),
    /// An error was returned.
    Failed(Box<Failure>),
    /// The last event was returned.
    Done,
}

/// The data that recovery needs about an error.
#[derive(Debug)]
struct Failure {
    offset: u64,
    generation: Option<u64>,
    state: FailedIn,
}

/// The location of an error.
#[derive(Debug)]
enum FailedIn {
    /// Between generations.
    Loading,
    /// In a generation that was not known to be damaged.
    Generation {
        frontier: Frontier,
        samples: Vec<Record>,
        /// Events that were accepted but not returned.
        pending: VecDeque<Record>,
        /// Whether its sync event was returned.
        begun: bool,
    },
    /// In a damaged generation, because of a limit.
    Damaged(Box<Recovery>),
}

/// The item after the current generation.
#[derive(Debug)]
enum After {
    /// Another generation, or the end: not known yet.
    Unknown,
    /// The end of the trace.
    End,
    /// Damage that is not reported yet.
    Error(Error),
}

/// The extent of a loss in a damaged trace: see [`Reader::recover`].
///
/// All lost bytes are in `from..to`; this range may also contain intact bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Offset of the first lost byte in the trace; the offset of the error if no byte is lost.
    pub from: u64,
    /// Offset after the last lost byte; never less than `from`.
    pub to: u64,
    /// Number of lost bytes: batches that cannot be found, and the parts of batches that cannot be
    /// decoded.
    pub bytes: u64,
    /// The number of these bytes that are in batches of events that were found. The events in them
    /// are unknown.
    pub event_bytes: u64,
    /// Number of decodable events that are lost because the reader discards their generation.
    pub events: u64,
    /// The damaged generation, if it is known.
    pub generation: Option<u64>,
    /// Whether the reader resumes in this generation, rather than after it.
    pub partial: bool,
    /// Whether the frequency of the trace clock is assumed because it is lost: all times of the
    /// generation then assume the 15 625 000 ticks per second of Linux.
    pub guessed_frequency: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a trace from `input`, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotATrace`] and [`ErrorKind::UnknownVersion`] for an invalid header; for a v1
    /// trace, any error in the whole trace.
    pub fn new(input: R) -> Result<Self, Error> {
        Self::with_limits(input, Limits::default())
    }

    /// As [`Reader::new`] with custom `limits` on memory: `max_buffer` bytes of a generation, and
    /// `max_entries` of each of its tables and of live goroutines.
    ///
    /// # Errors
    ///
    /// As [`Reader::new`].
    pub fn with_limits(input: R, limits: Limits) -> Result<Self, Error> {
        let mut source = Source::new(input, limits.max_buffer);
        let version = header::read(&mut source)?;
        let (mut phase, mut no_table, mut last_time) = (Phase::Load, Arc::new(Table::new(0)), 0);
        if version.is_v1() {
            let v1 = V1::read(&mut source, version, &limits)?;
            no_table = Arc::clone(v1.table());
            last_time = v1.first_sync_time().map_or(-1, |time| time - 1);
            phase = Phase::V1(Box::new(v1));
        }
        Ok(Self {
            version,
            limits,
            source,
            phase,
            order: Ordering::new(&limits),
            frontier: Frontier::default(),
            samples: Vec::new(),
            sample_batches: Vec::new(),
            generation_len: 0,
            after: After::Unknown,
            event: Record::sync(0, 0, false),
            table: Arc::clone(&no_table),
            no_table,
            last_time,
            syncs: 0,
            gaps: 0,
            last_generation: 0,
            nanos_per_tick: 0.0,
            gap_base: 0,
            event_start: 0,
            taken: false,
            counts: Counts::default(),
        })
    }

    /// The version of the trace's format.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The clock of the trace's timestamps.
    ///
    /// For v2 traces this is `CLOCK_MONOTONIC`, as on Linux. Traces recorded on Windows use another
    /// clock, which cannot be detected.
    pub const fn clock_domain(&self) -> ClockDomain {
        if self.version.is_v1() { ClockDomain::Local(0) } else { ClockDomain::Monotonic }
    }

    /// Number of generations that are missing between others, by their numbers.
    ///
    /// From Go 1.26 on, Go's own reader skips such a gap silently.
    pub const fn missing_generations(&self) -> u64 {
        self.gaps
    }

    /// Number of references of events to lost strings and stacks, in generations that
    /// [`Reader::recover`] has recovered. Those strings and stacks are empty.
    pub const fn unresolved_ids(&self) -> u64 {
        self.counts.unresolved_ids
    }

    /// Number of decodable events that are lost: [`Reader::recover`] found no state in which they
    /// are valid, or discarded their generation ([`Loss::events`]).
    pub const fn lost_events(&self) -> u64 {
        self.counts.lost_events
    }

    /// Returns the next event; `None` at the end.
    ///
    /// # Errors
    ///
    /// The error in the trace, with its position. Events that were returned before are valid. After
    /// an error there are no more events (`None`), unless [`Reader::recover`] resumes.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        match self.find_next() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.fail(error)),
        }
        if let Some(kind) = missing_id(&self.event, &self.table) {
            return Err(self.unresolved_id(kind));
        }
        // No two events have the same time.
        if self.event.time <= self.last_time {
            self.event.time = self.last_time.wrapping_add(1);
        }
        self.last_time = self.event.time;
        Ok(Some(Event { table: &self.table, record: &self.event }))
    }

    /// Finds the next event to return; `false` at the end.
    #[inline(always)]
    fn find_next(&mut self) -> Result<bool, Error> {
        loop {
            if let Some(event) = self.order.next_following() {
                self.event = event;
                return Ok(true);
            }
            let Some(head) = self.frontier.head_time() else { return self.between_generations() };
            if self.samples.last().is_some_and(|sample| sample.time < head) {
                return Ok(self.next_sample());
            }
            // The head is nearly always accepted.
            if self.try_head()? || self.advance_any()? {
                return Ok(true);
            }
        }
    }

    fn next_sample(&mut self) -> bool {
        let sample = self.samples.pop();
        if let Some(sample) = sample {
            self.event = sample;
        }
        sample.is_some()
    }

    /// Returns the next event of a v1 trace.
    fn next_v1(&mut self) -> Result<bool, Error> {
        let Phase::V1(v1) = &mut self.phase else { return Ok(false) };
        match v1.first_sync_time() {
            Some(time) if self.syncs == 0 => self.sync(time, true),
            _ if v1.next(&mut self.event)? => {}
            _ => self.final_sync(),
        }
        Ok(true)
    }

    /// Accepts the earliest event, if the order allows.
    #[inline(always)]
    fn try_head(&mut self) -> Result<bool, Error> {
        // Not `try_advance(0)`: this closure has a single use, so the compiler inlines it.
        let taken = self.frontier.offer(0, self.source.window(), |cursor| {
            self.event_start = cursor.start;
            self.order.advance(&cursor.event, cursor.slot, &self.table, &mut self.event)
        });
        match taken {
            Ok(Ok(())) => Ok(true),
            blocked => self.blocked(0, blocked),
        }
    }

    /// Accepts the event of the cursor at `index` of the frontier, if the order allows.
    #[cold]
    fn try_advance(&mut self, index: usize) -> Result<bool, Error> {
        let taken = self.frontier.offer(index, self.source.window(), |cursor| {
            self.event_start = cursor.start;
            self.order.advance_apart(&cursor.event, cursor.slot, &self.table, &mut self.event)
        });
        self.blocked(index, taken)
    }

    #[cold]
    fn blocked(&mut self, index: usize, taken: Result<Advance, Error>) -> Result<bool, Error> {
        match taken {
            Ok(Ok(())) => Ok(true),
            Ok(Err(Blocked::NotYet)) => Ok(false),
            Ok(Err(Blocked::Never(kind))) => Err(self.error_at(index, *kind)),
            Err(error) => {
                // The event itself was accepted; the next one of its thread is malformed.
                self.taken = true;
                Err(self.placed(error))
            }
        }
    }

    /// An error of the frontier, with its position in the trace.
    #[cold]
    fn placed(&self, mut error: Error) -> Error {
        error.position_mut().offset += self.source.offset();
        error.position_mut().generation = Some(self.table.generation);
        error
    }

    /// Accepts the first event, in order of time, that the order of events allows.
    #[cold]
    fn advance_any(&mut self) -> Result<bool, Error> {
        // Each call may cost time proportional to the number of threads.
        if let Err(limit) = self.order.work.charge(self.frontier.len()) {
            return Err(self.error_at(0, limit));
        }
        self.frontier.sort();
        // The head has been tried already.
        for index in 1..self.frontier.len() {
            if self.try_advance(index)? {
                return Ok(true);
            }
        }
        Err(self.error_at(0, ErrorKind::BrokenOrder))
    }

    /// An error at the event of the cursor at `index` of the frontier.
    #[cold]
    fn error_at(&self, index: usize, kind: ErrorKind) -> Error {
        let cursor = self.frontier.cursor(index);
        let position = Position {
            offset: self.source.offset() + cursor.start as u64,
            generation: Some(self.table.generation),
            thread: Some(cursor.thread),
            event: Some(cursor.event.ty),
        };
        Error::new(kind, position)
    }

    /// Returns the error for an undefined identifier in the event to return.
    #[cold]
    fn unresolved_id(&mut self, kind: ErrorKind) -> Error {
        self.taken = true;
        let position = Position {
            offset: self.source.offset() + self.event_start as u64,
            generation: Some(self.table.generation),
            thread: Some(self.event.m),
            event: Some(self.event.ty),
        };
        self.fail(Error::new(kind, position))
    }

    /// Records the error for [`Reader::recover`].
    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        let Position { offset, generation, .. } = error.position();
        let mut pending = VecDeque::new();
        if mem::take(&mut self.taken) {
            pending.push_back(self.event);
        }
        pending.extend(std::iter::from_fn(|| self.order.next_following()));
        let (frontier, samples) = (mem::take(&mut self.frontier), mem::take(&mut self.samples));
        let state = match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Damaged(recovery) => FailedIn::Damaged(recovery),
            phase if self.generation_len > 0 => {
                let begun = matches!(phase, Phase::Load);
                FailedIn::Generation { frontier, samples, pending, begun }
            }
            _ => FailedIn::Loading,
        };
        self.phase = Phase::Failed(Box::new(Failure { offset, generation, state }));
        error
    }

    #[cold]
    fn between_generations(&mut self) -> Result<bool, Error> {
        match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Done => Ok(false),
            failed @ Phase::Failed(_) => {
                self.phase = failed;
                Ok(false)
            }
            Phase::Failing(error) => Err(error),
            v1 @ Phase::V1(_) => {
                self.phase = v1;
                self.next_v1()
            }
            Phase::Damaged(recovery) => self.next_of_damaged(recovery),
            Phase::Load if self.next_sample() => {
                self.phase = Phase::Load;
                Ok(true)
            }
            Phase::Load => self.next_generation(),
        }
    }

    /// Moves past the current generation.
    fn next_generation(&mut self) -> Result<bool, Error> {
        self.source.release(mem::take(&mut self.generation_len));
        self.table = Arc::clone(&self.no_table);
        match mem::replace(&mut self.after, After::Unknown) {
            After::Error(error) => self.sync_before(error),
            After::Unknown => return self.load(),
            After::End => self.final_sync(),
        }
        Ok(true)
    }

    /// Returns the next event of a damaged generation, or of the one after it.
    fn next_of_damaged(&mut self, mut recovery: Box<Recovery>) -> Result<bool, Error> {
        if let Some(time) = recovery.sync.take() {
            self.sync(time, true);
            self.phase = Phase::Damaged(recovery);
            return Ok(true);
        }
        let bytes = self.source.window();
        match recovery.next(&mut self.order, bytes, &self.table, &mut self.event, &mut self.counts)
        {
            Ok(false) => {
                // The adopted states may be wrong; the next generation reports its own.
                self.order = Ordering::new(&self.limits);
                self.next_generation()
            }
            found => {
                self.phase = Phase::Damaged(recovery);
                found.map_err(|error| self.placed(error))
            }
        }
    }

    /// Loads the next generation.
    fn load(&mut self) -> Result<bool, Error> {
        match Loader::new(self.version, self.limits).load(&mut self.source) {
            Loaded::End if self.syncs > 0 => self.final_sync(),
            Loaded::End => {
                let error = Error::at(self.source.offset(), ErrorKind::IncompleteGeneration);
                self.sync_before(error);
            }
            Loaded::Complete { generation, len, then, last } => {
                self.after = match then {
                    Some(error) => After::Error(error),
                    // From Go 1.26 on, only the end of the input ends the trace.
                    None if last && self.version < Version::Go126 => After::End,
                    None => After::Unknown,
                };
                return self.install(*generation, len);
            }
            Loaded::Failed(error) => self.sync_before(error),
        }
        Ok(true)
    }

    /// Begins a generation.
    fn install(&mut self, generation: Generation, len: usize) -> Result<bool, Error> {
        let Generation { min_time, table, events, samples, sample_batches } = generation;
        self.begin(table, len);
        self.samples = samples;
        self.sample_batches = sample_batches;
        let number = self.last_generation;
        let (bytes, order) = (self.source.window(), &mut self.order);
        let started = self.frontier.start(events, bytes, |id| order.slot_of(id), |_| 0);
        self.order.start(number, self.frontier.head_time().is_some());
        started.map_err(|error| self.placed(error))?;
        let limit = self.limits.max_entries;
        if self.order.len() > limit {
            let what = "the number of goroutines, procs, threads and tasks (max_entries)";
            self.frontier.clear();
            return Err(Error::at(self.source.offset(), ErrorKind::Limit { what, limit }));
        }
        self.phase = Phase::Load;
        self.sync(min_time, true);
        Ok(true)
    }

    /// Records which generation the next `len` bytes belong to.
    fn begin(&mut self, table: Arc<Table>, len: usize) {
        let number = table.generation;
        if self.gap_base != 0 {
            self.gaps += number.saturating_sub(self.gap_base).saturating_sub(1);
        }
        (self.last_generation, self.gap_base) = (number, number);
        self.nanos_per_tick = table.sync.nanos_per_tick;
        self.table = table;
        self.generation_len = len;
        self.order.work.allow_for(len);
    }

    fn sync(&mut self, time: i64, with_table: bool) {
        self.syncs += 1;
        self.event = Record::sync(time, self.syncs, with_table);
    }

    fn final_sync(&mut self) {
        self.phase = Phase::Done;
        self.sync(self.last_time, false);
    }

    /// Returns a sync event, which `error` follows.
    fn sync_before(&mut self, error: Error) {
        self.phase = Phase::Failing(error);
        self.sync(self.last_time, false);
    }

    /// Resumes after the error that [`Reader::next_event`] has just returned and reports what is
    /// lost. `None` if there is no such error, or nothing follows it.
    ///
    /// The reader resumes in the damaged generation if any of it is left, with all intact batches
    /// and with the part of each damaged batch that precedes the damage. Where events that others
    /// depend on are lost, goroutines, procs and threads are put into the state that the next event
    /// implies: a waiting goroutine may start to run without an event that unblocks it. A goroutine
    /// or proc that must exist but that no event names is [`GoId::NONE`](crate::GoId::NONE) or
    /// [`ProcId::NONE`](crate::ProcId::NONE). Lost strings and stacks are empty
    /// ([`Reader::unresolved_ids`] counts them).
    ///
    /// The generation after a damaged one begins like the first of a trace: goroutines change from
    /// [`GoState::Undetermined`](crate::GoState::Undetermined).
    ///
    /// A v1 trace cannot be recovered.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), gotrace::Error> {
    /// let mut reader = gotrace::Reader::new(std::io::stdin())?;
    /// loop {
    ///     match reader.next_event() {
    ///         Ok(Some(event)) => println!("{event}"),
    ///         Ok(None) => break,
    ///         Err(error) => {
    ///             eprintln!("{error}");
    ///             let Some(loss) = reader.recover()? else { break };
    ///             eprintln!("{} bytes lost", loss.bytes);
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Only errors of the input itself ([`ErrorKind::Io`]) and [`ErrorKind::Limit`].
    pub fn recover(&mut self) -> Result<Option<Loss>, Error> {
        let failure = match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Failed(failure) => *failure,
            other => {
                self.phase = other;
                return Ok(None);
            }
        };
        let Failure { offset, generation, state } = failure;
        self.after = After::Unknown;
        self.table = Arc::clone(&self.no_table);
        let mut loss = Loss {
            from: offset,
            to: offset,
            bytes: 0,
            event_bytes: 0,
            events: 0,
            generation,
            partial: false,
            guessed_frequency: false,
        };
        match state {
            FailedIn::Damaged(recovery) => self.give_up(*recovery, &mut loss),
            FailedIn::Generation { frontier, samples, pending, begun } => {
                let positions: HashMap<_, _> = frontier.positions().into_iter().collect();
                let (number, loaded) = (self.last_generation, mem::take(&mut self.sample_batches));
                let (version, limits) = (self.version, self.limits);
                let salvage = Salvage::again(&mut self.source, version, limits, number, loaded);
                let mut salvaged = salvage.load(self.nanos_per_tick);
                if let Some(generation) = &mut salvaged.generation {
                    generation.samples.extend(samples);
                    generation.samples.sort_by_key(|sample| std::cmp::Reverse(sample.time));
                }
                self.resume(salvaged, &positions, pending, begun, &mut loss);
            }
            FailedIn::Loading => {
                let mut lost = Lost::default();
                let (version, limits) = (self.version, self.limits);
                let last = self.last_generation;
                match Salvage::find(&mut self.source, version, limits, last, &mut lost) {
                    Some(salvage) => {
                        // ...
                        let salvaged = salvage.load(self.nanos_per_tick);
                        loss.add(&lost);
                        self.resume(salvaged, &HashMap::new(), VecDeque::new(), false, &mut loss);
                    }
                    None => {
                        loss.add(&lost);
                        if loss.bytes == 0 {
                            return Ok(None);
                        }
                        self.after = After::End;
                        self.phase = Phase::Load;
                    }
                }
            }
        }
        Ok(Some(loss))
    }

    /// Resumes with the salvaged part of a damaged generation.
    fn resume(
        &mut self,
        salvaged: Salvaged,
        positions: &HashMap<ThreadId, usize>,
        pending: VecDeque<Record>,
        begun: bool,
        loss: &mut Loss,
    ) {
        let Salvaged { generation, len, at_end, lost, guessed_frequency } = salvaged;
        loss.add(&lost);
        if at_end {
            self.after = After::End;
        }
        let Some(generation) = generation else {
            self.generation_len = len;
            self.phase = Phase::Load;
            return;
        };
        let Generation { min_time, table, events, samples, .. } = *generation;
        let number = table.generation;
        if !begun && number > self.last_generation + 1 {
            // The bytes between are a reported loss.
            self.order = Ordering::new(&self.limits);
            self.gap_base = 0;
        }
        loss.generation = Some(number);
        (loss.partial, loss.guessed_frequency) = (true, guessed_frequency);
        self.begin(table, len);
        let mut frontier = Frontier::default();
        let (bytes, order) = (self.source.window(), &mut self.order);
        // All events of the generation can be decoded.
        let _ = frontier.start(
            events,
            bytes,
            |id| order.slot_of(id),
            |id| positions.get(&id).copied().unwrap_or(0),
        );
        self.order.start(number, frontier.head_time().is_some());
        self.phase = Phase::Damaged(Box::new(Recovery {
            sync: (!begun).then_some(min_time),
            frontier,
            samples,
            pending,
            max_entries: self.limits.max_entries,
        }));
    }

    /// Discards a damaged generation that exceeds a limit.
    fn give_up(&mut self, mut recovery: Recovery, loss: &mut Loss) {
        let left = recovery.pending.len() + recovery.samples.len();
        loss.events = left as u64 + recovery.frontier.drain(self.source.window());
        self.counts.lost_events += loss.events;
        self.order = Ordering::new(&self.limits);
        self.phase = Phase::Load;
    }
}

impl Loss {
    fn add(&mut self, lost: &Lost) {
        if let Some(range) = &lost.range {
            if self.bytes == 0 {
                (self.from, self.to) = (range.start, range.end);
            } else {
                (self.from, self.to) = (self.from.min(range.start), self.to.max(range.end));
            }
        }
        self.bytes += lost.bytes;
        self.event_bytes += lost.event_bytes;
    }
}

/// Returns an identifier of an event that is not in the tables of its generation.
#[inline(always)]
pub(crate) fn missing_id(record: &Record, table: &Table) -> Option<ErrorKind> {
    let plan = record.ty.plan();
    // The type of an event determines its identifiers, and the sequence of types is not predictable
    // for the CPU. So this has one branch, which is nearly always taken. A missing identifier is
    // looked up as 0, which all tables contain.
    let known = table.stacks.surely_has(argument(record, plan.stack))
        & table.strings.surely_has(argument(record, plan.string))
        & !plan.has_other_ids;
    if known { None } else { find_missing_id(record, plan, table) }
}

/// Returns the argument with this index; 0 for [`Plan::NONE`].
#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "the remainder keeps the index within the array: no check is left to do"
)]
fn argument(record: &Record, index: u8) -> u64 {
    let value = record.args[usize::from(index) % MAX_ARGS];
    if index == Plan::NONE { 0 } else { value }
}

#[inline(never)]
fn find_missing_id(record: &Record, plan: &Plan, table: &Table) -> Option<ErrorKind> {
    let stack = |index| {
        let id = argument(record, index);
        (!table.has_stack(id)).then_some(ErrorKind::UnknownId { what: "stack", id })
    };
    let string = |index| {
        let id = argument(record, index);
        (!table.has_string(id)).then_some(ErrorKind::UnknownId { what: "string", id })
    };
    stack(plan.stack)
        .or_else(|| string(plan.string))
        .or_else(|| stack(plan.other_stack))
        .or_else(|| string(plan.other_string))
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<OwnedEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().map(|event| event.map(Event::to_owned)).transpose()
    }
}
