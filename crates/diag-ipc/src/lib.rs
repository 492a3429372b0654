//! The .NET Diagnostic IPC Protocol: query running .NET processes, record EventPipe traces, write
//! memory dumps, and control suspended runtimes.
//!
//! ```no_run
//! use diag_ipc::{Client, Level, Provider, TracingConfig};
//! use std::{fs::File, time::Duration};
//!
//! // Finds the socket by the process's start time, and checks that the process listens on it.
//! let client = Client::for_process(1234)?;
//! println!("{}", client.process_info()?.command_line);
//!
//! // Ten seconds of runtime events and managed stacks, with the names of all methods.
//! let session = client.collect_tracing(&TracingConfig::new([
//!     Provider::new("Microsoft-Windows-DotNETRuntime").keywords(0x14_c14f_ccbd).level(Level::Informational),
//!     Provider::new("Microsoft-DotNETCore-SampleProfiler"),
//! ]))?;
//! let end = session.record_for(Duration::from_secs(10), &mut File::create("app.nettrace")?);
//! println!("{} bytes, {end}", end.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Client`]: every command of the protocol, .NET Core 3.1 to .NET 11, in the newest version that
//!   the target supports;
//! - [`Session`]: the stream of a tracing session, and whether it is complete;
//! - [`reverse`]: reverse connections: runtimes that connect at startup and stay suspended until
//!   resumed;
//! - [`discovery`]: the processes with a diagnostic server, containers included;
//! - [`message`]: the messages of the protocol, for clients and servers, without I/O.
//!
//! It does not parse the stream of a session: that is NetTrace data.
//!
//! # Safe for the target
//!
//! The server in a runtime is one thread without timeouts, and some requests end the process:
//!
//! - Requests that are known to end or hang a runtime are rejected before they are sent
//!   ([`RejectedRequest`]), or cannot be expressed.
//! - Nothing is sent before the other end is known to be the intended process
//!   ([`Client::for_process`], [`discovery`]).
//! - A connection is opened only to send a message, in one write.
//! - Every step has a deadline ([`Timeouts`]), after which the connection is closed.
//! - Stopping a session cannot deadlock: the reader of the stream and the request to stop are
//!   independent of each other.
//!
//! # Platforms
//!
//! Linux: everything. Other Unix systems: everything but discovery. Windows: named pipes
//! ([`Address::NamedPipe`], [`pipe_address`]), without discovery and reverse connections.
//!
//! # Privileges
//!
//! A diagnostic socket has mode 0600: only the user of the process and root can use it.
//!
//! # Features
//!
//! - `tokio`: the module `asynchronous`, commands and sessions on tokio's runtime (Unix).
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

#[cfg(all(feature = "tokio", unix))]
pub mod asynchronous;
#[cfg(all(feature = "tokio", unix))]
mod cancellation;
mod client;
#[cfg(target_os = "linux")]
pub mod discovery;
mod error;
mod hook;
mod late;
pub mod message;
mod negotiate;
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
pub use late::wait_for_late_sessions;
pub use message::{
    BufferingMode, Command, DumpCommand, DumpFlags, DumpType, Environment, EventFilter, Format,
    Level, ParseLevelError, ParseProviderError, PerfMapType, ProcessInfo, ProcessInfoCommand,
    Provider, Rundown, TracepointSet, Tracepoints, TracingCommand, TracingConfig,
    UserEventsCommand, UserEventsConfig, UserEventsProvider,
};
pub use presets::{PROVIDER_PRESETS, ProviderPreset, RUNTIME_KEYWORDS, runtime_keywords};
pub use session::{Session, SessionEnd, StopHandle, TruncationReason, UserEventsSession};
pub use trace_common::{Guid, ParseGuidError, ReadError, ReadErrorKind};
pub use transport::{Address, Peer, Timeouts, pipe_address};

/// The example of the README is compiled with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
