//! The requests of a program: tasks, regions and activities.

use super::History;
use crate::correlate::Derived;
use crate::entity::EntityId;
use crate::event::{EventKind, SpanKind};
use crate::tables::{SpanId, TextId};
use hashbrown::HashMap;
use trace_common::Timestamp;

/// One task, region or activity, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The kind.
    pub kind: SpanKind,
    /// The type of a task or region, the name of an activity.
    pub name: TextId,
    /// The goroutine or thread that ended it: its critical path ends there.
    pub subject: EntityId,
    /// The task or activity.
    pub task: Option<EntityId>,
    /// The span that it is, if it is one.
    pub span: Option<SpanId>,
    /// The start.
    pub start: Timestamp,
    /// The end.
    pub end: Timestamp,
}

impl Request {
    /// A request of a goroutine or thread that is no task.
    pub const fn of(
        kind: SpanKind,
        name: TextId,
        subject: EntityId,
        start: Timestamp,
        end: Timestamp,
    ) -> Self {
        Self { kind, name, subject, task: None, span: None, start, end }
    }

    /// The duration in nanoseconds.
    pub const fn nanos(&self) -> i64 {
        self.end.nanos_since(self.start)
    }
}

/// Which requests [`Requests`] looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestFilter {
    /// Of this kind; `None` for tasks, regions and activities. Requests are activities.
    pub kind: Option<SpanKind>,
    /// With this name.
    pub name: Option<TextId>,
}

impl RequestFilter {
    /// All requests of this kind.
    pub const fn of(kind: SpanKind) -> Self {
        Self { kind: Some(kind), name: None }
    }
}

/// Finds the longest requests of a timeline. It holds these and the open ones, at most [`History::MAX`] of them.
#[derive(Debug)]
pub struct Requests {
    filter: RequestFilter,
    worst: usize,
    open: HashMap<SpanId, Request>,
    max_open: usize,
    dropped: u64,
    found: Vec<Request>,
    count: u64,
}

/// Whether spans of a kind are tasks, regions or activities.
pub(super) const fn is_request(kind: SpanKind) -> bool {
    matches!(kind, SpanKind::Task | SpanKind::Region | SpanKind::Activity | SpanKind::Request)
}

/// Whether a span of one kind is of the other one too.
const fn is_a(kind: SpanKind, wanted: SpanKind) -> bool {
    use SpanKind::{Activity, Region, Request, Task};
    matches!(
        (kind, wanted),
        (Task, Task) | (Region, Region) | (Activity | Request, Activity) | (Request, Request)
    )
}

impl Requests {
    /// Looks for the `worst` longest requests.
    pub fn new(filter: RequestFilter, worst: usize) -> Self {
        Self::with_max(filter, worst, History::MAX)
    }

    /// The same with another maximum number of open requests.
    pub(super) fn with_max(filter: RequestFilter, worst: usize, max_open: usize) -> Self {
        let (open, found) = (HashMap::new(), Vec::new());
        Self { filter, worst, open, max_open, dropped: 0, found, count: 0 }
    }

    /// Processes derived data.
    pub fn push(&mut self, derived: &Derived<'_>) {
        let Derived::Event(event) = derived else { return };
        match event.kind {
            EventKind::Begin { span, entity, kind, name, of, .. } => {
                let RequestFilter { kind: wanted, name: named } = self.filter;
                if is_request(kind)
                    && wanted.is_none_or(|wanted| is_a(kind, wanted))
                    && named.is_none_or(|n| n == name)
                {
                    if self.open.len() >= self.max_open {
                        self.dropped += 1;
                        return;
                    }
                    let task = if kind == SpanKind::Region { of } else { Some(entity) };
                    let (start, end) = (event.time, event.time);
                    let (subject, id) = (entity, Some(span));
                    let request = Request { kind, name, subject, task, span: id, start, end };
                    self.open.insert(span, request);
                }
            }
            EventKind::Finish { span, by, is_cut } => {
                // How long it took is not known if its end is not.
                let Some(request) = self.open.remove(&span).filter(|_| !is_cut) else { return };
                let subject = by.unwrap_or(request.subject);
                self.count += 1;
                self.found.push(Request { subject, end: event.time, ..request });
                if self.found.len() > self.worst.saturating_mul(2).max(64) {
                    self.shrink();
                }
            }
            _ => {}
        }
    }

    /// Forgets an open request.
    pub(super) fn forget(&mut self, span: SpanId) {
        self.open.remove(&span);
    }

    fn shrink(&mut self) {
        self.found.sort_by_key(|request| (std::cmp::Reverse(request.nanos()), request.start));
        self.found.truncate(self.worst);
    }

    /// Number of requests that are open.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Number of requests that ended.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Number of requests that are not looked for, because too many were open.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The longest requests so far, longest first.
    pub fn worst(&mut self) -> &[Request] {
        self.shrink();
        &self.found
    }

    /// The longest requests, longest first.
    pub fn into_worst(mut self) -> Vec<Request> {
        self.shrink();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{Entity, EntityKind};
    use crate::event::Event;
    use crate::tables::Tables;

    /// A program can leave any number of regions open. Those that are known end as before.
    #[test]
    fn open_requests_are_limited() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let mut requests = Requests::with_max(RequestFilter::default(), 9, 2);
        let spans = [1, 2, 3].map(|_| tables.new_span());
        let (by, of, stack, is_cut) = (None, None, None, false);
        let (kind, name) = (SpanKind::Region, TextId::EMPTY);
        let begins = spans.map(|span| EventKind::Begin { span, entity, kind, name, by, of, stack });
        let ends = spans.map(|span| EventKind::Finish { span, by, is_cut });
        for (time, kind) in (0..).zip(begins.into_iter().chain(ends)) {
            requests.push(&Derived::Event(Event { time: at(time), kind }));
        }
        assert_eq!((requests.count(), requests.dropped(), requests.open()), (2, 1, 0));
    }
}
