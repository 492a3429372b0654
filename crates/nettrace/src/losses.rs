use std::collections::HashMap;

use trace_common::{Limits, Timestamp};

use crate::table_space;

/// Events of one thread that are missing: the writer dropped them because its buffers were full, or they were in a
/// damaged block ([`Stats::damaged_blocks`](crate::Stats::damaged_blocks)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The thread that wrote them, or tried to: a thread id, in version 6 a thread index.
    pub capture_thread: u64,
    /// Number of events.
    pub count: u64,
    /// Time of the last event of that thread before the gap, if there was one.
    pub after: Option<Timestamp>,
    /// Time of the event or sequence point that showed the gap.
    pub before: Timestamp,
}

/// A [`Loss`], with the ticks of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    pub(crate) capture_thread: u64,
    pub(crate) count: u64,
    pub(crate) after: Option<i64>,
    pub(crate) before: i64,
}

impl Gap {
    pub(crate) fn loss(self, time: impl Fn(i64) -> Timestamp) -> Loss {
        Loss {
            capture_thread: self.capture_thread,
            count: self.count,
            after: self.after.map(&time),
            before: time(self.before),
        }
    }
}

/// Position of an event in the sequence of its capture thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceKey {
    pub(crate) thread: u64,
    pub(crate) sequence: u32,
    pub(crate) ticks: i64,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    sequence: u32,
    ticks: Option<i64>,
    lost: u64,
    /// Whether the sequence point that is being read has it.
    is_listed: bool,
}

/// Tracks the sequence numbers of each capture thread.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    threads: HashMap<u64, Counter>,
    /// Whether counters of threads that may continue were dropped.
    forgotten: bool,
    pub(crate) total: u64,
}

impl Losses {
    /// Processes the first event of a run of consecutive numbers on a thread.
    pub(crate) fn first_of_run(&mut self, place: SequenceKey, limits: &Limits) -> Option<Gap> {
        let SequenceKey { thread, sequence, ticks } = place;
        let counter = self.counter(thread, sequence.wrapping_sub(1), limits);
        let gap = sequence.wrapping_sub(counter.sequence.wrapping_add(1));
        let mut lost = None;
        // Back at 1, or lower than before: another thread with the same id.
        if gap != 0 && gap < 1 << 31 && sequence != 1 {
            counter.lost += u64::from(gap);
            lost = Some(Gap {
                capture_thread: thread,
                count: gap.into(),
                after: counter.ticks,
                before: ticks,
            });
        }
        counter.sequence = sequence;
        counter.ticks = Some(ticks);
        self.total += lost.map_or(0, |l| l.count);
        lost
    }

    /// Processes the last event of a run.
    pub(crate) fn last_of_run(&mut self, place: SequenceKey) {
        if let Some(counter) = self.threads.get_mut(&place.thread) {
            counter.sequence = place.sequence;
            counter.ticks = Some(place.ticks);
        }
    }

    /// Processes the sequence number that `thread` had reached according to a sequence point.
    pub(crate) fn sequence_point(
        &mut self,
        thread: u64,
        sequence: u32,
        ticks: i64,
        limits: &Limits,
    ) -> Option<Gap> {
        let counter = self.counter(thread, sequence, limits);
        counter.is_listed = true;
        let gap = sequence.wrapping_sub(counter.sequence);
        if gap == 0 || gap >= 1 << 31 {
            return None;
        }
        counter.sequence = sequence;
        counter.lost += u64::from(gap);
        let after = counter.ticks;
        self.total += u64::from(gap);
        Some(Gap { capture_thread: thread, count: gap.into(), after, before: ticks })
    }

    /// The sequence number that a thread has reached; 0 if it is not known.
    pub(crate) fn reached(&self, thread: u64) -> u32 {
        self.threads.get(&thread).map_or(0, |counter| counter.sequence)
    }

    pub(crate) fn remove(&mut self, thread: u64) {
        self.threads.remove(&thread);
    }

    /// Drops the counters of the threads that a sequence point of versions 4 and 5 does not list: they have
    /// ended. A new thread with one of their ids counts from 1.
    pub(crate) fn keep_listed(&mut self) {
        self.threads.retain(|_, counter| std::mem::take(&mut counter.is_listed));
        table_space::fit(&mut self.threads);
    }

    pub(crate) fn clear(&mut self) {
        table_space::empty(&mut self.threads);
        self.forgotten = true;
    }

    /// Losses by capture thread, for threads that are still known.
    pub(crate) fn by_thread(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.threads.iter().filter(|(_, c)| c.lost > 0).map(|(t, c)| (*t, c.lost))
    }

    /// The counter of a thread. Threads count from 1 in every session, so a new thread has lost the
    /// numbers before its first event. After counters of threads that may continue were dropped, because the
    /// stream says so or because there were too many, this does not hold: the thread then starts at `reached`.
    fn counter(&mut self, thread: u64, reached: u32, limits: &Limits) -> &mut Counter {
        // A table has twice the space of its entries.
        let most = limits.max_buffer / (2 * size_of::<(u64, Counter)>());
        if self.threads.len() >= most.min(limits.max_entries) && !self.threads.contains_key(&thread)
        {
            self.clear();
        }
        let sequence = if self.forgotten { reached } else { 0 };
        let new = Counter { sequence, ticks: None, lost: 0, is_listed: false };
        self.threads.entry(thread).or_insert(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of version 6 can end all threads, those of older versions end the threads that they do not list.
    #[test]
    fn a_small_sequence_point_after_a_large_one_has_a_small_table() {
        for end in [Losses::clear, Losses::keep_listed] {
            let (mut losses, limits) = (Losses::default(), Limits::default());
            for threads in [10_000, 1] {
                for thread in 0..threads {
                    losses.sequence_point(thread, 1, 0, &limits);
                }
                end(&mut losses);
            }
            assert!(losses.threads.capacity() < 100, "{}", losses.threads.capacity());
        }
    }
}
