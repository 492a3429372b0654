use crate::message::TracingCommand;
use crate::transport::Connection;
use crate::{Client, Error, Operation, Result, target};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often a reader without data checks the limits.
const TICK: Duration = Duration::from_millis(500);

/// A tracing session: a stream of NetTrace data that is read until it ends.
///
/// [`Read`] returns the bytes as the runtime sends them (many small pieces: read into a large
/// buffer) and blocks until data arrives. The runtime buffers at most the session's buffer size: a
/// slow reader loses events, and the stream records how many.
///
/// [`Session::record_for`], [`Session::stop`] or, from another thread, a [`StopHandle`] stop a
/// session. The runtime then sends the rest of its buffer and the rundown. It replies to the
/// request only after all of that was read, so a client that waits for the reply before it
/// continues to read deadlocks, and blocks all other clients. No function here does that.
///
/// Dropping a session does not block: a background thread stops it and reads to the end. Closing
/// the connection without stopping the session, which also happens when this process ends, crashed
/// .NET Core 3.1 in one case of 20 (`docs/dotnet-ipc.md`).
///
/// ```no_run
/// use diag_ipc::{Client, Provider, TracingConfig};
/// use std::{fs::File, time::Duration};
///
/// let config = TracingConfig::new([Provider::new("Microsoft-DotNETCore-SampleProfiler")]);
/// let session = Client::for_process(1234)?.collect_tracing(&config)?;
/// let end = session.record_for(Duration::from_secs(5), &mut File::create("app.nettrace")?);
/// println!("{} bytes, {end}", end.bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    /// `None` once it is closed.
    connection: Option<Connection>,
    command: TracingCommand,
    shared: Arc<Shared>,
    bytes: u64,
    mark: EndMark,
    end: Option<End>,
    /// Time of the last read with data.
    silent: Instant,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    id: u64,
    stop: Mutex<Stop>,
    /// When a stop was first tried, readable without the lock.
    asked: OnceLock<Instant>,
    /// Whether the reader has seen the end of the stream. It does not wait for the lock, which a request that
    /// cannot be sent holds until its time limit.
    is_over: AtomicBool,
    /// Whether a connection for a request is opened, under the lock.
    is_connecting: AtomicBool,
}

#[derive(Debug)]
enum Stop {
    /// No request was made.
    No,
    /// The reply arrives on this connection.
    Asked(Connection),
    /// The stream has ended. Its id may already belong to another session.
    Ended,
}

/// How the reader ended the stream.
#[derive(Debug)]
enum End {
    Eof,
    Failed(TruncationReason),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Stop> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the session. `wait` is the time for a connection where it can be tried again. Who tries again does not
    /// wait for another thread that stops it.
    fn stop(&self, wait: Duration) -> Result<(), Error> {
        let mut stop = match self.stop.try_lock() {
            Ok(stop) => stop,
            Err(TryLockError::WouldBlock) if wait < Duration::MAX => {
                return Err(Error::Timeout { operation: Operation::Connect, after: wait });
            }
            Err(_) => self.lock(),
        };
        // After the end, the runtime may be gone, or the id be that of another session.
        if !matches!(*stop, Stop::No) {
            return Ok(());
        }
        // Before the look at `is_over`: a reader that ends later does not wait for the lock.
        self.is_connecting.store(true, Ordering::SeqCst);
        let connection = (!self.is_over.load(Ordering::SeqCst)).then(|| {
            // Only here, under the lock; the first time counts. Also of a request that cannot be sent:
            // nobody wants the stream any longer.
            let _ = self.asked.set(Instant::now());
            self.client.connect_within(wait)
        });
        self.is_connecting.store(false, Ordering::SeqCst);
        let Some(mut connection) = connection.transpose()? else { return Ok(()) };
        // The stream can have ended meanwhile.
        if !self.is_over.load(Ordering::SeqCst) {
            self.client.ask_to_stop(&mut connection, self.id)?;
            *stop = Stop::Asked(connection);
        }
        Ok(())
    }

    /// Stops the session, then reads and discards the rest of the stream. The stop is tried for
    /// [`Timeouts::drain`](crate::Timeouts::drain), and the stream is read between the attempts.
    fn discard(&self, connection: &mut Connection) {
        // One that tokio has polled does not wait.
        #[cfg(all(feature = "tokio", unix))]
        let _ = connection.set_blocking(); // a drain that does not wait is still one
        let (start, limit) = (Instant::now(), self.client.current_timeouts().drain);
        while let Err(error) = self.stop(TICK) {
            // No later attempt succeeds.
            let is_closed = matches!(error, Error::Closed { operation: Operation::Connect });
            // If the request cannot be sent, all that remains is to close the connection.
            if is_closed || start.elapsed() >= limit {
                return;
            }
            if drain(connection, TICK) {
                // Another thread may be about to stop it: the id can be that of another session now.
                self.is_over.store(true, Ordering::SeqCst);
                return;
            }
        }
        drain(connection, limit);
    }

    /// Marks the session as ended. Returns the connection of the stop request, if one was sent. The lock ends here:
    /// the reply can take long, and `StopHandle::stop` does not wait for it.
    fn end(&self) -> Option<Connection> {
        if self.is_over.load(Ordering::SeqCst) && self.is_connecting.load(Ordering::SeqCst) {
            return None; // the request is not sent any more
        }
        match std::mem::replace(&mut *self.lock(), Stop::Ended) {
            Stop::Asked(connection) => Some(connection),
            Stop::No | Stop::Ended => None,
        }
    }

    /// Reads the reply to the stop request, if one was sent, and marks the session as ended.
    fn reply(&self) -> Option<Result<()>> {
        let mut connection = self.end()?;
        Some(self.client.stopped(self.id, &mut connection))
    }
}

/// Stops a [`Session`] from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<Shared>);

impl StopHandle {
    /// Requests the end of the session without waiting for it: the reader of the session receives
    /// the rest of the stream.
    ///
    /// No request is sent for a session that has ended or was already stopped: its id may already
    /// belong to another session.
    ///
    /// The limits [`drain`](crate::Timeouts::drain) and [`end`](crate::Timeouts::end) of the reader begin
    /// with the first call, even if that fails. It can be called again.
    ///
    /// # Errors
    ///
    /// Those of sending a request: see [`Client`].
    pub fn stop(&self) -> Result<()> {
        self.0.stop(Duration::MAX)
    }

    /// An attempt of a reader, which reads before the next one.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn attempt(&self) -> Result<()> {
        self.0.stop(TICK)
    }
}

impl Session {
    pub(crate) fn new(
        client: Client,
        connection: Connection,
        id: u64,
        command: TracingCommand,
    ) -> Self {
        let shared = Shared {
            client,
            id,
            stop: Mutex::new(Stop::No),
            asked: OnceLock::new(),
            is_over: AtomicBool::new(false),
            is_connecting: AtomicBool::new(false),
        };
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

    /// The runtime's id of the session. Ids are reused once a session has ended.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The command that started it.
    pub const fn command(&self) -> TracingCommand {
        self.command
    }

    /// Bytes read so far.
    pub const fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// A handle that stops the session from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.shared))
    }

    /// As [`Read::read`], but waits at most `wait` for data.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if no data arrives in this time; the session continues. Otherwise
    /// those of [`Read::read`].
    pub fn read_within(&mut self, buf: &mut [u8], wait: Duration) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if let Some(ended) = self.ended() {
            return ended;
        }
        let start = Instant::now();
        loop {
            let left = wait.saturating_sub(start.elapsed());
            let Some(connection) = &mut self.connection else { return Ok(0) };
            let result = connection.stream(buf, left.min(TICK));
            match self.account(result, buf) {
                Err(e) if is_wait(&e) && start.elapsed() < wait => {}
                Err(e) if is_wait(&e) => return Err(io::ErrorKind::WouldBlock.into()),
                other => return other,
            }
        }
    }

    /// Reads to the end of the stream and writes everything to `out`.
    pub fn record(mut self, out: &mut impl Write) -> SessionEnd {
        self.copy(out, None);
        self.finish()
    }

    /// Records for `duration`, then stops the session and records the rest of the stream.
    ///
    /// The stream ends earlier if the target does. After the stop request, it may be silent for
    /// [`Timeouts::drain`](crate::Timeouts::drain) and last for
    /// [`Timeouts::end`](crate::Timeouts::end) at most.
    pub fn record_for(mut self, duration: Duration, out: &mut impl Write) -> SessionEnd {
        self.copy(out, Instant::now().checked_add(duration));
        self.stop_into(out)
    }

    /// Copies the stream to `out` until it ends, `out` fails or `until` has passed.
    fn copy(&mut self, out: &mut impl Write, until: Option<Instant>) {
        let mut buffer = vec![0; 256 * 1024];
        while self.end.is_none() {
            let wait = match until {
                None => TICK,
                Some(until) => TICK.min(until.saturating_duration_since(Instant::now())),
            };
            if wait.is_zero() {
                return;
            }
            // `self.end` has the error and the end of the stream.
            if let Ok(n @ 1..) = self.read_within(&mut buffer, wait) {
                if let Err(e) = out.write_all(buffer.get(..n).unwrap_or_default()) {
                    self.end = Some(End::Failed(TruncationReason::Output(e)));
                }
            }
        }
    }

    /// Stops the session, reads the rest of the stream and discards it.
    pub fn stop(self) -> SessionEnd {
        self.stop_into(&mut io::sink())
    }

    /// Stops the session, reads the rest of the stream and writes it to `out`.
    ///
    /// A request that cannot be sent, because the runtime executes another command, is tried again for
    /// [`Timeouts::drain`](crate::Timeouts::drain). The stream is read between the attempts. Each of them waits half a
    /// second for a connection; one of [`Client::with_dialer`], [`Timeouts::connect`](crate::Timeouts::connect).
    pub fn stop_into(mut self, out: &mut impl Write) -> SessionEnd {
        let (start, limit) = (Instant::now(), self.stop_limit());
        while self.end.is_none() {
            match self.shared.stop(TICK) {
                Ok(()) => break,
                Err(e) if start.elapsed() >= limit => {
                    self.give_up(e);
                    return self.finish();
                }
                Err(_) => self.copy(out, Instant::now().checked_add(TICK)),
            }
        }
        self.record(out)
    }

    /// How long a stop is tried.
    pub(crate) fn stop_limit(&self) -> Duration {
        self.shared.client.current_timeouts().drain
    }

    /// Ends the session, which could not be stopped. `error` is that of the last attempt.
    pub(crate) fn give_up(&mut self, error: Error) {
        let limit = self.stop_limit();
        self.end = Some(End::Failed(TruncationReason::Stop(match error {
            Error::Timeout { operation: Operation::Connect, after } => {
                Error::Timeout { operation: Operation::Connect, after: after.max(limit) }
            }
            other => other,
        })));
    }

    /// Whether nothing more is read.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Closes the session and returns how it ended. A session that was not read to its end is
    /// truncated.
    ///
    /// The rest of the stream is first requested and discarded. Each of the two takes at most
    /// [`Timeouts::drain`](crate::Timeouts::drain), and what was begun by then.
    pub fn finish(mut self) -> SessionEnd {
        let unread = self.is_unread();
        if let Some(connection) = self.connection.as_mut().filter(|_| unread) {
            self.shared.discard(connection);
        }
        let truncation = match self.end.take() {
            Some(End::Eof) if self.mark.is_there() => None,
            Some(End::Eof) => Some(TruncationReason::Closed),
            Some(End::Failed(reason)) => Some(reason),
            None => Some(TruncationReason::Abandoned),
        };
        // The stream is closed before the reply is read: neither end waits for the other.
        drop(self.connection.take());
        let stop = match truncation {
            // The time limit for the reply has passed.
            Some(
                TruncationReason::Silent(after) | TruncationReason::TargetStopped { after, .. },
            ) => {
                let operation = Operation::Reply;
                self.shared.end().map(|_| Err(Error::Timeout { operation, after }))
            }
            _ => self.shared.reply(),
        };
        SessionEnd { bytes: self.bytes, truncation, stop }
    }

    /// Whether the runtime may still send data.
    const fn is_unread(&self) -> bool {
        matches!(
            self.end,
            None | Some(End::Failed(TruncationReason::Output(_) | TruncationReason::Overrun(_)))
        )
    }

    fn fail(&mut self, reason: TruncationReason) -> io::Error {
        let error = io::Error::new(
            match &reason {
                TruncationReason::Silent(_)
                | TruncationReason::TargetStopped { .. }
                | TruncationReason::Overrun(_) => io::ErrorKind::TimedOut,
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
    /// The connection's descriptor, for polling. Do not read from it.
    pub fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.connection.as_ref()?.as_fd()
    }
}

/// Reads and discards the stream, to its end or for `limit`. Returns whether it has ended.
fn drain(connection: &mut Connection, limit: Duration) -> bool {
    let start = Instant::now();
    let mut buffer = vec![0; 64 * 1024];
    while start.elapsed() < limit {
        match connection.stream(&mut buffer, TICK) {
            Ok(1..) => {}
            Err(e) if is_wait(&e) => {}
            Ok(0) | Err(_) => return true,
        }
    }
    false
}

impl Drop for Session {
    fn drop(&mut self) {
        let unread = self.is_unread();
        let Some(mut connection) = self.connection.take() else { return };
        let shared = Arc::clone(&self.shared);
        if !unread {
            drop(shared.end()); // nobody waits for the reply
            return;
        }
        // If no thread can be started, the connection is closed only.
        let _ = std::thread::Builder::new().name("diag-ipc drain".into()).spawn(move || {
            shared.discard(&mut connection);
            drop(connection);
            let _ = shared.reply(); // no caller to report it to
        });
    }
}

impl Session {
    /// The result of every `read` after the stream has ended.
    fn ended(&self) -> Option<io::Result<usize>> {
        match &self.end {
            None => None,
            Some(End::Eof) => Some(Ok(0)),
            Some(End::Failed(reason)) => Some(Err(io::Error::other(reason.to_string()))),
        }
    }

    /// Records the bytes read, and ends the session if a limit has passed. Returns `WouldBlock`
    /// unchanged.
    fn account(&mut self, result: io::Result<usize>, buf: &[u8]) -> io::Result<usize> {
        match result {
            Ok(0) => {
                self.shared.is_over.store(true, Ordering::SeqCst);
                self.end = Some(End::Eof);
                Ok(0)
            }
            Ok(n) => {
                self.bytes += n as u64;
                self.mark.note(buf.get(..n).unwrap_or_default());
                self.silent = Instant::now();
                let limit = self.shared.client.current_timeouts().end;
                match self.shared.asked.get() {
                    // Return the data to the caller; the next read fails.
                    Some(asked) if self.silent.duration_since(*asked) > limit => {
                        self.fail(TruncationReason::Overrun(limit));
                    }
                    _ => {}
                }
                Ok(n)
            }
            Err(e) if is_wait(&e) => {
                // Events can be rare; but after the stop request the runtime has much data to send.
                let limit = self.shared.client.current_timeouts().drain;
                match self.shared.asked.get() {
                    None => self.silent = Instant::now(),
                    // The last read can be long ago.
                    Some(asked) if self.silent.max(*asked).elapsed() > limit => {
                        return Err(self.fail(self.silence(limit)));
                    }
                    Some(_) => {}
                }
                Err(e)
            }
            Err(e) => {
                self.shared.is_over.store(true, Ordering::SeqCst);
                Err(self.fail(TruncationReason::Io(e)))
            }
        }
    }

    /// Why no data arrived for `after`.
    fn silence(&self, after: Duration) -> TruncationReason {
        match self.connection.as_ref().and_then(|connection| connection.peer().pid) {
            Some(pid) if target::is_stopped(pid) => TruncationReason::TargetStopped { pid, after },
            _ => TruncationReason::Silent(after),
        }
    }

    /// Reads the available data, without waiting.
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
    // Our own timeout is not a system error.
    matches!(error.kind(), io::ErrorKind::WouldBlock)
        || (error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_some())
}

impl Read for Session {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.read_within(buf, TICK) {
                Err(e) if is_wait(&e) => {}
                other => return other,
            }
        }
    }
}

/// How a session ended.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub struct SessionEnd {
    /// The number of bytes read.
    pub bytes: u64,
    /// Why the stream is truncated; `None` if it is complete.
    pub truncation: Option<TruncationReason>,
    /// The runtime's reply to the stop request, if one was sent.
    pub stop: Option<Result<()>>,
}

impl SessionEnd {
    /// Whether the stream was read up to its end mark.
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

/// Why a stream is truncated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TruncationReason {
    /// The runtime closed the stream without its end mark: the process was killed, or ended without
    /// shutting down its runtime.
    #[error("the stream was closed without its end mark (the target was killed?)")]
    Closed,
    /// No data arrived for [`Timeouts::drain`](crate::Timeouts::drain) after the stop request.
    #[error(
        "the target sent nothing for {0:?} after the request to stop: it is paused, or its \
         diagnostic server hangs"
    )]
    Silent(Duration),
    /// As [`TruncationReason::Silent`], and the target process is stopped: by SIGSTOP, Ctrl-Z or a
    /// debugger.
    #[error(
        "process {pid} is stopped and sent nothing for {after:?} after the request to stop the \
         session: resume it with SIGCONT"
    )]
    TargetStopped {
        /// The process id in the namespace of the caller.
        pid: u32,
        /// The time without data.
        after: Duration,
    },
    /// The stream did not end within [`Timeouts::end`](crate::Timeouts::end) of the stop request.
    #[error("the stream did not end within {0:?} of the request to stop")]
    Overrun(Duration),
    /// The stop request could not be sent; the connection was closed instead.
    #[error("the request to stop failed: {0}")]
    Stop(#[source] Error),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// The output could not be written; the connection was closed.
    #[error("writing the output failed: {0}")]
    Output(#[source] io::Error),
    /// The session was closed before its stream was read to the end.
    #[error("the stream was not read to its end")]
    Abandoned,
}

/// Detects the end of a NetTrace stream.
///
/// Up to version 5, the end tag of the last object and a null reference, `06 01`, are the last
/// bytes; version 6 ends with an empty block of kind 0. A stream that is truncated exactly where
/// its data contains these bytes is reported as complete; only a parser can detect that.
#[derive(Debug, Default)]
struct EndMark {
    head: Vec<u8>,
    tail: [u8; 4],
}

impl EndMark {
    /// `"Nettrace"` and the zero that only version 6 has.
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

/// A session whose events go to the kernel's user_events, until it is stopped or dropped.
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

    /// The runtime's id of the session.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Stops the session.
    ///
    /// # Errors
    ///
    /// Those of [`Client::stop_tracing`].
    pub fn stop(self) -> Result<()> {
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

    #[cfg(unix)]
    const fn hours(n: u64) -> Duration {
        Duration::from_secs(n * 3_600)
    }

    /// A session whose runtime takes no requests, and its end of the stream.
    #[cfg(unix)]
    fn session() -> (Session, std::os::unix::net::UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let connection = Connection::from(crate::transport::unix::Stream::from(ours));
        let timeouts = crate::Timeouts::all(hours(1));
        let client = Client::new(std::path::Path::new("/nowhere")).timeouts(timeouts);
        (Session::new(client, connection, 7, TracingCommand::CollectTracing2), theirs)
    }

    #[cfg(unix)]
    #[test]
    fn a_session_whose_stream_has_ended_is_not_stopped() {
        let (mut session, theirs) = session();
        let stop_handle = session.stop_handle();
        stop_handle.stop().unwrap_err(); // of the request
        drop(theirs);
        assert_eq!(session.read(&mut [0; 8]).unwrap(), 0);
        stop_handle.stop().unwrap();
        let end = session.finish();
        assert!(matches!(end.truncation, Some(TruncationReason::Closed)), "{end:?}");
        assert!(end.stop.is_none(), "{end:?}");
    }

    #[cfg(unix)]
    #[test]
    fn silence_begins_with_the_request_to_stop() {
        let (mut session, _theirs) = session();
        session.silent = Instant::now().checked_sub(hours(3)).unwrap();
        let wait = |session: &mut Session| {
            session.account(Err(io::ErrorKind::WouldBlock.into()), &[]).unwrap_err().kind()
        };
        session.shared.asked.set(Instant::now()).unwrap();
        assert_eq!(wait(&mut session), io::ErrorKind::WouldBlock);
        let asked = Instant::now().checked_sub(hours(2)).unwrap();
        Arc::get_mut(&mut session.shared).unwrap().asked = OnceLock::from(asked);
        assert_eq!(wait(&mut session), io::ErrorKind::TimedOut);
        assert!(matches!(session.end, Some(End::Failed(TruncationReason::Silent(_)))));
    }

    #[cfg(unix)]
    #[test]
    fn a_session_without_data_for_a_time_continues() {
        let (mut session, mut theirs) = session();
        let mut buffer = [0; 8];
        let error = session.read_within(&mut buffer, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(session.read_within(&mut [], hours(1)).unwrap(), 0);
        theirs.write_all(b"data").unwrap();
        assert_eq!(session.read_within(&mut buffer, hours(1)).unwrap(), 4);
        drop(theirs);
        assert_eq!(session.read_within(&mut buffer, hours(1)).unwrap(), 0);
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
