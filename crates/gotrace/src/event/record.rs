//! Events without the tables that their identifiers refer to.

use crate::id::{GoId, GoState, ProcId, ProcState, TaskId, ThreadId};
use crate::spec::{EventType, MAX_ARGS};

/// The [`Record::ty`] of sync events, which the reader generates.
pub(crate) const SYNC: EventType = EventType(u8::MAX);

/// An event without the table that its identifiers refer to.
///
/// The arguments are those of the wire format ([`EventSpec::args`](crate::EventSpec::args) without
/// the time), and methods name those that are used. What the ordering adds is in `from` and `to`, and
/// in arguments that have methods to set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) time: i64,
    pub(crate) args: [u64; MAX_ARGS],
    pub(crate) g: GoId,
    pub(crate) p: ProcId,
    pub(crate) m: ThreadId,
    pub(crate) ty: EventType,
    /// The states of status events and steals, and of others that report the state at the start of a
    /// range of time; for the begin of an activity that is reported then, `from` only marks it.
    pub(crate) from: State,
    pub(crate) to: State,
}

/// A state of a goroutine or a proc; the type of the event determines which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    None,
    Go(GoState),
    Proc(ProcState),
}

impl Record {
    pub(crate) const fn new(ty: EventType, time: i64, args: [u64; MAX_ARGS]) -> Self {
        Self {
            time,
            args,
            g: GoId::NONE,
            p: ProcId::NONE,
            m: ThreadId::NONE,
            ty,
            from: State::None,
            to: State::None,
        }
    }

    /// The sync event number `n`; `with_tables` at the start of a generation.
    pub(crate) const fn sync(time: i64, n: u64, with_tables: bool) -> Self {
        Self::new(SYNC, time, [n, with_tables as u64, 0, 0])
    }

    pub(crate) const fn sync_number(&self) -> u64 {
        self.args[0]
    }

    /// Whether the sync event is at the start of a generation.
    pub(crate) const fn has_tables(&self) -> bool {
        self.args[1] != 0
    }

    /// Marks a sync event: the generations before it are damaged.
    pub(crate) const fn restart(&mut self) {
        self.args[2] = 1;
    }

    /// Whether this is the sync event before damage in the first generation, whose time is none of the
    /// trace.
    #[inline(always)]
    pub(crate) const fn is_without_time(&self) -> bool {
        self.ty.0 == SYNC.0 && self.sync_number() == 1 && !self.has_tables() && self.time == 1
    }

    /// Whether all states from before this sync event may be wrong, because the generations before
    /// it are damaged. What exists is mentioned again after it, as at the start of a trace.
    #[inline(always)]
    pub(crate) const fn restarts(&self) -> bool {
        self.ty.0 == SYNC.0 && self.args[2] != 0
    }

    /// The state that a goroutine leaves: `usual`, unless the record reports the state at the start of
    /// a range of time.
    #[inline(always)]
    pub(crate) const fn go_from(&self, usual: GoState) -> GoState {
        match self.from {
            State::Go(from) => from,
            _ => usual,
        }
    }

    /// Marks the begin of an activity: it began before the range of time that is analysed.
    pub(crate) const fn set_began_before(&mut self) {
        self.from = State::Go(GoState::Undetermined);
    }

    /// Whether an activity began before the event that is its begin.
    pub(crate) const fn began_before(&self) -> bool {
        !matches!(self.from, State::None)
    }

    /// The goroutine that the event names: one that it starts, unblocks, creates or reports.
    #[inline(always)]
    pub(crate) const fn named_goroutine(&self) -> GoId {
        GoId(self.args[0] as i64)
    }

    /// The proc that the event names: one that it starts, steals or reports.
    #[inline(always)]
    pub(crate) const fn named_proc(&self) -> ProcId {
        ProcId(self.args[0] as i64)
    }

    pub(crate) const fn set_named_proc(&mut self, proc: ProcId) {
        self.args[0] = proc.0 as u64;
    }

    /// The thread that the status of a goroutine names.
    pub(crate) const fn status_thread(&self) -> ThreadId {
        ThreadId(self.args[1] as i64)
    }

    pub(crate) const fn set_status_thread(&mut self, thread: ThreadId) {
        self.args[1] = thread.0 as u64;
    }

    /// Whether this reports the state of a goroutine at the start of a v1 trace. It names no thread,
    /// and its context is that of the goroutine that started tracing.
    pub(crate) fn is_of_v1_start(&self) -> bool {
        self.ty == EventType::GO_STATUS && self.status_thread() == ThreadId::NONE
    }

    /// The stack of a goroutine that is created.
    #[inline(always)]
    pub(crate) const fn new_stack(&self) -> u64 {
        self.args[1]
    }

    /// The reason of `GoStop` and `GoBlock`, a string.
    #[inline(always)]
    pub(crate) const fn stop_reason(&self) -> u64 {
        self.args[0]
    }

    /// Adds the reason of the stop-the-world, a string, to its end: at the same place as in its begin.
    pub(crate) const fn set_stw_reason(&mut self, reason: u64) {
        self.args[0] = reason;
    }

    /// The task of an annotation.
    #[inline(always)]
    pub(crate) const fn task(&self) -> TaskId {
        TaskId(self.args[0])
    }

    /// The type of a region, a string.
    #[inline(always)]
    pub(crate) const fn region_type(&self) -> u64 {
        self.args[1]
    }

    /// The type of a task that begins, a string.
    pub(crate) const fn begun_type(&self) -> u64 {
        self.args[2]
    }

    /// The parent of a task that begins.
    pub(crate) const fn begun_parent(&self) -> TaskId {
        TaskId(self.args[1])
    }

    pub(crate) const fn set_begun_parent(&mut self, parent: TaskId) {
        self.args[1] = parent.0;
    }

    /// The parent of a task that ends, and its type: a number for [`Table::any`](crate::table::Table::any).
    pub(crate) const fn ended_task(&self) -> (TaskId, u64) {
        (TaskId(self.args[2]), self.args[3])
    }

    /// Adds the parent and the type of the task to its end.
    pub(crate) const fn set_ended_task(&mut self, parent: TaskId, ty: u64) {
        (self.args[2], self.args[3]) = (parent.0, ty);
    }
}
