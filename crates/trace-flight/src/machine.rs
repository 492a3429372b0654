//! Changes of the machine while it is recorded: of its clocks and of its CPUs.

use trace_common::Timestamp;

/// Why the wall clock went another way than `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockCause {
    /// It was set.
    Set,
    /// The machine was suspended: `CLOCK_MONOTONIC` stood still.
    Suspended,
}

impl ClockCause {
    /// Its name in a manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Suspended => "suspended",
        }
    }
}

/// A change of `CLOCK_REALTIME` against `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockChange {
    /// When it was noticed: it happened shortly before.
    pub time: Timestamp,
    /// Why.
    pub cause: ClockCause,
    /// Nanoseconds, negative if the clock was set back.
    pub by_nanos: i64,
}

/// A reading of three clocks at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: Timestamp,
    /// `CLOCK_REALTIME`.
    pub realtime: Timestamp,
    /// `CLOCK_BOOTTIME`, which advances while the machine is suspended.
    pub boottime: Timestamp,
}

/// Finds and keeps the changes of the clocks.
#[derive(Clone, Debug)]
pub struct Clocks {
    last: Reading,
    changes: Vec<ClockChange>,
}

impl Clocks {
    /// A change that is shorter is the adjustment of a clock that goes wrong, or the time between the
    /// readings.
    const SHORTEST: i64 = 10_000_000;

    /// Changes that are kept. Of more, the oldest are added up.
    const MAX: usize = 64;

    /// Begins with a reading.
    pub const fn new(first: Reading) -> Self {
        Self { last: first, changes: Vec::new() }
    }

    /// Compares with the reading before. Returns what has changed.
    pub fn look(&mut self, now: Reading) -> Vec<ClockChange> {
        let last = std::mem::replace(&mut self.last, now);
        let passed = |of: fn(&Reading) -> Timestamp| of(&now).nanos_since(of(&last));
        let (monotonic, boottime) = (passed(|r| r.monotonic), passed(|r| r.boottime));
        let suspended = boottime.saturating_sub(monotonic);
        let set = passed(|r| r.realtime).saturating_sub(boottime);
        let found: Vec<ClockChange> = [(ClockCause::Suspended, suspended), (ClockCause::Set, set)]
            .into_iter()
            .filter(|(_, by)| by.saturating_abs() >= Self::SHORTEST)
            .map(|(cause, by_nanos)| ClockChange { time: now.monotonic, cause, by_nanos })
            .collect();
        self.changes.extend(&found);
        while self.changes.len() > Self::MAX {
            let oldest = self.changes.remove(0);
            // A wall-clock time needs their sum only.
            if let Some(next) = self.changes.first_mut() {
                next.by_nanos = next.by_nanos.saturating_add(oldest.by_nanos);
            }
        }
        found
    }

    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC` at the last reading.
    pub const fn wall_clock_offset_nanos(&self) -> i64 {
        self.last.realtime.nanos_since(self.last.monotonic)
    }

    /// The changes since a time, oldest first.
    pub fn since(&self, from: Timestamp) -> impl Iterator<Item = &ClockChange> {
        self.changes.iter().filter(move |change| change.time >= from)
    }

    /// Removes the changes before a time.
    pub fn forget(&mut self, before: Timestamp) {
        self.changes.retain(|change| change.time >= before);
    }
}

/// A time in which the events of a CPU were not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuGap {
    /// The CPU.
    pub cpu: u32,
    /// When it was last seen with its events.
    pub start: Timestamp,
    /// When its events were opened again. `None` while it is offline.
    pub end: Option<Timestamp>,
}

impl CpuGap {
    /// Maximum number of gaps that are kept.
    const MAX: usize = 4096;

    /// Adds what a look at the CPUs has found: `gone` went offline and `opened` came online since the
    /// look before.
    pub fn add(
        gaps: &mut Vec<Self>,
        (before, now): (Timestamp, Timestamp),
        gone: &[u32],
        opened: &[u32],
    ) {
        gaps.extend(gone.iter().map(|cpu| Self { cpu: *cpu, start: before, end: None }));
        for cpu in opened {
            match gaps.iter_mut().find(|gap| gap.cpu == *cpu && gap.end.is_none()) {
                Some(gap) => gap.end = Some(now),
                // It was offline before.
                None => gaps.push(Self { cpu: *cpu, start: before, end: Some(now) }),
            }
        }
        gaps.drain(..gaps.len().saturating_sub(Self::MAX));
    }

    /// Removes the gaps that have ended before a time.
    pub fn forget(gaps: &mut Vec<Self>, before: Timestamp) {
        gaps.retain(|gap| gap.end.is_none_or(|until| until >= before));
    }

    /// Whether it is in a window. A CPU that stays offline is, if it went offline in it.
    pub(crate) fn is_in(&self, from: Timestamp, until: Timestamp) -> bool {
        self.start < until && self.end.unwrap_or(self.start) >= from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000_000;

    fn reading(monotonic: i64, suspended: i64, set: i64) -> Reading {
        let at = Timestamp::from_nanos;
        Reading {
            monotonic: at(monotonic),
            boottime: at(monotonic + suspended),
            realtime: at(1_700_000_000 * SECOND + monotonic + suspended + set),
        }
    }

    #[test]
    fn steps_and_suspends_are_distinguished() {
        let mut clocks = Clocks::new(reading(0, 0, 0));
        assert_eq!(clocks.look(reading(SECOND, 0, 5_000_000)), []);
        let found = clocks.look(reading(2 * SECOND, 60 * SECOND, 5_000_000));
        let at = Timestamp::from_nanos(2 * SECOND);
        let suspended =
            ClockChange { time: at, cause: ClockCause::Suspended, by_nanos: 60 * SECOND };
        assert_eq!(found, [suspended]);
        let found = clocks.look(reading(3 * SECOND, 60 * SECOND, -3600 * SECOND));
        assert_eq!(
            (found[0].cause, found[0].by_nanos),
            (ClockCause::Set, -3600 * SECOND - 5_000_000)
        );
        // Both at once: the kernel sets the clock from the hardware after a suspend.
        let found = clocks.look(reading(3 * SECOND, 61 * SECOND, 0));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(clocks.since(Timestamp::from_nanos(3 * SECOND)).count(), 3);
        clocks.forget(Timestamp::from_nanos(2 * SECOND + 1));
        assert_eq!(clocks.since(Timestamp::MIN).count(), 3);
    }

    #[test]
    fn gaps_of_cpus_begin_at_the_look_before() {
        let at = Timestamp::from_nanos;
        let mut gaps = Vec::new();
        CpuGap::add(&mut gaps, (at(10), at(20)), &[1], &[]);
        assert_eq!(gaps, [CpuGap { cpu: 1, start: at(10), end: None }]);
        // Only where it went offline.
        assert!(gaps[0].is_in(at(5), at(15)) && !gaps[0].is_in(at(11), at(15)));
        CpuGap::add(&mut gaps, (at(40), at(50)), &[2], &[1, 2, 3]);
        assert_eq!(gaps[0].end, Some(at(50)));
        assert_eq!(gaps[1], CpuGap { cpu: 2, start: at(40), end: Some(at(50)) });
        assert_eq!(gaps[2], CpuGap { cpu: 3, start: at(40), end: Some(at(50)) });
        CpuGap::forget(&mut gaps, at(50));
        assert_eq!(gaps.len(), 3);
        CpuGap::forget(&mut gaps, at(51));
        assert!(gaps.is_empty());
    }

    proptest! {
        /// The sum of the changes relates the wall clock of any reading to that of the last one.
        #[test]
        fn changes_add_up(steps in prop::collection::vec((0i64..100, 0i64..5, -9i64..9), 0..200)) {
            let mut clocks = Clocks::new(reading(0, 0, 0));
            let (mut now, mut suspended, mut set, mut kept) = (0, 0, 0, Vec::new());
            for (step, slept, by) in steps {
                (now, suspended, set) =
                    (now + step * SECOND, suspended + slept * SECOND, set + by * SECOND);
                kept.extend(clocks.look(reading(now, suspended, set)));
            }
            let sum: i64 = clocks.since(Timestamp::MIN).map(|change| change.by_nanos).sum();
            prop_assert_eq!(sum, suspended + set);
            prop_assert_eq!(clocks.wall_clock_offset_nanos() - sum, 1_700_000_000 * SECOND);
            prop_assert_eq!(sum, kept.iter().map(|change| change.by_nanos).sum::<i64>());
            prop_assert!(clocks.since(Timestamp::MIN).count() <= Clocks::MAX);
        }
    }
}
