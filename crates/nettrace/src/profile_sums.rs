//! CPU samples that are added up as they come.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::method_map::{Frame, MethodMap};
use crate::profile::{Sample, SampleKind};
use crate::stack_table::StackTable;
use crate::weight::{LastSamples, Taken, usual};
use crate::{Event, Result, Timestamp};

/// Samples of one thread with the same stack and kind of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleTotal {
    /// The operating system's id of the process.
    pub pid: u64,
    /// The operating system's id of the thread.
    pub tid: u64,
    /// The kind of code.
    pub kind: SampleKind,
    /// The stack: see [`ProfileSums::stack`].
    pub stack: u32,
    /// Samples.
    pub count: u64,
    /// The time that they represent: see [`ProfileSums::totals`].
    pub weight: Duration,
    /// Time of the first one.
    pub first: Timestamp,
    /// Time of the last one.
    pub last: Timestamp,
}

/// Samples with the same key are added up.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    pid: u64,
    tid: u64,
    kind: SampleKind,
    stack: u32,
    /// See [`MethodMap::replaced`].
    replaced: u64,
}

/// The CPU samples of a stream, added up by thread, kind of code and stack, and the methods to resolve them.
///
/// Memory is bounded by the number of different stacks, for each time that code took the place of other code, not by
/// the length of the stream: a [`Profile`](crate::Profile) has each sample.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut reader = nettrace::Reader::new(std::fs::File::open("app.nettrace")?);
/// let sums = nettrace::ProfileSums::read(&mut reader)?;
/// for total in sums.totals() {
///     println!("thread {}: {:?}", total.tid, total.weight);
///     for frame in sums.frames(&total) {
///         println!("    {frame}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct ProfileSums {
    methods: MethodMap,
    stacks: StackTable,
    index: HashMap<Key, u32>,
    /// Without the weights of `taken`.
    sums: Vec<SampleTotal>,
    last: LastSamples,
    /// Samples whose weight was not added yet, or all if the order is kept.
    taken: Vec<Taken>,
    /// Number of intervals in `taken`.
    intervals: usize,
    /// The usual interval in nanoseconds, once enough are known.
    usual: Option<u64>,
    keeps_order: bool,
}

/// Number of intervals that give the usual one.
const ENOUGH: usize = 1 << 16;

impl ProfileSums {
    /// Creates sums without samples.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates sums without samples that also keep the order of the samples, 16 bytes each: see
    /// [`ProfileSums::in_order`].
    pub fn with_order() -> Self {
        Self { keeps_order: true, ..Self::default() }
    }

    /// Reads a whole stream.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Reader::next_item`]: the first error ends the reading.
    pub fn read<R: std::io::Read>(reader: &mut crate::Reader<R>) -> Result<Self> {
        let mut sums = Self::new();
        reader.for_each(|event| sums.push(&event))?;
        Ok(sums)
    }

    /// Processes an event: samples, and the events that resolve them.
    #[inline]
    pub fn push(&mut self, event: &Event<'_>) {
        if let Some(sample) = Sample::of(event, &mut self.methods, &mut self.stacks) {
            self.add(&sample);
        }
    }

    fn add(&mut self, sample: &Sample) {
        let sum = self.count(sample);
        let taken = self.last.taken(sum, sample);
        if self.keeps_order || (self.usual.is_none() && !taken.is_declared()) {
            self.taken.push(taken);
        } else {
            add_weight(&mut self.sums, taken, self.usual.unwrap_or_default());
        }
        self.intervals += usize::from(taken.is_interval());
        if self.intervals >= ENOUGH && self.usual.is_none() && !self.keeps_order {
            let usual = usual(&self.taken);
            self.taken.iter().for_each(|taken| add_weight(&mut self.sums, *taken, usual));
            self.taken = Vec::new();
            self.usual = Some(usual);
        }
    }

    /// Counts a sample in its sum, whose index is returned.
    fn count(&mut self, sample: &Sample) -> u32 {
        let Sample { time, pid, tid, kind, stack, .. } = *sample;
        let next = self.sums.len() as u32;
        let key = Key { pid, tid, kind, stack, replaced: self.methods.replaced() };
        let index = *self.index.entry(key).or_insert(next);
        if index == next {
            let weight = Duration::ZERO;
            let (first, last) = (time, time);
            self.sums.push(SampleTotal { pid, tid, kind, stack, count: 0, weight, first, last });
        }
        if let Some(sum) = self.sums.get_mut(index as usize) {
            sum.count += 1;
            sum.last = time;
        }
        index
    }

    /// The sums, in the order of their first samples. Samples that have the same stack before and after code
    /// was replaced by other code at its address are in two sums.
    ///
    /// The weights of the samples are those of [`Profile::weights`](crate::Profile::weights). In a stream with
    /// more than 65 536 intervals between samples, the usual interval is that of the first ones.
    pub fn totals(&self) -> Vec<SampleTotal> {
        let mut totals = self.sums.clone();
        let usual = usual(&self.taken);
        self.taken.iter().for_each(|taken| add_weight(&mut totals, *taken, usual));
        totals
    }

    /// The samples in the order in which they came, each as its index in [`totals`](Self::totals) and its
    /// weight. None without [`ProfileSums::with_order`].
    pub fn in_order(&self) -> impl Iterator<Item = (usize, Duration)> + '_ {
        let taken: &[Taken] = if self.keeps_order { &self.taken } else { &[] };
        let usual = usual(taken);
        taken.iter().map(move |taken| (taken.of as usize, taken.weight(usual)))
    }

    /// The known methods and modules.
    pub fn methods(&self) -> &MethodMap {
        &self.methods
    }

    /// The instruction pointers of a stack, innermost first.
    pub fn stack(&self, stack: u32) -> &[u64] {
        self.stacks.get(stack)
    }

    /// A period of time around the first sample of a sum, in which samples of its process with its stack
    /// have the same [`frames`](Self::frames): see [`MethodMap::period`].
    pub fn period(&self, total: &SampleTotal) -> RangeInclusive<Timestamp> {
        let calls = self.stacks.calls(total.stack).map(|(_, call)| call);
        self.methods.period(total.pid, calls, total.first)
    }

    /// The frames of a sum, innermost first.
    pub fn frames(&self, total: &SampleTotal) -> impl ExactSizeIterator<Item = Frame<'_>> + '_ {
        self.stacks.frames(&self.methods, total.pid, total.first, total.stack)
    }
}

fn add_weight(sums: &mut [SampleTotal], taken: Taken, usual: u64) {
    if let Some(sum) = sums.get_mut(taken.of as usize) {
        sum.weight = sum.weight.saturating_add(taken.weight(usual));
    }
}
