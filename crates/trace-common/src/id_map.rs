//! Values by identifier.

use crate::SeededState;
use std::collections::HashMap;

/// A map from identifiers that are mostly assigned consecutively.
///
/// Identifiers that are in use at the same time then differ in their low bits. A table indexed by
/// these bits finds a value without hashing, and neighbours are adjacent in memory. The table has
/// between two and four entries per value. Identifiers that collide in the table, as many crafted
/// ones do, are in a hash map, so no choice of identifiers makes the map slow or large.
///
/// Values are reused: [`IdMap::insert`] returns the value of a removed identifier.
///
/// ```
/// let mut stacks = trace_common::IdMap::<Vec<u8>>::default();
/// stacks.insert(17).push(1);
/// assert_eq!(stacks.get(17), Some(&vec![1]));
/// assert_eq!(stacks.remove(17).map(std::mem::take), Some(vec![1]));
/// assert!(stacks.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct IdMap<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// By the low bits of an identifier: the slot of an identifier with these bits, or [`NOWHERE`].
    /// The length is a power of two.
    places: Vec<u32>,
    /// Slots of identifiers whose entry in the table is occupied.
    displaced: HashMap<i64, u32, SeededState>,
}

/// Length of [`IdMap::places`] at the start.
const MIN_PLACES: usize = 1024;
/// No slot: the number of slots is lower.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot<T> {
    id: i64,
    value: T,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            places: vec![NOWHERE; MIN_PLACES],
            displaced: HashMap::default(),
        }
    }
}

impl<T> IdMap<T> {
    /// Number of identifiers.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the map is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of `id`.
    #[inline]
    pub fn get(&self, id: i64) -> Option<&T> {
        let slot = self.slot(id)?;
        self.slots.get(slot).map(|slot| &slot.value)
    }

    /// Returns the value of `id` for modification.
    #[inline(always)]
    pub fn get_mut(&mut self, id: i64) -> Option<&mut T> {
        let slot = self.settled(id)?;
        if self.slots.get(slot).is_some_and(|slot| slot.id == id) {
            return self.slots.get_mut(slot).map(|slot| &mut slot.value);
        }
        self.displaced_mut(id)
    }

    #[cold]
    fn displaced_mut(&mut self, id: i64) -> Option<&mut T> {
        let slot = self.displaced_slot(id)?;
        self.slots.get_mut(slot).map(|slot| &mut slot.value)
    }

    /// Whether `id` has a value.
    #[inline]
    pub fn contains(&self, id: i64) -> bool {
        self.slot(id).is_some()
    }

    /// Returns all identifiers, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = i64> + '_ {
        let settled = self.places.iter().filter_map(|&slot| self.slots.get(slot as usize));
        settled.map(|slot| slot.id).chain(self.displaced.keys().copied())
    }

    /// Removes `id`. The next [`IdMap::insert`] reuses its value, unless the caller takes it.
    pub fn remove(&mut self, id: i64) -> Option<&mut T> {
        let place = self.place(id);
        let settled = match self.places.get_mut(place) {
            Some(slot) if self.slots.get(*slot as usize).is_some_and(|slot| slot.id == id) => {
                Some(std::mem::replace(slot, NOWHERE))
            }
            _ => None,
        };
        let slot = match settled {
            Some(slot) => slot,
            None => self.displaced.remove(&id)?,
        };
        self.free.push(slot);
        self.slots.get_mut(slot as usize).map(|slot| &mut slot.value)
    }

    #[inline(always)]
    fn place(&self, id: i64) -> usize {
        id as usize & (self.places.len() - 1)
    }

    /// The slot in the table's entry for `id`, which may be one of another identifier.
    #[inline(always)]
    fn settled(&self, id: i64) -> Option<usize> {
        self.places.get(self.place(id)).map(|&slot| slot as usize)
    }

    #[inline]
    fn slot(&self, id: i64) -> Option<usize> {
        let slot = self.settled(id)?;
        if self.slots.get(slot).is_some_and(|slot| slot.id == id) {
            return Some(slot);
        }
        self.displaced_slot(id)
    }

    fn displaced_slot(&self, id: i64) -> Option<usize> {
        if self.displaced.is_empty() {
            return None; // always so in the traces of most programs
        }
        self.displaced.get(&id).map(|&slot| slot as usize)
    }

    /// Records the slot of `id`.
    #[inline]
    fn settle(&mut self, id: i64, slot: u32) {
        let place = self.place(id);
        match self.places.get_mut(place) {
            Some(free) if *free == NOWHERE => *free = slot,
            _ => {
                self.displaced.insert(id, slot);
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.places);
        let displaced = std::mem::take(&mut self.displaced);
        self.places = vec![NOWHERE; 2 * old.len()];
        let settled = old.into_iter().filter(|&slot| slot != NOWHERE);
        for slot in settled.chain(displaced.into_values()) {
            if let Some(id) = self.slots.get(slot as usize).map(|slot| slot.id) {
                self.settle(id, slot);
            }
        }
    }
}

impl<T: Default> IdMap<T> {
    /// Returns the value of `id`. If `id` is new, its value is the one of a removed identifier, or
    /// the default.
    ///
    /// # Panics
    ///
    /// With 2³² − 1 identifiers.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a slot that was found or added")]
    pub fn insert(&mut self, id: i64) -> &mut T {
        let slot = match self.slot(id) {
            Some(slot) => slot,
            None => self.add(id),
        };
        &mut self.slots[slot].value
    }

    #[cold]
    #[expect(clippy::indexing_slicing, reason = "a free slot is one of the slots")]
    fn add(&mut self, id: i64) -> usize {
        if 2 * self.len() >= self.places.len() {
            self.grow();
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].id = id;
                slot
            }
            None => {
                let slot = self.slots.len() as u32;
                assert!(slot != NOWHERE, "too many identifiers");
                self.slots.push(Slot { id, value: T::default() });
                slot
            }
        };
        self.settle(id, slot);
        slot as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Identifiers with the same low bits, and reused identifiers, are distinguished.
        #[test]
        fn holds_what_a_hash_map_holds(
            steps in prop::collection::vec((0i64..3, -2i64..3, 0u8..3, any::<u8>()), 0..200),
        ) {
            let mut map = IdMap::<u8>::default();
            let mut expected = HashMap::new();
            for (low, high, step, value) in steps {
                let id = low + high * MIN_PLACES as i64;
                match step {
                    0 => prop_assert_eq!(map.remove(id).copied(), expected.remove(&id)),
                    1 => {
                        *map.insert(id) = value;
                        expected.insert(id, value);
                    }
                    _ => {}
                }
                prop_assert_eq!(map.get(id), expected.get(&id));
                prop_assert_eq!(map.get_mut(id).copied(), expected.get(&id).copied());
                prop_assert_eq!(map.contains(id), expected.contains_key(&id));
                prop_assert_eq!(map.len(), expected.len());
                let mut ids: Vec<i64> = map.ids().collect();
                let mut expected_ids: Vec<i64> = expected.keys().copied().collect();
                ids.sort_unstable();
                expected_ids.sort_unstable();
                prop_assert_eq!(ids, expected_ids);
            }
        }
    }

    /// For any number of identifiers, also if all of them compete for the same entries.
    #[test]
    fn finds_what_it_held_before_it_grew() {
        const MANY: i64 = 5 * MIN_PLACES as i64;
        for step in [1, 3, 1 << 40] {
            let mut map = IdMap::<i64>::default();
            for round in 0..2 {
                (0..MANY).for_each(|n| *map.insert(n * step) = n);
                assert_eq!(map.len(), MANY as usize);
                assert!(map.places.len() <= 4 * MANY as usize, "bounded");
                assert_eq!(map.slots.len(), MANY as usize, "round {round} uses the same slots");
                for n in 0..MANY {
                    assert_eq!(map.get(n * step), Some(&n));
                    assert!(!map.contains((n + MANY) * step));
                }
                (0..MANY).for_each(|n| assert_eq!(map.remove(n * step), Some(&mut { n })));
                assert!(map.is_empty() && map.displaced.is_empty());
                assert!((0..MANY).all(|n| !map.contains(n * step)));
            }
        }
    }
}
