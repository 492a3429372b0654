//! Times by process, thread and goroutine.

use super::Histogram;
use crate::correlate::{Derived, Interval, Kernel, Occupant, Pause, ResolvedFlow};
use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::{Context, EventKind, FlowKind, LossKind, SpanKind, State};
use crate::tables::{SpanId, TextId};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use trace_common::Timestamp;

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
        *match kernel {
            Kernel::OnCpu { .. } => &mut self.on_cpu,
            Kernel::Runnable { is_preempted: true, .. } => &mut self.preempted,
            Kernel::Runnable { .. } => &mut self.woken,
            Kernel::Sleeping => &mut self.sleeping,
            Kernel::Blocked => &mut self.blocked,
            Kernel::Stopped => &mut self.stopped,
            Kernel::Unknown | Kernel::Absent => &mut self.unknown,
        } += nanos;
    }

    /// The sum.
    pub const fn total(&self) -> i64 {
        self.on_cpu
            + self.preempted
            + self.woken
            + self.sleeping
            + self.blocked
            + self.stopped
            + self.unknown
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

/// The goroutines of one process with the same entry function, or all .NET threads of a process.
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
    /// The durations from when a goroutine was runnable to when it had a P.
    pub latency: Histogram,
}

impl Group {
    /// The sum of all times.
    pub const fn total(&self) -> i64 {
        self.running.total() + self.syscall.total() + self.runnable + self.waiting + self.unknown
    }
}

/// Who had the CPU that threads of a process waited for.
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

/// Who woke threads or goroutines of a process.
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

/// Waits with one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// Their durations.
    pub durations: Histogram,
}

/// What is missing in a timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// Losses that were reported.
    pub count: u64,
    /// The records that were lost, as far as their number is known.
    pub records: u64,
}

/// A report of a timeline. Feed it all derived data.
#[derive(Debug, Default)]
pub struct Report {
    /// The time of the first event.
    pub begin: Option<Timestamp>,
    /// The time of the last event.
    pub end: Option<Timestamp>,
    /// By kernel thread.
    pub threads: BTreeMap<EntityId, ThreadReport>,
    /// By process and entry function of goroutines; .NET threads have an empty name.
    pub groups: BTreeMap<(Option<EntityId>, TextId), Group>,
    /// Waits of goroutines by process and reason.
    pub waits: BTreeMap<(Option<EntityId>, TextId), Waits>,
    /// By process: who had the CPU that its threads waited for.
    pub preempters: BTreeMap<(Option<EntityId>, Occupant), Preempter>,
    /// By process: who woke its threads and goroutines, and how often.
    pub wakers: BTreeMap<(Option<EntityId>, Waker), u64>,
    /// Garbage collections by process: the durations of Go's mark phases, of .NET's collections.
    pub collections: BTreeMap<Option<EntityId>, Histogram>,
    /// Stop-the-world pauses by process and reason.
    pub pauses: BTreeMap<(EntityId, TextId), Histogram>,
    /// The longest pauses, longest first, at most [`Report::MAX_PAUSES`].
    pub longest_pauses: Vec<Pause>,
    /// What is missing.
    pub losses: BTreeMap<LossKind, Losses>,
    /// Samples by whether the thread had a CPU: yes, no, not known.
    pub samples: [u64; 3],
    /// Nanoseconds for which a subject has been runnable.
    runnable: Runnable,
    open_collections: HashMap<SpanId, (Option<EntityId>, Timestamp)>,
}

impl Report {
    /// Number of [`Report::longest_pauses`].
    pub const MAX_PAUSES: usize = 10;

    /// Makes an empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds derived data.
    pub fn push(&mut self, derived: &Derived<'_>, entities: &Entities) {
        match derived {
            Derived::Interval(interval) => self.interval(interval, entities),
            Derived::Flow(flow) => self.flow(flow, entities),
            Derived::Pause(pause) => self.pause(pause),
            Derived::Sample(sample) => {
                let index = match sample.kernel {
                    Kernel::OnCpu { .. } => 0,
                    Kernel::Unknown | Kernel::Absent => 2,
                    _ => 1,
                };
                if let Some(count) = self.samples.get_mut(index) {
                    *count += 1;
                }
            }
            Derived::Event(event) => {
                self.begin = Some(self.begin.map_or(event.at, |begin| begin.min(event.at)));
                self.end = self.end.max(Some(event.at));
                match event.kind {
                    EventKind::Start { entity } => {
                        if let Some(key) = group_of(entity, entities) {
                            self.groups.entry(key).or_default().count += 1;
                        }
                    }
                    EventKind::End { entity } => {
                        self.runnable.0.remove(&entity);
                    }
                    EventKind::Begin { span, entity, kind: SpanKind::Gc, .. } => {
                        let process = entities.process_of(entity);
                        self.open_collections.insert(span, (process, event.at));
                    }
                    EventKind::Finish { span, .. } => {
                        if let Some((process, begin)) = self.open_collections.remove(&span) {
                            let nanos = event.at.nanos_since(begin);
                            self.collections.entry(process).or_default().add(nanos);
                        }
                    }
                    EventKind::Loss { kind, count, .. } => {
                        let losses = self.losses.entry(kind).or_default();
                        losses.count += 1;
                        losses.records = losses.records.saturating_add(count.unwrap_or(0));
                    }
                    _ => {}
                }
            }
        }
    }

    fn interval(&mut self, interval: &Interval, entities: &Entities) {
        self.begin = Some(self.begin.map_or(interval.begin, |begin| begin.min(interval.begin)));
        self.end = self.end.max(Some(interval.end));
        let nanos = interval.nanos();
        let Some(entity) = entities.get(interval.subject) else { return };
        if entity.kind == EntityKind::Thread {
            let report = self.threads.entry(interval.subject).or_default();
            report.times.add(interval.kernel, nanos);
            let latency = self.runnable.advance(interval);
            if let Some(latency) = latency {
                report.latency.add(latency);
            }
            if let Kernel::Runnable { occupant, is_preempted, .. } = interval.kernel {
                let entry = self.preempters.entry((entity.parent, occupant)).or_default();
                let sum = if is_preempted { &mut entry.preempted } else { &mut entry.woken };
                *sum += nanos;
                entry.count += 1;
            }
            return;
        }
        let Some(key) = group_of(interval.subject, entities) else { return };
        let group = self.groups.entry(key).or_default();
        match interval.state {
            State::Running => group.running.add(interval.kernel, nanos),
            State::Syscall => group.syscall.add(interval.kernel, nanos),
            State::Runnable => group.runnable += nanos,
            State::Waiting => group.waiting += nanos,
            State::Unknown | State::Idle => group.unknown += nanos,
        }
        if let Some(latency) = self.runnable.advance(interval) {
            group.latency.add(latency);
        }
        if interval.state == State::Waiting {
            let waits = self.waits.entry((entity.parent, interval.reason)).or_default();
            waits.durations.add(nanos);
        }
    }

    fn flow(&mut self, flow: &ResolvedFlow, entities: &Entities) {
        if flow.kind != FlowKind::Wakes {
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
                _ => Waker::Thread(from),
            },
        };
        let process = entities.get(flow.to).and_then(|to| to.parent);
        *self.wakers.entry((process, waker)).or_default() += 1;
    }

    fn pause(&mut self, pause: &Pause) {
        let nanos = |pause: &Pause| pause.end.nanos_since(pause.begin);
        self.pauses.entry((pause.process, pause.reason)).or_default().add(nanos(pause));
        let place = self.longest_pauses.partition_point(|known| nanos(known) >= nanos(pause));
        if place < Self::MAX_PAUSES {
            self.longest_pauses.insert(place, pause.clone());
            self.longest_pauses.truncate(Self::MAX_PAUSES);
        }
    }
}

/// Subjects that wait for a CPU or P: since how many nanoseconds.
#[derive(Debug, Default)]
struct Runnable(HashMap<EntityId, i64>);

impl Runnable {
    /// The time in which the subject was runnable, when it begins to execute.
    fn advance(&mut self, interval: &Interval) -> Option<i64> {
        match interval.state {
            State::Runnable => {
                *self.0.entry(interval.subject).or_default() += interval.nanos();
                None
            }
            State::Running => self.0.remove(&interval.subject),
            _ => {
                self.0.remove(&interval.subject);
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
