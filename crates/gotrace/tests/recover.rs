//! Going on behind damage, on recorded traces of several generations.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use flate2::read::GzDecoder;
use gotrace::{EventKind, Loss, Reader};
use std::fs::File;
use std::io::Read;
use std::path::Path;

fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let mut trace = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut trace).unwrap();
    trace
}

/// What a reader gives that goes on behind every error.
#[derive(Default)]
struct Told {
    /// Time, kind and generation of every event.
    events: Vec<(i64, EventKind, u64)>,
    losses: Vec<Loss>,
    unresolved: u64,
}

impl Told {
    fn generations(&self) -> Vec<u64> {
        let mut generations: Vec<u64> =
            self.events.iter().map(|(.., generation)| *generation).collect();
        generations.dedup();
        generations
    }
}

fn read(trace: &[u8]) -> Told {
    let mut told = Told::default();
    let mut reader = Reader::new(trace).unwrap();
    loop {
        match reader.next_event() {
            // Sync events that belong to no generation tell of nothing.
            Ok(Some(event)) if event.generation() == 0 => {}
            Ok(Some(event)) => {
                told.events.push((event.time().nanos(), event.kind(), event.generation()));
            }
            Ok(None) => break,
            Err(_) => match reader.recover().unwrap() {
                Some(loss) => told.losses.push(loss),
                None => break,
            },
        }
    }
    told.unresolved = reader.unresolved_ids();
    told
}

/// Offsets of the batches of a trace, each with its generation.
fn batches(trace: &[u8]) -> Vec<(usize, u64)> {
    let mut batches = Vec::new();
    let mut at = 16;
    while at < trace.len() {
        if trace[at] == 52 {
            at += 1;
            continue;
        }
        let mut cursor = trace_common::Cursor::new(&trace[at..]);
        if cursor.u8().unwrap() == 49 {
            cursor.u8().unwrap();
        }
        let generation = cursor.uvarint().unwrap();
        cursor.uvarint().unwrap();
        cursor.uvarint().unwrap();
        let size = cursor.uvarint().unwrap();
        batches.push((at, generation));
        at += cursor.position() + size as usize;
    }
    batches
}

const RECORDED: [&str; 4] = [
    "go1.22-mixed.trace.gz",
    "go1.23-mixed.trace.gz",
    "go1.25-mixed.trace.gz",
    "go1.26-mixed.trace.gz",
];

#[test]
fn a_damaged_generation_does_not_take_the_others_with_it() {
    for name in RECORDED {
        let mut trace = recorded(name);
        let whole = read(&trace);
        assert!(whole.losses.is_empty(), "{name} is whole");
        let generations = whole.generations();
        assert!(generations.len() >= 2, "{name} has several generations: {generations:?}");

        // The second batch of the generation before the last one gets a size that none has.
        let damaged = generations[generations.len() - 2];
        let (at, _) = batches(&trace).into_iter().filter(|(_, g)| *g == damaged).nth(1).unwrap();
        trace[at..at + 8].fill(0xff);
        let told = read(&trace);
        assert!(!told.losses.is_empty(), "{name}");
        let before = |told: &Told| told.events.iter().take_while(|(.., g)| *g < damaged).count();
        let kept = before(&whole);
        assert_eq!(before(&told), kept, "{name}: all before the damage");
        assert_eq!(told.events[..kept], whole.events[..kept], "{name}");
        let last = |told: &Told| {
            told.events.iter().filter(|(.., g)| *g == *generations.last().unwrap()).count()
        };
        // A generation that stands for itself begins with states that are not known yet; it has
        // the same events all the same.
        assert_eq!(last(&told), last(&whole), "{name}");
    }
}

#[test]
fn a_trace_that_is_cut_gives_what_there_is() {
    for name in RECORDED {
        let trace = recorded(name);
        let whole = read(&trace);
        let last_generation = *whole.generations().last().unwrap();
        let of_last: Vec<usize> = batches(&trace)
            .into_iter()
            .filter(|(_, g)| *g == last_generation)
            .map(|(at, _)| at)
            .collect();
        // In the middle of the last generation, where a batch begins and within one.
        let middle = of_last[of_last.len() / 2];
        for cut in [middle, middle + 7] {
            let told = read(&trace[..cut]);
            assert!(told.events.len() <= whole.events.len());
            assert!(told.events.len() > whole.events.len() / 2, "{name} cut at {cut}");
            // Format 22 and 23 have nothing that ends a generation, and what they need to be
            // whole may have been there already.
            if name.contains("1.25") || name.contains("1.26") {
                assert!(told.generations().contains(&last_generation), "{name} cut at {cut}");
            }
        }
    }
}

#[test]
fn what_a_cut_generation_lacks_is_counted() {
    let trace = recorded("go1.26-mixed.trace.gz");
    // Behind the last batch of events come the tables: without them, names are missing.
    let last = *read(&trace).generations().last().unwrap();
    let of_last: Vec<usize> =
        batches(&trace).into_iter().filter(|(_, g)| *g == last).map(|(at, _)| at).collect();
    let counts: Vec<u64> = of_last[2..].iter().map(|cut| read(&trace[..*cut]).unresolved).collect();
    assert!(counts.iter().any(|n| *n > 0), "{counts:?}");
    let partial =
        of_last[2..].iter().any(|cut| read(&trace[..*cut]).losses.iter().any(|l| l.partial));
    assert!(partial);
}

#[test]
fn recovery_ends_whatever_the_input() {
    let trace = recorded("go1.23-mixed.trace.gz");
    for seed in 0..200u64 {
        let mut damaged = trace.clone();
        for i in 0..20 {
            // A fixed sequence of places all over the trace.
            let at = (seed * 7919 + i * 104_729) as usize * 31 % damaged.len();
            damaged[at.max(16)] ^= (seed + i) as u8 | 1;
        }
        let told = read(&damaged);
        for pair in told.events.windows(2) {
            assert!(pair[0].0 < pair[1].0, "times never go back");
        }
    }
}

/// A trace of one generation, cut before its tables: tasks, regions and all the rest are there,
/// without their names.
#[test]
fn a_first_generation_without_its_tables_is_given_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/shop.trace");
    let trace = std::fs::read(path).unwrap();
    let whole = read(&trace);
    assert_eq!(whole.generations().len(), 1);
    // The tables are the last batches, whose first byte of data is 2 (stacks) or 4 (strings).
    let first_table = batches(&trace)
        .into_iter()
        .map(|(at, _)| at)
        .find(|at| {
            let mut cursor = trace_common::Cursor::new(&trace[*at + 1..]);
            for _header_field in 0..4 {
                cursor.uvarint().unwrap();
            }
            matches!(cursor.peek(), Some(2 | 4))
        })
        .unwrap();
    let told = read(&trace[..first_table]);
    let samples =
        whole.events.iter().filter(|(_, kind, _)| *kind == EventKind::StackSample).count();
    assert!(told.events.len() + samples >= whole.events.len(), "all but, perhaps, the samples");
    assert!(told.unresolved > 1000);
}

#[test]
fn an_error_is_the_last_that_is_heard() {
    // Damage everywhere in turn: among the errors are those in the middle of a coroutine switch,
    // which makes three events, and in the event that follows on a thread.
    let trace = recorded("go1.23-coroutines.trace.gz");
    for at in (16..trace.len()).step_by(37) {
        let mut damaged = trace.clone();
        damaged[at] ^= 0x11;
        let mut reader = Reader::new(&damaged[..]).unwrap();
        while let Ok(Some(_)) = reader.next_event() {}
        assert!(reader.next_event().unwrap().is_none(), "damage at {at}");
    }
}

/// A trace of one generation, cut in the middle of its events: the batches of some threads are
/// there and those of others, which they waited for, are not.
#[test]
fn a_generation_cut_among_its_events_gives_what_fits_together() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/shop.trace");
    let trace = std::fs::read(path).unwrap();
    let whole = read(&trace).events.len();
    let cut = trace.len() / 2;
    let mut reader = Reader::new(&trace[..cut]).unwrap();
    while let Ok(Some(_)) = reader.next_event() {}
    let loss = reader.recover().unwrap().unwrap();
    assert!(loss.partial);
    let mut events = 0;
    while reader.next_event().unwrap().is_some() {
        events += 1;
    }
    assert!(events > 20, "{events} of {whole}");
    assert!(reader.lost_events() == 0);
}
