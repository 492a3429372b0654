use super::{HEADER, Mapping, map};
use crate::counter::Counter;
use crate::diagnose;
use crate::error::{Error, Result};
use crate::record::RawRecord;
use std::sync::atomic::Ordering;

/// A ring that the kernel writes from its end to its start, over the oldest records: a flight
/// recorder (Linux 4.7).
///
/// The event is opened with [`write_backward`](crate::EventBuilder::write_backward). Nothing is
/// ever lost but the oldest, and nobody is woken: take a [`snapshot`](Self::snapshot) when
/// something interesting happened.
#[derive(Debug)]
pub struct OverwriteRing {
    counter: Counter,
    mapping: Mapping,
    start: usize,
    size: usize,
}

impl OverwriteRing {
    /// Maps a ring of `pages` pages (a power of two) for an event.
    pub fn new(counter: Counter, pages: usize) -> Result<Self> {
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        let refused = |errno| {
            let reason = diagnose::map(counter.attr(), counter.follows_thread(), errno);
            super::map_error(pages, errno, reason)
        };
        // A read-only mapping tells the kernel not to wait for the reader.
        let raw = map(&counter, pages, false).map_err(refused)?;
        let mapping = Mapping::new(raw).ok_or_else(|| refused(rustix::io::Errno::INVAL))?;
        let size = pages * rustix::param::page_size();
        Ok(Self { counter, mapping, start: rustix::param::page_size(), size })
    }

    /// The event.
    pub const fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Copies what the ring holds. Writing is paused meanwhile.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.counter.pause_output()?;
        // The position goes down from 0 and wraps around below.
        let head = self.mapping.data_head().load(Ordering::Acquire);
        let written = head.wrapping_neg();
        let len = written.min(self.size as u64) as usize;
        let mut bytes = vec![0; len];
        self.mapping.copy(self.start, self.size, head, &mut bytes);
        self.counter.resume_output()?;
        Ok(Snapshot { bytes, overwritten: written.saturating_sub(self.size as u64) })
    }
}

/// The records that an [`OverwriteRing`] held, newest first.
#[derive(Clone, Debug)]
pub struct Snapshot {
    bytes: Vec<u8>,
    overwritten: u64,
}

impl Snapshot {
    /// The records, newest first.
    pub fn records(&self) -> impl Iterator<Item = RawRecord<'_>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = self.bytes.get(at..)?;
            let header = rest.first_chunk::<HEADER>()?;
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            // The oldest one may be overwritten in part.
            let record = rest.get(..size).filter(|_| size >= HEADER)?;
            let offset = at as u64;
            at += size;
            Some(RawRecord::new(record, offset))
        })
    }

    /// Bytes of older records that were overwritten before.
    pub const fn overwritten_bytes(&self) -> u64 {
        self.overwritten
    }
}
