//! What executables are: programs in Go, hosts of .NET.

use super::go_program;
use crate::io::regular;
use diag_ipc::discovery::Process;
use rustix::fs::{Access, access};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Executables that are remembered.
const MAX_PROGRAMS: usize = 1 << 12;

/// The text in programs that import `net/http/pprof`.
const PPROF: &[u8] = b"/debug/pprof/trace";

/// The marker in hosts of .NET programs, inverted so that this program does not contain it:
/// `bundle_marker.cpp` of the .NET runtime.
const INVERTED_DOTNET_HOST: [u8; 32] = [
    0x74, 0xed, 0xfd, 0x46, 0x95, 0x9e, 0xdf, 0xc7, 0x8d, 0x84, 0x6c, 0xfd, 0xeb, 0x28, 0x5f, 0xcd,
    0xec, 0x0a, 0x46, 0x19, 0x10, 0x51, 0xcc, 0xe7, 0x11, 0xc4, 0xd2, 0x31, 0xdb, 0x4c, 0x95, 0x51,
];

/// Bytes of a program that are searched.
const MAX_SEARCH: u64 = 256 << 20;

/// Whether a command is a .NET program, whose runtime connects to a diagnostic port at startup.
pub(crate) fn is_dotnet_command(command: &[String]) -> bool {
    let Some(program) = command.first().and_then(|name| find(name.as_ref())) else { return false };
    // The compiler must not compute the marker.
    let marker = std::hint::black_box(INVERTED_DOTNET_HOST).map(|byte| !byte);
    program.file_name().is_some_and(|name| name == "dotnet") || contains(&program, &marker)
}

/// Whether a command is a program in Go.
pub(crate) fn is_go_command(command: &[String]) -> bool {
    let program = command.first().and_then(|name| find(name.as_ref()));
    program.is_some_and(|program| go_program::version(&program).is_some())
}

/// Whether a running process is a program in Go.
pub(crate) fn is_go_process(pid: u32) -> bool {
    go_program::version(Path::new(&format!("/proc/{pid}/exe"))).is_some()
}

/// Whether a running process has a .NET runtime.
pub(crate) fn is_dotnet_process(pid: u32) -> bool {
    Process::find(pid).is_ok()
}

/// The file of a command, by the search path. A path may be that of no file.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    files(name).into_iter().next()
}

/// The file of a command that this user may execute: the error is that of execvp(3). The format of the file can still
/// be one that is not executed.
pub(super) fn executable(name: &OsStr) -> io::Result<PathBuf> {
    let files = files(name);
    let is_executable = |file: &&PathBuf| file.is_file() && access(*file, Access::EXEC_OK).is_ok();
    files.iter().find(is_executable).cloned().ok_or_else(|| {
        match files.iter().any(|f| f.exists()) {
            true => rustix::io::Errno::ACCESS.into(),
            false => io::ErrorKind::NotFound.into(),
        }
    })
}

/// Whether a file that the kernel does not execute can be a script of a shell: its first line is a text, as POSIX lets
/// shells decide it.
pub(super) fn is_script(file: &Path) -> bool {
    /// Bytes of the first line that are examined.
    const LINE: u64 = 256;
    let mut start = Vec::new();
    let read = regular::open(file).and_then(|file| file.take(LINE).read_to_end(&mut start));
    let line = start.split(|byte| *byte == b'\n').next();
    // One with an interpreter is a script of that, which cannot be executed.
    let is_of_shell = !start.starts_with(b"#!");
    read.is_ok() && is_of_shell && line.is_some_and(|line| !line.contains(&0))
}

/// The files that a command can be: execvp(3) executes the first one that it may.
fn files(name: &OsStr) -> Vec<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    // As execvp(3) without one.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let files = std::env::split_paths(&path).map(|dir| dir.join(name));
    files.filter(|file| file.is_file()).collect()
}

/// Whether a file contains this text.
fn contains(path: &Path, text: &[u8]) -> bool {
    let search = || -> io::Result<bool> {
        let mut file = regular::open(path)?.take(MAX_SEARCH);
        let mut block = vec![0; 1 << 20];
        let mut kept = 0;
        loop {
            let read = file.read(block.get_mut(kept..).unwrap_or_default())?;
            let filled = block.get(..kept + read).unwrap_or_default();
            if has(filled, text) {
                return Ok(true);
            }
            if read == 0 {
                return Ok(false);
            }
            let keep = filled.len().min(text.len() - 1);
            let from = filled.len() - keep;
            block.copy_within(from..from + keep, 0);
            kept = keep;
        }
    };
    search().unwrap_or(false)
}

/// Whether a text is in these bytes.
pub(crate) fn has(block: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = text.split_first() else { return true };
    let mut block = block;
    while let Some(at) = block.iter().position(|byte| byte == first) {
        block = block.get(at + 1..).unwrap_or_default();
        if block.starts_with(rest) {
            return true;
        }
    }
    false
}

/// A program in Go.
pub(crate) struct GoProgram {
    /// The name of its file.
    pub(crate) name: String,
    /// The version of Go.
    pub(crate) version: String,
    /// Whether it contains `net/http/pprof`.
    pub(crate) has_pprof: bool,
}

/// The file of an executable: device and inode. No other file has them while a process executes it.
pub(crate) type FileId = (u64, u64);

/// An executable, and the state of its file: a file system gives the inode of a file that was removed to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Executable {
    pub(crate) id: FileId,
    size: u64,
    /// Times of the last changes of its content and of its inode: seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What the executables of processes are. Each file is examined once.
#[derive(Default)]
pub(crate) struct Programs(HashMap<Executable, Option<Rc<GoProgram>>>);

impl Programs {
    /// With the file that a process executes as this program.
    #[cfg(test)]
    pub(crate) fn with(pid: u32, program: GoProgram) -> Self {
        let program = Some(Rc::new(program));
        Self(Self::file(pid).map(|file| (file, program)).into_iter().collect())
    }

    /// The file that a process executes, which changes by `execve(2)`. `None` if it has ended, or
    /// this user may not look at it.
    pub(crate) fn file(pid: u32) -> Option<Executable> {
        let metadata = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        Some(Executable {
            id: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// The program of a process that executes this file, if it is one in Go.
    pub(crate) fn go(&mut self, pid: u32, file: Executable) -> Option<Rc<GoProgram>> {
        if let Some(known) = self.0.get(&file) {
            return known.clone();
        }
        if self.0.len() >= MAX_PROGRAMS {
            self.0.clear();
        }
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let program = go_program::version(&exe).map(|version| {
            let path = std::fs::read_link(&exe).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Rc::new(GoProgram { name, version, has_pprof: contains(&exe, PPROF) })
        });
        // It may execute another one by now.
        if Self::file(pid) == Some(file) {
            self.0.insert(file, program.clone());
        }
        program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_across_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut bytes = vec![b'/'; (1 << 20) - 4];
        bytes.extend_from_slice(b"//debug/pprof/trace?");
        std::fs::write(&path, &bytes).unwrap();
        assert!(contains(&path, PPROF));
        assert!(!contains(&path, b"/debug/pprof/heap"));
        assert!(!contains(dir.path(), PPROF));
    }

    #[test]
    fn a_file_with_the_inode_of_another_one_is_another_program() {
        let pid = std::process::id();
        let own = Programs::file(pid).unwrap();
        let (name, version) = ("removed".to_owned(), "go1.24.3".to_owned());
        let go = Some(Rc::new(GoProgram { name, version, has_pprof: false }));
        let (seconds, nanos) = own.changed;
        for removed in [
            Executable { size: own.size + 1, ..own },
            Executable { modified: (own.modified.0, own.modified.1 ^ 1), ..own },
            Executable { changed: (seconds, nanos ^ 1), ..own },
        ] {
            let mut programs = Programs([(removed, go.clone())].into());
            assert!(programs.go(pid, own).is_none());
            assert!(programs.go(pid, removed).is_some());
        }
    }

    #[test]
    fn this_program_is_no_dotnet_host() {
        let own = std::env::current_exe().unwrap();
        assert!(!is_dotnet_command(&[own.to_str().unwrap().to_owned()]));
        assert!(is_dotnet_command(&["/usr/bin/dotnet".to_owned()]));
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("app");
        std::fs::write(&host, INVERTED_DOTNET_HOST.map(|byte| !byte)).unwrap();
        assert!(is_dotnet_command(&[host.to_str().unwrap().to_owned()]));
    }
}
