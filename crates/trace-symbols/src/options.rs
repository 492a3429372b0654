//! What a symbolizer reads.

use std::path::PathBuf;

/// What has more than [`Options::max_total_bytes`].
pub(crate) const ALL_TABLES: &str = "the sum of all tables";

/// The sources of symbols, and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Whether the symbols of the running kernel are used (`/proc/kallsyms`), and its vdso for mappings
    /// without a build id.
    pub kernel: bool,
    /// Whether perf maps and jitdump files are read, which processes with just-in-time compilers write.
    pub perf_maps: bool,
    /// Whether debug information is read: files, lines and inlined calls of native code. Needs the
    /// feature `dwarf`.
    pub lines: bool,
    /// Directories with separate files of debug information, by build id (`.build-id/ab/cdef.debug`) or
    /// by the path and `.gnu_debuglink` of the file.
    pub debug_directories: Vec<PathBuf>,
    /// Servers that are asked for debug information which no directory has. `None`: no connection is
    /// made.
    #[cfg(feature = "debuginfod")]
    pub debuginfod: Option<crate::Debuginfod>,
    /// Whether names are demangled.
    pub demangle: bool,
    /// Whether files are used that nothing identifies: their mapping has no build id, and its inode or its
    /// time is not known. Such a file may have been replaced since.
    pub unverified: bool,
    /// Maximum number of bytes of one table that is read from a file.
    pub max_bytes: u64,
    /// Maximum number of bytes of the tables of all files: a file that is met when there are more is not read
    /// ([`Unresolved::TooLarge`](crate::Unresolved::TooLarge)). The sections of debug information are counted. The lines
    /// and inlined calls that are found in them are not: they are read for the units whose addresses are asked for, and
    /// those of each file have a limit of their own, of some GiB.
    pub max_total_bytes: u64,
    /// Maximum number of mappings, address spaces and modules: about 250 bytes each. Others are dropped
    /// ([`AddressSpaces::dropped`](crate::AddressSpaces::dropped)); modules are kept, also of processes that
    /// have ended.
    pub max_mappings: usize,
    /// Maximum number of resolved addresses that are kept.
    pub max_cached: usize,
}

impl Default for Options {
    /// Everything is used, except files that nothing identifies; tables of at most 1 GiB, and of 8 GiB
    /// together; four million mappings; a million resolved addresses.
    fn default() -> Self {
        Self {
            kernel: true,
            perf_maps: true,
            lines: true,
            debug_directories: vec![PathBuf::from("/usr/lib/debug")],
            #[cfg(feature = "debuginfod")]
            debuginfod: None,
            demangle: true,
            unverified: false,
            max_bytes: 1 << 30,
            max_total_bytes: 8 << 30,
            max_mappings: 1 << 22,
            max_cached: 1 << 20,
        }
    }
}
