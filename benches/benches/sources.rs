//! The sources of the timeline model: events of the runtimes and records of the kernel per second.
//!
//! Each reads its input and makes model events, which are dropped: for Go and .NET with the reading
//! of the recorded bytes, for the kernel from decoded records. The CPU time of the thread is measured:
//! other load disturbs it less than elapsed time.

#![allow(clippy::unwrap_used, reason = "a benchmark without its input is none")]

mod cpu_time;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::io::Read;
use std::path::PathBuf;
use trace_timeline::sources::dotnet::{DotnetNames, DotnetSource};
use trace_timeline::sources::go::GoSource;
use trace_timeline::sources::kernel::{KernelSource, Record, Task};
use trace_timeline::{Event, Tables, Timestamp};

/// Context switches of one iteration.
const SWITCHES: usize = 1 << 16;

fn data(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates").join(path);
    let bytes = std::fs::read(&path).unwrap();
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    plain
}

/// Returns the number of Go events and of model events.
fn go(trace: &[u8]) -> (u64, u64) {
    let mut reader = gotrace::Reader::new(trace).unwrap();
    let (mut source, mut tables) = (GoSource::new(Default::default()), Tables::new());
    let (mut events, mut count) = (Vec::<Event>::new(), 0);
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, &mut tables, &mut events);
        count += events.drain(..).len() as u64;
    }
    (source.stats().events, count)
}

/// Returns the number of .NET events and of model events.
fn dotnet(trace: &[u8]) -> (u64, u64) {
    let mut names = DotnetNames::new();
    nettrace::Reader::new(trace).for_each(|event| names.push(&event)).unwrap();
    let (mut source, mut tables) = (DotnetSource::with_names(0, names), Tables::new());
    let (mut events, mut count) = (Vec::<Event>::new(), 0);
    let mut reader = nettrace::Reader::new(trace);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
        count += events.drain(..).len() as u64;
    }
    (source.stats().events, count)
}

/// Switches on eight CPUs in turn, each between two of its threads.
fn kernel() -> u64 {
    let (mut source, mut tables) = (KernelSource::new(), Tables::new());
    let (mut events, mut count) = (Vec::<Event>::new(), 0);
    let task = |tid| Task::new(tid, b"worker", 120);
    for n in 0..SWITCHES {
        let (cpu, turn) = ((n % 8) as u32, (n / 8 % 2) as u32);
        let first = cpu * 2 + 1;
        let (prev, next) = (task(first + turn), task(first + 1 - turn));
        let switch = Record::Switch { cpu, prev, prev_state: 1, next };
        source.push(Timestamp::from_nanos(n as i64 * 500), &switch, &mut tables, &mut events);
        count += events.drain(..).len() as u64;
    }
    count
}

fn sources(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("sources");
    let trace = data("gotrace/tests/data/shop.trace");
    let (events, made) = go(&trace);
    assert!(made > events / 2, "{made} of {events}");
    group.throughput(Throughput::Elements(events));
    group.bench_function("Go events", |b| b.iter(|| black_box(go(&trace))));
    let trace = data("trace-timeline/tests/data/t9-runtime.nettrace.gz");
    let (events, made) = dotnet(&trace);
    assert!(made > events / 4, "{made} of {events}");
    group.throughput(Throughput::Elements(events));
    group.bench_function(".NET events", |b| b.iter(|| black_box(dotnet(&trace))));
    assert!(kernel() >= SWITCHES as u64);
    group.throughput(Throughput::Elements(SWITCHES as u64));
    group.bench_function("context switches", |b| b.iter(|| black_box(kernel())));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime::new());
    targets = sources
}
criterion_main!(benches);
