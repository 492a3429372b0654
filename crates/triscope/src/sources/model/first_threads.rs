//! The first threads of a Go trace.

use trace_timeline::{EntityKind, Event, EventKind, Tables};

/// How far a Go trace is read at first, beside other traces: up to its second thread. It does not record its
/// process, which the ids of two of its threads show, or of its only one, and a timeline has the process in its
/// first event.
pub(super) struct FirstThreads {
    found: usize,
    /// The events in which threads were looked for.
    events: usize,
    are_known: bool,
}

impl FirstThreads {
    /// The events of a trace with one thread that are read.
    const MOST: usize = 1 << 16;

    pub(super) const fn new(are_known: bool) -> Self {
        Self { found: 0, events: 0, are_known }
    }

    /// Whether these first events are enough.
    pub(super) fn are_known(&mut self, events: &[Event], tables: &Tables) -> bool {
        if self.are_known {
            return true;
        }
        let is_thread = |event: &&Event| match event.kind {
            EventKind::Start { entity } => {
                tables.entities.kind(entity) == Some(EntityKind::GoThread)
            }
            _ => false,
        };
        let new = events.get(self.events..).unwrap_or_default();
        self.found += new.iter().filter(is_thread).count();
        self.events = events.len();
        self.are_known = self.found > 1 || self.events >= Self::MOST;
        self.are_known
    }
}
