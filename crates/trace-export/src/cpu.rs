//! The times when threads had a CPU, from the kernel's context switches.

use crate::model::SchedSwitch;
use hashbrown::HashMap;
use trace_common::Timestamp;

/// Whether a thread had a CPU at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuState {
    /// The thread ran on this CPU.
    OnCpu(u32),
    /// The thread was off-CPU: asleep, blocked, or runnable without a CPU.
    OffCpu,
    /// Unknown: the time is before the first or after the last switch, records were lost, or there
    /// were too many switches or losses.
    Unknown,
}

/// The intervals in which threads had a CPU, from a recording of the kernel's scheduler.
///
/// It holds 16 bytes per interval and loss, and at most [`CpuIntervals::MAX`] of them. Later times are
/// [`CpuState::Unknown`].
///
/// ```
/// use trace_export::{CpuIntervals, CpuState, SchedSwitch, Task, Timestamp};
///
/// let at = Timestamp::from_nanos;
/// let task = |tid| Task::new(tid, b"", 120);
/// let mut cpus = CpuIntervals::new();
/// cpus.switch(at(100), &SchedSwitch::new(3, task(0), 0, task(7)));
/// cpus.switch(at(200), &SchedSwitch::new(3, task(7), 1, task(0)));
/// assert_eq!(cpus.state(7, at(150)), CpuState::OnCpu(3));
/// assert_eq!(cpus.state(7, at(200)), CpuState::OffCpu);
/// assert_eq!(cpus.state(7, at(201)), CpuState::Unknown);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CpuIntervals {
    threads: HashMap<u32, Thread>,
    intervals: usize,
    /// Per CPU: the time of its last switch.
    last_on: HashMap<u32, Timestamp>,
    /// Per CPU: the number of its losses.
    losses: HashMap<u32, u32>,
    /// Spans in which switches of any CPU were lost, in time order. They do not touch.
    lost: Vec<(Timestamp, Timestamp)>,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    done: Vec<Interval>,
    running: Option<Running>,
}

/// The current interval of a thread.
#[derive(Clone, Copy, Debug)]
struct Running {
    since: Timestamp,
    cpu: u32,
    /// Number of losses of the CPU before it. A loss can have the time of a switch before or after it.
    losses: u32,
}

impl Thread {
    /// The current interval, unless the thread may have been switched out unseen: with the number of losses by CPU.
    fn running_with(&self, losses: &HashMap<u32, u32>) -> Option<Running> {
        self.running.filter(|running| running.losses == number_of(losses, running.cpu))
    }
}

fn number_of(losses: &HashMap<u32, u32>, cpu: u32) -> u32 {
    losses.get(&cpu).copied().unwrap_or(0)
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    start: Timestamp,
    /// In nanoseconds; an interval of more than four seconds is split.
    length: u32,
    cpu: u32,
}

impl CpuIntervals {
    /// Maximum number of intervals and losses: 16 MiB, and as much again while they grow.
    pub const MAX: usize = 1 << 20;

    /// Makes an empty set of intervals.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a context switch. Switches and losses must be in time order, also those of different CPUs. Those of
    /// one time are in the order in which they are given.
    pub fn switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) {
        if self.is_full() {
            return;
        }
        self.first.get_or_insert(at);
        self.last = self.last.max(Some(at));
        self.last_on.insert(switch.cpu, at);
        self.leave(at, switch.prev.tid);
        if switch.next.tid != 0 {
            let (since, cpu) = (at, switch.cpu);
            let losses = number_of(&self.losses, cpu);
            let next = self.threads.entry(switch.next.tid).or_default();
            next.running = Some(Running { since, cpu, losses });
        }
    }

    /// Reports that switches of a CPU were lost between its last one and `at`.
    pub fn lost(&mut self, at: Timestamp, cpu: u32) {
        if self.is_full() {
            return;
        }
        let losses = self.losses.entry(cpu).or_default();
        *losses = losses.wrapping_add(1);
        let mut start = self.last_on.insert(cpu, at).or(self.first).unwrap_or(at);
        let mut end = at;
        while let Some((since, until)) = self.lost.pop() {
            if until < start {
                self.lost.push((since, until));
                break;
            }
            (start, end) = (start.min(since), end.max(until));
        }
        self.lost.push((start, end));
    }

    fn is_full(&self) -> bool {
        self.intervals + self.lost.len() >= Self::MAX
    }

    fn leave(&mut self, at: Timestamp, tid: u32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(Running { since, cpu, .. }) = thread.running_with(&self.losses) else { return };
        thread.running = None;
        let mut start = since;
        loop {
            let left = at.nanos_since(start).max(0);
            let length = u32::try_from(left).unwrap_or(u32::MAX);
            thread.done.push(Interval { start, length, cpu });
            self.intervals += 1;
            start = start.saturating_add_nanos(length.into());
            if i64::from(length) == left {
                break;
            }
        }
    }

    /// Returns whether thread `tid` had a CPU at a time.
    pub fn state(&self, tid: u32, at: Timestamp) -> CpuState {
        self.state_within(tid, at, at)
    }

    /// Returns whether thread `tid` had a CPU at any time from `from` to `to`, both included.
    pub fn state_within(&self, tid: u32, from: Timestamp, to: Timestamp) -> CpuState {
        let is_covered = self.first.is_some_and(|first| first <= from) && Some(to) <= self.last;
        if !is_covered {
            return CpuState::Unknown;
        }
        if let Some(thread) = self.threads.get(&tid) {
            if let Some(running) = thread.running_with(&self.losses) {
                if running.since <= to {
                    return CpuState::OnCpu(running.cpu);
                }
            }
            let next = thread.done.partition_point(|interval| interval.start <= to);
            if let Some(last) = next.checked_sub(1).and_then(|i| thread.done.get(i)) {
                let end = last.start.saturating_add_nanos(last.length.into());
                if end > from {
                    return CpuState::OnCpu(last.cpu);
                }
            }
        }
        let next = self.lost.partition_point(|(start, _)| *start <= to);
        match next.checked_sub(1).and_then(|i| self.lost.get(i)) {
            Some((_, end)) if *end >= from => CpuState::Unknown,
            _ => CpuState::OffCpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Task;

    fn at(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    fn switch(cpus: &mut CpuIntervals, time: i64, cpu: u32, prev: u32, next: u32) {
        let task = |tid| Task::new(tid, b"", 120);
        let (prev, next) = (task(prev), task(next));
        cpus.switch(at(time), &SchedSwitch::new(cpu, prev, 0, next));
    }

    #[test]
    fn a_window_that_touches_an_interval_is_on_cpu() {
        let mut cpus = CpuIntervals::new();
        switch(&mut cpus, 10, 0, 0, 7);
        switch(&mut cpus, 20, 0, 7, 0);
        switch(&mut cpus, 10_000_000_000, 1, 0, 7);
        switch(&mut cpus, 20_000_000_000, 1, 7, 0);
        assert_eq!(cpus.state_within(7, at(20), at(30)), CpuState::OffCpu);
        assert_eq!(cpus.state_within(7, at(19), at(30)), CpuState::OnCpu(0));
        assert_eq!(cpus.state(7, at(9)), CpuState::Unknown);
        assert_eq!(cpus.state(7, at(19_999_999_999)), CpuState::OnCpu(1), "longer than 32 bits");
        assert_eq!(cpus.state(8, at(15)), CpuState::OffCpu, "never had a CPU");
    }

    #[test]
    fn losses_make_off_cpu_unknown() {
        let mut cpus = CpuIntervals::new();
        switch(&mut cpus, 10, 0, 0, 7);
        switch(&mut cpus, 20, 1, 0, 8);
        cpus.lost(at(50), 0);
        switch(&mut cpus, 60, 0, 7, 0);
        switch(&mut cpus, 70, 1, 8, 0);
        assert_eq!(cpus.state(7, at(30)), CpuState::Unknown, "it may have left");
        assert_eq!(cpus.state(8, at(30)), CpuState::OnCpu(1), "on another CPU");
        assert_eq!(cpus.state(9, at(30)), CpuState::Unknown);
        assert_eq!(cpus.state(9, at(55)), CpuState::OffCpu);
    }

    /// Switches and losses of one time are in the order in which they are given.
    #[test]
    fn a_loss_ends_what_ran_before_it_at_the_same_time() {
        let mut cpus = CpuIntervals::new();
        switch(&mut cpus, 10, 0, 0, 7);
        switch(&mut cpus, 10, 1, 0, 8);
        cpus.lost(at(10), 0);
        switch(&mut cpus, 10, 2, 0, 5);
        cpus.lost(at(20), 2);
        switch(&mut cpus, 20, 2, 0, 6);
        switch(&mut cpus, 60, 0, 9, 0);
        assert_eq!(cpus.state(7, at(30)), CpuState::OffCpu, "it has left during the loss");
        assert_eq!(cpus.state(8, at(30)), CpuState::OnCpu(1), "on another CPU");
        assert_eq!(cpus.state(5, at(30)), CpuState::OffCpu, "it has left during the loss");
        assert_eq!(cpus.state(6, at(30)), CpuState::OnCpu(2), "it came after the loss");
    }

    #[test]
    fn times_without_losses_are_known_after_any_number_of_these() {
        const LOSSES: i64 = 5_000;
        let mut cpus = CpuIntervals::new();
        for time in (0..LOSSES).map(|n| n * 10) {
            switch(&mut cpus, time, 0, 0, 7);
            switch(&mut cpus, time + 1, 1, 0, 8);
            // They overlap.
            cpus.lost(at(time + 4), 0);
            cpus.lost(at(time + 5), 1);
            switch(&mut cpus, time + 6, 0, 7, 9);
            switch(&mut cpus, time + 8, 0, 9, 0);
        }
        for time in (0..LOSSES).map(|n| n * 10) {
            let state = |tid, after| cpus.state(tid, at(time + after));
            assert_eq!(state(7, 2), CpuState::Unknown, "{time}");
            assert_eq!(state(10, 5), CpuState::Unknown, "{time}");
            assert_eq!(state(10, 7), CpuState::OffCpu, "{time}");
            assert_eq!(state(9, 7), CpuState::OnCpu(0), "{time}");
        }
    }
}
