use super::analysis::{self, Analysis, Rows};
use super::gc;
use crate::failure::{Failure, Result};
use crate::sources::go::Reading;
use gotrace::analysis::{GcReport, Pause};
use serde_json::{Value, json};
use std::io::{self, Write};

/// List stops of the world by reason, and the longest with their stacks
///
/// In JSON and CSV, the longest ones are those of each reason, in the field longest.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go pauses trace.out
  triscope go pauses --histogram trace.out
  triscope go pauses --json trace.out | jq '.[] | {reason, p99}'")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Print N of the longest, and N of each reason in JSON and CSV
    #[arg(long, value_name = "N", default_value_t = 5)]
    worst: usize,
    /// Print the number of pauses by duration
    #[arg(long)]
    histogram: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let (report, reading) = gc::report(&args.analysis, args.worst)?;
    args.rows.print(
        &report.pauses,
        |(reason, pauses)| {
            let longest = report.longest_by_reason.iter().find(|(of, _)| of == reason);
            let longest = longest.map(|(_, longest)| longest.as_slice()).unwrap_or_default();
            let mut json = json!({
                "reason": reason.to_string(),
                "longest": longest.iter().map(pause_json).collect::<Vec<_>>(),
            });
            if let (Value::Object(json), Value::Object(times)) =
                (&mut json, analysis::histogram_json(pauses))
            {
                json.extend(times);
            }
            json
        },
        |out| print(&report, &reading, args.histogram, out),
    )?;
    if report.cut > 0 && args.rows.is_data() {
        Failure::about(&reading.name, cut(&report)).print();
    }
    reading.into_result()
}

fn pause_json(pause: &Pause) -> Value {
    json!({
        "start": pause.start.nanos(),
        "duration": analysis::nanos(pause.duration),
        "goroutine": pause.goroutine.0,
        "stack": analysis::stack_json(&pause.stack),
    })
}

fn cut(report: &GcReport) -> String {
    format!("{} stops that the trace cuts off are not counted", report.cut)
}

fn print(
    report: &GcReport,
    reading: &Reading,
    histogram: bool,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    writeln!(out, "{}  reason", analysis::PERCENTILES)?;
    for (reason, pauses) in &report.pauses {
        let name = analysis::name(reason, "(unknown)");
        analysis::distribution(pauses, "", &name, histogram, out)?;
    }
    if !report.longest.is_empty() {
        writeln!(out, "\nlongest")?;
    }
    for pause in &report.longest {
        let (time, reason) =
            (analysis::duration(pause.duration), analysis::name(&pause.reason, "(unknown)"));
        let start = reading.at(pause.start);
        writeln!(out, "{time:>10}  {reason} by G{} at {start}", pause.goroutine)?;
        analysis::stack(&pause.stack, out)?;
    }
    if report.cut > 0 {
        writeln!(out, "\n{}", cut(report))?;
    }
    Ok(())
}
