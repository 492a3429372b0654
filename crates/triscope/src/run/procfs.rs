//! Processes and threads in `/proc`.

use std::path::Path;

/// All visible processes.
pub(crate) fn processes() -> Vec<u32> {
    numbers("/proc")
}

/// The process that a thread belongs to.
///
/// `/proc/TID` exists for every thread, and its `task` lists all threads of the process.
pub(crate) fn thread_group(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// The threads of a process; for a thread that is not a leader, only that thread. `None` if the
/// process does not exist.
pub(crate) fn threads_of(pid: u32) -> Option<Vec<u32>> {
    if thread_group(pid)? != pid {
        return Some(vec![pid]);
    }
    let threads = numbers(&format!("/proc/{pid}/task"));
    (!threads.is_empty()).then_some(threads)
}

/// Whether any thread of a process runs: zombies are also in `/proc`.
pub(crate) fn is_running(pid: u32) -> bool {
    let ended = |tid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        // The state follows the name, which can contain any characters.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, None | Some('Z' | 'X'))
    };
    threads_of(pid).is_some_and(|tids| !tids.iter().all(ended))
}

/// The name of a thread; empty if it has ended.
pub(crate) fn comm(pid: u32, tid: u32) -> Vec<u8> {
    let mut name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    name
}

/// The arguments of a process's command line.
pub(crate) fn command_line(pid: u32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    line.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

/// Whether a process was started with this variable in its environment.
pub(crate) fn has_variable(pid: u32, name: &str, value: &Path) -> bool {
    let variable = [name.as_bytes(), b"=", value.as_os_str().as_encoded_bytes()].concat();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|b| *b == 0).any(|entry| entry == variable)
}

/// Whether this program runs in another PID namespace than the initial one.
pub(crate) fn is_in_container() -> bool {
    // The inode of the initial one: PROC_PID_INIT_INO in linux/proc_ns.h.
    const FIRST: &str = "pid:[4026531836]";
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != FIRST)
}

/// The entries of a directory that are numbers.
fn numbers(dir: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}
