//! What events of real runtimes add up to.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::{self, at, lasting};
use nettrace::analysis::{
    ActivityTracker, CounterKind, CounterTracker, EventStacks, GarbageCollection, GcEvent,
    GcTracker, HeapSnapshot, RootKind, RuntimeRecord, RuntimeTracker, StackEvent,
};
use nettrace::{
    Event, Limits, MethodMap, OptimizationTier, Options, Order, Parser, Profile, ProfileSums,
    Reader, SampleKind, Timestamp,
};
use testkit::nettrace::assemble;

fn each(file: PathBuf, mut f: impl FnMut(&Event<'_>)) {
    let bytes = std::fs::read(&file).unwrap();
    let mut reader = Reader::new(&bytes[..]);
    while let Some(event) = reader.next_event().unwrap() {
        f(&event);
    }
}

/// A larger capture, or a loud word on why not.
fn larger(name: &str) -> Option<PathBuf> {
    let file = common::more_captures().map(|dir| dir.join(name)).filter(|f| f.exists());
    if file.is_none() {
        testkit::skip::without(&format!("NETTRACE_CAPTURES, a folder with {name}"));
    }
    file
}

/// The workload starts tasks 10 i + k and stops them on another thread.
#[test]
fn activities_are_paired_over_threads_by_their_ids() {
    let mut tracker = ActivityTracker::new();
    let mut ids = Vec::new();
    let mut moved = 0;
    each(common::data().join("t10-activity.nettrace"), |event| {
        if let Some(activity) = tracker.push(event) {
            assert_eq!(activity.name, "Work");
            assert!(activity.end > activity.start);
            assert!(
                activity.path.as_deref().is_some_and(|p| p.starts_with("//1/")),
                "{activity:?}"
            );
            moved += u32::from(activity.start_tid != activity.stop_tid);
            ids.push(activity.arguments.strip_prefix("id=").unwrap().parse::<i64>().unwrap());
        }
    });
    // 364 starts and 360 stops: see the answers of the capture.
    assert_eq!((ids.len(), tracker.open().count(), tracker.unpaired()), (360, 4, 0));
    assert!(moved > 300, "{moved}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 360, "each id is of one activity");
    assert!(ids.iter().all(|id| id % 10 < 4), "k goes from 0 to 3");
}

/// The checksum of an id has the number of the process in its container.
#[test]
fn activities_in_containers_have_paths() {
    let mut stream = assemble::V6::new();
    // Size, index, process id 4242, thread id.
    stream.block(6, &[6, 0, 1, 2, 0x92, 0x21, 3, 11]);
    declare(&mut stream, &[("Own", 1, 0, "WorkStart", &[])]);
    // The numbers 1 and 2, and the checksum with process 1.
    let checksum = (0x12 + 0x599d_99ad_u32) ^ 1;
    let id = [&[0x12][..], &[0; 11], &checksum.to_le_bytes()].concat();
    // A list of one label: the activity.
    stream.block(8, &[&[1, 0, 0, 0, 1, 0, 0, 0, 1 | 0x80][..], &id].concat());
    stream.compressed(&assemble::blob(&[0xd7, 1, 0, 0, 0, 1, 5, 1], &[]));
    let (stream, mut tracker) = (stream.end(), ActivityTracker::new());
    Reader::new(&stream[..]).for_each(|event| assert!(tracker.push(&event).is_none())).unwrap();
    let open: Vec<_> = tracker.open().map(|open| (open.pid, open.path.as_deref())).collect();
    assert_eq!(open, [(4_242, Some("//1/2"))]);
}

/// 262 144 are kept open.
#[test]
fn the_oldest_of_too_many_activities_make_room() {
    const OPEN: u32 = 1 << 18;
    let fields = [&[1, 0, 0, 0, 9, 0, 0, 0][..], &assemble::utf16z("id")].concat();
    let mut types = Vec::new();
    for (number, name) in [(1_u8, "WorkStart"), (2, "WorkStop")] {
        let mut metadata = assemble::metadata("Own", number.into(), 0, name, 0, &fields);
        metadata[0] = number;
        types.extend(assemble::blob(&[0x80, 0], &metadata));
    }
    let event = |number, id: u32| assemble::blob(&[0xc7, number, 0, 9, 0, 9, 5], &id.to_le_bytes());
    let mut events: Vec<u8> = (0..OPEN + 2).flat_map(|id| event(1, id)).collect();
    events.extend([OPEN + 1, 1, 2].iter().flat_map(|id| event(2, *id)));
    let stream = assemble::Stream::v4()
        .compressed("MetadataBlock", &types)
        .compressed("EventBlock", &events)
        .end();
    let (mut tracker, mut ended) = (ActivityTracker::new(), Vec::new());
    let mut reader = Reader::new(&stream[..]);
    while let Some(event) = reader.next_event().unwrap() {
        ended.extend(tracker.push(&event).map(|activity| activity.arguments));
    }
    assert_eq!(ended, [format!("id={}", OPEN + 1), "id=2".to_owned()]);
    // Two that made room, and the stop of one of them.
    assert_eq!(tracker.unpaired(), 3);
}

/// Start has `id` and `url`, stop has `id` and `code`; requests are nested on one thread, and no
/// event has an activity id.
/// A file of a few kilobytes makes no text of megabytes.
#[test]
fn the_text_of_activities_is_bounded() {
    let starts = |stream: &[u8]| {
        let mut tracker = ActivityTracker::new();
        Reader::new(stream).for_each(|event| assert!(tracker.push(&event).is_none())).unwrap();
        tracker
    };
    let arguments = |tracker: &ActivityTracker| tracker.open().next().unwrap().arguments.clone();
    let fields = |code: u32| {
        let mut fields = [1u32, code].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        fields.extend(assemble::utf16z("f"));
        fields
    };
    let text = |text: &str| {
        let payload = assemble::utf16z(text);
        arguments(&starts(&assemble::v4_named("Own", 1, "JobStart", &fields(18), &payload)))
    };
    assert_eq!(text(&"é".repeat(4_095)), format!("f={}", "é".repeat(4_095)), "8 KiB");
    assert_eq!(text(&"é".repeat(4_096)), format!("f={}…", "é".repeat(4_095)));
    assert_eq!(text(&format!("x{}", "é".repeat(4_096))), format!("f=x{}…", "é".repeat(4_094)));

    // Elements that are all the same bytes of the payload.
    let count = 1_000_u16;
    let size = 2 + 4 * u32::from(count);
    let mut row = [assemble::utf8("Own"), vec![1], assemble::utf8("JobStart"), vec![1, 0]].concat();
    let field = [&assemble::utf8("f")[..], &[19, 25, 6]].concat();
    row.extend((field.len() as u16).to_le_bytes());
    row.extend(field);
    row.extend([0, 0]);
    let payload = [&count.to_le_bytes()[..], &(size << 16).to_le_bytes().repeat(count.into())];
    let tracker = starts(&assemble::v6(&row, &payload.concat()));
    assert!(arguments(&tracker).starts_with("error="), "{}", arguments(&tracker).len());

    // Long names, which each activity has.
    let name = format!("{}Start", "x".repeat(4_000));
    let metadata = assemble::metadata("Own", 1, 0, &name, 0, &fields(9));
    let events = (0..8_000_u32)
        .flat_map(|id| assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &id.to_le_bytes()))
        .collect::<Vec<_>>();
    let stream = assemble::Stream::v4()
        .compressed("MetadataBlock", &assemble::blob(&[0x80, 0], &metadata))
        .compressed("EventBlock", &events)
        .end();
    let tracker = starts(&stream);
    let open = tracker.open().count();
    assert!(open > 1_000 && open * 4 * name.len() < 1 << 26, "{open}");
    assert_eq!(tracker.unpaired(), 8_000 - open as u64);
    assert!(tracker.open().any(|activity| activity.arguments == "f=7999"));
}

#[test]
fn activities_without_ids_are_paired_by_the_fields_they_share() {
    for runtime in ["t31", "t9", "t10"] {
        let mut tracker = ActivityTracker::new();
        let (mut starts, mut stops) = (0, 0);
        let mut paired = Vec::new();
        each(common::data().join(format!("{runtime}-shapes.nettrace")), |event| {
            starts += u32::from(event.name() == "RequestStart");
            let activity = tracker.push(event);
            if event.name() == "RequestStop" {
                stops += 1;
                let id = event.field("id").unwrap();
                let Some(activity) = activity else { return };
                let kind = if id.as_i64().unwrap() < 0 { "inner" } else { "items" };
                let number = id.as_i64().unwrap().abs();
                assert_eq!(activity.arguments, format!("id={id}, url=/{kind}/{number}"));
                paired.push(id.as_i64().unwrap());
            }
        });
        assert!(starts > 20, "{runtime}: {starts}");
        // The session may begin and end within a round.
        let unpaired = tracker.unpaired();
        assert!(unpaired <= 2 && tracker.open().count() <= 2, "{runtime}: {unpaired}");
        assert_eq!(paired.len() as u64, stops - unpaired, "{runtime}");
    }
}

#[test]
fn event_counters_have_values_and_units() {
    let mut tracker = CounterTracker::new();
    let mut all = BTreeMap::new();
    each(common::data().join("t10-counters.nettrace"), |event| {
        if let Some(counter) = tracker.push(event) {
            let key = (counter.provider.clone(), counter.name.clone());
            all.entry(key).or_insert_with(Vec::new).push(counter);
        }
    });
    let get = |provider: &str, name: &str| &all[&(provider.to_string(), name.to_string())];
    let memory = get("System.Runtime", "working-set");
    assert_eq!((memory.len(), memory[0].unit.as_str()), (4, "MB"));
    assert!(memory.iter().all(|c| c.value > 10.0 && c.value < 1_000.0));
    let heap = get("Rust-DiagIpc-SelfDesc", "heap-size");
    assert_eq!(heap[0].display_name, "Heap");
    let times = get("Rust-DiagIpc-SelfDesc", "request-time");
    assert!(times.iter().all(|c| c.unit == "ms" && c.kind == CounterKind::Gauge));
    assert!(times.iter().all(|c| c.range.is_some_and(|(min, max)| min >= 0.0 && max < 100.0)));
    // The workload counts each round once in both.
    let rate = get("Rust-DiagIpc-SelfDesc", "incs");
    assert!(rate.iter().all(|c| c.kind == CounterKind::Rate));
    let per_second = rate.last().unwrap().per_second().unwrap();
    let count = times.last().unwrap().count.unwrap() as f64;
    assert!((per_second - count).abs() <= count * 0.05 + 2.0, "{per_second} {count}");
}

#[test]
fn meters_have_values_and_tags() {
    let mut tracker = CounterTracker::new();
    let mut values = Vec::new();
    each(common::data().join("t9-metrics.nettrace"), |event| {
        values.extend(tracker.push(event));
    });
    assert_eq!(tracker.errors(), 0);
    assert!(values.iter().all(|v| v.interval_seconds == Some(1.0) && v.value.is_finite()));
    let cpus = values.iter().find(|v| v.name == "dotnet.process.cpu.count").unwrap();
    assert_eq!((cpus.value, cpus.unit.as_str(), cpus.kind), (2.0, "{cpu}", CounterKind::Gauge));
    assert!(values.iter().any(|v| v.tags.contains("gc.heap.generation=gen0")));
    // The runtime numbers them.
    let ids = BTreeMap::from_iter(values.iter().map(|v| (v.name.as_str(), v.instrument_id)));
    let numbers = std::collections::BTreeSet::from_iter(ids.values().flatten());
    assert!(numbers.len() == ids.len() && ids.len() > 10, "{ids:?}");
    assert!(values.iter().any(|v| v.kind == CounterKind::Rate && v.value > 0.0));
}

/// A stream of events of the runtime's provider: id, version and payload.
fn runtime_events(events: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let of_thread =
        |(id, version, payload): &(u32, u32, Vec<u8>)| (9, *id, *version, payload.clone());
    runtime_events_of(&events.iter().map(of_thread).collect::<Vec<_>>())
}

/// The same with the thread of each event.
fn runtime_events_of(events: &[(u8, u32, u32, Vec<u8>)]) -> Vec<u8> {
    let (mut types, mut blobs) = (Vec::new(), Vec::new());
    for (number, (thread, id, version, payload)) in events.iter().enumerate() {
        let provider = "Microsoft-Windows-DotNETRuntime";
        let mut metadata = assemble::metadata(provider, *id, *version, "", 0, &[0; 4]);
        let index = number as u32 + 1;
        metadata[..4].copy_from_slice(&index.to_le_bytes());
        types.extend(assemble::blob(&[0x80, 0], &metadata));
        let index = assemble::varint(index.into());
        blobs.extend(assemble::blob(&[&[0xc7], &*index, &[0, 9, 0, *thread, 5]].concat(), payload));
    }
    assemble::Stream::v4()
        .compressed("MetadataBlock", &types)
        .compressed("EventBlock", &blobs)
        .end()
}

pub(crate) fn numbers(numbers: &[u32], rest: usize) -> Vec<u8> {
    let mut payload: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    payload.resize(payload.len() + rest, 0);
    payload
}

pub(crate) fn collections(stream: &[u8]) -> (Vec<GarbageCollection>, GcTracker) {
    let (mut tracker, mut done) = (GcTracker::new(), Vec::new());
    let mut parser = Reader::new(stream);
    while let Some(event) = parser.next_event().unwrap() {
        tracker.push(&event);
        done.extend(std::iter::from_fn(|| tracker.next_gc()));
    }
    (done, tracker)
}

#[test]
fn the_pause_of_a_gc_is_unknown_if_its_suspension_was_not_seen() {
    let start = |number| (1, 2, numbers(&[number, 1, 0, 0], 10));
    let end = |number| (2, 1, numbers(&[number, 1], 2));
    let resumed = || (3, 1, numbers(&[], 2));
    let suspend = || (9, 1, numbers(&[1, 2], 2));
    let stream =
        runtime_events(&[start(1), end(1), resumed(), suspend(), start(2), end(2), resumed()]);
    let (done, tracker) = collections(&stream);
    assert_eq!(done.len(), 2, "{done:?}");
    assert_eq!((done[0].number, done[0].pause), (1, None));
    assert_eq!((done[1].number, done[1].pause), (2, Some(lasting(15))));
    assert_eq!(tracker.undecodable(), 0);
}

#[test]
fn a_lost_end_of_a_suspension_hides_no_later_gc() {
    let collect = |thread, number| {
        [
            (thread, 9, 1, numbers(&[1, number], 2)),
            (thread, 8, 1, numbers(&[], 2)),
            (thread, 1, 2, numbers(&[number, 1, 0, 0], 10)),
            (thread, 2, 1, numbers(&[number, 1], 2)),
            (thread, 4, 1, numbers(&[], 94)),
            (thread, 3, 1, numbers(&[], 2)),
        ]
    };
    let mut events = collect(8, 1).to_vec();
    events.pop();
    events.extend((2..=100).flat_map(|number| collect(9, number)));
    // On the same thread.
    events.pop();
    events.extend(collect(9, 101));
    let (done, tracker) = collections(&runtime_events_of(&events));
    assert_eq!(tracker.undecodable(), 0);
    assert_eq!(done.iter().map(|gc| gc.number).collect::<Vec<_>>(), Vec::from_iter(1..=101));
    for gc in done {
        let is_lost = matches!(gc.number, 1 | 100);
        assert_eq!(gc.pause, (!is_lost).then_some(lasting(25)), "{gc:?}");
    }
}

/// The payload of an event about the suspension of a GC.
pub(crate) fn pause_of(number: u32, event: u8) -> Vec<u8> {
    match event {
        9 => numbers(&[1, number], 2),
        1 => numbers(&[number, 1, 0, 0], 10),
        2 => numbers(&[number, 1], 2),
        _ => numbers(&[], 2),
    }
}

/// The pauses of the GCs of one thread, and the lengths of its suspensions. Each event has its time and the number
/// of its GC.
fn pauses(events: &[(u8, u64, u32)]) -> (Vec<(u32, Option<Duration>)>, Vec<Duration>) {
    let mut stream = of_two_processes();
    let ids = [(9, 1), (8, 1), (1, 2), (2, 1), (3, 1)];
    declare(&mut stream, &ids.map(|(event, version)| (RUNTIME, event, version, "", &[][..])));
    for (event, time, number) in events {
        let id = ids.iter().position(|(id, _)| id == event).unwrap() as u8 + 1;
        write(&mut stream, id, 1, *time, &pause_of(*number, *event));
    }
    let (stream, mut tracker) = (stream.end(), GcTracker::new());
    let (mut gcs, mut suspensions) = (Vec::new(), Vec::new());
    let mut reader = Reader::new(&stream[..]);
    while let Some(event) = reader.next_event().unwrap() {
        suspensions.extend(tracker.push(&event).map(|s| s.end - s.start));
        gcs.extend(std::iter::from_fn(|| tracker.next_gc()).map(|gc| (gc.number, gc.pause)));
    }
    (gcs, suspensions)
}

/// With a server GC, one thread suspends always.
#[test]
fn the_end_of_a_suspension_and_the_next_begin_can_be_lost() {
    let [begin, suspended, start, end, resumed] = [9, 8, 1, 2, 3];
    let all = [
        [(begin, 10, 1), (suspended, 11, 1), (start, 12, 1), (end, 20, 1), (resumed, 21, 1)],
        [
            (begin, 6_000, 2),
            (suspended, 6_001, 2),
            (start, 6_002, 2),
            (end, 6_010, 2),
            (resumed, 6_012, 2),
        ],
        [
            (begin, 7_000, 3),
            (suspended, 7_001, 3),
            (start, 7_002, 3),
            (end, 7_010, 3),
            (resumed, 7_013, 3),
        ],
    ]
    .concat();
    let known = |gcs: [Option<u64>; 3]| Vec::from_iter((1..).zip(gcs.map(|gc| gc.map(lasting))));
    let complete = known([Some(11), Some(12), Some(13)]);
    assert_eq!(pauses(&all), (complete, [11, 12, 13].map(lasting).to_vec()));
    // From the first end on: up to the begin, the time of the suspension, or the start of the next GC.
    for lost in [4..6, 4..7] {
        let mut events = all.clone();
        events.drain(lost.clone());
        let expected = known([None, None, Some(13)]);
        assert_eq!(pauses(&events), (expected, vec![lasting(13)]), "{lost:?}");
    }
    // Up to that start, which only the end of its GC shows.
    let mut events = all;
    events.drain(4..8);
    let last = lasting(13);
    assert_eq!(pauses(&events), (vec![(1, None), (3, Some(last))], vec![last]));
}

/// Of a flush, the stream has all events of one thread before those of another one.
#[test]
fn suspensions_in_the_order_of_the_stream_are_those_of_their_threads() {
    let mut stream = assemble::V6::new();
    stream.block(6, &[1, 2].map(|n: u8| [5, 0, n, 2, 10, 3, n]).concat());
    let events = [(9, 1), (8, 1), (1, 2), (2, 1), (3, 1)];
    declare(&mut stream, &events.map(|(event, version)| (RUNTIME, event, version, "", &[][..])));
    let [begin, suspended, start, end, resumed] = [1, 2, 3, 4, 5];
    for (thread, gc, events) in [
        (2, 1, &[(begin, 5), (suspended, 6), (start, 7), (end, 8), (resumed, 9)][..]),
        (2, 3, &[(begin, 90), (suspended, 91), (start, 92)]),
        (1, 2, &[(begin, 50), (suspended, 51), (start, 52), (end, 53), (resumed, 55)]),
        (2, 3, &[(end, 178), (resumed, 180)]),
    ] {
        for (event, time) in events {
            let payload = match *event {
                1 => numbers(&[1, gc], 2),
                3 => numbers(&[gc, 1, 0, 0], 10),
                4 => numbers(&[gc, 1], 2),
                _ => numbers(&[], 2),
            };
            write(&mut stream, *event, thread, *time, &payload);
        }
    }
    let stream = stream.end();
    let (mut tracker, mut pauses) = (GcTracker::new(), Vec::new());
    let mut reader = Reader::with_options(&stream[..], Options::new().order(Order::Stream));
    while let Some(event) = reader.next_event().unwrap() {
        let pause = tracker.push(&event);
        pauses.extend(pause.map(|s| (s.tid, s.start.nanos(), s.end.nanos(), s.gc)));
    }
    assert_eq!(pauses, [(2, 5, 9, Some(1)), (1, 50, 55, Some(2)), (2, 90, 180, Some(3))]);
    let gcs: Vec<_> = std::iter::from_fn(|| tracker.next_gc()).collect();
    let gcs: Vec<_> = gcs.iter().map(|gc| (gc.number, gc.pause)).collect();
    assert_eq!(gcs, [(1, 4), (3, 90), (2, 5)].map(|(gc, pause)| (gc, Some(lasting(pause)))));
}

#[test]
fn events_of_a_gc_without_their_fields_are_counted() {
    // A version of GCStart that ends after the generation.
    let stream = runtime_events(&[
        (1, 0, numbers(&[7, 1], 0)),
        (2, 1, numbers(&[], 0)),
        (3, 1, numbers(&[], 2)),
    ]);
    let (done, tracker) = collections(&stream);
    assert_eq!(done, []);
    assert_eq!(tracker.undecodable(), 2);
}

pub(crate) fn records(stream: &[u8]) -> (Vec<RuntimeRecord>, u64) {
    let (mut tracker, mut records) = (RuntimeTracker::new(), Vec::new());
    let mut parser = Reader::new(stream);
    while let Some(event) = parser.next_event().unwrap() {
        records.extend(tracker.push(&event));
    }
    (records, tracker.undecodable())
}

#[test]
fn events_of_the_runtime_without_their_fields_are_counted() {
    // Each payload ends too early: allocation, sampled allocation, thread pool, exception, wait,
    // compilation and its end.
    let ids = [(10, 3), (303, 0), (50, 0), (57, 0), (55, 0), (80, 1), (81, 2), (145, 1), (143, 2)];
    let short = ids.map(|(id, version)| (id, version, Vec::new()));
    assert_eq!(records(&runtime_events(&short)), (vec![], ids.len() as u64));
    // A wait on .NET 7 has no lock: only its flags and the runtime's number.
    let stream = runtime_events(&[(81, 1, vec![0, 1, 0]), (91, 1, vec![0; 11])]);
    let (records, incomplete) = records(&stream);
    assert_eq!(incomplete, 0);
    match records.as_slice() {
        [RuntimeRecord::Contention(wait)] => {
            assert_eq!((wait.lock_id, wait.owner_tid), (None, None));
            assert!(wait.managed && wait.end > wait.start, "{wait:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_size_of_a_compilation_is_unknown_if_its_start_was_not_seen() {
    let loaded = {
        // MethodID, ModuleID, address, size, token, flags (jitted), and three names.
        let mut payload = [7_u64, 1, 2].map(u64::to_le_bytes).concat();
        payload.extend([100_u32, 3, 8].map(u32::to_le_bytes).concat());
        for name in ["N", "M", "void ()"] {
            payload.extend(name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
        }
        payload.extend([0; 2 + 8]); // number of the runtime, id of the rejit
        payload
    };
    let (records, incomplete) = records(&runtime_events(&[(143, 2, loaded)]));
    assert_eq!(incomplete, 0);
    match records.as_slice() {
        [RuntimeRecord::JitCompilation(jit)] => {
            assert_eq!((jit.il_size, jit.code_size, jit.start), (None, 100, None));
            assert_eq!(jit.method, "N.M");
        }
        other => panic!("{other:?}"),
    }
}

/// MethodID, ModuleID, token, IL bytes, the names, number of the runtime.
fn jitting_started(id: u64, namespace: &str, name: &str) -> Vec<u8> {
    let numbers = [100_u32, 3].map(u32::to_le_bytes).concat();
    let names = [namespace, name, "void ()"].map(assemble::utf16z).concat();
    [&[id, 1].map(u64::to_le_bytes).concat()[..], &numbers, &names, &[9, 0]].concat()
}

/// MethodID, ModuleID, address, size, token, flags (jitted, tier 1), number of the runtime.
fn method_loaded(id: u64, size: u32) -> Vec<u8> {
    let numbers = [size, 3, 8 | 4 << 7].map(u32::to_le_bytes).concat();
    [&[id, 1, 2].map(u64::to_le_bytes).concat()[..], &numbers, &[9, 0]].concat()
}

#[test]
fn a_load_event_without_a_name_ends_a_compilation() {
    let stream = runtime_events(&[
        (145, 1, jitting_started(7, "N.T", "M")),
        (145, 1, jitting_started(8, "", "Main")),
        (141, 1, method_loaded(8, 20)),
        (141, 1, method_loaded(7, 10)),
        // Its start was not seen, so its name is not known.
        (141, 1, method_loaded(7, 10)),
    ]);
    let (records, incomplete) = records(&stream);
    assert_eq!(incomplete, 0);
    let compilations: Vec<_> = records
        .iter()
        .map(|record| match record {
            RuntimeRecord::JitCompilation(jit) => {
                assert_eq!((jit.il_size, jit.tier), (Some(3), OptimizationTier::OptimizedTier1));
                assert_eq!(jit.signature, "void ()");
                (jit.method.as_str(), jit.code_size, (jit.end - jit.start.unwrap()).as_nanos())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(compilations, [("Main", 20, 5), ("N.T.M", 10, 15)]);
}

/// Amount, kind, number of the runtime, amount of 64 bits, type and its name, heap.
fn allocation_of_version_2() -> Vec<u8> {
    [
        &numbers(&[1, 1], 2)[..],
        &300_u64.to_le_bytes(),
        &7_u64.to_le_bytes(),
        &assemble::utf16z("T"),
        &[0; 4],
    ]
    .concat()
}

/// `AllocationSampled` of an object of `size` bytes.
fn sampled_allocation(size: u64) -> (u32, u32, Vec<u8>) {
    // Kind, number of the runtime, type and its name, address, bytes, offset of the sample.
    let payload = [
        &numbers(&[1], 2)[..],
        &7_u64.to_le_bytes(),
        &assemble::utf16z("S"),
        &[8, size, 0].map(u64::to_le_bytes).concat(),
    ]
    .concat();
    (303, 0, payload)
}

#[test]
fn allocations_are_records_in_every_version() {
    let newest = [
        &allocation_of_version_2()[..],
        &8_u64.to_le_bytes(), // address
        &24_u64.to_le_bytes(),
    ]
    .concat();
    let stream = runtime_events(&[
        (10, 0, numbers(&[100, 1], 0)),
        (10, 1, numbers(&[200, 1], 2)),
        (10, 2, allocation_of_version_2()),
        (10, 4, newest),
        sampled_allocation(400),
    ]);
    let (records, incomplete) = records(&stream);
    assert_eq!(incomplete, 0);
    let allocations: Vec<_> = records
        .iter()
        .map(|record| match record {
            RuntimeRecord::Allocation(a) => {
                assert_eq!(a.kind, 1);
                (a.type_name.as_deref(), a.amount, a.object_size)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (None, 100, None),
        (None, 200, None),
        (Some("T"), 300, None),
        (Some("T"), 300, Some(24)),
        // 400 / (1 - (1 - 1/102400)^400)
        (Some("S"), 102_600, Some(400)),
    ];
    assert_eq!(allocations, expected);
}

#[test]
fn bytes_of_allocations_are_those_of_one_kind_of_sample() {
    let totals = |events: &[(u32, u32, Vec<u8>)]| -> Vec<(String, u64, u64)> {
        let stream = runtime_events(events);
        let mut stacks = EventStacks::new(StackEvent::Allocation);
        let mut reader = Reader::new(&stream[..]);
        reader.for_each(|event| stacks.push(&event)).unwrap();
        assert_eq!(stacks.undecodable(), 0);
        stacks.totals().map(|t| (t.type_name.clone(), t.count, t.weight)).collect()
    };
    let tick = || (10, 2, allocation_of_version_2());
    let ticks = [(10, 0, numbers(&[100, 1], 0)), (10, 1, numbers(&[200, 1], 2)), tick(), tick()];
    assert_eq!(totals(&ticks), [(String::new(), 2, 300), ("T".into(), 2, 600)]);
    let both = [tick(), sampled_allocation(400), tick(), sampled_allocation(1_000_000)];
    assert_eq!(totals(&both), [("S".into(), 2, 102_600 + 1_000_057)]);
}

/// A field of the version is missing, or one that no record has is cut short.
#[test]
fn damaged_events_are_not_taken_for_those_of_earlier_versions() {
    let cut = |mut payload: Vec<u8>, bytes| {
        payload.truncate(payload.len() - bytes);
        payload
    };
    // Amount and kind only; without the name; half a heap.
    let whole = allocation_of_version_2();
    let allocations =
        [numbers(&[1, 1], 0), cut(whole.clone(), 4 + 4), cut(whole, 2)].map(|a| (10, 2, a));
    // A wait on .NET 8 without a lock.
    let waits = [(81, 2, vec![0, 1, 0])];
    let events = [&allocations[..], &waits].concat();
    assert_eq!(records(&runtime_events(&events)), (vec![], events.len() as u64));
    // Sizes of a heap without the pinned objects, and half a count of suspensions.
    let heap = (4, 2, vec![0; 8 * 10 + 4 * 3 + 2]);
    let suspension = (9, 1, numbers(&[1], 2));
    let (done, tracker) = collections(&runtime_events(&[heap, suspension]));
    assert_eq!((done, tracker.undecodable()), (vec![], 2));
}

/// A lock wait has the stack of its start and its duration.
#[test]
fn waits_are_added_up_by_thread() {
    let start = || (81, 1, vec![0, 1, 0]);
    let stop = || (91, 1, vec![0; 11]);
    let stream = runtime_events(&[stop(), start(), stop(), start(), stop(), (81, 1, vec![])]);
    let mut stacks = EventStacks::new(StackEvent::Contention);
    let mut reader = Reader::new(&stream[..]);
    reader.for_each(|event| stacks.push(&event)).unwrap();
    let totals: Vec<_> = stacks.totals().map(|t| (t.count, t.weight, t.first)).collect();
    assert_eq!(totals, [(2, 10, at(15))]);
    assert_eq!(stacks.undecodable(), 1);
}

/// An event of the first thread with a stack: numbers of its type and of the stack, time.
fn write_with(stream: &mut assemble::V6, event: (u8, u8), time: u64, payload: &[u8]) {
    write_numbered(stream, 1, event, time, payload);
}

/// The same, with the number of the event among those of its thread.
fn write_numbered(
    stream: &mut assemble::V6,
    number: u8,
    (id, stack): (u8, u8),
    time: u64,
    payload: &[u8],
) {
    let header = [&[0xcf, id, number - 1, 1, 0, 1, stack][..], &assemble::varint(time)].concat();
    stream.compressed(&assemble::blob(&header, payload));
}

/// The type and stack of a start or end of a wait, its time, and the duration that an end has.
pub(crate) type WaitEvent = ((u8, u8), u64, f64);

/// A stream with the stacks 1 to 3, which are the addresses 0x100, 0x200 and 0x300, and starts (1) and ends (2) of
/// waits. An end has its duration in nanoseconds. The thread lost events before each.
fn waits(events: &[WaitEvent]) -> Vec<u8> {
    numbered_waits(&Vec::from_iter(events.iter().map(|event| (1, *event))))
}

/// The same, with the numbers of the events.
pub(crate) fn numbered_waits(events: &[(u8, WaitEvent)]) -> Vec<u8> {
    let mut stream = of_two_processes();
    declare(&mut stream, &[(RUNTIME, 81, 2, "", &[]), (RUNTIME, 91, 1, "", &[])]);
    let stacks =
        [0x100, 0x200, 0x300].map(|ip: u64| [&[8, 0, 0, 0], &ip.to_le_bytes()[..]].concat());
    stream.block(5, &[&[1, 0, 0, 0, 3, 0, 0, 0], &stacks.concat()[..]].concat());
    for (number, (event, time, nanos)) in events {
        let payload = match event {
            // Flags, number of the runtime, lock, what it belongs to, owner.
            (1, _) => [&[0, 1, 0], &[7, 8, 9].map(u64::to_le_bytes).concat()[..]].concat(),
            _ => [&[0, 1, 0], &nanos.to_le_bytes()[..]].concat(),
        };
        write_numbered(&mut stream, *number, *event, *time, &payload);
    }
    stream.end()
}

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// The end of a wait, and the start of the next one of its thread.
#[test]
fn a_wait_whose_start_was_lost_has_its_own_duration_and_stack() {
    let [start, stop] = [1, 2];
    let late = 60 * SECOND;
    let stream = waits(&[
        ((start, 1), SECOND, 0.0),
        // Lost: its end, and the start of another one.
        ((stop, 2), late + 5_000_000, 5e6),
        // The start is not written at the moment from which the wait is measured.
        ((start, 1), late + SECOND, 0.0),
        ((stop, 2), late + SECOND + 3_000_000, 3_100_000.0),
        // Its start is not there at all.
        ((stop, 3), late + 2 * SECOND, 2e6),
        // It does not say how long it was.
        ((start, 1), late + 3 * SECOND, 0.0),
        ((stop, 2), late + 3 * SECOND + 10, 0.0),
    ]);
    let mut stacks = EventStacks::new(StackEvent::Contention);
    Reader::new(&stream[..]).for_each(|event| stacks.push(&event)).unwrap();
    let totals = stacks.totals().map(|total| {
        let addresses: Vec<u64> = stacks.frames(total).map(|frame| frame.address).collect();
        (addresses[0], total.count, total.weight)
    });
    let expected = [(0x200, 1, 5_000_000), (0x100, 2, 3_100_010), (0x300, 1, 2_000_000)];
    assert_eq!(Vec::from_iter(totals), expected);

    let (records, incomplete) = records(&stream);
    let waits = records.iter().map(|record| match record {
        RuntimeRecord::Contention(wait) => {
            ((wait.end - wait.start).as_nanos(), wait.lock_id, wait.managed)
        }
        other => panic!("{other:?}"),
    });
    let expected = [
        (5_000_000, None, true),
        (3_000_000, Some(7), true),
        (2_000_000, None, true),
        (10, Some(7), true),
    ];
    assert_eq!((Vec::from_iter(waits), incomplete), (expected.to_vec(), 0));
}

/// The thread lost its CPU after it had the lock, and wrote the end 5 ms later.
#[test]
fn a_wait_whose_end_is_written_late_keeps_its_start_and_lock() {
    let [start, stop] = [1, 2];
    let begin = SECOND;
    let wait = |numbers: [u8; 2]| {
        let stream = numbered_waits(&[
            (numbers[0], ((start, 1), begin, 0.0)),
            (numbers[1], ((stop, 2), begin + 7_000_000, 2e6)),
        ]);
        let mut stacks = EventStacks::new(StackEvent::Contention);
        Reader::new(&stream[..]).for_each(|event| stacks.push(&event)).unwrap();
        let total = stacks.totals().next().unwrap();
        let stack: Vec<u64> = stacks.frames(total).map(|frame| frame.address).collect();
        let (records, _) = records(&stream);
        let [RuntimeRecord::Contention(wait)] = records[..] else { panic!("{records:?}") };
        let since = wait.start.nanos() - begin as i64;
        (since, wait.lock_id, wait.owner_tid, stack[0], total.weight)
    };
    assert_eq!(wait([1, 2]), (0, Some(7), Some(9), 0x100, 2_000_000));
    // Events between the two were lost: the start may be that of another wait.
    assert_eq!(wait([1, 3]), (5_000_000, None, None, 0x200, 2_000_000));
    // It is too short for that end.
    let stream = numbered_waits(&[
        (1, ((start, 1), 10 * SECOND, 0.0)),
        (2, ((stop, 2), 10 * SECOND + 7_000_000, 50e6)),
    ]);
    let (records, _) = records(&stream);
    let [RuntimeRecord::Contention(wait)] = records[..] else { panic!("{records:?}") };
    assert_eq!((wait.end - wait.start, wait.lock_id), (lasting(50_000_000), None));
}

/// A collector writes for all threads: its numbers do not show the events that one of them lost.
#[test]
fn a_wait_that_a_collector_wrote_has_its_own_duration() {
    let mut stream = of_two_processes();
    declare(&mut stream, &[(RUNTIME, 81, 2, "", &[]), (RUNTIME, 91, 1, "", &[])]);
    let start = [vec![0, 1, 0], [7_u64, 8, 9].map(u64::to_le_bytes).concat()].concat();
    let stop = [vec![0, 1, 0], 1e6_f64.to_le_bytes().to_vec()].concat();
    for (id, time, payload) in [(1, SECOND, start), (2, 10 * SECOND, stop)] {
        let header = [&[0xc7, id, 0, 0, 0, 1][..], &assemble::varint(time)].concat();
        stream.compressed(&assemble::blob(&header, &payload));
    }
    let (records, incomplete) = records(&stream.end());
    let [RuntimeRecord::Contention(wait)] = records[..] else { panic!("{records:?}") };
    assert_eq!((wait.end - wait.start, wait.lock_id), (lasting(1_000_000), None));
    assert_eq!(incomplete, 0);
}

/// A duration is believed if the wait began after the zero of the clock.
#[test]
fn a_wait_does_not_begin_before_its_clock() {
    let [start, stop] = [1, 2];
    for nanos in [1e300, 1.1e9, f64::INFINITY] {
        let stream = numbered_waits(&[
            // Nothing says how long it was.
            (1, ((stop, 3), SECOND, nanos)),
            (2, ((start, 1), SECOND, 0.0)),
            (3, ((stop, 2), SECOND + 40, nanos)),
        ]);
        let mut stacks = EventStacks::new(StackEvent::Contention);
        Reader::new(&stream[..]).for_each(|event| stacks.push(&event)).unwrap();
        let totals: Vec<_> = stacks.totals().map(|total| (total.count, total.weight)).collect();
        assert_eq!(totals, [(1, 40)], "{nanos}");
        let (mut tracker, mut records) = (RuntimeTracker::new(), Vec::new());
        let mut reader = Reader::new(&stream[..]);
        reader.for_each(|event| records.extend(tracker.push(&event))).unwrap();
        let [RuntimeRecord::Contention(wait)] = records[..] else { panic!("{records:?}") };
        assert_eq!((wait.end - wait.start, wait.lock_id), (lasting(40), Some(7)), "{nanos}");
        assert_eq!((tracker.dropped(), tracker.undecodable()), (1, 0), "{nanos}");
    }
}

#[test]
fn heap_items_without_their_fields_are_counted() {
    let mut heap = HeapSnapshot::new();
    // GCStart, GCBulkNode and GCBulkRootEdge without a field.
    let stream = runtime_events(&[(1, 2, vec![]), (18, 0, vec![]), (16, 0, vec![])]);
    let mut parser = Reader::new(&stream[..]);
    while let Some(event) = parser.next_event().unwrap() {
        heap.push(&event);
    }
    assert_eq!((heap.nodes().len(), heap.roots().len(), heap.missing()), (0, 0, (0, 3)));
}

/// A runtime describes the type of each object that it finalizes.
#[test]
fn repeated_types_take_no_room() {
    let ty = [&7u64.to_le_bytes()[..], &[0; 17], &assemble::utf16z("T"), &[0; 4]].concat();
    let types = [&1_000u32.to_le_bytes()[..], &[0, 0], &ty.repeat(1_000)].concat();
    let node = [0x100_u64, 24, 7, 0].map(u64::to_le_bytes).concat();
    let nodes = [numbers(&[0, 1], 2), node].concat();
    let stream = runtime_events(&[(15, 0, types), (18, 0, nodes)]);
    let mut heap = HeapSnapshot::with_limits(Limits { max_buffer: 4096, ..Limits::default() });
    Reader::new(&stream[..]).for_each(|event| heap.push(&event)).unwrap();
    assert_eq!((heap.nodes().len(), heap.types().count(), heap.missing()), (1, 1, (0, 0)));
}

/// The capture's own counts: 45 GCStart, 249 exceptions, 265 waits, 1651 pauses begun.
#[test]
fn collections_exceptions_and_waits_are_as_many_as_their_events() {
    let Some(file) = larger("t9-cpu.nettrace") else { return };
    let mut gc = GcTracker::new();
    let mut runtime = RuntimeTracker::new();
    let (mut pauses, mut collections, mut exceptions, mut waits) = (0, 0, 0, 0);
    let mut last_number = None;
    each(file, |event| {
        if let Some(pause) = gc.push(event) {
            pauses += 1;
            assert!(pause.start <= pause.end);
            assert!(pause.suspended.is_none_or(|s| pause.start <= s && s <= pause.end));
        }
        while let Some(done) = gc.next_gc() {
            collections += 1;
            assert!(done.pause.unwrap() >= done.end - done.start, "blocking: {done:?}");
            let heap = done.heap.unwrap();
            assert!(heap.total() > 0 && heap.total() < 1 << 30, "{heap:?}");
            assert_eq!(done.number, last_number.map_or(done.number, |n: u32| n + 1));
            last_number = Some(done.number);
        }
        match runtime.push(event) {
            Some(RuntimeRecord::Exception(e)) => {
                exceptions += 1;
                assert_eq!(e.type_name, "System.InvalidOperationException");
                assert!(e.message.starts_with("boom-") && e.message.ends_with("-αβ"), "{e:?}");
            }
            Some(RuntimeRecord::Contention(wait)) => {
                waits += 1;
                assert!(wait.managed && wait.lock_id > Some(0) && wait.owner_tid > Some(0));
            }
            _ => {}
        }
    });
    assert_eq!((collections, exceptions, waits), (45, 249, 265));
    assert!((1_640..=1_651).contains(&pauses), "{pauses}"); // some were under way at the ends
}

#[test]
fn a_heap_walk_gives_types_objects_and_references() {
    let Some(file) = larger("t10-gcdump.nettrace") else { return };
    let mut heap = HeapSnapshot::new();
    let mut promoted = 0;
    each(file, |event| {
        heap.push(event);
        // The collection that walks the heap says how much survived it.
        if event.name() == "GCHeapStats" && promoted == 0 {
            let sizes = (0..5).map(|i| event.field(&format!("TotalPromotedSize{i}")).unwrap());
            promoted = sizes.map(|v| v.as_u64().unwrap()).sum();
        }
    });
    assert!(heap.is_complete(), "{:?}", heap.missing());
    assert_eq!((heap.nodes().len(), heap.edge_count()), (1_307, 1_254));
    let (size, promoted) = (heap.total_size() as f64, promoted as f64);
    assert!((size / promoted - 1.0).abs() < 0.05, "{size} {promoted}");
    let histogram = heap.histogram();
    assert_eq!((histogram[0].name.as_str(), histogram[0].count), ("System.Byte[]", 68));
    assert_eq!(histogram.iter().map(|t| t.size).sum::<u64>(), heap.total_size());
    // Every reference leads to an object that the walk saw.
    let known: std::collections::HashSet<u64> = heap.nodes().iter().map(|n| n.address).collect();
    for node in heap.nodes() {
        assert!(heap.type_of(node).is_some(), "{node:?}");
        assert!(heap.edges(node).iter().all(|edge| known.contains(edge)));
    }
    let roots = heap.roots();
    assert!(roots.iter().any(|r| r.kind == RootKind::Handle));
    assert!(roots.iter().any(|r| r.kind == RootKind::Stack));
}

#[test]
fn sampled_frames_resolve_to_methods() {
    for (name, at_least) in [("t31-cpu.nettrace", 0.99), ("t9-cpu.nettrace", 0.99)] {
        let Some(file) = larger(name) else { return };
        let bytes = std::fs::read(&file).unwrap();
        let profile = Profile::read(&mut Reader::new(&bytes[..])).unwrap();
        let (all, resolved) = profile.resolved();
        assert!(all > 20_000, "{all}");
        assert!(resolved as f64 / all as f64 >= at_least, "{resolved} of {all}");
        let folded = profile.folded(|_| true);
        let burn = "Workload!Workload.Loop(int32);Workload!Workload.Burn(int32,int32)";
        assert!(folded.lines().any(|line| line.contains(burn)), "{folded}");
    }
}

/// A stream of version 6 has processes and mappings of its own.
#[test]
fn version_6_mappings_name_the_module_of_an_address() {
    let mut methods = MethodMap::new();
    let mut processes = Vec::new();
    each(common::data().join("v6-record-trace-pid.nettrace"), |event| {
        methods.push(event);
        if event.name() == "ExistingProcess" {
            processes.push((event.pid(), event.field("Name").unwrap().to_string()));
        }
    });
    assert_eq!(processes, [(12_312, "wl9".to_string())]);
    let loader = methods.resolve(12_312, 140_134_865_252_352 + 0x100, at(0));
    assert_eq!(loader.to_string(), "ld-linux-x86-64.so.2!0x7f73b0dd3100");
    assert_eq!(methods.resolve(12_312, 0x1000, at(0)).to_string(), "?!0x1000");
    assert_eq!(methods.resolve(1, 140_134_865_252_352, at(0)).module, None, "another process");
}

pub(crate) const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
const RUNDOWN: &str = "Microsoft-Windows-DotNETRuntimeRundown";

/// A stream of version 6 with threads 1 and 2, of the processes 10 and 20.
pub(crate) fn of_two_processes() -> assemble::V6 {
    let mut stream = assemble::V6::new();
    // Size, index, process id, thread id.
    stream.block(6, &[1, 2].map(|n: u8| [5, 0, n, 2, n * 10, 3, n * 10 + 1]).concat());
    stream
}

/// A type of event: provider, number, version, name, fields with their type codes.
pub(crate) type Declared<'a> = (&'a str, u8, u8, &'a str, &'a [(&'a str, u8)]);

/// Declares types of events.
pub(crate) fn declare(stream: &mut assemble::V6, types: &[Declared<'_>]) {
    let mut block = vec![0, 0];
    for (id, (provider, event, version, name, fields)) in (1u8..).zip(types) {
        let mut row = [
            vec![id],
            assemble::utf8(provider),
            assemble::varint((*event).into()),
            assemble::utf8(name),
        ]
        .concat();
        row.extend((fields.len() as u16).to_le_bytes());
        for (name, code) in *fields {
            let field = [assemble::utf8(name), vec![*code]].concat();
            row.extend((field.len() as u16).to_le_bytes());
            row.extend(field);
        }
        row.extend([2, 0, 9, *version]);
        block.extend((row.len() as u16).to_le_bytes());
        block.extend(row);
    }
    stream.block(3, &block);
}

/// An event in a block of its own: number of its type, thread, time.
pub(crate) fn write(stream: &mut assemble::V6, id: u8, thread: u8, time: u64, payload: &[u8]) {
    let header = [&[0xc7, id, 0, thread, 0, thread][..], &assemble::varint(time)].concat();
    stream.compressed(&assemble::blob(&header, payload));
}

/// A collector writes no version in metadata, and names and fields of its own.
#[test]
fn events_of_the_runtime_without_a_version_are_of_the_newest() {
    let row = |id: u8, event: u8, name: &str, rest: &[u8]| {
        let names = [&assemble::utf8(RUNTIME)[..], &[event], &assemble::utf8(name)].concat();
        let row = [&[id][..], &names, rest].concat();
        [&(row.len() as u16).to_le_bytes()[..], &row].concat()
    };
    // One field, a number.
    let field = [&assemble::utf8("Own")[..], &[10]].concat();
    let declared = [&[1, 0, field.len() as u8, 0][..], &field, &[0, 0]].concat();
    let rows = [
        row(1, 1, "Unknown(1)", &[0; 4]),
        row(2, 2, "OwnName", &declared),
        // With a version, which is older.
        row(3, 2, "", &[0, 0, 2, 0, 9, 0]),
    ];
    let mut stream = of_two_processes();
    stream.block(3, &[&[0, 0][..], &rows.concat()].concat());
    // A list of one label: version 2.
    stream.block(8, &[1, 0, 0, 0, 1, 0, 0, 0, 10 | 0x80, 2]);
    let start = numbers(&[7, 2, 0, 1], 10);
    stream.compressed(&assemble::blob(&[0xd7, 1, 0, 0, 0, 1, 5, 1], &start));
    write(&mut stream, 2, 1, 6, &numbers(&[7, 2], 2));
    write(&mut stream, 3, 1, 7, &numbers(&[8], 2));
    let (stream, mut seen) = (stream.end(), Vec::new());
    let mut reader = Reader::new(&stream[..]);
    while let Some(event) = reader.next_event().unwrap() {
        let number = match GcEvent::decode(&event).unwrap() {
            Some(GcEvent::Start { number, generation: 2, .. } | GcEvent::End { number }) => number,
            other => panic!("{other:?}"),
        };
        let fields = event.metadata().fields.len();
        seen.push(format!("{} {} {fields} {number}", event.name(), event.version()));
    }
    assert_eq!(seen, ["GCStart 2 6 7", "OwnName 1 3 7", "GCEnd 0 2 8"]);
}

/// Collectors of version 6 record several processes into one stream.
#[test]
fn processes_are_not_mixed() {
    let mut stream = of_two_processes();
    let id: &[(&str, u8)] = &[("id", 10)];
    declare(
        &mut stream,
        &[
            (RUNTIME, 1, 2, "", &[]),
            (RUNTIME, 2, 1, "", &[]),
            ("Own", 1, 0, "JobStart", id),
            ("Own", 2, 0, "JobStop", id),
            (RUNTIME, 18, 0, "", &[]),
            (RUNTIME, 15, 0, "", &[]),
        ],
    );
    let start = [&1u32.to_le_bytes()[..], &[0; 22]].concat();
    let end = [&1u32.to_le_bytes()[..], &[0; 6]].concat();
    // One object of the type 7, at the address that is the number of the process.
    let nodes = |address: u64| {
        let numbers = [0u32, 1].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let node = [address, 24, 7, 0].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        [numbers, vec![0, 0], node].concat()
    };
    let types = |name: &str| {
        let ty = [&7u64.to_le_bytes()[..], &[0; 17], &assemble::utf16z(name), &[0; 4]].concat();
        [&1u32.to_le_bytes()[..], &[0, 0], &ty].concat()
    };
    let job = 1u32.to_le_bytes();
    for (id, thread, time, payload) in [
        (1, 1, 10, &start[..]),
        (1, 2, 20, &start),
        (2, 2, 30, &end),
        (6, 2, 31, &types("Other")),
        (6, 1, 32, &types("Own")),
        (5, 1, 40, &nodes(10)),
        (5, 2, 41, &nodes(20)),
        (2, 1, 50, &end),
        (3, 1, 60, &job),
        (3, 2, 61, &job),
        (4, 1, 62, &job),
        (4, 2, 63, &job),
    ] {
        write(&mut stream, id, thread, time, payload);
    }
    let stream = stream.end();
    let (mut gcs, mut activities) = (GcTracker::new(), ActivityTracker::new());
    let (mut heap, mut ended) = (HeapSnapshot::new(), Vec::new());
    let mut reader = Reader::new(&stream[..]);
    while let Some(event) = reader.next_event().unwrap() {
        assert!(gcs.push(&event).is_none());
        heap.push(&event);
        ended.extend(activities.push(&event));
    }
    assert_eq!((gcs.next_gc(), gcs.undecodable()), (None, 0));
    let of = |activity: &nettrace::analysis::Activity| {
        (activity.pid, activity.start.nanos(), activity.end.nanos())
    };
    assert_eq!(ended.iter().map(of).collect::<Vec<_>>(), [(10, 60, 62), (20, 61, 63)]);
    assert_eq!((heap.pid(), heap.time()), (Some(10), Some(at(40))));
    assert_eq!(heap.nodes().len(), 1);
    assert_eq!((heap.nodes()[0].address, heap.missing()), (10, (0, 0)));
    assert_eq!(heap.type_of(&heap.nodes()[0]).unwrap().name, "Own");
    assert!(heap.is_complete() && heap.types().count() == 1);
}

#[test]
fn gcs_of_two_processes_have_their_own_ends() {
    let mut stream = of_two_processes();
    declare(
        &mut stream,
        &[(RUNTIME, 1, 2, "", &[]), (RUNTIME, 2, 1, "", &[]), (RUNTIME, 4, 1, "", &[])],
    );
    let start = [&1u32.to_le_bytes()[..], &[0; 22]].concat();
    let end = [&1u32.to_le_bytes()[..], &[0; 6]].concat();
    let sizes = [0; 94];
    for (id, thread, time, payload) in [
        (1, 1, 10, &start[..]),
        (1, 2, 20, &start),
        (2, 2, 30, &end),
        // A repeated end is that of another GC whose start was lost.
        (2, 2, 31, &end),
        (3, 2, 32, &sizes),
        (2, 1, 100, &end),
        (3, 1, 101, &sizes),
    ] {
        write(&mut stream, id, thread, time, payload);
    }
    let (done, tracker) = collections(&stream.end());
    assert_eq!(tracker.undecodable(), 0);
    let done = done.iter().map(|gc| (gc.pid, gc.start.nanos(), gc.end.nanos())).collect::<Vec<_>>();
    assert_eq!(done, [(20, 20, 30), (10, 10, 100)]);
}

/// A thread has samples while it is on a CPU, so the time between two can be a sleep.
#[test]
fn cpu_samples_have_the_weight_that_they_declare() {
    let value: &[(&str, u8)] = &[("Value", 21)];
    let rate = [assemble::utf8("ExpectedCPUSamplingRate"), assemble::utf8("2000000")].concat();
    let rated = assemble::V6::with_properties(1, &rate);
    // 1 ms without a rate; the ticks are nanoseconds.
    for (mut stream, period) in [(assemble::V6::new(), 1_000_000), (rated, 2_000_000)] {
        stream.block(6, &[1, 2].map(|n: u8| [5, 0, n, 2, n * 10, 3, n * 10 + 1]).concat());
        let sampler = ("Microsoft-DotNETCore-SampleProfiler", 0, 0, "ThreadSample", value);
        declare(&mut stream, &[("Universal.Events", 1, 0, "cpu", value), sampler]);
        for (id, thread, time, payload) in [
            (1, 1, 0, &[1][..]),
            (2, 2, 0, &[2, 0, 0, 0]),
            (2, 2, 3_000, &[2, 0, 0, 0]),
            (1, 1, 10_000_000_000, &[3]),
            (1, 2, 10_000_000_001, &[0]),
            (1, 2, 10_000_000_002, &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ] {
            write(&mut stream, id, thread, time, payload);
        }
        let stream = stream.end();
        let profile = Profile::read(&mut Reader::new(&stream[..])).unwrap();
        let expected = [period, 3_000, 3_000, 3 * period, 0, i64::MAX as u64];
        assert_eq!(profile.weights(), expected.map(lasting));
    }
}

/// Process, thread, kind and stack of samples.
type Alike = (u64, u64, SampleKind, u32);

/// Their count and weight, and the times of the first and the last one.
type Sum = (u64, Duration, Timestamp, Timestamp);

/// Adds samples up.
fn summed(samples: impl Iterator<Item = (Alike, Sum)>) -> HashMap<Alike, Sum> {
    let mut sums = HashMap::new();
    for (key, sample) in samples {
        sums.entry(key)
            .and_modify(|sum: &mut Sum| {
                (sum.0, sum.1) = (sum.0 + sample.0, sum.1 + sample.1);
                (sum.2, sum.3) = (sum.2.min(sample.2), sum.3.max(sample.3));
            })
            .or_insert(sample);
    }
    sums
}

/// The sums of the samples of a stream are those of the samples one by one. Returns their number.
fn sums_are_those_of_samples(stream: &[u8]) -> usize {
    let profile = Profile::read(&mut Reader::new(stream)).unwrap();
    let one_by_one = profile
        .samples()
        .iter()
        .zip(profile.weights())
        .map(|(s, weight)| ((s.pid, s.tid, s.kind, s.stack), (1, weight, s.time, s.time)));
    let mut ordered = ProfileSums::with_order();
    Reader::new(stream).for_each(|event| ordered.push(&event)).unwrap();
    let sums = ProfileSums::read(&mut Reader::new(stream)).unwrap();
    assert_eq!((ordered.totals(), sums.in_order().count()), (sums.totals(), 0));
    let totals = sums.totals();
    let of_totals = totals
        .iter()
        .map(|t| ((t.pid, t.tid, t.kind, t.stack), (t.count, t.weight, t.first, t.last)));
    assert_eq!(summed(of_totals), summed(one_by_one));
    // In their order, too.
    let in_order = ordered.in_order().map(|(index, weight)| (totals[index].stack, weight));
    let stacks = profile.samples().iter().map(|sample| sample.stack);
    assert_eq!(Vec::from_iter(in_order), Vec::from_iter(stacks.zip(profile.weights())));
    totals.len()
}

#[test]
fn sums_of_samples_have_the_weights_of_their_samples() {
    // Larger ones have more intervals than give the usual one.
    let captures = common::captures_with_answers().into_iter();
    for (file, _) in captures.filter(|(file, _)| file.starts_with(common::data())) {
        sums_are_those_of_samples(&std::fs::read(file).unwrap());
    }
    let mut stream = of_two_processes();
    let value: &[(&str, u8)] = &[("Value", 21)];
    let sampler = ("Microsoft-DotNETCore-SampleProfiler", 0, 0, "", &[][..]);
    declare(&mut stream, &[sampler, ("Universal.Events", 1, 0, "cpu", value)]);
    for (id, thread, time, payload) in [
        (1, 1, 1_000, &[2, 0, 0, 0][..]),
        (1, 2, 1_500, &[2, 0, 0, 0]),
        (1, 1, 2_000, &[1, 0, 0, 0]),
        (1, 1, 3_000, &[2, 0, 0, 0]),
        // More than four of the usual intervals.
        (1, 1, 90_000, &[2, 0, 0, 0]),
        (2, 1, 90_500, &[3]),
        (1, 1, 91_000, &[2, 0, 0, 0]),
    ] {
        write(&mut stream, id, thread, time, payload);
    }
    // Managed and external code and the CPU of one thread, and managed code of the other.
    assert_eq!(sums_are_those_of_samples(&stream.end()), 4);
}

/// Memory depends on what differs, not on the length of the stream.
#[test]
fn a_million_samples_are_a_sum_for_each_thread_and_stack() {
    const BLOCKS: u64 = 334;
    let mut head = assemble::V6::new();
    head.block(6, &[1, 2, 3].map(|n: u8| [5, 0, n, 2, 10, 3, n * 10 + 1]).concat());
    declare(&mut head, &[("Microsoft-DotNETCore-SampleProfiler", 0, 0, "", &[])]);
    let addresses = [0x1010u64, 0x2020].map(|ip| [&[8, 0, 0, 0][..], &ip.to_le_bytes()].concat());
    head.block(5, &[&[1, 0, 0, 0, 2, 0, 0, 0][..], &addresses.concat()].concat());
    let mut parser = Parser::new(Options::new().order(Order::Stream));
    parser.push(&head.0);
    let mut sums = ProfileSums::new();
    // A sample of managed code with this stack, 1000 ns later.
    let next = |stack: u8| [8, stack, 0xe8, 7, 2, 0, 0, 0];
    let others = [next(2), next(1)].concat().repeat(499);
    for block in 0..BLOCKS {
        for thread in 1..=3 {
            let time = assemble::varint(block * 1_000_000);
            let first = [&[0xcf, 1, 0, thread, 0, thread, 1][..], &time].concat();
            let first = assemble::blob(&first, &[2, 0, 0, 0]);
            let mut events = assemble::V6(Vec::new());
            events.compressed(&[&first[..], &others, &next(2)].concat());
            parser.push(&events.0);
            while let Some(event) = parser.next_event().unwrap() {
                sums.push(&event);
            }
        }
    }
    let totals = sums.totals();
    assert_eq!(totals.len(), 6);
    for total in totals {
        assert_eq!((total.count, total.weight), (BLOCKS * 500, lasting(BLOCKS * 500_000)));
        assert!([11, 21, 31].contains(&total.tid), "{total:?}");
    }
}

#[test]
fn a_mapping_replaces_older_ones() {
    let mut stream = of_two_processes();
    let numbers = ["Id", "StartAddress", "EndAddress", "FileOffset"].map(|name| (name, 12));
    let fields = [&numbers[..], &[("FileName", 23)]].concat();
    declare(&mut stream, &[("Universal.System", 1, 0, "ProcessMapping", &fields)]);
    for (id, time, start, end, name) in [
        (1u64, 10, 0x1000u64, 0x3000u64, "sh"),
        // A part of it, then both.
        (2, 20, 0x1800, 0x2000, "dotnet"),
        (3, 30, 0x1000, 0x2800, "coreclr"),
    ] {
        let numbers = [id, start, end, 0].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        write(
            &mut stream,
            1,
            1,
            time,
            &[&numbers[..], &[name.len() as u8, 0], name.as_bytes()].concat(),
        );
    }
    let stream = stream.end();
    let mut map = MethodMap::new();
    Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    let module = |address, time| map.resolve(10, address, at(time)).module.map_or("", |m| m.name());
    for (address, names) in [
        // Before all of them, and after each.
        (0x1000, ["sh", "sh", "sh", "coreclr"]),
        (0x17ff, ["sh", "sh", "sh", "coreclr"]),
        (0x1800, ["sh", "sh", "dotnet", "coreclr"]),
        (0x1fff, ["sh", "sh", "dotnet", "coreclr"]),
        (0x2000, ["sh", "sh", "sh", "coreclr"]),
        (0x2fff, ["sh", "sh", "sh", "sh"]),
        (0x3000, [""; 4]),
        (0xfff, [""; 4]),
    ] {
        assert_eq!([5, 15, 25, 35].map(|time| module(address, time)), names, "{address:#x}");
    }
    assert!(map.resolve(20, 0x1800, at(25)).module.is_none(), "another process");
}

/// Two libraries were at one address, one after another.
#[test]
fn native_code_has_the_life_of_its_mapping() {
    let mut stream = of_two_processes();
    let numbers = ["Id", "StartAddress", "EndAddress"].map(|name| (name, 12));
    let mapping = [&numbers[..], &[("FileName", 23)]].concat();
    let of_symbol = ["MappingId", "StartAddress", "EndAddress"].map(|name| (name, 12));
    let symbol = [&of_symbol[..], &[("Name", 23)]].concat();
    let events = [("ProcessMapping", &mapping[..]), ("ProcessSymbol", &symbol)];
    declare(&mut stream, &events.map(|(name, fields)| ("Universal.System", 1, 0, name, fields)));
    for (id, time, mapping, end, name) in [
        (1, 10, 1u64, 0x2000u64, "a.so"),
        (2, 10, 1, 0x1100, "of_a"),
        (1, 20, 2, 0x2000, "b.so"),
        (2, 20, 2, 0x1100, "of_b"),
        // The same file again.
        (1, 40, 3, 0x2000, "b.so"),
    ] {
        let numbers = [mapping, 0x1000, end].map(u64::to_le_bytes).concat();
        let payload = [&numbers[..], &[name.len() as u8, 0], name.as_bytes()].concat();
        write(&mut stream, id, 1, time, &payload);
    }
    let stream = stream.end();
    let mut map = MethodMap::new();
    Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    let names = |address, time| {
        let frame = map.resolve(10, address, at(time));
        (frame.method.map_or("", |m| &*m.name), frame.module.map_or("", |m| m.name()))
    };
    for time in [5, 10, 19] {
        assert_eq!(names(0x1050, time), ("of_a", "a.so"), "{time}");
        assert_eq!(names(0x1800, time), ("", "a.so"), "{time}");
    }
    for time in [20, 30, 50] {
        assert_eq!(names(0x1050, time), ("of_b", "b.so"), "{time}");
    }
    assert_eq!(map.period(10, [0x1050], at(12)), at(10)..=at(19));
    assert_eq!(map.period(10, [0x5000], at(12)), Timestamp::MIN..=Timestamp::MAX);
}

/// The runtime gives the address of an unloaded module to another one.
#[test]
fn methods_have_the_module_that_was_loaded_with_them() {
    let mut stream = of_two_processes();
    let events = [(143, 1), (144, 1), (151, 1), (152, 2)];
    declare(&mut stream, &events.map(|(event, version)| (RUNTIME, event, version, "", &[][..])));
    let [load, unload, domain_module, module] = [1, 2, 3, 4];
    let of_method = |id: u64, module: u64| {
        let numbers = [[id, module, id << 12].map(u64::to_le_bytes).concat()];
        let sizes = [0x100_u32, 0, 0].map(u32::to_le_bytes).concat();
        let names = ["Plugin", "Run", "void ()"].map(assemble::utf16z).concat();
        [&numbers.concat()[..], &sizes, &names, &[9, 0]].concat()
    };
    let paths = |name: &str| [assemble::utf16z(name), vec![0, 0, 9, 0]].concat();
    let of_domain = |id: u64, name: &str| {
        [&[id, 1, 1].map(u64::to_le_bytes).concat()[..], &[0; 8], &paths(name)].concat()
    };
    let of_module = |id: u64, name: &str, signature: u8| {
        let pdb = [&[signature; 16][..], &[1, 0, 0, 0], &assemble::utf16z("a.pdb")].concat();
        let numbers = [id, 1].map(u64::to_le_bytes).concat();
        [&numbers[..], &[0; 8], &paths(name), &pdb, &[0; 16 + 4 + 2]].concat()
    };
    for (event, time, payload) in [
        // The module of this one was loaded before the session, and is described at its end.
        (load, 5, of_method(4, 9)),
        (domain_module, 9, of_domain(8, "/a.dll")),
        (module, 10, of_module(8, "/a.dll", 1)),
        (load, 11, of_method(1, 8)),
        (unload, 15, of_method(1, 8)),
        (domain_module, 19, of_domain(8, "/b.dll")),
        (module, 20, of_module(8, "/b.dll", 2)),
        (load, 21, of_method(2, 8)),
        // Another build of the same file.
        (module, 30, of_module(8, "/b.dll", 3)),
        (load, 31, of_method(3, 8)),
        (module, 40, of_module(8, "/b.dll", 3)),
        (module, 41, of_module(9, "/c.dll", 4)),
    ] {
        write(&mut stream, event, 1, time, &payload);
    }
    let stream = stream.end();
    let mut map = MethodMap::new();
    Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    let module = |id: u64| {
        let frame = map.resolve(10, id << 12, at(50));
        let module = frame.module.unwrap();
        assert_eq!(map.module_of(frame.method.unwrap()), Some(module));
        (module.name(), module.pdb_signature.unwrap().to_bytes()[0])
    };
    assert_eq!([1, 2, 3, 4].map(module), [("a", 1), ("b", 2), ("b", 3), ("c", 4)]);
    assert_eq!(map.modules().count(), 4);
}

/// A rundown repeats what was loaded.
#[test]
fn repeated_methods_and_modules_take_no_room() {
    let mut stream = of_two_processes();
    declare(&mut stream, &[(RUNDOWN, 144, 1, "", &[]), (RUNTIME, 152, 2, "", &[])]);
    let ids = [1_u64, 8, 0x1000].map(u64::to_le_bytes).concat();
    let sizes = [0x100_u32, 0, 0].map(u32::to_le_bytes).concat();
    let names = ["N", "M", "void ()"].map(assemble::utf16z).concat();
    let method = [ids, sizes, names, vec![9, 0]].concat();
    let ids = [8_u64, 1, 0].map(u64::to_le_bytes).concat();
    let paths = ["/a.dll", ""].map(assemble::utf16z).concat();
    let pdb = [&[5; 16][..], &[1, 0, 0, 0], &assemble::utf16z("a.pdb")].concat();
    let module = [ids, paths, vec![9, 0], pdb, vec![0; 16 + 4 + 2]].concat();
    for time in 0..200 {
        write(&mut stream, 1, 1, time, &method);
        write(&mut stream, 2, 1, time, &module);
    }
    let stream = stream.end();
    let mut map = MethodMap::with_limits(Limits { max_buffer: 4096, ..Limits::default() });
    Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    assert_eq!((map.methods().len(), map.modules().count(), map.dropped()), (1, 1, 0));
}

/// At level 4 a load event has no names. The rundown has them.
#[test]
fn the_rundown_names_methods_that_were_loaded_without_names() {
    let mut stream = of_two_processes();
    let types = [(RUNTIME, 143, 1), (RUNTIME, 144, 1), (RUNTIME, 141, 1), (RUNDOWN, 144, 1)];
    let types = types.map(|(provider, event, version)| (provider, event, version, "", &[][..]));
    declare(&mut stream, &types);
    let [load, unload, nameless, listed] = [1, 2, 3, 4];
    let method = |id: u64, names: &[&str]| {
        let ids = [id, 1, id.min(2) << 12].map(u64::to_le_bytes).concat();
        let sizes = [0x100_u32, 0x0600_0007, 0].map(u32::to_le_bytes).concat();
        let names: Vec<u8> = names.iter().flat_map(|name| assemble::utf16z(name)).collect();
        [ids, sizes, names, vec![9, 0]].concat()
    };
    let named = |id, name| method(id, &["N", name, "void ()"]);
    for (event, time, payload) in [
        (load, 10, named(3, "A")),
        (unload, 20, named(3, "A")),
        (nameless, 30, method(2, &[])),
        (listed, 40, named(2, "B")),
        // Both have one id.
        (nameless, 50, method(1, &[])),
        (unload, 60, named(1, "C")),
        (nameless, 70, method(1, &[])),
        (listed, 80, named(1, "D")),
    ] {
        write(&mut stream, event, 1, time, &payload);
    }
    let stream = stream.end();
    let mut map = MethodMap::new();
    Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    let name = |address, time| map.resolve(10, address, at(time)).method.unwrap().to_string();
    assert_eq!([15, 35, 99].map(|time| name(0x2010, time)), ["N.A()", "N.B()", "N.B()"]);
    assert_eq!([55, 75].map(|time| name(0x1010, time)), ["[token 0x06000007]", "N.D()"]);
    assert_eq!(map.methods().len(), 4);
}

/// Within the period of a time, an address has the same method, and another one next to it has its own.
#[test]
fn the_methods_of_a_period_are_the_same() {
    let mut stream = of_two_processes();
    declare(&mut stream, &[(RUNTIME, 141, 1, "", &[]), (RUNTIME, 142, 1, "", &[])]);
    for (event, time, id) in [(1, 20, 1u64), (2, 30, 1), (1, 51, 2), (1, 60, 3), (2, 70, 3)] {
        let ids = [id, 1, 0x1000].map(u64::to_le_bytes).concat();
        let sizes = [0x100_u32, 0, 0].map(u32::to_le_bytes).concat();
        write(&mut stream, event, 1, time, &[ids, sizes, vec![9, 0]].concat());
    }
    let stream = stream.end();
    let mut map = MethodMap::new();
    Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    let id = |time| map.resolve(10, 0x1010, at(time)).method.unwrap().id;
    for time in 0..100 {
        let period = map.period(10, [0x1010], at(time));
        assert!(period.contains(&at(time)));
        let own = id(time);
        let times = (0..100).filter(|other| period.contains(&at(*other)));
        assert!(times.clone().all(|other| id(other) == own), "{time}: {period:?}");
    }
    assert_eq!([0, 25, 35, 45, 55, 65, 99].map(id), [1, 1, 1, 2, 2, 3, 3]);
}

/// Code can be freed, and other code begin at another address in its place.
#[test]
fn stacks_before_and_after_code_was_replaced_are_apart() {
    for (start, size) in
        [(0x1800_u64, 0x1000_u32), (0x800, 0x1400), (0x1000, 0x1000), (0x800, 0x2000)]
    {
        let mut stream = of_two_processes();
        let types =
            [(RUNTIME, 143, 1, "", &[][..]), (RUNTIME, 144, 1, "", &[]), (RUNTIME, 80, 1, "", &[])];
        let sampler = ("Microsoft-DotNETCore-SampleProfiler", 0, 0, "", &[][..]);
        declare(&mut stream, &[&types[..], &[sampler]].concat());
        let ip = start.max(0x1000) + 0x100;
        let stack = [&[1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0], &ip.to_le_bytes()[..]].concat();
        stream.block(5, &stack);
        let method = |id: u64, start: u64, size: u32, name: &str| {
            let ids = [id, 1, start].map(u64::to_le_bytes).concat();
            let sizes = [size, 0, 0].map(u32::to_le_bytes).concat();
            [ids, sizes, ["N", name, "void ()"].map(assemble::utf16z).concat(), vec![9, 0]].concat()
        };
        let thrown = [["E", ""].map(assemble::utf16z).concat(), vec![0; 8 + 4 + 2 + 2]].concat();
        let old = method(1, 0x1000, 0x1000, "Old");
        write(&mut stream, 1, 1, 10, &old);
        write_with(&mut stream, (3, 1), 20, &thrown);
        write_with(&mut stream, (4, 1), 21, &[2, 0, 0, 0]);
        write(&mut stream, 1, 1, 22, &method(3, 0x5000, 0x100, "Elsewhere"));
        write_with(&mut stream, (3, 1), 25, &thrown);
        write(&mut stream, 2, 1, 30, &old);
        write(&mut stream, 1, 1, 40, &method(2, start, size, "New"));
        write_with(&mut stream, (3, 1), 50, &thrown);
        write_with(&mut stream, (4, 1), 51, &[2, 0, 0, 0]);
        let stream = stream.end();
        let mut stacks = EventStacks::new(StackEvent::Exception);
        Reader::new(&stream[..]).for_each(|event| stacks.push(&event)).unwrap();
        let totals = stacks.totals().map(|total| {
            let frame = stacks.frames(total).next().unwrap();
            (frame.method.unwrap().name.to_string(), total.count)
        });
        let expected = [("Old".to_owned(), 2), ("New".to_owned(), 1)];
        assert_eq!(Vec::from_iter(totals), expected, "{start:#x}, {size:#x}");
        let sums = ProfileSums::read(&mut Reader::new(&stream[..])).unwrap();
        let totals = sums.totals();
        let names = totals.iter().map(|total| {
            let frame = sums.frames(total).next().unwrap();
            (frame.method.unwrap().name.to_string(), total.count)
        });
        let expected = [("Old".to_owned(), 1), ("New".to_owned(), 1)];
        assert_eq!(Vec::from_iter(names), expected, "{start:#x}, {size:#x}");
    }
}

/// The separators of the format are in no name.
#[test]
fn folded_stacks_have_a_line_per_stack() {
    let mut stream = of_two_processes();
    let types =
        [(RUNTIME, 143, 1, "", &[][..]), ("Microsoft-DotNETCore-SampleProfiler", 0, 0, "", &[])];
    declare(&mut stream, &types);
    stream
        .block(5, &[&[1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0], &0x1010u64.to_le_bytes()[..]].concat());
    let ids = [1u64, 1, 0x1000].map(u64::to_le_bytes).concat();
    let sizes = [0x100_u32, 0, 0].map(u32::to_le_bytes).concat();
    let names = ["N", "a;b\nc", "void ()"].map(assemble::utf16z).concat();
    write(&mut stream, 1, 1, 10, &[ids, sizes, names, vec![9, 0]].concat());
    write_with(&mut stream, (2, 1), 20, &[2, 0, 0, 0]);
    let stream = stream.end();
    let profile = Profile::read(&mut Reader::new(&stream[..])).unwrap();
    assert_eq!(profile.folded(|_| true), "?!N.a:b c() 1\n");
}

#[test]
fn a_metadata_id_gets_another_meaning() {
    let mut stream = of_two_processes();
    declare(&mut stream, &[("A", 1, 0, "a", &[])]);
    write(&mut stream, 1, 1, 5, b"");
    // A sequence point that resets the metadata.
    stream.block(4, &[&6i64.to_le_bytes()[..], &2u32.to_le_bytes(), &[0; 4]].concat());
    declare(&mut stream, &[("B", 1, 0, "b", &[])]);
    write(&mut stream, 1, 1, 9, b"");
    let stream = stream.end();
    let mut summary = nettrace::Summary::new();
    Reader::new(&stream[..]).for_each(|event| summary.push(&event)).unwrap();
    assert_eq!(summary.iter().collect::<Vec<_>>(), [("A", 1, 0, 1), ("B", 1, 0, 1)]);
}
