//! What the model has of real .NET traces beside times: names, stacks, arguments, heaps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use flate2::read::GzDecoder;
use nettrace::analysis::{RuntimeRecord, RuntimeTracker};
use nettrace::manifest::Provider;
use nettrace::{Item, Reader};
use std::collections::HashMap;
use std::io::Read as _;
use std::path::PathBuf;
use testkit::nettrace::{Written, assemble, event, trace, utf16};
use trace_timeline::answers::{History, Report, RequestFilter, Requests, critical_path};
use trace_timeline::sources::dotnet::{DotnetNames, DotnetSource};
use trace_timeline::sources::kernel::{KernelSource, Record};
use trace_timeline::{
    Attribute, Correlator, Derived, Entity, EntityKind, Event, EventKind, SampleKind, SpanKind,
    StackId, State, Tables, TextId, Timestamp, Value,
};

struct Capture {
    name: String,
    bytes: Vec<u8>,
    tables: Tables,
    events: Vec<Event>,
    source: DotnetSource,
}

fn captures() -> impl Iterator<Item = Capture> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let dirs = [root.join("tests/data"), root.join("../nettrace/tests/data")];
    let files = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let endings = [".nettrace", ".nettrace.gz"];
    paths.retain(|path| endings.iter().any(|end| path.to_str().unwrap().ends_with(end)));
    assert!(paths.len() >= 10, "{}", paths.len());
    paths.into_iter().map(|path| {
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().unwrap() == "gz" {
            let compressed = std::mem::take(&mut bytes);
            GzDecoder::new(&compressed[..]).read_to_end(&mut bytes).unwrap();
        }
        let mut names = DotnetNames::new();
        // Some traces are damaged on purpose: what is before is read.
        let _ = Reader::new(&bytes[..]).for_each(|event| names.push(&event));
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        let mut source = DotnetSource::with_names(0, names);
        let mut reader = Reader::new(&bytes[..]);
        while let Ok(Some(item)) = reader.next_item() {
            source.push(&item, &mut tables, &mut events);
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Capture { name, bytes, tables, events, source }
    })
}

/// Each event that is not an argument, with its arguments.
fn with_arguments(events: &[Event]) -> Vec<(Event, Vec<(TextId, Value)>)> {
    let (mut found, mut arguments) = (Vec::new(), Vec::new());
    for event in events {
        if let EventKind::Argument { name, value } = event.kind {
            arguments.push((name, value));
        } else {
            found.push((*event, std::mem::take(&mut arguments)));
        }
    }
    assert!(arguments.is_empty(), "arguments of no event");
    found
}

#[test]
fn arguments_belong_to_an_event_that_has_some() {
    let mut count = 0;
    for Capture { name, events, .. } in captures() {
        let mut at = None;
        for event in &events {
            if at.is_some_and(|at| at != event.time) {
                panic!("{name}: arguments of another time");
            }
            at = matches!(event.kind, EventKind::Argument { .. }).then_some(event.time);
        }
        for (event, arguments) in with_arguments(&events) {
            count += arguments.len();
            let may_have = matches!(
                event.kind,
                EventKind::Begin { .. }
                    | EventKind::Finish { .. }
                    | EventKind::Instant { .. }
                    | EventKind::Sample { .. }
            );
            assert!(may_have || arguments.is_empty(), "{name}: {event:?}");
        }
    }
    assert!(count > 1000, "{count}");
}

/// Of each sample, its stack is that of its event, innermost first, and each frame is the method
/// that the trace's own events place there.
#[test]
fn stacks_of_samples_are_resolved() {
    let (mut frames, mut named) = (0, 0);
    for Capture { name, bytes, tables, events, .. } in captures() {
        let mut names = DotnetNames::new();
        let _ = Reader::new(&bytes[..]).for_each(|event| names.push(&event));
        let mut expected = Vec::new();
        let mut reader = Reader::new(&bytes[..]);
        while let Ok(Some(event)) = reader.next_event() {
            if Provider::by_name(event.provider()) == Some(Provider::SampleProfiler) {
                let (pid, at) = (event.pid(), event.time());
                let stack: Vec<String> = event
                    .stack()
                    .instruction_pointers()
                    .enumerate()
                    .map(|(depth, ip)| {
                        let call = ip - u64::from(depth > 0);
                        let method = names.methods().resolve(pid, call, at).method;
                        method.map_or(format!("{ip:#x}"), ToString::to_string)
                    })
                    .collect();
                expected.push(stack);
            }
        }
        let found: Vec<Vec<String>> = events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Sample { kind: SampleKind::Managed, stack, .. } => Some(stack),
                _ => None,
            })
            .map(|stack| {
                let frames = stack.map_or(&[][..], |stack| tables.frames(stack));
                frames.iter().map(|frame| tables.str(frame.function).into_owned()).collect()
            })
            .collect();
        assert_eq!(found, expected, "{name}");
        // Some traces have no events of methods: their frames are addresses.
        if names.methods().methods().is_empty() {
            assert!(found.iter().flatten().all(|frame| frame.starts_with("0x")), "{name}");
            continue;
        }
        frames += found.iter().map(Vec::len).sum::<usize>();
        named += found.iter().flatten().filter(|frame| !frame.starts_with("0x")).count();
    }
    println!("{named} of {frames} frames have a name");
    assert!(named * 10 > frames * 9, "{named} of {frames} frames have a name");
}

/// The runtime reports an idle interval with a sum of 0 and without quantiles.
#[test]
fn an_idle_histogram_keeps_no_values() {
    let provider = "System.Diagnostics.Metrics";
    let texts = ["meterName", "instrumentName", "unit", "tags", "quantiles"].map(|name| (name, 18));
    let mut fields = 7_u32.to_le_bytes().to_vec();
    for (name, ty) in texts.into_iter().chain([("count", 9), ("sum", 14_u32)]) {
        fields.extend(ty.to_le_bytes());
        fields.extend(assemble::utf16z(name));
    }
    let ty = assemble::metadata(provider, 6, 0, "HistogramValuePublished", 0, &fields);
    let value = |instrument: &str, quantiles: &str, count: i32, sum: f64| {
        let mut payload = ["Shop", instrument, "ms", "", quantiles].map(assemble::utf16z).concat();
        payload.extend(count.to_le_bytes());
        payload.extend(sum.to_le_bytes());
        assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &payload)
    };
    let events = [
        // Nothing is known of it yet.
        value("size", "", 0, 0.0),
        value("latency", "0.5=1.5;0.99=20", 2, 21.5),
        value("latency", "", 0, 0.0),
    ];
    let bytes = assemble::Stream::v4()
        .compressed("MetadataBlock", &assemble::blob(&[0x80, 0], &ty))
        .compressed("EventBlock", &events.concat())
        .end();
    let (tables, events) = read(&bytes);
    let counter = |event: &Event| match event.kind {
        EventKind::Counter { name, value, .. } => Some((tables.str(name).into_owned(), value)),
        _ => None,
    };
    let counters: Vec<_> = events.iter().filter_map(counter).collect();
    let expected = [
        ("Shop/size sum", 0.0),
        ("Shop/latency p50", 1.5),
        ("Shop/latency p99", 20.0),
        ("Shop/latency sum", 21.5),
        ("Shop/latency p50", 0.0),
        ("Shop/latency p99", 0.0),
        ("Shop/latency sum", 0.0),
    ];
    assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)));
}

/// .NET 6 and 7 do not report it.
#[test]
fn a_histogram_without_its_sum_has_quantiles() {
    let texts = ["meterName", "instrumentName", "quantiles"];
    let mut fields = 3_u32.to_le_bytes().to_vec();
    for name in texts {
        fields.extend(18_u32.to_le_bytes());
        fields.extend(assemble::utf16z(name));
    }
    let (provider, name) = ("System.Diagnostics.Metrics", "HistogramValuePublished");
    let payload = ["Shop", "latency", "0.5=1.5"].map(assemble::utf16z).concat();
    let (tables, events) = read(&assemble::v4_named(provider, 6, name, &fields, &payload));
    let counter = |event: &Event| match event.kind {
        EventKind::Counter { name, value, .. } => Some((tables.str(name).into_owned(), value)),
        _ => None,
    };
    let counters: Vec<_> = events.iter().filter_map(counter).collect();
    assert_eq!(counters, [("Shop/latency p50".to_owned(), 1.5)]);
}

/// Since .NET 9, `System.Runtime` is an event source and a meter.
#[test]
fn counters_of_sources_and_meters_are_different_ones() {
    let described = |fields: &[(&str, u32)]| {
        let mut described = (fields.len() as u32).to_le_bytes().to_vec();
        for (name, ty) in fields {
            described.extend(ty.to_le_bytes());
            described.extend(assemble::utf16z(name));
        }
        described
    };
    let texts = ["meterName", "instrumentName", "unit", "tags", "lastValue"];
    let fields = described(&texts.map(|name| (name, 18)));
    let provider = "System.Diagnostics.Metrics";
    let gauge = assemble::metadata(provider, 6, 0, "GaugeValuePublished", 0, &fields);
    let fields = described(&[("Name", 18), ("Mean", 14)]);
    let mut counter = assemble::metadata("Shop", 1, 0, "EventCounters", 0, &fields);
    counter[0] = 2;
    let types = [gauge, counter].map(|ty| assemble::blob(&[0x80, 0], &ty));
    let gauge = |name: &str, value: &str| {
        let payload = ["Shop", name, "", "", value].map(assemble::utf16z).concat();
        assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &payload)
    };
    let counter = |name: &str, mean: f64| {
        let payload = [assemble::utf16z(name), mean.to_le_bytes().to_vec()].concat();
        assemble::blob(&[0xc7, 2, 0, 9, 0, 9, 5], &payload)
    };
    let counters = |events: &[Vec<u8>]| -> Vec<(String, f64)> {
        let bytes = assemble::Stream::v4()
            .compressed("MetadataBlock", &types.concat())
            .compressed("EventBlock", &events.concat())
            .end();
        let (tables, events) = read(&bytes);
        let counter = |event: &Event| match event.kind {
            EventKind::Counter { name, value, .. } => Some((tables.str(name).into_owned(), value)),
            _ => None,
        };
        events.iter().filter_map(counter).collect()
    };
    let named = |pairs: &[(&str, f64)]| -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let events =
        [counter("rate", 1.0), gauge("rate", "2"), counter("rate", 3.0), gauge("own", "4")];
    let expected =
        [("Shop/rate", 1.0), ("Shop/rate (meter)", 2.0), ("Shop/rate", 3.0), ("Shop/own", 4.0)];
    assert_eq!(counters(&events), named(&expected));
    let events = [gauge("rate", "2"), counter("rate", 1.0)];
    let expected = [("Shop/rate", 2.0), ("Shop/rate (event counter)", 1.0)];
    assert_eq!(counters(&events), named(&expected));
}

/// Whether each activity that a thread begins is a part of another one. The event types 1 and 2 begin two kinds of
/// them. If the trace is damaged, a part is missing after each item.
fn have_parents(events: &[Vec<u8>], is_damaged: bool) -> Vec<bool> {
    let types = ["OuterStart", "InnerStart"]
        .map(|name| assemble::metadata("Shop", 1, 0, name, 0, &0_u32.to_le_bytes()));
    let types = (1_u32..).zip(types).map(|(id, mut ty)| {
        ty[..4].copy_from_slice(&id.to_le_bytes());
        assemble::blob(&[0x80, 0], &ty)
    });
    let bytes = assemble::Stream::v4()
        .compressed("MetadataBlock", &types.collect::<Vec<_>>().concat())
        .compressed("EventBlock", &events.concat())
        .end();
    let (mut source, mut tables, mut events) = (DotnetSource::new(0), Tables::new(), Vec::new());
    let mut reader = Reader::new(&bytes[..]);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
        if is_damaged {
            source.loss("damaged", &mut tables, &mut events);
        }
    }
    let parent = |event: &Event| match event.kind {
        EventKind::Begin { kind: SpanKind::Activity, of, .. } => Some(of.is_some()),
        _ => None,
    };
    events.iter().filter_map(parent).collect()
}

/// A thread begins an activity of this type. It has lost this number of events before.
fn begins_activity(id: u8, lost: u8) -> Vec<u8> {
    assemble::blob(&[0xc7, id, lost, 9, 0, 9, 5], &[])
}

/// A thread begins an activity while another one that it began waits, to be ended elsewhere.
#[test]
fn activities_with_identifiers_do_not_nest_by_thread() {
    let without = |id| begins_activity(id, 0);
    let with = |id| assemble::blob(&[&[0xd7, id, 0, 9, 0, 9, 5][..], &[id; 16]].concat(), &[]);
    assert_eq!(have_parents(&[without(1), without(2)], false), [false, true]);
    assert_eq!(have_parents(&[with(1), with(2)], false), [false, false]);
}

/// A thread of the pool begins a request while one before waits, with a part of its own.
#[test]
fn an_activity_is_no_part_of_one_of_its_kind() {
    let begun = [1, 2, 1, 2, 2].map(|id| begins_activity(id, 0));
    assert_eq!(have_parents(&begun, false), [false, true, false, true, true]);
}

/// The end of the first one can be missing.
#[test]
fn an_activity_after_a_loss_is_no_part_of_one_before() {
    let [outer, inner, after_loss] =
        [(1, 0), (2, 0), (2, 3)].map(|(id, lost)| begins_activity(id, lost));
    assert_eq!(have_parents(&[outer.clone(), inner.clone()], true), [false, false]);
    assert_eq!(have_parents(&[outer, after_loss], false), [false, false]);
}

/// The limit of open activities says nothing about how long one took.
#[test]
fn activities_that_do_not_end_are_no_requests() {
    const COUNT: usize = (1 << 16) + 1;
    let mut ty = assemble::metadata("Shop", 1, 0, "OrderStart", 0, &0_u32.to_le_bytes());
    ty[..4].copy_from_slice(&1_u32.to_le_bytes());
    let start = assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &[]);
    let bytes = assemble::Stream::v4()
        .compressed("MetadataBlock", &assemble::blob(&[0x80, 0], &ty))
        .compressed("EventBlock", &start.repeat(COUNT))
        .end();
    let (_, events) = read(&bytes);
    let mut requests = Requests::new(RequestFilter::default(), 1);
    events.iter().for_each(|event| requests.push(&Derived::Event(*event)));
    let is_end = |event: &&Event| matches!(event.kind, EventKind::Finish { .. });
    assert_eq!(events.iter().filter(is_end).count(), 1);
    assert_eq!((requests.count(), requests.into_worst().len()), (0, 0));
}

/// Two kinds of samples of the same allocations.
#[test]
fn bytes_of_allocations_are_not_added_up_twice() {
    let types = [(RUNTIME, 10, 1), (RUNTIME, 303, 0)];
    let clr = 9_u16.to_le_bytes();
    let tick = |at| event(1, at, 5, &[&100_000_u32.to_le_bytes(), &0_u32.to_le_bytes(), &clr]);
    let sizes = [8_u64, 1_000_000, 0].map(u64::to_le_bytes).concat();
    let ids = [0_u32.to_le_bytes().to_vec(), clr.to_vec(), vec![0; 8]].concat();
    let sampled = event(2, 20, 5, &[&ids, &utf16("N.T"), &sizes]);
    let weights = |events: &[_]| -> Vec<u64> {
        let (_, events) = read(&trace(&types, events));
        let weight = |event: &Event| match event.kind {
            EventKind::Sample { kind: SampleKind::Allocation, weight, .. } => Some(weight),
            _ => None,
        };
        events.iter().filter_map(weight).collect()
    };
    assert_eq!(weights(&[tick(10), tick(30)]), [100_000, 100_000]);
    assert_eq!(weights(&[tick(10), sampled, tick(30)]), [100_000, 1_000_057]);
}

#[test]
fn allocations_and_exceptions_are_those_of_the_trackers() {
    let (mut bytes_all, mut exceptions_all) = (0, 0);
    for Capture { name, bytes, tables, events, .. } in captures() {
        let (mut expected, mut messages) = (Vec::new(), Vec::new());
        let mut tracker = RuntimeTracker::new();
        let mut reader = Reader::new(&bytes[..]);
        while let Ok(Some(event)) = reader.next_event() {
            match tracker.push(&event) {
                Some(RuntimeRecord::Allocation(allocation)) => {
                    expected.push((allocation.type_name.unwrap(), allocation.amount));
                }
                Some(RuntimeRecord::Exception(exception)) => messages.push(exception.message),
                _ => {}
            }
        }
        let text = |arguments: &[(TextId, Value)], wanted: &[u8]| {
            let found = arguments.iter().find(|(name, _)| tables.get(*name) == wanted);
            match found {
                Some((_, Value::Text(text))) => tables.str(*text).into_owned(),
                other => panic!("{other:?}"),
            }
        };
        let (mut found, mut thrown) = (Vec::new(), Vec::new());
        for (event, arguments) in with_arguments(&events) {
            match event.kind {
                EventKind::Sample { kind: SampleKind::Allocation, weight, .. } => {
                    found.push((text(&arguments, b"type"), weight));
                }
                EventKind::Instant { kind: trace_timeline::InstantKind::Exception, .. } => {
                    thrown.push(text(&arguments, b"message"));
                }
                _ => {}
            }
        }
        assert_eq!(found, expected, "{name}");
        assert_eq!(thrown, messages, "{name}");
        bytes_all += found.iter().map(|(_, weight)| *weight).sum::<u64>();
        exceptions_all += thrown.len();
    }
    println!("{bytes_all} bytes, {exceptions_all} exceptions");
    assert!(bytes_all > 0 && exceptions_all > 0, "{bytes_all} {exceptions_all}");
}

/// Compilations on one thread that end with and without a name, of methods with and without a
/// namespace.
fn compilations_by_hand() -> Vec<u8> {
    const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
    let types = [(RUNTIME, 145, 1), (RUNTIME, 141, 1), (RUNTIME, 143, 1)];
    let (u32s, u64s, clr) = (u32::to_le_bytes, u64::to_le_bytes, 9_u16.to_le_bytes());
    let names = |namespace, name| [utf16(namespace), utf16(name), utf16("void ()")].concat();
    let start = |at, id, namespace, name| {
        let (ids, sizes) = ([u64s(id), u64s(1)].concat(), [u32s(100), u32s(3)].concat());
        event(1, at, 5, &[&ids, &sizes, &names(namespace, name), &clr])
    };
    let code = |id, size| {
        let ids = [u64s(id), u64s(1), u64s(2)].concat();
        [ids, [u32s(size), u32s(3), u32s(8)].concat()].concat()
    };
    let events = [
        start(10, 1, "N.T", "M"),
        start(20, 2, "", "Main"),
        event(3, 30, 5, &[&code(2, 20), &names("", "Main"), &clr]),
        event(2, 40, 5, &[&code(1, 10), &clr]),
    ];
    trace(&types, &events)
}

/// 65 536 are kept open. The oldest ones beyond are counted, and arguments are those of their event.
#[test]
fn too_many_open_spans_are_counted() {
    const OPEN: u64 = 1 << 16;
    let clr = 9u16.to_le_bytes();
    let runtime = "Microsoft-Windows-DotNETRuntime";
    let types = [(runtime, 145, 1), (runtime, 80, 1), (runtime, 143, 1)];
    let start = |id: u64| {
        let ids = [id, 1].map(u64::to_le_bytes).concat();
        let numbers = [7u32, 30].map(u32::to_le_bytes).concat();
        let names = [utf16("N.T"), utf16("M"), utf16("void ()")].concat();
        event(1, 10, 5, &[&ids, &numbers, &names, &clr])
    };
    let mut events: Vec<_> = (0..OPEN + 3).map(start).collect();
    let exception = [utf16("N.E"), utf16("message"), vec![0; 8 + 4 + 2]].concat();
    events.push(event(2, 20, 5, &[&exception, &clr]));
    // The newest and the oldest compilation end.
    for id in [OPEN + 2, 0] {
        let code = [
            [id, 1, 2].map(u64::to_le_bytes).concat(),
            [9u32, 3, 8].map(u32::to_le_bytes).concat(),
        ];
        let names = [utf16("N.T"), utf16("M"), utf16("void ()")].concat();
        events.push(event(3, 30, 5, &[&code.concat(), &names, &clr]));
    }
    let bytes = trace(&types, &events);

    let mut begun = Vec::new();
    let (mut source, mut tables, mut events) = (DotnetSource::new(0), Tables::new(), Vec::new());
    let (mut tracker, mut reader) = (RuntimeTracker::new(), Reader::new(&bytes[..]));
    while let Some(item) = reader.next_item().unwrap() {
        if let Item::Event(event) = &item {
            if let Some(RuntimeRecord::JitCompilation(jit)) = tracker.push(event) {
                begun.push(jit.start);
            }
        }
        source.push(&item, &mut tables, &mut events);
    }
    assert_eq!((source.stats().unpaired, tracker.dropped()), (3, 3));
    // The newest ones are tracked.
    assert_eq!(begun, [Some(Timestamp::from_nanos(10)), None]);
    let drawn = with_arguments(&events);
    let is_jit = |event: &Event| matches!(event.kind, EventKind::Begin { kind: SpanKind::Jit, .. });
    let compilations: Vec<_> = drawn.iter().filter(|(event, _)| is_jit(event)).collect();
    assert_eq!(compilations.len() as u64, OPEN + 3);
    assert!(compilations.iter().all(|(_, arguments)| arguments.len() == 1));
    // The oldest ones end without their size, and the newest with it.
    let is_end = |event: &Event| matches!(event.kind, EventKind::Finish { .. });
    let ends: Vec<_> = drawn.iter().filter(|(event, _)| is_end(event)).collect();
    let sizes: Vec<usize> = ends.iter().map(|(_, arguments)| arguments.len()).collect();
    assert_eq!(sizes, [0, 0, 0, 1]);
    let (_, arguments) = drawn
        .iter()
        .find(|(event, _)| matches!(event.kind, EventKind::Instant { .. }))
        .expect("the exception");
    let names: Vec<&[u8]> = arguments.iter().map(|(name, _)| tables.get(*name)).collect();
    assert!(!names.contains(&&b"IL bytes"[..]), "{names:?}");
}

const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";

fn read(bytes: &[u8]) -> (Tables, Vec<Event>) {
    let (mut source, mut tables, mut events) = (DotnetSource::new(0), Tables::new(), Vec::new());
    let mut reader = Reader::new(bytes);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    (tables, events)
}

/// Kind, begin and end of each span.
fn spans(events: &[Event]) -> Vec<(SpanKind, i64, Option<i64>)> {
    let mut found = Vec::new();
    for event in events {
        if let EventKind::Begin { span, kind, .. } = event.kind {
            let is_end = |event: &&Event| matches!(event.kind, EventKind::Finish { span: s, .. } if s == span);
            let end = events.iter().find(is_end).map(|event| event.time.nanos());
            found.push((kind, event.time.nanos(), end));
        }
    }
    found
}

#[test]
fn a_suspension_whose_end_was_lost_ends_with_the_next_one() {
    let types = [(RUNTIME, 9, 1), (RUNTIME, 8, 1), (RUNTIME, 3, 1)];
    let (u32s, clr) = (u32::to_le_bytes, 9_u16.to_le_bytes());
    let begin = |at, thread| event(1, at, thread, &[&u32s(1), &u32s(0), &clr]);
    let end = |at, thread| event(2, at, thread, &[&clr]);
    let restart = |at, thread| event(3, at, thread, &[&clr]);
    // The third one waits for the second one.
    let events = [
        begin(10, 5),
        end(20, 5),
        begin(30, 6),
        end(40, 6),
        begin(50, 7),
        restart(60, 6),
        end(70, 7),
        restart(80, 7),
    ];
    let (_, events) = read(&trace(&types, &events));
    let stop = SpanKind::StopTheWorld;
    let expected = [(stop, 10, Some(40)), (stop, 30, Some(60)), (stop, 50, Some(80))];
    assert_eq!(spans(&events), expected);
}

/// Numbers and texts of the arguments of each begin and end of a span of a kind.
fn arguments_of(kind: SpanKind, tables: &Tables, events: &[Event]) -> Vec<Vec<(String, String)>> {
    let text = |value: Value| match value {
        Value::Uint(number) => number.to_string(),
        Value::Text(text) => tables.str(text).into_owned(),
        other => panic!("{other:?}"),
    };
    let mut spans = std::collections::HashSet::new();
    let mut found = Vec::new();
    for (event, arguments) in with_arguments(events) {
        let is_it = match event.kind {
            EventKind::Begin { span, kind: found, .. } => found == kind && spans.insert(span),
            EventKind::Finish { span, .. } => spans.remove(&span),
            _ => false,
        };
        if is_it {
            let named =
                |(name, value): &(TextId, Value)| (tables.str(*name).into_owned(), text(*value));
            found.push(arguments.iter().map(named).collect());
        }
    }
    found
}

fn owned(arguments: &[&[(&str, &str)]]) -> Vec<Vec<(String, String)>> {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    arguments.iter().map(|arguments| arguments.iter().map(pair).collect()).collect()
}

#[test]
fn runs_of_finalizers_are_spans() {
    let types = [(RUNTIME, 14, 1), (RUNTIME, 13, 1)];
    let clr = 9_u16.to_le_bytes();
    let written = [
        // It began before the trace.
        event(2, 5, 5, &[&2_u32.to_le_bytes(), &clr]),
        event(1, 10, 5, &[&clr]),
        event(2, 40, 5, &[&3_u32.to_le_bytes(), &clr]),
    ];
    let (tables, events) = read(&trace(&types, &written));
    assert_eq!(spans(&events), [(SpanKind::Finalizers, 10, Some(40))]);
    let arguments = arguments_of(SpanKind::Finalizers, &tables, &events);
    assert_eq!(arguments, owned(&[&[], &[("finalizers", "3")]]));
}

/// A type is loaded within the load of another one, and another thread loads one, too.
#[test]
fn loads_of_types_are_spans() {
    let types = [(RUNTIME, 73, 0), (RUNTIME, 74, 0)];
    let clr = 9_u16.to_le_bytes();
    let begin = |at, thread, id: u32| event(1, at, thread, &[&id.to_le_bytes(), &clr]);
    let end = |at, thread, id: u32, name| {
        let level = 6_u16.to_le_bytes();
        let id = id.to_le_bytes();
        event(2, at, thread, &[&id, &clr, &level, &0x77_u64.to_le_bytes(), &utf16(name)])
    };
    let written = [
        begin(10, 5, 1),
        begin(20, 5, 2),
        begin(25, 6, 3),
        end(30, 5, 2, "N.Base"),
        end(40, 5, 1, "N.Derived"),
        end(50, 5, 9, "N.Unknown"),
    ];
    let (tables, events) = read(&trace(&types, &written));
    let load = SpanKind::TypeLoad;
    assert_eq!(spans(&events), [(load, 10, Some(40)), (load, 20, Some(30)), (load, 25, None)]);
    let ends =
        [&[("type", "N.Base"), ("level", "6")][..], &[("type", "N.Derived"), ("level", "6")]];
    let expected = owned(&[&[], &[], &[], ends[0], ends[1]]);
    assert_eq!(arguments_of(load, &tables, &events), expected);
}

#[test]
fn background_compilation_of_tiers_is_a_span() {
    let types = [(RUNTIME, 283, 0), (RUNTIME, 284, 0)];
    let clr = 9_u16.to_le_bytes();
    let written = [
        event(1, 10, 5, &[&clr, &30_u32.to_le_bytes()]),
        event(2, 60, 5, &[&clr, &10_u32.to_le_bytes(), &20_u32.to_le_bytes()]),
    ];
    let (tables, events) = read(&trace(&types, &written));
    assert_eq!(spans(&events), [(SpanKind::TieredJit, 10, Some(60))]);
    let expected =
        owned(&[&[("pending methods", "30")], &[("methods", "20"), ("pending methods", "10")]]);
    assert_eq!(arguments_of(SpanKind::TieredJit, &tables, &events), expected);
}

/// Makes the trace lack events of a thread before the one at this time.
fn lose_before(trace: &mut [u8], thread: u64, at: i64, count: u32) {
    let threads = [thread, thread].map(u64::to_le_bytes).concat();
    let stack = [u32::MAX, 0].map(u32::to_le_bytes).concat();
    let header = [&threads[..], &stack, &at.to_le_bytes()].concat();
    let place = trace.windows(header.len()).position(|window| window == header).unwrap();
    let sequence = &mut trace[place - 4..place];
    let number = u32::from_le_bytes((&*sequence).try_into().unwrap()) + count;
    sequence.copy_from_slice(&number.to_le_bytes());
}

/// Each thread begins a wait, a compilation and a suspension. The first thread then loses events.
#[test]
fn spans_of_a_thread_end_where_it_lost_events() {
    let types = [(RUNTIME, 81, 2), (RUNTIME, 145, 1), (RUNTIME, 9, 1), (RUNTIME, 80, 1)];
    let (u32s, u64s, clr) = (u32::to_le_bytes, u64::to_le_bytes, 9_u16.to_le_bytes());
    let names = [utf16("N.T"), utf16("M"), utf16("void ()")].concat();
    let exception = [utf16("N.E"), utf16("message"), vec![0; 8 + 4 + 2]].concat();
    let begins = |at, thread| {
        [
            event(1, at, thread, &[&[0], &clr, &u64s(1), &u64s(2), &u64s(0)]),
            event(2, at, thread, &[&u64s(1), &u64s(1), &u32s(7), &u32s(30), &names, &clr]),
            event(3, at, thread, &[&u32s(1), &u32s(0), &clr]),
        ]
    };
    let other = |at, thread| event(4, at, thread, &[&exception, &clr]);
    let mut events = [&begins(100, 5)[..], &begins(110, 6)].concat();
    events.extend([other(200, 6), other(300, 5), other(400, 6)]);
    let mut bytes = trace(&types, &events);
    lose_before(&mut bytes, 5, 300, 2);
    let (tables, events) = read(&bytes);
    let kinds = [SpanKind::LockWait, SpanKind::Jit, SpanKind::StopTheWorld];
    let found = spans(&events);
    // A wait is not known to last longer than the events before the loss.
    let end = |kind: SpanKind| if kind == SpanKind::LockWait { 100 } else { 300 };
    let lossy: Vec<_> = kinds.iter().map(|kind| (*kind, 100, Some(end(*kind)))).collect();
    let intact: Vec<_> = kinds.iter().map(|kind| (*kind, 110, None)).collect();
    assert_eq!(found, [lossy, intact].concat());
    let pid = |entity| tables.entities.get(entity).unwrap().number;
    let since: Vec<_> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Loss { entity, since, count, .. } => {
                Some((entity.map(pid), since.nanos(), count))
            }
            _ => None,
        })
        .collect();
    // All events are held back when the gap is found.
    assert_eq!(since, [(Some(42), 100, Some(2))]);
    let running: Vec<_> = events
        .iter()
        .filter(|event| event.time.nanos() == 300)
        .filter_map(|event| match event.kind {
            EventKind::State { entity, state, .. } => Some((entity, state)),
            _ => None,
        })
        .collect();
    let [(thread, State::Running)] = running[..] else { panic!("{running:?}") };
    assert_eq!(tables.entities.get(thread).unwrap().number, 5);
    let states = events.iter().filter_map(|event| match event.kind {
        EventKind::State { entity, state, .. } if entity == thread => {
            Some((event.time.nanos(), state))
        }
        _ => None,
    });
    let (running, waiting) = ((100, State::Running), (100, State::Waiting));
    let expected = [running, waiting, (100, State::Unknown), (300, State::Running)];
    assert_eq!(states.collect::<Vec<_>>(), expected);
    // How long the suspension and the compilation lasted is not known.
    let process = tables.entities.get(thread).unwrap().parent.unwrap();
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
    let mut push = |derived: Derived<'_>| {
        report.push(&derived, &tables.entities);
        history.push(&derived);
    };
    for event in &events {
        correlator.push(event, &tables.entities, &mut push);
    }
    correlator.finish(&mut push);
    history.finish();
    assert_eq!(report.pauses.len(), 0);
    let kept = |entity| history.spans(entity).iter().map(|span| (span.kind, span.start.nanos()));
    assert!(kept(process).eq([(SpanKind::StopTheWorld, 110)]));
    assert!(kept(thread).eq([(SpanKind::LockWait, 100)]));
}

/// A wait for a handle within one for a lock is a part of it.
#[test]
fn waits_for_handles_are_states_unless_they_are_a_part_of_others() {
    let types = [(RUNTIME, 301, 0), (RUNTIME, 302, 0), (RUNTIME, 81, 2), (RUNTIME, 91, 1)];
    let (u64s, clr) = (u64::to_le_bytes, 9_u16.to_le_bytes());
    let start = |at, source| event(1, at, 5, &[&[source], &u64s(77), &clr]);
    let stop = |at| event(2, at, 5, &[&clr]);
    let lock = event(3, 50, 5, &[&[0], &clr, &u64s(1), &u64s(2), &u64s(0)]);
    let unlock = event(4, 80, 5, &[&[0], &clr, &30_f64.to_le_bytes()]);
    let events = [
        start(10, 0),
        stop(20),
        start(30, 1),
        stop(40),
        lock,
        start(60, 0),
        stop(70),
        unlock,
        start(90, 0),
    ];
    let (tables, events) = read(&trace(&types, &events));
    let handle = SpanKind::HandleWait;
    let expected = [
        (handle, 10, Some(20)),
        (handle, 30, Some(40)),
        (SpanKind::LockWait, 50, Some(80)),
        (handle, 60, Some(70)),
        (handle, 90, None),
    ];
    assert_eq!(spans(&events), expected);
    let states = events.iter().filter_map(|event| match event.kind {
        EventKind::State { state, reason, .. } => {
            Some((event.time.nanos(), state, tables.str(reason).into_owned()))
        }
        _ => None,
    });
    let (waiting, running) = (State::Waiting, State::Running);
    let expected = [
        (10, running, ""),
        (10, waiting, "wait handle"),
        (20, running, ""),
        (30, waiting, "Monitor.Wait"),
        (40, running, ""),
        (50, waiting, "lock"),
        (80, running, ""),
        (90, waiting, "wait handle"),
    ];
    let states: Vec<_> = states.filter(|(.., state, _)| *state != State::Unknown).collect();
    assert_eq!(states, expected.map(|(at, state, reason)| (at, state, reason.to_owned())));
}

/// A background GC lasts during others, which do not last during each other.
#[test]
fn a_gc_whose_end_was_lost_ends_with_the_next_one() {
    let types = [(RUNTIME, 1, 1), (RUNTIME, 2, 1)];
    let clr = 9_u16.to_le_bytes();
    let start = |at, number: u32, kind: u32| {
        let fields = [number, 0, 0, kind].map(u32::to_le_bytes).concat();
        event(1, at, 5, &[&fields, &clr])
    };
    let end =
        |at, number: u32| event(2, at, 5, &[&[number, 0].map(u32::to_le_bytes).concat(), &clr]);
    let (blocking, background, foreground) = (0, 1, 2);
    let gcs = [
        start(10, 6, background),
        start(20, 7, foreground),
        start(50, 8, blocking),
        end(60, 8),
        start(70, 9, background),
        start(80, 10, foreground),
        end(85, 10),
        end(90, 9),
    ];
    let (tables, events) = read(&trace(&types, &gcs));
    let gc = SpanKind::Gc;
    let expected = [
        (gc, 10, None),
        (gc, 20, Some(50)),
        (gc, 50, Some(60)),
        (gc, 70, Some(90)),
        (gc, 80, Some(85)),
    ];
    assert_eq!(spans(&events), expected);
    let cut = events.iter().filter(|e| matches!(e.kind, EventKind::Finish { is_cut: true, .. }));
    assert!(cut.map(|event| event.time.nanos()).eq([50]));
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    for event in &events {
        correlator.push(event, &tables.entities, &mut |derived: Derived<'_>| {
            report.push(&derived, &tables.entities);
        });
    }
    let durations: Vec<_> = report.gcs.values().map(|gcs| (gcs.count(), gcs.sum())).collect();
    assert_eq!(durations, [(3, 10 + 20 + 5)]);
}

#[test]
fn compilations_are_those_of_the_tracker() {
    let captured = captures().map(|capture| (capture.name, capture.bytes));
    let mut count = 0;
    for (name, bytes) in captured.chain([("by hand".to_owned(), compilations_by_hand())]) {
        let (mut tracker, mut expected) = (RuntimeTracker::new(), Vec::new());
        let (mut source, mut tables, mut events) =
            (DotnetSource::new(0), Tables::new(), Vec::new());
        let mut reader = Reader::new(&bytes[..]);
        while let Ok(Some(item)) = reader.next_item() {
            source.push(&item, &mut tables, &mut events);
            let Item::Event(event) = item else { continue };
            if let Some(RuntimeRecord::JitCompilation(jit)) = tracker.push(&event) {
                let start = jit.start.map(|start| (start, jit.il_size.unwrap()));
                let Some((start, il_size)) = start else { continue };
                let sizes = (u64::from(il_size), u64::from(jit.code_size));
                expected.push((jit.method, sizes, start, jit.end));
            }
        }
        let size = |arguments: &[(TextId, Value)], wanted: &[u8]| match arguments {
            [(name, Value::Uint(size))] if tables.get(*name) == wanted => *size,
            other => panic!("{name}: {other:?}"),
        };
        let (mut open, mut found) = (HashMap::new(), Vec::new());
        for (event, arguments) in with_arguments(&events) {
            match event.kind {
                EventKind::Begin { span, kind: SpanKind::Jit, name, .. } => {
                    let name = tables.str(name).into_owned();
                    open.insert(span, (name, size(&arguments, b"IL bytes"), event.time));
                }
                EventKind::Finish { span, .. } => {
                    // Without its size, the end of the compilation was lost.
                    let Some((name, il_size, start)) = open.remove(&span) else { continue };
                    if !arguments.is_empty() {
                        let sizes = (il_size, size(&arguments, b"code bytes"));
                        found.push((name, sizes, start, event.time));
                    }
                }
                _ => {}
            }
        }
        assert_eq!(found, expected, "{name}");
        assert_eq!((source.stats().undecodable, tracker.undecodable()), (0, 0), "{name}");
        if name == "by hand" {
            let found: Vec<_> = found.iter().map(|(name, sizes, ..)| (&**name, *sizes)).collect();
            assert_eq!(found, [("Main", (3, 20)), ("N.T.M", (3, 10))]);
        } else {
            count += found.len();
        }
    }
    assert!(count > 0);
}

/// As flight recordings have it.
#[test]
fn a_masked_command_line_is_not_known() {
    let named = |line: &str| {
        let payload = [line, "Linux", "x64"].map(utf16);
        let payload = [&payload[0][..], &payload[1], &payload[2]];
        let types = [("Microsoft-DotNETCore-EventPipe", 1, 1)];
        let trace = trace(&types, &[event(1, 10, 7, &payload)]);
        let mut names = DotnetNames::new();
        Reader::new(&trace[..]).for_each(|event| names.push(&event)).unwrap();
        (names.process_name(42).to_owned(), names.command_line(42).map(str::to_owned))
    };
    let line = "/usr/bin/dotnet /app/shop.dll --key";
    assert_eq!(named(line), ("shop.dll".to_owned(), Some(line.to_owned())));
    assert_eq!(named("*******************"), (".NET".to_owned(), None));
}

#[test]
fn processes_suspensions_and_heaps_have_names() {
    let (mut lines, mut samplers, mut heaps, mut pools) = (0, 0, 0, 0);
    for Capture { name, bytes, tables, events, source } in captures() {
        let mut reader = Reader::new(&bytes[..]);
        let mut has_line = false;
        while let Ok(Some(event)) = reader.next_event() {
            has_line |= event.field("CommandLine").is_some_and(|line| !line.to_string().is_empty());
        }
        let process = tables.entities.iter().find(|(_, e)| e.kind == EntityKind::Process);
        let line =
            process.and_then(|(id, _)| tables.entities.attribute(id, Attribute::CommandLine));
        assert_eq!(line.is_some(), has_line, "{name}");
        lines += usize::from(has_line);
        let is_sampled = source.stats().samples > 0;
        for event in &events {
            match event.kind {
                EventKind::Begin { kind: SpanKind::StopTheWorld, name: reason, .. } => {
                    let is_sampler = tables.get(reason) == b"sample profiler";
                    assert!(!is_sampler || is_sampled, "{name}");
                    samplers += usize::from(is_sampler);
                }
                EventKind::Counter { entity, .. } => match tables.entities.kind(entity) {
                    Some(EntityKind::Heap) => heaps += 1,
                    Some(EntityKind::ThreadPool) => pools += 1,
                    _ => {}
                },
                _ => {}
            }
        }
        let skipped: u64 = source.skipped().iter().map(|(.., count)| count).sum();
        assert_eq!(skipped, source.stats().skipped, "{name}");
    }
    println!("{lines} command lines, {samplers} suspensions, {heaps} {pools} counters");
    assert!(lines > 0 && samplers > 0 && heaps > 0, "{lines} {samplers} {heaps} {pools}");
}

/// A piece without a stack of its own has that of its samples.
#[test]
fn pieces_have_the_stacks_of_samples() {
    let capture = captures().find(|capture| capture.name.starts_with("t9-runtime")).unwrap();
    let Capture { tables, events, .. } = &capture;
    let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
    let mut lives = std::collections::BTreeMap::new();
    let mut samples = std::collections::BTreeMap::<_, Vec<(Timestamp, StackId)>>::new();
    let mut correlator = Correlator::new();
    let mut each = |derived: Derived<'_>| {
        history.push(&derived);
        match derived {
            Derived::Interval(i) => {
                lives.entry(i.subject).or_insert((i.start, i.end)).1 = i.end;
            }
            Derived::Sample(s) if s.kind == SampleKind::Managed => {
                samples.entry(s.entity).or_default().push((s.time, s.stack.unwrap()));
            }
            _ => {}
        }
    };
    for event in events {
        correlator.push(event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    history.finish();
    let mut sampled = 0;
    for (subject, (start, end)) in lives {
        let path = critical_path(&history, &tables.entities, subject, start, end, None);
        for piece in path.pieces.iter().filter(|piece| piece.samples > 0) {
            let of_entity = samples.get(&piece.entity).unwrap();
            let within: Vec<StackId> = of_entity
                .iter()
                .filter(|(at, _)| (piece.start..piece.end).contains(at))
                .map(|(_, stack)| *stack)
                .collect();
            assert_eq!(piece.samples as usize, within.len());
            let count = |id: StackId| within.iter().filter(|stack| **stack == id).count();
            let most = within.iter().map(|stack| count(*stack)).max().unwrap();
            assert_eq!(count(piece.stack.unwrap()), most);
            sampled += 1;
        }
    }
    assert!(sampled > 0);
}

/// The kernel and the runtime speak of one process, whichever is read first.
#[test]
fn sources_share_a_process() {
    let capture = captures().find(|capture| capture.name.starts_with("t9-runtime")).unwrap();
    let pid = capture.tables.entities.iter().find(|(_, e)| e.kind == EntityKind::Process);
    let pid = pid.unwrap().1.number as u32;
    for is_kernel_first in [true, false] {
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        let mut kernel = KernelSource::new();
        let fork = |kernel: &mut KernelSource, tables: &mut Tables, at| {
            let parent = Some((1, 1));
            let fork = Record::Thread { pid, tid: pid, parent, comm: b"run", is_new: true };
            kernel.push(Timestamp::from_nanos(at), &fork, tables, &mut Vec::new());
        };
        if is_kernel_first {
            fork(&mut kernel, &mut tables, 5);
        }
        let mut source = DotnetSource::new(0);
        let mut reader = Reader::new(&capture.bytes[..]);
        while let Some(item) = reader.next_item().unwrap() {
            source.push(&item, &mut tables, &mut events);
        }
        if !is_kernel_first {
            fork(&mut kernel, &mut tables, 5);
        }
        let processes: Vec<_> =
            tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Process).collect();
        let others = processes.iter().filter(|(_, process)| process.number == 1); // its parent
        assert_eq!(processes.len() - others.count(), 1, "{processes:?}");
        let id = tables.entities.process(pid).unwrap();
        let process = tables.entities.get(id).unwrap();
        assert_eq!(process.start, Some(Timestamp::from_nanos(5)));
        assert_eq!(tables.get(process.name), b"run");
        assert!(tables.entities.attribute(id, Attribute::CommandLine).is_some());
        // The same number again is another process.
        fork(&mut kernel, &mut tables, 9);
        let last = tables.entities.process(pid).unwrap();
        assert_ne!(last, id);
        assert_eq!(tables.entities.get(last).unwrap().start, Some(Timestamp::from_nanos(9)));
    }
}

/// The trace of process 42 of a container, which is process 9042 of the kernel's recording.
#[test]
fn a_process_in_a_container_has_the_ids_of_the_recorder() {
    let types = [(RUNTIME, 80, 1)];
    let exception = [utf16("N.E"), utf16("message"), vec![0; 8 + 4 + 2]].concat();
    let thrown = |at, thread| event(1, at, thread, &[&exception, &9_u16.to_le_bytes()]);
    let bytes = trace(&types, &[thrown(20, 5), thrown(30, 6), thrown(40, 42)]);
    for (pid, threads, expected) in [
        (
            9042,
            &[(5, 9005), (42, 9042)][..],
            [(9005, ""), ((1 << 30) + 6, "[6 in its PID namespace]"), (9042, "")],
        ),
        // It is in the same namespace.
        (42, &[], [(5, ""), (6, ""), (42, "")]),
    ] {
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        let mut source = DotnetSource::new(0);
        source.set_ids(pid, threads.iter().copied());
        let mut reader = Reader::new(&bytes[..]);
        while let Some(item) = reader.next_item().unwrap() {
            source.push(&item, &mut tables, &mut events);
        }
        let of_kind = |kind| tables.entities.iter().filter(move |(_, entity)| entity.kind == kind);
        let processes: Vec<_> =
            of_kind(EntityKind::Process).map(|(id, entity)| (id, entity.number)).collect();
        let [(process, number)] = processes[..] else { panic!("{processes:?}") };
        assert_eq!(number, i64::from(pid));
        let found: Vec<_> = of_kind(EntityKind::DotnetThread)
            .map(|(_, thread)| {
                assert_eq!(thread.parent, Some(process));
                (thread.number, tables.str(thread.name).into_owned())
            })
            .collect();
        assert_eq!(found, expected.map(|(number, name)| (number, name.to_owned())));
        assert_eq!(source.stats().unrelated_threads, u64::from(pid != 42));
    }
}

/// A trace of version 6 can have samples of all processes of the machine. Process 42 is one of .NET, as its own event says.
#[test]
fn threads_of_processes_without_a_runtime_are_those_of_the_kernel() {
    let row = |content: Vec<u8>| [&(content.len() as u16).to_le_bytes()[..], &content].concat();
    let ty = |id: u8, provider: &str, number: u64, name: &str, rest: &[u8]| {
        let (provider, name) = (assemble::utf8(provider), assemble::utf8(name));
        row([&[id][..], &provider, &assemble::varint(number), &name, rest].concat())
    };
    let mut stream = assemble::V6::new();
    let cpu = ty(1, "Universal.Events", 1, "cpu", &[0; 4]);
    let jit = ty(2, RUNTIME, 145, "", &[0, 0, 2, 0, 9, 1]);
    stream.block(3, &[&[0, 0][..], &cpu, &jit].concat());
    // Their indexes, processes and ids.
    let threads = [(1, 42, 50), (2, 42, 51), (3, 43, 60)];
    let threads = threads.map(|(index, pid, tid)| row(vec![index, 2, pid, 3, tid]));
    stream.block(6, &threads.concat());
    let names = [utf16("N.T"), utf16("M"), utf16("void ()")].concat();
    let ids =
        [[1_u64; 2].map(u64::to_le_bytes).concat(), [7_u32, 30].map(u32::to_le_bytes).concat()];
    let compiles = [&ids.concat()[..], &names, &9_u16.to_le_bytes()].concat();
    for (ty, thread, sequence, at, payload) in [
        (1, 3, 0, 10, &[][..]),
        (1, 1, 0, 12, &[]),
        (2, 1, 1, 20, &compiles[..]),
        (1, 1, 2, 30, &[]),
        (1, 2, 0, 31, &[]),
        (1, 3, 1, 40, &[]),
    ] {
        let header = [0xc7, ty, sequence, thread, 0, thread, at];
        stream.compressed(&assemble::blob(&header, payload));
    }
    let (tables, events) = read(&stream.end());
    let of = |id| *tables.entities.get(id).unwrap();
    let samples = events.iter().filter_map(|event| match event.kind {
        EventKind::Sample { entity, kind: SampleKind::Cpu, .. } => {
            let entity = of(entity);
            let process = of(entity.parent.unwrap()).number;
            Some((event.time.nanos(), entity.kind, entity.number, process))
        }
        _ => None,
    });
    let (kernel, dotnet) = (EntityKind::Thread, EntityKind::DotnetThread);
    let expected = [
        (10, kernel, 60, 43),
        (12, kernel, 50, 42),
        (30, dotnet, 50, 42),
        (31, dotnet, 51, 42),
        (40, kernel, 60, 43),
    ];
    assert_eq!(samples.collect::<Vec<_>>(), expected);
    let processes = tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Process);
    let runtimes: Vec<_> = processes
        .map(|(id, process)| {
            let runtime = tables.entities.attribute(id, Attribute::Runtime);
            let name = tables.str(process.name).into_owned();
            (process.number, name, runtime.map(|runtime| tables.str(runtime).into_owned()))
        })
        .collect();
    let name = || ".NET".to_owned();
    assert_eq!(runtimes, [(43, String::new(), None), (42, name(), Some(name()))]);
}

/// Code of two methods was at one address, one after another.
#[test]
fn stacks_have_the_methods_of_their_times() {
    let types = [(RUNTIME, 143, 1), (RUNTIME, 80, 1)];
    let load = |at, id: u64, name| {
        // The address of the stack is in it.
        let ids = [id, 1, 0x1200].map(u64::to_le_bytes).concat();
        let sizes = [0x100_u32, 3, 8].map(u32::to_le_bytes).concat();
        let names = [utf16("N.T"), utf16(name), utf16("void ()")].concat();
        event(1, at, 5, &[&ids, &sizes, &names, &9_u16.to_le_bytes()])
    };
    let exception = [utf16("N.E"), utf16("message"), vec![0; 8 + 4 + 2]].concat();
    let thrown = |at| {
        let mut thrown = event(2, at, 5, &[&exception, &9_u16.to_le_bytes()]);
        thrown.has_stack = true;
        thrown
    };
    let functions = |written: &[_]| -> Vec<String> {
        let bytes = trace(&types, written);
        let mut names = DotnetNames::new();
        Reader::new(&bytes[..]).for_each(|event| names.push(&event)).unwrap();
        let (mut source, mut tables) = (DotnetSource::with_names(0, names), Tables::new());
        let (mut events, mut reader) = (Vec::new(), Reader::new(&bytes[..]));
        while let Some(item) = reader.next_item().unwrap() {
            source.push(&item, &mut tables, &mut events);
        }
        let stack = |event: &Event| match event.kind {
            EventKind::Instant { stack, .. } => stack,
            _ => None,
        };
        let stacks = events.iter().filter_map(stack);
        stacks.map(|stack| tables.str(tables.frames(stack)[0].function).into_owned()).collect()
    };
    let (a, b) = ("N.T.A()", "N.T.B()");
    assert_eq!(functions(&[load(10, 1, "A"), thrown(20), thrown(30)]), [a, a]);
    let both = [load(10, 1, "A"), thrown(20), load(30, 2, "B"), thrown(40), thrown(50)];
    assert_eq!(functions(&both), [a, b, b]);
}

/// Whatever the bytes are, the model's events are in time order, each span ends at most once, and
/// every loss is one.
#[test]
fn damaged_traces_are_read() {
    let mut seed = 1_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut damaged = 0;
    for Capture { name, bytes, .. } in captures().filter(|capture| capture.bytes.len() < 50_000) {
        for _ in 0..20 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + random(20) {
                let place = 200 + random(bytes.len() - 200);
                bytes[place] = random(256) as u8;
            }
            let mut names = DotnetNames::new();
            let _ = Reader::new(&bytes[..]).for_each(|event| names.push(&event));
            let (mut tables, mut events) = (Tables::new(), Vec::new());
            let mut source = DotnetSource::with_names(0, names);
            let (mut reader, mut losses) = (Reader::new(&bytes[..]), 0);
            for _ in 0..1000 {
                match reader.next_item() {
                    Ok(Some(item)) => source.push(&item, &mut tables, &mut events),
                    Ok(None) => break,
                    Err(_) => {
                        source.loss("damaged", &mut tables, &mut events);
                        losses += 1;
                    }
                }
            }
            source.finish(&mut tables, &mut events);
            assert!(events.is_sorted_by_key(|event| event.time), "{name}");
            let mut open = std::collections::HashSet::new();
            for event in &events {
                match event.kind {
                    EventKind::Begin { span, .. } => assert!(open.insert(span), "{name}"),
                    EventKind::Finish { span, .. } => assert!(open.remove(&span), "{name}"),
                    _ => {}
                }
            }
            let lost = |event: &&Event| matches!(event.kind, EventKind::Loss { .. });
            assert!(events.iter().filter(lost).count() >= losses, "{name}");
            damaged += losses;
        }
    }
    assert!(damaged > 0);
}

/// Threads without a name take no room from those with one, and an id that is known has the name of its last thread.
#[test]
fn threads_have_names_after_many_others() {
    const MANY: u32 = 1 << 16;
    let created = |at: u32, tid: u32, flags: u32| {
        let (flags, index, number) = (flags.to_le_bytes(), [0; 4], tid.to_le_bytes());
        let parts: [&[u8]; 6] = [&[0; 8], &[0; 8], &flags, &index, &number, &[0; 2]];
        event(1, at.into(), tid.into(), &parts)
    };
    for (of_many, last, flags, expected) in
        [(0, MANY + 1, 4, ".NET ThreadPool Worker"), (4, 1, 2, ".NET Finalizer")]
    {
        let threads = (1..=MANY).map(|tid| created(tid, tid, of_many));
        let threads: Vec<_> = threads.chain([created(MANY + 1, last, flags)]).collect();
        let bytes = trace(&[(RUNTIME, 85, 0)], &threads);
        let mut names = DotnetNames::new();
        Reader::new(&bytes[..]).for_each(|event| names.push(&event)).unwrap();
        let mut name = String::new();
        let mut reader = Reader::new(&bytes[..]);
        reader.for_each(|event| names.thread_name(&event).clone_into(&mut name)).unwrap();
        assert_eq!(name, expected);
    }
}

/// A recorder was restarted: a thread of both traces is one, unless the second trace has its creation.
#[test]
fn a_later_trace_of_a_process_continues_with_its_threads() {
    let types = [(RUNTIME, 85, 0), (RUNTIME, 81, 1)];
    let created = |at: i64| {
        let tid = 50_u32.to_le_bytes();
        event(1, at, 50, &[&[0; 8], &[0; 8], &[0; 4], &[0; 4], &tid, &[0; 2]])
    };
    let waits = |at: i64| event(2, at, 50, &[&[0], &[0; 2]]);
    for (second, expected) in [(vec![waits(20)], 1), (vec![created(20), waits(30)], 2)] {
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        for written in [&[waits(10)][..], &second] {
            let (mut source, bytes) = (DotnetSource::new(0), trace(&types, written));
            let mut reader = Reader::new(&bytes[..]);
            while let Some(item) = reader.next_item().unwrap() {
                source.push(&item, &mut tables, &mut events);
            }
            source.finish(&mut tables, &mut events);
        }
        let is_thread = |(_, entity): &(_, &Entity)| entity.kind == EntityKind::DotnetThread;
        assert_eq!(tables.entities.iter().filter(is_thread).count(), expected);
    }
}

/// A worker of the thread pool begins with the id of a thread that has ended, which waited for a lock at its last event.
#[test]
fn a_thread_with_the_id_of_an_ended_one_is_another_one() {
    const RUNDOWN: &str = "Microsoft-Windows-DotNETRuntimeRundown";
    let created = |at: i64, flags: u32| {
        let (managed, domain) = ([0; 8], [0; 8]);
        let (flags, index, tid) = (flags.to_le_bytes(), [0; 4], 50_u32.to_le_bytes());
        event(1, at, 50, &[&managed, &domain, &flags, &index, &tid, &[0; 2]])
    };
    let waits = |at: i64| event(2, at, 50, &[&[0], &[0; 2]]);
    let types = [(RUNTIME, 85, 0), (RUNTIME, 81, 1), (RUNDOWN, 159, 0)];
    let rundown = Written { metadata: 3, at: 90, ..created(90, 4) };
    let bytes = trace(
        &types,
        // The first thread writes an event before its creation.
        // The second one becomes a worker after it.
        &[waits(5), created(10, 0), waits(20), created(50, 0), waits(60), rundown],
    );
    let mut names = DotnetNames::new();
    Reader::new(&bytes[..]).for_each(|event| names.push(&event)).unwrap();
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let mut source = DotnetSource::with_names(0, names);
    let mut reader = Reader::new(&bytes[..]);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    let is_thread = |(_, entity): &(_, &Entity)| entity.kind == EntityKind::DotnetThread;
    let threads = tables.entities.iter().filter(is_thread);
    let threads: Vec<_> =
        threads.map(|(_, e)| (e.number, tables.str(e.name), e.end.map(Timestamp::nanos))).collect();
    let expected = [(50, "".into(), Some(50)), (50, ".NET ThreadPool Worker".into(), None)];
    assert_eq!(threads, expected);
    let waits = events.iter().filter_map(|event| match event.kind {
        EventKind::Begin { kind: SpanKind::LockWait, entity, .. } => {
            Some((event.time.nanos(), tables.entities.get(entity).unwrap().end.is_some()))
        }
        _ => None,
    });
    assert_eq!(waits.collect::<Vec<_>>(), [(5, true), (20, true), (60, false)]);
    let cut = events.iter().filter(|e| matches!(e.kind, EventKind::Finish { is_cut: true, .. }));
    // A second wait, and the end of the thread.
    assert_eq!(cut.map(|event| event.time.nanos()).collect::<Vec<_>>(), [20, 50]);
}
