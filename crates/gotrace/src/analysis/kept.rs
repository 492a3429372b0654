//! Events that are kept beyond their generation, without its tables.

use crate::event::{Event, Record};
use crate::spec::Plan;
use crate::table::{Frame, Span, Table};
use std::collections::HashMap;
use std::sync::Arc;
use trace_common::{SeededState, Timestamp};

/// An event that is passed on later.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) record: Record,
    /// What it refers to; `None` for [`Own`].
    pub(super) table: Option<Arc<Table>>,
}

/// A stack, of a generation or of [`Own`].
pub(super) type StackOf = (u64, Option<Arc<Table>>);

impl Kept {
    pub(super) fn of(event: Event<'_>) -> Self {
        Self { record: *event.record, table: Some(Arc::clone(event.table)) }
    }

    pub(super) fn generation(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.generation)
    }

    pub(super) fn is_of(&self, table: &Arc<Table>) -> bool {
        self.table.as_ref().is_some_and(|own| Arc::ptr_eq(own, table))
    }

    /// Passes it on; `own` is the table of events without one.
    pub(super) fn pass(
        mut self,
        at: Timestamp,
        own: Option<&Arc<Table>>,
        each: &mut dyn FnMut(Event<'_>),
    ) {
        self.record.time = at.nanos();
        if let Some(table) = self.table.as_ref().or(own) {
            each(Event { table, record: &self.record });
        }
    }
}

/// The strings and stacks of events that are kept beyond their generation.
#[derive(Debug)]
pub(super) struct Own {
    table: Table,
    strings: HashMap<Arc<[u8]>, u64, SeededState>,
    frames: HashMap<[u64; 4], u32, SeededState>,
    /// The stacks here of those of the tables that they come from, by serial number and identifier.
    stacks: HashMap<(u64, u64), u64, SeededState>,
    /// While the events get other places: the table that they refer to.
    before: Option<Table>,
    /// The size at which the strings and stacks of events that are not kept are removed.
    limit: usize,
}

/// A size up to which nothing is removed.
const MIN_LIMIT: usize = 1 << 12;

impl Default for Own {
    fn default() -> Self {
        Self {
            table: Table::new(0),
            strings: HashMap::default(),
            frames: HashMap::default(),
            stacks: HashMap::default(),
            before: None,
            limit: MIN_LIMIT,
        }
    }
}

impl Own {
    /// Begins to adopt the events of another generation.
    pub(super) fn begin(&mut self) {
        self.stacks = HashMap::default();
    }

    pub(super) fn len(&self) -> usize {
        self.table.strings.len() + self.table.stacks.len() + self.table.stack_frames.len()
    }

    /// Whether [`Own::renew`] is due.
    pub(super) fn is_large(&self) -> bool {
        self.len() > self.limit
    }

    /// Removes all. All events are to be adopted again, until [`Own::renewed`].
    pub(super) fn renew(&mut self) {
        let Self { table, .. } = std::mem::take(self);
        self.before = Some(table);
    }

    pub(super) fn renewed(&mut self) {
        self.before = None;
        self.limit = 2 * self.len() + MIN_LIMIT;
    }

    /// The table, for events that are passed on in this generation.
    pub(super) fn into_table(mut self, generation: u64) -> Arc<Table> {
        self.table.generation = generation;
        Arc::new(self.table)
    }

    /// Makes an event refer to this table.
    pub(super) fn adopt(&mut self, kept: &mut Kept) {
        let plan = kept.record.ty.plan();
        let table = kept.table.take();
        self.from(table, |own, table| {
            let mut change = |index: u8, number: fn(&mut Self, &Table, u64) -> u64| {
                let arg = kept.record.args.get_mut(usize::from(index));
                if let Some(arg) = arg.filter(|_| index != Plan::NONE) {
                    *arg = number(own, table, *arg);
                }
            };
            change(plan.stack, Self::stack);
            change(plan.other_stack, Self::stack);
            change(plan.string, Self::string);
            change(plan.other_string, Self::string);
        });
    }

    pub(super) fn adopt_stack(&mut self, (id, table): &mut StackOf) {
        let table = table.take();
        self.from(table, |own, table| *id = own.stack(table, *id));
    }

    /// Adopts from the table of a generation, or, while the events get other places, the one before.
    fn from(&mut self, table: Option<Arc<Table>>, adopt: impl FnOnce(&mut Self, &Table)) {
        if let Some(table) = table {
            adopt(self, &table);
        } else if let Some(before) = self.before.take() {
            adopt(self, &before);
            self.before = Some(before);
        }
    }

    fn string(&mut self, table: &Table, id: u64) -> u64 {
        let Some(string) = table.strings.get(id).filter(|string| !string.is_empty()) else {
            return 0;
        };
        let next = self.table.strings.len() as u64 + 1;
        let number = *self.strings.entry(Arc::clone(string)).or_insert(next);
        if number == next {
            self.table.strings.insert(next, Arc::clone(string));
        }
        number
    }

    fn stack(&mut self, table: &Table, id: u64) -> u64 {
        if id == 0 {
            return 0;
        }
        if let Some(known) = self.stacks.get(&(table.serial, id)) {
            return *known;
        }
        let start = self.table.stack_frames.len() as u32;
        for frame in table.stack(id).iter().filter_map(|at| table.frames.get(*at as usize)) {
            let [func, file] = [frame.func, frame.file].map(|name| self.string(table, name));
            let next = self.table.frames.len() as u32;
            let key = [frame.pc, func, file, frame.line];
            let index = *self.frames.entry(key).or_insert(next);
            if index == next {
                self.table.frames.push(Frame { func, file, ..*frame });
            }
            self.table.stack_frames.push(index);
        }
        let len = self.table.stack_frames.len() as u32 - start;
        let number = self.table.stacks.len() as u64 + 1;
        self.table.stacks.insert(number, Span { start, len });
        self.stacks.insert((table.serial, id), number);
        number
    }
}
