//! Linux perf events: counters, groups, ring buffers, records, tracepoints and probes.
//!
//! Count page faults around a piece of code:
//!
//! ```
//! use perf_monitor::{Event, Software, Target};
//!
//! let faults = Event::software(Software::PageFaults)
//!     .builder()
//!     .exclude_kernel(true) // allowed without privileges
//!     .exclude_hv(true)
//!     .open(Target::ThisThread)?;
//! faults.enable()?;
//! let touched = vec![1u8; 1 << 20];
//! faults.disable()?;
//! let count = faults.read()?;
//! assert!(count.value > 0, "touched {} bytes", touched.len());
//! # Ok::<(), perf_monitor::Error>(())
//! ```
//!
//! - [`Event`]: an event to count or sample, by type or in the syntax of `perf`
//!   ([`Event::parse`]). [`EventBuilder`] sets its options and opens it.
//! - [`Counter`] and [`Group`]: counts, with their times. [`Count::scaled`] extrapolates a
//!   multiplexed count and marks it as an estimate. [`UserPage`] reads without a system call.
//! - [`Sampler`]: an event with its ring. It lends records, decoded ([`Record`]) or not
//!   ([`RawRecord`]). [`OverwriteRing`] is a flight recorder, [`AuxArea`] the trace of a PMU.
//! - [`RingSet`]: events on many CPUs, threads and cgroups, read in time order.
//! - [`EventMonitor`]: tracepoints, probes, counters and external events in one stream, in time
//!   order, each with its decoder. Events are registered at any time.
//! - [`SigtrapReceiver`]: the `SIGTRAP` signals of events.
//! - [`RecordLayout`] and [`Decoder`]: decode records of any origin, such as a `perf.data` file.
//! - [`Tracefs`], [`TracepointFormat`] and [`PrintFormat`]: tracepoints, the typed fields of their
//!   data, and their text.
//! - [`probe`]: kprobes, uprobes and USDT probes with typed arguments.
//! - [`Tasks`]: names, executables, cgroups and containers of tasks at the time of an event.
//! - [`ProcessInfo`]: parent, arguments, executable and cgroup of a running process.
//! - [`KernelFeatures`]: the features of the running kernel for this user, found by trying them.
//!   One binary runs on every kernel. [`Error::Open`] names the field that was refused and a
//!   remedy.
//!
//! # Privileges
//!
//! Without `CAP_PERFMON` (Linux 5.8; `CAP_SYS_ADMIN` before), `kernel.perf_event_paranoid` decides
//! ([`paranoid_level`]):
//!
//! | level | own threads, user space | with the kernel | whole CPUs, cgroups | raw data of tracepoints |
//! | ---: | :-: | :-: | :-: | :-: |
//! | -1 | ✓ | ✓ | ✓ | ✓ |
//! | 0 | ✓ | ✓ | ✓ | |
//! | 1 | ✓ | ✓ | | |
//! | 2 (the kernel's default) | ✓ | | | |
//! | 3, 4 (Debian, Ubuntu) | | | | |
//!
//! Names and fields of tracepoints need a readable tracefs ([`Tracefs`]), which is root's by
//! default. Kprobes and uprobes need `CAP_SYS_ADMIN`. The pages of rings count as locked memory
//! ([`mlock_kb`]). Errors name the remedy.
//!
//! # Kernels
//!
//! Tests run on Linux 5.10 to 7.2, x86-64 and arm64. Documentation names the release that an item
//! needs.
//!
//! # Features
//!
//! - `symbols` (default): finds functions and USDT probes of programs by name, for [`probe`].
//! - `tokio`: waits for the rings of a set in a task of tokio: `AsyncRingSet`.
//!
//! # Not included
//!
//! The crate does not symbolise addresses and reads no files of recordings. It does not compile for
//! big-endian machines, whose kernels write records that it cannot decode.
#![warn(clippy::missing_errors_doc)]
#![deny(unsafe_code)]
// Input never panics: bytes are accessed with `get`. (Tests are exempt.)
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

#[cfg(not(target_endian = "little"))]
compile_error!("perf-monitor decodes records on little-endian machines only");

mod builder;
mod clock;
mod count;
mod counter;
mod declared;
mod diagnose;
mod error;
mod event;
mod features;
mod flags;
mod format;
mod group;
mod monitor;
mod pmu;
mod print;
pub mod probe;
mod realtime;
mod record;
mod ring;
mod ring_set;
mod sampler;
mod sigtrap;
mod system;
mod target;
mod tasks;
mod tracefs;

// Types of other crates in the public API.
pub use perf_sys::{
    perf_branch_entry, perf_event_attr, perf_mem_data_src, perf_ns_link_info, perf_sample_weight,
};
pub use rustix::io::Errno;
pub use trace_common::{ClockDomain, ReadErrorKind, Timestamp};

pub use builder::EventBuilder;
pub use clock::{clock_id, now};
pub use count::{Count, GroupCounts, ReadValues, Scaled};
pub use counter::Counter;
pub use declared::FieldType;
pub use error::{DecodeError, DecodeErrorKind, Error, Field, OpenErrorReason, Result};
pub use event::{
    BreakpointAccess, Cache, CacheOp, CacheResult, Event, EventUnit, Hardware, Software,
    WithoutKernel,
};
pub use features::KernelFeatures;
pub use flags::{BranchFlags, ReadFormat, SampleFlags};
pub use format::{ArrayValue, FieldFormat, FieldKind, FieldValue, TracepointFormat};
pub use group::Group;
pub use monitor::{
    DecoderError, EventId, EventMonitor, EventMonitorBuilder, EventSource, EventType, GroupId,
    MonitorCounts, MonitorSample, MonitorStats, MonitorStream, Overflow, RecordView, Registration,
    SampleView,
};
pub use pmu::Pmu;
pub use print::{Names, PrintFormat};
pub use realtime::{NiceThread, RealtimeThread, set_time_slice};
pub use record::{
    Aux, BpfEvent, BranchStack, Callchain, CallchainContext, CallchainDeferred, Cgroup, Comm,
    CpuMode, Decoder, FileId, Frame, Ksymbol, Loss, Mmap, Namespaces, ProcessEvent, RawRecord,
    Read, Record, RecordLayout, Registers, Sample, SampleId, StackUser, Switch, SwitchPeer,
    TextPoke, ThreadId, Throttle, U64Slice,
};
pub use ring::{
    AuxArea, Batch, OverwriteRing, RingBuffer, RingChunk, RingStats, Snapshot, UserCount, UserPage,
};
#[cfg(feature = "tokio")]
pub use ring_set::AsyncRingSet;
pub use ring_set::{
    CpuChanges, EventCounts, RingSet, RingSetBuilder, SetChunk, SetEvent, SetRecord, SetStats,
};
pub use sampler::{Readiness, Sampler};
pub use sigtrap::{SigtrapInfo, SigtrapReceiver};
pub use system::{
    KernelVersion, default_ring_pages, is_privileged, max_sample_rate, max_stack, mlock_kb,
    online_cpus, paranoid_level,
};
pub use target::Target;
pub use tasks::{
    Container, ContainerKind, ProcessInfo, Task, Tasks, cgroup_dirs, processes, threads,
};
pub use tracefs::Tracefs;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
