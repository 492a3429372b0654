use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use diag_ipc::discovery::{self, Process, ProcessList, UnseenSocket};
use diag_ipc::{Error, ProcessInfo, Timeouts};
use rustix::thread::CapabilitySet;
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::time::Duration;

/// List .NET processes, including those in containers
///
/// For root, these are the processes of all users. Without root, a process of another user is listed if its socket is
/// in /tmp, and its runtime cannot be queried.
///
/// A socket that is named after a process and does not belong to it is reported and not used. So are sockets in
/// the temporary directory of processes that are not visible here: a side-car container that shares /tmp with
/// others, but no PID namespace, sees only those.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet ps
  triscope dotnet ps --json | jq '.processes[].pid'

The runtime's version is - where the runtime does not report it (before .NET 6) or does not answer. It is
\"not permitted\" where this user cannot connect to the socket, which is that of another user.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Time limit for a process to reply: a busy one must not delay the list.
const TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn run(args: &Args) -> Result {
    let found = discovery::processes().map_err(Failure::new)?;
    let timeouts = Timeouts::default().connect(TIMEOUT).reply(TIMEOUT);
    let rows: Vec<Row<'_>> = found
        .processes
        .iter()
        .map(|process| Row { process, info: process.client().timeouts(timeouts).process_info() })
        .collect();
    let mut output = Output::new();
    let buffer = &mut output.buffer;
    if args.json {
        let processes: Vec<_> = rows.iter().map(Row::json).collect();
        let refused: Vec<_> = found.rejected.iter().map(ToString::to_string).collect();
        let value = json!({
            "processes": processes,
            "refused": refused,
            "stale_sockets": found.stale,
            "unseen_sockets": found.unseen.iter().map(unseen_json).collect::<Vec<_>>(),
            "more_unseen_sockets": found.more_unseen,
            "unreadable_processes": found.unreadable,
        });
        let _ = writeln!(buffer, "{value:#}"); // writing to a vector does not fail
    } else {
        let _ = print(&rows, buffer);
    }
    output.finish()?;
    remarks(&found);
    Ok(())
}

struct Row<'a> {
    process: &'a Process,
    info: diag_ipc::Result<ProcessInfo>,
}

impl Row<'_> {
    fn command(&self) -> String {
        self.process.command_line().join(" ")
    }

    fn json(&self) -> serde_json::Value {
        let Process { pid, namespace_pid, uid, start_time, .. } = self.process;
        let info = self.info.as_ref().ok();
        json!({
            "pid": pid,
            "namespace_pid": namespace_pid,
            "uid": uid,
            "start_time_ticks": start_time,
            "socket": self.process.address().path(),
            "command_line": self.process.command_line(),
            "clr_version": info.and_then(|i| i.clr_version.as_deref()),
            "entry_assembly": info.and_then(|i| i.entry_assembly.as_deref()),
            "arch": info.map(|i| i.arch.as_str()),
        })
    }
}

/// The version of a runtime, or the reason that it is not known.
fn version(info: &diag_ipc::Result<ProcessInfo>) -> &str {
    match info {
        Ok(ProcessInfo { clr_version: Some(version), .. }) => {
            // The commit hash is of no use in a table.
            version.split_once(['+', ' ']).map_or(version.as_str(), |(version, _)| version)
        }
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            "not permitted"
        }
        _ => "-",
    }
}

fn print(rows: &[Row<'_>], out: &mut Vec<u8>) -> std::io::Result<()> {
    writeln!(out, "{:>8} {:>8} {:>6} {:<14} COMMAND", "PID", "IN-NS", "USER", "RUNTIME")?;
    for row in rows {
        let Process { pid, namespace_pid, uid, .. } = row.process;
        let inner = if pid == namespace_pid { "-".to_owned() } else { namespace_pid.to_string() };
        let (version, command) = (version(&row.info), row.command());
        let (version, command) = (OneLine(version).to_string(), OneLine(&command));
        writeln!(out, "{pid:>8} {inner:>8} {uid:>6} {version:<14} {command}")?;
    }
    Ok(())
}

fn unseen_json(socket: &UnseenSocket) -> serde_json::Value {
    let UnseenSocket { path, uid, listener, .. } = socket;
    json!({ "socket": path, "uid": uid, "listener_pid": listener })
}

/// Reports processes and sockets that are not in the list.
fn remarks(found: &ProcessList) {
    for error in &found.rejected {
        message!("triscope: {}", OneLine(&error.to_string()));
    }
    let (visible, elsewhere): (Vec<_>, Vec<_>) =
        found.unseen.iter().partition(|socket| socket.listener.is_some());
    unseen("sockets of processes in another PID namespace", &elsewhere);
    unseen("sockets of processes that are not in the list", &visible);
    if found.more_unseen {
        let after = match found.unseen.len() {
            0 => "there may be sockets of other processes: the search was ended".to_owned(),
            n => format!("there may be more such sockets: the list of them ends after {n}"),
        };
        message!("triscope: {after}");
    }
    if !found.stale.is_empty() {
        message!("triscope: sockets of processes that have ended: {}", found.stale.len());
        for path in &found.stale {
            message!("  {}", OneLine(&path.display().to_string()));
        }
    }
    if found.unreadable > 0 {
        // With it, they have a capability that this process lacks, or an environment that is too large.
        let can_trace = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
        let needed = if can_trace { "" } else { " (this needs CAP_SYS_PTRACE)" };
        let count = found.unreadable;
        message!("triscope: processes that cannot be read and may be missing: {count}{needed}");
    }
}

/// Lists sockets that only their path selects.
fn unseen(what: &str, sockets: &[&UnseenSocket]) {
    if sockets.is_empty() {
        return;
    }
    message!("triscope: {what}: {}: use --diagnostic-port PATH,connect", sockets.len());
    let user = rustix::process::geteuid().as_raw();
    for UnseenSocket { path, uid, listener, .. } in sockets {
        let owner = owner(*listener, Some(*uid).filter(|uid| *uid != user));
        message!("  {}{owner}", OneLine(&path.display().to_string()));
    }
}

/// The process that listens on a socket, and its user if that is another one: any user can make such a socket.
fn owner(listener: Option<u32>, user: Option<u32>) -> String {
    match (listener, user) {
        (Some(pid), Some(uid)) => format!(" (of process {pid} of user {uid})"),
        (Some(pid), None) => format!(" (of process {pid})"),
        (None, Some(uid)) => format!(" (of user {uid})"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diag_ipc::Operation;

    #[test]
    fn a_socket_of_another_user_is_not_permitted() {
        let operation = Operation::Connect;
        let failed = |kind: ErrorKind| Error::Io { operation, source: kind.into() };
        assert_eq!(version(&Err(failed(ErrorKind::PermissionDenied))), "not permitted");
        assert_eq!(version(&Err(failed(ErrorKind::ConnectionRefused))), "-");
    }

    #[test]
    fn sockets_of_other_users_have_their_owner() {
        assert_eq!(owner(None, None), "");
        assert_eq!(owner(Some(7), None), " (of process 7)");
        assert_eq!(owner(None, Some(1000)), " (of user 1000)");
        assert_eq!(owner(Some(7), Some(1000)), " (of process 7 of user 1000)");
    }
}
