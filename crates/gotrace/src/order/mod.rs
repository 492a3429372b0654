//! The order of events: a model of Go's scheduler that accepts a thread's next event only when
//! everything that must come before it has come.
//!
//! Timestamps alone do not order events of different threads: they may tie, and clocks of
//! different CPUs may disagree. So some events carry sequence numbers of the goroutine or proc
//! they concern, and an event can be taken only if the goroutine or proc is in the state that it
//! needs with the preceding number. What cannot be taken yet waits at the head of its thread
//! while other threads go on; what can never be taken is an error.
//!
//! [`Ordering::advance`] takes one event. Of its handlers, each returns [`Blocked::NotYet`] where
//! the event has to wait, and an [`Inconsistency`] where no other event could make it fit.

mod adopt;
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
use crate::table::{SeededState, Table};
use state::{ActiveTask, Goroutine, Proc, Seq, Threads};
use std::collections::HashMap;
use trace_common::{IdMap, Limits};

/// Whether an event was taken.
pub(crate) type Advance = Result<(), Blocked>;

/// Why an event was not taken.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// Others have to come first.
    NotYet,
    /// It can never be. (Boxed, so that results are small: there is one for every event.)
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

/// State of all goroutines, procs and threads at a point of the trace.
#[derive(Debug)]
pub(crate) struct Ordering {
    goroutines: IdMap<Goroutine>,
    procs: IdMap<Proc>,
    threads: Threads,
    thread_index: HashMap<i64, u32, SeededState>,
    tasks: HashMap<u64, ActiveTask, SeededState>,
    gc_seq: u64,
    gc_phase: GcPhase,
    /// The generation of the events that come, and the first one that had any (or 0).
    generation: u64,
    initial_generation: u64,
    /// Events that the last one of the trace stands for, too; the next one last.
    following: Vec<Record>,
    pub(crate) work: Work,
}

/// The work that grows with the trace's state. Programs have few threads, and traces whose clocks
/// agree hardly need any of it; but a trace made for it could make every event cost as much as
/// there are threads, and take forever.
#[derive(Debug)]
pub(crate) struct Work {
    /// Steps that it may still take.
    left: i64,
    /// [`Limits::max_work_per_byte`].
    per_byte: u32,
}

/// Steps that a trace may take however small it is, beyond those that every event takes.
const MIN_WORK: i64 = 1 << 24;

impl Work {
    /// Allows for the work that `bytes` of a trace may take.
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
        Err(ErrorKind::Limit { what, limit: self.per_byte as usize })
    }
}

/// The thread that an event is of, and what it holds.
#[derive(Clone, Copy)]
struct Context {
    slot: usize,
    m: ThreadId,
    p: ProcId,
    g: GoId,
    generation: u64,
}

/// What a handler needs of a thread, proc or goroutine in the context.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    MustNot,
    May,
}

impl Context {
    #[inline]
    fn needs(&self, p: Need, g: Need) -> Result<(), Blocked> {
        let fits = |need, there: bool| match need {
            Need::Must => there,
            Need::MustNot => !there,
            Need::May => true,
        };
        if self.m.is_some() && fits(p, self.p.is_some()) && fits(g, self.g.is_some()) {
            return Ok(());
        }
        let (what, wanted) = if !self.m.is_some() {
            ("thread", true)
        } else if !fits(p, self.p.is_some()) {
            ("proc", p == Need::Must)
        } else {
            ("goroutine", g == Need::Must)
        };
        Err(Inconsistency::Context { what, wanted }.into())
    }

    /// What events need that user code makes: a thread with a proc and a goroutine.
    #[inline]
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
            gc_seq: 0,
            gc_phase: GcPhase::Undetermined,
            generation: 0,
            initial_generation: 0,
            following: Vec::new(),
            work: Work { left: MIN_WORK, per_byte: limits.max_work_per_byte },
        }
    }

    /// The place of a thread in the table, which stays the same.
    pub(crate) fn slot_of(&mut self, id: ThreadId) -> u32 {
        let threads = &mut self.threads;
        *self.thread_index.entry(id.0).or_insert_with(|| threads.add(id))
    }

    /// A thread of which the trace has told something.
    fn known_thread(&self, id: ThreadId) -> Option<usize> {
        let slot = *self.thread_index.get(&id.0)? as usize;
        self.threads[slot].seen.then_some(slot)
    }

    /// The next event that the last one taken stands for, behind itself.
    #[inline]
    pub(crate) fn next_following(&mut self) -> Option<Record> {
        self.following.pop()
    }

    /// Forgets what [`Ordering::next_following`] would give.
    pub(crate) fn forget_following(&mut self) {
        self.following.clear();
    }

    /// States of live goroutines, procs and threads that are held.
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

    /// Takes `raw`, the next event of the thread at `slot`, if it fits what came before, and makes
    /// it the event to give out. [`Ordering::next_following`] has more that it stands for.
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
            // Clock snapshots look like timed events but are part of sync batches.
            ty => Err(ErrorKind::UnexpectedEvent(ty).into()),
        }
    }

    /// As [`Ordering::advance`], for events out of their turn and after damage: a function of its
    /// own, so that the other is in line only where nearly all events pass.
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

    /// The goroutine in the context.
    #[inline(always)]
    fn current_goroutine(&mut self, c: Context) -> Result<&mut Goroutine, Blocked> {
        let unknown = || Inconsistency::Unknown { what: "goroutine", id: c.g.0 }.into();
        self.goroutines.get_mut(c.g.0).ok_or_else(unknown)
    }

    /// The goroutine in the context, which must have this status.
    #[inline(always)]
    fn goroutine_in(&mut self, c: Context, status: u8) -> Result<&mut Goroutine, Blocked> {
        let goroutine = self.current_goroutine(c)?;
        if goroutine.status == status { Ok(goroutine) } else { Err(wrong_goroutine(c.g).into()) }
    }

    /// The proc in the context.
    #[inline]
    fn current_proc(&mut self, c: Context) -> Result<&mut Proc, Blocked> {
        let unknown = || Inconsistency::Unknown { what: "proc", id: c.p.0 }.into();
        self.procs.get_mut(c.p.0).ok_or_else(unknown)
    }

    /// Binds a goroutine, or none, to the thread of the context.
    #[inline]
    fn bind_goroutine(&mut self, c: Context, g: GoId) {
        // Events that belong to no thread have no context to change.
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
    // On the wire 0 means that there is no parent, not the background task.
    if parent.0 == TaskId::BACKGROUND.0 { TaskId::NONE } else { parent }
}
