//! Which process of the kernel the process of a runtime is.

use crate::entity::{Entities, EntityId};
use hashbrown::HashMap;

/// The processes of runtimes whose process id is not known, as that of a Go trace: the ids of their
/// threads say it.
///
/// All threads of a program are of one process. Those of a program in a container have the ids of its own
/// PID namespace, and threads of other processes have the same ones: then none is related.
#[derive(Debug, Default)]
pub(super) struct Processes(HashMap<EntityId, Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// One runtime thread has the id of a thread of the process with this id.
    Probably { pid: i64, by: EntityId },
    /// At least two have.
    Surely { pid: i64 },
    /// The ids of its threads are of several processes.
    Several,
}

impl Known {
    const fn pid(self) -> Option<i64> {
        match self {
            Self::Probably { pid, .. } | Self::Surely { pid } => Some(pid),
            Self::Several => None,
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
    /// Learns the process of a runtime thread from the kernel thread that has its id. Returns whether
    /// threads that were related before may not be any more: the process of a thread of the kernel can be
    /// known late.
    pub(super) fn learn(
        &mut self,
        runtime: EntityId,
        thread: EntityId,
        entities: &Entities,
    ) -> bool {
        let Some((process, None)) = process_of(runtime, entities) else { return false };
        let Some((_, Some(pid))) = process_of(thread, entities) else { return false };
        let before = self.0.get(&process).copied();
        let now = match before {
            None => Known::Probably { pid, by: runtime },
            Some(Known::Probably { pid: known, by }) if by != runtime => match known == pid {
                true => Known::Surely { pid },
                false => Known::Several,
            },
            // Another process can use the id of a thread that has ended.
            Some(known) => known,
        };
        self.0.insert(process, now);
        before != Some(now)
    }

    /// Whether a runtime thread and a kernel thread with the same number are of one process, as far as it
    /// is known.
    pub(super) fn relates(&self, runtime: EntityId, thread: EntityId, entities: &Entities) -> bool {
        let Some((process, number)) = process_of(runtime, entities) else { return true };
        let found = self.0.get(&process);
        if found == Some(&Known::Several) {
            return false;
        }
        let number = number.or_else(|| found?.pid());
        let pid = process_of(thread, entities).and_then(|(_, pid)| pid);
        number.zip(pid).is_none_or(|(number, pid)| number == pid)
    }

    /// The processes that were found, with their process ids.
    pub(super) fn found(&self) -> Vec<(EntityId, i64)> {
        let found = self.0.iter().filter_map(|(process, known)| Some((*process, known.pid()?)));
        let mut found: Vec<(EntityId, i64)> = found.collect();
        found.sort_unstable();
        found
    }

    /// The processes whose threads have ids of several processes.
    pub(super) fn unrelated(&self) -> Vec<EntityId> {
        let several = self.0.iter().filter(|(_, known)| **known == Known::Several);
        let mut several: Vec<EntityId> = several.map(|(process, _)| *process).collect();
        several.sort_unstable();
        several
    }
}
