//! Suspensions of managed threads. Suspensions by different threads may overlap.

use crate::lanes::Lanes;
use crate::model::{Sink, TrackEvent};
use nettrace::analysis::SuspendReason;
use std::io;
use trace_common::Timestamp;

/// Maximum number of open suspensions. There are more only if ends were lost.
const MAX_OPEN: usize = 16;

/// The suspensions of one process.
#[derive(Debug)]
pub(super) struct Suspensions {
    lanes: Lanes,
    open: Vec<Suspension>,
    /// Threads that take samples.
    samplers: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Suspension {
    thread: u64,
    begin: Timestamp,
    reason: SuspendReason,
    lane: u32,
    is_drawn: bool,
}

impl Suspensions {
    pub(super) const fn new(lanes: Lanes) -> Self {
        Self { lanes, open: Vec::new(), samplers: Vec::new() }
    }

    /// A thread begins to suspend the others.
    pub(super) fn begin(
        &mut self,
        at: Timestamp,
        thread: u64,
        reason: SuspendReason,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.end(at, thread, sink)?;
        if self.open.len() >= MAX_OPEN {
            let oldest = self.open.remove(0);
            self.close(at, oldest, sink)?;
        }
        let lane = self.lanes.acquire(sink)?;
        let mut new = Suspension { thread, begin: at, reason, lane, is_drawn: false };
        // The sampler has no reason code. Its first sample identifies it.
        if reason != SuspendReason::Other || self.samplers.contains(&thread) {
            self.draw(&mut new, sink)?;
        }
        self.open.push(new);
        Ok(())
    }

    /// The threads that `thread` suspended are resumed.
    pub(super) fn end(
        &mut self,
        at: Timestamp,
        thread: u64,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        match self.open.iter().position(|s| s.thread == thread) {
            Some(index) => {
                let suspension = self.open.remove(index);
                self.close(at, suspension, sink)
            }
            None => Ok(()),
        }
    }

    /// A thread takes a sample. Returns when it suspended the sampled thread, if that is known.
    pub(super) fn sample(
        &mut self,
        sampler: u64,
        sink: &mut impl Sink,
    ) -> io::Result<Option<Timestamp>> {
        if !self.samplers.contains(&sampler) && self.samplers.len() < MAX_OPEN {
            self.samplers.push(sampler);
        }
        let Some(index) = self.open.iter().position(|s| s.thread == sampler) else {
            return Ok(None);
        };
        let Some(mut suspension) = self.open.get(index).copied() else { return Ok(None) };
        self.draw(&mut suspension, sink)?;
        if let Some(place) = self.open.get_mut(index) {
            *place = suspension;
        }
        Ok(Some(suspension.begin))
    }

    /// Draws the begin of suspensions that are open at the end of the trace.
    pub(super) fn finish(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let mut open = std::mem::take(&mut self.open);
        open.iter_mut().try_for_each(|suspension| self.draw(suspension, sink))
    }

    fn draw(&self, suspension: &mut Suspension, sink: &mut impl Sink) -> io::Result<()> {
        if std::mem::replace(&mut suspension.is_drawn, true) {
            return Ok(());
        }
        let Some(lane) = self.lanes.lanes.get(suspension.lane as usize) else { return Ok(()) };
        let is_sampler =
            suspension.reason == SuspendReason::Other && self.samplers.contains(&suspension.thread);
        let name = if is_sampler {
            sink.text(b"suspended: sample profiler")
        } else {
            sink.text(format!("suspended: {}", suspension.reason).as_bytes())
        };
        sink.begin(suspension.begin, lane.track, &TrackEvent::new(name))
    }

    fn close(
        &mut self,
        at: Timestamp,
        mut suspension: Suspension,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.draw(&mut suspension, sink)?;
        if let Some(lane) = self.lanes.lanes.get(suspension.lane as usize) {
            sink.end(at, lane.track, &[])?;
        }
        self.lanes.release(suspension.lane);
        Ok(())
    }
}
