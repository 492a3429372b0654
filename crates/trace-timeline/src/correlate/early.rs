//! Wake-ups of which it is known later that the thread waited for a CPU since then.
//!
//! The wake-up of a thread that has begun to sleep can come before the switch away from it. The kernel
//! puts the thread in the queue of its CPU once it has left, and no other record says so. If it gets a
//! CPU, and no other wake-up came, then that one has ended its sleep at once.
//!
//! A thread can also be woken on a CPU of which no switch was recorded so far. If none ever is, then nothing
//! says when the thread gets it. Otherwise the CPU was idle, and the thread waited until it gets one. The same
//! holds where only switches of other threads were recorded.
//!
//! For which CPU it waited is the one that it gets, as that of other woken threads: see [`waits`](super::waits).
//!
//! It is known only then. The open interval of the thread, and of what it executes, is changed.
//! Intervals that have ended meanwhile stay as they are, and so do times that were read.

use super::place::{Kind, Place, Running, Seen};
use super::{Correlator, Out};
use crate::entity::EntityId;
use trace_common::Timestamp;

/// When a thread was woken on its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WokenOnCpu(Timestamp);

impl Default for WokenOnCpu {
    fn default() -> Self {
        Self::NEVER
    }
}

impl WokenOnCpu {
    pub(super) const NEVER: Self = Self(Timestamp::from_nanos(i64::MIN));

    pub(super) const fn at(at: Timestamp) -> Self {
        Self(at)
    }

    /// Whether it can be the wake-up of a sleep that begins now.
    ///
    /// The thread may also have gone on, and sleep for another reason, whose wake-up is missing: Linux
    /// 6.18 leaves some out. Between the begin of a sleep and the record of the switch are
    /// microseconds.
    pub(super) const fn is_for_sleep(self, at: Timestamp) -> bool {
        const MOST: i64 = 1_000_000;
        at.nanos_since(self.0) <= MOST
    }
}

/// A thread that sleeps, and was woken just before; or one that is unknown since it was woken on a CPU without
/// switches that would show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken {
    /// Since when it waits, if it does.
    pub(super) since: Timestamp,
    /// The CPU that it had, or on which it was woken.
    pub(super) cpu: EntityId,
}

impl Correlator {
    /// A thread comes to this place, and may have waited for a CPU.
    #[cold]
    pub(super) fn end_early_wait(
        &mut self,
        thread: EntityId,
        place: Place,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(woken) = self.woken.remove(&thread) else { return };
        let is_recorded = self.cpus.get(woken.cpu.key()).is_some_and(|cpu| cpu.is_recorded);
        if !place.is_on_cpu() || !is_recorded {
            return;
        }
        let cpu = place.cpu().and_then(|cpu| self.cpus.get(cpu.key()));
        // It is one interval, and has one occupant.
        let running = cpu.map_or(Running::UNKNOWN, |cpu| cpu.last_since(woken.since));
        let running = running.other_than(thread);
        let seen = Seen::new(Place::new(Kind::Woken, place.cpu()), running);
        let before = Seen::new(self.place(thread), Running::UNKNOWN);
        for id in self.executed_by(thread) {
            let Some(subject) = self.subjects.get_mut(id.key()) else { continue };
            if subject.shown.kernel != before || !subject.has_intervals(self.options) {
                continue;
            }
            // It may have been unknown before it was woken.
            subject.learn_kernel(id, seen, woken.since, self.options, out);
        }
    }
}
