use super::analysis::{self, Analysis, Part};
use crate::failure::{Failure, Result};
use crate::io::profile_file::ProfileFile;
use gotrace::Timestamp;
use gotrace::analysis::{Profile, ProfileKind, ProfileScope};
use std::path::PathBuf;
use trace_export::profile::{self, LabelSet, Measure, Unit};

/// Write a profile of delays or CPU samples
///
/// The profiles are those of go tool trace -pprof. The format follows from the file name:
/// .speedscope.json (speedscope.app), .pb.gz (go tool pprof), .svg (a flame graph), .folded
/// (lines of stacks for flame graph tools).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go profile sync trace.out -o sync.pb.gz && go tool pprof -top sync.pb.gz
  triscope go profile sched trace.out -o sched.svg
  triscope go profile net --goroutine main.handle trace.out -o net.speedscope.json
  triscope go profile sync --region checkout trace.out -o checkout.pb.gz")]
pub(crate) struct Args {
    /// The delays, or CPU samples
    #[arg(value_enum, value_name = "KIND")]
    kind: Kind,
    #[command(flatten)]
    analysis: Analysis,
    /// Where to write it
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Only goroutines with this entry function
    #[arg(long, value_name = "FUNCTION", conflicts_with = "region")]
    goroutine: Option<String>,
    /// Only the time within regions of this type
    #[arg(long, value_name = "TYPE")]
    region: Option<String>,
    /// Include the wait of new goroutines for their first P, which go tool trace leaves out
    #[arg(long, conflicts_with_all = ["goroutine", "region"])]
    first_run: bool,
    /// Only from this time of the trace on, in nanoseconds
    #[arg(long, value_name = "NANOSECONDS")]
    from: Option<i64>,
    /// Only up to this time of the trace, in nanoseconds
    #[arg(long, value_name = "NANOSECONDS")]
    to: Option<i64>,
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
}

impl Kind {
    const fn kind(self) -> ProfileKind {
        match self {
            Self::Net => ProfileKind::Network,
            Self::Sync => ProfileKind::Sync,
            Self::Syscall => ProfileKind::Syscall,
            Self::Sched => ProfileKind::Scheduler,
            Self::Cpu => ProfileKind::Cpu,
        }
    }

    const fn measure(self) -> Measure {
        let (events, weight, unit) = match self {
            Self::Cpu => ("samples", "samples", Unit::Count),
            _ => ("contentions", "delay", Unit::Nanoseconds),
        };
        Measure { events, weight, unit, period: 0 }
    }
}

pub(super) fn run(args: &Args) -> Result {
    let file = ProfileFile::create(&args.output)?;
    let mut scope = scope(args)?;
    if args.from.is_some() || args.to.is_some() {
        let from = args.from.map_or(Timestamp::MIN, Timestamp::from_nanos);
        scope.limit(from, args.to.map_or(Timestamp::MAX, Timestamp::from_nanos));
    }
    let mut delays = Profile::new(args.kind.kind(), scope);
    let mut span: Option<(Timestamp, Timestamp)> = None;
    let reading = args.analysis.read(|event| {
        delays.event(event);
        span = Some((span.map_or(event.time(), |(first, _)| first), event.time()));
    })?;
    delays.finish();
    let mut profile = profile::Profile::new(args.kind.measure());
    for (delay, stack) in delays.stacks() {
        let frames = stack.map(|frame| {
            trace_export::Frame::new(&frame.function)
                .source(&frame.file, u32::try_from(frame.line).unwrap_or(0))
                .module(b"", frame.pc)
        });
        let stack = profile.stack(frames);
        let time = u64::try_from(delay.time.as_nanos()).unwrap_or(u64::MAX);
        profile.add(stack, LabelSet::default(), delay.count, time);
    }
    if let Some((first, last)) = span {
        profile.set_span(0, last.nanos_since(first).unsigned_abs());
    }
    let remark = match args.kind {
        Kind::Cpu => String::new(),
        _ => format!(", {}", analysis::duration(std::time::Duration::from_nanos(profile.weight()))),
    };
    if profile.count() == 0 {
        let what = match args.kind {
            Kind::Cpu => "no CPU samples: the program must run a CPU profile while it is traced",
            _ => "no such delay",
        };
        return Err(Failure::about(&reading.name, format!("the trace contains {what}")));
    }
    file.write(&profile, &reading.name, &remark)?;
    reading.into_result()
}

/// The goroutines or regions that are selected, from a pass of its own.
fn scope(args: &Args) -> Result<ProfileScope> {
    let (selects, value) = match (&args.goroutine, &args.region) {
        (Some(function), _) => ("goroutine with the entry function", function),
        (_, Some(region)) => ("region of type", region),
        _ if args.first_run => return Ok(ProfileScope::all()),
        _ => return Ok(ProfileScope::since_first_run()),
    };
    if args.analysis.file.as_os_str() == "-" {
        let message = "--goroutine and --region read the trace twice: it must be a file";
        return Err(Failure::about("standard input", message));
    }
    let mut scope = ProfileScope::all();
    args.analysis.summarize(|part| match part {
        Part::Goroutine(goroutine) => {
            let entry = goroutine.entry.as_ref();
            let is_named = entry.is_some_and(|entry| **entry.name == *value.as_bytes());
            if args.goroutine.is_some() && is_named {
                scope.add_goroutine(goroutine);
            }
        }
        Part::Region(region) => {
            let is_named = !region.inherited && **region.name == *value.as_bytes();
            if args.region.is_some() && is_named {
                scope.add_region(region);
            }
        }
    })?;
    if !scope.is_selected() {
        let name = args.analysis.file.display();
        return Err(Failure::about(name, format!("the trace contains no {selects} {value:?}")));
    }
    Ok(scope)
}
