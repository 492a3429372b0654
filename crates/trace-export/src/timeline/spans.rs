//! Spans and instants.

use super::process::rank;
use super::{Context, Drawing};
use crate::lanes::Lanes;
use crate::model::{
    Category, DebugAnnotation, Flow, Name, Sink, Track, TrackEvent, TrackId, Value,
};
use hashbrown::HashMap;
use std::io;
use trace_common::IdMap;
use trace_timeline::{
    EntityId, EntityKind, InstantKind, SpanId, SpanKind, StackId, TextId, Value as ModelValue,
};

#[derive(Debug, Default)]
pub(super) struct Spans {
    /// By the number of the span.
    open: IdMap<Option<Open>>,
    pools: Vec<Lanes>,
    pool_by_kind: HashMap<(Option<EntityId>, SpanKind, Option<TextId>), usize>,
    /// Groups of pools.
    parents: HashMap<(Option<EntityId>, SpanKind), TrackId>,
    events: HashMap<Option<EntityId>, TrackId>,
    /// The events of CPUs, which have no process.
    events_of_cpus: Option<TrackId>,
    /// The arrow from an open task to its regions and logs.
    flows: HashMap<EntityId, u64>,
}

/// The place of an open span.
#[derive(Clone, Copy, Debug)]
enum Open {
    Lane {
        pool: usize,
        lane: u32,
        track: TrackId,
    },
    /// Inside this entity.
    Inner(EntityId),
}

/// The begin of a span.
pub(super) struct Begin {
    pub(super) span: SpanId,
    pub(super) entity: EntityId,
    pub(super) kind: SpanKind,
    pub(super) name: TextId,
    pub(super) by: Option<EntityId>,
    pub(super) of: Option<EntityId>,
    pub(super) stack: Option<StackId>,
}

/// Something without a duration.
pub(super) struct Instant {
    pub(super) entity: EntityId,
    pub(super) kind: InstantKind,
    pub(super) name: TextId,
    pub(super) stack: Option<StackId>,
    pub(super) of: Option<EntityId>,
}

/// Maximum number of simultaneous spans of one kind and type that have a lane.
const MAX_LANES: usize = 256;

/// The name of the group of tracks of a kind.
pub(super) const fn title(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Task => "Tasks",
        SpanKind::Activity => "Activities",
        SpanKind::Request => "Requests",
        SpanKind::Gc => "GC",
        SpanKind::StopTheWorld => "Stop-the-world",
        SpanKind::Queued => "Thread-pool queue",
        SpanKind::Region => "Regions",
        SpanKind::GcAssist => "GC mark assist",
        SpanKind::GcSweep => "GC sweep",
        SpanKind::Jit => "JIT",
        SpanKind::LockWait => "Lock waits",
        SpanKind::HandleWait => "Waits for wait handles",
        SpanKind::TaskRun => "Tasks that run",
        SpanKind::TaskWait => "Waits for tasks",
        SpanKind::Await => "Awaits",
        SpanKind::Operation => "Asynchronous operations",
        SpanKind::Finalizers => "Finalizers",
        SpanKind::TypeLoad => "Type loads",
        SpanKind::TieredJit => "Tiered compilation",
        _ => "Other",
    }
}

const fn category(kind: SpanKind) -> Category {
    match kind {
        SpanKind::Gc
        | SpanKind::StopTheWorld
        | SpanKind::GcAssist
        | SpanKind::GcSweep
        | SpanKind::Finalizers => Category::Gc,
        SpanKind::Queued => Category::Pool,
        SpanKind::Jit | SpanKind::TieredJit | SpanKind::TypeLoad => Category::Jit,
        SpanKind::LockWait => Category::Lock,
        _ => Category::Task,
    }
}

impl Drawing {
    pub(super) fn begin(
        &mut self,
        start: &Begin,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Context { at, tables, .. } = *cx;
        let Begin { span, entity, kind, name, .. } = *start;
        let text = self.names.span(kind, name, cx);
        let has_number = kind == SpanKind::Gc && !self.args.is_empty();
        let mut args = self.arguments(cx);
        if let Some(task) = tables.entities.get(entity).filter(|of| of.kind == EntityKind::Task) {
            let task = Value::Int(task.number);
            args.push(DebugAnnotation::new(self.names.fixed("task", cx.sink), task));
        }
        let of = match kind {
            SpanKind::LockWait => "owner",
            SpanKind::Task | SpanKind::Activity | SpanKind::Request => "parent",
            SpanKind::Gc => "number",
            _ => "task",
        };
        let by = start.by.filter(|by| *by != entity);
        for (name, id) in [("by", by), (of, start.of.filter(|_| !has_number))] {
            args.extend(id.map(|id| self.relation(name, id, cx)));
        }
        let stack = self.names.stack(start.stack, cx);
        let flow = match kind {
            SpanKind::Task => {
                Some(*self.spans.flows.entry(entity).or_insert_with(|| cx.sink.new_flow()))
            }
            _ => self.flow_of(start.of),
        };
        let flow = flow.map(Flow::Through);
        let (name, category) = (Name::Text(text), Some(category(kind)));
        let entry = TrackEvent { name, category, stack, flow, args: &args };
        let is_inside = matches!(
            kind,
            SpanKind::Region
                | SpanKind::GcAssist
                | SpanKind::GcSweep
                | SpanKind::Jit
                | SpanKind::LockWait
                | SpanKind::HandleWait
                | SpanKind::TaskRun
                | SpanKind::TaskWait
                | SpanKind::Finalizers
                | SpanKind::TypeLoad
                | SpanKind::TieredJit
        );
        if is_inside {
            let is_drawn = match self.inner(entity, cx)? {
                Some((track, nest)) => nest.begin(span, text, at, track, &entry, cx.sink)?,
                None => false,
            };
            if is_drawn {
                *self.spans.open.insert(span.number().into()) = Some(Open::Inner(entity));
            } else {
                self.stats.spans_without_lane += 1;
            }
            return Ok(());
        }
        let process = tables.entities.process_of(entity);
        let pool = self.pool(process, kind, start.name, cx)?;
        let Some(lanes) = self.spans.pools.get_mut(pool) else { return Ok(()) };
        let lane = lanes.acquire_below(MAX_LANES, cx.sink)?;
        let lane = lane.and_then(|lane| Some((lane, lanes.lanes.get(lane as usize)?.track)));
        match lane {
            Some((lane, track)) => {
                *self.spans.open.insert(span.number().into()) =
                    Some(Open::Lane { pool, lane, track });
                cx.sink.begin(at, track, &entry)
            }
            None => {
                self.stats.spans_without_lane += 1;
                Ok(())
            }
        }
    }

    pub(super) fn finish_span(
        &mut self,
        span: SpanId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let at = cx.at;
        let args = self.arguments(cx);
        match self.spans.open.remove(span.number().into()).and_then(Option::take) {
            Some(Open::Lane { pool, lane, track }) => {
                if let Some(lanes) = self.spans.pools.get_mut(pool) {
                    lanes.release(lane);
                }
                cx.sink.end(at, track, &args)
            }
            // It has ended with the goroutine, which is not to be drawn again.
            Some(Open::Inner(entity)) if self.is_over(entity, cx.tables) => Ok(()),
            Some(Open::Inner(entity)) => {
                if let Some((track, nest)) = self.inner(entity, cx)? {
                    nest.end(span, at, track, &args, cx.sink)?;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The lanes of spans of a kind; those of tasks and activities by type.
    fn pool(
        &mut self,
        process: Option<EntityId>,
        kind: SpanKind,
        name: TextId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<usize> {
        let tables = cx.tables;
        /// Maximum number of types of tasks and activities with lanes of their own.
        const MAX_POOLS: usize = 1 << 12;
        let is_typed = matches!(kind, SpanKind::Task | SpanKind::Activity | SpanKind::Request);
        let mut ty = is_typed.then_some(name);
        if let Some(pool) = self.spans.pool_by_kind.get(&(process, kind, ty)) {
            return Ok(*pool);
        }
        // Further types share the lanes of their kind.
        if is_typed && self.spans.pools.len() >= MAX_POOLS {
            ty = None;
            if let Some(pool) = self.spans.pool_by_kind.get(&(process, kind, ty)) {
                return Ok(*pool);
            }
        }
        let parent = self.kind_track(process, kind, cx)?;
        let lanes = match ty.map(|ty| tables.get(ty)) {
            None => Lanes::on(parent),
            Some(ty) => {
                let name = if ty.is_empty() { b"(no type)" } else { ty };
                let rank = i32::try_from(self.spans.pools.len()).unwrap_or(i32::MAX);
                let group = Track::custom(name).child_of(parent).rank(rank).ordered();
                Lanes::new(cx.sink.track(&group)?)
            }
        };
        let pool = self.spans.pools.len();
        self.spans.pools.push(lanes);
        self.spans.pool_by_kind.insert((process, kind, ty), pool);
        Ok(pool)
    }

    /// The track of a kind: that of GCs has the stop-the-worlds below it.
    fn kind_track(
        &mut self,
        process: Option<EntityId>,
        kind: SpanKind,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        if let Some(track) = self.spans.parents.get(&(process, kind)) {
            return Ok(*track);
        }
        let parent = match kind {
            SpanKind::StopTheWorld => self.kind_track(process, SpanKind::Gc, cx)?,
            _ => self.process_track(process, cx)?,
        };
        let track = Track::custom(title(kind).as_bytes()).child_of(parent);
        let track = cx.sink.track(&track.rank(rank::SPANS).ordered())?;
        self.spans.parents.insert((process, kind), track);
        Ok(track)
    }

    /// The arguments before an event.
    pub(super) fn arguments(
        &mut self,
        cx: &mut Context<'_, impl Sink>,
    ) -> Vec<DebugAnnotation<'static>> {
        if self.args.is_empty() {
            return Vec::new(); // does not allocate
        }
        let given = std::mem::take(&mut self.args);
        let mut args = Vec::with_capacity(given.len() + 3);
        for (name, value) in &given {
            let name = self.names.text(*name, cx);
            let value = match *value {
                ModelValue::Uint(value) => Value::Uint(value),
                ModelValue::Int(value) => Value::Int(value),
                ModelValue::Double(value) => Value::Double(value),
                ModelValue::Bool(value) => Value::Bool(value),
                ModelValue::Text(text) => Value::Text(Name::Text(self.names.text(text, cx))),
                ModelValue::Entity(id) => Value::Text(Name::Text(self.names.label(id, cx))),
                _ => continue,
            };
            args.push(DebugAnnotation::new(name, value));
        }
        self.args = given;
        args
    }

    /// An argument that names an entity: a task or GC by its number.
    pub(super) fn relation(
        &mut self,
        name: &'static str,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> DebugAnnotation<'static> {
        let tables = cx.tables;
        let name = self.names.fixed(name, cx.sink);
        let value = match tables.entities.get(id) {
            Some(of) if matches!(of.kind, EntityKind::Task | EntityKind::Gc) => {
                Value::Int(of.number)
            }
            _ => Value::Text(Name::Text(self.label(id, cx))),
        };
        DebugAnnotation::new(name, value)
    }

    /// The arrow from a task.
    fn flow_of(&self, task: Option<EntityId>) -> Option<u64> {
        task.and_then(|task| self.spans.flows.get(&task)).copied()
    }

    pub(super) fn end_task(&mut self, task: EntityId, sink: &mut impl Sink) {
        if let Some(flow) = self.spans.flows.remove(&task) {
            sink.forget_flow(flow);
        }
    }

    pub(super) fn instant(
        &mut self,
        instant: &Instant,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Context { at, tables, .. } = *cx;
        let Instant { entity, kind, name, stack, of } = *instant;
        let track = match tables.entities.kind(entity) {
            Some(EntityKind::Goroutine) => self.inner(entity, cx)?.map(|(track, _)| track),
            _ => self.track_of(entity, cx)?,
        };
        let Some(track) = track else {
            self.stats.instants_without_lane += 1;
            return Ok(());
        };
        let (kind, category) = match kind {
            InstantKind::Log => ("log", Category::Log),
            InstantKind::Label => ("label", Category::Log),
            InstantKind::Exception => ("exception", Category::Exception),
            InstantKind::Stopped => ("all threads stopped", Category::Gc),
            InstantKind::Starvation => ("thread-pool starvation", Category::Pool),
            _ => ("event", Category::Dotnet),
        };
        // The category says the kind, unless it is that of two.
        let is_ambiguous = category == Category::Log;
        let kind = self.names.fixed(kind, cx.sink);
        let name = if name.is_empty() { kind } else { self.names.text(name, cx) };
        let stack = self.names.stack(stack, cx);
        let mut args = self.arguments(cx);
        if is_ambiguous && name != kind {
            let key = self.names.fixed("kind", cx.sink);
            args.push(DebugAnnotation::new(key, Value::Text(Name::Text(kind))));
        }
        args.extend(of.map(|of| self.relation("task", of, cx)));
        let flow = self.flow_of(of).map(Flow::Through);
        let entry = TrackEvent::new(name).stack(stack).flow(flow).category(category).args(&args);
        cx.sink.instant(at, track, &entry)
    }

    /// The track of events of a process.
    pub(super) fn events_track(
        &mut self,
        process: Option<EntityId>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        if let Some(track) = self.spans.events.get(&process) {
            return Ok(*track);
        }
        let parent = self.process_track(process, cx)?;
        let track = Track::custom(b"Events").child_of(parent).rank(rank::EVENTS);
        let track = cx.sink.track(&track)?;
        self.spans.events.insert(process, track);
        Ok(track)
    }

    /// The track of events of CPUs, such as samples of the idle thread.
    pub(super) fn events_of_cpus(
        &mut self,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        match self.spans.events_of_cpus {
            Some(track) => Ok(track),
            None => {
                let track = cx.sink.track(&Track::custom(b"Events of CPUs"))?;
                Ok(*self.spans.events_of_cpus.insert(track))
            }
        }
    }
}
