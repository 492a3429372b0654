//! Goroutines, regions or tasks by name.

use super::analysis;
use gotrace::analysis::{Histogram, Name, Task, Times};
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

#[derive(Default)]
pub(super) struct Groups(HashMap<Name, Group>);

impl Groups {
    pub(super) fn add(&mut self, name: &Name, duration: Option<Duration>, times: Option<&Times>) {
        if !self.0.contains_key(name) {
            let group = Group { name: name.clone(), ..Group::default() };
            self.0.insert(name.clone(), group);
        }
        let Some(group) = self.0.get_mut(name) else { return };
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

    pub(super) fn add_task(&mut self, task: &Task) {
        self.add(&task.name, task.duration(), task.own.as_ref().map(|(_, times)| times));
    }

    /// The groups, largest first.
    pub(super) fn sorted<K: Ord>(self, size: impl Fn(&Group) -> K) -> Vec<Group> {
        let mut groups: Vec<Group> = self.0.into_values().collect();
        groups.sort_by(|a, b| {
            Reverse(size(a)).cmp(&Reverse(size(b))).then_with(|| a.name.cmp(&b.name))
        });
        groups
    }
}
