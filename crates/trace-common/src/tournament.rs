//! The earliest of several sources.

use crate::Timestamp;

/// Finds the source with the earliest first item.
///
/// Each source [has](Self::set) the time of its first item. Of sources with the same time, the one
/// with the lower number comes first. [`Merge`](crate::Merge) is built on it; use it directly if the
/// items stay where they are, and release them in runs:
///
/// ```
/// use trace_common::{Timestamp, Tournament};
///
/// let sources: [&[i64]; 3] = [&[1, 7], &[2, 3, 4, 9], &[5]];
/// let mut left = sources;
/// let mut tournament = Tournament::new(3);
/// let first = |items: &[i64]| items.first().map(|at| Timestamp::from_nanos(*at));
/// for (source, items) in left.iter().enumerate() {
///     tournament.set(source, first(items));
/// }
/// let mut runs = Vec::new();
/// while let Some((source, _)) = tournament.first() {
///     // All items until then are earlier than the first one of each other source.
///     let until = tournament.leads_until(source);
///     let run = left[source].partition_point(|at| Timestamp::from_nanos(*at) <= until);
///     let (run, rest) = left[source].split_at(run);
///     runs.push(run);
///     left[source] = rest;
///     tournament.set(source, first(rest));
/// }
/// assert_eq!(runs, [&[1][..], &[2, 3, 4], &[5], &[7], &[9]]);
/// ```
///
/// # Cost
///
/// `set` and `leads_until` take log₂(sources) comparisons without branches.
#[derive(Clone, Debug)]
pub struct Tournament {
    /// Node `n` has the earlier of the nodes `2n` and `2n + 1`, the root is node 1, and the second
    /// half are the first items of the sources.
    ///
    /// A tree of losers needs one load less for each level, but only the winner can change in it;
    /// here any source can.
    nodes: Vec<Key>,
}

/// Time and source of an item: an earlier item is less, and of two at the same time that of the
/// lower source.
///
/// Two words, because the processor cannot load 16 bytes that were stored as two words before both
/// are in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// With the order of unsigned numbers.
    time: u64,
    source: usize,
}

/// The first item of an empty source, which comes after all others.
const EMPTY: Key = Key { time: u64::MAX, source: usize::MAX };

impl Key {
    #[inline]
    const fn new(at: Timestamp, source: usize) -> Self {
        Self { time: at.nanos() as u64 ^ 1 << 63, source }
    }

    #[inline]
    const fn at(self) -> Timestamp {
        Timestamp::from_nanos((self.time ^ 1 << 63) as i64)
    }

    /// All ones if this is less than the other one, else 0.
    #[inline]
    const fn is_less(self, other: Self) -> u64 {
        // No source has the highest bit, and with all bits of the time there are 127.
        let difference = self.number().wrapping_sub(other.number());
        ((difference >> 64) as i64 >> 63) as u64
    }

    #[inline]
    const fn number(self) -> u128 {
        (self.time as u128) << 63 | self.source as u128
    }

    /// The lesser one, without a branch: a compiler may make one of `if`, which is predicted wrong
    /// once for each item.
    #[inline]
    fn min(self, other: Self) -> Self {
        let mask = other.is_less(self);
        Self {
            time: self.time ^ (self.time ^ other.time) & mask,
            source: self.source ^ (self.source ^ other.source) & mask as usize,
        }
    }
}

impl Default for Tournament {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Tournament {
    /// Makes a tournament of empty sources, numbered from 0.
    pub fn new(sources: usize) -> Self {
        Self { nodes: vec![EMPTY; 2 * sources.next_power_of_two()] }
    }

    /// Number of sources that it has room for.
    #[inline]
    fn room(&self) -> usize {
        self.nodes.len() / 2
    }

    /// Makes room for a number of sources. The first items of the old ones stay.
    pub fn grow(&mut self, sources: usize) {
        if sources > self.room() {
            let old = std::mem::replace(self, Self::new(sources));
            for key in old.nodes.iter().skip(old.room()).filter(|key| **key != EMPTY) {
                self.replay(key.source, *key);
            }
        }
    }

    /// Sets the time of the first item of a source, or that it is empty.
    ///
    /// # Panics
    ///
    /// If there is [no room](Self::grow) for the source.
    #[inline]
    pub fn set(&mut self, source: usize, first: Option<Timestamp>) {
        assert!(source < self.room(), "no such source");
        self.replay(source, first.map_or(EMPTY, |at| Key::new(at, source)));
    }

    /// The source with the earliest first item, and its time. `None` if all are empty.
    #[inline]
    pub fn first(&self) -> Option<(usize, Timestamp)> {
        let first = *self.nodes.get(1)?;
        (first.source != EMPTY.source).then(|| (first.source, first.at()))
    }

    /// The last time at which items of the first source come before those of all other sources.
    #[inline]
    pub fn leads_until(&self, source: usize) -> Timestamp {
        let mut next = EMPTY;
        let mut node = self.room() + source;
        while node > 1 {
            next = next.min(self.nodes.get(node ^ 1).copied().unwrap_or(EMPTY));
            node /= 2;
        }
        // At the same time, the lower source is first. The first source has an item before.
        let is_before = next.source < source;
        next.at().saturating_add_nanos(-i64::from(is_before))
    }

    #[inline]
    fn replay(&mut self, source: usize, first: Key) {
        let mut winner = first;
        let mut node = self.room() + source;
        while let Some(place) = self.nodes.get_mut(node) {
            *place = winner;
            if node <= 1 {
                break;
            }
            winner = winner.min(self.nodes.get(node ^ 1).copied().unwrap_or(EMPTY));
            node /= 2;
        }
    }
}

/// Counts the items that are released after a later one.
#[derive(Clone, Copy, Debug)]
pub struct Lateness {
    released: Timestamp,
    late: u64,
    latest_by: i64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { released: Timestamp::MIN, late: 0, latest_by: 0 }
    }
}

impl Lateness {
    /// Counts the release of an item; returns whether it is late.
    #[inline]
    pub fn release(&mut self, at: Timestamp) -> bool {
        let is_late = at < self.released;
        if is_late {
            self.count(at);
        } else {
            self.released = at;
        }
        is_late
    }

    #[cold]
    fn count(&mut self, at: Timestamp) {
        self.late += 1;
        self.latest_by = self.latest_by.max(self.released.nanos_since(at));
    }

    /// The time of the latest item that was released.
    #[inline]
    pub const fn released(&self) -> Timestamp {
        self.released
    }

    /// Number of late items.
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Maximum lateness, in nanoseconds.
    pub const fn latest_by_nanos(&self) -> i64 {
        self.latest_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any number of sources and any changes, the first source and its lead are those that
        /// a search finds.
        #[test]
        fn finds_the_first_source_and_its_lead(
            room in 0usize..9,
            changes in prop::collection::vec(
                (0usize..70, prop::option::weighted(0.8, prop_oneof![
                    -3i64..3,
                    Just(i64::MIN),
                    Just(i64::MAX),
                ])),
                1..200,
            ),
        ) {
            let mut tournament = Tournament::new(room);
            let mut firsts = [None; 70];
            for (source, at) in changes {
                let at = at.map(Timestamp::from_nanos);
                tournament.grow(source + 1);
                tournament.set(source, at);
                firsts[source] = at;
                let sorted = || firsts.iter().enumerate().filter_map(|(n, at)| Some((at.as_ref()?, n)));
                let first = sorted().min();
                prop_assert_eq!(tournament.first(), first.map(|(at, n)| (n, *at)));
                let Some((at, n)) = first else { continue };
                let until = tournament.leads_until(n);
                prop_assert!(*at <= until);
                let next = sorted().filter(|(_, other)| *other != n).min();
                let expected = match next {
                    Some((at, other)) if other < n => at.saturating_add_nanos(-1),
                    Some((at, _)) => *at,
                    None => Timestamp::MAX,
                };
                prop_assert_eq!(until, expected);
            }
        }
    }
}
