//! Goroutines: their groups, lanes and states.

use super::{GoSource, Layout, rank, sorted};
use crate::intern::{StackId, TextId};
use crate::lanes::{Lanes, Nest};
use crate::model::{Flow, Sink, Track, TrackEvent, TrackId};
use gotrace::{Event, GoId, GoState, ProcId, StateTransition};
use std::io;
use trace_common::Timestamp;

/// Goroutines with the same entry function.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) entry: Box<[u8]>,
    pub(super) lanes: Lanes,
}

#[derive(Debug)]
pub(super) struct Goroutine {
    pub(super) state: GoState,
    pub(super) place: Place,
    /// `G7 main.worker`, once it is interned.
    pub(super) label: Option<TextId>,
    /// The P that the goroutine runs on.
    pub(super) proc: ProcId,
    /// The arrow that ends where the goroutine runs next.
    wake_up: Option<u64>,
}

/// The location of a goroutine on the timeline.
#[derive(Debug)]
pub(super) enum Place {
    /// A lane of a group.
    Lane { group: u32, lane: u32 },
    /// None yet: the goroutine existed before the trace, and its entry function is not known.
    Pending(Vec<Pending>),
}

/// A state that is drawn once the entry function of the goroutine is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) at: Timestamp,
    pub(super) name: TextId,
    pub(super) stack: Option<StackId>,
    pub(super) flow: Option<Flow>,
}

/// The name of the track below a goroutine's track.
pub(super) const INNER: &[u8] = b"Regions, logs and assists";
/// The name of an unknown entry function.
const UNKNOWN: &[u8] = b"(unknown)";
/// Maximum number of deferred states per goroutine.
const MAX_PENDING: usize = 16;
/// Maximum number of groups of goroutines or tasks. A program has one per `go` statement.
pub(super) const MAX_GROUPS: usize = 1 << 14;

impl GoSource {
    pub(super) fn goroutine(
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
            let entry = entry.map(|frame| &**frame.func).filter(|name| !name.is_empty());
            let entry = entry.unwrap_or(UNKNOWN);
            self.end_goroutine(id, at, sink)?; // an existing one is a different goroutine
            let created = self.names.stack(event.stack(), event.generation(), sink);
            let arrow = if wake_ups {
                self.arrow(event, self.fixed.go, created, layout, sink)?
            } else {
                None
            };
            self.begin_goroutine(id, entry, at, created, arrow, sink)?;
        } else if !self.goroutines.contains(id.0) {
            self.meet_goroutine(id);
            if let Some(frame) = transition.stack().and_then(|stack| stack.frames().last()) {
                self.place(id, frame.func, at, sink)?;
            }
        }
        let mut arrow = None;
        if from == GoState::Waiting && to == GoState::Runnable && wake_ups {
            let by = self.names.stack(event.stack(), event.generation(), sink);
            arrow = self.arrow(event, self.fixed.unblock, by, layout, sink)?;
        }

        let Some(goroutine) = self.goroutines.get_mut(id.0) else { return Ok(()) };
        // At the start of every generation the trace repeats known states.
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
        let name = self.names.state(to, transition.reason(), &self.fixed, sink);
        self.draw_state(id, Pending { at, name, stack, flow }, sink)
    }

    /// Begins an arrow at the cause of the event: the goroutine, the P or the thread.
    fn arrow(
        &mut self,
        event: Event<'_>,
        name: TextId,
        stack: Option<StackId>,
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
        let entry = TrackEvent::new(name).stack(stack).flow(Some(Flow::Through(flow)));
        sink.instant(event.time(), track, &entry)?;
        Ok(Some(flow))
    }

    /// Returns the group and lane of a goroutine that has one.
    pub(super) fn lane_of(&self, id: GoId) -> Option<(u32, u32)> {
        match self.goroutines.get(id.0)?.place {
            Place::Lane { group, lane } => Some((group, lane)),
            Place::Pending(_) => None,
        }
    }

    /// Adds a goroutine that existed before the trace, or that the trace has not mentioned yet.
    fn meet_goroutine(&mut self, id: GoId) {
        self.stats.goroutines += 1;
        *self.goroutines.insert(id.0) = Goroutine::new(Place::Pending(Vec::new()));
    }

    fn begin_goroutine(
        &mut self,
        id: GoId,
        entry: &[u8],
        at: Timestamp,
        created: Option<StackId>,
        wake_up: Option<u64>,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.stats.goroutines += 1;
        let group = self.group(entry, sink)?;
        let lanes = &mut self.groups[group as usize].lanes;
        let lane = lanes.acquire(sink)?;
        let track = lanes.lanes[lane as usize].track;
        let label = self.names.goroutine(id, entry, sink);
        sink.begin(at, track, &TrackEvent::new(label).stack(created))?;
        let mut goroutine = Goroutine::new(Place::Lane { group, lane });
        goroutine.label = Some(label);
        goroutine.wake_up = wake_up;
        *self.goroutines.insert(id.0) = goroutine;
        Ok(())
    }

    pub(super) fn end_goroutine(
        &mut self,
        id: GoId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(mut goroutine) = self.goroutines.remove(id.0).map(std::mem::take) else {
            return Ok(());
        };
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

    /// Returns the group of goroutines that begin in `entry`.
    pub(super) fn group(&mut self, entry: &[u8], sink: &mut impl Sink) -> io::Result<u32> {
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
            let track = Track::custom(b"Runtime goroutines").child_of(layout.process);
            self.group_track(|layout| &mut layout.runtime, &track.rank(rank::RUNTIME), sink)?
        };
        if let Some(&group) = self.group_by_entry.get(entry) {
            return Ok(group);
        }
        let group = self.groups.len() as u32;
        let track = Track::custom(entry).child_of(parent).rank(group as i32 + 1).ordered();
        let lanes = Lanes::new(sink.track(&track)?);
        self.groups.push(Group { entry: entry.into(), lanes });
        self.group_by_entry.insert(entry.into(), group);
        Ok(group)
    }

    /// If the goroutine that emitted the event is not drawn yet, the event's stack contains its
    /// entry function.
    #[inline]
    pub(super) fn learn_entry(&mut self, event: Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        // Most events have no stack or come from goroutines that are drawn.
        let id = event.goroutine();
        let Some(stack) = event.stack().filter(|_| id.is_some()) else { return Ok(()) };
        match self.goroutines.get(id.0) {
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
        if let Some(mut goroutine) = self.goroutines.remove(id.0).map(std::mem::take) {
            self.place_now(id, &mut goroutine, entry, at, sink)?;
            *self.goroutines.insert(id.0) = goroutine;
        }
        Ok(())
    }

    /// Draws a goroutine once its entry function is known, from its first state on.
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
        // Its past states may overlap other goroutines on the existing lanes.
        let lane = lanes.add(sink)?;
        let track = lanes.lanes[lane as usize].track;
        let place = std::mem::replace(&mut goroutine.place, Place::Lane { group, lane });
        let Place::Pending(states) = place else { return Ok(()) };
        // It may have a name without the entry function.
        let label = *goroutine.label.insert(self.names.goroutine(id, entry, sink));
        let begin = states.first().map_or(at, |state| state.at);
        sink.begin(begin, track, &TrackEvent::new(label))?;
        for state in states {
            draw_state(&state, track, sink)?;
        }
        Ok(())
    }

    /// Draws the goroutines whose entry functions stayed unknown.
    pub(super) fn draw_pending(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let at = self.stats.last.unwrap_or_default();
        for id in sorted(self.goroutines.ids()) {
            if let Some(Goroutine { place: Place::Pending(_), .. }) = self.goroutines.get(id) {
                self.place(GoId(id), UNKNOWN, at, sink)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn draw_state(&mut self, id: GoId, state: Pending, sink: &mut impl Sink) -> io::Result<()> {
        let Some(goroutine) = self.goroutines.get_mut(id.0) else { return Ok(()) };
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

    /// Returns the track below a goroutine's track, and its open slices.
    pub(super) fn inner(
        &mut self,
        id: GoId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<Option<(TrackId, &mut Nest)>> {
        if !id.is_some() {
            return Ok(None);
        }
        if !self.goroutines.contains(id.0) {
            self.meet_goroutine(id);
        }
        if self.lane_of(id).is_none() {
            self.place(id, UNKNOWN, at, sink)?;
        }
        let Some((group, lane)) = self.lane_of(id) else { return Ok(None) };
        let lane = &mut self.groups[group as usize].lanes.lanes[lane as usize];
        let track = lane.inner(INNER, sink)?;
        Ok(Some((track, &mut lane.nest)))
    }
}

impl Goroutine {
    const fn new(place: Place) -> Self {
        Self { state: GoState::Undetermined, place, label: None, proc: ProcId::NONE, wake_up: None }
    }
}

/// The placeholder that removing a goroutine leaves.
impl Default for Goroutine {
    fn default() -> Self {
        Self::new(Place::Pending(Vec::new()))
    }
}

fn draw_state(state: &Pending, track: TrackId, sink: &mut impl Sink) -> io::Result<()> {
    let stack = state.stack.filter(|&stack| sink.holds_stack(stack));
    let entry = TrackEvent::new(state.name).stack(stack).flow(state.flow);
    sink.state(state.at, track, Some(&entry))
}
