//! The open spans of entities, forward in time.

use super::history::{History, Span};
use crate::entity::EntityId;
use crate::event::SpanKind;
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use trace_common::Timestamp;

/// The open spans of each entity. Each span is opened and closed once, however many pieces of a path
/// there are.
pub(super) struct Sweep<'a> {
    history: &'a History,
    /// The task of the path.
    task: Option<EntityId>,
    open: HashMap<EntityId, Open<'a>>,
}

/// The stop-the-worlds that a piece is a part of.
#[derive(Clone, Copy)]
pub(super) enum Stops {
    None,
    All,
    /// Those that this one requested.
    Of(EntityId),
    /// Those that another one than this one requested.
    OfOthers(EntityId),
}

/// The open spans of an entity, by their position: inner ones are later.
struct Open<'a> {
    /// Those that begin later.
    rest: &'a [Span],
    /// The position of the first one of these.
    position: usize,
    ends: BinaryHeap<Reverse<(Timestamp, usize)>>,
    stops: OpenStops<'a>,
    /// Other parts of a runtime.
    runtime: BTreeMap<usize, &'a Span>,
    /// Tasks and activities, and regions of them.
    tasks: BTreeMap<usize, EntityId>,
    /// Those of them that are the task of the path or a part of it. A program can have any number of open ones.
    own_tasks: BTreeSet<usize>,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(history: &'a History, task: Option<EntityId>) -> Self {
        Self { history, task, open: HashMap::new() }
    }

    /// Continues at this time, which is not earlier than before. Returns when the open spans of the
    /// entity change next.
    pub(super) fn advance(&mut self, entity: EntityId, at: Timestamp) -> Timestamp {
        let (history, task) = (self.history, self.task);
        let is_own = |part| task.is_some_and(|own| history.is_part_of(part, own));
        let new = || Open::new(history, entity, at, &is_own);
        let open = self.open.entry(entity).or_insert_with(new);
        open.advance(at, &is_own);
        open.next()
    }

    /// The innermost part of a runtime that an entity is in, with these stop-the-worlds.
    pub(super) fn during(&self, entity: EntityId, stops: Stops) -> Option<&'a Span> {
        let open = self.open.get(&entity)?;
        let own = open.runtime.last_key_value();
        let stop = open.stops.innermost(stops);
        own.into_iter().chain(stop).max_by_key(|(position, _)| **position).map(|(_, span)| *span)
    }

    /// The task or activity that an entity works on.
    pub(super) fn task(&self, entity: EntityId) -> Option<EntityId> {
        self.open.get(&entity)?.tasks.last_key_value().map(|(_, task)| *task)
    }

    /// Whether an entity is in the task of the path or a part of it.
    pub(super) fn has_own_task(&self, entity: EntityId) -> bool {
        self.open.get(&entity).is_some_and(|open| !open.own_tasks.is_empty())
    }
}

impl<'a> Open<'a> {
    /// The spans of an entity that are open at this time. Those that ended before are not looked at: many
    /// requests may have paths. `is_own` is true of the task of the path and its parts.
    fn new(
        history: &'a History,
        entity: EntityId,
        at: Timestamp,
        is_own: &impl Fn(EntityId) -> bool,
    ) -> Self {
        let spans = history.spans(entity);
        let (position, found) = history.open_spans(entity, at);
        let mut open = Self {
            rest: spans.get(position..).unwrap_or_default(),
            position,
            ends: BinaryHeap::new(),
            stops: OpenStops::default(),
            runtime: BTreeMap::new(),
            tasks: BTreeMap::new(),
            own_tasks: BTreeSet::new(),
        };
        for position in found {
            if let Some(span) = spans.get(position).filter(|span| is_shown(span)) {
                open.begin(span, position, is_own);
            }
        }
        open
    }

    fn advance(&mut self, at: Timestamp, is_own: &impl Fn(EntityId) -> bool) {
        while let Some(Reverse((end, position))) = self.ends.peek().copied() {
            if end > at {
                break;
            }
            self.ends.pop();
            self.stops.remove(position);
            self.runtime.remove(&position);
            self.tasks.remove(&position);
            self.own_tasks.remove(&position);
        }
        while let Some((span, rest)) = self.rest.split_first() {
            // Those that are not shown change nothing.
            if span.start > at && is_shown(span) {
                break;
            }
            if span.start <= at && span.end > at && is_shown(span) {
                self.begin(span, self.position, is_own);
            }
            self.rest = rest;
            self.position += 1;
        }
    }

    fn begin(&mut self, span: &'a Span, position: usize, is_own: &impl Fn(EntityId) -> bool) {
        self.ends.push(Reverse((span.end, position)));
        match (span.task(), span.kind) {
            (Some(task), _) => {
                self.tasks.insert(position, task);
                if is_own(task) {
                    self.own_tasks.insert(position);
                }
            }
            (None, SpanKind::StopTheWorld) => self.stops.insert(position, span),
            (None, _) => drop(self.runtime.insert(position, span)),
        }
    }

    fn next(&self) -> Timestamp {
        let start = self.rest.first().map_or(Timestamp::MAX, |span| span.start);
        let end = self.ends.peek().map_or(Timestamp::MAX, |Reverse((end, _))| *end);
        start.min(end)
    }
}

/// The open stop-the-worlds of an entity, by their position. A damaged recording can have any number of them.
#[derive(Default)]
struct OpenStops<'a> {
    spans: BTreeMap<usize, &'a Span>,
    by_requester: HashMap<EntityId, BTreeSet<usize>>,
    /// The innermost one of each requester.
    innermost: BTreeSet<usize>,
}

impl<'a> OpenStops<'a> {
    fn insert(&mut self, position: usize, span: &'a Span) {
        self.spans.insert(position, span);
        self.change(span.by, |positions| positions.insert(position));
    }

    fn remove(&mut self, position: usize) {
        if let Some(span) = self.spans.remove(&position) {
            self.change(span.by, |positions| positions.remove(&position));
        }
    }

    /// Changes the stop-the-worlds of a requester.
    fn change(&mut self, by: EntityId, change: impl FnOnce(&mut BTreeSet<usize>) -> bool) {
        let positions = self.by_requester.entry(by).or_default();
        if let Some(innermost) = positions.last() {
            self.innermost.remove(innermost);
        }
        change(positions);
        self.innermost.extend(positions.last());
    }

    /// The innermost one of these.
    fn innermost(&self, stops: Stops) -> Option<(&usize, &&'a Span)> {
        let is_of_other =
            |at: &usize, by: EntityId| self.spans.get(at).is_some_and(|span| span.by != by);
        let position = match stops {
            Stops::None => None,
            Stops::All => self.innermost.last(),
            Stops::Of(by) => self.by_requester.get(&by)?.last(),
            // No more than one is of this requester.
            Stops::OfOthers(by) => self.innermost.iter().rev().find(|at| is_of_other(at, by)),
        };
        self.spans.get_key_value(position?)
    }
}

/// Whether a span is a part of what a piece shows.
const fn is_shown(span: &Span) -> bool {
    use SpanKind::{GcAssist, Jit, LockWait, StopTheWorld};
    matches!(span.kind, GcAssist | Jit | LockWait | StopTheWorld) || span.task().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::Derived;
    use crate::entity::{Entity, EntityKind};
    use crate::event::{Event, EventKind};
    use crate::tables::{Tables, TextId};
    use proptest::prelude::*;

    const KINDS: [SpanKind; 6] = [
        SpanKind::Task,
        SpanKind::Region,
        SpanKind::GcAssist,
        SpanKind::StopTheWorld,
        SpanKind::LockWait,
        SpanKind::Queued,
    ];

    proptest! {
        /// The innermost stop-the-world is found as if all open ones were looked at.
        #[test]
        fn the_innermost_stop_is_found_by_its_requester(
            steps in proptest::collection::vec((0..20usize, 0..4usize), 0..60),
        ) {
            let mut tables = Tables::new();
            let ids: Vec<EntityId> = (0..4)
                .filter_map(|number| tables.entity(Entity::new(EntityKind::Goroutine, number)))
                .collect();
            let id = tables.new_span();
            let span = |by| Span {
                kind: SpanKind::StopTheWorld,
                entity: by,
                name: TextId::EMPTY,
                by,
                ended_by: by,
                of: None,
                lock: None,
                stack: None,
                start: Timestamp::MIN,
                end: Timestamp::MAX,
                id,
            };
            let spans: Vec<Span> = ids.iter().map(|id| span(*id)).collect();
            let (mut open, mut expected) = (OpenStops::default(), BTreeMap::new());
            for (position, by) in steps {
                // Each position is of one span.
                if expected.remove(&position).is_some() {
                    open.remove(position);
                } else {
                    open.insert(position, &spans[by]);
                    expected.insert(position, ids[by]);
                }
                let last = |is_it: &dyn Fn(EntityId) -> bool| {
                    expected.iter().rfind(|(_, by)| is_it(**by)).map(|(position, _)| *position)
                };
                let found = |stops| open.innermost(stops).map(|(position, _)| *position);
                prop_assert_eq!(found(Stops::None), None);
                prop_assert_eq!(found(Stops::All), last(&|_| true));
                for id in ids.iter().copied() {
                    prop_assert_eq!(found(Stops::Of(id)), last(&|by| by == id));
                    prop_assert_eq!(found(Stops::OfOthers(id)), last(&|by| by != id));
                }
            }
        }

        /// A sweep that starts at a time has the same spans as one that has come there.
        #[test]
        fn a_sweep_can_start_at_any_time(
            spans in proptest::collection::vec((0..100i64, 0..60i64, 0..KINDS.len()), 0..40),
            times in proptest::collection::btree_set(-1..120i64, 1..20),
        ) {
            let at = Timestamp::from_nanos;
            let (mut tables, mut events) = (Tables::new(), Vec::new());
            let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
            let of = tables.entity(Entity::new(EntityKind::Task, 2));
            for (start, nanos, kind) in spans {
                let (span, kind, name) = (tables.new_span(), KINDS[kind], TextId::EMPTY);
                let (by, stack) = (None, None);
                let begun = EventKind::Begin { span, entity, kind, name, by, of, stack };
                events.push((start, begun));
                // Some do not end.
                if nanos < 50 {
                    events.push((start + nanos, EventKind::Finish { span, by, is_cut: false }));
                }
            }
            events.sort_by_key(|(time, _)| *time);
            let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
            for (time, kind) in events {
                history.push(&Derived::Event(Event { time: at(time), kind }));
            }
            history.finish();
            let mut swept = Sweep::new(&history, of);
            swept.advance(entity, Timestamp::MIN);
            for time in times {
                let next = swept.advance(entity, at(time));
                let mut started = Sweep::new(&history, of);
                prop_assert_eq!(started.advance(entity, at(time)), next);
                prop_assert_eq!(started.task(entity), swept.task(entity));
                prop_assert_eq!(started.has_own_task(entity), swept.has_own_task(entity));
                for stops in [Stops::None, Stops::All, Stops::Of(entity), Stops::OfOthers(entity)] {
                    prop_assert_eq!(started.during(entity, stops), swept.during(entity, stops));
                }
            }
        }
    }
}
