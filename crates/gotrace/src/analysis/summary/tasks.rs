//! The tasks of a trace.

use super::live::{Live, Mark};
use super::{Name, Summarizer, Task};
use crate::event::{Event, EventKind};
use crate::id::{GoId, TaskId};
use crate::id_set::IdSet;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;
use trace_common::{IdMap, Timestamp};

/// The tasks that are in memory.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    tasks: IdMap<Option<Box<Open>>>,
    /// Tasks that ended and are not in memory any more; `None` if all tasks are kept.
    ended: Option<IdSet>,
    /// If all tasks are kept: those that ended before the range, until it begins.
    ended_before: IdSet,
    /// The longest tasks, which are kept when they end.
    longest: Option<Longest>,
    /// The number of losses so far.
    losses: u64,
}

/// The longest tasks that ended.
#[derive(Debug)]
struct Longest {
    count: usize,
    /// The type that they have.
    ty: Option<Name>,
    /// Longest first.
    tasks: BTreeSet<Place>,
    /// Number of tasks of this type that were shorter.
    omitted: u64,
}

/// The place of a task among others.
type Place = (Reverse<Duration>, TaskId);

#[derive(Debug)]
struct Open {
    task: Task,
    /// The goroutine that was added last.
    last: GoId,
    /// The goroutine that began it, its times until then, and the number of losses before.
    begun: Option<(GoId, Mark, u64)>,
}

impl Longest {
    /// Adds a task that ended, and returns the one that makes room for it. The trace begins at `first`.
    fn add(&mut self, task: &Task, first: Timestamp) -> Option<TaskId> {
        if self.ty.as_ref().is_some_and(|ty| *ty != task.name) {
            return Some(task.id);
        }
        self.tasks.insert(place(task, first));
        if self.tasks.len() <= self.count {
            return None;
        }
        self.omitted += 1;
        self.tasks.pop_last().map(|(_, shortest)| shortest)
    }
}

fn place(task: &Task, first: Timestamp) -> Place {
    (Reverse(task.duration_within(first, first)), task.id)
}

impl Tasks {
    /// Tasks that are returned when they end.
    pub(super) fn returned() -> Self {
        Self { ended: Some(IdSet::default()), ..Self::default() }
    }

    /// Tasks that are kept if they are among the longest.
    pub(super) fn longest(count: usize, ty: Option<Name>) -> Self {
        let longest = Longest { count, ty, tasks: BTreeSet::new(), omitted: 0 };
        Self { longest: Some(longest), ..Self::returned() }
    }

    /// The states of goroutines are lost, so that tasks that are open have no times.
    pub(super) const fn loss(&mut self) {
        self.losses += 1;
    }

    /// Number of tasks that ended and were not kept.
    pub(super) fn omitted(&self) -> u64 {
        self.longest.as_ref().map_or(0, |longest| longest.omitted)
    }

    /// Whether the task is not in memory, and is not to be.
    fn is_over(&self, id: TaskId) -> bool {
        self.ended.as_ref().is_some_and(|ended| id == TaskId::BACKGROUND || ended.contains(id.0))
    }

    /// The task, unless it is over.
    pub(super) fn get(&mut self, id: TaskId, goroutine: GoId) -> Option<&mut Task> {
        (!self.is_over(id)).then(|| &mut self.open(id, goroutine).task)
    }

    fn open(&mut self, id: TaskId, goroutine: GoId) -> &mut Open {
        let key = id.0 as i64;
        if !self.tasks.contains(key) {
            *self.tasks.insert(key) = None;
        }
        let open = self.tasks.insert(key).get_or_insert_with(|| {
            Box::new(Open { task: Task::new(id), last: GoId::NONE, begun: None })
        });
        if goroutine != open.last && goroutine.is_some() {
            open.last = goroutine;
            open.task.goroutines.insert(goroutine);
        }
        open
    }

    /// Processes the begin or the end of a task before the range.
    pub(super) fn before(&mut self, event: Event<'_>) {
        let Some(seen) = event.task() else { return };
        // Its identifier may be used again.
        if let Some(open) = self.tasks.remove(seen.id.0 as i64) {
            *open = None;
        }
        if event.kind() == EventKind::TaskEnd {
            self.ended.as_mut().unwrap_or(&mut self.ended_before).insert(seen.id.0);
            return;
        }
        self.ended.as_mut().unwrap_or(&mut self.ended_before).remove(seen.id.0);
        let task = &mut self.open(seen.id, event.goroutine()).task;
        task.name = Name::of(event.table, event.record.begun_type());
        task.parent = Some(seen.parent).filter(|parent| *parent != TaskId::NONE);
    }

    /// Adds the tasks of which those that are open are parts, where the range begins.
    pub(super) fn add_parents(&mut self) {
        let ended = std::mem::take(&mut self.ended_before);
        let open = self.tasks.ids().filter_map(|id| self.tasks.get(id)?.as_ref());
        let parents: BTreeSet<TaskId> = open.filter_map(|open| open.task.parent).collect();
        for parent in parents.into_iter().filter(|parent| !ended.contains(parent.0)) {
            self.get(parent, GoId::NONE);
        }
    }

    /// A task that may have ended begins or ends again.
    fn continues(&mut self, id: TaskId, first: Timestamp) {
        let Self { tasks, longest: Some(longest), .. } = self else { return };
        if let Some(Some(open)) = tasks.get(id.0 as i64) {
            longest.tasks.remove(&place(&open.task, first));
        }
    }

    /// Processes the end of a task. Returns the task if it is to be returned.
    fn end(&mut self, id: TaskId, first: Timestamp) -> Option<Box<Task>> {
        let Self { tasks, ended: Some(ended), longest, .. } = self else { return None };
        let Some(longest) = longest else {
            ended.insert(id.0);
            let open = tasks.remove(id.0 as i64)?.take()?;
            return Some(Box::new(open.task));
        };
        let task = &tasks.get(id.0 as i64)?.as_ref()?.task;
        if let Some(over) = longest.add(task, first) {
            ended.insert(over.0);
            if let Some(open) = tasks.remove(over.0 as i64) {
                *open = None; // the table reuses its place
            }
        }
        None
    }

    /// All tasks in memory, by id.
    pub(super) fn finish(mut self) -> Vec<Task> {
        let ids: BTreeSet<u64> = self.tasks.ids().map(|id| id as u64).collect();
        let open = ids.into_iter().filter_map(|id| self.tasks.remove(id as i64)?.take());
        open.map(|open| open.task).collect()
    }
}

impl Summarizer {
    /// Processes the begin or the end of a task. Returns the task if it ends and is not kept.
    pub(super) fn task(&mut self, event: Event<'_>) -> Option<Box<Task>> {
        let seen = event.task()?;
        let (id, now) = (event.goroutine(), self.last);
        let first = self.first.unwrap_or(now);
        let Self { live, tasks, reasons, budget, .. } = self;
        let begins = event.kind() == EventKind::TaskBegin;
        match &mut tasks.ended {
            Some(ended) if begins => ended.remove(seen.id.0), // the identifier is used again
            Some(ended) if ended.contains(seen.id.0) => return None,
            _ => {}
        }
        let live = live.get_mut(id.0);
        tasks.continues(seen.id, first);
        let losses = tasks.losses;
        let open = tasks.open(seen.id, id);
        let task = &mut open.task;
        // At an end after damage, the reader does not know the type. The begin had it.
        let has_name = begins || !seen.name.is_empty();
        if has_name && **task.name != **seen.name {
            let name = begins.then(|| Name::of(event.table, event.record.begun_type()));
            task.name = name.unwrap_or_else(|| seen.name.into());
        }
        let begun = open.begun.take();
        if let Some((_, mark, _)) = &begun {
            mark.forget(budget);
        }
        if begins {
            (task.start, task.own) = (Some(now), None);
            open.begun = live.and_then(|live| Some((id, live.mark(now, budget)?, losses)));
        } else {
            task.end = Some(now);
            let begun = begun.filter(|(by, _, seen)| (*by, *seen) == (id, losses));
            let since = |(mark, live): (_, &mut Live)| {
                live.has(&mark).then(|| (id, live.since(&mark, now, reasons)))
            };
            task.own = begun.map(|(_, mark, _)| mark).zip(live).and_then(since);
        }
        if seen.parent != TaskId::NONE && task.parent.is_none() {
            task.parent = Some(seen.parent);
            tasks.get(seen.parent, GoId::NONE);
        }
        if begins { None } else { tasks.end(seen.id, first) }
    }
}
