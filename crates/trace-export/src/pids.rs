//! Process ids, also of processes whose own is not known: a Go trace does not record it.

use std::collections::BTreeSet;
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

/// At least two threads of the runtime agree, or its only one: the ids of a program in a container are those
/// of unrelated threads, too.
pub(crate) fn of_threads(process: EntityId, tables: &Tables) -> Option<EntityId> {
    let all = || tables.entities.iter().map(|(_, entity)| entity);
    let of_runtime = all()
        .filter(|entity| entity.kind == EntityKind::GoThread && entity.parent == Some(process));
    let numbers: BTreeSet<i64> = of_runtime.map(|thread| thread.number).collect();
    let mut found = all()
        .filter(|entity| entity.kind == EntityKind::Thread && numbers.contains(&entity.number))
        .filter_map(|thread| {
            let process = thread.parent?;
            Some((thread.number, process, known(process, tables)?))
        });
    let (number, process, pid) = found.next()?;
    let agrees = match found.find(|(other, ..)| *other != number) {
        Some((.., other)) => other == pid,
        None => numbers.len() == 1,
    };
    agrees.then_some(process)
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
