//! Durations on the command line.

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

#[cfg(test)]
mod tests {
    use super::*;

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
