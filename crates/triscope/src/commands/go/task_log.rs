//! The log messages of tasks in context: with their regions, and in time order.

use super::analysis::{self, Analysis};
use crate::failure::{OneLine, Result};
use gotrace::analysis::Task;
use gotrace::bstr::BStr;
use gotrace::{Event, EventKind, GoId, TaskId, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::sync::Arc;

/// Bytes of the entries and their texts: they are all in memory, and JSON repeats each text.
const MAX_BYTES: usize = 128 << 20;

/// An event of a task.
pub(super) struct Entry {
    time: Timestamp,
    goroutine: GoId,
    /// `log`, `region begins`, `region ends`, `task begins`, `task ends`.
    kind: &'static str,
    /// The category of a log message, the type of a region or subtask.
    name: Arc<[u8]>,
    message: Arc<[u8]>,
}

/// The entries of tasks, as long as there is room for them.
struct Log {
    entries: BTreeMap<TaskId, Vec<Entry>>,
    /// The parents and types of open subtasks of these tasks: after damage, the reader does not know them.
    subtasks: HashMap<TaskId, (TaskId, Arc<[u8]>)>,
    /// Most entries have a text that others have, too.
    texts: HashSet<Arc<[u8]>>,
    room: usize,
    /// Number of entries that are left out.
    omitted: u64,
}

impl Log {
    fn of(tasks: &[Task]) -> Self {
        let entries = tasks.iter().map(|task| (task.id, Vec::new())).collect();
        let (subtasks, texts) = (HashMap::new(), HashSet::new());
        Self { entries, subtasks, texts, room: MAX_BYTES, omitted: 0 }
    }

    fn push(&mut self, event: Event<'_>) {
        match event.kind() {
            EventKind::Log => {
                if let Some(log) = event.log() {
                    self.add(event, log.task, "log", log.category, log.message);
                }
            }
            kind @ (EventKind::RegionBegin | EventKind::RegionEnd) => {
                let what =
                    if kind == EventKind::RegionBegin { "region begins" } else { "region ends" };
                if let Some(region) = event.region() {
                    self.add(event, region.task, what, region.name, b"");
                }
            }
            EventKind::TaskBegin | EventKind::TaskEnd => self.subtask(event),
            _ => {}
        }
    }

    /// A subtask is an event of its parent.
    fn subtask(&mut self, event: Event<'_>) {
        let Some(task) = event.task() else { return };
        let begun = self.subtasks.remove(&task.id);
        if event.kind() == EventKind::TaskBegin {
            if let Some(name) = self.add(event, task.parent, "task begins", task.name, b"") {
                self.subtasks.insert(task.id, (task.parent, name));
            }
            return;
        }
        match begun {
            Some((parent, name)) => self.add(event, parent, "task ends", &name, b""),
            None => self.add(event, task.parent, "task ends", task.name, b""),
        };
    }

    /// Adds an entry of a task, if it is one of these and there is room for the entry. Returns its name.
    fn add(
        &mut self,
        event: Event<'_>,
        task: TaskId,
        kind: &'static str,
        name: &[u8],
        message: &[u8],
    ) -> Option<Arc<[u8]>> {
        let entries = self.entries.get_mut(&task)?;
        let bytes = size_of::<Entry>() + name.len() + message.len();
        let Some(room) = self.room.checked_sub(bytes) else {
            // Later ones would be out of context.
            self.room = 0;
            self.omitted += 1;
            return None;
        };
        self.room = room;
        let (name, message) = (share(name, &mut self.texts), share(message, &mut self.texts));
        let (time, goroutine, known) = (event.time(), event.goroutine(), Arc::clone(&name));
        entries.push(Entry { time, goroutine, kind, name, message });
        Some(known)
    }
}

/// A text, once for all entries that have it.
fn share(text: &[u8], texts: &mut HashSet<Arc<[u8]>>) -> Arc<[u8]> {
    if let Some(known) = texts.get(text) {
        return Arc::clone(known);
    }
    let new: Arc<[u8]> = text.into();
    texts.insert(Arc::clone(&new));
    new
}

/// Reads the events of these tasks.
pub(super) fn entries(analysis: &Analysis, tasks: &[Task]) -> Result<BTreeMap<TaskId, Vec<Entry>>> {
    let mut log = Log::of(tasks);
    // The first pass has reported damage.
    let reading = analysis.read_again(|event| log.push(event))?;
    if log.omitted > 0 {
        let (name, omitted) = (OneLine(&reading.name), log.omitted);
        let what = "log messages and regions are left out: too many, or too long";
        message!("triscope: {name}: {omitted} {what}; --type or --worst selects fewer tasks");
    }
    Ok(log.entries)
}

pub(super) fn to_json(entry: &Entry) -> Value {
    json!({
        "time": entry.time.nanos(),
        "goroutine": entry.goroutine.0,
        "kind": entry.kind,
        "name": BStr::new(&entry.name).to_string(),
        "message": BStr::new(&entry.message).to_string(),
    })
}

/// Prints entries with their time since the start of the task. Without it, `at` is their time as text.
pub(super) fn print(
    entries: &[Entry],
    start: Option<Timestamp>,
    at: impl Fn(Timestamp) -> String,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    for entry in entries {
        let since = match start {
            Some(start) => format!("+{}", analysis::duration(entry.time - start)),
            None => at(entry.time),
        };
        let name = analysis::name(BStr::new(&entry.name), "");
        let message = analysis::name(BStr::new(&entry.message), "");
        let text = match entry.kind {
            "log" if name.is_empty() => message,
            "log" => format!("{name}: {message}"),
            kind => format!("{kind}: {name}"),
        };
        writeln!(out, "{since:>20}  G{}  {text}", entry.goroutine)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gotrace::Region;
    use gotrace::analysis::Summarizer;
    use gotrace::synthetic::{EventConfig, EventDetails};

    /// At the end of a task that began before damage, the reader has neither its type nor its parent.
    #[test]
    fn subtasks_that_span_damage_end_in_the_log_of_their_parent() {
        let event = |details: EventDetails<'_>| EventConfig::new(details).build().unwrap();
        let begin = |id, parent, name: &str| {
            event(EventDetails::TaskBegin(gotrace::Task::new(TaskId(id), parent, name)))
        };
        let end =
            |id| event(EventDetails::TaskEnd(gotrace::Task::new(TaskId(id), TaskId::NONE, "")));
        let mut summarizer = Summarizer::new();
        summarizer.push(begin(1, TaskId::BACKGROUND, "task").as_event());
        let mut tasks = summarizer.finish().tasks;
        tasks.retain(|task| task.id == TaskId(1));
        let mut log = Log::of(&tasks);
        log.push(begin(2, TaskId(1), "part").as_event());
        log.push(end(2).as_event());
        log.push(end(2).as_event());
        // Its identifier is used again for a task that is none of these.
        log.push(begin(3, TaskId(1), "other").as_event());
        log.push(begin(3, TaskId(9), "another").as_event());
        log.push(end(3).as_event());
        let of = |entry: &Entry| (entry.kind, BStr::new(&entry.name).to_string());
        let found: Vec<_> = log.entries[&TaskId(1)].iter().map(of).collect();
        let expected = [("task begins", "part"), ("task ends", "part"), ("task begins", "other")];
        assert_eq!(found, expected.map(|(kind, name)| (kind, name.to_owned())));
    }

    /// A long text that many events refer to is not copied for each of them.
    #[test]
    fn a_text_of_many_entries_is_in_memory_once() {
        const EVENTS: u64 = 100_000;
        let name = "x".repeat(1_000_000);
        let task = gotrace::Task::new(TaskId(1), TaskId::BACKGROUND, "task");
        let begins = EventConfig::new(EventDetails::TaskBegin(task)).build().unwrap();
        let mut summarizer = Summarizer::new();
        summarizer.push(begins.as_event());
        let mut log = Log::of(&summarizer.finish().tasks);
        let region = Region::new(TaskId(1), name.as_str());
        let region = EventConfig::new(EventDetails::RegionBegin(region)).build().unwrap();
        (0..EVENTS).for_each(|_| log.push(region.as_event()));
        let entries = &log.entries[&TaskId(1)];
        assert_eq!(entries.len() as u64 + log.omitted, EVENTS);
        assert!(entries.len() > 100, "{}", entries.len());
        // That of an empty message is another one.
        assert_eq!(log.texts.len(), 2);
        let mut kept: Vec<_> = entries.iter().map(|entry| entry.name.as_ptr()).collect();
        kept.dedup();
        assert_eq!(kept.len(), 1);
        // What JSON has is limited, too.
        let printed: usize = entries.iter().map(|entry| entry.name.len()).sum();
        assert!(printed <= MAX_BYTES);
        let mut out = Vec::new();
        print(entries, None, |time| time.to_string(), &mut out).unwrap();
        assert!(out.len() < 300 * entries.len());
    }
}
