//! The state of a live goroutine.

use super::super::numbers::Names;
use super::super::{Name, RangeKind, Times};
use super::{Function, Goroutine, Region, between, is_system};
use crate::event::RangeName;
use crate::id::{GoId, ProcId, TaskId};
use crate::table::Table;
use std::time::Duration;
use trace_common::Timestamp;

/// A goroutine that has not ended.
///
/// Its times are counted up to the last change of its state, or the last [`Live::count`].
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Another one than that of all goroutines that had its id before: see [`Live::has`].
    serial: u64,
    entry: Option<Function>,
    created: Timestamp,
    pub(super) started: Option<Timestamp>,
    /// Since when it is in its state; `None` in a state that counts for nothing.
    pub(super) state: Option<(Phase, Timestamp)>,
    counts: Counts,
    /// Open ranges.
    ranges: Vec<(RangeNumber, Timestamp)>,
    /// Open regions, innermost last.
    regions: Vec<OpenRegion>,
    /// The number of open regions within these that are not kept.
    ignored: u64,
    /// The counts at the start of each open region, one after the other.
    snapshots: Vec<u64>,
    /// The counts at the last loss, and when the goroutine was mentioned first after it.
    base: Option<Box<Mark>>,
    /// The number of regions of the program that losses cut off, and that did not end since.
    cut: u64,
}

/// The counts in memory of all open regions and tasks, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Budget {
    used: usize,
    /// The number of regions that were not kept.
    pub(super) regions: u64,
    /// The number of tasks without times.
    pub(super) tasks: u64,
    /// The last [serial number](Live::serial).
    serial: u64,
}

impl Budget {
    /// 64 MB. A region or task has about 20 counts, so that this is enough for 400 000 open ones.
    const MAX: usize = 8 << 20;

    fn reserve(&mut self, counts: usize) -> bool {
        let has_room = self.used + counts <= Self::MAX;
        self.used += if has_room { counts } else { 0 };
        has_room
    }

    fn release(&mut self, counts: usize) {
        self.used = self.used.saturating_sub(counts);
    }
}

/// Counts of a goroutine for which an empty list keeps its memory.
const FEW_COUNTS: usize = 1 << 10;

/// Open regions of a goroutine that are kept. No program nests as many.
const MAX_REGIONS: usize = 1 << 10;
/// Reasons to wait, and kinds of ranges, of a goroutine that are kept apart. The runtime has fewer:
/// only a damaged trace has more.
const MAX_REASONS: usize = 64;

/// The state of a live goroutine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Running,
    Runnable,
    /// With the index of the reason in [`Counts::blocked`].
    Waiting(usize),
    /// With the proc, and since when the goroutine is without it.
    Syscall(ProcId, Option<Timestamp>),
}

/// The time in each state, in nanoseconds.
#[derive(Debug, Default)]
struct Counts {
    running: u64,
    runnable: u64,
    syscall: u64,
    syscall_blocked: u64,
    /// By number of the reason. A goroutine has few, so that a list is faster than a map.
    blocked: Vec<(u32, u64)>,
    ranges: Vec<(RangeNumber, u64)>,
}

/// A [`RangeKind`] with the number of its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeNumber {
    StopTheWorld(u32),
    GcMark,
    GcSweep,
    GcMarkAssist,
}

#[derive(Debug)]
struct OpenRegion {
    task: TaskId,
    name: Name,
    inherited: bool,
    start: Timestamp,
    /// Its part of [`Live::snapshots`] begins here, with this number of reasons.
    snapshot: usize,
    reasons: usize,
}

/// Counts at an earlier time, in the order of [`Counts::values`].
#[derive(Clone, Copy, Default)]
pub(super) struct Snapshot<'a> {
    values: &'a [u64],
    reasons: usize,
}

impl RangeNumber {
    pub(super) fn of(name: RangeName<'_>, names: &mut Names) -> Self {
        match name {
            RangeName::StopTheWorld(reason) => Self::StopTheWorld(names.number(reason.into())),
            RangeName::GcMark => Self::GcMark,
            RangeName::GcSweep => Self::GcSweep,
            RangeName::GcMarkAssist => Self::GcMarkAssist,
        }
    }

    /// The one for more than the maximum: without its reason.
    const fn rest(self) -> Self {
        match self {
            Self::StopTheWorld(_) => Self::StopTheWorld(0),
            other => other,
        }
    }

    fn kind(self, names: &Names) -> RangeKind {
        match self {
            Self::StopTheWorld(reason) => RangeKind::StopTheWorld(names.get(reason).clone()),
            Self::GcMark => RangeKind::GcMark,
            Self::GcSweep => RangeKind::GcSweep,
            Self::GcMarkAssist => RangeKind::GcMarkAssist,
        }
    }
}

fn nanos(from: Timestamp, to: Timestamp) -> u64 {
    to.nanos_since(from).max(0).unsigned_abs()
}

/// Adds to the sum of a key, or to that of `rest` if there are too many keys, and returns its index.
fn add<K: Copy + PartialEq>(sums: &mut Vec<(K, u64)>, key: K, rest: K, nanos: u64) -> usize {
    let find = |sums: &[(K, u64)], key| sums.iter().position(|(known, _)| *known == key);
    let index = find(sums, key).unwrap_or_else(|| {
        let key = if sums.len() < MAX_REASONS { key } else { rest };
        find(sums, key).unwrap_or_else(|| {
            sums.push((key, 0));
            sums.len() - 1
        })
    });
    if let Some((_, sum)) = sums.get_mut(index) {
        *sum = sum.saturating_add(nanos);
    }
    index
}

impl Counts {
    const STATES: usize = 4;

    fn len(&self) -> usize {
        Self::STATES + self.blocked.len() + self.ranges.len()
    }

    fn add(&mut self, phase: Phase, since: Timestamp, now: Timestamp) {
        let sum = match phase {
            Phase::Running => &mut self.running,
            Phase::Runnable => &mut self.runnable,
            Phase::Waiting(reason) => match self.blocked.get_mut(reason) {
                Some((_, sum)) => sum,
                None => return,
            },
            Phase::Syscall(_, None) => &mut self.syscall,
            Phase::Syscall(_, Some(blocked)) => {
                self.syscall_blocked = self.syscall_blocked.saturating_add(nanos(blocked, now));
                self.syscall = self.syscall.saturating_add(nanos(since, blocked));
                return;
            }
        };
        *sum = sum.saturating_add(nanos(since, now));
    }

    /// All counts: of the states, of the reasons, of the ranges.
    fn values(&self) -> impl Iterator<Item = u64> + '_ {
        let states = [self.running, self.runnable, self.syscall, self.syscall_blocked];
        let (reasons, ranges) = (self.blocked.iter(), self.ranges.iter());
        states.into_iter().chain(reasons.map(|(_, sum)| *sum)).chain(ranges.map(|(_, sum)| *sum))
    }

    /// The times since a snapshot.
    fn since(&self, earlier: Snapshot<'_>, total: Duration, names: &Names) -> Times {
        let Snapshot { values, reasons } = earlier;
        let at = |index: usize| values.get(index).copied().unwrap_or(0);
        let time = |now: u64, before: u64| Duration::from_nanos(now.saturating_sub(before));
        let blocked = self.blocked.iter().enumerate().map(|(index, (reason, sum))| {
            let before = if index < reasons { at(Self::STATES + index) } else { 0 };
            (names.get(*reason).clone(), time(*sum, before))
        });
        let ranges = self.ranges.iter().enumerate().map(|(index, (range, sum))| {
            (range.kind(names), time(*sum, at(Self::STATES + reasons + index)))
        });
        let mut times = Times::default();
        times.total = total;
        times.running = time(self.running, at(0));
        times.runnable = time(self.runnable, at(1));
        times.syscall = time(self.syscall, at(2));
        times.syscall_blocked = time(self.syscall_blocked, at(3));
        times.with(blocked, ranges)
    }
}

impl Live {
    /// Becomes a goroutine that was not seen before.
    pub(super) fn reset(&mut self, created: Timestamp, budget: &mut Budget) {
        budget.serial += 1;
        self.serial = budget.serial;
        (self.entry, self.created, self.started, self.state) = (None, created, None, None);
        let Counts { blocked, ranges, .. } = std::mem::take(&mut self.counts);
        self.counts = Counts { blocked, ranges, ..Counts::default() };
        self.counts.blocked.clear();
        self.counts.ranges.clear();
        self.ranges.clear();
        self.clear_regions(budget);
        (self.base, self.cut) = (None, 0);
    }

    fn clear_regions(&mut self, budget: &mut Budget) {
        self.regions.clear();
        self.ignored = 0;
        self.forget(0, budget);
    }

    /// Forgets the snapshots of all but the outer regions.
    fn forget(&mut self, outer: usize, budget: &mut Budget) {
        budget.release(self.snapshots.len().saturating_sub(outer));
        self.snapshots.truncate(outer);
        if outer == 0 && self.snapshots.capacity() > FEW_COUNTS {
            self.snapshots = Vec::new();
        }
    }

    /// Counts the time up to `now`.
    pub(super) fn count(&mut self, now: Timestamp) {
        if let Some((phase, since)) = &mut self.state {
            self.counts.add(*phase, *since, now);
            if let Phase::Syscall(_, Some(blocked)) = phase {
                *blocked = now;
            }
            *since = now;
        }
        for (range, since) in &mut self.ranges {
            add(&mut self.counts.ranges, *range, range.rest(), nanos(*since, now));
            *since = now;
        }
    }

    /// Counts the time up to `last`: the state from there on is lost, and so are the ends of ranges
    /// and regions.
    pub(super) fn lose(&mut self, last: Timestamp, budget: &mut Budget) {
        self.count(last);
        self.state = None;
        self.ranges.clear();
        let regions = self.regions.iter().filter(|region| !region.inherited).count() as u64;
        self.cut = self.cut.saturating_add(regions + self.ignored);
        self.clear_regions(budget);
        self.base = Some(Box::new(self.counted(last)));
    }

    /// The trace mentions the goroutine again, which has been there since this time.
    pub(super) fn resume(&mut self, since: Timestamp) {
        if let Some(base) = &mut self.base {
            base.at = since;
        }
    }

    /// Leaves the state and counts its time.
    #[inline]
    pub(super) fn leave(&mut self, now: Timestamp) {
        if let Some((phase, since)) = self.state.take() {
            self.counts.add(phase, since, now);
        }
    }

    /// The state of a goroutine that waits for this reason.
    #[inline]
    pub(super) fn wait(&mut self, reason: u32) -> Phase {
        Phase::Waiting(add(&mut self.counts.blocked, reason, 0, 0))
    }

    /// Takes the name from a stack of the goroutine.
    #[inline]
    pub(super) fn identify(&mut self, table: &Table, stack: u64) {
        let named = self.entry.as_ref().is_some_and(|entry| !entry.name.is_empty());
        if stack != 0 && !named {
            if let Some(frame) = table.entry(stack) {
                let name = Name::of(table, frame.func);
                self.entry = Some(Function { name, pc: frame.pc });
            }
        }
    }

    /// Begins a range, or ends it. A range that was open before is counted up to `start`, unless
    /// it begins again.
    pub(super) fn range(
        &mut self,
        range: RangeNumber,
        start: Timestamp,
        begins: bool,
        again: bool,
    ) {
        if begins && matches!(range, RangeNumber::StopTheWorld(_)) {
            self.end_other_stop(range, start);
        }
        let open = self.ranges.iter().position(|(open, _)| *open == range);
        let open = open.map(|at| self.ranges.swap_remove(at).1);
        if let (Some(since), false) = (open, again) {
            add(&mut self.counts.ranges, range, range.rest(), nanos(since, start));
        }
        if begins {
            // Up to its last count, an active range has been counted.
            let counted = open.filter(|_| !again).unwrap_or(start);
            self.ranges.push((range, start.max(counted)));
        }
    }

    /// A goroutine has one open stop of the world, whatever a crafted trace says: each event of a
    /// region counts the open ranges.
    fn end_other_stop(&mut self, range: RangeNumber, now: Timestamp) {
        let is_other = |(open, _): &(RangeNumber, Timestamp)| {
            *open != range && matches!(open, RangeNumber::StopTheWorld(_))
        };
        if let Some(other) = self.ranges.iter().position(is_other) {
            let (other, since) = self.ranges.swap_remove(other);
            add(&mut self.counts.ranges, other, other.rest(), nanos(since, now));
        }
    }

    /// The task of the innermost region.
    pub(super) fn task(&self) -> Option<TaskId> {
        self.regions.last().map(|region| region.task)
    }

    pub(super) fn begin_region(
        &mut self,
        task: TaskId,
        name: Name,
        inherited: bool,
        start: Timestamp,
        budget: &mut Budget,
    ) {
        self.count(start);
        let is_within = self.ignored == 0 && self.regions.len() < MAX_REGIONS;
        if !is_within || !budget.reserve(self.counts.len()) {
            self.ignored += 1;
            budget.regions += 1;
            return;
        }
        let snapshot = self.snapshots.len();
        self.snapshots.extend(self.counts.values());
        let reasons = self.counts.blocked.len();
        self.regions.push(OpenRegion { task, name, inherited, start, snapshot, reasons });
    }

    /// Whether the innermost region is not kept. It ends.
    pub(super) fn end_ignored(&mut self) -> bool {
        let is_ignored = self.ignored > 0;
        self.ignored -= u64::from(is_ignored);
        is_ignored
    }

    /// Ends the innermost region.
    pub(super) fn end_region(
        &mut self,
        id: GoId,
        now: Timestamp,
        names: &Names,
        budget: &mut Budget,
    ) -> Option<Region> {
        self.count(now);
        let region = self.regions.pop()?;
        let closed = self.close(region, id, now, Some(now), names, budget);
        Some(closed)
    }

    fn close(
        &mut self,
        open: OpenRegion,
        goroutine: GoId,
        now: Timestamp,
        end: Option<Timestamp>,
        names: &Names,
        budget: &mut Budget,
    ) -> Region {
        let OpenRegion { task, name, inherited, start, snapshot, reasons } = open;
        let values = self.snapshots.get(snapshot..).unwrap_or_default();
        let total = between(start, now);
        let times = self.counts.since(Snapshot { values, reasons }, total, names);
        self.forget(snapshot, budget);
        Region { goroutine, task, name, inherited, start: Some(start), end, times }
    }

    /// Ends a region that began before the trace, or before a loss: returns the times up to now from
    /// the start of the goroutine or from its first mention after the loss, and whether the begin of
    /// the region has been counted.
    pub(super) fn end_unknown_region(&mut self, now: Timestamp, names: &Names) -> (Times, bool) {
        let was_cut = self.cut > 0;
        self.cut -= u64::from(was_cut);
        let times = match self.base.take() {
            Some(base) => {
                let times = self.since(&base, now, names);
                self.base = Some(base);
                times
            }
            None => self.times(now, names),
        };
        (times, was_cut)
    }

    /// The times up to now, from the start of the goroutine.
    fn times(&mut self, now: Timestamp, names: &Names) -> Times {
        self.count(now);
        self.counts.since(Snapshot::default(), between(self.created, now), names)
    }

    /// The counts up to now, if there is room for them.
    pub(super) fn mark(&mut self, now: Timestamp, budget: &mut Budget) -> Option<Mark> {
        self.count(now);
        if !budget.reserve(self.counts.len()) {
            budget.tasks += 1;
            return None;
        }
        Some(self.counted(now))
    }

    /// The counts, which are those up to now.
    fn counted(&self, now: Timestamp) -> Mark {
        let (values, reasons) = (self.counts.values().collect(), self.counts.blocked.len());
        Mark { serial: self.serial, at: now, values, reasons }
    }

    /// Whether a mark is one of this goroutine. A thread of C has one id for all its calls, which are one
    /// goroutine each.
    pub(super) const fn has(&self, mark: &Mark) -> bool {
        self.serial == mark.serial
    }

    /// The times since a mark of the same goroutine.
    pub(super) fn since(&mut self, mark: &Mark, now: Timestamp, names: &Names) -> Times {
        self.count(now);
        let Mark { at, values, reasons, .. } = mark;
        let earlier = Snapshot { values, reasons: *reasons };
        self.counts.since(earlier, between(*at, now), names)
    }

    /// Computes the final times.
    pub(super) fn finish(
        &mut self,
        id: GoId,
        now: Timestamp,
        ended: Option<Timestamp>,
        names: &Names,
        budget: &mut Budget,
    ) -> Goroutine {
        let times = self.times(now, names);
        let entry = self.entry.take();
        let mut open_regions = Vec::new();
        if entry.as_ref().is_some_and(|entry| !is_system(&entry.name)) {
            while let Some(region) = self.regions.pop() {
                open_regions.push(self.close(region, id, now, ended, names, budget));
            }
            open_regions.reverse();
        }
        self.clear_regions(budget);
        let (created, started) = (self.created, self.started);
        Goroutine { id, entry, created, start: started, end: ended, times, open_regions }
    }
}

/// The counts of a goroutine at a time.
#[derive(Debug)]
pub(super) struct Mark {
    /// That of the goroutine.
    serial: u64,
    at: Timestamp,
    values: Box<[u64]>,
    reasons: usize,
}

impl Mark {
    /// It is not needed any more.
    pub(super) fn forget(&self, budget: &mut Budget) {
        budget.release(self.values.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_ranges_of_a_goroutine_are_few() {
        let mut live = Live::default();
        let at = Timestamp::from_nanos;
        for number in 0..1_000 {
            let stop = RangeNumber::StopTheWorld(number);
            for other in [RangeNumber::GcSweep, RangeNumber::GcMarkAssist, stop] {
                live.range(other, at(10 * i64::from(number)), true, true);
            }
            assert!(live.ranges.len() <= 3, "{:?}", live.ranges);
        }
        live.range(RangeNumber::StopTheWorld(999), at(10_000), false, false);
        let stopped = live.counts.ranges.iter().map(|(_, nanos)| nanos).sum::<u64>();
        assert_eq!((stopped, live.ranges.len()), (10_000, 2));
    }
}
