//! Tasks by the records of the kernel: who a thread was at the time of an event.

mod container;
#[cfg(target_os = "linux")]
mod hierarchy;
mod proc;
mod process;
mod processes;
#[cfg(test)]
mod tests;

pub use container::{Container, ContainerKind};

use crate::record::{FileId, ProcessEvent, Record};
#[cfg(target_os = "linux")]
pub use hierarchy::cgroup_dirs;
use proc::{Proc, ProcTask};
pub use proc::{processes, threads};
#[cfg(target_os = "linux")]
pub(crate) use proc::{settled, task_id};
pub use process::ProcessInfo;
use processes::Processes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use trace_common::Timestamp;

/// Maximum number of characters of a name; the kernel's have 15 bytes.
pub(crate) const MAX_NAME: usize = 64;

/// `PROT_EXEC` of `mmap(2)`.
const PROT_EXEC: u32 = 4;

/// The time of what was there before any record.
const EARLIEST: Timestamp = Timestamp::from_nanos(i64::MIN);

/// Records of exits before a [`Tasks::scan`] come this much later at most, in nanoseconds.
const LATE_EXIT: i64 = 10_000_000_000;

/// Maximum number of names and executables that a task is remembered with.
const MAX_CHANGES: usize = 32;

/// The tasks of a machine, from the records `FORK`, `COMM`, `EXIT`, `MMAP2` and `CGROUP`.
///
/// Pass records in time order. Names, executables and the rest are then known as they were at a time:
/// also of tasks that ended, for as long as [`keep_ended`](Self::keep_ended) says, and of thread ids
/// that the kernel used again.
///
/// ```
/// use perf_monitor::{Tasks, Timestamp};
///
/// let mut tasks = Tasks::live();
/// tasks.scan(Timestamp::from_nanos(1));
/// let this = tasks.at(std::process::id(), Timestamp::from_nanos(2)).unwrap();
/// println!("{} runs {:?} in {:?}", this.name(), this.executable(), this.container());
/// ```
///
/// The events need `task`, `comm`, `comm_exec`, `mmap` and `mmap2` (and `build_id` for
/// [`Task::build_id`]); `cgroup` for [`Tasks::cgroup`]. In the records, ids are those of the PID
/// namespace of the process that opened the event.
#[derive(Debug)]
pub struct Tasks {
    /// `None` for records of another time or machine.
    proc: Option<Proc>,
    /// The lives of each thread id, in the order of their [starts](Life::start).
    lives: HashMap<u32, VecDeque<Life>>,
    count: usize,
    processes: Processes,
    /// Ended threads in the order of their end; main threads at the end of their process.
    ended: VecDeque<(Timestamp, u32)>,
    /// Threads that were not in `/proc`, or were zombies there, with the time of the first scan that did not
    /// find them running. Their exits can still come.
    missing: HashMap<u32, Timestamp>,
    /// When the first of these is taken to have ended.
    next_missing: Timestamp,
    /// Paths by the ids in samples.
    cgroups: HashMap<u64, Arc<str>>,
    /// The ids of the paths, in the order in which they came.
    cgroup_ids: VecDeque<u64>,
    keep_ended: i64,
    max_tasks: usize,
    forgotten: u64,
    latest: Timestamp,
}

/// The life of a thread.
#[derive(Clone, Debug)]
struct Life {
    /// From its start, if that was seen.
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    /// When it was added.
    seen: Timestamp,
    pid: u32,
    parent: u32,
    ns_pids: Arc<[u32]>,
    cgroups: Changes<Arc<str>>,
    names: Changes<Arc<str>>,
    executables: Changes<Executable>,
}

/// Values with the times since when they hold.
#[derive(Clone, Debug)]
struct Changes<T>(VecDeque<(Timestamp, T)>);

impl<T: PartialEq> Changes<T> {
    const NONE: Self = Self(VecDeque::new());

    /// The value at a time: the last change before it, otherwise the first one.
    fn at(&self, time: Timestamp) -> Option<&T> {
        let before = self.0.iter().rev().find(|(since, _)| *since <= time);
        before.or(self.0.front()).map(|(_, value)| value)
    }

    /// Adds a change. Of too many, the oldest is forgotten.
    fn add(&mut self, time: Timestamp, value: T) {
        if self.0.back().is_some_and(|(_, last)| *last == value) {
            return;
        }
        if self.0.len() >= MAX_CHANGES {
            self.0.pop_front();
        }
        self.0.push_back((time, value));
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Executable {
    /// `None` between an `execve(2)` and its first mapping.
    path: Option<Arc<str>>,
    build_id: Option<Arc<[u8]>>,
}

/// A thread at a time.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    tid: u32,
    at: Timestamp,
    life: &'a Life,
    /// The main thread of the process, which has the executable.
    leader: &'a Life,
}

impl<'a> Task<'a> {
    /// The thread.
    pub const fn tid(&self) -> u32 {
        self.tid
    }

    /// Its process.
    pub const fn pid(&self) -> u32 {
        self.life.pid
    }

    /// The parent of its process, at its start.
    pub const fn parent(&self) -> u32 {
        self.life.parent
    }

    /// Its name: empty if neither a record nor `/proc` has it.
    pub fn name(&self) -> &'a str {
        self.life.names.at(self.at).map_or("", |name| name)
    }

    /// The executable of its process; `None` if it is not known, as without a record of its start.
    pub fn executable(&self) -> Option<&'a str> {
        self.leader.executables.at(self.at)?.path.as_deref()
    }

    /// The build id of the executable.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        self.leader.executables.at(self.at)?.build_id.as_deref()
    }

    /// Its cgroup: that of its parent at its start; with [`Tasks::live`] also what `/proc` said at
    /// each `execve(2)`. A task that is moved to another cgroup later is not noticed: the id in
    /// samples is exact ([`Tasks::cgroup`]).
    pub fn cgroup(&self) -> Option<&'a str> {
        self.life.cgroups.at(self.at).map(AsRef::as_ref)
    }

    /// Its container, according to its cgroup.
    pub fn container(&self) -> Option<Container> {
        Container::of_cgroup(self.cgroup()?)
    }

    /// Its ids in its PID namespaces, the outermost first; empty if `/proc` does not show them.
    pub fn ns_pids(&self) -> &'a [u32] {
        &self.life.ns_pids
    }

    /// The time of its start; `None` if it was there before the records.
    pub const fn started(&self) -> Option<Timestamp> {
        self.life.from
    }

    /// The time of its end; `None` if it has not ended.
    pub const fn ended(&self) -> Option<Timestamp> {
        self.life.until
    }
}

/// Whether a mapping is of a file, not of memory that the kernel gives a name that looks like one.
fn is_file(name: &[u8]) -> bool {
    const MEMORY: [&[u8]; 5] = [b"//", b"/anon_hugepage", b"/dev/zero", b"/SYSV", b"/["];
    name.starts_with(b"/") && !MEMORY.iter().any(|memory| name.starts_with(memory))
}

/// Whether a file is a library by its name.
fn is_library(path: &[u8]) -> bool {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    name.ends_with(b".dll") || name.ends_with(b".so") || name.windows(4).any(|part| part == b".so.")
}

/// Text of a task's choice, of a bounded length.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(MAX_NAME).collect()
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// No tasks, for records of a recording: `/proc` is not read. Ended ones are kept for a minute,
    /// at most 1 Mi tasks altogether.
    pub fn new() -> Self {
        Self {
            proc: None,
            lives: HashMap::new(),
            count: 0,
            processes: Processes::default(),
            ended: VecDeque::new(),
            missing: HashMap::new(),
            next_missing: Timestamp::MAX,
            cgroups: HashMap::new(),
            cgroup_ids: VecDeque::new(),
            keep_ended: 60_000_000_000,
            max_tasks: 1 << 20,
            forgotten: 0,
            latest: EARLIEST,
        }
    }

    /// No tasks yet, for records of this machine as they are written: `/proc` has what they do not
    /// say. It is read by [`scan`](Self::scan), and for each process that starts or calls
    /// `execve(2)`, if it is still there.
    pub fn live() -> Self {
        Self { proc: Some(Proc::new("/proc")), ..Self::new() }
    }

    /// How long tasks are known after their end: main threads after that of their process.
    #[must_use]
    pub fn keep_ended(mut self, time: Duration) -> Self {
        self.keep_ended = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        self
    }

    /// Maximum number of tasks, and of [cgroups](Self::cgroup). With more tasks, those that ended first
    /// are forgotten, then new ones are not added; with more cgroups, those that came first are
    /// forgotten: see [`forgotten`](Self::forgotten).
    #[must_use]
    pub const fn max_tasks(mut self, max: usize) -> Self {
        self.max_tasks = max;
        self
    }

    /// Number of tasks, with those that ended and are kept.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no tasks.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of tasks and cgroups that were forgotten, or not added, because there were too many.
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Adds the running tasks, from `/proc`, at the time `now` of the events' clock. Call this after
    /// the events were enabled, so that none is missed. Does nothing without [`live`](Self::live).
    ///
    /// Tasks that run according to the records, and are not in `/proc` or are zombies there, have ended:
    /// their records of it were lost, if they do not come within 10 seconds. Call this again after losses.
    /// With the mount option `hidepid`, which can hide tasks that run, none is ended so.
    pub fn scan(&mut self, now: Timestamp) {
        let Some(proc) = self.proc.clone() else { return };
        let mut zombies = HashSet::new();
        for pid in proc.processes() {
            for tid in proc.threads(pid) {
                if let Some(task) = proc.task(pid, tid) {
                    if task.is_zombie {
                        zombies.insert(tid);
                    }
                    self.add_from_proc(task, now);
                }
            }
        }
        let before = std::mem::take(&mut self.missing);
        // Of all users, unless some are hidden.
        if proc.has(1) {
            let running = self.processes.all_threads();
            let has_ended = |tid: &u32| zombies.contains(tid) || !proc.has(*tid);
            let missing = running.filter(|tid| !matches!(*tid, 0 | u32::MAX) && has_ended(tid));
            let missing = missing.map(|tid| (tid, before.get(&tid).copied().unwrap_or(now)));
            self.missing = missing.collect();
        }
        self.plan_missing();
    }

    /// Sets when the next missing thread is taken to have ended.
    fn plan_missing(&mut self) {
        let first = self.missing.values().min();
        self.next_missing =
            first.map_or(Timestamp::MAX, |since| since.saturating_add_nanos(LATE_EXIT));
    }

    /// Ends threads that a scan did not find, and whose exits would have come by now.
    #[cold]
    fn end_missing(&mut self) {
        let limit = self.latest.saturating_add_nanos(-LATE_EXIT);
        let missing = std::mem::take(&mut self.missing).into_iter();
        let (due, rest) = missing.partition(|(_, since)| *since <= limit);
        self.missing = rest;
        let mut due: Vec<(u32, Timestamp)> = due.into_iter().collect();
        due.sort_unstable_by_key(|(tid, since)| (*since, *tid));
        for (tid, since) in due {
            // Another thread can have the id since.
            if self.running(tid).is_some_and(|life| life.seen <= since) {
                self.exit(tid, since);
            }
        }
        self.plan_missing();
    }

    fn add_from_proc(&mut self, task: ProcTask, now: Timestamp) {
        let tid = task.tid;
        if self.running(tid).is_some_and(|life| life.pid != task.pid) {
            // The id is used again, and the exit was lost.
            self.exit(tid, now);
        }
        let has_ended = self.lives.contains_key(&tid) && self.running(tid).is_none();
        if self.processes.has_ended_leader(tid) || (task.is_zombie && has_ended) {
            // A zombie until the other threads end, and its parent takes note of that.
            return;
        }
        match self.running(tid) {
            Some(life) => life.complete(task, now),
            None => {
                let mut life = Life::new(None, now, task.pid, task.parent);
                life.complete(task, now);
                self.insert(tid, life);
            }
        }
    }

    /// The present life of a thread.
    fn running(&mut self, tid: u32) -> Option<&mut Life> {
        self.lives.get_mut(&tid)?.back_mut().filter(|life| life.until.is_none())
    }

    /// The start of the life before the last one.
    fn start_before(&self, tid: u32) -> Timestamp {
        let before = self.lives.get(&tid).and_then(|lives| lives.iter().rev().nth(1));
        before.map_or(EARLIEST, Life::start)
    }

    /// Takes a record. Those that say nothing about tasks are ignored.
    pub fn push(&mut self, record: &Record<'_>) {
        let Some(id) = record.sample_id() else { return };
        let time = match record {
            Record::Fork(event) | Record::Exit(event) => Some(event.time),
            _ => id.time,
        };
        // Without a time it is about the start, as `perf` writes it.
        let time = time.filter(|time| time.nanos() != 0).unwrap_or(EARLIEST);
        self.latest = self.latest.max(time);
        if self.latest >= self.next_missing {
            self.end_missing();
        }
        match record {
            Record::Fork(fork) => self.fork(fork, time),
            Record::Exit(exit) => self.exit(exit.tid, time),
            Record::Comm(comm) => {
                let name = Arc::from(text(comm.comm));
                if comm.by_exec && self.running(comm.pid).is_none() {
                    self.exec_by_thread(comm.pid, time);
                }
                let Some(life) = self.life(comm.pid, comm.tid, time) else { return };
                life.names.add(time, name);
                if comm.by_exec {
                    life.executables.add(time, Executable::default());
                    self.look_after_exec(comm.pid, time);
                }
            }
            Record::Mmap(mmap) => {
                let is_code = mmap.file.is_none() || mmap.prot & PROT_EXEC != 0;
                if is_code && !mmap.is_data && is_file(mmap.filename) {
                    self.map(mmap.pid, mmap.filename, mmap.file, time);
                }
            }
            Record::Cgroup(cgroup) => self.add_cgroup(cgroup.id, cgroup.path),
            _ => {}
        }
        self.forget_ended();
    }

    /// The kernel does not use ids again; their number is bounded as that of tasks is.
    fn add_cgroup(&mut self, id: u64, path: &[u8]) {
        if self.cgroups.insert(id, String::from_utf8_lossy(path).into()).is_none() {
            self.cgroup_ids.push_back(id);
        }
        if self.cgroups.len() > self.max_tasks {
            self.forgotten += 1;
            if let Some(oldest) = self.cgroup_ids.pop_front() {
                self.cgroups.remove(&oldest);
            }
        }
    }

    fn fork(&mut self, fork: &ProcessEvent, time: Timestamp) {
        let ProcessEvent { pid, tid, ppid, ptid, .. } = *fork;
        let from = (time != EARLIEST).then_some(time);
        let start_before = self.start_before(tid);
        if let Some(life) = self.running(tid) {
            let is_known = match (life.from, from) {
                // The record of a task from /proc.
                (None, Some(from)) if from <= life.seen => {
                    life.from = Some(from.max(start_before));
                    true
                }
                (known, from) => from.is_none() || known == from,
            };
            if is_known {
                return;
            }
            // Its exit was lost.
            self.exit(tid, time);
        }
        let is_thread = pid == ppid;
        if pid == tid && !is_thread && from.is_some() {
            // Those of an earlier process, whose exits were lost.
            self.end_threads(pid, time);
        }
        let mut life = Life::new(from, time, pid, if is_thread { 0 } else { ppid });
        if let Some(parent) = self.at(ptid, time) {
            life.names.0.extend(parent.life.names.at(time).map(|name| (time, name.clone())));
            life.cgroups.0.extend(parent.life.cgroups.at(time).map(|path| (time, path.clone())));
            if is_thread {
                life.parent = parent.parent();
            } else if from.is_some() {
                // The parent of one that was there at the start can have another program since.
                let executable = parent.leader.executables.at(time);
                life.executables.0.extend(executable.map(|e| (time, e.clone())));
            }
        }
        life.ns_pids = self.ns_pids_of(pid, tid);
        self.insert(tid, life);
    }

    /// The ids of a new thread in its PID namespaces. Threads of a process are in the same ones.
    fn ns_pids_of(&self, pid: u32, tid: u32) -> Arc<[u32]> {
        let leader = self.lives.get(&pid).and_then(VecDeque::back);
        match (&self.proc, leader) {
            (Some(_), Some(leader)) if pid != tid && leader.ns_pids.len() == 1 => Arc::from([tid]),
            // It may have ended since.
            (Some(proc), _) => proc.task(pid, tid).map_or_else(Arc::default, |t| t.ns_pids.into()),
            (None, _) => Arc::default(),
        }
    }

    /// A thread that calls `execve(2)` becomes the main thread, whose end was recorded. The end of the
    /// thread with its former id is not.
    fn exec_by_thread(&mut self, pid: u32, time: Timestamp) {
        let Some(last) = self.lives.get(&pid).and_then(VecDeque::back).cloned() else {
            return;
        };
        self.end_threads(pid, time);
        self.insert(pid, Life { from: Some(time), until: None, seen: time, ..last });
    }

    /// Ends all threads of a process.
    fn end_threads(&mut self, pid: u32, time: Timestamp) {
        let threads: Vec<u32> = self.processes.threads(pid).collect();
        threads.into_iter().for_each(|tid| self.exit(tid, time));
    }

    /// Container engines move a process to its cgroup before it calls `execve(2)`.
    fn look_after_exec(&mut self, pid: u32, time: Timestamp) {
        let Some(task) = self.proc.as_ref().and_then(|proc| proc.task(pid, pid)) else { return };
        if let Some(life) = self.running(pid) {
            life.ns_pids = task.ns_pids.into();
            if let Some(path) = task.cgroup {
                life.cgroups.add(time, Arc::from(path));
            }
        }
    }

    fn exit(&mut self, tid: u32, time: Timestamp) {
        if let Some(life) = self.running(tid) {
            life.until = Some(time);
            let pid = life.pid;
            let unneeded = self.processes.end(pid, tid);
            self.ended.extend(unneeded.into_iter().flatten().map(|tid| (time, tid)));
        }
    }

    /// The first executable mapping after an `execve(2)` is that of the executable; the next one is
    /// its interpreter. Those of a process that was there before the records come in the order of their
    /// addresses, at the time [`EARLIEST`]; at another time the first one can be a library.
    fn map(&mut self, pid: u32, path: &[u8], file: Option<FileId<'_>>, time: Timestamp) {
        let Some(life) = self.life(pid, pid, time) else { return };
        let build_id = match file {
            Some(FileId::BuildId(id)) => Some(Arc::from(id)),
            _ => None,
        };
        let can_be_executable = match life.executables.0.back() {
            // `fexecve(2)` executes a file in memory.
            Some((_, executable)) if executable.path.is_none() => true,
            Some(_) => false,
            None => {
                let is_listed = time == EARLIEST;
                !path.starts_with(b"/memfd:")
                    && (is_listed || (life.from.is_none() && !is_library(path)))
            }
        };
        let path: Arc<str> = String::from_utf8_lossy(path).into();
        match life.executables.0.back_mut() {
            None if can_be_executable => {
                life.executables.add(time, Executable { path: Some(path), build_id });
            }
            Some((_, executable)) if can_be_executable => {
                *executable = Executable { path: Some(path), build_id };
            }
            // Mappings from /proc have no build id.
            Some((_, executable)) if executable.path.as_ref() == Some(&path) => {
                executable.build_id = build_id.or(executable.build_id.take());
            }
            _ => {}
        }
    }

    /// The present life of a thread; a new one if it is not known. That of a main thread is the one of
    /// its process, which other threads can continue.
    fn life(&mut self, pid: u32, tid: u32, time: Timestamp) -> Option<&mut Life> {
        if self.processes.has_ended_leader(tid) {
            return self.lives.get_mut(&tid)?.back_mut();
        }
        if self.running(tid).is_none() {
            let life = Life::new(None, time, pid, 0);
            self.insert(tid, life);
        }
        self.running(tid)
    }

    fn insert(&mut self, tid: u32, mut life: Life) {
        if self.processes.release_leader(tid) {
            // Its process has ended, and the exits of other threads were lost.
            self.ended.push_back((life.seen, tid));
        }
        if self.count >= self.max_tasks {
            self.forgotten += 1;
            match self.ended.pop_front() {
                Some((_, oldest)) => self.forget(oldest),
                None => return,
            }
        }
        self.processes.add(life.pid, tid);
        let lives = self.lives.entry(tid).or_default();
        if let Some(before) = lives.back() {
            life.begin_after(before);
        }
        lives.push_back(life);
        self.count += 1;
    }

    /// Forgets the tasks that ended too long ago.
    fn forget_ended(&mut self) {
        let limit = self.latest.saturating_add_nanos(-self.keep_ended);
        while let Some((_, tid)) = self.ended.front().copied().filter(|(time, _)| *time < limit) {
            self.ended.pop_front();
            self.forget(tid);
        }
    }

    /// Forgets the first life of a thread id.
    fn forget(&mut self, tid: u32) {
        if let Some(lives) = self.lives.get_mut(&tid) {
            if lives.pop_front().is_some() {
                self.count -= 1;
            }
            if lives.is_empty() {
                self.lives.remove(&tid);
            }
        }
    }

    /// The thread with this id at a time. For a time before its start that of its start is taken, so
    /// that records that come late find it. `None` if it is not known.
    pub fn at(&self, tid: u32, time: Timestamp) -> Option<Task<'_>> {
        let life = self.life_at(tid, time)?;
        let leader = if life.pid == tid { Some(life) } else { self.life_at(life.pid, time) };
        Some(Task { tid, at: time, life, leader: leader.unwrap_or(life) })
    }

    fn life_at(&self, tid: u32, time: Timestamp) -> Option<&Life> {
        let lives = self.lives.get(&tid)?;
        let started = lives.partition_point(|life| life.start() <= time);
        lives.get(started.saturating_sub(1))
    }

    /// The path of a cgroup by its id in samples (`SampleFlags::CGROUP`).
    pub fn cgroup(&self, id: u64) -> Option<&str> {
        self.cgroups.get(&id).map(AsRef::as_ref)
    }
}

impl Life {
    fn new(from: Option<Timestamp>, seen: Timestamp, pid: u32, parent: u32) -> Self {
        Self {
            from,
            until: None,
            seen,
            pid,
            parent,
            ns_pids: Arc::default(),
            cgroups: Changes::NONE,
            names: Changes::NONE,
            executables: Changes::NONE,
        }
    }

    /// The time since which a thread id means it. One whose start was lost began before it was seen, but
    /// after the end of the one before.
    fn start(&self) -> Timestamp {
        self.from.unwrap_or(self.seen)
    }

    /// Moves the start behind that of the life before, for records that are not in time order.
    fn begin_after(&mut self, before: &Self) {
        let start = before.start();
        self.seen = self.seen.max(start);
        self.from = self.from.map(|from| from.max(start));
    }

    /// Fills in what is not known yet.
    fn complete(&mut self, task: ProcTask, now: Timestamp) {
        self.parent = task.parent;
        self.ns_pids = task.ns_pids.into();
        if let (true, Some(path)) = (self.cgroups.is_empty(), task.cgroup) {
            self.cgroups.add(now, Arc::from(path));
        }
        if self.names.is_empty() {
            self.names.add(now, Arc::from(task.name));
        }
        if let (true, Some(path)) = (self.executables.is_empty(), task.executable) {
            let executable = Executable { path: Some(Arc::from(path)), build_id: None };
            self.executables.add(now, executable);
        }
    }
}
