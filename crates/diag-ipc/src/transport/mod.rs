//! Connections with a deadline for every operation.

#[cfg(any(windows, test))]
mod pipe;
#[cfg(unix)]
pub(crate) mod unix;

use crate::message::{Command, Header, Reply};
use crate::{Error, Operation};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The address of a diagnostic server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// The path of a Unix domain socket: Linux and macOS.
    UnixSocket(PathBuf),
    /// The name of a pipe, such as `\\.\pipe\dotnet-diagnostic-1234`: Windows.
    NamedPipe(PathBuf),
}

impl Address {
    /// The path or name.
    pub fn path(&self) -> &Path {
        match self {
            Self::UnixSocket(path) | Self::NamedPipe(path) => path,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(f)
    }
}

impl From<PathBuf> for Address {
    /// A named pipe on Windows, a Unix domain socket elsewhere.
    fn from(path: PathBuf) -> Self {
        if cfg!(windows) { Self::NamedPipe(path) } else { Self::UnixSocket(path) }
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        path.to_path_buf().into()
    }
}

/// The address of the server of process `pid` on Windows. On Linux the name depends on more than
/// the process id: see `discovery::default_server_address`.
pub fn pipe_address(pid: u32) -> Address {
    Address::NamedPipe(format!(r"\\.\pipe\dotnet-diagnostic-{pid}").into())
}

/// Time limits of the steps of an exchange.
///
/// ```
/// use diag_ipc::Timeouts;
/// use std::time::Duration;
///
/// let timeouts = Timeouts::default().reply(Duration::from_secs(3));
/// assert_eq!(timeouts.connect, Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// Opening a connection; with a reverse server, waiting for the runtime's. 5 s.
    pub connect: Duration,
    /// Sending a request. 5 s.
    pub send: Duration,
    /// Waiting for a reply. 20 s.
    pub reply: Duration,
    /// Waiting for a dump to be written, or for the full GC before a session with the keyword
    /// `GCHeapCollect`. 10 min.
    pub dump: Duration,
    /// Maximum time without data after the stop request: the runtime can take a while to collect
    /// the rundown of a large application. 30 s.
    pub drain: Duration,
    /// Maximum length of the stream after the stop request. 10 min.
    pub end: Duration,
}

macro_rules! with_timeout {
    ($($name:ident)*) => {$(
        #[doc = concat!("Sets [`Timeouts::", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
        #[must_use]
        pub const fn $name(mut self, limit: Duration) -> Self {
            self.$name = limit;
            self
        }
    )*};
}

impl Timeouts {
    /// The same limit for every step.
    pub const fn all(limit: Duration) -> Self {
        Self { connect: limit, send: limit, reply: limit, dump: limit, drain: limit, end: limit }
    }

    with_timeout!(connect send reply dump drain end);
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            send: Duration::from_secs(5),
            reply: Duration::from_secs(20),
            dump: Duration::from_secs(600),
            drain: Duration::from_secs(30),
            end: Duration::from_secs(600),
        }
    }
}

/// The time limit of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), limit }
    }

    /// The remaining time, which is never zero.
    pub(crate) fn remaining(&self, operation: Operation) -> Result<Duration, Error> {
        match self.limit.checked_sub(self.start.elapsed()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(self.passed(operation)),
        }
    }

    pub(crate) const fn passed(&self, operation: Operation) -> Error {
        Error::Timeout { operation, after: self.limit }
    }
}

/// The process at the other end, as reported by the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its process id in the namespace of the caller, if it is visible there.
    pub pid: Option<u32>,
    /// Its effective user id.
    pub uid: Option<u32>,
}

#[derive(Debug)]
enum Stream {
    #[cfg(unix)]
    Unix(unix::Stream),
    #[cfg(any(windows, test))]
    Pipe(pipe::Stream),
}

/// A connection to a diagnostic server.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
}

impl Connection {
    /// Connects to `address`.
    pub(crate) fn open(address: &Address, deadline: Deadline) -> Result<Self, Error> {
        match address {
            #[cfg(unix)]
            Address::UnixSocket(path) => unix::connect(path, deadline).map(Self::from),
            #[cfg(any(windows, test))]
            Address::NamedPipe(name) => {
                pipe::connect(name, deadline).map(|pipe| Self { stream: Stream::Pipe(pipe) })
            }
            #[allow(unreachable_patterns, reason = "the other platform's kind of address")]
            _ => Err(Error::Io {
                operation: Operation::Connect,
                source: io::ErrorKind::Unsupported.into(),
            }),
        }
    }

    /// The process at the other end.
    pub(crate) fn peer(&self) -> Peer {
        match &self.stream {
            #[cfg(unix)]
            Stream::Unix(stream) => unix::peer(stream),
            #[cfg(any(windows, test))]
            Stream::Pipe(_) => Peer::default(),
        }
    }

    /// Reads available data once, after waiting for at most `timeout`; `WouldBlock` if no data
    /// arrives.
    fn read(&mut self, buf: &mut [u8], timeout: Duration) -> io::Result<usize> {
        match &mut self.stream {
            #[cfg(unix)]
            Stream::Unix(stream) => unix::read(stream, buf, timeout),
            #[cfg(any(windows, test))]
            Stream::Pipe(stream) => pipe::read(stream, buf, timeout),
        }
    }

    fn write(&mut self, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        match &mut self.stream {
            #[cfg(unix)]
            Stream::Unix(stream) => unix::write(stream, bytes, timeout),
            #[cfg(any(windows, test))]
            Stream::Pipe(stream) => pipe::write(stream, bytes, timeout),
        }
    }

    /// Sends a whole message. One write is enough unless the peer is slow: messages are smaller
    /// than the buffer of a socket, and half a header blocks a diagnostic server.
    pub(crate) fn send(&mut self, mut bytes: &[u8], deadline: Deadline) -> Result<(), Error> {
        let operation = Operation::Send;
        while !bytes.is_empty() {
            match self.write(bytes, deadline.remaining(operation)?) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(e) => check(e, operation, deadline)?,
            }
        }
        Ok(())
    }

    /// Fills `buf`.
    pub(crate) fn read_exact(
        &mut self,
        buf: &mut [u8],
        operation: Operation,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest, deadline.remaining(operation)?) {
                Ok(0) => return Err(Error::Closed { operation }),
                Ok(n) => filled += n,
                Err(e) => check(e, operation, deadline)?,
            }
        }
        Ok(())
    }

    /// Reads `len` bytes and allocates as they arrive: the peer can announce more than it sends.
    pub(crate) fn read_vec(&mut self, len: usize, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let start = bytes.len();
            bytes.resize(len.min(start + 64 * 1024), 0);
            let fresh = bytes.get_mut(start..).unwrap_or_default();
            self.read_exact(fresh, Operation::Reply, deadline)?;
        }
        Ok(bytes)
    }

    /// Reads the reply to `command` and returns its payload.
    pub(crate) fn reply(&mut self, command: Command, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let mut header = [0; Header::LEN];
        self.read_exact(&mut header, Operation::Reply, deadline)?;
        let header = Header::decode(&header).map_err(Error::malformed("reply"))?;
        let payload = self.read_vec(header.payload_len(), deadline)?;
        match Reply::decode(header, &payload).map_err(Error::malformed("reply"))? {
            Reply::Ok(_) => Ok(payload),
            Reply::Error { code, message } => Err(Error::Runtime { command, code, message }),
        }
    }

    /// Reads the available data of a stream; `WouldBlock` after `tick`.
    pub(crate) fn stream(&mut self, buf: &mut [u8], tick: Duration) -> io::Result<usize> {
        loop {
            match self.read(buf, tick) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Has reads wait for data again.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn set_blocking(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Unix(stream) => unix::set_blocking(stream),
            #[cfg(test)]
            Stream::Pipe(_) => Ok(()),
        }
    }

    /// Reads the available data of a stream, without waiting.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn try_stream(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.stream {
            Stream::Unix(stream) => unix::try_read(stream, buf),
            #[cfg(test)]
            Stream::Pipe(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Sends one byte and a descriptor along with it.
    #[cfg(unix)]
    pub(crate) fn send_fd(&self, fd: std::os::fd::BorrowedFd<'_>) -> Result<(), Error> {
        match &self.stream {
            Stream::Unix(stream) => unix::send_fd(stream, fd)
                .map_err(|source| Error::Io { operation: Operation::Send, source }),
            #[cfg(test)]
            Stream::Pipe(_) => Err(Error::Closed { operation: Operation::Send }),
        }
    }

    /// The descriptor, for polling.
    #[cfg(unix)]
    pub(crate) fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match &self.stream {
            Stream::Unix(stream) => Some(unix::fd(stream)),
            #[cfg(test)]
            Stream::Pipe(_) => None,
        }
    }
}

#[cfg(unix)]
impl From<unix::Stream> for Connection {
    fn from(stream: unix::Stream) -> Self {
        Self { stream: Stream::Unix(stream) }
    }
}

/// Decides whether an operation is retried after an error: after an interruption or a wait, until
/// the deadline has passed.
fn check(error: io::Error, operation: Operation, deadline: Deadline) -> Result<(), Error> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, TimedOut, WouldBlock};
    match error.kind() {
        Interrupted | WouldBlock | TimedOut => deadline.remaining(operation).map(drop),
        BrokenPipe | ConnectionReset => Err(Error::Closed { operation }),
        _ => Err(Error::Io { operation, source: error }),
    }
}
