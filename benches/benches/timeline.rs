//! The correlation of the layers: events per second.
//!
//! The kernel's events are switches between threads on eight CPUs, as on a machine that is not
//! overloaded: most threads sleep when they leave a CPU and are woken before they run again. In the
//! crowded variant all are preempted: 16 threads share each CPU. Go's events are those of the trace
//! of a web shop.

#![allow(clippy::unwrap_used, reason = "a benchmark without its input is none")]

mod cpu_time;
mod input;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use input::{CPUS, SWITCHES, THREADS, go, scheduler};
use std::hint::black_box;
use trace_timeline::answers::Report;
use trace_timeline::{Correlator, CorrelatorOptions, Derived, Event, Tables};

/// The number of derived intervals, flows and other events.
fn correlate(events: &[Event], tables: &Tables, options: CorrelatorOptions) -> u64 {
    let (mut correlator, mut count) = (Correlator::with_options(options), 0);
    let mut each = |derived: Derived<'_>| {
        black_box(&derived);
        count += 1;
    };
    for event in events {
        correlator.push(event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    count
}

/// The number of groups and threads in the report.
fn report(events: &[Event], tables: &Tables) -> usize {
    let entities = &tables.entities;
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    for event in events {
        correlator.push(event, entities, &mut |derived| report.push(&derived, entities));
    }
    correlator.finish(&mut |derived| report.push(&derived, entities));
    report.groups.len() + report.threads.len()
}

fn timeline(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("correlator");
    let mut tables = Tables::new();
    let events = scheduler(8, &mut tables);
    let crowded = scheduler(1, &mut tables);
    let all = CorrelatorOptions::default();
    let mut whole = CorrelatorOptions::default();
    whole.occupants = false;
    let mut runtimes = whole;
    runtimes.threads = false;
    assert_eq!(report(&events, &tables), CPUS * THREADS as usize);
    let kernel = [
        ("context switches", &events, all),
        ("context switches, whole waits", &events, whole),
        ("context switches, of runtimes only", &events, runtimes),
        ("crowded context switches", &crowded, all),
        ("crowded context switches, whole waits", &crowded, whole),
    ];
    for (name, events, options) in kernel {
        let rates = (events.len() as f64, SWITCHES as f64);
        println!("{name}: {:.2} events per switch", rates.0 / rates.1);
        group.throughput(Throughput::Elements(SWITCHES as u64));
        group.bench_function(name, |b| b.iter(|| correlate(events, &tables, options)));
    }
    group.bench_function("report of context switches", |b| b.iter(|| report(&events, &tables)));
    let mut tables = Tables::new();
    let events = go(&mut tables);
    assert!(report(&events, &tables) > 10);
    group.throughput(Throughput::Elements(events.len() as u64));
    group.bench_function("Go events", |b| b.iter(|| correlate(&events, &tables, all)));
    group.bench_function("report of Go events", |b| b.iter(|| report(&events, &tables)));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime::new());
    targets = timeline
}
criterion_main!(benches);
