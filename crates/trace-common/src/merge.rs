//! Merging several sources in time order into one stream.

use crate::Timestamp;
use std::collections::{BinaryHeap, VecDeque};

/// Merges the items of several sources into one stream in time order, up to a watermark before
/// which no more items can arrive.
///
/// Each source pushes items as they arrive, normally in order. An item that is out of order in its
/// source is still sorted in, unless it is earlier than an item that was already released. Items up
/// to the watermark are released in time order. Of items with the same time, the one of the lower
/// source comes first, and within a source the one that was pushed first.
///
/// ```text
///  source 0   ──1────4─────────9──▶
///  source 1   ────2──────6────────▶      watermark 6: 1 2 4 6 are released, in this order;
///                        ▲               9 waits.
/// ```
///
/// An item that is earlier than a released one is late: it is released next and marked, never
/// dropped. Late items are counted.
///
/// ```
/// use trace_common::{Merge, Timestamp};
///
/// let ns = Timestamp::from_nanos;
/// let mut merge = Merge::new(2);
/// merge.push(0, ns(1), 'a');
/// merge.push(0, ns(9), 'd');
/// merge.push(1, ns(6), 'c');
/// merge.push(1, ns(2), 'b'); // out of order in its source, but in time
/// let mut out = String::new();
/// while let Some(item) = merge.pop(ns(6)) {
///     out.push(item.value);
/// }
/// assert_eq!(out, "abc");
///
/// merge.push(1, ns(5), 'x');
/// let late = merge.pop(ns(6)).expect("it is released");
/// assert!(late.late && merge.late() == 1);
/// assert_eq!(merge.pop(Timestamp::MAX).map(|i| i.value), Some('d'));
/// ```
#[derive(Clone, Debug)]
pub struct Merge<T> {
    sources: Vec<Source<T>>,
    /// The first item of every non-empty source. An entry is stale if its source has a new, earlier
    /// first item; stale entries are skipped.
    heads: BinaryHeap<Head>,
    released: Option<Timestamp>,
    sequence: u64,
    len: usize,
    late: u64,
    latest_by: i64,
}

#[derive(Clone, Debug)]
struct Source<T> {
    items: VecDeque<(Timestamp, u64, T)>,
}

/// Ordered so that the earliest is the greatest, because the heap returns the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    at: Timestamp,
    source: usize,
    sequence: u64,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.source, other.sequence).cmp(&(self.at, self.source, self.sequence))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// An item that [`Merge::pop`] released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged<T> {
    /// The number of its source.
    pub source: usize,
    /// The time of the item.
    pub at: Timestamp,
    /// The item.
    pub value: T,
    /// Whether a later item was released before.
    pub late: bool,
}

impl<T> Merge<T> {
    /// Makes a merge of `sources` sources, numbered from 0. More can be added.
    pub fn new(sources: usize) -> Self {
        let mut this = Self {
            sources: Vec::new(),
            heads: BinaryHeap::new(),
            released: None,
            sequence: 0,
            len: 0,
            late: 0,
            latest_by: 0,
        };
        for _ in 0..sources {
            this.add_source();
        }
        this
    }

    /// Adds a source and returns its number.
    pub fn add_source(&mut self) -> usize {
        self.sources.push(Source { items: VecDeque::new() });
        self.sources.len() - 1
    }

    /// Adds an item of a source.
    ///
    /// If the source does not exist yet, it is added, together with the sources before it.
    pub fn push(&mut self, source: usize, at: Timestamp, value: T) {
        while source >= self.sources.len() {
            self.add_source();
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.len += 1;
        let Some(Source { items }) = self.sources.get_mut(source) else { return };
        // Nearly always at the end; otherwise before the later ones.
        let behind = items.iter().rev().take_while(|(t, ..)| *t > at).count();
        let place = items.len() - behind;
        items.insert(place, (at, sequence, value));
        if place == 0 {
            self.heads.push(Head { at, source, sequence });
        }
    }

    /// Releases the earliest item, if it is not after the watermark.
    ///
    /// The watermark is the time up to which all sources have pushed all items; [`Timestamp::MAX`]
    /// at the end of all sources.
    pub fn pop(&mut self, watermark: Timestamp) -> Option<Merged<T>> {
        loop {
            let head = *self.heads.peek()?;
            let first = self.sources.get(head.source).and_then(|s| s.items.front());
            if first.is_none_or(|(_, sequence, _)| *sequence != head.sequence) {
                self.heads.pop(); // another item became the first of its source
                continue;
            }
            if head.at > watermark {
                return None;
            }
            self.heads.pop();
            let items = &mut self.sources.get_mut(head.source)?.items;
            let (at, _, value) = items.pop_front()?;
            if let Some((at, sequence, _)) = items.front() {
                self.heads.push(Head { at: *at, source: head.source, sequence: *sequence });
            }
            self.len -= 1;
            let late = self.released.is_some_and(|released| at < released);
            if let (true, Some(released)) = (late, self.released) {
                self.late += 1;
                self.latest_by = self.latest_by.max(released.nanos_since(at));
            } else {
                self.released = Some(at);
            }
            return Some(Merged { source: head.source, at, value, late });
        }
    }

    /// Number of items that are not released yet.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether all items have been released.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The time of the last unreleased item of a source, up to which the source has pushed.
    pub fn newest_of(&self, source: usize) -> Option<Timestamp> {
        self.sources.get(source)?.items.back().map(|(at, ..)| *at)
    }

    /// Number of items that were released late so far.
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Maximum lateness of the late items, in nanoseconds.
    pub const fn latest_by_nanos(&self) -> i64 {
        self.latest_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ns(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    fn drain<T>(merge: &mut Merge<T>, watermark: i64) -> Vec<Merged<T>> {
        std::iter::from_fn(|| merge.pop(ns(watermark))).collect()
    }

    #[test]
    fn equal_times_keep_the_order_of_sources_and_of_pushes() {
        let mut merge = Merge::new(2);
        for (source, value) in [(1, 'c'), (0, 'a'), (0, 'b'), (1, 'd')] {
            merge.push(source, ns(5), value);
        }
        let values: String = drain(&mut merge, 5).iter().map(|m| m.value).collect();
        assert_eq!(values, "abcd");
    }

    #[test]
    fn late_items_are_marked_and_counted() {
        let mut merge = Merge::new(1);
        merge.push(0, ns(10), ());
        assert_eq!(drain(&mut merge, 10).len(), 1);
        for at in [10, 7, 3, 11] {
            merge.push(0, ns(at), ());
        }
        let late: Vec<_> = drain(&mut merge, 20).iter().map(|m| (m.at.nanos(), m.late)).collect();
        assert_eq!(late, [(3, true), (7, true), (10, false), (11, false)]);
        assert_eq!((merge.late(), merge.latest_by_nanos()), (2, 7));
    }

    #[test]
    fn sources_are_added_as_they_come() {
        let mut merge = Merge::new(0);
        merge.push(3, ns(1), 'x');
        assert_eq!(merge.newest_of(3), Some(ns(1)));
        assert_eq!(merge.add_source(), 4);
        assert_eq!((merge.len(), merge.newest_of(9)), (1, None));
    }

    proptest! {
        /// Every pushed item comes out once, and without late items in time order.
        #[test]
        fn the_merge_is_a_sort(items: Vec<(u8, i16)>, cut in 0usize..50, watermark: i16) {
            let mut merge = Merge::new(4);
            let mut out = Vec::new();
            for (i, (source, at)) in items.iter().enumerate() {
                if i == cut {
                    out.extend(drain(&mut merge, watermark.into()));
                }
                merge.push(usize::from(source % 4), ns((*at).into()), i);
            }
            out.extend(drain(&mut merge, i64::MAX));
            prop_assert!(merge.is_empty());
            let mut seen: Vec<usize> = out.iter().map(|m| m.value).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..items.len()).collect::<Vec<_>>());
            let punctual: Vec<_> = out.iter().filter(|m| !m.late).map(|m| m.at).collect();
            prop_assert!(punctual.windows(2).all(|w| w[0] <= w[1]));
            prop_assert_eq!(merge.late() as usize, out.iter().filter(|m| m.late).count());
        }
    }
}
