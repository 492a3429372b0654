//! Times of a stream whose tick is no nanosecond: those of all records are those of their events.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::analysis::{
    RUNTIME, collections, declare, numbered_waits, numbers, of_two_processes, pause_of, records,
    write,
};
use crate::common::{at, lasting, parse};
use nettrace::analysis::{
    ActivityTracker, CounterTracker, EventStacks, GcTracker, HeapSnapshot, RuntimeRecord,
    StackEvent,
};
use nettrace::{Event, Item, MethodMap, Order, Profile, Reader, Timestamp};
use testkit::nettrace::assemble;

/// The same stream on a clock of 10 MHz, as that of Windows: a tick is 100 ns.
fn at_10_mhz(mut stream: Vec<u8>) -> Vec<u8> {
    const NANOSECONDS: [u8; 8] = 1_000_000_000_i64.to_le_bytes();
    let place = stream.windows(8).position(|bytes| bytes == NANOSECONDS).unwrap();
    stream[place..place + 8].copy_from_slice(&10_000_000_i64.to_le_bytes());
    stream
}

fn each(stream: &[u8], mut f: impl FnMut(&Event<'_>)) {
    Reader::new(stream).for_each(|event| f(&event)).unwrap();
}

/// The times of the events, which are 100 times their ticks.
fn times(stream: &[u8]) -> Vec<Timestamp> {
    let mut times = Vec::new();
    each(stream, |event| {
        assert_eq!(event.time().nanos(), 100 * event.header().ticks);
        times.push(event.time());
    });
    times
}

/// The suspension and the GC of one thread: the ticks of their five events.
fn gc(ticks: [i64; 5]) -> Vec<u8> {
    let mut stream = of_two_processes();
    let types = [(9, 1), (8, 1), (1, 2), (2, 1), (3, 1)];
    declare(&mut stream, &types.map(|(event, version)| (RUNTIME, event, version, "", &[][..])));
    for (number, ((event, _), ticks)) in (1..).zip(types.into_iter().zip(ticks)) {
        write(&mut stream, number, 1, ticks as u64, &pause_of(1, event));
    }
    stream.end()
}

#[test]
fn a_gc_has_the_times_of_its_events() {
    let stream = at_10_mhz(gc([10, 11, 12, 20, 21]));
    let times = times(&stream);
    let (mut tracker, mut suspensions) = (GcTracker::new(), Vec::new());
    each(&stream, |event| suspensions.extend(tracker.push(event)));
    let gc = tracker.next_gc().unwrap();
    assert_eq!((gc.start, gc.end), (times[2], times[3]));
    assert_eq!(gc.pause, Some(lasting(1_100)));
    let [suspension] = suspensions[..] else { panic!("{suspensions:?}") };
    assert_eq!((suspension.start, suspension.end), (times[0], times[4]));
    assert_eq!((suspension.suspended, suspension.gc), (Some(times[1]), Some(1)));
}

/// The zero of the clock is a time as others.
#[test]
fn a_gc_ends_at_the_zero_of_the_clock() {
    for ticks in [[-12, -11, -10, 0, 1], [0; 5]] {
        let (gcs, _) = collections(&gc(ticks));
        let [gc] = gcs[..] else { panic!("{gcs:?}") };
        assert_eq!((gc.start, gc.end), (at(ticks[2]), at(0)));
        assert_eq!(gc.pause, Some(lasting((ticks[4] - ticks[0]) as u64)));
    }
}

#[test]
fn waits_have_the_times_of_their_events() {
    const SECOND: u64 = 10_000_000;
    let [start, stop] = [1, 2];
    let stream = at_10_mhz(numbered_waits(&[
        (1, ((start, 1), SECOND, 0.0)),
        // Lost: its end, and the start of this one, which lasted 5 ms.
        (9, ((stop, 2), 60 * SECOND, 5e6)),
        (10, ((start, 1), 61 * SECOND, 0.0)),
        // It does not say how long it was.
        (11, ((stop, 1), 61 * SECOND + 7, 0.0)),
        (12, ((start, 1), 62 * SECOND, 0.0)),
        // The thread wrote its end 5 ms late.
        (13, ((stop, 1), 62 * SECOND + 70_000, 2e6)),
    ]));
    let times = times(&stream);
    let (records, _) = records(&stream);
    let waits = records.iter().map(|record| match record {
        RuntimeRecord::Contention(wait) => (wait.start, wait.end, wait.lock_id),
        other => panic!("{other:?}"),
    });
    let expected = [
        (times[1] - lasting(5_000_000), times[1], None),
        (times[2], times[3], Some(7)),
        (times[4], times[5], Some(7)),
    ];
    assert_eq!(Vec::from_iter(waits), expected);

    let mut stacks = EventStacks::new(StackEvent::Contention);
    each(&stream, |event| stacks.push(event));
    let totals = stacks.totals().map(|total| (total.first, total.count, total.weight));
    let expected = [(times[1], 1, 5_000_000), (times[3], 2, 700 + 2_000_000)];
    assert_eq!(Vec::from_iter(totals), expected);
}

#[test]
fn samples_have_their_times_and_weights() {
    let value: &[(&str, u8)] = &[("Value", 21)];
    let rate = [assemble::utf8("ExpectedCPUSamplingRate"), assemble::utf8("2000000")].concat();
    let mut stream = assemble::V6::with_properties(1, &rate);
    let sampler = ("Microsoft-DotNETCore-SampleProfiler", 0, 0, "ThreadSample", value);
    declare(&mut stream, &[("Universal.Events", 1, 0, "cpu", value), sampler]);
    for (id, ticks, payload) in
        [(2, 5, &[2, 0, 0, 0][..]), (2, 35, &[2, 0, 0, 0]), (2, 75, &[2, 0, 0, 0]), (1, 80, &[3])]
    {
        write(&mut stream, id, 1, ticks, payload);
    }
    let stream = at_10_mhz(stream.end());
    let profile = Profile::read(&mut Reader::new(&stream[..])).unwrap();
    let found: Vec<_> = profile.samples().iter().map(|sample| sample.time).collect();
    assert_eq!(found, times(&stream));
    // The last one is three periods of the CPU's time.
    assert_eq!(profile.weights(), [4_000, 3_000, 4_000, 6_000_000].map(lasting));
}

#[test]
fn a_period_has_the_times_of_its_events() {
    let mut stream = of_two_processes();
    declare(&mut stream, &[(RUNTIME, 141, 1, "", &[]), (RUNTIME, 142, 1, "", &[])]);
    for (event, ticks, id) in [(1, 20, 1_u64), (2, 30, 1), (1, 51, 2)] {
        let ids = [id, 1, 0x1000].map(u64::to_le_bytes).concat();
        let sizes = [0x100_u32, 0, 0].map(u32::to_le_bytes).concat();
        write(&mut stream, event, 1, ticks, &[ids, sizes, vec![9, 0]].concat());
    }
    let stream = at_10_mhz(stream.end());
    let times = times(&stream);
    let mut map = MethodMap::new();
    each(&stream, |event| assert!(map.push(event)));
    let (before, last) = (times[0] - lasting(1), times[1] - lasting(1));
    assert_eq!(map.period(10, [0x1010], at(0)), Timestamp::MIN..=before);
    assert_eq!(map.period(10, [0x1010], times[2]), times[2]..=Timestamp::MAX);
    let id = |time| map.resolve(10, 0x1010, time).method.unwrap().id;
    // Between the two, the nearer one.
    let of_times = [times[0], last, at(4_000), at(4_100), times[2]].map(id);
    assert_eq!(of_times, [1, 1, 1, 2, 2]);
    for time in [at(0), times[0], last, times[1], at(4_000), at(4_100), times[2]] {
        let period = map.period(10, [0x1010], time);
        assert!(period.contains(&time), "{time}: {period:?}");
        let own = id(time);
        let ends = [*period.start(), *period.end()].map(id);
        assert_eq!(ends, [own; 2], "{time}: {period:?}");
    }
}

#[test]
fn losses_and_sequence_points_have_the_times_of_events() {
    let mut stream = of_two_processes();
    declare(&mut stream, &[("Own", 1, 0, "Number", &[])]);
    // Numbers 1 and 2 of the first thread, then 5.
    stream.compressed(&[0xc7, 1, 0, 1, 0, 1, 10, 0, 0, 1, 2, 2, 1, 0, 1]);
    // It had reached number 8.
    let point = [&20_i64.to_le_bytes()[..], &[0; 4], &1_u32.to_le_bytes(), &[1, 8]];
    stream.block(4, &point.concat());
    // It ended at number 10.
    stream.block(7, &[1, 10]);
    let stream = at_10_mhz(stream.end());
    let times = times(&stream);
    assert_eq!(times, [1_000, 1_100, 1_200].map(at));
    for order in [Order::Time, Order::Stream] {
        let (mut lost, mut points) = (Vec::new(), Vec::new());
        parse(&stream, order, |item| match item {
            Item::Loss(loss) => lost.push((loss.count, loss.after, loss.before)),
            Item::SequencePoint(point) => points.push((point.time, point.threads)),
            _ => {}
        });
        let expected = [
            (2, Some(times[1]), times[2]),
            (3, Some(times[2]), at(2_000)),
            // Nothing says when it ended.
            (2, Some(times[2]), times[2]),
        ];
        assert_eq!((lost, points), (expected.to_vec(), vec![(at(2_000), 1)]), "{order:?}");
    }
}

#[test]
fn other_records_have_the_times_of_their_events() {
    let mut stream = of_two_processes();
    let id: &[(&str, u8)] = &[("id", 10)];
    let counter: &[(&str, u8)] = &[("Name", 18), ("Mean", 14)];
    declare(
        &mut stream,
        &[
            ("Own", 1, 0, "JobStart", id),
            ("Own", 2, 0, "JobStop", id),
            ("Own", 3, 0, "EventCounters", counter),
            (RUNTIME, 18, 0, "", &[]),
            (RUNTIME, 80, 1, "", &[]),
        ],
    );
    let job = 1_u32.to_le_bytes();
    let named = [&assemble::utf16z("c")[..], &1.5_f64.to_le_bytes()].concat();
    let nodes = numbers(&[0, 1], 2 + 4 * 8);
    let thrown = [["E", ""].map(assemble::utf16z).concat(), vec![0; 8 + 4 + 2 + 2]].concat();
    for (id, ticks, payload) in
        [(1, 10, &job[..]), (2, 20, &job), (3, 30, &named), (4, 40, &nodes), (5, 50, &thrown)]
    {
        write(&mut stream, id, 1, ticks, payload);
    }
    let stream = at_10_mhz(stream.end());
    let times = times(&stream);
    let (mut activities, mut counters) = (ActivityTracker::new(), CounterTracker::new());
    let (mut heap, mut found) = (HeapSnapshot::new(), Vec::new());
    each(&stream, |event| {
        let activity = activities.push(event);
        found.extend(activity.into_iter().flat_map(|activity| [activity.start, activity.end]));
        found.extend(counters.push(event).map(|counter| counter.time));
        heap.push(event);
    });
    found.extend(heap.time());
    let (records, _) = records(&stream);
    let [RuntimeRecord::Exception(exception)] = &records[..] else { panic!("{records:?}") };
    found.push(exception.time);
    assert_eq!(found, times);
}
