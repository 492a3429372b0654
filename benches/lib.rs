//! Benchmarks of the triscope crates: `cargo bench --package triscope-benches`.
//!
//! The side-by-side runs against peers are tasks of xtask: see `docs/benchmarks.md`.
#![forbid(unsafe_code)]
