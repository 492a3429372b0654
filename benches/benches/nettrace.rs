//! Reading .NET's event streams: header and payload of each event, a typed field, the profile; in
//! the order of the stream and sorted by time.
//!
//! The inputs are a synthetic flood of small events, the largest captures of the repository in
//! the formats 4 and 6, and the (uncompressed) file that the environment variable
//! `TRISCOPE_BENCH_NETTRACE` names. Throughput is in events per second.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a benchmark")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use nettrace::{Event, Options, Order, Profile, Reader};
use std::hint::black_box;
use std::{env, fs};
use testkit::nettrace::assemble;

const CAPTURES: [&str; 2] = ["t31-selfdesc.nettrace", "v6-record-trace-pid.nettrace"];

/// A stream of two threads in turns, as a runtime writes it: 16 bytes of payload, batches of 100 ms.
fn flood(events: usize) -> Vec<u8> {
    let fields = [("thread", 11u32), ("sequence", 11)];
    let mut described = (fields.len() as u32).to_le_bytes().to_vec();
    for (name, ty) in fields {
        described.extend(ty.to_le_bytes());
        described.extend(assemble::utf16z(name));
    }
    let mut stream = assemble::v4("Flood", 6, 0, &described, &[0; 16]);
    stream.pop(); // the end tag
    let mut stream = assemble::Stream(stream);
    let per_block = 5_000;
    for block in 0..events / per_block {
        let thread = block % 2 + 1;
        let start = (block / 2 * per_block * 100) as u64;
        let mut content = vec![0xc7, 1];
        let number = (block / 2 * per_block) as u64;
        content.extend(assemble::varint(number));
        content.extend([thread as u8, 0, thread as u8]);
        content.extend(assemble::varint(start));
        content.push(16);
        content.extend([0; 16]);
        for n in 1..per_block {
            content.extend([0, 100]);
            content.extend((thread as u64).to_le_bytes());
            content.extend((number + n as u64).to_le_bytes());
        }
        stream = stream.compressed("EventBlock", &content);
    }
    stream.end()
}

fn header_and_payload(event: &Event<'_>) -> u64 {
    let payload = event.payload();
    let last = payload.last().copied().unwrap_or(0);
    event.header().ticks as u64 ^ payload.len() as u64 ^ u64::from(last)
}

fn typed_field(event: &Event<'_>) -> u64 {
    event.field_at(1).and_then(|value| value.as_u64()).unwrap_or(0)
}

/// How many events there are, and what `f` makes of them.
fn read(bytes: &[u8], order: Order, f: impl Fn(&Event<'_>) -> u64) -> (u64, u64) {
    let mut reader = Reader::with_options(bytes, Options::new().order(order));
    let (mut events, mut sum) = (0, 0);
    while let Some(event) = reader.next_event().unwrap() {
        events += 1;
        sum ^= f(&event);
    }
    (events, sum)
}

fn file(path: &str) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn nettrace(c: &mut Criterion) {
    let mut inputs = vec![("flood".to_owned(), flood(200_000))];
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/nettrace/tests/data");
    inputs.extend(CAPTURES.map(|name| (name.to_owned(), file(&format!("{data}/{name}")))));
    if let Ok(path) = env::var("TRISCOPE_BENCH_NETTRACE") {
        let bytes = file(&path);
        inputs.push((path, bytes));
    }
    for (name, bytes) in &inputs {
        let (events, sum) = read(bytes, Order::Stream, header_and_payload);
        assert!(events > 0, "{name}");
        assert_eq!(read(bytes, Order::Time, header_and_payload), (events, sum), "{name}");
        let mut group = c.benchmark_group(format!("nettrace/{name}"));
        group.sample_size(10).throughput(Throughput::Elements(events));
        for order in [Order::Stream, Order::Time] {
            group.bench_function(format!("header and payload; {order:?}"), |b| {
                b.iter(|| black_box(read(bytes, order, header_and_payload)));
            });
            group.bench_function(format!("a typed field; {order:?}"), |b| {
                b.iter(|| black_box(read(bytes, order, typed_field)));
            });
        }
        group.bench_function("profile", |b| {
            b.iter_batched(
                Profile::new,
                |mut profile| {
                    Reader::new(&bytes[..]).for_each(|event| profile.push(&event)).unwrap();
                    profile
                },
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, nettrace);
criterion_main!(benches);
