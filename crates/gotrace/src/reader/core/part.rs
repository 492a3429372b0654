//! Readers of one generation, and of the rest of a trace.

use super::{After, Core, Gaps, Phase};
use crate::error::Error;
use crate::order::Ordering;
use crate::source::Source;
use crate::version::Version;
use std::io::Read;
use trace_common::Limits;

/// The state of a reader between two generations.
#[derive(Debug)]
pub(crate) struct Between {
    pub(crate) order: Ordering,
    /// The time of the last event.
    pub(crate) last_time: i64,
    /// The number of sync events.
    syncs: u64,
    gaps: Gaps,
    /// The last generation.
    generation: u64,
    nanos_per_tick: f64,
}

impl Between {
    /// The state after `part`, which follows this one and ends at `last_time`.
    pub(crate) fn join(self, part: Self, last_time: i64) -> Self {
        let mut gaps = self.gaps;
        gaps.begin(part.generation);
        Self { order: self.order.join(part.order), last_time, gaps, ..part }
    }
}

impl<R: Read> Core<R> {
    /// Reads a generation at `offset`, which `number` precede. The input ends with it. `buffer` is
    /// memory to use.
    pub(crate) fn part(
        input: R,
        version: Version,
        limits: Limits,
        offset: u64,
        number: usize,
        buffer: Vec<u8>,
    ) -> Self {
        let mut core = Self::of(Source::at(offset, input, limits.max_buffer), version, limits);
        core.source.reuse(buffer);
        core.syncs = number as u64;
        if number > 0 {
            core.order = Ordering::assuming(&limits);
        }
        core
    }

    /// Reads the rest of a trace, which begins with a generation at `offset`.
    pub(crate) fn rest(
        input: R,
        version: Version,
        limits: Limits,
        offset: u64,
        between: Between,
    ) -> Self {
        let mut core = Self::of(Source::at(offset, input, limits.max_buffer), version, limits);
        let Between { order, last_time, syncs, gaps, generation, nanos_per_tick } = between;
        (core.order, core.last_time, core.syncs, core.gaps) = (order, last_time, syncs, gaps);
        (core.current.number, core.current.nanos_per_tick) = (generation, nanos_per_tick);
        core
    }

    /// The trace ends here.
    pub(crate) fn end(&mut self) {
        self.current.after = After::End;
    }

    /// The state after a generation, with the time of its last event and the number of sync events
    /// so far. (A part ends with one that the trace does not have.) Also returns the memory of the
    /// window.
    pub(crate) fn into_between(mut self, last_time: i64, syncs: u64) -> (Between, Vec<u8>) {
        self.leave_table();
        let between = Between {
            order: self.order,
            last_time,
            syncs,
            gaps: self.gaps,
            generation: self.current.number,
            nanos_per_tick: self.current.nanos_per_tick,
        };
        (between, self.source.into_buffer())
    }

    /// Whether the last event was the last one of the trace.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// The number of sync events so far.
    pub(crate) const fn syncs(&self) -> u64 {
        self.syncs
    }

    /// Whether the last event of the current generation was returned.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.phase, Phase::Load)
            && self.frontier.head_time().is_none()
            && self.current.samples.is_empty()
            && self.order.is_settled()
    }

    /// Returns this error, which has just been returned, once more.
    pub(crate) fn repeat(&mut self, error: Error) {
        if let Phase::Failed(failure) = &mut self.phase {
            failure.unreported = Some(error);
        }
    }
}
