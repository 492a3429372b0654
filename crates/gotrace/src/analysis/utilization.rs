//! Mutator utilization: the part of the processors that the GC leaves to the program.

use super::log::Log;
use super::step::Step;
use crate::event::{Event, EventKind, Metric, RangeName};
use crate::id::{GoId, GoState, ProcId};
use crate::parallel::Split;
use crate::spec::EventType;
use bstr::ByteSlice;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;
use trace_common::{IdMap, SeededState, Timestamp};

/// The activities of the GC that count as time taken from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct UtilizationOptions {
    /// The GC stops the world. On by default.
    pub stop_the_world: bool,
    /// Background mark workers. On by default.
    pub background: bool,
    /// Goroutines that assist the mark phase. On by default.
    pub assist: bool,
    /// Sweeping. Off by default, as in Go's tool: it is often much more than it seems to cost.
    pub sweep: bool,
    /// One function for each P instead of their average. Dedicated mark workers do not count
    /// then: they keep all goroutines away from their P. There are up to 65 536: further Ps, when
    /// `GOMAXPROCS` changes often, have none. Off by default.
    pub per_proc: bool,
}

impl Default for UtilizationOptions {
    fn default() -> Self {
        Self { stop_the_world: true, background: true, assist: true, sweep: false, per_proc: false }
    }
}

impl UtilizationOptions {
    /// Whether a label is that of a background worker that counts.
    fn is_worker(self, event: Event<'_>) -> bool {
        let Some(label) = event.label().filter(|_| self.background) else { return false };
        let worker = label.label.starts_with(b"GC ") && *label.label != *b"GC (idle)";
        let elsewhere = self.per_proc && *label.label == *b"GC (dedicated)";
        worker && !elsewhere
    }
}

/// Computes the mutator utilization over time.
///
/// The functions are those of Go's `internal/trace.MutatorUtilizationV2`, with two exceptions. Go
/// counts each run of a background worker but its first twice, and ends it once, so that its
/// utilization remains too low from then on. It counts no stop of the world if `GOMAXPROCS` appears
/// first while the world is stopped (Go ≤ 1.21). Memory is used for each
/// change of the utilization: a few for each cycle and assist of the GC.
#[derive(Debug)]
pub struct Utilization {
    options: UtilizationOptions,
    stopped: usize,
    /// `GOMAXPROCS`; 0 if it is not known.
    procs: usize,
    /// Activities of the GC on each P, unless there are none.
    active: BTreeMap<usize, i64>,
    /// The number of Ps with such activities.
    busy: usize,
    /// The series of Ps to look at.
    outdated: Outdated,
    /// The series of the Ps: of each, or one for all.
    live: Vec<usize>,
    /// `GOMAXPROCS` over time.
    counts: Vec<(Timestamp, usize)>,
    assisting: HashSet<GoId, SeededState>,
    /// Background workers that run.
    workers: HashSet<GoId, SeededState>,
    /// Goroutines that execute, in the first generation.
    executing: IdMap<()>,
    syncs: u64,
    /// There was no event since the last loss.
    is_lost: bool,
    /// In the rest of a generation with a loss, or in the one that follows the loss: what is active
    /// then has not been seen when it began.
    is_resuming: bool,
    /// Whether there was a loss.
    has_loss: bool,
    /// By how many activities values were too high: those before this number, in order.
    corrections: Vec<(usize, u64)>,
    series: Vec<Vec<(Timestamp, f64)>>,
    /// The P of each series, unless there is one for all.
    owners: Vec<ProcId>,
    /// The number of changes of the series of Ps, how often one was looked at, and the number of
    /// changes that are not kept.
    changes: usize,
    visits: usize,
    dropped: u64,
    last: Option<Timestamp>,
    /// Of a part of a trace that does not begin with it.
    part: Option<Box<Part>>,
}

/// The events of a part of a trace that may change the utilization.
#[derive(Debug, Default)]
struct Part {
    log: Log,
    /// Whether the events begin with those of a generation.
    begins_generation: bool,
    workers: HashSet<GoId, SeededState>,
    assisting: HashSet<GoId, SeededState>,
    /// Goroutines that may assist since before the part.
    others: IdMap<Other>,
}

/// The changes between executing and not executing of a goroutine in a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Other {
    /// One, which is kept.
    #[default]
    One,
    /// Several, which are not kept.
    More,
    /// It assists no longer, and all before is kept.
    Ended,
}

/// The number of functions that are kept. No honest trace changes `GOMAXPROCS` that often.
const MAX_SERIES: usize = 1 << 16;
/// The number of changes of all functions of Ps that are kept: 192 MB. A stop of the world is two for
/// each P.
const MAX_CHANGES: usize = 1 << 23;
/// How often functions of Ps are looked at for a change. Most that are looked at do change.
const MAX_VISITS: usize = 8 * MAX_CHANGES;

/// The series of Ps that may not have the value of their P.
#[derive(Debug, Default)]
struct Outdated {
    all: bool,
    procs: Vec<usize>,
    /// Series with a lower value at this time, which counts until then.
    lower: Vec<usize>,
    at: Timestamp,
}

impl Utilization {
    /// Makes an analysis that has seen no event.
    pub fn new(options: UtilizationOptions) -> Self {
        Self {
            options,
            stopped: 0,
            procs: 0,
            active: BTreeMap::new(),
            busy: 0,
            outdated: Outdated::default(),
            live: Vec::new(),
            counts: Vec::new(),
            assisting: HashSet::default(),
            workers: HashSet::default(),
            executing: IdMap::default(),
            syncs: 0,
            is_lost: false,
            is_resuming: false,
            has_loss: false,
            corrections: Vec::new(),
            series: Vec::new(),
            owners: Vec::new(),
            changes: 0,
            visits: 0,
            dropped: 0,
            last: None,
            part: None,
        }
    }

    /// Processes the next event of the trace.
    pub fn push(&mut self, event: Event<'_>) {
        if event.record.restarts() {
            self.loss();
        }
        let is_first = self.last.replace(event.time()).is_none();
        let was_lost = std::mem::take(&mut self.is_lost);
        if let Some(part) = &mut self.part {
            if !is_first || event.sync().is_none_or(|sync| sync.n() != 1) {
                return part.push(event, self.options, is_first);
            }
            self.part = None; // it begins with the trace
        }
        let changed = match event.kind() {
            EventKind::Sync => {
                self.syncs = event.sync().map_or(0, |sync| sync.n());
                if self.syncs > 1 {
                    self.executing = IdMap::default();
                }
                self.is_resuming = was_lost;
                false
            }
            EventKind::Metric => self.resize(event),
            // The first known number of procs is at the start of the trace.
            _ if self.procs == 0 => false,
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event)
            }
            EventKind::StateTransition => self.transition(event),
            EventKind::Label => self.label(event),
            _ => false,
        };
        if changed {
            self.record(event.time());
        }
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover). Nothing
    /// of the GC is active from the last event before it, until the trace mentions it again.
    pub fn loss(&mut self) {
        self.correct(); // there are no more corrections
        (self.is_lost, self.is_resuming, self.has_loss) = (true, true, true);
        self.stopped = 0;
        self.active.clear();
        self.busy = 0;
        // Clearing them would visit the places of all that were there.
        (self.assisting, self.workers) = (HashSet::default(), HashSet::default());
        self.executing = IdMap::default();
        self.outdated = Outdated { all: true, ..Outdated::default() };
        let Some(last) = self.last else { return };
        if self.is_full() {
            self.dropped += 1;
            return;
        }
        // A change at the last event would count instead: the lower one does.
        for number in &self.live {
            if let Some(series) = self.series.get_mut(*number) {
                if series.last().is_some_and(|(time, _)| *time == last) {
                    series.pop();
                }
            }
        }
        self.record(last);
    }

    /// Completes the functions and returns the minimum utilization of windows of any length.
    pub fn finish(mut self) -> MinimumUtilization {
        self.correct();
        if let Some(last) = self.last {
            for number in &self.live {
                if let Some(series) = self.series.get_mut(*number) {
                    push(series, last, 0.0);
                }
            }
        }
        let owners = self.owners.into_iter().map(Some).chain(std::iter::repeat(None));
        let series = self.series.into_iter().zip(owners);
        let series = series.map(|(each, owner)| Series::new(each, owner)).collect();
        MinimumUtilization { series, dropped: self.dropped }
    }

    /// Follows a change of `GOMAXPROCS`.
    fn resize(&mut self, event: Event<'_>) -> bool {
        /// Far above the runtime's own limit; a damaged trace may contain any number.
        const MAX: u64 = 1 << 16;
        let Some(metric) = event.metric().filter(|metric| metric.name == Metric::GOMAXPROCS) else {
            return false;
        };
        let count = metric.value.as_u64().unwrap_or(0).min(MAX) as usize;
        let ended = self.active.split_off(&count);
        self.busy -= ended.values().filter(|active| **active > 0).count();
        self.procs = count;
        self.outdated.all = true;
        self.resize_series(event.time());
        if self.counts.last().is_none_or(|(_, n)| *n != count) {
            self.counts.push((event.time(), count));
        }
        true
    }

    /// Ends the series of Ps that no longer exist, and begins those of new ones.
    fn resize_series(&mut self, now: Timestamp) {
        if !self.options.per_proc {
            if self.series.is_empty() && self.procs > 0 {
                self.series.push(vec![(now, 1.0)]);
            }
            self.live.clear();
            self.live.extend((self.procs > 0).then_some(0));
            return;
        }
        for number in self.live.drain(self.procs.min(self.live.len())..) {
            if let Some(series) = self.series.get_mut(number) {
                push(series, now, 0.0);
            }
        }
        while self.live.len() < self.procs && self.series.len() < MAX_SERIES {
            self.owners.push(ProcId(self.live.len() as i64));
            self.live.push(self.series.len());
            self.series.push(vec![(now, 1.0)]);
        }
    }

    fn range(&mut self, event: Event<'_>) -> bool {
        let Some(range) = event.range() else { return false };
        let options = self.options;
        let kind = event.kind();
        if kind == EventKind::RangeActive && self.syncs > 1 && !self.is_resuming {
            return false; // seen when it began
        }
        let step = if kind == EventKind::RangeEnd { -1 } else { 1 };
        match range.name {
            RangeName::StopTheWorld(reason) if options.stop_the_world => {
                if reason.contains_str("GC") {
                    let was_stopped = self.stopped > 0;
                    self.stopped = self.stopped.saturating_add_signed(step as isize);
                    self.outdated.all |= was_stopped != (self.stopped > 0);
                }
            }
            RangeName::GcSweep if options.sweep => {
                if kind == EventKind::RangeActive {
                    self.was_active_before();
                }
                self.count(event.proc(), step);
            }
            RangeName::GcMarkAssist if options.assist => {
                if kind == EventKind::RangeActive && self.executing.contains(event.goroutine().0) {
                    self.was_active_before();
                }
                if let Some(id) = range.scope.goroutine().filter(|id| id.is_some()) {
                    if step > 0 {
                        self.assisting.insert(id);
                    } else if !self.assisting.remove(&id) && self.has_loss {
                        return false; // its begin is lost, and did not count
                    }
                }
                self.count(event.proc(), step);
            }
            _ => return false,
        }
        true
    }

    /// Corrects the average for an activity that is seen now, but has been there since the start
    /// of the trace.
    ///
    /// The last value is corrected at once, because the next one is compared with it. The others do
    /// not change any more, and are corrected once: see [`Utilization::correct`].
    fn was_active_before(&mut self) {
        if self.options.per_proc {
            return; // the P is mentioned for the first time
        }
        if self.has_loss {
            return; // it counts from here on
        }
        let Some((last, before)) = self.series.first_mut().and_then(|s| s.split_last_mut()) else {
            return;
        };
        let earlier = self.counts.partition_point(|(since, _)| *since < last.0);
        if let Some((_, procs)) = self.counts.get(earlier.saturating_sub(1)) {
            last.1 = corrected(last.1, 1, *procs);
        }
        match self.corrections.last_mut() {
            Some((len, count)) if *len == before.len() => *count += 1,
            _ => self.corrections.push((before.len(), 1)),
        }
    }

    /// Applies the corrections of earlier values.
    fn correct(&mut self) {
        let corrections = std::mem::take(&mut self.corrections);
        let Some(series) = self.series.first_mut() else { return };
        let mut counts = self.counts.iter().peekable();
        let Some((_, mut procs)) = counts.next().copied() else { return };
        let mut left: u64 = corrections.iter().map(|(_, count)| count).sum();
        let mut corrections = corrections.into_iter().peekable();
        for (index, (time, utilization)) in series.iter_mut().enumerate() {
            while let Some((_, count)) = corrections.next_if(|(len, _)| *len <= index) {
                left -= count;
            }
            if left == 0 {
                break;
            }
            while let Some((_, next)) = counts.next_if(|(since, _)| since < time) {
                procs = *next;
            }
            *utilization = corrected(*utilization, left, procs);
        }
    }

    fn transition(&mut self, event: Event<'_>) -> bool {
        let Some(Step { id, from, to, .. }) = Step::of(event) else { return false };
        if self.syncs <= 1 {
            if to.executing() {
                self.executing.insert(id.0);
            } else {
                self.executing.remove(id.0);
            }
        }
        if from.executing() == to.executing()
            || self.workers.is_empty() && self.assisting.is_empty()
        {
            return false;
        }
        // A worker has its label each time that it starts, after the transition.
        let worker = !to.executing() && self.workers.remove(&id);
        if !worker && !self.assisting.contains(&id) {
            return false;
        }
        self.count(event.proc(), if to.executing() { 1 } else { -1 });
        true
    }

    fn label(&mut self, event: Event<'_>) -> bool {
        if !self.options.is_worker(event) {
            return false;
        }
        if self.workers.insert(event.goroutine()) {
            self.count(event.proc(), 1);
        }
        true
    }

    fn count(&mut self, proc: ProcId, step: i64) {
        let proc = usize::try_from(proc.0).ok().filter(|proc| *proc < self.procs);
        let Some(proc) = proc else { return };
        let active = self.active.entry(proc).or_default();
        let was_busy = *active > 0;
        *active += step;
        if self.has_loss {
            *active = (*active).max(0); // the begin of what ends may be lost
        }
        let (is_busy, is_idle) = (*active > 0, *active == 0);
        if is_idle {
            self.active.remove(&proc);
        }
        self.busy = self.busy + usize::from(is_busy) - usize::from(was_busy);
        if self.options.per_proc && is_busy != was_busy {
            self.outdated.procs.push(proc);
        }
    }

    /// Whether the series of Ps do not change any more.
    const fn is_full(&self) -> bool {
        self.options.per_proc && (self.changes >= MAX_CHANGES || self.visits >= MAX_VISITS)
    }

    fn record(&mut self, now: Timestamp) {
        let stopped = self.stopped > 0;
        if self.options.per_proc {
            if self.is_full() {
                self.dropped += 1;
                self.outdated = Outdated::default();
                return;
            }
            let outdated = &mut self.outdated;
            let all = std::mem::take(&mut outdated.all);
            let mut procs = std::mem::take(&mut outdated.procs);
            if all {
                procs = (0..self.live.len()).collect();
                outdated.lower.clear();
            } else if outdated.at != now {
                procs.append(&mut outdated.lower);
            }
            outdated.at = now;
            self.visits += procs.len();
            for proc in procs {
                self.record_proc(proc, now, stopped);
            }
        } else if let (Some(series), 1..) = (self.series.first_mut(), self.procs) {
            let busy = if stopped { self.procs } else { self.busy };
            push(series, now, 1.0 - busy as f64 / self.procs as f64);
        }
    }

    fn record_proc(&mut self, proc: usize, now: Timestamp, stopped: bool) {
        let is_busy = stopped || self.active.get(&proc).is_some_and(|active| *active > 0);
        let utilization = if is_busy { 0.0 } else { 1.0 };
        let number = self.live.get(proc);
        let Some(series) = number.and_then(|number| self.series.get_mut(*number)) else { return };
        let before = series.len();
        push(series, now, utilization);
        self.changes += series.len() - before;
        if series.last().is_some_and(|(_, last)| *last != utilization) {
            self.outdated.lower.push(proc);
        }
    }
}

impl Part {
    /// Keeps an event if it may change the utilization.
    fn push(&mut self, event: Event<'_>, options: UtilizationOptions, is_first: bool) {
        let keep = match event.kind() {
            EventKind::Sync => {
                self.begins_generation |= is_first;
                true
            }
            EventKind::Metric => event.record.ty == EventType::PROCS_CHANGE,
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event);
                true
            }
            EventKind::StateTransition => self.transition(event),
            EventKind::Label if options.is_worker(event) => {
                self.workers.insert(event.goroutine());
                true
            }
            _ => false,
        };
        if keep {
            self.log.keep(event);
        }
    }

    /// Follows the goroutines that assist.
    fn range(&mut self, event: Event<'_>) {
        let Some(range) = event.range().filter(|range| range.name == RangeName::GcMarkAssist)
        else {
            return;
        };
        let Some(id) = range.scope.goroutine() else { return };
        if event.kind() != EventKind::RangeEnd {
            self.assisting.insert(id);
        } else if !self.assisting.remove(&id) && self.others.get(id.0) != Some(&Other::More) {
            *self.others.insert(id.0) = Other::Ended;
        }
    }

    fn transition(&mut self, event: Event<'_>) -> bool {
        let Some(Step { id, from, to, .. }) = Step::of(event) else { return false };
        if from == GoState::NotExist {
            *self.others.insert(id.0) = Other::Ended; // it does not assist
        }
        if from.executing() == to.executing() {
            return false;
        }
        let is_known = !to.executing() && self.workers.remove(&id) || self.assisting.contains(&id);
        match self.others.get_mut(id.0) {
            _ if is_known => true,
            Some(other @ Other::One) => {
                *other = Other::More;
                false
            }
            Some(_) => false,
            None => {
                *self.others.insert(id.0) = Other::One;
                true
            }
        }
    }
}

impl Split for Utilization {
    fn push(&mut self, event: Event<'_>) {
        self.push(event);
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self { part: Some(Box::default()), ..Self::new(self.options) }
    }

    fn is_continued_by(&self, part: &Self) -> bool {
        let Some(part) = &part.part else { return self.last.is_none() };
        // In the first generation, all goroutines that execute matter.
        part.log.is_complete()
            && (part.begins_generation || self.syncs > 1)
            && self.assisting.iter().all(|id| part.others.get(id.0) != Some(&Other::More))
    }

    fn join(&mut self, part: Self) {
        match part.part {
            None => *self = part,
            Some(events) => {
                events.log.events().for_each(|event| self.push(event));
                self.last = part.last.or(self.last);
            }
        }
    }

    fn loss(&mut self) {
        self.loss();
    }
}

/// The utilization with this number of further activities on as many Ps.
fn corrected(utilization: f64, activities: u64, procs: usize) -> f64 {
    (utilization - activities as f64 / procs as f64).max(0.0)
}

/// Adds a change; of two at one time the lower counts.
fn push(series: &mut Vec<(Timestamp, f64)>, time: Timestamp, utilization: f64) {
    match series.last_mut() {
        Some((_, last)) if *last == utilization => {}
        Some((at, last)) if *at == time => *last = last.min(utilization),
        _ => series.push((time, utilization)),
    }
}

/// The minimum mutator utilization (MMU) of windows of time.
#[derive(Clone, Debug)]
pub struct MinimumUtilization {
    series: Vec<Series>,
    dropped: u64,
}

/// A window of time with little utilization.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Window {
    /// The number of the function: see [`MinimumUtilization::functions`].
    pub function: usize,
    /// The P of the function with [`UtilizationOptions::per_proc`]. A P that ends and begins again
    /// when `GOMAXPROCS` changes has several functions.
    pub proc: Option<ProcId>,
    /// The start of the window.
    pub start: Timestamp,
    /// Its length.
    pub length: Duration,
    /// The mean utilization in the window, from 0 to 1.
    pub utilization: f64,
}

/// A function that is constant between changes.
#[derive(Clone, Debug)]
struct Series {
    proc: Option<ProcId>,
    changes: Vec<(Timestamp, f64)>,
    /// The integral up to each change, in nanoseconds.
    sums: Vec<f64>,
}

impl MinimumUtilization {
    /// The functions: changes of the utilization, each from that time on. One, or with
    /// [`UtilizationOptions::per_proc`] one for each P from its start to its end. The last value
    /// is 0, and only marks the end.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &[(Timestamp, f64)]> {
        self.series.iter().map(|series| &series.changes[..])
    }

    /// The number of changes of the activity of the GC that are not in the functions of Ps, because
    /// there were too many: about 8 million changes of functions are kept. If it is not 0, the
    /// functions do not change any more from there on, and the results are not right.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The minimum utilization of any window of this length, from 0 to 1. A window longer than the
    /// trace is cut to the length of the trace. 0 for a length of 0; 1 without events.
    ///
    /// Go's `MMUCurve.MMU` can be less: it may look at a window that extends past the end of the trace,
    /// and counts the time after the end as utilization 0.
    pub fn of(&self, window: Duration) -> f64 {
        if window.is_zero() {
            return 0.0;
        }
        let least = |series: &Series| {
            let length = series.clamp(window);
            let means = series.windows(length).map(|(_, mean)| mean);
            means.fold(1.0, f64::min)
        };
        self.series.iter().map(least).fold(1.0, f64::min)
    }

    /// Up to `count` windows of this length with the least utilization, least first. They are
    /// disjoint within a function.
    pub fn worst(&self, window: Duration, count: usize) -> Vec<Window> {
        let order = |a: &Window, b: &Window| {
            a.utilization.total_cmp(&b.utilization).then(a.start.cmp(&b.start))
        };
        let mut worst: Vec<Window> = Vec::new();
        // Only windows of one function overlap, so that those of each can be selected alone.
        for (function, series) in self.series.iter().enumerate() {
            let length = series.clamp(window);
            let windows = series.windows(length).map(|(start, utilization)| Window {
                function,
                proc: series.proc,
                start,
                length: Duration::from_nanos(length),
                utilization,
            });
            let mut candidates: Vec<Window> = windows.collect();
            candidates.sort_by(order);
            // The starts of the windows that are selected. Of disjoint ones, only neighbours can overlap another.
            let mut selected: BTreeSet<Timestamp> = BTreeSet::new();
            for candidate in candidates {
                if selected.len() == count {
                    break;
                }
                let start = candidate.start;
                let before = selected.range(..=start).next_back();
                let after = selected.range(start..).next();
                let overlaps = |other: &Timestamp| other.nanos_since(start).unsigned_abs() < length;
                if !before.into_iter().chain(after).any(overlaps) {
                    selected.insert(start);
                    worst.push(candidate);
                }
            }
            worst.sort_by(order);
            worst.truncate(count);
        }
        worst
    }
}

impl Series {
    fn new(changes: Vec<(Timestamp, f64)>, proc: Option<ProcId>) -> Self {
        let mut sums = Vec::with_capacity(changes.len());
        let mut sum = 0.0;
        let mut previous: Option<(Timestamp, f64)> = None;
        for (time, utilization) in &changes {
            if let Some((since, value)) = previous {
                sum += value * time.nanos_since(since) as f64;
            }
            sums.push(sum);
            previous = Some((*time, *utilization));
        }
        Self { proc, changes, sums }
    }

    fn start(&self) -> Timestamp {
        self.changes.first().map_or(Timestamp::MIN, |(time, _)| *time)
    }

    fn end(&self) -> Timestamp {
        self.changes.last().map_or(Timestamp::MIN, |(time, _)| *time)
    }

    /// The length of a window in nanoseconds, at most that of the function.
    fn clamp(&self, window: Duration) -> u64 {
        let whole = self.end().nanos_since(self.start()).max(0).unsigned_abs();
        u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).min(whole)
    }

    /// The integral up to `time`. `cursor` is the last change that is not later; calls come in
    /// order of time.
    fn integral(&self, time: Timestamp, cursor: &mut usize) -> f64 {
        while self.changes.get(*cursor + 1).is_some_and(|(next, _)| *next <= time) {
            *cursor += 1;
        }
        match (self.changes.get(*cursor), self.sums.get(*cursor)) {
            (Some((since, value)), Some(sum)) => sum + value * time.nanos_since(*since) as f64,
            _ => 0.0,
        }
    }

    /// The windows that begin or end at a change, in order of time: the mean of a window between
    /// two of them is between theirs.
    fn windows(&self, length: u64) -> impl Iterator<Item = (Timestamp, f64)> {
        let nanos = i64::try_from(length).unwrap_or(i64::MAX);
        let last = self.end().saturating_add_nanos(-nanos);
        let mut starting = self.changes.iter().map(|(time, _)| *time).peekable();
        let ends = self.changes.iter().map(move |(time, _)| time.saturating_add_nanos(-nanos));
        let first = self.start();
        let mut ending = ends.skip_while(move |start| *start < first).peekable();
        let (mut left, mut right) = (0, 0);
        std::iter::from_fn(move || {
            let start = match (starting.peek().copied(), ending.peek().copied()) {
                (Some(a), Some(b)) => a.min(b),
                (Some(a), None) => a,
                (None, b) => b?,
            };
            starting.next_if_eq(&start);
            ending.next_if_eq(&start);
            if length == 0 || start > last {
                return None;
            }
            let to = self.integral(start.saturating_add_nanos(nanos), &mut right);
            let from = self.integral(start, &mut left);
            Some((start, (to - from) / length as f64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Range;
    use crate::synthetic::{EventConfig, EventDetails};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_loss_visits_no_places_of_assists_before_others() {
        const COUNT: i64 = 10_000;
        let mut utilization = Utilization::new(UtilizationOptions::default());
        let mut emit = |time, details: EventDetails<'_>| {
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            utilization.push(event.proc(ProcId(0)).build().unwrap().as_event());
            let capacity = utilization.assisting.capacity() as i64;
            if time >= COUNT {
                utilization.loss();
            }
            capacity
        };
        let assist = |id| Range::new(RangeName::GcMarkAssist, GoId(id));
        emit(0, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, 1_u64)));
        (1..COUNT).for_each(|id| _ = emit(id, EventDetails::RangeBegin(assist(id))));
        for time in COUNT..2 * COUNT {
            let capacity = emit(time, EventDetails::RangeBegin(assist(1)));
            assert_eq!(capacity >= COUNT - 1, time == COUNT);
        }
    }

    /// The windows of a function, each compared with all that are selected.
    fn naive(series: &Series, window: Duration, count: usize) -> Vec<(Timestamp, f64)> {
        let length = series.clamp(window);
        let mut candidates: Vec<_> = series.windows(length).collect();
        candidates.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let mut selected: Vec<(Timestamp, f64)> = Vec::new();
        for (start, mean) in candidates {
            let is_disjoint =
                |other: &(Timestamp, f64)| other.0.nanos_since(start).unsigned_abs() >= length;
            if selected.len() < count && selected.iter().all(is_disjoint) {
                selected.push((start, mean));
            }
        }
        selected
    }

    proptest! {
        #[test]
        fn the_worst_windows_are_disjoint(
            steps in vec((0..20i64, 0..4u8), 1..60),
            window in 1..100u64,
            count in 0..20usize,
        ) {
            let mut at = Timestamp::default();
            let changes = steps.into_iter().map(|(nanos, value)| {
                at = at.saturating_add_nanos(nanos);
                (at, f64::from(value) / 4.0)
            });
            let series = Series::new(changes.collect(), None);
            let window = Duration::from_nanos(window);
            let expected = naive(&series, window, count);
            let curve = MinimumUtilization { series: vec![series], dropped: 0 };
            let worst = curve.worst(window, count);
            let worst: Vec<_> = worst.iter().map(|one| (one.start, one.utilization)).collect();
            prop_assert_eq!(worst, expected);
        }
    }
}
