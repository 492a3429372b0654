use std::collections::HashMap;
use std::fmt::{self, Write};

use crate::{Event, Guid, Timestamp};

/// A unit of work with a start and a stop event, such as a request or a task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Event source.
    pub provider: String,
    /// Name, without `Start`.
    pub name: String,
    /// The activity's id, if the events have one.
    pub id: Option<Guid>,
    /// The id as the path that .NET packs into it, such as `//1/2/3`, if the id is a path.
    pub path: Option<String>,
    /// Id of the parent activity, if the start event has one.
    pub parent: Option<Guid>,
    /// The operating system's id of the process.
    pub pid: u64,
    /// Thread of the start event.
    pub start_tid: u64,
    /// Thread of the stop event. Asynchronous code often stops on another thread.
    pub stop_tid: u64,
    /// Start.
    pub start: Timestamp,
    /// Stop.
    pub end: Timestamp,
    /// The start event's payload, as `name=value, …`. At most 8 KiB: longer text ends with `…`.
    pub arguments: String,
}

const OPCODE_START: u8 = 1;
const OPCODE_STOP: u8 = 2;

/// The effect of an event on the activities of its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivityStep {
    /// An activity starts: see [`ActivityTracker::get`].
    Start(u64),
    /// The activity with this number has ended.
    Stop(u64, Activity),
    /// A stop without a start.
    Unpaired,
}

/// Pairs start and stop events of event sources: opcodes 1 and 2, or names that end in `Start`
/// and `Stop`.
///
/// Events of one process are paired. Those with activity ids are paired by those ids. Runtimes write ids while
/// `System.Threading.Tasks.TplEventSource` is enabled with keyword 0x80. Without ids, a stop ends
/// the last start of the same name whose common fields have the same values, preferably on the same
/// thread. Start and stop events without a common field are paired on their thread.
#[derive(Debug, Default)]
pub struct ActivityTracker {
    /// Open activities by number.
    open: HashMap<u64, Open>,
    /// Numbers of the open activities that a stop with this key can end, newest last.
    by_key: HashMap<(u64, Box<str>, Key), Vec<u64>>,
    started: u64,
    /// Bytes of text of the open activities.
    text: usize,
    /// No open activity has a smaller number.
    oldest: u64,
    unpaired: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Id(Guid),
    Field(FieldText),
    Thread(u64),
}

/// Name and value of a field.
type FieldText = (Box<str>, Box<str>);

#[derive(Debug)]
struct Open {
    activity: Activity,
    name: Box<str>,
    keys: Vec<Key>,
    /// Fields of the start event that are compared with the fields of a stop.
    fields: Vec<FieldText>,
}

impl Open {
    /// Bytes of text, with that of the keys.
    fn text(&self) -> usize {
        let Activity { provider, name, path, arguments, .. } = &self.activity;
        let path = path.as_ref().map_or(0, String::len);
        let fields: usize = self.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let names = self.name.len() * (1 + self.keys.len());
        names + provider.len() + name.len() + path + arguments.len() + 3 * fields
    }

    /// Number of fields of a stop event that the start also has; `None` if a common field has
    /// another value, because the events then belong to different activities.
    fn shared(&self, stop: &[FieldText]) -> Option<usize> {
        let mut shared = 0;
        for (name, value) in stop {
            match self.fields.iter().find(|(n, _)| n == name) {
                Some((_, v)) if v == value => shared += 1,
                Some(_) => return None,
                None => {}
            }
        }
        Some(shared)
    }
}

/// Maximum number of open activities. Only lost stops can lead to more.
const MAX_OPEN: usize = 1 << 18;

/// Maximum number of bytes of their text.
const MAX_TEXT: usize = 1 << 26;

/// Maximum length of the name of an event with that of its source, in bytes.
const MAX_NAME: usize = 1 << 12;

/// Maximum length of [`Activity::arguments`], in bytes.
const MAX_ARGUMENTS: usize = 1 << 13;

/// Maximum number of fields that are compared, from the first on.
const MAX_FIELDS: usize = 8;

/// Maximum length of a compared value, in bytes of text.
const MAX_VALUE: usize = 256;

/// Maximum number of open activities per key. Older ones are no longer found by the key.
const MAX_BY_KEY: usize = 64;

impl ActivityTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of stops without a start, plus starts that are no longer tracked because too many were
    /// open.
    pub fn unpaired(&self) -> u64 {
        self.unpaired
    }

    /// Activities that have started and not stopped.
    pub fn open(&self) -> impl Iterator<Item = &Activity> {
        self.open.values().map(|open| &open.activity)
    }

    /// An activity that has started and not stopped, by its number.
    pub fn get(&self, number: u64) -> Option<&Activity> {
        self.open.get(&number).map(|open| &open.activity)
    }

    /// Processes an event and returns the activity that it ends, if any.
    pub fn push(&mut self, event: &Event<'_>) -> Option<Activity> {
        match self.step(event)? {
            ActivityStep::Stop(_, activity) => Some(activity),
            _ => None,
        }
    }

    /// Processes an event and returns its effect on the activities of the stream, if any.
    pub fn step(&mut self, event: &Event<'_>) -> Option<ActivityStep> {
        let (base, start) = kind(event)?;
        let name: Box<str> = format!("{}/{base}", event.provider()).into();
        let mut fields = Vec::new();
        let keys = match event.activity_id() {
            Some(id) => vec![Key::Id(id)],
            None => {
                fields = pairing_fields(event);
                let keys = fields.iter().cloned().map(Key::Field);
                keys.chain([Key::Thread(event.tid())]).collect()
            }
        };
        Some(if start {
            self.start(event, base, name, keys, fields)
        } else {
            self.stop(event, name, &keys, &fields)
        })
    }

    fn start(
        &mut self,
        event: &Event<'_>,
        base: &str,
        name: Box<str>,
        keys: Vec<Key>,
        fields: Vec<FieldText>,
    ) -> ActivityStep {
        let time = event.time();
        let pid = event.pid();
        let activity = Activity {
            provider: event.provider().into(),
            name: base.into(),
            id: event.activity_id(),
            path: event.activity_path(),
            parent: event.related_activity_id(),
            pid,
            start_tid: event.tid(),
            stop_tid: 0,
            start: time,
            end: time,
            arguments: arguments(event),
        };
        let open = Open { activity, name, keys, fields };
        let text = open.text();
        while self.open.len() >= MAX_OPEN || self.text + text > MAX_TEXT {
            self.unpaired += 1;
            if !self.drop_oldest() {
                break;
            }
        }
        self.text += text;
        let number = self.started;
        self.started += 1;
        for key in &open.keys {
            let numbers = self.by_key.entry((pid, open.name.clone(), key.clone())).or_default();
            if numbers.len() >= MAX_BY_KEY {
                numbers.remove(0);
            }
            numbers.push(number);
        }
        self.open.insert(number, open);
        ActivityStep::Start(number)
    }

    fn stop(
        &mut self,
        event: &Event<'_>,
        name: Box<str>,
        keys: &[Key],
        fields: &[FieldText],
    ) -> ActivityStep {
        let thread = event.tid();
        // Prefer an activity of this thread, then the newest.
        let mut best: Option<(bool, u64)> = None;
        for key in keys {
            let numbers = self.by_key.get(&(event.pid(), name.clone(), key.clone()));
            let candidates = numbers.into_iter().flatten().rev();
            let found = candidates
                .filter_map(|number| Some((*number, self.open.get(number)?)))
                .filter(|(_, open)| match (key, open.shared(fields)) {
                    (Key::Id(_), _) => true,
                    (Key::Field(_), shared) => shared.is_some(),
                    (Key::Thread(_), shared) => shared == Some(0),
                })
                .map(|(number, open)| (open.activity.start_tid == thread, number))
                .max();
            best = best.max(found);
        }
        let found = best.map(|(_, number)| number);
        let Some((number, mut activity)) = found.and_then(|n| Some((n, self.close(n)?))) else {
            self.unpaired += 1;
            return ActivityStep::Unpaired;
        };
        activity.end = event.time();
        activity.stop_tid = event.tid();
        ActivityStep::Stop(number, activity)
    }

    /// Removes the oldest open activity: its stop was lost. `false` if none is open.
    fn drop_oldest(&mut self) -> bool {
        // Numbers are consecutive: each is tried once.
        while !self.open.is_empty() {
            let oldest = self.close(self.oldest);
            self.oldest += 1;
            if oldest.is_some() {
                return true;
            }
        }
        false
    }

    /// Removes an open activity.
    fn close(&mut self, number: u64) -> Option<Activity> {
        let open = self.open.remove(&number)?;
        self.text -= open.text();
        for key in open.keys {
            let key = (open.activity.pid, open.name.clone(), key);
            if let Some(numbers) = self.by_key.get_mut(&key) {
                numbers.retain(|n| *n != number);
                if numbers.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        Some(open.activity)
    }
}

/// Text up to a maximum length. Beyond it, writing is an error: a short payload can have a value with
/// very long text.
struct Limited {
    text: String,
    max: usize,
}

impl Limited {
    fn new(max: usize) -> Self {
        Self { text: String::new(), max }
    }
}

impl Write for Limited {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = self.max.saturating_sub(self.text.len());
        if part.len() <= left {
            self.text.push_str(part);
            return Ok(());
        }
        let end = (0..=left).rev().find(|end| part.is_char_boundary(*end));
        self.text.push_str(end.and_then(|end| part.get(..end)).unwrap_or_default());
        Err(fmt::Error)
    }
}

/// The fields of an event that are compared to pair it with another event.
fn pairing_fields(event: &Event<'_>) -> Vec<FieldText> {
    let fields = event.fields().map_while(Result::ok).take(MAX_FIELDS);
    let fields = fields.filter_map(|(name, value)| {
        let mut text = Limited::new(MAX_VALUE);
        write!(text, "{value}").ok()?;
        (name.len() <= MAX_VALUE).then(|| (name.into(), text.text.into()))
    });
    fields.collect()
}

/// The payload as `name=value, …`.
fn arguments(event: &Event<'_>) -> String {
    let mut arguments = Limited::new(MAX_ARGUMENTS);
    for field in event.fields() {
        let comma = if arguments.text.is_empty() { "" } else { ", " };
        let written = match field {
            Ok((name, value)) => write!(arguments, "{comma}{name}={value}"),
            Err(error) => write!(arguments, "{comma}error={error}"),
        };
        if written.is_err() {
            arguments.text.push('…');
            break;
        }
    }
    arguments.text
}

/// The name without `Start` or `Stop`, and whether it is a start.
fn kind<'a>(event: &Event<'a>) -> Option<(&'a str, bool)> {
    // The runtime's own start and stop events have other trackers.
    if event.known().is_some() {
        return None;
    }
    let name = event.name();
    if event.provider().len() + name.len() > MAX_NAME {
        return None;
    }
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
