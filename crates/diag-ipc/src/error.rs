use crate::StartupHookError;
use crate::message::{Command, DecodeError};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The result of a diagnostic command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a diagnostic command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request was not sent, because it would harm the target or cannot be encoded.
    #[error("request not sent: {0}")]
    Rejected(#[from] RejectedRequest),

    /// The runtime replied with an error.
    #[error("the runtime answered {command} with {code}{}", text(.message))]
    Runtime {
        /// The command that was sent.
        command: Command,
        /// The error code of the reply.
        code: HResult,
        /// The runtime's explanation, if any: `CreateCoreDump3` (.NET 8) has one.
        message: Option<Box<str>>,
    },

    /// The target is too old for a requested option. Options are never dropped silently.
    #[error("the target does not support {option}, which needs {needs} ({})", .needs.since())]
    Unsupported {
        /// The requested option.
        option: Box<str>,
        /// The oldest command that supports it.
        needs: Command,
    },

    /// The runtime's reply names another session than the one to stop.
    #[error("the runtime stopped session {found:#x} instead of {expected:#x}")]
    WrongSession {
        /// The session to stop.
        expected: u64,
        /// The session in the reply.
        found: u64,
    },

    /// The peer sent data that is not a reply of the protocol.
    #[error("malformed {what}: {source}")]
    Malformed {
        /// The message or part of it.
        what: &'static str,
        /// Position and kind of the error.
        source: DecodeError,
    },

    /// A deadline passed. The connection was closed.
    ///
    /// The diagnostic server of a runtime is a single thread: a client that connects and sends
    /// nothing, or a dump in progress, blocks all others.
    #[error("{operation} took longer than {after:?}")]
    Timeout {
        /// The operation that timed out.
        operation: Operation,
        /// Its deadline.
        after: Duration,
    },

    /// A deadline passed, and the target process is stopped: by SIGSTOP, Ctrl-Z or a debugger.
    #[error("process {pid} is stopped and did not reply within {after:?}: resume it with SIGCONT")]
    TargetStopped {
        /// The process id in the namespace of the caller.
        pid: u32,
        /// The deadline.
        after: Duration,
    },

    /// The target process ended while it executed a command.
    #[error("the target ended: process {pid} exited while it executed {command}")]
    TargetEnded {
        /// The process id in the namespace of the caller.
        pid: u32,
        /// The command that was sent.
        command: Command,
    },

    /// The peer closed the connection before the exchange was complete.
    #[error("the connection was closed during {operation}")]
    Closed {
        /// The operation in progress.
        operation: Operation,
    },

    /// A system call failed.
    #[error("{operation} failed: {source}")]
    Io {
        /// The attempted operation.
        operation: Operation,
        /// The error of the system call.
        source: io::Error,
    },

    /// The process has no diagnostic socket.
    #[error("process {pid} has no diagnostic socket: {reason}")]
    NoSocket {
        /// The process id in the namespace of the caller.
        pid: u32,
        /// The reason.
        reason: NoSocketReason,
    },

    /// The socket does not belong to the process that it is named after. Nothing was sent.
    #[error("{} does not belong to process {pid}: {found}", .path.display())]
    WrongOwner {
        /// The socket.
        path: PathBuf,
        /// The process that it should belong to.
        pid: u32,
        /// Its owner.
        found: Box<str>,
    },
}

fn text(message: &Option<Box<str>>) -> String {
    message.as_ref().map(|m| format!(": {m}")).unwrap_or_default()
}

impl Error {
    /// The error code of the runtime's reply, if the runtime returned an error.
    pub fn code(&self) -> Option<HResult> {
        match self {
            Self::Runtime { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the runtime does not know the command.
    pub fn is_unknown_command(&self) -> bool {
        self.code() == Some(HResult::UnknownCommand)
    }

    /// Whether a deadline passed.
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::TargetStopped { .. })
    }

    pub(crate) fn malformed(what: &'static str) -> impl FnOnce(DecodeError) -> Self {
        move |source| Self::Malformed { what, source }
    }
}

/// A step of the exchange with a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Finding the process and its socket.
    Discover,
    /// Listing the temporary directory of a process, which has many files. Its socket has another name than the expected
    /// one, or there is none.
    List,
    /// Opening the connection.
    Connect,
    /// Waiting for a runtime to connect to a reverse server.
    Accept,
    /// Setting up a reverse server.
    Bind,
    /// Sending the request.
    Send,
    /// Waiting for the reply.
    Reply,
    /// Reading the stream of a session.
    Stream,
    /// Writing the stream to the caller's output.
    Output,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discover => "finding the process",
            Self::List => "listing the temporary directory",
            Self::Connect => "connecting",
            Self::Accept => "waiting for a runtime",
            Self::Bind => "setting up the server",
            Self::Send => "sending the request",
            Self::Reply => "waiting for the reply",
            Self::Stream => "reading the stream",
            Self::Output => "writing the stream",
        })
    }
}

/// Why a process has no diagnostic socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoSocketReason {
    /// There is no such process.
    NoProcess,
    /// The files of the process below `/proc` cannot be read: it belongs to another user, or root lacks
    /// `CAP_SYS_PTRACE`.
    PermissionDenied,
    /// There is no socket with the process's id and start time.
    NotFound,
}

impl fmt::Display for NoSocketReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoProcess => "there is no such process",
            Self::PermissionDenied => {
                "its files below /proc cannot be read (run as its user, or with CAP_SYS_PTRACE)"
            }
            Self::NotFound => {
                "not a .NET process, its runtime was started with DOTNET_EnableDiagnostics=0, \
                 or it has not come up yet"
            }
        })
    }
}

/// Why a request was not sent.
///
/// Requests of the first group were observed to end or hang runtimes in use; `docs/dotnet-ipc.md`
/// lists them. Requests of the second group cannot be encoded in the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectedRequest {
    /// A session without a buffer: a buffer size of 0 ends .NET 9.
    #[error("the buffer of a session must have at least 1 MB (0 ends a .NET 9 process)")]
    NoBuffer,
    /// A session without providers.
    #[error("a session needs at least one provider")]
    NoProviders,
    /// More than 1000 providers end .NET 9.
    #[error("a session takes at most 1000 providers, not {0} (more end a .NET 9 process)")]
    TooManyProviders(usize),
    /// A provider, variable or path without a name: an empty dump path ends .NET 9 and 10.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// A NUL character would truncate the string at the receiver.
    #[error("{0} must not contain a NUL character")]
    Nul(&'static str),
    /// `EnablePerfMap` ends a .NET 9 process that is suspended at startup.
    #[error(
        "perf maps cannot be enabled while a .NET {0} runtime is suspended, or may be: resume it first"
    )]
    Suspended(Box<str>),
    /// Any dump except a full one hangs the diagnostic server of a single-file application.
    #[error(
        "a single-file application can only write full dumps (others hang its diagnostic server)"
    )]
    SingleFile,
    /// A startup hook that the runtime cannot run ends it, suspended or running.
    #[error("{path} is not a startup hook: {reason} (a runtime that is given one ends)")]
    StartupHook {
        /// The path, in the target's file system.
        path: Box<str>,
        /// The result of the check.
        reason: StartupHookError,
    },
    /// A provider of a user_events session that has no tracepoint.
    #[error("provider {0} has neither a default tracepoint nor tracepoint sets")]
    NoTracepoint(Box<str>),
    /// The payload does not fit in the 16-bit size of a message.
    #[error("the payload is {0} bytes long; a message holds at most 65515")]
    TooLong(usize),
}

/// The 32-bit result of a command: the names of the runtime's `corerror.xml` and of the protocol
/// specification ("Errors"), and any other code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HResult {
    /// `S_OK`.
    Ok,
    /// `DS_IPC_E_BAD_ENCODING`: the payload could not be decoded.
    BadEncoding,
    /// `DS_IPC_E_UNKNOWN_COMMAND`: the runtime is older than the command.
    UnknownCommand,
    /// `DS_IPC_E_UNKNOWN_MAGIC`: the server uses another protocol version.
    UnknownMagic,
    /// `DS_IPC_E_UNKNOWN_ERROR`: only used by clients.
    UnknownError,
    /// `DS_IPC_E_NOTSUPPORTED`.
    NotSupported,
    /// `E_FAIL`: among others, the 65th session of a process.
    Fail,
    /// `CORDBG_E_NOT_YET_AVAILABLE`: not available while the runtime is suspended at startup.
    NotYetAvailable,
    /// `CORPROF_E_RUNTIME_UNINITIALIZED`: not available before the runtime is initialized.
    RuntimeUninitialized,
    /// `E_INVALIDARG`.
    InvalidArgument,
    /// `ERROR_INSUFFICIENT_BUFFER`.
    InsufficientBuffer,
    /// `ERROR_ENVVAR_NOT_FOUND`: the variable to unset is not set. [`HResult::code`] is that of runtimes, not that of the
    /// specification, which is read as this, too.
    EnvironmentVariableNotFound,
    /// `CORPROF_E_PROFILER_ALREADY_ACTIVE`.
    ProfilerAlreadyActive,
    /// `ERROR_MOD_NOT_FOUND`: the library of a profiler was not found.
    ModuleNotFound,
    /// Any other code.
    Other(u32),
}

const HRESULTS: [(HResult, u32, &str); 14] = [
    (HResult::Ok, 0, "S_OK"),
    (HResult::BadEncoding, 0x8013_1384, "BAD_ENCODING"),
    (HResult::UnknownCommand, 0x8013_1385, "UNKNOWN_COMMAND"),
    (HResult::UnknownMagic, 0x8013_1386, "UNKNOWN_MAGIC"),
    (HResult::UnknownError, 0x8013_1387, "UNKNOWN_ERROR"),
    (HResult::NotSupported, 0x8013_1515, "NOTSUPPORTED"),
    (HResult::Fail, 0x8000_4005, "E_FAIL"),
    (HResult::NotYetAvailable, 0x8013_135b, "NOT_YET_AVAILABLE"),
    (HResult::RuntimeUninitialized, 0x8013_1371, "RUNTIME_UNINITIALIZED"),
    (HResult::InvalidArgument, 0x8007_0057, "INVALIDARG"),
    (HResult::InsufficientBuffer, 0x8007_007a, "INSUFFICIENT_BUFFER"),
    (HResult::EnvironmentVariableNotFound, 0x8007_00cb, "ENVVAR_NOT_FOUND"),
    (HResult::ProfilerAlreadyActive, 0x8013_136a, "PROFILER_ALREADY_ACTIVE"),
    (HResult::ModuleNotFound, 0x8007_007e, "MOD_NOT_FOUND"),
];

/// `ERROR_ENVVAR_NOT_FOUND` in the specification. Runtimes send `HRESULT_FROM_WIN32` of it.
const SPECIFIED_ENVVAR_NOT_FOUND: u32 = 0x8000_00cb;

impl HResult {
    /// The code on the wire.
    pub fn code(self) -> u32 {
        match self {
            Self::Other(code) => code,
            named => HRESULTS.iter().find(|(h, ..)| *h == named).map_or(0, |(_, code, _)| *code),
        }
    }

    /// The name in the runtime's sources, without its prefix.
    pub fn name(self) -> Option<&'static str> {
        HRESULTS.iter().find(|(h, ..)| *h == self).map(|(.., name)| *name)
    }
}

impl From<u32> for HResult {
    fn from(code: u32) -> Self {
        if code == SPECIFIED_ENVVAR_NOT_FOUND {
            return Self::EnvironmentVariableNotFound;
        }
        HRESULTS.iter().find(|(_, c, _)| *c == code).map_or(Self::Other(code), |(h, ..)| *h)
    }
}

impl fmt::Display for HResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (0x{:08X})", self.code()),
            None => write!(f, "0x{:08X}", self.code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_kept() {
        for (named, code, _) in HRESULTS {
            assert_eq!(HResult::from(code), named);
            assert_eq!(named.code(), code);
        }
        assert_eq!(HResult::from(0x1234_5678).code(), 0x1234_5678);
        assert_eq!(HResult::BadEncoding.to_string(), "BAD_ENCODING (0x80131384)");
        assert_eq!(HResult::Other(7).to_string(), "0x00000007");
    }

    #[test]
    fn a_variable_that_is_not_set_has_the_code_of_runtimes_and_that_of_the_specification() {
        for code in [0x8007_00cb, 0x8000_00cb] {
            assert_eq!(HResult::from(code), HResult::EnvironmentVariableNotFound);
        }
        assert_eq!(HResult::EnvironmentVariableNotFound.code(), 0x8007_00cb);
    }
}
