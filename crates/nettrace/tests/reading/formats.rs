//! What no capture has: assembled piece by piece, as the specification says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common::{at, parse};
use nettrace::analysis::{Counter, CounterKind, CounterTracker};
use nettrace::{
    ErrorKind, Guid, Item, Label, Options, Order, Parser, PayloadError, PayloadErrorKind, Reader,
    Value,
};
use std::io::{self, Read};
use testkit::nettrace::assemble::{self, Stream, V6, blob, header, utf8, utf16z, varint};

/// A field of version 6: its size, name and type.
fn field(name: &str, ty: &[u8]) -> Vec<u8> {
    let content = [utf8(name), ty.to_vec()].concat();
    [&(content.len() as u16).to_le_bytes()[..], &content].concat()
}

/// A metadata block of version 6 with one row.
fn metadata(id: u8, name: &str, fields: &[Vec<u8>], optional: &[u8]) -> Vec<u8> {
    let mut row = vec![id];
    row.extend(utf8("Provider"));
    row.push(7); // event id
    row.extend(utf8(name));
    row.extend((fields.len() as u16).to_le_bytes());
    row.extend(fields.concat());
    row.extend((optional.len() as u16).to_le_bytes());
    row.extend(optional);
    row.extend([9, 9, 9]); // what a later version may add
    let mut block = vec![2, 0, 0xaa, 0xbb]; // a header of two bytes to skip
    block.extend((row.len() as u16).to_le_bytes());
    block.extend(row);
    block
}

fn thread(index: u8, info: &[&[u8]]) -> Vec<u8> {
    let row = [&[index][..], &info.concat()].concat();
    [&(row.len() as u16).to_le_bytes()[..], &row].concat()
}

#[test]
fn version_6_has_every_type() {
    let i32s = [9];
    let fields = [
        field("bool32", &[3]),
        field("char", &[4]),
        field("i8", &[5]),
        field("u8", &[6]),
        field("i16", &[7]),
        field("u16", &[8]),
        field("i32", &i32s),
        field("u32", &[10]),
        field("i64", &[11]),
        field("u64", &[12]),
        field("f32", &[13]),
        field("f64", &[14]),
        field("decimal", &[15]),
        field("time", &[16]),
        field("guid", &[17]),
        field("text", &[18]),
        field("array", &[19, 9]),
        field("varint", &[20]),
        field("varuint", &[21]),
        field("fixed", &[22, 9, 2, 0]),
        field("utf8", &[19, 23]),
        field("data", &[25, 6]),
        field("rel", &[24, 8]),
        field("bool8", &[26]),
        field("object", &[&[1, 2, 0][..], &field("x", &i32s), &field("ys", &[19, 18])].concat()),
    ];
    let mut p = Vec::new();
    p.extend(1u32.to_le_bytes());
    p.extend(u16::from(b'Z').to_le_bytes());
    p.extend([0xff, 0xfe]);
    p.extend((-2i16).to_le_bytes());
    p.extend(3u16.to_le_bytes());
    p.extend((-4i32).to_le_bytes());
    p.extend(5u32.to_le_bytes());
    p.extend((-6i64).to_le_bytes());
    p.extend(7u64.to_le_bytes());
    p.extend(0.5f32.to_le_bytes());
    p.extend(0.25f64.to_le_bytes());
    p.extend([8; 16]);
    p.extend(116_444_736_000_000_001i64.to_le_bytes());
    p.extend([1, 0, 0, 0, 2, 0, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11]);
    p.extend(utf16z("\u{100}\u{1F600}"));
    p.extend([2, 0]);
    p.extend([1i32, -1].map(i32::to_le_bytes).concat());
    p.push(5); // zigzag of -3
    p.extend(varint(300));
    p.extend([3i32, -3].map(i32::to_le_bytes).concat());
    p.extend([3, 0]);
    p.extend("\u{e9}!".bytes());
    // Two bytes, 50 from the start of the payload: within the decimal.
    p.extend((2u32 << 16 | 50).to_le_bytes());
    // Four bytes, right behind the rest.
    let tail = 1 + 4 + 2 + utf16z("a").len() + utf16z("").len();
    p.extend((4u32 << 16 | tail as u32).to_le_bytes());
    p.push(1);
    p.extend(42i32.to_le_bytes());
    p.extend([2, 0]);
    p.extend(utf16z("a"));
    p.extend(utf16z(""));
    let declared = p.len();
    p.extend([0x0102u16, 0x0304].map(u16::to_le_bytes).concat());

    let mut stream = V6::new();
    stream.block(3, &metadata(1, "Everything", &fields, &[]));
    stream.compressed(&blob(&[0xc7, 1, 0, 0, 0, 0, 5], &p));
    let mut seen = 0;
    parse(&stream.end(), Order::Time, |item| {
        let Item::Event(event) = item else { return };
        seen += 1;
        let get = |name: &str| event.field(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(get("bool32"), Value::Bool(true));
        assert_eq!(get("char"), Value::Char(90));
        assert_eq!((get("i8"), get("u8")), (Value::I8(-1), Value::U8(254)));
        assert_eq!((get("i16"), get("u16")), (Value::I16(-2), Value::U16(3)));
        assert_eq!((get("i32"), get("u32")), (Value::I32(-4), Value::U32(5)));
        assert_eq!((get("i64"), get("u64")), (Value::I64(-6), Value::U64(7)));
        assert_eq!((get("f32"), get("f64")), (Value::F32(0.5), Value::F64(0.25)));
        assert_eq!(get("decimal"), Value::Decimal([8; 16]));
        let Value::DateTime(time) = get("time") else { panic!() };
        assert_eq!(time.unix().nanos(), 100);
        assert_eq!(get("guid").to_string(), "00000001-0002-0003-0405-060708090a0b");
        assert!(get("text").as_text().is_some_and(|t| t.is("\u{100}\u{1F600}")));
        assert_eq!(get("array").to_string(), "[1, -1]");
        assert_eq!((get("varint"), get("varuint")), (Value::I64(-3), Value::U64(300)));
        assert_eq!(get("fixed").to_string(), "[3, -3]");
        assert_eq!(get("utf8").to_string(), "\u{e9}!");
        assert_eq!(get("data"), Value::Bytes(&[8, 8]));
        assert_eq!(get("rel").to_string(), "[258, 772]");
        assert_eq!(get("bool8"), Value::Bool(true));
        assert_eq!(get("object").to_string(), "{x=42, ys=[a, ]}");
        let object = get("object").as_object().unwrap();
        assert_eq!(object.get("x").and_then(|v| v.as_i64()), Some(42));
        let mut all = event.fields();
        assert_eq!((all.by_ref().count(), all.rest().len()), (25, p.len() - declared));
        assert_eq!(event.check_payload(), Ok(()), "version 6 may append what it does not declare");
    });
    assert_eq!(seen, 1);
}

/// Fields of version 4 by type code and name.
fn fields_v4(fields: &[(u32, &str)]) -> Vec<u8> {
    let mut out = (fields.len() as u32).to_le_bytes().to_vec();
    for (code, name) in fields {
        out.extend(code.to_le_bytes());
        out.extend(utf16z(name));
    }
    out
}

const BOOL: u32 = 3;
const INT: u32 = 9;
const DECIMAL: u32 = 15;
const STRING: u32 = 18;

/// What the fields of the only event of a stream of version 4 are, and the error at their end.
fn decode_v4(
    keywords: u64,
    fields: &[(u32, &str)],
    payload: &[u8],
) -> (Vec<String>, Option<PayloadError>) {
    let bytes = assemble::v4_with_keywords("Own", keywords, &fields_v4(fields), payload);
    let (mut values, mut error) = (Vec::new(), None);
    parse(&bytes, Order::Time, |item| {
        let Item::Event(event) = item else { return };
        for field in event.fields() {
            match field {
                Ok((_, value)) => values.push(value.to_string()),
                Err(e) => error = Some(e),
            }
        }
        assert_eq!(event.check_payload().err(), error);
        if values.is_empty() {
            assert_eq!(event.field(fields[0].1), None, "no value that may be wrong");
        }
        assert_eq!(event.payload(), payload);
    });
    (values, error)
}

/// Keywords of every event of a manifest-based event source.
const MANIFEST: u64 = 0xf000_0000_0000;

#[test]
fn the_payloads_length_says_how_many_bytes_a_boolean_has() {
    let fields = [(INT, "a"), (BOOL, "b"), (STRING, "c"), (INT, "d")];
    let payload =
        |b: &[u8]| [&7i32.to_le_bytes()[..], b, &utf16z("xy"), &(-7i32).to_le_bytes()].concat();
    for keywords in [0, MANIFEST] {
        for b in [&[1][..], &[1, 0, 0, 0]] {
            let (values, error) = decode_v4(keywords, &fields, &payload(b));
            assert_eq!((values, error), (["7", "true", "xy", "-7"].map(String::from).into(), None));
        }
        // Two bytes are neither: no value is given, as any may be wrong.
        let (values, error) = decode_v4(keywords, &fields, &payload(&[1, 0]));
        assert_eq!(values, [""; 0]);
        assert_eq!(error.unwrap().kind, PayloadErrorKind::Length { found: 16 });
    }
}

#[test]
fn decimals_are_doubles_in_self_describing_events() {
    let double = [&2.5f64.to_le_bytes()[..], &[9, 0, 0, 0]].concat();
    let fields = [(DECIMAL, "amount"), (INT, "n")];
    assert_eq!(decode_v4(0, &fields, &double), (vec!["2.5".into(), "9".into()], None));
    let sixteen = [&[0xab; 16][..], &[9, 0, 0, 0]].concat();
    assert_eq!(decode_v4(0, &fields, &sixteen), (vec!["ab".repeat(16), "9".into()], None));
}

/// Both layouts fit. Only events that cannot be of a manifest are read as self-describing.
#[test]
fn a_payload_that_fits_both_layouts_is_ambiguous() {
    let fields = [
        (BOOL, "a"),
        (BOOL, "b"),
        (INT, "i"),
        (STRING, "s"),
        (STRING, "t"),
        (INT, "j"),
        (STRING, "v"),
    ];
    let int = |i: i32| i.to_le_bytes();
    let (i, j) = (int(0x10000), int(0x50000));
    let payload = [&[1, 0][..], &i, &utf16z(""), &utf16z("xyz"), &j, &utf16z("pq")].concat();
    let (values, error) = decode_v4(0, &fields, &payload);
    assert_eq!(values, ["true", "false", "65536", "", "xyz", "327680", "pq"]);
    assert_eq!(error, None);
    let (values, error) = decode_v4(MANIFEST, &fields, &payload);
    assert_eq!(values, [""; 0]);
    assert_eq!(error.unwrap().kind, PayloadErrorKind::Ambiguous);
    // A boolean that is neither 0 nor 1 distinguishes the layouts again.
    let mut odd = payload;
    odd[4] = 2;
    let (values, error) = decode_v4(MANIFEST, &fields, &odd);
    assert_eq!((values[2].as_str(), error), ("131072", None));
}

#[test]
fn a_payload_of_another_length_than_declared_is_an_error() {
    // Declared as an int and a long, written as two longs.
    let (values, error) = decode_v4(MANIFEST, &[(INT, "thread"), (11, "n")], &[7; 16]);
    assert_eq!(values, [""; 0]);
    let error = error.unwrap();
    assert_eq!(error.kind, PayloadErrorKind::Length { found: 16 });
    assert_eq!(
        error.to_string(),
        "payload of 16 bytes does not match its declared fields at byte 0 of the payload"
    );
    // With a string the end of the fields is only known when they have been read.
    let long = [&utf16z("x")[..], &[1, 2, 3]].concat();
    let (values, error) = decode_v4(MANIFEST, &[(STRING, "s")], &long);
    let error = error.unwrap();
    assert_eq!((values, error.offset), (vec!["x".into()], 4));
    assert_eq!(error.kind, PayloadErrorKind::Trailing { bytes: 3 });
    let (values, error) = decode_v4(MANIFEST, &[(STRING, "s"), (INT, "n")], &utf16z("x"));
    assert_eq!((values, error.unwrap().offset), (vec!["x".into()], 4));
}

/// The runtime's own events may be of an older runtime: that is no error, a cut field is one.
#[test]
fn payloads_of_older_runtimes_may_end_at_a_field() {
    let runtime = "Microsoft-Windows-DotNETRuntime";
    // Count, Depth, Reason and Type have four bytes, ClrInstanceID two.
    for (len, fields, whole) in [(18, 5, true), (17, 4, false), (12, 3, true), (20, 5, true)] {
        let bytes = assemble::v4(runtime, 1, 1, &0u32.to_le_bytes(), &vec![0; len]);
        let mut seen = 0;
        parse(&bytes, Order::Time, |item| {
            let Item::Event(event) = item else { return };
            seen += 1;
            assert_eq!(event.fields().filter(Result::is_ok).count(), fields, "{len}");
            assert_eq!(event.check_payload().is_ok(), whole, "{len}");
        });
        assert_eq!(seen, 1);
    }
}

/// Self-describing events written from one object have their fields in an object without a name.
#[test]
fn an_object_without_a_name_is_the_event_itself() {
    let inner = fields_v4(&[(INT, "A"), (STRING, "B")]);
    let fields = [&1u32.to_le_bytes()[..], &1u32.to_le_bytes(), &inner, &utf16z("")].concat();
    let payload = [&5i32.to_le_bytes()[..], &utf16z("b")].concat();
    let bytes = assemble::v4("Own", 1, 0, &fields, &payload);
    parse(&bytes, Order::Time, |item| {
        let Item::Event(event) = item else { return };
        assert_eq!(event.field("A"), Some(Value::I32(5)));
        let names: Vec<_> = event.fields().map(|field| field.unwrap().0).collect();
        assert_eq!(names, ["A", "B"]);
    });
}

#[test]
fn version_6_has_threads_labels_stacks_and_optional_metadata() {
    let id = Guid::from_bytes([7; 16]);
    let optional = [
        &[1, 2][..],                  // opcode: stop
        &[3, 8, 0, 0, 0, 0, 0, 0, 0], // keywords
        &[4],
        &utf8("took {x}"),
        &[5],
        &utf8("how long"),
        &[6],
        &utf8("k"),
        &utf8("v"),
        &[7],
        &[5; 16],
        &[8, 3, 9, 2],
        &[200, 1, 2, 3], // of a later version
    ]
    .concat();
    let mut stream = V6::new();
    stream.block(3, &metadata(1, "Labelled", &[], &optional));
    let named = [&[1][..], &utf8("worker"), &[2, 42, 3], &varint(4_711)].concat();
    let other = [&[4][..], &utf8("k"), &utf8("v")].concat();
    stream.block(6, &[thread(5, &[&named]), thread(6, &[&other])].concat());
    let labels = [
        &[1u8, 0, 0, 0, 2, 0, 0, 0][..],
        &[1],
        &id.to_bytes(),
        &[5],
        &utf8("user"),
        &utf8("ann"),
        &[6 | 0x80],
        &utf8("n"),
        &[5], // -3
        &[9 | 0x80, 1],
    ]
    .concat();
    stream.block(8, &labels);
    let ips = [0x1111u64, 0x2222].map(u64::to_le_bytes).concat();
    let stacks = [&[3u8, 0, 0, 0, 1, 0, 0, 0][..], &16u32.to_le_bytes(), &ips].concat();
    stream.block(5, &stacks);
    // Thread index 5, stack 3, label list 1; then the same thread with list 2; then thread 6.
    let events =
        [&[0xdf, 1, 0, 5, 1, 5, 3, 10, 1, 0][..], &[0x10, 1, 2], &[0x07, 1, 0, 6, 0, 6, 1]]
            .concat();
    stream.compressed(&events);
    let mut seen = Vec::new();
    let bytes = stream.end();
    let parser = parse(&bytes, Order::Time, |item| {
        let Item::Event(event) = item else { return };
        let ips: Vec<u64> = event.stack().instruction_pointers().collect();
        seen.push((event.tid(), event.pid(), ips, event.level()));
        match seen.len() {
            1 => {
                let metadata = event.metadata();
                assert_eq!((metadata.opcode, metadata.keywords, metadata.version), (2, 8, 2));
                assert_eq!(metadata.message_template.as_deref(), Some("took {x}"));
                assert_eq!(metadata.description.as_deref(), Some("how long"));
                assert_eq!(metadata.provider_guid, Some(Guid::from_bytes([5; 16])));
                assert_eq!(metadata.properties, [("k".into(), "v".into())]);
                assert_eq!(event.thread().and_then(|t| t.name.as_deref()), Some("worker"));
                assert_eq!(event.activity_id(), Some(id));
                let labels: Vec<Label<'_>> = event.labels().collect();
                assert_eq!(labels.len(), 3);
                assert_eq!(labels[1], Label::Text("user".into(), "ann".into()));
                assert_eq!(labels[2], Label::Number("n".into(), -3));
            }
            2 => assert_eq!(event.labels().count(), 1),
            _ => assert_eq!(event.thread().unwrap().properties, [("k".into(), "v".into())]),
        }
    });
    assert_eq!(parser.trace().unwrap().pid, 42);
    let stack = vec![0x1111, 0x2222];
    let expected =
        [(4_711, 42, stack.clone(), 3), (4_711, 42, stack.clone(), 1), (0, 42, stack, 1)];
    assert_eq!(seen, expected);
}

#[test]
fn removed_threads_and_sequence_points_show_losses() {
    let mut stream = V6::new();
    stream.block(3, &metadata(1, "E", &[], &[]));
    stream.block(6, &thread(5, &[&[3, 99]]));
    // Numbers 1 and 2, then 5: two lost.
    stream.compressed(&[0xc7, 1, 0, 5, 0, 5, 10, 0, 0, 1, 2, 2, 5, 0, 1]);
    // At a sequence point number 8 had been reached: three more lost. Threads and metadata go.
    let point = [&20u64.to_le_bytes()[..], &3u32.to_le_bytes(), &1u32.to_le_bytes(), &[5, 8]];
    stream.block(4, &point.concat());
    // The writer declares them again, and continues to count.
    stream.block(3, &metadata(1, "F", &[], &[]));
    stream.block(6, &thread(5, &[&[3, 99]]));
    stream.compressed(&[0xc7, 1, 8, 5, 0, 5, 30, 0]);
    // It ended at number 10: one more lost.
    stream.block(7, &[5, 10]);
    let bytes = stream.end();
    for order in [Order::Time, Order::Stream] {
        let (mut lost, mut names, mut points) = (Vec::new(), String::new(), 0);
        let parser = parse(&bytes, order, |item| match item {
            Item::Event(event) => names.push_str(event.name()),
            Item::Loss(gap) => lost.push((gap.capture_thread, gap.count, gap.after, gap.before)),
            Item::SequencePoint(_) => points += 1,
            _ => {}
        });
        assert_eq!(names, "EEEF");
        let expected = [
            (5, 2, Some(at(11)), at(12)),
            (5, 3, Some(at(12)), at(20)),
            (5, 1, Some(at(30)), at(30)),
        ];
        assert_eq!(lost, expected, "{order:?}");
        assert_eq!((points, parser.stats().lost), (1, 6));
    }
}

/// A thread has ended, and another one has its id.
#[test]
fn an_id_twice_in_a_sequence_point_is_of_two_threads() {
    let (first, next) = ([0xc7, 1, 0, 7, 0, 7, 10, 0], [0, 1]);
    let run = |events: usize| [&first[..], &next.repeat(events - 1)].concat();
    // Where the second one was, and whether some of its events were lost.
    for (reached, expected) in [(5, vec![]), (8, vec![(7, 3)])] {
        for numbers in [[100, reached], [reached, 100]] {
            let entry = |number: u32| [&7u64.to_le_bytes()[..], &number.to_le_bytes()].concat();
            let entries = numbers.map(entry).concat();
            let point = [&200u64.to_le_bytes()[..], &2u32.to_le_bytes(), &entries].concat();
            let bytes = Stream::v4()
                .compressed("MetadataBlock", &blob(&[0x80, 0], &number_type()))
                .compressed("EventBlock", &run(100))
                .compressed("EventBlock", &run(5))
                .block("SPBlock", None, &point)
                .end();
            let mut lost = Vec::new();
            let parser = parse(&bytes, Order::Stream, |item| {
                if let Item::Loss(gap) = item {
                    lost.push((gap.capture_thread, gap.count));
                }
            });
            assert_eq!(lost, expected, "{numbers:?}");
            assert_eq!((parser.stats().events, parser.stats().sequence_points), (105, 1));
        }
    }
}

#[test]
fn metadata_whose_fields_are_unreadable_hides_no_other() {
    let mut stream = V6::new();
    // No type has this code.
    let unreadable = metadata(1, "First", &[field("x", &[99])], &[]);
    let readable = metadata(2, "Second", &[field("y", &[6])], &[]);
    stream.block(3, &[&unreadable[..], &readable[4..]].concat());
    stream.compressed(&[0xc7, 1, 0, 5, 0, 5, 10, 1, 7, 1, 2, 1, 8]);
    let bytes = stream.end();
    let mut seen = Vec::new();
    let parser = parse(&bytes, Order::Stream, |item| {
        let Item::Event(event) = item else { return };
        seen.push((event.name().to_owned(), event.payload()[0], event.fields().count()));
    });
    assert_eq!(seen, [("First".to_owned(), 7, 0), ("Second".to_owned(), 8, 1)]);
    let stats = parser.stats();
    assert_eq!((stats.unreadable_metadata, stats.damaged_blocks), (1, 0));
}

#[test]
fn uncompressed_headers_are_read_in_versions_4_and_6() {
    let metadata_payload = {
        let mut m = 1u32.to_le_bytes().to_vec();
        m.extend(utf16z("P"));
        m.extend(7u32.to_le_bytes());
        m.extend(utf16z("E"));
        m.extend([0; 16]);
        m.extend(1u32.to_le_bytes());
        m.extend(10u32.to_le_bytes());
        m.extend(utf16z("n"));
        m
    };
    let plain = |id: u32, sequence: u32, time: u64, activity: &[u8], payload: &[u8]| {
        let mut e = Vec::new();
        e.extend(id.to_le_bytes());
        e.extend(sequence.to_le_bytes());
        e.extend(21u64.to_le_bytes());
        e.extend(22u64.to_le_bytes());
        e.extend(1u32.to_le_bytes());
        e.extend(0u32.to_le_bytes());
        e.extend(time.to_le_bytes());
        e.extend(activity);
        e.extend((payload.len() as u32).to_le_bytes());
        e.extend(payload);
        [&(e.len() as u32).to_le_bytes()[..], &e].concat()
    };
    let block = |events: &[Vec<u8>], align: bool| {
        let mut out = header(false).to_vec();
        for event in events {
            out.extend(event);
            while align && out.len() % 4 != 0 {
                out.push(0);
            }
        }
        out
    };
    let guids = [[1; 16], [2; 16]].concat();
    let unsorted = 1 << 31 | 1;
    // A payload of five bytes, so that padding is needed; and an event of 256 bytes, whose size
    // begins like a compressed header without flags.
    let events = [
        plain(1, 1, 100, &guids, &[9, 0, 0, 0, 0]),
        plain(unsorted, 2, 101, &guids, &[8; 256 - 76]),
    ];
    let v4 = Stream::v4()
        .block("MetadataBlock", None, &block(&[plain(0, 0, 0, &guids, &metadata_payload)], true))
        .block("EventBlock", None, &block(&events, true))
        .end();
    let mut v6 = V6::new();
    v6.block(3, &metadata(1, "E", &[field("n", &[10])], &[]));
    let none = 0u32.to_le_bytes();
    let events =
        [plain(1, 1, 100, &none, &[9, 0, 0, 0, 0]), plain(unsorted, 2, 101, &none, &[8; 256 - 48])];
    v6.block(2, &block(&events, false));
    for (version, bytes) in [(4, v4), (6, v6.end())] {
        for order in [Order::Time, Order::Stream] {
            let mut seen = Vec::new();
            parse(&bytes, order, |item| {
                let Item::Event(event) = item else { return };
                let h = event.header();
                assert_eq!((h.thread, h.capture_thread, h.processor_number), (21, 22, 1));
                let activity = (version == 4).then_some(Guid::from_bytes([1; 16]));
                assert_eq!(event.activity_id(), activity);
                seen.push((event.name().to_owned(), h.ticks, h.is_sorted, event.payload()[0]));
            });
            let expected = [("E".to_owned(), 100, true, 9), ("E".to_owned(), 101, false, 8)];
            assert_eq!(seen, expected, "version {version} {order:?}");
        }
    }
}

/// The type of the events of [`uncompressed`]: one field, a number.
fn number_type() -> Vec<u8> {
    let mut fields = 1u32.to_le_bytes().to_vec();
    fields.extend(10u32.to_le_bytes());
    fields.extend(utf16z("n"));
    assemble::metadata("P", 7, 0, "E", 0, &fields)
}

#[test]
fn uncompressed_events_may_be_longer_than_their_parts() {
    // What a later version adds is skipped; the padding at the end may be omitted from the size.
    let event = |payload: u8, more: i32| {
        let mut e = 1u32.to_le_bytes().to_vec(); // metadata, not sorted
        e.extend([0; 36]); // sequence number, threads, processor, stack, time
        e.extend([0; 32]); // activities
        e.extend(4u32.to_le_bytes());
        e.extend([payload, 0, 0, 0]);
        e.extend(vec![0xee; usize::try_from(more).unwrap_or_default()]);
        let size = if more < 0 { e.len() as i32 + more } else { e.len() as i32 };
        [&size.to_le_bytes()[..], &e].concat()
    };
    let read = |events: &[Vec<u8>]| {
        let block = [&header(false)[..], &events.concat()].concat();
        let bytes = Stream::v4()
            .compressed("MetadataBlock", &blob(&[0x80, 0], &number_type()))
            .block("EventBlock", None, &block)
            .end();
        let mut parser = Parser::new(Options::new().order(Order::Stream));
        parser.push(&bytes);
        parser.finish();
        let mut payloads = Vec::new();
        loop {
            match parser.next_event() {
                Ok(Some(event)) => payloads.push(event.payload()[0]),
                Ok(None) => return (payloads, None),
                Err(error) => return (payloads, Some(error.kind.to_string())),
            }
        }
    };
    for more in [0, 4, 8, -1, -2, -3] {
        assert_eq!(read(&[event(1, more), event(2, 0)]), (vec![1, 2], None), "{more}");
    }
    let (payloads, error) = read(&[event(1, 0), event(2, -4), event(3, 0)]);
    assert_eq!(payloads, [1]);
    assert!(error.is_some(), "the size is less than the parts");
}

#[test]
fn a_related_activity_needs_no_activity() {
    let related = [&[0xa7, 1, 0, 9, 0, 9, 5][..], &[7; 16]].concat();
    let bytes = Stream::v4()
        .compressed("MetadataBlock", &blob(&[0x80, 0], &number_type()))
        .compressed("EventBlock", &blob(&related, &[3, 0, 0, 0]))
        .end();
    let mut seen = Vec::new();
    parse(&bytes, Order::Time, |item| {
        let Item::Event(event) = item else { return };
        let ids = (event.activity_id(), event.related_activity_id());
        seen.push((ids, event.payload().to_vec()));
    });
    let ids = (None, Some(Guid::from_bytes([7; 16])));
    assert_eq!(seen, [(ids, vec![3, 0, 0, 0])]);
}

/// Only an event with the flag says that no older ones follow.
#[test]
fn an_event_that_is_not_sorted_is_held_back() {
    for (flags, expected) in [(0x87, [20, 50]), (0xc7, [50, 20])] {
        let event =
            |thread: u8, time: u8| blob(&[flags, 1, 0, thread, 0, thread, time], &[0, 0, 0, 0]);
        let bytes = Stream::v4()
            .compressed("MetadataBlock", &blob(&[0x80, 0], &number_type()))
            .compressed("EventBlock", &event(9, 50))
            .compressed("EventBlock", &event(8, 20))
            .end();
        let mut times = Vec::new();
        parse(&bytes, Order::Time, |item| {
            if let Item::Event(event) = item {
                times.push(event.header().ticks);
            }
        });
        assert_eq!(times, expected, "flags {flags:#x}");
    }
}

/// What was returned does not count as held, so that a long stream needs no early flush.
#[test]
fn returned_events_are_not_held() {
    let mut stream = Stream::v4().compressed("MetadataBlock", &blob(&[0x80, 0], &number_type()));
    for _ in 0..500 {
        let sorted = blob(&[0xc7, 1, 0, 9, 0, 9, 5], &[1; 1000]);
        stream = stream.compressed("EventBlock", &sorted);
    }
    let options = Options::new().order(Order::Time).max_reorder_bytes(16 << 10);
    let mut parser = Parser::new(options);
    let mut events = 0;
    for chunk in stream.end().chunks(1000) {
        parser.push(chunk);
        while parser.next_event().unwrap().is_some() {
            events += 1;
        }
    }
    assert_eq!((events, parser.stats().early_flushes), (500, 0));
}

/// The runtime writes the metadata of event counters otherwise than the tags of meters.
#[test]
fn the_metadata_of_event_counters_are_tags() {
    const DOUBLE: u32 = 14;
    let fields = fields_v4(&[(STRING, "Name"), (DOUBLE, "Mean"), (STRING, "Metadata")]);
    for (metadata, tags) in [
        ("zone:eu,url:http://h/?a=b", "zone=eu,url=http://h/?a=b"),
        ("list:1,2,k:", "list=1,2,k="),
        ("", ""),
    ] {
        let payload = [&utf16z("n")[..], &1.5f64.to_le_bytes(), &utf16z(metadata)].concat();
        let bytes = assemble::v4_named("Own", 1, "EventCounters", &fields, &payload);
        let (mut tracker, mut seen) = (CounterTracker::new(), Vec::new());
        parse(&bytes, Order::Time, |item| {
            let Item::Event(event) = item else { return };
            seen.extend(tracker.push(&event).map(|counter| (counter.is_meter, counter.tags)));
        });
        assert_eq!(seen, [(false, tags.to_owned())]);
    }
}

#[test]
fn an_event_counter_without_values_has_no_range() {
    const DOUBLE: u32 = 14;
    let numbers = [(DOUBLE, "Mean"), (INT, "Count"), (DOUBLE, "Min"), (DOUBLE, "Max")];
    let fields = fields_v4(&[&[(STRING, "Name")][..], &numbers].concat());
    for (count, min, max, range) in
        [(0_i32, f64::INFINITY, f64::NEG_INFINITY, None), (2, 1.0, 3.0, Some((1.0, 3.0)))]
    {
        let [mean, min, max] = [0.0, min, max].map(f64::to_le_bytes);
        let payload = [&utf16z("n")[..], &mean, &count.to_le_bytes(), &min, &max].concat();
        let bytes = assemble::v4_named("Own", 1, "EventCounters", &fields, &payload);
        let (mut tracker, mut seen) = (CounterTracker::new(), Vec::new());
        parse(&bytes, Order::Time, |item| {
            let Item::Event(event) = item else { return };
            seen.extend(tracker.push(&event).map(|counter| (counter.count, counter.range)));
        });
        assert_eq!(seen, [(Some(count as u64), range)]);
    }
}

/// The values of an event of a meter, and the number of those that were not decoded.
fn meter(name: &str, fields: &[(&str, u32)], payload: &[u8]) -> (Vec<Counter>, u64) {
    let mut tracker = CounterTracker::new();
    let seen = of_meter(&mut tracker, name, fields, payload);
    (seen, tracker.undecodable())
}

/// The values of an event of a meter.
fn of_meter(
    tracker: &mut CounterTracker,
    name: &str,
    fields: &[(&str, u32)],
    payload: &[u8],
) -> Vec<Counter> {
    let mut described = (fields.len() as u32).to_le_bytes().to_vec();
    for (name, ty) in fields {
        described.extend(ty.to_le_bytes());
        described.extend(utf16z(name));
    }
    let bytes = assemble::v4_named("System.Diagnostics.Metrics", 6, name, &described, payload);
    let mut seen = Vec::new();
    parse(&bytes, Order::Time, |item| {
        if let Item::Event(event) = item {
            seen.extend(tracker.push(&event));
        }
    });
    seen
}

#[test]
fn errors_limits_and_conflicts_of_meters_are_counted() {
    let mut tracker = CounterTracker::new();
    let mut observe = |name, fields: &[(&str, u32)], texts: &[&str]| {
        let payload: Vec<u8> = texts.iter().flat_map(|text| utf16z(text)).collect();
        assert_eq!(of_meter(&mut tracker, name, fields, &payload), []);
    };
    let error = [("sessionId", 18), ("errorMessage", 18)];
    let session = [("sessionId", 18)];
    let long = format!("System.InvalidOperationException: no \n{}", "é".repeat(5_000));
    observe("ObservableInstrumentCallbackError", &error, &["1", &long]);
    observe("Error", &error, &["1", "second"]);
    observe("TimeSeriesLimitReached", &session, &["1"]);
    observe("HistogramLimitReached", &session, &["1"]);
    observe("HistogramLimitReached", &session, &["1"]);
    observe("MultipleSessionsNotSupportedError", &session, &["1"]);
    observe("MultipleSessionsConfiguredIncorrectlyError", &session, &["1"]);
    assert_eq!((tracker.errors(), tracker.limits(), tracker.conflicts()), (2, 3, 2));
    assert_eq!(tracker.exclusive(), 1);
    let first = tracker.first_error().unwrap();
    assert!(long.starts_with(first) && (1_000..=4 << 10).contains(&first.len()), "{first}");
}

/// .NET 9 has the tags of an instrument and its meter in the event with which it begins.
#[test]
fn instruments_have_a_number_a_version_and_tags() {
    let mut tracker = CounterTracker::new();
    let begin = [("instrumentTags", 18), ("meterTags", 18), ("instrumentId", 9)];
    let gauge = [
        ("meterName", 18),
        ("meterVersion", 18),
        ("instrumentName", 18),
        ("tags", 18),
        ("lastValue", 18),
        ("instrumentId", 9),
    ];
    let payload = |texts: &[&str], id: i32| {
        let texts: Vec<u8> = texts.iter().flat_map(|text| utf16z(text)).collect();
        [texts, id.to_le_bytes().to_vec()].concat()
    };
    for (id, instrument, meter) in [(1, "a=1", "m=2"), (2, "", ""), (3, "", "m=3")] {
        let payload = payload(&[instrument, meter], id);
        assert_eq!(of_meter(&mut tracker, "BeginInstrumentReporting", &begin, &payload), []);
    }
    for (id, tags, expected) in [
        (1, "k=v", "k=v,a=1,m=2"),
        (2, "k=v", "k=v"),
        (3, "", "m=3"),
        (4, "", ""), // it began before the session
    ] {
        let payload = payload(&["M", "1.0", "size", tags, "2.5"], id);
        let seen = of_meter(&mut tracker, "GaugeValuePublished", &gauge, &payload);
        let [value] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((&*value.name, value.value, &*value.tags), ("size", 2.5, expected));
        assert_eq!((value.instrument_id, &*value.meter_version), (Some(id as u64), "1.0"));
    }
}

/// Programs can make meters all the time.
#[test]
fn the_tags_of_instruments_that_have_ended_make_room() {
    const BEGIN: u8 = 1;
    const END: u8 = 2;
    const VALUE: u8 = 3;
    let types = [
        (BEGIN, "BeginInstrumentReporting", "instrumentTags"),
        (END, "EndInstrumentReporting", "instrumentTags"),
        (VALUE, "GaugeValuePublished", "lastValue"),
    ];
    let types = types.map(|(id, name, field)| {
        let fields = fields_v4(&[(STRING, field), (INT, "instrumentId")]);
        let provider = "System.Diagnostics.Metrics";
        let mut ty = assemble::metadata(provider, id.into(), 0, name, 0, &fields);
        ty[0] = id;
        blob(&[0x80, 0], &ty)
    });
    let mut events = Vec::new();
    let mut write = |ty, id: i32, text: &str| {
        let payload = [&utf16z(text)[..], &id.to_le_bytes()].concat();
        events.extend(blob(&[0xc7, ty, 0, 9, 0, 9, 5], &payload));
    };
    for id in 0..5_000 {
        write(BEGIN, id, "a=1");
        write(END, id, "a=1");
    }
    // These are the last that fit. One has too many, and two are too many.
    (5_000..9_096).for_each(|id| write(BEGIN, id, "a=1"));
    write(BEGIN, 9_096, &"x".repeat(5_000));
    (9_097..9_099).for_each(|id| write(BEGIN, id, "a=1"));
    // A value can follow the end of its instrument.
    write(END, 9_095, "a=1");
    (9_095..9_098).for_each(|id| write(VALUE, id, "1"));
    let bytes = Stream::v4()
        .compressed("MetadataBlock", &types.concat())
        .compressed("EventBlock", &events)
        .end();
    let (mut tracker, mut tags) = (CounterTracker::new(), Vec::new());
    parse(&bytes, Order::Time, |item| {
        let Item::Event(event) = item else { return };
        tags.extend(tracker.push(&event).map(|counter| counter.tags));
    });
    assert_eq!(tags, ["a=1", "", ""]);
    assert_eq!(tracker.untagged(), 3);
}

#[test]
fn values_have_the_number_of_their_collection() {
    let mut tracker = CounterTracker::new();
    for number in 0..3 {
        let seen =
            of_meter(&mut tracker, "GaugeValuePublished", &[("lastValue", 18)], &utf16z("1"));
        assert_eq!(seen[0].collection, Some(number));
        assert_eq!(of_meter(&mut tracker, "CollectionStart", &[], &[]), []);
    }
}

/// The runtime reports to all sessions what happened to one of them.
#[test]
fn reports_of_other_sessions_of_meters_are_ignored() {
    let mut tracker = CounterTracker::of_session("SHARED", "7");
    let mut observe = |name, field, text: &str| {
        assert_eq!(of_meter(&mut tracker, name, &[(field, 18)], &utf16z(text)), []);
        (tracker.errors(), tracker.limits(), tracker.conflicts(), tracker.exclusive())
    };
    assert_eq!(observe("Error", "sessionId", "other"), (0, 0, 0, 0));
    assert_eq!(observe("TimeSeriesLimitReached", "sessionId", "other"), (0, 0, 0, 0));
    // The others were refused because of this one.
    let refused = "MultipleSessionsNotSupportedError";
    assert_eq!(observe(refused, "runningSessionId", "SHARED"), (0, 0, 0, 0));
    let different = "MultipleSessionsConfiguredIncorrectlyError";
    assert_eq!(observe(different, "clientId", "8"), (0, 0, 0, 0));
    assert_eq!(observe("Error", "sessionId", "SHARED"), (1, 0, 0, 0));
    assert_eq!(observe("HistogramLimitReached", "sessionId", "SHARED"), (1, 1, 0, 0));
    assert_eq!(observe(different, "clientId", "7"), (1, 1, 1, 0));
    assert_eq!(observe(refused, "runningSessionId", "other"), (1, 1, 2, 1));
}

/// No capture has a histogram: its quantiles are text, its count and sum are numbers.
#[test]
fn histograms_of_meters_have_quantiles() {
    let fields = [
        ("meterName", 18u32),
        ("instrumentName", 18),
        ("unit", 18),
        ("tags", 18),
        ("quantiles", 18),
        ("count", 9),
        ("sum", 14),
    ];
    let mut payload =
        ["M", "latency", "ms", "k=v", "0.5=1.5;0.95=20;0.99=1e3"].map(utf16z).concat();
    payload.extend(12i32.to_le_bytes());
    payload.extend(34.5f64.to_le_bytes());
    let (seen, undecoded) = meter("HistogramValuePublished", &fields, &payload);
    let ([histogram], 0) = (&seen[..], undecoded) else { panic!("{seen:?} {undecoded}") };
    assert_eq!((histogram.kind, histogram.value), (CounterKind::Histogram, 34.5));
    assert_eq!((histogram.count, histogram.tags.as_str()), (Some(12), "k=v"));
    assert_eq!(histogram.quantiles, [(0.5, 1.5), (0.95, 20.0), (0.99, 1_000.0)]);
}

/// A histogram with a scale, a number of zeros, the range of its values and its buckets.
fn exponential(
    scale: i32,
    zeros: i64,
    (min, max): (f64, f64),
    buckets: &str,
) -> (Vec<Counter>, u64) {
    let fields = [
        ("meterName", 18),
        ("instrumentName", 18),
        ("instrumentId", 9),
        ("unit", 18),
        ("tags", 18),
        ("scale", 9),
        ("sum", 14),
        ("count", 11),
        ("zeroCount", 11),
        ("minimum", 14),
        ("maximum", 14),
        ("buckets", 18),
    ];
    let counts = buckets.split(", ").filter_map(|count| count.parse::<i64>().ok());
    let count = counts.fold(0i64, i64::wrapping_add);
    let payload = [
        ["M", "latency"].map(utf16z).concat(),
        7i32.to_le_bytes().to_vec(),
        ["ms", "k=v"].map(utf16z).concat(),
        scale.to_le_bytes().to_vec(),
        34.5f64.to_le_bytes().to_vec(),
        [count.wrapping_add(zeros), zeros].map(i64::to_le_bytes).concat(),
        [min, max].map(f64::to_le_bytes).concat(),
        utf16z(buckets),
    ];
    meter("Base2ExponentialHistogramValuePublished", &fields, &payload.concat())
}

#[test]
fn exponential_histograms_have_quantiles() {
    let one = |histogram: (Vec<Counter>, u64)| {
        let (Ok([counter]), 0) = (<[Counter; 1]>::try_from(histogram.0), histogram.1) else {
            panic!("not one value")
        };
        counter
    };
    // Buckets of (128, 256], (256, 512] and (512, 1024]. The last one has been emptied.
    let counter = one(exponential(0, 2, (0.0, 1000.0), "1, 0, 3, 0"));
    assert_eq!((counter.kind, counter.value), (CounterKind::ExponentialHistogram, 34.5));
    assert_eq!((counter.count, counter.range), (Some(6), Some((0.0, 1000.0))));
    assert_eq!((&*counter.name, &*counter.unit, &*counter.tags), ("latency", "ms", "k=v"));
    assert_eq!(
        counter.quantiles,
        [(0.5, 7.5f64.exp2()), (0.95, 9.5f64.exp2()), (0.99, 9.5f64.exp2())]
    );
    // One value, which the range has exactly.
    let counter = one(exponential(20, 0, (3.0, 3.0), "5"));
    assert_eq!(counter.quantiles, [(0.5, 3.0), (0.95, 3.0), (0.99, 3.0)]);
    // None, and zeros alone.
    let counter = one(exponential(20, 0, (f64::MAX, f64::MIN), ""));
    assert_eq!((counter.count, counter.range, counter.quantiles), (Some(0), None, vec![]));
    let counter = one(exponential(20, 4, (0.0, 0.0), ""));
    assert_eq!(counter.quantiles, [(0.5, 0.0), (0.95, 0.0), (0.99, 0.0)]);
    // 1 to 1000, in buckets as the runtime finds them.
    for scale in [-2, 0, 3, 5] {
        let per_doubling = f64::from(scale).exp2();
        let bucket = |n: i32| ((f64::from(n).log2() * per_doubling).ceil() - 1.0) as i32;
        let count = |b| (1..=1000).filter(|n| bucket(*n) == b).count().to_string();
        let counts: Vec<_> = (bucket(1)..=bucket(1000)).map(count).collect();
        let counter = one(exponential(scale, 0, (1.0, 1000.0), &counts.join(", ")));
        for (quantile, value) in counter.quantiles {
            let (exact, base) = (quantile * 1000.0, per_doubling.recip().exp2());
            assert!((exact / base..=exact * base).contains(&value), "{scale}: {quantile} {value}");
        }
    }
}

#[test]
fn values_of_meters_that_are_not_decoded_are_counted() {
    let range = (1.0, 2.0);
    for (scale, zeros, range, buckets) in [
        (21, 0, range, "1"),
        (0, -1, range, "1"),
        (0, 0, (2.0, 1.0), "1"),
        (0, 0, (f64::NAN, 1.0), "1"),
        (0, 0, range, "1, x"),
        (0, 0, range, "9223372036854775807, 9223372036854775807, 9"),
    ] {
        let (seen, undecoded) = exponential(scale, zeros, range, buckets);
        assert_eq!((seen.len(), undecoded), (1, 1), "the sum is there: {buckets}");
        assert_eq!(seen[0].quantiles, []);
    }
    // A later kind of instrument, a histogram without its sum, a rate without an earlier value.
    for (name, fields, undecoded) in [
        ("OtherValuePublished", &[("value", 18)], 1),
        ("HistogramValuePublished", &[("errors", 18)], 1),
        ("CounterRateValuePublished", &[("rate", 18)], 0),
        ("CollectionStop", &[("sessionId", 18)], 0),
    ] {
        assert_eq!(meter(name, fields, &utf16z("")), (vec![], undecoded), "{name}");
    }
}

/// .NET 6 and 7 have no number and no sum of the values.
#[test]
fn histograms_of_meters_without_their_sum_have_quantiles() {
    let fields = [("meterName", 18), ("instrumentName", 18), ("quantiles", 18)];
    let payload = ["M", "latency", "0.5=1.5;0.95=20"].map(utf16z).concat();
    let (seen, undecoded) = meter("HistogramValuePublished", &fields, &payload);
    let ([histogram], 0) = (&seen[..], undecoded) else { panic!("{seen:?} {undecoded}") };
    assert_eq!((histogram.kind, histogram.count), (CounterKind::Histogram, None));
    assert!(histogram.value.is_nan());
    assert_eq!(histogram.quantiles, [(0.5, 1.5), (0.95, 20.0)]);
    // No measurements in the interval.
    let payload = ["M", "latency", ""].map(utf16z).concat();
    let (seen, undecoded) = meter("HistogramValuePublished", &fields, &payload);
    let ([idle], 0) = (&seen[..], undecoded) else { panic!("{seen:?} {undecoded}") };
    assert_eq!((idle.kind, idle.count), (CounterKind::Histogram, Some(0)));
    assert!(idle.value.is_nan() && idle.quantiles.is_empty(), "{idle:?}");
    // One that has the field does not lack it.
    let fields = [("quantiles", 18), ("sum", 18)];
    let payload = ["0.5=1.5", "x"].map(utf16z).concat();
    assert_eq!(meter("HistogramValuePublished", &fields, &payload), (vec![], 1));
}

#[test]
fn the_interval_of_meters_has_a_limit() {
    let mut described = 2u32.to_le_bytes().to_vec();
    for name in ["intervalStartTime", "intervalEndTime"] {
        described.extend(16u32.to_le_bytes());
        described.extend(utf16z(name));
    }
    let times = [i64::MIN, i64::MAX].map(i64::to_le_bytes).concat();
    let provider = "System.Diagnostics.Metrics";
    let bytes = assemble::v4_named(provider, 2, "CollectionStart", &described, &times);
    let mut tracker = CounterTracker::new();
    parse(&bytes, Order::Time, |item| {
        if let Item::Event(event) = item {
            assert!(event.field("intervalEndTime").is_some());
            assert_eq!(tracker.push(&event), None);
        }
    });
}

/// Two threads whose runs overlap: the mark on the second run says how far the first may go.
#[test]
fn runs_of_threads_are_merged_up_to_the_mark() {
    let fields = 0u32.to_le_bytes();
    let mut m = 1u32.to_le_bytes().to_vec();
    m.extend(utf16z("P"));
    m.extend(7u32.to_le_bytes());
    m.extend(utf16z("E"));
    m.extend([0; 16]);
    m.extend(fields);
    let stream = Stream::v4()
        .compressed("MetadataBlock", &blob(&[0x80, 0], &m))
        // A at 10, 15, 20; B at 12, 13, 14, 30.
        .compressed("EventBlock", &[0xc7, 1, 0, 1, 0, 1, 10, 0, 0, 5, 0, 5])
        .compressed("EventBlock", &[0xc7, 1, 0, 2, 0, 2, 12, 0, 0, 1, 0, 1, 0, 16]);
    let two_blocks = stream.0.len();
    let bytes = stream.compressed("EventBlock", &[0xc7, 1, 0, 3, 0, 3, 25, 0]).0;
    let mut parser = Parser::new(Options::new());
    parser.push(&bytes[..two_blocks]);
    let drain = |parser: &mut Parser| {
        let mut times = Vec::new();
        while let Some(event) = parser.next_event().unwrap() {
            times.push(event.header().ticks);
        }
        times
    };
    assert_eq!(drain(&mut parser), [10, 12], "B's mark is at 12");
    parser.push(&bytes[two_blocks..]);
    assert_eq!(drain(&mut parser), [13, 14, 15, 20, 25], "a mark at 25");
    parser.push(&[1]);
    assert_eq!(drain(&mut parser), [30]);
    assert!(parser.is_complete());
}

/// A source that gives a piece in each read. After the last one it has no data for now.
struct Pieces(std::vec::IntoIter<Vec<u8>>);

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let piece = self.0.next().ok_or(io::ErrorKind::WouldBlock)?;
        buf[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

/// The times of the events up to the end of the pieces.
fn available(reader: &mut Reader<Pieces>) -> Vec<i64> {
    let mut times = Vec::new();
    loop {
        match reader.next_event().map_err(|error| error.kind) {
            Ok(Some(event)) => times.push(event.header().ticks),
            Err(ErrorKind::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return times,
            Ok(None) | Err(_) => panic!("the stream is undamaged and has no end"),
        }
    }
}

/// Only the first event of its thread is sorted, and nothing follows that says more.
#[test]
fn the_last_events_of_an_idle_process_are_returned_by_a_flush() {
    let first =
        |flags: u8, thread: u8, time: u8| blob(&[flags, 1, 0, thread, 0, thread, time], &[0; 4]);
    let next = |delta: u8| vec![0, delta, 0, 0, 0, 0];
    let stream = Stream::v4()
        .compressed("MetadataBlock", &blob(&[0x80, 0], &number_type()))
        .compressed("EventBlock", &[first(0xc7, 9, 20), next(10), next(20)].concat())
        .compressed("EventBlock", &first(0x87, 8, 40));
    let batch = stream.0.len();
    let stream = stream.compressed("EventBlock", &first(0x87, 7, 70));
    let whole = stream.0.len();
    let stream = stream.compressed("EventBlock", &first(0x87, 6, 60));
    let second = stream.0.len();
    let bytes = stream.compressed("EventBlock", &first(0x87, 5, 65)).0;
    let middle = (whole + second) / 2;

    let mut reader = Reader::new(Pieces(vec![bytes[..batch].to_vec()].into_iter()));
    assert_eq!(available(&mut reader), [20]);
    assert_eq!(available(&mut reader), [0; 0], "nothing else has come");
    reader.flush();
    assert_eq!(available(&mut reader), [30, 40, 50]);

    // The rest of a block is on its way.
    reader.source_mut().0 = vec![bytes[batch..middle].to_vec()].into_iter();
    assert_eq!(available(&mut reader), [0; 0]);
    reader.flush();
    assert_eq!(available(&mut reader), [0; 0]);
    reader.source_mut().0 = vec![bytes[middle..second].to_vec()].into_iter();
    assert_eq!(available(&mut reader), [0; 0]);
    reader.flush();
    assert_eq!(available(&mut reader), [60, 70]);
    assert_eq!(reader.stats().early_flushes, 0);

    // An older event comes.
    reader.source_mut().0 = vec![bytes[second..].to_vec()].into_iter();
    assert_eq!(available(&mut reader), [0; 0]);
    reader.flush();
    assert_eq!(available(&mut reader), [65]);
    assert_eq!(reader.stats().early_flushes, 1);
}
