//! The largest of many.

/// Keeps the items with the largest keys.
#[derive(Clone, Debug)]
pub(super) struct Worst<K, T> {
    /// Largest first; of equal keys the earlier.
    items: Vec<(K, T)>,
    count: usize,
}

impl<K: Ord + Copy, T> Worst<K, T> {
    pub(super) const fn new(count: usize) -> Self {
        Self { items: Vec::new(), count }
    }

    /// Adds an item if its key is among the largest.
    pub(super) fn add(&mut self, key: K, item: impl FnOnce() -> T) {
        let is_full = self.items.len() >= self.count;
        if is_full && self.items.last().is_none_or(|(least, _)| *least >= key) {
            return;
        }
        let place = self.items.partition_point(|(known, _)| *known >= key);
        self.items.insert(place, (key, item()));
        self.items.truncate(self.count);
    }

    /// Adds the items that follow.
    pub(super) fn join(&mut self, next: Self, mut item: impl FnMut(T) -> T) {
        next.items.into_iter().for_each(|(key, next)| self.add(key, || item(next)));
    }

    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.items.into_iter().map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_largest_are_kept(keys: Vec<u8>, count in 0_usize..20) {
            let mut worst = Worst::new(count);
            for (number, key) in keys.iter().enumerate() {
                worst.add(*key, || (*key, number));
            }
            let mut sorted: Vec<_> = keys.iter().copied().zip(0_usize..).collect();
            sorted.sort_by_key(|(key, number)| (std::cmp::Reverse(*key), *number));
            sorted.truncate(count);
            prop_assert_eq!(worst.into_items().collect::<Vec<_>>(), sorted);
        }
    }
}
