//! The bookkeeping of a flight recorder: which segments of a recording are kept, which of them
//! belong to a dump, and what the dump covers.
//!
//! A flight recorder writes what it records as segments, each complete by itself. [`Ring`] decides
//! which of them are kept. When a trigger fires, [`Windows`] opens a window around it, which later
//! triggers extend. When the window has passed, the segments that overlap it are a dump, which
//! [`Manifest`] describes.
//!
//! ```
//! use std::time::Duration;
//! use trace_flight::{Budget, Cause, Ring, Segment, Timestamp, Windows};
//!
//! let at = |seconds: i64| Timestamp::from_nanos(seconds * 1_000_000_000);
//! let mut ring = Ring::new(Budget { bytes: 1 << 20, keep: Duration::from_secs(10) });
//! let mut windows = Windows::new(Duration::from_secs(5), Duration::from_secs(1));
//! ring.seal(Segment { id: 0, start: at(0), end: at(10), bytes: 1000, lost: 0 })?;
//! windows.fire(at(8), Cause::new("signal", "SIGUSR1"));
//! assert!(windows.due(at(8)).is_none());
//! let window = windows.due(at(9)).unwrap();
//! assert_eq!((window.start, window.end), (at(3), at(9)));
//! assert_eq!(ring.overlapping(&window).count(), 1);
//! # Ok::<(), trace_flight::OutOfOrder>(())
//! ```
//!
//! # Out of scope
//!
//! This crate does no I/O, reads no clock and has no format of its own: segments are files of an
//! existing format.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod machine;
mod manifest;
mod ring;
mod window;

pub use machine::{ClockCause, ClockChange, Clocks, CpuGap, Reading};
pub use manifest::{Coverage, Manifest, Source};
pub use ring::{Budget, OutOfOrder, Ring, Segment};
pub use window::{Cause, Fired, Window, Windows};

pub use trace_common::Timestamp;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
