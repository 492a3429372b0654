//! Waits for a condition, not for a time.

use std::time::{Duration, Instant};

/// Limit of a wait. A loaded machine is slow, but it gets there.
const LIMIT: Duration = Duration::from_secs(120);

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Panics
///
/// If it does not hold within two minutes.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(PAUSE);
    }
}
