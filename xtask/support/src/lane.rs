//! A lane is a part of the checks with requirements that a machine may lack.

use crate::Result;
use crate::remark::{self, Kind};

/// Whether this is a CI run, where every lane must run.
#[must_use]
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| !v.is_empty() && v != "false" && v != "0")
}

/// Lanes that a CI may lack: no package registry has them, or they need a network that not every CI
/// has.
const OPTIONAL: [&str; 3] =
    ["miri", "advisories for dependencies", "import by Perfetto's trace processor"];

/// Reports that a lane does not run here, and why.
///
/// # Errors
/// In CI, unless the lane is one of a few that a CI may lack.
pub fn skip(lane: &str, why: &dyn std::fmt::Display) -> Result {
    remark::add(Kind::NotRun, &format_args!("{lane}: {why}"));
    if is_ci() && !OPTIONAL.contains(&lane) {
        return Err(format!("{lane} must run in CI: {why}").into());
    }
    Ok(())
}
