use super::analysis::{self, Analysis, Part, Span};
use super::goroutines;
use super::restrict::Restriction;
use crate::failure::Result;
use crate::io::input;
use crate::io::profile_file::{ProfileFile, title};
use crate::io::profile_table::TableArgs;
use crate::run::stop::Listener;
use gotrace::analysis::{Profile, ProfileKind, ProfileScope};
use std::path::PathBuf;
use trace_export::profile::{self, LabelSet, Measure, Unit};
use trace_timeline::sources::go;
use trace_timeline::{Frame, Tables};

/// Print or write a profile of delays, CPU samples or starts of GC cycles
///
/// The profiles of delays are those of go tool trace -pprof. The format follows from the file name:
/// .speedscope.json (speedscope.app), .pb.gz (go tool pprof), .svg (a flame graph), .folded
/// (lines of stacks for flame graph tools). Without -o, a table of functions is printed: SELF is the share
/// in a function itself, TOTAL that in it and in what it calls.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go profile sync trace.out --rows 10    the functions with the longest delays
  triscope go profile sync trace.out -o sync.pb.gz && go tool pprof -top sync.pb.gz
  triscope go profile sched trace.out -o sched.svg
  triscope go profile net --goroutine main.handle trace.out -o net.speedscope.json
  triscope go profile sync --region checkout trace.out -o checkout.pb.gz
  triscope go profile syscall --task request trace.out -o request.svg
  triscope go profile gc trace.out -o gcs.svg     the stacks that started GC cycles
  triscope go profile sync --from 10 --to 12 trace.out -o sync.svg")]
pub(crate) struct Args {
    /// The delays, CPU samples or GC cycles
    #[arg(value_enum, value_name = "KIND")]
    kind: Kind,
    #[command(flatten)]
    analysis: Analysis,
    /// Where to write it [default: print a table of functions]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    table: TableArgs,
    /// Only goroutines with this entry function
    #[arg(long, value_name = "FUNCTION", conflicts_with = "restriction")]
    goroutine: Option<String>,
    #[command(flatten)]
    restriction: Restriction,
    /// Include the wait of new goroutines for their first P, which go tool trace leaves out
    #[arg(long, conflicts_with_all = ["goroutine", "restriction"])]
    first_run: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Time blocked in network I/O
    Net,
    /// Time blocked in channels, select and package sync
    Sync,
    /// Time in system calls
    Syscall,
    /// Time runnable, waiting for a P
    Sched,
    /// Samples of the CPU profiler
    Cpu,
    /// Starts of GC cycles
    Gc,
}

impl Kind {
    const fn kind(self) -> ProfileKind {
        match self {
            Self::Net => ProfileKind::Network,
            Self::Sync => ProfileKind::Sync,
            Self::Syscall => ProfileKind::Syscall,
            Self::Sched => ProfileKind::Scheduler,
            Self::Cpu => ProfileKind::Cpu,
            Self::Gc => ProfileKind::GcCycles,
        }
    }

    fn measure(self) -> Measure {
        let (events, weight, unit) = match self {
            Self::Cpu => ("samples", "samples", Unit::Count),
            Self::Gc => ("gcs", "gcs", Unit::Count),
            _ => ("contentions", "delay", Unit::Nanoseconds),
        };
        Measure { events: events.into(), weight: weight.into(), unit, period: 0 }
    }
}

pub(super) fn run(args: &Args) -> Result {
    let file = args.output.as_deref().map(ProfileFile::create).transpose()?;
    let _listener = file.as_ref().and_then(|_| Listener::exit());
    let mut scope = scope(args)?;
    let is_again = scope.is_selected();
    let (from, to) = args.analysis.bounds()?;
    if args.analysis.range.is_given() {
        scope.limit(from, to);
    }
    let mut timed = (Profile::new(args.kind.kind(), scope), Span::default());
    let reading = args.analysis.visit_split(is_again, &mut timed)?;
    let (mut delays, span) = timed;
    delays.finish();
    let mut profile = profile::Profile::new(args.kind.measure());
    let mut tables = Tables::new();
    for (delay, stack) in delays.stacks() {
        let frames = stack.map(|f| go::frame(&f.function, &f.file, f.line, f.pc, &mut tables));
        let frames: Vec<Frame> = frames.collect();
        let stack = tables.stack(&frames);
        let time = u64::try_from(delay.time.as_nanos()).unwrap_or(u64::MAX);
        profile.add(stack, LabelSet::default(), delay.count, time);
    }
    if let Some((first, last)) = span.times {
        let (first, last) = (first.clamp(from, to), last.clamp(from, to));
        profile.set_span(0, last.nanos_since(first).unsigned_abs());
    }
    let remark = match args.kind {
        Kind::Cpu | Kind::Gc => String::new(),
        _ => format!(", {}", analysis::duration(std::time::Duration::from_nanos(profile.weight()))),
    };
    if profile.count() == 0 {
        let what = match args.kind {
            Kind::Cpu => "no CPU samples: the program must run a CPU profile while it is traced",
            Kind::Gc => "no start of a GC cycle",
            _ => "no such delay",
        };
        return Err(args.analysis.lacks(reading, what));
    }
    let title = title(&reading.name);
    match file {
        Some(file) => file.write(&profile, &tables, &title, &remark)?,
        None => args.table.print(&profile, &tables, &title, "")?,
    }
    reading.into_result()
}

/// The goroutines, regions or tasks that are selected, from a pass of its own over all of the trace:
/// in a range, one that began before it would begin with its first event there.
fn scope(args: &Args) -> Result<ProfileScope> {
    let is_restricted = args.restriction.is_given();
    if !is_restricted && args.goroutine.is_none() {
        return Ok(match args.first_run {
            true => ProfileScope::all(),
            false => ProfileScope::since_first_run(),
        });
    }
    input::check_twice(&args.analysis.file, "a profile of goroutines, regions or tasks")?;
    let Some(function) = &args.goroutine else {
        let (selected, _) = args.restriction.select(&args.analysis.whole())?;
        return Ok(selected.scope());
    };
    let mut scope = ProfileScope::all();
    let whole = args.analysis.whole();
    let reading = whole.summarize(|part| {
        let Part::Goroutine(goroutine) = part else { return };
        let entry = goroutine.entry.as_ref();
        if entry.is_some_and(|entry| **entry.name == *function.as_bytes()) {
            scope.add_goroutine(goroutine);
        }
    })?;
    if !scope.is_selected() {
        return Err(goroutines::of_no_entry(&whole, reading, function));
    }
    Ok(scope)
}
