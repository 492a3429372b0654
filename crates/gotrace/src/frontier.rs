//! The next event of every thread, and the heap that returns the earliest.

use crate::error::{Error, ErrorKind, Position};
use crate::generation::{EventBatch, Events, ThreadBatches};
use crate::gosort;
use crate::id::ThreadId;
use crate::order::Advance;
use crate::spec::{EventType, MAX_ARGS, Plan};

/// A decoded event with its absolute time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEvent {
    pub(crate) time: i64,
    args: [Arg; MAX_ARGS],
    pub(crate) ty: EventType,
}

/// An argument. With two arguments in sixteen bytes, the compiler would copy both with one load,
/// which would stall on store forwarding after the two stores that have just written them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(16))]
struct Arg(u64);

impl RawEvent {
    /// The arguments; those beyond the arguments of the type are undefined.
    #[inline(always)]
    pub(crate) fn args(&self) -> [u64; MAX_ARGS] {
        self.args.map(|Arg(value)| value)
    }

    pub(crate) fn set_args(&mut self, args: [u64; MAX_ARGS]) {
        self.args = args.map(Arg);
    }
}

/// The position of one thread in its batches, and its next event.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    pub(crate) event: RawEvent,
    pub(crate) thread: ThreadId,
    /// Index of the thread in the ordering's table.
    pub(crate) slot: u32,
    /// Time of the last event of the batch; 0 before the first one.
    last_time: i64,
    batch: u32,
    /// Start of `event`; `at` is its end. Both are indexes into the source's bytes.
    pub(crate) start: usize,
    at: usize,
    /// End of the batch.
    end: usize,
}

impl Cursor {
    fn new(thread: ThreadId, slot: u32, first: u32, batches: &[EventBatch]) -> Self {
        let (at, end) = batches.get(first as usize).map_or((0, 0), |b| (b.data.start, b.data.end));
        let event = RawEvent { time: 0, args: Default::default(), ty: EventType(0) };
        Self { event, thread, slot, last_time: 0, batch: first, start: at, at, end }
    }

    /// Decodes the next event; `false` if there is none.
    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "a cursor is made for a batch of its thread, and batches stay"
    )]
    fn advance(&mut self, events: &Events, bytes: &[u8]) -> Result<bool, Error> {
        if self.at == self.end && !self.next_batch(events) {
            return Ok(false);
        }
        if self.last_time == 0 {
            self.last_time = events.scale.nanos(events.batches[self.batch as usize].ticks);
        }
        self.start = self.at;
        // There are nearly always enough bytes left for the longest possible event.
        let decoded = match bytes.get(self.at..).and_then(<[u8]>::first_chunk) {
            Some(window) => decode(window, &mut self.event),
            None => None,
        };
        let (ticks, at) = match decoded {
            Some((ticks, len)) if len <= self.end - self.at => (ticks, self.at + len),
            _ => self.advance_bytewise(bytes)?,
        };
        self.at = at;
        let time = events.scale.nanos(ticks).wrapping_add(self.last_time);
        self.last_time = time;
        self.event.time = time;
        Ok(true)
    }

    /// Decodes the event at the cursor byte by byte: an event near the end of the buffered bytes,
    /// or a malformed one.
    #[cold]
    fn advance_bytewise(&mut self, bytes: &[u8]) -> Result<(u64, usize), Error> {
        let data = bytes.get(self.at..self.end).unwrap_or_default();
        let mut cursor = trace_common::Cursor::new(data);
        let malformed =
            |e: trace_common::ReadError| ErrorKind::Malformed { what: "event", cause: e.kind };
        let ty = EventType(cursor.u8().map_err(|e| self.error(malformed(e)))?);
        let count = ty.plan().args;
        if count == Plan::NOT_TIMED {
            return Err(self.error(match ty.spec() {
                Some(_) => ErrorKind::UnexpectedEvent(ty),
                None => ErrorKind::InvalidEvent(ty.0),
            }));
        }
        self.event.ty = ty;
        let ticks = cursor.uvarint().map_err(|e| self.error(malformed(e)))?;
        for index in 0..usize::from(count) {
            let value = cursor.uvarint().map_err(|e| self.error(malformed(e)))?;
            if let Some(arg) = self.event.args.get_mut(index) {
                arg.0 = value;
            }
        }
        Ok((ticks, self.at + cursor.position()))
    }

    /// Moves to the thread's next batch that is not empty; `false` if there is none.
    #[cold]
    #[expect(
        clippy::indexing_slicing,
        reason = "a cursor is made for a batch of its thread, and batches stay"
    )]
    fn next_batch(&mut self, events: &Events) -> bool {
        while self.at == self.end {
            let next = events.batches[self.batch as usize].next;
            let Some(batch) = events.batches.get(next as usize) else { return false };
            self.batch = next;
            (self.at, self.end) = (batch.data.start, batch.data.end);
            self.last_time = 0;
        }
        true
    }

    /// An error at this event, with its offset from the start of the generation.
    #[cold]
    fn error(&self, kind: ErrorKind) -> Error {
        let position = Position {
            offset: self.start as u64,
            thread: Some(self.thread),
            ..Position::default()
        };
        Error::new(kind, position)
    }
}

/// Length of the window that an event is decoded in: greater than that of any event.
const WINDOW: usize = MAX_LEN.next_power_of_two() + 3;

/// The longest event: its type, its time and its arguments, ten bytes each.
const MAX_LEN: usize = 1 + 10 * (1 + MAX_ARGS);

/// Decodes the event at the start of `window`; returns its time and its length. `None` if its
/// type is not one of a thread's stream, or if an integer is malformed.
#[inline(always)]
fn decode(window: &[u8; WINDOW], event: &mut RawEvent) -> Option<(u64, usize)> {
    event.ty = EventType(window[0]);
    let mut at = 1;
    let ticks = uvarint(window, &mut at)?;
    // The number of arguments is a constant in each arm, so that the loops are unrolled.
    match event.ty.plan().args {
        0 => {}
        1 => arguments::<1>(window, &mut at, event)?,
        2 => arguments::<2>(window, &mut at, event)?,
        3 => arguments::<3>(window, &mut at, event)?,
        4 => arguments::<4>(window, &mut at, event)?,
        _ => return None,
    }
    Some((ticks, at))
}

/// Reads `N` arguments from index `at` and advances it past them.
#[inline(always)]
fn arguments<const N: usize>(
    window: &[u8; WINDOW],
    at: &mut usize,
    event: &mut RawEvent,
) -> Option<()> {
    for arg in event.args.iter_mut().take(N) {
        arg.0 = uvarint(window, at)?;
    }
    Some(())
}

/// Reads the variable-length integer at index `at` and advances it past the integer.
///
/// As [`trace_common::Cursor::uvarint`], but without an error value: integers of up to three bytes,
/// which are nearly all, are decoded inline and without a loop. No event is longer than
/// [`MAX_LEN`], so the remainder does not change the index; it proves to the compiler that no
/// bounds check is needed.
#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "the remainder keeps the index within the window: no check is left to do"
)]
fn uvarint(window: &[u8; WINDOW], at: &mut usize) -> Option<u64> {
    let i = *at % MAX_LEN.next_power_of_two();
    let bytes = u32::from_le_bytes([window[i], window[i + 1], window[i + 2], window[i + 3]]);
    let (value, len) = if bytes & 0x80 == 0 {
        (bytes & 0x7f, 1)
    } else if bytes & 0x8000 == 0 {
        (bytes & 0x7f | bytes >> 1 & 0x3f80, 2)
    } else if bytes & 0x80_0000 == 0 {
        (bytes & 0x7f | bytes >> 1 & 0x3f80 | bytes >> 2 & 0x1f_c000, 3)
    } else {
        return long_uvarint(window, at);
    };
    *at += len;
    Some(u64::from(value))
}

fn long_uvarint(window: &[u8; WINDOW], at: &mut usize) -> Option<u64> {
    let mut cursor = trace_common::Cursor::new(window.get(*at..)?);
    let value = cursor.uvarint().ok()?;
    *at += cursor.position();
    Some(value)
}

/// An entry of the heap.
#[derive(Clone, Copy, Debug)]
struct Entry {
    time: i64,
    cursor: u32,
}

/// The cursors of all threads that have events left, as a binary heap by time.
///
/// Many events have the same time (the clock ticks every 64 ns), and the layout of the heap decides
/// which of them comes first. So insertion, update, removal and sorting are done exactly as in the
/// reference.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    events: Events,
    cursors: Vec<Cursor>,
    heap: Vec<Entry>,
    /// The least time of all entries but the head. Up to this time the head stays the head. Threads
    /// alternate in runs of dozens of events, so most events need only this comparison.
    runner_up: i64,
}

impl Frontier {
    /// Starts a generation: a cursor for each thread, in the order of their appearance.
    ///
    /// Events of a thread that precede the index `resume_at` are skipped.
    pub(crate) fn start(
        &mut self,
        events: Events,
        bytes: &[u8],
        mut slot_of: impl FnMut(ThreadId) -> u32,
        resume_at: impl Fn(ThreadId) -> usize,
    ) -> Result<(), Error> {
        self.clear();
        self.events = events;
        for index in 0..self.events.threads.len() {
            let Some(&ThreadBatches { thread, first, .. }) = self.events.threads.get(index) else {
                break;
            };
            let mut cursor = Cursor::new(thread, slot_of(thread), first, &self.events.batches);
            let resume_at = resume_at(thread);
            let mut found = cursor.advance(&self.events, bytes)?;
            while found && cursor.start < resume_at {
                found = cursor.advance(&self.events, bytes)?;
            }
            if found {
                self.heap
                    .push(Entry { time: cursor.event.time, cursor: self.cursors.len() as u32 });
                self.cursors.push(cursor);
                self.sift_up(self.heap.len() - 1);
            }
        }
        self.find_runner_up();
        Ok(())
    }

    /// Discards the remaining events.
    pub(crate) fn clear(&mut self) {
        self.cursors.clear();
        self.heap.clear();
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The time of the earliest event.
    #[inline]
    pub(crate) fn head_time(&self) -> Option<i64> {
        self.heap.first().map(|head| head.time)
    }

    /// The cursor at `index` of the heap; 0 is the earliest.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "an index of the heap, whose entries name cursors that stay"
    )]
    pub(crate) fn cursor(&self, index: usize) -> &Cursor {
        &self.cursors[self.heap[index].cursor as usize]
    }

    /// Offers the event of the cursor at `index` of the heap. If it is accepted, the cursor moves
    /// to its next event.
    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "an index of the heap, whose entries name cursors that stay"
    )]
    pub(crate) fn offer(
        &mut self,
        index: usize,
        bytes: &[u8],
        take: impl FnOnce(&Cursor) -> Advance,
    ) -> Result<Advance, Error> {
        let entry = &mut self.heap[index];
        let cursor = &mut self.cursors[entry.cursor as usize];
        if let Err(blocked) = take(cursor) {
            return Ok(Err(blocked));
        }
        if cursor.advance(&self.events, bytes)? {
            entry.time = cursor.event.time;
            if index != 0 || entry.time > self.runner_up {
                self.settle(index);
            }
        } else {
            self.remove(index);
        }
        Ok(Ok(()))
    }

    /// Moves the entry at `index` to the position that its time requires.
    #[inline]
    fn settle(&mut self, index: usize) {
        if self.sift_up(index) == index {
            self.sift_down(index);
        }
        self.find_runner_up();
    }

    #[inline]
    fn find_runner_up(&mut self) {
        let time = |index: usize| self.heap.get(index).map_or(i64::MAX, |entry| entry.time);
        self.runner_up = time(1).min(time(2));
    }

    /// Sorts by time. A sorted heap is still a heap.
    pub(crate) fn sort(&mut self) {
        gosort::sort_by(&mut self.heap, |a, b| a.time < b.time);
        self.find_runner_up();
    }

    /// The position of the next event of each started thread, as an index into the source's bytes;
    /// after the last event if there is none.
    #[expect(
        clippy::indexing_slicing,
        reason = "entries name cursors, of which there are as many as positions"
    )]
    pub(crate) fn positions(&self) -> Vec<(ThreadId, usize)> {
        let behind = self.cursors.iter().map(|cursor| (cursor.thread, cursor.at));
        let mut positions: Vec<_> = behind.collect();
        for entry in &self.heap {
            let index = entry.cursor as usize;
            positions[index].1 = self.cursors[index].start;
        }
        positions
    }

    /// Counts the remaining events by decoding them.
    #[expect(clippy::indexing_slicing, reason = "entries name cursors that stay")]
    pub(crate) fn drain(&mut self, bytes: &[u8]) -> u64 {
        let mut events = 0;
        for entry in std::mem::take(&mut self.heap) {
            let cursor = &mut self.cursors[entry.cursor as usize];
            events += 1;
            while let Ok(true) = cursor.advance(&self.events, bytes) {
                events += 1;
            }
        }
        events
    }

    /// Removes the entry at `index`: bubbles it to the root regardless of the times, swaps it with
    /// the last one, and sifts that one down.
    fn remove(&mut self, mut index: usize) {
        while index > 0 {
            let parent = (index - 1) / 2;
            self.heap.swap(index, parent);
            index = parent;
        }
        let last = self.heap.len() - 1;
        self.heap.swap(0, last);
        self.heap.pop();
        self.sift_down(0);
        self.find_runner_up();
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "an index of the heap, and the parent of one is a lesser index"
    )]
    fn sift_up(&mut self, mut index: usize) -> usize {
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.heap[parent].time <= self.heap[index].time {
                break;
            }
            self.heap.swap(index, parent);
            index = parent;
        }
        index
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the index of an entry or of a child that was found"
    )]
    fn sift_down(&mut self, mut index: usize) {
        let heap = &mut self.heap[..];
        let Some(&Entry { time, cursor }) = heap.get(index) else { return };
        let moved = Entry { time, cursor };
        loop {
            // The lesser child, or the left one if both are equal; the entry stays if the child is
            // not less.
            let left = 2 * index + 1;
            let (child, time) = match heap.get(left..) {
                Some([left_entry, right, ..]) if right.time < left_entry.time => {
                    (left + 1, right.time)
                }
                Some([left_entry, ..]) => (left, left_entry.time),
                _ => break,
            };
            if time >= moved.time {
                break;
            }
            heap[index] = heap[child];
            index = child;
        }
        heap[index] = moved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The decoder of the hot path returns the same as the bytewise one.
        #[test]
        fn events_are_read_as_the_cursor_reads_them(
            ty in prop_oneof![1u8..=52, any::<u8>()],
            fields in prop::collection::vec(prop_oneof![0u64..1 << 22, any::<u64>()], 5),
            noise: [u8; WINDOW],
            garbage: bool,
        ) {
            let mut bytes = vec![ty];
            for field in fields {
                let mut rest = field;
                while rest >= 0x80 {
                    bytes.push(rest as u8 | 0x80);
                    rest >>= 7;
                }
                bytes.push(rest as u8);
            }
            if garbage {
                bytes.truncate(1);
            }
            bytes.extend(noise);
            let batch = EventBatch { ticks: 0, data: 0..bytes.len(), next: u32::MAX };
            let mut cursor = Cursor::new(ThreadId(1), 0, 0, &[batch]);
            let mut event = cursor.event;
            let decoded = decode(bytes.first_chunk().unwrap(), &mut event);
            prop_assert_eq!(cursor.advance_bytewise(&bytes).ok(), decoded);
            if decoded.is_some() {
                prop_assert_eq!((event.ty, event.args), (cursor.event.ty, cursor.event.args));
            }
        }
    }

    fn frontier(times: &[i64]) -> Frontier {
        let mut frontier = Frontier::default();
        for (i, &time) in times.iter().enumerate() {
            frontier.heap.push(Entry { time, cursor: i as u32 });
            frontier.sift_up(i);
        }
        frontier
    }

    proptest! {
        #[test]
        fn the_head_is_always_the_earliest(
            mut times in prop::collection::vec(0i64..50, 1..40),
            removals in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let mut frontier = frontier(&times);
            for removal in removals {
                prop_assert_eq!(frontier.head_time(), times.iter().min().copied());
                if frontier.heap.is_empty() {
                    break;
                }
                let index = removal.index(frontier.heap.len());
                let time = frontier.heap[index].time;
                frontier.remove(index);
                times.remove(times.iter().position(|t| *t == time).unwrap());
            }
        }
    }

    /// Sifts down as the reference does: the least of three entries; of equal ones the parent, then
    /// the left child.
    fn sink(heap: &mut [Entry], mut index: usize) {
        loop {
            let family = [index, 2 * index + 1, 2 * index + 2];
            let there = family.into_iter().filter(|&i| i < heap.len());
            // Of equal elements, this returns the first.
            let Some(least) = there.min_by_key(|&i| heap[i].time) else { return };
            if least == index {
                return;
            }
            heap.swap(index, least);
            index = least;
        }
    }

    proptest! {
        #[test]
        fn ties_sink_as_in_the_reference(
            times in prop::collection::vec(0i64..8, 1..20),
            updates in prop::collection::vec((any::<prop::sample::Index>(), 0i64..6), 0..40),
        ) {
            let mut frontier = frontier(&times);
            for (at, later) in updates {
                // Mostly the head, as in a real trace.
                let index = at.index(3 * times.len()).saturating_sub(2 * times.len());
                frontier.heap[index].time += later;
                let mut expected = frontier.heap.clone();
                sink(&mut expected, index);
                frontier.settle(index);
                let layout = |heap: &[Entry]| heap.iter().map(|e| e.cursor).collect::<Vec<_>>();
                prop_assert_eq!(layout(&frontier.heap), layout(&expected));
            }
        }
    }

    #[test]
    fn ties_stay_in_the_order_of_insertion_at_the_head() {
        let frontier = frontier(&[5, 5, 5]);
        assert_eq!(frontier.heap[0].cursor, 0);
    }
}
