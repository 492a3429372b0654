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
//! | goroutine, P, M, user task, GC | an entity each, below that of the process |
//! | state transitions | [`EventKind::State`], with the M that executes the goroutine or P |
//! | unblock, create, switch of coroutines | [`EventKind::Flow`] |
//! | GC mark phase | span of the process; `of` is the GC |
//! | stop-the-world | span of the process |
//! | mark assist, region | spans of the goroutine; `of` is the task of a region |
//! | sweep | span of the P; its end has `bytes swept` and `bytes reclaimed` |
//! | user task | span of the task's entity; `of` is the parent task |
//! | metric, CPU sample | counter; sample of the goroutine, with its M |
//! | log, label | instants of the goroutine; a log has its `category`, and `of` is the task |
//! | clock snapshot (Go 1.25) | [`EventKind::Clock`] |
//!
//! Spans and instants have the stack of their event.

use super::pusher::{Begin, Pusher};
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{
    Context, Event, EventKind, FlowKind, InstantKind, LossKind, SampleKind, SpanKind, State, Value,
};
use crate::tables::{Frame, SampledEventId, SpanId, StackId, Tables, TextId};
use gotrace::analysis::GcTrigger;
use gotrace::{
    Event as GoEvent, EventKind as GoEventKind, EventType, GoId, GoState, Metric, ProcId,
    ProcState, RangeName, ResourceId, StateTransition, TaskId, ThreadId,
};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use trace_common::{ClockDomain, IdMap, Timestamp};

/// Options of a [`GoSource`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GoOptions {
    /// The process id of the program, which the trace does not record. It relates the trace to
    /// other sources.
    pub pid: Option<u32>,
    /// The name of the program.
    pub process: Vec<u8>,
    /// Nanoseconds to add to all times: the difference of the timeline's clock and the trace's.
    pub offset_nanos: i64,
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
    /// Goroutines.
    pub goroutines: u64,
    /// Events of experiments, which the model does not have.
    pub experimental: u64,
    /// Regions that are missing because a goroutine had too many open ones.
    pub regions_dropped: u64,
}

/// Makes model events of the events of a Go trace: see the [module](self).
#[derive(Debug, Default)]
pub struct GoSource {
    options: GoOptions,
    stats: GoStats,
    /// `Some(None)` if the tables refused it.
    process: Option<Option<EntityId>>,
    /// `None` for what the tables refused: it is counted once.
    goroutines: IdMap<Option<Goroutine>>,
    procs: IdMap<Option<Proc>>,
    /// Goroutines and Ps that had a state or an open region since the last loss: the next one ends that.
    mentioned: BTreeMap<EntityId, GoId>,
    mentioned_procs: BTreeMap<EntityId, ProcId>,
    threads: IdMap<Option<EntityId>>,
    tasks: IdMap<Option<(EntityId, SpanId)>>,
    /// With whether it began before the trace, or before a loss.
    open: HashMap<Range, (SpanId, bool)>,
    /// The GC that marks, and the number of GCs so far.
    gc: (Option<EntityId>, i64),
    /// Readings of clocks, until the next event.
    clocks: [Option<EventKind>; 2],
    has_clocks: bool,
    /// A loss before the first event, with what is known of its bytes.
    lost_start: Option<(String, Option<u64>)>,
    /// Stacks of this generation.
    stacks: IdMap<Option<StackId>>,
    /// 0 before the first one, and after a loss.
    generation: u64,
    /// The first event of this generation, or of those after a loss.
    start: Option<Timestamp>,
    frames: Vec<Frame>,
}

#[derive(Debug)]
struct Goroutine {
    entity: EntityId,
    state: State,
    on: Option<EntityId>,
    is_named: bool,
    /// It marks for the GC, and looks for other work meanwhile.
    is_mark_worker: bool,
    is_polled: bool,
    regions: Vec<(SpanId, TextId)>,
    /// Open regions above [`MAX_REGIONS`], which are within the others.
    ignored: u64,
}

#[derive(Clone, Copy, Debug)]
struct Proc {
    entity: EntityId,
    state: State,
    on: Option<EntityId>,
}

/// An open range of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Range {
    Mark,
    StopTheWorld(GoId),
    Sweep(ProcId),
    Assist(GoId),
}

/// The reason of a goroutine that waits for the network poller.
const NETWORK: &[u8] = b"network";

/// The entry function of the mark workers of the GC.
const MARK_WORKER: &[u8] = b"runtime.gcBgMarkWorker";

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
        self.process.flatten()
    }

    /// Appends the model events of the next event.
    pub fn push(&mut self, event: GoEvent<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        self.stats.events += 1;
        if let Some(sync) = event.sync() {
            if sync.restarts() {
                self.forget(tables, out);
            }
            // Its time is not that of an event.
            if let Some(snapshot) = sync.clock_snapshot() {
                self.clock(&snapshot);
            }
            return;
        }
        let at = event.time().saturating_add_nanos(self.options.offset_nanos);
        self.check_generation(event.generation(), tables, out);
        self.stats.first.get_or_insert(at);
        self.stats.last = Some(at);
        let start = *self.start.get_or_insert(at);
        let mut push = Pusher { at, tables, out };
        if self.has_clocks {
            self.has_clocks = false;
            let clocks = std::mem::take(&mut self.clocks);
            clocks.into_iter().flatten().for_each(|clock| push.event(clock));
        }
        let Some(process) = self.process_entity(&mut push) else { return };
        if let Some((why, bytes)) = self.lost_start.take() {
            self.push_loss(&why, bytes, &mut push);
        }
        self.learn(event, &mut push);
        match event.kind() {
            GoEventKind::StateTransition => {
                if let Some(transition) = event.state_transition() {
                    match transition.resource() {
                        // A damaged trace may lack the goroutine or proc.
                        ResourceId::Goroutine(id) if id.is_some() => {
                            let first = self.goroutine(event, id, &transition, process, &mut push);
                            // It is first mentioned in the state that it had at the begin.
                            if let Some(entity) = first.filter(|_| start < at) {
                                push.event(EventKind::Since { entity, since: start });
                            }
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
                    let of = self.task_of(log.task);
                    if !log.category.is_empty() {
                        push.text(b"category", log.category);
                    }
                    let entity = self.entity_of(event.goroutine(), process);
                    self.instant(event, entity, InstantKind::Log, log.message, of, &mut push);
                }
            }
            GoEventKind::Label => {
                if let Some(label) = event.label() {
                    let id = label.resource.goroutine().unwrap_or(GoId::NONE);
                    let entity = self.entity_of(id, process);
                    self.instant(event, entity, InstantKind::Label, label.label, None, &mut push);
                }
            }
            GoEventKind::Metric => metric(event, process, &mut push),
            GoEventKind::StackSample => {
                let goroutine = self.known(event.goroutine()).map(|g| g.entity);
                let thread = self.thread(event.thread(), &mut push);
                let proc = self.proc_of(event.proc());
                let stack = self.stack(event.stack(), push.tables);
                push.event(EventKind::Sample {
                    entity: goroutine.or(thread).or(proc).unwrap_or(process),
                    kind: SampleKind::GoCpu,
                    stack,
                    weight: 1,
                    thread,
                    cpu: None,
                    event: SampledEventId::default(),
                    of: None,
                });
            }
            _ => self.stats.experimental += 1,
        }
    }

    /// A generation has its own stacks, and the first states that it reports held at its start. Those of generations
    /// that are missing before it, as Go 1.26 permits it, are a loss.
    fn check_generation(&mut self, generation: u64, tables: &mut Tables, out: &mut Vec<Event>) {
        if generation == self.generation {
            return;
        }
        let before = std::mem::replace(&mut self.generation, generation);
        self.start = None;
        self.stacks = IdMap::default();
        // After damage, 0: the loss was reported.
        let missing = before.saturating_add(1)..generation;
        if before == 0 || missing.is_empty() {
            return;
        }
        let last = missing.end - 1;
        let why = match last == missing.start {
            true => format!("generation {last} is missing"),
            false => format!("the generations {} to {last} are missing", missing.start),
        };
        self.loss(&why, None, tables, out);
        self.generation = generation;
    }

    /// Reports that a part of the trace is missing here: all states are unknown until the trace
    /// mentions them again, and all spans end, except those of user tasks. The end of a task has its
    /// identifier, so that it can still follow.
    ///
    /// `why` says how the trace is damaged, and `bytes` how many of it are lost, if that is known. Losses
    /// before the first event are one, and have its time.
    pub fn loss(
        &mut self,
        why: &str,
        bytes: Option<u64>,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        let Some(at) = self.stats.last else {
            // It has no time yet.
            let (_, lost) = self.lost_start.get_or_insert_with(|| (why.to_owned(), None));
            *lost = bytes.map_or(*lost, |bytes| Some(lost.unwrap_or(0).saturating_add(bytes)));
            return;
        };
        self.forget(tables, out);
        self.push_loss(why, bytes, &mut Pusher { at, tables, out });
    }

    /// Ends the trace where other sources continue: all states are unknown from its last event on, and spans
    /// of the runtime end, as after a loss. User tasks and regions stay open, as nothing says that they end. If the
    /// process id is known, they end here, too: their ends are not known, and their goroutines can continue.
    ///
    /// A later trace of the process with this process id continues with the goroutines, Ps and Ms of this one. It has to
    /// be read after this one: see [`Streams::add_from`](crate::Streams::add_from).
    pub fn finish(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let Some(at) = self.stats.last else { return };
        let push = &mut Pusher { at, tables, out };
        let mut spans = self.take_ranges();
        // A later trace can continue with the goroutines.
        if self.options.pid.is_some() {
            spans.extend(self.take_regions());
            spans.extend(self.take_tasks());
        }
        self.forget_states(push);
        self.cut(spans, push);
        let goroutines = self.goroutines.ids().filter_map(|id| Some(self.known(GoId(id))?.entity));
        let procs = self.procs.ids().filter_map(|id| self.proc_of(ProcId(id)));
        let threads = self.threads.ids().filter_map(|id| *self.threads.get(id)?);
        for entity in goroutines.chain(procs).chain(threads) {
            push.tables.leave(entity, at);
        }
    }

    /// All states are unknown from the last event on, and all spans end, except those of user tasks.
    fn forget(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let Some(at) = self.stats.last else { return };
        let mut push = Pusher { at, tables, out };
        let mut spans = self.take_ranges();
        spans.extend(self.take_regions());
        self.forget_states(&mut push);
        self.mentioned.clear();
        self.mentioned_procs.clear();
        self.cut(spans, &mut push);
        self.stacks = IdMap::default();
        self.start = None;
        self.generation = 0;
    }

    /// The open spans of the runtime, which are to be cut.
    fn take_ranges(&mut self) -> Vec<SpanId> {
        // Not drained: that takes time for the capacity.
        std::mem::take(&mut self.open).into_values().map(|(span, _)| span).collect()
    }

    /// The open regions, which are to be cut.
    fn take_regions(&mut self) -> Vec<SpanId> {
        let mut spans = Vec::new();
        for id in self.mentioned.values() {
            let goroutine = self.goroutines.get_mut(id.0).and_then(Option::as_mut);
            let Some(goroutine) = goroutine else { continue };
            spans.extend(goroutine.regions.drain(..).map(|(span, _)| span));
            goroutine.ignored = 0;
        }
        spans
    }

    /// The open user tasks, which are to be cut.
    fn take_tasks(&mut self) -> Vec<SpanId> {
        let tasks = std::mem::take(&mut self.tasks);
        tasks.ids().filter_map(|id| tasks.get(id)?.as_ref().map(|(_, span)| *span)).collect()
    }

    /// Ends these spans, whose ends are not known, and the GC.
    fn cut(&mut self, mut spans: Vec<SpanId>, push: &mut Pusher<'_>) {
        spans.sort_unstable();
        spans.into_iter().for_each(|span| push.cut(span));
        self.end_gc(push);
    }

    fn forget_states(&mut self, push: &mut Pusher<'_>) {
        for id in self.mentioned.values() {
            let goroutine = self.goroutines.get_mut(id.0).and_then(Option::as_mut);
            let Some(goroutine) = goroutine else { continue };
            let is_known = goroutine.state != State::Unknown;
            (goroutine.state, goroutine.on) = (State::Unknown, None);
            if is_known {
                push.unknown(goroutine.entity);
            }
        }
        for id in self.mentioned_procs.values() {
            let Some(proc) = self.procs.get_mut(id.0).and_then(Option::as_mut) else { continue };
            let is_known = proc.state != State::Unknown;
            (proc.state, proc.on) = (State::Unknown, None);
            if is_known {
                push.unknown(proc.entity);
            }
        }
    }

    fn push_loss(&self, why: &str, count: Option<u64>, push: &mut Pusher<'_>) {
        push.text(b"why", why.as_bytes());
        let (entity, since) = (self.process(), push.at);
        push.event(EventKind::Loss { entity, kind: LossKind::GoTrace, since, count });
    }

    /// A reading of several clocks.
    fn clock(&mut self, snapshot: &gotrace::ClockSnapshot) {
        let time = snapshot.trace.saturating_add_nanos(self.options.offset_nanos);
        let mono = i64::try_from(snapshot.mono).ok().map(Timestamp::from_nanos);
        let readings = [(ClockDomain::Monotonic, mono), (ClockDomain::Realtime, snapshot.wall())];
        let readings = readings.into_iter().filter_map(|(domain, reading)| {
            Some(EventKind::Clock { time, domain, reading: reading? })
        });
        self.has_clocks = true;
        self.clocks = [None; 2];
        self.clocks.iter_mut().zip(readings).for_each(|(place, clock)| *place = Some(clock));
    }

    /// A goroutine, or the process if it is unknown.
    fn entity_of(&self, id: GoId, process: EntityId) -> EntityId {
        self.known(id).map_or(process, |goroutine| goroutine.entity)
    }

    #[inline]
    fn known(&self, id: GoId) -> Option<&Goroutine> {
        self.goroutines.get(id.0)?.as_ref()
    }

    #[inline]
    fn known_mut(&mut self, id: GoId) -> Option<&mut Goroutine> {
        self.goroutines.get_mut(id.0)?.as_mut()
    }

    fn proc_of(&self, id: ProcId) -> Option<EntityId> {
        Some(self.procs.get(id.0)?.as_ref()?.entity)
    }

    fn task_of(&self, id: TaskId) -> Option<EntityId> {
        // The cast may wrap: keys are only compared for equality.
        Some(self.tasks.get(id.0 as i64)?.as_ref()?.0)
    }

    fn process_entity(&mut self, push: &mut Pusher<'_>) -> Option<EntityId> {
        if let Some(process) = self.process {
            return process;
        }
        let process = push.process(self.options.pid, &self.options.process);
        self.process = Some(process);
        let go = push.tables.text(b"Go");
        push.tables.entities.describe(process?, Attribute::Runtime, go);
        process
    }

    /// The M with this thread id.
    fn thread(&mut self, id: ThreadId, push: &mut Pusher<'_>) -> Option<EntityId> {
        if id.0 <= 0 {
            return None;
        }
        if let Some(known) = self.threads.get(id.0) {
            return *known;
        }
        let thread = Entity::new(EntityKind::GoThread, id.0).child_of(self.process());
        let (thread, _) = push.start_or_continue(thread);
        *self.threads.insert(id.0) = thread;
        thread
    }

    /// Learns the M of a goroutine and its entry function, which the first mention of a goroutine
    /// does not always say.
    fn learn(&mut self, event: GoEvent<'_>, push: &mut Pusher<'_>) {
        let (id, thread) = (event.goroutine(), event.thread());
        if !id.is_some() {
            return;
        }
        let is_known = |this: &Self| {
            this.known(id).is_none_or(|g| {
                g.is_named
                    && (g.on.is_some() || !matches!(g.state, State::Running | State::Syscall))
            })
        };
        if is_known(self) {
            return;
        }
        let on = self.thread(thread, push);
        let Some(goroutine) = self.known_mut(id) else { return };
        let is_executing = matches!(goroutine.state, State::Running | State::Syscall);
        if is_executing && goroutine.on.is_none() && on.is_some() {
            goroutine.on = on;
            push.state(goroutine.entity, goroutine.state, on);
        }
        if !goroutine.is_named && event.kind() != GoEventKind::StackSample {
            goroutine.name(event.stack(), push.tables);
        }
    }

    /// The entity, if it is first mentioned, and its state is not new.
    fn goroutine(
        &mut self,
        event: GoEvent<'_>,
        id: GoId,
        transition: &StateTransition<'_>,
        process: EntityId,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        let (from, to) = transition.goroutine()?;
        if to == GoState::NotExist {
            self.end(id, push);
            return None;
        }
        if from == GoState::NotExist {
            self.end(id, push); // an existing one is another goroutine
        }
        let is_first = match self.goroutines.get(id.0) {
            Some(None) => return None,
            known => known.is_none(),
        };
        let mut is_continued = false;
        if is_first {
            let entity = Entity::new(EntityKind::Goroutine, id.0).child_of(Some(process));
            self.stats.goroutines += 1;
            let entity = if from == GoState::NotExist {
                push.start(entity.start(push.at))
            } else {
                // The id of a program that has executed another one can be that of another goroutine.
                let entry = transition.stack().and_then(|stack| stack.frames().last());
                let name = entry.map_or(TextId::EMPTY, |entry| push.tables.text(entry.function));
                let (known, is_known) = push.start_or_continue(entity.name(name));
                is_continued = is_known;
                known
            };
            let (state, regions) = (State::Unknown, Vec::new());
            *self.goroutines.insert(id.0) = entity.map(|entity| Goroutine {
                entity,
                state,
                on: None,
                is_named: false,
                is_mark_worker: false,
                is_polled: false,
                regions,
                ignored: 0,
            });
            entity?;
        }
        let is_new = from == GoState::NotExist;
        let flow = match (from, to) {
            (GoState::NotExist, _) => Some(FlowKind::Creates),
            // The first event of a switch: the coroutine gets the P of the goroutine that it is of.
            (GoState::Waiting, GoState::Runnable) => Some(match event.wire_type() {
                Some(EventType::GO_SWITCH | EventType::GO_SWITCH_DESTROY) => FlowKind::HandsOver,
                _ => FlowKind::Wakes,
            }),
            _ => None,
        };
        let is_polled = self.known(id).is_some_and(|goroutine| goroutine.is_polled);
        let cause = flow.and_then(|_| self.cause(event, is_polled, push));
        let by = flow.and_then(|_| self.stack(event.stack(), push.tables));
        // At a creation, the stack is the entry point.
        let stack = if is_new { None } else { self.stack(transition.stack(), push.tables) };
        let state = match to {
            GoState::Running => State::Running,
            GoState::Runnable => State::Runnable,
            GoState::Waiting => State::Waiting,
            GoState::Syscall => State::Syscall,
            _ => State::Unknown,
        };
        let on = match state {
            // Of a status too: the thread is that of the goroutine, whichever one reports it.
            State::Running | State::Syscall => self.thread(event.thread(), push),
            _ => None,
        };
        let goroutine = self.known_mut(id)?;
        if !goroutine.is_named {
            goroutine.name(transition.stack(), push.tables);
        }
        // At the start of every generation the trace repeats known states.
        if !is_new && goroutine.state == state && transition.reason().is_empty() {
            return None;
        }
        if let Some(kind) = flow {
            push.event(EventKind::Flow {
                kind,
                from: cause,
                context: Context::Task,
                on: None,
                to: goroutine.entity,
                cpu: None,
                stack: by,
            });
        }
        let entity = goroutine.entity;
        goroutine.is_polled = state == State::Waiting && transition.reason() == NETWORK;
        let before = std::mem::replace(&mut goroutine.state, state);
        goroutine.on = on;
        if before == State::Unknown {
            self.mentioned.insert(entity, id);
        }
        let reason = push.tables.text(transition.reason());
        push.event(EventKind::State { entity, state, on, reason, stack });
        // Of one that an earlier trace left, the time before is unknown, as after a loss.
        (is_first && !is_continued && from == GoState::Undetermined).then_some(entity)
    }

    /// The goroutine that caused an event, or the thread that did it for the runtime. Up to Go 1.21
    /// the thread is unknown, and the P is not. A mark worker of the GC that polls the network does it for its P.
    fn cause(
        &mut self,
        event: GoEvent<'_>,
        is_polled: bool,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        match self.known(event.goroutine()) {
            Some(worker) if is_polled && worker.is_mark_worker => self.proc_of(event.proc()),
            Some(goroutine) => Some(goroutine.entity),
            None => {
                let thread = self.thread(event.thread(), push);
                thread.or_else(|| self.proc_of(event.proc()))
            }
        }
    }

    fn end(&mut self, id: GoId, push: &mut Pusher<'_>) {
        let Some(mut goroutine) = self.goroutines.remove(id.0).and_then(Option::take) else {
            return;
        };
        self.mentioned.remove(&goroutine.entity);
        for (span, _) in goroutine.regions.drain(..).rev() {
            push.event(EventKind::Finish { span, by: None, is_cut: false });
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
        if self.procs.get(id.0).is_none() {
            let proc = Entity::new(EntityKind::Proc, id.0).child_of(Some(process));
            let (proc, _) = push.start_or_continue(proc);
            *self.procs.insert(id.0) =
                proc.map(|entity| Proc { entity, state: State::Unknown, on: None });
        }
        let Some(proc) = self.procs.get_mut(id.0).and_then(Option::as_mut) else { return };
        // A status that is repeated may be reported by another thread.
        let is_repeated = from != ProcState::Idle && proc.state == state && proc.on.is_some();
        if (proc.state, proc.on) != (state, on) && !is_repeated {
            if proc.state == State::Unknown {
                self.mentioned_procs.insert(proc.entity, id);
            }
            (proc.state, proc.on) = (state, on);
            push.state(proc.entity, state, on);
        }
    }

    fn range(&mut self, event: GoEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        let Some(range) = event.range() else { return };
        let goroutine = |this: &Self, id: GoId| this.known(id).map(|g| g.entity);
        let (key, entity, kind, name) = match (range.name, range.scope) {
            (RangeName::GcMark, _) => {
                let is_begin = event.kind() == GoEventKind::RangeBegin;
                let cause = is_begin.then(|| GcTrigger::of(event.stack()));
                (Range::Mark, Some(process), SpanKind::Gc, mark(cause))
            }
            (RangeName::StopTheWorld(reason), scope) => {
                let id = scope.goroutine().unwrap_or(GoId::NONE);
                let reason: &[u8] = reason;
                (Range::StopTheWorld(id), Some(process), SpanKind::StopTheWorld, reason)
            }
            (RangeName::GcSweep, ResourceId::Proc(id)) => {
                let proc = self.proc_of(id);
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
            if let Some((span, is_older)) = self.open.remove(&key) {
                for attribute in event.range_attributes().into_iter().flatten() {
                    if let Some(value) = attribute.value.as_u64() {
                        push.number(attribute.name.as_bytes(), value);
                    }
                }
                // The rest of a mark phase is not its duration.
                let is_cut = is_older && key == Range::Mark;
                push.event(EventKind::Finish { span, by, is_cut });
            }
            if key == Range::Mark {
                self.end_gc(push);
            }
            return;
        }
        let Some(entity) = entity else { return };
        if self.open.contains_key(&key) {
            return; // repeated at the start of a generation
        }
        let gc = if key == Range::Mark { self.start_gc(process, push) } else { None };
        let stack = self.stack(event.stack(), push.tables);
        let span = push.begin(Begin::new(entity, kind, name).by(by).of(gc).stack(stack));
        self.open.insert(key, (span, event.kind() == GoEventKind::RangeActive));
    }

    fn start_gc(&mut self, process: EntityId, push: &mut Pusher<'_>) -> Option<EntityId> {
        self.end_gc(push);
        self.gc.1 += 1;
        let gc = Entity::new(EntityKind::Gc, self.gc.1).child_of(Some(process)).start(push.at);
        self.gc.0 = push.start(gc);
        self.gc.0
    }

    fn end_gc(&mut self, push: &mut Pusher<'_>) {
        if let Some(gc) = self.gc.0.take() {
            push.end(gc);
        }
    }

    fn region(&mut self, event: GoEvent<'_>, push: &mut Pusher<'_>) {
        let Some(region) = event.region() else { return };
        let task = self.task_of(region.task);
        let stack = self.stack(event.stack(), push.tables);
        let id = event.goroutine();
        let Some(goroutine) = self.known_mut(id) else { return };
        let name = push.tables.text(region.name);
        if event.kind() == GoEventKind::RegionBegin {
            if goroutine.regions.len() < MAX_REGIONS && goroutine.ignored == 0 {
                let start = Begin::named(goroutine.entity, SpanKind::Region, name);
                let span = push.begin(start.of(task).stack(stack));
                goroutine.regions.push((span, name));
                let entity = goroutine.entity;
                if goroutine.state == State::Unknown {
                    self.mentioned.insert(entity, id);
                }
            } else {
                goroutine.ignored += 1;
                self.stats.regions_dropped += 1;
            }
        } else if goroutine.ignored > 0 {
            goroutine.ignored -= 1;
        } else if let Some(index) = goroutine.regions.iter().rposition(|(_, ty)| *ty == name) {
            let (span, _) = goroutine.regions.remove(index);
            push.event(EventKind::Finish { span, by: None, is_cut: false });
        } else {
            let (entity, kind) = (goroutine.entity, InstantKind::Other);
            push.argument(b"region", Value::Text(name));
            let name = push.tables.text(b"end of a region from before the trace");
            push.event(EventKind::Instant { entity, kind, name, of: task, stack });
        }
    }

    fn task(&mut self, event: GoEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        let Some(task) = event.task() else { return };
        let by = self.known(event.goroutine()).map(|g| g.entity);
        let ended = self.tasks.remove(task.id.0 as i64).and_then(Option::take);
        let is_end = event.kind() == GoEventKind::TaskEnd;
        if let Some((entity, span)) = ended {
            // Another one with its identifier begins: its end was lost.
            push.event(EventKind::Finish { span, by, is_cut: !is_end });
            push.end(entity);
        }
        if is_end {
            return;
        }
        let name = push.tables.text(task.name);
        let parent = self.task_of(task.parent);
        let number = task.id.0 as i64;
        let entity = Entity::new(EntityKind::Task, number).child_of(Some(process)).name(name);
        let Some(entity) = push.start(entity.start(push.at)) else { return };
        let stack = self.stack(event.stack(), push.tables);
        let start = Begin::named(entity, SpanKind::Task, name).by(by).of(parent);
        let span = push.begin(start.stack(stack));
        *self.tasks.insert(number) = Some((entity, span));
    }

    fn instant(
        &mut self,
        event: GoEvent<'_>,
        entity: EntityId,
        kind: InstantKind,
        name: &[u8],
        of: Option<EntityId>,
        push: &mut Pusher<'_>,
    ) {
        let stack = self.stack(event.stack(), push.tables);
        let name = push.tables.text(name);
        push.event(EventKind::Instant { entity, kind, name, of, stack });
    }

    fn stack(&mut self, stack: Option<gotrace::Stack<'_>>, tables: &mut Tables) -> Option<StackId> {
        let stack = stack?;
        // The cast may wrap: keys are only compared for equality.
        let key = stack.id() as i64;
        if let Some(known) = self.stacks.get(key) {
            return *known;
        }
        self.frames.clear();
        for frame in stack.frames() {
            let line = frame.line;
            self.frames.push(self::frame(frame.function, frame.file, line, frame.pc, tables));
        }
        let id = tables.stack(&self.frames);
        *self.stacks.insert(key) = id;
        id
    }
}

/// The name of a mark phase with its cause. One that began before the trace has none.
const fn mark(cause: Option<GcTrigger>) -> &'static [u8] {
    match cause {
        Some(GcTrigger::Allocation) => b"mark (allocation)",
        Some(GcTrigger::Explicit) => b"mark (explicit)",
        Some(GcTrigger::Periodic) => b"mark (periodic)",
        _ => b"mark",
    }
}

/// A frame of a Go stack, of an event or of an analysis of `gotrace`.
pub fn frame(function: &[u8], file: &[u8], line: u64, pc: u64, tables: &mut Tables) -> Frame {
    Frame {
        function: tables.text(function),
        file: tables.text(file),
        line: u32::try_from(line).unwrap_or(0),
        address: pc,
        ..Frame::default()
    }
}

impl Goroutine {
    /// Names it after its entry function: the outermost frame of any of its stacks.
    fn name(&mut self, stack: Option<gotrace::Stack<'_>>, tables: &mut Tables) {
        let Some(entry) = stack.and_then(|stack| stack.frames().last()) else { return };
        let name = tables.text(entry.function);
        if let Some(entity) = tables.entities.get_mut(self.entity) {
            entity.name = name;
        }
        self.is_named = true;
        self.is_mark_worker = entry.function == MARK_WORKER;
    }
}

fn metric(event: GoEvent<'_>, entity: EntityId, push: &mut Pusher<'_>) {
    let Some(metric) = event.metric() else { return };
    let Some(value) = metric.value.as_u64() else { return };
    let unit: &[u8] = match metric.name {
        Metric::HEAP_OBJECTS | Metric::HEAP_GOAL => b"B",
        _ => b"",
    };
    push.counter(entity, metric.name.as_bytes(), unit, value as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use gotrace::synthetic::{EventConfig, EventDetails, OwnedStack};
    use gotrace::{Range as GoRange, Region, StackFrame};

    #[test]
    fn a_loss_visits_what_is_mentioned_since_the_one_before() {
        const COUNT: i64 = 10_000;
        let mut tables = Tables::new();
        let (mut source, mut out) = (GoSource::new(GoOptions::default()), Vec::new());
        let mut time = 0;
        let mut emit = |source: &mut GoSource, tables: &mut Tables, id, details| {
            time += 1;
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            let event = event.goroutine(GoId(id)).thread(ThreadId(7)).build().unwrap();
            source.push(event.as_event(), tables, &mut Vec::new());
        };
        for id in 1..=COUNT {
            let (from, to) = (GoState::Undetermined, GoState::Waiting);
            let change = StateTransition::of_goroutine(GoId(id), from, to);
            emit(&mut source, &mut tables, id, EventDetails::StateTransition(change));
            let (from, to) = (ProcState::Undetermined, ProcState::Running);
            let change = StateTransition::of_proc(ProcId(id), from, to);
            emit(&mut source, &mut tables, id, EventDetails::StateTransition(change));
            let stops = RangeName::StopTheWorld("GC".into());
            let stops = GoRange::new(stops, ResourceId::Goroutine(GoId(id)));
            emit(&mut source, &mut tables, id, EventDetails::RangeBegin(stops));
        }
        let mut visits = Vec::new();
        for _ in 0..COUNT {
            // A region of a goroutine with an unknown state.
            let region = Region::new(TaskId::BACKGROUND, "region");
            emit(&mut source, &mut tables, 5, EventDetails::RegionBegin(region));
            let GoSource { open, mentioned, mentioned_procs, .. } = &source;
            visits.push(open.capacity() + mentioned.len() + mentioned_procs.len());
            source.forget(&mut tables, &mut out);
            out.clear();
        }
        assert!(visits[0] as i64 >= 3 * COUNT, "{}", visits[0]);
        assert!(visits[1..].iter().all(|visits| *visits <= 2), "{:?}", visits[1..].iter().max());
    }

    /// A mark worker polls the network when it has nothing to mark. It ends other waits itself.
    #[test]
    fn a_mark_worker_is_no_cause_of_the_end_of_a_wait_for_the_network() {
        for (entry, reason, is_cause) in [
            ("runtime.gcBgMarkWorker", "network", false),
            ("runtime.gcBgMarkWorker", "GC mark assist wait for work", true),
            ("main.main", "network", true),
        ] {
            let stack = OwnedStack::new(&[StackFrame::new(1, entry, "x.go", 1)]);
            let (waiter, worker) = (GoId(8), GoId(9));
            let go = |id, from, to| StateTransition::of_goroutine(id, from, to);
            let runs = |id| go(id, GoState::Undetermined, GoState::Running);
            let proc = ProcState::Undetermined;
            let proc = StateTransition::of_proc(ProcId(0), proc, ProcState::Running);
            let waits = go(waiter, GoState::Running, GoState::Waiting).with_reason(reason);
            let woken = go(waiter, GoState::Waiting, GoState::Runnable);
            let (mut tables, mut out) = (Tables::new(), Vec::new());
            let mut source = GoSource::new(GoOptions::default());
            for (by, change, has_stack) in [
                (worker, proc, false),
                (waiter, runs(waiter), false),
                (waiter, waits, false),
                (worker, runs(worker), false),
                (worker, woken, true),
            ] {
                let event = EventConfig::new(EventDetails::StateTransition(change));
                let event = event.goroutine(by).proc(ProcId(0)).thread(ThreadId(7));
                let event = if has_stack { event.stack(stack.as_stack()) } else { event };
                source.push(event.build().unwrap().as_event(), &mut tables, &mut out);
            }
            let from = out.iter().find_map(|event| match event.kind {
                EventKind::Flow { kind: FlowKind::Wakes, from, .. } => from,
                _ => None,
            });
            let expected = if is_cause { EntityKind::Goroutine } else { EntityKind::Proc };
            assert_eq!(tables.entities.kind(from.unwrap()), Some(expected), "{entry} {reason}");
        }
    }

    /// What goroutine 1 of process 7 does: a change of its state at each of these times.
    fn of_goroutine(changes: &[(i64, GoState, GoState)]) -> Vec<gotrace::OwnedEvent> {
        let change = |(time, from, to): &(i64, GoState, GoState)| {
            let change = StateTransition::of_goroutine(GoId(1), *from, *to);
            let event = EventConfig::new(EventDetails::StateTransition(change));
            let event = event.time(Timestamp::from_nanos(*time)).thread(ThreadId(7));
            let is_running = [*from, *to].contains(&GoState::Running);
            let event = if is_running { event.goroutine(GoId(1)) } else { event };
            event.build().unwrap()
        };
        changes.iter().map(change).collect()
    }

    fn of_process(pid: u32) -> GoSource {
        GoSource::new(GoOptions { pid: Some(pid), ..GoOptions::default() })
    }

    /// A recorder was restarted: a goroutine that lives in both traces is one, and unknown between them.
    #[test]
    fn a_later_trace_of_a_process_continues_with_its_goroutines() {
        let (unknown, running, waiting) =
            (GoState::Undetermined, GoState::Running, GoState::Waiting);
        let traces = [
            (20_i64, of_goroutine(&[(20, unknown, waiting), (30, waiting, GoState::Runnable)])),
            (0, of_goroutine(&[(0, unknown, running), (10, running, waiting)])),
        ];
        let mut streams = crate::Streams::new();
        // The order of the files is not that of their times.
        for (start, events) in &traces {
            let (mut source, mut rest) = (of_process(7), events.iter());
            let start = Timestamp::from_nanos(*start);
            streams.add_from(start, move |tables: &mut Tables, out: &mut Vec<Event>| {
                let next = rest.next();
                match next {
                    Some(event) => source.push(event.as_event(), tables, out),
                    None => source.finish(tables, out),
                }
                Ok(next.is_some())
            });
        }
        let (mut tables, mut report) = (Tables::new(), crate::answers::Report::new());
        let mut correlator = crate::Correlator::new();
        while let Some(event) = streams.next_event(&mut tables).unwrap().copied() {
            let entities = &tables.entities;
            correlator.push(&event, entities, &mut |derived| report.push(&derived, entities));
        }
        correlator.finish(&mut |derived| report.push(&derived, &tables.entities));
        let groups: Vec<_> = report.groups.values().collect();
        let [group] = groups[..] else { panic!("{groups:?}") };
        let times = (group.running.total(), group.unknown, group.waiting);
        assert_eq!((group.count, times), (1, (10, 10, 10)));
    }

    /// The later trace does not say which tasks and regions were open.
    #[test]
    fn tasks_and_regions_end_with_a_trace_that_another_one_continues() {
        let (id, unknown, running) = (GoId(1), GoState::Undetermined, GoState::Running);
        let of_first = |(time, details): (i64, EventDetails<'_>)| {
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            event.goroutine(id).thread(ThreadId(7)).build().unwrap()
        };
        let change =
            |from, to| EventDetails::StateTransition(StateTransition::of_goroutine(id, from, to));
        let task = TaskId(3);
        let first = [
            (1, change(unknown, running)),
            (2, EventDetails::TaskBegin(gotrace::Task::new(task, TaskId::NONE, "task"))),
            (3, EventDetails::RegionBegin(Region::new(task, "region"))),
            (10, change(running, GoState::Waiting)),
        ];
        let first = first.into_iter().map(of_first).collect();
        let second = of_goroutine(&[(20, unknown, running), (30, running, GoState::Waiting)]);
        let (mut tables, mut out) = (Tables::new(), Vec::new());
        for events in [first, second] {
            let mut source = of_process(7);
            for event in &events {
                source.push(event.as_event(), &mut tables, &mut out);
            }
            source.finish(&mut tables, &mut out);
        }
        let end = Timestamp::from_nanos(100);
        let mut history = crate::answers::History::new(Timestamp::from_nanos(0), end);
        let mut correlator = crate::Correlator::new();
        for event in &out {
            correlator.push(event, &tables.entities, &mut |derived| history.push(&derived));
        }
        correlator.finish(&mut |derived| history.push(&derived));
        history.finish();
        let is_goroutine = |(_, e): &(EntityId, &Entity)| e.kind == EntityKind::Goroutine;
        let goroutines: Vec<_> = tables.entities.iter().filter(is_goroutine).collect();
        let [(goroutine, _)] = goroutines[..] else { panic!("{goroutines:?}") };
        let spans: Vec<_> = history
            .spans(goroutine)
            .iter()
            .map(|span| (span.kind, span.start.nanos(), span.end.nanos()))
            .collect();
        assert_eq!(spans, [(SpanKind::Task, 2, 10), (SpanKind::Region, 3, 10)]);
    }

    /// Traces that overlap, and those of another process, have goroutines of their own, as has one that was created.
    #[test]
    fn other_traces_have_their_own_goroutines() {
        let (unknown, running) = (GoState::Undetermined, GoState::Running);
        for (pid, start, from, expected) in [
            (7, 20, unknown, 1),
            (7, 9, unknown, 2),
            (8, 20, unknown, 2),
            (7, 20, GoState::NotExist, 2),
        ] {
            let (mut tables, mut out) = (Tables::new(), Vec::new());
            let first = of_goroutine(&[(0, unknown, running), (10, running, GoState::Waiting)]);
            let to = if from == unknown { running } else { GoState::Runnable };
            let second = of_goroutine(&[(start, from, to)]);
            for (pid, events) in [(7, first), (pid, second)] {
                let mut source = of_process(pid);
                for event in &events {
                    source.push(event.as_event(), &mut tables, &mut out);
                }
                source.finish(&mut tables, &mut out);
            }
            let is_goroutine = |(_, e): &(EntityId, &Entity)| e.kind == EntityKind::Goroutine;
            let count = tables.entities.iter().filter(is_goroutine).count();
            assert_eq!(count, expected, "{pid} {start} {from:?}");
        }
    }

    /// A trace of these generations, in each of which P 0 runs and goroutine 8 waits.
    fn generations(numbers: &[u64]) -> Vec<u8> {
        let mut text = "Trace Go1.26\n".to_owned();
        const NONE: u64 = u64::MAX;
        for n in numbers {
            let time = 20 * n;
            let mono = 64 * (time + 5);
            text.push_str(&format!(
                "EventBatch gen={n} m={NONE} time={time} size=19\nSync\n\
                 Frequency freq=15625000\n\
                 ClockSnapshot dt=5 mono={mono} sec=1700000000 nsec=120000000\n\
                 EventBatch gen={n} m=7 time={time} size=18\n\
                 ProcStatus dt=1 p=0 pstatus=1\n\
                 GoStatus dt=1 g=8 m={NONE} gstatus=4\n\
                 EndOfGeneration\n"
            ));
        }
        let mut bytes = Vec::new();
        let mut wire = gotrace::raw::TextToWire::new(text.as_bytes()).unwrap();
        std::io::Read::read_to_end(&mut wire, &mut bytes).unwrap();
        bytes
    }

    /// The generation and time of each event of a trace, but those of its own clocks, and what is made of it.
    /// Damage is said to be behind a generation.
    fn read(trace: &[u8], damaged: Option<u64>) -> (Vec<(u64, Timestamp)>, Vec<Event>, Tables) {
        let (mut tables, mut out, mut times) = (Tables::new(), Vec::new(), Vec::new());
        let mut source = GoSource::new(GoOptions::default());
        let mut reader = gotrace::Reader::new(trace).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            if event.sync().is_none() {
                let is_next = |(last, _): &(u64, Timestamp)| {
                    damaged == Some(*last) && event.generation() != *last
                };
                if times.last().is_some_and(is_next) {
                    source.loss("damaged", Some(8), &mut tables, &mut out);
                }
                times.push((event.generation(), event.time()));
            }
            source.push(event, &mut tables, &mut out);
        }
        (times, out, tables)
    }

    fn losses(events: &[Event]) -> Vec<(Timestamp, Timestamp, Option<u64>)> {
        let loss = |event: &Event| match event.kind {
            EventKind::Loss { kind: LossKind::GoTrace, since, count, .. } => {
                Some((since, event.time, count))
            }
            _ => None,
        };
        events.iter().filter_map(loss).collect()
    }

    /// What happened in a generation that is missing is not known, although both sides of it agree.
    #[test]
    fn missing_generations_are_a_loss() {
        for (numbers, missing) in [
            (&[3, 5][..], Some("generation 4 is missing")),
            (&[3, 7], Some("the generations 4 to 6 are missing")),
            (&[3, 4, 5], None),
            (&[2, 3], None),
        ] {
            let (times, out, tables) = read(&generations(numbers), None);
            let [(first, start), .., (_, end)] = times[..] else { panic!("{times:?}") };
            let last = times.iter().rfind(|(number, _)| *number == first).unwrap().1;
            let next = times.iter().find(|(number, _)| *number != first).unwrap().1;
            assert!(start < last && last < next && next < end, "{times:?}");
            let states: Vec<_> = out
                .iter()
                .filter_map(|event| match event.kind {
                    EventKind::State { state, .. } => Some((event.time, state)),
                    _ => None,
                })
                .collect();
            let known = [(start, State::Running), (last, State::Waiting)];
            let unknown = [(last, State::Unknown); 2];
            let again = [(next, State::Running), (end, State::Waiting)];
            let expected = match missing {
                Some(_) => [known, unknown, again].concat(),
                None => known.to_vec(),
            };
            assert_eq!(states, expected, "{numbers:?}");
            let loss = missing.map(|_| (last, last, None));
            assert_eq!(losses(&out), Vec::from_iter(loss), "{numbers:?}");
            let why = out.iter().find_map(|event| match event.kind {
                EventKind::Argument { value: Value::Text(text), .. } => Some(tables.str(text)),
                _ => None,
            });
            assert_eq!(why.as_deref(), missing);
        }
    }

    /// The loss has been reported.
    #[test]
    fn generations_that_are_missing_after_damage_are_no_second_loss() {
        let (_, out, _) = read(&generations(&[3, 6]), Some(3));
        let losses = losses(&out);
        assert!(matches!(losses[..], [(_, _, Some(8))]), "{losses:?}");
    }

    /// Nothing says that a task or region ends, and the world does not stand still for what follows.
    #[test]
    fn spans_of_the_runtime_end_with_the_trace() {
        let mut tables = Tables::new();
        let (mut source, mut out) = (GoSource::new(GoOptions::default()), Vec::new());
        let id = GoId(1);
        let change = StateTransition::of_goroutine(id, GoState::Undetermined, GoState::Running);
        let of_goroutine = |name| GoRange::new(name, ResourceId::Goroutine(id));
        for (time, details) in [
            (1, EventDetails::StateTransition(change)),
            (2, EventDetails::RangeBegin(of_goroutine(RangeName::GcMarkAssist))),
            (3, EventDetails::RegionBegin(Region::new(TaskId::BACKGROUND, "region"))),
            (4, EventDetails::RangeBegin(of_goroutine(RangeName::StopTheWorld("GC".into())))),
        ] {
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            let event = event.goroutine(id).thread(ThreadId(7)).build().unwrap();
            source.push(event.as_event(), &mut tables, &mut out);
        }
        source.finish(&mut tables, &mut out);
        let (mut open, mut cut) = (BTreeMap::new(), Vec::new());
        for event in &out {
            match event.kind {
                EventKind::Begin { span, kind, .. } => drop(open.insert(span, kind)),
                EventKind::Finish { span, is_cut: true, .. } => cut.extend(open.remove(&span)),
                _ => {}
            }
        }
        assert_eq!(cut, [SpanKind::GcAssist, SpanKind::StopTheWorld]);
        assert_eq!(open.into_values().collect::<Vec<_>>(), [SpanKind::Region]);
    }
}
