//! Stop-the-world pauses, and who had to stop.

use super::{Correlator, Kernel, Occupant, Pause, Requester, RequesterTimes, Stop, Times};
use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::State;
use crate::tables::{SpanId, TextId};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use trace_common::Timestamp;

/// The open pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    open: Vec<Open>,
    /// Live Ps, and .NET threads that are threads of the kernel: of others nothing is known that stops.
    members: BTreeSet<EntityId>,
}

#[derive(Debug)]
struct Open {
    span: SpanId,
    pause: Pause,
    running: Vec<Member>,
    /// What the kernel did with the threads of the .NET threads of the process at the request.
    kernels: Vec<(EntityId, Kernel)>,
    /// The time of the requester is counted up to here.
    counted: Timestamp,
}

/// One that still executes.
#[derive(Debug)]
struct Member {
    stop: Stop,
    /// The times of its thread at the request.
    before: Times,
    /// The same when all had stopped, if the runtime reports that. It may be in native code, where it executes on.
    when_stopped: Option<Times>,
}

/// The longest time, in nanoseconds, that a .NET thread executes after all have stopped, as their runtime reports it,
/// until it sleeps. One that executes for longer is in native code, and nobody waited for it.
const TO_SLEEP: i64 = 50_000;

/// Maximum number of occupants by which the time of a requester is divided: that of others is that
/// of an unknown one.
const MAX_OCCUPANTS: usize = 64;

/// Maximum number of open pauses. There are more only if ends were lost.
const MAX_OPEN: usize = 64;

impl Pauses {
    pub(super) fn add_member(&mut self, id: EntityId) {
        self.members.insert(id);
    }

    /// Another trace of the process has mentioned the thread of a member, which is this one from now on.
    pub(super) fn replace_member(&mut self, id: EntityId, by: EntityId) {
        if self.members.remove(&id) {
            self.members.insert(by);
            let running = self.open.iter_mut().flat_map(|open| &mut open.running);
            for member in running.filter(|member| member.stop.entity == id) {
                member.stop.entity = by;
            }
        }
    }

    /// A member ends, or is no longer a thread of the kernel, which has these times.
    pub(super) fn remove_member(&mut self, id: EntityId, at: Timestamp, times: Option<Times>) {
        if self.members.remove(&id) {
            self.open.iter_mut().for_each(|open| open.stop(id, at, times));
        }
    }

    /// A goroutine executes on, or has stopped: it is not in a system call.
    #[inline]
    pub(super) fn left_syscall(&mut self, goroutine: EntityId) {
        for member in self.open.iter_mut().flat_map(|open| &mut open.running) {
            if member.stop.holder == Some(goroutine) {
                member.stop.is_retaken = false;
            }
        }
    }

    /// A thread waited for a CPU within these times. Its occupants, each with its begin, were not known until now.
    #[inline]
    pub(super) fn learn_occupants(
        &mut self,
        thread: EntityId,
        (since, end): (Timestamp, Timestamp),
        occupants: impl Iterator<Item = (Timestamp, Occupant)> + Clone,
    ) {
        for open in &mut self.open {
            let start = since.max(open.pause.start);
            let requester = open.pause.requester.as_mut();
            let Some(requester) = requester.filter(|requester| requester.thread == thread) else {
                continue;
            };
            let mut known = (start, Occupant::Unknown);
            for (next, occupant) in occupants.clone().chain([(end, Occupant::Unknown)]) {
                let next = next.max(known.0);
                requester.learn_occupant(known.1, next.nanos_since(known.0));
                known = (next, occupant);
            }
        }
    }

    fn finish(&mut self, index: usize, at: Timestamp) -> Pause {
        let Open { mut pause, .. } = self.open.remove(index);
        pause.end = at;
        pause.stops.sort_by_key(|stop| (stop.time, stop.entity));
        pause.stopped = pause.stopped.or_else(|| pause.stops.last().map(|stop| stop.time));
        if let Some(requester) = &mut pause.requester {
            requester.occupants.sort_by_key(|(occupant, nanos)| (Reverse(*nanos), *occupant));
        }
        pause
    }
}

impl Requester {
    fn add(&mut self, kernel: Kernel, nanos: i64) {
        match kernel {
            Kernel::OnCpu { .. } => {
                self.stopped.on_cpu = self.stopped.on_cpu.saturating_add(nanos);
            }
            Kernel::Runnable { occupant, .. } => {
                self.stopped.runnable = self.stopped.runnable.saturating_add(nanos);
                self.add_occupant(occupant, nanos);
            }
            _ => {}
        }
    }

    fn add_occupant(&mut self, occupant: Occupant, nanos: i64) {
        let is_full = self.occupants.len() >= MAX_OCCUPANTS;
        let occupant = if is_full { Occupant::Unknown } else { occupant };
        match self.occupants.iter_mut().find(|(known, _)| *known == occupant) {
            Some((_, sum)) => *sum = sum.saturating_add(nanos),
            None => self.occupants.push((occupant, nanos)),
        }
    }

    /// The occupant of a time that was counted was not known.
    fn learn_occupant(&mut self, occupant: Occupant, nanos: i64) {
        let is_unknown = |(known, _): &(Occupant, i64)| *known == Occupant::Unknown;
        if occupant == Occupant::Unknown || nanos <= 0 {
            return;
        }
        let Some(index) = self.occupants.iter().position(is_unknown) else { return };
        let Some((_, unknown)) = self.occupants.get_mut(index) else { return };
        let nanos = nanos.min(*unknown);
        *unknown -= nanos;
        if *unknown == 0 {
            self.occupants.remove(index);
        }
        self.add_occupant(occupant, nanos);
    }

    /// One more has stopped: the time up to now was that until all had stopped.
    const fn one_stopped(&mut self) {
        let now = std::mem::replace(&mut self.stopped, RequesterTimes { on_cpu: 0, runnable: 0 });
        self.stopping.on_cpu = self.stopping.on_cpu.saturating_add(now.on_cpu);
        self.stopping.runnable = self.stopping.runnable.saturating_add(now.runnable);
    }
}

impl Open {
    /// A member has stopped. Without the times of its thread, the kernel's part is not known.
    fn stop(&mut self, id: EntityId, at: Timestamp, times: Option<Times>) {
        let Some(index) = self.running.iter().position(|member| member.stop.entity == id) else {
            return;
        };
        let Member { stop, before, when_stopped } = self.running.swap_remove(index);
        // It was in native code: nobody waited for it.
        let executed_since = when_stopped.zip(times).map(|(then, now)| now.on_cpu - then.on_cpu);
        if executed_since.is_some_and(|nanos| nanos > TO_SLEEP) {
            return;
        }
        // The runtime did not wait for longer.
        let now = when_stopped.or(times).unwrap_or(before);
        let time = self.pause.stopped.map_or(at, |stopped| at.min(stopped));
        self.pause.stops.push(Stop {
            time,
            on_cpu: now.on_cpu - before.on_cpu,
            runnable: now.runnable - before.runnable,
            ..stop
        });
        // The runtime may report when all had stopped.
        if self.pause.stopped.is_none() {
            self.one_stopped();
        }
    }

    fn one_stopped(&mut self) {
        if let Some(requester) = &mut self.pause.requester {
            requester.one_stopped();
        }
    }
}

impl Correlator {
    pub(super) fn begin_pause(
        &mut self,
        span: SpanId,
        process: EntityId,
        reason: TextId,
        by: Option<EntityId>,
        at: Timestamp,
        entities: &Entities,
    ) {
        let (mut running, mut kernels) = (Vec::new(), Vec::new());
        let requester = by.and_then(|by| self.thread_or_latest(by, entities));
        for &entity in &self.pauses.members {
            let Some(subject) = self.subjects.get(entity.key()) else { continue };
            let of_process = entities.get(entity).is_some_and(|e| e.parent == Some(process));
            let is_running = match subject.kind {
                EntityKind::Proc => subject.state == State::Running,
                // A managed thread that waits or sleeps need not stop.
                _ => {
                    subject.state == State::Running
                        && subject.thread.is_some_and(|thread| {
                            matches!(self.kernel(thread).state(), State::Running | State::Runnable)
                        })
                }
            };
            if of_process && subject.kind == EntityKind::DotnetThread {
                kernels.extend(subject.thread.map(|thread| (thread, self.kernel(thread).kernel())));
            }
            if !of_process || !is_running {
                continue;
            }
            let thread = self.thread_of(entity);
            let m = subject.on.and_then(|on| self.subjects.get(on.key()));
            let holder = m.and_then(|m| m.carries);
            // A requester that another trace has mentioned since is another .NET thread there.
            let is_it = |id: Option<EntityId>, of: Option<EntityId>| id.is_some() && id == of;
            if by == Some(entity) || is_it(holder, by) || is_it(thread, requester) {
                continue;
            }
            let times = self.times(thread, at).unwrap_or_default();
            // The requester takes the P of a goroutine in a system call.
            let goroutine = holder.and_then(|holder| self.subjects.get(holder.key()));
            let is_retaken = goroutine.is_some_and(|goroutine| goroutine.state == State::Syscall);
            let (on_cpu, runnable) = (0, 0);
            let stop = Stop { entity, holder, thread, time: at, on_cpu, runnable, is_retaken };
            running.push(Member { stop, before: times, when_stopped: None });
        }
        let (stopping, stopped) = (RequesterTimes::default(), RequesterTimes::default());
        let requester =
            requester.map(|thread| Requester { thread, stopping, stopped, occupants: Vec::new() });
        let (start, stopped, end, stops) = (at, None, at, Vec::new());
        let pause = Pause { process, reason, by, requester, start, stopped, end, stops };
        if self.pauses.open.len() >= MAX_OPEN {
            self.pauses.open.remove(0);
        }
        self.pauses.open.push(Open { span, pause, running, kernels, counted: at });
    }

    /// Counts the times of requesters up to now: before what the kernel does with a thread changes,
    /// and before a pause does.
    #[inline]
    pub(super) fn count_requesters(&mut self, at: Timestamp) {
        if !self.pauses.open.is_empty() {
            self.count_open(at);
        }
    }

    #[cold]
    fn count_open(&mut self, at: Timestamp) {
        for index in 0..self.pauses.open.len() {
            let open = self.pauses.open.get(index);
            let thread = open.and_then(|open| Some(open.pause.requester.as_ref()?.thread));
            let kernel = thread.map_or(Kernel::Unknown, |thread| self.kernel(thread).kernel());
            let Some(open) = self.pauses.open.get_mut(index) else { continue };
            let nanos = at.nanos_since(open.counted).max(0);
            open.counted = open.counted.max(at);
            if let Some(requester) = open.pause.requester.as_mut().filter(|_| nanos > 0) {
                requester.add(kernel, nanos);
            }
        }
    }

    /// What the kernel did with the thread of a .NET thread when that was asked to stop for its sample,
    /// and when that was; `None` if no thread is stopped.
    pub(super) fn before_stop(
        &self,
        id: EntityId,
        thread: Option<EntityId>,
        entities: &Entities,
    ) -> Option<(Kernel, Timestamp)> {
        let process = entities.get(id)?.parent?;
        let mut open = self.pauses.open.iter().rev();
        let open = open.find(|open| open.pause.process == process)?;
        let known = open.kernels.iter().find(|(known, _)| Some(*known) == thread);
        Some((known.map_or(Kernel::Unknown, |(_, kernel)| *kernel), open.pause.start))
    }

    /// A thread sleeps: a .NET thread does so where its runtime may stop it, or has stopped it.
    #[inline]
    pub(super) fn slept(&mut self, thread: EntityId, at: Timestamp) {
        if self.pauses.open.is_empty() {
            return;
        }
        let carries = self.subjects.get(thread.key()).and_then(|thread| thread.carries);
        if let Some(dotnet) = carries.filter(|id| {
            self.subjects.get(id.key()).is_some_and(|s| s.kind == EntityKind::DotnetThread)
        }) {
            self.stopped(dotnet, at);
        }
    }

    /// A P no longer executes, or a .NET thread waits.
    pub(super) fn stopped(&mut self, id: EntityId, at: Timestamp) {
        if self.pauses.open.iter().all(|open| open.running.is_empty()) {
            return;
        }
        self.count_requesters(at);
        for index in 0..self.pauses.open.len() {
            let thread = self.pauses.open.get(index).and_then(|open| {
                let member = open.running.iter().find(|member| member.stop.entity == id)?;
                Some(member.stop.thread)
            });
            let Some(thread) = thread else { continue };
            let times = self.times(thread, at);
            if let Some(open) = self.pauses.open.get_mut(index) {
                open.stop(id, at, times);
            }
        }
    }

    /// The runtime reports that all threads of a process have stopped. Those that still execute are about to sleep, or
    /// in native code.
    pub(super) fn all_stopped(&mut self, process: EntityId, at: Timestamp) {
        self.count_requesters(at);
        let index = self.pauses.open.iter().rposition(|open| open.pause.process == process);
        let times = self.times_of_members(index, at);
        let Some(open) = index.and_then(|index| self.pauses.open.get_mut(index)) else { return };
        open.one_stopped();
        open.pause.stopped = Some(at);
        for (member, times) in open.running.iter_mut().zip(times) {
            member.when_stopped.get_or_insert(times);
        }
    }

    /// A stop-the-world ends.
    pub(super) fn finish_pause(&mut self, span: SpanId, at: Timestamp) -> Option<Pause> {
        let index = self.pauses.open.iter().position(|open| open.span == span)?;
        let times = self.times_of_members(Some(index), at);
        let open = self.pauses.open.get_mut(index)?;
        let running = open.running.iter().zip(times);
        let stopped = running.filter_map(|(member, now)| {
            let then = member.when_stopped?;
            (now.on_cpu - then.on_cpu <= TO_SLEEP).then_some(member.stop.entity)
        });
        let stopped: Vec<EntityId> = stopped.collect();
        stopped.into_iter().for_each(|id| open.stop(id, at, None));
        Some(self.pauses.finish(index, at))
    }

    /// The times of the threads that still execute in an open pause.
    fn times_of_members(&self, index: Option<usize>, at: Timestamp) -> Vec<Times> {
        let open = index.and_then(|index| self.pauses.open.get(index));
        let members = open.map_or(&[][..], |open| &open.running).iter();
        members.map(|member| self.times(member.stop.thread, at).unwrap_or(member.before)).collect()
    }

    /// `None` of a thread that is not known, or has ended.
    fn times(&self, thread: Option<EntityId>, at: Timestamp) -> Option<Times> {
        Some(self.subjects.get(thread?.key())?.times_at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::Derived;
    use crate::entity::Entity;
    use crate::event::{Event, EventKind};
    use crate::tables::Tables;

    /// Pauses of a .NET trace alone look at none of its threads.
    #[test]
    fn dotnet_threads_are_members_once_the_kernel_has_them() {
        let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
        let mut start = |kind, number| {
            let entity = tables.entity(Entity::new(kind, number)).unwrap();
            let event = Event { time: Timestamp::default(), kind: EventKind::Start { entity } };
            correlator.push(&event, &tables.entities, &mut |_: Derived<'_>| {});
            correlator.pauses.members.len()
        };
        assert_eq!((1..100).map(|n| start(EntityKind::DotnetThread, n)).max(), Some(0));
        assert_eq!([7, 8, 200].map(|n| start(EntityKind::Thread, n)), [1, 2, 2]);
        assert_eq!(start(EntityKind::Proc, 0), 3);
    }
}
