use super::analysis::{self, Analysis, Part, Rows};
use super::groups::{Group, Groups};
use super::longest::{Limit, Longest};
use super::restrict::Restriction;
use crate::failure::{Failure, Result};
use crate::sources::go::Reading;
use gotrace::Timestamp;
use gotrace::analysis::{Goroutine, Name, Times};
use serde_json::json;
use std::io::{self, Write};

/// List goroutines by entry function, with the time in each state
///
/// The numbers are those of the goroutine analysis of go tool trace.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go goroutines trace.out
  triscope go goroutines --entry main.worker trace.out      each goroutine of one function
  triscope go goroutines --task checkout trace.out          their time for tasks of one type
  triscope go goroutines --from 10 --to 12 trace.out        their time in two seconds of the trace
  triscope go goroutines --json trace.out | jq '.[0].times.blocked'

States: running on a P; runnable, waiting for a P; blocked; in a system call with a P; in a system
call after the scheduler took the P away; unknown, where the trace has no state. Ranges in JSON
(GC assist, sweep, stop-the-world) overlap with the states.")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// List each goroutine with this entry function
    #[arg(long, value_name = "FUNCTION", conflicts_with = "restriction")]
    entry: Option<String>,
    /// Only the N longest [default: 1000]
    #[arg(long, value_name = "N", requires = "entry")]
    worst: Option<usize>,
    #[command(flatten)]
    restriction: Restriction,
}

pub(super) fn run(args: &Args) -> Result {
    match &args.entry {
        Some(entry) => each(args, entry),
        None => groups(args),
    }
}

pub(super) fn entry(goroutine: &Goroutine) -> Name {
    goroutine.entry.as_ref().map(|entry| entry.name.clone()).unwrap_or_default()
}

/// The failure that no goroutine has this entry function.
pub(super) fn of_no_entry(analysis: &Analysis, reading: Reading, function: &str) -> Failure {
    let others = analysis.names("entry function", |groups, part| {
        if let Part::Goroutine(goroutine) = part {
            groups.add(&entry(goroutine), Some(goroutine.times.total), None);
        }
    });
    let what = format!("no goroutine with the entry function {function:?}{others}");
    analysis.lacks(reading, what)
}

fn groups(args: &Args) -> Result {
    let mut groups = Groups::default();
    let mut add = |entry: &Name, times: &Times| groups.add(entry, Some(times.total), Some(times));
    let reading = if args.restriction.is_given() {
        let (selected, reading) = args.restriction.select(&args.analysis)?;
        selected.times().into_iter().for_each(|(entry, times)| add(&entry, &times));
        reading
    } else {
        args.analysis.summarize(|part| {
            if let Part::Goroutine(goroutine) = part {
                add(&entry(goroutine), &goroutine.times);
            }
        })?
    };
    let groups = groups.reported(&reading, "goroutines", |group| group.times.running);
    args.rows.print(
        &groups,
        |group| {
            json!({
                "entry": group.name.to_string(),
                "count": group.durations.count(),
                "times": analysis::times_json(&group.times),
            })
        },
        |out| print_groups(&groups, out),
    )?;
    reading.into_result()
}

fn print_groups(groups: &[Group], out: &mut Vec<u8>) -> io::Result<()> {
    writeln!(out, "   count     total{}  entry function", analysis::STATES)?;
    for group in groups {
        let (times, entry) =
            (analysis::times(&group.times), analysis::name(&group.name, "(unknown)"));
        writeln!(out, "{:>8}{times}  {entry}", group.durations.count())?;
    }
    Ok(())
}

fn each(args: &Args, wanted: &str) -> Result {
    let limit = Limit::of(args.worst);
    let mut longest = Longest::new(limit.count());
    let reading = args.analysis.summarize(|part| match part {
        Part::Goroutine(goroutine) if **entry(goroutine) == *wanted.as_bytes() => {
            longest.add(goroutine.times.total, || goroutine.clone());
        }
        _ => {}
    })?;
    let (goroutines, omitted) = longest.finish();
    if goroutines.is_empty() && omitted == 0 {
        return Err(of_no_entry(&args.analysis, reading, wanted));
    }
    limit.note(&reading, omitted, "goroutines");
    args.rows.print(
        &goroutines,
        |goroutine| {
            json!({
                "id": goroutine.id.0,
                "entry": entry(goroutine).to_string(),
                "created": goroutine.created.nanos(),
                "start": goroutine.start.map(Timestamp::nanos),
                "end": goroutine.end.map(Timestamp::nanos),
                "times": analysis::times_json(&goroutine.times),
            })
        },
        |out| {
            writeln!(out, "  goroutine     total{}", analysis::STATES)?;
            for goroutine in &goroutines {
                writeln!(out, "{:>11}{}", goroutine.id, analysis::times(&goroutine.times))?;
            }
            Ok(())
        },
    )?;
    reading.into_result()
}
