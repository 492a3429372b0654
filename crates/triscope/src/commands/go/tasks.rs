use super::analysis::{self, Analysis, Rows};
use crate::failure::Result;
use gotrace::{TaskId, Timestamp};
use serde_json::json;
use std::cmp::Reverse;
use std::io::Write;

/// List tasks of runtime/trace, longest first
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go tasks trace.out
  triscope go tasks --json trace.out | jq '.[] | select(.duration > 1e8)'
  triscope explain --task checkout trace.out        why tasks took so long")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
}

pub(super) fn run(args: &Args) -> Result {
    let (mut tasks, reading) = args.analysis.summarize(|_| {})?;
    // Regions outside of tasks belong to the background task.
    tasks.retain(|task| task.id != TaskId::BACKGROUND);
    tasks.sort_by_key(|task| (Reverse(task.duration()), task.id));
    args.rows.print(
        &tasks,
        |task| {
            json!({
                "id": task.id.0,
                "type": task.name.to_string(),
                "parent": task.parent.map(|parent| parent.0),
                "start": task.start.map(Timestamp::nanos),
                "end": task.end.map(Timestamp::nanos),
                "duration": task.duration().map(|time| time.as_nanos() as u64),
                "goroutines": task.goroutines.iter().map(|id| id.0).collect::<Vec<_>>(),
                "regions": task.regions,
                "logs": task.logs,
            })
        },
        |out| {
            writeln!(out, "    task  duration  goroutines  regions  logs   parent  type")?;
            for task in &tasks {
                let duration = task.duration().map_or("incomplete".to_owned(), analysis::duration);
                let parent = task.parent.map_or_else(|| "-".to_owned(), |id| id.to_string());
                writeln!(
                    out,
                    "{:>8}{duration:>11}{:>11}{:>9}{:>6}{parent:>9}  {}",
                    task.id,
                    task.goroutines.len(),
                    task.regions,
                    task.logs,
                    analysis::name(&task.name, "(unknown)")
                )?;
            }
            Ok(())
        },
    )?;
    reading.into_result()
}
