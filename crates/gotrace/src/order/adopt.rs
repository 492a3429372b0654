//! Adopting the state that an event implies, for events whose predecessors are lost.
//!
//! In an undamaged trace, an event is rejected if the goroutine, proc or thread is not in the state
//! that the event requires. After damage the event is more reliable than the tracked state:
//! [`Ordering::adopt`] changes the state so that [`Ordering::advance`] accepts the event. A
//! goroutine or proc that must exist but that no event has named gets a
//! [placeholder](Ordering::hide_placeholders).

use super::ranges::start_of;
use super::state::{GoStatus, Goroutine, Name, Proc, ProcStatus, Seq, UserRegion};
use super::{Context, GcPhase, Ordering};
use crate::error::ErrorKind;
use crate::event::Record;
use crate::frontier::RawEvent;
use crate::id::{GoId, ProcId, TaskId, ThreadId};
use crate::spec::EventType;
use crate::table::Table;

/// Identifiers up to this one are placeholders: one per thread.
const LAST_PLACEHOLDER: i64 = i64::MIN + u32::MAX as i64;

const fn placeholder(slot: usize) -> i64 {
    i64::MIN + slot as i64
}

fn hide(id: &mut i64, none: i64) {
    if *id <= LAST_PLACEHOLDER {
        *id = none;
    }
}

impl Ordering {
    /// Changes the state so that `raw`, the next event of the thread at `slot`, is acceptable.
    ///
    /// Some events are rejected in any state: those with an invalid status, and those that require
    /// a thread and have none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] if it takes too many steps.
    pub(crate) fn adopt(
        &mut self,
        raw: &RawEvent,
        slot: u32,
        table: &Table,
    ) -> Result<(), ErrorKind> {
        let thread = &mut self.threads[slot as usize];
        thread.seen = thread.id.is_some();
        let (slot, generation) = (slot as usize, self.generation);
        let c = Context { slot, m: thread.id, p: thread.p, g: thread.g, generation };
        self.adopt_in(c, raw, table)?;
        if !c.m.is_some() {
            // Events without a thread have no context to change.
            (self.threads[slot].g, self.threads[slot].p) = (GoId::NONE, ProcId::NONE);
        }
        Ok(())
    }

    fn adopt_in(&mut self, c: Context, raw: &RawEvent, table: &Table) -> Result<(), ErrorKind> {
        use EventType as T;
        // Most events begin with an identifier, and in some a sequence number follows it.
        let [id, seq, ..] = raw.args();
        let go = id as i64;
        let before = |number: u64| c.seq(number.wrapping_sub(1));
        let first = c.generation == self.initial_generation;
        let range = start_of(raw.ty);
        match raw.ty {
            T::GO_START => {
                self.adopt_proc(c, |_| {});
                self.unbind_goroutine(c);
                self.release_goroutine(go)?;
                self.set_goroutine(go, GoStatus::Runnable, before(seq));
            }
            T::GO_UNBLOCK => {
                self.release_goroutine(go)?;
                self.set_goroutine(go, GoStatus::Waiting, before(seq));
            }
            T::GO_STOP
            | T::GO_BLOCK
            | T::GO_DESTROY
            | T::PROCS_CHANGE
            | T::GO_LABEL
            | T::USER_LOG
            | T::USER_TASK_END
            | T::USER_REGION_BEGIN => self.adopt_user_code(c),
            T::GO_SYSCALL_BEGIN => {
                self.adopt_user_code(c);
                self.adopt_proc(c, |proc| proc.seq = before(id));
            }
            T::GO_SYSCALL_END => {
                self.adopt_proc(c, |proc| proc.status = ProcStatus::Syscall);
                self.adopt_goroutine(c, |goroutine| goroutine.status = GoStatus::Syscall);
            }
            T::GO_SYSCALL_END_BLOCKED => {
                let proc = self.procs.get_mut(c.p.0);
                if proc.is_some_and(|proc| proc.status == ProcStatus::Syscall) {
                    self.unbind_proc(c);
                }
                self.adopt_goroutine(c, |goroutine| goroutine.status = GoStatus::Syscall);
            }
            T::GO_CREATE | T::GO_CREATE_BLOCKED => {
                self.adopt_proc(c, |_| {});
                if c.g.is_some() {
                    self.adopt_goroutine(c, |goroutine| goroutine.status = GoStatus::Running);
                }
                self.forget_goroutine(go)?;
            }
            T::GO_CREATE_SYSCALL => {
                self.unbind_goroutine(c);
                self.forget_goroutine(go)?;
            }
            T::GO_DESTROY_SYSCALL => {
                self.adopt_goroutine(c, |goroutine| goroutine.status = GoStatus::Syscall);
                if c.p.is_some() {
                    self.adopt_proc(c, |proc| proc.status = ProcStatus::Syscall);
                }
            }
            T::GO_SWITCH | T::GO_SWITCH_DESTROY => {
                self.adopt_user_code(c);
                self.release_goroutine(go)?;
                self.set_goroutine(go, GoStatus::Waiting, before(seq));
            }
            T::GO_STATUS | T::GO_STATUS_STACK => self.adopt_go_status(c, raw)?,
            T::PROC_START => {
                self.unbind_proc(c);
                self.release_proc(id as i64)?;
                self.set_proc(id as i64, ProcStatus::Idle, before(seq));
            }
            T::PROC_STOP => self.adopt_proc(c, |proc| proc.status = ProcStatus::Running),
            T::PROC_STEAL => self.adopt_steal(c, raw)?,
            T::PROC_STATUS => self.adopt_proc_status(c, raw)?,
            T::HEAP_ALLOC | T::HEAP_GOAL => self.adopt_proc(c, |_| {}),
            T::STW_BEGIN | T::GC_MARK_ASSIST_BEGIN | T::STW_END | T::GC_MARK_ASSIST_END => {
                let open = matches!(raw.ty, T::STW_END | T::GC_MARK_ASSIST_END);
                self.adopt_user_code(c);
                self.adopt_goroutine(c, |goroutine| goroutine.open().ranges.set(range, open));
            }
            T::GC_MARK_ASSIST_ACTIVE => {
                let seq = c.seq(0);
                self.with_goroutine(go, GoStatus::Waiting, seq, |goroutine| {
                    goroutine.open().ranges.set(range, !first);
                });
            }
            T::GC_ACTIVE | T::GC_BEGIN | T::GC_END => self.adopt_gc_phase(c, raw),
            T::GC_SWEEP_BEGIN | T::GC_SWEEP_END => {
                self.adopt_proc(c, |proc| proc.ranges.set(range, raw.ty == T::GC_SWEEP_END));
            }
            T::GC_SWEEP_ACTIVE => {
                let seq = c.seq(0);
                self.with_proc(id as i64, ProcStatus::Idle, seq, |proc| {
                    proc.ranges.set(range, !first);
                });
            }
            T::USER_TASK_BEGIN => {
                self.adopt_user_code(c);
                self.tasks.remove(&id);
            }
            T::USER_REGION_END => {
                self.adopt_user_code(c);
                self.adopt_goroutine(c, |goroutine| end_region(goroutine, TaskId(id), seq, table));
            }
            _ => {}
        }
        Ok(())
    }

    /// Replaces placeholders by "none" in an event that is about to be returned.
    pub(crate) fn hide_placeholders(event: &mut Record) {
        hide(&mut event.g.0, GoId::NONE.0);
        hide(&mut event.p.0, ProcId::NONE.0);
        if event.ty == EventType::PROC_STEAL {
            let mut proc = event.named_proc();
            hide(&mut proc.0, ProcId::NONE.0);
            event.set_named_proc(proc);
        }
    }

    /// Changes the state of a goroutine, which is added if it is unknown.
    fn with_goroutine(
        &mut self,
        id: i64,
        status: GoStatus,
        seq: Seq,
        change: impl FnOnce(&mut Goroutine),
    ) {
        if !self.goroutines.contains(id) {
            self.goroutines.insert(id).reset(status, seq);
        }
        if let Some(goroutine) = self.goroutines.get_mut(id) {
            change(goroutine);
        }
    }

    fn set_goroutine(&mut self, id: i64, status: GoStatus, seq: Seq) {
        self.with_goroutine(id, status, seq, |goroutine| {
            (goroutine.status, goroutine.seq) = (status, seq);
        });
    }

    /// Changes the state of a proc, which is added if it is unknown.
    fn with_proc(&mut self, id: i64, status: ProcStatus, seq: Seq, change: impl FnOnce(&mut Proc)) {
        if !self.procs.contains(id) {
            self.procs.insert(id).reset(status, seq);
        }
        if let Some(proc) = self.procs.get_mut(id) {
            change(proc);
        }
    }

    fn set_proc(&mut self, id: i64, status: ProcStatus, seq: Seq) {
        self.with_proc(id, status, seq, |proc| (proc.status, proc.seq) = (status, seq));
    }

    /// Sets the goroutine of the thread: a placeholder if none is known.
    fn adopt_goroutine(&mut self, c: Context, change: impl FnOnce(&mut Goroutine)) {
        let g = &mut self.threads[c.slot].g;
        if !g.is_some() {
            *g = GoId(placeholder(c.slot));
        }
        let g = g.0;
        self.with_goroutine(g, GoStatus::Running, c.seq(0), change);
    }

    /// Sets the proc of the thread: a placeholder if none is known.
    fn adopt_proc(&mut self, c: Context, change: impl FnOnce(&mut Proc)) {
        let p = &mut self.threads[c.slot].p;
        if !p.is_some() {
            *p = ProcId(placeholder(c.slot));
        }
        let p = p.0;
        self.with_proc(p, ProcStatus::Running, c.seq(0), change);
    }

    /// Makes the thread run a goroutine on a proc.
    fn adopt_user_code(&mut self, c: Context) {
        self.adopt_proc(c, |_| {});
        self.adopt_goroutine(c, |goroutine| goroutine.status = GoStatus::Running);
    }

    /// Takes the goroutine from the thread: a goroutine that it had must have blocked.
    fn unbind_goroutine(&mut self, c: Context) {
        let g = std::mem::replace(&mut self.threads[c.slot].g, GoId::NONE);
        if let Some(goroutine) = self.goroutines.get_mut(g.0).filter(|_| g.is_some()) {
            goroutine.status = GoStatus::Waiting;
        }
    }

    /// Takes the proc from the thread: a proc that it had must have stopped.
    fn unbind_proc(&mut self, c: Context) {
        let p = std::mem::replace(&mut self.threads[c.slot].p, ProcId::NONE);
        if let Some(proc) = self.procs.get_mut(p.0).filter(|_| p.is_some()) {
            proc.status = ProcStatus::Idle;
        }
    }

    /// Takes the goroutine from all threads.
    fn release_goroutine(&mut self, id: i64) -> Result<(), ErrorKind> {
        self.work.charge(self.threads.len())?;
        let threads = self.threads.iter_mut().filter(|thread| thread.g.0 == id);
        threads.for_each(|thread| thread.g = GoId::NONE);
        Ok(())
    }

    /// Takes the proc from all threads.
    fn release_proc(&mut self, id: i64) -> Result<(), ErrorKind> {
        self.work.charge(self.threads.len())?;
        let threads = self.threads.iter_mut().filter(|thread| thread.p.0 == id);
        threads.for_each(|thread| thread.p = ProcId::NONE);
        Ok(())
    }

    /// Makes the goroutine nonexistent. (Its end was lost, or the identifier belongs to another
    /// one.)
    fn forget_goroutine(&mut self, id: i64) -> Result<(), ErrorKind> {
        self.release_goroutine(id)?;
        self.goroutines.remove(id);
        Ok(())
    }

    fn adopt_go_status(&mut self, c: Context, raw: &RawEvent) -> Result<(), ErrorKind> {
        let [g, m, status, _] = raw.args();
        let (g, m) = (g as i64, ThreadId(m as i64));
        let Some(status) = GoStatus::new(status as u8).filter(|s| *s != GoStatus::Bad) else {
            return Ok(()); // the event will be rejected
        };
        self.release_goroutine(g)?;
        self.set_goroutine(g, status, c.seq(0));
        if status == GoStatus::Syscall && m.is_some() {
            let thread = self.slot_of(m) as usize;
            let thread = &mut self.threads[thread];
            (thread.seen, thread.g) = (true, GoId(g));
        }
        Ok(())
    }

    fn adopt_steal(&mut self, c: Context, raw: &RawEvent) -> Result<(), ErrorKind> {
        let [p, seq, m, _] = raw.args();
        let (p, m) = (p as i64, ThreadId(m as i64));
        let seq = c.seq(seq.wrapping_sub(1));
        let abandoned =
            self.procs.get_mut(p).is_some_and(|p| p.status == ProcStatus::SyscallAbandoned);
        if abandoned || !m.is_some() {
            self.set_proc(p, ProcStatus::SyscallAbandoned, seq);
            return Ok(());
        }
        self.release_proc(p)?;
        self.set_proc(p, ProcStatus::Syscall, seq);
        let thread = self.slot_of(m) as usize;
        let thread = &mut self.threads[thread];
        (thread.seen, thread.p) = (true, ProcId(p));
        Ok(())
    }

    fn adopt_proc_status(&mut self, c: Context, raw: &RawEvent) -> Result<(), ErrorKind> {
        let [p, status, ..] = raw.args();
        let p = p as i64;
        let Some(status) = ProcStatus::new(status).filter(|s| *s != ProcStatus::Bad) else {
            return Ok(()); // the event will be rejected
        };
        let known = self.procs.get_mut(p).map(|proc| proc.status);
        let continues =
            status == ProcStatus::SyscallAbandoned && known == Some(ProcStatus::Syscall);
        self.work.charge(self.threads.len())?;
        if !continues || !self.threads.iter().any(|thread| thread.seen && thread.p.0 == p) {
            self.release_proc(p)?;
            self.set_proc(p, status, c.seq(0));
        }
        Ok(())
    }

    fn adopt_gc_phase(&mut self, c: Context, raw: &RawEvent) {
        let first = self.generation == self.initial_generation;
        self.gc_seq = raw.args()[0].wrapping_sub(1);
        self.gc_phase = match raw.ty {
            EventType::GC_ACTIVE if first => GcPhase::Undetermined,
            EventType::GC_BEGIN => GcPhase::NotRunning,
            _ => GcPhase::Running,
        };
        if raw.ty != EventType::GC_ACTIVE || !first {
            self.adopt_user_code(c);
        }
    }
}

/// Makes the region that ends the innermost one.
fn end_region(goroutine: &mut Goroutine, task: TaskId, id: u64, table: &Table) {
    let regions = &mut goroutine.open().regions;
    if regions.is_empty() {
        return; // the region began before the trace
    }
    let name = Name::Current(id);
    // The name may be lost.
    let ends = |region: &UserRegion| {
        let [begun, ended] = [&region.name, &name].map(|name| name.bytes(table));
        region.task == task && (begun == ended || begun.is_empty() || ended.is_empty())
    };
    if let Some(index) = regions.iter().rposition(ends) {
        regions.truncate(index); // the ends of nested regions were lost
    }
    regions.push(UserRegion { task, name });
}
