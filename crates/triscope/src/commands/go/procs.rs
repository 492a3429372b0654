use super::analysis::{self, Analysis, Rows};
use super::latency;
use crate::failure::Result;
use gotrace::analysis::{ProcessorUse, SchedulingOptions};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Print the use of the processors (Ps) over time
///
/// For intervals of equal length: the mean number of Ps that run goroutines, run workers of the GC,
/// have a goroutine in a system call, and are idle; and of goroutines that wait for a P. The number
/// of Ps, and of those that are idle, is not known if the trace does not have GOMAXPROCS.
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
    let mean = report.mean();
    // An interval within a loss has no Ps, and others have.
    let is_known = mean.as_ref().is_some_and(has_procs);
    args.rows.print(
        rows,
        |row| to_json(row, is_known),
        |out| {
            writeln!(
                out,
                "          start    length   procs  running     gc  syscall   idle  runnable"
            )?;
            for row in rows {
                print(row, &reading.at(row.start), is_known, out)?;
            }
            mean.as_ref().map_or(Ok(()), |mean| print(mean, "mean", is_known, out))
        },
    )?;
    reading.into_result()
}

/// Whether the trace has `GOMAXPROCS`, by the mean of all of it: otherwise it is not known how many Ps
/// are idle.
pub(super) fn has_procs(mean: &ProcessorUse) -> bool {
    mean.procs > 0.0
}

/// The use of the processors. `is_known` is whether the trace [has](has_procs) their number.
pub(super) fn to_json(row: &ProcessorUse, is_known: bool) -> Value {
    json!({
        "start": row.start.nanos(),
        "length": analysis::nanos(row.length),
        "procs": is_known.then_some(row.procs),
        "running": row.running,
        "gc": row.gc,
        "syscall": row.syscall,
        "idle": is_known.then(|| row.idle()),
        "runnable": row.runnable,
    })
}

fn print(row: &ProcessorUse, start: &str, is_known: bool, out: &mut Vec<u8>) -> io::Result<()> {
    let length = analysis::duration(row.length);
    let ProcessorUse { running, gc, syscall, runnable, .. } = row;
    let (procs, idle) = match is_known {
        true => (format!("{:.1}", row.procs), format!("{:.2}", row.idle())),
        false => ("-".to_owned(), "-".to_owned()),
    };
    writeln!(
        out,
        "{start:>15}{length:>11}{procs:>7}{running:>9.2}{gc:>7.2}{syscall:>9.2}{idle:>7}{runnable:>10.2}"
    )
}
