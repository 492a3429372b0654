//! The wire-level layer: bytes to text to bytes, and what it refuses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use gotrace::bstr::ByteSlice;
use gotrace::raw::{
    Event, Expectation, OwnedEvent, Reader, TestFile, TextReader, TextToWire, TextWriter, Writer,
};
use gotrace::{Error, ErrorKind, EventType, Limits, Version};
use proptest::prelude::*;
use std::io::{self, Read};

const KINDS: &str = include_str!("../data/text/kinds.trace.txt");

fn wire(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    TextToWire::new(text.as_bytes()).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The events that a reader gives, and the error that ends them.
fn read_all(source: impl Read) -> (Vec<OwnedEvent>, Option<Error>) {
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut events = Vec::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) => events.push(event.to_owned()),
            Ok(None) => return (events, None),
            Err(error) => {
                assert!(matches!(reader.next_event(), Ok(None)), "nothing comes behind an error");
                return (events, Some(error));
            }
        }
    }
}

fn read_text(text: &[u8]) -> (Vec<OwnedEvent>, Option<Error>) {
    let mut reader = match TextReader::new(text) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut events = Vec::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) => events.push(event.to_owned()),
            Ok(None) => return (events, None),
            Err(error) => return (events, Some(error)),
        }
    }
}

fn to_text(version: Version, events: &[OwnedEvent]) -> Vec<u8> {
    let mut writer = TextWriter::new(Vec::new(), version).unwrap();
    for event in events {
        writer.write_event(event.as_event()).unwrap();
    }
    writer.into_inner()
}

fn to_wire(version: Version, events: &[OwnedEvent]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), version).unwrap();
    for event in events {
        writer.write_event(event.as_event()).unwrap();
    }
    writer.into_inner()
}

/// Gives one byte at a time, and is interrupted between them.
struct Trickle<'a>(&'a [u8], bool);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = out.len().min(1);
        self.0.read(&mut out[..len])
    }
}

#[test]
fn text_becomes_bytes_and_the_same_text_again() {
    let bytes = wire(KINDS);
    let (events, error) = read_all(&bytes[..]);
    assert!(error.is_none());
    assert_eq!(to_text(Version::Go126, &events).as_bstr(), KINDS);
    assert_eq!(to_wire(Version::Go126, &events), bytes);
    let size: usize = events.iter().map(|event| event.as_event().encoded_size()).sum();
    assert_eq!(size + Version::HEADER_LEN, bytes.len());
    let (trickled, error) = read_all(Trickle(&bytes, false));
    assert!(error.is_none());
    assert_eq!(trickled, events);
}

#[test]
fn a_cut_trace_is_an_error_at_the_cut_but_between_events() {
    let bytes = wire(KINDS);
    let (events, _) = read_all(&bytes[..]);
    let mut ends = vec![Version::HEADER_LEN];
    for event in &events {
        ends.push(ends[ends.len() - 1] + event.as_event().encoded_size());
    }
    for cut in 0..bytes.len() {
        let (read, error) = read_all(&bytes[..cut]);
        let whole = ends.iter().take_while(|end| **end <= cut).count().saturating_sub(1);
        assert_eq!(read, events[..whole], "cut at {cut}");
        match error {
            None => assert!(ends.contains(&cut), "cut at {cut} without an error"),
            Some(error) if cut < Version::HEADER_LEN => {
                assert!(matches!(error.kind(), ErrorKind::NotATrace));
            }
            Some(error) => {
                assert!(!ends.contains(&cut), "cut at {cut}: {error}");
                assert!(matches!(error.kind(), ErrorKind::Malformed { .. }), "{error}");
                assert_eq!(error.position().offset, cut as u64);
                assert_eq!(error.position().event, Some(events[whole].ty));
            }
        }
    }
}

/// A trace of this version with these bytes behind its header.
fn trace(version: Version, body: &[u8]) -> Vec<u8> {
    [&version.header(), body].concat()
}

#[test]
fn unknown_event_types_are_refused_by_version() {
    let kind = |version, body: &[u8]| {
        let (events, error) = read_all(&trace(version, body)[..]);
        (events.len(), error.map(|error| error.kind().to_string()))
    };
    let invalid = |n: usize, ty: u8| (n, Some(format!("invalid event type {ty}")));
    // Each version has its own set of types; Go 1.26 lets unused numbers pass.
    assert_eq!(kind(Version::Go122, &[2, 45, 1, 1, 1]), invalid(1, 45));
    assert_eq!(kind(Version::Go123, &[45, 1, 1, 1, 50]), invalid(1, 50));
    assert_eq!(kind(Version::Go125, &[50, 52]), invalid(1, 52));
    assert_eq!(kind(Version::Go126, &[52, 53, 127, 128, 0, 0, 0, 0]), (4, None));
    assert_eq!(kind(Version::Go126, &[137]), invalid(0, 137));
    assert_eq!(kind(Version::Go126, &[0]), invalid(0, 0));
    // Of format v1 there is a header, but no events.
    assert_eq!(kind(Version::Go121, &[]), (0, None));
    assert_eq!(kind(Version::Go119, &[2]), invalid(0, 2));
    // A number of frames or a length of data that is negative in Go counts as none.
    let negative = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let stack = [&[3, 7][..], &negative].concat();
    assert_eq!(kind(Version::Go122, &stack), (1, None));
    let string = [&[5, 7][..], &negative].concat();
    assert_eq!(kind(Version::Go122, &string), (1, None));
    let overflow = [&[8][..], &[0xff; 9], &[2]].concat();
    let message = "an argument: variable-length integer overflows 64 bits".to_owned();
    assert_eq!(kind(Version::Go122, &overflow), (0, Some(message)));
}

#[test]
fn lengths_are_not_believed() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for start in [&[3, 7][..], &[5, 7], &[49, 1, 1, 1, 1]] {
        let body = [start, &huge, &[0; 100]].concat();
        let (events, error) = read_all(&trace(Version::Go126, &body)[..]);
        assert!(events.is_empty());
        let error = error.unwrap();
        assert!(matches!(error.kind(), ErrorKind::Limit { .. }), "{error}");
        assert_eq!(error.position().offset, 16);
    }
    // What fits in the limits is read, what does not is refused, not cut.
    let mut body = vec![5, 7, 0xe8, 0x07];
    body.extend([b'x'; 1000]);
    let bytes = trace(Version::Go126, &body);
    let read = |max_buffer| {
        let limits = Limits { max_buffer, ..Limits::default() };
        Reader::with_limits(&bytes[..], limits).unwrap().next_event().map(|e| e.is_some())
    };
    assert!(read(1004).unwrap());
    assert!(matches!(read(1003).unwrap_err().kind(), ErrorKind::Limit { limit: 1003, .. }));
}

#[test]
fn texts_that_go_refuses() {
    // Each after "Trace Go1.26": the line of the error and a part of the message.
    for (text, line, message) in [
        ("NoSuchEvent dt=1", 2, "has no event \"NoSuchEvent\""),
        ("\n\n # comment\nGoStart dt=1 g=2", 5, "expected the argument \"g_seq\", found \"\""),
        ("GoStart dt=1 g_seq=2 g=2", 2, "expected the argument \"g\", found \"g_seq=2\""),
        ("GoStart dt=1 g=2 g_seq=+3", 2, "g_seq is \"+3\", not an integer"),
        ("GoStart dt=1 g=2 g_seq=", 2, "not an integer"),
        ("GoStart dt=1 g=2 g_seq=1_0", 2, "not an integer"),
        ("GoStart dt=1 g=2 g_seq=18446744073709551616", 2, "not an integer"),
        ("GoStart dt=1 g=2 g_seq = 3", 2, "found \"g_seq\""),
        ("ProcStop dt=1 x=1", 2, "unexpected \"x=1\""),
        ("ProcStop dt=1 # comment", 2, "unexpected \"# comment\""),
        ("Stack id=1 nframes=1", 2, "a frame of the stack is missing"),
        ("Stack id=1 nframes=1\nSync", 3, "expected the argument \"pc\""),
        ("Stack id=1 nframes=1\n\tpc=1 func=2 file=3 line=4 x", 3, "unexpected \"x\""),
        ("String id=1", 2, "a line \"data=…\" is missing"),
        ("String id=1\n\tdata=x", 3, "expected data=\"…\""),
        ("String id=1\n\tdata=\"\\q\"", 3, "expected data=\"…\""),
        ("String id=1\n\tdatum=\"\"", 3, "expected data=\"…\""),
        ("String id=1\nSync", 3, "expected data=\"…\""),
        ("\u{1b}[31m", 2, "has no event \"\\x1b[31m\""),
    ] {
        let (_, error) = read_text(format!("Trace Go1.26\n{text}\n").as_bytes());
        let error = error.expect(text);
        let ErrorKind::Text { line: at, message: found } = error.kind() else {
            panic!("{text:?}: {error}");
        };
        assert_eq!(*at, line, "{text:?}: {error}");
        assert!(found.contains(message), "{text:?}: {error}");
    }
    for header in ["", "\n\n", "Trace", "Trace 1.26", "trace Go1.26", "Trace Go1.26 x", "Go1.26"] {
        let (_, error) = read_text(header.as_bytes());
        let error = error.expect(header);
        assert!(matches!(error.kind(), ErrorKind::Text { .. }), "{error}");
    }
    let (_, error) = read_text(b"Trace Go1.24\n");
    assert!(matches!(error.unwrap().kind(), ErrorKind::UnsupportedVersion(24)));
}

#[test]
fn texts_that_go_reads() {
    // White space is Unicode's; a carriage return ends a line too; data may be of any literal.
    let text = "\n#!\n  Trace\tGo1.026 \r\n\u{a0}GoStart\u{2003}dt=01  g=2\tg_seq=3\u{85}\r\n\
                String id=1\n\n# between\n data = `a\"b` \nString id=2\ndata='x'\nEndOfGeneration";
    let (events, error) = read_text(text.as_bytes());
    assert!(error.is_none(), "{error:?}");
    let shown: Vec<String> = events.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "GoStart dt=1 g=2 g_seq=3",
            "String id=1\n\tdata=\"a\\\"b\"",
            "String id=2\n\tdata=\"x\"",
            "EndOfGeneration"
        ]
    );
    // Longer than Go's reader takes.
    let long = format!("Trace Go1.22\nString id=1\n\tdata=\"{}\"\n", "y".repeat(100_000));
    let (events, error) = read_text(long.as_bytes());
    assert!(error.is_none());
    assert_eq!(events[0].data.as_ref().unwrap().len(), 100_000);
}

#[test]
fn an_empty_string_survives_text() {
    let bytes = trace(Version::Go122, &[5, 1, 0, 5, 2, 1, b'x']);
    let (events, _) = read_all(&bytes[..]);
    assert_eq!(events[0].to_string(), "String id=1", "as Go prints it");
    let text = to_text(Version::Go122, &events);
    assert_eq!(wire(text.to_str().unwrap()), bytes);
}

#[test]
fn text_errors_come_behind_the_bytes_before_them() {
    let text = "Trace Go1.22\nSTWEnd dt=1\nSTWEnd\n";
    let mut wire = TextToWire::new(text.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let error = wire.read_to_end(&mut bytes).unwrap_err();
    assert_eq!(bytes, trace(Version::Go122, &[27, 1]));
    let error = error.into_inner().unwrap().downcast::<Error>().unwrap();
    assert!(error.to_string().starts_with("line 3: STWEnd: expected the argument \"dt\""));
}

#[test]
fn writers_refuse_what_cannot_be_read() {
    let event = |version, ty, args| Event { version, ty, args, data: None };
    let refused = |event: Event<'_>| {
        let mut writer = Writer::new(Vec::new(), Version::Go122).unwrap();
        let message = writer.write_event(event).unwrap_err().to_string();
        assert_eq!(writer.into_inner(), Version::Go122.header());
        message
    };
    use EventType as T;
    assert_eq!(
        refused(event(Version::Go123, T::STW_END, &[1])),
        "an event of Go 1.23 does not belong in a trace of Go 1.22"
    );
    assert_eq!(refused(event(Version::Go122, T::SYNC, &[])), "Go 1.22 has no event Sync");
    assert_eq!(refused(event(Version::Go122, T(0), &[])), "Go 1.22 has no event Invalid(0)");
    assert_eq!(refused(event(Version::Go122, T::STW_END, &[])), "STWEnd with 0 arguments");
    assert_eq!(refused(event(Version::Go122, T::STW_END, &[1, 2])), "STWEnd with 2 arguments");
    assert_eq!(
        refused(event(Version::Go122, T::STACK, &[1, 1, 0, 0, 0])),
        "Stack with 5 arguments"
    );
    let mut writer = TextWriter::new(Vec::new(), Version::Go126).unwrap();
    let unnamed = event(Version::Go126, T(60), &[]);
    assert_eq!(
        writer.write_event(unnamed).unwrap_err().to_string(),
        "Go 1.26 has no event Invalid(60)"
    );
}

#[test]
fn tests_of_traces() {
    let parse = |text: &'static str| TestFile::parse(text.as_bytes());
    let test = parse("a comment\n-- expect --\nSUCCESS\n-- trace --\nTrace Go1.22\nX").unwrap();
    assert_eq!(*test.expectation(), Expectation::Success);
    assert_eq!(test.text(), "Trace Go1.22\nX");
    // Lines count from the start of the file.
    let error = test.to_text_reader().unwrap().next_event().unwrap_err();
    assert_eq!(error.to_string(), "line 6: Go 1.22 has no event \"X\" (at byte 56)");

    let test = parse("-- expect --\nFAILURE `a.*\"b\"`\r\n-- trace --\n").unwrap();
    assert_eq!(*test.expectation(), Expectation::Failure("a.*\"b\"".into()));
    assert!(test.to_wire().is_err());
    let empty = parse("-- expect --\n--  trace  --").unwrap();
    assert_eq!(*empty.expectation(), Expectation::Success);

    for (text, message) in [
        ("", "line 1: expected \"-- expect --\""),
        ("-- trace --\n", "line 1: expected \"-- expect --\""),
        ("-- expect --\nSUCCESS\n", "line 2: expected \"-- trace --\""),
        ("-- expect --\n-- trace --\n-- more --\n", "line 4: a third file"),
        ("-- expect --\nfailure\n-- trace --\n", "line 2: expected SUCCESS or FAILURE"),
        ("-- expect --\nFAILURE x\n-- trace --\n", "line 2: expected SUCCESS or FAILURE"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{text:?}: {error}");
    }
}

fn any_version() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![Version::Go122, Version::Go123, Version::Go125, Version::Go126])
}

/// Integers of every encoded length.
fn any_integer() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
}

fn any_event(version: Version) -> impl Strategy<Value = OwnedEvent> {
    let types: Vec<EventType> =
        (1..=255).map(EventType).filter(|ty| version.spec(*ty).is_some()).collect();
    prop::sample::select(types).prop_flat_map(move |ty| {
        let spec = version.spec(ty).unwrap();
        let frames = if spec.is_stack { 0..20usize } else { 0..1 };
        (frames, any::<Option<Vec<u8>>>()).prop_flat_map(move |(frames, data)| {
            let count = spec.args.len() + 4 * frames;
            prop::collection::vec(any_integer(), count).prop_map(move |mut args| {
                if spec.is_stack {
                    args[1] = frames as u64;
                }
                let data = if spec.has_data { data.clone() } else { None };
                OwnedEvent { version, ty, args, data: data.filter(|data| !data.is_empty()) }
            })
        })
    })
}

fn any_trace() -> impl Strategy<Value = (Version, Vec<OwnedEvent>)> {
    any_version()
        .prop_flat_map(|version| (Just(version), prop::collection::vec(any_event(version), 0..50)))
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_again((version, events) in any_trace()) {
        let bytes = to_wire(version, &events);
        let (read, error) = read_all(&bytes[..]);
        prop_assert!(error.is_none());
        prop_assert_eq!(&read, &events);
        let size: usize = events.iter().map(|event| event.as_event().encoded_size()).sum();
        prop_assert_eq!(size + Version::HEADER_LEN, bytes.len());

        let text = to_text(version, &events);
        prop_assert_eq!(wire(text.to_str().unwrap()), bytes);
    }

    #[test]
    fn any_bytes_are_read_or_refused(version in any_version(), body: Vec<u8>) {
        let bytes = trace(version, &body);
        let (events, error) = read_all(&bytes[..]);
        let (trickled, trickled_error) = read_all(Trickle(&bytes, false));
        prop_assert_eq!(&trickled, &events);
        prop_assert_eq!(
            trickled_error.map(|error| error.to_string()),
            error.map(|error| error.to_string())
        );
        let _ = read_all(&body[..]);
    }

    #[test]
    fn any_text_is_read_or_refused(text: Vec<u8>, place in any::<prop::sample::Index>(), len in 0usize..40) {
        let _ = read_text(&text);
        let _ = TestFile::parse(&text);
        // Damage in the middle of a good trace.
        let start = place.index(KINDS.len());
        let end = (start + len).min(KINDS.len());
        let damaged = [&KINDS.as_bytes()[..start], &text, &KINDS.as_bytes()[end..]].concat();
        let (events, _) = read_text(&damaged);
        for event in events {
            prop_assert!(event.as_event().append_wire(&mut Vec::new()).is_ok());
        }
    }
}
