//! Running Go programs and .NET runtimes.

use super::Check;
use crate::run::{go_program, procfs, time_namespace};
use diag_ipc::Timeouts;
use diag_ipc::discovery;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Programs that a line names.
const NAMED: usize = 5;

/// Time limit for a process to reply: a busy one must not delay the list.
const TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn checks() -> Vec<Check> {
    vec![go(), go_toolchain(), dotnet()]
}

/// The fix of what root may do.
fn as_root(is_refused: bool) -> Option<String> {
    let is_useful = is_refused && !rustix::process::geteuid().is_root();
    is_useful.then(|| "sudo triscope doctor".to_owned())
}

/// Why the times in a trace of a process are not those of the kernel's records, after its version in a list.
fn clock_note(pid: u32) -> String {
    time_namespace::deviation(Some(pid)).map(|why| format!(", {why}")).unwrap_or_default()
}

/// The Go programs whose executable can be read.
fn go() -> Check {
    let (id, what) = ("go", "Go programs that run");
    let mut versions: BTreeMap<(u64, u64), Option<String>> = BTreeMap::new();
    let (mut found, mut unreadable) = (Vec::new(), 0_u64);
    for pid in perf_monitor::processes() {
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let Ok(metadata) = std::fs::metadata(&exe) else {
            // Kernel threads have no executable and no command line.
            unreadable += u64::from(!procfs::command_line(pid).concat().is_empty());
            continue;
        };
        let file = (metadata.dev(), metadata.ino());
        let version = versions.entry(file).or_insert_with(|| go_program::version(&exe));
        if let Some(version) = version {
            let name = String::from_utf8_lossy(&procfs::comm(pid, pid)).into_owned();
            let is_old = go_program::release(version)
                .is_some_and(|release| release < go_program::SAME_CLOCK);
            let clock = match is_old {
                true => ", its clock is not that of the kernel".to_owned(),
                false => clock_note(pid),
            };
            found.push((pid, name, version.clone(), clock));
        }
    }
    let unseen = match unreadable {
        0 => String::new(),
        n => format!("; processes that cannot be examined: {n}"),
    };
    let fix = as_root(unreadable > 0);
    if found.is_empty() {
        let note = format!("none; execution traces of Go 1.11 and later are read{unseen}");
        return Check { fix, ..Check::yes(id, what, note) };
    }
    let names: Vec<String> = found
        .iter()
        .take(NAMED)
        .map(|(pid, name, version, clock)| format!("{name} {pid} ({version}{clock})"))
        .collect();
    let more = found.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let check = Check::yes(id, what, format!("{}{more}{unseen}", names.join(", ")));
    let check = Check { fix, ..check };
    if found.iter().all(|(.., clock)| !clock.is_empty()) { check.partly() } else { check }
}

fn go_toolchain() -> Check {
    let (id, what) = ("go-toolchain", "Go toolchain");
    let mut go = Command::new("go");
    go.args(["env", "GOVERSION"]).stdin(Stdio::null());
    // A `go.mod` or a setting can name another toolchain, which `go` would download.
    go.env("GOTOOLCHAIN", "local").env("GO111MODULE", "off").current_dir("/");
    match go.output() {
        Ok(output) if output.status.success() => {
            Check::yes(id, what, String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(output) => Check::no(id, what, String::from_utf8_lossy(&output.stderr).trim(), None),
        Err(_) => Check::yes(id, what, "none; only triscope demo uses one"),
    }
}

fn dotnet() -> Check {
    let (id, what) = ("dotnet", ".NET runtimes that run");
    let found = match discovery::processes() {
        Ok(found) => found,
        Err(error) => return Check::no(id, what, error, None),
    };
    let timeouts = Timeouts::default().connect(TIMEOUT).reply(TIMEOUT);
    let names: Vec<String> = found
        .processes
        .iter()
        .take(NAMED)
        .map(|process| match process.client().timeouts(timeouts).process_info() {
            Ok(info) => {
                let version = info.clr_version.unwrap_or_default();
                let version = version.split(['+', ' ']).next().unwrap_or_default().to_owned();
                let version = if version.is_empty() { "before .NET 6".to_owned() } else { version };
                format!("{} ({version}{})", process.pid, clock_note(process.pid))
            }
            Err(error) => format!("{} ({error})", process.pid),
        })
        .collect();
    let unseen = match found.unreadable {
        0 => String::new(),
        n => format!("; processes that cannot be read and may be missing: {n}"),
    };
    let fix = as_root(found.unreadable > 0);
    let more = found.processes.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let note = if names.is_empty() {
        format!("none; .NET Core 3.1 and later are recorded by their diagnostic port{unseen}")
    } else {
        format!("{}{more}{unseen}", names.join(", "))
    };
    Check { fix, ..Check::yes(id, what, note) }
}
