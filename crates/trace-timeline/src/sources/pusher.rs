//! Where sources put their events.

use crate::entity::{Entity, EntityId, EntityKind, UNKNOWN_PROCESS};
use crate::event::{Context, Event, EventKind, FlowKind, InstantKind, SpanKind, State, Value};
use crate::tables::{SpanId, StackId, Tables, TextId};
use trace_common::Timestamp;

/// Where a source puts the events of one moment.
pub(super) struct Pusher<'a> {
    pub(super) at: Timestamp,
    pub(super) tables: &'a mut Tables,
    pub(super) out: &'a mut Vec<Event>,
}

impl Pusher<'_> {
    // Inline: an event that is copied right after it was made costs more than the rest of a source.
    #[inline(always)]
    pub(super) fn event(&mut self, kind: EventKind) {
        self.out.push(Event { time: self.at, kind });
    }

    /// Adds an entity.
    pub(super) fn start(&mut self, entity: Entity) -> Option<EntityId> {
        let entity = self.tables.entity(entity)?;
        self.event(EventKind::Start { entity });
        Some(entity)
    }

    /// The entity that an earlier trace of its process left, or another one. The second result is whether it is
    /// that of the earlier trace.
    #[cfg(any(feature = "dotnet", feature = "go"))]
    pub(super) fn start_or_continue(&mut self, entity: Entity) -> (Option<EntityId>, bool) {
        match self.tables.take_left(&entity, self.at) {
            Some(known) => (Some(known), true),
            None => (self.start(entity), false),
        }
    }

    /// The process with this process id, which another source may have found, too. Without a name
    /// it gets this one. A process whose id is not
    /// known is shared with no other source.
    pub(super) fn process(&mut self, pid: Option<u32>, name: &[u8]) -> Option<EntityId> {
        let name = self.tables.text(name);
        let number = pid.map_or(UNKNOWN_PROCESS, i64::from);
        let process = Entity::new(EntityKind::Process, number).name(name);
        let known = self.tables.shared(process, self.at, self.out)?;
        if let Some(process) = self.tables.entities.get_mut(known) {
            if process.name.is_empty() {
                process.name = name;
            }
        }
        Some(known)
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

    /// The entity waits, for this reason, where this stack is.
    #[cfg(feature = "dotnet")]
    pub(super) fn waits(&mut self, entity: EntityId, reason: &[u8], stack: Option<StackId>) {
        let (state, on, reason) = (State::Waiting, None, self.tables.text(reason));
        self.event(EventKind::State { entity, state, on, reason, stack });
    }

    pub(super) fn unknown(&mut self, entity: EntityId) {
        self.state(entity, State::Unknown, None);
    }

    pub(super) fn begin(&mut self, start: Begin<'_>) -> SpanId {
        let Begin { entity, kind, name, by, of, stack } = start;
        let span = self.tables.new_span();
        let name = match name {
            Name::Known(name) => name,
            Name::New(name) => self.tables.text(name),
        };
        self.event(EventKind::Begin { span, entity, kind, name, by, of, stack });
        span
    }

    /// Ends a span whose end is not known.
    pub(super) fn cut(&mut self, span: SpanId) {
        self.event(EventKind::Finish { span, by: None, is_cut: true });
    }

    pub(super) fn instant(
        &mut self,
        entity: EntityId,
        kind: InstantKind,
        name: TextId,
        stack: Option<StackId>,
    ) {
        self.event(EventKind::Instant { entity, kind, name, of: None, stack });
    }

    pub(super) fn counter(&mut self, entity: EntityId, name: &[u8], unit: &[u8], value: f64) {
        let (name, unit) = (self.tables.text(name), self.tables.text(unit));
        self.event(EventKind::Counter { entity, name, unit, value });
    }

    /// A flow that a thread caused.
    pub(super) fn flow(&mut self, kind: FlowKind, from: EntityId, to: EntityId) {
        let (from, context, cpu, stack) = (Some(from), Context::Task, None, None);
        self.event(EventKind::Flow { kind, from, context, on: None, to, cpu, stack });
    }

    /// An argument of the next event.
    pub(super) fn argument(&mut self, name: &[u8], value: Value) {
        let name = self.tables.text(name);
        self.event(EventKind::Argument { name, value });
    }

    /// An argument of the next event: a number.
    pub(super) fn number(&mut self, name: &[u8], value: u64) {
        self.argument(name, Value::Uint(value));
    }

    /// An argument of the next event: a text.
    pub(super) fn text(&mut self, name: &[u8], value: &[u8]) {
        let value = self.tables.text(value);
        self.argument(name, Value::Text(value));
    }
}

/// The begin of a span.
#[derive(Clone, Copy)]
pub(super) struct Begin<'a> {
    entity: EntityId,
    kind: SpanKind,
    name: Name<'a>,
    by: Option<EntityId>,
    of: Option<EntityId>,
    stack: Option<StackId>,
}

/// A text, or its identifier.
#[derive(Clone, Copy)]
enum Name<'a> {
    Known(TextId),
    New(&'a [u8]),
}

impl<'a> Begin<'a> {
    pub(super) const fn new(entity: EntityId, kind: SpanKind, name: &'a [u8]) -> Self {
        Self { entity, kind, name: Name::New(name), by: None, of: None, stack: None }
    }

    pub(super) const fn named(entity: EntityId, kind: SpanKind, name: TextId) -> Self {
        Self { entity, kind, name: Name::Known(name), by: None, of: None, stack: None }
    }

    pub(super) const fn by(self, by: Option<EntityId>) -> Self {
        Self { by, ..self }
    }

    pub(super) const fn of(self, of: Option<EntityId>) -> Self {
        Self { of, ..self }
    }

    pub(super) const fn stack(self, stack: Option<StackId>) -> Self {
        Self { stack, ..self }
    }
}
