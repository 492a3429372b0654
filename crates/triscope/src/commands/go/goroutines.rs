use super::analysis::{self, Analysis, Part, Rows};
use crate::failure::Result;
use gotrace::Timestamp;
use gotrace::analysis::{Goroutine, Name, Times};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// List goroutines by entry function, with the time in each state
///
/// The numbers are those of the goroutine analysis of go tool trace.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go goroutines trace.out
  triscope go goroutines --entry main.worker trace.out      each goroutine of one function
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
    #[arg(long, value_name = "FUNCTION")]
    entry: Option<String>,
}

/// The goroutines of one entry function.
struct Group {
    entry: Name,
    count: u64,
    times: Times,
}

pub(super) fn run(args: &Args) -> Result {
    match &args.entry {
        Some(entry) => each(args, entry),
        None => groups(args),
    }
}

fn entry(goroutine: &Goroutine) -> Name {
    goroutine.entry.as_ref().map(|entry| entry.name.clone()).unwrap_or_default()
}

fn groups(args: &Args) -> Result {
    let mut groups: HashMap<Name, Group> = HashMap::new();
    let (_, reading) = args.analysis.summarize(|part| {
        let Part::Goroutine(goroutine) = part else { return };
        let group = groups.entry(entry(goroutine)).or_insert_with_key(|entry| Group {
            entry: entry.clone(),
            count: 0,
            times: Times::default(),
        });
        group.count += 1;
        group.times.add(&goroutine.times);
    })?;
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        (Reverse(a.times.running), &a.entry).cmp(&(Reverse(b.times.running), &b.entry))
    });
    args.rows.print(
        &groups,
        |group| {
            json!({
                "entry": group.entry.to_string(),
                "count": group.count,
                "times": analysis::times_json(&group.times),
            })
        },
        |out| print_groups(&groups, out),
    )?;
    reading.into_result()
}

fn print_groups(groups: &[Group], out: &mut Vec<u8>) -> io::Result<()> {
    writeln!(out, "   count{}  entry function", analysis::TIMES)?;
    for group in groups {
        let (times, entry) =
            (analysis::times(&group.times), analysis::name(&group.entry, "(unknown)"));
        writeln!(out, "{:>8}{times}  {entry}", group.count)?;
    }
    Ok(())
}

fn each(args: &Args, wanted: &str) -> Result {
    let mut goroutines = Vec::new();
    let (_, reading) = args.analysis.summarize(|part| match part {
        Part::Goroutine(goroutine) if **entry(goroutine) == *wanted.as_bytes() => {
            goroutines.push(goroutine.clone());
        }
        _ => {}
    })?;
    goroutines.sort_by_key(|goroutine| (Reverse(goroutine.times.total), goroutine.id));
    args.rows.print(
        &goroutines,
        |goroutine| {
            json!({
                "id": goroutine.id.0,
                "entry": entry(goroutine).to_string(),
                "created": goroutine.created.nanos(),
                "started": goroutine.started.map(Timestamp::nanos),
                "ended": goroutine.ended.map(Timestamp::nanos),
                "times": analysis::times_json(&goroutine.times),
            })
        },
        |out| {
            writeln!(out, "  goroutine{}", analysis::TIMES)?;
            for goroutine in &goroutines {
                writeln!(out, "{:>11}{}", goroutine.id, analysis::times(&goroutine.times))?;
            }
            Ok(())
        },
    )?;
    reading.into_result()
}
