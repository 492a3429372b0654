//! What events add up to: collections and pauses, compilations, exceptions, waits, activities,
//! counters, heap snapshots.
//!
//! Every tracker is fed with all events of a stream, in the order of time, and gives a record
//! when one is complete. What is needed to switch the events on is said with each (provider
//! `Microsoft-Windows-DotNETRuntime` unless another is named).

mod activity;
mod counters;
mod gc;
mod heap;
mod runtime;
mod stacks;

pub use activity::{Activity, ActivityStep, ActivityTracker};
pub use counters::{Counter, CounterKind, CounterTracker};
pub use gc::{
    GarbageCollection, GcKind, GcReason, GcTracker, HeapStats, SuspendReason, Suspension,
};
pub use heap::{HeapNode, HeapRoot, HeapSnapshot, HeapType, RootKind, TypeTotal};
pub use runtime::{
    Allocation, Contention, Exception, JitCompilation, RuntimeRecord, RuntimeTracker, ThreadPool,
};
pub use stacks::{EventStacks, StackEvent, StackTotal};

use crate::{Event, Text};

/// The field `name` as an unsigned integer; 0 if there is none.
fn number(event: &Event<'_>, name: &str) -> u64 {
    event.field(name).and_then(|v| v.as_u64()).unwrap_or(0)
}

/// The field `name` as text; empty if there is none.
fn text(event: &Event<'_>, name: &str) -> String {
    event
        .field(name)
        .and_then(|v| v.as_text())
        .map_or_else(String::new, |t: Text<'_>| t.to_string())
}
