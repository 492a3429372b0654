//! The methods of [`Sink`].

use super::PerfettoSink;
use super::field::event;
use crate::intern::{Frame, StackId, TextId};
use crate::model::{
    Category, CounterValue, DebugAnnotation, Loss, Name, Sample, SchedSwitch, SchedWaking, Sink,
    Track, TrackEvent, TrackId, Value,
};
use crate::process::Process;
use std::io::{self, Write};
use trace_common::{ClockDomain, Timestamp};

impl<W: Write> Sink for PerfettoSink<W> {
    fn clock_domain(&self) -> ClockDomain {
        self.domain
    }

    fn clock_snapshot(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()> {
        self.write_clocks(readings)
    }

    fn track(&mut self, new: &Track<'_>) -> io::Result<TrackId> {
        self.add_track(new)
    }

    fn process(&mut self, new: &Process<'_>) -> io::Result<()> {
        self.write_process(new)
    }

    fn text(&mut self, text: &[u8]) -> TextId {
        self.names.text(text)
    }

    fn unique_text(&mut self, text: &[u8]) -> TextId {
        self.names.unique_text(text)
    }

    fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId {
        self.names.stack(frames)
    }

    #[inline]
    fn holds_text(&self, id: TextId) -> bool {
        self.names.holds_text(id)
    }

    #[inline]
    fn holds_stack(&self, id: StackId) -> bool {
        self.names.holds_stack(id)
    }

    fn state(
        &mut self,
        at: Timestamp,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()> {
        let state = self.track_state(track)?;
        let track = state.uuid;
        let was_in_state = std::mem::replace(&mut state.in_state, entry.is_some());
        if !was_in_state && entry.is_none() {
            return Ok(());
        }
        let at = self.prepare_at(at)?;
        let Some(entry) = entry else {
            self.bare_event(at, track, event::SLICE_END);
            return Ok(());
        };
        self.stats.slices += 1;
        if was_in_state {
            self.next_state(at, track, entry);
        } else {
            self.track_event(at, track, event::SLICE_BEGIN, entry);
        }
        Ok(())
    }

    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        let state = self.track_state(track)?;
        state.depth += 1;
        let track = state.uuid;
        self.stats.slices += 1;
        let at = self.prepare_at(at)?;
        self.track_event(at, track, event::SLICE_BEGIN, entry);
        Ok(())
    }

    fn new_flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    fn end(
        &mut self,
        at: Timestamp,
        track: TrackId,
        args: &[DebugAnnotation<'_>],
    ) -> io::Result<()> {
        self.state(at, track, None)?;
        let state = self.track_state(track)?;
        if state.depth == 0 {
            self.stats.unmatched_ends += 1;
            return Ok(());
        }
        state.depth -= 1;
        let track = state.uuid;
        let at = self.prepare_at(at)?;
        if args.is_empty() {
            self.bare_event(at, track, event::SLICE_END);
            return Ok(());
        }
        self.end_event(at, track, args);
        Ok(())
    }

    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()> {
        let track = self.track_state(track)?.uuid;
        self.stats.instants += 1;
        let at = self.prepare_at(at)?;
        self.track_event(at, track, event::INSTANT, entry);
        Ok(())
    }

    fn counter(&mut self, at: Timestamp, track: TrackId, value: CounterValue) -> io::Result<()> {
        if !value.is_finite() {
            self.stats.values_omitted += 1;
            return Ok(());
        }
        let track = self.track_state(track)?.uuid;
        self.stats.counters += 1;
        let at = self.prepare_at(at)?;
        self.counter_event(at, track, value);
        Ok(())
    }

    fn sample(&mut self, at: Timestamp, taken: &Sample) -> io::Result<()> {
        self.stats.samples += 1;
        let at = self.prepare_at(at)?;
        self.write_sample(at, taken);
        Ok(())
    }

    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()> {
        let (at, bundle) = self.bundle(at, switch.cpu)?;
        bundle.switch(at, switch);
        if bundle.is_full() {
            self.write_bundle(switch.cpu as usize)?;
        }
        Ok(())
    }

    fn sched_waking(&mut self, at: Timestamp, waking: &SchedWaking<'_>) -> io::Result<()> {
        let (at, bundle) = self.bundle(at, waking.cpu)?;
        bundle.waking(at, waking);
        if bundle.is_full() {
            self.write_bundle(waking.cpu as usize)?;
        }
        Ok(())
    }

    #[expect(clippy::indexing_slicing, reason = "two or three of three")]
    fn lost(&mut self, at: Timestamp, on: Option<TrackId>, loss: &Loss<'_>) -> io::Result<()> {
        self.stats.losses += 1;
        let on = match on.or(self.losses) {
            Some(track) => track,
            None => {
                let track = Track::custom(b"Losses").description(b"What is not on this timeline");
                let track = self.track(&track)?;
                *self.losses.insert(track)
            }
        };
        let (what, count, why) = (self.text(b"what"), self.text(b"count"), self.text(b"why"));
        let args = [
            DebugAnnotation { name: what, value: Value::Text(Name::Inline(loss.what)) },
            DebugAnnotation { name: why, value: Value::Text(Name::Inline(loss.why)) },
            DebugAnnotation { name: count, value: Value::Uint(loss.count.unwrap_or_default()) },
        ];
        let known = if loss.count.is_some() { 3 } else { 2 };
        let name = [&b"lost: "[..], loss.what].concat();
        let entry = TrackEvent::new(&name[..]).category(Category::Loss).args(&args[..known]);
        self.instant(at, on, &entry)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.writer.flush()
    }
}
