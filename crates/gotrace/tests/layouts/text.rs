//! Events as text, compared with what Go prints.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use gotrace::bstr::BStr;
use gotrace::raw::TextToWire;
use gotrace::{Event, OwnedEvent, Reader, TextFormatter};
use std::collections::BTreeSet;

const KINDS: &str = include_str!("../data/text/kinds.trace.txt");
const KINDS_EVENTS: &[u8] = include_bytes!("../data/text/kinds.events");

fn kinds() -> Vec<OwnedEvent> {
    let wire = TextToWire::new(KINDS.as_bytes()).unwrap();
    Reader::new(wire).unwrap().collect::<Result<_, _>>().unwrap()
}

fn text<'a>(formatter: &mut TextFormatter, events: impl Iterator<Item = Event<'a>>) -> Vec<u8> {
    let mut text = Vec::new();
    for event in events {
        formatter.append(event, &mut text);
        text.push(b'\n');
    }
    text
}

#[test]
fn every_kind_prints_as_in_go() {
    let events = kinds();
    let kinds: BTreeSet<_> = events.iter().map(|event| event.as_event().kind()).collect();
    assert_eq!(kinds.len(), gotrace::EventKind::ALL.len(), "the fixture has every kind");
    let text = text(&mut TextFormatter::new(), events.iter().map(OwnedEvent::as_event));
    for (ours, theirs) in text.split(|b| *b == b'\n').zip(KINDS_EVENTS.split(|b| *b == b'\n')) {
        assert_eq!(BStr::new(ours), BStr::new(theirs));
    }
    assert_eq!(text.len(), KINDS_EVENTS.len());
}

#[test]
fn one_formatter_serves_traces_in_turn() {
    // The same identifiers stand for other stacks in the other trace.
    let other = KINDS.replace("func=1 file=2 line=17", "func=2 file=1 line=18");
    let other: Vec<OwnedEvent> = Reader::new(TextToWire::new(other.as_bytes()).unwrap())
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let events = kinds();
    let mut one = TextFormatter::new();
    for (a, b) in events.iter().zip(&other) {
        for event in [a, b, a] {
            let event = event.as_event();
            let fresh = text(&mut TextFormatter::new(), [event].into_iter());
            assert_eq!(text(&mut one, [event].into_iter()), fresh);
        }
    }
}

#[test]
fn display_is_the_same_text_where_it_is_utf8() {
    let all: String = kinds().iter().map(|event| format!("{event}\n")).collect();
    assert_eq!(all, String::from_utf8_lossy(KINDS_EVENTS));
}

#[test]
fn a_stack_prints_as_in_go() {
    let events = kinds();
    let sample = events.iter().find(|e| e.as_event().kind() == gotrace::EventKind::StackSample);
    assert_eq!(
        sample.unwrap().as_event().stack().unwrap().to_string(),
        "main.main @ 0x1234\n\t/src/main.go:17\nmain.(*T[...]).f\u{fffd} @ 0xffffffffffffffff\n\
         \t/src/b\u{fffd}.go:18446744073709551615\n"
    );
}

#[test]
fn debug_shows_what_the_accessors_give() {
    let events = kinds();
    let shown = |kind: &str| {
        let event = events.iter().find(|e| e.as_event().kind().name() == kind).unwrap();
        format!("{event:?}")
    };
    let transition = shown("StateTransition");
    assert!(transition.starts_with("Event { kind: StateTransition, time: "), "{transition}");
    assert!(transition.contains("resource: Proc(ProcId(0))"), "{transition}");
    assert!(shown("Log").contains("category: \"k\""));
    assert!(shown("StackSample").contains("function: \"main.main\""));
    assert!(shown("RangeEnd").contains("range_attributes: []"));
    assert!(shown("Sync").contains("wall_seconds: 1700000000"));
}

#[test]
fn wall_clocks_print_as_in_go() {
    // What Go 1.27.3 prints for these (seconds, nanoseconds), with TZ=UTC.
    for (seconds, nanos, text) in [
        ("0", "0", "1970-01-01T00:00:00Z"),
        ("951782400", "0", "2000-02-29T00:00:00Z"),
        ("4107542399", "999999999", "2100-02-28T23:59:59.999999999Z"),
        ("4107542400", "1", "2100-03-01T00:00:00.000000001Z"),
        ("1700000000", "120000000", "2023-11-14T22:13:20.12Z"),
        ("253402300800", "0", "10000-01-01T00:00:00Z"),
        ("18446743983473752216", "0", "-0890-07-18T04:10:00Z"),
        ("9223372036854775807", "0", "292277026596-12-04T15:30:07Z"),
        ("9223372036854775808", "500", "292277026596-12-04T15:30:08.0000005Z"),
    ] {
        let trace = KINDS.replace(
            "size=19\nSync\nFrequency freq=15625000\nClockSnapshot dt=5 mono=6700 sec=1700000000 \
             nsec=120000000",
            &format!(
                "size={}\nSync\nFrequency freq=15625000\nClockSnapshot dt=5 mono=6700 \
                 sec={seconds} nsec={nanos}",
                10 + uvarint_len(seconds) + uvarint_len(nanos)
            ),
        );
        let mut reader = Reader::new(TextToWire::new(trace.as_bytes()).unwrap()).unwrap();
        let event = reader.next_event().unwrap().unwrap();
        let shown = event.to_string();
        assert_eq!(shown.split_once("Wall=").unwrap().1, text, "{seconds}.{nanos}");
    }
}

fn uvarint_len(value: &str) -> usize {
    let value: u64 = value.parse().unwrap();
    (1..10).find(|n| value >> (7 * n) == 0).unwrap_or(10)
}
