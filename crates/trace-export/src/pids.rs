//! Process ids, also of processes whose own is not known: a Go trace does not record it.

use std::collections::{BTreeMap, BTreeSet};
use trace_timeline::{Entity, EntityId, EntityKind, Tables};

/// Above all process and thread ids of Linux.
pub(crate) const UNKNOWN: u32 = 6 << 20;

/// The process as the kernel's records have it, if its process id is not known: the one of the kernel
/// threads with the ids of its threads. Otherwise the process itself.
pub(crate) fn of_kernel(process: EntityId, tables: &Tables) -> EntityId {
    match known(process, tables) {
        Some(_) => process,
        None => of_threads(process, tables).unwrap_or(process),
    }
}

/// The process id; without one a number that no other process has.
pub(crate) fn pid(process: EntityId, tables: &Tables) -> u32 {
    let unknown = || {
        let index = u32::try_from(process.index()).unwrap_or(u32::MAX);
        UNKNOWN.saturating_add(1).saturating_add(index)
    };
    known(process, tables).unwrap_or_else(unknown)
}

fn known(process: EntityId, tables: &Tables) -> Option<u32> {
    of(tables.entities.get(process)?)
}

/// The thread id of a thread, or the process id of a process: those of Linux, and of the formats, are
/// positive numbers of 31 bits. `None` if it is not known.
pub(crate) fn of(entity: &Entity) -> Option<u32> {
    let number = i32::try_from(entity.number).ok()?;
    u32::try_from(number).ok().filter(|number| *number > 0)
}

/// The process that has at least two threads of the runtime, or its only one, if there is one such process id: the ids
/// of a program in a container are those of unrelated threads, too, and ids are used again.
pub(crate) fn of_threads(process: EntityId, tables: &Tables) -> Option<EntityId> {
    let all = || tables.entities.iter().map(|(_, entity)| entity);
    let of_runtime = all()
        .filter(|entity| entity.kind == EntityKind::GoThread && entity.parent == Some(process));
    let numbers: BTreeSet<i64> = of_runtime.map(|thread| thread.number).collect();
    let same = all()
        .filter(|entity| entity.kind == EntityKind::Thread && numbers.contains(&entity.number));
    let mut found: BTreeMap<EntityId, BTreeSet<i64>> = BTreeMap::new();
    for thread in same {
        if let Some(process) = thread.parent.filter(|id| known(*id, tables).is_some()) {
            found.entry(process).or_default().insert(thread.number);
        }
    }
    let enough = numbers.len().min(2);
    let mut agreeing = found.iter().filter(|(_, threads)| threads.len() >= enough);
    let (process, _) = agreeing.next()?;
    let pid = known(*process, tables);
    agreeing.all(|(other, _)| known(*other, tables) == pid).then_some(*process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_positive_and_have_31_bits() {
        let thread = |number| of(&Entity::new(EntityKind::Thread, number));
        assert_eq!((thread(1), thread(i32::MAX.into())), (Some(1), Some(i32::MAX as u32)));
        assert_eq!([thread(-1), thread(0), thread(1 << 31), thread((1 << 32) + 1)], [None; 4]);
    }
}
