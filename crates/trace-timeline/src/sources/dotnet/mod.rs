//! .NET traces.
//!
//! | .NET | model |
//! | --- | --- |
//! | process, thread | an entity each; [`State::Waiting`] while a thread waits for a lock, a task or a wait handle |
//! | GC | entity and span of the process, with `number`, `generation`, `reason`, `type` |
//! | suspension of the managed threads | span of the process |
//! | JIT compilation | span of the thread, with `IL bytes` and at its end `code bytes` |
//! | lock wait | span of the thread, with `lock`; `of` is the owner (.NET 8 and later) |
//! | wait for a wait handle, or in `Monitor.Wait` (.NET 9 and later) | span of the thread |
//! | work items of the thread pool | spans of the process, and a flow of kind [`FlowKind::Continues`] from the thread that queues to the one that takes it |
//! | tasks that a thread executes, continuations of awaits | spans of the thread, with `task id` |
//! | synchronous wait for a task | span of the thread, and a flow of kind [`FlowKind::Wakes`] from the thread that completes the task |
//! | tasks and continuations that are scheduled, awaits | spans of the process, and a flow of kind [`FlowKind::Continues`] from the thread that schedules or awaits to the one that executes |
//! | asynchronous operations | spans of the process, with `task id`; their names are those of the tasks |
//! | runs of finalizers, loads of types, background compilation of tiers | spans of the thread |
//! | heap, thread pool | an entity for each generation and pool; their size and workers are counters |
//! | starvation of the thread pool | an instant of the process for each worker that is added |
//! | pairs of start and stop events of event sources | activities and requests; `of` is the parent |
//! | other events of event sources | instants of the thread, with their fields |
//! | event counters, meters | counters; quantiles are counters of their own |
//! | exceptions | instants of the thread, with `message` |
//! | samples, sampled allocations | samples; an allocation has its `type`, and as weight the bytes that it stands for. `GCAllocationTick` is skipped once a process has `AllocationSampled` |
//! | CPU samples of a process before any event of its runtime or event sources (version 6) | samples of the kernel's thread |
//! | sync point of the trace | [`EventKind::Clock`] |
//!
//! Stacks are those of events and samples, if [`DotnetSource::with_names`] got the methods of the
//! trace.
//!
//! ```no_run
//! use trace_timeline::{Tables, sources::dotnet::{DotnetNames, DotnetSource}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Methods are named at the end of a trace: read it once for the names.
//! let mut names = DotnetNames::new();
//! let file = std::fs::File::open("app.nettrace")?;
//! nettrace::Reader::new(file).for_each(|event| names.push(&event))?;
//!
//! let mut reader = nettrace::Reader::new(std::fs::File::open("app.nettrace")?);
//! let mut tables = Tables::new();
//! let mut source = DotnetSource::with_names(0, names);
//! let mut events = Vec::new();
//! while let Some(item) = reader.next_item()? {
//!     source.push(&item, &mut tables, &mut events);
//! }
//! # Ok(())
//! # }
//! ```

mod custom;
mod gc;
mod names;
mod open;
mod runtime;
mod skipped;
mod stacks;
mod tasks;

pub use names::DotnetNames;
use names::THREAD_CREATED;
pub use stacks::{DotnetLines, frame, frame_with_line};

use super::pusher::{Begin, Pusher};
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{Event, EventKind, FlowKind, LossKind, SampleKind, SpanKind, State};
use crate::tables::{SampledEventId, SpanId, Tables, TextId};
use custom::OpenActivity;
use hashbrown::{HashMap, HashSet};
use nettrace::analysis::{ActivityTracker, CounterTracker};
use nettrace::manifest::Provider;
use nettrace::{Event as NetEvent, Guid, Item, Loss, Trace};
use open::{Lossy, Open, OpenSpans};
use skipped::Skipped;
use stacks::{Lines, Stacks};
use std::collections::VecDeque;
use tasks::Tasks;
use trace_common::{ClockDomain, Timestamp};

/// Statistics of a [`DotnetSource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DotnetStats {
    /// Events in the trace.
    pub events: u64,
    /// Samples of managed stacks, or CPU samples of format version 6.
    pub samples: u64,
    /// Events that the model does not have: see [`DotnetSource::skipped`].
    pub skipped: u64,
    /// Events that the runtime dropped.
    pub lost: u64,
    /// Events whose payload does not match its metadata. They are instants with the error and the
    /// payload.
    pub undecodable: u64,
    /// Starts and stops of activities, lock waits and so on that are missing: stops of those that
    /// began before the trace, and those above a limit.
    pub unpaired: u64,
    /// Events about methods that are not among the names, because they lack a field or the names take too
    /// much memory. Their frames are addresses.
    pub unnamed: u64,
    /// Threads that are related to no thread of the kernel, because only their ids in the PID namespace of
    /// the process are known: see [`DotnetSource::set_ids`].
    pub unrelated_threads: u64,
    /// The time of the first event.
    pub first: Option<Timestamp>,
    /// The time of the last event.
    pub last: Option<Timestamp>,
}

/// Makes model events of the events of a .NET trace: see the [module](self).
#[derive(Debug, Default)]
pub struct DotnetSource {
    offset: i64,
    names: DotnetNames,
    has_stacks: bool,
    process_name: Option<String>,
    ids: Option<Ids>,
    stats: DotnetStats,
    /// Losses before the first event, which have its time: why, since when, and the events that are lost.
    early: Vec<(String, Option<Timestamp>, Option<u64>)>,
    /// The sync point, until the next event.
    clock: Option<EventKind>,
    skipped: Skipped,
    /// `None` for what the tables refused: it is counted once.
    processes: HashMap<u64, Option<EntityId>>,
    /// Those of .NET: a trace of version 6 has samples of all processes of the machine.
    runtimes: HashSet<EntityId>,
    threads: HashMap<(u64, u64), Option<EntityId>>,
    /// Threads whose creation is in the trace.
    created: HashSet<(u64, u64)>,
    heaps: HashMap<(EntityId, u32), EntityId>,
    pools: HashMap<EntityId, EntityId>,
    /// Processes with `AllocationSampled` events.
    sampled: HashSet<EntityId>,
    open: OpenSpans,
    /// The trace's clock.
    trace: Option<Trace>,
    /// Losses that events in time order have not reached yet.
    gaps: Vec<Gap>,
    /// The thread that has suspended the others, by process.
    suspending: HashMap<EntityId, EntityId>,
    open_gcs: HashMap<(EntityId, u32), EntityId>,
    /// The last GC that is no background GC, by process, if it may be open.
    blocking_gcs: HashMap<EntityId, u32>,
    activities: ActivityTracker,
    open_activities: HashMap<u64, OpenActivity>,
    /// Open activities by the identifier that events have.
    activity_ids: HashMap<Guid, EntityId>,
    /// Open activities without an identifier by the thread that began them, the earliest first: those that it may work
    /// on.
    nesting: HashMap<EntityId, Vec<EntityId>>,
    /// No open activity has a smaller number.
    oldest_activity: u64,
    counters: CounterTracker,
    /// Whether a counter is that of a meter, by process and name: an event counter can have the same name.
    counter_forms: HashMap<(EntityId, TextId), bool>,
    /// Quantiles of the histograms of meters, by process and name.
    histograms: HashMap<(EntityId, TextId), Vec<f64>>,
    /// Work items in the queue of the thread pool and so on, oldest first, by process and identifier. An
    /// object can be queued more than once.
    queued: HashMap<Key, VecDeque<WorkItem>>,
    queued_count: usize,
    /// All work items, oldest first. Those that have left the queue stay for a while.
    queue_order: VecDeque<(SpanId, Key)>,
    tasks: Tasks,
    stacks: Stacks,
    lines: Lines,
}

/// The ids of a process and its threads in the PID namespace of the other sources.
#[derive(Debug)]
struct Ids {
    process: u32,
    /// By the ids in the trace.
    threads: HashMap<u64, u32>,
}

/// Added to the id of a thread in a PID namespace of its own, so that it is none of the kernel: those are at
/// most 2^22.
const OTHER_NAMESPACE: i64 = 1 << 30;

/// Something that a thread begins and another one continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiting {
    /// A work item in the queue of the thread pool, by its identifier.
    Item(i64),
    /// A task or a continuation that is scheduled.
    Task(i64),
    /// A task that is awaited.
    Await(i64),
}

/// It, and its process.
type Key = (EntityId, Waiting);

/// A work item in the queue, or another thing that waits for a thread.
#[derive(Clone, Copy, Debug)]
struct WorkItem {
    span: SpanId,
    by: EntityId,
    start: Timestamp,
    /// Of an await: the continuation that is scheduled.
    continuation: Option<i64>,
}

/// Lost events of a thread.
#[derive(Debug)]
struct Gap {
    /// Process and thread; `None` if the thread is not known.
    thread: Option<(u64, u64)>,
    /// The last event before them, until a later event of any thread comes. `None` without one: the thread did not
    /// wait.
    after: Option<Timestamp>,
    /// The first event after them.
    before: Timestamp,
    /// The threads that waited after the last event before them.
    waited: Vec<EntityId>,
}

/// Maximum number of losses that wait for their time. A thread has few within the events that are
/// sorted at once.
const MAX_GAPS: usize = 1 << 10;

/// Processes, and threads, with those that the tables refused: beyond, a refusal counts each time. The tables
/// have room for fewer by default.
const MOST_KNOWN: usize = 4 << 20;

/// The event source of `System.Private.CoreLib`. Its keyword `ThreadPool` (0x2) at level 5 has the
/// work items of the thread pool.
const FRAMEWORK: &str = "System.Diagnostics.Eventing.FrameworkEventSource";

/// The event of `Universal.Events` that is a sample.
const CPU_SAMPLE: &str = "cpu";

/// Maximum number of open spans, and of open operations. There are more only if ends were lost.
const MAX_OPEN: usize = 1 << 16;

impl DotnetSource {
    /// Makes a source without stacks and without the names that are late in the trace. `offset_nanos`
    /// is added to all times.
    pub fn new(offset_nanos: i64) -> Self {
        Self { offset: offset_nanos, ..Self::default() }
    }

    /// Makes a source with stacks and with the names of the whole trace. `offset_nanos` is added
    /// to all times.
    pub fn with_names(offset_nanos: i64, names: DotnetNames) -> Self {
        let methods = names.methods();
        let unnamed = methods.undecodable() + methods.dropped();
        let stats = DotnetStats { unnamed, ..DotnetStats::default() };
        Self { offset: offset_nanos, names, stats, has_stacks: true, ..Self::default() }
    }

    /// Finds the files and lines of methods, too.
    #[must_use]
    pub fn with_lines(self, lines: impl DotnetLines + Send + 'static) -> Self {
        Self { lines: Lines::new(lines), ..self }
    }

    /// Gives all processes of the trace this name, instead of that of their program.
    pub fn set_process_name(&mut self, name: &str) {
        self.process_name = Some(name.to_owned());
    }

    /// Sets the ids that the process of the trace and its threads have for the other sources: a runtime
    /// writes those of its own PID namespace, such as that of a container. `threads` are pairs of the id
    /// in the trace and the other one.
    ///
    /// If the ids of the process differ, each thread that is not among `threads` is related to no thread
    /// of the kernel: see [`DotnetStats::unrelated_threads`]. Traces of version 6 can have several processes, with the
    /// ids of their recorder; their ids are kept.
    pub fn set_ids(&mut self, process: u32, threads: impl IntoIterator<Item = (u32, u32)>) {
        let threads = threads.into_iter().map(|(own, other)| (own.into(), other)).collect();
        self.ids = Some(Ids { process, threads });
    }

    /// The other ids of a process, if it has others.
    fn other_ids(&self, pid: u64) -> Option<&Ids> {
        let is_of_one_process = self.trace.is_some() && !self.is_of_machine();
        self.ids.as_ref().filter(|ids| is_of_one_process && u64::from(ids.process) != pid)
    }

    /// Whether the trace can have several processes, with any runtime or none.
    fn is_of_machine(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.version >= 6)
    }

    /// Statistics so far.
    pub const fn stats(&self) -> DotnetStats {
        self.stats
    }

    /// The events that the model does not have, most frequent first: provider, event, number.
    pub fn skipped(&self) -> Vec<(&str, &str, u64)> {
        self.skipped.by_kind()
    }

    /// Reports that a part of the trace is missing here: all spans of the runtime and of work items
    /// end, and no thread waits for a lock any more.
    /// `why` says how the trace is damaged.
    pub fn loss(&mut self, why: &str, tables: &mut Tables, out: &mut Vec<Event>) {
        let Some(at) = self.stats.last else { return self.lost_early(why.to_owned(), None, None) };
        let push = &mut Pusher { at, tables, out };
        let mut open: Vec<(SpanId, Option<Open>)> = Vec::new();
        for key in self.open.all() {
            open.extend(self.open.remove(key).map(|span| (span, Some(key))));
        }
        let queued = self.queued.drain().flat_map(|(_, items)| items);
        open.extend(queued.map(|item| (item.span, None)));
        self.queued_count = 0;
        self.queue_order.clear();
        // The order of a map is not deterministic.
        open.sort_unstable_by_key(|(span, _)| *span);
        for (span, key) in open {
            push.cut(span);
            if let Some(Open::LockWait(thread) | Open::HandleWait(thread)) = key {
                push.state(thread, State::Running, None);
            }
        }
        let waiting = self.tasks.waiting();
        self.tasks.clear();
        waiting.into_iter().for_each(|thread| self.resume(thread, push));
        let mut gcs: Vec<EntityId> = self.open_gcs.drain().map(|(_, gc)| gc).collect();
        gcs.sort_unstable();
        for gc in gcs {
            push.end(gc);
        }
        self.nesting.clear();
        self.push_loss(why, None, None, push);
    }

    /// A loss before the first event: the trace has no time yet.
    fn lost_early(&mut self, why: String, since: Option<Timestamp>, count: Option<u64>) {
        if self.early.len() < MAX_GAPS {
            return self.early.push((why, since, count));
        }
        if let Some((_, _, last)) = self.early.last_mut() {
            *last = last.zip(count).map(|(last, count)| last.saturating_add(count));
        }
    }

    /// Ends the trace where other sources continue: spans of the runtime end with its last event, and the states
    /// of all threads are unknown from then on. Activities and work items stay open, as nothing says that
    /// they end.
    ///
    /// A later trace of the process continues with the threads of this one. It has to be read after this one: see
    /// [`Streams::add_from`](crate::Streams::add_from).
    pub fn finish(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let start = || self.trace.as_ref().map(|trace| self.start_of(trace));
        // Without a time there is nothing to end.
        let Some(at) = self.stats.last.or_else(start) else { return };
        let push = &mut Pusher { at, tables, out };
        // No event followed.
        for (why, since, count) in std::mem::take(&mut self.early) {
            self.push_loss(&why, since, count, push);
        }
        self.cut_all(self.open.all(), push);
        let mut threads: Vec<EntityId> = self.threads.values().copied().flatten().collect();
        // The order of a map is not deterministic.
        threads.sort_unstable();
        for thread in threads {
            push.unknown(thread);
            push.tables.leave(thread, at);
        }
    }

    /// The start of the session: the sync point.
    fn start_of(&self, trace: &Trace) -> Timestamp {
        trace.sync_time().saturating_add_nanos(self.offset)
    }

    /// Appends the model events of the next item.
    pub fn push(&mut self, item: &Item<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        match item {
            Item::Trace(trace) => {
                let time = self.start_of(trace);
                let (domain, reading) = (ClockDomain::Realtime, trace.sync_time_utc);
                self.clock = Some(EventKind::Clock { time, domain, reading });
                self.trace = Some((*trace).clone());
            }
            Item::Event(event) => self.event(event, tables, out),
            Item::Loss(lost) => self.lost(lost, tables, out),
            _ => {}
        }
    }

    /// A loss since this time, or since the one before it. Traces of version 6 can have several processes.
    fn push_loss(
        &self,
        why: &str,
        since: Option<Timestamp>,
        count: Option<u64>,
        push: &mut Pusher<'_>,
    ) {
        push.text(b"why", why.as_bytes());
        let since = since.map_or(push.at, |since| since.min(push.at));
        let trace = self.trace.as_ref().filter(|trace| trace.version < 6);
        let process = trace.and_then(|trace| self.processes.get(&u64::from(trace.pid)));
        let (entity, kind) = (process.copied().flatten(), LossKind::DotnetEvents);
        push.event(EventKind::Loss { entity, kind, since, count });
    }

    /// Events that a thread could not write.
    fn lost(&mut self, lost: &Loss, tables: &mut Tables, out: &mut Vec<Event>) {
        self.stats.lost = self.stats.lost.saturating_add(lost.count);
        let trace = self.trace.as_ref();
        let thread = match trace {
            // An index, which events do not have.
            Some(trace) if trace.version >= 6 => None,
            trace => Some((trace.map_or(0, |trace| trace.pid.into()), lost.capture_thread)),
        };
        let time = |time: Timestamp| time.saturating_add_nanos(self.offset);
        // Events before the gap may still follow.
        let (since, before) = (lost.after.map(time), time(lost.before));
        let last = self.stats.last;
        if last.is_some() || self.gaps.len() < MAX_GAPS {
            self.gaps.push(Gap { thread, after: since, before, waited: Vec::new() });
        }
        let why = format!("the buffers of thread {} were full", lost.capture_thread);
        let Some(at) = last else { return self.lost_early(why, since, Some(lost.count)) };
        let push = &mut Pusher { at, tables, out };
        self.close_gaps(push);
        self.push_loss(&why, since, Some(lost.count), push);
    }

    /// Ends the spans of threads that have lost events: their ends may be among those.
    fn close_gaps(&mut self, push: &mut Pusher<'_>) {
        // Too many to wait for are closed early.
        let is_full = self.gaps.len() >= MAX_GAPS;
        while let Some(index) = self.gaps.iter().position(|gap| is_full || gap.before <= push.at) {
            let gap = self.gaps.swap_remove(index);
            self.close_gap(&gap, push);
        }
    }

    /// Ends the waits of threads that lose events after the last event so far: their ends may be among those, and
    /// what the threads do is not known up to the end of the gap.
    fn open_gaps(&mut self, next: Timestamp, push: &mut Pusher<'_>) {
        let mut gaps = std::mem::take(&mut self.gaps);
        for gap in &mut gaps {
            if gap.after.take_if(|after| *after < next).is_some() {
                gap.waited = self.end_waits(gap.thread, gap.before, push);
            }
        }
        self.gaps = gaps;
    }

    /// Ends the waits of a thread, or of all, that began before this time. Returns the threads that waited, in order.
    fn end_waits(
        &mut self,
        thread: Option<(u64, u64)>,
        before: Timestamp,
        push: &mut Pusher<'_>,
    ) -> Vec<EntityId> {
        let mut waited: Vec<EntityId> = Vec::new();
        for key in self.open.ended_by(self.lossy(thread), before) {
            let thread = match key {
                Open::LockWait(thread) | Open::HandleWait(thread) => thread,
                Open::Task(thread, depth) if self.tasks.waits_at(thread, depth) => thread,
                _ => continue,
            };
            // The loss can be that of another thread: what a thread waits for stays known, as its end can follow.
            self.cut_span(key, push);
            waited.push(thread);
        }
        waited.sort_unstable();
        waited.dedup();
        waited.iter().for_each(|thread| push.unknown(*thread));
        waited
    }

    /// The threads that may have lost the events of this one, or of an unknown one.
    fn lossy(&self, thread: Option<(u64, u64)>) -> Lossy {
        match thread {
            Some(thread) => Lossy::One(self.threads.get(&thread).copied().flatten()),
            None => Lossy::All,
        }
    }

    fn close_gap(&mut self, gap: &Gap, push: &mut Pusher<'_>) {
        let lossy = self.lossy(gap.thread);
        self.cut_all(self.open.lost_by(lossy, gap.before), push);
        self.cut_queued(gap.before, push);
        match lossy {
            Lossy::All => self.nesting.clear(),
            Lossy::One(Some(thread)) => _ = self.nesting.remove(&thread),
            Lossy::One(None) => {}
        }
        // Not all parts have spans.
        for thread in self.tasks.before(gap.before, lossy) {
            self.unwind(thread, 0, push);
        }
        gap.waited.iter().for_each(|thread| self.resume(*thread, push));
    }

    /// Ends what was queued before this time: any thread can take it. An object is often queued again, and
    /// the next thread that takes it would take this one.
    fn cut_queued(&mut self, before: Timestamp, push: &mut Pusher<'_>) {
        while let Some((span, key)) = self.queue_order.front().copied() {
            let item = queued_item(&self.queued, key, span);
            if item.is_some_and(|item| item.start >= before) {
                return;
            }
            self.queue_order.pop_front();
            if let Some(item) = item {
                self.dequeue(key);
                push.cut(item.span);
            }
        }
    }

    fn cut_all(&mut self, keys: Vec<Open>, push: &mut Pusher<'_>) {
        keys.into_iter().for_each(|key| self.cut(key, push));
    }

    /// Ends a span whose end was lost, and what it says about its thread or GC.
    fn cut(&mut self, key: Open, push: &mut Pusher<'_>) {
        self.cut_span(key, push);
        match key {
            Open::LockWait(thread) => self.resume(thread, push),
            Open::HandleWait(thread) => self.end_handle_wait(thread, push),
            Open::Suspension(thread) => self.suspending.retain(|_, by| *by != thread),
            Open::Gc(process, number) => self.end_gc(process, number, push),
            Open::Task(thread, depth) => self.unwind(thread, depth, push),
            // An operation keeps its name: others work on its task.
            Open::Operation(..)
            | Open::Jit(..)
            | Open::Finalizers(_)
            | Open::TypeLoad(..)
            | Open::TieredJit(_) => {}
        }
    }

    fn event(&mut self, event: &NetEvent<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        let at = event.time().saturating_add_nanos(self.offset);
        // A stream that is not sorted stays in order.
        let last = self.stats.last;
        let at = last.map_or(at, |last| last.max(at));
        if let Some(last) = last.filter(|_| !self.gaps.is_empty()) {
            self.open_gaps(at, &mut Pusher { at: last, tables: &mut *tables, out: &mut *out });
        }
        self.stats.first.get_or_insert(at);
        self.stats.last = Some(at);
        self.stats.events += 1;
        let push = &mut Pusher { at, tables, out };
        self.clock.take().into_iter().for_each(|clock| push.event(clock));
        let process = self.process(event.pid(), push);
        for (why, since, count) in std::mem::take(&mut self.early) {
            self.push_loss(&why, since, count, push);
        }
        if !self.gaps.is_empty() {
            self.close_gaps(push);
        }
        let Some(process) = process else { return };
        let pid = event.pid();
        let provider = Provider::by_name(event.provider());
        if provider == Some(Provider::EventPipe) {
            self.note_runtime(process, push);
            return self.describe(event, process, push);
        }
        let is_of_kernel =
            matches!(provider, Some(Provider::UniversalSystem | Provider::UniversalEvents));
        if is_of_kernel && !self.runtimes.contains(&process) {
            return self.of_kernel(event, process, push);
        }
        if provider == Some(Provider::Runtime) && event.id() == THREAD_CREATED {
            self.thread_created(event, push);
        }
        let Some(thread) = self.thread(pid, event.tid(), Some(event), process, push) else {
            return;
        };
        match provider {
            Some(Provider::Runtime) => self.runtime(event, process, thread, push),
            Some(Provider::SampleProfiler) => {
                self.sample(event, thread, (SampleKind::Managed, 1), push);
            }
            Some(Provider::UniversalEvents) if event.name() == CPU_SAMPLE => {
                self.cpu_sample(event, thread, push);
            }
            Some(Provider::Metrics) => self.counter(event, process, push),
            Some(Provider::Tpl) => self.task(event, process, thread, push),
            Some(_) => self.skip(event),
            None if event.provider() == FRAMEWORK && matches!(event.id(), 30 | 31) => {
                self.work_item(event, process, thread, push);
            }
            None if event.name() == "EventCounters" => self.counter(event, process, push),
            None => self.custom(event, process, thread, push),
        }
    }

    /// An event of the kernel about a process that may be no .NET program.
    fn of_kernel(&mut self, event: &NetEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        let is_sample = Provider::by_name(event.provider()) == Some(Provider::UniversalEvents)
            && event.name() == CPU_SAMPLE;
        // The idle threads have the id 0.
        let tid = u32::try_from(event.tid()).ok().filter(|tid| is_sample && *tid != 0);
        let Some(tid) = tid else { return self.skip(event) };
        let Some(thread) = push.tables.thread(tid, push.at, push.out) else { return };
        let name = push.tables.text(self.names.thread_name(event).as_bytes());
        if let Some(known) = push.tables.entities.get_mut(thread) {
            if known.parent.is_none() {
                known.parent = Some(process);
                if known.name.is_empty() {
                    known.name = name;
                }
                push.event(EventKind::Start { entity: thread });
            }
        }
        self.cpu_sample(event, thread, push);
    }

    fn cpu_sample(&mut self, event: &NetEvent<'_>, thread: EntityId, push: &mut Pusher<'_>) {
        // A number of samples.
        let weight = event.field_at(0).and_then(|value| value.as_u64()).unwrap_or(1);
        self.sample(event, thread, (SampleKind::Cpu, weight), push);
    }

    fn skip(&mut self, event: &NetEvent<'_>) {
        self.stats.skipped += 1;
        self.skipped.add(event);
    }

    fn process(&mut self, pid: u64, push: &mut Pusher<'_>) -> Option<EntityId> {
        if let Some(process) = self.processes.get(&pid) {
            return *process;
        }
        let number = self.other_ids(pid).map(|ids| ids.process);
        let number = number.or_else(|| u32::try_from(pid).ok());
        let name = self.process_name.as_deref().or_else(|| self.names.given_name(pid));
        let process = push.process(number, name.unwrap_or_default().as_bytes());
        if process.is_some() || self.processes.len() < MOST_KNOWN {
            self.processes.insert(pid, process);
        }
        let process = process?;
        if !self.is_of_machine() {
            self.note_runtime(process, push);
        }
        if let Some(line) = self.names.command_line(pid) {
            let line = push.tables.text(line.as_bytes());
            push.tables.entities.describe(process, Attribute::CommandLine, line);
        }
        Some(process)
    }

    /// A process is a .NET program.
    fn note_runtime(&mut self, process: EntityId, push: &mut Pusher<'_>) {
        if !self.runtimes.insert(process) {
            return;
        }
        let dotnet = push.tables.text(b".NET");
        push.tables.entities.describe(process, Attribute::Runtime, dotnet);
        if let Some(known) = push.tables.entities.get_mut(process) {
            if known.name.is_empty() {
                known.name = dotnet;
            }
        }
    }

    /// `ProcessInfo`: the command line, for a trace that is read once.
    fn describe(&mut self, event: &NetEvent<'_>, process: EntityId, push: &mut Pusher<'_>) {
        self.names.push(event);
        let pid = event.pid();
        let nameless = push.tables.text(b".NET");
        let name = push.tables.text(self.names.process_name(pid).as_bytes());
        let line = self.names.command_line(pid).map(|line| push.tables.text(line.as_bytes()));
        if let Some(entity) = push.tables.entities.get_mut(process) {
            if entity.name == nameless {
                entity.name = name;
            }
        }
        if let Some(line) = line {
            push.tables.entities.describe(process, Attribute::CommandLine, line);
        }
    }

    /// A thread begins. Another one that began with its identifier has ended, which the runtime reports only of some.
    fn thread_created(&mut self, event: &NetEvent<'_>, push: &mut Pusher<'_>) {
        let Some(tid) = event.field("OSThreadID").and_then(|tid| tid.as_u64()) else { return };
        let key = (event.pid(), tid);
        // A thread can write events before the one about its creation.
        if !self.created.contains(&key) {
            if self.created.len() < MOST_KNOWN {
                self.created.insert(key);
            }
            return;
        }
        let Some(ended) = self.threads.remove(&key).flatten() else { return };
        self.cut_all(self.open.of_thread(ended), push);
        for gap in &mut self.gaps {
            gap.waited.retain(|thread| *thread != ended);
        }
        // Not all parts have spans.
        self.unwind(ended, 0, push);
        self.tasks.dispatch(ended, false);
        push.end(ended);
    }

    /// The thread with this identifier. Without its own event, it has no name yet.
    fn thread(
        &mut self,
        pid: u64,
        tid: u64,
        event: Option<&NetEvent<'_>>,
        process: EntityId,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        if let Some(thread) = self.threads.get(&(pid, tid)) {
            return *thread;
        }
        self.note_runtime(process, push);
        let mut number = i64::try_from(tid).unwrap_or(-1);
        let mut name = event.map_or("", |event| self.names.thread_name(event)).to_owned();
        match self.other_ids(pid).map(|ids| ids.threads.get(&tid)) {
            Some(Some(other)) => number = (*other).into(),
            Some(None) => {
                let space = if name.is_empty() { "" } else { " " };
                name.push_str(&format!("{space}[{tid} in its PID namespace]"));
                number = number.saturating_add(OTHER_NAMESPACE);
                self.stats.unrelated_threads += 1;
            }
            None => {}
        }
        let name = push.tables.text(name.as_bytes());
        let new = Entity::new(EntityKind::DotnetThread, number).child_of(Some(process));
        // Its creation in this trace says that it is another one.
        let (thread, is_continued) = match self.created.contains(&(pid, tid)) {
            true => (push.start(new.name(name)), false),
            false => push.start_or_continue(new),
        };
        if let Some(known) = thread.and_then(|thread| push.tables.entities.get_mut(thread)) {
            if !is_continued || known.name.is_empty() {
                known.name = name;
            }
        }
        if thread.is_some() || self.threads.len() < MOST_KNOWN {
            self.threads.insert((pid, tid), thread);
        }
        push.state(thread?, State::Running, None);
        thread
    }

    fn sample(
        &mut self,
        event: &NetEvent<'_>,
        entity: EntityId,
        (kind, weight): (SampleKind, u64),
        push: &mut Pusher<'_>,
    ) {
        self.stats.samples += 1;
        let stack = self.stack(event, push);
        let of = self.activity_of(event);
        push.event(EventKind::Sample {
            entity,
            kind,
            stack,
            weight,
            thread: None,
            cpu: None,
            event: SampledEventId::default(),
            of,
        });
    }

    /// The open activity whose identifier an event has.
    fn activity_of(&self, event: &NetEvent<'_>) -> Option<EntityId> {
        self.activity_ids.get(&event.activity_id()?).copied()
    }

    /// Makes room for a span, before the arguments of its begin. An open one with the same key ends:
    /// its end was lost.
    fn make_room(&mut self, key: Open, push: &mut Pusher<'_>) {
        self.cut_span(key, push);
        if let Some(oldest) = self.open.excess(key) {
            self.stats.unpaired += 1;
            self.cut(oldest, push);
        }
    }

    fn begin(&mut self, key: Open, start: Begin<'_>, push: &mut Pusher<'_>) {
        let span = push.begin(start);
        self.open.insert(key, span, push.at);
    }

    fn close(&mut self, key: Open, by: Option<EntityId>, push: &mut Pusher<'_>) {
        if let Some(span) = self.open.remove(key) {
            push.event(EventKind::Finish { span, by, is_cut: false });
        }
    }

    fn cut_span(&mut self, key: Open, push: &mut Pusher<'_>) {
        if let Some(span) = self.open.remove(key) {
            push.cut(span);
        }
    }

    /// Ends the oldest work item in the queue: its dequeue was lost.
    fn drop_oldest_work_item(&mut self, push: &mut Pusher<'_>) {
        while let Some((span, key)) = self.queue_order.pop_front() {
            if queued_item(&self.queued, key, span).is_none() {
                continue;
            }
            self.dequeue(key);
            push.cut(span);
            return;
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
        let id = event.field_at(0).and_then(|id| id.as_i64());
        let Some(id) = id else { return self.undecodable(event, thread, "no work item", push) };
        let key = (process, Waiting::Item(id));
        if event.id() == 30 {
            self.make_room_in_queue(push);
            let (stack, of) = (self.stack(event, push), self.activity_of(event));
            let start = Begin::new(process, SpanKind::Queued, b"work item").by(Some(thread));
            return self.enqueue(key, start.of(of).stack(stack), thread, push);
        }
        // Without one, it was queued before the trace.
        let item = self.dequeue(key);
        self.tasks.dispatch(thread, item.is_some());
        if let Some(WorkItem { span, by, .. }) = item {
            push.event(EventKind::Finish { span, by: Some(thread), is_cut: false });
            push.flow(FlowKind::Continues, by, thread);
        }
    }

    /// Makes room for a work item, before the arguments of its begin.
    fn make_room_in_queue(&mut self, push: &mut Pusher<'_>) {
        if self.queued_count >= MAX_OPEN {
            self.stats.unpaired += 1;
            self.drop_oldest_work_item(push);
        }
    }

    fn enqueue(&mut self, key: Key, start: Begin<'_>, by: EntityId, push: &mut Pusher<'_>) {
        let span = push.begin(start);
        let item = WorkItem { span, by, start: push.at, continuation: None };
        self.queued.entry(key).or_default().push_back(item);
        self.queued_count += 1;
        if self.queue_order.len() >= 2 * MAX_OPEN {
            let queued = &self.queued;
            self.queue_order.retain(|(span, key)| queued_item(queued, *key, *span).is_some());
        }
        self.queue_order.push_back((span, key));
    }

    /// The oldest work item with this key, which leaves the queue.
    fn dequeue(&mut self, key: Key) -> Option<WorkItem> {
        let hashbrown::hash_map::Entry::Occupied(mut queue) = self.queued.entry(key) else {
            return None;
        };
        let item = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        }
        self.queued_count -= usize::from(item.is_some());
        item
    }
}

/// The oldest work item with a key, if that with this span is still in the queue. Spans are in the order of their
/// beginnings.
fn queued_item(
    queued: &HashMap<Key, VecDeque<WorkItem>>,
    key: Key,
    span: SpanId,
) -> Option<WorkItem> {
    queued.get(&key)?.front().copied().filter(|oldest| oldest.span <= span)
}
