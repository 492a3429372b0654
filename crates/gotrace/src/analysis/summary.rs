//! Times of goroutines and regions, and tasks.

use super::{Name, RangeKind, Times};
use crate::event::{Event, EventKind, StateTransition};
use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId, TaskId};
use crate::table::SeededState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use trace_common::Timestamp;

/// Computes the times of goroutines and regions, and collects tasks.
///
/// The numbers are those of Go's `internal/trace.Summarizer`, with one exception: a goroutine that
/// is in a blocked system call when the trace or a region ends. Go counts the blocked part twice
/// there, as [`Times::syscall`] and as [`Times::runnable`]; here it is [`Times::syscall_blocked`].
///
/// Memory is used for live goroutines, their open regions, and tasks: what has ended is returned by
/// [`Summarizer::event`].
#[derive(Debug, Default)]
pub struct Summarizer {
    live: HashMap<GoId, Box<Live>, SeededState>,
    /// The goroutine in a system call on each proc, until the proc becomes idle.
    syscalls: HashMap<ProcId, GoId, SeededState>,
    /// The goroutine on which a range of a proc began.
    sweeps: HashMap<ProcId, GoId, SeededState>,
    tasks: BTreeMap<TaskId, Task>,
    /// The last sync event, or the first event.
    sync: Option<Timestamp>,
    last: Timestamp,
}

/// A goroutine or region that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finished {
    /// A goroutine exited, or blocked forever.
    Goroutine(Box<Goroutine>),
    /// A region ended.
    Region(Box<Region>),
}

/// The result for what is alive when the trace ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Goroutines that did not end, by id.
    pub goroutines: Vec<Goroutine>,
    /// All tasks that events mention, by id.
    pub tasks: Vec<Task>,
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
    pub started: Option<Timestamp>,
    /// Its exit; `None` if it outlives the trace.
    pub ended: Option<Timestamp>,
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
        self.entry.as_ref().is_none_or(|entry| {
            entry.name.is_empty()
                || (entry.name.starts_with(b"runtime.") && **entry.name != *b"runtime.main")
        })
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
    /// Its start; `None` if it began before the trace.
    pub start: Option<Timestamp>,
    /// Its end; `None` if it outlives the trace.
    pub end: Option<Timestamp>,
    /// The goroutine's time in each state from start to end.
    pub times: Times,
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
            regions: 0,
            logs: 0,
        }
    }

    /// The duration; `None` unless the trace contains start and end.
    pub fn duration(&self) -> Option<Duration> {
        Some(between(self.start?, self.end?))
    }
}

/// A goroutine that has not ended.
#[derive(Debug)]
struct Live {
    goroutine: Goroutine,
    /// Since when it is in its state; `None` in a state that counts for nothing.
    state: Option<(Phase, Timestamp)>,
    ranges: Vec<(RangeKind, Timestamp)>,
}

/// The state of a live goroutine.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    Runnable,
    /// With the index of the reason in the goroutine's times.
    Waiting(usize),
    /// With the proc, and since when the goroutine is without it.
    Syscall(ProcId, Option<Timestamp>),
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_nanos(to.nanos_since(from).max(0).unsigned_abs())
}

impl Live {
    fn new(id: GoId, created: Timestamp) -> Self {
        let goroutine = Goroutine {
            id,
            entry: None,
            created,
            started: None,
            ended: None,
            times: Times::default(),
            open_regions: Vec::new(),
        };
        Self { goroutine, state: None, ranges: Vec::new() }
    }

    /// Leaves the state and counts its time.
    fn leave(&mut self, now: Timestamp) {
        if let Some((phase, since)) = self.state.take() {
            count(&mut self.goroutine.times, phase, since, now);
        }
    }

    /// The times up to `now`.
    fn times(&self, now: Timestamp) -> Times {
        let mut times = self.goroutine.times.clone();
        times.total = between(self.goroutine.created, now);
        if let Some((phase, since)) = self.state {
            count(&mut times, phase, since, now);
        }
        for (range, since) in &self.ranges {
            times.range(range, between(*since, now));
        }
        times
    }

    /// Computes the final times.
    fn finish(self, now: Timestamp, ended: Option<Timestamp>) -> Goroutine {
        let times = self.times(now);
        let mut goroutine = self.goroutine;
        goroutine.ended = ended;
        let mut regions = std::mem::take(&mut goroutine.open_regions);
        if goroutine.is_system() {
            regions.clear();
        }
        for region in &mut regions {
            region.end = ended;
            region.times = times.since(&region.times);
        }
        goroutine.times = times;
        goroutine.open_regions = regions;
        goroutine
    }

    /// Takes the name from a stack of the goroutine.
    fn identify(&mut self, transition: &StateTransition<'_>) {
        let named = self.goroutine.entry.as_ref().is_some_and(|entry| !entry.name.is_empty());
        if let (false, Some(stack)) = (named, transition.stack()) {
            let table = &**stack.table;
            let outermost = table.stack(stack.id).last();
            if let Some(frame) = outermost.and_then(|index| table.frames.get(*index as usize)) {
                let name = Name::of(table, frame.func);
                self.goroutine.entry = Some(Function { name, pc: frame.pc });
            }
        }
    }
}

fn count(times: &mut Times, phase: Phase, since: Timestamp, now: Timestamp) {
    match phase {
        Phase::Running => times.running += between(since, now),
        Phase::Runnable => times.runnable += between(since, now),
        Phase::Waiting(reason) => times.block(reason, between(since, now)),
        Phase::Syscall(_, None) => times.syscall += between(since, now),
        Phase::Syscall(_, Some(blocked)) => {
            times.syscall += between(since, blocked);
            times.syscall_blocked += between(blocked, now);
        }
    }
}

impl Summarizer {
    /// Makes a summarizer that has seen no event.
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes the next event, and returns what it ended.
    pub fn event(&mut self, event: Event<'_>) -> Option<Finished> {
        self.last = event.time();
        self.sync.get_or_insert(event.time());
        match event.kind() {
            EventKind::StateTransition => {
                let transition = event.state_transition()?;
                match transition.resource() {
                    ResourceId::Goroutine(id) => {
                        return self.goroutine(event, id, &transition).map(Finished::Goroutine);
                    }
                    ResourceId::Proc(id) => self.proc(event, id, &transition),
                    _ => {}
                }
            }
            EventKind::Sync => self.sync = Some(event.time()),
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event);
            }
            EventKind::RegionBegin => self.region_begin(event),
            EventKind::RegionEnd => return self.region_end(event).map(Finished::Region),
            EventKind::TaskBegin | EventKind::TaskEnd => self.task(event),
            EventKind::Log => {
                let log = event.log()?;
                self.task_of(log.task, event.goroutine()).logs += 1;
            }
            _ => {}
        }
        None
    }

    /// Returns the goroutines that are alive, and all tasks.
    pub fn finish(self) -> Summary {
        let last = self.last;
        let live = self.live.into_values();
        let mut goroutines: Vec<_> = live.map(|live| live.finish(last, None)).collect();
        goroutines.sort_by_key(|goroutine| goroutine.id);
        Summary { goroutines, tasks: self.tasks.into_values().collect() }
    }

    fn goroutine(
        &mut self,
        event: Event<'_>,
        id: GoId,
        transition: &StateTransition<'_>,
    ) -> Option<Box<Goroutine>> {
        let (from, to) = transition.goroutine()?;
        if from == to {
            return None; // the runtime repeats all states when a generation starts
        }
        let now = event.time();
        if from == GoState::NotExist {
            let mut live = Live::new(id, now);
            live.inherit(event, self.live.get(&event.goroutine()).map(|live| &**live));
            self.live.insert(id, Box::new(live));
        }
        let sync = self.sync.unwrap_or(now);
        let is_new = !self.live.contains_key(&id);
        let live = self.live.entry(id).or_insert_with(|| Box::new(Live::new(id, sync)));
        if is_new && from == GoState::Undetermined {
            // It was in the new state since the generation started.
            live.state = match to {
                // From here, a system call without a proc is one that blocks.
                GoState::Syscall if !event.proc().is_some() => {
                    Some((Phase::Syscall(event.proc(), Some(sync)), sync))
                }
                _ => live.phase(event, to, transition).map(|phase| (phase, sync)),
            };
        }
        if let Some((Phase::Syscall(proc, _), _)) = live.state {
            self.syscalls.remove(&proc);
        }
        live.leave(now);
        live.identify(transition);
        live.state = live.phase(event, to, transition).map(|phase| (phase, now));
        match live.state {
            Some((Phase::Running, _)) => {
                live.goroutine.started.get_or_insert(now);
            }
            Some((Phase::Syscall(proc, _), _)) => {
                self.syscalls.insert(proc, id);
            }
            None if to != GoState::Undetermined => {
                // The goroutine exited, or blocked forever.
                let live = self.live.remove(&id)?;
                return Some(Box::new(live.finish(now, Some(now))));
            }
            _ => {}
        }
        None
    }

    /// A proc that becomes idle was taken away from the system call on it.
    fn proc(&mut self, event: Event<'_>, id: ProcId, transition: &StateTransition<'_>) {
        let Some((from, to)) = transition.proc() else { return };
        if from == to || to != ProcState::Idle {
            return;
        }
        let goroutine = self.syscalls.remove(&id).and_then(|id| self.live.get_mut(&id));
        if let Some(Some((Phase::Syscall(_, blocked), _))) = goroutine.map(|live| &mut live.state) {
            *blocked = Some(event.time());
        }
    }

    /// Ranges count for their goroutine; those of a proc for the goroutine on it, if that is the
    /// same from begin to end.
    fn range(&mut self, event: Event<'_>) {
        let Some(range) = event.range() else { return };
        let begins = event.kind() != EventKind::RangeEnd;
        let goroutine = match range.scope {
            ResourceId::Goroutine(id) => id,
            ResourceId::Proc(proc) if begins => {
                if self.live.contains_key(&event.goroutine()) {
                    self.sweeps.insert(proc, event.goroutine());
                }
                event.goroutine()
            }
            ResourceId::Proc(proc) => match self.sweeps.remove(&proc) {
                Some(id) if id == event.goroutine() => id,
                _ => return,
            },
            _ => return,
        };
        let Some(live) = self.live.get_mut(&goroutine) else { return };
        let kind = RangeKind::from(range.name);
        let open = live.ranges.iter().position(|(open, _)| *open == kind);
        let start = match event.kind() {
            // It was active when the generation started.
            EventKind::RangeActive => self.sync.unwrap_or(self.last),
            _ => event.time(),
        };
        let open = open.map(|at| live.ranges.swap_remove(at));
        if let (Some((_, since)), true) = (open, event.kind() != EventKind::RangeBegin) {
            live.goroutine.times.range(&kind, between(since, start));
        }
        if begins {
            live.ranges.push((kind, start));
        }
    }

    fn region_begin(&mut self, event: Event<'_>) {
        let Some(region) = event.region() else { return };
        self.task_of(region.task, event.goroutine()).regions += 1;
        if let Some(live) = self.live.get_mut(&event.goroutine()) {
            let times = live.times(event.time());
            live.goroutine.open_regions.push(Region {
                goroutine: event.goroutine(),
                task: region.task,
                name: Name::of(event.table, event.record.args[1]),
                inherited: false,
                start: Some(event.time()),
                end: None,
                times,
            });
        }
    }

    fn region_end(&mut self, event: Event<'_>) -> Option<Box<Region>> {
        let id = event.goroutine();
        let ended = event.region()?;
        let open = self.live.get_mut(&id).and_then(|live| live.goroutine.open_regions.pop());
        let mut region = open.unwrap_or_else(|| {
            self.task_of(ended.task, id).regions += 1;
            Region {
                goroutine: id,
                task: ended.task,
                name: Name::of(event.table, event.record.args[1]),
                inherited: false,
                start: None,
                end: None,
                times: Times::default(),
            }
        });
        let times = self.live.get(&id).map(|live| live.times(event.time())).unwrap_or_default();
        region.end = Some(event.time());
        region.times = times.since(&region.times);
        Some(Box::new(region))
    }

    fn task(&mut self, event: Event<'_>) {
        let Some(seen) = event.task() else { return };
        let task = self.task_of(seen.id, event.goroutine());
        task.name = seen.ty.into();
        if event.kind() == EventKind::TaskBegin {
            task.start = Some(event.time());
        } else {
            task.end = Some(event.time());
        }
        if seen.parent != TaskId::NONE && task.parent.is_none() {
            task.parent = Some(seen.parent);
            self.tasks.entry(seen.parent).or_insert_with(|| Task::new(seen.parent));
        }
    }

    fn task_of(&mut self, id: TaskId, goroutine: GoId) -> &mut Task {
        let task = self.tasks.entry(id).or_insert_with(|| Task::new(id));
        if goroutine.is_some() {
            task.goroutines.insert(goroutine);
        }
        task
    }
}

impl Live {
    /// The state that a transition leads to; `None` if the goroutine ends.
    fn phase(
        &mut self,
        event: Event<'_>,
        to: GoState,
        transition: &StateTransition<'_>,
    ) -> Option<Phase> {
        match to {
            GoState::Running => Some(Phase::Running),
            GoState::Runnable => Some(Phase::Runnable),
            GoState::Waiting if **transition.reason() == *b"forever" => None,
            GoState::Waiting => {
                let name = || match transition.reason().is_empty() {
                    true => Name::default(),
                    false => Name::of(event.table, event.record.args[0]),
                };
                Some(Phase::Waiting(self.goroutine.times.reason(transition.reason(), name)))
            }
            GoState::Syscall => Some(Phase::Syscall(event.proc(), None)),
            _ => None,
        }
    }

    /// A goroutine that is created within a region belongs to the task of that region.
    fn inherit(&mut self, event: Event<'_>, creator: Option<&Self>) {
        if let Some(region) = creator.and_then(|live| live.goroutine.open_regions.last()) {
            self.goroutine.open_regions.push(Region {
                goroutine: self.goroutine.id,
                task: region.task,
                name: Name::default(),
                inherited: true,
                start: Some(event.time()),
                end: None,
                times: Times::default(),
            });
        }
    }
}
