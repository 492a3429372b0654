use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time on some clock: nanoseconds since that clock's origin.
///
/// A timestamp does not contain its [`ClockDomain`]: the producer of timestamps reports their
/// domain once.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_seconds() {
        let ns = Timestamp::from_nanos;
        assert_eq!(ns(12_000_000_345).to_string(), "12.000000345");
        assert_eq!(ns(-1).to_string(), "-0.000000001");
        assert_eq!(ns(i64::MIN).to_string(), "-9223372036.854775808");
    }
}
