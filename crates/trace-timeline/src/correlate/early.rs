//! Threads that are woken before they have left their CPU.
//!
//! The wake-up of a thread that has begun to sleep can come before the switch away from it. The kernel
//! puts the thread in the queue of its CPU once it has left, and no other record says so. If it gets a
//! CPU, and no other wake-up came, then that one has ended its sleep at once.
//!
//! It is known only then. The open interval of the thread, and of what it executes, is changed.
//! Intervals that have ended meanwhile stay as they are, and so do times that were read.

use super::place::{Kind, Place, Running, Seen};
use super::{Correlator, Cpu, queued};
use crate::entity::{EntityId, EntityKind};
use trace_common::{IdMap, Timestamp};

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

/// A thread that sleeps, and was woken just before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken {
    /// The CPU that it had.
    cpu: EntityId,
    /// What that CPU executed next.
    next: Running,
    /// The switches of that CPU until then.
    switches: u64,
}

impl Woken {
    /// Of a thread that has left this place.
    pub(super) fn before(place: Place, cpus: &IdMap<Cpu>) -> Option<Self> {
        let cpu = place.cpu()?;
        let Cpu { running, switches, .. } = *cpus.get(cpu.key())?;
        Some(Self { cpu, next: running, switches })
    }

    /// What the kernel did with it until it got a CPU, or the same one, by a switch that is counted.
    fn seen(self, thread: EntityId, is_same: bool, cpus: &IdMap<Cpu>) -> Seen {
        let switches = cpus.get(self.cpu.key()).map_or(0, |cpu| cpu.switches);
        // An interval has one occupant.
        let is_alone = switches == self.switches + u64::from(is_same);
        let running = if is_alone { self.next } else { Running::UNKNOWN };
        queued(thread, Place::new(Kind::Woken, Some(self.cpu)), running)
    }
}

impl Correlator {
    /// A thread comes to this place, and may have slept.
    #[cold]
    pub(super) fn end_sleep(&mut self, thread: EntityId, place: Place, at: Timestamp) {
        let Some(woken) = self.woken.remove(&thread) else { return };
        if !place.is_on_cpu() {
            return;
        }
        let seen = woken.seen(thread, place.is_on(woken.cpu), &self.cpus);
        let Some(subject) = self.subjects.get_mut(thread.key()) else { return };
        let asleep = Seen::new(subject.place, Running::UNKNOWN);
        subject.times = subject.times_at(at);
        subject.place = seen.place();
        for id in self.executed_by(thread) {
            let Some(subject) = self.subjects.get_mut(id.key()) else { continue };
            if subject.shown.kernel == asleep {
                subject.shown.kernel = seen;
                if subject.kind == EntityKind::Thread {
                    subject.shown.state = seen.state();
                }
            }
        }
    }
}
