use super::providers;
use super::source::{Reading, SourceOrCommand, Stream};
use crate::failure::{Failure, Result};
use crate::io::profile_file::{ProfileFile, title};
use crate::io::profile_table::TableArgs;
use crate::io::progress::Progress;
use crate::run::duration::duration;
use crate::run::stop::Listener;
use crate::sources::symbols::lines::Lines;
use crate::timeline::counted;
use diag_ipc::{Level, Provider, TracingConfig};
use nettrace::analysis::{EventStacks, StackEvent};
use nettrace::{Order, ProfileSums, SampleKind, SampleTotal, Timestamp, Trace};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use trace_export::profile::{self, Label, LabelSet, Measure, Unit};
use trace_timeline::sources::dotnet;
use trace_timeline::{Frame, StackId, Tables};

/// Print the hottest methods of a process or a trace, or write its stacks as a flame graph or profile
///
/// The stacks are those of managed thread samples, or of allocations, exceptions, lock waits or
/// triggers of GCs.
/// The format follows from the file name: .speedscope.json (speedscope.app), .pb.gz (go tool
/// pprof), .svg (a flame graph), .folded (lines of stacks for flame graph tools). Without -o, a table of methods is
/// printed: SELF is the share of samples in a method itself, TOTAL that of samples in it and in what it calls.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet profile app.nettrace --managed           the hottest methods, as dotnet-trace report topN
  triscope dotnet profile app.nettrace --sort total --rows 10
  triscope dotnet profile 1234 -o app.speedscope.json
  triscope dotnet profile 1234 --duration 30 -o app.pb.gz && go tool pprof -top app.pb.gz
  triscope dotnet profile 1234 --of allocations -o allocations.svg
  triscope dotnet profile 1234 --of gcs -o gcs.svg         the stacks that triggered GCs
  triscope dotnet profile app.nettrace --managed -o app.svg")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceOrCommand,
    /// Where to write the stacks [default: print a table of methods]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    table: TableArgs,
    /// The events whose stacks are written
    #[arg(long, value_enum, value_name = "EVENTS", default_value_t = Of::Samples)]
    of: Of,
    /// Record a process for SECONDS [default: 10]; a COMMAND then gets SIGTERM [default: until it exits]
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
    /// Leave out samples of threads outside managed code, most of which wait. .NET 9 and later
    /// report nearly all samples as such
    #[arg(long)]
    managed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Of {
    /// Samples of all managed threads, running or not, by time
    Samples,
    /// Allocation samples, by bytes
    Allocations,
    /// Exceptions thrown, by number
    Exceptions,
    /// Lock contention, by time waited
    Contention,
    /// GCs triggered, by number
    Gcs,
}

impl Of {
    fn measure(self) -> Measure {
        let (events, weight, unit) = match self {
            // Of threads that run or wait.
            Self::Samples => ("samples", "wall", Unit::Nanoseconds),
            Self::Allocations => ("allocations", "alloc_space", Unit::Bytes),
            Self::Exceptions => ("exceptions", "exceptions", Unit::Count),
            Self::Contention => ("contentions", "delay", Unit::Nanoseconds),
            Self::Gcs => ("gcs", "gcs", Unit::Count),
        };
        // The sampler takes all threads about every millisecond.
        let period = if matches!(self, Self::Samples) { 1_000_000 } else { 0 };
        Measure { events: events.into(), weight: weight.into(), unit, period }
    }

    /// What a process is asked for: the events, and the names of methods.
    fn providers(self) -> Vec<Provider> {
        use providers::{RUNTIME, keywords};
        let events = match self {
            Self::Samples => return providers::samples().into(),
            Self::Allocations | Self::Gcs => keywords::GC,
            Self::Exceptions => keywords::EXCEPTION,
            Self::Contention => keywords::CONTENTION,
        };
        vec![Provider::new(RUNTIME).keywords(events | keywords::NAMES).level(Level::Verbose)]
    }
}

pub(super) fn run(args: &Args) -> Result {
    args.source.check(&[("--duration", args.duration.is_some())])?;
    let file = args.output.as_deref().map(ProfileFile::create).transpose()?;
    let has_output_of_file = file.is_some() && !args.source.is_live();
    let _listener = has_output_of_file.then(Listener::exit).flatten();
    let progress = if file.is_some() { Progress::bytes() } else { Progress::beside_output() };
    let config = TracingConfig::new(args.of.providers());
    let default = (!args.source.has_command()).then_some(Duration::from_secs(10));
    let duration = args.duration.or(default);
    let stream = args.source.open(&config, duration, Order::Time, progress)?;
    let name = stream.name.clone();
    let (stacks, reading) = match args.of {
        Of::Samples => samples(args, stream, file.as_ref().is_some_and(ProfileFile::has_order))?,
        Of::Allocations => events(args, stream, StackEvent::Allocation)?,
        Of::Exceptions => events(args, stream, StackEvent::Exception)?,
        Of::Contention => events(args, stream, StackEvent::Contention)?,
        Of::Gcs => events(args, stream, StackEvent::Gc)?,
    };
    if stacks.profile.count() == 0 {
        let events = args.of.measure().events;
        let failure = Failure::about(&name, format!("the trace contains no {events} with stacks"));
        return Err(reading.failed(failure));
    }
    let share = stacks.named as f64 * 100.0 / stacks.frames.max(1) as f64;
    let (title, remark) = (title(&name), format!(", {share:.1} % of frames with names"));
    let (profile, tables) = (&stacks.profile, &stacks.tables);
    match file {
        Some(file) => file.write(profile, tables, &title, &remark)?,
        None => args.table.print(profile, tables, &title, &remark)?,
    }
    stacks.lines.print_problems();
    reading.into_result()
}

/// A profile, and how many of its frames have names.
struct Stacks {
    profile: profile::Profile,
    tables: Tables,
    lines: Lines,
    frames: u64,
    /// Frames that have the name of a method.
    named: u64,
}

/// A stack with names.
#[derive(Clone, Copy)]
struct Stack {
    id: Option<StackId>,
    frames: u64,
    named: u64,
}

impl Stack {
    /// The frames of that many samples.
    const fn times(self, samples: u64) -> Self {
        let (frames, named) =
            (self.frames.saturating_mul(samples), self.named.saturating_mul(samples));
        Self { frames, named, ..self }
    }
}

impl Stacks {
    fn new(measure: Measure, process: Option<u32>) -> Self {
        let mut profile = profile::Profile::new(measure);
        profile.show_modules();
        let lines = Lines::of_process(process);
        Self { profile, tables: Tables::new(), lines, frames: 0, named: 0 }
    }

    /// Names the frames of a stack, innermost first, below the type that the events are about, if
    /// it has a name.
    fn resolve<'a>(
        &mut self,
        type_name: &str,
        stack: impl Iterator<Item = nettrace::Frame<'a>>,
    ) -> Stack {
        let mut frames = Vec::new();
        if !type_name.is_empty() {
            let function = self.tables.text(format!("[{type_name}]").as_bytes());
            frames.push(Frame { function, ..Frame::default() });
        }
        let (mut len, mut named) = (0, 0);
        for frame in stack {
            len += 1;
            named += u64::from(frame.method.is_some());
            frames.push(dotnet::frame_with_line(&frame, &mut self.lines, &mut self.tables));
        }
        Stack { id: self.tables.stack(&frames), frames: len, named }
    }

    /// The labels and the stacks of sums of samples, without those outside managed code if only `managed` ones
    /// are wanted.
    fn resolve_all(
        &mut self,
        sums: &ProfileSums,
        totals: &[SampleTotal],
        managed: bool,
    ) -> Vec<Option<(LabelSet, Stack)>> {
        let mut resolved = HashMap::new();
        let mut resolve = |total: &SampleTotal| {
            let state = match total.kind {
                SampleKind::Managed => "managed",
                SampleKind::Running => "running",
                SampleKind::External => "external",
                _ => "error",
            };
            if managed && !matches!(total.kind, SampleKind::Managed | SampleKind::Running) {
                return None;
            }
            // Stacks are few, and threads that have one can be many.
            let key = (total.pid, total.stack);
            let stack = match resolved.get(&key) {
                Some((period, stack)) if RangeInclusive::contains(period, &total.first) => *stack,
                _ => {
                    let stack = self.resolve("", sums.frames(total));
                    resolved.insert(key, (sums.period(total), stack));
                    stack
                }
            };
            Some((self.labels(total.tid, state), stack))
        };
        totals.iter().map(&mut resolve).collect()
    }

    /// The labels of a thread; the state is empty if it has no meaning.
    fn labels(&mut self, thread: u64, state: &str) -> LabelSet {
        let [key, of_state, text] =
            ["thread", "state", state].map(|text| self.tables.text(text.as_bytes()));
        let thread = (key, Label::Number(thread as i64));
        match state {
            "" => self.profile.labels(&[thread]),
            _ => self.profile.labels(&[thread, (of_state, Label::Text(text))]),
        }
    }

    /// Adds events of a stack.
    fn add(&mut self, labels: LabelSet, stack: Stack, (count, weight): (u64, u64)) {
        self.named += stack.named;
        self.frames += stack.frames;
        self.profile.add(stack.id, labels, count, weight);
    }

    /// Sets the times of the first and the last event.
    fn set_span(&mut self, trace: &Trace, span: Option<Span>) {
        let Some((first, last)) = span else { return };
        let start = u64::try_from(trace.utc(first).nanos()).unwrap_or(0);
        self.profile.set_span(start, nanos(last - first));
    }
}

/// The sampler's stacks, weighted by time. Samples are added up as they come: a session can have no end.
fn samples(args: &Args, stream: Stream, has_order: bool) -> Result<(Stacks, Reading)> {
    let process = stream.pid();
    let mut sums = if has_order { ProfileSums::with_order() } else { ProfileSums::new() };
    let reading = stream.read(|event| {
        sums.push(event);
        Ok(())
    })?;
    let (trace, reading) = trace(reading)?;
    let mut stacks = Stacks::new(args.of.measure(), process);
    let totals = sums.totals();
    let named = stacks.resolve_all(&sums, &totals, args.managed);
    if has_order {
        for (index, weight) in sums.in_order() {
            if let Some((labels, stack)) = named.get(index).copied().flatten() {
                stacks.add(labels, stack, (1, nanos(weight)));
            }
        }
    } else {
        for (total, named) in totals.iter().zip(&named) {
            if let Some((labels, stack)) = *named {
                stacks.add(labels, stack.times(total.count), (total.count, nanos(total.weight)));
            }
        }
    }
    let kept = totals.iter().zip(&named).filter_map(|(total, named)| named.map(|_| total));
    let span = kept.fold(None, |span: Option<Span>, total| {
        let (first, last) = span.unwrap_or((total.first, total.last));
        Some((first.min(total.first), last.max(total.last)))
    });
    stacks.set_span(&trace, span);
    Ok((stacks, reading))
}

/// The stacks of events of the runtime.
fn events(args: &Args, stream: Stream, wanted: StackEvent) -> Result<(Stacks, Reading)> {
    let process = stream.pid();
    let mut totals = EventStacks::new(wanted);
    let mut span: Option<Span> = None;
    let reading = stream.read(|event| {
        totals.push(event);
        span = extended(span, event.time());
        Ok(())
    })?;
    let (trace, reading) = trace(reading)?;
    if totals.undecodable() > 0 {
        let events = counted(totals.undecodable(), "event");
        message!("triscope: {events} lack a field and are not shown");
    }
    let mut stacks = Stacks::new(args.of.measure(), process);
    for total in totals.totals() {
        let stack = stacks.resolve(&total.type_name, totals.frames(total));
        let labels = stacks.labels(total.tid, "");
        stacks.add(labels, stack, (total.count, total.weight));
    }
    stacks.set_span(&trace, span);
    Ok((stacks, reading))
}

/// The first and the last time.
type Span = (Timestamp, Timestamp);

/// The first and the last time, after another one.
fn extended(span: Option<Span>, now: Timestamp) -> Option<Span> {
    Some((span.map_or(now, |(first, _)| first), now))
}

fn trace(reading: Reading) -> Result<(Trace, Reading)> {
    match reading.trace.clone() {
        Some(trace) => Ok((trace, reading)),
        None => {
            let failure = Failure::about(&reading.name, "the trace is truncated");
            Err(reading.failed(failure))
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
