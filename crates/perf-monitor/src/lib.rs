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
//! - [`Sampler`]: an event with its ring. It returns borrowed records, decoded ([`Record`])
//!   or not ([`RawRecord`]). [`OverwriteRing`] is a flight recorder, [`AuxArea`] the trace of a PMU.
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
//! On own threads, raw data of system calls and uprobes needs no more than their counts. Physical addresses
//! and branches of the kernel in samples are as counts with the kernel. Records of namespaces need the
//! capability at every level.
//!
//! Names and fields of tracepoints need a readable tracefs ([`Tracefs`]), which is root's by
//! default. Kprobes need `CAP_PERFMON`, uprobes `CAP_SYS_ADMIN`. The pages of rings count as locked
//! memory ([`mlock_kb`]). Errors name the remedy.
//!
//! # Kernels
//!
//! Tests run on Linux 5.10 to 7.3, x86-64 and arm64. Documentation names the release that an item
//! needs.
//!
//! # Features
//!
//! - `symbols` (default): finds functions and USDT probes of programs by name, for [`probe`].
//! - `tokio`: waits for the rings of a set in a task of tokio: `AsyncRingSet`.
//!
//! # Platforms
//!
//! Events are Linux's. Records, tracepoint formats and their errors are decoded everywhere:
//! [`RecordLayout`], [`Decoder`], [`TracepointFormat`] and [`PrintFormat`].
//!
//! # Not included
//!
//! The crate does not symbolise addresses and reads no files of recordings. It does not compile for
//! big-endian machines, whose kernels write records that it cannot decode.
#![warn(clippy::missing_errors_doc)]
#![deny(unsafe_code)]
// Input never panics: bytes are accessed with `get`. (Tests are exempt.)
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "helpers of the modules that are Linux's")
)]

#[cfg(not(target_endian = "little"))]
compile_error!("perf-monitor decodes records on little-endian machines only");

#[cfg(target_os = "linux")]
mod builder;
#[cfg(target_os = "linux")]
mod clock;
mod count;
#[cfg(target_os = "linux")]
mod counter;
#[cfg(target_os = "linux")]
mod declared;
#[cfg(target_os = "linux")]
mod diagnose;
#[cfg_attr(not(target_os = "linux"), path = "errno_none.rs")]
mod errno;
mod error;
#[cfg(target_os = "linux")]
mod event;
#[cfg(target_os = "linux")]
mod features;
mod files;
mod flags;
mod format;
mod generalized;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod monitor;
#[cfg(target_os = "linux")]
mod pmu;
mod print;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
mod realtime;
mod record;
mod refusal;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod ring_set;
#[cfg(target_os = "linux")]
mod ring_size;
#[cfg(target_os = "linux")]
mod sampler;
#[cfg(target_os = "linux")]
mod sigtrap;
#[cfg(target_os = "linux")]
mod system;
#[cfg(target_os = "linux")]
mod target;
mod tasks;
#[cfg(target_os = "linux")]
mod tracefs;

// Types of other crates in the public API.
pub use perf_sys::{
    perf_branch_entry, perf_event_attr, perf_mem_data_src, perf_ns_link_info, perf_sample_weight,
};
pub use trace_common::{ClockDomain, ReadErrorKind, Timestamp};

#[cfg(target_os = "linux")]
pub use self::{
    builder::EventBuilder,
    clock::{clock_id, event_now, now, time_namespace_offset, time_namespace_offset_of},
    counter::Counter,
    declared::FieldType,
    event::{BreakpointAccess, Event, EventUnit, WithoutKernel},
    features::KernelFeatures,
    group::Group,
    monitor::{
        DecoderError, EventId, EventMonitor, EventMonitorBuilder, EventSource, EventType, GroupId,
        MonitorCounts, MonitorSample, MonitorStats, MonitorStream, Overflow, RecordView,
        Registration, SampleView,
    },
    pmu::Pmu,
    realtime::{NiceThread, RealtimeThread, set_time_slice},
    ring::{
        AuxArea, Batch, OverwriteRing, RingBuffer, RingChunk, RingStats, Snapshot, UserCount,
        UserPage,
    },
    ring_set::{
        CpuChanges, EventCounts, RingSet, RingSetBuilder, SetChunk, SetEvent, SetRecord, SetStats,
    },
    ring_size::{MAX_DEFAULT_RING_BYTES, default_ring_pages},
    sampler::{Readiness, Sampler},
    sigtrap::{SigtrapInfo, SigtrapReceiver},
    system::{
        KernelVersion, is_initial_user_namespace, is_privileged, max_sample_rate, max_stack,
        mlock_kb, online_cpus, paranoid_level,
    },
    target::Target,
    tasks::cgroup_dirs,
    tracefs::Tracefs,
};
pub use count::{Count, GroupCounts, ReadValues, Scaled};
pub use errno::Errno;
pub use error::{DecodeError, DecodeErrorKind, Error, Result};
pub use flags::{BranchFlags, ReadFormat, SampleFlags};
pub use format::{ArrayValue, FieldFormat, FieldKind, FieldValue, TracepointFormat};
pub use generalized::{Cache, CacheOp, CacheResult, Hardware, Software, generalized_name};
pub use print::{Names, PrintFormat};
pub use record::{
    Aux, BpfEvent, BranchStack, Callchain, CallchainContext, CallchainDeferred, Cgroup, Comm,
    CpuMode, Decoder, FileId, Frame, Ksymbol, Loss, Mmap, Namespaces, ProcessEvent, RawRecord,
    Read, Record, RecordLayout, Registers, Sample, SampleId, StackUser, Switch, SwitchPeer,
    TextPoke, ThreadId, Throttle, U64Slice,
};
pub use refusal::{Field, OpenErrorReason};
#[cfg(all(target_os = "linux", feature = "tokio"))]
pub use ring_set::AsyncRingSet;
pub use tasks::{Container, ContainerKind, ProcessInfo, Task, Tasks, processes, threads};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
