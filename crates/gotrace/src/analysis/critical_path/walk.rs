//! The walk back in time, on the history of a Go trace.

use super::history::{Goroutine, History, Interval, Key, Span, SpanKind, Spans, Use};
use super::{CriticalPath, Occupant, PathGoroutine, PathPiece, PathState, Request};
use crate::analysis::{Frame, Name, RangeKind};
use crate::id::{GoId, GoState, TaskId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use trace_common::{Timestamp, Walk as Back};

/// Stacks whose frames were collected, by their number.
#[derive(Debug, Default)]
pub(super) struct Resolved(HashMap<u32, Arc<[Frame]>>);

/// A piece before names are looked up.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    begin: Timestamp,
    end: Timestamp,
    entity: Key,
    what: What,
    depth: u32,
    /// Where it stopped, and why.
    stop: Stop,
    waiter: Option<Key>,
    waiter_stop: Stop,
    during: Option<RangeKind>,
    context: Option<(TaskId, Name)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Running,
    Syscall,
    Runnable(crate::id::ProcId, Use),
    Waits,
    Unknown,
}

/// A place in the history: the interval of a goroutine.
type Stop = Option<(Key, usize)>;

/// What led to a goroutine: the wait of another one.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    stop: Stop,
    /// The nearest waiter that worked on a task: what is done for it is done for that task.
    worker: Option<Key>,
}

type Step = trace_common::Step<Key, Link>;

struct Walk<'a> {
    history: &'a History,
    back: Back<Key, Link>,
    /// Latest first, each with its [`Link::worker`].
    pieces: Vec<(Piece, Option<Key>)>,
}

pub(super) fn path(history: &History, request: Request, stacks: &mut Resolved) -> CriticalPath {
    let subject = history.find(request.goroutine, request.end);
    let (start, end) = (request.start, request.end);
    let names = Names { history, stacks };
    let Some(key) = subject else {
        let subject = PathGoroutine { id: request.goroutine, entry: Name::default() };
        let pieces = if start < end { vec![unknown(&request, &subject)] } else { Vec::new() };
        return CriticalPath { request, subject, pieces };
    };
    let back = Back::new(key, Link::default(), start, end);
    let mut walk = Walk { history, back, pieces: Vec::new() };
    while let Some(step) = walk.back.next_step() {
        if step.is_stuck {
            walk.leaf(step, step.lower, What::Unknown, None);
        } else {
            walk.step(step);
        }
    }
    let task = request.task();
    let mut pieces: Vec<Piece> = Vec::with_capacity(walk.pieces.len());
    let mut spans = Sweep::new(history, start, task);
    for (piece, worker) in walk.pieces.into_iter().rev() {
        spans.split(piece, worker, &mut pieces);
    }
    names.path(request, key, pieces)
}

/// The whole of a request about whose goroutine nothing is known.
fn unknown(request: &Request, subject: &PathGoroutine) -> PathPiece {
    PathPiece {
        start: request.start,
        end: request.end,
        goroutine: subject.clone(),
        what: PathState::Unknown,
        depth: 0,
        reason: Name::default(),
        stack: Arc::default(),
        samples: 0,
        waiter: None,
        waiter_reason: Name::default(),
        waiter_stack: Arc::default(),
        during: None,
        context: None,
    }
}

impl Walk<'_> {
    fn step(&mut self, step: Step) {
        let at = self.back.at();
        let Some(goroutine) = self.history.goroutine(step.entity) else {
            return self.leaf(step, step.lower, What::Unknown, None);
        };
        let Some((index, interval)) = goroutine.before(at) else {
            return self.before_creation(step, goroutine);
        };
        if let Some(ended) = goroutine.ended.filter(|ended| *ended < at) {
            return self.leaf(step, ended.max(step.lower), What::Unknown, None);
        }
        let begin = interval.begin.max(step.lower);
        let stop = Some((step.entity, index));
        match interval.state {
            GoState::Running => self.leaf(step, begin, What::Running, None),
            GoState::Syscall => self.leaf(step, begin, What::Syscall, stop),
            GoState::Waiting => self.wait(step, goroutine, index),
            GoState::Runnable => self.runnable(step, goroutine, index, begin),
            _ => self.leaf(step, begin, What::Unknown, None),
        }
    }

    /// The goroutine did not exist: continue with its creator.
    fn before_creation(&mut self, step: Step, goroutine: &Goroutine) {
        let created = goroutine.created.filter(|(at, _)| *at <= self.back.at());
        match created {
            Some((at, Some(creator))) if !self.back.is_followed(creator) => {
                if at < self.back.at() {
                    self.leaf(step, at.max(step.lower), What::Unknown, None);
                }
                self.back.turn(creator, |_| ());
            }
            _ => self.leaf(step, step.lower, What::Unknown, None),
        }
    }

    /// A wait: continue with the goroutine that ended it.
    fn wait(&mut self, step: Step, goroutine: &Goroutine, index: usize) {
        let before = goroutine.intervals.get(..index).unwrap_or_default();
        let waits = |interval: &&Interval| interval.state == GoState::Waiting;
        let first = index - before.iter().rev().take_while(waits).count();
        let begin = goroutine.intervals.get(first).map_or(step.lower, |first| first.begin);
        let begin = begin.max(step.lower);
        let stop = Some((step.entity, index));
        let next = goroutine.intervals.get(index + 1);
        let by = next.filter(|next| next.begin <= self.back.at()).and_then(|next| next.by);
        let has_task = goroutine.has_task(begin, self.back.at());
        let worker = if has_task { Some(step.entity) } else { step.link.worker };
        if !by.is_some_and(|by| self.back.follow(by, begin, Link { stop, worker })) {
            self.leaf(step, begin, What::Waits, stop);
        }
    }

    /// A wait for a P: divided by what the P did on which the goroutine ran next.
    fn runnable(&mut self, step: Step, goroutine: &Goroutine, index: usize, begin: Timestamp) {
        let next = goroutine.intervals.get(index + 1).filter(|next| next.state == GoState::Running);
        let proc = next.map_or(crate::id::ProcId::NONE, |next| next.proc);
        while self.back.at() > begin {
            let used = self.history.proc(proc, self.back.at());
            let (used, from) = used.unwrap_or((Use::Between, begin));
            let used = if used == Use::Goroutine(step.entity) { Use::Between } else { used };
            self.leaf(step, from.max(begin), What::Runnable(proc, used), None);
        }
    }

    /// Explains the time back to `begin`.
    fn leaf(&mut self, step: Step, begin: Timestamp, what: What, stop: Stop) {
        let piece = Piece {
            begin,
            end: self.back.at(),
            entity: step.entity,
            what,
            depth: self.back.depth(),
            stop,
            waiter: step.link.stop.map(|(waiter, _)| waiter),
            waiter_stop: step.link.stop,
            during: None,
            context: None,
        };
        self.pieces.push((piece, step.link.worker));
        self.back.explain(begin);
    }
}

/// The open spans of goroutines and of the program, forward in time. Each span is opened and closed
/// once, however many pieces of a path there are.
struct Sweep<'a> {
    history: &'a History,
    /// That of the request, if it is one.
    task: Option<TaskId>,
    goroutines: HashMap<Key, Open<'a>>,
    pauses: Open<'a>,
}

/// Open spans, by their position: inner ones are later.
struct Open<'a> {
    spans: &'a [Span],
    /// The position of the first span that begins later.
    next: usize,
    ends: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// Assists and stops of the world.
    runtime: BTreeMap<usize, &'a Span>,
    tasks: BTreeMap<usize, Work<'a>>,
    /// How many of these tasks are a part of that of the request.
    own_tasks: usize,
}

/// Work for a task.
#[derive(Clone, Copy)]
struct Work<'a> {
    task: TaskId,
    name: &'a Name,
    /// Whether the task is no part of that of the request.
    is_another: bool,
}

impl<'a> Sweep<'a> {
    fn new(history: &'a History, from: Timestamp, task: Option<TaskId>) -> Self {
        let pauses = Open::new(&history.pauses, from);
        Self { history, task, goroutines: HashMap::new(), pauses }
    }

    /// Divides a piece, which is not earlier than those before, where spans begin and end, and
    /// appends the parts.
    fn split(&mut self, piece: Piece, worker: Option<Key>, pieces: &mut Vec<Piece>) {
        let (history, task) = (self.history, self.task);
        let Some(goroutine) = history.goroutine(piece.entity) else {
            return pieces.push(piece);
        };
        let worker = worker.and_then(|key| Some((key, history.goroutine(key)?)));
        let is_another = |id: TaskId| task.is_none_or(|task| !history.is_part_of(id, task));
        // A stop-the-world holds back goroutines that do not execute, except the one that
        // requested it.
        let is_executing = matches!(piece.what, What::Running | What::Syscall);
        let mut begin = piece.begin;
        while begin < piece.end {
            let own = self.goroutines.entry(piece.entity);
            let own = own.or_insert_with(|| Open::new(&goroutine.spans, begin));
            let mut end = piece.end.min(own.advance(begin, is_another));
            let mut during = None;
            if !is_executing {
                end = end.min(self.pauses.advance(begin, is_another));
                during = self.pauses.stop(piece.entity);
            }
            if during.is_none() && !own.runtime.is_empty() {
                during = Some(RangeKind::GcMarkAssist);
            }
            // The subject itself works for another task only outside of this one.
            let is_for_other = piece.depth > 0 || task.is_some() && own.own_tasks == 0;
            let mut work = own.work();
            if let Some((key, goroutine)) = worker {
                let worker = self.goroutines.entry(key);
                let worker = worker.or_insert_with(|| Open::new(&goroutine.spans, begin));
                end = end.min(worker.advance(begin, is_another));
                work = work.or(worker.work());
            }
            let context = work.filter(|work| is_for_other && work.is_another);
            let context = context.map(|work| (work.task, work.name.clone()));
            append(Piece { begin, end, during, context, ..piece.clone() }, pieces);
            begin = end;
        }
    }
}

impl<'a> Open<'a> {
    /// The spans that are open at `from` or begin later.
    fn new(spans: &'a Spans, from: Timestamp) -> Self {
        let (ends, runtime, tasks) = (BinaryHeap::new(), BTreeMap::new(), BTreeMap::new());
        Self { spans: spans.since(from), next: 0, ends, runtime, tasks, own_tasks: 0 }
    }

    /// Continues at this time, which is not earlier than before. Returns when the open spans change
    /// next.
    fn advance(&mut self, at: Timestamp, is_another: impl Fn(TaskId) -> bool) -> Timestamp {
        while let Some(Reverse((end, position))) = self.ends.peek().copied() {
            if end > at {
                break;
            }
            self.ends.pop();
            self.runtime.remove(&position);
            let work = self.tasks.remove(&position);
            self.own_tasks -= usize::from(work.is_some_and(|work| !work.is_another));
        }
        while let Some(span) = self.spans.get(self.next) {
            if span.begin > at {
                break;
            }
            if span.end > at {
                self.ends.push(Reverse((span.end, self.next)));
                match &span.kind {
                    SpanKind::Task(task, name) => {
                        let work = Work { task: *task, name, is_another: is_another(*task) };
                        self.own_tasks += usize::from(!work.is_another);
                        self.tasks.insert(self.next, work);
                    }
                    _ => drop(self.runtime.insert(self.next, span)),
                }
            }
            self.next += 1;
        }
        let begin = self.spans.get(self.next).map_or(Timestamp::MAX, |span| span.begin);
        let end = self.ends.peek().map_or(Timestamp::MAX, |Reverse((end, _))| *end);
        begin.min(end)
    }

    /// The innermost work for a task.
    fn work(&self) -> Option<Work<'a>> {
        self.tasks.last_key_value().map(|(_, work)| *work)
    }

    /// The innermost stop of the world that another goroutine requested. Each has one at a time.
    fn stop(&self, goroutine: Key) -> Option<RangeKind> {
        self.runtime.values().rev().find_map(|span| match &span.kind {
            SpanKind::StopTheWorld(by, reason) if *by != Some(goroutine) => {
                Some(RangeKind::StopTheWorld(reason.clone()))
            }
            _ => None,
        })
    }
}

/// Appends a piece, or prolongs the last one if it differs in nothing else.
fn append(piece: Piece, pieces: &mut Vec<Piece>) {
    match pieces.last_mut() {
        Some(last) if (Piece { begin: last.begin, end: last.end, ..piece.clone() }) == *last => {
            last.end = piece.end;
        }
        _ => pieces.push(piece),
    }
}

/// Makes the final pieces.
struct Names<'a> {
    history: &'a History,
    stacks: &'a mut Resolved,
}

impl Names<'_> {
    fn path(mut self, request: Request, subject: Key, pieces: Vec<Piece>) -> CriticalPath {
        let subject = self.goroutine(subject);
        let pieces = pieces.into_iter().map(|piece| self.piece(piece)).collect();
        CriticalPath { request, subject, pieces }
    }

    fn goroutine(&self, key: Key) -> PathGoroutine {
        let goroutine = self.history.goroutine(key);
        PathGoroutine {
            id: goroutine.map_or(GoId::NONE, |goroutine| goroutine.id),
            entry: goroutine.and_then(|goroutine| goroutine.entry.clone()).unwrap_or_default(),
        }
    }

    fn piece(&mut self, piece: Piece) -> PathPiece {
        let what = match piece.what {
            What::Running => PathState::Running,
            What::Syscall => PathState::Syscall,
            What::Waits => PathState::Waits,
            What::Unknown => PathState::Unknown,
            What::Runnable(proc, used) => PathState::Runnable {
                proc: Some(proc).filter(|proc| proc.is_some()),
                occupant: match used {
                    Use::Goroutine(key) => Occupant::Goroutine(self.goroutine(key)),
                    Use::Idle => Occupant::Idle,
                    Use::Between => Occupant::Scheduler,
                },
            },
        };
        let (reason, mut stack) = self.stop(piece.stop);
        let (waiter_reason, waiter_stack) = self.stop(piece.waiter_stop);
        let mut samples = 0;
        if stack.is_empty() {
            let found = self.history.goroutine(piece.entity);
            if let Some((number, count)) = found.and_then(|g| sampled(g, piece.begin, piece.end)) {
                (stack, samples) = (self.frames(number), count);
            }
        }
        PathPiece {
            start: piece.begin,
            end: piece.end,
            goroutine: self.goroutine(piece.entity),
            what,
            depth: piece.depth,
            reason,
            stack,
            samples,
            waiter: piece.waiter.map(|waiter| self.goroutine(waiter)),
            waiter_reason,
            waiter_stack,
            during: piece.during,
            context: piece.context,
        }
    }

    /// Reason and stack of an interval.
    fn stop(&mut self, stop: Stop) -> (Name, Arc<[Frame]>) {
        let interval = stop.and_then(|(key, index)| {
            self.history.goroutine(key).and_then(|goroutine| goroutine.intervals.get(index))
        });
        let Some(interval) = interval else { return (Name::default(), Arc::default()) };
        (interval.reason.clone().unwrap_or_default(), self.frames(interval.stack))
    }

    fn frames(&mut self, number: u32) -> Arc<[Frame]> {
        let frames = || self.history.stacks.frames(number as usize).cloned().collect();
        Arc::clone(self.stacks.0.entry(number).or_insert_with(frames))
    }
}

/// The most frequent stack of the samples of a goroutine, the earliest of several, and the number
/// of samples.
fn sampled(goroutine: &Goroutine, begin: Timestamp, end: Timestamp) -> Option<(u32, u32)> {
    let samples = &goroutine.samples;
    let first = samples.partition_point(|(at, _)| *at < begin);
    let after = samples.partition_point(|(at, _)| *at <= end);
    let within = samples.get(first..after)?;
    let mut counts: HashMap<u32, (u32, usize)> = HashMap::new();
    for (place, (_, stack)) in within.iter().enumerate() {
        counts.entry(*stack).or_insert((0, place)).0 += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, (count, place))| (*count, Reverse(*place)));
    most.map(|(stack, _)| (stack, u32::try_from(within.len()).unwrap_or(u32::MAX)))
}
