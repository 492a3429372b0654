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
    path: PathBuf,
    child: Child,
    /// When it started, before any process that gets the port.
    since: u64,
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
        let since = procfs::start_time(child.id()).unwrap_or_default();
        Ok(Self { path: path.to_owned(), child, since, input })
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        self.input = None;
        // With nothing to do it ends at once.
        if !is_needed(&self.path, self.since) {
            let _ = self.child.wait();
            // If it was killed, nothing has removed it.
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}

/// Whether a process has this port in its environment, or may have it. It was created at this time. While a program
/// replaces another one, the process has no environment: a second look finds it again.
fn is_needed(path: &Path, since: u64) -> bool {
    let may_have_port =
        |pid: &u32| procfs::has_port(*pid, port::VARIABLE, path) || is_hidden(*pid, since);
    let look = || perf_monitor::processes().iter().any(may_have_port);
    look() || {
        std::thread::sleep(RETRY);
        look()
    }
}

/// Whether a process may have got the environment of the command, and does not let its user look: it permits no
/// debugger, as agents that keep keys do. A command is in the cgroup of its recorder.
fn is_hidden(pid: u32, since: u64) -> bool {
    // The file of this program can have capabilities, which hide it, too.
    let is_rescue = || procfs::command_line(pid).get(1).is_some_and(|word| word == COMMAND);
    procfs::start_time(pid).is_some_and(|started| started >= since)
        && pid != std::process::id()
        && procfs::real_user(pid) == Some(rustix::process::getuid().as_raw())
        && procfs::is_below_own_cgroup(pid)
        && procfs::is_unreadable(pid)
        && !is_rescue()
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
    // The recorder writes nothing: this returns when it has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let path = &args.path;
    let since = procfs::start_time(std::process::id()).unwrap_or_default();
    let directory = path.parent().unwrap_or(path);
    match std::fs::symlink_metadata(directory) {
        // A killed recorder left it. Nobody else can create files in it.
        Ok(found) if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() => {}
        Ok(_) => return Err(Failure::about(directory.display(), "is of another user")),
        Err(_) if !is_needed(path, since) => return Ok(()),
        Err(_) => std::fs::DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .map_err(|e| Failure::about(directory.display(), e))?,
    }
    if args.nosuspend {
        while is_needed(path, since) {
            std::thread::sleep(LOOK);
        }
        let _ = std::fs::remove_file(path); // a killed recorder left it
    } else {
        serve(path, since)?;
    }
    let _ = std::fs::remove_dir(directory);
    Ok(())
}

/// Resumes runtimes that connect to the port, while a process has it in its environment.
fn serve(path: &Path, since: u64) -> Result {
    let server = loop {
        match Server::bind(path) {
            Ok(server) => break server,
            // The end of a killed recorder closes its files one after the other: it may still listen.
            Err(_) if is_needed(path, since) => std::thread::sleep(RETRY),
            Err(error) => return Err(Failure::new(error)),
        }
    };
    while is_needed(path, since) {
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
        // It has privileges that the thread does not have.
        let without_privileges = std::thread::spawn(move || {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            [0, started, started + 1].map(|since| is_hidden(pid, since))
        });
        assert_eq!(without_privileges.join().unwrap(), [true, true, false]);
        assert!(!is_hidden(pid, started), "it can be read");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
