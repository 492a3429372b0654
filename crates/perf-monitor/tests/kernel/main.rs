//! What the running kernel must be able to do, tried on it.
//!
//! The same tests run on the host (`cargo test`, `cargo xtask test-kernel --host`) and as the only
//! program in virtual machines with other kernels (`cargo xtask test-kernel`). Most need root, many
//! a mounted tracefs; a test that cannot run says so. Where a kernel refuses a capability that it
//! is too old for, the test reports that, with the errno; a reason by a kernel that should have it
//! is a failure.
//!
//! `PERF_TEST_REPORT` names a file that gets a line for each reason and note; `PERF_TEST_GUEST`
//! says that the machine is ours alone (CPUs may go offline, sysctls may change), and
//! `PERF_TEST_HARDWARE` says that there is a hardware PMU, `PERF_TEST_ICOUNT` that it counts
//! instructions exactly; `PERF_TEST_OWN_MOUNTS` that its mounts
//! are, `PERF_TEST_MODULE` that a kernel module of ours was built for it; `PERF_TEST_STRICT` turns tests that cannot run into failures.

#![cfg(feature = "symbols")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

mod bpf;
mod cgroups;
mod counters;
mod errors;
mod fixtures;
mod hardware;
mod monitor;
mod probes;
mod records;
mod rings;
mod sets;
mod sigtrap;
mod support;
mod tasks;
mod tracepoints;

/// Not a test: the child process of the tests. `PERF_TEST_CHILD` selects what it does.
#[test]
fn child() {
    if let Ok(role) = std::env::var("PERF_TEST_CHILD") {
        support::child_main(&role);
    }
}
