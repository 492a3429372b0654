//! A process that may have a .NET runtime, and the replies of the runtime at its own socket.

use super::port::Startup;
use super::procfs;
use crate::failure::Failure;
use diag_ipc::discovery::Search;
use diag_ipc::{Client, Error, Guid, NoSocketReason, Operation};
use std::time::{Duration, Instant};

/// Time limit for a suspended runtime to connect to the port after it replies at its own socket.
const SUSPENDED: Duration = Duration::from_secs(5);

/// As [`SUSPENDED`], for a runtime that is not: one that cannot reach the port is recorded by its own
/// socket.
const RUNNING: Duration = Duration::from_secs(1);

/// A process that may have a runtime.
pub(super) struct Candidate {
    pub(super) since: Instant,
    /// Time since which its runtime replies at its socket and has not connected to the port.
    answers: Option<Instant>,
    /// Whether its runtime was asked and has not replied.
    pub(super) is_asked: bool,
    is_reported: bool,
    /// Whether it belongs to another user, whose processes this one may not look into.
    pub(super) is_unreadable: bool,
}

/// The runtime of a process at its own socket.
pub(super) enum Found {
    None,
    Runtime(Client),
    /// Only connections show whether one of these sockets is that of the process.
    Perhaps,
}

/// The reply of a runtime at its own socket that has not connected to the port.
pub(super) enum Answer {
    None,
    /// It may still connect.
    Replies,
    /// It should have connected. Its cookie, which .NET Core 3.1 does not have.
    Runs(Client, Option<Guid>),
}

/// Whether a process may have a socket that a search without connections did not find. A directory may have too many
/// files to be listed: the socket has the expected name there, unless the process has another time namespace.
pub(crate) fn may_have_socket(pid: u32, error: &Error) -> bool {
    match error {
        Error::Timeout { operation: Operation::List, .. } => !procfs::shares_time(pid),
        error => error.is_timeout(),
    }
}

impl Candidate {
    pub(super) const fn new(since: Instant) -> Self {
        Self { since, answers: None, is_asked: false, is_reported: false, is_unreadable: false }
    }

    /// The runtime of the process at its own socket, by a search without connections: a queue that is full holds them up.
    pub(super) fn find(&mut self, pid: u32, search: &mut Search) -> Found {
        let found = search.find(pid);
        self.is_unreadable = found.as_ref().is_err_and(|error| {
            let reason = NoSocketReason::PermissionDenied;
            matches!(error, Error::NoSocket { reason: found, .. } if *found == reason)
                && procfs::is_unreadable(pid)
        });
        match found {
            Ok(process) => Found::Runtime(process.client()),
            Err(error) if may_have_socket(pid, &error) => Found::Perhaps,
            Err(_) => Found::None,
        }
    }

    /// Whether its runtime should have connected to the port.
    pub(super) fn is_late(&self, startup: Startup) -> bool {
        let limit = match startup {
            Startup::Suspended => SUSPENDED,
            Startup::Running => RUNNING,
        };
        self.answers.is_some_and(|since| since.elapsed() >= limit)
    }

    /// Whether its runtime has replied.
    pub(super) const fn replies(&self) -> bool {
        self.answers.is_some()
    }

    /// Takes the answer of its runtime. Returns it if it is to be recorded at its own socket.
    pub(super) fn take(
        &mut self,
        pid: u32,
        answer: Answer,
        startup: Option<Startup>,
    ) -> Option<(Client, Option<Guid>)> {
        self.is_asked = false;
        match answer {
            Answer::Runs(client, cookie) => return Some((client, cookie)),
            Answer::None => return None,
            Answer::Replies => {}
        }
        self.answers.get_or_insert_with(Instant::now);
        let is_suspended = startup == Some(Startup::Suspended);
        if is_suspended && self.is_late(Startup::Suspended) && !self.is_reported {
            self.is_reported = true;
            let why = "its .NET runtime is suspended and cannot reach the diagnostic port: \
                       does it run as another user? With --sched it is not suspended";
            Failure::about(format!("process {pid}"), why).print();
        }
        None
    }
}

impl Answer {
    pub(super) fn of(client: Client, startup: Startup, is_late: bool) -> Self {
        match client.process_info() {
            // .NET Core 3.1 connects to no port.
            Err(error) if error.is_unknown_command() => Self::Runs(client, None),
            Err(_) => Self::None,
            Ok(_) if !is_late => Self::Replies,
            Ok(info) if startup == Startup::Running => Self::Runs(client, Some(info.cookie)),
            Ok(info) => match client.is_suspended() {
                Ok(Some(false)) => Self::Runs(client, Some(info.cookie)),
                _ => Self::Replies,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each process of a recording would have a thread that lists the directory.
    #[test]
    fn a_large_directory_is_not_listed_again() {
        let of = |operation| Error::Timeout { operation, after: Duration::ZERO };
        let own = std::process::id();
        assert!(!may_have_socket(own, &of(Operation::List)));
        assert!(may_have_socket(own, &of(Operation::Discover)));
        let none = Error::NoSocket { pid: own, reason: NoSocketReason::NotFound };
        assert!(!may_have_socket(own, &none));
    }
}
