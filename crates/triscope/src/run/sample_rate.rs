//! How often the kernel takes samples.

use crate::failure::{Failure, Result};
use perf_monitor::max_sample_rate;

/// Samples per second of CPU time where none are asked for. A kernel that permits fewer takes fewer.
pub(crate) const USUAL: u64 = 999;

/// Refuses more samples per second than the kernel permits.
pub(crate) fn check(frequency: u64) -> Result {
    let most = max_sample_rate().and_then(|most| u64::try_from(most).ok());
    match most.filter(|most| frequency > USUAL.max(*most)) {
        Some(most) => Err(Failure::new(format_args!(
            "-F {frequency}: the kernel permits {most} samples per second \
             (kernel.perf_event_max_sample_rate)"
        ))
        .with_code(2)),
        None => Ok(()),
    }
}
