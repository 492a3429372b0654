//! The wall clock, on which the times of files are, at the times of records.

use perf_data::{ClockReference, Features};
use std::time::{Duration, SystemTime};
use trace_common::{ClockDomain, Timestamp};

/// Readings of the wall clock and of the clock of the records, if a recording has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock(Option<ClockReference>);

impl WallClock {
    /// That of a recording. The perf clock cannot be related to others.
    pub(super) const fn of(features: &Features) -> Self {
        Self(features.clock)
    }

    /// That of records on `CLOCK_MONOTONIC` that are made now.
    pub(super) fn now() -> Self {
        Self(ClockReference::now(ClockDomain::Monotonic))
    }

    /// The wall-clock time of a record.
    pub(super) fn at(&self, at: Timestamp) -> Option<SystemTime> {
        let ClockReference { realtime, clock, .. } = self.0?;
        let offset = i128::from(at.nanos()) - i128::from(clock);
        let nanos = u64::try_from(i128::from(realtime) + offset).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_a_time_on_the_wall_clock() {
        let clock = WallClock::now();
        let now = perf_monitor::now(ClockDomain::Monotonic).unwrap();
        let wall = clock.at(now).unwrap();
        // Both clocks are read one after the other, on a machine that may be busy.
        let difference = SystemTime::now().duration_since(wall).unwrap_or_else(|e| e.duration());
        assert!(difference < Duration::from_secs(60), "{difference:?}");
        let earlier = clock.at(now.saturating_add_nanos(-5)).unwrap();
        assert_eq!(wall.duration_since(earlier).unwrap(), Duration::from_nanos(5));
        assert_eq!(WallClock::of(&Features::default()).at(now), None);
    }
}
