use super::target::{Selector, Target};
use crate::failure::{Failure, Result};
use crate::run::duration::duration;
use diag_ipc::Guid;
use std::io;
use std::path::Path;
use std::time::Duration;
use trace_common::{FindError, FoundFile};

/// Load a profiler (a library with the CLR profiling API) into a process
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Attach(Attach),
    Startup(Startup),
}

/// Attach a profiler to a running process
///
/// The library must support being attached. A process has one profiler at a time.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet profiler attach cf0d821e-299b-5307-a3d8-b283c03916dd /opt/profiler.so 1234")]
pub(crate) struct Attach {
    #[command(flatten)]
    library: Library,
    #[command(flatten)]
    target: Selector,
    /// Time limit of the runtime: seconds, or dd:hh:mm:ss
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    timeout: Duration,
}

/// Set the profiler that a suspended runtime loads when it is resumed (.NET 6)
///
/// It is the profiler that CORECLR_PROFILER and CORECLR_PROFILER_PATH set. A running process has
/// loaded its startup profiler already.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  DOTNET_DefaultDiagnosticPortSuspend=1 ./app & sleep 1
  triscope dotnet profiler startup cf0d821e-299b-5307-a3d8-b283c03916dd /opt/profiler.so $!
  triscope dotnet resume $!")]
pub(crate) struct Startup {
    #[command(flatten)]
    library: Library,
    #[command(flatten)]
    target: Selector,
}

#[derive(clap::Args)]
struct Library {
    /// The class of the profiler
    #[arg(value_name = "GUID")]
    class: Guid,
    /// The library: an absolute path in the file system of the process
    #[arg(value_name = "PATH", value_parser = absolute)]
    path: String,
}

fn absolute(path: &str) -> std::result::Result<String, &'static str> {
    let is_absolute = path.starts_with('/');
    is_absolute.then(|| path.to_owned()).ok_or("expected an absolute path, beginning with /")
}

impl Command {
    pub(super) fn run(&self) -> Result {
        match self {
            Self::Attach(args) => args.run(),
            Self::Startup(args) => args.run(),
        }
    }
}

impl Attach {
    fn run(&self) -> Result {
        let target = self.target.resolve()?;
        let Library { class, path } = &self.library;
        check(&target, path)?;
        let sent = target.client.attach_profiler(self.timeout, *class, path, &[]);
        sent.map_err(target.failure())
    }
}

impl Startup {
    fn run(&self) -> Result {
        let target = self.target.resolve()?;
        let Library { class, path } = &self.library;
        check(&target, path)?;
        // A running runtime reports success and does nothing.
        if target.client.is_suspended().map_err(target.failure())? == Some(false) {
            let hint = "is not suspended at startup: a running process gets a profiler by \
                        triscope dotnet profiler attach";
            return Err(Failure::about(&target.name, hint));
        }
        target.client.startup_profiler(*class, path).map_err(target.failure())
    }
}

/// Checks that the process sees a regular file at this path. A file that this user cannot look up is
/// left to the runtime.
fn check(target: &Target, path: &str) -> Result {
    let pid = match target.pid {
        Some(pid) => Some(pid),
        None => target.client.peer().map_err(target.failure())?.pid,
    };
    use io::ErrorKind::{NotADirectory, NotFound};
    let is_file = match pid.map(|pid| is_file(pid, path)) {
        Some(Ok(is_file)) => is_file,
        Some(Err(error)) if matches!(error.kind(), NotFound | NotADirectory) => {
            return Err(Failure::about(path, format!("{} has no such file", target.name)));
        }
        Some(Err(_)) | None => true,
    };
    if is_file { Ok(()) } else { Err(Failure::about(path, "is not a regular file")) }
}

/// Whether a path is that of a regular file within the root directory of a process, also through
/// links.
fn is_file(pid: u32, path: &str) -> io::Result<bool> {
    // Without the directory of the process, nothing is known about the file.
    let root = FoundFile::root_of(pid).map_err(|_| io::ErrorKind::PermissionDenied)?;
    match FoundFile::find_in(root, Path::new(path)) {
        Ok(_) => Ok(true),
        Err(FindError::Io(error)) => Err(error),
        Err(_) => Ok(false),
    }
}
