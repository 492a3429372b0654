//! Profiles: the samples and stacks of a timeline, in the formats of other tools.
//!
//! Stacks, names and mappings are those of [`Tables`].
//!
//! ```
//! use trace_export::profile::{Format, Label, Measure, Profile, Unit};
//! use trace_timeline::{Frame, Tables};
//!
//! let mut tables = Tables::new();
//! let mut frame = |function: &str| Frame {
//!     function: tables.text(function.as_bytes()),
//!     ..Frame::default()
//! };
//! let frames = ["sync.(*Mutex).Lock", "main.main"].map(&mut frame);
//! let stack = tables.stack(&frames);
//! let thread = tables.text(b"thread");
//!
//! let mut profile = Profile::new(Measure {
//!     events: "contentions".into(),
//!     weight: "delay".into(),
//!     unit: Unit::Nanoseconds,
//!     period: 0,
//! });
//! let labels = profile.labels(&[(thread, Label::Number(7))]);
//! profile.add(stack, labels, 1, 1_500_000);
//!
//! let mut folded = Vec::new();
//! profile.write(Format::Folded, "example", &tables, &mut folded)?;
//! assert_eq!(folded, b"main.main;sync.(*Mutex).Lock 1500000\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod difference;
mod firefox;
mod flame_graph;
mod folded;
mod functions;
mod message;
mod origin;
mod otlp;
mod pprof;
mod read;
mod samples;
mod speedscope;
mod svg;
mod symbols;
mod view;

pub use difference::{Change, Difference, FunctionChange, UnlikeWeights};
pub use firefox::{FirefoxDropped, FirefoxProfile};
pub use functions::FunctionWeight;
pub use read::{Error, PprofFile, ReadLimits, read_folded, read_pprof};
pub use samples::Samples;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use trace_timeline::{EntityId, StackId, Tables, TextId};
use view::View;

/// A format of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JSON of <https://www.speedscope.app>: one profile for each process and value of the label `thread`.
    /// Samples without the label are one.
    Speedscope,
    /// `profile.proto` of pprof, compressed: `go tool pprof` reads it.
    Pprof,
    /// A flame graph as SVG: frames have tooltips and the colour of their kind of code. A script searches
    /// and zooms, where scripts run.
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct Measure {
    /// The name of the events, plural, e.g. `samples`.
    pub events: Cow<'static, str>,
    /// The name of the weight, e.g. `cpu`, `delay`, `alloc_space` or `cycles`.
    pub weight: Cow<'static, str>,
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
    /// Occurrences of what is counted, e.g. CPU cycles.
    Occurrences,
    /// Each event counts as one: there is no weight beside the count.
    Count,
}

impl Unit {
    /// The name of the unit in pprof.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "nanoseconds",
            Self::Bytes => "bytes",
            Self::Occurrences | Self::Count => "count",
        }
    }

    /// A weight with its unit, for people.
    pub fn show(self, weight: u64) -> String {
        match self {
            Self::Nanoseconds => format!("{:.3} ms", weight as f64 / 1e6),
            Self::Bytes => format!("{weight} bytes"),
            Self::Occurrences | Self::Count => weight.to_string(),
        }
    }
}

/// The value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "pprof has these two")]
pub enum Label {
    /// A text.
    Text(TextId),
    /// A number.
    Number(i64),
}

/// The identifier of a set of labels in a [`Profile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSet(u32);

/// Stacks with weights.
///
/// Equal stacks with equal labels are one entry: memory depends on distinct stacks, not on the
/// number of events. The order of samples that are taken at regular intervals, and with
/// [`Profile::keep_order`] of all, is kept too, for the time order of speedscope: 16 bytes for each call
/// of [`Profile::add`].
#[derive(Debug)]
pub struct Profile {
    measure: Measure,
    labels: Vec<Labels>,
    label_sets: HashMap<Labels, LabelSet>,
    index: HashMap<(Option<StackId>, LabelSet), usize>,
    samples: Vec<Sample>,
    /// The index and weight of each sample, if the order is kept.
    order: Vec<(usize, u64)>,
    keeps_order: bool,
    start: u64,
    duration: u64,
    has_modules: bool,
}

/// The labels of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Labels {
    /// The sampled goroutine or thread, and its thread: their names and numbers are labels.
    entities: [Option<EntityId>; 2],
    others: GivenLabels,
}

/// Keys and values.
type GivenLabels = Box<[(TextId, Label)]>;

/// Events with the same stack and labels.
#[derive(Clone, Copy, Debug)]
struct Sample {
    stack: Option<StackId>,
    labels: LabelSet,
    count: u64,
    weight: u64,
}

impl Profile {
    /// Makes a profile without events.
    pub fn new(measure: Measure) -> Self {
        let mut profile = Self {
            keeps_order: measure.period > 0,
            measure,
            labels: Vec::new(),
            label_sets: HashMap::new(),
            index: HashMap::new(),
            samples: Vec::new(),
            order: Vec::new(),
            start: 0,
            duration: 0,
            has_modules: false,
        };
        profile.label_set(Labels::default());
        profile
    }

    /// Keeps the order of the samples that are added from now on, for the time order of speedscope. Those that
    /// were added before are ahead of them, those of a stack and set of labels together.
    pub const fn keep_order(&mut self) {
        self.keeps_order = true;
    }

    /// Shows functions with their module, as .NET tools do: `module!function`.
    pub const fn show_modules(&mut self) {
        self.has_modules = true;
    }

    /// Interns a set of labels; the default set is empty.
    pub fn labels(&mut self, labels: &[(TextId, Label)]) -> LabelSet {
        self.label_set(Labels { entities: [None; 2], others: labels.into() })
    }

    fn label_set(&mut self, labels: Labels) -> LabelSet {
        if let Some(known) = self.label_sets.get(&labels) {
            return *known;
        }
        let id = LabelSet(self.labels.len() as u32);
        self.labels.push(labels.clone());
        self.label_sets.insert(labels, id);
        id
    }

    /// Adds `count` events with `weight` in all; `stack` is of the tables with which the profile is
    /// written. The weight is not used if the unit is [`Unit::Count`].
    pub fn add(&mut self, stack: Option<StackId>, labels: LabelSet, count: u64, weight: u64) {
        if self.keeps_order && self.order.is_empty() {
            // Of those before the order was kept.
            let before = self.samples.iter().map(|sample| self.value(sample)).enumerate();
            self.order = before.collect();
        }
        let index = self.entry(stack, labels);
        if self.keeps_order {
            self.order.push((index, self.value_of(count, weight)));
        }
        self.add_to(index, count, weight);
    }

    /// The index of the entry of these.
    fn entry(&mut self, stack: Option<StackId>, labels: LabelSet) -> usize {
        let next = self.samples.len();
        let index = *self.index.entry((stack, labels)).or_insert(next);
        if index == next {
            self.samples.push(Sample { stack, labels, count: 0, weight: 0 });
        }
        index
    }

    fn add_to(&mut self, index: usize, count: u64, weight: u64) {
        if let Some(sample) = self.samples.get_mut(index) {
            sample.count = sample.count.saturating_add(count);
            sample.weight = sample.weight.saturating_add(weight);
        }
    }

    /// Replaces the stacks: `change` returns another one of the same tables. Events whose stacks become
    /// equal are one entry from then on.
    pub fn map_stacks(&mut self, mut change: impl FnMut(StackId) -> Option<StackId>) {
        let before = std::mem::take(&mut self.samples);
        let order = std::mem::take(&mut self.order);
        self.index.clear();
        let mut changed: HashMap<StackId, Option<StackId>> = HashMap::new();
        let mut moved = Vec::with_capacity(before.len());
        for Sample { stack, labels, count, weight } in before {
            let stack =
                stack.and_then(|stack| *changed.entry(stack).or_insert_with(|| change(stack)));
            let index = self.entry(stack, labels);
            moved.push(index);
            self.add_to(index, count, weight);
        }
        let place = |(index, weight): (usize, u64)| Some((*moved.get(index)?, weight));
        self.order = order.into_iter().filter_map(place).collect();
    }

    /// Sets the time that the profile covers: its start in nanoseconds since the Unix epoch (0 if
    /// unknown), and its duration in nanoseconds.
    pub const fn set_span(&mut self, start: u64, duration: u64) {
        self.start = start;
        self.duration = duration;
    }

    /// The time that the profile covers, as [`Profile::set_span`] has it.
    pub const fn span(&self) -> (u64, u64) {
        (self.start, self.duration)
    }

    /// The events and their weight.
    pub const fn measure(&self) -> &Measure {
        &self.measure
    }

    /// The number of events.
    pub fn count(&self) -> u64 {
        self.samples.iter().fold(0, |sum, sample| sum.saturating_add(sample.count))
    }

    /// The sum of the weights of all events.
    pub fn weight(&self) -> u64 {
        self.samples.iter().fold(0, |sum, sample| sum.saturating_add(self.value(sample)))
    }

    /// Writes the profile. `title` is for people: the name of the program or trace. `tables` have the
    /// stacks and labels.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(
        &self,
        format: Format,
        title: &str,
        tables: &Tables,
        mut out: impl Write,
    ) -> io::Result<()> {
        let view = View::new(self, tables);
        match format {
            Format::Speedscope => speedscope::write(&view, title, &mut out),
            Format::Pprof => pprof::write(&view, &mut out),
            Format::FlameGraph => flame_graph::write(&view, title, &mut out),
            Format::Folded => folded::write(&view, &mut out),
        }
    }

    /// Writes the profile as a request of OTLP, the protocol of OpenTelemetry: an
    /// `ExportProfilesServiceRequest` in protobuf, not compressed. `resource` are the attributes of what
    /// was profiled, e.g. `service.name`.
    ///
    /// Profiles are in alpha there: the format is that of version 1.10 of opentelemetry-proto, and changes.
    /// A profile with weights is two there: of the events, and of the weights.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_otlp(
        &self,
        resource: &[(&str, &str)],
        tables: &Tables,
        mut out: impl Write,
    ) -> io::Result<()> {
        otlp::write(&View::new(self, tables), resource, &mut out)
    }

    /// The weight of a sample in the unit of the measure.
    fn value(&self, sample: &Sample) -> u64 {
        self.value_of(sample.count, sample.weight)
    }

    /// The weight of events in the unit of the measure.
    fn value_of(&self, count: u64, weight: u64) -> u64 {
        if self.measure.unit == Unit::Count { count } else { weight }
    }

    /// The indexes of entries with their values, in the order in which they were added if it is
    /// known.
    fn in_order(&self) -> impl Iterator<Item = (usize, u64)> {
        let entries = self.samples.iter().map(|sample| self.value(sample)).enumerate();
        let unordered = if self.order.is_empty() { self.samples.len() } else { 0 };
        self.order.iter().copied().chain(entries.take(unordered))
    }

    fn labels_of(&self, labels: LabelSet) -> Option<&Labels> {
        self.labels.get(labels.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_common::{ClockDomain, Timestamp};
    use trace_timeline::{Entity, EntityKind, Event, EventKind, Frame, Mapping, MappingId};
    use trace_timeline::{SampleKind, SampledEventId};

    fn example() -> (Profile, Tables) {
        let measure = Measure {
            events: "samples".into(),
            weight: "cpu".into(),
            unit: Unit::Nanoseconds,
            period: 10,
        };
        let mut profile = Profile::new(measure);
        let mut tables = Tables::new();
        let file = tables.text(b"a.go");
        let frame = |tables: &mut Tables, function: &[u8], line, address| Frame {
            function: tables.text(function),
            file,
            line,
            address,
            ..Frame::default()
        };
        let outer = frame(&mut tables, b"main", 1, 0x10);
        let inner = frame(&mut tables, b"leaf<\"&>", 2, 0x20);
        let path = tables.text(b"/lib/libc.so");
        let mapping = tables.add_mapping(Mapping { path, ..Mapping::default() });
        let unnamed = Frame { mapping, address: 0x30, ..Frame::default() };
        let main = tables.stack(&[outer]);
        let leaf = tables.stack(&[inner, outer]);
        let unnamed = tables.stack(&[unnamed]);
        let [thread, state, on] =
            ["thread", "state", "on"].map(|text| tables.text(text.as_bytes()));
        let one = profile.labels(&[(thread, Label::Number(1)), (state, Label::Text(on))]);
        let two = profile.labels(&[(thread, Label::Number(2))]);
        profile.add(main, one, 1, 10);
        profile.add(leaf, one, 2, 20);
        profile.add(leaf, two, 1, 10);
        profile.add(leaf, one, 1, 10);
        profile.add(unnamed, LabelSet::default(), 1, 10);
        (profile, tables)
    }

    fn written((profile, tables): &(Profile, Tables), format: Format) -> String {
        let mut out = Vec::new();
        profile.write(format, "a <title>", tables, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn text(format: Format) -> String {
        written(&example(), format)
    }

    #[test]
    fn equal_stacks_are_one_entry() {
        let (profile, _) = example();
        assert_eq!((profile.samples.len(), profile.count(), profile.weight()), (4, 6, 60));
    }

    #[test]
    fn stacks_that_become_equal_are_one_entry() {
        let (mut profile, mut tables) = example();
        let function = tables.text(b"main");
        let stack = tables.stack(&[Frame { function, ..Frame::default() }]);
        profile.map_stacks(|_| stack);
        assert_eq!((profile.samples.len(), profile.count(), profile.weight()), (3, 6, 60));
        let values: Vec<u64> = profile.in_order().map(|(_, value)| value).collect();
        assert_eq!(values, [10, 20, 10, 10, 10]);
        assert_eq!(written(&(profile, tables), Format::Folded), "main 6\n");
    }

    #[test]
    fn samples_before_the_order_is_kept_are_in_the_file() {
        let (example, tables) = example();
        let mut profile = Profile::new(Measure { period: 0, ..example.measure.clone() });
        let stack = |sample: usize| example.samples[sample].stack;
        profile.add(stack(0), LabelSet::default(), 1, 10);
        profile.add(stack(1), LabelSet::default(), 1, 20);
        profile.add(stack(0), LabelSet::default(), 1, 30);
        profile.keep_order();
        profile.add(stack(1), LabelSet::default(), 1, 40);
        profile.add(stack(0), LabelSet::default(), 1, 50);
        let values: Vec<u64> = profile.in_order().map(|(_, value)| value).collect();
        assert_eq!(values, [40, 20, 40, 50]);
        assert_eq!(values.iter().sum::<u64>(), profile.weight());
        let text = written(&(profile, tables), Format::Speedscope);
        assert!(text.contains(r#""weights":[40,20,40,50]"#), "{text}");
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
    fn speedscope_shows_the_profile_with_most_weight_in_order() {
        let (example, mut tables) = example();
        let mut profile = Profile::new(Measure { period: 0, ..example.measure });
        profile.keep_order();
        let thread = tables.text(b"thread");
        let stack = |tables: &mut Tables, name: &[u8]| {
            let function = tables.text(name);
            tables.stack(&[Frame { function, ..Frame::default() }])
        };
        let [a, b] = [stack(&mut tables, b"a"), stack(&mut tables, b"b")];
        let [one, two] = [1, 2].map(|n| profile.labels(&[(thread, Label::Number(n))]));
        for (stack, labels, weight) in [(a, one, 5), (a, two, 3), (b, two, 4), (a, two, 6)] {
            profile.add(stack, labels, 1, weight);
        }
        let text = written(&(profile, tables), Format::Speedscope);
        assert!(text.contains(r#""activeProfileIndex":1"#), "{text}");
        assert!(text.contains(r#""samples":[[0],[1],[0]],"weights":[3,4,6]"#), "{text}");
    }

    /// As in two containers.
    #[test]
    fn speedscope_keeps_threads_of_two_processes_apart() {
        let (example, mut tables) = example();
        let mut profile = Profile::new(Measure { period: 0, ..example.measure });
        let function = tables.text(b"f");
        let stack = tables.stack(&[Frame { function, ..Frame::default() }]);
        for (pid, name, comm, weight) in [(1, "shop", "main", 5), (2, "bank", "worker", 3)] {
            let [name, comm] = [name, comm].map(|text| tables.text(text.as_bytes()));
            let process = tables.entity(Entity::new(EntityKind::Process, pid).name(name));
            let thread = Entity::new(EntityKind::Thread, 7).name(comm).child_of(process);
            let entities = [tables.entity(thread), None];
            let labels = profile.label_set(Labels { entities, ..Labels::default() });
            profile.add(stack, labels, 1, weight);
        }
        let text = written(&(profile, tables), Format::Speedscope);
        assert_eq!(text.matches(r#""type":"sampled""#).count(), 2, "{text}");
        for (name, weight) in [("main (7) of shop", 5), ("worker (7) of bank", 3)] {
            let profile = format!(
                r#""name":"{name}","unit":"nanoseconds","startValue":0,"endValue":{weight},"#
            );
            assert!(text.contains(&profile), "{text}");
        }
    }

    #[test]
    fn the_program_is_the_executable_of_the_process() {
        let mut tables = Tables::new();
        let [program, library] = [b"/bin/program".as_slice(), b"/lib/libc.so"].map(|path| {
            let path = tables.text(path);
            (path, tables.add_mapping(Mapping { path, ..Mapping::default() }))
        });
        let mut stack = |files: &[Option<MappingId>]| {
            let frame = |(mapping, address)| Frame { mapping, address, ..Frame::default() };
            let frames: Vec<_> = files.iter().copied().zip(1..).map(frame).collect();
            tables.stack(&frames)
        };
        let started = stack(&[library.1, program.1, library.1]);
        let other = stack(&[library.1]);
        let process = tables.entity(Entity::new(EntityKind::Process, 7));
        let entities = [process, None];
        let mut profile = Profile::new(Measure { period: 0, ..example().0.measure });
        let labels = profile.label_set(Labels { entities, ..Labels::default() });
        profile.add(other, labels, 5, 5);
        profile.add(started, labels, 1, 1);
        let of = |profile: &Profile, tables: &Tables| View::new(profile, tables).program();
        assert_eq!(of(&profile, &tables), library.1);
        let executable = trace_timeline::Attribute::Executable;
        tables.entities.describe(process.unwrap(), executable, program.0);
        assert_eq!(of(&profile, &tables), program.1);
    }

    #[test]
    fn flame_graphs_escape_names() {
        let text = text(Format::FlameGraph);
        assert!(text.contains("a &lt;title&gt;: samples by nanoseconds"), "{text}");
        assert!(text.contains("<title>leaf&lt;&quot;&amp;&gt; (0.000 ms, 66.67 %)"), "{text}");
    }

    #[test]
    fn calls_from_several_lines_are_one_frame() {
        let (mut profile, mut tables) = example();
        let function = tables.text(b"main");
        let frame = |line| Frame { function, line, ..Frame::default() };
        for line in [7, 8] {
            let stack = tables.stack(&[frame(line)]);
            profile.add(stack, LabelSet::default(), 1, 10);
        }
        let example = (profile, tables);
        assert!(written(&example, Format::Folded).contains("main 3\n"));
        let graph = written(&example, Format::FlameGraph);
        assert_eq!(graph.matches("<title>main (").count(), 1, "{graph}");
    }

    #[test]
    fn several_processes_are_the_outermost_frames() {
        let (mut profile, mut tables) = example();
        for (pid, name) in [(1, "shop;1"), (2, "")] {
            let name = tables.text(name.as_bytes());
            let process = tables.entity(Entity::new(EntityKind::Process, pid).name(name));
            let thread = tables.entity(Entity::new(EntityKind::Thread, 10 + pid).child_of(process));
            let labels = Labels { entities: [thread, None], ..Labels::default() };
            let labels = profile.label_set(labels);
            profile.add(None, labels, 1, 10);
        }
        let text = written(&(profile, tables), Format::Folded);
        assert!(text.starts_with("libc.so+0x30 1\n"), "{text}");
        assert!(text.contains("\nprocess 2 1\nshop:1 1\n"), "{text}");
    }

    /// As `perf record -a` has them: the idle thread is of no process, and the machine is none.
    #[test]
    fn samples_of_idle_cpus_are_of_no_process() {
        let mut tables = Tables::new();
        let mut add = |kind, number, name: &[u8], parent| {
            let name = tables.text(name);
            tables.entity(Entity::new(kind, number).name(name).child_of(parent)).unwrap()
        };
        let machine = add(EntityKind::Machine, 0, b"host", None);
        let cpu = add(EntityKind::Cpu, 3, b"", Some(machine));
        let threads = [7, 8].map(|pid| {
            let process = add(EntityKind::Process, pid, b"shop", None);
            add(EntityKind::Thread, pid, b"shop", Some(process))
        });
        let function = tables.text(b"f");
        let stack = tables.stack(&[Frame { function, ..Frame::default() }]);
        let of = |entities: &[EntityId]| {
            let mut profile = Profile::new(example().0.measure);
            for entity in entities {
                let entities = [Some(*entity), None];
                let labels = profile.label_set(Labels { entities, ..Labels::default() });
                profile.add(stack, labels, 1, 10);
            }
            profile
        };
        let folded = |profile: &Profile| {
            let mut out = Vec::new();
            profile.write(Format::Folded, "", &tables, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(folded(&of(&[cpu, threads[0]])), "f 2\n");
        let profile = of(&[cpu, threads[0], threads[1]]);
        assert_eq!(folded(&profile), "f 1\nshop;f 2\n");
        let view = View::new(&profile, &tables);
        let labels = view.samples().iter().map(|sample| view.labels(sample.labels).len());
        // Those of a thread: its process, its number and their names.
        assert_eq!(labels.collect::<Vec<_>>(), [0, 4, 4]);
    }

    #[test]
    fn modules_are_shown_on_request() {
        let (mut profile, mut tables) = example();
        let path = tables.text(b"C:\\app\\Shop.dll");
        let mapping = tables.add_mapping(Mapping { path, ..Mapping::default() });
        let function = tables.text(b"Shop.Run()");
        let stack = tables.stack(&[Frame { function, mapping, ..Frame::default() }]);
        profile.add(stack, LabelSet::default(), 1, 10);
        profile.show_modules();
        let text = written(&(profile, tables), Format::Folded);
        assert!(text.contains("Shop!Shop.Run() 1\n"), "{text}");
    }

    /// As those of a recorder that counts the samples with the same stack.
    #[test]
    fn a_sample_can_stand_for_several() {
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
        let mut samples = Samples::new();
        samples.keep_order();
        for weight in [3, 1] {
            let kind = EventKind::Sample {
                entity,
                kind: SampleKind::Cpu,
                stack: None,
                weight,
                thread: None,
                cpu: None,
                event: SampledEventId::NONE,
                of: None,
            };
            samples.push(&Event { time: Timestamp::from_nanos(weight as i64), kind }, &tables);
        }
        let [(name, profile)] = &samples.into_profiles(&tables)[..] else { panic!("no profile") };
        assert_eq!((&**name, profile.count(), profile.weight()), ("cpu", 4, 4));
        let values: Vec<u64> = profile.in_order().map(|(_, value)| value).collect();
        assert_eq!(values, [3, 1]);
    }

    /// As of a Go program that labels its goroutines.
    #[test]
    fn labels_of_a_program_do_not_replace_those_of_what_was_sampled() {
        let mut tables = Tables::new();
        let [shop, worker, order, process, comm] =
            ["shop", "worker", "order", "process", "comm"].map(|text| tables.text(text.as_bytes()));
        let others = [process, comm].map(|key| (key, Label::Text(order))).into();
        let process = tables.entity(Entity::new(EntityKind::Process, 7).name(shop));
        let thread = Entity::new(EntityKind::Thread, 8).name(worker).child_of(process);
        let entities = [tables.entity(thread), None];
        let mut profile = Profile::new(example().0.measure);
        let labels = profile.label_set(Labels { entities, others });
        profile.add(None, labels, 1, 10);

        let mut otlp = Vec::new();
        profile.write_otlp(&[], &tables, &mut otlp).unwrap();
        let has = |text: &[u8]| otlp.windows(text.len()).any(|part| part == text);
        // A key occurs once there.
        assert_eq!([&b"shop"[..], b"worker", b"order"].map(has), [true, true, false]);
        let mut example = (profile, tables);
        let text = written(&example, Format::Speedscope);
        assert!(text.contains(r#""name":"worker (8)""#), "{text}");
        for _ in 0..2 {
            let mut file = Vec::new();
            example.0.write(Format::Pprof, "", &example.1, &mut file).unwrap();
            let mut tables = Tables::new();
            let mut read = read_pprof(&file, &ReadLimits::default(), &mut tables).unwrap();
            let profile = read.profiles.swap_remove(read.default);
            let process = View::new(&profile, &tables).process(&profile.samples[0]).unwrap();
            let process = *tables.entities.get(process).unwrap();
            assert_eq!((&*tables.str(process.name), process.number), ("shop", 7));
            example = (profile, tables);
        }
    }

    /// As in a Go trace, of a thread without a goroutine.
    #[test]
    fn a_sample_has_the_number_of_its_thread_once() {
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::GoThread, 7)).unwrap();
        let (kind, weight, event) = (SampleKind::GoCpu, 1, SampledEventId::NONE);
        let (stack, thread, cpu, of) = (None, Some(entity), None, None);
        let kind = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
        let mut samples = Samples::new();
        samples.push(&Event { time: Timestamp::from_nanos(1), kind }, &tables);
        let [(_, profile)] = &samples.into_profiles(&tables)[..] else { panic!("no profile") };
        let labels = View::new(profile, &tables).labels(profile.samples[0].labels);
        let keys: Vec<_> = labels.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["thread"]);
    }

    #[test]
    fn a_profile_begins_with_the_time_of_its_samples() {
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
        let mut samples = Samples::new();
        let time = Timestamp::from_nanos(10);
        let (domain, reading) = (ClockDomain::Realtime, Timestamp::from_nanos(1_010));
        let clock = EventKind::Clock { time, domain, reading };
        samples.push(&Event { time, kind: clock }, &tables);
        for (kind, at, weight) in [
            (SampleKind::OffCpu, 500, 100),
            (SampleKind::OffCpu, 600, 400),
            (SampleKind::Cpu, 700, 300),
            (SampleKind::Cpu, 710, 300),
        ] {
            let event = SampledEventId::NONE;
            let (stack, thread, cpu, of) = (None, None, None, None);
            let kind = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
            samples.push(&Event { time: Timestamp::from_nanos(at), kind }, &tables);
        }
        let spans: Vec<_> = samples
            .into_profiles(&tables)
            .into_iter()
            .map(|(name, profile)| (name, profile.span()))
            .collect();
        // Weights of the others are no times.
        let expected = [("cpu", (1_700, 10)), ("off-cpu", (1_200, 400))];
        assert_eq!(spans, expected.map(|(name, span)| (name.to_owned(), span)));
    }

    #[test]
    fn a_flame_graph_is_as_high_as_what_is_drawn() {
        let (mut profile, mut tables) = example();
        let function = tables.text(b"deep");
        let deep = tables.stack(&[Frame { function, ..Frame::default() }; 100]);
        profile.add(deep, LabelSet::default(), 1, 1);
        let main = tables.stack(&[Frame { function, ..Frame::default() }]);
        let height = |profile: &Profile| {
            let mut out = Vec::new();
            profile.write(Format::FlameGraph, "", &tables, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let (_, rest) = text.split_once(" height=\"").unwrap();
            rest.split_once('"').unwrap().0.parse::<usize>().unwrap()
        };
        let high = height(&profile);
        profile.add(main, LabelSet::default(), 1_000_000, 1_000_000);
        assert!(high > 1000 && height(&profile) < 200, "{high}, {}", height(&profile));
    }

    #[test]
    fn endings_select_formats() {
        assert_eq!(Format::of(Path::new("x/a.pb.gz")), Some(Format::Pprof));
        assert_eq!(Format::of(Path::new("a.json")), None);
    }
}
