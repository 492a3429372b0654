//! The waits for locks that `ContentionStop` ends.

use crate::{Event, Trace};

/// What a `ContentionStop` says about its wait (version 1 of the event, .NET Core 3.0).
#[derive(Clone, Copy)]
pub(super) struct Waited {
    /// How long it lasted.
    pub(super) nanos: u64,
    /// Ticks at which it began.
    pub(super) start: i64,
    /// Difference in ticks that is possible between this and the time of its `ContentionStart`.
    tolerance: i64,
}

impl Waited {
    /// Of a `ContentionStop`; `None` if it does not say how long the wait was.
    pub(super) fn of(stop: &Event<'_>) -> Option<Self> {
        let nanos = stop.field("DurationNs")?.as_f64()?;
        let trace = stop.trace().filter(|_| nanos.is_finite() && nanos > 0.0)?;
        let start = stop.header().timestamp.saturating_sub(ticks(trace, nanos));
        // The runtime measures the time between the two events, and each is written a moment later.
        let tolerance = ticks(trace, 1e6 + nanos / 100.0);
        Some(Self { nanos: nanos as u64, start, tolerance })
    }

    /// Whether a `ContentionStart` of its thread at this time is of the same wait. If not, events between the two
    /// were lost: the end of another wait and the start of this one.
    pub(super) fn began_at(&self, start: i64) -> bool {
        start.abs_diff(self.start) <= self.tolerance.unsigned_abs()
    }
}

fn ticks(trace: &Trace, nanos: f64) -> i64 {
    (nanos * trace.qpc_frequency as f64 / 1e9) as i64
}
