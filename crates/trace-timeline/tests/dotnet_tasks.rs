//! Tasks of .NET: who executes and awaits them, and which thread makes which one continue.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use nettrace::Reader;
use std::collections::HashMap;
use std::path::PathBuf;
use testkit::nettrace::assemble::{Stream, V6, blob, metadata, utf8, utf16z, varint};
use trace_timeline::answers::{History, What, critical_path};
use trace_timeline::sources::dotnet::{DotnetNames, DotnetSource};
use trace_timeline::{
    Correlator, EntityId, EntityKind, Event, EventKind, FlowKind, SpanKind, State, Tables,
    Timestamp, Value,
};

const TPL: &str = "System.Threading.Tasks.TplEventSource";

/// The events, with the codes of the types of their fields: 9 is a number of 32 bits, 11 one of 64, 18 a text.
const TYPES: [(u32, &str, &[u8]); 12] = [
    (7, "TaskScheduled", &[9; 6]),
    (8, "TaskStarted", &[9; 3]),
    (9, "TaskCompleted", &[9; 4]),
    (10, "TaskWaitBegin", &[9; 5]),
    (11, "TaskWaitEnd", &[9; 3]),
    (12, "AwaitTaskContinuationScheduled", &[9; 3]),
    (13, "TaskWaitContinuationComplete", &[9]),
    (14, "TraceOperationBegin", &[9, 18, 11]),
    (15, "TraceOperationEnd", &[9, 9]),
    (17, "TraceSynchronousWorkBegin", &[9, 9]),
    (18, "TraceSynchronousWorkEnd", &[9]),
    (19, "TaskWaitContinuationStarted", &[9]),
];

/// An event: its number, thread, time and payload.
type Written = (u32, u8, u64, Vec<u8>);

fn numbers(id: u32, thread: u8, time: u64, fields: &[i32]) -> Written {
    (id, thread, time, fields.iter().flat_map(|field| field.to_le_bytes()).collect())
}

fn scheduled(thread: u8, time: u64, task: i32) -> Written {
    numbers(7, thread, time, &[1, 0, task, 0, 0, 1])
}

fn started(thread: u8, time: u64, task: i32) -> Written {
    numbers(8, thread, time, &[1, 0, task])
}

fn completed(thread: u8, time: u64, task: i32) -> Written {
    numbers(9, thread, time, &[1, 0, task, 0])
}

/// A thread waits (1), or a method awaits (2).
fn wait_begins(thread: u8, time: u64, task: i32, behavior: i32) -> Written {
    numbers(10, thread, time, &[1, 0, task, behavior, 0])
}

fn wait_ends(thread: u8, time: u64, task: i32) -> Written {
    numbers(11, thread, time, &[1, 0, task])
}

fn continuation_scheduled(thread: u8, time: u64, executing: i32, continuation: i32) -> Written {
    numbers(12, thread, time, &[1, executing, continuation])
}

fn continuation_complete(thread: u8, time: u64, task: i32) -> Written {
    numbers(13, thread, time, &[task])
}

fn operation(thread: u8, time: u64, task: i32, name: &str) -> Written {
    let payload = [&task.to_le_bytes()[..], &utf16z(name), &[0; 8]].concat();
    (14, thread, time, payload)
}

/// A stream of version 6 of process 42. Threads have ten times their index as id.
fn stream(events: &[Written]) -> Vec<u8> {
    stream_with(events.iter().map(|event| (event, 1)))
}

/// The same, of events with their places among those of their threads, from 1 on.
fn stream_with<'a>(events: impl Iterator<Item = (&'a Written, u8)>) -> Vec<u8> {
    let mut stream = V6::new();
    // Size, index, process id, thread id.
    stream.block(6, &[1, 2, 3].map(|n: u8| [5, 0, n, 2, 42, 3, n * 10]).concat());
    let mut block = vec![0, 0];
    for (number, (id, name, fields)) in (1_u8..).zip(TYPES) {
        let mut row = [vec![number], utf8(TPL), varint(id.into()), utf8(name)].concat();
        row.extend((fields.len() as u16).to_le_bytes());
        for (place, code) in fields.iter().enumerate() {
            let field = [utf8(&format!("field{place}")), vec![*code]].concat();
            row.extend((field.len() as u16).to_le_bytes());
            row.extend(field);
        }
        row.extend([0, 0]);
        block.extend((row.len() as u16).to_le_bytes());
        block.extend(row);
    }
    stream.block(3, &block);
    for ((id, thread, time, payload), place) in events {
        let number = 1 + TYPES.iter().position(|(known, ..)| known == id).unwrap() as u8;
        let header = [&[0xc7, number, place - 1, *thread, 0, *thread][..], &varint(*time)].concat();
        stream.compressed(&blob(&header, payload));
    }
    stream.end()
}

struct Read {
    tables: Tables,
    events: Vec<Event>,
    source: DotnetSource,
}

fn read_with(bytes: &[u8], mut source: DotnetSource) -> Read {
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let mut reader = Reader::new(bytes);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    Read { tables, events, source }
}

/// As a program reads a file: with the names of all of it.
fn read(bytes: &[u8]) -> Read {
    let mut names = DotnetNames::new();
    Reader::new(bytes).for_each(|event| names.push(&event)).unwrap();
    read_with(bytes, DotnetSource::with_names(0, names))
}

/// A span: kind, name, entity, begin, and end with whether it is cut.
type Drawn = (SpanKind, String, i64, i64, Option<(i64, bool)>);

impl Read {
    fn number(&self, id: EntityId) -> i64 {
        self.tables.entities.get(id).unwrap().number
    }

    fn spans(&self) -> Vec<Drawn> {
        let mut ends = HashMap::new();
        for event in &self.events {
            if let EventKind::Finish { span, is_cut, .. } = event.kind {
                assert!(ends.insert(span, (event.time.nanos(), is_cut)).is_none());
            }
        }
        let begun = |event: &Event| match event.kind {
            EventKind::Begin { span, entity, kind, name, .. } => {
                let name = self.tables.str(name).into_owned();
                let end = ends.get(&span).copied();
                Some((kind, name, self.number(entity), event.time.nanos(), end))
            }
            _ => None,
        };
        self.events.iter().filter_map(begun).collect()
    }

    fn flows(&self) -> Vec<(FlowKind, i64, i64, i64)> {
        let flow = |event: &Event| match event.kind {
            EventKind::Flow { kind, from, to, .. } => {
                Some((kind, self.number(from.unwrap()), self.number(to), event.time.nanos()))
            }
            _ => None,
        };
        self.events.iter().filter_map(flow).collect()
    }

    fn states(&self, thread: i64) -> Vec<(State, i64)> {
        let state = |event: &Event| match event.kind {
            EventKind::State { entity, state, .. } if self.number(entity) == thread => {
                Some((state, event.time.nanos()))
            }
            _ => None,
        };
        self.events.iter().filter_map(state).collect()
    }

    /// The thread, the time and whether it waits of each piece of the path to the last event of a thread.
    fn path(&self, thread: i64, start: i64, end: i64) -> Vec<(i64, i64, i64, bool)> {
        let [start, end] = [start, end].map(Timestamp::from_nanos);
        let (mut correlator, mut history) = (Correlator::new(), History::new(start, end));
        for event in &self.events {
            correlator.push(event, &self.tables.entities, &mut |derived| history.push(&derived));
        }
        correlator.finish(&mut |derived| history.push(&derived));
        history.finish();
        let is_it = |id: &EntityId| {
            let entity = self.tables.entities.get(*id).unwrap();
            (entity.kind, entity.number) == (EntityKind::DotnetThread, thread)
        };
        let subject = self.tables.entities.iter().map(|(id, _)| id).find(is_it).unwrap();
        // As of an activity: the thread works for it since it took up its work.
        let task = Some(subject);
        let path = critical_path(&history, &self.tables.entities, subject, start, end, task);
        let piece = |piece: &trace_timeline::answers::Piece| {
            let waits = matches!(piece.what, What::Waits { .. } | What::Queued { .. });
            (self.number(piece.entity), piece.start.nanos(), piece.end.nanos(), waits)
        };
        path.pieces.iter().map(piece).collect()
    }
}

#[test]
fn a_task_flows_from_the_thread_that_schedules_it() {
    let bytes = stream(&[scheduled(1, 10, 7), numbers(17, 2, 30, &[7, 2])]);
    let read = read(&bytes);
    assert_eq!(read.flows(), [(FlowKind::Continues, 10, 20, 30)]);
    let queued = (SpanKind::Queued, "task".to_owned(), 42, 10, Some((30, false)));
    // Nothing says when the work ends.
    assert_eq!(read.spans(), std::slice::from_ref(&queued));
    assert_eq!(read.source.stats().skipped, 0);
    // A trace that is read once can still have the end.
    let run = (SpanKind::TaskRun, "task".to_owned(), 20, 30, None);
    assert_eq!(read_with(&bytes, DotnetSource::new(0)).spans(), [queued, run]);
}

#[test]
fn tasks_that_run_are_spans_of_their_threads() {
    let read = read(&stream(&[
        operation(1, 5, 7, "Task.Run: Shop.Pay"),
        scheduled(1, 10, 7),
        scheduled(1, 11, 8),
        started(2, 30, 7),
        // The same once more.
        numbers(17, 2, 31, &[7, 2]),
        // Within it.
        started(2, 35, 8),
        completed(2, 40, 8),
        numbers(18, 2, 44, &[2]),
        numbers(15, 2, 45, &[7, 3]),
        numbers(9, 2, 46, &[1, 0, 7, 1]),
    ]));
    let pay = || "Task.Run: Shop.Pay".to_owned();
    let expected = [
        (SpanKind::Operation, pay(), 42, 5, Some((45, false))),
        (SpanKind::Queued, pay(), 42, 10, Some((30, false))),
        (SpanKind::Queued, "task".to_owned(), 42, 11, Some((35, false))),
        (SpanKind::TaskRun, pay(), 20, 30, Some((46, false))),
        (SpanKind::TaskRun, "task".to_owned(), 20, 35, Some((40, false))),
    ];
    assert_eq!(read.spans(), expected);
    let flow = |at| (FlowKind::Continues, 10, 20, at);
    assert_eq!(read.flows(), [flow(30), flow(35)]);
    let failed = read.events.iter().filter(|event| {
        matches!(event.kind, EventKind::Argument { name, value: Value::Bool(true) }
            if read.tables.get(name) == b"failed")
    });
    assert!(failed.map(|event| event.time.nanos()).eq([46]));
}

/// The thread executes another task while it waits, and the other thread completes its task.
#[test]
fn a_thread_waits_for_a_task() {
    let read = read(&stream(&[
        scheduled(1, 10, 7),
        scheduled(1, 12, 8),
        started(2, 15, 7),
        wait_begins(1, 20, 7, 1),
        started(1, 25, 8),
        completed(1, 30, 8),
        completed(2, 40, 7),
        wait_ends(1, 50, 7),
        continuation_complete(1, 51, 7),
        scheduled(1, 60, 9),
    ]));
    let task = || "task".to_owned();
    let waits: Vec<_> =
        read.spans().into_iter().filter(|span| span.0 == SpanKind::TaskWait).collect();
    assert_eq!(waits, [(SpanKind::TaskWait, task(), 10, 20, Some((50, false)))]);
    let states = [
        (State::Running, 10),
        (State::Waiting, 20),
        (State::Running, 25),
        (State::Waiting, 30),
        (State::Running, 50),
    ];
    assert_eq!(read.states(10), states);
    let flows = [(FlowKind::Continues, 10, 20, 15), (FlowKind::Wakes, 20, 10, 50)];
    assert_eq!(read.flows(), flows);
    // The wait is that for the other thread, whose task was queued by this one.
    let path = read.path(10, 32, 60);
    assert!(path.contains(&(20, 32, 50, false)), "{path:?}");
}

/// A method awaits a delay, and yields once: it continues on two other threads.
#[test]
fn an_await_is_followed_to_its_thread() {
    let read = read(&stream(&[
        operation(1, 10, 4, "Task.Delay"),
        wait_begins(1, 20, 4, 2),
        numbers(17, 2, 99, &[4, 1]),
        wait_ends(2, 100, 4),
        continuation_scheduled(2, 120, 0, 9),
        continuation_complete(2, 130, 4),
        numbers(18, 2, 131, &[1]),
        numbers(15, 2, 132, &[4, 1]),
        numbers(19, 3, 150, &[9]),
        continuation_complete(3, 170, 9),
        wait_begins(3, 180, 99, 2),
    ]));
    let flows = [(FlowKind::Continues, 10, 20, 100), (FlowKind::Continues, 20, 30, 150)];
    assert_eq!(read.flows(), flows);
    let named = |name: &str| name.to_owned();
    let expected = [
        (SpanKind::Operation, named("Task.Delay"), 42, 10, Some((132, false))),
        (SpanKind::Await, named("Task.Delay"), 42, 20, Some((100, false))),
        (SpanKind::TaskRun, named("continuation"), 20, 100, Some((130, false))),
        (SpanKind::Queued, named("continuation"), 42, 120, Some((150, false))),
        (SpanKind::TaskRun, named("continuation"), 30, 150, Some((170, false))),
        (SpanKind::Await, named("task"), 42, 180, None),
    ];
    assert_eq!(read.spans(), expected);
    let path = read.path(30, 12, 170);
    let pieces = [
        (10, 12, 20, false),
        (20, 20, 100, true),
        (20, 100, 120, false),
        (30, 120, 150, true),
        (30, 150, 170, false),
    ];
    assert_eq!(path, pieces);
}

/// What completes a task within other work of the thread is the cause of what follows.
#[test]
fn a_continuation_within_other_work_follows_from_it() {
    let read = read(&stream(&[
        scheduled(1, 10, 7),
        wait_begins(1, 20, 7, 2),
        started(2, 30, 7),
        wait_ends(2, 60, 7),
        continuation_complete(2, 80, 7),
        completed(2, 90, 7),
    ]));
    let flows = [(FlowKind::Continues, 10, 20, 30), (FlowKind::Continues, 10, 20, 60)];
    assert_eq!(read.flows(), flows);
    // Through the task itself, not from its end to the await.
    let path = read.path(20, 12, 80);
    assert!(path.contains(&(20, 30, 80, false)), "{path:?}");
}

/// The level of the trace is too low for the ends of waits, or it lacks the keyword of the ends of tasks.
#[test]
fn parts_without_ends_are_not_drawn() {
    let bytes = stream(&[
        started(2, 10, 7),
        wait_begins(2, 20, 8, 1),
        wait_begins(2, 25, 8, 2),
        started(2, 30, 9),
        started(2, 40, 10),
    ]);
    let read = read(&bytes);
    assert_eq!((read.spans().len(), read.states(20).len()), (0, 1));
    // Without the rest of the trace, each lasts until the next one.
    let read = read_with(&bytes, DotnetSource::new(0));
    let runs = read.spans().into_iter().filter(|span| span.0 == SpanKind::TaskRun);
    let ends: Vec<_> = runs.map(|(.., start, end)| (start, end)).collect();
    assert_eq!(ends, [(10, Some((30, true))), (30, Some((40, true))), (40, None)]);
    let states = [(State::Running, 10), (State::Waiting, 20), (State::Running, 30)];
    assert_eq!(read.states(20), states);
}

/// 65 536 are kept.
#[test]
fn tasks_that_never_start_are_counted() {
    const OPEN: i32 = 1 << 16;
    let mut events: Vec<_> = (1..=OPEN + 3).map(|task| scheduled(1, 10, task)).collect();
    events.extend([started(2, 20, 1), started(2, 20, OPEN + 3), completed(2, 21, OPEN + 3)]);
    let read = read(&stream(&events));
    assert_eq!(read.source.stats().unpaired, 3);
    let queued: Vec<_> = read.spans().into_iter().filter_map(|span| span.4).collect();
    let cut = queued.iter().filter(|(_, is_cut)| *is_cut).count();
    assert_eq!(cut, 3);
    assert_eq!(read.flows(), [(FlowKind::Continues, 10, 20, 20)]);
}

/// The thread executes task 8, which completes what is awaited. Nothing says when the continuation begins.
#[test]
fn a_continuation_of_an_unknown_await_is_not_drawn() {
    let read = read(&stream(&[
        wait_begins(1, 10, 7, 2),
        started(2, 20, 8),
        continuation_scheduled(2, 30, 8, 100),
        wait_ends(3, 40, 7),
        continuation_complete(3, 50, 7),
        completed(2, 60, 8),
    ]));
    let expected = [
        (SpanKind::Await, "task".to_owned(), 42, 10, Some((40, false))),
        (SpanKind::TaskRun, "task".to_owned(), 20, 20, Some((60, false))),
        (SpanKind::TaskRun, "continuation".to_owned(), 30, 40, Some((50, false))),
    ];
    assert_eq!(read.spans(), expected);
}

/// The same, and the task that the thread executes is awaited, too.
#[test]
fn a_continuation_is_not_that_of_the_task_that_is_executed() {
    let read = read(&stream(&[
        wait_begins(1, 10, 7, 2),
        wait_begins(3, 15, 8, 2),
        started(2, 20, 8),
        continuation_scheduled(2, 30, 8, 100),
        wait_ends(1, 40, 7),
        continuation_complete(1, 45, 7),
        completed(2, 50, 8),
        wait_ends(1, 60, 8),
        continuation_complete(1, 70, 8),
    ]));
    assert_eq!(read.flows(), [(FlowKind::Continues, 30, 10, 60)]);
    assert!(read.spans().iter().all(|span| span.0 != SpanKind::Queued));
}

#[test]
fn each_await_of_a_task_has_its_continuation() {
    let read = read(&stream(&[
        wait_begins(1, 10, 7, 2),
        wait_begins(1, 11, 7, 2),
        continuation_scheduled(2, 20, 7, 100),
        continuation_scheduled(2, 21, 7, 101),
        wait_ends(3, 30, 7),
        continuation_complete(3, 35, 7),
        wait_ends(3, 40, 7),
        continuation_complete(3, 45, 7),
    ]));
    let queued: Vec<_> =
        read.spans().into_iter().filter(|span| span.0 == SpanKind::Queued).collect();
    let span =
        |start, end| (SpanKind::Queued, "continuation".to_owned(), 42, start, Some((end, false)));
    assert_eq!(queued, [span(20, 30), span(21, 40)]);
    let flow = |at| (FlowKind::Continues, 20, 30, at);
    assert_eq!(read.flows(), [flow(30), flow(40)]);
}

/// 256 are drawn within each other.
#[test]
fn ends_of_parts_that_are_not_drawn_end_no_others() {
    let mut events: Vec<_> = (1..=258).map(|task| numbers(17, 2, 10, &[task, 2])).collect();
    events.extend([20, 20, 30].map(|time| numbers(18, 2, time, &[2])));
    let read = read(&stream(&events));
    let spans = read.spans();
    assert_eq!((spans.len(), read.source.stats().unpaired), (256, 2));
    let ends: Vec<_> = spans.into_iter().filter_map(|span| span.4).collect();
    assert_eq!(ends, [(30, false)]);
}

/// 65 536 are kept. Others are not refused for them.
#[test]
fn notifications_that_never_end_are_counted() {
    const OPEN: u64 = 1 << 16;
    let number = |name: &str| [&9_u32.to_le_bytes()[..], &utf16z(name)].concat();
    let fields = [&2_u32.to_le_bytes()[..], &number("TaskID"), &number("Work")].concat();
    let ty = metadata(TPL, 17, 0, "TraceSynchronousWorkBegin", 0, &fields);
    let begins = |thread: u64, work: i32| {
        let thread = varint(thread);
        let header = [&[0xc7_u8, 1, 0][..], &thread, &[0], &thread, &[5]].concat();
        blob(&header, &[7, work].map(i32::to_le_bytes).concat())
    };
    let events = (1..=OPEN + 3).map(|thread| begins(thread, 1));
    let events = events.chain([3, 4].map(|thread| begins(OPEN + thread, 2)));
    // The events of a block continue each other's numbers: each of these has one of its own.
    let stream = Stream::v4().compressed("MetadataBlock", &blob(&[0x80, 0], &ty));
    let stream = events.fold(stream, |stream, event| stream.compressed("EventBlock", &event));
    let read = read_with(&stream.end(), DotnetSource::new(0));
    assert_eq!(read.source.stats().unpaired, 3);
    let runs = read.spans().into_iter().map(|span| (span.0, span.2));
    let expected = [3, 4].map(|thread| (SpanKind::TaskRun, OPEN as i64 + thread));
    assert_eq!(runs.collect::<Vec<_>>(), expected);
}

/// They have a limit of their own.
#[test]
fn operations_that_never_end_leave_other_spans() {
    const OPEN: i32 = 1 << 16;
    let mut events = vec![started(2, 5, 7)];
    events.extend((1..=OPEN + 1).map(|task| operation(1, 10, task, "Delay")));
    events.extend([numbers(15, 1, 20, &[OPEN + 1, 1]), completed(2, 30, 7)]);
    let read = read(&stream(&events));
    assert_eq!(read.source.stats().unpaired, 1);
    let ends: Vec<_> = read.spans().into_iter().filter_map(|span| span.4).collect();
    assert_eq!(ends, [(30, false), (10, true), (20, false)]);
}

#[test]
fn a_loss_ends_what_threads_do() {
    let bytes = stream(&[started(2, 10, 7), wait_begins(2, 20, 8, 1), wait_ends(1, 30, 8)]);
    let mut read = read_with(&bytes, DotnetSource::new(0));
    read.source.loss("damaged", &mut read.tables, &mut read.events);
    let ends: Vec<_> = read.spans().into_iter().map(|span| span.4).collect();
    // The continuation of the other thread, too.
    assert_eq!(ends, [Some((30, true)); 3]);
    let states = [(State::Running, 10), (State::Waiting, 20), (State::Running, 30)];
    assert_eq!(read.states(20), states);
}

/// Thread 2 has lost an event before that at 30.
#[test]
fn a_loss_of_events_ends_parts_without_spans_and_operations() {
    let mut events = vec![(operation(1, 5, 9, "Delay"), 1)];
    events.extend((1..=256).map(|task| (numbers(17, 2, 10, &[task, 1]), 1)));
    events.extend([
        (numbers(18, 2, 30, &[1]), 3),
        (numbers(15, 1, 35, &[9, 1]), 1),
        (started(2, 40, 7), 4),
        (completed(2, 50, 7), 5),
    ]);
    let read = read(&stream_with(events.iter().map(|(event, place)| (event, *place))));
    assert_eq!(read.source.stats().lost, 1);
    let expected = [
        (SpanKind::Operation, "Delay".to_owned(), 42, 5, Some((30, true))),
        (SpanKind::TaskRun, "task".to_owned(), 20, 40, Some((50, false))),
    ];
    assert_eq!(read.spans(), expected);
}

/// The tasks of a real trace are those of its events.
#[test]
fn tasks_of_a_capture_are_those_of_its_events() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../nettrace/tests/data/t31-selfdesc.nettrace");
    let bytes = std::fs::read(path).unwrap();
    let mut counts = HashMap::<u32, usize>::new();
    let (mut scheduled, mut begun) = (Vec::new(), Vec::new());
    Reader::new(&bytes[..])
        .for_each(|event| {
            if event.provider() == TPL {
                *counts.entry(event.id()).or_default() += 1;
                let number = |place| event.field_at(place).and_then(|number| number.as_i64());
                match event.id() {
                    12 => scheduled.extend(number(2)),
                    19 => begun.extend(number(0)),
                    _ => {}
                }
            }
        })
        .unwrap();
    let count = |id| counts.get(&id).copied().unwrap_or_default();
    let read = read(&bytes);
    let spans = read.spans();
    let number = |kind| spans.iter().filter(|span| span.0 == kind).count();
    assert!(count(12) > 100 && count(10) > 100, "{counts:?}");
    // Of the others nothing says that they begin.
    let known = scheduled.iter().filter(|number| begun.contains(number)).count();
    assert!((known..=count(12)).contains(&number(SpanKind::Queued)), "{known}");
    assert_eq!(number(SpanKind::Await) + number(SpanKind::TaskWait), count(10));
    assert_eq!(number(SpanKind::TaskRun), count(11) + count(19));
    // Two events before: those of the first tasks, which ended before.
    let complete = spans.iter().filter(|span| span.4.is_some_and(|(_, is_cut)| !is_cut)).count();
    assert_eq!(complete, count(11) + count(19) + count(13));
    // Only ids of tasks are not drawn.
    let skipped = read.source.skipped();
    assert_eq!(skipped, [(TPL, "NewID", count(26) as u64)]);
    assert!(
        read.flows()
            .iter()
            .all(|(kind, from, to, _)| { *kind == FlowKind::Continues && from != to })
    );
    assert!(read.flows().len() > 100, "{}", read.flows().len());
}
