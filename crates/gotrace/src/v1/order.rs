//! Second pass: a total order of all events.
//!
//! Events of one P are in order. Timestamps may not order events of different Ps, because the
//! clocks of CPUs differ. So an event is accepted only after the events that it depends on: a
//! goroutine starts after it was created or unblocked. Sequence numbers identify the occurrence.
//!
//! ```text
//!  Ps, each with       ready?        heap by time
//!  its next event  ──────────────▶   ┌───────────┐  earliest
//!   ▲   ▲   ▲                        │ next of 2 │ ───────────▶ merged events
//!   │   │   └── waits for G7 = 5     │ next of 0 │                   │
//!   │   └────── (in the heap)        └───────────┘                   │ G7 is now 5:
//!   └─────────────────────────────────────────────────────────────── ┘ wake who waits
//! ```
//!
//! Events that are ready at the same time come in the order of Go's reader: the heap is the same,
//! and Ps enter it in the order of its list of Ps that are not in the heap. (Go's list begins in
//! the order of a map, this one in the order of identifiers.) Unlike in Go's reader, a waiting P is
//! not checked again until its goroutine reaches the required state.

use super::event::{Event, Goroutines};
use super::scan::Scan;
use super::wire::{self, Lead, MAX_ARGS, Type, uvarint};
use crate::error::{Error, ErrorKind, Inconsistency};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use trace_common::{Cursor, SeededState};

/// The state of a goroutine, as far as the order depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    status: Status,
    seq: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    Dead,
    Runnable,
    Running,
    Waiting,
}

/// In [`Step::before`], matches any sequence number; in [`Step::after`], keeps the number.
const SAME: u64 = u64::MAX;
/// In [`Step::after`], one more than the last sequence number.
const NEXT: u64 = u64::MAX - 1;

/// The state that an event requires, and the state that it results in.
#[derive(Clone, Copy, Debug)]
struct Step {
    go: u32,
    before: State,
    after: State,
}

/// An event and its step.
#[derive(Clone, Copy, Debug)]
struct Head {
    event: Event,
    step: Step,
}

struct Proc {
    /// The starts of its batches; the first one is being read.
    batches: VecDeque<u32>,
    /// Number of its identifier.
    number: u16,
    /// Start of the next event in the current batch; 0 if the batch is still to be begun.
    at: u32,
    /// The time of the last event.
    time: i64,
    /// The running goroutine.
    go: u32,
    /// The event to be merged next.
    head: Option<Head>,
    /// Index in the list of procs that are not in the heap.
    index: u32,
    /// Whether the head is not ready.
    waits: bool,
}

struct Merge<'a> {
    data: &'a [u8],
    goroutines: Goroutines,
    states: Vec<State>,
    procs: Vec<Proc>,
    /// The remaining samples of the profiler, the last proc.
    samples: std::vec::IntoIter<Event>,
    /// Procs that are not in the heap.
    idle: Vec<u32>,
    /// Heads that are ready, the earliest first: (time, proc).
    ready: Vec<(i64, u32)>,
    /// Procs whose heads wait for a goroutine to reach a state.
    waiting: HashMap<(u32, State), Vec<u32>, SeededState>,
    events: Vec<Event>,
}

/// Merges all events of `data`.
pub(super) fn merge(data: &[u8], scan: &mut Scan) -> Result<Vec<Event>, Error> {
    let batches = std::mem::take(&mut scan.batches);
    let mut procs: Vec<Proc> = batches
        .into_iter()
        .enumerate()
        .filter(|(_, batches)| !batches.is_empty())
        .map(|(number, batches)| Proc::new(number as u16, batches))
        .collect();
    procs.sort_by_key(|proc| scan.procs.id(proc.number));
    procs.push(Proc::new(0, Vec::new())); // for the samples
    let mut merge = Merge {
        data,
        goroutines: std::mem::take(&mut scan.goroutines),
        states: Vec::new(),
        samples: std::mem::take(&mut scan.samples).into_iter(),
        idle: (0..procs.len() as u32).collect(),
        procs,
        ready: Vec::new(),
        waiting: HashMap::default(),
        events: Vec::with_capacity(scan.events),
    };
    for (index, proc) in merge.procs.iter_mut().enumerate() {
        proc.index = index as u32;
    }
    merge.run()?;
    scan.goroutines = merge.goroutines;
    Ok(merge.events)
}

impl Merge<'_> {
    #[expect(clippy::indexing_slicing, reason = "numbers of procs are places in the list")]
    #[inline]
    fn proc(&mut self, proc: u32) -> &mut Proc {
        &mut self.procs[proc as usize]
    }

    fn run(&mut self) -> Result<(), Error> {
        let mut woken: BinaryHeap<Reverse<u32>> =
            (0..self.idle.len() as u32).map(Reverse).collect();
        self.offer(&mut woken)?;
        while let Some((_, proc)) = self.pop_ready() {
            let Some(Head { mut event, step }) = self.proc(proc).head.take() else {
                continue; // every proc in the heap has a head
            };
            // "Local" matters for the order only.
            event.ty = match event.ty {
                Type::GO_START_LOCAL => Type::GO_START,
                Type::GO_UNBLOCK_LOCAL => Type::GO_UNBLOCK,
                Type::GO_SYSCALL_EXIT_LOCAL => Type::GO_SYSCALL_EXIT,
                ty => ty,
            };
            if self.events.last().is_some_and(|last| last.time > event.time) {
                return Err(Error::at(u64::from(event.at), ErrorKind::TimeOrder));
            }
            self.events.push(event);
            if step.go != Goroutines::UNORDERED {
                self.apply(&step, &event, &mut woken)?;
            }
            // It goes to the end of the list. If no proc is to be checked before it, it only goes
            // there if it stays.
            if !woken.is_empty() || !self.enlist(proc)? {
                let index = self.idle.len() as u32;
                self.proc(proc).index = index;
                self.idle.push(proc);
                if !woken.is_empty() {
                    woken.push(Reverse(index));
                    self.offer(&mut woken)?;
                }
            }
        }
        match self.procs.iter().find_map(|proc| proc.head.as_ref()) {
            Some(stuck) => Err(Error::at(u64::from(stuck.event.at), ErrorKind::BrokenOrder)),
            None => Ok(()),
        }
    }

    /// Checks procs that may be ready: `woken` has their indexes in the list, the first of which
    /// comes first.
    fn offer(&mut self, woken: &mut BinaryHeap<Reverse<u32>>) -> Result<(), Error> {
        while let Some(Reverse(index)) = woken.pop() {
            // Indexes past the end and duplicates are left over from the moves below.
            let Some(&proc) = self.idle.get(index as usize) else { continue };
            if self.proc(proc).waits || !self.enlist(proc)? {
                continue;
            }
            // The last proc of the list takes its place, and is checked next.
            self.idle.swap_remove(index as usize);
            if let Some(&moved) = self.idle.get(index as usize) {
                self.proc(moved).index = index;
                woken.push(Reverse(index));
            }
        }
        Ok(())
    }

    /// Moves a proc to the heap if its next event is ready. Returns whether the proc leaves the
    /// list, which it also does at its end.
    fn enlist(&mut self, proc: u32) -> Result<bool, Error> {
        if self.proc(proc).head.is_none() {
            let head = self.next_of(proc)?;
            self.proc(proc).head = head;
        }
        // The head is not copied as a whole: it was just written in parts, and the load would
        // stall.
        let Some(Head { event, step }) = &self.proc(proc).head else { return Ok(true) };
        let (time, go, awaited) = (event.time, step.go, step.before);
        let ready = self.is_ready(go, awaited);
        if ready {
            self.push_ready((time, proc));
        } else {
            self.proc(proc).waits = true;
            self.waiting.entry((go, awaited)).or_default().push(proc);
        }
        Ok(ready)
    }

    #[expect(clippy::indexing_slicing, reason = "the list has every goroutine once it is used")]
    fn state(&mut self, go: u32) -> &mut State {
        let index = go as usize;
        if index >= self.states.len() {
            let known = self.goroutines.ids.len();
            self.states.resize(known, State { status: Status::Dead, seq: 0 });
        }
        &mut self.states[index]
    }

    /// Whether a goroutine is in the state that an event requires.
    #[inline]
    fn is_ready(&mut self, go: u32, before: State) -> bool {
        if go == Goroutines::UNORDERED {
            return true;
        }
        let State { status, seq } = *self.state(go);
        before.status == status && (before.seq == SAME || before.seq == seq)
    }

    /// Applies the result of an event, and wakes procs that waited for it.
    fn apply(
        &mut self,
        step: &Step,
        event: &Event,
        woken: &mut BinaryHeap<Reverse<u32>>,
    ) -> Result<(), Error> {
        if !self.is_ready(step.go, step.before) {
            // An event of another P came in between: only damage causes that.
            let id = self.goroutines.id(step.go) as i64;
            let wrong = Inconsistency::WrongState { what: "goroutine", id };
            return Err(super::inconsistent(event, wrong));
        }
        let state = self.state(step.go);
        let seq = match step.after.seq {
            SAME => state.seq,
            NEXT => state.seq.wrapping_add(1),
            seq => seq,
        };
        *state = State { seq, ..step.after };
        if !self.waiting.is_empty() {
            for seq in [seq, SAME] {
                let awaited = State { seq, ..step.after };
                for proc in self.waiting.remove(&(step.go, awaited)).unwrap_or_default() {
                    let proc = self.proc(proc);
                    proc.waits = false;
                    woken.push(Reverse(proc.index));
                }
            }
        }
        Ok(())
    }

    #[expect(clippy::indexing_slicing, reason = "child < len, and a parent is before its child")]
    fn push_ready(&mut self, entry: (i64, u32)) {
        let heap = &mut self.ready;
        let mut child = heap.len();
        heap.push(entry);
        while child > 0 {
            let parent = (child - 1) / 2;
            if heap[parent].0 <= heap[child].0 {
                break;
            }
            heap.swap(parent, child);
            child = parent;
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "children are compared with len, and a parent is before"
    )]
    fn pop_ready(&mut self) -> Option<(i64, u32)> {
        let heap = &mut self.ready;
        if heap.is_empty() {
            return None;
        }
        let first = heap.swap_remove(0);
        let mut parent = 0;
        loop {
            let mut child = 2 * parent + 1;
            if child >= heap.len() {
                break;
            }
            if child + 1 < heap.len() && heap[child + 1].0 < heap[child].0 {
                child += 1;
            }
            if heap[parent].0 <= heap[child].0 {
                break;
            }
            heap.swap(parent, child);
            parent = child;
        }
        Some(first)
    }

    fn next_of(&mut self, proc: u32) -> Result<Option<Head>, Error> {
        if proc as usize == self.procs.len() - 1 {
            let step = Step::NONE;
            return Ok(self.samples.next().map(|event| Head { event, step }));
        }
        match self.procs.get_mut(proc as usize) {
            Some(proc) => proc.next(self.data, &mut self.goroutines),
            None => Ok(None),
        }
    }
}

impl Proc {
    fn new(number: u16, batches: Vec<u32>) -> Self {
        Self {
            batches: batches.into(),
            number,
            at: 0,
            time: 0,
            go: Goroutines::NONE,
            head: None,
            index: 0,
            waits: false,
        }
    }

    /// Reads the next event of the P's batches.
    fn next(&mut self, data: &[u8], goroutines: &mut Goroutines) -> Result<Option<Head>, Error> {
        while let Some(&batch) = self.batches.front() {
            let mut c = if self.at == 0 {
                let mut c = super::cursor_at(data, batch);
                Lead::read(&mut c);
                wire::proc(&mut c)?;
                self.time = uvarint(&mut c, "time of a batch")? as i64;
                c
            } else {
                super::cursor_at(data, self.at)
            };
            if let Some(head) = self.next_in_batch(&mut c, goroutines)? {
                self.at = super::index(c.offset());
                return Ok(Some(head));
            }
            self.batches.pop_front();
            self.at = 0;
        }
        Ok(None)
    }

    fn next_in_batch(
        &mut self,
        c: &mut Cursor<'_>,
        goroutines: &mut Goroutines,
    ) -> Result<Option<Head>, Error> {
        loop {
            let at = super::index(c.offset());
            let Some(lead) = Lead::read(c) else { return Ok(None) };
            match lead.ty() {
                Type::BATCH => return Ok(None),
                Type::STRING => {
                    uvarint(c, "identifier of a string")?;
                    let size = uvarint(c, "length of a string")?;
                    wire::string(c, size)?;
                }
                Type::STACK | Type::CPU_SAMPLE | Type::FREQUENCY | Type::TIMER_GOROUTINE => {
                    lead.skip_args(c)?;
                }
                ty => {
                    let mut args = [0; MAX_ARGS];
                    lead.args(c, &mut args)?;
                    if ty == Type::USER_LOG {
                        let size = uvarint(c, "length of a message")?;
                        wire::string(c, size)?;
                    }
                    self.time = self.time.wrapping_add(args[0] as i64);
                    return Ok(Some(self.head(at, ty, &args, goroutines)));
                }
            }
        }
    }

    /// Returns the goroutines of the event and its requirements for the order.
    fn head(
        &mut self,
        at: u32,
        ty: Type,
        args: &[u64; MAX_ARGS],
        goroutines: &mut Goroutines,
    ) -> Head {
        use Status::{Dead, Runnable, Running, Waiting};
        let [_, first, second, ..] = *args;
        let (mut go, mut target) = (self.go, Goroutines::NONE);
        let step = |go, (status, seq), (next, next_seq)| Step {
            go,
            before: State { status, seq },
            after: State { status: next, seq: next_seq },
        };
        let step = match ty {
            Type::GO_CREATE => {
                target = goroutines.intern(first);
                step(target, (Dead, 0), (Runnable, 1))
            }
            Type::GO_WAITING | Type::GO_IN_SYSCALL => {
                go = goroutines.intern(first);
                step(go, (Runnable, 1), (Waiting, 2))
            }
            Type::GO_START | Type::GO_START_LABEL => {
                self.go = goroutines.intern(first);
                go = self.go;
                step(go, (Runnable, second), (Running, second.wrapping_add(1)))
            }
            Type::GO_START_LOCAL => {
                self.go = goroutines.intern(first);
                go = self.go;
                step(go, (Runnable, SAME), (Running, NEXT))
            }
            Type::GO_BLOCK
            | Type::GO_BLOCK_SEND
            | Type::GO_BLOCK_RECV
            | Type::GO_BLOCK_SELECT
            | Type::GO_BLOCK_SYNC
            | Type::GO_BLOCK_COND
            | Type::GO_BLOCK_NET
            | Type::GO_BLOCK_GC
            | Type::GO_SLEEP
            | Type::GO_SYSCALL_BLOCK => {
                self.go = Goroutines::NONE;
                step(go, (Running, SAME), (Waiting, SAME))
            }
            Type::GO_SCHED | Type::GO_PREEMPT => {
                self.go = Goroutines::NONE;
                step(go, (Running, SAME), (Runnable, SAME))
            }
            Type::GO_END | Type::GO_STOP => {
                self.go = Goroutines::NONE;
                Step::NONE
            }
            Type::GO_UNBLOCK | Type::GO_SYSCALL_EXIT => {
                target = goroutines.intern(first);
                if ty == Type::GO_SYSCALL_EXIT {
                    go = target;
                }
                step(target, (Waiting, second), (Runnable, second.wrapping_add(1)))
            }
            Type::GO_UNBLOCK_LOCAL | Type::GO_SYSCALL_EXIT_LOCAL => {
                target = goroutines.intern(first);
                step(target, (Waiting, SAME), (Runnable, NEXT))
            }
            Type::GC_START => {
                step(Goroutines::COLLECTOR, (Dead, first), (Dead, first.wrapping_add(1)))
            }
            _ => Step::NONE,
        };
        let (time, proc) = (self.time, self.number);
        Head { event: Event { time, at, go, target, proc, ty, blocks: false }, step }
    }
}

impl Step {
    const NONE: Self = {
        let state = State { status: Status::Dead, seq: SAME };
        Self { go: Goroutines::UNORDERED, before: state, after: state }
    };
}
