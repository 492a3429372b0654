//! The events of the kernel of which samples are taken, of several recordings.

use hashbrown::HashMap;
use trace_timeline::{SampledEvent, SampledEventId, Tables, TextId};

/// Events with one name and unit are one event: whether samples of others were taken, too, is a property of the
/// recording.
#[derive(Debug, Default)]
pub(crate) struct SampledEvents(HashMap<(TextId, TextId), SampledEventId>);

impl SampledEvents {
    /// The first of those that are this event.
    pub(crate) fn first(&mut self, event: SampledEventId, tables: &Tables) -> SampledEventId {
        if event == SampledEventId::NONE {
            return event;
        }
        let SampledEvent { name, unit, .. } = tables.sampled_event(event);
        *self.0.entry((name, unit)).or_insert(event)
    }
}
