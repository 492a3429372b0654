//! The difference of two profiles.

mod flame_graph;

use super::view::{Names, View};
use super::{Measure, Profile, Unit};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use trace_common::folded_name;
use trace_timeline::Tables;

/// The weights before and after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a pair of two")]
pub struct Change {
    /// The weight in the first profile.
    pub before: u64,
    /// The weight in the second profile.
    pub after: u64,
}

impl Change {
    /// The weight after the change without that before it.
    pub const fn difference(self) -> i128 {
        self.after as i128 - self.before as i128
    }

    /// The parts of these totals, from 0 to 1, before and after; 0 of nothing.
    pub fn shares(self, totals: Self) -> (f64, f64) {
        let share = |part, all| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        (share(self.before, totals.before), share(self.after, totals.after))
    }

    fn add(&mut self, side: Side, weight: u64) {
        let sum = match side {
            Side::Before => &mut self.before,
            Side::After => &mut self.after,
        };
        *sum = sum.saturating_add(weight);
    }
}

#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

/// The weights of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionChange<'a> {
    /// Its name; without one, its file and address.
    pub name: &'a str,
    /// The weight of samples in the function itself.
    pub own: Change,
    /// The weight of samples in the function and all that it calls. A sample of a recursive function
    /// counts once.
    pub total: Change,
}

/// The weights of two profiles cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the weights have different units: {before} and {after}")]
#[non_exhaustive]
pub struct UnlikeWeights {
    /// The weight of the first profile.
    pub before: String,
    /// The weight of the second profile.
    pub after: String,
}

/// The difference of two profiles by function and by stack.
///
/// Functions are the same if they have the same name. Files, lines and addresses do not count, so that
/// profiles of two builds of a program can be compared.
///
/// ```
/// use trace_export::profile::{Difference, ReadLimits, read_folded};
/// use trace_timeline::Tables;
///
/// let mut tables = [Tables::new(), Tables::new()];
/// let [before, after] = &mut tables;
/// let old = read_folded(b"main;parse 6\nmain;print 4\n", &ReadLimits::default(), before)?;
/// let new = read_folded(b"main;parse 2\nmain;print 3\n", &ReadLimits::default(), after)?;
/// let difference = Difference::new((&old, before), (&new, after))?;
/// let parse = difference.functions().find(|function| function.name == "parse").unwrap();
/// assert_eq!(parse.own.difference(), -4);
/// assert_eq!(parse.own.shares(difference.totals()), (0.6, 0.4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Difference {
    names: Names,
    /// Node 0 is below all stacks.
    nodes: Vec<Node>,
    /// Own and total weights, by name.
    functions: Vec<(Change, Change)>,
    unit: Unit,
}

/// A frame below others.
#[derive(Debug, Default)]
struct Node {
    /// The weight of stacks that end here.
    own: Change,
    /// The weight of all stacks through it.
    total: Change,
    below: BTreeMap<u32, usize>,
}

impl Difference {
    /// Compares two profiles, with the tables that have their stacks.
    ///
    /// # Errors
    ///
    /// [`UnlikeWeights`] if the weights have different units, or count different events.
    pub fn new(
        before: (&Profile, &Tables),
        after: (&Profile, &Tables),
    ) -> Result<Self, UnlikeWeights> {
        let (old, new) = (before.0.measure(), after.0.measure());
        let counts_others = old.unit == Unit::Occurrences && old.weight != new.weight;
        if old.unit != new.unit || counts_others {
            return Err(UnlikeWeights { before: weight_name(old), after: weight_name(new) });
        }
        let mut difference = Self {
            names: Names::default(),
            nodes: vec![Node::default()],
            functions: Vec::new(),
            unit: old.unit,
        };
        let (mut before, mut after) = (View::new(before.0, before.1), View::new(after.0, after.1));
        before.align(&mut after);
        difference.add(&before, Side::Before);
        difference.add(&after, Side::After);
        Ok(difference)
    }

    /// The weights of all samples.
    pub fn totals(&self) -> Change {
        self.nodes.first().map_or_else(Change::default, |node| node.total)
    }

    /// The unit of the weights.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// The functions, in no particular order.
    pub fn functions(&self) -> impl Iterator<Item = FunctionChange<'_>> {
        let named = self.names.all().zip(&self.functions);
        named.map(|(name, (own, total))| FunctionChange { name, own: *own, total: *total })
    }

    /// Writes lines of stacks, outermost frame first, with the weights before and after: the format of
    /// `difffolded.pl`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_folded(&self, mut out: impl Write) -> io::Result<()> {
        let mut path: Vec<String> = Vec::new();
        // Depth first, without recursion: stacks may be deep.
        let mut todo = vec![(0, None, 0)];
        while let Some((index, name, level)) = todo.pop() {
            let Some(node) = self.nodes.get(index) else { continue };
            path.truncate(level);
            path.extend(name.map(|name| folded_name(self.names.get(name))));
            for (name, below) in node.below.iter().rev() {
                todo.push((*below, Some(*name), path.len()));
            }
            let Change { before, after } = node.own;
            if node.own != Change::default() {
                writeln!(out, "{} {before} {after}", path.join(";"))?;
            }
        }
        Ok(())
    }

    /// Writes a flame graph as SVG: the width of a box is the mean of its shares of both profiles; red
    /// boxes have a larger share after the change, blue ones a smaller one.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_flame_graph(&self, title: &str, mut out: impl Write) -> io::Result<()> {
        flame_graph::write(self, title, &mut out)
    }

    fn add(&mut self, view: &View<'_>, side: Side) {
        let mut names = std::mem::take(&mut self.names);
        names.forget_frames();
        // The number of the last sample that each function was counted for.
        let mut counted: HashMap<u32, usize> = HashMap::new();
        for (number, sample) in view.samples().iter().enumerate() {
            let weight = view.profile.value(sample);
            let path = names.path(sample, view);
            let mut at = 0;
            self.weigh(at, side, weight);
            for name in &path {
                at = self.below(at, *name);
                self.weigh(at, side, weight);
                let (_, total) = self.function(*name);
                if counted.insert(*name, number) != Some(number) {
                    total.add(side, weight);
                }
            }
            if let Some(node) = self.nodes.get_mut(at) {
                node.own.add(side, weight);
            }
            if let Some(name) = path.last() {
                self.function(*name).0.add(side, weight);
            }
        }
        self.names = names;
    }

    fn weigh(&mut self, node: usize, side: Side, weight: u64) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.total.add(side, weight);
        }
    }

    /// The node of a name below another one.
    fn below(&mut self, node: usize, name: u32) -> usize {
        let next = self.nodes.len();
        let known = self.nodes.get_mut(node).map(|node| *node.below.entry(name).or_insert(next));
        if known == Some(next) {
            self.nodes.push(Node::default());
        }
        known.unwrap_or(0)
    }

    #[expect(clippy::indexing_slicing, reason = "the list was extended to the index")]
    fn function(&mut self, name: u32) -> &mut (Change, Change) {
        let index = name as usize;
        if self.functions.len() <= index {
            self.functions.resize(index + 1, Default::default());
        }
        &mut self.functions[index]
    }
}

/// The weight of a profile, for people.
fn weight_name(measure: &Measure) -> String {
    match measure.unit {
        Unit::Count => measure.events.clone().into_owned(),
        Unit::Occurrences => measure.weight.clone().into_owned(),
        unit => unit.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Format, LabelSet, ReadLimits, Samples, read_folded, read_pprof};
    use trace_timeline::{
        Entity, EntityKind, Event, EventKind, Frame, SampleKind, SampledEventId, Timestamp,
    };

    fn folded(text: &[u8]) -> (Profile, Tables) {
        let mut tables = Tables::new();
        let profile = read_folded(text, &ReadLimits::default(), &mut tables).unwrap();
        (profile, tables)
    }

    fn difference(before: &[u8], after: &[u8]) -> Difference {
        let (before, after) = (folded(before), folded(after));
        Difference::new((&before.0, &before.1), (&after.0, &after.1)).unwrap()
    }

    #[test]
    fn recursive_functions_count_once() {
        let difference = difference(b"f;g;f 3\nf 1\n", b"g;f;g;f 5\n");
        let of = |name: &str| difference.functions().find(|function| function.name == name);
        let change = |before, after| Change { before, after };
        let f = of("f").unwrap();
        assert_eq!((f.own, f.total), (change(4, 5), change(4, 5)));
        let g = of("g").unwrap();
        assert_eq!((g.own, g.total), (change(0, 0), change(3, 5)));
        assert_eq!(difference.totals(), change(4, 5));
        assert_eq!(difference.functions().count(), 2);
    }

    #[test]
    fn folded_lines_have_both_weights() {
        let difference = difference(b"a;b 3\na 1\n 2\n", b"a;b 1\nc 7\n");
        let mut out = Vec::new();
        difference.write_folded(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), " 2 0\na 1 0\na;b 3 1\nc 0 7\n");
    }

    #[test]
    fn stacks_of_one_profile_only_have_boxes() {
        let difference = difference(b"gone&;a 1\nsame 1\n", b"new;b 1\nsame 1\n");
        let mut out = Vec::new();
        difference.write_flame_graph("a <b>", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "a &lt;b&gt;",
            "<title>gone&amp; (before 50.00 %, 1; after 0.00 %, 0; -50.00 points)",
            "<title>new (before 0.00 %, 0; after 50.00 %, 1; +50.00 points)",
            "<title>same (before 50.00 %, 1; after 50.00 %, 1; +0.00 points)",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        // The width of one that is in both is twice that of one that is in one of them.
        assert_eq!(text.matches("width=\"600.000\"").count(), 1, "{text}");
        assert_eq!(text.matches("width=\"300.000\"").count(), 4, "{text}");
    }

    /// A sample of `main` of each process.
    fn recorded(names: &[&str]) -> (Profile, Tables) {
        let mut tables = Tables::new();
        let function = tables.text(b"main");
        let stack = tables.stack(&[Frame { function, ..Frame::default() }]);
        let mut samples = Samples::new();
        for (name, pid) in names.iter().zip(1..) {
            let name = tables.text(name.as_bytes());
            let process = Entity::new(EntityKind::Process, pid).name(name);
            let process = tables.entity(process).unwrap();
            let kind = EventKind::Sample {
                entity: process,
                kind: SampleKind::Cpu,
                stack,
                weight: 1,
                thread: None,
                cpu: None,
                event: SampledEventId::NONE,
                of: None,
            };
            samples.push(&Event { time: Timestamp::default(), kind }, &tables);
        }
        (samples.into_profiles(&tables).remove(0).1, tables)
    }

    /// The lines of a difference.
    fn lines(before: &(Profile, Tables), after: &(Profile, Tables)) -> String {
        let difference = Difference::new((&before.0, &before.1), (&after.0, &after.1));
        let mut out = Vec::new();
        difference.unwrap().write_folded(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_recording_is_the_same_in_each_format() {
        for names in [&["shop"][..], &["shop", "make"], &["", "make"], &["main", "make"]] {
            let recorded = recorded(names);
            let written = |format| {
                let mut file = Vec::new();
                recorded.0.write(format, "", &recorded.1, &mut file).unwrap();
                file
            };
            let mut tables = Tables::new();
            let file = written(Format::Pprof);
            let mut file = read_pprof(&file, &ReadLimits::default(), &mut tables).unwrap();
            let pprof = (file.profiles.remove(file.default), tables);
            // A process is one with all of its labels.
            let mut again = Vec::new();
            pprof.0.write(Format::Pprof, "", &pprof.1, &mut again).unwrap();
            assert!(again == written(Format::Pprof), "{names:?}");
            let folded = folded(&written(Format::Folded));
            for other in [&pprof, &folded] {
                for lines in [lines(&recorded, other), lines(other, &recorded)] {
                    assert_eq!(lines.matches(" 1 1\n").count(), names.len(), "{lines}");
                }
            }
        }
    }

    /// Processes are left out if stacks of a file without processes are not below them.
    #[test]
    fn stacks_without_a_process_are_found_in_those_of_several() {
        let two = recorded(&["shop", "make"]);
        assert_eq!(lines(&two, &folded(b"main 3\n")), "main 2 3\n");
        // Stacks of one process are below it, where the file has several.
        let several = folded(b"make;main 2\nshop;main 3\n");
        assert_eq!(lines(&recorded(&["shop"]), &several), "shop;main 1 3\nmake;main 0 2\n");
    }

    /// Processes are outermost frames of both profiles if one of them has several.
    #[test]
    fn stacks_of_one_process_are_found_among_those_of_several() {
        let (one, two) = (recorded(&["shop"]), recorded(&["shop", "make"]));
        let folded = lines;
        assert_eq!(folded(&one, &two), "shop;main 1 1\nmake;main 0 1\n");
        assert_eq!(folded(&two, &one), "shop;main 1 1\nmake;main 1 0\n");
        assert_eq!(folded(&one, &one), "main 1 1\n");
    }

    #[test]
    fn different_units_are_refused() {
        let of = |weight: &'static str, unit| {
            let events = "samples".into();
            let mut profile =
                Profile::new(Measure { events, weight: weight.into(), unit, period: 0 });
            profile.add(None, LabelSet::default(), 1, 1);
            profile
        };
        let tables = Tables::new();
        let compare = |a: &Profile, b: &Profile| {
            let difference = Difference::new((a, &tables), (b, &tables));
            difference.map(|_| ()).map_err(|unlike| unlike.to_string())
        };
        let time = of("cpu", Unit::Nanoseconds);
        let delay = of("delay", Unit::Nanoseconds);
        let cycles = of("cycles", Unit::Occurrences);
        let faults = of("page-faults", Unit::Occurrences);
        assert_eq!(compare(&time, &delay), Ok(()));
        assert_eq!(compare(&cycles, &cycles), Ok(()));
        let different = "the weights have different units:";
        assert_eq!(compare(&time, &cycles), Err(format!("{different} nanoseconds and cycles")));
        assert_eq!(compare(&cycles, &faults), Err(format!("{different} cycles and page-faults")));
    }
}
