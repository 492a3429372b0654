//! Since when states hold that a trace mentions as they are.

use crate::event::{Event, EventKind};
use trace_common::Timestamp;

/// The start of the generation: the last sync event, or the first event; of those after the last loss.
///
/// A state that a trace mentions for the first time, without a transition to it, holds since then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Generation(Option<Timestamp>);

impl Generation {
    #[inline]
    pub(super) fn push(&mut self, event: Event<'_>) {
        if event.kind() == EventKind::Sync {
            self.0 = Some(event.time());
        }
        self.begin(event);
    }

    /// An event of a part of a trace, whose sync events are processed when it is joined.
    pub(super) fn begin(&mut self, event: Event<'_>) {
        self.0.get_or_insert(event.time());
    }

    /// A part of the trace is missing here.
    pub(super) fn loss(&mut self) {
        self.0 = None;
    }

    /// The start, of the generation with this event if none was seen.
    #[inline]
    pub(super) fn start(self, event: Event<'_>) -> Timestamp {
        self.0.unwrap_or(event.time())
    }

    /// Adds the first event of the part that follows.
    pub(super) fn join(&mut self, part: Self) {
        self.0 = self.0.or(part.0);
    }
}
