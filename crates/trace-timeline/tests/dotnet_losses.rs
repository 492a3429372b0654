//! .NET traces that lack ends: too many spans and work items are open, and losses of format version 6.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests may panic")]

use nettrace::Reader;
use testkit::nettrace::assemble::{Stream, V6, blob, metadata, utf8, utf16z, varint};
use testkit::nettrace::{Written, event, trace, utf16};
use trace_timeline::answers::Report;
use trace_timeline::sources::dotnet::{DotnetSource, DotnetStats};
use trace_timeline::{Correlator, EntityKind, Event, EventKind, SpanKind, State, Streams, Tables};

const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";

/// The number of runtime spans, and of work items, that are kept open.
const OPEN: u64 = 1 << 16;

/// Of the instance of the runtime that writes an event.
const CLR: [u8; 2] = 9_u16.to_le_bytes();

fn read(bytes: &[u8]) -> (DotnetStats, Tables, Vec<Event>) {
    let (mut source, mut tables, mut events) = (DotnetSource::new(0), Tables::new(), Vec::new());
    let mut reader = Reader::new(bytes);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    (source.stats(), tables, events)
}

/// The kind of each span that ends, its begin and its end.
fn ended(events: &[Event]) -> Vec<(SpanKind, i64, i64)> {
    let (mut open, mut found) = (std::collections::HashMap::new(), Vec::new());
    for event in events {
        match event.kind {
            EventKind::Begin { span, kind, .. } => {
                open.insert(span, (kind, event.time.nanos()));
            }
            EventKind::Finish { span, .. } => {
                let (kind, start) = open.remove(&span).unwrap();
                found.push((kind, start, event.time.nanos()));
            }
            _ => {}
        }
    }
    found
}

/// A method begins to be compiled.
fn jit(at: i64, thread: u64, id: u64) -> Written {
    let (ids, sizes) = ([id, 1].map(u64::to_le_bytes), [7_u32, 30].map(u32::to_le_bytes));
    let names = [utf16("N.T"), utf16("M"), utf16("void ()")].concat();
    event(1, at, thread, &[&ids.concat(), &sizes.concat(), &names, &CLR])
}

/// The provider, number and version of the events of [`jit`] and [`begun`].
const TYPES: [(&str, u32, u32); 4] =
    [(RUNTIME, 145, 1), (RUNTIME, 1, 1), (RUNTIME, 81, 2), (RUNTIME, 9, 1)];

/// A GC begins.
fn gc(at: i64, number: u32) -> Written {
    let u32s = u32::to_le_bytes;
    event(2, at, 5, &[&u32s(number), &u32s(0), &u32s(0), &u32s(0), &CLR])
}

/// GC 7, the wait of thread 6 for a lock, and a suspension begin at the times 1 to 3.
fn begun() -> Vec<Written> {
    let (u32s, u64s) = (u32::to_le_bytes, u64::to_le_bytes);
    vec![
        gc(1, 7),
        event(3, 2, 6, &[&[0], &CLR, &u64s(1), &u64s(2), &u64s(0)]),
        event(4, 3, 7, &[&u32s(1), &u32s(0), &CLR]),
    ]
}

/// Nothing that the runtime does continues for all that follows the trace.
#[test]
fn spans_of_the_runtime_end_with_the_trace() {
    let mut all = begun();
    all.push(jit(10, 8, 1));
    let bytes = trace(&TYPES, &all);
    let (mut source, mut tables, mut events) = (DotnetSource::new(0), Tables::new(), Vec::new());
    let mut reader = Reader::new(&bytes[..]);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    assert_eq!(ended(&events), []);
    source.finish(&mut tables, &mut events);
    let (gc, wait, stop) = (SpanKind::Gc, SpanKind::LockWait, SpanKind::StopTheWorld);
    let expected = [(gc, 1, 10), (wait, 2, 10), (stop, 3, 10), (SpanKind::Jit, 10, 10)];
    assert_eq!(ended(&events), expected);
    let cut = events.iter().filter(|e| matches!(e.kind, EventKind::Finish { is_cut: true, .. }));
    assert_eq!(cut.count(), expected.len());
    assert_eq!(last_states(&events), [(10, State::Unknown); 4]);
}

/// The last state of each thread, with its time.
fn last_states(events: &[Event]) -> Vec<(i64, State)> {
    let mut states = std::collections::BTreeMap::new();
    for event in events {
        if let EventKind::State { entity, state, .. } = event.kind {
            states.insert(entity, (event.time.nanos(), state));
        }
    }
    states.into_values().collect()
}

/// The threads of a trace run no longer than its events last, whatever other traces say later.
#[test]
fn threads_of_traces_that_do_not_overlap_run_while_their_own_lasts() {
    let mut streams = Streams::new();
    for offset in [0, 1_000_000] {
        let bytes = trace(&TYPES, &[jit(1, 8, 1), jit(10, 8, 2)]);
        let mut source = DotnetSource::new(offset);
        streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            let mut reader = Reader::new(&bytes[..]);
            while let Some(item) = reader.next_item()? {
                source.push(&item, tables, out);
            }
            source.finish(tables, out);
            Ok(false)
        });
    }
    let (mut tables, mut report) = (Tables::new(), Report::new());
    let mut correlator = Correlator::new();
    while let Some(event) = streams.next_event(&mut tables).unwrap().copied() {
        let entities = &tables.entities;
        correlator.push(&event, entities, &mut |derived| report.push(&derived, entities));
    }
    correlator.finish(&mut |derived| report.push(&derived, &tables.entities));
    let groups: Vec<_> = report.groups.values().collect();
    let running: i64 = groups.iter().map(|group| group.running.unknown).sum();
    assert_eq!(running, 2 * (10 - 1));
    // It is one thread, which is known again in the second trace.
    let [group] = groups[..] else { panic!("{groups:?}") };
    assert_eq!((group.count, group.unknown), (1, 1_000_001 - 10));
}

/// The oldest span of each kind ends when another one begins, with what belongs to it.
#[test]
fn the_oldest_of_too_many_spans_end() {
    let mut all = begun();
    all.extend((0..OPEN).map(|id| jit(10, 8, id)));
    all.push(gc(20, 8));
    let (stats, tables, events) = read(&trace(&TYPES, &all));
    assert_eq!(stats.unpaired, 4);
    let (gc, wait, stop) = (SpanKind::Gc, SpanKind::LockWait, SpanKind::StopTheWorld);
    let expected = [(gc, 1, 10), (wait, 2, 10), (stop, 3, 10), (SpanKind::Jit, 10, 20)];
    assert_eq!(ended(&events), expected);
    let numbers = |kind: EntityKind| {
        let entities = tables.entities.iter().filter(move |(_, entity)| entity.kind == kind);
        entities.map(|(id, entity)| (entity.number, id)).collect::<Vec<_>>()
    };
    let ends = events.iter().filter_map(|event| match event.kind {
        EventKind::End { entity } => Some((entity, event.time.nanos())),
        _ => None,
    });
    let [(7, first), (8, _)] = numbers(EntityKind::Gc)[..] else { panic!() };
    assert_eq!(ends.collect::<Vec<_>>(), [(first, 10)]);
    let waits = numbers(EntityKind::DotnetThread).into_iter().find(|(number, _)| *number == 6);
    let last = events.iter().rev().find_map(|event| match event.kind {
        EventKind::State { entity, state, .. } if entity == waits.unwrap().1 => Some(state),
        _ => None,
    });
    assert_eq!(last, Some(State::Running));
}

/// Spans that end make room, and their places are forgotten.
#[test]
fn spans_that_end_are_not_too_many() {
    let types = [(RUNTIME, 145, 1)];
    // A compilation of the same method on the same thread ends the one before.
    let all: Vec<Written> = (0..2 * OPEN as i64 + 2).map(|at| jit(at, 8, 1)).collect();
    let (stats, _, events) = read(&trace(&types, &all));
    assert_eq!((stats.unpaired, ended(&events).len()), (0, all.len() - 1));
}

/// The types of the events of `FrameworkEventSource`: 1 queues a work item, and 2 takes it.
fn work_item_types() -> Vec<u8> {
    const FRAMEWORK: &str = "System.Diagnostics.Eventing.FrameworkEventSource";
    // One field, an Int64.
    let fields = [&1_u32.to_le_bytes()[..], &11_u32.to_le_bytes(), &utf16z("workID")].concat();
    let mut types = Vec::new();
    for (id, number) in [(1_u32, 30), (2, 31)] {
        let mut row = metadata(FRAMEWORK, number, 0, "", 0, &fields);
        row.splice(..4, id.to_le_bytes());
        types.extend(blob(&[0x80, 0], &row));
    }
    types
}

/// An event of a work item as `FrameworkEventSource` writes it.
fn work_item(ty: u8, delta: u8, id: u64) -> Vec<u8> {
    blob(&[0x81, ty, delta], &id.to_le_bytes())
}

#[test]
fn the_oldest_of_too_many_work_items_leave_the_queue() {
    const EXTRA: u64 = 2;
    // Thread 9 queues them at time 5, and takes the two newest and the oldest.
    let mut events = blob(&[0xc7, 1, 0, 9, 0, 9, 5], &0_u64.to_le_bytes());
    events.extend((1..OPEN + EXTRA).flat_map(|id| work_item(1, 0, id)));
    let taken = [OPEN + 1, OPEN, 0];
    events.extend(taken.iter().flat_map(|id| work_item(2, 1, *id)));
    let types = work_item_types();
    let bytes =
        Stream::v4().compressed("MetadataBlock", &types).compressed("EventBlock", &events).end();
    let (stats, _, events) = read(&bytes);
    assert_eq!((stats.events, stats.unpaired), (OPEN + EXTRA + 3, EXTRA));
    let start = events[0].time.nanos();
    let lives: Vec<_> =
        ended(&events).iter().map(|(_, from, to)| (from - start, to - start)).collect();
    // The oldest ends as the queue is full: nothing takes it later.
    assert_eq!(lives, [(0, 0), (0, 0), (0, 1), (0, 2)]);
    let flows = events.iter().filter(|event| matches!(event.kind, EventKind::Flow { .. }));
    assert_eq!(flows.count(), 2);
}

/// Thread 6 has lost two events before that at 100: one of them may take the item. Its object is queued again.
#[test]
fn work_items_from_before_a_loss_leave_the_queue() {
    let event = |ty: u8, at: u64, thread: u8, sequence: u8, id: u64| {
        let header = [0xc7, ty, sequence - 1, thread, 0, thread];
        blob(&[&header[..], &varint(at)].concat(), &id.to_le_bytes())
    };
    // The events of a block continue each other's numbers: each of these has one of its own.
    let blocks = [
        event(1, 10, 5, 1, 7),
        event(2, 50, 6, 1, 9),
        event(2, 100, 6, 4, 8),
        event(1, 200, 5, 2, 7),
        event(2, 210, 6, 5, 7),
    ];
    let stream = Stream::v4().compressed("MetadataBlock", &work_item_types());
    let stream = blocks.iter().fold(stream, |stream, block| stream.compressed("EventBlock", block));
    let (stats, tables, events) = read(&stream.end());
    assert_eq!((stats.events, stats.lost), (5, 2));
    let queued = SpanKind::Queued;
    assert_eq!(ended(&events), [(queued, 10, 100), (queued, 200, 210)]);
    let cut = events.iter().filter(|e| matches!(e.kind, EventKind::Finish { is_cut: true, .. }));
    assert!(cut.map(|event| event.time.nanos()).eq([100]));
    let flows = events.iter().filter_map(|event| match event.kind {
        EventKind::Flow { from, to, .. } => {
            let number = |id| tables.entities.get(id).unwrap().number;
            Some((event.time.nanos(), from.map(number), number(to)))
        }
        _ => None,
    });
    assert_eq!(flows.collect::<Vec<_>>(), [(210, Some(5), 6)]);
}

/// A row of a block of version 6.
fn row(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u16).to_le_bytes()[..], content].concat()
}

/// A stream of version 6 with events of the threads 5 and 6, each with its number.
fn v6(events: &[(Written, u8)]) -> Vec<u8> {
    const THREADS: [u8; 2] = [5, 6];
    let mut stream = V6::new();
    let ty = |id: u8, number: u64| {
        let name = [&[id][..], &utf8(RUNTIME), &varint(number), &utf8("")].concat();
        // No fields, and the version as the optional part.
        row(&[&name[..], &[0, 0, 2, 0, 9, 1]].concat())
    };
    stream.block(3, &[&[0, 0][..], &ty(1, 145), &ty(2, 80)].concat());
    let threads = THREADS
        .map(|index| row(&[&[index, 2, 42, 3][..], &varint(100 + u64::from(index))].concat()));
    stream.block(6, &threads.concat());
    // The events of a block continue each other's numbers: each of these has one of its own.
    for (event, sequence) in events {
        let thread = event.thread as u8;
        let header = [0xc7, event.metadata as u8, sequence - 1, thread, 0, thread];
        let header = [&header[..], &varint(event.at as u64)].concat();
        stream.compressed(&blob(&header, &event.payload));
    }
    stream.end()
}

/// The time of each loss, since when it may be, and the number of events.
fn losses(events: &[Event]) -> Vec<(i64, i64, Option<u64>)> {
    let losses = events.iter().filter_map(|event| match event.kind {
        EventKind::Loss { since, count, .. } => Some((event.time.nanos(), since.nanos(), count)),
        _ => None,
    });
    losses.collect()
}

#[test]
fn a_loss_before_the_first_event_has_its_time() {
    let (stats, _, events) = read(&v6(&[(jit(1_500, 5, 1), 4)]));
    assert_eq!((stats.events, stats.lost), (1, 3));
    assert_eq!(losses(&events), [(1_500, 1_500, Some(3))]);
    assert!(events.iter().all(|event| event.time.nanos() == 1_500));
    let (mut source, mut tables, mut events) = (DotnetSource::new(0), Tables::new(), Vec::new());
    source.loss("damaged", &mut tables, &mut events);
    assert!(events.is_empty());
    // A trace without its begin has no time: 0 would be that of the boot.
    source.finish(&mut tables, &mut events);
    assert!(events.is_empty());
    // It has one without events.
    let bytes = v6(&[]);
    let mut reader = Reader::new(&bytes[..]);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    source.finish(&mut tables, &mut events);
    assert_eq!(losses(&events).len(), 1);
}

/// A loss of version 6 names an index that events do not have: all threads may have lost ends.
#[test]
fn a_loss_of_version_6_ends_the_spans_of_all_threads() {
    let exception = [utf16("N.E"), utf16("message"), vec![0; 8 + 4 + 2]].concat();
    let bytes = v6(&[
        (jit(10, 5, 1), 1),
        (jit(20, 6, 1), 1),
        (event(2, 40, 5, &[&exception, &CLR]), 4),
        (jit(50, 5, 2), 5),
        (jit(60, 6, 2), 2),
    ]);
    let (stats, tables, events) = read(&bytes);
    assert_eq!((stats.events, stats.lost, stats.undecodable), (5, 2, 0));
    assert_eq!(ended(&events), [(SpanKind::Jit, 10, 40), (SpanKind::Jit, 20, 40)]);
    let begun = events.iter().filter(|event| matches!(event.kind, EventKind::Begin { .. }));
    assert_eq!(begun.count(), 4);
    assert_eq!(losses(&events), [(20, 10, Some(2))]);
    let threads = tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::DotnetThread);
    assert_eq!(threads.map(|(_, e)| e.number).collect::<Vec<_>>(), [105, 106]);
}
