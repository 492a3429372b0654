//! GCs, suspensions and the heap.

use super::{DotnetSource, Open};
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{InstantKind, SpanKind};
use crate::sources::pusher::{Begin, Pusher};
use crate::tables::TextId;
use nettrace::Event as NetEvent;
use nettrace::analysis::{GcEvent, GcKind, GcReason, SuspendReason};

/// The parts of the heap, in the order of their sizes.
const HEAPS: [&[u8]; 5] = [b"gen 0", b"gen 1", b"gen 2", b"LOH", b"POH"];

impl DotnetSource {
    pub(super) fn gc(
        &mut self,
        event: &NetEvent<'_>,
        decoded: GcEvent,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        match decoded {
            GcEvent::Start { number, generation, reason, kind } => {
                let gc = Started { number, generation, reason, kind };
                self.start_gc(event, gc, process, thread, push);
            }
            GcEvent::End { number } => {
                self.close(Open::Gc(process, number), Some(thread), push);
                self.end_gc(process, number, push);
            }
            GcEvent::SuspendBegin { reason } => {
                let is_sampler = self.names.is_sampler(event.pid(), event.tid());
                let name = match reason {
                    // The sampler has no code.
                    SuspendReason::Other if is_sampler => "sample profiler".to_owned(),
                    reason => reason.to_string(),
                };
                let key = Open::Suspension(thread);
                self.make_room(key, push);
                self.suspending.retain(|_, by| *by != thread);
                let start = Begin::new(process, SpanKind::StopTheWorld, name.as_bytes());
                self.begin(key, start.by(Some(thread)), push);
            }
            GcEvent::SuspendEnd => {
                // One thread at a time suspends the others: the end of the other's was lost.
                let other = self.suspending.insert(process, thread).filter(|by| *by != thread);
                if let Some(other) = other {
                    self.cut(Open::Suspension(other), push);
                }
                let (kind, name) = (InstantKind::Stopped, TextId::EMPTY);
                push.instant(process, kind, name, None);
            }
            GcEvent::RestartEnd => {
                self.suspending.retain(|_, by| *by != thread);
                self.close(Open::Suspension(thread), Some(thread), push);
            }
            GcEvent::HeapStats { heap, generations } => {
                let sizes = heap.generation_sizes.iter().zip(HEAPS).take(generations);
                for (generation, (size, name)) in (0..).zip(sizes) {
                    if let Some(heap) = self.heap(process, generation, name, push) {
                        push.counter(heap, b"size", b"B", *size as f64);
                    }
                }
            }
            _ => self.skip(event),
        }
    }

    fn start_gc(
        &mut self,
        event: &NetEvent<'_>,
        gc: Started,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let Started { number, generation, reason, kind } = gc;
        // All others end before the next GC begins: the end of an open one was lost.
        if let Some(before) = self.blocking_gcs.remove(&process) {
            self.cut(Open::Gc(process, before), push);
        }
        if matches!(kind, GcKind::NonConcurrent | GcKind::Foreground) {
            self.blocking_gcs.insert(process, number);
        }
        let key = Open::Gc(process, number);
        self.make_room(key, push);
        self.end_gc(process, number, push);
        let entity = Entity::new(EntityKind::Gc, number.into());
        let gc = push.start(entity.child_of(Some(process)).start(push.at));
        self.open_gcs.extend(gc.map(|gc| ((process, number), gc)));
        let reason = reason.to_string();
        push.number(b"number", number.into());
        push.number(b"generation", generation.into());
        push.text(b"reason", reason.as_bytes());
        push.text(b"type", kind.to_string().as_bytes());
        let name = format!("gen {generation}, {reason}");
        let start = Begin::new(process, SpanKind::Gc, name.as_bytes()).by(Some(thread));
        let stack = self.stack(event, push);
        self.begin(key, start.of(gc).stack(stack), push);
    }

    pub(super) fn end_gc(&mut self, process: EntityId, number: u32, push: &mut Pusher<'_>) {
        if let Some(gc) = self.open_gcs.remove(&(process, number)) {
            push.end(gc);
        }
    }

    fn heap(
        &mut self,
        process: EntityId,
        generation: u32,
        name: &[u8],
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        if let Some(heap) = self.heaps.get(&(process, generation)) {
            return Some(*heap);
        }
        let name = push.tables.text(name);
        let heap = Entity::new(EntityKind::Heap, generation.into());
        let heap = push.start(heap.child_of(Some(process)).name(name))?;
        self.heaps.insert((process, generation), heap);
        Some(heap)
    }
}

/// The fields of `GCStart`.
struct Started {
    number: u32,
    generation: u32,
    reason: GcReason,
    kind: GcKind,
}
