//! `triscope convert`: a trace of any kind to one that a viewer draws.

mod file;

use crate::failure::{OneLine, Result};
use crate::go::{self, Recovery, Trace, Visitor};
use crate::progress::Progress;
use file::{Counted, OutputFile};
use gotrace::Event;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use trace_export::go::{GoOptions, GoSource, GoStats};
use trace_export::{ClockDomain, Compressor, Loss, PerfettoSink, Sink};

/// Make a timeline of a trace, to be opened at https://ui.perfetto.dev
///
/// The timeline shows what each P and each thread did, every goroutine with its states and
/// stacks, collections and stops of the world, tasks, regions and logs, counters, CPU samples,
/// and arrows from where a goroutine is unblocked to where it runs.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope convert trace.out -o trace.pftrace
  curl -s http://localhost:6060/debug/pprof/trace?seconds=5 | triscope convert - -o trace.pftrace
  triscope convert --recover cut.out -o trace.pftrace     go on behind damage

Open the output at https://ui.perfetto.dev (\"Open trace file\"): the page works in the browser
alone, nothing is uploaded. There, w and s zoom, a and d move, f zooms to what is selected, m marks
it, / searches; a click shows the stack of a slice and its arrows. For SQL, load the file with
Perfetto's trace_processor_shell.

Input may be compressed with gzip or zstd. An existing output is replaced when the new one is
complete. Of a damaged trace, what was read before the damage is converted and the exit code is 1.")]
pub(crate) struct Args {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The timeline to write; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Draw no arrows from where a goroutine is unblocked or created to where it runs
    #[arg(long)]
    no_arrows: bool,
    /// The process identifier to give the program, which a Go trace does not tell
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// The name to give the program
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    recovery: Recovery,
}

pub(crate) fn run(args: &Args) -> Result {
    let trace = Trace::open(&args.file, Progress::bytes())?;
    let output = OutputFile::create(&args.output, &args.file)?;
    let (file, written) = Counted::new(output.writer()?);
    let writer: Box<dyn Write + Send> = if args.uncompressed {
        Box::new(file)
    } else {
        Box::new(Compressor::new(file).map_err(|e| output.failure(&e))?)
    };
    let mut options = GoOptions::default();
    options.process = process_name(args);
    options.pid = args.pid.unwrap_or(options.pid);
    options.wake_ups = !args.no_arrows;
    let mut timeline = Timeline {
        source: GoSource::new(options),
        sink: PerfettoSink::new(writer, ClockDomain::Monotonic),
        output: &output,
    };
    let reading = go::read(trace, args.recovery, &mut timeline)?;
    let stats = timeline.finish()?;

    let partial = reading.error.is_some();
    output.complete()?;
    let summary = summary(&stats, &reading, written.get());
    let target =
        if output.is_stdout() { "standard output" } else { &*args.output.to_string_lossy() };
    let line = format!("{}{}: {summary}", target, if partial { " (partial)" } else { "" });
    if output.is_stdout() {
        eprintln!("{}", OneLine(&line));
    } else {
        let _ = writeln!(io::stdout(), "{}", OneLine(&line)); // nobody has to listen
    }
    reading.into_result()
}

/// What the program is called on the timeline: as the trace, unless told otherwise.
fn process_name(args: &Args) -> Vec<u8> {
    match (&args.name, args.file.file_stem()) {
        (Some(name), _) => name.clone().into_bytes(),
        (None, Some(stem)) if args.file != Path::new("-") => stem.as_encoded_bytes().to_vec(),
        _ => b"Go program".to_vec(),
    }
}

/// Everything between a reader and a file.
struct Timeline<'a> {
    source: GoSource,
    sink: PerfettoSink<Box<dyn Write + Send>>,
    output: &'a OutputFile,
}

impl Timeline<'_> {
    fn finish(mut self) -> Result<GoStats> {
        let fail = |error| self.output.failure(&error);
        self.source.finish(&mut self.sink).map_err(fail)?;
        self.sink.finish().map_err(fail)?;
        Ok(self.source.stats())
    }
}

impl Visitor for Timeline<'_> {
    fn begin(&mut self, clock: ClockDomain) {
        self.sink.set_domain(clock);
    }

    fn event(&mut self, event: Event<'_>) -> Result {
        self.source.event(event, &mut self.sink).map_err(|e| self.output.failure(&e))
    }

    fn loss(&mut self, error: &gotrace::Error, loss: &gotrace::Loss) -> Result {
        let why = error.to_string();
        let loss = Loss {
            what: b"bytes of the Go trace",
            count: Some(loss.to.saturating_sub(loss.from)),
            why: why.as_bytes(),
        };
        self.source.gap(&loss, &mut self.sink).map_err(|e| self.output.failure(&e))
    }
}

/// One line on what has been converted.
fn summary(stats: &GoStats, reading: &go::Reading, bytes: u64) -> String {
    let seconds = match (stats.first, stats.last) {
        (Some(first), Some(last)) => last.nanos_since(first) as f64 / 1e9,
        _ => 0.0,
    };
    let mut line = format!(
        "{} events of {seconds:.3} s, {} goroutines, {}",
        stats.events,
        stats.goroutines,
        size(bytes)
    );
    let mut left_out = |count: u64, what| {
        if count > 0 {
            line.push_str(&format!("; {count} {what}"));
        }
    };
    left_out(stats.experimental, "events of experiments are not shown");
    left_out(stats.samples_without_thread, "samples without a thread are not shown");
    left_out(reading.losses, "gaps");
    left_out(reading.missing_generations, "missing generations");
    left_out(reading.unresolved, "unresolved names or stacks");
    line
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
