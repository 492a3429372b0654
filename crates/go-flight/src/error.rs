#[cfg(unix)]
use crate::goroutines;
use crate::layout;
use std::io;
use std::path::PathBuf;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a flight recorder cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of `/proc/PID` cannot be opened or read.
    #[error("{}: {source}", .path.display())]
    Process {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// This user may not read the memory of the process.
    #[error("the memory of process {pid} cannot be read: {reason}")]
    AccessDenied {
        /// The process.
        pid: u32,
        /// The reason and the remedy.
        reason: AccessDenied,
    },

    /// The program is not a 64-bit little-endian ELF file, or is malformed.
    #[error("the program is not a usable ELF file: {0}")]
    Elf(&'static str),

    /// The core file is no core file of a 64-bit little-endian machine, or is malformed.
    #[error("the core file cannot be used: {0}")]
    CoreFile(&'static str),

    /// The program was not built by Go.
    #[error("the program is not a Go program: it has no section .go.buildinfo")]
    NotGo,

    /// There is no table of layouts for the architecture of the program.
    #[error("ELF machine {machine} is not supported: layouts are known for amd64 and arm64")]
    UnsupportedArchitecture {
        /// `e_machine` of the ELF header.
        machine: u16,
    },

    /// There is no table of layouts for the version of Go that built the program.
    #[error("the layouts of {version} are unknown; they are known for Go {}", layout::known())]
    UnsupportedVersion {
        /// The version, such as `go1.24.3`.
        version: String,
    },

    /// There is no table of the layouts of goroutines for the version of Go that built the program.
    #[cfg(unix)]
    #[error(
        "the layouts of goroutines of {version} are unknown; they are known for Go {}",
        goroutines::known()
    )]
    UnsupportedRuntime {
        /// The version, such as `go1.24.3`.
        version: String,
    },

    /// `runtime/trace` is not part of the program.
    #[error("the program does not use runtime/trace: it has no flight recorder")]
    NotLinked,

    /// No `trace.FlightRecorder` is started.
    #[error("no trace.FlightRecorder is running in the program")]
    NotRunning,

    /// The program has no Go symbols, and no running `trace.FlightRecorder` was found in its data.
    #[error(
        "no running trace.FlightRecorder was found in the data of the program, which has no Go symbols"
    )]
    NotFound,

    /// The program has no Go symbols, and its data have several objects that look like a running
    /// `trace.FlightRecorder`.
    #[error("the data of the program, which has no Go symbols, look like several flight recorders")]
    Ambiguous,

    /// The first generation is not finished.
    #[error("the flight recorder has no finished generation yet; one takes about a second")]
    NoGeneration,

    /// The ring changed during every attempt to read it.
    #[error("the flight recorder changed during each of {attempts} attempts to read it")]
    Changing {
        /// The number of attempts.
        attempts: u32,
    },

    /// The program's memory cannot be read at an address, or the process has ended.
    #[error("memory at {address:#x}: {source}")]
    Memory {
        /// The virtual address.
        address: u64,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The memory does not contain what the layouts require.
    #[error("memory at {address:#x}: {what}")]
    Malformed {
        /// The violated rule.
        what: &'static str,
        /// The virtual address.
        address: u64,
    },

    /// The flight recorder, or the data to search for it, are larger than the limit.
    #[error("more than Limits::max_buffer ({max_buffer} bytes) would have to be read")]
    LimitExceeded {
        /// [`Limits::max_buffer`](crate::Limits::max_buffer).
        max_buffer: usize,
    },
}

/// The reason why the kernel denies access to the memory of a process.
///
/// The rules are those of `ptrace(2)`, "Ptrace access mode checking", `PTRACE_MODE_ATTACH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessDenied {
    /// The files of the process belong to another user.
    #[error("it belongs to user {user}: run as that user, or as root (CAP_SYS_PTRACE)")]
    OtherUser {
        /// The owner of `/proc/PID`: 0 also for a process that is not dumpable.
        user: u32,
    },
    /// The Yama security module denies it: `/proc/sys/kernel/yama/ptrace_scope` is 1 or 2.
    #[error(
        "kernel.yama.ptrace_scope is {scope}: run as root (CAP_SYS_PTRACE), or run \
         `sysctl kernel.yama.ptrace_scope=0`"
    )]
    Yama {
        /// The value.
        scope: u32,
    },
    /// The Yama security module denies it to every user until the next boot: `ptrace_scope` is 3.
    #[error("kernel.yama.ptrace_scope is 3: no user may read it until the next boot")]
    YamaForever,
    /// The process has privileges that this user lacks, or is in another user namespace.
    #[error("the process has more privileges than this user: run as root (CAP_SYS_PTRACE)")]
    Privileged,
}
