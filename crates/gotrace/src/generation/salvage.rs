//! Salvaging the intact parts of a damaged generation.

use super::{Generation, Loader};
use crate::batch::{self, Batch};
use crate::error::{Error, ErrorKind};
use crate::resync;
use crate::source::Source;
use crate::spec::{EventType, Plan};
use crate::version::Version;
use std::io::Read;
use std::mem;
use std::ops::Range;
use trace_common::{Cursor, Limits};

/// A tick of the trace clock on Linux: the frequency is 15 625 000 ticks per second.
const LINUX_NANOS_PER_TICK: f64 = 64.0;

/// Loads all intact batches of a generation, and the part of each damaged batch that precedes the
/// damage.
#[derive(Debug)]
pub(crate) struct Salvage<'a, R> {
    source: &'a mut Source<R>,
    loader: Loader,
    /// The last batch that was found, and its index. It is loaded when another batch is known to
    /// follow it.
    last: Option<(usize, Batch)>,
    /// Whether that batch is truncated by the end of the input. If its size is wrong, it may
    /// contain other batches.
    cut: bool,
    /// Batches with CPU samples that were loaded before the damage was found, in order. Damage can
    /// hide others: a batch of a wrong size contains the batches that follow it.
    loaded: Vec<usize>,
    lost: LostBytes,
}

/// The salvaged part of a generation.
#[derive(Debug)]
pub(crate) struct Salvaged {
    /// `None` if there are neither events nor samples.
    pub(crate) generation: Option<Box<Generation>>,
    /// Number of bytes in the source's window that belong to it, damaged ones included.
    pub(crate) len: usize,
    /// Whether the input ends after it.
    pub(crate) at_end: bool,
    pub(crate) lost: LostBytes,
    /// Whether the frequency of the clock is assumed.
    pub(crate) guessed_frequency: bool,
}

/// The extent of the loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostBytes {
    /// From the first to the last byte that was lost, as offsets in the trace.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) bytes: u64,
    /// The number of these bytes that are in batches of events.
    pub(crate) event_bytes: u64,
}

impl LostBytes {
    pub(crate) fn add(&mut self, lost: Range<u64>) {
        if lost.is_empty() {
            return;
        }
        self.bytes += lost.end - lost.start;
        let all = self.range.get_or_insert(lost.clone());
        *all = all.start.min(lost.start)..all.end.max(lost.end);
    }
}

/// The item that follows a batch.
enum Next {
    Batch(Batch),
    /// Another generation, or the size limit.
    Other,
    End,
    Damage,
}

impl<'a, R: Read> Salvage<'a, R> {
    /// Searches for generation `last` or a later one; `None` if there is none. The bytes before it
    /// are released.
    pub(crate) fn find(
        source: &'a mut Source<R>,
        version: Version,
        limits: Limits,
        last: u64,
        lost: &mut LostBytes,
    ) -> Option<Self> {
        let from = source.offset();
        let found = resync::continues(source, last) || resync::skip(source, last);
        lost.add(from..source.offset());
        if !found {
            return None;
        }
        let number = match batch::read_cut(source, 0) {
            Some(batch) => batch.generation,
            None => last,
        };
        Some(Self::again(source, version, limits, number, Vec::new()))
    }

    /// Loads the generation `number` at the start of the window again, except for the batches with
    /// CPU samples at the positions `loaded`.
    pub(crate) fn again(
        source: &'a mut Source<R>,
        version: Version,
        limits: Limits,
        number: u64,
        loaded: Vec<usize>,
    ) -> Self {
        let mut loader = Loader::new(version, limits);
        loader.number = number;
        Self { source, loader, last: None, cut: false, loaded, lost: LostBytes::default() }
    }

    /// Loads the generation. Its clock has the frequency `nanos_per_tick` if its own frequency is
    /// lost; 0 if no generation had one.
    pub(crate) fn load(mut self, nanos_per_tick: f64) -> Salvaged {
        let at_end = self.batches();
        let Self { mut loader, lost, .. } = self;
        let own = &mut loader.table.sync.nanos_per_tick;
        let lost_frequency = *own == 0.0 || !own.is_finite();
        if lost_frequency {
            *own = if nanos_per_tick == 0.0 { LINUX_NANOS_PER_TICK } else { nanos_per_tick };
        }
        let guessed_frequency = lost_frequency && nanos_per_tick == 0.0;
        let len = loader.at;
        let any = !loader.events.batches.is_empty() || !loader.samples.is_empty();
        let generation = any.then(|| Box::new(loader.into_generation().0));
        Salvaged { generation, len, at_end, lost, guessed_frequency }
    }

    /// Reads batches to the end of the generation; `true` at the end of the input.
    fn batches(&mut self) -> bool {
        loop {
            match self.next() {
                Next::Batch(batch) => {
                    self.load_last();
                    let start = mem::replace(&mut self.loader.at, batch.data.end);
                    self.last = Some((start, batch));
                }
                Next::Damage => self.resync(),
                next => {
                    self.load_last();
                    return matches!(next, Next::End);
                }
            }
        }
    }

    fn next(&mut self) -> Next {
        let at = self.loader.at;
        let batch = match batch::read(self.source, at) {
            Ok(Some(batch)) => batch,
            _ if mem::take(&mut self.cut) => return Next::Damage,
            Ok(None) => return Next::End,
            Err(error) => match batch::read_cut(self.source, at) {
                Some(batch) => {
                    self.cut = true;
                    batch
                }
                None if stops(&error) => return Next::Other,
                None => return Next::Damage,
            },
        };
        if batch.end_of_generation {
            let explicit = self.loader.version >= Version::Go126;
            if explicit && self.ends(batch.data.end) {
                self.loader.at = batch.data.end;
                return Next::Other;
            }
            return Next::Damage;
        }
        if batch.generation == self.loader.number {
            return Next::Batch(batch);
        }
        let other = resync::is_batch(self.source, at, self.loader.number);
        if other { Next::Other } else { Next::Damage }
    }

    /// Whether a generation can end before index `at`: a later one begins there, or the input ends.
    fn ends(&mut self, at: usize) -> bool {
        match batch::read(self.source, at) {
            Ok(Some(batch)) => batch.generation > self.loader.number,
            Ok(None) => true,
            Err(error) => stops(&error),
        }
    }

    /// Moves to the next batch after damage, or to the end of the readable bytes.
    fn resync(&mut self) {
        let (at, number) = (self.loader.at, self.loader.number);
        // If the size of the last batch is damaged, that batch contains the next one: behind its
        // events, because no event begins like a batch.
        let from = match &self.last {
            Some((start, batch)) => (start + 1).max(self.end_of_events(batch)),
            None => at + 1,
        };
        let mut found = resync::find(self.source, from, number);
        if found == Some(at) {
            found = resync::find(self.source, at + 1, number);
        }
        let next = found.unwrap_or(self.source.window().len());
        let damaged = match self.last.take_if(|_| next < at) {
            Some((start, _)) => start,
            None => at,
        };
        self.lose(damaged..next);
        self.loader.at = next;
    }

    /// Where the decodable events of a batch end; 0 if it is no batch of events.
    fn end_of_events(&self, batch: &Batch) -> usize {
        let bytes = self.source.window();
        let tables = [EventType::STRINGS, EventType::STACKS, EventType::CPU_SAMPLES];
        match batch.kind(bytes) {
            Some(ty) if !tables.contains(&ty) && ty != self.loader.sync_type() => {
                let data = bytes.get(batch.data.clone()).unwrap_or_default();
                batch.data.start + decodable(data)
            }
            _ => 0,
        }
    }

    fn lose(&mut self, lost: Range<usize>) {
        let base = self.source.offset();
        self.lost.add(base + lost.start as u64..base + lost.end as u64);
    }

    /// Loads the batch that was found last.
    #[expect(
        clippy::indexing_slicing,
        reason = "the data of a batch lies within the bytes that it was read from"
    )]
    fn load_last(&mut self) {
        let Some((_, mut batch)) = self.last.take() else { return };
        let loader = &mut self.loader;
        if loader.min_ticks == 0 || batch.ticks < loader.min_ticks {
            loader.min_ticks = batch.ticks;
        }
        loader.any = true;
        let bytes = self.source.window();
        let kind = batch.kind(bytes);
        let data = batch.data.clone();
        let mut cursor = Cursor::new(&bytes[data.clone()]);
        // Number of intact bytes.
        let (intact, of_events) = match kind {
            Some(EventType::STRINGS) => (table(&mut cursor, |cursor| loader.string(cursor)), false),
            Some(EventType::STACKS) => (table(&mut cursor, |cursor| loader.stack(cursor)), false),
            Some(EventType::CPU_SAMPLES) if self.loaded.binary_search(&data.start).is_ok() => {
                (data.len(), true)
            }
            Some(EventType::CPU_SAMPLES) => match loader.cpu_samples(&mut cursor) {
                Ok(()) => (data.len(), true),
                Err(error) => (error.position().offset as usize, true),
            },
            kind if kind.is_none_or(|ty| ty == loader.sync_type()) => {
                match loader.process(&batch, kind, bytes, 0) {
                    Ok(()) => (data.len(), false),
                    Err(error) => (error.position().offset as usize - data.start, false),
                }
            }
            _ => {
                batch.data.end = data.start + decodable(&bytes[data.clone()]);
                let loaded = loader.events(&batch, 0);
                (loaded.map_or(0, |()| batch.data.len()), true)
            }
        };
        let lost = data.start + intact.min(data.len())..data.end;
        if of_events {
            self.lost.event_bytes += lost.len() as u64;
        }
        self.lose(lost);
    }
}

/// Whether reading stops here without damage.
pub(crate) fn stops(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io(_) | ErrorKind::Limit { .. })
}

/// Reads the entries of a table and returns the number of intact bytes. Of entries with the same
/// identifier, the first is kept.
fn table(
    cursor: &mut Cursor<'_>,
    mut entry: impl FnMut(&mut Cursor<'_>) -> Result<(), Error>,
) -> usize {
    let _kind = cursor.u8();
    while !cursor.is_empty() {
        let start = cursor.position();
        match entry(cursor) {
            Err(error) if !matches!(error.kind(), ErrorKind::DuplicateId { .. }) => return start,
            _ => {}
        }
    }
    cursor.position()
}

/// Number of bytes in a batch's data that decode as events.
fn decodable(data: &[u8]) -> usize {
    let mut cursor = Cursor::new(data);
    loop {
        let start = cursor.position();
        let Ok(ty) = cursor.u8() else { return start };
        let args = EventType(ty).plan().args;
        if args == Plan::NOT_TIMED || (0..=args).any(|_| cursor.uvarint().is_err()) {
            return start;
        }
    }
}
