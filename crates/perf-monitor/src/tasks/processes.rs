//! The threads of each process that have not ended.

use std::collections::{BTreeSet, HashMap};

/// The running threads by process, and whether the main thread ended before them.
#[derive(Debug, Default)]
pub(super) struct Processes(HashMap<u32, Process>);

/// A process with at least one running thread.
#[derive(Debug, Default)]
struct Process {
    threads: BTreeSet<u32>,
    leader_has_ended: bool,
}

impl Processes {
    /// Adds a running thread.
    pub(super) fn add(&mut self, pid: u32, tid: u32) {
        self.0.entry(pid).or_default().threads.insert(tid);
    }

    /// Ends a thread. Returns the threads that nothing needs any more: not a main thread before the
    /// last one has ended, because it has the executable of the process.
    pub(super) fn end(&mut self, pid: u32, tid: u32) -> [Option<u32>; 2] {
        let Some(process) = self.0.get_mut(&pid) else { return [Some(tid), None] };
        process.threads.remove(&tid);
        if process.threads.is_empty() {
            let leader = process.leader_has_ended.then_some(pid);
            self.0.remove(&pid);
            return [Some(tid), leader];
        }
        if tid == pid {
            process.leader_has_ended = true;
            return [None, None];
        }
        [Some(tid), None]
    }

    /// The running threads of a process.
    pub(super) fn threads(&self, pid: u32) -> impl Iterator<Item = u32> + '_ {
        self.0.get(&pid).into_iter().flat_map(|process| process.threads.iter().copied())
    }

    /// The running threads of all processes.
    pub(super) fn all_threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.values().flat_map(|process| process.threads.iter().copied())
    }

    /// Whether the main thread of a process ended before others, which still run.
    pub(super) fn has_ended_leader(&self, pid: u32) -> bool {
        self.0.get(&pid).is_some_and(|process| process.leader_has_ended)
    }

    /// Lets go of a main thread that ended before others. Returns whether there was one.
    pub(super) fn release_leader(&mut self, pid: u32) -> bool {
        self.0.get_mut(&pid).is_some_and(|process| std::mem::take(&mut process.leader_has_ended))
    }
}

#[cfg(test)]
impl Processes {
    /// Number of running threads, and of main threads that ended before others.
    pub(super) fn counts(&self) -> (usize, usize) {
        let threads = self.0.values().map(|process| process.threads.len()).sum();
        (threads, self.0.values().filter(|process| process.leader_has_ended).count())
    }
}
