//! The threads of the command and of other processes.

use crate::run::procfs;
use std::collections::{BTreeSet, HashMap};
use std::io;
use trace_export::{Sink, Task, Timestamp, Track, TrackId};

/// The name of a thread, as stored by the kernel.
pub(super) type Comm = [u8; 16];

pub(super) fn text(comm: &Comm) -> &[u8] {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    comm.get(..end).unwrap_or_default()
}

pub(super) fn comm(bytes: &[u8]) -> Comm {
    let mut comm = [0; 16];
    for (to, from) in comm.iter_mut().zip(bytes) {
        *to = *from;
    }
    comm
}

struct Thread {
    pid: u32,
    tid: u32,
    comm: Comm,
    /// Whether it belongs to the command.
    is_ours: bool,
    exit: Option<Timestamp>,
}

/// The threads drawn by name: those of the command, or all.
pub(super) struct Tasks {
    with_others: bool,
    /// By thread id.
    threads: HashMap<u32, Thread>,
    /// Threads whose ids were reused.
    former: Vec<Thread>,
    /// CPUs on which other threads are drawn without their names.
    others_on: BTreeSet<u32>,
    /// The command, until its first record is read.
    starting: Option<u32>,
}

/// Number of threads and processes of the command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) threads: usize,
    pub(super) processes: usize,
}

/// All other threads on CPU 0 are drawn as the thread with this id, those of CPU 1 as the next one,
/// and so on. No thread has these ids: the first one is the kernel's limit for process ids
/// (`PID_MAX_LIMIT`).
const OTHERS: u32 = 4 << 20;

impl Tasks {
    pub(super) fn new(with_others: bool) -> Self {
        Self {
            with_others,
            threads: HashMap::new(),
            former: Vec::new(),
            others_on: BTreeSet::new(),
            starting: None,
        }
    }

    /// Adds every existing thread, if all are drawn. Call this after forks are recorded, so that
    /// none is missed in between.
    pub(super) fn scan(&mut self) {
        if !self.with_others {
            return;
        }
        for pid in procfs::processes() {
            for thread in threads(pid, false) {
                self.threads.entry(thread.tid).or_insert(thread);
            }
        }
    }

    /// Sets the running process to record. Call this after forks are recorded.
    pub(super) fn follow_running(&mut self, pid: u32) {
        for thread in threads(pid, true) {
            self.insert(thread);
        }
    }

    /// Sets the process of the command.
    pub(super) fn follow(&mut self, pid: u32) {
        let thread = Thread { pid, tid: pid, comm: comm(b""), is_ours: true, exit: None };
        self.insert(thread);
        self.starting = Some(pid);
    }

    pub(super) fn fork(&mut self, parent: u32, parent_thread: u32, pid: u32, tid: u32) {
        let maker = self.threads.get(&parent_thread).or_else(|| self.threads.get(&parent));
        // A thread inherits its name until another one is set.
        let comm = maker.map_or([0; 16], |thread| thread.comm);
        let is_command = self.starting == Some(tid);
        if is_command {
            self.starting = None;
        }
        let is_ours = is_command || maker.is_some_and(|thread| thread.is_ours);
        if is_ours || self.with_others {
            self.insert(Thread { pid, tid, comm, is_ours, exit: None });
        } else if let Some(former) = self.threads.remove(&tid) {
            self.former.push(former);
        }
    }

    pub(super) fn rename(&mut self, tid: u32, comm: Comm) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.comm = comm;
        }
    }

    /// The current name of a thread.
    pub(super) fn comm(&self, tid: u32) -> Comm {
        self.threads.get(&tid).map_or([0; 16], |thread| thread.comm)
    }

    pub(super) fn has_ended(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.exit.is_some())
    }

    pub(super) fn exit(&mut self, tid: u32, at: Timestamp) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.exit = Some(at);
        }
    }

    fn insert(&mut self, thread: Thread) {
        let before = self.threads.insert(thread.tid, thread);
        // If it has not ended it is the same thread: the command, or a fork that was scanned
        // already.
        self.former.extend(before.filter(|thread| thread.exit.is_some()));
    }

    fn is_ours(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.is_ours)
    }

    /// Whether a thread is drawn by name.
    pub(super) fn is_named(&self, tid: i32) -> bool {
        self.with_others || u32::try_from(tid).is_ok_and(|tid| self.is_ours(tid))
    }

    /// How a thread is drawn on a CPU: as itself, as the idle thread, or as another thread.
    pub(super) fn drawn<'a>(&mut self, task: Task<'a>, cpu: u32) -> Task<'a> {
        if task.tid == 0 || self.is_named(task.tid) {
            return task;
        }
        self.others_on.insert(cpu);
        Task::new(id(OTHERS.saturating_add(cpu)), b"other", 120)
    }

    /// Declares the tracks, and returns the ends of the command's threads.
    ///
    /// Called at the end of the recording: a track has only one name, which is the last name of its
    /// thread.
    pub(super) fn declare(
        self,
        is_idle_known: bool,
        sink: &mut impl Sink,
    ) -> io::Result<(Counts, Vec<(Timestamp, TrackId)>)> {
        let mut all: Vec<Thread> = self.threads.into_values().chain(self.former).collect();
        all.sort_by_key(|t| (!t.is_ours, t.pid, t.pid != t.tid, t.tid, t.exit.is_none(), t.exit));
        let mut counts = Counts::default();
        let mut exits = Vec::new();
        for thread in &all {
            let (pid, tid) = (id(thread.pid), id(thread.tid));
            if pid == tid {
                sink.track(&Track::process(pid, text(&thread.comm)).ordered())?;
                counts.processes += usize::from(thread.is_ours);
            }
            let track = sink.track(&Track::thread(pid, tid, text(&thread.comm)))?;
            if thread.is_ours {
                counts.threads += 1;
                exits.extend(thread.exit.map(|at| (at, track)));
            }
        }
        if !self.others_on.is_empty() {
            let name = if is_idle_known { "other tasks" } else { "other tasks, or idle" };
            sink.track(&Track::process(id(OTHERS), name.as_bytes()))?;
        }
        for cpu in self.others_on {
            let name = format!("others on CPU {cpu}");
            let tid = id(OTHERS.saturating_add(cpu));
            sink.track(&Track::thread(id(OTHERS), tid, name.as_bytes()))?;
        }
        exits.sort_by_key(|(at, _)| *at);
        Ok((counts, exits))
    }
}

/// The current threads of a process.
fn threads(pid: u32, is_ours: bool) -> impl Iterator<Item = Thread> {
    procfs::threads_of(pid).into_iter().flatten().map(move |tid| {
        let comm = comm(&procfs::comm(pid, tid));
        Thread { pid, tid, comm, is_ours, exit: None }
    })
}

fn id(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_export::{ClockDomain, PerfettoSink};

    fn at(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    fn task(tid: i32) -> Task<'static> {
        Task::new(tid, b"x", 120)
    }

    #[test]
    fn what_the_command_starts_is_its_own() {
        let mut tasks = Tasks::new(false);
        tasks.follow(10);
        tasks.fork(1, 1, 10, 10); // the first record of the command, read after `follow`
        tasks.fork(10, 10, 11, 11);
        tasks.fork(11, 11, 11, 12); // a thread of a child
        tasks.exit(10, at(5)); // a daemon: its parent is gone
        tasks.fork(11, 12, 13, 13);
        tasks.fork(1, 1, 20, 20);
        for (tid, named) in [(10, true), (11, true), (12, true), (13, true), (20, false)] {
            assert_eq!(tasks.is_named(tid), named, "{tid}");
        }
        let (counts, exits) = tasks
            .declare(true, &mut PerfettoSink::new(Vec::new(), ClockDomain::Monotonic))
            .unwrap();
        assert_eq!((counts.threads, counts.processes, exits.len()), (4, 3, 1));
    }

    #[test]
    fn a_number_that_is_given_again_is_another_thread() {
        let mut tasks = Tasks::new(false);
        tasks.follow(10);
        tasks.fork(10, 10, 11, 11);
        tasks.exit(11, at(1));
        assert!(tasks.is_named(11), "it is switched away from after its end");
        tasks.fork(1, 1, 11, 11);
        assert!(!tasks.is_named(11), "somebody else's");
        tasks.fork(10, 10, 11, 11);
        assert!(tasks.is_named(11));
        let (counts, exits) = tasks
            .declare(true, &mut PerfettoSink::new(Vec::new(), ClockDomain::Monotonic))
            .unwrap();
        assert_eq!((counts.threads, exits.len()), (3, 1));
    }

    #[test]
    fn others_are_one_task_of_each_cpu() {
        let mut tasks = Tasks::new(false);
        tasks.follow(10);
        assert_eq!(tasks.drawn(task(10), 1).tid, 10);
        assert_eq!(tasks.drawn(task(0), 1).tid, 0);
        assert_eq!(tasks.drawn(task(77), 1).tid, tasks.drawn(task(78), 1).tid);
        assert_ne!(tasks.drawn(task(77), 0).tid, tasks.drawn(task(77), 1).tid);
        assert_eq!(tasks.drawn(task(77), u32::MAX - 1).comm, b"other");
        assert_eq!(Tasks::new(true).drawn(task(77), 1).tid, 77);
    }
}
