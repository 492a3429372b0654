//! A command that is started and watched, and what becomes of it on Ctrl-C.

use super::stop::{self, Listener};
use crate::failure::{Failure, OneLine, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process, waitid};
use signal_hook::consts::SIGINT;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// A command that runs as a child of this process.
///
/// Whoever asks this process to end asks the command: the first signal is passed on (but for
/// Ctrl-C, which the terminal has sent to both), the second one becomes SIGTERM, every later one
/// SIGKILL. So what is watched is watched to its end, and what is written is complete. When the
/// command has ended already, the second signal ends this process: the first may be the one that
/// has ended the command.
pub(crate) struct Launched {
    shared: Arc<Mutex<Shared>>,
    pid: Pid,
    _listener: Listener,
}

struct Shared {
    child: Option<Child>,
    /// Signals that came.
    asked: u32,
    /// The command has been waited for: its number may be another process's by now.
    status: Option<ExitStatus>,
}

/// Shells' exit codes of commands that could not be started.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

impl Launched {
    /// Starts a command. Events of this thread that are inherited and enabled by `execve(2)`
    /// begin with its first instruction.
    ///
    /// It gets what this process has (environment, outputs), but for what `prepare` changes.
    /// `clean_up` is called before a signal ends this process.
    pub(crate) fn start(
        command: &[String],
        prepare: impl FnOnce(&mut Command),
        clean_up: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let (program, args) = command.split_first().ok_or(Failure::new("no command"))?;
        let shared = Arc::new(Mutex::new(Shared { child: None, asked: 0, status: None }));
        let listener = {
            let shared = Arc::clone(&shared);
            Listener::start(move |signal| {
                let mut shared = lock(&shared);
                if shared.status.is_some() && shared.asked > 0 {
                    clean_up();
                    std::process::exit(stop::exit_code(signal).into());
                }
                shared.pass_on(signal);
            })?
        };
        // Signals wait until there is somebody to pass them on to.
        let mut guard = lock(&shared);
        let mut prepared = Command::new(program);
        prepared.args(args);
        prepare(&mut prepared);
        let child = match prepared.spawn() {
            Ok(child) => child,
            Err(error) => return Err(not_started(program, &error)),
        };
        let pid = Pid::from_child(&child);
        guard.child = Some(child);
        drop(guard);
        Ok(Self { shared, pid, _listener: listener })
    }

    /// Its process identifier.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it has ended, if it has.
    pub(crate) fn try_wait(&self) -> Result<Option<ExitStatus>> {
        lock(&self.shared).reap().map_err(|error| Failure::about("waiting", error))
    }

    /// Waits for its end.
    pub(crate) fn wait(&self) -> Result<ExitStatus> {
        loop {
            // Without taking the status, and without the lock: signals are passed on meanwhile.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            match waitid(WaitId::Pid(self.pid), options) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Failure::about("waiting", errno)),
            }
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
        }
    }

    /// Waits for its end; when the time is over it is asked to end.
    pub(crate) fn wait_or_terminate(&self, after: Duration) -> Result<ExitStatus> {
        let (timer, ended) = mpsc::channel::<()>();
        let shared = Arc::clone(&self.shared);
        let clock = std::thread::spawn(move || {
            if ended.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                lock(&shared).send(Signal::TERM);
            }
        });
        let status = self.wait();
        drop(timer);
        let _ = clock.join();
        status
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        lock(&self.shared).send(Signal::TERM);
    }
}

impl Drop for Launched {
    /// Nobody watches a command that is left behind by a failure: it is not left running.
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        if shared.status.is_none() {
            shared.send(Signal::TERM);
        }
    }
}

impl Shared {
    fn pass_on(&mut self, signal: i32) {
        self.asked += 1;
        match self.asked {
            1 if signal == SIGINT && is_from_terminal() => {}
            1 => self.send(Signal::from_named_raw(signal).unwrap_or(Signal::TERM)),
            2 => self.send(Signal::TERM),
            _ => self.send(Signal::KILL),
        }
    }

    fn send(&mut self, signal: Signal) {
        if let (Some(child), None) = (&self.child, self.status) {
            // It may have ended, but its number is kept until it is waited for.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        if let (Some(child), None) = (&mut self.child, self.status) {
            self.status = child.try_wait()?;
        }
        Ok(self.status)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process is in the foreground of a terminal, whose Ctrl-C then goes to the command,
/// too.
fn is_from_terminal() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|t| rustix::termios::tcgetpgrp(t).is_ok_and(|group| group == getpgrp()))
}

fn not_started(program: &str, error: &io::Error) -> Failure {
    use io::ErrorKind::{NotFound, PermissionDenied};
    let is_there =
        if program.contains('/') { Path::new(program).exists() } else { in_path(program) };
    match (error.kind(), is_there) {
        // A directory of the search path that may not be looked into is no reason.
        (NotFound | PermissionDenied, false) => {
            Failure::about(program, "command not found").with_code(NOT_FOUND)
        }
        (NotFound, true) => {
            let why = "cannot be run: its interpreter is not there";
            Failure::about(program, why).with_code(NOT_FOUND)
        }
        _ => Failure::about(program, format!("cannot be run: {error}")).with_code(NOT_EXECUTABLE),
    }
}

/// Whether a program is in a directory of the search path.
fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// How this program ends when all it did for a command went well: as the command did.
pub(crate) fn outcome(status: ExitStatus) -> Result {
    use std::os::unix::process::ExitStatusExt;
    if status.success() {
        return Ok(());
    }
    eprintln!("triscope: the command ended with {}", OneLine(&status.to_string()));
    Err(Failure::Quiet(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (_, Some(signal)) => stop::exit_code(signal),
        _ => 1,
    }))
}
