//! The reading side of a set: rounds over all rings, and their records in time order.
//!
//! Records are copied out of the rings in chunks and stay there. Their times and positions go
//! through [`Merge`].

use super::table::{NewRing, Published, Retiring, RingNumber, SetEvent, Shared, Table};
use crate::clock;
use crate::record::{RawRecord, RecordLayout};
use crate::ring::{RingBuffer, RingStats};
use perf_sys::PERF_RECORD_SAMPLE;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use trace_common::{ClockDomain, Merge, Timestamp};

/// A record of a [`RingSet`](super::RingSet), undecoded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SetRecord<'a> {
    /// Its event.
    pub event: SetEvent,
    /// The CPU that it was written on.
    pub cpu: u32,
    /// Its time.
    pub time: Timestamp,
    /// Whether a later record was passed on before.
    pub late: bool,
    /// Its layout.
    pub layout: &'a RecordLayout,
    /// The record.
    pub raw: RawRecord<'a>,
    /// Place of the event among those of the set.
    pub(crate) place: u32,
}

/// What a set passes its records on to.
pub(crate) trait Visitor<E> {
    fn record(&mut self, record: SetRecord<'_>) -> Result<(), E>;

    /// An [external](Reader::push_external) event.
    fn external(&mut self, _token: u64, _time: Timestamp, _late: bool) -> Result<(), E> {
        Ok(())
    }
}

impl<E, F: FnMut(SetRecord<'_>) -> Result<(), E>> Visitor<E> for F {
    #[inline]
    fn record(&mut self, record: SetRecord<'_>) -> Result<(), E> {
        self(record)
    }
}

/// The source of external events. They come before records of the same time.
const EXTERNAL: usize = 0;

/// The position of a record that waits for its turn.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Number of the chunk in its ring, modulo 2³².
    chunk: u32,
    offset: u32,
    size: u16,
    /// Whether it is a sample.
    is_sample: bool,
    slot: u32,
}

/// Records as they were in the ring.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    /// Bytes of all its records.
    used: usize,
    /// Records that wait.
    waiting: u32,
    /// Offset of the bytes in all data of the ring.
    start: u64,
}

#[derive(Debug)]
struct SetRing {
    number: RingNumber,
    cpu: u32,
    buffer: RingBuffer,
    chunks: VecDeque<Chunk>,
    /// Number of the first chunk, modulo 2³².
    first: u32,
    spare: Vec<Vec<u8>>,
    /// Bytes of all batches so far.
    read: u64,
    newest: Timestamp,
    /// Its CPU went offline: nothing is written any more.
    has_ended: bool,
}

/// Chunks of which less than this part is used are copied, so that their memory can be used again.
const PART: usize = 4;

/// Unused chunks are kept for so many times the size of their ring: new memory costs more than
/// copying the records into it.
const SPARE: usize = 2;

/// Bytes of records that wait. With more, the slack is waived.
const MAX_HELD: usize = 64 << 20;

/// Statistics of a [`RingSet`](super::RingSet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetStats {
    /// The sums of all rings, also of those of CPUs that went offline.
    pub rings: RingStats,
    /// Records that were passed on after a later one.
    pub late: u64,
    /// Maximum lateness, in nanoseconds.
    pub latest_by_nanos: i64,
    /// Records with an earlier time than the one before in the same ring. They are sorted in, and
    /// only late if they are too early for that.
    pub inversions: u64,
    /// Records without a time: they are shorter than their layout. They are skipped.
    pub undecodable: u64,
    /// Rounds in which so many records waited that they were passed on without slack.
    pub waived_slack: u64,
}

/// What was known at the start of a round.
#[derive(Clone, Copy, Debug)]
struct Round {
    start: Timestamp,
    /// The time of the newest record that was read in it.
    newest: Option<Timestamp>,
}

/// See [`RingSet`](super::RingSet).
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    version: u64,
    table: Arc<Table>,
    /// By source of the merge. There is none at [`EXTERNAL`].
    rings: Vec<Option<SetRing>>,
    merge: Merge<Place>,
    clock: ClockDomain,
    slack: i64,
    previous: Option<Round>,
    /// Removed events, with the time until which records of them can exist. It is `None` until a
    /// round began after their removal.
    retiring: Vec<(Retiring, Option<Timestamp>)>,
    /// Places of events that were removed, and of which no record is left.
    forgotten: Vec<u32>,
    held: usize,
    /// Statistics except those of the rings that are open.
    stats: SetStats,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, clock: ClockDomain, slack_nanos: i64) -> Self {
        Self {
            shared,
            version: 0,
            table: Arc::default(),
            rings: vec![None],
            merge: Merge::new(1),
            clock,
            slack: slack_nanos,
            previous: None,
            retiring: Vec::new(),
            forgotten: Vec::new(),
            held: 0,
            stats: SetStats::default(),
        }
    }

    pub(crate) const fn set_slack(&mut self, nanos: i64) {
        self.slack = nanos;
    }

    /// Takes over changes by registration.
    #[inline]
    fn synchronize(&mut self) {
        let version = self.shared.version();
        if version != self.version {
            self.version = version;
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut published = shared.lock();
        let Published { table, new_rings, ended_rings, retiring } = &mut *published;
        self.table = Arc::clone(table);
        self.retiring.extend(retiring.drain(..).map(|retiring| (retiring, None)));
        for NewRing { number, cpu, buffer } in new_rings.drain(..) {
            let mut free = self.rings.iter().enumerate().skip(EXTERNAL + 1);
            let source = match free.find(|(_, ring)| ring.is_none()) {
                Some((source, _)) => source,
                None => {
                    self.rings.push(None);
                    self.rings.len() - 1
                }
            };
            if let Some(place) = self.rings.get_mut(source) {
                *place = Some(SetRing::new(number, cpu, buffer));
            }
        }
        for number in ended_rings.drain(..) {
            if let Some(ring) = self.rings.iter_mut().flatten().find(|r| r.number == number) {
                ring.has_ended = true;
            }
        }
    }

    fn now(&self) -> Timestamp {
        clock::now(self.clock).unwrap_or(Timestamp::MAX)
    }

    /// Reads what the rings contain now, and passes on the records that no record of the next
    /// round can precede.
    pub(crate) fn round<E>(&mut self, f: &mut impl Visitor<E>) -> Result<usize, E> {
        let start = self.now();
        let lefts = self.available_and_synchronized();
        let newest = self.read(&lefts);
        let end = self.now();
        for (_, until) in self.retiring.iter_mut().filter(|(_, until)| until.is_none()) {
            *until = Some(end);
        }
        // Records of the time before the previous round were read in it or before. If one was
        // committed late, it is probably in this round: hence nothing newer than what the previous
        // round read. The slack is for those that come even later.
        let limit = match self.previous {
            Some(Round { start, newest }) => newest.map_or(start, |newest| newest.min(start)),
            None => Timestamp::MIN,
        };
        self.previous = Some(Round { start, newest });
        let with_slack = limit.min(end.saturating_add_nanos(-self.slack));
        let is_full = self.held > MAX_HELD && with_slack < limit;
        self.stats.waived_slack += u64::from(is_full);
        self.release(if is_full { limit } else { with_slack }, f)
    }

    /// Adds an event from outside of the kernel, which is passed on at its time.
    pub(crate) fn push_external(&mut self, time: Timestamp, token: u64) {
        let place = Place {
            chunk: (token >> 32) as u32,
            offset: token as u32,
            size: 0,
            is_sample: false,
            slot: 0,
        };
        self.merge.push(EXTERNAL, time, place);
    }

    /// Reads everything and passes it on. The events are disabled.
    pub(crate) fn drain<E>(&mut self, f: &mut impl Visitor<E>) -> Result<usize, E> {
        self.synchronize();
        while self.rings.iter().flatten().any(|ring| ring.buffer.available() > 0) {
            let before = self.available();
            let lefts = self.available_and_synchronized();
            self.read(&lefts);
            if self.available() >= before {
                break; // half a record: no kernel writes that
            }
        }
        let end = self.now();
        for (_, until) in &mut self.retiring {
            *until = Some(end);
        }
        self.release(Timestamp::MAX, f)
    }

    /// Forgets removed events of which no record is left, while nothing is read.
    pub(crate) fn settle(&mut self) {
        self.synchronize();
        if self.merge.is_empty() && self.available() == 0 {
            let now = self.now();
            for (_, until) in &mut self.retiring {
                *until = Some(now);
            }
            self.forget_ended(Timestamp::MAX);
        }
    }

    /// Places of events that were forgotten.
    pub(crate) fn take_forgotten(&mut self) -> std::vec::Drain<'_, u32> {
        self.forgotten.drain(..)
    }

    fn available(&self) -> u64 {
        self.rings.iter().flatten().map(|ring| ring.buffer.available()).sum()
    }

    /// The bytes in each ring. Afterwards the events of all of them are known: an event is published
    /// before it is enabled, so that the table is taken over after the bytes were counted.
    fn available_and_synchronized(&mut self) -> Vec<u64> {
        let bytes = |ring: &Option<SetRing>| ring.as_ref().map_or(0, |r| r.buffer.available());
        loop {
            let lefts = self.rings.iter().map(bytes).collect();
            fence(Ordering::Acquire);
            let before = self.version;
            self.synchronize();
            if self.version == before {
                return lefts;
            }
        }
    }

    /// Reads so many bytes of each ring. What is written meanwhile is left for the next round: a
    /// flood of one ring must not hold up the others. Returns the time of the newest record.
    fn read(&mut self, lefts: &[u64]) -> Option<Timestamp> {
        let Self { rings, merge, table, held, stats, .. } = self;
        let mut newest: Option<Timestamp> = None;
        for ((source, ring), left) in rings.iter_mut().enumerate().zip(lefts) {
            let mut left = *left;
            let Some(ring) = ring else { continue };
            while left > 0 {
                let read = ring.read_chunk(source, left, merge, table, stats);
                if read.bytes == 0 {
                    break;
                }
                *held += read.held;
                newest = newest.max(read.newest);
                left = left.saturating_sub(read.bytes);
            }
        }
        newest
    }

    fn release<E>(&mut self, limit: Timestamp, f: &mut impl Visitor<E>) -> Result<usize, E> {
        let Self { merge, rings, table, held, stats, .. } = self;
        let mut count = 0;
        let mut result = Ok(());
        while let Some(item) = merge.pop(limit) {
            let place = item.value;
            if item.source == EXTERNAL {
                let token = u64::from(place.chunk) << 32 | u64::from(place.offset);
                result = f.external(token, item.at, item.late);
                if result.is_err() {
                    break;
                }
                continue;
            }
            let Some(ring) = rings.get_mut(item.source).and_then(Option::as_mut) else { continue };
            let index = place.chunk.wrapping_sub(ring.first) as usize;
            let (Some(chunk), Some(slot)) = (ring.chunks.get_mut(index), table.at(place.slot))
            else {
                continue; // never so: both stay while a record waits
            };
            let at = place.offset as usize;
            if let Some(bytes) = chunk.bytes.get(at..at + usize::from(place.size)) {
                let raw = RawRecord::new(bytes, chunk.start + u64::from(place.offset));
                if place.is_sample {
                    slot.deliver();
                }
                count += 1;
                result = f.record(SetRecord {
                    event: slot.event,
                    cpu: ring.cpu,
                    time: item.at,
                    late: item.late,
                    layout: &slot.layout,
                    raw,
                    place: slot.place,
                });
            }
            chunk.waiting -= 1;
            if chunk.waiting == 0 {
                *held -= ring.forget_chunks();
            }
            if result.is_err() {
                break;
            }
        }
        stats.late = merge.late();
        stats.latest_by_nanos = merge.latest_by_nanos();
        self.forget_ended(limit);
        result.map(|()| count)
    }

    /// Forgets events and rings of which no records are left.
    fn forget_ended(&mut self, limit: Timestamp) {
        let is_empty = self.merge.is_empty();
        if !self.retiring.is_empty() {
            let Self { shared, forgotten, .. } = self;
            self.retiring.retain(|(retiring, until)| {
                let is_over = until.is_some_and(|until| is_empty || until < limit);
                if is_over {
                    shared.forget(retiring);
                    forgotten.extend(retiring.removed);
                }
                !is_over
            });
        }
        for (source, place) in self.rings.iter_mut().enumerate() {
            let is_over = place.as_ref().is_some_and(|ring| {
                ring.has_ended
                    && ring.buffer.available() == 0
                    && self.merge.newest_of(source).is_none()
            });
            if let Some(ring) = place.take_if(|_| is_over) {
                self.stats.rings.add(ring.buffer.stats());
            }
        }
    }

    /// Whether records wait for their turn.
    pub(crate) const fn is_empty(&self) -> bool {
        self.merge.is_empty()
    }

    pub(crate) fn stats(&self) -> SetStats {
        let mut stats = self.stats;
        for (_, ring) in self.rings() {
            stats.rings.add(ring);
        }
        stats
    }

    pub(crate) fn rings(&self) -> impl Iterator<Item = (u32, RingStats)> + '_ {
        self.rings.iter().flatten().map(|ring| (ring.cpu, ring.buffer.stats()))
    }

    /// Sets what the kernel counted as lost for each ring.
    pub(crate) fn set_kernel_losses(&mut self, lost: impl Fn(RingNumber) -> u64) {
        for ring in self.rings.iter_mut().flatten() {
            let lost = lost(ring.number);
            ring.buffer.set_kernel_losses(lost);
        }
    }

    /// Passes on what the rings contain now, each ring for itself.
    pub(crate) fn read_unordered<E>(
        &mut self,
        mut f: impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let lefts = self.available_and_synchronized();
        self.release(Timestamp::MAX, &mut f)?;
        let Self { rings, table, stats, .. } = self;
        let mut count = 0;
        for (ring, left) in rings.iter_mut().zip(lefts) {
            if let Some(ring) = ring {
                count += ring.read_unordered(left, table, stats, &mut f)?;
            }
        }
        let now = self.now();
        for (_, until) in &mut self.retiring {
            *until = Some(now);
        }
        self.forget_ended(Timestamp::MAX);
        Ok(count)
    }
}

/// What was read of a ring.
struct Read {
    bytes: u64,
    /// Bytes that wait in a chunk.
    held: usize,
    newest: Option<Timestamp>,
}

impl SetRing {
    const fn new(number: RingNumber, cpu: u32, buffer: RingBuffer) -> Self {
        Self {
            number,
            cpu,
            buffer,
            chunks: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
            read: 0,
            newest: Timestamp::MIN,
            has_ended: false,
        }
    }

    /// Moves a chunk of at most about `left` bytes out of the ring, and its records to the merge.
    fn read_chunk(
        &mut self,
        source: usize,
        left: u64,
        merge: &mut Merge<Place>,
        table: &Table,
        stats: &mut SetStats,
    ) -> Read {
        let number = self.first.wrapping_add(self.chunks.len() as u32);
        let corrupt = self.buffer.stats().corrupt_bytes;
        let mut batch = self.buffer.batch();
        let (mut at, mut waiting, mut unknown) = (0u32, 0, 0);
        let (mut last, mut inversions) = (self.newest, 0);
        while let Some(raw) = batch.next_record() {
            let size = raw.bytes().len() as u16; // its header has no more bits
            match table.find(raw).map(|slot| (slot, slot.layout.timestamp(raw))) {
                Some((slot, Some(time))) => {
                    if time < last {
                        inversions += 1;
                    } else {
                        last = time;
                    }
                    let is_sample = raw.type_() == PERF_RECORD_SAMPLE;
                    let place =
                        Place { chunk: number, offset: at, size, is_sample, slot: slot.place };
                    merge.push(source, time, place);
                    waiting += 1;
                }
                Some((_, None)) => stats.undecodable += 1,
                None => unknown += 1,
            }
            at += u32::from(size);
            if u64::from(at) >= left {
                break;
            }
        }
        drop(batch);
        self.buffer.count_unknown_ids(unknown);
        stats.inversions += inversions;
        let (start, used) = (self.read, at as usize);
        self.read += u64::from(at);
        let skipped = self.buffer.stats().corrupt_bytes - corrupt;
        let bytes = u64::from(at) + skipped;
        if waiting == 0 {
            return Read { bytes, held: 0, newest: None };
        }
        self.newest = last;
        let chunk = if used * PART <= self.buffer.chunk_len() {
            self.buffer.chunk(used).to_vec()
        } else {
            self.buffer.take_chunk(self.spare.pop().unwrap_or_default())
        };
        self.chunks.push_back(Chunk { bytes: chunk, used, waiting, start });
        Read { bytes, held: used, newest: Some(last) }
    }

    /// Frees the first chunks if nothing waits in them. Returns their bytes.
    fn forget_chunks(&mut self) -> usize {
        let mut bytes = 0;
        while self.chunks.front().is_some_and(|chunk| chunk.waiting == 0) {
            let Some(chunk) = self.chunks.pop_front() else { break };
            self.first = self.first.wrapping_add(1);
            bytes += chunk.used;
            let len = self.buffer.chunk_len();
            if chunk.bytes.len() == len && self.spare.len() * len < SPARE * self.buffer.size() {
                self.spare.push(chunk.bytes);
            }
        }
        bytes
    }

    fn read_unordered<E>(
        &mut self,
        mut left: u64,
        table: &Table,
        stats: &mut SetStats,
        f: &mut impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut count = 0;
        while left > 0 {
            let mut batch = self.buffer.batch();
            let (mut read, mut unknown) = (0, 0);
            let mut result = Ok(());
            while let Some(raw) = batch.next_record() {
                read += raw.bytes().len() as u64;
                match table.find(raw) {
                    Some(slot) => {
                        if raw.type_() == PERF_RECORD_SAMPLE {
                            slot.deliver();
                        }
                        count += 1;
                        let time = slot.layout.timestamp(raw);
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
                if result.is_err() || read >= left {
                    break;
                }
            }
            drop(batch);
            self.buffer.count_unknown_ids(unknown);
            self.read += read;
            result?;
            if read == 0 {
                break; // only skipped bytes that are not records
            }
            left = left.saturating_sub(read);
        }
        Ok(count)
    }
}
