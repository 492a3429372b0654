//! The next event of every thread, and the heap that returns the earliest.

use crate::error::{Error, ErrorKind, Position};
use crate::generation::{EventBatch, Events, KnownIds, ThreadBatches};
use crate::gosort;
use crate::id::ThreadId;
use crate::spec::{EventType, LAYOUTS, Layout, MAX_ARGS, Plan};

/// A decoded event with its absolute time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEvent {
    pub(crate) time: i64,
    args: [Arg; MAX_ARGS],
    pub(crate) ty: EventType,
    /// Whether all strings and stacks that it names are known to be in the tables.
    pub(crate) has_known_ids: bool,
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
        // Not `map`, which is inlined only with link-time optimization.
        let [Arg(a), Arg(b), Arg(c), Arg(d)] = self.args;
        [a, b, c, d]
    }

    pub(crate) fn set_args(&mut self, args: [u64; MAX_ARGS]) {
        self.args = args.map(Arg);
    }
}

/// The position of one thread in its batches, and its next event. The time of the event is 0 before
/// the first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub(crate) event: RawEvent,
    pub(crate) thread: ThreadId,
    /// Index of the thread in the ordering's table.
    pub(crate) slot: u32,
    batch: u32,
    /// Start of `event`; `at` is its end. Both are indexes into the source's bytes.
    pub(crate) start: usize,
    at: usize,
    /// End of the batch.
    end: usize,
}

impl Cursor {
    /// The cursor of a thread before its first event, which is in the batch `first`.
    pub(crate) fn new(thread: ThreadId, slot: u32, first: u32, batches: &[EventBatch]) -> Self {
        let (at, end) = batches.get(first as usize).map_or((0, 0), |b| (b.data.start, b.data.end));
        let (ty, has_known_ids) = (EventType(0), false);
        let event = RawEvent { time: 0, args: Default::default(), ty, has_known_ids };
        Self { event, thread, slot, batch: first, start: at, at, end }
    }

    /// Decodes the next event; `false` if there is none.
    #[inline(always)]
    pub(crate) fn advance(
        &mut self,
        events: &Events,
        bytes: &(impl Encoded + ?Sized),
    ) -> Result<bool, Error> {
        if self.event.time == 0 {
            self.event.time = self.base_time(events);
        }
        self.start = self.at;
        // There are nearly always enough bytes left for the longest possible event. At the end of a
        // batch, which is not checked for, the bytes after it are decoded in vain.
        let (mut ticks, len) = match bytes.chunk(self.at) {
            Some(window) => decode(window, events.known, &mut self.event),
            None => (0, MALFORMED),
        };
        let mut at = self.at + len;
        if at > self.end {
            match self.advance_apart(events, bytes)? {
                Some(decoded) => (ticks, at) = decoded,
                None => return Ok(false),
            }
        }
        self.at = at;
        self.event.time = events.scale.nanos(ticks).wrapping_add(self.event.time);
        Ok(true)
    }

    /// The time of the batch.
    #[cold]
    #[expect(
        clippy::indexing_slicing,
        reason = "a cursor is made for a batch of its thread, and batches stay"
    )]
    fn base_time(&self, events: &Events) -> i64 {
        events.scale.nanos(events.batches[self.batch as usize].ticks)
    }

    /// As [`Cursor::advance`] at the end of a batch, or near the end of the buffered bytes, or at a
    /// malformed event: returns the ticks and the end of the next event, if there is one.
    #[cold]
    fn advance_apart(
        &mut self,
        events: &Events,
        bytes: &(impl Encoded + ?Sized),
    ) -> Result<Option<(u64, usize)>, Error> {
        if self.at == self.end {
            if !self.next_batch(events) {
                return Ok(None);
            }
            self.event.time = self.base_time(events);
            self.start = self.at;
        }
        self.advance_bytewise(bytes.bytes()).map(Some)
    }

    /// Decodes the event at the cursor byte by byte.
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
        (self.event.ty, self.event.has_known_ids) = (ty, false);
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

/// The encoded events of a generation.
pub(crate) trait Encoded {
    /// All bytes.
    fn bytes(&self) -> &[u8];

    /// The bytes from index `at` on, if there are enough in memory. Those after the end of
    /// [`Encoded::bytes`] are undefined.
    fn chunk(&self, at: usize) -> Option<&Chunk>;
}

impl Encoded for [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn chunk(&self, at: usize) -> Option<&Chunk> {
        self.get(at..)?.first_chunk()
    }
}

/// The bytes that an event is decoded in: more than any event has.
pub(crate) type Chunk = [u8; MAX_LEN.next_power_of_two() + 3];

/// The longest event: its type, its time and its arguments, ten bytes each.
const MAX_LEN: usize = 1 + 10 * (1 + MAX_ARGS);

/// The length of a malformed integer: more than any batch has left.
const MALFORMED: usize = 1 << 20;

/// Decodes the event at the start of `window`; returns its time and its length. The length is at
/// least [`MALFORMED`] if its type is not one of a thread's stream, or if an integer is malformed.
#[inline(always)]
fn decode(window: &Chunk, known: KnownIds, event: &mut RawEvent) -> (u64, usize) {
    event.ty = EventType(window[0]);
    let (ticks, at) = uvarint(window, 1);
    macro_rules! by_layout {
        ($($layout:literal)*) => {
            // The remainder changes no layout; with it, all values have an arm.
            match event.ty.plan().layout % 16 {
                $($layout => arguments::<$layout>(window, at, known, event),)*
                _ => MALFORMED,
            }
        };
    }
    const { assert!(LAYOUTS.len() == 15) };
    let at = by_layout!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    (ticks, at)
}

/// Reads the arguments of this layout from index `at`; returns the index after them.
///
/// Their number and kinds are constants, so the loop is unrolled.
#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
fn arguments<const LAYOUT: usize>(
    window: &Chunk,
    mut at: usize,
    known: KnownIds,
    event: &mut RawEvent,
) -> usize {
    let Layout { args, stacks, strings } = const { LAYOUTS[LAYOUT] };
    let mut has_known_ids = true;
    for (index, arg) in event.args.iter_mut().enumerate().take(args) {
        (arg.0, at) = uvarint(window, at);
        if stacks >> index & 1 != 0 {
            has_known_ids &= arg.0 < known.stacks;
        }
        if strings >> index & 1 != 0 {
            has_known_ids &= arg.0 < known.strings;
        }
    }
    event.has_known_ids = has_known_ids;
    at
}

/// Reads the variable-length integer at index `at`; returns it and the index after it.
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
fn uvarint(window: &Chunk, at: usize) -> (u64, usize) {
    let i = at % MAX_LEN.next_power_of_two();
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
    (u64::from(value), at + len)
}

#[cold]
#[inline(never)]
fn long_uvarint(window: &Chunk, at: usize) -> (u64, usize) {
    let mut cursor = trace_common::Cursor::new(window.get(at..).unwrap_or_default());
    match cursor.uvarint() {
        Ok(value) => (value, at + cursor.position()),
        Err(_) => (0, at + MALFORMED),
    }
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
#[derive(Debug)]
pub(crate) struct Frontier {
    events: Events,
    /// By the order in which threads appear. The one of the head is out of date.
    cursors: Vec<Cursor>,
    /// The time of its first entry is out of date, until [`Frontier::settle_head`].
    heap: Vec<Entry>,
    /// The cursor of the first entry of the heap, if there is one: most events are its next event,
    /// and here it has a fixed place.
    head: Cursor,
    /// Its index in `cursors`, or [`NOBODY`].
    seated: u32,
    /// Up to this time, exclusive, the event of the head is the next event. Threads alternate in
    /// runs of dozens of events, so most events need only this comparison.
    barrier: i64,
}

/// No index of a cursor: there are fewer.
const NOBODY: u32 = u32::MAX;

impl Default for Frontier {
    fn default() -> Self {
        Self {
            events: Events::default(),
            cursors: Vec::new(),
            heap: Vec::new(),
            head: Cursor::new(ThreadId::NONE, 0, 0, &[]),
            seated: NOBODY,
            barrier: i64::MIN,
        }
    }
}

impl Frontier {
    /// Starts a generation: a cursor for each thread, in the order of their appearance.
    ///
    /// Events of a thread that precede the index `resume_at` are skipped.
    pub(crate) fn start(
        &mut self,
        events: Events,
        bytes: &(impl Encoded + ?Sized),
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
        self.seat();
        Ok(())
    }

    /// Discards the remaining events.
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.seat();
        self.cursors.clear();
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The cursor with the earliest event, if there is one.
    #[inline(always)]
    pub(crate) fn head(&self) -> &Cursor {
        &self.head
    }

    /// The time of the earliest event.
    #[inline]
    pub(crate) fn head_time(&self) -> Option<i64> {
        (!self.heap.is_empty()).then_some(self.head.event.time)
    }

    /// Whether the event of the head is known to be the next one: it is earlier than those of all
    /// other threads and not later than the time that was passed to [`Frontier::settle_head`].
    #[inline(always)]
    pub(crate) fn is_head_next(&self) -> bool {
        self.head.event.time < self.barrier
    }

    /// The cursor at `index` of the heap; 0 is the earliest.
    #[expect(
        clippy::indexing_slicing,
        reason = "an index of the heap, whose entries name cursors that stay"
    )]
    pub(crate) fn cursor(&self, index: usize) -> &Cursor {
        if index == 0 { &self.head } else { &self.cursors[self.heap[index].cursor as usize] }
    }

    /// Moves the head past its event, which was accepted. It may no longer be the earliest one then:
    /// see [`Frontier::is_head_next`].
    #[inline(always)]
    pub(crate) fn pass_head(&mut self, bytes: &(impl Encoded + ?Sized)) -> Result<(), Error> {
        if !self.head.advance(&self.events, bytes)? {
            self.remove(0);
        }
        Ok(())
    }

    /// Makes the cursor with the earliest event the head, after [`Frontier::pass_head`]. It is
    /// the next one as long as it is not later than `other`.
    pub(crate) fn settle_head(&mut self, other: i64) {
        if self.heap.is_empty() {
            return;
        }
        self.update_head();
        self.sift_down(0);
        self.seat();
        let time = |index: usize| self.heap.get(index).map_or(i64::MAX, |entry| entry.time);
        self.barrier = time(1).min(time(2)).min(other).saturating_add(1);
    }

    /// Moves the cursor at `index` of the heap past its event, which was accepted.
    #[expect(
        clippy::indexing_slicing,
        reason = "an index of the heap, whose entries name cursors that stay"
    )]
    pub(crate) fn pass(
        &mut self,
        index: usize,
        bytes: &(impl Encoded + ?Sized),
    ) -> Result<(), Error> {
        if index == 0 {
            self.pass_head(bytes)?;
            self.settle_head(i64::MIN);
            return Ok(());
        }
        let entry = &mut self.heap[index];
        let cursor = &mut self.cursors[entry.cursor as usize];
        if cursor.advance(&self.events, bytes)? {
            entry.time = cursor.event.time;
            self.settle(index);
        } else {
            self.remove(index);
        }
        Ok(())
    }

    /// Moves the entry at `index` to the position that its time requires.
    fn settle(&mut self, index: usize) {
        if self.sift_up(index) == index {
            self.sift_down(index);
        }
        self.seat();
    }

    /// Brings the time of the heap's first entry up to date.
    fn update_head(&mut self) {
        if let Some(first) = self.heap.first_mut() {
            first.time = self.head.event.time;
        }
    }

    /// Makes the cursor of the heap's first entry the head.
    fn seat(&mut self) {
        self.barrier = i64::MIN;
        let first = self.heap.first().map_or(NOBODY, |entry| entry.cursor);
        if first == self.seated {
            return;
        }
        if let Some(place) = self.cursors.get_mut(self.seated as usize) {
            *place = self.head;
        }
        if let Some(cursor) = self.cursors.get(first as usize) {
            self.head = *cursor;
        }
        self.seated = first;
    }

    /// Sorts by time. A sorted heap is still a heap.
    pub(crate) fn sort(&mut self) {
        self.update_head();
        gosort::sort_by(&mut self.heap, |a, b| a.time < b.time);
        self.seat();
    }

    /// The position of the next event of each started thread, as an index into the source's bytes;
    /// after the last event if there is none.
    #[expect(
        clippy::indexing_slicing,
        reason = "entries name cursors, of which there are as many as positions"
    )]
    pub(crate) fn positions(mut self) -> Vec<(ThreadId, usize)> {
        let heap = std::mem::take(&mut self.heap);
        self.seat();
        let behind = self.cursors.iter().map(|cursor| (cursor.thread, cursor.at));
        let mut positions: Vec<_> = behind.collect();
        for entry in &heap {
            let index = entry.cursor as usize;
            positions[index].1 = self.cursors[index].start;
        }
        positions
    }

    /// Counts the remaining events by decoding them.
    #[expect(clippy::indexing_slicing, reason = "entries name cursors that stay")]
    pub(crate) fn drain(&mut self, bytes: &(impl Encoded + ?Sized)) -> u64 {
        let mut events = 0;
        let heap = std::mem::take(&mut self.heap);
        self.seat();
        for entry in heap {
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
    #[cold]
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
        self.seat();
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
            noise: [u8; size_of::<Chunk>()],
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
            let (ticks, len) = decode(bytes.first_chunk().unwrap(), KnownIds::default(), &mut event);
            let decoded = (len < MALFORMED).then_some((ticks, len));
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
                let head = frontier.heap.first().map(|entry| entry.time);
                prop_assert_eq!(head, times.iter().min().copied());
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
