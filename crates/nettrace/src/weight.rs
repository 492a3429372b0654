//! The time that a sample represents: what it says itself, or the time since the previous sample of its thread.

use std::collections::HashMap;
use std::time::Duration;

use trace_common::Timestamp;

use crate::profile::Sample;

/// The time that a sample represents, before the usual interval is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// What the sample belongs to: a number of the caller.
    pub(crate) of: u32,
    how: How,
    nanos: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It says so itself.
    Declared,
    /// The time since the previous sample of its thread.
    SinceLast,
    /// It is the first one of its thread.
    Unknown,
}

impl Taken {
    pub(crate) fn is_declared(self) -> bool {
        self.how == How::Declared
    }

    pub(crate) fn is_interval(self) -> bool {
        self.how == How::SinceLast
    }

    /// The time, where an interval usually takes this many nanoseconds. Of one that exceeds four of these, the rest is
    /// left out: the thread was new or suspended.
    pub(crate) fn weight(self, usual: u64) -> Duration {
        Duration::from_nanos(match self.how {
            How::Declared => self.nanos,
            How::SinceLast => self.nanos.min(usual.saturating_mul(4)),
            How::Unknown => usual,
        })
    }
}

/// The time of the last sample of each thread whose samples do not say what they represent.
#[derive(Debug, Default)]
pub(crate) struct LastSamples(HashMap<(u64, u64), Timestamp>);

impl LastSamples {
    /// The time that the next sample represents, as far as it is known.
    pub(crate) fn taken(&mut self, of: u32, sample: &Sample) -> Taken {
        let (how, time) = match sample.weight {
            Some(weight) => (How::Declared, weight),
            None => match self.0.insert((sample.pid, sample.tid), sample.time) {
                Some(before) => (How::SinceLast, sample.time - before),
                None => (How::Unknown, Duration::ZERO),
            },
        };
        Taken { of, how, nanos: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// The median of the intervals between samples, in nanoseconds.
pub(crate) fn usual(taken: &[Taken]) -> u64 {
    let intervals = taken.iter().filter(|taken| taken.is_interval());
    let mut intervals: Vec<u64> = intervals.map(|taken| taken.nanos).collect();
    intervals.sort_unstable();
    intervals.get(intervals.len() / 2).copied().unwrap_or_default()
}
