//! `triscope convert`: a trace of any kind to one that a viewer draws.

pub(crate) mod dotnet;
pub(crate) mod file;

use crate::failure::{Failure, OneLine, Result};
use crate::go::{self, Recovery, Trace, Visitor};
use crate::input::{Format, Input};
use crate::progress::Progress;
use crate::signals::{self, Listener};
use file::{Counted, OutputFile};
use gotrace::Event;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use trace_export::go::{GoOptions, GoSource, GoStats};
use trace_export::{ClockDomain, Compressor, Loss, PerfettoSink, Sink};

/// Make one timeline of traces, to be opened in the Perfetto UI (ui.perfetto.dev)
///
/// Of a Go trace it shows what each P and each thread did, every goroutine with its states and
/// stacks, collections and stops of the world, tasks, regions and logs, counters, CPU samples,
/// and arrows from where a goroutine is unblocked to where it runs. Of a .NET trace:
/// collections and suspensions, compilations, lock waits, exceptions, activities, counters,
/// events of event sources, CPU samples with managed stacks. Traces of one machine share their
/// clock, CLOCK_MONOTONIC.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope convert trace.out -o trace.pftrace
  triscope convert app.nettrace server.trace -o both.pftrace     on one clock
  curl -s http://localhost:6060/debug/pprof/trace?seconds=5 | triscope convert - -o trace.pftrace
  triscope convert --recover cut.out -o trace.pftrace     go on behind damage

Open the output at https://ui.perfetto.dev (\"Open trace file\"): the page works in the browser
alone, nothing is uploaded. There, w and s zoom, a and d move, f zooms to what is selected, m marks
it, / searches; a click shows the stack of a slice and its arrows. For SQL, load the file with
Perfetto's trace_processor_shell.

Input may be compressed with gzip or zstd. An existing output is replaced when the new one is
complete. Of a damaged trace, what was read before the damage is converted and the exit code is 1.")]
pub(crate) struct Args {
    /// The traces, Go's or .NET's; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
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

/// What timelines are written to.
pub(crate) type Timeline = PerfettoSink<Box<dyn Write + Send>>;

pub(crate) fn run(args: &Args) -> Result {
    // Who is not there is told before anything is written.
    let mut inputs = Vec::new();
    for file in &args.files {
        inputs.push((file, Input::open(file, Progress::bytes())?));
    }
    let output = OutputFile::create(&args.output, &args.files)?;
    let remove = output.remover();
    let _listener = Listener::start(move |signal| {
        remove();
        std::process::exit(signals::exit_code(signal).into());
    })?;
    let (file, written) = Counted::new(output.writer()?);
    let writer: Box<dyn Write + Send> = if args.uncompressed {
        Box::new(file)
    } else {
        Box::new(Compressor::new(file).map_err(|e| output.failure(&e))?)
    };
    let mut sink = PerfettoSink::new(writer, ClockDomain::Monotonic);
    let single = inputs.len() == 1;
    let mut parts = Vec::new();
    let mut result = Ok(());
    for (path, input) in inputs {
        let name = input.name.clone();
        let (part, outcome) = match input.format {
            Format::NetTrace => dotnet::convert(args, input, path, &mut sink, &output)?,
            _ => convert_go(args, input, path, single, &mut sink, &output)?,
        };
        parts.push((name, part, outcome.is_err()));
        result = result.and(outcome);
    }
    sink.finish().map_err(|e| output.failure(&e))?;
    output.complete()?;
    let target =
        if output.is_stdout() { "standard output" } else { &*args.output.to_string_lossy() };
    let size = size(written.get());
    let mut lines = Vec::new();
    for (name, Part { what, notes }, partial) in &parts {
        let label = if single { target } else { name };
        let partial = if *partial { " (partial)" } else { "" };
        let size = if single { format!(", {size}") } else { String::new() };
        lines.push(format!("{label}{partial}: {what}{size}{notes}"));
    }
    if !single {
        lines.push(format!("{target}: {size}"));
    }
    for line in lines {
        if output.is_stdout() {
            eprintln!("{}", OneLine(&line));
        } else {
            let _ = writeln!(io::stdout(), "{}", OneLine(&line)); // nobody has to listen
        }
    }
    result
}

/// What came of one input.
pub(crate) struct Part {
    /// How much of what is on the timeline.
    pub(crate) what: String,
    /// What is not on it: `; …; …`.
    pub(crate) notes: String,
}

fn convert_go(
    args: &Args,
    input: Input,
    path: &Path,
    single: bool,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let mut options = GoOptions::default();
    options.process = process_name(args, path);
    options.pid = args.pid.unwrap_or(options.pid);
    options.wake_ups = !args.no_arrows;
    let mut visitor = GoVisitor { source: GoSource::new(options), sink, output, single };
    let trace = Trace::of(input, path, Progress::bytes())?;
    let reading = go::read(trace, args.recovery, &mut visitor)?;
    let stats = visitor.finish()?;
    if let (None, Some(error)) = (stats.first, &reading.error) {
        let hint = if args.recovery.wanted() { "" } else { "; --recover goes on behind damage" };
        let message = format!("nothing could be converted: {error}{hint}");
        return Err(Failure::about(&reading.name, message));
    }
    Ok((part(&stats, &reading), reading.into_result()))
}

/// What the program is called on the timeline: as the trace, unless told otherwise.
fn process_name(args: &Args, path: &Path) -> Vec<u8> {
    match (&args.name, path.file_stem()) {
        (Some(name), _) => name.clone().into_bytes(),
        (None, Some(stem)) if path != Path::new("-") => stem.as_encoded_bytes().to_vec(),
        _ => b"Go program".to_vec(),
    }
}

/// Everything between a reader and a file.
struct GoVisitor<'a> {
    source: GoSource,
    sink: &'a mut Timeline,
    output: &'a OutputFile,
    /// Nothing else is on the timeline, so it may be on whatever clock this trace is on.
    single: bool,
}

impl GoVisitor<'_> {
    fn finish(mut self) -> Result<GoStats> {
        let fail = |error| self.output.failure(&error);
        self.source.finish(self.sink).map_err(fail)?;
        Ok(self.source.stats())
    }
}

impl Visitor for GoVisitor<'_> {
    fn begin(&mut self, clock: ClockDomain) {
        if self.single {
            self.sink.set_domain(clock);
        } else if clock != self.sink.domain() {
            eprintln!("triscope: a Go trace on the {clock} does not line up with other traces");
        }
    }

    fn event(&mut self, event: Event<'_>) -> Result {
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

/// What has been converted of a Go trace.
fn part(stats: &GoStats, reading: &go::Reading) -> Part {
    let seconds = match (stats.first, stats.last) {
        (Some(first), Some(last)) => last.nanos_since(first) as f64 / 1e9,
        _ => 0.0,
    };
    let what =
        format!("{} events of {seconds:.3} s, {} goroutines", stats.events, stats.goroutines);
    let notes = notes(&[
        (stats.experimental, "events of experiments are not shown"),
        (stats.samples_without_thread, "samples without a thread are shown as instants"),
        (reading.losses, "gaps"),
        (reading.missing_generations, "missing generations"),
        (reading.unresolved, "unresolved names or stacks"),
        (reading.dropped, "events without those before them left out"),
    ]);
    Part { what, notes }
}

/// Those that there are any of.
fn notes(counts: &[(u64, &str)]) -> String {
    let there = counts.iter().filter(|(count, _)| *count > 0);
    there.map(|(count, what)| format!("; {count} {what}")).collect()
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
