//! Critical paths: known ones of a short history, and those of recorded and damaged traces, whose
//! pieces sum to the duration.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use crate::common;
use GoState::{NotExist, Runnable, Running, Waiting};
use gotrace::analysis::{
    CriticalPath, CriticalPaths, Occupant, PathPiece, PathState, RangeKind, Request, RequestFilter,
    RequestKind, Requests,
};
use gotrace::synthetic::{EventConfig, EventDetails};
use gotrace::{
    GoId, GoState, Metric, ProcId, ProcState, Range, RangeName, Reader, Region, ResourceId,
    StateTransition, Task, TaskId, ThreadId, Timestamp,
};
use proptest::prelude::*;
use proptest::sample::select;
use std::time::Duration;

fn requests(trace: &[u8], filter: RequestFilter) -> Vec<Request> {
    let mut requests = Requests::new(filter, usize::MAX);
    common::recover(trace, &mut requests, Requests::push, Requests::loss);
    requests.finish()
}

fn paths(trace: &[u8], requests: Vec<Request>) -> Vec<CriticalPath> {
    let mut paths = CriticalPaths::new(requests);
    common::recover(trace, &mut paths, CriticalPaths::push, CriticalPaths::loss);
    assert_eq!(paths.dropped(), 0);
    paths.finish()
}

fn check(path: &CriticalPath) {
    let mut at = path.request.start;
    for piece in &path.pieces {
        assert_eq!(piece.start, at, "{:?}", path.request);
        assert!(piece.end > piece.start, "{piece:?}");
        assert_eq!(piece.depth > 0, piece.waiter.is_some(), "{piece:?}");
        at = piece.end;
    }
    assert_eq!(at, path.request.end, "{:?}", path.request);
}

#[test]
fn the_pieces_of_each_task_region_and_goroutine_are_its_duration() {
    for (name, trace) in common::traces() {
        let mut goroutines = Vec::new();
        common::recover(
            &trace,
            &mut goroutines,
            |goroutines, event| {
                let resource = event.state_transition().map(|transition| transition.resource());
                if let Some(ResourceId::Goroutine(id)) = resource {
                    if !goroutines.contains(&id) && goroutines.len() < 100 {
                        goroutines.push(id);
                    }
                }
            },
            |_| (),
        );
        let mut all = requests(&trace, RequestFilter::All);
        let tasks_and_regions = all.len();
        for id in goroutines {
            all.extend(requests(&trace, RequestFilter::Goroutine(id)));
        }
        assert!(all.len() > tasks_and_regions, "{name}");
        let paths = paths(&trace, all);
        paths.iter().for_each(check);
        let depth = paths.iter().flat_map(|path| &path.pieces).map(|piece| piece.depth).max();
        assert!(depth > Some(0), "{name}: no path leads through a wait");
    }
}

#[test]
fn the_longest_requests_are_those_of_all() {
    let trace = common::recorded("shop.trace");
    let all = requests(&trace, RequestFilter::All);
    assert!(all.len() > 100);
    let durations: Vec<Duration> = all.iter().map(Request::duration).collect();
    assert!(durations.is_sorted_by(|a, b| a >= b));
    let mut some = Requests::new(RequestFilter::All, 5);
    common::recover(&trace, &mut some, Requests::push, Requests::loss);
    assert_eq!(some.count(), all.len() as u64);
    assert_eq!(some.finish(), all[..5]);
    // A restriction to a time keeps the requests within it.
    let (from, to) = (all[3].start, all[3].end);
    let mut within = Requests::new(RequestFilter::All, usize::MAX).between(from, to);
    common::recover(&trace, &mut within, Requests::push, Requests::loss);
    let wanted = all.iter().filter(|request| request.start >= from && request.end <= to);
    assert_eq!(within.finish(), wanted.cloned().collect::<Vec<_>>());
}

#[test]
fn the_path_needs_only_the_time_of_its_request() {
    let trace = common::recorded("go1.26-mixed.trace.gz");
    let mut all = requests(&trace, RequestFilter::All);
    all.truncate(10);
    let whole = paths(&trace, all.clone());
    for (request, path) in all.into_iter().zip(whole) {
        let mut single = CriticalPaths::new(vec![request]);
        let mut reader = Reader::new(&trace[..]).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            single.push(event);
            if single.is_complete() {
                break;
            }
        }
        assert!(single.is_complete());
        assert_eq!(single.finish(), [path]);
    }
}

#[test]
fn the_history_is_limited() {
    let trace = common::recorded("shop.trace");
    let mut paths = CriticalPaths::with_max(requests(&trace, RequestFilter::All), 100);
    common::recover(&trace, &mut paths, CriticalPaths::push, CriticalPaths::loss);
    assert!(paths.dropped() > 0);
    for path in paths.finish() {
        let sum: Duration = path.pieces.iter().map(PathPiece::duration).sum();
        assert_eq!(sum, path.request.duration());
    }
}

/// Emits events on the P and thread of a number.
struct History(CriticalPaths);

impl History {
    fn emit(&mut self, time: i64, (by, proc): (i64, i64), details: EventDetails<'_>) {
        let event = EventConfig::new(details)
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(by))
            .proc(ProcId(proc))
            .thread(ThreadId(proc + 100));
        self.0.push(event.build().unwrap().as_event());
    }

    fn go(&mut self, time: i64, on: (i64, i64), id: i64, states: (GoState, GoState), why: &str) {
        let mut transition = StateTransition::of_goroutine(GoId(id), states.0, states.1);
        if states.1 == Waiting {
            transition = transition.with_reason(why);
        }
        self.emit(time, on, EventDetails::StateTransition(transition));
    }
}

#[test]
fn a_path_leads_through_waits_and_creations() {
    let at = Timestamp::from_nanos;
    let request = Request::of_goroutine(GoId(1), at(0), at(200));
    let mut h = History(CriticalPaths::new(vec![request]));
    h.go(0, (-1, 0), 1, (GoState::Undetermined, Running), "");
    // G1 waits from 20 for G2, which G3 creates at 50, and gets its P at 120.
    h.go(10, (-1, 1), 3, (GoState::Undetermined, Running), "");
    h.go(20, (1, 0), 1, (Running, Waiting), "chan receive");
    let idle = StateTransition::of_proc(ProcId(0), ProcState::Running, ProcState::Idle);
    h.emit(30, (-1, 0), EventDetails::StateTransition(idle));
    h.go(50, (3, 1), 2, (NotExist, Runnable), "");
    h.go(60, (3, 1), 3, (Running, Waiting), "select");
    h.go(70, (-1, 1), 2, (Runnable, Running), "");
    h.go(120, (2, 1), 1, (Waiting, Runnable), "");
    let runs = StateTransition::of_proc(ProcId(0), ProcState::Idle, ProcState::Running);
    h.emit(130, (-1, 0), EventDetails::StateTransition(runs));
    h.go(140, (-1, 0), 1, (Runnable, Running), "");
    // Nobody ends the last wait.
    h.go(150, (1, 0), 1, (Running, Waiting), "sleep");
    h.go(190, (-1, 0), 1, (Waiting, Runnable), "");
    h.go(195, (-1, 0), 1, (Runnable, Running), "");
    h.go(210, (1, 0), 1, (Running, NotExist), "");
    assert!(h.0.is_complete());
    let path = h.0.finish().pop().unwrap();
    check(&path);
    let what = |what: &PathState| match what {
        PathState::Running => "runs".to_owned(),
        PathState::Waits => "waits".to_owned(),
        PathState::Runnable { proc, occupant } => {
            let occupant = match occupant {
                Occupant::Goroutine(other) => format!("G{}", other.id),
                other => format!("{other:?}"),
            };
            format!("P{}: {occupant}", proc.unwrap())
        }
        other => panic!("{other:?}"),
    };
    let pieces: Vec<_> = path
        .pieces
        .iter()
        .map(|p| (p.end.nanos(), p.goroutine.id.0, p.depth, what(&p.what)))
        .collect();
    let expected = [
        (20, 1, 0, "runs"),
        (50, 3, 1, "runs"),
        (60, 2, 1, "P1: G3"),
        (70, 2, 1, "P1: Scheduler"),
        (120, 2, 1, "runs"),
        (130, 1, 0, "P0: Idle"),
        (140, 1, 0, "P0: Scheduler"),
        (150, 1, 0, "runs"),
        (190, 1, 0, "waits"),
        (195, 1, 0, "P0: Scheduler"),
        (200, 1, 0, "runs"),
    ];
    assert_eq!(pieces, expected.map(|(end, id, depth, what)| (end, id, depth, what.to_owned())));
    let waits: Vec<_> = path.pieces.iter().map(|p| p.waiter_reason.to_string()).collect();
    assert_eq!(waits[1..5], ["chan receive"; 4]);
    assert_eq!(path.pieces[8].reason.to_string(), "sleep");
}

/// The runtime mentions a goroutine that waits only at the end of the generation.
#[test]
fn a_goroutine_is_in_its_first_state_since_the_generation_started() {
    let go =
        |from, to| EventDetails::StateTransition(StateTransition::of_goroutine(GoId(1), from, to));
    let events = [
        (10, -1, EventDetails::Metric(Metric::new(Metric::HEAP_GOAL, 1_u64))),
        (100, -1, go(GoState::Undetermined, Waiting)),
        (150, -1, go(Waiting, Runnable)),
        (160, -1, go(Runnable, Running)),
        (200, 1, go(Running, NotExist)),
    ];
    let events = events.map(|(time, by, details)| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        event.goroutine(GoId(by)).proc(ProcId(0)).thread(ThreadId(1)).build().unwrap()
    });
    let mut requests = Requests::new(RequestFilter::Goroutine(GoId(1)), 1);
    events.iter().for_each(|event| requests.push(event.as_event()));
    let mut paths = CriticalPaths::new(requests.finish());
    events.iter().for_each(|event| paths.push(event.as_event()));
    let path = paths.finish().pop().unwrap();
    check(&path);
    assert_eq!((path.request.start.nanos(), path.request.end.nanos()), (10, 200));
    let first = &path.pieces[0];
    assert_eq!((&first.what, first.end.nanos()), (&PathState::Waits, 150));
}

/// The regions above the limit are within the others: their ends are not those of the others.
#[test]
fn ends_of_ignored_regions_end_no_other() {
    let mut requests = Requests::new(RequestFilter::All, usize::MAX);
    let count = Requests::MAX_REGIONS as i64 + 10;
    let mut emit = |time, details| {
        let event = EventConfig::new(details)
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(1))
            .proc(ProcId(0))
            .thread(ThreadId(1));
        requests.push(event.build().unwrap().as_event());
    };
    let region = || Region::new(TaskId::BACKGROUND, "r");
    (0..count).for_each(|time| emit(time, EventDetails::RegionBegin(region())));
    (count..2 * count).for_each(|time| emit(time, EventDetails::RegionEnd(region())));
    let found = requests.finish();
    assert_eq!(found.len(), Requests::MAX_REGIONS);
    for request in found {
        assert_eq!(request.start.nanos() + request.end.nanos(), 2 * count - 1, "{request:?}");
    }
}

#[test]
fn an_assist_ends_at_a_loss() {
    let at = Timestamp::from_nanos;
    let request = Request::of_goroutine(GoId(1), at(0), at(100));
    let mut h = History(CriticalPaths::new(vec![request]));
    let assist = || Range::new(RangeName::GcMarkAssist, GoId(1));
    h.go(0, (-1, 0), 1, (GoState::Undetermined, Running), "");
    h.emit(10, (1, 0), EventDetails::RangeBegin(assist()));
    h.emit(20, (1, 0), EventDetails::RangeEnd(assist()));
    h.emit(30, (1, 0), EventDetails::RangeBegin(assist()));
    h.0.loss();
    h.go(60, (-1, 0), 1, (GoState::Undetermined, Running), "");
    h.go(110, (1, 0), 1, (Running, NotExist), "");
    let path = h.0.finish().pop().unwrap();
    check(&path);
    let pieces: Vec<_> = path.pieces.iter().map(|p| (p.end.nanos(), p.during.is_some())).collect();
    assert_eq!(pieces, [(10, false), (20, true), (30, false), (60, false), (100, false)]);
}

/// The end of a region of a task from before the trace is the end of no other one.
#[test]
fn regions_of_unknown_tasks_have_their_own_ends() {
    let at = Timestamp::from_nanos;
    let request = Request::of_goroutine(GoId(1), at(0), at(110));
    let mut h = History(CriticalPaths::new(vec![request]));
    h.go(0, (-1, 0), 1, (GoState::Undetermined, Running), "");
    h.go(1, (-1, 1), 2, (GoState::Undetermined, Running), "");
    h.go(2, (-1, 2), 3, (GoState::Undetermined, Running), "");
    let task = Task::new(TaskId(5), TaskId::BACKGROUND, "job");
    h.emit(3, (3, 2), EventDetails::TaskBegin(task));
    // G1 waits for G2, which works for the known task from 20 to 60.
    h.go(10, (1, 0), 1, (Running, Waiting), "chan receive");
    let region = |id| Region::new(TaskId(id), "r");
    h.emit(20, (2, 1), EventDetails::RegionBegin(region(5)));
    h.emit(30, (2, 1), EventDetails::RegionBegin(region(99)));
    h.emit(40, (2, 1), EventDetails::RegionEnd(region(99)));
    h.emit(60, (2, 1), EventDetails::RegionEnd(region(5)));
    h.go(100, (2, 1), 1, (Waiting, Runnable), "");
    h.go(105, (-1, 0), 1, (Runnable, Running), "");
    h.go(120, (1, 0), 1, (Running, NotExist), "");
    let path = h.0.finish().pop().unwrap();
    check(&path);
    let of_g2 = path.pieces.iter().filter(|piece| piece.goroutine.id == GoId(2));
    let found: Vec<_> = of_g2
        .map(|piece| (piece.end.nanos(), piece.context.as_ref().map(|(task, _)| task.0)))
        .collect();
    assert_eq!(found, [(20, None), (60, Some(5)), (100, None)]);
}

/// Work for a goroutine that works on another task is for that task, and a part of the task of the request is not
/// another one.
#[test]
fn work_for_other_tasks_is_context() {
    let at = Timestamp::from_nanos;
    let mut request = Request::of_goroutine(GoId(1), at(0), at(110));
    request.kind = RequestKind::Task(TaskId(4));
    let mut h = History(CriticalPaths::new(vec![request]));
    for id in 1..=4 {
        h.go(id - 1, (-1, id - 1), id, (GoState::Undetermined, Running), "");
    }
    let tasks = [(4, TaskId::BACKGROUND), (5, TaskId::BACKGROUND), (6, TaskId(4))];
    for (id, parent) in tasks {
        h.emit(id, (4, 3), EventDetails::TaskBegin(Task::new(TaskId(id as u64), parent, "job")));
    }
    let region = |id| Region::new(TaskId(id), "r");
    // G1 waits for G2, which works on another task and waits for G3 then.
    h.go(10, (1, 0), 1, (Running, Waiting), "chan receive");
    h.emit(20, (2, 1), EventDetails::RegionBegin(region(5)));
    h.go(30, (2, 1), 2, (Running, Waiting), "select");
    h.go(80, (3, 2), 2, (Waiting, Runnable), "");
    h.go(81, (-1, 1), 2, (Runnable, Running), "");
    h.emit(90, (2, 1), EventDetails::RegionEnd(region(5)));
    h.emit(91, (2, 1), EventDetails::RegionBegin(region(6)));
    h.emit(95, (2, 1), EventDetails::RegionEnd(region(6)));
    h.go(100, (2, 1), 1, (Waiting, Runnable), "");
    h.go(105, (-1, 0), 1, (Runnable, Running), "");
    // So does G1 itself.
    h.emit(106, (1, 0), EventDetails::RegionBegin(region(5)));
    h.emit(108, (1, 0), EventDetails::RegionEnd(region(5)));
    h.go(120, (1, 0), 1, (Running, NotExist), "");
    let path = h.0.finish().pop().unwrap();
    check(&path);
    let context = |piece: &PathPiece| piece.context.as_ref().map(|(task, _)| task.0);
    let pieces: Vec<_> =
        path.pieces.iter().map(|p| (p.end.nanos(), p.goroutine.id.0, context(p))).collect();
    let expected = [
        (10, 1, None),
        (20, 2, None),
        (30, 2, Some(5)),
        (80, 3, Some(5)),
        (81, 2, Some(5)),
        (90, 2, Some(5)),
        (100, 2, None),
        (105, 1, None),
        (106, 1, None),
        (108, 1, Some(5)),
        (110, 1, None),
    ];
    assert_eq!(pieces, expected);
}

/// Each span is visited once, however many parts a piece has: with a visit of all of them for each
/// part, the second one would take hours.
#[test]
fn a_piece_has_many_stops_of_the_world() {
    let at = Timestamp::from_nanos;
    for (state, count, parts) in [(Waiting, 20_000, 40_000), (GoState::Syscall, 300_000, 1)] {
        let end = count * 10;
        let request = Request::of_goroutine(GoId(1), at(0), at(end));
        let mut h = History(CriticalPaths::new(vec![request]));
        let is_in = StateTransition::of_goroutine(GoId(1), GoState::Undetermined, state);
        h.emit(0, (-1, 0), EventDetails::StateTransition(is_in));
        h.go(0, (-1, 1), 2, (GoState::Undetermined, Running), "");
        let stop = || Range::new(RangeName::StopTheWorld("read mem stats".into()), GoId(2));
        for begin in (0..count).map(|n| n * 10) {
            h.emit(begin, (2, 1), EventDetails::RangeBegin(stop()));
            h.emit(begin + 5, (2, 1), EventDetails::RangeEnd(stop()));
        }
        h.go(end, (2, 1), 2, (Running, NotExist), "");
        let path = h.0.finish().pop().unwrap();
        check(&path);
        assert_eq!(path.pieces.len(), parts);
        for piece in &path.pieces {
            let is_held_back = parts > 1 && piece.start.nanos() % 10 == 0;
            assert_eq!(piece.during.is_some(), is_held_back, "{piece:?}");
        }
    }
}

#[test]
fn the_garbage_collector_and_other_tasks_are_on_the_path() {
    let mut assists = 0;
    let mut contexts = 0;
    for name in ["shop.trace", "go1.26-collections.trace.gz", "go1.26-mixed.trace.gz"] {
        let trace = common::recorded(name);
        let mut requests = requests(&trace, RequestFilter::All);
        requests.extend(self::requests(&trace, RequestFilter::Goroutine(GoId(1))));
        for path in paths(&trace, requests) {
            let task = path.request.task();
            for piece in &path.pieces {
                assists += u32::from(piece.during == Some(RangeKind::GcMarkAssist));
                if let Some((id, _)) = &piece.context {
                    assert!((piece.depth > 0 || task.is_some()) && Some(*id) != task);
                    contexts += 1;
                }
            }
        }
    }
    assert!(assists > 0 && contexts > 0, "{assists} assists, {contexts} contexts");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn damaged_traces_have_whole_paths(
        name in select(&common::V2[..]), // v1 traces are checked before their events are returned
        flips in common::flips(),
    ) {
        let mut trace = common::recorded(name);
        common::flip(&mut trace, &flips);
        let mut all = requests(&trace, RequestFilter::All);
        all.extend(requests(&trace, RequestFilter::Goroutine(GoId(1))));
        paths(&trace, all).iter().for_each(check);
    }
}
