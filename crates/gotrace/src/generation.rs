//! Loading one generation: finding its batches and decoding its tables.

mod salvage;

use crate::batch::{self, Batch};
use crate::clock::{TickScale, normalize};
use crate::error::{Error, ErrorKind, Position};
use crate::event::Record;
use crate::gosort;
use crate::id::{GoId, ProcId, ThreadId};
use crate::source::Source;
use crate::spec::{EventType, Experiment};
use crate::table::{self, ClockSnapshot, Frame, Span, Table};
use crate::version::Version;
pub(crate) use salvage::{LostBytes, Salvage, Salvaged, stops};
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use trace_common::{Cursor, Limits, ReadError, SeededState, Timestamp};

/// The maximum that the runtime writes: bytes of a string, frames of a stack.
const MAX_STRING: u64 = 1 << 10;
const MAX_FRAMES: u64 = 128;

/// One generation.
#[derive(Debug)]
pub(crate) struct Generation {
    /// The least base timestamp of its batches.
    pub(crate) min_time: i64,
    pub(crate) table: Arc<Table>,
    pub(crate) events: Events,
    /// CPU samples, the earliest last.
    pub(crate) samples: Vec<Record>,
    /// Where the data of the batches with CPU samples begin in the window.
    pub(crate) sample_batches: Vec<usize>,
}

/// The positions of a generation's events, which are still encoded.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) scale: TickScale,
    pub(crate) known: KnownIds,
    /// The batches of one thread are linked in the order of the file.
    pub(crate) batches: Vec<EventBatch>,
    /// Threads in the order in which they appear.
    pub(crate) threads: Vec<ThreadBatches>,
}

/// Identifiers that are known to be in the tables of the generation: all below these.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownIds {
    pub(crate) stacks: u64,
    pub(crate) strings: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct EventBatch {
    pub(crate) ticks: u64,
    /// Indexes into the bytes of the [`Source`].
    pub(crate) data: Range<usize>,
    /// The next batch of the same thread, or [`NO_BATCH`].
    pub(crate) next: u32,
}

pub(crate) const NO_BATCH: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadBatches {
    pub(crate) thread: ThreadId,
    pub(crate) first: u32,
    last: u32,
}

/// The result of loading a generation.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// The generation is complete: the first `len` bytes of the source.
    Complete {
        generation: Box<Generation>,
        len: usize,
        /// An error after the generation, to be reported after its events.
        then: Option<Error>,
        /// Whether the input ends after the generation.
        last: bool,
    },
    /// There is no further generation: the trace has ended.
    End,
    /// The generation is damaged.
    Failed(Error),
}

/// A generation that is being loaded.
#[derive(Debug)]
pub(crate) struct Loader {
    version: Version,
    limits: Limits,
    /// The end of the last batch that was read.
    at: usize,
    /// Whether any batch was read.
    any: bool,
    number: u64,
    min_ticks: u64,
    table: Table,
    events: Events,
    thread_index: HashMap<i64, u32, SeededState>,
    samples: Vec<Record>,
    sample_batches: Vec<usize>,
    /// Ticks of the clock snapshot: the frequency may follow it.
    snapshot_ticks: u64,
}

impl Loader {
    pub(crate) fn new(version: Version, limits: Limits) -> Self {
        Self {
            version,
            limits,
            at: 0,
            any: false,
            number: 0,
            min_ticks: 0,
            table: Table::new(0),
            events: Events::default(),
            thread_index: HashMap::default(),
            samples: Vec::new(),
            sample_batches: Vec::new(),
            snapshot_ticks: 0,
        }
    }

    /// Reads batches until the generation is complete.
    pub(crate) fn load<R: Read>(mut self, source: &mut Source<R>) -> Loaded {
        match self.batches(source) {
            Ok(ending) => self.finish(ending, source.offset()),
            Err(error) => Loaded::Failed(error),
        }
    }

    fn batches<R: Read>(&mut self, source: &mut Source<R>) -> Result<Ending, Error> {
        let explicit_end = self.version >= Version::Go126;
        loop {
            let batch = match batch::read(source, self.at) {
                Ok(Some(batch)) => batch,
                Ok(None) if explicit_end && self.any => {
                    return Err(self.error(source.offset(), ErrorKind::IncompleteGeneration));
                }
                Ok(None) => return Ok(Ending::Input),
                // This may be damage in the next generation: the batches read so far are complete,
                // unless generations end explicitly, or the size limit ends them.
                Err(error)
                    if !explicit_end
                        && self.number != 0
                        && !matches!(error.kind(), ErrorKind::Limit { .. }) =>
                {
                    return Ok(Ending::Error(error));
                }
                Err(error) => return Err(error),
            };
            let offset = source.offset();
            let found = batch.generation;
            if self.number == 0 && (explicit_end || found != 0) {
                self.number = found;
            }
            let kind = batch.kind(source.window());
            let ends = batch.end_of_generation || kind == Some(EventType::END_OF_GENERATION);
            if explicit_end && ends {
                self.at = batch.data.end;
                return Ok(Ending::Event);
            }
            if found == 0 {
                return Err(self.error(offset, ErrorKind::InvalidGeneration));
            }
            if found != self.number {
                if !explicit_end && found == self.number.wrapping_add(1) {
                    return Ok(Ending::NextGeneration);
                }
                let kind = ErrorKind::GenerationsOutOfOrder { current: self.number, found };
                return Err(self.error(offset, kind));
            }
            if self.min_ticks == 0 || batch.ticks < self.min_ticks {
                self.min_ticks = batch.ticks;
            }
            self.any = true;
            self.at = batch.data.end;
            self.process(&batch, kind, source.window(), offset).map_err(|mut error| {
                error.position_mut().generation = Some(self.number);
                error.position_mut().thread = Some(batch.thread);
                error
            })?;
        }
    }

    /// An error at the batch after those read so far.
    fn error(&self, source_offset: u64, kind: ErrorKind) -> Error {
        let generation = (self.number != 0).then_some(self.number);
        let offset = source_offset + self.at as u64;
        Error::new(kind, Position { offset, generation, ..Position::default() })
    }

    pub(crate) fn process(
        &mut self,
        batch: &Batch,
        kind: Option<EventType>,
        bytes: &[u8],
        source_offset: u64,
    ) -> Result<(), Error> {
        let data = bytes.get(batch.data.clone()).unwrap_or_default();
        let offset = source_offset + batch.data.start as u64;
        let mut cursor = Cursor::with_base(data, offset);
        match kind {
            Some(EventType::STRINGS) => self.strings(&mut cursor),
            Some(EventType::STACKS) => self.stacks(&mut cursor),
            Some(EventType::CPU_SAMPLES) => {
                self.sample_batches.push(batch.data.start);
                self.cpu_samples(&mut cursor)
            }
            Some(ty) if ty == self.sync_type() => self.sync(&mut cursor, batch.ticks),
            Some(EventType::END_OF_GENERATION) => {
                Err(Error::at(offset, ErrorKind::UnexpectedEvent(EventType::END_OF_GENERATION)))
            }
            _ if batch.experiment != Experiment::NONE => {
                self.table.experimental.push(table::Batch {
                    experiment: batch.experiment,
                    thread: batch.thread,
                    data: data.into(),
                });
                Ok(())
            }
            _ => self.events(batch, offset),
        }
    }

    /// The first event of the batch that contains the frequency.
    pub(crate) fn sync_type(&self) -> EventType {
        if self.version < Version::Go125 { EventType::FREQUENCY } else { EventType::SYNC }
    }

    /// The scale of the clock, if a sync batch was [processed](Loader::process).
    pub(crate) fn scale(&self) -> Option<TickScale> {
        let nanos_per_tick = self.table.sync.nanos_per_tick;
        (nanos_per_tick != 0.0).then(|| TickScale::new(nanos_per_tick))
    }

    fn events(&mut self, batch: &Batch, offset: u64) -> Result<(), Error> {
        self.check_entries(
            "the number of batches (max_entries)",
            self.events.batches.len(),
            offset,
        )?;
        let Events { batches, threads, .. } = &mut self.events;
        let index = batches.len() as u32;
        batches.push(EventBatch { ticks: batch.ticks, data: batch.data.clone(), next: NO_BATCH });
        let slot = *self.thread_index.entry(batch.thread.0).or_insert_with(|| {
            threads.push(ThreadBatches { thread: batch.thread, first: index, last: NO_BATCH });
            threads.len() as u32 - 1
        });
        let Some(thread) = threads.get_mut(slot as usize) else { return Ok(()) };
        if let Some(last) = batches.get_mut(thread.last as usize) {
            last.next = index;
        }
        thread.last = index;
        Ok(())
    }

    fn check_entries(&self, what: &'static str, len: usize, offset: u64) -> Result<(), Error> {
        let limit = self.limits.max_entries.min(NO_BATCH as usize);
        if len < limit { Ok(()) } else { Err(Error::at(offset, ErrorKind::limit(what, limit))) }
    }

    fn strings(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        expect(cursor, EventType::STRINGS)?;
        while !cursor.is_empty() {
            self.string(cursor)?;
        }
        Ok(())
    }

    fn string(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        let offset = cursor.offset();
        expect(cursor, EventType::STRING)?;
        let id = uvarint(cursor, "string")?;
        let len = at_most(cursor, "string", MAX_STRING)?;
        let bytes = cursor.bytes(len).map_err(|e| malformed("string", e))?;
        self.check_entries(
            "the number of strings (max_entries)",
            self.table.strings.len(),
            offset,
        )?;
        if !self.table.strings.insert(id, Arc::from(bytes)) {
            return Err(Error::at(offset, ErrorKind::DuplicateId { what: "string", id }));
        }
        Ok(())
    }

    fn stacks(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        expect(cursor, EventType::STACKS)?;
        while !cursor.is_empty() {
            self.stack(cursor)?;
        }
        Ok(())
    }

    fn stack(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        let offset = cursor.offset();
        expect(cursor, EventType::STACK)?;
        let id = uvarint(cursor, "stack")?;
        let len = at_most(cursor, "stack", MAX_FRAMES)?;
        let frames = self.table.stack_frames.len();
        self.check_entries("the number of stack frames (max_entries)", frames + len, offset)?;
        for _ in 0..len {
            let mut field = || uvarint(cursor, "stack frame");
            let frame = Frame { pc: field()?, func: field()?, file: field()?, line: field()? };
            self.table.push_frame(frame);
        }
        let span = Span { start: frames as u32, len: len as u32 };
        if !self.table.stacks.insert(id, span) {
            return Err(Error::at(offset, ErrorKind::DuplicateId { what: "stack", id }));
        }
        Ok(())
    }

    fn cpu_samples(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        expect(cursor, EventType::CPU_SAMPLES)?;
        while !cursor.is_empty() {
            self.check_entries(
                "the number of samples (max_entries)",
                self.samples.len(),
                cursor.offset(),
            )?;
            expect(cursor, EventType::CPU_SAMPLE)?;
            let mut field = || uvarint(cursor, "CPU sample");
            let (ticks, m, p, g, stack) = (field()?, field()?, field()?, field()?, field()?);
            // The time stays in ticks until the frequency is known.
            self.samples.push(Record {
                m: ThreadId(m as i64),
                p: ProcId(p as i64),
                g: if g == 0 { GoId::NONE } else { GoId(g as i64) },
                ..Record::new(EventType::CPU_SAMPLE, ticks as i64, [stack, 0, 0, 0])
            });
        }
        Ok(())
    }

    fn sync(&mut self, cursor: &mut Cursor<'_>, mut ticks: u64) -> Result<(), Error> {
        let has_snapshots = self.version >= Version::Go125;
        if has_snapshots {
            expect(cursor, EventType::SYNC)?;
        }
        while !cursor.is_empty() {
            let offset = cursor.offset();
            let ty = EventType(cursor.u8().map_err(|e| malformed("sync batch", e))?);
            let sync = &mut self.table.sync;
            match ty {
                EventType::FREQUENCY if sync.nanos_per_tick == 0.0 => {
                    let per_second = uvarint(cursor, "frequency")?;
                    sync.nanos_per_tick = 1.0 / (per_second as f64 / 1e9);
                }
                EventType::CLOCK_SNAPSHOT if has_snapshots && sync.snapshot.is_none() => {
                    let mut field = || uvarint(cursor, "clock snapshot");
                    ticks = ticks.wrapping_add(field()?);
                    let mono = field()?;
                    let (wall_seconds, wall_nanos) = normalize(field()? as i64, field()? as i64);
                    self.snapshot_ticks = ticks;
                    let trace = Timestamp::default(); // set when the frequency is known
                    sync.snapshot = Some(ClockSnapshot { trace, mono, wall_seconds, wall_nanos });
                }
                _ => return Err(Error::at(offset, ErrorKind::UnexpectedEvent(ty))),
            }
        }
        Ok(())
    }

    fn finish(self, ending: Ending, source_offset: u64) -> Loaded {
        if matches!(ending, Ending::Input) && !self.any && self.version >= Version::Go126 {
            return Loaded::End;
        }
        if let Err(kind) = self.check() {
            return Loaded::Failed(self.error(source_offset, kind));
        }
        let last = matches!(ending, Ending::Input);
        let then = if let Ending::Error(error) = ending { Some(error) } else { None };
        let (generation, len) = self.into_generation();
        Loaded::Complete { generation: Box::new(generation), len, then, last }
    }

    fn check(&self) -> Result<(), ErrorKind> {
        let table = &self.table;
        if table.sync.nanos_per_tick == 0.0 {
            return Err(ErrorKind::NoFrequency);
        }
        if self.version >= Version::Go125 && table.sync.snapshot.is_none() {
            return Err(ErrorKind::NoClockSnapshot);
        }
        for frame in &table.frames {
            for (what, id) in [("function name", frame.func), ("file name", frame.file)] {
                if !table.has_string(id) {
                    return Err(ErrorKind::UnknownId { what, id });
                }
            }
        }
        Ok(())
    }

    fn into_generation(mut self) -> (Generation, usize) {
        let scale = TickScale::new(self.table.sync.nanos_per_tick);
        if let Some(snapshot) = &mut self.table.sync.snapshot {
            snapshot.trace = Timestamp::from_nanos(scale.nanos(self.snapshot_ticks));
        }
        for sample in &mut self.samples {
            sample.time = scale.nanos(sample.time as u64);
        }
        gosort::sort_by(&mut self.samples, |a, b| a.time < b.time);
        self.samples.reverse();
        self.table.generation = self.number;
        self.table.complete();
        let known = self.table.known_ids();
        let generation = Generation {
            min_time: scale.nanos(self.min_ticks),
            table: Arc::new(self.table),
            events: Events { scale, known, ..self.events },
            samples: self.samples,
            sample_batches: self.sample_batches,
        };
        (generation, self.at)
    }
}

/// The reason why a generation has no more batches.
enum Ending {
    /// The event that ends it was read.
    Event,
    /// A batch of the next generation follows.
    NextGeneration,
    /// The input ended.
    Input,
    /// The following bytes are damaged.
    Error(Error),
}

fn expect(cursor: &mut Cursor<'_>, wanted: EventType) -> Result<(), Error> {
    let offset = cursor.offset();
    let found = EventType(cursor.u8().map_err(|e| malformed("event", e))?);
    if found == wanted { Ok(()) } else { Err(Error::at(offset, ErrorKind::UnexpectedEvent(found))) }
}

fn uvarint(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u64, Error> {
    cursor.uvarint().map_err(|e| malformed(what, e))
}

fn at_most(cursor: &mut Cursor<'_>, what: &'static str, max: u64) -> Result<usize, Error> {
    let offset = cursor.offset();
    let size = uvarint(cursor, what)?;
    if size <= max {
        Ok(size as usize)
    } else {
        Err(Error::at(offset, ErrorKind::TooLarge { what, value: size, limit: max }))
    }
}

fn malformed(what: &'static str, error: ReadError) -> Error {
    Error::at(error.offset, ErrorKind::Malformed { what, cause: error.kind })
}
