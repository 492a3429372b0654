//! Hive partitions: directories with the values of columns in their names.

use std::fmt::Write as _;

/// The value of a partition whose value is not known.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

const NANOS_OF_DAY: i64 = 86_400_000_000_000;

/// `date=2026-11-22/host=web-1`.
pub(crate) fn path(begin: Option<i64>, host: Option<&str>) -> String {
    let date = begin.map_or_else(|| NULL.to_owned(), date);
    let host = host.filter(|host| !host.is_empty()).map_or_else(|| NULL.to_owned(), escaped);
    format!("date={date}/host={host}")
}

/// The date of nanoseconds since 1970, UTC.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date(nanos: i64) -> String {
    let days = nanos.div_euclid(NANOS_OF_DAY) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A value as part of a path: everything but letters, digits, `.`, `_` and `-` as `%` and two
/// digits, as Hive and Spark do.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            text.push(byte.into());
        } else {
            let _ = write!(text, "%{byte:02X}"); // a string takes all
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_times() {
        let day = |days: i64| date(days * NANOS_OF_DAY);
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(-1), "1969-12-31");
        assert_eq!(day(11_016), "2000-02-29");
        assert_eq!(day(11_017), "2000-03-01");
        assert_eq!(date(1_795_391_999_999_999_999), "2026-11-22");
        assert_eq!(date(1_795_392_000_000_000_000), "2026-11-23");
    }

    #[test]
    fn hosts_cannot_leave_their_directory() {
        assert_eq!(path(None, None), format!("date={NULL}/host={NULL}"));
        assert_eq!(path(Some(0), Some("../a b")), "date=1970-01-01/host=..%2Fa%20b");
        assert_eq!(path(Some(0), Some("")), format!("date=1970-01-01/host={NULL}"));
    }
}
