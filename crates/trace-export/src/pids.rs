//! Process ids, also of processes whose own is not known: a Go trace does not record it.

use trace_timeline::{EntityId, EntityKind, Tables};

/// Above all process and thread ids of Linux.
pub(crate) const UNKNOWN: i32 = 6 << 20;

/// The process as the kernel's records have it, if its process id is not known: the one of a kernel thread
/// with the id of one of its threads. Otherwise the process itself.
pub(crate) fn of_kernel(process: EntityId, tables: &Tables) -> EntityId {
    match known(process, tables) {
        Some(_) => process,
        None => of_threads(process, tables).unwrap_or(process),
    }
}

/// The process id; without one a number that no other process has.
pub(crate) fn pid(process: EntityId, tables: &Tables) -> i32 {
    let unknown = || {
        let number = i32::try_from(process.index()).ok();
        number.and_then(|number| UNKNOWN.checked_add(number)?.checked_add(1)).unwrap_or(i32::MAX)
    };
    known(process, tables).unwrap_or_else(unknown)
}

fn known(process: EntityId, tables: &Tables) -> Option<i32> {
    let number = tables.entities.get(process)?.number;
    i32::try_from(number).ok().filter(|pid| *pid > 0)
}

fn of_threads(process: EntityId, tables: &Tables) -> Option<EntityId> {
    let all = || tables.entities.iter().map(|(_, entity)| entity);
    let of_runtime = all()
        .filter(|entity| entity.kind == EntityKind::GoThread && entity.parent == Some(process));
    let numbers: Vec<i64> = of_runtime.map(|thread| thread.number).collect();
    let thread = all().find(|entity| {
        entity.kind == EntityKind::Thread
            && entity.parent.is_some()
            && numbers.contains(&entity.number)
    })?;
    thread.parent.filter(|process| known(*process, tables).is_some())
}
