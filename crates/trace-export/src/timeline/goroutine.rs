//! Goroutines: their groups, lanes and states.

use super::names::Shown;
use super::process::rank;
use super::{Context, Drawing};
use crate::intern::{StackId, TextId};
use crate::lanes::{Lanes, Nest};
use crate::model::{
    Category, DebugAnnotation, Flow, Name, Sink, Track, TrackEvent, TrackId, Unit, Value,
};
use hashbrown::HashMap;
use std::io;
use trace_common::{IdMap, Timestamp};
use trace_timeline::{
    EntityId, EntityKind, FlowKind, Interval, Kernel, Occupant, ResolvedFlow, SpanId, State, Tables,
};

#[derive(Debug, Default)]
pub(super) struct Goroutines {
    groups: Vec<Group>,
    group_by_entry: HashMap<(Option<EntityId>, trace_timeline::TextId), u32>,
    /// By the position of their entities.
    all: IdMap<Goroutine>,
    /// Numbers of arrows that have ended: small numbers are short. All arrows of a stream are drawn
    /// in the order of their begins, so the next one begins after the end.
    free_flows: Vec<u64>,
}

/// Goroutines of a process with the same entry function.
#[derive(Debug)]
struct Group {
    lanes: Lanes,
    /// The counter of goroutines without a lane, and their number.
    hidden: Option<(TrackId, i64)>,
}

#[derive(Debug, Default)]
struct Goroutine {
    place: Place,
    process: u32,
    state: State,
    drawn: Drawn,
    /// Its name, and `G7 main.worker` with it, once that is interned.
    label: Option<(trace_timeline::TextId, TextId)>,
    /// The thread that executes it.
    thread: Option<EntityId>,
    /// The thread on whose track it is.
    shown_on: Option<EntityId>,
    /// The arrow that ends where it runs next.
    wake_up: Option<u64>,
    nest: Nest<SpanId>,
}

/// What is drawn of a state: the model also says who executes it.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    shown: Option<Shown>,
    reason: trace_timeline::TextId,
    stack: Option<trace_timeline::StackId>,
    /// The P and the thread, if they are arguments.
    proc: Option<EntityId>,
    thread: Option<EntityId>,
    /// Who has the CPU.
    occupant: Option<EntityId>,
}

impl Goroutine {
    /// The arrow that ends where it runs.
    fn flow_to(&mut self, shown: Shown) -> Option<Flow> {
        match shown {
            Shown::Running => self.wake_up.take().map(Flow::Ends),
            _ => None,
        }
    }
}

impl Goroutines {
    /// The number of an arrow whose end is drawn belongs to the next one.
    #[inline]
    fn free_flow(&mut self, flow: Option<Flow>) {
        if let Some(Flow::Ends(number)) = flow {
            self.free_flows.push(number);
        }
    }
}

impl Drawn {
    /// Takes a state over; returns whether it looks different.
    #[inline]
    fn update(&mut self, shown: Shown, state: &Interval, has_kernel: bool) -> bool {
        let (proc, thread) = if has_kernel { (state.proc, state.thread) } else { (None, None) };
        let occupant = preempted_by(state.kernel);
        if self.shown == Some(shown)
            && (self.reason, self.stack) == (state.reason, state.stack)
            && (self.proc, self.thread, self.occupant) == (proc, thread, occupant)
        {
            return false;
        }
        // Field by field: the processor waits where it copies what it has just written in parts.
        self.shown = Some(shown);
        self.reason = state.reason;
        self.stack = state.stack;
        self.proc = proc;
        self.thread = thread;
        self.occupant = occupant;
        true
    }
}

/// The location of a goroutine on the timeline.
#[derive(Debug)]
enum Place {
    Lane {
        group: u32,
        lane: u32,
        track: TrackId,
    },
    /// Above the limit of lanes.
    Hidden {
        group: u32,
    },
    /// None yet: it existed before the trace, and its entry function is not known.
    Pending(Vec<Pending>),
}

/// A state that is drawn once the entry function of the goroutine is known.
#[derive(Clone, Copy, Debug)]
struct Pending {
    at: Timestamp,
    /// Until it is drawn, the sink can evict the name that these make, and the stack.
    shown: Shown,
    reason: trace_timeline::TextId,
    stack: Option<trace_timeline::StackId>,
    flow: Option<Flow>,
}

impl Default for Place {
    fn default() -> Self {
        Self::Pending(Vec::new())
    }
}

/// The name of the track below a goroutine's track.
const INNER: &[u8] = b"Regions, logs and assists";
/// The description of the counter of goroutines without a lane.
const WITHOUT_LANE: &[u8] =
    b"Goroutines of this function that started when all lanes of the group \
    were in use. They are counted here and drawn on the Ps and threads that execute them.";
/// The name of an unknown entry function.
const UNKNOWN: &[u8] = b"(unknown)";
/// Maximum number of deferred states per goroutine.
const MAX_PENDING: usize = 16;
/// Maximum number of groups. A program has one per `go` statement.
const MAX_GROUPS: usize = 1 << 14;

const fn key(id: EntityId) -> i64 {
    id.index() as i64
}

impl Drawing {
    /// Draws a state of a goroutine.
    pub(super) fn goroutine_state(
        &mut self,
        state: &Interval,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let (id, at) = (state.subject, cx.at);
        let is_executing = matches!(state.state, State::Running | State::Syscall);
        let thread = state.thread.filter(|_| is_executing);
        // Without the scheduler, the tracks of Ps and threads say where it executes.
        let has_kernel = thread.is_some() && state.kernel != Kernel::Unknown;
        let shown = Shown::of(state);
        let goroutine = match self.goroutines.all.get_mut(key(id)) {
            Some(known) => known,
            None => {
                self.meet(id, None, cx)?;
                let Some(new) = self.goroutines.all.get_mut(key(id)) else { return Ok(()) };
                new
            }
        };
        let before = std::mem::replace(&mut goroutine.state, state.state);
        let is_new = goroutine.drawn.update(shown, state, has_kernel);
        goroutine.thread = thread;
        let shown_on = thread.filter(|_| has_kernel || state.proc.is_none());
        let is_moved = shown_on != goroutine.shown_on;
        let process = goroutine.process;
        match goroutine.place {
            Place::Hidden { .. } => {}
            Place::Lane { track, .. } if is_new && !has_kernel => {
                let flow = goroutine.flow_to(shown);
                let name = Name::Text(self.names.state(shown, state.reason, cx));
                let stack = self.names.stack(state.stack, cx);
                let entry =
                    TrackEvent { name, category: Some(shown.category()), stack, flow, args: &[] };
                cx.sink.state(at, track, Some(&entry))?;
                self.goroutines.free_flow(flow);
            }
            _ if is_new => self.draw_goroutine_state(shown, state, has_kernel, cx)?,
            _ => {}
        }
        if before != state.state {
            if let Some(process) = self.processes.get_mut(process) {
                process.counts.change(before, state.state, process.track, cx)?;
            }
        }
        if is_moved {
            self.show_on(id, shown_on, cx)?;
        }
        Ok(())
    }

    fn draw_goroutine_state(
        &mut self,
        shown: Shown,
        state: &Interval,
        has_kernel: bool,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let tables = cx.tables;
        let (id, at) = (state.subject, cx.at);
        let name = self.names.state(shown, state.reason, cx);
        let stack = self.names.stack(state.stack, cx);
        let on = has_kernel.then(|| {
            let on = self.names.fixed("on", cx.sink);
            let place = self.names.place(state.proc, state.thread, cx);
            DebugAnnotation::new(on, Value::Text(Name::Text(place)))
        });
        let by = preempted_by(state.kernel).map(|by| self.relation("by", by, cx));
        let Some(goroutine) = self.goroutines.all.get_mut(key(id)) else { return Ok(()) };
        let flow = goroutine.flow_to(shown);
        match &mut goroutine.place {
            Place::Lane { track, .. } => {
                // In one piece: the processor waits where it copies what it has just written.
                let (name, category) = (Name::Text(name), Some(shown.category()));
                let mut state = |args: &[_]| {
                    let entry = TrackEvent { name, category, stack, flow, args };
                    cx.sink.state(at, *track, Some(&entry))
                };
                match (on, by) {
                    (Some(on), Some(by)) => state(&[on, by]),
                    (Some(on), None) => state(&[on]),
                    _ => state(&[]),
                }?;
                self.goroutines.free_flow(flow);
                Ok(())
            }
            Place::Hidden { .. } => Ok(()),
            Place::Pending(states) => {
                let (reason, stack) = (state.reason, state.stack);
                states.push(Pending { at, shown, reason, stack, flow });
                let is_full = states.len() >= MAX_PENDING;
                let name = tables.entities.get(id).map(|entity| entity.name);
                if is_full || name.is_some_and(|name| !name.is_empty()) {
                    self.place(id, cx)?;
                }
                Ok(())
            }
        }
    }

    /// A goroutine is on the track of this thread from now on.
    fn show_on(
        &mut self,
        id: EntityId,
        shown: Option<EntityId>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Some(goroutine) = self.goroutines.all.get_mut(key(id)) else { return Ok(()) };
        if let Some(before) = std::mem::replace(&mut goroutine.shown_on, shown) {
            self.leave_thread(before, id, cx)?;
        }
        match shown {
            Some(thread) => self.enter_thread(thread, id, cx),
            None => Ok(()),
        }
    }

    /// Adds a goroutine that was not drawn before. Without its entry function it has no lane yet,
    /// unless it was created in the trace.
    fn meet(
        &mut self,
        id: EntityId,
        created: Option<StackId>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let tables = cx.tables;
        let entity = tables.entities.get(id);
        let process = self.process(entity.and_then(|entity| entity.parent), cx)?;
        let goroutine = self.goroutines.all.insert(key(id));
        *goroutine = Goroutine { process, ..Goroutine::default() };
        if entity.is_some_and(|entity| !entity.name.is_empty() || entity.start.is_some()) {
            self.begin_lane(id, created, None, cx)?;
        }
        Ok(())
    }

    /// Draws a goroutine whose states are deferred.
    fn place(&mut self, id: EntityId, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let Some(goroutine) = self.goroutines.all.get_mut(key(id)) else { return Ok(()) };
        let Place::Pending(states) = std::mem::take(&mut goroutine.place) else { return Ok(()) };
        let since = states.first().map(|state| state.at);
        let Some(track) = self.begin_lane(id, None, since, cx)? else { return Ok(()) };
        for state in states {
            let name = self.names.state(state.shown, state.reason, cx);
            let stack = self.names.stack(state.stack, cx);
            let entry = TrackEvent::new(name).stack(stack).flow(state.flow);
            let entry = entry.category(state.shown.category());
            cx.sink.state(state.at, track, Some(&entry))?;
            self.goroutines.free_flow(state.flow);
        }
        Ok(())
    }

    /// Begins the slice of a goroutine on a lane of its group, if there is room. Its states since some
    /// time can overlap other goroutines on the existing lanes.
    fn begin_lane(
        &mut self,
        id: EntityId,
        created: Option<StackId>,
        since: Option<Timestamp>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<TrackId>> {
        let at = since.unwrap_or(cx.at);
        let index = self.group(id, cx)?;
        let limit = self.options.lanes;
        let Some(group) = self.goroutines.groups.get_mut(index as usize) else { return Ok(None) };
        let lane = match since {
            Some(_) if group.lanes.lanes.len() >= limit => None,
            Some(_) => Some(group.lanes.add(cx.sink)?),
            None => group.lanes.acquire_below(limit, cx.sink)?,
        };
        let track = lane.and_then(|lane| group.lanes.lanes.get(lane as usize)).map(|l| l.track);
        let place = match lane.zip(track) {
            Some((lane, track)) => {
                let label = self.label(id, cx);
                let entry = TrackEvent::new(label).stack(created).category(Category::Go);
                cx.sink.begin(at, track, &entry)?;
                Place::Lane { group: index, lane, track }
            }
            None => {
                self.stats.goroutines_without_lane += 1;
                // Not at the time of its past states: it is the number of now.
                group.hide(1, cx)?;
                Place::Hidden { group: index }
            }
        };
        if let Some(goroutine) = self.goroutines.all.get_mut(key(id)) {
            goroutine.place = place;
        }
        Ok(track)
    }

    /// The name of a goroutine, or of any other entity.
    pub(super) fn label(&mut self, id: EntityId, cx: &mut Context<'_, impl Sink>) -> TextId {
        let Some(goroutine) = self.goroutines.all.get_mut(key(id)) else {
            return self.names.label(id, cx);
        };
        let entity = cx.tables.entities.get(id);
        let name = entity.map_or(trace_timeline::TextId::EMPTY, |entity| entity.name);
        let known = goroutine.label.filter(|(known, _)| *known == name);
        match known.filter(|(_, label)| cx.sink.holds_text(*label)) {
            Some((_, label)) => label,
            None => goroutine.label.insert((name, self.names.goroutine(id, cx))).1,
        }
    }

    /// Draws the goroutines whose entry functions stayed unknown.
    pub(super) fn draw_pending(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let tables = cx.tables;
        let is_pending = |id: &i64| {
            let goroutine = self.goroutines.all.get(*id);
            goroutine.is_some_and(|goroutine| matches!(goroutine.place, Place::Pending(_)))
        };
        let mut pending: Vec<i64> = self.goroutines.all.ids().filter(is_pending).collect();
        if pending.is_empty() {
            return Ok(());
        }
        // The order of a map is not deterministic.
        pending.sort_unstable();
        for (id, _) in tables.entities.iter() {
            if pending.binary_search(&key(id)).is_ok() {
                self.place(id, cx)?;
            }
        }
        Ok(())
    }

    /// A goroutine ends.
    pub(super) fn end_goroutine(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let at = cx.at;
        self.show_on(id, None, cx)?;
        match self.goroutines.all.get(key(id)) {
            Some(Goroutine { place: Place::Pending(_), .. }) => self.place(id, cx)?,
            Some(_) => {}
            None => return Ok(()),
        }
        let Some(goroutine) = self.goroutines.all.remove(key(id)).map(std::mem::take) else {
            return Ok(());
        };
        if let Some(process) = self.processes.get_mut(goroutine.process) {
            process.counts.change(goroutine.state, State::Unknown, process.track, cx)?;
        }
        let groups = &mut self.goroutines.groups;
        match goroutine.place {
            Place::Lane { group, lane, track } => {
                let Some(group) = groups.get_mut(group as usize) else { return Ok(()) };
                let mut nest = goroutine.nest;
                if let Some(inner) = group.lanes.lanes.get(lane as usize).and_then(|l| l.inner) {
                    nest.end_all(at, inner, cx.sink)?;
                }
                group.lanes.release(lane);
                cx.sink.end(at, track, &[])
            }
            Place::Hidden { group } => match groups.get_mut(group as usize) {
                Some(group) => group.hide(-1, cx),
                None => Ok(()),
            },
            Place::Pending(_) => Ok(()),
        }
    }

    /// Whether this is a goroutine that has ended, or that was not drawn so far.
    pub(super) fn is_over(&self, id: EntityId, tables: &Tables) -> bool {
        let is_goroutine = tables.entities.kind(id) == Some(EntityKind::Goroutine);
        is_goroutine && !self.goroutines.all.contains(key(id))
    }

    /// The lane of a goroutine, if it has one. Its slice begins now, if it is new.
    pub(super) fn goroutine(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<TrackId>> {
        match self.goroutines.all.get(key(id)).map(|known| &known.place) {
            Some(Place::Lane { track, .. }) => return Ok(Some(*track)),
            Some(Place::Hidden { .. }) => return Ok(None),
            Some(Place::Pending(_)) => {}
            None => self.meet(id, None, cx)?,
        }
        if let Some(Place::Pending(_)) = self.goroutines.all.get(key(id)).map(|g| &g.place) {
            self.place(id, cx)?;
        }
        Ok(self.lane_of(id))
    }

    /// The lane of a goroutine that has one now.
    fn lane_of(&self, id: EntityId) -> Option<TrackId> {
        match self.goroutines.all.get(key(id))?.place {
            Place::Lane { track, .. } => Some(track),
            _ => None,
        }
    }

    /// The thread that executes a goroutine.
    pub(super) fn executing_thread(&self, id: EntityId) -> Option<EntityId> {
        self.goroutines.all.get(key(id))?.thread
    }

    /// The track below a goroutine's track, and its open slices. `None` without a lane.
    pub(super) fn inside_goroutine(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<(TrackId, &mut Nest<SpanId>)>> {
        self.goroutine(id, cx)?;
        let Goroutines { all, groups, .. } = &mut self.goroutines;
        let Some(goroutine) = all.get_mut(key(id)) else { return Ok(None) };
        let Place::Lane { group, lane, .. } = goroutine.place else { return Ok(None) };
        let group = groups.get_mut(group as usize);
        let lane = group.and_then(|group| group.lanes.lanes.get_mut(lane as usize));
        let Some(lane) = lane else { return Ok(None) };
        Ok(Some((lane.inner(INNER, cx.sink)?, &mut goroutine.nest)))
    }

    fn group(&mut self, id: EntityId, cx: &mut Context<'_, impl Sink>) -> io::Result<u32> {
        let tables = cx.tables;
        let entity = tables.entities.get(id);
        let process = entity.and_then(|entity| entity.parent);
        let entry = entity.map_or(trace_timeline::TextId::EMPTY, |entity| entity.name);
        if let Some(group) = self.goroutines.group_by_entry.get(&(process, entry)) {
            return Ok(*group);
        }
        let count = self.goroutines.groups.len();
        if count > MAX_GROUPS {
            return Ok(MAX_GROUPS as u32); // that of the others
        }
        let name = match tables.get(entry) {
            _ if count == MAX_GROUPS => b"(others)",
            b"" => UNKNOWN,
            name => name,
        };
        let is_own = !name.starts_with(b"runtime.") && !name.starts_with(b"runtime/trace.")
            || name == b"runtime.main";
        let parent = if is_own {
            let title = (&b"Goroutines"[..], rank::GOROUTINES);
            self.process_group(process, |process| &mut process.goroutines, title, cx)?
        } else {
            let title = (&b"Runtime goroutines"[..], rank::RUNTIME);
            self.process_group(process, |process| &mut process.runtime, title, cx)?
        };
        let group = count as u32;
        let rank = i32::try_from(group).unwrap_or(i32::MAX).saturating_add(1);
        let track = cx.sink.track(&Track::custom(name).child_of(parent).rank(rank).ordered())?;
        self.goroutines.groups.push(Group { lanes: Lanes::new(track), hidden: None });
        self.goroutines.group_by_entry.insert((process, entry), group);
        Ok(group)
    }

    /// The track where an arrow begins, of an entity that is not a goroutine with a lane.
    fn source_of_arrow(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<TrackId>> {
        let tables = cx.tables;
        let Some(entity) = tables.entities.get(id) else { return Ok(None) };
        match entity.kind {
            EntityKind::Goroutine => match self.executing_thread(id) {
                Some(thread) if entity.name.is_empty() => self.thread_track(thread, cx),
                _ => self.goroutine(id, cx),
            },
            EntityKind::Proc => self.proc_track(id, cx).map(Some),
            _ => self.thread_track(id, cx),
        }
    }

    /// A goroutine is created or unblocked: an arrow begins at the cause.
    pub(super) fn arrow(
        &mut self,
        flow: &ResolvedFlow,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let tables = cx.tables;
        let (to, at) = (flow.to, cx.at);
        if tables.entities.kind(to) != Some(EntityKind::Goroutine) {
            return Ok(());
        }
        self.flush(cx)?;
        let stack = self.names.stack(flow.stack, cx);
        if !self.goroutines.all.contains(key(to)) {
            let created = stack.filter(|_| flow.kind == FlowKind::Creates);
            self.meet(to, created, cx)?;
        }
        let Some(from) = flow.from.filter(|_| self.options.arrows) else { return Ok(()) };
        let lane = self.lane_of(from);
        let hidden = |goroutine: &Goroutine| matches!(goroutine.place, Place::Hidden { .. });
        if self.goroutines.all.get(key(to)).is_none_or(hidden) {
            return Ok(());
        }
        let from = match lane {
            Some(lane) => Some(lane),
            None => self.source_of_arrow(from, cx)?,
        };
        let Some(from) = from else { return Ok(()) };
        let name = match flow.kind {
            FlowKind::Creates => "go",
            FlowKind::HandsOver => "coroutine switch",
            _ => "unblock",
        };
        let name = self.names.fixed(name, cx.sink);
        let number = self.goroutines.free_flows.pop().unwrap_or_else(|| cx.sink.new_flow());
        if let Some(to) = self.goroutines.all.get_mut(key(to)) {
            to.wake_up = Some(number);
        }
        let (name, flow) = (Name::Text(name), Some(Flow::Through(number)));
        let entry = TrackEvent { name, category: Some(Category::Go), stack, flow, args: &[] };
        cx.sink.instant(at, from, &entry)
    }
}

/// The thread that has the CPU of a preempted thread.
const fn preempted_by(kernel: Kernel) -> Option<EntityId> {
    match kernel {
        Kernel::Runnable { occupant: Occupant::Thread(by), is_preempted: true, .. } => Some(by),
        _ => None,
    }
}

impl Group {
    /// Draws the number of goroutines without a lane.
    fn hide(&mut self, change: i64, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let (track, count) = match &mut self.hidden {
            Some(hidden) => hidden,
            None => {
                let track = Track::counter(b"goroutines without a lane", Unit::Count)
                    .child_of(self.lanes.group)
                    .description(WITHOUT_LANE);
                let track = cx.sink.track(&track)?;
                self.hidden.insert((track, 0))
            }
        };
        *count += change;
        cx.sink.counter(cx.at, *track, (*count).into())
    }
}
