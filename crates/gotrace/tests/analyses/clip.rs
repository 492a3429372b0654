//! Analyses of ranges of time: those of consecutive ranges sum to that of all of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use crate::common;
use gotrace::analysis::{
    Clip, Clipped, Finished, GcCycles, Goroutine, Scheduling, SchedulingOptions, SchedulingReport,
    Summarizer, Times, Utilization, UtilizationOptions,
};
use gotrace::parallel::Split;
use gotrace::synthetic::{EventConfig, EventDetails, SyncDetails};
use gotrace::{
    Event, EventKind, GoId, GoState, Index, Log, Metric, OwnedEvent, ProcId, Range, RangeName,
    Reader, ResourceId, StateTransition, Task, TaskId, ThreadId, Timestamp,
};
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, HashSet};
use std::io::Cursor;
use std::time::Duration;

/// The times of the first and the last event.
fn span(trace: &[u8]) -> (Timestamp, Timestamp) {
    let mut span = None;
    common::events_of(trace, |event| {
        span = Some((span.map_or(event.time(), |(first, _)| first), event.time()));
    });
    span.unwrap()
}

/// Passes the events of a range on.
fn clip(trace: &[u8], from: Timestamp, to: Timestamp, each: &mut impl FnMut(Event<'_>)) {
    let mut clip = Clip::new(from, to);
    let mut reader = Reader::new(trace).unwrap();
    while let Some(event) = reader.next_event().unwrap() {
        clip.push(event, each);
        if clip.is_complete() {
            break;
        }
    }
    clip.finish(each);
}

/// Nanoseconds by goroutine and state.
type Sums = BTreeMap<(GoId, String), u128>;

fn add(sums: &mut Sums, goroutine: &Goroutine) {
    let times = &goroutine.times;
    let of = [
        ("running", times.running),
        ("runnable", times.runnable),
        ("syscall", times.syscall),
        ("syscall without a P", times.syscall_blocked),
    ];
    let of = of.into_iter().map(|(state, time)| (state.to_owned(), time));
    let blocked = times.blocked().map(|(reason, time)| (format!("blocked: {reason}"), time));
    for (state, time) in of.chain(blocked).filter(|(_, time)| !time.is_zero()) {
        *sums.entry((goroutine.id, state)).or_default() += time.as_nanos();
    }
}

fn sums(trace: &[u8], from: Timestamp, to: Timestamp, sums: &mut Sums) {
    let mut summarizer = Summarizer::new();
    clip(trace, from, to, &mut |event| {
        if let Some(Finished::Goroutine(goroutine)) = summarizer.push(event) {
            add(sums, &goroutine);
        }
    });
    for goroutine in summarizer.finish().goroutines {
        let within = goroutine.times.total <= to - from;
        assert!(within, "{} has {:?}", goroutine.id, goroutine.times.total);
        add(sums, &goroutine);
    }
}

/// The same of a summarizer that sees the whole trace.
fn sums_between(trace: &[u8], from: Timestamp, to: Timestamp, sums: &mut Sums) {
    let mut summarizer = Summarizer::new().between(from, to);
    let mut check = |goroutine: &Goroutine| {
        let ended = goroutine.end.unwrap_or(to);
        assert!(from <= goroutine.created && ended <= to, "{goroutine:?}");
        add(sums, goroutine);
    };
    common::events_of(trace, |event| {
        if let Some(Finished::Goroutine(goroutine)) = summarizer.push(event) {
            check(&goroutine);
        }
    });
    summarizer.finish().goroutines.iter().for_each(check);
}

fn scheduling(trace: &[u8], from: Timestamp, to: Timestamp) -> SchedulingReport {
    let mut scheduling = Scheduling::new(SchedulingOptions::default());
    clip(trace, from, to, &mut |event| scheduling.push(event));
    scheduling.finish()
}

fn busy(report: &SchedulingReport) -> [f64; 4] {
    let mut sums = [0.0; 4];
    for each in &report.processors {
        let length = each.length.as_secs_f64();
        // A worker of the GC is one from its label on, which may be after the cut.
        let of = [each.procs, each.running + each.gc, each.syscall, each.runnable];
        sums.iter_mut().zip(of).for_each(|(sum, value)| *sum += value * length);
    }
    sums
}

/// The integral of the mutator utilization.
fn utilization(trace: &[u8], from: Timestamp, to: Timestamp) -> f64 {
    let mut options = UtilizationOptions::default();
    options.background = true;
    let mut utilization = Utilization::new(options);
    clip(trace, from, to, &mut |event| utilization.push(event));
    let minimum = utilization.finish();
    let area = |changes: &[(Timestamp, f64)]| -> f64 {
        changes.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs_f64() * pair[0].1).sum()
    };
    minimum.functions().map(area).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn consecutive_ranges_sum_to_the_whole(name in select(common::names().collect::<Vec<_>>()), at in 0.0..1.0_f64) {
        let trace = common::recorded(name);
        let (first, last) = span(&trace);
        let middle = first.saturating_add_nanos((last.nanos_since(first) as f64 * at) as i64);
        let (mut whole, mut parts) = (Sums::new(), Sums::new());
        sums(&trace, first, last, &mut whole);
        sums(&trace, first, middle, &mut parts);
        sums(&trace, middle, last, &mut parts);
        let missing = whole.iter().find(|(key, time)| parts.get(key) != Some(time));
        prop_assert!(missing.is_none(), "{missing:?}, {:?}", missing.map(|(key, _)| parts.get(key)));
        prop_assert_eq!(whole.len(), parts.len());
        let mut parts = Sums::new();
        sums_between(&trace, first, middle, &mut parts);
        sums_between(&trace, middle, last, &mut parts);
        prop_assert_eq!(&whole, &parts);

        let all = scheduling(&trace, first, last);
        let halves = [scheduling(&trace, first, middle), scheduling(&trace, middle, last)];
        let (of_all, a, b) = (busy(&all), busy(&halves[0]), busy(&halves[1]));
        // A part that ends before the trace mentions GOMAXPROCS does not have it.
        let known = usize::from(a[0] == 0.0 || name == common::V1);
        for ((all, a), b) in of_all.into_iter().zip(a).zip(b).skip(known) {
            prop_assert!((all - a - b).abs() < 1e-7, "{all} is not {a} + {b}");
        }
        // A wait that the cut divides is in neither.
        let count = halves.iter().map(|half| half.latency.count()).sum::<u64>();
        prop_assert!(count <= all.latency.count());
    }
}

#[test]
fn utilization_within_a_range_is_that_of_the_whole() {
    for name in ["go1.26-collections.trace.gz", "shop.trace", "go1.25-mixed.trace.gz"] {
        let trace = common::recorded(name);
        let (first, last) = span(&trace);
        let whole = utilization(&trace, first, last);
        for part in 1..8 {
            let middle = first.saturating_add_nanos(last.nanos_since(first) / 8 * part);
            let sum = utilization(&trace, first, middle) + utilization(&trace, middle, last);
            assert!((whole - sum).abs() < 1e-6, "{name}, part {part}: {whole} is not {sum}");
        }
    }
}

/// Emits events of goroutine 7 on P 0.
fn synthetic(time: i64, details: EventDetails<'_>) -> OwnedEvent {
    let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
    event.goroutine(GoId(7)).proc(ProcId(0)).thread(ThreadId(1)).build().unwrap()
}

fn sync(time: i64, n: u64) -> OwnedEvent {
    synthetic(time, EventDetails::Sync(SyncDetails { n, ..SyncDetails::default() }))
}

fn clip_events(events: &[OwnedEvent], (from, to): (i64, i64), each: &mut impl FnMut(Event<'_>)) {
    let mut clip = Clip::new(Timestamp::from_nanos(from), Timestamp::from_nanos(to));
    events.iter().for_each(|event| clip.push(event.as_event(), each));
    clip.finish(each);
}

fn goroutine(time: i64, from: GoState, to: GoState) -> OwnedEvent {
    let transition = StateTransition::of_goroutine(GoId(7), from, to);
    synthetic(time, EventDetails::StateTransition(transition))
}

fn procs(time: i64, count: u64) -> OwnedEvent {
    synthetic(time, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, count)))
}

/// Analyses a range of events with a loss between them.
fn clip_with_loss<A>(
    [before, after]: [&[OwnedEvent]; 2],
    (from, to): (i64, i64),
    analysis: &mut A,
    (event, loss): (impl Fn(&mut A, Event<'_>), fn(&mut A)),
) {
    let mut clip = Clip::new(Timestamp::from_nanos(from), Timestamp::from_nanos(to));
    let each = |clip: &mut Clip, events: &[OwnedEvent], analysis: &mut A| {
        for each in events {
            clip.push(each.as_event(), &mut |each| event(analysis, each));
        }
    };
    each(&mut clip, before, analysis);
    clip.loss();
    if clip.is_within() {
        loss(analysis);
    }
    each(&mut clip, after, analysis);
    clip.finish(&mut |each| event(analysis, each));
}

/// The generation continues after the loss, and mentions `GOMAXPROCS` at its start only.
#[test]
fn a_range_begins_with_what_is_known_since_a_loss() {
    use GoState::{Runnable, Running, Undetermined, Waiting};
    let before = [sync(0, 1), procs(1, 4), goroutine(5, Undetermined, Running)];
    let after = [
        goroutine(15, Running, Running),
        goroutine(20, Running, Waiting),
        goroutine(60, Waiting, Runnable),
        goroutine(70, Runnable, Running),
        synthetic(100, EventDetails::Metric(Metric::new(Metric::HEAP_GOAL, 1_u64))),
    ];
    let mut first = Vec::new();
    let keep = |found: &mut Vec<_>, event: Event<'_>| {
        let state = event.state_transition().and_then(|change| change.goroutine());
        let metric = event.metric().and_then(|metric| metric.value.as_u64());
        found.push((event.time().nanos(), event.kind(), state, metric));
    };
    clip_with_loss([&before, &after], (30, 100), &mut first, (keep, |_| {}));
    first.retain(|(time, ..)| *time == 30);
    let is_there = |kind, state, metric| first.contains(&(30, kind, state, metric));
    assert!(is_there(EventKind::Sync, None, None), "{first:?}");
    assert!(is_there(EventKind::Metric, None, Some(4)), "{first:?}");
    let waits = Some((Undetermined, Waiting));
    assert!(is_there(EventKind::StateTransition, waits, None), "{first:?}");

    // Running and waiting, and the time of the Ps, also where the range begins before the first event
    // after the loss. The loss is from 5 to 15.
    let of = |from, to| {
        let mut summarizer = Summarizer::new();
        let event = |summarizer: &mut Summarizer, event: Event<'_>| _ = summarizer.push(event);
        let events = [&before[..], &after];
        clip_with_loss(events, (from, to), &mut summarizer, (event, Summarizer::loss));
        let summary = summarizer.finish();
        let times = summary.goroutines.first().map(|one| &one.times);
        let [running, waiting] = [times.map(|t| t.running), times.map(Times::blocked_total)]
            .map(|time| time.unwrap_or_default().as_nanos() as f64);
        let mut scheduling = Scheduling::new(SchedulingOptions::default());
        clip_with_loss(events, (from, to), &mut scheduling, (Scheduling::push, Scheduling::loss));
        let [procs, ..] = busy(&scheduling.finish());
        [running, waiting, (procs * 1e9).round()]
    };
    let whole = of(0, 100);
    assert_eq!(whole, [5.0 + 5.0 + 30.0, 40.0, 4.0 * 90.0]);
    for at in (2..100).step_by(3) {
        let (a, b) = (of(0, at), of(at, 100));
        assert_eq!([a[0] + b[0], a[1] + b[1], a[2] + b[2]], whole, "divided at {at}");
    }

    let mut utilization = Utilization::new(UtilizationOptions::default());
    let analysis = (Utilization::push, Utilization::loss as fn(&mut Utilization));
    clip_with_loss([&before, &after], (30, 100), &mut utilization, analysis);
    assert_eq!(utilization.finish().functions().count(), 1, "it has GOMAXPROCS");
}

#[test]
fn a_range_begins_with_the_heap_since_a_loss() {
    let mark = || Range::new(RangeName::GcMark, ResourceId::None);
    let heap = Metric::new(Metric::HEAP_OBJECTS, 1000_u64);
    let before = [sync(0, 1), procs(1, 4)];
    let after = [
        synthetic(10, EventDetails::Metric(heap)),
        synthetic(20, EventDetails::RangeBegin(mark())),
        synthetic(40, EventDetails::RangeEnd(mark())),
        procs(60, 4),
    ];
    let after_cycle = |from, to| {
        let mut cycles = GcCycles::new(1);
        let analysis = (GcCycles::push, GcCycles::loss as fn(&mut GcCycles));
        clip_with_loss([&before, &after], (from, to), &mut cycles, analysis);
        cycles.finish().cycles.iter().map(|cycle| cycle.heap_after).collect::<Vec<_>>()
    };
    assert_eq!(after_cycle(0, 60), [Some(1000)]);
    assert_eq!(after_cycle(30, 60), [Some(1000)]);
}

/// Counts the losses and the goroutines.
#[derive(Default)]
struct Counts {
    losses: u32,
    goroutines: u32,
}

impl Split for Counts {
    fn push(&mut self, event: Event<'_>) {
        self.losses += u32::from(event.sync().is_some_and(|sync| sync.restarts()));
        self.goroutines += u32::from(event.kind() == EventKind::StateTransition);
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self::default()
    }

    fn join(&mut self, _part: Self) {}

    fn loss(&mut self) {
        self.losses += 1;
    }
}

/// A first generation that cannot be read as a whole: what follows is after a loss.
#[test]
fn a_loss_before_the_first_event_concerns_each_range() {
    use GoState::Waiting;
    let events = [sync(10, 1), goroutine(40, Waiting, Waiting), procs(60, 1)];
    for range in [(10, 60), (10, 20), (20, 60), (50, 60)] {
        let (from, to) = (Timestamp::from_nanos(range.0), Timestamp::from_nanos(range.1));
        let mut clipped = Clipped::new(from, to, Counts::default());
        clipped.loss();
        events.iter().for_each(|event| Split::push(&mut clipped, event.as_event()));
        let counts = clipped.finish();
        assert_eq!((counts.losses, counts.goroutines), (1, 1), "{range:?}");
    }
}

/// A task that is open where the range begins is one of the range, whatever happens in it.
#[test]
fn tasks_that_the_range_is_within_are_known() {
    let task = |id, parent| Task::new(TaskId(id), TaskId(parent), "job");
    let begin = |time, id, parent| synthetic(time, EventDetails::TaskBegin(task(id, parent)));
    let end = |time, id| synthetic(time, EventDetails::TaskEnd(task(id, u64::MAX)));
    let log = |time, id| synthetic(time, EventDetails::Log(Log::new(TaskId(id), "", "late")));
    let events = [
        sync(0, 1),
        begin(10, 1, u64::MAX),
        begin(20, 2, 9),
        begin(30, 3, 8),
        end(40, 3),
        end(50, 4), // began before the trace
        log(110, 3),
        log(120, 4),
        begin(130, 5, u64::MAX),
        end(300, 1),
        end(310, 2),
    ];
    let (from, to) = (Timestamp::from_nanos(100), Timestamp::from_nanos(200));
    for summarizer in [Summarizer::returning_tasks(), Summarizer::longest_tasks(10, None)] {
        let (mut summarizer, mut clip) = (summarizer, Clip::new(from, to));
        for event in &events {
            let event = event.as_event();
            if event.time() < from {
                summarizer.before(event);
            }
            clip.push(event, &mut |event| _ = summarizer.push(event));
        }
        clip.finish(&mut |event| _ = summarizer.push(event));
        let tasks = summarizer.finish().tasks;
        let of = |task: &gotrace::analysis::Task| {
            let (name, parent) = (task.name.to_string(), task.parent.map(|parent| parent.0));
            (task.id.0, name, parent, task.start.map(Timestamp::nanos), task.goroutines.len())
        };
        let job = || "job".to_owned();
        let expected = [
            (1, job(), None, None, 1),
            (2, job(), Some(9), None, 1),
            (5, job(), None, Some(130), 1),
            (9, String::new(), None, None, 0),
        ];
        assert_eq!(tasks.iter().map(of).collect::<Vec<_>>(), expected);
    }
}

/// A part of a task can be open after its end.
#[test]
fn a_parent_that_ended_before_the_range_is_no_task_of_it() {
    let task = |id, parent| Task::new(TaskId(id), TaskId(parent), "request");
    let begin = |time, id, parent| synthetic(time, EventDetails::TaskBegin(task(id, parent)));
    let end = |time, id| synthetic(time, EventDetails::TaskEnd(task(id, u64::MAX)));
    let before = |again: bool| {
        let mut events = vec![begin(10, 1, u64::MAX), begin(20, 2, 1), end(30, 1)];
        // The identifier is used again.
        events.extend(again.then(|| begin(40, 1, u64::MAX)));
        events
    };
    let all = [Summarizer::new, Summarizer::returning_tasks, || Summarizer::longest_tasks(9, None)];
    for (summarizer, again) in all.into_iter().flat_map(|new| [(new(), false), (new(), true)]) {
        let mut summarizer = summarizer;
        before(again).iter().for_each(|event| summarizer.before(event.as_event()));
        summarizer.push(sync(100, 1).as_event());
        let tasks = summarizer.finish().tasks;
        let found: Vec<_> = tasks.iter().map(|task| (task.id.0, task.name.to_string())).collect();
        let expected: &[u64] = if again { &[1, 2] } else { &[2] };
        let expected: Vec<_> = expected.iter().map(|id| (*id, "request".to_owned())).collect();
        assert_eq!(found, expected);
    }
}

/// The generation in which an activity is mentioned again is not the first one, nor is it where the
/// activity began.
#[test]
fn an_activity_of_several_generations_counts_from_the_start_of_the_range() {
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
    let events = [
        sync(0, 1),
        synthetic(1, EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, 1_u64))),
        synthetic(
            50,
            EventDetails::StateTransition(StateTransition::of_goroutine(
                GoId(7),
                GoState::Undetermined,
                GoState::Running,
            )),
        ),
        synthetic(100, EventDetails::RangeBegin(assist())),
        sync(200, 2),
        synthetic(210, EventDetails::RangeActive(assist())),
        synthetic(400, EventDetails::RangeEnd(assist())),
        synthetic(500, EventDetails::Metric(Metric::new(Metric::HEAP_GOAL, 1_u64))),
    ];
    let mut utilization = Utilization::new(UtilizationOptions::default());
    clip_events(&events, (300, 500), &mut |event| utilization.push(event));
    let curve = utilization.finish();
    let function: Vec<_> =
        curve.functions().next().unwrap().iter().map(|(at, u)| (at.nanos(), *u)).collect();
    assert_eq!(function, [(300, 0.0), (400, 1.0), (500, 0.0)]);
}

/// It has been active since the start of the generation.
#[test]
fn an_activity_that_is_mentioned_after_the_range_counts_in_it() {
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(7));
    let sweep = || Range::new(RangeName::GcSweep, ProcId(0));
    let events = [
        sync(0, 1),
        procs(1, 1),
        goroutine(900, GoState::Undetermined, GoState::Waiting),
        synthetic(900, EventDetails::RangeActive(assist())),
        synthetic(900, EventDetails::RangeActive(sweep())),
        synthetic(950, EventDetails::RangeEnd(assist())),
        synthetic(950, EventDetails::RangeEnd(sweep())),
        procs(1_000, 1),
    ];
    let of = |from, to| {
        let mut collections = GcCycles::new(5);
        clip_events(&events, (from, to), &mut |event| collections.push(event));
        let report = collections.finish();
        [report.assists, report.sweep].map(|time| time.as_nanos())
    };
    assert_eq!(of(0, 1_000), [950; 2]);
    assert_eq!(of(0, 100), [100; 2]);
    assert_eq!(of(100, 1_000), [850; 2]);
}

#[test]
fn a_stop_of_the_world_that_began_before_the_range_is_cut() {
    let stop = || Range::new(RangeName::StopTheWorld("GC mark termination".into()), GoId(7));
    let events = [
        sync(0, 1),
        synthetic(100, EventDetails::RangeBegin(stop())),
        synthetic(300, EventDetails::RangeEnd(stop())),
        synthetic(400, EventDetails::RangeBegin(stop())),
        synthetic(450, EventDetails::RangeEnd(stop())),
    ];
    for (range, expected) in [((0, 500), (2, 0)), ((200, 500), (1, 1)), ((0, 200), (0, 1))] {
        let mut collections = GcCycles::new(5);
        clip_events(&events, range, &mut |event| collections.push(event));
        let report = collections.finish();
        let count = report.pauses.iter().map(|(_, pauses)| pauses.count()).sum::<u64>();
        assert_eq!((count, report.cut), expected, "{range:?}");
    }
}

/// Sweeping follows a mark phase: alone it is of none in the range.
#[test]
fn collections_of_consecutive_ranges_sum_to_the_whole() {
    let of = |trace: &[u8], from, to| {
        let mut collections = GcCycles::new(5);
        clip(trace, from, to, &mut |event| collections.push(event));
        let report = collections.finish();
        for cycle in &report.cycles {
            let is_seen = cycle.start.is_some() || cycle.end.is_some() || cycle.assist_count > 0;
            assert!(is_seen || cycle.heap_after.is_none(), "{cycle:?}");
            assert!(cycle.start.is_some() || cycle.heap_before.is_none(), "{cycle:?}");
        }
        (report.assists, report.sweep)
    };
    for name in ["go1.26-collections.trace.gz", "shop.trace", "go1.25-mixed.trace.gz"] {
        let trace = common::recorded(name);
        let (first, last) = span(&trace);
        let whole = of(&trace, first, last);
        for part in 1..32 {
            let middle = first.saturating_add_nanos(last.nanos_since(first) / 32 * part);
            let (a, b) = (of(&trace, first, middle), of(&trace, middle, last));
            assert_eq!(whole, (a.0 + b.0, a.1 + b.1), "{name}, part {part}");
        }
    }
}

#[test]
fn a_range_needs_only_its_generations() {
    for name in ["go1.25-mixed.trace.gz", "go1.26-mixed.trace.gz", "go1.26-collections.trace.gz"] {
        let trace = common::recorded(name);
        let index = Index::read(&trace[..]).unwrap();
        let (first, last) = span(&trace);
        let at = |eighths: i64| first.saturating_add_nanos(last.nanos_since(first) / 8 * eighths);
        let (from, to) = (at(5), at(6));
        let mut all = Sums::new();
        sums(&trace, from, to, &mut all);
        let mut some = Sums::new();
        let mut part = Vec::new();
        let generations = index.select(from, to);
        assert!(!generations.is_empty());
        index.copy(Cursor::new(&trace), generations, &mut part).unwrap();
        sums(&part, from, to, &mut some);
        let of = |sums: &Sums| -> BTreeMap<(GoId, bool), u128> {
            // A generation does not say why a goroutine waits that waits since an earlier one.
            let mut waits = BTreeMap::new();
            for ((id, state), time) in sums {
                *waits.entry((*id, state.starts_with("blocked"))).or_default() += time;
            }
            waits
        };
        let (all, some) = (of(&all), of(&some));
        let missing = all.iter().find(|(key, time)| some.get(key) != Some(time));
        assert!(missing.is_none() && all.len() == some.len(), "{name}: {missing:?}");
    }
}

#[test]
fn a_range_without_events_has_the_states_of_its_time() {
    let trace = common::recorded("shop.trace");
    let (first, last) = span(&trace);
    let from = first.saturating_add_nanos(last.nanos_since(first) / 2);
    let mut summarizer = Summarizer::new();
    clip(&trace, from, from, &mut |event| _ = summarizer.push(event));
    let goroutines = summarizer.finish().goroutines;
    assert!(goroutines.len() > 5);
    assert!(goroutines.iter().all(|goroutine| goroutine.times.total == Duration::ZERO));
    assert!(goroutines.iter().filter(|goroutine| goroutine.entry.is_some()).count() > 5);
}

/// The states of a range of a damaged trace.
fn sums_of_damaged(trace: &[u8], from: Timestamp, to: Timestamp, sums: &mut Sums) {
    let mut event = |summarizer: &mut Summarizer, event: Event<'_>| {
        if let Some(Finished::Goroutine(goroutine)) = summarizer.push(event) {
            add(sums, &goroutine);
        }
    };
    let mut clipped = (Clip::new(from, to), Summarizer::new());
    common::recover(
        trace,
        &mut clipped,
        |(clip, summarizer), next| clip.push(next, &mut |next| event(summarizer, next)),
        |(clip, summarizer)| {
            clip.loss();
            if clip.is_within() {
                summarizer.loss();
            }
        },
    );
    let (mut clip, mut summarizer) = clipped;
    clip.finish(&mut |next| event(&mut summarizer, next));
    summarizer.finish().goroutines.iter().for_each(|goroutine| add(sums, goroutine));
    // A goroutine of a thread of C begins in a system call that has no P, and that counts as one with a P.
    // If the end of the call is lost, a range can begin in it.
    let calls: Vec<_> =
        sums.keys().filter(|(_, state)| state == "syscall without a P").cloned().collect();
    for key in calls {
        let time = sums.remove(&key).unwrap();
        *sums.entry((key.0, "syscall".to_owned())).or_default() += time;
    }
}

/// The goroutines that a damaged trace mentions as they are after it had them end in the same generation,
/// or block forever in any: wrong bytes made an event one of another goroutine, or changed a reason. Since
/// when they are in that state has no answer.
fn contradicted(trace: &[u8]) -> HashSet<GoId> {
    #[derive(Default)]
    struct Seen {
        ended: HashSet<GoId>,
        blocked: HashSet<GoId>,
        found: HashSet<GoId>,
    }
    let mut seen = Seen::default();
    let event = |seen: &mut Seen, event: Event<'_>| {
        if event.kind() == EventKind::Sync {
            seen.ended.clear();
        }
        let Some(transition) = event.state_transition() else { return };
        let (Some(id), Some((from, to))) =
            (transition.resource().goroutine(), transition.goroutine())
        else {
            return;
        };
        if to == GoState::NotExist {
            seen.ended.insert(id);
        } else if from != to && *transition.reason() == *b"forever" {
            seen.blocked.insert(id);
        } else if from == GoState::Undetermined || from == to {
            let is_over = seen.ended.contains(&id) || seen.blocked.contains(&id);
            seen.found.extend(is_over.then_some(id));
        }
    };
    common::recover(trace, &mut seen, event, |seen| seen.ended.clear());
    seen.found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn consecutive_ranges_of_a_damaged_trace_sum_to_the_whole(
        name in select(&common::V2[..]),
        flips in common::flips(),
        share in 0.0..1.0_f64,
    ) {
        let mut trace = common::recorded(name);
        let (first, last) = span(&trace);
        let middle = first.saturating_add_nanos((last.nanos_since(first) as f64 * share) as i64);
        common::flip(&mut trace, &flips);
        let (mut whole, mut parts) = (Sums::new(), Sums::new());
        sums_of_damaged(&trace, first, last, &mut whole);
        sums_of_damaged(&trace, first, middle, &mut parts);
        sums_of_damaged(&trace, middle, last, &mut parts);
        let contradicted = contradicted(&trace);
        for sums in [&mut whole, &mut parts] {
            sums.retain(|(id, _), _| !contradicted.contains(id));
        }
        let other = whole.iter().find(|(key, time)| parts.get(key) != Some(time));
        prop_assert!(other.is_none(), "{other:?}, {:?}", other.map(|(key, _)| parts.get(key)));
        let more = parts.iter().find(|(key, time)| whole.get(key) != Some(time));
        prop_assert!(more.is_none(), "{more:?}, {:?}", more.map(|(key, _)| whole.get(key)));
    }

    /// In a damaged trace, no time within a range is longer than the range.
    #[test]
    fn damaged_traces_are_restricted(
        name in select(&common::V2[..]), // v1 traces are checked before their events are returned
        flips in common::flips(),
        share in 0.0..1.0_f64,
    ) {
        let mut trace = common::recorded(name);
        let (first, last) = span(&trace);
        let from = first.saturating_add_nanos((last.nanos_since(first) as f64 * share) as i64);
        common::flip(&mut trace, &flips);
        let mut clip = Clip::new(from, last);
        let mut summarizer = Summarizer::new();
        let mut each = |event: Event<'_>| {
            prop_assert_eq!(event.time().clamp(from, last), event.time());
            summarizer.push(event);
            Ok(())
        };
        let mut outcome = Ok(());
        let event = |clip: &mut Clip, event: Event<'_>| {
            clip.push(event, &mut |event| {
                outcome = std::mem::replace(&mut outcome, Ok(())).and_then(|()| each(event));
            });
        };
        common::recover(&trace, &mut clip, event, Clip::loss);
        clip.finish(&mut |event| {
            outcome = std::mem::replace(&mut outcome, Ok(())).and_then(|()| each(event));
        });
        outcome?;
        for goroutine in summarizer.finish().goroutines {
            prop_assert!(goroutine.times.total <= last - from);
        }
    }
}
