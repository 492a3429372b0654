use super::analysis::{self, Analysis, Rows};
use crate::failure::{Failure, Result};
use gotrace::analysis::{Histogram, Scheduling, SchedulingOptions, SchedulingReport};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Print the latency of the scheduler and the time blocked, with percentiles
///
/// Latency is the time from runnable to running: of all goroutines, by the event that made the
/// goroutine runnable, and by entry function. A coroutine that another one switches to, as those of
/// iter.Pull do, does not wait. Time blocked is by the reason that the runtime reports.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go latency trace.out
  triscope go latency --histogram trace.out
  triscope go latency --json trace.out | jq '.[] | select(.of == \"all\").p99'
  triscope go stalls trace.out              the longest of them, with stacks")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Print the number of latencies by size
    #[arg(long)]
    histogram: bool,
}

/// A distribution of times.
struct Row<'a> {
    /// `all`, `cause`, `entry` or `blocked`.
    of: &'static str,
    name: String,
    times: &'a Histogram,
}

pub(super) fn run(args: &Args) -> Result {
    let (report, reading) = report(&args.analysis, SchedulingOptions::default())?;
    let rows = rows(&report);
    args.rows.print(&rows, to_json, |out| print(&rows, &report, args.histogram, out))?;
    if args.rows.is_data() {
        notes(&report).for_each(|note| Failure::about(&reading.name, note).print());
    }
    reading.into_result()
}

/// Analyses the scheduling of a trace.
pub(super) fn report(
    analysis: &Analysis,
    options: SchedulingOptions,
) -> Result<(SchedulingReport, crate::sources::go::Reading)> {
    let (scheduling, reading) = analysis.split(Scheduling::new(options))?;
    Ok((scheduling.finish(), reading))
}

fn rows(report: &SchedulingReport) -> Vec<Row<'_>> {
    let all = Row { of: "all", name: String::new(), times: &report.latency };
    let causes = report.by_cause.iter().filter(|(_, times)| times.count() > 0);
    let causes =
        causes.map(|(cause, times)| Row { of: "cause", name: cause.name().to_owned(), times });
    let entries = report.by_entry.iter();
    let entries = entries.map(|(name, times)| Row { of: "entry", name: name.to_string(), times });
    let blocked = report.blocked.iter();
    let blocked =
        blocked.map(|(reason, times)| Row { of: "blocked", name: reason.to_string(), times });
    std::iter::once(all).chain(causes).chain(entries).chain(blocked).collect()
}

/// Notes on what is not in the rows.
fn notes(report: &SchedulingReport) -> impl Iterator<Item = String> {
    let notes = [
        (report.cut, "waits that the trace cuts off are not counted"),
        (report.merged, "times of too many names are together in one without a name"),
    ];
    let notes = notes.into_iter().filter(|(count, _)| *count > 0);
    notes.map(|(count, what)| format!("{count} {what}"))
}

fn to_json(row: &Row<'_>) -> Value {
    let mut json = json!({ "of": row.of, "name": row.name });
    if let (Value::Object(json), Value::Object(times)) =
        (&mut json, analysis::histogram_json(row.times))
    {
        json.extend(times);
    }
    json
}

fn print(
    rows: &[Row<'_>],
    report: &SchedulingReport,
    histogram: bool,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut last = "";
    for row in rows {
        if row.of != last {
            let title = match row.of {
                "all" => "scheduling latency",
                "cause" => "\nlatency by cause",
                "entry" => "\nlatency by entry function",
                _ => "\ntime blocked by reason",
            };
            writeln!(out, "{title}\n{}", analysis::PERCENTILES)?;
            last = row.of;
        }
        let name = analysis::name(
            row.name.as_str().into(),
            if row.of == "all" { "" } else { "(unknown)" },
        );
        analysis::distribution(row.times, "", &name, histogram, out)?;
    }
    notes(report).try_for_each(|note| writeln!(out, "\n{note}"))
}
