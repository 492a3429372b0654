//! The CPUs, tasks and cgroups of a set.

use crate::error::{Error, Result};
use crate::refusal::OpenErrorReason;
use crate::tasks::{settled, task_id};
use crate::{Target, system};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// What a set measures on each CPU. Everything, if there are neither tasks nor cgroups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// `None`: all CPUs that are online.
    pub(crate) cpus: Option<Vec<u32>>,
    /// Each once.
    threads: Vec<Thread>,
    /// Those whose threads are among the threads.
    processes: Vec<Process>,
    /// Each once.
    cgroups: Vec<Cgroup>,
}

/// Some of the targets on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything, or the cgroups. The kernel ends these events when the CPU goes offline.
    Cpu,
    /// The threads. The kernel keeps these events with the thread: they count again when the CPU is
    /// back, as do those that other tasks inherited.
    Threads,
}

/// A cgroup to measure.
#[derive(Clone, Debug)]
struct Cgroup {
    dir: Arc<OwnedFd>,
    /// Device and inode of the directory, which can have several paths. `None` if they cannot be read.
    id: Option<(u64, u64)>,
}

/// A thread to measure.
#[derive(Clone, Debug)]
struct Thread {
    tid: u32,
    /// Its directory in `/proc`: of this thread, and never of another one that gets its id. `None` if
    /// it cannot be opened.
    dir: Option<Arc<OwnedFd>>,
    has_ended: bool,
}

/// A process to measure.
#[derive(Clone, Debug)]
struct Process {
    /// Its directory of threads: never that of another process that gets its id.
    dir: Arc<OwnedFd>,
    path: PathBuf,
}

impl Process {
    /// For the id of a thread, its process: the directory of a thread is empty once it ends.
    fn open(pid: u32) -> Result<Self> {
        let status = system::read_text(format!("/proc/{pid}/status")).unwrap_or_default();
        let mut lines = status.lines();
        let leader = lines.find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        let pid: u32 = leader.unwrap_or(pid);
        let path = PathBuf::from(format!("/proc/{pid}/task"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, &path, flags, Mode::empty());
        let dir = dir.map_err(|errno| Error::file(&path, errno.into()))?;
        Ok(Self { dir: Arc::new(dir), path })
    }

    /// Its threads; none if it has ended.
    fn threads(&self) -> Result<Vec<u32>> {
        let links = || usize::try_from(fstat(&self.dir).ok()?.st_nlink).ok();
        settled(|| self.listed(), links)
    }

    fn listed(&self) -> Result<Vec<u32>> {
        let entries = Dir::read_from(&self.dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match entries {
            Ok(entries) => {
                let tids = entries.iter().filter_map(|e| task_id(e.file_name().to_str().ok()?));
                Ok(tids.collect())
            }
            Err(Errno::NOENT | Errno::SRCH) => Ok(Vec::new()),
            Err(errno) => Err(Error::file(&self.path, errno.into())),
        }
    }
}

impl Thread {
    fn new(tid: u32) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = || openat(CWD, format!("/proc/{tid}"), flags, Mode::empty()).ok();
        let dir = if shows_own_ids() { dir() } else { None };
        Self { tid, dir: dir.map(Arc::new), has_ended: false }
    }

    /// Whether the id can belong to another thread by now.
    fn is_gone(&self) -> bool {
        if self.has_ended {
            return true;
        }
        let Some(dir) = &self.dir else { return false };
        matches!(statat(dir, "stat", AtFlags::empty()), Err(Errno::NOENT | Errno::SRCH))
    }
}

/// Whether `/proc` is that of the pid namespace of this process.
fn shows_own_ids() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.and_then(|own| own.to_str()?.parse().ok()) == Some(std::process::id())
}

impl Targets {
    /// Adds a thread, unless it is there.
    pub(crate) fn add_thread(&mut self, tid: u32) {
        match self.threads.binary_search_by_key(&tid, |thread| thread.tid) {
            Err(place) => self.threads.insert(place, Thread::new(tid)),
            Ok(place) => {
                if let Some(thread) = self.threads.get_mut(place).filter(|t| t.is_gone()) {
                    *thread = Thread::new(tid);
                }
            }
        }
    }

    /// Adds the threads of a process; for the id of a thread, those of its process.
    pub(crate) fn add_process(&mut self, pid: u32) -> Result<()> {
        let process = Process::open(pid)?;
        let threads = process.threads()?;
        // It ended since. Without any thread, everything would be measured.
        if threads.is_empty() {
            return Err(Error::file(&process.path, Errno::NOENT.into()));
        }
        threads.into_iter().for_each(|tid| self.add_thread(tid));
        self.processes.push(process);
        Ok(())
    }

    /// Adds the threads that the processes started since, for events that are opened next.
    pub(crate) fn list_threads(&mut self) -> Result<()> {
        if self.processes.is_empty() {
            return Ok(());
        }
        let threads: Vec<_> = self.processes.iter().map(Process::threads).collect::<Result<_>>()?;
        threads.into_iter().flatten().for_each(|tid| self.add_thread(tid));
        // Without any, everything would be measured.
        if self.threads.iter().any(|thread| !thread.has_ended) {
            self.threads.retain(|thread| !thread.has_ended);
        }
        Ok(())
    }

    /// Adds the cgroup with this directory, unless it is there.
    pub(crate) fn add_cgroup(&mut self, dir: OwnedFd) {
        let dir = File::from(dir);
        let id = dir.metadata().ok().map(|directory| (directory.dev(), directory.ino()));
        if id.is_none() || self.cgroups.iter().all(|cgroup| cgroup.id != id) {
            self.cgroups.push(Cgroup { dir: Arc::new(dir.into()), id });
        }
    }

    pub(crate) fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// The CPUs that the set wants and that are online.
    pub(crate) fn online(&self) -> Vec<u32> {
        let mut cpus = system::online_cpus();
        if let Some(wanted) = &self.cpus {
            cpus.retain(|cpu| wanted.contains(cpu));
        }
        cpus
    }

    /// Opens something for each target of a part on a CPU; `event` is its name. Threads that have
    /// ended are skipped, unless there is nothing else.
    pub(crate) fn open<T>(
        &mut self,
        cpu: u32,
        part: Part,
        event: &str,
        mut open: impl FnMut(Target<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        match part {
            Part::Cpu if self.threads.is_empty() && self.cgroups.is_empty() => {
                Ok(vec![open(Target::Cpu(cpu))?])
            }
            Part::Cpu => {
                let cgroup =
                    |cgroup: &Cgroup| open(Target::Cgroup { dir: cgroup.dir.as_fd(), cpu });
                self.cgroups.iter().map(cgroup).collect()
            }
            Part::Threads => self.open_threads(cpu, event, open),
        }
    }

    fn open_threads<T>(
        &mut self,
        cpu: u32,
        event: &str,
        mut open: impl FnMut(Target<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut opened = Vec::new();
        let mut ended = None;
        for thread in &mut self.threads {
            let target = Target::ThreadOnCpu { tid: thread.tid, cpu };
            let no_such_thread = || Error::Open {
                event: event.to_owned(),
                target: target.to_string(),
                errno: Errno::SRCH,
                reason: OpenErrorReason::NoSuchThread(thread.tid),
            };
            if thread.has_ended {
                ended = Some(no_such_thread());
                continue;
            }
            match open(target) {
                // Not before: the thread can end meanwhile, and its id can belong to another.
                Ok(_) if thread.is_gone() => ended = Some(no_such_thread()),
                Ok(one) => {
                    opened.push(one);
                    continue;
                }
                Err(error) if is_of_ended_thread(&error) => ended = Some(error),
                Err(error) => return Err(error),
            }
            (thread.has_ended, thread.dir) = (true, None);
        }
        match ended {
            Some(error) if opened.is_empty() && self.cgroups.is_empty() => Err(error),
            _ => Ok(opened),
        }
    }
}

/// Whether all threads of the set have ended.
pub(crate) fn is_of_ended_thread(error: &Error) -> bool {
    matches!(error.reason(), Some(OpenErrorReason::NoSuchThread(_)))
}

/// Whether the CPU went offline in the meantime.
pub(crate) fn is_offline(error: &Error) -> bool {
    matches!(error.reason(), Some(OpenErrorReason::OfflineCpu(_)))
}

/// Whether fewer pages can help.
pub(crate) fn is_short_of_memory(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(OpenErrorReason::LockedMemory { .. } | OpenErrorReason::OutOfMemory)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_given_twice_is_opened_once() {
        let mut targets = Targets::default();
        for dir in ["/proc", "/", "/proc/..", "/proc/."] {
            targets.add_cgroup(File::open(dir).unwrap().into());
        }
        let opened = targets.open(0, Part::Cpu, "an event", |target| match target {
            Target::Cgroup { dir, .. } => Ok(fstat(dir).unwrap().st_ino),
            other => panic!("{other}"),
        });
        let inode = |dir| rustix::fs::stat(dir).unwrap().st_ino;
        assert_eq!(opened.unwrap(), [inode("/proc"), inode("/")]);
    }

    #[test]
    fn threads_that_a_process_starts_later_are_listed() {
        if !shows_own_ids() {
            eprintln!("skipped: /proc is of another pid namespace, or not mounted");
            return;
        }
        let gettid = || rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut targets = Targets::default();
        // By the id of a thread that ends.
        let mut add = || targets.add_process(gettid()).unwrap();
        std::thread::scope(|scope| scope.spawn(&mut add).join().unwrap());
        let tids = |targets: &mut Targets| {
            targets.list_threads().unwrap();
            let tids = targets.open(0, Part::Threads, "an event", |target| Ok(target.tid()));
            tids.unwrap().into_iter().flatten().collect::<Vec<u32>>()
        };
        let (send, tid) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(gettid()).unwrap();
            _ = wait.recv();
        });
        let tid = tid.recv().unwrap();
        // Those of other tests begin and end.
        let mut all = Vec::new();
        let is_listed = (0..100).any(|_| {
            all = tids(&mut targets);
            all.contains(&tid) && all.contains(&gettid())
        });
        assert!(is_listed, "{all:?} without {tid}");
        drop(end);
        thread.join().unwrap();
        // It is in `/proc` for a moment yet.
        while tids(&mut targets).contains(&tid) {
            std::thread::yield_now();
        }
        // A process that has ended has no threads.
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut targets = Targets::default();
        targets.add_process(child.id()).unwrap();
        assert_eq!(tids(&mut targets), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        targets.list_threads().unwrap();
        assert!(targets.has_threads());
        let error = targets.open(0, Part::Threads, "an event", |target| Ok(target.tid()));
        assert!(is_of_ended_thread(&error.unwrap_err()));
        let missing = Targets::default().add_process(u32::MAX / 2).unwrap_err();
        assert!(matches!(missing, Error::File { .. }), "{missing}");
    }

    #[test]
    fn an_id_is_not_opened_again_when_its_thread_has_ended() {
        if !shows_own_ids() {
            eprintln!("skipped: /proc is of another pid namespace, or not mounted");
            return;
        }
        // It waits for its input, at most until this process ends.
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut targets = Targets::default();
        for tid in [child.id(), own, child.id()] {
            targets.add_thread(tid);
        }
        // As if the ids belonged to other threads afterwards: every call succeeds.
        let open = |targets: &mut Targets| {
            targets.open(0, Part::Threads, "an event", |target| Ok(target.tid()))
        };
        let mut tids = open(&mut targets.clone()).unwrap();
        tids.sort_unstable();
        let mut all = [own, child.id()].map(Some);
        all.sort_unstable();
        assert_eq!(tids, all, "each once");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(open(&mut targets).unwrap(), [Some(own)]);
        targets.threads.retain(|thread| thread.tid != own);
        let is_refused = |targets: &mut Targets| {
            let error = open(targets).unwrap_err();
            assert!(is_of_ended_thread(&error), "{error}");
            assert!(error.to_string().contains("an event on thread"), "{error}");
        };
        is_refused(&mut targets);
        // One that had ended before, as the kernel says once.
        let mut ended = Targets::default();
        ended.add_thread(child.id());
        let error = ended.open(0, Part::Threads, "an event", |target| {
            Err::<(), _>(Error::Open {
                event: String::new(),
                target: target.to_string(),
                errno: Errno::SRCH,
                reason: OpenErrorReason::NoSuchThread(child.id()),
            })
        });
        assert!(is_of_ended_thread(&error.unwrap_err()));
        is_refused(&mut ended);
    }
}
