//! Which process of the kernel the process of a runtime is.

use crate::entity::{Entities, EntityId};
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// The processes of runtimes. Of one whose process id is not known, as that of a Go trace, the ids of its threads
/// say it.
///
/// All threads of a program are of one process. Those of a program in a container have the ids of its own
/// PID namespace, as the process has, and threads of other processes have the same ones: then none is related.
#[derive(Debug, Default)]
pub(super) struct Processes {
    known: HashMap<EntityId, Known>,
    /// The id of their thread, or `None` if they have several.
    single: HashMap<EntityId, Option<i64>>,
    /// Their threads, each with its id.
    threads: HashMap<EntityId, BTreeSet<(i64, EntityId)>>,
}

/// Runtime threads by thread id, the latest of each last.
#[derive(Debug, Default)]
pub(super) struct RuntimeThreads(HashMap<i64, Vec<EntityId>>);

impl RuntimeThreads {
    /// Maximum number of threads with one id: those of the latest traces.
    const MAX: usize = 8;

    pub(super) fn add(&mut self, number: i64, runtime: EntityId) {
        let threads = self.0.entry(number).or_default();
        threads.retain(|known| *known != runtime);
        if threads.len() >= Self::MAX {
            threads.remove(0);
        }
        threads.push(runtime);
    }

    pub(super) fn of(&self, number: i64) -> &[EntityId] {
        self.0.get(&number).map_or(&[], Vec::as_slice)
    }

    /// A thread ends.
    pub(super) fn remove(&mut self, number: Option<i64>, runtime: EntityId) {
        let Some(number) = number else { return };
        let Some(threads) = self.0.get_mut(&number) else { return };
        threads.retain(|known| *known != runtime);
        if threads.is_empty() {
            self.0.remove(&number);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A thread of the process with this id has the id of a runtime thread, which may be a coincidence.
    Probably { pid: i64, tid: i64 },
    /// At least two have.
    Surely { pid: i64 },
    /// The ids of its threads are of several processes.
    Several,
    /// The trace has the process id. The first of its threads that is one of this process, and the first that is
    /// one of another process: another one can use the id of a thread that has ended.
    Recorded { own: Option<i64>, other: Option<i64> },
    /// As before, and at least two are of this process.
    Confirmed,
}

impl Known {
    const fn pid(self) -> Option<i64> {
        match self {
            Self::Probably { pid, .. } | Self::Surely { pid } => Some(pid),
            Self::Several | Self::Recorded { .. } | Self::Confirmed => None,
        }
    }

    /// What is known once a runtime thread of a process, which its trace may have the id of, has the id of a thread
    /// of the kernel's process `pid`.
    fn next(before: Option<Self>, recorded: Option<i64>, pid: i64, tid: i64) -> Self {
        let is_another = |known: Option<i64>| known.is_some_and(|known| known != tid);
        match (before, recorded) {
            (None, None) => Self::Probably { pid, tid },
            (None, Some(number)) if number == pid => Self::Recorded { own: Some(tid), other: None },
            (None, Some(_)) => Self::Recorded { own: None, other: Some(tid) },
            // Another trace of the process has the same thread.
            (Some(Self::Probably { pid: known, tid: of }), _) if of != tid => match known == pid {
                true => Self::Surely { pid },
                false => Self::Several,
            },
            (Some(Self::Recorded { own, other }), Some(number)) => match number == pid {
                true if is_another(own) => Self::Confirmed,
                true => Self::Recorded { own: Some(tid), other },
                false if is_another(other) => Self::Several,
                false => Self::Recorded { own, other: Some(tid) },
            },
            // Another process can use the id of a thread that has ended.
            (Some(known), _) => known,
        }
    }
}

/// The process of a thread, and its process id if that is known.
fn process_of(thread: EntityId, entities: &Entities) -> Option<(EntityId, Option<i64>)> {
    let process = entities.get(thread)?.parent?;
    let number = entities.get(process)?.number;
    Some((process, Some(number).filter(|number| *number >= 0)))
}

impl Processes {
    /// A runtime thread is mentioned.
    pub(super) fn add(&mut self, runtime: EntityId, entities: &Entities) {
        let Some((process, number)) = process_of(runtime, entities) else { return };
        let Some(tid) = entities.get(runtime).map(|runtime| runtime.number) else { return };
        self.threads.entry(process).or_default().insert((tid, runtime));
        if number.is_none() {
            let single = self.single.entry(process).or_insert(Some(tid));
            *single = single.filter(|single| *single == tid);
        }
    }

    /// A runtime thread ends.
    pub(super) fn remove(&mut self, runtime: EntityId, entities: &Entities) {
        let Some(thread) = entities.get(runtime) else { return };
        let Some(process) = thread.parent else { return };
        let Some(threads) = self.threads.get_mut(&process) else { return };
        threads.remove(&(thread.number, runtime));
        if threads.is_empty() {
            self.threads.remove(&process);
        }
    }

    /// The ids of the threads of a process, in order.
    pub(super) fn ids(&self, process: EntityId) -> Vec<i64> {
        let threads = self.threads.get(&process).into_iter().flatten();
        let mut ids: Vec<i64> = threads.map(|(tid, _)| *tid).collect();
        ids.dedup();
        ids
    }

    /// Learns the process of a runtime thread from the kernel thread that has its id. Returns whether
    /// other threads of it that were related before may not be any more, or the other way round: the process of a
    /// thread of the kernel can be known late.
    pub(super) fn learn(
        &mut self,
        runtime: EntityId,
        thread: EntityId,
        entities: &Entities,
    ) -> bool {
        let Some((process, number)) = process_of(runtime, entities) else { return false };
        let Some((_, Some(pid))) = process_of(thread, entities) else { return false };
        let Some(tid) = entities.get(runtime).map(|runtime| runtime.number) else { return false };
        let before = self.known.get(&process).copied();
        let now = Known::next(before, number, pid, tid);
        if before == Some(now) {
            return false;
        }
        self.known.insert(process, now);
        // A process id that the trace has relates each thread by itself.
        !matches!(now, Known::Recorded { .. } | Known::Confirmed)
    }

    /// Whether a runtime thread and a kernel thread with the same number are of one process, as far as it
    /// is known.
    pub(super) fn relates(&self, runtime: EntityId, thread: EntityId, entities: &Entities) -> bool {
        let Some((process, number)) = process_of(runtime, entities) else { return true };
        let found = self.known.get(&process);
        if found == Some(&Known::Several) {
            return false;
        }
        let number = number.or_else(|| found?.pid());
        let pid = process_of(thread, entities).and_then(|(_, pid)| pid);
        number.zip(pid).is_none_or(|(number, pid)| number == pid)
    }

    /// The one of these runtime threads that a kernel thread is: the latest that can be. One that executes, and is
    /// surely of its process, stays if that is a coincidence.
    pub(super) fn one_of(
        &self,
        runtimes: &[EntityId],
        thread: EntityId,
        entities: &Entities,
        is_executing: impl Fn(EntityId) -> bool,
    ) -> Option<EntityId> {
        let related = runtimes.iter().copied().filter(|id| self.relates(*id, thread, entities));
        let mut related = related.rev();
        let latest = related.next()?;
        if self.is_sure(latest, entities) {
            return Some(latest);
        }
        let stays = related.find(|id| self.is_sure(*id, entities) && is_executing(*id));
        Some(stays.unwrap_or(latest))
    }

    /// Whether the process of a runtime thread is known by more than the id of one thread.
    fn is_sure(&self, runtime: EntityId, entities: &Entities) -> bool {
        process_of(runtime, entities).is_some_and(|(process, number)| {
            number.is_some() || matches!(self.known.get(&process), Some(Known::Surely { .. }))
        })
    }

    /// The processes that were found, with their process ids. One thread is enough if there are no others.
    pub(super) fn found(&self) -> Vec<(EntityId, u32)> {
        let is_single = |process| self.single.get(process).is_some_and(Option::is_some);
        let found = self.known.iter().filter(|(process, known)| match known {
            Known::Probably { .. } => is_single(*process),
            _ => true,
        });
        let found = found.filter_map(|(process, known)| {
            let pid = u32::try_from(known.pid()?).ok()?;
            Some((*process, pid))
        });
        let mut found: Vec<(EntityId, u32)> = found.collect();
        found.sort_unstable();
        found
    }

    /// The processes whose threads have ids of several processes.
    pub(super) fn unrelated(&self) -> Vec<EntityId> {
        let several = self.known.iter().filter(|(_, known)| **known == Known::Several);
        let mut several: Vec<EntityId> = several.map(|(process, _)| *process).collect();
        several.sort_unstable();
        several
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{Entity, EntityKind};
    use crate::tables::Tables;

    /// A trace of a machine has many processes. Each one looks at its own threads, and only where these may not be
    /// related any more: the ids of some are those of a container.
    #[test]
    fn a_recorded_process_looks_at_its_threads_once() {
        const PROCESSES: i64 = 100;
        let (mut tables, mut processes) = (Tables::new(), Processes::default());
        let mut looked_at = 0;
        for pid in 1..=PROCESSES {
            let is_container = pid % 2 == 0;
            let process = tables.entity(Entity::new(EntityKind::Process, pid)).unwrap();
            let of_kernel = if is_container { PROCESSES + pid } else { pid };
            let of_kernel = tables.entity(Entity::new(EntityKind::Process, of_kernel)).unwrap();
            for tid in 4 * pid..4 * pid + 3 {
                let runtime = Entity::new(EntityKind::DotnetThread, tid).child_of(process);
                let runtime = tables.entity(runtime).unwrap();
                let thread = Entity::new(EntityKind::Thread, tid).child_of(of_kernel);
                let thread = tables.entity(thread).unwrap();
                processes.add(runtime, &tables.entities);
                if processes.learn(runtime, thread, &tables.entities) {
                    looked_at += processes.ids(process).len();
                }
            }
        }
        assert_eq!(processes.unrelated().len() as i64, PROCESSES / 2);
        // The second thread of a container shows that it is one.
        assert_eq!(looked_at as i64, 2 * PROCESSES / 2);
    }
}
