//! Clocks of processes in time namespaces: traces of their runtimes have other times than the records of the kernel.
//!
//! Source: `time_namespaces(7)`.

use super::procfs::shares_time;
use perf_monitor::time_namespace_offset;
use trace_common::ClockDomain;
use trace_timeline::text;

/// Why the times of a process, or of this program, are not those of the kernel's records; `None` if they are, as far
/// as it can be read.
pub(crate) fn deviation(pid: Option<u32>) -> Option<String> {
    in_words(match pid.filter(|pid| !shares_time(*pid)) {
        Some(pid) => {
            let path = format!("/proc/{pid}/timens_offsets");
            monotonic(&std::fs::read_to_string(path).unwrap_or_default())
        }
        None => time_namespace_offset(ClockDomain::Monotonic),
    })
}

/// The nanoseconds that a time namespace adds to `CLOCK_MONOTONIC`.
fn monotonic(offsets: &str) -> i64 {
    let offset = |line: &str| {
        let words = line.strip_prefix("monotonic")?.split_ascii_whitespace();
        let mut numbers = words.map(|word| word.parse::<i64>().ok());
        let (seconds, nanos) = (numbers.next()??, numbers.next()??);
        Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    };
    offsets.lines().find_map(offset).unwrap_or(0)
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
        let in_words = |offsets| in_words(monotonic(offsets));
        let ahead = in_words("monotonic        3600         0\nboottime           0         0\n");
        let expected = "its clock is 3600.00 s ahead of that of the kernel, by its time namespace";
        assert_eq!(ahead.unwrap(), expected);
        let behind = in_words("monotonic          -1 500000000\nboottime           0         0\n");
        assert!(behind.unwrap().starts_with("its clock is 500.0 ms behind that"));
        // Only the other clock differs, and kernels without time namespaces.
        for same in ["monotonic 0 0\nboottime 7 0\n", "", "monotonic\n", "monotonic x 0\n"] {
            assert_eq!(in_words(same), None, "{same}");
        }
        assert_eq!(deviation(Some(std::process::id())), deviation(None));
    }
}
