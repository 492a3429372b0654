//! The time of tasks or regions, for analyses that are restricted to it.

use super::analysis::{Analysis, Part};
use crate::failure::{OneLine, Result};
use crate::sources::go::Reading;
use gotrace::analysis::{Name, ProfileScope, Region, Summarizer, Summary, Task, Times};
use gotrace::{Event, EventKind, GoId, TaskId, Timestamp};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Restricts an analysis to tasks or regions.
#[derive(clap::Args)]
pub(super) struct Restriction {
    /// Only the time within regions of this type
    #[arg(long, value_name = "TYPE", group = "restriction")]
    region: Option<String>,
    /// Only the time of tasks of this type: of the goroutine that began and ended the task, of its
    /// regions, and of the goroutines created in them
    #[arg(long, value_name = "TYPE", group = "restriction")]
    task: Option<String>,
}

/// The regions and tasks that were selected.
pub(super) struct Selected {
    /// The name of the trace.
    name: String,
    regions: Vec<Region>,
    tasks: Vec<Task>,
    /// The entry function of each goroutine of them.
    entries: HashMap<GoId, Name>,
}

/// The tasks of a type. One that began before the trace has the empty type.
struct OfType<'a> {
    name: &'a str,
    /// Those that began with this type; with another one, if it is empty.
    begun: HashSet<TaskId>,
}

impl OfType<'_> {
    /// Learns of an event. Returns whether it begins a task of the type.
    fn push(&mut self, event: Event<'_>) -> bool {
        let (EventKind::TaskBegin, Some(task)) = (event.kind(), event.task()) else { return false };
        let is_of_type = *task.name == *self.name.as_bytes();
        if is_of_type != self.name.is_empty() {
            self.begun.insert(task.id);
        }
        is_of_type
    }

    fn has(&self, id: TaskId) -> bool {
        id != TaskId::BACKGROUND && self.begun.contains(&id) != self.name.is_empty()
    }
}

impl Restriction {
    /// Whether there is a restriction.
    pub(super) const fn is_given(&self) -> bool {
        self.region.is_some() || self.task.is_some()
    }

    /// Reads the trace for the regions and tasks, and their times in the range. What it keeps grows
    /// with the regions that it selects, and the tasks of the type.
    pub(super) fn select(&self, analysis: &Analysis) -> Result<(Selected, Reading)> {
        let mut regions: Vec<Region> = Vec::new();
        let mut entries = HashMap::new();
        // The tasks of the type, and the goroutines with selected time.
        let of_type = self.task.as_ref().map(|name| OfType { name, begun: HashSet::new() });
        let of_type = RefCell::new(of_type);
        let goroutines = RefCell::new(HashSet::new());
        let mut visit = |part: Part<'_>| match part {
            Part::Goroutine(goroutine) => {
                let is_selected = goroutines.borrow_mut().remove(&goroutine.id);
                if let Some(entry) = goroutine.entry.as_ref().filter(|_| is_selected) {
                    entries.insert(goroutine.id, entry.name.clone());
                }
            }
            Part::Region(region) => {
                let is_wanted = match &self.region {
                    Some(name) => !region.inherited && **region.name == *name.as_bytes(),
                    // A region begins after its task.
                    None => of_type.borrow().as_ref().is_some_and(|tasks| tasks.has(region.task)),
                };
                if is_wanted {
                    goroutines.borrow_mut().insert(region.goroutine);
                    regions.push(region.clone());
                }
            }
            Part::Task(_) => {}
        };
        let mut beside = |event: Event<'_>| {
            if of_type.borrow_mut().as_mut().is_some_and(|tasks| tasks.push(event)) {
                goroutines.borrow_mut().insert(event.goroutine());
            }
            Ok(())
        };
        let summarizer = match &self.task {
            Some(name) => Summarizer::longest_tasks(usize::MAX, Some(name.as_str().into())),
            None => Summarizer::returning_tasks(),
        };
        let (Summary { mut tasks, .. }, reading) =
            analysis.pass_all(summarizer, &mut visit, &mut beside)?;
        match &self.task {
            // There are also those of other types that did not end.
            Some(name) => tasks.retain(|task| **task.name == *name.as_bytes()),
            None => tasks.clear(),
        }
        if regions.is_empty() && tasks.iter().all(|task| task.own.is_none()) {
            let (what, name) = match (&self.task, &self.region) {
                (Some(name), _) if tasks.is_empty() => ("no task", name),
                (Some(name), _) => {
                    ("neither a region nor both ends on one goroutine of a task", name)
                }
                (_, region) => ("no region", region.as_ref().unwrap_or(&reading.name)),
            };
            let others = match &self.task {
                Some(_) if tasks.is_empty() => analysis.task_types(),
                Some(_) => String::new(),
                None => analysis.names("region type", |groups, part| {
                    if let Part::Region(region) = part {
                        groups.add(&region.name, Some(region.times.total), None);
                    }
                }),
            };
            let what = format!("{what} of type {name:?}{others}");
            return Err(analysis.lacks(reading, what));
        }
        let name = reading.name.clone();
        Ok((Selected { name, regions, tasks, entries }, reading))
    }
}

impl Selected {
    /// The scope of a profile.
    pub(super) fn scope(&self) -> ProfileScope {
        let mut scope = ProfileScope::all();
        self.regions.iter().for_each(|region| scope.add_region(region));
        self.tasks.iter().for_each(|task| scope.add_task(task));
        scope
    }

    /// The times of each goroutine within the selected intervals, with its entry function.
    /// Intervals within others count once. Those that overlap others in part do not count, because the
    /// times of the part are not known: their number is reported.
    pub(super) fn times(self) -> Vec<(Name, Times)> {
        let mut intervals: HashMap<GoId, Vec<Interval>> = HashMap::new();
        for region in self.regions {
            let (start, end) = (region.counted_from(), region.end.unwrap_or(Timestamp::MAX));
            intervals.entry(region.goroutine).or_default().push((start, end, region.times));
        }
        for task in self.tasks {
            if let (Some((id, times)), Some(start), Some(end)) = (task.own, task.start, task.end) {
                intervals.entry(id).or_default().push((start, end, times));
            }
        }
        let mut dropped = 0;
        let sum = |(id, intervals): (GoId, Vec<Interval>)| {
            let (times, overlapping) = sum(intervals);
            dropped += overlapping;
            (self.entries.get(&id).cloned().unwrap_or_default(), times)
        };
        let times = intervals.into_iter().map(sum).collect();
        if dropped > 0 {
            message!(
                "triscope: {}: {dropped} tasks or regions do not count, because each overlaps another \
                 one of its goroutine in part",
                OneLine(&self.name)
            );
        }
        times
    }
}

/// Start and end, and the times between.
type Interval = (Timestamp, Timestamp, Times);

/// The times of intervals of a goroutine that do not overlap, and the number of those that are left
/// out because they overlap others in part.
fn sum(mut intervals: Vec<Interval>) -> (Times, u64) {
    intervals.sort_by_key(|(start, end, _)| (*start, Reverse(*end)));
    let mut covered = Timestamp::MIN;
    let (mut sum, mut overlapping) = (Times::default(), 0);
    for (start, end, times) in intervals {
        if covered <= start {
            covered = end;
            sum.add(&times);
        } else if covered < end {
            overlapping += 1;
        }
    }
    (sum, overlapping)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn intervals_that_overlap_in_part_are_counted() {
        let interval = |start: u64, end: u64| {
            let mut times = Times::default();
            times.total = Duration::from_nanos(end - start);
            let time = |nanos| Timestamp::from_nanos(nanos as i64);
            (time(start), time(end), times)
        };
        let inner = vec![interval(20, 30), interval(0, 100), interval(0, 50), interval(100, 110)];
        assert_eq!(sum(inner.clone()).0.total, Duration::from_nanos(110));
        assert_eq!(sum(inner).1, 0);
        let in_part = vec![interval(0, 50), interval(40, 90), interval(45, 50), interval(90, 95)];
        assert_eq!(sum(in_part.clone()).0.total, Duration::from_nanos(55));
        assert_eq!(sum(in_part).1, 1);
    }
}
