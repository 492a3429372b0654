//! Records the kernel's scheduler, and the runtime of a .NET program.

use super::steal::Steal;
use diag_ipc::{Client, Rundown, TracingConfig};
use perf_monitor::{
    ClockDomain, Event as PerfEvent, FieldFormat, RingSet, SampleFlags, SetRecord, Software,
    Timestamp, Tracefs,
};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use task_support::Result;
use trace_timeline::sources::cgroup::CgroupSource;
use trace_timeline::sources::kernel::KernelSource;
use trace_timeline::sources::perf::SchedDecoder;
use trace_timeline::{Event, Tables};

/// Maximum time between reads of the rings.
const ROUND: Duration = Duration::from_millis(20);

/// Time limit of a program on a heavily loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The time on the clock of the records.
pub(super) fn now() -> Timestamp {
    perf_monitor::now(ClockDomain::Monotonic).unwrap_or_default()
}

/// The scheduler, and the CPU quota of a cgroup.
pub(super) struct Recorder {
    set: RingSet,
    decoder: SchedDecoder,
    kernel: KernelSource,
    /// The `cpu.stat` file of a cgroup.
    quota: Option<(PathBuf, CgroupSource)>,
    calls: Option<Calls>,
    pub(super) tables: Tables,
    recorded: Recorded,
    steal: Steal,
}

/// The tracepoint of system calls.
struct Calls {
    id: u64,
    /// The thread.
    thread: FieldFormat,
}

/// Model events, each vector in time order.
#[derive(Default)]
pub(super) struct Recorded {
    pub(super) kernel: Vec<Event>,
    pub(super) quota: Vec<Event>,
    /// The time and thread of each system call that was asked for.
    pub(super) calls: Vec<(Timestamp, i64)>,
    /// The most steal time, in nanoseconds.
    pub(super) steal: i64,
}

impl Recorder {
    pub(super) fn start() -> Result<Self> {
        let tracefs = Tracefs::find_or_detached()?;
        let side = PerfEvent::software(Software::Dummy).builder().sample(SampleFlags::TID);
        let side = side.comm(true).comm_exec(true).task(true);
        let mut set = RingSet::builder().pages(4096).sideband_ring(&side, 64).open()?;
        let mut formats = Vec::new();
        for name in ["sched_switch", "sched_waking", "sched_wakeup_new"] {
            let event = tracefs.event("sched", name)?;
            let sample = SampleFlags::TID | SampleFlags::RAW;
            set.add(&event.builder().sample_period(1).sample(sample))?;
            formats.push(tracefs.format("sched", name)?);
        }
        // Some kernels leave out a sched_switch, and have these.
        let switches = PerfEvent::software(Software::Dummy).builder().context_switch(true);
        set.add(&switches.sample(SampleFlags::TID | SampleFlags::CPU))?;
        let steal = Steal::start()?;
        set.enable()?;
        Ok(Self {
            set,
            decoder: SchedDecoder::new(formats),
            kernel: KernelSource::new(),
            quota: None,
            calls: None,
            tables: Tables::new(),
            recorded: Recorded::default(),
            steal,
        })
    }

    /// Reads the counters of the cgroup of this process in each round.
    pub(super) fn watch_quota(&mut self, cpu_stat: PathBuf, pid: u32) {
        self.quota = Some((cpu_stat, CgroupSource::new(pid)));
    }

    /// Records the calls of a system call with this number too.
    pub(super) fn watch_calls(&mut self, number: u32) -> Result<()> {
        let tracefs = Tracefs::find_or_detached()?;
        let event = tracefs.event("raw_syscalls", "sys_enter")?;
        let sample = SampleFlags::TID | SampleFlags::RAW;
        let added = self.set.add(&event.builder().sample_period(1).sample(sample))?;
        self.set.set_filter(added, &format!("id == {number}"))?;
        self.set.enable()?;
        let format = tracefs.format("raw_syscalls", "sys_enter")?;
        let thread = format.field("common_pid").cloned().ok_or("no common_pid")?;
        self.calls = Some(Calls { id: format.id(), thread });
        Ok(())
    }

    /// Reads the rings: all of them at the end.
    fn read(&mut self, is_end: bool) -> Result<()> {
        let Self { set, decoder, kernel, tables, recorded, calls, .. } = self;
        let mut push = |record: SetRecord<'_>| -> Result<()> {
            if let Some(decoded) = decoder.decode(record.raw, record.layout, record.cpu) {
                kernel.push(record.time, &decoded, tables, &mut recorded.kernel);
            } else if let (Some(calls), Some(data)) = (&calls, record.layout.raw_data(record.raw)) {
                let id = data.first_chunk().map(|id| u64::from(u16::from_ne_bytes(*id)));
                let thread = calls.thread.i64(data);
                if let Some(thread) = thread.filter(|_| id == Some(calls.id)) {
                    recorded.calls.push((record.time, thread));
                }
            }
            Ok(())
        };
        if is_end {
            set.drain(&mut push)?
        } else {
            set.round(&mut push)?
        };
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        self.set.wait(Some(ROUND))?;
        self.read(false)?;
        if let Some((path, source)) = &mut self.quota {
            let text = fs::read(path)?;
            source.push(now(), &text, &mut self.tables, &mut self.recorded.quota);
        }
        Ok(())
    }

    /// Records until the condition gives a value.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(value) = condition()? {
                return Ok(value);
            }
            if start.elapsed() > LIMIT {
                return Err(format!("no {what} within {LIMIT:?}").into());
            }
            self.round()?;
        }
    }

    /// Stops recording.
    pub(super) fn finish(mut self) -> Result<(Recorded, Tables)> {
        self.set.disable()?;
        self.read(true)?;
        let stats = self.kernel.stats();
        self.recorded.steal = self.steal.most()?;
        eprintln!(
            "{} context switches, {} without sched_switch, {} lost, {} unreported; {} ms of steal \
             time at most",
            stats.switches,
            stats.recovered,
            stats.lost,
            stats.unreported,
            self.recorded.steal / 1_000_000
        );
        Ok((self.recorded, self.tables))
    }
}

/// The lines of a stream, read by another thread.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A .NET program of `crates/testkit/workload/Answers.cs`. Dropping it kills the process.
pub(super) struct Dotnet {
    child: Child,
    errors: Receiver<String>,
    session: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Its diagnostic socket is here.
    _home: tempfile::TempDir,
}

/// The ends of the program's standard streams.
pub(super) type Streams = (ChildStdin, ChildStdout);

impl Dotnet {
    /// Starts the program on a runtime: a directory of `targets`.
    pub(super) fn start(targets: &Path, runtime: &str, mode: &str) -> Result<(Self, Streams)> {
        let home = tempfile::tempdir()?;
        let mut child = Command::new(targets.join(runtime).join("run"))
            .env("WORKLOAD_MODE", format!("answers:{mode}"))
            .env("TMPDIR", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let errors = lines(stderr.ok_or("no standard error")?);
        let this = Self { child, errors, session: None, _home: home };
        Ok((this, stdin.zip(stdout).ok_or("no standard streams")?))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program runs, and collects its events from then on.
    pub(super) fn collect(&mut self, recorder: &mut Recorder, providers: &[&str]) -> Result<()> {
        let errors = &self.errors;
        let runs = |line: &String| line.starts_with("workload ") && line.ends_with(" runs");
        recorder.until("running program", || next_line(errors, runs))?;
        let providers: std::result::Result<Vec<diag_ipc::Provider>, _> =
            providers.iter().map(|provider| provider.parse()).collect();
        let config = TracingConfig::new(providers?).rundown(Rundown::None);
        // The rings are read meanwhile. The program continues by itself when the session starts.
        let pid = self.pid();
        self.session = Some(std::thread::spawn(move || {
            let client = Client::for_process(pid).map_err(io::Error::other)?;
            let mut session = client.collect_tracing(&config).map_err(io::Error::other)?;
            let mut bytes = Vec::new();
            session.read_to_end(&mut bytes).map(|_| bytes)
        }));
        Ok(())
    }

    /// Waits until the program has printed `done`, and returns the lines before.
    pub(super) fn output(
        &self,
        recorder: &mut Recorder,
        stdout: ChildStdout,
    ) -> Result<Vec<String>> {
        let stdout = lines(stdout);
        let mut printed = Vec::new();
        recorder.until("end of the output", || {
            loop {
                match next_line(&stdout, |_| true)? {
                    Some(line) if line == "done" => return Ok(Some(())),
                    Some(line) => printed.push(line),
                    None => return Ok(None),
                }
            }
        })?;
        Ok(printed)
    }

    /// Waits for the end of the program, and returns its trace and the rest of its standard error.
    pub(super) fn finish(mut self, recorder: &mut Recorder) -> Result<(Vec<u8>, Vec<String>)> {
        let child = &mut self.child;
        let status = recorder.until("end of the program", || Ok(child.try_wait()?))?;
        let errors: Vec<String> = self.errors.iter().collect();
        if !status.success() {
            return Err(format!("the .NET program: {status}: {}", errors.join("\n")).into());
        }
        let session = self.session.take().ok_or("no session")?;
        let trace = session.join().map_err(|_| "the reader of the session failed")??;
        Ok((trace, errors))
    }
}

impl Drop for Dotnet {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line for which this holds, if it is there already.
fn next_line(lines: &Receiver<String>, is_it: impl Fn(&String) -> bool) -> Result<Option<String>> {
    loop {
        match lines.try_recv() {
            Ok(line) if is_it(&line) => return Ok(Some(line)),
            Ok(_) => {}
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => return Err("the program ended early".into()),
        }
    }
}

/// A line of a program: a word and numbers.
pub(super) fn numbers(line: &str) -> Result<(&str, Vec<i64>)> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let numbers = words.map(str::parse).collect::<std::result::Result<Vec<i64>, _>>();
    Ok((name, numbers.map_err(|error| format!("{line}: {error}"))?))
}
