//! Time order of generated streams.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common::parse;
use nettrace::{Item, Order};
use proptest::prelude::*;
use testkit::nettrace::assemble::{self, Stream, blob, varint};

/// One event of a generated stream: what a compressed header says of it.
#[derive(Clone, Debug)]
struct Written {
    thread: u64,
    /// Ticks since the event of the same run before.
    delta: u64,
    payload: usize,
}

/// Thread, sequence number, ticks and payload size of an event.
type Header = (u64, u32, i64, u32);

/// A stream of runs, each in time order. The first event of a run is marked as sorted if nothing
/// after it is older. Gives the stream and the headers of its events.
fn stream_of_runs(runs: &[(u64, Vec<Written>)]) -> (Vec<u8>, Vec<Header>) {
    let mut starts = Vec::new();
    for (start, events) in runs {
        starts.push(start + events[0].delta);
    }
    let mut content = Vec::new();
    let mut expected = Vec::new();
    let mut sequences = std::collections::HashMap::new();
    // State of the block: thread, sequence number, time, size of the payload.
    let (mut thread, mut sequence, mut time, mut size) = (0, 0u32, 0u64, 0);
    for (run, (start, events)) in runs.iter().enumerate() {
        let mut now = *start;
        for (i, event) in events.iter().enumerate() {
            now += event.delta;
            let number = sequences.entry(event.thread).or_insert(0u32);
            *number += 1;
            let mut flags = u8::from(expected.is_empty());
            if event.thread != thread || *number != sequence.wrapping_add(1) {
                flags |= 2 | 4;
            }
            if i == 0 && starts[run..].iter().all(|s| now <= *s) {
                flags |= 64;
            }
            if event.payload != size {
                flags |= 128;
            }
            content.push(flags);
            if flags & 1 != 0 {
                content.push(1);
            }
            if flags & 2 != 0 {
                content.extend(varint(number.wrapping_sub(sequence + 1).into()));
                content.extend(varint(event.thread));
                content.push(0);
                content.extend(varint(event.thread));
            }
            content.extend(varint(now.wrapping_sub(time)));
            if flags & 128 != 0 {
                content.extend(varint(event.payload as u64));
            }
            content.extend(vec![run as u8; event.payload]);
            (thread, sequence, time, size) = (event.thread, *number, now, event.payload);
            expected.push((event.thread, *number, now as i64, event.payload as u32));
        }
    }
    let row = assemble::metadata("Own", 1, 0, "Generated", 0, &0u32.to_le_bytes());
    let stream = Stream::v4().compressed("MetadataBlock", &blob(&[0x80, 0], &row));
    (stream.compressed("EventBlock", &content).end(), expected)
}

/// Held events can refer to the thread: they do not wait for older ones.
#[test]
fn a_removed_thread_ends_the_wait_for_older_events() {
    let mut stream = assemble::V6::new();
    // Not marked as sorted.
    let event = |time: u8| [0x87, 1, 0, 5, 0, 5, time, 0];
    stream.compressed(&event(50));
    stream.block(7, &[6, 0]);
    stream.compressed(&event(20));
    let mut times = Vec::new();
    let bytes = stream.end();
    let parser = parse(&bytes, Order::Time, |item| {
        if let Item::Event(event) = item {
            times.push(event.header().ticks);
        }
    });
    assert_eq!((times, parser.stats().early_flushes), (vec![50, 20], 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Headers are decoded the same whether an event is skipped first or not, in both orders, and
    /// time order is the stable sort of the whole.
    #[test]
    fn generated_runs_are_merged_to_a_stable_sort(
        runs in prop::collection::vec(
            (0u64..5_000, prop::collection::vec(
                (1u64..4, prop_oneof![0u64..3, 100u64..20_000, 1u64 << 20..1 << 30], 0usize..3),
                1..40,
            )),
            1..12,
        )
    ) {
        let runs: Vec<_> = runs
            .into_iter()
            .map(|(start, events)| {
                let thread = events[0].0;
                let events = events.into_iter();
                let events = events.map(|(other, delta, payload)| {
                    // Threads change within a run now and then.
                    let thread = if delta == 100 { other } else { thread };
                    Written { thread, delta, payload }
                });
                (start, events.collect::<Vec<_>>())
            })
            .collect();
        let (bytes, expected) = stream_of_runs(&runs);
        let collect = |order| {
            let mut seen = Vec::new();
            let parser = parse(&bytes, order, |item| {
                if let Item::Event(event) = item {
                    let h = event.header();
                    assert_eq!(event.payload().len(), h.payload_size as usize);
                    assert_eq!(event.name(), "Generated");
                    seen.push((h.capture_thread, h.sequence_number, h.ticks, h.payload_size));
                }
            });
            assert_eq!((parser.stats().lost, parser.stats().events), (0, seen.len() as u64));
            seen
        };
        prop_assert_eq!(&collect(Order::Stream), &expected);
        let mut sorted = expected;
        sorted.sort_by_key(|(_, _, time, _)| *time);
        prop_assert_eq!(&collect(Order::Time), &sorted);
    }
}
