//! Reader of Go execution traces.
#![forbid(unsafe_code)]

mod batch;
mod error;
mod event;
mod frontier;
mod generation;
mod gosort;
mod header;
mod id;
mod order;
mod printable;
mod quote;
pub mod raw;
mod reader;
mod source;
mod spec;
mod table;
mod text;
mod v1;
mod version;

pub use bstr;
pub use error::{Error, ErrorKind, Inconsistency, Place};
pub use event::{
    Event, EventKind, ExperimentalBatch, ExperimentalEvent, Label, Log, Metric, OwnedEvent, Range,
    RangeAttribute, RangeName, Region, Stack, StackFrame, StateTransition, Sync, Task, Value,
};
pub use id::{GoId, GoState, ProcId, ProcState, ResourceId, ResourceKind, TaskId, ThreadId};
pub use reader::{Loss, Reader};
pub use spec::{EventSpec, EventType, Experiment};
pub use table::ClockSnapshot;
pub use text::TextFormatter;
pub use trace_common::{Limits, Timestamp};
pub use version::Version;
