//! Annotations by the program: tasks and regions.

use super::state::{ActiveTask, Goroutine, Name, UserRegion};
use super::{Advance, Blocked, Context, Ordering, no_task};
use crate::error::{ErrorKind, Inconsistency};
use crate::event::Record;
use crate::frontier::RawEvent;
use crate::id::TaskId;
use crate::spec::EventType;
use crate::table::Table;

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
        let regions = &mut self.current_goroutine(c)?.open().regions;
        if raw.ty == EventType::USER_REGION_BEGIN {
            regions.push(UserRegion { task, name });
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
        for id in self.goroutines.ids().collect::<Vec<_>>() {
            let goroutine = self.goroutines.get_mut(id);
            let regions = goroutine.map(Goroutine::regions_mut).unwrap_or_default();
            regions.iter_mut().for_each(|region| region.name.keep(table));
        }
        self.tasks.values_mut().for_each(|task| task.name.keep(table));
    }
}
