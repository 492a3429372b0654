//! Traces with several clocks on one timeline.

use crate::failure::{Failure, Result};
use std::io;
use trace_common::ClockMap;
use trace_export::{
    ClockDomain, CounterValue, DebugAnnotation, Frame, Loss, Sample, SchedSwitch, SchedWaking,
    Sink, StackId, TextId, Timestamp, Track, TrackEvent, TrackId,
};

/// The relation of the clock of a trace to the timeline's.
#[derive(Clone, Copy)]
pub(crate) enum Clock<'a> {
    /// The trace is alone on the timeline, which takes its clock.
    Adopt,
    /// The trace is on this clock or, if it is `None`, on the one that the trace names.
    Related(&'a ClockMap, Option<ClockDomain>),
    /// The trace is drawn together with kernel events, and must be on the timeline's clock.
    Kernel,
}

impl Clock<'_> {
    /// The offset to add to the times of a trace on this `clock`, in nanoseconds.
    pub(crate) fn offset(
        self,
        name: &str,
        clock: ClockDomain,
        timeline: ClockDomain,
    ) -> Result<i64> {
        let none = ClockMap::new();
        let (map, from, remedy) = match self {
            Self::Adopt => return Ok(0),
            Self::Kernel => (&none, clock, "build the program with Go 1.22 or later"),
            Self::Related(map, given) => {
                let remedy = "convert this trace alone, or pass --offset FILE=SECONDS";
                (map, given.unwrap_or(clock), remedy)
            }
        };
        map.convert(Timestamp::default(), from, timeline).map(Timestamp::nanos).map_err(|_| {
            let why = format!(
                "its clock cannot be related to {timeline}, as that of Go 1.21 and older: {remedy}"
            );
            Failure::about(name, why)
        })
    }
}

/// A sink that moves times to the clock of another sink.
pub(crate) struct Moved<'a, S> {
    pub(crate) sink: &'a mut S,
    /// In nanoseconds.
    pub(crate) offset: i64,
}

impl<S> Moved<'_, S> {
    const fn at(&self, at: Timestamp) -> Timestamp {
        at.saturating_add_nanos(self.offset)
    }
}

impl<S: Sink> Sink for Moved<'_, S> {
    fn domain(&self) -> ClockDomain {
        self.sink.domain()
    }

    fn clock_snapshot(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()> {
        // The clock snapshots of the trace do not hold for the timeline's clock.
        if self.offset == 0 { self.sink.clock_snapshot(readings) } else { Ok(()) }
    }

    fn track(&mut self, track: &Track<'_>) -> io::Result<TrackId> {
        self.sink.track(track)
    }

    fn text(&mut self, text: &[u8]) -> TextId {
        self.sink.text(text)
    }

    fn unique_text(&mut self, text: &[u8]) -> TextId {
        self.sink.unique_text(text)
    }

    fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId {
        self.sink.stack(frames)
    }

    fn holds_text(&self, id: TextId) -> bool {
        self.sink.holds_text(id)
    }

    fn holds_stack(&self, id: StackId) -> bool {
        self.sink.holds_stack(id)
    }

    fn new_flow(&mut self) -> u64 {
        self.sink.new_flow()
    }

    fn state(
        &mut self,
        at: Timestamp,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()> {
        self.sink.state(self.at(at), track, entry)
    }

    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.sink.begin(self.at(at), track, entry)
    }

    fn end(
        &mut self,
        at: Timestamp,
        track: TrackId,
        args: &[DebugAnnotation<'_>],
    ) -> io::Result<()> {
        self.sink.end(self.at(at), track, args)
    }

    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        self.sink.instant(self.at(at), track, entry)
    }

    fn counter(&mut self, at: Timestamp, track: TrackId, value: CounterValue) -> io::Result<()> {
        self.sink.counter(self.at(at), track, value)
    }

    fn sample(&mut self, at: Timestamp, sample: &Sample) -> io::Result<()> {
        self.sink.sample(self.at(at), sample)
    }

    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()> {
        self.sink.sched_switch(self.at(at), switch)
    }

    fn sched_waking(&mut self, at: Timestamp, waking: &SchedWaking<'_>) -> io::Result<()> {
        self.sink.sched_waking(self.at(at), waking)
    }

    fn lost(&mut self, at: Timestamp, track: Option<TrackId>, loss: &Loss<'_>) -> io::Result<()> {
        self.sink.lost(self.at(at), track, loss)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.sink.finish()
    }
}
