//! A private diagnostic port for the runtimes of a started command.

use super::{cleanup, rescue};
use crate::failure::{Failure, Result};
use diag_ipc::reverse::{Runtime, Server};
use std::ffi::OsString;
use std::sync::Arc;

/// The variable that makes a runtime connect to a port.
pub(crate) const VARIABLE: &str = "DOTNET_DiagnosticPorts";

/// How runtimes start that connect to a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Startup {
    /// They wait before the first line of their programs until they are resumed.
    Suspended,
    /// They do not wait: one that cannot reach the port runs, too.
    Running,
}

/// A socket that runtimes connect to at startup, before the first line of their programs.
pub(crate) struct Port {
    pub(crate) server: Arc<Server>,
    startup: Startup,
    directory: tempfile::TempDir,
    _guard: cleanup::Guard,
    /// Resumes suspended runtimes after this value or this program has ended.
    rescue: Option<rescue::Rescue>,
}

impl Port {
    pub(crate) fn bind(startup: Startup) -> Result<Self> {
        // Only this user can access the directory.
        let directory = tempfile::Builder::new()
            .prefix("triscope-")
            .tempdir()
            .map_err(|e| Failure::about("a directory for the diagnostic port", e))?;
        let path = directory.path().join("port");
        let server = Arc::new(Server::bind(&path).map_err(Failure::new)?);
        let rescue = match startup {
            Startup::Suspended => Some(rescue::Rescue::start(&path)?),
            Startup::Running => None,
        };
        let guard = cleanup::on_exit({
            let server = Arc::downgrade(&server);
            move || {
                if let Some(server) = server.upgrade() {
                    server.shutdown();
                }
                let _ = path.parent().map(std::fs::remove_dir); // no error handling is possible here
            }
        });
        Ok(Self { server, startup, directory, _guard: guard, rescue })
    }

    pub(crate) const fn startup(&self) -> Startup {
        self.startup
    }

    /// The variable that makes runtimes connect here, and its value. The ports of the user remain.
    pub(crate) fn variable(&self) -> (&str, OsString) {
        let mut value = std::env::var_os(VARIABLE).unwrap_or_default();
        if !value.is_empty() {
            value.push(";");
        }
        value.push(self.server.path());
        if self.startup == Startup::Running {
            value.push(",nosuspend");
        }
        (VARIABLE, value)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.server.shutdown(); // other threads may still hold it
        // Its path must be free before the next server is bound there.
        let _ = std::fs::remove_dir(self.directory.path());
        self.rescue = None;
    }
}

/// The process of a runtime, by its process id in this namespace: its own one may be that of a
/// container.
pub(crate) fn process_of(runtime: &Runtime) -> u64 {
    runtime.peer().pid.map_or(runtime.pid(), u64::from)
}
