//! Profiles in the formats of other tools.

use flate2::Compression;
use flate2::write::GzEncoder;
use nettrace::{Frame, Trace};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

/// A format of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Speedscope,
    Pprof,
    Svg,
    Folded,
}

impl Form {
    /// The format that a file name selects.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let forms = [
            (".speedscope.json", Self::Speedscope),
            (".pb.gz", Self::Pprof),
            (".svg", Self::Svg),
            (".folded", Self::Folded),
        ];
        forms.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, form)| form)
    }
}

/// The measure of a profile: its events and their weights.
#[derive(Clone, Copy)]
pub(crate) struct Measure {
    /// Name of the events, plural.
    pub(crate) events: &'static str,
    /// Name of the weight, which is its type in pprof.
    pub(crate) weight: &'static str,
    pub(crate) unit: Unit,
    /// Weight of an event that is sampled regularly.
    pub(crate) period: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanoseconds,
    Bytes,
    /// Each event counts as one.
    Count,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "nanoseconds",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }

    /// A weight for people.
    fn show(self, weight: u64) -> String {
        match self {
            Self::Nanoseconds => format!("{:.3} ms", weight as f64 / 1e6),
            Self::Bytes => format!("{weight} bytes"),
            Self::Count => weight.to_string(),
        }
    }
}

/// Stacks with weights.
pub(crate) struct Stacks {
    measure: Measure,
    frames: Frames,
    rows: Vec<Row>,
    /// UTC of the first event, and the time to the last one: nanoseconds.
    start: u64,
    duration: u64,
    frame_count: u64,
    /// Frames that have the name of a method.
    named: u64,
}

/// A stack with names.
#[derive(Default)]
pub(crate) struct Stack {
    /// Outermost frame first.
    frames: Vec<u32>,
    len: u64,
    /// Frames that have the name of a method.
    named: u64,
}

/// Events with the same stack.
struct Row {
    thread: u64,
    /// Where the thread was; empty if that has no meaning.
    state: &'static str,
    /// Outermost frame first.
    stack: Vec<u32>,
    count: u64,
    weight: u64,
}

impl Stacks {
    pub(crate) fn new(measure: Measure) -> Self {
        Self {
            measure,
            frames: Frames::default(),
            rows: Vec::new(),
            start: 0,
            duration: 0,
            frame_count: 0,
            named: 0,
        }
    }

    /// Names the frames of a stack, innermost first, below the type that the events are about,
    /// if it has a name.
    pub(crate) fn resolve<'a>(
        &mut self,
        type_name: &str,
        frames: impl Iterator<Item = Frame<'a>>,
    ) -> Stack {
        let mut stack = Stack::default();
        if !type_name.is_empty() {
            stack.frames.push(self.frames.intern(format!("[{type_name}]")));
        }
        for frame in frames {
            stack.len += 1;
            stack.named += u64::from(frame.method.is_some());
            stack.frames.push(self.frames.intern(frame.to_string()));
        }
        stack.frames.reverse();
        stack
    }

    /// Adds events of a stack.
    pub(crate) fn add(
        &mut self,
        thread: u64,
        state: &'static str,
        stack: &Stack,
        (count, weight): (u64, u64),
    ) {
        self.named += stack.named;
        self.frame_count += stack.len;
        self.rows.push(Row { thread, state, stack: stack.frames.clone(), count, weight });
    }

    /// Sets the times of the first and the last event, in ticks.
    pub(crate) fn set_span(&mut self, trace: &Trace, span: Option<(i64, i64)>) {
        let Some((first, last)) = span else { return };
        let nanos = |time: trace_common::Timestamp| u64::try_from(time.nanos()).unwrap_or(0);
        self.start = nanos(trace.utc(first));
        self.duration = nanos(trace.timestamp(last)).saturating_sub(nanos(trace.timestamp(first)));
    }

    /// Number of events.
    pub(crate) fn count(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }

    /// The share of frames that have the name of a method.
    pub(crate) fn named_share(&self) -> f64 {
        self.named as f64 / self.frame_count.max(1) as f64
    }
}

/// Names of frames, each once.
#[derive(Default)]
struct Frames {
    names: Vec<String>,
    index: HashMap<String, u32>,
}

impl Frames {
    fn name(&self, frame: u32) -> &str {
        self.names.get(frame as usize).map_or("", String::as_str)
    }

    fn intern(&mut self, name: String) -> u32 {
        let next = self.names.len() as u32;
        *self.index.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}

/// Writes stacks in a format.
pub(crate) fn write(
    form: Form,
    title: &str,
    stacks: &Stacks,
    out: &mut impl Write,
) -> io::Result<()> {
    match form {
        Form::Speedscope => speedscope(title, stacks, out),
        Form::Pprof => pprof(stacks, out),
        Form::Svg => svg(title, stacks, out),
        Form::Folded => folded(stacks, out),
    }
}

/// Lines of stacks. Samples are counted; other events have their weight.
fn folded(stacks: &Stacks, out: &mut impl Write) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for row in &stacks.rows {
        let names: Vec<&str> = row.stack.iter().map(|f| stacks.frames.name(*f)).collect();
        let value = if stacks.measure.period > 0 { row.count } else { row.weight };
        *lines.entry(names.join(";")).or_default() += value;
    }
    lines.into_iter().try_for_each(|(line, value)| writeln!(out, "{line} {value}"))
}

/// The format of speedscope.app: one sampled profile per thread.
fn speedscope(title: &str, stacks: &Stacks, out: &mut impl Write) -> io::Result<()> {
    let mut threads: BTreeMap<u64, (Vec<&Vec<u32>>, Vec<u64>)> = BTreeMap::new();
    for row in &stacks.rows {
        let thread = threads.entry(row.thread).or_default();
        thread.0.push(&row.stack);
        thread.1.push(row.weight);
    }
    let unit = match stacks.measure.unit {
        Unit::Count => "none",
        unit => unit.name(),
    };
    let profiles: Vec<_> = threads
        .into_iter()
        .map(|(thread, (samples, weights))| {
            json!({
                "type": "sampled",
                "name": format!("thread {thread}"),
                "unit": unit,
                "startValue": 0,
                "endValue": weights.iter().sum::<u64>(),
                "samples": samples,
                "weights": weights,
            })
        })
        .collect();
    let names = stacks.frames.names.iter();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("triscope ", env!("CARGO_PKG_VERSION")),
        "name": title,
        "activeProfileIndex": 0,
        "shared": { "frames": names.map(|n| json!({ "name": n })).collect::<Vec<_>>() },
        "profiles": profiles,
    });
    serde_json::to_writer(out, &file).map_err(io::Error::from)
}

/// Protobuf, as far as pprof needs it.
#[derive(Default)]
struct Proto(Vec<u8>);

impl Proto {
    fn varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    fn int(&mut self, field: u32, v: u64) {
        if v != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(v);
        }
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut inner = Self::default();
        values.into_iter().for_each(|v| inner.varint(v));
        self.bytes(field, &inner.0);
    }
}

/// The format of `go tool pprof` (profile.proto), compressed.
fn pprof(stacks: &Stacks, out: &mut impl Write) -> io::Result<()> {
    // Fields of profile.proto.
    const SAMPLE_TYPE: u32 = 1;
    const SAMPLE: u32 = 2;
    const LOCATION: u32 = 4;
    const FUNCTION: u32 = 5;
    const STRING: u32 = 6;
    const TIME: u32 = 9;
    const DURATION: u32 = 10;
    const PERIOD_TYPE: u32 = 11;
    const PERIOD: u32 = 12;
    let Measure { events, weight, unit, period } = stacks.measure;
    let mut strings = Strings::default();
    strings.index(""); // the first string is the empty one
    let count_type = (strings.index(events), strings.index("count"));
    let weight_type = (strings.index(weight), strings.index(unit.name()));
    let mut p = Proto::default();
    let mut value_type = |field, (kind, unit): (u64, u64)| {
        p.message(field, |m| {
            m.int(1, kind);
            m.int(2, unit);
        });
    };
    value_type(SAMPLE_TYPE, count_type);
    let has_weight = unit != Unit::Count;
    if has_weight {
        value_type(SAMPLE_TYPE, weight_type);
    }
    if period > 0 {
        value_type(PERIOD_TYPE, weight_type);
    }
    let (thread_key, state_key) = (strings.index("thread"), strings.index("state"));
    // One entry per stack, thread and state.
    let mut merged: BTreeMap<(&[u32], u64, &'static str), (u64, u64)> = BTreeMap::new();
    for row in &stacks.rows {
        let total = merged.entry((&row.stack, row.thread, row.state)).or_default();
        total.0 += row.count;
        total.1 += row.weight;
    }
    for ((stack, thread, state), (count, weight)) in merged {
        p.message(SAMPLE, |m| {
            m.packed(1, stack.iter().rev().map(|f| u64::from(*f) + 1));
            m.packed(2, [count].into_iter().chain(has_weight.then_some(weight)));
            m.message(3, |label| {
                label.int(1, thread_key);
                label.int(3, thread);
            });
            if !state.is_empty() {
                let state = strings.index(state);
                m.message(3, |label| {
                    label.int(1, state_key);
                    label.int(2, state);
                });
            }
        });
    }
    for (id, name) in (1..).zip(&stacks.frames.names) {
        p.message(LOCATION, |m| {
            m.int(1, id);
            m.message(4, |line| line.int(1, id));
        });
        let name = strings.index(name);
        p.message(FUNCTION, |m| {
            m.int(1, id);
            m.int(2, name);
            m.int(3, name);
        });
    }
    for string in &strings.all {
        p.bytes(STRING, string.as_bytes());
    }
    p.int(TIME, stacks.start);
    p.int(DURATION, stacks.duration);
    p.int(PERIOD, period);
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&p.0)?;
    gz.finish().map(drop)
}

/// The table of strings of a pprof profile.
#[derive(Default)]
struct Strings<'a> {
    all: Vec<&'a str>,
    known: HashMap<&'a str, u64>,
}

impl<'a> Strings<'a> {
    fn index(&mut self, text: &'a str) -> u64 {
        let next = self.all.len() as u64;
        *self.known.entry(text).or_insert_with(|| {
            self.all.push(text);
            next
        })
    }
}

/// A node of a flame graph: a frame below others, with the weight of all stacks through it.
#[derive(Default)]
struct Node {
    weight: u64,
    below: BTreeMap<u32, Node>,
}

/// A flame graph without scripts: the tooltip of each box has its full name and share.
fn svg(title: &str, stacks: &Stacks, out: &mut impl Write) -> io::Result<()> {
    const WIDTH: f64 = 1_200.0;
    const ROW: usize = 17;
    const MARGIN: usize = 30;
    let mut root = Node::default();
    for row in &stacks.rows {
        root.weight += row.weight;
        let mut node = &mut root;
        for frame in &row.stack {
            node = node.below.entry(*frame).or_default();
            node.weight += row.weight;
        }
    }
    let depth = stacks.rows.iter().map(|row| row.stack.len()).max().unwrap_or(0);
    let height = MARGIN + (depth + 1) * ROW;
    let scale = WIDTH / root.weight.max(1) as f64;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf7\"/>\n\
         <text x=\"8\" y=\"19\" font-size=\"14\">{}</text>",
        escape(&format!("{title}: {} by {}", stacks.measure.events, stacks.measure.unit.name()))
    )?;
    // Depth first, without recursion: stacks may be deep.
    let mut todo: Vec<(&Node, Option<u32>, f64, usize)> = vec![(&root, None, 0.0, 0)];
    while let Some((node, frame, x, level)) = todo.pop() {
        let width = node.weight as f64 * scale;
        // Too narrow to be visible, like everything above it.
        if width < 0.2 {
            continue;
        }
        let y = height - (level + 1) * ROW;
        let name = frame.map_or("all", |f| stacks.frames.name(f));
        let colour = colour(name);
        let share = node.weight as f64 * 100.0 / root.weight.max(1) as f64;
        let label: String = name.chars().take(((width - 6.0) / 6.7).max(0.0) as usize).collect();
        writeln!(
            out,
            "<g><title>{} ({}, {share:.2} %)</title><rect x=\"{x:.1}\" y=\"{y}\" \
             width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\" stroke=\"#fffdf7\" \
             stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{}\">{}</text></g>",
            escape(name),
            stacks.measure.unit.show(node.weight),
            ROW - 1,
            x + 3.0,
            y + 12,
            escape(if label.len() > 2 { &label } else { "" }),
        )?;
        let mut x = x;
        for (frame, below) in &node.below {
            todo.push((below, Some(*frame), x, level + 1));
            x += below.weight as f64 * scale;
        }
    }
    writeln!(out, "</svg>")
}

/// A warm colour that is the same for the same name in every file.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let (green, blue) = (120 + hash % 90, 60 + hash / 90 % 60);
    format!("#f0{green:02x}{blue:02x}")
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
