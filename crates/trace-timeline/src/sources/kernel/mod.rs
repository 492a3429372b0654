//! The kernel's scheduler: decoded records of perf events.
//!
//! ```
//! use trace_timeline::{Tables, Timestamp};
//! use trace_timeline::sources::kernel::{KernelSource, Record, Task};
//!
//! let mut tables = Tables::new();
//! let mut source = KernelSource::new();
//! let mut events = Vec::new();
//! let task = |tid, comm| Task::new(tid, comm, 120);
//! let record = Record::Switch {
//!     cpu: 0,
//!     prev: task(0, b"swapper/0"),
//!     prev_state: 0,
//!     next: task(42, b"server"),
//! };
//! source.push(Timestamp::from_nanos(1_000), &record, &mut tables, &mut events);
//! ```
//!
//! Sources of the records: `sched:sched_switch`, `sched:sched_waking`, `sched:sched_wakeup_new`,
//! and `PERF_RECORD_FORK`, `COMM`, `EXIT` and `LOST`; `PERF_RECORD_SWITCH_CPU_WIDE`, where the kernel
//! leaves out a `sched_switch`; without privileges `PERF_RECORD_SWITCH` of one's own threads. With
//! `sched:sched_migrate_task` or `sched:sched_wakeup` it is known for which CPU a thread waits.
//!
//! Thread ids are those of the initial PID namespace, as tracepoints report them.

mod record;
mod switches;
mod tasks;
#[cfg(test)]
mod tests;

pub use record::{ProcessAttributes, Record, Task, ThreadRef};

use super::pusher::Pusher;
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{Context, Event, EventKind, FlowKind, LossKind, SampleKind, ThreadState};
use crate::tables::{SampledEventId, StackId, Tables, TextId};
use hashbrown::{HashMap, HashSet};
use record::left;
use std::collections::BTreeSet;
use tasks::{PROGRAM, describe};
use trace_common::{IdMap, Timestamp};

const fn sample(
    entity: EntityId,
    kind: SampleKind,
    cpu: Option<EntityId>,
    event: SampledEventId,
    stack: Option<StackId>,
    weight: u64,
) -> EventKind {
    EventKind::Sample { entity, kind, stack, weight, thread: None, cpu, event, of: None }
}

/// A nice value of 0.
const DEFAULT_PRIO: i16 = 120;

/// Statistics of a [`KernelSource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelStats {
    /// Context switches.
    pub switches: u64,
    /// Wake-ups.
    pub wakings: u64,
    /// Records that the kernel counted as lost.
    pub lost: u64,
    /// Switches that the kernel neither reported nor counted as lost. The states were repaired.
    pub unreported: u64,
    /// Switches that are in no `sched_switch`, only in a `PERF_RECORD_SWITCH_CPU_WIDE`.
    pub recovered: u64,
}

/// Makes model events of scheduler records: see the [module](self).
#[derive(Debug, Default)]
pub struct KernelSource {
    stats: KernelStats,
    /// By number.
    cpus: Vec<Option<Cpu>>,
    threads: IdMap<Option<Thread>>,
    processes: HashMap<u32, EntityId>,
    /// The threads that have not ended, by process.
    living: HashMap<EntityId, BTreeSet<u32>>,
    /// Processes whose main thread has exited. Others can live on.
    headless: HashSet<u32>,
    /// Threads whose exit was recorded, and not their end.
    exiting: BTreeSet<u32>,
    machine: Option<EntityId>,
    /// Whether context switches are not recorded: of two records nothing says that there was one
    /// between them.
    is_without_switches: bool,
    /// Whether switches are those of `PERF_RECORD_SWITCH`, which end with the thread: the switch away
    /// from it is in none.
    has_switch_records: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    entity: EntityId,
    running: Running,
    /// The last record of this CPU.
    last: Timestamp,
}

/// The thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    Unknown,
    Thread(ThreadRef),
}

impl Running {
    const fn tid(tid: u32) -> Self {
        Self::Thread(ThreadRef::Tid(tid))
    }
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    entity: EntityId,
    /// The time of its `PERF_RECORD_EXIT`: it may still be preempted.
    exit: Option<Timestamp>,
    is_in_process: bool,
    /// Whether it was listed as one that exists, and nothing else is known of it yet.
    is_listed_only: bool,
    /// Whether its entity has ended with the exit.
    has_ended: bool,
    /// The CPU where it was seen last. It can have left that one since.
    cpu: Option<u32>,
}

impl KernelSource {
    /// Makes a source.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of a recording without context switches.
    #[cfg(feature = "perf")]
    pub(super) const fn set_without_switches(&mut self) {
        self.is_without_switches = true;
    }

    /// Statistics so far.
    pub const fn stats(&self) -> KernelStats {
        self.stats
    }

    /// Appends the model events of the next record. Records come in time order.
    pub fn push(
        &mut self,
        at: Timestamp,
        record: &Record<'_>,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        let push = &mut Pusher { at, tables, out };
        match *record {
            Record::Switch { cpu, prev, prev_state, next } => {
                let known = self.comm_of(&prev, push);
                self.comm_of(&next, push);
                let left = self.left(prev.thread, prev_state);
                let prio = i16::try_from(next.prio).unwrap_or(DEFAULT_PRIO);
                self.switch(cpu, (prev.thread, known), left, Some((next.thread, prio)), push);
            }
            Record::Runs { cpu, thread, prev } => self.confirm(cpu, thread, prev, push),
            Record::In { cpu, tid } => {
                self.has_switch_records = true;
                self.get_cpu(cpu, tid, push);
            }
            Record::Out { cpu, tid, preempted } => {
                self.has_switch_records = true;
                if self.has_left_at_exit(cpu, tid) {
                    return;
                }
                let is_exiting = self.known(tid).is_some_and(|t| t.exit.is_some());
                let left = match (preempted, is_exiting) {
                    (true, _) => ThreadState::Preempted,
                    (_, true) => ThreadState::Dead,
                    _ => ThreadState::Sleeping,
                };
                self.switch(cpu, (ThreadRef::Tid(tid), None), left, None, push);
            }
            Record::Waking { cpu, by, flags, task, target_cpu, is_new, stack } => {
                self.stats.wakings += 1;
                let context = match flags {
                    Some(flags) if flags & 0x08 != 0 => Context::HardIrq,
                    Some(flags) if flags & 0x10 != 0 => Context::SoftIrq,
                    Some(_) => Context::Task,
                    None => Context::Unknown,
                };
                // The creator is the one that forked: a new thread is woken by it.
                let kind = if is_new { FlowKind::Creates } else { FlowKind::Wakes };
                self.comm_of(&task, push);
                if let Some(by) = by {
                    self.runs(cpu, by, push);
                }
                let from = by.filter(|by| *by != task.thread);
                let is_task = matches!(context, Context::Task | Context::Unknown);
                let from = from.filter(|_| is_task).and_then(|by| self.named(by, push));
                let Some(to) = self.named(task.thread, push) else { return };
                let target = self.cpu(target_cpu, push).map(|cpu| cpu.entity);
                let on = self.cpu(cpu, push).map(|cpu| {
                    cpu.last = at;
                    cpu.entity
                });
                let cpu = target;
                // An interrupt has the stack of the thread that it interrupted.
                let stack = stack.filter(|_| is_task);
                push.event(EventKind::Flow { kind, from, context, on, to, cpu, stack });
            }
            Record::Queue { cpu, task, from, to } => {
                self.comm_of(&task, push);
                let mut entity = |number| self.cpu(number, push).map(|cpu| cpu.entity);
                let (from, to) = (from.and_then(&mut entity), entity(to));
                if let Some(cpu) = self.cpu(cpu, push) {
                    cpu.last = at;
                }
                let thread = self.named(task.thread, push);
                if let (Some(thread), Some(cpu)) = (thread, to) {
                    push.event(EventKind::Queue { thread, from, cpu });
                }
            }
            Record::Thread { pid, tid, parent, comm, is_new } => {
                self.fork(pid, tid, parent, comm, is_new, push);
            }
            Record::Comm { tid, comm, by_exec } => {
                if by_exec {
                    self.exec(tid, push);
                }
                self.thread(tid, push);
                self.comm(tid, comm, push);
                // The calling thread has become the main thread.
                let process = self.processes.get(&tid).filter(|_| by_exec);
                for attribute in PROGRAM {
                    if let Some(process) = process {
                        push.tables.entities.describe(*process, attribute, TextId::EMPTY);
                    }
                }
            }
            Record::Exit { tid } => self.exit(tid, push),
            Record::Process { pid, attributes } => self.describe(pid, &attributes, push),
            Record::Machine { name, release, architecture } => {
                let name = push.tables.text(name);
                let known = push.tables.entities.shared(EntityKind::Machine, 0);
                let is_it = |id: &EntityId| {
                    push.tables.entities.get(*id).is_some_and(|machine| machine.name == name)
                };
                let machine = known
                    .filter(is_it)
                    .or_else(|| push.start(Entity::new(EntityKind::Machine, 0).name(name)));
                for (attribute, value) in
                    [(Attribute::KernelRelease, release), (Attribute::Architecture, architecture)]
                {
                    describe(machine, attribute, value, push);
                }
                self.machine = machine;
            }
            Record::Sample { cpu, pid, tid, event, stack, weight } => {
                let thread = self.sampled(pid, tid, push);
                let cpu = cpu.and_then(|cpu| self.cpu(cpu, push)).map(|cpu| {
                    cpu.last = at;
                    cpu.entity
                });
                let Some(entity) = thread.or(cpu).or(self.machine) else { return };
                push.event(sample(entity, SampleKind::Cpu, cpu, event, stack, weight));
            }
            Record::OffCpu { pid, tid, event, stack, nanos } => {
                let Some(entity) = self.sampled(pid, tid, push) else { return };
                push.event(sample(entity, SampleKind::OffCpu, None, event, stack, nanos));
            }
            Record::LostSamples { cpu, count } => {
                self.stats.lost = self.stats.lost.saturating_add(count);
                let Some(cpu) = self.cpu(cpu, push) else { return };
                let (entity, since) = (Some(cpu.entity), cpu.last);
                cpu.last = at;
                let (kind, count) = (LossKind::Samples, Some(count));
                push.event(EventKind::Loss { entity, kind, since, count });
            }
            Record::Lost { cpu, count } => {
                self.stats.lost = self.stats.lost.saturating_add(count);
                let (kind, count) = (LossKind::SchedulerRecords, Some(count).filter(|n| *n > 0));
                self.loss(cpu, kind, count, push);
                self.end_exited(push);
            }
            Record::Offline { cpu } => self.loss(cpu, LossKind::CpuOffline, None, push),
        }
    }

    /// A record says of which process a thread is, other than the idle thread.
    #[cfg(feature = "perf")]
    #[inline]
    pub(super) fn join_process(&mut self, pid: u32, tid: u32, push: &mut Pusher<'_>) {
        if self.known(tid).is_some_and(|thread| thread.is_in_process) {
            return;
        }
        // With the number of a main thread that has exited, another thread executes a program: see `becomes_main`.
        if pid != tid || !self.headless.contains(&pid) {
            self.sampled(pid, tid, push);
        }
    }

    /// The state in which a thread leaves a CPU, of `prev_state`.
    #[inline]
    pub(super) fn left(&self, prev: ThreadRef, prev_state: i64) -> ThreadState {
        let is_exiting = || {
            let known = prev.tid().and_then(|tid| self.known(tid));
            known.is_some_and(|thread| thread.exit.is_some())
        };
        match left(prev_state) {
            _ if prev == ThreadRef::Other => ThreadState::Unknown,
            // TASK_DEAD before Linux 4.14; TASK_PARKED since then.
            _ if prev_state & 0x40 != 0 && is_exiting() => ThreadState::Dead,
            left => left,
        }
    }

    /// Whether states of threads follow from the records: those of switches, and others that show which thread
    /// runs.
    pub(super) const fn has_switches(&self) -> bool {
        !self.is_without_switches || self.stats.switches > 0
    }

    /// Records were lost after the last one of a CPU, as only a count at the end of the recording says. Which CPU
    /// and when is not known.
    #[cfg(feature = "perf")]
    pub(super) fn lost_at_end(&mut self, count: u64, at: Timestamp, out: &mut Vec<Event>) {
        if count == 0 {
            return;
        }
        self.stats.lost = self.stats.lost.saturating_add(count);
        let kind = match self.has_switches() {
            true => LossKind::SchedulerRecords,
            false => LossKind::Samples,
        };
        let (since, count) = (at, Some(count));
        out.push(Event { time: at, kind: EventKind::Loss { entity: None, kind, since, count } });
    }

    /// Ends the recording: other sources of the timeline may continue, and the states of the threads
    /// are not known there.
    pub fn finish(&mut self, at: Timestamp, out: &mut Vec<Event>) {
        if !self.has_switches() {
            return;
        }
        let mut cpus: Vec<EntityId> = self.cpus.iter().flatten().map(|cpu| cpu.entity).collect();
        cpus.sort_unstable();
        out.extend(
            cpus.into_iter().map(|entity| Event { time: at, kind: EventKind::End { entity } }),
        );
    }

    /// Forgets a thread that has ended, and with the last thread of a process the process: for a
    /// timeline of any length, of this source alone, whose consumer does not look at them again.
    pub fn forget(&mut self, thread: EntityId, tables: &mut Tables) {
        let ended = |id: EntityId, kind, tables: &Tables| {
            let entity = tables.entities.get(id).copied();
            entity.filter(|entity| entity.kind == kind && entity.end.is_some())
        };
        let Some(known) = ended(thread, EntityKind::Thread, tables) else { return };
        tables.entities.forget_shared(thread);
        let Some(id) = known.parent else { return };
        let Some(process) = ended(id, EntityKind::Process, tables) else { return };
        if process.end == known.end {
            let pid = u32::try_from(process.number).ok();
            if let Some(pid) = pid.filter(|pid| self.processes.get(pid) == Some(&id)) {
                self.processes.remove(&pid);
                self.headless.remove(&pid);
            }
            tables.entities.forget_shared(id);
        }
    }
}
