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

/// What an event is to the activities of its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivityStep {
    /// An activity starts: see [`ActivityTracker::get`].
    Start(u64),
    /// The activity of this number has ended.
    Stop(u64, Activity),
    /// A start that is not followed because too many are open, or a stop whose start was not
    /// seen.
    Unpaired,
}

/// Pairs start and stop events of event sources: opcodes 1 and 2, or names that end in `Start`
/// and `Stop`.
///
/// Events with activity ids are paired by those; they come when
/// `System.Threading.Tasks.TplEventSource` is on with keyword 0x80. Without ids a stop belongs
/// to the last start of the same name with the same payload or, where start and stop have
/// different fields, on the same thread.
#[derive(Debug, Default)]
pub struct ActivityTracker {
    /// By number.
    open: HashMap<u64, Open>,
    /// Numbers of the open activities that a stop with this key may end, the newest last.
    by_key: HashMap<(Box<str>, Key), Vec<u64>>,
    started: u64,
    unpaired: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Id(Guid),
    Payload(Box<[u8]>),
    Thread(u64),
}

#[derive(Debug)]
struct Open {
    activity: Activity,
    name: Box<str>,
    keys: Vec<Key>,
    /// Number of fields of the start event.
    fields: usize,
}

/// Activities that may be open: more can only be if stops were lost.
const MAX_OPEN: usize = 1 << 18;

/// Longer payloads do not pair activities.
const MAX_PAYLOAD: usize = 256;

/// Activities that may be open by one key: older ones are forgotten by it.
const MAX_BY_KEY: usize = 64;

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
        self.open.values().map(|open| &open.activity)
    }

    /// An activity that has been started and not stopped, by its number.
    pub fn get(&self, number: u64) -> Option<&Activity> {
        self.open.get(&number).map(|open| &open.activity)
    }

    /// Takes in an event; gives an activity that ends with it.
    pub fn observe(&mut self, event: &Event<'_>) -> Option<Activity> {
        match self.step(event)? {
            ActivityStep::Stop(_, activity) => Some(activity),
            _ => None,
        }
    }

    /// Takes in an event; says what it is to the activities of the stream, if anything.
    pub fn step(&mut self, event: &Event<'_>) -> Option<ActivityStep> {
        let (base, start) = kind(event)?;
        let name: Box<str> = format!("{}/{base}", event.provider()).into();
        let mut keys = Vec::new();
        match event.activity_id() {
            Some(id) => keys.push(Key::Id(id)),
            None => {
                if (1..=MAX_PAYLOAD).contains(&event.payload().len()) {
                    keys.push(Key::Payload(event.payload().into()));
                }
                keys.push(Key::Thread(event.thread_id()));
            }
        }
        Some(if start {
            self.start(event, base, name, keys)
        } else {
            self.stop(event, name, &keys)
        })
    }

    fn start(
        &mut self,
        event: &Event<'_>,
        base: &str,
        name: Box<str>,
        keys: Vec<Key>,
    ) -> ActivityStep {
        if self.open.len() >= MAX_OPEN {
            self.unpaired += 1;
            return ActivityStep::Unpaired;
        }
        let mut arguments = String::new();
        for (name, value) in event.fields() {
            let comma = if arguments.is_empty() { "" } else { ", " };
            arguments.push_str(&format!("{comma}{name}={value}"));
        }
        let number = self.started;
        self.started += 1;
        for key in &keys {
            let numbers = self.by_key.entry((name.clone(), key.clone())).or_default();
            if numbers.len() >= MAX_BY_KEY {
                numbers.remove(0);
            }
            numbers.push(number);
        }
        let id = event.activity_id();
        let timestamp = event.header().timestamp;
        let activity = Activity {
            provider: event.provider().into(),
            name: base.into(),
            id,
            path: id
                .and_then(|id| crate::activity_path(id, u32::try_from(event.process_id()).ok())),
            parent: event.related_activity_id(),
            start_thread_id: event.thread_id(),
            stop_thread_id: 0,
            start: timestamp,
            end: timestamp,
            arguments,
        };
        let fields = event.metadata().fields.len();
        self.open.insert(number, Open { activity, name, keys, fields });
        ActivityStep::Start(number)
    }

    fn stop(&mut self, event: &Event<'_>, name: Box<str>, keys: &[Key]) -> ActivityStep {
        let fields = event.metadata().fields.len();
        let found = keys.iter().find_map(|key| {
            let numbers = self.by_key.get(&(name.clone(), key.clone()))?;
            let number = *numbers.last()?;
            // Fields that are in both tell activities apart: other values are another activity.
            let by_thread = matches!(key, Key::Thread(_)) && fields > 0;
            let same_fields = self.open.get(&number).is_some_and(|open| open.fields == fields);
            if by_thread && same_fields { None } else { Some(number) }
        });
        let Some((number, mut open)) = found.and_then(|n| Some((n, self.open.remove(&n)?))) else {
            self.unpaired += 1;
            return ActivityStep::Unpaired;
        };
        for key in open.keys {
            let key = (open.name.clone(), key);
            if let Some(numbers) = self.by_key.get_mut(&key) {
                numbers.retain(|n| *n != number);
                if numbers.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        open.activity.end = event.header().timestamp;
        open.activity.stop_thread_id = event.thread_id();
        ActivityStep::Stop(number, open.activity)
    }
}

/// The name without `Start` or `Stop`, and whether it is a start.
fn kind<'a>(event: &Event<'a>) -> Option<(&'a str, bool)> {
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
    Some((if base.is_empty() { name } else { base }, start))
}
