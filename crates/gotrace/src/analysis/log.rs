//! Events of a part of a trace that are processed when the state before the part is known.

use crate::event::{Event, Record};
use crate::table::Table;
use std::sync::Arc;

/// Events, in order. Their number is limited: a part with more of them is read again.
#[derive(Debug, Default)]
pub(super) struct Log {
    events: Vec<(Record, u32)>,
    tables: Vec<Arc<Table>>,
    is_cut: bool,
}

impl Log {
    /// About 23 MB.
    const MAX: usize = 1 << 18;

    pub(super) fn keep(&mut self, event: Event<'_>) {
        if self.events.len() >= Self::MAX {
            self.is_cut = true;
            return;
        }
        if self.tables.last().is_none_or(|table| !Arc::ptr_eq(table, event.table)) {
            self.tables.push(Arc::clone(event.table));
        }
        self.events.push((*event.record, self.tables.len() as u32 - 1));
    }

    /// Whether all events are there.
    pub(super) const fn is_complete(&self) -> bool {
        !self.is_cut
    }

    /// The number of events.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.events.iter().filter_map(|(record, table)| {
            Some(Event { table: self.tables.get(*table as usize)?, record })
        })
    }
}
