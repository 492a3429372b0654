use perf_monitor::{Error, KernelVersion, Record, RingStats, Sampler, Tracefs, TracepointFormat};
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use testkit::process::nobody;

/// The test ends here: it was reported why.
#[derive(Debug)]
pub(crate) struct Skip;

pub(crate) type Outcome = Result<(), Skip>;

/// The running test.
pub(crate) struct Test {
    pub(crate) name: &'static str,
}

/// Defines tests that may end early with [`Skip`].
#[macro_export]
macro_rules! kernel_tests {
    ($($(#[$meta:meta])* fn $name:ident($t:ident) $body:block)*) => {$(
        $(#[$meta])*
        #[test]
        fn $name() {
            let $t = &$crate::support::Test { name: stringify!($name) };
            let run = || -> $crate::support::Outcome { $body; Ok(()) };
            let _turn = $crate::support::turn();
            let _ = run();
        }
    )*};
}

/// Reads a [`Sampler`] with a function that never ends it early.
pub(crate) trait ReadAll {
    fn drain_all(&mut self, f: impl FnMut(Record<'_>)) -> perf_monitor::Result<usize>;
    fn finish_all(&mut self, f: impl FnMut(Record<'_>)) -> perf_monitor::Result<RingStats>;
}

impl ReadAll for Sampler {
    fn drain_all(&mut self, mut f: impl FnMut(Record<'_>)) -> perf_monitor::Result<usize> {
        self.drain(|record| {
            f(record);
            Ok(())
        })
    }

    fn finish_all(&mut self, mut f: impl FnMut(Record<'_>)) -> perf_monitor::Result<RingStats> {
        self.finish(|record| {
            f(record);
            Ok(())
        })
    }
}

/// The tests take turns: they change limits of this process, and count its probes, rings and descriptors.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn env(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|v| v != "0")
}

impl Test {
    fn report(&self, kind: &str, detail: &dyn Display) {
        let line = format!("{kind}\t{}\t{}", self.name, detail.to_string().replace('\n', " "));
        if let Some(path) = std::env::var_os("PERF_TEST_REPORT") {
            let mut file =
                std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(file, "{line}").unwrap();
        } else if kind != "NOTE" {
            // The harness captures what `eprintln` writes. A person has to see what did not run.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// A measured value, for the report.
    pub(crate) fn note(&self, detail: impl Display) {
        if std::env::var_os("PERF_TEST_REPORT").is_some() {
            self.report("NOTE", &detail);
        } else {
            eprintln!("NOTE\t{}\t{detail}", self.name);
        }
    }

    /// The test continues without this, which the kernel or this machine does not have.
    pub(crate) fn lacks(&self, detail: impl Display) {
        self.report("LACKS", &detail);
    }

    /// The kernel, or this machine, does not have it.
    pub(crate) fn refused(&self, detail: impl Display) -> Skip {
        self.report("REFUSED", &detail);
        Skip
    }

    /// This run cannot try it: missing privilege, or the machine is not ours alone.
    pub(crate) fn cannot(&self, why: impl Display) -> Skip {
        assert!(!env("PERF_TEST_STRICT"), "{}: must run here, but: {why}", self.name);
        self.report("SKIPPED", &why);
        Skip
    }

    /// A capability of kernels from `since` on: older ones may refuse.
    pub(crate) fn needs<T>(&self, result: Result<T, Error>, since: (u32, u32)) -> Result<T, Skip> {
        let version = KernelVersion::current();
        result.map_err(|error| {
            assert!(
                version < KernelVersion(since.0, since.1),
                "Linux {version} should have this (since {}.{}): {error}",
                since.0,
                since.1
            );
            // Without the names of the event and its target, which have addresses and numbers.
            match (error.reason(), error.errno()) {
                (Some(reason), Some(errno)) => self.refused(format!("{reason} ({errno})")),
                _ => self.refused(error),
            }
        })
    }

    pub(crate) fn root(&self) -> Outcome {
        if rustix::process::geteuid().is_root() { Ok(()) } else { Err(self.cannot("needs root")) }
    }

    pub(crate) fn tracefs(&self) -> Result<Tracefs, Skip> {
        self.root()?;
        Tracefs::find().map_err(|e| self.cannot(e))
    }

    /// The layouts of all tracepoints of the kernel. They are read once: in an emulated machine that
    /// takes many seconds.
    pub(crate) fn formats(&self) -> Result<&'static [(String, TracepointFormat)], Skip> {
        static FORMATS: OnceLock<Vec<(String, TracepointFormat)>> = OnceLock::new();
        let tracefs = self.tracefs()?;
        Ok(FORMATS.get_or_init(|| {
            let mut formats = Vec::new();
            for event in tracefs.events().unwrap() {
                let (system, name) = event.split_once(':').unwrap();
                match tracefs.format(system, name) {
                    Ok(format) => formats.push((event, format)),
                    // Some of ftrace's own have no format.
                    Err(Error::UnknownEvent { .. }) => {}
                    Err(error) => panic!("{event}: {error}"),
                }
            }
            formats
        }))
    }

    pub(crate) fn is_guest(&self) -> bool {
        env("PERF_TEST_GUEST")
    }

    /// The machine is a virtual one of our own.
    pub(crate) fn guest(&self) -> Outcome {
        if self.is_guest() {
            Ok(())
        } else {
            self.report("SKIPPED", &"changes the machine: only in virtual machines of our own");
            Err(Skip)
        }
    }

    /// A kernel module of our own is there for this kernel.
    pub(crate) fn module(&self) -> Outcome {
        if env("PERF_TEST_MODULE") {
            Ok(())
        } else {
            Err(self.refused("no module of ours was built for this kernel"))
        }
    }

    /// Mounts that are changed here are changed for nobody else.
    pub(crate) fn own_mounts(&self) -> Outcome {
        if env("PERF_TEST_OWN_MOUNTS") { Ok(()) } else { Err(self.cannot("shares its mounts")) }
    }

    /// A hardware PMU.
    pub(crate) fn hardware(&self) -> Outcome {
        if perf_monitor::KernelFeatures::probe().hardware {
            Ok(())
        } else {
            assert!(!env("PERF_TEST_HARDWARE"), "there should be a hardware PMU");
            Err(self.refused("no hardware PMU"))
        }
    }

    pub(crate) fn is_icount(&self) -> bool {
        env("PERF_TEST_ICOUNT")
    }
}

/// Calls `getppid`, which nothing else calls.
pub(crate) fn getppid(times: usize) {
    for _ in 0..times {
        std::hint::black_box(rustix::process::getppid());
    }
}

/// The number of `getppid` in the tracepoints of system calls.
pub(crate) const GETPPID: u64 = if cfg!(target_arch = "x86_64") { 110 } else { 173 };

/// Uses CPU time. It is that of the thread, so that a busy machine makes no difference.
pub(crate) fn spin_for(cpu_time: std::time::Duration) {
    use rustix::time::{ClockId, clock_gettime};
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let end = used() + cpu_time;
    let mut x = 1u64;
    while used() < end {
        for i in 0..1000 {
            x = std::hint::black_box(x.wrapping_mul(31) ^ i);
        }
    }
}

/// Repeats `step` until it returns true. It fails when that takes minutes: on a busy machine events
/// come late, but they come.
#[track_caller]
pub(crate) fn until(what: &str, mut step: impl FnMut() -> bool) {
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);
    let start = std::time::Instant::now();
    while !step() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not in {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

/// A setting of the kernel that is restored, also if the test fails.
pub(crate) struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    /// Writes another value.
    pub(crate) fn write(path: &'static str, value: &str) -> Self {
        let before = std::fs::read_to_string(path).unwrap();
        let this = Self { path, before };
        std::fs::write(path, value).unwrap();
        this
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let restored = std::fs::write(self.path, self.before.trim());
        assert!(restored.is_ok() || std::thread::panicking(), "{}: {restored:?}", self.path);
    }
}

/// Touches `count` pages for the first time.
pub(crate) fn touch_pages(count: usize) {
    let page = rustix::param::page_size();
    let mut map = memmap2::MmapMut::map_anon(count * page).unwrap();
    for byte in map.iter_mut().step_by(page) {
        *byte = 1;
    }
}

/// Runs `f` on CPU 0 alone, with what it starts.
pub(crate) fn on_cpu_0<R>(f: impl FnOnce() -> R) -> R {
    on_cpu(0, f)
}

/// Runs `f` on one CPU alone, with what it starts.
pub(crate) fn on_cpu<R>(cpu: usize, f: impl FnOnce() -> R) -> R {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    rustix::thread::sched_setaffinity(None, &set).unwrap();
    let result = f();
    rustix::thread::sched_setaffinity(None, &before).unwrap();
    result
}

/// A child process, which waits for [`go`](Self::go). It is killed if the test fails before.
pub(crate) struct TestChild {
    process: Child,
    /// The thread that acts.
    pub(crate) tid: u32,
}

impl TestChild {
    pub(crate) fn start(role: &str) -> Self {
        Self::spawn(&mut Command::new("/proc/self/exe"), role).unwrap()
    }

    /// As a user without privileges, who is root in a user namespace and has all of its capabilities.
    pub(crate) fn in_user_namespace(role: &str) -> std::io::Result<Self> {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        use rustix::thread::{UnshareFlags, unshare_unsafe};
        use std::os::unix::process::CommandExt;
        let map = format!("0 {} 1", nobody());
        let enter = move || {
            // SAFETY: the child has one thread and shares nothing whose state this changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
            // After a change of the user, its files in `/proc` are those of root.
            set_dumpable_behavior(DumpableBehavior::Dumpable)?;
            std::fs::write("/proc/self/uid_map", &map)
        };
        let mut command = Command::new("/proc/self/exe");
        command.uid(nobody()).gid(nobody());
        // SAFETY: `enter` calls the kernel alone: it neither allocates nor locks.
        unsafe { command.pre_exec(enter) };
        Self::spawn(&mut command, role)
    }

    fn spawn(command: &mut Command, role: &str) -> std::io::Result<Self> {
        let mut process = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("PERF_TEST_CHILD", role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut this = Self { process, tid: 0 };
        this.tid = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.rsplit_once("tid ")?.1.parse().ok())
            .expect("the child prints its thread");
        Ok(this)
    }

    /// Lets it act, and waits for its end.
    pub(crate) fn go(self) {
        let status = self.go_to_its_end();
        assert!(status.success(), "child: {status}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it where it waits.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// The same, whatever its end is.
    pub(crate) fn go_to_its_end(mut self) -> ExitStatus {
        self.process.stdin.take().unwrap().write_all(b"\n").unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for TestChild {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it has ended otherwise
        let _ = self.process.wait();
    }
}

pub(crate) fn child_main(role: &str) -> ! {
    let prepared = super::probes::prepare(role);
    println!("tid {}", rustix::thread::gettid().as_raw_nonzero());
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if let Some(prepared) = prepared {
        prepared();
        std::process::exit(0);
    }
    let (role, number) = role.split_once(' ').unwrap_or((role, "0"));
    let number: usize = number.parse().unwrap();
    match role {
        "getppid" => getppid(number),
        "spin" => spin_for(std::time::Duration::from_millis(number as u64)),
        // A tree: this process, a thread of it, and a process of its own.
        "tree" => {
            getppid(number);
            std::thread::spawn(move || getppid(number / 2)).join().unwrap();
            TestChild::start(&format!("getppid {}", number / 4)).go();
        }
        "files" => super::errors::run_out_of_files(),
        "trap" => super::sigtrap::trap(),
        "namespaced" => super::errors::in_user_namespace(number as u32),
        "probed" => (0..number).for_each(|i| {
            super::probes::probed(i as u64, -1, c"in a child");
        }),
        // Becomes another program after half of the calls, which makes the other half.
        "exec" => {
            use std::os::unix::process::CommandExt;
            getppid(number);
            let error = Command::new("/proc/self/exe")
                .args(["--exact", "child", "--nocapture", "--test-threads=1"])
                .env("PERF_TEST_CHILD", format!("getppid {number}"))
                .stdin(Stdio::null())
                .stdout(Stdio::null()) // nobody reads it any more
                .exec();
            panic!("{error}");
        }
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

/// Runs `f` on a thread that is the user and the group [`nobody`], without capabilities.
pub(crate) fn as_nobody<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    as_user(nobody(), f)
}

/// Runs `f` on a thread that is the user and the group of this number, without capabilities.
pub(crate) fn as_user<R: Send + 'static>(user: u32, f: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::spawn(move || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(user)).unwrap();
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(user)).unwrap();
        f()
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
