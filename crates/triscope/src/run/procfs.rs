//! Processes and threads in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use trace_common::{ClockDomain, start_ticks, stat_field};

/// Bytes of a command line and of an environment that are read. A process can make its own as long as it
/// wants, by `PR_SET_MM`.
const COMMAND_LINE: u64 = 1 << 20;
const ENVIRONMENT: u64 = 8 << 20;

/// Bytes of the names of cgroups that are read.
const CGROUP: u64 = 1 << 16;

/// At most this many bytes of a file of a process; empty if it cannot be read.
fn bytes(pid: u32, name: &str, limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(format!("/proc/{pid}/{name}"))
        .and_then(|file| file.take(limit).read_to_end(&mut bytes));
    if read.is_err() {
        bytes.clear();
    }
    bytes
}

/// The process that a thread belongs to.
///
/// `/proc/TID` exists for every thread, and its `task` lists all threads of the process.
pub(crate) fn thread_group(tid: u32) -> Option<u32> {
    status(tid, b"Tgid:")
}

/// The real user of a process.
pub(crate) fn real_user(pid: u32) -> Option<u32> {
    status(pid, b"Uid:")
}

/// The first number of a line of the status of a thread.
fn status(tid: u32, line: &[u8]) -> Option<u32> {
    // The name, the first line, can have any bytes.
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let numbers = status.split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(line))?;
    std::str::from_utf8(numbers).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// The threads of a process; for a thread that is not a leader, only that thread. `None` if the
/// process does not exist.
pub(crate) fn threads_of(pid: u32) -> Option<Vec<u32>> {
    if thread_group(pid)? != pid {
        return Some(vec![pid]);
    }
    let threads = perf_monitor::threads(pid);
    (!threads.is_empty()).then_some(threads)
}

/// Whether any thread of a process runs: zombies are also in `/proc`.
pub(crate) fn is_running(pid: u32) -> bool {
    let ended = |tid: &u32| {
        let stat = stat(*tid);
        matches!(stat_field(&stat, 3), None | Some("Z" | "X"))
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
    let line = bytes(pid, "cmdline", COMMAND_LINE);
    let line = String::from_utf8_lossy(&line);
    line.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

/// When a process started, in clock ticks since the boot; `None` if it does not exist.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    start_ticks(&stat(pid))
}

/// When a process started, by the wall clock; `None` if it does not exist.
pub(crate) fn started(pid: u32) -> Option<SystemTime> {
    /// `USER_HZ`, the same on all architectures that this runs on.
    const TICKS_PER_SECOND: u64 = 100;
    let ticks = start_time(pid)?;
    let nanos = ticks.checked_mul(1_000_000_000 / TICKS_PER_SECOND)?;
    let since_boot = perf_monitor::now(ClockDomain::Boottime)?.nanos();
    let age = u64::try_from(since_boot).ok()?.checked_sub(nanos)?;
    SystemTime::now().checked_sub(Duration::from_nanos(age))
}

/// The file `stat` of a thread; empty if it does not exist.
fn stat(tid: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default()
}

/// Whether this process may not look into another one. Into one that has just ended, nobody can; threads of
/// the kernel have nothing to look into, and no command line.
pub(crate) fn is_unreadable(pid: u32) -> bool {
    if command_line(pid).iter().all(String::is_empty) {
        return false;
    }
    let environment = File::open(format!("/proc/{pid}/environ"));
    environment.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Whether a process is in the cgroups of this one, or below them.
pub(crate) fn is_below_own_cgroup(pid: u32) -> bool {
    let [own, other] = [std::process::id(), pid].map(|pid| bytes(pid, "cgroup", CGROUP));
    are_below(&other, &own)
}

/// Whether the cgroups of a process are those of another one or below them, in each hierarchy: version 1 has several.
///
/// A line has the number of the hierarchy, its controllers and the cgroup. Source: `cgroups(7)`.
fn are_below(cgroups: &[u8], others: &[u8]) -> bool {
    let parse = |line: &'_ [u8]| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let hierarchy = fields.next()?.to_vec();
        Some((hierarchy, fields.nth(1)?.to_vec()))
    };
    let lines = |text: &[u8]| -> BTreeMap<Vec<u8>, Vec<u8>> {
        text.split(|byte| *byte == b'\n').filter_map(parse).collect()
    };
    let cgroups = lines(cgroups);
    lines(others).iter().all(|(hierarchy, other)| {
        let other = other.strip_suffix(b"/").unwrap_or(other); // the root
        let rest = cgroups.get(hierarchy).and_then(|cgroup| cgroup.strip_prefix(other));
        // One that is not below the root of the cgroup namespace begins with "/..".
        rest.is_some_and(|rest| {
            let is_below = rest.is_empty() || rest.starts_with(b"/");
            is_below && rest != b"/.." && !rest.starts_with(b"/../")
        })
    })
}

/// The children of a process.
///
/// Source: `proc_tid_children(5)`; empty on kernels without `CONFIG_PROC_CHILDREN`.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let of_thread = |tid| {
        let path = format!("/proc/{pid}/task/{tid}/children");
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let lists: Vec<String> = perf_monitor::threads(pid).into_iter().map(of_thread).collect();
    lists.iter().flat_map(|l| l.split_ascii_whitespace()).filter_map(|n| n.parse().ok()).collect()
}

/// Whether a process was started with this path in a variable of its environment: the value is a list
/// whose elements are separated by semicolons, each a path with options after commas.
pub(crate) fn has_port(pid: u32, name: &str, path: &Path) -> bool {
    let environment = bytes(pid, "environ", ENVIRONMENT);
    is_port_in(&environment, name, path)
}

fn is_port_in(environment: &[u8], name: &str, path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    let is_path = |port: &[u8]| port.split(|b| *b == b',').next() == Some(path);
    let mut values = environment
        .split(|b| *b == 0)
        .filter_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    values.any(|value| value.split(|b| *b == b';').any(is_path))
}

/// Whether this program runs in another PID namespace than the initial one.
pub(crate) fn is_in_container() -> bool {
    // The inode of the initial one: PROC_PID_INIT_INO in linux/proc_ns.h.
    const FIRST: &str = "pid:[4026531836]";
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != FIRST)
}

/// The threads of a process in another PID namespace than this one: the ids by which they know
/// themselves.
#[derive(Debug)]
pub(crate) struct NamespaceIds {
    pid: u32,
    /// Pairs of the id in the namespace of the process and the id in this one.
    ids: BTreeMap<u32, u32>,
    /// The ids in this one.
    known: BTreeSet<u32>,
}

impl NamespaceIds {
    /// Threads of a process over time, of which the ids are kept.
    const MAX: usize = 1 << 16;

    /// Reads those of a process. `None` if it is in this namespace, or has ended.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        Self::own_id(pid, pid).filter(|own| *own != pid)?;
        let mut ids = Self { pid, ids: BTreeMap::new(), known: BTreeSet::new() };
        ids.add_new();
        Some(ids)
    }

    /// Adds the threads that have started since. Those that start and end between two calls are not known.
    pub(crate) fn add_new(&mut self) {
        for tid in perf_monitor::threads(self.pid) {
            if self.known.len() >= Self::MAX || !self.known.insert(tid) {
                continue;
            }
            if let Some(own) = Self::own_id(self.pid, tid) {
                self.ids.insert(own, tid);
            }
        }
    }

    pub(crate) fn into_ids(self) -> BTreeMap<u32, u32> {
        self.ids
    }

    fn own_id(pid: u32, tid: u32) -> Option<u32> {
        const STATUS: u64 = 1 << 14;
        trace_common::innermost_pid(&bytes(pid, &format!("task/{tid}/status"), STATUS))
    }
}

/// The targets of the open files of a process.
fn open_files(pid: u32) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        Some((fd, std::fs::read_link(entry.path()).ok()?))
    })
}

/// The sockets of a process: descriptors and inodes.
pub(crate) fn sockets(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    open_files(pid).filter_map(|(fd, target)| Some((fd, inode(&target)?)))
}

/// Whether a descriptor of a process is the socket with this inode.
pub(crate) fn is_socket(pid: u32, fd: u32, socket: u64) -> bool {
    let target = std::fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    target.is_ok_and(|target| inode(&target) == Some(socket))
}

/// The inode of a socket that is the target of a descriptor.
fn inode(target: &Path) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The files that a process has open for writing: where this program can open them, also those of other mount
/// namespaces, and their names in that of the process.
pub(crate) fn written_files(pid: u32) -> Vec<(PathBuf, PathBuf)> {
    /// `O_WRONLY` and `O_RDWR`, in the octal number that `fdinfo` shows.
    const WRITES: u32 = 0o3;
    let is_written = |fd: u32| {
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.and_then(|f| u32::from_str_radix(f.trim(), 8).ok()).is_some_and(|f| f & WRITES != 0)
    };
    let files = open_files(pid).filter(|(fd, target)| target.is_absolute() && is_written(*fd));
    files.map(|(fd, target)| (format!("/proc/{pid}/fd/{fd}").into(), target)).collect()
}

/// The root directory of a process, if its paths are other ones than those of this program.
pub(crate) fn other_root(pid: u32) -> Option<File> {
    let paths = |pid: &str| {
        let root = std::fs::metadata(format!("/proc/{pid}/root")).ok()?;
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
        Some((namespace, root.dev(), root.ino()))
    };
    let is_other = paths(&pid.to_string()) != paths("self");
    is_other.then(|| File::open(format!("/proc/{pid}/root")).ok())?
}

/// Whether a process is in the network namespace of this program. `None` if that cannot be read: it has ended, or its main
/// thread has. A kernel without such namespaces has one network.
pub(crate) fn shares_network(pid: u32) -> Option<bool> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net"));
    match namespace("self") {
        Ok(own) => Some(own == namespace(&pid.to_string()).ok()?),
        Err(error) => (error.kind() == std::io::ErrorKind::NotFound).then_some(true),
    }
}

/// Whether a process is in the time namespace of this program, as far as it can be read.
pub(crate) fn shares_time(pid: u32) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/time")).ok();
    let other = namespace(&pid.to_string());
    other.is_none() || other == namespace("self")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one with a Cyrillic name, which the kernel cuts at 15 bytes.
    #[test]
    fn a_process_with_a_name_that_is_no_text_runs() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("программа");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut command = std::process::Command::new(&program);
        command.args(["-c", "read line"]).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        crate::run::wait::until("its name", || comm(pid, pid) == "программа".as_bytes()[..15]);
        assert_eq!(thread_group(pid), Some(pid));
        assert!(is_running(pid) && start_time(pid).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_running(pid));
    }

    #[test]
    fn threads_of_another_pid_namespace_have_two_ids() {
        let own = std::process::id();
        assert!(NamespaceIds::read(own).is_none());
        let mut command = std::process::Command::new("unshare");
        command.args(["--pid", "--fork", "sh", "-c", "echo started; read line"]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let Ok(mut unshare) = command.spawn() else {
            message!("\n==== SKIPPED: threads of another PID namespace: needs unshare");
            return;
        };
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(unshare.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        if line == "started\n" {
            let [pid] = children(unshare.id())[..] else { panic!("the child of unshare") };
            let mut ids = NamespaceIds::read(pid).unwrap();
            ids.add_new();
            assert_eq!(ids.into_ids(), BTreeMap::from([(1, pid)]));
        } else {
            message!("\n==== SKIPPED: threads of another PID namespace: needs root");
        }
        drop(unshare.stdin.take());
        unshare.wait().unwrap();
    }

    #[test]
    fn written_files_can_be_opened_without_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("written"), dir.path().join("read"));
        std::fs::write(&path, "text").unwrap();
        std::fs::write(&other, "").unwrap();
        let _written = File::options().append(true).open(&path).unwrap();
        let _read = File::open(&other).unwrap();
        let written = written_files(std::process::id());
        let found = |name: &Path| written.iter().find(|(_, known)| known == name);
        assert!(found(&other).is_none());
        let (opened, _) = found(&path).unwrap();
        // As in another mount namespace.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(std::fs::read_to_string(opened).unwrap(), "text");
    }

    #[test]
    fn children_are_of_the_same_user_and_cgroup() {
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("60").stdin(std::process::Stdio::null()).spawn().unwrap();
        let pid = child.id();
        assert_eq!(real_user(pid), Some(rustix::process::getuid().as_raw()));
        assert!(is_below_own_cgroup(pid) && is_below_own_cgroup(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(real_user(pid), None);
        assert!(!is_below_own_cgroup(pid));
    }

    #[test]
    fn cgroups_of_all_hierarchies_are_compared() {
        let below = |cgroups: &str, others: &str| are_below(cgroups.as_bytes(), others.as_bytes());
        assert!(below("0::/a\n", "0::/a\n") && below("0::/a/b\n", "0::/a\n"));
        assert!(!below("0::/ab\n", "0::/a\n") && !below("0::/\n", "0::/a\n"));
        // The root has all, except for those above the root of the cgroup namespace.
        assert!(below("0::/\n", "0::/\n") && below("0::/a\n", "0::/\n"));
        assert!(!below("0::/..\n", "0::/\n") && !below("0::/../a\n", "0::/\n"));
        assert!(below("0::/../a/b\n", "0::/../a\n") && !below("0::/../b\n", "0::/../a\n"));
        // Version 1, and both.
        let own = "12:cpu,cpuacct:/a\n1:name=systemd:/s:1\n0::/s\n";
        assert!(below(own, own));
        assert!(below("12:cpu,cpuacct:/a/b\n1:name=systemd:/s:1/x\n0::/s/x\n", own));
        assert!(!below("12:cpu,cpuacct:/\n1:name=systemd:/s:1\n0::/s\n", own));
        assert!(!below("12:cpu,cpuacct:/a\n1:name=systemd:/s:1\n", own));
        assert!(!below("", own));
    }

    #[test]
    fn this_program_has_no_other_root() {
        assert!(other_root(std::process::id()).is_none());
    }

    #[test]
    fn ports_in_environments() {
        let is_in =
            |environment: &str| is_port_in(environment.as_bytes(), "PORTS", Path::new("/a"));
        assert!(is_in("X=1\0PORTS=/a\0") && is_in("PORTS=/b,connect;/a,nosuspend\0Y="));
        assert!(!is_in("") && !is_in("PORTS=/ab") && !is_in("XPORTS=/a") && !is_in("PORTS=/b,/a"));
    }
}
