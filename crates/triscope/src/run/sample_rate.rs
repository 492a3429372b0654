//! How often the kernel takes samples.

use crate::failure::{Failure, Result};
use std::time::Duration;

/// Samples per second of CPU time where none are asked for. A kernel that permits fewer takes fewer.
pub(crate) const USUAL: u64 = 999;

/// Refuses more samples per second than the kernel permits.
pub(crate) fn check(frequency: u64) -> Result {
    within(frequency, perf_monitor::max_sample_rate())
}

/// The time between two samples of a frequency: the kernel may permit fewer.
pub(crate) fn interval(frequency: u64) -> Duration {
    interval_within(frequency, perf_monitor::max_sample_rate())
}

fn interval_within(frequency: u64, most: Option<i64>) -> Duration {
    let most = most.and_then(|most| u64::try_from(most).ok()).filter(|most| *most > 0);
    let most = most.unwrap_or(frequency);
    let rate = u32::try_from(frequency.min(most)).unwrap_or(u32::MAX);
    Duration::from_secs(1) / rate.max(1)
}

fn within(frequency: u64, most: Option<i64>) -> Result {
    let most = most.and_then(|most| u64::try_from(most).ok());
    match most.filter(|most| frequency > USUAL.max(*most)) {
        Some(most) => Err(Failure::new(format_args!(
            "-F {frequency}: the kernel permits {most} samples per second \
             (kernel.perf_event_max_sample_rate)"
        ))
        .with_code(2)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_rate_which_is_permitted() {
        for (frequency, most, millis) in
            [(500, None, 2), (500, Some(1000), 2), (999, Some(100), 10), (100, Some(0), 10)]
        {
            let interval = interval_within(frequency, most);
            assert_eq!(interval, Duration::from_millis(millis), "{frequency} {most:?}");
        }
    }

    #[test]
    fn rates_above_the_limit_are_refused() {
        for (frequency, most) in [(5000, Some(5000)), (USUAL, Some(99)), (u64::MAX, None)] {
            assert!(within(frequency, most).is_ok(), "{frequency}");
        }
        let error = within(5001, Some(5000)).unwrap_err();
        assert!(error.message().starts_with("-F 5001: the kernel permits 5000 "), "{error:?}");
    }
}
