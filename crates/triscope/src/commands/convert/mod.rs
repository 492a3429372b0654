//! `triscope convert`: converts traces of any kind to one timeline.

use crate::answers::{html, profile};
use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::per_file::per_file;
use crate::io::profile_file::FirefoxFile;
use crate::run::stop::Listener;
use crate::sources::go::Recovery;
use crate::sources::model::{Opened, Program, Traces};
use crate::timeline::{self, Drawn, counted, draw_traces, notes, size, values_omitted};
use std::path::PathBuf;
use trace_export::profile::Format;
use trace_export::timeline::{TimelineOptions, TimelineSource, TimelineStats};
use trace_export::{ChromeSink, Sink};

/// Convert traces to a Perfetto timeline
///
/// Go traces become Ps, threads and goroutines with their states and stacks, GCs and
/// stop-the-world pauses, tasks, regions and logs, counters, CPU samples, and arrows from where a
/// goroutine is unblocked to where it runs. .NET traces become GCs and suspensions, compilations,
/// lock waits, exceptions, activities, counters, events of event sources, and managed stack
/// samples.
///
/// With recordings of the kernel's scheduler (perf.data with sched:sched_switch), all traces become
/// one timeline: CPUs and threads, and states of goroutines that also say whether the thread had a
/// CPU.
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
  triscope convert perf.data -o perf.svg                         a flame graph of perf record -g
  triscope convert perf.data --samples cycles -o perf.pb.gz      for go tool pprof
  triscope convert perf.data server.trace --by goroutine -o perf.svg
  triscope convert perf.data server.trace -o all.pftrace         the kernel's scheduler too:
    perf record -k CLOCK_MONOTONIC -a -e sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new

Open the output at https://ui.perfetto.dev (\"Open trace file\"): the page runs in the browser,
nothing is uploaded. There, w and s zoom, a and d move, f zooms to the selection, m marks it,
/ searches; a click shows the stack of a slice and its arrows. For SQL, load the file with
Perfetto's trace_processor_shell.

Input may be compressed with gzip or zstd. The output is written to FILE.partial and renamed when
it is complete. Of a damaged trace, the part before the damage is converted and the exit status
is 1.")]
pub(crate) struct Args {
    /// Go traces, .NET traces, perf.data recordings, or directories of them that `triscope record
    /// --keep` wrote; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The timeline to write: .pftrace, .json in Chrome's format, or .html for a page that opens in
    /// any browser; or a profile of its samples: .pb.gz (go tool pprof), .svg (a flame graph),
    /// .speedscope.json (speedscope.app), .json.gz (profiler.firefox.com) or .folded; - is standard
    /// output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Draw no arrows from where a goroutine is unblocked or created to where it runs
    #[arg(long)]
    no_arrows: bool,
    /// Process id of the program in a Go trace, which does not record it, or in a .NET trace of a container,
    /// which has that of its own PID namespace; with several traces FILE=PID
    #[arg(long, value_name = "[FILE=]PID")]
    pid: Vec<String>,
    /// Name of the program; with several traces FILE=NAME
    #[arg(long, value_name = "[FILE=]NAME")]
    name: Vec<String>,
    /// CLOCK_MONOTONIC time in seconds at which the clock of a trace shows 0; with several traces
    /// FILE=SECONDS
    #[arg(long, value_name = "[FILE=]SECONDS", allow_hyphen_values = true)]
    offset: Vec<String>,
    /// The samples of a profile: the name of a perf event, off-cpu, go-cpu, managed, cpu (of .NET) or
    /// allocations. Without it, those of which there are most. Not for .json.gz
    #[arg(long, value_name = "EVENT")]
    samples: Option<String>,
    /// Make these the outermost frames of the stacks of a profile
    #[arg(long, value_name = "KIND")]
    by: Option<By>,
    #[command(flatten)]
    recovery: Recovery,
}

/// Frames below those of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Goroutines of Go programs
    Goroutine,
}

pub(crate) fn run(args: &Args) -> Result {
    let is_profile = profile::is_wanted(&args.output);
    if !is_profile && (args.samples.is_some() || args.by.is_some()) {
        return Err(Failure::new("--samples and --by are for a profile").with_code(2));
    }
    let _listener = Listener::exit();
    if args.output.extension().is_some_and(|extension| extension == "html") {
        return page(args)?;
    }
    if is_profile {
        return samples(args)?;
    }
    // Report unreadable inputs before anything is written.
    let traces = traces(args)?;
    let mut opened = traces.open()?;
    let mut output = OutputFile::create(&args.output, &args.files)?;
    let is_json = args.output.extension().is_some_and(|extension| extension == "json");
    if !is_json {
        let mut others = vec![".json", ".html", FirefoxFile::ENDING];
        others.extend(Format::ENDINGS.iter().map(|(ending, _)| *ending));
        timeline::check_format(&args.output, &others)?;
    }
    let mut options = TimelineOptions::default();
    options.arrows = !args.no_arrows;
    if let Some(release) = &opened.kernel {
        options.set_kernel(release);
    }
    let mut source = TimelineSource::new(options);
    let mut wakings_omitted = 0;
    let Drawn { failures, bytes, values_omitted: values } = if is_json {
        let mut sink = ChromeSink::new(output.writer()?, opened.domain);
        let failures = draw_traces(&mut opened, &mut source, true, &mut sink, &output)?;
        sink.finish().map_err(|error| output.failure(&error))?;
        let stats = sink.stats();
        wakings_omitted = stats.wakings_omitted;
        Drawn { failures, bytes: stats.bytes, values_omitted: stats.values_omitted }
    } else {
        timeline::draw(&mut opened, &mut source, &mut output, args.uncompressed)?
    };
    if source.stats().first.is_none() {
        failures.iter().for_each(Failure::print);
        return Err(Failure::new(match failures.len() {
            0 => "the traces have no events",
            _ => "nothing could be converted",
        }));
    }
    let nothing_shown = opened.nothing_shown();
    if let Some(failure) = nothing_shown.as_ref().filter(|_| opened.len() == 1) {
        failures.iter().for_each(Failure::print);
        return Err(Failure::new(failure.message()));
    }
    let is_file = !output.is_stdout();
    let target = output.name();
    output.complete()?;
    let partial = if failures.is_empty() { "" } else { " (partial)" };
    let undecodable = notes(&[(
        opened.undecodable_samples(),
        "sample could not be decoded",
        "samples could not be decoded",
    )]);
    let omitted =
        notes(&[(wakings_omitted, "wake-up omitted", "wake-ups omitted"), values_omitted(values)]);
    let sum = format!("{}{undecodable}{omitted}", summary(&source.stats()));
    print_summary(&opened, &source.stats(), &format!("{target}{partial}"), &size(bytes), &sum);
    opened.unrelated.iter().for_each(|note| message!("{}", OneLine(note)));
    opened.print_warnings();
    if is_file && nothing_shown.is_none() {
        timeline::print_next_step();
    }
    failures.iter().for_each(Failure::print);
    match nothing_shown {
        Some(failure) => Err(failure),
        None if failures.is_empty() => Ok(()),
        None => Err(Failure::Quiet(1)),
    }
}

/// The traces, with the names and process ids of their programs.
fn traces(args: &Args) -> Result<Traces> {
    let files = Traces::of(args.files.clone()).files()?;
    let pids = per_file(&args.pid, "--pid", &files)?;
    let names = per_file(&args.name, "--name", &files)?;
    let usage = |message: String| Failure::new(message).with_code(2);
    /// The most of a `pid_t`.
    const MAX_PID: u32 = i32::MAX as u32;
    let mut programs = Vec::new();
    for (pid, name) in pids.into_iter().zip(names) {
        let pid = pid.map(|text| match text.parse() {
            Ok(pid @ 1..=MAX_PID) => Ok(pid),
            _ => Err(usage(format!("--pid: {text} is not a process id"))),
        });
        let name = name.map(str::to_owned);
        programs.push(Program { pid: pid.transpose()?, name, ..Program::default() });
    }
    Ok(Traces::with(args.files.clone(), args.offset.clone(), args.recovery, programs))
}

/// Prints what is on the timeline: in one line for one trace.
fn print_summary(opened: &Opened, stats: &TimelineStats, target: &str, size: &str, sum: &str) {
    match &opened.summaries(stats)[..] {
        [(_, only)] if opened.len() == 1 => {
            let (what, rest) = only.split_at(only.find(';').unwrap_or(only.len()));
            message!("{}", OneLine(&format!("{target}: {what}, {size}{rest}{sum}")));
        }
        all => {
            for (name, what) in all {
                message!("{}", OneLine(&format!("{name}: {what}")));
            }
            message!("{}", OneLine(&format!("{target}: {size}{sum}")));
        }
    }
}

/// The numbers of what is drawn, and of what is not.
fn summary(stats: &TimelineStats) -> String {
    let mut text = String::new();
    for (count, what) in [(stats.switches, "context switch"), (stats.wakings, "wake-up")] {
        if count > 0 {
            text.push_str(&format!(", {}", counted(count, what)));
        }
    }
    text.push_str(&notes(&[
        (stats.losses, "loss marked", "losses marked"),
        (
            stats.goroutines_without_lane,
            "goroutine without a lane shown in a counter",
            "goroutines without a lane shown in counters",
        ),
        (stats.spans_without_lane, "span without a lane", "spans without a lane"),
        (stats.instants_without_lane, "instant without a lane", "instants without a lane"),
        (stats.without_cpu, "switch on an unknown CPU", "switches on unknown CPUs"),
        (
            stats.samples_without_thread,
            "sample without a thread shown as an instant",
            "samples without a thread shown as instants",
        ),
    ]));
    text
}

/// Writes a page, as `triscope report --html` does.
fn page(args: &Args) -> Result<Result> {
    let perfetto = [("--uncompressed", args.uncompressed), ("--no-arrows", args.no_arrows)];
    if let Some((option, _)) = perfetto.iter().find(|(_, is_given)| *is_given) {
        let why = format!("not for a page: {option}");
        return Err(Failure::new(why).with_code(2));
    }
    html::write(&traces(args)?, &args.output)
}

/// Writes the samples of the traces as a profile.
fn samples(args: &Args) -> Result<Result> {
    let of_timelines = [("--uncompressed", args.uncompressed), ("--no-arrows", args.no_arrows)];
    if let Some((option, _)) = of_timelines.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::new(format!("not for a profile: {option}")).with_code(2));
    }
    profile::write(
        &traces(args)?.with_lines(),
        &args.output,
        args.samples.as_deref(),
        args.by.is_some(),
    )
}
