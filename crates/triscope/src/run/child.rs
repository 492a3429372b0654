//! A command that is started and monitored.

use super::stop::{self, Listener, Next, Received};
use super::{open_files, programs, threads};
use crate::failure::{Failure, OneLine, Result};
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A command that runs as a child of this process, with the signal policy of [`stop`].
///
/// The first signal is passed on, except for Ctrl-C that the terminal sends to both processes.
/// After the command has ended, the second signal ends this process: the first one may have ended
/// the command.
pub(crate) struct Launched {
    shared: Arc<Mutex<Shared>>,
    pid: Pid,
    exited: Receiver<()>,
    _listener: Listener,
}

/// Has a command print on standard error: this program's output is on standard output.
pub(crate) fn output_to_stderr(command: &mut Command) {
    command.stdout(io::stderr());
}

struct Shared {
    child: Option<Child>,
    /// Whether it is still the shell that is stopped, and not the command.
    is_gate: bool,
    /// Number of received signals.
    asked: u32,
    /// The first of them.
    first: Option<i32>,
    /// Set once the command was waited for: another process may then have its process id.
    status: Option<ExitStatus>,
}

/// Exit codes of shells for commands that could not be started.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

impl Launched {
    /// Starts a command, as [`spawn`] does. Events of this thread that are inherited and enabled by `execve(2)` begin
    /// with its first instruction.
    ///
    /// It inherits everything from this process (environment, outputs), except for the changes of
    /// `prepare`.
    pub(crate) fn start(
        command: &[impl AsRef<OsStr>],
        prepare: impl Fn(&mut Command),
    ) -> Result<Self> {
        Self::start_by(command, prepare, || ())
    }

    /// As [`start`](Self::start). Each thread that supervises the command calls `begin` first.
    pub(crate) fn start_by(
        command: &[impl AsRef<OsStr>],
        prepare: impl Fn(&mut Command),
        begin: fn(),
    ) -> Result<Self> {
        Self::launch(command, prepare, begin, false)
    }

    fn launch(
        command: &[impl AsRef<OsStr>],
        prepare: impl Fn(&mut Command),
        begin: fn(),
        is_gate: bool,
    ) -> Result<Self> {
        let (program, args) = command.split_first().ok_or(Failure::new("no command"))?;
        let shared = Shared { child: None, is_gate, asked: 0, first: None, status: None };
        let shared = Arc::new(Mutex::new(shared));
        // Before there is a command that nothing would wait for.
        let (started, exited) = waiter(begin).map_err(Failure::new)?;
        let listener = {
            let shared = Arc::clone(&shared);
            let signals = stop::not_ignored(&[SIGINT, SIGTERM, SIGHUP]);
            Listener::of_by(&signals, begin, move |signal| lock(&shared).on_signal(signal))?
        };
        // Signals wait until there is a process to pass them on to.
        let mut guard = lock(&shared);
        let child = match open_files::as_before(|| spawn(program.as_ref(), args, prepare)) {
            Ok(child) => child,
            Err(error) => return Err(not_started(&program.as_ref().to_string_lossy(), &error)),
        };
        let pid = Pid::from_child(&child);
        guard.child = Some(child);
        drop(guard);
        let _ = started.send(pid); // the thread waits for it
        Ok(Self { shared, pid, exited, _listener: listener })
    }

    /// Starts a command whose process is stopped just before its `execve(2)`: events that are not
    /// inherited can be opened on it. Until then it is a shell. It begins with
    /// [`resume`](Self::resume).
    pub(crate) fn start_stopped(
        command: &[String],
        prepare: impl Fn(&mut Command),
    ) -> Result<Self> {
        // The shell would find out when the recording has begun.
        if let Some(program) = command.first() {
            let found = programs::executable(program.as_ref());
            found.map_err(|error| not_started(program, &error))?;
        }
        let gate = ["sh", "-c", "kill -STOP $$; exec \"$@\"", "sh"].map(str::to_owned);
        let this = Self::launch(&[&gate[..], command].concat(), prepare, || (), true)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(this.pid), options).is_err_and(|e| e == Errno::INTR) {}
        Ok(this)
    }

    /// Starts a command that is stopped. After a signal it is not run, and the error has the exit code of the signal.
    pub(crate) fn resume(&self) -> Result {
        let mut shared = lock(&self.shared);
        if let Some(signal) = shared.first {
            return Err(Failure::Quiet(stop::exit_code(signal)));
        }
        shared.is_gate = false;
        shared.send(Signal::CONT);
        Ok(())
    }

    /// Its process identifier.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Closed when the command has ended.
    pub(crate) const fn exited(&self) -> &Receiver<()> {
        &self.exited
    }

    /// Its exit status, if it has ended.
    pub(crate) fn status(&self) -> Result<Option<ExitStatus>> {
        lock(&self.shared).reap().map_err(|error| Failure::about("waiting", error))
    }

    /// Waits for its end.
    pub(crate) fn wait(&self) -> Result<ExitStatus> {
        let _ = self.exited.recv(); // nothing is sent: it is closed
        self.status()?.ok_or_else(|| Failure::new("the command has not ended"))
    }

    /// Whether a signal was received.
    pub(crate) fn is_interrupted(&self) -> bool {
        lock(&self.shared).asked > 0
    }

    /// Sends SIGTERM to it.
    pub(crate) fn terminate(&self) {
        lock(&self.shared).send(Signal::TERM);
    }

    /// Sends SIGKILL to it, for one that cannot handle SIGTERM: a runtime that is suspended.
    pub(crate) fn kill(&self) {
        lock(&self.shared).send(Signal::KILL);
    }
}

impl Drop for Launched {
    /// Ends a command that would be left without supervision: one that is still stopped before its `execve(2)` when
    /// the recording cannot begin, or by the end of a live view. A failure does not end one that runs: see
    /// `Watch::see_out`; nor does a panic.
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        if shared.is_gate {
            // It may ignore all other signals, as this process does, and would execute the command.
            shared.send(Signal::KILL);
        } else if !std::thread::panicking() {
            shared.send(Signal::TERM);
            shared.send(Signal::CONT); // one that is stopped ends when it continues
        }
    }
}

/// A thread that gets the process id of a child, and closes the channel when that has ended. Its exit status is
/// left for [`Launched::status`]: until then no other process gets its process id.
fn waiter(begin: fn()) -> io::Result<(Sender<Pid>, Receiver<()>)> {
    let (started, child) = bounded(1);
    let (running, exited) = bounded(0);
    threads::start(move || {
        begin();
        let _running = running;
        let Ok(pid) = child.recv() else { return };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), options).is_err_and(|e| e == Errno::INTR) {}
    })?;
    Ok((started, exited))
}

impl Shared {
    fn on_signal(&mut self, received: Received) -> Next {
        let signal = received.signal;
        self.asked += 1;
        self.first.get_or_insert(signal);
        let _ = self.reap(); // an error is reported where the command is waited for
        match self.asked {
            2.. if self.status.is_some() => return Next::Exit,
            1 if signal == SIGINT && received.is_of_kernel && self.is_in_foreground() => {}
            1 => self.send(Signal::from_named_raw(signal).unwrap_or(Signal::TERM)),
            2 => self.send(Signal::TERM),
            _ => self.send(Signal::KILL),
        }
        Next::Wait
    }

    fn send(&mut self, signal: Signal) {
        if let (Some(child), None) = (&self.child, self.status) {
            // It may have ended, but its process id stays reserved until it is waited for.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Whether the command is in the foreground of the terminal, which sends it Ctrl-C. It can have a group of its
    /// own.
    fn is_in_foreground(&self) -> bool {
        let group = |child| getpgid(Some(Pid::from_child(child))).ok();
        let Some(group) = self.child.as_ref().and_then(group) else { return false };
        let terminal = std::fs::File::open("/dev/tty");
        terminal.is_ok_and(|t| rustix::termios::tcgetpgrp(t).is_ok_and(|found| found == group))
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

/// Starts a program as execvp(3) does: a script without `#!` is one of the shell. A program for another machine is none.
fn spawn(
    program: &OsStr,
    args: &[impl AsRef<OsStr>],
    prepare: impl Fn(&mut Command),
) -> io::Result<Child> {
    let mut command = Command::new(program);
    prepare(command.args(args));
    let error = match command.spawn() {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOEXEC) => error,
        spawned => return spawned,
    };
    let script = programs::executable(program)?;
    if !programs::is_script(&script) {
        return Err(error);
    }
    let mut shell = Command::new("/bin/sh");
    prepare(shell.arg(script).args(args));
    shell.spawn()
}

fn not_started(program: &str, error: &io::Error) -> Failure {
    use io::ErrorKind::{NotFound, PermissionDenied};
    match (error.kind(), is_there(program)) {
        // A directory of the search path that is not readable is not the reason.
        (NotFound | PermissionDenied, false) => {
            Failure::about(program, "command not found").with_code(NOT_FOUND)
        }
        (NotFound, true) => {
            let why = "cannot be run: its interpreter does not exist";
            Failure::about(program, why).with_code(NOT_FOUND)
        }
        _ => Failure::about(program, format!("cannot be run: {error}")).with_code(NOT_EXECUTABLE),
    }
}

/// Whether the file of a program exists, by the search path.
fn is_there(program: &str) -> bool {
    programs::find(program.as_ref()).is_some_and(|file| file.exists())
}

/// The result of this program after a successful run: that of the command.
pub(crate) fn outcome(status: ExitStatus) -> Result {
    use std::os::unix::process::ExitStatusExt;
    if status.success() {
        return Ok(());
    }
    message!("triscope: the command ended with {}", OneLine(&status.to_string()));
    Err(Failure::Quiet(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (_, Some(signal)) => stop::exit_code(signal),
        _ => 1,
    }))
}

/// The result of this program after another one that is a part of it, and has printed its reasons.
pub(crate) fn outcome_of_part(name: &str, status: ExitStatus) -> Result {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Failure::Quiet(u8::try_from(code).unwrap_or(1))),
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            let failure = Failure::about(name, format_args!("ended by signal {signal}"));
            Err(failure.with_code(stop::exit_code(signal)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads::refusal::without_threads;
    use super::*;

    /// The signal that ended a child.
    fn ended_by(pid: Pid) -> Option<i32> {
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap()?.terminating_signal()
    }

    #[test]
    fn a_panic_ends_no_command() {
        let (to, started) = bounded(1);
        let recording = std::thread::spawn(move || {
            let launched = Launched::start(&["sleep", "60"], |_| ()).unwrap();
            to.send(launched.pid).unwrap();
            std::panic::resume_unwind(Box::new("the recorder"));
        });
        assert!(recording.join().is_err());
        let pid = started.recv().unwrap();
        // Of two signals that end a process, it is the first one.
        kill_process(pid, Signal::KILL).unwrap();
        assert_eq!(ended_by(pid), Some(9));
    }

    #[test]
    fn a_command_whose_recording_does_not_begin_is_never_run() {
        let dir = tempfile::tempdir().unwrap();
        let ran = dir.path().join("ran");
        let command = ["touch".to_owned(), ran.to_str().unwrap().to_owned()];
        let gate = Launched::start_stopped(&command, |_| ()).unwrap();
        let pid = gate.pid;
        drop(gate);
        assert_eq!((ended_by(pid), ran.exists()), (Some(9), false));
        let interrupted = Launched::start_stopped(&command, |_| ()).unwrap();
        let pid = interrupted.pid;
        let received = Received { signal: SIGTERM, is_of_kernel: false };
        assert_eq!(lock(&interrupted.shared).on_signal(received), Next::Wait);
        assert!(matches!(interrupted.resume(), Err(Failure::Quiet(143))));
        drop(interrupted);
        assert!(ended_by(pid).is_some() && !ran.exists());
        let missing = Launched::start_stopped(&["/nonexistent".to_owned()], |_| ()).err().unwrap();
        assert!(matches!(missing, Failure::Message(_, NOT_FOUND)), "{}", missing.message());
        let resumed = Launched::start_stopped(&command, |_| ()).unwrap();
        resumed.resume().unwrap();
        assert!(resumed.wait().unwrap().success() && ran.exists());
        assert!(!lock(&resumed.shared).is_gate);
    }

    #[test]
    fn a_part_that_a_signal_has_ended_is_named() {
        use std::os::unix::process::ExitStatusExt;
        let of = |status| outcome_of_part("a part", ExitStatus::from_raw(status));
        assert!(of(0).is_ok());
        assert!(matches!(of(3 << 8), Err(Failure::Quiet(3))));
        let killed = of(9).unwrap_err();
        assert_eq!(killed.message(), "a part: ended by signal 9");
        assert!(matches!(killed, Failure::Message(_, 137)));
    }

    /// As shells do, and `perf` by execvp(3).
    #[test]
    fn a_script_without_an_interpreter_is_one_of_the_shell() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["script", "program", "ran"].map(|name| dir.path().join(name));
        // Another process writes them: a file that is open for writing in a child of another test cannot be executed.
        let write = "printf 'test \"$1\" = \"a b\" && printf %%s \"$SET\" >\"$2\"\n' >\"$1\"
            printf '\\177ELF\\000' >\"$2\"
            chmod 755 \"$1\" \"$2\"";
        let written = Command::new("sh").args(["-c", write, "sh"]).args(&paths[..2]).status();
        assert!(written.unwrap().success());
        let [script, program, ran] = paths.each_ref().map(|path| path.as_os_str());
        let set = |command: &mut Command| {
            command.env("SET", "by prepare");
        };
        let launched = Launched::start(&[script, "a b".as_ref(), ran], set).unwrap();
        assert!(launched.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(ran).unwrap(), "by prepare");
        let failure = Launched::start(&[program], |_| ()).err().unwrap();
        assert!(matches!(failure, Failure::Message(_, NOT_EXECUTABLE)), "{}", failure.message());
    }

    #[test]
    fn no_command_is_started_without_the_thread_that_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let ran = dir.path().join("ran");
        let command = ["touch", ran.to_str().unwrap()];
        let failure = without_threads(|| Launched::start(&command, |_| ()).err()).unwrap();
        assert!(failure.message().contains("no thread"), "{}", failure.message());
        assert!(!ran.exists());
    }
}
