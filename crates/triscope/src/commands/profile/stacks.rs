//! Stacks that are counted while they are sampled: memory depends on distinct stacks only.

use super::capture::Consumer;
use super::wakers::Wakers;
use crate::failure::{Failure, Result};
use crate::io::profile_file::{FirefoxFile, ProfileFile};
use crate::sources::goroutines::Goroutines;
use crate::sources::live::{LiveSamples, pid};
use crate::sources::profile::report_dropped;
use crate::sources::runtimes::Runtimes;
use crate::sources::symbols::{self, managed::Managed};
use crate::timeline::notes;
use perf_data::RecordWriter;
use perf_monitor::{ClockDomain, ProcessInfo, RawRecord, RingSet, Timestamp};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;
use trace_export::profile::{FirefoxProfile, Label, Samples};
use trace_symbols::Debuginfod;
use trace_timeline::{Attribute, EntityId, Event, EventKind, StackId, TableLimits, Tables, TextId};

/// How many times the frames of the samples have room when they are named: inlined functions are frames,
/// and a wait with its waker has several stacks.
const NAMED: usize = 4;

/// The file that the stacks go to.
pub(super) enum Output {
    Profile(ProfileFile),
    Firefox(FirefoxFile),
}

/// The samples so far.
enum Collected {
    /// Counted by stack.
    Profile(ProfileFile, Samples),
    /// With their times.
    Firefox(FirefoxFile, Box<FirefoxProfile>),
}

pub(super) struct Stacks {
    samples: LiveSamples,
    counted: Counted,
    /// Readings of the monotonic and of the wall clock.
    clocks: Option<(Timestamp, Timestamp)>,
    /// The start of the profile by the wall clock, and its duration, in nanoseconds.
    span: Option<(u64, u64)>,
}

/// The samples, counted.
struct Counted {
    collected: Collected,
    /// Number of samples of each stack, as it is before its functions are named.
    stacks: HashMap<StackId, u64>,
    /// Processes with samples.
    described: HashSet<EntityId>,
    wakers: Option<Wakers>,
}

impl Stacks {
    /// Takes samples. If `is_wall` is set, those on and off the CPU are one profile; if `has_wakers` is,
    /// waits have their waker. `interval` is the time between two samples, if they are taken by it.
    pub(super) fn new(
        mut samples: LiveSamples,
        output: Output,
        is_wall: bool,
        has_wakers: bool,
        interval: Option<Duration>,
    ) -> Self {
        let tables = &mut samples.tables;
        let wakers = has_wakers.then(|| Wakers::new(tables));
        let clocks = clocks();
        let clock = clocks.map(|(time, reading)| {
            let domain = ClockDomain::Realtime;
            Event { time, kind: EventKind::Clock { time, domain, reading } }
        });
        let collected = match output {
            Output::Profile(file) => {
                let mut samples =
                    if is_wall { Samples::wall_clock(tables) } else { Samples::new() };
                if file.has_order() {
                    samples.keep_order();
                }
                clock.iter().for_each(|event| samples.push(event, tables));
                Collected::Profile(file, samples)
            }
            Output::Firefox(file) => {
                let mut profile = FirefoxProfile::new();
                if let Some(interval) = interval {
                    profile.set_interval(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX));
                }
                clock.iter().for_each(|event| profile.push(event, tables));
                Collected::Firefox(file, Box::new(profile))
            }
        };
        Self {
            samples,
            counted: Counted {
                collected,
                stacks: HashMap::new(),
                described: HashSet::new(),
                wakers,
            },
            clocks,
            span: None,
        }
    }

    /// Sets the begin and the end of the time that was captured, by the monotonic clock. The first and the
    /// last sample can be far from them.
    pub(super) fn covers(&mut self, span: Option<(Timestamp, Timestamp)>) {
        self.span = span.zip(self.clocks).map(|((begin, end), (time, reading))| {
            let start = reading.nanos().saturating_add(begin.nanos_since(time));
            (u64::try_from(start).unwrap_or(0), end.nanos_since(begin).unsigned_abs())
        });
    }

    /// What is missing or incomplete.
    pub(super) fn notes(&self) -> String {
        let stats = self.samples.source.stats();
        let dropped = self.samples.tables.dropped();
        let text = notes(&[
            (
                stats.truncated,
                "stack truncated (kernel.perf_event_max_stack)",
                "stacks truncated (kernel.perf_event_max_stack)",
            ),
            (stats.cut, "stack unwound incompletely", "stacks unwound incompletely"),
            (
                stats.deferred,
                "stack whose deferred user frames did not come",
                "stacks whose deferred user frames did not come",
            ),
            (
                stats.dropped_mappings,
                "mapping too many: its frames have no file",
                "mappings too many: their frames have no file",
            ),
            (
                stats.unfinished,
                "wait of unknown duration left out",
                "waits of unknown duration left out",
            ),
            (stats.undecodable, "undecodable sample", "undecodable samples"),
            (
                dropped.stacks,
                "sample without its stack: there are too many",
                "samples without their stacks: there are too many",
            ),
            (dropped.entities, "thread too many", "threads too many"),
            (
                dropped.texts,
                "name shown as ?: there are too many",
                "names shown as ?: there are too many",
            ),
            (
                dropped.mappings,
                "frame without its module: there are too many",
                "frames without their modules: there are too many",
            ),
        ]);
        let goroutines = self.samples.goroutines().map(Goroutines::notes);
        let wakers = self.counted.wakers.as_ref().map(Wakers::notes);
        text + &goroutines.unwrap_or_default() + &wakers.unwrap_or_default()
    }

    /// Names the functions, and writes the profile.
    ///
    /// With `fold_stubs`, frames of runtime stubs are left out. `servers` are asked for debug information.
    pub(super) fn write(
        self,
        title: &str,
        remark: &str,
        runtimes: Option<Runtimes>,
        fold_stubs: bool,
        servers: Option<Debuginfod>,
    ) -> Result {
        let Self { samples: live, counted, span, .. } = self;
        let Counted { collected, stacks, wakers, .. } = counted;
        let LiveSamples { mut source, mut tables, .. } = live;
        let mut symbols = symbols::Files::live(servers);
        if let Some(runtimes) = runtimes {
            symbols = symbols.with_methods(runtimes.finish(&source));
        }
        // Functions are named in stacks of their own, with inlined ones.
        let mut limits = TableLimits::default();
        limits.frames *= NAMED;
        tables.set_limits(limits);
        let recorded = tables.dropped();
        let stub = tables.text(Managed::STUB.as_bytes());
        let mut name = |stack, tables: &mut Tables| {
            symbols.set_samples(stacks.get(&stack).copied().unwrap_or(1));
            let named = source.name(stack, &mut symbols, tables)?;
            if !fold_stubs {
                return Some(named);
            }
            let frames = tables.frames(named).iter().filter(|frame| frame.function != stub);
            let frames: Vec<_> = frames.copied().collect();
            tables.stack(&frames)
        };
        let mut name = |stack, tables: &mut Tables| match &wakers {
            Some(wakers) => wakers.named(stack, tables, &mut name),
            None => name(stack, tables),
        };
        let nothing = || Failure::new(format_args!("no samples{remark}"));
        let written = match collected {
            Collected::Profile(file, samples) => {
                let mut profiles = samples.into_profiles(&tables).into_iter();
                let (_, mut profile) = profiles.next().ok_or_else(nothing)?;
                profile.map_stacks(|stack| name(stack, &mut tables));
                if let Some((start, duration)) = span {
                    profile.set_span(start, duration);
                }
                file.write(&profile, &tables, title, remark)
            }
            Collected::Firefox(_, profile) if profile.count() == 0 => Err(nothing()),
            Collected::Firefox(file, mut profile) => {
                profile.map_stacks(|stack| name(stack, &mut tables));
                file.write(*profile, &tables, title, remark)
            }
        };
        symbols.print_problems();
        // What was missing before is in the remark.
        report_dropped("names of functions", tables.dropped().since(recorded));
        written
    }
}

impl Counted {
    fn count(&mut self, event: Event, labels: &[(TextId, Label)], tables: &mut Tables) {
        let mut event = event;
        if let EventKind::Sample { entity, stack, .. } = event.kind {
            if let Some(stack) = stack {
                *self.stacks.entry(stack).or_default() += 1;
            }
            if let Some(process) = tables.entities.process_of(entity) {
                if self.described.insert(process) {
                    describe(process, tables);
                }
            }
        }
        let labels = match &mut self.wakers {
            None => Cow::Borrowed(labels),
            Some(wakers) => {
                let waker = wakers.apply(&mut event, tables);
                // Nothing else is derived from wake-ups.
                if !matches!(event.kind, EventKind::Sample { .. }) {
                    return;
                }
                Cow::Owned([labels, waker].concat())
            }
        };
        match &mut self.collected {
            Collected::Profile(_, samples) => samples.push_with(&event, &labels, tables),
            Collected::Firefox(_, profile) => profile.push(&event, tables),
        }
    }
}

/// Readings of the monotonic and of the wall clock.
fn clocks() -> Option<(Timestamp, Timestamp)> {
    let now = perf_monitor::now;
    now(ClockDomain::Monotonic).zip(now(ClockDomain::Realtime))
}

/// Adds the cgroup and the container of a process, if it still runs.
fn describe(process: EntityId, tables: &mut Tables) {
    let Some(info) = pid(process, tables).and_then(ProcessInfo::read) else { return };
    let container = info.container().filter(|container| container.kind.is_container());
    let container = container.map(|container| container.id);
    for (attribute, text) in
        [(Attribute::Cgroup, info.cgroup.as_deref()), (Attribute::Container, container.as_deref())]
    {
        let text = tables.text(text.unwrap_or_default().as_bytes());
        tables.entities.describe(process, attribute, text);
    }
}

impl RecordWriter for Stacks {
    fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
        let Self { samples, counted, .. } = self;
        samples.push(record, &mut |event, labels, tables| counted.count(event, labels, tables));
        Ok(())
    }

    fn finish_round(&mut self) -> perf_data::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

impl Consumer for Stacks {
    // An address of the kernel that is in no module is one of its text.
    const NEEDS_KERNEL_TEXT: bool = false;

    fn round(&mut self, set: &mut RingSet) -> Result<u64> {
        let Self { samples, counted, .. } = self;
        samples.round(set, &mut |event, labels, tables| counted.count(event, labels, tables))?;
        Ok(0)
    }

    fn rest(&mut self, set: &mut RingSet) -> Result {
        let Self { samples, counted, .. } = self;
        samples.rest(set, &mut |event, labels, tables| counted.count(event, labels, tables))?;
        if let Some(wakers) = &mut counted.wakers {
            wakers.end();
        }
        samples.finish(&mut |event, labels, tables| counted.count(event, labels, tables));
        Ok(())
    }

    fn takes_ids(&self) -> bool {
        true
    }

    fn add_ids(&mut self, ids: Vec<Vec<u64>>) -> Result {
        self.samples.add_ids(ids)
    }

    fn sampled(&self) -> BTreeSet<u32> {
        let tables = &self.samples.tables;
        self.counted.described.iter().filter_map(|process| pid(*process, tables)).collect()
    }
}
