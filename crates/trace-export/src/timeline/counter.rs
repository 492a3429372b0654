//! Counters, and the throttling of cgroups.

use super::process::rank;
use super::{Context, Drawing};
use crate::lanes::Lanes;
use crate::model::{
    Category, CounterValue, DebugAnnotation, Sink, Track, TrackEvent, TrackId, Unit, Value,
};
use hashbrown::HashMap;
use std::io;
use trace_common::Timestamp;
use trace_timeline::{EntityId, EntityKind, TextId, text};

#[derive(Debug, Default)]
pub(super) struct Counters {
    tracks: HashMap<(EntityId, TextId), TrackId>,
    throttled: HashMap<EntityId, Throttled>,
}

/// The throttling of a process. Each cgroup that contains it is read at times of its own: what
/// overlaps is on several lanes.
#[derive(Debug)]
struct Throttled {
    lanes: Lanes,
    /// When each lane is free again: a slice can begin before the one that was drawn last.
    ends: Vec<Timestamp>,
}

/// A value of a counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    pub(super) entity: EntityId,
    pub(super) name: TextId,
    pub(super) unit: TextId,
    pub(super) value: f64,
}

impl Drawing {
    pub(super) fn counter(
        &mut self,
        counter: &Counter,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let at = cx.at;
        let Counter { entity, name, value, .. } = *counter;
        let track = match self.counters.tracks.get(&(entity, name)) {
            Some(track) => *track,
            None => {
                let track = self.counter_track(counter, cx)?;
                self.counters.tracks.insert((entity, name), track);
                track
            }
        };
        cx.sink.counter(at, track, exact(value))
    }

    fn counter_track(
        &mut self,
        counter: &Counter,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        let tables = cx.tables;
        let process = tables.entities.process_of(counter.entity);
        let parent = self.process_track(process, cx)?;
        let given = tables.get(counter.name);
        let title = text::counter(tables, counter.entity, counter.name);
        let rank = match (given, tables.entities.kind(counter.entity)) {
            (b"/memory/classes/heap/objects:bytes", _) => 0,
            (b"/gc/heap/goal:bytes", _) => 1,
            (b"/sched/gomaxprocs:threads", _) => 2,
            (b"size", Some(EntityKind::Heap)) => 3,
            (_, Some(EntityKind::ThreadPool)) => 4,
            _ => 5,
        };
        // The sinks replace what is no text.
        let is_given = title == tables.str(counter.name);
        let (title, description) =
            if is_given { (given, &b""[..]) } else { (title.as_bytes(), given) };
        let track = match tables.get(counter.unit) {
            b"" => Track::counter(title, Unit::Count),
            b"B" => Track::counter(title, Unit::Bytes),
            b"ns" => Track::counter(title, Unit::Nanoseconds),
            unit => Track::counter(title, Unit::Count).unit_name(unit),
        };
        let track = track.child_of(parent).rank(rank::COUNTERS + rank);
        cx.sink.track(&track.description(description))
    }

    pub(super) fn throttle(
        &mut self,
        (since, at): (Timestamp, Timestamp),
        process: EntityId,
        nanos: i64,
        periods: u32,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        if !self.counters.throttled.contains_key(&process) {
            let parent = self.process_track(Some(process), cx)?;
            let track = Track::custom(b"Throttled by the CPU quota").child_of(parent);
            let lanes = Lanes::on(cx.sink.track(&track.rank(rank::COUNTERS).ordered())?);
            let throttled = Throttled { lanes, ends: vec![Timestamp::MIN] };
            self.counters.throttled.insert(process, throttled);
        }
        let Some(Throttled { lanes, ends }) = self.counters.throttled.get_mut(&process) else {
            return Ok(());
        };
        let lane = match ends.iter().position(|end| *end <= since) {
            Some(lane) => lane,
            None => {
                ends.push(Timestamp::MIN);
                lanes.add(cx.sink)? as usize
            }
        };
        let (Some(lane), Some(end)) = (lanes.lanes.get(lane), ends.get_mut(lane)) else {
            return Ok(());
        };
        *end = at;
        let track = lane.track;
        let name = self.names.fixed("Throttled", cx.sink);
        let args = [
            DebugAnnotation::new(self.names.fixed("nanoseconds", cx.sink), Value::Int(nanos)),
            DebugAnnotation::new(self.names.fixed("periods", cx.sink), Value::Uint(periods.into())),
        ];
        let entry = TrackEvent::new(name).category(Category::Sched).args(&args);
        cx.sink.begin(since, track, &entry)?;
        cx.sink.end(at, track, &[])
    }
}

/// An integer if it is one: shorter in most formats.
fn exact(value: f64) -> CounterValue {
    /// Above, not all integers are numbers of this type.
    const MAX: f64 = (1u64 << 53) as f64;
    if value.fract() == 0.0 && value.abs() <= MAX {
        CounterValue::Int(value as i64)
    } else {
        CounterValue::Double(value)
    }
}
