//! Errors, and the reasons for unresolved addresses.

use std::io;
use trace_common::{BuildId, Guid, ReadError};

/// The reason why an address has no function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unresolved {
    /// Nothing is known to be mapped at the address at that time.
    #[error("nothing is mapped at the address")]
    NotMapped,
    /// The memory is not that of a file, and no just-in-time compiler described it.
    #[error("the memory is not that of a file")]
    NotAFile,
    /// The file has no symbols.
    #[error("the file has no symbols")]
    NoSymbols,
    /// No symbol covers the address.
    #[error("no symbol covers the address")]
    NoSymbol,
    /// The file cannot be opened or read.
    #[error("the file cannot be read: {0}")]
    File(io::ErrorKind),
    /// The file was replaced since it was mapped.
    #[error("the file was replaced: its build id is {found}, not {expected}")]
    BuildId {
        /// That of the mapping.
        expected: BuildId,
        /// That of the file now.
        found: BuildId,
    },
    /// The file was replaced since it was mapped: it has another inode, a later time of its last change, or
    /// no build id any more.
    #[error("the file was replaced or changed since it was mapped")]
    Replaced,
    /// Nothing identifies the file that was mapped, so that it may have been replaced.
    /// [`Options::unverified`](crate::Options::unverified) uses it.
    #[error(
        "the mapping has no build id, and no inode and time to compare the file with \
         (Options::unverified uses the file that is there now)"
    )]
    Unverified,
    /// The file is not an ELF file that this crate reads: 32 or 64 bits, little-endian.
    #[error("the file is not a little-endian ELF file")]
    NotElf,
    /// The file is malformed.
    #[error("the file is malformed at offset {offset}: {what}")]
    Malformed {
        /// The expected item.
        what: &'static str,
        /// The position in the file.
        offset: u64,
    },
    /// A section is compressed in a way that this crate does not read, or only with its feature `zstd`.
    #[error("{what}: compressed with method {kind}, which is not supported")]
    Compression {
        /// The section.
        what: &'static str,
        /// `ch_type` of the ELF specification: 1 is zlib, 2 is zstd.
        kind: u32,
    },
    /// A table of the file is larger than the limit.
    #[error("{what} has {size} bytes, more than the limit")]
    TooLarge {
        /// The table.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
    },
    /// Debug information of the file is in another one: split DWARF (`.dwo`), which is not read, or a
    /// supplementary file (dwz(1)) that is not there.
    #[error("a part of the debug information is in another file, which is not read")]
    OtherDebugFile,
    /// A part of the file is not read: it would take too much memory or time. The file is damaged, or made
    /// to do harm.
    #[error("{what} would take too much memory or time: they are not read")]
    Excessive {
        /// The items that are too many or too deep.
        what: &'static str,
    },
    /// There are more files and mappings than [`Options::max_mappings`](crate::Options::max_mappings).
    #[error("there are more files and mappings than Options::max_mappings")]
    TooManyModules,
    /// The kernel hides its addresses from this user.
    #[error(
        "the kernel hides its symbols: run as root, or set kernel.kptr_restrict to 0 and \
         kernel.perf_event_paranoid to 1 or less"
    )]
    KernelRestricted,
    /// The running kernel, or its module, is another one.
    #[error("the address belongs to another kernel or module than the running one")]
    OtherKernel,
    /// The code that the kernel maps into 32-bit processes: this process has another one.
    #[error("the vdso of 32-bit processes is not that of this process")]
    OtherVdso,
    /// Different methods had the address, and nothing says which of them had it at the time.
    #[error("several methods had the address, one after another")]
    Ambiguous,
    /// The description of just-in-time compiled code is not used: another user could have written it.
    #[error("the perf map or jitdump file was refused: {0}")]
    PerfMapRefused(PerfMapProblem),
    /// No PDB file is beside an assembly or in it.
    #[error("no PDB file is beside the assembly or in it")]
    NoPdb,
    /// The file is not a Portable PDB file: it is one of Windows, for example.
    #[error("the file is not a Portable PDB file")]
    NotPortablePdb,
    /// The PDB file is that of another build of the assembly.
    #[error("the PDB file is of another build: its id is {found}, not {expected}")]
    PdbId {
        /// That of the assembly.
        expected: Guid,
        /// That of the file.
        found: Guid,
    },
    /// It is turned off in the [options](crate::Options).
    #[error("symbols of this kind are turned off")]
    Disabled,
}

impl Unresolved {
    /// Whether the file is not there, or is not the one that was mapped. Another
    /// [process](crate::Module::process) that mapped it can have it below its root directory.
    pub const fn is_of_missing_file(&self) -> bool {
        matches!(self, Self::File(_) | Self::BuildId { .. } | Self::Replaced)
    }
}

/// The reason why a file that a process is said to have written is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PerfMapProblem {
    /// It belongs neither to the user of the process nor to root.
    #[error("it belongs to user {owner}, not to {user}")]
    Owner {
        /// The user who owns the file.
        owner: u32,
        /// The user of the process.
        user: u32,
    },
    /// Others may write it.
    #[error("other users may write it")]
    Writable,
    /// It is a symbolic link, a pipe, a device or a directory.
    #[error("it is not a regular file")]
    NotRegular,
    /// The addresses are those of another machine, whose files are not here.
    #[error("the process is one of another machine")]
    OtherMachine,
    /// The process started after its number was recorded.
    #[error("another process has the number of the process now")]
    OtherProcess,
    /// It was changed last before the process started, which does not have it open: an earlier process had the
    /// number.
    #[error("it is older than the process: an earlier process had its number")]
    EarlierProcess,
}

/// Result of resolving an address or reading a file with symbols.
pub type Result<T, E = Unresolved> = std::result::Result<T, E>;

impl From<io::Error> for Unresolved {
    fn from(error: io::Error) -> Self {
        Self::File(error.kind())
    }
}

/// Names the item that could not be read.
pub(crate) fn malformed(what: &'static str) -> impl Fn(ReadError) -> Unresolved {
    move |error| Unresolved::Malformed { what, offset: error.offset }
}
