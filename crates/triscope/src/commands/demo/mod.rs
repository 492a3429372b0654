//! `triscope demo`: a timeline of bundled programs.

mod dotnet;
mod native;

use crate::failure::{Failure, Result};
use crate::run::child::{Launched, outcome_of_part};
use crate::run::cleanup;
use crate::run::stop::Listener;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Record bundled programs, and write timeline.pftrace and timeline.html
///
/// Starts a program with threads and a lock; with a Go toolchain (go, 1.22 or later) also an HTTP
/// server in Go with its clients, which is built in a temporary directory; with a .NET runtime
/// (dotnet, .NET Core 3.1 or later) also a program in .NET. The files go to the current directory.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope demo                      then open timeline.html in a browser
  sudo triscope demo                 with all threads of the machine")]
pub(crate) struct Args {
    /// Run as the recorded program
    #[arg(long, hide = true)]
    program: bool,
    /// Without the program in Go
    #[arg(long)]
    no_go: bool,
    /// Without the program in .NET
    #[arg(long)]
    no_dotnet: bool,
}

const SHOP: &str = include_str!("shop.go");

const MODULE: &str = "module shop\n\ngo 1.22\n";

pub(crate) fn run(args: &Args) -> Result {
    if args.program {
        return native::run();
    }
    let own = std::env::current_exe().map_err(|e| Failure::about("this program", e))?;
    let dir = tempfile::Builder::new().prefix("triscope-demo-").tempdir();
    let dir = dir.map_err(|error| Failure::about("a temporary directory", error))?;
    let path = dir.path().to_owned();
    let _guard = cleanup::on_exit(move || {
        let _ = std::fs::remove_dir_all(&path); // nothing is left to report to
    });
    let native = [own.as_os_str(), "demo".as_ref(), "--program".as_ref()];
    let (shop, orders) = {
        let _listener = Listener::exit();
        let shop = if args.no_go { None } else { build(dir.path()) };
        (shop, if args.no_dotnet { None } else { dotnet::command(dir.path()) })
    };
    let trace = dir.path().join("trace.out");
    // Each starts the ones after it.
    let mut command: Vec<&OsStr> = orders.iter().flatten().map(|word| word.as_os_str()).collect();
    if let Some(shop) = &shop {
        command.extend([shop.as_os_str(), trace.as_os_str()]);
    }
    command.extend(native);
    let keep = dir.path().join("demo");
    let (timeline, page) = (Path::new("timeline.pftrace"), Path::new("timeline.html"));
    let record: [&OsStr; 7] = [
        "record".as_ref(),
        "--is-part".as_ref(),
        "--keep".as_ref(),
        keep.as_os_str(),
        "-o".as_ref(),
        timeline.as_os_str(),
        "--".as_ref(),
    ];
    triscope(&own, record.into_iter().chain(command))?;
    if !has_traces(&keep) {
        let why = "there are no traces: the scheduler is not recorded (triscope doctor), and neither \
                   a Go toolchain nor a .NET runtime was found";
        return Err(Failure::about(page.display(), why));
    }
    triscope(&own, ["report".as_ref(), keep.as_os_str(), "--html".as_ref(), page.as_os_str()])?;
    let (page, timeline) = (page.display(), timeline.display());
    message!(
        "open {page} in a browser, and {timeline} at https://ui.perfetto.dev (\"Open trace file\")"
    );
    Ok(())
}

/// Runs this program with other arguments, as a user would.
fn triscope<'a>(own: &'a Path, args: impl IntoIterator<Item = &'a OsStr>) -> Result {
    let command: Vec<&OsStr> = std::iter::once(own.as_os_str()).chain(args).collect();
    outcome_of_part("the demo", Launched::start(&command, |_| ())?.wait()?)
}

/// Builds the program in Go. Reports why, if it cannot.
fn build(dir: &Path) -> Option<PathBuf> {
    let skip = |why: &str| {
        Failure::about("without the program in Go", why).print();
        None
    };
    let written = std::fs::write(dir.join("shop.go"), SHOP)
        .and_then(|()| std::fs::write(dir.join("go.mod"), MODULE));
    if let Err(error) = written {
        return skip(&error.to_string());
    }
    let mut go = Command::new("go");
    // Nothing is downloaded, and the settings of a workspace around do not apply.
    go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=mod").env("GOWORK", "off");
    let output = go.args(["build", "-o", "shop", "."]).current_dir(dir).stdin(Stdio::null());
    match output.output() {
        Ok(output) if output.status.success() => Some(dir.join("shop")),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            skip(text.lines().last().unwrap_or("go build failed"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip("go is not in the search path")
        }
        Err(error) => skip(&error.to_string()),
    }
}

/// Whether a recording has more than its description and the CPU quotas.
fn has_traces(keep: &Path) -> bool {
    const OTHERS: [&str; 3] = [
        crate::sources::model::RECORDING,
        crate::sources::model::PROCESSES,
        crate::sources::quota::QUOTAS,
    ];
    let mut entries = std::fs::read_dir(keep).into_iter().flatten().flatten();
    entries.any(|entry| !OTHERS.iter().any(|other| entry.file_name() == *other))
}
