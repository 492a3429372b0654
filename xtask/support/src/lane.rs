//! A lane is a part of the checks with requirements that a machine may lack.

use crate::Result;

/// Whether this is a CI run, where every lane must run.
#[must_use]
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| !v.is_empty() && v != "false" && v != "0")
}

/// Reports that a lane does not run here, and why.
///
/// In CI, where a lane that is skipped is a failure.
pub fn skip(lane: &str, why: &dyn std::fmt::Display) -> Result {
    eprintln!("\n==== SKIPPED: {lane}\n==== because: {why}\n");
    if is_ci() { Err(format!("{lane} must run in CI: {why}").into()) } else { Ok(()) }
}

/// Reports that a lane is skipped because this machine cannot meet its requirements. Not a failure,
/// in CI either.
pub fn unavailable(lane: &str, why: &dyn std::fmt::Display) {
    eprintln!("\n==== SKIPPED: {lane}\n==== because: {why}\n");
}
