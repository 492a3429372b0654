//! The waits for locks that `ContentionStop` ends.

use std::collections::HashMap;
use std::time::Duration;

use crate::{Event, Timestamp};

/// What a `ContentionStop` says about its wait (version 1 of the event, .NET Core 3.0).
#[derive(Clone, Copy)]
pub(super) struct Waited {
    /// How long it lasted.
    pub(super) duration: Duration,
    /// The time at which it began, if the event was written at once.
    pub(super) start: Timestamp,
    /// Difference that is possible between this and the time of its `ContentionStart`.
    tolerance: Duration,
}

impl Waited {
    /// Of a `ContentionStop`; `None` if it does not say how long the wait was, or says that it began before the clock.
    pub(super) fn of(stop: &Event<'_>) -> Option<Self> {
        let nanos = stop.field("DurationNs")?.as_f64()?;
        let nanos = Some(nanos).filter(|nanos| nanos.is_finite() && *nanos > 0.0)? as u64;
        let duration = Duration::from_nanos(nanos);
        let start = stop.time() - duration;
        if start < Timestamp::default() {
            return None;
        }
        // The runtime measures the time between the two events, and each is written a moment later.
        let tolerance = Duration::from_nanos(1_000_000 + nanos / 100);
        Some(Self { duration, start, tolerance })
    }

    /// Whether the last `ContentionStart` of its thread is of the same wait. If not, events between the two were
    /// lost: the end of another wait and the start of this one.
    pub(super) fn is_of<T>(&self, wait: &Wait<T>) -> bool {
        // Without losses, an earlier one is right: the thread can lose its CPU between the end of the wait and its
        // event.
        let is_too_early = wait.is_lossy && self.start - wait.start > self.tolerance;
        !is_too_early && wait.start - self.start <= self.tolerance
    }
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait<T> {
    pub(super) start: Timestamp,
    /// What the tracker keeps of it.
    pub(super) of: T,
    /// The number of the last event that its thread wrote.
    sequence: u32,
    /// Whether its thread may have lost events since it began.
    is_lossy: bool,
}

/// The waits that have begun, by thread.
#[derive(Debug)]
pub(super) struct Waits<T>(HashMap<u64, Wait<T>>);

impl<T> Default for Waits<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Waits<T> {
    /// Takes each event of the stream, before it is used.
    #[inline]
    pub(super) fn pass(&mut self, event: &Event<'_>) {
        if !self.0.is_empty() {
            self.number(event);
        }
    }

    fn number(&mut self, event: &Event<'_>) {
        let header = event.header();
        // The numbers are those of the thread that writes.
        if header.thread != header.capture_thread {
            return;
        }
        if let Some(wait) = self.0.get_mut(&event.tid()) {
            // Version 3 has no numbers: always 0.
            wait.is_lossy |= header.sequence_number != wait.sequence.wrapping_add(1);
            wait.sequence = header.sequence_number;
        }
    }

    /// A `ContentionStart`.
    pub(super) fn begin(&mut self, event: &Event<'_>, of: T) {
        let header = event.header();
        // The numbers of a collector that writes for all threads (version 6) do not show what one of them lost.
        let is_lossy = header.thread != header.capture_thread;
        let wait = Wait { start: event.time(), of, sequence: header.sequence_number, is_lossy };
        self.0.insert(event.tid(), wait);
    }

    /// The wait that a `ContentionStop` may end.
    pub(super) fn end(&mut self, event: &Event<'_>) -> Option<Wait<T>> {
        self.0.remove(&event.tid())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
