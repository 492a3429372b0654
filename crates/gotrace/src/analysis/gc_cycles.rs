//! Cycles of the garbage collector, and stops of the world.

use super::generation::Generation;
use super::log::Log;
use super::stacks::Stacks;
use super::worst::Worst;
use super::{Frame, Name};
use crate::event::{Event, EventKind, Metric, RangeName, Stack};
use crate::id::{GoId, ResourceId};
use crate::parallel::Split;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;
use trace_common::{Histogram, SeededState, Timestamp};

/// The cause of a cycle of the garbage collector, from the stack at which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GcTrigger {
    /// An allocation found that the heap has reached its goal.
    Allocation,
    /// The program asked for it: `runtime.GC`, `debug.FreeOSMemory`.
    Explicit,
    /// No cycle had run for two minutes.
    Periodic,
    /// The trace has no such stack: the cycle began before the trace, or in a way that is not known.
    Unknown,
}

impl GcTrigger {
    /// The name: `allocation`, `explicit`, `periodic`, `unknown`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Explicit => "explicit",
            Self::Periodic => "periodic",
            Self::Unknown => "unknown",
        }
    }

    /// The cause of a mark phase that begins with this stack.
    pub fn of(stack: Option<Stack<'_>>) -> Self {
        let mut trigger = Self::Unknown;
        for frame in stack.iter().flat_map(Stack::frames) {
            match &**frame.function {
                b"runtime.GC" | b"runtime/debug.freeOSMemory" | b"runtime/debug.FreeOSMemory" => {
                    return Self::Explicit;
                }
                b"runtime.forcegchelper" => return Self::Periodic,
                // The runtime allocates in many functions, each of which may be inlined.
                func if func.starts_with(b"runtime.") => trigger = Self::Allocation,
                _ => {}
            }
        }
        trigger
    }
}

/// A cycle of the garbage collector.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcCycle {
    /// The start of its mark phase; `None` if it began before the trace, or in a part that is lost.
    pub start: Option<Timestamp>,
    /// The end of its mark phase; `None` if it outlasts the trace, or ended in a part that is lost.
    pub end: Option<Timestamp>,
    /// Its cause.
    pub trigger: GcTrigger,
    /// The stops of the world for it: sweep termination, mark termination.
    pub pauses: Duration,
    /// The time that goroutines assisted it, and how often.
    pub assists: Duration,
    /// Number of these assists.
    pub assist_count: u64,
    /// The time of incremental sweeping since the end of the mark phase, up to the next cycle.
    pub sweep: Duration,
    /// Bytes that were reclaimed by it.
    pub reclaimed: u64,
    /// Bytes of heap objects before it; `None` if the trace does not contain that.
    pub heap_before: Option<u64>,
    /// The least number of bytes of heap objects after it, up to the next cycle.
    pub heap_after: Option<u64>,
    /// The heap goal that it set for the next cycle, in bytes; `None` if the trace does not contain that.
    pub goal: Option<u64>,
}

/// A stop of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pause {
    /// The reason, e.g. `GC mark termination`.
    pub reason: Name,
    /// The start: the world is asked to stop.
    pub start: Timestamp,
    /// The duration until the world is started again.
    pub duration: Duration,
    /// The goroutine that stopped it.
    pub goroutine: GoId,
    /// The stack of that goroutine, innermost frame first.
    pub stack: Vec<Frame>,
}

/// The result of [`GcCycles`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcReport {
    /// The cycles in order of time.
    pub cycles: Vec<GcCycle>,
    /// Cycles that are not in [`cycles`](Self::cycles), because there were too many.
    pub dropped: u64,
    /// Durations of stops of the world by reason, largest sum first.
    pub pauses: Vec<(Name, Histogram)>,
    /// The longest stops of the world, longest first.
    pub longest: Vec<Pause>,
    /// The longest of each reason, in the order of [`pauses`](Self::pauses), longest first.
    pub longest_by_reason: Vec<(Name, Vec<Pause>)>,
    /// Stops of the world that began before the trace or outlast it, or that a loss cuts off.
    pub cut: u64,
    /// The time of all GC assists.
    pub assists: Duration,
    /// The time of all incremental sweeping.
    pub sweep: Duration,
}

/// Collects the cycles of the garbage collector and the stops of the world.
///
/// The numbers of a cycle are those that the runtime reports in Go ≥ 1.22; v1 traces have them
/// too, as far as they contain the events. Memory is used for each cycle, up to 65 536.
///
/// ```
/// use gotrace::Reader;
/// use gotrace::analysis::GcCycles;
///
/// # fn main() -> Result<(), gotrace::Error> {
/// # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
/// let mut reader = Reader::new(file)?;
/// let mut cycles = GcCycles::new(10);
/// while let Some(event) = reader.next_event()? {
///     cycles.push(event);
/// }
/// let report = cycles.finish();
/// for (reason, pauses) in &report.pauses {
///     println!("{reason}: {} times, at most {} ns", pauses.count(), pauses.max());
/// }
/// # assert!(!report.cycles.is_empty() && !report.pauses.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GcCycles {
    report: GcReport,
    stacks: Stacks,
    pauses: Vec<Pauses>,
    /// The number of stops of the world that are kept of each reason.
    worst: usize,
    /// Open stops of the world.
    stops: HashMap<GoId, Open, SeededState>,
    assists: HashMap<GoId, Timestamp, SeededState>,
    sweeps: HashMap<ResourceId, Timestamp, SeededState>,
    /// Stops of the world since the last cycle, which may belong to the next.
    before: Duration,
    heap: Option<u64>,
    current: Option<GcCycle>,
    generation: Generation,
    /// A mark phase that began before is known. It is not in a v1 trace, nor where a generation
    /// continues after a loss.
    knows_mark: bool,
    last: Option<Timestamp>,
    /// Of a part of a trace: all its events of the GC.
    part: Option<Log>,
}

/// The stops of the world for one reason.
#[derive(Debug)]
struct Pauses {
    reason: Name,
    durations: Histogram,
    longest: Worst<Duration, Ended>,
}

/// A stop of the world that ended.
#[derive(Clone, Debug)]
struct Ended {
    reason: Name,
    open: Open,
    end: Timestamp,
}

/// An open stop of the world.
#[derive(Clone, Copy, Debug)]
struct Open {
    goroutine: GoId,
    start: Timestamp,
    stack: u32,
    /// It began before the range of time that is analysed.
    is_cut: bool,
}

const MAX_CYCLES: usize = 1 << 16;
/// Reasons to stop the world that are kept apart. The runtime has fewer: only a damaged trace has
/// more, and those above count without a reason.
const MAX_REASONS: usize = 256;

impl GcCycles {
    /// Makes an analysis that keeps the `worst` longest stops of the world, and as many of each reason.
    pub fn new(worst: usize) -> Self {
        Self {
            report: GcReport::default(),
            stacks: Stacks::default(),
            pauses: Vec::new(),
            worst,
            stops: HashMap::default(),
            assists: HashMap::default(),
            sweeps: HashMap::default(),
            before: Duration::ZERO,
            heap: None,
            current: None,
            generation: Generation::default(),
            knows_mark: false,
            last: None,
            part: None,
        }
    }

    /// Processes the next event of the trace.
    pub fn push(&mut self, event: Event<'_>) {
        // A part learns of a loss when it is joined.
        if event.record.restarts() && self.part.is_none() {
            self.loss();
        }
        let now = event.time();
        self.last = Some(now);
        self.generation.begin(event);
        let kind = event.kind();
        match kind {
            EventKind::Metric
            | EventKind::RangeBegin
            | EventKind::RangeActive
            | EventKind::RangeEnd
            | EventKind::Sync => {}
            _ => return,
        }
        match &mut self.part {
            Some(log) => log.keep(event),
            None if kind == EventKind::Sync => {
                self.generation.push(event);
                // The sync event of a range after a loss is that of the generation before it.
                self.knows_mark = event.generation() != 0 && !event.record.restarts();
            }
            None if kind == EventKind::Metric => self.metric(event),
            None => self.range(event),
        }
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover). The
    /// current cycle is complete as far as it is known: assists and sweeping count up to the last
    /// event before.
    pub fn loss(&mut self) {
        self.end_open();
        self.close();
        self.report.cut += self.stops.len() as u64;
        self.stops = HashMap::default(); // clearing it would visit the places of all that were there
        (self.before, self.heap) = (Duration::ZERO, None);
        self.generation.loss();
        self.knows_mark = false;
    }

    /// Completes the analysis after the last event.
    pub fn finish(mut self) -> GcReport {
        self.end_open();
        self.close();
        self.report.cut += self.stops.len() as u64;
        self.pauses.sort_by(|a, b| {
            let sums = b.durations.sum().cmp(&a.durations.sum());
            sums.then_with(|| a.reason.cmp(&b.reason))
        });
        let stacks = &self.stacks;
        let pause = |Ended { reason, open, end }: Ended| Pause {
            reason,
            start: open.start,
            duration: end - open.start,
            goroutine: open.goroutine,
            stack: stacks.frames(open.stack as usize).cloned().collect(),
        };
        let mut longest = Vec::new();
        for Pauses { reason, durations, longest: of_reason } in self.pauses {
            let of_reason: Vec<Ended> = of_reason.into_items().collect();
            longest.extend(of_reason.iter().cloned());
            let pauses = of_reason.into_iter().map(pause).collect();
            self.report.longest_by_reason.push((reason.clone(), pauses));
            self.report.pauses.push((reason, durations));
        }
        // Of equal ones, the first that ended.
        longest.sort_by_key(|ended| (Reverse(ended.end - ended.open.start), ended.end));
        longest.truncate(self.worst);
        self.report.longest = longest.into_iter().map(pause).collect();
        self.report
    }

    /// Counts open assists and sweeping up to the last event.
    fn end_open(&mut self) {
        let Some(last) = self.last else { return };
        for (_, since) in std::mem::take(&mut self.assists) {
            self.assist(last - since);
        }
        for (_, since) in std::mem::take(&mut self.sweeps) {
            self.sweep(last - since, 0);
        }
    }

    /// Counts an assist. Without a known cycle it is of one that began before the trace. If its mark
    /// phase would be known, it ended there, too.
    fn assist(&mut self, time: Duration) {
        self.report.assists += time;
        if self.current.is_none() && !self.knows_mark {
            self.begin(None, GcTrigger::Unknown);
        }
        if let Some(cycle) = &mut self.current {
            cycle.assists += time;
            cycle.assist_count += 1;
        }
    }

    /// Counts sweeping. It follows a mark phase: without a known cycle, that was before the trace.
    fn sweep(&mut self, time: Duration, bytes: u64) {
        self.report.sweep += time;
        if let Some(cycle) = &mut self.current {
            cycle.sweep += time;
            cycle.reclaimed = cycle.reclaimed.saturating_add(bytes);
        }
    }

    fn metric(&mut self, event: Event<'_>) {
        let Some(metric) = event.metric() else { return };
        let Some(value) = metric.value.as_u64() else { return };
        match metric.name {
            Metric::HEAP_OBJECTS => {
                self.heap = Some(value);
                if let Some(cycle) = self.current.as_mut().filter(|cycle| cycle.end.is_some()) {
                    cycle.heap_after = Some(cycle.heap_after.map_or(value, |v| v.min(value)));
                }
            }
            Metric::HEAP_GOAL => {
                // Until its end, it is the goal that the cycle before it has set.
                if let Some(cycle) = self.current.as_mut().filter(|cycle| cycle.end.is_some()) {
                    cycle.goal = Some(value);
                }
            }
            _ => {}
        }
    }

    fn range(&mut self, event: Event<'_>) {
        let Some(range) = event.range() else { return };
        let is_end = event.kind() == EventKind::RangeEnd;
        let start = match event.kind() {
            // It was active when the generation started.
            EventKind::RangeActive => self.generation.start(event),
            _ => event.time(),
        };
        match range.name {
            RangeName::GcMark if is_end => {
                if self.current.is_none() {
                    self.begin(None, GcTrigger::Unknown);
                }
                if let Some(cycle) = &mut self.current {
                    (cycle.end, cycle.heap_after) = (Some(event.time()), self.heap);
                }
            }
            RangeName::GcMark if event.kind() == EventKind::RangeActive => {
                if self.current.as_ref().is_none_or(|cycle| cycle.end.is_some()) {
                    self.begin(None, GcTrigger::Unknown);
                }
            }
            RangeName::GcMark => self.begin(Some(event.time()), GcTrigger::of(event.stack())),
            RangeName::StopTheWorld(reason) => self.stop(event, reason.into(), is_end),
            RangeName::GcMarkAssist => {
                let ResourceId::Goroutine(id) = range.scope else { return };
                match (is_end, self.assists.remove(&id)) {
                    (true, Some(since)) => self.assist(event.time() - since),
                    (true, None) => {}
                    (false, since) => {
                        self.assists.insert(id, since.unwrap_or(start));
                    }
                }
            }
            RangeName::GcSweep => match (is_end, self.sweeps.remove(&range.scope)) {
                (true, since) => {
                    let time = since.map_or(Duration::ZERO, |since| event.time() - since);
                    let bytes = event
                        .range_attributes()
                        .into_iter()
                        .flatten()
                        .find(|attribute| attribute.name == "bytes reclaimed")
                        .and_then(|attribute| attribute.value.as_u64())
                        .unwrap_or(0);
                    self.sweep(time, bytes);
                }
                (false, since) => {
                    self.sweeps.insert(range.scope, since.unwrap_or(start));
                }
            },
        }
    }

    fn stop(&mut self, event: Event<'_>, reason: Name, is_end: bool) {
        let goroutine = event.goroutine();
        if !is_end {
            let stack = self.stacks.number(event.stack());
            let is_cut = event.record.began_before();
            let open = Open { goroutine, start: event.time(), stack, is_cut };
            self.report.cut += u64::from(self.stops.insert(goroutine, open).is_some());
            return;
        }
        let Some(open) = self.stops.remove(&goroutine).filter(|open| !open.is_cut) else {
            self.report.cut += 1;
            return;
        };
        let duration = event.time() - open.start;
        let find =
            |pauses: &[Pauses], reason: &Name| pauses.iter().position(|of| of.reason == *reason);
        let place = find(&self.pauses, &reason).unwrap_or_else(|| {
            let is_full = self.pauses.len() >= MAX_REASONS;
            let reason = if is_full { Name::default() } else { reason.clone() };
            find(&self.pauses, &reason).unwrap_or_else(|| {
                let (durations, longest) = (Histogram::default(), Worst::new(self.worst));
                self.pauses.push(Pauses { reason, durations, longest });
                self.pauses.len() - 1
            })
        });
        match &**reason {
            // The mark phase begins within it: the cycle is current.
            b"GC sweep termination" | b"GC mark termination" => {
                match self
                    .current
                    .as_mut()
                    .filter(|cycle| cycle.end.is_none_or(|e| e >= open.start))
                {
                    Some(cycle) => cycle.pauses += duration,
                    None => self.before += duration,
                }
            }
            _ => {}
        }
        if let Some(pauses) = self.pauses.get_mut(place) {
            pauses.durations.add(event.time().nanos_since(open.start));
            pauses.longest.add(duration, || Ended { reason, open, end: event.time() });
        }
    }

    fn begin(&mut self, start: Option<Timestamp>, trigger: GcTrigger) {
        self.close();
        let mut cycle = new(start, trigger);
        cycle.heap_before = start.and(self.heap);
        cycle.pauses = std::mem::take(&mut self.before);
        self.current = Some(cycle);
    }

    fn close(&mut self) {
        let Some(cycle) = self.current.take() else { return };
        if self.report.cycles.len() < MAX_CYCLES {
            self.report.cycles.push(cycle);
        } else {
            self.report.dropped += 1;
        }
    }
}

impl Split for GcCycles {
    fn push(&mut self, event: Event<'_>) {
        self.push(event);
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self { part: Some(Log::default()), ..Self::new(0) }
    }

    fn is_continued_by(&self, part: &Self) -> bool {
        part.part.as_ref().is_some_and(Log::is_complete)
    }

    fn join(&mut self, part: Self) {
        self.generation.join(part.generation);
        part.part.unwrap_or_default().events().for_each(|event| self.push(event));
        self.last = part.last.or(self.last);
    }

    fn loss(&mut self) {
        self.loss();
    }
}

const fn new(start: Option<Timestamp>, trigger: GcTrigger) -> GcCycle {
    GcCycle {
        start,
        end: None,
        trigger,
        pauses: Duration::ZERO,
        assists: Duration::ZERO,
        assist_count: 0,
        sweep: Duration::ZERO,
        reclaimed: 0,
        heap_before: None,
        heap_after: None,
        goal: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Clip;
    use crate::event::Record;
    use crate::spec::EventType;
    use crate::table::Table;
    use std::sync::Arc;

    #[test]
    fn a_loss_visits_no_places_of_stops_before_others() {
        const COUNT: i64 = 10_000;
        let table = Arc::new(Table::new(1));
        let mut cycles = GcCycles::new(1);
        let begin = |cycles: &mut GcCycles, id| {
            let record = Record { g: GoId(id), ..Record::new(EventType::STW_BEGIN, id, [0; 4]) };
            cycles.push(Event { table: &table, record: &record });
        };
        (1..=COUNT).for_each(|id| begin(&mut cycles, id));
        for id in 1..=COUNT {
            assert_eq!(cycles.stops.capacity() as i64 >= COUNT, id == 1);
            cycles.loss();
            begin(&mut cycles, id);
        }
    }

    /// A v1 trace does not mention a mark phase that began before it.
    #[test]
    fn an_assist_that_outlives_its_cycle_is_of_no_other() {
        for (generation, count) in [(0, 1), (1, 0)] {
            let table = Arc::new(Table::new(generation));
            let assist = |ty, time| Record { g: GoId(7), ..Record::new(ty, time, [0; 4]) };
            let records = [
                Record::sync(0, 1, true),
                Record::new(EventType::GC_BEGIN, 10, [0; 4]),
                assist(EventType::GC_MARK_ASSIST_BEGIN, 20),
                Record::new(EventType::GC_END, 100, [0; 4]),
                assist(EventType::GC_MARK_ASSIST_END, 200),
            ];
            let mut cycles = GcCycles::new(1);
            let mut clip = Clip::new(Timestamp::from_nanos(150), Timestamp::MAX);
            for record in &records {
                clip.push(Event { table: &table, record }, &mut |event| cycles.push(event));
            }
            clip.finish(&mut |event| cycles.push(event));
            let report = cycles.finish();
            assert_eq!(report.cycles.len(), count, "{report:?}");
            assert_eq!(report.assists, Duration::from_nanos(50));
        }
    }
}
