//! The events of a set by the ids in its records, and what the two sides of a set share.

use super::Lane;
use crate::record::{RawRecord, RecordLayout};
use crate::ring::RingBuffer;
use perf_sys::{PERF_RECORD_SAMPLE, PERF_RECORD_THROTTLE};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trace_common::IdMap;

/// An event of a [`RingSet`](super::RingSet). It is one for all CPUs, tasks and cgroups, although
/// the kernel has one event with its own id for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetEvent(pub(crate) u64);

/// What the reader knows of an event.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) event: SetEvent,
    /// Place in [`Table::slots`].
    pub(crate) place: u32,
    pub(crate) layout: RecordLayout,
    /// Samples that were passed on. Only the reader writes it.
    delivered: AtomicU64,
    /// Number of `PERF_RECORD_THROTTLE`. Only the reader writes it.
    throttled: AtomicU64,
}

impl Slot {
    pub(crate) const fn new(event: SetEvent, place: u32, layout: RecordLayout) -> Self {
        Self { event, place, layout, delivered: AtomicU64::new(0), throttled: AtomicU64::new(0) }
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Counts a record that is passed on. There is only one reader, so that nothing is lost between
    /// load and store.
    #[inline]
    pub(crate) fn deliver(&self, raw: RawRecord<'_>) {
        match raw.type_() {
            PERF_RECORD_SAMPLE => self.delivered.store(self.delivered() + 1, Ordering::Relaxed),
            PERF_RECORD_THROTTLE => self.throttled.store(self.throttled() + 1, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// The events by the ids of the kernel. It is replaced as a whole, so that readers need no lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    places: IdMap<u32>,
    slots: Vec<Option<Arc<Slot>>>,
}

impl Table {
    /// The event of a record. All events of a set have their id in the first word of a sample and
    /// in the last of other records.
    #[inline]
    pub(crate) fn find(&self, raw: RawRecord<'_>) -> Option<&Arc<Slot>> {
        let id = if raw.type_() == PERF_RECORD_SAMPLE {
            raw.word(8)
        } else {
            raw.word(raw.bytes().len().checked_sub(8).filter(|at| *at >= 8)?)
        };
        self.at(*self.places.get(id? as i64)?)
    }

    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&Arc<Slot>> {
        self.slots.get(place as usize)?.as_ref()
    }

    /// A place for a new event.
    fn free_place(&self) -> u32 {
        let free = self.slots.iter().position(Option::is_none);
        free.unwrap_or(self.slots.len()) as u32
    }

    fn insert(&mut self, slot: Arc<Slot>) {
        let place = slot.place as usize;
        if place >= self.slots.len() {
            self.slots.resize(place + 1, None);
        }
        if let Some(entry) = self.slots.get_mut(place) {
            *entry = Some(slot);
        }
    }
}

/// A ring that the reader does not have yet.
#[derive(Debug)]
pub(crate) struct NewRing {
    pub(crate) number: RingNumber,
    pub(crate) cpu: u32,
    pub(crate) lane: Lane,
    pub(crate) buffer: RingBuffer,
}

/// A ring that nothing writes into any more, as its CPU went offline. It is read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedRing {
    pub(crate) number: RingNumber,
    /// What the kernel counted as lost; `None` if it does not count that.
    pub(crate) lost: Option<u64>,
}

/// Rings are numbered; a CPU that comes back has rings with new numbers.
pub(crate) type RingNumber = u64;

/// Events of the kernel that record nothing any more, while some of their records can still be in
/// the rings.
#[derive(Debug)]
pub(crate) struct Retiring {
    pub(crate) ids: Vec<u64>,
    /// Their event and its place, if it was removed with them.
    pub(crate) removed: Option<(SetEvent, u32)>,
}

#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) table: Arc<Table>,
    pub(crate) new_rings: Vec<NewRing>,
    pub(crate) ended_rings: Vec<EndedRing>,
    pub(crate) retiring: Vec<Retiring>,
}

/// What registration leaves for the reader. The reader looks at a counter in each round, and takes
/// the lock only after a change.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    version: AtomicU64,
    published: Mutex<Published>,
}

impl Shared {
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is published.
    pub(crate) fn publish<R>(&self, change: impl FnOnce(&mut Published) -> R) -> R {
        let mut published = self.lock();
        let result = change(&mut published);
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// Gives a new event its place.
    pub(crate) fn add_event(&self, event: SetEvent, layout: RecordLayout) -> Arc<Slot> {
        self.publish(|published| {
            let table = Arc::make_mut(&mut published.table);
            let slot = Arc::new(Slot::new(event, table.free_place(), layout));
            table.insert(Arc::clone(&slot));
            slot
        })
    }

    /// Number of ids of the kernel that belong to an event.
    #[cfg(test)]
    pub(crate) fn count_of_ids(&self) -> usize {
        self.lock().table.places.len()
    }

    /// Adds an id of the kernel to an event. It must be known before the event is enabled.
    pub(crate) fn add_id(&self, slot: &Slot, id: u64) {
        self.publish(|published| {
            let table = Arc::make_mut(&mut published.table);
            *table.places.insert(id as i64) = slot.place;
        });
    }

    /// Removes events that no record in the rings belongs to any more.
    pub(crate) fn forget(&self, retired: &Retiring) {
        self.publish(|published| {
            let table = Arc::make_mut(&mut published.table);
            for id in &retired.ids {
                table.places.remove(*id as i64);
            }
            let removed =
                retired.removed.and_then(|(_, place)| table.slots.get_mut(place as usize));
            if let Some(slot) = removed {
                *slot = None;
            }
        });
    }
}
