//! Do reports and critical paths agree with what programs measure themselves?
//!
//! Go and .NET programs compute, wait and are preempted in a known way while the kernel's scheduler
//! is recorded. Their own measurements (`CLOCK_MONOTONIC`, `CLOCK_THREAD_CPUTIME_ID`,
//! `/proc/PID/task/TID/schedstat`, `cpu.stat`) are compared with the report of the correlated
//! timeline, and the critical paths of their requests with what they do.
//!
//! The ten answers: a chain of channels, a mutex between requests, a worker pool, fsync, GC assist,
//! a stop-the-world that waits for a thread without a CPU ([`go`]); a CPU quota ([`quota`]); a lock
//! convoy and starvation of the thread pool ([`dotnet`]); a pipe between a Go and a .NET process
//! ([`pipe`]).

mod clock;
mod dotnet;
mod go;
mod pipe;
mod quota;
mod recorder;
mod timeline;

use std::path::Path;
use task_support::Result;

/// Records the programs whose name contains `word` and checks the answers. `targets` has the .NET
/// runtimes.
///
/// # Errors
/// A wrong answer, or a program that fails.
pub fn check(targets: &Path, word: &str) -> Result<()> {
    let is_wanted = |name: &str| name.contains(word);
    let program = go::build()?;
    if is_wanted("go") {
        go::check(&program)?;
    }
    if is_wanted("quota") {
        quota::check(&program)?;
    }
    for runtime in dotnet::RUNTIMES {
        if is_wanted("clock") {
            clock::check(targets, runtime)?;
        }
        if is_wanted("dotnet") {
            dotnet::check(targets, runtime)?;
        }
        if is_wanted("pipe") {
            pipe::check(targets, runtime, &program)?;
        }
    }
    Ok(())
}
