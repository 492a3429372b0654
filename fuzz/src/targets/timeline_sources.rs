//! The sources of the timeline model, on any input: Go and .NET traces, also behind damage,
//! recordings of perf, records of the scheduler, counters of a cgroup. Intervals partition lives,
//! pieces partition requests, times can be summed, and all of it can be drawn.

use std::collections::HashMap;
use trace_common::{ClockDomain, Cursor, Limits, Timestamp};
use trace_export::timeline::TimelineSource;
use trace_export::{PerfettoSink, Sink};
use trace_timeline::answers::{History, Report, RequestFilter, Requests, critical_path};
use trace_timeline::sources::cgroup::CgroupSource;
use trace_timeline::sources::dotnet::{DotnetNames, DotnetSource};
use trace_timeline::sources::go::GoSource;
use trace_timeline::sources::kernel::{KernelSource, Record, Task, ThreadRef};
use trace_timeline::sources::perf::PerfSource;
use trace_timeline::{Correlator, Derived, EntityId, Event, TableLimits, Tables};

pub fn target(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    // Small tables, so that their limits are reached.
    let mut limits = TableLimits::default();
    (limits.text_bytes, limits.frames, limits.entities) = (1 << 16, 1 << 12, 1 << 10);
    let mut tables = Tables::with_limits(limits);
    let events = match kind % 5 {
        0 => go(data, &mut tables),
        1 => dotnet(data, &mut tables),
        2 => perf(data, &mut tables),
        3 => kernel(data, &mut tables),
        _ => cgroup(data, &mut tables),
    };
    check(&events, &tables);
    draw(&events, &tables).expect("the writer never fails");
}

fn go(data: &[u8], tables: &mut Tables) -> Vec<Event> {
    let limits = Limits { max_buffer: 1 << 20, max_entries: 1 << 16, ..Limits::default() };
    let Ok(mut reader) = gotrace::Reader::with_limits(data, limits) else { return Vec::new() };
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    for _ in 0..=data.len() {
        match reader.next_event() {
            Ok(Some(event)) => source.push(event, tables, &mut events),
            Ok(None) => break,
            Err(error) => match reader.recover() {
                Ok(Some(loss)) => {
                    source.loss(&error.to_string(), Some(loss.bytes), tables, &mut events);
                }
                _ => break,
            },
        }
    }
    source.finish(tables, &mut events);
    events
}

fn dotnet(data: &[u8], tables: &mut Tables) -> Vec<Event> {
    let mut names = DotnetNames::new();
    let _ = nettrace::Reader::new(data).for_each(|event| {
        names.push(&event);
    });
    let mut reader = nettrace::Reader::new(data);
    let (mut source, mut events) = (DotnetSource::with_names(0, names), Vec::new());
    // A block takes a byte at least, and each error skips one.
    for _ in 0..=data.len() {
        loop {
            match reader.next_item() {
                Ok(Some(item)) => source.push(&item, tables, &mut events),
                Ok(None) => {
                    source.finish(tables, &mut events);
                    return events;
                }
                Err(_) => break,
            }
        }
        source.loss("a damaged block", tables, &mut events);
    }
    source.finish(tables, &mut events);
    events
}

fn perf(data: &[u8], tables: &mut Tables) -> Vec<Event> {
    let limits = Limits { max_buffer: 1 << 20, max_entries: 1 << 16, ..Limits::default() };
    let Ok(reader) = perf_data::Reader::with_limits(std::io::Cursor::new(data), limits) else {
        return Vec::new();
    };
    let mut reader = perf_data::SortedReader::new(reader);
    let Ok(mut source) = PerfSource::with_offset(reader.session(), 1) else { return Vec::new() };
    let mut events = Vec::new();
    while let Ok(Some(entry)) = reader.next_record() {
        source.push(&entry, tables, &mut events);
    }
    events
}

fn kernel(data: &[u8], tables: &mut Tables) -> Vec<Event> {
    let (mut source, mut events) = (KernelSource::new(), Vec::new());
    let mut now = 0;
    for bytes in data.chunks_exact(6) {
        let [kind, cpu, a, b, state, passed] = bytes.try_into().unwrap();
        now += i64::from(passed);
        let cpu = u32::from(cpu % 3);
        let tid = |n: u8| u32::from(n % 8);
        let thread = |n: u8| match n {
            u8::MAX => ThreadRef::Other,
            _ => ThreadRef::Tid(tid(n)),
        };
        let task = |n: u8| Task::new(tid(n), &bytes[..1], 120);
        let record = match kind % 10 {
            0 => Record::Switch { cpu, prev: task(a), prev_state: state.into(), next: task(b) },
            1 => Record::Waking {
                cpu,
                by: (state % 2 == 0).then(|| thread(a)),
                flags: (state % 3 != 0).then_some(state),
                task: task(b),
                target_cpu: u32::from(state % 3),
                is_new: state % 5 == 0,
                stack: None,
            },
            2 => Record::In { cpu, tid: tid(a) },
            3 => Record::Out { cpu, tid: tid(a), preempted: state % 2 == 0 },
            4 => Record::Thread {
                pid: tid(b),
                tid: tid(a),
                parent: (state % 2 == 0).then(|| (tid(state), tid(b))),
                comm: &bytes[..2],
                is_new: state % 3 == 0,
            },
            5 => Record::Comm { tid: tid(a), comm: &bytes[..1], by_exec: b % 2 == 1 },
            6 => Record::Exit { tid: tid(a) },
            7 => Record::Runs {
                cpu,
                thread: thread(a),
                prev: (state % 2 == 0).then(|| thread(b)),
            },
            8 => Record::Queue {
                cpu,
                task: task(a),
                from: (state % 2 == 0).then_some(cpu),
                to: u32::from(b % 3),
            },
            _ => Record::Lost { cpu, count: state.into() },
        };
        source.push(Timestamp::from_nanos(now), &record, tables, &mut events);
    }
    events
}

fn cgroup(data: &[u8], tables: &mut Tables) -> Vec<Event> {
    let (mut source, mut events) = (CgroupSource::new(1), Vec::new());
    let mut cursor = Cursor::new(data);
    let mut now = 0;
    while let Ok(len) = cursor.uvarint() {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(cursor.remaining());
        let Ok(text) = cursor.bytes(len) else { break };
        source.push(Timestamp::from_nanos(now), text, tables, &mut events);
        now += 1_000;
    }
    events
}

fn draw(events: &[Event], tables: &Tables) -> std::io::Result<()> {
    let mut sink = PerfettoSink::with_limit(std::io::sink(), ClockDomain::Monotonic, 1 << 12);
    let zero = Timestamp::default();
    sink.clock_snapshot(&[(ClockDomain::Monotonic, zero), (ClockDomain::Boottime, zero)])?;
    let mut source = TimelineSource::new(Default::default());
    for event in events {
        source.push(event, tables, &mut sink)?;
    }
    source.finish(tables, &mut sink)?;
    sink.finish()
}

fn check(events: &[Event], tables: &Tables) {
    let entities = &tables.entities;
    let mut correlator = Correlator::new();
    let mut requests = Requests::new(RequestFilter::default(), 16);
    let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
    let mut report = Report::new();
    let mut last: HashMap<EntityId, Timestamp> = HashMap::new();
    let mut each = |derived: Derived<'_>| {
        requests.push(&derived);
        history.push(&derived);
        report.push(&derived, entities);
        if let Derived::Interval(interval) = derived {
            assert!(interval.end > interval.start);
            let before = last.insert(interval.subject, interval.end);
            assert!(before.is_none_or(|before| before == interval.start));
        }
    };
    let mut now = None;
    for event in events {
        assert!(now <= Some(event.time), "events are in time order");
        now = Some(event.time);
        correlator.push(event, entities, &mut each);
    }
    correlator.finish(&mut each);
    report.groups.values().for_each(|group| assert!(group.total() >= group.active()));
    history.finish();
    for r in requests.into_worst() {
        let path = critical_path(&history, entities, r.subject, r.start, r.end, r.task);
        let mut at = r.start;
        for piece in &path.pieces {
            assert_eq!(piece.start, at);
            at = piece.end;
        }
        assert_eq!(at, r.end);
    }
}
