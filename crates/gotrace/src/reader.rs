use crate::error::{Error, ErrorKind, Position};
use crate::event::{Event, OwnedEvent, Record};
use crate::frontier::Frontier;
use crate::generation::{Generation, Loaded, Loader};
use crate::order::{Blocked, Ordering};
use crate::source::Source;
use crate::spec::{MAX_ARGS, PLANS, Plan};
use crate::table::Table;
use crate::v1::V1;
use crate::version::Version;
use crate::{batch, header};
use std::io::Read;
use std::mem;
use std::sync::Arc;
use trace_common::{ClockDomain, Limits};

/// Reads the events of a trace in order.
///
/// A reader takes any [`Read`]: a file, a pipe, a socket, a slice. It does not need a
/// [`BufReader`](std::io::BufReader) around it. It holds one generation of the trace at a time,
/// about a second of the traced program's life, and gives out that generation's events as soon
/// as the trace has all of it. (A v1 trace, of Go ≤ 1.21, has to be held as a whole.)
///
/// [`Reader::next_event`] lends events, without any allocation for each; as an [`Iterator`] a
/// reader gives [`OwnedEvent`]s.
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
    /// CPU samples of the current generation that are left, the earliest last.
    samples: Vec<Record>,
    /// Bytes of the source that the current generation takes.
    generation_len: usize,
    /// What to do behind the current generation.
    after: After,
    /// The event to give out, and the table that goes with it.
    event: Record,
    table: Arc<Table>,
    /// The table of events that belong to no generation: those of a v1 trace, or the last one.
    no_table: Arc<Table>,
    last_time: i64,
    syncs: u64,
    gaps: u64,
    /// The last generation that was begun, and the clock it had.
    last_generation: u64,
    nanos_per_tick: f64,
    /// The generation after which a gap would be a silent one.
    gap_base: u64,
    /// Where the last event that was taken begins, as an index into the source's bytes.
    event_start: usize,
    /// The generation whose loading failed, until that error is told.
    failed_loader: Option<Box<Loader>>,
    /// Whether identifiers that are not in the tables pass, in a generation that is not whole.
    lenient: bool,
    unresolved: u64,
    dropped: u64,
}

#[derive(Debug)]
enum Phase {
    /// In a v1 trace.
    V1(Box<V1>),
    /// In a generation, as long as the frontier has any of its events, or the samples; then
    /// before the next one.
    Load,
    /// Before a generation that is not whole.
    Salvaged(Box<Generation>, usize),
    /// A sync event was given for this error, which comes next.
    Failing(Error),
    /// An error was given.
    Failed(Failure),
    /// The last event was given.
    Done,
}

/// What is to be known of an error for going on behind it.
#[derive(Debug)]
struct Failure {
    offset: u64,
    generation: Option<u64>,
    /// Bytes of events of the current generation that are not given out.
    event_bytes: u64,
    /// The generation that could not be loaded.
    loader: Option<Box<Loader>>,
}

impl Failure {
    fn new(error: &Error, frontier: &Frontier) -> Self {
        let Position { offset, generation, .. } = error.position();
        Self { offset, generation, event_bytes: frontier.bytes_left(), loader: None }
    }
}

/// What comes behind the current generation.
#[derive(Debug)]
enum After {
    /// Another generation, or the end: to be found out.
    Unknown,
    /// The end of the trace.
    End,
    /// Damage that is not told yet.
    Error(Error),
    /// Damage that is told; the next generation is to be searched for.
    Resync,
}

/// What is missing of a trace that was damaged: see [`Reader::recover`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Loss {
    /// Where reading failed, as offset from the start of the trace in bytes.
    pub from: u64,
    /// Where it goes on. What lies between is lost, but for what [`Loss::partial`] says.
    pub to: u64,
    /// The generation that the damage is in, if it is known.
    pub generation: Option<u64>,
    /// Bytes of encoded events in that generation that are not given out.
    pub event_bytes: u64,
    /// Whether the reader goes on with what there is of this generation, rather than behind it.
    pub partial: bool,
}

impl<R: Read> Reader<R> {
    /// A reader of the trace that `input` gives, with default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotATrace`] and [`ErrorKind::UnknownVersion`] for what does not begin as a
    /// trace; for a v1 trace, whatever is wrong with any of it.
    pub fn new(input: R) -> Result<Self, Error> {
        Self::with_limits(input, Limits::default())
    }

    /// A reader that holds no more in memory than `limits` allow: `max_buffer` bytes of a
    /// generation, and `max_entries` of each of its tables and of live goroutines.
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
            order: Ordering::default(),
            frontier: Frontier::default(),
            samples: Vec::new(),
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
            failed_loader: None,
            lenient: false,
            unresolved: 0,
            dropped: 0,
        })
    }

    /// The version of the trace's format.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The clock of the trace's timestamps.
    ///
    /// For v2 traces, that of the traced machine's Linux. Traces taken on Windows have another
    /// clock, which nothing in them tells.
    pub const fn clock_domain(&self) -> ClockDomain {
        if self.version.is_v1() { ClockDomain::Local(0) } else { ClockDomain::Monotonic }
    }

    /// Generations that are missing between others, going by their numbers.
    ///
    /// From Go 1.26 on, Go's own reader passes over such a gap without a word.
    pub const fn missing_generations(&self) -> u64 {
        self.gaps
    }

    /// Strings and stacks that events named and that were not there, in generations of which
    /// [`Reader::recover`] gave what there was.
    pub const fn unresolved_ids(&self) -> u64 {
        self.unresolved
    }

    /// Events that do not fit what came before, because that is missing, and so were left out: in
    /// generations of which [`Reader::recover`] gave what there was.
    pub const fn dropped_events(&self) -> u64 {
        self.dropped
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    ///
    /// What is wrong with the trace, and where. Events that were given out before are right.
    /// After an error there are no more events (`None`), unless [`Reader::recover`] says so.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        match self.find_next() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.fail(error)),
        }
        if let Some(kind) = missing_id(&self.event, &self.table) {
            self.unresolved_id(kind)?;
        }
        // No two events have the same time.
        if self.event.time <= self.last_time {
            self.event.time = self.last_time.wrapping_add(1);
        }
        self.last_time = self.event.time;
        Ok(Some(Event { table: &self.table, record: &self.event }))
    }

    /// Finds the event to give out; `false` at the end.
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
            // The head nearly always succeeds.
            if self.try_advance(0)? || self.advance_any()? {
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

    /// The next event of a v1 trace.
    fn next_v1(&mut self) -> Result<bool, Error> {
        let Phase::V1(v1) = &mut self.phase else { return Ok(false) };
        match v1.first_sync_time() {
            Some(time) if self.syncs == 0 => self.sync(time, true),
            _ if v1.next(&mut self.event)? => {}
            _ => self.final_sync(),
        }
        Ok(true)
    }

    /// Takes the event of the cursor at `index` of the frontier, if the order allows.
    #[inline(always)]
    fn try_advance(&mut self, index: usize) -> Result<bool, Error> {
        let taken = self.frontier.offer(index, self.source.window(), |cursor| {
            self.event_start = cursor.start;
            self.order.advance(&cursor.event, cursor.slot, &self.table, &mut self.event)
        });
        match taken {
            Ok(Ok(())) => Ok(true),
            Ok(Err(Blocked::NotYet)) => Ok(false),
            Ok(Err(Blocked::Never(_))) if self.lenient => self.leave_out(index).map(|()| false),
            Ok(Err(Blocked::Never(kind))) => Err(self.error_at(index, *kind)),
            Err(error) => Err(self.placed(error)),
        }
    }

    /// Passes over the event of the cursor at `index` of the frontier.
    #[cold]
    fn leave_out(&mut self, index: usize) -> Result<(), Error> {
        self.dropped += 1;
        let passed = self.frontier.offer(index, self.source.window(), |_| Ok(()));
        passed.map(drop).map_err(|error| self.placed(error))
    }

    /// An error of the frontier, its place told in the whole trace.
    #[cold]
    fn placed(&self, mut error: Error) -> Error {
        error.position_mut().offset += self.source.offset();
        error.position_mut().generation = Some(self.table.generation);
        error
    }

    /// Takes the first event, in order of time, that the order of events allows; `false` if there
    /// is none, and one was left out instead.
    #[cold]
    fn advance_any(&mut self) -> Result<bool, Error> {
        if self.frontier.len() == 0 {
            return Ok(false); // the last one was left out
        }
        // Each call may cost as much as there are threads.
        if let Err(limit) = self.order.work.charge(self.frontier.len()) {
            return Err(self.error_at(0, limit));
        }
        self.frontier.sort();
        // The head was tried already; but with events left out, it may be another one.
        let mut index = usize::from(!self.lenient);
        while index < self.frontier.len() {
            if self.try_advance(index)? {
                return Ok(true);
            }
            index += 1;
        }
        if !self.lenient {
            return Err(self.error_at(0, ErrorKind::BrokenOrder));
        }
        if self.frontier.len() > 0 {
            self.leave_out(0)?;
        }
        Ok(false)
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

    /// The event to give out names something that is not there.
    #[cold]
    fn unresolved_id(&mut self, kind: ErrorKind) -> Result<(), Error> {
        if self.lenient {
            self.unresolved += 1;
            return Ok(());
        }
        let position = Position {
            offset: self.source.offset() + self.event_start as u64,
            generation: Some(self.table.generation),
            thread: Some(self.event.m),
            event: Some(self.event.ty),
        };
        Err(self.fail(Error::new(kind, position)))
    }

    /// Notes the error for [`Reader::recover`].
    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        let mut failure = Failure::new(&error, &self.frontier);
        failure.loader = self.failed_loader.take();
        self.phase = Phase::Failed(failure);
        self.frontier.clear();
        self.order.forget_following();
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
            Phase::Salvaged(generation, len) => self.install(*generation, len, true),
            Phase::Load if self.next_sample() => {
                self.phase = Phase::Load;
                Ok(true)
            }
            Phase::Load => {
                self.source.release(mem::take(&mut self.generation_len));
                self.table = Arc::clone(&self.no_table);
                match mem::replace(&mut self.after, After::Unknown) {
                    After::Error(error) => self.sync_before(error, None),
                    After::Unknown => return self.load(),
                    After::Resync if self.resync()? => return self.load(),
                    After::End | After::Resync => self.final_sync(),
                }
                Ok(true)
            }
        }
    }

    /// Loads the next generation.
    fn load(&mut self) -> Result<bool, Error> {
        match Loader::new(self.version, self.limits).load(&mut self.source) {
            Loaded::End if self.syncs > 0 => self.final_sync(),
            Loaded::End => {
                let error = Error::at(self.source.offset(), ErrorKind::IncompleteGeneration);
                self.sync_before(error, None);
            }
            Loaded::Complete { generation, len, then, last } => {
                self.after = match then {
                    Some(error) => After::Error(error),
                    // From Go 1.26 on, only the end of the input says that there are no more.
                    None if last && self.version < Version::Go126 => After::End,
                    None => After::Unknown,
                };
                return self.install(*generation, len, false);
            }
            Loaded::Failed(error, loader) => self.sync_before(error, Some(loader)),
        }
        Ok(true)
    }

    /// Begins a generation.
    fn install(
        &mut self,
        generation: Generation,
        len: usize,
        lenient: bool,
    ) -> Result<bool, Error> {
        let Generation { min_time, table, events, samples } = generation;
        let number = table.generation;
        if self.gap_base != 0 {
            self.gaps += number.saturating_sub(self.gap_base).saturating_sub(1);
        }
        (self.last_generation, self.gap_base) = (number, number);
        self.nanos_per_tick = table.sync.nanos_per_tick;
        (self.table, self.samples) = (table, samples);
        self.generation_len = len;
        self.lenient = lenient;
        self.order.work.allow_for(len);
        self.order.set_lenient(lenient);
        let (bytes, order) = (self.source.window(), &mut self.order);
        let started = self.frontier.start(events, bytes, |id| order.slot_of(id));
        self.order.start(number, self.frontier.head_time().is_some());
        started.map_err(|error| self.placed(error))?;
        let limit = self.limits.max_entries;
        if self.order.len() > limit {
            let what = "the number of goroutines, procs, threads and tasks";
            self.frontier.clear();
            return Err(Error::at(self.source.offset(), ErrorKind::Limit { what, limit }));
        }
        self.phase = Phase::Load;
        self.sync(min_time, true);
        Ok(true)
    }

    fn sync(&mut self, time: i64, with_table: bool) {
        self.syncs += 1;
        self.event = Record::sync(time, self.syncs, with_table);
    }

    fn final_sync(&mut self) {
        self.phase = Phase::Done;
        self.sync(self.last_time, false);
    }

    /// A sync event, behind which comes `error`.
    fn sync_before(&mut self, error: Error, loader: Option<Box<Loader>>) {
        self.phase = Phase::Failing(error);
        self.failed_loader = loader;
        self.sync(self.last_time, false);
    }

    /// Goes on behind the damage that [`Reader::next_event`] has just told of, and says what is
    /// lost; `None` if there is nothing to go on with, or no error to recover from.
    ///
    /// A generation in which the order of events breaks is given up from there on. One that
    /// could not be loaded to its end (a trace cut by a crash, a full disk or a killed transfer)
    /// is gone on with as far as it is there: its events may name strings and stacks that are
    /// missing, which then are empty ([`Reader::unresolved_ids`] counts them), and events that
    /// others would have to precede are left out ([`Reader::dropped_events`]). Behind damage the
    /// reader looks for the next generation, with which it begins as with the first of a trace:
    /// goroutines come from [`GoState::Undetermined`](crate::GoState::Undetermined) again.
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
    ///             eprintln!("going on at byte {}", loss.to);
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Only those of the input itself ([`ErrorKind::Io`]) and of [`Limits`].
    pub fn recover(&mut self) -> Result<Option<Loss>, Error> {
        let failure = match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Failed(failure) => failure,
            other => {
                self.phase = other;
                return Ok(None);
            }
        };
        let Failure { offset, generation, event_bytes, loader } = failure;
        let mut loss = Loss { from: offset, to: offset, generation, event_bytes, partial: false };
        if self.generation_len > 0 {
            // The rest of this generation is given up; what comes behind it is known.
            self.source.release(mem::take(&mut self.generation_len));
            self.restart();
            self.phase = Phase::Load;
            loss.to = self.source.offset();
            return Ok(Some(loss));
        }
        if let Some(loader) = loader {
            let read = loader.len();
            if let Some((part, len)) = loader.salvage(self.nanos_per_tick) {
                loss.partial = true;
                loss.generation = Some(part.table.generation);
                loss.to = self.source.offset() + len as u64;
                self.after = After::Resync;
                self.phase = Phase::Salvaged(part, len);
                return Ok(Some(loss));
            }
            self.source.release(read);
        }
        let found = self.resync()?;
        loss.to = self.source.offset();
        if found {
            self.phase = Phase::Load;
        }
        Ok(found.then_some(loss))
    }

    /// Searches for the next generation, to begin with it as with the first.
    fn resync(&mut self) -> Result<bool, Error> {
        self.restart();
        self.gap_base = 0;
        batch::resync(&mut self.source, self.last_generation)
    }

    /// Forgets the state of goroutines, procs and threads.
    fn restart(&mut self) {
        self.order = Ordering::default();
        self.frontier.clear();
        self.samples.clear();
    }
}

/// What an event names that is not in the tables of its generation.
#[inline(always)]
pub(crate) fn missing_id(record: &Record, table: &Table) -> Option<ErrorKind> {
    let plan = &PLANS[record.ty.0 as usize];
    if !plan.has_ids {
        return None;
    }
    let arg = |index: u8| record.args[index as usize & (MAX_ARGS - 1)];
    if plan.stack != Plan::NONE && !table.has_stack(arg(plan.stack)) {
        return Some(ErrorKind::UnknownId { what: "stack", id: arg(plan.stack) });
    }
    if plan.string != Plan::NONE && !table.has_string(arg(plan.string)) {
        return Some(ErrorKind::UnknownId { what: "string", id: arg(plan.string) });
    }
    if !plan.has_other_ids {
        return None;
    }
    if plan.other_stack != Plan::NONE && !table.has_stack(arg(plan.other_stack)) {
        return Some(ErrorKind::UnknownId { what: "stack", id: arg(plan.other_stack) });
    }
    if plan.other_string != Plan::NONE && !table.has_string(arg(plan.other_string)) {
        return Some(ErrorKind::UnknownId { what: "string", id: arg(plan.other_string) });
    }
    None
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<OwnedEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().map(|event| event.map(Event::to_owned)).transpose()
    }
}
