//! `triscope profile`.

mod call_graph;
mod capture;
mod open;
mod servers;
mod stacks;
mod timeline;
mod wakers;

use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::io::profile_file::{FirefoxFile, ProfileFile};
use crate::io::recording::Recording;
use crate::run::duration::duration;
use crate::run::sample_rate;
use crate::run::serve::{self, Viewer};
use crate::run::stop::Beginning;
use crate::run::target::{self, Target};
use crate::sources::goroutines::Goroutines;
use crate::sources::kernel::sampling::Opened;
use crate::sources::kernel::{self, failure, sampling};
use crate::sources::live::LiveSamples;
use crate::sources::runtimes::Runtimes;
use crate::timeline::{counted, notes, size};
use call_graph::CallGraph;
use perf_monitor::{Event, Software};
use stacks::{Output, Stacks};
use std::path::PathBuf;
use std::time::Duration;

/// Sample the call stacks of a command, of processes or of the machine
///
/// Without --off-cpu, --wall or -e, threads are sampled while they run: by CPU cycles, or by a CPU
/// clock on machines that do not count cycles. The stacks go to a flame graph, to the formats of
/// pprof, speedscope and the Firefox Profiler, to a timeline, or to a perf.data file.
///
/// Stacks are found by frame pointers: programs and libraries that are compiled without them (gcc
/// without -fno-omit-frame-pointer) have incomplete stacks. Go programs have them. --call-graph dwarf
/// finds the stacks of all code, and costs more.
///
/// At the end, the numbers of samples and of lost ones are printed on standard error. The exit status
/// is that of COMMAND.
#[derive(clap::Args)]
#[command(group = target::required(), after_help = concat!("\
Examples:
  triscope profile -o cpu.svg ./program               a flame graph: open it in a browser
  triscope profile -o cpu.pb.gz -p 1234 --seconds 10  go tool pprof -http=: cpu.pb.gz
  triscope profile --off-cpu -o wait.svg ./program    where it waits, and for how long
  triscope profile --off-cpu --wakers -o wakers.svg ./program  and who ended each wait
  triscope profile --wall -o wall.speedscope.json -a --seconds 5
  triscope profile -e page-faults -o faults.folded ./program
  triscope profile --by goroutine -o cpu.svg -p 1234  of a Go program

Recording your own processes needs no privilege while kernel.perf_event_paranoid is 2 or less;
above 1 stacks have no kernel part. --off-cpu and --wall need 1 or less, because a thread leaves
the CPU in the kernel.
", target::privileges!()))]
pub(crate) struct Args {
    /// The profile, by its name: .svg (a flame graph), .pb.gz (go tool pprof), .speedscope.json
    /// (speedscope.app), .json.gz (profiler.firefox.com), .folded; .pftrace or .html (a timeline);
    /// .data (perf report, perf script)
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Show the profile in the viewer of its format: profiler.firefox.com, speedscope.app,
    /// ui.perfetto.dev, or the browser itself. The sites read it from a loopback port, once
    #[arg(long)]
    open: bool,
    /// Samples per second of CPU time
    #[arg(short = 'F', long, value_name = "HERTZ", default_value_t = sample_rate::USUAL,
          value_parser = clap::value_parser!(u64).range(1..))]
    freq: u64,
    /// The time that threads are away from the CPU, by the stack where they left it
    #[arg(long, conflicts_with_all = ["wall", "event"])]
    off_cpu: bool,
    /// The time of threads on and off the CPU, in one profile
    #[arg(long, conflicts_with = "event")]
    wall: bool,
    /// With --off-cpu or --wall: the thread that ended each wait. Its stack is above that of the wait,
    /// with the innermost frame first, and its name is a label. Wakers of other processes, and
    /// interrupts, are recorded with -a only. Needs kernel.perf_event_paranoid -1, root or CAP_PERFMON, and a
    /// tracefs that this user may read
    #[arg(long)]
    wakers: bool,
    /// How callers in user space are found: fp (frame pointers), fp,defer (the same on the return to user
    /// space, once for all samples since: Linux 6.19), dwarf or dwarf,BYTES (the descriptions of the
    /// compiler, from BYTES of the stack in each sample, by default 8192), or lbr (the last branch records
    /// of an Intel CPU)
    #[arg(long, value_name = "HOW", default_value = "fp")]
    call_graph: CallGraph,
    /// Sample this event. Tracepoints and probes are sampled at each occurrence
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// A sample every N events
    #[arg(short, long, value_name = "N", requires = "event", conflicts_with = "freq",
          value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Label the samples of Go programs with their goroutine, its entry function and its pprof labels:
    /// they are read from the memory of the programs while they run (Go 1.21 to 1.27)
    #[arg(long)]
    goroutines: bool,
    /// Make these the outermost frames
    #[arg(long, value_name = "KIND")]
    by: Option<By>,
    /// Pages of each CPU's buffer, a power of two [default: 1024, or the maximum for this user]
    #[arg(short = 'm', long = "mmap-pages", value_name = "PAGES")]
    pages: Option<usize>,
    /// With -a or -C: only the tasks of these cgroups, separated by commas (a path, or a name in the
    /// mounted hierarchy)
    #[arg(short = 'G', long, value_name = "CGROUP", value_delimiter = ',')]
    cgroup: Vec<String>,
    /// Do not ask .NET runtimes for the names and lines of their methods
    #[arg(long)]
    no_dotnet: bool,
    /// Leave out frames of the .NET runtime's stubs
    #[arg(long, conflicts_with = "no_dotnet")]
    fold_stubs: bool,
    /// Ask the servers of DEBUGINFOD_URLS for debug information that is not on this machine: they learn
    /// the build ids of the program and its libraries. Only http:// URLs
    #[arg(long)]
    debuginfod: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// Print the progress every second, also without a terminal
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    target: Target,
}

/// Frames below those of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Goroutines of Go programs, with --goroutines
    Goroutine,
}

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Threads that run.
    OnCpu,
    /// Threads that leave the CPU.
    OffCpu,
    /// Both.
    Wall,
    /// The event of `-e`.
    Event,
}

impl Args {
    const fn mode(&self) -> Mode {
        match (self.off_cpu, self.wall, self.event.is_some()) {
            (true, ..) => Mode::OffCpu,
            (_, true, _) => Mode::Wall,
            (.., true) => Mode::Event,
            _ => Mode::OnCpu,
        }
    }

    const fn has_goroutines(&self) -> bool {
        self.goroutines || self.by.is_some()
    }

    /// Whether mappings of data are recorded: perf reads the unwind tables of a recording through them.
    fn records_data(&self) -> bool {
        let is_recording = self.output.extension().is_some_and(|extension| extension == "data");
        is_recording && matches!(self.call_graph, CallGraph::Dwarf { .. })
    }

    /// Whether context switches are sampled.
    const fn has_switches(&self) -> bool {
        matches!(self.mode(), Mode::OffCpu | Mode::Wall)
    }

    /// The event that is sampled beside context switches.
    fn sampled(&self) -> Result<Option<Event>> {
        let event = match (self.mode(), &self.event) {
            (Mode::OffCpu, _) => return Ok(None),
            // Its unit is that of the time off the CPU.
            (Mode::Wall, _) => Ok(Event::software(Software::CpuClock)),
            (_, Some(text)) => kernel::event(text),
            (_, None) => kernel::usual_event(),
        };
        event.map(Some).map_err(failure)
    }
}

/// The kind of the output.
enum Kind {
    Profile(Output),
    Timeline,
    Recording,
}

impl Kind {
    fn of(args: &Args) -> Result<Self> {
        if let Some(file) = FirefoxFile::of(&args.output)? {
            return Ok(Self::Profile(Output::Firefox(file)));
        }
        let extension = args.output.extension().and_then(|extension| extension.to_str());
        Ok(match extension {
            Some("data") => OutputFile::check(&args.output).map(|()| Self::Recording)?,
            // The recording is written beside it first.
            Some("pftrace" | "html") => OutputFile::check(&args.output).map(|()| Self::Timeline)?,
            _ => {
                let file = ProfileFile::of(&args.output)
                    .map_err(|failure| failure.and("or .json.gz, .pftrace, .html and .data"))?;
                OutputFile::check(&args.output)?;
                Self::Profile(Output::Profile(file))
            }
        })
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let kind = Kind::of(args)?;
    if !args.cgroup.is_empty() && !args.target.is_system_wide() {
        return Err(Failure::new("--cgroup samples on CPUs: it needs -a or -C").with_code(2));
    }
    if args.has_goroutines() && !matches!(kind, Kind::Profile(_)) {
        let what = "goroutines are read for profiles: use .pb.gz, .svg, .folded, .speedscope.json or \
                    .json.gz";
        return Err(Failure::new(what).with_code(2));
    }
    if args.wakers && !args.has_switches() {
        return Err(Failure::new("--wakers is of waits: it needs --off-cpu or --wall").with_code(2));
    }
    sample_rate::check(args.freq)?;
    let servers = args.debuginfod.then(servers::of_environment).transpose()?;
    let waking = args.wakers.then(wakers::event).transpose()?;
    if args.debuginfod && !matches!(kind, Kind::Profile(_)) {
        let what = "--debuginfod is for profiles: timelines and .data have no lines";
        return Err(Failure::new(what).with_code(2));
    }
    if args.fold_stubs && !matches!(kind, Kind::Profile(_)) {
        let what = "--fold-stubs is for profiles: timelines and .data have all frames";
        return Err(Failure::new(what).with_code(2));
    }
    let viewer = args.open.then(|| Viewer::of(&args.output)).transpose()?;
    let event = args.sampled()?;
    args.call_graph.check(event.as_ref(), args.has_switches(), args.has_goroutines())?;
    let mut opened = open::open(args, event.as_ref(), waking.as_ref())?;
    sampling::describe(event.iter().chain(&waking), &mut opened.features)?;
    let beginning = Beginning::start()?;
    let outcome = match kind {
        Kind::Profile(output) => {
            // Samples every N events have the time that these take.
            let interval = args.count.is_none().then(|| sample_rate::interval(args.freq));
            let is_wall = args.mode() == Mode::Wall;
            let is_system_wide = args.target.is_system_wide();
            let mut runtimes = (!args.no_dotnet).then(|| Runtimes::new(is_system_wide));
            let goroutines =
                args.has_goroutines().then(|| Goroutines::new(args.by.is_some())).transpose()?;
            let samples = LiveSamples::new(&mut opened, args.wakers, goroutines)?;
            let mut stacks = Stacks::new(samples, output, is_wall, args.wakers, interval);
            let runtimes_of = runtimes.as_mut();
            let ran = capture::run(args, &mut opened, &mut stacks, runtimes_of, None, &beginning)?;
            let remark = remark(args, &opened, &ran, &stacks.notes());
            stacks.covers(ran.span);
            stacks.write(&title(args), &remark, runtimes, args.fold_stubs, servers.clone())?;
            servers.iter().for_each(servers::report);
            ran.watch.outcome()
        }
        Kind::Recording => {
            let mut output = OutputFile::recording(&args.output, &[])?;
            let (bytes, ran) = record(args, &mut opened, &mut output, &beginning)?;
            let name = output.name();
            output.complete()?;
            let samples = counted(ran.stats.rings.samples, "sample");
            let remark = remark(args, &opened, &ran, "");
            message!("{name}: {samples}{remark}, {}", size(bytes));
            ran.watch.outcome()
        }
        Kind::Timeline => {
            let spool = timeline::spool(&args.output);
            let mut output = OutputFile::recording(&spool, &[])?;
            let (_, ran) = record(args, &mut opened, &mut output, &beginning)?;
            output.complete()?;
            let samples = counted(ran.stats.rings.samples, "sample");
            // Also of a recording that cannot be converted.
            message!("triscope: {samples}{}", remark(args, &opened, &ran, ""));
            let written = timeline::write(&spool, &args.output)?;
            ran.watch.outcome().and(written)
        }
    };
    if let Some(viewer) = viewer {
        serve::open(viewer, &args.output)?;
    }
    outcome
}

/// Writes a recording. Returns the bytes of its records.
fn record(
    args: &Args,
    opened: &mut Opened,
    output: &mut OutputFile,
    beginning: &Beginning,
) -> Result<(u64, capture::Ran)> {
    let (events, features) = (opened.events.clone(), std::mem::take(&mut opened.features));
    let mut recording = Recording::start(output, events, features)?;
    let ran = capture::run(args, opened, &mut recording, None, Some(&*output), beginning)?;
    let with_kept = |failure| output.with_kept(failure);
    for (id, lost) in &ran.losses {
        recording.lost(*id, *lost).map_err(with_kept)?;
    }
    Ok((recording.finish().map_err(with_kept)?, ran))
}

/// The command, the processes or the machine.
fn title(args: &Args) -> String {
    match &args.target {
        _ if !args.cgroup.is_empty() => args.cgroup.join(", "),
        target if target.is_system_wide() => "all CPUs".to_owned(),
        Target { command, .. } if !command.is_empty() => command_line(command),
        target => target.in_words(),
    }
}

/// A command, without the directory of its program.
fn command_line(words: &[String]) -> String {
    let [program, arguments @ ..] = words else { return String::new() };
    let name = program.rsplit('/').next().unwrap_or_default();
    [&[name.to_owned()], arguments].concat().join(" ")
}

/// What is said of a profile beside the number of its samples.
fn remark(args: &Args, opened: &Opened, ran: &capture::Ran, others: &str) -> String {
    let mut text = match args.mode() {
        Mode::OffCpu => " of the time off the CPU".to_owned(),
        Mode::Wall => " of the time on and off the CPU".to_owned(),
        _ => format!(" of {}", open::sampled_name(opened)),
    };
    if opened.user_only {
        text.push_str(" in user space only (kernel.perf_event_paranoid)");
    }
    let rings = &ran.stats.rings;
    text.push_str(&format!(", {} lost", rings.lost));
    // `-m` is not the size of the buffers of records about tasks and mappings.
    if rings.lost > ran.stats.sideband_lost {
        text.push_str(" (use more -m, or a lower -F)");
    }
    text.push_str(&notes(&[
        (rings.lost_samples, "lost by the hardware", "lost by the hardware"),
        (rings.throttled, "time throttled: use a lower -F", "times throttled: use a lower -F"),
        (
            rings.unknown_ids + ran.stats.undecodable,
            "record that is not understood was left out",
            "records that are not understood were left out",
        ),
    ]));
    text.push_str(others);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_have_all_arguments() {
        let line = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            command_line(&words)
        };
        assert_eq!(line(&["/usr/bin/sort", "-o", "/tmp/x", "/tmp/y"]), "sort -o /tmp/x /tmp/y");
        assert_eq!(line(&["sh", "-c", "./a/b on; ./c"]), "sh -c ./a/b on; ./c");
        assert_eq!(line(&[]), "");
    }
}
