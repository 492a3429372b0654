use super::analysis::{self, Analysis, Part, Rows};
use super::groups::Groups;
use crate::failure::Result;
use gotrace::Event;
use gotrace::analysis::Summarizer;
use serde_json::json;
use std::io::Write;

/// List regions of runtime/trace by type, with percentiles and the time in each state
///
/// The numbers are those of go tool trace. A region that the trace or the range cuts off counts with
/// the part in it.
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
    /// Print the number of regions by duration
    #[arg(long)]
    histogram: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let mut groups = Groups::default();
    let mut visit = |part: Part<'_>| match part {
        Part::Region(region) if !region.inherited => {
            groups.add(&region.name, Some(region.times.total), Some(&region.times));
        }
        _ => {}
    };
    let summarizer = Summarizer::returning_tasks();
    let (_, reading) =
        args.analysis.pass_all(summarizer, &mut visit, &mut |_: Event<'_>| Ok(()))?;
    let groups = groups.reported(&reading, "regions", |group| group.times.total);
    args.rows.print(
        &groups,
        |group| {
            json!({
                "type": group.name.to_string(),
                "count": group.durations.count(),
                "longest": group.durations.max(),
                "durations": analysis::histogram_json(&group.durations),
                "times": analysis::times_json(&group.times),
            })
        },
        |out| {
            writeln!(out, "{}{}  region", analysis::PERCENTILES, analysis::STATES)?;
            for group in &groups {
                let states = analysis::states(&group.times);
                let name = analysis::name(&group.name, "(empty)");
                analysis::distribution(&group.durations, &states, &name, args.histogram, out)?;
            }
            Ok(())
        },
    )?;
    reading.into_result()
}
