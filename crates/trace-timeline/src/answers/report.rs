//! Times by process, thread and goroutine.

use super::Histogram;
use super::table::{Hint, Table};
use crate::correlate::{Derived, Interval, Kernel, Occupant, Pause, ResolvedFlow};
use crate::entity::{Entities, Entity, EntityId, EntityKind};
use crate::event::{Context, EventKind, FlowKind, LossKind, SampleKind, SpanKind, State};
use crate::tables::{SpanId, TextId};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use trace_common::{IdMap, Timestamp};

/// Nanoseconds by what the kernel did with a thread. They sum to the time in which the thread was
/// known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuTimes {
    /// On a CPU.
    pub on_cpu: i64,
    /// Waiting for a CPU that was taken away.
    pub preempted: i64,
    /// Waiting for a CPU after a wake-up.
    pub woken: i64,
    /// Waiting interruptibly.
    pub sleeping: i64,
    /// Waiting uninterruptibly.
    pub blocked: i64,
    /// Stopped by a signal or a debugger.
    pub stopped: i64,
    /// Not known.
    pub unknown: i64,
}

impl CpuTimes {
    fn add(&mut self, kernel: Kernel, nanos: i64) {
        let time = match kernel {
            Kernel::OnCpu { .. } => &mut self.on_cpu,
            Kernel::Runnable { is_preempted: true, .. } => &mut self.preempted,
            Kernel::Runnable { .. } => &mut self.woken,
            Kernel::Sleeping => &mut self.sleeping,
            Kernel::Blocked => &mut self.blocked,
            Kernel::Stopped => &mut self.stopped,
            Kernel::Unknown | Kernel::Absent => &mut self.unknown,
        };
        *time = time.saturating_add(nanos);
    }

    /// Applies this to each of the times and that of another one.
    fn apply(&mut self, other: &Self, apply: fn(i64, i64) -> i64) {
        let Self { on_cpu, preempted, woken, sleeping, blocked, stopped, unknown } = self;
        for (time, other) in [
            (on_cpu, other.on_cpu),
            (preempted, other.preempted),
            (woken, other.woken),
            (sleeping, other.sleeping),
            (blocked, other.blocked),
            (stopped, other.stopped),
            (unknown, other.unknown),
        ] {
            *time = apply(*time, other);
        }
    }

    /// The sum.
    pub const fn total(&self) -> i64 {
        let known = self.on_cpu.saturating_add(self.without_cpu());
        known.saturating_add(self.in_kernel()).saturating_add(self.unknown)
    }

    /// The time in which it waited for a CPU.
    pub const fn without_cpu(&self) -> i64 {
        self.preempted.saturating_add(self.woken)
    }

    /// The time in which it slept, was blocked or stopped.
    pub const fn in_kernel(&self) -> i64 {
        self.sleeping.saturating_add(self.blocked).saturating_add(self.stopped)
    }

    /// The names of [`CpuTimes::columns`].
    pub const COLUMNS: [&'static str; 7] =
        ["on CPU", "preempted", "woken", "sleeping", "blocked", "stopped", "unknown"];

    /// The times as the columns of a table.
    pub const fn columns(&self) -> [i64; Self::COLUMNS.len()] {
        let Self { on_cpu, preempted, woken, sleeping, blocked, stopped, unknown } = *self;
        [on_cpu, preempted, woken, sleeping, blocked, stopped, unknown]
    }
}

/// A thread of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadReport {
    /// Its times.
    pub times: CpuTimes,
    /// The durations from when it was runnable to when it had a CPU.
    pub latency: Histogram,
}

/// The goroutines of one process with the same entry function, or all .NET threads of a process; or
/// one goroutine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// Number of goroutines or threads.
    pub count: u64,
    /// In state [`State::Running`]: what the kernel did with the thread meanwhile.
    pub running: CpuTimes,
    /// In state [`State::Syscall`], likewise.
    pub syscall: CpuTimes,
    /// Nanoseconds in which goroutines waited for a P.
    pub runnable: i64,
    /// Nanoseconds in which they waited for something: see [`Report::waits`].
    pub waiting: i64,
    /// Nanoseconds in which their state is not known.
    pub unknown: i64,
    /// The durations from when a goroutine was runnable to when it had a P; of .NET threads, to when
    /// they had a CPU. A coroutine that another one switches to, as those of `iter.Pull` do, gets its P and
    /// waits for none: that is no such time.
    pub latency: Histogram,
}

impl Group {
    fn add(&mut self, interval: &Interval, delay: Option<Delay>) {
        let nanos = interval.nanos();
        match interval.state {
            State::Running => self.running.add(interval.kernel, nanos),
            State::Syscall => self.syscall.add(interval.kernel, nanos),
            State::Runnable => self.runnable = self.runnable.saturating_add(nanos),
            State::Waiting => self.waiting = self.waiting.saturating_add(nanos),
            State::Unknown | State::Idle => self.unknown = self.unknown.saturating_add(nanos),
        }
        if let Some(delay) = delay {
            self.latency.add(delay.nanos);
        }
    }

    /// Adds the goroutines of another group.
    fn merge(&mut self, other: &Self) {
        self.apply(other, i64::saturating_add);
        self.count = self.count.saturating_add(other.count);
        self.latency.merge(&other.latency);
    }

    /// Removes the goroutines of another group, all of which were added.
    fn subtract(&mut self, other: &Self) {
        self.apply(other, i64::saturating_sub);
        self.count = self.count.saturating_sub(other.count);
        self.latency.subtract(&other.latency);
    }

    /// Applies this to each of the times and that of another group.
    fn apply(&mut self, other: &Self, apply: fn(i64, i64) -> i64) {
        self.running.apply(&other.running, apply);
        self.syscall.apply(&other.syscall, apply);
        for (time, other) in [
            (&mut self.runnable, other.runnable),
            (&mut self.waiting, other.waiting),
            (&mut self.unknown, other.unknown),
        ] {
            *time = apply(*time, other);
        }
    }

    /// The time in which they were running, in system calls or runnable.
    pub const fn active(&self) -> i64 {
        let executing = self.running.total().saturating_add(self.syscall.total());
        executing.saturating_add(self.runnable)
    }

    /// The sum of all times.
    pub const fn total(&self) -> i64 {
        self.active().saturating_add(self.waiting).saturating_add(self.unknown)
    }

    /// The names of [`Group::columns`].
    pub const COLUMNS: [&'static str; 8] =
        ["on CPU", "no CPU", "in kernel", "running", "syscall", "runnable", "waiting", "unknown"];

    /// The times as the columns of a table: the running time is divided by what the kernel did with
    /// the thread, and `running` is the part of which that is not known.
    pub const fn columns(&self) -> [i64; Self::COLUMNS.len()] {
        let running = &self.running;
        [
            running.on_cpu,
            running.without_cpu(),
            running.in_kernel(),
            running.unknown,
            self.syscall.total(),
            self.runnable,
            self.waiting,
            self.unknown,
        ]
    }
}

/// Goroutines: those that run, and of those of each process that ended the ones that waited longest
/// for a P.
#[derive(Debug, Default)]
struct Goroutines {
    live: HashMap<EntityId, Group>,
    ended: BTreeMap<Option<EntityId>, Ended>,
    /// The goroutine ids whose reports are all kept.
    kept: Vec<i64>,
    dropped: u64,
}

/// The goroutines of a process that ended.
#[derive(Debug, Default)]
struct Ended {
    worst: Vec<(EntityId, Group)>,
    /// Those whose reports are all kept.
    kept: Vec<(EntityId, Group)>,
    /// Those that are not among the worst.
    others: u64,
}

impl Goroutines {
    /// Live goroutines with own times: a histogram takes some KiB.
    const MAX_LIVE: usize = 1 << 15;

    fn add(&mut self, interval: &Interval, delay: Option<Delay>) {
        if let Some(times) = self.live.get_mut(&interval.subject) {
            times.add(interval, delay);
        }
    }

    /// Decides whether a goroutine has own times: all of them or none.
    fn start(&mut self, goroutine: EntityId, entities: &Entities) {
        if entities.kind(goroutine) != Some(EntityKind::Goroutine) {
            return;
        }
        if self.live.len() < Self::MAX_LIVE || self.is_kept(goroutine, entities) {
            let times = Group { count: 1, ..Group::default() };
            self.live.entry(goroutine).or_insert(times);
        } else {
            self.dropped += 1;
        }
    }

    fn end(&mut self, goroutine: EntityId, entities: &Entities) {
        let Some(times) = self.live.remove(&goroutine) else { return };
        let is_kept = self.is_kept(goroutine, entities);
        let ended = self.ended.entry(entities.process_of(goroutine)).or_default();
        if is_kept {
            ended.kept.push((goroutine, times));
            return;
        }
        ended.worst.push((goroutine, times));
        if ended.worst.len() >= 2 * Report::MAX_GOROUTINES {
            ended.shrink();
        }
    }

    /// Whether all reports of a goroutine are kept.
    fn is_kept(&self, goroutine: EntityId, entities: &Entities) -> bool {
        entities.get(goroutine).is_some_and(|entity| self.kept.contains(&entity.number))
    }
}

impl Ended {
    fn shrink(&mut self) {
        self.worst.sort_by_key(|(goroutine, times)| worst_first(*goroutine, times));
        self.others += self.worst.len().saturating_sub(Report::MAX_GOROUTINES) as u64;
        self.worst.truncate(Report::MAX_GOROUTINES);
    }
}

/// Most time of scheduling latency first.
fn worst_first(goroutine: EntityId, times: &Group) -> (Reverse<u64>, EntityId) {
    (Reverse(times.latency.sum()), goroutine)
}

/// The occupant of a CPU that threads of a process waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preempter {
    /// Nanoseconds after the CPU was taken away.
    pub preempted: i64,
    /// Nanoseconds after a wake-up.
    pub woken: i64,
    /// Number of intervals.
    pub count: u64,
}

impl Preempter {
    /// The sum of both times.
    pub const fn total(&self) -> i64 {
        self.preempted.saturating_add(self.woken)
    }
}

/// The source of wake-ups of threads or goroutines of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Waker {
    /// Goroutines with this entry function, of this process.
    Goroutines(Option<EntityId>, TextId),
    /// A thread.
    Thread(EntityId),
    /// A hardware interrupt.
    HardIrq,
    /// A software interrupt: network or timers.
    SoftIrq,
    /// Not known.
    Unknown,
}

/// Why a goroutine or thread was not on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OffCpu {
    /// Another thread got the CPU of its thread.
    Preempted,
    /// Its thread was woken, and waited for a CPU.
    Woken,
    /// A goroutine waited for a P.
    WaitsForProc,
    /// It waited for something, as its runtime reports it: the reason can be empty.
    Waits(TextId),
    /// Its thread slept in a system call that its runtime reports.
    Syscall,
    /// Its thread slept, and no runtime reports why.
    Sleeping,
    /// Its thread waited uninterruptibly: usually for a disk, a page or a lock of the kernel.
    Blocked,
    /// Its thread was stopped by a signal or a debugger.
    Stopped,
}

impl OffCpu {
    /// Number of reasons.
    const NUMBERS: usize = 8;

    const fn number(self) -> usize {
        match self {
            Self::Preempted => 0,
            Self::Woken => 1,
            Self::WaitsForProc => 2,
            Self::Waits(_) => 3,
            Self::Syscall => 4,
            Self::Sleeping => 5,
            Self::Blocked => 6,
            Self::Stopped => 7,
        }
    }

    /// `None` on a CPU, and where that is not known.
    fn of(interval: &Interval, kind: EntityKind) -> Option<Self> {
        match (interval.state, interval.kernel) {
            // A .NET thread can spin while its runtime reports a wait, and be woken and wait again.
            (State::Waiting, kernel)
                if kind != EntityKind::Thread
                    && !matches!(kernel, Kernel::OnCpu { .. } | Kernel::Runnable { .. }) =>
            {
                Some(Self::Waits(interval.reason))
            }
            (State::Runnable, _) if kind != EntityKind::Thread => Some(Self::WaitsForProc),
            (_, Kernel::Runnable { is_preempted: true, .. }) => Some(Self::Preempted),
            (_, Kernel::Runnable { .. }) => Some(Self::Woken),
            (State::Syscall, Kernel::Sleeping) => Some(Self::Syscall),
            (_, Kernel::Sleeping) => Some(Self::Sleeping),
            (_, Kernel::Blocked) => Some(Self::Blocked),
            (_, Kernel::Stopped) => Some(Self::Stopped),
            (_, Kernel::OnCpu { .. } | Kernel::Unknown | Kernel::Absent) => None,
        }
    }
}

/// Times off the CPU with one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffCpuTimes {
    /// The sum in nanoseconds.
    pub nanos: i64,
    /// How often.
    pub count: u64,
    /// The longest one in nanoseconds.
    pub longest: i64,
}

/// A time from when a thread or goroutine could have executed to when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delay {
    /// The thread or goroutine.
    pub subject: EntityId,
    /// When it began to execute.
    pub end: Timestamp,
    /// The duration in nanoseconds.
    pub nanos: i64,
    /// Of a thread: what its CPU executed longest without a break meanwhile. Another one that executed several times
    /// can have had the CPU for longer: see [`Report::preempters`].
    pub occupant: Occupant,
}

/// Waits with one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// Their durations.
    pub durations: Histogram,
}

/// The losses of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LossTotal {
    /// Losses that were reported.
    pub count: u64,
    /// The records that were lost, as far as their number is known.
    pub records: u64,
    /// The bytes of Go traces that were lost, as far as their number is known.
    pub bytes: u64,
}

/// The throttling of a process by the CPU quota of its cgroup: see [`EventKind::Throttle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throttled {
    /// Nanoseconds, summed over CPUs, of all cgroups that contain the process.
    pub nanos: i64,
    /// Periods in which a cgroup was throttled.
    pub periods: u64,
}

/// A report of a timeline. Feed it all derived data.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The time of the first event.
    pub start: Option<Timestamp>,
    /// The time of the last event.
    pub end: Option<Timestamp>,
    /// By kernel thread.
    pub threads: Table<EntityId, ThreadReport>,
    /// By process and entry function of goroutines; .NET threads have an empty name. A goroutine is in the
    /// group without a name until its entry function is known. Times before that stay there if too many
    /// goroutines lived at once: see [`Report::goroutines_dropped`].
    pub groups: Table<(Option<EntityId>, TextId), Group>,
    /// Waits of goroutines and .NET threads by process and reason.
    pub waits: Table<(Option<EntityId>, TextId), Waits>,
    /// By process: times off the CPU of its goroutines and .NET threads, and of threads that execute
    /// none, by reason.
    pub off_cpu: Table<(Option<EntityId>, OffCpu), OffCpuTimes>,
    /// By process: who had the CPU that its threads waited for. Of more than 1 Mi of them, later ones are
    /// [`Occupant::Unknown`].
    pub preempters: Table<(Option<EntityId>, Occupant), Preempter>,
    /// By process: who woke its threads and goroutines, and how often. What both the kernel and .NET report counts
    /// once. Of more than 1 Mi of them, later ones are [`Waker::Unknown`].
    pub wakers: Table<(Option<EntityId>, Waker), u64>,
    /// The durations of garbage collections by process and name: `mark (CAUSE)` for Go's mark
    /// phases; generation and reason of .NET's GCs.
    pub gcs: BTreeMap<(Option<EntityId>, TextId), Histogram>,
    /// Stop-the-world pauses by process and reason.
    pub pauses: BTreeMap<(EntityId, TextId), Histogram>,
    /// By process: throttling by CPU quotas.
    pub throttled: BTreeMap<EntityId, Throttled>,
    /// By process and kind. Those of CPUs have no process.
    losses: BTreeMap<(Option<EntityId>, LossKind), LossTotal>,
    /// By process.
    samples: BTreeMap<Option<EntityId>, [u64; 3]>,
    goroutines: Goroutines,
    delays: Longest<Delay>,
    long_pauses: Longest<Pause>,
    /// By the position of their entities.
    subjects: IdMap<Subject>,
    /// The sources end them: at most one is open of each Go trace, and 64 Ki of each .NET trace.
    open_collections: HashMap<SpanId, ((Option<EntityId>, TextId), Timestamp)>,
}

impl Report {
    /// Number of [`Report::longest_pauses`].
    pub const MAX_PAUSES: usize = LONGEST;

    /// Number of [`Report::longest_delays`].
    pub const MAX_DELAYS: usize = LONGEST;

    /// Number of goroutines of each process, beside the live ones, whose own times are kept.
    pub const MAX_GOROUTINES: usize = 1 << 10;

    /// Makes an empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the own times of the goroutines with this id. Without this, they are only kept if the
    /// goroutine is one of the worst.
    pub fn keep_goroutine(&mut self, id: i64) {
        self.goroutines.kept.push(id);
    }

    /// The longest delays of threads and goroutines of the processes for which `of` is true, longest
    /// first, at most [`Report::MAX_DELAYS`].
    pub fn longest_delays(&self, of: impl Fn(Option<EntityId>) -> bool) -> Vec<&Delay> {
        self.delays.of(of)
    }

    /// The longest pauses of the processes for which `of` is true, longest first, at most
    /// [`Report::MAX_PAUSES`].
    pub fn longest_pauses(&self, of: impl Fn(Option<EntityId>) -> bool) -> Vec<&Pause> {
        self.long_pauses.of(of)
    }

    /// Goroutines with their own times, those with most scheduling latency first: the `worst` of the
    /// processes for which `of` is true, and all of these processes that [were
    /// kept](Report::keep_goroutine).
    ///
    /// Of the goroutines of each process that ended, the worst [`Report::MAX_GOROUTINES`] at least are
    /// known: see [`Report::goroutines_left_out`].
    pub fn goroutines(
        &self,
        worst: usize,
        entities: &Entities,
        of: impl Fn(Option<EntityId>) -> bool,
    ) -> Vec<(EntityId, &Group)> {
        let Goroutines { live, ended, .. } = &self.goroutines;
        let live = live.iter().map(|(goroutine, times)| (*goroutine, times));
        let live = live.filter(|(goroutine, _)| of(entities.process_of(*goroutine)));
        let ended = ended.iter().filter(|(process, _)| of(**process));
        let ended = ended.flat_map(|(_, ended)| ended.worst.iter().chain(&ended.kept));
        let mut all: Vec<(EntityId, &Group)> =
            live.chain(ended.map(|(goroutine, times)| (*goroutine, times))).collect();
        all.sort_by_key(|(goroutine, times)| worst_first(*goroutine, times));
        let mut place = 0;
        all.retain(|(goroutine, _)| {
            place += 1;
            place <= worst || self.goroutines.is_kept(*goroutine, entities)
        });
        all
    }

    /// Number of goroutines without own times, because too many lived at once.
    pub const fn goroutines_dropped(&self) -> u64 {
        self.goroutines.dropped
    }

    /// Number of goroutines of the processes for which `of` is true that ended and are not among
    /// [`Report::goroutines`], because others of their process had more scheduling latency.
    pub fn goroutines_left_out(&self, of: impl Fn(Option<EntityId>) -> bool) -> u64 {
        let ended = self.goroutines.ended.iter().filter(|(process, _)| of(**process));
        ended.map(|(_, ended)| ended.others).sum()
    }

    /// Whether the scheduler was recorded: otherwise threads are known of samples or wake-ups.
    pub fn has_scheduler(&self) -> bool {
        self.threads.values().any(|thread| thread.times.unknown < thread.times.total())
    }

    /// The time of threads before their first switch, or after a loss.
    pub fn unknown(&self, of: impl Fn(Option<EntityId>) -> bool, entities: &Entities) -> i64 {
        let threads = self.threads.iter().filter(|(thread, _)| of(entities.process_of(**thread)));
        threads.fold(0, |sum: i64, (_, thread)| sum.saturating_add(thread.times.unknown))
    }

    /// The losses by kind: those of CPUs and of unknown processes, and those of the processes for which
    /// `of` is true.
    pub fn losses(&self, of: impl Fn(Option<EntityId>) -> bool) -> BTreeMap<LossKind, LossTotal> {
        let mut losses: BTreeMap<LossKind, LossTotal> = BTreeMap::new();
        for ((process, kind), lost) in &self.losses {
            if process.is_none() || of(*process) {
                let sum = losses.entry(*kind).or_default();
                sum.count += lost.count;
                sum.records = sum.records.saturating_add(lost.records);
                sum.bytes = sum.bytes.saturating_add(lost.bytes);
            }
        }
        losses
    }

    /// Samples of [CPU](SampleKind::Cpu), [Go](SampleKind::GoCpu) and [.NET](SampleKind::Managed)
    /// profilers of the processes for which `of` is true, by whether the thread had a CPU: yes, no, not
    /// known.
    pub fn samples(&self, of: impl Fn(Option<EntityId>) -> bool) -> [u64; 3] {
        let mut samples = [0; 3];
        for (_, counts) in self.samples.iter().filter(|(process, _)| of(**process)) {
            samples.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        samples
    }

    /// Adds derived data.
    pub fn push(&mut self, derived: &Derived<'_>, entities: &Entities) {
        match derived {
            Derived::Interval(interval) => self.interval(interval, entities),
            Derived::Flow(flow) => self.flow(flow, entities),
            Derived::Start(_) => {}
            Derived::Pause(pause) => self.pause(pause),
            // A thread has a CPU again after a wait. The state at an allocation is of no interest.
            Derived::Sample(sample)
                if matches!(sample.kind, SampleKind::OffCpu | SampleKind::Allocation) => {}
            Derived::Sample(sample) => {
                let index = match sample.kernel {
                    Kernel::OnCpu { .. } => 0,
                    Kernel::Unknown | Kernel::Absent => 2,
                    _ => 1,
                };
                let samples = self.samples.entry(entities.process_of(sample.entity)).or_default();
                if let Some(count) = samples.get_mut(index) {
                    *count += 1;
                }
            }
            Derived::Event(event) => {
                self.start = Some(self.start.map_or(event.time, |start| start.min(event.time)));
                self.end = self.end.max(Some(event.time));
                match event.kind {
                    EventKind::Start { entity } => {
                        // The entry function of a goroutine that exists already is often known later.
                        let is_known = entities.get(entity).is_some_and(|started| {
                            started.kind == EntityKind::DotnetThread || !started.name.is_empty()
                        });
                        if is_known {
                            self.count(entity, entities);
                        }
                        self.goroutines.start(entity, entities);
                    }
                    EventKind::End { entity } => {
                        self.count(entity, entities);
                        // The next subject gets its place.
                        if let Some(subject) = self.subjects.remove(key(entity)) {
                            *subject = Subject::default();
                        }
                        self.goroutines.end(entity, entities);
                    }
                    EventKind::Begin { span, entity, kind: SpanKind::Gc, name, .. } => {
                        let key = (entities.process_of(entity), name);
                        self.open_collections.insert(span, (key, event.time));
                    }
                    EventKind::Finish { span, is_cut, .. } => {
                        let begun = self.open_collections.remove(&span);
                        if let Some((key, start)) = begun.filter(|_| !is_cut) {
                            let nanos = event.time.nanos_since(start);
                            self.gcs.entry(key).or_default().add(nanos);
                        }
                    }
                    EventKind::Throttle { process, nanos, periods, .. } => {
                        let throttled = self.throttled.entry(process).or_default();
                        throttled.nanos = throttled.nanos.saturating_add(nanos);
                        throttled.periods = throttled.periods.saturating_add(periods.into());
                    }
                    EventKind::Loss { entity, kind, count, .. } => {
                        let process = entity.and_then(|id| entities.process_of(id));
                        let losses = self.losses.entry((process, kind)).or_default();
                        losses.count += 1;
                        let lost = match kind {
                            LossKind::GoTrace => &mut losses.bytes,
                            _ => &mut losses.records,
                        };
                        *lost = lost.saturating_add(count.unwrap_or(0));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Counts a goroutine or .NET thread in its group, and no longer in the one that it had before its
    /// entry function was known. The times of a goroutine go with it, if it has own ones.
    fn count(&mut self, id: EntityId, entities: &Entities) {
        let Some(group) = group_of(id, entities) else { return };
        let counted = self.subjects.insert(key(id)).counted.replace(group);
        if counted == Some(group) {
            return;
        }
        let without_times = Group { count: 1, ..Group::default() };
        let own = self.goroutines.live.get(&id).unwrap_or(&without_times);
        if let Some(before) = counted {
            let others = self.groups.entry(before);
            others.subtract(own);
            if *others == Group::default() {
                self.groups.remove(&before);
            }
        }
        self.groups.entry(group).merge(own);
    }

    fn interval(&mut self, interval: &Interval, entities: &Entities) {
        self.start = Some(self.start.map_or(interval.start, |start| start.min(interval.start)));
        self.end = self.end.max(Some(interval.end));
        let nanos = interval.nanos();
        let Some(entity) = entities.get(interval.subject) else { return };
        let subject = self.subjects.insert(key(interval.subject));
        subject.off_cpu(interval, entity, &mut self.off_cpu);
        let delay = subject.delay(interval, entity.kind);
        // That of a .NET thread is that of its kernel thread. Most are shorter than those of its process
        // that are known.
        if let Some(delay) = delay.filter(|delay| {
            let (process, enough) = subject.enough;
            (delay.nanos > enough || process != entity.parent)
                && entity.kind != EntityKind::DotnetThread
        }) {
            let enough = self.delays.add(entity.parent, delay.nanos, || delay);
            subject.enough = (entity.parent, enough);
        }
        if entity.kind == EntityKind::Thread {
            let report = self.threads.hinted(interval.subject, &mut subject.own);
            report.times.add(interval.kernel, nanos);
            if let Some(delay) = delay {
                report.latency.add(delay.nanos);
            }
            if let Kernel::Runnable { occupant, is_preempted, .. } = interval.kernel {
                let key = (entity.parent, occupant);
                let place = occupant.thread().map_or(0, EntityId::index) % PREEMPTERS;
                let mut new = Hint::default();
                let hint = subject.preempters.get_mut(place).unwrap_or(&mut new);
                let unknown = (entity.parent, Occupant::Unknown);
                let entry = self.preempters.limited(key, unknown, hint);
                let sum = if is_preempted { &mut entry.preempted } else { &mut entry.woken };
                *sum = sum.saturating_add(nanos);
                entry.count += 1;
            }
        } else if let Some(group) = group_of(interval.subject, entities) {
            subject.waits(interval, entity, &mut self.waits);
            let subject = if subject.counted == Some(group) {
                subject
            } else {
                self.count(interval.subject, entities);
                self.subjects.insert(key(interval.subject))
            };
            self.groups.hinted(group, &mut subject.own).add(interval, delay);
            if entity.kind == EntityKind::Goroutine {
                self.goroutines.add(interval, delay);
            }
        }
    }

    fn flow(&mut self, flow: &ResolvedFlow, entities: &Entities) {
        if !matches!(flow.kind, FlowKind::Wakes | FlowKind::HandsOver) {
            return;
        }
        let waker = match (flow.context, flow.from) {
            (Context::HardIrq, _) => Waker::HardIrq,
            (Context::SoftIrq, _) => Waker::SoftIrq,
            (_, None) => Waker::Unknown,
            (_, Some(from)) => match group_of(from, entities) {
                Some((process, name)) if entities.kind(from) == Some(EntityKind::Goroutine) => {
                    Waker::Goroutines(process, name)
                }
                // The kernel knows the name of a .NET thread.
                _ => Waker::Thread(flow.from_thread.unwrap_or(from)),
            },
        };
        let process = entities.get(flow.to).and_then(|to| to.parent);
        let subject = self.subjects.insert(key(flow.to));
        subject.is_handed = flow.kind == FlowKind::HandsOver;
        if std::mem::take(&mut subject.is_woken) {
            return;
        }
        let unknown = (process, Waker::Unknown);
        *self.wakers.limited((process, waker), unknown, &mut subject.waker) += 1;
        // A goroutine that its thread executes waits for the kernel. What others wake it from is another wait.
        let is_dotnet = |id: &EntityId| entities.kind(*id) == Some(EntityKind::DotnetThread);
        if let Some(holder) = flow.to_holder.filter(|id| *id != flow.to && is_dotnet(id)) {
            self.subjects.insert(key(holder)).is_woken = true;
        }
    }

    fn pause(&mut self, pause: &Pause) {
        let nanos = |pause: &Pause| pause.end.nanos_since(pause.start);
        self.pauses.entry((pause.process, pause.reason)).or_default().add(nanos(pause));
        self.long_pauses.add(Some(pause.process), nanos(pause), || pause.clone());
    }
}

/// The number of delays and pauses that are kept of each process.
const LONGEST: usize = 10;

/// What took longest in each process, longest first.
#[derive(Debug)]
struct Longest<T>(BTreeMap<Option<EntityId>, Vec<(i64, T)>>);

impl<T> Default for Longest<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Longest<T> {
    /// Adds one, if it is above 0 and one of the longest. Returns what others must be longer than.
    fn add(&mut self, process: Option<EntityId>, nanos: i64, item: impl FnOnce() -> T) -> i64 {
        if nanos <= 0 {
            return 0;
        }
        let kept = self.0.entry(process).or_default();
        let place = kept.partition_point(|(known, _)| *known >= nanos);
        if place < LONGEST {
            kept.insert(place, (nanos, item()));
            kept.truncate(LONGEST);
        }
        kept.get(LONGEST - 1).map_or(0, |(shortest, _)| *shortest)
    }

    /// The longest of these processes.
    fn of(&self, is_wanted: impl Fn(Option<EntityId>) -> bool) -> Vec<&T> {
        let kept = self.0.iter().filter(|(process, _)| is_wanted(**process));
        let mut all: Vec<&(i64, T)> = kept.flat_map(|(_, kept)| kept).collect();
        all.sort_by_key(|(nanos, _)| Reverse(*nanos));
        all.into_iter().take(LONGEST).map(|(_, item)| item).collect()
    }
}

/// Occupants of a CPU whose place a subject remembers.
const PREEMPTERS: usize = 8;

/// What is known of a live subject.
#[derive(Debug, Default)]
struct Subject {
    /// Its last reason to be off the CPU, and for how long.
    reason: Option<OffCpu>,
    off: i64,
    /// Whether it is runnable: waits for a CPU or P.
    is_queued: bool,
    /// For how long.
    queued: i64,
    /// Whether it gets the P of the coroutine that switches to it: it waits for none.
    is_handed: bool,
    /// Of a .NET thread: whether the kernel reported the wake-up of its thread that its runtime may report next.
    is_woken: bool,
    /// What the CPU executed longest meanwhile without a break, and for how long.
    occupant: Occupant,
    occupied: i64,
    /// What a delay must be longer than to be one of the longest of this process, which can be known late.
    enough: (Option<EntityId>, i64),
    /// In [`Report::threads`] or [`Report::groups`].
    own: Hint,
    /// The group that counts it.
    counted: Option<(Option<EntityId>, TextId)>,
    /// In [`Report::off_cpu`], by [`OffCpu::number`].
    reasons: [Hint; OffCpu::NUMBERS],
    /// In [`Report::preempters`], by the occupant: the CPU often changes between few of them.
    preempters: [Hint; PREEMPTERS],
    /// Why it waits, and for how long so far.
    waits_for: Option<TextId>,
    waited: i64,
    /// In [`Report::waits`].
    wait: Hint,
    waker: Hint,
}

fn key(id: EntityId) -> i64 {
    id.index() as i64
}

impl Subject {
    fn off_cpu(
        &mut self,
        interval: &Interval,
        entity: &Entity,
        table: &mut Table<(Option<EntityId>, OffCpu), OffCpuTimes>,
    ) {
        // The runtime knows more about what a thread executes.
        let is_counted = match entity.kind {
            EntityKind::Thread => interval.holder.is_none(),
            EntityKind::Goroutine | EntityKind::DotnetThread => true,
            _ => false,
        };
        let reason = OffCpu::of(interval, entity.kind).filter(|_| is_counted);
        let Some(reason) = reason else {
            self.reason = None;
            return;
        };
        let Some(hint) = self.reasons.get_mut(reason.number()) else { return };
        let times = table.hinted((entity.parent, reason), hint);
        if self.reason != Some(reason) || self.off == 0 {
            (self.reason, self.off) = (Some(reason), 0);
            times.count += 1;
        }
        self.off = self.off.saturating_add(interval.nanos());
        times.nanos = times.nanos.saturating_add(interval.nanos());
        times.longest = times.longest.max(self.off);
    }

    /// A wait is one wait, however often the kernel's state or the occupant of a CPU changes meanwhile.
    fn waits(
        &mut self,
        interval: &Interval,
        entity: &Entity,
        table: &mut Table<(Option<EntityId>, TextId), Waits>,
    ) {
        if interval.state != State::Waiting {
            self.waits_for = None;
            return;
        }
        let durations =
            &mut table.hinted((entity.parent, interval.reason), &mut self.wait).durations;
        if self.waits_for == Some(interval.reason) {
            let before = self.waited;
            self.waited = self.waited.saturating_add(interval.nanos());
            durations.grow(before, self.waited);
        } else {
            (self.waits_for, self.waited) = (Some(interval.reason), interval.nanos());
            durations.add(self.waited);
        }
    }

    /// The time in which the subject was runnable, when it begins to execute.
    fn delay(&mut self, interval: &Interval, kind: EntityKind) -> Option<Delay> {
        let state = match kind {
            EntityKind::DotnetThread => interval.kernel.state(),
            EntityKind::Thread | EntityKind::Goroutine => interval.state,
            _ => return None,
        };
        match state {
            State::Runnable => {
                // Field by field: see `Subject::show_kernel` of the correlator.
                if !self.is_queued {
                    self.is_queued = true;
                    self.queued = 0;
                    self.occupant = Occupant::Unknown;
                    self.occupied = 0;
                }
                self.queued = self.queued.saturating_add(interval.nanos());
                if let Kernel::Runnable { occupant, .. } = interval.kernel {
                    if interval.nanos() > self.occupied {
                        self.occupant = occupant;
                        self.occupied = interval.nanos();
                    }
                }
                None
            }
            State::Running => {
                let is_handed = std::mem::take(&mut self.is_handed);
                let is_delay = std::mem::take(&mut self.is_queued) && !is_handed;
                is_delay.then_some(Delay {
                    subject: interval.subject,
                    end: interval.start,
                    nanos: self.queued,
                    occupant: self.occupant,
                })
            }
            _ => {
                self.is_queued = false;
                None
            }
        }
    }
}

/// The group of a goroutine or .NET thread.
fn group_of(id: EntityId, entities: &Entities) -> Option<(Option<EntityId>, TextId)> {
    let entity = entities.get(id)?;
    match entity.kind {
        EntityKind::Goroutine => Some((entity.parent, entity.name)),
        EntityKind::DotnetThread => Some((entity.parent, TextId::EMPTY)),
        _ => None,
    }
}
