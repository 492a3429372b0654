//! Analyses of a trace on several threads, generation by generation.
//!
//! A generation contains the state of all goroutines and procs at its start. So threads order
//! generations independently of each other, each with an analysis of its own: no event moves from
//! one thread to another. Then the parts are joined in order. The state at the end of one
//! generation must be the state that the next one was read with; where it is not, that generation
//! is read again. An analysis whose events mostly depend on those of other goroutines gains nothing:
//! a [`Summarizer`](crate::analysis::Summarizer) needs the open regions of the goroutine that creates
//! another one, and the tasks of all.
//!
//! The result is the same as with a [`Reader`]: the events are the same, with the same times. There
//! are two exceptions:
//!
//! - A [`TaskEnd`](crate::EventKind::TaskEnd) of a task that began in another generation has no type
//!   and no parent.
//! - Events that repeat a state at the start of a generation (a transition to the same state, or a
//!   [`RangeActive`](crate::EventKind::RangeActive)) may have no [goroutine](Event::goroutine) or
//!   [proc](Event::proc).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use gotrace::analysis::{Profile, ProfileKind, ProfileScope};
//! use gotrace::parallel::Parallel;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.trace");
//! let mut profile = Profile::new(ProfileKind::Sync, ProfileScope::all());
//! let open = || std::fs::File::open(path);
//! let mut rest = Parallel::available().read(open, &mut profile)?;
//! // What could not be read in parallel: a trace of one generation, or what follows damage.
//! while let Some(event) = rest.next_event()? {
//!     profile.push(event);
//! }
//! profile.finish();
//! # assert!(profile.stacks().count() > 0);
//! # Ok(())
//! # }
//! ```

mod queue;

use crate::error::Error;
use crate::event::{Event, Record, SYNC};
use crate::generations::{Finder, GenerationSpan};
use crate::reader::{Between, Core, Reader};
use crate::table::Table;
use crate::version::Version;
use queue::{Next, Queue};
use std::io::{self, Read, Seek, SeekFrom};
use std::mem;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::{self, Builder, Scope};
use trace_common::{Limits, Timestamp};

/// An analysis that can begin in the middle of a trace.
///
/// An analysis of the whole trace has the same result as an analysis of its beginning to which the
/// analyses of all further parts are [joined](Split::join), wherever the trace is divided.
pub trait Split: Sized + Send {
    /// Processes the next event.
    fn push(&mut self, event: Event<'_>);

    /// Makes an analysis with the same options that begins at an unknown state, in a trace whose
    /// first event is at `start`.
    fn part(&self, start: Timestamp) -> Self;

    /// Whether `part` can follow the events that this analysis has processed. A part may depend on
    /// assumptions about them, or be too large to be kept; if this is false, the events of the part
    /// are processed again, by [`Split::push`].
    fn is_continued_by(&self, part: &Self) -> bool {
        let _ = part;
        true
    }

    /// Adds the analysis of the part that follows the events that this one has processed.
    fn join(&mut self, part: Self);

    /// A part of the trace is missing here, before what follows the parts that were joined: see
    /// [`Reader::recover`]. Does nothing, unless the analysis depends on earlier events.
    fn loss(&mut self) {}
}

impl<A: Split, B: Split> Split for (A, B) {
    fn push(&mut self, event: Event<'_>) {
        self.0.push(event);
        self.1.push(event);
    }

    fn part(&self, start: Timestamp) -> Self {
        (self.0.part(start), self.1.part(start))
    }

    fn is_continued_by(&self, part: &Self) -> bool {
        self.0.is_continued_by(&part.0) && self.1.is_continued_by(&part.1)
    }

    fn join(&mut self, part: Self) {
        self.0.join(part.0);
        self.1.join(part.1);
    }

    fn loss(&mut self) {
        self.0.loss();
        self.1.loss();
    }
}

/// Reads traces on several threads.
#[derive(Clone, Copy, Debug)]
pub struct Parallel {
    threads: NonZeroUsize,
    limits: Limits,
}

/// The analysis of a generation that was read on its own.
struct Part<A> {
    analysis: A,
    between: Between,
    /// The first events: some may come before the last ones of the previous generation.
    prefix: Vec<Record>,
    table: Arc<Table>,
    /// The time of the first event after those.
    first: Option<i64>,
}

/// The number of events that two generations may overlap by.
const MAX_PREFIX: usize = 1 << 16;

impl Parallel {
    /// Reads on this number of threads. They hold one generation each, and up to as many wait to
    /// be joined.
    pub fn new(threads: NonZeroUsize) -> Self {
        Self { threads, limits: Limits::default() }
    }

    /// Reads on as many threads as the program can run at the same time.
    pub fn available() -> Self {
        Self::new(thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// With custom limits: those of [`Reader::with_limits`] apply to each thread.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Passes the events of a trace to `analysis`, up to damage or the end, and returns a reader of
    /// the rest. At least the last event is left.
    ///
    /// `open` is called for each thread. It returns the same trace each time, from its start.
    /// All of a trace without two complete generations is left, and with one thread. Where the system permits no more
    /// threads, those that there are read, and without any all is left.
    ///
    /// # Errors
    ///
    /// Errors of the input, and those of [`Reader::with_limits`]. Damage is not an error here: the
    /// returned reader reports it, and [recovers](Reader::recover) from it.
    pub fn read<R: Read + Seek, A: Split>(
        &self,
        open: impl Fn() -> io::Result<R> + Sync,
        analysis: &mut A,
    ) -> Result<Reader<R>, Error> {
        let input = || open().map_err(|error| Error::at(0, error));
        let generations = Finder::new(input()?, self.limits);
        let (1.., Ok(mut generations)) = (self.threads.get() - 1, generations) else {
            return Reader::with_limits(input()?, self.limits);
        };
        let version = generations.version();
        let queue = Queue::new(self.threads.get() + 1);
        thread::scope(|scope| {
            // Whatever happens here, the threads end.
            let _ending = queue.ending();
            if self.start(scope, &queue, &open, version, analysis) == 0 {
                return Reader::with_limits(input()?, self.limits);
            }
            let mut spans: Vec<GenerationSpan> = Vec::new();
            let (mut is_intact, mut is_found, mut number) = (false, false, 0);
            let mut joined = None;
            // Parts are joined as soon as they are read, and generations are found meanwhile.
            while !is_found || number < spans.len() {
                let part = if is_found { Some(queue.take(number)) } else { queue.ready(number) };
                if let (Some(part), Some(span)) = (part, spans.get(number)) {
                    match self.join(&open, version, span, part, joined, analysis)? {
                        Ok(between) => joined = Some(between),
                        Err(reader) => return Ok(reader),
                    }
                    number += 1;
                    continue;
                }
                let span = match generations.next_generation() {
                    Ok(Some(span)) => span,
                    end => {
                        (is_intact, is_found) = (end.is_ok(), true);
                        queue.complete();
                        // A trace of one generation is not read twice.
                        if spans.len() < 2 {
                            return Reader::with_limits(input()?, self.limits);
                        }
                        continue;
                    }
                };
                if let [first] = spans[..] {
                    queue.add(first);
                }
                if !spans.is_empty() {
                    queue.add(span);
                }
                spans.push(span);
            }
            drop(generations);
            let end = spans.last().map_or(0, |span| span.offset + span.len);
            match joined {
                Some(between) => {
                    let input = at(&open, end)?;
                    let mut core = Core::rest(input, version, self.limits, end, between);
                    if is_intact {
                        core.end();
                    }
                    Ok(Reader::of(core))
                }
                None => Reader::with_limits(input()?, self.limits),
            }
        })
    }

    /// Starts the threads, as many as the system permits, and returns their number.
    fn start<'scope, R: Read + Seek, A: Split + 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        queue: &'scope Queue<Part<A>>,
        open: &'scope (impl Fn() -> io::Result<R> + Sync),
        version: Version,
        analysis: &A,
    ) -> usize {
        for number in 0..self.threads.get() {
            let options = analysis.part(Timestamp::MIN);
            let started = Builder::new().spawn_scoped(scope, move || {
                let _ending = queue.ending_on_panic();
                let mut buffer = Vec::new();
                while let Some(next) = queue.next() {
                    let part = self.part(open, version, next, &options, &mut buffer);
                    queue.done(next.number, part);
                }
            });
            if started.is_err() {
                return number;
            }
        }
        self.threads.get()
    }

    /// Reads a generation on its own; `None` if that is not possible.
    fn part<R: Read + Seek, A: Split>(
        &self,
        open: impl Fn() -> io::Result<R>,
        version: Version,
        Next { number, span, before, start }: Next,
        options: &A,
        buffer: &mut Vec<u8>,
    ) -> Option<Part<A>> {
        let mut analysis = options.part(start);
        let input = at(&open, span.offset).ok()?.take(span.len);
        let memory = mem::take(buffer);
        let mut core = Core::part(input, version, self.limits, span.offset, number, memory);
        let mut event = Record::sync(0, 0, false);
        let (mut prefix, mut table, mut first) = (Vec::new(), None, None);
        // Events at the end that tie are later by a nanosecond each.
        let before = before.saturating_add_nanos(MAX_PREFIX as i64).nanos();
        let mut last = 0;
        loop {
            match core.next_event(&mut event) {
                // The end, or damage.
                Ok(true) if event.ty == SYNC && !event.has_tables() => match core.is_done() {
                    true => break,
                    false => return None,
                },
                Ok(true) => {}
                Ok(false) | Err(_) => return None,
            }
            if first.is_none() {
                if number > 0 && event.time <= before && prefix.len() < MAX_PREFIX {
                    table.get_or_insert_with(|| Arc::clone(&core.table));
                    prefix.push(event);
                    continue;
                }
                first = Some(event.time);
            }
            last = event.time;
            analysis.push(Event { table: &core.table, record: &event });
        }
        let table = table.unwrap_or_else(|| Arc::clone(&core.table));
        let (between, memory) = core.into_between(last, number as u64 + 1);
        *buffer = memory;
        Some(Part { analysis, between, prefix, table, first })
    }

    /// Adds a part to the analysis, or reads the generation again. Returns the state after it, or
    /// the reader that found damage in it.
    fn join<R: Read + Seek, A: Split>(
        &self,
        open: impl Fn() -> io::Result<R>,
        version: Version,
        span: &GenerationSpan,
        part: Option<Part<A>>,
        joined: Option<Between>,
        analysis: &mut A,
    ) -> Result<Result<Between, Reader<R>>, Error> {
        // The number of events that the analysis has processed already.
        let mut processed = 0;
        let between = match (part, joined) {
            (Some(part), None) if analysis.is_continued_by(&part.analysis) => {
                analysis.join(part.analysis);
                return Ok(Ok(part.between));
            }
            (Some(mut part), Some(between)) => {
                let end = part.adjust(between.last_time);
                if part.first.is_none_or(|first| first > end)
                    && between.order.is_continued_by(&part.between.order, self.limits.max_entries)
                {
                    for record in &part.prefix {
                        analysis.push(Event { table: &part.table, record });
                    }
                    if analysis.is_continued_by(&part.analysis) {
                        analysis.join(part.analysis);
                        let last = if part.first.is_some() { part.between.last_time } else { end };
                        return Ok(Ok(between.join(part.between, last)));
                    }
                    processed = part.prefix.len();
                }
                Some(between)
            }
            (_, between) => between,
        };
        let input = at(&open, span.offset)?;
        let mut core = match between {
            Some(between) => Core::rest(input, version, self.limits, span.offset, between),
            None => Core::part(input, version, self.limits, span.offset, 0, Vec::new()),
        };
        let mut event = Record::sync(0, 0, false);
        loop {
            match core.next_event(&mut event) {
                Ok(true) if processed > 0 => processed -= 1,
                Ok(true) => analysis.push(Event { table: &core.table, record: &event }),
                Ok(false) => return Ok(Err(Reader::of(core))),
                Err(error) => {
                    core.repeat(error);
                    return Ok(Err(Reader::of(core)));
                }
            }
            if core.is_between() {
                let syncs = core.syncs();
                return Ok(Ok(core.into_between(event.time, syncs).0));
            }
        }
    }
}

impl<A> Part<A> {
    /// Moves the first events behind `last`, as no two events have the same time. Returns the time
    /// of the last of them.
    fn adjust(&mut self, mut last: i64) -> i64 {
        for event in &mut self.prefix {
            event.time = event.time.max(last.wrapping_add(1));
            last = event.time;
        }
        last
    }
}

/// Opens a trace at an offset.
fn at<R: Seek>(open: impl Fn() -> io::Result<R>, offset: u64) -> Result<R, Error> {
    let input = open().and_then(|mut input| {
        input.seek(SeekFrom::Start(offset))?;
        Ok(input)
    });
    input.map_err(|error| Error::at(offset, error))
}
