//! The generations of a trace, found by the framing of their batches.

mod batches;

use crate::batch::Batch;
use crate::clock::TickScale;
use crate::error::{Error, ErrorKind, Position};
use crate::frontier::Cursor;
use crate::generation::{EventBatch, Events, Loader, NO_BATCH, stops};
use crate::header;
use crate::id::ThreadId;
use crate::reader::Reader;
use crate::source::Source;
use crate::spec::{EventType, Plan};
use crate::version::Version;
use batches::{Batches, Headers};
use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom, Take, Write};
use std::mem;
use std::ops::Range;
use trace_common::{Cursor as Bytes, Limits, Timestamp};

/// Splits a trace into its generations, without decoding their events.
///
/// A generation is about a second of the traced program's execution (Go ≥ 1.22). Each contains the
/// state of all goroutines and procs at its start, and its own tables. So any consecutive
/// generations are a valid trace behind a [header](Version::header): this is the way to cut a part
/// out of a trace. [`Index`] keeps the positions of all generations.
///
/// It holds one generation in memory at a time, as the [`Reader`] does.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let trace: &[u8] = include_bytes!("../tests/data/shop.trace");
/// use gotrace::Generations;
///
/// // Cut the first generation out of a trace.
/// let mut generations = Generations::new(trace)?;
/// let mut part = generations.version().header().to_vec();
/// if let Some((generation, bytes)) = generations.next_generation()? {
///     println!("generation {} from {} to {}", generation.number, generation.first, generation.last);
///     part.extend_from_slice(bytes);
/// }
/// assert!(gotrace::Reader::new(&part[..])?.all(|event| event.is_ok()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Generations<R> {
    version: Version,
    limits: Limits,
    source: Source<R>,
    /// Length of the generation that was returned last.
    len: usize,
    last_number: u64,
    ended: bool,
}

/// The position of a generation in a trace, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerationSpan {
    /// The number of the generation.
    pub number: u64,
    /// The offset in the trace of its first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The least time of its batches: the time of its sync event.
    pub first: Timestamp,
    /// The time of its last event or CPU sample. ([`Reader`] returns a few nanoseconds more for an event that is
    /// not later than the previous one.)
    pub last: Timestamp,
}

/// A batch of a generation that has events.
#[derive(Clone, Debug)]
struct LastBatch {
    ticks: u64,
    data: Range<usize>,
}

/// The tables at the end of a generation.
///
/// Up to Go 1.25, no event ends a generation. The runtime ends each with the stacks, of which there is
/// at least one, and then the strings. A full buffer of strings is written earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tables {
    /// The stacks have not begun.
    Missing,
    /// The strings are missing.
    Stacks,
    Complete,
}

impl Tables {
    /// The tables after another batch.
    fn after(self, kind: Option<EventType>) -> Self {
        match (self, kind) {
            (_, Some(EventType::STACKS)) => Self::Stacks,
            (Self::Stacks, Some(EventType::STRINGS)) => Self::Complete,
            (_, Some(ty)) if ty == EventType::CPU_SAMPLES || is_timed(ty) => Self::Missing,
            _ => self,
        }
    }
}

/// Whether a batch that begins with this type has events with times.
fn is_timed(ty: EventType) -> bool {
    ty.plan().args != Plan::NOT_TIMED
}

impl<R: Read> Generations<R> {
    /// Reads the header of a trace from `input`, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotATrace`] and [`ErrorKind::UnsupportedVersion`]; also for a v1 trace (Go ≤ 1.21),
    /// which has no generations.
    pub fn new(input: R) -> Result<Self, Error> {
        Self::with_limits(input, Limits::default())
    }

    /// As [`Generations::new`] with custom `limits`: `max_buffer` bytes of a generation, and
    /// `max_entries` threads in it.
    ///
    /// # Errors
    ///
    /// As [`Generations::new`].
    pub fn with_limits(input: R, limits: Limits) -> Result<Self, Error> {
        let mut source = Source::new(input, limits.max_buffer);
        let version = header::read(&mut source)?;
        if version.is_v1() {
            return Err(Error::at(0, ErrorKind::NoGenerations(version)));
        }
        Ok(Self { version, limits, source, len: 0, last_number: 0, ended: false })
    }

    /// The version of the trace's format.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the next generation and its bytes; `None` at the end.
    ///
    /// # Errors
    ///
    /// The error in the framing of the trace, with its position. The generation with the error, and
    /// an incomplete one at the end, is not returned, and nothing follows it. Up to Go 1.25, a
    /// generation at the end is complete if its tables of stacks and strings are there.
    pub fn next_generation(&mut self) -> Result<Option<(GenerationSpan, &[u8])>, Error> {
        self.source.release(mem::take(&mut self.len));
        if self.ended {
            return Ok(None);
        }
        self.ended = true; // unless it is found complete
        let found = find(&mut self.source, self.version, self.limits, self.last_number)?;
        let Some(span) = found else { return Ok(None) };
        self.ended = false;
        self.last_number = span.number;
        self.len = span.len as usize;
        let bytes = self.source.window().get(..self.len).unwrap_or_default();
        Ok(Some((span, bytes)))
    }
}

/// Finds the generations of a trace that is a file, and reads little more than the headers of their
/// batches.
#[derive(Debug)]
pub(crate) struct Finder<R> {
    version: Version,
    limits: Limits,
    batches: Headers<R>,
    last_number: u64,
}

impl<R: Read + Seek> Finder<R> {
    /// # Errors
    ///
    /// As [`Generations::with_limits`].
    pub(crate) fn new(mut input: R, limits: Limits) -> Result<Self, Error> {
        let start = Generations::with_limits(&mut input, limits)?;
        let (version, offset) = (start.version, start.source.offset());
        let batches = Headers::at(input, offset)?;
        Ok(Self { version, limits, batches, last_number: 0 })
    }

    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// Returns the next generation; `None` at the end.
    ///
    /// # Errors
    ///
    /// As [`Generations::next_generation`]; nothing follows an error.
    pub(crate) fn next_generation(&mut self) -> Result<Option<GenerationSpan>, Error> {
        let span = find(&mut self.batches, self.version, self.limits, self.last_number)?;
        if let Some(span) = &span {
            self.last_number = span.number;
            self.batches.release(span.len);
        }
        Ok(span)
    }
}

/// Finds the end of a generation.
fn find(
    batches: &mut impl Batches,
    version: Version,
    limits: Limits,
    last_number: u64,
) -> Result<Option<GenerationSpan>, Error> {
    let explicit_end = version >= Version::Go126;
    let offset = batches.offset();
    let mut loader = Loader::new(version, limits);
    let mut threads: HashMap<i64, LastBatch> = HashMap::new();
    let (mut at, mut number, mut min_ticks) = (0, 0, u64::MAX);
    let (mut last_sample, mut tables) = (None, Tables::Missing);
    loop {
        let can_end = !explicit_end && tables == Tables::Complete;
        let (batch, kind) = match batches.batch(at) {
            Ok(Some(found)) => found,
            Ok(None) if number == 0 && last_number != 0 => return Ok(None),
            Ok(None) if can_end => break,
            Ok(None) => return Err(error(offset, at, number, ErrorKind::IncompleteGeneration)),
            // The damage is in the next generation, which begins with it.
            Err(error) if can_end && !stops(&error) => break,
            Err(error) => return Err(error),
        };
        if batch.end_of_generation && explicit_end && number != 0 {
            at = batch.data.end;
            break;
        }
        if batch.generation == 0 {
            return Err(error(offset, at, number, ErrorKind::InvalidGeneration));
        }
        if number == 0 {
            number = batch.generation;
        } else if batch.generation != number {
            if !explicit_end && batch.generation == number.wrapping_add(1) {
                break;
            }
            let found = batch.generation;
            let kind = ErrorKind::GenerationsOutOfOrder { current: number, found };
            return Err(error(offset, at, number, kind));
        }
        min_ticks = min_ticks.min(batch.ticks);
        at = batch.data.end;
        tables = tables.after(kind);
        if kind == Some(loader.sync_type()) {
            let start = offset + batch.data.start as u64;
            let data = batches.data(batch.data.clone())?;
            loader.process(&Batch { data: 0..data.len(), ..batch }, kind, data, start)?;
        } else if kind == Some(EventType::CPU_SAMPLES) {
            last_sample = last_sample.max(sample_ticks(batches.data(batch.data)?));
        } else if kind.is_some_and(is_timed) {
            if threads.len() >= limits.max_entries {
                let limit = limits.max_entries;
                let what = "the number of threads (max_entries)";
                return Err(error(offset, at, number, ErrorKind::limit(what, limit)));
            }
            let last = LastBatch { ticks: batch.ticks, data: batch.data };
            threads.insert(batch.thread.0, last);
        }
    }
    let Some(scale) = loader.scale() else {
        return Err(error(offset, at, number, ErrorKind::NoFrequency));
    };
    let first = scale.nanos(min_ticks);
    let mut last = last_sample.map_or(first, |ticks| scale.nanos(ticks).max(first));
    for batch in threads.into_values() {
        last = last.max(last_time(batch.ticks, batches.data(batch.data)?, scale));
    }
    let (first, last) = (Timestamp::from_nanos(first), Timestamp::from_nanos(last));
    Ok(Some(GenerationSpan { number, offset, len: at as u64, first, last }))
}

/// An error at index `at` of the generation, which begins at `offset`.
fn error(offset: u64, at: usize, number: u64, kind: ErrorKind) -> Error {
    let generation = (number != 0).then_some(number);
    Error::new(kind, Position { offset: offset + at as u64, generation, ..Position::default() })
}

/// The time of the last event of a batch that can be decoded.
fn last_time(ticks: u64, data: &[u8], scale: TickScale) -> i64 {
    let batch = EventBatch { ticks, data: 0..data.len(), next: NO_BATCH };
    let events = Events { scale, batches: vec![batch], ..Events::default() };
    let mut cursor = Cursor::new(ThreadId::NONE, 0, 0, &events.batches);
    let mut time = scale.nanos(ticks);
    while let Ok(true) = cursor.advance(&events, data) {
        time = cursor.event.time;
    }
    time
}

/// The time in ticks of the last CPU sample of a batch, of those that can be decoded.
fn sample_ticks(data: &[u8]) -> Option<u64> {
    // The first byte is the type of the batch.
    let mut cursor = Bytes::new(data.get(1..).unwrap_or_default());
    let sample = || {
        let is_sample = cursor.u8().ok()? == EventType::CPU_SAMPLE.0;
        let ticks = cursor.uvarint().ok().filter(|_| is_sample)?;
        (0..4).try_for_each(|_| cursor.uvarint().ok().map(drop))?;
        Some(ticks)
    };
    std::iter::from_fn(sample).max()
}

/// The positions and times of all generations of a trace.
///
/// It needs one pass over the trace, which does not decode the events, and 40 bytes of memory per
/// generation. Afterwards, [`Index::open`] reads a part of the trace.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gotrace::{Index, Timestamp};
/// use std::io::Cursor;
///
/// # let trace: &[u8] = include_bytes!("../tests/data/shop.trace");
/// let mut file = Cursor::new(trace); // or a `File`
/// let index = Index::read(&mut file)?;
/// let first = index.generations().first().map_or(Timestamp::default(), |first| first.first);
/// let to = Timestamp::from_nanos(first.nanos() + 1_000_000);
/// // The generations with events of the first millisecond.
/// let mut reader = index.open(file, index.select(first, to))?;
/// while let Some(event) = reader.next_event()? {
///     if event.time() <= to {
///         println!("{event}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Index {
    version: Version,
    limits: Limits,
    generations: Vec<GenerationSpan>,
    damage: Option<Error>,
}

impl Index {
    /// Reads a trace to its end, or to the first damage, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// As [`Generations::new`], and errors of the input.
    pub fn read(input: impl Read) -> Result<Self, Error> {
        Self::with_limits(input, Limits::default())
    }

    /// As [`Index::read`] with custom `limits`: those of [`Generations::with_limits`], and
    /// `max_entries` generations.
    ///
    /// # Errors
    ///
    /// As [`Index::read`], and [`ErrorKind::Limit`] for too many generations.
    pub fn with_limits(input: impl Read, limits: Limits) -> Result<Self, Error> {
        let mut reader = Generations::with_limits(input, limits)?;
        let (version, generations) = (reader.version(), Vec::new());
        let mut index = Self { version, limits, generations, damage: None };
        loop {
            match reader.next_generation() {
                Ok(Some((span, _))) if index.generations.len() == limits.max_entries => {
                    let what = "the number of generations (max_entries)";
                    let kind = ErrorKind::limit(what, limits.max_entries);
                    return Err(Error::at(span.offset, kind));
                }
                Ok(Some((span, _))) => index.generations.push(span),
                Ok(None) => return Ok(index),
                Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => return Err(error),
                Err(error) => {
                    index.damage = Some(error);
                    return Ok(index);
                }
            }
        }
    }

    /// The version of the trace's format.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The generations, in order.
    pub fn generations(&self) -> &[GenerationSpan] {
        &self.generations
    }

    /// The error that ends the index, if the trace is damaged or truncated: generations that follow
    /// it are not in the index.
    pub const fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// The generations that may have events from `from` to `to`, inclusive, as a range of
    /// [`Index::generations`]; an empty range if there are none.
    pub fn select(&self, from: Timestamp, to: Timestamp) -> Range<usize> {
        let overlaps = |span: &GenerationSpan| span.first <= to && from <= span.last;
        let start = self.generations.iter().position(overlaps);
        let end = self.generations.iter().rposition(overlaps);
        match (start, end) {
            (Some(start), Some(end)) => start..end + 1,
            _ => 0..0,
        }
    }

    /// The bytes of generations in the trace; `None` if the range is empty or exceeds the index.
    fn bytes(&self, generations: Range<usize>) -> Option<Range<u64>> {
        let spans = self.generations.get(generations)?;
        let (first, last) = (spans.first()?, spans.last()?);
        Some(first.offset..last.offset + last.len)
    }

    /// Opens a reader of the given range of [`Index::generations`] of the trace in `input`.
    ///
    /// The reader does not read other generations. Its first events report the states of goroutines
    /// and procs, as at the start of a trace; tasks and regions that began in an earlier generation
    /// end without a begin. Its limits are those of the index.
    ///
    /// # Errors
    ///
    /// Errors of the input. A reader of a range that is empty or exceeds the index returns an error:
    /// [`ErrorKind::IncompleteGeneration`], up to Go 1.25 [`ErrorKind::NoFrequency`].
    pub fn open<R: Read + Seek>(
        &self,
        mut input: R,
        generations: Range<usize>,
    ) -> Result<Reader<Take<R>>, Error> {
        let Range { start, end } = self.bytes(generations).unwrap_or_default();
        input.seek(SeekFrom::Start(start)).map_err(|error| Error::at(start, error))?;
        Ok(Reader::within(input.take(end - start), self.version, self.limits, start))
    }

    /// Writes a trace with the given range of [`Index::generations`] of the trace in `input`;
    /// returns its size in bytes.
    ///
    /// Go's own tools read it as a trace of its own.
    ///
    /// # Errors
    ///
    /// Errors of the input and the output; [`io::ErrorKind::UnexpectedEof`] if the input is shorter
    /// than when the index was read. [`io::ErrorKind::InvalidInput`], before anything is written, if
    /// the range is empty or exceeds the index: [`Index::select`] returns an empty one if there are no
    /// events in the range of time.
    pub fn copy<R: Read + Seek>(
        &self,
        mut input: R,
        generations: Range<usize>,
        output: &mut impl Write,
    ) -> io::Result<u64> {
        let Some(Range { start, end }) = self.bytes(generations.clone()) else {
            let count = self.generations.len();
            let message = format!("no generations {generations:?} in an index of {count}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        output.write_all(&self.version.header())?;
        input.seek(SeekFrom::Start(start))?;
        let copied = io::copy(&mut input.take(end - start), output)?;
        if copied == end - start {
            Ok(Version::HEADER_LEN as u64 + copied)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}
