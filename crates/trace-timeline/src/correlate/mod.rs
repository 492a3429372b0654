//! Correlation across layers: goroutine ↔ P ↔ M ↔ kernel thread ↔ CPU.

mod model;
mod pause;

pub use model::{Derived, Interval, Kernel, Occupant, Pause, ResolvedFlow, Sampled, Stop};

use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::{Event, EventKind, InstantKind, LossKind, SpanKind, State, ThreadState};
use crate::tables::{StackId, TextId};
use hashbrown::HashMap;
use pause::Pauses;
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
/// Runtime threads are related to kernel threads by their thread ids. The ids of a program in a
/// container are those of its PID namespace; they relate only if its source translated them.
#[derive(Debug, Default)]
pub struct Correlator {
    subjects: IdMap<Subject>,
    cpus: IdMap<Cpu>,
    /// Kernel threads by thread id.
    threads: HashMap<i64, EntityId>,
    /// Runtime threads by thread id.
    runtime_threads: HashMap<i64, EntityId>,
    pauses: Pauses,
    now: Option<Timestamp>,
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
    times: Times,
}

/// What the open interval shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shown {
    state: State,
    reason: TextId,
    stack: Option<StackId>,
    thread: Option<EntityId>,
    proc: Option<EntityId>,
    holder: Option<EntityId>,
    kernel: Kernel,
}

/// Where a kernel thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Unknown,
    On(EntityId),
    Queued {
        cpu: Option<EntityId>,
        is_preempted: bool,
    },
    Sleeping,
    Blocked,
    Stopped,
}

/// Nanoseconds of a kernel thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    since: Timestamp,
    on_cpu: i64,
    runnable: i64,
}

#[derive(Debug, Default)]
struct Cpu {
    running: Occupant,
    /// Threads that wait for this CPU.
    queue: Vec<EntityId>,
    /// The start of the last gap, until the next switch.
    gap: Option<Timestamp>,
}

/// Where derived data goes.
type Out<'a> = dyn FnMut(Derived<'_>) + 'a;

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
            place: Place::Unknown,
            times: Times { since, ..Times::default() },
        }
    }

    const fn is_executing(&self) -> bool {
        matches!(self.state, State::Running | State::Syscall)
    }

    /// Times up to `at`.
    fn times_at(&self, at: Timestamp) -> Times {
        let mut times = self.times;
        let passed = at.nanos_since(times.since).max(0);
        match self.place {
            Place::On(_) => times.on_cpu += passed,
            Place::Queued { .. } => times.runnable += passed,
            _ => {}
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

    /// The time of the last event.
    pub const fn now(&self) -> Option<Timestamp> {
        self.now
    }

    /// Processes the next event.
    pub fn push(&mut self, event: &Event, entities: &Entities, out: &mut Out<'_>) {
        let at = event.at;
        self.now = Some(at);
        match event.kind {
            EventKind::Start { entity } => self.start(entity, at, entities, out),
            EventKind::End { entity } => {
                // Its last interval comes before its end.
                self.end(entity, at, out);
                out(Derived::Event(*event));
                return;
            }
            EventKind::State { entity, state, on, reason, stack } => {
                self.state(entity, state, on, (reason, stack), at, out);
                if state != State::Running {
                    self.stopped(entity, at);
                }
                return;
            }
            EventKind::Switch { cpu, prev, left, next, is_next_unknown } => {
                let next = match next {
                    Some(next) => Occupant::Thread(next),
                    None if is_next_unknown => Occupant::Unrecorded,
                    None => Occupant::Idle,
                };
                self.switch(cpu, prev, left, next, at, out);
                return;
            }
            EventKind::Flow { kind, from, context, to, cpu, stack } => {
                out(Derived::Flow(ResolvedFlow {
                    at,
                    kind,
                    from: from.map(|from| self.holder(from).unwrap_or(from)),
                    from_thread: from.and_then(|from| self.thread_of(from)),
                    context,
                    to,
                    to_holder: self.holder(to),
                    stack,
                }));
                self.wake(to, cpu, at, out);
                return;
            }
            EventKind::Sample { entity, kind, stack, weight } => {
                let thread = self.thread_of(entity);
                let kernel = thread.map_or(Kernel::Unknown, |thread| self.kernel(thread));
                out(Derived::Sample(Sampled { at, entity, thread, kind, stack, weight, kernel }));
                return;
            }
            EventKind::Loss { entity, kind, since, .. } => {
                if let Some(cpu) = entity.filter(|cpu| self.cpus.contains(cpu.key())) {
                    self.lost(cpu, kind, since, at, out);
                }
            }
            EventKind::Begin { span, entity, kind: SpanKind::StopTheWorld, name, by, .. } => {
                self.begin_pause(span, entity, name, by, at, entities);
            }
            EventKind::Finish { span, .. } => {
                if let Some(pause) = self.pauses.finish(span, at) {
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
    pub fn finish(&mut self, out: &mut Out<'_>) {
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

    fn start(&mut self, id: EntityId, at: Timestamp, entities: &Entities, out: &mut Out<'_>) {
        let Some(entity) = entities.get(id) else { return };
        match entity.kind {
            EntityKind::Cpu => {
                *self.cpus.insert(id.key()) = Cpu::default();
                return;
            }
            EntityKind::Process | EntityKind::Task | EntityKind::Activity => return,
            _ => {}
        }
        *self.subjects.insert(id.key()) = Subject::new(entity.kind, at);
        let pair = match entity.kind {
            EntityKind::Thread => {
                self.threads.insert(entity.number, id);
                self.runtime_threads.get(&entity.number).map(|runtime| (*runtime, id))
            }
            EntityKind::GoThread | EntityKind::DotnetThread => {
                self.runtime_threads.insert(entity.number, id);
                self.threads.get(&entity.number).map(|thread| (id, *thread))
            }
            _ => None,
        };
        if matches!(entity.kind, EntityKind::Proc | EntityKind::DotnetThread) {
            self.pauses.add_member(id);
        }
        if let Some((runtime, thread)) = pair.filter(|pair| is_one_thread(*pair, entities)) {
            if let Some(subject) = self.subjects.get_mut(runtime.key()) {
                subject.thread = Some(thread);
            }
            if let Some(subject) = self.subjects.get_mut(thread.key()) {
                subject.carries = Some(runtime);
            }
            self.refresh_thread(thread, at, out);
        }
    }

    fn end(&mut self, id: EntityId, at: Timestamp, out: &mut Out<'_>) {
        self.close(id, at, out);
        let Some(subject) = self.subjects.remove(id.key()) else { return };
        let subject = std::mem::take(subject);
        self.pauses.remove_member(id, at);
        self.leave_queue(id, subject.place);
        if let Some(on) = subject.on.and_then(|on| self.subjects.get_mut(on.key())) {
            on.carries.take_if(|carried| *carried == id);
            on.proc.take_if(|proc| *proc == id);
        }
        match subject.kind {
            EntityKind::Thread => {
                self.threads.retain(|_, thread| *thread != id);
                if let Some(runtime) = subject.carries {
                    if let Some(subject) = self.subjects.get_mut(runtime.key()) {
                        subject.thread = None;
                    }
                    self.refresh_runtime_thread(runtime, at, out);
                }
            }
            EntityKind::GoThread | EntityKind::DotnetThread => {
                self.runtime_threads.retain(|_, thread| *thread != id);
                if let Some(thread) = subject.thread {
                    if let Some(subject) = self.subjects.get_mut(thread.key()) {
                        subject.carries = None;
                    }
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
        out: &mut Out<'_>,
    ) {
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        let kind = subject.kind;
        subject.state = state;
        subject.reason = reason;
        subject.stack = stack;
        let before = std::mem::replace(&mut subject.on, on);
        if before != on {
            if let Some(old) = before.and_then(|old| self.subjects.get_mut(old.key())) {
                let link = if kind == EntityKind::Proc { &mut old.proc } else { &mut old.carries };
                link.take_if(|linked| *linked == id);
            }
            let mut displaced = None;
            if let Some(new) = on.and_then(|new| self.subjects.get_mut(new.key())) {
                let link = if kind == EntityKind::Proc { &mut new.proc } else { &mut new.carries };
                displaced = link.replace(id).filter(|displaced| *displaced != id);
            }
            if let Some(displaced) = displaced {
                if let Some(subject) = self.subjects.get_mut(displaced.key()) {
                    subject.on = None;
                }
                self.refresh(displaced, at, out);
            }
        }
        self.refresh(id, at, out);
        if before != on {
            for thread in [before, on].into_iter().flatten() {
                self.refresh_runtime_thread(thread, at, out);
            }
        }
    }

    fn switch(
        &mut self,
        cpu_id: EntityId,
        prev: Option<EntityId>,
        left: ThreadState,
        next: Occupant,
        at: Timestamp,
        out: &mut Out<'_>,
    ) {
        let Some(cpu) = self.cpus.get_mut(cpu_id.key()) else { return };
        let running = std::mem::replace(&mut cpu.running, next);
        let gap = cpu.gap.take();
        if let Occupant::Thread(running) = running {
            // Without tracepoints only the threads of one program are recorded.
            if prev != Some(running) && self.place(running) == Place::On(cpu_id) {
                self.set_place(running, Place::Unknown, at);
                self.refresh_thread(running, at, out);
            }
        }
        if let Some(prev) = prev {
            if let Some(since) = gap.filter(|_| self.place(prev) != Place::On(cpu_id)) {
                self.doubt(prev, since, at, out); // it came unseen
            }
            let place = match left {
                ThreadState::Preempted => Place::Queued { cpu: Some(cpu_id), is_preempted: true },
                ThreadState::Sleeping => Place::Sleeping,
                ThreadState::Blocked => Place::Blocked,
                ThreadState::Stopped => Place::Stopped,
                ThreadState::Unknown | ThreadState::Dead => Place::Unknown,
            };
            self.set_place(prev, place, at);
            self.refresh_thread(prev, at, out);
        }
        if let Occupant::Thread(next) = next {
            self.set_place(next, Place::On(cpu_id), at);
            self.refresh_thread(next, at, out);
        }
        self.refresh_queue(cpu_id, at, out);
    }

    /// A thread is woken: it waits for a CPU.
    fn wake(&mut self, id: EntityId, cpu: Option<EntityId>, at: Timestamp, out: &mut Out<'_>) {
        let Some(subject) = self.subjects.get(id.key()) else { return };
        // A thread that is about to sleep is woken before it leaves its CPU.
        let is_off = !matches!(subject.place, Place::On(_) | Place::Queued { .. });
        if subject.kind == EntityKind::Thread && is_off {
            self.set_place(id, Place::Queued { cpu, is_preempted: false }, at);
            self.refresh_thread(id, at, out);
        }
    }

    /// Records of a CPU are missing between `since` and `at`.
    fn lost(
        &mut self,
        cpu_id: EntityId,
        kind: LossKind,
        since: Timestamp,
        at: Timestamp,
        out: &mut Out<'_>,
    ) {
        let Some(cpu) = self.cpus.get_mut(cpu_id.key()) else { return };
        cpu.gap = Some(since);
        let running = std::mem::replace(&mut cpu.running, Occupant::Unknown);
        let mut doubtful = Vec::new();
        if kind == LossKind::UnreportedSwitch {
            doubtful.extend(running.thread());
        } else {
            // Any thread may have been on that CPU.
            let threads = self.threads.values().copied();
            doubtful.extend(threads.filter(|thread| match self.place(*thread) {
                Place::On(on) => on == cpu_id,
                _ => true,
            }));
            doubtful.sort_unstable();
        }
        for thread in doubtful {
            self.doubt(thread, since, at, out);
        }
        // Who had the CPU that they wait for is not known either.
        self.refresh_queue(cpu_id, since, out);
    }

    /// What a thread did since then is not known.
    fn doubt(&mut self, thread: EntityId, since: Timestamp, at: Timestamp, out: &mut Out<'_>) {
        if self.place(thread) == Place::Unknown {
            return;
        }
        let runtime = self.subjects.get(thread.key()).and_then(|thread| thread.carries);
        let m = runtime.and_then(|m| self.subjects.get(m.key()));
        let (goroutine, proc) = m.map_or((None, None), |m| (m.carries, m.proc));
        for id in [Some(thread), runtime, goroutine, proc].into_iter().flatten() {
            let Some(subject) = self.subjects.get_mut(id.key()) else { continue };
            if subject.kind == EntityKind::GoThread || subject.shown.kernel == Kernel::Absent {
                continue;
            }
            let since = since.max(subject.since);
            let certain = subject.interval(id, since);
            subject.since = since;
            subject.shown.kernel = Kernel::Unknown;
            if subject.kind == EntityKind::Thread {
                subject.shown.state = State::Unknown;
            }
            certain.into_iter().for_each(|interval| out(Derived::Interval(interval)));
        }
        self.set_place(thread, Place::Unknown, at);
        self.refresh_thread(thread, at, out);
    }

    fn place(&self, thread: EntityId) -> Place {
        self.subjects.get(thread.key()).map_or(Place::Unknown, |thread| thread.place)
    }

    fn set_place(&mut self, id: EntityId, place: Place, at: Timestamp) {
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        subject.times = subject.times_at(at);
        let before = std::mem::replace(&mut subject.place, place);
        self.leave_queue(id, before);
        if let Place::Queued { cpu: Some(cpu), .. } = place {
            if let Some(cpu) = self.cpus.get_mut(cpu.key()) {
                cpu.queue.push(id);
            }
        }
    }

    fn leave_queue(&mut self, id: EntityId, place: Place) {
        if let Place::Queued { cpu: Some(cpu), .. } = place {
            if let Some(cpu) = self.cpus.get_mut(cpu.key()) {
                cpu.queue.retain(|waiting| *waiting != id);
            }
        }
    }

    /// What the kernel does with a thread.
    fn kernel(&self, thread: EntityId) -> Kernel {
        match self.place(thread) {
            Place::Unknown => Kernel::Unknown,
            Place::On(cpu) => Kernel::OnCpu { cpu },
            Place::Queued { cpu, is_preempted } => {
                let running = cpu.and_then(|cpu| self.cpus.get(cpu.key())).map(|cpu| cpu.running);
                // A thread is queued where it is preempted before the next one gets the CPU.
                let occupant = running.filter(|running| running.thread() != Some(thread));
                Kernel::Runnable { cpu, occupant: occupant.unwrap_or_default(), is_preempted }
            }
            Place::Sleeping => Kernel::Sleeping,
            Place::Blocked => Kernel::Blocked,
            Place::Stopped => Kernel::Stopped,
        }
    }

    /// The kernel thread that executes an entity now.
    fn thread_of(&self, id: EntityId) -> Option<EntityId> {
        let subject = self.subjects.get(id.key())?;
        match subject.kind {
            EntityKind::Thread => Some(id),
            EntityKind::GoThread | EntityKind::DotnetThread => subject.thread,
            _ => self.subjects.get(subject.on?.key())?.thread,
        }
    }

    /// What a thread executes now: a goroutine or a .NET thread.
    fn holder(&self, id: EntityId) -> Option<EntityId> {
        let subject = self.subjects.get(id.key())?;
        match subject.kind {
            EntityKind::Thread => self.holder(subject.carries?),
            EntityKind::GoThread => subject.carries,
            EntityKind::DotnetThread => Some(id),
            _ => None,
        }
    }

    fn derive(&self, id: EntityId, subject: &Subject) -> Shown {
        let mut shown = Shown {
            state: subject.state,
            reason: subject.reason,
            stack: subject.stack,
            ..Shown::default()
        };
        match subject.kind {
            EntityKind::Thread => {
                shown.kernel = self.kernel(id);
                shown.state = shown.kernel.state();
                shown.thread = Some(id);
                shown.holder = self.holder(id);
            }
            EntityKind::DotnetThread => {
                shown.thread = subject.thread.or(Some(id));
                shown.kernel = subject.thread.map_or(Kernel::Unknown, |t| self.kernel(t));
            }
            _ => {
                let m = subject.on.and_then(|on| self.subjects.get(on.key()));
                shown.thread = m.and_then(|m| m.thread).or(subject.on);
                let thread = m.and_then(|m| m.thread);
                let kernel = thread.map_or(Kernel::Unknown, |t| self.kernel(t));
                shown.kernel = if subject.is_executing() { kernel } else { Kernel::Absent };
                if subject.kind == EntityKind::Proc {
                    shown.holder = m.and_then(|m| m.carries);
                } else if subject.is_executing() {
                    shown.proc = m.and_then(|m| m.proc);
                }
            }
        }
        shown
    }

    /// Ends the open interval if it no longer holds.
    fn refresh(&mut self, id: EntityId, at: Timestamp, out: &mut Out<'_>) {
        let Some(subject) = self.subjects.get(id.key()) else { return };
        if subject.kind == EntityKind::GoThread {
            return; // its goroutine, its P and its kernel thread have intervals
        }
        let shown = self.derive(id, subject);
        if shown != subject.shown {
            let Some(subject) = self.subjects.get_mut(id.key()) else { return };
            // A loss is reported when it is over.
            let at = at.max(subject.since);
            let interval = subject.interval(id, at);
            subject.shown = shown;
            subject.since = at;
            interval.into_iter().for_each(|interval| out(Derived::Interval(interval)));
        }
    }

    /// A kernel thread, and what it executes.
    fn refresh_thread(&mut self, id: EntityId, at: Timestamp, out: &mut Out<'_>) {
        self.refresh(id, at, out);
        if let Some(runtime) = self.subjects.get(id.key()).and_then(|thread| thread.carries) {
            self.refresh(runtime, at, out);
            let Some(m) = self.subjects.get(runtime.key()) else { return };
            for id in [m.carries, m.proc].into_iter().flatten() {
                self.refresh(id, at, out);
            }
        }
    }

    /// A runtime thread, what it executes, and the kernel thread that it is.
    fn refresh_runtime_thread(&mut self, id: EntityId, at: Timestamp, out: &mut Out<'_>) {
        let Some(subject) = self.subjects.get(id.key()) else { return };
        let related = [Some(id), subject.carries, subject.proc, subject.thread];
        for id in related.into_iter().flatten() {
            self.refresh(id, at, out);
        }
    }

    /// The threads that wait for a CPU.
    fn refresh_queue(&mut self, cpu: EntityId, at: Timestamp, out: &mut Out<'_>) {
        let mut next = 0;
        while let Some(thread) = self.cpus.get(cpu.key()).and_then(|c| c.queue.get(next)).copied() {
            self.refresh_thread(thread, at, out);
            next += 1;
        }
    }

    fn close(&mut self, id: EntityId, at: Timestamp, out: &mut Out<'_>) {
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        let interval = subject.interval(id, at);
        subject.since = at;
        interval.into_iter().for_each(|interval| out(Derived::Interval(interval)));
    }
}

impl Subject {
    /// The open interval, if it ended now; `None` without a duration.
    fn interval(&self, subject: EntityId, end: Timestamp) -> Option<Interval> {
        let Shown { state, reason, stack, thread, proc, holder, kernel } = self.shown;
        (end > self.since && self.kind != EntityKind::GoThread).then_some(Interval {
            subject,
            begin: self.since,
            end,
            state,
            reason,
            stack,
            thread,
            proc,
            holder,
            kernel,
        })
    }
}

/// Whether a runtime thread and a kernel thread with the same number are of one process.
fn is_one_thread((runtime, thread): (EntityId, EntityId), entities: &Entities) -> bool {
    let process = |id| {
        let process = entities.get(entities.get(id)?.parent?)?.number;
        Some(process).filter(|number| *number >= 0)
    };
    match (process(runtime), process(thread)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}
