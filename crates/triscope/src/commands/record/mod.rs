//! `triscope record`: kernel, Go and .NET events of a command on one timeline.

mod dataset;
mod drawing;
mod events;
mod execs;
mod go_recorder;
mod go_traces;
mod keep;
mod members;
mod page;
mod quota;
mod raw;
mod related;
mod samples;
mod steal;
mod subject;

use crate::failure::{Failure, ForShell, OneLine, Result};
use crate::io::new_directory::NewDirectory;
use crate::io::output_file::OutputFile;
use crate::io::progress::Status;
use crate::io::regular;
use crate::io::skeleton::Skeleton;
use crate::io::unnamed::descriptor;
use crate::message;
use crate::run::family::Family;
use crate::run::port::{Port, Startup};
use crate::run::procfs::is_in_container;
use crate::run::sample_rate;
use crate::run::serve::{self, Viewer};
use crate::run::stop::Beginning;
use crate::run::target::Process;
use crate::run::{cleanup, programs, runtimes, time_namespace};
use crate::sources::go::Recovery;
use crate::sources::kernel::{self, remedy::is_missing};
use crate::sources::model::{Opened, Program, Traces};
use crate::timeline::{
    self, Timeline, Written, counted, draw_samples, draw_traces, notes, read_clock, size,
};
use crossbeam_channel::tick;
use diag_ipc::TracingConfig;
use drawing::{Drawn, ThreadExits};
use events::{Sampled, Scheduler};
use go_recorder::GoRecorder;
use go_traces::{GoTrace, Wanted as WantedGo};
use keep::{Keep, KeptFile, files_dir};
use perf_monitor::{NiceThread, RealtimeThread};
use quota::Quotas;
use related::{Clocks, Related, Sources};
use samples::Wanted;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use steal::Steal;
use subject::Subject;
use trace_export::timeline::{TimelineOptions, TimelineSource, TimelineStats};
use trace_export::{
    Category, ClockDomain, CpuIntervals, DebugAnnotation, Name, PerfettoSink, Sink, Timestamp,
    Track, TrackEvent, Value,
};
use trace_timeline::text;

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
/// With a Go or .NET runtime, the layers are related: each state of a goroutine says whether its
/// thread had a CPU and, if not, which thread had it. For that, the timeline is written a second time
/// at the end, of the kernel's records, with every thread of the machine by name.
///
/// During the recording the timeline is in FILE.partial, which is written at least once a second.
/// If the recorder is killed or the disk is full, that file can be opened and lacks at most the
/// last second; Go and .NET events are added at the end and are not in it. The command continues in
/// both cases.
///
/// Without --sched, --go-trace and --dotnet, all sources that are found are recorded: the
/// scheduler; Go traces that the command or its children write or serve by net/http/pprof on a
/// loopback address; the .NET runtimes of the command and of its children. What cannot be recorded
/// is reported with the reason.
#[derive(Clone, clap::Args)]
#[command(after_help = "\
Examples:
  triscope record ./server
  triscope record --pid 1234 --seconds 10 --keep recording
  triscope record -o make.pftrace make -j2
  triscope record -o make.html make -j2           one page for any browser
  triscope record --dataset dataset make -j2      also tables for triscope sql
  triscope record --go-trace trace.out --sched -o server.pftrace -- ./server -trace trace.out
  triscope record --sched --dotnet -o app.pftrace -- dotnet app.dll
  triscope record --sched --dotnet 1234 --seconds 10 -o app.pftrace
  triscope record --sched --go-trace trace.out --keep raw -o server.pftrace -- ./server
  sudo triscope record -o app.pftrace sudo -u $USER ./app     record as root, run as yourself

The scheduler needs root, or CAP_PERFMON (or kernel.perf_event_paranoid -1; at level 3 and above
CAP_SYS_ADMIN) and a tracefs that the user may read. As root, for the users of GROUP:
  mount -o remount,gid=GROUP,mode=0750 /sys/kernel/tracing
Without them, and while kernel.perf_event_paranoid is 2 or less, only on-CPU intervals of the
command's own threads are recorded; --all-tasks, --off-cpu and --pid of a process without a runtime
are errors.

Events that did not fit in the kernel's buffers are marked on the timeline and counted in the
summary.")]
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
    /// Record the .NET runtimes of the command and of its children, suspended at startup until their
    /// sessions have begun (.NET 5 or later), or the runtime of process PID: managed stack samples,
    /// GCs, compilations, lock waits, exceptions
    #[arg(long, value_name = "PID", num_args = 0..=1)]
    dotnet: Option<Option<u32>>,
    /// Also record these .NET event sources, separated by commas, as dotnet collect does:
    /// `NAME[:KEYWORDS[:LEVEL[:ARGUMENTS]]]` with KEYWORDS in hexadecimal
    #[arg(long, value_name = "LIST")]
    provider: Vec<String>,
    /// Sample the stacks of threads that run, HERTZ times per second and CPU: kernel and user space,
    /// by frame pointers. Implies --sched
    #[arg(
        short = 'F',
        long,
        value_name = "HERTZ",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    freq: Option<u64>,
    /// Record the stack of each thread that leaves the CPU, and that of its waker. Implies --sched
    #[arg(long)]
    off_cpu: bool,
    #[command(flatten)]
    process: Process,
    /// The timeline to write: .pftrace, or .html for a page that opens in any browser, which is
    /// written at the end; with -, standard output, and the output of the command goes to standard
    /// error
    #[arg(short, long, value_name = "FILE", default_value = "timeline.pftrace")]
    output: PathBuf,
    /// Also keep the raw sources in DIR, for triscope report and triscope explain: the kernel's
    /// records, readings of CPU quotas, Go traces and .NET traces, and the command lines of all
    /// processes, which can have secrets
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Also add the recording to the dataset in DIR, for SQL: at its end, as triscope export does. The
    /// raw sources are in DIR until then, unless --keep names a directory
    #[arg(long, value_name = "DIR")]
    dataset: Option<PathBuf>,
    /// Show the timeline in the Perfetto UI: serve it once on a loopback port and print the address.
    /// An .html page is opened in the browser
    #[arg(long)]
    open: bool,
    /// Do not compress the output: for tools that read the format themselves
    #[arg(long)]
    uncompressed: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS",
          value_parser = crate::run::duration::duration)]
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
    /// Print the progress every second, also without a terminal
    #[arg(long)]
    progress: bool,
    /// The command, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Do not print the next step: the caller does
    #[arg(long, hide = true)]
    is_part: bool,
    /// Whether the sources are found, as none was named.
    #[arg(skip)]
    is_found: bool,
}

/// Interval between reads of the kernel's buffers.
const ROUND: Duration = Duration::from_millis(10);

/// Interval between looks at the recorded processes: the usual period of CPU quotas.
const LOOK: Duration = Duration::from_millis(100);

/// Flush interval of the output: a killed recorder loses less than a second.
const FLUSH: Duration = Duration::from_millis(500);

/// Chunks that wait for the disk: 8 MiB, the events of seconds.
const QUEUE: usize = 32;

pub(crate) fn run(args: &Args) -> Result {
    message::begin();
    let beginning = Beginning::start()?;
    let args = args.clone().completed();
    let deviation = time_namespace::deviation(args.running());
    let args = &args.with_clock(deviation)?;
    match &args.dataset {
        Some(dataset) => dataset::run(args, dataset, &beginning),
        None => run_one(args, &beginning),
    }
}

/// Records, and writes the timeline or page.
fn run_one(args: &Args, beginning: &Beginning) -> Result {
    if page::is_wanted(args) {
        return page::run(args, beginning);
    }
    let inputs: Vec<PathBuf> = args.go_trace.iter().chain(&args.keep).cloned().collect();
    let mut output = OutputFile::create(&args.output, &inputs)?;
    timeline::check_format(&args.output, &[".html"])?;
    let result = record(args, &mut output, beginning);
    match result {
        Ok((summary, outcome)) => {
            let name = output.name();
            let is_file = !output.is_stdout();
            output.complete()?;
            message!("{}", OneLine(&format!("{name}: {summary}")));
            if args.open && is_file {
                serve::open(Viewer::Perfetto, &args.output)?;
            } else if !args.is_part {
                print_next_step(is_file.then_some(timeline::NEXT_STEP), args.keep.as_deref());
            }
            outcome
        }
        Err(failure) => Err(output.with_kept(failure)),
    }
}

/// Prints the next step in one line: how to open the output, and what can be done with the directory of
/// `--keep`, if something was kept.
fn print_next_step(open: Option<&str>, keep: Option<&Path>) {
    let is_kept = |dir: &&Path| Traces::of(vec![dir.to_path_buf()]).files().is_ok();
    let report = keep.filter(is_kept).map(|dir| {
        let page = format!("{}.html", dir.display());
        OneLine(&page_command(dir, page.as_ref())).to_string()
    });
    match (open, report) {
        (Some(open), Some(report)) => message!("next: {report}; or {open}"),
        (Some(open), None) => message!("{open}"),
        (None, Some(report)) => message!("next: {report}"),
        (None, None) => {}
    }
}

/// The message about a recording after a step that has failed or was interrupted: `command` repeats it.
fn kept(recording: &Path, command: &str) -> String {
    let text = format!("the recording is kept in {}: {command}", recording.display());
    format!("triscope: {}", OneLine(&text))
}

/// The command that writes the page of a recording.
fn page_command(recording: &Path, page: &Path) -> String {
    format!("triscope report {} --html {}", ForShell(recording), ForShell(page))
}

impl Args {
    /// Whether a runtime can be recorded.
    const fn can_have_runtime(&self) -> bool {
        self.is_found || self.go_trace.is_some() || self.dotnet.is_some()
    }

    const fn sampled(&self) -> Wanted {
        Wanted { freq: self.freq, off_cpu: self.off_cpu }
    }

    /// Whether something is recorded where the scheduler cannot be opened: nothing was asked for that only it has, and
    /// the subject has a runtime.
    fn can_lack_scheduler(&self, running: Option<u32>) -> bool {
        let is_asked_for = !self.is_found || self.all_tasks || self.sampled().is_any();
        let is_go = || match running {
            Some(pid) => programs::is_go_process(pid),
            None => programs::is_go_command(&self.command),
        };
        !is_asked_for && (self.dotnet.is_some() || is_go())
    }

    /// With .NET, if nothing is named and the subject has a .NET runtime.
    fn completed(mut self) -> Self {
        self.is_found = !self.sched && self.go_trace.is_none() && self.dotnet.is_none();
        if self.is_found {
            self.sched = true;
            self.dotnet = match self.process.id() {
                Some(pid) => programs::is_dotnet_process(pid).then_some(Some(pid)),
                None => programs::is_dotnet_command(&self.command).then_some(None),
            };
        }
        self.sched |= self.sampled().is_any();
        self
    }

    /// The process that is named; `None` for a command.
    fn running(&self) -> Option<u32> {
        self.process.id().or(self.dotnet.flatten())
    }

    /// Without runtimes if the clock of their traces is not that of the kernel's records, which is an error if they
    /// were requested.
    fn with_clock(mut self, deviation: Option<String>) -> Result<Self> {
        let Some(why) = deviation.filter(|_| self.can_have_runtime()) else { return Ok(self) };
        let subject = self.running().map_or("the command".into(), |pid| format!("process {pid}"));
        let failure = Failure::about(subject, why);
        if !self.is_found {
            return Err(failure.and("Go and .NET runtimes cannot be recorded with it"));
        }
        failure.and("Go and .NET runtimes are not recorded").print();
        (self.is_found, self.dotnet) = (false, None);
        Ok(self)
    }
}

/// Records and draws. Returns the summary and the outcome of the recording.
fn record(args: &Args, output: &mut OutputFile, beginning: &Beginning) -> Result<(String, Result)> {
    args.freq.map_or(Ok(()), sample_rate::check)?;
    kernel::check_realtime(args.realtime)?;
    let running = subject::process(args)?;
    let others = runtimes::providers(&args.provider)?;
    if !others.is_empty() && args.dotnet.is_none() && !args.is_found {
        return Err(Failure::new("--provider is for .NET runtimes: add --dotnet").with_code(2));
    }
    let config = runtimes::timeline(&others);
    let go = match (&args.go_trace, running) {
        (Some(trace), _) => Some(WantedGo::of_named(trace)),
        (None, _) if !args.is_found => None,
        (None, Some(pid)) => Some(WantedGo::of_process(pid, args.seconds)),
        (None, None) => Some(WantedGo::of_command(&args.command, args.seconds)),
    };
    // Before the events of the command are opened: the port starts a process.
    let port = match (running, args.dotnet.is_some(), args.is_found) {
        (Some(_), ..) | (None, false, false) => None,
        (None, true, _) => Some(Port::bind(Startup::Suspended)?),
        // A process of a program that is unknown must not wait for anything.
        (None, false, true) => match Port::bind(Startup::Running) {
            Ok(port) => Some(port),
            Err(failure) => {
                failure.and(".NET runtimes of the command are not recorded").print();
                None
            }
        },
    };
    let scheduler = match args.sched.then(|| open_scheduler(args, running.is_some())) {
        Some(Err(failure)) if args.can_lack_scheduler(running) => {
            failure.and("the scheduler is not recorded").print();
            None
        }
        opened => opened.transpose()?,
    };
    let _created = args.keep.as_deref().map(NewDirectory::at);
    let (keep, skeleton) = match &args.keep {
        Some(dir) => {
            let ((keep, skeleton), guard) = cleanup::create(|| {
                let (keep, skeleton) = Keep::create(dir)?;
                let files = skeleton.clone();
                Ok(((keep, skeleton), move || files.clone().remove()))
            })?;
            beginning.keep(guard);
            (Some(keep), Some(skeleton))
        }
        None if scheduler.is_some() && args.can_have_runtime() && related::is_possible(args) => {
            (Some(Keep::beside(&args.output)), None)
        }
        None => (None, None),
    };
    // The thread that compresses has its nice value, the command that is started later has not.
    let nice = prefer();
    let opened = timeline::open_with_queue(output, args.uncompressed, QUEUE);
    drop(nice);
    let started = opened.and_then(|(sink, written)| {
        Recording::start(
            args, running, port, config, scheduler, go, keep, sink, written, output, beginning,
        )
    });
    if started.is_err() {
        // The same directory can be named again.
        skeleton.into_iter().for_each(Skeleton::remove);
    }
    let mut recording = started?;
    match recording.watch() {
        Ok(()) => recording.finish(),
        Err(failure) => recording.fail(failure),
    }
}

/// Prefers this thread to others of ordinary priority, as far as this user may: a reader that does not
/// get a CPU loses events.
fn prefer() -> Option<NiceThread> {
    /// Nine times the weight of a nice value of 0.
    const NICE: i32 = -10;
    NiceThread::begin(NICE).ok()
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
    /// The recorded processes, where the scheduler is not recorded.
    family: Family,
    /// CPU quotas, with the scheduler.
    quotas: Option<Quotas>,
    steal: Steal,
    runtimes: Option<runtimes::Recorder>,
    /// State of the Go trace before the command was started.
    earlier: Option<Version>,
    /// The Go traces, or the process of the one that was named.
    go: Option<GoRecorder>,
    start: Instant,
    /// The clocks at the start.
    clocks: Clocks,
    ending: Ending,
}

/// The trace of a runtime that was recorded.
struct RuntimeTrace {
    program: Program,
    origin: Origin,
}

enum Origin {
    /// The Go trace that was named. The process can put another file in its place.
    Named(File),
    Go(GoTrace),
    Dotnet(runtimes::Recording),
}

impl RuntimeTrace {
    fn path(&self) -> PathBuf {
        match &self.origin {
            Origin::Named(file) => descriptor(file),
            Origin::Go(trace) => trace.path(),
            Origin::Dotnet(recording) => descriptor(&recording.file),
        }
    }
}

/// What is said of the end of a recording.
#[derive(Default)]
struct Summary {
    texts: Vec<String>,
    /// Requested data that is missing. The rest of the timeline is valid, and is written.
    missing: Vec<(&'static str, Failure)>,
}

impl Summary {
    fn lacks(&mut self, what: &'static str, failure: impl IntoIterator<Item = Failure>) {
        self.missing.extend(failure.into_iter().map(|failure| (what, failure)));
    }
}

/// What is missing of the timeline.
const NOT_ALL_DRAWN: &str = "not all is drawn";

/// What is missing of a .NET trace.
const NOT_ALL_OF_DOTNET: &str = "not all of .NET";

/// The end of a command by the time limit.
#[derive(PartialEq)]
enum Ending {
    Not,
    /// The traces that its processes serve are requested to end, so that they are complete.
    Asked,
    Terminated,
}

impl<'a> Recording<'a> {
    /// Starts the command, or attaches to the running process.
    #[expect(clippy::too_many_arguments, reason = "the parts of a recording")]
    fn start(
        args: &'a Args,
        running: Option<u32>,
        port: Option<Port>,
        config: TracingConfig,
        mut scheduler: Option<Scheduler>,
        go: Option<WantedGo>,
        mut keep: Option<Keep>,
        mut sink: Timeline,
        written: Written,
        output: &'a OutputFile,
        beginning: &Beginning,
    ) -> Result<Self> {
        let fail = |error| output.failure(&error);
        sink.kernel(rustix::system::uname().release().to_bytes()).map_err(fail)?;
        let clocks = clocks().map_err(fail)?;
        sink.clock_snapshot(&clocks).map_err(fail)?;
        let earlier = args.go_trace.as_deref().map(Version::of);
        if let Some(scheduler) = &mut scheduler {
            if args.dotnet.is_some() {
                scheduler.keep_intervals();
            }
            let followed = running.map_or(Ok(()), |pid| scheduler.follow_running(pid));
            followed.map_err(|error| error.into_failure(output))?;
            if let Some(keep) = &mut keep {
                let kept = scheduler.keep_raw(beginning.create(|| keep.scheduler())?);
                kept.map_err(|error| error.into_failure(output))?;
            }
            scheduler.enable().map_err(|error| error.into_failure(output))?;
            if scheduler.has_samples() {
                let started = scheduler.start_samples(KeptFile::of_samples(&args.output)?, running);
                started.map_err(|error| error.into_failure(output))?;
            }
            if let Some(keep) = &mut keep {
                let kept = scheduler.keep_processes(beginning.create(|| keep.processes())?);
                kept.map_err(|error| error.into_failure(output))?;
            }
        }
        let quotas = || scheduler.as_ref().map(|_| Quotas::new(keep.as_mut())).transpose();
        let quotas = beginning.create(quotas)?;
        let mut subject = match running {
            Some(pid) => Subject::attach(args, pid, beginning)?,
            None => Subject::start(args, port.as_ref(), output.is_stdout(), beginning)?,
        };
        let begin = || -> Result<Option<runtimes::Recorder>> {
            if let Some(scheduler) = &mut scheduler {
                let followed = match running {
                    Some(pid) => scheduler.follow_running(pid),
                    None => scheduler.follow(subject.pid),
                };
                followed.map_err(|error| error.into_failure(output))?;
            }
            if let Some(keep) = &keep {
                keep.describe(subject.pid, &subject.line(), None)?;
            }
            let (dir, in_dir) = (files_dir(&args.output), runtimes::Recorder::of_family_in);
            Ok(match (running, args.dotnet) {
                (None, _) => port.map(|port| in_dir(dir, Some(port), config)),
                (Some(_), _) if args.is_found => Some(in_dir(dir, None, config)),
                (Some(pid), Some(_)) => Some(runtimes::Recorder::of_process(dir, pid, config)?),
                (Some(_), None) => None,
            })
        };
        let runtimes = match begin() {
            Ok(runtimes) => runtimes,
            Err(failure) => {
                // Nothing is recorded.
                drop((scheduler, go, sink));
                subject.watch.limit(args.seconds);
                return subject.watch.see_out(Err(failure));
            }
        };
        let go = go.and_then(|mut wanted| {
            wanted.set_pid(subject.pid);
            let started = GoRecorder::start(wanted, files_dir(&args.output));
            started.map_err(|failure| failure.and(NO_GO).print()).ok()
        });
        output.keep();
        let start = Instant::now();
        let family = Family::new(subject.pid);
        Ok(Self {
            args,
            output,
            sink,
            written,
            scheduler,
            keep,
            subject,
            family,
            quotas,
            steal: Steal::start(),
            runtimes,
            earlier,
            go,
            start,
            clocks,
            ending: Ending::Not,
        })
    }

    /// Looks at the recorded processes.
    fn look(&mut self) -> Result {
        let processes = match &self.scheduler {
            Some(scheduler) => scheduler.processes(),
            None => self.family.look(),
        };
        if let Some(quotas) = &mut self.quotas {
            quotas.look(&processes, &mut self.sink, self.output)?;
        }
        if let Some(runtimes) = &self.runtimes {
            runtimes.look(&processes);
        }
        if let Some(go) = self.go.as_mut().filter(|_| self.ending == Ending::Not) {
            go.look(&processes);
        }
        Ok(())
    }

    /// Records until the end.
    fn watch(&mut self) -> Result {
        // The command was started before: it keeps its ordinary priority.
        let _nice = prefer();
        let _realtime =
            self.args.realtime.map(RealtimeThread::begin).transpose().map_err(kernel::failure)?;
        let rounds = tick(ROUND);
        let (mut flushed, mut looked) = (Instant::now(), Instant::now());
        let mut status = Status::new(self.args.progress);
        self.look()?;
        loop {
            let over = self.subject.watch.wait(&rounds)?;
            if let Some(scheduler) = &mut self.scheduler {
                scheduler.round(&mut self.sink).map_err(|e| e.into_failure(self.output))?;
            }
            if looked.elapsed() >= LOOK {
                self.look()?;
                looked = Instant::now();
            }
            self.end_at_limit();
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

    /// Ends a command at the time limit.
    fn end_at_limit(&mut self) {
        let Some(limit) = self.args.seconds else { return };
        match self.ending {
            Ending::Not if self.start.elapsed() >= limit => {
                self.go.iter().for_each(GoRecorder::stop);
                self.ending = Ending::Asked;
            }
            // A download that does not end has a time limit.
            Ending::Asked if self.go.as_ref().is_none_or(GoRecorder::are_complete) => {
                self.subject.watch.terminate();
                self.ending = Ending::Terminated;
            }
            _ => {}
        }
    }

    /// Status of the recording so far.
    fn status(&self) -> String {
        let mut parts = Vec::new();
        if let Some(stats) = self.scheduler.as_ref().map(Scheduler::stats) {
            parts.push(switches(&stats.drawn));
            parts.push(format!("{} lost", stats.drawn.lost));
        }
        if let Some(runtimes) = &self.runtimes {
            parts.extend(
                Some(runtimes.received()).filter(|n| *n > 0).map(|n| format!(".NET {}", size(n))),
            );
        }
        parts.push(format!("{} written", size(self.written.bytes.get())));
        parts.join(", ")
    }

    /// Ends a recording that has failed, but not the command.
    fn fail<T>(mut self, failure: Failure) -> Result<T> {
        // Nothing more is recorded, and the output has all that could be written.
        let mut summary = Summary::default();
        let is_kept = self.keep.as_ref().is_some_and(Keep::is_named);
        if let Some(scheduler) = self.scheduler.take().filter(|_| is_kept) {
            if let Err(error) = scheduler.finish_raw() {
                let failure = error.into_failure(self.output);
                failure.and("the kernel's records are not complete").print();
            }
        }
        self.quotas = None;
        if is_kept {
            self.dotnet_traces(&mut summary);
            self.go.iter().for_each(GoRecorder::stop);
        }
        drop((self.runtimes.take(), self.go.take_if(|_| !is_kept)));
        self.sink = PerfettoSink::new(Box::new(std::io::sink()), ClockDomain::Monotonic);
        if self.ending != Ending::Terminated {
            let left = |limit: Duration| limit.saturating_sub(self.start.elapsed());
            self.subject.watch.limit(self.args.seconds.map(left));
        }
        let failed = self.subject.watch.see_out(Err(self.output.with_kept(failure)));
        // The command writes them until its end.
        if is_kept {
            self.go_traces(&mut summary);
        }
        summary.missing.iter().for_each(|(_, failure)| failure.print());
        failed
    }

    /// Draws the rest, and returns the summary and the outcome.
    fn finish(mut self) -> Result<(String, Result)> {
        let fail = |error| self.output.failure(&error);
        let end = clocks().map_err(Failure::new)?;
        let (recorded, steal) = (self.start.elapsed(), self.steal.nanos());
        let mut summary = Summary::default();
        let scheduler = self.scheduler.take();
        let finished = scheduler.map(|scheduler| self.finish_scheduler(scheduler, &mut summary));
        let quotas = self.quotas.take();
        let throttled = quotas.map(|quotas| quotas.finish(&mut self.sink, self.output));
        // They are kept also if the timeline cannot be written.
        let mut traces = self.dotnet_traces(&mut summary);
        traces.extend(self.go_traces(&mut summary));
        let (exits, intervals) = finished.transpose()?.unzip();
        let intervals = intervals.flatten().map(Arc::new);
        if let Some(throttled) = throttled.transpose()? {
            summary.texts.extend(throttled);
            self.report_steal(steal, &mut summary);
        }
        let (bytes, omitted) = match self.relate(&traces, exits.is_some(), &end, &mut summary) {
            Some(related) => {
                for (trace, file) in traces.iter().zip(related.first..) {
                    self.describe(trace, &related.opened, file, &related.stats, &mut summary);
                }
                let written = (related.bytes, related.values_omitted);
                drop(self.sink);
                related.replace(self.output.target())?;
                written
            }
            None => {
                let at = monotonic(&end);
                draw_command(&self.subject, at, &mut self.sink).map_err(fail)?;
                for trace in &traces {
                    self.draw_trace(trace, intervals.as_ref(), &mut summary)?;
                }
                if let Some(exits) = exits {
                    exits.draw(&mut self.sink).map_err(fail)?;
                }
                self.sink.clock_snapshot(&end).map_err(fail)?;
                self.sink.finish().map_err(fail)?;
                (self.written.bytes.get(), self.sink.stats().values_omitted)
            }
        };
        let Summary { mut texts, missing } = summary;
        texts.extend(missing.iter().map(|(what, _)| (*what).to_owned()));
        if !page::is_wanted(self.args) {
            texts.push(size(bytes));
            let omitted = notes(&[timeline::values_omitted(omitted)]);
            texts.extend(omitted.strip_prefix("; ").map(str::to_owned));
        }
        texts.extend(self.written.stall(recorded));
        for (_, failure) in &missing {
            failure.print();
        }
        let partial = if missing.is_empty() { Ok(()) } else { Err(Failure::Quiet(1)) };
        let outcome = self.subject.watch.outcome().and(partial);
        Ok((texts.join(", "), outcome))
    }

    /// Keeps the steal time, for reports.
    fn report_steal(&self, nanos: u64, summary: &mut Summary) {
        let (subject, steal) = (&self.subject, Some(nanos));
        let kept =
            self.keep.as_ref().map(|keep| keep.describe(subject.pid, &subject.line(), steal));
        summary.lacks("the steal time is not kept", kept.and_then(Result::err));
        if nanos > 0 {
            let time = text::duration(i64::try_from(nanos).unwrap_or(i64::MAX));
            summary.texts.push(format!("{time} of steal time: the hypervisor had a CPU"));
        }
    }

    /// Draws everything again, with the layers related, if there are layers. The live timeline is
    /// complete up to its last flush then.
    fn relate(
        &mut self,
        traces: &[RuntimeTrace],
        has_scheduler: bool,
        end: &Clocks,
        summary: &mut Summary,
    ) -> Option<Related> {
        const WHAT: &str = "the layers are not related";
        if traces.is_empty() || !has_scheduler || page::is_wanted(self.args) {
            return None;
        }
        let Some(keep) = self.keep.as_ref().filter(|_| related::is_possible(self.args)) else {
            Failure::about(self.output.name(), "is no regular file").and(WHAT).print();
            return None;
        };
        let flushed = self.sink.write_out().map_err(|error| self.output.failure(&error));
        let (args, subject, output) = (self.args, &self.subject, self.output.target());
        let sources = Sources { args, output, keep, traces, subject, clocks: [&self.clocks, end] };
        match flushed.and_then(|()| sources.draw()) {
            Ok(mut related) => {
                summary.lacks(NOT_ALL_DRAWN, std::mem::take(&mut related.missing));
                Some(related)
            }
            Err(failure) => {
                summary.lacks(WHAT, [failure.and("the timeline has each layer by itself")]);
                None
            }
        }
    }

    fn finish_scheduler(
        &mut self,
        scheduler: Scheduler,
        summary: &mut Summary,
    ) -> Result<(ThreadExits, Option<CpuIntervals>)> {
        let mut finished =
            scheduler.finish(&mut self.sink).map_err(|e| e.into_failure(self.output))?;
        let (stats, intervals) = (finished.stats, finished.intervals.take());
        let samples = match finished.samples.take() {
            Some(samples) => self.draw_samples(&samples, summary)?,
            None => Vec::new(),
        };
        let summary = &mut summary.texts;
        let declared = finished.declare(&mut self.sink);
        let exits = declared.map_err(|error| self.output.failure(&error))?;
        let drawn = stats.drawn;
        summary.push(switches(&drawn));
        summary.push(format!(
            "{} of {}",
            counted(drawn.members.threads, "thread"),
            counted(drawn.members.processes, "process")
        ));
        summary.extend(samples);
        if drawn.forgotten > 0 {
            let what = counted(drawn.forgotten, "ended thread");
            summary.push(format!("{what} without a process: too many"));
        }
        if drawn.unknown_programs > 0 {
            summary.push(format!(
                "{} without a command line: ended too soon, or too many",
                counted(drawn.unknown_programs, "program")
            ));
        }
        summary.extend(text::dropped(drawn.dropped).map(|(count, what)| format!("{count} {what}")));
        if drawn.lost > 0 {
            let remedy = self.remedy(stats.pages);
            summary.push(format!("{} lost: {remedy}", counted(drawn.lost, "event")));
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

    /// Names and draws the samples, and returns how many they are.
    fn draw_samples(&mut self, samples: &Sampled, summary: &mut Summary) -> Result<Vec<String>> {
        if let Some(failure) = samples.file.failure_of_samples(&self.args.output) {
            summary.lacks("no samples", [failure]);
            return Ok(Vec::new());
        }
        let (mut opened, mut source) =
            open_trace(samples.file.path(), Program::default(), TimelineOptions::default())?;
        let damage = draw_samples(&mut opened, &mut source, &mut self.sink, self.output)?;
        damage.iter().for_each(Failure::print);
        let drawn = source.stats().samples;
        let mut texts = Vec::new();
        let of_cpu = samples.of_cpu.as_ref().map_or(0, |(count, _)| *count);
        if let Some((count, name)) = &samples.of_cpu {
            texts.push(format!("{} of {name}", counted(*count, "sample")));
        }
        if self.args.off_cpu {
            let waits = drawn.saturating_sub(of_cpu);
            texts.push(format!("{} of waits", counted(waits, "stack")));
        }
        Ok(texts)
    }

    /// The option that loses fewer events.
    fn remedy(&self, pages: usize) -> String {
        /// The default.
        const USUAL: usize = 2048;
        if pages >= USUAL && self.args.realtime.is_none() && perf_monitor::is_privileged() {
            return "use --realtime".to_owned();
        }
        format!("use --pages {}", USUAL.max(pages.saturating_mul(4)))
    }

    /// The .NET traces, which are kept if that is requested.
    fn dotnet_traces(&mut self, summary: &mut Summary) -> Vec<RuntimeTrace> {
        let Some(runtimes) = self.runtimes.take() else { return Vec::new() };
        let (recordings, mut failures) = runtimes.finish();
        if self.args.is_found {
            // They were not requested: the recording is complete without.
            failures.drain(..).for_each(|failure| failure.print());
        } else if recordings.is_empty() && failures.is_empty() {
            failures.push(Failure::about("the command", "no .NET runtime was started"));
        }
        let mut traces = Vec::new();
        for mut recording in recordings {
            let keep = self.keep.as_ref();
            let kept =
                keep.map(|keep| keep.dotnet(recording.pid, &recording.file, &recording.threads));
            if let Some(Err(failure)) = kept {
                summary.lacks("a .NET trace is not kept", [failure]);
            }
            let name = if recording.pid == self.subject.pid {
                self.subject.name()
            } else {
                format!("{} ({})", recording.name, recording.pid)
            };
            let trace = Some(format!(".NET process {}", recording.pid));
            let program = Program {
                pid: Some(recording.pid),
                name: Some(name),
                threads: std::mem::take(&mut recording.threads),
                trace,
                ..Program::default()
            };
            traces.push(RuntimeTrace { program, origin: Origin::Dotnet(recording) });
        }
        summary.lacks(NOT_ALL_OF_DOTNET, failures);
        traces
    }

    /// The Go traces that can be drawn, which are kept if that is requested.
    fn go_traces(&mut self, summary: &mut Summary) -> Vec<RuntimeTrace> {
        let mut found = Vec::new();
        let (recorded, failures) = self.go.take().map(GoRecorder::finish).unwrap_or_default();
        let mut recorded =
            recorded.into_iter().map(|trace| (trace.pid, trace.name.clone(), Origin::Go(trace)));
        if let (Some(path), Some(earlier)) = (&self.args.go_trace, self.earlier.take()) {
            let (pid, name) = recorded
                .next()
                .map_or((self.subject.pid, String::new()), |(pid, name, _)| (pid, name));
            if Version::of(path) == earlier {
                let failure = Failure::about(path.display(), "the command did not write it");
                summary.lacks(NO_GOROUTINES, [failure]);
            } else {
                match regular::open(path) {
                    Ok(file) => found.push((pid, name, Origin::Named(file))),
                    Err(error) => {
                        summary.lacks(NO_GOROUTINES, [Failure::about(path.display(), error)]);
                    }
                }
            }
        }
        // They were not requested: the recording is complete without.
        let not_recorded = |failure: Failure| failure.and(NO_GO).print();
        failures.into_iter().for_each(not_recorded);
        if self.args.go_trace.is_none() {
            found.extend(recorded);
        }
        let mut traces = Vec::new();
        for (pid, name, origin) in found {
            let name = if name.is_empty() { self.subject.name() } else { name };
            let shown = match &origin {
                Origin::Go(trace) => Some(trace.shown.clone()),
                Origin::Named(_) => {
                    self.args.go_trace.as_ref().map(|path| path.display().to_string())
                }
                Origin::Dotnet(_) => None,
            };
            let (pid_of, name) = (Some(pid), Some(name));
            let program = Program { pid: pid_of, name, trace: shown, ..Program::default() };
            let trace = RuntimeTrace { program, origin };
            match (check(&trace), &trace.origin) {
                (Ok(()), _) => {
                    let kept =
                        self.keep.as_ref().map_or(Ok(()), |keep| keep.go(pid, &trace.path()));
                    summary.lacks("the Go trace is not kept", kept.err());
                    traces.push(trace);
                }
                (Err(failure), Origin::Named(_)) => summary.lacks(NO_GOROUTINES, [failure]),
                (Err(failure), _) => not_recorded(failure),
            }
        }
        traces
    }

    /// Draws the trace of a runtime by itself.
    fn draw_trace(
        &mut self,
        trace: &RuntimeTrace,
        intervals: Option<&Arc<CpuIntervals>>,
        summary: &mut Summary,
    ) -> Result {
        let mut options = TimelineOptions::default();
        options.cpus = intervals.cloned();
        let (mut opened, mut source) = open_trace(trace.path(), trace.program.clone(), options)?;
        let failures = draw_traces(&mut opened, &mut source, false, &mut self.sink, self.output)?;
        let ended = usize::from(opened.error(0).is_some());
        summary.lacks(NOT_ALL_DRAWN, failures.into_iter().skip(ended));
        self.describe(trace, &opened, 0, &source.stats(), summary);
        Ok(())
    }

    /// Summarizes what was drawn of a trace, which is the one at this position of the opened ones.
    fn describe(
        &self,
        trace: &RuntimeTrace,
        opened: &Opened,
        file: usize,
        stats: &TimelineStats,
        summary: &mut Summary,
    ) {
        let error = opened.error(file);
        let found = match &trace.origin {
            Origin::Dotnet(recording) => {
                summary.texts.extend(opened.summary(file, stats));
                let name = trace.program.trace.as_deref().unwrap_or_default();
                let damage = error.map(|error| Failure::about(name, error));
                let damage = damage.or_else(|| opened.nothing_shown_of(file));
                let truncated = recording.failure.as_ref().map(Failure::message).map(Failure::new);
                return summary.lacks(NOT_ALL_OF_DOTNET, truncated.or(damage));
            }
            Origin::Named(_) => None,
            Origin::Go(trace) => Some(trace).filter(|trace| !trace.name.is_empty()),
        };
        let mut text = counted(opened.goroutines(file).unwrap_or_default(), "goroutine");
        if let Some(GoTrace { pid, name, .. }) = found {
            text.push_str(&format!(" of {name} ({pid})"));
        }
        if let Some(error) = error {
            text.push_str(&format!(", the Go trace ends early: {error}"));
        }
        summary.texts.push(text);
    }
}

const NO_GOROUTINES: &str = "no goroutines";

/// The same, if they were not requested.
const NO_GO: &str = "goroutines are not recorded";

/// Whether a Go trace can be drawn with the rest.
fn check(trace: &RuntimeTrace) -> Result {
    let path = trace.path();
    let opened = open_trace(path.clone(), trace.program.clone(), TimelineOptions::default())?.0;
    if opened.domain == ClockDomain::Monotonic {
        return Ok(());
    }
    let why = "its clock cannot be related to CLOCK_MONOTONIC, as that of Go 1.21 and older: build \
               the program with Go 1.22 or later";
    let name = trace.program.trace.clone().unwrap_or_else(|| path.display().to_string());
    Err(Failure::about(name, why))
}

/// Opens a trace to be drawn.
fn open_trace(
    path: PathBuf,
    program: Program,
    options: TimelineOptions,
) -> Result<(Opened, TimelineSource)> {
    let traces = Traces::with(vec![path], Vec::new(), Recovery::default(), vec![program]);
    Ok((traces.open()?, TimelineSource::new(options)))
}

/// Summary of the scheduler events.
fn switches(stats: &Drawn) -> String {
    let mut notes = Vec::new();
    if stats.recovered > 0 {
        notes.push(format!("{} not reported by sched_switch", stats.recovered));
    }
    if stats.gaps > 0 {
        let (gaps, unknown) = (stats.gaps, stats.unknown as f64 / 1e6);
        notes.push(format!(
            "{gaps} missing from the kernel's stream, for at most {unknown:.1} ms of CPU time; \
             states were repaired"
        ));
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let switches = counted(stats.switches, "context switch");
    format!("{switches}{notes}, {}", counted(stats.wakings, "wake-up"))
}

/// Opens the scheduler's events of the machine. Without that privilege, opens those of the command
/// only, and reports the restriction with a remedy.
fn open_scheduler(args: &Args, is_running: bool) -> Result<Scheduler> {
    let refused = if is_in_container() {
        "the kernel's tracepoints are not usable inside of a container (a PID namespace): they \
         identify threads by their numbers outside of it"
            .to_owned()
    } else {
        match Scheduler::open(args.pages, args.keep.is_some(), args.all_tasks, args.sampled()) {
            Ok(scheduler) => return Ok(scheduler),
            Err(error) if kernel::is_privilege(&error) => kernel::remedy::refusal(&error),
            Err(perf_monitor::Error::UnknownEvent { .. }) if kernel::is_confidential() => {
                "the kernel is locked down (confidentiality) and has no tracepoints".to_owned()
            }
            Err(error) => return Err(kernel::failure(error)),
        }
    };
    if args.all_tasks || args.off_cpu || is_running {
        return Err(Failure::new(refused));
    }
    match Scheduler::open_own(args.pages, args.sampled()) {
        Ok(scheduler) => {
            Failure::new(format_args!(
                "only on-CPU intervals of the command's own threads are recorded: {refused}"
            ))
            .print();
            Ok(scheduler)
        }
        Err(error) if error.reason().is_some_and(is_missing) => Err(Failure::new(refused)),
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
    let line = subject.line();
    let entry = TrackEvent::new(line.as_bytes()).category(Category::Process);
    sink.begin(subject.begin, track, &entry)?;
    let ended = sink.text(b"ended with");
    let status = subject.end();
    let status = Value::Text(Name::Inline(status.as_bytes()));
    sink.end(end, track, &[DebugAnnotation::new(ended, status)])
}

/// Readings that relate the clocks: scheduler events are drawn on `CLOCK_BOOTTIME`.
fn clocks() -> std::io::Result<Clocks> {
    let clocks = [ClockDomain::Monotonic, ClockDomain::Boottime, ClockDomain::Realtime];
    clocks.into_iter().map(|clock| Ok((clock, read_clock(clock)?))).collect()
}

/// The time of the timeline among readings of clocks.
fn monotonic(clocks: &Clocks) -> Timestamp {
    let of_timeline = clocks.iter().find(|(clock, _)| *clock == ClockDomain::Monotonic);
    of_timeline.map_or(Timestamp::default(), |(_, at)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn runtimes_with_another_clock_are_not_recorded() {
        let recorded = |args: &[&str], deviation: Option<&str>| {
            let args = Cli::parse_from([&["record"], args].concat()).args.completed();
            args.with_clock(deviation.map(str::to_owned))
        };
        let why = "its clock is 1.00 s behind";
        let runtimes = |args: &Args| (args.sched, args.can_have_runtime());
        let found = ["--pid", "4294967295"];
        assert_eq!(runtimes(&recorded(&found, None).unwrap()), (true, true));
        assert_eq!(runtimes(&recorded(&found, Some(why)).unwrap()), (true, false));
        assert_eq!(runtimes(&recorded(&["--sched", "true"], Some(why)).unwrap()), (true, false));
        for (args, subject) in [
            (&["--dotnet", "4294967295"][..], "process 4294967295"),
            (&["--dotnet", "--sched", "true"], "the command"),
            (&["--go-trace", "trace.out", "true"], "the command"),
        ] {
            let failure = recorded(args, Some(why)).err().unwrap();
            let message = failure.message();
            assert!(message.starts_with(&format!("{subject}: {why}; Go and .NET")), "{message}");
        }
    }
}
