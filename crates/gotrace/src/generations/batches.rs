//! Where the batches of a generation are found.

use crate::batch::{self, Batch, HeaderError};
use crate::error::{Error, ErrorKind};
use crate::source::Source;
use crate::spec::EventType;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use trace_common::ReadErrorKind;

/// The batches of a generation, by their position in it.
pub(super) trait Batches {
    /// The offset in the trace of the generation.
    fn offset(&self) -> u64;

    /// Reads the header of the batch at index `at` of the generation, and its
    /// [kind](Batch::kind); `None` at the end of the trace.
    fn batch(&mut self, at: usize) -> Result<Option<(Batch, Option<EventType>)>, Error>;

    /// The data of a batch.
    fn data(&mut self, range: Range<usize>) -> Result<&[u8], Error>;
}

impl<R: Read> Batches for Source<R> {
    fn offset(&self) -> u64 {
        self.offset()
    }

    fn batch(&mut self, at: usize) -> Result<Option<(Batch, Option<EventType>)>, Error> {
        let Some(batch) = batch::read(self, at)? else { return Ok(None) };
        let kind = batch.kind(self.window());
        Ok(Some((batch, kind)))
    }

    fn data(&mut self, range: Range<usize>) -> Result<&[u8], Error> {
        Ok(self.window().get(range).unwrap_or_default())
    }
}

/// A trace of which little more than the headers of the batches is read.
#[derive(Debug)]
pub(super) struct Headers<R> {
    input: R,
    /// Length of the trace.
    len: u64,
    /// Offset in the trace of the generation.
    generation: u64,
    buffer: Vec<u8>,
}

/// More than the longest header and the first byte of the data.
const HEADER: u64 = 64;

impl<R: Read + Seek> Headers<R> {
    /// The generation at this offset.
    pub(super) fn at(mut input: R, generation: u64) -> Result<Self, Error> {
        let end = input.seek(SeekFrom::End(0));
        let len = end.map_err(|error| Error::at(generation, error))?;
        Ok(Self { input, len, generation, buffer: Vec::new() })
    }

    /// Continues with the generation `len` bytes further.
    pub(super) fn release(&mut self, len: u64) {
        self.generation += len;
    }

    /// Reads bytes that are in the trace.
    fn read(&mut self, offset: u64, len: u64) -> Result<&[u8], Error> {
        self.buffer.clear();
        let read = self.input.seek(SeekFrom::Start(offset)).and_then(|_| {
            let input = &mut self.input;
            input.take(len).read_to_end(&mut self.buffer)
        });
        read.map_err(|error| Error::at(offset, error))?;
        Ok(&self.buffer)
    }
}

impl<R: Read + Seek> Batches for Headers<R> {
    fn offset(&self) -> u64 {
        self.generation
    }

    fn batch(&mut self, at: usize) -> Result<Option<(Batch, Option<EventType>)>, Error> {
        let offset = self.generation + at as u64;
        let left = self.len.saturating_sub(offset);
        if left == 0 {
            return Ok(None);
        }
        let bytes = self.read(offset, left.min(HEADER))?;
        let (mut batch, header) = batch::header(bytes, offset).map_err(|error| match error {
            HeaderError::Short(error) | HeaderError::Bad(error) => error,
        })?;
        let kind = batch.kind(bytes.get(header..).unwrap_or_default());
        // On 32 bits, a file can be longer than memory.
        let left = usize::try_from(left).unwrap_or(usize::MAX).saturating_sub(header);
        let wanted = batch.data.len();
        if wanted > left {
            let cause = ReadErrorKind::UnexpectedEnd { wanted, left };
            let kind = ErrorKind::Malformed { what: "batch data", cause };
            return Err(Error::at(offset + header as u64, kind));
        }
        batch.data = at + header..at + header + wanted;
        Ok(Some((batch, kind)))
    }

    fn data(&mut self, range: Range<usize>) -> Result<&[u8], Error> {
        self.read(self.generation + range.start as u64, range.len() as u64)
    }
}
