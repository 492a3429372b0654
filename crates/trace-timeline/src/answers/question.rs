//! Which requests are explained, and their critical paths: two passes over the same traces.

use super::requests::is_request;
use super::{CriticalPath, History, Request, RequestFilter, Requests, critical_path};
use crate::correlate::Derived;
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{Event, EventKind, SpanKind, State};
use crate::tables::{SpanId, Tables, TextId};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use trace_common::Timestamp;

/// The subject of a [`Question`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Tasks, regions and activities.
    #[default]
    Requests,
    /// Tasks of Go's `runtime/trace` with this name.
    Task(String),
    /// Regions of Go's `runtime/trace` with this name.
    Region(String),
    /// Activities and requests with this name: of .NET it is `NAME` or `SOURCE/NAME`.
    Activity(String),
    /// Goroutines with this id, from their start to their end.
    Goroutine(i64),
    /// Threads of the kernel with this id, from their start to their end. If there are none whose state is known, as
    /// without the kernel's scheduler, those of .NET.
    Thread(u32),
}

impl Subject {
    fn filter(&self) -> RequestFilter {
        match self {
            Self::Task(_) => RequestFilter::of(SpanKind::Task),
            Self::Region(_) => RequestFilter::of(SpanKind::Region),
            Self::Activity(_) => RequestFilter::of(SpanKind::Activity),
            _ => RequestFilter::default(),
        }
    }

    /// Whether a task, region or activity has the name.
    fn has_name(&self, name: TextId, tables: &Tables) -> bool {
        match self {
            Self::Task(wanted) | Self::Region(wanted) => tables.get(name) == wanted.as_bytes(),
            Self::Activity(wanted) => {
                [name, tables.short(name)].iter().any(|name| tables.get(*name) == wanted.as_bytes())
            }
            _ => true,
        }
    }

    /// The number of the goroutine or thread.
    fn number(&self) -> Option<i64> {
        match self {
            Self::Goroutine(number) => Some(*number),
            Self::Thread(tid) => Some((*tid).into()),
            _ => None,
        }
    }

    /// Whether it can be the goroutine or thread.
    fn can_be(&self, entity: &Entity) -> bool {
        let is_kind = match self {
            Self::Goroutine(_) => entity.kind == EntityKind::Goroutine,
            Self::Thread(_) => {
                matches!(entity.kind, EntityKind::Thread | EntityKind::DotnetThread)
            }
            _ => false,
        };
        is_kind && self.number() == Some(entity.number)
    }
}

/// Which requests are explained.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct Question {
    /// The kind of the requests.
    pub subject: Subject,
    /// Only between these times, in nanoseconds from the start of the timeline: requests that overlap
    /// them, which are explained as a whole; the part within them of a goroutine or thread.
    pub between: Option<(i64, i64)>,
    /// Only those of the process with this id. Of a goroutine or thread see [`Finder::processes`].
    pub pid: Option<u32>,
    /// Number of requests, longest first.
    pub worst: usize,
}

impl Question {
    /// Whether a process is one that is wanted.
    fn is_of(&self, process: Option<EntityId>, tables: &Tables) -> bool {
        let Some(pid) = self.pid else { return true };
        let process = process.and_then(|process| tables.entities.get(process));
        process.is_some_and(|process| process.number == i64::from(pid))
    }
}

impl Default for Question {
    /// The longest request.
    fn default() -> Self {
        Self { subject: Subject::default(), between: None, pid: None, worst: 1 }
    }
}

/// The requests that a [`Question`] is about: the result of [`Finder`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Found {
    /// The requests, longest first.
    pub requests: Vec<Request>,
    /// The start of the timeline.
    pub start: Timestamp,
    names: Vec<Vec<u8>>,
    entities: usize,
    /// Number of requests that are missing.
    dropped: u64,
}

/// The first pass: finds the requests of a [`Question`]. It holds the longest and the open ones.
///
/// The second pass is [`Paths`]. Both passes must have empty [`Tables`] at their start.
#[derive(Debug)]
pub struct Finder {
    question: Question,
    /// By process, if those of one are wanted: its id can become known last.
    requests: BTreeMap<Option<EntityId>, Requests>,
    /// The processes of open requests in this case.
    open: HashMap<SpanId, Option<EntityId>>,
    max_open: usize,
    /// Number of requests that there was no room for in `open`.
    dropped: u64,
    lives: BTreeMap<EntityId, Life>,
    /// Those of .NET threads: for a thread of which the kernel says nothing.
    dotnet: BTreeMap<EntityId, Life>,
    start: Option<Timestamp>,
}

/// The life of a goroutine or thread.
#[derive(Clone, Copy, Debug)]
struct Life {
    start: Timestamp,
    end: Timestamp,
    /// Whether a state of it is known. Of a thread of the kernel that only samples mention none is.
    is_known: bool,
}

impl Finder {
    /// A finder for this question.
    pub fn new(question: Question) -> Self {
        let (requests, open, lives, dotnet) = Default::default();
        let (max_open, dropped, start) = (History::MAX, 0, None);
        Self { question, requests, open, max_open, dropped, lives, dotnet, start }
    }

    /// The time between which requests are wanted.
    fn window(&self) -> Option<(Timestamp, Timestamp)> {
        let (from, to) = self.question.between?;
        let start = self.start.unwrap_or_default();
        Some((start.saturating_add_nanos(from), start.saturating_add_nanos(to)))
    }

    /// Processes derived data.
    pub fn push(&mut self, derived: &Derived<'_>, tables: &Tables) {
        match derived {
            Derived::Interval(interval) => {
                let subject = &self.question.subject;
                if subject.number().is_none() {
                    return;
                }
                let entity = tables.entities.get(interval.subject);
                if let Some(entity) = entity.filter(|entity| subject.can_be(entity)) {
                    let lives = match entity.kind {
                        EntityKind::DotnetThread => &mut self.dotnet,
                        _ => &mut self.lives,
                    };
                    let (start, end) = (interval.start, interval.end);
                    let new = Life { start, end, is_known: false };
                    let life = lives.entry(interval.subject).or_insert(new);
                    let is_known = interval.state != State::Unknown;
                    // After the end of its trace, nothing is known of it.
                    if is_known || !life.is_known {
                        life.end = end;
                    }
                    life.is_known |= is_known;
                }
            }
            Derived::Event(event) => {
                self.start.get_or_insert(event.time);
                if self.question.subject.number().is_none() {
                    self.push_event(event, derived, tables);
                }
            }
            _ => {}
        }
    }

    /// Processes the begin or end of a request.
    fn push_event(&mut self, event: &Event, derived: &Derived<'_>, tables: &Tables) {
        let window = self.window();
        let Question { subject, pid, worst, .. } = &self.question;
        match event.kind {
            EventKind::Begin { span, entity, kind, name, .. } if is_request(kind) => {
                let is_in_time = window.is_none_or(|(_, to)| event.time <= to);
                if !is_in_time || !subject.has_name(name, tables) {
                    return;
                }
                let process = pid.and_then(|_| tables.entities.process_of(entity));
                if pid.is_some() {
                    if self.open.len() >= self.max_open {
                        self.dropped += 1;
                        return;
                    }
                    self.open.insert(span, process);
                }
                let new = || Requests::with_max(subject.filter(), *worst, self.max_open);
                self.requests.entry(process).or_insert_with(new).push(derived);
            }
            EventKind::Finish { span, .. } => {
                let process = self.open.remove(&span).flatten();
                let Some(requests) = self.requests.get_mut(&process) else { return };
                match window {
                    Some((from, _)) if event.time < from => requests.forget(span),
                    _ => requests.push(derived),
                }
            }
            _ => {}
        }
    }

    /// The goroutines or threads with the number, from their start to their end, as far as they are
    /// wanted. If the process that is wanted has one, they are of its layer: of .NET, unless the kernel knows more.
    fn lives(&self, tables: &Tables) -> impl Iterator<Item = Request> {
        let window = self.window();
        let of = move |(subject, life): (&EntityId, &Life)| {
            let Life { start, end, .. } = *life;
            let (start, end) = window.map_or((start, end), |(a, b)| (start.max(a), end.min(b)));
            Request::of(SpanKind::Region, TextId::EMPTY, *subject, start, end)
        };
        let (threads, dotnet) = (&self.lives, &self.dotnet);
        let is_wanted =
            |id: &EntityId| self.question.is_of(tables.entities.process_of(*id), tables);
        let is_known = threads.iter().any(|(id, life)| life.is_known && is_wanted(id));
        let is_dotnet = threads.is_empty() || (!is_known && dotnet.keys().any(is_wanted));
        let lives = if is_dotnet { dotnet } else { threads };
        lives.iter().map(of).filter(|life| life.start < life.end)
    }

    /// The processes of the goroutine or thread, in the order of their entities: those of several
    /// programs can have the same number, and the longest life of these is explained.
    /// [`Finder::restrict`] chooses one.
    pub fn processes(&self, tables: &Tables) -> Vec<EntityId> {
        let processes =
            self.lives(tables).filter_map(|life| tables.entities.process_of(life.subject));
        processes.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Restricts a goroutine or thread that was found to the process with this id, as
    /// [`Question::pid`].
    pub const fn restrict(&mut self, pid: u32) {
        self.question.pid = Some(pid);
    }

    /// The requests that were found.
    pub fn finish(self, tables: &Tables) -> Found {
        let worst = self.question.worst;
        let is_wanted = |process| self.question.is_of(process, tables);
        let is_life_wanted = |life: &Request| is_wanted(tables.entities.process_of(life.subject));
        // There are either lives or requests.
        let mut requests: Vec<Request> = self.lives(tables).filter(is_life_wanted).collect();
        let dropped = self.requests.values().map(Requests::dropped).sum::<u64>() + self.dropped;
        let of_processes = self.requests.into_iter().filter(|(process, _)| is_wanted(*process));
        requests.extend(of_processes.flat_map(|(_, requests)| requests.into_worst()));
        requests.sort_by_key(|request| (Reverse(request.nanos()), request.start));
        requests.truncate(worst);
        let start = self.start.unwrap_or_default();
        Found { start, dropped, ..Found::of(requests, tables) }
    }
}

impl Found {
    /// Requests that a first pass with these tables found.
    pub fn of(requests: Vec<Request>, tables: &Tables) -> Self {
        let names = requests.iter().map(|request| tables.get(request.name).to_vec()).collect();
        let entities = tables.entities.len();
        Self { requests, start: Timestamp::default(), names, entities, dropped: 0 }
    }
}

/// An error of the second pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathsError {
    /// The requests have more events than a [`History`] holds, or as many requests were open at once.
    #[error("the requests have too many events")]
    TooMany,
    /// The second pass is not of the same traces as the first one.
    #[error("the traces changed while they were read")]
    Changed,
}

/// The second pass: finds the critical paths of requests that a [`Finder`] found.
#[derive(Debug)]
pub struct Paths {
    found: Found,
    history: History,
}

impl Paths {
    /// Paths of these requests. `None` without any.
    pub fn new(found: Found) -> Option<Self> {
        let mut windows = found.requests.iter().map(|request| (request.start, request.end));
        let (start, end) = windows.next()?;
        let mut history = History::new(start, end);
        windows.for_each(|(start, end)| history.add_window(start, end));
        Some(Self { found, history })
    }

    /// Processes derived data.
    pub fn push(&mut self, derived: &Derived<'_>) {
        self.history.push(derived);
    }

    /// The requests with their critical paths. `tables` are those of the second pass; those of the
    /// first pass have the same entities, texts and stacks.
    ///
    /// # Errors
    ///
    /// [`PathsError`] if there are too many events, or the passes differ.
    pub fn finish(
        mut self,
        tables: &mut Tables,
    ) -> Result<Vec<(Request, CriticalPath)>, PathsError> {
        self.history.finish();
        for (request, name) in self.found.requests.iter_mut().zip(&self.found.names) {
            request.name = tables.text(name);
        }
        let entities = &tables.entities;
        if entities.len() != self.found.entities {
            return Err(PathsError::Changed);
        }
        if self.found.dropped > 0 || self.history.dropped() > 0 {
            return Err(PathsError::TooMany);
        }
        let path = |r: Request| {
            (r, critical_path(&self.history, entities, r.subject, r.start, r.end, r.task))
        };
        Ok(self.found.requests.into_iter().map(path).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::{Correlator, Interval, Kernel};
    use crate::event::ThreadState;

    /// A name can have slashes of its own: only the source of the trace knows its short form.
    #[test]
    fn an_activity_has_its_name_and_its_short_one() {
        let mut tables = Tables::new();
        let [activity, request] =
            [&b"Shop/Order/v2"[..], b"POST /order"].map(|name| tables.text(name));
        tables.set_short(activity, b"Order/v2");
        let has = |name, wanted: &str| Subject::Activity(wanted.to_owned()).has_name(name, &tables);
        for wanted in ["Shop/Order/v2", "Order/v2"] {
            assert!(has(activity, wanted) && !has(request, wanted), "{wanted}");
        }
        assert!(has(request, "POST /order") && !has(request, "order") && !has(activity, "v2"));
    }

    /// Goroutines of two programs have the same id. The trace of the first one ends in the middle.
    #[test]
    fn a_life_ends_where_its_trace_does() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let goroutine = Entity::new(EntityKind::Goroutine, 7);
        let [ended, other] = [(); 2].map(|()| tables.entity(goroutine).unwrap());
        let found = |between, worst| {
            let subject = Subject::Goroutine(7);
            let mut finder =
                Finder::new(Question { subject, between, worst, ..Question::default() });
            let mut correlator = Correlator::new();
            let state = |entity, state| {
                let (on, reason, stack) = (None, TextId::EMPTY, None);
                EventKind::State { entity, state, on, reason, stack }
            };
            for (time, kind) in [
                (0, EventKind::Start { entity: ended }),
                (0, state(ended, State::Waiting)),
                (40, EventKind::Start { entity: other }),
                (40, state(other, State::Waiting)),
                (50, state(ended, State::Unknown)),
                (100, state(other, State::Runnable)),
            ] {
                let event = Event { time: at(time), kind };
                let mut each = |derived: Derived<'_>| finder.push(&derived, &tables);
                correlator.push(&event, &tables.entities, &mut each);
            }
            correlator.finish(&mut |derived| finder.push(&derived, &tables));
            let lives = finder.finish(&tables).requests.into_iter();
            lives.map(|r| (r.subject, r.start.nanos(), r.end.nanos())).collect::<Vec<_>>()
        };
        assert_eq!(found(Some((60, 90)), 1), [(other, 60, 90)]);
        assert_eq!(found(None, 2), [(other, 40, 100), (ended, 0, 50)]);
    }

    /// A thread of .NET is asked for by its id. The kernel knows more of it, if its scheduler was recorded: samples
    /// mention its thread, too.
    #[test]
    fn a_dotnet_thread_is_explained_without_the_kernel() {
        use EntityKind::{DotnetThread, Thread};
        for (number, kinds, has_switch, expected) in [
            (7, &[DotnetThread][..], false, Some(DotnetThread)),
            (7, &[DotnetThread, Thread], false, Some(DotnetThread)),
            (7, &[DotnetThread, Thread], true, Some(Thread)),
            (7, &[Thread], false, Some(Thread)),
            (8, &[DotnetThread, Thread], true, None),
        ] {
            let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
            let subject = Subject::Thread(number);
            let mut finder = Finder::new(Question { subject, ..Question::default() });
            let mut correlator = Correlator::new();
            let cpu = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
            let mut events = vec![(1, EventKind::Start { entity: cpu })];
            for kind in kinds {
                let entity = tables.entity(Entity::new(*kind, 7)).unwrap();
                let (state, on, reason, stack) = (State::Running, None, TextId::EMPTY, None);
                let running = EventKind::State { entity, state, on, reason, stack };
                events.push((1, EventKind::Start { entity }));
                events.extend((*kind == DotnetThread).then_some((1, running)));
                let (left, next) = (ThreadState::Unknown, Some(entity));
                let (prev, is_next_unknown, prio) = (None, false, 120);
                let switch = EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio };
                events.extend((has_switch && *kind == Thread).then_some((2, switch)));
            }
            events.push((50, EventKind::End { entity: cpu }));
            for (time, kind) in events {
                let event = Event { time: at(time), kind };
                let mut each = |derived: Derived<'_>| finder.push(&derived, &tables);
                correlator.push(&event, &tables.entities, &mut each);
            }
            correlator.finish(&mut |derived| finder.push(&derived, &tables));
            let lives = finder.finish(&tables).requests;
            let found = lives.first().and_then(|life| tables.entities.kind(life.subject));
            assert_eq!((found, lives.len()), (expected, usize::from(expected.is_some())));
        }
    }

    /// An interval of a thread that executes.
    fn running(subject: EntityId, kind: EntityKind, start: i64, end: i64) -> Interval {
        let [start, end] = [start, end].map(Timestamp::from_nanos);
        let (state, reason, stack) = (State::Running, TextId::EMPTY, None);
        let (thread, proc, holder, kernel) = (None, None, None, Kernel::Unknown);
        Interval { subject, kind, start, end, state, reason, stack, thread, proc, holder, kernel }
    }

    /// Samples mention the thread, and a trace of its program says now and then what it executes.
    #[test]
    fn a_thread_of_which_nothing_is_known_is_there_to_its_end() {
        let mut tables = Tables::new();
        let thread = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
        let subject = Subject::Thread(7);
        let mut finder = Finder::new(Question { subject, ..Question::default() });
        for (start, end) in [(0, 50), (50, 90)] {
            let known = running(thread, EntityKind::Thread, start, end);
            let interval = Interval { state: State::Unknown, ..known };
            finder.push(&Derived::Interval(interval), &tables);
        }
        let found = finder.finish(&tables).requests;
        let found: Vec<_> = found.iter().map(|r| (r.start.nanos(), r.end.nanos())).collect();
        assert_eq!(found, [(0, 90)]);
    }

    /// The kernel's thread of another process can have the id.
    #[test]
    fn a_dotnet_thread_is_of_the_process_that_is_wanted() {
        use EntityKind::{DotnetThread, Thread};
        let mut tables = Tables::new();
        let of = [(100, Thread), (200, DotnetThread)].map(|(pid, kind)| {
            let process = tables.entity(Entity::new(EntityKind::Process, pid));
            (kind, tables.entity(Entity::new(kind, 7).child_of(process)).unwrap())
        });
        for (pid, expected) in [(None, Thread), (Some(100), Thread), (Some(200), DotnetThread)] {
            let subject = Subject::Thread(7);
            let mut finder = Finder::new(Question { subject, pid, ..Question::default() });
            for (kind, subject) in of {
                finder.push(&Derived::Interval(running(subject, kind, 0, 50)), &tables);
            }
            let found = finder.finish(&tables).requests;
            let found: Vec<_> =
                found.iter().map(|life| tables.entities.kind(life.subject)).collect();
            assert_eq!(found, [Some(expected)], "{pid:?}");
        }
    }

    /// Begins or ends a request of this entity.
    fn request(tables: &mut Tables, entity: EntityId) -> [EventKind; 2] {
        let (kind, name, span) = (SpanKind::Region, TextId::EMPTY, tables.new_span());
        let (by, of, stack, is_cut) = (None, None, None, false);
        let begin = EventKind::Begin { span, entity, kind, name, by, of, stack };
        [begin, EventKind::Finish { span, by, is_cut }]
    }

    fn push(finder: &mut Finder, time: i64, kind: EventKind, tables: &Tables) {
        let at = Timestamp::from_nanos(time);
        finder.push(&Derived::Event(Event { time: at, kind }), tables);
    }

    /// Requests that begin after the time between which they are wanted are not kept until they end.
    #[test]
    fn open_requests_are_those_that_can_be_found() {
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let question = Question { between: Some((10, 20)), ..Question::default() };
        let mut finder = Finder::new(question);
        for time in [0, 9, 10, 20, 21, 30] {
            let [begin, _] = request(&mut tables, entity);
            push(&mut finder, time, begin, &tables);
        }
        assert_eq!(finder.requests.values().map(Requests::open).sum::<usize>(), 4);
    }

    /// Of one process, too, only requests are kept until they end.
    #[test]
    fn other_spans_are_no_open_requests() {
        let mut tables = Tables::new();
        let process = tables.entity(Entity::new(EntityKind::Process, 7));
        let goroutine = Entity::new(EntityKind::Goroutine, 1).child_of(process);
        let entity = tables.entity(goroutine).unwrap();
        let mut finder = Finder::new(Question { pid: Some(7), ..Question::default() });
        for kind in [SpanKind::GcAssist, SpanKind::Region, SpanKind::Queued] {
            let (name, span) = (TextId::EMPTY, tables.new_span());
            let (by, of, stack) = (None, None, None);
            let begin = EventKind::Begin { span, entity, kind, name, by, of, stack };
            push(&mut finder, 0, begin, &tables);
        }
        assert_eq!(finder.open.len(), 1);
    }

    /// The longest one can be among those that are not known.
    #[test]
    fn too_many_open_requests_are_an_error() {
        for pid in [None, Some(7)] {
            let mut tables = Tables::new();
            let process = tables.entity(Entity::new(EntityKind::Process, 7));
            let goroutine = Entity::new(EntityKind::Goroutine, 1).child_of(process);
            let entity = tables.entity(goroutine).unwrap();
            for (count, expected) in [(2, None), (3, Some(PathsError::TooMany))] {
                let mut finder = Finder::new(Question { pid, ..Question::default() });
                finder.max_open = 2;
                let spans: Vec<_> = (0..count).map(|_| request(&mut tables, entity)).collect();
                for [begin, _] in &spans {
                    push(&mut finder, 0, *begin, &tables);
                }
                for [_, end] in &spans {
                    push(&mut finder, 10, *end, &tables);
                }
                let paths = Paths::new(finder.finish(&tables)).unwrap();
                assert_eq!(paths.finish(&mut tables).err(), expected, "{pid:?}");
            }
        }
    }

    /// Requests overlap the time in which they are wanted, and are whole.
    #[test]
    fn requests_overlap_the_time_in_which_they_are_wanted() {
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let between = Some((10, 20));
        let mut finder = Finder::new(Question { between, worst: 9, ..Question::default() });
        let times = [(0, 9), (1, 10), (5, 30), (12, 18), (20, 22), (21, 40)];
        let mut events = vec![(0, EventKind::Start { entity })];
        for (start, end) in times {
            let [begun, ended] = request(&mut tables, entity);
            events.extend([(start, begun), (end, ended)]);
        }
        events.sort_by_key(|(time, _)| *time);
        events.into_iter().for_each(|(time, kind)| push(&mut finder, time, kind, &tables));
        let found = finder.finish(&tables).requests.into_iter();
        let found: Vec<_> = found.map(|r| (r.start.nanos(), r.end.nanos())).collect();
        assert_eq!(found, [(5, 30), (1, 10), (12, 18), (20, 22)]);
    }

    /// The id of the process of a Go trace can become known last.
    #[test]
    fn requests_are_of_the_process_that_is_wanted() {
        let mut tables = Tables::new();
        let processes =
            [7, -1, -1].map(|pid| tables.entity(Entity::new(EntityKind::Process, pid)).unwrap());
        let goroutines = processes.map(|process| {
            tables.entity(Entity::new(EntityKind::Goroutine, 1).child_of(Some(process))).unwrap()
        });
        for (pid, expected) in
            [(Some(8), vec![1]), (Some(7), vec![0]), (Some(9), vec![]), (None, vec![2])]
        {
            let mut finder = Finder::new(Question { pid, ..Question::default() });
            for (nanos, goroutine) in (1..).zip(goroutines) {
                let [begin, end] = request(&mut tables, goroutine);
                push(&mut finder, 0, begin, &tables);
                push(&mut finder, nanos, end, &tables);
            }
            tables.entities.get_mut(processes[1]).unwrap().number = 8;
            let found = finder.finish(&tables).requests;
            let found: Vec<_> = found.iter().map(|request| request.subject).collect();
            let expected: Vec<_> = expected.into_iter().map(|place| goroutines[place]).collect();
            assert_eq!(found, expected, "{pid:?}");
        }
    }
}
