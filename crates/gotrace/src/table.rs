//! The data that events of one generation refer to: strings, stacks, clocks, experimental data.

use crate::generation::KnownIds;
use crate::id::ThreadId;
use crate::spec::Experiment;
use bstr::BStr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use trace_common::{SeededState, Timestamp};

/// The tables of one generation. Events keep them alive. They are immutable once the generation is
/// read, except for [`Table::add`].
#[derive(Debug)]
pub(crate) struct Table {
    /// Distinguishes the tables of a process.
    pub(crate) serial: u64,
    /// Number of the generation; 0 for a v1 trace and for synthetic events.
    pub(crate) generation: u64,
    pub(crate) strings: IdTable<Arc<[u8]>>,
    pub(crate) stacks: IdTable<Span>,
    /// Frames of all stacks, concatenated, as indexes into `frames`.
    pub(crate) stack_frames: Vec<u32>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) frame_by_pc: HashMap<u64, u32, SeededState>,
    pub(crate) sync: SyncData,
    pub(crate) experimental: Vec<Batch>,
    extra: Extras,
}

/// A part of [`Table::stack_frames`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) pc: u64,
    pub(crate) func: u64,
    pub(crate) file: u64,
    pub(crate) line: u64,
}

/// Uninterpreted data of an experiment.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) experiment: Experiment,
    pub(crate) thread: ThreadId,
    pub(crate) data: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncData {
    /// Nanoseconds per tick of the trace clock; 0 until a frequency event is read.
    pub(crate) nanos_per_tick: f64,
    pub(crate) snapshot: Option<ClockSnapshot>,
}

/// Readings of three clocks that the traced program took at nearly the same moment.
///
/// Since Go 1.25. See [`SyncPoint::clock_snapshot`](crate::SyncPoint::clock_snapshot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ClockSnapshot {
    /// The clock of the trace's timestamps.
    pub trace: Timestamp,
    /// The monotonic clock of the system, nanoseconds.
    pub mono: u64,
    /// The wall clock: seconds since the Unix epoch …
    pub wall_seconds: i64,
    /// … and nanoseconds, below 1 000 000 000.
    pub wall_nanos: u32,
}

impl ClockSnapshot {
    /// Readings of the clock of the trace, of the monotonic clock in nanoseconds, and of the wall
    /// clock in seconds and nanoseconds.
    pub const fn new(trace: Timestamp, mono: u64, wall_seconds: i64, wall_nanos: u32) -> Self {
        Self { trace, mono, wall_seconds, wall_nanos }
    }

    /// The wall clock as nanoseconds since the Unix epoch, if they fit in 64 bits.
    pub fn wall(&self) -> Option<Timestamp> {
        let nanos = self.wall_seconds.checked_mul(1_000_000_000)?;
        nanos.checked_add(i64::from(self.wall_nanos)).map(Timestamp::from_nanos)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Table {
    pub(crate) fn new(generation: u64) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Self {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            generation,
            strings: IdTable::default(),
            stacks: IdTable::default(),
            stack_frames: Vec::new(),
            frames: Vec::new(),
            frame_by_pc: HashMap::default(),
            sync: SyncData::default(),
            experimental: Vec::new(),
            extra: Extras::default(),
        }
    }

    /// The identifiers that are known to be in the tables, without a lookup.
    pub(crate) const fn known_ids(&self) -> KnownIds {
        KnownIds { stacks: self.stacks.full_below, strings: self.strings.full_below }
    }

    /// Returns the string `id`; 0 is the empty one.
    #[inline]
    pub(crate) fn string(&self, id: u64) -> Option<&BStr> {
        if id == 0 { Some(BStr::new("")) } else { self.strings.get(id).map(|s| BStr::new(&s[..])) }
    }

    #[inline(always)]
    pub(crate) fn has_string(&self, id: u64) -> bool {
        self.strings.has(id)
    }

    #[inline(always)]
    pub(crate) fn has_stack(&self, id: u64) -> bool {
        self.stacks.has(id)
    }

    /// Returns the indexes into `frames` of the frames of stack `id`, innermost first; none if
    /// unknown.
    pub(crate) fn stack(&self, id: u64) -> &[u32] {
        let span = self.stacks.get(id).copied().unwrap_or(Span { start: 0, len: 0 });
        let start = span.start as usize;
        self.stack_frames.get(start..start + span.len as usize).unwrap_or_default()
    }

    /// Returns the outermost frame of stack `id`.
    pub(crate) fn entry(&self, id: u64) -> Option<&Frame> {
        self.frames.get(*self.stack(id).last()? as usize)
    }

    /// Adds a frame; the first frame of each `pc` is used by all stacks of the generation.
    pub(crate) fn push_frame(&mut self, frame: Frame) {
        let next = self.frames.len() as u32;
        let index = *self.frame_by_pc.entry(frame.pc).or_insert(next);
        if index == next {
            self.frames.push(frame);
        }
        self.stack_frames.push(index);
    }

    /// Marks the generation as complete.
    pub(crate) fn complete(&mut self) {
        self.strings.complete();
        self.stacks.complete();
        self.frame_by_pc = HashMap::default(); // only needed while loading
    }

    /// Adds a string that is not in the generation's own table. [`Table::any`] finds it by the
    /// returned number: an odd one, or 0 for the empty string.
    pub(crate) fn add(&self, string: Arc<[u8]>) -> u64 {
        if string.is_empty() { 0 } else { self.extra.push(string) << 1 | 1 }
    }

    /// The number by which [`Table::any`] finds the generation's own string `id`: an even one.
    #[inline]
    pub(crate) fn own(&self, id: u64) -> u64 {
        match id.checked_mul(2) {
            Some(number) => number,
            None => self.add(self.strings.get(id).cloned().unwrap_or_default()),
        }
    }

    /// A string by its number among its own and the added ones.
    pub(crate) fn any(&self, number: u64) -> &BStr {
        if number & 1 == 0 {
            return self.string(number >> 1).unwrap_or_default();
        }
        BStr::new(self.extra.get(number >> 1).map_or(&[][..], |s| &s[..]))
    }
}

/// Values by identifier. Runtimes number strings and stacks from 1 upwards, so nearly all are in a
/// flat array; identifiers that would waste space go to a map.
#[derive(Debug)]
pub(crate) struct IdTable<T> {
    dense: Vec<Option<T>>,
    sparse: HashMap<u64, T>,
    len: usize,
    /// All identifiers below it are known to have a value (0 represents none).
    full_below: u64,
}

impl<T> Default for IdTable<T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: HashMap::new(), len: 0, full_below: 1 }
    }
}

impl<T> IdTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether `id` has a value or is 0.
    #[inline(always)]
    pub(crate) fn has(&self, id: u64) -> bool {
        self.surely_has(id) || self.get(id).is_some()
    }

    /// Whether `id` is known, without a lookup, to have a value or to be 0.
    #[inline(always)]
    pub(crate) fn surely_has(&self, id: u64) -> bool {
        id < self.full_below
    }

    /// Marks all values as added; afterwards [`IdTable::has`] rarely needs a lookup.
    pub(crate) fn complete(&mut self) {
        let values = self.dense.iter().skip(1);
        self.full_below = 1 + values.take_while(|value| value.is_some()).count() as u64;
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        // On 32-bit targets a larger identifier has no index: truncated it would be another one's.
        match usize::try_from(id).ok().and_then(|index| self.dense.get(index)) {
            Some(Some(value)) => Some(value),
            _ => self.get_sparse(id),
        }
    }

    #[cold]
    fn get_sparse(&self, id: u64) -> Option<&T> {
        self.sparse.get(&id)
    }

    /// Adds a value; `false` if `id` is already defined (0 always is: it represents no value).
    #[expect(clippy::indexing_slicing, reason = "the array was made longer than the index")]
    pub(crate) fn insert(&mut self, id: u64, value: T) -> bool {
        if id == 0 || self.get(id).is_some() {
            return false;
        }
        self.len += 1;
        if id < 2 * self.len as u64 + 1024 {
            let index = id as usize;
            if index >= self.dense.len() {
                self.dense.resize_with(index + 1, || None);
            }
            self.dense[index] = Some(value);
        } else {
            self.sparse.insert(id, value);
        }
        true
    }

    /// The largest identifier in use.
    pub(crate) fn max_id(&self) -> u64 {
        let dense = self.dense.iter().rposition(Option::is_some).unwrap_or(0) as u64;
        self.sparse.keys().copied().fold(dense, u64::max)
    }
}

/// A list that grows behind a shared reference and never moves its elements: chunk `k` has `2^k`
/// elements.
#[derive(Debug, Default)]
struct Extras {
    chunks: [OnceLock<Chunk>; 32],
    len: AtomicU64,
}

type Chunk = Box<[OnceLock<Arc<[u8]>>]>;

impl Extras {
    /// Adds a string and returns its number, from 1.
    #[expect(
        clippy::indexing_slicing,
        reason = "Extras::place gives a chunk that there is, and an index within it"
    )]
    fn push(&self, string: Arc<[u8]>) -> u64 {
        let number = self.len.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((chunk, index)) = Self::place(number) {
            let places = self.chunks[chunk]
                .get_or_init(|| std::iter::repeat_with(OnceLock::new).take(1 << chunk).collect());
            let _ = places[index].set(string); // each number is assigned once
        }
        number
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "Extras::place gives a chunk that there is, and an index within it"
    )]
    fn get(&self, number: u64) -> Option<&Arc<[u8]>> {
        let (chunk, index) = Self::place(number)?;
        self.chunks[chunk].get()?[index].get()
    }

    fn place(number: u64) -> Option<(usize, usize)> {
        let chunk = number.checked_ilog2()? as usize;
        (chunk < 32).then(|| (chunk, (number - (1 << chunk)) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_may_be_anything_but_zero_and_unique() {
        let mut table = IdTable::default();
        for id in [1, 2, 1023, 5000, u64::MAX, 3] {
            assert!(table.insert(id, id));
        }
        for id in [0, 1, 1023, 5000, u64::MAX] {
            assert!(!table.insert(id, 7), "{id} is taken");
        }
        // A value in the map is still found when the array has grown past its identifier.
        for id in 4..1023 {
            table.insert(id, id);
        }
        for id in 1024..4000 {
            table.insert(id, id);
        }
        for id in [1, 999, 3999, 5000, u64::MAX] {
            assert_eq!(table.get(id), Some(&id));
        }
        assert!(table.insert(5001, 1) && !table.insert(5000, 1));
        assert_eq!(table.get(4500), None);
        assert_eq!(table.max_id(), u64::MAX);
    }

    #[test]
    fn identifiers_are_known_before_and_after_completion() {
        let mut table = IdTable::default();
        for id in [3, 1, 2, 5, 1 << 40] {
            table.insert(id, ());
        }
        for _ in 0..2 {
            let known = (0..8).chain([1 << 40, u64::MAX]).filter(|&id| table.has(id));
            assert_eq!(known.collect::<Vec<_>>(), [0, 1, 2, 3, 5, 1 << 40]);
            table.complete();
        }
        assert_eq!(table.full_below, 4);
    }

    #[test]
    fn far_identifiers_do_not_take_memory() {
        let mut table = IdTable::default();
        for id in 1..=100u64 {
            table.insert(id << 40, ());
        }
        assert!(table.dense.capacity() < 2048);
        assert_eq!(table.len(), 100);
    }

    #[test]
    fn added_strings_keep_their_numbers() {
        let mut table = Table::new(1);
        for id in [7, u64::MAX] {
            table.strings.insert(id, id.to_string().as_bytes().into());
        }
        assert_eq!(table.add(Arc::from(&b""[..])), 0);
        let own = [0, 7, 8, u64::MAX].map(|id| table.own(id));
        let numbers: Vec<u64> =
            (0..1000).map(|i| table.add(Arc::from(i.to_string().as_bytes()))).collect();
        for (i, number) in numbers.iter().enumerate() {
            assert_eq!(table.any(*number), i.to_string().as_str());
        }
        assert_eq!(own.map(|number| table.any(number)), ["", "7", "", &u64::MAX.to_string()]);
        assert_eq!(table.any(u64::MAX), "");
    }
}
