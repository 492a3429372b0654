//! The correlation of the layers: events per second.
//!
//! The kernel's events are those of threads that run on, sleep on and are woken on eight CPUs; Go's are
//! those of the trace of a web shop, repeated. Each is correlated into intervals and summed in a report.

#![allow(clippy::unwrap_used, reason = "a benchmark without its input is none")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use trace_timeline::answers::Report;
use trace_timeline::sources::go::GoSource;
use trace_timeline::sources::kernel::{KernelSource, Record, Task};
use trace_timeline::{Correlator, Event, Tables, Timestamp};

/// Context switches of one iteration.
const SWITCHES: usize = 1 << 16;

const CPUS: usize = 8;

/// Threads of each CPU.
const THREADS: i32 = 16;

/// Switches on all CPUs in turn. A thread that was switched out in state S is woken before it runs
/// again.
fn scheduler(tables: &mut Tables) -> Vec<Event> {
    let (mut source, mut events) = (KernelSource::new(), Vec::new());
    let task = |tid| Task { tid, comm: b"worker", prio: 120 };
    let mut running = [0; CPUS];
    for n in 0..SWITCHES {
        let cpu = n % CPUS;
        let first = cpu as i32 * THREADS + 1;
        let at = |part: i64| Timestamp::from_nanos(n as i64 * 1_000 + part);
        let (prev, next) = (running[cpu], first + (n / CPUS) as i32 % THREADS);
        let number = cpu as u32;
        let waking = Record::Waking {
            cpu: number,
            by: Some(prev),
            flags: Some(1),
            task: task(next),
            target_cpu: number,
            is_new: false,
        };
        source.push(at(0), &waking, tables, &mut events);
        let prev_state = i64::from(n % 3 == 0); // otherwise it is preempted
        let (prev, next) = (task(prev), task(next));
        let switch = Record::Switch { cpu: number, prev, prev_state, next };
        source.push(at(500), &switch, tables, &mut events);
        running[cpu] = next.tid;
    }
    events
}

/// The events of a Go trace.
fn go(tables: &mut Tables) -> Vec<Event> {
    let path = "../crates/gotrace/tests/data/shop.trace";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let trace = std::fs::read(path).unwrap();
    let mut reader = gotrace::Reader::new(&trace[..]).unwrap();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, tables, &mut events);
    }
    events
}

/// The number of groups and threads in the report.
fn correlate(events: &[Event], tables: &Tables) -> usize {
    let entities = &tables.entities;
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    for event in events {
        correlator.push(event, entities, &mut |derived| report.push(&derived, entities));
    }
    correlator.finish(&mut |derived| report.push(&derived, entities));
    report.groups.len() + report.threads.len()
}

fn timeline(c: &mut Criterion) {
    let mut group = c.benchmark_group("correlator");
    let mut tables = Tables::new();
    let events = scheduler(&mut tables);
    assert_eq!(correlate(&events, &tables), CPUS * THREADS as usize);
    group.throughput(Throughput::Elements(SWITCHES as u64));
    group.bench_function("context switches", |b| {
        b.iter(|| black_box(correlate(&events, &tables)));
    });
    let mut tables = Tables::new();
    let events = go(&mut tables);
    assert!(correlate(&events, &tables) > 10);
    group.throughput(Throughput::Elements(events.len() as u64));
    group.bench_function("Go events", |b| b.iter(|| black_box(correlate(&events, &tables))));
    group.finish();
}

criterion_group!(benches, timeline);
criterion_main!(benches);
