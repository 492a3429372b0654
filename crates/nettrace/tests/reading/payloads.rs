//! Typed payloads of real events.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common;
use std::collections::BTreeMap;

use nettrace::{Event, FieldSource, FileTime, Options, Order, PayloadErrorKind, Reader, Value};

/// Every payload is exactly as long as its fields: the strongest check of the built-in manifest.
#[test]
fn fields_cover_every_payload_to_the_last_byte() {
    let mut files: Vec<_> = [Some(common::data()), common::more_captures()]
        .into_iter()
        .flatten()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "nettrace" || e == "netperf"))
        .collect();
    files.sort();
    let mut wrong = BTreeMap::new();
    let mut checked = 0;
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let options = Options::new().order(Order::Stream);
        let mut reader = Reader::with_options(&bytes[..], options);
        while let Ok(Some(event)) = reader.next_event() {
            let metadata = event.metadata();
            // Without fields there is nothing to check.
            if metadata.source == FieldSource::None {
                continue;
            }
            checked += 1;
            // `Flood` of our own workload declares an int and a long and writes two longs.
            if event.name() == "Flood" {
                let kind = PayloadErrorKind::Length { found: 16 };
                assert_eq!(event.check_payload().unwrap_err().kind, kind);
                assert_eq!((event.field("sequence"), event.payload().len()), (None, 16));
                continue;
            }
            let mut fields = event.fields();
            let read = fields.by_ref().filter(Result::is_ok).count();
            // NetPerf pads payloads to a multiple of four bytes. one-collect appends the mapping's
            // metadata to ProcessMapping without declaring it.
            let rest = match event.trace().unwrap().version {
                3 => fields.rest().len() / 4,
                6 if event.name() == "ProcessMapping" => 0,
                _ => fields.rest().len(),
            };
            if event.check_payload().is_err() || read != metadata.fields.len() || rest > 0 {
                let key = (metadata.provider.clone(), metadata.event_id, metadata.version);
                let what = format!("{read} of {} fields: {event:?}", metadata.fields.len());
                wrong.entry(key).or_insert(what);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 10_000, "{checked}");
}

/// What round `i` of the workload's mode `shapes` writes, and with which number `i` is found.
fn check_shape(event: &Event<'_>) -> i32 {
    let Ok(fields) = event.fields().collect::<Result<Vec<_>, _>>() else { panic!("{event:?}") };
    let text = |name: &str| event.field(name).unwrap().to_string();
    let number = |name: &str| event.field(name).unwrap().as_i64().unwrap() as i32;
    match event.name() {
        "Declared" | "Anonymous" => {
            let i = match fields[0] {
                ("a" | "A", Value::I32(i)) => i,
                other => panic!("{other:?}"),
            };
            assert_eq!(fields[1].1, Value::Bool(i % 2 == 0));
            assert_eq!(fields[2].1.to_string(), format!("c{i}"));
            assert_eq!((fields[3].1, fields.len()), (Value::I32(-i), 4));
            i
        }
        "Price" => {
            let i = text("name").strip_prefix('p').unwrap().parse().unwrap();
            assert_eq!(event.field("amount"), Some(Value::F64(f64::from(i) * 0.25)));
            i
        }
        "Money" => {
            let Value::F64(amount) = fields[0].1 else { panic!("{event:?}") };
            let i = (amount * -2.0) as i32;
            assert_eq!(event.field("Paid"), Some(Value::Bool(i % 3 == 0)));
            assert_eq!(event.field("T"), Some(Value::DateTime(FileTime(132_567_987_060_000_000))));
            assert_eq!(text("T"), "2021-02-03T04:05:06.0000000Z");
            i
        }
        "Ambiguous" => {
            assert_eq!((text("A"), text("B")), ("true".into(), "false".into()));
            assert_eq!((number("I"), text("S")), (0x10000, "".into()));
            assert_eq!((text("T"), text("V")), ("xyz".into(), "pq".into()));
            number("J") >> 16
        }
        "Flags" => {
            let i = number("d");
            assert_eq!(event.field("a"), Some(Value::Bool(i % 2 == 0)));
            assert_eq!(event.field("b"), Some(Value::Bool(i % 3 == 0)));
            assert_eq!(text("c"), format!("f{i}"));
            i
        }
        // Arrays of booleans in an object: no runtime describes them.
        "Inner" => {
            assert_eq!(event.metadata().source, FieldSource::None);
            i32::from_le_bytes(*event.payload().first_chunk().unwrap())
        }
        "RequestStart" | "RequestStop" => 0,
        other => panic!("{other}"),
    }
}

#[test]
fn bool_and_decimal_of_self_describing_events_have_the_written_values() {
    for runtime in ["t31", "t9", "t10"] {
        let file = common::data().join(format!("{runtime}-shapes.nettrace"));
        let bytes = std::fs::read(&file).unwrap();
        let mut reader = Reader::new(&bytes[..]);
        let mut rounds: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        while let Some(event) = reader.next_event().unwrap() {
            // The runtime itself says what the process is.
            if !event.provider().starts_with("Triscope-") {
                continue;
            }
            rounds.entry(event.name().into()).or_default().push(check_shape(&event));
        }
        for name in ["Declared", "Anonymous", "Price", "Money", "Ambiguous", "Flags", "Inner"] {
            let rounds = &rounds[name];
            assert!(rounds.len() > 10, "{runtime} {name}: {}", rounds.len());
            assert!(rounds.windows(2).all(|pair| pair[1] == pair[0] + 1), "{runtime} {name}");
        }
    }
}
