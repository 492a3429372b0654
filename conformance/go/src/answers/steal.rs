//! The time in which a hypervisor had the CPUs.
//!
//! A thread then has its CPU as the records of switches show, while the kernel leaves that time out
//! of the CPU time that it counts (with `CONFIG_PARAVIRT_TIME_ACCOUNTING`).

use std::fs;
use task_support::Result;

/// A unit of `/proc/stat`.
const TICK: i64 = 10_000_000;

/// Counts from when it is made.
pub(super) struct Stolen(i64);

impl Stolen {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(ticks()?))
    }

    /// The most that was stolen from all CPUs, in nanoseconds; 0 if no unit was counted.
    pub(super) fn nanos(&self) -> Result<i64> {
        Ok(match ticks()? - self.0 {
            0 => 0,
            // Each reading is rounded.
            ticks => (ticks + 1) * TICK,
        })
    }
}

/// Source: `proc_stat(5)`, the eighth number of the first line.
fn ticks() -> Result<i64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let steal = stat.lines().next().and_then(|line| line.split_ascii_whitespace().nth(8));
    Ok(steal.ok_or("no steal time in /proc/stat")?.parse()?)
}
