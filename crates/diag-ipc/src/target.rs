//! Information about a target that the operating system has and the protocol does not.

use crate::StartupHookError;
use std::fs;
use std::io::{BufRead, BufReader};
use trace_common::{innermost_pid, stat_field};

/// Assemblies have a few megabytes at most.
#[cfg(target_os = "linux")]
const MAX_ASSEMBLY: u64 = 256 << 20;

/// Whether a process has this id in its own namespace, which is the one that its runtime reports. `false` if that
/// cannot be determined.
pub(crate) fn is_reported_as(pid: u32, reported: u64) -> bool {
    let Ok(status) = fs::read(format!("/proc/{pid}/status")) else { return false };
    // Without namespaces, the kernel has no NSpid line.
    u64::from(innermost_pid(&status).unwrap_or(pid)) == reported
}

/// Whether the id that a runtime reports shows that it is this process. 1 does not: the first process of every
/// container has it, and a proxy can be that, too.
pub(crate) fn is_identified_by(pid: u32, reported: u64) -> bool {
    reported != 1 && is_reported_as(pid, reported)
}

/// Whether the runtime is part of the program file: such a process maps no `libcoreclr`. `None` if
/// this cannot be determined.
pub(crate) fn is_single_file(pid: u32) -> Option<bool> {
    let maps = BufReader::new(fs::File::open(format!("/proc/{pid}/maps")).ok()?);
    Some(!has_line_with(maps, b"/libcoreclr.so")?)
}

/// Whether a line of a file contains these bytes: the names of other files need not be UTF-8. `None` if
/// the file is empty or cannot be read.
fn has_line_with(mut file: impl BufRead, part: &[u8]) -> Option<bool> {
    let mut line = Vec::new();
    let mut is_empty = true;
    while file.read_until(b'\n', &mut line).ok()? > 0 {
        if line.windows(part.len()).any(|window| window == part) {
            return Some(true);
        }
        is_empty = false;
        line.clear();
    }
    (!is_empty).then_some(false)
}

/// Whether the runtime has a thread with the name of the finalizer thread, which .NET 9 and 10 have
/// unless they are suspended at startup. `None` if this cannot be determined: only CoreCLR is known to name it.
pub(crate) fn has_finalizer_thread(pid: u32) -> Option<bool> {
    let names = fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .filter_map(|task| fs::read(task.ok()?.path().join("comm")).ok());
    let mut is_coreclr = false;
    for name in names {
        match name.trim_ascii_end() {
            // The second one is that of Mono.
            b".NET Finalizer" | b"Finalizer" => return Some(true),
            // `.NET SynchManager`, which CoreCLR starts first, also in a single-file application.
            b".NET SynchManag" => is_coreclr = true,
            _ => {}
        }
    }
    (is_coreclr || is_single_file(pid) == Some(false)).then_some(false)
}

/// Whether a process has ended, or is about to. `false` if this cannot be determined.
///
/// A process closes its sockets before its parent is notified of its end, but only after each of
/// its threads has the flag `PF_EXITING`.
pub(crate) fn has_ended(pid: u32) -> bool {
    const PF_EXITING: u32 = 0x4;
    let flags = |stat: &[u8]| stat_field(stat, 9)?.parse::<u32>().ok();
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => flags(&stat).is_some_and(|flags| flags & PF_EXITING != 0),
        Err(e) => cfg!(target_os = "linux") && e.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether a process is stopped by a signal or a debugger. `false` if this cannot be determined.
pub(crate) fn is_stopped(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| matches!(stat_field(&stat, 3), Some("T" | "t")))
}

/// Reads a file as process `pid` sees it: within its root directory, also through links.
#[cfg(target_os = "linux")]
pub(crate) fn read_assembly(pid: u32, path: &str) -> Result<Vec<u8>, StartupHookError> {
    use std::io::Read as _;
    use std::path::Path;
    use trace_common::{FindError, FoundFile};
    let io_error = |e: std::io::Error| StartupHookError::Unreadable(e.kind());
    let root = FoundFile::root_of(pid).map_err(|_| StartupHookError::Unverifiable)?;
    // The process can have a device in its place: opening that could have effects.
    let found = FoundFile::find_in(root, Path::new(path)).map_err(|error| match error {
        FindError::Io(error) => io_error(error),
        _ => StartupHookError::NotAnAssembly { what: "not a regular file", offset: 0 },
    })?;
    let size = found.file().metadata().map_err(io_error)?.len();
    if size > MAX_ASSEMBLY {
        return Err(StartupHookError::TooLarge(size));
    }
    let file = found.open().map_err(io_error)?;
    let mut bytes = Vec::new();
    file.take(MAX_ASSEMBLY).read_to_end(&mut bytes).map_err(io_error)?;
    Ok(bytes)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_assembly(_: u32, _: &str) -> Result<Vec<u8>, StartupHookError> {
    Err(StartupHookError::Unverifiable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_need_not_be_utf8() {
        let maps = b"7f00-7f10 r-xp 00000000 08:01 7 /tmp/\xff\n7f10-7f20 r-xp 0 08:01 8 /x/libcoreclr.so\n";
        assert_eq!(has_line_with(&maps[..], b"/libcoreclr.so"), Some(true));
        assert_eq!(has_line_with(&maps[..], b"/libother.so"), Some(false));
        assert_eq!(has_line_with(&b""[..], b"/libcoreclr.so"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_first_process_of_a_namespace_is_not_identified() {
        let own = innermost_pid(&fs::read("/proc/self/status").unwrap()).unwrap();
        assert_eq!(is_identified_by(std::process::id(), own.into()), own != 1);
        assert!(!is_identified_by(1, 1));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn special_files_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // To open a socket is an error of its own (`ENXIO`).
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = read_assembly(std::process::id(), path.to_str().unwrap()).unwrap_err();
        let what = "not a regular file";
        assert!(matches!(error, StartupHookError::NotAnAssembly { what: w, .. } if w == what));
        let path = dir.path().join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!(read_assembly(std::process::id(), path.to_str().unwrap()).unwrap(), b"text");
    }
}
