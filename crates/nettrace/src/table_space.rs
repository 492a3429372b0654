//! The space of hash tables that a stream empties. To clear or to walk a table takes the time of its space, which stays
//! that of its largest content: after a huge sequence point, each of many small ones would take the time of the huge one.

use std::collections::HashMap;
use std::hash::Hash;

/// Removes all entries, and the space.
pub(crate) fn empty<T: Default>(table: &mut T) {
    *table = T::default();
}

/// Removes space that is large for the entries.
pub(crate) fn fit<K: Eq + Hash, V>(table: &mut HashMap<K, V>) {
    if table.len() < table.capacity() / 4 {
        table.shrink_to(2 * table.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_follows_the_entries() {
        let mut table: HashMap<_, _> = (0..10_000).map(|n| (n, n)).collect();
        fit(&mut table);
        assert!(table.capacity() >= 10_000);
        table.retain(|n, _| *n < 10);
        fit(&mut table);
        assert!((10..100).contains(&table.capacity()), "{}", table.capacity());
        assert_eq!(table.len(), 10);
        empty(&mut table);
        assert_eq!((table.len(), table.capacity()), (0, 0));
    }
}
