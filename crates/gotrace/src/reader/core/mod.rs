//! The reader without the event that it returns.

mod part;
mod push;
mod recover;

use crate::error::{Error, ErrorKind, Position};
use crate::event::Record;
use crate::frontier::Frontier;
use crate::generation::{Generation, Loaded, Loader};
use crate::header;
use crate::id::ThreadId;
use crate::order::{Blocked, Ordering};
use crate::reader::ids::missing_id;
use crate::recovery::{Counts, Recovery};
use crate::source::Source;
use crate::spec::EventType;
use crate::table::Table;
use crate::v1::V1;
use crate::version::Version;
pub(crate) use part::Between;
use push::Arrival;
pub use recover::Loss;
use recover::{FailedIn, Failure};
use std::collections::VecDeque;
use std::io::Read;
use std::mem;
use std::sync::Arc;
use trace_common::Limits;

/// The state of a reader.
#[derive(Debug)]
pub(crate) struct Core<R> {
    pub(crate) version: Version,
    limits: Limits,
    source: Source<R>,
    phase: Phase,
    order: Ordering,
    /// Whether the order of the next generation knows no state of those before it.
    restarts: bool,
    frontier: Frontier,
    current: Current,
    /// The table of the event that was found last.
    pub(crate) table: Arc<Table>,
    /// Start of the last accepted event, as an index into the bytes of the generation.
    event_start: usize,
    /// Whether an event was accepted, but an error occurred before it could be returned.
    taken: bool,
    /// The table of events without a generation: those of a v1 trace, or the last event.
    no_table: Arc<Table>,
    last_time: i64,
    syncs: u64,
    pub(crate) gaps: Gaps,
    /// The counts of recovery.
    pub(crate) counts: Counts,
    /// What is known of the next generation if bytes are pushed; `None` if they are read.
    arrival: Option<Arrival>,
}

/// The current generation, or the last one.
#[derive(Debug)]
struct Current {
    /// Its number; 0 before the first one.
    number: u64,
    /// Offset in the trace.
    offset: u64,
    /// Number of bytes that it takes; 0 between generations.
    len: usize,
    nanos_per_tick: f64,
    /// The remaining CPU samples, the earliest last.
    samples: Vec<Record>,
    /// Where the batches with CPU samples begin in the bytes of the generation.
    sample_batches: Vec<usize>,
    /// The item that follows.
    after: After,
}

/// Missing generations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gaps {
    pub(crate) missing: u64,
    /// The generation after which a gap would be silent; 0 if there is none.
    after: u64,
}

impl Gaps {
    fn begin(&mut self, generation: u64) {
        if self.after != 0 {
            let missing = generation.saturating_sub(self.after).saturating_sub(1);
            self.missing = self.missing.saturating_add(missing);
        }
        self.after = generation;
    }
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

/// The next event to return.
enum Next {
    /// It is that of the head of the frontier, if the order allows.
    Head,
    /// It was found.
    Found,
    /// There is none.
    End,
    Failed(Error),
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

impl<R: Read> Core<R> {
    /// Reads the header of a trace.
    pub(super) fn new(input: R, limits: Limits) -> Result<Self, Error> {
        Self::open(Source::new(input, limits.max_buffer), limits)
    }

    /// As [`Core::new`], for a source.
    fn open(mut source: Source<R>, limits: Limits) -> Result<Self, Error> {
        let version = header::read(&mut source)?;
        let v1 = version.is_v1().then(|| V1::read(&mut source, version, &limits)).transpose()?;
        if v1.is_some() {
            source.clear(); // it holds the bytes itself
        }
        let mut core = Self::of(source, version, limits);
        if let Some(v1) = v1 {
            core.no_table = Arc::clone(v1.table());
            core.table = Arc::clone(v1.table());
            core.last_time = v1.first_sync_time().map_or(-1, |time| time - 1);
            core.phase = Phase::V1(Box::new(v1));
        }
        Ok(core)
    }

    /// A reader of a v2 trace, or of a part of one, that begins with a generation.
    pub(super) fn of(source: Source<R>, version: Version, limits: Limits) -> Self {
        let no_table = Arc::new(Table::new(0));
        Self {
            version,
            limits,
            current: Current {
                number: 0,
                offset: source.offset(),
                len: 0,
                nanos_per_tick: 0.0,
                samples: Vec::new(),
                sample_batches: Vec::new(),
                after: After::Unknown,
            },
            source,
            phase: Phase::Load,
            order: Ordering::new(&limits),
            restarts: false,
            frontier: Frontier::default(),
            table: Arc::clone(&no_table),
            event_start: 0,
            taken: false,
            no_table,
            last_time: 0,
            syncs: 0,
            gaps: Gaps::default(),
            counts: Counts::default(),
            arrival: None,
        }
    }

    /// Writes the next event to `event`; `false` at the end.
    #[inline(always)]
    pub(crate) fn next_event(&mut self, event: &mut Record) -> Result<bool, Error> {
        // Most events are the next event of the thread of the preceding one, and are accepted.
        let next = if self.frontier.is_head_next() && self.order.is_settled() {
            Next::Head
        } else {
            self.find_head(event)
        };
        match next {
            Next::Head => self.take_head(event)?,
            Next::Found => self.check_ids(event)?,
            Next::End => return Ok(false),
            Next::Failed(error) => return Err(self.fail(error, event)),
        }
        // No two events have the same time.
        if event.time <= self.last_time {
            event.time = self.last_time.wrapping_add(1);
        }
        self.last_time = event.time;
        Ok(true)
    }

    /// Finds the next event if it is not one of a thread, or the thread that has it.
    #[inline(never)]
    fn find_head(&mut self, event: &mut Record) -> Next {
        if let Some(following) = self.order.next_following() {
            *event = following;
            return Next::Found;
        }
        let sample = self.current.samples.last().map_or(i64::MAX, |sample| sample.time);
        self.frontier.settle_head(sample);
        let found = match self.frontier.head_time() {
            None => self.between_generations(event),
            Some(head) if sample < head => Ok(self.next_sample(event)),
            Some(_) => return Next::Head,
        };
        match found {
            Ok(true) => Next::Found,
            Ok(false) => Next::End,
            Err(error) => Next::Failed(error),
        }
    }

    /// Accepts the earliest event that the order allows: nearly always that of the head.
    #[inline(always)]
    fn take_head(&mut self, event: &mut Record) -> Result<(), Error> {
        let cursor = self.frontier.head();
        self.event_start = cursor.start;
        match self.order.advance(&cursor.event, cursor.slot, &self.table, event) {
            Ok(()) if cursor.event.has_known_ids => self.pass_head(event),
            Ok(()) => self.pass_doubtful(event),
            Err(blocked) => self.take_other(blocked, event),
        }
    }

    /// Moves the head of the frontier past its event, which was accepted.
    #[inline(always)]
    fn pass_head(&mut self, event: &Record) -> Result<(), Error> {
        match self.frontier.pass_head(&self.source) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undecodable(error, event)),
        }
    }

    /// As [`Core::pass_head`], for an event whose identifiers have to be looked up.
    #[inline(never)]
    fn pass_doubtful(&mut self, event: &Record) -> Result<(), Error> {
        self.pass_head(event)?;
        self.check_ids(event)
    }

    /// Looks up the identifiers of the event to return.
    #[inline(never)]
    fn check_ids(&mut self, event: &Record) -> Result<(), Error> {
        match missing_id(event, &self.table) {
            None => Ok(()),
            Some(kind) => {
                self.taken = true;
                let error = self.error_of(kind, self.event_start, event.m, event.ty);
                Err(self.fail(error, event))
            }
        }
    }

    /// The event of the head was not accepted: accepts the first other event that is possible.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self, blocked: Blocked, event: &mut Record) -> Result<(), Error> {
        let found = match blocked {
            Blocked::NotYet => self.advance_any(event),
            Blocked::Never(kind) => Err(self.error_at(0, *kind)),
        };
        match found {
            Ok(()) => self.check_ids(event),
            Err(error) => Err(self.fail(error, event)),
        }
    }

    fn next_sample(&mut self, event: &mut Record) -> bool {
        let sample = self.current.samples.pop();
        if let Some(sample) = sample {
            *event = sample;
        }
        sample.is_some()
    }

    /// Returns the next event of a v1 trace.
    fn next_v1(&mut self, event: &mut Record) -> Result<bool, Error> {
        let Phase::V1(v1) = &mut self.phase else { return Ok(false) };
        match v1.first_sync_time() {
            Some(time) if self.syncs == 0 => self.sync(event, time, true),
            _ if v1.next(event)? => {}
            _ => self.final_sync(event),
        }
        Ok(true)
    }

    /// The event was accepted, but the next one of its thread is malformed.
    #[cold]
    fn undecodable(&mut self, error: Error, event: &Record) -> Error {
        self.taken = true;
        let error = self.placed(error);
        self.fail(error, event)
    }

    /// An error of the frontier, with its position in the trace.
    #[cold]
    fn placed(&self, mut error: Error) -> Error {
        error.position_mut().offset += self.current.offset;
        error.position_mut().generation = Some(self.table.generation);
        error
    }

    /// Accepts the first event, in order of time, that the order of events allows.
    fn advance_any(&mut self, event: &mut Record) -> Result<(), Error> {
        // Each call may cost time proportional to the number of threads.
        if let Err(limit) = self.order.work.charge(self.frontier.len()) {
            return Err(self.error_at(0, limit));
        }
        self.frontier.sort();
        // The head has been tried already.
        for index in 1..self.frontier.len() {
            if self.try_advance(event, index)? {
                return Ok(());
            }
        }
        Err(self.error_at(0, ErrorKind::BrokenOrder))
    }

    /// Accepts the event of the cursor at `index` of the frontier, if the order allows.
    fn try_advance(&mut self, event: &mut Record, index: usize) -> Result<bool, Error> {
        let cursor = self.frontier.cursor(index);
        self.event_start = cursor.start;
        match self.order.advance_apart(&cursor.event, cursor.slot, &self.table, event) {
            Ok(()) => {}
            Err(Blocked::NotYet) => return Ok(false),
            Err(Blocked::Never(kind)) => return Err(self.error_at(index, *kind)),
        }
        self.frontier.pass(index, &self.source).map(|()| true).map_err(|error| {
            self.taken = true;
            self.placed(error)
        })
    }

    /// An error at the event of the cursor at `index` of the frontier.
    #[cold]
    fn error_at(&self, index: usize, kind: ErrorKind) -> Error {
        let cursor = self.frontier.cursor(index);
        self.error_of(kind, cursor.start, cursor.thread, cursor.event.ty)
    }

    /// An error at an event that begins at index `start` of the generation.
    #[cold]
    fn error_of(&self, kind: ErrorKind, start: usize, thread: ThreadId, ty: EventType) -> Error {
        let position = Position {
            offset: self.current.offset + start as u64,
            generation: Some(self.table.generation),
            thread: Some(thread),
            event: Some(ty),
        };
        Error::new(kind, position)
    }

    /// Records the error for [`Core::recover`].
    #[cold]
    fn fail(&mut self, error: Error, event: &Record) -> Error {
        if let Phase::Failed(_) = self.phase {
            return error; // it is returned once more
        }
        let Position { offset, generation, .. } = error.position();
        let mut pending = VecDeque::new();
        if mem::take(&mut self.taken) {
            pending.push_back(*event);
        }
        pending.extend(std::iter::from_fn(|| self.order.next_following()));
        let frontier = Box::new(mem::take(&mut self.frontier));
        let samples = mem::take(&mut self.current.samples);
        let state = match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Damaged(recovery) => FailedIn::Damaged(recovery),
            phase if self.current.len > 0 => {
                let begun = matches!(phase, Phase::Load);
                FailedIn::Generation { frontier, samples, pending, begun }
            }
            _ => FailedIn::Loading,
        };
        self.phase =
            Phase::Failed(Box::new(Failure { offset, generation, state, unreported: None }));
        error
    }

    #[cold]
    fn between_generations(&mut self, event: &mut Record) -> Result<bool, Error> {
        match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Done => Ok(false),
            Phase::Failed(mut failure) => {
                let unreported = failure.unreported.take();
                self.phase = Phase::Failed(failure);
                unreported.map_or(Ok(false), Err)
            }
            Phase::Failing(error) => Err(error),
            v1 @ Phase::V1(_) => {
                self.phase = v1;
                self.next_v1(event)
            }
            Phase::Damaged(recovery) => self.next_of_damaged(event, recovery),
            Phase::Load if self.next_sample(event) => {
                self.phase = Phase::Load;
                Ok(true)
            }
            Phase::Load => self.next_generation(event),
        }
    }

    /// Moves past the current generation, once all of the next one has arrived.
    fn next_generation(&mut self, event: &mut Record) -> Result<bool, Error> {
        if !self.has_arrived() {
            self.phase = Phase::Load;
            return Ok(false);
        }
        let len = mem::take(&mut self.current.len);
        self.source.release(len);
        self.leave_table();
        match mem::replace(&mut self.current.after, After::Unknown) {
            After::Error(error) => self.sync_before(event, error),
            After::Unknown => return self.load(event),
            After::End => self.final_sync(event),
        }
        Ok(true)
    }

    /// The states so far are lost, or wrong.
    fn forget_states(&mut self) {
        self.order = Ordering::new(&self.limits);
        self.restarts = true;
    }

    /// Ends the use of the tables of the current generation.
    fn leave_table(&mut self) {
        self.order.end_generation(&self.table);
        self.table = Arc::clone(&self.no_table);
    }

    /// Returns the next event of a damaged generation, or of the one after it.
    fn next_of_damaged(
        &mut self,
        event: &mut Record,
        mut recovery: Box<Recovery>,
    ) -> Result<bool, Error> {
        if let Some(time) = recovery.sync.take() {
            self.sync(event, time, true);
            self.phase = Phase::Damaged(recovery);
            return Ok(true);
        }
        match recovery.next(&mut self.order, &self.source, &self.table, event, &mut self.counts) {
            Ok(false) => {
                // The adopted states may be wrong; the next generation reports its own.
                self.forget_states();
                self.next_generation(event)
            }
            found => {
                self.phase = Phase::Damaged(recovery);
                found.map_err(|error| self.placed(error))
            }
        }
    }

    /// Loads the next generation.
    fn load(&mut self, event: &mut Record) -> Result<bool, Error> {
        self.current.offset = self.source.offset();
        match Loader::new(self.version, self.limits).load(&mut self.source) {
            Loaded::End if self.syncs > 0 => self.final_sync(event),
            Loaded::End => {
                let error = Error::at(self.current.offset, ErrorKind::IncompleteGeneration);
                self.sync_before(event, error);
            }
            Loaded::Complete { generation, len, then, last } => {
                self.current.after = match then {
                    Some(error) => After::Error(error),
                    // From Go 1.26 on, only the end of the input ends the trace.
                    None if last && self.version < Version::Go126 => After::End,
                    None => After::Unknown,
                };
                return self.install(event, *generation, len);
            }
            Loaded::Failed(error) => self.sync_before(event, error),
        }
        Ok(true)
    }

    /// Begins a generation.
    fn install(
        &mut self,
        event: &mut Record,
        generation: Generation,
        len: usize,
    ) -> Result<bool, Error> {
        let Generation { min_time, table, events, samples, sample_batches } = generation;
        self.begin(table, len);
        self.current.samples = samples;
        self.current.sample_batches = sample_batches;
        let (bytes, order) = (&self.source, &mut self.order);
        let started = self.frontier.start(events, bytes, |id| order.slot_of(id), |_| 0);
        self.order.start(self.current.number, self.frontier.head_time().is_some());
        started.map_err(|error| self.placed(error))?;
        let limit = self.limits.max_entries;
        if self.order.len() > limit {
            let what = "the number of goroutines, procs, threads and tasks (max_entries)";
            self.frontier.clear();
            return Err(Error::at(self.current.offset, ErrorKind::limit(what, limit)));
        }
        self.phase = Phase::Load;
        self.sync(event, min_time, true);
        Ok(true)
    }

    /// Records which generation the next `len` bytes belong to.
    fn begin(&mut self, table: Arc<Table>, len: usize) {
        self.gaps.begin(table.generation);
        self.current.number = table.generation;
        self.current.nanos_per_tick = table.sync.nanos_per_tick;
        self.current.len = len;
        self.table = table;
        self.order.work.allow_for(len);
    }

    fn sync(&mut self, event: &mut Record, time: i64, with_table: bool) {
        self.syncs += 1;
        *event = Record::sync(time, self.syncs, with_table);
        if with_table && mem::take(&mut self.restarts) {
            event.restart();
        }
    }

    fn final_sync(&mut self, event: &mut Record) {
        self.phase = Phase::Done;
        self.sync(event, self.last_time, false);
    }

    /// Returns a sync event, which `error` follows.
    fn sync_before(&mut self, event: &mut Record, error: Error) {
        self.phase = Phase::Failing(error);
        self.sync(event, self.last_time, false);
    }
}
