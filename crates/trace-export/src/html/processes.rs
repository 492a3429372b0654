//! Which processes are one: the kernel and a runtime can describe the same one.

use crate::pids;
use hashbrown::HashMap;
use trace_timeline::{Entity, EntityId, EntityKind, Tables};

/// The processes of the kernel's records by their process ids, which are used again.
pub(super) struct Processes(HashMap<i64, Vec<EntityId>>);

impl Processes {
    pub(super) fn new(tables: &Tables) -> Self {
        let entities = &tables.entities;
        let threads = entities.iter().filter(|(_, entity)| entity.kind == EntityKind::Thread);
        let mut all: Vec<EntityId> = threads.filter_map(|(_, thread)| thread.parent).collect();
        all.sort_unstable();
        all.dedup();
        let mut by_number: HashMap<i64, Vec<EntityId>> = HashMap::new();
        for id in all {
            if let Some(process) = entities.get(id).filter(|process| process.number >= 0) {
                by_number.entry(process.number).or_default().push(id);
            }
        }
        Self(by_number)
    }

    /// The process of the kernel's records that a process is; itself if there is none.
    pub(super) fn of_kernel(&self, process: EntityId, tables: &Tables) -> EntityId {
        let entities = &tables.entities;
        let Some(entity) = entities.get(process) else { return process };
        let same = self.0.get(&entity.number).map_or(&[][..], Vec::as_slice);
        if same.contains(&process) || (same.is_empty() && entity.number >= 0) {
            return process;
        }
        let lives_too =
            |other: &EntityId| entities.get(*other).is_some_and(|other| !are_apart(entity, other));
        let mut living = same.iter().copied().filter(lives_too);
        if let (Some(only), None) = (living.next(), living.next()) {
            return only;
        }
        let is_it = |found: &EntityId| entity.number < 0 || same.contains(found);
        pids::of_threads(process, tables).filter(is_it).unwrap_or(process)
    }
}

/// Whether one of the processes has ended before the other one starts.
fn are_apart(one: &Entity, other: &Entity) -> bool {
    let ends_before = |one: &Entity, other: &Entity| {
        one.end.zip(other.start).is_some_and(|(end, start)| end <= start)
    };
    ends_before(one, other) || ends_before(other, one)
}
