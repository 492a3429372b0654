//! Processes and threads, as `/proc` shows them.

/// The process that a thread is one of.
///
/// `/proc/TID` is there for every thread, and its `task` has all threads of the process.
pub(crate) fn thread_group(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Whether any thread of a process runs: one that has ended and was not waited for is in `/proc`.
pub(crate) fn is_running(pid: u32) -> bool {
    let ended = |tid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        // The state is behind the name, which may have anything in it.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, None | Some('Z' | 'X'))
    };
    threads_of(pid).is_some_and(|tids| !tids.iter().all(ended))
}

/// The threads of a process; of a thread that leads none, that thread alone.
pub(crate) fn threads_of(pid: u32) -> Option<Vec<u32>> {
    if thread_group(pid)? != pid {
        return Some(vec![pid]);
    }
    Some(numbers(&format!("/proc/{pid}/task")))
}

/// The entries of a directory that are numbers.
pub(crate) fn numbers(dir: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}
