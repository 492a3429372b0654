//! Input that nobody wrote in good faith: no panic, no hang, errors with offsets, bounded memory.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, at, exercise};
use nettrace::{ErrorKind, Options, Order, Parser, PayloadError, PayloadErrorKind, Timestamp};
use proptest::prelude::*;
use testkit::nettrace::assemble::{self, Stream, blob, utf8, utf16z, varint};
use trace_common::Limits;

fn seeds() -> Vec<Vec<u8>> {
    ["t10-filter", "v6-record-trace-pid", "t9-metrics", "t10-counters", "t10-startup-reverse"]
        .iter()
        .map(|name| std::fs::read(common::data().join(format!("{name}.nettrace"))).unwrap())
        .collect()
}

/// Few by default, so that every test run has them; more by `PROPTEST_CASES`.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(96)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn changed_bytes_give_errors_and_no_panic(
        seed in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
        cut in any::<prop::sample::Index>(),
        chunk in prop::sample::select(vec![1usize, 13, 512, 1 << 20]),
        early in any::<bool>(),
    ) {
        let mut bytes = seeds().swap_remove(seed);
        bytes.truncate(cut.index(bytes.len()) + 1);
        // Most of a file is payloads: half of the cases change the headers at its beginning.
        let span = if early { bytes.len().min(2_048) } else { bytes.len() };
        for (at, value) in changes {
            let at = at.index(span);
            bytes[at] = value;
        }
        exercise::read_everything(&bytes, chunk, Order::Time);
        exercise::read_everything(&bytes, chunk, Order::Stream);
    }

    #[test]
    fn spliced_blocks_give_errors_and_no_panic(
        seed in 0usize..5,
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        len in 1usize..4_096,
    ) {
        let mut bytes = seeds().swap_remove(seed);
        let from = from.index(bytes.len());
        let piece = bytes[from..(from + len).min(bytes.len())].to_vec();
        let to = to.index(bytes.len());
        bytes.splice(to..to, piece);
        exercise::read_everything(&bytes, 4_096, Order::Time);
        exercise::read_everything(&bytes, 4_096, Order::Stream);
    }

    #[test]
    fn noise_after_the_magic_gives_errors_and_no_panic(
        noise in prop::collection::vec(any::<u8>(), 0..2_048),
        v6 in any::<bool>(),
    ) {
        let mut bytes = b"Nettrace".to_vec();
        if v6 {
            bytes.extend([0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        } else {
            bytes.extend([20, 0, 0, 0]);
            bytes.extend(b"!FastSerialization.1");
        }
        bytes.extend(noise);
        exercise::read_everything(&bytes, 64, Order::Time);
        exercise::read_everything(&bytes, 64, Order::Stream);
    }
}

fn metadata(stream: Stream, fields: &[u8]) -> Stream {
    let mut m = 1i32.to_le_bytes().to_vec();
    m.extend(utf16z("P"));
    m.extend(1i32.to_le_bytes());
    m.extend(utf16z("E"));
    m.extend([0; 16]);
    m.extend(fields);
    stream.compressed("MetadataBlock", &blob(&[0x80, 0], &m))
}

fn errors(stream: Stream, limits: Limits) -> Vec<(u64, ErrorKind)> {
    let mut parser = Parser::new(Options::new().limits(limits));
    parser.push(&stream.end());
    parser.finish();
    let mut errors = Vec::new();
    loop {
        match parser.next_item() {
            Ok(Some(_)) => {}
            Ok(None) => return errors,
            Err(e) => errors.push((e.offset, e.kind)),
        }
    }
}

#[test]
fn assembled_streams_are_valid() {
    let event = [0xc7, 1, 0, 9, 0, 9, 5, 0];
    let stream = metadata(Stream::v4(), &0i32.to_le_bytes()).compressed("EventBlock", &event);
    let errors = errors(stream, Limits::default());
    assert!(errors.is_empty(), "{errors:?}");
}

/// TraceEvent's stack overflow: a type name whose length is negative or huge.
#[test]
fn lengths_of_type_names_are_checked() {
    for length in [-1i32, i32::MIN, i32::MAX, 257] {
        let mut stream = Stream::v4();
        let at = stream.0.len() as u64 + 11;
        stream.0.extend([5, 5, 1, 2, 0, 0, 0, 2, 0, 0, 0]);
        stream.0.extend(length.to_le_bytes());
        let errors = errors(stream, Limits::default());
        let [(offset, ErrorKind::Invalid { value, .. })] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert_eq!((*offset, *value), (at, length.into()));
    }
}

/// TraceEvent's access violation: a count of map entries that the payload does not hold.
#[test]
fn counts_in_payloads_are_checked() {
    let mut payload = vec![0; 17];
    payload.extend([0xff, 0xff, 1, 2, 3, 4]); // 65535 entries, 4 bytes
    let runtime = "Microsoft-Windows-DotNETRuntime";
    let stream = assemble::v4(runtime, 190, 0, &0u32.to_le_bytes(), &payload);
    let mut parser = Parser::new(Options::new());
    parser.push(&stream);
    let event = parser.next_event().unwrap().unwrap();
    assert_eq!(event.name(), "MethodILToNativeMap");
    assert_eq!(event.field("CountOfMapEntries").and_then(|v| v.as_u64()), Some(65_535));
    assert_eq!(event.field("ILOffsets"), None);
    let mut fields = event.fields();
    assert_eq!(fields.by_ref().filter(Result::is_ok).count(), 4);
    assert_eq!(fields.rest(), [1, 2, 3, 4], "what could not be read is there");
    assert_eq!(
        event.check_payload().unwrap_err().to_string(),
        "unexpected end of data: 262140 bytes wanted, 4 left at byte 19 of the payload"
    );
}

#[test]
fn deep_types_are_refused_at_the_limit() {
    // Objects of one field each: type code, then the nested fields; the names come at the end.
    let mut fields = Vec::new();
    for _ in 0..100 {
        fields.extend(1i32.to_le_bytes());
        fields.extend(1i32.to_le_bytes());
    }
    let errors = errors(metadata(Stream::v4(), &fields), Limits::default());
    assert!(matches!(&errors[..], [(_, ErrorKind::Limit { limit: 64, .. })]), "{errors:?}");
}

#[test]
fn counts_of_fields_are_compared_with_what_is_left() {
    // Unreadable fields do not cost the events: no error, but it is counted.
    let stream = metadata(Stream::v4(), &i32::MAX.to_le_bytes()).end();
    let mut parser = Parser::new(Options::new());
    parser.push(&stream);
    while parser.next_item().unwrap().is_some() {}
    assert_eq!(parser.stats().unreadable_metadata, 1);
    assert!(parser.is_complete());
}

#[test]
fn blocks_beyond_the_limit_are_refused_before_they_are_buffered() {
    for size in [i32::MAX, -1, (1 << 20) + 1] {
        let stream = Stream::v4().block("EventBlock", Some(size), &[0; 64]);
        let limits = Limits { max_buffer: 1 << 20, ..Limits::default() };
        let errors = errors(stream, limits);
        assert!(
            matches!(&errors[..], [(_, ErrorKind::Limit { .. } | ErrorKind::Invalid { .. })]),
            "{size}: {errors:?}"
        );
    }
}

#[test]
fn other_input_is_refused_from_its_first_byte() {
    for input in [&b"x"[..], b"Netperf", b"\x14\0\0\0!Fast?", b"Nettrace\x15\0\0\0"] {
        let mut parser = Parser::new(Options::new());
        parser.push(input);
        let error = parser.next_item().unwrap_err();
        assert!(!error.is_truncated(), "{error}");
    }
    let mut future = b"Nettrace\0\0\0\0".to_vec();
    future.extend(7i32.to_le_bytes());
    future.extend(0i32.to_le_bytes());
    let mut parser = Parser::new(Options::new());
    parser.push(&future);
    let error = parser.next_item().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::UnsupportedVersion(7)), "{error}");
}

/// A damaged block is one error; what comes after it is read.
#[test]
fn reading_resumes_after_a_damaged_block() {
    let good = [0xc7, 1, 0, 9, 0, 9, 5, 0];
    let bad = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    let stream = metadata(Stream::v4(), &0i32.to_le_bytes())
        .compressed("EventBlock", &bad)
        .block("Unheard-Of", None, b"skipped")
        .compressed("EventBlock", &good)
        .end();
    for order in [Order::Time, Order::Stream] {
        let mut parser = Parser::new(Options::new().order(order));
        parser.push(&stream);
        let (mut events, mut errors) = (0, 0);
        loop {
            match parser.next_event() {
                Ok(Some(_)) => events += 1,
                Ok(None) => break,
                Err(_) => errors += 1,
            }
        }
        assert_eq!((events, errors), (1, 1));
        let stats = parser.stats();
        assert_eq!((stats.damaged_blocks, stats.unknown_blocks), (1, 1));
        assert!(parser.is_complete());
    }
}

/// Events that go back in time at every step make as many runs: the bound on what is held back
/// counts those too.
#[test]
fn events_that_never_sort_do_not_pile_up() {
    let mut block = vec![0x87, 1, 0, 9, 0, 9, 0xff, 0xff, 0xff, 0x7f, 0];
    for _ in 0..20_000 {
        block.push(0);
        block.extend(varint(u64::MAX)); // one tick back
    }
    let mut stream = Stream::v4();
    for _ in 0..20 {
        stream = stream.compressed("EventBlock", &block);
    }
    let mut parser = Parser::new(Options::new().max_reorder_bytes(1 << 20));
    parser.push(&stream.0);
    let mut events = 0;
    while parser.next_event().unwrap().is_some() {
        events += 1;
    }
    assert_eq!(events, 20 * 20_001, "given before their end was seen");
    assert!(parser.stats().early_flushes >= 20, "{:?}", parser.stats());
}

/// The input from a held event on is kept, also that of blocks without events.
#[test]
fn blocks_without_events_do_not_pile_up() {
    for kind in [99, 5] {
        let mut stream = assemble::V6::new();
        stream.compressed(&blob(&[0x87, 1, 0, 9, 0, 9, 5], b""));
        let mut parser = Parser::new(Options::new().max_reorder_bytes(1 << 20));
        parser.push(&stream.0);
        assert!(parser.next_event().unwrap().is_none(), "an older one can follow");
        let block = |content: &[u8]| {
            let mut stream = assemble::V6(Vec::new());
            stream.block(kind, content);
            stream.0
        };
        // Stack blocks without stacks.
        let content = if kind == 5 { vec![0; 8] } else { vec![0; 1 << 16] };
        let block = block(&content).repeat((1 << 16) / content.len());
        let pushes = (0..32).take_while(|_| {
            parser.push(&block);
            parser.next_event().unwrap().is_none()
        });
        assert!(pushes.count() < 32, "kind {kind}: the event is returned");
        assert_eq!(parser.stats().early_flushes, 1);
    }
}

/// The number of items of a stream, and the limit that it exceeds.
fn limited(stream: &[u8], max_buffer: usize) -> (usize, Option<&'static str>) {
    let limits = Limits { max_buffer, ..Limits::default() };
    let mut parser = Parser::new(Options::new().limits(limits));
    parser.push(stream);
    parser.finish();
    let mut items = 0;
    loop {
        match parser.next_item() {
            Ok(Some(_)) => items += 1,
            Ok(None) => return (items, None),
            Err(error) => match error.kind {
                ErrorKind::Limit { what, .. } => return (items, Some(what)),
                other => panic!("{other}"),
            },
        }
    }
}

/// A limit of this number of bytes where addresses have 64 bits; half of them where tables have half of the size.
const fn by_width(bytes: usize) -> usize {
    bytes / (8 / size_of::<usize>())
}

/// The size of tables in memory counts, which can be many times that of their input.
#[test]
fn the_memory_of_tables_is_bounded() {
    // Threads whose properties are empty: three bytes each.
    let mut threads = assemble::V6::new();
    for index in 0..20 {
        let mut row = varint(index);
        row.extend([4, 0, 0].repeat(20_000));
        threads.block(6, &[&(row.len() as u16).to_le_bytes()[..], &row].concat());
    }
    let threads = threads.end();
    assert_eq!(limited(&threads, by_width(4 << 20)).1, Some("size of threads"));
    assert_eq!(limited(&threads, 64 << 20), (1, None));

    // Fields without names: six bytes each.
    let mut fields = 10_000_u32.to_le_bytes().to_vec();
    fields.extend([3, 0, 0, 0, 0, 0].repeat(10_000));
    let fields = assemble::v4("Own", 1, 0, &fields, b"");
    assert_eq!(limited(&fields, by_width(1 << 20)).1, Some("metadata size"));
    assert_eq!(limited(&fields, 4 << 20), (3, None));
    let names = |id: u64| {
        let row =
            [varint(id), utf8("Microsoft-Windows-DotNETRuntime"), varint(143), vec![0; 5]].concat();
        [&(row.len() as u16).to_le_bytes()[..], &row].concat()
    };
    let mut manifest = assemble::V6::new();
    let rows: Vec<u8> = (0..500).flat_map(names).collect();
    manifest.block(3, &[&[0, 0][..], &rows].concat());
    let manifest = manifest.end();
    assert_eq!(limited(&manifest, by_width(1 << 17)).1, Some("metadata size"), "{}", rows.len());
    assert_eq!(limited(&manifest, 4 << 20), (501, None));

    // Properties without a name and a value: two bytes each.
    let properties = assemble::V6::with_properties(10_000, &[0; 20_000]).end();
    assert_eq!(limited(&properties, by_width(1 << 19)), (0, Some("size of trace properties")));
    assert_eq!(limited(&properties, 1 << 20), (1, None));

    // Stacks without frames.
    let mut stacks = [1u32, 10_000].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    stacks.extend([0; 40_000]);
    let stacks = Stream::v4().block("StackBlock", None, &stacks).end();
    assert_eq!(limited(&stacks, 60_000).1, Some("stacks held"));
    assert_eq!(limited(&stacks, 1 << 20), (1, None));
}

/// Otherwise each of many tiny events takes their time.
#[test]
fn huge_stacks_and_label_lists_are_refused() {
    let refused = |kind: u8, row: &[u8]| {
        let mut stream = assemble::V6::new();
        let row_at = stream.0.len() as u64 + 12;
        stream.block(kind, &[&1u32.to_le_bytes()[..], &1u32.to_le_bytes(), row].concat());
        let mut parser = Parser::new(Options::new());
        parser.push(&stream.end());
        let error = loop {
            match parser.next_item() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => break error,
            }
        };
        assert_eq!(error.offset, row_at);
        match error.kind {
            ErrorKind::Limit { what, limit, .. } => Some((what, limit)),
            other => panic!("{other}"),
        }
    };
    let stack = |size: u32| [size.to_le_bytes().to_vec(), vec![0; size as usize]].concat();
    assert_eq!(refused(5, &stack(1 << 17)), None);
    assert_eq!(refused(5, &stack((1 << 17) + 8)), Some(("stack size", 1 << 17)));
    // Opcodes, the last of which ends the list.
    let labels = |count: usize| [[7u8, 1].repeat(count - 1), vec![0x87, 1]].concat();
    assert_eq!(refused(8, &labels(1 << 13)), None);
    assert_eq!(refused(8, &labels((1 << 13) + 1)), Some(("label list size", 1 << 14)));
}

/// A sequence point of `threads` threads, each of which has lost one event.
fn sequence_point(threads: u32) -> Vec<u8> {
    let mut point = 5i64.to_le_bytes().to_vec();
    point.extend([0, threads].iter().flat_map(|v| v.to_le_bytes()));
    point.extend((0..threads).flat_map(|thread| [varint(thread.into()), vec![1]].concat()));
    point
}

#[test]
fn losses_are_not_queued() {
    for kind in [4, 7] {
        let mut stream = assemble::V6::new();
        // The block of removed threads has no head.
        stream.block(kind, &sequence_point(1_000)[if kind == 7 { 16 } else { 0 }..]);
        let mut parser = Parser::new(Options::new());
        parser.push(&stream.end());
        let mut losses = 0;
        while let Some(item) = parser.next_item().unwrap() {
            if let nettrace::Item::Loss(loss) = item {
                assert_eq!((loss.capture_thread, loss.count), (losses, 1));
                losses += 1;
            }
            assert_eq!(parser.stats().lost, losses, "the others are not read yet");
        }
        assert_eq!((losses, parser.stats().sequence_points), (1_000, u64::from(kind == 4)));
        assert!(parser.is_complete());
    }
    // What is kept of each thread: too many are forgotten, and the loss of no other is known.
    let mut stream = assemble::V6::new();
    stream.block(4, &sequence_point(10_000));
    let stream = stream.end();
    let (items, exceeded) = limited(&stream, by_width(1 << 17));
    assert!((500..2_000).contains(&items), "{items}");
    assert_eq!(exceeded, None);
    assert_eq!(limited(&stream, 1 << 21), (10_002, None));
    // Losses between the events of a block are queued.
    let event =
        |index: u64| [vec![0xc7, 1, 1, 9, 0, 9, 5], vec![0]].concat().repeat(index as usize);
    let mut stream = assemble::V6::new();
    stream.compressed(&event(5_000));
    let stream = stream.end();
    assert_eq!(limited(&stream, by_width(1 << 17)).1, Some("losses"));
    assert_eq!(limited(&stream, 1 << 20), (10_001, None));
}

/// Those that a sequence point does not list have ended. Without sequence points, too many are forgotten.
#[test]
fn threads_that_have_ended_exceed_no_limit() {
    const LIVE: u8 = 7;
    let event = |thread: u8, number: u8, time: u8| {
        blob(&[0xc7, 1, number - 1, thread, 0, thread, time], &[])
    };
    for has_points in [true, false] {
        let row = assemble::metadata("P", 1, 0, "E", 0, &[0; 4]);
        let mut stream = Stream::v4().compressed("MetadataBlock", &blob(&[0x80, 0], &row));
        for round in 0..10 {
            let (time, number) = (10 * round, round + 1 + u8::from(round >= 5));
            stream = stream
                .compressed("EventBlock", &event(20 + round, 1, time + 1))
                .compressed("EventBlock", &event(LIVE, number, time + 2));
            if has_points {
                let listed = [&u64::from(LIVE).to_le_bytes()[..], &u32::from(number).to_le_bytes()];
                let head = [&i64::from(time + 3).to_le_bytes()[..], &1u32.to_le_bytes()];
                stream = stream.block("SPBlock", None, &[head.concat(), listed.concat()].concat());
            }
        }
        let bytes = stream.end();
        for order in [Order::Time, Order::Stream] {
            let limits = Limits { max_entries: 4, ..Limits::default() };
            let mut parser = Parser::new(Options::new().order(order).limits(limits));
            parser.push(&bytes);
            let (mut events, mut lost) = (0, Vec::new());
            while let Some(item) = parser.next_item().unwrap() {
                match item {
                    nettrace::Item::Event(_) => events += 1,
                    nettrace::Item::Loss(loss) => lost.push((loss.capture_thread, loss.count)),
                    _ => {}
                }
            }
            assert_eq!((events, &lost[..]), (20, &[(u64::from(LIVE), 1)][..]), "{order:?}");
            assert!(parser.is_complete());
        }
    }
}

/// The error of a payload, which is also printed.
fn payload_error(stream: &[u8]) -> Option<PayloadError> {
    let mut parser = Parser::new(Options::new());
    parser.push(stream);
    parser.finish();
    let event = parser.next_event().unwrap().unwrap();
    for (_, value) in event.fields().map_while(Result::ok) {
        assert!(value.to_string().len() < 1_000);
    }
    event.check_payload().err()
}

#[test]
fn array_elements_without_bytes_are_refused() {
    let v6 = |ty: &[u8], payload: &[u8]| {
        let field = [utf8("f"), ty.to_vec()].concat();
        let mut fields = 1u16.to_le_bytes().to_vec();
        fields.extend((field.len() as u16).to_le_bytes());
        fields.extend(field);
        let row = [utf8("Own"), varint(1), utf8("E"), fields, vec![0, 0]].concat();
        payload_error(&assemble::v6(&row, payload))
    };
    // An array of version 6 has its number of elements after their type.
    let array = |element: &[u8], count: u16| [&[22], element, &count.to_le_bytes()].concat();
    let object = [1, 0, 0];
    let unbounded = |error: Option<PayloadError>| {
        let kind = error.map(|error| error.kind);
        assert_eq!(kind, Some(PayloadErrorKind::Unbounded));
    };
    let mut ty = array(&[24, 6], 0);
    for _ in 0..8 {
        ty = array(&ty, u16::MAX);
    }
    unbounded(v6(&ty, &[]));
    unbounded(v6(&array(&array(&object, u16::MAX), u16::MAX), &[]));
    // Locations that all refer to the same locations.
    let location = [0xff, 0, 0, 1].repeat(64);
    unbounded(v6(&[25, 25, 25, 25, 6], &location));
    unbounded(v6(&[19, 25, 6], &[1, 0, 0, 0, 6, 0]));
    assert_eq!(v6(&[19, 25, 6], &[0, 0]), None);
    // Without elements there is nothing to count.
    assert_eq!(v6(&array(&object, 0), &[]), None);
    assert_eq!(v6(&object, &[]), None);

    let v4 = |ty: &[u32], payload: &[u8]| {
        let mut fields = 1u32.to_le_bytes().to_vec();
        fields.extend(ty.iter().flat_map(|code| code.to_le_bytes()));
        fields.extend(utf16z("f"));
        payload_error(&assemble::v4("Own", 1, 0, &fields, payload))
    };
    let many = [&[0xff, 0x7f][..], &[0xff; 65_534]].concat();
    unbounded(v4(&[19, 19, 1, 0], &many));
    unbounded(v4(&[19, 1, 0], &[1, 0]));
    assert_eq!(v4(&[19, 1, 0], &[0, 0]), None);
    assert_eq!(v4(&[1, 0], &[]), None);
}

/// Each event compares its method with those that are already at the address.
#[test]
fn methods_at_one_address_are_bounded() {
    const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
    let load = assemble::metadata(RUNTIME, 143, 0, "", 0, &[0; 4]);
    let method = |id: u64| {
        let mut payload = [id, 0, 0x1000].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        payload.extend([16u32, 0, 8].iter().flat_map(|v| v.to_le_bytes()));
        payload.extend(["", "m", "()"].map(utf16z).concat());
        blob(&[0xc7, 1, 0, 9, 0, 9, 1], &payload)
    };
    let stream = Stream::v4()
        .compressed("MetadataBlock", &blob(&[0x80, 0], &load))
        .compressed("EventBlock", &(0..4_106).flat_map(method).collect::<Vec<_>>())
        .end();
    let mut map = nettrace::MethodMap::new();
    nettrace::Reader::new(&stream[..]).for_each(|event| assert!(map.push(&event))).unwrap();
    assert_eq!((map.methods().len(), map.dropped()), (4_096, 10));
    let id = |time: Timestamp| map.resolve(42, 0x1008, time).method.unwrap().id;
    // The times of the events are 1, 2, 3, …
    assert_eq!((id(at(1)), id(at(100)), id(Timestamp::MAX)), (0, 99, 4_095));
}
