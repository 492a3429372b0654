//! `triscope record`: kernel, Go and .NET events of a command on one timeline.

mod discover;
mod dotnet;
mod keep;
mod lane;
mod sched;
mod subject;
mod tasks;

use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::progress::{Progress, Status};
use crate::run::port::Port;
use crate::run::procfs::is_in_container;
use crate::sources::go::{Recovery, Trace};
use crate::sources::kernel;
use crate::timeline::clock::Clock;
use crate::timeline::dotnet::draw_file;
use crate::timeline::{self, Timeline, Written, counted, now, read_clock, size};
use crossbeam_channel::tick;
use discover::GoTrace;
use keep::Keep;
use perf_monitor::{OpenErrorReason, RealtimeThread};
use sched::{Scheduler, ThreadExits};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use subject::Subject;
use tasks::Counts;
use trace_export::dotnet::DotnetOptions;
use trace_export::go::GoOptions;
use trace_export::{
    ClockDomain, CpuIntervals, DebugAnnotation, Name, Sink, Timestamp, Track, TrackEvent, Value,
};

/// Record a command or a running process on one Perfetto timeline
///
/// Each CPU track shows the threads of the command by name, and "other" for everything else. Each
/// thread of the command and of its children has its states, wake-ups, name and exit. --all-tasks
/// draws every thread of the machine by name. If the command writes a Go execution trace (Go 1.22
/// or later), its goroutines are on the same timeline and clock.
///
/// The recording ends with the command, whose exit status is that of triscope. Ctrl-C goes to the
/// command, and SIGTERM and SIGHUP are passed on to it. The second signal is passed on as SIGTERM,
/// the third one as SIGKILL. A running process is recorded until it exits, until Ctrl-C, or for
/// --seconds.
///
/// During the recording the timeline is in FILE.partial, which is written at least once a second.
/// If the recorder is killed or the disk is full, that file can be opened and lacks at most the
/// last second; Go and .NET events are added at the end and are not in it. If the recorder is
/// killed, the command continues.
///
/// Without --sched, --go-trace and --dotnet, it finds out by itself what can be recorded: the
/// scheduler; a Go trace that the program writes or serves by net/http/pprof on a loopback address;
/// .NET, if the program is a .NET host. What cannot be recorded is reported with the reason.
#[derive(Clone, clap::Args)]
#[command(after_help = "\
Examples:
  triscope record ./server
  triscope record --pid 1234 --seconds 10 --keep recording
  triscope record -o make.pftrace make -j2
  triscope record --go-trace trace.out --sched -o server.pftrace -- ./server -trace trace.out
  triscope record --sched --dotnet -o app.pftrace -- dotnet app.dll
  triscope record --sched --dotnet 1234 --seconds 10 -o app.pftrace
  triscope record --sched --go-trace trace.out --keep raw -o server.pftrace -- ./server
  sudo triscope record -o app.pftrace sudo -u $USER ./app     record as root, run as yourself

The scheduler needs root; or CAP_PERFMON (or kernel.perf_event_paranoid -1) and a tracefs that the
user may read: as root, mount -t tracefs nodev /sys/kernel/tracing -o gid=GROUP,mode=0750. Without
them, and while kernel.perf_event_paranoid is 2 or less, only on-CPU intervals of the command's own
threads are recorded. Events that did not fit in the kernel's buffers are marked on the timeline
and counted in the summary.")]
pub(crate) struct Args {
    /// Record the kernel's scheduler, and only what is named
    #[arg(long)]
    sched: bool,
    /// Draw every thread of the machine by name, not only those of the command
    #[arg(long)]
    all_tasks: bool,
    /// The Go execution trace written by the command
    #[arg(long, value_name = "FILE")]
    go_trace: Option<PathBuf>,
    /// Record the .NET runtimes of the command and of its children from startup (.NET Core 3.1: of
    /// the command only), or the runtime of process PID: managed stack samples, GCs, compilations,
    /// lock waits, exceptions
    #[arg(long, value_name = "PID", num_args = 0..=1)]
    dotnet: Option<Option<u32>>,
    /// Record a running process and its future children instead of a command
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// The timeline to write (.pftrace); with -, standard output, and the output of the command
    /// goes to standard error
    #[arg(short, long, value_name = "FILE", default_value = "timeline.pftrace")]
    output: PathBuf,
    /// Also keep the raw sources in DIR, for triscope report and triscope explain: the scheduler's
    /// records, the Go trace and .NET traces
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Show the timeline in the Perfetto UI: serve it once on a loopback port and print the address
    #[arg(long)]
    open: bool,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = crate::run::duration::duration)]
    seconds: Option<Duration>,
    /// Pages of each CPU's buffer, a power of two [default: 2048 (8 MiB), less if this user may
    /// lock less or the machine has little memory]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Read the kernel's buffers with the realtime priority N (SCHED_FIFO, 1 to 99), so that a busy
    /// machine loses no events; needs root or CAP_SYS_NICE
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u8).range(1..=99)
    )]
    realtime: Option<u8>,
    /// Show progress if standard error is not a terminal too, one line per second
    #[arg(long)]
    progress: bool,
    /// The command, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Do not print what can be done with the raw sources: they are not kept for long
    #[arg(long, hide = true)]
    is_part: bool,
    /// Whether the sources are found, as none was named.
    #[arg(skip)]
    is_found: bool,
}

/// Interval between reads of the kernel's buffers.
const ROUND: Duration = Duration::from_millis(10);

/// Flush interval of the output: a killed recorder loses less than a second.
const FLUSH: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &Args) -> Result {
    let args = &args.clone().completed();
    let inputs: Vec<PathBuf> = args.go_trace.iter().cloned().collect();
    let mut output = OutputFile::create(&args.output, &inputs)?;
    timeline::check_format(&args.output)?;
    let result = record(args, &mut output);
    match result {
        Ok((summary, outcome)) => {
            let name = output.name();
            let is_file = !output.is_stdout();
            output.complete()?;
            eprintln!("{}", OneLine(&format!("{name}: {summary}")));
            if is_file {
                timeline::print_next_step();
            }
            if let Some(dir) = args.keep.as_ref().filter(|_| !args.is_part) {
                let dir = dir.display().to_string();
                eprintln!("next: triscope report {0} --html {0}.html", OneLine(&dir));
            }
            if args.open && is_file {
                crate::run::serve::in_ui(&args.output)?;
            }
            outcome
        }
        Err(failure) => Err(match output.kept() {
            Some(kept) => failure.and(format_args!("{} has what was written", kept.display())),
            None => failure,
        }),
    }
}

impl Args {
    /// With .NET, if nothing is named and the subject has a .NET runtime.
    fn completed(mut self) -> Self {
        self.is_found = !self.sched && self.go_trace.is_none() && self.dotnet.is_none();
        if self.is_found {
            self.sched = true;
            self.dotnet = match self.pid {
                Some(pid) => discover::is_dotnet_process(pid).then_some(Some(pid)),
                None => discover::is_dotnet_command(&self.command).then_some(None),
            };
        }
        self
    }
}

/// Records and draws. Returns the summary and the outcome of the recording.
fn record(args: &Args, output: &mut OutputFile) -> Result<(String, Result)> {
    let running = subject::process(args)?;
    let mut go = args.is_found.then(|| match running {
        Some(pid) => GoTrace::of_process(pid, args.seconds),
        None => GoTrace::of_command(&args.command, args.seconds),
    });
    let has_others = args.dotnet.is_some() || go.as_mut().is_some_and(GoTrace::is_go);
    let scheduler = match args.sched.then(|| open_scheduler(args, running.is_some())) {
        Some(Err(failure)) if args.is_found && has_others => {
            failure.and("the scheduler is not recorded").print();
            None
        }
        opened => opened.transpose()?,
    };
    let keep = args.keep.as_deref().map(Keep::create).transpose()?;
    let (sink, written) = timeline::open(output, args.uncompressed)?;
    let mut recording =
        Recording::start(args, running, scheduler, go, keep, sink, written, output)?;
    recording.watch()?;
    recording.finish()
}

/// A recording in progress.
struct Recording<'a> {
    args: &'a Args,
    output: &'a OutputFile,
    sink: Timeline,
    written: Written,
    scheduler: Option<Scheduler>,
    keep: Option<Keep>,
    subject: Subject,
    runtimes: Option<dotnet::Recorder>,
    /// State of the Go trace before the command was started.
    earlier: Option<Version>,
    /// The Go trace, if it was not named.
    go: Option<GoTrace>,
    start: Instant,
}

impl<'a> Recording<'a> {
    /// Starts the command, or attaches to the running process.
    #[expect(clippy::too_many_arguments, reason = "the parts of a recording")]
    fn start(
        args: &'a Args,
        running: Option<u32>,
        mut scheduler: Option<Scheduler>,
        mut go: Option<GoTrace>,
        keep: Option<Keep>,
        mut sink: Timeline,
        written: Written,
        output: &'a OutputFile,
    ) -> Result<Self> {
        let fail = |error| output.failure(&error);
        sink.kernel(rustix::system::uname().release().to_bytes()).map_err(fail)?;
        snapshot(&mut sink).map_err(fail)?;
        let earlier = args.go_trace.as_deref().map(Version::of);
        if let Some(scheduler) = &mut scheduler {
            if args.dotnet.is_some() {
                scheduler.keep_intervals();
            }
            if let Some(keep) = &keep {
                let kept = scheduler.keep_raw(&keep.scheduler());
                if !kept.map_err(|error| error.into_failure(output))? {
                    let why = "--keep needs the scheduler's tracepoints: record as root";
                    if !args.is_found {
                        return Err(Failure::new(why));
                    }
                    Failure::new(why).print();
                }
            }
            scheduler.enable().map_err(kernel::failure)?;
        }
        let (subject, runtimes) = match running {
            Some(pid) => {
                let subject = Subject::attach(args, pid)?;
                if let Some(scheduler) = &mut scheduler {
                    scheduler.follow_running(pid);
                }
                (subject, args.dotnet.map(|_| dotnet::Recorder::of_process(pid)).transpose()?)
            }
            None => {
                let port = args.dotnet.map(|_| Port::bind()).transpose()?;
                let subject = Subject::start(args, port.as_ref(), output.is_stdout())?;
                if let Some(scheduler) = &mut scheduler {
                    scheduler.follow(subject.pid);
                }
                let runtimes = port.map(|port| dotnet::Recorder::of_command(port, subject.pid));
                (subject, runtimes)
            }
        };
        if let Some(go) = &mut go {
            go.set_pid(subject.pid);
        }
        if let Some(keep) = &keep {
            keep.describe(subject.pid, &subject.line())?;
        }
        output.keep();
        let start = Instant::now();
        Ok(Self {
            args,
            output,
            sink,
            written,
            scheduler,
            keep,
            subject,
            runtimes,
            earlier,
            go,
            start,
        })
    }

    /// Records until the end.
    fn watch(&mut self) -> Result {
        // The command was started before: it keeps its ordinary priority.
        let _realtime =
            self.args.realtime.map(RealtimeThread::begin).transpose().map_err(kernel::failure)?;
        let rounds = tick(ROUND);
        let mut flushed = Instant::now();
        let mut status = Status::new(self.args.progress);
        loop {
            let over = self.subject.watch.wait(&rounds)?;
            if let Some(scheduler) = &mut self.scheduler {
                scheduler.round(&mut self.sink).map_err(|e| e.into_failure(self.output))?;
            }
            if let Some(go) = &mut self.go {
                go.look();
            }
            if flushed.elapsed() >= FLUSH {
                self.sink.write_out().map_err(|e| self.output.failure(&e))?;
                flushed = Instant::now();
            }
            status.update(|_| self.status());
            if over {
                return Ok(());
            }
        }
    }

    /// Status of the recording so far.
    fn status(&self) -> String {
        let mut parts = Vec::new();
        if let Some(stats) = self.scheduler.as_ref().map(Scheduler::stats) {
            parts.push(switches(&stats));
            parts.push(format!("{} lost", stats.lost));
        }
        if let Some(runtimes) = &self.runtimes {
            parts.push(format!(".NET {}", size(runtimes.received())));
        }
        parts.push(format!("{} written", size(self.written.bytes.get())));
        parts.join(", ")
    }

    /// Draws the rest, and returns the summary and the outcome.
    fn finish(mut self) -> Result<(String, Result)> {
        let fail = |error| self.output.failure(&error);
        let end = now().map_err(Failure::new)?;
        let recorded = self.start.elapsed();
        let mut summary = Vec::new();
        // Requested data that is missing. The rest of the timeline is valid, and is written.
        let mut missing = Vec::new();
        let (exits, intervals) = match self.scheduler.take() {
            Some(scheduler) => {
                let (exits, intervals) = self.finish_scheduler(scheduler, &mut summary)?;
                (Some(exits), intervals.map(Arc::new))
            }
            None => (None, None),
        };
        draw_command(&self.subject, end, &mut self.sink).map_err(fail)?;
        if let Some(runtimes) = self.runtimes.take() {
            self.draw_runtimes(runtimes, intervals, &mut summary, &mut missing)?;
        }
        if let (Some(path), Some(earlier)) = (&self.args.go_trace, self.earlier.take()) {
            let drawn = if Version::of(path) == earlier {
                Err(Failure::about(path.display(), "the command did not write it"))
            } else {
                self.draw_go(path, &mut missing)
            };
            match drawn {
                Ok(text) => summary.push(text),
                Err(failure) => missing.push(("no goroutines", failure)),
            }
        }
        if let Some(go) = self.go.take() {
            let drawn = go.finish().and_then(|trace| {
                trace.map(|trace| self.draw_go(trace.path(), &mut missing)).transpose()
            });
            match drawn {
                Ok(text) => summary.extend(text),
                // It was not requested: the recording is complete without.
                Err(failure) => failure.and("goroutines are not recorded").print(),
            }
        }
        if let Some(exits) = exits {
            exits.draw(&mut self.sink).map_err(fail)?;
        }
        snapshot(&mut self.sink).map_err(fail)?;
        self.sink.finish().map_err(fail)?;
        summary.extend(missing.iter().map(|(what, _)| (*what).to_owned()));
        summary.push(size(self.written.bytes.get()));
        summary.extend(self.written.stall(recorded));
        for (_, failure) in &missing {
            failure.print();
        }
        let partial = if missing.is_empty() { Ok(()) } else { Err(Failure::Quiet(1)) };
        let outcome = self.subject.watch.outcome().and(partial);
        Ok((summary.join(", "), outcome))
    }

    fn finish_scheduler(
        &mut self,
        scheduler: Scheduler,
        summary: &mut Vec<String>,
    ) -> Result<(ThreadExits, Option<CpuIntervals>)> {
        let (stats, exits, intervals) =
            scheduler.finish(&mut self.sink).map_err(|e| e.into_failure(self.output))?;
        let Counts { threads, processes } = stats.command;
        summary.push(switches(&stats));
        let (threads, processes) = (threads as u64, processes as u64);
        summary.push(format!(
            "{} of {}",
            counted(threads, "thread"),
            counted(processes, "process")
        ));
        if stats.lost > 0 {
            summary.push(format!("{} lost: use more --pages", counted(stats.lost, "event")));
        }
        if stats.late > 0 {
            summary.push(format!("{} out of order", counted(stats.late, "event")));
        }
        if stats.undecodable > 0 {
            let count = counted(stats.undecodable, "event");
            summary.push(format!("{count} could not be decoded"));
        }
        Ok((exits, intervals))
    }

    fn draw_runtimes(
        &mut self,
        runtimes: dotnet::Recorder,
        intervals: Option<Arc<CpuIntervals>>,
        summary: &mut Vec<String>,
        missing: &mut Vec<(&'static str, Failure)>,
    ) -> Result {
        const PARTIAL: &str = "not all of .NET";
        let (recordings, mut failure) = runtimes.finish();
        if self.args.is_found && recordings.is_empty() {
            // It was not requested: the recording is complete without.
            failure.take().into_iter().for_each(|failure| failure.print());
        }
        for recording in recordings {
            if let Some(Err(failure)) =
                self.keep.as_ref().map(|keep| keep.dotnet(recording.pid, &recording.file))
            {
                missing.push(("a .NET trace is not kept", failure));
            }
            let mut options = DotnetOptions::default();
            options.process = self.subject.process_name(recording.pid).into_bytes();
            options.cpus.clone_from(&intervals);
            let name = format!(".NET process {}", recording.pid);
            let (part, result) =
                draw_file(&name, recording.file, options, &mut self.sink, self.output)?;
            summary.push(format!("{}{}", part.what, part.notes));
            missing.extend(recording.failure.or(result.err()).map(|f| (PARTIAL, f)));
        }
        missing.extend(failure.map(|failure| (PARTIAL, failure)));
        Ok(())
    }

    /// Draws the Go trace of the command on the timeline, keeps it if requested, and returns a
    /// summary of it.
    fn draw_go(
        &mut self,
        path: &Path,
        missing: &mut Vec<(&'static str, Failure)>,
    ) -> Result<String> {
        let mut options = GoOptions::default();
        options.pid = i32::try_from(self.subject.pid).unwrap_or(i32::MAX);
        options.process = self.subject.name().into_bytes();
        let trace = Trace::open(path, Progress::bytes())?;
        let recovery = Recovery::default();
        let (stats, reading) = timeline::go::draw(
            trace,
            recovery,
            options,
            Clock::Kernel,
            &mut self.sink,
            self.output,
        )?;
        let kept = self.keep.as_ref().map(|keep| keep.go(self.subject.pid, path));
        if let Some(Err(failure)) = kept {
            missing.push(("the Go trace is not kept", failure));
        }
        let mut text = counted(stats.goroutines, "goroutine");
        if let Some(error) = &reading.error {
            text.push_str(&format!(", the Go trace ends early: {error}"));
        }
        Ok(text)
    }
}

/// Summary of the scheduler events.
fn switches(stats: &sched::Stats) -> String {
    let mut text = counted(stats.switches, "context switch");
    if stats.gaps > 0 {
        let gaps = stats.gaps;
        text.push_str(&format!(" ({gaps} missing from the kernel's stream; states were repaired)"));
    }
    format!("{text}, {}", counted(stats.wakings, "wake-up"))
}

/// Opens the scheduler's events of the machine. Without that privilege, opens those of the command
/// only, and reports the restriction with a remedy.
fn open_scheduler(args: &Args, is_running: bool) -> Result<Scheduler> {
    let refused = if is_in_container() {
        "the kernel's tracepoints are not usable inside of a container (a PID namespace): they \
         identify threads by their numbers outside of it"
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
                "only on-CPU intervals of the command's own threads are recorded: {refused}"
            ))
            .print();
            Ok(scheduler)
        }
        Err(error) if matches!(error.reason(), Some(OpenErrorReason::Privilege { .. })) => {
            Err(Failure::new(refused))
        }
        Err(error) => Err(kernel::failure(error)),
    }
}

/// Identity of a file at a point in time; `None` if it did not exist.
#[derive(PartialEq, Eq)]
struct Version(Option<(u64, u64, i64, i64)>);

impl Version {
    fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(path).ok();
        Self(metadata.map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec())))
    }
}

/// Draws the subject as one slice: its name, duration and outcome.
fn draw_command(subject: &Subject, end: Timestamp, sink: &mut Timeline) -> std::io::Result<()> {
    let track = sink.track(&Track::custom(b"Command").description(b"What was recorded"))?;
    sink.begin(subject.begin, track, &TrackEvent::new(subject.line().as_bytes()))?;
    let ended = sink.text(b"ended with");
    let status = subject.end();
    let status = Value::Text(Name::Inline(status.as_bytes()));
    sink.end(end, track, &[DebugAnnotation::new(ended, status)])
}

/// Relates the clocks: scheduler events are drawn on `CLOCK_BOOTTIME`.
fn snapshot(sink: &mut Timeline) -> std::io::Result<()> {
    let clocks = [ClockDomain::Monotonic, ClockDomain::Boottime, ClockDomain::Realtime];
    let readings: std::io::Result<Vec<(ClockDomain, Timestamp)>> =
        clocks.into_iter().map(|clock| Ok((clock, read_clock(clock)?))).collect();
    sink.clock_snapshot(&readings?)
}
