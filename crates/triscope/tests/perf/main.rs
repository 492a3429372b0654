//! `triscope perf` and `triscope record` as processes, on the running kernel.
//!
//! What needs no privilege runs anywhere, as another user where the tests are root's. What
//! needs root says so where it is not; `cargo xtask test-kernel` runs everything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

mod conversions;
mod flight;
mod flight_budgets;
mod flight_faults;
mod flight_runtimes;
mod list;
mod options;
mod probe;
mod profile;
mod record;
mod record_layers;
mod record_stacks;
mod recording;
mod sampling;
mod signals;
mod stat;
mod support;
mod symbols;
mod top;
mod trace;

/// Not a test: the program that the tests record. `PERF_TEST_CHILD` selects what it does.
#[test]
fn child() {
    if let Ok(role) = std::env::var("PERF_TEST_CHILD") {
        support::child_main(&role);
    }
}
