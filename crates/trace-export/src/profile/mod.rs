//! Profiles: stacks with weights, and the formats of other tools.
//!
//! ```
//! use trace_export::Frame;
//! use trace_export::profile::{Format, Label, Measure, Profile, Unit};
//!
//! let mut profile = Profile::new(Measure {
//!     events: "contentions",
//!     weight: "delay",
//!     unit: Unit::Nanoseconds,
//!     period: 0,
//! });
//! let stack = profile.stack([Frame::new(b"sync.(*Mutex).Lock"), Frame::new(b"main.main")]);
//! let thread = profile.labels(&[("thread", Label::Number(7))]);
//! profile.add(stack, thread, 1, 1_500_000);
//!
//! let mut folded = Vec::new();
//! profile.write(Format::Folded, "example", &mut folded)?;
//! assert_eq!(folded, b"main.main;sync.(*Mutex).Lock 1500000\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod flame_graph;
mod folded;
mod pprof;
mod speedscope;

use crate::intern::Frame;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

/// A format of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JSON of <https://www.speedscope.app>: one profile for each value of the label `thread`.
    Speedscope,
    /// `profile.proto` of pprof, compressed: `go tool pprof` reads it.
    Pprof,
    /// A flame graph as SVG, without scripts.
    FlameGraph,
    /// Lines of stacks with their weights, outermost frame first: the input of flame graph tools.
    Folded,
}

impl Format {
    /// The ends of file names by format.
    pub const ENDINGS: [(&'static str, Self); 4] = [
        (".speedscope.json", Self::Speedscope),
        (".pb.gz", Self::Pprof),
        (".svg", Self::FlameGraph),
        (".folded", Self::Folded),
    ];

    /// The format that the name of a file selects.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let ending = Self::ENDINGS.into_iter().find(|(ending, _)| name.ends_with(ending));
        ending.map(|(_, format)| format)
    }
}

/// The events of a profile and their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct Measure {
    /// The name of the events, plural, e.g. `samples`.
    pub events: &'static str,
    /// The name of the weight, e.g. `cpu`, `delay` or `alloc_space`.
    pub weight: &'static str,
    /// The unit of the weight.
    pub unit: Unit,
    /// The weight between two samples, if events are sampled at regular intervals; otherwise 0.
    pub period: u64,
}

/// The unit of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// Each event counts as one: there is no weight beside the count.
    Count,
}

impl Unit {
    /// The name of the unit in pprof.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "nanoseconds",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }

    fn show(self, weight: u64) -> String {
        match self {
            Self::Nanoseconds => format!("{:.3} ms", weight as f64 / 1e6),
            Self::Bytes => format!("{weight} bytes"),
            Self::Count => weight.to_string(),
        }
    }
}

/// The value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "pprof has these two")]
pub enum Label<'a> {
    /// A text.
    Text(&'a str),
    /// A number.
    Number(i64),
}

/// The identifier of a stack in a [`Profile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProfileStack(u32);

/// The identifier of a set of labels in a [`Profile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSet(u32);

/// Stacks with weights.
///
/// Equal stacks with equal labels are one entry: memory depends on distinct stacks, not on the
/// number of events. Only the order of samples that are taken at regular intervals is kept too, for
/// the time order of speedscope: 16 bytes for each call of [`Profile::add`].
#[derive(Debug)]
pub struct Profile {
    measure: Measure,
    texts: Table<Box<str>>,
    frames: Table<FrameRecord>,
    /// Indexes of frames, innermost first.
    stacks: Table<Box<[u32]>>,
    labels: Table<Box<[(u32, LabelValue)]>>,
    index: HashMap<(ProfileStack, LabelSet), usize>,
    samples: Vec<Sample>,
    /// The index and weight of each sample that was taken at a regular interval.
    order: Vec<(usize, u64)>,
    start: u64,
    duration: u64,
}

/// A frame with the indexes of its texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FrameRecord {
    function: u32,
    file: u32,
    line: u32,
    module: u32,
    pc: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LabelValue {
    Text(u32),
    Number(i64),
}

/// Events with the same stack and labels.
#[derive(Clone, Copy, Debug)]
struct Sample {
    stack: ProfileStack,
    labels: LabelSet,
    count: u64,
    weight: u64,
}

impl Profile {
    /// Makes a profile without events.
    pub fn new(measure: Measure) -> Self {
        let mut profile = Self {
            measure,
            texts: Table::default(),
            frames: Table::default(),
            stacks: Table::default(),
            labels: Table::default(),
            index: HashMap::new(),
            samples: Vec::new(),
            order: Vec::new(),
            start: 0,
            duration: 0,
        };
        profile.texts.index(Box::from("")); // number 0, as in pprof
        profile.labels(&[]);
        profile
    }

    /// Interns a stack, innermost frame first.
    pub fn stack<'a>(&mut self, frames: impl IntoIterator<Item = Frame<'a>>) -> ProfileStack {
        let frames = frames.into_iter().map(|frame| {
            let record = FrameRecord {
                function: self.text(&String::from_utf8_lossy(frame.function)),
                file: self.text(&String::from_utf8_lossy(frame.file)),
                line: frame.line,
                module: self.text(&String::from_utf8_lossy(frame.module)),
                pc: frame.pc,
            };
            self.frames.index(record)
        });
        let frames: Box<[u32]> = frames.collect();
        ProfileStack(self.stacks.index(frames))
    }

    /// Interns a set of labels; the default set is empty.
    pub fn labels(&mut self, labels: &[(&str, Label<'_>)]) -> LabelSet {
        let labels = labels.iter().map(|(key, value)| {
            let value = match value {
                Label::Text(text) => LabelValue::Text(self.text(text)),
                Label::Number(number) => LabelValue::Number(*number),
            };
            (self.text(key), value)
        });
        let labels: Box<[_]> = labels.collect();
        LabelSet(self.labels.index(labels))
    }

    /// Adds `count` events with `weight` in all. The weight is not used if the unit is
    /// [`Unit::Count`].
    pub fn add(&mut self, stack: ProfileStack, labels: LabelSet, count: u64, weight: u64) {
        let next = self.samples.len();
        let index = *self.index.entry((stack, labels)).or_insert(next);
        if index == next {
            self.samples.push(Sample { stack, labels, count: 0, weight: 0 });
        }
        if self.measure.period > 0 {
            self.order.push((index, weight));
        }
        if let Some(sample) = self.samples.get_mut(index) {
            sample.count = sample.count.saturating_add(count);
            sample.weight = sample.weight.saturating_add(weight);
        }
    }

    /// Sets the time that the profile covers: its start in nanoseconds since the Unix epoch (0 if
    /// unknown), and its duration in nanoseconds.
    pub const fn set_span(&mut self, start: u64, duration: u64) {
        self.start = start;
        self.duration = duration;
    }

    /// The events and their weight.
    pub const fn measure(&self) -> Measure {
        self.measure
    }

    /// The number of events.
    pub fn count(&self) -> u64 {
        self.samples.iter().fold(0, |sum, sample| sum.saturating_add(sample.count))
    }

    /// The sum of the weights of all events.
    pub fn weight(&self) -> u64 {
        self.samples.iter().fold(0, |sum, sample| sum.saturating_add(self.value(sample)))
    }

    /// Writes the profile. `title` is for people: the name of the program or trace.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(&self, format: Format, title: &str, out: &mut dyn Write) -> io::Result<()> {
        match format {
            Format::Speedscope => speedscope::write(self, title, out),
            Format::Pprof => pprof::write(self, out),
            Format::FlameGraph => flame_graph::write(self, title, out),
            Format::Folded => folded::write(self, out),
        }
    }

    fn text(&mut self, text: &str) -> u32 {
        match self.texts.index.get(text) {
            Some(index) => *index,
            None => self.texts.index(Box::from(text)),
        }
    }

    fn text_of(&self, text: u32) -> &str {
        self.texts.get(text).map_or("", |text| text)
    }

    /// The weight of a sample in the unit of the measure.
    fn value(&self, sample: &Sample) -> u64 {
        if self.measure.unit == Unit::Count { sample.count } else { sample.weight }
    }

    /// Entries and values, in the order in which they were added if it is known.
    fn in_order(&self) -> impl Iterator<Item = (&Sample, u64)> {
        let entries = self.samples.iter().map(|sample| (sample, self.value(sample)));
        let ordered = self
            .order
            .iter()
            .filter_map(|(index, weight)| self.samples.get(*index).map(|sample| (sample, *weight)));
        let unordered = if self.order.is_empty() { self.samples.len() } else { 0 };
        ordered.chain(entries.take(unordered))
    }

    /// The frames of a stack, innermost first.
    fn frames_of(&self, stack: ProfileStack) -> &[u32] {
        self.stacks.get(stack.0).map_or(&[], |frames| frames)
    }

    fn labels_of(&self, labels: LabelSet) -> &[(u32, LabelValue)] {
        self.labels.get(labels.0).map_or(&[], |labels| labels)
    }

    /// The name of a frame: its function, or its module and address.
    fn name_of(&self, frame: u32) -> Cow<'_, str> {
        let Some(frame) = self.frames.get(frame) else { return Cow::Borrowed("") };
        let function = self.text_of(frame.function);
        if !function.is_empty() || frame.pc == 0 {
            return Cow::Borrowed(function);
        }
        match self.text_of(frame.module) {
            "" => Cow::Owned(format!("{:#x}", frame.pc)),
            module => Cow::Owned(format!("{module}+{:#x}", frame.pc)),
        }
    }
}

/// Values, each stored once and numbered from 0.
#[derive(Debug)]
struct Table<T> {
    values: Vec<T>,
    index: HashMap<T, u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { values: Vec::new(), index: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Table<T> {
    fn index(&mut self, value: T) -> u32 {
        let next = self.values.len() as u32;
        *self.index.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            next
        })
    }

    fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Profile {
        let measure =
            Measure { events: "samples", weight: "cpu", unit: Unit::Nanoseconds, period: 10 };
        let mut profile = Profile::new(measure);
        let frame = |function: &'static [u8], line, pc| Frame {
            function,
            file: b"a.go",
            line,
            pc,
            ..Frame::default()
        };
        let main = profile.stack([frame(b"main", 1, 0x10)]);
        let leaf = profile.stack([frame(b"leaf<\"&>", 2, 0x20), frame(b"main", 1, 0x10)]);
        let unnamed = profile.stack([Frame { module: b"libc.so", pc: 0x30, ..Frame::default() }]);
        let one = profile.labels(&[("thread", Label::Number(1)), ("state", Label::Text("on"))]);
        let two = profile.labels(&[("thread", Label::Number(2))]);
        profile.add(main, one, 1, 10);
        profile.add(leaf, one, 2, 20);
        profile.add(leaf, two, 1, 10);
        profile.add(leaf, one, 1, 10);
        profile.add(unnamed, LabelSet::default(), 1, 10);
        profile
    }

    fn text(format: Format) -> String {
        let mut out = Vec::new();
        example().write(format, "a <title>", &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn equal_stacks_are_one_entry() {
        let profile = example();
        assert_eq!((profile.samples.len(), profile.count(), profile.weight()), (4, 6, 60));
    }

    #[test]
    fn folded_lines_count_regular_samples() {
        assert_eq!(text(Format::Folded), "libc.so+0x30 1\nmain 1\nmain;leaf<\"&> 4\n");
    }

    #[test]
    fn speedscope_has_a_profile_for_each_thread() {
        let text = text(Format::Speedscope);
        assert!(text.contains(r#""name":"leaf<\"&>","file":"a.go","line":2"#), "{text}");
        assert_eq!(text.matches(r#""type":"sampled""#).count(), 3, "{text}");
        assert!(text.contains(r#""name":"thread 1","unit":"nanoseconds""#), "{text}");
        assert!(text.contains(r#""samples":[[0],[0,1],[0,1]],"weights":[10,20,10]"#), "{text}");
    }

    #[test]
    fn flame_graphs_escape_names() {
        let text = text(Format::FlameGraph);
        assert!(text.contains("a &lt;title&gt;: samples by nanoseconds"), "{text}");
        assert!(text.contains("<title>leaf&lt;&quot;&amp;&gt; (0.000 ms, 66.67 %)"), "{text}");
    }

    #[test]
    fn endings_select_formats() {
        assert_eq!(Format::of(Path::new("x/a.pb.gz")), Some(Format::Pprof));
        assert_eq!(Format::of(Path::new("a.json")), None);
    }
}
