//! The first transitions of goroutines in a part of a trace, which depend on the events before it.

use super::step::{Step, stack_of};
use crate::event::Event;
use crate::id::{GoId, GoState};
use crate::table::Table;
use std::sync::Arc;
use trace_common::Timestamp;

/// The transitions of each goroutine up to the first after which the state before the part no
/// longer matters: the goroutine starts to run, or ends. They are processed when that state is
/// known.
#[derive(Debug, Default)]
pub(super) struct Heads {
    heads: Vec<Compact>,
    tables: Vec<Arc<Table>>,
    /// The goroutines that started to run.
    settled: Vec<GoId>,
    is_cut: bool,
}

#[derive(Debug)]
struct Compact {
    step: Step,
    time: Timestamp,
    stack: u64,
    table: u32,
    stacks: u32,
}

/// A transition that is processed later.
pub(super) struct Head<'a> {
    pub(super) step: Step,
    pub(super) time: Timestamp,
    pub(super) table: &'a Table,
    /// The stack of the event.
    pub(super) stack: u64,
    /// The number of distinct stacks in the part before it.
    pub(super) stacks: usize,
}

impl Heads {
    /// More transitions, of goroutines that never run, are not kept: the part is read again.
    const MAX: usize = 1 << 18;

    /// Whether all transitions are there.
    pub(super) const fn is_complete(&self) -> bool {
        !self.is_cut
    }

    /// Keeps a transition of a goroutine with an unknown state for later. `stacks` is the number of
    /// distinct stacks so far.
    #[cold]
    pub(super) fn keep(&mut self, event: Event<'_>, step: Step, stacks: usize) {
        if self.tables.last().is_none_or(|table| !Arc::ptr_eq(table, event.table)) {
            self.tables.push(Arc::clone(event.table));
        }
        if self.heads.len() >= Self::MAX {
            self.is_cut = true;
            return;
        }
        let (table, stacks) = (self.tables.len() as u32 - 1, stacks as u32);
        let (stack, time) = (stack_of(event), event.time());
        self.heads.push(Compact { step, time, stack, table, stacks });
        if step.to == GoState::Running {
            self.settled.push(step.id);
        }
    }

    /// The transitions, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Head<'_>> {
        self.heads.iter().filter_map(|head| {
            let Compact { step, time, stack, stacks, table } = *head;
            let table = self.tables.get(table as usize)?;
            Some(Head { step, time, table, stack, stacks: stacks as usize })
        })
    }

    /// Goroutines of which the state before the part was unknown, and that started to run.
    pub(super) fn settled(&self) -> &[GoId] {
        &self.settled
    }
}
