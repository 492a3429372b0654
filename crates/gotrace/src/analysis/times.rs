//! The time that a goroutine spent in each state.

use super::Name;
use crate::event::RangeName;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;
use trace_common::SeededState;

/// The time that a goroutine spent in each state, in all of the trace or in a region.
///
/// [`running`](Self::running), [`runnable`](Self::runnable), [`syscall`](Self::syscall),
/// [`syscall_blocked`](Self::syscall_blocked) and the values of [`blocked`](Self::blocked) do not
/// overlap. [`ranges`](Self::ranges) overlap with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// From the first to the last appearance.
    pub total: Duration,
    /// Running on a P.
    pub running: Duration,
    /// Runnable: waiting for a P. Go: "scheduling wait".
    pub runnable: Duration,
    /// In a system call, with a P, and without one where Go counts it: see
    /// [`Summarizer`](super::Summarizer).
    pub syscall: Duration,
    /// In a system call after the scheduler has taken the P away.
    pub syscall_blocked: Duration,
    blocked: Sums<Name>,
    ranges: Sums<RangeKind>,
}

impl Times {
    /// The time blocked by reason, e.g. `chan receive`, in the order of first appearance. The
    /// reason is empty where the trace has none.
    pub fn blocked(&self) -> impl ExactSizeIterator<Item = (&Name, Duration)> {
        self.blocked.iter()
    }

    /// The time in ranges: assisting the GC, sweeping, stopping the world.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (&RangeKind, Duration)> {
        self.ranges.iter()
    }

    /// The time blocked, over all reasons.
    pub fn blocked_total(&self) -> Duration {
        self.blocked.iter().map(|(_, time)| time).sum()
    }

    /// The part of [`total`](Self::total) for which the trace has no state.
    pub fn unknown(&self) -> Duration {
        let known = self.running + self.runnable + self.syscall + self.syscall_blocked;
        self.total.saturating_sub(known + self.blocked_total())
    }

    /// Adds the times of another goroutine or region.
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.running += other.running;
        self.runnable += other.runnable;
        self.syscall += other.syscall;
        self.syscall_blocked += other.syscall_blocked;
        for (reason, time) in other.blocked() {
            self.blocked.add(reason, time);
        }
        for (range, time) in other.ranges() {
            self.ranges.add(range, time);
        }
    }

    /// Times with these values by reason and by kind of range.
    pub(super) fn with(
        mut self,
        blocked: impl Iterator<Item = (Name, Duration)>,
        ranges: impl Iterator<Item = (RangeKind, Duration)>,
    ) -> Self {
        (self.blocked, self.ranges) = (blocked.collect(), ranges.collect());
        self
    }
}

/// The kind of a range of time: an owned [`RangeName`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RangeKind {
    /// The goroutine stops the world, for this reason.
    StopTheWorld(Name),
    /// The concurrent mark phase.
    GcMark,
    /// Sweeping.
    GcSweep,
    /// Assisting the mark phase.
    GcMarkAssist,
}

impl From<RangeName<'_>> for RangeKind {
    fn from(name: RangeName<'_>) -> Self {
        match name {
            RangeName::StopTheWorld(reason) => Self::StopTheWorld(reason.into()),
            RangeName::GcMark => Self::GcMark,
            RangeName::GcSweep => Self::GcSweep,
            RangeName::GcMarkAssist => Self::GcMarkAssist,
        }
    }
}

impl fmt::Display for RangeKind {
    /// Go's text, e.g. `GC mark assist`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopTheWorld(reason) => RangeName::StopTheWorld(reason),
            Self::GcMark => RangeName::GcMark,
            Self::GcSweep => RangeName::GcSweep,
            Self::GcMarkAssist => RangeName::GcMarkAssist,
        }
        .fmt(f)
    }
}

/// Sums by key, in the order of first appearance.
#[derive(Clone)]
struct Sums<K> {
    sums: Vec<(K, Duration)>,
    /// Where the keys are, if there are many. A goroutine has few reasons to wait, so that the list
    /// is faster.
    places: Option<Box<Places<K>>>,
}

type Places<K> = HashMap<K, usize, SeededState>;

impl<K> Default for Sums<K> {
    fn default() -> Self {
        Self { sums: Vec::new(), places: None }
    }
}

impl<K> FromIterator<(K, Duration)> for Sums<K> {
    fn from_iter<I: IntoIterator<Item = (K, Duration)>>(sums: I) -> Self {
        Self { sums: sums.into_iter().collect(), places: None }
    }
}

impl<K: PartialEq> PartialEq for Sums<K> {
    fn eq(&self, other: &Self) -> bool {
        self.sums == other.sums
    }
}

impl<K: Eq> Eq for Sums<K> {}

impl<K: fmt::Debug> fmt::Debug for Sums<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sums").field(&self.sums).finish()
    }
}

impl<K: Clone + Eq + Hash> Sums<K> {
    /// The number of keys for which the list is searched.
    const FEW: usize = 16;

    fn iter(&self) -> impl ExactSizeIterator<Item = (&K, Duration)> {
        self.sums.iter().map(|(key, time)| (key, *time))
    }

    fn add(&mut self, key: &K, time: Duration) {
        let place = if self.sums.len() <= Self::FEW {
            self.sums.iter().position(|(known, _)| known == key)
        } else {
            let sums = &self.sums;
            let places = self.places.get_or_insert_with(|| {
                Box::new(sums.iter().zip(0..).map(|((key, _), at)| (key.clone(), at)).collect())
            });
            places.get(key).copied()
        };
        if let Some((_, sum)) = place.and_then(|place| self.sums.get_mut(place)) {
            *sum += time;
            return;
        }
        if let Some(places) = &mut self.places {
            places.insert(key.clone(), self.sums.len());
        }
        self.sums.push((key.clone(), time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_many_keys_are_in_order() {
        let mut sums = Sums::default();
        let keys = 0..3 * Sums::<u64>::FEW as u64;
        for round in [1, 10] {
            keys.clone().for_each(|key| sums.add(&key, Duration::from_nanos(round * key)));
        }
        let expected: Vec<_> = keys.map(|key| (key, Duration::from_nanos(11 * key))).collect();
        assert_eq!(sums.sums, expected);
        assert_eq!(sums, expected.into_iter().collect());
    }
}
