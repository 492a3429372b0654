use crate::message::Command;
use crate::transport::Connection;
use crate::{Client, Error, Operation};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a reader that gets nothing looks whether it should give up.
const TICK: Duration = Duration::from_millis(500);

/// A tracing session: a stream of NetTrace data, to be read until it ends.
///
/// [`Read`] gives the bytes as the runtime sends them (many small pieces: read into a large
/// buffer) and blocks until there are some. The runtime buffers no more than the session's
/// buffer size: who reads too slowly loses events, which the stream tells of.
///
/// The end of a session is asked for by [`Session::stop`] or, from another thread, by a
/// [`StopHandle`]. The runtime then sends the rest and the rundown, which must be read, and only
/// then answers: reading and stopping one after the other deadlocks with other clients, and
/// cannot here.
///
/// Dropping a session waits for nothing: a thread of its own asks for the end and reads to it.
/// Just closing the connection, which is also what happens when this process ends, is not safe:
/// it ends .NET Core 3.1 in one case of twenty (`docs/dotnet-ipc.md`).
///
/// ```no_run
/// use diag_ipc::{Client, Provider, TracingConfig};
/// use std::fs::File;
///
/// let config = TracingConfig::new([Provider::new("Microsoft-DotNETCore-SampleProfiler")]);
/// let mut session = Client::for_process(1234)?.collect_tracing(&config)?;
/// let stop_handle = session.stop_handle();
/// std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_secs(5));
///     stop_handle.stop()
/// });
/// let end = session.record(&mut File::create("app.nettrace")?);
/// println!("{} bytes, {end}", end.bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    /// Taken out when it is closed.
    connection: Option<Connection>,
    command: Command,
    shared: Arc<Shared>,
    bytes: u64,
    mark: EndMark,
    end: Option<End>,
    /// Since when the stream has been silent.
    silent: Instant,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    id: u64,
    stop: Mutex<Stop>,
    /// Whether a stop has been asked for, to look at without the lock.
    asked: AtomicBool,
}

#[derive(Debug)]
enum Stop {
    /// Nobody asked.
    No,
    /// The reply will come on this connection.
    Asked(Connection),
    /// The stream has ended, and its id may be another session's by now.
    Ended,
}

/// How the stream ended for the reader.
#[derive(Debug)]
enum End {
    Eof,
    Failed(TruncationReason),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Stop> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) -> Result<(), Error> {
        let mut stop = self.lock();
        if matches!(*stop, Stop::No) {
            *stop = Stop::Asked(self.client.ask_to_stop(self.id)?);
            self.asked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Asks for the end and reads to it, without taking it for read.
    fn end(&self, connection: &mut Connection) {
        // If it cannot be asked, the target is in no state to be spared.
        if self.stop().is_ok() {
            drain(connection, self.client.current_timeouts().drain);
        }
    }
}

/// Ends a [`Session`] from elsewhere: another thread, a signal handler's thread.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<Shared>);

impl StopHandle {
    /// Asks the runtime to end the session, without waiting for the end: whoever reads the
    /// session gets the rest of the stream, and its end.
    ///
    /// A session that has ended, or has been asked before, is left alone: its id may belong to
    /// another session by now.
    pub fn stop(&self) -> Result<(), Error> {
        self.0.stop()
    }
}

impl Session {
    pub(crate) fn new(client: Client, connection: Connection, id: u64, command: Command) -> Self {
        let shared =
            Shared { client, id, stop: Mutex::new(Stop::No), asked: AtomicBool::new(false) };
        Self {
            connection: Some(connection),
            command,
            shared: Arc::new(shared),
            bytes: 0,
            mark: EndMark::default(),
            end: None,
            silent: Instant::now(),
        }
    }

    /// The runtime's number for it. Numbers are used again once a session has ended.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The command that started it.
    pub const fn command(&self) -> Command {
        self.command
    }

    /// Bytes read so far.
    pub const fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// A handle to end it with from elsewhere.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.shared))
    }

    /// Reads until the stream ends, however that comes about, and writes everything to `out`.
    pub fn record(mut self, out: &mut impl Write) -> SessionEnd {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    if let Err(e) = out.write_all(buffer.get(..n).unwrap_or_default()) {
                        self.end = Some(End::Failed(TruncationReason::Output(e)));
                        break;
                    }
                }
                Err(_) => break, // kept in `self.end`
            }
        }
        self.finish()
    }

    /// Asks the runtime to end the session, reads the rest of the stream and drops it.
    pub fn stop(self) -> SessionEnd {
        self.stop_into(&mut io::sink())
    }

    /// Asks the runtime to end the session, reads the rest of the stream and writes it to `out`.
    pub fn stop_into(mut self, out: &mut impl Write) -> SessionEnd {
        if self.end.is_none() {
            if let Err(e) = self.shared.stop() {
                self.end = Some(End::Failed(TruncationReason::Stop(e)));
                return self.finish();
            }
        }
        self.record(out)
    }

    /// Closes the session and says how it ended. One that was not read to its end is truncated.
    ///
    /// What is left of it is asked to end, read and dropped first, for as long as
    /// [`Timeouts::drain`](crate::Timeouts::drain) at most.
    pub fn finish(mut self) -> SessionEnd {
        if matches!(self.end, None | Some(End::Failed(TruncationReason::Output(_)))) {
            if let Some(connection) = &mut self.connection {
                self.shared.end(connection);
            }
        }
        let truncation = match self.end.take() {
            Some(End::Eof) if self.mark.is_there() => None,
            Some(End::Eof) => Some(TruncationReason::Closed),
            Some(End::Failed(reason)) => Some(reason),
            None => Some(TruncationReason::Abandoned),
        };
        // The stream is closed before the reply is waited for: neither end waits for the other.
        drop(self.connection.take());
        let stop = std::mem::replace(&mut *self.shared.lock(), Stop::Ended);
        let stop = match stop {
            Stop::Asked(mut connection) => Some(match truncation {
                // It had its time.
                Some(TruncationReason::Silent(after)) => {
                    Err(Error::Timeout { operation: Operation::Reply, after })
                }
                _ => self.shared.client.stopped(self.shared.id, &mut connection),
            }),
            Stop::No | Stop::Ended => None,
        };
        SessionEnd { bytes: self.bytes, truncation, stop }
    }

    fn fail(&mut self, reason: TruncationReason) -> io::Error {
        let error = io::Error::new(
            match &reason {
                TruncationReason::Silent(_) => io::ErrorKind::TimedOut,
                TruncationReason::Io(e) => e.kind(),
                _ => io::ErrorKind::Other,
            },
            reason.to_string(),
        );
        self.end = Some(End::Failed(reason));
        error
    }
}

#[cfg(unix)]
impl Session {
    /// The connection's descriptor, to wait for data together with others. It must not be read.
    pub fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.connection.as_ref()?.as_fd()
    }
}

/// Reads and drops what comes, to the end of the stream or for as long as `limit`.
fn drain(connection: &mut Connection, limit: Duration) {
    let start = Instant::now();
    let mut buffer = vec![0; 64 * 1024];
    while start.elapsed() < limit {
        match connection.stream(&mut buffer, TICK) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if is_wait(&e) => {}
            Err(_) => break,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if matches!(self.end, None | Some(End::Failed(TruncationReason::Output(_)))) {
            let shared = Arc::clone(&self.shared);
            // Without a thread, closing has to do.
            let _ = std::thread::Builder::new().name("diag-ipc drain".into()).spawn(move || {
                shared.end(&mut connection);
                drop(connection);
                *shared.lock() = Stop::Ended;
            });
        } else {
            *self.shared.lock() = Stop::Ended;
        }
    }
}

impl Session {
    /// What `read` gives once the stream has ended, if it has.
    fn ended(&self) -> Option<io::Result<usize>> {
        match &self.end {
            None => None,
            Some(End::Eof) => Some(Ok(0)),
            Some(End::Failed(reason)) => Some(Err(io::Error::other(reason.to_string()))),
        }
    }

    /// Keeps account of what was read. A wait that was in vain is given back as it is.
    fn account(&mut self, result: io::Result<usize>, buf: &[u8]) -> io::Result<usize> {
        match result {
            Ok(0) => {
                self.end = Some(End::Eof);
                Ok(0)
            }
            Ok(n) => {
                self.bytes += n as u64;
                self.mark.note(buf.get(..n).unwrap_or_default());
                self.silent = Instant::now();
                Ok(n)
            }
            Err(e) if is_wait(&e) => {
                // Events may be rare; after a stop, the end is near or will not come.
                let limit = self.shared.client.current_timeouts().drain;
                if !self.shared.asked.load(Ordering::Acquire) {
                    self.silent = Instant::now();
                } else if self.silent.elapsed() > limit {
                    return Err(self.fail(TruncationReason::Silent(limit)));
                }
                Err(e)
            }
            Err(e) => Err(self.fail(TruncationReason::Io(e))),
        }
    }

    /// Reads what is there, without waiting.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match (self.ended(), &mut self.connection) {
            (Some(ended), _) => ended,
            (None, None) => Ok(0),
            (None, Some(connection)) => {
                let result = connection.try_stream(buf);
                self.account(result, buf)
            }
        }
    }
}

fn is_wait(error: &io::Error) -> bool {
    // A timeout of our own is not one of the system's.
    matches!(error.kind(), io::ErrorKind::WouldBlock)
        || (error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_some())
}

impl Read for Session {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if let Some(ended) = self.ended() {
            return ended;
        }
        loop {
            let Some(connection) = &mut self.connection else { return Ok(0) };
            let result = connection.stream(buf, TICK);
            match self.account(result, buf) {
                Err(e) if is_wait(&e) => {}
                other => return other,
            }
        }
    }
}

/// How a session ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct SessionEnd {
    /// Bytes read in all.
    pub bytes: u64,
    /// Why the stream is not complete, if it is not.
    pub truncation: Option<TruncationReason>,
    /// The runtime's answer, if it was asked to stop.
    pub stop: Option<Result<(), Error>>,
}

impl SessionEnd {
    /// Whether the stream was read to its own end mark.
    pub const fn is_complete(&self) -> bool {
        self.truncation.is_none()
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.truncation {
            None => f.write_str("complete"),
            Some(reason) => write!(f, "truncated: {reason}"),
        }
    }
}

/// Why a stream is not complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TruncationReason {
    /// The runtime closed the stream without its end mark: the process was killed, or ended
    /// without shutting its runtime down.
    #[error("the stream was closed without its end mark (the target was killed?)")]
    Closed,
    /// Nothing came for too long after the session had been asked to stop.
    #[error("nothing came for {0:?} after the request to stop")]
    Silent(Duration),
    /// The request to stop could not be sent; the connection was closed instead.
    #[error("the session could not be asked to stop: {0}")]
    Stop(#[source] Error),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// What was read could not be written; the connection was closed.
    #[error("the stream could not be written: {0}")]
    Output(#[source] io::Error),
    /// It was closed at this end before it was read to its end.
    #[error("it was not read to its end")]
    Abandoned,
}

/// Sees whether a stream ends as a NetTrace stream does.
///
/// Up to version 5 the last object is followed by its end tag and a null reference, `06 01`;
/// version 6 ends with an empty block of kind 0. A stream that is cut just where its data looks
/// like that is taken for complete: a parser knows better.
#[derive(Debug, Default)]
struct EndMark {
    head: Vec<u8>,
    tail: [u8; 4],
}

impl EndMark {
    /// `"Nettrace"` and the zero that tells version 6 from the rest.
    const HEAD: usize = 12;

    fn note(&mut self, bytes: &[u8]) {
        if self.head.len() < Self::HEAD {
            let missing = Self::HEAD - self.head.len();
            self.head.extend(bytes.iter().take(missing));
        }
        match bytes.last_chunk() {
            Some(tail) => self.tail = *tail,
            None => {
                for byte in bytes {
                    self.tail.rotate_left(1);
                    self.tail[3] = *byte;
                }
            }
        }
    }

    fn is_there(&self) -> bool {
        if self.head.starts_with(b"Nettrace\0\0\0\0") {
            self.tail == [0; 4]
        } else {
            self.head.len() == Self::HEAD && self.tail.ends_with(&[6, 1])
        }
    }
}

/// A session whose events go to the kernel's user_events. It lasts until it is stopped or
/// dropped.
#[derive(Debug)]
pub struct UserEventsSession {
    client: Client,
    id: u64,
    _connection: Connection,
}

impl UserEventsSession {
    #[cfg(unix)]
    pub(crate) const fn new(client: Client, connection: Connection, id: u64) -> Self {
        Self { client, id, _connection: connection }
    }

    /// The runtime's number for it.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Ends it.
    pub fn stop(self) -> Result<(), Error> {
        self.client.stop_tracing(self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(pieces: &[&[u8]]) -> bool {
        let mut mark = EndMark::default();
        pieces.iter().for_each(|p| mark.note(p));
        mark.is_there()
    }

    #[test]
    fn end_marks() {
        let v4: &[u8] = b"Nettrace\x14\0\0\0!FastSerialization.1";
        assert!(marked(&[v4, b"data\x06\x01"]));
        assert!(marked(&[v4, b"dat", b"a\x06", b"\x01"]));
        assert!(!marked(&[v4, b"data\x06"]));
        assert!(!marked(&[v4, b"data\0\0\0\0"]));
        let v6: &[u8] = b"Nettrace\0\0\0\0\x06\0\0\0";
        assert!(marked(&[v6, b"data\0\0", b"\0\0"]));
        assert!(!marked(&[v6, b"data\x06\x01"]));
        assert!(!marked(&[b"\x06\x01"]));
        assert!(!marked(&[]));
    }
}
