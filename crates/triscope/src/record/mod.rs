//! `triscope record`: a command on one timeline, as the kernel and its runtime saw it.

mod dotnet;
mod sched;

use crate::convert::dotnet::draw_file;
use crate::convert::file::{Counted, OutputFile};
use crate::failure::{Failure, OneLine, Result};
use crate::go::{self, Recovery, Trace, Visitor};
use crate::perf;
use crate::progress::Progress;
use sched::Scheduler;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace_export::dotnet::DotnetOptions;
use trace_export::go::{GoOptions, GoSource};
use trace_export::{ClockDomain, Compressor, Loss, PerfettoSink, Sink, Timestamp};

/// Run a command and make a timeline of it, to be opened in the Perfetto UI (ui.perfetto.dev)
///
/// The kernel's scheduler is drawn for every CPU, and the command's threads with their states,
/// wake-ups, names and ends. If the command writes a Go execution trace (Go 1.22 or newer), its
/// goroutines are on the same timeline, by the same clock.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope record -o make.pftrace -- make -j2
  triscope record --sched --go-trace trace.out -o server.pftrace -- ./server -trace trace.out
  triscope record --sched --dotnet -o app.pftrace -- dotnet app.dll

The scheduler needs root, or CAP_PERFMON and a readable tracefs. What did not fit in the kernel's
buffers is marked on the timeline and told at the end.")]
pub(crate) struct Args {
    /// Record the kernel's scheduler; this is the default without --go-trace and --dotnet
    #[arg(long)]
    sched: bool,
    /// The Go execution trace that the command writes
    #[arg(long, value_name = "FILE")]
    go_trace: Option<PathBuf>,
    /// Record the .NET runtime of the command: CPU samples with managed stacks, collections,
    /// compilations, lock waits, exceptions. The command must be the .NET process itself
    #[arg(long)]
    dotnet: bool,
    /// The timeline to write; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Pages of each CPU's buffer, a power of two
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pages: usize,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

type Timeline = PerfettoSink<Box<dyn Write + Send>>;

pub(crate) fn run(args: &Args) -> Result {
    let inputs: Vec<PathBuf> = args.go_trace.iter().cloned().collect();
    let output = OutputFile::create(&args.output, &inputs)?;
    let mut scheduler = if args.sched || args.go_trace.is_none() && !args.dotnet {
        Some(Scheduler::open(args.pages).map_err(perf::failure)?)
    } else {
        None
    };
    let (file, written) = Counted::new(output.writer()?);
    let writer: Box<dyn Write + Send> = if args.uncompressed {
        Box::new(file)
    } else {
        Box::new(Compressor::new(file).map_err(|e| output.failure(&e))?)
    };
    let mut sink = PerfettoSink::new(writer, ClockDomain::Monotonic);
    let fail = |error| output.failure(&error);
    snapshot(&mut sink).map_err(fail)?;

    // What is in the file from an earlier run is not of this command.
    if let Some(trace) = &args.go_trace {
        match std::fs::remove_file(trace) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::about(trace.display(), error));
            }
            _ => {}
        }
    }
    if let Some(scheduler) = &mut scheduler {
        scheduler.enable().map_err(perf::failure)?;
    }
    let mut child = perf::start(&args.command)?;
    let pid = child.id();
    let runtime = if args.dotnet { Some(dotnet::Recorder::start(pid)?) } else { None };
    if let Some(scheduler) = &mut scheduler {
        scheduler.follow(pid);
    }
    let status = loop {
        let ended = child.try_wait().map_err(|e| Failure::Message(format!("waiting: {e}")))?;
        if let Some(scheduler) = &mut scheduler {
            scheduler.round(&mut sink).map_err(|e| e.into_failure(&output))?;
        }
        if let Some(status) = ended {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut summary = Vec::new();
    if let Some(scheduler) = &mut scheduler {
        let stats = scheduler.finish(&mut sink).map_err(|e| e.into_failure(&output))?;
        summary.push(format!("{} switches, {} wake-ups", stats.switches, stats.wakings));
        summary.push(format!("{} threads of the command", stats.threads));
        if stats.lost > 0 {
            summary.push(format!("{} events lost: use more --pages", stats.lost));
        }
        if stats.late > 0 {
            summary.push(format!("{} events out of order", stats.late));
        }
    }
    if let Some(runtime) = runtime {
        let name = program_name(&args.command);
        let mut options = DotnetOptions::default();
        options.process = name.clone().into_bytes();
        match runtime.finish() {
            Ok(file) => {
                let drawn = draw_file(&name, file, options, &mut sink, &output)?;
                summary.push(format!("{}{}", drawn.0.what, drawn.0.notes));
            }
            // The rest of the timeline is good: it is written all the same.
            Err(failure) => {
                failure.report();
                summary.push("nothing of the .NET runtime".to_owned());
            }
        }
    }
    if let Some(path) = &args.go_trace {
        let trace = Trace::open(path, Progress::bytes())?;
        let mut options = GoOptions::default();
        options.pid = i32::try_from(pid).unwrap_or(i32::MAX);
        options.process = program_name(&args.command).into_bytes();
        let mut goroutines = Goroutines {
            source: GoSource::new(options),
            sink: &mut sink,
            output: &output,
            clock: None,
        };
        let reading = go::read(trace, Recovery::default(), &mut goroutines)?;
        goroutines.check_clock()?;
        goroutines.source.finish(goroutines.sink).map_err(fail)?;
        summary.push(format!("{} goroutines", goroutines.source.stats().goroutines));
        if let Some(error) = &reading.error {
            summary.push(format!("the Go trace ends early: {error}"));
        }
    }
    if let Some(scheduler) = &mut scheduler {
        scheduler.draw_exits(&mut sink).map_err(fail)?;
    }
    snapshot(&mut sink).map_err(fail)?;
    sink.finish().map_err(fail)?;
    drop(sink.into_inner());
    output.complete()?;
    let target =
        if output.is_stdout() { "standard output" } else { &*args.output.to_string_lossy() };
    summary.push(crate::convert::size(written.get()));
    eprintln!("{}", OneLine(&format!("{target}: {}", summary.join(", "))));
    if status.success() {
        return Ok(());
    }
    eprintln!("triscope: the command ended with {status}");
    Err(Failure::Quiet(status.code().map_or(1, |code| code as u8)))
}

fn program_name(command: &[String]) -> String {
    let program = command.first().map_or("", String::as_str);
    Path::new(program).file_name().map_or(program.into(), |n| n.to_string_lossy().into_owned())
}

/// Relates the clocks: events of the scheduler are drawn by `CLOCK_BOOTTIME`.
fn snapshot(sink: &mut Timeline) -> std::io::Result<()> {
    let clocks = [ClockDomain::Monotonic, ClockDomain::Boottime, ClockDomain::Realtime];
    let readings: Vec<(ClockDomain, Timestamp)> =
        clocks.into_iter().filter_map(|clock| Some((clock, perf_monitor::now(clock)?))).collect();
    sink.clock_snapshot(&readings)
}

/// Puts a Go trace on the timeline.
struct Goroutines<'a> {
    source: GoSource,
    sink: &'a mut Timeline,
    output: &'a OutputFile,
    clock: Option<ClockDomain>,
}

impl Goroutines<'_> {
    fn check_clock(&self) -> Result {
        match self.clock {
            None | Some(ClockDomain::Monotonic) => Ok(()),
            Some(other) => Err(Failure::Message(format!(
                "the Go trace is on {other}, which nothing relates to the kernel's clocks: build \
                 the program with Go 1.22 or newer"
            ))),
        }
    }
}

impl Visitor for Goroutines<'_> {
    fn begin(&mut self, clock: ClockDomain) {
        self.clock = Some(clock);
    }

    fn event(&mut self, event: gotrace::Event<'_>) -> Result {
        self.check_clock()?;
        self.source.event(event, self.sink).map_err(|e| self.output.failure(&e))
    }

    fn loss(&mut self, error: &gotrace::Error, loss: &gotrace::Loss) -> Result {
        let why = error.to_string();
        let loss = Loss {
            what: b"bytes of the Go trace",
            count: Some(loss.to.saturating_sub(loss.from)),
            why: why.as_bytes(),
        };
        self.source.gap(&loss, self.sink).map_err(|e| self.output.failure(&e))
    }
}
