//! The log messages of tasks in context: with their regions, and in time order.

use super::analysis::{self, Analysis};
use crate::failure::Result;
use gotrace::analysis::Task;
use gotrace::bstr::BStr;
use gotrace::{EventKind, GoId, TaskId, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// An event of a task.
pub(super) struct Entry {
    time: Timestamp,
    goroutine: GoId,
    /// `log`, `region begins`, `region ends`, `task begins`, `task ends`.
    kind: &'static str,
    /// The category of a log message, the type of a region or subtask.
    name: String,
    message: String,
}

/// Reads the events of these tasks.
pub(super) fn entries(analysis: &Analysis, tasks: &[Task]) -> Result<BTreeMap<TaskId, Vec<Entry>>> {
    let mut entries: BTreeMap<TaskId, Vec<Entry>> =
        tasks.iter().map(|task| (task.id, Vec::new())).collect();
    // The first pass has reported damage.
    analysis.read_again(|event| {
        let none = || BStr::new("");
        let (id, kind, name, message) = match event.kind() {
            EventKind::Log => match event.log() {
                Some(log) => (log.task, "log", log.category, log.message),
                None => return,
            },
            kind @ (EventKind::RegionBegin | EventKind::RegionEnd) => {
                let what =
                    if kind == EventKind::RegionBegin { "region begins" } else { "region ends" };
                match event.region() {
                    Some(region) => (region.task, what, region.ty, none()),
                    None => return,
                }
            }
            // A subtask is an event of its parent.
            kind @ (EventKind::TaskBegin | EventKind::TaskEnd) => {
                let what = if kind == EventKind::TaskBegin { "task begins" } else { "task ends" };
                match event.task() {
                    Some(task) => (task.parent, what, task.ty, none()),
                    None => return,
                }
            }
            _ => return,
        };
        if let Some(entries) = entries.get_mut(&id) {
            entries.push(Entry {
                time: event.time(),
                goroutine: event.goroutine(),
                kind,
                name: name.to_string(),
                message: message.to_string(),
            });
        }
    })?;
    Ok(entries)
}

pub(super) fn to_json(entry: &Entry) -> Value {
    json!({
        "time": entry.time.nanos(),
        "goroutine": entry.goroutine.0,
        "kind": entry.kind,
        "name": entry.name,
        "message": entry.message,
    })
}

/// Prints entries with their time since the start of the task.
pub(super) fn print(
    entries: &[Entry],
    start: Option<Timestamp>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    for entry in entries {
        let since = match start {
            Some(start) => format!("+{}", analysis::duration(entry.time - start)),
            None => entry.time.to_string(),
        };
        let name = analysis::name(entry.name.as_str().into(), "");
        let message = analysis::name(entry.message.as_str().into(), "");
        let text = match entry.kind {
            "log" if name.is_empty() => message,
            "log" => format!("{name}: {message}"),
            kind => format!("{kind}: {name}"),
        };
        writeln!(out, "{since:>20}  G{}  {text}", entry.goroutine)?;
    }
    Ok(())
}
