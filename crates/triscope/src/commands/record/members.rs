//! The threads of the command, and what is drawn of the others.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use trace_common::IdMap;
use trace_timeline::sources::kernel::{Record, Task, ThreadRef};

/// A thread of the command that has not left its last CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    pid: u32,
    /// Whether `PERF_RECORD_EXIT` was seen: it may still be preempted.
    is_exiting: bool,
}

/// Numbers of threads and processes of the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) threads: u64,
    pub(super) processes: u64,
}

/// The threads that are drawn by name: those of the command, or all.
#[derive(Debug, Default)]
pub(super) struct Members {
    with_others: bool,
    /// Those of the command, by thread id.
    threads: IdMap<Member>,
    /// The command, until its first record is read.
    starting: Option<u32>,
    /// Number of running threads, by process of the command.
    running: BTreeMap<u32, u32>,
    counts: Counts,
}

impl Members {
    pub(super) fn new(with_others: bool) -> Self {
        Self { with_others, ..Self::default() }
    }

    /// Whether all threads are drawn.
    pub(super) const fn are_all(&self) -> bool {
        self.with_others
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// The running processes of the command.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        self.running.keys().copied().collect()
    }

    /// Sets the process of the command, before its records are read.
    pub(super) fn follow(&mut self, pid: u32) {
        self.insert(pid, pid);
        self.starting = Some(pid);
    }

    /// A process of the command executes a program. A thread that does becomes the main thread, whose end was
    /// recorded.
    pub(super) fn exec(&mut self, pid: u32) {
        let main = self.threads.get(pid.into());
        let has_ended = main.is_none_or(|main| main.is_exiting);
        // The end of the thread with the former id can come first.
        let is_known = main.is_some() || self.running.contains_key(&pid);
        if has_ended && is_known {
            *self.running.entry(pid).or_default() += 1;
            *self.threads.insert(pid.into()) = Member { pid, is_exiting: false };
        }
    }

    /// Adds a running thread. Call this after forks are recorded.
    pub(super) fn insert(&mut self, pid: u32, tid: u32) {
        let known = self.threads.get(tid.into()).copied();
        match known {
            // The same thread: the command, or a fork that was found in /proc already.
            Some(known) if !known.is_exiting => self.leaves(known.pid),
            _ => {
                self.counts.threads += 1;
                self.counts.processes += u64::from(pid == tid);
            }
        }
        *self.threads.insert(tid.into()) = Member { pid, is_exiting: false };
        *self.running.entry(pid).or_default() += 1;
    }

    /// A thread has left its last CPU. The main thread stays if others run: one that executes a program has its
    /// id before that is known.
    pub(super) fn end(&mut self, tid: u32) {
        let is_exiting = self.threads.get(tid.into()).is_some_and(|member| member.is_exiting);
        if !(is_exiting && self.running.contains_key(&tid)) {
            self.remove(tid);
        }
    }

    fn remove(&mut self, tid: u32) {
        let ended = self.threads.remove(tid.into()).map(|member| *member);
        if let Some(member) = ended.filter(|member| !member.is_exiting) {
            self.leaves(member.pid);
        }
    }

    /// Whether a thread is drawn by name.
    #[inline]
    pub(super) fn is_named(&self, tid: u32) -> bool {
        self.with_others || self.threads.contains(tid.into())
    }

    fn is_thread_named(&self, thread: ThreadRef) -> bool {
        thread.tid().is_some_and(|tid| self.is_named(tid))
    }

    #[inline]
    fn shown<'a>(&self, task: Task<'a>) -> Task<'a> {
        if self.name(task.thread) == task.thread { task } else { Task::OTHER }
    }

    /// As [`Members::shown`], of a thread.
    #[inline]
    fn name(&self, thread: ThreadRef) -> ThreadRef {
        match thread {
            ThreadRef::Tid(tid) if tid == 0 || self.is_named(tid) => thread,
            _ => ThreadRef::Other,
        }
    }

    /// What is drawn of a record: threads outside the command have no names, and nothing else of them
    /// is drawn. Follows its forks and exits.
    #[inline]
    pub(super) fn select<'a>(&mut self, record: Record<'a>) -> Option<Record<'a>> {
        match record {
            Record::Switch { cpu, prev, prev_state, next } => {
                let (prev, next) = (self.shown(prev), self.shown(next));
                Some(Record::Switch { cpu, prev, prev_state, next })
            }
            Record::Runs { cpu, thread, prev } => Some(Record::Runs {
                cpu,
                thread: self.name(thread),
                prev: prev.map(|prev| self.name(prev)),
            }),
            Record::Waking { task, .. } if !self.is_thread_named(task.thread) => None,
            Record::Waking { cpu, by, flags, task, target_cpu, is_new, stack } => {
                let by = by.map(|by| self.name(by));
                Some(Record::Waking { cpu, by, flags, task, target_cpu, is_new, stack })
            }
            Record::Thread { pid, tid, parent, .. } => {
                self.fork(pid, tid, parent).then_some(record)
            }
            Record::Comm { tid, .. } => self.is_named(tid).then_some(record),
            Record::Exit { tid } => {
                self.exit(tid);
                self.is_named(tid).then_some(record)
            }
            _ => Some(record),
        }
    }

    /// Returns whether the new thread is drawn by name.
    fn fork(&mut self, pid: u32, tid: u32, parent: Option<(u32, u32)>) -> bool {
        let is_command = self.starting.take_if(|starting| *starting == tid).is_some();
        let is_member = |tid: u32| self.threads.contains(tid.into());
        if is_command || parent.is_some_and(|(pid, tid)| is_member(tid) || is_member(pid)) {
            self.insert(pid, tid);
            return true;
        }
        // The id of a thread whose end was not recorded.
        self.remove(tid);
        self.with_others
    }

    fn exit(&mut self, tid: u32) {
        let Some(member) = self.threads.get_mut(tid.into()) else { return };
        let was_running = !std::mem::replace(&mut member.is_exiting, true);
        let pid = member.pid;
        if was_running {
            self.leaves(pid);
        }
    }

    /// A thread of this process has ended.
    fn leaves(&mut self, pid: u32) {
        if let btree_map::Entry::Occupied(mut threads) = self.running.entry(pid) {
            *threads.get_mut() -= 1;
            if *threads.get() == 0 {
                threads.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn task(tid: u32) -> Task<'static> {
        Task::new(tid, b"x", 100)
    }

    const fn fork(parent: (u32, u32), (pid, tid): (u32, u32)) -> Record<'static> {
        Record::Thread { pid, tid, parent: Some(parent), comm: b"", is_new: true }
    }

    fn pids(members: &Members) -> Vec<u32> {
        members.processes().into_iter().collect()
    }

    #[test]
    fn threads_of_the_command_are_followed_by_their_parents() {
        let mut members = Members::new(false);
        members.follow(100);
        assert_eq!(pids(&members), [100]);
        // Of the recorder; of the command, by a thread and by a process; of another process.
        assert!(members.select(fork((7, 8), (100, 100))).is_some());
        assert!(members.select(fork((100, 100), (100, 101))).is_some());
        assert!(members.select(fork((100, 101), (102, 102))).is_some());
        assert!(members.select(fork((102, 999), (103, 103))).is_some());
        assert!(members.select(fork((7, 8), (104, 104))).is_none());
        assert_eq!(members.counts(), Counts { threads: 4, processes: 3 });
        assert_eq!(pids(&members), [100, 102, 103]);
        // The process continues with the other thread, and its child with its own.
        assert!(members.select(Record::Exit { tid: 100 }).is_some());
        assert!(members.select(Record::Exit { tid: 102 }).is_some());
        assert!(members.select(Record::Exit { tid: 104 }).is_none());
        assert_eq!(pids(&members), [100, 103]);
        assert!(members.is_named(102), "it has not left its CPU");
        members.end(102);
        members.end(101);
        assert!(!members.is_named(102) && pids(&members) == [103]);
        // Its id is used again, by the command and by another process.
        assert!(members.select(fork((103, 103), (102, 102))).is_some());
        assert_eq!(members.counts(), Counts { threads: 5, processes: 4 });
        assert!(members.select(fork((7, 8), (103, 103))).is_none());
        assert_eq!(pids(&members), [102]);
    }

    #[test]
    fn a_thread_that_executes_a_program_is_the_main_thread() {
        let mut members = Members::new(false);
        members.insert(5, 5);
        members.insert(5, 6);
        members.exec(5); // by the main thread
        members.select(Record::Exit { tid: 5 });
        members.end(5);
        assert!(members.is_named(5), "the other one can have its id");
        members.exec(5);
        members.end(6);
        assert!(members.is_named(5) && !members.is_named(6));
        assert_eq!((pids(&members), members.counts().threads), (vec![5], 2));
        // The same again, and the former thread ends first.
        members.insert(5, 7);
        members.select(Record::Exit { tid: 5 });
        members.end(5);
        members.end(7);
        members.exec(5);
        assert!(members.is_named(5) && !members.is_named(7));
        assert_eq!(pids(&members), [5]);
        members.select(Record::Exit { tid: 5 });
        assert_eq!(pids(&members), [0; 0]);
        members.exec(9);
        assert!(!members.is_named(9));
    }

    #[test]
    fn a_thread_that_was_found_in_proc_is_counted_once() {
        let mut members = Members::new(false);
        members.insert(5, 5);
        members.insert(5, 6);
        assert!(members.select(fork((5, 5), (5, 6))).is_some());
        assert_eq!(members.counts(), Counts { threads: 2, processes: 1 });
        for tid in [5, 6, 6] {
            members.select(Record::Exit { tid });
        }
        assert_eq!(pids(&members), [0; 0]);
    }

    #[test]
    fn others_have_no_names() {
        let mut members = Members::new(false);
        members.insert(5, 5);
        let switch = |prev, next| Record::Switch { cpu: 3, prev, prev_state: 1, next };
        let (member, other) = (ThreadRef::Tid(5), ThreadRef::Tid(9));
        let (idle, hidden) = (ThreadRef::Tid(0), ThreadRef::Other);
        let waking = |by, tid| Record::Waking {
            cpu: 3,
            by: Some(by),
            flags: None,
            task: task(tid),
            target_cpu: 0,
            is_new: false,
            stack: None,
        };
        assert_eq!(members.select(switch(task(9), task(5))), Some(switch(Task::OTHER, task(5))));
        assert_eq!(members.select(switch(task(0), task(9))), Some(switch(task(0), Task::OTHER)));
        assert_eq!(members.select(waking(other, 5)), Some(waking(hidden, 5)));
        assert_eq!(members.select(waking(idle, 5)), Some(waking(idle, 5)));
        assert_eq!(members.select(waking(member, 9)), None);
        let runs = |thread, prev| Record::Runs { cpu: 3, thread, prev };
        let to_member = members.select(runs(member, Some(other)));
        assert_eq!(to_member, Some(runs(member, Some(hidden))));
        assert_eq!(members.select(runs(other, Some(idle))), Some(runs(hidden, Some(idle))));
        assert_eq!(members.select(runs(other, None)), Some(runs(hidden, None)));
        assert_eq!(members.select(Record::Comm { tid: 9, comm: b"x", by_exec: true }), None);
        let lost = Record::Lost { cpu: 0, count: 1 };
        assert_eq!(members.select(lost), Some(lost));
        let mut all = Members::new(true);
        assert_eq!(all.select(waking(member, 9)), Some(waking(member, 9)));
        assert_eq!(all.select(switch(task(9), task(5))), Some(switch(task(9), task(5))));
    }
}
