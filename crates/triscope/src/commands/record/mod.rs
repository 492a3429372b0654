//! `triscope record`: a command on one timeline, as the kernel and its runtime saw it.

mod dotnet;
mod lane;
mod sched;
mod subject;
mod tasks;

use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use crate::run::port::Port;
use crate::sources::go::{Recovery, Trace};
use crate::sources::kernel;
use crate::timeline::dotnet::draw_file;
use crate::timeline::go::OtherClock;
use crate::timeline::{self, Timeline};
use perf_monitor::OpenErrorReason;
use sched::Scheduler;
use std::path::{Path, PathBuf};
use std::time::Duration;
use subject::Subject;
use tasks::Counts;
use trace_export::dotnet::DotnetOptions;
use trace_export::go::GoOptions;
use trace_export::{ClockDomain, DebugAnnotation, Name, Sink, Timestamp, Track, TrackEvent, Value};

/// Run a command, or watch a process, and make a timeline, to be opened in the Perfetto UI
/// (ui.perfetto.dev)
///
/// Every CPU is drawn with the threads of the command by their names, and with "other" where
/// something else ran; every thread of the command, and of what it starts, with its states,
/// wake-ups, name and end. With --all-tasks every thread of the machine is drawn by its name. If
/// the command writes a Go execution trace (Go 1.22 or newer), its goroutines are on the same
/// timeline, by the same clock.
///
/// The recording ends when the command does. Ctrl-C goes to the command, and SIGTERM and SIGHUP
/// are passed on to it; a second signal becomes SIGTERM, a third one SIGKILL. The timeline is
/// complete in any case, and the exit code is the command's. A process that runs already is recorded
/// until it ends, until Ctrl-C, or for --seconds.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope record -o make.pftrace make -j2
  triscope record --go-trace trace.out --sched -o server.pftrace -- ./server -trace trace.out
  triscope record --sched --dotnet -o app.pftrace -- dotnet app.dll
  triscope record --sched --dotnet 1234 --seconds 10 -o app.pftrace
  sudo triscope record -o app.pftrace sudo -u $USER ./app     root records, the user runs

The scheduler needs root; or CAP_PERFMON (or kernel.perf_event_paranoid -1) and a tracefs that the
user may read: as root, mount -t tracefs nodev /sys/kernel/tracing -o gid=GROUP,mode=0750. Without
that, and while kernel.perf_event_paranoid is 2 or less, it is recorded when the command's own
threads have a CPU, but no wake-ups and nothing of what else ran. What did not fit in the kernel's
buffers is marked on the timeline and told at the end.")]
pub(crate) struct Args {
    /// Record the kernel's scheduler; this is the default without --go-trace and --dotnet
    #[arg(long)]
    sched: bool,
    /// Draw every thread of the machine by its name, not only those of the command
    #[arg(long)]
    all_tasks: bool,
    /// The Go execution trace that the command writes
    #[arg(long, value_name = "FILE")]
    go_trace: Option<PathBuf>,
    /// Record the .NET runtimes of the command and of what it starts, from their first moment
    /// (.NET Core 3.1: of the command alone), or the one of the process PID: CPU samples with
    /// managed stacks, collections, compilations, lock waits, exceptions
    #[arg(long, value_name = "PID", num_args = 0..=1)]
    dotnet: Option<Option<u32>>,
    /// Record a process that runs, with what it starts from now on, instead of a command
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// The timeline to write; - is standard output, and what the command writes there goes to
    /// standard error then
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Stop after so many seconds: a command gets SIGTERM then
    #[arg(long, value_name = "SECONDS", value_parser = crate::run::duration::seconds)]
    seconds: Option<Duration>,
    /// Pages of each CPU's buffer, a power of two [default: 1024, or what this user may have]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// The command, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How often the kernel's buffers are read.
const ROUND: Duration = Duration::from_millis(10);

pub(crate) fn run(args: &Args) -> Result {
    let inputs: Vec<PathBuf> = args.go_trace.iter().cloned().collect();
    let output = OutputFile::create(&args.output, &inputs)?;
    let running = subject::process(args)?;
    let mut scheduler = if args.sched || args.go_trace.is_none() && args.dotnet.is_none() {
        Some(open_scheduler(args, running.is_some())?)
    } else {
        None
    };
    let (mut sink, written) = timeline::open(&output, args.uncompressed)?;
    let fail = |error| output.failure(&error);
    sink.kernel(rustix::system::uname().release().to_bytes()).map_err(fail)?;
    snapshot(&mut sink).map_err(fail)?;

    let earlier = args.go_trace.as_deref().map(Version::of);
    if let Some(scheduler) = &mut scheduler {
        scheduler.enable().map_err(kernel::failure)?;
    }
    let (mut subject, runtimes) = match running {
        Some(pid) => {
            let subject = Subject::attach(args, pid, output.remover())?;
            if let Some(scheduler) = &mut scheduler {
                scheduler.follow_running(pid);
            }
            (subject, args.dotnet.map(|_| dotnet::Recorder::of_process(pid)).transpose()?)
        }
        None => {
            let port = args.dotnet.map(|_| Port::bind()).transpose()?;
            let remove_output = output.remover();
            let remove_port = port.as_ref().map(Port::remover);
            let clean_up = move || {
                remove_output();
                if let Some(remove_port) = &remove_port {
                    remove_port();
                }
            };
            let subject = Subject::start(args, port.as_ref(), output.is_stdout(), clean_up)?;
            if let Some(scheduler) = &mut scheduler {
                scheduler.follow(subject.pid);
            }
            let runtimes = port.map(|port| dotnet::Recorder::of_command(port, subject.pid));
            (subject, runtimes)
        }
    };
    loop {
        let over = subject.is_over()?;
        if let Some(scheduler) = &mut scheduler {
            scheduler.round(&mut sink).map_err(|e| e.into_failure(&output))?;
        }
        if over {
            break;
        }
    }
    let end = now();

    let mut summary = Vec::new();
    // What was asked for and is not there. The rest of the timeline is good, and is written.
    let mut missing = Vec::new();
    let mut exits = None;
    if let Some(scheduler) = scheduler {
        let (stats, ends) = scheduler.finish(&mut sink).map_err(|e| e.into_failure(&output))?;
        exits = Some(ends);
        let Counts { threads, processes } = stats.command;
        summary.push(format!("{} switches, {} wake-ups", stats.switches, stats.wakings));
        summary.push(format!("{threads} threads of {processes} processes"));
        if stats.lost > 0 {
            summary.push(format!("{} events lost: use more --pages", stats.lost));
        }
        if stats.gaps > 0 {
            summary.push(format!("{} gaps in the kernel's records", stats.gaps));
        }
        if stats.late > 0 {
            summary.push(format!("{} events out of order", stats.late));
        }
    }
    draw_command(&subject, end, &mut sink).map_err(fail)?;
    if let Some(runtimes) = runtimes {
        let (recordings, failure) = runtimes.finish();
        for recording in recordings {
            let mut options = DotnetOptions::default();
            options.process = process_name(&subject, recording.pid).into_bytes();
            let name = format!(".NET process {}", recording.pid);
            let drawn = draw_file(&name, recording.file, options, &mut sink, &output)?;
            summary.push(format!("{}{}", drawn.0.what, drawn.0.notes));
            missing.extend(recording.failure.or(drawn.1.err()).map(|f| ("not all of .NET", f)));
        }
        missing.extend(failure.map(|failure| ("not all of .NET", failure)));
    }
    if let (Some(path), Some(earlier)) = (&args.go_trace, &earlier) {
        let mut options = GoOptions::default();
        options.pid = i32::try_from(subject.pid).unwrap_or(i32::MAX);
        options.process = subject.name().into_bytes();
        let drawn = if Version::of(path) == *earlier {
            Err(Failure::about(path.display(), "the command did not write it"))
        } else {
            draw_go(path, options, &mut sink, &output)
        };
        match drawn {
            Ok(text) => summary.push(text),
            Err(failure) => missing.push(("no goroutines", failure)),
        }
    }
    if let Some(exits) = exits {
        exits.draw(&mut sink).map_err(fail)?;
    }
    snapshot(&mut sink).map_err(fail)?;
    sink.finish().map_err(fail)?;
    drop(sink.into_inner());
    output.complete()?;
    let target =
        if output.is_stdout() { "standard output" } else { &*args.output.to_string_lossy() };
    summary.extend(missing.iter().map(|(what, _)| (*what).to_owned()));
    summary.push(timeline::size(written.get()));
    for (_, failure) in &missing {
        failure.tell();
    }
    eprintln!("{}", OneLine(&format!("{target}: {}", summary.join(", "))));
    subject.outcome()?;
    if missing.is_empty() { Ok(()) } else { Err(Failure::Quiet(1)) }
}

/// Opens the scheduler's events: those of the machine, or else of the command alone, which takes no
/// privilege; that it is less is told, with what would help.
fn open_scheduler(args: &Args, is_running: bool) -> Result<Scheduler> {
    let refused = if is_in_container() {
        "from inside of a container (a PID namespace) the kernel's tracepoints cannot be \
         understood: they tell threads by their numbers outside of it"
            .to_owned()
    } else {
        match Scheduler::open(args.pages, args.all_tasks) {
            Ok(scheduler) => return Ok(scheduler),
            Err(error) if kernel::is_privilege(&error) => error.to_string(),
            Err(error) => return Err(kernel::failure(error)),
        }
    };
    if args.all_tasks || is_running {
        return Err(Failure::new(refused));
    }
    match Scheduler::open_own(args.pages) {
        Ok(scheduler) => {
            Failure::new(format_args!(
                "only the command itself is recorded, without wake-ups and what else ran: {refused}"
            ))
            .tell();
            Ok(scheduler)
        }
        Err(error) if matches!(error.reason(), Some(OpenErrorReason::Privilege { .. })) => {
            Err(Failure::new(refused))
        }
        Err(error) => Err(kernel::failure(error)),
    }
}

/// Whether this is another PID namespace than the first.
fn is_in_container() -> bool {
    // The number of the first one: PROC_PID_INIT_INO in linux/proc_ns.h.
    const FIRST: &str = "pid:[4026531836]";
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != FIRST)
}

/// What a file was at some time; nothing if it was not there.
#[derive(PartialEq, Eq)]
struct Version(Option<(u64, u64, i64, i64)>);

impl Version {
    fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(path).ok();
        Self(metadata.map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec())))
    }
}

/// Draws the subject as a whole: what it was, from when to when, and how it ended.
fn draw_command(subject: &Subject, end: Timestamp, sink: &mut Timeline) -> std::io::Result<()> {
    let track = sink.track(&Track::custom(b"Command").description(b"What was recorded"))?;
    sink.begin(subject.begin, track, &TrackEvent::new(subject.line().as_bytes()))?;
    let ended = sink.text(b"ended with");
    let status = subject.end();
    let status = Value::Text(Name::Inline(status.as_bytes()));
    sink.end(end, track, &[DebugAnnotation { name: ended, value: status }])
}

/// Puts the Go trace of the command on the timeline, and says what was in it.
fn draw_go(
    path: &Path,
    options: GoOptions,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<String> {
    let trace = Trace::open(path, Progress::bytes())?;
    let (stats, reading) =
        timeline::go::draw(trace, Recovery::default(), options, OtherClock::Refuse, sink, output)?;
    let mut text = format!("{} goroutines", stats.goroutines);
    if let Some(error) = &reading.error {
        text.push_str(&format!(", the Go trace ends early: {error}"));
    }
    Ok(text)
}

/// What a process is called: the subject by its program, what it has started by its number.
fn process_name(subject: &Subject, pid: u32) -> String {
    if pid == subject.pid { subject.name() } else { format!("{} ({pid})", subject.name()) }
}

fn now() -> Timestamp {
    perf_monitor::now(ClockDomain::Monotonic).unwrap_or_default()
}

/// Relates the clocks: events of the scheduler are drawn by `CLOCK_BOOTTIME`.
fn snapshot(sink: &mut Timeline) -> std::io::Result<()> {
    let clocks = [ClockDomain::Monotonic, ClockDomain::Boottime, ClockDomain::Realtime];
    let readings: Vec<(ClockDomain, Timestamp)> =
        clocks.into_iter().filter_map(|clock| Some((clock, perf_monitor::now(clock)?))).collect();
    sink.clock_snapshot(&readings)
}
