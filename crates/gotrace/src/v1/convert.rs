//! Last pass: converts v1 events to v2.
//!
//! Most events have a counterpart. A goroutine that existed before the trace has a status instead
//! of a creation; a system call becomes a pair of events, one nanosecond apart unless it blocks.

use super::event::Event;
use super::wire::Type;
use super::{V1, args_of, log_message};
use crate::error::{Error, ErrorKind, Position};
use crate::event::{Record, State};
use crate::id::{GoId, GoState, ProcId, ProcState, TaskId, ThreadId};
use crate::reader::missing_id;
use crate::spec::{EventType, MAX_ARGS, Plan};
use crate::version::Version;
use std::collections::HashMap;
use trace_common::SeededState;

/// Strings that v2 has and v1 lacks: the reasons why a goroutine blocks or stops …
const REASONS: [(Type, &str); 12] = [
    (Type::GO_STOP, "forever"),
    (Type::GO_PREEMPT, "preempted"),
    (Type::GO_SCHED, "runtime.Gosched"),
    (Type::GO_SLEEP, "sleep"),
    (Type::GO_BLOCK_SEND, "chan send"),
    (Type::GO_BLOCK_RECV, "chan receive"),
    (Type::GO_BLOCK_NET, "network"),
    (Type::GO_BLOCK_SYNC, "sync"),
    (Type::GO_BLOCK_COND, "sync.(*Cond).Wait"),
    (Type::GO_BLOCK_SELECT, "select"),
    (Type::GO_BLOCK, ""),
    (Type::GO_BLOCK_GC, "GC mark assist wait for work"),
];

/// … and why the world is stopped, by the numbers of Go 1.21. Earlier versions have only the first
/// two, numbered from 0.
const STOPS: [&str; 17] = [
    "",
    "GC mark termination",
    "GC sweep termination",
    "write heap dump",
    "goroutine profile",
    "goroutine profile cleanup",
    "all goroutine stack trace",
    "read mem stats",
    "AllThreadsSyscall",
    "GOMAXPROCS",
    "start trace",
    "stop trace",
    "CountPagesInUse (test)",
    "ReadMetricsSlow (test)",
    "ReadMemStatsSlow (test)",
    "PageCachePagesLeaked (test)",
    "ResetDebugLog (test)",
];

/// The strings above. Their identifiers follow those of the trace, in the order of Go's reader:
/// damage may make a frame refer to one of them.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
pub(super) const BUILT_IN: [&str; REASONS.len() + STOPS.len()] = {
    let mut all = [""; REASONS.len() + STOPS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < REASONS.len() { REASONS[i].1 } else { STOPS[i - REASONS.len()] };
        i += 1;
    }
    all
};

/// The state of the conversion.
#[derive(Debug)]
pub(super) struct Converter {
    /// Whether the first `Gomaxprocs` is still to come: until then, the events list the goroutines
    /// that existed before the trace.
    starting: bool,
    /// The goroutines that were listed and have had no other event so far.
    listed: Vec<bool>,
    /// The ones of these that are still to be returned, at this time.
    statuses: (i64, std::vec::IntoIter<u64>),
    /// An event that is returned before all others.
    extra: Option<Record>,
    procs: Vec<Proc>,
    tasks: HashMap<u64, Task, SeededState>,
    /// The reason of the last stop-the-world.
    stop: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Proc {
    seen: bool,
    thread: Option<ThreadId>,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    parent: u64,
    name: u64,
}

impl Converter {
    #[expect(
        clippy::indexing_slicing,
        reason = "events have numbers of the scan, each with an entry"
    )]
    fn proc(&mut self, number: u16) -> &mut Proc {
        &mut self.procs[usize::from(number)]
    }

    pub(super) fn new(goroutines: usize, procs: usize) -> Self {
        Self {
            starting: true,
            listed: vec![false; goroutines],
            statuses: (0, Vec::new().into_iter()),
            extra: None,
            procs: vec![Proc::default(); procs],
            tasks: HashMap::default(),
            stop: 0,
        }
    }
}

impl V1 {
    /// Writes the next event to `out`; `false` at the end. Several events may have the same time.
    pub(crate) fn next(&mut self, out: &mut Record) -> Result<bool, Error> {
        while !self.queued(out) {
            let Some(event) = self.events.get(self.position).copied() else { return Ok(false) };
            self.position += 1;
            if self.convert(&event, out)? {
                break;
            }
        }
        // A queued record is of that event, too.
        if let Some(event) = self.position.checked_sub(1).and_then(|last| self.events.get(last)) {
            self.validate(event, out)?;
        }
        Ok(true)
    }

    #[inline]
    fn queued(&mut self, out: &mut Record) -> bool {
        let converter = &mut self.converter;
        if let Some(record) = converter.extra.take() {
            *out = record;
            return true;
        }
        let (time, ids) = &mut converter.statuses;
        let Some(go) = ids.next() else { return false };
        *out = go_status(GoState::Runnable, go, *time);
        true
    }

    /// Requires that everything an event refers to exists: Go's reader panics when it is accessed.
    fn validate(&self, event: &Event, record: &Record) -> Result<(), Error> {
        match missing_id(record, &self.table).or_else(|| self.missing_in_frames(record)) {
            Some(kind) => Err(self.error(event, record, kind)),
            None => Ok(()),
        }
    }

    /// Returns the missing string of a frame in the event's stacks.
    fn missing_in_frames(&self, record: &Record) -> Option<ErrorKind> {
        if self.broken_stacks.is_empty() {
            return None;
        }
        let plan = *record.ty.plan();
        let sample = if record.ty == EventType::CPU_SAMPLE { 0 } else { Plan::NONE };
        [plan.stack, plan.other_stack, sample].into_iter().find_map(|arg| {
            let stack = record.args.get(usize::from(arg)).copied().unwrap_or(0);
            let id = *self.broken_stacks.get(&(stack as u32))?;
            Some(ErrorKind::UnknownId { what: "string", id })
        })
    }

    #[cold]
    fn error(&self, event: &Event, record: &Record, kind: ErrorKind) -> Error {
        let position = Position {
            offset: u64::from(event.at),
            generation: None,
            thread: record.m.is_some().then_some(record.m),
            event: Some(record.ty),
        };
        Error::new(kind, position)
    }

    /// Identifier of the string that is number `index` of [`BUILT_IN`].
    fn built_in(&self, index: usize) -> u64 {
        self.first_built_in + index as u64
    }

    /// Returns the identifier of a stack, or 0 if there is no such stack.
    fn known_stack(&self, id: u32) -> u64 {
        if self.table.has_stack(id.into()) { id.into() } else { 0 }
    }

    fn reason(&self, ty: Type) -> u64 {
        REASONS.iter().position(|&(of, _)| of == ty).map_or(0, |index| self.built_in(index))
    }

    fn stop_reason(&self, kind: u64) -> u64 {
        let number = match self.version {
            Version::Go121 => usize::try_from(kind).ok().filter(|&number| number < STOPS.len()),
            _ => (kind < 2).then_some(kind as usize + 1),
        };
        self.built_in(REASONS.len() + number.unwrap_or(0))
    }

    /// Converts one event; `false` if it has no v2 event (yet).
    fn convert(&mut self, event: &Event, out: &mut Record) -> Result<bool, Error> {
        use EventType as E;
        let (wire, count) = args_of(&self.data, event)?;
        let [_, a, b, c, _] = wire;
        let stack = match wire.get(count.wrapping_sub(1)) {
            Some(&stack) if event.ty.spec().stack => self.known_stack(stack as u32),
            _ => 0,
        };
        let proc_id = i64::from(self.procs.id(event.proc)) as u64;
        let id = self.goroutines.id(event.go);
        let time = event.time;
        let mut state = (State::None, State::None);
        let (ty, args) = match event.ty {
            Type::GOMAXPROCS if self.converter.starting => {
                self.list_goroutines(time);
                return Ok(false);
            }
            Type::GOMAXPROCS => (E::PROCS_CHANGE, [a, stack, 0, 0]),
            Type::PROC_START | Type::PROC_STOP => {
                let start = event.ty == Type::PROC_START;
                let proc = self.converter.proc(event.proc);
                if start {
                    proc.thread = Some(ThreadId(a as i64));
                }
                match (std::mem::replace(&mut proc.seen, true), start) {
                    (true, true) => (E::PROC_START, [proc_id, 0, 0, 0]),
                    (true, false) => (E::PROC_STOP, [proc_id, 0, 0, 0]),
                    (false, _) => {
                        let to = if start { ProcState::Running } else { ProcState::Idle };
                        state = (State::Proc(ProcState::Undetermined), State::Proc(to));
                        (E::PROC_STATUS, [proc_id, if start { 1 } else { 2 }, 0, 0])
                    }
                }
            }
            Type::GC_START => (E::GC_BEGIN, [a, stack, 0, 0]),
            Type::GC_DONE => (E::GC_END, [0; MAX_ARGS]),
            Type::STW_START => {
                self.converter.stop = self.stop_reason(a);
                (E::STW_BEGIN, [self.converter.stop, 0, 0, 0])
            }
            Type::STW_DONE => (E::STW_END, [self.converter.stop, 0, 0, 0]),
            Type::GC_SWEEP_START => (E::GC_SWEEP_BEGIN, [stack, 0, 0, 0]),
            Type::GC_SWEEP_DONE => (E::GC_SWEEP_END, [a, b, 0, 0]),
            Type::GC_MARK_ASSIST_START => (E::GC_MARK_ASSIST_BEGIN, [stack, 0, 0, 0]),
            Type::GC_MARK_ASSIST_DONE => (E::GC_MARK_ASSIST_END, [0; MAX_ARGS]),
            Type::HEAP_ALLOC => (E::HEAP_ALLOC, [a, 0, 0, 0]),
            Type::HEAP_GOAL => (E::HEAP_GOAL, [a, 0, 0, 0]),
            Type::GO_CREATE if self.converter.starting => {
                if let Some(listed) = self.converter.listed.get_mut(event.target as usize) {
                    *listed = true;
                }
                return Ok(false);
            }
            Type::GO_CREATE => (E::GO_CREATE, [a, b, stack, 0]),
            Type::GO_WAITING | Type::GO_IN_SYSCALL => {
                let waits = event.ty == Type::GO_WAITING;
                let status = if waits { GoState::Waiting } else { GoState::Syscall };
                self.said(event, status, &mut state)
            }
            Type::GO_START if self.converter.starting => {
                self.said(event, GoState::Running, &mut state)
            }
            Type::GO_START => (E::GO_START, [a, b, 0, 0]),
            Type::GO_START_LABEL => {
                let context = self.running_on(event);
                let label = Record { ty: E::GO_LABEL, args: [c, 0, 0, 0], ..context };
                self.converter.extra = Some(label);
                *out = Record { ty: E::GO_START, args: [a, b, c, 0], ..context };
                return Ok(true);
            }
            Type::GO_END => (E::GO_DESTROY, [0; MAX_ARGS]),
            Type::GO_SCHED | Type::GO_PREEMPT => (E::GO_STOP, [self.reason(event.ty), stack, 0, 0]),
            Type::GO_STOP
            | Type::GO_SLEEP
            | Type::GO_BLOCK
            | Type::GO_BLOCK_SEND
            | Type::GO_BLOCK_RECV
            | Type::GO_BLOCK_SELECT
            | Type::GO_BLOCK_SYNC
            | Type::GO_BLOCK_COND
            | Type::GO_BLOCK_NET
            | Type::GO_BLOCK_GC => (E::GO_BLOCK, [self.reason(event.ty), stack, 0, 0]),
            // The local variant has no sequence number, and it is not needed after the ordering.
            Type::GO_UNBLOCK => (E::GO_UNBLOCK, [a, 0, stack, 0]),
            Type::GO_SYSCALL if event.blocks => (E::GO_SYSCALL_BEGIN, [0, stack, 0, 0]),
            Type::GO_SYSCALL => {
                let context = self.running_on(event);
                let end = Record { time: time.wrapping_add(1), ty: E::GO_SYSCALL_END, ..context };
                self.converter.extra = Some(end);
                let args = [0, stack, 0, 0];
                *out = Record { ty: E::GO_SYSCALL_BEGIN, args, ..context };
                return Ok(true);
            }
            Type::GO_SYSCALL_EXIT => (E::GO_SYSCALL_END_BLOCKED, [0; MAX_ARGS]),
            // The previous event has reported its begin.
            Type::GO_SYSCALL_BLOCK => return Ok(false),
            Type::USER_TASK_CREATE => {
                self.converter.tasks.insert(a, Task { parent: b, name: c });
                let parent = if b == 0 { TaskId::NONE.0 } else { b };
                (E::USER_TASK_BEGIN, [a, parent, c, stack])
            }
            Type::USER_TASK_END => {
                let (parent, ty) = match self.converter.tasks.remove(&a) {
                    Some(Task { parent, name }) => (parent, self.table.own(name)),
                    None => (TaskId::NONE.0, 0),
                };
                (E::USER_TASK_END, [a, stack, parent, ty])
            }
            Type::USER_REGION => {
                // Other modes than 0 and 1 have been rejected.
                let ty = if b == 0 { E::USER_REGION_BEGIN } else { E::USER_REGION_END };
                (ty, [a, c, stack, 0])
            }
            Type::USER_LOG => {
                let message = log_message(&self.data, event)?;
                let message = self.messages.get(message).copied().unwrap_or(0);
                (E::USER_LOG, [a, b, message, stack])
            }
            Type::CPU_SAMPLE => (E::CPU_SAMPLE, [stack, u64::MAX, proc_id, stack]),
            ty => {
                // Only Go ≤ 1.10 wrote "futile wake-ups".
                let at = u64::from(event.at);
                return Err(Error::at(at, ErrorKind::UnexpectedV1Event(ty.spec().name)));
            }
        };
        let mut m = ThreadId::NONE;
        if event.ty != Type::CPU_SAMPLE && proc_id != u64::MAX {
            m = self.converter.proc(event.proc).thread.unwrap_or(m);
        }
        if event.ty == Type::PROC_STOP {
            self.converter.proc(event.proc).thread = None;
        }
        *out = Record {
            g: if id == 0 { GoId::NONE } else { GoId(id as i64) },
            p: ProcId(proc_id as i64),
            m,
            from: state.0,
            to: state.1,
            ..Record::new(ty, time, args)
        };
        Ok(true)
    }

    /// Makes a record with the goroutine, P and thread of an event.
    fn running_on(&self, event: &Event) -> Record {
        let proc = self.converter.procs.get(usize::from(event.proc));
        let thread = proc.and_then(|proc| proc.thread);
        Record {
            g: GoId(self.goroutines.id(event.go) as i64),
            p: ProcId(self.procs.id(event.proc).into()),
            m: thread.unwrap_or(ThreadId(0)), // as Go's converter does
            ..Record::new(EventType::default(), event.time, [0; MAX_ARGS])
        }
    }

    /// Handles an event of a goroutine that existed before the trace.
    fn said(
        &mut self,
        event: &Event,
        status: GoState,
        state: &mut (State, State),
    ) -> (EventType, [u64; MAX_ARGS]) {
        if let Some(listed) = self.converter.listed.get_mut(event.go as usize) {
            *listed = false;
        }
        let Record { ty, args, from, to, .. } = go_status(status, self.goroutines.id(event.go), 0);
        *state = (from, to);
        (ty, args)
    }

    /// All goroutines that existed before the trace have been listed. Those without another event
    /// are runnable.
    fn list_goroutines(&mut self, time: i64) {
        let converter = &mut self.converter;
        converter.starting = false;
        let listed = std::mem::take(&mut converter.listed);
        let mut ids: Vec<u64> = listed
            .iter()
            .zip(&self.goroutines.ids)
            .filter(|&(&listed, _)| listed)
            .map(|(_, &id)| id)
            .collect();
        ids.sort_unstable();
        converter.statuses = (time, ids.into_iter());
    }
}

/// The status of a goroutine that was unknown before.
fn go_status(status: GoState, go: u64, time: i64) -> Record {
    let wire = match status {
        GoState::Runnable => 1,
        GoState::Running => 2,
        GoState::Syscall => 3,
        _ => 4,
    };
    Record {
        from: State::Go(GoState::Undetermined),
        to: State::Go(status),
        ..Record::new(EventType::GO_STATUS, time, [go, u64::MAX, wire, 0])
    }
}
