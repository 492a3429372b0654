//! How fast streams are read. With `NETTRACE_BENCH=FILE` (uncompressed) also a file of yours:
//! the figures in the documentation are of a flood of 10.6 million small events.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use nettrace::{Options, Order, Profile, Reader};

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

#[path = "../tests/common/assemble.rs"]
mod assemble;

fn read(bytes: &[u8], order: Order) -> (u64, u64) {
    let mut reader = Reader::with_options(bytes, Options::new().order(order));
    let (mut events, mut sum) = (0, 0u64);
    while let Ok(Some(event)) = reader.next_event() {
        events += 1;
        sum = sum.wrapping_add(event.header().timestamp as u64);
        sum = sum.wrapping_add(event.payload().len() as u64);
        if let Some(value) = event.field_at(1).and_then(|v| v.as_u64()) {
            sum = sum.wrapping_add(value);
        }
    }
    (events, sum)
}

fn bench(c: &mut Criterion) {
    let mut inputs = vec![("synthetic flood".to_owned(), flood(200_000))];
    if let Some(path) = std::env::var_os("NETTRACE_BENCH") {
        inputs.push((path.to_string_lossy().into_owned(), std::fs::read(&path).unwrap()));
    }
    for (name, bytes) in &inputs {
        let (events, _) = read(bytes, Order::Stream);
        assert_eq!(read(bytes, Order::Time).0, events);
        let mut group = c.benchmark_group(name);
        group.sample_size(10).throughput(Throughput::Elements(events));
        for order in [Order::Stream, Order::Time] {
            let label = format!("header, payload, a field; {order:?}");
            group.bench_function(label, |b| b.iter(|| black_box(read(bytes, order))));
        }
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("profile", |b| {
            b.iter_batched(
                Profile::new,
                |mut profile| {
                    let mut reader = Reader::new(&bytes[..]);
                    let _ = reader.for_each(|event| profile.observe(&event));
                    profile
                },
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
