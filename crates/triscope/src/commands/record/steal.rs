//! Steal time: that of the CPUs in which the hypervisor executed something else.
//!
//! The records of switches show a thread on its CPU meanwhile.

use std::fs;

/// Nanoseconds of a unit of `/proc/stat`: `USER_HZ` is 100.
const TICK: u64 = 10_000_000;

/// Counts from when it is made.
pub(super) struct Steal {
    before: Option<u64>,
}

impl Steal {
    pub(super) fn start() -> Self {
        Self { before: ticks() }
    }

    /// The time so far, summed over CPUs, in nanoseconds. Zero if the kernel does not say.
    pub(super) fn nanos(&self) -> u64 {
        let now = ticks().zip(self.before);
        now.map_or(0, |(now, before)| now.saturating_sub(before).saturating_mul(TICK))
    }
}

fn ticks() -> Option<u64> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// Source: `proc_stat(5)`. Kernels before Linux 2.6.11 have no such column.
fn parse(stat: &str) -> Option<u64> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    let is_sum = words.next()? == "cpu";
    words.nth(7)?.parse().ok().filter(|_| is_sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_column_of_the_sum_is_read() {
        let stat = "cpu  229317 0 8771 1003948 1546 0 226 7163 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse(stat), Some(7_163));
        assert_eq!(parse("cpu0 1 2 3 4 5 6 7 8 9 10\n"), None);
        assert_eq!(parse("cpu  229317 0 8771\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_kernel_counts_it() {
        assert!(ticks().is_some());
    }
}
