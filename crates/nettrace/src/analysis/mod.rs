//! Trackers that derive records from events: GCs and suspensions, JIT compilations, exceptions,
//! lock waits, activities, counters, heap snapshots.
//!
//! Pass all events of a stream to a tracker, in time order. It returns a record when one is
//! complete. Each tracker documents the keywords and level that it needs, of provider
//! `Microsoft-Windows-DotNETRuntime` unless it names another one.
//!
//! [`GcEvent`] and [`RuntimeEvent`] are single events of that provider, decoded, for a program that
//! pairs them itself.

mod activity;
mod contention;
mod counters;
mod decode;
mod gc;
mod gc_event;
mod heap;
mod jit;
mod runtime;
mod runtime_event;
mod stacks;

pub use activity::{Activity, ActivityStep, ActivityTracker};
pub use counters::{Counter, CounterKind, CounterTracker};
pub use decode::RuntimeEventError;
pub use gc::{
    GarbageCollection, GcKind, GcReason, GcTracker, HeapStats, SuspendReason, Suspension,
};
pub use gc_event::GcEvent;
pub use heap::{HeapNode, HeapRoot, HeapSnapshot, HeapType, RootKind, TypeTotal};
pub use runtime::{
    Allocation, Contention, Exception, JitCompilation, RuntimeRecord, RuntimeTracker, ThreadPool,
};
pub use runtime_event::{MethodName, RuntimeEvent};
pub use stacks::{EventStacks, StackEvent, StackTotal};

use crate::{Event, Text};

/// The field `name` as an unsigned integer; `None` if it is missing or has another type.
pub(crate) fn number(event: &Event<'_>, name: &str) -> Option<u64> {
    event.field(name)?.as_u64()
}

/// The field `name` as text; `None` if it is missing or has another type.
pub(crate) fn text(event: &Event<'_>, name: &str) -> Option<String> {
    event.field(name)?.as_text().map(|text: Text<'_>| text.to_string())
}
