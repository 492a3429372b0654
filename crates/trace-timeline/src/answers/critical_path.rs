//! The critical path of an interval, across the layers.

use super::history::{History, Span, Throttle};
use crate::correlate::{Interval, Kernel, Occupant, ResolvedFlow};
use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::{Context, FlowKind, SpanKind, State};
use crate::tables::{StackId, TextId};
use trace_common::Timestamp;

/// A piece of a [`CriticalPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// The start.
    pub begin: Timestamp,
    /// The end.
    pub end: Timestamp,
    /// The goroutine or thread whose time it is.
    pub entity: EntityId,
    /// The kernel thread that executed it, if that is known.
    pub thread: Option<EntityId>,
    /// What it did or waited for.
    pub what: What,
    /// How many waits lead from the subject to `entity`: 0 for the subject itself.
    pub depth: u32,
    /// Why it waited, as its runtime reports it; empty for other pieces.
    pub reason: TextId,
    /// Who waits for `entity` meanwhile.
    pub waiter: Option<EntityId>,
    /// Why that one waits.
    pub waiter_reason: TextId,
    /// Where that one stopped.
    pub waiter_stack: Option<StackId>,
    /// The garbage collector's or runtime's span that it is in.
    pub during: Option<(SpanKind, TextId)>,
    /// Another task that `entity` worked on: context of the wait, not its cause.
    pub context: Option<EntityId>,
    /// Where it stopped.
    pub stack: Option<StackId>,
}

impl Piece {
    /// The duration in nanoseconds.
    pub const fn nanos(&self) -> i64 {
        self.end.nanos_since(self.begin)
    }
}

/// What a piece of a critical path was spent on.
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
    /// Its thread waited for a CPU.
    WaitsForCpu {
        /// What that CPU executed meanwhile.
        occupant: Occupant,
        /// Whether the CPU was taken away from it.
        is_preempted: bool,
    },
    /// A goroutine waited for a P.
    WaitsForProc {
        /// The P on which it ran next.
        proc: Option<EntityId>,
        /// The goroutine that had that P meanwhile.
        holder: Option<EntityId>,
        /// What the kernel did with the thread of that P; [`Kernel::Absent`] if the P was idle.
        kernel: Kernel,
    },
    /// Its thread could have run, but the CPU quota of its cgroup was used up. The counters of the
    /// cgroup say for how long, not when: this part of a wait for a CPU is shown first.
    Throttled,
    /// A work item waited in the queue of the .NET thread pool for `entity` to take it.
    Queued {
        /// Number of workers that the pool added meanwhile because queued items did not start: the
        /// other workers were blocked. Above 0 this is thread-pool starvation.
        starvation: u32,
    },
    /// Its thread waited uninterruptibly: for a disk, a page or a lock of the kernel.
    Blocked,
    /// Its thread was stopped by a signal or a debugger.
    Stopped,
    /// Waited, and nobody is known who ended the wait: network, timer, interrupt, another machine.
    Waits {
        /// What the CPU that ended it executed.
        context: Context,
    },
    /// Not known: not recorded, or lost.
    Unknown,
}

/// The critical path of an interval of a subject: why it took as long as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CriticalPath {
    /// The goroutine or thread at the end of the interval.
    pub subject: EntityId,
    /// The start.
    pub begin: Timestamp,
    /// The end.
    pub end: Timestamp,
    /// The pieces, in time order. They partition the interval.
    pub pieces: Vec<Piece>,
}

/// Waits that lead from one entity to the next. A longer chain ends in a leaf.
const MAX_DEPTH: usize = 1 << 10;

/// Finds the critical path of `subject` from `begin` to `end`; `task` is the task that it works on,
/// if any.
///
/// It walks back from the end. A wait is divided by what the goroutine or thread did that ended
/// it, found in the same way, but never before the wait began. Each step goes back in time; of
/// events at the same time each is followed once, so there are no cycles. The number of steps is
/// that of the pieces. The history must contain the interval.
///
/// In .NET, a worker of the thread pool leads to the thread that queued its work item: what the
/// worker did before is other work. Of a subject itself this holds if there is a `task`.
pub fn critical_path(
    history: &History,
    entities: &Entities,
    subject: EntityId,
    begin: Timestamp,
    end: Timestamp,
    task: Option<EntityId>,
) -> CriticalPath {
    let mut walk = Walk { history, entities, pieces: Vec::new(), frames: Vec::new(), at: end };
    walk.frames.push(Frame {
        entity: subject,
        lower: begin,
        pushed: end,
        waiter: None,
        reason: TextId::EMPTY,
        stack: None,
        is_proxy: false,
        is_work: task.is_some(),
    });
    // Steps that follow a wait or a creation, without going back in time yet.
    let mut still = 0;
    while let Some(frame) = walk.frames.last().copied() {
        let before = walk.at;
        if walk.at <= frame.lower {
            walk.frames.pop();
        } else if still > 2 * MAX_DEPTH {
            walk.leaf(frame, frame.lower, What::Unknown, None);
        } else {
            walk.step(frame);
        }
        still = if walk.at < before { 0 } else { still + 1 };
    }
    let mut found = std::mem::take(&mut walk.pieces);
    found.reverse();
    let mut pieces = Vec::with_capacity(found.len());
    let mut throttles: Vec<(EntityId, Throttle)> = history.throttles(begin, end).collect();
    for piece in found {
        for part in walk.throttled(piece, &mut throttles).into_iter().flatten() {
            walk.split(part, task, &mut pieces);
        }
    }
    CriticalPath { subject, begin, end: end.max(begin), pieces }
}

struct Walk<'a> {
    history: &'a History,
    entities: &'a Entities,
    /// Latest first.
    pieces: Vec<Piece>,
    frames: Vec<Frame>,
    /// Everything after this time is explained.
    at: Timestamp,
}

/// An entity that is followed back to `lower`.
#[derive(Clone, Copy)]
struct Frame {
    entity: EntityId,
    lower: Timestamp,
    /// The time at which it was reached.
    pushed: Timestamp,
    waiter: Option<EntityId>,
    reason: TextId,
    /// Where the waiter stopped.
    stack: Option<StackId>,
    /// A thread that ended the wait for the runtime: what it did before it was woken itself has
    /// nothing to do with that wait.
    is_proxy: bool,
    /// It works for the subject or its waiter: a work item that it took ends what belongs to it.
    is_work: bool,
}

impl Walk<'_> {
    fn step(&mut self, frame: Frame) {
        let item = self.history.work_item(frame.entity, self.at).filter(|_| frame.is_work);
        let mut frame = frame;
        if let Some(item) = item {
            if item.end == self.at {
                return self.queued(frame, item);
            }
            frame.lower = frame.lower.max(item.end);
        }
        let Some((index, interval)) = self.history.before(frame.entity, self.at) else {
            return self.before_birth(frame);
        };
        if interval.end < self.at {
            // It had ended.
            return self.leaf(frame, interval.end.max(frame.lower), What::Unknown, None);
        }
        let begin = interval.begin.max(frame.lower);
        match interval.kernel {
            Kernel::OnCpu { cpu } => self.leaf(frame, begin, What::OnCpu { cpu }, None),
            Kernel::Runnable { occupant, is_preempted, .. } => {
                let what = What::WaitsForCpu { occupant, is_preempted };
                self.leaf(frame, begin, what, None);
            }
            Kernel::Sleeping => {
                let begin = self.wait_begin(frame, index);
                self.wait(frame, interval, interval.thread, begin);
            }
            Kernel::Blocked => self.leaf(frame, begin, What::Blocked, Some(interval)),
            Kernel::Stopped => self.leaf(frame, begin, What::Stopped, Some(interval)),
            Kernel::Unknown | Kernel::Absent => match interval.state {
                State::Running => self.leaf(frame, begin, What::Running, None),
                State::Syscall => self.leaf(frame, begin, What::Syscall, Some(interval)),
                State::Waiting => {
                    let begin = self.wait_begin(frame, index);
                    self.wait(frame, interval, Some(frame.entity), begin);
                }
                State::Runnable => self.runnable(frame, index, begin),
                State::Unknown | State::Idle => self.leaf(frame, begin, What::Unknown, None),
            },
        }
    }

    /// The work item of a worker was queued: continue with the thread that queued it.
    fn queued(&mut self, frame: Frame, item: &Span) {
        let begin = item.begin.max(frame.lower);
        let process = self.entities.process_of(frame.entity);
        while self.at > begin {
            let interval = self.history.before(frame.entity, self.at).map(|(_, interval)| interval);
            let interval = interval.filter(|interval| interval.end >= self.at);
            let since = interval.map_or(begin, |interval| interval.begin.max(begin));
            let what = match interval.map(|interval| interval.kernel) {
                Some(Kernel::Runnable { occupant, is_preempted, .. }) => {
                    What::WaitsForCpu { occupant, is_preempted }
                }
                _ => What::Queued {
                    starvation: process
                        .map_or(0, |process| self.history.starvation(process, since, self.at)),
                },
            };
            self.leaf(frame, since, what, None);
        }
        if begin > frame.lower || item.begin == frame.lower {
            if let Some(last) = self.frames.last_mut() {
                (last.entity, last.is_proxy, last.pushed) = (item.by, false, self.at);
            }
        }
    }

    /// The entity did not exist: continue with its creator.
    fn before_birth(&mut self, frame: Frame) {
        // The runtime mentions a thread later than the kernel.
        let first = self.history.intervals(frame.entity).first();
        let thread = first.and_then(|first| first.thread).filter(|thread| *thread != frame.entity);
        if let (Some(thread), Some(EntityKind::DotnetThread), Some(last)) =
            (thread, self.entities.kind(frame.entity), self.frames.last_mut())
        {
            last.entity = thread;
            return;
        }
        let creation = self.history.flows_to(frame.entity).first();
        let creator = creation.filter(|flow| flow.kind == FlowKind::Creates && flow.at <= self.at);
        let followed = creator.and_then(|flow| Some((flow.at, self.cause(flow)?)));
        match followed {
            Some((at, (creator, is_proxy))) if !self.is_tie(creator) => {
                if at < self.at {
                    self.leaf(frame, at.max(frame.lower), What::Unknown, None);
                }
                if let Some(last) = self.frames.last_mut() {
                    (last.entity, last.is_proxy, last.pushed) = (creator, is_proxy, self.at);
                }
            }
            _ => self.leaf(frame, frame.lower, What::Unknown, None),
        }
    }

    /// The begin of a wait. Something else may change during it, such as the P of a goroutine in a
    /// system call: then it has several intervals.
    fn wait_begin(&self, frame: Frame, index: usize) -> Timestamp {
        let intervals = self.history.intervals(frame.entity).get(..=index).unwrap_or_default();
        let mut begin = self.at;
        let mut later: Option<&Interval> = None;
        for interval in intervals.iter().rev() {
            let is_same = later.is_none_or(|later| {
                let is_wait = match later.kernel {
                    Kernel::Sleeping => interval.thread == later.thread,
                    _ => interval.state == State::Waiting,
                };
                is_wait && interval.kernel == later.kernel && interval.end == later.begin
            });
            if !is_same || begin <= frame.lower {
                break;
            }
            begin = interval.begin;
            later = Some(interval);
        }
        begin.max(frame.lower)
    }

    /// A wait that ended with a flow to `to`.
    fn wait(&mut self, frame: Frame, interval: &Interval, to: Option<EntityId>, begin: Timestamp) {
        let flows = to.map_or(&[][..], |to| self.history.flows_to(to));
        let after = flows.partition_point(|flow| flow.at < interval.end);
        let flow = flows.get(after).filter(|flow| flow.at == interval.end);
        let cause = flow.and_then(|flow| self.cause(flow));
        let owner = || Some((self.lock_owner(frame.entity, interval)?, false));
        let cause = if flow.is_some() { cause } else { owner() };
        if frame.is_proxy {
            let context = flow.map_or(Context::Unknown, |flow| flow.context);
            match (cause, self.frames.last_mut()) {
                (Some((cause, is_proxy)), Some(last)) if cause != frame.entity => {
                    (last.entity, last.is_proxy, last.pushed) = (cause, is_proxy, self.at);
                }
                _ => self.leaf(frame, frame.lower, What::Waits { context }, None),
            }
            return;
        }
        match cause {
            Some((cause, is_proxy)) if self.frames.len() < MAX_DEPTH && !self.is_tie(cause) => {
                self.frames.push(Frame {
                    entity: cause,
                    lower: begin,
                    pushed: self.at,
                    waiter: Some(frame.entity),
                    reason: interval.reason,
                    stack: interval.stack,
                    is_proxy,
                    is_work: true,
                });
            }
            _ => {
                let context = flow.map_or(Context::Unknown, |flow| flow.context);
                self.leaf(frame, begin, What::Waits { context }, Some(interval));
            }
        }
    }

    /// The owner of the lock that a .NET thread waited for, when the wait began. It is the cause if
    /// the kernel's scheduler was not recorded.
    fn lock_owner(&self, entity: EntityId, interval: &Interval) -> Option<EntityId> {
        let spans = self.history.spans(entity);
        let after = spans.partition_point(|span| span.begin <= interval.begin);
        let mut before = spans.get(..after)?.iter().rev();
        let wait = before.find(|span| span.kind == SpanKind::LockWait)?;
        wait.of.filter(|owner| wait.end >= interval.end && *owner != entity)
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
            _ => Some((from, false)),
        }
    }

    /// Whether an entity was already reached without going back in time.
    fn is_tie(&self, entity: EntityId) -> bool {
        let mut now = self.frames.iter().rev().take_while(|frame| frame.pushed == self.at);
        now.any(|frame| frame.entity == entity)
            || self.frames.last().is_some_and(|frame| frame.entity == entity)
    }

    /// A goroutine waited for a P: divided by what the P did on which it ran next.
    fn runnable(&mut self, frame: Frame, index: usize, begin: Timestamp) {
        let next = self.history.intervals(frame.entity).get(index + 1);
        let proc = next.and_then(|next| next.proc);
        while self.at > begin {
            let known = proc.and_then(|proc| self.history.before(proc, self.at));
            let (holder, kernel, from) = match known {
                Some((_, i)) if i.end >= self.at => (i.holder, i.kernel, i.begin),
                Some((_, i)) => (None, Kernel::Unknown, i.end),
                None => (None, Kernel::Unknown, begin),
            };
            let holder = holder.filter(|holder| *holder != frame.entity);
            let what = What::WaitsForProc { proc, holder, kernel };
            self.leaf(frame, from.max(begin), what, None);
        }
    }

    /// Explains the time back to `begin`.
    fn leaf(&mut self, frame: Frame, begin: Timestamp, what: What, wait: Option<&Interval>) {
        let kernel_thread = |id| self.entities.kind(id) == Some(EntityKind::Thread);
        let interval = self.history.before(frame.entity, self.at);
        let thread = interval.and_then(|(_, interval)| interval.thread);
        let thread = thread.filter(|thread| kernel_thread(*thread));
        self.pieces.push(Piece {
            begin,
            end: self.at,
            entity: frame.entity,
            thread,
            what,
            depth: u32::try_from(self.frames.len().saturating_sub(1)).unwrap_or(u32::MAX),
            reason: wait.map_or(TextId::EMPTY, |wait| wait.reason),
            waiter: frame.waiter,
            waiter_reason: frame.reason,
            waiter_stack: frame.stack,
            during: None,
            context: None,
            stack: wait.and_then(|wait| wait.stack),
        });
        self.at = begin;
    }

    /// Divides a wait for a CPU into the time in which the thread's cgroup was throttled, and the
    /// rest.
    fn throttled(
        &self,
        piece: Piece,
        throttles: &mut [(EntityId, Throttle)],
    ) -> [Option<Piece>; 2] {
        let whole = [Some(piece), None];
        let pid = |process| self.entities.get(process).map(|process| process.number);
        let thread = piece.thread.and_then(|thread| self.entities.process_of(thread));
        let (What::WaitsForCpu { .. }, Some(own)) = (piece.what, thread.and_then(pid)) else {
            return whole;
        };
        // A reading is about one or more waits, and a long wait may have several readings.
        let mut nanos: i64 = 0;
        for (_, throttle) in throttles.iter_mut().filter(|(process, _)| pid(*process) == Some(own))
        {
            let begin = throttle.begin.max(piece.begin);
            let overlap = throttle.end.min(piece.end).nanos_since(begin).max(0);
            let part = throttle.nanos.min(overlap).min(piece.nanos().saturating_sub(nanos));
            throttle.nanos -= part;
            nanos = nanos.saturating_add(part);
        }
        if nanos <= 0 {
            return whole;
        }
        let cut = piece.begin.saturating_add_nanos(nanos).min(piece.end);
        let first = Piece { end: cut, what: What::Throttled, ..piece };
        let rest = Piece { begin: cut, ..piece };
        [Some(first), (cut < piece.end).then_some(rest)]
    }

    /// Divides a piece where spans begin and end, and appends the parts.
    fn split(&self, piece: Piece, task: Option<EntityId>, pieces: &mut Vec<Piece>) {
        let of = |entity| self.history.spans_within(entity, piece.begin, piece.end);
        let own = of(piece.entity);
        let global = self.entities.process_of(piece.entity).map_or(&[][..], of);
        let is_relevant = |span: &&Span| {
            let is_kind = match span.kind {
                SpanKind::GcAssist | SpanKind::Jit | SpanKind::LockWait => true,
                SpanKind::Region | SpanKind::Task => piece.depth > 0,
                SpanKind::StopTheWorld => true,
                _ => false,
            };
            is_kind && span.begin < piece.end && span.end > piece.begin
        };
        let spans: Vec<&Span> = own.iter().chain(global).filter(is_relevant).collect();
        let mut cuts: Vec<Timestamp> = spans
            .iter()
            .flat_map(|span| [span.begin, span.end])
            .filter(|at| *at > piece.begin && *at < piece.end)
            .chain([piece.end])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut begin = piece.begin;
        for end in cuts {
            let here = || spans.iter().filter(|span| span.begin <= begin && span.end >= end);
            let is_executing = matches!(
                piece.what,
                What::OnCpu { .. } | What::Running | What::Syscall | What::WaitsForCpu { .. }
            );
            // A stop-the-world holds back whoever does not execute, except who requested it.
            let during = here().rev().find(|span| match span.kind {
                SpanKind::StopTheWorld => !is_executing && span.by != piece.entity,
                SpanKind::Region | SpanKind::Task => false,
                _ => true,
            });
            let works_on = here().rev().find_map(|span| match span.kind {
                SpanKind::Region => span.of,
                SpanKind::Task => Some(span.entity),
                _ => None,
            });
            let part = Piece {
                begin,
                end,
                during: during.map(|span| (span.kind, span.name)),
                context: works_on.filter(|other| Some(*other) != task && piece.depth > 0),
                ..piece
            };
            begin = end;
            match pieces.last_mut() {
                Some(last)
                    if (Piece { begin: last.begin, end: part.end, ..part })
                        == (Piece { end: part.end, ..*last }) =>
                {
                    last.end = part.end;
                }
                _ => pieces.push(part),
            }
        }
    }
}
