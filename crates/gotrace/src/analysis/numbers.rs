//! Numbers for the strings and stacks of a generation.

use super::Name;
use crate::table::Table;
use std::collections::HashMap;
use trace_common::SeededState;

/// Numbers that an analysis assigned to identifiers of the current generation.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The generation's tables.
    serial: u64,
    /// By identifier; [`UNKNOWN`] if it has no number yet.
    dense: Vec<u32>,
    /// The identifiers with numbers in the array.
    used: Vec<usize>,
    /// Identifiers that are too large for the array.
    sparse: HashMap<u64, u32, SeededState>,
    /// How often an entry of the array was written.
    #[cfg(test)]
    written: usize,
}

const UNKNOWN: u32 = u32::MAX;

impl Numbers {
    /// The number of an identifier of this table; `assign` is called the first time.
    #[inline]
    pub(super) fn number(&mut self, table: &Table, id: u64, assign: impl FnOnce() -> u32) -> u32 {
        if table.serial == self.serial {
            // On 32-bit targets a larger identifier has no index.
            let known = usize::try_from(id).ok().and_then(|index| self.dense.get(index));
            if let Some(number) = known.filter(|number| **number != UNKNOWN) {
                return *number;
            }
        }
        self.add(table, id, assign)
    }

    #[cold]
    fn add(&mut self, table: &Table, id: u64, assign: impl FnOnce() -> u32) -> u32 {
        if table.serial != self.serial {
            self.serial = table.serial;
            self.forget();
        }
        // The runtime numbers strings and stacks from 1 upwards.
        let entries = table.strings.len().max(table.stacks.len()) as u64;
        if id >= 2 * entries + 1024 {
            return *self.sparse.entry(id).or_insert_with(assign);
        }
        let (index, number) = (id as usize, assign());
        #[cfg(test)]
        {
            self.written += 1 + (index + 1).saturating_sub(self.dense.len());
        }
        if self.dense.len() <= index {
            self.dense.resize(index + 1, UNKNOWN);
        }
        if let Some(entry) = self.dense.get_mut(index) {
            *entry = number;
            self.used.push(index);
        }
        number
    }

    /// Forgets the numbers of the table before, in time for these alone: at the start of a range of time, the states of
    /// several generations alternate.
    fn forget(&mut self) {
        #[cfg(test)]
        {
            self.written += self.used.len();
        }
        for index in self.used.drain(..) {
            if let Some(entry) = self.dense.get_mut(index) {
                *entry = UNKNOWN;
            }
        }
        self.sparse = HashMap::default(); // clearing it would visit the places of all that were there
    }
}

/// Distinct names of all generations, numbered in the order of first appearance. Number 0 is the
/// empty one.
#[derive(Debug)]
pub(super) struct Names {
    names: Vec<Name>,
    numbers: HashMap<Name, u32>,
    known: Numbers,
    /// Further names have number 0.
    limit: usize,
}

impl Default for Names {
    fn default() -> Self {
        let empty = Name::default();
        let numbers = HashMap::from([(empty.clone(), 0)]);
        Self { names: vec![empty], numbers, known: Numbers::default(), limit: usize::MAX }
    }
}

impl Names {
    /// Up to this number of names, with the empty one. Others have its number.
    pub(super) fn up_to(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Adds the names of a part of the trace. Returns the number here of each.
    pub(super) fn append(&mut self, part: &Self) -> Vec<u32> {
        part.names.iter().map(|name| self.number(name.clone())).collect()
    }

    pub(super) fn number(&mut self, name: Name) -> u32 {
        number(&mut self.names, &mut self.numbers, self.limit, name)
    }

    /// The number of the string `id` of a generation; 0 if there is none.
    #[inline]
    pub(super) fn of(&mut self, table: &Table, id: u64) -> u32 {
        let Self { names, numbers, known, limit } = self;
        if id == 0 {
            0
        } else {
            known.number(table, id, || number(names, numbers, *limit, Name::of(table, id)))
        }
    }

    pub(super) fn get(&self, number: u32) -> &Name {
        // Number 0 is always there.
        #[expect(clippy::indexing_slicing, reason = "names are never removed, and there is one")]
        self.names.get(number as usize).unwrap_or(&self.names[0])
    }
}

fn number(
    names: &mut Vec<Name>,
    numbers: &mut HashMap<Name, u32>,
    limit: usize,
    name: Name,
) -> u32 {
    if let Some(number) = numbers.get(&name) {
        return *number;
    }
    if names.len() >= limit {
        return 0;
    }
    let number = names.len() as u32;
    names.push(name.clone());
    numbers.insert(name, number);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_one_generation() {
        let (mut first, mut second) = (Table::new(1), Table::new(2));
        for table in [&mut first, &mut second] {
            table.strings.insert(1, (*b"a").into());
            table.strings.insert(u64::MAX, (*b"far").into());
        }
        second.strings.insert(2, (*b"far").into());
        let mut names = Names::default();
        for _ in 0..2 {
            assert_eq!([0, 1, u64::MAX].map(|id| names.of(&first, id)), [0, 1, 2]);
            assert_eq!([0, 1, 2, u64::MAX].map(|id| names.of(&second, id)), [0, 1, 2, 2]);
            assert!(names.known.dense.len() < 2048, "an identifier does not determine the memory");
        }
        // An unknown string is the empty one.
        assert_eq!(names.of(&first, 7), 0);
        assert_eq!([1, 2, 9].map(|number| names.get(number).to_string()), ["a", "far", ""]);
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn tables_that_alternate_take_time_for_the_identifiers_in_use() {
        const CALLS: usize = 100_000;
        const LARGE: u64 = 1000;
        const FAR: u64 = 1 << 40;
        let (first, second) = (Table::new(1), Table::new(2));
        let mut names = Names::default();
        for _ in 0..CALLS / 2 {
            names.of(&first, LARGE);
            names.of(&second, 1);
        }
        assert_eq!(names.known.dense.len() as u64, LARGE + 1);
        let written = names.known.written;
        assert!(written <= LARGE as usize + 1 + 2 * CALLS, "{written}");
        // Those that are not in the array.
        for id in FAR..FAR + LARGE {
            names.of(&first, id);
        }
        assert!(names.known.sparse.capacity() as u64 >= LARGE);
        names.of(&second, FAR);
        assert!(names.known.sparse.capacity() < 100);
    }
}
