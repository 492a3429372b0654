//! Context switches: which thread has which CPU, and what the records do not say.

use super::{Cpu, DEFAULT_PRIO, KernelSource, Running};
use crate::entity::{Entity, EntityKind};
use crate::event::{EventKind, LossKind, ThreadState};
use crate::sources::pusher::Pusher;

impl KernelSource {
    /// A record of another kind shows which thread runs on a CPU.
    pub(super) fn runs(&mut self, number: u32, tid: i32, push: &mut Pusher<'_>) {
        if self.is_without_switches {
            return;
        }
        let Some(cpu) = self.cpu(number, push) else { return };
        let running = cpu.running;
        match running {
            Running::Tid(known) if known == tid => return,
            Running::Tid(known) if self.becomes_main(known, tid, push) => return,
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

    /// A `PERF_RECORD_SWITCH_CPU_WIDE` shows which thread runs on a CPU, and which one left it.
    pub(super) fn confirm(
        &mut self,
        number: u32,
        tid: i32,
        left: Option<i32>,
        push: &mut Pusher<'_>,
    ) {
        let Some(running) = self.cpu(number, push).map(|cpu| cpu.running) else { return };
        match running {
            Running::Tid(known) if known != tid && self.has_left(known, left) => {
                self.stats.recovered += 1;
                // The id of a thread that has ended is not recorded.
                let state = if left.is_none() { ThreadState::Dead } else { ThreadState::Unknown };
                self.switch(number, known, state, Some((tid, DEFAULT_PRIO)), push);
            }
            _ => {
                self.runs(number, tid, push);
                if let Some(cpu) = self.cpu(number, push) {
                    cpu.last = push.at;
                }
            }
        }
    }

    /// Whether this is the thread that left a CPU: without an id, one that has ended, or any that is not of
    /// interest.
    fn has_left(&self, tid: i32, left: Option<i32>) -> bool {
        let is_exiting = || self.known(tid).is_some_and(|thread| thread.exit.is_some());
        left.map_or_else(|| tid < 0 || is_exiting(), |left| left == tid)
    }

    /// A thread gets a CPU, and nothing is known of the one before.
    pub(super) fn get_cpu(&mut self, cpu: u32, tid: i32, push: &mut Pusher<'_>) {
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

    pub(super) fn switch(
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
        if matches!(running, Running::Tid(tid) if tid != prev && !self.becomes_main(tid, prev, push))
        {
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

    pub(super) fn loss(
        &mut self,
        cpu: u32,
        kind: LossKind,
        count: Option<u64>,
        push: &mut Pusher<'_>,
    ) {
        let Some(cpu) = self.cpu(cpu, push) else { return };
        let since = cpu.last;
        cpu.running = Running::Unknown;
        cpu.last = push.at;
        let entity = Some(cpu.entity);
        push.event(EventKind::Loss { entity, kind, since, count });
    }

    pub(super) fn cpu(&mut self, number: u32, push: &mut Pusher<'_>) -> Option<&mut Cpu> {
        if !self.cpus.contains(number.into()) {
            let cpu = Entity::new(EntityKind::Cpu, number.into()).child_of(self.machine);
            let entity = match push.tables.entities.cpu(number.into()) {
                // Another source has found it, maybe at a later time.
                Some(entity) => {
                    push.event(EventKind::Start { entity });
                    entity
                }
                None => push.start(cpu)?,
            };
            let cpu = Cpu { entity, running: Running::Unknown, last: push.at };
            *self.cpus.insert(number.into()) = Some(cpu);
        }
        self.cpus.get_mut(number.into())?.as_mut()
    }
}
