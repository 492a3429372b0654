//! Real .NET processes with a known workload.
//!
//! ```no_run
//! use testkit::dotnet::{Runtime, Target};
//!
//! for runtime in Runtime::ALL {
//!     let target = Target::of(runtime).mode("idle").start();
//!     println!("{runtime:?}: {} listens at {}", target.pid(), target.socket().display());
//! }
//! ```
//!
//! `cargo xtask runtimes` installs the runtimes and the program they run, and prints the directory
//! for the variable [`VARIABLE`]. Errors panic, because the callers are tests. A test that uses
//! this module is marked `#[ignore = "needs real runtimes: cargo xtask test-runtimes"]`.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The environment variable that names the directory of targets.
pub const VARIABLE: &str = "TRISCOPE_DOTNET_TARGETS";

/// Time limit to start or stop a runtime on a heavily loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A runtime for targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runtime {
    /// .NET Core 3.1.23, a framework-dependent application.
    Core31,
    /// .NET 9.0.1, a self-contained application.
    Net9,
    /// .NET 10.0.11, a single-file application whose `Main` never runs: the workload is a
    /// startup hook in it.
    Net10,
}

impl Runtime {
    /// All runtimes, oldest first.
    pub const ALL: [Self; 3] = [Self::Core31, Self::Net9, Self::Net10];

    /// The version that the runtime reports.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Core31 => "3.1.23",
            Self::Net9 => "9.0.1",
            Self::Net10 => "10.0.11",
        }
    }

    const fn directory(self) -> &'static str {
        match self {
            Self::Core31 => "3.1",
            Self::Net9 => "9",
            Self::Net10 => "10",
        }
    }

    /// The executable of a target process.
    pub fn program(self) -> PathBuf {
        directory().join(self.directory()).join("run")
    }
}

/// The workload's assembly, which is also a startup hook.
pub fn assembly() -> PathBuf {
    directory().join("Workload.dll")
}

fn directory() -> PathBuf {
    std::env::var_os(VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
        panic!("{VARIABLE} is not set: run these tests by `cargo xtask test-runtimes`")
    })
}

/// How to start a [`Target`].
#[derive(Debug)]
pub struct Builder {
    runtime: Runtime,
    env: Vec<(OsString, OsString)>,
    wrapper: Vec<OsString>,
    awaits: Awaits,
}

/// The condition that `start` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Nothing,
    Socket,
    Workload,
}

impl Builder {
    /// Sets the mode of the workload: see the head of `workload/Workload.cs`. The default is
    /// `idle`.
    #[must_use]
    pub fn mode(self, mode: &str) -> Self {
        self.env("WORKLOAD_MODE", mode)
    }

    /// Ends the workload with code 0 after `seconds` seconds.
    #[must_use]
    pub fn seconds(self, seconds: u32) -> Self {
        self.env("WORKLOAD_SECONDS", seconds.to_string())
    }

    /// Sets an environment variable of the target.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the target with `command` and its arguments, to which the program is appended.
    #[must_use]
    pub fn wrapper<S: Into<OsString>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.wrapper = command.into_iter().map(Into::into).collect();
        self
    }

    /// Waits for nothing: for a target that has no diagnostic socket, or is not the child itself.
    #[must_use]
    pub const fn no_wait(mut self) -> Self {
        self.awaits = Awaits::Nothing;
        self
    }

    /// Waits for the diagnostic socket only: for a target that is suspended at startup.
    #[must_use]
    pub const fn suspended(mut self) -> Self {
        self.awaits = Awaits::Socket;
        self
    }

    /// Starts the target and waits until it listens on its diagnostic socket and the workload runs.
    pub fn start(self) -> Target {
        let home = tempfile::Builder::new().prefix("target-").tempdir().expect("a directory");
        let log = home.path().join("log");
        let file = std::fs::File::create(&log).expect("a log file");
        let program = self.runtime.program();
        let mut words = self.wrapper.into_iter().chain([program.into_os_string()]);
        let mut command = Command::new(words.next().expect("a program"));
        // Settings of runtimes are those of the test alone.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("DOTNET_") || text.starts_with("COMPlus_") {
                command.env_remove(&name);
            }
        }
        command
            .args(words)
            .env("WORKLOAD_MODE", "idle")
            .env("TMPDIR", home.path())
            // The default is /tmp, regardless of TMPDIR.
            .env("DOTNET_PerfMapJitDumpPath", home.path())
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle of the log"))
            .stderr(file);
        let child = command.spawn().expect("the target starts");
        let mut target = Target { child, home, log, runtime: self.runtime };
        if self.awaits != Awaits::Nothing {
            target.await_socket();
        }
        if self.awaits == Awaits::Workload {
            target.await_workload();
        }
        target
    }
}

/// A running .NET process with its own temporary directory. Dropping it kills the process.
#[derive(Debug)]
pub struct Target {
    child: Child,
    home: tempfile::TempDir,
    log: PathBuf,
    runtime: Runtime,
}

impl Target {
    /// Configures a target on `runtime`.
    pub fn of(runtime: Runtime) -> Builder {
        Builder { runtime, env: Vec::new(), wrapper: Vec::new(), awaits: Awaits::Workload }
    }

    /// The runtime it runs on.
    pub const fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The directory that is its `TMPDIR`.
    pub fn tmpdir(&self) -> &Path {
        self.home.path()
    }

    /// Its diagnostic socket.
    pub fn socket(&self) -> PathBuf {
        self.find_socket().expect("the target has a diagnostic socket")
    }

    fn find_socket(&self) -> Option<PathBuf> {
        let prefix = format!("dotnet-diagnostic-{}-", self.pid());
        std::fs::read_dir(self.tmpdir())
            .expect("the target's directory")
            .filter_map(|f| f.ok().map(|f| f.path()))
            .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
    }

    fn await_socket(&mut self) {
        // The socket exists before the runtime listens: wait until a connection is accepted.
        let listens = |target: &Self| {
            target.find_socket().is_some_and(|s| std::os::unix::net::UnixStream::connect(s).is_ok())
        };
        self.wait_until("listens on its diagnostic socket", listens);
    }

    /// Waits until the program runs. A suspended runtime does not run it.
    pub fn await_workload(&mut self) {
        let runs = |t: &Self| {
            t.output().lines().any(|l| l.starts_with("workload ") && l.ends_with(" runs"))
        };
        self.wait_until("runs the workload", runs);
    }

    /// Waits until `condition` holds. Panics if the target ends, or after a minute.
    pub fn wait_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            if let Some(status) = self.exit_status() {
                panic!("the target ended ({status}) before it {what}\n{}", self.output());
            }
            assert!(start.elapsed() < TIMEOUT, "no target that {what}: {}", self.state());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its output so far, on both streams.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its exit status, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the target can be waited for")
    }

    /// Panics with its output if it has ended.
    pub fn assert_alive(&mut self) {
        if let Some(status) = self.exit_status() {
            let signal = status.signal().map(|s| format!(" (signal {s})")).unwrap_or_default();
            panic!("{:?} ended: {status}{signal}\n{}", self.runtime, self.output());
        }
    }

    /// Waits until the target ends by itself. Panics with its state on a timeout.
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_for(TIMEOUT).unwrap_or_else(|| panic!("no end within a minute: {}", self.state()))
    }

    /// Waits for at most `limit` until the target ends by itself.
    pub fn wait_for(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let status = self.exit_status();
            if status.is_some() || start.elapsed() > limit {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The runtime, its exit status or the state of its threads, and its output, for the message of
    /// a failed test. If gdb is installed, it includes the stacks of all threads.
    pub fn state(&mut self) -> String {
        let (runtime, pid) = (self.runtime, self.pid());
        let state = match self.exit_status() {
            Some(status) => format!("ended: {status}"),
            None => threads(pid),
        };
        format!("{runtime:?}, process {pid}: {state}\n--- output\n{}", self.output())
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn threads(pid: u32) -> String {
    let gdb = Command::new("gdb")
        .args(["-batch", "-ex", "thread apply all bt 20", "-p", &pid.to_string()])
        .stdin(Stdio::null())
        .output();
    if let Ok(output) = gdb {
        return format!("runs\n{}", String::from_utf8_lossy(&output.stdout));
    }
    let mut text = String::from("runs (install gdb for the stacks of its threads)\n");
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let name = task.file_name();
        let line =
            format!("{} {} in {}", name.to_string_lossy(), read("comm").trim(), read("wchan"));
        text.push_str(&line);
        text.push('\n');
    }
    text
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}
