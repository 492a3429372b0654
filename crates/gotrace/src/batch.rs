//! Batches: the content of a v2 trace after its header.

use crate::error::{Error, ErrorKind, Position};
use crate::id::ThreadId;
use crate::source::Source;
use crate::spec::{EventType, Experiment};
use std::io::Read;
use std::ops::Range;
use trace_common::{Cursor, ReadError};

/// The largest batch that the runtime writes.
pub(crate) const MAX_BATCH_SIZE: u64 = 64 << 10;

/// The header of a batch. The bare byte that ends a generation counts as a batch.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// 0 for the end of a generation.
    pub(crate) generation: u64,
    pub(crate) thread: ThreadId,
    /// Base of the timestamps, in ticks.
    pub(crate) ticks: u64,
    pub(crate) experiment: Experiment,
    /// Whether it is the bare byte that ends a generation.
    pub(crate) end_of_generation: bool,
    /// Its data, as indexes into the bytes of the [`Source`].
    pub(crate) data: Range<usize>,
}

impl Batch {
    /// The first byte of the data, which determines the kind of batch. `None` for experimental
    /// data.
    pub(crate) fn kind(&self, bytes: &[u8]) -> Option<EventType> {
        // Of a header that was read by itself, the data may be longer than the bytes.
        let first = bytes.get(self.data.start).filter(|_| !self.data.is_empty())?;
        (self.experiment == Experiment::NONE).then_some(EventType(*first))
    }
}

/// Reads the batch that begins at index `at` of the source's bytes; `None` at the end of the input.
///
/// It reads no more input than the batch needs, so that a live trace is decoded without delay.
pub(crate) fn read<R: Read>(source: &mut Source<R>, at: usize) -> Result<Option<Batch>, Error> {
    if !source.ensure(at + 1)? {
        return Ok(None);
    }
    loop {
        let bytes = source.window();
        match header(bytes.get(at..).unwrap_or_default(), source.offset() + at as u64) {
            Ok((mut batch, len)) => {
                let wanted = batch.data.len();
                batch.data = at + len..at + len + wanted;
                if !source.ensure(batch.data.end)? {
                    let left = source.window().len() - batch.data.start;
                    let cause = trace_common::ReadErrorKind::UnexpectedEnd { wanted, left };
                    let offset = source.offset() + batch.data.start as u64;
                    let kind = ErrorKind::Malformed { what: "batch data", cause };
                    let position = Position {
                        offset,
                        generation: Some(batch.generation),
                        thread: Some(batch.thread),
                        event: None,
                    };
                    return Err(Error::new(kind, position));
                }
                return Ok(Some(batch));
            }
            Err(HeaderError::Short(error)) => {
                if !source.fill()? {
                    return Err(error);
                }
            }
            Err(HeaderError::Bad(error)) => return Err(error),
        }
    }
}

/// Returns the batch at index `at` of the source's window, whose data is truncated by the end of
/// the input.
pub(crate) fn read_cut<R: Read>(source: &Source<R>, at: usize) -> Option<Batch> {
    let bytes = source.window();
    let (mut batch, len) = header(bytes.get(at..)?, 0).ok()?;
    batch.data = at + len..(at + len + batch.data.len()).min(bytes.len());
    Some(batch)
}

pub(crate) enum HeaderError {
    /// More bytes may complete the header.
    Short(Error),
    Bad(Error),
}

/// Parses a header at the start of `bytes`, which begin at `offset` of the input. The returned
/// range of the data starts at 0; the second value is the length of the header.
pub(crate) fn header(bytes: &[u8], offset: u64) -> Result<(Batch, usize), HeaderError> {
    let mut cursor = Cursor::with_base(bytes, offset);
    let ty = EventType(cursor.u8().map_err(|e| short("batch", e))?);
    let mut batch = Batch {
        generation: 0,
        thread: ThreadId::NONE,
        ticks: 0,
        experiment: Experiment::NONE,
        end_of_generation: false,
        data: 0..0,
    };
    match ty {
        EventType::END_OF_GENERATION => {
            batch.end_of_generation = true;
            return Ok((batch, 1));
        }
        EventType::EVENT_BATCH => {}
        EventType::EXPERIMENTAL_BATCH => {
            batch.experiment = Experiment(cursor.u8().map_err(|e| short("experiment", e))?);
        }
        _ => return Err(HeaderError::Bad(Error::at(offset, ErrorKind::NotABatch(ty)))),
    }
    let mut field = |what| cursor.uvarint().map_err(|e| short(what, e));
    batch.generation = field("generation of a batch")?;
    batch.thread = ThreadId(field("thread of a batch")? as i64);
    batch.ticks = field("timestamp of a batch")?;
    let size = field("size of a batch")?;
    if size > MAX_BATCH_SIZE {
        let kind = ErrorKind::TooLarge { what: "batch", value: size, limit: MAX_BATCH_SIZE };
        let position = Position {
            offset,
            generation: Some(batch.generation),
            thread: Some(batch.thread),
            event: None,
        };
        return Err(HeaderError::Bad(Error::new(kind, position)));
    }
    batch.data = 0..size as usize;
    Ok((batch, cursor.position()))
}

fn short(what: &'static str, error: ReadError) -> HeaderError {
    let kind = ErrorKind::Malformed { what, cause: error.kind };
    let full = Error::at(error.offset, kind);
    match error.kind {
        trace_common::ReadErrorKind::UnexpectedEnd { .. } => HeaderError::Short(full),
        _ => HeaderError::Bad(full),
    }
}
