//! What the tests of several crates share. Not published.
//!
//! - [`dotnet`]: real .NET processes with a known workload
//! - [`perfetto`]: reads a Perfetto trace back as text
//! - [`golden`]: expected texts in files, and the one command that regenerates them
//! - [`digest`]: FNV-1a, for expectations that are too large to commit
//!
//! Only `tests/` directories use it. They are in no package, so that a packaged crate builds and
//! tests itself without this one.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test helper fails by panicking"
)]

pub mod digest;
pub mod dotnet;
pub mod golden;
pub mod perfetto;
