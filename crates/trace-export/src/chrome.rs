//! The sink that writes Chrome's JSON trace format.

use crate::cut;
use crate::intern::{Frame, Interner, StackId, TextId};
use crate::json;
use crate::model::{
    Category, CounterValue, DebugAnnotation, Flow, Loss, Name, Sample, SchedSwitch, SchedWaking,
    Sink, Track, TrackEvent, TrackId, TrackKind, Value,
};
use crate::process::Process;
use hashbrown::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use trace_common::{ClockDomain, Timestamp};

/// The greatest whole number up to which viewers, whose numbers are doubles, read each exactly.
const MAX_EXACT: u64 = 1 << 53;

/// Writes a timeline in the
/// [JSON format of Chrome](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU),
/// for `chrome://tracing`, Perfetto and other programs that read it.
///
/// The files are some twenty times larger than those of [`PerfettoSink`](crate::PerfettoSink), and
/// the format has less:
///
/// - A track that is no thread becomes a thread of its process, with its path as the name.
/// - Context switches become slices of a process `CPUs`. Wake-ups of threads are omitted and counted.
/// - Samples become instants. Stacks are arguments.
/// - Clock snapshots and descriptions of tracks are omitted.
/// - Names of tracks end with an ellipsis after 200 bytes: each track has those above it in its own.
///
/// Times are microseconds with three decimals on the clock of the timeline.
#[derive(Debug)]
pub struct ChromeSink<W> {
    writer: W,
    out: String,
    has_events: bool,
    domain: ClockDomain,
    names: Interner,
    tracks: Vec<Row>,
    by_tid: HashMap<(u32, Option<u32>), TrackId>,
    /// Flows that have begun, and continue.
    flows: HashSet<u64>,
    last_flow: u64,
    losses: Option<TrackId>,
    /// CPUs, and whether a thread is drawn there.
    cpus: HashMap<u32, bool>,
    stats: ChromeStats,
}

/// Numbers of items that a [`ChromeSink`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChromeStats {
    /// Bytes, including unflushed ones.
    pub bytes: u64,
    /// Slices, including states.
    pub slices: u64,
    /// Context switches.
    pub switches: u64,
    /// Wake-ups of threads, which the format cannot express.
    pub wakings_omitted: u64,
    /// Values of counters that are not finite, omitted.
    pub values_omitted: u64,
    /// Ends of slices that had not begun, omitted.
    pub unmatched_ends: u64,
    /// Names and stacks that were used after they were evicted from the table.
    pub stale_ids: u64,
}

/// A track as a thread of the format.
#[derive(Debug)]
struct Row {
    pid: u32,
    tid: u32,
    /// The path below its process.
    path: String,
    /// Whether the track is a process, which is not part of paths.
    is_process: bool,
    depth: u32,
    in_state: bool,
}

/// Threads above this number are tracks: Linux has fewer threads.
const FIRST_TRACK: u32 = 8 << 20;
/// The process of the CPUs: no process of Linux has this number.
const CPUS: u32 = (8 << 20) - 1;
/// Size at which the buffer is written out, in bytes.
const FLUSH_AT: usize = 256 << 10;

fn lossy(text: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(text)
}

fn text(out: &mut String, text: &[u8]) {
    json::text(out, &lossy(text));
}

impl<W: Write> ChromeSink<W> {
    /// Makes a sink that writes to `writer` in large pieces; all times are on the clock `domain`.
    pub fn new(writer: W, domain: ClockDomain) -> Self {
        Self {
            writer,
            out: String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":["),
            has_events: false,
            domain,
            names: Interner::with_limit(Interner::DEFAULT_LIMIT),
            tracks: Vec::new(),
            by_tid: HashMap::new(),
            flows: HashSet::new(),
            last_flow: 0,
            losses: None,
            cpus: HashMap::new(),
            stats: ChromeStats::default(),
        }
    }

    /// Returns the numbers of written items so far.
    pub fn stats(&self) -> ChromeStats {
        ChromeStats { bytes: self.stats.bytes + self.out.len() as u64, ..self.stats }
    }

    /// Returns the writer. Call [`Sink::finish`] first.
    pub fn into_inner(self) -> W {
        self.writer
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.write_all(self.out.as_bytes())?;
        self.stats.bytes += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    fn row(&mut self, track: TrackId) -> io::Result<&mut Row> {
        self.tracks
            .get_mut(track.index())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the track is unknown"))
    }

    /// Begins an event: its phase and thread.
    fn open(&mut self, phase: char, pid: u32, tid: u32) -> io::Result<()> {
        if self.out.len() >= FLUSH_AT {
            self.flush()?;
        }
        if std::mem::replace(&mut self.has_events, true) {
            self.out.push(',');
        }
        self.out.push_str("\n{\"ph\":\"");
        self.out.push(phase);
        self.out.push_str("\",\"pid\":");
        json::number(&mut self.out, pid);
        self.out.push_str(",\"tid\":");
        json::number(&mut self.out, tid);
        Ok(())
    }

    fn time(&mut self, at: Timestamp) {
        let nanos = at.nanos();
        let sign = if nanos < 0 { "-" } else { "" };
        let nanos = nanos.unsigned_abs();
        self.out.push_str(",\"ts\":");
        let (micros, rest) = (nanos / 1000, nanos % 1000);
        json::number(&mut self.out, format_args!("{sign}{micros}.{rest:03}"));
    }

    fn name(&mut self, name: Name<'_>) {
        match name {
            Name::Text(id) => match self.names.text_of(id) {
                Some(name) => text(&mut self.out, name),
                None => {
                    self.stats.stale_ids += 1;
                    self.out.push_str("\"?\"");
                }
            },
            Name::Inline(name) => text(&mut self.out, name),
        }
    }

    /// Names a process or thread.
    fn metadata(&mut self, what: &str, pid: u32, tid: u32, name: &[u8]) -> io::Result<()> {
        self.open('M', pid, tid)?;
        self.out.push_str(",\"name\":\"");
        self.out.push_str(what);
        let key = if what == "process_labels" { "labels" } else { "name" };
        self.out.push_str("\",\"args\":{\"");
        self.out.push_str(key);
        self.out.push_str("\":");
        text(&mut self.out, name);
        self.out.push_str("}}");
        Ok(())
    }

    /// The process of the parent of a track, and the path of the track below it.
    fn path(&mut self, new: &Track<'_>) -> io::Result<(u32, String)> {
        let (parent, mut path) = match new.parent {
            Some(parent) => {
                let parent = self.row(parent)?;
                let is_named = !parent.is_process && !parent.path.is_empty();
                (parent.pid, if is_named { format!("{} / ", parent.path) } else { String::new() })
            }
            None => (0, String::new()),
        };
        path.push_str(&cut::text(new.name, cut::NAME));
        Ok((parent, path))
    }

    /// Names the process or thread that a track is.
    fn name_row(&mut self, new: &Track<'_>, (pid, tid): (u32, u32), path: &str) -> io::Result<()> {
        match new.kind {
            TrackKind::Process { .. } => {
                let name = cut::text(new.name, cut::NAME);
                self.metadata("process_name", pid, pid, name.as_bytes())
            }
            _ => self.metadata("thread_name", pid, tid, path.as_bytes()),
        }
    }

    /// Gives a known process or thread its last name.
    fn rename(&mut self, known: TrackId, new: &Track<'_>) -> io::Result<()> {
        let (_, path) = self.path(new)?;
        let row = self.row(known)?;
        if row.path == path {
            return Ok(());
        }
        let ids = (row.pid, row.tid);
        row.path.clone_from(&path);
        self.name_row(new, ids, &path)
    }

    /// Writes arguments and a stack.
    fn args(&mut self, args: &[DebugAnnotation<'_>], stack: Option<StackId>) {
        if args.is_empty() && stack.is_none() {
            return;
        }
        self.out.push_str(",\"args\":{");
        for (index, arg) in args.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.name(Name::Text(arg.name));
            self.out.push(':');
            match arg.value {
                Value::Uint(value) if value > MAX_EXACT => self.exact(value),
                Value::Uint(value) => json::number(&mut self.out, value),
                Value::Int(value) if value.unsigned_abs() > MAX_EXACT => self.exact(value),
                Value::Int(value) => json::number(&mut self.out, value),
                Value::Double(value) => self.double(value),
                Value::Bool(value) => json::number(&mut self.out, value),
                Value::Text(name) => self.name(name),
            }
        }
        if let Some(stack) = stack {
            if !args.is_empty() {
                self.out.push(',');
            }
            self.out.push_str("\"stack\":");
            match self.names.frames_of(stack) {
                Some(frames) => {
                    json::list(&mut self.out, frames, |out, frame| text(out, frame.function));
                }
                None => {
                    self.stats.stale_ids += 1;
                    self.out.push_str("[]");
                }
            }
        }
        self.out.push('}');
    }

    /// JSON has no infinities.
    fn double(&mut self, value: f64) {
        if value.is_finite() {
            json::number(&mut self.out, value);
        } else {
            json::text(&mut self.out, &value.to_string());
        }
    }

    /// Viewers in browsers read numbers as doubles.
    fn exact(&mut self, value: impl fmt::Display) {
        json::text(&mut self.out, &value.to_string());
    }

    fn event(
        &mut self,
        phase: char,
        at: Timestamp,
        track: TrackId,
        entry: &TrackEvent<'_>,
    ) -> io::Result<()> {
        let row = self.row(track)?;
        let (pid, tid) = (row.pid, row.tid);
        self.open(phase, pid, tid)?;
        self.time(at);
        self.out.push_str(",\"name\":");
        self.name(entry.name);
        if let Some(category) = entry.category {
            self.out.push_str(",\"cat\":\"");
            self.out.push_str(category.name());
            self.out.push('"');
        }
        if phase == 'i' {
            self.out.push_str(",\"s\":\"t\"");
        }
        self.args(entry.args, entry.stack);
        self.out.push('}');
        let (id, phase) = match entry.flow {
            None => return Ok(()),
            Some(Flow::Through(id)) => (id, if self.flows.insert(id) { 's' } else { 't' }),
            Some(Flow::Ends(id)) => {
                if !self.flows.remove(&id) {
                    return Ok(()); // it has no start
                }
                (id, 'f')
            }
        };
        self.open(phase, pid, tid)?;
        self.time(at);
        self.out.push_str(",\"cat\":\"flow\",\"name\":\"flow\",\"bp\":\"e\",\"id\":");
        json::number(&mut self.out, id);
        self.out.push('}');
        Ok(())
    }

    fn bare_end(&mut self, at: Timestamp, pid: u32, tid: u32) -> io::Result<()> {
        self.open('E', pid, tid)?;
        self.time(at);
        Ok(())
    }
}

impl<W: Write> Sink for ChromeSink<W> {
    fn clock_domain(&self) -> ClockDomain {
        self.domain
    }

    fn clock_snapshot(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()> {
        if readings.iter().any(|(domain, _)| *domain == self.domain) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a clock snapshot lacks the clock of the timeline",
        ))
    }

    fn track(&mut self, new: &Track<'_>) -> io::Result<TrackId> {
        let ids = new.kind.ids();
        if let Some(&known) = ids.and_then(|ids| self.by_tid.get(&ids)) {
            if new.new_name().is_some() {
                self.rename(known, new)?;
            }
            return Ok(known);
        }
        let id = u32::try_from(self.tracks.len()).map(TrackId::new).map_err(io::Error::other)?;
        let (parent, path) = self.path(new)?;
        let own = FIRST_TRACK.saturating_add(u32::try_from(id.index()).unwrap_or(u32::MAX));
        let (pid, tid) = match new.kind {
            TrackKind::Process { pid } => (pid, own),
            TrackKind::Thread { pid, tid } => (pid, tid),
            TrackKind::Custom | TrackKind::Counter(_) => (parent, own),
        };
        let is_process = matches!(new.kind, TrackKind::Process { .. });
        match new.kind {
            TrackKind::Thread { .. } if new.name.is_empty() => {}
            TrackKind::Counter(_) => {}
            _ => self.name_row(new, (pid, tid), &path)?,
        }
        if let Some(ids) = ids {
            self.by_tid.insert(ids, id);
        }
        self.tracks.push(Row { pid, tid, path, is_process, depth: 0, in_state: false });
        Ok(id)
    }

    fn process(&mut self, process: &Process<'_>) -> io::Result<()> {
        let (pid, line) = (process.pid, process.command_line);
        if line.is_empty() { Ok(()) } else { self.metadata("process_labels", pid, pid, line) }
    }

    fn text(&mut self, text: &[u8]) -> TextId {
        self.names.text(text)
    }

    fn unique_text(&mut self, text: &[u8]) -> TextId {
        self.names.unique_text(text)
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
        self.last_flow += 1;
        self.last_flow
    }

    fn forget_flow(&mut self, flow: u64) {
        self.flows.remove(&flow);
    }

    fn state(
        &mut self,
        at: Timestamp,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()> {
        let row = self.row(track)?;
        let (pid, tid) = (row.pid, row.tid);
        if std::mem::replace(&mut row.in_state, entry.is_some()) {
            self.bare_end(at, pid, tid)?;
            self.out.push('}');
        }
        match entry {
            Some(entry) => {
                self.stats.slices += 1;
                self.event('B', at, track, entry)
            }
            None => Ok(()),
        }
    }

    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.row(track)?.depth += 1;
        self.stats.slices += 1;
        self.event('B', at, track, entry)
    }

    fn end(
        &mut self,
        at: Timestamp,
        track: TrackId,
        args: &[DebugAnnotation<'_>],
    ) -> io::Result<()> {
        self.state(at, track, None)?;
        let row = self.row(track)?;
        let (pid, tid) = (row.pid, row.tid);
        if row.depth == 0 {
            self.stats.unmatched_ends += 1;
            return Ok(());
        }
        row.depth -= 1;
        self.bare_end(at, pid, tid)?;
        self.args(args, None);
        self.out.push('}');
        Ok(())
    }

    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.event('i', at, track, entry)
    }

    fn counter(&mut self, at: Timestamp, track: TrackId, value: CounterValue) -> io::Result<()> {
        if !value.is_finite() {
            self.stats.values_omitted += 1;
            return Ok(());
        }
        let row = self.row(track)?;
        let (pid, tid, path) = (row.pid, row.tid, row.path.clone());
        self.open('C', pid, tid)?;
        self.time(at);
        self.out.push_str(",\"name\":");
        json::text(&mut self.out, &path);
        // A counter is a process and a name. Names that differ at their end are equal when they are cut, also those of
        // the tracks above it.
        if path.contains(cut::MARK) {
            self.out.push_str(",\"id\":\"");
            json::number(&mut self.out, tid);
            self.out.push('"');
        }
        self.out.push_str(",\"args\":{\"value\":");
        match value {
            CounterValue::Int(value) => json::number(&mut self.out, value),
            CounterValue::Double(value) => self.double(value),
        }
        self.out.push_str("}}");
        Ok(())
    }

    fn sample(&mut self, at: Timestamp, sample: &Sample) -> io::Result<()> {
        let track = self.track(&Track::thread(sample.pid, sample.tid, b""))?;
        let entry = TrackEvent::new(&b"sample"[..]).stack(sample.stack).category(Category::Sample);
        self.event('i', at, track, &entry)
    }

    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()> {
        let tid = switch.cpu;
        self.stats.switches += 1;
        if !self.cpus.contains_key(&switch.cpu) {
            if self.cpus.is_empty() {
                self.metadata("process_name", CPUS, CPUS, b"CPUs")?;
            }
            let name = format!("CPU {}", switch.cpu);
            self.metadata("thread_name", CPUS, tid, name.as_bytes())?;
        }
        let is_idle = switch.next.tid == 0;
        if self.cpus.insert(switch.cpu, !is_idle) == Some(true) {
            self.bare_end(at, CPUS, tid)?;
            self.out.push('}');
        }
        if is_idle {
            return Ok(());
        }
        self.open('B', CPUS, tid)?;
        self.time(at);
        self.out.push_str(",\"name\":");
        text(&mut self.out, switch.next.comm);
        self.out.push_str(",\"args\":{\"tid\":");
        json::number(&mut self.out, switch.next.tid);
        self.out.push_str(",\"prio\":");
        json::number(&mut self.out, switch.next.prio);
        self.out.push_str("}}");
        Ok(())
    }

    fn sched_waking(&mut self, _: Timestamp, _: &SchedWaking<'_>) -> io::Result<()> {
        self.stats.wakings_omitted += 1;
        Ok(())
    }

    fn lost(&mut self, at: Timestamp, on: Option<TrackId>, loss: &Loss<'_>) -> io::Result<()> {
        let on = match on.or(self.losses) {
            Some(track) => track,
            None => {
                let track = self.track(&Track::custom(b"Losses"))?;
                *self.losses.insert(track)
            }
        };
        let (count, why) = (self.text(b"count"), self.text(b"why"));
        let args = [
            DebugAnnotation::new(why, Value::Text(Name::Inline(loss.why))),
            DebugAnnotation::new(count, Value::Uint(loss.count.unwrap_or_default())),
        ];
        let known = if loss.count.is_some() { &args[..] } else { &args[..1] };
        let name = [&b"lost: "[..], loss.what].concat();
        let entry = TrackEvent::new(&name[..]).category(Category::Loss).args(known);
        self.instant(at, on, &entry)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.push_str("\n]}\n");
        self.flush()?;
        self.writer.flush()
    }
}

#[cfg(all(test, feature = "timeline"))]
mod tests {
    use super::*;
    use crate::timeline::TimelineSource;
    use trace_timeline::{
        Entity, EntityKind, Event, EventKind, SpanKind, State, Tables, TextId as ModelText,
    };

    #[test]
    fn counters_have_finite_values_only() {
        let mut sink = ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
        let track = sink.track(&Track::thread(1, 1, b"load")).unwrap();
        for value in [1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.5] {
            sink.counter(Timestamp::default(), track, CounterValue::Double(value)).unwrap();
        }
        assert_eq!(sink.stats.values_omitted, 3);
        assert_eq!(sink.out.matches("\"value\":").count(), 2, "{}", sink.out);
    }

    #[test]
    fn counters_whose_names_are_cut_have_ids() {
        let mut sink = ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
        let process = sink.track(&Track::process(1, b"server")).unwrap();
        let long = "x".repeat(cut::NAME);
        let names = ["load".to_owned(), format!("{long} p50"), format!("{long} p95")];
        let group = sink.track(&Track::custom(names[1].as_bytes()).child_of(process)).unwrap();
        let all = names.iter().map(|name| (name.as_str(), process)).chain([("load", group)]);
        for (name, parent) in all {
            let track = Track::counter(name.as_bytes(), crate::model::Unit::Count);
            let track = sink.track(&track.child_of(parent)).unwrap();
            sink.counter(Timestamp::default(), track, CounterValue::Int(5)).unwrap();
        }
        sink.finish().unwrap();
        let all = String::from_utf8(sink.into_inner()).unwrap();
        let counters: Vec<&str> = all.lines().filter(|line| line.contains(r#""ph":"C""#)).collect();
        let ids: HashSet<&str> =
            counters.iter().filter_map(|line| line.split(r#""id":""#).nth(1)).collect();
        assert_eq!((counters.len(), ids.len()), (4, 3), "{all}");
    }

    #[test]
    fn numbers_that_are_no_doubles_are_texts() {
        let mut sink = ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
        let track = sink.track(&Track::thread(1, 1, b"main")).unwrap();
        let ticks = 638_712_345_678_901_234;
        let values = [Value::Int(ticks), Value::Int(-ticks), Value::Int(-5), Value::Uint(1 << 53)];
        let name = sink.text(b"n");
        let args = values.map(|value| DebugAnnotation::new(name, value));
        let entry = TrackEvent::new(&b"event"[..]).args(&args);
        sink.instant(Timestamp::default(), track, &entry).unwrap();
        let largest = 1_u64 << 53;
        let expected = format!(r#""n":"{ticks}","n":"-{ticks}","n":-5,"n":{largest}"#);
        assert!(sink.out.contains(&expected), "{}", sink.out);
    }

    /// A trace has a name once, and each goroutine has a track and a slice with it.
    #[test]
    fn long_names_of_many_tracks_are_cut() {
        const GOROUTINES: i64 = 256;
        let mut tables = Tables::new();
        let name = tables.text("x".repeat(1 << 20).as_bytes());
        let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
        let mut sink = ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
        let mut source = TimelineSource::default();
        for number in 1..=GOROUTINES {
            let goroutine = Entity::new(EntityKind::Goroutine, number).child_of(process);
            let entity = tables.entity(goroutine.name(name)).unwrap();
            let (state, on, reason, stack) = (State::Waiting, None, ModelText::EMPTY, None);
            let state = EventKind::State { entity, state, on, reason, stack };
            for kind in [EventKind::Start { entity }, state] {
                let event = Event { time: Timestamp::from_nanos(number), kind };
                source.push(&event, &tables, &mut sink).unwrap();
            }
        }
        source.finish(&tables, &mut sink).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(sink.into_inner()).unwrap();
        assert!(text.len() < 1 << 20, "{} bytes", text.len());
        let lane = format!("{}… / #{GOROUTINES}\"", "x".repeat(cut::NAME));
        assert_eq!(text.matches(&lane).count(), 1);
        let slice = format!("\"G{GOROUTINES} {}…\"", "x".repeat(cut::NAME));
        assert_eq!(text.matches(&slice).count(), 1);
    }

    #[test]
    fn flows_of_tasks_that_have_ended_are_forgotten() {
        let mut tables = Tables::new();
        let mut sink = ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
        let mut source = TimelineSource::default();
        let (name, kind) = (tables.text(b"request"), SpanKind::Task);
        let (by, of, stack) = (None, None, None);
        for number in 0..3 {
            let entity = tables.entity(Entity::new(EntityKind::Task, number)).unwrap();
            let span = tables.new_span();
            let begin = EventKind::Begin { span, entity, kind, name, by, of, stack };
            let mut push = |sink: &mut ChromeSink<_>, kind| {
                let event = Event { time: Timestamp::from_nanos(number), kind };
                source.push(&event, &tables, sink).unwrap();
            };
            push(&mut sink, begin);
            assert_eq!(sink.flows.len(), 1);
            push(&mut sink, EventKind::Finish { span, by, is_cut: false });
            push(&mut sink, EventKind::End { entity });
            assert_eq!(sink.flows.len(), 0);
        }
    }
}
