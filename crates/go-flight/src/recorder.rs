//! Reads the ring of a flight recorder while the program runs.
//!
//! # Consistency
//!
//! The recorder replaces its ring as a whole at the end of a generation (`recorder.endGeneration`) and
//! never changes a generation in it. Generations have unique numbers. A generation that is in the
//! ring before *and* after its batches were read was reachable in between, so that the garbage
//! collector cannot have reused its memory. A snapshot is complete when the ring after it is the ring
//! before it. Otherwise the next attempt reads only the generations that are new.

use crate::batch;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::memory::{Memory, Object, Slice, Source};
use crate::snapshot::{Generation, Snapshot, Unfinished};
use std::collections::BTreeMap;
use trace_common::{Limits, Timestamp};

/// A generation takes about a second, and a second attempt reads only what is new.
const ATTEMPTS: u32 = 16;

/// The most generations of a ring. A flight recorder of a program keeps those of some seconds or
/// minutes; these are 12 days.
const MAX_RING: u64 = 1 << 20;

/// What a batch adds to its bytes, for the limit: its description, and a call of the system to read it. Other
/// memory can have millions of batches of one byte.
const BATCH_COST: u64 = 64;

/// Descriptors of batches that are read at once.
const BATCHES: u64 = 1 << 10;

/// The words that change when the ring is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Anchor {
    recorder: u64,
    ring: Slice,
}

/// A flight recorder without its batches.
struct Recorder {
    header: [u8; 16],
    has_failed: bool,
    unfinished: Unfinished,
    ring: Vec<RawGeneration>,
}

/// `runtime/trace.rawGeneration`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RawGeneration {
    number: u64,
    size: u64,
    min_time: i64,
    batches: Slice,
}

struct Reader<'m, M: ?Sized> {
    memory: &'m mut M,
    layout: &'static Layout,
    /// The address of the variable `runtime/trace.tracing`.
    tracing: u64,
    limits: Limits,
    /// Generations that were read, by their numbers, and what they [count](RawGeneration::cost).
    kept: BTreeMap<u64, (RawGeneration, Vec<u8>)>,
    size: u64,
}

/// Reads the finished generations of the flight recorder of `tracing`, a `traceMultiplexer`.
pub(crate) fn read<M: Memory + ?Sized>(
    memory: &mut M,
    layout: &'static Layout,
    tracing: u64,
    limits: Limits,
) -> Result<Snapshot> {
    let mut reader = Reader { memory, layout, tracing, limits, kept: BTreeMap::new(), size: 0 };
    for _ in 0..ATTEMPTS {
        let before = reader.anchor()?;
        match reader.attempt() {
            Ok(Some(snapshot)) => return Ok(snapshot),
            Ok(None) => {}
            // What was read can have been replaced meanwhile.
            Err(error) if reader.anchor()? == before => return Err(error),
            Err(_) => {}
        }
    }
    Err(Error::Changing { attempts: ATTEMPTS })
}

impl<M: Memory + ?Sized> Reader<'_, M> {
    /// Reads that are not kept.
    fn source(&mut self) -> Source<'_, M> {
        Source::new(self.memory, self.limits.max_buffer)
    }

    fn anchor(&mut self) -> Result<Anchor> {
        let (layout, tracing) = (self.layout, self.tracing);
        let mut source = self.source();
        let place = tracing.wrapping_add(layout.multiplexer_flight_recorder as u64);
        let recorder = source.word(place)?;
        if recorder == 0 {
            return Err(Error::NotRunning);
        }
        let mut buffer = Vec::new();
        let object = flight_recorder(&mut source, layout, recorder, &mut buffer)?;
        Ok(Anchor { recorder, ring: object.slice(layout.flight_recorder_ring)? })
    }

    /// One attempt; `None` if the ring was replaced.
    fn attempt(&mut self) -> Result<Option<Snapshot>> {
        let recorder = self.recorder()?;
        // The ring is in the order of the numbers.
        let in_ring = |kept: &RawGeneration| {
            let place = recorder.ring.binary_search_by_key(&kept.number, |raw| raw.number);
            place.ok().and_then(|place| recorder.ring.get(place)) == Some(kept)
        };
        self.kept.retain(|_, (kept, _)| in_ring(kept));
        self.size = self.kept.values().map(|(raw, _)| raw.cost()).sum();
        for raw in &recorder.ring {
            if !self.kept.contains_key(&raw.number) {
                let bytes = self.generation(raw)?;
                self.size += raw.cost();
                self.kept.insert(raw.number, (*raw, bytes));
            }
        }
        if self.recorder()?.ring != recorder.ring {
            return Ok(None);
        }
        let generations =
            std::mem::take(&mut self.kept).into_values().map(|(raw, bytes)| Generation {
                number: raw.number,
                first_time: Timestamp::from_nanos(raw.min_time),
                bytes,
            });
        Ok(Some(Snapshot {
            header: recorder.header,
            generations: generations.collect(),
            unfinished: recorder.unfinished,
            has_failed: recorder.has_failed,
        }))
    }

    fn recorder(&mut self) -> Result<Recorder> {
        let Anchor { recorder, ring } = self.anchor()?;
        let layout = self.layout;
        let mut source = self.source();
        let mut buffer = Vec::new();
        let object = flight_recorder(&mut source, layout, recorder, &mut buffer)?;
        let malformed = |what| Error::Malformed { what, address: ring.address };
        if !object.flag(layout.flight_recorder_enabled)? {
            return Err(Error::NotRunning);
        }
        if ring.len == 0 {
            return Err(Error::NoGeneration);
        }
        let header = object.bytes(layout.flight_recorder_header)?;
        let has_failed = object.word(layout.flight_recorder_err)? != 0;
        let active = layout.flight_recorder_active + layout.generation_size;
        let unfinished = Unfinished { bytes: object.word(active)? };
        if !is_header(&header) {
            return Err(malformed("the flight recorder has no header of a trace"));
        }
        let size = ring.len.checked_mul(layout.generation as u64);
        let size = size.ok_or(malformed("the ring is longer than the memory"))?;
        let count = ring.len;
        let ring = source.object(ring.address, size, &mut buffer)?;
        if count > MAX_RING {
            return Err(malformed("the ring has more generations than a flight recorder keeps"));
        }
        let ring = ring.elements(layout.generation).map(|o| RawGeneration::of(&o, layout));
        let ring = ring.collect::<Result<Vec<_>>>()?;
        if !ring.is_sorted_by(|a, b| a.number < b.number) {
            return Err(malformed("the generations of the ring are not in order"));
        }
        Ok(Recorder { header, has_failed, unfinished, ring })
    }

    /// The bytes of a generation.
    fn generation(&mut self, raw: &RawGeneration) -> Result<Vec<u8>> {
        let layout = self.layout;
        let malformed = |what, address| Err(Error::Malformed { what, address });
        let max_buffer = self.limits.max_buffer;
        let left = (max_buffer as u64).saturating_sub(self.size);
        let mut source = Source::new(&mut *self.memory, left as usize);
        if raw.cost() > left {
            return Err(Error::LimitExceeded { max_buffer });
        }
        let (mut bytes, mut buffer) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < raw.batches.len {
            let count = (raw.batches.len - done).min(BATCHES);
            let at = done.checked_mul(layout.batch as u64);
            let at = at.and_then(|at| raw.batches.address.checked_add(at));
            let Some(at) = at else {
                let what = "the batches extend beyond the address space";
                return malformed(what, raw.batches.address);
            };
            let batches = source.object(at, count * layout.batch as u64, &mut buffer)?;
            for batch in batches.elements(layout.batch) {
                let data = batch.slice(layout.batch_data)?;
                let start = bytes.len();
                if data.len > batch::MAX_LEN || data.len > raw.size - start as u64 {
                    return malformed("the batch is too long", data.address);
                }
                source.append(data.address, data.len, &mut bytes)?;
                if !batch::is_batch_of(raw.number, bytes.get(start..).unwrap_or_default()) {
                    return malformed("it is not a batch of its generation", data.address);
                }
            }
            done += count;
        }
        if bytes.len() as u64 != raw.size {
            return malformed(
                "the batches have another size than the generation",
                raw.batches.address,
            );
        }
        Ok(bytes)
    }
}

impl RawGeneration {
    fn of(object: &Object<'_>, layout: &Layout) -> Result<Self> {
        Ok(Self {
            number: object.word(layout.generation_gen)?,
            size: object.word(layout.generation_size)?,
            min_time: object.word(layout.generation_min_time)? as i64,
            batches: object.slice(layout.generation_batches)?,
        })
    }

    /// Its share of the limit: more than the bytes of its batches and of their descriptions.
    const fn cost(&self) -> u64 {
        self.size.saturating_add(self.batches.len.saturating_mul(BATCH_COST))
    }
}

/// The `FlightRecorder` of a `recorder`.
pub(crate) fn flight_recorder<'a, M: Memory + ?Sized>(
    source: &mut Source<'_, M>,
    layout: &Layout,
    recorder: u64,
    buffer: &'a mut Vec<u8>,
) -> Result<Object<'a>> {
    let address = source.word(recorder.wrapping_add(layout.recorder_r as u64))?;
    source.object(address, layout.flight_recorder as u64, buffer)
}

/// Whether it is `go 1.N trace`, padded with zeros.
pub(crate) fn is_header(header: &[u8; 16]) -> bool {
    let rest = header.strip_prefix(b"go 1.").unwrap_or_default();
    let (minor, rest) = rest.split_at(rest.len().min(2));
    minor.len() == 2 && minor.iter().all(u8::is_ascii_digit) && rest == b" trace\0\0\0"
}

#[cfg(test)]
mod tests;
