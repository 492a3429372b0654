//! Rings in plain memory, so that the order of their records is chosen.

use super::Lane;
use super::reader::{Reader, SetRecord};
use super::table::{EndedRing, NewRing, Retiring, SetEvent, Shared, Slot};
use crate::clock;
use crate::flags::SampleFlags;
use crate::record::RecordLayout;
use crate::ring::tests::FakeKernel;
use perf_sys::{
    PERF_RECORD_LOST, PERF_RECORD_SAMPLE, PERF_RECORD_THROTTLE, PERF_TYPE_TRACEPOINT,
    perf_event_attr,
};
use proptest::prelude::*;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use trace_common::{ClockDomain, Timestamp};

const FLAGS: SampleFlags = SampleFlags::IDENTIFIER
    .union(SampleFlags::TID)
    .union(SampleFlags::TIME)
    .union(SampleFlags::CPU)
    .union(SampleFlags::RAW);

/// The id of the event in the records.
const ID: u64 = 4711;

struct Fake {
    reader: Reader,
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    kernels: Vec<FakeKernel>,
    /// A time that is long past.
    start: i64,
}

impl Fake {
    fn new(rings: usize, pages: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let mut attr = perf_event_attr::new(PERF_TYPE_TRACEPOINT, 1);
        attr.sample_type = FLAGS.bits();
        attr.set_sample_id_all(true);
        let slot = shared.add_event(SetEvent(3), RecordLayout::new(&attr));
        shared.add_id(&slot, ID);
        let reader = Reader::new(Arc::clone(&shared), ClockDomain::Monotonic, 0);
        let mut this = Self { reader, shared, slot, kernels: Vec::new(), start: now() - 1_000_000 };
        for number in 0..rings {
            let (kernel, buffer) = FakeKernel::new(pages);
            let cpu = 10 + number as u32;
            this.shared.publish(|published| {
                let number = number as u64;
                published.new_rings.push(NewRing { number, cpu, lane: Lane::Main, buffer });
            });
            this.kernels.push(kernel);
        }
        this
    }

    fn sample(&mut self, ring: usize, time: i64) {
        let time = (self.start + time) as u64;
        self.kernels[ring].record(PERF_RECORD_SAMPLE, &sample(ID, time, 0));
    }

    /// The CPUs and times that a round passes on, and whether they are late.
    fn round(&mut self) -> Vec<(u32, i64, bool)> {
        let (mut out, start) = (Vec::new(), self.start);
        let result: Result<_, Infallible> = self.reader.round(&mut |record: SetRecord<'_>| {
            assert_eq!(record.event, SetEvent(3));
            assert_eq!(record.layout.time(record.raw), Some(record.time));
            out.push((record.cpu, record.time.nanos() - start, record.late));
            Ok(())
        });
        assert_eq!(result, Ok(out.len()));
        out
    }
}

fn now() -> i64 {
    clock::now(ClockDomain::Monotonic).map_or(0, Timestamp::nanos)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A sample of 112 bytes, like those of `raw_syscalls:sys_enter`.
fn sample(id: u64, time: u64, call: u64) -> Vec<u8> {
    let mut body = words(&[id, 5 << 32 | 4, time, 1]);
    body.extend(68u32.to_ne_bytes());
    body.extend(words(&[350, call, 0, 0, 0, 0, 0, 0]));
    body.extend([0; 4]);
    assert_eq!(body.len(), 104);
    body
}

#[test]
fn a_round_releases_what_the_one_before_read() {
    let mut fake = Fake::new(2, 1);
    fake.sample(0, 10);
    fake.sample(1, 5);
    fake.sample(0, 12);
    assert_eq!(fake.round(), [], "a record of the other ring can come");
    fake.sample(1, 11); // committed late, but in the next round
    fake.sample(1, 20);
    let expected = [(11, 5, false), (10, 10, false), (11, 11, false), (10, 12, false)];
    assert_eq!(fake.round(), expected);
    assert!(!fake.reader.is_empty());
    fake.sample(0, 15); // later than that
    fake.sample(0, 19);
    assert_eq!(fake.round(), [(10, 15, false), (10, 19, false), (11, 20, false)]);
    fake.sample(1, 18);
    assert_eq!(fake.round(), [(11, 18, true)]);
    let stats = fake.reader.stats();
    assert_eq!((stats.late, stats.latest_by_nanos, stats.inversions), (1, 2, 1));
    assert_eq!((fake.slot.delivered(), stats.rings.samples), (8, 8));
}

#[test]
fn the_slack_holds_records_back() {
    let mut fake = Fake::new(1, 1);
    fake.reader.set_slack(3_600_000_000_000);
    fake.sample(0, 1);
    for _ in 0..5 {
        assert_eq!(fake.round(), []);
    }
    fake.reader.set_slack(0);
    assert_eq!(fake.round(), [(10, 1, false)]);
}

#[test]
#[cfg_attr(miri, ignore = "slow: 80 MiB")]
fn records_of_a_clock_that_was_set_back_are_bounded() {
    const SIZE: usize = 60_000;
    let mut fake = Fake::new(1, 64);
    // They have the time before.
    fake.start += 3_600_000_000_000;
    let mut body = sample(ID, fake.start as u64, 0);
    body.resize(SIZE, 0);
    let (mut written, mut passed) = (0, 0);
    while written * SIZE < 80 << 20 {
        for _ in 0..3 {
            fake.kernels[0].record(PERF_RECORD_SAMPLE, &body);
            written += 1;
        }
        passed += fake.round().len();
        // The limit, a ring, and some windows.
        assert!((written - passed) * SIZE < 65 << 20, "{passed} of {written}");
    }
    assert!(fake.reader.stats().waived_slack > 0);
}

#[test]
fn foreign_records_are_counted() {
    let mut fake = Fake::new(1, 1);
    fake.kernels[0].record(PERF_RECORD_SAMPLE, &sample(ID + 1, 1, 0));
    fake.kernels[0].record(PERF_RECORD_SAMPLE, &words(&[ID])); // it ends before its time
    fake.kernels[0].record(PERF_RECORD_SAMPLE, &[]);
    // A loss, with thread, time, CPU and id at its end.
    let time = (fake.start + 7) as u64;
    fake.kernels[0].record(PERF_RECORD_LOST, &words(&[ID, 3, 0, time, 0, ID]));
    fake.sample(0, 8);
    // A throttling, with time, id and stream id before thread, time, CPU and id.
    let time = (fake.start + 9) as u64;
    fake.kernels[0].record(PERF_RECORD_THROTTLE, &words(&[time, ID, ID, 0, time, 0, ID]));
    fake.round();
    assert_eq!(fake.round(), [(10, 7, false), (10, 8, false), (10, 9, false)]);
    let stats = fake.reader.stats();
    assert_eq!((stats.rings.throttled, fake.slot.throttled()), (1, 1));
    assert_eq!((stats.rings.unknown_ids, stats.undecodable, stats.rings.lost), (2, 1, 3));
    assert_eq!(fake.slot.delivered(), 1, "samples only");
}

#[test]
fn records_of_removed_events_are_passed_on() {
    let mut fake = Fake::new(1, 1);
    fake.sample(0, 1);
    fake.round();
    fake.sample(0, 2);
    let removed = (fake.slot.event, fake.slot.place);
    fake.shared.publish(|published| {
        published.retiring.push(Retiring { ids: vec![ID], removed: Some(removed) });
    });
    assert_eq!(fake.round(), [(10, 1, false)]);
    assert_eq!(fake.reader.take_forgotten().count(), 0);
    assert_eq!(fake.round(), [(10, 2, false)]);
    assert_eq!(fake.reader.take_forgotten().collect::<Vec<_>>(), [removed]);
    // Now its id is unknown, and its place is free.
    fake.sample(0, 3);
    assert_eq!((fake.round(), fake.round()), (vec![], vec![]));
    assert_eq!(fake.reader.stats().rings.unknown_ids, 1);
    let layout = fake.slot.layout.clone();
    assert_eq!(fake.shared.add_event(SetEvent(9), layout).place, removed.1);
}

#[test]
fn rings_that_ended_are_read_to_their_end() {
    let mut fake = Fake::new(2, 1);
    fake.sample(1, 1);
    // A loss that a record reports, of two by the count of the kernel.
    let time = (fake.start + 2) as u64;
    fake.kernels[1].record(PERF_RECORD_LOST, &words(&[ID, 1, 0, time, 0, ID]));
    fake.shared.publish(|published| {
        published.ended_rings.push(EndedRing { number: 1, lost: Some(2) });
    });
    fake.round();
    assert_eq!(fake.reader.rings().count(), 2);
    assert_eq!(fake.round(), [(11, 1, false), (11, 2, false)]);
    assert_eq!(fake.reader.rings().count(), 1);
    let stats = fake.reader.stats().rings;
    assert_eq!((stats.samples, stats.lost, stats.lost_at_end), (1, 2, Some(1)), "they stay");
    // The CPU is back.
    let (mut kernel, buffer) = FakeKernel::new(1);
    fake.shared.publish(|published| {
        published.new_rings.push(NewRing { number: 2, cpu: 11, lane: Lane::Main, buffer });
    });
    kernel.record(PERF_RECORD_SAMPLE, &sample(ID, (fake.start + 5) as u64, 0));
    // The round before read nothing, and this is older.
    assert_eq!(fake.round(), [(11, 5, false)]);
    // A kernel that does not count losses.
    fake.shared.publish(|published| {
        published.ended_rings.push(EndedRing { number: 2, lost: None });
    });
    fake.round();
    let stats = fake.reader.stats().rings;
    assert_eq!((stats.samples, stats.lost, stats.lost_at_end), (2, 2, Some(1)));
}

/// Those of a CPU that went offline, too.
#[test]
fn losses_of_the_sideband_are_known() {
    let mut fake = Fake::new(1, 1);
    let (mut side, buffer) = FakeKernel::new(1);
    fake.shared.publish(|published| {
        published.new_rings.push(NewRing { number: 1, cpu: 10, lane: Lane::Sideband, buffer });
    });
    let time = (fake.start + 2) as u64;
    fake.kernels[0].record(PERF_RECORD_LOST, &words(&[ID, 5, 0, time, 0, ID]));
    side.record(PERF_RECORD_LOST, &words(&[ID, 3, 0, time, 0, ID]));
    fake.round();
    let lost = |fake: &Fake| {
        let stats = fake.reader.stats();
        (stats.rings.lost, stats.sideband_lost)
    };
    assert_eq!(lost(&fake), (8, 3));
    fake.shared.publish(|published| {
        published.ended_rings.push(EndedRing { number: 1, lost: Some(4) });
    });
    fake.round();
    fake.round();
    assert_eq!(fake.reader.rings().count(), 1);
    assert_eq!(lost(&fake), (9, 4));
}

#[test]
fn an_error_resumes_after_its_record() {
    let mut fake = Fake::new(1, 1);
    (1..=4).for_each(|time| fake.sample(0, time));
    let mut seen = Vec::new();
    let mut f = |record: SetRecord<'_>| {
        seen.push(record.time.nanos());
        if seen.len() == 2 { Err("refused") } else { Ok(()) }
    };
    assert_eq!(fake.reader.drain(&mut f), Err("refused"));
    assert_eq!(fake.reader.drain(&mut f), Ok(2));
    assert!(seen.is_sorted() && seen.len() == 4);
}

#[test]
fn a_panic_skips_its_record() {
    // In a row from one ring, and from two in turn.
    for rings in [1, 2] {
        let mut fake = Fake::new(rings, 1);
        (1..=20).for_each(|time| fake.sample(time as usize % rings, time));
        assert_eq!(fake.round(), []);
        let (mut seen, start) = (Vec::new(), fake.start);
        let mut f = |record: SetRecord<'_>| {
            seen.push(record.time.nanos() - start);
            assert_ne!(seen.len(), 5, "the decoder of the fifth record fails");
            Ok::<(), Infallible>(())
        };
        let refused = catch_unwind(AssertUnwindSafe(|| fake.reader.round::<Infallible>(&mut f)));
        assert!(refused.is_err());
        assert_eq!(fake.reader.round(&mut f), Ok(15));
        assert_eq!(seen, (1..=20).collect::<Vec<_>>());
        assert_eq!((fake.slot.delivered(), fake.reader.is_empty()), (20, true));
    }
}

#[test]
fn records_behind_a_panic_wait() {
    let mut fake = Fake::new(1, 1);
    (1..=3).for_each(|time| fake.sample(0, time));
    let mut f = |_: SetRecord<'_>| -> Result<(), Infallible> { panic!("a decoder fails") };
    let refused = catch_unwind(AssertUnwindSafe(|| fake.reader.drain::<Infallible>(&mut f)));
    assert!(refused.is_err() && !fake.reader.is_empty());
    let rest: Result<_, Infallible> = fake.reader.drain(&mut |_: SetRecord<'_>| Ok(()));
    assert_eq!((rest, fake.reader.is_empty()), (Ok(2), true));
}

#[test]
fn a_panic_without_order_skips_its_record() {
    let mut fake = Fake::new(1, 1);
    (1..=20).for_each(|time| fake.sample(0, time));
    let mut seen = 0;
    let f = |_: SetRecord<'_>| {
        seen += 1;
        assert_ne!(seen, 5, "the decoder of the fifth record fails");
        Ok::<(), Infallible>(())
    };
    let refused = catch_unwind(AssertUnwindSafe(|| fake.reader.read_unordered(f)));
    assert!(refused.is_err());
    assert_eq!(fake.round(), []);
    let expected: Vec<_> = (6..=20).map(|time| (10, time, false)).collect();
    assert_eq!(fake.round(), expected);
    assert_eq!((fake.slot.delivered(), fake.reader.stats().rings.corrupt_bytes), (20, 0));
}

#[test]
fn many_chunks_are_merged_in_place() {
    // Rings whose times interleave, with more in a round than a chunk has.
    const RINGS: usize = 16;
    let mut fake = Fake::new(RINGS, 64);
    let mut state = 1u64;
    let mut times = [0; RINGS];
    let (mut expected, mut seen) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        for (ring, time) in times.iter_mut().enumerate() {
            for _ in 0..1500 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *time += (state >> 60) as i64;
                fake.sample(ring, *time);
                expected.push((10 + ring as u32, *time, false));
            }
        }
        seen.extend(fake.round());
    }
    seen.extend(fake.round());
    assert!(fake.reader.is_empty());
    expected.sort_by_key(|(cpu, time, _)| (*time, *cpu));
    // Rings do not end at the same time: what is late is out of place.
    assert_eq!(seen.len(), expected.len());
    seen.sort_by_key(|(cpu, time, _)| (*time, *cpu));
    let same = seen.iter().zip(&expected).all(|(a, b)| (a.0, a.1) == (b.0, b.1));
    assert!(same);
    assert_eq!(fake.slot.delivered(), expected.len() as u64);
}

#[test]
fn rings_that_fill_up_get_room() {
    let size = 16 * 4096;
    let mut fake = Fake::new(1, 16);
    fake.reader.set_slack(3_600_000_000_000);
    let mut times = 0..;
    for _ in 0..10 {
        // As much as there is room for: nothing is released before its time.
        while fake.kernels[0].room() >= 112 {
            let time = times.next().unwrap();
            fake.sample(0, time);
        }
        assert_eq!(fake.round(), []);
        let room = fake.kernels[0].room();
        assert!(room >= size / 4 * 3, "{room} of {size}");
    }
    fake.reader.set_slack(0);
    let expected: Vec<_> = (0..times.start).map(|time| (10, time, false)).collect();
    assert_eq!(fake.round(), expected);
    assert_eq!(fake.reader.stats().rings.samples, expected.len() as u64);
    assert!(fake.reader.is_empty());
}

/// A record that a ring gets before a round.
#[derive(Clone, Debug)]
struct Written {
    ring: usize,
    /// Nanoseconds after the record before in this ring.
    step: i64,
    /// Bytes after the fields.
    size: usize,
}

fn written() -> impl Strategy<Value = Written> {
    // Some are longer than a window. Some are earlier than the one before.
    let size = prop_oneof![20 => 0usize..20, 5 => 20usize..600, 1 => 600usize..8000];
    let step = prop_oneof![9 => 0i64..9, 1 => -3i64..0];
    (0usize..4, step, size).prop_map(|(ring, step, size)| Written { ring, step, size: 8 * size })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// Each round passes on what its documentation says, in the order that sorting finds.
    #[test]
    fn rounds_are_sorted_records(
        rounds in prop::collection::vec(prop::collection::vec(written(), 0..60), 1..8),
    ) {
        let mut fake = Fake::new(4, 64);
        prop_assert_eq!(fake.round(), []);
        let (mut before_last, mut last) = ([0; 4], [0; 4]);
        let (mut waiting, mut number) = (Vec::new(), 0u64);
        let (mut found, mut found_new) = (i64::MIN, false);
        let mut released = i64::MIN;
        for round in rounds.into_iter().chain([vec![], vec![]]) {
            let limit = if found_new { found } else { i64::MAX };
            found_new = false;
            for Written { ring, step, size } in round {
                if fake.kernels[ring].room() < 112 + size {
                    continue;
                }
                // Earlier than the record before, but not than those before it: more depends on the
                // size of the window.
                let time = (last[ring] + step).max(before_last[ring]);
                before_last[ring] = before_last[ring].max(last[ring]);
                last[ring] = time;
                number += 1;
                let mut body = sample(ID, (fake.start + time) as u64, number);
                body.resize(body.len() + size, 0);
                fake.kernels[ring].record(PERF_RECORD_SAMPLE, &body);
                waiting.push((time, ring, number));
                found = found.max(time);
                found_new = true;
            }
            waiting.sort_unstable();
            let due = waiting.iter().take_while(|(time, ..)| *time <= limit).count();
            let expected: Vec<_> = waiting.drain(..due).map(|(time, ring, number)| {
                let is_late = time < released;
                released = released.max(time);
                (10 + ring as u32, time, is_late, number)
            }).collect();
            let (mut seen, start) = (Vec::new(), fake.start);
            let read: Result<_, Infallible> = fake.reader.round(&mut |record: SetRecord<'_>| {
                let data = record.layout.raw_data(record.raw).unwrap();
                let number = u64::from_ne_bytes(*data[8..].first_chunk().unwrap());
                seen.push((record.cpu, record.time.nanos() - start, record.late, number));
                Ok(())
            });
            prop_assert_eq!(read, Ok(expected.len()));
            prop_assert_eq!(seen, expected);
        }
        prop_assert!(waiting.is_empty() && fake.reader.is_empty());
        let stats = fake.reader.stats();
        prop_assert_eq!((stats.rings.samples, fake.slot.delivered()), (number, number));
        prop_assert_eq!((stats.rings.corrupt_bytes, stats.undecodable), (0, 0));
    }

    /// Whatever is in the rings, each byte is a record or counted, and nothing waits for ever.
    #[test]
    fn any_bytes_are_read_to_their_end(
        pieces in prop::collection::vec((0usize..2, prop_oneof![
            prop::collection::vec(any::<u8>(), 0..64),
            (0u16..64, 0u8..4).prop_map(|(size, kind)| {
                // A plausible header.
                let mut bytes = vec![[9, 2, 5, 77][kind as usize], 0, 0, 0, 0, 0];
                bytes.extend(size.to_ne_bytes());
                bytes.resize(usize::from(size.max(8)), 0x55);
                bytes
            }),
            any::<u32>().prop_map(|time| {
                let mut bytes = vec![9, 0, 0, 0, 0, 0, 112, 0];
                bytes.extend(sample(ID, time.into(), 1));
                bytes
            }),
        ]), 0..80),
    ) {
        let mut fake = Fake::new(2, 4);
        let mut bytes = 0;
        for piece in pieces.chunks(8) {
            for (ring, piece) in piece {
                if fake.kernels[*ring].room() >= piece.len() {
                    fake.kernels[*ring].put(piece);
                    bytes += piece.len() as u64;
                }
                fake.kernels[*ring].publish();
            }
            let read: Result<_, Infallible> = fake.reader.round(&mut |_: SetRecord<'_>| Ok(()));
            prop_assert!(read.is_ok());
        }
        let read: Result<_, Infallible> = fake.reader.drain(&mut |_: SetRecord<'_>| Ok(()));
        prop_assert!(read.is_ok() && fake.reader.is_empty());
        let stats = fake.reader.stats().rings;
        prop_assert!(stats.bytes + stats.corrupt_bytes >= bytes, "{:?} of {}", stats, bytes);
        prop_assert!(fake.kernels.iter().all(|kernel| kernel.room() == 4 * 4096));
    }
}

/// CPU time of a round with four typed fields for each record: `cargo test --release -p perf-monitor
/// -- --ignored --nocapture ordered`.
#[test]
#[ignore = "a measurement"]
fn ordered_and_typed() {
    use rustix::time::{ClockId, clock_gettime};
    let cpu_nanos = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let format = "name: e\nformat:\n\tfield:u16 common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n";
    let format = crate::TracepointFormat::parse("s", format).unwrap();
    let call = format.field("id").unwrap();
    // As many records in a round as a fast reader finds, and as many as a slow one.
    for (rings, each) in [(1, 2000), (2, 2000), (8, 2000), (64, 128), (64, 512), (64, 2000)] {
        let mut fake = Fake::new(rings, 512);
        fake.start -= 3_600_000_000_000;
        let (mut state, mut times) = (1u64, vec![0; rings]);
        let (mut nanos, mut records, mut sum) = (0, 0, 0);
        let mut batch = Vec::new();
        for _ in 0..1_000_000 / (rings * each) {
            for (kernel, time) in fake.kernels.iter_mut().zip(&mut times) {
                let mut bytes = Vec::new();
                for _ in 0..each {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *time += (state >> 54) as i64;
                    let body = sample(ID, (fake.start + *time) as u64, state);
                    bytes.extend([9, 0, 0, 0, 0, 0, 112, 0]);
                    bytes.extend(body);
                }
                kernel.put(&bytes);
                kernel.publish();
            }
            let before = cpu_nanos();
            let read: Result<_, Infallible> = fake.reader.round(&mut |record: SetRecord<'_>| {
                let layout = record.layout;
                let call = layout.raw_data(record.raw).and_then(|data| call.u64(data));
                let (_, tid) = layout.pid_tid(record.raw).unwrap_or_default();
                batch.push((record.event, record.time, record.cpu, record.late, tid, call));
                if batch.len() == 1024 {
                    sum ^= batch.drain(..).fold(0, |sum, item| sum ^ item.5.unwrap_or(0));
                }
                Ok(())
            });
            nanos += cpu_nanos() - before;
            records += read.unwrap();
        }
        std::hint::black_box(sum);
        let each_record = nanos as f64 / records as f64;
        println!("{rings} rings of {each} records: {each_record:.1} ns CPU per record");
    }
}
