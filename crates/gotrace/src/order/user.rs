//! Annotations by the program: tasks and regions.

use super::state::{ActiveTask, UserRegion};
use super::{Advance, Context, Ordering, no_task};
use crate::error::{ErrorKind, Inconsistency};
use crate::id::TaskId;
use crate::spec::EventType;
use crate::table::Table;
use std::sync::Arc;

impl Ordering {
    /// Tasks need no beginning in the trace, may end more than once, and their identifiers may
    /// be used again; only a second beginning is wrong.
    pub(super) fn task_begin(&mut self, c: Context, table: &Table) -> Result<bool, Box<ErrorKind>> {
        let [id, parent, name, _] = self.output[0].args;
        if self.tasks.contains_key(&id) {
            return Err(Box::new(Inconsistency::Exists { what: "task", id: id as i64 }).into());
        }
        let parent = no_task(TaskId(parent));
        self.output[0].args[1] = parent.0;
        let name = self.name_of(table, name)?;
        c.needs_user_code()?;
        self.tasks.insert(id, ActiveTask { parent, name });
        Ok(true)
    }

    pub(super) fn task_end(&mut self, c: Context, table: &Table) -> Advance {
        c.needs_user_code()?;
        let task = self.tasks.remove(&self.output[0].args[0]);
        let args = &mut self.output[0].args;
        // The name may be one of an earlier generation.
        (args[2], args[3]) = match task {
            Some(task) => (task.parent.0, table.add_extra(task.name)),
            None => (TaskId::NONE.0, 0),
        };
        Ok(true)
    }

    /// Regions nest, within a goroutine. Those that began before the trace may end in it.
    pub(super) fn region(&mut self, c: Context, table: &Table) -> Result<bool, Box<ErrorKind>> {
        c.needs_user_code()?;
        let [task, name, ..] = self.output[0].args;
        let region = UserRegion { task: TaskId(task), name: self.name_of(table, name)? };
        let slot = self.current_goroutine(c)?;
        let regions = &mut self.goroutines.get_mut(slot).open().regions;
        if self.output[0].ty == EventType::USER_REGION_BEGIN {
            regions.push(region);
        } else {
            match regions.pop() {
                Some(innermost) if innermost != region => {
                    return Err(Box::new(Inconsistency::Region(c.g.0)).into());
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// A name that outlives the generation.
    fn name_of(&self, table: &Table, id: u64) -> Result<Arc<[u8]>, Box<ErrorKind>> {
        match table.strings.get(id) {
            Some(name) => Ok(Arc::clone(name)),
            None if id == 0 || self.lenient => Ok(Arc::default()),
            None => Err(Box::new(ErrorKind::UnknownId { what: "string", id })),
        }
    }
}
