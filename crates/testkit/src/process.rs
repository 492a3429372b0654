//! Processes that a test starts, and what they leave: their output and their exit code.

use std::io::Read as _;
use std::process::{Child, Command, Output, Stdio};

/// What a process printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// What it printed.
    pub stdout: String,
    /// Its errors.
    pub stderr: String,
    /// Its exit code, if no signal has ended it.
    pub code: Option<i32>,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            code: output.status.code(),
        }
    }
}

impl Ran {
    /// Asserts that it has failed with one line that says all of `words`.
    #[track_caller]
    pub fn is_refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(self.stderr.starts_with("triscope: "), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {}", self.stderr);
        }
    }

    /// Asserts that it has succeeded.
    #[track_caller]
    pub fn is_good(&self) {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
    }
}

/// A child that is killed if the test fails.
#[derive(Debug)]
pub struct Running(pub Option<Child>);

impl Running {
    /// Starts it. Its output is kept for [`end`](Self::end).
    pub fn start(command: &mut Command) -> Self {
        Self::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts it with the output that the command has.
    pub fn spawn(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// Waits until it has printed a line that has this in it.
    pub fn wait_for(&mut self, word: &str) {
        let stdout = self.child().stdout.as_mut().unwrap();
        let mut seen = Vec::new();
        let mut byte = [0];
        while !String::from_utf8_lossy(&seen).contains(word) {
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "it ended before it said {word:?}");
            seen.push(byte[0]);
        }
    }

    /// Waits until it catches signals, which is the last that it does before it waits.
    pub fn wait_until_it_watches(&self) {
        const SIGTERM: u64 = 1 << 14;
        let status = format!("/proc/{}/status", self.id());
        let hears = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            u64::from_str_radix(caught.unwrap().trim(), 16).unwrap() & SIGTERM != 0
        };
        crate::wait::until("it catches signals", || {
            self.still_runs();
            hears()
        });
    }

    /// Asserts that it has not ended.
    #[track_caller]
    pub fn still_runs(&self) {
        let stat = std::fs::read(format!("/proc/{}/stat", self.id())).unwrap();
        assert_ne!(trace_common::stat_field(&stat, 3), Some("Z"), "it has ended");
    }

    /// Sends it a signal, by its name.
    pub fn signal(&self, name: &str) {
        kill(name, self.id());
    }

    /// Waits for its end, with the input closed. Its output, where that was kept.
    pub fn end(mut self) -> Ran {
        self.0.take().unwrap().wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The ID of a user without privileges, which hardly any other test program has.
///
/// The memory that users may lock is counted by user ID (`RLIMIT_MEMLOCK`, and
/// `kernel.perf_event_mlock_kb` for rings): another program would take from it.
pub fn nobody() -> u32 {
    60_000 + std::process::id() % 5_000
}

/// Sends a signal, by its name.
pub fn kill(name: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Stops a process. Each of its threads stops by itself, a moment after the signal.
pub fn stop(pid: u32) {
    kill("STOP", pid);
    let is_stopped = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status"));
        status.is_ok_and(|status| status.contains("State:\tT"))
    };
    crate::wait::until(&format!("{pid} is stopped"), || {
        let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.all(|task| task.is_ok_and(is_stopped))
    });
}
