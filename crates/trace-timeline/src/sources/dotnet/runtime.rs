//! Events of the runtime.

use super::{DotnetSource, MAX_OPEN, Open};
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{EventKind, InstantKind, SampleKind, SpanKind, State};
use crate::sources::pusher::{Begin, Pusher};
use crate::tables::{SampledEventId, TextId};
use nettrace::Event as NetEvent;
use nettrace::analysis::{GcKind, GcReason, SuspendReason};

/// `ThreadAdjustmentReasonMap` of the runtime: no work item started for half a second.
const STARVATION: u64 = 6;

/// The parts of the heap, by the number of their fields in `GCHeapStats`.
const HEAPS: [&[u8]; 5] = [b"gen 0", b"gen 1", b"gen 2", b"LOH", b"POH"];

impl DotnetSource {
    pub(super) fn runtime(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        if let Err(error) = event.check_payload() {
            return self.undecodable(event, thread, &error.to_string(), push);
        }
        // A payload may end between two fields, as those of older runtimes do.
        if self.known(event, process, thread, push).is_none() {
            self.undecodable(event, thread, "a field is missing", push);
        }
    }

    /// Draws nothing and returns `None` if the event lacks a field: a size of 0 bytes or a method
    /// without a name would be a guess.
    fn known(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) -> Option<()> {
        let number = |name: &str| event.field(name).and_then(|v| v.as_u64());
        let text = |name| event.field(name).map(|v| v.to_string());
        match event.id() {
            // GCStart, GCEnd
            1 => self.start_gc(event, process, thread, push)?,
            2 => {
                let count = number("Count")?;
                self.finish(Open::Gc(process, count), Some(thread), push);
                self.end_gc(process, count, push);
            }
            // GCSuspendEEBegin, GCSuspendEEEnd, GCRestartEEEnd
            9 => {
                let reason = SuspendReason::from_code(number("Reason")? as u32);
                let is_sampler = self.names.is_sampler(event.process_id(), event.thread_id());
                let name = match reason {
                    // The sampler has no code.
                    SuspendReason::Other if is_sampler => "sample profiler".to_owned(),
                    reason => reason.to_string(),
                };
                let key = Open::Suspension(thread);
                self.finish(key, Some(thread), push); // its end was lost
                let begin = Begin::new(process, SpanKind::StopTheWorld, name.as_bytes());
                self.begin(key, begin.by(Some(thread)), push);
            }
            8 => {
                let (kind, name) = (InstantKind::Stopped, TextId::EMPTY);
                push.instant(process, kind, name, None);
            }
            3 => self.finish(Open::Suspension(thread), Some(thread), push),
            // GCHeapStats
            4 => {
                number("GenerationSize0")?;
                for (generation, name) in (0..).zip(HEAPS) {
                    // Before .NET 5 there was no POH.
                    let Some(size) = number(&format!("GenerationSize{generation}")) else {
                        continue;
                    };
                    if let Some(heap) = self.heap(process, generation, name, push) {
                        push.counter(heap, b"size", b"B", size as f64);
                    }
                }
            }
            // Start, stop and wait of workers
            50 | 51 | 57 => {
                let value = number("ActiveWorkerThreadCount")? as u32;
                if let Some(pool) = self.pool(process, push) {
                    push.counter(pool, b"workers", b"", value.into());
                }
            }
            // ThreadPoolWorkerThreadAdjustmentAdjustment
            55 => {
                let (reason, target) = (number("Reason")?, number("NewWorkerThreadCount")?);
                if reason == STARVATION {
                    let name = push.tables.text(b"thread-pool starvation");
                    push.instant(process, InstantKind::Starvation, name, None);
                }
                if let Some(pool) = self.pool(process, push) {
                    push.counter(pool, b"target of workers", b"", target as f64);
                }
            }
            // GCAllocationTick, AllocationSampled
            10 | 303 => {
                // Bytes allocated since the last tick: 64 bits since version 2 of the event. A
                // sampled allocation has the size of its object.
                let fields = ["AllocationAmount64", "AllocationAmount", "ObjectSize"];
                let weight = fields.into_iter().find_map(number)?;
                let (stack, of) = (self.stack(event, push), self.activity_of(event));
                if let Some(name) = text("TypeName") {
                    push.text(b"type", name.as_bytes());
                }
                push.event(EventKind::Sample {
                    entity: thread,
                    kind: SampleKind::Allocation,
                    stack,
                    weight,
                    thread: None,
                    cpu: None,
                    event: SampledEventId::default(),
                    of,
                });
            }
            // ExceptionThrown
            80 => {
                let (name, message) = (text("ExceptionType")?, text("ExceptionMessage")?);
                let name = push.tables.text(name.as_bytes());
                let (kind, stack) = (InstantKind::Exception, self.stack(event, push));
                push.text(b"message", message.as_bytes());
                let of = self.activity_of(event);
                push.event(EventKind::Instant { entity: thread, kind, name, of, stack });
            }
            // ContentionStart, ContentionStop
            81 => self.start_lock_wait(event, process, thread, push),
            91 => {
                self.finish(Open::LockWait(thread), None, push);
                push.state(thread, State::Running, None);
            }
            // MethodJittingStarted; MethodLoad, MethodLoadVerbose
            145 => {
                let method = format!("{}.{}", text("MethodNamespace")?, text("MethodName")?);
                let (key, size) = (Open::Jit(thread, number("MethodID")?), number("MethodILSize")?);
                self.finish(key, None, push); // its end was lost
                push.number(b"IL bytes", size);
                self.begin(key, Begin::new(thread, SpanKind::Jit, method.as_bytes()), push);
            }
            141 | 143 => {
                let (key, size) = (Open::Jit(thread, number("MethodID")?), number("MethodSize")?);
                if self.open.contains_key(&key) {
                    push.number(b"code bytes", size);
                    self.finish(key, None, push);
                }
            }
            _ => self.skip(event),
        }
        Some(())
    }

    fn start_gc(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) -> Option<()> {
        let number = |name: &str| event.field(name).and_then(|v| v.as_u64());
        let (count, generation) = (number("Count")?, number("Depth")?);
        let (reason, kind) = (number("Reason")? as u32, number("Type")? as u32);
        let reason = GcReason::from_code(reason).to_string();
        let key = Open::Gc(process, count);
        self.finish(key, Some(thread), push); // its end was lost
        self.end_gc(process, count, push);
        if self.open.len() >= MAX_OPEN {
            self.stats.unpaired += 1;
            return Some(());
        }
        let entity = Entity::new(EntityKind::Gc, i64::try_from(count).unwrap_or(-1));
        let gc = push.start(entity.child_of(Some(process)).started(push.at));
        self.collections.extend(gc.map(|gc| ((process, count), gc)));
        push.number(b"number", count);
        push.number(b"generation", generation);
        push.text(b"reason", reason.as_bytes());
        push.text(b"type", GcKind::from_code(kind).to_string().as_bytes());
        let name = format!("gen {generation}, {reason}");
        let begin = Begin::new(process, SpanKind::Gc, name.as_bytes()).by(Some(thread));
        let stack = self.stack(event, push);
        self.begin(key, begin.of(gc).stack(stack), push);
        Some(())
    }

    fn end_gc(&mut self, process: EntityId, count: u64, push: &mut Pusher<'_>) {
        if let Some(gc) = self.collections.remove(&(process, count)) {
            push.end(gc);
        }
    }

    fn start_lock_wait(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let known = |name: &str| event.field(name).and_then(|v| v.as_u64());
        let owner = known("LockOwnerThreadID").filter(|owner| *owner != 0);
        let pid = event.process_id();
        let owner = owner.and_then(|tid| self.thread(pid, tid, None, process, push));
        let key = Open::LockWait(thread);
        self.finish(key, None, push); // its end was lost
        let stack = self.stack(event, push);
        if let Some(lock) = known("LockID") {
            push.number(b"lock", lock);
        }
        let begin = Begin::new(thread, SpanKind::LockWait, b"lock").of(owner).stack(stack);
        self.begin(key, begin, push);
        let (state, on, reason) = (State::Waiting, None, push.tables.text(b"lock"));
        push.event(EventKind::State { entity: thread, state, on, reason, stack });
    }

    fn heap(
        &mut self,
        process: EntityId,
        generation: u64,
        name: &[u8],
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        if let Some(heap) = self.heaps.get(&(process, generation)) {
            return Some(*heap);
        }
        let name = push.tables.text(name);
        let number = i64::try_from(generation).unwrap_or(-1);
        let heap = Entity::new(EntityKind::Heap, number).child_of(Some(process)).named(name);
        let heap = push.start(heap)?;
        self.heaps.insert((process, generation), heap);
        Some(heap)
    }

    fn pool(&mut self, process: EntityId, push: &mut Pusher<'_>) -> Option<EntityId> {
        if let Some(pool) = self.pools.get(&process) {
            return Some(*pool);
        }
        let name = push.tables.text(b"thread pool");
        let pool = Entity::new(EntityKind::ThreadPool, 0).child_of(Some(process)).named(name);
        let pool = push.start(pool)?;
        self.pools.insert(process, pool);
        Some(pool)
    }
}
