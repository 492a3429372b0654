//! Information about a target that the operating system has and the protocol does not.

use crate::StartupHookError;
use std::fs;

/// Assemblies have a few megabytes at most.
#[cfg(target_os = "linux")]
const MAX_ASSEMBLY: u64 = 256 << 20;

/// Whether the runtime is part of the program file: such a process maps no `libcoreclr`. `None` if
/// this cannot be determined.
pub(crate) fn is_single_file(pid: u32) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok().filter(|m| !m.is_empty())?;
    Some(!maps.contains("/libcoreclr.so"))
}

/// Whether the runtime has a thread with the name of the finalizer thread, which .NET 9 and 10 have
/// unless they are suspended at startup. `None` if this cannot be determined.
pub(crate) fn has_finalizer_thread(pid: u32) -> Option<bool> {
    let mut names = fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .peekable();
    names.peek()?;
    Some(names.any(|name| name.trim_end() == ".NET Finalizer"))
}

/// Whether a process has ended, or is about to. `false` if this cannot be determined.
///
/// A process closes its sockets before its parent is notified of its end, but only after each of
/// its threads has the flag `PF_EXITING`.
pub(crate) fn has_ended(pid: u32) -> bool {
    const PF_EXITING: u32 = 0x4;
    let has_flag = |stat: &str| stat_field(stat, 9)?.parse().ok().map(|f: u32| f & PF_EXITING != 0);
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => has_flag(&String::from_utf8_lossy(&stat)).unwrap_or(false),
        Err(e) => cfg!(target_os = "linux") && e.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether a process is stopped by a signal or a debugger. `false` if this cannot be determined.
pub(crate) fn is_stopped(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| matches!(stat_field(&String::from_utf8_lossy(&stat), 3), Some("T" | "t")))
}

/// A field of `/proc/PID/stat`, of which the second, the name, may contain anything.
fn stat_field(stat: &str, number: usize) -> Option<&str> {
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Reads a file as process `pid` sees it: within its root directory, also through links.
#[cfg(target_os = "linux")]
pub(crate) fn read_assembly(pid: u32, path: &str) -> Result<Vec<u8>, StartupHookError> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    use std::io::Read as _;
    let unreadable = |e: rustix::io::Errno| StartupHookError::Unreadable(e.kind());
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{pid}/root"), directory, Mode::empty())
        .map_err(|_| StartupHookError::Unverifiable)?;
    // A FIFO in its place must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
        .map_err(unreadable)?;
    let file = fs::File::from(file);
    let io_error = |e: std::io::Error| StartupHookError::Unreadable(e.kind());
    let metadata = file.metadata().map_err(io_error)?;
    if !metadata.is_file() {
        return Err(StartupHookError::NotAnAssembly { what: "not a regular file", offset: 0 });
    }
    if metadata.len() > MAX_ASSEMBLY {
        return Err(StartupHookError::TooLarge(metadata.len()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_ASSEMBLY).read_to_end(&mut bytes).map_err(io_error)?;
    Ok(bytes)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_assembly(_: u32, _: &str) -> Result<Vec<u8>, StartupHookError> {
    Err(StartupHookError::Unverifiable)
}
