//! The timeline model in Perfetto's format: a machine written by hand, every recorded Go trace, and
//! any events.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
#[allow(dead_code, reason = "shared with other tests")]
use testkit::perfetto::Timeline;
use trace_export::timeline::{TimelineOptions, TimelineSource, TimelineStats};
use trace_export::{ChromeSink, ClockDomain, PerfettoSink, Sink, Track};
use trace_timeline::{
    Attribute, Context, Entity, EntityId, EntityKind, Event, EventKind, FlowKind, Frame,
    InstantKind, LossKind, Mapping, MappingId, SampleKind, SampledEvent, SampledEventId, SpanKind,
    State, Tables, TextId, ThreadState, Timestamp, Value,
};

#[derive(Default)]
struct World {
    tables: Tables,
    events: Vec<Event>,
    now: i64,
}

impl World {
    fn push(&mut self, kind: EventKind) {
        self.events.push(Event { time: Timestamp::from_nanos(self.now), kind });
    }

    fn entity(
        &mut self,
        kind: EntityKind,
        number: i64,
        name: &str,
        of: Option<EntityId>,
    ) -> EntityId {
        let name = self.tables.text(name.as_bytes());
        let entity = Entity::new(kind, number).name(name).child_of(of);
        let entity = self.tables.entity(entity).unwrap();
        self.push(EventKind::Start { entity });
        entity
    }

    fn state(&mut self, entity: EntityId, state: State, on: Option<EntityId>, reason: &str) {
        let reason = self.tables.text(reason.as_bytes());
        self.push(EventKind::State { entity, state, on, reason, stack: None });
    }

    fn switch(
        &mut self,
        cpu: EntityId,
        prev: Option<EntityId>,
        left: ThreadState,
        next: Option<EntityId>,
    ) {
        self.push(EventKind::Switch { cpu, prev, left, next, is_next_unknown: false, prio: 120 });
    }

    fn flow(&mut self, kind: FlowKind, from: EntityId, on: Option<EntityId>, to: EntityId) {
        let (context, cpu, stack) = (Context::Task, on, None);
        self.push(EventKind::Flow { kind, from: Some(from), context, on, to, cpu, stack });
    }

    fn draw(&self, options: TimelineOptions) -> (Vec<u8>, TimelineStats) {
        draw(&self.events, &self.tables, options)
    }
}

fn draw(events: &[Event], tables: &Tables, options: TimelineOptions) -> (Vec<u8>, TimelineStats) {
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    let zero = Timestamp::default();
    let clocks = [(ClockDomain::Monotonic, zero), (ClockDomain::Boottime, zero)];
    sink.clock_snapshot(&clocks).unwrap();
    let mut source = TimelineSource::new(options);
    for event in events {
        source.push(event, tables, &mut sink).unwrap();
    }
    source.finish(tables, &mut sink).unwrap();
    sink.finish().unwrap();
    assert_eq!(sink.stats().unmatched_ends, 0);
    (sink.into_inner(), source.stats())
}

/// The same in Chrome's format, checked: slices of each thread nest, and arrows have two ends.
fn chrome(events: &[Event], tables: &Tables) -> Vec<serde_json::Value> {
    let mut sink = ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
    let mut source = TimelineSource::default();
    for event in events {
        source.push(event, tables, &mut sink).unwrap();
    }
    source.finish(tables, &mut sink).unwrap();
    sink.finish().unwrap();
    assert_eq!((sink.stats().unmatched_ends, sink.stats().stale_ids), (0, 0));
    let mut json: serde_json::Value = serde_json::from_slice(&sink.into_inner()).unwrap();
    let serde_json::Value::Array(items) = json["traceEvents"].take() else { panic!("{json}") };
    let mut depth: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    let mut flows = BTreeSet::new();
    for item in &items {
        let of = (item["pid"].as_i64().unwrap(), item["tid"].as_i64().unwrap());
        let phase = item["ph"].as_str().unwrap();
        assert_eq!(item["ts"].is_number(), phase != "M", "{item}");
        match phase {
            "B" => *depth.entry(of).or_default() += 1,
            "E" => {
                let depth = depth.get_mut(&of).unwrap();
                *depth -= 1;
                assert!(*depth >= 0, "{item}");
            }
            "s" => assert!(flows.insert(item["id"].as_u64())),
            "t" => assert!(flows.contains(&item["id"].as_u64())),
            "f" => assert!(flows.remove(&item["id"].as_u64())),
            "M" | "i" | "C" => {}
            other => panic!("{other}: {item}"),
        }
    }
    items
}

#[test]
fn layers_are_related() {
    let w = layers();
    let (trace, stats) = w.draw(TimelineOptions::default());
    assert_eq!((stats.switches, stats.wakings, stats.goroutines, stats.losses), (3, 1, 2, 1));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/layers.timeline");
    testkit::golden::check(&file, &(Timeline::read(&trace).text() + "\n"));
}

/// A wait is as long as its sample says, with the stack and by the innermost function of user space.
#[test]
fn waits_are_slices_below_their_thread() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, "p", None);
    let thread = w.entity(EntityKind::Thread, 8, "t", Some(process));
    let kernel = Mapping { is_kernel: true, ..Mapping::default() };
    let kernel = w.tables.add_mapping(kernel).unwrap();
    let mut stack = |frames: &[(&str, Option<MappingId>)]| {
        let frame = |tables: &mut Tables, (function, mapping): &(&str, _)| Frame {
            function: tables.text(function.as_bytes()),
            mapping: *mapping,
            ..Frame::default()
        };
        let frames: Vec<Frame> = frames.iter().map(|f| frame(&mut w.tables, f)).collect();
        w.tables.stack(&frames)
    };
    let asleep = stack(&[("schedule", Some(kernel)), ("poll", None), ("main", None)]);
    let preempted = stack(&[("[preempted]", None), ("main", None)]);
    let unknown = stack(&[("schedule", Some(kernel))]);
    // The last one would begin before the end of the one before.
    for (at, weight, stack) in [(100, 60, asleep), (200, 50, preempted), (250, 80, unknown)] {
        w.now = at;
        let (kind, event) = (SampleKind::OffCpu, SampledEventId::default());
        let (entity, cpu, of) = (thread, None, None);
        w.push(EventKind::Sample { entity, kind, stack, weight, thread: None, cpu, event, of });
    }
    let (trace, stats) = w.draw(TimelineOptions::default());
    assert_eq!(stats.samples, 3);
    let timeline = Timeline::read(&trace);
    let track = "t 8/Off CPU: ";
    let slices: Vec<&String> = timeline.lines.iter().filter(|l| l.contains(track)).collect();
    let expected = [
        "40 TRACKbegin poll [main > poll > schedule]",
        "100 TRACKend",
        "150 TRACKbegin [preempted] [main > [preempted]]",
        "200 TRACKend",
        "200 TRACKbegin off CPU [schedule]",
        "250 TRACKend",
    ];
    assert_eq!(slices, expected.map(|line| line.replace("TRACK", track)).each_ref());
    assert_eq!(timeline.count(" sample "), 0);
}

/// Otherwise all of them are one function, without a name.
#[test]
fn frames_without_a_function_are_named_by_their_place() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, "p", None);
    let entity = w.entity(EntityKind::Thread, 8, "t", Some(process));
    let path = w.tables.text(b"/lib/libc.so");
    let mapping = w.tables.add_mapping(Mapping { path, ..Mapping::default() });
    let main = w.tables.text(b"main");
    let frames = [(0x30, TextId::EMPTY), (0x38, main), (0x40, TextId::EMPTY)]
        .map(|(address, function)| Frame { function, mapping, address, ..Frame::default() });
    let stack = w.tables.stack(&frames);
    w.now = 100;
    let (kind, event) = (SampleKind::OffCpu, SampledEventId::default());
    let (weight, thread, cpu, of) = (60, None, None, None);
    w.push(EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of });
    let (trace, _) = w.draw(TimelineOptions::default());
    let timeline = Timeline::read(&trace);
    let drawn = timeline.count("begin off CPU [libc.so+0x40 > main > libc.so+0x30]");
    assert_eq!(drawn, 1, "{}", timeline.text());
    let expected = serde_json::json!(["libc.so+0x30", "main", "libc.so+0x40"]);
    let items = chrome(&w.events, &w.tables);
    assert!(items.iter().any(|item| item["args"]["stack"] == expected), "{items:#?}");
}

/// Nested cgroups are read at times of their own: slices that overlap are on different tracks.
#[test]
fn throttling_of_nested_cgroups_is_on_lanes() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, "p", None);
    // The second group is read later, and the first one again.
    for (since, at, nanos) in [
        (10, 40, 9),
        (20, 50, 8),
        (40, 70, 7),
        (30, 80, 6),
        (70, 90, 5),
        (100, 130, 4),
        (110, 140, 3),
        // Behind all others, and then one that begins before the end of another.
        (150, 160, 2),
        (135, 170, 1),
    ] {
        w.now = at;
        let since = Timestamp::from_nanos(since);
        let cgroup = TextId::EMPTY;
        w.push(EventKind::Throttle { process, cgroup, since, nanos, periods: 1 });
    }
    let (trace, _) = w.draw(TimelineOptions::default());
    chrome(&w.events, &w.tables);
    let timeline = Timeline::read(&trace);
    let track = "p 7/Throttled by the CPU quota";
    let mut slices: Vec<(&str, i64, &str)> = Vec::new();
    for line in &timeline.lines {
        let Some((at, rest)) = line.split_once(' ') else { continue };
        let Some((lane, what)) = rest.strip_prefix(track).and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        slices.push((lane, at.parse().unwrap(), what));
    }
    slices.sort_by_key(|(lane, ..)| *lane);
    let shown: Vec<String> = slices
        .iter()
        .map(|(lane, at, what)| format!("{lane} {at} {}", what.split(' ').next().unwrap()))
        .collect();
    let expected = [
        " 10 begin",
        " 40 end",
        " 40 begin",
        " 70 end",
        " 70 begin",
        " 90 end",
        " 100 begin",
        " 130 end",
        " 150 begin",
        " 160 end",
        "/#2 20 begin",
        "/#2 50 end",
        "/#2 110 begin",
        "/#2 140 end",
        "/#3 30 begin",
        "/#3 80 end",
        "/#3 135 begin",
        "/#3 170 end",
    ];
    assert_eq!(shown, expected, "{:#?}", timeline.lines);
}

/// The options of a timeline of the scheduler alone change what it costs, not what is drawn.
#[test]
fn the_scheduler_alone_is_drawn_without_correlation() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    let process = w.entity(EntityKind::Process, 7, "p", None);
    let [a, b] = [8, 9].map(|tid| w.entity(EntityKind::Thread, tid, "t", Some(process)));
    w.switch(cpu, None, ThreadState::Unknown, Some(a));
    w.now = 10;
    w.flow(FlowKind::Wakes, a, Some(cpu), b);
    w.switch(cpu, Some(a), ThreadState::Sleeping, Some(b));
    w.now = 20;
    let (kind, count) = (LossKind::SchedulerRecords, Some(3));
    w.push(EventKind::Loss { entity: Some(cpu), kind, since: Timestamp::from_nanos(15), count });
    w.push(EventKind::End { entity: a });
    let mut alone = TimelineOptions::default();
    alone.scheduler_only = true;
    let (drawn, stats) = w.draw(alone.clone());
    assert_eq!((stats.switches, stats.wakings, stats.losses, stats.uncorrelated), (2, 1, 1, 0));
    assert_eq!((drawn, stats), w.draw(TimelineOptions::default()));
    let goroutine = w.entity(EntityKind::Goroutine, 1, "main.main", None);
    w.state(goroutine, State::Waiting, None, "select");
    assert_eq!(w.draw(alone).1.uncorrelated, 1);
}

/// Switches were lost, and a record of another kind shows that the idle thread runs now. No thread
/// that was not recorded has run between.
#[test]
fn an_idle_cpu_after_unreported_switches_is_drawn_by_one_switch() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    let thread = w.entity(EntityKind::Thread, 8, "t", None);
    w.now = 10;
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.now = 20;
    w.switch(cpu, None, ThreadState::Unknown, None);
    let (trace, stats) = w.draw(TimelineOptions::default());
    let timeline = Timeline::read(&trace);
    assert_eq!(stats.switches, 2);
    assert_eq!(timeline.count("20 cpu 0: (1) -> swapper 0"), 1, "{}", timeline.text());
    assert_eq!(timeline.count("-> other"), 0, "{}", timeline.text());
}

/// The thread on the CPU has nothing to do with it, and viewers show it as the waker of a thread.
#[test]
fn a_wake_up_by_an_interrupt_is_not_one_by_the_thread_on_the_cpu() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    let [a, b] = [8, 9].map(|tid| w.entity(EntityKind::Thread, tid, "t", None));
    w.switch(cpu, None, ThreadState::Unknown, Some(a));
    let contexts = [Context::Task, Context::HardIrq, Context::SoftIrq, Context::Unknown];
    for (at, context) in (1..).zip(contexts) {
        w.now = at;
        let (kind, on, cpu) = (FlowKind::Wakes, Some(cpu), Some(cpu));
        w.push(EventKind::Flow { kind, from: None, context, on, to: b, cpu, stack: None });
    }
    let (trace, _) = w.draw(TimelineOptions::default());
    let timeline = Timeline::read(&trace);
    let wakings: Vec<&str> =
        of_cpu(&timeline).into_iter().filter(|line| line.contains("wakes")).collect();
    let expected = [
        "1 cpu 0: wakes t 9 for 0",
        "2 cpu 0: wakes t 9 for 0 by a hardware interrupt",
        "3 cpu 0: wakes t 9 for 0 by a software interrupt",
        "4 cpu 0: wakes t 9 for 0",
    ];
    assert_eq!(wakings, expected);
}

/// The lines of a CPU.
fn of_cpu(timeline: &Timeline) -> Vec<&str> {
    timeline.lines.iter().map(String::as_str).filter(|line| line.contains(" cpu 0: ")).collect()
}

/// The time between two recordings of a CPU, or after the only one: a Go trace continues.
#[test]
fn a_cpu_is_idle_where_its_recording_ends() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    let [a, b, c] = ["a", "b", "c"].map(|name| {
        let tid = 7 + w.events.len() as i64;
        w.entity(EntityKind::Thread, tid, name, None)
    });
    w.now = 10;
    w.switch(cpu, None, ThreadState::Unknown, Some(a));
    w.now = 20;
    w.push(EventKind::End { entity: cpu });
    let (trace, stats) = w.draw(TimelineOptions::default());
    assert_eq!(
        of_cpu(&Timeline::read(&trace)),
        ["10 cpu 0: other 4194304 -> a 8", "20 cpu 0: (1) -> swapper 0"]
    );
    assert_eq!(stats.switches, 1);
    w.now = 100;
    w.switch(cpu, Some(b), ThreadState::Preempted, Some(c));
    w.now = 110;
    w.switch(cpu, Some(c), ThreadState::Blocked, None);
    w.now = 120;
    w.push(EventKind::End { entity: cpu });
    let (trace, stats) = w.draw(TimelineOptions::default());
    let lines = [
        "10 cpu 0: other 4194304 -> a 8",
        "20 cpu 0: (1) -> swapper 0",
        "100 cpu 0: (0) -> b 9",
        "100 cpu 0: (0) -> c 10",
        "110 cpu 0: (2) -> swapper 0",
    ];
    assert_eq!(of_cpu(&Timeline::read(&trace)), lines);
    assert_eq!(stats.switches, 4);
    let items = chrome(&w.events, &w.tables);
    let slices = items.iter().filter(|item| matches!(item["ph"].as_str(), Some("B" | "E")));
    let slices: Vec<_> = slices
        .map(|item| (item["ts"].as_f64().unwrap(), item["name"].as_str().unwrap_or("end")))
        .collect();
    let expected =
        [(0.01, "a"), (0.02, "end"), (0.1, "b"), (0.1, "end"), (0.1, "c"), (0.11, "end")];
    assert_eq!(slices, expected);
}

/// Records were lost: what the CPU did is not known from its last record on.
#[test]
fn a_cpu_is_idle_where_records_are_missing() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    let thread = w.entity(EntityKind::Thread, 8, "t", None);
    let lost = |w: &mut World, since: i64, kind| {
        let since = Timestamp::from_nanos(since);
        w.push(EventKind::Loss { entity: Some(cpu), kind, since, count: None });
    };
    w.now = 10;
    w.switch(cpu, None, ThreadState::Preempted, Some(thread));
    w.now = 30;
    lost(&mut w, 20, LossKind::SchedulerRecords);
    lost(&mut w, 20, LossKind::SchedulerRecords);
    w.now = 40;
    w.switch(cpu, None, ThreadState::Preempted, Some(thread));
    w.now = 50;
    // Nothing is known to be missing before a switch, and losses of samples are none of switches.
    lost(&mut w, 45, LossKind::Samples);
    lost(&mut w, 35, LossKind::SchedulerRecords);
    // Switches from one thread that is not recorded to another are not in the records.
    w.now = 60;
    let (prev, left, next) = (None, ThreadState::Preempted, None);
    w.push(EventKind::Switch { cpu, prev, left, next, is_next_unknown: true, prio: 120 });
    w.now = 90;
    lost(&mut w, 60, LossKind::SchedulerRecords);
    w.now = 100;
    w.switch(cpu, None, ThreadState::Preempted, Some(thread));
    w.now = 120;
    lost(&mut w, 110, LossKind::CpuOffline);
    let timeline = Timeline::read(&w.draw(TimelineOptions::default()).0);
    let lines = [
        "10 cpu 0: swapper 0 -> t 8",
        "20 cpu 0: (1) -> swapper 0",
        "40 cpu 0: (0) -> t 8",
        "40 cpu 0: (1) -> swapper 0",
        "60 cpu 0: (0) -> other 4194304",
        "90 cpu 0: (1) -> swapper 0",
        "100 cpu 0: (0) -> t 8",
        "110 cpu 0: (1) -> swapper 0",
    ];
    assert_eq!(of_cpu(&timeline), lines);
}

/// The samples of the idle thread are of their CPU, and of no process.
#[test]
fn samples_of_idle_cpus_are_on_a_track_of_their_own() {
    let mut w = World::default();
    let machine = w.entity(EntityKind::Machine, 0, "host", None);
    let cpu = w.entity(EntityKind::Cpu, 0, "", Some(machine));
    let (kind, event) = (SampleKind::Cpu, SampledEventId::default());
    let (entity, stack, of) = (cpu, None, None);
    w.now = 10;
    let cpu = Some(cpu);
    w.push(EventKind::Sample { entity, kind, stack, weight: 1, thread: None, cpu, event, of });
    let (trace, stats) = w.draw(TimelineOptions::default());
    assert_eq!(stats.samples_without_thread, 1);
    let timeline = Timeline::read(&trace);
    assert_eq!(timeline.count("10 Events of CPUs: instant CPU sample"), 1, "{}", timeline.text());
    assert_eq!(timeline.count("host"), 0, "{}", timeline.text());
}

/// A program that does a little at long intervals: its goroutine waits most of the time.
#[test]
fn numbers_of_goroutines_are_those_after_a_burst() {
    const MS: i64 = 1_000_000;
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let m = w.entity(EntityKind::GoThread, 101, "", Some(process));
    let [g, last] =
        [1, 2].map(|number| w.entity(EntityKind::Goroutine, number, "main.main", Some(process)));
    for start in [0, 100 * MS] {
        w.now = start;
        w.state(g, State::Runnable, None, "");
        w.now = start + 10_000;
        w.state(g, State::Running, Some(m), "");
        w.now = start + 50_000;
        w.state(g, State::Waiting, None, "sleep");
    }
    // It ends within a burst, and nothing follows for long.
    w.now = 200 * MS;
    w.state(last, State::Running, Some(m), "");
    w.now = 200 * MS + 500_000;
    w.push(EventKind::End { entity: last });
    w.now = 300 * MS;
    w.entity(EntityKind::Goroutine, 3, "main.main", Some(process));
    let timeline = Timeline::read(&w.draw(TimelineOptions::default()).0);
    let values = |name: &str| -> Vec<(i64, i64)> {
        let track = format!(" shop 100/Goroutines {name}: value ");
        let values = timeline.lines.iter().filter_map(|line| line.split_once(&track));
        values.map(|(at, value)| (at.parse().unwrap(), value.parse().unwrap())).collect()
    };
    let runnable = [(0, 1), (MS, 0), (100 * MS, 1), (101 * MS, 0)];
    assert_eq!(values("runnable"), runnable, "{}", timeline.text());
    assert_eq!(values("waiting"), [(0, 0), (MS, 1), (100 * MS, 0), (101 * MS, 1)]);
    assert_eq!(values("running"), [(0, 0), (200 * MS, 1), (201 * MS, 0)]);
    assert_eq!(values("in syscalls"), [(0, 0)]);
}

/// Of many changes, one value in a millisecond is written.
#[test]
fn numbers_of_goroutines_are_written_once_a_millisecond() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let goroutine = w.entity(EntityKind::Goroutine, 1, "main.main", Some(process));
    for turn in 0..100 {
        w.now = turn * 300_000;
        let state = if turn % 2 == 0 { State::Runnable } else { State::Waiting };
        w.state(goroutine, state, None, "");
    }
    let timeline = Timeline::read(&w.draw(TimelineOptions::default()).0);
    let track = " shop 100/Goroutines runnable: value ";
    let values: Vec<(i64, &str)> = timeline
        .lines
        .iter()
        .filter_map(|line| line.split_once(track))
        .map(|(at, value)| (at.parse().unwrap(), value))
        .collect();
    assert!(values.len() > 10, "{values:?}");
    let rest = values.iter().take(values.len() - 1);
    for ((before, _), (after, _)) in rest.zip(&values[1..values.len() - 1]) {
        assert!(after - before >= 1_000_000, "{values:?}");
    }
    for (at, value) in &values {
        let turn = at / 300_000;
        assert_eq!(*value, if turn % 2 == 0 { "1" } else { "0" }, "{at}: {values:?}");
    }
}

/// Viewers read the number of a state by the release of the kernel.
#[test]
fn preempted_threads_have_the_state_of_the_kernels_release() {
    let w = layers();
    for (release, state) in [
        ("", 0),
        ("4.9.0-19-amd64", 0),
        ("4", 0),
        ("4.14.336", 256),
        ("5.4-generic", 256),
        ("6.18.44-fc", 256),
    ] {
        let mut options = TimelineOptions::default();
        options.set_kernel(release);
        let timeline = Timeline::read(&w.draw(options).0);
        assert_eq!(timeline.count(&format!("3000 cpu 0: ({state}) -> hog 7")), 1, "{release:?}");
    }
}

#[test]
fn layers_are_related_in_chrome_format() {
    let w = layers();
    let items = chrome(&w.events, &w.tables);
    let named = |name: &str| -> Vec<&serde_json::Value> {
        items.iter().filter(|item| item["name"] == name).collect()
    };
    let [preempted] = named("Preempted")[..] else { panic!("{items:#?}") };
    assert_eq!(preempted["ts"].as_f64(), Some(3.0));
    assert_eq!(preempted["args"]["on"], "P 3, thread 101");
    let lane = (&preempted["pid"], &preempted["tid"]);
    let names = named("thread_name");
    let name = names.iter().find(|item| (&item["pid"], &item["tid"]) == lane).unwrap();
    assert_eq!(name["args"]["name"], "Goroutines / main.main / #1");
    // The thread, with the process id that was found by it, and the CPU.
    let shown = named("G1 main.main");
    assert!(shown.iter().any(|item| item["pid"] == 100 && item["tid"] == 101), "{shown:?}");
    let [hog] = named("hog")[..] else { panic!("{items:#?}") };
    assert_eq!((hog["tid"].as_u64(), hog["args"]["tid"].as_u64()), (Some(0), Some(7)));
    let flows = named("flow");
    let phases: Vec<_> = flows.iter().map(|flow| flow["ph"].as_str().unwrap()).collect();
    assert_eq!(phases, ["s", "f"]);
}

/// A Go trace does not say when its threads end; the kernel does. Of a thread whose last switch is
/// lost, the exit is known.
#[test]
fn a_thread_shows_no_goroutine_after_its_end() {
    for is_last_switch_lost in [false, true] {
        a_thread_ends(is_last_switch_lost);
    }
}

fn a_thread_ends(is_last_switch_lost: bool) {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let thread = w.entity(EntityKind::Thread, 101, "shop", Some(process));
    let program = w.entity(EntityKind::Process, -1, "program", None);
    let m = w.entity(EntityKind::GoThread, 101, "", Some(program));
    let proc = w.entity(EntityKind::Proc, 3, "", Some(program));
    let g1 = w.entity(EntityKind::Goroutine, 1, "main.main", Some(program));
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    w.now = 1_000;
    w.switch(cpu, None, ThreadState::Preempted, Some(thread));
    w.state(proc, State::Running, Some(m), "");
    w.state(g1, State::Running, Some(m), "");
    w.now = 2_000;
    w.tables.entities.get_mut(thread).unwrap().end = Some(Timestamp::from_nanos(2_000));
    if !is_last_switch_lost {
        w.push(EventKind::End { entity: thread });
    }
    w.now = 3_000;
    w.state(g1, State::Waiting, None, "sleep");
    w.state(proc, State::Idle, None, "");
    let timeline = Timeline::read(&w.draw(TimelineOptions::default()).0);
    // Reading it fails if time goes back on a track.
    let text = timeline.text();
    let last = text.lines().rfind(|line| line.contains(" 101: ")).unwrap();
    assert!(last.starts_with("2000 ") && last.ends_with(" 101: instant exit"), "{text}");
}

/// A goroutine whose thread loses its CPU, and one that it creates.
fn layers() -> World {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let cpu = w.entity(EntityKind::Cpu, 0, "", None);
    let thread = w.entity(EntityKind::Thread, 101, "shop", Some(process));
    let other = w.entity(EntityKind::Thread, 7, "hog", None);
    let program = w.entity(EntityKind::Process, -1, "program", None);
    let m = w.entity(EntityKind::GoThread, 101, "", Some(program));
    let proc = w.entity(EntityKind::Proc, 3, "", Some(program));
    let g1 = w.entity(EntityKind::Goroutine, 1, "main.main", Some(program));
    w.now = 1_000;
    // The idle thread.
    w.switch(cpu, None, ThreadState::Preempted, Some(thread));
    w.state(proc, State::Running, Some(m), "");
    w.state(g1, State::Running, Some(m), "");
    w.now = 2_000;
    let g7 = w.entity(EntityKind::Goroutine, 7, "main.worker", Some(program));
    w.flow(FlowKind::Creates, g1, None, g7);
    w.state(g7, State::Runnable, None, "");
    w.now = 3_000; // the CPU is taken away from the running goroutine
    w.flow(FlowKind::Wakes, thread, Some(cpu), other);
    w.switch(cpu, Some(thread), ThreadState::Preempted, Some(other));
    w.now = 4_000;
    w.switch(cpu, Some(other), ThreadState::Sleeping, Some(thread));
    w.now = 5_000;
    w.state(g1, State::Waiting, None, "chan receive");
    w.state(g7, State::Running, Some(m), "");
    let span = w.tables.new_span();
    let name = w.tables.text(b"parse");
    let kind = SpanKind::Region;
    w.push(EventKind::Begin { span, entity: g7, kind, name, by: None, of: None, stack: None });
    w.now = 6_000;
    w.push(EventKind::Finish { span, by: None, is_cut: false });
    let (kind, weight, stack) = (SampleKind::GoCpu, 1, None);
    let (thread, of, event) = (None, None, SampledEventId::default());
    w.push(EventKind::Sample { entity: g7, kind, stack, weight, thread, cpu: None, event, of });
    let kind = LossKind::UnreportedSwitch;
    let since = Timestamp::from_nanos(5_500);
    w.push(EventKind::Loss { entity: Some(cpu), kind, since, count: None });
    w.now = 7_000;
    w.push(EventKind::End { entity: g7 });
    w.state(proc, State::Idle, None, "");
    w
}

/// Spans of one thread that end in the order of their begins: each end splits those that are open.
#[test]
fn open_spans_of_one_thread_are_limited() {
    const COUNT: usize = 2000;
    let mut w = World { now: 0, ..World::default() };
    let process = w.entity(EntityKind::Process, 1, "shop", None);
    let entity = w.entity(EntityKind::DotnetThread, 7, "worker", Some(process));
    w.state(entity, State::Running, None, "");
    let (kind, name) = (SpanKind::Jit, w.tables.text(b"Main"));
    let spans: Vec<_> = (0..COUNT).map(|_| w.tables.new_span()).collect();
    for span in &spans {
        w.now += 1;
        let (by, of, stack) = (None, None, None);
        w.push(EventKind::Begin { span: *span, entity, kind, name, by, of, stack });
    }
    for span in &spans {
        w.now += 1;
        w.push(EventKind::Finish { span: *span, by: None, is_cut: false });
    }
    let (bytes, stats) = draw(&w.events, &w.tables, TimelineOptions::default());
    assert_eq!(stats.spans_without_lane, COUNT as u64 - 256);
    assert!(bytes.len() < COUNT * 1000, "{}", bytes.len());
    let begins = chrome(&w.events, &w.tables);
    let begins = begins.iter().filter(|event| event["ph"] == "B").count();
    assert!((256..20 * COUNT).contains(&begins), "{begins}");
}

/// The end of the span was lost, which a later event shows.
#[test]
fn a_span_that_is_cut_after_the_end_of_its_goroutine_does_not_begin_it_again() {
    let mut w = World { now: 0, ..World::default() };
    let process = w.entity(EntityKind::Process, 1, "shop", None);
    let entity = w.entity(EntityKind::Goroutine, 7, "main.worker", Some(process));
    w.state(entity, State::Waiting, None, "");
    let (span, name) = (w.tables.new_span(), w.tables.text(b"mark assist"));
    let (kind, by, of, stack) = (SpanKind::GcAssist, None, None, None);
    w.push(EventKind::Begin { span, entity, kind, name, by, of, stack });
    w.now = 10;
    w.push(EventKind::End { entity });
    w.now = 20;
    w.push(EventKind::Finish { span, by: None, is_cut: true });
    let begins = |events: &[Event]| {
        let items = chrome(events, &w.tables);
        items.iter().filter(|item| item["ph"] == "B").count()
    };
    assert_eq!(begins(&w.events), begins(&w.events[..w.events.len() - 1]));
}

/// Types of tasks above the limit share lanes. Those below it keep theirs.
#[test]
fn types_of_tasks_keep_their_lanes_above_the_limit() {
    const TYPES: usize = 5000;
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 1, "shop", None);
    for number in (0..TYPES).chain([0]) {
        let ty = format!("type{number}");
        let entity = w.entity(EntityKind::Task, number as i64, &ty, Some(process));
        let (span, name) = (w.tables.new_span(), w.tables.text(ty.as_bytes()));
        let (kind, by, of, stack) = (SpanKind::Task, None, None, None);
        w.push(EventKind::Begin { span, entity, kind, name, by, of, stack });
        w.now += 1;
        w.push(EventKind::Finish { span, by: None, is_cut: false });
    }
    let (bytes, stats) = w.draw(TimelineOptions::default());
    assert_eq!(stats.spans_without_lane, 0);
    let timeline = Timeline::read(&bytes);
    let count = |of: &str| timeline.lines.iter().filter(|line| line.contains(of)).count();
    assert_eq!(count("/type0/#1: begin type0 "), 2);
    assert_eq!(count(&format!("/Tasks: begin type{} ", TYPES - 1)), 1);
}

/// Some kernels leave out a quarter of all switches.
#[test]
fn unreported_switches_of_a_millisecond_have_one_mark() {
    let mut w = World { now: 0, ..World::default() };
    let cpus = [0, 1].map(|number| w.entity(EntityKind::Cpu, number, "", None));
    // On the first CPU one each 100 us, on the second one two in all.
    for at in 0..35 {
        w.now = 100_000 * at;
        let second = (at == 3 || at == 4).then_some(cpus[1]);
        for entity in [Some(cpus[0]), second].into_iter().flatten() {
            let (since, kind) = (Timestamp::default(), LossKind::UnreportedSwitch);
            w.push(EventKind::Loss { entity: Some(entity), kind, since, count: None });
        }
    }
    let (trace, stats) = w.draw(TimelineOptions::default());
    assert_eq!(stats.losses, 37, "each is counted");
    let text = Timeline::read(&trace).text();
    let marks: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let (at, of) = line.split_once(" Losses: instant lost: context switches of CPU ")?;
            let times =
                of.split_once(" times").map_or("1", |(text, _)| text.rsplit('(').next().unwrap());
            Some((
                at.parse::<u64>().unwrap(),
                of[..1].parse::<u8>().unwrap(),
                times.parse().unwrap(),
            ))
        })
        .collect();
    let expected: [(u64, u8, u64); 7] = [
        (0, 0, 1),
        (300_000, 1, 1),
        (1_000_000, 0, 10),
        (2_000_000, 0, 10),
        (3_000_000, 0, 10),
        (3_400_000, 0, 4),
        (3_400_000, 1, 1),
    ];
    assert_eq!(marks, expected);
}

/// Processes with a parent are in the process tree; those that started have a slice.
#[test]
fn processes_have_parents_command_lines_and_ends() {
    let mut w = World { now: 10, ..World::default() };
    let init = w.entity(EntityKind::Process, 1, "init", None);
    let process = w.entity(EntityKind::Process, 100, "server", Some(init));
    let thread = w.entity(EntityKind::Thread, 100, "server", Some(process));
    w.entity(EntityKind::Process, 7, "my daemon", Some(init));
    let texts = ["/bin/server -p 80", "/bin/server", "/app"].map(|t| w.tables.text(t.as_bytes()));
    let known = [Attribute::CommandLine, Attribute::Executable, Attribute::Cgroup];
    for (attribute, text) in known.into_iter().zip(texts) {
        w.tables.entities.describe(process, attribute, text);
    }
    for id in [process, thread] {
        w.tables.entities.get_mut(id).unwrap().end = Some(Timestamp::from_nanos(90));
    }
    w.tables.entities.get_mut(process).unwrap().start = Some(Timestamp::from_nanos(20));
    w.now = 90;
    w.push(EventKind::End { entity: thread });
    let (trace, _) = w.draw(TimelineOptions::default());
    let timeline = Timeline::read(&trace);
    for (line, count) in [
        ("process 100 of 1 since 20: [\"server\", \"-p 80\"]", 1),
        // Without a second element it would be cut at the space.
        ("process 7 of 1: [\"my daemon\", \"\"]", 1),
        ("process 1 of", 0),
        (
            "20 server 100/Process: begin /bin/server -p 80 parent=1 executable=/bin/server cgroup=/app",
            1,
        ),
        ("90 server 100/Process: end", 1),
        ("90 server 100: instant exit", 1),
    ] {
        assert_eq!(timeline.count(line), count, "{line} in\n{}", timeline.text());
    }
    let chrome = chrome(&w.events, &w.tables);
    let labels = chrome.iter().find(|item| item["name"] == "process_labels").unwrap();
    assert_eq!(labels["args"]["labels"], "/bin/server -p 80");
    // Their ids are used again: viewers have one process for both, with the last name.
    let second = w.entity(EntityKind::Process, 100, "other", Some(init));
    w.tables.entities.get_mut(second).unwrap().start = Some(Timestamp::from_nanos(95));
    let timeline = Timeline::read(&w.draw(TimelineOptions::default()).0);
    assert_eq!(timeline.count("process 100 of"), 1, "{}", timeline.text());
    assert_eq!(timeline.count("95 other 100/Process: begin other parent=1"), 1);
}

/// A track has one name, the last one: that of the program, which a process and its thread get when they
/// execute it.
#[test]
fn processes_and_threads_have_their_last_name() {
    let mut w = World { now: 10, ..World::default() };
    let process = w.entity(EntityKind::Process, 100, "sh", None);
    let thread = w.entity(EntityKind::Thread, 101, "sh", Some(process));
    let (stack, weight, cpu, event) = (None, 1, None, SampledEventId::default());
    let (entity, kind, of) = (thread, SampleKind::Cpu, None);
    w.push(EventKind::Sample { entity, kind, stack, weight, thread: None, cpu, event, of });
    let name = w.tables.text(b"server");
    // What is drawn first has the name of that time.
    let mut sinks = (
        PerfettoSink::new(Vec::new(), ClockDomain::Monotonic),
        ChromeSink::new(Vec::new(), ClockDomain::Monotonic),
    );
    let mut sources = (TimelineSource::default(), TimelineSource::default());
    for event in &w.events {
        sources.0.push(event, &w.tables, &mut sinks.0).unwrap();
        sources.1.push(event, &w.tables, &mut sinks.1).unwrap();
    }
    for id in [process, thread] {
        w.tables.entities.get_mut(id).unwrap().name = name;
    }
    sources.0.finish(&w.tables, &mut sinks.0).unwrap();
    sources.1.finish(&w.tables, &mut sinks.1).unwrap();
    // A later source has no name for the thread.
    let unnamed = Track::thread(100, 101, b"");
    sinks.0.track(&unnamed).unwrap();
    sinks.1.track(&unnamed).unwrap();
    sinks.0.finish().unwrap();
    sinks.1.finish().unwrap();
    assert_eq!(sinks.0.stats().tracks, 2);
    let timeline = Timeline::read(&sinks.0.into_inner());
    let tracks: Vec<&str> =
        timeline.lines.iter().filter_map(|l| l.strip_prefix("track ")).collect();
    assert_eq!(tracks, ["sh 100", "sh 101", "server 100", "server 101"]);
    let json: serde_json::Value = serde_json::from_slice(&sinks.1.into_inner()).unwrap();
    let named = json["traceEvents"].as_array().unwrap().iter().filter(|item| item["ph"] == "M");
    let named: Vec<_> = named.map(|item| item["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(named, ["sh", "sh", "server", "server"]);
}

/// The name of a thread without one does not replace that of the kernel.
#[test]
fn a_thread_of_the_kernel_is_not_named_m() {
    let mut w = World { now: 10, ..World::default() };
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    w.entity(EntityKind::Thread, 101, "worker", Some(process));
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    TimelineSource::default().declare(&w.tables, &mut sink).unwrap();
    let mut go = World { now: 20, ..World::default() };
    let process = go.entity(EntityKind::Process, 100, "shop", None);
    let m = go.entity(EntityKind::GoThread, 101, "", Some(process));
    let g = go.entity(EntityKind::Goroutine, 1, "main.main", Some(process));
    go.state(g, State::Running, Some(m), "");
    let mut source = TimelineSource::default();
    for event in &go.events {
        source.push(event, &go.tables, &mut sink).unwrap();
    }
    source.finish(&go.tables, &mut sink).unwrap();
    sink.finish().unwrap();
    let timeline = Timeline::read(&sink.into_inner());
    assert_eq!(timeline.count("20 worker 101: begin G1 main.main"), 1, "{}", timeline.text());
}

/// A P shows a goroutine by its number until a stack names the entry function.
#[test]
fn a_goroutine_has_its_name_once_it_is_known() {
    let mut w = World { now: 10, ..World::default() };
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let m = w.entity(EntityKind::GoThread, 101, "", Some(process));
    let proc = w.entity(EntityKind::Proc, 3, "", Some(process));
    let goroutine = w.entity(EntityKind::Goroutine, 1, "", Some(process));
    w.state(proc, State::Running, Some(m), "");
    w.state(goroutine, State::Running, Some(m), "");
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    let mut source = TimelineSource::default();
    for event in std::mem::take(&mut w.events) {
        source.push(&event, &w.tables, &mut sink).unwrap();
    }
    let name = w.tables.text(b"main.main");
    w.tables.entities.get_mut(goroutine).unwrap().name = name;
    w.now = 20;
    w.state(goroutine, State::Waiting, None, "");
    w.now = 30;
    w.state(goroutine, State::Running, Some(m), "");
    for event in &w.events {
        source.push(event, &w.tables, &mut sink).unwrap();
    }
    source.finish(&w.tables, &mut sink).unwrap();
    sink.finish().unwrap();
    let timeline = Timeline::read(&sink.into_inner());
    let labels = timeline.lines.iter().filter_map(|line| line.split_once("begin G"));
    let labels: Vec<_> = labels.map(|(_, label)| label).collect();
    assert_eq!(labels, ["1", "1 main.main", "1 main.main"], "{}", timeline.text());
}

/// A goroutine whose entry function stays unknown is drawn at the end: the sink has evicted what it had
/// of its first states.
#[test]
fn deferred_states_have_their_names_and_stacks() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let unknown = w.entity(EntityKind::Goroutine, 1, "", Some(process));
    let function = w.tables.text(b"main.wait");
    let stack = w.tables.stack(&[Frame { function, ..Frame::default() }]);
    w.now = 10;
    let (reason, on) = (w.tables.text(b"chan receive"), None);
    w.push(EventKind::State { entity: unknown, state: State::Waiting, on, reason, stack });
    let other = w.entity(EntityKind::Goroutine, 2, "main.main", Some(process));
    for turn in 0..100 {
        w.now += 10;
        w.state(other, State::Waiting, None, &format!("reason {turn}"));
    }
    // Room for some ten names.
    let mut sink = PerfettoSink::with_limit(Vec::new(), ClockDomain::Monotonic, 400);
    let mut source = TimelineSource::default();
    for event in &w.events {
        source.push(event, &w.tables, &mut sink).unwrap();
    }
    source.finish(&w.tables, &mut sink).unwrap();
    sink.finish().unwrap();
    assert_eq!(sink.stats().stale_ids, 0);
    let timeline = Timeline::read(&sink.into_inner());
    let line = "#1: begin Waiting (chan receive) [main.wait]";
    assert_eq!(timeline.count(line), 1, "{}", timeline.text());
}

/// Samples of several events cannot be added up: the outermost frame is their event.
#[test]
fn samples_of_several_events_are_apart() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let thread = w.entity(EntityKind::Thread, 101, "shop", Some(process));
    let function = w.tables.text(b"main.work");
    let stack = w.tables.stack(&[Frame { function, ..Frame::default() }]);
    for (name, has_others) in
        [("cycles", true), ("faults", true), ("cycles", true), ("alone", false)]
    {
        let name = w.tables.text(name.as_bytes());
        let event = SampledEvent { name, has_others, ..SampledEvent::default() };
        let event = w.tables.add_sampled_event(event);
        w.now += 10;
        w.push(EventKind::Sample {
            entity: thread,
            kind: SampleKind::Cpu,
            stack: stack.filter(|_| w.now < 30),
            weight: 1,
            thread: None,
            cpu: None,
            event,
            of: None,
        });
    }
    let (bytes, stats) = w.draw(TimelineOptions::default());
    assert_eq!(stats.samples, 4);
    let timeline = Timeline::read(&bytes);
    for stack in ["[[cycles] > main.work]", "[[faults] > main.work]", "[[cycles]]"] {
        assert_eq!(timeline.count(stack), 1, "{stack}: {}", timeline.text());
    }
    assert_eq!(timeline.count("alone"), 0, "{}", timeline.text());
}

/// What a sample is of is not among the frames of a deep stack that are left out.
#[test]
fn the_event_of_a_deep_stack_is_its_outermost_frame() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let entity = w.entity(EntityKind::Thread, 101, "shop", Some(process));
    let [name, function] = [&b"cycles"[..], b"main.deep"].map(|text| w.tables.text(text));
    let stack = w.tables.stack(&[Frame { function, ..Frame::default() }; 1100]);
    let event = SampledEvent { name, has_others: true, ..SampledEvent::default() };
    let event = w.tables.add_sampled_event(event);
    let (kind, weight, thread, cpu, of) = (SampleKind::Cpu, 1, None, None, None);
    w.push(EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of });
    let (bytes, _) = w.draw(TimelineOptions::default());
    let timeline = Timeline::read(&bytes);
    assert_eq!(timeline.count("[[cycles] > main.deep > main.deep"), 1, "{}", timeline.text());
}

#[test]
fn goroutines_above_the_limit_are_a_counter() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let m = w.entity(EntityKind::GoThread, 101, "", Some(process));
    let all: Vec<_> =
        (1..=5).map(|n| w.entity(EntityKind::Goroutine, n, "main.worker", Some(process))).collect();
    for goroutine in &all {
        w.now += 10;
        w.state(*goroutine, State::Waiting, None, "");
    }
    w.state(all[4], State::Running, Some(m), "");
    let (name, stack) = (w.tables.text(b"hello"), None);
    let kind = InstantKind::Log;
    w.push(EventKind::Instant { entity: all[4], kind, name, stack, of: None });
    for goroutine in &all {
        w.now += 10;
        w.push(EventKind::End { entity: *goroutine });
    }
    let mut options = TimelineOptions::default();
    options.lanes = 2;
    let (trace, stats) = w.draw(options);
    assert_eq!((stats.goroutines, stats.goroutines_without_lane), (5, 3));
    assert_eq!(stats.instants_without_lane, 1);
    let timeline = Timeline::read(&trace);
    assert_eq!(timeline.open(), Vec::<&str>::new());
    assert_eq!(timeline.count("goroutines without a lane: value 3"), 1, "{}", timeline.text());
    assert_eq!(timeline.count("goroutines without a lane: value 0"), 1);
    // The thread that executes one of them shows it nevertheless.
    assert_eq!(timeline.count("M 101: begin G5 main.worker"), 1);
}

/// The entry functions of some become known late: they are counted from then on.
#[test]
fn the_number_of_goroutines_without_a_lane_is_that_of_its_time() {
    let mut w = World { now: 10, ..World::default() };
    let process = w.entity(EntityKind::Process, 100, "shop", None);
    let goroutine = |w: &mut World, number, name: &str| {
        w.entity(EntityKind::Goroutine, number, name, Some(process))
    };
    let late = [1, 2].map(|number| goroutine(&mut w, number, ""));
    late.iter().for_each(|goroutine| w.state(*goroutine, State::Waiting, None, ""));
    let early = [3, 4].map(|number| goroutine(&mut w, number, "main.worker"));
    for goroutine in early {
        w.now += 10;
        w.state(goroutine, State::Waiting, None, "");
    }
    let mut options = TimelineOptions::default();
    options.lanes = 1;
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    let mut source = TimelineSource::new(options);
    for event in std::mem::take(&mut w.events) {
        source.push(&event, &w.tables, &mut sink).unwrap();
    }
    let name = w.tables.text(b"main.worker");
    for goroutine in late {
        w.tables.entities.get_mut(goroutine).unwrap().name = name;
        w.now += 10;
        w.state(goroutine, State::Runnable, None, "");
    }
    for event in &w.events {
        source.push(event, &w.tables, &mut sink).unwrap();
    }
    source.finish(&w.tables, &mut sink).unwrap();
    sink.finish().unwrap();
    let timeline = Timeline::read(&sink.into_inner());
    let counter = "shop 100/Goroutines/main.worker/goroutines without a lane: value ";
    let values: Vec<_> = timeline.lines.iter().filter(|line| line.contains(counter)).collect();
    let expected = ["30 V1", "40 V2", "50 V3"].map(|line| line.replace('V', counter));
    assert_eq!(values, expected.each_ref());
}

#[test]
fn recorded_go_traces_can_be_drawn() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data");
    let is_trace = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.ends_with(".trace") || name.ends_with(".trace.gz")
    };
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut drawn = 0;
    for path in entries.filter(is_trace) {
        let mut bytes = Vec::new();
        let file = File::open(&path).unwrap();
        if path.extension().unwrap() == "gz" {
            flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        } else {
            { file }.read_to_end(&mut bytes).unwrap();
        }
        let mut reader = gotrace::Reader::new(&bytes[..]).unwrap();
        let mut source = trace_timeline::sources::go::GoSource::new(Default::default());
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        while let Some(event) = reader.next_event().unwrap() {
            source.push(event, &mut tables, &mut events);
        }
        let goroutines = tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Goroutine);
        let goroutines = goroutines.count() as u64;
        let (trace, stats) = draw(&events, &tables, TimelineOptions::default());
        assert_eq!((stats.events, stats.goroutines), (events.len() as u64, goroutines));
        let timeline = Timeline::read(&trace);
        // The slices that are open at the end are goroutines, their states, Ps and spans.
        assert!(timeline.packets > events.len() / 4, "{}", path.display());
        assert_eq!(timeline.categories.get(""), None, "{}", path.display());
        if path.ends_with("shop.trace") {
            let categories: Vec<_> = timeline.categories.keys().collect();
            assert_eq!(categories, ["gc", "go", "log", "task"]);
        }
        drawn += 1;
    }
    assert!(drawn > 8, "only {drawn} traces");
}

/// One event of a small machine: a kind, and numbers that choose its entities.
fn event(w: &mut World, all: &[EntityId], (kind, a, b, c): (u8, usize, usize, usize)) {
    const LEFT: [ThreadState; 4] =
        [ThreadState::Preempted, ThreadState::Sleeping, ThreadState::Dead, ThreadState::Unknown];
    const STATES: [State; 6] = [
        State::Unknown,
        State::Running,
        State::Runnable,
        State::Waiting,
        State::Syscall,
        State::Idle,
    ];
    const SPANS: [SpanKind; 10] = [
        SpanKind::Task,
        SpanKind::Region,
        SpanKind::Activity,
        SpanKind::Gc,
        SpanKind::GcAssist,
        SpanKind::GcSweep,
        SpanKind::StopTheWorld,
        SpanKind::Jit,
        SpanKind::LockWait,
        SpanKind::Queued,
    ];
    let of = |n: usize| all[n % all.len()];
    let maybe = |n: usize| (n % 3 > 0).then(|| of(n));
    // The two after the processes, mostly.
    let cpu = |n: usize| if n % 4 == 0 { of(n) } else { all[2 + n % 2] };
    let (name, unit, stack) = (w.tables.text(b"name"), w.tables.text(b"B"), None);
    let kind = match kind % 12 {
        0 | 1 => EventKind::Switch {
            cpu: cpu(a),
            prev: maybe(b),
            left: LEFT[c % 4],
            next: maybe(c),
            is_next_unknown: a % 2 == 0,
            prio: 100,
        },
        2 | 3 => EventKind::State {
            entity: of(a),
            state: STATES[b % 6],
            on: maybe(c),
            reason: name,
            stack,
        },
        4 => {
            let (context, kind) = (Context::Task, FlowKind::Wakes);
            let (on, cpu) = (Some(cpu(c)), maybe(a));
            EventKind::Flow { kind, from: maybe(b), context, on, to: of(a), cpu, stack }
        }
        5 => {
            let (span, kind) = (w.tables.new_span(), SPANS[b % 10]);
            let (entity, by, of) = (of(a), maybe(b), maybe(c));
            EventKind::Begin { span, entity, kind, name, by, of, stack }
        }
        6 => {
            let mut spans = w.events.iter().filter_map(|event| match event.kind {
                EventKind::Begin { span, .. } => Some(span),
                _ => None,
            });
            match spans.nth(a % 8) {
                Some(span) => EventKind::Finish { span, by: None, is_cut: false },
                None => return,
            }
        }
        7 => {
            let kind = InstantKind::Log;
            EventKind::Instant { entity: of(a), kind, name, stack, of: maybe(b) }
        }
        8 if c % 2 == 0 => EventKind::Argument { name, value: Value::Entity(of(a)) },
        8 => EventKind::Counter { entity: of(a), name, unit, value: c as f64 },
        9 => {
            let kind = if b % 2 == 0 { SampleKind::Cpu } else { SampleKind::OffCpu };
            let (thread, cpu) = (maybe(b), maybe(c));
            let (weight, event, of_none) = (c as u64, SampledEventId::default(), None);
            EventKind::Sample {
                entity: of(a),
                kind,
                stack,
                weight,
                thread,
                cpu,
                event,
                of: of_none,
            }
        }
        10 => {
            let since = Timestamp::from_nanos(w.now - 5);
            let kind = match c % 2 {
                0 => LossKind::UnreportedSwitch,
                _ => LossKind::SchedulerRecords,
            };
            EventKind::Loss { entity: Some(cpu(a)), kind, since, count: None }
        }
        _ => EventKind::End { entity: if c % 4 == 0 { cpu(a) } else { of(a) } },
    };
    w.push(kind);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever happens, the timeline can be read back: slices nest, times ascend on each track.
    #[test]
    fn any_events_are_drawn(
        steps in proptest::collection::vec((any::<u8>(), 0..99usize, 0..99usize, 0..99usize), 0..300),
        lanes in 0..3usize,
    ) {
        let mut w = World { now: 1_000, ..World::default() };
        let process = w.entity(EntityKind::Process, 10, "p", None);
        let unknown = w.entity(EntityKind::Process, -1, "q", None);
        let mut all = vec![process, unknown];
        for (kind, number, of) in [
            (EntityKind::Cpu, 0, None),
            (EntityKind::Cpu, 1 << 40, None),
            (EntityKind::Thread, 10, Some(process)),
            (EntityKind::Thread, 11, None),
            (EntityKind::Thread, -5, Some(process)),
            (EntityKind::GoThread, 10, Some(unknown)),
            (EntityKind::GoThread, 11, Some(unknown)),
            (EntityKind::Proc, 0, Some(unknown)),
            (EntityKind::Proc, i64::MAX, Some(process)),
            (EntityKind::Goroutine, 1, Some(unknown)),
            (EntityKind::Goroutine, 2, Some(unknown)),
            (EntityKind::Goroutine, 2, None),
            (EntityKind::DotnetThread, 11, Some(process)),
            (EntityKind::Task, 1, Some(unknown)),
            (EntityKind::Activity, 1, Some(process)),
        ] {
            all.push(w.entity(kind, number, "name", of));
        }
        for (n, step) in steps.into_iter().enumerate() {
            w.now += n as i64 % 3;
            event(&mut w, &all, step);
        }
        let mut options = TimelineOptions::default();
        options.lanes = lanes;
        let (trace, stats) = w.draw(options);
        prop_assert_eq!(stats.events, w.events.len() as u64);
        let timeline = Timeline::read(&trace);
        prop_assert!(timeline.packets > 0);
        chrome(&w.events, &w.tables);
    }
}
