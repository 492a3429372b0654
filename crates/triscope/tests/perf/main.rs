//! `triscope perf` and `triscope record` as processes, on the kernel that runs.
//!
//! What needs no privilege runs anywhere, as the user `nobody` where the tests are root's. What
//! needs root says so where it is not; `cargo xtask test-kernel` runs everything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

mod list;
mod probe;
mod record;
mod recording;
mod signals;
mod stat;
mod support;
mod trace;

/// Not a test: what the tests record, told by `PERF_TEST_CHILD`.
#[test]
fn child() {
    if let Ok(role) = std::env::var("PERF_TEST_CHILD") {
        support::child_main(&role);
    }
}
