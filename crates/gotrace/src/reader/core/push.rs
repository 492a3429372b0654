//! Readers to which bytes are pushed.

use super::{After, Core, Phase};
use crate::batch::{self, HeaderError};
use crate::error::Error;
use crate::source::{Pushed, Source};
use crate::spec::EventType;
use crate::version::Version;
use std::io::Read;
use trace_common::Limits;

/// How much of the next generation has arrived: its batches, by their headers.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    /// Offset in the trace of the generation.
    offset: u64,
    /// The end of the complete batches that were seen, relative to the offset.
    seen: usize,
    /// The number of the generation; 0 before its first batch.
    number: u64,
    /// No more bytes will arrive.
    finished: bool,
}

impl Arrival {
    /// Whether the generation that begins with `bytes` can be loaded: it is complete, or more bytes
    /// do not change what is loaded.
    fn is_complete(&mut self, offset: u64, bytes: &[u8], version: Version) -> bool {
        if self.offset != offset {
            (self.offset, self.seen, self.number) = (offset, 0, 0);
        }
        while !self.finished {
            let rest = bytes.get(self.seen..).unwrap_or_default();
            let (batch, header) = match batch::header(rest, 0) {
                Ok(found) => found,
                Err(HeaderError::Short(_)) => return false,
                Err(HeaderError::Bad(_)) => return true,
            };
            let end = header + batch.data.len();
            if end > rest.len() {
                return false;
            }
            if batch.end_of_generation || batch.generation == 0 {
                return true;
            }
            if self.number == 0 {
                self.number = batch.generation;
            } else if batch.generation != self.number {
                return true;
            }
            self.seen += end;
            // Such a batch ends a generation as the bare byte does.
            let data = rest.get(header..end).unwrap_or_default();
            if version >= Version::Go126 && data.first() == Some(&EventType::END_OF_GENERATION.0) {
                return true;
            }
        }
        true
    }
}

impl<R: Read> Core<R> {
    /// Whether the item after the current generation can be loaded.
    pub(super) fn has_arrived(&mut self) -> bool {
        let Some(arrival) = &mut self.arrival else { return true };
        if !matches!(self.current.after, After::Unknown) {
            return true;
        }
        let len = self.current.len;
        let bytes = self.source.window().get(len..).unwrap_or_default();
        let offset = self.source.offset() + len as u64;
        // A generation beyond the limit is an error of the loader.
        arrival.is_complete(offset, bytes, self.version) || bytes.len() >= self.limits.max_buffer
    }
}

impl Core<Pushed> {
    /// A reader of the trace whose first bytes the source has.
    pub(crate) fn pushed(source: Source<Pushed>, limits: Limits) -> Result<Self, Error> {
        let mut core = Self::open(source, limits)?;
        core.arrival = Some(Arrival::default());
        Ok(core)
    }

    /// Adds bytes of the trace, unless no event can follow.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.phase, Phase::Done | Phase::Failed(_)) {
            self.source.push(bytes);
        }
    }

    /// No more bytes will arrive.
    pub(crate) fn finish(&mut self) {
        if let Some(arrival) = &mut self.arrival {
            arrival.finished = true;
        }
    }
}
