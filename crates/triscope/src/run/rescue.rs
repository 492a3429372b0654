//! A process that resumes suspended runtimes when this program can no longer do so, and that keeps the
//! name of their port from other users.
//!
//! A runtime that was started with a diagnostic port and finds no server there stays suspended. If
//! this program is killed, or has ended and a process of the command starts a runtime later, its
//! rescue process serves the port. A runtime that does not wait for the port still connects to whatever
//! has its name: the directory stays for it, too. The process ends, and removes the directory, when no
//! process has the port in its environment.

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

/// A started rescue process. It begins to serve the port when this value is dropped, or when this
/// program ends in any way.
pub(super) struct Rescue {
    path: PathBuf,
    child: Child,
    /// Its standard input, whose end it waits for.
    input: Option<ChildStdin>,
}

impl Rescue {
    pub(super) fn start(path: &Path, startup: Startup) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("rescue-runtimes").arg(path);
        if startup == Startup::Running {
            command.arg("--nosuspend");
        }
        // A group of its own: Ctrl-C in the terminal does not end it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn();
        let mut child = child.map_err(|e| Failure::about("the rescue process of the port", e))?;
        let input = child.stdin.take();
        Ok(Self { path: path.to_owned(), child, input })
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        self.input = None;
        // With nothing to do it ends at once.
        if !is_needed(&self.path) {
            let _ = self.child.wait();
            // If it was killed, nothing has removed it.
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}

/// Whether a process has this port in its environment. While a program replaces another one, the
/// process has no environment: a second look finds it again.
fn is_needed(path: &Path) -> bool {
    let has_port = |pid: &u32| procfs::has_port(*pid, port::VARIABLE, path);
    let look = || perf_monitor::processes().iter().any(has_port);
    look() || {
        std::thread::sleep(RETRY);
        look()
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
    // The recorder writes nothing: this returns when it has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let path = &args.path;
    let directory = path.parent().unwrap_or(path);
    match std::fs::symlink_metadata(directory) {
        // A killed recorder left it. Nobody else can create files in it.
        Ok(found) if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() => {}
        Ok(_) => return Err(Failure::about(directory.display(), "is of another user")),
        Err(_) if !is_needed(path) => return Ok(()),
        Err(_) => std::fs::DirBuilder::new()
            .mode(0o700)
            .create(directory)
            .map_err(|e| Failure::about(directory.display(), e))?,
    }
    if args.nosuspend {
        while is_needed(path) {
            std::thread::sleep(LOOK);
        }
        let _ = std::fs::remove_file(path); // a killed recorder left it
    } else {
        serve(path)?;
    }
    let _ = std::fs::remove_dir(directory);
    Ok(())
}

/// Resumes runtimes that connect to the port, while a process has it in its environment.
fn serve(path: &Path) -> Result {
    let server = loop {
        match Server::bind(path) {
            Ok(server) => break server,
            // The end of a killed recorder closes its files one after the other: it may still listen.
            Err(_) if is_needed(path) => std::thread::sleep(RETRY),
            Err(error) => return Err(Failure::new(error)),
        }
    };
    while is_needed(path) {
        if let Ok(runtime) = server.accept(LOOK) {
            // One that has ended meanwhile needs nothing; one that failed connects again.
            let _ = runtime.client().resume_runtime();
        }
    }
    Ok(())
}
