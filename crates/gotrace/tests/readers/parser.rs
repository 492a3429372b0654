//! Traces that are pushed in chunks, compared with the same traces read at once.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

use crate::common::{flip, flips, names, recorded, traces};
use gotrace::{Error, ErrorKind, Limits, Parser, Reader, Version};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fmt::Write;

/// The text of the events, and that of the first error.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    events: String,
    count: usize,
    error: Option<String>,
}

impl Outcome {
    fn push(&mut self, event: gotrace::Event<'_>) {
        writeln!(self.events, "{event}").unwrap();
        self.count += 1;
    }

    fn error(&mut self, error: &Error) {
        let twice = self.error.replace(format!("{error} {:?}", error.position()));
        assert_eq!(twice, None, "one error");
    }
}

fn read(trace: &[u8], limits: Limits) -> Outcome {
    let mut outcome = Outcome::default();
    let mut reader = match Reader::with_limits(trace, limits) {
        Ok(reader) => reader,
        Err(error) => {
            outcome.error(&error);
            return outcome;
        }
    };
    loop {
        match reader.next_event() {
            Ok(Some(event)) => outcome.push(event),
            Ok(None) => return outcome,
            Err(error) => outcome.error(&error),
        }
    }
}

/// Pulls all events that have arrived.
fn pull(parser: &mut Parser, outcome: &mut Outcome) {
    loop {
        match parser.next_event() {
            Ok(Some(event)) => outcome.push(event),
            Ok(None) => return,
            Err(error) => outcome.error(&error),
        }
    }
}

/// Pushes the trace in chunks of these sizes, over and over.
fn push(trace: &[u8], limits: Limits, sizes: &[usize]) -> Outcome {
    let mut parser = Parser::with_limits(limits);
    let mut outcome = Outcome::default();
    let mut rest = trace;
    for size in sizes.iter().cycle() {
        let chunk;
        (chunk, rest) = rest.split_at((*size).min(rest.len()));
        parser.push(chunk);
        pull(&mut parser, &mut outcome);
        if rest.is_empty() {
            break;
        }
    }
    parser.finish();
    pull(&mut parser, &mut outcome);
    parser.push(trace);
    pull(&mut parser, &mut outcome); // nothing follows the end
    outcome
}

#[test]
fn chunks_of_any_size_give_the_events_of_a_reader() {
    for (name, trace) in traces() {
        let expected = read(&trace, Limits::default());
        assert!(expected.count > 100 && expected.error.is_none(), "{name}");
        for size in [1000, 65_536, trace.len()] {
            assert_eq!(push(&trace, Limits::default(), &[size]), expected, "{name} by {size}");
        }
    }
    let trace = recorded("shop.trace");
    assert_eq!(push(&trace, Limits::default(), &[1]), read(&trace, Limits::default()));
}

#[test]
fn events_come_as_soon_as_their_generation_is_complete() {
    for name in ["go1.26-collections.trace.gz", "go1.25-mixed.trace.gz"] {
        let trace = recorded(name);
        let index = gotrace::Index::read(&trace[..]).unwrap();
        let ends: Vec<_> =
            index.generations().iter().map(|span| (span.offset + span.len) as usize).collect();
        assert!(ends.len() > 1, "{name}: several generations");
        let mut parser = Parser::new();
        let (mut pushed, mut generations) = (0, Vec::new());
        for chunk in trace.chunks(64) {
            parser.push(chunk);
            pushed += chunk.len();
            while let Some(event) = parser.next_event().unwrap() {
                let generation = event.generation();
                if generation != 0 && generations.last().is_none_or(|(last, _)| *last != generation)
                {
                    generations.push((generation, pushed));
                }
            }
        }
        assert_eq!(parser.version(), Some(index.version()));
        assert_eq!(parser.missing_generations(), 0);
        let explicit = index.version() >= Version::Go126;
        for ((_, pushed), end) in generations.iter().zip(&ends) {
            // Earlier versions say it by the first batch of the next generation.
            let latest = if explicit { end + 64 } else { end + 64 + (64 << 10) + 64 };
            assert!((*end..latest).contains(pushed), "{name}: {pushed} of {end}");
        }
        let known = if explicit { ends.len() } else { ends.len() - 1 };
        assert_eq!(generations.len(), known, "{name}: before the end of the trace is known");
    }
}

#[test]
fn nothing_comes_of_a_trace_of_go_1_21_before_its_end() {
    let trace = recorded("go1.21-mixed.trace.gz");
    let mut parser = Parser::new();
    parser.push(&trace);
    assert!(parser.next_event().unwrap().is_none());
    parser.finish();
    assert!(parser.next_event().unwrap().is_some());
    assert_eq!(parser.version(), Some(Version::Go121));
}

#[test]
fn held_bytes_are_bounded() {
    let limits = Limits { max_buffer: 20_000, ..Limits::default() };
    let mut refused = 0;
    for (name, trace) in traces() {
        let mut parser = Parser::with_limits(limits);
        let mut outcome = Outcome::default();
        for chunk in trace.chunks(777) {
            parser.push(chunk);
            pull(&mut parser, &mut outcome);
        }
        // A v1 trace is held as a whole.
        let held = gotrace::Index::read(&trace[..]).map_or(trace.len() as u64, |index| {
            index.generations().iter().map(|span| span.len).max().unwrap_or_default()
        });
        if held > 20_000 + 777 {
            let error = outcome.error.as_deref().unwrap_or_default();
            assert!(error.contains("max_buffer"), "{name}: {error}");
            refused += 1;
        }
    }
    assert!(refused > 5, "most are larger: {refused}");
}

#[test]
fn a_header_is_refused_as_soon_as_it_is_complete() {
    let mut parser = Parser::new();
    parser.push(b"go 1.99 trace\0\0");
    assert!(parser.next_event().unwrap().is_none());
    parser.push(b"\0");
    let error = parser.next_event().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnsupportedVersion(99)), "{error}");
    assert!(parser.next_event().unwrap().is_none(), "nothing follows an error");
    assert_eq!(parser.version(), None);

    let mut parser = Parser::new();
    parser.push(b"go 1.2");
    parser.finish();
    assert!(matches!(parser.next_event().unwrap_err().kind(), ErrorKind::NotATrace));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The events before the damage, and the error, do not depend on the chunks.
    #[test]
    fn damage_is_found_as_a_reader_finds_it(
        name in proptest::sample::select(names().collect::<Vec<_>>()),
        flips in flips(),
        cut in any::<Index>(),
        sizes in proptest::collection::vec(1_usize..200_000, 1..6),
    ) {
        let mut trace = recorded(name);
        flip(&mut trace, &flips[..flips.len().min(2)]);
        for trace in [&trace[..], &recorded(name)[..cut.index(trace.len())]] {
            let limits = Limits::default();
            prop_assert_eq!(push(trace, limits, &sizes), read(trace, limits), "{}", name);
        }
    }
}
