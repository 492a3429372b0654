//! Profiles by stack: delays of goroutines, CPU samples, and starts of GC cycles.

use super::heads::Heads;
use super::numbers::Numbers;
use super::stacks::Stacks;
use super::step::{Step, stack_of};
use super::{Goroutine, Name, Region, Task};
use crate::event::{Event, EventKind, RangeName};
use crate::id::{GoId, GoState};
use crate::parallel::Split;
use crate::table::Table;
use bstr::ByteSlice;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use trace_common::{IdMap, Timestamp};

/// The quantity that a [`Profile`] measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProfileKind {
    /// Time blocked in network I/O, by the stack that blocked. Go: `-pprof=net`.
    Network,
    /// Time blocked in channel operations, `select` and package `sync`, by the stack that blocked.
    /// Go: `-pprof=sync`.
    Sync,
    /// Time in system calls, by the stack of the call. Go: `-pprof=syscall`.
    Syscall,
    /// Time between becoming runnable and running, by the stack that made the goroutine runnable:
    /// its own if it was preempted or yielded, otherwise that of the goroutine that unblocked it.
    /// Go: `-pprof=sched`.
    Scheduler,
    /// Samples of the CPU profiler, which the program must have started: only counts, as the
    /// trace does not contain the sampling rate.
    Cpu,
    /// Starts of GC cycles, by the stack that started them: only counts. A cycle that began before
    /// the trace has no such stack, and is not counted.
    GcCycles,
}

impl ProfileKind {
    /// Every kind, in order.
    pub const ALL: [Self; 6] =
        [Self::Network, Self::Sync, Self::Syscall, Self::Scheduler, Self::Cpu, Self::GcCycles];

    /// The name, as in `go tool trace -pprof=NAME`: `net`, `sync`, `syscall`, `sched`; `cpu`, `gc`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Sync => "sync",
            Self::Syscall => "syscall",
            Self::Scheduler => "sched",
            Self::Cpu => "cpu",
            Self::GcCycles => "gc",
        }
    }

    /// Whether the kind counts single events, which have no duration.
    const fn counts_events(self) -> bool {
        matches!(self, Self::Cpu | Self::GcCycles)
    }

    /// Whether an event is one of those that are counted.
    fn counts(self, event: Event<'_>) -> bool {
        match (self, event.kind()) {
            (Self::Cpu, kind) => kind == EventKind::StackSample,
            (Self::GcCycles, EventKind::RangeBegin) => {
                event.range().is_some_and(|range| matches!(range.name, RangeName::GcMark))
            }
            _ => false,
        }
    }

    /// Whether goroutines that wait for `reason` are delayed in the sense of this kind.
    fn waits(self, reason: &[u8]) -> bool {
        let has = |part: &str| reason.contains_str(part);
        match self {
            Self::Network => reason == b"network",
            Self::Sync => has("chan") || has("sync") || has("select"),
            Self::Syscall | Self::Scheduler | Self::Cpu | Self::GcCycles => false,
        }
    }

    const fn state(self) -> GoState {
        match self {
            Self::Network | Self::Sync | Self::Cpu | Self::GcCycles => GoState::Waiting,
            Self::Syscall => GoState::Syscall,
            Self::Scheduler => GoState::Runnable,
        }
    }
}

/// A frame of a stack in a [`Profile`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Frame {
    /// The program counter.
    pub pc: u64,
    /// The name of the function.
    pub function: Name,
    /// The path of the source file.
    pub file: Name,
    /// The line in that file.
    pub line: u64,
}

/// The delays with one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delay {
    /// The number of delays, of CPU samples, or of GC cycles.
    pub count: u64,
    /// Their duration; zero for CPU samples and GC cycles.
    pub time: Duration,
}

/// The part of a trace that a [`Profile`] covers: intervals of time, of all or of some goroutines.
///
/// A delay that is partly within an interval counts with that part.
#[derive(Clone, Debug, Default)]
pub struct ProfileScope {
    since_first_run: bool,
    window: Option<(Timestamp, Timestamp)>,
    goroutines: Option<HashMap<GoId, Vec<(Timestamp, Timestamp)>>>,
}

impl ProfileScope {
    /// The whole trace.
    pub fn all() -> Self {
        Self::default()
    }

    /// All goroutines from the first time that they run: the scope of `go tool trace -pprof`. The
    /// wait of a new goroutine for its first P is not in it.
    pub fn since_first_run() -> Self {
        Self { since_first_run: true, ..Self::default() }
    }

    /// Restricts the scope to the time from `start` to `end`.
    pub const fn limit(&mut self, start: Timestamp, end: Timestamp) {
        self.window = Some((start, end));
    }

    /// Adds the time of a goroutine from its first run to its end. Goroutines that are not added
    /// are no longer in the scope.
    pub fn add_goroutine(&mut self, goroutine: &Goroutine) {
        let start = goroutine.start.unwrap_or(Timestamp::MIN);
        self.add(goroutine.id, start, goroutine.end);
    }

    /// Adds the time of a region. Goroutines without an added region are no longer in the scope.
    /// Time that is in several regions of the scope counts once.
    pub fn add_region(&mut self, region: &Region) {
        self.add(region.goroutine, region.counted_from(), region.end);
    }

    /// Adds the time of a task on the goroutine that began and ended it: see [`Task::own`]. With the
    /// regions of the task (see [`ProfileScope::add_region`]) this is all of its time.
    pub fn add_task(&mut self, task: &Task) {
        if let (Some((id, _)), Some(start)) = (&task.own, task.start) {
            self.add(*id, start, task.end);
        }
    }

    fn add(&mut self, id: GoId, start: Timestamp, end: Option<Timestamp>) {
        let intervals = self.goroutines.get_or_insert_default().entry(id).or_default();
        intervals.push((start, end.unwrap_or(Timestamp::MAX)));
    }

    /// Whether goroutines or regions were added.
    pub const fn is_selected(&self) -> bool {
        self.goroutines.is_some()
    }

    /// Whether `go tool trace` has this scope. It counts delays from before the trace, from the first
    /// event about their goroutine.
    const fn is_of_go(&self) -> bool {
        self.since_first_run || self.goroutines.is_some()
    }

    /// Joins the intervals of each goroutine that overlap or touch.
    fn joined(mut self) -> Self {
        for intervals in self.goroutines.iter_mut().flat_map(HashMap::values_mut) {
            intervals.sort_unstable();
            intervals.dedup_by(|next, last| {
                let touches = next.0 <= last.1;
                if touches {
                    last.1 = last.1.max(next.1);
                }
                touches
            });
        }
        self
    }

    /// The part of the time from `start` to `end` that is in the scope.
    fn overlap(&self, id: GoId, start: Timestamp, end: Timestamp) -> Duration {
        let (from, to) = self.window.unwrap_or((Timestamp::MIN, Timestamp::MAX));
        let (start, end) = (start.max(from), end.min(to));
        let within = |(from, to): (Timestamp, Timestamp)| {
            let nanos = end.min(to).nanos_since(start.max(from));
            Duration::from_nanos(nanos.max(0).unsigned_abs())
        };
        match &self.goroutines {
            None => within((from, to)),
            Some(_) => self
                .intervals(id, start)
                .iter()
                .take_while(|(from, _)| *from < end)
                .map(|interval| within(*interval))
                .sum(),
        }
    }

    /// The intervals of a goroutine that do not end before `time`. They are in order, and do not
    /// overlap.
    fn intervals(&self, id: GoId, time: Timestamp) -> &[(Timestamp, Timestamp)] {
        let of = self.goroutines.as_ref().and_then(|goroutines| goroutines.get(&id));
        let intervals = of.map(Vec::as_slice).unwrap_or_default();
        let first = intervals.partition_point(|(_, to)| *to < time);
        intervals.get(first..).unwrap_or_default()
    }

    fn contains(&self, id: GoId, time: Timestamp) -> bool {
        let within = |(from, to): (Timestamp, Timestamp)| from <= time && time <= to;
        let is_selected = || self.intervals(id, time).first().is_some_and(|first| within(*first));
        self.window.is_none_or(within) && (self.goroutines.is_none() || is_selected())
    }
}

/// Sums up delays of goroutines, CPU samples, or starts of GC cycles, by stack.
///
/// With [`ProfileScope::since_first_run`] the numbers are those of `go tool trace -pprof`. Delays
/// that began before the trace or outlast it, or that a [loss](Self::loss) cuts off, are not
/// counted, with one exception: in that scope and in one of added goroutines, regions or tasks, a
/// delay that began before the trace counts from the first event about its goroutine, as in Go.
///
/// ```
/// use gotrace::Reader;
/// use gotrace::analysis::{Profile, ProfileKind, ProfileScope};
///
/// # fn main() -> Result<(), gotrace::Error> {
/// # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
/// let mut reader = Reader::new(file)?;
/// let mut profile = Profile::new(ProfileKind::Sync, ProfileScope::all());
/// while let Some(event) = reader.next_event()? {
///     profile.push(event);
/// }
/// profile.finish();
/// for (delay, stack) in profile.stacks() {
///     let innermost = stack.map(|frame| frame.function.to_string()).next().unwrap_or_default();
///     println!("{:>12?} {:>6}  {innermost}", delay.time, delay.count);
/// }
/// # assert!(profile.stacks().count() > 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Profile {
    sums: Sums,
    goroutines: IdMap<Progress>,
    /// Of a part of a trace: transitions that depend on the events before it.
    heads: Option<Heads>,
}

/// The delays so far, by stack.
#[derive(Debug)]
struct Sums {
    kind: ProfileKind,
    scope: Arc<ProfileScope>,
    stacks: Stacks,
    /// By number of the stack.
    delays: Vec<Delay>,
    /// Reasons to wait: 1 if they are of this kind.
    reasons: Numbers,
    /// The number of losses so far.
    losses: u32,
}

/// The state of a live goroutine.
#[derive(Debug, Default)]
struct Progress {
    /// It is delayed: since when, and with which stack.
    delay: Option<(Timestamp, u32)>,
    /// The number of losses before the delay: after a further one its end is not known.
    losses: u32,
    /// Whether it has run.
    started: bool,
    /// Delays before it ran first: dropped when it runs, counted if it never does.
    early: Vec<(u32, Duration)>,
}

impl Profile {
    /// Makes an empty profile.
    pub fn new(kind: ProfileKind, scope: ProfileScope) -> Self {
        Self::with(kind, Arc::new(scope.joined()), None)
    }

    fn with(kind: ProfileKind, scope: Arc<ProfileScope>, heads: Option<Heads>) -> Self {
        let (stacks, reasons) = (Stacks::default(), Numbers::default());
        let sums = Sums { kind, scope, stacks, delays: Vec::new(), reasons, losses: 0 };
        Self { sums, goroutines: IdMap::default(), heads }
    }

    /// The quantity that it measures.
    pub const fn kind(&self) -> ProfileKind {
        self.sums.kind
    }

    /// Processes the next event of the trace.
    #[inline]
    pub fn push(&mut self, event: Event<'_>) {
        if event.record.restarts() {
            self.loss();
        }
        if self.sums.kind.counts_events() {
            self.count(event);
        } else if let Some(step) = Step::of(event) {
            let progress = match self.goroutines.get_mut(step.id.0) {
                Some(progress) => progress,
                None => {
                    if self.keep_head(event, step) {
                        return;
                    }
                    self.goroutines.insert(step.id.0).reset()
                }
            };
            self.sums.step(progress, event.table, event.time(), stack_of(event), step);
            if step.to == GoState::NotExist {
                self.end(step.id);
            }
        }
    }

    /// Keeps a transition for later that depends on the events before this part of a trace; `false`
    /// if it does not.
    #[cold]
    fn keep_head(&mut self, event: Event<'_>, step: Step) -> bool {
        let Some(heads) = self.heads.as_mut().filter(|_| step.from != GoState::NotExist) else {
            return false;
        };
        heads.keep(event, step, self.sums.stacks.len());
        if step.to == GoState::Running {
            self.goroutines.insert(step.id.0).reset().started = true;
        }
        true
    }

    fn count(&mut self, event: Event<'_>) {
        let Sums { kind, scope, stacks, delays, .. } = &mut self.sums;
        if kind.counts(event) && scope.contains(event.goroutine(), event.time()) {
            let stack = stacks.number(event.stack());
            add(delays, stack, Duration::ZERO);
        }
    }

    fn end(&mut self, id: GoId) {
        if let Some(progress) = self.goroutines.remove(id.0) {
            let early = progress.early.drain(..);
            early.for_each(|(stack, time)| add(&mut self.sums.delays, stack, time));
        }
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover). Delays
    /// that began before it do not count.
    pub const fn loss(&mut self) {
        self.sums.losses = self.sums.losses.wrapping_add(1);
    }

    /// Completes the profile after the last event: counts what depends on later events.
    pub fn finish(&mut self) {
        let ids: Vec<i64> = self.goroutines.ids().collect();
        ids.into_iter().for_each(|id| self.end(GoId(id)));
    }

    /// The delays and their stacks, innermost frame first, in the order of first appearance. One
    /// stack may be empty: that of events without.
    pub fn stacks(&self) -> impl Iterator<Item = (Delay, impl Iterator<Item = &Frame> + Clone)> {
        let Sums { delays, stacks, .. } = &self.sums;
        let delays = delays.iter().enumerate().filter(|(_, delay)| delay.count > 0);
        delays.map(|(number, delay)| (*delay, stacks.frames(number)))
    }
}

impl Sums {
    /// Processes a transition of the goroutine with this progress.
    #[inline]
    fn step(
        &mut self,
        progress: &mut Progress,
        table: &Table,
        now: Timestamp,
        stack: u64,
        step: Step,
    ) {
        let Self { kind, scope, stacks, delays, reasons, losses } = self;
        if progress.losses != *losses {
            (progress.delay, progress.losses) = (None, *losses);
        }
        if step.to == kind.state() {
            let is_delay = match kind {
                ProfileKind::Network | ProfileKind::Sync => {
                    let reason = || table.string(step.reason).unwrap_or_default();
                    reasons.number(table, step.reason, || kind.waits(reason()).into()) != 0
                }
                _ => true,
            };
            // Otherwise the event only says that the goroutine is delayed since some time before.
            let begins = step.from != step.to && step.from != GoState::Undetermined;
            let begins = begins || (*losses == 0 && scope.is_of_go());
            if is_delay && begins && progress.delay.is_none() {
                progress.delay = Some((now, stacks.of(table, stack)));
            }
        } else if let Some((since, stack)) = progress.delay.take() {
            let time = scope.overlap(step.id, since, now);
            match (time.is_zero(), scope.since_first_run && !progress.started) {
                (true, _) => {}
                (false, true) => progress.early.push((stack, time)),
                (false, false) => add(delays, stack, time),
            }
        }
        if step.to == GoState::Running {
            progress.started = true;
            progress.early.clear();
        }
    }
}

impl Split for Profile {
    fn push(&mut self, event: Event<'_>) {
        self.push(event);
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self::with(self.sums.kind, Arc::clone(&self.sums.scope), Some(Heads::default()))
    }

    fn is_continued_by(&self, part: &Self) -> bool {
        part.heads.as_ref().is_some_and(Heads::is_complete)
    }

    fn join(&mut self, mut part: Self) {
        let mut numbers = Vec::new();
        let heads = part.heads.take().unwrap_or_default();
        for head in heads.iter() {
            // Stacks are numbered in the order of first appearance.
            self.sums.stacks.append(&part.sums.stacks, head.stacks, &mut numbers);
            let id = head.step.id;
            let progress = match self.goroutines.get_mut(id.0) {
                Some(progress) => progress,
                None => self.goroutines.insert(id.0).reset(),
            };
            self.sums.step(progress, head.table, head.time, head.stack, head.step);
            if head.step.to == GoState::NotExist {
                self.end(id);
            }
        }
        self.sums.stacks.append(&part.sums.stacks, part.sums.stacks.len(), &mut numbers);
        let number = |stack: u32| numbers.get(stack as usize).copied().unwrap_or(stack);
        for id in heads.settled() {
            self.goroutines.remove(id.0); // it may have ended in the part
        }
        for id in part.goroutines.ids().collect::<Vec<_>>() {
            let Some(progress) = part.goroutines.get_mut(id) else { continue };
            let joined = self.goroutines.insert(id).reset();
            joined.losses = self.sums.losses;
            joined.delay = progress.delay.map(|(since, stack)| (since, number(stack)));
            joined.started = progress.started;
            joined.early.extend(progress.early.drain(..).map(|(s, time)| (number(s), time)));
        }
        for (delay, stack) in part.sums.delays.iter().zip(0..) {
            if delay.count > 0 {
                let sum = entry(&mut self.sums.delays, number(stack));
                sum.count += delay.count;
                sum.time += delay.time;
            }
        }
    }

    fn loss(&mut self) {
        self.loss();
    }
}

impl Progress {
    /// That of a goroutine that was not seen before.
    fn reset(&mut self) -> &mut Self {
        (self.delay, self.losses, self.started) = (None, 0, false);
        self.early.clear();
        self
    }
}

fn add(delays: &mut Vec<Delay>, stack: u32, time: Duration) {
    let delay = entry(delays, stack);
    delay.count += 1;
    delay.time += time;
}

#[expect(clippy::indexing_slicing, reason = "the list was made longer than the index")]
fn entry(delays: &mut Vec<Delay>, stack: u32) -> &mut Delay {
    let index = stack as usize;
    if delays.len() <= index {
        delays.resize(index + 1, Delay::default());
    }
    &mut delays[index]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The scope is the union of the intervals.
        #[test]
        fn intervals_are_found(
            intervals in prop::collection::vec((-5_i64..40, 0_i64..9), 1..12),
            (start, length) in (0_i64..50, 0_i64..30),
        ) {
            let time = Timestamp::from_nanos;
            let mut scope = ProfileScope::default();
            // Some begin before the trace.
            let from = |from: i64| if from < 0 { Timestamp::MIN } else { time(from) };
            let end = |from: i64, length: i64| time(from.max(0) + length);
            for (begin, length) in &intervals {
                scope.add(GoId(1), from(*begin), Some(end(*begin, *length)));
            }
            let scope = scope.joined();
            let is_in = |at: Timestamp, next: Timestamp| {
                let covers = |(b, l): &(i64, i64)| from(*b) <= at && next <= end(*b, *l);
                intervals.iter().any(covers)
            };
            let sum = (start..start + length).filter(|at| is_in(time(*at), time(at + 1))).count();
            let overlap = scope.overlap(GoId(1), time(start), time(start + length));
            prop_assert_eq!(overlap.as_nanos(), sum as u128);
            prop_assert_eq!(scope.contains(GoId(1), time(start)), is_in(time(start), time(start)));
            prop_assert!(!scope.contains(GoId(2), time(start)));
        }
    }
}
