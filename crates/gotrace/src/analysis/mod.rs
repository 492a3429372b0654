//! Analyses of an event stream: the numbers of `go tool trace`, in one pass.
//!
//! An analysis is fed with every event of a [`Reader`](crate::Reader) in order. Its memory depends
//! on the goroutines that are alive and on distinct names and stacks, not on the length of the
//! trace. Several analyses can share one pass. [`Profile`], [`Scheduling`], [`GcCycles`] and
//! [`Utilization`] can be divided among threads: see [`parallel`](crate::parallel).
//!
//! | analysis | result | counterpart in Go |
//! | --- | --- | --- |
//! | [`Summarizer`] | times of goroutines and regions, tasks | `/goroutines`, `/userregions`, `/usertasks` |
//! | [`Profile`] | delays and CPU samples by stack | `-pprof=net`, `sync`, `syscall`, `sched` |
//! | [`Scheduling`] | scheduling latency, the longest stalls, use of the processors over time | |
//! | [`GcCycles`] | cycles of the GC with their causes, stops of the world | |
//! | [`Utilization`] | mutator utilization and its minimum by window | `/mmu` |
//! | [`Requests`], [`CriticalPaths`] | why a task, region or goroutine took as long as it did | |
//! | [`Clip`] | any of them, of a range of time | |
//! | [`Allocations`] | heap objects by type (`GODEBUG=traceallocfree=1`) | |
//!
//! A [`Reader`](crate::Reader) that [recovers](crate::Reader::recover) from damage continues after
//! a loss. An analysis with a method `loss` has to know where: what it knows of goroutines, Ps and the
//! GC ends there, and it learns their states again from the events that follow. Time that is lost is
//! of no state.
//!
//! ```
//! use gotrace::Reader;
//! use gotrace::analysis::{Finished, Summarizer};
//!
//! # fn main() -> Result<(), gotrace::Error> {
//! # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
//! let mut reader = Reader::new(file)?;
//! let mut summarizer = Summarizer::new();
//! let mut waited = std::time::Duration::ZERO;
//! while let Some(event) = reader.next_event()? {
//!     if let Some(Finished::Goroutine(goroutine)) = summarizer.push(event) {
//!         waited += goroutine.times.runnable;
//!     }
//! }
//! for goroutine in summarizer.finish().goroutines {
//!     waited += goroutine.times.runnable;
//! }
//! println!("goroutines waited {waited:?} for a P");
//! # assert!(!waited.is_zero());
//! # Ok(())
//! # }
//! ```

mod allocations;
mod clip;
mod critical_path;
mod gc_cycles;
mod generation;
mod heads;
mod intervals;
mod kept;
mod log;
mod name;
mod numbers;
mod profile;
mod scheduling;
mod series;
mod stacks;
mod step;
mod summary;
mod syscalls;
mod times;
mod utilization;
mod worst;

pub use allocations::{Allocations, AllocationsReport, HeapObjects, HeapSnapshot, TypeAllocations};
pub use clip::{Clip, Clipped};
pub use critical_path::{
    CriticalPath, CriticalPaths, Occupant, PathGoroutine, PathPiece, PathState, Request,
    RequestFilter, RequestKind, Requests,
};
pub use gc_cycles::{GcCycle, GcCycles, GcReport, GcTrigger, Pause};
pub use name::Name;
pub use profile::{Delay, Frame, Profile, ProfileKind, ProfileScope};
pub use scheduling::{
    ProcessorUse, RunnableCause, Scheduling, SchedulingOptions, SchedulingReport, Stall, Unblocker,
};
pub use summary::{Finished, Function, Goroutine, Region, Summarizer, Summary, Task};
pub use times::{RangeKind, Times};
pub use trace_common::Histogram;
pub use utilization::{MinimumUtilization, Utilization, UtilizationOptions, Window};
