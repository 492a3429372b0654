use std::collections::HashMap;

use crate::{Event, Guid};

/// Work that has a start and a stop event: a request, a task of the program's own. Times are
/// ticks of the event clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Event source.
    pub provider: String,
    /// Name, without `Start`.
    pub name: String,
    /// The activity's id, if the events have one.
    pub id: Option<Guid>,
    /// The id as the path that .NET packs into it, `//1/2/3`, if it is one.
    pub path: Option<String>,
    /// The activity that started it, if the start event says.
    pub parent: Option<Guid>,
    /// Thread of the start event.
    pub start_thread_id: u64,
    /// Thread of the stop event: with asynchronous code often another one.
    pub stop_thread_id: u64,
    /// Start.
    pub start: i64,
    /// Stop.
    pub end: i64,
    /// The start event's payload, as `name=value, …`.
    pub arguments: String,
}

const OPCODE_START: u8 = 1;
const OPCODE_STOP: u8 = 2;

/// Pairs start and stop events of event sources: opcodes 1 and 2, or names that end in `Start`
/// and `Stop`.
///
/// Events with activity ids are paired by those; they come when
/// `System.Threading.Tasks.TplEventSource` is on with keyword 0x80. Without ids a stop belongs
/// to the last start of the same name on the same thread.
#[derive(Debug, Default)]
pub struct ActivityTracker {
    open: HashMap<(Box<str>, Key), Vec<Activity>>,
    waiting: usize,
    unpaired: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Id(Guid),
    Thread(u64),
}

/// Activities that may be open: more can only be if stops were lost.
const MAX_OPEN: usize = 1 << 18;

impl ActivityTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops without a start, and starts that were not kept because too many were open.
    pub fn unpaired(&self) -> u64 {
        self.unpaired
    }

    /// Activities that have been started and not stopped.
    pub fn open(&self) -> impl Iterator<Item = &Activity> {
        self.open.values().flatten()
    }

    /// Takes in an event; gives an activity that ends with it.
    pub fn observe(&mut self, event: &Event<'_>) -> Option<Activity> {
        // The runtime's own starts and stops have trackers of their own.
        if event.known().is_some() {
            return None;
        }
        let name = event.name();
        let (base, start) = match event.opcode() {
            OPCODE_START => (name.strip_suffix("Start").unwrap_or(name), true),
            OPCODE_STOP => (name.strip_suffix("Stop").unwrap_or(name), false),
            // Runtimes before .NET 5 write no opcodes.
            0 => match (name.strip_suffix("Start"), name.strip_suffix("Stop")) {
                (Some(base), _) => (base, true),
                (_, Some(base)) => (base, false),
                _ => return None,
            },
            _ => return None,
        };
        let id = event.activity_id();
        let key = match id {
            Some(id) => Key::Id(id),
            None => Key::Thread(event.thread_id()),
        };
        let key = (format!("{}/{base}", event.provider()).into_boxed_str(), key);
        let timestamp = event.header().timestamp;
        if !start {
            let Some(mut activity) = self.open.get_mut(&key).and_then(Vec::pop) else {
                self.unpaired += 1;
                return None;
            };
            self.waiting -= 1;
            if self.open.get(&key).is_some_and(Vec::is_empty) {
                self.open.remove(&key);
            }
            activity.end = timestamp;
            activity.stop_thread_id = event.thread_id();
            return Some(activity);
        }
        if self.waiting >= MAX_OPEN {
            self.unpaired += 1;
            return None;
        }
        let mut arguments = String::new();
        for (name, value) in event.fields() {
            let comma = if arguments.is_empty() { "" } else { ", " };
            arguments.push_str(&format!("{comma}{name}={value}"));
        }
        self.waiting += 1;
        self.open.entry(key).or_default().push(Activity {
            provider: event.provider().into(),
            name: if base.is_empty() { name.into() } else { base.into() },
            id,
            path: id.and_then(|id| id.activity_path(u32::try_from(event.process_id()).ok())),
            parent: event.related_activity_id(),
            start_thread_id: event.thread_id(),
            stop_thread_id: 0,
            start: timestamp,
            end: timestamp,
            arguments,
        });
        None
    }
}
