//! Counters, and samples of the CPU profiler.

use super::goroutine::INNER;
use super::{GoSource, Layout, rank};
use crate::model::{CpuMode, Sample, Sink, Track, TrackEvent, TrackId, Unit};
use gotrace::{Event, GoState, Metric};
use std::io;
use trace_common::Timestamp;

/// Numbers of goroutines by state.
#[derive(Debug, Default)]
pub(super) struct Counts {
    now: [i64; Self::STATES.len()],
    pub(super) written: [Option<i64>; Self::STATES.len()],
    pub(super) tracks: Option<[TrackId; Self::STATES.len()]>,
    pub(super) due: Option<Timestamp>,
}

impl Counts {
    const STATES: [(GoState, &'static [u8]); 4] = [
        (GoState::Running, b"Goroutines running"),
        (GoState::Runnable, b"Goroutines runnable"),
        (GoState::Waiting, b"Goroutines waiting"),
        (GoState::Syscall, b"Goroutines in syscalls"),
    ];

    pub(super) fn add(&mut self, state: GoState, change: i64) {
        if let Some(i) = Self::STATES.iter().position(|(s, _)| *s == state) {
            self.now[i] += change;
        }
    }
}

impl GoSource {
    pub(super) fn metric(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(metric) = event.metric() else { return Ok(()) };
        let Some(value) = metric.value.as_u64() else { return Ok(()) };
        let known = self.metrics.iter().find(|(name, _)| *name == metric.name);
        let track = match known {
            Some(&(_, track)) => track,
            None => {
                let (name, unit, rank): (&[u8], _, _) = match metric.name {
                    Metric::HEAP_OBJECTS => (b"Heap in use", Unit::Bytes, rank::COUNTERS),
                    Metric::HEAP_GOAL => (b"Heap goal", Unit::Bytes, rank::COUNTERS + 1),
                    Metric::GOMAXPROCS => (b"GOMAXPROCS", Unit::Count, rank::COUNTERS + 2),
                    other => (other.as_bytes(), Unit::Count, rank::COUNTERS + 3),
                };
                let track = Track::counter(name, unit).child_of(layout.process).rank(rank);
                let track = sink.track(&track.description(metric.name.as_bytes()))?;
                self.metrics.push((metric.name, track));
                track
            }
        };
        sink.counter(event.time(), track, i64::try_from(value).unwrap_or(i64::MAX).into())
    }

    /// Writes the numbers of goroutines if the interval has elapsed.
    #[inline]
    pub(super) fn count(
        &mut self,
        at: Timestamp,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        if self.counts.due.is_some_and(|due| at < due) {
            return Ok(());
        }
        self.counts.due = Some(at.saturating_add_nanos(self.options.count_interval.max(1)));
        let tracks = match self.counts.tracks {
            Some(tracks) => tracks,
            None => {
                let mut tracks = [layout.process; Counts::STATES.len()];
                for (i, (track, (_, name))) in tracks.iter_mut().zip(Counts::STATES).enumerate() {
                    let counter = Track::counter(name, Unit::Count).child_of(layout.process);
                    *track = sink.track(&counter.rank(rank::COUNTERS + 4 + i as i32))?;
                }
                *self.counts.tracks.insert(tracks)
            }
        };
        for (i, track) in tracks.into_iter().enumerate() {
            let now = self.counts.now[i];
            if self.counts.written[i] != Some(now) {
                self.counts.written[i] = Some(now);
                sink.counter(at, track, now.into())?;
            }
        }
        Ok(())
    }

    pub(super) fn sample(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        if let (Some(_), Ok(tid)) =
            (self.thread_track(event.thread(), sink)?, i32::try_from(event.thread().0))
        {
            let mut sample = Sample::new(self.options.pid, tid);
            sample.mode = CpuMode::User;
            sample.stack = stack;
            return sink.sample(event.time(), &sample);
        }
        // Up to Go 1.21 samples name no thread: they are drawn on the goroutine, P or process
        // instead.
        self.stats.samples_without_thread += 1;
        let track = match self.lane_of(event.goroutine()) {
            Some((group, lane)) => {
                let lane = &mut self.groups[group as usize].lanes.lanes[lane as usize];
                lane.inner(INNER, sink)?
            }
            None if event.proc().is_some() => self.proc_mut(event.proc(), layout, sink)?.track,
            None => layout.process,
        };
        sink.instant(event.time(), track, &TrackEvent::new(self.fixed.sample).stack(stack))
    }
}
