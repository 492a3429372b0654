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
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{Context, Event, EventKind, FlowKind, LossKind, ThreadState};
use crate::tables::Tables;
use hashbrown::HashMap;
use trace_common::Timestamp;

/// A thread in a tracepoint of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// The thread id (`pid` in the tracepoint). 0 is the idle thread.
    pub tid: i32,
    /// The name.
    pub comm: &'a [u8],
    /// The kernel's priority: 120 is a nice value of 0.
    pub prio: i32,
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
    },
    /// `PERF_RECORD_EXIT`.
    Exit {
        /// The thread.
        tid: i32,
    },
    /// `PERF_RECORD_LOST` or `PERF_RECORD_LOST_SAMPLES` of the buffer of a CPU.
    Lost {
        /// The CPU.
        cpu: u32,
        /// The number of lost records.
        count: u64,
    },
}

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
    cpus: HashMap<u32, Cpu>,
    threads: HashMap<i32, Thread>,
    processes: HashMap<i32, EntityId>,
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
    /// Whether `PERF_RECORD_EXIT` was seen: it may still be preempted.
    is_exiting: bool,
    is_in_process: bool,
}

impl KernelSource {
    /// Makes a source.
    pub fn new() -> Self {
        Self::default()
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
                let is_exiting = self.threads.get(&prev.tid).is_some_and(|t| t.is_exiting);
                // TASK_DEAD before Linux 4.14; TASK_PARKED since then.
                let left = match left(prev_state) {
                    _ if is_exiting && prev_state & 0x40 != 0 => ThreadState::Dead,
                    left => left,
                };
                self.switch(cpu, prev.tid, left, Some(next.tid), push);
            }
            Record::In { cpu, tid } => self.get_cpu(cpu, tid, push),
            Record::Out { cpu, tid, preempted } => {
                let is_exiting = self.threads.get(&tid).is_some_and(|t| t.is_exiting);
                let left = match (preempted, is_exiting) {
                    (true, _) => ThreadState::Preempted,
                    (_, true) => ThreadState::Dead,
                    _ => ThreadState::Sleeping,
                };
                self.switch(cpu, tid, left, None, push);
            }
            Record::Waking { cpu, by, flags, task, target_cpu, is_new } => {
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
                if let Some(cpu) = self.cpu(cpu, push) {
                    cpu.last = at;
                }
                push.event(EventKind::Flow { kind, from, context, to, cpu: target, stack: None });
            }
            Record::Thread { pid, tid, parent, comm, is_new } => {
                self.fork(pid, tid, parent, comm, is_new, push);
            }
            Record::Comm { tid, comm } => {
                self.thread(tid, push);
                self.comm(tid, comm, push);
            }
            Record::Exit { tid } => {
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.is_exiting = true;
                }
            }
            Record::Lost { cpu, count } => {
                self.stats.lost += count;
                let kind = LossKind::SchedulerRecords;
                self.loss(cpu, kind, Some(count), push);
            }
        }
    }

    /// A record of another kind shows which thread runs on a CPU.
    fn runs(&mut self, number: u32, tid: i32, push: &mut Pusher<'_>) {
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
            is_next_unknown: false,
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
        let left = ThreadState::Unknown;
        push.event(EventKind::Switch { cpu, prev: None, left, next, is_next_unknown: false });
    }

    fn switch(
        &mut self,
        number: u32,
        prev: i32,
        left: ThreadState,
        next: Option<i32>,
        push: &mut Pusher<'_>,
    ) {
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
        match self.cpus.entry(number) {
            hashbrown::hash_map::Entry::Occupied(known) => Some(known.into_mut()),
            hashbrown::hash_map::Entry::Vacant(entry) => {
                let entity = push.start(Entity::new(EntityKind::Cpu, number.into()))?;
                Some(entry.insert(Cpu { entity, running: Running::Unknown, last: push.at }))
            }
        }
    }

    /// The thread with this id; `None` for the idle thread.
    fn thread(&mut self, tid: i32, push: &mut Pusher<'_>) -> Option<EntityId> {
        if tid <= 0 {
            return None;
        }
        if let Some(thread) = self.threads.get(&tid) {
            return Some(thread.entity);
        }
        self.add(tid, Entity::new(EntityKind::Thread, tid.into()), push)
    }

    fn add(&mut self, tid: i32, entity: Entity, push: &mut Pusher<'_>) -> Option<EntityId> {
        let is_in_process = entity.parent.is_some();
        let entity = push.start(entity)?;
        self.threads.insert(tid, Thread { entity, is_exiting: false, is_in_process });
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
        }
        let of_creator = |this: &Self, tables: &Tables, tid: i32| {
            let thread = this.threads.get(&tid)?;
            tables.entities.get(thread.entity).map(|entity| entity.name)
        };
        let inherited = parent.and_then(|(_, tid)| of_creator(self, push.tables, tid));
        let name = match (comm, inherited) {
            (b"", Some(name)) => name,
            _ => push.tables.text(comm),
        };
        let process = match self.processes.get(&pid) {
            Some(process) if !(is_new && pid == tid) => Some(*process),
            _ => {
                let parent = parent.and_then(|(pid, _)| self.processes.get(&pid)).copied();
                let process = Entity::new(EntityKind::Process, pid.into());
                let mut process = process.child_of(parent).named(name);
                process.start = Some(push.at).filter(|_| is_new);
                let process = push.start(process);
                self.processes.extend(process.map(|process| (pid, process)));
                process
            }
        };
        if let Some(thread) = self.threads.get_mut(&tid) {
            // Seen in a switch before it was listed.
            if !thread.is_in_process {
                thread.is_in_process = true;
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

    fn end(&mut self, tid: i32, push: &mut Pusher<'_>) {
        let Some(thread) = self.threads.remove(&tid) else { return };
        push.end(thread.entity);
        // The main thread may end before the others; its process is named after it.
        if let Some(process) = self.processes.get(&tid) {
            if let Some(process) = push.tables.entities.get_mut(*process) {
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

/// The state of a thread that leaves a CPU, of `prev_state`.
///
/// The low eight bits are `TASK_REPORT`. A higher bit alone is preemption: which one depends on the
/// kernel (`0x100` since Linux 4.14).
const fn left(prev_state: i64) -> ThreadState {
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
    fn an_interrupt_is_not_the_thread_that_it_interrupts() {
        let mut run = Run::new();
        let waking = |flags| Record::Waking {
            cpu: 0,
            by: Some(5),
            flags,
            task: task(9),
            target_cpu: 1,
            is_new: false,
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
