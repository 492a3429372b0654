//! The segments that are kept.

use crate::window::Window;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;
use trace_common::Timestamp;

/// A sealed segment of a recording: it is complete and does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number: segments are numbered in the order in which they were recorded.
    pub id: u64,
    /// Start of the time that it covers.
    pub start: Timestamp,
    /// End of the time that it covers.
    pub end: Timestamp,
    /// Its size.
    pub bytes: u64,
    /// Records that were lost while it was recorded.
    pub lost: u64,
}

/// Limits of a [`Ring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum size of all segments, with that in progress. Evicted ones that are [held](Ring::hold) may take as much
    /// once more.
    pub bytes: u64,
    /// Segments that ended this long ago are not kept.
    pub keep: Duration,
}

/// A segment does not follow those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfOrder {
    /// The segment.
    pub segment: Segment,
}

impl fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} does not follow the segments before it", self.segment.id)
    }
}

impl std::error::Error for OutOfOrder {}

/// Sealed segments, bounded by bytes and time. The oldest are evicted first.
#[derive(Clone, Debug)]
pub struct Ring {
    budget: Budget,
    segments: VecDeque<Segment>,
    bytes: u64,
    /// Segments in use by number: their sizes, and how often they are in use.
    held: BTreeMap<u64, (u64, u64)>,
    evicted_for_space: u64,
}

impl Ring {
    /// A ring without segments.
    pub const fn new(budget: Budget) -> Self {
        Self {
            budget,
            segments: VecDeque::new(),
            bytes: 0,
            held: BTreeMap::new(),
            evicted_for_space: 0,
        }
    }

    /// Its limits.
    pub const fn budget(&self) -> Budget {
        self.budget
    }

    /// Changes the limits. The next [`evict`](Self::evict) enforces them.
    pub const fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Adds a segment.
    ///
    /// # Errors
    ///
    /// [`OutOfOrder`] if its number, start or end is not after that of the segment before, or it
    /// ends before it starts. It is not added.
    pub fn seal(&mut self, segment: Segment) -> Result<(), OutOfOrder> {
        let follows = self
            .segments
            .back()
            .is_none_or(|last| segment.id > last.id && segment.start >= last.end);
        if !follows || segment.end < segment.start {
            return Err(OutOfOrder { segment });
        }
        self.bytes = self.bytes.saturating_add(segment.bytes);
        self.segments.push_back(segment);
        Ok(())
    }

    /// Removes the oldest segments until the budget holds at the time `now`, with `current` bytes of
    /// the segment in progress. Returns the removed ones, oldest first: the caller removes their
    /// files.
    ///
    /// The removal of a segment that is [held](Self::hold) frees no space until it is released. Such segments may
    /// take as much as the budget once more, so that a use of all segments costs none of them. What they take
    /// above that counts in the budget.
    pub fn evict(&mut self, now: Timestamp, current: u64) -> Vec<Segment> {
        let earliest = now - self.budget.keep;
        let mut evicted = Vec::new();
        while let Some(first) = self.segments.front().copied() {
            let is_old = first.end < earliest;
            let excess = self.evicted_and_held().saturating_sub(self.budget.bytes);
            let used = self.bytes.saturating_add(excess).saturating_add(current);
            if !is_old && used <= self.budget.bytes {
                break;
            }
            self.pop();
            self.evicted_for_space += u64::from(!is_old);
            evicted.push(first);
        }
        evicted
    }

    /// Removes the oldest segment for space that the budget does not know of, such as that of a disk which is full.
    pub fn evict_oldest(&mut self) -> Option<Segment> {
        let oldest = self.pop()?;
        self.evicted_for_space += 1;
        Some(oldest)
    }

    fn pop(&mut self) -> Option<Segment> {
        let oldest = self.segments.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }

    /// Begins a use of segments, such as that of a dump that reads their files: they take space until
    /// [`release`](Self::release), also once they are evicted.
    pub fn hold(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.held.entry(segment.id).or_insert((segment.bytes, 0)).1 += 1;
        }
    }

    /// Ends a use that [`hold`](Self::hold) began.
    pub fn release(&mut self, segments: &[Segment]) {
        for segment in segments {
            if let Some((_, uses)) = self.held.get_mut(&segment.id) {
                *uses = uses.saturating_sub(1);
            }
        }
        self.held.retain(|_, (_, uses)| *uses > 0);
    }

    /// Bytes of the segments that are held and in the ring no more.
    fn evicted_and_held(&self) -> u64 {
        let first = self.segments.front().map_or(u64::MAX, |first| first.id);
        let evicted = self.held.range(..first).map(|(_, (bytes, _))| *bytes);
        evicted.fold(0, u64::saturating_add)
    }

    /// The segments that overlap a window, oldest first. One that ends when it starts is in a window of that time.
    pub fn overlapping(&self, window: &Window) -> impl Iterator<Item = &Segment> {
        let (from, until) = (window.start, window.end);
        let is_after = move |s: &&Segment| s.end > from || s.start >= from;
        self.segments.iter().filter(is_after).filter(move |s| s.start < until)
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Bytes of all segments, and of evicted ones that are [held](Self::hold).
    pub fn used(&self) -> u64 {
        self.bytes.saturating_add(self.evicted_and_held())
    }

    /// Segments that were evicted for space, before their time: the window that a dump can cover is
    /// shorter than asked.
    pub const fn evicted_for_space(&self) -> u64 {
        self.evicted_for_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Cause;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn segment(id: u64, start: i64, end: i64, bytes: u64) -> Segment {
        Segment { id, start: at(start), end: at(end), bytes, lost: 0 }
    }

    fn ring(bytes: u64, seconds: u64) -> Ring {
        Ring::new(Budget { bytes, keep: Duration::from_secs(seconds) })
    }

    #[test]
    fn old_segments_are_evicted() {
        let mut ring = ring(100, 10);
        for id in 0..5 {
            ring.seal(segment(id, id as i64 * 5, id as i64 * 5 + 5, 10)).unwrap();
        }
        let evicted: Vec<u64> = ring.evict(at(25), 0).iter().map(|s| s.id).collect();
        assert_eq!(evicted, [0, 1], "those that ended before 15 s");
        assert_eq!((ring.used(), ring.evicted_for_space()), (30, 0));
        let evicted: Vec<u64> = ring.evict(at(25), 75).iter().map(|s| s.id).collect();
        assert_eq!(evicted, [2], "30 and 75 bytes are too many");
        assert_eq!((ring.used(), ring.evicted_for_space()), (20, 1));
    }

    /// A ring of 100 bytes that is full, and its segments.
    fn full() -> (Ring, Vec<Segment>) {
        let mut ring = ring(100, 100);
        (0..5).for_each(|id| ring.seal(segment(id, id as i64, id as i64 + 1, 20)).unwrap());
        let all = ring.segments().copied().collect();
        (ring, all)
    }

    #[test]
    fn a_dump_of_all_segments_costs_none_of_them() {
        let (mut ring, all) = full();
        ring.hold(&all);
        assert_eq!((ring.evict(at(5), 0).len(), ring.used()), (0, 100));
        // The recording continues.
        assert_eq!(ring.evict(at(5), 10), [all[0]]);
        assert_eq!((ring.segments().len(), ring.used()), (4, 100));
        ring.seal(segment(5, 5, 6, 20)).unwrap();
        assert_eq!((ring.evict(at(6), 0).len(), ring.used()), (0, 120));
        ring.release(&all);
        assert_eq!((ring.segments().len(), ring.used()), (5, 100));
    }

    #[test]
    fn uses_without_an_end_are_bounded() {
        let (mut ring, all) = full();
        ring.hold(&all);
        // A segment in two uses takes its space once.
        ring.hold(&all[4..]);
        for id in 5..30 {
            ring.seal(segment(id, id as i64, id as i64 + 1, 20)).unwrap();
            ring.hold(&[segment(id, 0, 0, 20)]);
            ring.evict(at(id as i64 + 1), 0);
            let kept: u64 = ring.segments().map(|segment| segment.bytes).sum();
            assert!(kept == 0 || ring.used() <= 200, "{id}: {}", ring.used());
        }
        let mut held: Vec<Segment> = (0..30).map(|id| segment(id, 0, 0, 20)).collect();
        held.push(all[4]);
        ring.release(&held);
        assert_eq!(ring.used(), 0);
    }

    #[test]
    fn the_oldest_segment_makes_room() {
        let (mut ring, all) = full();
        assert_eq!(ring.evict_oldest(), Some(all[0]));
        assert_eq!((ring.used(), ring.evicted_for_space()), (80, 1));
        while ring.evict_oldest().is_some() {}
        assert_eq!((ring.used(), ring.evicted_for_space()), (0, 5));
    }

    #[test]
    fn segments_are_in_order() {
        let mut ring = ring(100, 100);
        ring.seal(segment(1, 5, 6, 1)).unwrap();
        for wrong in [segment(1, 6, 7, 1), segment(2, 5, 7, 1), segment(2, 8, 7, 1)] {
            assert_eq!(ring.seal(wrong), Err(OutOfOrder { segment: wrong }));
        }
        assert_eq!(ring.segments().len(), 1);
    }

    #[test]
    fn a_window_has_the_segments_that_overlap_it() {
        let mut ring = ring(100, 100);
        for id in 0..6 {
            ring.seal(segment(id, id as i64, id as i64 + 1, 1)).unwrap();
        }
        let window = Window::new(at(2), at(4), Cause::new("signal", ""));
        let ids: Vec<u64> = ring.overlapping(&window).map(|s| s.id).collect();
        assert_eq!(ids, [2, 3]);
    }

    /// That of a recorder that was killed in its first moments.
    #[test]
    fn a_segment_without_length_is_in_a_window_of_its_time() {
        let mut ring = ring(100, 100);
        ring.seal(segment(1, 2, 2, 1)).unwrap();
        let has = |from, until| {
            let window = Window::new(at(from), at(until), Cause::new("signal", ""));
            ring.overlapping(&window).count() == 1
        };
        assert_eq!(
            [(1, 3), (2, 3), (1, 2), (3, 4)].map(|(from, until)| has(from, until)),
            [true, true, false, false]
        );
    }

    proptest! {
        /// Segments of any size and length: the budget holds after each eviction, what is kept is the
        /// newest part without a hole, and each segment is either kept or was returned.
        #[test]
        fn nothing_is_lost_and_the_budget_holds(
            sizes in prop::collection::vec((0u64..50, 0i64..4, 0i64..3), 0..100),
            bytes in 0u64..200,
            keep in 0u64..20,
            current in 0u64..60,
        ) {
            let mut ring = ring(bytes, keep);
            let (mut now, mut evicted) = (0, Vec::new());
            for (id, (bytes_of, length, gap)) in sizes.iter().enumerate() {
                let start = now + gap;
                now = start + length;
                ring.seal(segment(id as u64, start, now, *bytes_of)).unwrap();
                evicted.extend(ring.evict(at(now), current).iter().map(|s| s.id));
                let is_within = ring.used() + current <= bytes;
                prop_assert!(is_within || ring.segments().len() == 0);
                let earliest = at(now) - Duration::from_secs(keep);
                prop_assert!(ring.segments().all(|s| s.end >= earliest));
                prop_assert_eq!(ring.used(), ring.segments().map(|s| s.bytes).sum::<u64>());
            }
            let kept = ring.segments().map(|s| s.id);
            let all: Vec<u64> = evicted.into_iter().chain(kept).collect();
            prop_assert_eq!(all, (0..sizes.len() as u64).collect::<Vec<_>>());
        }
    }
}
