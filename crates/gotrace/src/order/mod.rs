//! The order of events: a model of Go's scheduler that accepts a thread's next event only after all
//! events that it depends on.
//!
//! Timestamps alone do not order events of different threads: they may tie, and the clocks of
//! different CPUs may disagree. So some events carry sequence numbers of the goroutine or proc that
//! they concern. Such an event can be accepted only if the goroutine or proc is in the required
//! state and has the preceding number. An event that cannot be accepted yet waits at the head of
//! its thread while other threads advance; an event that can never be accepted is an error.
//!
//! The next events of two threads, at their times. The clock of thread B's CPU is behind:
//!
//! ```text
//!  time              3              6          7            9
//!  thread A  ────────────────────── GoCreate 7 ──────────── GoUnblock 8, 5 ──▶
//!  thread B  ─────── GoStart 7, 1 ──────────── GoBlock ──────────────────────▶
//!
//!  1. GoCreate 7       GoStart is earlier, but waits: there is no goroutine 7 yet
//!  2. GoStart 7, 1     goroutine 7 is runnable, and its last number is 0
//!  3. GoBlock          the earliest head: it depends only on events of its own thread
//!  4. GoUnblock 8, 5   if goroutine 8 is waiting and its last number is 4
//! ```
//!
//! These wait until the last number of their goroutine or proc is one less than their own, and until
//! it is in this state:
//!
//! - GoStart: the goroutine is runnable; GoUnblock and GoSwitch: it is waiting.
//! - ProcStart: the proc is idle, and the thread has no other one; ProcSteal: it is in a system call.
//!
//! GoSyscallEndBlocked has no number: it waits until the proc of its thread was stolen. The events of
//! the garbage collector's cycles are numbered, too, and wait for the previous one. Times are corrected
//! when events are returned: GoStart gets 7, GoBlock 8.
//!
//! [`Ordering::advance`] accepts one event. Its handlers return [`Blocked::NotYet`] if the event
//! has to wait, and an [`Inconsistency`] if no other event can make it acceptable.

mod adopt;
mod assume;
mod goroutine;
mod proc;
mod ranges;
mod state;
mod user;

use crate::error::{ErrorKind, Inconsistency};
use crate::event::Record;
use crate::frontier::RawEvent;
use crate::id::{GoId, ProcId, TaskId, ThreadId};
use crate::spec::EventType;
use crate::table::Table;
use assume::Assumed;
use state::{ActiveTask, GoStatus, Goroutine, Proc, Seq, Threads};
use std::collections::HashMap;
use trace_common::{IdMap, Limits, SeededState};
use user::Named;

/// The result of offering an event.
pub(crate) type Advance = Result<(), Blocked>;

/// The reason why an event was not accepted.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// Other events have to precede it.
    NotYet,
    /// No other event can make it acceptable. (Boxed to keep results small: one is returned per
    /// event.)
    Never(Box<ErrorKind>),
}

impl From<ErrorKind> for Blocked {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Self::Never(Box::new(kind))
    }
}

impl From<Inconsistency> for Blocked {
    #[cold]
    fn from(what: Inconsistency) -> Self {
        ErrorKind::from(what).into()
    }
}

/// The phase of the garbage collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GcPhase {
    Undetermined,
    NotRunning,
    Running,
}

/// The state of all goroutines, procs and threads at a point of the trace.
#[derive(Debug)]
pub(crate) struct Ordering {
    goroutines: IdMap<Goroutine>,
    procs: IdMap<Proc>,
    threads: Threads,
    thread_index: HashMap<i64, u32, SeededState>,
    tasks: HashMap<u64, ActiveTask, SeededState>,
    /// Those whose names are of this generation.
    named: Named,
    gc_seq: u64,
    gc_phase: GcPhase,
    /// The current generation, and the first one that had events (or 0).
    generation: u64,
    initial_generation: u64,
    /// Further events that the last wire event expands to; the next one is last.
    following: Vec<Record>,
    pub(crate) work: Work,
    /// The assumptions about the state before the first event, if that state is unknown.
    assumed: Option<Box<Assumed>>,
}

/// The work that grows with the trace's state. Programs have few threads, and traces with
/// consistent clocks need hardly any of it. But in a crafted trace every event could cost time
/// proportional to the number of threads.
#[derive(Debug)]
pub(crate) struct Work {
    /// Remaining steps.
    left: i64,
    /// [`Limits::max_work_per_byte`].
    per_byte: u32,
}

/// Number of steps that any trace may take, however small, in addition to one per event.
const MIN_WORK: i64 = 1 << 24;

impl Work {
    /// Adds the work that `bytes` of a trace may take.
    pub(crate) fn allow_for(&mut self, bytes: usize) {
        let more = i64::from(self.per_byte).saturating_mul(bytes as i64);
        self.left = self.left.saturating_add(more);
    }

    pub(crate) fn charge(&mut self, steps: usize) -> Result<(), ErrorKind> {
        self.left -= steps as i64;
        if self.left >= 0 {
            return Ok(());
        }
        let what = "the work to order events in steps per byte (max_work_per_byte)";
        Err(ErrorKind::Limit { what, limit: self.per_byte.into() })
    }
}

/// The thread of an event, with its goroutine and proc.
#[derive(Clone, Copy)]
struct Context {
    slot: usize,
    m: ThreadId,
    p: ProcId,
    g: GoId,
    generation: u64,
}

/// The thread, proc and goroutine that a handler requires in the context.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    MustNot,
    May,
}

impl Need {
    #[inline(always)]
    const fn fits(self, there: bool) -> bool {
        match self {
            Self::Must => there,
            Self::MustNot => !there,
            Self::May => true,
        }
    }
}

/// The context has no `what` but needs one, or must have none.
#[cold]
fn unfit(what: &'static str, wanted: bool) -> Blocked {
    Inconsistency::Context { what, wanted }.into()
}

impl Context {
    #[inline(always)]
    fn needs(&self, p: Need, g: Need) -> Result<(), Blocked> {
        if !self.m.is_some() {
            Err(unfit("thread", true))
        } else if !p.fits(self.p.is_some()) {
            Err(unfit("proc", p == Need::Must))
        } else if !g.fits(self.g.is_some()) {
            Err(unfit("goroutine", g == Need::Must))
        } else {
            Ok(())
        }
    }

    /// The requirement of events emitted by user code: a thread with a proc and a goroutine.
    #[inline(always)]
    fn needs_user_code(&self) -> Result<(), Blocked> {
        self.needs(Need::Must, Need::Must)
    }

    const fn seq(&self, number: u64) -> Seq {
        Seq { generation: self.generation, number }
    }
}

impl Ordering {
    /// The state before the first event of a trace.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            goroutines: IdMap::default(),
            procs: IdMap::default(),
            threads: Threads::default(),
            thread_index: HashMap::default(),
            tasks: HashMap::default(),
            named: Named::default(),
            gc_seq: 0,
            gc_phase: GcPhase::Undetermined,
            generation: 0,
            initial_generation: 0,
            following: Vec::new(),
            work: Work { left: MIN_WORK, per_byte: limits.max_work_per_byte },
            assumed: None,
        }
    }

    /// Returns the slot of a thread in the table, which never changes.
    pub(crate) fn slot_of(&mut self, id: ThreadId) -> u32 {
        let threads = &mut self.threads;
        *self.thread_index.entry(id.0).or_insert_with(|| threads.add(id))
    }

    /// Returns a thread that the trace has mentioned.
    fn known_thread(&self, id: ThreadId) -> Option<usize> {
        let slot = *self.thread_index.get(&id.0)? as usize;
        self.threads[slot].seen.then_some(slot)
    }

    /// Returns the next event that the last accepted wire event expands to.
    #[inline]
    pub(crate) fn next_following(&mut self) -> Option<Record> {
        self.following.pop()
    }

    /// Whether [`Ordering::next_following`] would return nothing.
    pub(crate) fn is_settled(&self) -> bool {
        self.following.is_empty()
    }

    /// Discards the events that [`Ordering::next_following`] would return.
    pub(crate) fn forget_following(&mut self) {
        self.following.clear();
    }

    /// Number of states of live goroutines, procs and threads in memory.
    pub(crate) fn len(&self) -> usize {
        self.goroutines.len() + self.procs.len() + self.threads.len() + self.tasks.len()
    }

    /// Begins a generation; `any` if it has events to be ordered.
    pub(crate) fn start(&mut self, generation: u64, any: bool) {
        self.generation = generation;
        if any && self.initial_generation == 0 {
            self.initial_generation = generation;
        }
    }

    /// Accepts `raw`, the next event of the thread at `slot`, if it is consistent with the
    /// preceding events, and makes it the event to return. [`Ordering::next_following`] returns
    /// further events that it expands to.
    #[inline(always)]
    pub(crate) fn advance(
        &mut self,
        raw: &RawEvent,
        slot: u32,
        table: &Table,
        event: &mut Record,
    ) -> Advance {
        use EventType as T;
        let slot = slot as usize;
        let thread = &mut self.threads[slot];
        thread.seen = thread.id.is_some();
        thread.events = thread.events.wrapping_add(1);
        let c =
            Context { slot, m: thread.id, p: thread.p, g: thread.g, generation: self.generation };
        *event = Record { m: c.m, p: c.p, g: c.g, ..Record::new(raw.ty, raw.time, raw.args()) };
        match raw.ty {
            T::GO_START => self.go_start(c, raw),
            T::GO_STOP | T::GO_BLOCK | T::GO_DESTROY => self.go_stop(c, raw),
            T::GO_UNBLOCK => self.go_unblock(c, raw),
            T::GO_SYSCALL_BEGIN => self.syscall_begin(c, raw),
            T::GO_SYSCALL_END => self.syscall_end(c),
            T::GO_SYSCALL_END_BLOCKED => self.syscall_end_blocked(c),
            T::GO_CREATE | T::GO_CREATE_BLOCKED => self.go_create(c, raw),
            T::GO_CREATE_SYSCALL => self.go_create_syscall(c, raw),
            T::GO_DESTROY_SYSCALL => self.go_destroy_syscall(c, event),
            T::GO_SWITCH | T::GO_SWITCH_DESTROY => self.go_switch(c, raw),
            T::GO_STATUS | T::GO_STATUS_STACK => self.go_status(c, event),
            T::PROC_START => self.proc_start(c, raw),
            T::PROC_STOP => self.proc_stop(c),
            T::PROC_STEAL => self.proc_steal(c, event),
            T::PROC_STATUS => self.proc_status(c, event),
            T::HEAP_ALLOC | T::HEAP_GOAL => c.needs(Need::Must, Need::May),
            T::PROCS_CHANGE | T::GO_LABEL | T::USER_LOG => c.needs_user_code(),
            T::STW_BEGIN | T::GC_MARK_ASSIST_BEGIN => self.go_range_begin(c, raw),
            T::STW_END | T::GC_MARK_ASSIST_END => self.go_range_end(c, event),
            T::GC_MARK_ASSIST_ACTIVE => self.go_range_active(c, raw),
            T::GC_ACTIVE => self.gc_active(c, raw),
            T::GC_BEGIN => self.gc_begin(c, raw),
            T::GC_END => self.gc_end(c, raw),
            T::GC_SWEEP_BEGIN => self.sweep_begin(c, raw),
            T::GC_SWEEP_ACTIVE => self.sweep_active(c, raw),
            T::GC_SWEEP_END => self.sweep_end(c, raw),
            T::USER_TASK_BEGIN => self.task_begin(c, event, table),
            T::USER_TASK_END => self.task_end(c, event, table),
            T::USER_REGION_BEGIN | T::USER_REGION_END => self.region(c, raw, table),
            EventType(128..) => c.needs(Need::May, Need::May),
            // Clock snapshots have a timestamp but are part of sync batches.
            ty => Err(ErrorKind::UnexpectedEvent(ty).into()),
        }
    }

    /// As [`Ordering::advance`], for events out of turn and after damage. A separate function, so
    /// that the other one is inlined only into the hot path.
    #[cold]
    pub(crate) fn advance_apart(
        &mut self,
        raw: &RawEvent,
        slot: u32,
        table: &Table,
        event: &mut Record,
    ) -> Advance {
        self.advance(raw, slot, table, event)
    }

    /// Returns the goroutine in the context.
    #[inline(always)]
    fn current_goroutine(&mut self, c: Context) -> Result<&mut Goroutine, Blocked> {
        let unknown = || Inconsistency::Unknown { what: "goroutine", id: c.g.0 }.into();
        self.goroutines.get_mut(c.g.0).ok_or_else(unknown)
    }

    /// Returns the goroutine in the context, which must have this status.
    #[inline(always)]
    fn goroutine_in(&mut self, c: Context, status: GoStatus) -> Result<&mut Goroutine, Blocked> {
        let goroutine = self.current_goroutine(c)?;
        if goroutine.status == status { Ok(goroutine) } else { Err(wrong_goroutine(c.g).into()) }
    }

    /// Returns the proc in the context.
    #[inline(always)]
    fn current_proc(&mut self, c: Context) -> Result<&mut Proc, Blocked> {
        let unknown = || Inconsistency::Unknown { what: "proc", id: c.p.0 }.into();
        self.procs.get_mut(c.p.0).ok_or_else(unknown)
    }

    /// Binds a goroutine, or none, to the thread of the context.
    #[inline]
    fn bind_goroutine(&mut self, c: Context, g: GoId) {
        // Events without a thread have no context to change.
        if c.m.is_some() {
            self.threads[c.slot].g = g;
        }
    }

    /// Binds a proc, or none, to the thread of the context.
    #[inline]
    fn bind_proc(&mut self, c: Context, p: ProcId) {
        if c.m.is_some() {
            self.threads[c.slot].p = p;
        }
    }
}

const fn wrong_goroutine(id: GoId) -> Inconsistency {
    Inconsistency::WrongState { what: "goroutine", id: id.0 }
}

const fn wrong_proc(id: ProcId) -> Inconsistency {
    Inconsistency::WrongState { what: "proc", id: id.0 }
}

const fn no_task(parent: TaskId) -> TaskId {
    // On the wire, 0 means no parent, not the background task.
    if parent.0 == TaskId::BACKGROUND.0 { TaskId::NONE } else { parent }
}
