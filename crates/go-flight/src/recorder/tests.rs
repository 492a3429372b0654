use super::*;
use crate::fake::{BASE, Batches, Fake, batch};
use crate::layouts::LAYOUTS;
use crate::search;
use proptest::prelude::*;
use std::io;

/// The batches of a generation: two of events and its end.
fn batches(number: u64) -> Batches {
    vec![batch(number, b"events"), batch(number, &[7; 100]), vec![52]]
}

fn bytes(number: u64) -> Vec<u8> {
    batches(number).concat()
}

/// A flight recorder with these generations.
fn fake(layout: &'static Layout, numbers: std::ops::Range<u64>) -> Fake {
    let mut fake = Fake::new(layout);
    numbers.for_each(|number| fake.push(number, &batches(number)));
    fake
}

fn snapshot<M: Memory>(memory: &mut M, layout: &'static Layout) -> Result<Snapshot> {
    read(memory, layout, BASE, Limits::default())
}

fn numbers(snapshot: &Snapshot) -> Vec<u64> {
    for generation in &snapshot.generations {
        assert_eq!(generation.bytes, bytes(generation.number));
        assert_eq!(generation.first_time.nanos(), generation.number as i64 * 1000);
    }
    snapshot.generations.iter().map(|generation| generation.number).collect()
}

#[test]
fn the_trace_is_the_header_and_all_batches() {
    for layout in LAYOUTS {
        let mut fake = fake(layout, 5..8);
        let active = layout.flight_recorder_active + layout.generation_size;
        fake.word(fake.field(active), 0, 77);
        let snapshot = snapshot(&mut fake, layout).unwrap();
        assert_eq!(numbers(&snapshot), [5, 6, 7]);
        assert!(!snapshot.has_failed);
        assert_eq!(snapshot.unfinished.bytes, 77);
        let mut written = Vec::new();
        snapshot.write_to(&mut written).unwrap();
        let expected = [&b"go 1.26 trace\0\0\0"[..], &bytes(5), &bytes(6), &bytes(7)].concat();
        assert_eq!(written, expected);
        assert_eq!(snapshot.size(), expected.len() as u64);
    }
}

#[test]
fn a_failure_of_the_recorder_is_reported() {
    let layout = &LAYOUTS[0];
    let mut fake = fake(layout, 1..2);
    fake.word(fake.field(layout.flight_recorder_err), 0, 0x50_0000);
    assert!(snapshot(&mut fake, layout).unwrap().has_failed);
}

#[test]
fn a_recorder_that_does_not_run_is_an_error() {
    let layout = &LAYOUTS[0];
    let error = |fake: &mut Fake| snapshot(fake, layout).unwrap_err();
    assert!(matches!(error(&mut Fake::new(layout)), Error::NoGeneration));
    let mut stopped = fake(layout, 1..3);
    stopped.stop();
    assert!(matches!(error(&mut stopped), Error::NotRunning));
    let mut disabled = fake(layout, 1..3);
    disabled.write(disabled.field(layout.flight_recorder_enabled), 0, &[0]);
    assert!(matches!(error(&mut disabled), Error::NotRunning));
    let mut unmapped = fake(layout, 1..3);
    unmapped.word(BASE, layout.multiplexer_flight_recorder, 8);
    assert!(matches!(error(&mut unmapped), Error::Memory { address: 8, .. }));
}

#[test]
fn other_memory_than_a_recorder_is_malformed() {
    let layout = &LAYOUTS[0];
    let malformed = |fake: &mut Fake, expected: &str| {
        let Err(Error::Malformed { what, .. }) = snapshot(fake, layout) else {
            panic!("{expected}")
        };
        assert!(what.contains(expected), "{what}");
    };
    let mut changed = fake(layout, 1..3);
    changed.write(changed.field(layout.flight_recorder_header), 3, b"x");
    malformed(&mut changed, "no header");
    let mut changed = fake(layout, 1..3);
    changed.word(changed.field(layout.flight_recorder_ring), 8, u64::MAX / 2);
    malformed(&mut changed, "longer than the memory");

    let one = |batches: &Batches, change: &dyn Fn(&mut [u8])| {
        let mut fake = Fake::new(layout);
        fake.push_as(3, batches, change);
        fake
    };
    malformed(&mut one(&batches(4), &|_| {}), "not a batch of its generation");
    malformed(&mut one(&batches(3), &set(layout.generation_size, 10)), "too long");
    malformed(&mut one(&batches(3), &set(layout.generation_size, 1000)), "another size");
    malformed(&mut one(&vec![batch(3, b"x"), Vec::new()], &|_| {}), "not a batch");
    let far = set(layout.generation_batches, u64::MAX - 7);
    let beyond = snapshot(&mut one(&batches(3), &far), layout);
    assert!(matches!(beyond, Err(Error::Memory { .. })));

    let mut fake = Fake::new(layout);
    fake.push(2, &batches(2));
    fake.push(1, &batches(1));
    malformed(&mut fake, "not in order");
}

/// A change of a word.
fn set(offset: usize, value: u64) -> impl Fn(&mut [u8]) {
    move |raw: &mut [u8]| raw[offset..offset + 8].copy_from_slice(&value.to_le_bytes())
}

#[test]
fn sizes_are_limited() {
    let layout = &LAYOUTS[0];
    let mut small = fake(layout, 1..4);
    let read = |memory: &mut Fake, max_buffer| {
        read(memory, layout, BASE, Limits { max_buffer, ..Limits::default() })
    };
    let exceeded = |r: Result<Snapshot>| matches!(r, Err(Error::LimitExceeded { .. }));
    assert!(exceeded(read(&mut small, 300)));
    assert!(read(&mut small, 2000).is_ok());
    // Batches of one byte: a call of the system reads each of them.
    let mut tiny = Fake::new(layout);
    tiny.push(1, &vec![vec![52]; 100]);
    assert!(exceeded(read(&mut tiny, 5000)));
    assert!(read(&mut tiny, 10_000).is_ok());
    // No byte of this is read, or allocated.
    let mut large = Fake::new(layout);
    large.push_as(3, &batches(3), set(layout.generation_size, 1 << 60));
    assert!(exceeded(read(&mut large, 1 << 20)));
    let mut ring = fake(layout, 1..4);
    ring.word(ring.field(layout.flight_recorder_ring), 8, 1 << 50);
    assert!(exceeded(read(&mut ring, 1 << 20)));
}

/// A recorder whose ring has generations without batches, at an address beyond the others.
struct Long(Fake);

const FAR: u64 = BASE << 16;

impl Memory for Long {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(start) = address.checked_sub(FAR) else { return self.0.read_at(address, buffer) };
        let layout = self.0.layout;
        let (mut at, size) = (start as usize, layout.generation);
        for word in buffer.chunks_mut(8) {
            let is_number = at % size == layout.generation_gen;
            let value = if is_number { (at / size) as u64 + 1 } else { 0 };
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
            at += 8;
        }
        Ok(())
    }
}

/// If each generation were compared with all others, the first one would take 10¹¹ steps.
#[test]
fn long_rings_are_read_in_time_proportional_to_their_length() {
    let layout = &LAYOUTS[0];
    let read = |count: u64| {
        let mut long = Long(fake(layout, 5..6));
        let ring = long.0.field(layout.flight_recorder_ring);
        long.0.word(ring, 0, FAR);
        long.0.word(ring, 8, count);
        snapshot(&mut long, layout)
    };
    assert_eq!(read(500_000).unwrap().generations.len(), 500_000);
    let Err(Error::Malformed { what, .. }) = read(MAX_RING + 1) else { panic!("it is too long") };
    assert!(what.contains("more generations"), "{what}");
}

/// A program that runs: does something before a number of reads.
struct Running<F> {
    fake: Fake,
    reads: usize,
    before_read: F,
}

impl<F: FnMut(usize, &mut Fake)> Memory for Running<F> {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        (self.before_read)(self.reads, &mut self.fake);
        self.reads += 1;
        self.fake.read_at(address, buffer)
    }
}

/// The number of reads of an undisturbed snapshot.
fn reads(layout: &'static Layout) -> usize {
    let mut running =
        Running { fake: fake(layout, 5..8), reads: 0, before_read: |_, _: &mut Fake| {} };
    snapshot(&mut running, layout).unwrap();
    running.reads
}

#[test]
fn a_ring_replaced_at_any_moment_is_read_whole() {
    for layout in LAYOUTS {
        let count = reads(layout);
        let mut first = 0;
        for moment in 0..=count {
            let before_read = |reads: usize, fake: &mut Fake| {
                if reads == moment {
                    fake.push(8, &batches(8));
                    fake.drop_oldest();
                }
            };
            let mut running = Running { fake: fake(layout, 5..8), reads: 0, before_read };
            match &numbers(&snapshot(&mut running, layout).unwrap())[..] {
                [5, 6, 7] => {}
                [6, 7, 8] => first += 1,
                other => panic!("{other:?} after {moment} of {count} reads"),
            }
        }
        // Only after the last look at the ring is the old one the result.
        assert!(first >= count - 1, "{first} of {count}");
    }
}

#[test]
fn generations_that_remain_are_read_once() {
    let layout = &LAYOUTS[0];
    let count = reads(layout);
    // Every second look at the ring finds a new one, as long as all fits.
    let mut number = 8;
    let before_read = |reads: usize, fake: &mut Fake| {
        if reads % count == count / 2 && number < 14 {
            fake.push(number, &batches(number));
            number += 1;
        }
    };
    let mut running = Running { fake: fake(layout, 5..8), reads: 0, before_read };
    let snapshot = snapshot(&mut running, layout).unwrap();
    let last = *numbers(&snapshot).last().unwrap();
    assert_eq!(numbers(&snapshot), (5..=last).collect::<Vec<_>>());
    assert!(last > 7);
}

#[test]
fn a_ring_that_always_changes_is_given_up() {
    let layout = &LAYOUTS[0];
    let mut number = 8;
    let before_read = |_, fake: &mut Fake| {
        fake.push(number, &batches(number));
        fake.drop_oldest();
        number = if number == 127 { 8 } else { number + 1 };
    };
    let mut running = Running { fake: fake(layout, 5..8), reads: 0, before_read };
    let error = snapshot(&mut running, layout).unwrap_err();
    assert!(matches!(error, Error::Changing { attempts: ATTEMPTS }), "{error}");
}

#[test]
fn a_recorder_stopped_at_any_moment_is_read_whole_or_not_at_all() {
    let layout = &LAYOUTS[0];
    for moment in 0..=reads(layout) {
        let before_read = |reads: usize, fake: &mut Fake| {
            if reads == moment {
                fake.stop();
                fake.drop_oldest();
            }
        };
        let mut running = Running { fake: fake(layout, 5..8), reads: 0, before_read };
        match snapshot(&mut running, layout) {
            Ok(snapshot) => assert_eq!(numbers(&snapshot), [5, 6, 7]),
            Err(error) => assert!(matches!(error, Error::NotRunning), "{error}"),
        }
    }
}

#[test]
fn a_program_without_symbols_is_searched() {
    for layout in LAYOUTS {
        let mut fake = fake(layout, 5..8);
        // Other data, then the variable: larger than what is searched at once.
        let size = fake.allocate(300_000) - BASE;
        let range = BASE..BASE + size + 300_000;
        let find = |fake: &mut Fake, range| search::tracing(fake, layout, range, Limits::default());
        assert_eq!(find(&mut fake, range.clone()).unwrap(), BASE);
        let variable = fake.bytes[..layout.multiplexer].to_vec();
        for at in [size, 65_536 - 56, 65_536 - 8, 65_536, 131_072 - 16, size + 299_944] {
            let at = at.next_multiple_of(8).max(size);
            let mut moved = fake.clone();
            moved.write(BASE + at, 0, &variable);
            assert!(matches!(find(&mut moved, range.clone()), Err(Error::Ambiguous)), "{at}");
            moved.stop();
            assert_eq!(find(&mut moved, range.clone()).unwrap(), BASE + at);
            // The last byte of the variable is outside.
            let cut = BASE..BASE + at + layout.multiplexer as u64 - 1;
            assert!(matches!(find(&mut moved, cut), Err(Error::NotFound)));
        }
        fake.write(fake.field(layout.flight_recorder_header), 0, b"no");
        assert!(matches!(find(&mut fake, range), Err(Error::NotFound)));
        assert!(matches!(find(&mut fake, u64::MAX - 3..u64::MAX), Err(Error::NotFound)));
        let exceeded = find(&mut fake, 0..u64::MAX);
        assert!(matches!(exceeded, Err(Error::Memory { .. } | Error::LimitExceeded { .. })));
    }
}

proptest! {
    #[test]
    fn damaged_memory_does_no_harm(
        layout in 0..LAYOUTS.len(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), damage()), 1..6),
    ) {
        let layout = &LAYOUTS[layout];
        let mut fake = fake(layout, 5..8);
        for (at, word) in damage {
            let at = at.index(fake.bytes.len() / 8) * 8;
            fake.write(BASE + at as u64, 0, &word.to_le_bytes());
        }
        let size = fake.bytes.len() as u64;
        let limits = Limits { max_buffer: 1 << 20, ..Limits::default() };
        let _ = search::tracing(&mut fake, layout, BASE..BASE + size, limits);
        let mut running = Running { fake, reads: 0, before_read: |_, _: &mut Fake| {} };
        if let Ok(snapshot) = read(&mut running, layout, BASE, limits) {
            prop_assert!(snapshot.size() <= size);
        }
        // It does not change: there is one attempt.
        prop_assert!(running.reads < 100);
    }

    #[test]
    fn a_program_that_runs_is_read_whole(
        moments in proptest::collection::btree_map(0usize..200, 0u8..3, 0..8),
    ) {
        let layout = &LAYOUTS[0];
        let (mut next, mut oldest) = (8, 5);
        let before_read = |reads: usize, fake: &mut Fake| match moments.get(&reads) {
            Some(0) => {
                fake.push(next, &batches(next));
                next += 1;
            }
            Some(1) if oldest + 1 < next => {
                fake.drop_oldest();
                oldest += 1;
            }
            Some(2) => {
                fake.push(next, &batches(next));
                fake.drop_oldest();
                (oldest, next) = (oldest + 1, next + 1);
            }
            _ => {}
        };
        let mut running = Running { fake: fake(layout, 5..8), reads: 0, before_read };
        let numbers = numbers(&snapshot(&mut running, layout).unwrap());
        prop_assert!(!numbers.is_empty() && numbers.is_sorted_by(|a, b| a + 1 == *b));
    }
}

/// Words that are likely to matter: small numbers, addresses inside, and anything.
fn damage() -> impl Strategy<Value = u64> {
    prop_oneof![0..300u64, (0..1000u64).prop_map(|offset| BASE + offset), any::<u64>()]
}
