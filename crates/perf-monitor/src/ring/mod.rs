//! Memory shared with the kernel. All unsafe code of the crate is here.
//!
//! # Why reading is sound
//!
//! The kernel writes records into a ring, then publishes `data_head`. It does not touch the bytes
//! between `data_tail` and `data_head` until `data_tail` moves. The comment in
//! [`perf_output_put_handle`][put] names the four barriers; the two of the reader are here:
//!
//! - `data_head` is loaded, then an acquire orders the copy of the bytes after it (pairs with B,
//!   the write barrier before the kernel's store of `data_head`);
//! - `data_tail` is stored with release ordering after the copy (pairs with D or A: the kernel
//!   loads `data_tail` before it writes).
//!
//! [put]: https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c
//!
//! In a mapping that is only readable Rust allows [relaxed loads alone][ro], so there the acquire
//! is a fence after a relaxed load. Both order the following accesses equally.
//!
//! [ro]: std::sync::atomic#atomic-accesses-to-read-only-memory
//!
//! References to mapped memory are only created to atomics, except for recorders (`chunk`): bytes
//! are copied by pointer, and records borrow from the copy. Copying costs less than decoding in
//! place (see `docs/benchmarks/perf.md`), hides the wrap of the ring, and frees room in the ring
//! early. A recorder decodes nothing and writes the bytes between the two positions as they are.
//!
//! The unit tests replace the mapping by plain memory and the kernel by a thread, so that an
//! interpreter such as miri can check both sides.
#![allow(unsafe_code, reason = "the mapped ring; each block has its proof")]

mod aux_area;
mod chunk;
mod mapping;
mod overwrite;
mod user_page;

pub use aux_area::AuxArea;
pub use chunk::RingChunk;
use mapping::{Mapping, map};
pub use overwrite::{OverwriteRing, Snapshot};
pub use user_page::{UserCount, UserPage};

use crate::error::{Error, Result};
use crate::record::RawRecord;
use perf_sys::{
    PERF_RECORD_LOST, PERF_RECORD_LOST_SAMPLES, PERF_RECORD_SAMPLE, PERF_RECORD_THROTTLE,
    PERF_RECORD_UNTHROTTLE, perf_event_header,
};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of bytes that are copied at once: they stay in a second-level cache, and the
/// biggest record (64 KiB) fits.
const CHUNK: usize = 128 << 10;

const HEADER: usize = size_of::<perf_event_header>();

/// Statistics of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStats {
    /// Records of any kind.
    pub records: u64,
    /// Samples among them.
    pub samples: u64,
    /// Bytes of all records.
    pub bytes: u64,
    /// Records that did not fit in the ring: the sum of all `PERF_RECORD_LOST`, or the kernel's own
    /// count if that is larger (see [`Sampler::count_losses`](crate::Sampler::count_losses)).
    pub lost: u64,
    /// The part of `lost` that no `PERF_RECORD_LOST` reported, because no record fitted after it.
    /// `None` until [`Sampler::count_losses`](crate::Sampler::count_losses) determined it, and on
    /// kernels without `PERF_FORMAT_LOST` (Linux 6.0).
    pub lost_at_end: Option<u64>,
    /// Samples that the hardware lost: the sum of all `PERF_RECORD_LOST_SAMPLES`.
    pub lost_samples: u64,
    /// Number of `PERF_RECORD_THROTTLE`: the kernel stopped an event because of its rate.
    pub throttled: u64,
    /// Number of `PERF_RECORD_UNTHROTTLE`.
    pub unthrottled: u64,
    /// Records of events that the [`Decoder`](crate::Decoder) does not know. They are skipped.
    pub unknown_ids: u64,
    /// Bytes that are not records and were skipped. Kernels write none.
    pub corrupt_bytes: u64,
}

impl RingStats {
    /// Adds the statistics of another ring.
    pub(crate) fn add(&mut self, other: Self) {
        let Self { records, samples, bytes, lost, lost_at_end, lost_samples, .. } = other;
        let Self { throttled, unthrottled, unknown_ids, corrupt_bytes, .. } = other;
        self.records += records;
        self.samples += samples;
        self.bytes += bytes;
        self.lost = self.lost.saturating_add(lost);
        self.lost_at_end = match (self.lost_at_end, lost_at_end) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        self.lost_samples = self.lost_samples.saturating_add(lost_samples);
        self.throttled += throttled;
        self.unthrottled += unthrottled;
        self.unknown_ids += unknown_ids;
        self.corrupt_bytes = self.corrupt_bytes.saturating_add(corrupt_bytes);
    }
}

/// The reading end of a ring that the kernel writes into.
///
/// Usually part of a [`Sampler`](crate::Sampler).
#[derive(Debug)]
pub struct RingBuffer {
    mapping: Arc<Mapping>,
    start: usize,
    size: usize,
    /// `data_tail`, which only this reader stores.
    tail: u64,
    /// Bytes after the tail that an acquire load of `data_head` found.
    acquired: u64,
    chunk: Vec<u8>,
    /// The record of a [chunk](RingBuffer::lend_chunk) that wraps.
    split: Vec<u8>,
    stats: RingStats,
}

impl RingBuffer {
    /// Maps a ring of `pages` data pages of an event.
    pub(crate) fn map(fd: impl AsFd, pages: usize) -> Result<Self, Errno> {
        Self::of(map(fd, pages, true)?, pages, rustix::param::page_size())
    }

    fn of(mapping: Mapping, pages: usize, page: usize) -> Result<Self, Errno> {
        // Before Linux 4.1 both fields are 0 and the data starts at the second page.
        let start = match mapping.data_offset().load(Ordering::Relaxed) {
            0 => page as u64,
            offset => offset,
        };
        let size = match mapping.data_size().load(Ordering::Relaxed) {
            0 => (pages * page) as u64,
            size => size,
        };
        let data = (mapping.memory.len() as u64).checked_sub(start);
        if !size.is_power_of_two() || data.is_none_or(|data| size > data) {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            tail: mapping.data_tail().load(Ordering::Relaxed),
            acquired: 0,
            mapping: Arc::new(mapping),
            start: start as usize,
            size: size as usize,
            chunk: vec![0; CHUNK.min(size as usize)],
            split: Vec::new(),
            stats: RingStats::default(),
        })
    }

    /// Size of the ring, in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Number of available bytes.
    pub fn available(&self) -> u64 {
        // This load does not order reads of the data: `acquire` loads it again, with ordering.
        self.mapping.data_head().load(Ordering::Relaxed).wrapping_sub(self.tail)
    }

    /// Statistics of the ring so far.
    pub const fn stats(&self) -> RingStats {
        self.stats
    }

    /// Makes the bytes that are available now ready to be copied. Returns their number.
    pub(crate) fn acquire(&mut self) -> u64 {
        // Ordering: C in perf_output_put_handle. Copies of the bytes come after this load.
        // https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c
        let head = self.mapping.data_head().load(Ordering::Acquire);
        self.acquired = head.wrapping_sub(self.tail);
        if self.acquired > self.size as u64 {
            // Only another writer of the control page can cause this.
            self.count_corrupt(self.acquired);
            self.release(self.acquired);
        }
        self.acquired
    }

    /// Copies the first of the acquired bytes; returns how many.
    pub(crate) fn copy_front(&self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.acquired as usize);
        let out = out.get_mut(..len).unwrap_or_default();
        self.mapping.copy(self.start, self.size, self.tail, out);
        len
    }

    /// Frees the space of the first of the acquired bytes.
    pub(crate) fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.acquired);
        self.acquired -= bytes;
        self.tail = self.tail.wrapping_add(bytes);
        // Ordering: D in perf_output_put_handle. The copies come before this store, which lets the
        // kernel write over the bytes.
        // https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c
        self.mapping.data_tail().store(self.tail, Ordering::Release);
    }

    /// Counts a record in the statistics.
    #[inline]
    pub(crate) fn count(&mut self, record: RawRecord<'_>) {
        count(&mut self.stats, record);
    }

    pub(crate) const fn count_corrupt(&mut self, bytes: u64) {
        self.stats.corrupt_bytes = self.stats.corrupt_bytes.saturating_add(bytes);
    }

    pub(crate) const fn count_unknown_ids(&mut self, count: u64) {
        self.stats.unknown_ids += count;
    }

    /// Sets the number of losses that the kernel counts for the events of this ring.
    pub(crate) const fn set_kernel_losses(&mut self, lost: u64) {
        let reported = match self.stats.lost_at_end {
            Some(at_end) => self.stats.lost.saturating_sub(at_end),
            None => self.stats.lost,
        };
        let at_end = lost.saturating_sub(reported);
        self.stats.lost = reported.saturating_add(at_end);
        self.stats.lost_at_end = Some(at_end);
    }

    /// Reads up to 128 KiB of the available records. An empty batch means that the ring is empty.
    pub fn batch(&mut self) -> Batch<'_> {
        let available = self.acquire();
        let filled = self.chunk.len().min(available as usize);
        let mut chunk = std::mem::take(&mut self.chunk);
        self.copy_front(chunk.get_mut(..filled).unwrap_or_default());
        self.chunk = chunk;
        Batch { ring: self, filled, at: 0, whole: filled as u64 == available }
    }

    /// Maps the AUX area of an event that writes into this ring.
    pub(crate) fn map_aux(&mut self, event: impl AsFd, pages: usize) -> Result<AuxArea> {
        AuxArea::map(event, Arc::clone(&self.mapping), pages)
    }
}

/// Records of a ring, borrowed one by one.
///
/// Dropping the batch frees the space of the records that were returned, also if the reader panics.
/// The next batch starts with the first record that was not returned.
#[derive(Debug)]
pub struct Batch<'a> {
    ring: &'a mut RingBuffer,
    filled: usize,
    at: usize,
    /// Whether the batch contains all available records.
    whole: bool,
}

impl Batch<'_> {
    /// The next record; `None` at the end of the batch.
    #[inline]
    pub fn next_record(&mut self) -> Option<RawRecord<'_>> {
        let rest = self.ring.chunk.get(self.at..self.filled).unwrap_or_default();
        let Some(header) = rest.first_chunk::<HEADER>() else {
            self.end_of_chunk();
            return None;
        };
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        if size < HEADER || size > rest.len() {
            // The rest of a record that was truncated by the end of the chunk is in the next batch.
            if size < HEADER || self.whole {
                self.corrupt();
            }
            return None;
        }
        let offset = self.ring.tail.wrapping_add(self.at as u64);
        self.at += size;
        let record = RawRecord::new(self.ring.chunk.get(self.at - size..self.at)?, offset);
        count(&mut self.ring.stats, record);
        Some(record)
    }

    /// Whether the ring was empty.
    pub const fn is_empty(&self) -> bool {
        self.filled == 0
    }

    fn end_of_chunk(&mut self) {
        if self.whole && self.at < self.filled {
            self.corrupt();
        }
    }

    /// Skips all available data.
    #[cold]
    fn corrupt(&mut self) {
        self.ring.stats.corrupt_bytes += (self.filled - self.at) as u64;
        self.at = self.filled;
    }
}

#[inline]
fn count(stats: &mut RingStats, record: RawRecord<'_>) {
    stats.records += 1;
    stats.bytes += record.bytes().len() as u64;
    match record.type_() {
        PERF_RECORD_SAMPLE => stats.samples += 1,
        PERF_RECORD_LOST => match record.word(16) {
            Some(lost) => count_lost(stats, lost),
            None => stats.corrupt_bytes += record.bytes().len() as u64,
        },
        PERF_RECORD_LOST_SAMPLES => match record.word(8) {
            Some(lost) => stats.lost_samples = stats.lost_samples.saturating_add(lost),
            None => stats.corrupt_bytes += record.bytes().len() as u64,
        },
        PERF_RECORD_THROTTLE => stats.throttled += 1,
        PERF_RECORD_UNTHROTTLE => stats.unthrottled += 1,
        _ => {}
    }
}

/// Losses that are included in the kernel's own count are not added again.
#[cold]
fn count_lost(stats: &mut RingStats, lost: u64) {
    let mut new = lost;
    if let Some(at_end) = &mut stats.lost_at_end {
        let known = lost.min(*at_end);
        *at_end -= known;
        new -= known;
    }
    stats.lost = stats.lost.saturating_add(new);
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.at > 0 {
            self.ring.release(self.at as u64);
        }
    }
}

fn map_error(pages: usize, errno: Errno, reason: crate::OpenErrorReason) -> Error {
    Error::Map { pages, errno, reason }
}

#[cfg(test)]
pub(crate) mod tests;
