//! The CPUs, tasks and cgroups of a set.

use crate::error::{Error, Result};
use crate::refusal::OpenErrorReason;
use crate::{Target, system};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// What a set measures on each CPU. Everything, if there are neither tasks nor cgroups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// `None`: all CPUs that are online.
    pub(crate) cpus: Option<Vec<u32>>,
    /// Each once.
    threads: Vec<Thread>,
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

impl Thread {
    fn new(tid: u32) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = || openat(CWD, format!("/proc/{tid}"), flags, Mode::empty()).ok();
        let dir = if shows_own_ids() { dir() } else { None };
        Self { tid, dir: dir.map(Arc::new), has_ended: false }
    }

    /// Whether the id can belong to another thread by now.
    fn is_gone(&self) -> bool {
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
        if let Err(place) = self.threads.binary_search_by_key(&tid, |thread| thread.tid) {
            self.threads.insert(place, Thread::new(tid));
        }
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
            thread.has_ended = true;
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
            Target::Cgroup { dir, .. } => Ok(rustix::fs::fstat(dir).unwrap().st_ino),
            other => panic!("{other}"),
        });
        let inode = |dir| rustix::fs::stat(dir).unwrap().st_ino;
        assert_eq!(opened.unwrap(), [inode("/proc"), inode("/")]);
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
