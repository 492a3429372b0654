//! Resolves addresses of processes and of the kernel to functions, inlined callers, files and lines.
//!
//! ```
//! use trace_symbols::{Symbolizer, Timestamp};
//!
//! let mut symbols = Symbolizer::default();
//! symbols.add_process(std::process::id())?;
//! let address = std::process::id as fn() -> u32 as usize as u64;
//! match symbols.symbolize(std::process::id(), address, Timestamp::MAX).frames {
//!     Ok(frames) => frames.iter().for_each(|frame| println!("{}", frame.function)),
//!     Err(why) => println!("{address:#x}: {why}"),
//! }
//! # Ok::<(), trace_symbols::Unresolved>(())
//! ```
//!
//! # Contents
//!
//! - [`Symbolizer`] resolves the addresses of processes and of the kernel at a time, with a cache.
//! - [`AddressSpaces`] has the mappings of processes over time: those of running processes, and those
//!   that records of `mmap(2)`, `fork(2)` and `execve(2)` report.
//! - `Unwinder` finds callers from the registers and the copied stack of a sample (feature `unwind`).
//! - [`ObjectFile`] has the functions of one ELF file.
//! - [`BuildId`] identifies the contents of an ELF file.
//! - `pdb` finds the Portable PDB files of .NET assemblies, and has the lines of their methods (feature
//!   `pdb`).
//!
//! # Sources of symbols
//!
//! | code | source |
//! | --- | --- |
//! | kernel and modules | `/proc/kallsyms` of the running kernel |
//! | executables and libraries | `.symtab`, else `.dynsym`, of the file or of its separate debug file |
//! | with the feature `xz` | `.gnu_debugdata`: symbols of stripped files of some distributions |
//! | with the feature `dwarf` | DWARF 2 to 5: files, lines, inlined calls |
//! | Go programs, also stripped ones | the runtime's own table (`pclntab`, Go 1.2 to 1.27): functions, files, lines, and from Go 1.18 on inlined calls |
//! | vdso | its image in memory |
//! | methods of a runtime, such as .NET's | those that the caller adds with their times ([`Symbolizer::add_method`]) |
//! | just-in-time compilers | jitdump files by time (`jit-PID.dump`), then perf maps (`/tmp/perf-PID.map`) |
//!
//! Names of Rust are demangled, and with the feature `cpp` those of C++.
//!
//! # Correctness
//!
//! An address without a known symbol is [`Unresolved`] with a reason: nothing is guessed. A file is used if
//! it has the build id of the mapping, or without one its inode, and was not changed since. Files are looked
//! for in the root directory of the process first, and symbolic links are resolved there: a process in a
//! container has its own libraries. Addresses of the kernel that were recorded before a reboot need the place
//! of the kernel then ([`Module::reference`]). A perf map of another user is refused, and one that is
//! older than its process. Special files such as devices are not opened, whatever the paths are.
//!
//! # Requirements
//!
//! Linux, with procfs at `/proc`: without it, no file is read. The kernel's symbols need root, or
//! `kernel.kptr_restrict` 0 with `kernel.perf_event_paranoid` 1 or less. Mappings and files of other
//! users' processes need `CAP_SYS_PTRACE`.
//!
//! # Features
//!
//! - `dwarf` (default): files, lines and inlined calls of native code. Needs `addr2line`, `gimli` and
//!   `flate2`.
//! - `cpp`: names of C++ as its source has them. Needs `cpp_demangle`.
//! - `debuginfod`: debug information of servers, when asked (`Options::debuginfod`). Needs no other crate.
//! - `pdb`: files and lines of .NET methods, from Portable PDB files beside assemblies and in them. Needs
//!   `flate2`.
//! - `xz`: the symbols in `.gnu_debugdata`. Needs `lzma-rust2`.
//! - `unwind`: callers of functions from call frame information and from Go's own tables, on x86-64 and
//!   64-bit Arm. Needs `gimli` and `flate2`.
//! - `zstd`: with `dwarf` or `unwind`, sections that are compressed with zstd; those with zlib need no feature.
//!   Needs `ruzstd` and Rust 1.87.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

#[cfg(not(any(target_os = "linux", target_os = "android")))]
compile_error!(
    "trace-symbols is for Linux: it reads /proc, and files in the root directories of processes. Depend on it \
     under [target.'cfg(target_os = \"linux\")'.dependencies]"
);

pub mod build_id;
mod debug_file;
#[cfg(feature = "debuginfod")]
mod debuginfod;
mod demangle;
#[cfg(feature = "dwarf")]
mod dwarf;
mod elf;
mod error;
mod files;
mod frame;
mod go;
mod jit;
mod jitdump;
mod kernel;
mod methods;
#[cfg(feature = "xz")]
mod mini_debug;
mod module;
mod names;
mod object_file;
mod options;
#[cfg(feature = "pdb")]
pub mod pdb;
mod perf_map;
#[cfg(any(feature = "dwarf", feature = "unwind"))]
mod section;
mod source;
mod spaces;
mod symbolizer;
mod table;
mod time_map;
#[cfg(feature = "unwind")]
mod unwind;
mod vdso;
#[cfg(all(feature = "zstd", any(feature = "dwarf", feature = "unwind")))]
mod zstd;

#[cfg(feature = "debuginfod")]
pub use debuginfod::Debuginfod;
pub use demangle::demangle_rust;
pub use error::{PerfMapProblem, Result, Unresolved};
pub use frame::Frame;
pub use methods::Method;
pub use module::{Module, ModuleId, ModuleKind};
pub use object_file::ObjectFile;
pub use options::Options;
pub use spaces::{AddressSpaces, Location, Mapping};
pub use symbolizer::{Symbolized, Symbolizer};
pub use trace_common::{BuildId, Guid, Inode, KernelReference, Limits, Timestamp};
#[cfg(feature = "unwind")]
pub use unwind::{Architecture, Registers, StackEnd, Unwinder};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
