//! The .NET Diagnostic IPC Protocol: ask a running .NET process what it is, what it does, and
//! for a memory dump, and let it trace itself.
//!
//! ```no_run
//! use diag_ipc::{Client, Level, Provider, TracingConfig};
//! use std::{fs::File, thread, time::Duration};
//!
//! // The socket is found by the process's own start time, and must be the process's own.
//! let client = Client::for_process(1234)?;
//! println!("{}", client.process_info()?.command_line);
//!
//! // Ten seconds of runtime events and CPU samples, complete with the names of all methods.
//! let session = client.collect_tracing(&TracingConfig::new([
//!     Provider::new("Microsoft-Windows-DotNETRuntime").keywords(0x14_c14f_ccbd).level(Level::Informational),
//!     Provider::new("Microsoft-DotNETCore-SampleProfiler"),
//! ]))?;
//! let stop_handle = session.stop_handle();
//! thread::spawn(move || {
//!     thread::sleep(Duration::from_secs(10));
//!     stop_handle.stop()
//! });
//! let end = session.record(&mut File::create("app.nettrace")?);
//! println!("{} bytes, {end}", end.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Client`]: every command of the protocol, .NET Core 3.1 to 11, in the newest version that
//!   the target knows;
//! - [`Session`]: the stream of a tracing session, which ends complete or says why it does not;
//! - [`reverse`]: runtimes that connect to us, and wait at startup until they are told to go on;
//! - [`discovery`]: which processes there are, containers included;
//! - [`message`]: the protocol itself, both ends, without any I/O.
//!
//! What it does not do: read what a session streams (NetTrace).
//!
//! # Safe for the target
//!
//! The server in a runtime is one thread without timeouts, and some requests end the process:
//!
//! - requests that are known to end or hang a runtime cannot be sent: [`RejectedRequest`] says why;
//! - nothing is sent before the other end is known to be the process that was meant
//!   ([`Client::for_process`], [`discovery`]);
//! - a connection is made when there is something to send, and a message is one write;
//! - everything has a deadline ([`Timeouts`]), after which the connection is closed;
//! - ending a session cannot deadlock: what reads the stream and what asks for its end are
//!   independent of each other.
//!
//! # Platforms
//!
//! Linux: all of it. Other Unix systems: the default address is not looked up. Windows: named
//! pipes by [`Address::NamedPipe`] and [`pipe_address`], without
//! reverse connections.
//!
//! # Privileges
//!
//! A diagnostic socket has mode 0600: those of the same user can be used, and, as root, all.
//!
//! # Features
//!
//! - `tokio`: the module `asynchronous`, commands and sessions on tokio's runtime (Unix).
#![forbid(unsafe_code)]

#[cfg(all(feature = "tokio", unix))]
pub mod asynchronous;
mod client;
#[cfg(target_os = "linux")]
pub mod discovery;
mod error;
mod hook;
pub mod message;
mod presets;
#[cfg(unix)]
pub mod reverse;
mod session;
mod target;
mod transport;

pub use client::Client;
#[cfg(target_os = "linux")]
pub use discovery::default_server_address;
pub use error::{Error, HResult, NoSocketReason, Operation, RejectedRequest, Result};
pub use hook::{StartupHookError, check_startup_hook};
pub use message::{
    BufferingMode, Command, DumpCommand, DumpFlags, DumpType, Environment, EventFilter, Format,
    Level, ParseLevelError, ParseProviderError, PerfMapType, ProcessInfo, ProcessInfoCommand,
    Provider, Rundown, TracepointSet, Tracepoints, TracingCommand, TracingConfig,
    UserEventsCommand, UserEventsConfig, UserEventsProvider,
};
pub use presets::{PROVIDER_PRESETS, ProviderPreset, RUNTIME_KEYWORDS, runtime_keywords};
pub use session::{Session, SessionEnd, StopHandle, TruncationReason, UserEventsSession};
pub use trace_common::{Guid, ParseGuidError};
pub use transport::{Address, Peer, Timeouts, pipe_address};

/// The example of the README is compiled with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
