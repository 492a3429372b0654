//! A CPU: what executes there, what did before, and which threads wait for it.

use super::place::Running;
use crate::entity::EntityId;
use std::collections::VecDeque;
use trace_common::Timestamp;

/// Maximum number of occupants before the last two that a CPU remembers. What it executed earlier during the
/// same wait is not known.
const MOST: usize = 64;

/// Maximum number of threads that wait for a CPU: each switch changes what they wait for. Others wait for an unknown
/// one.
pub(super) const MAX_QUEUE: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Cpu {
    /// What executes there.
    pub(super) now: Occupied,
    /// What did before.
    last: Occupied,
    /// What did before that, as long as threads wait for this CPU: oldest first, and without a gap before `last`.
    earlier: VecDeque<Occupied>,
    /// Whether a switch was recorded so far.
    pub(super) is_recorded: bool,
    /// Whether one of them had both threads: those of recorded threads alone lack the other one.
    pub(super) has_all_threads: bool,
    /// Threads that wait for this CPU.
    pub(super) queue: Vec<EntityId>,
    /// The start of the last gap, until the next switch.
    pub(super) gap: Option<Timestamp>,
}

/// What a CPU executes, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupied {
    pub(super) since: Timestamp,
    pub(super) running: Running,
}

impl Default for Occupied {
    fn default() -> Self {
        Self { since: Timestamp::MIN, running: Running::UNKNOWN }
    }
}

impl Cpu {
    /// Executes this from then on. Returns what it executed before.
    #[inline]
    pub(super) fn occupy(&mut self, running: Running, since: Timestamp) -> Running {
        // A loss can begin before the last record.
        let since = since.max(self.now.since);
        let left = std::mem::replace(&mut self.now, Occupied { since, running });
        let before = std::mem::replace(&mut self.last, left);
        if self.queue.is_empty() {
            self.earlier.clear();
        } else {
            self.keep(before);
        }
        left.running
    }

    /// Whether no more threads can wait for it.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= MAX_QUEUE
    }

    fn keep(&mut self, occupied: Occupied) {
        if self.earlier.len() >= MOST {
            self.earlier.pop_front();
        }
        self.earlier.push_back(occupied);
    }

    /// What it executed until the last switch is not what left it then.
    pub(super) const fn doubt_last(&mut self) {
        self.last.running = Running::UNKNOWN;
    }

    /// What it executed last, if that was all from `since` on. Called at a switch.
    pub(super) fn last_since(&self, since: Timestamp) -> Running {
        if self.last.since <= since { self.last.running } else { Running::UNKNOWN }
    }

    /// What it executed while a thread waited from `since` to `at`, in order: each ends where the next one begins,
    /// and the first one can begin earlier. Before the first one it is not known.
    ///
    /// `is_queue` says that the thread was in the queue of this CPU. Otherwise it may have been in another one
    /// before, and only the last occupant is given.
    pub(super) fn occupants(
        &self,
        since: Timestamp,
        at: Timestamp,
        is_queue: bool,
    ) -> impl Iterator<Item = Occupied> + Clone {
        let begun = self.earlier.partition_point(|occupied| occupied.since <= since);
        let first = if is_queue { begun.saturating_sub(1) } else { self.earlier.len() };
        let all = self.earlier.range(first..).copied().chain([self.last, self.now]);
        all.filter(move |occupied| {
            // A CPU that was idle did not have the thread in its queue.
            let is_idle = occupied.running == Running::IDLE && occupied.since > since;
            occupied.since < at && (is_queue || !is_idle)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn thread(key: i64) -> EntityId {
        EntityId::from_key(key).unwrap()
    }

    /// However long a thread waits.
    #[test]
    fn a_cpu_remembers_a_limited_number_of_occupants() {
        let mut cpu = Cpu::default();
        let first = |cpu: &Cpu, since| {
            let mut all = cpu.occupants(at(since), at(i64::MAX), true);
            all.next().map(|occupied| occupied.since)
        };
        let turn = |cpu: &mut Cpu, time: i64| {
            cpu.occupy(Running::of(thread(1 + time % 2)), at(time));
        };
        for time in 0..10 {
            turn(&mut cpu, time);
        }
        assert!(cpu.earlier.is_empty(), "no thread waits");
        cpu.queue.push(thread(7));
        for time in 10..20 {
            turn(&mut cpu, time);
        }
        assert_eq!(first(&cpu, 9), Some(at(9)), "the one that it had when the thread came");
        for time in 20..1_000 {
            turn(&mut cpu, time);
        }
        assert_eq!(first(&cpu, 9), Some(at(1_000 - 2 - MOST as i64)));
        assert!(cpu.earlier.capacity() <= 2 * MOST);
        cpu.queue.clear();
        turn(&mut cpu, 1_000);
        assert!(cpu.earlier.is_empty());
    }
}
