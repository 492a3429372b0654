//! x
#![forbid(unsafe_code)]
mod error;
mod guid;
pub mod message;
pub use error::{Error, HResult, NoSocketReason, Operation, Refusal};
pub use guid::{Guid, ParseGuidError};
pub use message::*;
