//! `Reader::recover` on damaged traces: what it gives and what it reports as lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use crate::common::{self, Assembler, batches, events, recorded};
use gotrace::{ErrorKind, EventKind, EventType, GoId, GoState, Limits, Loss, ProcId, Reader};
use proptest::prelude::*;

const RECORDED: [&str; 4] = [
    "go1.22-mixed.trace.gz",
    "go1.23-mixed.trace.gz",
    "go1.25-mixed.trace.gz",
    "go1.26-mixed.trace.gz",
];

/// What a reader gives that recovers from every error.
#[derive(Debug, Default, PartialEq)]
struct Recovered {
    /// Time, kind and generation of every event but the sync events.
    events: Vec<(i64, EventKind, u64)>,
    losses: Vec<Loss>,
    unresolved_ids: u64,
    lost_events: u64,
}

impl Recovered {
    fn generations(&self) -> Vec<u64> {
        let mut generations: Vec<u64> =
            self.events.iter().map(|(.., generation)| *generation).collect();
        generations.dedup();
        generations
    }

    fn of_generation(&self, generation: u64) -> usize {
        self.events.iter().filter(|(.., g)| *g == generation).count()
    }

    fn lost_bytes(&self) -> u64 {
        self.losses.iter().map(|loss| loss.bytes).sum()
    }
}

fn read(trace: &[u8]) -> Recovered {
    read_within(trace, Limits::default())
}

/// Reads to the end, and checks what holds for every trace.
fn read_within(trace: &[u8], limits: Limits) -> Recovered {
    let mut recovered = Recovered::default();
    let mut reader = Reader::with_limits(trace, limits).unwrap();
    loop {
        match reader.next_event() {
            Ok(Some(event)) if event.kind() == EventKind::Sync => {}
            Ok(Some(event)) => {
                let last = recovered.events.last();
                assert!(last.is_none_or(|(time, ..)| *time < event.time().nanos()), "times ascend");
                recovered.events.push((event.time().nanos(), event.kind(), event.generation()));
            }
            Ok(None) => break,
            Err(_) => {
                let Ok(Some(loss)) = reader.recover() else { break };
                assert!(loss.from <= loss.to, "{loss:?}");
                assert!(loss.bytes <= loss.to - loss.from, "{loss:?}");
                assert!(loss.event_bytes <= loss.bytes, "{loss:?}");
                recovered.losses.push(loss);
                assert!(recovered.losses.len() <= trace.len(), "every recovery makes progress");
            }
        }
    }
    assert!(recovered.lost_bytes() <= trace.len() as u64);
    recovered.unresolved_ids = reader.unresolved_ids();
    recovered.lost_events = reader.lost_events();
    recovered
}

#[test]
fn undamaged_traces_have_no_losses() {
    for name in RECORDED {
        let trace = recorded(name);
        let whole = read(&trace);
        let decodable: u64 = batches(&trace).iter().map(|batch| batch.events).sum();
        assert_eq!(whole.losses, [], "{name}");
        assert_eq!((whole.unresolved_ids, whole.lost_events), (0, 0), "{name}");
        assert_eq!(whole.events.len() as u64, decodable, "{name}");
    }
}

#[test]
fn a_batch_with_an_invalid_size_is_all_that_is_lost() {
    for name in RECORDED {
        let mut trace = recorded(name);
        let all = batches(&trace);
        let decodable: u64 = all.iter().map(|batch| batch.events).sum();
        for batch in all {
            // The last bytes of the size: it becomes larger than any batch is.
            let original = trace.clone();
            trace[batch.data - 3..batch.data].fill(0xff);
            let recovered = read(&trace);
            trace = original;
            let given = recovered.events.len() as u64 + recovered.lost_events;
            assert_eq!(
                given,
                decodable - batch.events,
                "{name}: {batch:?} {:?} {:?}",
                recovered.losses,
                recovered.generations()
            );
            // The byte that ends a generation is not searched for.
            let ends = trace.get(batch.range.end) == Some(&EventType::END_OF_GENERATION.0);
            let end = batch.range.end as u64 + u64::from(ends);
            let lost = batch.range.start as u64..end;
            assert_eq!(recovered.lost_bytes(), lost.end - lost.start, "{name}: {batch:?}");
            let loss = recovered.losses.iter().find(|loss| loss.bytes > 0).unwrap();
            assert_eq!(loss.from..loss.to, lost, "{name}");
        }
    }
}

#[test]
fn a_batch_whose_size_is_too_large_does_not_hide_the_next_ones() {
    for name in RECORDED {
        let trace = recorded(name);
        let all = batches(&trace);
        for (batch, next) in all.iter().zip(&all[1..]) {
            if batch.generation != next.generation || batch.range.end != next.range.start {
                continue;
            }
            let mut damaged = trace.clone();
            // Ten bytes, as the runtime writes it: beyond the start of the next batch.
            let size = (batch.range.end - batch.data + 7) as u64;
            let header = &mut damaged[batch.data - 10..batch.data];
            (0..9).for_each(|i| header[i] = (size >> (7 * i)) as u8 | 0x80);
            let recovered = read(&damaged);
            let others: u64 =
                all.iter().filter(|other| other.range != batch.range).map(|b| b.events).sum();
            assert!(recovered.events.len() as u64 >= others, "{name}: {batch:?}");
        }
    }
}

#[test]
fn bytes_behind_an_undecodable_event_are_counted() {
    let trace = recorded("go1.26-mixed.trace.gz");
    for batch in batches(&trace).into_iter().filter(|batch| batch.events > 20) {
        let data = &trace[batch.data..batch.range.end];
        if EventType(data[0]) == EventType::CPU_SAMPLES {
            continue;
        }
        // The first half of the events stays; no event has this type.
        let (_, half) = events(&data[..data.len() / 2]);
        let mut damaged = trace.clone();
        damaged[batch.data + half] = 0xff;
        let recovered = read(&damaged);
        let [loss] = &recovered.losses[..] else { panic!("one loss: {:?}", recovered.losses) };
        assert_eq!(loss.from, (batch.data + half) as u64);
        assert_eq!(loss.to, batch.range.end as u64);
        assert_eq!((loss.bytes, loss.event_bytes), (loss.to - loss.from, loss.bytes));
        assert!(loss.partial);
        assert_eq!(loss.generation, Some(batch.generation));
        // The event before the damage is given, too, though it was taken when the error occurred.
        let decodable: u64 = batches(&trace).iter().map(|batch| batch.events).sum();
        let lost = batch.events - events(&data[..half]).0;
        assert_eq!(recovered.events.len() as u64 + recovered.lost_events, decodable - lost);
    }
}

#[test]
fn the_generation_behind_a_damaged_one_is_complete() {
    for name in RECORDED {
        let mut trace = recorded(name);
        let whole = read(&trace);
        let generations = whole.generations();
        assert!(generations.len() >= 2, "{name} has several generations: {generations:?}");
        let damaged = generations[generations.len() - 2];
        let batch = batches(&trace).into_iter().filter(|b| b.generation == damaged).nth(1).unwrap();
        trace[batch.range.start..][..8].fill(0xff);
        let recovered = read(&trace);
        assert!(!recovered.losses.is_empty(), "{name}");
        let before = whole.events.iter().take_while(|(.., g)| *g < damaged).count();
        assert_eq!(recovered.events[..before], whole.events[..before], "{name}");
        let last = *generations.last().unwrap();
        assert_eq!(recovered.of_generation(last), whole.of_generation(last), "{name}");
    }
}

#[test]
fn a_cut_trace_gives_all_events_before_the_cut() {
    for name in RECORDED {
        let trace = recorded(name);
        let all = batches(&trace);
        for batch in all.iter().step_by(3) {
            for cut in [batch.range.start, batch.range.start + 7, batch.range.end - 1] {
                let recovered = read(&trace[..cut]);
                let decodable: u64 =
                    all.iter().filter(|b| b.range.end <= cut).map(|b| b.events).sum();
                let given = recovered.events.len() as u64 + recovered.lost_events;
                assert!(given >= decodable, "{name} cut at {cut}: {given} of {decodable}");
                assert_eq!(recovered.lost_events, 0, "{name} cut at {cut}");
            }
        }
    }
}

#[test]
fn a_cut_first_batch_with_a_short_size_is_recovered() {
    // Runtimes write sizes in ten bytes; other writers of traces do not.
    let goroutine_event: (u8, &[u64]) = (EventType::GO_UNBLOCK.0, &[1, 7, 1, 0]);
    // The first generation of a flight recording has another number than 1.
    for generation in [1, 3] {
        for with_frequency in [true, false] {
            let mut trace = Assembler::new(22);
            if with_frequency {
                trace.frequency(generation);
            }
            let start = trace.0.len();
            trace.batch(generation, 5, 100, &[goroutine_event; 30]);
            let cut = trace.0.len() - 50;
            let recovered = read(&trace.0[..cut]);
            let decodable = events(&trace.0[start + 6..cut]).0;
            assert!(decodable >= 20, "{decodable}");
            assert_eq!(recovered.events.len() as u64 + recovered.lost_events, decodable);
            assert!(recovered.lost_bytes() < 5, "{:?}", recovered.losses);
        }
    }
}

#[test]
fn repeating_events_of_a_cut_batch_are_not_mistaken_for_batches() {
    // From the second argument on it looks like the header of a batch of five bytes.
    let event: (u8, &[u64]) = (EventType::GO_UNBLOCK.0, &[5, 1, 1, 1]);
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    let start = trace.0.len();
    trace.batch(1, 5, 100, &[event; 400]);
    let cut = trace.0.len() - 300;
    let recovered = read(&trace.0[..cut]);
    let decodable = events(&trace.0[start + 6..cut]).0;
    assert!(decodable >= 300, "{decodable}");
    assert_eq!(recovered.events.len() as u64 + recovered.lost_events, decodable);
}

#[test]
fn unresolved_names_of_a_cut_trace_are_counted() {
    // The tables are the last batches of the only generation.
    let trace = recorded("shop.trace");
    let whole = read(&trace);
    assert_eq!(whole.generations().len(), 1);
    let tables = [EventType::STACKS.0, EventType::STRINGS.0];
    let first = batches(&trace).into_iter().find(|b| tables.contains(&trace[b.data])).unwrap();
    let recovered = read(&trace[..first.range.start]);
    let is_sample = |(_, kind, _): &&(i64, EventKind, u64)| *kind == EventKind::StackSample;
    let samples = whole.events.iter().filter(is_sample).count();
    assert!(recovered.events.len() + samples >= whole.events.len());
    assert!(recovered.unresolved_ids > 1000);
    assert!(recovered.losses.iter().all(|loss| loss.partial && loss.bytes == 0));
}

#[test]
fn a_lost_frequency_is_guessed_and_marked() {
    for name in RECORDED {
        let trace = recorded(name);
        let whole = read(&trace);
        let first = batches(&trace)[0].generation;
        let marks = [EventType::FREQUENCY.0, EventType::SYNC.0];
        let all = batches(&trace);
        let frequency = all.iter().find(|batch| marks.contains(&trace[batch.data])).unwrap();
        assert_eq!(frequency.generation, first);
        let mut damaged = trace.clone();
        damaged[frequency.range.clone()].fill(0);
        let recovered = read(&damaged);
        assert!(recovered.losses[0].guessed_frequency, "{name}: {:?}", recovered.losses);
        assert_eq!(recovered.of_generation(first), whole.of_generation(first), "{name}");
        // It is the frequency of Linux, where the fixtures were recorded.
        assert_eq!(recovered.events[0].0, whole.events[0].0, "{name}");
        let later = recovered.losses.iter().filter(|loss| loss.generation != Some(first));
        assert!(later.into_iter().all(|loss| !loss.guessed_frequency));
    }
}

#[test]
fn a_damaged_generation_number_does_not_begin_a_generation() {
    for name in RECORDED {
        let trace = recorded(name);
        let generations = read(&trace).generations();
        for batch in batches(&trace) {
            for wrong in [batch.generation as u8 + 1, 29, 0] {
                let mut damaged = trace.clone();
                damaged[batch.range.start + 1] = wrong;
                let recovered = read(&damaged);
                let mut found = recovered.generations();
                found.retain(|generation| !generations.contains(generation));
                assert_eq!(found, [], "{name}: {batch:?} with generation {wrong}");
            }
        }
    }
}

#[test]
fn a_goroutine_that_no_event_names_is_none() {
    // Thread 1 blocks and starts a goroutine. What ran before, and on which proc, is lost.
    let mut trace = Assembler::new(26);
    trace.batch(1, u64::MAX, 1, &[(50, &[]), (8, &[15_625_000]), (51, &[1, 1, 1, 1])]);
    trace.batch(1, 1, 10, &[(20, &[1, 0, 0]), (16, &[1, 7, 3]), (20, &[1, 0, 0])]);
    trace.0.push(52);
    let mut reader = Reader::new(&trace.0[..]).unwrap();
    let mut transitions = Vec::new();
    loop {
        let recovering = match reader.next_event() {
            Ok(Some(event)) => {
                if let Some(transition) = event.state_transition() {
                    let id = transition.resource().goroutine();
                    transitions.push((event.goroutine(), event.proc(), id, transition.goroutine()));
                }
                false
            }
            Ok(None) => break,
            Err(_) => true,
        };
        if recovering {
            let loss = reader.recover().unwrap().unwrap();
            assert_eq!((loss.bytes, loss.partial), (0, true));
        }
    }
    let (none, no_proc, seven) = (GoId::NONE, ProcId::NONE, GoId(7));
    let blocks = Some((GoState::Running, GoState::Waiting));
    let starts = Some((GoState::Runnable, GoState::Running));
    let expected = [
        (none, no_proc, Some(none), blocks),
        (none, no_proc, Some(seven), starts),
        (seven, no_proc, Some(seven), blocks),
    ];
    assert_eq!(transitions, expected);
    assert_eq!(reader.lost_events(), 0);
}

#[test]
fn the_generation_with_the_largest_number_is_recovered() {
    const LARGEST: u64 = u64::MAX;
    let mut trace = Assembler::new(26);
    trace.batch(LARGEST, u64::MAX, 1, &[(50, &[]), (8, &[15_625_000]), (51, &[1, 1, 1, 1])]);
    // The only event of a thread has no arguments.
    trace.raw_batch(LARGEST, 1, 10, &[20]);
    trace.batch(LARGEST, 9, 20, &[(13, &[0, 9, 1])]);
    trace.0.push(52);
    let recovered = read(&trace.0);
    assert_eq!((recovered.of_generation(LARGEST), recovered.lost_bytes()), (1, 1));
    assert_eq!(recovered.losses[0].generation, Some(LARGEST));
}

/// The states that any event implies are adopted when all before it is lost.
#[test]
fn every_event_can_be_the_first_that_is_left() {
    let timed = (0..=127).filter_map(|ty| Some((ty, EventType(ty).spec()?)));
    for (ty, spec) in timed.filter(|(_, spec)| spec.timed) {
        if EventType(ty) == EventType::CLOCK_SNAPSHOT {
            continue; // no event of a thread
        }
        let mut args: Vec<u64> = spec.args.iter().map(|name| u64::from(*name != "stack")).collect();
        args[0] = 0; // the time delta
        // In the first generation, whose states are only those that its events name, and in the
        // second.
        for generation in [1, 2] {
            let mut trace = Assembler::new(26);
            for number in 1..=generation {
                trace.batch(
                    number,
                    u64::MAX,
                    1,
                    &[(50, &[]), (8, &[15_625_000]), (51, &[1, 1, 1, 1])],
                );
                if number == generation {
                    trace.batch(generation, 1, 10, &[(ty, &args)]);
                } else {
                    trace.batch(number, 9, 5, &[(13, &[0, 9, 1])]);
                }
                trace.0.push(52);
            }
            let mut recovered = read(&trace.0);
            recovered.events.retain(|(.., of)| *of == generation);
            let switch = [EventType::GO_SWITCH, EventType::GO_SWITCH_DESTROY];
            let expected = if switch.contains(&EventType(ty)) { 3 } else { 1 };
            let given = (recovered.events.len(), recovered.lost_events);
            assert_eq!(given, (expected, 0), "{spec:?} in generation {generation}: {recovered:?}");
        }
    }
}

#[test]
fn a_damaged_generation_beyond_a_limit_is_given_up_and_counted() {
    let mut trace = Assembler::new(26);
    trace.batch(1, u64::MAX, 1, &[(50, &[]), (8, &[15_625_000]), (51, &[1, 1, 1, 1])]);
    // The second event is no event; 100 goroutines are unblocked by another thread.
    trace.raw_batch(1, 1, 10, &[20, 1, 0, 0, 0]);
    let args: Vec<[u64; 4]> = (0..100).map(|g| [1, g, 1, 0]).collect();
    let unblocks: Vec<(u8, &[u64])> = args.iter().map(|args| (21, &args[..])).collect();
    trace.batch(1, 2, 20, &unblocks);
    trace.0.push(52);
    let recovered = read_within(&trace.0, Limits { max_entries: 50, ..Limits::default() });
    let given_up: u64 = recovered.losses.iter().map(|loss| loss.events).sum();
    assert!(given_up > 40, "{recovered:?}");
    assert_eq!(recovered.lost_events, given_up);
    assert_eq!(recovered.events.len() as u64 + recovered.lost_events, 101);
    assert_eq!(recovered.lost_bytes(), 1);
}

#[test]
fn nothing_follows_an_error_until_recovery() {
    // Among the errors are those in the middle of a coroutine switch, which is three events, and in
    // the next event of a thread.
    let trace = recorded("go1.23-coroutines.trace.gz");
    for at in (16..trace.len()).step_by(37) {
        let mut damaged = trace.clone();
        damaged[at] ^= 0x11;
        let mut reader = Reader::new(&damaged[..]).unwrap();
        while let Ok(Some(_)) = reader.next_event() {}
        assert!(reader.next_event().unwrap().is_none(), "damage at {at}");
    }
}

#[test]
fn without_an_error_there_is_nothing_to_recover() {
    let trace = recorded("go1.26-mixed.trace.gz");
    let mut reader = Reader::new(&trace[..]).unwrap();
    assert_eq!(reader.recover().unwrap(), None);
    while reader.next_event().unwrap().is_some() {
        assert_eq!(reader.recover().unwrap(), None);
    }
    assert_eq!(reader.recover().unwrap(), None);
}

/// A size that is too large hides the batches that follow, here one with CPU samples. They are read
/// when the damage is known.
#[test]
fn samples_behind_a_wrong_size_are_recovered() {
    let samples = |trace: &[u8]| {
        let recovered = read(trace);
        recovered.events.iter().filter(|(_, kind, _)| *kind == EventKind::StackSample).count()
    };
    let mut trace = recorded("go1.25-mixed.trace.gz");
    let all = samples(&trace);
    assert_eq!(all, 4);
    // A byte of a batch's timestamp: the bytes after it become its size.
    trace[1997] ^= 0x80;
    assert_eq!(samples(&trace), all);
}

#[test]
fn errors_of_the_input_end_recovery() {
    struct Failing<'a>(&'a [u8]);

    impl std::io::Read for Failing<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Err(std::io::Error::other("the disk is gone"));
            }
            self.0.read(out)
        }
    }

    let trace = recorded("shop.trace");
    let half = &trace[..trace.len() / 2];
    let mut reader = Reader::new(Failing(half)).unwrap();
    let mut events = 0_u64;
    let error = loop {
        match reader.next_event() {
            Ok(Some(_)) => events += 1,
            Ok(None) => panic!("the input fails"),
            Err(error) => match reader.recover() {
                Ok(Some(_)) => {}
                Ok(None) => break error,
                Err(error) => break error,
            },
        }
    };
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    let is_sampled = |batch: &common::Batch| EventType(half[batch.data]) == EventType::CPU_SAMPLES;
    let complete = batches(half).into_iter().filter(|batch| !is_sampled(batch));
    let decodable: u64 = complete.map(|batch| batch.events).sum();
    let given = events + reader.lost_events();
    assert!(decodable > 100 && given >= decodable, "what was read before: {given} of {decodable}");
}

/// Number of events of the generations that are complete before the first damaged byte. A generation ends where the
/// first batch of the next one is read.
fn before(trace: &[u8], whole: &Recovered, damaged: usize) -> usize {
    let all = batches(trace);
    let intact = all.iter().take_while(|batch| batch.range.end <= damaged);
    let affected = intact.last().map_or(0, |batch| batch.generation);
    whole.events.iter().take_while(|(.., generation)| *generation < affected).count()
}

proptest! {
    /// Any damage: the reader ends, losses are consistent, the generations before it are as they were, and no
    /// decodable event disappears outside of the bytes that are reported as lost.
    #[test]
    fn events_given_and_lost_are_all_decodable_events(
        name in prop::sample::select(&RECORDED[..]),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let trace = recorded(name);
        let mut damaged = trace.clone();
        let mut damage: Vec<usize> =
            flips.iter().map(|(at, _)| 16 + at.index(trace.len() - 16)).collect();
        for (at, (_, bits)) in damage.iter().zip(&flips) {
            damaged[*at] ^= bits;
        }
        if let Some(cut) = cut {
            damaged.truncate(16 + cut.index(trace.len() - 16));
            damage.push(damaged.len());
        }
        let recovered = read(&damaged);
        let whole = read(&trace);
        let first = damage.iter().copied().min().unwrap();
        let before = before(&trace, &whole, first);
        prop_assert_eq!(recovered.events.get(..before), whole.events.get(..before), "{}", first);
        // A batch is intact if it is as it was. Bytes between batches that cannot be found are
        // reported as lost; the events in them cannot be counted. The first bytes of a batch can be
        // taken for the end of the damaged one before: then the rest of it is reported.
        let is_reported = |batch: &common::Batch| {
            let (from, to) = (batch.range.start as u64, batch.range.end as u64);
            recovered.losses.iter().any(|loss| loss.from < to && from < loss.to)
        };
        let intact = batches(&trace).into_iter().filter(|batch| {
            damaged.get(batch.range.clone()) == trace.get(batch.range.clone())
                && !is_reported(batch)
        });
        let decodable: u64 = intact.map(|batch| batch.events).sum();
        let given = recovered.events.len() as u64 + recovered.lost_events;
        prop_assert!(given >= decodable, "{given} of {decodable}: {:?}", recovered.losses);
        prop_assert_eq!(&recovered, &read(&damaged), "the same every time");
    }

    #[test]
    fn garbage_ends(
        version in prop::sample::select(&[22u8, 23, 25, 26][..]),
        data in prop::collection::vec(prop_oneof![0u8..56, any::<u8>()], 0..600),
    ) {
        let mut trace = format!("go 1.{version} trace\0\0\0").into_bytes();
        trace.extend(data);
        read(&trace);
    }
}
