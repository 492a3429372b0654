//! Correlation across layers: goroutine ↔ P ↔ M ↔ kernel thread ↔ CPU.

mod cpu;
mod early;
mod intervals;
mod model;
mod pause;
mod place;
mod processes;
mod sampled;
mod waits;

pub use model::{
    Derived, Interval, Kernel, Occupant, Pause, Requester, RequesterTimes, ResolvedFlow, Sampled,
    Stop,
};
pub use sampled::SampledGoroutines;

use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::{
    Event, EventKind, FlowKind, InstantKind, LossKind, SampleKind, SpanKind, State, ThreadState,
};
use crate::tables::{StackId, TextId};
use cpu::Cpu;
use early::{Woken, WokenOnCpu};
use hashbrown::HashMap;
use intervals::{Linked, Shown};
use pause::Pauses;
use place::{Kind, Place, Running, Seen};
use processes::{Processes, RuntimeThreads};
use std::collections::BTreeSet;
use trace_common::{IdMap, Timestamp};

/// Relates the layers of a timeline and derives intervals.
///
/// Feed it all events of a timeline in time order. For every thread, goroutine, P and .NET thread
/// it derives [`Interval`]s that partition its lifetime: each says the state in its own scheduler
/// and, while a thread executes it, what the kernel did with that thread. It holds only what is
/// live.
///
/// ```
/// use trace_timeline::{Correlator, Derived, Tables};
///
/// # fn f(events: &[trace_timeline::Event], tables: &Tables) {
/// let mut correlator = Correlator::new();
/// let mut print = |derived: Derived<'_>| {
///     if let Derived::Interval(interval) = derived {
///         println!("{:?}: {} ns in {:?}", interval.subject, interval.nanos(), interval.state);
///     }
/// };
/// for event in events {
///     correlator.push(event, &tables.entities, &mut print);
/// }
/// correlator.finish(&mut print);
/// # }
/// ```
///
/// Runtime threads are related to kernel threads of the same process by their thread ids. The process of
/// a trace that does not record its process id is the one whose threads have these ids: see
/// [`Correlator::processes`]. The ids of a program in a container are those of its PID namespace; they
/// relate only if its source translated them: see [`Correlator::unrelated`].
#[derive(Debug, Default)]
pub struct Correlator {
    options: CorrelatorOptions,
    subjects: IdMap<Subject>,
    cpus: IdMap<Cpu>,
    /// Kernel threads by thread id.
    threads: HashMap<i64, EntityId>,
    /// Runtime threads by thread id: those of several traces can have the same one.
    runtime_threads: RuntimeThreads,
    /// Kernel threads that may wait for a CPU: that is known once they get one.
    woken: HashMap<EntityId, Woken>,
    /// Threads whose place is known.
    placed: BTreeSet<EntityId>,
    processes: Processes,
    pauses: Pauses,
    now: Option<Timestamp>,
}

/// Options of a [`Correlator`]: data that a consumer does not need costs time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CorrelatorOptions {
    /// Whether the interval of a thread that waits for a CPU ends when that CPU gets another
    /// [`Occupant`]. A switch then costs time in proportion to the threads that wait for the CPU.
    /// Otherwise the interval names the occupant at its start; of a thread that was woken, that of the CPU that
    /// it gets, if it has this occupant since the start. Of more than 1024 threads that wait for one CPU, the last
    /// ones wait for an unknown CPU.
    pub occupants: bool,
    /// Whether kernel threads have intervals, and flows to them are derived. Those of goroutines,
    /// Ps and .NET threads do not depend on it.
    pub threads: bool,
    /// Whether [`Derived::Start`] is derived too: for consumers that write the start of an interval
    /// before its end is known. A subject has no interval, and no start, before its first state.
    /// An interval without a duration has a start, and no end. A thread that is woken as it leaves
    /// its CPU starts to sleep, and one that is woken on a CPU without switches so far is unknown at its
    /// start; the interval says that it waited for a CPU. What a woken thread waits for is known later, too.
    pub starts: bool,
    /// Whether [`Derived::Interval`] is derived: not for consumers that need only the starts.
    pub intervals: bool,
}

impl Default for CorrelatorOptions {
    fn default() -> Self {
        Self { occupants: true, threads: true, starts: false, intervals: true }
    }
}

#[derive(Debug)]
struct Subject {
    kind: EntityKind,
    since: Timestamp,
    shown: Shown,
    state: State,
    reason: TextId,
    stack: Option<StackId>,
    /// Of a goroutine or P: the M that executes it.
    on: Option<EntityId>,
    /// Of an M: its goroutine. Of a kernel thread: the runtime thread that it is.
    carries: Option<EntityId>,
    /// Of an M: its P.
    proc: Option<EntityId>,
    /// Of a runtime thread: the kernel thread.
    thread: Option<EntityId>,
    /// Of a kernel thread.
    place: Place,
    /// Of a kernel thread that has a CPU.
    woken_on_cpu: WokenOnCpu,
    times: Times,
    /// Of a .NET thread: its kernel thread has ended, or is another one's by now.
    is_over: bool,
    /// Of a runtime thread: another trace of the process has mentioned its kernel thread since.
    is_replaced: bool,
}

/// Nanoseconds of a kernel thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    since: Timestamp,
    on_cpu: i64,
    runnable: i64,
}

/// Where derived data goes.
trait Out: FnMut(Derived<'_>) {}

impl<F: FnMut(Derived<'_>) + ?Sized> Out for F {}

impl Default for Subject {
    fn default() -> Self {
        Self::new(EntityKind::Cpu, Timestamp::default())
    }
}

impl Subject {
    fn new(kind: EntityKind, since: Timestamp) -> Self {
        Self {
            kind,
            since,
            shown: Shown::default(),
            state: State::Unknown,
            reason: TextId::EMPTY,
            stack: None,
            on: None,
            carries: None,
            proc: None,
            thread: None,
            place: Place::UNKNOWN,
            woken_on_cpu: WokenOnCpu::NEVER,
            times: Times { since, ..Times::default() },
            is_over: false,
            is_replaced: false,
        }
    }

    const fn is_executing(&self) -> bool {
        matches!(self.state, State::Running | State::Syscall)
    }

    const fn has_intervals(&self, options: CorrelatorOptions) -> bool {
        match self.kind {
            EntityKind::GoThread => false,
            EntityKind::Thread => options.threads,
            _ => true,
        }
    }

    /// Times up to `at`.
    fn times_at(&self, at: Timestamp) -> Times {
        let mut times = self.times;
        let passed = at.nanos_since(times.since).max(0);
        if self.place.is_on_cpu() {
            times.on_cpu = times.on_cpu.saturating_add(passed);
        } else if self.place.is_queued() {
            times.runnable = times.runnable.saturating_add(passed);
        }
        times.since = at;
        times
    }
}

impl Correlator {
    /// Makes a correlator.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a correlator with these options.
    pub fn with_options(options: CorrelatorOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The time of the last event.
    pub const fn now(&self) -> Option<Timestamp> {
        self.now
    }

    /// The processes of traces that do not record a process id, as those of Go, with the process id of the
    /// kernel's threads that have the ids of their threads: of two of them, or of the only one.
    ///
    /// Entities keep the number -1, unless the consumer sets it.
    pub fn processes(&self) -> Vec<(EntityId, u32)> {
        self.processes.found()
    }

    /// The processes of runtimes whose threads have the ids of threads of several processes of the kernel: that of
    /// a program in a container is one. Its threads are not related. If the trace records the process id, two
    /// threads have ids of other processes, and not two before them have ids of that one.
    pub fn unrelated(&self) -> Vec<EntityId> {
        self.processes.unrelated()
    }

    /// Processes the next event.
    pub fn push(
        &mut self,
        event: &Event,
        entities: &Entities,
        out: &mut (impl FnMut(Derived<'_>) + ?Sized),
    ) {
        let at = event.time;
        self.now = Some(at);
        match event.kind {
            EventKind::Start { entity } => self.start(entity, at, entities, out),
            EventKind::End { entity } => {
                // Its last interval comes before its end.
                if self.cpus.contains(entity.key()) {
                    self.end_cpu(entity, at, out);
                } else {
                    self.end(entity, at, entities, out);
                }
                out(Derived::Event(*event));
                return;
            }
            EventKind::State { entity, state, on, reason, stack } => {
                self.state(entity, state, on, (reason, stack), at, out);
                if state != State::Running {
                    self.stopped(entity, at);
                }
                if state != State::Syscall {
                    self.pauses.left_syscall(entity);
                }
                return;
            }
            EventKind::Since { entity, since } => {
                self.holds_since(entity, since, at, out);
                return;
            }
            EventKind::Switch { cpu, prev, left, next, is_next_unknown, .. } => {
                self.count_requesters(at);
                let next = match next {
                    Some(next) => Running::of(next),
                    None if is_next_unknown => Running::UNRECORDED,
                    None => Running::IDLE,
                };
                self.switch(cpu, prev, left, next, at, out);
                return;
            }
            EventKind::Flow { kind, from, context, to, cpu, stack, .. } => {
                let woken = self.subjects.get(to.key());
                let is_thread = woken.is_some_and(|woken| woken.kind == EntityKind::Thread);
                if !is_thread || self.options.threads {
                    let from_subject = from.and_then(|from| self.subjects.get(from.key()));
                    out(Derived::Flow(ResolvedFlow {
                        time: at,
                        kind,
                        from: from_subject.and_then(|subject| self.held(from, subject)).or(from),
                        from_thread: from_subject.and_then(|of| self.on_thread(from, of)),
                        context,
                        to,
                        to_holder: woken.and_then(|subject| self.held(Some(to), subject)),
                        stack,
                    }));
                }
                // The CPU of a new thread is chosen before its record.
                let place = match kind {
                    FlowKind::Creates => Kind::Queued,
                    FlowKind::Wakes => Kind::Woken,
                    FlowKind::HandsOver | FlowKind::Continues => return,
                };
                if is_thread {
                    self.wake(to, place, cpu, at, out);
                }
                return;
            }
            EventKind::Queue { thread, from, cpu } => {
                self.queue(thread, from, cpu, at, out);
                return;
            }
            EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of } => {
                let thread = self.thread_or_latest(entity, entities).or(thread);
                // The sampler of .NET stops a thread to take its sample.
                let stopped = match kind {
                    SampleKind::Managed => self.before_stop(entity, thread, entities),
                    _ => None,
                };
                let now = || thread.map_or(Kernel::Unknown, |thread| self.kernel(thread).kernel());
                let stop_requested = stopped.map(|(_, at)| at);
                let kernel = match (kind, cpu) {
                    // The sample says it, also where no switches are recorded.
                    (SampleKind::Cpu, Some(cpu)) => Kernel::OnCpu { cpu },
                    _ => stopped.map_or_else(now, |(kernel, _)| kernel),
                };
                out(Derived::Sample(Sampled {
                    time: at,
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
                return;
            }
            EventKind::Loss { entity, kind, since, .. } => {
                let is_of_scheduler = kind != LossKind::Samples;
                let cpu = entity.filter(|cpu| self.cpus.contains(cpu.key()));
                if let Some(cpu) = cpu.filter(|_| is_of_scheduler) {
                    self.lost(cpu, kind, since, at, out);
                }
            }
            EventKind::Begin { span, entity, kind: SpanKind::StopTheWorld, name, by, .. } => {
                self.begin_pause(span, entity, name, by, at, entities);
            }
            EventKind::Finish { span, is_cut, .. } => {
                self.count_requesters(at);
                // How long it lasted is not known if its end is not.
                if let Some(pause) = self.finish_pause(span, at).filter(|_| !is_cut) {
                    out(Derived::Pause(&pause));
                }
            }
            EventKind::Instant { entity, kind: InstantKind::Stopped, .. } => {
                self.all_stopped(entity, at);
            }
            _ => {}
        }
        out(Derived::Event(*event));
    }

    /// Ends all open intervals at the time of the last event.
    pub fn finish(&mut self, out: &mut (impl FnMut(Derived<'_>) + ?Sized)) {
        let Some(at) = self.now else { return };
        // The order of a map is not deterministic.
        let mut keys: Vec<i64> = self.subjects.ids().collect();
        keys.sort_unstable();
        for key in keys {
            if let Some(id) = EntityId::from_key(key) {
                self.close(id, at, out);
            }
        }
    }

    fn start(
        &mut self,
        id: EntityId,
        at: Timestamp,
        entities: &Entities,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(entity) = entities.get(id) else { return };
        // Several sources can mention it first.
        if self.cpus.contains(id.key()) {
            return;
        }
        if self.subjects.contains(id.key()) {
            // A thread of the kernel, whose process may not have been known before.
            if self.threads.get(&entity.number) == Some(&id) {
                self.pair(entity.number, at, entities, out);
            }
            return;
        }
        match entity.kind {
            EntityKind::Cpu => {
                *self.cpus.insert(id.key()) = Cpu::default();
                return;
            }
            EntityKind::Thread
            | EntityKind::GoThread
            | EntityKind::Goroutine
            | EntityKind::Proc
            | EntityKind::DotnetThread => {}
            _ => return,
        }
        *self.subjects.insert(id.key()) = Subject::new(entity.kind, at);
        match entity.kind {
            EntityKind::Thread => _ = self.threads.insert(entity.number, id),
            EntityKind::GoThread | EntityKind::DotnetThread => {
                self.runtime_threads.add(entity.number, id);
                self.processes.add(id, entities);
            }
            EntityKind::Proc => return self.pauses.add_member(id, entity.parent),
            _ => return,
        }
        self.pair(entity.number, at, entities, out);
    }

    /// A runtime thread and the kernel thread with this number are one, or not, by what is known of their
    /// processes now.
    fn pair(
        &mut self,
        number: i64,
        at: Timestamp,
        entities: &Entities,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(thread) = self.threads.get(&number).copied() else { return };
        for runtime in self.runtime_threads.of(number).to_vec() {
            if self.processes.learn(runtime, thread, entities) {
                self.pair_process(runtime, at, entities, out);
            }
        }
        self.pair_known(number, at, entities, out);
    }

    /// More is known of the process of this runtime thread: others of it may be no kernel threads any more.
    fn pair_process(
        &mut self,
        of: EntityId,
        at: Timestamp,
        entities: &Entities,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(process) = entities.process_of(of) else { return };
        for number in self.processes.ids(process) {
            self.pair_known(number, at, entities, out);
        }
    }

    /// As [`Correlator::pair`], without learning more.
    fn pair_known(
        &mut self,
        number: i64,
        at: Timestamp,
        entities: &Entities,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(thread) = self.threads.get(&number).copied() else { return };
        let runtimes = self.runtime_threads.of(number);
        let is_executing = |runtime: EntityId| {
            let runtime = self.subjects.get(runtime.key());
            runtime.is_some_and(|m| m.carries.is_some() || m.proc.is_some())
        };
        let found = self.processes.one_of(runtimes, thread, entities, is_executing);
        let before = self.subjects.get(thread.key()).and_then(|thread| thread.carries);
        if let Some(before) = before.filter(|before| Some(*before) != found) {
            if !self.processes.relates(before, thread, entities) {
                self.separate(before, thread, at, out);
            }
        }
        if let Some(runtime) = found.filter(|_| found != before) {
            let process = entities.process_of(runtime);
            self.relate(runtime, process, thread, at, out);
        }
    }

    /// A runtime thread and a kernel thread are not one, as they may have seemed to be.
    fn separate(
        &mut self,
        runtime: EntityId,
        thread: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get_mut(thread.key()) else { return };
        if subject.carries.take_if(|carried| *carried == runtime).is_some() {
            let times = subject.times_at(at);
            // The thread of the runtime continues: its own states are right.
            if let Some(subject) = self.subjects.get_mut(runtime.key()) {
                subject.thread = None;
                self.pauses.remove_member(runtime, at, Some(times));
            }
            self.refresh_runtime_thread(runtime, at, out);
            self.refresh_thread(thread, at, out);
        }
    }

    /// A runtime thread of this process and a kernel thread are one from now on.
    fn relate(
        &mut self,
        runtime: EntityId,
        process: Option<EntityId>,
        thread: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get_mut(thread.key()) else { return };
        let before = subject.carries.replace(runtime).filter(|before| *before != runtime);
        let times = subject.times_at(at);
        if let Some(before) = before {
            // Another trace of the process has mentioned the thread.
            self.pauses.replace_member(before, runtime);
            self.unrelate(before, times, at, out);
            if let Some(before) = self.subjects.get_mut(before.key()) {
                before.is_replaced = true;
            }
        }
        if let Some(subject) = self.subjects.get_mut(runtime.key()) {
            subject.thread = Some(thread);
            subject.is_replaced = false;
            if subject.kind == EntityKind::DotnetThread {
                self.pauses.add_member(runtime, process);
                // The thread before had its id, and has ended.
                if std::mem::take(&mut subject.is_over) {
                    (subject.state, subject.reason) = (State::Running, TextId::EMPTY);
                    subject.stack = None;
                }
            }
        }
        self.refresh_thread(thread, at, out);
    }

    /// A runtime thread is no longer a kernel thread, whose times are these.
    fn unrelate(
        &mut self,
        runtime: EntityId,
        times: Times,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        if let Some(subject) = self.subjects.get_mut(runtime.key()) {
            subject.thread = None;
            // Its runtime does not report its end.
            if subject.kind == EntityKind::DotnetThread {
                (subject.state, subject.reason) = (State::Unknown, TextId::EMPTY);
                subject.stack = None;
                subject.is_over = true;
                self.pauses.remove_member(runtime, at, Some(times));
            }
        }
        self.refresh_runtime_thread(runtime, at, out);
    }

    fn end(
        &mut self,
        id: EntityId,
        at: Timestamp,
        entities: &Entities,
        out: &mut (impl Out + ?Sized),
    ) {
        self.count_requesters(at);
        self.close(id, at, out);
        let Some(subject) = self.subjects.remove(id.key()) else { return };
        let subject = std::mem::take(subject);
        let number = entities.get(id).map(|entity| entity.number);
        self.woken.remove(&id);
        if subject.place.kind() != Kind::Unknown {
            self.placed.remove(&id);
        }
        self.pauses.remove_member(id, at, None);
        leave_queue(&mut self.cpus, id, subject.place);
        if let Some(on) = subject.on.and_then(|on| self.subjects.get_mut(on.key())) {
            on.carries.take_if(|carried| *carried == id);
            on.proc.take_if(|proc| *proc == id);
        }
        match subject.kind {
            EntityKind::Thread => {
                remove_number(&mut self.threads, number, id);
                if let Some(runtime) = subject.carries {
                    self.unrelate(runtime, subject.times_at(at), at, out);
                }
            }
            EntityKind::GoThread | EntityKind::DotnetThread => {
                self.runtime_threads.remove(number, id);
                self.processes.remove(id, entities);
                if let Some(thread) = subject.thread {
                    if let Some(subject) = self.subjects.get_mut(thread.key()) {
                        subject.carries = None;
                    }
                    self.refresh_thread(thread, at, out);
                }
            }
            _ => {}
        }
        if let Some(on) = subject.on {
            self.refresh_runtime_thread(on, at, out);
        }
    }

    fn state(
        &mut self,
        id: EntityId,
        state: State,
        on: Option<EntityId>,
        (reason, stack): (TextId, Option<StackId>),
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        let kind = subject.kind;
        // Its own trace can continue, but its thread counts once.
        if subject.is_replaced {
            return;
        }
        // One that begins to wait after its end is another one.
        if subject.is_over {
            if state == State::Running {
                return;
            }
            subject.is_over = false;
        }
        subject.state = state;
        subject.reason = reason;
        subject.stack = stack;
        let before = std::mem::replace(&mut subject.on, on);
        if before == on {
            let m = if on.is_none() { Some(Linked::default()) } else { None };
            return self.refresh_of(id, m, at, out);
        }
        if let Some(old) = before.and_then(|old| self.subjects.get_mut(old.key())) {
            let link = if kind == EntityKind::Proc { &mut old.proc } else { &mut old.carries };
            link.take_if(|linked| *linked == id);
        }
        let (mut displaced, mut m) = (None, Linked::default());
        if let Some(new) = on.and_then(|new| self.subjects.get_mut(new.key())) {
            let link = if kind == EntityKind::Proc { &mut new.proc } else { &mut new.carries };
            displaced = link.replace(id).filter(|displaced| *displaced != id);
            m = new.linked();
        }
        if let Some(displaced) = displaced {
            if let Some(subject) = self.subjects.get_mut(displaced.key()) {
                subject.on = None;
            }
            self.refresh(displaced, at, out);
        }
        self.refresh_of(id, Some(m), at, out);
        for thread in [before, on].into_iter().flatten() {
            self.refresh_others(thread, Some(id), at, out);
        }
    }

    fn switch(
        &mut self,
        cpu_id: EntityId,
        prev: Option<EntityId>,
        left: ThreadState,
        next: Running,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(cpu) = self.cpus.get_mut(cpu_id.key()) else { return };
        let running = cpu.occupy(next, at);
        cpu.is_recorded = true;
        let is_full = cpu.is_full();
        let is_prev_known = prev.is_some() || left != ThreadState::Unknown;
        cpu.has_all_threads |= is_prev_known && next != Running::UNRECORDED;
        let gap = cpu.gap.take();
        if gap.is_some() || running.thread() != prev {
            // Where the record leaves it out, it is the one that was known.
            if gap.is_some() || is_prev_known {
                cpu.doubt_last();
            }
            self.came_unseen(cpu_id, running, prev, gap, at, out);
        }
        if let Some(prev) = prev {
            let place = match left {
                ThreadState::Preempted => Place::new(Kind::Preempted, (!is_full).then_some(cpu_id)),
                ThreadState::Sleeping => Place::new(Kind::Sleeping, None),
                ThreadState::Blocked => Place::new(Kind::Blocked, None),
                ThreadState::Stopped => Place::new(Kind::Stopped, None),
                ThreadState::Unknown | ThreadState::Dead => Place::UNKNOWN,
            };
            self.move_thread(prev, place, at, out);
            if left == ThreadState::Sleeping {
                self.slept(prev, at);
            }
        }
        if let Some(next) = next.thread() {
            let before = self.place(next);
            if before.is_woken() {
                self.end_wait(next, cpu_id, at, out);
            } else if before.is_on_cpu() && !before.is_on(cpu_id) {
                self.left_unseen(next, at, out);
            }
            self.move_thread(next, Place::new(Kind::OnCpu, Some(cpu_id)), at, out);
        }
        if self.options.occupants {
            self.refresh_queue(cpu_id, at, out);
        }
    }

    /// The records before a switch do not fit it.
    #[cold]
    fn came_unseen(
        &mut self,
        cpu: EntityId,
        running: Running,
        prev: Option<EntityId>,
        gap: Option<Timestamp>,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        if let Some(running) = running.thread() {
            // Without tracepoints only the threads of one program are recorded.
            if prev != Some(running) && self.place(running).is_on(cpu) {
                self.move_thread(running, Place::UNKNOWN, at, out);
            }
        }
        // Without a gap it can have come at any time, as before the first record of the CPU.
        let since = gap.unwrap_or(Timestamp::from_nanos(i64::MIN));
        if let Some(prev) = prev.filter(|prev| !self.place(*prev).is_on(cpu)) {
            self.left_unseen(prev, at, out);
            self.doubt(prev, since, at, out);
        }
    }

    /// A thread has another CPU by now than the one where it was seen last, if that was one. What executes there is
    /// not known.
    #[cold]
    fn left_unseen(&mut self, thread: EntityId, at: Timestamp, out: &mut (impl Out + ?Sized)) {
        let place = self.place(thread);
        let Some(cpu_id) = place.cpu().filter(|_| place.is_on_cpu()) else { return };
        let Some(cpu) = self.cpus.get_mut(cpu_id.key()) else { return };
        if cpu.now.running == Running::of(thread) {
            cpu.occupy(Running::UNKNOWN, at);
            self.refresh_queue(cpu_id, at, out);
        }
    }

    /// The recording of a CPU ends.
    fn end_cpu(&mut self, id: EntityId, at: Timestamp, out: &mut (impl Out + ?Sized)) {
        self.lost(id, LossKind::SchedulerRecords, at, at, out);
        if let Some(cpu) = self.cpus.get_mut(id.key()) {
            (cpu.is_recorded, cpu.has_all_threads) = (false, false);
        }
    }

    /// Records of a CPU are missing between `since` and `at`.
    fn lost(
        &mut self,
        cpu_id: EntityId,
        kind: LossKind,
        since: Timestamp,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        self.count_requesters(since);
        let Some(cpu) = self.cpus.get_mut(cpu_id.key()) else { return };
        cpu.gap = Some(since);
        let running = cpu.occupy(Running::UNKNOWN, since);
        let mut doubtful = Vec::new();
        if matches!(kind, LossKind::UnreportedSwitch | LossKind::CpuOffline) {
            // It may have another CPU by now.
            doubtful.extend(running.thread().filter(|thread| self.place(*thread).is_on(cpu_id)));
        } else {
            // Any thread may have been on that CPU, except those that were on others.
            doubtful.extend(self.placed.iter().copied().filter(|thread| {
                let place = self.place(*thread);
                !place.is_on_cpu() || place.is_on(cpu_id)
            }));
            // Those that are unknown since they were woken may have run meanwhile.
            let Self { woken, placed, .. } = self;
            woken.retain(|thread, _| placed.contains(thread));
        }
        for thread in doubtful {
            self.doubt(thread, since, at, out);
        }
        // Who had the CPU that they wait for is not known either.
        self.refresh_queue(cpu_id, since, out);
    }

    /// What a thread did since then is not known.
    fn doubt(
        &mut self,
        thread: EntityId,
        since: Timestamp,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        if self.place(thread).kind() == Kind::Unknown {
            return;
        }
        for id in self.executed_by(thread) {
            let Some(subject) = self.subjects.get_mut(id.key()) else { continue };
            if !subject.has_intervals(self.options) || subject.shown.kernel == Seen::ABSENT {
                continue;
            }
            let since = since.max(subject.since);
            subject.emit(id, since, self.options, out);
            subject.since = since;
            subject.shown.kernel = Seen::UNKNOWN;
            if subject.kind == EntityKind::Thread {
                subject.shown.state = State::Unknown;
            }
            if self.options.starts {
                subject.start(id, out);
            }
        }
        if let Some(subject) = self.subjects.get_mut(thread.key()) {
            let known = subject.times_at(since.max(subject.times.since));
            subject.times = Times { since: at, ..known };
        }
        self.move_thread(thread, Place::UNKNOWN, at, out);
    }

    /// A kernel thread, and all that it executes.
    fn executed_by(&self, thread: EntityId) -> impl Iterator<Item = EntityId> + use<> {
        let runtime = self.subjects.get(thread.key()).and_then(|thread| thread.carries);
        let m = runtime.and_then(|m| self.subjects.get(m.key()));
        let (goroutine, proc) = m.map_or((None, None), |m| (m.carries, m.proc));
        [Some(thread), runtime, goroutine, proc].into_iter().flatten()
    }

    fn place(&self, thread: EntityId) -> Place {
        self.subjects.get(thread.key()).map_or(Place::UNKNOWN, |thread| thread.place)
    }

    /// A thread is at this place from now on.
    fn move_thread(
        &mut self,
        id: EntityId,
        place: Place,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        if !self.woken.is_empty() {
            self.end_early_wait(id, place, out);
        }
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        subject.times = subject.times_at(at);
        let before = std::mem::replace(&mut subject.place, place);
        match (before.kind(), place.kind()) {
            (Kind::Unknown, Kind::Unknown) => {}
            (Kind::Unknown, _) => _ = self.placed.insert(id),
            (_, Kind::Unknown) => _ = self.placed.remove(&id),
            _ => {}
        }
        if subject.woken_on_cpu != WokenOnCpu::NEVER {
            let woken = std::mem::take(&mut subject.woken_on_cpu);
            if place.is_asleep() && woken.is_for_sleep(at) {
                self.woken.extend(before.cpu().map(|cpu| (id, Woken { since: at, cpu })));
            }
        }
        if self.options.occupants {
            leave_queue(&mut self.cpus, id, before);
            if let Some(cpu) = place.queue().and_then(|cpu| self.cpus.get_mut(cpu.key())) {
                cpu.queue.push(id);
            }
        }
        // Most threads execute nothing that has a state: they depend on nothing else.
        if subject.kind == EntityKind::Thread && subject.carries.is_none() {
            if self.options.threads {
                subject.show_kernel(id, kernel(id, place, &self.cpus), at, self.options, out);
            }
        } else {
            self.refresh_thread(id, at, out);
        }
    }

    /// What the kernel does with a thread.
    fn kernel(&self, thread: EntityId) -> Seen {
        kernel(thread, self.place(thread), &self.cpus)
    }

    /// The kernel thread that executes an entity now.
    fn thread_of(&self, id: EntityId) -> Option<EntityId> {
        self.on_thread(Some(id), self.subjects.get(id.key())?)
    }

    /// As [`Correlator::thread_of`]; of a .NET thread that another trace of its process has mentioned since,
    /// the thread that has its id.
    fn thread_or_latest(&self, id: EntityId, entities: &Entities) -> Option<EntityId> {
        let latest = || {
            let entity = entities.get(id).filter(|e| e.kind == EntityKind::DotnetThread)?;
            let thread = *self.threads.get(&entity.number)?;
            self.processes.relates(id, thread, entities).then_some(thread)
        };
        self.thread_of(id).or_else(latest)
    }

    /// As [`Correlator::thread_of`], of the subject `id`.
    #[inline]
    fn on_thread(&self, id: Option<EntityId>, subject: &Subject) -> Option<EntityId> {
        match subject.kind {
            EntityKind::Thread => id,
            EntityKind::GoThread | EntityKind::DotnetThread => subject.thread,
            _ => self.subjects.get(subject.on?.key())?.thread,
        }
    }

    /// What the subject `id`, a thread, executes now: a goroutine or a .NET thread.
    #[inline]
    fn held(&self, id: Option<EntityId>, subject: &Subject) -> Option<EntityId> {
        match subject.kind {
            EntityKind::Thread => {
                let runtime = subject.carries?;
                let subject = self.subjects.get(runtime.key())?;
                match subject.kind {
                    EntityKind::GoThread => subject.carries,
                    EntityKind::DotnetThread => Some(runtime),
                    _ => None,
                }
            }
            EntityKind::GoThread => subject.carries,
            EntityKind::DotnetThread => id,
            _ => None,
        }
    }
}

/// With what executes on the CPU that a thread waits for.
#[inline]
fn kernel(thread: EntityId, place: Place, cpus: &IdMap<Cpu>) -> Seen {
    let cpu = place.queue().and_then(|cpu| cpus.get(cpu.key()));
    queued(thread, place, cpu.map_or(Running::UNKNOWN, |cpu| cpu.now.running))
}

/// As [`kernel`], where the CPU that it waits for executes this.
#[inline]
fn queued(thread: EntityId, place: Place, running: Running) -> Seen {
    // A woken thread can be in another queue. One is queued where it is preempted before the next one gets the
    // CPU.
    let running = if place.is_woken() { Running::UNKNOWN } else { running.other_than(thread) };
    Seen::new(place, running)
}

/// Removes the number of a thread that ends, unless another one has it by now.
fn remove_number(threads: &mut HashMap<i64, EntityId>, number: Option<i64>, id: EntityId) {
    if let Some(number) = number.filter(|number| threads.get(number) == Some(&id)) {
        threads.remove(&number);
    }
}

fn leave_queue(cpus: &mut IdMap<Cpu>, id: EntityId, place: Place) {
    if let Some(cpu) = place.queue().and_then(|cpu| cpus.get_mut(cpu.key())) {
        cpu.queue.retain(|waiting| *waiting != id);
    }
}

#[cfg(test)]
mod tests {
    use super::cpu::MAX_QUEUE;
    use super::*;
    use crate::entity::Entity;
    use crate::event::Context;
    use crate::tables::Tables;

    /// Each switch is about the threads that wait for its CPU: a recording can have any number of them.
    #[test]
    fn a_switch_visits_a_limited_number_of_waiting_threads() {
        for left in [ThreadState::Preempted, ThreadState::Sleeping] {
            let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
            let mut push = |at: usize, kind: EventKind, tables: &Tables| {
                let event = Event { time: Timestamp::from_nanos(at as i64), kind };
                let mut intervals = 0;
                correlator.push(&event, &tables.entities, &mut |derived: Derived<'_>| {
                    intervals += usize::from(matches!(derived, Derived::Interval(_)));
                });
                intervals
            };
            let cpu = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
            push(0, EventKind::Start { entity: cpu }, &tables);
            let (mut prev, mut most) = (None, 0);
            for number in 1..=2 * MAX_QUEUE {
                let thread = Entity::new(EntityKind::Thread, number as i64);
                let entity = tables.entity(thread).unwrap();
                push(number, EventKind::Start { entity }, &tables);
                let (next, is_next_unknown, prio) = (Some(entity), false, 120);
                let switch = EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio };
                most = most.max(push(number, switch, &tables));
                if let Some(to) = prev.filter(|_| left == ThreadState::Sleeping) {
                    let (kind, from, context) = (FlowKind::Wakes, None, Context::HardIrq);
                    let (on, cpu, stack) = (None, Some(cpu), None);
                    let wake = EventKind::Flow { kind, from, context, on, to, cpu, stack };
                    push(number, wake, &tables);
                }
                prev = next;
            }
            // One more has left the CPU.
            assert!(most <= MAX_QUEUE + 1, "{most}");
            // One that has a place in the queue keeps it.
            let thread = tables.entities.thread(1).unwrap();
            let record = EventKind::Queue { thread, from: None, cpu };
            push(2 * MAX_QUEUE + 1, record, &tables);
            assert_eq!(correlator.place(thread).queue(), Some(cpu));
            let queue = correlator.cpus.get(cpu.key()).map(|cpu| cpu.queue.len());
            assert_eq!(queue, Some(MAX_QUEUE));
            let last = tables.entities.thread(2 * MAX_QUEUE as u32 - 1).unwrap();
            let (occupant, is_preempted) = (Occupant::Unknown, left == ThreadState::Preempted);
            let waits = Kernel::Runnable { cpu: None, occupant, is_preempted };
            assert_eq!(correlator.kernel(last).kernel(), waits);
        }
    }

    /// Each loss is about the few threads whose place is known, not about all of the machine.
    #[test]
    fn a_loss_visits_the_threads_whose_place_is_known() {
        let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
        let mut push = |at: i64, kind: EventKind, tables: &Tables| {
            let event = Event { time: Timestamp::from_nanos(at), kind };
            let known = correlator.placed.len();
            correlator.push(&event, &tables.entities, &mut |_: Derived<'_>| {});
            known
        };
        let entity = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
        push(0, EventKind::Start { entity }, &tables);
        let cpu = entity;
        let mut visited = 0;
        for number in 1..=1000 {
            let entity = tables.entity(Entity::new(EntityKind::Thread, number)).unwrap();
            push(number, EventKind::Start { entity }, &tables);
            let switch = |prev, next| EventKind::Switch {
                cpu,
                prev,
                left: ThreadState::Sleeping,
                next,
                is_next_unknown: false,
                prio: 120,
            };
            push(number, switch(None, Some(entity)), &tables);
            push(number, switch(Some(entity), None), &tables);
            let (kind, since) = (LossKind::SchedulerRecords, Timestamp::from_nanos(number));
            let loss = EventKind::Loss { entity: Some(cpu), kind, since, count: None };
            visited += push(number, loss, &tables);
        }
        assert_eq!(visited, 1000);
        assert_eq!(correlator.placed.len(), 0);
    }
}
