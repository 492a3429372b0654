//! The page, read back: what is on it, what is not, and that names stay data.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use testkit::page::data;
use trace_export::html::{HtmlOptions, HtmlStats, HtmlTimeline};
use trace_timeline::answers::Report;
use trace_timeline::{
    Attribute, Correlator, Entity, EntityKind, Event, EventKind, Frame, InstantKind, LossKind,
    Mapping, SampleKind, SampledEvent, SampledEventId, SpanKind, State, Tables, TextId,
    ThreadState, Timestamp,
};

const HOSTILE: &[u8] = b"</script><script>alert(1)</script>\xff\0\"";

/// A goroutine that runs and waits this often, one after another, on one CPU.
fn page(turns: i64, options: HtmlOptions) -> (String, HtmlStats) {
    let mut tables = Tables::new();
    let name = tables.text(HOSTILE);
    let mut add = |kind, number, parent| {
        let entity = Entity::new(kind, number).child_of(parent).name(name);
        tables.entity(entity).unwrap()
    };
    let process = add(EntityKind::Process, 7, None);
    let cpu = add(EntityKind::Cpu, 0, None);
    let thread = add(EntityKind::Thread, 7, Some(process));
    let m = add(EntityKind::GoThread, 7, Some(process));
    let g = add(EntityKind::Goroutine, 1, Some(process));
    let mut events: Vec<(i64, EventKind)> =
        [process, cpu, thread, m, g].map(|entity| (0, EventKind::Start { entity })).to_vec();
    let state =
        |state, on| EventKind::State { entity: g, state, on, reason: TextId::EMPTY, stack: None };
    let switch = |prev, left, next| EventKind::Switch {
        cpu,
        prev,
        left,
        next,
        is_next_unknown: false,
        prio: 120,
    };
    for turn in 0..turns {
        let at = 100 + turn * 20;
        events.push((at, switch(None, ThreadState::Unknown, Some(thread))));
        events.push((at, state(State::Running, Some(m))));
        events.push((at + 10, state(State::Waiting, None)));
        events.push((at + 10, switch(Some(thread), ThreadState::Sleeping, None)));
    }
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    let mut html = HtmlTimeline::new(options);
    let mut each = |derived: trace_timeline::Derived<'_>| {
        report.push(&derived, &tables.entities);
        html.push(&derived, &tables);
    };
    for (at, kind) in events {
        let event = Event { time: Timestamp::from_nanos(at), kind };
        correlator.push(&event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    let mut out = Vec::new();
    let title = String::from_utf8_lossy(HOSTILE);
    let stats = html.write(&title, &tables, &report, &[], &mut out).unwrap();
    assert_eq!(stats.bytes, out.len() as u64);
    (String::from_utf8(out).unwrap(), stats)
}

#[test]
fn names_are_data() {
    let (page, _) = page(3, HtmlOptions::default());
    assert_eq!(page.matches("<script").count(), 2, "the data and the script of the page");
    assert!(!page.contains("alert(1)</script>"));
    let (json, _) = data(&page);
    assert!(json.contains("</script><script>alert(1)</script>\u{fffd}\\u0000\\\""), "{json}");
}

#[test]
fn every_interval_is_on_the_page() {
    let (page, stats) = page(1000, HtmlOptions::default());
    // Of the thread and of the goroutine: two of each turn, but the last wait has no duration, and
    // one before the first turn.
    assert_eq!((stats.items, stats.dropped, stats.folded), (2 * 2000, 0, 0));
    let (json, lanes) = data(&page);
    assert!(json.contains("\"nanos\":20090,"), "{json}");
    // CPU, thread and goroutine; the CPU has those of the thread in which it is on a CPU.
    let counts = [1000, 2000, 2000].map(|count| format!(",{count},"));
    assert!(counts.iter().all(|count| json.contains(count)), "{json}");
    assert!(lanes.len() < 5000 * 10, "{} bytes", lanes.len());
}

#[test]
fn intervals_above_the_limit_are_counted() {
    let mut options = HtmlOptions::default();
    options.max_items = 100;
    let (page, stats) = page(1000, options);
    assert_eq!((stats.items, stats.dropped), (100, 3900));
    let json = data(&page).0;
    assert!(json.contains("\"dropped\":3900,"));
    // A lane that ends in the middle is not idle from there on.
    let since = stats.missing_since.unwrap();
    assert!((1..20_090 / 2).contains(&since), "{since}");
    assert!(json.contains(&format!("\"missingSince\":{since},")), "{json}");
    let (page, stats) = self::page(1000, HtmlOptions::default());
    assert_eq!(stats.missing_since, None);
    assert!(data(&page).0.contains("\"missingSince\":-1,"));
}

/// Requests whose critical paths are missing are not denied.
#[test]
fn missing_paths_are_counted() {
    let json = |missing| {
        let mut html = HtmlTimeline::new(HtmlOptions::default());
        html.omit_paths(missing);
        let mut out = Vec::new();
        html.write("", &Tables::new(), &Report::new(), &[], &mut out).unwrap();
        data(&String::from_utf8(out).unwrap()).0
    };
    assert!(json(20).contains("\"pathsMissing\":20,"), "{}", json(20));
    assert!(json(0).contains("\"pathsMissing\":0,"));
}

/// The thread that took the CPU from a system call is not its waker.
#[test]
fn preempted_system_calls_have_a_kind() {
    let mut tables = Tables::new();
    let mut add =
        |kind, number, parent| tables.entity(Entity::new(kind, number).child_of(parent)).unwrap();
    let process = add(EntityKind::Process, 7, None);
    let cpu = add(EntityKind::Cpu, 0, None);
    let [thread, other] = [7, 8].map(|tid| add(EntityKind::Thread, tid, Some(process)));
    let m = add(EntityKind::GoThread, 7, Some(process));
    let g = add(EntityKind::Goroutine, 1, Some(process));
    let state =
        |state, on| EventKind::State { entity: g, state, on, reason: TextId::EMPTY, stack: None };
    let switch = |prev, left, next| EventKind::Switch {
        cpu,
        prev: Some(prev),
        left,
        next: Some(next),
        is_next_unknown: false,
        prio: 120,
    };
    let starts = [process, cpu, thread, other, m, g].map(|entity| (0, EventKind::Start { entity }));
    let events = starts.into_iter().chain([
        (10, switch(other, ThreadState::Sleeping, thread)),
        (10, state(State::Running, Some(m))),
        (20, state(State::Syscall, Some(m))),
        (30, switch(thread, ThreadState::Preempted, other)),
        (40, switch(other, ThreadState::Sleeping, thread)),
        (50, state(State::Waiting, None)),
    ]);
    let (mut html, mut correlator) = (HtmlTimeline::new(HtmlOptions::default()), Correlator::new());
    for (at, kind) in events {
        let event = Event { time: Timestamp::from_nanos(at), kind };
        correlator.push(&event, &tables.entities, &mut |derived| html.push(&derived, &tables));
    }
    correlator.finish(&mut |derived| html.push(&derived, &tables));
    let mut out = Vec::new();
    html.write("", &tables, &Report::new(), &[], &mut out).unwrap();
    let (_, lanes) = data(&String::from_utf8(out).unwrap());
    // Items of 10 ns after the one before. The system call has a CPU, loses it and gets it again.
    let [call, preempted] = [12, 29]
        .map(|kind| lanes.windows(3).filter(|item| item.starts_with(&[0, 10, kind])).count());
    assert_eq!((call, preempted), (2, 1), "{lanes:?}");
}

#[test]
fn counters_have_finite_values_only() {
    let mut tables = Tables::new();
    let name = tables.text(b"heap");
    let entity = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let mut html = HtmlTimeline::new(HtmlOptions::default());
    let mut correlator = Correlator::new();
    for (at, value) in (0..).zip([1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.0]) {
        let kind = EventKind::Counter { entity, name, unit: TextId::EMPTY, value };
        let event = Event { time: Timestamp::from_nanos(at), kind };
        correlator.push(&event, &tables.entities, &mut |derived| html.push(&derived, &tables));
    }
    let mut out = Vec::new();
    let stats = html.write("", &tables, &Report::new(), &[], &mut out).unwrap();
    let (json, _) = data(&String::from_utf8(out).unwrap());
    // A counter with two values, which are no intervals.
    assert!(json.contains("\"heap\",3,5,2,"), "{json}");
    assert!(json.contains("\"valuesOmitted\":3,"), "{json}");
    assert_eq!((stats.items, stats.values_omitted), (0, 3));
}

/// The size of each part of the heap is a counter with the same name.
#[test]
fn counters_of_one_name_have_different_titles() {
    let mut tables = Tables::new();
    let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let [size, bytes] = [b"size".as_slice(), b"B"].map(|text| tables.text(text));
    let mut part = |kind, number, name: &[u8]| {
        let name = tables.text(name);
        let entity = Entity::new(kind, number).child_of(Some(process)).name(name);
        tables.entity(entity).unwrap()
    };
    let entities = [
        part(EntityKind::Heap, 0, b"gen 0"),
        part(EntityKind::Heap, 3, b"LOH"),
        part(EntityKind::ThreadPool, 0, b"thread pool"),
        process,
    ];
    let events: Vec<Event> = [0, 1, 2]
        .into_iter()
        .flat_map(|time: i64| entities.map(|entity| (time, entity)))
        .map(|(time, entity)| {
            let kind = EventKind::Counter { entity, name: size, unit: bytes, value: time as f64 };
            Event { time: Timestamp::from_nanos(time), kind }
        })
        .collect();
    let page = drawn(&tables, &events, HtmlOptions::default());
    let mut names: Vec<&str> =
        page["tracks"].as_array().unwrap().iter().map(|track| track[1].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["Heap LOH (B)", "Heap gen 0 (B)", "Thread pool size (B)", "size (B)"]);
}

/// As those of quantiles of a histogram with many tags.
#[test]
fn counters_that_differ_at_the_end_of_long_names_have_different_names() {
    let mut tables = Tables::new();
    let entity = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let unit = tables.text(b"ms");
    let tags = "x".repeat(1 << 10);
    let counters =
        ["p50", "p95"].map(|quantile| tables.text(format!("{tags} {quantile}").as_bytes()));
    let events: Vec<Event> = [0, 1]
        .into_iter()
        .flat_map(|time: i64| counters.map(|name| (time, name)))
        .map(|(time, name)| {
            let kind = EventKind::Counter { entity, name, unit, value: time as f64 };
            Event { time: Timestamp::from_nanos(time), kind }
        })
        .collect();
    let page = drawn(&tables, &events, HtmlOptions::default());
    let mut names: Vec<&str> =
        page["tracks"].as_array().unwrap().iter().map(|track| track[1].as_str().unwrap()).collect();
    names.sort_unstable();
    let (begin, end) = ("x".repeat(100), "x".repeat(91));
    let expected = ["p50", "p95"].map(|quantile| format!("{begin}…{end} {quantile} (ms)"));
    assert_eq!(names, expected);
}

/// A .NET thread is drawn once: as the kernel sees it, or, without switches of the thread, as its runtime does.
#[test]
fn waits_of_dotnet_threads_are_drawn_without_the_scheduler() {
    let mut tables = Tables::new();
    let mut add = |kind, number, parent| {
        let entity = Entity::new(kind, number).child_of(parent);
        tables.entity(entity).unwrap()
    };
    let process = add(EntityKind::Process, 7, None);
    let cpu = add(EntityKind::Cpu, 0, None);
    let thread = add(EntityKind::Thread, 7, Some(process));
    let managed = add(EntityKind::DotnetThread, 7, Some(process));
    let other = add(EntityKind::Thread, 8, Some(process));
    let state = |state| EventKind::State {
        entity: managed,
        state,
        on: None,
        reason: TextId::EMPTY,
        stack: None,
    };
    let switch = |next| {
        let (prev, left, next) = (None, ThreadState::Unknown, Some(next));
        EventKind::Switch { cpu, prev, left, next, is_next_unknown: false, prio: 120 }
    };
    let starts = [process, cpu, thread, managed].map(|entity| (0, EventKind::Start { entity }));
    let states = [(10, state(State::Waiting)), (20, state(State::Running))];
    let drawn = |records: &[EventKind]| {
        let records = records.iter().map(|kind| (5, *kind));
        let event = |(at, kind)| Event { time: Timestamp::from_nanos(at), kind };
        let events = starts.into_iter().chain(records).chain(states).map(event);
        let events: Vec<Event> = events.collect();
        let (page, lanes) = drawn_with_lanes(&tables, &events, HtmlOptions::default());
        let groups = page["groups"].as_array().unwrap().iter();
        let groups: Vec<_> = groups.map(|group| group[0].as_str().unwrap().to_owned()).collect();
        let waits = lanes.windows(3).filter(|item| item.starts_with(&[0, 10, 11])).count();
        (groups, waits)
    };
    let (groups, waits) = drawn(&[]);
    assert_eq!(groups, ["process 7", ".NET threads"]);
    assert_eq!(waits, 1);
    let (groups, waits) = drawn(&[switch(thread)]);
    assert_eq!(groups, ["CPUs", "process 7", "threads (1)"]);
    assert_eq!(waits, 0);
    // It sleeps all the time.
    let (groups, waits) = drawn(&[EventKind::Start { entity: other }, switch(other)]);
    assert_eq!(groups, ["CPUs", "process 7", "threads (2)", ".NET threads"]);
    assert_eq!(waits, 1);
}

/// Waits in the queue of .NET's thread pool are no events of the program, and starvation is on the page.
#[test]
fn work_items_and_starvation_are_in_the_queue_of_the_thread_pool() {
    let mut tables = Tables::new();
    let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let name = tables.text(b"work item");
    let (span, at) = (tables.new_span(), Timestamp::from_nanos);
    let (kind, by, of, stack) = (SpanKind::Queued, None, None, None);
    let begin = EventKind::Begin { span, entity: process, kind, name, by, of, stack };
    let kind = InstantKind::Starvation;
    let starvation = EventKind::Instant { entity: process, kind, name, of, stack };
    let events =
        [(10, begin), (20, EventKind::Finish { span, by, is_cut: false }), (30, starvation)];
    let events = events.map(|(time, kind)| Event { time: at(time), kind });
    let (page, lanes) = drawn_with_lanes(&tables, &events, HtmlOptions::default());
    let groups = page["groups"].as_array().unwrap().iter().map(|group| group[0].as_str().unwrap());
    assert_eq!(groups.collect::<Vec<_>>(), ["process 7", "thread-pool queue"]);
    assert_eq!(page["items"], 2);
    // The wait of 10 ns, and the moment: each after the distance from the one before, its process and a number of 1.
    let kinds: Vec<&[u8]> =
        lanes.windows(3).filter(|item| matches!(item, [0, 10, 30] | [0, 0, 31])).collect();
    assert_eq!(kinds, [[0, 10, 30], [0, 0, 31]], "{lanes:?}");
}

/// What .NET does for tasks, and loads and compiles, is among what is like it.
#[test]
fn tasks_and_loads_of_dotnet_are_no_events() {
    let mut tables = Tables::new();
    let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let kinds = [
        SpanKind::TaskRun,
        SpanKind::Operation,
        SpanKind::TaskWait,
        SpanKind::Await,
        SpanKind::TypeLoad,
        SpanKind::TieredJit,
    ];
    let mut events = Vec::new();
    for (number, kind) in (0..).zip(kinds) {
        let (name, span) = (tables.text(kind.name().as_bytes()), tables.new_span());
        let (by, of, stack) = (None, None, None);
        let begin = EventKind::Begin { span, entity: process, kind, name, by, of, stack };
        let end = EventKind::Finish { span, by, is_cut: false };
        for (time, kind) in [(10 * number, begin), (10 * number + 5, end)] {
            events.push(Event { time: Timestamp::from_nanos(time), kind });
        }
    }
    let (page, _) = drawn_with_lanes(&tables, &events, HtmlOptions::default());
    let groups = page["groups"].as_array().unwrap().iter().map(|group| group[0].as_str().unwrap());
    let mut groups: Vec<_> = groups.collect();
    groups.sort_unstable();
    assert_eq!(
        groups,
        ["compilations", "process 7", "regions", "waits for tasks and wait handles"]
    );
    assert_eq!(page["items"], 6);
}

/// Frames without a function are their position in the file, as in other profiles.
#[test]
fn frames_without_a_function_have_their_position() {
    let mut tables = Tables::new();
    let path = tables.text(b"/lib/libc.so");
    let mapping = tables.add_mapping(Mapping { path, ..Mapping::default() });
    let frames = [(mapping, 0x30), (mapping, 0x40), (None, 0x50), (None, 0)];
    let frames = frames.map(|(mapping, address)| Frame { mapping, address, ..Frame::default() });
    let mut html = HtmlTimeline::new(HtmlOptions::default());
    let mut correlator = Correlator::new();
    let entity = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
    let stacks = frames.map(|frame| tables.stack(&[frame]));
    let mut push = |kind| {
        let event = Event { time: Timestamp::default(), kind };
        correlator.push(&event, &tables.entities, &mut |derived| html.push(&derived, &tables));
    };
    push(EventKind::Start { entity });
    for stack in stacks {
        let (kind, weight, event) = (SampleKind::Cpu, 1, SampledEventId::NONE);
        let (thread, cpu, of) = (None, None, None);
        push(EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of });
    }
    let mut out = Vec::new();
    html.write("", &tables, &Report::new(), &[], &mut out).unwrap();
    let (json, _) = data(&String::from_utf8(out).unwrap());
    for name in ["libc.so+0x30", "libc.so+0x40", "0x50", "[unknown]"] {
        assert!(json.contains(&format!("\"{name}\"")), "{name}: {json}");
    }
    let (_, nodes) = json.split_once("\"nodes\":").unwrap();
    let (nodes, _) = nodes.split_once("}").unwrap();
    assert_eq!(nodes.matches('[').count(), 1 + 1 + 4, "{nodes}");
}

/// As in a recording of one event, and one of it and others.
#[test]
fn an_event_of_two_recordings_has_one_flame_graph() {
    let mut tables = Tables::new();
    let entity = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
    let (name, unit) = (tables.text(b"cycles"), TextId::EMPTY);
    let stack = tables.stack(&[Frame { function: name, ..Frame::default() }]);
    let recorded = [false, true].map(|has_others| {
        let event = tables.add_sampled_event(SampledEvent { name, unit, has_others });
        let (kind, weight, thread, cpu, of) = (SampleKind::Cpu, 10, None, None, None);
        let kind = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
        Event { time: Timestamp::default(), kind }
    });
    let start = Event { time: Timestamp::default(), kind: EventKind::Start { entity } };
    let events = [start, recorded[0], recorded[1]];
    let page = drawn(&tables, &events, HtmlOptions::default());
    let flames = page["flames"].as_array().unwrap();
    assert_eq!(flames.len(), 1, "{flames:?}");
    assert_eq!(flames[0]["nodes"][1][2], 20);
}

/// Two threads with ten samples each.
fn samples(options: HtmlOptions) -> (String, HtmlStats) {
    let mut tables = Tables::new();
    let name = tables.text(b"worker");
    let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let mut thread = |number| {
        let entity = Entity::new(EntityKind::Thread, number).child_of(Some(process)).name(name);
        tables.entity(entity).unwrap()
    };
    let threads = [thread(7), thread(8)];
    let mut html = HtmlTimeline::new(options);
    let mut correlator = Correlator::new();
    let mut push = |at, kind| {
        let event = Event { time: Timestamp::from_nanos(at), kind };
        correlator.push(&event, &tables.entities, &mut |derived| html.push(&derived, &tables));
    };
    threads.iter().for_each(|entity| push(0, EventKind::Start { entity: *entity }));
    for at in 1..=10 {
        for (entity, kind) in threads.iter().zip([SampleKind::Cpu, SampleKind::OffCpu]) {
            let kind = EventKind::Sample {
                entity: *entity,
                kind,
                stack: None,
                weight: 50,
                thread: None,
                cpu: None,
                event: SampledEventId::NONE,
                of: None,
            };
            push(at * 100, kind);
        }
    }
    let mut out = Vec::new();
    let stats = html.write("samples", &tables, &Report::new(), &[], &mut out).unwrap();
    (data(&String::from_utf8(out).unwrap()).0, stats)
}

#[test]
fn samples_have_a_lane_for_each_thread() {
    let (json, stats) = samples(HtmlOptions::default());
    assert_eq!((stats.items, stats.dropped, stats.folded), (20, 0, 0));
    assert!(json.contains("[\"samples (2)\","), "{json}");
    assert_eq!(json.matches(",10,").count(), 2, "two lanes of ten samples: {json}");
}

/// The number of items is of those that have a lane.
#[test]
fn items_without_a_lane_are_not_counted() {
    let mut options = HtmlOptions::default();
    options.max_lanes = 1;
    let (json, stats) = samples(options);
    assert_eq!((stats.items, stats.folded), (10, 1));
    assert!(json.contains("\"items\":10,"), "{json}");
}

#[test]
fn other_processes_above_the_limit_are_on_the_cpus_only() {
    const SWITCHES: i64 = 1000;
    let page = |most| {
        let mut tables = Tables::new();
        let cpu = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
        let mut thread = |number| {
            let name = tables.text(if number == 7 { b"own" } else { b"other" });
            let process = Entity::new(EntityKind::Process, number).name(name);
            let process = tables.entity(process).unwrap();
            let thread = Entity::new(EntityKind::Thread, number).child_of(Some(process));
            tables.entity(thread.name(name)).unwrap()
        };
        let threads = [thread(7), thread(8)];
        let mut options = HtmlOptions::default();
        (options.process, options.max_other_items) = (Some(7), most);
        let mut html = HtmlTimeline::new(options);
        let mut correlator = Correlator::new();
        let mut push = |at, kind| {
            let event = Event { time: Timestamp::from_nanos(at), kind };
            correlator.push(&event, &tables.entities, &mut |derived| html.push(&derived, &tables));
        };
        for entity in [cpu].into_iter().chain(threads) {
            push(0, EventKind::Start { entity });
        }
        for at in 1..=SWITCHES {
            let [prev, next] = if at % 2 == 0 { threads } else { [threads[1], threads[0]] };
            let left = ThreadState::Sleeping;
            let (prev, next) = (Some(prev), Some(next));
            push(
                at,
                EventKind::Switch { cpu, prev, left, next, is_next_unknown: false, prio: 120 },
            );
        }
        let mut out = Vec::new();
        let stats = html.write("two", &tables, &Report::new(), &[], &mut out).unwrap();
        (data(&String::from_utf8(out).unwrap()).0, stats)
    };
    let (all, stats) = page(1 << 16);
    assert_eq!((stats.summarized, stats.folded), (0, 0));
    assert!(all.contains("\"other (thread 8)\"") && all.contains("\"own (thread 7)\""), "{all}");
    let (json, less) = page(100);
    assert!(less.summarized > 900, "{less:?}");
    assert_eq!(less.items + less.summarized, stats.items);
    assert!(json.contains(&format!("\"summarized\":{},", less.summarized)), "{json}");
    // The lane of the CPU has all, and the threads of interest theirs.
    let lanes = |json: &str| {
        let (_, tracks) = json.split_once("\"tracks\":").unwrap();
        tracks.split_once("\"flames\"").unwrap().0.matches("[").count()
    };
    assert_eq!(lanes(&json) + 1, lanes(&all), "{json}");
    assert!(json.contains("\"CPU 0\"") && json.contains("\"own (thread 7)\""), "{json}");
}

/// Without the scheduler, the most sampled processes have groups. The others share one, and nothing of
/// them is missing.
#[test]
fn processes_above_the_limit_share_a_group_with_all_they_have() {
    const PROCESSES: i64 = 20;
    let mut tables = Tables::new();
    let [gauge, span] = [&b"gauge"[..], b"span"].map(|name| tables.text(name));
    let mut thread = |number| {
        let name = tables.text(format!("program{number}").as_bytes());
        let process = tables.entity(Entity::new(EntityKind::Process, number).name(name)).unwrap();
        let thread = Entity::new(EntityKind::Thread, number).child_of(Some(process)).name(name);
        tables.entity(thread).unwrap()
    };
    let threads: Vec<_> = (1..=PROCESSES).map(&mut thread).collect();
    let spans: Vec<_> = threads.iter().map(|_| tables.new_span()).collect();
    let (mut html, mut correlator) = (HtmlTimeline::new(HtmlOptions::default()), Correlator::new());
    let mut push = |at, kind| {
        let event = Event { time: Timestamp::from_nanos(at), kind };
        correlator.push(&event, &tables.entities, &mut |derived| html.push(&derived, &tables));
    };
    threads.iter().for_each(|entity| push(0, EventKind::Start { entity: *entity }));
    for ((number, entity), id) in (1..).zip(threads).zip(spans) {
        let (name, of, stack, thread, cpu) = (span, None, None, None, None);
        let kind = SpanKind::LockWait;
        push(number, EventKind::Begin { span: id, entity, kind, name, by: None, of, stack });
        push(number + 1, EventKind::Finish { span: id, by: None, is_cut: false });
        push(number, EventKind::Counter { entity, name: gauge, unit: TextId::EMPTY, value: 1.0 });
        let (kind, weight, event) = (SampleKind::Cpu, 1, SampledEventId::NONE);
        for _ in 0..number {
            push(number, EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of });
        }
    }
    let mut out = Vec::new();
    let stats = html.write("many", &tables, &Report::new(), &[], &mut out).unwrap();
    assert_eq!((stats.dropped, stats.folded, stats.summarized), (0, 0, 0));
    let (json, _) = data(&String::from_utf8(out).unwrap());
    let (groups, tracks) = json.split_once("\"tracks\":").unwrap();
    let place = |name: &str| groups.find(&format!("[\"{name}\",0,")).unwrap_or(usize::MAX);
    let of = |number: i64| place(&format!("program{number} (process {number})"));
    let places = (5..=PROCESSES).rev().map(of);
    assert!(places.chain([place("4 other processes")]).is_sorted(), "{groups}");
    assert_eq!((of(4), of(1)), (usize::MAX, usize::MAX), "{groups}");
    let (_, shared) = groups.split_once("\"4 other processes\"").unwrap();
    assert!(
        shared.contains("[\"samples (4)\",") && shared.contains("[\"lock waits\","),
        "{shared}"
    );
    // Items of all tracks: spans, counters, and 1 + 2 + … samples.
    let (tracks, _) = tracks.split_once("],\"flames\"").unwrap();
    let count = |track: &str| track.rsplit(',').nth(1).unwrap().parse::<u64>().unwrap();
    let items: u64 =
        tracks.trim_start_matches('[').split("],").map(|t| count(t.trim_end_matches(']'))).sum();
    assert_eq!(items, stats.items + PROCESSES as u64, "counters have values");
    assert_eq!(items, (2 * PROCESSES + PROCESSES * (PROCESSES + 1) / 2) as u64);
}

/// The flame graphs of the process of interest, and the tables of it, are not cut off by others.
#[test]
fn the_process_of_interest_is_first() {
    const FRAMES: u64 = 1 << 9;
    /// With their frames, more than a page has nodes: 2^17.
    const OTHERS: u64 = (1 << 8) + 10;
    let mut tables = Tables::new();
    let mut thread = |number: i64| {
        let name = tables.text(format!("program{number}").as_bytes());
        let process = tables.entity(Entity::new(EntityKind::Process, number).name(name)).unwrap();
        let thread = Entity::new(EntityKind::Thread, number).child_of(Some(process)).name(name);
        tables.entity(thread).unwrap()
    };
    let [other, own] = [thread(1), thread(7)];
    // The outermost frame is of this number.
    let stack = |number: u64, tables: &mut Tables| {
        let [inner, outer] = [b"inner".to_vec(), format!("f{number}").into_bytes()];
        let [inner, outer] = [inner, outer].map(|name| tables.text(&name));
        let frame = |function| Frame { function, ..Frame::default() };
        let inner = std::iter::repeat_n(frame(inner), FRAMES as usize - 1);
        tables.stack(&inner.chain([frame(outer)]).collect::<Vec<_>>())
    };
    let mut events: Vec<(i64, EventKind)> =
        [other, own].map(|entity| (0, EventKind::Start { entity })).to_vec();
    let samples = (0..OTHERS).map(|number| (other, number, 5)).chain([(own, OTHERS, 1)]);
    for (entity, number, weight) in samples {
        let (kind, event) = (SampleKind::Cpu, SampledEventId::NONE);
        let (stack, thread, cpu, of) = (stack(number, &mut tables), None, None, None);
        let sample = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
        events.push((1, sample));
    }
    // The other one has the CPU longer.
    let cpu = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
    events.push((1, EventKind::Start { entity: cpu }));
    let (left, is_next_unknown, prio) = (ThreadState::Preempted, false, 120);
    for (at, prev, next) in [(10, own, other), (90, other, own), (100, own, other)] {
        let (prev, next) = (Some(prev), Some(next));
        let switch = EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio };
        events.push((at, switch));
    }
    let mut options = HtmlOptions::default();
    options.process = Some(7);
    let (mut html, mut report) = (HtmlTimeline::new(options), Report::new());
    let mut correlator = Correlator::new();
    let mut each = |derived: trace_timeline::Derived<'_>| {
        report.push(&derived, &tables.entities);
        html.push(&derived, &tables);
    };
    for (at, kind) in events {
        let event = Event { time: Timestamp::from_nanos(at), kind };
        correlator.push(&event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    let mut out = Vec::new();
    let stats = html.write("two", &tables, &report, &[], &mut out).unwrap();
    assert_eq!(stats.stacks_cut, 11, "those above the limit without the one of interest");
    let (json, _) = data(&String::from_utf8(out).unwrap());
    assert!(json.contains("\"stacksCut\":11,"));
    let (_, flames) = json.split_once("\"flames\":[").unwrap();
    let (first, rest) = flames.split_once("},{").unwrap();
    assert_eq!(first.matches("[").count() as u64, 1 + 1 + FRAMES, "{first}");
    assert!(rest.contains("\"name\":\"CPU samples\""));
    let (_, threads) = json.split_once("\"title\":\"Threads\"").unwrap();
    let (threads, _) = threads.split_once("}").unwrap();
    let place = |name| threads.find(name).unwrap_or_else(|| panic!("{name}: {threads}"));
    assert!(place("program7") < place("program1"), "{threads}");
}

/// The page of these events, with its JSON.
fn drawn(tables: &Tables, events: &[Event], options: HtmlOptions) -> serde_json::Value {
    drawn_with_lanes(tables, events, options).0
}

/// The same, and the encoded lanes.
fn drawn_with_lanes(
    tables: &Tables,
    events: &[Event],
    options: HtmlOptions,
) -> (serde_json::Value, Vec<u8>) {
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    let mut html = HtmlTimeline::new(options);
    let mut each = |derived: trace_timeline::Derived<'_>| {
        report.push(&derived, &tables.entities);
        html.push(&derived, tables);
    };
    for event in events {
        correlator.push(event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    let mut out = Vec::new();
    html.write("", tables, &report, &[], &mut out).unwrap();
    let (json, lanes) = data(&String::from_utf8(out).unwrap());
    (serde_json::from_str(&json).unwrap(), lanes)
}

/// The samples of the idle thread are of their CPUs: the machine of these is no process.
#[test]
fn idle_cpus_are_no_process() {
    let mut tables = Tables::new();
    let host = tables.text(b"host");
    let machine = tables.entity(Entity::new(EntityKind::Machine, 0).name(host));
    let entity = tables.entity(Entity::new(EntityKind::Cpu, 3).child_of(machine)).unwrap();
    let function = tables.text(b"do_idle");
    let stack = tables.stack(&[Frame { function, ..Frame::default() }]);
    let (kind, event) = (SampleKind::Cpu, SampledEventId::NONE);
    let (weight, thread, cpu, of) = (1, None, Some(entity), None);
    let sample = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
    let events = [Event { time: Timestamp::default(), kind: sample }];
    let page = drawn(&tables, &events, HtmlOptions::default());
    let groups: Vec<_> = page["groups"].as_array().unwrap().iter().map(|g| &g[0]).collect();
    assert_eq!(groups, ["idle CPUs", "samples (1)"]);
    assert_eq!(page["tracks"][0][1], "CPU 3");
    assert_eq!(page["flames"][0]["process"], 0);
}

/// The types with fewest tasks share lanes.
#[test]
fn types_of_tasks_above_the_limit_share_lanes() {
    const TYPES: i64 = 400;
    const MAX_NAMES: i64 = 256;
    let mut tables = Tables::new();
    let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    let mut events = Vec::new();
    let mut push = |at, kind| events.push(Event { time: Timestamp::from_nanos(at), kind });
    push(0, EventKind::Start { entity: process });
    for number in 0..TYPES {
        let name = tables.text(format!("type{number}").as_bytes());
        let task = Entity::new(EntityKind::Task, number).child_of(Some(process)).name(name);
        let entity = tables.entity(task).unwrap();
        push(number * 10, EventKind::Start { entity });
        // Later types have two.
        for at in 0..1 + i64::from(number >= TYPES - MAX_NAMES) {
            let span = tables.new_span();
            let (kind, by, of, stack) = (SpanKind::Task, None, None, None);
            let at = number * 10 + at * 4;
            push(at, EventKind::Begin { span, entity, kind, name, by, of, stack });
            push(at + 2, EventKind::Finish { span, by: None, is_cut: false });
        }
    }
    let page = drawn(&tables, &events, HtmlOptions::default());
    let tracks = page["tracks"].as_array().unwrap();
    let is_named = |track: &&serde_json::Value, name: &str| track[1] == *name;
    let count = |name: &str| tracks.iter().filter(|track| is_named(track, name)).count();
    assert_eq!(count("task type0"), 0);
    assert_eq!(count(&format!("task type{}", TYPES - 1)), 1);
    let shared: Vec<_> =
        tracks.iter().filter(|track| is_named(track, "other tasks and activities")).collect();
    assert_eq!(shared.len(), 1, "they do not overlap");
    assert_eq!(shared[0][4], TYPES - MAX_NAMES);
    assert_eq!(tracks.len() as i64, MAX_NAMES + 1, "{tracks:?}");
}

/// A trace has a name once, and many lanes and rows can have it.
#[test]
fn long_names_of_many_lanes_are_cut() {
    const GOROUTINES: i64 = 256;
    let mut tables = Tables::new();
    let name = tables.text("é".repeat(1 << 19).as_bytes());
    let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
    tables.entities.describe(process, Attribute::CommandLine, name);
    let mut events = Vec::new();
    for number in 1..=GOROUTINES {
        let goroutine = Entity::new(EntityKind::Goroutine, number).child_of(process).name(name);
        let entity = tables.entity(goroutine).unwrap();
        let (on, reason, stack) = (None, TextId::EMPTY, None);
        let state = |state| EventKind::State { entity, state, on, reason, stack };
        let start = EventKind::Start { entity };
        let states = [(1_000, state(State::Waiting)), (2_000, state(State::Runnable))];
        let all = [(number, start)].into_iter().chain(states);
        events.extend(all.map(|(at, kind)| Event { time: Timestamp::from_nanos(at), kind }));
    }
    events.sort_by_key(|event| event.time);
    let page = drawn(&tables, &events, HtmlOptions::default());
    let cut = format!("{}…", "é".repeat(100));
    let tracks = page["tracks"].as_array().unwrap();
    let count = tracks.iter().filter(|track| track[1] == *cut).count();
    assert_eq!(count, 256);
    let line = page["attributes"][0][2].as_str().unwrap();
    assert!(line.ends_with('…') && line.len() < 5_000, "{} bytes", line.len());
    // The whole name is there, too.
    let bytes = page.to_string().len();
    assert!((1 << 20..4 << 20).contains(&bytes), "{bytes} bytes");
}

#[test]
fn losses_have_their_unit() {
    let lost = [(LossKind::GoTrace, 9, "bytes"), (LossKind::DotnetEvents, 7, "records")];
    let events = lost.map(|(kind, count, _)| {
        let at = Timestamp::default();
        Event {
            time: at,
            kind: EventKind::Loss { entity: None, kind, since: at, count: Some(count) },
        }
    });
    let page = drawn(&Tables::new(), &events, HtmlOptions::default());
    for list in ["kinds", "all"] {
        let rows = page["losses"][list].as_array().unwrap();
        assert_eq!(rows.len(), lost.len());
        for (row, (_, count, unit)) in rows.iter().zip(lost) {
            assert!(row.as_array().unwrap().ends_with(&[count.into(), unit.into()]), "{row}");
        }
    }
}

/// Two processes that had one process id, one after the other, have a group each. Only one of them
/// descends from the process of interest.
#[test]
fn a_process_id_that_is_used_again_is_another_process() {
    let mut tables = Tables::new();
    let mut add = |kind, number, name: &[u8], parent| {
        let name = tables.text(name);
        tables.entity(Entity::new(kind, number).child_of(parent).name(name)).unwrap()
    };
    let cpu = add(EntityKind::Cpu, 0, b"", None);
    // The child is in the table before its parent, as that of a runtime's trace.
    let child = add(EntityKind::Process, 8, b"child", None);
    let root = add(EntityKind::Process, 7, b"root", None);
    let other = add(EntityKind::Process, 8, b"other", None);
    let threads = [child, other].map(|process| add(EntityKind::Thread, 8, b"t", Some(process)));
    tables.entities.get_mut(child).unwrap().parent = Some(root);
    let mut events = Vec::new();
    let mut push = |at, kind| events.push(Event { time: Timestamp::from_nanos(at), kind });
    push(0, EventKind::Start { entity: cpu });
    let (is_next_unknown, prio) = (false, 120);
    for (at, thread) in [(10, threads[0]), (30, threads[1])] {
        push(at, EventKind::Start { entity: thread });
        let (prev, left, next) = (None, ThreadState::Unknown, Some(thread));
        push(at, EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio });
        let (prev, left, next) = (Some(thread), ThreadState::Stopped, None);
        push(at + 10, EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio });
        push(at + 15, EventKind::End { entity: thread });
    }
    let mut options = HtmlOptions::default();
    options.process = Some(7);
    let page = drawn(&tables, &events, options);
    let groups = page["groups"].as_array().unwrap();
    let main = |name: &str| {
        let group = groups.iter().find(|group| group[0] == name);
        group.unwrap_or_else(|| panic!("{groups:?}"))[4].as_u64()
    };
    assert_eq!((main("child (process 8)"), main("other (process 8)")), (Some(1), Some(0)));
    let threads = page["tables"].as_array().unwrap().iter().find(|t| t["title"] == "Threads");
    let threads = threads.unwrap();
    let column = |name: &str| threads["columns"].as_array().unwrap().iter().position(|c| c == name);
    let row = &threads["rows"][0];
    assert_eq!(row[column("on CPU").unwrap()], serde_json::json!([10]));
    // It is known that it was stopped.
    assert_eq!(row[column("stopped").unwrap()], serde_json::json!([5]));
    assert_eq!(row[column("unknown").unwrap()], serde_json::json!([0]));
}

/// The page has one colour and one chart for each process of the kernel, also of what a runtime knows of it.
#[test]
fn processes_that_had_one_id_are_apart_and_those_of_runtimes_are_of_the_kernel() {
    let mut tables = Tables::new();
    let mut add = |kind, number, name: &[u8], parent| {
        let name = tables.text(name);
        tables.entity(Entity::new(kind, number).child_of(parent).name(name)).unwrap()
    };
    let [first, later, shop] = [(7, b"first"), (7, b"later"), (8, b"shop_")].map(|(pid, name)| {
        let process = add(EntityKind::Process, pid, name, None);
        add(EntityKind::Thread, pid, name, Some(process));
        process
    });
    // Go traces: the process ids of two were given, and that of the other one is not known.
    let runtimes = [(8, 8, b"given"), (7, 7, b"again"), (-1, 8, b"trace")];
    let [given, again, unknown] = runtimes.map(|(pid, tid, name)| {
        let process = add(EntityKind::Process, pid, name, None);
        add(EntityKind::GoThread, tid, b"", Some(process));
        process
    });
    let at = Timestamp::from_nanos;
    tables.entities.get_mut(first).unwrap().end = Some(at(15));
    for process in [later, again] {
        tables.entities.get_mut(process).unwrap().start = Some(at(20));
    }
    let mut events = Vec::new();
    for entity in [first, later, shop, given, again, unknown] {
        let (span, kind, name) = (tables.new_span(), SpanKind::Gc, TextId::EMPTY);
        let (by, of, stack) = (None, None, None);
        let begin = EventKind::Begin { span, entity, kind, name, by, of, stack };
        let end = EventKind::Finish { span, by, is_cut: false };
        events.extend([(10, begin), (30, end)].map(|(time, kind)| Event { time: at(time), kind }));
    }
    events.sort_by_key(|event| event.time);
    let page = drawn(&tables, &events, HtmlOptions::default());
    let groups = page["groups"].as_array().unwrap();
    let key = |name: &str| {
        let group = groups.iter().find(|group| group[0].as_str().unwrap().starts_with(name));
        let process = group.unwrap_or_else(|| panic!("{name}: {groups:?}"))[3].as_u64().unwrap();
        // Numbers below are no entities.
        let entity = &page["entities"][usize::try_from(process).unwrap() - 5];
        entity[4].as_u64().unwrap_or_else(|| panic!("{entity}"))
    };
    assert_ne!(key("first"), key("later"));
    assert_eq!([key("given"), key("trace")], [key("shop_"); 2]);
    assert_eq!(key("again"), key("later"));
}
