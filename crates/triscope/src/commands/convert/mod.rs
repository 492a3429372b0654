//! `triscope convert`: converts traces of any kind to one timeline.

use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{Format, Input};
use crate::io::output_file::OutputFile;
use crate::io::per_file::{offsets, per_file};
use crate::io::progress::Progress;
use crate::run::stop::Listener;
use crate::sources::go::{Recovery, Trace};
use crate::sources::html;
use crate::sources::model::Traces;
use crate::timeline::clock::{Clock, Moved};
use crate::timeline::{self, Part, Timeline, dotnet, size};
use std::path::{Path, PathBuf};
use trace_common::ClockMap;
use trace_export::dotnet::DotnetOptions;
use trace_export::go::{GoOptions, unknown_process};
use trace_export::{ClockDomain, Sink, Timestamp};

/// Convert traces to a Perfetto timeline
///
/// Go traces become Ps, threads and goroutines with their states and stacks, GCs and
/// stop-the-world pauses, tasks, regions and logs, counters, CPU samples, and arrows from where a
/// goroutine is unblocked to where it runs. .NET traces become GCs and suspensions, compilations,
/// lock waits, exceptions, activities, counters, events of event sources, and managed stack
/// samples.
///
/// Traces of one machine share a clock, CLOCK_MONOTONIC, except for traces of Go 1.21 and older.
/// Clocks that cannot be related are an error.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope convert trace.out -o trace.pftrace
  triscope convert app.nettrace server.trace -o both.pftrace     on one clock
  curl -s http://localhost:6060/debug/pprof/trace?seconds=5 | triscope convert - -o trace.pftrace
  triscope convert --recover cut.out -o trace.pftrace            resume after damage
  triscope convert a.trace b.trace --name a.trace=client --name b.trace=server -o both.pftrace
  triscope convert app.nettrace old.trace --offset old.trace=12.5 -o both.pftrace

Open the output at https://ui.perfetto.dev (\"Open trace file\"): the page runs in the browser,
nothing is uploaded. There, w and s zoom, a and d move, f zooms to the selection, m marks it,
/ searches; a click shows the stack of a slice and its arrows. For SQL, load the file with
Perfetto's trace_processor_shell.

Input may be compressed with gzip or zstd. The output is written to FILE.partial and renamed when
it is complete. Of a damaged trace, the part before the damage is converted and the exit status
is 1.")]
pub(crate) struct Args {
    /// Go or .NET traces; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The timeline to write: .pftrace, or .html for a page that opens in any browser; - is standard
    /// output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Draw no arrows from where a goroutine is unblocked or created to where it runs
    #[arg(long)]
    no_arrows: bool,
    /// Process id of the program in a Go trace, which does not record it; with several traces
    /// FILE=PID
    #[arg(long, value_name = "[FILE=]PID")]
    pid: Vec<String>,
    /// Name of the program; with several traces FILE=NAME
    #[arg(long, value_name = "[FILE=]NAME")]
    name: Vec<String>,
    /// CLOCK_MONOTONIC time in seconds at which the clock of a trace shows 0; with several traces
    /// FILE=SECONDS
    #[arg(long, value_name = "[FILE=]SECONDS", allow_hyphen_values = true)]
    offset: Vec<String>,
    #[command(flatten)]
    recovery: Recovery,
}

pub(crate) fn run(args: &Args) -> Result {
    if args.output.extension().is_some_and(|extension| extension == "html") {
        return page(args)?;
    }
    // Report unreadable inputs before anything is written.
    let plans = plan(args)?;
    let mut inputs = Vec::new();
    for file in &args.files {
        let input = Input::open(file, Progress::bytes())?;
        check(&input, file)?;
        inputs.push(input);
    }
    let mut output = OutputFile::create(&args.output, &args.files)?;
    timeline::check_format(&args.output)?;
    let _listener = Listener::exit()?;
    let (mut sink, written) = timeline::open(&mut output, args.uncompressed)?;
    let single = inputs.len() == 1;
    let mut clocks = ClockMap::new();
    for plan in &plans {
        let shown = plan.offset.map(Timestamp::from_nanos);
        let timeline = ClockDomain::Monotonic;
        clocks.add(
            shown
                .map(|at| [(plan.domain, Timestamp::default()), (timeline, at)])
                .into_iter()
                .flatten(),
        );
    }
    let mut parts = Vec::new();
    let mut result = Ok(());
    for (plan, input) in plans.iter().zip(inputs) {
        let name = input.name.clone();
        let given = plan.offset.map(|_| plan.domain);
        let clock =
            if single && given.is_none() { Clock::Adopt } else { Clock::Related(&clocks, given) };
        let (part, outcome) = match input.format {
            Format::NetTrace => convert_dotnet(plan, input, clock, &mut sink, &output),
            _ => convert_go(args, plan, input, clock, &mut sink, &output),
        }?;
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

/// Writes a page, as `triscope report --html` does.
fn page(args: &Args) -> Result<Result> {
    let perfetto = [
        ("--uncompressed", args.uncompressed),
        ("--no-arrows", args.no_arrows),
        ("--pid", !args.pid.is_empty()),
        ("--name", !args.name.is_empty()),
        ("--offset", !args.offset.is_empty()),
        ("--recover and --limit", args.recovery.is_given()),
    ];
    if let Some((option, _)) = perfetto.iter().find(|(_, is_given)| *is_given) {
        let why = format!("not for a page: {option}");
        return Err(Failure::new(why).with_code(2));
    }
    html::write(&Traces::of(args.files.clone()), &args.output)
}

/// The options for one trace.
struct Plan<'a> {
    path: &'a Path,
    pid: Option<i32>,
    name: Option<&'a str>,
    /// In nanoseconds.
    offset: Option<i64>,
    /// The clock of the trace, if it has an offset.
    domain: ClockDomain,
}

fn plan(args: &Args) -> Result<Vec<Plan<'_>>> {
    let pids = per_file(&args.pid, "--pid", &args.files)?;
    let names = per_file(&args.name, "--name", &args.files)?;
    let offsets = offsets(&args.offset, &args.files)?;
    let usage = |message: String| Failure::new(message).with_code(2);
    let mut plans = Vec::new();
    for (index, path) in args.files.iter().enumerate() {
        let pid = pids[index].map(|text| match text.parse() {
            Ok(pid @ 1..) => Ok(pid),
            _ => Err(usage(format!("--pid: {text} is not a process identifier"))),
        });
        // If there are several traces, each Go trace gets its own process.
        let default = (args.files.len() > 1).then(|| unknown_process(index as u32 + 1));
        plans.push(Plan {
            path,
            pid: pid.transpose()?.or(default),
            name: names[index],
            offset: offsets[index],
            domain: ClockDomain::Local(index as u32 + 1),
        });
    }
    Ok(plans)
}

/// Rejects inputs that are not traces and lists the supported formats.
fn check(input: &Input, path: &Path) -> Result {
    let is_test = path.extension().is_some_and(|extension| extension == "test");
    match (input.format, input.format.description()) {
        (Format::Unknown, _) if !is_test => Err(input.failure(
            "is no trace of a known format: Go execution traces (runtime/trace, go test -trace, \
             /debug/pprof/trace) and .NET traces (NetTrace) can be converted",
        )),
        (Format::Pprof | Format::PerfData, Some(what)) => Err(input.failure(format_args!(
            "looks like {what}: Go execution traces and .NET traces can be converted"
        ))),
        _ => Ok(()),
    }
}

fn convert_go(
    args: &Args,
    plan: &Plan<'_>,
    input: Input,
    clock: Clock<'_>,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let mut options = GoOptions::default();
    options.process = process_name(plan);
    options.pid = plan.pid.unwrap_or(options.pid);
    options.wake_ups = !args.no_arrows;
    let trace = Trace::of(input, plan.path, Progress::bytes())?;
    let (stats, reading) = timeline::go::draw(trace, args.recovery, options, clock, sink, output)?;
    if let (None, Some(error)) = (stats.first, &reading.error) {
        let message = format!("nothing could be converted: {error}{}", args.recovery.hint());
        return Err(Failure::about(&reading.name, message));
    }
    Ok((timeline::go::part(&stats, &reading), reading.into_result()))
}

fn convert_dotnet(
    plan: &Plan<'_>,
    input: Input,
    clock: Clock<'_>,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let mut options = DotnetOptions::default();
    if let Some(name) = plan.name {
        options.process = name.as_bytes().to_vec();
    }
    let offset = clock.offset(&input.name, ClockDomain::Monotonic, sink.domain())?;
    dotnet::draw_input(input, plan.path, options, &mut Moved { sink, offset }, output)
}

/// The name of the program on the timeline: from the option, otherwise the file name of the trace.
fn process_name(plan: &Plan<'_>) -> Vec<u8> {
    match (plan.name, plan.path.file_stem()) {
        (Some(name), _) => name.as_bytes().to_vec(),
        (None, Some(stem)) if plan.path != Path::new("-") => stem.as_encoded_bytes().to_vec(),
        _ => b"Go program".to_vec(),
    }
}
