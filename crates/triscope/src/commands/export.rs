//! `triscope export`: traces as a dataset for SQL.

use crate::answers::dataset::{Export, PATHS};
use crate::failure::Result;
use crate::run::duration;
use crate::sources::model::Traces;
use std::path::PathBuf;

/// Export traces as Parquet tables for SQL
///
/// The traces are one recording of one machine: its processes, threads and goroutines with their
/// states, the scheduling of threads, wake-ups, GCs, tasks, samples with stacks, counters and losses.
/// Each table is a directory with a file per recording, in partitions date=DATE/host=HOST. Any number
/// of recordings of any number of hosts can be in one dataset, also by exports that run at the same
/// time. An export of the same traces replaces its files; with another --host or --start it is another
/// recording, and both count. Of damaged traces, what could be read is exported: the recording is marked
/// as partial, and the exit status is 1.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope export trace.out -o dataset --host web-1
  triscope export recording/ -o dataset    what triscope record --keep wrote
  triscope questions                       what can be asked, in SQL

The tables and columns are described in docs/dataset.md.")]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// The directory of the dataset
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// The host [default: that of a recording of the kernel]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// When the recording starts, in seconds since 1970, UTC [default: by the clocks of the traces]
    #[arg(long, value_name = "SECONDS", value_parser = nanos)]
    start: Option<i64>,
    /// Number of tasks, of activities and of regions with critical paths, longest first; 0 for none
    ///
    /// The traces are read a second time for them.
    #[arg(long, value_name = "N", default_value_t = PATHS)]
    paths: usize,
}

pub(crate) fn run(args: &Args) -> Result {
    let Args { traces, output, host, start, paths } = args;
    Export { traces, output, host: host.as_deref(), start: *start, paths: *paths }.run()
}

/// Parses seconds since 1970, and converts them to nanoseconds.
fn nanos(text: &str) -> std::result::Result<i64, &'static str> {
    // Up to there, numbers are within a microsecond.
    let seconds = duration::seconds(text, 0.0..4e9);
    seconds.map(duration::nanos).ok_or("expected seconds since 1970")
}
