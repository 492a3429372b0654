//! The critical path of an interval, across the layers.

use super::history::{History, Span};
use super::sweep::{Stops, Sweep};
use super::throttles::Throttles;
use crate::correlate::{Interval, Kernel, Occupant, Pause, ResolvedFlow, Stop};
use crate::entity::{Attribute, Entities, EntityId, EntityKind};
use crate::event::{Context, FlowKind, SpanKind, State};
use crate::tables::{StackId, TextId};
use hashbrown::HashMap;
use std::cell::OnceCell;
use std::fmt;
use trace_common::{Timestamp, Walk as Back};

/// A piece of a [`CriticalPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// The start.
    pub start: Timestamp,
    /// The end.
    pub end: Timestamp,
    /// The goroutine or thread whose time it is.
    pub entity: EntityId,
    /// The kernel thread that executed it, if that is known.
    pub thread: Option<EntityId>,
    /// Its activity, or the reason of its wait.
    pub what: What,
    /// How many waits lead from the subject to `entity`: 0 for the subject itself.
    pub depth: u32,
    /// Why it waited, as its runtime reports it; empty for other pieces. A thread that acts for a
    /// runtime waits for the same as `waiter`.
    pub reason: TextId,
    /// The subject that waits for `entity` meanwhile.
    pub waiter: Option<EntityId>,
    /// The goroutine or thread that ended the wait of that one: `entity`, or one that leads to it.
    pub unblocker: Option<EntityId>,
    /// Why that one waits. If it waits while the world is stopped, the reason of that.
    pub waiter_reason: TextId,
    /// Where that one stopped.
    pub waiter_stack: Option<StackId>,
    /// The owner of the lock that `waiter` waits for, if its runtime reports a wait for a lock: the thread
    /// that ended the wait; if no thread is known to have done so, or the world was stopped then, the owner
    /// that the runtime reports.
    pub waiter_lock_owner: Option<EntityId>,
    /// The garbage collector's or runtime's span that it is in, or the stop-the-world that `waiter` waits for.
    pub during: Option<(SpanKind, TextId)>,
    /// The owner of the lock that `entity` waits for, if `during` is a [`SpanKind::LockWait`] whose owner
    /// the runtime reports. It is not known after another thread woke `entity`.
    pub lock_owner: Option<EntityId>,
    /// Another task that `entity` worked on, or that the one worked on which waits for it: context of
    /// the wait, not its cause.
    pub context: Option<EntityId>,
    /// Where it stopped; without that, the most frequent stack of its samples. While a work item is in the queue or a
    /// method awaits, `entity` does other work: it is where the item was queued or the await began, or none.
    pub stack: Option<StackId>,
    /// Number of samples of `entity` within the piece, if `stack` is of a sample.
    pub samples: u32,
}

impl Piece {
    /// Makes a piece of the subject itself, without details.
    pub const fn new(start: Timestamp, end: Timestamp, entity: EntityId, what: What) -> Self {
        Self {
            start,
            end,
            entity,
            thread: None,
            what,
            depth: 0,
            reason: TextId::EMPTY,
            waiter: None,
            unblocker: None,
            waiter_reason: TextId::EMPTY,
            waiter_stack: None,
            waiter_lock_owner: None,
            during: None,
            lock_owner: None,
            context: None,
            stack: None,
            samples: 0,
        }
    }

    /// The duration in nanoseconds.
    pub const fn nanos(&self) -> i64 {
        self.end.nanos_since(self.start)
    }
}

/// The use of the time of a piece of a critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum What {
    /// Executed on a CPU.
    OnCpu {
        /// The CPU.
        cpu: EntityId,
    },
    /// Executed as far as its runtime knows. The kernel's part was not recorded.
    Running,
    /// In a system call. The kernel's part was not recorded.
    Syscall,
    /// A .NET thread whose scheduling the kernel did not record: whether it ran or waited is not
    /// known. The .NET runtime reports few waits.
    NotRecorded,
    /// Its thread waited for a CPU.
    WaitsForCpu {
        /// The occupant of that CPU meanwhile.
        occupant: Occupant,
        /// Whether the CPU was taken away from it.
        is_preempted: bool,
    },
    /// A goroutine waited for a P.
    WaitsForProc {
        /// The P on which it ran next. `None` if that P, or what it did meanwhile, is not known.
        proc: Option<EntityId>,
        /// The goroutine that had that P meanwhile.
        holder: Option<EntityId>,
        /// The kernel's state of the thread of that P. An idle P has none: [`Kernel::Absent`], or
        /// [`Kernel::Runnable`] while the thread that took it next waited for a CPU.
        kernel: Kernel,
    },
    /// Its thread could have run, or that of the P that it waited for, but the CPU quota of its cgroup
    /// was used up. The counters of the cgroup say for how long, summed over CPUs, and not when: this is
    /// the share of the thread, and this part of a wait for a CPU is shown first.
    Throttled,
    /// A work item waited in the queue of the .NET thread pool for `entity` to take it, or a task or continuation was
    /// scheduled and had not begun.
    Queued {
        /// Number of workers that the pool added meanwhile because queued items did not start: the
        /// other workers were blocked. Above 0 this is thread-pool starvation.
        starvation: u32,
    },
    /// Its thread waited uninterruptibly: for a disk, a page or a lock of the kernel. If a thread of
    /// a program ended the wait, the path leads to that thread.
    Blocked,
    /// Its thread was stopped by a signal or a debugger.
    Stopped,
    /// Waited, and nobody is known who ended the wait: network, timer, interrupt, another machine. Of a .NET method
    /// that awaited, the reason is the awaited task.
    Waits {
        /// The context in which a CPU ended it.
        context: Context,
    },
    /// Not known: not recorded, or lost.
    Unknown,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl What {
    /// A stable name: `waits_for_cpu`. [`text::piece`](crate::text::piece) has a phrase, too.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::OnCpu { .. } => "on_cpu",
            Self::Running => "running",
            Self::Syscall => "syscall",
            Self::NotRecorded => "not_recorded",
            Self::WaitsForCpu { .. } => "waits_for_cpu",
            Self::WaitsForProc { .. } => "waits_for_p",
            Self::Throttled => "throttled",
            Self::Queued { .. } => "queued",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
            Self::Waits { .. } => "waits",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it executes as far as its runtime knows.
    const fn is_executing(&self) -> bool {
        matches!(
            self,
            Self::OnCpu { .. } | Self::Running | Self::Syscall | Self::WaitsForCpu { .. }
        )
    }

    /// The thread that had the CPU, or the goroutine that had the P, for which this one waited. Where the
    /// thread of that P waited for a CPU itself, it is the thread that had it.
    pub const fn by(&self) -> Option<EntityId> {
        match self {
            Self::WaitsForCpu { occupant, .. } => occupant.thread(),
            Self::WaitsForProc { kernel: Kernel::Runnable { occupant, .. }, .. }
                if occupant.thread().is_some() =>
            {
                occupant.thread()
            }
            Self::WaitsForProc { holder, .. } => *holder,
            _ => None,
        }
    }
}

/// The critical path of an interval of a subject: why it took as long as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CriticalPath {
    /// The goroutine or thread at the end of the interval.
    pub subject: EntityId,
    /// The start.
    pub start: Timestamp,
    /// The end.
    pub end: Timestamp,
    /// The pieces, in time order. They partition the interval.
    pub pieces: Vec<Piece>,
}

impl CriticalPath {
    /// The path of a subject with these pieces, which partition the time from `start` to `end`.
    pub const fn new(
        subject: EntityId,
        start: Timestamp,
        end: Timestamp,
        pieces: Vec<Piece>,
    ) -> Self {
        Self { subject, start, end, pieces }
    }
}

/// Finds the critical path of `subject` from `start` to `end`; `task` is the task that it works on,
/// if any.
///
/// It walks back from the end. A wait is divided by what the goroutine or thread did that ended
/// it, found in the same way, but never before the wait began. Each step goes back in time; of
/// events at the same time each is followed once, so there are no cycles. The number of steps is
/// that of the pieces. The history must contain the interval.
///
/// A .NET thread that waits for a lock leads to the thread that woke it. Without the kernel's scheduler, it
/// leads to each holder of the lock while it held it, as far as the threads that waited for the lock
/// report: the owner at the begin of a wait, and the one whose wait ended.
///
/// A goroutine that waits for a P while the world is stopped leads to the one that stopped last, as long as that
/// had not stopped, and then to the requester.
///
/// In .NET, a worker of the thread pool leads to the thread that queued its work item: what the
/// worker did before is other work. Of a subject itself this holds if there is a `task`.
pub fn critical_path(
    history: &History,
    entities: &Entities,
    subject: EntityId,
    start: Timestamp,
    end: Timestamp,
    task: Option<EntityId>,
) -> CriticalPath {
    let link = Link {
        waiter: None,
        unblocker: None,
        reason: TextId::EMPTY,
        stack: None,
        lock_owner: None,
        worker: None,
        is_proxy: false,
        is_work: task.is_some(),
        stops: None,
    };
    let back = Back::new(subject, link, start, end);
    let mut walk = Walk { history, entities, ms: OnceCell::new(), pieces: Vec::new(), back };
    while let Some(step) = walk.back.next_step() {
        if step.is_stuck {
            walk.leaf(step, step.lower, What::Unknown, None);
        } else {
            walk.step(step);
        }
    }
    let mut found = std::mem::take(&mut walk.pieces);
    found.reverse();
    let mut parts = Vec::with_capacity(found.len());
    let mut spans = Sweep::new(history, task);
    let mut throttles = Throttles::new(history, entities, start, end);
    for found in found {
        // The part of a wait for a CPU that is throttled, too.
        let is_executing = found.piece.what.is_executing();
        for piece in walk.throttled(found.piece, &mut throttles).into_iter().flatten() {
            walk.split(Found { piece, ..found }, is_executing, task, &mut spans, &mut parts);
        }
    }
    let pieces = parts.into_iter().map(|part: Part| part.with_stack(history)).collect();
    CriticalPath { subject, start, end: end.max(start), pieces }
}

struct Walk<'a> {
    history: &'a History,
    entities: &'a Entities,
    /// The process ids of the threads that a Go trace mentions, by their thread ids, once they are looked up.
    ms: OnceCell<HashMap<i64, Vec<i64>>>,
    /// Latest first.
    pieces: Vec<Found>,
    back: Back<EntityId, Link>,
}

/// A piece that is not divided yet.
#[derive(Clone, Copy)]
struct Found {
    piece: Piece,
    /// See [`Link`].
    worker: Option<EntityId>,
    stops: Option<EntityId>,
    /// The kind of a work item that waits in the queue, or of an await. The entity takes it or continues after it,
    /// and does other work meanwhile.
    item: Option<SpanKind>,
}

/// A part of a piece, within the same spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    piece: Piece,
    /// Whether samples of the entity and its thread are of the piece.
    is_sampled: bool,
}

impl Part {
    /// The piece. Without a stack of its own, it has that of samples.
    fn with_stack(self, history: &History) -> Piece {
        let Self { mut piece, is_sampled } = self;
        if piece.stack.is_some() || !is_sampled {
            return piece;
        }
        let (start, end) = (piece.start, piece.end);
        // A sample can be of the runtime's thread or of the kernel's.
        let mut entities = [Some(piece.entity), piece.thread].into_iter().flatten();
        piece.stack = entities.clone().find_map(|id| history.waited(id, start, end));
        if piece.stack.is_none() {
            if let Some((stack, samples)) = entities.find_map(|id| history.sampled(id, start, end))
            {
                (piece.stack, piece.samples) = (Some(stack), samples);
            }
        }
        piece
    }
}

/// An entity that is followed.
type Step = trace_common::Step<EntityId, Link>;

/// What led to an entity.
#[derive(Clone, Copy)]
struct Link {
    waiter: Option<EntityId>,
    /// The one that ended its wait.
    unblocker: Option<EntityId>,
    reason: TextId,
    /// Where the waiter stopped.
    stack: Option<StackId>,
    /// The owner of the lock that the waiter waits for.
    lock_owner: Option<EntityId>,
    /// The nearest waiter that worked on a task: what is done for it is done for that task.
    worker: Option<EntityId>,
    /// A thread that ended the wait for the runtime: what it did before it was woken itself has
    /// nothing to do with that wait.
    is_proxy: bool,
    /// It works for the subject or its waiter: a work item that it took ends what belongs to it.
    is_work: bool,
    /// The process whose world it stops, or in which it has to stop, while the waiter waits for that. The thread of
    /// the kernel can be of another process: a Go trace does not record its process id.
    stops: Option<EntityId>,
}

impl<'a> Walk<'a> {
    fn step(&mut self, step: Step) {
        let item =
            self.history.work_item(step.entity, self.back.at()).filter(|_| step.link.is_work);
        let mut step = step;
        if let Some(item) = item {
            if item.end == self.back.at() {
                return self.queued(step, item);
            }
            step.lower = step.lower.max(item.end);
        }
        let Some((index, interval)) = self.history.before(step.entity, self.back.at()) else {
            return self.before_birth(step);
        };
        if interval.end < self.back.at() {
            // It had ended.
            return self.leaf(step, interval.end.max(step.lower), What::Unknown, None);
        }
        let start = interval.start.max(step.lower);
        let holder = interval.holder.and_then(|holder| self.entities.kind(holder));
        if step.link.is_proxy && holder == Some(EntityKind::Goroutine) {
            // What it executed before it ended the wait for the runtime has nothing to do with that.
            return self.proxy_wait(step, What::Waits { context: Context::Task });
        }
        if let Some((pause, stop)) = self.requested(step.entity, interval) {
            return self.late(step, pause, stop, None, start.max(pause.start));
        }
        match interval.kernel {
            Kernel::OnCpu { cpu } => self.leaf(step, start, What::OnCpu { cpu }, None),
            Kernel::Runnable { occupant, is_preempted, .. } => {
                let what = What::WaitsForCpu { occupant, is_preempted };
                self.leaf(step, start, what, None);
            }
            Kernel::Sleeping => {
                let start = self.wait_begin(step, index);
                self.wait(step, interval, interval.thread, start);
            }
            Kernel::Blocked => {
                let flow = self.wake_up(interval.thread, interval.end);
                if flow.is_some_and(|flow| self.is_by_user(flow)) {
                    let start = self.wait_begin(step, index);
                    self.wait(step, interval, interval.thread, start);
                } else {
                    self.leaf(step, start, What::Blocked, Some(interval));
                }
            }
            Kernel::Stopped => self.leaf(step, start, What::Stopped, Some(interval)),
            Kernel::Unknown | Kernel::Absent => match interval.state {
                State::Running if interval.kind == EntityKind::DotnetThread => {
                    self.leaf(step, start, self.unknown(interval), None);
                }
                State::Running => self.leaf(step, start, What::Running, None),
                State::Syscall => self.leaf(step, start, What::Syscall, Some(interval)),
                State::Waiting => {
                    let start = self.wait_begin(step, index);
                    self.wait(step, interval, Some(step.entity), start);
                }
                State::Runnable => self.runnable(step, index, start),
                // The kernel reports a new thread shortly before its creator wakes it.
                State::Unknown if index == 0 && self.is_created(step.entity, interval.end) => {
                    self.before_birth(step);
                }
                State::Unknown | State::Idle => self.leaf(step, start, What::Unknown, None),
            },
        }
    }

    /// A .NET thread that does not wait for the runtime. A thread whose scheduling was recorded is
    /// unknown after a loss. Samples alone mention the kernel's thread, too.
    fn unknown(&self, interval: &Interval) -> What {
        let thread = interval.thread.and_then(|thread| self.entities.kind(thread));
        let is_lost = thread == Some(EntityKind::Thread) && self.history.has_scheduler();
        if is_lost { What::Unknown } else { What::NotRecorded }
    }

    /// The work item of a worker was queued, or a task awaited: continue with the thread that queued or awaited it.
    fn queued(&mut self, step: Step, item: &Span) {
        let start = item.start.max(step.lower);
        let process = self.entities.process_of(step.entity);
        if item.kind == SpanKind::Await && self.back.at() > start {
            // Nothing is known of the one that completed the task.
            self.leaf(step, start, What::Waits { context: Context::Unknown }, None);
            self.mark(item);
            if let Some(found) = self.pieces.last_mut() {
                found.piece.reason = item.name;
            }
        }
        while self.back.at() > start {
            let interval =
                self.history.before(step.entity, self.back.at()).map(|(_, interval)| interval);
            let interval = interval.filter(|interval| interval.end >= self.back.at());
            let since = interval.map_or(start, |interval| interval.start.max(start));
            let what = match interval.map(|interval| interval.kernel) {
                Some(Kernel::Runnable { occupant, is_preempted, .. }) => {
                    What::WaitsForCpu { occupant, is_preempted }
                }
                _ => What::Queued {
                    starvation: process.map_or(0, |process| {
                        self.history.starvation(process, since, self.back.at())
                    }),
                },
            };
            self.leaf(step, since, what, None);
            self.mark(item);
        }
        if start > step.lower || item.start == step.lower {
            self.back.turn(item.by, |link| link.is_proxy = false);
        }
    }

    /// The last piece is a part of a work item or an await, and no part of what its entity does.
    fn mark(&mut self, item: &Span) {
        if let Some(found) = self.pieces.last_mut() {
            (found.item, found.piece.stack) = (Some(item.kind), item.stack);
        }
    }

    /// The entity did not exist: continue with its creator.
    fn before_birth(&mut self, step: Step) {
        if let Some(thread) = self.thread_before(step.entity) {
            return self.back.turn(thread, |_| ());
        }
        match self.creator(step.entity) {
            Some((at, (creator, is_proxy))) if !self.back.is_followed(creator) => {
                if at < self.back.at() {
                    self.leaf(step, at.max(step.lower), What::Unknown, None);
                }
                self.back.turn(creator, |link| link.is_proxy = is_proxy);
            }
            _ => self.leaf(step, step.lower, What::Unknown, None),
        }
    }

    /// The kernel thread of a .NET thread that the runtime mentions later than the kernel.
    fn thread_before(&self, entity: EntityId) -> Option<EntityId> {
        let first = self.history.intervals(entity).first()?;
        let thread = first.thread.filter(|thread| *thread != entity);
        thread.filter(|_| self.entities.kind(entity) == Some(EntityKind::DotnetThread))
    }

    /// When an entity was created, and what [`cause`](Self::cause) says of the creation.
    fn creator(&self, entity: EntityId) -> Option<(Timestamp, (EntityId, bool))> {
        let creation = self.history.creation(entity)?;
        Some((creation.time, self.cause(creation)?))
    }

    /// Whether something is known of an entity before this time, or of the one that led to it.
    fn is_known_before(&self, entity: EntityId) -> bool {
        self.history.before(entity, self.back.at()).is_some()
            || self.thread_before(entity).is_some()
            || self.creator(entity).is_some()
    }

    /// Whether an entity was created at this time.
    fn is_created(&self, entity: EntityId, at: Timestamp) -> bool {
        self.back.at() == at
            && self.wake_up(Some(entity), at).is_some_and(|flow| flow.kind == FlowKind::Creates)
    }

    /// The begin of a wait, by the position of one of its intervals.
    fn wait_begin(&self, step: Step, index: usize) -> Timestamp {
        let begin = self.history.wait_begin(step.entity, index);
        begin.map_or(step.lower, |begin| begin.max(step.lower))
    }

    /// A wait that ended with a flow to `to`.
    fn wait(&mut self, step: Step, interval: &Interval, to: Option<EntityId>, start: Timestamp) {
        let flow = self.wake_up(to, interval.end);
        let lock = self.lock_wait(step.entity, interval);
        let held = lock.map(|wait| self.holder(wait, self.back.at()));
        let (start, cause) = match (flow, held) {
            (Some(flow), _) => (start, self.cause(flow)),
            // Without the kernel's scheduler, the holders of the lock one after the other.
            (None, Some((since, by))) => (start.max(since), by.map(|by| (by, false))),
            (None, None) => (start, None),
        };
        // The path begins within the wait, and the one that will end it does not exist yet.
        let is_cut = interval.end > self.back.at();
        let cause = cause.filter(|(cause, _)| !is_cut || self.is_known_before(*cause));
        // A goroutine that has stopped the world ends the waits of others for the runtime. What it did before has
        // nothing to do with them.
        let stop = cause.and_then(|(waker, _)| self.stopped_by(waker, interval.end));
        let cause = cause.filter(|_| stop.is_none_or(|stop| stop.start < self.back.at()));
        let start = match cause {
            Some(_) => stop.map_or(start, |stop| start.max(stop.start)),
            None => start,
        };
        let stops = stop.map(|stop| stop.process);
        let what = match interval.kernel {
            Kernel::Blocked => What::Blocked,
            _ => What::Waits { context: flow.map_or(Context::Unknown, |flow| flow.context) },
        };
        // The one that woke the thread may have got the lock without a wait that the runtime reports. One
        // that wakes it while the world is stopped, or is to continue, does so for the runtime.
        let is_stopped = |thread| {
            let process = self.entities.process_of(thread);
            process.is_some_and(|process| self.history.is_stopped(process, interval.end))
        };
        let waker = cause
            .map(|(cause, _)| cause)
            .filter(|waker| flow.is_some() && self.is_dotnet(*waker) && !is_stopped(*waker));
        let lock_owner = held.and_then(|(_, by)| waker.or(by));
        if step.link.is_proxy {
            let is_own = flow.is_some_and(|flow| self.is_by_scheduler(flow, step.entity));
            match cause {
                Some((cause, is_proxy)) if cause != step.entity && !is_own => {
                    let link = Link { is_proxy, stops: stops.or(step.link.stops), ..step.link };
                    if stops.is_none() {
                        self.back.turn(cause, |now| *now = link);
                    } else if !self.back.follow(cause, start, link) {
                        self.proxy_wait(step, what);
                    }
                }
                _ => self.proxy_wait(step, what),
            }
            return;
        }
        let followed = cause.is_some_and(|(cause, is_proxy)| {
            let link = Link {
                waiter: Some(step.entity),
                unblocker: Some(cause),
                reason: interval.reason,
                stack: interval.stack,
                lock_owner,
                worker: self.worker(step, start),
                is_proxy,
                is_work: true,
                stops,
            };
            self.back.follow(cause, start, link)
        });
        if !followed {
            self.leaf(step, start, what, Some(interval));
        }
    }

    /// A thread that acts for the runtime waits for the same as the one that it will wake.
    fn proxy_wait(&mut self, step: Step, what: What) {
        self.leaf(step, step.lower, what, None);
        if let Some(found) = self.pieces.last_mut() {
            found.piece.reason = step.link.reason;
        }
    }

    /// Whether the runtime woke a thread without a goroutine, so that it looks for work: nothing that the wait is for.
    /// A goroutine ends the wait of such a thread itself by a system call, such as a write to a pipe.
    fn is_by_scheduler(&self, flow: &ResolvedFlow, thread: EntityId) -> bool {
        let process_of = |thread| self.entities.process_of(thread);
        let Some((from, from_thread)) = flow.from.zip(flow.from_thread) else { return false };
        if process_of(from_thread).is_none() || process_of(from_thread) != process_of(thread) {
            return false;
        }
        match self.entities.kind(from) {
            Some(EntityKind::Goroutine) => {
                let interval = self.history.before(from, flow.time);
                interval.is_none_or(|(_, interval)| interval.state != State::Syscall)
            }
            // One of C executes what the program wants.
            Some(EntityKind::Thread) => self.is_m(from),
            _ => false,
        }
    }

    /// Whether a thread of the kernel is one of a Go runtime.
    fn is_m(&self, thread: EntityId) -> bool {
        let pid_of = |id| Some(self.entities.get(self.entities.process_of(id)?)?.number);
        let ms = self.ms.get_or_init(|| {
            let mut ms: HashMap<i64, Vec<i64>> = HashMap::new();
            let threads = self.entities.iter().filter(|(_, e)| e.kind == EntityKind::GoThread);
            for (id, entity) in threads {
                ms.entry(entity.number).or_default().extend(pid_of(id));
            }
            ms
        });
        let number = self.entities.get(thread).map(|thread| thread.number);
        let pids = number.and_then(|number| ms.get(&number)).map_or(&[][..], Vec::as_slice);
        // That of a Go trace can be unknown.
        pids.iter().any(|pid| *pid < 0 || pid_of(thread) == Some(*pid))
    }

    /// The stop-the-world that a goroutine requested, if the world was stopped at this time.
    fn stopped_by(&self, goroutine: EntityId, at: Timestamp) -> Option<&'a Pause> {
        if self.entities.kind(goroutine) != Some(EntityKind::Goroutine) {
            return None;
        }
        let pause = self.history.pause(self.entities.process_of(goroutine)?, at)?;
        (pause.by == Some(goroutine) && at <= pause.end).then_some(pause)
    }

    /// The flow to `to` that ended a wait at this time.
    fn wake_up(&self, to: Option<EntityId>, at: Timestamp) -> Option<&ResolvedFlow> {
        let flows = to.map_or(&[][..], |to| self.history.flows_to(to));
        let after = flows.partition_point(|flow| flow.time < at);
        let mut flows = flows.get(after..)?.iter().take_while(|flow| flow.time == at);
        flows.find(|flow| flow.kind != FlowKind::Continues)
    }

    /// Whether a thread of a program caused a flow: it held a lock of the kernel, served a file
    /// system, or is the child of `vfork(2)`. An interrupt or a thread of the kernel does it for a
    /// disk.
    fn is_by_user(&self, flow: &ResolvedFlow) -> bool {
        /// The parent of all threads of the kernel.
        const KTHREADD: i64 = 2;
        let entities = self.entities;
        let Some((from, _)) = self.cause(flow) else { return false };
        let Some(process) = entities.process_of(from) else { return false };
        let Some(known) = entities.get(process) else { return false };
        let parent = known.parent.and_then(|parent| entities.get(parent));
        let has_program = [Attribute::CommandLine, Attribute::Executable, Attribute::Runtime]
            .into_iter()
            .any(|attribute| entities.attribute(process, attribute).is_some());
        known.number != KTHREADD
            && (has_program || parent.is_some_and(|parent| parent.number != KTHREADD))
    }

    /// The entity whose task others work on while this one waits, back to `start`: itself if it has
    /// one.
    fn worker(&self, step: Step, start: Timestamp) -> Option<EntityId> {
        let at = self.back.at();
        let has_task = self.history.has_task(step.entity, start, at);
        if has_task { Some(step.entity) } else { step.link.worker }
    }

    fn is_dotnet(&self, entity: EntityId) -> bool {
        self.entities.kind(entity) == Some(EntityKind::DotnetThread)
    }

    /// The wait for a lock that an interval of a thread is a part of, as the runtime reports it.
    fn lock_wait(&self, entity: EntityId, interval: &Interval) -> Option<&Span> {
        let thread = match interval.kind {
            EntityKind::Thread => interval.holder?,
            _ => entity,
        };
        let wait = self.history.lock_wait(thread, interval.start)?;
        Some(wait).filter(|wait| wait.end >= interval.end)
    }

    /// The holder of the lock that a thread waits for, before a time within the wait, and since when
    /// within the wait.
    fn holder(&self, wait: &Span, at: Timestamp) -> (Timestamp, Option<EntityId>) {
        let process = self.entities.process_of(wait.entity);
        let of = |lock| self.history.holder(self.entities, process, lock, at);
        let held = wait.lock.and_then(of);
        let (since, by) = held.map_or((wait.start, wait.of), |held| (held.since, held.by));
        (since.max(wait.start), by.filter(|by| *by != wait.entity))
    }

    /// The owner of the lock that a thread waits for, from `start` to `end` within the wait. It is not known
    /// after the thread was woken by another one, which had the lock and released it.
    fn owner(
        &self,
        wait: &Span,
        thread: Option<EntityId>,
        start: Timestamp,
        end: Timestamp,
    ) -> Option<EntityId> {
        let (since, by) = self.holder(wait, end);
        let flows = self.history.flows_to(thread.unwrap_or(wait.entity));
        let before = flows.partition_point(|flow| flow.time <= start).checked_sub(1);
        let last = before.and_then(|index| flows.get(index)).filter(|flow| flow.time > since);
        by.filter(|_| last.is_none_or(|flow| self.cause(flow).is_none()))
    }

    /// The entity that caused a flow, if it can be followed, and whether it is a thread that only
    /// did it for the runtime.
    fn cause(&self, flow: &ResolvedFlow) -> Option<(EntityId, bool)> {
        if matches!(flow.context, Context::HardIrq | Context::SoftIrq) {
            return None;
        }
        let from = flow.from?;
        match self.entities.kind(from)? {
            // It executed no goroutine: the thread itself, if the kernel's part was recorded.
            EntityKind::GoThread => flow.from_thread.map(|thread| (thread, true)),
            // Up to Go 1.21 the thread is unknown. Other goroutines had the P before.
            EntityKind::Proc => None,
            _ => Some((from, false)),
        }
    }

    /// A goroutine waited for a P: divided by what the P did on which it ran next. While the world was stopped, no P
    /// could run it: then by what those did that stopped it.
    fn runnable(&mut self, step: Step, index: usize, start: Timestamp) {
        let history = self.history;
        let process = self.entities.process_of(step.entity);
        let intervals = history.intervals(step.entity).get(index..).unwrap_or_default();
        let proc = match intervals {
            [interval, next, ..] if next.start == interval.end => next.proc,
            _ => None,
        };
        while self.back.at() > start {
            let at = self.back.at();
            let known = proc.and_then(|proc| history.before(proc, at));
            // Back to here the P alone says what the goroutine waited for.
            let mut lower = start;
            let pause = process.and_then(|process| history.pause(process, at));
            if let Some(pause) = pause.filter(|pause| pause.by != Some(step.entity)) {
                let late = pause.latest().filter(|stop| at <= stop.time);
                if let Some(stop) = late {
                    self.late(step, pause, stop, pause.by, start.max(pause.start));
                    continue;
                }
                let stopped = pause.latest().map_or(pause.start, |stop| stop.time);
                lower = start.max(if at > pause.end { pause.end } else { stopped });
                // The Ps continue one after the other.
                let continues = known.is_some_and(|(_, of_proc)| {
                    of_proc.end >= at
                        && of_proc.state == State::Running
                        && of_proc.holder != pause.by
                });
                if at <= pause.end && !continues && self.follow_requester(step, pause, lower) {
                    return;
                }
            }
            let (what, from) = match known {
                Some((_, of_proc)) if of_proc.end < at => (NO_PROC, of_proc.end),
                Some((_, of_proc)) if of_proc.state == State::Unknown => (NO_PROC, of_proc.start),
                Some((index, of_proc)) => {
                    let holder = of_proc.holder.filter(|holder| *holder != step.entity);
                    let taker = proc.and_then(|proc| self.taker(proc, index));
                    let kernel = match taker.map(|taker| taker.kernel) {
                        Some(waits @ Kernel::Runnable { .. }) => waits,
                        _ => of_proc.kernel,
                    };
                    let from = taker.map_or(of_proc.start, |taker| taker.start);
                    (What::WaitsForProc { proc, holder, kernel }, from.max(of_proc.start))
                }
                None => (NO_PROC, lower),
            };
            self.leaf(step, from.max(lower), what, None);
        }
    }

    /// The world is stopped, and a goroutine waits for a P, back to `lower`: continue with the requester.
    fn follow_requester(&mut self, step: Step, pause: &Pause, lower: Timestamp) -> bool {
        let Some(by) = pause.by else { return false };
        let link = Link {
            waiter: Some(step.entity),
            unblocker: Some(by),
            reason: pause.reason,
            stack: None,
            lock_owner: None,
            worker: self.worker(step, lower),
            is_proxy: false,
            is_work: true,
            stops: Some(pause.process),
        };
        self.back.follow(by, lower, link)
    }

    /// The pause that a goroutine or .NET thread has requested, and the one that it waits for, if it sleeps until all
    /// have stopped. Timers end the parts of this wait: they say nothing of its cause.
    fn requested(&self, entity: EntityId, interval: &Interval) -> Option<(&'a Pause, &'a Stop)> {
        if interval.kernel != Kernel::Sleeping {
            return None;
        }
        let requester = match interval.kind {
            EntityKind::Thread => interval.holder?,
            _ => entity,
        };
        let pause = self.history.pause(self.entities.process_of(requester)?, self.back.at())?;
        let stop = pause.latest().filter(|stop| self.back.at() <= stop.time)?;
        (pause.by == Some(requester)).then_some((pause, stop))
    }

    /// The world is about to stop, back to `lower`: divided by what the kernel did with the one that stopped last.
    /// That one is not followed: what it waits for later can be the same pause. The requester, or its thread, waits
    /// for it without an `unblocker` between.
    fn late(
        &mut self,
        step: Step,
        pause: &Pause,
        stop: &Stop,
        unblocker: Option<EntityId>,
        lower: Timestamp,
    ) {
        let worker = self.worker(step, lower);
        while self.back.at() > lower {
            let at = self.back.at();
            let interval = self.history.before(stop.entity, at).map(|(_, interval)| interval);
            let (what, from) = match interval {
                Some(interval) if interval.end >= at => (self.executed(interval), interval.start),
                Some(interval) => (What::Unknown, interval.end),
                None => (What::Unknown, lower),
            };
            let from = from.max(lower);
            let is_of_kernel = |id: &EntityId| self.entities.kind(*id) == Some(EntityKind::Thread);
            let thread = interval.and_then(|interval| interval.thread).filter(is_of_kernel);
            let entity = match self.entities.kind(stop.entity) {
                Some(EntityKind::Proc) => {
                    let holder = interval.and_then(|interval| interval.holder);
                    holder.or(thread).or(stop.holder).unwrap_or(stop.entity)
                }
                _ => stop.entity,
            };
            let piece = Piece {
                thread,
                depth: self.back.depth().saturating_add(1),
                waiter: Some(step.entity),
                unblocker: unblocker.or(Some(entity)),
                waiter_reason: pause.reason,
                ..Piece::new(from, at, entity, what)
            };
            self.pieces.push(Found { piece, worker, stops: Some(pause.process), item: None });
            self.back.explain(from);
        }
    }

    /// What the kernel did with the thread of a P or a .NET thread that executes as far as the runtime knows.
    fn executed(&self, interval: &Interval) -> What {
        match interval.kernel {
            Kernel::OnCpu { cpu } => What::OnCpu { cpu },
            Kernel::Runnable { occupant, is_preempted, .. } => {
                What::WaitsForCpu { occupant, is_preempted }
            }
            Kernel::Sleeping => What::Waits { context: Context::Unknown },
            Kernel::Blocked => What::Blocked,
            Kernel::Stopped => What::Stopped,
            Kernel::Unknown if interval.kind == EntityKind::DotnetThread => self.unknown(interval),
            Kernel::Unknown if interval.state == State::Running => What::Running,
            Kernel::Unknown | Kernel::Absent => What::Unknown,
        }
    }

    /// What the thread that takes an idle P does before that. A P is idle while that thread is awake
    /// and waits for a CPU.
    fn taker(&self, proc: EntityId, index: usize) -> Option<&Interval> {
        let intervals = self.history.intervals(proc).get(index..)?;
        let [idle, next, ..] = intervals else { return None };
        if idle.kernel != Kernel::Absent || next.start != idle.end {
            return None;
        }
        let (_, taker) = self.history.before(next.thread?, self.back.at())?;
        (taker.end >= self.back.at()).then_some(taker)
    }

    /// The kernel thread that executes a P up to this time; of an idle P the one that takes it.
    fn thread_of_proc(&self, proc: EntityId, at: Timestamp) -> Option<EntityId> {
        let (index, _) = self.history.before(proc, at)?;
        let intervals = self.history.intervals(proc).get(index..)?;
        let mut threads = intervals.iter().take(2).filter_map(|interval| interval.thread);
        threads.find(|thread| self.entities.kind(*thread) == Some(EntityKind::Thread))
    }

    /// Explains the time back to `start`.
    fn leaf(&mut self, step: Step, start: Timestamp, what: What, wait: Option<&Interval>) {
        let kernel_thread = |id| self.entities.kind(id) == Some(EntityKind::Thread);
        let interval = self.history.before(step.entity, self.back.at());
        let thread = interval.and_then(|(_, interval)| interval.thread);
        let thread = thread.filter(|thread| kernel_thread(*thread));
        let piece = Piece {
            thread,
            depth: self.back.depth(),
            reason: wait.map_or(TextId::EMPTY, |wait| wait.reason),
            waiter: step.link.waiter,
            unblocker: step.link.unblocker,
            waiter_reason: step.link.reason,
            waiter_stack: step.link.stack,
            waiter_lock_owner: step.link.lock_owner,
            stack: wait.and_then(|wait| wait.stack),
            ..Piece::new(start, self.back.at(), step.entity, what)
        };
        let (worker, stops) = (step.link.worker, step.link.stops);
        self.pieces.push(Found { piece, worker, stops, item: None });
        self.back.explain(start);
    }

    /// Divides a wait for a CPU, or for a P whose thread waits for one, into the time in which the
    /// cgroup was throttled, and the rest.
    fn throttled(&self, piece: Piece, throttles: &mut Throttles<'_>) -> [Option<Piece>; 2] {
        let whole = [Some(piece), None];
        let process_of = |entity| self.entities.process_of(entity);
        let (thread, process) = match piece.what {
            What::WaitsForCpu { .. } => (piece.thread, piece.thread.and_then(process_of)),
            // The thread of the P is one of the same process, whose trace may not record the process id.
            What::WaitsForProc { proc, kernel: Kernel::Runnable { .. }, .. } => {
                let thread = proc.and_then(|proc| self.thread_of_proc(proc, piece.end));
                (thread, thread.and_then(process_of).or_else(|| process_of(piece.entity)))
            }
            _ => (None, None),
        };
        let process = process.and_then(|process| self.entities.get(process));
        let Some((thread, process)) = thread.zip(process) else { return whole };
        let nanos = throttles.take(process.number, thread, piece.start, piece.end);
        if nanos <= 0 {
            return whole;
        }
        let cut = piece.start.saturating_add_nanos(nanos).min(piece.end);
        let first = Piece { end: cut, what: What::Throttled, ..piece };
        let rest = Piece { start: cut, ..piece };
        [Some(first), (cut < piece.end).then_some(rest)]
    }

    /// Divides a piece where spans begin and end, and appends the parts. Pieces are passed in time
    /// order.
    fn split(
        &self,
        found: Found,
        is_executing: bool,
        task: Option<EntityId>,
        spans: &mut Sweep<'_>,
        parts: &mut Vec<Part>,
    ) {
        let Found { piece, worker, stops: stopped, item } = found;
        let process = stopped.or_else(|| self.entities.process_of(piece.entity));
        // What the entity does meanwhile is no part of a work item or an await. What a worker works on is the context of
        // an item that it has not taken yet.
        let own = item.is_none().then_some(piece.entity);
        let at_work = (item != Some(SpanKind::Await)).then_some(piece.entity);
        let is_another = |other| task.is_none_or(|task| !self.history.is_part_of(other, task));
        // A stop-the-world holds back all that do not execute, except its requester. In .NET the requester
        // executes the stop and the GC for all.
        let stops = match self.entities.kind(piece.entity) {
            _ if stopped.is_some() || (item.is_some() && !is_executing) => Stops::All,
            // The requester is what the thread executes.
            Some(EntityKind::Thread) if !is_executing => {
                let interval = self.history.before(piece.entity, piece.end);
                let holder = interval.and_then(|(_, interval)| interval.holder);
                Stops::OfOthers(holder.unwrap_or(piece.entity))
            }
            _ if !is_executing => Stops::OfOthers(piece.entity),
            Some(EntityKind::DotnetThread) => Stops::Of(piece.entity),
            _ => Stops::None,
        };
        let mut start = piece.start;
        while start < piece.end {
            let involved = [process, at_work, worker].into_iter().flatten();
            let changes = involved.map(|entity| spans.advance(entity, start));
            let end = changes.fold(piece.end, Timestamp::min);
            let mut within = [process, own].into_iter().flatten();
            let during = within.find_map(|entity| spans.during(entity, stops));
            let working = || [process, at_work].into_iter().flatten();
            let works_on = working().chain(worker).find_map(|entity| spans.task(entity));
            // The subject itself works for another task only outside of this one.
            let is_for_other = match task {
                _ if piece.depth > 0 => true,
                Some(_) => !working().any(|entity| spans.has_own_task(entity)),
                None => false,
            };
            let is_for_all = is_executing
                && during.is_some_and(|span| {
                    span.kind == SpanKind::StopTheWorld && span.by == piece.entity
                });
            let context = works_on.filter(|other| is_for_other && is_another(*other));
            let lock = during.filter(|span| span.kind == SpanKind::LockWait);
            let part = Piece {
                start,
                end,
                during: during.map(|span| (span.kind, span.name)),
                lock_owner: lock.and_then(|wait| self.owner(wait, piece.thread, start, end)),
                context: context.filter(|_| !is_for_all),
                ..piece
            };
            append(Part { piece: part, is_sampled: item.is_none() }, parts);
            start = end;
        }
    }
}

/// Appends a part, or prolongs the last one if it differs in nothing else.
fn append(part: Part, parts: &mut Vec<Part>) {
    let Part { piece, is_sampled } = part;
    match parts.last_mut() {
        Some(Part { piece: last, is_sampled: known })
            if *known == is_sampled
                && (Piece { start: last.start, ..piece })
                    == (Piece { end: piece.end, ..*last }) =>
        {
            last.end = piece.end;
        }
        _ => parts.push(part),
    }
}

/// A goroutine waited for a P of which nothing is known.
const NO_PROC: What = What::WaitsForProc { proc: None, holder: None, kernel: Kernel::Unknown };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::Derived;
    use crate::entity::Entity;
    use crate::event::{Event, EventKind};
    use crate::tables::Tables;
    use proptest::prelude::*;
    use trace_common::divide;

    const KINDS: [SpanKind; 8] = [
        SpanKind::GcAssist,
        SpanKind::Jit,
        SpanKind::LockWait,
        SpanKind::StopTheWorld,
        SpanKind::Region,
        SpanKind::Task,
        SpanKind::Activity,
        SpanKind::Queued,
    ];

    /// A process, a .NET thread, goroutines, tasks and a thread of the kernel, and what is open when: entity, kind,
    /// beginner, task, begin, and maybe the duration.
    type SpanSteps = Vec<(usize, usize, usize, Option<usize>, i64, Option<i64>)>;

    /// What the thread of the kernel executes: until when since when, and the goroutine.
    const HELD: [(i64, i64, Option<usize>); 3] =
        [(0, 60, Some(2)), (60, 120, None), (120, 400, Some(3))];

    /// Up to this number of spans, of less than `nanos` nanoseconds each.
    fn steps(nanos: i64, number: usize) -> impl Strategy<Value = SpanSteps> {
        let task = proptest::option::of(4..6usize);
        let duration = proptest::option::weighted(0.9, 0..nanos);
        let step = (0..7usize, 0..8usize, 0..7usize, task, 0..100i64, duration);
        proptest::collection::vec(step, 0..number)
    }

    fn history(steps: &SpanSteps) -> (Tables, Vec<EntityId>, History) {
        let mut tables = Tables::new();
        let process = tables.entity(Entity::new(EntityKind::Process, 1));
        let mut entities: Vec<EntityId> = process.into_iter().collect();
        for number in 0..6 {
            let kind = match number {
                0 => EntityKind::DotnetThread,
                1 | 2 => EntityKind::Goroutine,
                3 | 4 => EntityKind::Task,
                _ => EntityKind::Thread,
            };
            entities.extend(tables.entity(Entity::new(kind, number).child_of(process)));
        }
        let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
        for (start, end, holder) in HELD {
            history.push(&Derived::Interval(Interval {
                subject: entities[6],
                kind: EntityKind::Thread,
                start: Timestamp::from_nanos(start),
                end: Timestamp::from_nanos(end),
                state: State::Running,
                reason: TextId::EMPTY,
                stack: None,
                thread: Some(entities[6]),
                proc: None,
                holder: holder.map(|place| entities[place]),
                kernel: Kernel::Unknown,
            }));
        }
        let mut push = |at: i64, kind| {
            let at = Timestamp::from_nanos(at);
            history.push(&Derived::Event(Event { time: at, kind }));
        };
        let id = |n: usize| entities[n % entities.len()];
        for (entity, kind, by, of, start, nanos) in steps.iter().copied() {
            let (span, kind) = (tables.new_span(), KINDS[kind % KINDS.len()]);
            let name = tables.text(format!("{span:?}").as_bytes());
            let (entity, by, of, stack) = (id(entity), Some(id(by)), of.map(id), None);
            push(start, EventKind::Begin { span, entity, kind, name, by, of, stack });
            if let Some(nanos) = nanos {
                push(start + nanos, EventKind::Finish { span, by, is_cut: false });
            }
        }
        history.finish();
        (tables, entities, history)
    }

    /// The parts of a piece, each of which is compared with all spans.
    fn simple(
        walk: &Walk<'_>,
        Found { piece, worker, stops, item }: Found,
        task: Option<EntityId>,
        parts: &mut Vec<Part>,
    ) {
        let of = |entity| walk.history.spans(entity).iter();
        let process = stops.or_else(|| walk.entities.process_of(piece.entity));
        let held = walk.history.intervals(piece.entity).iter().rfind(|i| i.start < piece.end);
        let requester = held.and_then(|interval| interval.holder).unwrap_or(piece.entity);
        let all = |ids: [Option<EntityId>; 2]| {
            ids.into_iter().flatten().flat_map(of).collect::<Vec<&Span>>()
        };
        let is_await = item == Some(SpanKind::Await);
        let spans = all([Some(piece.entity).filter(|_| item.is_none()), process]);
        let working = all([Some(piece.entity).filter(|_| !is_await), process]);
        let of_worker = all([worker, None]);
        let all = spans.iter().chain(&working).chain(&of_worker);
        let bounds = all.flat_map(|span| [span.start, span.end]);
        let is_executing = piece.what == What::Running;
        let is_dotnet = walk.entities.kind(piece.entity) == Some(EntityKind::DotnetThread);
        for (start, end) in divide(piece.start, piece.end, bounds) {
            let is_here = |span: &&&Span| span.start <= start && span.end >= end;
            let during = spans.iter().filter(is_here).rev().find(|span| match span.kind {
                SpanKind::StopTheWorld if stops.is_some() => true,
                SpanKind::StopTheWorld if item.is_some() && !is_executing => true,
                SpanKind::StopTheWorld if is_executing => is_dotnet && span.by == piece.entity,
                SpanKind::StopTheWorld => span.by != requester,
                kind => matches!(kind, SpanKind::GcAssist | SpanKind::Jit | SpanKind::LockWait),
            });
            let task_here =
                |spans: &[&Span]| spans.iter().filter(is_here).rev().find_map(|span| span.task());
            let works_on = task_here(&working).or_else(|| task_here(&of_worker));
            let is_another =
                |other: &EntityId| task.is_none_or(|task| !walk.history.is_part_of(*other, task));
            let is_ours = working.iter().filter(is_here).filter_map(|span| span.task());
            let is_ours = is_ours.into_iter().any(|task| !is_another(&task));
            let is_for_other = piece.depth > 0 || (task.is_some() && !is_ours);
            let is_for_all = is_executing
                && during.is_some_and(|span| {
                    span.kind == SpanKind::StopTheWorld && span.by == piece.entity
                });
            let context = works_on.filter(is_another).filter(|_| is_for_other && !is_for_all);
            let lock = during.filter(|span| span.kind == SpanKind::LockWait);
            let lock_owner = lock.and_then(|wait| wait.of.filter(|owner| *owner != wait.entity));
            let during = during.map(|span| (span.kind, span.name));
            let piece = Piece { start, end, during, lock_owner, context, ..piece };
            append(Part { piece, is_sampled: item.is_none() }, parts);
        }
    }

    proptest! {
        /// The spans that are swept once divide pieces as if each piece looked at all spans.
        #[test]
        fn pieces_are_divided_where_spans_begin_and_end(
            steps in steps(60, 30),
            cuts in proptest::collection::vec(
                (
                    (1..20i64, proptest::sample::select(vec![0, 1, 2, 3, 6]), any::<bool>(), 0..2u32),
                    (
                        proptest::option::of(0..4usize),
                        any::<bool>(),
                        proptest::sample::select(vec![
                            None,
                            Some(SpanKind::Queued),
                            Some(SpanKind::Await),
                        ]),
                    ),
                ),
                1..20,
            ),
            task in proptest::option::of(4..6usize),
        ) {
            let (tables, ids, history) = history(&steps);
            let at = Timestamp::from_nanos;
            let link = Link {
                waiter: None,
                unblocker: None,
                reason: TextId::EMPTY,
                stack: None,
                lock_owner: None,
                worker: None,
                is_proxy: false,
                is_work: false,
                stops: None,
            };
            let back = Back::new(ids[0], link, at(0), at(0));
            let entities = &tables.entities;
            let (history, pieces) = (&history, Vec::new());
            let walk = Walk { history, entities, ms: OnceCell::new(), pieces, back };
            let task = task.map(|n| ids[n]);
            let (mut time, mut spans) = (0, Sweep::new(history, task));
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            for ((nanos, entity, is_running, depth), (worker, is_stop, item)) in cuts {
                let what = if is_running { What::Running } else { What::Blocked };
                let piece = Piece::new(at(time), at(time + nanos), ids[entity], what);
                let (piece, worker) = (Piece { depth, ..piece }, worker.map(|n| ids[n]));
                let part = Found { piece, worker, stops: is_stop.then_some(ids[0]), item };
                walk.split(part, is_running, task, &mut spans, &mut found);
                simple(&walk, part, task, &mut expected);
                time += nanos;
            }
            prop_assert_eq!(found, expected);
        }

        /// A task that is open at some time is found.
        #[test]
        fn tasks_are_found_within_a_time(
            steps in steps(20, 10),
            start in 0..100i64,
            nanos in 1..30i64,
        ) {
            let (_, ids, history) = history(&steps);
            let [start, end] = [start, start + nanos].map(Timestamp::from_nanos);
            for id in ids {
                let mut spans = history.spans(id).iter().filter(|span| span.task().is_some());
                let expected = spans.any(|span| span.start < end && span.end > start);
                prop_assert_eq!(history.has_task(id, start, end), expected);
            }
        }

        /// The innermost wait for a lock that had begun is found.
        #[test]
        fn lock_waits_are_found_by_their_begin(steps in steps(20, 30), at in 0..100i64) {
            let (_, ids, history) = history(&steps);
            let at = Timestamp::from_nanos(at);
            for id in ids {
                let is_found = |s: &&Span| s.kind == SpanKind::LockWait && s.start <= at;
                let expected = history.spans(id).iter().rfind(is_found);
                prop_assert_eq!(history.lock_wait(id, at), expected);
            }
        }
    }
}
