//! Analyses of damaged traces: they process the events before the damage, and, with recovery, those
//! after it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use crate::common::{self, Assembler};
use gotrace::analysis::{
    Allocations, AllocationsReport, CriticalPaths, Finished, GcCycles, GcReport, PathState,
    ProcessorUse, Profile, ProfileKind, ProfileScope, Request, RequestFilter, Requests, Scheduling,
    SchedulingOptions, SchedulingReport, Summarizer, Summary, Utilization, UtilizationOptions,
};
use gotrace::synthetic::{EventConfig, EventDetails};
use gotrace::{
    Event, EventType, GoId, GoState, Index, Metric, ProcId, Range, RangeName, Reader, Region,
    ResourceId, StateTransition, Task, TaskId, ThreadId, Timestamp,
};
use proptest::prelude::*;
use proptest::sample::{Index as At, select};
use std::time::Duration;

/// All analyses.
struct Analyses {
    summarizer: Summarizer,
    profiles: Vec<Profile>,
    utilization: Utilization,
    scheduling: Scheduling,
    collections: GcCycles,
    allocations: Allocations,
    events: u64,
    /// Whether they learn of losses only from the events.
    has_no_losses: bool,
}

impl Analyses {
    fn new() -> Self {
        Self {
            summarizer: Summarizer::new(),
            profiles: ProfileKind::ALL.map(|k| Profile::new(k, ProfileScope::all())).into(),
            utilization: Utilization::new(UtilizationOptions::default()),
            scheduling: Scheduling::new(SchedulingOptions::default()),
            collections: GcCycles::new(10),
            allocations: Allocations::new(),
            events: 0,
            has_no_losses: false,
        }
    }

    fn push(&mut self, event: Event<'_>) {
        self.events += 1;
        self.summarizer.push(event);
        self.profiles.iter_mut().for_each(|profile| profile.push(event));
        self.utilization.push(event);
        self.scheduling.push(event);
        self.collections.push(event);
        self.allocations.push(event);
    }

    fn loss(&mut self) {
        self.summarizer.loss();
        self.profiles.iter_mut().for_each(Profile::loss);
        self.utilization.loss();
        self.scheduling.loss();
        self.collections.loss();
        self.allocations.loss();
    }

    /// Reads a trace, and after damage the rest if `recover`; returns whether it is damaged.
    fn read(&mut self, trace: &[u8], recover: bool) -> bool {
        let mut reader = Reader::new(trace).unwrap();
        let mut is_damaged = false;
        loop {
            match reader.next_event() {
                Ok(Some(event)) => self.push(event),
                Ok(None) => return is_damaged,
                Err(_) => {
                    is_damaged = true;
                    if !recover || !matches!(reader.recover(), Ok(Some(_))) {
                        return true;
                    }
                    if !self.has_no_losses {
                        self.loss();
                    }
                }
            }
        }
    }

    /// Reads this number of events.
    fn read_first(&mut self, trace: &[u8], events: u64) {
        let mut reader = Reader::new(trace).unwrap();
        while self.events < events {
            self.push(reader.next_event().unwrap().unwrap());
        }
    }

    fn finish(self) -> (Summary, SchedulingReport, GcReport, AllocationsReport, Vec<(u64, u128)>) {
        let profiles = self.profiles.into_iter().map(|mut profile| {
            profile.finish();
            let delays = profile.stacks().map(|(delay, _)| (delay.count, delay.time.as_nanos()));
            delays.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        });
        let profiles = profiles.collect();
        let _ = self.utilization.finish().of(Duration::from_micros(10));
        (
            self.summarizer.finish(),
            self.scheduling.finish(),
            self.collections.finish(),
            self.allocations.finish(),
            profiles,
        )
    }
}

/// The number of events of these generations, without the sync event at their end.
fn count(generations: &[u8]) -> u64 {
    let mut events = 0_u64;
    if !generations.is_empty() {
        common::events_of(generations, |_| events += 1);
    }
    events.saturating_sub(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_trace_is_analysed_up_to_the_cut(name in select(&common::V2[..]), at: At) {
        let trace = common::recorded(name);
        let cut = &trace[..16 + at.index(trace.len() - 16)];
        Analyses::new().read(cut, false);
        // Of the last generation some batches are missing. Those before it have the same events as
        // in the whole trace, and give the same answers.
        let index = Index::read(cut).unwrap();
        // Cut between two generations, it is complete.
        prop_assume!(index.damage().is_some());
        let complete = index.generations().last().map_or(0, |last| last.offset + last.len);
        let events = count(&trace[..complete as usize]);
        let (mut analyses, mut same) = (Analyses::new(), Analyses::new());
        analyses.read_first(cut, events);
        same.read_first(&trace, events);
        prop_assert_eq!(analyses.events, same.events);
        let (a, b) = (analyses.finish(), same.finish());
        prop_assert_eq!(a.1.latency, b.1.latency);
        prop_assert_eq!(a.4, b.4);
        prop_assert_eq!(a.2.assists, b.2.assists);
    }

    #[test]
    fn a_damaged_trace_is_analysed_to_the_end(
        name in select(&common::V2[..]),
        flips in common::flips(),
    ) {
        let mut trace = common::recorded(name);
        common::flip(&mut trace, &flips);
        let mut analyses = Analyses::new();
        analyses.read(&trace, true);
        let (summary, scheduling, collections, allocations, _) = analyses.finish();
        let of_causes: u64 = scheduling.by_cause.iter().map(|(_, h)| h.count()).sum();
        prop_assert_eq!(of_causes, scheduling.latency.count());
        prop_assert!(collections.longest.len() <= 10);
        prop_assert!(allocations.snapshots.len() <= 65);
        for task in summary.tasks {
            prop_assert!(task.own.is_none() || task.end.is_some());
        }
    }
}

/// The times of the events around the loss of a trace: the last before it, and the first after it.
fn gap(trace: &[u8]) -> (Timestamp, Timestamp) {
    let (mut before, mut after, mut is_over) = (Timestamp::MIN, None, false);
    let mut reader = Reader::new(trace).unwrap();
    loop {
        match reader.next_event() {
            Ok(Some(event)) if is_over => _ = after.get_or_insert(event.time()),
            Ok(Some(event)) => before = event.time(),
            Ok(None) => return (before, after.unwrap()),
            Err(_) => is_over |= reader.recover().unwrap().is_some(),
        }
    }
}

/// Overwrites generations in the middle of a trace.
fn overwritten() -> Vec<u8> {
    let mut trace = common::recorded("go1.23-mixed.trace.gz");
    for batch in common::batches(&trace).into_iter().filter(|b| (4..=7).contains(&b.generation)) {
        trace.get_mut(batch.range).unwrap().fill(0xff);
    }
    trace
}

#[test]
fn lost_time_is_of_no_state() {
    check_lost_time(false);
}

#[test]
fn a_generation_that_follows_damage_ends_all_states() {
    check_lost_time(true);
}

fn check_lost_time(has_no_losses: bool) {
    let trace = overwritten();
    let (from, to) = gap(&trace);
    assert!(to - from > Duration::from_millis(1), "{:?}", to - from);
    let mut scope = ProfileScope::all();
    scope.limit(from, to);
    let profiles = ProfileKind::ALL.map(|kind| Profile::new(kind, scope.clone()));
    let mut analyses = Analyses { profiles: profiles.into(), has_no_losses, ..Analyses::new() };
    assert!(analyses.read(&trace, true));
    let (summary, scheduling, _, _, profiles) = analyses.finish();
    assert!(profiles.iter().all(|(_, time)| *time == 0), "delays in the gap: {profiles:?}");
    let mut continued = 0;
    for goroutine in summary.goroutines {
        let end = goroutine.end.unwrap_or(Timestamp::MAX);
        if goroutine.created < from && goroutine.times.total > to - from && to < end {
            assert!(goroutine.times.unknown() >= to - from, "{goroutine:?}");
            continued += 1;
        }
    }
    assert!(continued > 3, "{continued}");
    let all = |of: fn(&ProcessorUse) -> f64| {
        let times = scheduling.processors.iter().map(|u| of(u) * u.length.as_secs_f64());
        times.sum::<f64>()
    };
    let procs = all(|u| u.procs);
    assert!(all(|u| u.running + u.gc + u.syscall) <= procs * 1.001);
    let length: f64 = scheduling.processors.iter().map(|u| u.length.as_secs_f64()).sum();
    let known = length - (to - from).as_secs_f64();
    let count = scheduling.processors.iter().map(|u| u.procs).fold(0.0, f64::max).round();
    assert!(procs <= known * count * 1.001, "{procs} {known} {count}");
}

/// Critical paths learn of damage from the sync event of the generation after it, too.
#[test]
fn lost_time_is_unknown_on_critical_paths() {
    let trace = overwritten();
    let (from, to) = gap(&trace);
    let ids = (1..100).map(GoId);
    let mut paths = CriticalPaths::new(ids.map(|id| Request::of_goroutine(id, from, to)).collect());
    common::recover(&trace, &mut paths, CriticalPaths::push, |_| {});
    let paths = paths.finish();
    let known = paths.iter().filter(|path| !path.subject.entry.is_empty()).count();
    assert!(known > 3, "{known}");
    for path in paths {
        let [piece] = &path.pieces[..] else { panic!("{path:?}") };
        assert_eq!(piece.what, PathState::Unknown, "{path:?}");
    }
}

/// A region that was open before the damage may have ended in the lost part.
#[test]
fn no_region_spans_damaged_generations() {
    let mut trace = Assembler::new(22);
    for generation in 1..=3 {
        trace.frequency(generation);
        let proc: (u8, &[u64]) = (EventType::PROC_STATUS.0, &[1, 0, 1]);
        let goroutine: (u8, &[u64]) = (EventType::GO_STATUS.0, &[1, 1, 7, 2]);
        let [begin, end] = [EventType::USER_REGION_BEGIN, EventType::USER_REGION_END]
            .map(|ty| -> (u8, &[u64]) { (ty.0, &[1, 0, 0, 0]) });
        let regions = if generation == 1 { [begin, end, begin] } else { [end, begin, end] };
        let events = [&[proc, goroutine], &regions[..]].concat();
        trace.batch(generation, 7, generation * 1000, &events);
        if generation == 2 {
            let end = trace.0.len();
            trace.0.get_mut(end - 3 * 5..).unwrap().fill(0xff); // the regions
        }
    }
    let mut requests = Requests::new(RequestFilter::All, usize::MAX);
    common::recover(&trace.0, &mut requests, Requests::push, |_| {});
    let requests = requests.finish();
    // One tick each: before the damage, and after it.
    let durations: Vec<_> = requests.iter().map(Request::duration).collect();
    assert_eq!(durations, [Duration::from_nanos(64); 2]);
}

/// Feeds events to all analyses.
struct Synthetic(Analyses);

impl Synthetic {
    fn emit(&mut self, time: i64, goroutine: i64, details: EventDetails<'_>) {
        let event = EventConfig::new(details)
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(goroutine))
            .proc(ProcId(0))
            .thread(ThreadId(1))
            .build()
            .unwrap();
        self.0.push(event.as_event());
    }

    fn go(&mut self, time: i64, id: i64, from: GoState, to: GoState, reason: &str) {
        let transition = StateTransition::of_goroutine(GoId(id), from, to).with_reason(reason);
        self.emit(time, id, EventDetails::StateTransition(transition));
    }

    fn metric(&mut self, time: i64, name: &'static str, value: u64) {
        self.emit(time, -1, EventDetails::Metric(Metric::new(name, value)));
    }
}

#[test]
fn states_end_with_the_last_event_before_a_loss() {
    use GoState::{NotExist, Runnable, Running, Undetermined, Waiting};
    let mut trace = Synthetic(Analyses::new());
    trace.metric(0, Metric::GOMAXPROCS, 2);
    trace.go(10, 1, Undetermined, Running, "");
    trace.go(20, 2, NotExist, Runnable, "");
    trace.go(30, 2, Runnable, Running, "");
    let task = || Task::new(TaskId(5), TaskId::NONE, "job");
    trace.emit(40, 2, EventDetails::TaskBegin(task()));
    trace.emit(41, 2, EventDetails::RegionBegin(Region::new(TaskId(5), "step")));
    trace.go(50, 2, Running, Waiting, "chan receive");
    trace.metric(100, Metric::HEAP_GOAL, 1);
    trace.0.loss();
    // Goroutine 1 has ended meanwhile. The reader knows that 2 waits, and repeats it.
    trace.metric(1_000, Metric::HEAP_GOAL, 1);
    trace.go(1_010, 2, Waiting, Waiting, "");
    trace.go(1_020, 2, Waiting, Runnable, "");
    trace.go(1_030, 2, Runnable, Running, "");
    trace.emit(1_040, 2, EventDetails::TaskEnd(task()));
    trace.metric(1_100, Metric::HEAP_GOAL, 1);
    let (summary, scheduling, _, _, profiles) = trace.0.finish();
    let ns = Duration::from_nanos;
    let [first, second] = &summary.goroutines[..] else { panic!("{:?}", summary.goroutines) };
    assert_eq!((first.id, first.end), (GoId(1), None));
    assert_eq!((first.times.total, first.times.running), (ns(100), ns(100)));
    let times = &second.times;
    assert_eq!((times.running, times.runnable), (ns(20 + 70), ns(10 + 10)));
    assert_eq!((times.blocked_total(), times.unknown()), (ns(50 + 20), ns(900)));
    assert_eq!(second.open_regions, []);
    let task = summary.tasks.iter().find(|task| task.id == TaskId(5)).unwrap();
    assert_eq!((task.duration(), &task.own), (Some(ns(1_000)), &None));
    // Of waits that are cut off nothing counts: the others are those for a P.
    assert_eq!((scheduling.latency.count(), scheduling.latency.sum()), (2, 20));
    assert_eq!((scheduling.blocked.len(), scheduling.cut), (0, 2));
    let sync = ProfileKind::ALL.iter().zip(&profiles).find(|(k, _)| **k == ProfileKind::Sync);
    assert_eq!(sync.unwrap().1, &(0, 0));
    let time = |of: fn(&ProcessorUse) -> f64| {
        let times = scheduling.processors.iter().map(|u| of(u) * u.length.as_nanos() as f64);
        times.sum::<f64>().round()
    };
    // On 2 processors, 100 ns before the loss and 100 after it.
    assert_eq!((time(|u| u.procs), time(|u| u.running)), (400.0, (90 + 20 + 70).into()));
}

/// At the end of a task that began before damage, the reader has neither its type nor its parent.
#[test]
fn a_task_that_spans_a_loss_keeps_its_type() {
    let event = |time, details: EventDetails<'_>| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        event.goroutine(GoId(2)).proc(ProcId(0)).thread(ThreadId(1)).build().unwrap()
    };
    let begin = Task::new(TaskId(5), TaskId(3), "job");
    let begin = event(40, EventDetails::TaskBegin(begin));
    let end = event(1_040, EventDetails::TaskEnd(Task::new(TaskId(5), TaskId::NONE, "")));
    for is_before in [false, true] {
        for mut summarizer in [
            Summarizer::new(),
            Summarizer::returning_tasks(),
            Summarizer::longest_tasks(1, Some("job".into())),
        ] {
            match is_before {
                true => summarizer.before(begin.as_event()),
                false => assert_eq!(summarizer.push(begin.as_event()), None),
            }
            summarizer.loss();
            let tasks = match summarizer.push(end.as_event()) {
                Some(Finished::Task(task)) => vec![*task],
                _ => summarizer.finish().tasks,
            };
            let task = tasks.iter().find(|task| task.id == TaskId(5)).unwrap();
            assert_eq!((task.name.to_string(), task.parent), ("job".to_owned(), Some(TaskId(3))));
            let start = (!is_before).then(|| Timestamp::from_nanos(40));
            assert_eq!((task.start, task.end), (start, Some(Timestamp::from_nanos(1_040))));
            assert_eq!(task.own, None);
        }
    }
}

/// The sync event before damage in the first generation has no time of the trace.
#[test]
fn the_time_of_a_damaged_trace_is_that_of_its_events() {
    let trace = common::recorded("go1.26-mixed.trace.gz");
    let index = Index::read(&trace[..]).unwrap();
    let first = index.generations().first().unwrap();
    let cut = &trace[..(first.offset + first.len / 2) as usize];
    let mut analyses = Analyses::new();
    assert!(analyses.read(cut, true), "it is damaged");
    let mut times: Vec<Timestamp> = Vec::new();
    common::recover(cut, &mut times, |times, event| times.push(event.time()), |_| {});
    let [no_time, start, .., end] = times[..] else { panic!("{times:?}") };
    assert!(no_time.nanos() == 1 && start.nanos() > 1, "{no_time} {start}");
    let (summary, scheduling, ..) = analyses.finish();
    assert_eq!(summary.span, Some((start, end)));
    assert_eq!(scheduling.processors.first().unwrap().start, start);
}

/// A thread of C that calls Go has one goroutine for all its calls.
#[test]
fn a_goroutine_whose_id_is_used_again_after_a_loss_keeps_its_times() {
    use GoState::{NotExist, Syscall, Undetermined};
    // Its end is lost where the loss is, or after it was mentioned again.
    for is_mentioned in [false, true] {
        let mut trace = Synthetic(Analyses::new());
        trace.go(0, 1, Undetermined, Syscall, "");
        trace.metric(100, Metric::HEAP_GOAL, 1);
        trace.0.loss();
        if is_mentioned {
            trace.go(150, 1, Undetermined, Syscall, "");
        }
        let transition = StateTransition::of_goroutine(GoId(1), NotExist, Syscall);
        let event = EventConfig::new(EventDetails::StateTransition(transition));
        let event = event.time(Timestamp::from_nanos(200)).thread(ThreadId(1)).build().unwrap();
        let replaced = match trace.0.summarizer.push(event.as_event()) {
            Some(Finished::Goroutine(replaced)) => replaced,
            other => panic!("{other:?}"),
        };
        trace.metric(230, Metric::HEAP_GOAL, 1);
        let ns = Duration::from_nanos;
        let known = ns(100 + if is_mentioned { 50 } else { 0 });
        let syscall = |times: &gotrace::analysis::Times| times.syscall + times.syscall_blocked;
        assert_eq!((replaced.id, replaced.end), (GoId(1), None));
        assert_eq!((syscall(&replaced.times), replaced.created.nanos()), (known, 0));
        let (summary, ..) = trace.0.finish();
        let [next] = &summary.goroutines[..] else { panic!("{:?}", summary.goroutines) };
        assert_eq!((next.created.nanos(), syscall(&next.times)), (200, ns(30)));
    }
}

/// The end of a region that was open at a loss has the times since the goroutine is mentioned again.
#[test]
fn regions_that_a_loss_cuts_off_count_from_where_the_trace_resumes() {
    use GoState::{NotExist, Runnable, Running, Waiting};
    let mut trace = Synthetic(Analyses::new());
    let mut regions = Vec::new();
    trace.go(0, 1, NotExist, Runnable, "");
    trace.go(100, 1, Runnable, Running, "");
    trace.go(200, 1, Running, Waiting, "chan receive");
    trace.go(300, 1, Waiting, Runnable, "");
    trace.go(300, 1, Runnable, Running, "");
    let task = || Task::new(TaskId(5), TaskId::NONE, "job");
    trace.emit(400, 1, EventDetails::TaskBegin(task()));
    for time in [410, 420] {
        trace.emit(time, 1, EventDetails::RegionBegin(Region::new(TaskId(5), "step")));
    }
    trace.0.loss();
    trace.metric(1_000, Metric::HEAP_GOAL, 1);
    trace.go(1_010, 1, Running, Running, "");
    trace.go(1_020, 1, Running, Waiting, "chan receive");
    trace.go(1_050, 1, Waiting, Runnable, "");
    trace.go(1_060, 1, Runnable, Running, "");
    // The two that were open, and one that began in the lost part.
    for time in [1_070, 1_080, 1_090] {
        let region = EventDetails::RegionEnd(Region::new(TaskId(5), "step"));
        let event = EventConfig::new(region).time(Timestamp::from_nanos(time));
        let event = event.goroutine(GoId(1)).proc(ProcId(0)).thread(ThreadId(1)).build().unwrap();
        match trace.0.summarizer.push(event.as_event()) {
            Some(Finished::Region(region)) => regions.push(*region),
            other => panic!("{other:?}"),
        }
    }
    let ns = Duration::from_nanos;
    for (region, end) in regions.iter().zip([1_070, 1_080, 1_090]) {
        assert_eq!(region.start, None);
        assert_eq!(region.counted_from(), Timestamp::from_nanos(1_000));
        let times = &region.times;
        assert_eq!((times.total, times.blocked_total()), (ns(end - 1_000), ns(30)));
        assert_eq!((times.runnable, times.running), (ns(10), ns(end - 1_000 - 40)));
    }
    // Delays before the loss are not those of the regions.
    let mut scope = ProfileScope::all();
    regions.iter().for_each(|region| scope.add_region(region));
    let mut profile = Profile::new(ProfileKind::Scheduler, scope);
    for (time, from, to) in [
        (0, NotExist, Runnable),
        (100, Runnable, Running),
        (1_020, Running, Waiting),
        (1_050, Waiting, Runnable),
        (1_060, Runnable, Running),
    ] {
        let transition = StateTransition::of_goroutine(GoId(1), from, to);
        let event = EventConfig::new(EventDetails::StateTransition(transition));
        let event = event.time(Timestamp::from_nanos(time)).build().unwrap();
        profile.push(event.as_event());
    }
    assert_eq!(profile.stacks().map(|(delay, _)| delay.time).sum::<Duration>(), ns(10));
    let (summary, ..) = trace.0.finish();
    let task = summary.tasks.iter().find(|task| task.id == TaskId(5)).unwrap();
    assert_eq!(task.regions, 3);
    assert_eq!(summary.goroutines.first().unwrap().times.total, ns(1_090), "all of its life");
}

#[test]
fn the_gc_is_not_active_after_a_loss() {
    let mut trace = Synthetic(Analyses::new());
    trace.metric(0, Metric::GOMAXPROCS, 1);
    let stop = || Range::new(RangeName::StopTheWorld("GC mark termination".into()), GoId(7));
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
    trace.emit(100, 7, EventDetails::RangeBegin(Range::new(RangeName::GcMark, ResourceId::None)));
    trace.emit(150, 7, EventDetails::RangeBegin(assist()));
    trace.emit(200, 7, EventDetails::RangeBegin(stop()));
    trace.0.loss();
    trace.metric(1_000, Metric::HEAP_OBJECTS, 1);
    trace.emit(1_100, 7, EventDetails::RangeActive(assist()));
    trace.emit(1_200, 7, EventDetails::RangeEnd(assist()));
    trace.metric(2_000, Metric::HEAP_GOAL, 1);
    let curve = trace.0.utilization.finish();
    let function: Vec<_> = curve.functions().next().unwrap().to_vec();
    let at = |nanos, value| (Timestamp::from_nanos(nanos), value);
    let expected = [at(0, 1.0), at(150, 0.0), at(200, 1.0), at(1_100, 0.0), at(1_200, 1.0)];
    assert_eq!(function[..5], expected);
    assert_eq!(function[5..], [at(2_000, 0.0)]);
    let report = trace.0.collections.finish();
    // Up to the last event before the loss, and from the first one after it.
    let ns = Duration::from_nanos;
    assert_eq!((report.cut, report.assists), (1, ns(50 + 200)));
    let [lost, next] = &report.cycles[..] else { panic!("{:?}", report.cycles) };
    assert_eq!((lost.start, lost.end), (Some(Timestamp::from_nanos(100)), None));
    assert_eq!((lost.assists, lost.assist_count), (ns(50), 1));
    assert_eq!((next.start, next.assists, next.assist_count), (None, ns(200), 1));
}

/// A loss ends what is known since the one before. (Unit tests count what it visits.)
#[test]
fn losses_end_the_states_of_all_goroutines_once() {
    const COUNT: i64 = 1_000;
    let request = Request::of_goroutine(GoId(1), Timestamp::MIN, Timestamp::MAX);
    let mut paths = CriticalPaths::new(vec![request]);
    let mut requests = Requests::new(RequestFilter::All, 1);
    let mut summarizer = Summarizer::new();
    let mut emit = |time, id, details: EventDetails<'_>| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        let event = event.goroutine(GoId(id)).proc(ProcId(id)).thread(ThreadId(0)).build().unwrap();
        paths.push(event.as_event());
        requests.push(event.as_event());
        summarizer.push(event.as_event());
        if time >= COUNT {
            paths.loss();
            requests.loss();
            summarizer.loss();
        }
    };
    let state = |id| {
        let (from, to) = (GoState::Undetermined, GoState::Running);
        EventDetails::StateTransition(StateTransition::of_goroutine(GoId(id), from, to))
    };
    for id in 1..COUNT {
        emit(id, -1, state(id));
        let region = Region::new(TaskId::BACKGROUND, "r");
        emit(id, id, EventDetails::RegionBegin(region));
    }
    for time in 0..COUNT {
        emit(COUNT + time, -1, state(1 + time % 2));
    }
    let summary = summarizer.finish();
    assert_eq!(summary.goroutines.len() as i64, COUNT - 1);
    let path = paths.finish().pop().unwrap();
    let runs = path.pieces.iter().filter(|piece| piece.what == PathState::Running).count();
    assert_eq!(runs as i64, 1, "the states after a loss take no time");
}
