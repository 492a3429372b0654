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

/// The targets of the open files of a process.
fn open_files(pid: u32) -> impl Iterator<Item = (u32, std::path::PathBuf)> {
    let dir = format!("/proc/{pid}/fd");
    numbers(&dir).into_iter().filter_map(move |fd| {
        std::fs::read_link(format!("{dir}/{fd}")).ok().map(|target| (fd, target))
    })
}

/// The inodes of the sockets of a process.
pub(crate) fn sockets(pid: u32) -> Vec<u64> {
    let inode = |target: std::path::PathBuf| {
        let name = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        name.parse().ok()
    };
    open_files(pid).filter_map(|(_, target)| inode(target)).collect()
}

/// The files that a process has open for writing.
pub(crate) fn written_files(pid: u32) -> Vec<std::path::PathBuf> {
    /// `O_WRONLY` and `O_RDWR`, in the octal number that `fdinfo` shows.
    const WRITES: u32 = 0o3;
    let is_written = |fd: u32| {
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.and_then(|f| u32::from_str_radix(f.trim(), 8).ok()).is_some_and(|f| f & WRITES != 0)
    };
    let files = open_files(pid).filter(|(fd, target)| target.is_absolute() && is_written(*fd));
    files.map(|(_, target)| target).collect()
}

/// Whether a process is in the network namespace of this program.
pub(crate) fn shares_network(pid: u32) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = namespace("self");
    own.is_some() && own == namespace(&pid.to_string())
}
