//! Times of goroutines and regions, and tasks.

mod live;
mod tasks;

use super::generation::Generation;
use super::numbers::Names;
use super::step::{Change, Step};
use super::syscalls::Syscalls;
use super::{Name, Times};
use crate::event::{Event, EventKind};
use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId, TaskId};
use live::{Budget, Live, Phase, RangeNumber};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tasks::Tasks;
use trace_common::{IdMap, SeededState, Timestamp};

/// Computes the times of goroutines and regions, and collects tasks.
///
/// The numbers are those of Go's `internal/trace.Summarizer`, with one exception: a goroutine that
/// is in a blocked system call when the trace or a region ends. Go counts the blocked part twice
/// there, as [`Times::syscall`] and as [`Times::runnable`]; here it is [`Times::syscall_blocked`].
/// A task that ends twice keeps its type, which Go forgets at the second end.
///
/// Four rules of Go count [`Times::syscall`] where a goroutine has no P; [`Scheduling`](super::Scheduling)
/// does not. A goroutine is created in a system call, as that of a thread of C. A goroutine is in a
/// system call without a P where the trace first mentions it: the call counts from there on. A
/// goroutine returns from a system call whose P was taken away, while another one is in a system call
/// on that P: the other call counts to its end, even if it loses the P too. In a trace of Go ≤ 1.21, a
/// goroutine that was in a system call when tracing started has the P of the goroutine that started
/// tracing.
///
/// Memory is used for live goroutines, their open regions, and tasks: what has ended is returned by
/// [`Summarizer::push`]. Tasks are kept to the end of the trace, because other goroutines may
/// continue to work on a task that has ended; [`Summarizer::returning_tasks`] keeps only open tasks.
#[derive(Debug)]
pub struct Summarizer {
    live: IdMap<Live>,
    /// Those that have not been mentioned since a loss, and when they were last known to be there.
    lost: HashMap<GoId, (Live, Timestamp), SeededState>,
    /// Whether there was a loss.
    is_resumed: bool,
    syscalls: Syscalls,
    /// The goroutine on which a range of a proc began.
    sweeps: IdMap<i64>,
    tasks: Tasks,
    /// Reasons to wait and to stop the world. Regions and tasks share the strings of their generation.
    reasons: Names,
    budget: Budget,
    generation: Generation,
    first: Option<Timestamp>,
    last: Timestamp,
    /// All times are moved into this range.
    between: (Timestamp, Timestamp),
}

/// Reasons of all goroutines that are kept apart. The runtime has about 50: only a damaged trace has
/// more, and those above count without a reason.
const MAX_REASONS: usize = 1 << 16;

impl Default for Summarizer {
    fn default() -> Self {
        Self {
            live: IdMap::default(),
            lost: HashMap::default(),
            is_resumed: false,
            syscalls: Syscalls::default(),
            sweeps: IdMap::default(),
            tasks: Tasks::default(),
            reasons: Names::up_to(MAX_REASONS),
            budget: Budget::default(),
            generation: Generation::default(),
            first: None,
            last: Timestamp::default(),
            between: (Timestamp::MIN, Timestamp::MAX),
        }
    }
}

/// A goroutine, region or task that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finished {
    /// A goroutine exited, or blocked forever. Or it ended where the trace is damaged, and another one
    /// has its id now: [`Goroutine::end`] is `None`.
    Goroutine(Box<Goroutine>),
    /// A region ended.
    Region(Box<Region>),
    /// A task ended: only with [`Summarizer::returning_tasks`].
    Task(Box<Task>),
}

/// The result for what is alive when the trace ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Goroutines that did not end, by id.
    pub goroutines: Vec<Goroutine>,
    /// All tasks that events mention, by id. With [`Summarizer::returning_tasks`], those that did
    /// not end, without [`TaskId::BACKGROUND`]; with [`Summarizer::longest_tasks`], these and the
    /// longest.
    pub tasks: Vec<Task>,
    /// Number of tasks that ended and are not among the longest:
    /// see [`Summarizer::longest_tasks`].
    pub omitted_tasks: u64,
    /// Number of regions that are in no result: a goroutine has 1024 other open ones, or the counts at
    /// the start of open regions and tasks need 64 MB.
    pub ignored_regions: u64,
    /// Number of tasks without [own](Task::own) times because these counts need 64 MB.
    pub unmeasured_tasks: u64,
    /// The times of the first and the last event, in the [range](Summarizer::between); `None` without
    /// events.
    pub span: Option<(Timestamp, Timestamp)>,
}

/// The entry function of a goroutine: the outermost frame of its stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Function {
    /// The name of the function.
    pub name: Name,
    /// The program counter of the frame. It differs between goroutines of one function.
    pub pc: u64,
}

/// The life of a goroutine, as far as the trace covers it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Goroutine {
    /// Its id.
    pub id: GoId,
    /// Its entry function; `None` if the trace has no stack of it.
    pub entry: Option<Function>,
    /// Its creation, or the start of the generation in which it appeared first.
    pub created: Timestamp,
    /// The first time that it was seen to start running.
    pub start: Option<Timestamp>,
    /// Its exit; `None` if it outlives the trace.
    pub end: Option<Timestamp>,
    /// Its time in each state.
    pub times: Times,
    /// Regions that were open when the goroutine, or the trace, ended. Empty for goroutines of the
    /// runtime itself.
    pub open_regions: Vec<Region>,
}

impl Goroutine {
    /// Whether it is a goroutine of the runtime itself, as in Go's tools: one with an entry
    /// function in package `runtime` other than `runtime.main`, or without any.
    pub fn is_system(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| is_system(&entry.name))
    }
}

/// A region of `runtime/trace`, or the part of a goroutine's life that belongs to the task of its
/// creator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Region {
    /// The goroutine.
    pub goroutine: GoId,
    /// The task that it belongs to, or [`TaskId::BACKGROUND`].
    pub task: TaskId,
    /// The `regionType`; empty if inherited.
    pub name: Name,
    /// Whether this is no region of the program: the goroutine was created within a region, and
    /// inherits the task of that region until it ends.
    pub inherited: bool,
    /// Its start; `None` if it began before the trace, or before a loss.
    pub start: Option<Timestamp>,
    /// Its end; `None` if it outlives the trace.
    pub end: Option<Timestamp>,
    /// The goroutine's time in each state from start to end. Without a start, from the creation of the
    /// goroutine, or from its first mention after the last loss.
    pub times: Times,
}

impl Region {
    /// The start of the part that [`times`](Self::times) are of.
    pub fn counted_from(&self) -> Timestamp {
        let total = i64::try_from(self.times.total.as_nanos()).unwrap_or(i64::MAX);
        let start = || self.end.unwrap_or_default().saturating_add_nanos(-total);
        self.start.unwrap_or_else(start)
    }
}

/// A task of `runtime/trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The `taskType`; empty if the trace does not contain its start.
    pub name: Name,
    /// The task that it is part of.
    pub parent: Option<TaskId>,
    /// Its start; `None` if it began before the trace.
    pub start: Option<Timestamp>,
    /// Its end; `None` if it outlives the trace.
    pub end: Option<Timestamp>,
    /// The goroutines that began, ended or logged it, or had a region of it.
    pub goroutines: BTreeSet<GoId>,
    /// The goroutine that began and ended it, and its time in each state from the start to the end:
    /// the states sum up to the duration. `None` if the trace cuts it off, another goroutine
    /// ended it (also one with the same id), or it ended more than once.
    pub own: Option<(GoId, Times)>,
    /// The number of its regions.
    pub regions: u64,
    /// The number of its log messages.
    pub logs: u64,
}

impl Task {
    fn new(id: TaskId) -> Self {
        Self {
            id,
            name: Name::default(),
            parent: None,
            start: None,
            end: None,
            goroutines: BTreeSet::new(),
            own: None,
            regions: 0,
            logs: 0,
        }
    }

    /// The duration; `None` unless the trace contains start and end.
    pub fn duration(&self) -> Option<Duration> {
        Some(between(self.start?, self.end?))
    }

    /// The duration of its part in a trace or range from `first` to `last`. It begins with a task that
    /// has no start, and ends with one that has no end.
    pub fn duration_within(&self, first: Timestamp, last: Timestamp) -> Duration {
        between(self.start.unwrap_or(first), self.end.unwrap_or(last))
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_nanos(to.nanos_since(from).max(0).unsigned_abs())
}

/// Whether goroutines with this entry function are the runtime's own.
pub(super) fn is_system(entry: &Name) -> bool {
    entry.is_empty() || (entry.starts_with(b"runtime.") && ***entry != *b"runtime.main")
}

impl Summarizer {
    /// Makes a summarizer that has seen no event.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a summarizer that returns each task when it ends, as [`Finished::Task`].
    ///
    /// Its memory does not grow with the number of tasks, except for one bit for each. Regions, log
    /// messages and further ends of a task that has ended are not counted.
    pub fn returning_tasks() -> Self {
        Self { tasks: Tasks::returned(), ..Self::default() }
    }

    /// Makes a summarizer that keeps the `count` longest tasks of those that end, of all types or of
    /// one. One that began before the trace counts from the first event.
    ///
    /// They are complete, with what other goroutines do for them after their ends. The number of the
    /// others is [`Summary::omitted_tasks`]; each of them takes one bit of memory.
    pub fn longest_tasks(count: usize, ty: Option<Name>) -> Self {
        Self { tasks: Tasks::longest(count, ty), ..Self::default() }
    }

    /// Restricts the times to the range from `from` to `to`.
    ///
    /// It is fed with all events of the trace. The times of goroutines, regions and tasks are those of
    /// the part within the range, also of those that the range is within. Times before the range
    /// become `from`, and times after it `to`: what is outside of the range has no duration, and is
    /// returned too.
    #[must_use]
    pub fn between(mut self, from: Timestamp, to: Timestamp) -> Self {
        self.between = (from, to.max(from));
        self
    }

    /// A time, in the range. The order of times does not change, so that the difference of two is the
    /// part of their interval within the range.
    #[inline]
    fn at(&self, time: Timestamp) -> Timestamp {
        let (from, to) = self.between;
        time.clamp(from, to)
    }

    /// Processes the next event, and returns what it ended.
    pub fn push(&mut self, event: Event<'_>) -> Option<Finished> {
        if event.record.restarts() {
            self.loss();
        }
        if event.record.is_without_time() {
            return None;
        }
        self.last = self.at(event.time());
        if self.first.is_none() {
            self.first = Some(self.last);
            self.tasks.add_parents();
        }
        self.generation.push(event);
        match Change::of(event) {
            Some(Change::Goroutine(step)) => {
                return self.goroutine(event, &step).map(Finished::Goroutine);
            }
            Some(Change::Proc(id, from, to)) => self.proc(id, from, to),
            None => return self.other(event),
        }
        None
    }

    /// Processes an event before a range whose events and states a [`Clip`](super::Clip) passes on.
    ///
    /// The tasks that are open where the range begins are known then, with their types, their parents
    /// and the goroutines that began them, also if no event of the range mentions them. They have no
    /// [start](Task::start). For [`returning_tasks`](Self::returning_tasks) and
    /// [`longest_tasks`](Self::longest_tasks), those that have ended are over. With [`new`](Self::new),
    /// one of these that an event of the range mentions is a task without a start.
    pub fn before(&mut self, event: Event<'_>) {
        if let EventKind::TaskBegin | EventKind::TaskEnd = event.kind() {
            self.tasks.before(event);
        }
    }

    fn other(&mut self, event: Event<'_>) -> Option<Finished> {
        match event.kind() {
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event);
            }
            EventKind::RegionBegin => self.region_begin(event),
            EventKind::RegionEnd => return self.region_end(event).map(Finished::Region),
            EventKind::TaskBegin | EventKind::TaskEnd => {
                return self.task(event).map(Finished::Task);
            }
            EventKind::Log => {
                if let Some(task) = self.tasks.get(event.log()?.task, event.goroutine()) {
                    task.logs += 1;
                }
            }
            _ => {}
        }
        None
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover).
    ///
    /// States and ranges count up to the last event before it, and from where the trace mentions them
    /// again; the time between is [`Times::unknown`]. The life of a goroutine that is not mentioned
    /// again is that up to the loss. Open regions do not count: their ends are those of regions without
    /// a start, which count from where the trace mentions the goroutine again. Tasks that are open have
    /// no [own](Task::own) times.
    pub fn loss(&mut self) {
        self.generation.loss();
        self.is_resumed = true;
        self.syscalls = Syscalls::default();
        self.sweeps = IdMap::default();
        self.tasks.loss();
        // The map has as many places as there were goroutines at a time.
        let mut all = std::mem::take(&mut self.live);
        for id in all.ids().collect::<Vec<_>>() {
            let Some(live) = all.remove(id) else { continue };
            live.lose(self.last, &mut self.budget);
            self.lost.insert(GoId(id), (std::mem::take(live), self.last));
        }
    }

    /// Returns the goroutines that are alive, and all tasks that are kept.
    pub fn finish(mut self) -> Summary {
        let mut lives: BTreeMap<GoId, (Live, Timestamp)> = self.lost.drain().collect();
        for id in self.live.ids().collect::<Vec<_>>() {
            let live = self.live.remove(id).map(std::mem::take);
            lives.extend(live.map(|live| (GoId(id), (live, self.last))));
        }
        let (names, budget) = (&self.reasons, &mut self.budget);
        let finish =
            |(id, (mut live, last)): (_, (Live, _))| live.finish(id, last, None, names, budget);
        Summary {
            goroutines: lives.into_iter().map(finish).collect(),
            omitted_tasks: self.tasks.omitted(),
            tasks: self.tasks.finish(),
            ignored_regions: self.budget.regions,
            unmeasured_tasks: self.budget.tasks,
            span: self.first.map(|first| (first, self.last)),
        }
    }

    fn goroutine(&mut self, event: Event<'_>, step: &Step) -> Option<Box<Goroutine>> {
        let Step { id, mut from, to, reason, stack } = *step;
        if from == to {
            // The runtime repeats all states when a generation starts.
            if !self.is_resumed || self.live.contains(id.0) {
                return None;
            }
            from = GoState::Undetermined; // the first mention after a loss
        }
        let now = self.last;
        let start = self.at(self.generation.start(event));
        let (mut is_new, mut replaced) = (false, None);
        if from == GoState::NotExist {
            replaced = self.create(event, id);
        } else if !self.live.contains(id.0) {
            let live = self.live.insert(id.0);
            match self.lost.remove(&id) {
                Some((known, _)) => {
                    *live = known;
                    let is_state = from == GoState::Undetermined;
                    live.resume(if is_state { start } else { now });
                }
                None => live.reset(start, &mut self.budget),
            }
            is_new = true;
        }
        let Self { live: all, syscalls, reasons: names, budget, .. } = self;
        let live = all.get_mut(id.0)?;
        if is_new && from == GoState::Undetermined {
            // It was in the new state since the generation started.
            live.state = match to {
                // From here, a system call without a proc is one that blocks.
                GoState::Syscall if !event.proc().is_some() => {
                    Some((Phase::Syscall(event.proc(), Some(start)), start))
                }
                _ => live.phase(event, to, reason, names).map(|phase| (phase, start)),
            };
        }
        if let Some((Phase::Syscall(proc, _), _)) = live.state {
            syscalls.end_any(proc);
        }
        live.leave(now);
        live.identify(event.table, stack);
        live.state = live.phase(event, to, reason, names).map(|phase| (phase, now));
        match live.state {
            Some((Phase::Running, _)) => {
                live.started.get_or_insert(now);
            }
            Some((Phase::Syscall(proc, _), _)) => syscalls.begin(proc, id),
            None if to != GoState::Undetermined => {
                // The goroutine exited, or blocked forever.
                let live = all.remove(id.0)?;
                return Some(Box::new(live.finish(id, now, Some(now), names, budget)));
            }
            _ => {}
        }
        replaced
    }

    /// A goroutine that is created within a region belongs to the task of that region. Returns the one
    /// that had its id, if the end of that one is lost.
    fn create(&mut self, event: Event<'_>, id: GoId) -> Option<Box<Goroutine>> {
        let task = self.live.get(event.goroutine().0).and_then(Live::task);
        let replaced = self.replaced(id);
        let (live, now) = (self.live.insert(id.0), self.last);
        let budget = &mut self.budget;
        live.reset(now, budget);
        if let Some(task) = task {
            live.begin_region(task, Name::default(), true, now, budget);
        }
        replaced
    }

    /// The goroutine that has this id, which is given to another one. A thread of C has one id for all
    /// its calls.
    fn replaced(&mut self, id: GoId) -> Option<Box<Goroutine>> {
        let (names, budget) = (&self.reasons, &mut self.budget);
        if let Some((mut live, last)) = self.lost.remove(&id) {
            return Some(Box::new(live.finish(id, last, None, names, budget)));
        }
        let live = self.live.get_mut(id.0)?;
        Some(Box::new(live.finish(id, self.last, None, names, budget)))
    }

    /// A proc that becomes idle was taken away from the system call on it.
    fn proc(&mut self, id: ProcId, from: ProcState, to: ProcState) {
        if from == to || to != ProcState::Idle {
            return;
        }
        let goroutine = self.syscalls.lose(id);
        let goroutine = goroutine.and_then(|id| self.live.get_mut(id.0));
        if let Some(Some((Phase::Syscall(_, blocked), _))) = goroutine.map(|live| &mut live.state) {
            *blocked = Some(self.last);
        }
    }

    /// Ranges count for their goroutine; those of a proc for the goroutine on it, if that is the
    /// same from begin to end.
    fn range(&mut self, event: Event<'_>) {
        let Some(range) = event.range() else { return };
        let kind = event.kind();
        let begins = kind != EventKind::RangeEnd;
        let goroutine = match range.scope {
            ResourceId::Goroutine(id) => id,
            ResourceId::Proc(proc) if begins => {
                if self.live.contains(event.goroutine().0) {
                    *self.sweeps.insert(proc.0) = event.goroutine().0;
                }
                event.goroutine()
            }
            ResourceId::Proc(proc) => match self.sweeps.remove(proc.0) {
                Some(id) if *id == event.goroutine().0 => event.goroutine(),
                _ => return,
            },
            _ => return,
        };
        let start = match kind {
            // It was active when the generation started.
            EventKind::RangeActive => self.at(self.generation.start(event)),
            _ => self.last,
        };
        let Some(live) = self.live.get_mut(goroutine.0) else { return };
        let number = RangeNumber::of(range.name, &mut self.reasons);
        live.range(number, start, begins, kind == EventKind::RangeBegin);
    }

    fn region_begin(&mut self, event: Event<'_>) {
        let Some(region) = event.region() else { return };
        if let Some(task) = self.tasks.get(region.task, event.goroutine()) {
            task.regions += 1;
        }
        if let Some(live) = self.live.get_mut(event.goroutine().0) {
            let name = Name::of(event.table, event.record.region_type());
            let budget = &mut self.budget;
            live.begin_region(region.task, name, false, self.last, budget);
        }
    }

    fn region_end(&mut self, event: Event<'_>) -> Option<Box<Region>> {
        let (goroutine, now) = (event.goroutine(), self.last);
        let ended = event.region()?;
        let mut live = self.live.get_mut(goroutine.0);
        if live.as_mut().is_some_and(|live| live.end_ignored()) {
            return None;
        }
        let (names, budget) = (&self.reasons, &mut self.budget);
        let open = live.as_mut().and_then(|live| live.end_region(goroutine, now, names, budget));
        Some(Box::new(open.unwrap_or_else(|| {
            let ends = live.map(|live| live.end_unknown_region(now, &self.reasons));
            let (times, was_counted) = ends.unwrap_or_default();
            if let Some(task) = self.tasks.get(ended.task, goroutine) {
                task.regions += u64::from(!was_counted);
            }
            Region {
                goroutine,
                task: ended.task,
                name: Name::of(event.table, event.record.region_type()),
                inherited: false,
                start: None,
                end: Some(now),
                times,
            }
        })))
    }
}

impl Live {
    /// The state that a transition leads to; `None` if the goroutine ends.
    #[inline]
    fn phase(
        &mut self,
        event: Event<'_>,
        to: GoState,
        reason: u64,
        names: &mut Names,
    ) -> Option<Phase> {
        match to {
            GoState::Running => Some(Phase::Running),
            GoState::Runnable => Some(Phase::Runnable),
            GoState::Waiting => {
                let is_end = event.table.string(reason).is_some_and(|r| **r == *b"forever");
                (!is_end).then(|| self.wait(names.of(event.table, reason)))
            }
            GoState::Syscall => Some(Phase::Syscall(event.proc(), None)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadId;
    use crate::event::Task as UserTask;
    use crate::synthetic::{BuildError, EventConfig, EventDetails};

    #[test]
    fn names_of_regions_and_tasks_are_not_kept() -> Result<(), BuildError> {
        const COUNT: u64 = 10_000;
        let mut summarizer = Summarizer::returning_tasks();
        let mut time = 0;
        let mut emit = |details: EventDetails<'_>| {
            time += 1;
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            let event = event.goroutine(GoId(1)).proc(ProcId(0)).thread(ThreadId(0)).build()?;
            let finished = summarizer.push(event.as_event());
            assert!(summarizer.reasons.len() < 10);
            Ok(finished)
        };
        let running = (GoState::Undetermined, GoState::Running);
        let running = crate::StateTransition::of_goroutine(GoId(1), running.0, running.1);
        emit(EventDetails::StateTransition(running))?;
        for number in 0..COUNT {
            let (id, name) = (TaskId(number + 1), format!("name {number}"));
            let region = || crate::Region::new(id, &name);
            emit(EventDetails::TaskBegin(UserTask::new(id, TaskId::BACKGROUND, &name)))?;
            emit(EventDetails::RegionBegin(region()))?;
            let ended = emit(EventDetails::RegionEnd(region()))?;
            assert!(
                matches!(ended, Some(Finished::Region(ended)) if ended.name.to_string() == name)
            );
            emit(EventDetails::RegionEnd(region()))?; // of one before the trace
            let ended = emit(EventDetails::TaskEnd(UserTask::new(id, TaskId::BACKGROUND, "")))?;
            assert!(matches!(ended, Some(Finished::Task(ended)) if ended.name.to_string() == name));
        }
        Ok(())
    }

    #[test]
    fn a_loss_visits_the_goroutines_since_the_one_before() -> Result<(), BuildError> {
        const COUNT: i64 = 10_000;
        let mut summarizer = Summarizer::new();
        let mut time = 0;
        let mut run = |summarizer: &mut Summarizer, id| {
            time += 1;
            let (from, to) = (GoState::Undetermined, GoState::Running);
            let change = crate::StateTransition::of_goroutine(GoId(id), from, to);
            let event = EventConfig::new(EventDetails::StateTransition(change));
            let event = event.time(Timestamp::from_nanos(time)).thread(ThreadId(0)).build()?;
            summarizer.push(event.as_event());
            Ok(())
        };
        (1..=COUNT).try_for_each(|id| run(&mut summarizer, id))?;
        // With the places in which no goroutine is.
        let visits = |summarizer: &Summarizer| summarizer.live.ids().size_hint().1;
        let empty = visits(&Summarizer::new());
        assert!(empty < visits(&summarizer));
        for number in 0..COUNT {
            summarizer.loss();
            assert_eq!(visits(&summarizer), empty);
            run(&mut summarizer, 1 + number % 2)?;
        }
        assert_eq!(summarizer.finish().goroutines.len() as i64, COUNT);
        Ok(())
    }

    #[test]
    fn reasons_are_limited() {
        let mut reasons = Names::up_to(3);
        let numbers = ["a", "b", "c", "a", "b"].map(|name| reasons.number(name.into()));
        assert_eq!((numbers, reasons.len()), ([1, 2, 0, 1, 2], 3));
    }
}
