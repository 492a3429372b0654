//! Compressed records: one zstd stream, cut into records at any byte, that does not end.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a test that fails is to panic")]

use perf_data::{
    Error, Features, PipeWriter, Reader, RecordWriter, RecordedEvent, SortedReader, record_type,
};
use perf_monitor::RawRecord;
use proptest::prelude::*;
use std::io::Write;

type Encoder = zstd::stream::write::Encoder<'static, Vec<u8>>;

fn record(type_: u32, body: &[u8]) -> Vec<u8> {
    let size = (8 + body.len()) as u64;
    let header = u64::from(type_) | size << 48;
    [&header.to_le_bytes(), body].concat()
}

/// Starts a recording in pipe mode whose records have a time.
fn start() -> PipeWriter<Vec<u8>> {
    let attr =
        perf_data::perf_event_attr { sample_type: 1 << 2, ..perf_data::perf_event_attr::new(1, 0) };
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
    PipeWriter::new(Vec::new(), &[event], &Features::default()).unwrap()
}

/// The data of further records with these times.
fn compress(encoder: &mut Encoder, times: &[u64]) -> Vec<u8> {
    for time in times {
        encoder.write_all(&record(9, &time.to_le_bytes())).unwrap();
    }
    encoder.flush().unwrap();
    std::mem::take(encoder.get_mut())
}

/// Writes compressed data, cut into records of `cut` bytes.
fn put(writer: &mut PipeWriter<Vec<u8>>, data: &[u8], cut: usize, is_new: bool) {
    for chunk in data.chunks(cut) {
        let bytes = if is_new {
            let mut body = (chunk.len() as u64).to_le_bytes().to_vec();
            body.extend(chunk);
            body.resize(body.len().next_multiple_of(8), 0);
            record(record_type::COMPRESSED2, &body)
        } else {
            record(record_type::COMPRESSED, chunk)
        };
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
}

/// A recording whose records, with these times, are compressed in `parts` and cut into records of `cut`
/// bytes.
fn recording(times: &[u64], parts: usize, cut: usize, is_new: bool, ends: bool) -> Vec<u8> {
    let (mut writer, mut encoder) = (start(), Encoder::new(Vec::new(), 1).unwrap());
    let mut data = Vec::new();
    for part in times.chunks(times.len().div_ceil(parts).max(1)) {
        data.extend(compress(&mut encoder, part));
    }
    if ends {
        data.extend(encoder.finish().unwrap());
    }
    put(&mut writer, &data, cut, is_new);
    writer.finish(&[]).unwrap()
}

fn read(bytes: &[u8]) -> (Vec<u64>, Option<Error>) {
    let mut times = Vec::new();
    let mut reader = match Reader::of_pipe(bytes) {
        Ok(reader) => reader,
        Err(error) => return (times, Some(error)),
    };
    loop {
        match reader.next_record() {
            Ok(Some(entry)) => times.extend(entry.time().map(|time| time.nanos() as u64)),
            Ok(None) => return (times, None),
            Err(error) => return (times, Some(error)),
        }
    }
}

#[test]
fn a_frame_with_a_checksum_is_read_to_its_end() {
    let times: Vec<u64> = (1..=3000).collect();
    let (mut writer, mut encoder) = (start(), Encoder::new(Vec::new(), 1).unwrap());
    encoder.include_checksum(true).unwrap();
    let mut data = compress(&mut encoder, &times);
    data.extend(encoder.finish().unwrap());
    put(&mut writer, &data, 1000, false);
    let (seen, error) = read(&writer.finish(&[]).unwrap());
    assert!(error.is_none() && seen == times, "{}: {error:?}", seen.len());
}

#[test]
fn a_few_bytes_that_stand_for_gigabytes_are_read_block_by_block() {
    // A frame of repeated zeros: after the first, no record.
    let zeros = vec![0u8; 64 << 20];
    let data = zstd::stream::encode_all(&zeros[..], 19).unwrap();
    assert!(data.len() < 60_000, "{}", data.len());
    let mut bytes = recording(&[], 1, 1 << 10, false, false);
    bytes.extend(record(record_type::COMPRESSED, &data));
    let (times, error) = read(&bytes);
    assert_eq!(times, [0; 0]);
    assert!(
        matches!(error, Some(Error::Malformed { what: "a decompressed record", .. })),
        "{error:?}"
    );
}

#[test]
fn a_few_bytes_that_stand_for_many_events_are_an_error() {
    // An attribute without ids, a million times: gigabytes of events.
    let attr = [&[0; 4][..], &64u32.to_le_bytes(), &[0; 56]].concat();
    let events = record(record_type::HEADER_ATTR, &attr).repeat(1 << 20);
    let data = zstd::stream::encode_all(&events[..], 3).unwrap();
    assert!(data.len() < 60_000, "{}", data.len());
    let mut bytes = recording(&[], 1, 1 << 10, false, false);
    let at = bytes.len() as u64;
    bytes.extend(record(record_type::COMPRESSED, &data));
    let (_, error) = read(&bytes);
    assert!(matches!(error, Some(Error::Limit { offset, .. }) if offset == at), "{error:?}");
}

#[test]
fn damage_is_an_error_with_its_place() {
    let times: Vec<u64> = (1..5000).collect();
    let whole = recording(&times, 3, 1000, false, false);
    let (seen, error) = read(&whole);
    assert!(error.is_none() && seen == times, "{error:?}");
    // The last record is missing: what was complete is read.
    let size = whole.len() - 1;
    let (seen, error) = read(&whole[..size - 1200]);
    assert!(matches!(error, Some(Error::Truncated { .. } | Error::Decompress { .. })), "{error:?}");
    assert!(!seen.is_empty() && times.starts_with(&seen));
}

/// `perf` does not compress the ends of rounds: they come before the records that the decoder holds back.
#[test]
fn rounds_end_after_their_compressed_records() {
    const RING: u64 = (320 << 10) / 16;
    const SMALL: u64 = 64;
    let (mut writer, mut encoder) = (start(), Encoder::new(Vec::new(), 1).unwrap());
    let mut round = |rings: &[Vec<u64>]| {
        for times in rings {
            put(&mut writer, &compress(&mut encoder, times), 1 << 14, false);
        }
        writer.finish_round().unwrap();
    };
    // Two rings over the same time, of more than the window together; then small rounds of 1 MiB.
    let ring = |first: u64| -> Vec<u64> { (0..RING).map(|n| 2 * n + first).collect() };
    round(&[ring(1), ring(2)]);
    let mut next = 2 * RING + 1;
    for _ in 0..1024 {
        let times: Vec<u64> = (next..next + SMALL).rev().collect();
        round(&[times]);
        next += SMALL;
    }
    let bytes = writer.finish(&[]).unwrap();
    let mut sorted = SortedReader::new(Reader::of_pipe(&bytes[..]).unwrap());
    let mut times: Vec<u64> = Vec::new();
    sorted.for_each(|entry| times.extend(entry.time().map(|time| time.nanos() as u64))).unwrap();
    assert_eq!(sorted.late(), 0);
    assert!(times.iter().copied().eq(1..next), "{}", times.len());
}

#[test]
fn records_before_damage_are_read() {
    // Less than the window, all of which the decoder holds back.
    let times: Vec<u64> = (1..=5120).collect();
    let (mut writer, mut encoder) = (start(), Encoder::new(Vec::new(), 1).unwrap());
    let parts = times.chunks(1707).map(|part| compress(&mut encoder, part));
    let mut parts: Vec<Vec<u8>> = parts.collect();
    // A block of the type that is reserved.
    parts[2][0] |= 3 << 1;
    put(&mut writer, &parts.concat(), 1000, false);
    let (seen, error) = read(&writer.finish(&[]).unwrap());
    assert!(matches!(error, Some(Error::Decompress { .. })), "{error:?}");
    assert!(seen == times[..2 * 1707], "{}", seen.len());

    // A record whose data is longer than the record.
    let mut bytes = recording(&times, 3, 1000, false, false);
    bytes.extend(record(record_type::COMPRESSED2, &[0xff; 8]));
    let (seen, error) = read(&bytes);
    assert!(matches!(error, Some(Error::Truncated { .. })), "{error:?}");
    assert!(seen == times, "{}", seen.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn records_are_what_was_compressed(
        times in proptest::collection::vec(1u64..1 << 40, 0..3000),
        parts in 1usize..5,
        cut in 1usize..5000,
        is_new: bool,
        ends: bool,
    ) {
        let (seen, error) = read(&recording(&times, parts, cut, is_new, ends));
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(seen, times);
    }

    #[test]
    fn damage_is_no_panic(at in 0usize..4000, value: u8, cut in 1usize..400, is_new: bool) {
        let times: Vec<u64> = (1..500).map(|n| n * 0x9e37_79b9).collect();
        let mut bytes = recording(&times, 2, cut, is_new, false);
        let len = bytes.len();
        bytes[at % len] = value;
        read(&bytes);
    }
}
