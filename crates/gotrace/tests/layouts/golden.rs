//! Recorded traces of every format against the text that Go's own reader gives of them.
//!
//! `data/README.md` says how the traces and the expected texts were made.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use flate2::read::GzDecoder;
use gotrace::{Reader, TextFormatter};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use testkit::digest;

struct Expected {
    name: String,
    accepted: bool,
    events: usize,
    digest: u64,
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn expected() -> Vec<Expected> {
    let table = std::fs::read_to_string(data().join("expected.tsv")).unwrap();
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().unwrap();
        Expected {
            name: cell().to_owned(),
            accepted: cell() == "ok",
            events: cell().parse().unwrap(),
            digest: u64::from_str_radix(cell(), 16).unwrap(),
        }
    })
    .collect()
}

/// The content of `data/{name}`, be it there as such or compressed.
fn load(name: &str) -> Option<Vec<u8>> {
    if let Ok(bytes) = std::fs::read(data().join(name)) {
        return Some(bytes);
    }
    let mut bytes = Vec::new();
    let file = File::open(data().join(format!("{name}.gz"))).ok()?;
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

/// Gives its bytes in pieces of other sizes each time.
struct Dribble<'a>(&'a [u8], usize);

impl Read for Dribble<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 % 997 + 13;
        let size = self.0.len().min(buf.len()).min(self.1);
        let (now, later) = self.0.split_at(size);
        buf[..size].copy_from_slice(now);
        self.0 = later;
        Ok(size)
    }
}

/// The text of all events, how many there are, and whether the end was reached.
fn read(input: impl Read) -> (String, usize, bool) {
    let (mut text, mut events) = (Vec::new(), 0);
    let mut formatter = TextFormatter::new();
    let mut ended = false;
    if let Ok(mut reader) = Reader::new(input) {
        ended = loop {
            match reader.next_event() {
                Ok(Some(event)) => {
                    formatter.append(event, &mut text);
                    text.push(b'\n');
                    events += 1;
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
    }
    (String::from_utf8(text).unwrap(), events, ended)
}

#[test]
fn all_formats_are_there() {
    let mut versions: Vec<u32> = expected()
        .iter()
        .map(|e| {
            let trace = load(&format!("{}.trace", e.name)).unwrap();
            std::str::from_utf8(&trace[5..7]).unwrap().parse().unwrap()
        })
        .collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions, [21, 22, 23, 25, 26]);
}

#[test]
fn events_are_those_of_the_reference() {
    for expected in expected() {
        let name = &expected.name;
        let trace = load(&format!("{name}.trace")).unwrap();
        let (text, events, accepted) = read(&trace[..]);
        if let Some(theirs) = load(&format!("{name}.events")) {
            let theirs = String::from_utf8(theirs).unwrap();
            for (number, (ours, theirs)) in text.lines().zip(theirs.lines()).enumerate() {
                assert_eq!(ours, theirs, "{name}, line {}", number + 1);
            }
            assert_eq!(text.len(), theirs.len(), "{name}: one of the texts is longer");
        }
        assert_eq!(accepted, expected.accepted, "{name}: the verdict");
        assert_eq!(events, expected.events, "{name}: the number of events");
        assert_eq!(digest::of(text.as_bytes()), expected.digest, "{name}: the digest of the text");
    }
}

#[test]
fn pieces_of_any_size_give_the_same_events() {
    for expected in expected() {
        let trace = load(&format!("{}.trace", expected.name)).unwrap();
        let (text, ..) = read(Dribble(&trace, 0));
        assert_eq!(digest::of(text.as_bytes()), expected.digest, "{}", expected.name);
    }
}

#[test]
fn owned_events_have_the_same_text() {
    for expected in expected() {
        let trace = load(&format!("{}.trace", expected.name)).unwrap();
        let mut text = String::new();
        for event in Reader::new(&trace[..]).unwrap() {
            writeln!(text, "{}", event.unwrap()).unwrap();
        }
        assert_eq!(digest::of(text.as_bytes()), expected.digest, "{}", expected.name);
    }
}

/// A trace that ends too early gives its whole generations, as the whole trace does. (Before
/// Go 1.26, whose traces mark the end of a generation, the last one may be read in part.)
#[test]
fn a_cut_trace_gives_the_events_before_the_cut() {
    for expected in expected() {
        let trace = load(&format!("{}.trace", expected.name)).unwrap();
        if !trace.starts_with(b"go 1.26") {
            continue;
        }
        let (whole, ..) = read(&trace[..]);
        for tenth in 1..10 {
            let (text, _, ended) = read(&trace[..trace.len() * tenth / 10]);
            assert!(!ended, "{}, {tenth}/10 is taken for all", expected.name);
            // The sync event at the end of a cut trace is not in the whole one.
            let kept = text.trim_end().rfind('\n').map_or(0, |end| end + 1);
            assert!(whole.starts_with(&text[..kept]), "{}, {tenth}/10", expected.name);
        }
    }
}
