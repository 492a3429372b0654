//! A lane is a part of the checks that needs something this machine may lack.

use crate::Result;

/// Whether this is a CI run, where no lane may be missing.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| !v.is_empty() && v != "false" && v != "0")
}

/// Says loudly that a lane does not run here, and why. In CI that is an error.
pub(crate) fn missing(lane: &str, why: &dyn std::fmt::Display) -> Result {
    eprintln!("\n==== SKIPPED: {lane}\n==== because: {why}\n");
    if is_ci() { Err(format!("{lane} is required in CI: {why}").into()) } else { Ok(()) }
}
