//! A ring of a set as one of the sources that are merged.
//!
//! ```text
//!  released │ window: two halves, indexed │ held │ ring ……… head │
//!           ▲ next                        ▲ indexed              ▲ end of the round
//! ```
//!
//! Records stay in the ring until it is nearly their turn. Then they are copied into the window, a
//! few KiB at a time, so that they are in the first or second-level cache when they are passed on.
//! To make room in a ring that fills up, its oldest bytes are moved out and [`Held`].

use super::Lane;
use super::reader::{SetChunk, SetRecord, SetStats};
use super::table::{EndedRing, NewRing, RingNumber, Table};
use crate::record::RawRecord;
use crate::ring::RingBuffer;
use std::collections::VecDeque;
use trace_common::Timestamp;

/// A record in the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) time: Timestamp,
    /// Where it is in its half of the window; the highest bit is the number of the half.
    at: u32,
    /// The place of its event in the table.
    pub(super) place: u32,
}

/// The bit of [`Entry::at`] with the number of the half.
const HALF: u32 = 1 << 31;

/// A part of the window.
#[derive(Debug, Default)]
struct Half {
    bytes: Vec<u8>,
    /// Position of its first byte among all bytes of the ring.
    position: u64,
}

/// A ring whose records wait for their turn. All positions count bytes from the first record.
#[derive(Debug)]
pub(super) struct SetRing {
    pub(super) number: RingNumber,
    pub(super) cpu: u32,
    pub(super) lane: Lane,
    pub(super) buffer: RingBuffer,
    /// Nothing is written into it any more.
    pub(super) ended: Option<EndedRing>,
    held: Held,
    halves: [Half; 2],
    /// The half that was filled last.
    half: usize,
    /// The records of both halves, in time order.
    entries: Vec<Entry>,
    /// The first record that was not released.
    next: usize,
    /// The first record of the half that was filled last: when it is reached, the other half is free.
    switch: usize,
    /// The first record that the previous round had not read.
    old: usize,
    /// The record before which something has to be done: a refill, or the end of the old ones.
    stop: usize,
    /// Position behind the window.
    indexed: u64,
    /// Position behind what was there at the start of the previous round.
    previous_end: u64,
    /// Position behind what was there at the start of this round.
    end: u64,
    /// The time of the newest record in the window.
    newest: Timestamp,
}

/// What records are looked up in while they are indexed.
pub(super) struct Index<'a> {
    pub(super) table: &'a Table,
    pub(super) stats: &'a mut SetStats,
    /// Bytes of half a window, unless a record is longer.
    pub(super) half: usize,
}

/// Records that a ring passes on in a row. What was passed on before a panic is not passed on again.
pub(super) struct Run<'a> {
    pub(super) ring: &'a mut SetRing,
    /// How many of the [ready](SetRing::ready) records were passed on, before
    /// [`advance`](SetRing::advance).
    pub(super) passed: usize,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.ring.next += self.passed;
    }
}

impl SetRing {
    pub(super) fn new(NewRing { number, cpu, lane, buffer }: NewRing) -> Self {
        Self {
            number,
            cpu,
            lane,
            buffer,
            ended: None,
            held: Held::default(),
            halves: Default::default(),
            half: 0,
            entries: Vec::new(),
            next: 0,
            switch: 0,
            old: 0,
            stop: 0,
            indexed: 0,
            previous_end: 0,
            end: 0,
            newest: Timestamp::MIN,
        }
    }

    /// Starts a round. Returns whether there is something since the start of the previous one, or
    /// older.
    pub(super) fn start_round(&mut self) -> bool {
        let has_new = self.end > self.previous_end;
        self.previous_end = self.end;
        self.old = if self.indexed < self.end { usize::MAX } else { self.entries.len() };
        has_new
    }

    /// Sets what the kernel counted as lost.
    pub(super) const fn set_kernel_losses(&mut self, lost: Option<u64>) {
        if let Some(lost) = lost {
            self.buffer.set_kernel_losses(lost);
        }
    }

    /// Takes note of the bytes in the ring.
    pub(super) fn look(&mut self) {
        self.end = self.indexed + self.held.len as u64 + self.buffer.acquire();
    }

    /// Bytes that were moved out of the ring.
    pub(super) const fn held(&self) -> usize {
        self.held.len
    }

    /// Whether nothing waits that was there at the start of the round.
    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.entries.len() && self.indexed >= self.end
    }

    /// Whether a record waits that was there at the start of the previous round.
    #[inline]
    pub(super) const fn has_old(&self) -> bool {
        self.next < self.old
    }

    /// If the ring has more than `size / from` bytes, leaves `size / to` of them.
    pub(super) fn relieve(&mut self, from: u64, to: u64) {
        let (size, bytes) = (self.buffer.size() as u64, self.end - self.indexed);
        let bytes = bytes - self.held.len as u64;
        if bytes > size / from {
            self.held.take(&mut self.buffer, bytes - size / to);
        }
    }

    /// The records that can be released, in time order, before [`advance`](Self::advance).
    #[inline]
    pub(super) fn ready(&self) -> &[Entry] {
        self.entries.get(self.next..self.stop).unwrap_or_default()
    }

    /// The record of an entry.
    #[inline]
    pub(super) fn record(&self, entry: Entry) -> Option<RawRecord<'_>> {
        let half = self.halves.get((entry.at >> 31) as usize)?;
        let at = (entry.at & !HALF) as usize;
        let bytes = half.bytes.get(at..)?;
        let header = bytes.first_chunk::<8>()?;
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        Some(RawRecord::new(bytes.get(..size)?, half.position + at as u64))
    }

    /// Removes the first records of [`ready`](Self::ready). Returns whether all old ones are gone now.
    #[inline]
    pub(super) fn advance(&mut self, count: usize, index: &mut Index<'_>) -> bool {
        let had_old = self.has_old();
        self.next += count;
        if self.next >= self.stop {
            self.refill(index);
        }
        had_old && !self.has_old()
    }

    /// Fills the free half of the window, and finds out how far it can be released.
    pub(super) fn refill(&mut self, index: &mut Index<'_>) {
        while self.next >= self.switch && self.fill(index) {}
        let end = if self.next < self.switch { self.switch } else { self.entries.len() };
        self.stop = if self.next < self.old { end.min(self.old) } else { end };
    }

    /// Reads the next records into the half of the window that is free. Returns whether there were
    /// any.
    fn fill(&mut self, index: &mut Index<'_>) -> bool {
        let is_old = self.indexed < self.previous_end;
        let until = if is_old { self.previous_end } else { self.end };
        let left = until - self.indexed;
        if left == 0 {
            return false;
        }
        self.entries.drain(..self.next);
        if self.old != usize::MAX {
            self.old = self.old.saturating_sub(self.next);
        }
        self.next = 0;
        self.switch = self.entries.len();
        self.half ^= 1;
        let Some(half) = self.halves.get_mut(self.half) else { return false };
        let mut half = std::mem::take(half);
        half.position = self.indexed;
        let mut len = left.min(index.half as u64) as usize;
        let read = loop {
            if half.bytes.len() < len {
                half.bytes.resize(len, 0);
            }
            let bytes = half.bytes.get_mut(..len).unwrap_or_default();
            let held = self.held.copy_front(bytes);
            self.buffer.copy_front(bytes.get_mut(held..).unwrap_or_default());
            match self.index(bytes, index) {
                Ok(read) => break read as u64,
                // The first record is longer than this.
                Err(size) if size > len && size as u64 <= left => len = size,
                // Bytes that are not records, of which the kernel writes none.
                Err(_) => {
                    self.buffer.count_corrupt(left);
                    break left;
                }
            }
        };
        if let Some(place) = self.halves.get_mut(self.half) {
            *place = half;
        }
        self.indexed += read;
        let held = self.held.skip(read, self.buffer.size());
        self.buffer.release(read - held);
        if is_old && self.indexed == self.previous_end {
            self.old = self.entries.len();
        }
        true
    }

    /// Adds the records in `bytes` to the entries. Returns how many bytes they have; for none, how
    /// many the first needs.
    fn index(&mut self, bytes: &[u8], index: &mut Index<'_>) -> Result<usize, usize> {
        let half = (self.half as u32) << 31;
        let mut at = 0;
        while let Some(header) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            let Some(record) = bytes.get(at..at + size).filter(|_| size >= header.len()) else {
                return if at == 0 { Err(size) } else { Ok(at) };
            };
            let raw = RawRecord::new(record, 0);
            self.buffer.count(raw);
            match index.table.find(raw).map(|slot| (slot, slot.layout.time(raw))) {
                Some((slot, Some(time))) => {
                    let entry = Entry { time, at: half | at as u32, place: slot.place };
                    if time >= self.newest {
                        self.newest = time;
                        self.entries.push(entry);
                    } else {
                        index.stats.inversions += 1;
                        self.insert(entry);
                    }
                }
                Some((_, None)) => index.stats.undecodable += 1,
                None => self.buffer.count_unknown_ids(1),
            }
            at += size;
        }
        if at == 0 { Err(8) } else { Ok(at) }
    }

    /// Passes on the records until the end of the round, in the memory of the ring. Returns their
    /// bytes.
    pub(super) fn read_chunks<E>(
        &mut self,
        f: &mut impl FnMut(SetChunk<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut sum = 0;
        while self.indexed < self.end {
            let (left, cpu) = (self.end - self.indexed, self.cpu);
            let freed = self.buffer.lend_chunk(left, |records| f(SetChunk { cpu, records }))?;
            if freed == 0 {
                break;
            }
            sum += freed;
            self.indexed += freed;
        }
        Ok(sum)
    }

    /// Passes on what was there when it was last [looked](Self::look) at, in the order in which it
    /// was written. Nothing waits in the window.
    pub(super) fn read_unordered<E>(
        &mut self,
        table: &Table,
        stats: &mut SetStats,
        f: &mut impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut count = 0;
        while self.indexed < self.end {
            let before = self.indexed;
            let mut batch = self.buffer.batch();
            let mut unknown = 0;
            let mut result = Ok(());
            while let Some(raw) = batch.next_record() {
                // As the batch frees it, also if `f` panics.
                self.indexed += raw.bytes().len() as u64;
                match table.find(raw) {
                    Some(slot) => {
                        slot.deliver(raw);
                        count += 1;
                        let time = slot.layout.time(raw);
                        stats.undecodable += u64::from(time.is_none());
                        result = f(SetRecord {
                            event: slot.event,
                            cpu: self.cpu,
                            time: time.unwrap_or_default(),
                            late: false,
                            layout: &slot.layout,
                            raw,
                            place: slot.place,
                        });
                    }
                    None => unknown += 1,
                }
                if result.is_err() || self.indexed >= self.end {
                    break;
                }
            }
            drop(batch);
            self.buffer.count_unknown_ids(unknown);
            if self.indexed == before {
                self.indexed = self.end; // only skipped bytes that are not records
            }
            result?;
        }
        Ok(count)
    }

    /// Adds an entry before later ones.
    #[cold]
    fn insert(&mut self, entry: Entry) {
        let place = self.next + {
            let waiting = self.entries.get(self.next..).unwrap_or_default();
            waiting.partition_point(|other| other.time <= entry.time)
        };
        self.entries.insert(place, entry);
        self.switch += usize::from(place < self.switch);
        self.old += usize::from(self.old != usize::MAX && place < self.old);
    }
}

/// Bytes that were moved out of a ring, to make room in it.
#[derive(Debug, Default)]
struct Held {
    chunks: VecDeque<Chunk>,
    len: usize,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Chunk {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn is_full(&self) -> bool {
        self.end >= self.bytes.len()
    }
}

impl Held {
    /// Bytes of a chunk.
    const CHUNK: usize = 128 << 10;

    /// Unused chunks are kept up to this multiple of the size of their ring: new memory costs more than
    /// moving the records into it.
    const SPARE: usize = 2;

    /// Moves the first bytes out of a ring.
    fn take(&mut self, ring: &mut RingBuffer, mut bytes: u64) {
        while bytes > 0 {
            // What small rings move out at a time is much less than a chunk.
            if self.chunks.back().is_none_or(Chunk::is_full) {
                let bytes = self.spare.pop().unwrap_or_else(|| vec![0; Self::CHUNK]);
                self.chunks.push_back(Chunk { bytes, start: 0, end: 0 });
            }
            let Some(chunk) = self.chunks.back_mut() else { break };
            let room = chunk.bytes.get_mut(chunk.end..).unwrap_or_default();
            let len = bytes.min(room.len() as u64) as usize;
            let len = ring.copy_front(room.get_mut(..len).unwrap_or_default());
            if len == 0 {
                break;
            }
            ring.release(len as u64);
            chunk.end += len;
            self.len += len;
            bytes -= len as u64;
        }
    }

    /// Copies the first bytes; returns how many.
    fn copy_front(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for chunk in &self.chunks {
            let out = out.get_mut(copied..).unwrap_or_default();
            let len = out.len().min(chunk.rest().len());
            if len == 0 {
                break;
            }
            if let (Some(out), Some(rest)) = (out.get_mut(..len), chunk.rest().get(..len)) {
                out.copy_from_slice(rest);
            }
            copied += len;
        }
        copied
    }

    /// Drops the first bytes; returns how many of them there were.
    fn skip(&mut self, bytes: u64, ring_size: usize) -> u64 {
        let mut skipped = 0;
        while skipped < bytes {
            let Some(chunk) = self.chunks.front_mut() else { break };
            let len = chunk.rest().len().min((bytes - skipped) as usize);
            chunk.start += len;
            skipped += len as u64;
            if chunk.start < chunk.end {
                break;
            }
            let empty = self.chunks.pop_front();
            if self.spare.len() * Self::CHUNK < Self::SPARE * ring_size {
                self.spare.extend(empty.map(|chunk| chunk.bytes));
            }
        }
        self.len -= skipped as usize;
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::FakeKernel;

    /// The limit is one of the bytes that wait: their memory must not be much more.
    #[test]
    fn what_small_rings_move_out_fills_the_chunks() {
        const STEP: usize = 1000;
        let (mut kernel, mut ring) = FakeKernel::new(1);
        let mut held = Held::default();
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut out = vec![0; 3 * STEP];
        for turn in 0..600_usize {
            let bytes: Vec<u8> = (0..STEP).map(|at| (turn + at) as u8).collect();
            kernel.put(&bytes);
            kernel.publish();
            written.extend(bytes);
            let available = ring.acquire();
            held.take(&mut ring, available);
            // Later, more is read than is written.
            if turn % 2 == 0 && turn > 300 {
                let len = held.copy_front(&mut out);
                assert_eq!(held.skip(len as u64, 4096), len as u64);
                read.extend_from_slice(&out[..len]);
            }
            assert_eq!(held.len, written.len() - read.len());
            // The first and the last one have room.
            let chunks = held.chunks.len();
            assert!(chunks <= held.len / Held::CHUNK + 2, "{chunks} of {}", held.len);
        }
        while held.len > 0 {
            let len = held.copy_front(&mut out);
            held.skip(len as u64, 4096);
            read.extend_from_slice(&out[..len]);
        }
        assert!(read == written, "other bytes");
        assert!(held.chunks.is_empty());
    }
}
