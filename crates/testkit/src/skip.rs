//! Tests that need what not every machine has.

use std::io::Write as _;

/// Whether this test can run here; says loudly if not. With `PERF_TEST_STRICT`, where all must run,
/// that is a failure.
///
/// # Panics
///
/// If the test cannot run where it must.
#[track_caller]
pub fn can(what: &str, possible: bool) -> bool {
    if !possible {
        let strict = std::env::var_os("PERF_TEST_STRICT").is_some_and(|v| v != "0");
        assert!(!strict, "{} must run here, but needs {what}", test());
        without(what);
    }
    possible
}

/// Says loudly that this test does not run. It needs what no set-up of a machine provides, such as the
/// inputs of another project that an environment variable names: nowhere a failure.
pub fn without(what: &str) {
    // Not through what the test harness captures.
    let _ = writeln!(std::io::stderr(), "\n==== SKIPPED: {}: needs {what}", test());
}

fn test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}
