//! A sink outside of the crate: writes the slices, states and instants of a Go execution trace as lines of
//! JSON, e.g. for `jq` or a database:
//! `cargo run -p trace-export --example json_lines -- trace.out > trace.jsonl`.

use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use trace_export::timeline::TimelineSource;
use trace_export::trace_timeline::{Tables, gotrace, sources::go::GoSource};
use trace_export::{
    ClockDomain, CounterValue, DebugAnnotation, Frame, Interner, Loss, Name, Sample, SchedSwitch,
    SchedWaking, Sink, StackId, TextId, Timestamp, Track, TrackEvent, TrackId, TrackKind, Value,
};

struct JsonLines<W> {
    writer: W,
    domain: ClockDomain,
    names: Interner,
    /// The names of the tracks, by their numbers.
    tracks: Vec<String>,
    /// The tracks of processes and threads, by their identifiers.
    known: HashMap<(u32, Option<u32>), TrackId>,
    flows: u64,
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

impl<W: Write> JsonLines<W> {
    fn new(writer: W, domain: ClockDomain) -> Self {
        let (names, tracks, known) = (Interner::default(), Vec::new(), HashMap::new());
        Self { writer, domain, names, tracks, known, flows: 0 }
    }

    fn name(&self, name: Name<'_>) -> String {
        match name {
            Name::Text(id) => lossy(self.names.text_of(id).unwrap_or(b"?")),
            Name::Inline(text) => lossy(text),
            _ => String::new(),
        }
    }

    fn args(&self, args: &[DebugAnnotation<'_>]) -> Json {
        let value = |value| match value {
            Value::Uint(value) => json!(value),
            Value::Int(value) => json!(value),
            Value::Double(value) => json!(value),
            Value::Bool(value) => json!(value),
            Value::Text(name) => json!(self.name(name)),
            _ => Json::Null,
        };
        args.iter().map(|arg| (self.name(Name::Text(arg.name)), value(arg.value))).collect()
    }

    fn line(
        &mut self,
        at: Timestamp,
        what: &str,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()> {
        let Some(on) = self.tracks.get(track.index()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an unknown track"));
        };
        let mut line = json!({ "at": at.nanos(), "what": what, "track": on });
        if let Some(entry) = entry {
            line["name"] = json!(self.name(entry.name));
            line["args"] = self.args(entry.args);
        }
        writeln!(self.writer, "{line}")
    }
}

impl<W: Write> Sink for JsonLines<W> {
    fn clock_domain(&self) -> ClockDomain {
        self.domain
    }

    fn track(&mut self, track: &Track<'_>) -> io::Result<TrackId> {
        let parent = track.parent.and_then(|parent| self.tracks.get(parent.index()));
        let name = match parent {
            Some(parent) => format!("{parent}/{}", lossy(track.name)),
            None => lossy(track.name),
        };
        let key = match track.kind {
            TrackKind::Process { pid } => Some((pid, None)),
            TrackKind::Thread { pid, tid } => Some((pid, Some(tid))),
            _ => None,
        };
        // A process or thread that is added again keeps its track.
        if let Some(known) = key.and_then(|key| self.known.get(&key)) {
            return Ok(*known);
        }
        let id = TrackId::new(u32::try_from(self.tracks.len()).map_err(io::Error::other)?);
        self.tracks.push(name);
        self.known.extend(key.map(|key| (key, id)));
        Ok(id)
    }

    fn text(&mut self, text: &[u8]) -> TextId {
        self.names.text(text)
    }

    fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId {
        self.names.stack(frames)
    }

    fn holds_text(&self, id: TextId) -> bool {
        self.names.holds_text(id)
    }

    fn holds_stack(&self, id: StackId) -> bool {
        self.names.holds_stack(id)
    }

    fn new_flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    fn state(
        &mut self,
        at: Timestamp,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()> {
        self.line(at, "state", track, entry)
    }

    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.line(at, "begin", track, Some(entry))
    }

    fn end(&mut self, at: Timestamp, track: TrackId, _: &[DebugAnnotation<'_>]) -> io::Result<()> {
        self.line(at, "end", track, None)
    }

    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.line(at, "instant", track, Some(entry))
    }

    // Left out: this sink has no lines for them.

    fn clock_snapshot(&mut self, _: &[(ClockDomain, Timestamp)]) -> io::Result<()> {
        Ok(())
    }

    fn counter(&mut self, _: Timestamp, _: TrackId, _: CounterValue) -> io::Result<()> {
        Ok(())
    }

    fn sample(&mut self, _: Timestamp, _: &Sample) -> io::Result<()> {
        Ok(())
    }

    fn sched_switch(&mut self, _: Timestamp, _: &SchedSwitch<'_>) -> io::Result<()> {
        Ok(())
    }

    fn sched_waking(&mut self, _: Timestamp, _: &SchedWaking<'_>) -> io::Result<()> {
        Ok(())
    }

    fn lost(&mut self, _: Timestamp, _: Option<TrackId>, _: &Loss<'_>) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: json_lines TRACE")?;
    let mut reader = gotrace::Reader::new(File::open(path)?)?;
    let mut sink = JsonLines::new(BufWriter::new(io::stdout().lock()), reader.clock_domain());
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let (mut source, mut timeline) = (GoSource::default(), TimelineSource::default());
    while let Some(event) = reader.next_event()? {
        source.push(event, &mut tables, &mut events);
        for event in events.drain(..) {
            timeline.push(&event, &tables, &mut sink)?;
        }
    }
    timeline.finish(&tables, &mut sink)?;
    sink.finish()?;
    Ok(())
}
