use super::analysis::{self, Analysis, Rows};
use crate::failure::{Failure, Result};
use gotrace::analysis::{MinimumUtilization, Utilization, UtilizationOptions, Window};
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// Print the minimum mutator utilization: what the GC leaves to the program
///
/// For windows of 1 us to 10 s: the least part of the processors that the program had in any window
/// of this length, and where the worst windows are.
///
/// The numbers are those of go tool trace, with three differences. That tool counts background workers twice
/// from their second run on, so that its utilization stays too low. In windows at the end of the trace it
/// counts the time after the end as used by the GC. Of Go 1.21 and earlier it counts no
/// stop-the-world pauses if GOMAXPROCS first appears in one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go mmu trace.out
  triscope go mmu --per-p --sweep trace.out
  triscope go mmu --json trace.out | jq '.[] | select(.window == 10000000).utilization'")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Count the time of sweeping too
    #[arg(long)]
    sweep: bool,
    /// Do not count the time that goroutines assist the GC
    #[arg(long)]
    no_assist: bool,
    /// Do not count background workers
    #[arg(long)]
    no_background: bool,
    /// Do not count stop-the-world pauses
    #[arg(long)]
    no_stop_the_world: bool,
    /// The worst P instead of the average of all
    #[arg(long = "per-p")]
    per_proc: bool,
    /// Print N of the worst windows of each length
    #[arg(long, value_name = "N", default_value_t = 1)]
    worst: usize,
}

struct Row {
    window: Duration,
    utilization: f64,
    worst: Vec<Window>,
}

pub(super) fn run(args: &Args) -> Result {
    let mut options = UtilizationOptions::default();
    options.sweep = args.sweep;
    options.assist = !args.no_assist;
    options.background = !args.no_background;
    options.stop_the_world = !args.no_stop_the_world;
    options.per_proc = args.per_proc;
    let (utilization, reading) = args.analysis.split(Utilization::new(options))?;
    let curve = utilization.finish();
    let rows: Vec<Row> = windows().map(|window| row(&curve, window, args.worst)).collect();
    args.rows.print(
        &rows,
        |row| {
            let worst = row.worst.iter().map(|window| {
                json!({
                    "p": window.proc.map(|proc| proc.0),
                    "start": window.start.nanos(),
                    "utilization": window.utilization,
                })
            });
            json!({
                "window": row.window.as_nanos() as u64,
                "utilization": row.utilization,
                "worst": worst.collect::<Vec<_>>(),
            })
        },
        |out| {
            writeln!(out, "    window  utilization  worst windows start at")?;
            for row in &rows {
                let place = |window: &Window| {
                    let start = reading.at(window.start);
                    window.proc.map_or(start.clone(), |proc| format!("{start} on P{proc}"))
                };
                let worst: Vec<_> = row.worst.iter().map(place).collect();
                writeln!(
                    out,
                    "{:>10}{:>11.2} %  {}",
                    analysis::duration(row.window),
                    row.utilization * 100.0,
                    worst.join(", ")
                )?;
            }
            Ok(())
        },
    )?;
    if curve.dropped() > 0 {
        let message =
            "the utilization is not complete: it changes too often for so great a number of Ps";
        Failure::about(&reading.name, message).print();
    }
    reading.into_result()
}

fn row(curve: &MinimumUtilization, window: Duration, worst: usize) -> Row {
    Row { window, utilization: curve.of(window), worst: curve.worst(window, worst) }
}

/// 1, 2 and 5 times each power of ten from 1 us to 10 s.
pub(super) fn windows() -> impl Iterator<Item = Duration> {
    let powers = (3..=9).map(|exponent| 10_u64.pow(exponent));
    let steps = powers.flat_map(|power| [1, 2, 5].map(|factor| factor * power));
    steps.chain([10_000_000_000]).map(Duration::from_nanos)
}
