//! A process that resumes suspended runtimes when this program can no longer do so, and that keeps the
//! name of their port from other users.
//!
//! A runtime that was started with a diagnostic port and finds no server there stays suspended. If
//! this program is killed, or has ended and a process of the command starts a runtime later, its
//! rescue process serves the port. A runtime that does not wait for the port still connects to whatever
//! has its name: the directory stays for it, too. The process ends, and removes the directory, when no
//! process has the port in its environment, and none may have it whose environment cannot be read.

use super::port::{self, Startup};
use super::procfs;
use crate::failure::{Failure, Result};
use diag_ipc::reverse::Server;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Interval between looks for processes with the port.
const LOOK: Duration = Duration::from_secs(1);

/// Time until the next look, or the next attempt to serve the port, when one did not succeed.
const RETRY: Duration = Duration::from_millis(50);

/// The command of a rescue process.
const COMMAND: &str = "rescue-runtimes";

/// A started rescue process. It begins to serve the port when this value is dropped, or when this
/// program ends in any way.
pub(super) struct Rescue {
    child: Child,
    port: Used,
    /// Its standard input, whose end it waits for.
    input: Option<ChildStdin>,
}

impl Rescue {
    pub(super) fn start(path: &Path, startup: Startup) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(COMMAND).arg(path);
        if startup == Startup::Running {
            command.arg("--nosuspend");
        }
        // A group of its own: Ctrl-C in the terminal does not end it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn();
        let mut child = child.map_err(|e| Failure::about("the rescue process of the port", e))?;
        let input = child.stdin.take();
        let port = Used::since(path, child.id(), std::process::id());
        Ok(Self { child, port, input })
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        self.input = None;
        // With nothing to do it ends at once.
        if !self.port.is_needed() {
            let _ = self.child.wait();
            // If it was killed, nothing has removed it.
            let _ = self.port.path.parent().map(std::fs::remove_dir);
        }
    }
}

/// A port, and the processes that cannot have it.
struct Used {
    path: PathBuf,
    /// When the rescue process started, before any process that gets the port.
    since: u64,
    /// The process of the recorder, and when it started: another process can have its id later.
    recorder: (u32, Option<u64>),
}

impl Used {
    fn since(path: &Path, rescue: u32, recorder: u32) -> Self {
        let since = procfs::start_time(rescue).unwrap_or_default();
        let recorder = (recorder, procfs::start_time(recorder));
        Self { path: path.to_owned(), since, recorder }
    }

    /// Whether a process has this port in its environment, or may have it. While a program replaces another one, the
    /// process has no environment: a second look finds it again.
    fn is_needed(&self) -> bool {
        let may_have_port =
            |pid: &u32| procfs::has_port(*pid, port::VARIABLE, &self.path) || self.is_hidden(*pid);
        let look = || perf_monitor::processes().iter().any(may_have_port);
        look() || {
            std::thread::sleep(RETRY);
            look()
        }
    }

    /// Whether a process may have got the environment of the command, and does not let its user look: it permits no
    /// debugger, as agents that keep keys do. A command is in the cgroup of its recorder.
    fn is_hidden(&self, pid: u32) -> bool {
        // The file of this program can have capabilities, which hide it, too. The recorder may have started in the
        // same tick as its rescue process, and waits for it.
        let is_rescue = || procfs::command_line(pid).get(1).is_some_and(|word| word == COMMAND);
        procfs::start_time(pid)
            .is_some_and(|started| started >= self.since && (pid, Some(started)) != self.recorder)
            && pid != std::process::id()
            && procfs::real_user(pid) == Some(rustix::process::getuid().as_raw())
            && procfs::is_below_own_cgroup(pid)
            && procfs::is_unreadable(pid)
            && !is_rescue()
    }
}

/// Resume suspended .NET runtimes after the recorder has ended
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The port of the recorder
    path: PathBuf,
    /// Runtimes do not wait for the port: only its directory is kept
    #[arg(long)]
    nosuspend: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    // Its parent once the recorder has ended is another process.
    let recorder = std::os::unix::process::parent_id();
    let port = Used::since(&args.path, std::process::id(), recorder);
    // The recorder writes nothing: this returns when it has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let path = &args.path;
    let directory = path.parent().unwrap_or(path);
    match std::fs::symlink_metadata(directory) {
        // A killed recorder left it. Nobody else can create files in it.
        Ok(found) if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() => {}
        Ok(_) => return Err(Failure::about(directory.display(), "is of another user")),
        Err(_) if !port.is_needed() => return Ok(()),
        Err(_) => std::fs::DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .map_err(|e| Failure::about(directory.display(), e))?,
    }
    if args.nosuspend {
        while port.is_needed() {
            std::thread::sleep(LOOK);
        }
        let _ = std::fs::remove_file(path); // a killed recorder left it
    } else {
        serve(&port)?;
    }
    let _ = std::fs::remove_dir(directory);
    Ok(())
}

/// Resumes runtimes that connect to the port, while a process has it in its environment.
fn serve(port: &Used) -> Result {
    let server = loop {
        match Server::bind(&port.path) {
            Ok(server) => break server,
            // The end of a killed recorder closes its files one after the other: it may still listen.
            Err(_) if port.is_needed() => std::thread::sleep(RETRY),
            Err(error) => return Err(Failure::new(error)),
        }
    };
    while port.is_needed() {
        if let Ok(runtime) = server.accept(LOOK) {
            // One that has ended meanwhile needs nothing; one that failed connects again.
            let _ = runtime.client().resume_runtime();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    #[test]
    fn a_process_that_hides_its_environment_may_have_the_port() {
        let sets = capabilities(None).unwrap();
        if !sets.effective.contains(CapabilitySet::SYS_PTRACE) {
            return; // none can be hidden from a thread of this program alone
        }
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let started = procfs::start_time(pid).unwrap();
        // `spawn` returns when the child gives up the memory of this process, a moment before it has its
        // own. Until then it is read as a thread of this process is.
        while !std::fs::read(format!("/proc/{pid}/cmdline")).unwrap().starts_with(b"sleep\0") {
            std::thread::yield_now();
        }
        // It has privileges that the thread does not have.
        let without_privileges = std::thread::spawn(move || {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            let is_hidden =
                |since, recorder| Used { path: PathBuf::new(), since, recorder }.is_hidden(pid);
            let own = (std::process::id(), None);
            let hidden = [0, started, started + 1].map(|since| is_hidden(since, own));
            // The recorder waits for its rescue process. Its id can be that of another process later.
            let recorders = [started, started - 1].map(|at| is_hidden(0, (pid, Some(at))));
            (hidden, recorders)
        });
        let (hidden, recorders) = without_privileges.join().unwrap();
        assert_eq!((hidden, recorders), ([true, true, false], [false, true]));
        let port = Used::since(Path::new(""), pid, std::process::id());
        assert!(!port.is_hidden(pid), "it can be read");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
