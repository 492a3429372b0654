//! Rates of samples that the kernel accepts.

use std::fs;

/// A rate in samples per second, at most `wanted`, of which the kernel refuses none.
///
/// The kernel lowers `kernel.perf_event_max_sample_rate` by itself when samples take long, also
/// between this look and the test: half of it is used.
pub fn rate(wanted: u64) -> u64 {
    let limit = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    limit.map_or(wanted, |limit| wanted.min(limit / 2).max(1))
}
