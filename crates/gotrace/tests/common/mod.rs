//! What the tests share: the recorded traces, reading them, and damaging them.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests may panic")]

use flate2::read::GzDecoder;
use gotrace::{Event, EventType, Reader};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use trace_common::{Cursor, append_uvarint};

/// Length of the header of a trace.
const HEADER: usize = 16;

/// The recorded traces of Go 1.22 and later.
pub(crate) const V2: [&str; 10] = [
    "shop.trace",
    "go1.22-mixed.trace.gz",
    "go1.23-allocations.trace.gz",
    "go1.23-coroutines.trace.gz",
    "go1.23-mixed.trace.gz",
    "go1.25-mixed.trace.gz",
    "go1.26-allocations.trace.gz",
    "go1.26-cgo.trace.gz",
    "go1.26-collections.trace.gz",
    "go1.26-mixed.trace.gz",
];

/// The recorded trace of an earlier version.
pub(crate) const V1: &str = "go1.21-mixed.trace.gz";

/// The names of all recorded traces.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    V2.into_iter().chain([V1])
}

/// All recorded traces, with their names.
pub(crate) fn traces() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    names().map(|name| (name, recorded(name)))
}

/// Passes on the events of an undamaged trace.
pub(crate) fn events_of(trace: &[u8], mut each: impl FnMut(Event<'_>)) {
    let mut reader = Reader::new(trace).unwrap();
    while let Some(event) = reader.next_event().unwrap() {
        each(event);
    }
}

/// Reads a trace to its end, and resumes after damage.
pub(crate) fn recover<A>(
    trace: &[u8],
    analysis: &mut A,
    mut event: impl FnMut(&mut A, Event<'_>),
    mut loss: impl FnMut(&mut A),
) {
    let mut reader = Reader::new(trace).unwrap();
    loop {
        match reader.next_event() {
            Ok(Some(next)) => event(analysis, next),
            Ok(None) => return,
            Err(_) => match reader.recover() {
                Ok(Some(_)) => loss(analysis),
                _ => return,
            },
        }
    }
}

/// Bits to flip behind the header, each at a place that is relative to the length of the trace.
pub(crate) fn flips() -> impl Strategy<Value = Vec<(Index, u8)>> {
    proptest::collection::vec((any::<Index>(), 1_u8..), 1..20)
}

/// Flips bits of a trace.
pub(crate) fn flip(trace: &mut [u8], flips: &[(Index, u8)]) {
    let data = &mut trace[HEADER..];
    for (at, bits) in flips {
        data[at.index(data.len())] ^= bits;
    }
}

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
    let mut at = HEADER;
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
            args.iter().for_each(|arg| append_uvarint(*arg, &mut data));
        }
        self.raw_batch(generation, thread, ticks, &data);
    }

    pub(crate) fn raw_batch(&mut self, generation: u64, thread: u64, ticks: u64, data: &[u8]) {
        self.0.push(1);
        for field in [generation, thread, ticks, data.len() as u64] {
            append_uvarint(field, &mut self.0);
        }
        self.0.extend_from_slice(data);
    }

    pub(crate) fn frequency(&mut self, generation: u64) {
        self.batch(generation, u64::MAX, 1, &[(8, &[15_625_000])]);
    }

    /// The tables of stacks and strings, which end a generation before Go 1.26. They are empty.
    pub(crate) fn tables(&mut self, generation: u64) {
        for table in [EventType::STACKS, EventType::STRINGS] {
            self.batch(generation, u64::MAX, 1, &[(table.0, &[])]);
        }
    }
}
