//! Reads and writes recordings of `perf record`: `perf.data`.
//!
//! ```
//! use perf_data::perf_monitor::Record;
//! use perf_data::{Entry, Reader, SortedReader};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use perf_data::{FileWriter, RecordWriter, RecordedEvent, Features, perf_event_attr};
//! # let attr = perf_event_attr { sample_type: 1 << 2, ..perf_event_attr::new(1, 0) };
//! # let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
//! # let mut writer = FileWriter::new(std::io::Cursor::new(Vec::new()), vec![event])?;
//! # let bytes = [9, 0, 0, 0, 0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0, 0];
//! # let (raw, _) = perf_data::perf_monitor::RawRecord::split_first(&bytes, 0).unwrap();
//! # (writer.record(raw)?, writer.record(raw)?);
//! # let input = writer.finish(&Features::default())?;
//! let reader = Reader::new(input)?;
//! let mut records = SortedReader::new(reader);
//! let mut samples = 0;
//! while let Some(entry) = records.next_record()? {
//!     if let Some(Ok(Record::Sample(sample))) = entry.decode() {
//!         let event = entry.event().map_or("?", |event| &event.name);
//!         println!("{event} {:?} {:?}", sample.tid, sample.time);
//!         samples += 1;
//!     }
//! }
//! # assert_eq!(samples, 2);
//! # Ok(()) }
//! ```
//!
//! - [`Reader`]: recordings of `perf` and of this crate, in file and pipe mode, compressed or not.
//!   [`SortedReader`] brings the records into time order.
//! - [`FileWriter`] and [`PipeWriter`]: recordings that `perf report`, `perf script` and others read.
//! - [`Synthesizer`]: records about the processes that are running when a recording starts. [`TaskRecords`]
//!   keeps them up to date, for recordings in parts.
//! - [`Features`], [`TracingData`], [`BuildId`]: what a recording says about its machine, its
//!   tracepoints and the mapped files.
//!
//! Records are decoded by [`perf_monitor`], which this crate exports.
//!
//! # Names of functions
//!
//! [`Mappings`] has the file at the address of a sample. On Linux, [`MappedFile::module`] is that file for
//! [`trace_symbols::Symbolizer`], which this crate exports, too. The example
//! [`symbolize`](https://docs.rs/crate/perf-data/latest/source/examples/symbolize.rs) prints the functions of
//! the samples of a recording.
//!
//! A name is that of the code that ran: a file must have the build id of the recording, or the inode of the
//! mapping and no change since. What `perf record` writes of that depends on its options:
//!
//! | options | files are known by |
//! | --- | --- |
//! | none | their build ids, if they have samples |
//! | `--buildid-mmap` (Linux 5.12) | their build ids |
//! | `-z` or `-o -` (no build ids), with `--clockid mono` | their inodes and times |
//! | `-z` or `-o -` | nothing: [`Options::unverified`](trace_symbols::Options::unverified) uses them anyway |
//!
//! # Untrusted input
//!
//! Input never panics; sizes are compared with the input and with [`Limits`] before anything is
//! allocated; errors have the offset of the damage. Features that are damaged do not prevent the
//! records from being read.
//!
//! # Platforms
//!
//! Recordings are read and written everywhere. On Linux, [`Synthesizer`] and `of_this_machine`,
//! `of_this_kernel` and `now` of other types describe the running machine.
//!
//! # Features of the crate
//!
//! - `zstd`: compressed recordings (`perf record -z`), with a decoder in Rust. Needs Rust 1.87.
//!
//! # Not included
//!
//! Recordings of big-endian machines, directories (`perf record --threads`), the data of AUX areas
//! (skipped).
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
// Input never panics: bytes are accessed with `get`. (Tests are exempt.)
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

mod build_id;
mod bytes;
#[cfg(feature = "zstd")]
mod compressed;
mod ended;
mod error;
mod event;
mod features;
mod layout;
mod losses;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod mapped_ids;
mod mappings;
mod reader;
mod sorted;
#[cfg(target_os = "linux")]
mod synthesize;
mod tasks;
mod tracing;
mod writer;

// Types of other crates in the public API.
pub use perf_monitor;
pub use perf_sys::perf_event_attr;
pub use trace_common::{BuildId, ClockDomain, Inode, KernelReference, Limits, Timestamp};
#[cfg(target_os = "linux")]
pub use trace_symbols;

pub use build_id::BuildIdEntry;
pub use error::{Error, Result};
pub use event::RecordedEvent;
pub use features::{ClockReference, CpuTopology, Cpus, EventGroup, Features};
pub use layout::{Feature, record_type};
pub use losses::Losses;
#[cfg(target_os = "linux")]
pub use mapped_ids::BuildIds;
pub use mappings::{MappedAddress, MappedFile, Mappings};
pub use reader::{Entry, Reader, Session};
pub use sorted::SortedReader;
#[cfg(target_os = "linux")]
pub use synthesize::Synthesizer;
pub use tasks::TaskRecords;
pub use tracing::TracingData;
pub use writer::{FileWriter, PipeWriter, RecordWriter};
