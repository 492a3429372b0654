//! What `/proc` counts.

use std::fs;
use task_support::Result;

/// Context switches of the machine since its start.
pub(crate) fn switches() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
    Ok(line.ok_or("no context switches in /proc/stat")?.trim().parse()?)
}
