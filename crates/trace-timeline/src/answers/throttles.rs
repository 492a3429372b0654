//! Throttling by CPU quotas, forward in time.

use super::history::Throttle;
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use trace_common::Timestamp;

/// The throttling of processes. Each part of it begins and ends once, however many waits there are.
pub(super) struct Throttles {
    /// By process id.
    processes: HashMap<i64, Process>,
}

#[derive(Default)]
struct Process {
    /// Throttling that begins later, the latest first, with the position at which it was given.
    later: Vec<(usize, Throttle)>,
    /// What has begun and may explain more, by position.
    begun: BTreeMap<usize, Throttle>,
}

impl Throttles {
    pub(super) fn new(all: impl Iterator<Item = (i64, Throttle)>) -> Self {
        let mut processes: HashMap<i64, Process> = HashMap::new();
        for (position, (pid, throttle)) in all.enumerate() {
            processes.entry(pid).or_default().later.push((position, throttle));
        }
        for process in processes.values_mut() {
            process.later.sort_by_key(|(_, throttle)| Reverse(throttle.begin));
        }
        Self { processes }
    }

    /// For how many nanoseconds of a wait a thread of this process was throttled. Waits are passed in
    /// time order, and each nanosecond of throttling explains one of them.
    pub(super) fn take(&mut self, pid: i64, begin: Timestamp, end: Timestamp) -> i64 {
        self.processes.get_mut(&pid).map_or(0, |process| process.take(begin, end))
    }
}

impl Process {
    fn take(&mut self, begin: Timestamp, end: Timestamp) -> i64 {
        while let Some((position, throttle)) = self.later.last().copied() {
            if throttle.begin >= end {
                break;
            }
            self.later.pop();
            self.begun.insert(position, throttle);
        }
        // A reading is about one or more waits, and a long wait may have several readings.
        let (wait, mut nanos, mut from) = (end.nanos_since(begin), 0, 0);
        while nanos < wait {
            let Some((&position, throttle)) = self.begun.range_mut(from..).next() else { break };
            from = position + 1;
            let overlap = throttle.end.min(end).nanos_since(throttle.begin.max(begin));
            let part = throttle.nanos.min(overlap).min(wait - nanos).max(0);
            throttle.nanos -= part;
            nanos += part;
            // What may explain more either covers this wait or began within it.
            if throttle.end <= end || throttle.nanos <= 0 {
                self.begun.remove(&position);
            }
        }
        nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Waits take as much as if each of them looked at all throttling.
        #[test]
        fn each_wait_takes_what_overlaps_it(
            given in proptest::collection::vec((0..2i64, 0..100i64, 1..40i64, 1..60i64), 0..20),
            waits in proptest::collection::vec((0..2i64, 0..10i64, 1..30i64), 0..20),
        ) {
            let at = Timestamp::from_nanos;
            let throttle = |(pid, begin, length, nanos)| {
                (pid, Throttle { begin: at(begin), end: at(begin + length), nanos })
            };
            let mut all: Vec<(i64, Throttle)> = given.into_iter().map(throttle).collect();
            let mut throttles = Throttles::new(all.iter().copied());
            let mut time = 0;
            for (pid, pause, length) in waits {
                let (begin, end) = (at(time + pause), at(time + pause + length));
                let mut expected = 0;
                for (_, throttle) in all.iter_mut().filter(|(of, _)| *of == pid) {
                    let since = throttle.begin.max(begin);
                    let overlap = throttle.end.min(end).nanos_since(since).max(0);
                    let part = throttle.nanos.min(overlap).min(length - expected);
                    throttle.nanos -= part;
                    expected += part;
                }
                prop_assert_eq!(throttles.take(pid, begin, end), expected);
                time += pause + length;
            }
        }
    }
}
