//! The tracked state of goroutines, procs and threads.

use super::Blocked;
use crate::error::Inconsistency;
use crate::id::{GoId, GoState, ProcId, ProcState, TaskId, ThreadId};
use crate::spec::EventType;
use crate::table::Table;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Status of a goroutine: `GoStatus` of the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum GoStatus {
    #[default]
    Bad,
    Runnable,
    Running,
    Syscall,
    Waiting,
}

impl GoStatus {
    /// The status with this number in the format.
    pub(crate) const fn new(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Bad,
            1 => Self::Runnable,
            2 => Self::Running,
            3 => Self::Syscall,
            4 => Self::Waiting,
            _ => return None,
        })
    }

    pub(crate) const fn state(self) -> GoState {
        match self {
            Self::Bad => GoState::Undetermined,
            Self::Runnable => GoState::Runnable,
            Self::Running => GoState::Running,
            Self::Syscall => GoState::Syscall,
            Self::Waiting => GoState::Waiting,
        }
    }
}

/// Status of a proc: `ProcStatus` of the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ProcStatus {
    #[default]
    Bad,
    Running,
    Idle,
    Syscall,
    /// In a system call, on a thread that is no longer known.
    SyscallAbandoned,
}

impl ProcStatus {
    /// The status with this number in the format.
    pub(crate) const fn new(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Bad,
            1 => Self::Running,
            2 => Self::Idle,
            3 => Self::Syscall,
            4 => Self::SyscallAbandoned,
            _ => return None,
        })
    }

    pub(crate) const fn state(self) -> ProcState {
        match self {
            Self::Bad => ProcState::Undetermined,
            Self::Running | Self::Syscall => ProcState::Running,
            Self::Idle | Self::SyscallAbandoned => ProcState::Idle,
        }
    }
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
    pub(crate) status: GoStatus,
    open: Option<Box<Open>>,
}

/// The open ranges and regions of a goroutine. Most goroutines never have any.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) regions: Vec<UserRegion>,
    /// Whether a region has a name of this generation, and its goroutine is in the list of those.
    pub(crate) is_named: bool,
    pub(crate) ranges: Ranges,
}

impl Goroutine {
    /// Resets it to a new goroutine.
    pub(crate) fn reset(&mut self, status: GoStatus, seq: Seq) {
        (self.status, self.seq) = (status, seq);
        if let Some(open) = &mut self.open {
            open.regions.clear();
            open.is_named = false;
            open.ranges.clear();
        }
    }

    pub(crate) fn open(&mut self) -> &mut Open {
        self.open.get_or_insert_default()
    }

    pub(crate) fn ranges(&self) -> Option<&Ranges> {
        self.open.as_ref().map(|open| &open.ranges)
    }

    pub(crate) fn regions(&self) -> &[UserRegion] {
        self.open.as_ref().map_or(&[], |open| &open.regions)
    }

    pub(crate) fn take_regions(&mut self) -> Vec<UserRegion> {
        self.open.as_mut().map(|open| std::mem::take(&mut open.regions)).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Proc {
    pub(crate) status: ProcStatus,
    pub(crate) seq: Seq,
    pub(crate) ranges: Ranges,
}

impl Proc {
    /// Resets it to a new proc.
    pub(crate) fn reset(&mut self, status: ProcStatus, seq: Seq) {
        (self.status, self.seq) = (status, seq);
        self.ranges.clear();
    }
}

/// An open region.
#[derive(Debug)]
pub(crate) struct UserRegion {
    pub(crate) task: TaskId,
    pub(crate) name: Name,
}

/// A task that has begun and not ended.
#[derive(Debug)]
pub(crate) struct ActiveTask {
    pub(crate) parent: TaskId,
    pub(crate) name: Name,
}

/// The name of a region or task that is open. Most end in the generation in which they begin.
#[derive(Debug)]
pub(crate) enum Name {
    /// The identifier of a string of the current generation.
    Current(u64),
    /// The string, from an earlier generation: identifiers change from one to the next.
    Kept(Arc<[u8]>),
}

impl Name {
    /// Keeps the name after the generation of `table`, unless it is kept already.
    pub(crate) fn keep(&mut self, table: &Table) -> bool {
        let Self::Current(id) = *self else { return false };
        *self = Self::Kept(table.strings.get(id).cloned().unwrap_or_default());
        true
    }

    pub(crate) fn bytes<'a>(&'a self, table: &'a Table) -> &'a [u8] {
        match self {
            Self::Current(id) => table.strings.get(*id).map_or(&[], |name| &name[..]),
            Self::Kept(name) => name,
        }
    }

    /// Whether it is the string `id` of the generation.
    #[inline]
    pub(crate) fn is(&self, id: u64, table: &Table) -> bool {
        let is_same = matches!(self, Self::Current(own) if *own == id);
        is_same || self.bytes(table) == Self::Current(id).bytes(table)
    }
}

/// A thread and the goroutine and proc that are bound to it.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) id: ThreadId,
    /// Whether the trace has mentioned the thread yet.
    pub(crate) seen: bool,
    /// The number of its events, and how many of them report states, in a part.
    pub(crate) events: u32,
    pub(crate) reports: u32,
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
        let (g, p) = (GoId::NONE, ProcId::NONE);
        self.0.push(Thread { id, seen: false, events: 0, reports: 0, g, p });
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

    /// Whether this range without a reason is open.
    pub(crate) fn has(&self, start: EventType) -> bool {
        self.0.contains(&(start, 0))
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
