//! Generations of a trace: found without decoding, read by range, cut out as traces.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use crate::common::{Assembler, V2, batches, recorded};
use gotrace::{
    ErrorKind, EventKind, EventType, Generations, Index, Limits, Reader, Timestamp, Version,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};

/// Number of events of each generation, and the times of the first and the last event.
fn read(input: impl Read) -> BTreeMap<u64, (u64, Timestamp, Timestamp)> {
    let mut generations = BTreeMap::new();
    let mut reader = Reader::new(input).unwrap();
    while let Some(event) = reader.next_event().unwrap() {
        if event.generation() != 0 {
            let first = (0, event.time(), event.time());
            let (count, _, last) = generations.entry(event.generation()).or_insert(first);
            (*count, *last) = (*count + 1, event.time());
        }
    }
    generations
}

#[test]
fn the_index_has_the_generations_that_the_reader_returns() {
    let mut several = 0;
    for name in V2 {
        let trace = recorded(name);
        let index = Index::read(&trace[..]).unwrap();
        assert!(index.damage().is_none(), "{name}: {:?}", index.damage());
        let events = read(&trace[..]);
        let numbers: Vec<u64> = index.generations().iter().map(|span| span.number).collect();
        assert_eq!(numbers, events.keys().copied().collect::<Vec<_>>(), "{name}");
        several += usize::from(numbers.len() > 1);
        let mut end = Version::HEADER_LEN as u64;
        let mut previous = None;
        for span in index.generations() {
            assert_eq!(span.offset, end, "{name}: generations follow each other");
            end += span.len;
            let (count, first, last) = events[&span.number];
            // The reader returns strictly ascending times, and generations overlap.
            let ascending = previous.map_or(span.first, |time| span.first.max(time));
            assert!((0..2).contains(&(first.nanos() - ascending.nanos())), "{name}: {span:?}");
            let clamped = last.nanos() - span.last.nanos();
            assert!((0..count as i64).contains(&clamped), "{name}: {span:?}, {last}");
            previous = Some(last);
        }
        assert_eq!(end, trace.len() as u64, "{name}");
    }
    assert!(several >= 4, "{several} traces have several generations");
}

#[test]
fn a_range_of_generations_has_the_same_events_alone() {
    for name in V2 {
        let trace = recorded(name);
        let index = Index::read(&trace[..]).unwrap();
        let all = read(&trace[..]);
        for start in 0..index.generations().len() {
            for end in start + 1..=index.generations().len() {
                let mut part = Vec::new();
                let len = index.copy(Cursor::new(&trace), start..end, &mut part).unwrap();
                assert_eq!(len, part.len() as u64);
                let alone = read(&part[..]);
                let spans = &index.generations()[start..end];
                assert_eq!(alone.len(), spans.len());
                for span in spans {
                    assert_eq!(alone[&span.number].0, all[&span.number].0, "{name}: {span:?}");
                }
                // `open` returns the same events.
                let mut opened = index.open(Cursor::new(&trace), start..end).unwrap();
                let mut copied = Reader::new(&part[..]).unwrap();
                while let Some(event) = copied.next_event().unwrap() {
                    let expected = event.to_string();
                    assert_eq!(opened.next_event().unwrap().unwrap().to_string(), expected);
                }
                assert!(opened.next_event().unwrap().is_none());
            }
        }
    }
}

#[test]
fn a_range_of_time_selects_the_generations_that_overlap() {
    let trace = recorded("go1.26-collections.trace.gz");
    let index = Index::read(&trace[..]).unwrap();
    let spans = index.generations();
    assert!(spans.len() > 1, "{}", spans.len());
    let nanos = Timestamp::from_nanos;
    assert_eq!(index.select(nanos(i64::MIN), nanos(i64::MAX)), 0..spans.len());
    assert_eq!(index.select(nanos(0), nanos(spans[0].first.nanos() - 1)), 0..0);
    assert!(index.select(spans[1].first, spans[1].first).contains(&1));
    let middle = index.select(spans[1].last, spans[1].last);
    assert!(middle.contains(&1) && !middle.contains(&0), "{middle:?}: {spans:?}");
}

/// Fails if anything before an offset is read after seeking to it.
struct Guarded(Cursor<Vec<u8>>, u64);

impl Read for Guarded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        assert!(self.0.position() >= self.1, "reads the rest of the trace");
        self.0.read(out)
    }
}

impl io::Seek for Guarded {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn a_range_is_read_without_the_generations_before_it() {
    let trace = recorded("go1.26-collections.trace.gz");
    let index = Index::read(&trace[..]).unwrap();
    let last = *index.generations().last().unwrap();
    let count = index.generations().len();
    let input = Guarded(Cursor::new(trace), last.offset);
    let mut reader = index.open(input, count - 1..count).unwrap();
    let first = reader.next_event().unwrap().unwrap();
    assert_eq!((first.kind(), first.time()), (EventKind::Sync, last.first));
}

/// A program that is killed leaves a trace that ends with a batch.
#[test]
fn damage_ends_the_index_and_has_its_place() {
    for name in ["go1.22-mixed.trace.gz", "go1.25-mixed.trace.gz", "go1.26-mixed.trace.gz"] {
        let trace = recorded(name);
        let whole = Index::read(&trace[..]).unwrap();
        let mut complete = 0;
        let ends = batches(&trace).into_iter().map(|batch| batch.range.end);
        for len in (16..trace.len()).step_by(trace.len() / 50).chain(ends) {
            let index = Index::read(&trace[..len]).unwrap();
            let inside: Vec<_> = whole
                .generations()
                .iter()
                .copied()
                .filter(|span| span.offset + span.len <= len as u64)
                .collect();
            assert_eq!(index.generations(), inside, "{name} {len}");
            complete += inside.len();
            let end = inside.last().map_or(0, |span| span.offset + span.len);
            let damage = index.damage().map(|error| error.position().offset);
            assert!(damage <= Some(len as u64));
            assert_eq!(damage.is_none(), end == len as u64, "{name} {len}");
        }
        assert!(complete > 0 || whole.generations().len() == 1);
    }
    let error = Index::read(&recorded("go1.21-mixed.trace.gz")[..]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoGenerations(_)), "{error}");
}

/// Damage at the start of a generation leaves the one before it.
#[test]
fn generations_before_damage_are_in_the_index() {
    for name in ["go1.22-mixed.trace.gz", "go1.25-mixed.trace.gz", "go1.26-collections.trace.gz"] {
        let trace = recorded(name);
        let whole = Index::read(&trace[..]).unwrap();
        let spans = whole.generations();
        assert!(spans.len() > 1, "{name}");
        for (count, span) in spans.iter().enumerate().skip(1) {
            let mut damaged = trace.clone();
            damaged[span.offset as usize] = 0xff;
            let index = Index::read(&damaged[..]).unwrap();
            assert_eq!(index.generations(), &spans[..count], "{name}");
            let damage = index.damage().unwrap();
            assert!(matches!(damage.kind(), ErrorKind::NotABatch(_)), "{name}: {damage}");
            assert_eq!(damage.position().offset, span.offset, "{name}");
        }
    }
}

/// Full buffers of strings come early. The runtime ends a generation with its stacks and the rest of
/// the strings.
#[test]
fn strings_alone_do_not_end_a_generation() {
    let mut trace = Assembler::new(22);
    let is_complete = |trace: &Assembler| {
        let index = Index::read(&trace.0[..]).unwrap();
        let damage = index.damage().map(gotrace::Error::kind);
        assert!(matches!(damage, None | Some(ErrorKind::IncompleteGeneration)), "{damage:?}");
        assert_eq!(index.generations().len(), usize::from(damage.is_none()));
        damage.is_none()
    };
    let table = |trace: &mut Assembler, ty: EventType| {
        trace.batch(1, u64::MAX, 1, &[(ty.0, &[])]);
        is_complete(trace)
    };
    trace.frequency(1);
    assert!(!is_complete(&trace));
    trace.batch(1, 1, 1, &[(13, &[1, 0, 2])]);
    assert!(!is_complete(&trace));
    assert!(!table(&mut trace, EventType::STRINGS));
    assert!(!table(&mut trace, EventType::CPU_SAMPLES));
    assert!(!table(&mut trace, EventType::STACKS));
    assert!(table(&mut trace, EventType::STRINGS));
    assert!(table(&mut trace, EventType::STRINGS));
    // Not all stacks were there.
    assert!(!table(&mut trace, EventType::STACKS));
    assert!(table(&mut trace, EventType::STRINGS));
}

#[test]
fn a_range_that_is_not_of_the_index_is_not_copied() {
    for name in ["go1.25-mixed.trace.gz", "go1.26-collections.trace.gz"] {
        let trace = recorded(name);
        let index = Index::read(&trace[..]).unwrap();
        let count = index.generations().len();
        for range in [0..0, 1..1, count..count, count..count + 1, 0..count + 1] {
            let mut part = Vec::new();
            let error = index.copy(Cursor::new(&trace), range.clone(), &mut part).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{range:?}: {error}");
            assert!(part.is_empty(), "{range:?}");
            let mut reader = index.open(Cursor::new(&trace), range.clone()).unwrap();
            let error = reader.find_map(Result::err).unwrap();
            let kind = error.kind();
            let is_expected =
                matches!(kind, ErrorKind::IncompleteGeneration | ErrorKind::NoFrequency);
            assert!(is_expected, "{range:?}: {error}");
        }
    }
}

#[test]
fn limits_apply() {
    let mut trace = Assembler::new(22);
    for generation in 1..100 {
        trace.frequency(generation);
    }
    trace.tables(99);
    let limits = Limits { max_entries: 50, ..Limits::default() };
    let error = Index::with_limits(&trace.0[..], limits).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Limit { limit: 50, .. }), "{error}");
    assert_eq!(Index::read(&trace.0[..]).unwrap().generations().len(), 99);
    let mut threads = Assembler::new(22);
    for thread in 0..100 {
        threads.batch(1, thread, 1, &[(39, &[1, 0])]);
    }
    let index = Index::with_limits(&threads.0[..], limits).unwrap();
    assert!(matches!(index.damage().unwrap().kind(), ErrorKind::Limit { limit: 50, .. }));
}

/// The runtime writes samples late: one can be later than all other events of its generation.
#[test]
fn cpu_samples_are_in_the_time_of_their_generation() {
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    trace.batch(1, 1, 1, &[(13, &[1, 0, 1]), (37, &[10, 5])]);
    let sample = |ticks| (7, [ticks, 1, 0, 1, 0]);
    let samples = [sample(300), sample(5000), sample(40)];
    let mut events: Vec<(u8, &[u64])> = vec![(6, &[])];
    events.extend(samples.iter().map(|(ty, args)| (*ty, &args[..])));
    trace.batch(1, u64::MAX, 1, &events);
    trace.frequency(2);
    trace.tables(2);
    let index = Index::read(&trace.0[..]).unwrap();
    let at = |ticks: i64| Timestamp::from_nanos(ticks * 64);
    assert_eq!(index.generations()[0].last, at(5000));
    assert_eq!(index.select(at(4000), at(6000)), 0..1);
    assert_eq!(index.select(at(5001), at(6000)), 0..0);
    assert_eq!(read(&trace.0[..])[&1].2, at(5000));
}

/// A part is read with the limits of the index.
#[test]
fn the_limits_of_an_index_are_those_of_its_readers() {
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    for thread in 0..100 {
        trace.batch(1, thread, 1, &[(13, &[1, thread, 2])]);
    }
    trace.frequency(2);
    trace.tables(2);
    let count = |index: &Index| {
        let mut reader = index.open(Cursor::new(&trace.0), 0..2).unwrap();
        let mut count = 0;
        while reader.next_event()?.is_some() {
            count += 1;
        }
        Ok::<u32, gotrace::Error>(count)
    };
    // The limit of the index is the number of threads, that of a reader includes procs.
    assert_eq!(count(&Index::read(&trace.0[..]).unwrap()).unwrap(), 103);
    let limits = Limits { max_entries: 100, ..Limits::default() };
    let error = count(&Index::with_limits(&trace.0[..], limits).unwrap()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Limit { limit: 100, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The generations of a damaged trace are the bytes of the trace, without a gap; what the
    /// reader accepts is complete.
    #[test]
    fn generations_of_damaged_traces_are_parts_of_it(
        name in prop::sample::select(&V2[..]),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..6),
    ) {
        let mut trace = recorded(name);
        for (at, bit) in flips {
            let at = at.index(trace.len() - 16) + 16;
            trace[at] ^= 1 << bit;
        }
        let mut generations = Generations::new(&trace[..]).unwrap();
        let mut end = 16;
        let mut numbers = Vec::new();
        while let Ok(Some((span, bytes))) = generations.next_generation() {
            prop_assert_eq!(span.offset, end as u64);
            prop_assert_eq!(bytes, &trace[end..end + span.len as usize]);
            end += bytes.len();
            numbers.push(span.number);
        }
        prop_assert!(matches!(generations.next_generation(), Ok(None)));
        if let Ok(events) = Reader::new(&trace[..]).unwrap().collect::<Result<Vec<_>, _>>() {
            let mut read: Vec<u64> = events.iter().map(|e| e.as_event().generation()).collect();
            read.retain(|number| *number != 0);
            read.dedup();
            prop_assert_eq!(numbers, read);
        }
    }
}
