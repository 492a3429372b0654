//! Reading Go execution traces: events, their text, wire events.
//!
//! The input is a small trace of the repository, or the (uncompressed) one that the environment
//! variable `TRISCOPE_BENCH_TRACE` names. Throughput is in events per second.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark without its input is none")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gotrace::{Reader, TextFormatter, raw};
use std::env;
use std::fs;
use std::hint::black_box;

fn input() -> Vec<u8> {
    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/gotrace/tests/data/shop.trace");
    let path = env::var("TRISCOPE_BENCH_TRACE").unwrap_or_else(|_| small.to_owned());
    fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn gotrace(c: &mut Criterion) {
    let trace = input();
    let events = Reader::new(&trace[..]).unwrap().count() as u64;
    let mut group = c.benchmark_group("gotrace");
    group.throughput(Throughput::Elements(events)).sample_size(20);

    group.bench_function("drain", |b| {
        b.iter(|| {
            let mut reader = Reader::new(&trace[..]).unwrap();
            while let Some(event) = reader.next_event().unwrap() {
                black_box(event.time());
            }
        });
    });
    group.bench_function("owned", |b| {
        b.iter(|| Reader::new(&trace[..]).unwrap().for_each(|event| drop(black_box(event))));
    });
    group.bench_function("touch", |b| {
        b.iter(|| {
            let mut reader = Reader::new(&trace[..]).unwrap();
            while let Some(event) = reader.next_event().unwrap() {
                black_box(event.state_transition());
                if let Some(stack) = event.stack() {
                    for frame in stack.frames() {
                        black_box(frame);
                    }
                }
            }
        });
    });
    group.bench_function("text", |b| {
        let mut out = Vec::new();
        b.iter(|| {
            let mut reader = Reader::new(&trace[..]).unwrap();
            let mut text = TextFormatter::default();
            while let Some(event) = reader.next_event().unwrap() {
                out.clear();
                text.append(event, &mut out);
                black_box(&out);
            }
        });
    });
    group.bench_function("wire", |b| {
        b.iter(|| {
            let mut reader = raw::Reader::new(&trace[..]).unwrap();
            while let Some(event) = reader.next_event().unwrap() {
                black_box(event.args);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, gotrace);
criterion_main!(benches);
