//! A private diagnostic port for the runtimes of a started command.

use super::{cleanup, rescue};
use crate::failure::{Failure, Result};
use diag_ipc::reverse::{Runtime, Server};
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
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
    _guard: cleanup::Guard,
    /// Resumes suspended runtimes after this value or this program has ended, and removes the
    /// directory when no process has the port in its environment any more: a runtime connects to it
    /// for as long as it lives, and obeys any user who can create it again.
    rescue: Option<rescue::Rescue>,
}

/// The socket in its directory.
const SOCKET: &str = "port";

/// The beginning of the directory's name, and its length.
const PREFIX: &str = "triscope-";
const NAME: usize = PREFIX.len() + 6;

/// The longest path of a socket: see `unix(7)`.
const MAX_PATH: usize = 107;

/// Where directories of ports are created.
fn parent() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|path| is_private(path)).unwrap_or_else(std::env::temp_dir)
}

/// Whether only this user can create files in this directory, and a socket fits into it. Some
/// characters separate ports and their options.
fn is_private(directory: &Path) -> bool {
    directory.is_absolute()
        && directory.as_os_str().len() + NAME + SOCKET.len() + 2 <= MAX_PATH
        && directory.to_str().is_some_and(|path| !path.contains([',', ';']))
        && std::fs::symlink_metadata(directory).is_ok_and(|found| {
            let is_own = found.uid() == rustix::process::geteuid().as_raw();
            found.is_dir() && is_own && found.mode() & 0o777 == 0o700
        })
}

impl Port {
    pub(crate) fn bind(startup: Startup) -> Result<Self> {
        // Only this user can access the directory.
        let directory = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o700))
            .prefix(PREFIX)
            .tempdir_in(parent())
            .map_err(|e| Failure::about("a directory for the diagnostic port", e))?;
        let path = directory.path().join(SOCKET);
        let server = Arc::new(Server::bind(&path).map_err(Failure::new)?);
        let rescue = rescue::Rescue::start(&path, startup)?;
        let _ = directory.keep(); // from now on, the rescue process removes it
        let guard = cleanup::on_exit({
            let server = Arc::downgrade(&server);
            move || {
                if let Some(server) = server.upgrade() {
                    server.shutdown();
                }
            }
        });
        Ok(Self { server, startup, _guard: guard, rescue: Some(rescue) })
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
        self.rescue = None; // now it may bind its own server
    }
}

/// The process of a runtime, by its process id in this namespace: its own one may be that of a
/// container.
pub(crate) fn process_of(runtime: &Runtime) -> u64 {
    runtime.peer().pid.map_or(runtime.pid(), u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{DirBuilder, set_permissions};
    use std::os::unix::fs::DirBuilderExt;

    #[test]
    fn ports_are_created_in_private_directories_only() {
        let dir = tempfile::tempdir().unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(is_private(dir.path()));
        assert!(!is_private(Path::new("relative")) && !is_private(&dir.path().join("missing")));
        for mode in [0o755, 0o710, 0o1777] {
            set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            assert!(!is_private(dir.path()), "{mode:o}");
        }
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(!is_private(&link));
        let room = MAX_PATH - dir.path().as_os_str().len() - 1 - "/triscope-XXXXXX/port".len();
        let names =
            [("x".repeat(room), true), ("x".repeat(room + 1), false), ("a,b".into(), false)];
        for (name, is_fit) in names {
            let directory = dir.path().join(name);
            DirBuilder::new().mode(0o700).create(&directory).unwrap();
            assert_eq!(is_private(&directory), is_fit, "{}", directory.display());
        }
    }
}
