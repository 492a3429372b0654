//! A timeline model of kernel, Go and .NET traces: one stream of events, the relations between its
//! layers, and answers.
//!
//! ```no_run
//! use trace_timeline::answers::Report;
//! use trace_timeline::sources::go::GoSource;
//! use trace_timeline::{Correlator, Tables};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reader = gotrace::Reader::new(std::fs::File::open("trace.out")?)?;
//! let mut tables = Tables::new();
//! let mut source = GoSource::new(Default::default());
//! let mut correlator = Correlator::new();
//! let mut report = Report::new();
//! let mut events = Vec::new();
//! while let Some(event) = reader.next_event()? {
//!     source.push(event, &mut tables, &mut events);
//!     for event in events.drain(..) {
//!         let entities = &tables.entities;
//!         correlator.push(&event, entities, &mut |derived| report.push(&derived, entities));
//!     }
//! }
//! correlator.finish(&mut |derived| report.push(&derived, &tables.entities));
//! for ((_, entry), group) in &report.groups {
//!     println!("{}: {} goroutines", tables.str(*entry), group.count);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  sources            Streams          Correlator              answers
//!  kernel ── Event ─┐
//!                   ├── Event ──────── Derived: intervals, ──── report, critical path
//!  go ────── Event ─┤  in time order   flows, pauses
//!  dotnet ── Event ─┘
//! ```
//!
//! - The model: [`Event`]s happen to entities ([`Entity`]): processes, threads, CPUs, goroutines,
//!   Ps, tasks. Events are small and do not allocate; names, stacks and entities are in
//!   [`Tables`].
//! - [`sources`] make events of decoded records: of a Go trace, of a .NET trace, of the kernel's
//!   scheduler.
//! - [`Streams`] merges sources in time order.
//! - [`Correlator`] relates goroutine ↔ P ↔ M ↔ kernel thread ↔ CPU, and .NET thread ↔ kernel thread, and derives [`Interval`]s that
//!   partition the lifetime of each goroutine, P and thread: running time of a goroutine is split
//!   into time on a CPU, time in which its thread waited for a CPU (and the thread that had it), and
//!   time in which the thread waited in the kernel. It also derives wake-ups across layers
//!   ([`ResolvedFlow`]), and the late threads of each stop-the-world ([`Pause`]).
//! - [`answers`]: a report by process, thread and goroutine; the critical path of a task, region,
//!   goroutine or thread.
//!
//! Each stage is usable without the next one. None keeps the past, except
//! [`answers::History`], which keeps a window of it.
//!
//! All times are nanoseconds on one clock, usually `CLOCK_MONOTONIC`. A source shifts its times if
//! it gets the offset of its clock.
//!
//! # Accuracy
//!
//! Intervals partition lifetimes exactly: their durations sum to the lifetime to the nanosecond.
//! Times of Go events have a resolution of 64 ns and agree with those of the kernel within about
//! 2 µs, so intervals at the edges of other layers are uncertain by as much. What is not known,
//! because it was not recorded or was lost, is [`State::Unknown`] or [`Kernel::Unknown`].
//!
//! # Features
//!
//! - `dotnet` (default): [`sources::dotnet`];
//! - `go` (default): [`sources::go`];
//! - `kernel` (default): [`sources::kernel`];
//! - `perf`: `sources::perf`, for `perf.data` files.
//!
//! # Out of scope
//!
//! This crate reads no files and draws nothing: the other crates of the workspace do.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

pub mod answers;
mod correlate;
mod entity;
mod event;
pub mod sources;
mod stream;
mod tables;
pub mod text;

pub use correlate::{
    Correlator, CorrelatorOptions, Derived, Interval, Kernel, Occupant, Pause, Requester,
    RequesterTimes, ResolvedFlow, Sampled, SampledGoroutines, Stop,
};
pub use entity::{Attribute, Entities, Entity, EntityId, EntityKind};
pub use event::{
    Context, Event, EventKind, FlowKind, InstantKind, LossKind, SampleKind, SpanKind, State,
    ThreadState, Value,
};
pub use stream::{Cause, Stream, StreamError, Streams};
pub use tables::{
    Dropped, Frame, Mapping, MappingId, SampledEvent, SampledEventId, SpanId, StackId, TableLimits,
    Tables, TextId,
};
pub use trace_common::{ClockDomain, Timestamp};

// The crates whose types are in signatures.
#[cfg(feature = "go")]
pub use gotrace;
#[cfg(feature = "dotnet")]
pub use nettrace;
#[cfg(feature = "perf")]
pub use {perf_data, perf_monitor};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
