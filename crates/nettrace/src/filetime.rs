use std::fmt;

use trace_common::Timestamp;

/// A Windows FILETIME: 100 ns since 1601-01-01, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime(pub i64);

/// 1970-01-01 as a FILETIME.
const UNIX_EPOCH: i64 = 116_444_736_000_000_000;

const SECONDS_PER_DAY: i64 = 86_400;

impl FileTime {
    /// The time in nanoseconds since the Unix epoch, clamped to 64 bits.
    pub fn unix(self) -> Timestamp {
        Timestamp::from_nanos(self.0.saturating_sub(UNIX_EPOCH).saturating_mul(100))
    }
}

impl fmt::Display for FileTime {
    /// ISO 8601 with the seven decimals that a FILETIME has: `2020-01-02T03:04:05.0000000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PER_SECOND: i64 = 10_000_000;
        let since_1970 = self.0.saturating_sub(UNIX_EPOCH);
        let seconds = since_1970.div_euclid(PER_SECOND);
        let fraction = since_1970.rem_euclid(PER_SECOND);
        let (year, month, day) = civil_from_days(seconds.div_euclid(SECONDS_PER_DAY));
        let second = seconds.rem_euclid(SECONDS_PER_DAY);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{fraction:07}Z",
            second / 3_600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, counting years from March so that
/// the leap day comes last.
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The date that lies `days` after 1970-01-01: the inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil_dates_count_from_the_unix_epoch() {
        assert_eq!(days_from_civil(1970, 1, 1), 0);
        assert_eq!(days_from_civil(1969, 12, 31), -1);
        assert_eq!(days_from_civil(2000, 3, 1), 11_017);
        assert_eq!(days_from_civil(2024, 2, 29), 19_782);
        assert_eq!(days_from_civil(1601, 1, 1), -134_774);
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for days in -200_000..200_000 {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day), "{days}");
        }
    }

    #[test]
    fn file_times_print_as_iso_8601() {
        assert_eq!(FileTime(0).to_string(), "1601-01-01T00:00:00.0000000Z");
        assert_eq!(FileTime(132_224_078_450_000_001).to_string(), "2020-01-02T03:04:05.0000001Z");
        assert_eq!(FileTime(-1).to_string(), "1600-12-31T23:59:59.9999999Z");
        // The limits of the range are valid dates too, although their years have five digits.
        assert!(FileTime(i64::MAX).to_string().starts_with("30828-09-14T02:48:05"));
        let _ = FileTime(i64::MIN).to_string();
    }
}
