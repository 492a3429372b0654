//! Shared helpers of the tests of several crates. Not published.
//!
//! - [`dotnet`]: real .NET processes with a known workload
//! - [`nettrace`]: .NET traces by hand
//! - [`page`]: reads a page of a timeline back
//! - [`perfetto`]: reads a Perfetto trace back as text
//! - [`directory`]: directories that do not survive the test
//! - [`golden`]: expected texts in files, and the one command that regenerates them
//! - [`perf`]: Linux's own `perf`, run again if it crashes; programs that may not open events
//! - [`process`]: children that do not survive the test
//! - [`program`]: programs that a test writes and executes
//! - [`random`]: numbers that are the same in every run
//! - [`sampling`]: rates of samples that the kernel accepts
//! - [`skip`]: tests that cannot run here, and say so
//! - [`digest`]: FNV-1a, for expectations that are too large to commit
//! - [`wait`]: waits for a condition, not for a time
//!
//! Only `tests/` directories, benchmarks and fuzz targets use it. Packages do not contain them, so that a packaged crate can be
//! built and tested without this one.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test helper fails by panicking"
)]

pub mod digest;
pub mod directory;
#[cfg(unix)]
pub mod dotnet;
pub mod go;
pub mod golden;
pub mod nettrace;
pub mod page;
#[cfg(unix)]
pub mod perf;
pub mod perfetto;
#[cfg(unix)]
pub mod process;
#[cfg(unix)]
pub mod program;
pub mod random;
pub mod sampling;
pub mod skip;
pub mod wait;
