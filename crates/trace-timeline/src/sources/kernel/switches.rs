//! Context switches: which thread has which CPU, and what the records do not say.

use super::{Cpu, DEFAULT_PRIO, KernelSource, Running, ThreadRef};
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{EventKind, LossKind, ThreadState};
use crate::sources::pusher::Pusher;

const IDLE: ThreadRef = ThreadRef::Tid(0);

/// The most CPUs that Linux has. Higher numbers are those of damaged records.
pub(super) const MAX_CPUS: u32 = 1 << 13;

impl KernelSource {
    /// A record of another kind shows which thread runs on a CPU.
    pub(super) fn runs(&mut self, number: u32, thread: ThreadRef, push: &mut Pusher<'_>) {
        if self.is_without_switches {
            return;
        }
        let Some(cpu) = self.cpu(number, push) else { return };
        let running = cpu.running;
        match running {
            Running::Thread(known) if known == thread => return,
            Running::Thread(known) if self.becomes_main(known, thread, push) => return,
            Running::Thread(_) => {
                self.stats.unreported += 1;
                self.loss(number, LossKind::UnreportedSwitch, None, push);
            }
            Running::Unknown => {}
        }
        let entity = self.enter(thread, number, push);
        let Some(cpu) = self.cpu(number, push) else { return };
        cpu.running = Running::Thread(thread);
        push.event(EventKind::Switch {
            cpu: cpu.entity,
            // It left for itself: what it did since the last record is not known.
            prev: entity,
            left: ThreadState::Unknown,
            next: entity,
            is_next_unknown: thread != IDLE && entity.is_none(),
            prio: DEFAULT_PRIO,
        });
    }

    /// A `PERF_RECORD_SWITCH_CPU_WIDE` shows which thread runs on a CPU, and which one left it.
    pub(super) fn confirm(
        &mut self,
        number: u32,
        thread: ThreadRef,
        left: Option<ThreadRef>,
        push: &mut Pusher<'_>,
    ) {
        let Some(running) = self.cpu(number, push).map(|cpu| cpu.running) else { return };
        match running {
            Running::Thread(known) if known != thread && self.has_left(known, left) => {
                self.stats.recovered += 1;
                // The id of a thread that has ended is not recorded.
                let state = if left.is_none() { ThreadState::Dead } else { ThreadState::Unknown };
                self.switch(number, (known, None), state, Some((thread, DEFAULT_PRIO)), push);
            }
            _ => {
                self.runs(number, thread, push);
                if let Some(cpu) = self.cpu(number, push) {
                    cpu.last = push.at;
                }
            }
        }
    }

    /// Whether this is the thread that left a CPU: without an id, one that has ended, or any that is not of
    /// interest.
    fn has_left(&self, thread: ThreadRef, left: Option<ThreadRef>) -> bool {
        let can_have_ended = || match thread {
            ThreadRef::Tid(tid) => self.known(tid).is_some_and(|thread| thread.exit.is_some()),
            ThreadRef::Other => true,
        };
        left.map_or_else(can_have_ended, |left| left == thread)
    }

    /// A thread gets a CPU, and nothing is known of the one before.
    pub(super) fn get_cpu(&mut self, cpu: u32, tid: u32, push: &mut Pusher<'_>) {
        let next = self.enter(ThreadRef::Tid(tid), cpu, push);
        let Some(cpu) = self.cpu(cpu, push) else { return };
        cpu.running = Running::tid(tid);
        cpu.last = push.at;
        let cpu = cpu.entity;
        self.stats.switches += 1;
        let (prev, left, prio) = (None, ThreadState::Unknown, DEFAULT_PRIO);
        let is_next_unknown = false;
        push.event(EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio });
    }

    /// A thread leaves a CPU, and the next one gets it. The entity of the one that leaves is given if it was looked up
    /// already.
    pub(super) fn switch(
        &mut self,
        number: u32,
        (prev, known): (ThreadRef, Option<EntityId>),
        left: ThreadState,
        next: Option<(ThreadRef, i16)>,
        push: &mut Pusher<'_>,
    ) {
        let (next, prio) =
            (next.map(|(thread, _)| thread), next.map_or(DEFAULT_PRIO, |(_, prio)| prio));
        self.stats.switches += 1;
        let Some(cpu) = self.cpu(number, push) else { return };
        let running = cpu.running;
        let prev_entity = match running {
            Running::Thread(it) if it != prev => {
                if !self.becomes_main(it, prev, push) {
                    // The records of the switches between are missing, and were not counted as
                    // lost. Seen on Linux 6.18, also with `perf record`.
                    self.stats.unreported += 1;
                    self.loss(number, LossKind::UnreportedSwitch, None, push);
                }
                // It can be another one now.
                self.named(prev, push)
            }
            _ => known.or_else(|| self.named(prev, push)),
        };
        if running != Running::Thread(prev) {
            self.set_cpu(prev, None);
        }
        let next_entity = next.and_then(|next| self.enter(next, number, push));
        let Some(Some(cpu)) = self.cpus.get_mut(number as usize) else { return };
        cpu.running = next.map_or(Running::Unknown, Running::Thread);
        cpu.last = push.at;
        push.event(EventKind::Switch {
            cpu: cpu.entity,
            prev: prev_entity,
            left,
            next: next_entity,
            is_next_unknown: next != Some(IDLE) && next_entity.is_none(),
            prio,
        });
        if let (ThreadState::Dead, ThreadRef::Tid(prev)) = (left, prev) {
            self.end(prev, push);
        }
    }

    /// A thread is seen on this CPU. `None` for the idle thread and for one that is not of interest.
    #[inline]
    fn enter(&mut self, thread: ThreadRef, cpu: u32, push: &mut Pusher<'_>) -> Option<EntityId> {
        let tid = thread.tid().filter(|tid| *tid != 0)?;
        if let Some(known) = self.mentioned(tid) {
            known.cpu = Some(cpu);
            return Some(known.entity);
        }
        let entity = self.thread(tid, push)?;
        self.set_cpu(thread, Some(cpu));
        Some(entity)
    }

    /// A thread is seen on this CPU, or leaves one. No record may say that it left the one before.
    pub(super) fn set_cpu(&mut self, thread: ThreadRef, cpu: Option<u32>) {
        let Some(tid) = thread.tid() else { return };
        if let Some(thread) = self.threads.get_mut(tid.into()).and_then(Option::as_mut) {
            thread.cpu = cpu;
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

    #[inline]
    pub(super) fn cpu(&mut self, number: u32, push: &mut Pusher<'_>) -> Option<&mut Cpu> {
        let place = number as usize;
        if !matches!(self.cpus.get(place), Some(Some(_))) {
            self.add_cpu(number, push)?;
        }
        self.cpus.get_mut(place)?.as_mut()
    }

    #[cold]
    fn add_cpu(&mut self, number: u32, push: &mut Pusher<'_>) -> Option<()> {
        if number >= MAX_CPUS {
            push.tables.refuse();
            return None;
        }
        let cpu = Entity::new(EntityKind::Cpu, number.into()).child_of(self.machine);
        let entity = match push.tables.entities.cpu(number.into()) {
            // Another source has found it, maybe at a later time.
            Some(entity) => {
                push.event(EventKind::Start { entity });
                entity
            }
            None => push.start(cpu)?,
        };
        let place = number as usize;
        if place >= self.cpus.len() {
            self.cpus.resize(place + 1, None);
        }
        *self.cpus.get_mut(place)? = Some(Cpu { entity, running: Running::Unknown, last: push.at });
        Some(())
    }
}
