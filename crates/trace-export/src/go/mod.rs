//! Go execution traces on a timeline.
//!
//! ```no_run
//! use trace_export::{PerfettoSink, Sink, go::GoSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reader = gotrace::Reader::new(std::fs::File::open("trace.out")?)?;
//! let out = std::fs::File::create("trace.pftrace")?;
//! let mut sink = PerfettoSink::new(out, reader.clock_domain());
//! let mut source = GoSource::default();
//! while let Some(event) = reader.next_event()? {
//!     source.push(event, &mut sink)?;
//! }
//! source.finish(&mut sink)?;
//! sink.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! Contents of the timeline, all below the track of one process:
//!
//! | track | shows |
//! | --- | --- |
//! | counters | heap, heap goal, `GOMAXPROCS`, goroutines by state |
//! | GC | mark phases; below it, when and why the world was stopped |
//! | Procs | for each P, which goroutine it runs; below it, sweeping |
//! | Goroutines | by entry function: the life of each goroutine, its states inside it; below it, its regions, mark assists and logs |
//! | Runtime goroutines | the same for the goroutines of the runtime |
//! | Tasks | the tasks of `runtime/trace` by type, arrows to the regions that belong to them |
//! | threads | which P each thread runs, samples of the CPU profiler |
//!
//! An arrow goes from where a goroutine is unblocked or created to where it runs next. Goroutines
//! of one entry function share tracks: when a goroutine ends, the next one uses its track.

mod counter;
mod goroutine;
mod names;
mod proc;
mod range;
mod task;

use crate::lanes::{Lanes, Nest};
use crate::model::{Loss, Sink, Track, TrackId};
use counter::Counts;
use goroutine::{Goroutine, Group};
use gotrace::{Event, EventKind, GoId, ProcId, ResourceId, StateTransition, TaskId, ThreadId};
use hashbrown::HashMap;
use names::{Fixed, Names};
use proc::{Proc, Thread};
use std::io;
use task::TaskState;
use trace_common::{ClockDomain, IdMap, Timestamp};

/// Options for drawing a Go trace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GoOptions {
    /// The process identifier, 1 by default: a Go trace does not contain it. Pass the real one if
    /// samples or switches of the kernel are on the same timeline, and an [`unknown_process`] for
    /// each of several programs: tracks with the same identifier belong to the same process.
    pub pid: i32,
    /// The name of the process.
    pub process: Vec<u8>,
    /// Whether to draw arrows from where a goroutine is unblocked or created to where it runs.
    pub wake_ups: bool,
    /// The interval in nanoseconds at which the numbers of goroutines by state are written.
    pub count_interval: i64,
}

/// Returns a process identifier for Go trace `number`, counted from 1, on a timeline of several
/// programs: a Go trace does not contain its own. It is above all identifiers of Linux
/// (`PID_MAX_LIMIT`, 4194304), so no other process of the timeline has it.
pub const fn unknown_process(number: u32) -> i32 {
    const FIRST: u32 = 6 << 20;
    const LAST: u32 = i32::MAX as u32;
    let pid = FIRST.saturating_add(number);
    (if pid < LAST { pid } else { LAST }) as i32
}

impl Default for GoOptions {
    fn default() -> Self {
        Self { pid: 1, process: b"Go program".to_vec(), wake_ups: true, count_interval: 1_000_000 }
    }
}

/// Numbers of events that were drawn and that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GoStats {
    /// Events in the trace.
    pub events: u64,
    /// Goroutines.
    pub goroutines: u64,
    /// The time of the first event that is not a sync event.
    pub first: Option<Timestamp>,
    /// The time of the last event that is not a sync event.
    pub last: Option<Timestamp>,
    /// Events of experiments, which cannot be drawn.
    pub experimental: u64,
    /// Samples of threads that the trace does not name, drawn as instants.
    pub samples_without_thread: u64,
    /// Gaps that were reported.
    pub gaps: u64,
}

/// Draws the events of a Go execution trace on a timeline: see the [module](self).
#[derive(Debug, Default)]
pub struct GoSource {
    options: GoOptions,
    stats: GoStats,
    names: Names,
    fixed: Fixed,
    layout: Option<Layout>,
    goroutines: IdMap<Goroutine>,
    groups: Vec<Group>,
    group_by_entry: HashMap<Box<[u8]>, u32>,
    procs: HashMap<ProcId, Proc>,
    threads: HashMap<ThreadId, Thread>,
    tasks: HashMap<TaskId, TaskState>,
    task_types: HashMap<Box<[u8]>, u32>,
    task_lanes: Vec<Lanes>,
    gc: Nest,
    stw: Nest,
    metrics: Vec<(&'static str, TrackId)>,
    counts: Counts,
}

/// Tracks of every trace. Copied for each event, so it stays small.
#[derive(Clone, Copy, Debug)]
struct Layout {
    process: TrackId,
    gc: TrackId,
    stw: Option<TrackId>,
    procs: TrackId,
    goroutines: TrackId,
    runtime: Option<TrackId>,
    tasks: Option<TrackId>,
}

/// Rank of the tracks of a process.
mod rank {
    pub(super) const COUNTERS: i32 = 1;
    pub(super) const GC: i32 = 20;
    pub(super) const PROCS: i32 = 21;
    pub(super) const TASKS: i32 = 22;
    pub(super) const GOROUTINES: i32 = 23;
    pub(super) const RUNTIME: i32 = 24;
}

impl GoSource {
    /// Makes a source with these options.
    pub fn new(options: GoOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns the numbers of drawn events so far.
    pub const fn stats(&self) -> GoStats {
        self.stats
    }

    /// Draws the next event.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn push(&mut self, event: Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        let at = event.time();
        self.stats.events += 1;
        if let Some(sync) = event.sync() {
            // Its time is not the time of an actual event.
            return sync.clock_snapshot().map_or(Ok(()), |s| clock_snapshot(&s, sink));
        }
        self.stats.first.get_or_insert(at);
        self.stats.last = Some(at);
        let layout = self.layout(sink)?;
        self.fixed.refresh(sink);

        self.learn_entry(event, sink)?;
        match event.kind() {
            EventKind::StateTransition => {
                if let Some(transition) = event.state_transition() {
                    self.transition(event, &transition, &layout, sink)?;
                }
            }
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event, &layout, sink)?;
            }
            EventKind::RegionBegin | EventKind::RegionEnd => self.region(event, sink)?,
            EventKind::TaskBegin | EventKind::TaskEnd => self.task(event, &layout, sink)?,
            EventKind::Log => self.log(event, &layout, sink)?,
            EventKind::Metric => self.metric(event, &layout, sink)?,
            EventKind::Label => self.label(event, &layout, sink)?,
            EventKind::StackSample => self.sample(event, &layout, sink)?,
            _ => self.stats.experimental += 1,
        }
        self.count(at, &layout, sink)
    }

    /// Reports that a part of the trace is missing here, so the open slices and states are unknown.
    /// They all end here, and begin again where the trace mentions them again.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn loss(&mut self, loss: &Loss<'_>, sink: &mut impl Sink) -> io::Result<()> {
        self.stats.gaps += 1;
        let at = self.stats.last.unwrap_or_default();
        let layout = self.layout(sink)?;
        self.draw_pending(sink)?;
        // The order of a map is not deterministic.
        for id in sorted(self.goroutines.ids()) {
            self.end_goroutine(GoId(id), at, sink)?;
        }
        for id in sorted(self.procs.keys().copied()) {
            self.stop_proc(id, at, sink)?;
        }
        for id in sorted(self.tasks.keys().copied()) {
            self.end_task(id, at, sink)?;
        }
        self.gc.end_all(at, layout.gc, sink)?;
        if let Some(track) = layout.stw {
            self.stw.end_all(at, track, sink)?;
        }
        self.names = Names::default();
        sink.lost(at, None, loss)
    }

    /// Draws the deferred events. Open slices and states stay open: they continue past the end of
    /// the trace.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn finish(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        self.draw_pending(sink)?;
        if let (Some(at), Some(layout)) = (self.stats.last, self.layout) {
            self.counts.due = None;
            self.count(at, &layout, sink)?;
        }
        Ok(())
    }

    fn layout(&mut self, sink: &mut impl Sink) -> io::Result<Layout> {
        if let Some(layout) = self.layout {
            return Ok(layout);
        }
        let GoOptions { pid, process, .. } = &self.options;
        let process = sink.track(&Track::process(*pid, process).ordered())?;
        let mut group =
            |name, rank| sink.track(&Track::custom(name).child_of(process).rank(rank).ordered());
        let gc = group(&b"GC"[..], rank::GC)?;
        let procs = group(b"Procs", rank::PROCS)?;
        let goroutines = group(b"Goroutines", rank::GOROUTINES)?;
        self.fixed = Fixed::new(sink);
        let layout =
            Layout { process, gc, stw: None, procs, goroutines, runtime: None, tasks: None };
        self.layout = Some(layout);
        Ok(layout)
    }

    /// The tracks of [`Layout`] that only some traces have.
    fn group_track(
        &mut self,
        which: fn(&mut Layout) -> &mut Option<TrackId>,
        track: &Track<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<TrackId> {
        let mut layout = self.layout(sink)?;
        if let Some(track) = *which(&mut layout) {
            return Ok(track);
        }
        let track = sink.track(track)?;
        *which(&mut layout) = Some(track);
        self.layout = Some(layout);
        Ok(track)
    }

    #[inline]
    fn transition(
        &mut self,
        event: Event<'_>,
        transition: &StateTransition<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        match transition.resource() {
            // A damaged trace may lack the goroutine or proc.
            ResourceId::Goroutine(id) if id.is_some() => {
                self.goroutine(event, id, transition, layout, sink)
            }
            ResourceId::Proc(id) if id.is_some() => self.proc(event, id, transition, layout, sink),
            _ => Ok(()),
        }
    }
}

fn sorted<T: Ord>(ids: impl Iterator<Item = T>) -> Vec<T> {
    let mut ids: Vec<T> = ids.collect();
    ids.sort_unstable();
    ids
}

fn clock_snapshot(snapshot: &gotrace::ClockSnapshot, sink: &mut impl Sink) -> io::Result<()> {
    let mono = i64::try_from(snapshot.mono).ok().map(Timestamp::from_nanos);
    let mut readings = vec![(sink.domain(), snapshot.trace)];
    // On Linux the clock of the trace is the monotonic one with coarser ticks.
    if let Some(mono) = mono.filter(|_| sink.domain() != ClockDomain::Monotonic) {
        readings.push((ClockDomain::Monotonic, mono));
    }
    if let Some(wall) = snapshot.wall() {
        readings.push((ClockDomain::Realtime, wall));
    }
    sink.clock_snapshot(&readings)
}
