//! Processes of this machine.

use crate::auxv;
use crate::error::{AccessDenied, Error, Result};
use crate::memory::Memory;
use crate::program::Program;
use crate::snapshot::Snapshot;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use trace_common::Limits;

/// A running Go program. Linux only.
///
/// The process is neither stopped nor changed.
#[derive(Debug)]
pub struct Process {
    program: Program,
    memory: ProcessMemory,
    load_bias: u64,
}

/// `/proc/PID/mem`, open for reading.
#[derive(Debug)]
pub(crate) struct ProcessMemory(File);

impl ProcessMemory {
    pub(crate) fn open(pid: u32) -> Result<Self> {
        open(pid, "mem").map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let ended = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the process has ended"),
            _ => error,
        };
        self.0.read_exact_at(buffer, address).map_err(ended)
    }
}

impl Process {
    /// Opens the memory and the program of a process.
    ///
    /// Needs the permission to trace the process (`ptrace(2)`, `PTRACE_MODE_ATTACH_FSCREDS`): the
    /// same user and a `/proc/sys/kernel/yama/ptrace_scope` of 0, or `CAP_SYS_PTRACE`.
    ///
    /// # Errors
    ///
    /// [`Error::Process`], [`Error::AccessDenied`], and those of [`Program::parse`].
    pub fn open(pid: u32) -> Result<Self> {
        let memory = ProcessMemory::open(pid)?;
        let program = Program::parse(open(pid, "exe")?)?;
        Self::of(pid, memory, program)
    }

    /// As [`open`](Self::open), with the parsed program that the process executes: its symbols are not read again. A
    /// snapshot with another program is none of its flight recorder.
    ///
    /// # Errors
    ///
    /// [`Error::Process`], [`Error::AccessDenied`] and [`Error::Elf`].
    pub fn with_program(pid: u32, program: Program) -> Result<Self> {
        let memory = ProcessMemory::open(pid)?;
        Self::of(pid, memory, program)
    }

    fn of(pid: u32, memory: ProcessMemory, program: Program) -> Result<Self> {
        let path = path(pid, "auxv");
        let vector = fs::read(&path).map_err(|source| failure(pid, path, source))?;
        let headers = auxv::program_headers(&vector);
        let headers = headers.ok_or(Error::Elf("the process has no AT_PHDR"))?;
        let load_bias = program.load_bias(headers);
        Ok(Self { program, memory, load_bias })
    }

    /// Its program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Reads the finished generations of its flight recorder.
    ///
    /// # Errors
    ///
    /// Those of [`Program::snapshot`].
    pub fn snapshot(&mut self, limits: Limits) -> Result<Snapshot> {
        self.program.snapshot(&mut self.memory, self.load_bias, limits)
    }
}

fn path(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

pub(crate) fn open(pid: u32, name: &str) -> Result<File> {
    let path = path(pid, name);
    File::open(&path).map_err(|source| failure(pid, path, source))
}

fn failure(pid: u32, path: PathBuf, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::PermissionDenied {
        let owner = |pid: &str| fs::metadata(format!("/proc/{pid}")).map(|m| m.uid());
        let (user, own) = (owner(&pid.to_string()).ok(), owner("self").ok());
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
        let scope = scope.and_then(|text| text.trim().parse().ok());
        Error::AccessDenied { pid, reason: reason(user, own, scope) }
    } else {
        Error::Process { path, source }
    }
}

/// The reason, of the owners of the process and of this one and of Yama's scope.
fn reason(user: Option<u32>, own: Option<u32>, scope: Option<u32>) -> AccessDenied {
    match (user, scope) {
        (_, Some(3..)) => AccessDenied::YamaForever,
        (Some(user), _) if own != Some(user) => AccessDenied::OtherUser { user },
        (_, Some(scope @ 1..)) => AccessDenied::Yama { scope },
        _ => AccessDenied::Privileged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_language_is_refused() {
        let error = Process::open(std::process::id()).unwrap_err();
        // A 32-bit program is no 64-bit ELF file.
        assert!(matches!(error, Error::NotGo | Error::Elf(_)), "{error}");
    }

    #[test]
    fn a_missing_process_is_an_error() {
        let error = Process::open(u32::MAX).unwrap_err();
        assert!(matches!(error, Error::Process { .. }), "{error}");
        assert!(error.to_string().starts_with("/proc/4294967295/mem: "), "{error}");
    }

    #[test]
    fn a_denial_has_its_reason() {
        assert_eq!(reason(Some(0), Some(1000), Some(1)), AccessDenied::OtherUser { user: 0 });
        assert_eq!(reason(Some(7), Some(7), Some(1)), AccessDenied::Yama { scope: 1 });
        assert_eq!(reason(Some(7), Some(7), Some(3)), AccessDenied::YamaForever);
        assert_eq!(reason(Some(7), Some(7), Some(0)), AccessDenied::Privileged);
        assert_eq!(reason(Some(7), Some(7), None), AccessDenied::Privileged);
    }
}
