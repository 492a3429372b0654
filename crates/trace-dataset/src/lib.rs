//! Timelines as a dataset: tables in Parquet files, for questions about many recordings of many
//! machines in SQL.
//!
//! ```no_run
//! use trace_dataset::{Dataset, DatasetOptions};
//! use trace_timeline::sources::go::GoSource;
//! use trace_timeline::{Correlator, Tables};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reader = gotrace::Reader::new(std::fs::File::open("trace.out")?)?;
//! let mut tables = Tables::new();
//! let mut source = GoSource::new(Default::default());
//! let mut correlator = Correlator::new();
//! // The number of the recording: it is in all rows and file names.
//! let mut options = DatasetOptions::new(1);
//! options.host = Some("web-1".to_owned());
//! let mut dataset = Dataset::create("dataset".as_ref(), options)?;
//! let mut events = Vec::new();
//! while let Some(event) = reader.next_event()? {
//!     source.push(event, &mut tables, &mut events);
//!     for event in events.drain(..) {
//!         correlator.push(&event, &tables.entities, &mut |derived| dataset.push(&derived, &tables));
//!     }
//! }
//! correlator.finish(&mut |derived| dataset.push(&derived, &tables));
//! let summary = dataset.finish(&tables)?;
//! println!("{} rows in {} bytes", summary.rows(), summary.bytes());
//! # Ok(())
//! # }
//! ```
//!
//! - A file per table and recording, in Hive partitions: `sched/date=2026-11-22/host=web-1/`. Writers
//!   on many hosts need no coordination: the names of the files differ by recording.
//! - Files appear complete: they are written to a temporary directory beside the tables and renamed
//!   at the end, that of the table `recordings` last.
//! - Rows are written while the timeline is read. In memory are a row group of each table
//!   (at most 131072 rows) and the [`Tables`](trace_timeline::Tables).
//! - [`TABLES`] is the schema; [`QUESTIONS`] are questions in SQL.
//!
//! # Out of scope
//!
//! This crate does not read Parquet and does not execute SQL: DuckDB, DataFusion, Spark and
//! ClickHouse do.
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod dataset;
mod parquet;
mod partition;
mod questions;
mod schema;

// Types of other crates in the public API.
pub use trace_common::{ClockDomain, Timestamp};
pub use trace_timeline;

pub use dataset::{
    Cleanup, Dataset, DatasetOptions, Error, Result, SourceFile, Summary, TableSummary,
};
pub use questions::{QUESTIONS, Question, views, with_cohorts};
pub use schema::{Column, ColumnType, SCHEMA_VERSION, TABLES, Table, markdown};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
