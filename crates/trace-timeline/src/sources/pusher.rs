//! Where sources put their events.

use crate::entity::{Entity, EntityId};
use crate::event::{Event, EventKind, SpanKind, State};
use crate::tables::{SpanId, Tables, TextId};
use trace_common::Timestamp;

/// Where a source puts the events of one moment.
pub(super) struct Pusher<'a> {
    pub(super) at: Timestamp,
    pub(super) tables: &'a mut Tables,
    pub(super) out: &'a mut Vec<Event>,
}

impl Pusher<'_> {
    pub(super) fn event(&mut self, kind: EventKind) {
        self.out.push(Event { at: self.at, kind });
    }

    /// Adds an entity.
    pub(super) fn start(&mut self, entity: Entity) -> Option<EntityId> {
        let entity = self.tables.entity(entity)?;
        self.event(EventKind::Start { entity });
        Some(entity)
    }

    pub(super) fn end(&mut self, entity: EntityId) {
        if let Some(ended) = self.tables.entities.get_mut(entity) {
            ended.end = Some(self.at);
        }
        self.event(EventKind::End { entity });
    }

    pub(super) fn state(&mut self, entity: EntityId, state: State, on: Option<EntityId>) {
        let reason = TextId::EMPTY;
        self.event(EventKind::State { entity, state, on, reason, stack: None });
    }

    pub(super) fn unknown(&mut self, entity: EntityId) {
        self.state(entity, State::Unknown, None);
    }

    pub(super) fn begin(
        &mut self,
        entity: EntityId,
        kind: SpanKind,
        name: &[u8],
        by: Option<EntityId>,
        of: Option<EntityId>,
    ) -> SpanId {
        let span = self.tables.new_span();
        let name = self.tables.text(name);
        self.event(EventKind::Begin { span, entity, kind, name, by, of });
        span
    }
}
