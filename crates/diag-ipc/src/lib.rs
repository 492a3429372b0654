//! x
#![forbid(unsafe_code)]
mod client;
#[cfg(target_os = "linux")]
pub mod discovery;
mod error;
mod guid;
pub mod message;
#[cfg(unix)]
pub mod reverse;
mod session;
mod target;
mod transport;
pub use client::Client;
pub use error::{Error, HResult, NoSocketReason, Operation, Refusal};
pub use guid::{Guid, ParseGuidError};
pub use message::*;
pub use session::{CutReason, Ending, Session, Stopper, UserEventsSession};
pub use transport::{Address, Peer, Timeouts};
