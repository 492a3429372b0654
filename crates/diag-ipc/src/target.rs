//! What the operating system tells of a target, where the protocol does not.

use std::fs;

/// Whether the runtime is part of the program's own file: it has no `libcoreclr` then. `None`
/// if that cannot be seen.
pub(crate) fn is_single_file(pid: u32) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok().filter(|m| !m.is_empty())?;
    Some(!maps.contains("/libcoreclr.so"))
}

/// Whether the runtime waits at startup: its finalizer thread is started when it goes on.
/// `None` if that cannot be seen.
///
/// The protocol does not tell: the process information of a suspended runtime can look just as
/// it does later.
pub(crate) fn is_suspended(pid: u32) -> Option<bool> {
    let mut names = fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .peekable();
    names.peek()?;
    Some(!names.any(|name| name.trim_end() == ".NET Finalizer"))
}
