//! Goroutine events: creation, start, stop, switch, system calls.

use super::state::{GoStatus, ProcStatus};
use super::{Advance, Blocked, Context, Need, Ordering, wrong_goroutine, wrong_proc};
use crate::error::Inconsistency;
use crate::event::{Record, State};
use crate::frontier::RawEvent;
use crate::id::{GoId, GoState, ProcId, ProcState, ThreadId};
use crate::spec::EventType;

impl Ordering {
    /// The status of a goroutine at the start of a generation; any thread may report it.
    pub(super) fn go_status(&mut self, c: Context, event: &mut Record) -> Advance {
        let [g, m, status, _] = event.args;
        let (g, m) = (GoId(g as i64), ThreadId(m as i64));
        // The format has one byte for it; the upper bits are ignored.
        let number = status as u8;
        let Some(status) = GoStatus::new(number) else {
            let status = u64::from(number);
            return Err(Inconsistency::InvalidStatus { what: "goroutine", id: g.0, status }.into());
        };
        let state = status.state();
        self.report(c);
        let first = c.generation == self.initial_generation;
        let mut from = state;
        let mut is_assumed = false;
        match self.goroutines.get_mut(g.0) {
            Some(goroutine) if goroutine.status == status => goroutine.seq = c.seq(0),
            Some(_) => return Err(wrong_goroutine(g).into()),
            None if first => {
                match self.assumed {
                    Some(_) => is_assumed = true,
                    None => from = GoState::Undetermined,
                }
                self.assume_goroutine(g, status)?;
                self.goroutines.insert(g.0).reset(status, c.seq(0));
            }
            // After the first generation, goroutines become known by their creation.
            None => return Err(Inconsistency::Unknown { what: "goroutine", id: g.0 }.into()),
        }
        (event.from, event.to) = (State::Go(from), State::Go(state));

        match status {
            GoStatus::Running => {
                if is_assumed {
                    self.assume_on_thread(c.slot, g)?;
                }
                self.bind_goroutine(c, g);
            }
            GoStatus::Syscall => {
                if !m.is_some() {
                    return Err(Inconsistency::Context { what: "thread", wanted: true }.into());
                }
                if m == c.m {
                    // After the first generation, the thread must have been seen entering it.
                    let must_be_known = !first || self.assumed.is_some() && !is_assumed;
                    if must_be_known && c.g != g {
                        return Err(other_goroutine(m, c.g, g).into());
                    }
                    if is_assumed {
                        self.assume_on_thread(c.slot, g)?;
                    }
                    self.bind_goroutine(c, g);
                } else {
                    // Another thread has been in this system call since before the generation. It
                    // has no proc, because procs in a system call are stopped when a generation
                    // starts.
                    self.go_status_elsewhere(event, g, m)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn go_status_elsewhere(
        &mut self,
        event: &mut Record,
        g: GoId,
        m: ThreadId,
    ) -> Result<(), Blocked> {
        match self.known_thread(m) {
            Some(other) => {
                let found = self.threads[other].g;
                if found != g {
                    return Err(other_goroutine(m, found, g).into());
                }
                event.g = found;
            }
            None => {
                let other = self.slot_of(m) as usize;
                self.assume_on_thread(other, g)?;
                let thread = &mut self.threads[other];
                (thread.seen, thread.g, thread.p) = (true, g, ProcId::NONE);
            }
        }
        event.m = m;
        Ok(())
    }

    pub(super) fn go_create(&mut self, c: Context, raw: &RawEvent) -> Advance {
        // The scheduler itself may create goroutines, so no goroutine needs to be running.
        c.needs(Need::Must, Need::May)?;
        let current = self.goroutines.get_mut(c.g.0);
        if current.is_some_and(|goroutine| goroutine.status != GoStatus::Running) {
            return Err(wrong_goroutine(c.g).into());
        }
        let id = raw.args()[0] as i64;
        if self.goroutines.contains(id) {
            return Err(Inconsistency::Exists { what: "goroutine", id }.into());
        }
        let status =
            if raw.ty == EventType::GO_CREATE { GoStatus::Runnable } else { GoStatus::Waiting };
        self.note_created(id);
        self.goroutines.insert(id).reset(status, c.seq(0));
        Ok(())
    }

    /// The running goroutine ends, yields or blocks.
    #[inline(always)]
    pub(super) fn go_stop(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs_user_code()?;
        let goroutine = self.goroutine_in(c, GoStatus::Running)?;
        match raw.ty {
            EventType::GO_BLOCK => goroutine.status = GoStatus::Waiting,
            EventType::GO_STOP => goroutine.status = GoStatus::Runnable,
            _ => {
                self.goroutines.remove(c.g.0);
            }
        }
        self.bind_goroutine(c, GoId::NONE);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn go_start(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let [g, seq, ..] = raw.args();
        let (g, seq) = (GoId(g as i64), c.seq(seq));
        let Some(goroutine) = self.goroutines.get_mut(g.0) else { return Err(Blocked::NotYet) };
        if goroutine.status != GoStatus::Runnable || !seq.succeeds(goroutine.seq) {
            return Err(Blocked::NotYet);
        }
        c.needs(Need::Must, Need::MustNot)?;
        (goroutine.status, goroutine.seq) = (GoStatus::Running, seq);
        self.bind_goroutine(c, g);
        Ok(())
    }

    /// Any thread may unblock a goroutine, even one without a proc.
    #[inline(always)]
    pub(super) fn go_unblock(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let [g, seq, ..] = raw.args();
        let (g, seq) = (g as i64, c.seq(seq));
        let Some(goroutine) = self.goroutines.get_mut(g) else { return Err(Blocked::NotYet) };
        if goroutine.status != GoStatus::Waiting || !seq.succeeds(goroutine.seq) {
            return Err(Blocked::NotYet);
        }
        (goroutine.status, goroutine.seq) = (GoStatus::Runnable, seq);
        Ok(())
    }

    /// A coroutine switch: unblocks the next goroutine, blocks or ends the current one, and starts
    /// the next. It is returned as those three events.
    pub(super) fn go_switch(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs_user_code()?;
        self.goroutine_in(c, GoStatus::Running)?;
        let (ty, time) = (raw.ty, raw.time);
        let [id, number, ..] = raw.args();
        let (g, seq) = (GoId(id as i64), c.seq(number));
        let Some(next) = self.goroutines.get_mut(g.0) else { return Err(Blocked::NotYet) };
        if next.status != GoStatus::Waiting || !seq.succeeds(next.seq) {
            return Err(Blocked::NotYet);
        }
        (next.status, next.seq) = (GoStatus::Running, seq);
        let in_context = |ty, g, args| Record { m: c.m, p: c.p, g, ..Record::new(ty, time, args) };
        let stop = if ty == EventType::GO_SWITCH {
            self.current_goroutine(c)?.status = GoStatus::Waiting;
            in_context(EventType::GO_BLOCK, c.g, [0; 4]) // no reason and no stack
        } else {
            self.goroutines.remove(c.g.0);
            in_context(EventType::GO_DESTROY, c.g, [0; 4])
        };
        let start = in_context(EventType::GO_START, GoId::NONE, [id, number, 0, 0]);
        self.following.extend([start, stop]);
        self.bind_goroutine(c, g);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn syscall_begin(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs_user_code()?;
        self.goroutine_in(c, GoStatus::Running)?.status = GoStatus::Syscall;
        // The proc's sequence number identifies the system call that a later steal of the proc
        // refers to. The proc is bound to this thread, so no other event can precede.
        let proc = self.current_proc(c)?;
        proc.status = ProcStatus::Syscall;
        let seq = c.seq(raw.args()[0]);
        if !seq.succeeds(proc.seq) {
            let (last, found) = (proc.seq.number, seq.number);
            return Err(Inconsistency::Sequence { id: c.p.0, last, found }.into());
        }
        proc.seq = seq;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn syscall_end(&mut self, c: Context) -> Advance {
        c.needs_user_code()?;
        self.goroutine_in(c, GoStatus::Syscall)?.status = GoStatus::Running;
        let proc = self.current_proc(c)?;
        if proc.status != ProcStatus::Syscall {
            return Err(wrong_proc(c.p).into());
        }
        proc.status = ProcStatus::Running;
        Ok(())
    }

    /// The end of a system call in which the thread lost its proc.
    pub(super) fn syscall_end_blocked(&mut self, c: Context) -> Advance {
        // While the proc counts as being in the system call, its steal is still to come. (The
        // thread may have a different proc already, which is then not in a system call.)
        if c.p.is_some() && self.current_proc(c)?.status == ProcStatus::Syscall {
            return Err(Blocked::NotYet);
        }
        c.needs(Need::May, Need::Must)?;
        self.goroutine_in(c, GoStatus::Syscall)?.status = GoStatus::Runnable;
        self.bind_goroutine(c, GoId::NONE);
        Ok(())
    }

    /// Creates a goroutine for a thread that C code created: it starts in a system call.
    pub(super) fn go_create_syscall(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs(Need::May, Need::MustNot)?;
        let id = raw.args()[0] as i64;
        if self.goroutines.contains(id) {
            return Err(Inconsistency::Exists { what: "goroutine", id }.into());
        }
        self.note_created(id);
        self.goroutines.insert(id).reset(GoStatus::Syscall, c.seq(0));
        self.bind_goroutine(c, GoId(id));
        Ok(())
    }

    /// Ends such a goroutine. If it still has a proc, the proc counts as stolen: the identifier of
    /// the thread may be reused before the runtime notices.
    pub(super) fn go_destroy_syscall(&mut self, c: Context, event: &mut Record) -> Advance {
        c.needs(Need::May, Need::Must)?;
        self.goroutine_in(c, GoStatus::Syscall)?;
        self.goroutines.remove(c.g.0);
        self.bind_goroutine(c, GoId::NONE);
        if c.p.is_some() {
            let proc = self.current_proc(c)?;
            if proc.status != ProcStatus::Syscall {
                return Err(wrong_proc(c.p).into());
            }
            proc.status = ProcStatus::SyscallAbandoned;
            self.bind_proc(c, ProcId::NONE);
            // The steal precedes the end.
            self.following.push(*event);
            *event = Record {
                ty: EventType::PROC_STEAL,
                args: [c.p.0 as u64, 0, 0, 0],
                from: State::Proc(ProcState::Running),
                to: State::Proc(ProcState::Idle),
                ..*event
            };
        }
        Ok(())
    }
}

const fn other_goroutine(thread: ThreadId, found: GoId, expected: GoId) -> Inconsistency {
    let (thread, found, expected) = (thread.0, found.0, expected.0);
    Inconsistency::WrongBinding { thread, what: "goroutine", found, expected }
}
