//! CPU samples with their stacks.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use trace_common::{Timestamp, folded_name};

use crate::manifest::Provider;
use crate::method_map::{Frame, MethodMap};
use crate::stack_table::StackTable;
use crate::weight::{LastSamples, Taken, usual};
use crate::{Event, Result};

/// The code that a sampled thread was executing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SampleKind {
    /// Managed code.
    Managed,
    /// Native code or the kernel, running or waiting. The runtime cannot distinguish the two.
    External,
    /// The runtime could not determine it.
    Error,
    /// A CPU sample of version 6, taken by the kernel: the thread was running.
    Running,
}

/// One sample of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// Its time.
    pub time: Timestamp,
    /// The operating system's id of the process.
    pub pid: u64,
    /// The operating system's id of the thread.
    pub tid: u64,
    /// The kind of code.
    pub kind: SampleKind,
    /// Its stack: see [`Profile::stack`].
    pub stack: u32,
    /// The time that it represents, if it says so.
    pub(crate) weight: Option<Duration>,
}

impl Sample {
    /// The sample of an event, with its stack. `methods` takes the events that describe methods.
    #[inline]
    pub(crate) fn of(
        event: &Event<'_>,
        methods: &mut MethodMap,
        stacks: &mut StackTable,
    ) -> Option<Self> {
        if methods.push(event) {
            return None;
        }
        let kind = match event.known() {
            Some(Provider::SampleProfiler) => match event.field_at(0).and_then(|v| v.as_u64()) {
                Some(2) => SampleKind::Managed,
                Some(1) => SampleKind::External,
                _ => SampleKind::Error,
            },
            Some(Provider::UniversalEvents) if event.name() == "cpu" => SampleKind::Running,
            _ => return None,
        };
        let stack = stacks.intern(event);
        let weight = (kind == SampleKind::Running).then(|| cpu_time(event));
        let (time, pid, tid) = (event.time(), event.pid(), event.tid());
        Some(Self { time, pid, tid, kind, stack, weight })
    }
}

/// The time that a CPU sample of version 6 represents.
fn cpu_time(event: &Event<'_>) -> Duration {
    const MILLISECOND: u64 = 1_000_000;
    let periods = event.field_at(0).and_then(|value| value.as_u64()).unwrap_or(1);
    let period = match event.trace().map_or(0, |trace| trace.expected_cpu_sampling_rate) {
        0 => MILLISECOND,
        nanos => nanos.into(),
    };
    // No longer than the clock.
    Duration::from_nanos(periods.saturating_mul(period).min(i64::MAX as u64))
}

/// The CPU samples of a stream, their deduplicated stacks, and the methods to resolve them.
///
/// It has each sample. [`ProfileSums`](crate::ProfileSums) adds them up, for streams of any length.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut reader = nettrace::Reader::new(std::fs::File::open("app.nettrace")?);
/// let profile = nettrace::Profile::read(&mut reader)?;
/// for sample in profile.samples() {
///     for frame in profile.frames(sample) {
///         println!("{frame}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Profile {
    methods: MethodMap,
    samples: Vec<Sample>,
    stacks: StackTable,
}

impl Profile {
    /// Creates an empty profile.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a whole stream.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Reader::next_item`]: the first error ends the reading.
    pub fn read<R: std::io::Read>(reader: &mut crate::Reader<R>) -> Result<Self> {
        let mut profile = Self::new();
        reader.for_each(|event| profile.push(&event))?;
        Ok(profile)
    }

    /// Processes an event: samples, and the events that resolve them.
    #[inline]
    pub fn push(&mut self, event: &Event<'_>) {
        self.samples.extend(Sample::of(event, &mut self.methods, &mut self.stacks));
    }

    /// The samples, in the order in which they came.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The time that each sample represents.
    ///
    /// For [`SampleKind::Running`] it is the field `Value`, a number of sampling periods: the thread
    /// has no samples while it is not running. The period is [`Trace::expected_cpu_sampling_rate`](crate::Trace::expected_cpu_sampling_rate) in
    /// nanoseconds, or 1 ms if the stream has none.
    ///
    /// For the other kinds it is the time since the previous sample of the same thread. If that exceeds four usual intervals, the thread was new or suspended and did not execute
    /// the stack all that time, so the excess is left out.
    pub fn weights(&self) -> Vec<Duration> {
        let mut last = LastSamples::default();
        let taken: Vec<Taken> = self.samples.iter().map(|sample| last.taken(0, sample)).collect();
        let usual = usual(&taken);
        taken.into_iter().map(|taken| taken.weight(usual)).collect()
    }

    /// The known methods and modules.
    pub fn methods(&self) -> &MethodMap {
        &self.methods
    }

    /// The instruction pointers of a stack, innermost first.
    pub fn stack(&self, stack: u32) -> &[u64] {
        self.stacks.get(stack)
    }

    /// A period of time around that of a sample, in which samples of its process with its stack
    /// have the same [`frames`](Self::frames): see [`MethodMap::period`].
    pub fn period(&self, sample: &Sample) -> RangeInclusive<Timestamp> {
        let calls = self.stacks.calls(sample.stack).map(|(_, call)| call);
        self.methods.period(sample.pid, calls, sample.time)
    }

    /// The frames of a sample, innermost first.
    pub fn frames(&self, sample: &Sample) -> impl ExactSizeIterator<Item = Frame<'_>> + '_ {
        self.stacks.frames(&self.methods, sample.pid, sample.time, sample.stack)
    }

    /// Total number of frames of all samples, and the number that resolve to a method.
    pub fn resolved(&self) -> (u64, u64) {
        let mut all = 0;
        let mut resolved = 0;
        for sample in &self.samples {
            for frame in self.frames(sample) {
                all += 1;
                resolved += u64::from(frame.method.is_some());
            }
        }
        (all, resolved)
    }

    /// Stacks in the folded format of flame graph tools: outermost frame first, `;` between frames,
    /// then the number of samples. One sorted line per stack. The separators of the format and control
    /// characters in names are replaced: see [`trace_common::folded_name`].
    pub fn folded(&self, keep: impl Fn(&Sample) -> bool) -> String {
        let mut counts: std::collections::BTreeMap<String, u64> = Default::default();
        for sample in self.samples.iter().filter(|s| keep(s)) {
            let mut line = String::new();
            let mut frames: Vec<_> = self.frames(sample).collect();
            frames.reverse();
            for (i, frame) in frames.iter().enumerate() {
                let name = folded_name(&frame.to_string());
                let _ = write!(line, "{}{name}", if i == 0 { "" } else { ";" });
            }
            *counts.entry(line).or_default() += 1;
        }
        counts.into_iter().fold(String::new(), |mut out, (line, count)| {
            let _ = writeln!(out, "{line} {count}");
            out
        })
    }
}
