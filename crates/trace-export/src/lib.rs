//! Timeline model and output formats.
//!
//! ```
//! use trace_export::{ClockDomain, TrackEvent, PerfettoSink, Sink, Timestamp, Track};
//!
//! let ms = |n: i64| Timestamp::from_nanos(n * 1_000_000);
//! let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
//! let process = sink.track(&Track::process(42, b"server"))?;
//! let requests = sink.track(&Track::custom(b"requests").child_of(process))?;
//!
//! let get = sink.text(b"GET /");
//! sink.begin(ms(1), requests, &TrackEvent::new(get))?;
//! sink.end(ms(3), requests, &[])?;
//! sink.finish()?;
//! assert!(!sink.into_inner().is_empty());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! - [`Sink`] is the interface that tracers write to: clocks, tracks, states, slices, instants,
//!   counters, flows, samples with stacks, switches of the kernel's scheduler, losses. Everything
//!   streams: a sink holds tables of names, never the timeline.
//! - [`PerfettoSink`] writes the binary format of <https://ui.perfetto.dev>.
//! - [`ChromeSink`] writes the JSON format of `chrome://tracing`.
//! - `Compressor` (feature `compress`) makes its files four to eight times smaller.
//! - `html::HtmlTimeline` (feature `html`) writes a self-contained page of the model of
//!   `trace-timeline`: the timeline, critical paths, flame graphs, tables.
//! - [`Interner`] is the table of names and stacks that sinks use.
//! - `profile::Profile` (feature `profile`) writes samples and stacks of the model of `trace-timeline`
//!   for pprof, speedscope, OTLP and flame graphs.
//! - `timeline::TimelineSource` (feature `timeline`, on by default) writes the model of
//!   `trace-timeline` to a sink: kernel, Go and .NET traces, one or several in one stream, with the
//!   relations between them.
//!
//! This crate does not read traces; the other crates of the workspace do.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

mod chrome;
mod cpu;
mod cut;
#[cfg(any(feature = "html", feature = "profile", feature = "timeline"))]
mod frame;
#[cfg(feature = "html")]
pub mod html;
mod intern;
#[cfg_attr(not(feature = "html"), allow(dead_code, reason = "the page has lists"))]
mod json;
#[cfg(feature = "timeline")]
mod lanes;
mod model;
mod perfetto;
#[cfg(any(feature = "html", feature = "profile", feature = "timeline"))]
#[cfg_attr(
    not(any(feature = "profile", feature = "timeline")),
    allow(dead_code, reason = "a page has no process ids of its own")
)]
mod pids;
mod process;
#[cfg(feature = "profile")]
pub mod profile;
mod proto;
#[cfg(any(feature = "html", feature = "profile"))]
mod sampled;
#[cfg(feature = "timeline")]
pub mod timeline;

pub use chrome::{ChromeSink, ChromeStats};
pub use cpu::{CpuIntervals, CpuState};
pub use intern::{Frame, Interner, StackId, TextId};
pub use model::{
    Category, CounterValue, CpuMode, DebugAnnotation, Flow, Interrupt, Loss, Name, Sample,
    SchedSwitch, SchedWaking, Sink, Task, Track, TrackEvent, TrackId, TrackKind, Unit, Value,
};
#[cfg(feature = "compress")]
pub use perfetto::Compressor;
pub use perfetto::{PerfettoSink, PerfettoStats};
pub use process::Process;
pub use trace_common::{ClockDomain, Timestamp};

// The crates whose types are in signatures.
pub use trace_common;
#[cfg(any(feature = "html", feature = "profile", feature = "timeline"))]
pub use trace_timeline;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
