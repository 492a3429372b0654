//! Values by address range, over time.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use trace_common::Timestamp;

/// Ranges of addresses with a value, each from a time on, until a later one covers it.
///
/// Ranges that ended are kept by the power of two of their size: a search looks only at those that can
/// reach the address.
#[derive(Clone, Debug)]
pub(crate) struct TimeMap<T> {
    live: BTreeMap<u64, Live<T>>,
    past: BTreeMap<u32, BTreeMap<(u64, usize), Past<T>>>,
    /// Number of ranges that ended.
    ended: usize,
}

#[derive(Clone, Copy, Debug)]
struct Live<T> {
    end: u64,
    from: Timestamp,
    value: T,
}

#[derive(Clone, Copy, Debug)]
struct Past<T> {
    end: u64,
    from: Timestamp,
    to: Timestamp,
    value: T,
}

/// Number of ended ranges of one size that are searched for an address. The address is unknown if more
/// ranges than this had the same place.
const MAX_SEARCHED: usize = 1 << 12;

impl<T> Default for TimeMap<T> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), past: BTreeMap::new(), ended: 0 }
    }
}

impl<T: Copy> TimeMap<T> {
    /// Number of ranges, also of those that ended.
    pub(crate) fn len(&self) -> usize {
        self.live.len() + self.ended
    }

    /// The bytes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len() * size_of::<Past<T>>()) as u64
    }

    /// The end and the value of the range that starts at an address and has not ended.
    pub(crate) fn live(&self, start: u64) -> Option<(u64, T)> {
        self.live.get(&start).map(|live| (live.end, live.value))
    }

    /// Ends all ranges except those that `keep` accepts by start, end and value.
    pub(crate) fn retain(&mut self, at: Timestamp, keep: impl Fn(u64, u64, &T) -> bool) {
        let gone = self.live.iter().filter(|(start, live)| !keep(**start, live.end, &live.value));
        let gone: Vec<(u64, u64)> = gone.map(|(start, live)| (*start, live.end)).collect();
        gone.into_iter().for_each(|(start, end)| self.remove(start, end, at));
    }

    /// Sets the value of a range from a time on.
    pub(crate) fn insert(&mut self, start: u64, end: u64, from: Timestamp, value: T) {
        if start < end {
            self.remove(start, end, from);
            self.live.insert(start, Live { end, from, value });
        }
    }

    /// Ends what is in a range.
    pub(crate) fn remove(&mut self, start: u64, end: u64, at: Timestamp) {
        let covered: Vec<u64> = self
            .live
            .range(..end)
            .rev()
            .take_while(|(_, old)| old.end > start)
            .map(|(start, _)| *start)
            .collect();
        for old_start in covered {
            let Some(old) = self.live.remove(&old_start) else { continue };
            if old.end > end {
                self.live.insert(end, old);
            }
            if old_start < start {
                self.live.insert(old_start, Live { end: start, ..old });
            }
            let (start, end) = (old_start.max(start), old.end.min(end));
            if old.from < at {
                let past = Past { end, from: old.from, to: at, value: old.value };
                let class = u64::BITS - (end - start).leading_zeros();
                self.past.entry(class).or_default().insert((start, self.ended), past);
                self.ended += 1;
            }
        }
    }

    /// The values that an address had at any time, the last one first. `None` if there are too many.
    pub(crate) fn all(&self, address: u64) -> Option<Vec<T>> {
        let live = self.live.range(..=address).next_back();
        let live = live.filter(|(_, live)| address < live.end).map(|(_, live)| live.value);
        let mut past: Vec<&Past<T>> = Vec::new();
        for (class, ranges) in &self.past {
            let near = ranges.range(near(*class, address)).rev().take(MAX_SEARCHED);
            let before = past.len();
            past.extend(near.map(|(_, past)| past));
            if past.len() - before == MAX_SEARCHED {
                return None;
            }
        }
        past.retain(|past| address < past.end);
        past.sort_by_key(|past| std::cmp::Reverse(past.from));
        Some(live.into_iter().chain(past.into_iter().map(|past| past.value)).collect())
    }

    /// The value at an address at a time.
    pub(crate) fn at(&self, address: u64, at: Timestamp) -> Option<T> {
        if let Some((_, live)) = self.live.range(..=address).next_back() {
            if address < live.end && live.from <= at {
                return Some(live.value);
            }
        }
        self.past.iter().find_map(|(class, ranges)| {
            let found = ranges
                .range(near(*class, address))
                .rev()
                .take(MAX_SEARCHED)
                .find(|(_, past)| address < past.end && past.from <= at && at < past.to);
            found.map(|(_, past)| past.value)
        })
    }
}

/// The places of ranges of a size that can have an address.
fn near(class: u32, address: u64) -> RangeInclusive<(u64, usize)> {
    let reach = 1u64.checked_shl(class).unwrap_or(0).wrapping_sub(1);
    (address.saturating_sub(reach), 0)..=(address, usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn ranges_replace_what_they_cover() {
        let mut map = TimeMap::default();
        map.insert(10, 50, at(1), 'a');
        map.insert(20, 30, at(2), 'b');
        map.insert(45, 60, at(3), 'c');
        let row = |time| {
            let value = |address| map.at(address, at(time)).unwrap_or('.');
            (10..61).step_by(5).map(value).collect::<String>()
        };
        assert_eq!(row(0), "...........");
        assert_eq!(row(1), "aaaaaaaa...");
        assert_eq!(row(2), "aabbaaaa...");
        assert_eq!(row(3), "aabbaaaccc.");
        let all = |address| map.all(address).unwrap();
        assert_eq!(
            [all(9), all(12), all(25), all(47)],
            [&[][..], &['a'], &['b', 'a'], &['c', 'a']]
        );
    }

    proptest! {
        #[test]
        fn a_table_of_every_address_and_time_agrees(
            changes in proptest::collection::vec((0u64..40, 0u64..20, any::<bool>()), 0..30),
        ) {
            let mut map = TimeMap::default();
            let mut rows: Vec<[Option<usize>; 64]> = vec![[None; 64]];
            for (i, (start, len, is_removal)) in changes.into_iter().enumerate() {
                let mut row = *rows.last().unwrap();
                let end = start + len;
                let now = at(i as i64 + 1);
                for value in &mut row[start as usize..end as usize] {
                    *value = (!is_removal).then_some(i);
                }
                if is_removal { map.remove(start, end, now) } else { map.insert(start, end, now, i) }
                rows.push(row);
            }
            for (time, row) in rows.iter().enumerate() {
                for (address, expected) in row.iter().enumerate() {
                    prop_assert_eq!(map.at(address as u64, at(time as i64)), *expected);
                }
            }
        }
    }
}
