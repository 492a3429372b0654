//! Proc events: start, stop, steal.

use super::state::ProcStatus;
use super::{Advance, Blocked, Context, Need, Ordering, wrong_proc};
use crate::error::Inconsistency;
use crate::event::{Record, State};
use crate::frontier::RawEvent;
use crate::id::{ProcId, ProcState, ThreadId};

impl Ordering {
    /// The status of a proc at the start of a generation.
    pub(super) fn proc_status(&mut self, c: Context, event: &mut Record) -> Advance {
        use ProcStatus::{Running, Syscall, SyscallAbandoned};
        let [p, number, ..] = event.args;
        self.report(c);
        let p = ProcId(p as i64);
        let Some(status) = ProcStatus::new(number) else {
            return Err(
                Inconsistency::InvalidStatus { what: "proc", id: p.0, status: number }.into()
            );
        };
        let state = status.state();
        let (mut from, mut to) = (state, state);
        // Whether the thread that the proc is about to be stolen from is known after all.
        let mut in_known_syscall = false;
        match self.procs.get_mut(p.0) {
            Some(proc) => {
                match (proc.status, status) {
                    (Syscall, SyscallAbandoned) => {
                        in_known_syscall = true;
                        (from, to) = (ProcState::Running, ProcState::Running);
                    }
                    (old, new) if old == new => {}
                    _ => return Err(wrong_proc(p).into()),
                }
                proc.seq = c.seq(0);
            }
            None => {
                self.assume_proc(c, p, status)?;
                from = if self.assumed.is_some() {
                    state
                } else if c.generation == self.initial_generation {
                    ProcState::Undetermined
                } else {
                    ProcState::NotExist
                };
                self.procs.insert(p.0).reset(status, c.seq(0));
            }
        }
        (event.from, event.to) = (State::Proc(from), State::Proc(to));
        if status == Running || status == Syscall {
            self.bind_proc(c, p);
        }
        if in_known_syscall {
            // It keeps running, which must be reported in the context that it is bound to; the
            // status most likely comes from another thread.
            self.work.charge(self.threads.len())?;
            let bound = self.threads.iter().find(|t| t.seen && t.p == p);
            let Some(thread) = bound else {
                return Err(Inconsistency::Unknown { what: "thread of proc", id: p.0 }.into());
            };
            let (m, g) = (thread.id, thread.g);
            (event.m, event.p, event.g) = (m, p, g);
        }
        Ok(())
    }

    pub(super) fn proc_start(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let [p, seq, ..] = raw.args();
        let (p, seq) = (ProcId(p as i64), c.seq(seq));
        let Some(proc) = self.procs.get_mut(p.0) else { return Err(Blocked::NotYet) };
        // If the thread still has a proc, it is in a system call and that proc is yet to be stolen.
        if proc.status != ProcStatus::Idle || !seq.succeeds(proc.seq) || c.p.is_some() {
            return Err(Blocked::NotYet);
        }
        // There may be a goroutine: one that returns from a system call.
        c.needs(Need::MustNot, Need::May)?;
        (proc.status, proc.seq) = (ProcStatus::Running, seq);
        self.bind_proc(c, p);
        Ok(())
    }

    /// The thread stops its own proc, which needs no sequence number.
    pub(super) fn proc_stop(&mut self, c: Context) -> Advance {
        let proc = self.current_proc(c)?;
        if !matches!(proc.status, ProcStatus::Running | ProcStatus::Syscall) {
            return Err(wrong_proc(c.p).into());
        }
        c.needs(Need::Must, Need::May)?;
        proc.status = ProcStatus::Idle;
        self.bind_proc(c, ProcId::NONE);
        Ok(())
    }

    /// A thread steals the proc of a thread that is in a system call.
    pub(super) fn proc_steal(&mut self, c: Context, event: &mut Record) -> Advance {
        use ProcStatus::{Syscall, SyscallAbandoned};
        let [p, seq, m, _] = event.args;
        let (p, seq, m) = (ProcId(p as i64), c.seq(seq), ThreadId(m as i64));
        let Some(proc) = self.procs.get_mut(p.0) else { return Err(Blocked::NotYet) };
        let old = proc.status;
        if !matches!(old, Syscall | SyscallAbandoned) || !seq.succeeds(proc.seq) {
            return Err(Blocked::NotYet);
        }
        c.needs(Need::May, Need::May)?;
        (proc.status, proc.seq) = (ProcStatus::Idle, seq);
        // An abandoned proc has been reported as idle already.
        let abandoned = old == SyscallAbandoned;
        let runs = !abandoned || self.assume_stolen(p, m)?;
        let from = if runs { ProcState::Running } else { ProcState::Idle };
        (event.from, event.to) = (State::Proc(from), State::Proc(ProcState::Idle));
        if abandoned {
            // The state of its thread is unknown by now.
            return Ok(());
        }
        let other = if m == c.m {
            c.slot
        } else {
            self.known_thread(m).ok_or(Inconsistency::Unknown { what: "thread", id: m.0 })?
        };
        let thread = &mut self.threads[other];
        if thread.p != p {
            let (thread, found, expected) = (m.0, thread.p.0, p.0);
            return Err(
                Inconsistency::WrongBinding { thread, what: "proc", found, expected }.into()
            );
        }
        // That thread can now reach the end of its system call.
        thread.p = ProcId::NONE;
        Ok(())
    }
}
