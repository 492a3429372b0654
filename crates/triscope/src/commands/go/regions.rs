use super::analysis::{self, Analysis, Part, Rows};
use crate::failure::Result;
use gotrace::analysis::{Name, Times};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

/// List regions of runtime/trace by type, with the time in each state
///
/// The numbers are those of go tool trace. A region that the trace cuts off counts with the part
/// that the trace contains.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go regions trace.out
  triscope go regions --json trace.out | jq 'max_by(.longest)'")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
}

/// The regions of one type.
struct Group {
    name: Name,
    count: u64,
    longest: Duration,
    times: Times,
}

pub(super) fn run(args: &Args) -> Result {
    let mut groups: HashMap<Name, Group> = HashMap::new();
    let (_, reading) = args.analysis.summarize(|part| {
        let region = match part {
            Part::Region(region) if !region.inherited => region,
            _ => return,
        };
        let group = groups.entry(region.name.clone()).or_insert_with_key(|name| Group {
            name: name.clone(),
            count: 0,
            longest: Duration::ZERO,
            times: Times::default(),
        });
        group.count += 1;
        group.longest = group.longest.max(region.times.total);
        group.times.add(&region.times);
    })?;
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups
        .sort_by(|a, b| (Reverse(a.times.total), &a.name).cmp(&(Reverse(b.times.total), &b.name)));
    args.rows.print(
        &groups,
        |group| {
            json!({
                "type": group.name.to_string(),
                "count": group.count,
                "longest": u64::try_from(group.longest.as_nanos()).unwrap_or(u64::MAX),
                "times": analysis::times_json(&group.times),
            })
        },
        |out| {
            writeln!(out, "   count   longest{}  region", analysis::TIMES)?;
            for group in &groups {
                let longest = analysis::duration(group.longest);
                let (times, name) =
                    (analysis::times(&group.times), analysis::name(&group.name, "(empty)"));
                writeln!(out, "{:>8}{longest:>10}{times}  {name}", group.count)?;
            }
            Ok(())
        },
    )?;
    reading.into_result()
}
