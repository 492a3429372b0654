//! Tasks in `/proc`. Everything there can vanish at any time, and names are of the tasks' choice.

use super::{ProcessInfo, text};
use crate::files::read_bytes;
use std::convert::Infallible;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use trace_common::stat_field;

/// A thread as `/proc` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcTask {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) parent: u32,
    /// Its parent, or a tracer, has not taken note of its end.
    pub(super) is_zombie: bool,
    pub(super) name: String,
    pub(super) ns_pids: Vec<u32>,
    pub(super) executable: Option<String>,
    pub(super) cgroup: Option<String>,
}

/// The `proc` file system.
#[derive(Clone, Debug)]
pub(super) struct Proc {
    root: PathBuf,
}

/// The ids of all processes in `/proc`, in ascending order.
///
/// With the mount option `hidepid` only those of this user. Empty if no `/proc` is mounted. A process
/// can end at any time. Source: `proc(5)`.
///
/// ```
/// assert!(perf_monitor::processes().contains(&std::process::id()));
/// ```
pub fn processes() -> Vec<u32> {
    Proc::default().processes()
}

/// The ids of all threads of a process, in ascending order: `/proc/PID/task`.
///
/// Empty if the process does not exist. For the id of a thread that is not the first of its process,
/// all threads of that process. Needs no privilege. Source: `proc_pid_task(5)`.
///
/// ```
/// let pid = std::process::id();
/// assert!(perf_monitor::threads(pid).contains(&pid));
/// ```
pub fn threads(pid: u32) -> Vec<u32> {
    Proc::default().threads(pid)
}

impl Default for Proc {
    fn default() -> Self {
        Self::new("/proc")
    }
}

impl Proc {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(super) fn processes(&self) -> Vec<u32> {
        numbers(&self.root)
    }

    pub(super) fn threads(&self, pid: u32) -> Vec<u32> {
        let dir = self.root.join(format!("{pid}/task"));
        let Ok(threads) = settled(|| Ok::<_, Infallible>(numbers(&dir)), || links(&dir));
        threads
    }

    /// Whether there is a process or thread with this id. `true` if that cannot be found out.
    pub(super) fn has(&self, tid: u32) -> bool {
        let missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        // This needs no descriptor, of which there can be too many.
        !fs::metadata(self.root.join(tid.to_string())).is_err_and(|error| missing(&error))
    }

    /// A process. `None` if it does not exist, or is a zombie.
    pub(super) fn process(&self, pid: u32) -> Option<ProcessInfo> {
        let ProcTask { parent, executable, cgroup, .. } = self.task(pid, pid)?;
        let dir = self.root.join(pid.to_string());
        let limit = ProcessInfo::MAX_ARGUMENTS as u64 + 1;
        let mut line = Vec::new();
        fs::File::open(dir.join("cmdline")).ok()?.take(limit).read_to_end(&mut line).ok()?;
        let is_truncated = line.len() > ProcessInfo::MAX_ARGUMENTS;
        line.truncate(ProcessInfo::MAX_ARGUMENTS);
        // The ends of arguments, which a process that changes them may leave out.
        let text = line.strip_suffix(b"\0").unwrap_or(&line);
        let arguments = text.split(|byte| *byte == 0);
        let arguments = arguments.map(|argument| String::from_utf8_lossy(argument).into_owned());
        let arguments: Vec<String> = if text.is_empty() { Vec::new() } else { arguments.collect() };
        // A zombie has no memory, and neither has a thread of the kernel, which never has.
        if arguments.is_empty() && executable.is_none() && is_zombie(&dir) {
            return None;
        }
        Some(ProcessInfo { pid, parent, arguments, is_truncated, executable, cgroup })
    }

    /// A thread. `None` if it does not exist.
    pub(super) fn task(&self, pid: u32, tid: u32) -> Option<ProcTask> {
        let dir = self.root.join(format!("{pid}/task/{tid}"));
        let status = read_bytes(dir.join("status")).ok()?;
        let field = |name: &[u8]| {
            let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name))?;
            Some(String::from_utf8_lossy(line.trim_ascii()).into_owned())
        };
        let number = |name: &[u8]| field(name)?.parse().ok();
        // The name in `status` has escapes.
        let mut name = read_bytes(dir.join("comm")).ok()?;
        if name.last() == Some(&b'\n') {
            name.pop();
        }
        let ns_pids = field(b"NSpid:").unwrap_or_default();
        Some(ProcTask {
            pid: number(b"Tgid:")?,
            tid,
            parent: number(b"PPid:")?,
            is_zombie: field(b"State:").is_some_and(|state| state.starts_with(['Z', 'X'])),
            name: text(&name),
            ns_pids: ns_pids.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            executable: fs::read_link(dir.join("exe")).ok().map(|p| p.display().to_string()),
            cgroup: read_bytes(dir.join("cgroup")).ok().and_then(|file| cgroup(&file)),
        })
    }
}

fn is_zombie(dir: &Path) -> bool {
    let stat = read_bytes(dir.join("stat")).unwrap_or_default();
    matches!(stat_field(&stat, 3), None | Some("Z" | "X"))
}

/// The path in a `/proc/PID/cgroup` file: that of version 2, or of version 1's `perf_event`
/// hierarchy, or of another one.
fn cgroup(file: &[u8]) -> Option<String> {
    let file = String::from_utf8_lossy(file);
    // number:controllers:path
    let lines = file.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    let rank = |(number, controllers, path): &(&str, &str, &str)| {
        let is_perf = controllers.split(',').any(|name| name == "perf_event");
        let is_unified = *number == "0";
        // A hierarchy without the task's cgroup shows its root.
        (*path != "/", is_perf, is_unified)
    };
    lines.max_by_key(rank).map(|(_, _, path)| path.to_owned())
}

/// The threads of a process by a list that ends early if a thread ends while the kernel makes it: it is made
/// until it has as many as the process. Of a process whose threads begin and end all the time, those of several
/// lists, in ascending order.
///
/// `links` is the number of links to the directory `task`: two, and one for each thread. If it is not known,
/// the list is made until two agree.
///
/// Sources: `proc_task_readdir` and `proc_task_getattr` of the kernel.
pub(crate) fn settled<E>(
    mut list: impl FnMut() -> Result<Vec<u32>, E>,
    mut links: impl FnMut() -> Option<usize>,
) -> Result<Vec<u32>, E> {
    const MAX_LISTS: usize = 4;
    let mut count = || links()?.checked_sub(2);
    let mut all: Vec<u32> = Vec::new();
    let mut last: Option<Vec<u32>> = None;
    let mut before = count();
    for _ in 0..MAX_LISTS {
        let next = list()?;
        let after = count();
        let is_complete = match after {
            // Not only after it: a list can lack a thread, and have one that has ended since.
            Some(number) => before == after && next.len() == number,
            None => last.as_ref() == Some(&next),
        };
        if is_complete {
            return Ok(next);
        }
        all.extend(&next);
        (before, last) = (after, Some(next));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The number of links to a directory.
#[cfg(unix)]
fn links(dir: &Path) -> Option<usize> {
    use std::os::unix::fs::MetadataExt;
    usize::try_from(fs::metadata(dir).ok()?.nlink()).ok()
}

#[cfg(not(unix))]
fn links(_: &Path) -> Option<usize> {
    None
}

/// The entries of a directory that are numbers, in ascending order.
fn numbers(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| task_id(entry.file_name().to_str()?);
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// The id of a task, by the name of its directory.
///
/// Older kernels list a thread that has just ended as 0, which `perf_event_open` takes for the thread that
/// calls it.
pub(crate) fn task_id(name: &str) -> Option<u32> {
    name.parse::<u32>().ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_most_specific_cgroup_is_taken() {
        let file = b"12:cpu,cpuacct:/a\n3:perf_event:/p\n1:name=systemd:/s\n0::/u\n";
        assert_eq!(cgroup(file).as_deref(), Some("/p"));
        assert_eq!(cgroup(b"3:perf_event:/\n1:name=systemd:/s:x\n0::/\n").as_deref(), Some("/s:x"));
        assert_eq!(cgroup(b"0::/\n").as_deref(), Some("/"));
        assert_eq!(cgroup(b"garbage\n"), None);
    }

    #[test]
    fn this_thread_is_found() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let task = Proc::new("/proc").task(std::process::id(), tid).unwrap();
        assert_eq!((task.pid, task.tid), (std::process::id(), tid));
        assert_eq!(task.ns_pids.first(), Some(&tid));
        let own = std::env::current_exe().unwrap();
        assert_eq!(task.executable, Some(own.display().to_string()));
        assert_eq!(Proc::new("/nonexistent").task(1, 1), None);
        // Those of other tests begin and end.
        let is_listed = || Proc::new("/proc").threads(std::process::id()).contains(&tid);
        assert!((0..100).any(|_| is_listed()));
    }

    #[test]
    fn a_list_of_threads_that_ended_early_is_made_again() {
        // The counts are those before the first list, and after each.
        let of = |lists: &[&[u32]], counts: &[usize]| {
            let (mut lists, mut counts) = (lists.iter(), counts.iter());
            let list = || Ok::<_, Infallible>(lists.next().unwrap().to_vec());
            let threads = settled(list, || Some(counts.next()? + 2)).unwrap();
            assert_eq!((lists.next(), counts.next()), (None, None));
            threads
        };
        assert_eq!(of(&[&[7]], &[1, 1]), [7]);
        assert!(of(&[&[]], &[0, 0]).is_empty());
        // 8 ends while it is the last one of the list.
        assert_eq!(of(&[&[7], &[7, 9]], &[3, 2, 2]), [7, 9]);
        // 9 is not listed, and 8 ends after the list.
        assert_eq!(of(&[&[7, 8], &[7, 9]], &[3, 2, 2]), [7, 9]);
        // 9 begins behind the list.
        assert_eq!(of(&[&[7, 8], &[7, 8, 9]], &[2, 3, 3]), [7, 8, 9]);
        let changing: [&[u32]; 4] = [&[7, 8], &[7, 9], &[7, 8], &[7, 10]];
        assert_eq!(of(&changing, &[3; 5]), [7, 8, 9, 10]);
        // Not known.
        assert_eq!(of(&[&[7], &[7]], &[]), [7]);
        assert_eq!(of(&[&[7, 8], &[7, 8, 9], &[7, 8, 9]], &[]), [7, 8, 9]);
        assert_eq!(of(&changing, &[]), [7, 8, 9, 10]);
        // A file system that does not count.
        assert_eq!(settled(|| Ok::<_, Infallible>(vec![7]), || Some(1)).unwrap(), [7]);
    }

    #[test]
    fn the_kernel_counts_threads_as_links() {
        use std::process::{Command, Stdio};
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let found = links(&PathBuf::from(format!("/proc/{}/task", child.id())));
        let threads = Proc::new("/proc").threads(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((found, threads), (Some(3), vec![child.id()]));
    }

    #[test]
    fn thread_0_is_none() {
        let root = std::env::temp_dir().join(format!("perf-threads-{}", std::process::id()));
        for tid in ["0", "7", "8"] {
            fs::create_dir_all(root.join("7/task").join(tid)).unwrap();
        }
        let threads = Proc::new(&root).threads(7);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(threads, [7, 8]);
    }

    proptest! {
        #[test]
        fn any_files_are_no_panic(status: Vec<u8>, comm: Vec<u8>, cgroup: Vec<u8>) {
            let root = std::env::temp_dir().join(format!("perf-tasks-{}", std::process::id()));
            let dir = root.join("1/task/1");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("status"), [b"Tgid: 1\nPPid: 0\n".to_vec(), status].concat()).unwrap();
            fs::write(dir.join("comm"), comm).unwrap();
            fs::write(dir.join("cgroup"), cgroup).unwrap();
            let task = Proc::new(&root).task(1, 1).unwrap();
            prop_assert!(task.name.chars().count() <= super::super::MAX_NAME);
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
