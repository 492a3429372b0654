//! Scheduling latency, the longest stalls, and the use of the processors over time.

use super::intervals::{Interval, Intervals};
use super::log::Log;
use super::numbers::{Names, Numbers};
use super::series::Series;
use super::stacks::Stacks;
use super::step::{Change, Step, stack_of};
use super::summary::is_system;
use super::worst::Worst;
use super::{Frame, Name};
use crate::event::{Event, Metric, SYNC};
use crate::id::{GoId, GoState, ProcState};
use crate::parallel::Split;
use crate::spec::EventType;
use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;
use trace_common::{Histogram, IdMap, Timestamp};

/// Options of [`Scheduling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchedulingOptions {
    /// The number of stalls of each kind that are kept.
    pub worst: usize,
    /// The largest number of intervals of the use of the processors. At least 2, and made even.
    pub intervals: usize,
}

impl Default for SchedulingOptions {
    /// 10 stalls, 512 intervals.
    fn default() -> Self {
        Self { worst: 10, intervals: 512 }
    }
}

/// The event that made a goroutine runnable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RunnableCause {
    /// It was created.
    #[default]
    Created,
    /// It was blocked, and unblocked.
    Unblocked,
    /// It was preempted, or yielded.
    Preempted,
    /// It returned from a system call, and another goroutine had its P.
    Syscall,
}

impl RunnableCause {
    /// The name: `created`, `unblocked`, `preempted`, `syscall`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Unblocked => "unblocked",
            Self::Preempted => "preempted",
            Self::Syscall => "syscall",
        }
    }
}

impl fmt::Display for RunnableCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A time in which a goroutine did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The goroutine.
    pub goroutine: GoId,
    /// Its entry function; empty if the trace has no stack of it.
    pub entry: Name,
    /// The start.
    pub start: Timestamp,
    /// The duration.
    pub duration: Duration,
    /// The reason, as the runtime reports it, e.g. `chan receive` or `preempted`; often empty for
    /// a runnable goroutine.
    pub reason: Name,
    /// The stack at which it stopped, innermost frame first; empty if the trace has none.
    pub stack: Vec<Frame>,
    /// The goroutine that made it runnable; `None` if that was no other goroutine (the network
    /// poller, a timer, the scheduler).
    pub by: Option<Unblocker>,
}

/// The goroutine that made another one runnable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unblocker {
    /// The goroutine.
    pub goroutine: GoId,
    /// Its entry function; empty if the trace has no stack of it.
    pub entry: Name,
    /// Its stack at that time, innermost frame first.
    pub stack: Vec<Frame>,
}

/// The mean use of the processors in an interval of time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProcessorUse {
    /// The start of the interval.
    pub start: Timestamp,
    /// Its length. The last interval is cut where the trace ends.
    pub length: Duration,
    /// `GOMAXPROCS`.
    pub procs: f64,
    /// Ps that run goroutines other than background workers of the GC.
    pub running: f64,
    /// Ps that run background workers of the GC.
    pub gc: f64,
    /// Ps whose goroutine is in a system call.
    pub syscall: f64,
    /// Goroutines that wait for a P.
    pub runnable: f64,
}

impl ProcessorUse {
    /// The Ps that do nothing.
    pub fn idle(&self) -> f64 {
        (self.procs - self.running - self.gc - self.syscall).max(0.0)
    }
}

/// The result of [`Scheduling`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SchedulingReport {
    /// The times from runnable to running, of all goroutines. A coroutine that another one switches to, as
    /// those of `iter.Pull` do, gets its P and waits for none: that is no such time.
    pub latency: Histogram,
    /// The same by the event that made the goroutine runnable.
    pub by_cause: Vec<(RunnableCause, Histogram)>,
    /// The same by entry function, largest sum first. The first [`Scheduling::MAX_NAMES`] functions
    /// are kept apart, the others count with the empty name.
    pub by_entry: Vec<(Name, Histogram)>,
    /// The times that goroutines were blocked, by reason, largest sum first; also of up to
    /// [`Scheduling::MAX_NAMES`] reasons.
    pub blocked: Vec<(Name, Histogram)>,
    /// The number of times in `by_entry` and `blocked` that count with the empty name because there
    /// are too many names.
    pub merged: u64,
    /// The longest times from runnable to running, longest first.
    pub delays: Vec<Stall>,
    /// The longest times blocked of goroutines of the program, longest first.
    pub blocks: Vec<Stall>,
    /// The use of the processors over time.
    pub processors: Vec<ProcessorUse>,
    /// Waits that began before the trace or outlast it, or that a loss cuts off: they are not in the
    /// histograms.
    pub cut: u64,
}

impl SchedulingReport {
    /// The mean use of the processors in all of the trace; `None` without events.
    pub fn mean(&self) -> Option<ProcessorUse> {
        let first = self.processors.first()?;
        let total: f64 = self.processors.iter().map(|each| each.length.as_secs_f64()).sum();
        let of = |value: fn(&ProcessorUse) -> f64| {
            let weighted = self.processors.iter().map(|e| value(e) * e.length.as_secs_f64());
            if total > 0.0 { weighted.sum::<f64>() / total } else { 0.0 }
        };
        Some(ProcessorUse {
            start: first.start,
            length: self.processors.iter().map(|each| each.length).sum(),
            procs: of(|e| e.procs),
            running: of(|e| e.running),
            gc: of(|e| e.gc),
            syscall: of(|e| e.syscall),
            runnable: of(|e| e.runnable),
        })
    }
}

/// Computes scheduling latencies, the longest stalls, and the use of the processors over time.
///
/// Memory is used for live goroutines, and for distinct entry functions, reasons and stacks.
///
/// ```
/// use gotrace::Reader;
/// use gotrace::analysis::{Scheduling, SchedulingOptions};
///
/// # fn main() -> Result<(), gotrace::Error> {
/// # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
/// let mut reader = Reader::new(file)?;
/// let mut scheduling = Scheduling::new(SchedulingOptions::default());
/// while let Some(event) = reader.next_event()? {
///     scheduling.push(event);
/// }
/// let report = scheduling.finish();
/// println!("99 % of the waits for a P are below {} ns", report.latency.percentile(99.0));
/// for stall in &report.blocks {
///     let by = stall.by.as_ref().map_or("the runtime".to_owned(), |by| by.entry.to_string());
///     println!("{} blocked {:?} in {}, until {by}", stall.goroutine, stall.duration, stall.reason);
/// }
/// # assert!(report.latency.count() > 100 && report.blocks.len() == 10);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Scheduling {
    options: SchedulingOptions,
    intervals: Intervals<Detail>,
    stacks: Stacks,
    names: Names,
    entries: Entries,
    by_cause: [Histogram; 4],
    by_entry: Histograms,
    blocked: Histograms,
    delays: Longest,
    blocks: Longest,
    series: Series<KINDS>,
    /// `GOMAXPROCS`, since when.
    procs: Option<(u64, Timestamp)>,
    last: Option<Timestamp>,
    /// There was no event since the last loss.
    is_lost: bool,
    cut: u64,
    /// Of a part of a trace.
    part: Option<Part>,
}

/// The longest stalls. No two events have the same time, so the order is that of no part.
type Longest = Worst<(Duration, Reverse<Timestamp>), Found>;

/// The events of a part of a trace that depend on those before it: of goroutines of which the state
/// or the entry function is not known yet.
#[derive(Debug, Default)]
struct Part {
    log: Log,
    /// The entry functions that are assumed for goroutines from before the part.
    assumed: Vec<(GoId, u32)>,
    /// Those of which the state is known from some event on, too.
    settled: Vec<GoId>,
    /// The goroutine that an event is on, and its entry function, where the part knows it.
    unblockers: Vec<(usize, GoId, u32)>,
}

/// The kinds of time of [`Scheduling::series`].
const RUNNING: usize = 0;
const GC: usize = 1;
const SYSCALL: usize = 2;
const RUNNABLE: usize = 3;
const PROCS: usize = 4;
const KINDS: usize = 5;

/// Details of an interval of a goroutine.
#[derive(Clone, Copy, Debug, Default)]
struct Detail {
    cause: RunnableCause,
    reason: u32,
    /// The stack at which it stopped.
    stack: u32,
    by: Option<By>,
    is_worker: bool,
    /// It gets the P of the coroutine that switches to it: it waits for none.
    is_switch: bool,
}

/// The goroutine that made another one runnable, its entry function, and its stack.
type By = (GoId, u32, u32);

/// A stall, in numbers.
#[derive(Clone, Copy, Debug)]
struct Found {
    goroutine: GoId,
    entry: u32,
    start: Timestamp,
    duration: Duration,
    reason: u32,
    stack: u32,
    by: Option<By>,
}

/// The entry functions of live goroutines.
#[derive(Debug, Default)]
struct Entries {
    /// [`NO_ENTRY`] if there is none, or the goroutine has ended in a part of a trace.
    live: IdMap<u32>,
    /// The entry function of each stack of the generation.
    of_stacks: Numbers,
    /// Whether a function is one of the runtime's own, by the number of its name.
    system: Vec<bool>,
    /// In a part of a trace.
    is_part: bool,
}

const NO_ENTRY: u32 = 0;
/// The entry function is not known in a part of a trace.
const UNKNOWN_ENTRY: u32 = u32::MAX;

impl Entries {
    #[inline]
    fn get(&self, id: GoId) -> u32 {
        match self.live.get(id.0) {
            Some(entry) => *entry,
            None if self.is_part => UNKNOWN_ENTRY,
            None => NO_ENTRY,
        }
    }

    /// The goroutine is new, or has ended.
    fn reset(&mut self, id: GoId) {
        if self.is_part {
            *self.live.insert(id.0) = NO_ENTRY;
        } else {
            self.live.remove(id.0);
        }
    }

    /// Remembers the entry function of a goroutine when a stack first has it. Returns whether it is
    /// known.
    #[inline]
    fn identify(&mut self, event: Event<'_>, step: &Step, names: &mut Names) -> bool {
        if step.from == GoState::NotExist {
            self.reset(step.id);
        }
        let is_known = self.live.get(step.id.0).is_some_and(|entry| *entry != NO_ENTRY);
        if step.stack == 0 || is_known {
            return is_known;
        }
        let of_stack =
            || event.table.entry(step.stack).map_or(NO_ENTRY, |f| names.of(event.table, f.func));
        let entry = self.of_stacks.number(event.table, step.stack, of_stack);
        if entry != NO_ENTRY {
            *self.live.insert(step.id.0) = entry;
        }
        entry != NO_ENTRY
    }

    fn is_system(&mut self, entry: u32, names: &Names) -> bool {
        while self.system.len() < names.len() {
            let name = names.get(self.system.len() as u32);
            self.system.push(is_system(name));
        }
        self.system.get(entry as usize).copied().unwrap_or(true)
    }

    /// Adds the goroutines of the part that follows.
    fn join(&mut self, part: &Self, number: impl Fn(u32) -> u32) {
        for id in part.live.ids() {
            self.set(GoId(id), part.live.get(id).map_or(NO_ENTRY, |entry| number(*entry)));
        }
    }

    fn set(&mut self, id: GoId, entry: u32) {
        match entry {
            NO_ENTRY => _ = self.live.remove(id.0),
            entry => *self.live.insert(id.0) = entry,
        }
    }
}

impl Scheduling {
    /// Maximum number of entry functions, and of reasons to block, that are kept apart: about 32 MB
    /// each. Programs have fewer.
    pub const MAX_NAMES: usize = 1 << 12;

    /// Makes an analysis that has seen no event.
    pub fn new(options: SchedulingOptions) -> Self {
        let mut stacks = Stacks::default();
        stacks.number(None); // number 0
        Self {
            options,
            intervals: Intervals::default(),
            stacks,
            names: Names::default(),
            entries: Entries::default(),
            by_cause: Default::default(),
            by_entry: Histograms::default(),
            blocked: Histograms::default(),
            delays: Worst::new(options.worst),
            blocks: Worst::new(options.worst),
            series: Series::new(options.intervals),
            procs: None,
            last: None,
            is_lost: false,
            cut: 0,
            part: None,
        }
    }

    /// Processes the next event of the trace.
    #[inline]
    pub fn push(&mut self, event: Event<'_>) {
        if event.record.restarts() {
            self.loss();
        }
        if event.record.is_without_time() {
            return;
        }
        let now = event.time();
        let is_first = self.last.replace(now).is_none();
        if self.is_lost {
            self.resume(now);
        }
        self.series.begin(now);
        let change = Change::of(event);
        if self.part.is_some() && self.defer(event, change.as_ref(), is_first) {
            return;
        }
        match event.record.ty {
            EventType::PROCS_CHANGE => return self.resize(event),
            EventType::GO_LABEL => return self.label(event),
            _ => {}
        }
        let Self { intervals, stacks, names, entries, .. } = self;
        let ended = intervals.push(event, change, |step, before| {
            entries.identify(event, step, names);
            detail(event, step, before, stacks, names, entries)
        });
        if let Some(interval) = ended {
            self.interval(&interval, Some(event));
        }
        if let EventType::GO_DESTROY | EventType::GO_DESTROY_SYSCALL = event.record.ty {
            self.entries.reset(event.goroutine());
        }
    }

    /// Keeps an event of a part of a trace if it depends on the events before the part. Returns
    /// whether there is nothing else to do now.
    #[inline]
    fn defer(&mut self, event: Event<'_>, change: Option<&Change>, is_first: bool) -> bool {
        let Self { part: Some(part), intervals, .. } = self else { return false };
        let Part { log, assumed, settled, unblockers } = part;
        let (stacks, names, entries) = (&mut self.stacks, &mut self.names, &mut self.entries);
        let step = match change {
            Some(Change::Goroutine(step)) if step.from == step.to => return true,
            Some(Change::Goroutine(step)) if intervals.contains(step.id) => return false,
            Some(Change::Goroutine(step)) if step.from == GoState::NotExist => return false,
            Some(Change::Goroutine(step)) => step,
            Some(Change::Proc(id, from, ProcState::Idle)) if *from != ProcState::Idle => {
                let is_unknown = intervals.syscalls.resolve(*id);
                if is_unknown {
                    log.keep(event);
                }
                return is_unknown;
            }
            Some(Change::Proc(..)) => return true,
            None => {
                let is_known = match event.record.ty {
                    EventType::GO_LABEL => intervals.contains(event.goroutine()),
                    EventType::PROCS_CHANGE => false,
                    SYNC => {
                        if is_first && event.sync().is_some_and(|sync| sync.n() == 1) {
                            self.series.restart(event.time());
                        }
                        false
                    }
                    _ => return true,
                };
                if !is_known {
                    log.keep(event);
                }
                return !is_known;
            }
        };
        if let Some(by) = unblocker(event, step.id) {
            let entry = entries.get(by);
            if entry != UNKNOWN_ENTRY && log.is_complete() {
                unblockers.push((log.len(), by, entry));
            }
        }
        log.keep(event);
        if step.to == GoState::NotExist {
            entries.reset(step.id);
            return true;
        }
        let is_identified = entries.identify(event, step, names);
        if is_identified {
            assumed.push((step.id, entries.get(step.id)));
        }
        if is_identified && step.from != GoState::Undetermined && !keeps_stack(step) {
            // From here on, its state is known too.
            settled.push(step.id);
            let change = Some(Change::Goroutine(*step));
            intervals.push(event, change, |step, before| {
                detail(event, step, before, stacks, names, entries)
            });
        } else if step.to == GoState::Syscall {
            intervals.syscalls.forget(event.proc());
        }
        true
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover). States
    /// count up to the last event before it, and from where the trace mentions them again. The lost
    /// time is none of the processors.
    pub fn loss(&mut self) {
        let Some(last) = self.last else { return };
        self.is_lost = true;
        if let Some((count, since)) = &mut self.procs {
            self.series.add(PROCS, *since, last, *count);
            *since = last;
        }
        for interval in self.intervals.loss(last) {
            self.interval(&interval, None);
        }
    }

    /// The first event after a loss.
    #[cold]
    fn resume(&mut self, now: Timestamp) {
        self.is_lost = false;
        if let Some((_, since)) = &mut self.procs {
            *since = now;
        }
    }

    /// Completes the analysis after the last event.
    pub fn finish(mut self) -> SchedulingReport {
        let last = self.last.unwrap_or_default();
        if let Some((count, since)) = self.procs {
            self.series.add(PROCS, since, last, count);
        }
        for interval in std::mem::take(&mut self.intervals).finish(last) {
            self.interval(&interval, None);
        }
        let stalls =
            |worst: Longest| worst.into_items().map(|found| self.stall(&found)).collect::<Vec<_>>();
        let (delays, blocks) = (stalls(self.delays.clone()), stalls(self.blocks.clone()));
        let causes = [
            RunnableCause::Created,
            RunnableCause::Unblocked,
            RunnableCause::Preempted,
            RunnableCause::Syscall,
        ];
        let mut latency = Histogram::default();
        self.by_cause.iter().for_each(|each| latency.merge(each));
        SchedulingReport {
            delays,
            blocks,
            by_cause: causes.into_iter().zip(self.by_cause).collect(),
            merged: self.by_entry.merged + self.blocked.merged,
            by_entry: self.by_entry.sorted(&self.names),
            blocked: self.blocked.sorted(&self.names),
            processors: processors(&self.series, last),
            latency,
            cut: self.cut,
        }
    }

    /// `GOMAXPROCS` may have changed.
    fn resize(&mut self, event: Event<'_>) {
        let Some(metric) = event.metric().filter(|metric| metric.name == Metric::GOMAXPROCS) else {
            return;
        };
        // A damaged trace may contain any number.
        let count = metric.value.as_u64().unwrap_or(0).min(1 << 16);
        let now = event.time();
        match self.procs.replace((count, now)) {
            Some((before, since)) => self.series.add(PROCS, since, now, before),
            // v1 traces have no value before the first change.
            None => self.series.add(PROCS, self.series.start().unwrap_or(now), now, count),
        }
    }

    fn label(&mut self, event: Event<'_>) {
        let is_worker = event.label().is_some_and(|label| label.label.starts_with(b"GC ("));
        if let Some(detail) = self.intervals.data_mut(event.goroutine()).filter(|_| is_worker) {
            detail.is_worker = true;
        }
    }

    /// Counts an interval, which this event ended.
    fn interval(&mut self, interval: &Interval<Detail>, event: Option<Event<'_>>) {
        let Interval { goroutine, state, start, end, no_proc, is_cut, data } = interval;
        let kind = match state {
            GoState::Running if data.is_worker => GC,
            GoState::Running => RUNNING,
            GoState::Syscall => SYSCALL,
            GoState::Runnable => RUNNABLE,
            GoState::Waiting => return self.blocked(interval, event),
            _ => return,
        };
        self.series.add(kind, *start, no_proc.unwrap_or(*end), 1);
        if kind != RUNNABLE || data.is_switch {
            return;
        }
        let runs = event.and_then(Step::of).is_some_and(|step| step.to == GoState::Running);
        if *is_cut || !runs {
            self.cut += 1;
            return;
        }
        let duration = *end - *start;
        let nanos = end.nanos_since(*start);
        let entry = self.entries.get(*goroutine);
        if let Some(histogram) = self.by_cause.get_mut(data.cause as usize) {
            histogram.add(nanos);
        }
        self.by_entry.add(entry, nanos);
        self.delays.add((duration, Reverse(*end)), || found(interval, entry, data.by));
    }

    fn blocked(&mut self, interval: &Interval<Detail>, event: Option<Event<'_>>) {
        let Interval { goroutine, start, end, is_cut, data, .. } = interval;
        let Some(event) = event.filter(|_| !is_cut) else {
            self.cut += 1;
            return;
        };
        self.blocked.add(data.reason, end.nanos_since(*start));
        let entry = self.entries.get(*goroutine);
        if self.entries.is_system(entry, &self.names) {
            return;
        }
        let (stacks, entries) = (&mut self.stacks, &self.entries);
        self.blocks.add((*end - *start, Reverse(*end)), || {
            let by = unblocker(event, *goroutine);
            let by = by.map(|id| (id, entries.get(id), stacks.of(event.table, stack_of(event))));
            found(interval, entry, by)
        });
    }

    fn stall(&self, found: &Found) -> Stall {
        let frames = |stack: u32| self.stacks.frames(stack as usize).cloned().collect();
        Stall {
            goroutine: found.goroutine,
            entry: self.names.get(found.entry).clone(),
            start: found.start,
            duration: found.duration,
            reason: self.names.get(found.reason).clone(),
            stack: frames(found.stack),
            by: found.by.map(|(goroutine, entry, stack)| Unblocker {
                goroutine,
                entry: self.names.get(entry).clone(),
                stack: frames(stack),
            }),
        }
    }
}

impl Split for Scheduling {
    fn push(&mut self, event: Event<'_>) {
        self.push(event);
    }

    fn part(&self, start: Timestamp) -> Self {
        let mut part = Self::new(self.options);
        part.part = Some(Part::default());
        part.intervals = Intervals::part();
        part.entries.is_part = true;
        part.series.begin(start);
        part
    }

    fn is_continued_by(&self, part: &Self) -> bool {
        let Some(Part { log, assumed, .. }) = &part.part else { return false };
        let is_right = |(id, entry): &(GoId, u32)| match self.entries.get(*id) {
            NO_ENTRY => true, // it is found as in the part
            known => self.names.get(known) == part.names.get(*entry),
        };
        log.is_complete()
            && (self.last.is_none() || self.series.start() == part.series.start())
            && self.by_entry.is_continued_by(&part.by_entry)
            && self.blocked.is_continued_by(&part.blocked)
            && assumed.iter().all(is_right)
    }

    fn join(&mut self, part: Self) {
        let names = self.names.append(&part.names);
        let mut stacks = Vec::new();
        self.stacks.append(&part.stacks, part.stacks.len(), &mut stacks);
        let number = |numbers: &[u32], n: u32| numbers.get(n as usize).copied().unwrap_or(0);
        let (name, stack) = (|n| number(&names, n), |n| number(&stacks, n));
        let mut open = part.intervals;
        let entries = &self.entries;
        let by = |(id, entry, at): By| match entry {
            // It has ended before, or was not identified until then.
            UNKNOWN_ENTRY => (id, entries.get(id), stack(at)),
            entry => (id, name(entry), stack(at)),
        };
        let found = |found: Found| Found {
            entry: name(found.entry),
            reason: name(found.reason),
            stack: stack(found.stack),
            by: found.by.map(by),
            ..found
        };
        open.map(|detail| Detail {
            reason: name(detail.reason),
            stack: stack(detail.stack),
            by: detail.by.map(by),
            ..detail
        });
        self.delays.join(part.delays, found);
        self.blocks.join(part.blocks, found);
        self.series.merge(part.series);
        self.by_cause.iter_mut().zip(&part.by_cause).for_each(|(all, part)| all.merge(part));
        self.by_entry.merge(&part.by_entry, name);
        self.blocked.merge(&part.blocked, name);
        self.cut += part.cut;
        let Part { log, settled, unblockers, .. } = part.part.unwrap_or_default();
        let mut unblockers = unblockers.into_iter().peekable();
        for (index, event) in log.events().enumerate() {
            while let Some((_, id, entry)) = unblockers.next_if(|(at, ..)| *at == index) {
                self.entries.set(id, name(entry));
            }
            self.push(event);
        }
        for id in settled {
            self.intervals.remove(id); // it may have ended in the part
        }
        self.intervals.join(open);
        self.entries.join(&part.entries, name);
        self.last = part.last.or(self.last);
    }

    fn loss(&mut self) {
        self.loss();
    }
}

/// Histograms by the number of a name.
#[derive(Debug, Default)]
struct Histograms {
    /// By number: the place of its histogram, [`NO_PLACE`] before the first time.
    places: Vec<u32>,
    /// Each with its number.
    histograms: Vec<(u32, Histogram)>,
    /// The number of times that count for number 0, the empty name, as there are too many others.
    merged: u64,
}

const NO_PLACE: u32 = u32::MAX;

impl Histograms {
    #[inline]
    fn add(&mut self, number: u32, nanos: i64) {
        if let Some(histogram) = self.of(number, 1) {
            histogram.add(nanos);
        }
    }

    /// The histogram of a name, for `count` more times.
    #[inline]
    fn of(&mut self, number: u32, count: u64) -> Option<&mut Histogram> {
        let known = self.places.get(number as usize).filter(|place| **place != NO_PLACE);
        let place = match known {
            Some(place) => *place,
            None => self.place(number, count),
        };
        self.histograms.get_mut(place as usize).map(|(_, histogram)| histogram)
    }

    #[cold]
    fn place(&mut self, number: u32, count: u64) -> u32 {
        let is_full = self.histograms.len() >= Scheduling::MAX_NAMES;
        if is_full && number != 0 {
            self.merged += count;
            return self
                .places
                .first()
                .copied()
                .filter(|place| *place != NO_PLACE)
                .unwrap_or_else(|| self.place(0, count));
        }
        let index = number as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, NO_PLACE);
        }
        let place = self.histograms.len() as u32;
        self.histograms.push((number, Histogram::default()));
        if let Some(entry) = self.places.get_mut(index) {
            *entry = place;
        }
        place
    }

    /// Whether those of a part can be added with the result of a reading of the whole.
    fn is_continued_by(&self, part: &Self) -> bool {
        part.merged == 0 && self.histograms.len() + part.histograms.len() <= Scheduling::MAX_NAMES
    }

    fn merge(&mut self, part: &Self, number: impl Fn(u32) -> u32) {
        for (n, part) in &part.histograms {
            if let Some(histogram) = self.of(number(*n), part.count()) {
                histogram.merge(part);
            }
        }
        self.merged += part.merged;
    }

    /// The histograms with their names, largest sum first.
    fn sorted(self, names: &Names) -> Vec<(Name, Histogram)> {
        let named = self.histograms.into_iter();
        let mut named: Vec<_> = named.map(|(n, each)| (names.get(n).clone(), each)).collect();
        named.sort_by(|(a, x), (b, y)| y.sum().cmp(&x.sum()).then_with(|| a.cmp(b)));
        named
    }
}

/// The other goroutine that causes a transition.
fn unblocker(event: Event<'_>, id: GoId) -> Option<GoId> {
    Some(event.goroutine()).filter(|by| by.is_some() && *by != id)
}

/// Whether a goroutine stopped where it did when the state before began.
const fn keeps_stack(step: &Step) -> bool {
    matches!((step.from, step.to), (GoState::Waiting | GoState::Syscall, GoState::Runnable))
}

#[inline]
fn detail(
    event: Event<'_>,
    step: &Step,
    before: Option<&Detail>,
    stacks: &mut Stacks,
    names: &mut Names,
    entries: &Entries,
) -> Detail {
    let mut detail = Detail::default();
    let Step { id, from, to, reason, stack } = *step;
    if !matches!(to, GoState::Runnable | GoState::Waiting | GoState::Syscall) {
        return detail;
    }
    detail.cause = match from {
        GoState::Waiting => RunnableCause::Unblocked,
        GoState::Running => RunnableCause::Preempted,
        GoState::Syscall => RunnableCause::Syscall,
        _ => RunnableCause::Created,
    };
    detail.reason = names.of(event.table, reason);
    if keeps_stack(step) {
        detail.stack = before.map_or(0, |before| before.stack);
    } else if from != GoState::NotExist {
        detail.stack = stacks.of(event.table, stack);
    }
    if to == GoState::Runnable {
        let ty = event.record.ty;
        detail.is_switch = matches!(ty, EventType::GO_SWITCH | EventType::GO_SWITCH_DESTROY);
        let by = unblocker(event, id);
        detail.by = by.map(|by| (by, entries.get(by), stacks.of(event.table, stack_of(event))));
    }
    detail
}

fn found(interval: &Interval<Detail>, entry: u32, by: Option<By>) -> Found {
    let Interval { goroutine, start, end, data, .. } = interval;
    Found {
        goroutine: *goroutine,
        entry,
        start: *start,
        duration: *end - *start,
        reason: data.reason,
        stack: data.stack,
        by,
    }
}

fn processors(series: &Series<KINDS>, last: Timestamp) -> Vec<ProcessorUse> {
    let width = Duration::from_nanos(series.width());
    series
        .iter()
        .map(|(start, sums)| {
            let length = (last - start).min(width);
            let nanos = (length.as_nanos() as f64).max(1.0);
            let [running, gc, syscall, runnable, procs] = sums.map(|sum| sum as f64 / nanos);
            ProcessorUse { start, length, procs, running, gc, syscall, runnable }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_many_names_are_merged() {
        const COUNT: u32 = 3 * Scheduling::MAX_NAMES as u32;
        let (mut names, mut all) = (Names::default(), Histograms::default());
        for number in 0..COUNT {
            names.number(number.to_string().as_str().into());
        }
        let mut first = Histograms::default();
        for number in (1..=COUNT).rev().chain(1..=COUNT) {
            all.add(number, 10);
            first.add(1 + number % 100, 10);
        }
        let merged = u64::from(COUNT - Scheduling::MAX_NAMES as u32);
        assert_eq!((all.histograms.len(), all.merged), (Scheduling::MAX_NAMES + 1, 2 * merged));
        assert!(!first.is_continued_by(&all) && !all.is_continued_by(&first));
        assert!(first.is_continued_by(&first));
        let sorted = all.sorted(&names);
        let (rest, histogram) = &sorted[0];
        assert_eq!((rest.is_empty(), histogram.count()), (true, 2 * merged));
        assert!(sorted[1..].iter().all(|(name, each)| !name.is_empty() && each.count() == 2));
    }
}
