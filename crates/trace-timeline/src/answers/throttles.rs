//! Throttling by CPU quotas, forward in time.

use super::history::{History, Throttle};
use crate::entity::{Entities, EntityId, EntityKind};
use crate::tables::TextId;
use hashbrown::{HashMap, HashSet};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use trace_common::Timestamp;

/// The throttling of processes. Each part of it begins and ends once, however many waits there are.
///
/// The kernel adds up the throttling of all CPUs of a cgroup. A thread waits on one of them, so it has a share
/// of each reading: in proportion to the time that it waited for a CPU.
pub(super) struct Throttles<'a> {
    history: &'a History,
    /// In the order in which they were given.
    readings: Vec<Reading>,
    /// By process id.
    processes: HashMap<i64, Process>,
    /// The time of all readings.
    start: Timestamp,
    end: Timestamp,
    /// The waits of threads for CPUs within that time.
    waits: HashMap<EntityId, Waited>,
}

/// Maximum number of readings that can explain a wait of a process. The counters of a cgroup are read several times
/// within the longest period; a damaged recording can have any number of readings of the same time. Of more, the last
/// ones count.
const MAX_BEGUN: usize = 1 << 10;

#[derive(Default)]
struct Process {
    /// The readings of throttling that begins later, the latest first.
    later: Vec<usize>,
    /// Those that have begun and may explain more.
    begun: BTreeSet<usize>,
}

/// A reading of the counters of a cgroup.
struct Reading {
    throttle: Throttle,
    /// Nanoseconds of throttling that explain nothing so far.
    left: i64,
    /// Nanoseconds in which threads of the cgroup waited for CPUs meanwhile, each CPU once.
    waits: i64,
    /// The same as `left`, of the share of each thread.
    shares: HashMap<EntityId, i64>,
}

/// The processes whose threads are those of a reading.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Group {
    Cgroup(TextId),
    /// The cgroup is not known.
    Process(i64),
}

impl<'a> Throttles<'a> {
    /// The throttling from `start` to `end`.
    pub(super) fn new(
        history: &'a History,
        entities: &Entities,
        start: Timestamp,
        end: Timestamp,
    ) -> Self {
        let pid = |process| entities.get(process).map(|process| process.number);
        let all = history.throttles(start, end);
        let all: Vec<_> =
            all.filter_map(|(process, throttle)| Some((pid(process)?, throttle))).collect();
        let mut this = Self::of(history, all.iter().copied());
        if !all.is_empty() {
            this.count_waits(&all, entities);
        }
        this
    }

    fn of(history: &'a History, all: impl Iterator<Item = (i64, Throttle)>) -> Self {
        let mut processes: HashMap<i64, Process> = HashMap::new();
        let mut readings = Vec::new();
        let (mut from, mut to) = (Timestamp::MAX, Timestamp::MIN);
        for (position, (pid, throttle)) in all.enumerate() {
            processes.entry(pid).or_default().later.push(position);
            (from, to) = (from.min(throttle.start), to.max(throttle.end));
            let (left, shares) = (throttle.nanos, HashMap::new());
            readings.push(Reading { throttle, left, waits: 0, shares });
        }
        let start = |position: &usize| readings.get(*position).map(|r| r.throttle.start);
        for process in processes.values_mut() {
            process.later.sort_by_key(|position| Reverse(start(position)));
        }
        Self { history, readings, processes, start: from, end: to, waits: HashMap::new() }
    }

    /// Counts the waits of all threads of each cgroup.
    fn count_waits(&mut self, all: &[(i64, Throttle)], entities: &Entities) {
        let group = |pid, cgroup| match cgroup == TextId::EMPTY {
            true => Group::Process(pid),
            false => Group::Cgroup(cgroup),
        };
        let mut groups: HashMap<Group, (Vec<usize>, Vec<EntityId>)> = HashMap::new();
        let mut of_process: HashMap<i64, HashSet<Group>> = HashMap::new();
        for (position, (pid, throttle)) in all.iter().enumerate() {
            let group = group(*pid, throttle.cgroup);
            groups.entry(group).or_default().0.push(position);
            of_process.entry(*pid).or_default().insert(group);
        }
        for thread in self.history.with_waits() {
            if entities.kind(thread) != Some(EntityKind::Thread) {
                continue;
            }
            let process = entities.process_of(thread).and_then(|process| entities.get(process));
            let of = process.and_then(|process| of_process.get(&process.number));
            for group in of.into_iter().flatten() {
                if let Some((_, threads)) = groups.get_mut(group) {
                    threads.push(thread);
                }
            }
        }
        for (readings, threads) in groups.values() {
            let throttles = || readings.iter().filter_map(|index| self.readings.get(*index));
            let start = throttles().map(|reading| reading.throttle.start).min();
            let end = throttles().map(|reading| reading.throttle.end).max();
            let Some((start, end)) = start.zip(end) else { continue };
            let cpus = cpus(self.history, threads, start, end);
            let waits = Waited::new(cpus.into_values().flatten());
            for index in readings {
                let Some(reading) = self.readings.get_mut(*index) else { continue };
                let Throttle { start, end, .. } = reading.throttle;
                reading.waits = waits.nanos(start, end);
            }
        }
    }

    /// For how many nanoseconds of a wait this thread of this process was throttled. Waits are passed in
    /// time order, and each nanosecond of throttling explains one of them.
    pub(super) fn take(
        &mut self,
        pid: i64,
        thread: EntityId,
        start: Timestamp,
        end: Timestamp,
    ) -> i64 {
        let Self { history, readings, processes, start: from, end: to, waits } = self;
        let Some(process) = processes.get_mut(&pid) else { return 0 };
        while let Some(position) = process.later.last().copied() {
            if readings.get(position).is_some_and(|reading| reading.throttle.start >= end) {
                break;
            }
            process.later.pop();
            process.begun.insert(position);
            if process.begun.len() > MAX_BEGUN {
                process.begun.pop_first();
            }
        }
        let own = waits.entry(thread).or_insert_with(|| {
            let own = history.cpu_waits(thread, *from, *to);
            Waited::new(own.map(|(_, start, end)| (start, end)))
        });
        // A reading is about one or more waits, and a long wait may have several readings.
        let (wait, mut nanos, mut first) = (end.nanos_since(start), 0, 0);
        while nanos < wait {
            let Some(&position) = process.begun.range(first..).next() else { break };
            first = position + 1;
            let Some(reading) = readings.get_mut(position) else { break };
            let throttle = reading.throttle;
            let overlap = throttle.end.min(end).nanos_since(throttle.start.max(start));
            if overlap > 0 {
                nanos += reading.take(thread, overlap.min(wait - nanos), own);
            }
            // What may explain more either covers this wait or began within it.
            if throttle.end <= end || reading.left <= 0 {
                process.begun.remove(&position);
            }
        }
        nanos
    }
}

impl Reading {
    /// Takes at most this number of nanoseconds from the share of a thread with these waits.
    fn take(&mut self, thread: EntityId, most: i64, own: &Waited) -> i64 {
        let Self { throttle: Throttle { start, end, nanos, .. }, waits, .. } = *self;
        let share = self.shares.entry(thread).or_insert_with(|| {
            let own = own.nanos(start, end);
            match i128::from(waits.max(own)) {
                // The history has no waits of kernel threads.
                0 => nanos,
                // It can be more than the thread waited: a wait takes no more than its duration.
                all => i64::try_from(i128::from(nanos) * i128::from(own) / all).unwrap_or(nanos),
            }
        });
        let part = most.min(*share).min(self.left).max(0);
        *share -= part;
        self.left -= part;
        part
    }
}

/// The times in which these threads waited for each CPU, in order and apart from each other. A thread that waits
/// for an unknown one has that CPU for itself.
fn cpus(
    history: &History,
    threads: &[EntityId],
    start: Timestamp,
    end: Timestamp,
) -> HashMap<EntityId, Vec<(Timestamp, Timestamp)>> {
    let mut cpus: HashMap<EntityId, Vec<(Timestamp, Timestamp)>> = HashMap::new();
    for thread in threads {
        for (cpu, start, end) in history.cpu_waits(*thread, start, end) {
            cpus.entry(cpu.unwrap_or(*thread)).or_default().push((start, end));
        }
    }
    for waits in cpus.values_mut() {
        waits.sort_unstable();
        waits.dedup_by(|later, before| {
            let is_same = later.0 <= before.1;
            if is_same {
                before.1 = before.1.max(later.1);
            }
            is_same
        });
    }
    cpus
}

/// Where waits begin and end, in order: the time, the nanoseconds of waits up to there, and the number of waits from
/// there on.
struct Waited(Vec<(Timestamp, i128, i128)>);

impl Waited {
    fn new(waits: impl Iterator<Item = (Timestamp, Timestamp)>) -> Self {
        let bounds = waits.flat_map(|(start, end)| [(start, 0, 1), (end, 0, -1)]);
        let mut bounds: Vec<(Timestamp, i128, i128)> = bounds.collect();
        bounds.sort_unstable_by_key(|(at, ..)| *at);
        let mut last = (Timestamp::MIN, 0, 0);
        for bound in &mut bounds {
            last = (bound.0, up_to(last, bound.0), last.2 + bound.2);
            *bound = last;
        }
        Self(bounds)
    }

    /// The nanoseconds of waits from `start` to `end`. Those of a damaged recording can have any length.
    fn nanos(&self, start: Timestamp, end: Timestamp) -> i64 {
        let before = |at| {
            let after = self.0.partition_point(|bound| bound.0 <= at).checked_sub(1);
            after.and_then(|last| self.0.get(last)).map_or(0, |last| up_to(*last, at))
        };
        i64::try_from(before(end) - before(start)).unwrap_or(i64::MAX)
    }
}

/// The nanoseconds of waits up to this time, from the last time where waits begin or end.
fn up_to((at, nanos, open): (Timestamp, i128, i128), time: Timestamp) -> i128 {
    nanos + open * (i128::from(time.nanos()) - i128::from(at.nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::{Derived, Interval, Kernel, Occupant};
    use crate::entity::Entity;
    use crate::event::{Event, EventKind, State};
    use crate::tables::Tables;
    use proptest::prelude::*;

    /// Threads of a damaged recording wait for longer than a number of nanoseconds says.
    #[test]
    fn waits_of_any_length_are_added() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
        let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
        let (start, end) = (at(0), Timestamp::MAX);
        let threads = [1, 2, 3].map(|number| {
            let thread = Entity::new(EntityKind::Thread, number).child_of(process);
            let subject = tables.entity(thread).unwrap();
            let (kind, state) = (EntityKind::Thread, State::Runnable);
            let (reason, stack) = (TextId::EMPTY, None);
            let (thread, proc, holder) = (Some(subject), None, None);
            let (cpu, occupant, is_preempted) = (None, Occupant::Unknown, true);
            let kernel = Kernel::Runnable { cpu, occupant, is_preempted };
            history.push(&Derived::Interval(Interval {
                subject,
                kind,
                start,
                end,
                state,
                reason,
                stack,
                thread,
                proc,
                holder,
                kernel,
            }));
            subject
        });
        let (cgroup, since, nanos, periods) = (TextId::EMPTY, start, 900, 1);
        let kind = EventKind::Throttle { process, cgroup, since, nanos, periods };
        history.push(&Derived::Event(Event { time: end, kind }));
        history.finish();
        let mut throttles = Throttles::new(&history, &tables.entities, start, end);
        let taken = threads.map(|thread| throttles.take(7, thread, start, end));
        // The sum is limited to what one thread waited, which has the whole.
        assert_eq!(taken, [900, 0, 0]);
    }

    /// The counters of a damaged recording were read any number of times within the same wait.
    #[test]
    fn readings_of_one_time_are_limited() {
        let (mut tables, at) = (Tables::new(), Timestamp::from_nanos);
        let thread = tables.entity(Entity::new(EntityKind::Thread, 1)).unwrap();
        let history = History::new(Timestamp::MIN, Timestamp::MAX);
        for (nanos, taken, left) in [(0, 0, 0), (1, 10, MAX_BEGUN - 10)] {
            let (cgroup, start, end) = (TextId::EMPTY, at(0), at(100));
            let reading = (7, Throttle { cgroup, start, end, nanos });
            let all = std::iter::repeat_n(reading, 2 * MAX_BEGUN);
            let mut throttles = Throttles::of(&history, all);
            assert_eq!(throttles.take(7, thread, at(10), at(20)), taken);
            // Those that have nothing left are not looked at again.
            assert_eq!(throttles.processes[&7_i64].begun.len(), left);
        }
    }

    proptest! {
        /// The waits of any part of a time are summed as if all waits were looked at.
        #[test]
        fn waits_are_summed_up_to_any_time(
            waits in proptest::collection::vec((0..100i64, 0..40i64), 0..20),
            start in -5..140i64,
            nanos in 0..140i64,
        ) {
            let at = Timestamp::from_nanos;
            let all = waits.iter().map(|(from, nanos)| (at(*from), at(from + nanos)));
            let end = start + nanos;
            let within = |(from, nanos): &(i64, i64)| (from + nanos).min(end) - start.max(*from);
            let expected: i64 = waits.iter().map(|wait| within(wait).max(0)).sum();
            prop_assert_eq!(Waited::new(all).nanos(at(start), at(end)), expected);
        }

        /// Waits take as much as if each of them looked at all throttling.
        #[test]
        fn each_wait_takes_what_overlaps_it(
            given in proptest::collection::vec((0..2i64, 0..100i64, 1..40i64, 1..60i64), 0..20),
            waits in proptest::collection::vec((0..2i64, 0..10i64, 1..30i64), 0..20),
        ) {
            let at = Timestamp::from_nanos;
            let throttle = |(pid, start, length, nanos)| {
                let (start, end) = (at(start), at(start + length));
                (pid, Throttle { cgroup: TextId::EMPTY, start, end, nanos })
            };
            let mut all: Vec<(i64, Throttle)> = given.into_iter().map(throttle).collect();
            // Without kernel threads, each one has the whole.
            let history = History::new(Timestamp::MIN, Timestamp::MAX);
            let mut throttles = Throttles::of(&history, all.iter().copied());
            let mut tables = Tables::new();
            let thread = tables.entity(Entity::new(EntityKind::Thread, 1)).unwrap();
            let mut time = 0;
            for (pid, pause, length) in waits {
                let (start, end) = (at(time + pause), at(time + pause + length));
                let mut expected = 0;
                for (_, throttle) in all.iter_mut().filter(|(of, _)| *of == pid) {
                    let since = throttle.start.max(start);
                    let overlap = throttle.end.min(end).nanos_since(since).max(0);
                    let part = throttle.nanos.min(overlap).min(length - expected);
                    throttle.nanos -= part;
                    expected += part;
                }
                prop_assert_eq!(throttles.take(pid, thread, start, end), expected);
                time += pause + length;
            }
        }
    }
}
