//! Ranges of time: stop-the-world, garbage collection, sweeping, mark assists.

use super::state::Ranges;
use super::{Advance, Blocked, Context, GcPhase, Need, Ordering};
use crate::error::Inconsistency;
use crate::event::Record;
use crate::frontier::RawEvent;
use crate::id::GoId;
use crate::spec::EventType;

/// Returns the event type that begins the kind of range that `ty` refers to.
pub(super) fn start_of(ty: EventType) -> EventType {
    match ty.spec() {
        Some(spec) if spec.start != EventType(0) => spec.start,
        _ => ty,
    }
}

impl Ordering {
    /// Returns the open ranges of a goroutine, and counts the work of searching them.
    fn go_ranges(&mut self, g: GoId) -> Result<&mut Ranges, Blocked> {
        let unknown = Inconsistency::Unknown { what: "goroutine", id: g.0 };
        let ranges = &mut self.goroutines.get_mut(g.0).ok_or(unknown)?.open().ranges;
        self.work.charge(ranges.len())?;
        Ok(ranges)
    }

    pub(super) fn go_range_begin(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs_user_code()?;
        let why = if raw.ty == EventType::STW_BEGIN { raw.args()[0] } else { 0 };
        self.go_ranges(c.g)?.begin(start_of(raw.ty), why)
    }

    /// It may be reported for any goroutine, in any state.
    pub(super) fn go_range_active(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let first = c.generation == self.initial_generation;
        let (id, range) = (raw.args()[0] as i64, start_of(raw.ty));
        self.report(c);
        self.go_ranges(GoId(id))?.active(range, first)?;
        self.assume_go_range(id, range);
        Ok(())
    }

    pub(super) fn go_range_end(&mut self, c: Context, event: &mut Record) -> Advance {
        c.needs_user_code()?;
        let why = self.go_ranges(c.g)?.end(start_of(event.ty))?;
        if event.ty == EventType::STW_END {
            // The event itself does not contain the reason. With it, the argument equals that of
            // the begin.
            event.set_stw_reason(why);
        }
        Ok(())
    }

    pub(super) fn sweep_begin(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs(Need::Must, Need::May)?;
        self.current_proc(c)?.ranges.begin(start_of(raw.ty), 0)
    }

    pub(super) fn sweep_active(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let first = c.generation == self.initial_generation;
        let id = raw.args()[0] as i64;
        self.report(c);
        let unknown = Inconsistency::Unknown { what: "proc", id };
        let proc = self.procs.get_mut(id).ok_or(unknown)?;
        proc.ranges.active(start_of(raw.ty), first)?;
        self.assume_proc_range(id, start_of(raw.ty));
        Ok(())
    }

    pub(super) fn sweep_end(&mut self, c: Context, raw: &RawEvent) -> Advance {
        c.needs(Need::Must, Need::May)?;
        self.current_proc(c)?.ranges.end(start_of(raw.ty)).map(drop)
    }

    // The mark phase is global. Its begin and end may come from different threads, so both carry
    // sequence numbers of one sequence.

    pub(super) fn gc_active(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let seq = raw.args()[0];
        self.assume_gc(c, raw.ty, seq)?;
        if c.generation == self.initial_generation {
            if self.gc_phase != GcPhase::Undetermined {
                return Err(Inconsistency::GcPhase.into());
            }
        } else {
            if seq != self.gc_seq.wrapping_add(1) {
                return Err(Blocked::NotYet);
            }
            if self.gc_phase != GcPhase::Running {
                return Err(Inconsistency::GcPhase.into());
            }
            c.needs_user_code()?;
        }
        (self.gc_seq, self.gc_phase) = (seq, GcPhase::Running);
        Ok(())
    }

    pub(super) fn gc_begin(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let seq = raw.args()[0];
        self.assume_gc(c, raw.ty, seq)?;
        if self.gc_phase != GcPhase::Undetermined {
            if seq != self.gc_seq.wrapping_add(1) {
                return Err(Blocked::NotYet);
            }
            if self.gc_phase == GcPhase::Running {
                return Err(Inconsistency::GcPhase.into());
            }
            c.needs_user_code()?;
        }
        (self.gc_seq, self.gc_phase) = (seq, GcPhase::Running);
        Ok(())
    }

    pub(super) fn gc_end(&mut self, c: Context, raw: &RawEvent) -> Advance {
        let seq = raw.args()[0];
        if seq != self.gc_seq.wrapping_add(1) {
            return Err(Blocked::NotYet);
        }
        if self.gc_phase != GcPhase::Running {
            return Err(Inconsistency::GcPhase.into());
        }
        c.needs_user_code()?;
        (self.gc_seq, self.gc_phase) = (seq, GcPhase::NotRunning);
        Ok(())
    }
}
