use super::analysis::{self, Analysis, Rows};
use super::latency;
use crate::failure::Result;
use gotrace::analysis::{ProcessorUse, SchedulingOptions};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Print the use of the processors (Ps) over time
///
/// For intervals of equal length: the mean number of Ps that run goroutines, run workers of the GC,
/// have a goroutine in a system call, and are idle; and of goroutines that wait for a P.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go procs trace.out
  triscope go procs --intervals 1000 --csv trace.out > procs.csv")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Largest number of intervals
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    intervals: u32,
}

pub(super) fn run(args: &Args) -> Result {
    let mut options = SchedulingOptions::default();
    options.intervals = args.intervals as usize;
    let (report, reading) = latency::report(&args.analysis, options)?;
    let rows = &report.processors;
    args.rows.print(rows, to_json, |out| {
        writeln!(
            out,
            "                start    length   procs  running     gc  syscall   idle  runnable"
        )?;
        for row in rows {
            print(row, "", out)?;
        }
        report.mean().map_or(Ok(()), |mean| print(&mean, "mean", out))
    })?;
    reading.into_result()
}

pub(super) fn to_json(row: &ProcessorUse) -> Value {
    json!({
        "start": row.start.nanos(),
        "length": analysis::nanos(row.length),
        "procs": row.procs,
        "running": row.running,
        "gc": row.gc,
        "syscall": row.syscall,
        "idle": row.idle(),
        "runnable": row.runnable,
    })
}

fn print(row: &ProcessorUse, name: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let start = if name.is_empty() { row.start.to_string() } else { name.to_owned() };
    let length = analysis::duration(row.length);
    let ProcessorUse { procs, running, gc, syscall, runnable, .. } = row;
    writeln!(
        out,
        "{start:>21}{length:>11}{procs:>7.1}{running:>9.2}{gc:>7.2}{syscall:>9.2}{:>7.2}{runnable:>10.2}",
        row.idle()
    )
}
