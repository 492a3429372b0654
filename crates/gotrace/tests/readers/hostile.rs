//! Traces made to cost much: none may take time or memory out of proportion. (Nothing here is
//! timed: what grows too fast is refused.)

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic")]

use crate::common::Assembler;
use gotrace::{ErrorKind, Limits, Reader};
use trace_common::append_uvarint;

/// Reads to the end or the first error; the number of events, and that error.
fn read(trace: &[u8]) -> (usize, Option<gotrace::Error>) {
    let mut reader = Reader::new(trace).unwrap();
    let mut events = 0;
    loop {
        match reader.next_event() {
            Ok(Some(event)) => {
                std::hint::black_box(event.time());
                events += 1;
            }
            Ok(None) => return (events, None),
            Err(error) => return (events, Some(error)),
        }
    }
}

const GO_STATUS: u8 = 25;
const GO_START: u8 = 16;
const PROC_STATUS: u8 = 13;
const GO_STOP: u8 = 19;
const TASK_BEGIN: u8 = 40;
const STW_BEGIN: u8 = 26;

/// Thread 1 runs goroutine 1 on proc 0.
const RUNNING: [(u8, &[u64]); 2] = [(PROC_STATUS, &[1, 0, 1]), (GO_STATUS, &[1, 1, 1, 2])];

#[test]
fn threads_that_wait_forever_beside_one_that_runs() {
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    // Thousands of threads whose first event can never come, all of them early.
    for thread in 0..8_000 {
        trace.batch(1, 100 + thread, 1, &[(GO_START, &[1, 999_999, 1])]);
    }
    // One with many errors, each found after all of the others were tried.
    for batch in 0..4 {
        let mut events = if batch == 0 { RUNNING.to_vec() } else { Vec::new() };
        events.extend(vec![(39u8, &[1u64, 0][..]); 5000]);
        trace.batch(1, 1, 1000 + batch * 6000, &events);
    }
    let events = |max_work_per_byte| {
        let limits = Limits { max_work_per_byte, ..Limits::default() };
        let mut reader = Reader::with_limits(&trace.0[..], limits).unwrap();
        let mut events = 0;
        loop {
            match reader.next_event() {
                Ok(event) => events += u64::from(event.expect("it is refused").generation() > 0),
                Err(error) => {
                    let limit = max_work_per_byte as usize;
                    assert!(
                        matches!(error.kind(), ErrorKind::Limit { limit: l, .. } if *l == limit as u64)
                    );
                    assert!(error.to_string().contains("max_work_per_byte"), "{error}");
                    return events;
                }
            }
        }
    };
    assert!(events(1) < events(16), "a higher limit is reached later");
}

/// The end of a generation visits the goroutines and tasks that got names in it: if each visited all
/// of them, that would be 10¹¹ steps.
#[test]
fn generations_do_not_visit_all_goroutines_and_tasks() {
    const COUNT: u64 = 150_000;
    const GENERATIONS: u64 = 300_000;
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    trace.batch(1, 1, 1, &RUNNING);
    for first in (0..COUNT).step_by(1000) {
        let states: Vec<[u64; 4]> = (first..first + 1000).map(|id| [1, id + 10, NONE, 4]).collect();
        let tasks: Vec<[u64; 5]> = states.iter().map(|[_, id, ..]| [1, *id, 0, 0, 0]).collect();
        let mut events: Vec<(u8, &[u64])> = states.iter().map(|a| (GO_STATUS, &a[..])).collect();
        events.extend(tasks.iter().map(|task| (TASK_BEGIN, &task[..])));
        trace.batch(1, 1, 1000 + first * 2, &events);
    }
    for generation in 2..GENERATIONS + 2 {
        trace.batch(generation, NONE, 1_000_000 + generation, &[(8, &[1_000_000_000])]);
    }
    let (events, error) = read(&trace.0);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events as u64, 2 + 2 * COUNT + GENERATIONS + 2);
}

/// The thread of batches of the runtime, and of goroutines that no thread runs.
const NONE: u64 = u64::MAX;

#[test]
fn an_event_in_the_wrong_context_says_what_is_wrong() {
    const HEAP_ALLOC: u8 = 37;
    let error = |events: &[(u8, &[u64])]| {
        let mut trace = Assembler::new(22);
        trace.frequency(1);
        trace.batch(1, 1, 1, events);
        read(&trace.0).1.expect("an inconsistent event").to_string()
    };
    let has_none = error(&[(HEAP_ALLOC, &[1, 100])]);
    assert!(has_none.starts_with("the event requires a proc here"), "{has_none}");
    let no_goroutine = error(&[RUNNING[0], (GO_STOP, &[1, 0, 0])]);
    assert!(no_goroutine.starts_with("the event requires a goroutine here"), "{no_goroutine}");
}

/// Batches of one generation without end, as a small compressed file can contain.
struct Endless {
    batch: Vec<u8>,
    given: usize,
}

impl std::io::Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let from = self.given % self.batch.len();
        let len = out.len().min(self.batch.len() - from);
        out[..len].copy_from_slice(&self.batch[from..from + len]);
        self.given += len;
        Ok(len)
    }
}

#[test]
fn an_endless_generation_is_refused_at_the_limit() {
    let mut header = Assembler::new(26);
    header.batch(1, u64::MAX, 1, &[(8, &[15_625_000])]);
    let mut batch = Assembler(Vec::new());
    batch.batch(1, 1, 1000, &vec![(GO_STOP, &[1u64, 0, 0][..]); 10_000]);
    let limits = Limits { max_buffer: 4 << 20, ..Limits::default() };
    let mut endless = Endless { batch: batch.0, given: 0 };
    let input = std::io::Read::chain(&header.0[..], &mut endless);
    let mut reader = Reader::with_limits(input, limits).unwrap();
    assert!(reader.next_event().unwrap().is_some(), "a sync event comes first");
    let error = reader.next_event().unwrap_err();
    assert!(error.to_string().contains("max_buffer"), "{error}");
    drop(reader);
    assert!(endless.given <= 5 << 20, "{} bytes read", endless.given);
    assert!(Limits::default().max_buffer <= 256 << 20);
}

#[test]
fn tiny_generations_with_many_open_tasks() {
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    for batch in 0..10 {
        let tasks: Vec<[u64; 5]> = (0..5000).map(|i| [1, 1 + batch * 5000 + i, 0, 0, 0]).collect();
        let mut events = if batch == 0 { RUNNING.to_vec() } else { Vec::new() };
        events.extend(tasks.iter().map(|args| (TASK_BEGIN, &args[..])));
        trace.batch(1, 1, 1000 + batch * 6000, &events);
    }
    for generation in 2..25_000 {
        trace.frequency(generation);
    }
    let (events, error) = read(&trace.0);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events, 2 + 50_000 + 25_000);
}

#[test]
fn many_different_ranges_open_at_once() {
    let mut trace = Assembler::new(22);
    trace.frequency(1);
    for batch in 0..3u64 {
        let mut data = vec![4];
        for i in 0..6000 {
            data.push(5);
            append_uvarint(1 + batch * 6000 + i, &mut data);
            data.push(0); // they may all be the same
        }
        trace.raw_batch(1, u64::MAX, 1, &data);
    }
    for batch in 0..3u64 {
        let args: Vec<[u64; 3]> = (0..6000).map(|i| [1, 1 + batch * 6000 + i, 0]).collect();
        let mut events = if batch == 0 { RUNNING.to_vec() } else { Vec::new() };
        events.extend(args.iter().map(|args| (STW_BEGIN, &args[..])));
        trace.batch(1, 1, 1000 + batch * 7000, &events);
    }
    let (events, _) = read(&trace.0);
    assert!(events > 1000);
}

#[test]
fn a_generation_that_is_larger_than_the_limit() {
    let mut trace = Assembler::new(26);
    for batch in 0..100 {
        let events = vec![(GO_STOP, &[1u64, 0, 0][..]); 5000];
        trace.batch(1, 1, 1000 + batch, &events);
    }
    let limits = Limits { max_buffer: 1 << 16, ..Limits::default() };
    let mut reader = Reader::with_limits(&trace.0[..], limits).unwrap();
    assert!(reader.next_event().unwrap().is_some(), "a sync event comes first");
    let error = reader.next_event().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Limit { .. }), "{error}");
}

#[test]
fn nothing_but_the_first_bytes_of_batches() {
    // Each could be the beginning of the next generation when looking for one.
    let mut trace = Assembler::new(25);
    trace.0.extend(std::iter::repeat_n([1u8, 9, 9, 9, 200, 1], 40_000).flatten());
    let mut reader = Reader::new(&trace.0[..]).unwrap();
    let mut recoveries = 0;
    loop {
        match reader.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => match reader.recover().unwrap() {
                Some(_) => recoveries += 1,
                None => break,
            },
        }
    }
    assert!(recoveries < trace.0.len());
}
