//! Types that two or more of the triscope tracers share.
//!
//! ```
//! use std::time::Duration;
//! use trace_common::{Cursor, Timestamp};
//!
//! // A checked cursor: every failed read reports its offset, nothing panics.
//! let mut bytes = Cursor::new(&[0xe5, 0x8e, 0x26, 7]);
//! assert_eq!(bytes.uvarint()?, 624_485);
//! assert_eq!(bytes.u8()?, 7);
//! assert_eq!(bytes.u8().unwrap_err().offset, 4);
//!
//! // Times are in nanoseconds: arithmetic with durations stops at the ends of the range.
//! let begin = Timestamp::from_nanos(1_000);
//! assert_eq!((begin + Duration::from_micros(2)).nanos(), 3_000);
//! assert_eq!(Timestamp::MAX + Duration::from_micros(2), Timestamp::MAX);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Timestamp`], [`ClockDomain`]: nanoseconds of a clock, and which clock it is;
//! - [`Cursor`]: bounds-checked little-endian reads and variable-length integers over a byte slice;
//!   [`append_uvarint`] writes these integers;
//! - [`available_memory`]: how much this process can have (Linux);
//! - [`BuildId`], [`Inode`]: the identity of the contents of an ELF file, and of a mapped file;
//! - [`crc32`]: the checksum of gzip;
//! - [`folded_name`]: the name of a frame in folded stacks;
//! - [`FoundFile`](https://docs.rs/trace-common/latest/trace_common/struct.FoundFile.html): a regular file of another
//!   user, opened without effects (Linux);
//! - [`Guid`]: a GUID in .NET's byte order;
//! - [`Histogram`]: durations by size, for percentiles;
//! - [`IdMap`]: values by identifiers that are mostly assigned consecutively;
//! - [`innermost_pid`], [`start_ticks`], [`stat_field`]: the texts of `/proc` about a process or thread (Linux);
//! - [`KernelReference`]: where a kernel was in memory;
//! - [`Limits`]: limits on allocations sized by untrusted input;
//! - [`Merge`]: several sources merged in time order, up to a watermark; [`Tournament`]: the earliest
//!   of several sources;
//! - [`Mount`], [`mounted_cgroup`]: mounted file systems, and the directories of a cgroup (Linux);
//! - [`SeededState`]: hashing of identifiers from untrusted input;
//! - [`Walk`]: a walk back in time along waits, for critical paths.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

mod available;
mod build_id;
mod clock;
mod cpu_mode;
mod crc;
mod cursor;
mod folded;
#[cfg(target_os = "linux")]
mod found_file;
mod guid;
mod histogram;
mod id_map;
mod inode;
mod kernel_reference;
mod limits;
mod memory;
mod merge;
mod mounts;
mod octal;
mod proc_stat;
mod proc_status;
mod seeded;
mod tournament;
mod walk;

pub use available::available_memory;
pub use build_id::BuildId;
pub use clock::{ClockDomain, Timestamp};
pub use cpu_mode::CpuMode;
pub use crc::crc32;
pub use cursor::{Cursor, ReadError, ReadErrorKind, append_uvarint};
pub use folded::folded_name;
#[cfg(target_os = "linux")]
pub use found_file::{FindError, FoundFile};
pub use guid::{Guid, ParseGuidError};
pub use histogram::Histogram;
pub use id_map::IdMap;
pub use inode::Inode;
pub use kernel_reference::KernelReference;
pub use limits::Limits;
pub use memory::is_memory_of_no_file;
pub use merge::{Merge, Merged};
pub use mounts::{CgroupVersion, Mount, mounted_cgroup};
pub use octal::unescape_octal;
pub use proc_stat::{start_ticks, stat_field};
pub use proc_status::innermost_pid;
pub use seeded::{SeededHasher, SeededState};
pub use tournament::{Lateness, Tournament};
pub use walk::{Step, Walk, divide};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
