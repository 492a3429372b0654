//! Waits of tests for a condition, not for a time. The tests of the package do not have `testkit`.

use std::time::{Duration, Instant};

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    const LIMIT: Duration = Duration::from_secs(120);
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
