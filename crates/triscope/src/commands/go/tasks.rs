use super::analysis::{self, Analysis, Part, Rows};
use super::groups::Groups;
use super::longest::Limit;
use super::task_log::{self, Entry};
use crate::failure::{Failure, Result};
use crate::io::input;
use crate::sources::go::Reading;
use gotrace::analysis::{Summarizer, Task};
use gotrace::{TaskId, Timestamp};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

/// List tasks of runtime/trace, longest first, with the time in each state
///
/// The states are those of the goroutine that began and ended the task, and sum up to its duration.
/// A task that the trace or the range cuts off is incomplete, and its place is that of its part in it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go tasks trace.out
  triscope go tasks --by-type --histogram trace.out
  triscope go tasks --logs --type checkout --worst 3 trace.out
  triscope go tasks --json trace.out | jq '.[] | select(.duration > 1e8)'
  triscope go critical-path --task checkout trace.out        why tasks took so long")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    ty: Option<String>,
    #[command(flatten)]
    limit: Limit,
    /// List the types of all tasks, with percentiles
    #[arg(long, conflicts_with = "worst")]
    by_type: bool,
    /// Print the number of tasks of each type by duration
    #[arg(long, requires = "by_type")]
    histogram: bool,
    /// Print the log messages and regions of each task in their order
    #[arg(long, conflicts_with = "by_type")]
    logs: bool,
}

pub(super) fn run(args: &Args) -> Result {
    // A task and its type are known since its begin.
    let analysis = args.analysis.reading_all();
    if args.logs {
        input::check_twice(&analysis.file, "--logs")?;
    }
    let is_wanted = |task: &Task| {
        let of_type = |ty: &String| **task.name == *ty.as_bytes();
        // Regions outside of tasks belong to the background task.
        task.id != TaskId::BACKGROUND && args.ty.as_ref().is_none_or(of_type)
    };
    if args.by_type {
        let mut groups = Groups::default();
        let reading = analysis.summarize(|part| match part {
            Part::Task(task) if is_wanted(task) => groups.add_task(task),
            _ => {}
        })?;
        if let Some(ty) = args.ty.as_ref().filter(|_| groups.is_empty()) {
            return Err(of_no_type(&analysis, reading, ty));
        }
        types(args, groups, &reading)?;
        return reading.into_result();
    }
    let count = args.limit.count();
    let longest = Summarizer::longest_tasks(count, args.ty.as_ref().map(|ty| ty.as_str().into()));
    let (summary, reading) = analysis.pass(longest, &mut |_| {})?;
    let mut tasks = summary.tasks;
    tasks.retain(is_wanted);
    if let Some(ty) = args.ty.as_ref().filter(|_| tasks.is_empty() && summary.omitted_tasks == 0) {
        return Err(of_no_type(&analysis, reading, ty));
    }
    // A task that did not end may be the longest one.
    let (first, last) = summary.span.unwrap_or_default();
    let part = |task: &Task| match task.goroutines.is_empty() {
        // It is only known as a parent, and may have ended before.
        true => Duration::ZERO,
        false => task.duration_within(first, last),
    };
    tasks.sort_by_key(|task| (Reverse(part(task)), task.id));
    let open = tasks.len().saturating_sub(count);
    tasks.truncate(count);
    args.limit.note(&reading, summary.omitted_tasks + open as u64, "tasks");
    let mut entries = BTreeMap::new();
    if args.logs {
        entries = task_log::entries(&analysis, &tasks)?;
    }
    let of = |task: &Task| entries.get(&task.id).map_or(&[][..], Vec::as_slice);
    args.rows.print(
        &tasks,
        |task| to_json(task, args.logs.then(|| of(task))),
        |out| {
            writeln!(
                out,
                "    task  duration{}  goroutines  regions  logs   parent  type",
                analysis::STATES
            )?;
            for task in &tasks {
                print(task, out)?;
                task_log::print(of(task), task.start, |time| reading.at(time), out)?;
            }
            Ok(())
        },
    )?;
    reading.into_result()
}

/// The failure that no task has this type.
fn of_no_type(analysis: &Analysis, reading: Reading, ty: &str) -> Failure {
    let others = analysis.task_types();
    analysis.lacks(reading, format!("no task of type {ty:?}{others}"))
}

fn to_json(task: &Task, entries: Option<&[Entry]>) -> Value {
    let mut json = json!({
        "id": task.id.0,
        "type": task.name.to_string(),
        "parent": task.parent.map(|parent| parent.0),
        "start": task.start.map(Timestamp::nanos),
        "end": task.end.map(Timestamp::nanos),
        "duration": task.duration().map(analysis::nanos),
        "goroutines": task.goroutines.iter().map(|id| id.0).collect::<Vec<_>>(),
        "goroutine": task.own.as_ref().map(|(id, _)| id.0),
        "times": task.own.as_ref().map(|(_, times)| analysis::times_json(times)),
        "regions": task.regions,
        "logs": task.logs,
    });
    if let (Value::Object(json), Some(entries)) = (&mut json, entries) {
        json.insert("entries".to_owned(), entries.iter().map(task_log::to_json).collect());
    }
    json
}

fn print(task: &Task, out: &mut Vec<u8>) -> io::Result<()> {
    let duration = task.duration().map_or("incomplete".to_owned(), analysis::duration);
    let parent = task.parent.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let states = match &task.own {
        Some((_, times)) => analysis::states(times),
        None => " ".repeat(analysis::STATES.len()),
    };
    writeln!(
        out,
        "{:>8}{duration:>11}{states}{:>11}{:>9}{:>6}{parent:>9}  {}",
        task.id,
        task.goroutines.len(),
        task.regions,
        task.logs,
        analysis::name(&task.name, "(unknown)")
    )
}

fn types(args: &Args, groups: Groups, reading: &Reading) -> Result {
    let groups = groups.reported(reading, "tasks", |group| group.durations.sum());
    args.rows.print(
        &groups,
        |group| {
            json!({
                "type": group.name.to_string(),
                "durations": analysis::histogram_json(&group.durations),
                "incomplete": group.incomplete,
                "times": analysis::times_json(&group.times),
            })
        },
        |out| {
            let (percentiles, states) = (analysis::PERCENTILES, analysis::STATES);
            writeln!(out, "{percentiles}{states}  incomplete  type")?;
            for group in &groups {
                let columns = format!("{}{:>12}", analysis::states(&group.times), group.incomplete);
                let name = analysis::name(&group.name, "(unknown)");
                analysis::distribution(&group.durations, &columns, &name, args.histogram, out)?;
            }
            Ok(())
        },
    )
}
