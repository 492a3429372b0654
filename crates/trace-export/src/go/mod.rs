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
//!     source.event(event, &mut sink)?;
//! }
//! source.finish(&mut sink)?;
//! sink.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! What there is to see, all of it below the track of one process:
//!
//! | track | shows |
//! | --- | --- |
//! | counters | heap, heap goal, `GOMAXPROCS`, goroutines by state |
//! | GC | mark phases; below it, when and why the world was stopped |
//! | Procs | for each P, which goroutine it runs; below it, sweeping |
//! | Goroutines | by entry function: the life of each goroutine, its states inside it; below it, its regions, mark assists and logs |
//! | Runtime goroutines | the same for those that the runtime started for itself |
//! | Tasks | the tasks of `runtime/trace` by type, arrows to the regions that belong to them |
//! | threads | which P each thread runs, samples of the CPU profiler |
//!
//! An arrow goes from where a goroutine is unblocked or created to where it runs next.
//! Goroutines of one entry function share tracks: one that ends leaves its track to the next.

mod names;

use crate::intern::TextId;
use crate::lanes::{Key, Lanes, Nest};
use crate::model::{
    Arg, CpuMode, Entry, Flow, Loss, Name, Sample, Sink, Track, TrackId, Unit, Value,
};
use gotrace::{
    Event, EventKind, GoId, GoState, Metric, ProcId, ProcState, RangeName, ResourceId,
    StateTransition, TaskId, ThreadId,
};
use hashbrown::HashMap;
use names::{Fixed, Names};
use std::io;
use trace_common::{ClockDomain, Timestamp};

/// What is to be on the timeline, and how it is called.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GoOptions {
    /// The process: a Go trace does not tell. Give the real one where samples or switches from
    /// the kernel are on the same timeline.
    pub pid: i32,
    /// The name of the process.
    pub process: Vec<u8>,
    /// Whether to draw arrows from where a goroutine is unblocked or created to where it runs.
    pub wake_ups: bool,
    /// How often the numbers of goroutines by state are written, in nanoseconds.
    pub count_interval: i64,
}

impl Default for GoOptions {
    fn default() -> Self {
        Self { pid: 1, process: b"Go program".to_vec(), wake_ups: true, count_interval: 1_000_000 }
    }
}

/// What of a trace has been put on a timeline, and what has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GoStats {
    /// Events of the trace.
    pub events: u64,
    /// Goroutines.
    pub goroutines: u64,
    /// The time of the first event that is not a sync event.
    pub first: Option<Timestamp>,
    /// The time of the last event that is not a sync event.
    pub last: Option<Timestamp>,
    /// Events of experiments, which have no place on the timeline.
    pub experimental: u64,
    /// Samples of threads that the trace does not name, drawn as instants.
    pub samples_without_thread: u64,
    /// Gaps that were reported.
    pub gaps: u64,
}

/// Puts the events of a Go execution trace on a timeline: see the [module](self).
#[derive(Debug, Default)]
pub struct GoSource {
    options: GoOptions,
    stats: GoStats,
    names: Names,
    layout: Option<Layout>,
    goroutines: HashMap<GoId, Goroutine>,
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

/// Tracks that every trace has.
#[derive(Clone, Copy, Debug)]
struct Layout {
    fixed: Fixed,
    process: TrackId,
    gc: TrackId,
    stw: Option<TrackId>,
    procs: TrackId,
    goroutines: TrackId,
    runtime: Option<TrackId>,
    tasks: Option<TrackId>,
}

/// Order of the tracks of a process.
mod rank {
    pub(super) const COUNTERS: i32 = 1;
    pub(super) const GC: i32 = 20;
    pub(super) const PROCS: i32 = 21;
    pub(super) const TASKS: i32 = 22;
    pub(super) const GOROUTINES: i32 = 23;
    pub(super) const RUNTIME: i32 = 24;
}

/// Goroutines with the same entry function.
#[derive(Debug)]
struct Group {
    entry: Box<[u8]>,
    lanes: Lanes,
}

#[derive(Debug)]
struct Goroutine {
    state: GoState,
    place: Place,
    /// `G7 main.worker`.
    label: TextId,
    /// The P that it runs on.
    proc: ProcId,
    /// The arrow that ends where it runs next.
    wake_up: Option<u64>,
}

/// Where a goroutine is drawn.
#[derive(Debug)]
enum Place {
    /// On this lane of this group.
    Lane { group: u32, lane: u32 },
    /// Nowhere yet: it is older than the trace, and its entry function is not known.
    Pending(Vec<Pending>),
}

/// A state to be drawn when the entry function of the goroutine is known.
#[derive(Clone, Copy, Debug)]
struct Pending {
    at: Timestamp,
    name: TextId,
    stack: Option<crate::intern::StackId>,
    flow: Option<Flow>,
}

/// The name of the track below a goroutine's own.
const INNER: &[u8] = b"Regions, logs and assists";
/// Stands for an entry function that is not known.
const UNKNOWN: &[u8] = b"(unknown)";
/// States that are held back at most, of one goroutine.
const MAX_PENDING: usize = 16;
/// Groups of goroutines or tasks at most. A program has as many as it has `go` statements.
const MAX_GROUPS: usize = 1 << 14;

#[derive(Debug)]
struct Proc {
    track: TrackId,
    sweep_track: Option<TrackId>,
    sweep: Nest,
    /// `P 3`.
    label: TextId,
    running: GoId,
    thread: ThreadId,
}

#[derive(Debug)]
struct Thread {
    track: TrackId,
    proc: ProcId,
}

#[derive(Debug)]
struct TaskState {
    group: u32,
    lane: u32,
    flow: u64,
}

/// Numbers of goroutines by state.
#[derive(Debug, Default)]
struct Counts {
    now: [i64; Self::STATES.len()],
    written: [Option<i64>; Self::STATES.len()],
    tracks: Option<[TrackId; Self::STATES.len()]>,
    due: Option<Timestamp>,
}

impl Counts {
    const STATES: [(GoState, &'static [u8]); 4] = [
        (GoState::Running, b"Goroutines running"),
        (GoState::Runnable, b"Goroutines runnable"),
        (GoState::Waiting, b"Goroutines waiting"),
        (GoState::Syscall, b"Goroutines in syscalls"),
    ];

    fn add(&mut self, state: GoState, change: i64) {
        if let Some(i) = Self::STATES.iter().position(|(s, _)| *s == state) {
            self.now[i] += change;
        }
    }
}

impl GoSource {
    /// A source with these options.
    pub fn new(options: GoOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// What has been put on the timeline so far.
    pub const fn stats(&self) -> GoStats {
        self.stats
    }

    /// Puts the next event on the timeline.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    pub fn event(&mut self, event: Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        let at = event.time();
        self.stats.events += 1;
        if let Some(sync) = event.sync() {
            // Not at a time when anything happened.
            return sync.clock_snapshot().map_or(Ok(()), |s| clock_snapshot(&s, sink));
        }
        self.stats.first.get_or_insert(at);
        self.stats.last = Some(at);
        let mut layout = self.layout(sink)?;
        layout.fixed.refresh(sink);
        self.layout = Some(layout);

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
            EventKind::RegionBegin | EventKind::RegionEnd => self.region(event, &layout, sink)?,
            EventKind::TaskBegin | EventKind::TaskEnd => self.task(event, &layout, sink)?,
            EventKind::Log => self.log(event, &layout, sink)?,
            EventKind::Metric => self.metric(event, &layout, sink)?,
            EventKind::Label => self.label(event, &layout, sink)?,
            EventKind::StackSample => self.sample(event, &layout, sink)?,
            _ => self.stats.experimental += 1,
        }
        self.count(at, &layout, sink)
    }

    /// A part of the trace is missing here, so nothing is known of what was open: everything
    /// ends, and begins again where the trace tells of it again.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    pub fn gap(&mut self, loss: &Loss<'_>, sink: &mut impl Sink) -> io::Result<()> {
        self.stats.gaps += 1;
        let at = self.stats.last.unwrap_or_default();
        let layout = self.layout(sink)?;
        self.draw_pending(sink)?;
        // The order of a map is not one to write in.
        for id in sorted(self.goroutines.keys()) {
            self.end_goroutine(id, at, sink)?;
        }
        for id in sorted(self.procs.keys()) {
            self.stop_proc(id, at, sink)?;
        }
        for id in sorted(self.tasks.keys()) {
            self.end_task(id, at, sink)?;
        }
        self.gc.end_all(at, layout.gc, sink)?;
        if let Some(track) = layout.stw {
            self.stw.end_all(at, track, sink)?;
        }
        self.names = Names::default();
        sink.lost(at, None, loss)
    }

    /// Draws what has been held back. What is open stays open: it goes on past the end of the
    /// trace.
    ///
    /// # Errors
    ///
    /// Those of the sink.
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
            |name, rank| sink.track(&Track::custom(name).below(process).rank(rank).ordered());
        let gc = group(&b"GC"[..], rank::GC)?;
        let procs = group(b"Procs", rank::PROCS)?;
        let goroutines = group(b"Goroutines", rank::GOROUTINES)?;
        let fixed = Fixed::new(sink);
        let layout =
            Layout { fixed, process, gc, stw: None, procs, goroutines, runtime: None, tasks: None };
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

    // States of goroutines and procs.

    #[inline]
    fn transition(
        &mut self,
        event: Event<'_>,
        transition: &StateTransition<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        match transition.resource() {
            ResourceId::Goroutine(id) => self.goroutine(event, id, transition, layout, sink),
            ResourceId::Proc(id) => self.proc(event, id, transition, layout, sink),
            _ => Ok(()),
        }
    }

    fn goroutine(
        &mut self,
        event: Event<'_>,
        id: GoId,
        transition: &StateTransition<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some((from, to)) = transition.goroutine() else { return Ok(()) };
        let at = event.time();
        if to == GoState::NotExist {
            return self.end_goroutine(id, at, sink);
        }
        let wake_ups = self.options.wake_ups;
        let stack = self.names.stack(transition.stack(), event.generation(), sink);
        if from == GoState::NotExist {
            let entry = transition.stack().and_then(|stack| stack.frames().next());
            let entry = entry.map_or(UNKNOWN, |frame| &**frame.func);
            self.end_goroutine(id, at, sink)?; // one that is still there is another one
            let created = self.names.stack(event.stack(), event.generation(), sink);
            let arrow = if wake_ups {
                self.arrow(event, layout.fixed.go, created, layout, sink)?
            } else {
                None
            };
            self.begin_goroutine(id, entry, at, created, arrow, sink)?;
        } else if !self.goroutines.contains_key(&id) {
            self.meet_goroutine(id, sink);
            if let Some(frame) = transition.stack().and_then(|stack| stack.frames().last()) {
                self.place(id, frame.func, at, sink)?;
            }
        }
        let mut arrow = None;
        if from == GoState::Waiting && to == GoState::Runnable && wake_ups {
            let by = self.names.stack(event.stack(), event.generation(), sink);
            arrow = self.arrow(event, layout.fixed.unblock, by, layout, sink)?;
        }

        let Some(goroutine) = self.goroutines.get_mut(&id) else { return Ok(()) };
        // At every beginning of a generation the trace tells states that are known.
        let told_again = goroutine.state == to && transition.reason().is_empty();
        let was = std::mem::replace(&mut goroutine.state, to);
        if arrow.is_some() {
            goroutine.wake_up = arrow;
        }
        let mut flow = None;
        if to == GoState::Running {
            flow = goroutine.wake_up.take().map(Flow::Ends);
        }
        if was.executing() && !to.executing() {
            let proc = std::mem::replace(&mut goroutine.proc, ProcId::NONE);
            self.leave_proc(proc, id, at, sink)?;
        } else if to == GoState::Running && event.proc().is_some() {
            self.enter_proc(event.proc(), id, at, layout, sink)?;
        }
        if told_again {
            return Ok(());
        }
        self.counts.add(was, -1);
        self.counts.add(to, 1);
        let name = self.names.state(to, transition.reason(), &layout.fixed, sink);
        self.draw_state(id, Pending { at, name, stack, flow }, sink)
    }

    /// Begins an arrow at what made the event: the goroutine, the P or the thread.
    fn arrow(
        &mut self,
        event: Event<'_>,
        name: TextId,
        stack: Option<crate::intern::StackId>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<Option<u64>> {
        let lane = self
            .lane_of(event.goroutine())
            .map(|(group, lane)| self.groups[group as usize].lanes.lanes[lane as usize].track);
        let track = match lane {
            Some(track) => track,
            None if event.proc().is_some() => self.proc_mut(event.proc(), layout, sink)?.track,
            None => match self.thread_track(event.thread(), sink)? {
                Some(track) => track,
                None => return Ok(None),
            },
        };
        let flow = sink.new_flow();
        let entry = Entry::new(name).stack(stack).flow(Some(Flow::Through(flow)));
        sink.instant(event.time(), track, &entry)?;
        Ok(Some(flow))
    }

    /// Group and lane of a goroutine that has one.
    fn lane_of(&self, id: GoId) -> Option<(u32, u32)> {
        match self.goroutines.get(&id)?.place {
            Place::Lane { group, lane } => Some((group, lane)),
            Place::Pending(_) => None,
        }
    }

    /// A goroutine that is older than the trace, or that the trace has not told of.
    fn meet_goroutine(&mut self, id: GoId, sink: &mut impl Sink) {
        self.stats.goroutines += 1;
        let label = self.names.goroutine(id, b"", sink);
        let place = Place::Pending(Vec::new());
        self.goroutines.insert(id, Goroutine::new(place, label));
    }

    fn begin_goroutine(
        &mut self,
        id: GoId,
        entry: &[u8],
        at: Timestamp,
        created: Option<crate::intern::StackId>,
        wake_up: Option<u64>,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.stats.goroutines += 1;
        let group = self.group(entry, sink)?;
        let lanes = &mut self.groups[group as usize].lanes;
        let lane = lanes.acquire(sink)?;
        let track = lanes.lanes[lane as usize].track;
        let label = self.names.goroutine(id, entry, sink);
        sink.begin(at, track, &Entry::new(label).stack(created))?;
        let mut goroutine = Goroutine::new(Place::Lane { group, lane }, label);
        goroutine.wake_up = wake_up;
        self.goroutines.insert(id, goroutine);
        Ok(())
    }

    fn end_goroutine(&mut self, id: GoId, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        let Some(mut goroutine) = self.goroutines.remove(&id) else { return Ok(()) };
        self.counts.add(goroutine.state, -1);
        self.leave_proc(goroutine.proc, id, at, sink)?;
        if let Place::Pending(_) = goroutine.place {
            self.place_now(id, &mut goroutine, UNKNOWN, at, sink)?;
        }
        if let Place::Lane { group, lane } = goroutine.place {
            let lanes = &mut self.groups[group as usize].lanes;
            let ended = &mut lanes.lanes[lane as usize];
            ended.end_inner(at, sink)?;
            sink.end(at, ended.track, &[])?;
            lanes.release(lane);
        }
        Ok(())
    }

    /// The group of goroutines that begin in `entry`.
    fn group(&mut self, entry: &[u8], sink: &mut impl Sink) -> io::Result<u32> {
        if let Some(&group) = self.group_by_entry.get(entry) {
            return Ok(group);
        }
        let entry = match entry {
            [] => UNKNOWN,
            _ if self.groups.len() < MAX_GROUPS => entry,
            _ => b"(others)",
        };
        let own = !entry.starts_with(b"runtime.") && !entry.starts_with(b"runtime/trace.")
            || entry == b"runtime.main";
        let layout = self.layout(sink)?;
        let parent = if own {
            layout.goroutines
        } else {
            let track = Track::custom(b"Runtime goroutines").below(layout.process);
            self.group_track(|layout| &mut layout.runtime, &track.rank(rank::RUNTIME), sink)?
        };
        if let Some(&group) = self.group_by_entry.get(entry) {
            return Ok(group);
        }
        let group = self.groups.len() as u32;
        let track = Track::custom(entry).below(parent).rank(group as i32 + 1).ordered();
        let lanes = Lanes::new(sink.track(&track)?);
        self.groups.push(Group { entry: entry.into(), lanes });
        self.group_by_entry.insert(entry.into(), group);
        Ok(group)
    }

    /// If the goroutine that made the event is not drawn yet, its own stack tells where it
    /// began.
    #[inline]
    fn learn_entry(&mut self, event: Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        // Most events have no stack or come from goroutines that are drawn.
        let id = event.goroutine();
        let Some(stack) = event.stack().filter(|_| id.is_some()) else { return Ok(()) };
        match self.goroutines.get(&id) {
            Some(Goroutine { place: Place::Pending(_), .. }) => {}
            _ => return Ok(()),
        }
        match stack.frames().last() {
            Some(frame) => self.place(id, frame.func, event.time(), sink),
            None => Ok(()),
        }
    }

    fn place(
        &mut self,
        id: GoId,
        entry: &[u8],
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        if let Some(mut goroutine) = self.goroutines.remove(&id) {
            self.place_now(id, &mut goroutine, entry, at, sink)?;
            self.goroutines.insert(id, goroutine);
        }
        Ok(())
    }

    /// Draws a goroutine now that its entry function is known: from its first state on.
    fn place_now(
        &mut self,
        id: GoId,
        goroutine: &mut Goroutine,
        entry: &[u8],
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let group = self.group(entry, sink)?;
        let lanes = &mut self.groups[group as usize].lanes;
        // What it did so far lies in the past, where another lane may have been taken.
        let lane = lanes.add(sink)?;
        let track = lanes.lanes[lane as usize].track;
        let place = std::mem::replace(&mut goroutine.place, Place::Lane { group, lane });
        let Place::Pending(states) = place else { return Ok(()) };
        goroutine.label = self.names.goroutine(id, entry, sink);
        let begin = states.first().map_or(at, |state| state.at);
        sink.begin(begin, track, &Entry::new(goroutine.label))?;
        for state in states {
            draw_state(&state, track, sink)?;
        }
        Ok(())
    }

    /// Draws the goroutines whose entry functions were never learnt.
    fn draw_pending(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let at = self.stats.last.unwrap_or_default();
        let pending = self.goroutines.iter().filter(|(_, g)| matches!(g.place, Place::Pending(_)));
        for id in sorted(pending.map(|(id, _)| id)) {
            self.place(id, UNKNOWN, at, sink)?;
        }
        Ok(())
    }

    #[inline]
    fn draw_state(&mut self, id: GoId, state: Pending, sink: &mut impl Sink) -> io::Result<()> {
        let Some(goroutine) = self.goroutines.get_mut(&id) else { return Ok(()) };
        match &mut goroutine.place {
            Place::Lane { group, lane } => {
                let track = self.groups[*group as usize].lanes.lanes[*lane as usize].track;
                draw_state(&state, track, sink)
            }
            Place::Pending(states) => {
                states.push(state);
                if states.len() < MAX_PENDING {
                    return Ok(());
                }
                self.place(id, UNKNOWN, state.at, sink)
            }
        }
    }

    fn proc_mut(
        &mut self,
        id: ProcId,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<&mut Proc> {
        if !self.procs.contains_key(&id) {
            let name = format!("P {id}");
            let rank = i32::try_from(id.0).unwrap_or(i32::MAX).saturating_add(1);
            let track = Track::custom(name.as_bytes()).below(layout.procs).rank(rank);
            let proc = Proc {
                track: sink.track(&track)?,
                sweep_track: None,
                sweep: Nest::default(),
                label: sink.text(name.as_bytes()),
                running: GoId::NONE,
                thread: ThreadId::NONE,
            };
            self.procs.insert(id, proc);
        }
        // It is there now; the map does not let us say so in one step.
        self.procs.get_mut(&id).ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn enter_proc(
        &mut self,
        proc: ProcId,
        id: GoId,
        at: Timestamp,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let before = match self.goroutines.get(&id) {
            Some(goroutine) => goroutine.proc,
            None => return Ok(()),
        };
        if before == proc {
            return Ok(()); // back from a system call during which it kept its P
        }
        self.leave_proc(before, id, at, sink)?;
        let previous = self.proc_mut(proc, layout, sink)?.running;
        self.leave_proc(proc, previous, at, sink)?;
        let Some(goroutine) = self.goroutines.get_mut(&id) else { return Ok(()) };
        if !sink.holds_text(goroutine.label) {
            let entry = match goroutine.place {
                Place::Lane { group, .. } => &self.groups[group as usize].entry[..],
                Place::Pending(_) => b"",
            };
            goroutine.label = self.names.goroutine(id, entry, sink);
        }
        goroutine.proc = proc;
        let label = goroutine.label;
        let proc = self.proc_mut(proc, layout, sink)?;
        proc.running = id;
        sink.begin(at, proc.track, &Entry::new(label))
    }

    /// The goroutine does not run on the P any more, if it did.
    fn leave_proc(
        &mut self,
        proc: ProcId,
        id: GoId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        if let Some(proc) = self.procs.get_mut(&proc).filter(|p| p.running == id && id.is_some()) {
            proc.running = GoId::NONE;
            sink.end(at, proc.track, &[])?;
        }
        Ok(())
    }

    fn proc(
        &mut self,
        event: Event<'_>,
        id: ProcId,
        transition: &StateTransition<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let at = event.time();
        match transition.proc() {
            Some((_, ProcState::Running)) => {
                let thread = event.thread();
                let proc = self.proc_mut(id, layout, sink)?;
                if proc.thread == thread {
                    return Ok(()); // told again at the beginning of a generation
                }
                self.leave_thread(id, at, sink)?;
                let Some(track) = self.thread_track(thread, sink)? else { return Ok(()) };
                if let Some(other) = self.threads.get(&thread).map(|t| t.proc) {
                    self.leave_thread(other, at, sink)?;
                }
                let proc = self.proc_mut(id, layout, sink)?;
                proc.thread = thread;
                if !sink.holds_text(proc.label) {
                    proc.label = sink.text(format!("P {id}").as_bytes());
                }
                sink.begin(at, track, &Entry::new(proc.label))?;
                if let Some(thread) = self.threads.get_mut(&thread) {
                    thread.proc = id;
                }
                Ok(())
            }
            Some(_) => self.stop_proc(id, at, sink),
            None => Ok(()),
        }
    }

    /// Neither a thread nor a goroutine has the P any more.
    fn stop_proc(&mut self, id: ProcId, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        let Some(proc) = self.procs.get_mut(&id) else { return Ok(()) };
        if let Some(track) = proc.sweep_track {
            proc.sweep.end_all(at, track, sink)?;
        }
        let running = proc.running;
        self.leave_proc(id, running, at, sink)?;
        // In a system call it may go on without.
        if let Some(goroutine) = self.goroutines.get_mut(&running) {
            goroutine.proc = ProcId::NONE;
        }
        self.leave_thread(id, at, sink)
    }

    fn leave_thread(
        &mut self,
        proc: ProcId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(state) = self.procs.get_mut(&proc) else { return Ok(()) };
        let thread = std::mem::replace(&mut state.thread, ThreadId::NONE);
        match self.threads.get_mut(&thread) {
            Some(thread) if thread.proc == proc && proc.is_some() => {
                thread.proc = ProcId::NONE;
                sink.end(at, thread.track, &[])
            }
            _ => Ok(()),
        }
    }

    /// The track of a thread of the operating system.
    fn thread_track(&mut self, id: ThreadId, sink: &mut impl Sink) -> io::Result<Option<TrackId>> {
        if let Some(thread) = self.threads.get(&id) {
            return Ok(Some(thread.track));
        }
        let Ok(tid @ 1..) = i32::try_from(id.0) else { return Ok(None) };
        let track = sink.track(&Track::thread(self.options.pid, tid, b"M"))?;
        self.threads.insert(id, Thread { track, proc: ProcId::NONE });
        Ok(Some(track))
    }

    // Ranges, regions, tasks and logs.

    fn range(&mut self, event: Event<'_>, layout: &Layout, sink: &mut impl Sink) -> io::Result<()> {
        let Some(range) = event.range() else { return Ok(()) };
        let at = event.time();
        let fixed = &layout.fixed;
        let ends = event.kind() == EventKind::RangeEnd;
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let (key, name, track, nest) = match (range.name, range.scope) {
            (RangeName::GcMark, _) => (Key::Mark, fixed.mark, layout.gc, &mut self.gc),
            (RangeName::StopTheWorld(_), scope) => {
                let track = Track::custom(b"Stop the world").below(layout.gc);
                let track = self.group_track(|layout| &mut layout.stw, &track, sink)?;
                let key = Key::StopTheWorld(scope.goroutine().map_or(-1, |id| id.0));
                let name = if ends {
                    fixed.mark // not used
                } else {
                    sink.text(range.name.to_string().as_bytes())
                };
                (key, name, track, &mut self.stw)
            }
            (RangeName::GcSweep, ResourceId::Proc(id)) => {
                let proc = self.proc_mut(id, layout, sink)?;
                let track = match proc.sweep_track {
                    Some(track) => track,
                    None => {
                        let track = Track::custom(b"Sweep").below(proc.track);
                        *proc.sweep_track.insert(sink.track(&track)?)
                    }
                };
                (Key::Sweep, fixed.sweep, track, &mut proc.sweep)
            }
            (RangeName::GcMarkAssist, ResourceId::Goroutine(id)) => {
                let Some((track, nest)) = self.inner(id, at, sink)? else { return Ok(()) };
                (Key::MarkAssist, fixed.assist, track, nest)
            }
            _ => return Ok(()),
        };
        if ends {
            let mut args = [Arg { name: fixed.bytes_swept, value: Value::Uint(0) }; 2];
            let mut known = 0;
            if let (Key::Sweep, Some(attributes)) = (key, event.range_attributes()) {
                let names = [fixed.bytes_swept, fixed.bytes_reclaimed];
                for ((arg, name), attribute) in args.iter_mut().zip(names).zip(attributes) {
                    let value = attribute.value.as_u64().unwrap_or_default();
                    *arg = Arg { name, value: Value::Uint(value) };
                    known += 1;
                }
            }
            nest.end(key, at, track, &args[..known], sink)?;
            return Ok(());
        }
        if nest.is_open(key) {
            return Ok(()); // told again at the beginning of a generation
        }
        let id = match range.scope {
            ResourceId::Goroutine(id) => id.0 as u64,
            _ => 0,
        };
        let args = [Arg { name: fixed.goroutine, value: Value::Uint(id) }];
        let known = usize::from(matches!(key, Key::StopTheWorld(_)));
        let entry = Entry::new(name).stack(stack).args(&args[..known]);
        nest.begin(key, name, at, track, &entry, sink)
    }

    /// The track below a goroutine's own, and what is open there.
    fn inner(
        &mut self,
        id: GoId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<Option<(TrackId, &mut Nest)>> {
        if !id.is_some() {
            return Ok(None);
        }
        if !self.goroutines.contains_key(&id) {
            self.meet_goroutine(id, sink);
        }
        if self.lane_of(id).is_none() {
            self.place(id, UNKNOWN, at, sink)?;
        }
        let Some((group, lane)) = self.lane_of(id) else { return Ok(None) };
        let lane = &mut self.groups[group as usize].lanes.lanes[lane as usize];
        let track = lane.inner(INNER, sink)?;
        Ok(Some((track, &mut lane.nest)))
    }

    fn region(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(region) = event.region() else { return Ok(()) };
        let at = event.time();
        let name = sink.text(region.ty);
        let task = self.tasks.get(&region.task).map(|task| Flow::Through(task.flow));
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let Some((track, nest)) = self.inner(event.goroutine(), at, sink)? else { return Ok(()) };
        if event.kind() == EventKind::RegionBegin {
            let args = [Arg { name: layout.fixed.task, value: Value::Uint(region.task.0) }];
            let known = usize::from(region.task != TaskId::BACKGROUND);
            let entry = Entry::new(name).stack(stack).flow(task).args(&args[..known]);
            nest.begin(Key::Region, name, at, track, &entry, sink)
        } else if nest.end(Key::Region, at, track, &[], sink)? {
            Ok(())
        } else {
            let args = [Arg { name: layout.fixed.task, value: Value::Text(name.into()) }];
            sink.instant(at, track, &Entry::new(layout.fixed.region_end).args(&args))
        }
    }

    fn task(&mut self, event: Event<'_>, layout: &Layout, sink: &mut impl Sink) -> io::Result<()> {
        let Some(task) = event.task() else { return Ok(()) };
        let at = event.time();
        self.end_task(task.id, at, sink)?;
        if event.kind() == EventKind::TaskEnd {
            return Ok(());
        }
        let group = self.task_group(task.ty, layout, sink)?;
        let lanes = &mut self.task_lanes[group as usize];
        let lane = lanes.acquire(sink)?;
        let track = lanes.lanes[lane as usize].track;
        let flow = sink.new_flow();
        self.tasks.insert(task.id, TaskState { group, lane, flow });
        let args = [
            Arg { name: layout.fixed.task, value: Value::Uint(task.id.0) },
            Arg { name: layout.fixed.parent, value: Value::Uint(task.parent.0) },
        ];
        let known = if matches!(task.parent, TaskId::NONE | TaskId::BACKGROUND) { 1 } else { 2 };
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let name = sink.text(task.ty);
        let entry = Entry::new(name).stack(stack).args(&args[..known]);
        sink.begin(at, track, &entry.flow(Some(Flow::Through(flow))))
    }

    fn end_task(&mut self, id: TaskId, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        let Some(TaskState { group, lane, .. }) = self.tasks.remove(&id) else { return Ok(()) };
        let lanes = &mut self.task_lanes[group as usize];
        sink.end(at, lanes.lanes[lane as usize].track, &[])?;
        lanes.release(lane);
        Ok(())
    }

    fn task_group(&mut self, ty: &[u8], layout: &Layout, sink: &mut impl Sink) -> io::Result<u32> {
        if let Some(&group) = self.task_types.get(ty) {
            return Ok(group);
        }
        let ty = match ty {
            [] => b"(no type)",
            _ if self.task_lanes.len() < MAX_GROUPS => ty,
            _ => b"(others)",
        };
        let track = Track::custom(b"Tasks").below(layout.process).rank(rank::TASKS).ordered();
        let parent = self.group_track(|layout| &mut layout.tasks, &track, sink)?;
        if let Some(&group) = self.task_types.get(ty) {
            return Ok(group);
        }
        let group = self.task_lanes.len() as u32;
        let track = Track::custom(ty).below(parent).rank(group as i32 + 1).ordered();
        self.task_lanes.push(Lanes::new(sink.track(&track)?));
        self.task_types.insert(ty.into(), group);
        Ok(group)
    }

    fn log(&mut self, event: Event<'_>, layout: &Layout, sink: &mut impl Sink) -> io::Result<()> {
        let Some(log) = event.log() else { return Ok(()) };
        let at = event.time();
        let flow = self.tasks.get(&log.task).map(|task| Flow::Through(task.flow));
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let category = sink.text(log.category);
        let track = self.inner(event.goroutine(), at, sink)?.map(|(track, _)| track);
        let args = [
            Arg { name: layout.fixed.category, value: Value::Text(category.into()) },
            Arg { name: layout.fixed.task, value: Value::Uint(log.task.0) },
        ];
        let known = if log.task == TaskId::BACKGROUND { 1 } else { 2 };
        let entry = Entry::new(Name::Once(log.message)).stack(stack).flow(flow);
        sink.instant(at, track.unwrap_or(layout.process), &entry.args(&args[..known]))
    }

    fn label(&mut self, event: Event<'_>, layout: &Layout, sink: &mut impl Sink) -> io::Result<()> {
        let Some(label) = event.label() else { return Ok(()) };
        let id = label.resource.goroutine().unwrap_or(GoId::NONE);
        let track = self.inner(id, event.time(), sink)?.map(|(track, _)| track);
        let name = sink.text(label.label);
        sink.instant(event.time(), track.unwrap_or(layout.process), &Entry::new(name))
    }

    // Counters and samples.

    fn metric(
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
                let track = Track::counter(name, unit).below(layout.process).rank(rank);
                let track = sink.track(&track.described(metric.name.as_bytes()))?;
                self.metrics.push((metric.name, track));
                track
            }
        };
        sink.counter(event.time(), track, i64::try_from(value).unwrap_or(i64::MAX))
    }

    /// Writes the numbers of goroutines if it is time to.
    #[inline]
    fn count(&mut self, at: Timestamp, layout: &Layout, sink: &mut impl Sink) -> io::Result<()> {
        if self.counts.due.is_some_and(|due| at < due) {
            return Ok(());
        }
        self.counts.due = Some(at.saturating_add_nanos(self.options.count_interval.max(1)));
        let tracks = match self.counts.tracks {
            Some(tracks) => tracks,
            None => {
                let mut tracks = [layout.process; Counts::STATES.len()];
                for (i, (track, (_, name))) in tracks.iter_mut().zip(Counts::STATES).enumerate() {
                    let counter = Track::counter(name, Unit::Count).below(layout.process);
                    *track = sink.track(&counter.rank(rank::COUNTERS + 4 + i as i32))?;
                }
                *self.counts.tracks.insert(tracks)
            }
        };
        for (i, track) in tracks.into_iter().enumerate() {
            let now = self.counts.now[i];
            if self.counts.written[i] != Some(now) {
                self.counts.written[i] = Some(now);
                sink.counter(at, track, now)?;
            }
        }
        Ok(())
    }

    fn sample(
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
        // Up to Go 1.21 samples name no thread: it is shown where it belongs all the same.
        self.stats.samples_without_thread += 1;
        let track = match self.lane_of(event.goroutine()) {
            Some((group, lane)) => {
                let lane = &mut self.groups[group as usize].lanes.lanes[lane as usize];
                lane.inner(INNER, sink)?
            }
            None if event.proc().is_some() => self.proc_mut(event.proc(), layout, sink)?.track,
            None => layout.process,
        };
        sink.instant(event.time(), track, &Entry::new(layout.fixed.sample).stack(stack))
    }
}

impl Goroutine {
    const fn new(place: Place, label: TextId) -> Self {
        Self { state: GoState::Undetermined, place, label, proc: ProcId::NONE, wake_up: None }
    }
}

fn draw_state(state: &Pending, track: TrackId, sink: &mut impl Sink) -> io::Result<()> {
    let stack = state.stack.filter(|&stack| sink.holds_stack(stack));
    let entry = Entry::new(state.name).stack(stack).flow(state.flow);
    sink.state(state.at, track, Some(&entry))
}

fn sorted<'a, T: Ord + Copy + 'a>(ids: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut ids: Vec<T> = ids.copied().collect();
    ids.sort_unstable();
    ids
}

fn clock_snapshot(snapshot: &gotrace::ClockSnapshot, sink: &mut impl Sink) -> io::Result<()> {
    let mono = i64::try_from(snapshot.mono).ok().map(Timestamp::from_nanos);
    let mut readings = vec![(sink.domain(), snapshot.trace)];
    // On Linux the clock of the trace is the monotonic one, but for its coarser ticks.
    if let Some(mono) = mono.filter(|_| sink.domain() != ClockDomain::Monotonic) {
        readings.push((ClockDomain::Monotonic, mono));
    }
    if let Some(wall) = snapshot.wall() {
        readings.push((ClockDomain::Realtime, wall));
    }
    sink.clock_snapshot(&readings)
}
