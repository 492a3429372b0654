//! Go execution traces as input of the commands.

mod range;
mod section;

pub(crate) use range::{Opened, TimeRange};

use crate::failure::{Failure, OneLine, Result};
use crate::io::follow::Follow;
use crate::io::input::{Format, Input};
use crate::io::progress::Progress;
use gotrace::parallel::{Parallel, Split};
use gotrace::raw::{TestFile, TextToWire};
use gotrace::{Error, Event, Limits, Reader, Timestamp, Version};
use std::fmt::Display;
use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use trace_export::ClockDomain;

/// A Go execution trace: its name for messages, and its bytes.
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) bytes: Box<dyn Read + Send>,
    pub(crate) progress: Progress,
}

impl Trace {
    /// Opens a trace, binary or text. The error names the actual format of the file.
    pub(crate) fn open(path: &Path, progress: Progress) -> Result<Self> {
        Self::of(Input::open(path, progress.clone())?, path, progress)
    }

    /// The trace in an input, binary or text. The error names the actual format of the input.
    pub(crate) fn of(mut input: Input, path: &Path, progress: Progress) -> Result<Self> {
        let name = input.name.clone();
        let mut format = input.format;
        if format == Format::Unknown && path.extension().is_some_and(|ext| ext == "test") {
            format = Format::GoTest; // it can begin with a comment
        }
        let bytes: Box<dyn Read + Send> = match format {
            Format::GoTrace => Box::new(input),
            Format::GoText => {
                Box::new(TextToWire::new(input).map_err(|e| Failure::about(&name, e))?)
            }
            Format::GoTest => {
                let mut file = Vec::new();
                input
                    .by_ref()
                    .take(MAX_TEST)
                    .read_to_end(&mut file)
                    .map_err(|e| input.failure(e))?;
                if file.len() as u64 == MAX_TEST {
                    return Err(input.failure("is too large for a test of a trace"));
                }
                let test = TestFile::parse(&file).map_err(|e| input.failure(e))?;
                let mut wire = Vec::new();
                // A test is small: its whole text is checked first, as in Go.
                test.to_wire()
                    .map_err(|e| input.failure(e))?
                    .read_to_end(&mut wire)
                    .map_err(|e| input.failure(e))?;
                Box::new(Cursor::new(wire))
            }
            other => return Err(input.failure(not_a_trace(other))),
        };
        Ok(Self { name, bytes, progress })
    }
}

const MAX_TEST: u64 = 256 << 20;

/// The message for an input of another format.
fn not_a_trace(format: Format) -> String {
    let Some(description) = format.description() else {
        return "is not a Go execution trace: those begin with \"go 1.\"; they are made by \
                runtime/trace, go test -trace or /debug/pprof/trace"
            .to_owned();
    };
    let hint = match format {
        Format::Pprof => {
            "open it with go tool pprof; traces are made by go test -trace, \
                          runtime/trace or /debug/pprof/trace"
        }
        Format::PerfData => "open it with perf report",
        _ => "this command reads Go execution traces",
    };
    format!("looks like {description}, not a Go execution trace: {hint}")
}

/// How to handle damaged data.
#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct Recovery {
    /// Resume after damaged data, and report what is lost
    #[arg(long = "recover")]
    wanted: bool,
    /// Whether the command has these options, and --offset if it reads several traces: hints name only
    /// those. Not by default.
    #[arg(skip = true)]
    is_offered: bool,
    #[command(flatten)]
    limits: Resources,
}

/// The resources that reading a trace may take.
#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct Resources {
    /// Limits on the resources of a Go trace: max_buffer=BYTES of one generation (default 256M),
    /// max_entries=N goroutines, strings or stacks, max_work_per_byte=N steps to order events
    #[arg(long = "limit", value_name = "NAME=N,...", value_parser = parse_limits)]
    limits: Option<Limits>,
}

impl Resources {
    /// The limits of a Go trace.
    pub(crate) fn limits(self) -> Limits {
        self.limits.unwrap_or_default()
    }
}

/// Parses limits by field name. K, M and G are powers of 1024.
fn parse_limits(arg: &str) -> std::result::Result<Limits, String> {
    let mut limits = Limits::default();
    for limit in arg.split(',') {
        let (name, value) = limit.split_once('=').ok_or("expected NAME=N")?;
        let (digits, shift) = match value.split_at_checked(value.len().saturating_sub(1)) {
            Some((digits, "K")) => (digits, 10),
            Some((digits, "M")) => (digits, 20),
            Some((digits, "G")) => (digits, 30),
            _ => (value, 0),
        };
        let number = digits.parse::<usize>().map_err(|error| error.to_string())?;
        let value = number.checked_mul(1 << shift).ok_or("number too large")?;
        match name {
            "max_buffer" => limits.max_buffer = value,
            "max_entries" => limits.max_entries = value,
            "max_work_per_byte" => {
                limits.max_work_per_byte = u32::try_from(value).map_err(|e| e.to_string())?;
            }
            _ => return Err("expected max_buffer, max_entries or max_work_per_byte".to_owned()),
        }
    }
    Ok(limits)
}

impl Recovery {
    /// Whether to resume after damage.
    pub(crate) const fn is_wanted(self) -> bool {
        self.wanted
    }

    /// The limits of a Go trace.
    pub(crate) fn limits(self) -> Limits {
        self.limits.limits()
    }

    /// The hint to append to a message about damage.
    pub(crate) const fn hint(self) -> &'static str {
        if self.wanted || !self.is_offered { "" } else { "; --recover resumes after damage" }
    }

    /// The hint to append to a message about a clock that cannot be related to others.
    pub(crate) const fn offset_hint(self) -> &'static str {
        if self.is_offered { ", or pass --offset FILE=SECONDS" } else { "" }
    }
}

/// The result of reading a trace.
pub(crate) struct Reading {
    pub(crate) name: String,
    pub(crate) version: Version,
    /// The error that ended reading, or the first one that the reader recovered from.
    pub(crate) error: Option<Error>,
    /// Number of errors that the reader recovered from.
    pub(crate) losses: u64,
    /// Number of lost bytes, and how many of them are in batches of events.
    pub(crate) lost_bytes: u64,
    pub(crate) lost_event_bytes: u64,
    /// Lost strings and stacks in the recovered part.
    pub(crate) unresolved: u64,
    /// Events that can be decoded but are lost nevertheless.
    pub(crate) lost_events: u64,
    /// Number of missing generations between others.
    pub(crate) missing_generations: u64,
    /// Events that only report the states at the start and the end of a range of time.
    pub(crate) repeated: u64,
    /// The start of the trace. Not known if its events were read on several threads.
    pub(crate) start: Option<Timestamp>,
    /// The time of the last event that was read.
    last: Option<Timestamp>,
    recovery: Recovery,
}

impl Reading {
    /// The trace was followed until a signal: that it ends within a generation is no failure.
    fn end_anywhere(&mut self, progress: &Progress) {
        if let Some(error) = self.error.take_if(|_| self.losses == 0) {
            progress.note(&format!("{}: stopped within a generation: {error}", self.name));
        }
    }

    /// A time as text: after the start of the trace, as `--from` and `--to` are.
    pub(crate) fn at(&self, time: Timestamp) -> String {
        let start = self.start.unwrap_or_default();
        format!("{:.6} s", time.nanos_since(start) as f64 / 1e9)
    }

    /// The failure if all events are before the range.
    pub(crate) fn no_events(&self) -> Failure {
        no_events(&self.name, self.start.zip(self.last))
    }

    /// A failure if data is missing or was invalid.
    pub(crate) fn into_result(self) -> Result {
        let Self { name, missing_generations: missing, .. } = &self;
        if missing > &0 {
            message!("triscope: {}: {missing} generations are missing", OneLine(name));
        }
        match self.error {
            Some(_) if self.losses > 0 => {
                let (places, bytes, events) = (self.losses, self.lost_bytes, self.lost_events);
                let s = |count| if count == 1 { "" } else { "s" };
                let mut message = format!(
                    "damaged in {places} place{}, {bytes} byte{} lost",
                    s(places),
                    s(bytes)
                );
                if events > 0 {
                    message += &format!(", {events} event{} lost", s(events));
                }
                Err(Failure::about(&self.name, message))
            }
            Some(error) => {
                let hint = self.recovery.hint();
                Err(Failure::about(&self.name, format_args!("{error}{hint}")))
            }
            None => Ok(()),
        }
    }
}

/// The failure if a trace with these first and last times has no events in a range.
pub(crate) fn no_events(name: impl Display, span: Option<(Timestamp, Timestamp)>) -> Failure {
    let there = span.map_or_else(String::new, |(first, last)| {
        // Not rounded up: there is an event at or after this time.
        let micros = last.nanos_since(first) / 1000;
        format!(": the trace has 0 to {}.{:06} s", micros / 1_000_000, micros % 1_000_000)
    });
    Failure::about(name, format_args!("has no events in this range{there}"))
}

/// Maximum number of losses reported individually; a trace can have many damaged parts.
pub(crate) const MAX_REPORTS: u64 = 20;

/// Processes a trace while it is read. A closure processes every event. It learns of a loss from
/// the sync event of the generation that follows the damaged one.
pub(crate) trait Visitor {
    /// The trace begins; its times are on this clock.
    fn begin(&mut self, _clock: ClockDomain) -> Result {
        Ok(())
    }

    /// The next event.
    fn push(&mut self, event: Event<'_>) -> Result;

    /// An event before the range of time whose events are those of [`Visitor::push`]. Those of earlier
    /// generations are among them if all of the trace is read.
    fn before(&mut self, _event: Event<'_>) -> Result {
        Ok(())
    }

    /// There is an event after the range of time.
    fn after(&mut self) {}

    /// Reading resumes after damaged data: the previous state is lost.
    fn loss(&mut self, _error: &Error, _loss: &gotrace::Loss) -> Result {
        Ok(())
    }

    /// Whether further events change nothing: reading ends.
    fn is_complete(&self) -> bool {
        false
    }
}

impl<F: FnMut(Event<'_>) -> Result> Visitor for F {
    fn push(&mut self, event: Event<'_>) -> Result {
        self(event)
    }
}

/// Reads a trace to its end, and resumes after damaged data if requested.
///
/// An error of the trace is part of the result, so that the caller can first show the events before
/// it, unless the trace cannot be read at all. Damage that reading resumes after is reported at
/// once.
pub(crate) fn read(
    trace: Trace,
    recovery: Recovery,
    visitor: &mut impl Visitor,
) -> Result<Reading> {
    let Trace { name, bytes, progress } = trace;
    let reader = Reader::with_limits(bytes, recovery.limits())
        .map_err(|error| Failure::about(&name, error))?;
    visitor.begin(reader.clock_domain())?;
    rest(reader, name, &progress, recovery, visitor)
}

/// A pass over a trace.
pub(crate) struct Pass {
    pub(crate) progress: Progress,
    threads: NonZeroUsize,
}

impl Pass {
    /// The only pass, on all CPUs.
    pub(crate) fn only() -> Self {
        Self { progress: Progress::bytes(), threads: cpus() }
    }

    /// Another pass after the first, which reported damage, on all CPUs.
    pub(crate) fn again() -> Self {
        Self { progress: Progress::again(), threads: cpus() }
    }

    /// A pass beside another one, which occupies a CPU and reports damage; `None` with one CPU.
    pub(crate) fn beside() -> Option<Self> {
        let threads = NonZeroUsize::new(cpus().get() - 1)?;
        Some(Self { progress: Progress::again(), threads })
    }
}

fn cpus() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Reads a trace to its end on several threads, if it is a file that is not compressed and the
/// machine has several CPUs. Otherwise as [`read`].
pub(crate) fn read_split(
    path: &Path,
    pass: &Pass,
    recovery: Recovery,
    analysis: &mut impl Split,
) -> Result<Reading> {
    let mut head = [0; 5];
    let is_plain = path.metadata().is_ok_and(|metadata| metadata.is_file())
        && File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok()
        && head == *b"go 1.";
    if !is_plain {
        let trace = Trace::open(path, pass.progress.clone())?;
        return read(trace, recovery, &mut Analyst(analysis));
    }
    let name = path.display().to_string();
    read_parallel(name, || File::open(path), pass, recovery, Analyst(analysis))
}

/// Reads a trace on several threads. `open` opens it, for each of them.
fn read_parallel<R: Read + Seek, S: Split>(
    name: String,
    open: impl Fn() -> std::io::Result<R> + Sync,
    pass: &Pass,
    recovery: Recovery,
    mut visitor: impl Visitor + AsMut<S>,
) -> Result<Reading> {
    let parallel = Parallel::new(pass.threads).limits(recovery.limits());
    let reader =
        parallel.read(open, visitor.as_mut()).map_err(|error| Failure::about(&name, error))?;
    let mut reading = rest(reader, name, &pass.progress, recovery, &mut visitor)?;
    // Other threads had the first events.
    reading.start = None;
    Ok(reading)
}

/// Passes the events to an analysis.
struct Analyst<'a, A>(&'a mut A);

impl<A: Split> Visitor for Analyst<'_, A> {
    fn push(&mut self, event: Event<'_>) -> Result {
        self.0.push(event);
        Ok(())
    }

    fn loss(&mut self, _error: &Error, _loss: &gotrace::Loss) -> Result {
        self.0.loss();
        Ok(())
    }
}

impl<A> AsMut<A> for Analyst<'_, A> {
    fn as_mut(&mut self) -> &mut A {
        self.0
    }
}

/// Reads the rest of a trace.
fn rest(
    mut reader: Reader<impl Read>,
    name: String,
    progress: &Progress,
    recovery: Recovery,
    visitor: &mut impl Visitor,
) -> Result<Reading> {
    let mut reading = Reading {
        name,
        version: reader.version(),
        error: None,
        losses: 0,
        lost_bytes: 0,
        lost_event_bytes: 0,
        unresolved: 0,
        lost_events: 0,
        missing_generations: 0,
        repeated: 0,
        start: None,
        last: None,
        recovery,
    };
    loop {
        match reader.next_event() {
            Ok(Some(event)) if recovery.wanted && is_without_time(event) => {}
            Ok(Some(event)) => {
                let time = event.time();
                reading.start = reading.start.or(Some(time));
                reading.last = Some(time);
                visitor.push(event)?;
                if visitor.is_complete() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                let recovered = if recovery.wanted { reader.recover() } else { Ok(None) };
                let loss = match recovered {
                    Ok(loss) => loss,
                    Err(worse) => {
                        reading.error = Some(worse);
                        break;
                    }
                };
                if let Some(loss) = &loss {
                    visitor.loss(&error, loss)?;
                    reading.losses += 1;
                    reading.lost_bytes += loss.bytes;
                    reading.lost_event_bytes += loss.event_bytes;
                    if reading.losses <= MAX_REPORTS {
                        progress.note(&report(&reading.name, &error, loss));
                    } else if reading.losses == MAX_REPORTS + 1 {
                        progress.note(&format!("{}: further losses are not listed", reading.name));
                    }
                } else if reading.losses > 0 {
                    // There is nothing after the last error.
                    progress.note(&format!("{}: {error}", reading.name));
                }
                let ended = loss.is_none();
                reading.error.get_or_insert(error);
                if ended {
                    break;
                }
            }
        }
    }
    reading.unresolved = reader.unresolved_ids();
    reading.lost_events = reader.lost_events();
    reading.missing_generations = reader.missing_generations();
    Ok(reading)
}

/// Whether this is the sync event before damage in the first generation, which is not a time of the
/// trace.
fn is_without_time(event: Event<'_>) -> bool {
    event.sync().is_some_and(|sync| sync.n() == 1 && !sync.begins_generation())
}

/// The time of the first event of a trace; `None` if it has none.
fn start(reader: &mut Reader<impl Read>, recovery: Recovery) -> Option<Timestamp> {
    loop {
        let event = reader.next_event().map(|event| {
            let event = event?;
            Some((event.time(), is_without_time(event)))
        });
        match event {
            Ok(Some((_, true))) if recovery.wanted => {}
            Ok(event) => return event.map(|(time, _)| time),
            Err(_) if recovery.wanted && matches!(reader.recover(), Ok(Some(_))) => {}
            Err(_) => return None,
        }
    }
}

/// Reads a trace that is still being written.
pub(crate) fn follow(
    path: &Path,
    progress: Progress,
    read: impl FnOnce(Opened) -> Result<Reading>,
) -> Result<Reading> {
    let file = Follow::open(path)?;
    let stopped = file.stopped();
    let input = Input::follow(path, file, progress.clone())?;
    let trace = Trace::of(input, path, progress.clone())?;
    let mut reading = read(Opened::whole(trace))?;
    if stopped.load(Ordering::SeqCst) {
        reading.end_anywhere(&progress);
    }
    Ok(reading)
}

/// A loss as a line of text.
pub(crate) fn report(name: &str, error: &Error, loss: &gotrace::Loss) -> String {
    let mut report = format!("{name}: {error}; {} bytes lost", loss.bytes);
    if loss.event_bytes > 0 {
        report += &format!(" ({} of events)", loss.event_bytes);
    }
    if loss.events > 0 {
        report += &format!(", {} events lost", loss.events);
    }
    report += &match loss.generation {
        Some(generation) if loss.partial => format!(", continuing in generation {generation}"),
        _ => format!(", resuming at byte {}", loss.to),
    };
    if loss.guessed_frequency {
        report += ", times assume the clock frequency of Linux";
    }
    report
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::io::test_data;
    use gotrace::synthetic::{EventConfig, EventDetails, OwnedStack};
    use gotrace::{
        GoId, GoState, OwnedEvent, Region, StackFrame, StateTransition, TaskId, ThreadId,
    };

    /// An error, and what reading loses by it. `None` skips the test: [`test_data::of_repository`].
    pub(crate) fn damage() -> Option<(Error, gotrace::Loss)> {
        let mut trace = test_data::of_repository(test_data::SHOP)?;
        let middle = trace.len() / 2;
        trace[middle..middle + 1000].fill(0xff);
        let mut reader = Reader::new(&trace[..]).unwrap();
        loop {
            if let Err(error) = reader.next_event() {
                return Some((error, reader.recover().unwrap().unwrap()));
            }
        }
    }

    /// The events of a goroutine that runs from 100 on, with a region from 200 to 700: those before a place
    /// for damage at 500, and those after it. After damage, its state is stated.
    pub(crate) fn region(is_damaged: bool) -> (Vec<OwnedEvent>, Vec<OwnedEvent>) {
        let at = |time, details| {
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            event.goroutine(GoId(7)).thread(ThreadId(1)).build().unwrap()
        };
        let stack = OwnedStack::new(&[StackFrame::new(1, "main.main", "main.go", 7)]);
        let state = |from, to| {
            let change = StateTransition::of_goroutine(GoId(7), from, to);
            EventDetails::StateTransition(change.with_stack(stack.as_stack()))
        };
        let region = || Region::new(TaskId::BACKGROUND, "checkout");
        let before = vec![
            at(100, state(GoState::Undetermined, GoState::Running)),
            at(200, EventDetails::RegionBegin(region())),
            at(300, EventDetails::StackSample),
            at(500, EventDetails::StackSample),
        ];
        let stated = at(600, state(GoState::Undetermined, GoState::Running));
        let ends = at(700, EventDetails::RegionEnd(region()));
        (before, is_damaged.then_some(stated).into_iter().chain([ends]).collect())
    }
}
