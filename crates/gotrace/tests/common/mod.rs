//! What tests of damaged traces share.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use flate2::read::GzDecoder;
use gotrace::EventType;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use trace_common::Cursor;

/// A recorded trace.
pub(crate) fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let mut file = File::open(path).unwrap();
    let mut trace = Vec::new();
    if name.ends_with(".gz") {
        GzDecoder::new(file).read_to_end(&mut trace).unwrap();
    } else {
        file.read_to_end(&mut trace).unwrap();
    }
    trace
}

/// A batch of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// Where it is in the trace, header included.
    pub(crate) range: Range<usize>,
    /// Where its data begins.
    pub(crate) data: usize,
    pub(crate) generation: u64,
    /// Number of events that a reader gives for it.
    pub(crate) events: u64,
}

/// The batches of an undamaged trace.
pub(crate) fn batches(trace: &[u8]) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut at = 16;
    while at < trace.len() {
        let ty = EventType(trace[at]);
        if ty == EventType::END_OF_GENERATION {
            at += 1;
            continue;
        }
        let mut cursor = Cursor::new(&trace[at + 1..]);
        if ty == EventType::EXPERIMENTAL_BATCH {
            cursor.u8().unwrap();
        }
        let generation = cursor.uvarint().unwrap();
        cursor.uvarint().unwrap();
        cursor.uvarint().unwrap();
        let size = cursor.uvarint().unwrap() as usize;
        let data = at + 1 + cursor.position();
        let range = at..data + size;
        at = range.end;
        let events = if ty == EventType::EVENT_BATCH { events(&trace[data..at]).0 } else { 0 };
        batches.push(Batch { range, data, generation, events });
    }
    batches
}

/// Number of events that a reader gives for the data of a batch, and how many bytes of it can be
/// decoded.
pub(crate) fn events(data: &[u8]) -> (u64, usize) {
    let mut cursor = Cursor::new(data);
    let (mut events, mut end) = (0, 0);
    if data.first() == Some(&EventType::CPU_SAMPLES.0) {
        cursor.u8().unwrap();
    }
    while let Ok(ty) = cursor.u8().map(EventType) {
        let Some(spec) = ty.spec().filter(|spec| spec.timed || ty == EventType::CPU_SAMPLE) else {
            break;
        };
        if spec.args.iter().any(|_| cursor.uvarint().is_err()) {
            break;
        }
        // A switch between goroutines is given as three events.
        let switch = ty == EventType::GO_SWITCH || ty == EventType::GO_SWITCH_DESTROY;
        events += if switch { 3 } else { 1 };
        end = cursor.position();
    }
    (events, end)
}
