//! A self-contained page: the timeline, critical paths, flame graphs and the tables of the report
//! in one HTML file.
//!
//! The file opens from disk in any browser of 2023 or later and loads nothing: its content security
//! policy forbids it. Names from traces are data, never markup.
//!
//! ```no_run
//! use trace_export::html::{HtmlOptions, HtmlTimeline};
//! use trace_timeline::answers::Report;
//! use trace_timeline::{Correlator, Event, Tables};
//!
//! # fn f(events: &[Event], tables: &Tables) -> std::io::Result<()> {
//! let (mut correlator, mut report) = (Correlator::new(), Report::new());
//! let mut html = HtmlTimeline::new(HtmlOptions::default());
//! let mut each = |derived: trace_timeline::Derived<'_>| {
//!     report.push(&derived, &tables.entities);
//!     html.push(&derived, tables);
//! };
//! for event in events {
//!     correlator.push(event, &tables.entities, &mut each);
//! }
//! correlator.finish(&mut each);
//! html.write("server", tables, &report, &[], std::fs::File::create("timeline.html")?)?;
//! # Ok(())
//! # }
//! ```
//!
//! Intervals are kept as varints, about 9 bytes each, until [`HtmlTimeline::write`]: there are at
//! most [`HtmlOptions::max_items`] of them. The page counts those above, and shades the time in which
//! they are missing.

mod document;
mod flame;
mod json;
mod layout;
mod page;
mod paths;
mod plot;
mod processes;
mod refs;
mod strip;
mod tables;

pub use document::Document;
pub use plot::{Form, Plot, Scale};

use crate::sampled::SampledEvents;
use flame::{Flames, Of};
use hashbrown::HashMap;
use layout::Layout;
use refs::{By, Refs};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use strip::{Item, Kind, Strip};
use trace_timeline::answers::{CriticalPath, Report, Request};
use trace_timeline::{
    Context, Derived, EntityId, EntityKind, Event, EventKind, FlowKind, InstantKind, Interval,
    Kernel, LossKind, Occupant, SampleKind, Sampled, SampledEventId, SpanId, SpanKind, State,
    Tables, TextId, Timestamp,
};

/// Options of a [`HtmlTimeline`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HtmlOptions {
    /// Intervals, spans, instants and values of counters on the page: about 9 bytes of memory each.
    pub max_items: u64,
    /// Lanes of a group, such as the goroutines of one entry function.
    pub max_lanes: usize,
    /// The process of interest, by its id: it and its descendants come first.
    pub process: Option<u32>,
    /// With a process of interest: intervals of the threads of others. A process above it has no
    /// lanes of threads. The lanes of the CPUs show when they ran.
    pub max_other_items: u64,
}

impl Default for HtmlOptions {
    /// 4 Mi items and 256 lanes.
    fn default() -> Self {
        Self { max_items: 4 << 20, max_lanes: 256, process: None, max_other_items: 1 << 16 }
    }
}

/// The numbers of what [`HtmlTimeline::write`] wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HtmlStats {
    /// Intervals, spans and instants on the page.
    pub items: u64,
    /// Those above [`HtmlOptions::max_items`], and values of counters above it.
    pub dropped: u64,
    /// When the first of those above the limit ends, in nanoseconds from the start: what ends before
    /// is on the page.
    pub missing_since: Option<i64>,
    /// Goroutines, threads and spans above [`HtmlOptions::max_lanes`].
    pub folded: u64,
    /// Intervals above [`HtmlOptions::max_other_items`].
    pub summarized: u64,
    /// Values of counters that are not finite, omitted.
    pub values_omitted: u64,
    /// Stacks without their inner frames in the flame graphs: 2^17 frames are on a page.
    pub stacks_cut: u64,
    /// Size of the page, in bytes.
    pub bytes: u64,
}

/// A timeline that becomes a page: see the [module](self).
#[derive(Debug)]
pub struct HtmlTimeline {
    options: HtmlOptions,
    start: Option<Timestamp>,
    end: Timestamp,
    refs: Refs,
    cpus: BTreeMap<EntityId, Strip>,
    /// Threads, goroutines, Ps and .NET threads.
    subjects: HashMap<EntityId, Strip>,
    open: HashMap<SpanId, Span>,
    spans: Vec<Span>,
    /// Samples by thread or goroutine.
    samples: BTreeMap<EntityId, Strip>,
    counters: BTreeMap<(EntityId, TextId), Counter>,
    losses: Vec<Loss>,
    events: SampledEvents,
    flames: Flames,
    wakes: HashMap<EntityId, (Timestamp, By)>,
    items: u64,
    dropped: u64,
    missing_since: Option<i64>,
    /// Values of counters that are not finite.
    values_omitted: u64,
    /// Items that began before the end of the one before.
    cut: u64,
    paths_missing: u64,
    /// What the traces have that is in no event.
    notes: Vec<String>,
}

/// A span, or an instant.
#[derive(Clone, Copy, Debug)]
struct Span {
    owner: EntityId,
    item: Item,
}

/// The values of a counter.
#[derive(Debug, Default)]
struct Counter {
    unit: TextId,
    last: i64,
    count: u64,
    /// Whether it has more than one value.
    changes: bool,
    value: f64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    start: i64,
    end: i64,
    kind: LossKind,
    entity: Option<EntityId>,
    count: Option<u64>,
}

/// Losses that the page names one by one.
const MAX_LOSSES: usize = 1 << 12;

impl HtmlTimeline {
    /// Makes an empty timeline.
    pub fn new(options: HtmlOptions) -> Self {
        Self {
            options,
            start: None,
            end: Timestamp::default(),
            refs: Refs::default(),
            cpus: BTreeMap::new(),
            subjects: HashMap::new(),
            open: HashMap::new(),
            spans: Vec::new(),
            samples: BTreeMap::new(),
            counters: BTreeMap::new(),
            losses: Vec::new(),
            events: SampledEvents::default(),
            flames: Flames::default(),
            wakes: HashMap::new(),
            items: 0,
            dropped: 0,
            missing_since: None,
            values_omitted: 0,
            cut: 0,
            paths_missing: 0,
            notes: Vec::new(),
        }
    }

    /// Adds derived data.
    pub fn push(&mut self, derived: &Derived<'_>, tables: &Tables) {
        match derived {
            Derived::Interval(interval) => self.interval(interval, tables),
            Derived::Flow(flow) if flow.kind != FlowKind::Continues => {
                self.time(flow.time);
                let by = match flow.context {
                    Context::HardIrq => By::HardIrq,
                    Context::SoftIrq => By::SoftIrq,
                    _ => flow.from.into(),
                };
                self.wakes.insert(flow.to, (flow.time, by));
            }
            Derived::Sample(sample) => self.sample(sample, tables),
            Derived::Event(event) => self.event(event),
            _ => {}
        }
    }

    /// Adds a row to the table of what is not known, such as time that a hypervisor took.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Says on the page that the critical paths of this number of requests, the longest ones, are
    /// missing because they have too many events.
    pub const fn omit_paths(&mut self, requests: u64) {
        self.paths_missing = requests;
    }

    /// Nanoseconds from the start of the timeline.
    fn time(&mut self, at: Timestamp) -> i64 {
        self.end = self.end.max(at);
        at.nanos_since(*self.start.get_or_insert(at)).max(0)
    }

    /// Whether there is room for an item that ends at this time.
    fn has_room(&mut self, end: i64) -> bool {
        let has_room = self.items < self.options.max_items;
        if has_room {
            self.items += 1;
        } else {
            self.dropped += 1;
            self.missing_since = Some(self.missing_since.map_or(end, |since| since.min(end)));
        }
        has_room
    }

    fn interval(&mut self, interval: &Interval, tables: &Tables) {
        let Some(kind) = tables.entities.kind(interval.subject) else { return };
        let (start, end) = (self.time(interval.start), self.time(interval.end));
        // The wait that this interval ended, or the thread in its way.
        let waker = match self.wakes.get(&interval.subject) {
            Some((at, by)) if *at == interval.start => *by,
            _ => By::Unknown,
        };
        let by = match interval.kernel {
            Kernel::OnCpu { cpu } => By::Entity(cpu),
            Kernel::Runnable { occupant, is_preempted: true, .. } => match occupant {
                Occupant::Thread(thread) => By::Entity(thread),
                Occupant::Idle => By::IdleCpu,
                Occupant::Unrecorded => By::Unrecorded,
                _ => By::Unknown,
            },
            // The page reads `by` of what executes without a CPU as what took the CPU.
            Kernel::Runnable { .. } if kind != EntityKind::Thread && executes(interval.state) => {
                By::Unknown
            }
            _ => waker,
        };
        let (text, stack) = (interval.reason, interval.stack);
        let other = interval.thread.filter(|thread| *thread != interval.subject);
        let (shown, who) = match kind {
            EntityKind::Thread => (of_kernel(interval.kernel), interval.holder),
            EntityKind::Goroutine => (of_goroutine(interval), other),
            EntityKind::Proc if interval.state != State::Idle => {
                (of_goroutine(interval), interval.holder)
            }
            // The same thread has a lane as the kernel sees it, if that is recorded.
            EntityKind::DotnetThread if other.is_none() || interval.kernel == Kernel::Unknown => {
                (of_goroutine(interval), None)
            }
            _ => return,
        };
        if let (EntityKind::Goroutine, State::Waiting, Some(stack)) =
            (kind, interval.state, interval.stack)
        {
            let process = tables.entities.process_of(interval.subject);
            let nanos = u64::try_from(interval.nanos()).unwrap_or(0);
            self.flames.add(Of::Waits, process, interval.reason, stack, nanos);
        }
        if !self.has_room(end) {
            return;
        }
        let item = Item { start, end, kind: shown, who, by, text, stack };
        let strip = self.subjects.entry(interval.subject).or_default();
        self.cut += u64::from(strip.push(&item, &mut self.refs));
        if let (EntityKind::Thread, Kernel::OnCpu { cpu }) = (kind, interval.kernel) {
            let by = interval.holder.into();
            let item = Item { who: Some(interval.subject), by, ..item };
            let strip = self.cpus.entry(cpu).or_default();
            self.cut += u64::from(strip.push(&item, &mut self.refs));
        }
    }

    fn sample(&mut self, sample: &Sampled, tables: &Tables) {
        let end = self.time(sample.time);
        if self.has_room(end) {
            let (kind, nanos) = match sample.kind {
                SampleKind::OffCpu => (Kind::OffCpuSample, sample.weight),
                SampleKind::Allocation => (Kind::AllocationSample, 0),
                _ => (Kind::Sample, 0),
            };
            let start = end.saturating_sub_unsigned(nanos).max(0);
            let text = tables.sampled_event(sample.event).name;
            let (by, who) = (By::Unknown, sample.of);
            let item = Item { start, end, kind, who, by, text, stack: sample.stack };
            let strip = self.samples.entry(sample.entity).or_default();
            self.cut += u64::from(strip.push(&item, &mut self.refs));
        }
        let Some(stack) = sample.stack else { return };
        let of = match sample.kind {
            _ if sample.event != SampledEventId::NONE => {
                Of::Events(self.events.first(sample.event, tables))
            }
            SampleKind::Cpu | SampleKind::GoCpu => Of::CpuSamples,
            SampleKind::Managed => Of::ManagedStacks,
            SampleKind::OffCpu => Of::OffCpu,
            SampleKind::Allocation => Of::Allocations,
            _ => return,
        };
        let process = tables.entities.process_of(sample.entity);
        self.flames.add(of, process, TextId::EMPTY, stack, sample.weight);
    }

    fn event(&mut self, event: &Event) {
        let at = self.time(event.time);
        let instant = |kind, text, stack| Item {
            start: at,
            end: at,
            kind,
            who: None,
            by: By::Unknown,
            text,
            stack,
        };
        match event.kind {
            EventKind::End { entity } => {
                self.wakes.remove(&entity);
            }
            EventKind::Begin { span, entity, kind, name, by, of, stack } => {
                let kind = match kind {
                    SpanKind::Task => Kind::Task,
                    SpanKind::Region | SpanKind::TaskRun | SpanKind::Operation => Kind::Region,
                    SpanKind::Activity | SpanKind::Request => Kind::Activity,
                    SpanKind::Gc => Kind::Gc,
                    SpanKind::GcAssist => Kind::Assist,
                    SpanKind::GcSweep => Kind::Sweep,
                    SpanKind::StopTheWorld => Kind::StopTheWorld,
                    SpanKind::Jit | SpanKind::TieredJit | SpanKind::TypeLoad => Kind::Jit,
                    SpanKind::TaskWait | SpanKind::Await | SpanKind::HandleWait => Kind::Waiting,
                    SpanKind::LockWait => Kind::LockWait,
                    SpanKind::Queued => Kind::Queued,
                    _ => Kind::Other,
                };
                if self.has_room(at) {
                    let item = Item { who: of, by: by.into(), ..instant(kind, name, stack) };
                    self.open.insert(span, Span { owner: entity, item });
                }
            }
            EventKind::Finish { span, .. } => {
                if let Some(Span { owner, item }) = self.open.remove(&span) {
                    self.spans.push(Span { owner, item: Item { end: at, ..item } });
                }
            }
            EventKind::Instant { entity, kind, name, stack, .. } => {
                let kind = match kind {
                    InstantKind::Log => Kind::Log,
                    InstantKind::Exception => Kind::Exception,
                    InstantKind::Starvation => Kind::Starvation,
                    InstantKind::Other => Kind::Other,
                    _ => return,
                };
                if self.has_room(at) {
                    self.spans.push(Span { owner: entity, item: instant(kind, name, stack) });
                }
            }
            // A chart has no place for a value that is not finite.
            EventKind::Counter { value, .. } if !value.is_finite() => self.values_omitted += 1,
            EventKind::Counter { entity, name, unit, value } if self.has_room(at) => {
                let counter = self.counters.entry((entity, name)).or_default();
                counter.changes |= counter.count > 0 && counter.value != value;
                counter.value = value;
                counter.unit = unit;
                strip::put(&mut counter.bytes, at.max(counter.last).abs_diff(counter.last));
                counter.bytes.extend_from_slice(&value.to_le_bytes());
                counter.last = at.max(counter.last);
                counter.count += 1;
            }
            EventKind::Loss { entity, kind, since, count } if self.losses.len() < MAX_LOSSES => {
                let start = self.start.map_or(0, |start| since.nanos_since(start).max(0));
                self.losses.push(Loss { start, end: at, kind, entity, count });
            }
            _ => {}
        }
    }

    /// Writes the page, with the critical paths of these requests.
    ///
    /// # Errors
    ///
    /// Errors of `out`, and [`io::ErrorKind::FileTooLarge`] if the tables, names and stacks of the
    /// page are longer than a browser's string.
    pub fn write(
        mut self,
        title: &str,
        tables: &Tables,
        report: &Report,
        paths: &[(Request, CriticalPath)],
        out: impl Write,
    ) -> io::Result<HtmlStats> {
        let nanos = self.start.map_or(0, |start| self.end.nanos_since(start));
        let mut open: Vec<(SpanId, Span)> = self.open.drain().collect();
        open.sort_unstable_by_key(|(id, _)| *id);
        for (_, Span { owner, item }) in open {
            self.spans.push(Span { owner, item: Item { end: nanos, ..item } });
        }
        let start = self.start.unwrap_or_default();
        let family = self.options.process.map(|pid| tables.entities.family(pid));
        let layout = Layout::new(&mut self, family.as_ref(), tables, report);
        let mut stats = HtmlStats {
            items: layout.items(),
            dropped: self.dropped,
            missing_since: self.missing_since,
            folded: layout.folded,
            summarized: layout.summarized,
            values_omitted: self.values_omitted,
            stacks_cut: 0,
            bytes: 0,
        };
        let mut head = String::from("{\"version\":1,\"title\":");
        json::text(&mut head, title);
        for (name, number) in [
            ("nanos", nanos),
            ("items", i64::try_from(stats.items).unwrap_or(i64::MAX)),
            ("dropped", i64::try_from(stats.dropped).unwrap_or(i64::MAX)),
            ("missingSince", stats.missing_since.unwrap_or(-1)),
            ("folded", i64::try_from(stats.folded).unwrap_or(i64::MAX)),
            ("summarized", i64::try_from(stats.summarized).unwrap_or(i64::MAX)),
            ("valuesOmitted", i64::try_from(stats.values_omitted).unwrap_or(i64::MAX)),
            ("cut", i64::try_from(self.cut).unwrap_or(i64::MAX)),
            ("pathsMissing", i64::try_from(self.paths_missing).unwrap_or(i64::MAX)),
        ] {
            head.push_str(",\"");
            head.push_str(name);
            head.push_str("\":");
            json::number(&mut head, number);
        }
        head.push(',');
        layout.write(&mut head);
        head.push_str(",\"flames\":");
        let is_main = |process: Option<EntityId>| {
            let has = |family: &BTreeSet<EntityId>| process.is_some_and(|id| family.contains(&id));
            family.as_ref().is_none_or(has)
        };
        stats.stacks_cut = self.flames.write(&mut head, &mut self.refs, tables, &is_main);
        head.push_str(",\"stacksCut\":");
        json::number(&mut head, stats.stacks_cut);
        head.push_str(",\"paths\":");
        paths::write(&mut head, paths, paths::MAX_PIECES, start, &mut self.refs, tables);
        head.push_str(",\"tables\":");
        tables::write(&mut head, report, tables, &self.notes, &is_main);
        head.push_str(",\"losses\":");
        self.write_losses(&mut head, report);
        head.push_str(",\"notes\":");
        json::list(&mut head, &self.notes, |out, note| json::text(out, note));
        head.push(',');
        self.refs.write(&mut head, tables, start);
        head.push('}');
        let length = head_length(head.len())?.to_le_bytes();
        let mut data: Vec<&[u8]> = vec![&length, head.as_bytes()];
        data.extend(layout.tracks().map(|track| track.bytes.as_slice()));
        stats.bytes = page::write(out, title, &data)?;
        Ok(stats)
    }

    /// `{"kinds":[[text, losses, number, unit], …],"all":[[begin, end, kind, entity, number, unit], …]}`
    fn write_losses(&mut self, out: &mut String, report: &Report) {
        out.push_str("{\"kinds\":");
        json::list(out, report.losses(|_| true), |out, (kind, losses)| {
            out.push('[');
            json::text(out, trace_timeline::text::loss(kind));
            out.push(',');
            json::number(out, losses.count);
            out.push(',');
            write_lost(out, kind, losses.records.max(losses.bytes));
            out.push(']');
        });
        out.push_str(",\"all\":");
        json::list(out, &self.losses, |out, loss| {
            out.push('[');
            json::number(out, loss.start);
            out.push(',');
            json::number(out, loss.end);
            out.push(',');
            json::text(out, trace_timeline::text::loss(loss.kind));
            out.push(',');
            json::number(out, self.refs.entity(loss.entity));
            out.push(',');
            write_lost(out, loss.kind, loss.count.unwrap_or(0));
            out.push(']');
        });
        out.push('}');
    }
}

/// The number of what is lost, with its unit.
fn write_lost(out: &mut String, kind: LossKind, count: u64) {
    json::number(out, count);
    out.push(',');
    json::text(out, kind.unit());
}

/// The length of the JSON of a page, unless it is above the limit.
fn head_length(bytes: usize) -> io::Result<u32> {
    use json::MAX;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAX);
    length.ok_or_else(|| {
        let why = format!(
            "the names, stacks and tables have more than {MAX} bytes: browsers read no more"
        );
        io::Error::new(io::ErrorKind::FileTooLarge, why)
    })
}

/// What the kernel does with a thread.
const fn of_kernel(kernel: Kernel) -> Kind {
    match kernel {
        Kernel::OnCpu { .. } => Kind::OnCpu,
        Kernel::Runnable { is_preempted: true, .. } => Kind::Preempted,
        Kernel::Runnable { .. } => Kind::Woken,
        Kernel::Sleeping => Kind::Sleeping,
        Kernel::Blocked => Kind::Blocked,
        Kernel::Stopped => Kind::Stopped,
        _ => Kind::Unknown,
    }
}

/// Whether a thread executes it.
const fn executes(state: State) -> bool {
    matches!(state, State::Running | State::Syscall)
}

/// The state of a goroutine or P, and what the kernel does with its thread.
const fn of_goroutine(interval: &Interval) -> Kind {
    match (interval.state, interval.kernel) {
        (State::Running, Kernel::OnCpu { .. }) => Kind::OnCpu,
        (State::Running, Kernel::Runnable { .. }) => Kind::RunningWithoutCpu,
        (State::Running, Kernel::Sleeping | Kernel::Blocked | Kernel::Stopped) => {
            Kind::RunningInKernel
        }
        (State::Running, _) => Kind::Running,
        (State::Runnable, _) => Kind::Runnable,
        (State::Waiting, _) => Kind::Waiting,
        (State::Syscall, Kernel::Runnable { .. }) => Kind::SyscallWithoutCpu,
        (State::Syscall, _) => Kind::Syscall,
        _ => Kind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that no browser reads is an error.
    #[test]
    fn lengths_are_those_of_strings() {
        assert_eq!(head_length(100).unwrap(), 100);
        for bytes in [1 << 29, usize::MAX] {
            let error = head_length(bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
    }
}
