//! A reader of Go execution traces of every version, with the same results as Go's own reader.
//!
//! ```
//! use gotrace::{GoState, Reader};
//!
//! # fn main() -> Result<(), gotrace::Error> {
//! # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
//! let mut reader = Reader::new(file)?; // any `Read`: a file, a pipe, a socket
//! let mut created = 0;
//! while let Some(event) = reader.next_event()? {
//!     if let Some((GoState::NotExist, _)) = event.state_transition().and_then(|t| t.goroutine()) {
//!         created += 1;
//!     }
//! }
//! println!("{} created {created} goroutines", reader.version());
//! # assert!(created > 10);
//! # Ok(())
//! # }
//! ```
//!
//! Traces come from `runtime/trace`, `go test -trace`, the flight recorder, or
//! `/debug/pprof/trace` of `net/http/pprof`. This crate reads those of Go 1.11 to 1.27: format v2
//! of Go ≥ 1.22, and format v1 as Go's reader converts it.
//!
//! # Contents
//!
//! - [`Reader`] returns the events of a trace in order: [`Reader::next_event`] returns borrowed
//!   events without an allocation per event, and the [`Iterator`] returns [`OwnedEvent`]s, which
//!   can be sent to other threads. It streams, with one generation (about a second) of the trace in
//!   memory at a time.
//! - [`Parser`] does the same without I/O: push bytes in chunks of any size, and pull events.
//! - [`Event`] has the accessors of `golang.org/x/exp/trace`, each an [`Option`] where Go panics if
//!   the kind of the event does not match: state transitions of goroutines and procs, ranges,
//!   tasks, regions, logs, metrics, labels, CPU samples, clock snapshots, experiments, and stacks
//!   with frames. Its `Display` is Go's text; [`TextFormatter`] writes that text faster and byte
//!   for byte.
//! - [`Reader::recover`] resumes after damaged data and reports what was lost.
//! - [`synthetic`] builds events for tests of programs that process events, and [`validate`] checks
//!   the events of programs that make them.
//! - [`analysis`] computes the numbers of `go tool trace` and more, in one pass.
//! - [`parallel`] runs an analysis on several threads, generation by generation.
//! - [`Generations`] and [`Index`] split a trace into its generations without decoding the events:
//!   to read a range of time, or to cut it out as a trace of its own.
//! - [`raw`] is the wire level: encoded events, in binary and as text.
//!
//! # Out of scope
//!
//! The crate draws nothing and symbolizes nothing (Go traces contain their symbols). The crate
//! `trace-export` and the program `triscope` convert traces to Perfetto timelines.
//!
//! # Correctness
//!
//! The reference is Go's own reader. Traces of seven Go versions, the test corpus of the Go
//! distribution and about 15 000 damaged traces give the same verdict and the same text, byte
//! for byte, except for the faults of the reference that `docs/formats/go-trace.md` lists. No input
//! makes this crate panic or allocate beyond [`Limits`].
//!
//! # Features
//!
//! None: the crate needs `std` and three small dependencies.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

pub mod analysis;
mod batch;
mod clock;
mod error;
mod event;
mod frontier;
mod generation;
mod generations;
mod gosort;
mod header;
mod id;
mod id_set;
mod order;
pub mod parallel;
mod parser;
mod printable;
mod quote;
pub mod raw;
mod reader;
mod recovery;
mod resync;
mod source;
mod spec;
pub mod synthetic;
mod table;
mod text;
mod v1;
pub mod validate;
mod version;

pub use bstr;
pub use error::{Error, ErrorKind, Inconsistency, Position, Result};
pub use event::{
    Event, EventKind, ExperimentalBatch, ExperimentalEvent, Label, Log, Metric, OwnedEvent, Range,
    RangeAttribute, RangeName, Region, Stack, StackFrame, StateTransition, SyncPoint, Task, Value,
};
pub use generations::{GenerationSpan, Generations, Index};
pub use id::{GoId, GoState, ProcId, ProcState, ResourceId, ResourceKind, TaskId, ThreadId};
pub use parser::Parser;
pub use reader::{Loss, Reader};
pub use spec::{EventSpec, EventType, Experiment};
pub use table::ClockSnapshot;
pub use text::TextFormatter;
pub use trace_common::{ClockDomain, Limits, ReadErrorKind, Timestamp};
pub use version::Version;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
