//! Times and sizes on the command line.

use std::ops::RangeBounds;
use std::time::Duration;

/// Parses seconds (`2`, `0.5`, `10s`) or `dd:hh:mm:ss`, whose leading parts may be omitted.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let error = || "expected a time above 0: seconds, or dd:hh:mm:ss".to_owned();
    let (front, seconds) = match text.trim_end_matches('s').rsplit_once(':') {
        Some((front, seconds)) => (Some(front), seconds),
        None => (None, text.trim_end_matches('s')),
    };
    let seconds: f64 = seconds.parse().map_err(|_| error())?;
    let mut time = Duration::try_from_secs_f64(seconds).map_err(|_| error())?;
    let mut units = [60, 3600, 86400].into_iter();
    for part in front.into_iter().flat_map(|front| front.rsplit(':')) {
        let number: u64 = part.parse().map_err(|_| error())?;
        let unit = units.next().ok_or_else(error)?;
        let part = number.checked_mul(unit).map(Duration::from_secs).ok_or_else(error)?;
        time = time.checked_add(part).ok_or_else(error)?;
    }
    if time.is_zero() { Err(error()) } else { Ok(time) }
}

/// All finite numbers of seconds.
pub(crate) const FINITE: std::ops::RangeInclusive<f64> = f64::MIN..=f64::MAX;

/// Parses a number of seconds in `range`.
pub(crate) fn seconds(text: &str, range: impl RangeBounds<f64>) -> Option<f64> {
    text.parse().ok().filter(|seconds| range.contains(seconds))
}

/// Seconds in nanoseconds, rounded.
pub(crate) fn nanos(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

/// Parses a time above 0 with its unit: `500us`, `10ms`, `2s`, `1m`, `1h`.
pub(crate) fn with_unit(text: &str) -> Result<Duration, String> {
    let error = || "expected a time above 0 with a unit: 500us, 10ms, 2s, 5m or 1h".to_owned();
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(error)?;
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(error()),
    };
    let number: f64 = number.parse().map_err(|_| error())?;
    let time = Duration::try_from_secs_f64(number * seconds).map_err(|_| error())?;
    if time.is_zero() { Err(error()) } else { Ok(time) }
}

/// Parses a number of bytes above 0: `512K`, `200MB`, `2GiB`; K, M, G and T are powers of 1000, Ki, Mi, Gi
/// and Ti of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let error = || {
        "expected a number of bytes above 0, such as 200MB (units: K, M, G, T, Ki, Mi, Gi, Ti)"
            .to_owned()
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().trim_end_matches('B') {
        "" => 1,
        "K" | "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return Err(error()),
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    number.checked_mul(factor).filter(|bytes| *bytes > 0).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(with_unit("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(with_unit("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(with_unit("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "10", "s", "0ms", "-1s", "1x", "1e400s", "nans"] {
            assert!(with_unit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_can_have_a_unit() {
        assert_eq!(bytes("200MB"), Ok(200_000_000));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("7"), Ok(7));
        assert_eq!((bytes("1TB"), bytes("1Ti")), (Ok(1_000_000_000_000), Ok(1 << 40)));
        for bad in ["", "0", "MB", "-1", "1P", "1X", "99999999999G"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_are_in_their_range() {
        assert_eq!(seconds("-1.5", FINITE), Some(-1.5));
        assert_eq!((seconds("0", 0.0..2.0), seconds("2", 0.0..2.0)), (Some(0.0), None));
        for bad in ["", "x", "1s", "nan", "inf", "-inf", "1e400"] {
            assert_eq!(seconds(bad, FINITE), None, "{bad}");
        }
        // The product is 1000000.9999999999.
        assert_eq!((nanos(0.001_000_001), nanos(-1.5)), (1_000_001, -1_500_000_000));
    }

    #[test]
    fn durations() {
        let seconds = Duration::from_secs;
        assert_eq!(duration("00:00:00:30"), Ok(seconds(30)));
        assert_eq!(duration("1:00:00:01"), Ok(seconds(86401)));
        assert_eq!(duration("2:03"), Ok(seconds(123)));
        assert_eq!(duration("10"), Ok(seconds(10)));
        assert_eq!(duration("10s"), Ok(seconds(10)));
        assert_eq!(duration("0.25"), Ok(Duration::from_millis(250)));
        for bad in [
            "",
            "0",
            "a",
            "nan",
            "inf",
            "1:2:3:4:5",
            "-1",
            "-1:00",
            "1e300",
            ":",
            "99999999999999999999:00",
            "18446744073709551615:59",
            "0:0",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
