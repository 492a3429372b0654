use crate::failure::{Failure, Result};
use crate::run::cleanup;
use crate::run::named::{is_program, only};
use crate::run::port::process_of;
use crate::run::stop::Listener;
use crate::run::threads;
use diag_ipc::discovery::{self, Process};
use diag_ipc::reverse::Server;
use diag_ipc::{Client, Error, Timeouts};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The process of a command.
#[derive(clap::Args)]
pub(crate) struct Selector {
    /// The process
    #[arg(value_name = "PID", group = "target")]
    pid: Option<u32>,
    #[command(flatten)]
    options: Options,
}

/// The process of a command, without a positional PID.
#[derive(clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct Options {
    /// The process, as in dotnet-trace
    #[arg(short, long = "process-id", visible_alias = "pid", value_name = "PID", group = "target")]
    process_id: Option<u32>,
    /// The process with this program or entry assembly, if there is only one
    #[arg(short, long, group = "target")]
    name: Option<String>,
    /// A diagnostic port: a socket to listen on for a runtime that was started with
    /// DOTNET_DiagnosticPorts=PATH, or, with ",connect", one that a runtime listens on
    #[arg(
        long,
        visible_aliases = ["port", "dport"],
        value_name = "PATH[,listen|,connect]",
        group = "target"
    )]
    diagnostic_port: Option<String>,
}

/// A process with a diagnostic server.
pub(crate) struct Target {
    pub(crate) client: Client,
    /// Its id, if that is known.
    pub(crate) pid: Option<u32>,
    /// Its name in messages.
    pub(crate) name: String,
    /// The server that it connected to, which must live as long as the connection is used.
    pub(crate) server: Option<Arc<Server>>,
    /// Removes the server's socket if a signal ends the program.
    pub(crate) _guard: Option<cleanup::Guard>,
    /// Ends the program on a signal, once a listener was used to wait for the process. The signals have no
    /// effect without one.
    pub(crate) exit: Cell<Option<Listener>>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.shutdown(); // other threads may still hold it
        }
    }
}

impl Selector {
    /// Whether no process was specified.
    pub(crate) const fn is_empty(&self) -> bool {
        self.pid.is_none() && self.options.is_empty()
    }

    /// Finds the process, or waits for it at a diagnostic port.
    pub(crate) fn resolve(&self) -> Result<Target> {
        self.pid.map_or_else(|| self.options.resolve(), process)
    }
}

impl Options {
    /// Whether no process was specified.
    pub(crate) const fn is_empty(&self) -> bool {
        self.process_id.is_none() && self.name.is_none() && self.diagnostic_port.is_none()
    }

    /// Finds the process, or waits for it at a diagnostic port.
    pub(crate) fn resolve(&self) -> Result<Target> {
        if let Some(pid) = self.process_id {
            return process(pid);
        }
        if let Some(name) = &self.name {
            return process(find(name)?);
        }
        let Some(port) = &self.diagnostic_port else {
            return Err(Failure::new(
                "no process: pass a PID, -n NAME or --diagnostic-port PORT (triscope dotnet ps lists \
                 processes)",
            )
            .with_code(2));
        };
        match port.rsplit_once(',').unwrap_or((port, "listen")) {
            (path, "connect") => {
                let client = Client::new(PathBuf::from(path));
                let name = path.to_owned();
                Ok(Target {
                    client,
                    pid: None,
                    name,
                    server: None,
                    _guard: None,
                    exit: Cell::default(),
                })
            }
            (path, "listen") => listen(Path::new(path)),
            (_, other) => {
                let what = format!("a diagnostic port is listen or connect, not {other}");
                Err(Failure::new(what).with_code(2))
            }
        }
    }
}

/// The process with this id.
pub(crate) fn process(pid: u32) -> Result<Target> {
    let client = Client::for_process(pid).map_err(Failure::new)?;
    let name = format!("process {pid}");
    Ok(Target { client, pid: Some(pid), name, server: None, _guard: None, exit: Cell::default() })
}

/// Time limit for a process to report its entry assembly.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The only process with this program or entry assembly.
fn find(name: &str) -> Result<u32> {
    let found = discovery::processes().map_err(Failure::new)?;
    // The second word is the program of `dotnet app.dll`.
    let runs_program = |process: &&Process| {
        process.command_line().iter().take(2).any(|word| is_program(word, name))
    };
    // Only the runtime knows its entry assembly, so it is queried if no program has the name.
    let has_assembly = |process: &&Process| {
        let client = process.client().timeouts(Timeouts::default().connect(TIMEOUT).reply(TIMEOUT));
        let assembly = client.process_info().ok().and_then(|info| info.entry_assembly);
        assembly.is_some_and(|assembly| assembly == name)
    };
    let mut named: Vec<_> = found.processes.iter().filter(runs_program).collect();
    if named.is_empty() {
        named = found.processes.iter().filter(has_assembly).collect();
    }
    let mut pids = named.iter().map(|process| process.pid);
    only(name, ".NET process", &mut pids).map_err(Failure::new)
}

fn listen(path: &Path) -> Result<Target> {
    // The absolute path is the one that must fit into an address.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let server = Server::bind(&path).map_err(|e| Failure::about(path.display(), e))?;
    let server = Arc::new(server);
    let guard = cleanup::on_exit({
        let server = Arc::downgrade(&server);
        move || {
            if let Some(server) = server.upgrade() {
                server.shutdown();
            }
        }
    });
    let exit = Listener::exit();
    message!("waiting for a runtime started with DOTNET_DiagnosticPorts={}", path.display());
    loop {
        match server.accept(Duration::from_secs(3600)) {
            Ok(runtime) => {
                let pid = process_of(&runtime);
                message!("process {pid} has connected");
                return Ok(Target {
                    client: runtime.client(),
                    pid: u32::try_from(pid).ok(),
                    name: format!("process {pid}"),
                    server: Some(server),
                    _guard: Some(guard),
                    exit: Cell::new(exit),
                });
            }
            Err(Error::Timeout { .. }) => {}
            Err(e) => return Err(Failure::new(e)),
        }
    }
}

/// Resumes every other runtime that connects to the open port: child processes of the traced
/// program inherit its environment, and would stay suspended forever.
fn resume_others(server: &Arc<Server>) -> Result {
    let server = Arc::downgrade(server);
    let resume = move || {
        while let Some(server) = server.upgrade() {
            match server.accept(Duration::from_millis(200)) {
                Ok(runtime) => {
                    let pid = process_of(&runtime);
                    match runtime.client().resume_runtime() {
                        Ok(()) => message!("process {pid} has also connected and is not traced"),
                        Err(e) => message!("process {pid} has connected, and waits: {e}"),
                    }
                }
                Err(Error::Timeout { .. }) => {}
                Err(_) => break,
            }
        }
    };
    threads::start(resume).map_err(Failure::new)?;
    Ok(())
}

impl Target {
    /// Its process id, by the socket if it was not named.
    pub(crate) fn process(&self) -> Option<u32> {
        self.pid.or_else(|| self.client.peer().ok()?.pid)
    }

    /// The major version of the runtime, if it reports that (.NET 6).
    pub(super) fn major_version(&self) -> Result<Option<u32>> {
        match self.client.process_info() {
            Ok(info) => Ok(info.major_version()),
            Err(error) if error.is_timeout() => Err(self.failure()(error)),
            Err(_) => Ok(None), // an older runtime does not know the command
        }
    }

    /// Whether the runtime may be suspended at startup: at a diagnostic port, or if a process is not known to run.
    pub(super) fn may_be_suspended(&self) -> Result<bool> {
        // The threads of the process at the other end of a port need not be those of the runtime.
        if self.pid.is_none() || self.server.is_some() {
            return Ok(true);
        }
        match self.client.is_suspended() {
            Ok(state) => Ok(state != Some(false)),
            Err(error) if error.is_timeout() => Err(self.failure()(error)),
            Err(_) => Ok(true), // a request that fails here is no reason to refuse another one
        }
    }

    /// Resumes a runtime that may be suspended, as dotnet-trace does: one that runs ignores it. At a port that is
    /// open here, the others are resumed, too.
    pub(super) fn resume(&self) -> Result {
        match self.client.resume_runtime() {
            // .NET Core 3.1 cannot be suspended.
            Err(error) if error.is_unknown_command() => {}
            other => other.map_err(self.failure())?,
        }
        self.server.as_ref().map_or(Ok(()), resume_others)
    }

    /// Resumes a runtime that is suspended at a diagnostic port after a failure: nothing else would.
    pub(super) fn resume_after_failure(&self) {
        if self.server.is_none() {
            return;
        }
        if let Err(error) = self.client.resume_runtime() {
            Failure::about(&self.name, format_args!("it is not resumed: {error}")).print();
        }
    }

    /// Converts an error of a request to this process to a failure.
    pub(crate) fn failure(&self) -> impl Fn(Error) -> Failure + '_ {
        |error| Failure::about(&self.name, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::threads::refusal::without_threads;

    #[test]
    fn others_that_no_thread_can_resume_are_a_failure_and_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let server = Arc::new(Server::bind(&dir.path().join("port")).unwrap());
        let failure = without_threads(|| resume_others(&server).err()).unwrap();
        assert!(failure.message().starts_with("no thread could be started"));
        assert!(resume_others(&server).is_ok());
    }
}
