//! Clocks of processes in time namespaces: traces of their runtimes have other times than the records of the kernel.
//!
//! Source: `time_namespaces(7)`.

use super::procfs::shares_time;
use perf_monitor::{time_namespace_offset, time_namespace_offset_of};
use trace_common::ClockDomain;
use trace_timeline::text;

/// Why the times of a process, or of this program, are not those of the kernel's records; `None` if they are, as far
/// as it can be read.
pub(crate) fn deviation(pid: Option<u32>) -> Option<String> {
    const CLOCK: ClockDomain = ClockDomain::Monotonic;
    in_words(match pid.filter(|pid| !shares_time(*pid)) {
        Some(pid) => time_namespace_offset_of(pid, CLOCK),
        None => time_namespace_offset(CLOCK),
    })
}

fn in_words(offset: i64) -> Option<String> {
    let direction = match offset {
        0 => return None,
        1.. => "ahead of",
        _ => "behind",
    };
    let by = text::duration(offset.saturating_abs());
    Some(format!("its clock is {by} {direction} that of the kernel, by its time namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_process_is_that_of_its_time_namespace() {
        let expected = "its clock is 3600.00 s ahead of that of the kernel, by its time namespace";
        assert_eq!(in_words(3_600_000_000_000).unwrap(), expected);
        assert!(in_words(-500_000_000).unwrap().starts_with("its clock is 500.0 ms behind that"));
        assert_eq!(in_words(0), None);
        assert_eq!(deviation(Some(std::process::id())), deviation(None));
    }
}
