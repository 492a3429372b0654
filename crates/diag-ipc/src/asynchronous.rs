//! Commands and sessions on tokio's runtime: the feature `tokio`.
//!
//! Commands are short and bounded in time, and run on tokio's threads for blocking work. A
//! session is read without a thread of its own.
//!
//! ```no_run
//! use diag_ipc::{Provider, TracingConfig, asynchronous::Client};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(diag_ipc::Client::for_process(1234)?);
//! println!("{}", client.process_info().await?.command_line);
//!
//! let config = TracingConfig::new([Provider::new("System.Runtime")]);
//! let session = client.collect_tracing(config).await?;
//! let stop_handle = session.stop_handle();
//! tokio::spawn(async move {
//!     tokio::time::sleep(Duration::from_secs(5)).await;
//!     tokio::task::spawn_blocking(move || stop_handle.stop()).await
//! });
//! let mut trace = Vec::new();
//! let end = session.record(&mut trace).await;
//! println!("{} bytes, {end}", end.bytes);
//! # Ok(())
//! # }
//! ```

use crate::message::{DumpFlags, DumpType, Environment, PerfMapType, ProcessInfo, TracingConfig};
use crate::{Error, Operation, SessionEnd, StopHandle, TruncationReason};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::{JoinError, spawn_blocking};

/// How often a reader that gets nothing looks whether it should give up.
const TICK: Duration = Duration::from_millis(500);

/// A client of one runtime: [`crate::Client`], whose commands do not block the caller.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// The same client, asynchronous.
    pub const fn new(client: crate::Client) -> Self {
        Self(client)
    }

    /// The client underneath.
    pub const fn get_ref(&self) -> &crate::Client {
        &self.0
    }

    /// Runs any command of the client underneath.
    pub async fn call<T: Send + 'static>(
        &self,
        command: impl FnOnce(&crate::Client) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let client = self.0.clone();
        spawn_blocking(move || command(&client)).await.unwrap_or_else(|e| Err(cancelled(e)))
    }

    /// See [`crate::Client::process_info`].
    pub async fn process_info(&self) -> Result<ProcessInfo, Error> {
        self.call(crate::Client::process_info).await
    }

    /// See [`crate::Client::process_environment`].
    pub async fn process_environment(&self) -> Result<Environment, Error> {
        self.call(crate::Client::process_environment).await
    }

    /// See [`crate::Client::set_environment_variable`].
    pub async fn set_environment_variable(
        &self,
        name: impl Into<String>,
        value: Option<String>,
    ) -> Result<(), Error> {
        let name = name.into();
        self.call(move |client| client.set_environment_variable(&name, value.as_deref())).await
    }

    /// See [`crate::Client::resume_runtime`].
    pub async fn resume_runtime(&self) -> Result<(), Error> {
        self.call(crate::Client::resume_runtime).await
    }

    /// See [`crate::Client::enable_perf_map`].
    pub async fn enable_perf_map(&self, perf_map_type: PerfMapType) -> Result<(), Error> {
        self.call(move |client| client.enable_perf_map(perf_map_type)).await
    }

    /// See [`crate::Client::disable_perf_map`].
    pub async fn disable_perf_map(&self) -> Result<(), Error> {
        self.call(crate::Client::disable_perf_map).await
    }

    /// See [`crate::Client::apply_startup_hook`].
    pub async fn apply_startup_hook(&self, path: impl Into<String>) -> Result<(), Error> {
        let path = path.into();
        self.call(move |client| client.apply_startup_hook(&path)).await
    }

    /// See [`crate::Client::create_core_dump`].
    pub async fn create_core_dump(
        &self,
        path: impl Into<String>,
        dump_type: DumpType,
        flags: DumpFlags,
    ) -> Result<(), Error> {
        let path = path.into();
        self.call(move |client| client.create_core_dump(&path, dump_type, flags)).await
    }

    /// See [`crate::Client::collect_tracing`].
    pub async fn collect_tracing(&self, config: TracingConfig) -> Result<Session, Error> {
        let session = self.call(move |client| client.collect_tracing(&config)).await?;
        Session::new(session).map_err(|source| Error::Io { operation: Operation::Stream, source })
    }
}

fn cancelled(error: JoinError) -> Error {
    Error::Io { operation: Operation::Reply, source: io::Error::other(error) }
}

/// A tracing session: [`crate::Session`] with [`AsyncRead`].
#[derive(Debug)]
pub struct Session {
    /// The connection once more, by which tokio waits.
    ready: UnixStream,
    session: crate::Session,
}

impl Session {
    fn new(session: crate::Session) -> io::Result<Self> {
        let fd = session.as_fd().ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
        let stream = std::os::unix::net::UnixStream::from(fd);
        stream.set_nonblocking(true)?;
        Ok(Self { ready: UnixStream::from_std(stream)?, session })
    }

    /// The session underneath.
    pub const fn get_ref(&self) -> &crate::Session {
        &self.session
    }

    /// A handle to end it with. Its `stop` blocks for a moment: see
    /// [`tokio::task::spawn_blocking`].
    pub fn stop_handle(&self) -> StopHandle {
        self.session.stop_handle()
    }

    /// Reads until the stream ends, however that comes about, and writes everything to `out`.
    pub async fn record(mut self, out: &mut (impl AsyncWrite + Unpin)) -> SessionEnd {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match tokio::time::timeout(TICK, self.read(&mut buffer)).await {
                // Whether it has been silent for too long is seen when it is read.
                Err(_) => match self.session.try_read(&mut buffer) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) | Ok(0) => break,
                    Ok(n) => {
                        if let Err(e) = out.write_all(buffer.get(..n).unwrap_or_default()).await {
                            return self.output_failed(e).await;
                        }
                    }
                },
                Ok(Ok(0) | Err(_)) => break, // the end tells
                Ok(Ok(n)) => {
                    if let Err(e) = out.write_all(buffer.get(..n).unwrap_or_default()).await {
                        return self.output_failed(e).await;
                    }
                }
            }
        }
        self.finish().await
    }

    /// Asks the runtime to end the session, reads the rest of the stream and writes it to `out`.
    pub async fn stop_into(self, out: &mut (impl AsyncWrite + Unpin)) -> SessionEnd {
        let stop_handle = self.stop_handle();
        let stopped = spawn_blocking(move || stop_handle.stop()).await;
        match stopped.unwrap_or_else(|e| Err(cancelled(e))) {
            Ok(()) => self.record(out).await,
            Err(e) => {
                let mut end = self.finish().await;
                end.truncation = Some(TruncationReason::Stop(e));
                end
            }
        }
    }

    /// Closes the session and says how it ended.
    pub async fn finish(self) -> SessionEnd {
        let Self { ready, session } = self;
        drop(ready); // or the connection would stay open
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
        let Self { ready, session } = &mut *self;
        loop {
            ready!(ready.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            match ready.try_io(Interest::READABLE, || session.try_read(unfilled)) {
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
