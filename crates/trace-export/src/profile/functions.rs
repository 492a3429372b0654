//! The functions of a profile.

use super::Profile;
use super::view::{Names, View};
use std::cmp::Reverse;
use std::collections::HashMap;
use trace_timeline::Tables;

/// The weights of a function: see [`Profile::functions`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionWeight {
    /// Its name; without one, its file and address. `[no stack]` for samples without frames.
    pub name: String,
    /// The weight of samples in the function itself, in the unit of the profile.
    pub own: u64,
    /// The weight of samples in the function and all that it calls. A sample of a recursive function
    /// counts once.
    pub total: u64,
}

impl Profile {
    /// The weights by function, those with the largest own weight first. `tables` have the stacks.
    ///
    /// The own weights add up to [`Profile::weight`].
    ///
    /// ```
    /// use trace_export::profile::{ReadLimits, read_folded};
    /// use trace_timeline::Tables;
    ///
    /// let mut tables = Tables::new();
    /// let text = b"main;parse 6\nmain;print 3\nmain 1\n";
    /// let profile = read_folded(text, &ReadLimits::default(), &mut tables)?;
    /// let functions = profile.functions(&tables);
    /// let rows = functions.iter().map(|function| (&*function.name, function.own, function.total));
    /// assert_eq!(rows.collect::<Vec<_>>(), [("parse", 6, 6), ("print", 3, 3), ("main", 1, 10)]);
    /// # Ok::<(), trace_export::profile::Error>(())
    /// ```
    pub fn functions(&self, tables: &Tables) -> Vec<FunctionWeight> {
        const NO_STACK: &str = "[no stack]";
        let view = View::new(self, tables);
        let mut names = Names::default();
        // Own and total weight, and the number of the last sample that was counted.
        let mut weights: HashMap<u32, (u64, u64, usize)> = HashMap::new();
        for (number, sample) in (1..).zip(view.samples()) {
            let weight = self.value(sample);
            let frames = view.frames(sample.stack).iter();
            let mut path: Vec<u32> = frames.map(|frame| names.frame(frame, &view)).collect();
            if path.is_empty() {
                path.push(names.text(NO_STACK.into()));
            }
            for (depth, function) in path.into_iter().enumerate() {
                let (own, total, last) = weights.entry(function).or_default();
                if depth == 0 {
                    *own = own.saturating_add(weight);
                }
                if *last != number {
                    *total = total.saturating_add(weight);
                    *last = number;
                }
            }
        }
        let row = |(function, (own, total, _)): (u32, (u64, u64, usize))| {
            let name = names.get(function).to_owned();
            FunctionWeight { name, own, total }
        };
        let mut rows: Vec<_> = weights.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let key = |row: &FunctionWeight| (Reverse(row.own), Reverse(row.total));
            (key(a), &a.name).cmp(&(key(b), &b.name))
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::{LabelSet, ReadLimits, read_folded};
    use trace_timeline::Tables;

    #[test]
    fn own_weights_add_up_to_all() {
        let mut tables = Tables::new();
        let text = b"main;walk;walk 5\nmain;walk;print 2\nmain;print 3\n";
        let mut profile = read_folded(text, &ReadLimits::default(), &mut tables).unwrap();
        profile.add(None, LabelSet::default(), 4, 4);
        let functions = profile.functions(&tables);
        let rows: Vec<_> = functions.iter().map(|f| (&*f.name, f.own, f.total)).collect();
        let expected = [("walk", 5, 7), ("print", 5, 5), ("[no stack]", 4, 4), ("main", 0, 10)];
        assert_eq!(rows, expected);
        assert_eq!(functions.iter().map(|f| f.own).sum::<u64>(), profile.weight());
    }
}
