//! How often the kernel takes samples.

use crate::failure::{Failure, Result};

/// Samples per second of CPU time where none are asked for. A kernel that permits fewer takes fewer.
pub(crate) const USUAL: u64 = 999;

/// Refuses more samples per second than the kernel permits.
pub(crate) fn check(frequency: u64) -> Result {
    within(frequency, perf_monitor::max_sample_rate())
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
    fn rates_above_the_limit_are_refused() {
        for (frequency, most) in [(5000, Some(5000)), (USUAL, Some(99)), (u64::MAX, None)] {
            assert!(within(frequency, most).is_ok(), "{frequency}");
        }
        let error = within(5001, Some(5000)).unwrap_err();
        assert!(error.message().starts_with("-F 5001: the kernel permits 5000 "), "{error:?}");
    }
}
