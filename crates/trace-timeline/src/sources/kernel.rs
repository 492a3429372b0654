//! The kernel's scheduler: decoded records of perf events.
//!
//! ```
//! use trace_timeline::{Tables, Timestamp};
//! use trace_timeline::sources::kernel::{KernelSource, Record, Task};
//!
//! let mut tables = Tables::new();
//! let mut source = KernelSource::new();
//! let mut events = Vec::new();
//! let task = |tid, comm| Task { tid, comm, prio: 120 };
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
//! and `PERF_RECORD_FORK`, `COMM`, `EXIT` and `LOST`; without privileges `PERF_RECORD_SWITCH` of
//! one's own threads.
//!
//! Thread ids are those of the initial PID namespace, as tracepoints report them.

use super::pusher::Pusher;
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{Context, Event, EventKind, FlowKind, LossKind, SampleKind, ThreadState};
use crate::tables::{SampledEventId, StackId, Tables, TextId};
use hashbrown::HashMap;
use trace_common::{IdMap, Timestamp};

/// A thread in a tracepoint of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// The thread id (`pid` in the tracepoint). 0 is the idle thread, and a negative one any thread
    /// that is not of interest: it has no entity.
    pub tid: i32,
    /// The name.
    pub comm: &'a [u8],
    /// The kernel's priority: 120 is a nice value of 0.
    pub prio: i32,
}

/// Attributes of a process; empty ones are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct ProcessAttributes<'a> {
    /// The command line.
    pub command_line: &'a [u8],
    /// The path of the executable.
    pub executable: &'a [u8],
    /// The build id of the executable.
    pub build_id: &'a [u8],
    /// The path of the cgroup.
    pub cgroup: &'a [u8],
    /// The identifier of the container.
    pub container: &'a [u8],
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// `sched:sched_switch`.
    Switch {
        /// The CPU.
        cpu: u32,
        /// The thread that leaves it.
        prev: Task<'a>,
        /// The state of that thread, with the bits of the tracepoint.
        prev_state: i64,
        /// The thread that gets it.
        next: Task<'a>,
    },
    /// `sched:sched_waking`, or `sched:sched_wakeup_new`.
    Waking {
        /// The CPU of the waker.
        cpu: u32,
        /// The thread that runs there (`common_pid` of the tracepoint), if it is known; 0 is the
        /// idle thread. In an interrupt it did not wake anybody.
        by: Option<i32>,
        /// `common_flags` of the tracepoint: bit 3 is a hard interrupt, bit 4 a software
        /// interrupt. `None` if they were not recorded.
        flags: Option<u8>,
        /// The thread that is woken.
        task: Task<'a>,
        /// The CPU that it last ran on.
        target_cpu: u32,
        /// Whether it is a new thread: `sched_wakeup_new`.
        is_new: bool,
        /// The call chain of the waker.
        stack: Option<StackId>,
    },
    /// `PERF_RECORD_SWITCH` in: a thread gets a CPU.
    In {
        /// The CPU.
        cpu: u32,
        /// The thread.
        tid: i32,
    },
    /// `PERF_RECORD_SWITCH` out: a thread leaves a CPU.
    Out {
        /// The CPU.
        cpu: u32,
        /// The thread.
        tid: i32,
        /// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`.
        preempted: bool,
    },
    /// `PERF_RECORD_FORK`, or a thread that exists already (`is_new` is not set).
    Thread {
        /// The process id.
        pid: i32,
        /// The thread id.
        tid: i32,
        /// The process id and thread id of the creator, if they are known.
        parent: Option<(i32, i32)>,
        /// The name, if it is known. A new thread has the name of its creator.
        comm: &'a [u8],
        /// Whether it is created now.
        is_new: bool,
    },
    /// `PERF_RECORD_COMM`: a new name.
    Comm {
        /// The thread.
        tid: i32,
        /// Its name.
        comm: &'a [u8],
        /// Whether `execve(2)` set it: the process has another program now, of which nothing is
        /// known yet.
        by_exec: bool,
    },
    /// `PERF_RECORD_EXIT`.
    Exit {
        /// The thread.
        tid: i32,
    },
    /// Properties of a process beside its name, from `PERF_RECORD_MMAP2`, `PERF_RECORD_CGROUP` or
    /// `/proc`.
    Process {
        /// The process id.
        pid: i32,
        /// What is known of it. The rest stays as it is.
        attributes: ProcessAttributes<'a>,
    },
    /// The machine. It comes before other records.
    Machine {
        /// The host name.
        name: &'a [u8],
        /// The release of the kernel, as `uname -r` prints it.
        release: &'a [u8],
        /// The architecture, as `uname -m` prints it.
        architecture: &'a [u8],
    },
    /// `PERF_RECORD_SAMPLE` of an event that is not of the scheduler.
    Sample {
        /// The CPU, if it was recorded.
        cpu: Option<u32>,
        /// The process id.
        pid: i32,
        /// The thread id. 0 is the idle thread: the sample is one of the CPU.
        tid: i32,
        /// The event.
        event: SampledEventId,
        /// The call chain, or the address of the instruction.
        stack: Option<StackId>,
        /// The number of events since the last sample.
        weight: u64,
    },
    /// A thread is back on a CPU: a sample of the time since it left the CPU.
    OffCpu {
        /// The process id.
        pid: i32,
        /// The thread id.
        tid: i32,
        /// The event.
        event: SampledEventId,
        /// Where it left.
        stack: Option<StackId>,
        /// How long it was away.
        nanos: u64,
    },
    /// `PERF_RECORD_LOST` or `PERF_RECORD_LOST_SAMPLES` of the buffer of a CPU.
    Lost {
        /// The CPU.
        cpu: u32,
        /// The number of lost records.
        count: u64,
    },
    /// The same of a recording without the scheduler.
    LostSamples {
        /// The CPU.
        cpu: u32,
        /// The number of lost records.
        count: u64,
    },
}

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
}

/// Makes model events of scheduler records: see the [module](self).
#[derive(Debug, Default)]
pub struct KernelSource {
    stats: KernelStats,
    cpus: IdMap<Option<Cpu>>,
    threads: IdMap<Option<Thread>>,
    processes: HashMap<i32, EntityId>,
    /// Number of threads that have not ended, by process.
    living: HashMap<EntityId, u32>,
    machine: Option<EntityId>,
    /// Whether context switches are not recorded: of two records nothing says that there was one
    /// between them.
    is_without_switches: bool,
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
    /// 0 is the idle thread.
    Tid(i32),
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    entity: EntityId,
    /// The time of its `PERF_RECORD_EXIT`: it may still be preempted.
    exit: Option<Timestamp>,
    is_in_process: bool,
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
                self.comm(prev.tid, prev.comm, push);
                self.comm(next.tid, next.comm, push);
                let is_exiting = self.known(prev.tid).is_some_and(|t| t.exit.is_some());
                // TASK_DEAD before Linux 4.14; TASK_PARKED since then.
                let left = match left(prev_state) {
                    _ if prev.tid < 0 => ThreadState::Unknown,
                    _ if is_exiting && prev_state & 0x40 != 0 => ThreadState::Dead,
                    left => left,
                };
                let prio = i16::try_from(next.prio).unwrap_or(DEFAULT_PRIO);
                self.switch(cpu, prev.tid, left, Some((next.tid, prio)), push);
            }
            Record::In { cpu, tid } => self.get_cpu(cpu, tid, push),
            Record::Out { cpu, tid, preempted } => {
                let is_exiting = self.known(tid).is_some_and(|t| t.exit.is_some());
                let left = match (preempted, is_exiting) {
                    (true, _) => ThreadState::Preempted,
                    (_, true) => ThreadState::Dead,
                    _ => ThreadState::Sleeping,
                };
                self.switch(cpu, tid, left, None, push);
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
                self.comm(task.tid, task.comm, push);
                if let Some(by) = by {
                    self.runs(cpu, by, push);
                }
                let from = by.filter(|tid| *tid > 0 && *tid != task.tid);
                let is_task = matches!(context, Context::Task | Context::Unknown);
                let from = from.filter(|_| is_task).and_then(|tid| self.thread(tid, push));
                let Some(to) = self.thread(task.tid, push) else { return };
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
            Record::Thread { pid, tid, parent, comm, is_new } => {
                self.fork(pid, tid, parent, comm, is_new, push);
            }
            Record::Comm { tid, comm, by_exec } => {
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
                    .or_else(|| push.start(Entity::new(EntityKind::Machine, 0).named(name)));
                for (attribute, value) in
                    [(Attribute::KernelRelease, release), (Attribute::Architecture, architecture)]
                {
                    describe(machine, attribute, value, push);
                }
                self.machine = machine;
            }
            Record::Sample { cpu, pid, tid, event, stack, weight } => {
                let thread = self.sampled(pid, tid, push);
                let cpu = cpu.and_then(|cpu| self.cpu(cpu, push)).map(|cpu| cpu.entity);
                let Some(entity) = thread.or(cpu).or(self.machine) else { return };
                push.event(sample(entity, SampleKind::Cpu, cpu, event, stack, weight));
            }
            Record::OffCpu { pid, tid, event, stack, nanos } => {
                let Some(entity) = self.sampled(pid, tid, push) else { return };
                push.event(sample(entity, SampleKind::OffCpu, None, event, stack, nanos));
            }
            Record::LostSamples { cpu, count } => {
                self.stats.lost += count;
                let Some(cpu) = self.cpu(cpu, push) else { return };
                let (entity, since) = (Some(cpu.entity), cpu.last);
                cpu.last = at;
                let (kind, count) = (LossKind::Samples, Some(count));
                push.event(EventKind::Loss { entity, kind, since, count });
            }
            Record::Lost { cpu, count } => {
                self.stats.lost += count;
                let kind = LossKind::SchedulerRecords;
                self.loss(cpu, kind, Some(count), push);
            }
        }
    }

    /// Ends the recording: other sources of the timeline may continue, and the states of the threads
    /// are not known there.
    pub fn finish(&mut self, at: Timestamp, out: &mut Vec<Event>) {
        if self.stats.switches == 0 {
            return;
        }
        let known = self.cpus.ids().filter_map(|number| self.cpus.get(number)?.as_ref());
        let mut cpus: Vec<EntityId> = known.map(|cpu| cpu.entity).collect();
        cpus.sort_unstable();
        out.extend(cpus.into_iter().map(|entity| Event { at, kind: EventKind::End { entity } }));
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
            let pid = i32::try_from(process.number).unwrap_or_default();
            if self.processes.get(&pid) == Some(&id) {
                self.processes.remove(&pid);
            }
            tables.entities.forget_shared(id);
        }
    }

    /// A record of another kind shows which thread runs on a CPU.
    fn runs(&mut self, number: u32, tid: i32, push: &mut Pusher<'_>) {
        if self.is_without_switches {
            return;
        }
        let Some(cpu) = self.cpu(number, push) else { return };
        match cpu.running {
            Running::Tid(known) if known == tid => return,
            Running::Tid(_) => {
                self.stats.unreported += 1;
                self.loss(number, LossKind::UnreportedSwitch, None, push);
            }
            Running::Unknown => {}
        }
        let thread = self.thread(tid, push);
        let Some(cpu) = self.cpu(number, push) else { return };
        cpu.running = Running::Tid(tid);
        push.event(EventKind::Switch {
            cpu: cpu.entity,
            // It left for itself: what it did since the last record is not known.
            prev: thread,
            left: ThreadState::Unknown,
            next: thread,
            is_next_unknown: tid != 0 && thread.is_none(),
            prio: DEFAULT_PRIO,
        });
    }

    /// A thread gets a CPU, and nothing is known of the one before.
    fn get_cpu(&mut self, cpu: u32, tid: i32, push: &mut Pusher<'_>) {
        let next = self.thread(tid, push);
        let Some(cpu) = self.cpu(cpu, push) else { return };
        cpu.running = Running::Tid(tid);
        cpu.last = push.at;
        let cpu = cpu.entity;
        self.stats.switches += 1;
        let (prev, left, prio) = (None, ThreadState::Unknown, DEFAULT_PRIO);
        let is_next_unknown = false;
        push.event(EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio });
    }

    fn switch(
        &mut self,
        number: u32,
        prev: i32,
        left: ThreadState,
        next: Option<(i32, i16)>,
        push: &mut Pusher<'_>,
    ) {
        let (next, prio) = (next.map(|(tid, _)| tid), next.map_or(DEFAULT_PRIO, |(_, prio)| prio));
        self.stats.switches += 1;
        let Some(cpu) = self.cpu(number, push) else { return };
        let running = cpu.running;
        if matches!(running, Running::Tid(tid) if tid != prev) {
            // The records of the switches between are missing, and were not counted as lost. Seen
            // on Linux 6.18, also with `perf record`.
            self.stats.unreported += 1;
            self.loss(number, LossKind::UnreportedSwitch, None, push);
        }
        let prev_entity = self.thread(prev, push);
        let next_entity = next.and_then(|tid| self.thread(tid, push));
        let Some(cpu) = self.cpu(number, push) else { return };
        cpu.running = next.map_or(Running::Unknown, Running::Tid);
        cpu.last = push.at;
        push.event(EventKind::Switch {
            cpu: cpu.entity,
            prev: prev_entity,
            left,
            next: next_entity,
            is_next_unknown: next != Some(0) && next_entity.is_none(),
            prio,
        });
        if left == ThreadState::Dead {
            self.end(prev, push);
        }
    }

    fn loss(&mut self, cpu: u32, kind: LossKind, count: Option<u64>, push: &mut Pusher<'_>) {
        let Some(cpu) = self.cpu(cpu, push) else { return };
        let since = cpu.last;
        cpu.running = Running::Unknown;
        cpu.last = push.at;
        let entity = Some(cpu.entity);
        push.event(EventKind::Loss { entity, kind, since, count });
    }

    fn cpu(&mut self, number: u32, push: &mut Pusher<'_>) -> Option<&mut Cpu> {
        if !self.cpus.contains(number.into()) {
            let cpu = Entity::new(EntityKind::Cpu, number.into()).child_of(self.machine);
            let known = push.tables.entities.shared(EntityKind::Cpu, number.into());
            let entity = known.or_else(|| push.start(cpu))?;
            let cpu = Cpu { entity, running: Running::Unknown, last: push.at };
            *self.cpus.insert(number.into()) = Some(cpu);
        }
        self.cpus.get_mut(number.into())?.as_mut()
    }

    #[inline]
    fn known(&self, tid: i32) -> Option<&Thread> {
        self.threads.get(tid.into())?.as_ref()
    }

    /// The thread with this id; `None` for the idle thread.
    fn thread(&mut self, tid: i32, push: &mut Pusher<'_>) -> Option<EntityId> {
        if tid <= 0 {
            return None;
        }
        if let Some(thread) = self.known(tid) {
            return Some(thread.entity);
        }
        self.add(tid, Entity::new(EntityKind::Thread, tid.into()), push)
    }

    /// The thread of a sample, which says of which process it is.
    fn sampled(&mut self, pid: i32, tid: i32, push: &mut Pusher<'_>) -> Option<EntityId> {
        let known = self.known(tid);
        if tid > 0 && !known.is_some_and(|thread| thread.is_in_process) {
            // A record of its name may have come before.
            let known = known.and_then(|thread| push.tables.entities.get(thread.entity));
            let comm = known.map_or_else(Vec::new, |thread| push.tables.get(thread.name).to_vec());
            self.fork(pid, tid, None, &comm, false, push);
        }
        self.thread(tid, push)
    }

    fn add(&mut self, tid: i32, entity: Entity, push: &mut Pusher<'_>) -> Option<EntityId> {
        let entity = match self.adopt_thread(entity, push) {
            Some(known) => known,
            None => push.start(entity)?,
        };
        let process = push.tables.entities.get(entity).and_then(|entity| entity.parent);
        if let Some(process) = process {
            *self.living.entry(process).or_default() += 1;
        }
        let is_in_process = process.is_some();
        let thread = Thread { entity, exit: None, is_in_process };
        *self.threads.insert(tid.into()) = Some(thread);
        Some(entity)
    }

    fn fork(
        &mut self,
        pid: i32,
        tid: i32,
        parent: Option<(i32, i32)>,
        comm: &[u8],
        is_new: bool,
        push: &mut Pusher<'_>,
    ) {
        if is_new {
            self.end(tid, push); // an existing one is another thread
            if pid == tid {
                self.end_process(pid, push);
            }
        }
        let of_creator = |this: &Self, tables: &Tables, tid: i32| {
            let thread = this.known(tid)?;
            tables.entities.get(thread.entity).map(|entity| entity.name)
        };
        let inherited = parent.and_then(|(_, tid)| of_creator(self, push.tables, tid));
        let name = match (comm, inherited) {
            (b"", Some(name)) => name,
            _ => push.tables.text(comm),
        };
        let process = match self.processes.get(&pid) {
            Some(process) if !(is_new && pid == tid) => {
                let process = *process;
                self.complete(process, tid == pid, name, parent, push);
                Some(process)
            }
            _ => {
                let parent = parent.and_then(|(parent, _)| self.parent(parent, push));
                let process = Entity::new(EntityKind::Process, pid.into());
                let mut process = process.child_of(parent).named(name);
                process.start = Some(push.at).filter(|_| is_new);
                let process = self.adopt(process, push).or_else(|| push.start(process));
                self.processes.extend(process.map(|process| (pid, process)));
                if let (Some(process), Some(parent)) = (process, parent) {
                    inherit(process, parent, push);
                }
                process
            }
        };
        if let Some(thread) = self.threads.get_mut(tid.into()).and_then(Option::as_mut) {
            // Seen in a switch before it was listed.
            if !thread.is_in_process {
                thread.is_in_process = true;
                if let Some(process) = process {
                    *self.living.entry(process).or_default() += 1;
                }
                if let Some(entity) = push.tables.entities.get_mut(thread.entity) {
                    entity.parent = process;
                    entity.name = name;
                }
            }
            return;
        }
        let mut thread = Entity::new(EntityKind::Thread, tid.into());
        thread = thread.child_of(process).named(name);
        thread.start = Some(push.at).filter(|_| is_new);
        self.add(tid, thread, push);
    }

    /// The process of a parent; `None` for the idle process.
    fn parent(&mut self, pid: i32, push: &mut Pusher<'_>) -> Option<EntityId> {
        if pid <= 0 {
            return None;
        }
        if let Some(process) = self.processes.get(&pid) {
            return Some(*process);
        }
        let process = push.process(pid.into(), b"");
        self.processes.extend(process.map(|process| (pid, process)));
        process
    }

    /// A process that existed already, and of which only the number is known so far.
    fn complete(
        &mut self,
        process: EntityId,
        is_main: bool,
        name: TextId,
        parent: Option<(i32, i32)>,
        push: &mut Pusher<'_>,
    ) {
        let known = push.tables.entities.get(process).copied();
        let Some(known) = known.filter(|known| is_main && known.start.is_none()) else { return };
        let parent = match (known.parent, parent) {
            (None, Some((parent, _))) => self.parent(parent, push).filter(|id| *id != process),
            (parent, _) => parent,
        };
        if let Some(entity) = push.tables.entities.get_mut(process) {
            entity.parent = parent;
            if entity.name.is_empty() {
                entity.name = name;
            }
        }
    }

    fn describe(&mut self, pid: i32, known: &ProcessAttributes<'_>, push: &mut Pusher<'_>) {
        let process = match self.processes.get(&pid) {
            Some(process) => Some(*process),
            None => push.process(pid.into(), b""),
        };
        self.processes.extend(process.map(|process| (pid, process)));
        let build_id: String = known.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        for (attribute, value) in [
            (Attribute::CommandLine, known.command_line),
            (Attribute::Executable, known.executable),
            (Attribute::BuildId, build_id.as_bytes()),
            (Attribute::Cgroup, known.cgroup),
            (Attribute::Container, known.container),
        ] {
            describe(process, attribute, value, push);
        }
    }

    /// A process that another source, which is read ahead, has found before: that of a runtime or
    /// of another recording.
    fn adopt(&self, process: Entity, push: &mut Pusher<'_>) -> Option<EntityId> {
        let at = push.at;
        let entities = &mut push.tables.entities;
        let id = entities.process(process.number)?;
        // Another recording may have renamed it already.
        let main = entities.shared(EntityKind::Thread, process.number);
        let is_of_kernel = main.is_some_and(|main| entities.process_of(main) == Some(id));
        let known = entities.get_mut(id)?;
        let pid = i32::try_from(process.number).ok()?;
        if self.processes.get(&pid) == Some(&id) || !is_same(known, process.start, at) {
            return None; // the process id is used again
        }
        known.parent = process.parent.or(known.parent);
        known.start = known.start.or(process.start);
        if !process.name.is_empty() && !is_of_kernel {
            known.name = process.name;
        }
        if !is_of_kernel {
            push.event(EventKind::Start { entity: id });
        }
        Some(id)
    }

    /// A thread that another recording of the same machine, which is read ahead, has found before.
    fn adopt_thread(&self, thread: Entity, push: &mut Pusher<'_>) -> Option<EntityId> {
        let at = push.at;
        let id = push.tables.entities.shared(EntityKind::Thread, thread.number)?;
        let known = push.tables.entities.get_mut(id)?;
        if !is_same(known, thread.start, at) {
            return None;
        }
        if known.parent.is_none() {
            (known.parent, known.name) = (thread.parent, thread.name);
        }
        Some(id)
    }

    /// A thread exits. The switch away from it, which is its end, can be missing.
    fn exit(&mut self, tid: i32, push: &mut Pusher<'_>) {
        let Some(thread) = self.threads.get_mut(tid.into()).and_then(Option::as_mut) else {
            return;
        };
        if thread.exit.is_some() {
            return;
        }
        thread.exit = Some(push.at);
        let known = push.tables.entities.get_mut(thread.entity);
        // Another recording may have ended it.
        let Some(known) = known.filter(|thread| thread.end.is_none()) else { return };
        known.end = Some(push.at);
        let process = known.parent;
        self.leave(process, push);
    }

    fn end(&mut self, tid: i32, push: &mut Pusher<'_>) {
        let Some(thread) = self.threads.remove(tid.into()).and_then(Option::take) else { return };
        let Some(known) = push.tables.entities.get(thread.entity).copied() else { return };
        if known.end.is_some() && known.end != thread.exit {
            return; // another recording has ended it
        }
        push.end(thread.entity);
        match (known.end, known.parent) {
            (None, process) => self.leave(process, push),
            // It has left the process, which may have ended with it.
            (Some(_), Some(process)) if !self.living.contains_key(&process) => {
                self.end_of(process, push);
            }
            _ => {}
        }
    }

    /// A thread leaves its process. The main thread can do it before the others.
    fn leave(&mut self, process: Option<EntityId>, push: &mut Pusher<'_>) {
        let Some(process) = process else { return };
        let living = self.living.get_mut(&process);
        let is_last = living.is_some_and(|living| {
            *living = living.saturating_sub(1);
            *living == 0
        });
        if is_last {
            self.living.remove(&process);
            self.end_of(process, push);
        }
    }

    fn end_of(&self, process: EntityId, push: &mut Pusher<'_>) {
        if let Some(process) = push.tables.entities.get_mut(process) {
            process.end = Some(push.at);
        }
    }

    /// The process id is used again: the ends of its threads were not recorded.
    fn end_process(&mut self, pid: i32, push: &mut Pusher<'_>) {
        let Some(process) = self.processes.get(&pid) else { return };
        self.living.remove(process);
        let process = push.tables.entities.get_mut(*process);
        if let Some(process) = process.filter(|process| process.end.is_none()) {
            // Another recording may have found the new process already.
            if process.start.is_none_or(|start| start < push.at) {
                process.end = Some(push.at);
            }
        }
    }

    /// The current name of a thread.
    fn comm(&mut self, tid: i32, comm: &[u8], push: &mut Pusher<'_>) {
        if tid <= 0 || comm.is_empty() {
            return;
        }
        let Some(entity) = self.thread(tid, push) else { return };
        let tables = &mut *push.tables;
        let Some(thread) = tables.entities.get(entity) else { return };
        if tables.get(thread.name) == comm {
            return;
        }
        let process = thread.parent.filter(|_| self.processes.get(&tid) == thread.parent.as_ref());
        let name = tables.text(comm);
        for id in [Some(entity), process].into_iter().flatten() {
            if let Some(entity) = tables.entities.get_mut(id) {
                entity.name = name;
            }
        }
    }
}

/// Whether a process or thread that starts now, or exists now without a known start, is a known one.
fn is_same(known: &Entity, start: Option<Timestamp>, at: Timestamp) -> bool {
    /// Each recording takes the time of a start on its own.
    const TOLERANCE: u64 = 1_000_000;
    let is_alive = known.end.is_none_or(|end| end >= at);
    let is_start = match (known.start, start) {
        (Some(known), Some(start)) => known.nanos_since(start).unsigned_abs() < TOLERANCE,
        _ => true,
    };
    is_alive && is_start
}

/// Attributes of the program that a process executes.
const PROGRAM: [Attribute; 3] = [Attribute::CommandLine, Attribute::Executable, Attribute::BuildId];

/// A new process has the program and the cgroup of its parent.
fn inherit(process: EntityId, parent: EntityId, push: &mut Pusher<'_>) {
    let entities = &mut push.tables.entities;
    for attribute in PROGRAM.into_iter().chain([Attribute::Cgroup, Attribute::Container]) {
        // Another source can know better.
        if entities.attribute(process, attribute).is_none() {
            if let Some(value) = entities.attribute(parent, attribute) {
                entities.describe(process, attribute, value);
            }
        }
    }
}

/// Sets an attribute that is known.
fn describe(entity: Option<EntityId>, attribute: Attribute, value: &[u8], push: &mut Pusher<'_>) {
    if let Some(entity) = entity.filter(|_| !value.is_empty()) {
        let value = push.tables.text(value);
        push.tables.entities.describe(entity, attribute, value);
    }
}

/// The state of a thread that leaves a CPU, of `prev_state`.
///
/// The low eight bits are `TASK_REPORT`. A higher bit alone is preemption: which one depends on the
/// kernel (`0x100` since Linux 4.14).
pub(super) const fn left(prev_state: i64) -> ThreadState {
    match prev_state & 0xff {
        0 => ThreadState::Preempted,
        bits if bits & 0x30 != 0 => ThreadState::Dead,
        bits if bits & 0x0c != 0 => ThreadState::Stopped,
        bits if bits & 0x02 != 0 => ThreadState::Blocked,
        _ => ThreadState::Sleeping,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    const fn task(tid: i32) -> Task<'static> {
        Task { tid, comm: b"x", prio: 120 }
    }

    struct Run {
        source: KernelSource,
        tables: Tables,
        events: Vec<Event>,
    }

    impl Run {
        fn new() -> Self {
            let (source, tables) = (KernelSource::new(), Tables::new());
            Self { source, tables, events: Vec::new() }
        }

        fn push(&mut self, time: i64, record: Record<'_>) -> &[Event] {
            self.events.clear();
            self.source.push(at(time), &record, &mut self.tables, &mut self.events);
            &self.events
        }
    }

    const fn switch(prev: i32, prev_state: i64, next: i32) -> Record<'static> {
        Record::Switch { cpu: 0, prev: task(prev), prev_state, next: task(next) }
    }

    #[test]
    fn states_of_all_kernels() {
        assert_eq!(left(0), ThreadState::Preempted);
        for preempted in [0x100, 0x400, 0x800, 0x1000] {
            assert_eq!(left(preempted), ThreadState::Preempted, "{preempted:#x}");
        }
        assert_eq!(left(1), ThreadState::Sleeping);
        assert_eq!(left(2), ThreadState::Blocked);
        assert_eq!(left(0x80), ThreadState::Sleeping); // an idle kernel thread
        assert_eq!((left(0x10), left(0x20)), (ThreadState::Dead, ThreadState::Dead));
    }

    /// Two wake-ups by different threads say nothing about the time between them.
    #[cfg(feature = "perf")]
    #[test]
    fn wake_ups_alone_are_no_context_switches() {
        let mut run = Run::new();
        run.source.set_without_switches();
        for (time, by) in [(10, 7), (20, 8), (30, 7)] {
            let (flags, stack, is_new) = (Some(0), None, false);
            let (cpu, by, task, target_cpu) = (0, Some(by), task(9), 1);
            let events =
                run.push(time, Record::Waking { cpu, by, flags, task, target_cpu, is_new, stack });
            let flows = |event: &&Event| matches!(event.kind, EventKind::Flow { .. });
            assert_eq!(events.iter().filter(flows).count(), 1);
            let others = |event: &&Event| {
                matches!(event.kind, EventKind::Switch { .. } | EventKind::Loss { .. })
            };
            assert_eq!(events.iter().find(others), None);
        }
        assert_eq!(run.source.stats(), KernelStats { wakings: 3, ..KernelStats::default() });
    }

    /// Two recordings of one machine, one of the scheduler and one of samples.
    #[test]
    fn recordings_share_cpus_processes_and_threads() {
        let mut run = Run::new();
        let start = |pid, tid| {
            let parent = Some((1, 1));
            Record::Thread { pid, tid, parent, comm: b"old", is_new: true }
        };
        run.push(1_000, start(7, 7));
        run.push(2_000, switch(0, 0, 7));
        let before = run.tables.entities.len();
        let name = |tables: &Tables| {
            let process = tables.entities.process(7).and_then(|id| tables.entities.get(id));
            process.map(|process| tables.str(process.name).into_owned())
        };
        assert_eq!(name(&run.tables).as_deref(), Some("x"));
        let mut other = KernelSource::new();
        let mut push = |time, record| {
            let mut events = Vec::new();
            other.push(at(time), &record, &mut run.tables, &mut events);
            events
        };
        let sample = |tid| Record::Sample {
            cpu: Some(0),
            pid: 7,
            tid,
            event: SampledEventId::default(),
            stack: None,
            weight: 1,
        };
        // It saw the start a little later, when the first one had read a new name.
        push(1_700, start(7, 7));
        let events = push(2_500, sample(7));
        assert!(
            matches!(&events[..], [Event { kind: EventKind::Sample { .. }, .. }]),
            "{events:?}"
        );
        assert_eq!(run.tables.entities.len(), before);
        assert_eq!(name(&run.tables).as_deref(), Some("x"));
        // Losses of samples say nothing about the scheduler.
        let mut push = |time, record| {
            let mut events = Vec::new();
            other.push(at(time), &record, &mut run.tables, &mut events);
            events
        };
        let lost = push(2_600, Record::LostSamples { cpu: 0, count: 3 });
        assert!(matches!(
            lost[..],
            [Event { kind: EventKind::Loss { kind: LossKind::Samples, count: Some(3), .. }, .. }]
        ));
        // The thread id is used again.
        push(9_000_000, start(7, 7));
        assert_eq!(run.tables.entities.len(), before + 2, "a process and a thread");
    }

    #[test]
    fn a_missing_switch_is_a_loss_since_the_last_record() {
        let mut run = Run::new();
        run.push(10, switch(0, 0, 5));
        let events = run.push(30, switch(6, 1, 0)).to_vec();
        let loss = events.iter().find_map(|event| match event.kind {
            EventKind::Loss { kind, since, .. } => Some((kind, since)),
            _ => None,
        });
        assert_eq!(loss, Some((LossKind::UnreportedSwitch, at(10))));
        assert_eq!(run.source.stats().unreported, 1);
    }

    /// The thread that runs is in other records too.
    #[test]
    fn a_waker_that_was_not_switched_in_shows_a_missing_switch() {
        let mut run = Run::new();
        run.push(10, switch(5, 0x100, 0));
        let waking = |by| Record::Waking {
            cpu: 0,
            by: Some(by),
            flags: Some(0x08),
            task: task(9),
            target_cpu: 1,
            is_new: false,
            stack: None,
        };
        run.push(20, waking(0));
        assert_eq!(run.source.stats().unreported, 0);
        let events = run.push(40, waking(5)).to_vec();
        assert_eq!(run.source.stats().unreported, 1);
        let since = events.iter().find_map(|event| match event.kind {
            EventKind::Loss { kind: LossKind::UnreportedSwitch, since, .. } => Some(since),
            _ => None,
        });
        assert_eq!(since, Some(at(20)));
        let running = events.iter().find_map(|event| match event.kind {
            EventKind::Switch { next, .. } => next,
            _ => None,
        });
        let key = running.and_then(|id| run.tables.entities.get(id)).map(|e| e.number);
        assert_eq!(key, Some(5));
        run.push(50, waking(5));
        run.push(60, switch(5, 1, 0));
        assert_eq!(run.source.stats().unreported, 1);
    }

    #[test]
    fn processes_and_machines_have_attributes() {
        let mut run = Run::new();
        let (release, architecture) = (&b"6.18.0"[..], &b"x86_64"[..]);
        run.push(1, Record::Machine { name: b"host", release, architecture });
        let describe = |executable| Record::Process {
            pid: 7,
            attributes: ProcessAttributes {
                executable,
                build_id: &[0xab, 0x01],
                ..ProcessAttributes::default()
            },
        };
        run.push(2, describe(b"/bin/old"));
        run.push(3, Record::Thread { pid: 7, tid: 7, parent: None, comm: b"a", is_new: false });
        run.push(4, describe(b"/bin/new"));
        run.push(5, describe(b""));
        run.push(6, switch(0, 0, 7));
        let entities = &run.tables.entities;
        let process = entities.process(7).unwrap();
        let attribute = |id, attribute| {
            entities.attribute(id, attribute).map(|value| run.tables.str(value).into_owned())
        };
        assert_eq!(attribute(process, Attribute::Executable).as_deref(), Some("/bin/new"));
        assert_eq!(attribute(process, Attribute::BuildId).as_deref(), Some("ab01"));
        assert_eq!(attribute(process, Attribute::Cgroup), None);
        let thread = entities.iter().find(|(_, e)| e.kind == EntityKind::Thread).unwrap().1;
        assert_eq!(thread.parent, Some(process));
        let cpu = entities.iter().find(|(_, e)| e.kind == EntityKind::Cpu).unwrap().1;
        let machine = cpu.parent.unwrap();
        assert_eq!(attribute(machine, Attribute::KernelRelease).as_deref(), Some("6.18.0"));
    }

    /// A tree of processes: what was there before, forks and `execve(2)`, and ends.
    #[test]
    fn processes_have_parents_programs_and_ends() {
        let mut run = Run::new();
        let existing = |pid, parent| {
            let parent = Some((parent, parent));
            Record::Thread { pid, tid: pid, parent, comm: b"old", is_new: false }
        };
        let new = |pid, tid, parent| {
            let parent = Some((parent, parent));
            Record::Thread { pid, tid, parent, comm: b"", is_new: true }
        };
        let program = |pid, command_line| Record::Process {
            pid,
            attributes: ProcessAttributes {
                command_line,
                cgroup: b"/app",
                ..ProcessAttributes::default()
            },
        };
        // A child that is listed before its parent; the parent of 9 is the idle process.
        run.push(1, existing(5, 9));
        run.push(1, existing(9, 0));
        run.push(1, program(9, b"init -x"));
        run.push(2, new(20, 20, 9));
        run.push(3, Record::Comm { tid: 20, comm: b"child", by_exec: false });
        run.push(4, new(20, 21, 20));
        let get = |run: &Run, pid| {
            let tables = &run.tables;
            let id = tables.entities.process(pid).unwrap();
            let process = *tables.entities.get(id).unwrap();
            let text = |attribute| {
                tables.entities.attribute(id, attribute).map(|value| tables.str(value).into_owned())
            };
            let line = text(Attribute::CommandLine);
            (process, tables.str(process.name).into_owned(), line, text(Attribute::Cgroup))
        };
        let first = run.tables.entities.process(9);
        let (init, name, line, _) = get(&run, 9);
        assert_eq!((init.parent, init.start, &name[..]), (None, None, "old"));
        assert_eq!(line.as_deref(), Some("init -x"));
        assert_eq!((get(&run, 5).0.parent, &get(&run, 5).1[..]), (first, "old"));
        let (child, name, line, cgroup) = get(&run, 20);
        assert_eq!((child.parent, child.start, &name[..]), (first, Some(at(2)), "child"));
        assert_eq!((line.as_deref(), cgroup.as_deref()), (Some("init -x"), Some("/app")));

        run.push(5, Record::Comm { tid: 20, comm: b"prog", by_exec: true });
        let (.., line, cgroup) = get(&run, 20);
        assert_eq!((line, cgroup.as_deref()), (None, Some("/app")), "the new program is not known");
        run.push(6, program(20, b"./prog 1"));
        assert_eq!(get(&run, 20).2.as_deref(), Some("./prog 1"));

        // The main thread ends first.
        run.push(7, Record::Exit { tid: 20 });
        run.push(8, switch(20, 0x10, 21));
        assert_eq!(get(&run, 20).0.end, None);
        run.push(9, Record::Exit { tid: 21 });
        assert_eq!(get(&run, 20).0.end, Some(at(9)), "the switch away from it can be missing");
        run.push(10, switch(21, 0x10, 0));
        assert_eq!(get(&run, 20).0.end, Some(at(10)));
        // The id of a process whose end was lost.
        let before = run.tables.entities.process(5).unwrap();
        run.push(11, new(5, 5, 9));
        let (again, ..) = get(&run, 5);
        assert_eq!((again.start, again.end), (Some(at(11)), None));
        assert_eq!(run.tables.entities.get(before).unwrap().end, Some(at(11)));
    }

    #[test]
    fn a_reused_thread_id_is_another_entity() {
        let mut run = Run::new();
        let fork = |tid| Record::Thread { pid: 1, tid, parent: None, comm: b"a", is_new: true };
        run.push(1, fork(7));
        run.push(2, switch(0, 0, 7));
        run.push(3, Record::Exit { tid: 7 });
        let last = run.push(4, switch(7, 0x10, 0)).last().copied().unwrap();
        assert!(matches!(last.kind, EventKind::End { .. }), "{last:?}");
        run.push(5, fork(7));
        let entities = &run.tables.entities;
        let threads: Vec<_> =
            entities.iter().filter(|(_, e)| e.kind == EntityKind::Thread).collect();
        assert_eq!(threads.len(), 2);
        assert_eq!((threads[0].1.start, threads[0].1.end), (Some(at(1)), Some(at(4))));
        assert_eq!((threads[1].1.start, threads[1].1.end), (Some(at(5)), None));
    }

    #[test]
    fn a_thread_that_is_not_of_interest_has_no_entity() {
        let mut run = Run::new();
        let states = |events: &[Event]| {
            let switches = events.iter().filter_map(|event| match event.kind {
                EventKind::Switch { prev, left, next, is_next_unknown, .. } => {
                    Some((prev.is_some(), left, next.is_some(), is_next_unknown))
                }
                _ => None,
            });
            switches.collect::<Vec<_>>()
        };
        let unknown = ThreadState::Unknown;
        assert_eq!(states(run.push(1, switch(-1, 1, -1))), [(false, unknown, false, true)]);
        assert_eq!(states(run.push(2, switch(-1, 0, 5))), [(false, unknown, true, false)]);
        let sleeping = ThreadState::Sleeping;
        assert_eq!(states(run.push(3, switch(5, 1, 0))), [(true, sleeping, false, false)]);
        let preempted = ThreadState::Preempted;
        assert_eq!(states(run.push(4, switch(0, 0, -1))), [(false, preempted, false, true)]);
        assert_eq!((run.source.stats().switches, run.source.stats().unreported), (4, 0));
        run.push(5, switch(0, 0, 5));
        assert_eq!(run.source.stats().unreported, 1);
        let threads = run.tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Thread);
        assert_eq!(threads.count(), 1);
    }

    /// A machine that starts processes for ever.
    #[test]
    fn ended_threads_and_processes_can_be_forgotten() {
        let mut run = Run::new();
        run.push(1, switch(0, 0, -1));
        let mut time = 1;
        let mut least = usize::MAX;
        for round in 0..1_000 {
            let pid = 10 + 2 * (round % 100);
            for tid in [pid, pid + 1] {
                let parent = Some((1, 1));
                let new = Record::Thread { pid, tid, parent, comm: b"a", is_new: true };
                time += 1;
                run.push(time, new);
            }
            let program = ProcessAttributes { command_line: b"a b", ..Default::default() };
            run.push(time, Record::Process { pid, attributes: program });
            for tid in [pid, pid + 1] {
                time += 2;
                run.push(time - 1, Record::Exit { tid });
                let ended = run.push(time, switch(tid, 0x10, -1)).to_vec();
                let ended = ended.iter().find_map(|event| match event.kind {
                    EventKind::End { entity } => Some(entity),
                    _ => None,
                });
                run.source.forget(ended.unwrap(), &mut run.tables);
            }
            assert!(run.tables.entities.process(pid.into()).is_none());
            least = least.min(run.tables.entities.len());
            assert_eq!(run.tables.entities.len(), least);
        }
        assert!(run.source.processes.len() <= 1, "the parent");
        assert!(run.source.living.is_empty());
    }

    #[test]
    fn an_interrupt_is_not_the_thread_that_it_interrupts() {
        let mut run = Run::new();
        let waking = |flags| Record::Waking {
            cpu: 0,
            by: Some(5),
            flags,
            task: task(9),
            target_cpu: 1,
            is_new: false,
            stack: None,
        };
        for (flags, context, has_waker) in [
            (Some(0x10), Context::SoftIrq, false),
            (Some(0x18), Context::HardIrq, false),
            (Some(0x01), Context::Task, true),
            (None, Context::Unknown, true),
        ] {
            let last = run.push(1, waking(flags)).last().copied().unwrap();
            let EventKind::Flow { from, context: found, .. } = last.kind else {
                panic!("{last:?}")
            };
            assert_eq!((found, from.is_some()), (context, has_waker), "{flags:?}");
        }
    }
}
