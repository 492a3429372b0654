//! The messages of the protocol, without any I/O.
//!
//! A message is a [`Header`] and a payload of at most 65 515 bytes, all little-endian. A client
//! sends one [`Request`] per connection and receives one [`Reply`]; for some commands a stream
//! follows. Everything here can be encoded and decoded, for clients and servers.
//!
//! Source: `documentation/design-docs/ipc-protocol.md` of dotnet/diagnostics, corrected by the
//! observed behaviour of runtimes; `docs/dotnet-ipc.md` of this repository lists the differences.

mod command;
mod process;
mod request;
mod tracing;
mod wire;

pub use command::{
    Command, CommandSet, DumpCommand, ProcessInfoCommand, TracingCommand, UserEventsCommand,
};
pub(crate) use process::checked_size;
pub use process::{Environment, EnvironmentHeader, ProcessInfo};
pub use request::{DumpFlags, DumpType, PerfMapType, Request};
pub use tracing::{
    BufferingMode, DEFAULT_RUNDOWN_KEYWORD, EventFilter, Format, Level, ParseLevelError,
    ParseProviderError, Provider, Rundown, TracepointSet, Tracepoints, TracingConfig,
    UserEventsConfig, UserEventsProvider,
};
pub(crate) use wire::end;
pub use wire::{Advertise, DecodeError, DecodeErrorKind, Header, MAGIC, MAX_PAYLOAD, Reply};
