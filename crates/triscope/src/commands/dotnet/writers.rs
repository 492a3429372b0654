//! Profiles in the forms of other tools.

use flate2::Compression;
use flate2::write::GzEncoder;
use nettrace::{Profile, Sample, SampleKind, Trace};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

/// A form of profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Speedscope,
    Pprof,
    Svg,
    Folded,
}

impl Form {
    /// The form that the name of a file asks for.
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

/// Writes samples, with what each stands for in ticks, in a form.
pub(crate) fn write(
    form: Form,
    title: &str,
    trace: &Trace,
    profile: &Profile,
    samples: &[(Sample, i64)],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut frames = Frames::default();
    let stacks: Vec<Vec<u32>> = samples.iter().map(|(s, _)| frames.stack(profile, s)).collect();
    match form {
        Form::Speedscope => speedscope(title, trace, samples, &stacks, &frames, out),
        Form::Pprof => pprof(trace, samples, &stacks, &frames, out),
        Form::Svg => svg(title, trace, samples, &stacks, &frames, out),
        Form::Folded => {
            let mut lines: BTreeMap<String, u64> = BTreeMap::new();
            for stack in &stacks {
                let names: Vec<&str> = stack.iter().map(|f| frames.name(*f)).collect();
                *lines.entry(names.join(";")).or_default() += 1;
            }
            lines.into_iter().try_for_each(|(line, count)| writeln!(out, "{line} {count}"))
        }
    }
}

/// Names of frames, each once.
#[derive(Default)]
struct Frames {
    names: Vec<String>,
    index: HashMap<String, u32>,
    /// Stacks are few and samples many.
    known: HashMap<(u64, u32), Vec<u32>>,
}

impl Frames {
    fn name(&self, frame: u32) -> &str {
        self.names.get(frame as usize).map_or("", String::as_str)
    }

    /// The stack of a sample, outermost frame first.
    fn stack(&mut self, profile: &Profile, sample: &Sample) -> Vec<u32> {
        let key = (sample.process_id, sample.stack);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let mut stack: Vec<u32> = profile
            .frames(sample)
            .map(|frame| {
                let name = frame.to_string();
                let next = self.names.len() as u32;
                *self.index.entry(name).or_insert_with_key(|name| {
                    self.names.push(name.clone());
                    next
                })
            })
            .collect();
        stack.reverse();
        self.known.insert(key, stack.clone());
        stack
    }
}

fn nanoseconds(trace: &Trace, ticks: i64) -> u64 {
    let nanos = i128::from(ticks) * 1_000_000_000 / i128::from(trace.qpc_frequency.max(1));
    nanos.clamp(0, i128::from(u64::MAX)) as u64
}

/// The format of speedscope.app: one sampled profile per thread.
fn speedscope(
    title: &str,
    trace: &Trace,
    samples: &[(Sample, i64)],
    stacks: &[Vec<u32>],
    frames: &Frames,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut threads: BTreeMap<u64, (Vec<&Vec<u32>>, Vec<u64>)> = BTreeMap::new();
    for ((sample, weight), stack) in samples.iter().zip(stacks) {
        let thread = threads.entry(sample.thread_id).or_default();
        thread.0.push(stack);
        thread.1.push(nanoseconds(trace, *weight));
    }
    let profiles: Vec<_> = threads
        .into_iter()
        .map(|(thread, (samples, weights))| {
            json!({
                "type": "sampled",
                "name": format!("thread {thread}"),
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": weights.iter().sum::<u64>(),
                "samples": samples,
                "weights": weights,
            })
        })
        .collect();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("triscope ", env!("CARGO_PKG_VERSION")),
        "name": title,
        "activeProfileIndex": 0,
        "shared": {
            "frames": frames.names.iter().map(|n| json!({ "name": n })).collect::<Vec<_>>()
        },
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
fn pprof(
    trace: &Trace,
    samples: &[(Sample, i64)],
    stacks: &[Vec<u32>],
    frames: &Frames,
    out: &mut impl Write,
) -> io::Result<()> {
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
    let fixed = ["", "samples", "count", "cpu", "nanoseconds", "thread", "state"];
    let states = ["managed", "external", "error", "running"];
    let state = |kind| match kind {
        SampleKind::Managed => 0,
        SampleKind::External => 1,
        SampleKind::Running => 3,
        _ => 2,
    };
    let first_name = (fixed.len() + states.len()) as u64;
    let mut p = Proto::default();
    for (kind, unit) in [(1, 2), (3, 4)] {
        p.message(SAMPLE_TYPE, |m| {
            m.int(1, kind);
            m.int(2, unit);
        });
    }
    // One entry per stack, thread and state.
    let mut merged: BTreeMap<(&[u32], u64, u64), (u64, u64)> = BTreeMap::new();
    for ((sample, weight), stack) in samples.iter().zip(stacks) {
        let key = (stack.as_slice(), sample.thread_id, state(sample.kind));
        let total = merged.entry(key).or_default();
        total.0 += 1;
        total.1 += nanoseconds(trace, *weight);
    }
    for ((stack, thread, state), (count, time)) in merged {
        p.message(SAMPLE, |m| {
            m.packed(1, stack.iter().rev().map(|f| u64::from(*f) + 1));
            m.packed(2, [count, time]);
            m.message(3, |label| {
                label.int(1, 5);
                label.int(3, thread);
            });
            m.message(3, |label| {
                label.int(1, 6);
                label.int(2, fixed.len() as u64 + state);
            });
        });
    }
    for id in 1..=frames.names.len() as u64 {
        p.message(LOCATION, |m| {
            m.int(1, id);
            m.message(4, |line| line.int(1, id));
        });
    }
    for id in 1..=frames.names.len() as u64 {
        p.message(FUNCTION, |m| {
            m.int(1, id);
            m.int(2, first_name + id - 1);
            m.int(3, first_name + id - 1);
        });
    }
    let strings = fixed.iter().chain(&states).copied();
    for string in strings.chain(frames.names.iter().map(String::as_str)) {
        p.bytes(STRING, string.as_bytes());
    }
    let (first, last) = (samples.first(), samples.last());
    if let (Some((first, _)), Some((last, _))) = (first, last) {
        p.int(TIME, trace.utc(first.timestamp).nanos() as u64);
        p.int(DURATION, nanoseconds(trace, last.timestamp - first.timestamp));
    }
    p.message(PERIOD_TYPE, |m| {
        m.int(1, 3);
        m.int(2, 4);
    });
    p.int(PERIOD, 1_000_000);
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&p.0)?;
    gz.finish().map(drop)
}

/// What a flame graph is made of: a frame below others, with the time of all samples through it.
#[derive(Default)]
struct Node {
    time: u64,
    below: BTreeMap<u32, Node>,
}

/// A flame graph that needs no script: the full name and share of each box is its tooltip.
fn svg(
    title: &str,
    trace: &Trace,
    samples: &[(Sample, i64)],
    stacks: &[Vec<u32>],
    frames: &Frames,
    out: &mut impl Write,
) -> io::Result<()> {
    const WIDTH: f64 = 1_200.0;
    const ROW: usize = 17;
    const MARGIN: usize = 30;
    let mut root = Node::default();
    for ((_, weight), stack) in samples.iter().zip(stacks) {
        let time = nanoseconds(trace, *weight);
        root.time += time;
        let mut node = &mut root;
        for frame in stack {
            node = node.below.entry(*frame).or_default();
            node.time += time;
        }
    }
    let depth = stacks.iter().map(Vec::len).max().unwrap_or(0);
    let height = MARGIN + (depth + 1) * ROW;
    let scale = WIDTH / root.time.max(1) as f64;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf7\"/>\n\
         <text x=\"8\" y=\"19\" font-size=\"14\">{}</text>",
        escape(title)
    )?;
    // Depth first, without recursion: stacks may be deep.
    let mut todo: Vec<(&Node, Option<u32>, f64, usize)> = vec![(&root, None, 0.0, 0)];
    while let Some((node, frame, x, level)) = todo.pop() {
        let width = node.time as f64 * scale;
        // Narrower than a hair: not to be seen, nor is what is above it.
        if width < 0.2 {
            continue;
        }
        let y = height - (level + 1) * ROW;
        let name = frame.map_or("all", |f| frames.name(f));
        let hue = name.bytes().fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into())) % 50;
        let share = node.time as f64 * 100.0 / root.time.max(1) as f64;
        let label: String = name.chars().take(((width - 6.0) / 6.7).max(0.0) as usize).collect();
        writeln!(
            out,
            "<g><title>{} ({:.3} ms, {share:.2} %)</title><rect x=\"{x:.1}\" y=\"{y}\" \
             width=\"{width:.1}\" height=\"{}\" fill=\"hsl({hue},85%,68%)\" stroke=\"#fffdf7\" \
             stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{}\">{}</text></g>",
            escape(name),
            node.time as f64 / 1e6,
            ROW - 1,
            x + 3.0,
            y + 12,
            escape(if label.len() > 2 { &label } else { "" }),
        )?;
        let mut x = x;
        for (frame, below) in &node.below {
            todo.push((below, Some(*frame), x, level + 1));
            x += below.time as f64 * scale;
        }
    }
    writeln!(out, "</svg>")
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
