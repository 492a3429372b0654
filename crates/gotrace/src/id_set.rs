//! Sets of identifiers.

use std::collections::HashMap;
use trace_common::SeededState;

/// A set of identifiers, with one entry for 64 of them. The runtime numbers goroutines and tasks
/// from 1 upwards.
#[derive(Debug, Default)]
pub(crate) struct IdSet(HashMap<u64, u64, SeededState>);

impl IdSet {
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.0.get(&(id / 64)).is_some_and(|bits| bits & 1 << (id % 64) != 0)
    }

    pub(crate) fn insert(&mut self, id: u64) {
        *self.0.entry(id / 64).or_default() |= 1 << (id % 64);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        if let Some(bits) = self.0.get_mut(&(id / 64)) {
            *bits &= !(1 << (id % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn holds_what_a_set_holds(steps in prop::collection::vec((0_u64..140, any::<bool>()), 0..99)) {
            let (mut set, mut expected) = (IdSet::default(), BTreeSet::new());
            for (id, inserts) in steps {
                let id = if id % 7 == 0 { u64::MAX - id } else { id };
                if inserts {
                    set.insert(id);
                    expected.insert(id);
                } else {
                    set.remove(id);
                    expected.remove(&id);
                }
                prop_assert!((0..140).all(|id| set.contains(id) == expected.contains(&id)));
                prop_assert_eq!(set.contains(u64::MAX - id), expected.contains(&(u64::MAX - id)));
            }
        }
    }
}
