use super::analysis::{self, Analysis, Rows};
use super::latency;
use crate::failure::Result;
use crate::sources::go::Reading;
use gotrace::analysis::{SchedulingOptions, Stall};
use serde_json::{Value, json};
use std::io::{self, Write};

/// List the longest stalls: goroutines that waited for a P or were blocked, and the cause
///
/// Each has the stack at which the goroutine stopped, and the goroutine that unblocked it with its
/// stack. Goroutines of the runtime itself are not listed as blocked.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go stalls trace.out
  triscope go stalls --worst 50 --csv trace.out > stalls.csv")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Number of stalls of each kind
    #[arg(long, value_name = "N", default_value_t = 10)]
    worst: usize,
}

pub(super) fn run(args: &Args) -> Result {
    let mut options = SchedulingOptions::default();
    options.worst = args.worst;
    let (report, reading) = latency::report(&args.analysis, options)?;
    let delays = report.delays.iter().map(|stall| ("runnable", stall));
    let rows: Vec<_> = delays.chain(report.blocks.iter().map(|stall| ("blocked", stall))).collect();
    args.rows.print(&rows, to_json, |out| print(&rows, &reading, out))?;
    reading.into_result()
}

fn to_json((state, stall): &(&str, &Stall)) -> Value {
    json!({
        "state": state,
        "goroutine": stall.goroutine.0,
        "entry": stall.entry.to_string(),
        "start": stall.start.nanos(),
        "duration": analysis::nanos(stall.duration),
        "reason": stall.reason.to_string(),
        "stack": analysis::stack_json(&stall.stack),
        "by": stall.by.as_ref().map(|by| json!({
            "goroutine": by.goroutine.0,
            "entry": by.entry.to_string(),
            "stack": analysis::stack_json(&by.stack),
        })),
    })
}

fn print(rows: &[(&str, &Stall)], reading: &Reading, out: &mut Vec<u8>) -> io::Result<()> {
    let mut last = "";
    for (state, stall) in rows {
        if *state != last {
            let title = match *state {
                "runnable" => "longest waits for a P",
                _ => "\nlongest times blocked",
            };
            writeln!(out, "{title}")?;
            last = state;
        }
        let entry = analysis::name(&stall.entry, "(unknown)");
        let reason = match stall.reason.is_empty() {
            true => String::new(),
            false => format!(": {}", analysis::name(&stall.reason, "")),
        };
        let (time, start) = (analysis::duration(stall.duration), reading.at(stall.start));
        writeln!(out, "{time:>10}  {entry} (G{}) at {start}{reason}", stall.goroutine)?;
        analysis::stack(&stall.stack, out)?;
        if let Some(by) = &stall.by {
            let entry = analysis::name(&by.entry, "(unknown)");
            writeln!(out, "          made runnable by {entry} (G{})", by.goroutine)?;
            analysis::stack(&by.stack, out)?;
        }
    }
    Ok(())
}
