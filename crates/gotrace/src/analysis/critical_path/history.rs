//! What goroutines and Ps did, within windows of time.

use super::super::Name;
use super::super::generation::Generation;
use super::super::stacks::Stacks;
use super::regions::Regions;
use crate::event::{Event, EventKind, RangeName, Stack, StateTransition};
use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId, TaskId};
use std::collections::HashMap;
use trace_common::{SeededState, Timestamp};

/// The place of a goroutine in [`History::goroutines`].
pub(super) type Key = u32;

/// A state of a goroutine, until the next one begins.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) begin: Timestamp,
    /// `Undetermined` where it is not known.
    pub(super) state: GoState,
    /// Why it waits.
    pub(super) reason: Option<Name>,
    /// Where it stopped: a number of [`History::stacks`], 0 for none.
    pub(super) stack: u32,
    /// The goroutine that ended the wait before.
    pub(super) by: Option<Key>,
    /// The P on which it begins to run.
    pub(super) proc: ProcId,
}

/// A goroutine within the windows.
#[derive(Debug)]
pub(super) struct Goroutine {
    pub(super) id: GoId,
    pub(super) entry: Option<Name>,
    /// Its creation, and the goroutine that created it, if the trace contains that.
    pub(super) created: Option<(Timestamp, Option<Key>)>,
    pub(super) ended: Option<Timestamp>,
    pub(super) intervals: Vec<Interval>,
    pub(super) spans: Spans,
    /// Stacks of CPU samples.
    pub(super) samples: Vec<(Timestamp, u32)>,
    /// Open regions, those of unknown tasks without a span.
    regions: Regions<Option<Span>>,
    assist: Option<Timestamp>,
    /// Whether there is something that a loss ends: it is in [`History::known`].
    is_known: bool,
    /// Whether it takes room of [`History::items`].
    is_counted: bool,
    /// Distinguishes goroutines that have one place after the other.
    number: u64,
}

/// What a P does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Executes this goroutine.
    Goroutine(Key),
    Idle,
    /// Neither, or not known.
    Between,
}

/// What a P does over time.
#[derive(Debug, Default)]
struct Proc {
    uses: Vec<(Timestamp, Use)>,
    /// Whether it is in [`History::known_procs`].
    is_known: bool,
}

/// The kind of a [`Span`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    /// Assists the GC.
    Assist,
    /// The goroutine stops the world, for this reason.
    StopTheWorld(Option<Key>, Name),
    /// It works on this task.
    Task(TaskId, Name),
}

#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) kind: SpanKind,
    pub(super) begin: Timestamp,
    /// [`Timestamp::MAX`] if it did not end.
    pub(super) end: Timestamp,
}

/// A task that has not ended.
#[derive(Debug)]
struct OpenTask {
    /// The goroutine that began it, with its number.
    by: Option<(Key, u64)>,
    parent: TaskId,
    span: Span,
}

/// Spans of a goroutine or of the program.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// After [`Spans::sort`], by their begin.
    spans: Vec<Span>,
    /// For each: the latest end up to there.
    ends: Vec<Timestamp>,
    /// The same of work on tasks alone.
    task_ends: Vec<Timestamp>,
}

impl Spans {
    fn sort(&mut self) {
        self.spans.sort_by_key(|span| span.begin);
        let latest = |is_counted: fn(&Span) -> bool| {
            let mut latest = Timestamp::MIN;
            let up_to = |span: &Span| {
                if is_counted(span) {
                    latest = span.end.max(latest);
                }
                latest
            };
            self.spans.iter().map(up_to).collect()
        };
        self.ends = latest(|_| true);
        self.task_ends = latest(|span| span.task().is_some());
    }

    /// Whether there is work on a task within this time. A long span of another kind takes no time here.
    fn has_task(&self, begin: Timestamp, end: Timestamp) -> bool {
        let after = self.spans.partition_point(|span| span.begin < end);
        let latest = after.checked_sub(1).and_then(|last| self.task_ends.get(last));
        latest.is_some_and(|latest| *latest > begin)
    }

    /// The spans from the first one on that ends after this time.
    pub(super) fn since(&self, at: Timestamp) -> &[Span] {
        let first = self.ends.partition_point(|latest| *latest <= at);
        self.spans.get(first..).unwrap_or_default()
    }
}

/// A length up to which [`History::known`] is not shortened.
const MIN_KNOWN: usize = 64;

/// The items that a goroutine within the windows counts as: it takes about their memory, with its first state.
const GOROUTINE: usize = 8;

/// A history of goroutines, Ps and spans.
#[derive(Debug)]
pub(super) struct History {
    /// By their begin, and do not overlap.
    windows: Vec<(Timestamp, Timestamp)>,
    /// The next window that has not begun, and the end of the last one that has.
    next: usize,
    window_end: Timestamp,
    max: usize,
    items: usize,
    dropped: u64,
    pub(super) goroutines: Vec<Goroutine>,
    /// The goroutines by id, and by begin: after [`History::finish`].
    by_id: Vec<(GoId, Timestamp, Key)>,
    live: HashMap<GoId, Key, SeededState>,
    free: Vec<Key>,
    /// Goroutines and Ps of which something is known since the last loss, and others that ended.
    known: Vec<Key>,
    known_procs: Vec<ProcId>,
    procs: HashMap<ProcId, Proc, SeededState>,
    /// Stops of the world.
    pub(super) pauses: Spans,
    stopping: HashMap<GoId, Span, SeededState>,
    /// The number of goroutines so far.
    count: u64,
    tasks: HashMap<TaskId, OpenTask, SeededState>,
    /// The parents of tasks within the windows.
    parents: HashMap<TaskId, TaskId, SeededState>,
    pub(super) stacks: Stacks,
    first: Option<Timestamp>,
    last: Timestamp,
    generation: Generation,
}

impl History {
    /// Keeps up to `max` items of these windows.
    pub(super) fn new(windows: impl Iterator<Item = (Timestamp, Timestamp)>, max: usize) -> Self {
        let mut windows: Vec<_> = windows.filter(|(begin, end)| begin <= end).collect();
        windows.sort_unstable();
        let mut merged: Vec<(Timestamp, Timestamp)> = Vec::new();
        for (begin, end) in windows {
            match merged.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((begin, end)),
            }
        }
        let mut stacks = Stacks::default();
        stacks.number(None); // number 0
        Self {
            windows: merged,
            next: 0,
            window_end: Timestamp::MIN,
            max,
            items: 0,
            dropped: 0,
            goroutines: Vec::new(),
            by_id: Vec::new(),
            live: HashMap::default(),
            free: Vec::new(),
            known: Vec::new(),
            known_procs: Vec::new(),
            procs: HashMap::default(),
            pauses: Spans::default(),
            stopping: HashMap::default(),
            count: 0,
            tasks: HashMap::default(),
            parents: HashMap::default(),
            stacks,
            first: None,
            last: Timestamp::default(),
            generation: Generation::default(),
        }
    }

    /// Whether the time from `begin` until now overlaps a window.
    fn is_kept(&self, begin: Timestamp) -> bool {
        begin <= self.window_end
    }

    fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    fn has_room_for(&mut self, items: usize) -> bool {
        let has_room = self.max.saturating_sub(self.items) >= items;
        self.items += if has_room { items } else { 0 };
        self.dropped += u64::from(!has_room);
        has_room
    }

    /// The number of items that are missing, and of the events since the first of them.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether all windows are over, or items are missing.
    pub(super) fn is_complete(&self) -> bool {
        self.dropped > 0 || self.windows.last().is_none_or(|(_, end)| *end < self.last)
    }

    /// The time of the first event.
    pub(super) const fn first(&self) -> Option<Timestamp> {
        self.first
    }

    pub(super) fn goroutine(&self, key: Key) -> Option<&Goroutine> {
        self.goroutines.get(key as usize)
    }

    /// The goroutine that began a task, unless its place has another one since.
    fn still(&self, by: Option<(Key, u64)>) -> Option<Key> {
        let (key, number) = by?;
        self.goroutine(key).filter(|goroutine| goroutine.number == number).map(|_| key)
    }

    fn goroutine_mut(&mut self, key: Option<Key>) -> Option<&mut Goroutine> {
        self.goroutines.get_mut(key? as usize)
    }

    /// The last of the goroutines with this id that exists before `end`, once the history is complete.
    pub(super) fn find(&self, id: GoId, end: Timestamp) -> Option<Key> {
        let after = self.by_id.partition_point(|(of, begin, _)| (*of, *begin) < (id, end));
        let (of, _, key) = self.by_id.get(after.checked_sub(1)?)?;
        (*of == id).then_some(*key)
    }

    /// What a P does immediately before `at`, and since when.
    pub(super) fn proc(&self, proc: ProcId, at: Timestamp) -> Option<(Use, Timestamp)> {
        let uses = &self.procs.get(&proc)?.uses;
        let index = uses.partition_point(|(begin, _)| *begin < at).checked_sub(1)?;
        uses.get(index).map(|(begin, used)| (*used, *begin))
    }

    pub(super) fn push(&mut self, event: Event<'_>) {
        if self.dropped > 0 {
            // The history is not right any more, and would need memory for goroutines that begin.
            self.dropped += 1;
            return;
        }
        if event.record.restarts() {
            self.loss();
        }
        let now = event.time();
        let kind = event.kind();
        if kind == EventKind::Experimental {
            return;
        }
        self.generation.push(event);
        if kind == EventKind::Sync {
            return;
        }
        self.first.get_or_insert(now);
        self.last = now;
        while let Some((_, end)) = self.windows.get(self.next).filter(|(begin, _)| *begin <= now) {
            self.window_end = *end;
            self.next += 1;
        }
        match kind {
            EventKind::StateTransition => {
                let Some(transition) = event.state_transition() else { return };
                match transition.resource() {
                    ResourceId::Goroutine(id) => self.transition(event, id, &transition),
                    ResourceId::Proc(id) => self.proc_transition(event, id, &transition),
                    _ => {}
                }
            }
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event);
            }
            EventKind::RegionBegin | EventKind::RegionEnd => self.region(event),
            EventKind::TaskBegin | EventKind::TaskEnd => self.task(event),
            EventKind::StackSample if self.is_kept(now) => self.sample(event),
            _ => {}
        }
    }

    /// A part of the trace is missing here: nothing is known until the trace mentions it again.
    pub(super) fn loss(&mut self) {
        self.generation.loss();
        let now = self.last;
        for key in std::mem::take(&mut self.known) {
            let Some(goroutine) = self.goroutines.get_mut(key as usize) else { continue };
            let is_known = std::mem::take(&mut goroutine.is_known);
            if !is_known || self.live.get(&goroutine.id) != Some(&key) {
                continue;
            }
            self.end_spans(key, now);
            let last = self.goroutine(key).and_then(|goroutine| goroutine.intervals.last());
            if last.is_none_or(|last| last.state != GoState::Undetermined) {
                self.change(key, Interval::unknown(now));
            }
        }
        for id in std::mem::take(&mut self.known_procs) {
            self.set_proc(id, Use::Between);
            if let Some(proc) = self.procs.get_mut(&id) {
                proc.is_known = false;
            }
        }
        for span in std::mem::take(&mut self.stopping).into_values() {
            self.add_pause(span, now);
        }
    }

    /// Completes the history after the last event.
    pub(super) fn finish(&mut self) {
        for goroutine in &mut self.goroutines {
            let open = goroutine.regions.end_all().filter_map(|(_, span)| span);
            let assist = goroutine.assist.take().map(|begin| Span::open(SpanKind::Assist, begin));
            goroutine.spans.spans.extend(open.chain(assist));
        }
        self.pauses.spans.extend(self.stopping.drain().map(|(_, span)| span));
        let tasks: Vec<_> = self.tasks.drain().map(|(_, task)| task).collect();
        for task in tasks {
            self.add_parent(&task);
            let OpenTask { by, span, .. } = task;
            let by = self.still(by);
            if let Some(goroutine) = self.goroutine_mut(by) {
                goroutine.spans.spans.push(span);
            }
        }
        let of = |(goroutine, key): (&Goroutine, Key)| {
            Some((goroutine.id, goroutine.intervals.first()?.begin, key))
        };
        self.by_id = self.goroutines.iter().zip(0..).filter_map(of).collect();
        self.by_id.sort_unstable();
        self.pauses.sort();
        self.goroutines.iter_mut().for_each(|goroutine| goroutine.spans.sort());
    }

    /// Adds a goroutine, in the place of one that the windows do not contain if there is one. `None` without room.
    fn begin(&mut self, id: GoId, created: Option<(Timestamp, Option<Key>)>) -> Option<Key> {
        let is_counted = self.is_kept(self.last);
        if is_counted && !self.has_room_for(GOROUTINE) {
            return None;
        }
        self.count += 1;
        let goroutine = Goroutine {
            id,
            number: self.count,
            entry: None,
            created,
            ended: None,
            intervals: Vec::new(),
            spans: Spans::default(),
            samples: Vec::new(),
            regions: Regions::default(),
            assist: None,
            is_known: false,
            is_counted,
        };
        let reused = self.free.pop();
        let key = reused.unwrap_or(u32::try_from(self.goroutines.len()).unwrap_or(u32::MAX));
        match self.goroutines.get_mut(key as usize) {
            Some(place) => *place = goroutine,
            None => self.goroutines.push(goroutine),
        }
        self.live.insert(id, key);
        Some(key)
    }

    fn end(&mut self, id: GoId, now: Timestamp) {
        let Some(key) = self.live.remove(&id) else { return };
        self.end_spans(key, now);
        let window_end = self.window_end;
        let Some(goroutine) = self.goroutines.get_mut(key as usize) else { return };
        goroutine.ended = Some(now);
        let is_kept = goroutine.intervals.last().is_some_and(|last| last.begin <= window_end)
            || goroutine.intervals.len() > 1
            || !goroutine.spans.spans.is_empty();
        if !is_kept {
            goroutine.intervals = Vec::new();
            self.free.push(key);
        } else if !std::mem::replace(&mut goroutine.is_counted, true) {
            self.has_room_for(GOROUTINE); // it began before a window
        }
    }

    /// Ends the open regions of a goroutine, and its assist.
    fn end_spans(&mut self, key: Key, now: Timestamp) {
        let Some(goroutine) = self.goroutines.get_mut(key as usize) else { return };
        let open = goroutine.regions.end_all().filter_map(|(_, span)| span);
        let assist = goroutine.assist.take().map(|begin| Span::open(SpanKind::Assist, begin));
        for span in open.chain(assist) {
            self.add_span(Some(key), span, now);
        }
    }

    /// Something is known of a goroutine, that a loss ends.
    fn know(&mut self, key: Key) {
        let Some(goroutine) = self.goroutines.get_mut(key as usize) else { return };
        if std::mem::replace(&mut goroutine.is_known, true) {
            return;
        }
        if self.known.len() >= 2 * self.live.len() + MIN_KNOWN {
            // Most have ended. Another goroutine can be in the place of one.
            self.known.sort_unstable();
            self.known.dedup();
            let (goroutines, live) = (&self.goroutines, &self.live);
            self.known.retain(|known| {
                let goroutine = goroutines.get(*known as usize);
                goroutine.is_some_and(|goroutine| live.get(&goroutine.id) == Some(known))
            });
        }
        self.known.push(key);
    }

    /// A goroutine has another state.
    fn change(&mut self, key: Key, next: Interval) {
        if next.state != GoState::Undetermined {
            self.know(key);
        }
        let window_end = self.window_end;
        let Some(goroutine) = self.goroutines.get(key as usize) else { return };
        let is_kept = goroutine.intervals.last().is_some_and(|last| last.begin <= window_end);
        let has_room = is_kept && self.has_room();
        let Some(goroutine) = self.goroutines.get_mut(key as usize) else { return };
        if !has_room {
            goroutine.intervals.pop();
        }
        goroutine.intervals.push(next);
    }

    fn transition(&mut self, event: Event<'_>, id: GoId, transition: &StateTransition<'_>) {
        let Some((from, to)) = transition.goroutine() else { return };
        let now = event.time();
        let by = self.live.get(&event.goroutine()).copied();
        if event.goroutine() != id {
            self.identify(by, event.stack());
        }
        if to == GoState::NotExist {
            if let Some(key) = by.filter(|_| event.goroutine() == id) {
                self.leave_proc(key, event.proc());
            }
            return self.end(id, now);
        }
        let is_new = from == GoState::NotExist;
        if is_new {
            self.end(id, now); // an existing one is another goroutine
        }
        let live = self.live.get(&id).copied();
        let key = live.or_else(|| self.begin(id, is_new.then_some((now, by))));
        let Some(key) = key else { return };
        self.identify(Some(key), transition.stack());
        let Some(goroutine) = self.goroutines.get(key as usize) else { return };
        let last = goroutine.intervals.last();
        let before = last.map(|last| last.state);
        // The first mention: it is in this state since the generation started.
        let is_unknown = matches!(before, None | Some(GoState::Undetermined));
        let is_repeated = from == GoState::Undetermined || from == to;
        let begin = if is_unknown && is_repeated {
            let start = self.generation.start(event);
            last.map_or(start, |last| last.begin.max(start))
        } else {
            now
        };
        // The runtime repeats all states when a generation starts.
        if !is_new && before == Some(to) && transition.reason().is_empty() {
            return;
        }
        let is_stop = matches!(to, GoState::Waiting | GoState::Syscall);
        let reason = Some(transition.reason()).filter(|reason| is_stop && !reason.is_empty());
        let reason = reason.map(|_| Name::of(event.table, event.record.stop_reason()));
        let has_stack = is_stop && !is_new;
        let stack = if has_stack { self.stacks.number(transition.stack()) } else { 0 };
        let by = by.filter(|_| from == GoState::Waiting);
        let proc = event.proc();
        self.change(key, Interval { begin, state: to, reason, stack, by, proc });
        match to {
            GoState::Running => self.set_proc(proc, Use::Goroutine(key)),
            GoState::Waiting | GoState::Runnable if event.goroutine() == id => {
                self.leave_proc(key, proc);
            }
            _ => {}
        }
    }

    /// Learns the entry function of a goroutine from one of its stacks.
    fn identify(&mut self, key: Option<Key>, stack: Option<Stack<'_>>) {
        let Some(goroutine) = self.goroutine_mut(key) else { return };
        if goroutine.entry.is_none() {
            goroutine.entry = stack.and_then(|stack| {
                let frame = stack.table.entry(stack.id)?;
                Some(Name::of(stack.table, frame.func))
            });
        }
    }

    /// A goroutine no longer runs on this P.
    fn leave_proc(&mut self, key: Key, proc: ProcId) {
        let used = self.procs.get(&proc).and_then(|proc| proc.uses.last());
        if used.is_some_and(|(_, used)| *used == Use::Goroutine(key)) {
            self.set_proc(proc, Use::Between);
        }
    }

    fn set_proc(&mut self, proc: ProcId, used: Use) {
        if !proc.is_some() {
            return;
        }
        let (now, window_end) = (self.last, self.window_end);
        let known = self.procs.entry(proc).or_default();
        let last = known.uses.last().copied();
        if last.is_some_and(|(_, last)| last == used) {
            return;
        }
        if used != Use::Between && !std::mem::replace(&mut known.is_known, true) {
            self.known_procs.push(proc);
        }
        let is_kept = last.is_some_and(|(begin, _)| begin <= window_end);
        let has_room = is_kept && self.has_room();
        let uses = &mut self.procs.entry(proc).or_default().uses;
        if !has_room {
            uses.pop();
        }
        uses.push((now, used));
    }

    fn proc_transition(&mut self, event: Event<'_>, id: ProcId, transition: &StateTransition<'_>) {
        let Some((from, to)) = transition.proc() else { return };
        match to {
            ProcState::Idle => self.set_proc(id, Use::Idle),
            // A status that is repeated.
            ProcState::Running if from != ProcState::Idle && self.procs.contains_key(&id) => {}
            ProcState::Running => {
                // A goroutine that returns from a system call takes a P.
                let key = self.live.get(&event.goroutine());
                self.set_proc(id, key.map_or(Use::Between, |key| Use::Goroutine(*key)));
            }
            _ => self.set_proc(id, Use::Between),
        }
    }

    fn range(&mut self, event: Event<'_>) {
        let Some(range) = event.range() else { return };
        let now = event.time();
        let ends = event.kind() == EventKind::RangeEnd;
        match (range.name, range.scope) {
            (RangeName::GcMarkAssist, ResourceId::Goroutine(id)) => {
                let key = self.live.get(&id).copied();
                if let Some(key) = key.filter(|_| !ends) {
                    self.know(key);
                }
                let Some(goroutine) = self.goroutine_mut(key) else { return };
                if !ends {
                    goroutine.assist.get_or_insert(now);
                } else if let Some(begin) = goroutine.assist.take() {
                    self.add_span(key, Span::open(SpanKind::Assist, begin), now);
                }
            }
            (RangeName::StopTheWorld(reason), scope) => {
                let id = scope.goroutine().unwrap_or(GoId::NONE);
                if ends {
                    if let Some(span) = self.stopping.remove(&id) {
                        self.add_pause(span, now);
                    }
                } else {
                    let by = self.live.get(&event.goroutine()).copied();
                    let kind = || SpanKind::StopTheWorld(by, reason.into());
                    self.stopping.entry(id).or_insert_with(|| Span::open(kind(), now));
                }
            }
            _ => {}
        }
    }

    fn region(&mut self, event: Event<'_>) {
        let Some(region) = event.region() else { return };
        let key = self.live.get(&event.goroutine()).copied();
        let now = event.time();
        if event.kind() == EventKind::RegionBegin {
            // Of tasks only those are known that began in the trace. The end of a region of another one
            // is still an end of that region.
            let task = self.tasks.get(&region.task);
            let span = task.map(|task| Span { begin: now, ..task.span.clone() });
            if let Some(key) = key {
                self.know(key);
            }
            let Some(goroutine) = self.goroutine_mut(key) else { return };
            if !goroutine.regions.ignores() {
                goroutine.regions.begin(Name::of(event.table, event.record.region_type()), span);
            }
        } else {
            let Some(goroutine) = self.goroutine_mut(key) else { return };
            if let Some((_, Some(span))) = goroutine.regions.end(region.name) {
                self.add_span(key, span, now);
            }
        }
    }

    fn task(&mut self, event: Event<'_>) {
        let Some(task) = event.task() else { return };
        let now = event.time();
        if let Some(ended) = self.tasks.remove(&task.id) {
            self.add_parent(&ended);
            self.add_span(self.still(ended.by), ended.span, now);
        }
        if event.kind() == EventKind::TaskBegin {
            let by = self.live.get(&event.goroutine()).copied();
            let by = by.and_then(|key| Some((key, self.goroutine(key)?.number)));
            let span = Span::open(SpanKind::Task(task.id, task.name.into()), now);
            self.tasks.insert(task.id, OpenTask { by, parent: task.parent, span });
        }
    }

    fn sample(&mut self, event: Event<'_>) {
        let Some(key) = self.live.get(&event.goroutine()).copied() else { return };
        let stack = self.stacks.number(event.stack());
        if stack != 0 && self.has_room() {
            if let Some(goroutine) = self.goroutine_mut(Some(key)) {
                goroutine.samples.push((event.time(), stack));
            }
        }
    }

    fn add_parent(&mut self, task: &OpenTask) {
        let Some((id, _)) = task.span.task() else { return };
        // The id may have been that of another one.
        self.parents.remove(&id);
        if matches!(task.parent, TaskId::BACKGROUND | TaskId::NONE) {
            return;
        }
        if self.is_kept(task.span.begin) && self.has_room() {
            self.parents.insert(id, task.parent);
        }
    }

    /// Whether a task is `ancestor` or a part of it.
    pub(super) fn is_part_of(&self, task: TaskId, ancestor: TaskId) -> bool {
        /// More is a cycle, or made to cost time.
        const MAX_DEPTH: usize = 64;
        let mut up = std::iter::successors(Some(task), |task| self.parents.get(task).copied());
        up.by_ref().take(MAX_DEPTH).any(|task| task == ancestor)
    }

    fn add_span(&mut self, key: Option<Key>, span: Span, end: Timestamp) {
        if self.is_kept(span.begin) && self.has_room() {
            if let Some(goroutine) = self.goroutine_mut(key) {
                goroutine.spans.spans.push(Span { end, ..span });
            }
        }
    }

    fn add_pause(&mut self, span: Span, end: Timestamp) {
        if self.is_kept(span.begin) && self.has_room() {
            self.pauses.spans.push(Span { end, ..span });
        }
    }
}

impl Interval {
    const fn unknown(begin: Timestamp) -> Self {
        let (state, proc) = (GoState::Undetermined, ProcId::NONE);
        Self { begin, state, reason: None, stack: 0, by: None, proc }
    }
}

impl Span {
    /// The task, if it is work on one.
    pub(super) const fn task(&self) -> Option<(TaskId, &Name)> {
        match &self.kind {
            SpanKind::Task(id, name) => Some((*id, name)),
            _ => None,
        }
    }

    const fn open(kind: SpanKind, begin: Timestamp) -> Self {
        Self { kind, begin, end: Timestamp::MAX }
    }
}

impl Goroutine {
    /// Whether it works on a task within this time.
    pub(super) fn has_task(&self, begin: Timestamp, end: Timestamp) -> bool {
        self.spans.has_task(begin, end)
    }

    /// The last interval that begins before `at`, and its position.
    pub(super) fn before(&self, at: Timestamp) -> Option<(usize, &Interval)> {
        let index = self.intervals.partition_point(|i| i.begin < at).checked_sub(1)?;
        self.intervals.get(index).map(|interval| (index, interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadId;
    use crate::event::{Range, Region};
    use crate::synthetic::{EventConfig, EventDetails};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_loss_visits_what_is_known_since_the_one_before() {
        const COUNT: i64 = 10_000;
        let windows = [(Timestamp::MIN, Timestamp::MAX)];
        let mut history = History::new(windows.into_iter(), usize::MAX);
        let mut time = 0;
        let mut emit = |history: &mut History, id, details| {
            time += 1;
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            let event = event.goroutine(GoId(id)).thread(ThreadId(0)).build().unwrap();
            history.push(event.as_event());
        };
        let runs = |id| {
            let (from, to) = (GoState::Undetermined, GoState::Running);
            EventDetails::StateTransition(StateTransition::of_goroutine(GoId(id), from, to))
        };
        let region = || EventDetails::RegionBegin(Region::new(TaskId::BACKGROUND, "region"));
        for id in 1..=COUNT {
            emit(&mut history, -1, runs(id));
            let (from, to) = (ProcState::Undetermined, ProcState::Idle);
            let change = StateTransition::of_proc(ProcId(id), from, to);
            emit(&mut history, -1, EventDetails::StateTransition(change));
            let stops = RangeName::StopTheWorld("GC".into());
            let stops = Range::new(stops, ResourceId::Goroutine(GoId(id)));
            emit(&mut history, id, EventDetails::RangeBegin(stops));
            emit(&mut history, id, region());
        }
        let mut visits = Vec::new();
        for number in 0..COUNT {
            emit(&mut history, 1 + number % 2, region());
            let History { known, known_procs, stopping, .. } = &history;
            visits.push(known.len() + known_procs.len() + stopping.capacity());
            history.loss();
        }
        assert!(visits[0] as i64 >= 3 * COUNT, "{}", visits[0]);
        assert!(visits[1..].iter().all(|visits| *visits == 1), "{:?}", visits[1..].iter().max());
    }

    #[test]
    fn goroutines_take_room_if_they_are_within_the_windows() {
        const COUNT: i64 = 1_000;
        let at = Timestamp::from_nanos;
        let lives = |begin: Timestamp, max| {
            let mut history = History::new([(begin, Timestamp::MAX)].into_iter(), max);
            let mut time = 0;
            let mut step = |history: &mut History, id, from, to| {
                time += 1;
                let change = StateTransition::of_goroutine(GoId(id), from, to);
                let event = EventConfig::new(EventDetails::StateTransition(change));
                history.push(event.time(at(time)).thread(ThreadId(0)).build().unwrap().as_event());
            };
            for id in 1..=COUNT {
                step(&mut history, id, GoState::NotExist, GoState::Runnable);
                step(&mut history, id, GoState::Runnable, GoState::Running);
                step(&mut history, id, GoState::Running, GoState::NotExist);
            }
            // These do not end.
            for id in 1..=COUNT {
                step(&mut history, id, GoState::NotExist, GoState::Runnable);
            }
            history
        };
        let within = lives(Timestamp::MIN, 100);
        assert!(within.goroutines.len() <= 100, "{}", within.goroutines.len());
        assert!(within.dropped() > 0 && within.is_complete());
        // The second state of the first one takes the last room.
        let single = lives(Timestamp::MIN, GOROUTINE + 1);
        assert_eq!((single.goroutines.len(), single.items), (1, GOROUTINE + 1));
        // There is room for all that live before the window.
        let before = lives(Timestamp::MAX, 0);
        assert_eq!((before.goroutines.len() as i64, before.dropped()), (COUNT, 0));
        // Those that began before it and end within it take room, too.
        let mut across = lives(at(4 * COUNT), 100);
        assert_eq!((across.items, across.dropped()), (GOROUTINE, 0));
        for id in 1..=COUNT {
            across.last = at(4 * COUNT + id);
            across.end(GoId(id), across.last);
        }
        assert!(across.items <= 100 && across.dropped() > 0);
    }

    proptest! {
        /// Spans of all kinds, with long ones.
        #[test]
        fn work_on_a_task_is_found_among_other_spans(
            spans in vec((0..60i64, 0..60i64, any::<bool>()), 0..30),
            begin in -5..125i64,
            nanos in 0..40i64,
        ) {
            let at = Timestamp::from_nanos;
            let (begin, end) = (at(begin), at(begin + nanos));
            let spans = spans.into_iter().map(|(begin, nanos, is_task)| {
                let kind = match is_task {
                    true => SpanKind::Task(TaskId(1), Name::default()),
                    false => SpanKind::Assist,
                };
                Span { kind, begin: at(begin), end: at(begin + nanos) }
            });
            let mut spans = Spans { spans: spans.collect(), ..Spans::default() };
            let overlaps = |span: &Span| {
                span.task().is_some() && span.begin < end && span.end > begin
            };
            let expected = spans.spans.iter().any(overlaps);
            spans.sort();
            prop_assert_eq!(spans.has_task(begin, end), expected);
        }
    }
}
