//! .NET traces.
//!
//! | .NET | model |
//! | --- | --- |
//! | process, thread | an entity each; [`State::Waiting`] while a thread waits for a lock |
//! | GC, suspension of the managed threads | spans of the process |
//! | JIT compilation, lock wait | spans of the thread; `of` is the owner of the lock (.NET 8 and later) |
//! | work items of the thread pool | spans from the thread that queues to the one that takes it |
//! | starvation of the thread pool | an instant of the process for each worker that is added |
//! | pairs of start and stop events of event sources | activities |
//! | event counters, meters | counters |
//! | exceptions, samples | instants, samples |
//!
//! Stacks are those of events and samples, if [`DotnetSource::resolve_stacks`] got the methods of the
//! trace.
//!
//! ```no_run
//! use trace_timeline::{Tables, sources::dotnet::DotnetSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reader = nettrace::Reader::new(std::fs::File::open("app.nettrace")?);
//! let mut tables = Tables::new();
//! let mut source = DotnetSource::new(0);
//! let mut events = Vec::new();
//! while let Some(item) = reader.next_item()? {
//!     source.push(&item, &mut tables, &mut events);
//! }
//! # Ok(())
//! # }
//! ```

use super::pusher::Pusher;
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{Event, EventKind, InstantKind, LossKind, SampleKind, SpanKind, State};
use crate::tables::{Frame, SpanId, StackId, Tables, TextId};
use hashbrown::HashMap;
use nettrace::analysis::{ActivityStep, ActivityTracker, CounterTracker, GcReason, SuspendReason};
use nettrace::manifest::Provider;
use nettrace::{Event as NetEvent, Item, MethodMap};
use std::collections::VecDeque;
use trace_common::Timestamp;

/// Makes model events of the events of a .NET trace: see the [module](self).
#[derive(Debug, Default)]
pub struct DotnetSource {
    offset: i64,
    last: Option<Timestamp>,
    events: u64,
    processes: HashMap<u64, Option<EntityId>>,
    threads: HashMap<(u64, u64), Option<EntityId>>,
    open: HashMap<Open, SpanId>,
    activities: ActivityTracker,
    open_activities: HashMap<u64, (EntityId, SpanId)>,
    counters: CounterTracker,
    /// Work items in the queue of the thread pool, oldest first, by process and identifier. An
    /// object can be queued more than once.
    queued: HashMap<(EntityId, i64), VecDeque<SpanId>>,
    queued_count: usize,
    methods: Option<MethodMap>,
}

/// An open span of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Open {
    Gc(EntityId, u64),
    Suspension(EntityId),
    Jit(EntityId, u64),
    LockWait(EntityId),
}

/// The event source of `System.Private.CoreLib`. Its keyword `ThreadPool` (0x2) at level 5 has the
/// work items of the thread pool.
const FRAMEWORK: &str = "System.Diagnostics.Eventing.FrameworkEventSource";

/// `ThreadAdjustmentReasonMap` of the runtime: no work item started for half a second.
const STARVATION: u64 = 6;

/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 1 << 10;

/// Maximum number of open spans. There are more only if ends were lost.
const MAX_OPEN: usize = 1 << 16;

impl DotnetSource {
    /// Makes a source. `offset` nanoseconds are added to all times.
    pub fn new(offset: i64) -> Self {
        Self { offset, ..Self::default() }
    }

    /// Resolves stacks by these methods. The events that name methods are usually at the end of a
    /// trace: read it once to fill the map.
    pub fn resolve_stacks(&mut self, methods: MethodMap) {
        self.methods = Some(methods);
    }

    /// Reports that a part of the trace is missing here: all spans of the runtime and of work items
    /// end, and no thread waits for a lock any more.
    pub fn loss(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let at = self.last.unwrap_or_default();
        let push = &mut Pusher { at, tables, out };
        let mut open: Vec<(SpanId, Option<Open>)> =
            self.open.drain().map(|(key, span)| (span, Some(key))).collect();
        let queued = self.queued.drain().flat_map(|(_, spans)| spans);
        open.extend(queued.map(|span| (span, None)));
        self.queued_count = 0;
        // The order of a map is not deterministic.
        open.sort_unstable_by_key(|(span, _)| *span);
        for (span, key) in open {
            push.event(EventKind::Finish { span, by: None });
            if let Some(Open::LockWait(thread)) = key {
                push.state(thread, State::Running, None);
            }
        }
        let kind = LossKind::DotnetEvents;
        push.event(EventKind::Loss { entity: None, kind, since: at, count: None });
    }

    /// The stack of an event.
    fn stack(&self, event: &NetEvent<'_>, push: &mut Pusher<'_>) -> Option<StackId> {
        let methods = self.methods.as_ref()?;
        let (process, at) = (event.process_id(), event.timestamp().nanos());
        let frames = event.stack().instruction_pointers().map(|address| {
            let frame = methods.resolve(process, address, at);
            let function = match frame.method {
                Some(method) if method.namespace.is_empty() => method.name.to_string(),
                Some(method) => format!("{}.{}", method.namespace, method.name),
                None => format!("{address:#x}"),
            };
            let module = frame.module.map_or("", |module| module.name());
            let function = push.tables.text(function.as_bytes());
            let module = push.tables.text(module.as_bytes());
            Frame { function, module, ..Frame::default() }
        });
        let frames: Vec<Frame> = frames.take(MAX_FRAMES).collect();
        push.tables.stack(&frames)
    }

    /// Number of events so far.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Appends the model events of the next item.
    pub fn push(&mut self, item: &Item<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        match item {
            Item::Event(event) => self.event(event, tables, out),
            Item::Loss(lost) => {
                let at = self.last.unwrap_or_default();
                let push = &mut Pusher { at, tables, out };
                let kind = LossKind::DotnetEvents;
                let count = Some(lost.count);
                push.event(EventKind::Loss { entity: None, kind, since: at, count });
            }
            _ => {}
        }
    }

    fn event(&mut self, event: &NetEvent<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        let at = event.timestamp().saturating_add_nanos(self.offset);
        // A stream that is not sorted stays in order.
        let at = self.last.map_or(at, |last| last.max(at));
        self.last = Some(at);
        self.events += 1;
        let push = &mut Pusher { at, tables, out };
        let Some(process) = self.process(event.process_id(), push) else { return };
        let Some(thread) = self.thread(event.process_id(), event.thread_id(), process, push) else {
            return;
        };
        match Provider::by_name(event.provider()) {
            Some(Provider::Runtime) => self.runtime(event, process, thread, push),
            Some(Provider::SampleProfiler) => {
                let (kind, stack) = (SampleKind::Stack, self.stack(event, push));
                push.event(EventKind::Sample { entity: thread, kind, stack, weight: 1 });
            }
            Some(Provider::UniversalEvents) if event.name() == "cpu" => {
                let (kind, stack) = (SampleKind::Cpu, self.stack(event, push));
                push.event(EventKind::Sample { entity: thread, kind, stack, weight: 1 });
            }
            Some(Provider::Metrics) => self.counter(event, process, push),
            Some(_) => {}
            None if event.provider() == FRAMEWORK => self.work_item(event, process, thread, push),
            None if event.name() == "EventCounters" => self.counter(event, process, push),
            None => self.custom(event, process, thread, push),
        }
    }

    fn process(&mut self, pid: u64, push: &mut Pusher<'_>) -> Option<EntityId> {
        *self.processes.entry(pid).or_insert_with(|| {
            let number = i64::try_from(pid).unwrap_or(-1);
            let process = push.start(Entity::new(EntityKind::Process, number))?;
            let dotnet = push.tables.text(b".NET");
            push.tables.entities.describe(process, Attribute::Runtime, dotnet);
            if let Some(entity) = push.tables.entities.get_mut(process) {
                entity.name = dotnet;
            }
            Some(process)
        })
    }

    fn thread(
        &mut self,
        pid: u64,
        tid: u64,
        process: EntityId,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        *self.threads.entry((pid, tid)).or_insert_with(|| {
            let number = i64::try_from(tid).unwrap_or(-1);
            let thread = Entity::new(EntityKind::DotnetThread, number).child_of(Some(process));
            let thread = push.start(thread)?;
            push.state(thread, State::Running, None);
            Some(thread)
        })
    }

    fn runtime(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        // Older runtimes write fewer fields; the missing ones count as 0.
        let number = |name: &str| event.field(name).and_then(|v| v.as_u64()).unwrap_or(0);
        match event.id() {
            // GCStart, GCEnd
            1 => {
                let reason = GcReason::from_code(number("Reason") as u32);
                let name = format!("gen {}, {reason}", number("Depth"));
                let key = Open::Gc(process, number("Count"));
                self.begin(key, process, SpanKind::Gc, &name, Some(thread), None, push);
            }
            2 => self.finish(Open::Gc(process, number("Count")), Some(thread), push),
            // GCSuspendEEBegin, GCSuspendEEEnd, GCRestartEEEnd
            9 => {
                let reason = SuspendReason::from_code(number("Reason") as u32).to_string();
                let (key, kind) = (Open::Suspension(thread), SpanKind::StopTheWorld);
                self.begin(key, process, kind, &reason, Some(thread), None, push);
            }
            8 => {
                let kind = InstantKind::Stopped;
                let name = TextId::EMPTY;
                push.event(EventKind::Instant { entity: process, kind, name, stack: None });
            }
            3 => self.finish(Open::Suspension(thread), Some(thread), push),
            // ThreadPoolWorkerThreadAdjustmentAdjustment
            55 => {
                if number("Reason") == STARVATION {
                    let (kind, stack) = (InstantKind::Starvation, None);
                    let name = push.tables.text(b"thread-pool starvation");
                    push.event(EventKind::Instant { entity: process, kind, name, stack });
                }
                let name = push.tables.text(b"thread-pool workers");
                let value = number("NewWorkerThreadCount") as f64;
                let unit = TextId::EMPTY;
                push.event(EventKind::Counter { entity: process, name, unit, value });
            }
            // ExceptionThrown
            80 => {
                let ty = event.field("ExceptionType").map(|v| v.to_string()).unwrap_or_default();
                let name = push.tables.text(ty.as_bytes());
                let (kind, stack) = (InstantKind::Exception, self.stack(event, push));
                push.event(EventKind::Instant { entity: thread, kind, name, stack });
            }
            // ContentionStart, ContentionStop
            81 => {
                let owner = number("LockOwnerThreadID");
                let owner = Some(owner).filter(|owner| *owner != 0);
                let pid = event.process_id();
                let owner = owner.and_then(|tid| self.thread(pid, tid, process, push));
                let key = Open::LockWait(thread);
                self.begin(key, thread, SpanKind::LockWait, "lock", None, owner, push);
                let reason = push.tables.text(b"lock");
                let (state, on, stack) = (State::Waiting, None, self.stack(event, push));
                push.event(EventKind::State { entity: thread, state, on, reason, stack });
            }
            91 => {
                self.finish(Open::LockWait(thread), None, push);
                push.state(thread, State::Running, None);
            }
            // MethodJittingStarted; MethodLoad, MethodLoadVerbose
            145 => {
                let part = |name| event.field(name).map(|v| v.to_string()).unwrap_or_default();
                let method = format!("{}.{}", part("MethodNamespace"), part("MethodName"));
                let key = Open::Jit(thread, number("MethodID"));
                self.begin(key, thread, SpanKind::Jit, &method, None, None, push);
            }
            141 | 143 => self.finish(Open::Jit(thread, number("MethodID")), None, push),
            _ => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a span")]
    fn begin(
        &mut self,
        key: Open,
        entity: EntityId,
        kind: SpanKind,
        name: &str,
        by: Option<EntityId>,
        of: Option<EntityId>,
        push: &mut Pusher<'_>,
    ) {
        self.finish(key, by, push); // its end was lost
        if self.open.len() < MAX_OPEN {
            let span = push.begin(entity, kind, name.as_bytes(), by, of);
            self.open.insert(key, span);
        }
    }

    fn finish(&mut self, key: Open, by: Option<EntityId>, push: &mut Pusher<'_>) {
        if let Some(span) = self.open.remove(&key) {
            push.event(EventKind::Finish { span, by });
        }
    }

    /// `ThreadPoolEnqueueWork` and `ThreadPoolDequeueWork`.
    fn work_item(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let Some(Ok((_, id))) = event.fields().next() else { return };
        let Some(id) = id.as_i64() else { return };
        match event.id() {
            30 if self.queued_count < MAX_OPEN => {
                let kind = SpanKind::Queued;
                let span = push.begin(process, kind, b"work item", Some(thread), None);
                self.queued.entry((process, id)).or_default().push_back(span);
                self.queued_count += 1;
            }
            31 => {
                let hashbrown::hash_map::Entry::Occupied(mut queue) =
                    self.queued.entry((process, id))
                else {
                    return; // queued before the trace
                };
                let span = queue.get_mut().pop_front();
                if queue.get().is_empty() {
                    queue.remove();
                }
                if let Some(span) = span {
                    self.queued_count -= 1;
                    push.event(EventKind::Finish { span, by: Some(thread) });
                }
            }
            _ => {}
        }
    }

    fn counter(&mut self, event: &NetEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        let Some(counter) = self.counters.observe(event) else { return };
        let mut name = format!("{}/{}", counter.provider, counter.name);
        if !counter.tags.is_empty() {
            name.push_str(&format!(" {}", counter.tags));
        }
        let per_second = counter.per_second();
        let unit = match per_second {
            Some(_) => format!("{}/s", counter.unit),
            None => counter.unit.clone(),
        };
        let (name, unit) = (push.tables.text(name.as_bytes()), push.tables.text(unit.as_bytes()));
        let value = per_second.unwrap_or(counter.value);
        push.event(EventKind::Counter { entity: process, name, unit, value });
    }

    /// An event of an event source: an activity, or an instant.
    fn custom(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        match self.activities.step(event) {
            Some(ActivityStep::Start(number)) => {
                let Some(activity) = self.activities.get(number) else { return };
                let name = format!("{}/{}", activity.provider, activity.name);
                let text = push.tables.text(name.as_bytes());
                let id = i64::try_from(number).unwrap_or(-1);
                let entity = Entity::new(EntityKind::Activity, id).child_of(Some(process));
                let Some(entity) = push.start(entity.named(text).started(push.at)) else { return };
                let kind = SpanKind::Activity;
                let span = push.begin(entity, kind, name.as_bytes(), Some(thread), None);
                self.open_activities.insert(number, (entity, span));
            }
            Some(ActivityStep::Stop(number, _)) => {
                if let Some((entity, span)) = self.open_activities.remove(&number) {
                    push.event(EventKind::Finish { span, by: Some(thread) });
                    push.end(entity);
                }
            }
            Some(_) => {}
            None => {
                let name = format!("{}/{}", event.provider(), event.name());
                let name = push.tables.text(name.as_bytes());
                let kind = InstantKind::Other;
                push.event(EventKind::Instant { entity: thread, kind, name, stack: None });
            }
        }
    }
}
