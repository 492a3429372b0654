//! Live sessions with real runtimes, through `diag-ipc`: run by `cargo xtask test-runtimes`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use diag_ipc::{Client, Level, Provider, Rundown, TracingConfig};
use nettrace::analysis::{
    ActivityTracker, CounterTracker, GcTracker, HeapSnapshot, RuntimeRecord, RuntimeTracker,
};
use nettrace::{Event, FileTime, Options, Order, Profile, Reader, Stats, Timestamp, Value};
use testkit::dotnet::{Runtime, Target};

const WORKLOAD: &str = "Triscope-Workload";

/// Whether a test has the events that it checks.
#[derive(PartialEq)]
enum Enough {
    Yes,
    No,
}

impl Enough {
    fn when(condition: bool) -> Self {
        if condition { Self::Yes } else { Self::No }
    }
}

/// Limit of a wait for events of the target: a failure, not the end of a session that goes well.
const LIMIT: Duration = Duration::from_secs(120);

/// Streams from a target until `each` has seen enough events, and on to the end of the stream.
fn stream(
    target: &Target,
    config: &TracingConfig,
    order: Order,
    mut each: impl FnMut(&Event<'_>) -> Enough,
) -> Stats {
    let session = Client::new(target.socket()).collect_tracing(config).unwrap();
    let stop_handle = session.stop_handle();
    let (enough, wait) = std::sync::mpsc::sync_channel(1);
    // Stops from a thread of its own: the reply comes only while the stream is read.
    let stopper = std::thread::spawn(move || {
        let seen = wait.recv_timeout(LIMIT);
        stop_handle.stop().unwrap();
        seen
    });
    let mut reader = Reader::with_options(session, Options::new().order(order));
    while let Some(event) = reader.next_event().unwrap() {
        if each(&event) == Enough::Yes {
            let _ = enough.try_send(()); // the first one counts
        }
    }
    stopper.join().unwrap().expect("the target wrote the events of the test within the limit");
    assert!(reader.parser().is_complete());
    let stats = *reader.stats();
    assert_eq!((stats.damaged_blocks, stats.unreadable_metadata), (0, 0), "{stats:?}");
    assert_eq!((stats.events_without_metadata, stats.unknown_blocks), (0, 0), "{stats:?}");
    stats
}

fn workload(keywords: u64) -> Provider {
    Provider::new(WORKLOAD).keywords(keywords).level(Level::Verbose)
}

fn now_monotonic() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn int(event: &Event<'_>, name: &str) -> i64 {
    event.field(name).and_then(|v| v.as_i64()).unwrap_or_else(|| panic!("{name} of {event:?}"))
}

/// Round `i` of the workload writes values that follow from `i` alone.
fn check_primitives(event: &Event<'_>) -> i64 {
    let i = -int(event, "i32");
    let value = |name: &str| event.field(name).unwrap();
    assert_eq!(value("b"), Value::Bool(i % 2 == 0));
    assert_eq!(value("u8"), Value::U8(i as u8));
    assert_eq!(value("i8"), Value::I8(-i as i8));
    assert_eq!(value("i16"), Value::I16(-i as i16));
    assert_eq!(value("u16"), Value::U16(i as u16));
    assert_eq!(value("u32"), Value::U32(i as u32));
    assert_eq!(value("i64"), Value::I64(-i << 33));
    assert_eq!(value("u64"), Value::U64((i as u64) << 40));
    assert_eq!(value("f"), Value::F32(i as f32 / 3.0));
    assert_eq!(value("d"), Value::F64(i as f64 / 7.0));
    assert_eq!(value("g").to_string(), format!("{i:08x}-0001-0002-0304-05060708090a"));
    assert_eq!(value("c"), Value::Char(u16::from(b'x')));
    let Value::DateTime(time) = value("t") else { panic!("{event:?}") };
    assert_eq!(time.unix().nanos(), 1_577_934_245_000_000_000); // 2020-01-02 03:04:05
    assert_eq!(time, FileTime(132_224_078_450_000_000));
    let mut fields = event.fields();
    assert!(event.check_payload().is_ok(), "{event:?}");
    assert_eq!((fields.by_ref().count(), fields.rest()), (14, &b""[..]), "{event:?}");
    i
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn the_workloads_events_come_with_the_values_that_it_wrote() {
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).mode("mix").start();
        // All keywords: `Empty` has none of its own. Without a rundown.
        let config = TracingConfig::new([workload(u64::MAX)]).rundown(Rundown::None);
        let mut rounds: HashMap<String, Vec<i64>> = HashMap::new();
        let mut latencies = Vec::new();
        let begin = now_monotonic();
        let stats = stream(&target, &config, Order::Stream, |event| {
            if event.provider() != WORKLOAD {
                return Enough::No;
            }
            let now = now_monotonic();
            let at = event.time().nanos();
            assert!(begin < at && at < now, "the event clock is CLOCK_MONOTONIC");
            latencies.push(now - at);
            let i = match event.name() {
                "Primitives" => check_primitives(event),
                "Strings" => {
                    let i = int(event, "n");
                    let text = |name| event.field(name).unwrap().to_string();
                    assert_eq!(text("a"), format!("h\u{e9}llo-\u{1F600}-{i}"));
                    assert_eq!(text("b"), if i % 5 == 0 { "" } else { "z\u{100}z" });
                    assert_eq!((event.version(), event.level()), (3, 3));
                    i
                }
                "WorkStart" | "WorkStop" => {
                    // No runtime before 5 writes opcodes.
                    let opcode = if event.name() == "WorkStart" { 1 } else { 2 };
                    let expected = if runtime == Runtime::Core31 { 0 } else { opcode };
                    assert_eq!(event.opcode(), expected);
                    int(event, "id")
                }
                // No runtime describes a byte array: the payload is there all the same.
                "Bytes" => {
                    let [4, 0, 0, 0, 1, 2, 3, low] = event.payload() else { panic!("{event:?}") };
                    i64::from(*low)
                }
                "Empty" => {
                    assert_eq!(event.payload(), b"");
                    0
                }
                other => panic!("{other}"),
            };
            let numbers = rounds.entry(event.name().to_string()).or_default();
            numbers.push(i);
            Enough::when(event.name() == "Bytes" && numbers.len() >= 50)
        });
        // Rounds are numbered: as many came as were written, or the losses say how many not.
        assert_eq!(stats.lost, 0);
        for name in ["Primitives", "Strings", "Bytes"] {
            let numbers = &rounds[name];
            assert!(numbers.len() >= 20, "{runtime:?} {name}: {}", numbers.len());
            for pair in numbers.windows(2) {
                let next = if name == "Bytes" { (pair[0] + 1) % 256 } else { pair[0] + 1 };
                assert_eq!(pair[1], next, "{runtime:?} {name}");
            }
        }
        let count = |name: &str| rounds[name].len() as i64;
        assert!((count("Empty") - count("Primitives")).abs() <= 1);
        assert!((count("WorkStart") - 4 * count("Primitives")).abs() <= 4);
        assert!((count("WorkStart") - count("WorkStop")).abs() <= 8);
        for name in ["WorkStart", "WorkStop"] {
            let unique: HashSet<_> = rounds[name].iter().collect();
            assert_eq!(unique.len(), rounds[name].len(), "each once");
        }
        latencies.sort_unstable();
        let at = |q: f64| latencies[(latencies.len() as f64 * q) as usize] as f64 / 1e6;
        eprintln!(
            "{runtime:?}: {} events; from write to callback: median {:.0} ms, 99 % {:.0} ms",
            stats.events,
            at(0.5),
            at(0.99)
        );
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn floods_are_counted_to_the_last_event() {
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).mode("flood:2:0:0").start();
        // The smallest buffer, so that some are lost.
        let config = TracingConfig::new([workload(0x10)]).rundown(Rundown::None).buffer_mb(1);
        let (mut first, mut last) = (HashMap::new(), HashMap::new());
        let (mut events, mut slow) = (0u64, 0u64);
        let session = Client::new(target.socket()).collect_tracing(&config).unwrap();
        let stop_handle = session.stop_handle();
        let (enough, wait) = std::sync::mpsc::sync_channel(1);
        let stopper = std::thread::spawn(move || {
            let seen = wait.recv_timeout(LIMIT);
            stop_handle.stop().unwrap();
            seen
        });
        let mut reader = Reader::new(session);
        let mut lost_between = 0;
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                nettrace::Item::Event(event) if event.name() == "Flood" => {
                    events += 1;
                    // Written as two longs, declared as an int and a long: the overload of
                    // `WriteEvent` decides.
                    let payload = event.payload();
                    let number = i64::from_le_bytes(*payload.last_chunk().unwrap());
                    let thread = event.header().capture_thread;
                    first.entry(thread).or_insert(number);
                    let before = last.insert(thread, number).unwrap_or(number - 1);
                    assert!(number > before);
                    // A reader slower than the writers, so that the runtime loses events.
                    if lost_between == 0 && events % 4_096 == 0 {
                        slow += 1;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                nettrace::Item::Loss(lost) if lost.after.is_some() => lost_between += lost.count,
                _ => {}
            }
            if events > 100_000 && lost_between > 0 {
                let _ = enough.try_send(()); // the first one counts
            }
        }
        stopper.join().unwrap().expect("events were lost within the limit");
        let written: i64 = last.iter().map(|(t, n)| n - first[t] + 1).sum();
        let stats = *reader.stats();
        eprintln!(
            "{runtime:?}: {written} written, {events} came, {} lost, {slow} waits",
            stats.lost
        );
        assert!(events > 1_000);
        // Events lost between two that came are exactly those missing from the workload's numbers;
        // sequence points report losses after the last event comes on top.
        let missing = written as u64 - events;
        assert!(lost_between >= missing, "{lost_between} {missing}");
        let behind: u64 = stats.lost - missing;
        assert!(missing == lost_between || behind > 0, "{lost_between} {missing}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn sampled_frames_in_managed_code_resolve_to_names() {
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).mode("mix").start();
        let config = TracingConfig::new([
            Provider::new("Microsoft-DotNETCore-SampleProfiler").level(Level::Informational),
            // Loader and JIT, for methods that come while the session runs.
            Provider::new("Microsoft-Windows-DotNETRuntime").keywords(0x18).level(Level::Verbose),
        ]);
        let mut profile = Profile::new();
        let mut last = Timestamp::MIN;
        let stats = stream(&target, &config, Order::Time, |event| {
            profile.push(event);
            assert!(event.time() >= last, "in the order of time");
            last = event.time();
            Enough::when(profile.samples().len() > 1_000)
        });
        let (all, resolved) = profile.resolved();
        let samples = profile.samples().len();
        eprintln!("{runtime:?}: {samples} samples, {resolved} of {all} frames resolved, {stats:?}");
        assert!(samples > 500, "{samples}");
        assert!(resolved as f64 >= all as f64 * 0.98, "{resolved} of {all}");
        let folded = profile.folded(|_| true);
        assert!(folded.contains("Workload!Workload.Burn(int32,int32)"), "{folded}");
        assert!(folded.contains("Workload!Workload.Mix()"), "{folded}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn collections_exceptions_waits_counters_and_activities_are_followed() {
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).mode("mix").start();
        let config = TracingConfig::new([
            // GC, JIT, contention, exceptions, threads
            Provider::new("Microsoft-Windows-DotNETRuntime")
                .keywords(0x1_c011)
                .level(Level::Verbose),
            Provider::new("Triscope-SelfDescribing").arguments("EventCounterIntervalSec=1"),
            workload(0x4),
            Provider::new("System.Threading.Tasks.TplEventSource").keywords(0x80),
        ])
        .rundown(Rundown::None);
        let mut gc = GcTracker::new();
        let mut tracker = RuntimeTracker::new();
        let mut counters = CounterTracker::new();
        let mut activities = ActivityTracker::new();
        let counts = std::cell::RefCell::new(HashMap::<&str, u64>::new());
        let seen = |what| *counts.borrow_mut().entry(what).or_default() += 1;
        let mut boom = Vec::new();
        let mut works = Vec::new();
        stream(&target, &config, Order::Time, |event| {
            gc.push(event);
            while let Some(gc) = gc.next_gc() {
                assert!(gc.end > gc.start && gc.generation <= 2, "{gc:?}");
                assert!(gc.heap.is_some_and(|h| h.total() > 0), "{gc:?}");
                seen("gc");
            }
            match tracker.push(event) {
                Some(RuntimeRecord::Exception(e)) => {
                    assert_eq!(e.type_name, "System.InvalidOperationException");
                    let number = e.message.strip_prefix("boom-").unwrap();
                    boom.push(number.strip_suffix("-\u{3b1}\u{3b2}").unwrap().parse().unwrap());
                }
                Some(RuntimeRecord::Contention(wait)) => {
                    assert!(wait.end >= wait.start);
                    seen("wait");
                }
                Some(RuntimeRecord::Allocation(a)) => {
                    assert!(a.amount > 0);
                    seen("allocation");
                }
                Some(_) | None => {}
            }
            if let Some(counter) = counters.push(event) {
                match counter.name.as_str() {
                    "heap-size" => assert!(counter.value > 10_000.0, "{counter:?}"),
                    "request-time" => assert!((0.0..100.0).contains(&counter.value)),
                    "increments" | "total-rate" => assert!(counter.per_second().is_some()),
                    other => panic!("{other}"),
                }
                seen("counter");
            }
            if let Some(activity) = activities.push(event) {
                if activity.name == "Work" {
                    let path_is_known = activity.path.is_some();
                    works.push((activity.start, activity.path.map(|p| p.to_string())));
                    if path_is_known {
                        seen("activity with a path");
                    }
                    seen("activity");
                }
            }
            let counts = counts.borrow();
            let activities = ["activity", "activity with a path"].map(|what| counts.get(what));
            let [all, with_path] = activities.map(|n| n.copied().unwrap_or(0));
            let kinds = ["gc", "wait", "allocation", "counter", "activity"];
            let each_kind = kinds.iter().all(|what| counts.get(what).is_some_and(|n| *n > 2));
            Enough::when(each_kind && boom.len() > 10 && 2 * with_path > all + 20)
        });
        let counts = counts.into_inner();
        eprintln!("{runtime:?}: {} exceptions, {counts:?}", boom.len());
        for what in ["gc", "wait", "allocation", "counter", "activity"] {
            assert!(counts.get(what).is_some_and(|n| *n > 2), "{runtime:?}: {what}");
        }
        // Providers are enabled in turn: there are ids from where the tasks' provider is.
        works.sort();
        let with_id: Vec<_> = works.iter().skip_while(|(_, path)| path.is_none()).collect();
        assert!(with_id.len() > works.len() / 2, "{works:?}");
        for (_, path) in with_id {
            assert!(path.as_ref().is_some_and(|p| p.starts_with("//1/")), "{works:?}");
        }
        assert!(boom.len() > 10);
        assert!(boom.windows(2).all(|pair: &[i64]| pair[1] == pair[0] + 1), "{boom:?}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_heap_walk_sees_the_workloads_objects() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("mix").start();
        target.await_workload(); // it has allocated what it keeps
        let config = TracingConfig::new([Provider::new("Microsoft-Windows-DotNETRuntime")
            .keywords(0x198_0001)
            .level(Level::Verbose)])
        .rundown(Rundown::None);
        let mut heap = HeapSnapshot::new();
        stream(&target, &config, Order::Time, |event| {
            heap.push(event);
            Enough::when(event.name().starts_with("GCEnd") && heap.is_complete())
        });
        let histogram = heap.histogram();
        eprintln!("{runtime:?}: {} objects, {} references", heap.nodes().len(), heap.edge_count());
        assert!(heap.is_complete(), "{runtime:?} {:?}", heap.missing());
        assert!(heap.nodes().len() > 500);
        // It keeps 64 byte arrays.
        let bytes = histogram.iter().find(|t| t.name == "System.Byte[]").unwrap();
        assert!(bytes.count >= 32 && bytes.size > 100_000, "{bytes:?}");
    }
}
