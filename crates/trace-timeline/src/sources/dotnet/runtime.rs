//! Events of the runtime.

use super::{DotnetSource, Open};
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{EventKind, InstantKind, SampleKind, SpanKind, State};
use crate::sources::pusher::{Begin, Pusher};
use crate::tables::SampledEventId;
use nettrace::Event as NetEvent;
use nettrace::analysis::{GcEvent, RuntimeEvent, RuntimeEventError};

/// `ThreadAdjustmentReasonMap` of the runtime: no work item started for half a second.
const STARVATION: u32 = 6;

/// `AllocationSampled`. The other event about allocations is `GCAllocationTick`.
const ALLOCATION_SAMPLED: u32 = 303;

impl DotnetSource {
    pub(super) fn runtime(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        if let Err(error) = self.decoded(event, process, thread, push) {
            self.undecodable(event, thread, &error.to_string(), push);
        }
    }

    /// Draws nothing and returns the error if the event cannot be decoded: a size of 0 bytes or a
    /// method without a name would be a guess.
    fn decoded(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) -> Result<(), RuntimeEventError> {
        if let Some(decoded) = GcEvent::decode(event)? {
            self.gc(event, decoded, process, thread, push);
        } else if let Some(decoded) = RuntimeEvent::decode(event)? {
            self.known(event, decoded, process, thread, push);
        } else {
            event.check_payload()?;
            self.skip(event);
        }
        Ok(())
    }

    fn known(
        &mut self,
        event: &NetEvent<'_>,
        decoded: RuntimeEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        match decoded {
            RuntimeEvent::Workers { active } => {
                if let Some(pool) = self.pool(process, push) {
                    push.counter(pool, b"workers", b"", active.into());
                }
            }
            RuntimeEvent::Adjustment { workers, reason, .. } => {
                if reason == STARVATION {
                    let name = push.tables.text(b"thread-pool starvation");
                    push.instant(process, InstantKind::Starvation, name, None);
                }
                if let Some(pool) = self.pool(process, push) {
                    push.counter(pool, b"target of workers", b"", workers.into());
                }
            }
            RuntimeEvent::Allocation { type_name, amount, .. } => {
                // Both kinds of samples estimate the same allocations. Their sum would be twice as much.
                if event.id() == ALLOCATION_SAMPLED {
                    self.sampled.insert(process);
                } else if self.sampled.contains(&process) {
                    return self.skip(event);
                }
                let (stack, of) = (self.stack(event, push), self.activity_of(event));
                if let Some(name) = type_name {
                    push.text(b"type", name.to_string().as_bytes());
                }
                push.event(EventKind::Sample {
                    entity: thread,
                    kind: SampleKind::Allocation,
                    stack,
                    weight: amount,
                    thread: None,
                    cpu: None,
                    event: SampledEventId::default(),
                    of,
                });
            }
            RuntimeEvent::Exception { type_name, message, .. } => {
                let name = push.tables.text(type_name.to_string().as_bytes());
                let (kind, stack) = (InstantKind::Exception, self.stack(event, push));
                push.text(b"message", message.to_string().as_bytes());
                let of = self.activity_of(event);
                push.event(EventKind::Instant { entity: thread, kind, name, of, stack });
            }
            RuntimeEvent::ContentionStart { lock_id, owner_tid, .. } => {
                let owner = owner_tid.filter(|owner| *owner != 0);
                let pid = event.pid();
                let owner = owner.and_then(|tid| self.thread(pid, tid, None, process, push));
                self.start_lock_wait(event, lock_id, owner, thread, push);
            }
            RuntimeEvent::ContentionStop => {
                self.close(Open::LockWait(thread), None, push);
                self.resume(thread, push);
            }
            RuntimeEvent::HandleWaitStart { is_monitor, .. } => {
                let name: &[u8] = if is_monitor { b"Monitor.Wait" } else { b"wait handle" };
                let key = Open::HandleWait(thread);
                self.make_room(key, push);
                let stack = self.stack(event, push);
                self.begin(key, Begin::new(thread, SpanKind::HandleWait, name).stack(stack), push);
                // A wait for a task or a lock can be one for a handle, too.
                if !self.is_waiting(thread) {
                    push.waits(thread, name, stack);
                }
            }
            RuntimeEvent::HandleWaitStop => {
                self.close(Open::HandleWait(thread), None, push);
                self.end_handle_wait(thread, push);
            }
            RuntimeEvent::MethodJittingStarted { id, il_size, name } => {
                let key = Open::Jit(thread, id);
                self.make_room(key, push);
                push.number(b"IL bytes", il_size.into());
                let name = name.to_string();
                self.begin(key, Begin::new(thread, SpanKind::Jit, name.as_bytes()), push);
            }
            RuntimeEvent::MethodLoad { id, size, .. } => {
                let key = Open::Jit(thread, id);
                if self.open.contains(key) {
                    push.number(b"code bytes", size.into());
                    self.close(key, None, push);
                }
            }
            RuntimeEvent::FinalizersStart => {
                let key = Open::Finalizers(thread);
                self.make_room(key, push);
                let stack = self.stack(event, push);
                let start = Begin::new(thread, SpanKind::Finalizers, b"finalizers");
                self.begin(key, start.stack(stack), push);
            }
            RuntimeEvent::FinalizersStop { count } => {
                let key = Open::Finalizers(thread);
                if self.open.contains(key) {
                    push.number(b"finalizers", count.into());
                    self.close(key, None, push);
                }
            }
            RuntimeEvent::TypeLoadStart { id } => {
                let key = Open::TypeLoad(thread, id);
                self.make_room(key, push);
                let stack = self.stack(event, push);
                let start = Begin::new(thread, SpanKind::TypeLoad, b"type load");
                self.begin(key, start.stack(stack), push);
            }
            RuntimeEvent::TypeLoadStop { id, level, type_name } => {
                let key = Open::TypeLoad(thread, id);
                if self.open.contains(key) {
                    push.text(b"type", type_name.to_string().as_bytes());
                    push.number(b"level", level.into());
                    self.close(key, None, push);
                }
            }
            RuntimeEvent::TieredCompilationStart { pending } => {
                let key = Open::TieredJit(thread);
                self.make_room(key, push);
                push.number(b"pending methods", pending.into());
                let start = Begin::new(thread, SpanKind::TieredJit, b"tiered compilation");
                self.begin(key, start, push);
            }
            RuntimeEvent::TieredCompilationStop { pending, compiled } => {
                let key = Open::TieredJit(thread);
                if self.open.contains(key) {
                    push.number(b"methods", compiled.into());
                    push.number(b"pending methods", pending.into());
                    self.close(key, None, push);
                }
            }
            _ => self.skip(event),
        }
    }

    fn start_lock_wait(
        &mut self,
        event: &NetEvent<'_>,
        lock: Option<u64>,
        owner: Option<EntityId>,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let key = Open::LockWait(thread);
        self.make_room(key, push);
        let stack = self.stack(event, push);
        if let Some(lock) = lock {
            push.number(b"lock", lock);
        }
        let start = Begin::new(thread, SpanKind::LockWait, b"lock").of(owner).stack(stack);
        self.begin(key, start, push);
        push.waits(thread, b"lock", stack);
    }

    /// Whether a thread waits for a lock or a task.
    fn is_waiting(&self, thread: EntityId) -> bool {
        self.tasks.is_waiting(thread) || self.open.contains(Open::LockWait(thread))
    }

    /// The state of a thread that no longer waits for a handle.
    pub(super) fn end_handle_wait(&self, thread: EntityId, push: &mut Pusher<'_>) {
        if !self.is_waiting(thread) {
            push.state(thread, State::Running, None);
        }
    }

    fn pool(&mut self, process: EntityId, push: &mut Pusher<'_>) -> Option<EntityId> {
        if let Some(pool) = self.pools.get(&process) {
            return Some(*pool);
        }
        let name = push.tables.text(b"thread pool");
        let pool = Entity::new(EntityKind::ThreadPool, 0).child_of(Some(process)).name(name);
        let pool = push.start(pool)?;
        self.pools.insert(process, pool);
        Some(pool)
    }
}
