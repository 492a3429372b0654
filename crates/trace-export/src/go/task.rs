//! Annotations by the program: tasks, regions, logs and labels.

use super::goroutine::MAX_GROUPS;
use super::{GoSource, Layout, rank};
use crate::lanes::{Key, Lanes};
use crate::model::{DebugAnnotation, Flow, Name, Sink, Track, TrackEvent, Value};
use gotrace::{Event, EventKind, GoId, TaskId};
use std::io;
use trace_common::Timestamp;

#[derive(Debug)]
pub(super) struct TaskState {
    pub(super) group: u32,
    pub(super) lane: u32,
    pub(super) flow: u64,
}

impl GoSource {
    pub(super) fn region(&mut self, event: Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        let Some(region) = event.region() else { return Ok(()) };
        let at = event.time();
        let name = sink.text(region.ty);
        let task = self.tasks.get(&region.task).map(|task| Flow::Through(task.flow));
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let fixed = self.fixed;
        let Some((track, nest)) = self.inner(event.goroutine(), at, sink)? else { return Ok(()) };
        if event.kind() == EventKind::RegionBegin {
            let args = [DebugAnnotation::new(fixed.task, Value::Uint(region.task.0))];
            let known = usize::from(region.task != TaskId::BACKGROUND);
            let entry = TrackEvent::new(name).stack(stack).flow(task).args(&args[..known]);
            nest.begin(Key::Region, name, at, track, &entry, sink)
        } else if nest.end(Key::Region, at, track, &[], sink)? {
            Ok(())
        } else {
            let args = [DebugAnnotation::new(self.fixed.task, Value::Text(name.into()))];
            sink.instant(at, track, &TrackEvent::new(self.fixed.region_end).args(&args))
        }
    }

    pub(super) fn task(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
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
            DebugAnnotation::new(self.fixed.task, Value::Uint(task.id.0)),
            DebugAnnotation::new(self.fixed.parent, Value::Uint(task.parent.0)),
        ];
        let known = if matches!(task.parent, TaskId::NONE | TaskId::BACKGROUND) { 1 } else { 2 };
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let name = sink.text(task.ty);
        let entry = TrackEvent::new(name).stack(stack).args(&args[..known]);
        sink.begin(at, track, &entry.flow(Some(Flow::Through(flow))))
    }

    pub(super) fn end_task(
        &mut self,
        id: TaskId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
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
        let track = Track::custom(b"Tasks").child_of(layout.process).rank(rank::TASKS).ordered();
        let parent = self.group_track(|layout| &mut layout.tasks, &track, sink)?;
        if let Some(&group) = self.task_types.get(ty) {
            return Ok(group);
        }
        let group = self.task_lanes.len() as u32;
        let track = Track::custom(ty).child_of(parent).rank(group as i32 + 1).ordered();
        self.task_lanes.push(Lanes::new(sink.track(&track)?));
        self.task_types.insert(ty.into(), group);
        Ok(group)
    }

    pub(super) fn log(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(log) = event.log() else { return Ok(()) };
        let at = event.time();
        let flow = self.tasks.get(&log.task).map(|task| Flow::Through(task.flow));
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let category = sink.text(log.category);
        let track = self.inner(event.goroutine(), at, sink)?.map(|(track, _)| track);
        let args = [
            DebugAnnotation::new(self.fixed.category, Value::Text(category.into())),
            DebugAnnotation::new(self.fixed.task, Value::Uint(log.task.0)),
        ];
        let known = if log.task == TaskId::BACKGROUND { 1 } else { 2 };
        let entry = TrackEvent::new(Name::Inline(log.message)).stack(stack).flow(flow);
        sink.instant(at, track.unwrap_or(layout.process), &entry.args(&args[..known]))
    }

    pub(super) fn label(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(label) = event.label() else { return Ok(()) };
        let id = label.resource.goroutine().unwrap_or(GoId::NONE);
        let track = self.inner(id, event.time(), sink)?.map(|(track, _)| track);
        let name = sink.text(label.label);
        sink.instant(event.time(), track.unwrap_or(layout.process), &TrackEvent::new(name))
    }
}
