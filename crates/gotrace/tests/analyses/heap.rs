//! The garbage collector's cycles and the objects of the heap, in recorded traces whose program is
//! known (`conformance/go/src/workloads/memory.go`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use crate::common;
use gotrace::analysis::{
    Allocations, AllocationsReport, Finished, GcCycles, GcReport, GcTrigger, RangeKind, Summarizer,
    Times,
};
use gotrace::synthetic::{EventConfig, EventDetails, SyncDetails};
use gotrace::{Event, GoId, Metric, ProcId, Range, RangeName, ResourceId, ThreadId, Timestamp};
use std::time::Duration;

fn events(name: &str, each: impl FnMut(Event<'_>)) {
    common::events_of(&common::recorded(name), each);
}

fn collections(name: &str) -> GcReport {
    let mut collections = GcCycles::new(5);
    events(name, |event| collections.push(event));
    collections.finish()
}

#[test]
fn the_causes_of_collections() {
    let report = collections("go1.26-collections.trace.gz");
    let of = |trigger| report.cycles.iter().filter(|cycle| cycle.trigger == trigger).count();
    // The program allocates with a tight goal, then calls runtime.GC and debug.FreeOSMemory.
    assert_eq!(of(GcTrigger::Explicit), 2, "{:#?}", report.cycles);
    assert!(of(GcTrigger::Allocation) > 3, "{:#?}", report.cycles);
    assert_eq!(of(GcTrigger::Periodic), 0);
    let (last, complete) = report.cycles.split_last().unwrap();
    assert!(last.start.is_some() && last.end.is_none(), "the trace ends within it: {last:?}");
    for cycle in complete {
        let (start, end) = (cycle.start.unwrap(), cycle.end.unwrap());
        assert!(start < end && !cycle.pauses.is_zero(), "{cycle:?}");
        assert!(cycle.heap_before.unwrap() > 0 && cycle.heap_after.unwrap() > 0);
        assert!(cycle.goal.is_some(), "{cycle:?}");
    }
    // Every reason to stop the world that a program can give is given once.
    let count = |reason: &str| {
        let found = report.pauses.iter().find(|(name, _)| **name == *reason);
        found.map_or(0, |(_, pauses)| pauses.count())
    };
    let cycles = report.cycles.len() as u64;
    assert_eq!(count("GC sweep termination"), cycles);
    assert_eq!(count("GC mark termination"), cycles - 1);
    assert_eq!((count("start trace"), count("all goroutines stack trace")), (1, 1));
    assert_eq!(count("read mem stats"), 1);
    let sums: Duration = report.cycles.iter().map(|cycle| cycle.pauses).sum();
    let gc: u64 =
        report.pauses.iter().filter(|(n, _)| n.starts_with(b"GC ")).map(|(_, h)| h.sum()).sum();
    assert_eq!(sums, Duration::from_nanos(gc), "each pause of the GC belongs to a cycle");
    assert_eq!(report.longest.len(), 5);
    assert!(report.longest.windows(2).all(|pair| pair[0].duration >= pair[1].duration));
    assert!(report.longest.iter().all(|pause| !pause.stack.is_empty()));
    for ((reason, pauses), (same, longest)) in report.pauses.iter().zip(&report.longest_by_reason) {
        assert_eq!(reason, same);
        assert_eq!(longest.len() as u64, pauses.count().min(5), "{reason}");
        assert_eq!(longest[0].duration, Duration::from_nanos(pauses.max()), "{reason}");
        assert!(longest.iter().all(|pause| pause.reason == *reason));
    }
    let mut all: Vec<_> =
        report.longest_by_reason.iter().flat_map(|(_, longest)| longest).collect();
    all.sort_by_key(|pause| std::cmp::Reverse(pause.duration));
    assert!(report.longest.iter().eq(all.into_iter().take(5)));
}

#[test]
fn assists_and_sweeping_are_those_of_the_goroutines() {
    for name in ["go1.26-collections.trace.gz", "go1.22-mixed.trace.gz", "shop.trace"] {
        let report = collections(name);
        let mut summarizer = Summarizer::new();
        let mut times = Vec::new();
        events(name, |event| {
            if let Some(Finished::Goroutine(goroutine)) = summarizer.push(event) {
                times.push(goroutine.times);
            }
        });
        times.extend(summarizer.finish().goroutines.into_iter().map(|g| g.times));
        let sum = |kind: &RangeKind| -> Duration {
            times.iter().flat_map(Times::ranges).filter(|(k, _)| *k == kind).map(|(_, t)| t).sum()
        };
        assert_eq!(report.assists, sum(&RangeKind::GcMarkAssist), "{name}");
        // A goroutine may lose its P while it sweeps: the sweep then counts for no goroutine.
        assert!(report.sweep >= sum(&RangeKind::GcSweep), "{name}");
        let cycles: Duration = report.cycles.iter().map(|cycle| cycle.assists).sum();
        assert_eq!(report.assists, cycles, "{name}");
    }
}

/// Sweeping for a cycle before the trace makes no cycle.
#[test]
fn each_collection_has_a_mark_phase() {
    let range = |name, scope: ResourceId| Range::new(name, scope);
    let event = |time, details| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        event.goroutine(GoId(7)).proc(ProcId(0)).thread(ThreadId(1)).build().unwrap()
    };
    let sweep = || range(RangeName::GcSweep, ProcId(0).into());
    let mark = || range(RangeName::GcMark, ResourceId::None);
    let assist = || range(RangeName::GcMarkAssist, GoId(7).into());
    let heap = |bytes: u64| EventDetails::Metric(Metric::new(Metric::HEAP_OBJECTS, bytes));
    let events = [
        event(0, EventDetails::Sync(SyncDetails { n: 1, ..SyncDetails::default() })),
        event(5, heap(100)),
        event(10, EventDetails::RangeActive(sweep())), // since the start
        event(20, EventDetails::RangeEnd(sweep())),
        event(100, EventDetails::RangeActive(mark())),
        event(200, EventDetails::RangeEnd(mark())),
        event(250, EventDetails::RangeBegin(sweep())), // until the next
        event(300, EventDetails::RangeEnd(sweep())),
        event(400, EventDetails::RangeBegin(mark())),
        event(450, EventDetails::RangeBegin(assist())), // until the end
        event(500, heap(200)),
    ];
    let mut collections = GcCycles::new(5);
    events.iter().for_each(|event| collections.push(event.as_event()));
    let report = collections.finish();
    let ns = Duration::from_nanos;
    assert_eq!((report.sweep, report.assists), (ns(20 + 50), ns(50)));
    let [before, last] = &report.cycles[..] else { panic!("{:?}", report.cycles) };
    assert_eq!((before.start, before.heap_before, before.sweep), (None, None, ns(50)));
    assert_eq!((last.heap_before, last.assists, last.assist_count), (Some(100), ns(50), 1));
}

/// A generation that starts within a mark phase has the goal that the cycle before it has set.
#[test]
fn a_cycle_sets_its_goal_when_it_ends() {
    let event = |time, details| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        event.goroutine(GoId(7)).proc(ProcId(0)).thread(ThreadId(1)).build().unwrap()
    };
    let mark = || Range::new(RangeName::GcMark, ResourceId::None);
    let goal = |bytes: u64| EventDetails::Metric(Metric::new(Metric::HEAP_GOAL, bytes));
    let events = [
        event(100, EventDetails::RangeActive(mark())),
        event(110, goal(1_000)),
        event(200, EventDetails::RangeEnd(mark())),
        event(210, goal(2_000)),
    ];
    for (len, expected) in [(2, None), (4, Some(2_000))] {
        let mut collections = GcCycles::new(5);
        events.iter().take(len).for_each(|event| collections.push(event.as_event()));
        let report = collections.finish();
        assert_eq!(report.cycles.iter().map(|cycle| cycle.goal).collect::<Vec<_>>(), [expected]);
    }
}

fn allocations(name: &str) -> AllocationsReport {
    let mut allocations = Allocations::new();
    events(name, |event| allocations.push(event));
    allocations.finish()
}

#[test]
fn the_objects_of_a_known_program() {
    for name in ["go1.23-allocations.trace.gz", "go1.26-allocations.trace.gz"] {
        let report = allocations(name);
        assert!(report.is_recorded);
        let node = report.types.iter().find(|ty| *ty.name == *"main.node").unwrap();
        // Four trees of 63 nodes, each of 80 bytes. They are unreachable at the end.
        assert_eq!((node.allocated.objects, node.allocated.bytes), (4 * 63, 4 * 63 * 80));
        assert_eq!(node.existing.objects, 0);
        for ty in &report.types {
            let there = ty.existing.objects + ty.allocated.objects;
            assert_eq!(there, ty.freed.objects + ty.live.objects, "{name}: {ty:?}");
            let bytes = ty.existing.bytes + ty.allocated.bytes;
            assert_eq!(bytes, ty.freed.bytes + ty.live.bytes, "{name}: {ty:?}");
        }
        assert_eq!((report.unknown_spans, report.dropped, report.damaged_batches), (0, 0, 0));
        assert_eq!(report.unknown_frees, 0, "{name}");
        let last = report.snapshots.last().unwrap();
        assert_eq!(last.total(), report.live());
        assert!(report.snapshots.len() > 2 && report.snapshots.len() <= 65);
        assert!(report.snapshots.windows(2).all(|pair| pair[0].time < pair[1].time));
        // Slices of bytes of 16 to 65536 bytes.
        let bytes = report.types.iter().find(|ty| *ty.name == *"uint8").unwrap();
        let least: u64 = (4..=16).map(|shift| 4 << shift).sum();
        assert!(bytes.allocated.bytes >= least, "{bytes:?}");
    }
    assert!(!allocations("shop.trace").is_recorded);
}

#[test]
fn objects_that_are_live_at_a_loss_are_uncertain() {
    let name = "go1.26-allocations.trace.gz";
    let whole = allocations(name);
    let mut count = 0_usize;
    events(name, |_| count += 1);
    let with_loss = |at: usize| {
        let mut allocations = Allocations::new();
        let mut number = 0;
        events(name, |event| {
            if number == at {
                allocations.loss();
            }
            number += 1;
            allocations.push(event);
        });
        allocations.finish()
    };
    let uncertain = |at| with_loss(at).uncertain.objects;
    assert_eq!((whole.uncertain.objects, uncertain(0)), (0, 0));
    assert_eq!(uncertain(count - 1), whole.live().objects);
    let mut middle = with_loss(count / 2);
    assert!(0 < middle.uncertain.objects && middle.uncertain < whole.live(), "{middle:?}");
    // Nothing else changes.
    middle.uncertain = whole.uncertain;
    assert_eq!(middle, whole);
}
