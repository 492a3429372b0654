use super::analysis::{self, Analysis, Rows};
use crate::failure::{Failure, Result};
use crate::sources::go::Reading;
use gotrace::Timestamp;
use gotrace::analysis::{GcCycle, GcCycles, GcReport};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// List GC cycles: cause, mark phase, pauses, assists, sweeping and heap size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go gc trace.out
  triscope go gc --json trace.out | jq 'map(select(.trigger == \"explicit\"))'
  triscope go pauses trace.out          stops of the world by reason

The cause is an allocation that reached the heap goal, a call of runtime.GC or debug.FreeOSMemory
(explicit), or the period of two minutes. Heap sizes are those of objects.")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
}

pub(super) fn run(args: &Args) -> Result {
    let (report, reading) = report(&args.analysis, 0)?;
    args.rows.print(&report.cycles, to_json, |out| print(&report, &reading, out))?;
    if report.dropped > 0 && args.rows.is_data() {
        Failure::about(&reading.name, dropped(&report)).print();
    }
    reading.into_result()
}

/// Analyses the GC of a trace.
pub(super) fn report(analysis: &Analysis, worst: usize) -> Result<(GcReport, Reading)> {
    let (gc, reading) = analysis.split(GcCycles::new(worst))?;
    Ok((gc.finish(), reading))
}

fn dropped(report: &GcReport) -> String {
    format!("{} more cycles are not listed", report.dropped)
}

fn mark(cycle: &GcCycle) -> Option<Duration> {
    Some(cycle.end? - cycle.start?)
}

fn to_json(cycle: &GcCycle) -> Value {
    json!({
        "start": cycle.start.map(Timestamp::nanos),
        "end": cycle.end.map(Timestamp::nanos),
        "mark": mark(cycle).map(analysis::nanos),
        "trigger": cycle.trigger.name(),
        "pauses": analysis::nanos(cycle.pauses),
        "assists": analysis::nanos(cycle.assists),
        "assist_count": cycle.assist_count,
        "sweep": analysis::nanos(cycle.sweep),
        "reclaimed": cycle.reclaimed,
        "heap_before": cycle.heap_before,
        "heap_after": cycle.heap_after,
        "goal": cycle.goal,
    })
}

fn print(report: &GcReport, reading: &Reading, out: &mut Vec<u8>) -> io::Result<()> {
    writeln!(
        out,
        "          start      mark    pauses   assists     sweep  before, kB  after, kB   goal, kB  cause"
    )?;
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for cycle in &report.cycles {
        let kilobytes = |bytes: Option<u64>| or(bytes.map(|bytes| (bytes / 1000).to_string()));
        writeln!(
            out,
            "{:>15}{:>10}{:>10}{:>10}{:>10}{:>12}{:>11}{:>11}  {}",
            or(cycle.start.map(|start| reading.at(start))),
            or(mark(cycle).map(analysis::duration)),
            analysis::duration(cycle.pauses),
            analysis::duration(cycle.assists),
            analysis::duration(cycle.sweep),
            kilobytes(cycle.heap_before),
            kilobytes(cycle.heap_after),
            kilobytes(cycle.goal),
            cycle.trigger.name(),
        )?;
    }
    if report.dropped > 0 {
        writeln!(out, "{}", dropped(report))?;
    }
    Ok(())
}
