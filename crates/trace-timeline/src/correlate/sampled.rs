//! The goroutines of samples of threads, from an execution trace.

use super::processes::{Processes, RuntimeThreads};
use crate::entity::{Entities, Entity, EntityId, EntityKind};
use crate::event::{Event, EventKind, SampleKind, State};
use crate::tables::Tables;
use hashbrown::HashMap;
use trace_common::Timestamp;

/// Makes samples of threads those of the goroutines that the threads execute, as the execution trace of
/// the same run has them.
///
/// Feed it all events of a timeline in time order. It holds only what is live.
#[derive(Debug, Default)]
pub struct SampledGoroutines {
    threads: RuntimeThreads,
    processes: Processes,
    /// Goroutines by the runtime thread that executes them.
    executed: HashMap<EntityId, EntityId>,
    /// The runtime threads of goroutines.
    on: HashMap<EntityId, EntityId>,
    /// Goroutines below the process of the samples, by that of the trace.
    sampled: HashMap<EntityId, EntityId>,
    /// The last events of traces that have ended, by process.
    ends: HashMap<EntityId, Timestamp>,
    attributed: u64,
    others: u64,
}

impl SampledGoroutines {
    /// Knows no goroutine yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The trace of a process has its last event at this time: later samples have no goroutine, until
    /// another trace of the process says which one a thread executes. Must be called before the first later
    /// sample.
    pub fn end(&mut self, process: EntityId, last: Timestamp) {
        self.ends.insert(process, last);
    }

    /// Samples of threads of Go programs that have a goroutine.
    pub const fn attributed(&self) -> u64 {
        self.attributed
    }

    /// Samples of threads of Go programs that executed no goroutine, or were taken after the end of the
    /// trace.
    pub const fn others(&self) -> u64 {
        self.others
    }

    /// Processes the next event. A sample on or off the CPU of a thread that executes a goroutine
    /// becomes one of the goroutine, with its thread.
    pub fn apply(&mut self, event: &mut Event, tables: &mut Tables) {
        let kind = |id: EntityId| tables.entities.kind(id);
        match &mut event.kind {
            EventKind::Start { entity } if kind(*entity) == Some(EntityKind::GoThread) => {
                if let Some(thread) = tables.entities.get(*entity) {
                    self.threads.add(thread.number, *entity);
                }
            }
            EventKind::State { entity, state, on, .. }
                if kind(*entity) == Some(EntityKind::Goroutine) =>
            {
                self.leave(*entity);
                let on = on.filter(|_| matches!(state, State::Running | State::Syscall));
                if let Some(on) = on {
                    self.go_on(*entity, event.time, &tables.entities);
                    self.executed.insert(on, *entity);
                    self.on.insert(*entity, on);
                }
            }
            EventKind::End { entity } => {
                self.leave(*entity);
                self.sampled.remove(entity);
            }
            EventKind::Sample {
                entity,
                thread,
                kind: SampleKind::Cpu | SampleKind::OffCpu,
                ..
            } => {
                let Some(runtime) = self.runtime_thread(*entity, &tables.entities) else { return };
                match self.goroutine(runtime, *entity, event.time, tables) {
                    Some(goroutine) => {
                        self.attributed += 1;
                        (*thread, *entity) = (Some(*entity), goroutine);
                    }
                    None => self.others += 1,
                }
            }
            _ => {}
        }
    }

    /// A goroutine is executed: if a trace of its process has ended, another one continues.
    fn go_on(&mut self, goroutine: EntityId, at: Timestamp, entities: &Entities) {
        if self.ends.is_empty() {
            return;
        }
        if let Some(process) = entities.get(goroutine).and_then(|goroutine| goroutine.parent) {
            if self.ends.get(&process).is_some_and(|last| at > *last) {
                self.ends.remove(&process);
            }
        }
    }

    /// A goroutine is no longer executed.
    fn leave(&mut self, goroutine: EntityId) {
        if let Some(on) = self.on.remove(&goroutine) {
            if self.executed.get(&on) == Some(&goroutine) {
                self.executed.remove(&on);
            }
        }
    }

    /// The runtime thread that a kernel thread is.
    fn runtime_thread(&mut self, thread: EntityId, entities: &Entities) -> Option<EntityId> {
        let entity = entities.get(thread).filter(|entity| entity.kind == EntityKind::Thread)?;
        let runtimes = self.threads.of(entity.number);
        for runtime in runtimes {
            self.processes.learn(*runtime, thread, entities);
        }
        let is_executing = |runtime| self.executed.contains_key(&runtime);
        self.processes.one_of(runtimes, thread, entities, is_executing)
    }

    /// The goroutine that a runtime thread executes, below the process of the kernel thread.
    fn goroutine(
        &mut self,
        runtime: EntityId,
        thread: EntityId,
        at: Timestamp,
        tables: &mut Tables,
    ) -> Option<EntityId> {
        let traced = *self.executed.get(&runtime)?;
        let known = *tables.entities.get(traced)?;
        if known.parent.and_then(|process| self.ends.get(&process)).is_some_and(|last| at > *last) {
            return None;
        }
        let process = tables.entities.process_of(thread);
        if known.parent == process {
            return Some(traced);
        }
        let sampled = match self.sampled.get(&traced) {
            Some(sampled) => *sampled,
            None => {
                let entity = Entity::new(EntityKind::Goroutine, known.number).child_of(process);
                let sampled = tables.entity(entity)?;
                self.sampled.insert(traced, sampled);
                sampled
            }
        };
        // The trace may name it late.
        tables.entities.get_mut(sampled)?.name = known.name;
        Some(sampled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{SampledEventId, TextId};

    #[test]
    fn samples_of_threads_become_those_of_goroutines() {
        let mut tables = Tables::new();
        let mut entity = |kind, number, parent| {
            tables.entity(Entity::new(kind, number).child_of(parent)).unwrap()
        };
        let traced = entity(EntityKind::Process, -1, None);
        let goroutine = entity(EntityKind::Goroutine, 7, Some(traced));
        let m = entity(EntityKind::GoThread, 101, Some(traced));
        // Of another trace of the process.
        let next = entity(EntityKind::GoThread, 101, Some(traced));
        let process = entity(EntityKind::Process, 100, None);
        let threads = [101, 102].map(|tid| entity(EntityKind::Thread, tid, Some(process)));
        let name = tables.text(b"main.work");
        tables.entities.get_mut(goroutine).unwrap().name = name;
        let mut goroutines = SampledGoroutines::new();
        let state = |state, on| EventKind::State {
            entity: goroutine,
            state,
            on,
            reason: TextId::EMPTY,
            stack: None,
        };
        let sample = |thread| EventKind::Sample {
            entity: thread,
            kind: SampleKind::Cpu,
            stack: None,
            weight: 1,
            thread: None,
            cpu: None,
            event: SampledEventId::NONE,
            of: None,
        };
        // The time, the event, and the goroutine of a sample.
        let events = [
            (0, EventKind::Start { entity: m }, None),
            (1, sample(threads[0]), None),
            (2, state(State::Running, Some(m)), None),
            (3, sample(threads[0]), Some(7)),
            (4, sample(threads[1]), None),
            (5, state(State::Syscall, Some(m)), None),
            (6, sample(threads[0]), Some(7)),
            (7, state(State::Waiting, None), None),
            (8, sample(threads[0]), None),
            (9, state(State::Running, Some(m)), None),
            (10, sample(threads[0]), Some(7)),
            (11, sample(threads[0]), None),
            (12, state(State::Unknown, None), None),
            (20, EventKind::Start { entity: next }, None),
            (21, sample(threads[0]), None),
            (22, state(State::Running, Some(next)), None),
            (23, sample(threads[0]), Some(7)),
        ];
        for (at, kind, expected) in events {
            if at == 11 {
                goroutines.end(traced, Timestamp::from_nanos(10));
            }
            let mut event = Event { time: Timestamp::from_nanos(at), kind };
            goroutines.apply(&mut event, &mut tables);
            let EventKind::Sample { entity, thread, .. } = event.kind else { continue };
            let entity = *tables.entities.get(entity).unwrap();
            let found = (entity.kind == EntityKind::Goroutine).then_some(entity.number);
            assert_eq!(found, expected, "at {at}");
            if found.is_some() {
                assert_eq!((thread, entity.parent), (Some(threads[0]), Some(process)));
                assert_eq!(tables.str(entity.name), "main.work");
            }
        }
        assert_eq!((goroutines.attributed(), goroutines.others()), (4, 4));
    }
}
