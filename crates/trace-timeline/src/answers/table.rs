//! Sums by key.

use hashbrown::HashTable;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// Values by key, for a [`Report`](super::Report): as fast as an array where the caller remembers
/// the position, and in the order of the keys where it is read.
///
/// ```
/// # fn f(report: &trace_timeline::answers::Report) {
/// for (thread, times) in report.threads.iter() {
///     println!("{thread:?}: {} ns on CPUs", times.times.on_cpu);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Table<K, V> {
    entries: Vec<(K, V)>,
    index: HashTable<u32>,
}

/// The position of an entry that was used before: a guess.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hint(u32);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new(), index: HashTable::new() }
    }
}

impl<K: Copy + Ord + Hash, V> Table<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let found = self.index.find(hash(key), |place| self.is_at(*place, key))?;
        self.entries.get(*found as usize).map(|(_, value)| value)
    }

    /// All keys with their values, in the order of the keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut sorted: Vec<&(K, V)> = self.entries.iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        Iter(sorted.into_iter())
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn is_at(&self, place: u32, key: &K) -> bool {
        self.entries.get(place as usize).is_some_and(|(known, _)| known == key)
    }
}

impl<'a, K: Copy + Ord + Hash, V> IntoIterator for &'a Table<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// The entries of a [`Table`], in the order of the keys.
#[derive(Clone, Debug)]
pub struct Iter<'a, K, V>(std::vec::IntoIter<&'a (K, V)>);

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<K: Copy + Ord + Hash, V: Default> Table<K, V> {
    /// The value of a key, which is added if it is new.
    pub(super) fn entry(&mut self, key: K) -> &mut V {
        self.hinted(key, &mut Hint::default())
    }

    /// As [`Table::entry`], if possible without a look-up: where the hint says. Updates the hint.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the hint is the position of an entry by then")]
    pub(super) fn hinted(&mut self, key: K, hint: &mut Hint) -> &mut V {
        if !self.is_at(hint.0, &key) {
            *hint = self.find_or_add(&key);
        }
        &mut self.entries[hint.0 as usize].1
    }

    /// Maximum number of keys of [`Table::limited`].
    const MAX: usize = 1 << 20;

    /// As [`Table::hinted`]. Above the maximum number of keys, a new one counts as the `other` one.
    #[inline]
    pub(super) fn limited(&mut self, key: K, other: K, hint: &mut Hint) -> &mut V {
        if self.len() >= Self::MAX && self.get(&key).is_none() {
            return self.hinted(other, hint);
        }
        self.hinted(key, hint)
    }

    /// Removes a key with its value.
    pub(super) fn remove(&mut self, key: &K) {
        let entries = &self.entries;
        let is_it =
            |place: &u32| entries.get(*place as usize).is_some_and(|(known, _)| known == key);
        let Ok(found) = self.index.find_entry(hash(key), is_it) else { return };
        let (place, _) = found.remove();
        self.entries.swap_remove(place as usize);
        // The last one is in its place now.
        let last = self.entries.len() as u32;
        if let Some((moved, _)) = self.entries.get(place as usize) {
            if let Some(index) = self.index.find_mut(hash(moved), |known| *known == last) {
                *index = place;
            }
        }
    }

    /// By reference: the processor waits where it copies a key whose parts it has just written.
    fn find_or_add(&mut self, key: &K) -> Hint {
        let hash_of = hash(key);
        if let Some(place) = self.index.find(hash_of, |place| self.is_at(*place, key)) {
            return Hint(*place);
        }
        let place = self.entries.len() as u32;
        self.entries.push((*key, V::default()));
        let entries = &self.entries;
        self.index.insert_unique(hash_of, place, |place| {
            entries.get(*place as usize).map_or(0, |(key, _)| hash(key))
        });
        Hint(place)
    }
}

impl<K: Copy + Ord + Hash, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

fn hash(key: &impl Hash) -> u64 {
    BuildHasherDefault::<Mixer>::default().hash_one(key)
}

/// A hash of small numbers. The keys are numbers that this crate assigned: no input chooses them.
#[derive(Default)]
struct Mixer(u64);

impl Mixer {
    #[inline]
    const fn mix(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    #[inline]
    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table uses the highest and the lowest bits.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Those that are known count as before.
    #[test]
    fn keys_above_the_maximum_count_as_another_one() {
        const MAX: u32 = Table::<u32, u64>::MAX as u32;
        let mut table = Table::<u32, u64>::default();
        for key in (0..MAX + 10).chain(0..10) {
            *table.limited(key, u32::MAX, &mut Hint::default()) += 1;
        }
        assert_eq!(table.len(), MAX as usize + 1);
        assert_eq!((table.get(&0), table.get(&u32::MAX)), (Some(&2), Some(&10)));
        assert_eq!((table.get(&(MAX - 1)), table.get(&MAX)), (Some(&1), None));
    }

    proptest! {
        #[test]
        fn same_as_a_sorted_map(
            steps in
                proptest::collection::vec(((0..20u32, any::<bool>()), 0..8usize, 0..4u8), 0..300)
        ) {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            // Hints of other keys do not lead to their values.
            let mut hints = [Hint::default(); 8];
            for (key, hint, step) in steps {
                if step == 0 {
                    table.remove(&key);
                    map.remove(&key);
                    continue;
                }
                *table.hinted(key, &mut hints[hint]) += 1;
                *map.entry(key).or_insert(0) += 1;
            }
            prop_assert_eq!(table.len(), map.len());
            prop_assert!(table.iter().eq(map.iter()));
            for n in 0..20 {
                prop_assert_eq!(table.get(&(n, true)), map.get(&(n, true)));
            }
        }
    }
}
