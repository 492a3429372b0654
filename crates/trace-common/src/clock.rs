use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time on some clock: nanoseconds since that clock's origin.
///
/// A timestamp does not contain its [`ClockDomain`]: the producer of timestamps reports their
/// domain once, and a [`ClockMap`] converts between domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest representable time.
    pub const MIN: Self = Self(i64::MIN);

    /// The latest representable time.
    pub const MAX: Self = Self(i64::MAX);

    /// The time `nanos` nanoseconds after the origin of the clock.
    #[inline]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin of the clock.
    #[inline]
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Nanoseconds from `earlier` to `self`: negative if `earlier` is the later one, clamped
    /// at the ends of `i64`.
    #[inline]
    pub const fn nanos_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns this time plus `nanos`, clamped at the ends of `i64`.
    #[inline]
    pub const fn saturating_add_nanos(self, nanos: i64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// The time from `earlier` to `self`; zero if `earlier` is the later one, as of
    /// [`std::time::Instant`]. [`Timestamp::nanos_since`] gives a negative number instead.
    fn sub(self, earlier: Self) -> Duration {
        let nanos = i128::from(self.0) - i128::from(earlier.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// The time that much later, at most [`Timestamp::MAX`].
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add_unsigned(nanos))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// The time that much earlier, at least [`Timestamp::MIN`].
    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub_unsigned(nanos))
    }
}

impl fmt::Display for Timestamp {
    /// Seconds with nine decimals, e.g. `12.000000345`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let abs = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:09}", abs / 1_000_000_000, abs % 1_000_000_000)
    }
}

/// The clock that a [`Timestamp`] was read from.
///
/// The first five are clocks of `clock_gettime(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ClockDomain {
    /// `CLOCK_MONOTONIC`: the common domain of a merged timeline.
    Monotonic,
    /// `CLOCK_REALTIME`: nanoseconds since the Unix epoch, UTC.
    Realtime,
    /// `CLOCK_BOOTTIME`: monotonic, and also advances while the machine is suspended.
    Boottime,
    /// `CLOCK_MONOTONIC_RAW`: monotonic, not disciplined by NTP.
    MonotonicRaw,
    /// `CLOCK_TAI`: international atomic time.
    Tai,
    /// A clock whose relation to the others is known from the trace alone, if at all: the perf
    /// clock without `use_clockid`, Go traces before 1.22. The number distinguishes traces.
    Local(u32),
}

impl fmt::Display for ClockDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Monotonic => f.write_str("CLOCK_MONOTONIC"),
            Self::Realtime => f.write_str("CLOCK_REALTIME"),
            Self::Boottime => f.write_str("CLOCK_BOOTTIME"),
            Self::MonotonicRaw => f.write_str("CLOCK_MONOTONIC_RAW"),
            Self::Tai => f.write_str("CLOCK_TAI"),
            Self::Local(n) => write!(f, "trace-local clock {n}"),
        }
    }
}

/// An error of a conversion between clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClockError {
    /// No snapshot or chain of snapshots relates the two clocks.
    #[error(
        "cannot convert from {from} to {to}: the trace has no clock snapshot that relates them"
    )]
    Unrelated {
        /// The domain of the timestamp.
        from: ClockDomain,
        /// The requested domain.
        to: ClockDomain,
    },
    /// The result does not fit in 64 bits of nanoseconds.
    #[error("timestamp {0} is out of range after conversion")]
    OutOfRange(Timestamp),
}

/// Converts timestamps between clock domains by snapshots. A snapshot contains readings of several
/// clocks that were taken at one moment.
///
/// The nearest snapshot *before* the timestamp that contains both domains is used (the first one
/// for earlier timestamps), so that conversions follow a step of the wall clock or a suspend
/// between snapshots. If no snapshot contains both domains, the conversion goes through a third
/// one. If there is no such path, it is an error: a guess would misplace events.
#[derive(Clone, Debug, Default)]
pub struct ClockMap {
    snapshots: Vec<Vec<(ClockDomain, Timestamp)>>,
}

impl ClockMap {
    /// Makes an empty map, without any relations.
    pub const fn new() -> Self {
        Self { snapshots: Vec::new() }
    }

    /// Adds readings of several clocks that were taken at one moment.
    pub fn add(&mut self, readings: impl IntoIterator<Item = (ClockDomain, Timestamp)>) {
        self.snapshots.push(readings.into_iter().collect());
    }

    /// Whether [`ClockMap::convert`] can convert from `from` to `to`.
    pub fn relates(&self, from: ClockDomain, to: ClockDomain) -> bool {
        !matches!(self.convert(Timestamp::default(), from, to), Err(ClockError::Unrelated { .. }))
    }

    /// Converts `at` from the domain `from` to the domain `to`.
    ///
    /// # Errors
    ///
    /// [`ClockError::Unrelated`] if no snapshot relates the clocks, and [`ClockError::OutOfRange`] if
    /// the result does not fit in 64 bits.
    pub fn convert(
        &self,
        at: Timestamp,
        from: ClockDomain,
        to: ClockDomain,
    ) -> Result<Timestamp, ClockError> {
        // Breadth first, to use the fewest snapshots; there are only a few domains.
        // The range of a clock that is only passed does not matter.
        let mut reached = vec![(from, i128::from(at.nanos()))];
        let mut next = 0;
        while let Some(&(domain, nanos)) = reached.get(next) {
            if domain == to {
                return i64::try_from(nanos).map(Timestamp).map_err(|_| ClockError::OutOfRange(at));
            }
            next += 1;
            for other in self.neighbours(domain) {
                if reached.iter().all(|(d, _)| *d != other) {
                    if let Some(offset) = self.offset(nanos, domain, other) {
                        reached.push((other, nanos.saturating_add(offset)));
                    }
                }
            }
        }
        Err(ClockError::Unrelated { from, to })
    }

    fn neighbours(&self, domain: ClockDomain) -> impl Iterator<Item = ClockDomain> + '_ {
        self.snapshots
            .iter()
            .filter(move |s| s.iter().any(|(d, _)| *d == domain))
            .flatten()
            .map(|(d, _)| *d)
    }

    /// Returns the offset to add to `from` to get `to` at the time `at` (on `from`).
    fn offset(&self, at: i128, from: ClockDomain, to: ClockDomain) -> Option<i128> {
        let mut best: Option<(i128, i128)> = None;
        for snapshot in &self.snapshots {
            let reading = |domain| {
                let found = snapshot.iter().find(|(d, _)| *d == domain);
                found.map(|(_, t)| i128::from(t.nanos()))
            };
            let (Some(a), Some(b)) = (reading(from), reading(to)) else { continue };
            let better = match best {
                None => true,
                Some((best, _)) if best <= at => a <= at && a > best,
                Some((best, _)) => a < best,
            };
            if better {
                best = Some((a, b - a));
            }
        }
        best.map(|(_, offset)| offset)
    }
}

#[cfg(test)]
mod tests {
    use super::ClockDomain::{Boottime, Local, Monotonic, Realtime};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const fn ns(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    #[test]
    fn the_nearest_snapshot_before_decides() {
        let mut map = ClockMap::new();
        map.add([(Monotonic, ns(100)), (Realtime, ns(1_100))]);
        map.add([(Monotonic, ns(200)), (Realtime, ns(1_250))]); // the wall clock was stepped by 50
        let wall = |t| map.convert(ns(t), Monotonic, Realtime).unwrap().nanos();
        assert_eq!(wall(50), 1_050, "before the first one, the first one");
        assert_eq!(wall(150), 1_150);
        assert_eq!(wall(200), 1_250);
        assert_eq!(wall(300), 1_350);
        assert_eq!(map.convert(ns(1_350), Realtime, Monotonic), Ok(ns(300)));
    }

    #[test]
    fn conversion_goes_through_a_third_clock_or_is_refused() {
        let mut map = ClockMap::new();
        map.add([(Local(1), ns(0)), (Monotonic, ns(500))]);
        map.add([(Monotonic, ns(1_000)), (Boottime, ns(3_000))]);
        assert_eq!(map.convert(ns(7), Local(1), Boottime), Ok(ns(2_507)));
        assert!(map.relates(Boottime, Local(1)));
        assert_eq!(
            map.convert(ns(7), Local(2), Boottime),
            Err(ClockError::Unrelated { from: Local(2), to: Boottime })
        );
        assert!(!map.relates(Monotonic, Realtime));
        assert_eq!(map.convert(ns(7), Realtime, Realtime), Ok(ns(7)));
    }

    #[test]
    fn results_beyond_64_bits_are_refused() {
        let mut map = ClockMap::new();
        map.add([(Monotonic, ns(0)), (Realtime, ns(i64::MAX))]);
        assert_eq!(map.convert(ns(1), Monotonic, Realtime), Err(ClockError::OutOfRange(ns(1))));
        assert!(map.relates(Monotonic, Realtime));
    }

    const DOMAINS: [ClockDomain; 4] = [Monotonic, Realtime, Boottime, Local(1)];

    /// Snapshots that have some of the clocks each, in any order.
    fn maps() -> impl Strategy<Value = ClockMap> {
        let reading = (proptest::sample::select(&DOMAINS[..]), any::<i64>().prop_map(ns));
        vec(vec(reading, 0..4), 0..6).prop_map(|snapshots| {
            let mut map = ClockMap::new();
            snapshots.into_iter().for_each(|snapshot| map.add(snapshot));
            map
        })
    }

    proptest! {
        /// An unrelated pair is an error in both directions, at all times.
        #[test]
        fn relations_hold_in_both_directions(map in maps(), times: [i64; 3]) {
            for (from, to) in DOMAINS.into_iter().flat_map(|a| DOMAINS.map(|b| (a, b))) {
                prop_assert_eq!(map.relates(from, to), map.relates(to, from));
                for at in times {
                    let result = map.convert(ns(at), from, to);
                    let is_unrelated = matches!(result, Err(ClockError::Unrelated { .. }));
                    prop_assert_eq!(is_unrelated, !map.relates(from, to), "{:?}", result);
                }
            }
        }

        /// The clocks of the snapshots differ by a constant, so that every path must give it.
        #[test]
        fn constant_offsets_are_found_on_every_path(
            offsets in [-1_i64 << 40..1 << 40, -1_i64 << 40..1 << 40, -1_i64 << 40..1 << 40],
            moments in vec((0_i64..1 << 50, 0_usize..3), 1..8),
            at in -1_i64 << 50..1 << 50,
        ) {
            let clocks = [(Monotonic, 0), (Realtime, offsets[0]), (Boottime, offsets[1]),
                          (Local(1), offsets[2])];
            let mut map = ClockMap::new();
            for (moment, first) in moments {
                let pair = &clocks[first..first + 2];
                map.add(pair.iter().map(|(domain, offset)| (*domain, ns(moment + offset))));
            }
            for ((from, a), (to, b)) in clocks.iter().flat_map(|x| clocks.map(|y| (*x, y))) {
                match map.convert(ns(at), from, to) {
                    Ok(moved) => prop_assert_eq!(moved.nanos() - at, b - a),
                    Err(error) => prop_assert_eq!(error, ClockError::Unrelated { from, to }),
                }
            }
        }

        /// Between two snapshots, the earlier one decides, in whatever order they were added.
        #[test]
        fn the_order_of_snapshots_does_not_matter(
            mut steps in vec((1_i64..1 << 30, any::<i32>()), 1..8),
            at in -1_i64 << 10..1 << 34,
            rotation: usize,
        ) {
            let mut moment = 0;
            for (step, _) in &mut steps {
                moment += *step;
                *step = moment;
            }
            let nearest = steps.iter().rev().find(|(moment, _)| *moment <= at).unwrap_or(&steps[0]);
            let expected = at + i64::from(nearest.1);
            let middle = rotation % steps.len();
            steps.rotate_left(middle);
            let mut map = ClockMap::new();
            for (moment, offset) in steps {
                map.add([(Monotonic, ns(moment)), (Realtime, ns(moment + i64::from(offset)))]);
            }
            prop_assert_eq!(map.convert(ns(at), Monotonic, Realtime), Ok(ns(expected)));
        }
    }

    #[test]
    fn timestamps_print_as_seconds() {
        assert_eq!(ns(12_000_000_345).to_string(), "12.000000345");
        assert_eq!(ns(-1).to_string(), "-0.000000001");
        assert_eq!(ns(i64::MIN).to_string(), "-9223372036.854775808");
    }
}
