//! The past within a window of time.

use crate::correlate::{Derived, Interval, Kernel, Pause, ResolvedFlow, Sampled};
use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::{Event, EventKind, FlowKind, InstantKind, SampleKind, SpanKind, State, Value};
use crate::tables::{SpanId, StackId, TextId};
use hashbrown::{HashMap, HashSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use trace_common::Timestamp;

/// Intervals, flows, spans and stacks of samples of all entities within windows of time: what
/// [`critical_path`](super::critical_path) needs.
#[derive(Debug)]
pub struct History {
    windows: Windows,
    intervals: HashMap<EntityId, Vec<Interval>>,
    /// The positions of those intervals that do not continue the wait of the one before, of subjects with some that do.
    begins: HashMap<EntityId, Vec<usize>>,
    /// Goroutines that wait for a P at the end of a window, and idle Ps: the next interval says for which
    /// P, and which thread takes it.
    runnable: HashSet<EntityId>,
    /// The last flow to each live entity, if it is outside of the windows: it can end a wait within one.
    outside: HashMap<EntityId, ResolvedFlow>,
    /// The creations of entities after the begin of a window. They can be outside of the windows: one of these
    /// entities can end a wait that lasts longer than a window. There are no more than entities.
    creations: HashMap<EntityId, ResolvedFlow>,
    flows: HashMap<EntityId, Vec<ResolvedFlow>>,
    spans: HashMap<EntityId, Vec<Span>>,
    /// The ends of `spans`.
    ends: HashMap<EntityId, Ends>,
    /// The begins of tasks and activities among `spans`, and of regions of them, each with the latest
    /// end up to there.
    tasks: HashMap<EntityId, Vec<(Timestamp, Timestamp)>>,
    /// The begins of stop-the-worlds among `spans`, each with the latest end up to there.
    stops: HashMap<EntityId, Vec<(Timestamp, Timestamp)>>,
    /// The stop-the-worlds that ended, by process and start.
    pauses: HashMap<EntityId, Vec<Pause>>,
    /// The begins of waits for locks among `spans`, and their positions.
    lock_waits: HashMap<EntityId, Vec<(Timestamp, usize)>>,
    /// The holders of the locks that threads waited for, each with its place among all reports of threads and the
    /// number of the lock: in time order after [`History::finish`].
    held_locks: Vec<(u64, u64, Held)>,
    /// The same by lock, once they are looked up.
    holders: OnceLock<Holders>,
    /// The same for what each thread reported last. It is kept if a window overlaps the time up to its
    /// next report, so it began before the end of the last one.
    last_held: HashMap<(u64, EntityId), (u64, Held)>,
    /// Number of reports so far.
    reports: u64,
    /// The first number among the arguments of the next event.
    number: Option<u64>,
    /// Work items by the worker that took them, and awaits by the thread that continues, by their end.
    work_items: HashMap<EntityId, Vec<Span>>,
    /// They are counted, as others are.
    open: HashMap<SpanId, Span>,
    /// The parents of tasks and activities. There are no more than entities.
    parents: HashMap<EntityId, EntityId>,
    /// By process.
    starvation: HashMap<EntityId, Vec<Timestamp>>,
    /// The stacks of samples by goroutine or thread, in time order.
    samples: HashMap<EntityId, Vec<(Timestamp, StackId)>>,
    /// The times off the CPU whose stack is known, by thread, in time order and apart from each other.
    waits: HashMap<EntityId, Vec<Wait>>,
    /// With their process.
    throttles: Vec<(EntityId, Throttle)>,
    /// Their times.
    throttled: Windows,
    /// The waits of threads for a CPU outside of the windows and near them, as they were given. Throttling may overlap
    /// them.
    near: Vec<(EntityId, CpuWait)>,
    /// The begin, the end and the number of those that there was no room for.
    near_dropped: Vec<(Timestamp, Timestamp, u64)>,
    /// Those that throttling overlaps, by thread: it is shared with them.
    throttled_waits: HashMap<EntityId, Vec<CpuWait>>,
    /// Whether a state of a thread of the kernel was known, at any time.
    has_scheduler: bool,
    items: usize,
    dropped: u64,
}

/// Windows of time: the ends by their start. Those that overlap are one.
#[derive(Debug, Default)]
struct Windows(BTreeMap<Timestamp, Timestamp>);

impl Windows {
    fn add(&mut self, mut start: Timestamp, mut end: Timestamp) {
        if start > end {
            return;
        }
        while let Some((first, last)) = self.last(end).filter(|(_, last)| *last >= start) {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// The last window that does not begin later.
    fn last(&self, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
        self.0.range(..=at).next_back().map(|(start, end)| (*start, *end))
    }

    /// Whether all windows end before this time.
    fn are_before(&self, at: Timestamp) -> bool {
        self.0.last_key_value().is_none_or(|(_, end)| *end < at)
    }

    /// Whether a window overlaps this time.
    fn overlaps(&self, start: Timestamp, end: Timestamp) -> bool {
        self.last(end).is_some_and(|(_, last)| last >= start)
    }
}

/// A span: see [`EventKind::Begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The kind.
    pub kind: SpanKind,
    /// The entity that it belongs to.
    pub entity: EntityId,
    /// The name.
    pub name: TextId,
    /// The entity that began it.
    pub by: EntityId,
    /// The entity that ended it.
    pub ended_by: EntityId,
    /// The task, activity, GC or owner of the lock; of a task or activity its parent.
    pub of: Option<EntityId>,
    /// The number of the lock, of a wait for one: see [`SpanKind::LockWait`].
    pub lock: Option<u64>,
    /// Where it began.
    pub stack: Option<StackId>,
    /// The start.
    pub start: Timestamp,
    /// The end; [`Timestamp::MAX`] if it did not end.
    pub end: Timestamp,
    /// Its number: see [`SpanId::number`].
    pub(super) id: SpanId,
}

impl Span {
    /// Whether it is of the runtime, and no thread waits for its end in a state of its own.
    const fn is_of_runtime(&self) -> bool {
        matches!(
            self.kind,
            SpanKind::StopTheWorld
                | SpanKind::Gc
                | SpanKind::GcAssist
                | SpanKind::GcSweep
                | SpanKind::Jit
                | SpanKind::TieredJit
                | SpanKind::TypeLoad
                | SpanKind::Finalizers
        )
    }

    /// The task or activity that an entity works on during a span of its own.
    pub(super) const fn task(&self) -> Option<EntityId> {
        match self.kind {
            SpanKind::Region => self.of,
            SpanKind::Task | SpanKind::Activity | SpanKind::Request => Some(self.entity),
            _ => None,
        }
    }
}

/// Whether it is an activity of .NET.
const fn is_activity(kind: SpanKind) -> bool {
    matches!(kind, SpanKind::Activity | SpanKind::Request)
}

/// A thread holds a lock since then, as far as a thread that waited for the lock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) since: Timestamp,
    /// `None` if it is not known.
    pub(super) by: Option<EntityId>,
    /// The thread that waits at this time, or whose wait ends.
    pub(super) reporter: EntityId,
}

/// Those of the locks of each process, by the number of the lock: several processes can have the same numbers. In time
/// order.
type Holders = HashMap<(Option<EntityId>, u64), Vec<Held>>;

/// A thread is off the CPU.
#[derive(Clone, Copy, Debug)]
struct Wait {
    start: Timestamp,
    end: Timestamp,
    stack: StackId,
}

/// A thread waits for this CPU, if it is known.
#[derive(Clone, Copy, Debug)]
struct CpuWait {
    cpu: Option<EntityId>,
    start: Timestamp,
    end: Timestamp,
}

/// The longest period of a quota: 1 s. The quota of the next one ends the throttling.
const MAX_PERIOD: i64 = 1_000_000_000;

/// A reading of throttling that overlaps a window is about no more than these nanoseconds before and after it: the
/// longest period, and the time between two readings.
const NEAR: i64 = 2 * MAX_PERIOD;

/// Throttling by a CPU quota: see [`EventKind::Throttle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Throttle {
    /// The directory of the cgroup; empty if it is not known.
    pub(super) cgroup: TextId,
    /// It did not begin earlier.
    pub(super) start: Timestamp,
    /// It had ended by then.
    pub(super) end: Timestamp,
    /// Summed over CPUs.
    pub(super) nanos: i64,
}

impl Throttle {
    /// Of a reading of the counters: nanoseconds of throttling that ended since the one before.
    pub(super) fn new(cgroup: TextId, since: Timestamp, end: Timestamp, nanos: i64) -> Self {
        let start = since.saturating_add_nanos(-nanos.clamp(0, MAX_PERIOD));
        Self { cgroup, start, end, nanos }
    }
}

/// Whether an interval continues the wait of the one before it. Something else may change during a wait, such as the P
/// of a goroutine in a system call: then it has several intervals.
fn is_same_wait(before: &Interval, later: &Interval) -> bool {
    let is_wait = match later.kernel {
        Kernel::Sleeping | Kernel::Blocked => before.thread == later.thread,
        _ => before.state == State::Waiting,
    };
    is_wait && before.kernel == later.kernel && before.end == later.start
}

/// The begins of spans, which are in order, each with the latest end up to there.
fn latest_ends<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<(Timestamp, Timestamp)> {
    let mut latest = Timestamp::MIN;
    let ends = spans.map(|span| {
        latest = latest.max(span.end);
        (span.start, latest)
    });
    ends.collect()
}

/// The ends of a list of spans, to find those that end after a time without a look at all of them.
///
/// A binary tree of maxima: the children of node `n` are `2 * n` and `2 * n + 1`, and the second half has
/// the ends themselves.
#[derive(Debug)]
struct Ends(Vec<Timestamp>);

impl Ends {
    fn new(spans: &[Span]) -> Self {
        let leaves = spans.len().next_power_of_two();
        let mut tree = vec![Timestamp::MIN; leaves];
        tree.extend(spans.iter().map(|span| span.end));
        tree.resize(2 * leaves, Timestamp::MIN);
        for node in (1..leaves).rev() {
            let latest = tree.get(2 * node).max(tree.get(2 * node + 1)).copied();
            if let (Some(latest), Some(node)) = (latest, tree.get_mut(node)) {
                *node = latest;
            }
        }
        Self(tree)
    }

    /// The positions of the first `count` spans that end later than `at`, in order.
    fn after(&self, at: Timestamp, count: usize) -> Vec<usize> {
        let leaves = self.0.len() / 2;
        let mut found = Vec::new();
        // Nodes that can have some, the first one last, with the position of their first leaf and the
        // number of their leaves.
        let mut nodes = vec![(1, 0, leaves)];
        while let Some((node, first, len)) = nodes.pop() {
            if first >= count || self.0.get(node).is_none_or(|latest| *latest <= at) {
                continue;
            }
            if len <= 1 {
                found.push(first);
                continue;
            }
            let half = len / 2;
            nodes.push((2 * node + 1, first + half, half));
            nodes.push((2 * node, first, half));
        }
        found
    }
}

impl History {
    /// Maximum number of intervals, flows, spans, samples, and stops for stop-the-worlds: about 800 MB. Spans that are
    /// open count, too.
    pub const MAX: usize = 8 << 20;

    /// Maximum number of waits for a CPU near the windows that throttling may overlap. Of more, the latest are kept.
    const MAX_NEAR: usize = 1 << 20;

    /// Makes an empty history of the time from `start` to `end`.
    pub fn new(start: Timestamp, end: Timestamp) -> Self {
        let mut history = Self {
            windows: Windows::default(),
            intervals: HashMap::new(),
            begins: HashMap::new(),
            runnable: HashSet::new(),
            outside: HashMap::new(),
            creations: HashMap::new(),
            flows: HashMap::new(),
            spans: HashMap::new(),
            ends: HashMap::new(),
            tasks: HashMap::new(),
            stops: HashMap::new(),
            pauses: HashMap::new(),
            lock_waits: HashMap::new(),
            held_locks: Vec::new(),
            holders: OnceLock::new(),
            last_held: HashMap::new(),
            reports: 0,
            number: None,
            work_items: HashMap::new(),
            open: HashMap::new(),
            parents: HashMap::new(),
            starvation: HashMap::new(),
            samples: HashMap::new(),
            waits: HashMap::new(),
            throttles: Vec::new(),
            throttled: Windows::default(),
            near: Vec::new(),
            near_dropped: Vec::new(),
            throttled_waits: HashMap::new(),
            has_scheduler: false,
            items: 0,
            dropped: 0,
        };
        history.add_window(start, end);
        history
    }

    /// Keeps this window of time too.
    pub fn add_window(&mut self, start: Timestamp, end: Timestamp) {
        self.windows.add(start, end);
    }

    /// Whether a window overlaps this time.
    fn overlaps(&self, start: Timestamp, end: Timestamp) -> bool {
        self.windows.overlaps(start, end)
    }

    /// Whether an interval is within a window, or the first one after it of a goroutine that waits for
    /// a P, or of an idle P.
    fn is_kept(&mut self, interval: &Interval) -> bool {
        let is_next = !self.runnable.is_empty() && self.runnable.remove(&interval.subject);
        let is_within = self.overlaps(interval.start, interval.end);
        if is_within && !self.overlaps(interval.end, interval.end) {
            let waits_for_next = matches!(
                (interval.state, interval.kind),
                (State::Runnable, EntityKind::Goroutine) | (State::Idle, EntityKind::Proc)
            );
            if waits_for_next {
                self.runnable.insert(interval.subject);
            }
            for to in [Some(interval.subject), interval.thread].into_iter().flatten() {
                self.keep_outside(to, interval.end);
            }
        }
        is_within || is_next
    }

    fn push_interval(&mut self, interval: Interval) {
        self.has_scheduler |=
            interval.kind == EntityKind::Thread && interval.kernel != Kernel::Unknown;
        if !self.is_kept(&interval) {
            self.keep_near(&interval);
        } else if self.has_room() {
            self.intervals.entry(interval.subject).or_default().push(interval);
        }
    }

    /// Keeps a wait of a thread for a CPU near a window, outside of it. Throttling that overlaps the window may be
    /// that of this thread: that is known later.
    fn keep_near(&mut self, interval: &Interval) {
        let Interval { subject, kind, start, end, .. } = *interval;
        let Kernel::Runnable { cpu, .. } = interval.kernel else { return };
        let (from, to) = (start.saturating_add_nanos(-NEAR), end.saturating_add_nanos(NEAR));
        if kind != EntityKind::Thread || !self.overlaps(from, to) {
            return;
        }
        if self.near.len() >= Self::MAX_NEAR {
            self.keep_throttled();
            self.near.retain(|(_, wait)| wait.end >= from);
            let excess = self.near.len().saturating_sub(Self::MAX_NEAR / 2);
            let dropped = self.near.drain(..excess).map(|(_, wait)| (wait.start, wait.end));
            let extent = dropped.reduce(|all, wait| (all.0.min(wait.0), all.1.max(wait.1)));
            self.near_dropped.extend(extent.map(|(start, end)| (start, end, excess as u64)));
        }
        self.near.push((subject, CpuWait { cpu, start, end }));
    }

    /// Keeps the waits near the windows that throttling overlaps.
    fn keep_throttled(&mut self) {
        for (thread, wait) in std::mem::take(&mut self.near) {
            if !self.throttled.overlaps(wait.start, wait.end) {
                self.near.push((thread, wait));
            } else if self.has_room() {
                self.throttled_waits.entry(thread).or_default().push(wait);
            }
        }
    }

    /// Keeps the flow outside of the windows that ended a wait within one.
    fn keep_outside(&mut self, to: EntityId, at: Timestamp) {
        if self.outside.get(&to).is_some_and(|flow| flow.time == at) && self.has_room() {
            let flow = self.outside.remove(&to);
            self.flows.entry(to).or_default().extend(flow);
        }
    }

    /// Adds derived data, if it is within a window.
    pub fn push(&mut self, derived: &Derived<'_>) {
        match *derived {
            Derived::Interval(interval) => self.push_interval(interval),
            Derived::Flow(flow) => {
                if flow.kind == FlowKind::Creates && self.windows.last(flow.time).is_some() {
                    self.creations.entry(flow.to).or_insert(flow);
                }
                if !self.overlaps(flow.time, flow.time) {
                    self.outside.insert(flow.to, flow);
                } else if self.has_room() {
                    self.flows.entry(flow.to).or_default().push(flow);
                }
            }
            Derived::Sample(Sampled {
                time: at,
                entity,
                kind: SampleKind::OffCpu,
                stack: Some(stack),
                weight,
                ..
            }) => {
                let nanos = i64::try_from(weight).unwrap_or(i64::MAX);
                let start = at.saturating_add_nanos(-nanos);
                if self.overlaps(start, at) && self.has_room() {
                    let waits = self.waits.entry(entity).or_default();
                    // It came back in between, as the sample before says.
                    let start = waits.last().map_or(start, |before| start.max(before.end));
                    waits.push(Wait { start, end: at, stack });
                }
            }
            Derived::Sample(Sampled { time: at, entity, kind, stack: Some(stack), .. })
                if kind != SampleKind::Allocation && self.overlaps(at, at) && self.has_room() =>
            {
                self.samples.entry(entity).or_default().push((at, stack));
            }
            Derived::Pause(pause)
                if self.overlaps(pause.start, pause.end)
                    && self.has_room_for(1 + pause.stops.len()) =>
            {
                self.pauses.entry(pause.process).or_default().push(pause.clone());
            }
            Derived::Event(event) => self.push_event(&event),
            _ => {}
        }
    }

    fn push_event(&mut self, event: &Event) {
        let number = match event.kind {
            EventKind::Argument { value, .. } => {
                if let Value::Uint(number) = value {
                    self.number.get_or_insert(number);
                }
                return;
            }
            _ => self.number.take(),
        };
        match event.kind {
            // After the windows it is no part of them.
            EventKind::Begin { .. } if self.windows.are_before(event.time) => {}
            EventKind::Begin { span, entity, kind, name, by, of, stack } => {
                let (start, by) = (event.time, by.unwrap_or(entity));
                let (end, ended_by, id) = (Timestamp::MAX, entity, span);
                let lock = number.filter(|_| kind == SpanKind::LockWait);
                let begun =
                    Span { kind, entity, name, by, ended_by, of, lock, stack, start, end, id };
                if let Some(lock) = lock {
                    self.held(lock, Held { since: start, by: of, reporter: entity });
                }
                if let Some(parent) = of.filter(|_| kind == SpanKind::Task || is_activity(kind)) {
                    self.parents.insert(entity, parent);
                }
                if self.has_room() {
                    self.items -= usize::from(self.open.insert(span, begun).is_some());
                }
            }
            EventKind::Finish { span, by, is_cut } => {
                // It would explain waits after its end, which is not known.
                let is_misleading = |span: &Span| is_cut && span.is_of_runtime();
                let span = self.open.remove(&span);
                self.items -= usize::from(span.is_some());
                if let Some((lock, entity)) =
                    span.filter(|_| !is_cut).and_then(|span| Some((span.lock?, span.entity)))
                {
                    let (since, by) = (event.time, Some(entity));
                    self.held(lock, Held { since, by, reporter: entity });
                }
                if let Some(span) = span.filter(|span| !is_misleading(span)) {
                    let ended_by = by.unwrap_or(span.entity);
                    self.add_span(Span { end: event.time, ended_by, ..span });
                }
            }
            // Its last interval has come.
            EventKind::End { entity } => {
                self.outside.remove(&entity);
                self.runnable.remove(&entity);
            }
            EventKind::Instant { entity, kind: InstantKind::Starvation, .. }
                if self.overlaps(event.time, event.time) && self.has_room() =>
            {
                self.starvation.entry(entity).or_default().push(event.time);
            }
            EventKind::Throttle { process, cgroup, since, nanos, .. } => {
                let throttle = Throttle::new(cgroup, since, event.time, nanos);
                if self.overlaps(throttle.start, throttle.end) && self.has_room() {
                    self.throttled.add(throttle.start, throttle.end);
                    self.throttles.push((process, throttle));
                }
            }
            _ => {}
        }
    }

    /// A thread reports the holder of a lock.
    fn held(&mut self, lock: u64, held: Held) {
        // After the windows it says nothing of them. The report before it remains.
        if self.windows.are_before(held.since) {
            return;
        }
        let key = (lock, held.reporter);
        if !self.last_held.contains_key(&key) && !self.has_room() {
            return;
        }
        self.reports += 1;
        let last = self.last_held.insert(key, (self.reports, held));
        if let Some((report, last)) = last.filter(|(_, last)| self.overlaps(last.since, held.since))
        {
            self.keep_held(lock, report, last);
        }
    }

    fn keep_held(&mut self, lock: u64, report: u64, held: Held) {
        if self.has_room() {
            self.held_locks.push((report, lock, held));
        }
    }

    /// Ends the history: spans that are still open have no end.
    pub fn finish(&mut self) {
        let open: Vec<Span> = self.open.drain().map(|(_, span)| span).collect();
        self.items -= open.len();
        open.into_iter().for_each(|span| self.add_span(span));
        // These are counted.
        let last = self.last_held.drain().map(|((lock, _), (report, held))| (report, lock, held));
        self.held_locks.extend(last);
        self.held_locks.sort_unstable_by_key(|(report, ..)| *report);
        self.keep_throttled();
        self.near = Vec::new();
        for waits in self.throttled_waits.values_mut() {
            waits.sort_by_key(|wait| wait.end);
        }
        for (start, end, waits) in std::mem::take(&mut self.near_dropped) {
            self.dropped += if self.throttled.overlaps(start, end) { waits } else { 0 };
        }
        for (subject, intervals) in &self.intervals {
            let pairs = intervals.iter().zip(intervals.iter().enumerate().skip(1));
            let others = pairs.filter(|(before, (_, later))| !is_same_wait(before, later));
            let others = others.map(|(_, (index, _))| index);
            let begins: Vec<usize> = std::iter::once(0).chain(others).collect();
            if begins.len() < intervals.len() {
                self.begins.insert(*subject, begins);
            }
        }
        for pauses in self.pauses.values_mut() {
            pauses.sort_by_key(|pause| (pause.start, pause.end));
        }
        for (entity, spans) in &mut self.spans {
            // Of those that begin together, the outer ones first: they end last, or began first.
            spans.sort_unstable_by_key(|span| (span.start, Reverse(span.end), span.id));
            self.ends.insert(*entity, Ends::new(spans));
            let tasks = spans.iter().filter(|span| span.task().is_some());
            self.tasks.insert(*entity, latest_ends(tasks));
            let stops = latest_ends(spans.iter().filter(|s| s.kind == SpanKind::StopTheWorld));
            if !stops.is_empty() {
                self.stops.insert(*entity, stops);
            }
            let waits = spans.iter().enumerate().filter(|(_, s)| s.kind == SpanKind::LockWait);
            let waits: Vec<_> = waits.map(|(position, span)| (span.start, position)).collect();
            if !waits.is_empty() {
                self.lock_waits.insert(*entity, waits);
            }
        }
    }

    fn add_span(&mut self, span: Span) {
        if !self.overlaps(span.start, span.end) || !self.has_room() {
            self.parents.remove(&span.entity);
            return;
        }
        if matches!(span.kind, SpanKind::Queued | SpanKind::Await) && span.end < Timestamp::MAX {
            self.work_items.entry(span.ended_by).or_default().push(span);
        }
        self.spans.entry(span.entity).or_default().push(span);
        // A task also belongs to the goroutine that began it, and an activity to its thread: one that
        // another thread ended was handed over, and nothing says when.
        let is_whole = is_activity(span.kind) && span.by == span.ended_by;
        if span.by != span.entity && (is_whole || span.kind == SpanKind::Task) {
            self.spans.entry(span.by).or_default().push(span);
        }
    }

    /// Whether a task or activity is `ancestor` or a part of it.
    pub(super) fn is_part_of(&self, task: EntityId, ancestor: EntityId) -> bool {
        /// More is a cycle, or made to cost time.
        const MAX_DEPTH: usize = 64;
        let mut up = std::iter::successors(Some(task), |task| self.parents.get(task).copied());
        up.by_ref().take(MAX_DEPTH).any(|task| task == ancestor)
    }

    fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    /// Whether there is room for this number of items, which are counted.
    fn has_room_for(&mut self, items: usize) -> bool {
        let has_room = items <= Self::MAX - self.items;
        self.items += if has_room { items } else { 0 };
        self.dropped += u64::from(!has_room);
        has_room
    }

    /// Number of intervals, flows, spans, samples and stop-the-worlds that are missing because there were more than
    /// [`History::MAX`], and of waits for a CPU around the windows that may have a share of throttling. Then narrow the
    /// window.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The intervals of a subject, in time order.
    pub fn intervals(&self, subject: EntityId) -> &[Interval] {
        self.intervals.get(&subject).map_or(&[], Vec::as_slice)
    }

    /// The subjects that have intervals, in order.
    pub fn subjects(&self) -> Vec<EntityId> {
        let mut subjects: Vec<EntityId> = self.intervals.keys().copied().collect();
        subjects.sort_unstable();
        subjects
    }

    /// The subjects that have intervals or [waits for a CPU](Self::cpu_waits), in no order.
    pub(super) fn with_waits(&self) -> impl Iterator<Item = EntityId> {
        let near = self.throttled_waits.keys();
        let near = near.filter(move |id| !self.intervals.contains_key(*id));
        self.intervals.keys().chain(near).copied()
    }

    /// Whether the kernel's scheduler was recorded, at some time.
    pub(super) const fn has_scheduler(&self) -> bool {
        self.has_scheduler
    }

    /// The flows to an entity, in time order.
    pub fn flows_to(&self, entity: EntityId) -> &[ResolvedFlow] {
        self.flows.get(&entity).map_or(&[], Vec::as_slice)
    }

    /// The spans of an entity, by their start; after [`History::finish`].
    pub fn spans(&self, entity: EntityId) -> &[Span] {
        self.spans.get(&entity).map_or(&[], Vec::as_slice)
    }

    /// The spans of an entity that are open at this time, and before them the position of the first one
    /// that begins later.
    pub(super) fn open_spans(&self, entity: EntityId, at: Timestamp) -> (usize, Vec<usize>) {
        let later = self.spans(entity).partition_point(|span| span.start <= at);
        (later, self.ends.get(&entity).map_or_else(Vec::new, |ends| ends.after(at, later)))
    }

    /// The most frequent stack of the samples of a goroutine or thread from `start` to before `end`, the
    /// earliest of several, and the number of samples.
    pub(super) fn sampled(
        &self,
        entity: EntityId,
        start: Timestamp,
        end: Timestamp,
    ) -> Option<(StackId, u32)> {
        let samples = self.samples.get(&entity)?;
        let first = samples.partition_point(|(at, _)| *at < start);
        let after = samples.partition_point(|(at, _)| *at < end);
        let within = samples.get(first..after)?;
        let mut counts: HashMap<StackId, (u32, usize)> = HashMap::new();
        for (place, (_, stack)) in within.iter().enumerate() {
            counts.entry(*stack).or_insert((0, place)).0 += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, (count, place))| (*count, Reverse(*place)));
        most.map(|(stack, _)| (stack, u32::try_from(within.len()).unwrap_or(u32::MAX)))
    }

    /// The stack where a thread left the CPU, if it was off it for most of the time from `start` to
    /// `end` without coming back.
    pub(super) fn waited(
        &self,
        entity: EntityId,
        start: Timestamp,
        end: Timestamp,
    ) -> Option<StackId> {
        let waits = self.waits.get(&entity)?;
        let first = waits.partition_point(|wait| wait.end <= start);
        let within = waits.iter().skip(first).take_while(|wait| wait.start < end);
        let overlap = |wait: &Wait| wait.end.min(end).nanos_since(wait.start.max(start));
        let longest = within.max_by_key(|wait| (overlap(wait), Reverse(wait.start)))?;
        (overlap(longest) > end.nanos_since(start) / 2).then_some(longest.stack)
    }

    /// The work item that a worker of the .NET thread pool had taken last at this time.
    pub(super) fn work_item(&self, worker: EntityId, at: Timestamp) -> Option<&Span> {
        let items = self.work_items.get(&worker)?;
        let after = items.partition_point(|span| span.end <= at);
        items.get(after.checked_sub(1)?)
    }

    /// Whether an entity worked on a task or activity at some time from `start` to `end`.
    pub(super) fn has_task(&self, entity: EntityId, start: Timestamp, end: Timestamp) -> bool {
        let tasks = self.tasks.get(&entity).map_or(&[][..], Vec::as_slice);
        let before = tasks.partition_point(|(begun, _)| *begun < end).checked_sub(1);
        let latest = before.and_then(|index| tasks.get(index));
        latest.is_some_and(|(_, latest)| *latest > start)
    }

    /// Whether the world of a process was stopped at this time, or about to stop or continue.
    pub(super) fn is_stopped(&self, process: EntityId, at: Timestamp) -> bool {
        let stops = self.stops.get(&process).map_or(&[][..], Vec::as_slice);
        let begun = stops.partition_point(|(start, _)| *start <= at).checked_sub(1);
        let latest = begun.and_then(|index| stops.get(index));
        latest.is_some_and(|(_, latest)| *latest >= at)
    }

    /// The stop-the-world of a process that began last before this time. It can have ended.
    pub(super) fn pause(&self, process: EntityId, at: Timestamp) -> Option<&Pause> {
        let pauses = self.pauses.get(&process)?;
        let before = pauses.partition_point(|pause| pause.start < at);
        pauses.get(before.checked_sub(1)?)
    }

    /// The wait of a thread for a lock that began last, up to this time.
    pub(super) fn lock_wait(&self, thread: EntityId, at: Timestamp) -> Option<&Span> {
        let waits = self.lock_waits.get(&thread)?;
        let after = waits.partition_point(|(start, _)| *start <= at);
        let (_, position) = waits.get(after.checked_sub(1)?)?;
        self.spans(thread).get(*position)
    }

    /// The holder of a lock of a process before a time, as far as the threads that waited for it say; after
    /// [`History::finish`].
    pub(super) fn holder(
        &self,
        entities: &Entities,
        process: Option<EntityId>,
        lock: u64,
        at: Timestamp,
    ) -> Option<Held> {
        let holders = self.holders.get_or_init(|| {
            let mut holders = Holders::new();
            for (_, lock, held) in &self.held_locks {
                let process = entities.process_of(held.reporter);
                holders.entry((process, *lock)).or_default().push(*held);
            }
            holders
        });
        let holders = holders.get(&(process, lock))?;
        let before = holders.partition_point(|held| held.since < at);
        holders.get(before.checked_sub(1)?).copied()
    }

    /// The creation of an entity, if its creator is known. It can be after the windows.
    pub(super) fn creation(&self, entity: EntityId) -> Option<&ResolvedFlow> {
        self.creations.get(&entity)
    }

    /// Number of workers that the .NET thread pool of a process added from `start` to before `end` because
    /// queued work items did not start.
    pub(super) fn starvation(&self, process: EntityId, start: Timestamp, end: Timestamp) -> u32 {
        let times = self.starvation.get(&process).map_or(&[][..], Vec::as_slice);
        let first = times.partition_point(|at| *at < start);
        let after = times.partition_point(|at| *at < end);
        u32::try_from(after.saturating_sub(first)).unwrap_or(u32::MAX)
    }

    /// Throttling that overlaps this time, with a process of the cgroup.
    pub(super) fn throttles(
        &self,
        start: Timestamp,
        end: Timestamp,
    ) -> impl Iterator<Item = (EntityId, Throttle)> {
        self.throttles.iter().filter(move |(_, t)| t.start < end && t.end > start).copied()
    }

    /// The waits of a thread for a CPU that overlap the time from `start` to `end`, which throttling overlaps: the CPU,
    /// if it is known, and the part within that time. First those within the windows, then the others; after
    /// [`History::finish`].
    pub(super) fn cpu_waits(
        &self,
        thread: EntityId,
        start: Timestamp,
        end: Timestamp,
    ) -> impl Iterator<Item = (Option<EntityId>, Timestamp, Timestamp)> {
        let intervals = self.intervals(thread);
        let first = intervals.partition_point(|interval| interval.end <= start);
        let within = intervals.iter().skip(first).take_while(move |i| i.start < end);
        let within = within.filter_map(|interval| match interval.kernel {
            Kernel::Runnable { cpu, .. } => Some((cpu, interval.start, interval.end)),
            _ => None,
        });
        let near = self.throttled_waits.get(&thread).map_or(&[][..], Vec::as_slice);
        let first = near.partition_point(|wait| wait.end <= start);
        let near = near.iter().skip(first).take_while(move |wait| wait.start < end);
        let all = within.chain(near.map(|wait| (wait.cpu, wait.start, wait.end)));
        all.map(move |(cpu, from, to)| (cpu, from.max(start), to.min(end)))
    }

    /// When a wait began, by the position of one of its intervals; after [`History::finish`].
    pub(super) fn wait_begin(&self, subject: EntityId, index: usize) -> Option<Timestamp> {
        let first = match self.begins.get(&subject) {
            Some(begins) => {
                let after = begins.partition_point(|begin| *begin <= index);
                *begins.get(after.checked_sub(1)?)?
            }
            None => index,
        };
        self.intervals(subject).get(first).map(|interval| interval.start)
    }

    /// The last interval that begins before `at`, and its position.
    pub(super) fn before(&self, subject: EntityId, at: Timestamp) -> Option<(usize, &Interval)> {
        let intervals = self.intervals(subject);
        let index = intervals.partition_point(|i| i.start < at).checked_sub(1)?;
        intervals.get(index).map(|interval| (index, interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::Occupant;
    use crate::entity::Entity;
    use crate::event::Context;
    use crate::tables::{Frame, Tables};
    use proptest::prelude::*;

    /// A program can leave any number of spans open, within the windows and outside.
    #[test]
    fn open_spans_are_counted() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let mut history = History::new(at(10), at(20));
        let mut push = |history: &mut History, time: i64| {
            let (span, kind, name) = (tables.new_span(), SpanKind::Region, TextId::EMPTY);
            let (by, of, stack) = (None, None, None);
            let kind = EventKind::Begin { span, entity, kind, name, by, of, stack };
            history.push(&Derived::Event(Event { time: at(time), kind }));
            span
        };
        let spans = [0, 1, 15, 20, 21, 30].map(|time| push(&mut history, time));
        assert_eq!((history.open.len(), history.items), (4, 4));
        // That one ends before the window.
        let (span, by, is_cut) = (spans[0], None, false);
        let kind = EventKind::Finish { span, by, is_cut };
        history.push(&Derived::Event(Event { time: at(5), kind }));
        assert_eq!((history.open.len(), history.items), (3, 3));
        history.items = History::MAX;
        push(&mut history, 10);
        assert_eq!((history.open.len(), history.dropped), (3, 1));
        history.items = 3;
        history.finish();
        assert_eq!((history.spans(entity).len(), history.items), (3, 3));
    }

    /// The inner one ends first, maybe at the same time.
    #[test]
    fn of_spans_with_the_same_times_the_later_one_is_the_inner_one() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let mut history = History::new(at(0), at(20));
        let mut push = |time, kind| history.push(&Derived::Event(Event { time: at(time), kind }));
        let names = ["outer", "inner", "open"].map(|name| tables.text(name.as_bytes()));
        let spans = names.map(|name| {
            let (span, kind) = (tables.new_span(), SpanKind::Region);
            let (by, of, stack) = (None, None, None);
            push(0, EventKind::Begin { span, entity, kind, name, by, of, stack });
            span
        });
        for span in [spans[1], spans[0]] {
            push(10, EventKind::Finish { span, by: None, is_cut: false });
        }
        history.finish();
        let found = history.spans(entity).iter().map(|span| span.name);
        assert_eq!(found.collect::<Vec<_>>(), [names[2], names[0], names[1]]);
    }

    /// What threads report after the windows is not kept; the rest counts.
    #[test]
    fn holders_of_locks_are_kept_up_to_the_last_window() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let [first, other] = [1, 2]
            .map(|number| tables.entity(Entity::new(EntityKind::DotnetThread, number)).unwrap());
        let mut history = History::new(at(10), at(20));
        for (since, reporter) in [(1, first), (5, first), (15, first), (21, first), (30, other)] {
            history.held(9, Held { since: at(since), by: None, reporter });
        }
        assert_eq!((history.last_held.len(), history.items), (1, 2));
        history.finish();
        let found = history.held_locks.iter().map(|(_, _, held)| held.since.nanos());
        assert_eq!(found.collect::<Vec<_>>(), [5, 15]);
    }

    /// A recording can have any number of goroutines that ended before the windows.
    #[test]
    fn flows_to_entities_that_ended_are_not_kept() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let mut history = History::new(at(1000), at(2000));
        for number in 0..10 {
            let to = tables.entity(Entity::new(EntityKind::Goroutine, number)).unwrap();
            let (kind, context) = (FlowKind::Creates, Context::Task);
            let (from, from_thread, to_holder, stack) = (None, None, None, None);
            let time = at(number);
            let flow =
                ResolvedFlow { time, kind, from, from_thread, context, to, to_holder, stack };
            history.push(&Derived::Flow(flow));
            assert_eq!(history.outside.len(), 1);
            history.push(&Derived::Event(Event { time, kind: EventKind::End { entity: to } }));
            assert_eq!(history.outside.len(), 0);
        }
    }

    /// Pieces of a path follow each other: what happens where one ends and the next one begins is of that one.
    #[test]
    fn what_happens_between_two_pieces_is_of_one_of_them() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let process = tables.entity(Entity::new(EntityKind::Process, 1)).unwrap();
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let stack = tables.stack(&[Frame::default()]);
        let mut history = History::new(at(0), at(30));
        for time in [0, 10, 10, 15, 20].map(at) {
            let (kind, weight, event) = (SampleKind::GoCpu, 1, Default::default());
            let (thread, of, kernel, stop_requested) = (None, None, Kernel::Unknown, None);
            history.push(&Derived::Sample(Sampled {
                time,
                entity,
                thread,
                kind,
                stack,
                weight,
                event,
                of,
                kernel,
                stop_requested,
            }));
            let (entity, kind, name) = (process, InstantKind::Starvation, TextId::EMPTY);
            let kind = EventKind::Instant { entity, kind, name, of: None, stack: None };
            history.push(&Derived::Event(Event { time, kind }));
        }
        history.finish();
        for (start, end, expected) in [(0, 10, 1), (10, 20, 3), (20, 30, 1)] {
            let (start, end) = (at(start), at(end));
            assert_eq!(history.sampled(entity, start, end), stack.map(|stack| (stack, expected)));
            assert_eq!(history.starvation(process, start, end), expected);
        }
    }

    /// Threads can wait for CPUs at any rate near the windows. Without throttling, that is of no interest.
    #[test]
    fn waits_near_the_windows_are_limited() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let subject = tables.entity(Entity::new(EntityKind::Thread, 1)).unwrap();
        let (mut history, mut most) = (History::new(at(0), at(10)), 0);
        for start in 11..11 + 2 * History::MAX_NEAR as i64 {
            history.push(&Derived::Interval(wait(subject, at(start))));
            most = most.max(history.near.len());
        }
        assert_eq!(most, History::MAX_NEAR);
        history.finish();
        assert_eq!((history.intervals.len(), history.throttled_waits.len()), (0, 0));
        assert_eq!((history.items, history.dropped), (0, 0));
    }

    /// A wait of a thread for a CPU that lasts a nanosecond.
    fn wait(subject: EntityId, start: Timestamp) -> Interval {
        let (kind, end) = (EntityKind::Thread, start.saturating_add_nanos(1));
        let (state, reason, stack) = (State::Runnable, TextId::EMPTY, None);
        let (thread, proc, holder) = (Some(subject), None, None);
        let (cpu, occupant, is_preempted) = (None, Occupant::Unknown, true);
        let kernel = Kernel::Runnable { cpu, occupant, is_preempted };
        Interval { subject, kind, start, end, state, reason, stack, thread, proc, holder, kernel }
    }

    /// They are known to be throttled before or after there are too many of them.
    #[test]
    fn throttled_waits_near_the_windows_are_kept_or_counted() {
        const MAX: usize = History::MAX_NEAR;
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let thread = tables.entity(Entity::new(EntityKind::Thread, 1)).unwrap();
        let process = tables.entity(Entity::new(EntityKind::Process, 1)).unwrap();
        for (end, is_known_before, expected) in [
            (11, true, (MAX, 0)),
            (11, false, (MAX / 2, MAX as u64 / 2)),
            // The throttling ends before them.
            (10, false, (0, 0)),
        ] {
            let (since, nanos, cgroup, periods) = (at(5), 0, TextId::EMPTY, 1);
            let kind = EventKind::Throttle { process, cgroup, since, nanos, periods };
            let throttle = Derived::Event(Event { time: at(end), kind });
            let last = Derived::Interval(wait(thread, at(20)));
            let mut history = History::new(at(0), at(10));
            history.near = vec![(thread, CpuWait { cpu: None, start: at(11), end: at(12) }); MAX];
            let both = if is_known_before { [throttle, last] } else { [last, throttle] };
            both.iter().for_each(|derived| history.push(derived));
            history.finish();
            let kept = history.throttled_waits.values().map(Vec::len).sum::<usize>();
            assert_eq!((kept, history.dropped), expected, "{end} {is_known_before}");
        }
    }

    proptest! {
        /// A wait has its begin as if the intervals before were looked at one after the other.
        #[test]
        fn the_begin_of_a_wait_is_that_of_its_intervals(
            steps in
                proptest::collection::vec((0..2i64, 0..4usize, any::<bool>(), 0..3usize), 1..40),
        ) {
            let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
            let subject = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
            let other = tables.entity(Entity::new(EntityKind::Thread, 1));
            let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
            let mut end = 0;
            for (gap, kernel, waits, thread) in steps {
                let start = end + 10 * gap;
                end = start + 10;
                let kernels = [Kernel::Sleeping, Kernel::Blocked, Kernel::Absent, Kernel::Unknown];
                let kernel = kernels[kernel];
                let state = if waits { State::Waiting } else { State::Running };
                let thread = [None, Some(subject), other][thread];
                let known = wait(subject, at(start));
                history.push(&Derived::Interval(Interval {
                    kind: EntityKind::Goroutine,
                    end: at(end),
                    state,
                    thread,
                    kernel,
                    ..known
                }));
            }
            history.finish();
            let intervals = history.intervals(subject);
            for index in 0..intervals.len() {
                let mut first = index;
                while first > 0 && is_same_wait(&intervals[first - 1], &intervals[first]) {
                    first -= 1;
                }
                let expected = intervals[first].start;
                prop_assert_eq!(history.wait_begin(subject, index), Some(expected));
            }
        }

        /// Windows that are merged overlap what one of them overlaps.
        #[test]
        fn merged_windows_are_the_same_time(
            windows in proptest::collection::vec((0..100i64, 0..20i64), 1..20),
            start in -5..125i64,
            nanos in 0..30i64,
        ) {
            let at = Timestamp::from_nanos;
            let windows: Vec<_> =
                windows.into_iter().map(|(start, nanos)| (at(start), at(start + nanos))).collect();
            let mut history = History::new(windows[0].0, windows[0].1);
            windows[1..].iter().for_each(|(start, end)| history.add_window(*start, *end));
            let (start, end) = (at(start), at(start + nanos));
            let any = windows.iter().any(|window| window.1 >= start && window.0 <= end);
            prop_assert_eq!(history.overlaps(start, end), any);
            let merged: Vec<_> = history.windows.0.iter().collect();
            prop_assert!(merged.is_sorted_by(|before, after| before.1 < after.0));
        }
    }
}
