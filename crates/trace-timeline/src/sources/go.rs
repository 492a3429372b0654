//! Go execution traces.
//!
//! ```no_run
//! use trace_timeline::{Tables, sources::go::GoSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reader = gotrace::Reader::new(std::fs::File::open("trace.out")?)?;
//! let mut tables = Tables::new();
//! let mut source = GoSource::new(Default::default());
//! let mut events = Vec::new();
//! while let Some(event) = reader.next_event()? {
//!     source.push(event, &mut tables, &mut events);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | Go | model |
//! | --- | --- |
//! | goroutine, P, M, user task | an entity each, below that of the process |
//! | state transitions | [`EventKind::State`], with the M that executes the goroutine or P |
//! | unblock, create | [`EventKind::Flow`] |
//! | GC mark phase, stop-the-world | spans of the process |
//! | mark assist, region | spans of the goroutine |
//! | sweep | span of the P |
//! | user task | span of the task's entity |
//! | metrics, logs, labels, CPU samples | counters, instants, samples |

use super::pusher::Pusher;
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{
    Context, Event, EventKind, FlowKind, InstantKind, LossKind, SampleKind, SpanKind, State,
};
use crate::tables::{Frame, SpanId, StackId, Tables, TextId};
use gotrace::{
    Event as GoEvent, EventKind as GoEventKind, GoId, GoState, Metric, ProcId, ProcState,
    RangeName, ResourceId, StateTransition, TaskId, ThreadId,
};
use hashbrown::HashMap;
use trace_common::Timestamp;

/// Options of a [`GoSource`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GoOptions {
    /// The process id of the program, which the trace does not record. It relates the trace to
    /// other sources.
    pub pid: Option<i64>,
    /// The name of the program.
    pub process: Vec<u8>,
    /// Nanoseconds to add to all times: the difference of the timeline's clock and the trace's.
    pub offset: i64,
}

/// Statistics of a [`GoSource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GoStats {
    /// Events in the trace.
    pub events: u64,
    /// The time of the first event.
    pub first: Option<Timestamp>,
    /// The time of the last event.
    pub last: Option<Timestamp>,
    /// Events of experiments, which the model does not have.
    pub experimental: u64,
}

/// Makes model events of the events of a Go trace: see the [module](self).
#[derive(Debug, Default)]
pub struct GoSource {
    options: GoOptions,
    stats: GoStats,
    process: Option<EntityId>,
    goroutines: HashMap<GoId, Goroutine>,
    procs: HashMap<ProcId, (EntityId, State, Option<EntityId>)>,
    threads: HashMap<ThreadId, Option<EntityId>>,
    tasks: HashMap<TaskId, (EntityId, SpanId)>,
    open: HashMap<Range, SpanId>,
    /// Stacks of this generation.
    stacks: HashMap<u64, Option<StackId>>,
    generation: u64,
    frames: Vec<Frame>,
}

#[derive(Debug)]
struct Goroutine {
    entity: EntityId,
    state: State,
    on: Option<EntityId>,
    is_named: bool,
    regions: Vec<(SpanId, TextId)>,
}

/// An open range of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Range {
    Mark,
    StopTheWorld(GoId),
    Sweep(ProcId),
    Assist(GoId),
}

/// Regions that one goroutine can have open: more are ignored.
const MAX_REGIONS: usize = 1 << 10;

impl GoSource {
    /// Makes a source with these options.
    pub fn new(options: GoOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Statistics so far.
    pub const fn stats(&self) -> GoStats {
        self.stats
    }

    /// The process of the trace, after its first event.
    pub const fn process(&self) -> Option<EntityId> {
        self.process
    }

    /// Appends the model events of the next event.
    pub fn push(&mut self, event: GoEvent<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        self.stats.events += 1;
        if event.sync().is_some() {
            return; // its time is not that of an event
        }
        let at = event.time().saturating_add_nanos(self.options.offset);
        self.stats.first.get_or_insert(at);
        self.stats.last = Some(at);
        if event.generation() != self.generation {
            self.generation = event.generation();
            self.stacks.clear();
        }
        let mut push = Pusher { at, tables, out };
        let Some(process) = self.process_entity(&mut push) else { return };
        self.learn(event, &mut push);
        match event.kind() {
            GoEventKind::StateTransition => {
                if let Some(transition) = event.state_transition() {
                    match transition.resource() {
                        // A damaged trace may lack the goroutine or proc.
                        ResourceId::Goroutine(id) if id.is_some() => {
                            self.goroutine(event, id, &transition, process, &mut push);
                        }
                        ResourceId::Proc(id) if id.is_some() => {
                            self.proc(event, id, &transition, process, &mut push);
                        }
                        _ => {}
                    }
                }
            }
            GoEventKind::RangeBegin | GoEventKind::RangeActive | GoEventKind::RangeEnd => {
                self.range(event, process, &mut push);
            }
            GoEventKind::RegionBegin | GoEventKind::RegionEnd => self.region(event, &mut push),
            GoEventKind::TaskBegin | GoEventKind::TaskEnd => self.task(event, process, &mut push),
            GoEventKind::Log => {
                if let Some(log) = event.log() {
                    self.instant(event, InstantKind::Log, log.message, process, &mut push);
                }
            }
            GoEventKind::Label => {
                if let Some(label) = event.label() {
                    self.instant(event, InstantKind::Label, label.label, process, &mut push);
                }
            }
            GoEventKind::Metric => metric(event, process, &mut push),
            GoEventKind::StackSample => {
                let entity = self.goroutines.get(&event.goroutine()).map(|g| g.entity);
                let entity = entity.or_else(|| self.thread(event.thread(), &mut push));
                let stack = self.stack(event.stack(), push.tables);
                let entity = entity.unwrap_or(process);
                push.event(EventKind::Sample { entity, kind: SampleKind::Cpu, stack, weight: 1 });
            }
            _ => self.stats.experimental += 1,
        }
    }

    /// Reports that a part of the trace is missing here: all states are unknown until the trace
    /// mentions them again, and all spans end.
    pub fn loss(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let at = self.stats.last.unwrap_or_default();
        let mut push = Pusher { at, tables, out };
        let mut spans: Vec<SpanId> = self.open.drain().map(|(_, span)| span).collect();
        // The order of a map is not deterministic.
        let mut goroutines: Vec<_> = self.goroutines.values_mut().collect();
        goroutines.sort_unstable_by_key(|goroutine| goroutine.entity);
        for goroutine in goroutines {
            goroutine.on = None;
            goroutine.state = State::Unknown;
            spans.extend(goroutine.regions.drain(..).map(|(span, _)| span));
            push.unknown(goroutine.entity);
        }
        let mut procs: Vec<_> = self.procs.values_mut().collect();
        procs.sort_unstable_by_key(|(entity, ..)| *entity);
        for (entity, state, on) in procs {
            (*state, *on) = (State::Unknown, None);
            push.unknown(*entity);
        }
        spans.sort_unstable();
        for span in spans {
            push.event(EventKind::Finish { span, by: None });
        }
        self.stacks.clear();
        let kind = LossKind::GoTrace;
        push.event(EventKind::Loss { entity: self.process, kind, since: at, count: None });
    }

    fn process_entity(&mut self, push: &mut Pusher<'_>) -> Option<EntityId> {
        if self.process.is_none() {
            let name = push.tables.text(&self.options.process);
            let number = self.options.pid.unwrap_or(-1);
            let process = push.start(Entity::new(EntityKind::Process, number).named(name))?;
            let go = push.tables.text(b"Go");
            push.tables.entities.describe(process, Attribute::Runtime, go);
            self.process = Some(process);
        }
        self.process
    }

    /// The M with this thread id.
    fn thread(&mut self, id: ThreadId, push: &mut Pusher<'_>) -> Option<EntityId> {
        if id.0 <= 0 {
            return None;
        }
        let process = self.process;
        *self.threads.entry(id).or_insert_with(|| {
            push.start(Entity::new(EntityKind::GoThread, id.0).child_of(process))
        })
    }

    /// Learns the M of a goroutine and its entry function, which the first mention of a goroutine
    /// does not always say.
    fn learn(&mut self, event: GoEvent<'_>, push: &mut Pusher<'_>) {
        let (id, thread) = (event.goroutine(), event.thread());
        if !id.is_some() {
            return;
        }
        let is_known = |this: &Self| {
            this.goroutines.get(&id).is_none_or(|g| {
                g.is_named
                    && (g.on.is_some() || !matches!(g.state, State::Running | State::Syscall))
            })
        };
        if is_known(self) {
            return;
        }
        let on = self.thread(thread, push);
        let Some(goroutine) = self.goroutines.get_mut(&id) else { return };
        let is_executing = matches!(goroutine.state, State::Running | State::Syscall);
        if is_executing && goroutine.on.is_none() && on.is_some() {
            goroutine.on = on;
            push.state(goroutine.entity, goroutine.state, on);
        }
        if !goroutine.is_named && event.kind() != GoEventKind::StackSample {
            goroutine.name(event.stack(), push.tables);
        }
    }

    fn goroutine(
        &mut self,
        event: GoEvent<'_>,
        id: GoId,
        transition: &StateTransition<'_>,
        process: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let Some((from, to)) = transition.goroutine() else { return };
        if to == GoState::NotExist {
            return self.end(id, push);
        }
        if from == GoState::NotExist {
            self.end(id, push); // an existing one is another goroutine
        }
        if !self.goroutines.contains_key(&id) {
            let mut entity = Entity::new(EntityKind::Goroutine, id.0).child_of(Some(process));
            if from == GoState::NotExist {
                entity = entity.started(push.at);
            }
            let Some(entity) = push.start(entity) else { return };
            let (state, regions) = (State::Unknown, Vec::new());
            let goroutine = Goroutine { entity, state, on: None, is_named: false, regions };
            self.goroutines.insert(id, goroutine);
        }
        let is_new = from == GoState::NotExist;
        let is_woken = from == GoState::Waiting && to == GoState::Runnable;
        let cause = if is_new || is_woken { self.cause(event, push) } else { None };
        let by = if is_new || is_woken { self.stack(event.stack(), push.tables) } else { None };
        // At a creation, the stack is the entry point.
        let stack = if is_new { None } else { self.stack(transition.stack(), push.tables) };
        let state = match to {
            GoState::Running => State::Running,
            GoState::Runnable => State::Runnable,
            GoState::Waiting => State::Waiting,
            GoState::Syscall => State::Syscall,
            _ => State::Unknown,
        };
        let is_status = from == GoState::Undetermined;
        let on = match state {
            State::Running => self.thread(event.thread(), push),
            // The status of a goroutine in a system call is reported by another thread.
            State::Syscall if !is_status => self.thread(event.thread(), push),
            _ => None,
        };
        let Some(goroutine) = self.goroutines.get_mut(&id) else { return };
        if !goroutine.is_named {
            goroutine.name(transition.stack(), push.tables);
        }
        // At the start of every generation the trace repeats known states.
        if !is_new && goroutine.state == state && transition.reason().is_empty() {
            return;
        }
        if is_new || is_woken {
            let kind = if is_new { FlowKind::Creates } else { FlowKind::Wakes };
            push.event(EventKind::Flow {
                kind,
                from: cause,
                context: Context::Task,
                to: goroutine.entity,
                cpu: None,
                stack: by,
            });
        }
        goroutine.state = state;
        goroutine.on = on;
        let reason = push.tables.text(transition.reason());
        push.event(EventKind::State { entity: goroutine.entity, state, on, reason, stack });
    }

    /// The goroutine that caused an event, or the thread that did it for the runtime.
    fn cause(&mut self, event: GoEvent<'_>, push: &mut Pusher<'_>) -> Option<EntityId> {
        match self.goroutines.get(&event.goroutine()) {
            Some(goroutine) => Some(goroutine.entity),
            None => self.thread(event.thread(), push),
        }
    }

    fn end(&mut self, id: GoId, push: &mut Pusher<'_>) {
        let Some(mut goroutine) = self.goroutines.remove(&id) else { return };
        for (span, _) in goroutine.regions.drain(..).rev() {
            push.event(EventKind::Finish { span, by: None });
        }
        push.end(goroutine.entity);
    }

    fn proc(
        &mut self,
        event: GoEvent<'_>,
        id: ProcId,
        transition: &StateTransition<'_>,
        process: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let Some((from, to)) = transition.proc() else { return };
        let (state, on) = match to {
            ProcState::Running => (State::Running, self.thread(event.thread(), push)),
            ProcState::Idle => (State::Idle, None),
            _ => (State::Unknown, None),
        };
        let known = match self.procs.entry(id) {
            hashbrown::hash_map::Entry::Occupied(known) => known.into_mut(),
            hashbrown::hash_map::Entry::Vacant(entry) => {
                let proc = Entity::new(EntityKind::Proc, id.0).child_of(Some(process));
                let Some(proc) = push.start(proc) else { return };
                entry.insert((proc, State::Unknown, None))
            }
        };
        // A status that is repeated may be reported by another thread.
        let is_repeated = from != ProcState::Idle && known.1 == state && known.2.is_some();
        if (known.1, known.2) != (state, on) && !is_repeated {
            (known.1, known.2) = (state, on);
            push.state(known.0, state, on);
        }
    }

    fn range(&mut self, event: GoEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        let Some(range) = event.range() else { return };
        let goroutine = |this: &Self, id: GoId| this.goroutines.get(&id).map(|g| g.entity);
        let (key, entity, kind, name) = match (range.name, range.scope) {
            (RangeName::GcMark, _) => (Range::Mark, Some(process), SpanKind::Gc, &b"mark"[..]),
            (RangeName::StopTheWorld(reason), scope) => {
                let id = scope.goroutine().unwrap_or(GoId::NONE);
                let reason: &[u8] = reason;
                (Range::StopTheWorld(id), Some(process), SpanKind::StopTheWorld, reason)
            }
            (RangeName::GcSweep, ResourceId::Proc(id)) => {
                let proc = self.procs.get(&id).map(|(entity, ..)| *entity);
                (Range::Sweep(id), proc, SpanKind::GcSweep, &b"sweep"[..])
            }
            (RangeName::GcMarkAssist, ResourceId::Goroutine(id)) => {
                let entity = goroutine(self, id);
                (Range::Assist(id), entity, SpanKind::GcAssist, &b"mark assist"[..])
            }
            _ => return,
        };
        let by = goroutine(self, event.goroutine());
        if event.kind() == GoEventKind::RangeEnd {
            if let Some(span) = self.open.remove(&key) {
                push.event(EventKind::Finish { span, by });
            }
            return;
        }
        let Some(entity) = entity else { return };
        if self.open.contains_key(&key) {
            return; // repeated at the start of a generation
        }
        let span = push.begin(entity, kind, name, by, None);
        self.open.insert(key, span);
    }

    fn region(&mut self, event: GoEvent<'_>, push: &mut Pusher<'_>) {
        let Some(region) = event.region() else { return };
        let task = self.tasks.get(&region.task).map(|(entity, _)| *entity);
        let Some(goroutine) = self.goroutines.get_mut(&event.goroutine()) else { return };
        let name = push.tables.text(region.ty);
        if event.kind() == GoEventKind::RegionBegin {
            if goroutine.regions.len() < MAX_REGIONS {
                let entity = goroutine.entity;
                let span = push.begin(entity, SpanKind::Region, region.ty, None, task);
                goroutine.regions.push((span, name));
            }
        } else if let Some(index) = goroutine.regions.iter().rposition(|(_, ty)| *ty == name) {
            let (span, _) = goroutine.regions.remove(index);
            push.event(EventKind::Finish { span, by: None });
        }
    }

    fn task(&mut self, event: GoEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        let Some(task) = event.task() else { return };
        let by = self.goroutines.get(&event.goroutine()).map(|g| g.entity);
        if let Some((entity, span)) = self.tasks.remove(&task.id) {
            push.event(EventKind::Finish { span, by });
            push.end(entity);
        }
        if event.kind() == GoEventKind::TaskEnd {
            return;
        }
        let name = push.tables.text(task.ty);
        let parent = self.tasks.get(&task.parent).map(|(entity, _)| *entity);
        let number = task.id.0 as i64;
        let entity = Entity::new(EntityKind::Task, number).child_of(Some(process)).named(name);
        let Some(entity) = push.start(entity.started(push.at)) else { return };
        let span = push.begin(entity, SpanKind::Task, task.ty, by, parent);
        self.tasks.insert(task.id, (entity, span));
    }

    fn instant(
        &mut self,
        event: GoEvent<'_>,
        kind: InstantKind,
        name: &[u8],
        process: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let entity = self.goroutines.get(&event.goroutine()).map_or(process, |g| g.entity);
        let stack = self.stack(event.stack(), push.tables);
        let name = push.tables.text(name);
        push.event(EventKind::Instant { entity, kind, name, stack });
    }

    fn stack(&mut self, stack: Option<gotrace::Stack<'_>>, tables: &mut Tables) -> Option<StackId> {
        let stack = stack?;
        if let Some(known) = self.stacks.get(&stack.id()) {
            return *known;
        }
        self.frames.clear();
        for frame in stack.frames() {
            self.frames.push(Frame {
                function: tables.text(frame.func),
                module: TextId::EMPTY,
                file: tables.text(frame.file),
                line: u32::try_from(frame.line).unwrap_or(0),
            });
        }
        let id = tables.stack(&self.frames);
        self.stacks.insert(stack.id(), id);
        id
    }
}

impl Goroutine {
    /// Names it after its entry function: the outermost frame of any of its stacks.
    fn name(&mut self, stack: Option<gotrace::Stack<'_>>, tables: &mut Tables) {
        let Some(entry) = stack.and_then(|stack| stack.frames().last()) else { return };
        let name = tables.text(entry.func);
        if let Some(entity) = tables.entities.get_mut(self.entity) {
            entity.name = name;
        }
        self.is_named = true;
    }
}

fn metric(event: GoEvent<'_>, entity: EntityId, push: &mut Pusher<'_>) {
    let Some(metric) = event.metric() else { return };
    let Some(value) = metric.value.as_u64() else { return };
    let unit: &[u8] = match metric.name {
        Metric::HEAP_OBJECTS | Metric::HEAP_GOAL => b"B",
        _ => b"",
    };
    let (name, unit) = (push.tables.text(metric.name.as_bytes()), push.tables.text(unit));
    push.event(EventKind::Counter { entity, name, unit, value: value as f64 });
}
