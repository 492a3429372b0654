//! Profiles by stack: delays of goroutines, and CPU samples.

use super::stacks::Stacks;
use super::{Goroutine, Name, Region};
use crate::event::{Event, EventKind};
use crate::id::{GoId, GoState};
use crate::table::SeededState;
use bstr::ByteSlice;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use trace_common::Timestamp;

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
}

impl ProfileKind {
    /// Every kind, in order.
    pub const ALL: [Self; 5] =
        [Self::Network, Self::Sync, Self::Syscall, Self::Scheduler, Self::Cpu];

    /// The name, as in `go tool trace -pprof=NAME`: `net`, `sync`, `syscall`, `sched`; `cpu`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Sync => "sync",
            Self::Syscall => "syscall",
            Self::Scheduler => "sched",
            Self::Cpu => "cpu",
        }
    }

    /// Whether a goroutine that enters `state` for `reason` is delayed in the sense of this kind.
    fn delays(self, state: GoState, reason: &[u8]) -> bool {
        let has = |part: &str| reason.contains_str(part);
        match self {
            Self::Network => state == GoState::Waiting && reason == b"network",
            Self::Sync => {
                state == GoState::Waiting && (has("chan") || has("sync") || has("select"))
            }
            Self::Syscall => state == GoState::Syscall,
            Self::Scheduler => state == GoState::Runnable,
            Self::Cpu => false,
        }
    }

    const fn state(self) -> GoState {
        match self {
            Self::Network | Self::Sync | Self::Cpu => GoState::Waiting,
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
    /// The number of delays, or of CPU samples.
    pub count: u64,
    /// Their duration; zero for CPU samples.
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
        let start = goroutine.started.unwrap_or(Timestamp::MIN);
        self.add(goroutine.id, start, goroutine.ended);
    }

    /// Adds the time of a region. Goroutines without an added region are no longer in the scope.
    /// Regions within another one that is in the scope count once.
    pub fn add_region(&mut self, region: &Region) {
        let start = region.start.unwrap_or(Timestamp::MIN);
        self.add(region.goroutine, start, region.end);
    }

    fn add(&mut self, id: GoId, start: Timestamp, end: Option<Timestamp>) {
        let intervals = self.goroutines.get_or_insert_default().entry(id).or_default();
        intervals.push((start, end.unwrap_or(Timestamp::MAX)));
    }

    /// Whether goroutines or regions were added.
    pub const fn is_selected(&self) -> bool {
        self.goroutines.is_some()
    }

    /// Keeps the outermost intervals of each goroutine.
    fn outermost(mut self) -> Self {
        for intervals in self.goroutines.iter_mut().flat_map(HashMap::values_mut) {
            intervals.sort_unstable();
            let mut end = Timestamp::MIN;
            intervals.retain(|interval| {
                let outer = end <= interval.0;
                if outer {
                    end = interval.1;
                }
                outer
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
            Some(of) => of.get(&id).into_iter().flatten().map(|interval| within(*interval)).sum(),
        }
    }

    fn contains(&self, id: GoId, time: Timestamp) -> bool {
        let within = |(from, to): (Timestamp, Timestamp)| from <= time && time <= to;
        self.window.is_none_or(within)
            && self
                .goroutines
                .as_ref()
                .is_none_or(|of| of.get(&id).is_some_and(|i| i.iter().copied().any(within)))
    }
}

/// Sums up delays of goroutines, or CPU samples, by stack.
///
/// With [`ProfileScope::since_first_run`] the numbers are those of `go tool trace -pprof`. Delays
/// that began before the trace, or outlast it, are not counted.
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
///     profile.event(event);
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
    kind: ProfileKind,
    scope: ProfileScope,
    stacks: Stacks,
    /// By number of the stack.
    delays: Vec<Delay>,
    /// Goroutines that are delayed: since when, and with which stack.
    open: HashMap<GoId, (Timestamp, u32), SeededState>,
    /// Goroutines that have run, if that matters.
    started: HashSet<GoId, SeededState>,
    /// Delays of goroutines that have not run yet: dropped when they run, counted if they never do.
    before_first_run: HashMap<GoId, Vec<(u32, Duration)>, SeededState>,
}

impl Profile {
    /// Makes an empty profile.
    pub fn new(kind: ProfileKind, scope: ProfileScope) -> Self {
        Self {
            kind,
            scope: scope.outermost(),
            stacks: Stacks::default(),
            delays: Vec::new(),
            open: HashMap::default(),
            started: HashSet::default(),
            before_first_run: HashMap::default(),
        }
    }

    /// The quantity that it measures.
    pub const fn kind(&self) -> ProfileKind {
        self.kind
    }

    /// Processes the next event of the trace.
    pub fn event(&mut self, event: Event<'_>) {
        match event.kind() {
            EventKind::StateTransition if self.kind != ProfileKind::Cpu => self.transition(event),
            EventKind::StackSample if self.kind == ProfileKind::Cpu => self.sample(event),
            _ => {}
        }
    }

    fn sample(&mut self, event: Event<'_>) {
        if self.scope.contains(event.goroutine(), event.time()) {
            let stack = self.stacks.number(event.stack());
            self.add(stack, Duration::ZERO);
        }
    }

    fn transition(&mut self, event: Event<'_>) {
        let Some(transition) = event.state_transition() else { return };
        let (Some(id), Some((_, to))) = (transition.resource().goroutine(), transition.goroutine())
        else {
            return;
        };
        if to == self.kind.state() {
            if self.kind.delays(to, transition.reason()) && !self.open.contains_key(&id) {
                let stack = self.stacks.number(event.stack());
                self.open.insert(id, (event.time(), stack));
            }
        } else if let Some((since, stack)) = self.open.remove(&id) {
            let time = self.scope.overlap(id, since, event.time());
            match (time.is_zero(), self.scope.since_first_run && !self.started.contains(&id)) {
                (true, _) => {}
                (false, true) => {
                    self.before_first_run.entry(id).or_default().push((stack, time));
                }
                (false, false) => self.add(stack, time),
            }
        }
        if self.scope.since_first_run {
            self.follow(id, to);
        }
    }

    /// Remembers which goroutines have run.
    fn follow(&mut self, id: GoId, to: GoState) {
        if to == GoState::Running && self.started.insert(id) {
            self.before_first_run.remove(&id);
        } else if to == GoState::NotExist {
            self.started.remove(&id);
            for (stack, time) in self.before_first_run.remove(&id).into_iter().flatten() {
                self.add(stack, time);
            }
        }
    }

    fn add(&mut self, stack: u32, time: Duration) {
        let index = stack as usize;
        if self.delays.len() <= index {
            self.delays.resize(index + 1, Delay::default());
        }
        if let Some(delay) = self.delays.get_mut(index) {
            delay.count += 1;
            delay.time += time;
        }
    }

    /// Completes the profile after the last event: counts what depends on later events.
    pub fn finish(&mut self) {
        for (stack, time) in std::mem::take(&mut self.before_first_run).into_values().flatten() {
            self.add(stack, time);
        }
    }

    /// The delays and their stacks, innermost frame first, in the order of first appearance. One
    /// stack may be empty: that of events without.
    pub fn stacks(&self) -> impl Iterator<Item = (Delay, impl Iterator<Item = &Frame> + Clone)> {
        let delays = self.delays.iter().enumerate().filter(|(_, delay)| delay.count > 0);
        delays.map(|(number, delay)| (*delay, self.stacks.frames(number)))
    }
}
