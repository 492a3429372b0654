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

/// The batches of a trace that is undamaged, or cut.
pub(crate) fn batches(trace: &[u8]) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut at = 16;
    while at < trace.len() {
        let ty = EventType(trace[at]);
        if ty == EventType::END_OF_GENERATION {
            at += 1;
            continue;
        }
        let Some((generation, header, size)) = header(&trace[at..]) else { break };
        let data = at + header;
        if data + size > trace.len() {
            break;
        }
        let range = at..data + size;
        at = range.end;
        let events = if ty == EventType::EVENT_BATCH { events(&trace[data..at]).0 } else { 0 };
        batches.push(Batch { range, data, generation, events });
    }
    batches
}

/// The generation of a batch, the length of its header and the size of its data.
fn header(batch: &[u8]) -> Option<(u64, usize, usize)> {
    let mut cursor = Cursor::new(batch);
    if EventType(cursor.u8().ok()?) == EventType::EXPERIMENTAL_BATCH {
        cursor.u8().ok()?;
    }
    let generation = cursor.uvarint().ok()?;
    let _thread = cursor.uvarint().ok()?;
    let _ticks = cursor.uvarint().ok()?;
    let size = cursor.uvarint().ok()? as usize;
    Some((generation, cursor.position(), size))
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

/// Assembles the bytes of a trace.
pub(crate) struct Assembler(pub(crate) Vec<u8>);

impl Assembler {
    pub(crate) fn new(version: u8) -> Self {
        Self(format!("go 1.{version} trace\0\0\0").into_bytes())
    }

    pub(crate) fn uvarint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// A batch of events, each a type and its arguments (`dt` first).
    pub(crate) fn batch(
        &mut self,
        generation: u64,
        thread: u64,
        ticks: u64,
        events: &[(u8, &[u64])],
    ) {
        let mut data = Vec::new();
        for (ty, args) in events {
            data.push(*ty);
            args.iter().for_each(|arg| Self::uvarint(&mut data, *arg));
        }
        self.raw_batch(generation, thread, ticks, &data);
    }

    pub(crate) fn raw_batch(&mut self, generation: u64, thread: u64, ticks: u64, data: &[u8]) {
        self.0.push(1);
        for field in [generation, thread, ticks, data.len() as u64] {
            Self::uvarint(&mut self.0, field);
        }
        self.0.extend_from_slice(data);
    }

    pub(crate) fn frequency(&mut self, generation: u64) {
        self.batch(generation, u64::MAX, 1, &[(8, &[15_625_000])]);
    }
}
