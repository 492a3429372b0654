//! `triscope convert`: a trace of any kind to one that a viewer draws.

use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{Format, Input};
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use crate::run::stop::Listener;
use crate::sources::go::{Recovery, Trace};
use crate::timeline::go::OtherClock;
use crate::timeline::{self, Part, Timeline, dotnet, size};
use std::path::{Path, PathBuf};
use trace_export::Sink;
use trace_export::dotnet::DotnetOptions;
use trace_export::go::GoOptions;

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

pub(crate) fn run(args: &Args) -> Result {
    // Who is not there is told before anything is written.
    let mut inputs = Vec::new();
    for file in &args.files {
        inputs.push((file, Input::open(file, Progress::bytes())?));
    }
    let mut output = OutputFile::create(&args.output, &args.files)?;
    let _listener = Listener::exit()?;
    let (mut sink, written) = timeline::open(&mut output, args.uncompressed)?;
    let single = inputs.len() == 1;
    let mut parts = Vec::new();
    let mut result = Ok(());
    for (path, input) in inputs {
        let name = input.name.clone();
        let (part, outcome) = match input.format {
            Format::NetTrace => convert_dotnet(args, input, path, &mut sink, &output)?,
            _ => convert_go(args, input, path, single, &mut sink, &output)?,
        };
        parts.push((name, part, outcome.is_err()));
        result = result.and(outcome);
    }
    sink.finish().map_err(|e| output.failure(&e))?;
    let (target, is_file) = (output.name(), !output.is_stdout());
    output.complete()?;
    let size = size(written.bytes.get());
    for (name, Part { what, notes }, partial) in &parts {
        let label = if single { &target } else { name };
        let partial = if *partial { " (partial)" } else { "" };
        let size = if single { format!(", {size}") } else { String::new() };
        eprintln!("{}", OneLine(&format!("{label}{partial}: {what}{size}{notes}")));
    }
    if !single {
        eprintln!("{}", OneLine(&format!("{target}: {size}")));
    }
    if is_file {
        timeline::print_next_step();
    }
    result
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
    let trace = Trace::of(input, path, Progress::bytes())?;
    let other_clock = if single { OtherClock::Adopt } else { OtherClock::Warn };
    let (stats, reading) =
        timeline::go::draw(trace, args.recovery, options, other_clock, sink, output)?;
    if let (None, Some(error)) = (stats.first, &reading.error) {
        let hint = if args.recovery.wanted() { "" } else { "; --recover goes on behind damage" };
        let message = format!("nothing could be converted: {error}{hint}");
        return Err(Failure::about(&reading.name, message));
    }
    Ok((timeline::go::part(&stats, &reading), reading.into_result()))
}

fn convert_dotnet(
    args: &Args,
    input: Input,
    path: &Path,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let mut options = DotnetOptions::default();
    if let Some(name) = &args.name {
        options.process = name.clone().into_bytes();
    }
    dotnet::draw_input(input, path, options, sink, output)
}

/// What the program is called on the timeline: as the trace, unless told otherwise.
fn process_name(args: &Args, path: &Path) -> Vec<u8> {
    match (&args.name, path.file_stem()) {
        (Some(name), _) => name.clone().into_bytes(),
        (None, Some(stem)) if path != Path::new("-") => stem.as_encoded_bytes().to_vec(),
        _ => b"Go program".to_vec(),
    }
}
