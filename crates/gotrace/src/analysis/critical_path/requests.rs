//! The longest tasks and regions, and the lives of goroutines.

use super::super::Name;
use super::super::worst::Worst;
use super::regions::Regions;
use crate::event::{Event, EventKind};
use crate::id::{GoId, GoState, TaskId};
use std::collections::HashMap;
use std::time::Duration;
use trace_common::{SeededState, Timestamp};

/// An interval of a goroutine: a task, a region, or its life.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The kind.
    pub kind: RequestKind,
    /// The type of the task or region; empty for a goroutine.
    pub name: Name,
    /// The goroutine that ended it: its critical path ends there.
    pub goroutine: GoId,
    /// The start.
    pub start: Timestamp,
    /// The end.
    pub end: Timestamp,
}

impl Request {
    /// Makes the request of any interval of a goroutine.
    pub fn of_goroutine(goroutine: GoId, start: Timestamp, end: Timestamp) -> Self {
        Self { kind: RequestKind::Goroutine, name: Name::default(), goroutine, start, end }
    }

    /// The duration; zero if the end is before the start.
    pub fn duration(&self) -> Duration {
        self.end - self.start
    }

    /// The task that it is, or belongs to.
    pub const fn task(&self) -> Option<TaskId> {
        match self.kind {
            RequestKind::Task(task) | RequestKind::Region(Some(task)) => Some(task),
            _ => None,
        }
    }
}

/// The kind of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// A task of `runtime/trace`.
    Task(TaskId),
    /// A region of `runtime/trace`, with its task if the trace contains the begin of that.
    Region(Option<TaskId>),
    /// The life of a goroutine, or a part of it.
    Goroutine,
}

/// The requests that [`Requests`] looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFilter {
    /// All tasks and regions.
    #[default]
    All,
    /// Tasks of this type.
    Tasks(Name),
    /// Regions of this type.
    Regions(Name),
    /// The goroutines with this id, from their start to their end, as far as the trace has them.
    /// Threads of C that call Go reuse ids.
    Goroutine(GoId),
}

impl RequestFilter {
    fn is_task(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Tasks(wanted) => ***wanted == *name,
            _ => false,
        }
    }

    fn is_region(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Regions(wanted) => ***wanted == *name,
            _ => false,
        }
    }
}

/// Finds the longest tasks and regions that end in a trace, or the lives of goroutines: the
/// intervals for [`CriticalPaths`](super::CriticalPaths).
///
/// Memory is used for open tasks and regions, and for the result.
#[derive(Debug)]
pub struct Requests {
    filter: RequestFilter,
    between: (Timestamp, Timestamp),
    found: Worst<Duration, Request>,
    count: u64,
    tasks: HashMap<TaskId, (Name, Open), SeededState>,
    /// By goroutine.
    regions: HashMap<GoId, Regions<Open>, SeededState>,
    /// The goroutine of the filter: since when.
    alive: Option<Timestamp>,
    /// The first event that is no sync event, or a later sync event; of those after the last loss.
    generation: Option<Timestamp>,
    last: Timestamp,
}

/// An open task or region.
#[derive(Debug)]
struct Open {
    task: Option<TaskId>,
    start: Timestamp,
    /// Whether the filter selects it.
    is_wanted: bool,
}

impl Requests {
    /// Open regions of one goroutine: more are ignored.
    pub const MAX_REGIONS: usize = 1 << 10;

    /// Looks for the `worst` longest requests.
    pub fn new(filter: RequestFilter, worst: usize) -> Self {
        Self {
            filter,
            between: (Timestamp::MIN, Timestamp::MAX),
            found: Worst::new(worst),
            count: 0,
            tasks: HashMap::default(),
            regions: HashMap::default(),
            alive: None,
            generation: None,
            last: Timestamp::default(),
        }
    }

    /// Restricts the result to the time from `from` to `to`: to tasks and regions that are
    /// completely within it, and to the part within it of the life of a goroutine.
    #[must_use]
    pub const fn between(mut self, from: Timestamp, to: Timestamp) -> Self {
        self.between = (from, to);
        self
    }

    /// Processes the next event.
    pub fn push(&mut self, event: Event<'_>) {
        if event.record.restarts() {
            self.loss();
        }
        match event.kind() {
            EventKind::Sync => {
                if let Some(generation) = &mut self.generation {
                    *generation = event.time();
                }
                return;
            }
            EventKind::Experimental => return,
            _ => {}
        }
        let generation = *self.generation.get_or_insert(event.time());
        match event.kind() {
            EventKind::StateTransition => self.transition(event, generation),
            EventKind::TaskBegin | EventKind::TaskEnd => self.task(event),
            EventKind::RegionBegin => self.region_begin(event),
            EventKind::RegionEnd => self.region_end(event),
            _ => {}
        }
        self.last = event.time();
    }

    /// A part of the trace is missing here: regions that are open do not count.
    pub fn loss(&mut self) {
        self.generation = None;
        self.regions = HashMap::default(); // clearing it would visit the places of all that were there
    }

    /// The number of requests that ended so far.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The longest requests, longest first.
    pub fn finish(mut self) -> Vec<Request> {
        if let (RequestFilter::Goroutine(id), Some(start)) = (self.filter.clone(), self.alive) {
            self.add(Request::of_goroutine(id, start, self.last));
        }
        self.found.into_items().collect()
    }

    fn add(&mut self, mut request: Request) {
        let (from, to) = self.between;
        if request.kind == RequestKind::Goroutine {
            (request.start, request.end) = (request.start.max(from), request.end.min(to));
        }
        if request.start < from || to < request.end || request.end <= request.start {
            return;
        }
        self.count += 1;
        self.found.add(request.duration(), || request);
    }

    fn transition(&mut self, event: Event<'_>, generation: Timestamp) {
        let Some(transition) = event.state_transition() else { return };
        let (Some(id), Some((from, to))) =
            (transition.resource().goroutine(), transition.goroutine())
        else {
            return;
        };
        let now = event.time();
        if from == GoState::NotExist || to == GoState::NotExist {
            for open in self.regions.remove(&id).unwrap_or_default().end_all() {
                self.end_region(id, open, now);
            }
        }
        if self.filter != RequestFilter::Goroutine(id) {
            return;
        }
        if let Some(start) =
            self.alive.filter(|_| matches!(GoState::NotExist, f if f == from || f == to))
        {
            self.add(Request::of_goroutine(id, start, now));
            self.alive = None;
        }
        if to != GoState::NotExist {
            // At its first mention, it is there since the generation started.
            let is_first = from == GoState::Undetermined;
            self.alive.get_or_insert(if is_first { generation } else { now });
        }
    }

    fn task(&mut self, event: Event<'_>) {
        let Some(task) = event.task() else { return };
        let ended = self.tasks.remove(&task.id);
        if let Some((name, open)) = ended.filter(|(_, open)| open.is_wanted) {
            self.add(Request {
                kind: RequestKind::Task(task.id),
                name,
                goroutine: event.goroutine(),
                start: open.start,
                end: event.time(),
            });
        }
        if event.kind() == EventKind::TaskBegin {
            let is_wanted = self.filter.is_task(task.name);
            let open = Open { task: Some(task.id), start: event.time(), is_wanted };
            self.tasks.insert(task.id, (task.name.into(), open));
        }
    }

    fn region_begin(&mut self, event: Event<'_>) {
        let Some(region) = event.region() else { return };
        let task = self.tasks.contains_key(&region.task).then_some(region.task);
        let is_wanted = self.filter.is_region(region.name);
        let open = self.regions.entry(event.goroutine()).or_default();
        if !open.ignores() {
            let (name, start) = (Name::of(event.table, event.record.region_type()), event.time());
            open.begin(name, Open { task, start, is_wanted });
        }
    }

    fn region_end(&mut self, event: Event<'_>) {
        let Some(region) = event.region() else { return };
        let Some(open) = self.regions.get_mut(&event.goroutine()) else { return };
        if let Some(ended) = open.end(region.name) {
            self.end_region(event.goroutine(), ended, event.time());
        }
    }

    fn end_region(&mut self, goroutine: GoId, (name, open): (Name, Open), end: Timestamp) {
        if open.is_wanted {
            let Open { task, start, .. } = open;
            let kind = RequestKind::Region(task);
            self.add(Request { kind, name, goroutine, start, end });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Region;
    use crate::synthetic::{EventConfig, EventDetails};

    #[test]
    fn a_loss_visits_no_places_of_regions_before_others() {
        const COUNT: i64 = 10_000;
        let mut requests = Requests::new(RequestFilter::All, 1);
        let begin = |requests: &mut Requests, id| {
            let region = EventDetails::RegionBegin(Region::new(TaskId::BACKGROUND, "r"));
            let event = EventConfig::new(region).time(Timestamp::from_nanos(id));
            requests.push(event.goroutine(GoId(id)).build().unwrap().as_event());
        };
        (1..=COUNT).for_each(|id| begin(&mut requests, id));
        for id in 1..=COUNT {
            assert_eq!(requests.regions.capacity() as i64 >= COUNT, id == 1);
            requests.loss();
            begin(&mut requests, id);
        }
    }
}
