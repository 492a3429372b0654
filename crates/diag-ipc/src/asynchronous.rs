//! Commands, sessions and the reverse server on tokio's runtime: the feature `tokio`.
//!
//! Commands are bounded in time, and run on tokio's blocking threads. Reading a session needs no thread.
//!
//! Dropping the future of a command closes its connection, so that its thread ends. A request that was
//! sent is executed all the same: a dump is written to its end. The requests that start and stop sessions with a stream
//! wait for their reply, for at most [`Timeouts::reply`](crate::Timeouts::reply), as the runtime keeps a session that nobody stops. A session
//! that was not requested yet is not started.
//! Opening a connection takes at most [`Timeouts::connect`](crate::Timeouts::connect). tokio waits for such threads when its runtime is
//! dropped, except by [`shutdown_timeout`](tokio::runtime::Runtime::shutdown_timeout) or
//! [`shutdown_background`](tokio::runtime::Runtime::shutdown_background).
//!
//! ```no_run
//! use diag_ipc::{Provider, TracingConfig, asynchronous::Client};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::for_process(1234).await?;
//! println!("{}", client.process_info().await?.command_line);
//!
//! let config = TracingConfig::new([Provider::new("System.Runtime")]);
//! let session = client.collect_tracing(config).await?;
//! let mut trace = Vec::new();
//! let end = session.record_for(Duration::from_secs(5), &mut trace).await;
//! println!("{} bytes, {end}", end.bytes);
//! # Ok(())
//! # }
//! ```

use crate::cancellation::Cancellation;
use crate::message::{DumpFlags, DumpType, Environment, PerfMapType, ProcessInfo, TracingConfig};
use crate::{Error, Guid, Operation, Peer, Result, SessionEnd, StopHandle, TruncationReason};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Sleep, sleep};

/// How often a reader without data checks the limits.
const TICK: Duration = Duration::from_millis(500);

/// A client of one runtime: [`crate::Client`], whose commands do not block the caller.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// Wraps a blocking client.
    pub const fn new(client: crate::Client) -> Self {
        Self(client)
    }

    /// The wrapped blocking client.
    pub const fn get_ref(&self) -> &crate::Client {
        &self.0
    }

    /// Connects to the process `pid`.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Client::for_process`].
    #[cfg(target_os = "linux")]
    pub async fn for_process(pid: u32) -> Result<Self> {
        blocking(move || crate::Client::for_process(pid)).await.map(Self)
    }

    /// Runs any function of the wrapped client on a blocking thread.
    ///
    /// If the future is dropped, the command that `command` waits for and all later ones fail.
    ///
    /// # Errors
    ///
    /// Those of the function.
    pub async fn call<T: Send + 'static>(
        &self,
        command: impl FnOnce(&crate::Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (client, cancellation) = self.0.cancellable();
        let waiting = Waiting(cancellation);
        let result = blocking(move || command(&client)).await;
        waiting.0.finish();
        result
    }

    /// See [`crate::Client::process_info`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn process_info(&self) -> Result<ProcessInfo> {
        self.call(crate::Client::process_info).await
    }

    /// See [`crate::Client::process_environment`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn process_environment(&self) -> Result<Environment> {
        self.call(crate::Client::process_environment).await
    }

    /// See [`crate::Client::set_environment_variable`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn set_environment_variable(
        &self,
        name: impl Into<String>,
        value: Option<String>,
    ) -> Result<()> {
        let name = name.into();
        self.call(move |client| client.set_environment_variable(&name, value.as_deref())).await
    }

    /// See [`crate::Client::resume_runtime`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn resume_runtime(&self) -> Result<()> {
        self.call(crate::Client::resume_runtime).await
    }

    /// See [`crate::Client::enable_perf_map`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn enable_perf_map(&self, perf_map_type: PerfMapType) -> Result<()> {
        self.call(move |client| client.enable_perf_map(perf_map_type)).await
    }

    /// See [`crate::Client::disable_perf_map`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn disable_perf_map(&self) -> Result<()> {
        self.call(crate::Client::disable_perf_map).await
    }

    /// See [`crate::Client::apply_startup_hook`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn apply_startup_hook(&self, path: impl Into<String>) -> Result<()> {
        let path = path.into();
        self.call(move |client| client.apply_startup_hook(&path)).await
    }

    /// See [`crate::Client::create_core_dump`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn create_core_dump(
        &self,
        path: impl Into<String>,
        dump_type: DumpType,
        flags: DumpFlags,
    ) -> Result<()> {
        let path = path.into();
        self.call(move |client| client.create_core_dump(&path, dump_type, flags)).await
    }

    /// See [`crate::Client::is_suspended`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn is_suspended(&self) -> Result<Option<bool>> {
        self.call(crate::Client::is_suspended).await
    }

    /// See [`crate::Client::peer`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn peer(&self) -> Result<Peer> {
        self.call(crate::Client::peer).await
    }

    /// See [`crate::Client::attach_profiler`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn attach_profiler(
        &self,
        timeout: Duration,
        clsid: Guid,
        path: impl Into<String>,
        client_data: impl Into<Vec<u8>>,
    ) -> Result<()> {
        let (path, client_data) = (path.into(), client_data.into());
        self.call(move |client| client.attach_profiler(timeout, clsid, &path, &client_data)).await
    }

    /// See [`crate::Client::startup_profiler`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn startup_profiler(&self, clsid: Guid, path: impl Into<String>) -> Result<()> {
        let path = path.into();
        self.call(move |client| client.startup_profiler(clsid, &path)).await
    }

    /// See [`crate::Client::stop_tracing`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn stop_tracing(&self, session: u64) -> Result<()> {
        self.call(move |client| client.stop_tracing(session)).await
    }

    /// See [`crate::Client::collect_tracing`].
    ///
    /// # Errors
    ///
    /// Those of the function of the same name.
    pub async fn collect_tracing(&self, config: TracingConfig) -> Result<Session> {
        let session = self.call(move |client| client.collect_tracing(&config)).await?;
        Session::new(session).map_err(|source| Error::Io { operation: Operation::Stream, source })
    }
}

/// A command that is waited for.
struct Waiting(Arc<Cancellation>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn blocking<T: Send + 'static>(
    function: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    spawn_blocking(function).await.unwrap_or_else(|e| Err(cancelled(e)))
}

/// A server that runtimes connect to: [`crate::reverse::Server`], which does not block the caller.
#[derive(Clone, Debug)]
pub struct Server(Arc<crate::reverse::Server>);

impl Server {
    /// Listens at `path`.
    ///
    /// # Errors
    ///
    /// Those of [`crate::reverse::Server::bind`].
    pub fn bind(path: &Path) -> Result<Self> {
        crate::reverse::Server::bind(path).map(|server| Self(Arc::new(server)))
    }

    /// The wrapped blocking server.
    pub fn get_ref(&self) -> &crate::reverse::Server {
        &self.0
    }

    /// Waits for the next runtime that has not connected before.
    ///
    /// A dropped future leaves a thread behind that waits until `timeout` has passed and takes a
    /// runtime that connects meanwhile. tokio waits for it when its runtime is dropped: see the
    /// [module](self).
    ///
    /// # Errors
    ///
    /// Those of [`crate::reverse::Server::accept`].
    pub async fn accept(&self, timeout: Duration) -> Result<(Client, crate::reverse::Runtime)> {
        let server = Arc::clone(&self.0);
        let runtime = blocking(move || server.accept(timeout)).await?;
        Ok((Client(runtime.client()), runtime))
    }
}

fn cancelled(error: JoinError) -> Error {
    Error::Io { operation: Operation::Reply, source: io::Error::other(error) }
}

/// A tracing session: [`crate::Session`] with [`AsyncRead`].
///
/// A read that waits checks the limits of the session every half second, so it needs tokio's timer
/// ([`enable_time`](tokio::runtime::Builder::enable_time)).
#[derive(Debug)]
pub struct Session {
    /// A duplicate of the connection, for tokio to poll.
    ready: UnixStream,
    session: crate::Session,
    /// The next check of the limits by a read that waits.
    tick: Option<Pin<Box<Sleep>>>,
}

impl Session {
    fn new(session: crate::Session) -> io::Result<Self> {
        let fd = session.as_fd().ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
        let stream = std::os::unix::net::UnixStream::from(fd);
        stream.set_nonblocking(true)?;
        Ok(Self { ready: UnixStream::from_std(stream)?, session, tick: None })
    }

    /// The wrapped blocking session.
    pub const fn get_ref(&self) -> &crate::Session {
        &self.session
    }

    /// A handle that stops the session. Its `stop` blocks briefly: use
    /// [`tokio::task::spawn_blocking`].
    pub fn stop_handle(&self) -> StopHandle {
        self.session.stop_handle()
    }

    /// Reads to the end of the stream and writes everything to `out`.
    pub async fn record(mut self, out: &mut (impl AsyncWrite + Unpin)) -> SessionEnd {
        match self.copy(out, None).await {
            Ok(()) => self.finish().await,
            Err(e) => self.output_failed(e).await,
        }
    }

    /// Records for `duration`, then stops the session and records the rest of the stream: see
    /// [`crate::Session::record_for`].
    pub async fn record_for(
        mut self,
        duration: Duration,
        out: &mut (impl AsyncWrite + Unpin),
    ) -> SessionEnd {
        match self.copy(out, Instant::now().checked_add(duration)).await {
            Ok(()) => self.stop_into(out).await,
            Err(e) => self.output_failed(e).await,
        }
    }

    /// Copies the stream to `out` until it ends, `until` has passed, or `out` fails.
    async fn copy(
        &mut self,
        out: &mut (impl AsyncWrite + Unpin),
        until: Option<Instant>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let wait = match until {
                None => TICK,
                Some(until) => TICK.min(until.saturating_duration_since(Instant::now())),
            };
            if wait.is_zero() {
                return Ok(());
            }
            let read = match tokio::time::timeout(wait, self.read(&mut buffer)).await {
                Ok(read) => read,
                // This read checks whether the stream was silent for too long.
                Err(_) => self.session.try_read(&mut buffer),
            };
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) | Ok(0) => return Ok(()), // `finish` returns the reason
                Ok(n) => out.write_all(buffer.get(..n).unwrap_or_default()).await?,
            }
        }
    }

    /// Stops the session, reads the rest of the stream and writes it to `out`: see
    /// [`crate::Session::stop_into`].
    pub async fn stop_into(mut self, out: &mut (impl AsyncWrite + Unpin)) -> SessionEnd {
        let (start, limit) = (Instant::now(), self.session.stop_limit());
        while !self.session.has_ended() {
            let stop_handle = self.stop_handle();
            let stopped = spawn_blocking(move || stop_handle.attempt()).await;
            match stopped.unwrap_or_else(|e| Err(cancelled(e))) {
                Ok(()) => break,
                Err(e) if start.elapsed() >= limit => {
                    self.session.give_up(e);
                    return self.finish().await;
                }
                Err(_) => {
                    if let Err(e) = self.copy(out, Instant::now().checked_add(TICK)).await {
                        return self.output_failed(e).await;
                    }
                }
            }
        }
        self.record(out).await
    }

    /// Closes the session and returns how it ended: see [`crate::Session::finish`].
    pub async fn finish(self) -> SessionEnd {
        let Self { ready, session, .. } = self;
        drop(ready); // otherwise the connection would stay open
        let bytes = session.bytes_read();
        spawn_blocking(move || session.finish()).await.unwrap_or_else(|e| SessionEnd {
            bytes,
            truncation: Some(TruncationReason::Io(io::Error::other(e))),
            stop: None,
        })
    }

    async fn output_failed(self, error: io::Error) -> SessionEnd {
        let mut end = self.finish().await;
        end.truncation = Some(TruncationReason::Output(error));
        end
    }
}

impl AsyncRead for Session {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // `try_read` would take no bytes for the end of the stream.
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Self { ready, session, tick } = &mut *self;
        loop {
            let unfilled = buf.initialize_unfilled();
            let read = match ready.poll_read_ready(cx)? {
                Poll::Ready(()) => ready.try_io(Interest::READABLE, || session.try_read(unfilled)),
                Poll::Pending => {
                    let tick = tick.get_or_insert_with(|| Box::pin(sleep(TICK)));
                    ready!(tick.as_mut().poll(cx));
                    tick.as_mut().reset(tokio::time::Instant::now() + TICK);
                    // This read checks whether the stream was silent for too long.
                    session.try_read(unfilled)
                }
            };
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
