//! Writing a timeline: what a Perfetto trace costs, of slices made here and of a Go trace.
//!
//! The Go trace is a small one of the repository, or the (uncompressed) one that the environment
//! variable `TRISCOPE_BENCH_TRACE` names. Throughput is in events per second; reading the trace
//! is a part of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark without its input is none")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::{env, fs, io};
use trace_export::timeline::TimelineSource;
use trace_export::{
    ClockDomain, Compressor, DebugAnnotation, PerfettoSink, Sink, Timestamp, Track, TrackEvent,
    Value,
};
use trace_timeline::{Tables, sources::go::GoSource};

/// Events of the synthetic timeline: half of them begin a slice.
const EVENTS: i64 = 20_000;

fn slices(output: impl io::Write) -> u64 {
    let mut sink = PerfettoSink::new(output, ClockDomain::Monotonic);
    let process = sink.track(&Track::process(42, b"server")).unwrap();
    let names = [&b"accept"[..], b"parse", b"answer"].map(|name| sink.text(name));
    let bytes = sink.text(b"bytes");
    let lanes: Vec<_> = (0..8)
        .map(|n| sink.track(&Track::thread(42, 100 + n, b"worker").child_of(process)).unwrap())
        .collect();
    for n in 0..EVENTS / 2 {
        let lane = lanes[n as usize % lanes.len()];
        let args = [DebugAnnotation::new(bytes, Value::Uint(n as u64))];
        let entry = TrackEvent::new(names[n as usize % names.len()]).args(&args);
        sink.begin(Timestamp::from_nanos(n * 900), lane, &entry).unwrap();
        sink.end(Timestamp::from_nanos(n * 900 + 500), lane, &[]).unwrap();
    }
    sink.finish().unwrap();
    sink.stats().bytes
}

fn go(trace: &[u8], output: impl io::Write) -> u64 {
    let mut reader = gotrace::Reader::new(trace).unwrap();
    let mut sink = PerfettoSink::new(output, reader.clock_domain());
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let (mut source, mut timeline) = (GoSource::default(), TimelineSource::default());
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, &mut tables, &mut events);
        for event in events.drain(..) {
            timeline.push(&event, &tables, &mut sink).unwrap();
        }
    }
    timeline.finish(&tables, &mut sink).unwrap();
    sink.finish().unwrap();
    sink.stats().bytes
}

fn export(c: &mut Criterion) {
    let mut group = c.benchmark_group("export");
    group.sample_size(20).throughput(Throughput::Elements(EVENTS as u64));
    group.bench_function("slices", |b| b.iter(|| slices(io::sink())));
    group.bench_function("slices, compressed", |b| {
        b.iter(|| slices(Compressor::new(io::sink()).unwrap()));
    });

    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/gotrace/tests/data/shop.trace");
    let path = env::var("TRISCOPE_BENCH_TRACE").unwrap_or_else(|_| small.to_owned());
    let trace = fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let events = gotrace::Reader::new(&trace[..]).unwrap().count() as u64;
    group.throughput(Throughput::Elements(events));
    group.bench_function("a Go trace", |b| b.iter(|| go(&trace, io::sink())));
    group.finish();
}

criterion_group!(benches, export);
criterion_main!(benches);
