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
//!
//! The commands `record`, `report` and `explain` give the same numbers ([`command`]). The report has the
//! reasons, durations and ends of waits, and who preempted a thread, as a program measures them ([`waits`]).

mod busy;
mod clock;
mod command;
mod dotnet;
mod go;
mod pipe;
mod quota;
mod recorder;
mod steal;
mod timeline;
mod waits;

pub use quota::Cgroup;

use std::path::Path;
use task_support::remark::{self, Kind};
use task_support::{Result, run};

/// Records the programs whose name contains `word` and checks the answers. `targets` has the .NET
/// runtimes.
///
/// # Errors
/// A wrong answer, or a program that fails.
pub fn check(targets: &Path, word: &str) -> Result<()> {
    let is_wanted = |name: &str| name.contains(word);
    let program = go::build()?;
    let triscope = is_wanted("report").then(run::triscope).transpose()?;
    if is_wanted("go") {
        repeated("go", || go::check(&program))?;
    }
    if let Some(triscope) = &triscope {
        repeated("report", || command::check_go(triscope, &program))?;
        repeated("report", || waits::check(triscope, &program))?;
    }
    if is_wanted("quota") {
        repeated("quota", || quota::check(&program))?;
    }
    for runtime in dotnet::RUNTIMES {
        if is_wanted("clock") {
            repeated("clock", || clock::check(targets, runtime))?;
        }
        if is_wanted("dotnet") {
            repeated("dotnet", || dotnet::check(targets, runtime))?;
        }
        if let Some(triscope) = &triscope {
            repeated("report", || command::check_gc(triscope, targets, runtime))?;
            repeated("report", || command::check_preempted(triscope, targets, runtime))?;
            repeated("report", || waits::check_dotnet(triscope, targets, runtime))?;
        }
        if is_wanted("pipe") {
            repeated("pipe", || pipe::check(targets, runtime, &program))?;
        }
    }
    Ok(())
}

/// Records a program, and once more if its answers do not agree with it.
///
/// Other programs of a busy machine disturb some recordings: they are the ones that the kernel runs, and it
/// can lose records, or leave switches out of them. A wrong answer is wrong in both recordings.
fn repeated(name: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    check().or_else(|error| {
        remark::add(Kind::Unsteady, &format_args!("{name}, the first of two recordings: {error}"));
        check()
    })
}
