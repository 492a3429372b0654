//! Stop-the-world pauses, and who had to stop.

use super::{Correlator, Kernel, Occupant, Pause, Requester, RequesterTimes, Stop, Times};
use crate::entity::{Entities, EntityId, EntityKind};
use crate::event::State;
use crate::tables::{SpanId, TextId};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use trace_common::Timestamp;

/// The open pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    open: Vec<Open>,
    /// Live Ps, and .NET threads that are threads of the kernel, by process: of others nothing is known that stops.
    members: HashMap<EntityId, BTreeSet<EntityId>>,
    /// The process of each of them.
    processes: HashMap<EntityId, EntityId>,
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

/// Maximum number of members of a process, and of those that still execute in all open pauses: each pause costs time
/// and memory in proportion to them.
const MAX_MEMBERS: usize = 1 << 12;

impl Pauses {
    /// Adds a member, unless its process has too many.
    pub(super) fn add_member(&mut self, id: EntityId, process: Option<EntityId>) {
        self.forget_member(id);
        let Some(process) = process else { return };
        let members = self.members.entry(process).or_default();
        if members.len() < MAX_MEMBERS {
            members.insert(id);
            self.processes.insert(id, process);
        }
    }

    /// Returns the process of a member.
    fn forget_member(&mut self, id: EntityId) -> Option<EntityId> {
        let process = self.processes.remove(&id)?;
        if let Some(members) = self.members.get_mut(&process) {
            members.remove(&id);
            if members.is_empty() {
                self.members.remove(&process);
            }
        }
        Some(process)
    }

    /// Another trace of the process has mentioned the thread of a member, which is this one from now on.
    pub(super) fn replace_member(&mut self, id: EntityId, by: EntityId) {
        if let Some(process) = self.forget_member(id) {
            self.add_member(by, Some(process));
            let running = self.open.iter_mut().flat_map(|open| &mut open.running);
            for member in running.filter(|member| member.stop.entity == id) {
                member.stop.entity = by;
            }
        }
    }

    /// A member ends, or is no longer a thread of the kernel, which has these times.
    pub(super) fn remove_member(&mut self, id: EntityId, at: Timestamp, times: Option<Times>) {
        if self.forget_member(id).is_some() {
            self.open.iter_mut().for_each(|open| open.stop(id, at, times));
        }
    }

    /// Opens a pause. The oldest ones are forgotten if there are too many.
    fn begin(&mut self, opened: Open) {
        let others: usize = self.open.iter().map(|open| open.running.len()).sum();
        let mut running = others + opened.running.len();
        while self.open.len() >= MAX_OPEN || (running > MAX_MEMBERS && !self.open.is_empty()) {
            running -= self.open.remove(0).running.len();
        }
        self.open.push(opened);
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
        let is_left_out = self.occupants.len() >= MAX_OCCUPANTS
            && self.occupants.iter().all(|(known, _)| *known != occupant);
        let occupant = if is_left_out { Occupant::Unknown } else { occupant };
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
        let member = self.running.swap_remove(index);
        self.has_stopped(member, at, times);
    }

    /// As [`Open::stop`], of a member that is no longer among those that still execute.
    fn has_stopped(&mut self, member: Member, at: Timestamp, times: Option<Times>) {
        let Member { stop, before, when_stopped } = member;
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
            // A loss that began before the pause takes away what was counted before it.
            on_cpu: (now.on_cpu - before.on_cpu).max(0),
            runnable: (now.runnable - before.runnable).max(0),
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
        for &entity in self.pauses.members.get(&process).into_iter().flatten() {
            let Some(subject) = self.subjects.get(entity.key()) else { continue };
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
            if subject.kind == EntityKind::DotnetThread {
                kernels.extend(subject.thread.map(|thread| (thread, self.kernel(thread).kernel())));
            }
            if !is_running {
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
        self.pauses.begin(Open { span, pause, running, kernels, counted: at });
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
        for (member, now) in std::mem::take(&mut open.running).into_iter().zip(times) {
            let is_about_to_sleep = |then: Times| now.on_cpu - then.on_cpu <= TO_SLEEP;
            if member.when_stopped.is_some_and(is_about_to_sleep) {
                open.has_stopped(member, at, None);
            }
        }
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
    use crate::event::{Event, EventKind, SpanKind};
    use crate::tables::Tables;

    fn push(correlator: &mut Correlator, kind: EventKind, tables: &Tables) {
        let event = Event { time: Timestamp::default(), kind };
        correlator.push(&event, &tables.entities, &mut |_: Derived<'_>| {});
    }

    /// Pauses of a .NET trace alone look at none of its threads.
    #[test]
    fn dotnet_threads_are_members_once_the_kernel_has_them() {
        let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
        let process = tables.entity(Entity::new(EntityKind::Process, 1)).unwrap();
        let mut start = |kind, number| {
            let entity = tables.entity(Entity::new(kind, number).child_of(process)).unwrap();
            push(&mut correlator, EventKind::Start { entity }, &tables);
            correlator.pauses.members.get(&process).map_or(0, BTreeSet::len)
        };
        assert_eq!((1..100).map(|n| start(EntityKind::DotnetThread, n)).max(), Some(0));
        assert_eq!([7, 8, 200].map(|n| start(EntityKind::Thread, n)), [1, 2, 2]);
        assert_eq!(start(EntityKind::Proc, 0), 3);
    }

    /// A trace can mention any number of Ps, and stop the world each few bytes.
    #[test]
    fn pauses_wait_for_a_limited_number_of_ps() {
        let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
        let processes =
            [1, 2].map(|pid| tables.entity(Entity::new(EntityKind::Process, pid)).unwrap());
        for (process, count) in processes.into_iter().zip([2 * MAX_MEMBERS as i64, 3]) {
            for number in 0..count {
                let proc = Entity::new(EntityKind::Proc, number).child_of(process);
                let entity = tables.entity(proc).unwrap();
                let (state, on, reason, stack) = (State::Running, None, TextId::EMPTY, None);
                push(&mut correlator, EventKind::Start { entity }, &tables);
                let running = EventKind::State { entity, state, on, reason, stack };
                push(&mut correlator, running, &tables);
            }
        }
        let mut begin = |entity| {
            let (span, kind, name) = (tables.new_span(), SpanKind::StopTheWorld, TextId::EMPTY);
            let (by, of, stack) = (None, None, None);
            let begin = EventKind::Begin { span, entity, kind, name, by, of, stack };
            push(&mut correlator, begin, &tables);
            let open = &correlator.pauses.open;
            (open.len(), open.iter().map(|open| open.running.len()).sum::<usize>())
        };
        let [many, few] = processes;
        let found = [many, many, few, few].map(&mut begin);
        assert_eq!(found, [(1, MAX_MEMBERS), (1, MAX_MEMBERS), (1, 3), (2, 6)]);
        for _ in 0..2 * MAX_OPEN {
            begin(few);
        }
        assert_eq!(begin(few), (MAX_OPEN, 3 * MAX_OPEN));
    }

    /// The time of an occupant is whole, also if the others have no place of their own any more.
    #[test]
    fn an_occupant_that_is_known_has_its_time() {
        let thread = |key| EntityId::from_key(key).unwrap();
        let (stopping, stopped) = (RequesterTimes::default(), RequesterTimes::default());
        let (id, occupants) = (thread(1), Vec::new());
        let mut requester = Requester { thread: id, stopping, stopped, occupants };
        for key in (1..=MAX_OCCUPANTS as i64 + 1).chain([1]) {
            requester.add_occupant(Occupant::Thread(thread(key)), 5);
        }
        for expected in [(Occupant::Thread(thread(1)), 10), (Occupant::Unknown, 5)] {
            assert!(requester.occupants.contains(&expected), "{:?}", requester.occupants);
        }
    }
}
