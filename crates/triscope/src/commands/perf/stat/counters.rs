//! The counters of `perf stat`.

use crate::failure::Result;
use crate::run::target::{Target as WatchTarget, of_living};
use crate::sources::kernel::events::Cgroup;
use crate::sources::kernel::failure;
use crate::sources::kernel::sampling::{with_kernel_or_not, without_kernel};
use perf_monitor::{
    Count, Counter, Error, Event, EventBuilder, Group, OpenErrorReason, Pmu, Scaled, Target,
    online_cpus,
};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::rc::Rc;

/// An event, or the members of a group, counted for each thread or CPU.
pub(super) struct Counted {
    pub(super) events: Vec<Event>,
    pub(super) cgroup: Option<Rc<Cgroup>>,
    instances: Vec<Instance>,
    /// CPUs that do not have the event, while others do.
    pub(super) not_on: Vec<u32>,
    /// The kernel is excluded, because this user may not count it.
    pub(super) user_only: bool,
    /// The cores that alone count them, if others do not.
    pub(super) cores: Option<String>,
}

/// The counters of one thread or CPU.
enum Instance {
    Single(Box<Counter>),
    Group(Group),
}

impl Instance {
    fn open(
        leader: &EventBuilder,
        members: &[EventBuilder],
        target: Target<'_>,
    ) -> perf_monitor::Result<Self> {
        if members.is_empty() {
            return leader.open(target).map(|counter| Self::Single(Box::new(counter)));
        }
        let mut group = Group::open(leader, target)?;
        for member in members {
            group.add(member)?;
        }
        Ok(Self::Group(group))
    }

    fn read(&self) -> perf_monitor::Result<Reading> {
        let (read, events) = match self {
            Self::Single(counter) => (counter.read().map(|count| vec![count]), 1),
            Self::Group(group) => (group.read().map(|read| read.counts), group.counters().len()),
        };
        match read {
            Ok(counts) => Ok(Reading::Counts(counts)),
            Err(Error::PinnedOut { .. }) => Ok(Reading::PinnedOut { events }),
            Err(Error::Control { errno: Errno::CHILD, .. }) => Ok(Reading::ChildExits),
            Err(error) => Err(error),
        }
    }
}

/// What reading the counters of a thread or CPU results in.
enum Reading {
    Counts(Vec<Count>),
    /// This number of events is pinned and not on the PMU.
    PinnedOut {
        events: usize,
    },
    /// The exit of a child takes long, and the group cannot be read meanwhile.
    ChildExits,
}

/// The counts of each thread or CPU. `None` while a child exits.
fn counts(readings: Vec<Reading>) -> Option<Vec<Vec<Count>>> {
    let times = readings.iter().filter_map(|reading| match reading {
        Reading::Counts(counts) => counts.iter().filter_map(|count| count.time_enabled).max(),
        _ => None,
    });
    // They were wanted as long as the others, and were not counted.
    let mut missing = Count::default();
    (missing.time_enabled, missing.time_running) = (Some(times.max().unwrap_or(0)), Some(0));
    let each = readings.into_iter().map(|reading| match reading {
        Reading::Counts(counts) => Some(counts),
        Reading::PinnedOut { events } => Some(vec![missing; events]),
        Reading::ChildExits => None,
    });
    each.collect()
}

impl Counted {
    /// The events without a counter.
    #[cfg(test)]
    pub(super) fn unopened(events: Vec<Event>) -> Self {
        let (instances, not_on) = Default::default();
        Self { events, cgroup: None, instances, not_on, user_only: false, cores: None }
    }

    /// The name of its first event.
    pub(super) fn name(&self) -> &str {
        self.events.first().map_or("", Event::name)
    }

    /// Opens an event or group for all targets; without the kernel if only that is permitted, and counts
    /// something.
    pub(super) fn open(
        events: &[Event],
        target: &WatchTarget,
        tids: &[u32],
        cgroup: Option<Rc<Cgroup>>,
    ) -> perf_monitor::Result<Self> {
        let events = events.to_vec();
        let open = |user_only| {
            let builders = builders(&events, target, user_only);
            let cpus = events.first().and_then(Event::cpus);
            let opened = instances(&builders, target, tids, cpus, cgroup.as_deref())?;
            Ok((opened, user_only))
        };
        let ((instances, not_on), user_only) = with_kernel_or_not(&events, open)?;
        let pmus = if target.is_system_wide() { Vec::new() } else { Pmu::of_cores() };
        let pmus: Vec<(&str, u32)> = pmus.iter().map(|pmu| (pmu.name(), pmu.type_())).collect();
        // A group is counted as a whole.
        let cores = events.iter().find_map(|event| cores_of(event, &pmus));
        Ok(Self { events, cgroup, instances, not_on, user_only, cores })
    }

    pub(super) fn enable(&mut self) -> Result {
        self.instances
            .iter_mut()
            .try_for_each(|instance| match instance {
                Instance::Single(counter) => counter.enable(),
                Instance::Group(group) => group.enable(),
            })
            .map_err(failure)
    }

    pub(super) fn disable(&mut self) -> Result {
        self.instances
            .iter_mut()
            .try_for_each(|instance| match instance {
                Instance::Single(counter) => counter.disable(),
                Instance::Group(group) => group.disable(),
            })
            .map_err(failure)
    }

    /// The counts of each thread or CPU, in the order of the events. `None` if a child that is exiting keeps
    /// a group from being read.
    pub(super) fn read(&self) -> Result<Option<Vec<Vec<Count>>>> {
        let mut readings = Vec::new();
        for instance in &self.instances {
            let reading = instance.read().map_err(failure)?;
            // Each of these takes its time, and the first one decides.
            let decides = matches!(reading, Reading::ChildExits);
            readings.push(reading);
            if decides {
                break;
            }
        }
        Ok(counts(readings))
    }
}

/// The cores that alone count an event of a task, on a machine with several kinds of cores, whose PMUs have
/// these names and numbers.
fn cores_of(event: &Event, pmus: &[(&str, u32)]) -> Option<String> {
    if pmus.len() < 2 {
        return None;
    }
    let name_of =
        |number: u32| pmus.iter().find(|(_, type_)| *type_ == number).map(|(name, _)| *name);
    let name = match name_of(event.type_()) {
        Some(name) => name,
        // x86 has the number of raw events for the big cores. Elsewhere the kernel chooses a PMU.
        None if event.is_of_cores() => name_of(Event::raw(0).type_()).unwrap_or("one kind"),
        None => return None,
    };
    Some(name.to_owned())
}

/// What an event counted between two readings, or its state at the later one.
pub(super) fn since(now: &Count, before: &Count, is_snapshot: bool) -> Count {
    if is_snapshot {
        return *now;
    }
    let mut count = now.since(before);
    if now.time_running == Some(0) {
        // What a pinned event counted before it was off the PMU is not in the later reading.
        let enabled = now.time_enabled.zip(before.time_enabled);
        count.time_enabled = enabled.map(|(now, before)| now.saturating_sub(before));
        (count.value, count.time_running) = (0, Some(0));
    }
    count
}

/// A part of a time: these nanoseconds of those.
pub(super) type Part = (u64, u64);

/// The largest part of the time of a thread that one of these events was counted: the thread was on its cores then.
pub(super) fn longest(counts: impl IntoIterator<Item = Count>) -> Part {
    let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
    let parts = counts.into_iter().filter_map(|count| count.time_running.zip(count.time_enabled));
    let larger = |a: Part, b: Part| if product(b.0, a.1) > product(a.0, b.1) { b } else { a };
    parts.filter(|(_, of)| *of > 0).reduce(larger).unwrap_or((0, 1))
}

/// The count of an event on all threads or CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// `None` if it was never counted.
    pub(super) scaled: Option<Scaled>,
    /// Nanoseconds that it was counted.
    pub(super) running: u64,
    /// Whether a part of the time may have been on other cores.
    pub(super) is_part: bool,
}

impl Sum {
    /// Each count is scaled by its own times: those of a busy CPU say nothing of an idle one.
    pub(super) fn of(counts: impl IntoIterator<Item = Count>) -> Self {
        let mut sum = Self::default();
        let (mut enabled, mut is_estimate) = (0u64, false);
        for count in counts {
            let (wanted, running) =
                (count.time_enabled.unwrap_or(0), count.time_running.unwrap_or(0));
            enabled = enabled.saturating_add(wanted);
            sum.running = sum.running.saturating_add(running);
            is_estimate |= running < wanted;
            let Some(mut scaled) = count.scaled() else { continue };
            scaled.value = scaled.value.saturating_add(sum.scaled.map_or(0, |sum| sum.value));
            sum.scaled = Some(scaled);
        }
        if let Some(scaled) = &mut sum.scaled {
            scaled.is_estimate = is_estimate;
        }
        sum.cover(enabled);
        sum
    }

    /// Of an event that some cores alone count, with the part of the time that each thread was surely on them. Each count
    /// is scaled to that time: nothing is known of the others.
    pub(super) fn of_some_cores(counts: impl IntoIterator<Item = (Count, Part)>) -> Self {
        let (mut enabled, mut is_part) = (0u64, false);
        let on_cores = counts.into_iter().map(|(mut count, (on, of))| {
            let Some(wanted) = count.time_enabled else { return count };
            let on = u128::from(wanted) * u128::from(on) / u128::from(of.max(1));
            let on = u64::try_from(on).unwrap_or(wanted).min(wanted);
            let on = on.max(count.time_running.unwrap_or(0));
            enabled = enabled.saturating_add(wanted);
            is_part |= on < wanted;
            count.time_enabled = Some(on);
            count
        });
        let mut sum = Self::of(on_cores);
        sum.is_part = is_part;
        sum.cover(enabled);
        sum
    }

    /// Compares the time that it was counted with the time that it was wanted.
    fn cover(&mut self, enabled: u64) {
        if let Some(scaled) = self.scaled.as_mut().filter(|_| enabled > 0) {
            scaled.coverage = (self.running as f64 / enabled as f64).min(1.0);
        }
    }
}

fn builders(events: &[Event], target: &WatchTarget, user_only: bool) -> Vec<EventBuilder> {
    let each = events.iter().map(|event| {
        let builder = without_kernel(event.builder(), user_only);
        if target.is_system_wide() {
            return builder;
        }
        builder.inherit(true)
    });
    let mut builders: Vec<_> = each.collect();
    // The members of a group start with its leader.
    if let (Some(leader), true) = (builders.first_mut(), target.starts_on_exec()) {
        *leader = leader.clone().enable_on_exec(true);
    }
    builders
}

/// The counters, and the CPUs that do not have the events.
fn instances(
    builders: &[EventBuilder],
    target: &WatchTarget,
    tids: &[u32],
    of_event: Option<&[u32]>,
    cgroup: Option<&Cgroup>,
) -> perf_monitor::Result<(Vec<Instance>, Vec<u32>)> {
    let Some((leader, members)) = builders.split_first() else { return Ok(Default::default()) };
    let open = |target| Instance::open(leader, members, target);
    if target.is_system_wide() {
        let mut cpus = target.cpu.as_ref().map_or_else(online_cpus, |list| list.0.clone());
        // Several CPUs may share the counter. If none of them has it, the kernel says why.
        let has = |cpu: &u32| of_event.is_none_or(|cpus| cpus.contains(cpu));
        if cpus.iter().any(has) {
            cpus.retain(has);
        }
        let on_cpu = |cpu| match cgroup {
            Some(cgroup) => Target::Cgroup { dir: cgroup.dir.as_fd(), cpu },
            None => Target::Cpu(cpu),
        };
        return on_cpus(&cpus, |cpu| open(on_cpu(cpu)));
    }
    let opened = match target.starts_on_exec() {
        true => vec![open(Target::ThisThread)?],
        false => of_living(tids, |tid| open(Target::Thread(tid)))?,
    };
    Ok((opened, Vec::new()))
}

/// Opens something on each CPU. Also returns those that do not have the event, unless all lack it: that is
/// an error.
fn on_cpus<T>(
    cpus: &[u32],
    open: impl Fn(u32) -> perf_monitor::Result<T>,
) -> perf_monitor::Result<(Vec<T>, Vec<u32>)> {
    let (mut opened, mut not_on, mut refusal) = (Vec::new(), Vec::new(), None);
    for cpu in cpus {
        match open(*cpu) {
            Ok(one) => opened.push(one),
            Err(error) if matches!(error.reason(), Some(OpenErrorReason::NotOnCpu(_))) => {
                not_on.push(*cpu);
                refusal = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match refusal {
        Some(error) if opened.is_empty() => Err(error),
        _ => Ok((opened, not_on)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_counted_on_the_cpus_that_have_it() {
        let refused = |cpu, reason| Error::Open {
            event: "cycles".to_owned(),
            target: format!("CPU {cpu}"),
            errno: Errno::NOENT,
            reason,
        };
        let open = |cpus: &[u32]| {
            on_cpus(cpus, |cpu| match cpu {
                0..8 => Ok(cpu),
                8..16 => Err(refused(cpu, OpenErrorReason::NotOnCpu(cpu))),
                _ => Err(refused(cpu, OpenErrorReason::NoSuchEvent)),
            })
        };
        assert_eq!(open(&[6, 7, 8, 9]).unwrap(), (vec![6, 7], vec![8, 9]));
        assert_eq!(open(&[]).unwrap(), (vec![], vec![]));
        let reason = |cpus: &[u32]| open(cpus).unwrap_err().reason().cloned();
        assert_eq!(reason(&[8, 9]), Some(OpenErrorReason::NotOnCpu(9)));
        assert_eq!(reason(&[0, 16]), Some(OpenErrorReason::NoSuchEvent));
    }

    fn count(value: u64, enabled: u64, running: u64) -> Count {
        let mut count = Count::default();
        (count.value, count.time_enabled, count.time_running) =
            (value, Some(enabled), Some(running));
        count
    }

    #[test]
    fn a_pinned_event_off_the_pmu_is_not_counted() {
        let readings = |first| vec![Reading::Counts(first), Reading::PinnedOut { events: 2 }];
        let read = counts(readings(vec![count(10, 100, 100), count(20, 100, 100)])).unwrap();
        assert_eq!(read[1], [count(0, 100, 0); 2]);
        // The other CPU has the half of the time.
        let sum = Sum::of(read.iter().map(|counts| counts[0]));
        assert_eq!(sum.scaled.map(|s| (s.value, s.is_estimate, s.coverage)), Some((10, true, 0.5)));
        assert_eq!(
            counts(vec![Reading::PinnedOut { events: 1 }]),
            Some(vec![vec![count(0, 0, 0)]])
        );
        // What it counted until then is not in the interval.
        assert_eq!(since(&count(0, 100, 0), &count(30, 40, 40), false), count(0, 60, 0));
        assert_eq!(since(&count(0, 0, 0), &count(30, 40, 40), false), count(0, 0, 0));
        assert_eq!(since(&count(50, 100, 90), &count(30, 40, 40), false), count(20, 60, 50));
    }

    #[test]
    fn the_difference_of_two_states_is_none() {
        let (now, before) = (count(30, 100, 100), count(50, 40, 40));
        assert_eq!(since(&now, &before, true), now);
    }

    #[test]
    fn a_group_is_left_out_while_a_child_exits() {
        assert_eq!(counts(vec![Reading::Counts(vec![count(1, 1, 1)]), Reading::ChildExits]), None);
    }

    #[test]
    fn events_of_tasks_are_those_of_some_cores() {
        let hardware = |name| Event::parse(name).unwrap();
        let hybrid = [("cpu_atom", 10), ("cpu_core", Event::raw(0).type_())];
        for name in ["cycles", "instructions:u", "L1-dcache-loads", "r1a8"] {
            assert_eq!(cores_of(&hardware(name), &hybrid).as_deref(), Some("cpu_core"), "{name}");
            // One PMU, or none that names its CPUs: all cores are the same.
            assert_eq!(cores_of(&hardware(name), &hybrid[..1]), None);
            assert_eq!(cores_of(&hardware(name), &[]), None);
            let arm = [("armv8_cortex_a53", 7), ("armv8_cortex_a72", 8)];
            assert_eq!(cores_of(&hardware(name), &arm).as_deref(), Some("one kind"), "{name}");
        }
        let of_atom = Event::from_type("cpu_atom/cycles/", 10, 0x3c);
        assert_eq!(cores_of(&of_atom, &hybrid).as_deref(), Some("cpu_atom"));
        for event in [hardware("task-clock"), Event::tracepoint_id("a:b", 1)] {
            assert_eq!(cores_of(&event, &hybrid), None);
        }
    }

    #[test]
    fn the_time_on_other_cores_is_not_extrapolated() {
        let counts = [count(1000, 100, 50), count(10, 100, 100), count(0, 40, 0)];
        let alone = |count: Count| (count, longest([count]));
        let sum = Sum::of_some_cores(counts.map(alone));
        let scaled = sum.scaled.unwrap();
        assert_eq!((scaled.value, scaled.is_estimate, sum.running), (1010, false, 150));
        assert_eq!((scaled.coverage, sum.is_part), (0.625, true));
        assert!(Sum::of_some_cores([alone(count(0, 10, 0))]).scaled.is_none());
        assert!(!Sum::of_some_cores([alone(count(7, 10, 10))]).is_part);
    }

    /// There were more events than counters: another one was counted longer.
    #[test]
    fn the_time_without_a_counter_is_extrapolated() {
        let multiplexed = count(1000, 100, 25);
        // The whole time was on these cores. The other event was enabled a little earlier.
        let whole = longest([multiplexed, count(5, 101, 101), Count::default()]);
        let sum = Sum::of_some_cores([(multiplexed, whole)]);
        let scaled = sum.scaled.unwrap();
        assert_eq!((scaled.value, scaled.is_estimate, sum.is_part), (4000, true, false));
        assert_eq!((scaled.coverage, sum.running), (0.25, 25));
        // Half of it was.
        let half = longest([count(5, 200, 100), multiplexed]);
        let sum = Sum::of_some_cores([(multiplexed, half), (count(10, 100, 100), (1, 1))]);
        let scaled = sum.scaled.unwrap();
        assert_eq!((scaled.value, scaled.is_estimate, sum.is_part), (2010, true, true));
        assert_eq!(scaled.coverage, 0.625);
    }

    #[test]
    fn each_count_is_scaled_by_its_own_times() {
        // The first was counted half of the time, the second always.
        let sum = Sum::of([count(1000, 100, 50), count(10, 100, 100)]);
        let scaled = sum.scaled.unwrap();
        assert_eq!((scaled.value, scaled.is_estimate, sum.running), (2010, true, 150));
        assert_eq!(scaled.coverage, 0.75);
        // What one that never ran would have counted is unknown.
        let sum = Sum::of([count(5, 10, 10), count(0, 10, 0)]);
        assert_eq!(sum.scaled.map(|s| (s.value, s.is_estimate)), Some((5, true)));
        let exact = Sum::of([count(5, 10, 10), count(0, 0, 0)]).scaled.unwrap();
        assert_eq!((exact.value, exact.is_estimate, exact.coverage), (5, false, 1.0));
        assert!(Sum::of([count(0, 10, 0)]).scaled.is_none() && Sum::of([]).scaled.is_none());
    }
}
