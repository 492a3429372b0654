//! A private diagnostic port for the runtimes of a started command.

use super::cleanup;
use crate::failure::{Failure, Result};
use diag_ipc::reverse::{Runtime, Server};
use std::path::Path;
use std::sync::Arc;

/// The variable that makes a runtime connect to a port.
pub(crate) const VARIABLE: &str = "DOTNET_DiagnosticPorts";

/// A socket that runtimes connect to at startup, before the first line of their programs.
pub(crate) struct Port {
    pub(crate) server: Arc<Server>,
    _directory: tempfile::TempDir,
    _guard: cleanup::Guard,
}

impl Port {
    pub(crate) fn bind() -> Result<Self> {
        // Only this user can access the directory.
        let directory = tempfile::Builder::new()
            .prefix("triscope-")
            .tempdir()
            .map_err(|e| Failure::about("a directory for the diagnostic port", e))?;
        let path = directory.path().join("port");
        let server = Arc::new(Server::bind(&path).map_err(Failure::new)?);
        let guard = cleanup::on_exit({
            let server = Arc::downgrade(&server);
            move || {
                if let Some(server) = server.upgrade() {
                    server.shutdown();
                }
                let _ = path.parent().map(std::fs::remove_dir); // no error handling is possible here
            }
        });
        Ok(Self { server, _directory: directory, _guard: guard })
    }

    /// The variable that makes runtimes connect here, and its value.
    pub(crate) fn variable(&self) -> (&str, &Path) {
        (VARIABLE, self.server.path())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.server.shutdown(); // other threads may still hold it
    }
}

/// The process of a runtime, by its process id in this namespace: its own one may be that of a
/// container.
pub(crate) fn process_of(runtime: &Runtime) -> u64 {
    runtime.peer().pid.map_or(runtime.pid(), u64::from)
}
