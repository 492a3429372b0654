mod record;

use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId, TaskId, ThreadId};
use crate::spec::{EventType, Experiment, Plan};
use crate::table::{ClockSnapshot, Frame, Table};
use bstr::{BStr, BString, ByteSlice};
pub(crate) use record::{Record, SYNC, State};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use trace_common::Timestamp;

/// The kind of an [`Event`].
///
/// Several event types of the wire format map to one kind: about twenty of them are state
/// transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum EventKind {
    /// A synchronization point, at which the state of every resource is known: [`Event::sync`].
    Sync,
    /// The value of a metric: [`Event::metric`].
    Metric,
    /// A label for a goroutine: [`Event::label`].
    Label,
    /// A sample of the CPU profiler, with its stack in [`Event::stack`]. Samples are taken
    /// asynchronously and may contradict nearby state transitions slightly.
    StackSample,
    /// A range of time begins: [`Event::range`].
    RangeBegin,
    /// A range of time is active that began before the trace or generation: [`Event::range`].
    RangeActive,
    /// A range of time ends: [`Event::range`], [`Event::range_attributes`].
    RangeEnd,
    /// A `runtime/trace` task begins: [`Event::task`].
    TaskBegin,
    /// A task ends: [`Event::task`].
    TaskEnd,
    /// A `runtime/trace` region begins: [`Event::region`].
    RegionBegin,
    /// A region ends: [`Event::region`].
    RegionEnd,
    /// A `runtime/trace` log message: [`Event::log`].
    Log,
    /// A goroutine or proc changes state: [`Event::state_transition`].
    StateTransition,
    /// An event of an experiment, which is not validated: [`Event::experimental`].
    Experimental,
}

impl EventKind {
    /// Every kind, in order.
    pub const ALL: [Self; 14] = [
        Self::Sync,
        Self::Metric,
        Self::Label,
        Self::StackSample,
        Self::RangeBegin,
        Self::RangeActive,
        Self::RangeEnd,
        Self::TaskBegin,
        Self::TaskEnd,
        Self::RegionBegin,
        Self::RegionEnd,
        Self::Log,
        Self::StateTransition,
        Self::Experimental,
    ];

    /// The name of the kind, as Go prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sync => "Sync",
            Self::Metric => "Metric",
            Self::Label => "Label",
            Self::StackSample => "StackSample",
            Self::RangeBegin => "RangeBegin",
            Self::RangeActive => "RangeActive",
            Self::RangeEnd => "RangeEnd",
            Self::TaskBegin => "TaskBegin",
            Self::TaskEnd => "TaskEnd",
            Self::RegionBegin => "RegionBegin",
            Self::RegionEnd => "RegionEnd",
            Self::Log => "Log",
            Self::StateTransition => "StateTransition",
            Self::Experimental => "Experimental",
        }
    }

    /// The kind of events of wire type `ty`.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a table of 256, and an index of eight bits")]
    pub(crate) fn of(ty: EventType) -> Self {
        const KINDS: [EventKind; 256] = {
            let mut kinds = [EventKind::Sync; 256];
            let mut ty = 0;
            while ty < 256 {
                kinds[ty] = EventKind::from_type(EventType(ty as u8));
                ty += 1;
            }
            kinds
        };
        KINDS[usize::from(ty.0)]
    }

    const fn from_type(ty: EventType) -> Self {
        use EventType as T;
        match ty {
            SYNC => Self::Sync,
            T::CPU_SAMPLE => Self::StackSample,
            T::PROCS_CHANGE | T::HEAP_ALLOC | T::HEAP_GOAL => Self::Metric,
            T::GO_LABEL => Self::Label,
            T::STW_BEGIN | T::GC_BEGIN | T::GC_SWEEP_BEGIN | T::GC_MARK_ASSIST_BEGIN => {
                Self::RangeBegin
            }
            T::GC_ACTIVE | T::GC_SWEEP_ACTIVE | T::GC_MARK_ASSIST_ACTIVE => Self::RangeActive,
            T::STW_END | T::GC_END | T::GC_SWEEP_END | T::GC_MARK_ASSIST_END => Self::RangeEnd,
            T::USER_TASK_BEGIN => Self::TaskBegin,
            T::USER_TASK_END => Self::TaskEnd,
            T::USER_REGION_BEGIN => Self::RegionBegin,
            T::USER_REGION_END => Self::RegionEnd,
            T::USER_LOG => Self::Log,
            EventType(128..) => Self::Experimental,
            _ => Self::StateTransition,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One event of a trace.
///
/// It borrows from the [`Reader`](crate::Reader) that returned it, is cheap to copy and has the
/// accessors of Go's `trace.Event`. Where Go panics because an accessor does not match the kind of
/// the event, these return `None`. [`Event::to_owned`] returns an owned event.
///
/// ```
/// # fn show(event: gotrace::Event<'_>) {
/// if let Some(transition) = event.state_transition() {
///     if let Some((from, to)) = transition.goroutine() {
///         println!("{} {}: {from} -> {to}", event.time(), transition.resource());
///     }
/// }
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Event<'a> {
    pub(crate) table: &'a Arc<Table>,
    pub(crate) record: &'a Record,
}

/// An owned [`Event`], which can be sent to another thread.
///
/// It shares the tables of its generation with the other events of that generation. The tables live
/// as long as any of these events.
#[derive(Clone)]
pub struct OwnedEvent {
    pub(crate) table: Arc<Table>,
    pub(crate) record: Record,
}

impl OwnedEvent {
    /// Returns the borrowed form, which has the accessors.
    #[inline]
    pub fn as_event(&self) -> Event<'_> {
        Event { table: &self.table, record: &self.record }
    }
}

impl PartialEq for Event<'_> {
    /// Whether both are the same event of the same reading of a trace: the identifiers of strings
    /// and stacks are compared, not what they stand for.
    fn eq(&self, other: &Self) -> bool {
        self.record == other.record && Arc::ptr_eq(self.table, other.table)
    }
}

impl Eq for Event<'_> {}

impl Hash for Event<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.table.serial, self.record).hash(state);
    }
}

impl PartialEq for OwnedEvent {
    /// As for [`Event`].
    fn eq(&self, other: &Self) -> bool {
        self.as_event() == other.as_event()
    }
}

impl Eq for OwnedEvent {}

impl Hash for OwnedEvent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_event().hash(state);
    }
}

impl<'a> Event<'a> {
    /// The kind of the event.
    #[inline]
    pub fn kind(self) -> EventKind {
        EventKind::of(self.record.ty)
    }

    /// The wire type of the event; `None` for [`EventKind::Sync`].
    #[inline]
    pub fn wire_type(self) -> Option<EventType> {
        (self.record.ty != SYNC).then_some(self.record.ty)
    }

    /// The time of the event: on `CLOCK_MONOTONIC` of the traced machine for Go ≥ 1.22 on Linux.
    ///
    /// No two events of a trace have the same time.
    #[inline]
    pub fn time(self) -> Timestamp {
        Timestamp::from_nanos(self.record.time)
    }

    /// The goroutine that was executing *before* the event's own state transition, if it has one.
    #[inline]
    pub fn goroutine(self) -> GoId {
        self.record.g
    }

    /// The proc that was executing *before* the event's own state transition, if it has one.
    #[inline]
    pub fn proc(self) -> ProcId {
        self.record.p
    }

    /// The thread on which the event happened.
    #[inline]
    pub fn thread(self) -> ThreadId {
        self.record.m
    }

    /// The number of the generation that the event belongs to; 0 in a v1 trace.
    #[inline]
    pub fn generation(self) -> u64 {
        self.table.generation
    }

    /// The stack of the goroutine that emitted the event.
    #[inline]
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// while let Some(event) = reader.next_event()? {
    ///     for frame in event.stack().iter().flat_map(|stack| stack.frames()) {
    ///         println!("{} at {}:{}", frame.function, frame.file, frame.line);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stack(self) -> Option<Stack<'a>> {
        if self.record.ty == EventType::CPU_SAMPLE {
            // A sample always has a stack, which may be empty.
            return Some(self.stack_of(self.record.args[0]));
        }
        let index = self.record.ty.plan().stack;
        if index == Plan::NONE {
            return None;
        }
        let id = self.record.args.get(usize::from(index)).copied()?;
        (id != 0).then(|| self.stack_of(id))
    }

    fn stack_of(self, id: u64) -> Stack<'a> {
        Stack { table: self.table, id }
    }

    fn string(self, arg: usize) -> &'a BStr {
        // Identifiers are validated before an event is returned. A recovering reader accepts
        // unknown ones and returns empty strings.
        let id = self.record.args.get(arg).copied().unwrap_or_default();
        self.table.string(id).unwrap_or_default()
    }

    /// The metric of an [`EventKind::Metric`].
    ///
    /// ```
    /// use gotrace::{Metric, Reader};
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// let mut peak = 0;
    /// while let Some(event) = reader.next_event()? {
    ///     match event.metric() {
    ///         Some(metric) if metric.name == Metric::HEAP_OBJECTS => {
    ///             peak = peak.max(metric.value.as_u64().unwrap_or(0));
    ///         }
    ///         _ => {}
    ///     }
    /// }
    /// assert!(peak > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn metric(self) -> Option<Metric> {
        let name = match self.record.ty {
            EventType::PROCS_CHANGE => Metric::GOMAXPROCS,
            EventType::HEAP_ALLOC => Metric::HEAP_OBJECTS,
            EventType::HEAP_GOAL => Metric::HEAP_GOAL,
            _ => return None,
        };
        Some(Metric { name, value: Value::Uint64(self.record.args[0]) })
    }

    /// The label of an [`EventKind::Label`].
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// let mut workers = 0;
    /// while let Some(event) = reader.next_event()? {
    ///     if event.label().is_some_and(|label| label.label.starts_with(b"GC (")) {
    ///         workers += 1; // a background worker of the GC starts to run
    ///     }
    /// }
    /// assert!(workers > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn label(self) -> Option<Label<'a>> {
        (self.kind() == EventKind::Label)
            .then(|| Label { label: self.string(0), resource: self.record.g.into() })
    }

    /// The range of an [`EventKind::RangeBegin`], [`RangeActive`](EventKind::RangeActive) or
    /// [`RangeEnd`](EventKind::RangeEnd).
    ///
    /// ```
    /// use gotrace::{EventKind, RangeName, Reader};
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// let mut pauses = 0;
    /// while let Some(event) = reader.next_event()? {
    ///     let range = event.range().filter(|_| event.kind() == EventKind::RangeBegin);
    ///     if let Some(RangeName::StopTheWorld(reason)) = range.map(|range| range.name) {
    ///         println!("{} the world stops: {reason}", event.time());
    ///         pauses += 1;
    ///     }
    /// }
    /// assert!(pauses > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range(self) -> Option<Range<'a>> {
        use EventType as T;
        let Record { ty, g, p, .. } = *self.record;
        let (name, scope) = match ty {
            T::STW_BEGIN | T::STW_END => (RangeName::StopTheWorld(self.string(0)), g.into()),
            T::GC_BEGIN | T::GC_ACTIVE | T::GC_END => (RangeName::GcMark, ResourceId::None),
            T::GC_SWEEP_ACTIVE => (RangeName::GcSweep, self.record.named_proc().into()),
            T::GC_SWEEP_BEGIN | T::GC_SWEEP_END => (RangeName::GcSweep, p.into()),
            T::GC_MARK_ASSIST_ACTIVE => {
                (RangeName::GcMarkAssist, self.record.named_goroutine().into())
            }
            T::GC_MARK_ASSIST_BEGIN | T::GC_MARK_ASSIST_END => (RangeName::GcMarkAssist, g.into()),
            _ => return None,
        };
        Some(Range { name, scope })
    }

    /// The attributes of a range that ends: the bytes swept and reclaimed by a "GC incremental
    /// sweep". `None` if this is not an [`EventKind::RangeEnd`].
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// while let Some(event) = reader.next_event()? {
    ///     for attribute in event.range_attributes().into_iter().flatten() {
    ///         println!("{} {}", attribute.name, attribute.value.as_u64().unwrap_or(0));
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn range_attributes(self) -> Option<impl Iterator<Item = RangeAttribute> + use<>> {
        let record = *self.record;
        let count = if record.ty == EventType::GC_SWEEP_END { 2 } else { 0 };
        (self.kind() == EventKind::RangeEnd).then(|| {
            ["bytes swept", "bytes reclaimed"]
                .into_iter()
                .zip(record.args)
                .take(count)
                .map(|(name, value)| RangeAttribute { name, value: Value::Uint64(value) })
        })
    }

    /// The task of an [`EventKind::TaskBegin`] or [`EventKind::TaskEnd`].
    ///
    /// ```
    /// use gotrace::{EventKind, Reader};
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// let mut tasks = 0;
    /// while let Some(event) = reader.next_event()? {
    ///     if let (EventKind::TaskEnd, Some(task)) = (event.kind(), event.task()) {
    ///         println!("{} of type {} ends", task.id, task.name);
    ///         tasks += 1;
    ///     }
    /// }
    /// assert!(tasks > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn task(self) -> Option<Task<'a>> {
        let record = self.record;
        let (parent, name) = match record.ty {
            EventType::USER_TASK_BEGIN => (record.begun_parent(), self.string(2)),
            EventType::USER_TASK_END => {
                let (parent, name) = record.ended_task();
                (parent, self.table.any(name))
            }
            _ => return None,
        };
        Some(Task { id: record.task(), parent, name })
    }

    /// The region of an [`EventKind::RegionBegin`] or [`EventKind::RegionEnd`].
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// while let Some(event) = reader.next_event()? {
    ///     if let Some(region) = event.region() {
    ///         println!("{} {} {} of task {}", event.time(), event.kind(), region.name, region.task);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn region(self) -> Option<Region<'a>> {
        matches!(self.kind(), EventKind::RegionBegin | EventKind::RegionEnd)
            .then(|| Region { task: self.record.task(), name: self.string(1) })
    }

    /// The message of an [`EventKind::Log`].
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// while let Some(event) = reader.next_event()? {
    ///     if let Some(log) = event.log() {
    ///         println!("{} {}: {}", event.time(), log.category, log.message);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn log(self) -> Option<Log<'a>> {
        (self.kind() == EventKind::Log).then(|| Log {
            task: self.record.task(),
            category: self.string(1),
            message: self.string(2),
        })
    }

    /// The transition of an [`EventKind::StateTransition`].
    ///
    /// ```
    /// use gotrace::{GoState, Reader};
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// let mut blocked = 0;
    /// while let Some(event) = reader.next_event()? {
    ///     let Some(transition) = event.state_transition() else { continue };
    ///     if let Some((GoState::Running, GoState::Waiting)) = transition.goroutine() {
    ///         println!("{} blocks: {}", transition.resource(), transition.reason());
    ///         blocked += 1;
    ///     }
    /// }
    /// assert!(blocked > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state_transition(self) -> Option<StateTransition<'a>> {
        use EventType as T;
        use GoState as G;
        use ProcState as P;
        let Record { ty, g, p, .. } = *self.record;
        let go = |id: GoId, from, to| StateTransition {
            resource: id.into(),
            reason: BStr::new(""),
            stack: None,
            from: State::Go(from),
            to: State::Go(to),
        };
        let proc = |id: ProcId, from, to| StateTransition {
            resource: id.into(),
            reason: BStr::new(""),
            stack: None,
            from: State::Proc(from),
            to: State::Proc(to),
        };
        let (first, first_proc) = (self.record.named_goroutine(), self.record.named_proc());
        Some(match ty {
            T::PROC_START => proc(first_proc, P::Idle, P::Running),
            T::PROC_STOP => proc(p, P::Running, P::Idle),
            T::PROC_STEAL | T::PROC_STATUS => StateTransition {
                from: self.record.from,
                to: self.record.to,
                ..proc(first_proc, P::Running, P::Idle)
            },
            T::GO_CREATE | T::GO_CREATE_BLOCKED => {
                let to = if ty == T::GO_CREATE { G::Runnable } else { G::Waiting };
                let (stack, from) = (
                    Some(self.stack_of(self.record.new_stack())),
                    self.record.go_from(G::NotExist),
                );
                StateTransition { stack, ..go(first, from, to) }
            }
            T::GO_CREATE_SYSCALL => go(first, G::NotExist, G::Syscall),
            T::GO_START => go(first, G::Runnable, G::Running),
            T::GO_DESTROY => go(g, G::Running, G::NotExist),
            T::GO_DESTROY_SYSCALL => go(g, G::Syscall, G::NotExist),
            T::GO_STOP | T::GO_BLOCK => {
                let to = if ty == T::GO_STOP { G::Runnable } else { G::Waiting };
                let (reason, stack) = (self.string(0), self.stack());
                let from = self.record.go_from(G::Running);
                StateTransition { reason, stack, ..go(g, from, to) }
            }
            // A switch is three events; the first one unblocks the next goroutine.
            T::GO_UNBLOCK | T::GO_SWITCH | T::GO_SWITCH_DESTROY => {
                go(first, G::Waiting, G::Runnable)
            }
            T::GO_SYSCALL_BEGIN => {
                let from = self.record.go_from(G::Running);
                StateTransition { stack: self.stack(), ..go(g, from, G::Syscall) }
            }
            T::GO_SYSCALL_END => go(g, G::Syscall, G::Running),
            T::GO_SYSCALL_END_BLOCKED => go(g, G::Syscall, G::Runnable),
            T::GO_STATUS | T::GO_STATUS_STACK => StateTransition {
                from: self.record.from,
                to: self.record.to,
                stack: self.stack(),
                ..go(first, G::Undetermined, G::Undetermined)
            },
            _ => return None,
        })
    }

    /// The content of an [`EventKind::Sync`]: data about the events up to the next one.
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// while let Some(event) = reader.next_event()? {
    ///     if let Some(clocks) = event.sync().and_then(|sync| sync.clock_snapshot()) {
    ///         println!("{} is {} s since the Unix epoch", clocks.trace, clocks.wall_seconds);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync(self) -> Option<SyncPoint<'a>> {
        (self.record.ty == SYNC).then(|| SyncPoint {
            n: self.record.sync_number(),
            restarts: self.record.restarts(),
            table: self.record.has_tables().then_some(self.table),
        })
    }

    /// The raw event of an [`EventKind::Experimental`].
    ///
    /// ```
    /// use gotrace::Reader;
    ///
    /// # fn main() -> Result<(), gotrace::Error> {
    /// # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
    /// let mut reader = Reader::new(file)?;
    /// while let Some(event) = reader.next_event()? {
    ///     for (name, value) in event.experimental().iter().flat_map(|event| event.args()) {
    ///         println!("{name} = {value}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn experimental(self) -> Option<ExperimentalEvent<'a>> {
        (self.kind() == EventKind::Experimental)
            .then_some(ExperimentalEvent { table: self.table, record: self.record })
    }

    /// Converts the event to an owned one, which can be stored or sent to another thread.
    #[inline]
    pub fn to_owned(self) -> OwnedEvent {
        OwnedEvent { table: Arc::clone(self.table), record: *self.record }
    }
}

/// A value of a metric, attribute or experimental argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Value {
    /// An unsigned number.
    Uint64(u64),
    /// A string.
    String(BString),
}

impl Value {
    /// The number, if it is one.
    pub const fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint64(value) => Some(*value),
            Self::String(_) => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&BStr> {
        match self {
            Self::Uint64(_) => None,
            Self::String(value) => Some(value.as_bstr()),
        }
    }
}

impl fmt::Display for Value {
    /// Go's text: `Value{Uint64(4)}`; a string without quotes or escapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uint64(value) => write!(f, "Value{{Uint64({value})}}"),
            Self::String(value) => fmt::Display::fmt(value, f),
        }
    }
}

/// The value of a metric, named as in Go's `runtime/metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Metric {
    /// The name, including the unit.
    pub name: &'static str,
    /// The value.
    pub value: Value,
}

impl Metric {
    /// `GOMAXPROCS`.
    pub const GOMAXPROCS: &'static str = "/sched/gomaxprocs:threads";
    /// Bytes of live objects and of unswept dead objects.
    pub const HEAP_OBJECTS: &'static str = "/memory/classes/heap/objects:bytes";
    /// The heap size at which the next garbage collection ends.
    pub const HEAP_GOAL: &'static str = "/gc/heap/goal:bytes";
}

/// A label for a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Label<'a> {
    /// The label.
    pub label: &'a BStr,
    /// The labelled resource.
    pub resource: ResourceId,
}

/// A named range of time, on one resource or global.
///
/// A resource has at most one open range of each name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Range<'a> {
    /// The name of the range.
    pub name: RangeName<'a>,
    /// The resource of the range; [`ResourceId::None`] for a global one. For an
    /// [`EventKind::RangeActive`] it may differ from the event's own resource.
    pub scope: ResourceId,
}

/// The name of a [`Range`]; `Display` gives Go's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RangeName<'a> {
    /// `stop-the-world (REASON)`, on the goroutine that stops the world.
    StopTheWorld(&'a BStr),
    /// `GC concurrent mark phase`, global.
    GcMark,
    /// `GC incremental sweep`, on a proc.
    GcSweep,
    /// `GC mark assist`, on a goroutine.
    GcMarkAssist,
}

impl fmt::Display for RangeName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopTheWorld(reason) => write!(f, "stop-the-world ({reason})"),
            Self::GcMark => f.write_str("GC concurrent mark phase"),
            Self::GcSweep => f.write_str("GC incremental sweep"),
            Self::GcMarkAssist => f.write_str("GC mark assist"),
        }
    }
}

/// An attribute of a range, known at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RangeAttribute {
    /// The name of the attribute.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
}

/// A task of `runtime/trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Task<'a> {
    /// The identifier of the task. It can be reused after the task has ended.
    pub id: TaskId,
    /// The parent task, or [`TaskId::NONE`].
    pub parent: TaskId,
    /// The `taskType` given to `NewTask`; empty for an end whose begin is not in the trace.
    pub name: &'a BStr,
}

/// A region of `runtime/trace`: an interval in the execution of one goroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Region<'a> {
    /// The task that it belongs to, or [`TaskId::BACKGROUND`].
    pub task: TaskId,
    /// The `regionType` given to `StartRegion` or `WithRegion`.
    pub name: &'a BStr,
}

/// A message of `runtime/trace`'s `Log` or `Logf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Log<'a> {
    /// The task that it belongs to, or [`TaskId::BACKGROUND`].
    pub task: TaskId,
    /// Its category.
    pub category: &'a BStr,
    /// Its message.
    pub message: &'a BStr,
}

/// A change of state of a goroutine or a proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateTransition<'a> {
    pub(crate) resource: ResourceId,
    pub(crate) reason: &'a BStr,
    pub(crate) stack: Option<Stack<'a>>,
    pub(crate) from: State,
    pub(crate) to: State,
}

impl<'a> StateTransition<'a> {
    /// The goroutine or proc whose state changes.
    pub const fn resource(&self) -> ResourceId {
        self.resource
    }

    /// The reason as the runtime reports it, e.g. `chan receive`; often empty.
    pub const fn reason(&self) -> &'a BStr {
        self.reason
    }

    /// The stack of the goroutine whose state changes. The event's own stack is the stack of the
    /// goroutine that caused the change: at a creation, this is the entry point of the new
    /// goroutine and [`Event::stack`] is the stack of its creator.
    pub const fn stack(&self) -> Option<Stack<'a>> {
        self.stack
    }

    /// The goroutine states (from, to); `None` if the resource is a proc.
    pub const fn goroutine(&self) -> Option<(GoState, GoState)> {
        match (self.from, self.to) {
            (State::Go(from), State::Go(to)) => Some((from, to)),
            _ => None,
        }
    }

    /// The proc states (from, to); `None` if the resource is a goroutine.
    pub const fn proc(&self) -> Option<(ProcState, ProcState)> {
        match (self.from, self.to) {
            (State::Proc(from), State::Proc(to)) => Some((from, to)),
            _ => None,
        }
    }
}

/// The content of a sync event: data about the events up to the next one.
#[derive(Clone, Copy)]
pub struct SyncPoint<'a> {
    n: u64,
    restarts: bool,
    table: Option<&'a Arc<Table>>,
}

impl<'a> SyncPoint<'a> {
    /// The number of the sync event in the trace, from 1.
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// Whether a generation begins with it, so that its time is that of the generation. The last sync
    /// event of a trace has the time of the event before it, and the one before damage in the first
    /// generation has no time of the trace: 1 ns.
    pub const fn begins_generation(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the generations before it are damaged, so that all states from before it may be wrong.
    /// What exists is mentioned again after it, as at the start of a trace. Only after
    /// [`Reader::recover`](crate::Reader::recover).
    pub const fn restarts(&self) -> bool {
        self.restarts
    }

    /// Readings of several clocks at one moment, which relate this trace to other data. Since Go
    /// 1.25; the last sync event of a trace has none.
    pub fn clock_snapshot(&self) -> Option<ClockSnapshot> {
        self.table?.sync.snapshot
    }

    /// Uninterpreted data of experiments, in the order of the trace.
    pub fn experimental_batches(&self) -> impl Iterator<Item = ExperimentalBatch<'a>> + use<'a> {
        self.table.into_iter().flat_map(|t| &t.experimental).map(|batch| ExperimentalBatch {
            experiment: batch.experiment,
            thread: batch.thread,
            data: &batch.data,
        })
    }
}

impl fmt::Debug for SyncPoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncPoint")
            .field("n", &self.n)
            .field("clock_snapshot", &self.clock_snapshot())
            .finish_non_exhaustive()
    }
}

/// A packet of data of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ExperimentalBatch<'a> {
    /// The experiment.
    pub experiment: Experiment,
    /// The thread that wrote the packet.
    pub thread: ThreadId,
    /// The data.
    pub data: &'a [u8],
}

/// An event of an experiment in raw form.
#[derive(Clone, Copy)]
pub struct ExperimentalEvent<'a> {
    table: &'a Arc<Table>,
    record: &'a Record,
}

impl<'a> ExperimentalEvent<'a> {
    /// The name of the event.
    pub fn name(&self) -> &'static str {
        self.record.ty.spec().map_or("", |spec| spec.name)
    }

    /// The experiment that it belongs to.
    pub fn experiment(&self) -> Experiment {
        self.record.ty.spec().map_or(Experiment::NONE, |spec| spec.experiment)
    }

    /// Names and values of the arguments.
    pub fn args(&self) -> impl Iterator<Item = (&'static str, Value)> + use<'a> {
        let Self { table, record } = *self;
        let names = record.ty.spec().and_then(|spec| spec.args.get(1..)).unwrap_or_default();
        names.iter().zip(record.args).map(|(&name, value)| {
            let value = if name.ends_with("string") {
                Value::String(table.string(value).unwrap_or_default().to_owned())
            } else {
                Value::Uint64(value)
            };
            (name, value)
        })
    }
}

impl fmt::Debug for ExperimentalEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name()).field("args", &self.args().collect::<Vec<_>>()).finish()
    }
}

/// A handle to a stack of a generation's table.
///
/// Handles are equal if they have the same identifier in the same table, so that their frames are the
/// same. Each generation of a trace has a table of its own: handles of different generations, or of two
/// readers of one trace, are never equal, also if their frames are.
/// [`has_same_frames`](Self::has_same_frames) compares the frames.
#[derive(Clone, Copy)]
pub struct Stack<'a> {
    pub(crate) table: &'a Arc<Table>,
    pub(crate) id: u64,
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StackFrame<'a> {
    /// The program counter: of the call, or, in the innermost frame, where the stack was taken.
    pub pc: u64,
    /// The name of the function.
    pub function: &'a BStr,
    /// The path of the source file.
    pub file: &'a BStr,
    /// The line in that file.
    pub line: u64,
}

impl<'a> Stack<'a> {
    /// The identifier of the stack in its generation. Together with [`Event::generation`] it is a
    /// cache key.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The frames, innermost first.
    #[expect(
        clippy::indexing_slicing,
        reason = "push_frame adds the frame of every index that a stack has"
    )]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = StackFrame<'a>> + use<'a> {
        let table = &**self.table;
        table.stack(self.id).iter().map(move |&index| {
            let Frame { pc, func, file, line } = table.frames[index as usize];
            let string = |id| table.string(id).unwrap_or_default();
            StackFrame { pc, function: string(func), file: string(file), line }
        })
    }

    /// Whether both stacks have the same frames: program counters, functions, files and lines. The
    /// stacks can be of different generations or traces.
    pub fn has_same_frames(&self, other: &Stack<'_>) -> bool {
        self == other || self.frames().eq(other.frames())
    }
}

impl PartialEq for Stack<'_> {
    /// Whether both are the same stack of the same table: see [`Stack::has_same_frames`].
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(self.table, other.table)
    }
}

impl Eq for Stack<'_> {}

impl Hash for Stack<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.table.serial, self.id).hash(state);
    }
}

impl fmt::Debug for Stack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::OwnedStack;

    #[test]
    fn frames_are_compared_across_tables() {
        let inner = StackFrame::new(16, "main.f", "f.go", 7);
        let outer = StackFrame::new(32, "main.main", "main.go", 9);
        let stack = OwnedStack::new(&[inner, outer]);
        let stack = stack.as_stack();
        let copy = OwnedStack::new(&[inner, outer]);
        assert!(stack == stack && stack.has_same_frames(&stack));
        assert!(stack != copy.as_stack() && stack.has_same_frames(&copy.as_stack()));
        let others: [&[StackFrame<'_>]; 7] = [
            &[],
            &[inner],
            &[outer, inner],
            &[StackFrame { pc: 17, ..inner }, outer],
            &[StackFrame { line: 8, ..inner }, outer],
            &[StackFrame { function: outer.function, ..inner }, outer],
            &[StackFrame { file: outer.file, ..inner }, outer],
        ];
        for frames in others {
            let other = OwnedStack::new(frames);
            assert!(!stack.has_same_frames(&other.as_stack()), "{frames:?}");
            assert!(other.as_stack().has_same_frames(&OwnedStack::new(frames).as_stack()));
        }
    }
}
