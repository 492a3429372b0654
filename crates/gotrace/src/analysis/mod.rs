//! Analyses of an event stream: the numbers of `go tool trace`, in one pass.
//!
//! An analysis is fed with every event of a [`Reader`](crate::Reader) in order. Its memory depends
//! on the goroutines that are alive and on distinct names and stacks, not on the length of the
//! trace. Several analyses can share one pass.
//!
//! | analysis | result | counterpart in Go |
//! | --- | --- | --- |
//! | [`Summarizer`] | times of goroutines and regions, tasks | `/goroutines`, `/userregions`, `/usertasks` |
//! | [`Profile`] | delays and CPU samples by stack | `-pprof=net`, `sync`, `syscall`, `sched` |
//! | [`Utilization`] | mutator utilization and its minimum by window | `/mmu` |
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
//!     if let Some(Finished::Goroutine(goroutine)) = summarizer.event(event) {
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

mod name;
mod profile;
mod stacks;
mod summary;
mod times;
mod utilization;

pub use name::Name;
pub use profile::{Delay, Frame, Profile, ProfileKind, ProfileScope};
pub use summary::{Finished, Function, Goroutine, Region, Summarizer, Summary, Task};
pub use times::{RangeKind, Times};
pub use utilization::{MinimumUtilization, Utilization, UtilizationOptions, Window};
