//! A parser for .NET EventPipe streams: every NetTrace version, typed events, managed stacks.
//!
//! ```no_run
//! use nettrace::{Profile, Reader};
//! use std::fs::File;
//!
//! let mut reader = Reader::new(File::open("app.nettrace")?);
//! let mut profile = Profile::new();
//! reader.for_each(|event| {
//!     profile.push(&event);
//!     println!("{} {}/{} {:?}", event.time(), event.provider(), event.name(), event.fields());
//! })?;
//! for sample in profile.samples() {
//!     println!("thread {}: {:?}", sample.tid, sample.kind);
//!     for frame in profile.frames(&sample) {
//!         println!("    {frame}"); // module!Namespace.Type.Method(arguments)
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Reader`] reads from a file, a slice, or the socket of a session. It is built on [`Parser`],
//!   which does no I/O: push bytes, pull [`Item`]s.
//! - [`Event`] borrows from the parser's buffer. Its [fields](Event::fields) are decoded on
//!   demand, with the stream's metadata or, for the runtime's events, which have none, with the
//!   built-in [`manifest`]. A payload that does not match is a [`PayloadError`].
//! - [`Order::Time`], the default, merges the events of all threads. [`Order::Stream`] keeps the
//!   order of the stream. [`Stats`] and [`Item::Loss`] report the exact number of lost events.
//! - [`Profile`], [`ProfileSums`] and [`MethodMap`] resolve stacks. [`analysis`] has GCs and pauses, JIT
//!   compilations, exceptions, lock waits, allocations, counters, activities, heap snapshots.
//! - Times are [`Timestamp`]s of the event clock, in nanoseconds whatever its frequency. Only [`EventHeader::ticks`] and
//!   two fields of [`Trace`] are as in the stream.
//! - Process ids (`pid`) and thread ids (`tid`) are those of the operating system, in 64 bits: version 6 writes
//!   them in that size, and thread ids of macOS need it.
//! - [`Trace`] relates the event clock to UTC. On Linux it is CLOCK_MONOTONIC, so events line up
//!   with kernel recordings and Go traces of the same machine.
//!
//! Supported are versions 3 (NetPerf), 4, 5 and 6, of 32-bit and 64-bit processes. Input is not
//! trusted: errors carry the byte offset, memory is bounded by [`Limits`], and a damaged block
//! does not end the stream.
//!
//! The crate does not connect to processes (`diag-ipc` does), resolve native code, or read PDB files:
//! it has the IL offset of an address ([`Method::il_offset`]), whose line `trace-symbols` finds.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, reason = "input is not trusted: no index may panic")]

mod activity_path;
pub mod analysis;
mod error;
mod event;
mod event_header;
mod filetime;
mod framing;
pub mod gcdump;
mod il_join;
mod il_map;
mod input;
mod losses;
pub mod manifest;
mod metadata;
mod method_map;
mod order;
mod parser;
mod payload;
mod profile;
mod profile_sums;
mod reader;
mod stack_table;
mod state;
mod strings;
mod summary;
mod table_space;
mod tables;
mod trace;
mod types;
mod value;
mod weight;

pub use activity_path::activity_path;
pub use error::{Error, ErrorKind, Result};
pub use event::Event;
pub use event_header::EventHeader;
pub use filetime::FileTime;
pub use il_map::{IlMap, IlOffset};
pub use losses::Loss;
pub use metadata::{FieldSource, Metadata};
pub use method_map::{Frame, Method, MethodMap, Module, OptimizationTier};
pub use parser::{Item, Options, Order, Parser};
pub use payload::{Array, Fields, Object, PayloadError, PayloadErrorKind};
pub use profile::{Profile, Sample, SampleKind};
pub use profile_sums::{ProfileSums, SampleTotal};
pub use reader::Reader;
pub use state::{SequencePoint, Stats};
pub use summary::Summary;
pub use tables::{Label, Labels, Stack, Thread};
pub use trace::Trace;
pub use trace_common::{ClockDomain, Guid, Limits, ReadError, ReadErrorKind, Timestamp};
pub use types::{Field, FieldType};
pub use value::{Text, Value};

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
