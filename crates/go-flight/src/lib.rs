//! Reads the flight recorder and the goroutines of a running Go program from its memory.
//!
//! `runtime/trace.FlightRecorder` (Go 1.25) keeps the last seconds of the execution trace in memory.
//! Normally the program has to write them itself (`WriteTo`). This crate reads them from outside: the
//! program needs no handler and no signal, and is neither stopped nor changed. It can hang, or be
//! stopped by a debugger.
//!
//! ```no_run
//! use go_flight::{Limits, Process};
//! use std::fs::File;
//!
//! let mut process = Process::open(1234)?;
//! let snapshot = process.snapshot(Limits::default())?;
//! snapshot.write_to(File::create("flight.trace")?)?;
//! println!("{} generations", snapshot.generations.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contents
//!
//! - [`Process`] opens a process of this machine (Linux) and reads its flight recorder.
//! - [`Goroutines`] finds the goroutines that threads execute at samples of a profiler (Go 1.21 to
//!   1.27).
//! - [`CoreFile`] reads that of a program that crashed.
//! - [`Program`] parses an executable file, and reads the flight recorder from any [`Memory`].
//! - [`Snapshot`] has the generations and writes them as a trace, which the crate `gotrace`,
//!   `go tool trace` and `triscope` read.
//!
//! # Result
//!
//! The bytes of each generation are those that `WriteTo` writes. `WriteTo` ends the current generation
//! first, and then writes it too. This crate cannot: the last second or so, which is not finished, is
//! missing.
//!
//! # Requirements
//!
//! - Linux on amd64 or arm64. The program was built by Go 1.25, 1.26 or 1.27: the layouts of the
//!   types of `runtime/trace` are generated from the debug information of each release. Other versions
//!   are refused. Debug information and symbols of the program are not needed.
//! - A flight recorder that the program has started.
//! - The permission to trace the process (`ptrace(2)`): the same user, where the Yama module permits
//!   it, or `CAP_SYS_PTRACE`. [`Error::AccessDenied`] has the remedy.
//!
//! # Correctness
//!
//! The program runs on while its memory is read. A snapshot is returned only if all of its generations
//! were in the recorder's ring before and after they were read, so that their memory cannot have been
//! reused; otherwise the changed part is read again. Every batch must have the header of its
//! generation, and every generation the size that the recorder counted. The memory is untrusted: no
//! content makes this crate panic, loop, or allocate beyond [`Limits`].
//!
//! # Features
//!
//! None.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod auxv;
mod batch;
mod core_file;
mod error;
#[cfg(test)]
mod fake;
#[cfg(unix)]
mod goroutines;
mod layout;
mod layouts;
mod memory;
#[cfg(unix)]
mod process;
mod program;
mod recorder;
mod search;
mod snapshot;

pub use core_file::CoreFile;
pub use error::{AccessDenied, Error, Result};
#[cfg(unix)]
pub use goroutines::{Function, Goroutine, Goroutines, ThreadSample, Unattributed};
pub use memory::Memory;
#[cfg(unix)]
pub use process::Process;
pub use program::Program;
pub use snapshot::{Generation, Snapshot, Unfinished};
pub use trace_common::{Limits, Timestamp};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
