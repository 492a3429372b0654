use super::{HEADER, Mapping, map};
use crate::counter::Counter;
use crate::diagnose;
use crate::error::{Error, Result};
use crate::record::{RawRecord, RecordLayout};
use std::sync::atomic::{Ordering, fence};

/// A ring that the kernel writes from its end to its start and overwrites the oldest records: a
/// flight recorder (Linux 4.7).
///
/// The event is opened with [`write_backward`](crate::EventBuilder::write_backward). Only the
/// oldest records are lost, and readers are not woken: take a [`snapshot`](Self::snapshot) after an
/// interesting event.
#[derive(Debug)]
pub struct OverwriteRing {
    counter: Counter,
    mapping: Mapping,
    start: usize,
    size: usize,
}

impl OverwriteRing {
    /// Maps a ring of `pages` pages (a power of two) for an event.
    ///
    /// # Errors
    ///
    /// [`Error::RingDirection`] without [`write_backward`](crate::EventBuilder::write_backward),
    /// [`Error::RingPages`] and [`Error::Map`].
    pub fn new(counter: Counter, pages: usize) -> Result<Self> {
        counter.check_direction(true)?;
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        let refused = |errno| {
            let reason = diagnose::map(counter.attr(), counter.follows_thread(), errno);
            super::map_error(pages, errno, reason)
        };
        // With a read-only mapping, the kernel does not wait for the reader.
        let mapping = map(&counter, pages, false).map_err(refused)?;
        let size = pages * rustix::param::page_size();
        Ok(Self { counter, mapping, start: rustix::param::page_size(), size })
    }

    /// The event.
    pub const fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Copies the content of the ring. Writing is paused meanwhile; the kernel counts the records
    /// of that period as lost. It takes some milliseconds: until no CPU writes a record any more that
    /// it began before the pause.
    ///
    /// A kernel with `nohz_full` CPUs, or a seccomp filter, refuses to wait (`membarrier(2)`). Such a
    /// record can then be written over the oldest ones while they are copied: the snapshot ends
    /// before the first record that cannot be decoded, or is newer than the first. Without
    /// [`SampleFlags::TIME`](crate::SampleFlags::TIME) the latter is not noticed.
    ///
    /// It takes `&mut self` because pausing applies to the whole ring: of two concurrent snapshots,
    /// the first to end would resume writing while the second is still copying.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if the ring cannot be paused or resumed.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        self.counter.pause_output()?;
        // A CPU tests for the pause once, before it writes a record.
        let is_settled = perf_sys::membarrier_global().is_ok();
        let mut snapshot = Snapshot::take(&self.mapping, self.start, self.size);
        self.counter.resume_output()?;
        if !is_settled {
            snapshot.end_before_overwritten(&RecordLayout::new(self.counter.attr()));
        }
        Ok(snapshot)
    }
}

/// The records of an [`OverwriteRing`], newest first.
#[derive(Clone, Debug)]
pub struct Snapshot {
    bytes: Vec<u8>,
    overwritten: u64,
}

impl Snapshot {
    /// Copies a ring that is paused, while a CPU may still write a record.
    pub(super) fn take(mapping: &Mapping, start: usize, size: usize) -> Self {
        // Rust allows only relaxed loads of memory that is mapped read-only; the fence makes it an
        // acquire. Ordering: C in perf_output_put_handle, as for other rings.
        // https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c
        let head = mapping.data_head().load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // The position decreases from 0 and wraps.
        let written = head.wrapping_neg();
        let mut bytes = vec![0; written.min(size as u64) as usize];
        mapping.copy(start, size, head, &mut bytes);
        Self { bytes, overwritten: written.saturating_sub(size as u64) }
    }

    /// Ends before the first record that another was written over meanwhile: that one is newer than
    /// all others.
    pub(super) fn end_before_overwritten(&mut self, layout: &RecordLayout) {
        let newest = self.records().next().and_then(|record| layout.time(record));
        let is_whole = |record: &RawRecord<'_>| {
            layout.decode(*record).is_ok() && layout.time(*record) <= newest
        };
        let len = self.records().take_while(is_whole).map(|record| record.bytes().len()).sum();
        self.bytes.truncate(len);
    }

    /// The records, newest first.
    pub fn records(&self) -> impl Iterator<Item = RawRecord<'_>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = self.bytes.get(at..)?;
            let header = rest.first_chunk::<HEADER>()?;
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            // The oldest record can be partly overwritten.
            let record = rest.get(..size).filter(|_| size >= HEADER)?;
            let offset = at as u64;
            at += size;
            Some(RawRecord::new(record, offset))
        })
    }

    /// Bytes of older records that were overwritten.
    pub const fn overwritten_bytes(&self) -> u64 {
        self.overwritten
    }
}
