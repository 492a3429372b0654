//! Steal time: that of the CPUs in which the hypervisor executed something else.
//!
//! A thread then has its CPU as the records of switches show, while the kernel leaves that time out
//! of the CPU time that it counts (with `CONFIG_PARAVIRT_TIME_ACCOUNTING`).

use std::fs;
use task_support::Result;

/// Nanoseconds of a unit of `/proc/stat`.
const TICK: i64 = 10_000_000;

/// Counts from when it is made.
pub(super) struct Steal(i64);

impl Steal {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(ticks()?))
    }

    /// The most that it can be, summed over CPUs, in nanoseconds.
    pub(super) fn most(&self) -> Result<i64> {
        Ok(most((ticks()? - self.0) * TICK))
    }
}

/// The most that it can be, where this was counted: the count is rounded. Nothing, if nothing was.
pub(super) const fn most(counted: i64) -> i64 {
    if counted == 0 { 0 } else { counted + TICK }
}

/// Source: `proc_stat(5)`, the eighth number of the first line.
fn ticks() -> Result<i64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let steal = stat.lines().next().and_then(|line| line.split_ascii_whitespace().nth(8));
    Ok(steal.ok_or("no steal time in /proc/stat")?.parse()?)
}
