//! The spans of the runtime that are open.

use super::MAX_OPEN;
use crate::entity::EntityId;
use crate::tables::SpanId;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use trace_common::Timestamp;

/// An open span of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Open {
    Gc(EntityId, u32),
    Suspension(EntityId),
    Jit(EntityId, u64),
    LockWait(EntityId),
    HandleWait(EntityId),
    /// What a thread does for tasks, by its depth.
    Task(EntityId, usize),
    /// An asynchronous operation, by its task.
    Operation(EntityId, i64),
    Finalizers(EntityId),
    TypeLoad(EntityId, u32),
    TieredJit(EntityId),
}

impl Open {
    /// The thread that writes the end of the span.
    const fn thread(self) -> Option<EntityId> {
        match self {
            Self::Suspension(thread)
            | Self::Jit(thread, _)
            | Self::LockWait(thread)
            | Self::HandleWait(thread)
            | Self::Task(thread, _)
            | Self::Finalizers(thread)
            | Self::TypeLoad(thread, _)
            | Self::TieredJit(thread) => Some(thread),
            Self::Gc(..) | Self::Operation(..) => None,
        }
    }
}

/// The threads that may have lost events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lossy {
    All,
    /// `None` for one that has no events.
    One(Option<EntityId>),
}

/// The begin of a span, and its number.
type Place = (Timestamp, u32);

/// The open spans, by what they are and in the order of their beginnings: a loss looks only at those that it ends.
#[derive(Debug, Default)]
pub(super) struct OpenSpans {
    spans: HashMap<Open, (SpanId, Timestamp)>,
    gcs: BTreeMap<Place, Open>,
    operations: BTreeMap<Place, Open>,
    /// Those that a thread ends: all others.
    of_threads: BTreeMap<Place, Open>,
    /// The same by thread.
    by_thread: BTreeMap<(EntityId, Place), Open>,
}

impl OpenSpans {
    pub(super) fn contains(&self, key: Open) -> bool {
        self.spans.contains_key(&key)
    }

    pub(super) fn insert(&mut self, key: Open, span: SpanId, start: Timestamp) {
        if let Some(replaced) = self.spans.insert(key, (span, start)) {
            self.take_place(key, replaced);
        }
        let place = (start, span.number());
        self.order(key).insert(place, key);
        if let Some(thread) = key.thread() {
            self.by_thread.insert((thread, place), key);
        }
    }

    pub(super) fn remove(&mut self, key: Open) -> Option<SpanId> {
        let removed = self.spans.remove(&key)?;
        self.take_place(key, removed);
        Some(removed.0)
    }

    /// The oldest one that has to end before this one begins, as too many are open. Operations have a number of
    /// their own.
    pub(super) fn excess(&self, key: Open) -> Option<Open> {
        let (count, oldest) = match key {
            Open::Operation(..) => (self.operations.len(), self.operations.first_key_value()),
            _ => {
                let first = [&self.gcs, &self.of_threads].map(BTreeMap::first_key_value);
                let oldest = first.into_iter().flatten().min_by_key(|(place, _)| **place);
                (self.gcs.len() + self.of_threads.len(), oldest)
            }
        };
        oldest.filter(|_| count >= MAX_OPEN).map(|(_, key)| *key)
    }

    /// Those that a thread ends, oldest first.
    pub(super) fn of_thread(&self, thread: EntityId) -> Vec<Open> {
        let (first, last) = ((Timestamp::MIN, 0), (Timestamp::MAX, u32::MAX));
        self.by_thread.range((thread, first)..=(thread, last)).map(|(_, key)| *key).collect()
    }

    /// Those that these threads end and that began before a time, oldest first.
    pub(super) fn ended_by(&self, lossy: Lossy, time: Timestamp) -> Vec<Open> {
        let end = (time, 0);
        match lossy {
            Lossy::All => self.of_threads.range(..end).map(|(_, key)| *key).collect(),
            Lossy::One(Some(thread)) => {
                let places = (thread, (Timestamp::MIN, 0))..(thread, end);
                self.by_thread.range(places).map(|(_, key)| *key).collect()
            }
            Lossy::One(None) => Vec::new(),
        }
    }

    /// Those that began before a time and whose ends these threads may have lost, oldest first.
    pub(super) fn lost_by(&self, lossy: Lossy, time: Timestamp) -> Vec<Open> {
        let mut lost = self.ended_by(lossy, time);
        // Any thread can end an operation.
        lost.extend(self.operations.range(..(time, 0)).map(|(_, key)| *key));
        self.sort(&mut lost);
        lost
    }

    /// All, oldest first.
    pub(super) fn all(&self) -> Vec<Open> {
        let mut all: Vec<Open> = self.spans.keys().copied().collect();
        self.sort(&mut all);
        all
    }

    fn sort(&self, keys: &mut [Open]) {
        keys.sort_by_cached_key(|key| self.spans.get(key).map(|(span, start)| (*start, *span)));
    }

    fn take_place(&mut self, key: Open, (span, start): (SpanId, Timestamp)) {
        let place = (start, span.number());
        self.order(key).remove(&place);
        if let Some(thread) = key.thread() {
            self.by_thread.remove(&(thread, place));
        }
    }

    fn order(&mut self, key: Open) -> &mut BTreeMap<Place, Open> {
        match key {
            Open::Gc(..) => &mut self.gcs,
            Open::Operation(..) => &mut self.operations,
            _ => &mut self.of_threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Tables;

    fn entity(number: i64) -> EntityId {
        EntityId::from_key(number).unwrap()
    }

    /// One of each kind, by the threads 2 and 3, which began at the times 10 to 70.
    fn open() -> (OpenSpans, Tables, [Open; 7]) {
        let (process, one, other) = (entity(1), entity(2), entity(3));
        let keys = [
            Open::Gc(process, 7),
            Open::Jit(one, 1),
            Open::Operation(process, 1),
            Open::LockWait(other),
            Open::Task(one, 0),
            Open::Operation(process, 2),
            Open::Suspension(other),
        ];
        let (mut open, mut tables) = (OpenSpans::default(), Tables::new());
        for (key, start) in keys.iter().zip(1..) {
            open.insert(*key, tables.new_span(), Timestamp::from_nanos(10 * start));
        }
        (open, tables, keys)
    }

    #[test]
    fn a_loss_ends_what_its_thread_and_any_thread_ends() {
        let (mut open, _, [_, jit, first, wait, task, second, stop]) = open();
        let at = Timestamp::from_nanos;
        let (one, none) = (Lossy::One(Some(entity(2))), Lossy::One(None));
        assert_eq!(open.ended_by(Lossy::All, at(70)), [jit, wait, task]);
        assert_eq!(open.ended_by(one, at(70)), [jit, task]);
        assert_eq!(open.ended_by(none, at(70)), []);
        assert_eq!(open.lost_by(Lossy::All, at(70)), [jit, first, wait, task, second]);
        assert_eq!(open.lost_by(one, at(71)), [jit, first, task, second]);
        assert_eq!(open.lost_by(none, Timestamp::MAX), [first, second]);
        assert_eq!(open.lost_by(one, at(50)), [jit, first]);
        assert_eq!(open.lost_by(Lossy::All, Timestamp::MIN), []);
        assert_eq!(open.of_thread(entity(3)), [wait, stop]);
        assert!(open.remove(wait).is_some() && open.remove(first).is_some());
        assert_eq!(open.remove(wait), None);
        assert_eq!(open.lost_by(Lossy::All, Timestamp::MAX), [jit, task, second, stop]);
        assert_eq!(open.of_thread(entity(3)), [stop]);
    }

    #[test]
    fn a_span_that_replaces_another_has_its_own_place() {
        let (mut open, mut tables, [gc, jit, first, wait, task, second, stop]) = open();
        let span = tables.new_span();
        open.insert(jit, span, Timestamp::from_nanos(80));
        assert_eq!(open.all(), [gc, first, wait, task, second, stop, jit]);
        assert_eq!(open.of_thread(entity(2)), [task, jit]);
        assert_eq!(open.remove(jit), Some(span));
        for key in open.all() {
            assert!(open.contains(key));
            open.remove(key);
        }
        let OpenSpans { spans, gcs, operations, of_threads, by_thread } = open;
        assert!(spans.is_empty() && gcs.is_empty() && operations.is_empty());
        assert!(of_threads.is_empty() && by_thread.is_empty());
    }

    #[test]
    fn the_oldest_of_too_many_is_that_of_its_kind() {
        let (mut open, mut tables, [gc, jit, first, _, _, second, _]) = open();
        let at = Timestamp::from_nanos(100);
        for id in 5..MAX_OPEN as u64 {
            assert_eq!(open.excess(jit), None);
            open.insert(Open::Jit(entity(4), id), tables.new_span(), at);
        }
        assert_eq!((open.excess(jit), open.excess(first)), (Some(gc), None));
        open.remove(gc);
        open.insert(Open::Gc(entity(1), 8), tables.new_span(), at);
        assert_eq!(open.excess(gc), Some(jit));
        for id in 2..MAX_OPEN as i64 {
            assert_eq!(open.excess(second), None);
            open.insert(Open::Operation(entity(4), id), tables.new_span(), at);
        }
        assert_eq!(open.excess(second), Some(first));
    }
}
