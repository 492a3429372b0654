//! What the ordering knows of goroutines, procs and threads.

use super::Blocked;
use crate::error::Inconsistency;
use crate::id::{GoId, ProcId, TaskId, ThreadId};
use crate::spec::EventType;
use crate::table::SeededState;
use std::collections::HashMap;
use std::sync::Arc;

/// Status of a goroutine, in the numbers of the format.
pub(crate) mod go_status {
    pub(crate) const RUNNABLE: u8 = 1;
    pub(crate) const RUNNING: u8 = 2;
    pub(crate) const SYSCALL: u8 = 3;
    pub(crate) const WAITING: u8 = 4;
}

/// Status of a proc, in the numbers of the format.
pub(crate) mod proc_status {
    pub(crate) const RUNNING: u8 = 1;
    pub(crate) const IDLE: u8 = 2;
    pub(crate) const SYSCALL: u8 = 3;
    /// In a system call, but on which thread is not known any more.
    pub(crate) const SYSCALL_ABANDONED: u8 = 4;
}

/// A sequence number of a goroutine or proc, counted anew in each generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seq {
    pub(crate) generation: u64,
    pub(crate) number: u64,
}

impl Seq {
    #[inline]
    pub(crate) const fn succeeds(self, last: Self) -> bool {
        self.generation == last.generation && self.number == last.number.wrapping_add(1)
    }
}

/// Small, so that the states of all that live stay close to the processor.
#[derive(Debug)]
pub(crate) struct Goroutine {
    pub(crate) seq: Seq,
    pub(crate) status: u8,
    open: Option<Box<Open>>,
}

/// What is open on a goroutine. Most never have any.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) regions: Vec<UserRegion>,
    pub(crate) ranges: Ranges,
}

impl Goroutine {
    pub(crate) fn open(&mut self) -> &mut Open {
        self.open.get_or_insert_default()
    }
}

#[derive(Debug)]
pub(crate) struct Proc {
    pub(crate) status: u8,
    pub(crate) seq: Seq,
    pub(crate) ranges: Ranges,
}

/// A region that is open. The name is kept itself, for its identifier may change from one
/// generation to the next.
#[derive(Debug)]
pub(crate) struct UserRegion {
    pub(crate) task: TaskId,
    pub(crate) name: Arc<[u8]>,
}

/// A task that has begun and not ended.
#[derive(Debug)]
pub(crate) struct ActiveTask {
    pub(crate) parent: TaskId,
    pub(crate) name: Arc<[u8]>,
}

/// A thread: what is bound to it.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) id: ThreadId,
    /// Whether the trace has told anything of the thread yet.
    pub(crate) seen: bool,
    pub(crate) g: GoId,
    pub(crate) p: ProcId,
}

/// The ranges that are open on a goroutine or proc: the event that began each, and for
/// stop-the-world the string that tells why.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<(EventType, u64)>);

impl Ranges {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn begin(&mut self, start: EventType, why: u64) -> Result<(), Blocked> {
        if self.0.contains(&(start, why)) {
            return Err(Inconsistency::Range { range: start, open: true }.into());
        }
        self.0.push((start, why));
        Ok(())
    }

    /// A range goes on: in the first generation that is how it becomes known.
    pub(crate) fn active(&mut self, start: EventType, first: bool) -> Result<(), Blocked> {
        let open = self.0.contains(&(start, 0));
        if open == first {
            return Err(Inconsistency::Range { range: start, open }.into());
        }
        if first {
            self.0.push((start, 0));
        }
        Ok(())
    }

    /// Opens the range, or closes all that begin with this event.
    pub(crate) fn set(&mut self, start: EventType, open: bool) {
        if !open {
            self.0.retain(|(ty, _)| *ty != start);
        } else if !self.0.iter().any(|(ty, _)| *ty == start) {
            self.0.push((start, 0));
        }
    }

    pub(crate) fn end(&mut self, start: EventType) -> Result<u64, Blocked> {
        match self.0.iter().position(|(ty, _)| *ty == start) {
            Some(index) => Ok(self.0.swap_remove(index).1),
            None => Err(Inconsistency::Range { range: start, open: false }.into()),
        }
    }
}

/// States by identifier, in a flat array that is used again.
///
/// Runtimes number goroutines one after the other, so that those that live at a time differ in
/// their last bits: a table by those bits says where the state is, without hashing. It has room
/// for twice as many as there are, at least. Identifiers that find their place taken, as many
/// made-up ones do, are in a map.
#[derive(Debug)]
pub(crate) struct States<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// By the last bits of an identifier: the slot of one with those bits, or [`NOWHERE`]. The
    /// length is a power of two.
    places: Vec<u32>,
    /// Slots of identifiers whose place another one has.
    displaced: HashMap<i64, u32, SeededState>,
}

/// Length of [`States::places`] at the start.
const MIN_PLACES: usize = 1024;
/// No slot: there are fewer.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    id: i64,
    value: T,
}

impl<T> Default for States<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            places: vec![NOWHERE; MIN_PLACES],
            displaced: HashMap::default(),
        }
    }
}

impl<T: Reuse> States<T> {
    #[inline]
    fn place(&self, id: i64) -> usize {
        id as usize & (self.places.len() - 1)
    }

    /// The slot of `id`.
    #[inline]
    fn slot(&self, id: i64) -> Option<usize> {
        let slot = *self.places.get(self.place(id))? as usize;
        if self.slots.get(slot).is_some_and(|slot| slot.id == id) {
            return Some(slot);
        }
        self.displaced_slot(id)
    }

    fn displaced_slot(&self, id: i64) -> Option<usize> {
        if self.displaced.is_empty() {
            return None; // as ever, in the traces of most programs
        }
        self.displaced.get(&id).map(|&slot| slot as usize)
    }

    /// The state of `id`.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: i64) -> Option<&mut T> {
        let slot = self.slot(id)?;
        self.slots.get_mut(slot).map(|slot| &mut slot.value)
    }

    #[inline]
    pub(crate) fn contains(&self, id: i64) -> bool {
        self.slot(id).is_some()
    }

    /// Adds a state for `id`, which has none.
    pub(crate) fn insert(&mut self, id: i64, status: u8, seq: Seq) {
        if 2 * self.len() >= self.places.len() {
            self.grow();
        }
        let reused =
            self.free.pop().and_then(|slot| Some((slot, self.slots.get_mut(slot as usize)?)));
        let slot = match reused {
            Some((slot, reused)) => {
                reused.id = id;
                reused.value.reuse(status, seq);
                slot
            }
            None => {
                self.slots.push(Slot { id, value: T::new(status, seq) });
                self.slots.len() as u32 - 1
            }
        };
        self.settle(id, slot);
    }

    /// Notes where `id` is.
    #[inline]
    fn settle(&mut self, id: i64, slot: u32) {
        let place = self.place(id);
        match self.places.get_mut(place) {
            Some(free) if *free == NOWHERE => *free = slot,
            _ => {
                self.displaced.insert(id, slot);
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.places);
        let displaced = std::mem::take(&mut self.displaced);
        self.places = vec![NOWHERE; 2 * old.len()];
        let settled = old.into_iter().filter(|&slot| slot != NOWHERE);
        for slot in settled.chain(displaced.into_values()) {
            if let Some(id) = self.slots.get(slot as usize).map(|slot| slot.id) {
                self.settle(id, slot);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: i64) {
        let place = self.place(id);
        let settled = self
            .places
            .get_mut(place)
            .filter(|slot| self.slots.get(**slot as usize).is_some_and(|slot| slot.id == id));
        let slot = match settled {
            Some(slot) => std::mem::replace(slot, NOWHERE),
            None => match self.displaced.remove(&id) {
                Some(slot) => slot,
                None => return,
            },
        };
        self.free.push(slot);
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A state whose memory serves another identifier when the first is gone.
pub(crate) trait Reuse {
    fn new(status: u8, seq: Seq) -> Self;
    fn reuse(&mut self, status: u8, seq: Seq);
}

impl Reuse for Goroutine {
    fn new(status: u8, seq: Seq) -> Self {
        Self { seq, status, open: None }
    }

    fn reuse(&mut self, status: u8, seq: Seq) {
        (self.status, self.seq) = (status, seq);
        if let Some(open) = &mut self.open {
            open.regions.clear();
            open.ranges.clear();
        }
    }
}

impl Reuse for Proc {
    fn new(status: u8, seq: Seq) -> Self {
        Self { status, seq, ranges: Ranges::default() }
    }

    fn reuse(&mut self, status: u8, seq: Seq) {
        *self = Self::new(status, seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Identifiers with the same last bits, and such that are used again, are told apart.
        #[test]
        fn states_are_those_of_a_map(
            steps in prop::collection::vec((0i64..3, -2i64..3, 0u8..3, any::<u8>()), 0..200),
        ) {
            let mut states = States::<Goroutine>::default();
            let mut expected = HashMap::new();
            for (low, high, step, status) in steps {
                let id = low + high * MIN_PLACES as i64;
                match step {
                    0 => {
                        states.remove(id);
                        expected.remove(&id);
                    }
                    1 if !expected.contains_key(&id) => {
                        states.insert(id, status, Seq { generation: 1, number: 0 });
                        expected.insert(id, status);
                    }
                    _ => {}
                }
                prop_assert_eq!(states.get_mut(id).map(|g| g.status), expected.get(&id).copied());
                prop_assert_eq!(states.contains(id), expected.contains_key(&id));
                prop_assert_eq!(states.len(), expected.len());
            }
        }
    }

    /// However many there are, and also where all of them compete for the same places.
    #[test]
    fn states_are_found_when_the_table_has_grown() {
        const MANY: i64 = 5 * MIN_PLACES as i64;
        for step in [1, 3, 1 << 40] {
            let mut states = States::<Goroutine>::default();
            for round in 0..2 {
                for n in 0..MANY {
                    states.insert(n * step, (n % 5) as u8, Seq { generation: 1, number: 0 });
                }
                assert_eq!(states.len(), MANY as usize);
                assert!(states.places.len() <= 8 * MANY as usize, "bounded");
                assert!(states.slots.len() <= MANY as usize, "round {round} uses the same slots");
                for n in 0..MANY {
                    assert_eq!(states.get_mut(n * step).map(|g| g.status), Some((n % 5) as u8));
                    assert!(!states.contains(n * step + 1 + MANY * step));
                }
                (0..MANY).for_each(|n| states.remove(n * step));
                assert_eq!((states.len(), states.displaced.len()), (0, 0));
                assert!((0..MANY).all(|n| !states.contains(n * step)));
            }
        }
    }
}
