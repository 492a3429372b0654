//! The analyses: exact numbers for a short history, and rules that hold for every trace. Go's own
//! analyses judge them in `cargo xtask test-go`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails is to panic"
)]

use crate::common;
use gotrace::analysis::{
    Finished, Goroutine, Profile, ProfileKind, ProfileScope, RangeKind, Region, Summarizer, Task,
    Times, Utilization, UtilizationOptions,
};
use gotrace::synthetic::{EventConfig, EventDetails, OwnedStack};
use gotrace::{
    Event, EventKind, GoId, GoState, Metric, ProcId, ProcState, Range, RangeName,
    Region as UserRegion, StackFrame, StateTransition, Task as UserTask, TaskId, ThreadId,
    Timestamp,
};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

const NS: fn(u64) -> Duration = Duration::from_nanos;

/// The results of a [`Summarizer`].
#[derive(Default)]
struct Summary {
    goroutines: Vec<Goroutine>,
    regions: Vec<Region>,
    tasks: Vec<Task>,
}

/// Feeds events to all analyses.
struct Analyses {
    summarizer: Summarizer,
    summary: Summary,
    profiles: Vec<Profile>,
    utilization: Utilization,
}

impl Analyses {
    fn new(scope: &ProfileScope) -> Self {
        let profiles = ProfileKind::ALL.map(|kind| Profile::new(kind, scope.clone()));
        Self {
            summarizer: Summarizer::new(),
            summary: Summary::default(),
            profiles: profiles.into(),
            utilization: Utilization::new(UtilizationOptions::default()),
        }
    }

    fn push(&mut self, event: Event<'_>) {
        match self.summarizer.push(event) {
            Some(Finished::Goroutine(goroutine)) => self.summary.goroutines.push(*goroutine),
            Some(Finished::Region(region)) => self.summary.regions.push(*region),
            _ => {}
        }
        self.profiles.iter_mut().for_each(|profile| profile.push(event));
        self.utilization.push(event);
    }

    fn finish(self) -> (Summary, Vec<Profile>, Utilization) {
        let mut summary = self.summary;
        let rest = self.summarizer.finish();
        summary.goroutines.extend(rest.goroutines);
        summary.tasks = rest.tasks;
        (summary, self.profiles, self.utilization)
    }
}

/// Emits synthetic events of one goroutine on one proc.
struct History {
    analyses: Analyses,
    stack: OwnedStack,
}

impl History {
    fn new() -> Self {
        let frames = [
            StackFrame::new(1, "main.inner", "a.go", 1),
            StackFrame::new(2, "main.entry", "a.go", 2),
        ];
        let analyses = Analyses::new(&ProfileScope::all());
        Self { analyses, stack: OwnedStack::new(&frames) }
    }

    fn emit(&mut self, time: i64, proc: ProcId, details: EventDetails<'_>) {
        let stack = match &details {
            EventDetails::StateTransition(t) => t.goroutine().is_some_and(|(from, to)| {
                from == GoState::Running && to != GoState::NotExist
                    || from == GoState::NotExist
                    || from == GoState::Waiting
            }),
            EventDetails::RegionBegin(_) | EventDetails::RegionEnd(_) => true,
            _ => false,
        };
        let mut event = EventConfig::new(details)
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(7))
            .proc(proc)
            .thread(ThreadId(1));
        if stack {
            event = event.stack(self.stack.as_stack());
        }
        let event = event.build().unwrap();
        self.analyses.push(event.as_event());
    }

    fn go(&mut self, time: i64, from: GoState, to: GoState, reason: &str) {
        let stack = self.stack.clone();
        let mut transition = StateTransition::of_goroutine(GoId(7), from, to).with_reason(reason);
        if from == GoState::NotExist || matches!(to, GoState::Waiting | GoState::Syscall) {
            transition = transition.with_stack(stack.as_stack());
        }
        self.emit(time, ProcId(0), EventDetails::StateTransition(transition));
    }

    fn proc_idle(&mut self, time: i64) {
        let transition = StateTransition::of_proc(ProcId(0), ProcState::Running, ProcState::Idle);
        self.emit(time, ProcId::NONE, EventDetails::StateTransition(transition));
    }
}

#[test]
fn a_short_history_has_exact_times() {
    use GoState::{NotExist, Runnable, Running, Syscall, Waiting};
    let mut h = History::new();
    h.go(100, NotExist, Runnable, "");
    h.go(110, Runnable, Running, "");
    h.emit(115, ProcId(0), EventDetails::TaskBegin(UserTask::new(TaskId(3), TaskId::NONE, "job")));
    h.emit(120, ProcId(0), EventDetails::RegionBegin(UserRegion::new(TaskId(3), "step")));
    h.go(130, Running, Waiting, "chan receive");
    h.go(170, Waiting, Runnable, "");
    h.go(175, Runnable, Running, "");
    let assist = Range::new(RangeName::GcMarkAssist, GoId(7));
    h.emit(176, ProcId(0), EventDetails::RangeBegin(assist));
    h.emit(179, ProcId(0), EventDetails::RangeEnd(assist));
    h.emit(180, ProcId(0), EventDetails::RegionEnd(UserRegion::new(TaskId(3), "step")));
    h.go(190, Running, Syscall, "");
    h.proc_idle(200);
    h.go(260, Syscall, Runnable, "");
    h.go(265, Runnable, Running, "");
    h.emit(270, ProcId(0), EventDetails::TaskEnd(UserTask::new(TaskId(3), TaskId::NONE, "job")));
    h.go(300, Running, NotExist, "");
    let (summary, profiles, _) = h.analyses.finish();

    let [goroutine] = &summary.goroutines[..] else { panic!("{:?}", summary.goroutines) };
    assert_eq!(goroutine.entry.as_ref().unwrap().name.to_string(), "main.entry");
    assert_eq!(goroutine.end, Some(Timestamp::from_nanos(300)));
    let times = &goroutine.times;
    assert_eq!(times.total, NS(200));
    assert_eq!(times.runnable, NS(10 + 5 + 5));
    assert_eq!(times.running, NS(20 + 15 + 35));
    assert_eq!((times.syscall, times.syscall_blocked), (NS(10), NS(60)));
    let blocked: Vec<_> = times.blocked().map(|(n, t)| (n.to_string(), t)).collect();
    assert_eq!(blocked, [("chan receive".to_owned(), NS(40))]);
    assert_eq!(times.ranges().collect::<Vec<_>>(), [(&RangeKind::GcMarkAssist, NS(3))]);
    assert_eq!(times.unknown(), NS(0));

    let [region] = &summary.regions[..] else { panic!("{:?}", summary.regions) };
    assert_eq!((region.times.total, region.times.running), (NS(60), NS(10 + 5)));
    assert_eq!((region.times.runnable, region.times.blocked_total()), (NS(5), NS(40)));
    let [task] = &summary.tasks[..] else { panic!("{:?}", summary.tasks) };
    assert_eq!((task.duration(), task.regions), (Some(NS(155)), 1));
    let (owner, times) = task.own.as_ref().unwrap();
    assert_eq!((*owner, times.total), (GoId(7), NS(155)));
    assert_eq!((times.running, times.runnable, times.blocked_total()), (NS(35), NS(10), NS(40)));
    assert_eq!((times.syscall, times.syscall_blocked), (NS(10), NS(60)));
    assert!(times.unknown().is_zero());

    let delays = |kind| {
        let profile = profiles.iter().find(|profile| profile.kind() == kind).unwrap();
        profile.stacks().map(|(delay, _)| (delay.count, delay.time)).collect::<Vec<_>>()
    };
    assert_eq!(delays(ProfileKind::Sync), [(1, NS(40))]);
    assert_eq!(delays(ProfileKind::Network), []);
    assert_eq!(delays(ProfileKind::Syscall), [(1, NS(70))]);
    // Two with the stack of the creation and of the block, one without.
    assert_eq!(delays(ProfileKind::Scheduler), [(2, NS(15)), (1, NS(5))]);
}

#[test]
fn states_open_at_the_end_count_up_to_the_end() {
    use GoState::{Running, Syscall, Undetermined, Waiting};
    let mut h = History::new();
    h.emit(50, ProcId::NONE, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, 1_u64)));
    h.go(60, Undetermined, Running, ""); // running since the start
    h.emit(70, ProcId(0), EventDetails::RegionBegin(UserRegion::new(TaskId::BACKGROUND, "open")));
    h.go(80, Running, Syscall, "");
    h.proc_idle(85);
    h.emit(100, ProcId::NONE, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, 1_u64)));
    let (summary, ..) = h.analyses.finish();
    let [goroutine] = &summary.goroutines[..] else { panic!("{:?}", summary.goroutines) };
    let times = &goroutine.times;
    assert_eq!((times.total, times.running), (NS(50), NS(30)));
    assert_eq!((times.syscall, times.syscall_blocked), (NS(5), NS(15)));
    assert_eq!((goroutine.end, goroutine.open_regions[0].end), (None, None));
    assert_eq!(goroutine.open_regions[0].times.total, NS(30));
    assert_eq!(goroutine.open_regions[0].times.running, NS(10));

    // Blocked forever is the end of a goroutine.
    let mut h = History::new();
    h.go(10, Undetermined, Running, "");
    h.go(20, Running, Waiting, "forever");
    let (summary, ..) = h.analyses.finish();
    assert_eq!(summary.goroutines[0].end, Some(Timestamp::from_nanos(20)));
}

/// A range of time, within a region and a task.
#[test]
fn times_are_those_of_the_range() {
    use GoState::{Runnable, Running, Undetermined, Waiting};
    let mut h = History::new();
    let at = Timestamp::from_nanos;
    h.analyses.summarizer = Summarizer::new().between(at(200), at(300));
    h.go(10, Undetermined, Running, "");
    let task = || UserTask::new(TaskId(3), TaskId::NONE, "job");
    let region = || UserRegion::new(TaskId(3), "step");
    h.emit(100, ProcId(0), EventDetails::TaskBegin(task()));
    h.emit(110, ProcId(0), EventDetails::RegionBegin(region()));
    h.go(150, Running, Waiting, "chan receive");
    h.go(240, Waiting, Runnable, "");
    h.go(310, Runnable, Running, "");
    h.emit(400, ProcId(0), EventDetails::RegionEnd(region()));
    h.emit(410, ProcId(0), EventDetails::TaskEnd(task()));
    h.emit(420, ProcId(0), EventDetails::RegionBegin(region()));
    h.emit(430, ProcId(0), EventDetails::RegionEnd(region()));
    let (summary, ..) = h.analyses.finish();
    let expected = (NS(100), NS(40), NS(60), NS(0));
    let of = |t: &Times| (t.total, t.blocked_total(), t.runnable, t.running);
    assert_eq!(of(&summary.goroutines[0].times), expected);
    let [region, after] = &summary.regions[..] else { panic!("{:?}", summary.regions) };
    assert_eq!((region.start, region.end), (Some(at(200)), Some(at(300))));
    assert_eq!(of(&region.times), expected);
    assert_eq!((after.start, after.end), (Some(at(300)), Some(at(300))));
    let (_, times) = summary.tasks[0].own.as_ref().unwrap();
    assert_eq!((of(times), summary.tasks[0].duration()), (expected, Some(NS(100))));
}

/// The runtime has few reasons to wait. The time of more counts without a reason.
#[test]
fn the_reasons_and_open_regions_of_a_goroutine_are_limited() {
    use GoState::{Runnable, Running, Undetermined, Waiting};
    let mut h = History::new();
    h.go(0, Undetermined, Running, "");
    for number in 0..200 {
        h.go(100 * number, Running, Waiting, &format!("reason {number}"));
        h.go(100 * number + 10, Waiting, Runnable, "");
        h.go(100 * number + 20, Runnable, Running, "");
    }
    let region = |name| UserRegion::new(TaskId::BACKGROUND, name);
    let regions = 5_000;
    for number in 0..regions {
        h.emit(100_000 + number, ProcId(0), EventDetails::RegionBegin(region("x")));
    }
    for number in 0..regions {
        h.emit(200_000 + number, ProcId(0), EventDetails::RegionEnd(region("x")));
    }
    h.emit(300_000, ProcId(0), EventDetails::RegionEnd(region("before")));
    let (summary, ..) = h.analyses.finish();
    let times = &summary.goroutines[0].times;
    assert_eq!(times.blocked().len(), 65);
    assert_eq!(times.blocked_total(), NS(200 * 10));
    let rest = times.blocked().find(|(reason, _)| reason.is_empty()).unwrap();
    assert_eq!(rest.1, NS((200 - 64) * 10));
    let (last, kept) = summary.regions.split_last().unwrap();
    assert_eq!((last.start, last.name.to_string()), (None, "before".to_owned()));
    assert_eq!(kept.len(), 1024);
    let outermost = kept.last().unwrap();
    assert_eq!(outermost.start, Some(Timestamp::from_nanos(100_000)));
}

#[test]
fn the_worst_window_is_where_the_world_stops() {
    let mut h = History::new();
    h.emit(0, ProcId::NONE, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, 2_u64)));
    let stop = Range::new(RangeName::StopTheWorld("GC sweep termination".into()), GoId(7));
    h.emit(400, ProcId(0), EventDetails::RangeBegin(stop));
    h.emit(500, ProcId(0), EventDetails::RangeEnd(stop));
    h.emit(1000, ProcId::NONE, EventDetails::Metric(Metric::new(Metric::HEAP_GOAL, 1_u64)));
    let (_, _, utilization) = h.analyses.finish();
    let curve = utilization.finish();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    near(curve.of(NS(0)), 0.0);
    near(curve.of(NS(50)), 0.0);
    near(curve.of(NS(100)), 0.0);
    near(curve.of(NS(200)), 0.5);
    near(curve.of(NS(1000)), 0.9);
    near(curve.of(NS(5000)), 0.9); // cut to the length of the trace
    let worst = curve.worst(NS(200), 3);
    near(worst[0].utilization, 0.5);
    assert_eq!(worst[0].start, Timestamp::from_nanos(300));
    for (n, a) in worst.iter().enumerate() {
        for b in &worst[n + 1..] {
            assert!(a.start.nanos_since(b.start).abs() >= 200, "{worst:?}");
        }
    }
}

#[test]
fn the_states_of_a_goroutine_sum_to_its_life() {
    for (name, trace) in common::traces() {
        let mut analyses = Analyses::new(&ProfileScope::all());
        common::events_of(&trace, |event| {
            analyses.push(event);
        });
        let (summary, profiles, utilization) = analyses.finish();
        assert!(summary.goroutines.len() > 2, "{name}");
        let mut runnable = Duration::ZERO;
        for goroutine in &summary.goroutines {
            let t = &goroutine.times;
            let states = t.running + t.runnable + t.syscall + t.syscall_blocked + t.blocked_total();
            assert_eq!(states + t.unknown(), t.total, "{name}: {goroutine:?}");
            runnable += t.runnable;
        }
        for region in &summary.regions {
            if let (Some(start), Some(end)) = (region.start, region.end) {
                let length = end.nanos_since(start).unsigned_abs();
                assert_eq!(region.times.total, NS(length), "{name}: {region:?}");
            }
        }
        for task in &summary.tasks {
            let Some((_, t)) = &task.own else { continue };
            let states = t.running + t.runnable + t.syscall + t.syscall_blocked + t.blocked_total();
            assert_eq!((states, Some(t.total)), (t.total, task.duration()), "{name}: {task:?}");
        }
        // The profile leaves out what is cut off by the start or the end of the trace.
        let scheduler = profiles.iter().find(|p| p.kind() == ProfileKind::Scheduler).unwrap();
        let delays: Duration = scheduler.stacks().map(|(delay, _)| delay.time).sum();
        assert!(delays <= runnable && !delays.is_zero(), "{name}: {delays:?} {runnable:?}");

        let curve = utilization.finish();
        let values = curve.functions().flatten().map(|(_, value)| *value);
        assert!(values.into_iter().all(|value| (0.0..=1.0).contains(&value)), "{name}");
        for exponent in 3..10 {
            let window = NS(10_u64.pow(exponent));
            let worst = curve.worst(window, 1);
            assert!((worst[0].utilization - curve.of(window)).abs() < 1e-12, "{name} {window:?}");
        }
    }
}

/// A status at the start of the trace, or after a loss, is not the begin of a delay.
#[test]
fn delays_that_began_before_the_trace_do_not_count() {
    use GoState::{Runnable, Running, Syscall, Undetermined};
    let feed = |profile: &mut Profile, steps: &[(i64, i64, GoState, GoState)]| {
        for (time, id, from, to) in steps {
            let step = StateTransition::of_goroutine(GoId(*id), *from, *to);
            let event = EventConfig::new(EventDetails::StateTransition(step));
            let event = event.time(Timestamp::from_nanos(*time)).build().unwrap();
            profile.push(event.as_event());
        }
    };
    let delays = |mut profile: Profile| {
        profile.finish();
        profile.stacks().fold((0, NS(0)), |sum, (d, _)| (sum.0 + d.count, sum.1 + d.time))
    };
    // The second goroutine never runs.
    let start = [
        (10, 1, Undetermined, Syscall),
        (10, 2, Undetermined, Syscall),
        (10, 3, Undetermined, Runnable),
        (50, 1, Syscall, Runnable),
        (50, 2, Syscall, Runnable),
        (60, 1, Runnable, Running),
        (65, 3, Runnable, Running),
    ];
    let after_loss = [
        (1_000, 1, Syscall, Syscall),
        (1_000, 2, Undetermined, Runnable),
        (1_100, 1, Syscall, Running),
        (1_100, 2, Runnable, Running),
        (1_110, 1, Running, Syscall),
        (1_120, 1, Syscall, Running),
    ];
    for (kind, scope, at_start, expected) in [
        (ProfileKind::Syscall, ProfileScope::all(), (0, NS(0)), (1, NS(10))),
        (ProfileKind::Scheduler, ProfileScope::all(), (1, NS(10)), (1, NS(10))),
        // Go has no losses, and counts the call of the goroutine that never runs.
        (ProfileKind::Syscall, ProfileScope::since_first_run(), (1, NS(40)), (1, NS(10))),
        (ProfileKind::Scheduler, ProfileScope::since_first_run(), (0, NS(0)), (0, NS(0))),
    ] {
        let mut profile = Profile::new(kind, scope.clone());
        feed(&mut profile, &start);
        assert_eq!(delays(profile), at_start, "{kind:?} {scope:?}");
        let mut profile = Profile::new(kind, scope.clone());
        feed(&mut profile, &start);
        profile.loss();
        feed(&mut profile, &after_loss);
        assert_eq!(delays(profile), expected, "{kind:?} {scope:?} after a loss");
    }
}

#[test]
fn a_scope_divides_a_profile() {
    let trace = common::recorded("shop.trace");
    let profile = |scope: &ProfileScope| {
        let mut profile = Profile::new(ProfileKind::Sync, scope.clone());
        let (mut first, mut last) = (None, Timestamp::MIN);
        common::events_of(&trace, |event| {
            first.get_or_insert(event.time());
            last = event.time();
            profile.push(event);
        });
        let time: Duration = profile.stacks().map(|(delay, _)| delay.time).sum();
        (time, first.unwrap(), last)
    };
    let (all, first, last) = profile(&ProfileScope::all());
    let middle = first.saturating_add_nanos(last.nanos_since(first) / 2);
    let limited = |from, to| {
        let mut scope = ProfileScope::all();
        scope.limit(from, to);
        profile(&scope).0
    };
    let (before, after) = (limited(first, middle), limited(middle, last));
    assert!(!before.is_zero() && !after.is_zero());
    assert_eq!(before + after, all);
}

/// A thread of C that calls Go has one id for all its calls: the times of the next one are others.
#[test]
fn a_task_that_the_next_goroutine_of_the_id_ends_has_no_own_times() {
    use GoState::{NotExist, Running, Syscall};
    let mut summarizer = Summarizer::new();
    let mut emit = |time, details: EventDetails<'_>| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        let event = event.goroutine(GoId(7)).proc(ProcId(0)).thread(ThreadId(1));
        summarizer.push(event.build().unwrap().as_event());
    };
    let go =
        |from, to| EventDetails::StateTransition(StateTransition::of_goroutine(GoId(7), from, to));
    let task = |id| UserTask::new(TaskId(id), TaskId::BACKGROUND, "job");
    emit(0, go(NotExist, Syscall));
    emit(10, go(Syscall, Running));
    emit(1_010, EventDetails::TaskBegin(task(2)));
    emit(1_011, EventDetails::TaskBegin(task(3)));
    emit(1_016, EventDetails::TaskEnd(task(3)));
    emit(1_020, go(Running, Syscall));
    emit(1_030, go(Syscall, NotExist));
    emit(1_040, go(NotExist, Syscall));
    emit(1_050, go(Syscall, Running));
    emit(1_060, EventDetails::TaskEnd(task(2)));
    let tasks = summarizer.finish().tasks;
    let of = |id| tasks.iter().find(|task| task.id == TaskId(id)).unwrap();
    assert_eq!((of(2).duration(), &of(2).own), (Some(NS(50)), &None));
    let (owner, times) = of(3).own.as_ref().unwrap();
    assert_eq!((*owner, times.running, times.total), (GoId(7), NS(5), NS(5)));
}

/// Tasks that are returned when they end have the same times as those that are kept.
#[test]
fn returned_tasks_are_the_kept_ones() {
    let mut compared = 0;
    for (name, trace) in common::traces() {
        let read = |mut summarizer: Summarizer| {
            let mut tasks = Vec::new();
            common::events_of(&trace, |event| {
                if let Some(Finished::Task(task)) = summarizer.push(event) {
                    tasks.push(*task);
                }
            });
            let ended = tasks.len();
            tasks.extend(summarizer.finish().tasks);
            tasks.sort_by_key(|task| task.id);
            (tasks, ended)
        };
        let (mut kept, none) = read(Summarizer::new());
        let (returned, ended) = read(Summarizer::returning_tasks());
        kept.retain(|task| task.id != TaskId::BACKGROUND);
        assert_eq!((none, kept.len()), (0, returned.len()), "{name}");
        assert_eq!(ended, kept.iter().filter(|task| task.end.is_some()).count(), "{name}");
        for (kept, returned) in kept.iter().zip(&returned) {
            assert_eq!((kept.id, kept.parent), (returned.id, returned.parent), "{name}");
            // A task that ends twice is returned at the first end.
            if kept.own.is_some() || kept.end.is_none() {
                let times =
                    |task: &Task| (task.name.clone(), task.start, task.end, task.own.clone());
                assert_eq!(times(kept), times(returned), "{name}");
                compared += 1;
            }
        }
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn the_longest_tasks_are_the_first_of_all() {
    let mut omitted = 0;
    for (name, trace) in common::traces() {
        let tasks_of = |mut summarizer: Summarizer| {
            common::events_of(&trace, |event| {
                let finished = summarizer.push(event);
                assert!(!matches!(finished, Some(Finished::Task(_))), "{name}: it is kept");
            });
            let summary = summarizer.finish();
            let (mut tasks, omitted) = (summary.tasks, summary.omitted_tasks);
            let (first, last) = summary.span.unwrap();
            tasks.retain(|task| task.id != TaskId::BACKGROUND);
            tasks.sort_by_key(|task| (Reverse(task.duration_within(first, last)), task.id));
            (tasks, omitted)
        };
        // A task that ends again after it has been left out stays out.
        let (mut ended, mut again) = (BTreeSet::new(), BTreeSet::new());
        common::events_of(&trace, |event| {
            let task = event.task().filter(|_| event.kind() == EventKind::TaskEnd);
            if let Some(task) = task.filter(|task| !ended.insert(task.id)) {
                again.insert(task.id);
            }
        });
        let (all, none) = tasks_of(Summarizer::new());
        assert_eq!(none, 0);
        let types = all.iter().map(|task| Some(task.name.clone())).chain([None]);
        for ty in types.collect::<BTreeSet<_>>() {
            let is_wanted = |task: &&Task| ty.as_ref().is_none_or(|ty| *ty == task.name);
            let ends_once = |task: &&Task| !again.contains(&task.id);
            let expected: Vec<Task> =
                all.iter().filter(is_wanted).filter(ends_once).cloned().collect();
            for count in [0, 1, 7, usize::MAX] {
                let (mut longest, left) = tasks_of(Summarizer::longest_tasks(count, ty.clone()));
                longest.retain(|task| is_wanted(&task));
                longest.truncate(count);
                longest.retain(|task| ends_once(&task));
                omitted += left;
                let first = &expected[..longest.len()];
                assert_eq!(longest, first, "{name}: {count} of {ty:?}");
                let least = expected.len().min(count.saturating_sub(again.len()));
                assert!(longest.len() >= least, "{name}: {count} of {ty:?}");
            }
        }
    }
    assert!(omitted > 100, "{omitted}");
}

/// Emits events of the GC for an analysis of the utilization.
struct Collector(Utilization);

impl Collector {
    fn new(options: UtilizationOptions) -> Self {
        Self(Utilization::new(options))
    }

    fn emit(&mut self, time: i64, proc: i64, details: EventDetails<'_>) {
        let event = EventConfig::new(details)
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(7))
            .proc(ProcId(proc))
            .thread(ThreadId(1));
        self.0.push(event.build().unwrap().as_event());
    }

    fn procs(&mut self, time: i64, count: u64) {
        self.emit(time, -1, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, count)));
    }

    fn functions(self) -> Vec<Vec<(i64, f64)>> {
        let curve = self.0.finish();
        let nanos = |(time, value): &(Timestamp, f64)| (time.nanos(), *value);
        curve.functions().map(|function| function.iter().map(nanos).collect()).collect()
    }
}

#[test]
fn functions_of_ps_are_limited() {
    let mut options = UtilizationOptions::default();
    options.per_proc = true;
    let mut trace = Collector::new(options);
    for time in 0..4 {
        trace.procs(2 * time, 1 << 16);
        trace.procs(2 * time + 1, 0);
    }
    trace.procs(10, 2);
    assert_eq!(trace.functions().len(), 1 << 16);
}

/// A stop of the world changes the functions of all Ps.
#[test]
fn changes_of_functions_of_ps_are_limited() {
    let mut options = UtilizationOptions::default();
    options.per_proc = true;
    let mut trace = Collector::new(options);
    trace.procs(0, 1 << 16);
    let stop = || Range::new(RangeName::StopTheWorld("GC mark termination".into()), GoId(7));
    for time in 1..100 {
        trace.emit(10 * time, 0, EventDetails::RangeBegin(stop()));
        trace.emit(10 * time + 5, 0, EventDetails::RangeEnd(stop()));
    }
    let curve = trace.0.finish();
    assert!(curve.dropped() > 0);
    let changes: usize = curve.functions().map(<[_]>::len).sum();
    assert!(changes < 9 << 20, "{changes}");
}

/// An activity concerns the function of its P: a look at those of all would be 10¹¹ steps.
#[test]
fn activities_of_a_p_do_not_visit_the_others() {
    const COUNT: i64 = 400_000;
    let mut options = UtilizationOptions::default();
    options.per_proc = true;
    let mut trace = Collector::new(options);
    trace.procs(0, 1 << 16);
    for time in 1..=COUNT {
        let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
        trace.emit(10 * time, time % 3, EventDetails::RangeBegin(assist()));
        trace.emit(10 * time + 5, time % 3, EventDetails::RangeEnd(assist()));
    }
    let curve = trace.0.finish();
    assert_eq!(curve.dropped(), 0);
    let lengths: Vec<usize> = curve.functions().map(<[_]>::len).collect();
    assert_eq!(lengths.iter().sum::<usize>(), 2 * (COUNT as usize + (1 << 16)) - 1);
    assert!(lengths[3..].iter().all(|len| *len == 2));
}

/// Each mention of `GOMAXPROCS` looks at all functions, also if it changes none.
#[test]
fn looks_at_functions_of_ps_are_limited() {
    let mut options = UtilizationOptions::default();
    options.per_proc = true;
    let mut trace = Collector::new(options);
    (0..200_000).for_each(|time| trace.procs(time, 1 << 16));
    assert!(trace.0.finish().dropped() > 190_000);
}

/// A P that begins again has another function.
#[test]
fn the_windows_of_ps_have_their_numbers() {
    let mut options = UtilizationOptions::default();
    options.per_proc = true;
    let mut trace = Collector::new(options);
    trace.procs(0, 3);
    trace.procs(10, 1);
    trace.procs(20, 3);
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
    trace.emit(40, 2, EventDetails::RangeBegin(assist()));
    trace.emit(50, 2, EventDetails::RangeEnd(assist()));
    trace.procs(60, 3);
    let curve = trace.0.finish();
    assert_eq!(curve.functions().len(), 5);
    let worst = curve.worst(NS(10), 1)[0];
    assert_eq!((worst.proc, worst.start.nanos()), (Some(ProcId(2)), 40));
    assert_eq!((worst.function, worst.utilization), (4, 0.0));
}

#[test]
fn an_activity_on_a_p_that_ends_is_over() {
    let mut trace = Collector::new(UtilizationOptions::default());
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
    trace.procs(0, 4);
    trace.emit(10, 3, EventDetails::RangeBegin(assist()));
    trace.procs(20, 2);
    trace.procs(30, 4);
    trace.emit(40, 1, EventDetails::RangeBegin(assist()));
    trace.emit(50, 1, EventDetails::RangeEnd(assist()));
    trace.procs(60, 4);
    trace.procs(70, 0);
    let expected = [(0, 1.0), (10, 0.75), (20, 1.0), (40, 0.75), (50, 1.0)];
    assert_eq!(trace.functions(), [expected]);
}

/// The end of an activity whose begin did not count ends no other one.
#[test]
fn an_activity_that_a_loss_cuts_off_hides_no_other() {
    let mut options = UtilizationOptions::default();
    options.sweep = true;
    let assist = Range::new(RangeName::GcMarkAssist, GoId(7));
    let sweep = Range::new(RangeName::GcSweep, ProcId(0));
    for range in [assist, sweep] {
        let mut trace = Collector::new(options);
        trace.procs(0, 1);
        trace.emit(100, 0, EventDetails::RangeBegin(range));
        trace.0.loss();
        trace.emit(200, 0, EventDetails::RangeEnd(range));
        trace.emit(300, 0, EventDetails::RangeBegin(range));
        trace.emit(400, 0, EventDetails::RangeEnd(range));
        trace.procs(500, 1);
        assert_eq!(trace.functions(), [[(0, 1.0), (300, 0.0), (400, 1.0), (500, 0.0)]]);
    }
}

/// Values are corrected as often as an activity is seen that has been there since the start, in
/// time proportional to the number of events.
#[test]
fn activities_since_the_start_correct_all_values_before() {
    let mut trace = Collector::new(UtilizationOptions::default());
    trace.procs(0, 4);
    let running = StateTransition::of_goroutine(GoId(7), GoState::Undetermined, GoState::Running);
    trace.emit(1, 0, EventDetails::StateTransition(running));
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
    trace.emit(10, 0, EventDetails::RangeActive(assist()));
    trace.emit(20, 0, EventDetails::RangeEnd(assist()));
    trace.procs(30, 8);
    trace.emit(40, 1, EventDetails::RangeBegin(assist()));
    trace.emit(50, 2, EventDetails::RangeActive(assist()));
    assert_eq!(trace.functions(), [[(0, 0.5), (20, 0.75), (40, 0.75), (50, 0.0)]]);

    let mut trace = Collector::new(UtilizationOptions::default());
    trace.procs(0, 1 << 16);
    let running = StateTransition::of_goroutine(GoId(7), GoState::Undetermined, GoState::Running);
    trace.emit(1, 0, EventDetails::StateTransition(running));
    for time in 1..200_000 {
        trace.emit(2 * time, 0, EventDetails::RangeActive(assist()));
        trace.emit(2 * time + 1, 0, EventDetails::RangeEnd(assist()));
    }
    let function = trace.functions().remove(0);
    // Each is corrected by the activities after it, one of as many Ps. The last one ends the trace.
    let value = |after: i64| (1.0 - after as f64 / f64::from(1 << 16)).max(0.0);
    let mut expected: Vec<(i64, f64)> =
        (0..199_999).map(|n| (if n == 0 { 0 } else { 2 * n + 1 }, value(199_999 - n))).collect();
    expected.push((399_999, 0.0));
    assert_eq!(expected[0], (0, 0.0));
    assert!(function == expected);
}

/// The counts at the start of open regions and tasks are limited, and what is missing is counted.
#[test]
fn times_of_open_regions_are_limited() {
    use GoState::{Runnable, Running, Undetermined, Waiting};
    const REASONS: i64 = 64;
    const GOROUTINES: i64 = 200;
    let mut summarizer = Summarizer::new();
    let mut time = 0;
    let mut emit = |id: i64, details: EventDetails<'_>| {
        time += 1;
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        let event = event.goroutine(GoId(id)).proc(ProcId(0)).thread(ThreadId(0)).build().unwrap();
        summarizer.push(event.as_event())
    };
    let go = |id: i64, from, to| StateTransition::of_goroutine(GoId(id), from, to);
    let region = || UserRegion::new(TaskId::BACKGROUND, "r");
    for id in 1..=GOROUTINES {
        emit(-1, EventDetails::StateTransition(go(id, Undetermined, Running)));
        for reason in 0..REASONS {
            let reason = reason.to_string();
            let waits = go(id, Running, Waiting).with_reason(&reason);
            emit(id, EventDetails::StateTransition(waits));
            emit(-1, EventDetails::StateTransition(go(id, Waiting, Runnable)));
            emit(-1, EventDetails::StateTransition(go(id, Runnable, Running)));
        }
        (0..1024).for_each(|_| _ = emit(id, EventDetails::RegionBegin(region())));
    }
    let mut task = |number, id| {
        let task = || UserTask::new(TaskId(number), TaskId::BACKGROUND, "t");
        emit(id, EventDetails::TaskBegin(task()));
        emit(id, EventDetails::TaskEnd(task()));
        (0..1024).filter(|_| emit(id, EventDetails::RegionEnd(region())).is_some()).count()
    };
    let ended = [task(2, GOROUTINES), task(3, 1), task(4, GOROUTINES)];
    assert_eq!(ended, [0, 1024, 1024], "those without begin count from the start");
    let summary = summarizer.finish();
    let kept = (8 << 20) / (REASONS as u64 + 4);
    assert_eq!(summary.ignored_regions, GOROUTINES as u64 * 1024 - kept);
    assert_eq!(summary.unmeasured_tasks, 2, "{:?}", summary.tasks);
    let named = summary.tasks.iter().filter(|task| task.id != TaskId::BACKGROUND);
    let own: Vec<bool> = named.map(|task| task.own.is_some()).collect();
    assert_eq!(own, [false, false, true]);
}
