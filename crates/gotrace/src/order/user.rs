//! Annotations by the program: tasks and regions.

use super::state::{ActiveTask, UserRegion};
use super::{Advance, Blocked, Context, Ordering, no_task};
use crate::error::{ErrorKind, Inconsistency};
use crate::event::Record;
use crate::frontier::RawEvent;
use crate::id::TaskId;
use crate::spec::EventType;
use crate::table::Table;
use std::sync::Arc;

impl Ordering {
    /// Tasks need no begin in the trace, may end more than once, and their identifiers may be
    /// reused. Only a second begin is an error.
    pub(super) fn task_begin(&mut self, c: Context, event: &mut Record, table: &Table) -> Advance {
        let [id, parent, name, _] = event.args;
        if self.tasks.contains_key(&id) {
            return Err(Inconsistency::Exists { what: "task", id: id as i64 }.into());
        }
        let parent = no_task(TaskId(parent));
        event.args[1] = parent.0;
        let name = Self::name(table, name)?.cloned().unwrap_or_default();
        c.needs_user_code()?;
        self.tasks.insert(id, ActiveTask { parent, name });
        Ok(())
    }

    pub(super) fn task_end(&mut self, c: Context, event: &mut Record, table: &Table) -> Advance {
        c.needs_user_code()?;
        let task = self.tasks.remove(&event.args[0]);
        let args = &mut event.args;
        // The name may come from an earlier generation.
        (args[2], args[3]) = match task {
            Some(task) => (task.parent.0, table.add_extra(task.name)),
            None => (TaskId::NONE.0, 0),
        };
        Ok(())
    }

    /// Regions nest within a goroutine. Those that began before the trace may end in it.
    pub(super) fn region(&mut self, c: Context, raw: &RawEvent, table: &Table) -> Advance {
        c.needs_user_code()?;
        let [task, name, ..] = raw.args();
        let (task, name) = (TaskId(task), Self::name(table, name)?);
        let regions = &mut self.current_goroutine(c)?.open().regions;
        if raw.ty == EventType::USER_REGION_BEGIN {
            regions.push(UserRegion { task, name: name.cloned().unwrap_or_default() });
        } else if let Some(innermost) = regions.pop() {
            let name = name.map_or(&[][..], |name| name);
            if (innermost.task, &innermost.name[..]) != (task, name) {
                return Err(Inconsistency::Region(c.g.0).into());
            }
        }
        Ok(())
    }

    /// Returns the name `id`; none for the empty one.
    fn name(table: &Table, id: u64) -> Result<Option<&Arc<[u8]>>, Blocked> {
        match table.strings.get(id) {
            None if id != 0 => Err(ErrorKind::UnknownId { what: "string", id }.into()),
            name => Ok(name),
        }
    }
}
