//! `/proc/PID/status`.

/// The id of a process or thread in its innermost PID namespace, by which it knows itself: the last
/// one of the line `NSpid`. `status` is the contents of `/proc/PID/status` or
/// `/proc/PID/task/TID/status`.
///
/// `None` without the line: kernels before 4.1 and those without PID namespaces do not have it.
///
/// Source: `proc_pid_status(5)`.
///
/// ```
/// let status = b"Name:\tapp\nNSpid:\t4242\t7\nNSpgid:\t4242\t7\n";
/// assert_eq!(trace_common::innermost_pid(status), Some(7));
/// ```
pub fn innermost_pid(status: &[u8]) -> Option<u32> {
    let ids = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let last = ids.rsplit(u8::is_ascii_whitespace).find(|id| !id.is_empty())?;
    std::str::from_utf8(last).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_id_is_the_innermost() {
        assert_eq!(innermost_pid(b"Name:\tx\nNSpid:\t4242\t7\nNSpgid:\t1\n"), Some(7));
        assert_eq!(innermost_pid(b"NSpid:\t4242\n"), Some(4242));
        assert_eq!(innermost_pid(b"NSpid:\t4242"), Some(4242));
        assert_eq!(innermost_pid(b"Name:\tx\nNStgid:\t4242\t7\n"), None);
        for damaged in [&b"NSpid:\n"[..], b"NSpid:", b"NSpid:\t-1\n", b"NSpid:\t\xff\n", b""] {
            assert_eq!(innermost_pid(damaged), None);
        }
    }
}
