//! The tracked state of goroutines, procs and threads.

use super::Blocked;
use crate::error::Inconsistency;
use crate::id::{GoId, ProcId, TaskId, ThreadId};
use crate::spec::EventType;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Status of a goroutine, with the numbers of the format.
pub(crate) mod go_status {
    pub(crate) const RUNNABLE: u8 = 1;
    pub(crate) const RUNNING: u8 = 2;
    pub(crate) const SYSCALL: u8 = 3;
    pub(crate) const WAITING: u8 = 4;
}

/// Status of a proc, with the numbers of the format.
pub(crate) mod proc_status {
    pub(crate) const RUNNING: u8 = 1;
    pub(crate) const IDLE: u8 = 2;
    pub(crate) const SYSCALL: u8 = 3;
    /// In a system call, on a thread that is no longer known.
    pub(crate) const SYSCALL_ABANDONED: u8 = 4;
}

/// A sequence number of a goroutine or proc. Numbers start over in each generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// Small, so that the states of all live goroutines fit into the CPU caches.
#[derive(Debug, Default)]
pub(crate) struct Goroutine {
    pub(crate) seq: Seq,
    pub(crate) status: u8,
    open: Option<Box<Open>>,
}

/// The open ranges and regions of a goroutine. Most goroutines never have any.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) regions: Vec<UserRegion>,
    pub(crate) ranges: Ranges,
}

impl Goroutine {
    /// Resets it to a new goroutine.
    pub(crate) fn reset(&mut self, status: u8, seq: Seq) {
        (self.status, self.seq) = (status, seq);
        if let Some(open) = &mut self.open {
            open.regions.clear();
            open.ranges.clear();
        }
    }

    pub(crate) fn open(&mut self) -> &mut Open {
        self.open.get_or_insert_default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Proc {
    pub(crate) status: u8,
    pub(crate) seq: Seq,
    pub(crate) ranges: Ranges,
}

impl Proc {
    /// Resets it to a new proc.
    pub(crate) fn reset(&mut self, status: u8, seq: Seq) {
        (self.status, self.seq) = (status, seq);
        self.ranges.clear();
    }
}

/// An open region. The name itself is kept, because its identifier may change from one generation
/// to the next.
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

/// A thread and the goroutine and proc that are bound to it.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) id: ThreadId,
    /// Whether the trace has mentioned the thread yet.
    pub(crate) seen: bool,
    pub(crate) g: GoId,
    pub(crate) p: ProcId,
}

/// All threads of the trace, by slot. A slot is created with its thread, and threads are never
/// removed. So every slot is valid and is not checked again.
#[derive(Debug, Default)]
pub(crate) struct Threads(Vec<Thread>);

impl Threads {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Thread> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Thread> {
        self.0.iter_mut()
    }

    /// Adds a thread of which only the identifier is known; returns its slot.
    pub(crate) fn add(&mut self, id: ThreadId) -> u32 {
        self.0.push(Thread { id, seen: false, g: GoId::NONE, p: ProcId::NONE });
        self.0.len() as u32 - 1
    }
}

#[expect(clippy::indexing_slicing, reason = "every slot is one of a thread")]
impl Index<usize> for Threads {
    type Output = Thread;

    #[inline(always)]
    fn index(&self, slot: usize) -> &Thread {
        &self.0[slot]
    }
}

#[expect(clippy::indexing_slicing, reason = "every slot is one of a thread")]
impl IndexMut<usize> for Threads {
    #[inline(always)]
    fn index_mut(&mut self, slot: usize) -> &mut Thread {
        &mut self.0[slot]
    }
}

/// The open ranges of a goroutine or proc: the event that began each, and for stop-the-world the
/// string with the reason.
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

    /// A range is reported active: in the first generation it becomes known this way.
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

    /// Opens the range, or closes all ranges that begin with this event.
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
