//! Events as the passes exchange them, and the dense numbers of goroutines and Ps in them.

use super::wire::Type;
use std::collections::HashMap;
use trace_common::SeededState;

/// A timed event. Arguments stay in the bytes of the trace until they are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// In ticks at first; in nanoseconds since the first event once the times are checked.
    pub(super) time: i64,
    /// Offset in the trace.
    pub(super) at: u32,
    /// The goroutine, as a number in [`Goroutines`].
    pub(super) go: u32,
    /// The goroutine that the event affects, if it is a different one.
    pub(super) target: u32,
    /// The P, as a number in [`Procs`].
    pub(super) proc: u16,
    pub(super) ty: Type,
    /// Whether a system call blocks.
    pub(super) blocks: bool,
}

/// The goroutines of a trace, numbered in order of appearance, so that their data is in flat
/// arrays.
#[derive(Debug)]
pub(super) struct Goroutines {
    pub(super) ids: Vec<u64>,
    numbers: HashMap<u64, u32, SeededState>,
}

impl Goroutines {
    /// Number of identifier 0: none.
    pub(super) const NONE: u32 = 0;
    /// Number of the identifier that represents the garbage collector in the order of events.
    pub(super) const COLLECTOR: u32 = 1;
    /// Number of the identifier that represents the absence of an order.
    pub(super) const UNORDERED: u32 = 2;

    /// The number of goroutine `id`.
    #[inline]
    pub(super) fn intern(&mut self, id: u64) -> u32 {
        let next = self.ids.len() as u32;
        let number = *self.numbers.entry(id).or_insert(next);
        if number == next {
            self.ids.push(id);
        }
        number
    }

    #[expect(clippy::indexing_slicing, reason = "numbers come from `intern`")]
    pub(super) fn id(&self, number: u32) -> u64 {
        self.ids[number as usize]
    }
}

impl Default for Goroutines {
    fn default() -> Self {
        let mut new = Self { ids: Vec::new(), numbers: HashMap::default() };
        for id in [0, u64::MAX - 1, u64::MAX] {
            new.intern(id);
        }
        new
    }
}

/// The Ps of a trace, numbered in order of appearance. Go's reader moves some events to artificial
/// Ps.
#[derive(Debug)]
pub(super) struct Procs {
    pub(super) ids: Vec<i32>,
    numbers: HashMap<u64, u16, SeededState>,
}

impl Procs {
    /// More than any machine has.
    pub(super) const MAX: usize = u16::MAX as usize;
    /// Number of the P for goroutines that timers unblock.
    pub(super) const TIMER: u16 = 0;
    /// Number of the P for goroutines that the network unblocks.
    pub(super) const NETWORK: u16 = 1;
    /// Number of the P for returns from system calls.
    pub(super) const SYSCALL: u16 = 2;
    /// Number of the P for the garbage collector's state.
    pub(super) const COLLECTOR: u16 = 3;

    /// The number of P `id`; `None` if there are too many.
    pub(super) fn intern(&mut self, id: i32) -> Option<u16> {
        let key = u64::from(id as u32);
        if let Some(&number) = self.numbers.get(&key) {
            return Some(number);
        }
        if self.ids.len() >= Self::MAX {
            return None;
        }
        let number = self.ids.len() as u16;
        self.numbers.insert(key, number);
        self.ids.push(id);
        Some(number)
    }

    #[expect(clippy::indexing_slicing, reason = "numbers come from `intern`")]
    pub(super) fn id(&self, number: u16) -> i32 {
        self.ids[usize::from(number)]
    }
}

impl Default for Procs {
    fn default() -> Self {
        let mut new = Self { ids: Vec::new(), numbers: HashMap::default() };
        for id in [1_000_001, 1_000_002, 1_000_003, 1_000_004] {
            new.intern(id);
        }
        new
    }
}
