//! Events as text, byte for byte as `Event.String` of Go's reader, which `go tool trace -d=parsed`
//! prints.

use crate::event::{
    Event, EventKind, ExperimentalEvent, Metric, OwnedEvent, Range, RangeName, Stack,
    StateTransition, SyncPoint, Value,
};
use crate::quote::{append_escaped, append_quoted};
use crate::table::ClockSnapshot;
use std::fmt;
use std::io::Write;

/// Writes events as text, fast: the text of each stack is formatted once and cached.
///
/// The text is identical to Go's. Names in a trace may be invalid UTF-8, and so may the text;
/// `Display` of an [`Event`] writes the same text with invalid bytes replaced. An event's text does
/// not end with a line feed, unless it ends with a stack.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let events: Vec<gotrace::OwnedEvent> = Vec::new();
/// let mut formatter = gotrace::TextFormatter::new();
/// let mut text = Vec::new();
/// for event in &events {
///     formatter.append(event.as_event(), &mut text);
///     text.push(b'\n');
/// }
/// # assert!(text.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct TextFormatter {
    stacks: StackTexts,
}

impl TextFormatter {
    /// Makes a formatter with an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the text of an event.
    pub fn append(&mut self, event: Event<'_>, out: &mut Vec<u8>) {
        let kind = event.kind();
        append_field(b"M=", event.thread().0, out);
        append_field(b" P=", event.proc().0, out);
        append_field(b" G=", event.goroutine().0, out);
        out.push(b' ');
        out.extend_from_slice(kind.name().as_bytes());
        append_field(b" Time=", event.time().nanos(), out);
        match kind {
            EventKind::StateTransition => {
                if let Some(transition) = event.state_transition() {
                    self.append_transition(transition, out);
                }
            }
            EventKind::StackSample => {}
            _ => append_details(event, out),
        }
        if let Some(stack) = event.stack() {
            out.extend_from_slice(b"\nStack=\n");
            self.stacks.append(stack, out);
        }
    }

    fn append_transition(&mut self, transition: StateTransition<'_>, out: &mut Vec<u8>) {
        let resource = transition.resource();
        if let (Some(id), Some((from, to))) = (resource.goroutine(), transition.goroutine()) {
            append_field(b" GoID=", id.0, out);
            append_states(from.name(), to.name(), out);
        } else if let (Some(id), Some((from, to))) = (resource.proc(), transition.proc()) {
            append_field(b" ProcID=", id.0, out);
            append_states(from.name(), to.name(), out);
        }
        out.extend_from_slice(b" Reason=");
        append_quoted(transition.reason(), out);
        if let Some(stack) = transition.stack() {
            out.extend_from_slice(b"\nTransitionStack=\n");
            self.stacks.append(stack, out);
        }
    }
}

/// Appends the part after the time, for all kinds except state transitions.
fn append_details(event: Event<'_>, out: &mut Vec<u8>) {
    if let Some(Metric { name, value }) = event.metric() {
        append_quoted_field(b" Name=", name.as_bytes(), out);
        out.extend_from_slice(b" Value=");
        append_value(&value, out);
    } else if let Some(label) = event.label() {
        append_quoted_field(b" Label=", label.label, out);
        append_display(b" Resource=", label.resource, out);
    } else if let Some(Range { name, scope }) = event.range() {
        append_range_name(name, out);
        append_display(b" Scope=", scope, out);
        if let Some(attributes) = event.range_attributes() {
            out.extend_from_slice(b" Attributes=[");
            for (i, attribute) in attributes.enumerate() {
                let separator: &[u8] = if i == 0 { b"" } else { b" " };
                append_quoted_field(separator, attribute.name.as_bytes(), out);
                out.push(b'=');
                append_value(&attribute.value, out);
            }
            out.push(b']');
        }
    } else if let Some(task) = event.task() {
        append_field(b" ID=", task.id.0, out);
        append_field(b" Parent=", task.parent.0, out);
        append_quoted_field(b" Type=", task.name, out);
    } else if let Some(region) = event.region() {
        append_field(b" Task=", region.task.0, out);
        append_quoted_field(b" Type=", region.name, out);
    } else if let Some(log) = event.log() {
        append_field(b" Task=", log.task.0, out);
        append_quoted_field(b" Category=", log.category, out);
        append_quoted_field(b" Message=", log.message, out);
    } else if let Some(sync) = event.sync() {
        append_sync(sync, out);
    } else if let Some(experimental) = event.experimental() {
        append_experimental(experimental, out);
    }
}

fn append_sync(sync: SyncPoint<'_>, out: &mut Vec<u8>) {
    append_field(b" N=", sync.n(), out);
    if let Some(clocks) = sync.clock_snapshot() {
        append_field(b" Trace=", clocks.trace.nanos(), out);
        append_field(b" Mono=", clocks.mono, out);
        append_display(b" Wall=", clocks.wall_utc(), out);
    }
}

fn append_experimental(event: ExperimentalEvent<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b" Name=");
    out.extend_from_slice(event.name().as_bytes());
    out.extend_from_slice(b" Args=[");
    for (i, (name, value)) in event.args().enumerate() {
        if i != 0 {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        append_value(&value, out);
    }
    out.push(b']');
}

impl ClockSnapshot {
    /// The wall clock in UTC, in the format of Go's `time.RFC3339Nano`:
    /// `2026-11-21T01:29:18.305164169Z`.
    pub fn wall_utc(&self) -> String {
        const DAY: u64 = 86_400;
        /// Go counts from March 1 of the year -292277022400, in 64 bits that may wrap around. 400
        /// years have 146097 days, and from then to the Unix epoch are 1970 years minus 2 months.
        const EPOCH: u64 = 730_692_556 * 146_097 + 306 + 719_162;
        let absolute = (self.wall_seconds as u64).wrapping_add(EPOCH * DAY);
        let (days, seconds) = (absolute / DAY, absolute % DAY);
        let (year, month, day) = civil_date(days as i64 - EPOCH as i64);
        let sign = if year < 0 { "-" } else { "" };
        let year = year.unsigned_abs();
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let fraction = format!(".{:09}", self.wall_nanos);
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        format!("{sign}{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
    }
}

/// Returns the year, month and day of a day counted from the Unix epoch, in the Gregorian calendar.
///
/// The calculation starts years in March, so that the leap day is the last day.
fn civil_date(days: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097; // days in 400 years
    let days = days + 719_468; // from March 1 of the year 0
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // from March; months alternate between 31 and 30 days, mostly
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next_year, month, day)
}

#[inline]
fn append_field(name: &[u8], value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn append_states(from: &str, to: &str, out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(from.as_bytes());
    out.extend_from_slice(b"->");
    out.extend_from_slice(to.as_bytes());
}

fn append_range_name(name: RangeName<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b" Name=\"");
    match name {
        RangeName::StopTheWorld(reason) => {
            out.extend_from_slice(b"stop-the-world (");
            append_escaped(reason, out);
            out.push(b')');
        }
        _ => append_display(b"", name, out),
    }
    out.push(b'"');
}

fn append_quoted_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    append_quoted(value, out);
}

fn append_display(name: &[u8], value: impl fmt::Display, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    let _ = write!(out, "{value}"); // writing to a vector does not fail
}

fn append_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Uint64(value) => {
            append_field(b"Value{Uint64(", *value, out);
            out.extend_from_slice(b")}");
        }
        Value::String(value) => out.extend_from_slice(value),
    }
}

fn append_stack(stack: Stack<'_>, indent: &[u8], out: &mut Vec<u8>) {
    for frame in stack.frames() {
        out.extend_from_slice(indent);
        out.extend_from_slice(frame.function);
        let _ = writeln!(out, " @ 0x{:x}", frame.pc); // writing to a vector does not fail
        out.extend_from_slice(indent);
        out.push(b'\t');
        out.extend_from_slice(frame.file);
        append_field(b":", frame.line, out);
        out.push(b'\n');
    }
}

/// The cached texts of the stacks of one table, in bounded memory.
#[derive(Debug, Default)]
struct StackTexts {
    /// The serial number of the table.
    serial: u64,
    /// The range of a stack's text, by identifier; empty if it is not cached.
    parts: Vec<(u32, u32)>,
    text: Vec<u8>,
}

impl StackTexts {
    /// Maximum number of cached bytes.
    const MAX_TEXT: usize = 16 << 20;
    /// Stacks of higher identifiers are not cached; runtimes number from 1 upwards.
    const MAX_ID: u64 = 1 << 20;

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "spans of the text that was made of a stack")]
    fn append(&mut self, stack: Stack<'_>, out: &mut Vec<u8>) {
        if stack.table.serial == self.serial {
            if let Some(&(start, end)) = self.parts.get(stack.id as usize) {
                if start < end {
                    out.extend_from_slice(&self.text[start as usize..end as usize]);
                    return;
                }
            }
        }
        self.append_new(stack, out);
    }

    #[cold]
    #[expect(
        clippy::indexing_slicing,
        reason = "the text that this call appends, and a part that it has added"
    )]
    fn append_new(&mut self, stack: Stack<'_>, out: &mut Vec<u8>) {
        let from = out.len();
        append_stack(stack, b"\t", out);
        let text = &out[from..];
        if stack.table.serial != self.serial || self.text.len() + text.len() > Self::MAX_TEXT {
            self.serial = stack.table.serial;
            self.parts.clear();
            self.text.clear();
        }
        if stack.id < Self::MAX_ID && text.len() <= Self::MAX_TEXT {
            let index = stack.id as usize;
            if index >= self.parts.len() {
                self.parts.resize(index + 1, (0, 0));
            }
            let start = self.text.len();
            self.text.extend_from_slice(text);
            self.parts[index] = (start as u32, self.text.len() as u32);
        }
    }
}

impl fmt::Display for Event<'_> {
    /// Writes the text of Go's `Event.String`; see [`TextFormatter`] for many events.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        TextFormatter::new().append(*self, &mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Event");
        all.field("kind", &self.kind())
            .field("time", &self.time())
            .field("thread", &self.thread())
            .field("proc", &self.proc())
            .field("goroutine", &self.goroutine());
        macro_rules! details {
            ($($name:ident)*) => {
                $(if let Some(value) = self.$name() {
                    all.field(stringify!($name), &value);
                })*
            };
        }
        details!(metric label range task region log state_transition sync experimental);
        if let Some(attributes) = self.range_attributes() {
            all.field("range_attributes", &attributes.collect::<Vec<_>>());
        }
        if let Some(stack) = self.stack() {
            all.field("stack", &stack);
        }
        all.finish()
    }
}

impl fmt::Display for Stack<'_> {
    /// Two lines for each frame: function and program counter, file and line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        append_stack(*self, b"", &mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

impl fmt::Display for OwnedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_event(), f)
    }
}

impl fmt::Debug for OwnedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_event(), f)
    }
}
