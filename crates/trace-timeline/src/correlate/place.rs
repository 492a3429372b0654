//! Where a kernel thread is, in numbers.
//!
//! The correlator copies and compares places several times for each context switch. As numbers
//! they stay in registers: enums of several sizes do not.

use super::{Kernel, Occupant};
use crate::entity::EntityId;
use crate::event::State;

/// Where a kernel thread is: its [`Kind`] above the key of the CPU on which it is, or in whose
/// queue it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Unknown,
    Absent,
    OnCpu,
    Preempted,
    /// The CPU is the one on which it last ran: the kernel may have chosen another one.
    Woken,
    /// Woken, and in the queue of this CPU.
    Queued,
    Sleeping,
    Blocked,
    Stopped,
}

impl Kind {
    #[inline]
    const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Absent,
            2 => Self::OnCpu,
            3 => Self::Preempted,
            4 => Self::Woken,
            5 => Self::Queued,
            6 => Self::Sleeping,
            7 => Self::Blocked,
            8 => Self::Stopped,
            _ => Self::Unknown,
        }
    }
}

/// The keys of entities are below.
const KIND: u32 = 32;

impl Place {
    pub(super) const UNKNOWN: Self = Self(Kind::Unknown as u64);

    #[inline]
    pub(super) fn new(kind: Kind, cpu: Option<EntityId>) -> Self {
        Self((kind as u64) << KIND | cpu.map_or(0, |cpu| cpu.key() as u64))
    }

    #[inline]
    pub(super) const fn kind(self) -> Kind {
        Kind::of_number(self.0 >> KIND)
    }

    #[inline]
    pub(super) fn cpu(self) -> Option<EntityId> {
        EntityId::from_key((self.0 & u64::from(u32::MAX)) as i64)
    }

    #[inline]
    pub(super) fn is_on(self, cpu: EntityId) -> bool {
        self == Self::new(Kind::OnCpu, Some(cpu))
    }

    #[inline]
    pub(super) const fn is_on_cpu(self) -> bool {
        self.0 >> KIND == Kind::OnCpu as u64
    }

    #[inline]
    pub(super) const fn is_queued(self) -> bool {
        // The kind is not decoded: that is a jump through a table.
        const PREEMPTED: u64 = Kind::Preempted as u64;
        const WOKEN: u64 = Kind::Woken as u64;
        const QUEUED: u64 = Kind::Queued as u64;
        matches!(self.0 >> KIND, PREEMPTED | WOKEN | QUEUED)
    }

    /// Whether it is not known for which CPU it waits.
    #[inline]
    pub(super) const fn is_woken(self) -> bool {
        self.0 >> KIND == Kind::Woken as u64
    }

    #[inline]
    pub(super) const fn is_asleep(self) -> bool {
        matches!(self.kind(), Kind::Sleeping | Kind::Blocked)
    }

    /// The CPU in whose queue it waits. Of a woken thread it is one in whose queue it may be.
    #[inline]
    pub(super) fn queue(self) -> Option<EntityId> {
        if self.is_queued() { self.cpu() } else { None }
    }
}

/// What a CPU executes: [`Occupant`] in numbers. A thread's key, or one of the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Running(u64);

impl Running {
    pub(super) const UNKNOWN: Self = Self(0);
    pub(super) const IDLE: Self = Self(1 << 32);
    pub(super) const UNRECORDED: Self = Self(2 << 32);

    #[inline]
    pub(super) fn of(thread: EntityId) -> Self {
        Self(thread.key() as u64)
    }

    #[inline]
    pub(super) fn thread(self) -> Option<EntityId> {
        EntityId::from_key(self.0 as i64)
    }

    /// The same, unless it is this thread.
    #[inline]
    pub(super) fn other_than(self, thread: EntityId) -> Self {
        if self == Self::of(thread) { Self::UNKNOWN } else { self }
    }

    #[inline]
    pub(super) fn occupant(self) -> Occupant {
        match self {
            Self::IDLE => Occupant::Idle,
            Self::UNRECORDED => Occupant::Unrecorded,
            _ => self.thread().map_or(Occupant::Unknown, Occupant::Thread),
        }
    }
}

/// What the kernel does with a thread: [`Kernel`] in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    place: Place,
    /// What executes on the CPU that the thread waits for.
    running: Running,
}

impl Seen {
    pub(super) const UNKNOWN: Self = Self { place: Place::UNKNOWN, running: Running::UNKNOWN };
    pub(super) const ABSENT: Self =
        Self { place: Place((Kind::Absent as u64) << KIND), running: Running::UNKNOWN };

    #[inline]
    pub(super) const fn new(place: Place, running: Running) -> Self {
        Self { place, running }
    }

    /// As the state of the thread.
    #[inline]
    pub(super) const fn state(self) -> State {
        match self.place.kind() {
            Kind::Unknown | Kind::Absent => State::Unknown,
            Kind::OnCpu => State::Running,
            Kind::Preempted | Kind::Woken | Kind::Queued => State::Runnable,
            Kind::Sleeping | Kind::Blocked | Kind::Stopped => State::Waiting,
        }
    }

    #[inline]
    pub(super) fn kernel(self) -> Kernel {
        let cpu = self.place.cpu();
        let kind = self.place.kind();
        match kind {
            Kind::Unknown => Kernel::Unknown,
            Kind::Absent => Kernel::Absent,
            Kind::OnCpu => cpu.map_or(Kernel::Unknown, |cpu| Kernel::OnCpu { cpu }),
            Kind::Preempted | Kind::Woken | Kind::Queued => {
                let occupant = self.running.occupant();
                Kernel::Runnable { cpu, occupant, is_preempted: kind == Kind::Preempted }
            }
            Kind::Sleeping => Kernel::Sleeping,
            Kind::Blocked => Kernel::Blocked,
            Kind::Stopped => Kernel::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_numbers() {
        for (number, kind) in (0..9).map(|number| (number, Kind::of_number(number))) {
            assert_eq!(kind as u64, number);
            let cpu = EntityId::from_key(i64::from(u32::MAX));
            let place = Place::new(kind, cpu);
            assert_eq!((place.kind(), place.cpu()), (kind, cpu));
            let is_queued = matches!(kind, Kind::Preempted | Kind::Woken | Kind::Queued);
            assert_eq!(place.is_queued(), is_queued);
            assert_eq!(place.is_woken(), kind == Kind::Woken);
            assert_eq!(place.is_on_cpu(), kind == Kind::OnCpu);
        }
    }

    #[test]
    fn occupants_are_kept() {
        let cpu = EntityId::from_key(3);
        let thread = EntityId::from_key(i64::from(u32::MAX)).unwrap();
        for (running, occupant) in [
            (Running::UNKNOWN, Occupant::Unknown),
            (Running::IDLE, Occupant::Idle),
            (Running::UNRECORDED, Occupant::Unrecorded),
            (Running::of(thread), Occupant::Thread(thread)),
        ] {
            assert_eq!(running.thread(), occupant.thread());
            let seen = Seen::new(Place::new(Kind::Woken, cpu), running);
            let kernel = Kernel::Runnable { cpu, occupant, is_preempted: false };
            assert_eq!(seen.kernel(), kernel);
            assert_eq!(seen.state(), kernel.state());
        }
    }
}
