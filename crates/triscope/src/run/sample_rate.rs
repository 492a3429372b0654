//! The kernel's limit on samples.

use crate::failure::{Failure, Result};

/// Refuses more samples per second than the kernel takes: perf(1) does, too.
pub(crate) fn check(hertz: u64) -> Result {
    within(hertz, perf_monitor::max_sample_rate())
}

fn within(hertz: u64, limit: Option<i64>) -> Result {
    match limit.and_then(|limit| u64::try_from(limit).ok()).filter(|limit| hertz > *limit) {
        Some(limit) => Err(Failure::new(format_args!(
            "-F {hertz}: the kernel takes at most {limit} samples per second \
             (kernel.perf_event_max_sample_rate)"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_above_the_limit_are_refused() {
        assert!(within(99, Some(99)).is_ok() && within(u64::MAX, None).is_ok());
        let error = within(100, Some(99)).unwrap_err();
        assert!(error.message().contains("kernel.perf_event_max_sample_rate"));
        assert!(error.message().starts_with("-F 100: "), "{}", error.message());
    }
}
