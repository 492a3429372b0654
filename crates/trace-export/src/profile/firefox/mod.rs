//! The format of the Firefox Profiler: samples by time, and markers.

mod write;

use std::collections::BTreeMap;
use std::collections::HashMap;
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
/// process become markers of its main thread.
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
    /// By process id and thread id.
    threads: BTreeMap<(i64, i64), Thread>,
    /// The sampled events with the number of their samples.
    series: Vec<Series>,
    open: HashMap<SpanId, Open>,
    /// Threads that left the CPU, by records of the scheduler.
    away: HashMap<EntityId, Away>,
    /// The last record of each CPU before one whose switches the kernel did not report.
    gaps: HashMap<EntityId, i64>,
    begin: Option<Timestamp>,
    end: i64,
    /// Nanoseconds since the Unix epoch at `begin`.
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

#[derive(Debug, Default)]
struct Thread {
    /// The entity with its name.
    entity: Option<EntityId>,
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
    begin: i64,
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
    thread: (i64, i64),
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
        let at = event.at;
        match event.kind {
            EventKind::Sample { entity, kind, stack, weight, thread, event, .. } => {
                let at = self.time(at);
                let key = self.thread(thread.unwrap_or(entity), tables);
                let series = self.series(kind, event);
                if kind == SampleKind::OffCpu {
                    let begin = at.saturating_sub_unsigned(weight);
                    self.off_cpu(thread.unwrap_or(entity), key, (begin, at), stack);
                }
                if self.samples >= Self::MAX_SAMPLES {
                    self.dropped.samples += 1;
                    return;
                }
                self.samples += 1;
                if let Some(counted) = self.series.get_mut(usize::from(series)) {
                    counted.count += 1;
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
                let begin = self.time(at);
                let thread = self.thread(entity, tables);
                let marker = Marker::span(begin, begin, MarkerKind::Span(kind));
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
                kind: LossKind::UnreportedSwitch, entity: Some(cpu), since, ..
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
                let begin = self.begin.unwrap_or(time);
                self.epoch = Some(reading.nanos().saturating_sub(time.nanos_since(begin)));
                self.begin = Some(begin);
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
        out: &mut dyn io::Write,
    ) -> io::Result<u64> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        // The order of the map is not that of the next run.
        open.sort_unstable_by_key(|(span, _)| *span);
        for (_, Open { thread, marker }) in open {
            self.mark(thread, Marker { end: self.end, ..marker });
        }
        write::write(&mut self, title, tables, out)
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
        key: (i64, i64),
        (begin, end): (i64, i64),
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
                self.mark(key, Marker { stack, ..Marker::span(begin, end, kind) });
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
        let nanos = at.nanos_since(*self.begin.get_or_insert(at));
        self.end = self.end.max(nanos);
        nanos
    }

    fn series(&mut self, kind: SampleKind, event: SampledEventId) -> u16 {
        let is_it = |series: &Series| (series.kind, series.event) == (kind, event);
        let position = self.series.iter().position(is_it).unwrap_or_else(|| {
            self.series.push(Series { kind, event, count: 0 });
            self.series.len() - 1
        });
        // There are as many as sampled events.
        u16::try_from(position).unwrap_or(u16::MAX)
    }

    /// The thread that shows what happened to an entity: itself, or the main thread of its process.
    fn thread(&mut self, entity: EntityId, tables: &Tables) -> (i64, i64) {
        let entities = &tables.entities;
        let process = entities.process_of(entity);
        let number = |id| entities.get(id).map(|entity| entity.number);
        let pid = process.and_then(number).unwrap_or(0);
        let tid = match entities.kind(entity) {
            Some(EntityKind::Thread | EntityKind::GoThread | EntityKind::DotnetThread) => {
                number(entity).unwrap_or(pid)
            }
            _ => pid,
        };
        let known = self.threads.entry((pid, tid)).or_default();
        known.process = known.process.or(process);
        if known.entity.is_none() || entities.kind(entity) == Some(EntityKind::Thread) {
            known.entity = Some(entity);
        }
        (pid, tid)
    }

    fn mark(&mut self, thread: (i64, i64), marker: Marker) {
        if self.markers >= Self::MAX_MARKERS {
            self.dropped.markers += 1;
            return;
        }
        self.markers += 1;
        self.threads.entry(thread).or_default().markers.push(marker);
    }
}

impl Marker {
    const fn span(begin: i64, end: i64, kind: MarkerKind) -> Self {
        Self { begin, end, is_instant: false, kind, name: TextId::EMPTY, stack: None }
    }
}
