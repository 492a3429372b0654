//! What two or more of the triscope tracers need, and nothing else.
//!
//! ```
//! use trace_common::{ClockDomain, ClockMap, Cursor, Timestamp};
//!
//! // A checked cursor: every read says where it failed, nothing panics.
//! let mut bytes = Cursor::new(&[0xe5, 0x8e, 0x26, 7]);
//! assert_eq!(bytes.uvarint()?, 624_485);
//! assert_eq!(bytes.u8()?, 7);
//! assert_eq!(bytes.u8().unwrap_err().offset, 4);
//!
//! // Clock readings taken together relate one clock to another.
//! let mut clocks = ClockMap::new();
//! clocks.add([
//!     (ClockDomain::Monotonic, Timestamp::from_nanos(1_000)),
//!     (ClockDomain::Realtime, Timestamp::from_nanos(1_700_000_000_000_000_000)),
//! ]);
//! let wall = clocks.convert(
//!     Timestamp::from_nanos(1_500),
//!     ClockDomain::Monotonic,
//!     ClockDomain::Realtime,
//! )?;
//! assert_eq!(wall.nanos(), 1_700_000_000_000_000_500);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Timestamp`], [`ClockDomain`], [`ClockMap`]: one time axis out of many clocks;
//! - [`Cursor`]: bounds-checked little-endian reads and variable-length integers over a byte slice;
//! - [`Guid`]: a GUID in .NET's byte order;
//! - [`IdMap`]: values by identifiers that are mostly given out one after the other;
//! - [`Limits`]: what a decoder may allocate on the word of its input;
//! - [`Merge`]: several sources in the order of time as one, up to a watermark.
#![forbid(unsafe_code)]

mod clock;
mod cursor;
mod guid;
mod id_map;
mod limits;
mod merge;

pub use clock::{ClockDomain, ClockError, ClockMap, Timestamp};
pub use cursor::{Cursor, ReadError, ReadErrorKind};
pub use guid::{Guid, ParseGuidError};
pub use id_map::IdMap;
pub use limits::Limits;
pub use merge::{Merge, Merged};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
