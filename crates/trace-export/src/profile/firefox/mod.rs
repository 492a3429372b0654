//! The format of the Firefox Profiler: samples by time, and markers.

mod write;

use super::{Unit, samples};
use crate::pids;
use crate::sampled::SampledEvents;
use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use trace_timeline::{
    EntityId, EntityKind, Event, EventKind, InstantKind, LossKind, SampleKind, SampledEventId,
    SpanId, SpanKind, StackId, Tables, TextId, ThreadState, Timestamp,
};

/// Collects the samples of a timeline with their times, and its spans, for the Firefox Profiler:
/// <https://profiler.firefox.com> opens the file that [`FirefoxProfile::write`] writes.
///
/// Spans (garbage collections, stop-the-world pauses, lock waits, tasks, regions, requests,
/// compilations) and times off the CPU become markers of their thread; those of goroutines and of a
/// process become markers of its main thread. Idle CPUs have a track each.
///
/// A later process with the process id of another one is `7.1`. A Go trace without a process id is the
/// process that the kernel's records have with the same threads, otherwise one with a number above 6 Mi.
///
/// Memory: 24 bytes for each sample and 40 for each marker, up to [`MAX_SAMPLES`](Self::MAX_SAMPLES)
/// and [`MAX_MARKERS`](Self::MAX_MARKERS). Those above are [counted](Self::dropped).
///
/// ```
/// use trace_export::profile::FirefoxProfile;
/// # fn f(events: &[trace_timeline::Event], tables: &trace_timeline::Tables) -> std::io::Result<()> {
/// let mut profile = FirefoxProfile::new();
/// for event in events {
///     profile.push(event, tables);
/// }
/// profile.write("shop", tables, &mut std::fs::File::create("shop.json.gz")?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct FirefoxProfile {
    threads: BTreeMap<Key, Thread>,
    /// The sampled events with the number of their samples.
    series: Vec<Series>,
    /// Their positions.
    positions: HashMap<(SampleKind, SampledEventId), u16>,
    events: SampledEvents,
    open: HashMap<SpanId, Open>,
    /// Threads that left the CPU, by records of the scheduler.
    away: HashMap<EntityId, Away>,
    /// The last record of each CPU before one whose switches the kernel did not report.
    gaps: HashMap<EntityId, i64>,
    start: Option<Timestamp>,
    end: i64,
    /// Nanoseconds since the Unix epoch at `start`.
    epoch: Option<i64>,
    /// Nanoseconds between two samples, if they were given.
    interval: Option<u64>,
    samples: usize,
    markers: usize,
    dropped: FirefoxDropped,
}

/// Samples and markers above the limits of a [`FirefoxProfile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirefoxDropped {
    /// Samples above [`FirefoxProfile::MAX_SAMPLES`].
    pub samples: u64,
    /// Markers above [`FirefoxProfile::MAX_MARKERS`].
    pub markers: u64,
}

/// Samples of one event.
#[derive(Clone, Copy, Debug)]
struct Series {
    kind: SampleKind,
    event: SampledEventId,
    count: u64,
}

/// A thread, or an idle CPU. Process ids are not known before the end, and are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    process: Option<EntityId>,
    /// `None` of the main thread.
    tid: Option<i64>,
}

/// The numbers of a thread in the file.
#[derive(Debug)]
struct Numbers {
    /// The process id. Later processes with the same one are `7.1`, `7.2`, …
    pid: String,
    tid: i64,
    is_main: bool,
}

#[derive(Debug, Default)]
struct Thread {
    /// The entity with its name.
    entity: Option<EntityId>,
    /// The process, or the machine of a CPU.
    process: Option<EntityId>,
    samples: Vec<Taken>,
    markers: Vec<Marker>,
}

/// A sample.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Nanoseconds since the begin.
    at: i64,
    weight: u64,
    stack: Option<StackId>,
    series: u16,
}

/// A span, or an instant if it has no duration.
#[derive(Clone, Copy, Debug)]
struct Marker {
    start: i64,
    end: i64,
    is_instant: bool,
    kind: MarkerKind,
    name: TextId,
    stack: Option<StackId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkerKind {
    OffCpu(ThreadState),
    Span(SpanKind),
    Instant(InstantKind),
}

/// A thread that is on no CPU.
#[derive(Clone, Copy, Debug)]
struct Away {
    since: i64,
    left: ThreadState,
    /// The end and the stack of a sample of this time: it can come before the switch.
    sample: Option<(i64, Option<StackId>)>,
}

/// A span that has not ended.
#[derive(Clone, Copy, Debug)]
struct Open {
    thread: Key,
    marker: Marker,
}

impl FirefoxProfile {
    /// The maximum number of samples: about 100 MB.
    pub const MAX_SAMPLES: usize = 4 << 20;

    /// The maximum number of markers: about 40 MB.
    pub const MAX_MARKERS: usize = 1 << 20;

    /// A profile without samples.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time between two samples of a running thread, in nanoseconds: gaps that are longer are
    /// shown as idle. The default is the median of the thread with most samples.
    pub const fn set_interval(&mut self, nanos: u64) {
        self.interval = Some(nanos);
    }

    /// The number of samples.
    pub const fn count(&self) -> u64 {
        self.samples as u64
    }

    /// Whether there are neither samples nor markers.
    pub const fn is_empty(&self) -> bool {
        self.samples == 0 && self.markers == 0
    }

    /// The number of samples and markers that were left out because there are too many.
    pub const fn dropped(&self) -> FirefoxDropped {
        self.dropped
    }

    /// Adds an event, in time order. Events that are neither samples nor have a duration are left out.
    pub fn push(&mut self, event: &Event, tables: &Tables) {
        let at = event.time;
        match event.kind {
            EventKind::Sample { entity, kind, stack, weight, thread, event, .. } => {
                let at = self.time(at);
                let key = self.thread(thread.unwrap_or(entity), tables);
                let event = self.events.first(event, tables);
                let series = self.series(kind, event);
                if kind == SampleKind::OffCpu {
                    let start = at.saturating_sub_unsigned(weight);
                    self.off_cpu(thread.unwrap_or(entity), key, (start, at), stack);
                }
                if self.samples >= Self::MAX_SAMPLES {
                    self.dropped.samples += 1;
                    return;
                }
                self.samples += 1;
                // A sample of a recorder that counts them can stand for several.
                let is_counted = samples::unit(kind, event, tables) == Unit::Count;
                if let Some(counted) = self.series.get_mut(usize::from(series)) {
                    let count = if is_counted { weight } else { 1 };
                    counted.count = counted.count.saturating_add(count);
                }
                let sample = Taken { at, weight, stack, series };
                self.threads.entry(key).or_default().samples.push(sample);
            }
            EventKind::Switch { cpu, prev, left, next, .. } => {
                let at = self.time(at);
                let gap = self.gaps.remove(&cpu);
                if let Some(prev) = prev {
                    // One that was away has come since the last record of the CPU.
                    self.come(prev, gap.unwrap_or(at), tables);
                    if left != ThreadState::Dead {
                        self.away.insert(prev, Away { since: at, left, sample: None });
                    }
                }
                if let Some(next) = next {
                    self.come(next, at, tables);
                }
            }
            EventKind::Begin { span, entity, kind, name, stack, .. } => {
                let start = self.time(at);
                let thread = self.thread(entity, tables);
                let marker = Marker::span(start, start, MarkerKind::Span(kind));
                // Those that never end are bounded like markers.
                if self.open.len() < Self::MAX_MARKERS {
                    let marker = Marker { name, stack, ..marker };
                    self.open.insert(span, Open { thread, marker });
                } else {
                    self.dropped.markers += 1;
                }
            }
            EventKind::Finish { span, .. } => {
                let end = self.time(at);
                if let Some(Open { thread, marker }) = self.open.remove(&span) {
                    self.mark(thread, Marker { end, ..marker });
                }
            }
            EventKind::Instant { entity, kind, name, stack, .. } => {
                let at = self.time(at);
                let key = self.thread(entity, tables);
                let marker = Marker::span(at, at, MarkerKind::Instant(kind));
                self.mark(key, Marker { is_instant: true, name, stack, ..marker });
            }
            EventKind::Loss {
                kind: LossKind::UnreportedSwitch | LossKind::CpuOffline,
                entity: Some(cpu),
                since,
                ..
            } => {
                let since = self.time(since);
                self.gaps.insert(cpu, since);
            }
            // Any thread may have been on that CPU meanwhile.
            EventKind::Loss { kind: LossKind::SchedulerRecords, since, .. } => {
                let since = self.time(since);
                self.come_all(since, tables);
            }
            // The end of a recording: another one may follow.
            EventKind::End { entity } if tables.entities.kind(entity) == Some(EntityKind::Cpu) => {
                let at = self.time(at);
                self.come_all(at, tables);
            }
            EventKind::End { entity } => _ = self.away.remove(&entity),
            EventKind::Clock { time, domain: trace_timeline::ClockDomain::Realtime, reading } => {
                let start = self.start.unwrap_or(time);
                self.epoch = Some(reading.nanos().saturating_sub(time.nanos_since(start)));
                self.start = Some(start);
            }
            _ => {}
        }
    }

    /// Replaces the stacks: `change` returns another one of the same tables.
    pub fn map_stacks(&mut self, mut change: impl FnMut(StackId) -> Option<StackId>) {
        let mut changed: HashMap<StackId, Option<StackId>> = HashMap::new();
        let mut replace = |stack: &mut Option<StackId>| {
            *stack = stack.and_then(|id| *changed.entry(id).or_insert_with(|| change(id)));
        };
        for thread in self.threads.values_mut() {
            thread.samples.iter_mut().for_each(|sample| replace(&mut sample.stack));
            thread.markers.iter_mut().for_each(|marker| replace(&mut marker.stack));
        }
        self.open.values_mut().for_each(|open| replace(&mut open.marker.stack));
    }

    /// Writes the profile, compressed by gzip. `title` is for people: the name of the program or trace.
    ///
    /// The Firefox Profiler has one weight in a file: the samples of one event, or of all whose weight
    /// is a time. The event with most samples is chosen. Allocations are in a table of their own. Returns
    /// the number of samples that were left out.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(
        mut self,
        title: &str,
        tables: &Tables,
        mut out: impl io::Write,
    ) -> io::Result<u64> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        // The order of the map is not that of the next run.
        open.sort_unstable_by_key(|(span, _)| *span);
        for (_, Open { thread, marker }) in open {
            self.mark(thread, Marker { end: self.end, ..marker });
        }
        let threads = self.numbered(tables);
        write::write(&self, threads, title, tables, &mut out)
    }

    /// The threads in the order of their numbers.
    fn numbered(&mut self, tables: &Tables) -> Vec<(Numbers, Thread)> {
        let mut known: HashMap<EntityId, EntityId> = HashMap::new();
        let mut of_kernel = |id| *known.entry(id).or_insert_with(|| pids::of_kernel(id, tables));
        let mut threads: BTreeMap<(i64, Option<EntityId>, i64), Thread> = BTreeMap::new();
        for (key, mut thread) in std::mem::take(&mut self.threads) {
            // A later record can say which process a thread has.
            let later = || thread.entity.and_then(|entity| tables.entities.process_of(entity));
            let process = key.process.or_else(later).map(&mut of_kernel);
            thread.process = process.or(thread.process);
            let pid = process.map_or(0, |process| i64::from(pids::pid(process, tables)));
            match threads.entry((pid, process, key.tid.unwrap_or(pid))) {
                Entry::Vacant(entry) => _ = entry.insert(thread),
                Entry::Occupied(mut entry) => entry.get_mut().join(thread, tables),
            }
        }
        threads.retain(|_, thread| !thread.samples.is_empty() || !thread.markers.is_empty());
        let mut numbered = Vec::with_capacity(threads.len());
        let (mut last, mut earlier) = (None, 0);
        for ((pid, process, tid), thread) in threads {
            match last.replace((pid, process)) {
                Some((same, other)) if same == pid => earlier += usize::from(other != process),
                _ => earlier = 0,
            }
            let is_main = tid == pid;
            let pid = if earlier == 0 { pid.to_string() } else { format!("{pid}.{earlier}") };
            numbered.push((Numbers { pid, tid, is_main }, thread));
        }
        numbered
    }

    /// A thread is not known to be off the CPU after this time.
    fn come(&mut self, thread: EntityId, at: i64, tables: &Tables) {
        let away = self.away.remove(&thread).filter(|away| away.since < at);
        if let Some(Away { since, left, sample }) = away {
            let key = self.thread(thread, tables);
            let stack = sample.filter(|(end, _)| *end == at).and_then(|(_, stack)| stack);
            self.mark(key, Marker { stack, ..Marker::span(since, at, MarkerKind::OffCpu(left)) });
        }
    }

    /// The sample of a time off the CPU. Switches, if there are any, have a marker for that time.
    fn off_cpu(
        &mut self,
        thread: EntityId,
        key: Key,
        (start, end): (i64, i64),
        stack: Option<StackId>,
    ) {
        if let Some(away) = self.away.get_mut(&thread) {
            away.sample = Some((end, stack));
            return;
        }
        let last = self.threads.get_mut(&key).and_then(|thread| thread.markers.last_mut());
        match last.filter(|last| last.end == end && matches!(last.kind, MarkerKind::OffCpu(_))) {
            Some(marker) => marker.stack = stack,
            None => {
                let kind = MarkerKind::OffCpu(ThreadState::Unknown);
                self.mark(key, Marker { stack, ..Marker::span(start, end, kind) });
            }
        }
    }

    /// The same of all threads.
    fn come_all(&mut self, at: i64, tables: &Tables) {
        let mut away: Vec<EntityId> = self.away.keys().copied().collect();
        // The order of a map is not deterministic.
        away.sort_unstable();
        away.into_iter().for_each(|thread| self.come(thread, at, tables));
    }

    /// Nanoseconds since the begin.
    fn time(&mut self, at: Timestamp) -> i64 {
        let nanos = at.nanos_since(*self.start.get_or_insert(at));
        self.end = self.end.max(nanos);
        nanos
    }

    fn series(&mut self, kind: SampleKind, event: SampledEventId) -> u16 {
        let series = &mut self.series;
        *self.positions.entry((kind, event)).or_insert_with(|| {
            // There are as many as sampled events.
            let position = u16::try_from(series.len()).unwrap_or(u16::MAX);
            series.push(Series { kind, event, count: 0 });
            position
        })
    }

    /// The thread that shows what happened to an entity: itself, or the main thread of its process.
    fn thread(&mut self, entity: EntityId, tables: &Tables) -> Key {
        let entities = &tables.entities;
        let process = entities.process_of(entity);
        let number = |id| entities.get(id).map(|entity| entity.number);
        let tid = match entities.kind(entity) {
            Some(EntityKind::Thread | EntityKind::GoThread | EntityKind::DotnetThread) => {
                number(entity).filter(|tid| process.and_then(number) != Some(*tid))
            }
            // Above all thread ids.
            Some(EntityKind::Cpu) => {
                number(entity).map(|cpu| cpu.saturating_add(pids::UNKNOWN.into()))
            }
            _ => None,
        };
        let key = Key { process, tid };
        let known = self.threads.entry(key).or_default();
        // A CPU is shown with the name of its machine.
        let parent = || entities.get(entity).and_then(|entity| entity.parent);
        known.process = known.process.or(process).or_else(parent);
        known.name_by(entity, tables);
        key
    }

    fn mark(&mut self, thread: Key, marker: Marker) {
        if self.markers >= Self::MAX_MARKERS {
            self.dropped.markers += 1;
            return;
        }
        self.markers += 1;
        self.threads.entry(thread).or_default().markers.push(marker);
    }
}

impl Thread {
    /// The name is that of the kernel's thread, if it is known.
    fn name_by(&mut self, entity: EntityId, tables: &Tables) {
        if self.entity.is_none() || tables.entities.kind(entity) == Some(EntityKind::Thread) {
            self.entity = Some(entity);
        }
    }

    /// Adds what is known of the same thread as another entity.
    fn join(&mut self, other: Self, tables: &Tables) {
        if let Some(entity) = other.entity {
            self.name_by(entity, tables);
        }
        self.samples.extend(other.samples);
        self.samples.sort_by_key(|sample| sample.at);
        self.markers.extend(other.markers);
    }
}

impl Marker {
    const fn span(start: i64, end: i64, kind: MarkerKind) -> Self {
        Self { start, end, is_instant: false, kind, name: TextId::EMPTY, stack: None }
    }
}
