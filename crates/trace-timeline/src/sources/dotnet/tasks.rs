//! Tasks: the events of `System.Threading.Tasks.TplEventSource`.

use super::{DotnetSource, Lossy, MAX_OPEN, Open, Waiting, WorkItem};
use crate::entity::EntityId;
use crate::event::{EventKind, FlowKind, SpanKind, State, Value};
use crate::sources::pusher::{Begin, Pusher};
use crate::tables::TextId;
use hashbrown::{HashMap, HashSet};
use nettrace::Event as NetEvent;
use std::collections::BTreeSet;
use trace_common::Timestamp;

/// Numbers of the events.
mod id {
    pub(super) const SCHEDULED: u32 = 7;
    pub(super) const STARTED: u32 = 8;
    pub(super) const COMPLETED: u32 = 9;
    pub(super) const WAIT_BEGIN: u32 = 10;
    pub(super) const WAIT_END: u32 = 11;
    pub(super) const CONTINUATION_SCHEDULED: u32 = 12;
    pub(super) const CONTINUATION_COMPLETE: u32 = 13;
    pub(super) const OPERATION_BEGIN: u32 = 14;
    pub(super) const OPERATION_END: u32 = 15;
    pub(super) const WORK_BEGIN: u32 = 17;
    pub(super) const WORK_END: u32 = 18;
    pub(super) const CONTINUATION_STARTED: u32 = 19;
}

/// `TaskWaitBehavior.Synchronous`: the thread waits. The other one is an await.
const SYNCHRONOUS: i64 = 1;

/// `CausalitySynchronousWork.Execution`: the thread executes the task, not those that its end notifies.
const EXECUTION: i64 = 2;

/// Maximum number of tasks that a thread executes or waits for within each other.
const MAX_NESTED: usize = 256;

/// Maximum number of continuations of which only the thread that scheduled them is known.
const MAX_SCHEDULERS: usize = 1 << 12;

/// Maximum number of kinds of parts of a thread whose ends are awaited while they are not entered.
const MAX_SKIPPED: usize = 16;

/// The tasks that threads work on.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// What each thread does, the outermost first. Others than notifications have an open span, or are the execution of
    /// a part that has one: these are at most `2 * MAX_OPEN`.
    frames: HashMap<EntityId, Vec<Frame>>,
    /// The number of all of these. With [`MAX_OPEN`] or more, no notification is entered.
    entered: usize,
    /// The threads with any, in the order in which their outermost ones began.
    outermost: BTreeSet<(Timestamp, EntityId)>,
    /// The thread that executes a task.
    running: HashMap<(EntityId, i64), EntityId>,
    /// Tasks for which threads wait: the number of these threads, and the one that completed the task.
    awaited: HashMap<(EntityId, i64), (u32, Option<EntityId>)>,
    /// The names of operations that have begun, by the task.
    names: HashMap<(EntityId, i64), TextId>,
    /// Threads whose last work item came from a known thread.
    dispatched: HashSet<EntityId>,
    /// The threads that scheduled continuations of which maybe nothing says that they begin.
    schedulers: HashMap<(EntityId, i64), EntityId>,
    /// Parts that were not entered, as there are too many, by thread: their ends are not those of parts around them.
    skipped: HashMap<EntityId, HashMap<Part, u32>>,
    /// A bit for each number of an event of which there was one.
    seen: u32,
}

/// A part of what a thread does.
#[derive(Clone, Copy, Debug)]
struct Frame {
    part: Part,
    process: EntityId,
    task: i64,
    /// Whether it is that of its task among `Tasks::running`.
    is_running: bool,
    start: Timestamp,
}

/// What a thread does for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// Executes its delegate.
    Run,
    /// Executes a part of an asynchronous method.
    Execution,
    /// Executes the continuation of an await.
    Continuation,
    /// Notifies others of its end or progress: `CausalitySynchronousWork`.
    Notification(i64),
    /// Waits for it.
    Wait,
}

impl Part {
    /// The number of the event at its end.
    const fn end(self) -> u32 {
        match self {
            Self::Run => id::COMPLETED,
            Self::Execution | Self::Notification(_) => id::WORK_END,
            Self::Continuation => id::CONTINUATION_COMPLETE,
            Self::Wait => id::WAIT_END,
        }
    }
}

impl Tasks {
    /// Forgets what threads do, after a loss.
    pub(super) fn clear(&mut self) {
        *self = Self { seen: self.seen, ..Self::default() };
    }

    /// Notes that the current work item of a thread came from a known one, or not.
    pub(super) fn dispatch(&mut self, thread: EntityId, is_known: bool) {
        if is_known {
            self.dispatched.insert(thread);
        } else {
            self.dispatched.remove(&thread);
        }
    }

    /// Names the operation of a task. The end of some can be lost.
    fn name(&mut self, task: (EntityId, i64), name: TextId) {
        if self.names.len() >= MAX_OPEN {
            self.names.clear();
        }
        self.names.insert(task, name);
    }

    /// A part is not entered. The end of other kinds names its task.
    fn skip(&mut self, thread: EntityId, part: Part) {
        // Without a part around it, its end is that of none.
        let is_within = self.frames.contains_key(&thread);
        if !is_within || !matches!(part, Part::Execution | Part::Notification(_)) {
            return;
        }
        let parts = self.skipped.entry(thread).or_default();
        if parts.len() < MAX_SKIPPED || parts.contains_key(&part) {
            *parts.entry(part).or_default() += 1;
        }
    }

    fn frames(&self, thread: EntityId) -> &[Frame] {
        self.frames.get(&thread).map_or(&[], Vec::as_slice)
    }

    /// Whether a thread waits for a task.
    pub(super) fn is_waiting(&self, thread: EntityId) -> bool {
        self.frames(thread).last().is_some_and(|frame| frame.part == Part::Wait)
    }

    /// Whether a thread waits for a task in its innermost part, which has this depth.
    pub(super) fn waits_at(&self, thread: EntityId, depth: usize) -> bool {
        self.is_waiting(thread) && self.frames(thread).len() == depth + 1
    }

    /// The threads that wait for a task, in order.
    pub(super) fn waiting(&self) -> Vec<EntityId> {
        let threads = self.frames.keys().copied().filter(|thread| self.is_waiting(*thread));
        let mut threads: Vec<EntityId> = threads.collect();
        threads.sort_unstable();
        threads
    }

    /// Those of these threads with parts that began before a time, in order.
    pub(super) fn before(&self, time: Timestamp, lossy: Lossy) -> Vec<EntityId> {
        match lossy {
            Lossy::All => {
                let began = self.outermost.iter().take_while(|(start, _)| *start < time);
                let mut threads: Vec<EntityId> = began.map(|(_, thread)| *thread).collect();
                threads.sort_unstable();
                threads
            }
            Lossy::One(thread) => {
                let began = |thread: &EntityId| {
                    self.frames(*thread).first().is_some_and(|outermost| outermost.start < time)
                };
                thread.filter(began).into_iter().collect()
            }
        }
    }

    /// Whether a thread executes code that others know: then what begins there follows from it.
    fn is_executing(&self, thread: EntityId) -> bool {
        let mut frames = self.frames(thread).iter();
        frames.any(|frame| !matches!(frame.part, Part::Notification(_)))
    }

    /// Adds the innermost part of a thread.
    fn push(&mut self, part: Part, task: i64, of: Of, start: Timestamp) {
        let Of { process, thread } = of;
        let mut is_running = false;
        if matches!(part, Part::Run | Part::Execution) {
            let known = self.running.entry((process, task));
            is_running = matches!(known, hashbrown::hash_map::Entry::Vacant(_));
            known.or_insert(thread);
        }
        if part == Part::Wait {
            self.awaited.entry((process, task)).or_insert((0, None)).0 += 1;
        }
        let frame = Frame { part, process, task, is_running, start };
        let frames = self.frames.entry(thread).or_default();
        if frames.is_empty() {
            self.outermost.insert((start, thread));
        }
        frames.push(frame);
        self.entered += 1;
    }

    /// Removes the innermost part of a thread.
    fn pop(&mut self, thread: EntityId) {
        // These were within it.
        self.skipped.remove(&thread);
        let Some(frames) = self.frames.get_mut(&thread) else { return };
        let Some(Frame { part, process, task, is_running, start }) = frames.pop() else { return };
        if frames.is_empty() {
            self.frames.remove(&thread);
            self.outermost.remove(&(start, thread));
        }
        self.entered -= 1;
        if is_running {
            self.running.remove(&(process, task));
        }
        if part == Part::Wait {
            let key = (process, task);
            if let Some((waiters, _)) = self.awaited.get_mut(&key) {
                *waiters -= 1;
                if *waiters == 0 {
                    self.awaited.remove(&key);
                }
            }
        }
    }
}

/// The thread and process of an event.
#[derive(Clone, Copy)]
struct Of {
    process: EntityId,
    thread: EntityId,
}

impl DotnetSource {
    /// An event of `TplEventSource`.
    pub(super) fn task(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let of = Of { process, thread };
        if self.task_event(event, of, push).is_none() {
            self.undecodable(event, thread, "a field is missing", push);
        }
    }

    /// `None` if a field is missing.
    fn task_event(&mut self, event: &NetEvent<'_>, of: Of, push: &mut Pusher<'_>) -> Option<()> {
        let Of { process, thread } = of;
        let number = |place| event.field_at(place)?.as_i64();
        if event.id() < u32::BITS {
            self.tasks.seen |= 1 << event.id();
        }
        match event.id() {
            id::SCHEDULED => {
                let task = number(2)?;
                if self.can_see(&[id::STARTED, id::WORK_BEGIN]) {
                    let name = self.task_name(process, task, b"task", push);
                    self.enqueue_task(
                        event,
                        Waiting::Task(task),
                        (SpanKind::Queued, name),
                        of,
                        push,
                    );
                }
            }
            id::STARTED => {
                let task = number(2)?;
                self.dequeue_task(task, of, push);
                self.enter(event, Part::Run, task, of, push);
            }
            id::COMPLETED => {
                let task = number(2)?;
                let has_failed = number(3).is_some_and(|failed| failed != 0);
                self.completes(task, of);
                self.leave(Part::Run, Some(task), has_failed, of, push);
            }
            id::WAIT_BEGIN => {
                let task = number(2)?;
                if number(3)? == SYNCHRONOUS {
                    self.enter(event, Part::Wait, task, of, push);
                } else if self.can_see(&[id::WAIT_END]) {
                    let name = self.task_name(process, task, b"task", push);
                    self.enqueue_task(
                        event,
                        Waiting::Await(task),
                        (SpanKind::Await, name),
                        of,
                        push,
                    );
                }
            }
            id::WAIT_END => self.wait_ends(event, number(2)?, of, push),
            id::CONTINUATION_SCHEDULED => {
                let (task, continuation) = (number(1)?, number(2)?);
                if self.can_see(&[id::CONTINUATION_STARTED, id::WAIT_END]) {
                    self.schedule_continuation(event, task, continuation, of, push);
                }
            }
            id::CONTINUATION_STARTED => {
                let continuation = number(0)?;
                self.dequeue_task(continuation, of, push);
                let by = self.tasks.schedulers.remove(&(process, continuation));
                if let Some(by) = by.filter(|by| *by != thread) {
                    push.flow(FlowKind::Continues, by, thread);
                }
                self.enter(event, Part::Continuation, continuation, of, push);
            }
            id::CONTINUATION_COMPLETE => {
                self.leave(Part::Continuation, Some(number(0)?), false, of, push);
            }
            id::OPERATION_BEGIN => {
                let (task, name) = (number(0)?, event.field_at(1)?);
                if self.can_see(&[id::OPERATION_END]) {
                    let key = Open::Operation(process, task);
                    self.make_room(key, push);
                    let name = push.tables.text(name.to_string().as_bytes());
                    self.tasks.name((process, task), name);
                    let stack = self.stack(event, push);
                    let start = Begin::named(process, SpanKind::Operation, name).by(Some(thread));
                    push.argument(TASK, Value::Int(task));
                    self.begin(key, start.stack(stack), push);
                }
            }
            id::OPERATION_END => {
                let (task, status) = (number(0)?, number(1)?);
                self.completes(task, of);
                let key = Open::Operation(process, task);
                // AsyncCausalityStatus
                let status: Option<&[u8]> = match status {
                    2 => Some(b"canceled"),
                    3 => Some(b"error"),
                    _ => None,
                };
                if let Some(status) = status.filter(|_| self.open.contains(key)) {
                    push.text(b"status", status);
                }
                self.close(key, Some(thread), push);
                self.tasks.names.remove(&(process, task));
            }
            id::WORK_BEGIN => {
                let (task, work) = (number(0)?, number(1)?);
                if work == EXECUTION {
                    self.dequeue_task(task, of, push);
                    self.enter(event, Part::Execution, task, of, push);
                } else {
                    self.enter(event, Part::Notification(work), task, of, push);
                }
            }
            id::WORK_END => {
                let work = number(0)?;
                let is_execution = work == EXECUTION;
                let part = if is_execution { Part::Execution } else { Part::Notification(work) };
                self.leave(part, None, false, of, push);
            }
            _ => {
                self.skip(event);
            }
        }
        Some(())
    }

    /// Whether the trace has one of these events, as far as it is known: without, nothing says when something ends.
    fn can_see(&self, numbers: &[u32]) -> bool {
        let seen = self.names.tasks();
        seen == 0 || numbers.iter().any(|number| seen & (1 << number) != 0)
    }

    /// The name of the operation of a task, if it is known.
    fn task_name(
        &self,
        process: EntityId,
        task: i64,
        otherwise: &[u8],
        push: &mut Pusher<'_>,
    ) -> TextId {
        let known = self.tasks.names.get(&(process, task));
        known.copied().unwrap_or_else(|| push.tables.text(otherwise))
    }

    /// A task or continuation is scheduled, or a task is awaited.
    fn enqueue_task(
        &mut self,
        event: &NetEvent<'_>,
        key: Waiting,
        (kind, name): (SpanKind, TextId),
        of: Of,
        push: &mut Pusher<'_>,
    ) {
        let Of { process, thread } = of;
        let (Waiting::Task(task) | Waiting::Await(task) | Waiting::Item(task)) = key;
        self.make_room_in_queue(push);
        let (stack, activity) = (self.stack(event, push), self.activity_of(event));
        let start = Begin::named(process, kind, name).by(Some(thread)).of(activity).stack(stack);
        push.argument(TASK, Value::Int(task));
        self.enqueue((process, key), start, thread, push);
    }

    /// A continuation is scheduled. The task is the awaited one, or more often the one that the thread executes:
    /// then nothing says which await continues, and no event follows about the continuation.
    fn schedule_continuation(
        &mut self,
        event: &NetEvent<'_>,
        task: i64,
        continuation: i64,
        of: Of,
        push: &mut Pusher<'_>,
    ) {
        let Of { process, thread } = of;
        let is_executed =
            self.tasks.frames(thread).iter().any(|frame| {
                frame.part == Part::Run && (frame.process, frame.task) == (process, task)
            });
        let awaits = self.queued.get_mut(&(process, Waiting::Await(task)));
        // They get their continuations in order.
        let of_await = awaits.filter(|_| !is_executed).and_then(|awaits| {
            awaits.get_mut(awaits.partition_point(|item| item.continuation.is_some()))
        });
        let is_awaited = of_await.is_some();
        if let Some(item) = of_await {
            item.continuation = Some(continuation);
        }
        if is_awaited || self.names.begins(event.pid(), continuation) {
            let name = push.tables.text(b"continuation");
            let key = Waiting::Task(continuation);
            return self.enqueue_task(event, key, (SpanKind::Queued, name), of, push);
        }
        if self.tasks.schedulers.len() >= MAX_SCHEDULERS {
            self.tasks.schedulers.clear();
        }
        self.tasks.schedulers.insert((process, continuation), thread);
    }

    /// A task or continuation that was scheduled begins on a thread.
    fn dequeue_task(&mut self, task: i64, of: Of, push: &mut Pusher<'_>) {
        if let Some(item) = self.dequeue((of.process, Waiting::Task(task))) {
            self.hand_over(item, of.thread, push);
        }
    }

    fn hand_over(&mut self, item: WorkItem, thread: EntityId, push: &mut Pusher<'_>) {
        let WorkItem { span, by, .. } = item;
        // Within other work, e.g. a wait for it, it begins because of that.
        let is_taken = by != thread && !self.tasks.is_executing(thread);
        let taker = is_taken.then_some(thread);
        push.event(EventKind::Finish { span, by: taker, is_cut: false });
        if by != thread {
            push.flow(FlowKind::Continues, by, thread);
        }
    }

    /// A wait for a task ends on its thread, or an await on the thread that continues.
    fn wait_ends(&mut self, event: &NetEvent<'_>, task: i64, of: Of, push: &mut Pusher<'_>) {
        let Of { process, thread } = of;
        let mut parts = self.tasks.frames(thread).iter().rev();
        let nearest = parts.find(|frame| {
            (frame.process, frame.task) == (process, task)
                && matches!(frame.part, Part::Wait | Part::Run)
        });
        // Continuations of a task that its waiter executes itself are no end of the wait.
        if nearest.is_some_and(|frame| frame.part == Part::Wait) {
            let key = (process, task);
            let completed_by = self.tasks.awaited.get(&key).and_then(|(_, by)| *by);
            let by = completed_by.or_else(|| self.tasks.running.get(&key).copied());
            if let Some(by) = by.filter(|by| *by != thread) {
                push.flow(FlowKind::Wakes, by, thread);
            }
            self.leave(Part::Wait, Some(task), false, of, push);
            return;
        }
        if let Some(item) = self.dequeue((process, Waiting::Await(task))) {
            let continuation = item.continuation.map(Waiting::Task);
            let scheduled = continuation.and_then(|key| self.dequeue((process, key)));
            let is_caused = scheduled.is_some()
                || self.tasks.is_executing(thread)
                || self.tasks.dispatched.contains(&thread);
            let taker = (!is_caused && item.by != thread).then_some(thread);
            push.event(EventKind::Finish { span: item.span, by: taker, is_cut: false });
            match scheduled {
                Some(scheduled) => self.hand_over(scheduled, thread, push),
                None if item.by != thread => push.flow(FlowKind::Continues, item.by, thread),
                None => {}
            }
        }
        self.enter(event, Part::Continuation, task, of, push);
    }

    /// A thread completes a task.
    fn completes(&mut self, task: i64, of: Of) {
        if let Some((_, by)) = self.tasks.awaited.get_mut(&(of.process, task)) {
            by.get_or_insert(of.thread);
        }
    }

    /// A thread begins a part of a task, within what it did.
    fn enter(
        &mut self,
        event: &NetEvent<'_>,
        part: Part,
        task: i64,
        of: Of,
        push: &mut Pusher<'_>,
    ) {
        let Of { process, thread } = of;
        if !self.can_see(&[part.end()]) {
            return;
        }
        // Maybe the trace has no ends: the one before has ended.
        if self.names.tasks() == 0 && self.tasks.seen & (1 << part.end()) == 0 {
            let place = self.tasks.frames(thread).iter().position(|frame| frame.part == part);
            if let Some(place) = place {
                self.unwind(thread, place, push);
            }
        }
        let frames = self.tasks.frames(thread);
        let depth = frames.len();
        let is_notification = matches!(part, Part::Notification(_));
        if depth >= MAX_NESTED || is_notification && self.tasks.entered >= MAX_OPEN {
            self.stats.unpaired += 1;
            self.tasks.skip(thread, part);
            return;
        }
        let is_same = |frame: &Frame| {
            frame.part == Part::Run && (frame.process, frame.task) == (process, task)
        };
        let (kind, otherwise) = match part {
            Part::Run => (Some(SpanKind::TaskRun), &b"task"[..]),
            // The same as the task's own.
            Part::Execution if frames.last().is_some_and(is_same) => (None, &b""[..]),
            Part::Execution => (Some(SpanKind::TaskRun), &b"task"[..]),
            Part::Continuation => (Some(SpanKind::TaskRun), &b"continuation"[..]),
            Part::Wait => (Some(SpanKind::TaskWait), &b"task"[..]),
            Part::Notification(_) => (None, &b""[..]),
        };
        if let Some(kind) = kind {
            self.make_room(Open::Task(thread, depth), push);
            // That can end what the thread does.
            let key = Open::Task(thread, self.tasks.frames(thread).len());
            let name = match part {
                Part::Continuation => push.tables.text(otherwise),
                _ => self.task_name(process, task, otherwise, push),
            };
            let (stack, activity) = (self.stack(event, push), self.activity_of(event));
            push.argument(TASK, Value::Int(task));
            let start = Begin::named(thread, kind, name).of(activity).stack(stack);
            self.begin(key, start, push);
        }
        let was_waiting = self.tasks.is_waiting(thread);
        self.tasks.push(part, task, of, push.at);
        self.task_state(thread, was_waiting, push);
    }

    /// The end of a part: the innermost of this task, or of any.
    fn leave(
        &mut self,
        part: Part,
        task: Option<i64>,
        has_failed: bool,
        of: Of,
        push: &mut Pusher<'_>,
    ) {
        let Of { process, thread } = of;
        let skipped = self.tasks.skipped.get_mut(&thread).and_then(|parts| parts.get_mut(&part));
        if let Some(count) = skipped.filter(|count| **count > 0) {
            *count -= 1;
            return;
        }
        let is_it = |frame: &Frame| {
            frame.part == part
                && frame.process == process
                && task.is_none_or(|task| task == frame.task)
        };
        // It began before the trace.
        let Some(place) = self.tasks.frames(thread).iter().rposition(is_it) else { return };
        self.unwind(thread, place + 1, push);
        let was_waiting = self.tasks.is_waiting(thread);
        let key = Open::Task(thread, place);
        if has_failed && self.open.contains(key) {
            push.argument(b"failed", Value::Bool(true));
        }
        self.close(key, None, push);
        self.tasks.pop(thread);
        self.task_state(thread, was_waiting, push);
    }

    /// Ends all parts of a thread from this one on: their ends were lost.
    pub(super) fn unwind(&mut self, thread: EntityId, place: usize, push: &mut Pusher<'_>) {
        let was_waiting = self.tasks.is_waiting(thread);
        while let Some(depth) = self.tasks.frames(thread).len().checked_sub(1) {
            if depth < place {
                break;
            }
            self.cut_span(Open::Task(thread, depth), push);
            self.tasks.pop(thread);
        }
        self.task_state(thread, was_waiting, push);
    }

    /// The state of a thread, if it has changed.
    fn task_state(&self, thread: EntityId, was_waiting: bool, push: &mut Pusher<'_>) {
        if self.tasks.is_waiting(thread) != was_waiting {
            self.resume(thread, push);
        }
    }

    /// The state of a thread that does not wait for anything else.
    pub(super) fn resume(&self, thread: EntityId, push: &mut Pusher<'_>) {
        if !self.tasks.is_waiting(thread) {
            return push.state(thread, State::Running, None);
        }
        push.waits(thread, b"task", None);
    }
}

/// The argument with the number of a task.
const TASK: &[u8] = b"task id";
