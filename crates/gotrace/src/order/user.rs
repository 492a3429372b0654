//! Annotations by the program: tasks and regions.

use super::state::{ActiveTask, Goroutine, Name, UserRegion};
use super::{Advance, Blocked, Context, Ordering, no_task};
use crate::error::{ErrorKind, Inconsistency};
use crate::event::Record;
use crate::frontier::RawEvent;
use crate::id::TaskId;
use crate::spec::EventType;
use crate::table::Table;
use std::collections::HashMap;
use trace_common::{IdMap, SeededState};

impl Ordering {
    /// Tasks need no begin in the trace, may end more than once, and their identifiers may be
    /// reused. Only a second begin is an error.
    pub(super) fn task_begin(&mut self, c: Context, event: &mut Record, table: &Table) -> Advance {
        let [id, parent, name, _] = event.args;
        if self.tasks.contains_key(&id) {
            return Err(Inconsistency::Exists { what: "task", id: id as i64 }.into());
        }
        let parent = no_task(TaskId(parent));
        event.set_begun_parent(parent);
        let name = Self::name(table, name)?;
        c.needs_user_code()?;
        self.assume_task(id, true);
        self.named.add_task(id, &self.tasks);
        self.tasks.insert(id, ActiveTask { parent, name });
        Ok(())
    }

    pub(super) fn task_end(&mut self, c: Context, event: &mut Record, table: &Table) -> Advance {
        c.needs_user_code()?;
        let id = event.task().0;
        let (parent, ty) = match self.tasks.remove(&id) {
            Some(ActiveTask { parent, name: Name::Current(id) }) => (parent, table.own(id)),
            Some(ActiveTask { parent, name: Name::Kept(name) }) => (parent, table.add(name)),
            None => {
                self.assume_task(id, false);
                (TaskId::NONE, 0)
            }
        };
        event.set_ended_task(parent, ty);
        Ok(())
    }

    /// Regions nest within a goroutine. Those that began before the trace may end in it.
    pub(super) fn region(&mut self, c: Context, raw: &RawEvent, table: &Table) -> Advance {
        c.needs_user_code()?;
        let [task, id, ..] = raw.args();
        let (task, name) = (TaskId(task), Self::name(table, id)?);
        let open = self.current_goroutine(c)?.open();
        let regions = &mut open.regions;
        if raw.ty == EventType::USER_REGION_BEGIN {
            regions.push(UserRegion { task, name });
            if !std::mem::replace(&mut open.is_named, true) {
                self.named.add_goroutine(c.g.0, &self.goroutines);
            }
        } else if let Some(innermost) = regions.pop() {
            if innermost.task != task || !innermost.name.is(id, table) {
                return Err(Inconsistency::Region(c.g.0).into());
            }
        } else {
            self.assume_region(c.g, task, table.strings.get(id));
        }
        Ok(())
    }

    /// Returns the name `id`; 0 is the empty one.
    #[inline]
    fn name(table: &Table, id: u64) -> Result<Name, Blocked> {
        if table.has_string(id) {
            Ok(Name::Current(id))
        } else {
            Err(ErrorKind::UnknownId { what: "string", id }.into())
        }
    }

    /// Ends the generation of `table`: keeps the names of what is open.
    pub(crate) fn end_generation(&mut self, table: &Table) {
        for id in self.named.take_goroutines() {
            let open = self.goroutines.get_mut(id).map(Goroutine::open);
            let regions = open.map(|open| {
                open.is_named = false;
                open.regions.as_mut_slice()
            });
            // Those that began in earlier generations are around them.
            for region in regions.unwrap_or_default().iter_mut().rev() {
                if !region.name.keep(table) {
                    break;
                }
            }
        }
        for id in self.named.take_tasks() {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.name.keep(table);
            }
        }
    }
}

/// The goroutines and tasks with a [`Name::Current`], and others that ended.
#[derive(Debug, Default)]
pub(super) struct Named {
    goroutines: Vec<i64>,
    tasks: Vec<u64>,
}

impl Named {
    /// A goroutine, one of `live`, has a region with a name of this generation.
    #[cold]
    pub(super) fn add_goroutine(&mut self, id: i64, live: &IdMap<Goroutine>) {
        add(&mut self.goroutines, id, live.len(), |id| live.contains(*id));
    }

    fn add_task(&mut self, id: u64, open: &HashMap<u64, ActiveTask, SeededState>) {
        add(&mut self.tasks, id, open.len(), |id| open.contains_key(id));
    }

    fn take_goroutines(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.goroutines)
    }

    fn take_tasks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.tasks)
    }
}

/// Adds to a list. Removes what is not live from it before it is much longer than that.
fn add<T: Ord>(list: &mut Vec<T>, value: T, live: usize, is_live: impl Fn(&T) -> bool) {
    if list.len() >= 2 * live + MIN_NAMED {
        list.sort_unstable();
        list.dedup();
        list.retain(is_live);
    }
    list.push(value);
}

/// A length up to which lists are not shortened.
const MIN_NAMED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_at_most_twice_what_is_live() {
        let mut list = Vec::new();
        for value in 0..100_000_u64 {
            add(&mut list, value % 1000, 10, |value| *value < 10);
            assert!(list.len() <= 2 * 10 + MIN_NAMED);
        }
        let rest: std::collections::BTreeSet<u64> = list.into_iter().collect();
        assert!((0..10).all(|live| rest.contains(&live)));
    }
}
