//! `/proc/PID/stat`.

/// The start time of a process or thread, field 22 (`starttime`), in clock ticks since boot. A second
/// has `USER_HZ` of them: 100 on all architectures that triscope runs on. `stat` is the contents of
/// `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
///
/// `None` if the field is missing or no number of 64 bits.
///
/// Source: `proc_pid_stat(5)`.
///
/// ```
/// let stat = b"7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 87654 1 2 3\n";
/// assert_eq!(trace_common::start_ticks(stat), Some(87_654));
/// ```
pub fn start_ticks(stat: &[u8]) -> Option<u64> {
    stat_field(stat, 22)?.parse().ok()
}

/// A field of a process or thread by its number, from 3, the state, on. `stat` is the contents of
/// `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
///
/// `None` for the fields before, and if the field is missing.
///
/// Source: `proc_pid_stat(5)`.
///
/// ```
/// let stat = b"7 (a) Z) S 1 7 7 0 -1";
/// assert_eq!(trace_common::stat_field(stat, 3), Some("S"));
/// ```
pub fn stat_field(stat: &[u8], number: usize) -> Option<&str> {
    // Field 2, the name in parentheses, can have any bytes, also parentheses and spaces.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a process with this name.
    fn stat(name: &[u8], start: &str) -> Vec<u8> {
        let fields = format!(" S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1 2 3\n");
        [&b"7 ("[..], name, b")", fields.as_bytes()].concat()
    }

    #[test]
    fn names_can_have_any_bytes() {
        let other = stat(b"a", "1");
        for name in [&b"sh"[..], b"", b"a b", b"a) Z (", b") R 1 2", b"\n", b"\xff\0", &other] {
            let stat = stat(name, "87654");
            assert_eq!(start_ticks(&stat), Some(87_654), "{name:?}");
            assert_eq!(stat_field(&stat, 3), Some("S"), "{name:?}");
        }
    }

    #[test]
    fn start_times_have_64_bits() {
        assert_eq!(start_ticks(&stat(b"a", "0")), Some(0));
        assert_eq!(start_ticks(&stat(b"a", "18446744073709551615")), Some(u64::MAX));
        for start in ["18446744073709551616", "-1", "x", "1.5"] {
            assert_eq!(start_ticks(&stat(b"a", start)), None, "{start}");
        }
    }

    #[test]
    fn fields_can_be_missing() {
        let whole = stat(b"a", "87654");
        assert_eq!([0, 1, 2].map(|number| stat_field(&whole, number)), [None; 3]);
        assert_eq!((stat_field(&whole, 25), stat_field(&whole, 26)), (Some("3"), None));
        assert_eq!(stat_field(&whole, usize::MAX), None);
        let before = whole.len() - "87654 1 2 3\n".len();
        for end in 0..=before {
            assert_eq!(start_ticks(&whole[..end]), None, "{end}");
        }
        assert_eq!(start_ticks(b"7 (a) S \xff"), None);
    }
}
