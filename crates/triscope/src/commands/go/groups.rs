//! Goroutines, regions or tasks by name.

use super::analysis;
use crate::failure::OneLine;
use crate::sources::go::Reading;
use gotrace::analysis::{Histogram, Name, Scheduling, Task, Times};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// Those with one name.
#[derive(Default)]
pub(super) struct Group {
    pub(super) name: Name,
    /// Their durations, where the trace contains them.
    pub(super) durations: Histogram,
    /// Number of the others.
    pub(super) incomplete: u64,
    /// The sums of their times.
    pub(super) times: Times,
}

/// The groups of up to [`MAX`] names: all others are in that of the empty name.
#[derive(Default)]
pub(super) struct Groups {
    groups: HashMap<Name, Group>,
    /// Number of those with other names.
    merged: u64,
}

/// Where the others are.
pub(super) const MERGED: &str = "of too many names are in one row without a name";

/// Number of names, as of [`gotrace::analysis::Scheduling`].
const MAX: usize = Scheduling::MAX_NAMES;

impl Groups {
    pub(super) fn add(&mut self, name: &Name, duration: Option<Duration>, times: Option<&Times>) {
        if !self.groups.contains_key(name) {
            if self.groups.len() >= MAX && !name.is_empty() {
                self.merged += 1;
                return self.add(&Name::default(), duration, times);
            }
            let group = Group { name: name.clone(), ..Group::default() };
            self.groups.insert(name.clone(), group);
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        match duration {
            Some(time) => {
                group.durations.add(i64::try_from(analysis::nanos(time)).unwrap_or(i64::MAX));
            }
            None => group.incomplete += 1,
        }
        if let Some(times) = times {
            group.times.add(times);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn add_task(&mut self, task: &Task) {
        self.add(&task.name, task.duration(), task.own.as_ref().map(|(_, times)| times));
    }

    /// The number of those that have no group of their name.
    pub(super) const fn merged(&self) -> u64 {
        self.merged
    }

    /// The groups, largest first. Reports the number of those that have no group of their name.
    pub(super) fn reported<K: Ord>(
        self,
        reading: &Reading,
        what: &str,
        size: impl Fn(&Group) -> K,
    ) -> Vec<Group> {
        if self.merged > 0 {
            let (name, merged) = (OneLine(&reading.name), self.merged);
            message!("triscope: {name}: {merged} {what} {MERGED}");
        }
        self.sorted(size)
    }

    /// The groups, largest first.
    pub(super) fn sorted<K: Ord>(self, size: impl Fn(&Group) -> K) -> Vec<Group> {
        let mut groups: Vec<Group> = self.groups.into_values().collect();
        groups.sort_by(|a, b| {
            Reverse(size(a)).cmp(&Reverse(size(b))).then_with(|| a.name.cmp(&b.name))
        });
        groups
    }
}
