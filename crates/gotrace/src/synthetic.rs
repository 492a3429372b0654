//! Synthetic events, for the tests of programs that process events.
//!
//! [`EventConfig::build`] makes an event, [`OwnedStack::new`] a stack. The parts of an event have
//! constructors: [`Metric::new`], [`Label::new`], [`Range::new`], [`Task::new`], [`Region::new`],
//! [`Log::new`], [`StackFrame::new`], [`StateTransition::of_goroutine`],
//! [`StateTransition::of_proc`].

use crate::event::{
    ExperimentalBatch, Label, Log, Metric, OwnedEvent, Range, RangeName, Record, Region, SYNC,
    Stack, StackFrame, State, StateTransition, Task, Value,
};
use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId, ResourceKind, TaskId, ThreadId};
use crate::spec::{EventType, Experiment, MAX_ARGS, Plan};
use crate::table::{Batch, ClockSnapshot, Frame, Span, Table};
use bstr::{BStr, BString};
use std::sync::Arc;
use trace_common::Timestamp;

/// The configuration of an event for [`EventConfig::build`]: Go's `trace.EventConfig`.
///
/// ```
/// use gotrace::synthetic::{BuildError, EventConfig, EventDetails, OwnedStack};
/// use gotrace::{GoId, GoState, StackFrame, StateTransition, Timestamp};
///
/// # fn main() -> Result<(), BuildError> {
/// let stack = OwnedStack::new(&[StackFrame::new(0x10, "main.main", "main.go", 7)]);
/// let blocks = StateTransition::of_goroutine(GoId(1), GoState::Running, GoState::Waiting);
/// let event = EventConfig::new(EventDetails::StateTransition(blocks.with_reason("select")))
///     .time(Timestamp::from_nanos(100))
///     .stack(stack.as_stack())
///     .build()?;
/// let transition = event.as_event().state_transition().unwrap();
/// assert_eq!(transition.reason(), "select");
/// assert_eq!(transition.stack().unwrap().frames().next().unwrap().line, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EventConfig<'a> {
    time: Timestamp,
    goroutine: GoId,
    proc: ProcId,
    thread: ThreadId,
    stack: Option<Stack<'a>>,
    details: EventDetails<'a>,
}

/// The kind of a synthetic event, with the data of that kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventDetails<'a> {
    /// An [`EventKind::Sync`](crate::EventKind::Sync).
    Sync(SyncDetails<'a>),
    /// An [`EventKind::Metric`](crate::EventKind::Metric).
    Metric(Metric),
    /// An [`EventKind::Label`](crate::EventKind::Label).
    Label(Label<'a>),
    /// An [`EventKind::StackSample`](crate::EventKind::StackSample) of [`EventConfig::stack`].
    StackSample,
    /// An [`EventKind::RangeBegin`](crate::EventKind::RangeBegin).
    RangeBegin(Range<'a>),
    /// An [`EventKind::RangeActive`](crate::EventKind::RangeActive).
    RangeActive(Range<'a>),
    /// An [`EventKind::RangeEnd`](crate::EventKind::RangeEnd).
    RangeEnd(Range<'a>),
    /// An [`EventKind::TaskBegin`](crate::EventKind::TaskBegin).
    TaskBegin(Task<'a>),
    /// An [`EventKind::TaskEnd`](crate::EventKind::TaskEnd).
    TaskEnd(Task<'a>),
    /// An [`EventKind::RegionBegin`](crate::EventKind::RegionBegin).
    RegionBegin(Region<'a>),
    /// An [`EventKind::RegionEnd`](crate::EventKind::RegionEnd).
    RegionEnd(Region<'a>),
    /// An [`EventKind::Log`](crate::EventKind::Log).
    Log(Log<'a>),
    /// An [`EventKind::StateTransition`](crate::EventKind::StateTransition).
    StateTransition(StateTransition<'a>),
}

/// The data of a synthetic sync event.
#[derive(Clone, Debug, Default)]
pub struct SyncDetails<'a> {
    /// The number of the sync event in its trace, from 1.
    pub n: u64,
    /// Readings of several clocks at one moment.
    pub clock_snapshot: Option<ClockSnapshot>,
    /// Data of experiments.
    pub experimental_batches: Vec<ExperimentalBatch<'a>>,
}

/// The reason why an event cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No event has a metric of this name.
    #[error("unknown metric {0:?}")]
    UnknownMetric(&'static str),
    /// The value of a metric is not a number.
    #[error("the value of a metric must be a number, not {0}")]
    MetricValue(Value),
    /// The event requires a resource of another kind.
    #[error("{what} needs a resource of kind {expected}, not {found}")]
    Resource {
        /// The item that requires the resource.
        what: &'static str,
        /// The kind that it requires.
        expected: ResourceKind,
        /// The resource given.
        found: ResourceId,
    },
    /// No event reports a stop-the-world as active.
    #[error("there is no event for a stop-the-world that is active")]
    ActiveStopTheWorld,
    /// [`TaskId::NONE`] begins or ends.
    #[error("a task needs an identifier")]
    NoTask,
    /// No event has this transition of a goroutine.
    #[error("no event takes a goroutine from {from} to {to}")]
    GoTransition {
        /// The state before.
        from: GoState,
        /// The state after.
        to: GoState,
    },
    /// No event has this transition of a proc.
    #[error("no event takes a proc from {from} to {to}")]
    ProcTransition {
        /// The state before.
        from: ProcState,
        /// The state after.
        to: ProcState,
    },
    /// An experiment that has no name.
    #[error("unknown experiment {}", .0.0)]
    UnknownExperiment(Experiment),
    /// The event has no field for a given value.
    #[error("{event} events have no {what}")]
    NoPlace {
        /// The wire event for these details.
        event: &'static str,
        /// The value that it has no field for.
        what: &'static str,
    },
    /// The event applies to the executing goroutine or proc, and a different one is given as
    /// executing.
    #[error("the event happens to {what} {expected} itself, but is given {what} {found}")]
    Context {
        /// `goroutine` or `proc`.
        what: &'static str,
        /// The one in the details.
        expected: i64,
        /// The one that was given as executing.
        found: i64,
    },
}

impl<'a> EventConfig<'a> {
    /// Makes a configuration with these details, time 0, no goroutine, proc or thread, and no
    /// stack.
    pub const fn new(details: EventDetails<'a>) -> Self {
        Self {
            time: Timestamp::from_nanos(0),
            goroutine: GoId::NONE,
            proc: ProcId::NONE,
            thread: ThreadId::NONE,
            stack: None,
            details,
        }
    }

    /// Sets the time.
    #[must_use]
    pub const fn time(mut self, time: Timestamp) -> Self {
        self.time = time;
        self
    }

    /// Sets the goroutine that executes before the event's own transition. It may be omitted if the
    /// event applies to the executing goroutine itself.
    #[must_use]
    pub const fn goroutine(mut self, goroutine: GoId) -> Self {
        self.goroutine = goroutine;
        self
    }

    /// Sets the proc that executes before the event's own transition. A proc that changes from
    /// running to idle is stopped if it is this one, and stolen if it is another.
    #[must_use]
    pub const fn proc(mut self, proc: ProcId) -> Self {
        self.proc = proc;
        self
    }

    /// Sets the thread.
    #[must_use]
    pub const fn thread(mut self, thread: ThreadId) -> Self {
        self.thread = thread;
        self
    }

    /// Sets the stack of the goroutine that emits the event. Its frames are copied.
    #[must_use]
    pub const fn stack(mut self, stack: Stack<'a>) -> Self {
        self.stack = Some(stack);
        self
    }

    /// Makes the event: Go's `trace.MakeEvent`.
    ///
    /// A transition becomes the wire event that a trace would contain: a goroutine that changes
    /// from waiting to runnable is unblocked, never switched to.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if no event of a trace can contain all of the configuration. Where Go's
    /// `MakeEvent` drops values that the event has no field for, or returns another transition,
    /// this returns an error.
    pub fn build(self) -> Result<OwnedEvent, BuildError> {
        let Self { time, goroutine, proc, thread, stack, details } = self;
        let record = Record {
            g: goroutine,
            p: proc,
            m: thread,
            ..Record::new(EventType::default(), time.nanos(), [0; MAX_ARGS])
        };
        let mut builder = Builder { table: Table::new(0), record, stack };
        builder.details(details)?;
        builder.finish()
    }
}

struct Builder<'a> {
    table: Table,
    record: Record,
    /// The stack of the event, until it is added to the table.
    stack: Option<Stack<'a>>,
}

impl<'a> Builder<'a> {
    fn details(&mut self, details: EventDetails<'a>) -> Result<(), BuildError> {
        use EventType as T;
        match details {
            EventDetails::Sync(sync) => self.sync(sync),
            EventDetails::Metric(metric) => self.metric(&metric),
            EventDetails::Label(Label { label, resource }) => {
                let ResourceId::Goroutine(go) = resource else {
                    return Err(wrong_resource("a label", ResourceKind::Goroutine, resource));
                };
                let label = self.string(label);
                self.set(T::GO_LABEL, [label, 0, 0, 0]);
                self.happens_to(go)
            }
            EventDetails::StackSample => {
                let stack = self.stack.take().map_or(0, |stack| add_stack(&mut self.table, stack));
                self.set(T::CPU_SAMPLE, [stack, 0, 0, 0]);
                Ok(())
            }
            EventDetails::RangeBegin(range) => self.range(range, Phase::Begin),
            EventDetails::RangeActive(range) => self.range(range, Phase::Active),
            EventDetails::RangeEnd(range) => self.range(range, Phase::End),
            EventDetails::TaskBegin(task) | EventDetails::TaskEnd(task)
                if task.id == TaskId::NONE =>
            {
                Err(BuildError::NoTask)
            }
            EventDetails::TaskBegin(Task { id, parent, name }) => {
                let name = self.string(name);
                self.set(T::USER_TASK_BEGIN, [id.0, parent.0, name, 0]);
                Ok(())
            }
            EventDetails::TaskEnd(Task { id, parent, name }) => {
                let name = self.table.add(shared(name));
                self.set(T::USER_TASK_END, [id.0, 0, parent.0, name]);
                Ok(())
            }
            EventDetails::RegionBegin(Region { task, name }) => {
                let name = self.string(name);
                self.set(T::USER_REGION_BEGIN, [task.0, name, 0, 0]);
                Ok(())
            }
            EventDetails::RegionEnd(Region { task, name }) => {
                let name = self.string(name);
                self.set(T::USER_REGION_END, [task.0, name, 0, 0]);
                Ok(())
            }
            EventDetails::Log(Log { task, category, message }) => {
                let (category, message) = (self.string(category), self.string(message));
                self.set(T::USER_LOG, [task.0, category, message, 0]);
                Ok(())
            }
            EventDetails::StateTransition(transition) => match transition.resource {
                ResourceId::Goroutine(go) => self.goroutine(go, transition),
                ResourceId::Proc(proc) => self.proc(proc, transition),
                found => {
                    let what = "a state transition";
                    Err(wrong_resource(what, ResourceKind::Goroutine, found))
                }
            },
        }
    }

    fn set(&mut self, ty: EventType, args: [u64; MAX_ARGS]) {
        self.record.ty = ty;
        self.record.args = args;
    }

    fn string(&mut self, string: &BStr) -> u64 {
        add_string(&mut self.table, string)
    }

    /// The event applies to the executing goroutine itself.
    fn happens_to(&mut self, go: GoId) -> Result<(), BuildError> {
        let given = std::mem::replace(&mut self.record.g, go);
        if given.is_some() && given != go {
            let (expected, found) = (go.0, given.0);
            return Err(BuildError::Context { what: "goroutine", expected, found });
        }
        Ok(())
    }

    /// The event applies to the executing proc itself.
    fn happens_to_proc(&mut self, proc: ProcId) -> Result<(), BuildError> {
        let given = std::mem::replace(&mut self.record.p, proc);
        if given.is_some() && given != proc {
            let (expected, found) = (proc.0, given.0);
            return Err(BuildError::Context { what: "proc", expected, found });
        }
        Ok(())
    }

    fn sync(&mut self, sync: SyncDetails<'_>) -> Result<(), BuildError> {
        self.set(SYNC, Record::sync(0, sync.n, true).args);
        self.table.sync.snapshot = sync.clock_snapshot;
        for ExperimentalBatch { experiment, thread, data } in sync.experimental_batches {
            if experiment.name().is_none() {
                return Err(BuildError::UnknownExperiment(experiment));
            }
            self.table.experimental.push(Batch { experiment, thread, data: Box::from(data) });
        }
        Ok(())
    }

    fn metric(&mut self, metric: &Metric) -> Result<(), BuildError> {
        let Some(value) = metric.value.as_u64() else {
            return Err(BuildError::MetricValue(metric.value.clone()));
        };
        let ty = match metric.name {
            Metric::GOMAXPROCS => EventType::PROCS_CHANGE,
            Metric::HEAP_OBJECTS => EventType::HEAP_ALLOC,
            Metric::HEAP_GOAL => EventType::HEAP_GOAL,
            name => return Err(BuildError::UnknownMetric(name)),
        };
        self.set(ty, [value, 0, 0, 0]);
        Ok(())
    }

    fn range(&mut self, range: Range<'_>, phase: Phase) -> Result<(), BuildError> {
        use EventType as T;
        let Range { name, scope } = range;
        match (name, scope) {
            (RangeName::GcMark, ResourceId::None) => {
                self.set(phase.of(T::GC_BEGIN, T::GC_ACTIVE, T::GC_END), [0; MAX_ARGS]);
                Ok(())
            }
            (RangeName::GcSweep, ResourceId::Proc(proc)) => {
                let ty = phase.of(T::GC_SWEEP_BEGIN, T::GC_SWEEP_ACTIVE, T::GC_SWEEP_END);
                if phase == Phase::Active {
                    self.set(ty, [proc.0 as u64, 0, 0, 0]);
                    return Ok(());
                }
                self.set(ty, [0; MAX_ARGS]);
                self.happens_to_proc(proc)
            }
            (RangeName::GcMarkAssist, ResourceId::Goroutine(go)) => {
                let (begin, end) = (T::GC_MARK_ASSIST_BEGIN, T::GC_MARK_ASSIST_END);
                let ty = phase.of(begin, T::GC_MARK_ASSIST_ACTIVE, end);
                if phase == Phase::Active {
                    self.set(ty, [go.0 as u64, 0, 0, 0]);
                    return Ok(());
                }
                self.set(ty, [0; MAX_ARGS]);
                self.happens_to(go)
            }
            (RangeName::StopTheWorld(reason), ResourceId::Goroutine(go)) => {
                if phase == Phase::Active {
                    return Err(BuildError::ActiveStopTheWorld);
                }
                let reason = self.string(reason);
                self.set(phase.of(T::STW_BEGIN, T::STW_BEGIN, T::STW_END), [reason, 0, 0, 0]);
                self.happens_to(go)
            }
            (name, found) => {
                let expected = match name {
                    RangeName::GcMark => ResourceKind::None,
                    RangeName::GcSweep => ResourceKind::Proc,
                    _ => ResourceKind::Goroutine,
                };
                Err(wrong_resource("the range", expected, found))
            }
        }
    }

    fn proc(&mut self, proc: ProcId, transition: StateTransition<'a>) -> Result<(), BuildError> {
        use EventType as T;
        use ProcState as P;
        let Some((from, to)) = transition.proc() else {
            let found = transition.resource;
            return Err(wrong_resource("the states", ResourceKind::Goroutine, found));
        };
        let id = proc.0 as u64;
        let (ty, args) = match (from, to) {
            (P::Idle, P::Running) => (T::PROC_START, [id, 0, 0, 0]),
            (P::Running, P::Idle) if proc == self.record.p => (T::PROC_STOP, [0; MAX_ARGS]),
            // Stolen in a system call; its previous state may no longer be known.
            (P::Running | P::Idle, P::Idle) => (T::PROC_STEAL, [id, 0, 0, 0]),
            (_, P::Running) => (T::PROC_STATUS, [id, 1, 0, 0]),
            (_, P::Idle) => (T::PROC_STATUS, [id, 2, 0, 0]),
            _ => return Err(BuildError::ProcTransition { from, to }),
        };
        self.set(ty, args);
        (self.record.from, self.record.to) = (transition.from, transition.to);
        self.has_no(transition.stack.is_some(), "stack of the proc")?;
        self.has_no(!transition.reason.is_empty(), "reason")
    }

    fn goroutine(&mut self, go: GoId, transition: StateTransition<'a>) -> Result<(), BuildError> {
        use EventType as T;
        use GoState as G;
        let StateTransition { reason, stack, resource, .. } = transition;
        let Some((from, to)) = transition.goroutine() else {
            return Err(wrong_resource("the states", ResourceKind::Proc, resource));
        };
        let id = [go.0 as u64, 0, 0, 0];
        let (ty, itself) = match (from, to) {
            (_, G::NotExist) if !from.executing() => {
                return Err(BuildError::GoTransition { from, to });
            }
            (G::NotExist, G::Runnable) => (T::GO_CREATE, false),
            (G::NotExist, G::Waiting) => (T::GO_CREATE_BLOCKED, false),
            (G::NotExist, G::Syscall) => (T::GO_CREATE_SYSCALL, false),
            (G::Runnable, G::Running) => (T::GO_START, false),
            (G::Waiting, G::Runnable) => (T::GO_UNBLOCK, false),
            (G::Running, G::NotExist) => (T::GO_DESTROY, true),
            (G::Running, G::Runnable) => (T::GO_STOP, true),
            (G::Running, G::Waiting) => (T::GO_BLOCK, true),
            (G::Running, G::Syscall) => (T::GO_SYSCALL_BEGIN, true),
            (G::Syscall, G::NotExist) => (T::GO_DESTROY_SYSCALL, true),
            (G::Syscall, G::Running) => (T::GO_SYSCALL_END, true),
            (G::Syscall, G::Runnable) => (T::GO_SYSCALL_END_BLOCKED, true),
            (G::Undetermined, _) => (T::GO_STATUS, false),
            _ if from == to => (T::GO_STATUS, false),
            _ => return Err(BuildError::GoTransition { from, to }),
        };
        self.set(ty, if itself { [0; MAX_ARGS] } else { id });
        (self.record.from, self.record.to) = (transition.from, transition.to);
        if itself {
            self.happens_to(go)?;
        }
        match ty {
            T::GO_STOP | T::GO_BLOCK => self.record.args[0] = self.string(reason),
            _ => self.has_no(!reason.is_empty(), "reason")?,
        }
        match (ty, stack) {
            (T::GO_CREATE | T::GO_CREATE_BLOCKED, Some(stack)) => {
                self.record.args[1] = add_stack(&mut self.table, stack);
            }
            (T::GO_STOP | T::GO_BLOCK | T::GO_SYSCALL_BEGIN | T::GO_STATUS, Some(stack)) => {
                // Here the stack of the event equals that of the transition.
                let one = *self.stack.get_or_insert(stack);
                let differs = !one.frames().eq(stack.frames());
                self.has_no(differs, "stack of the transition besides their own")?;
            }
            (_, stack) => self.has_no(stack.is_some(), "stack of the goroutine")?,
        }
        if ty == T::GO_STATUS && self.stack.is_some() {
            self.record.ty = T::GO_STATUS_STACK;
        }
        Ok(())
    }

    /// Rejects values that the event has no field for.
    fn has_no(&self, given: bool, what: &'static str) -> Result<(), BuildError> {
        let event = self.record.ty.spec().map_or("Sync", |spec| spec.name);
        if given { Err(BuildError::NoPlace { event, what }) } else { Ok(()) }
    }

    fn finish(mut self) -> Result<OwnedEvent, BuildError> {
        if let Some(stack) = self.stack {
            let place = self.record.ty.plan().stack;
            self.has_no(place == Plan::NONE, "stack")?;
            if let Some(arg) = self.record.args.get_mut(usize::from(place)) {
                *arg = add_stack(&mut self.table, stack);
            }
        }
        Ok(OwnedEvent { table: Arc::new(self.table), record: self.record })
    }
}

/// The part of a range that an event reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Begin,
    Active,
    End,
}

impl Phase {
    fn of(self, begin: EventType, active: EventType, end: EventType) -> EventType {
        match self {
            Self::Begin => begin,
            Self::Active => active,
            Self::End => end,
        }
    }
}

fn wrong_resource(what: &'static str, expected: ResourceKind, found: ResourceId) -> BuildError {
    BuildError::Resource { what, expected, found }
}

fn add_string(table: &mut Table, string: &BStr) -> u64 {
    if string.is_empty() {
        return 0;
    }
    let id = table.strings.len() as u64 + 1;
    table.strings.insert(id, shared(string));
    id
}

fn shared(string: &BStr) -> Arc<[u8]> {
    let bytes: &[u8] = string;
    Arc::from(bytes)
}

/// Adds a stack. Every frame is kept unchanged: two frames with the same PC may differ.
fn add_stack(table: &mut Table, stack: Stack<'_>) -> u64 {
    let frames = stack.frames();
    let len = frames.len() as u32;
    add_frames(table, frames, len)
}

fn add_frames<'a>(
    table: &mut Table,
    frames: impl Iterator<Item = StackFrame<'a>>,
    len: u32,
) -> u64 {
    let start = table.stack_frames.len() as u32;
    for StackFrame { pc, function, file, line } in frames {
        let (func, file) = (add_string(table, function), add_string(table, file));
        table.stack_frames.push(table.frames.len() as u32);
        table.frames.push(Frame { pc, func, file, line });
    }
    let id = table.stacks.len() as u64 + 1;
    table.stacks.insert(id, Span { start, len });
    id
}

/// A synthetic stack: Go's `trace.MakeStack`.
#[derive(Clone, Debug)]
pub struct OwnedStack {
    table: Arc<Table>,
    id: u64,
}

impl OwnedStack {
    /// Makes a stack of these frames, innermost first.
    pub fn new(frames: &[StackFrame<'_>]) -> Self {
        let mut table = Table::new(0);
        let id = add_frames(&mut table, frames.iter().copied(), frames.len() as u32);
        Self { table: Arc::new(table), id }
    }

    /// Returns the stack, for example to pass it to an event.
    pub fn as_stack(&self) -> Stack<'_> {
        Stack { table: &self.table, id: self.id }
    }
}

impl<'a> StackFrame<'a> {
    /// Makes a frame.
    pub fn new(
        pc: u64,
        function: &'a (impl AsRef<[u8]> + ?Sized),
        file: &'a (impl AsRef<[u8]> + ?Sized),
        line: u64,
    ) -> Self {
        Self { pc, function: BStr::new(function), file: BStr::new(file), line }
    }
}

impl<'a> StateTransition<'a> {
    /// Makes a transition of a goroutine: Go's `trace.MakeGoStateTransition`.
    pub fn of_goroutine(id: GoId, from: GoState, to: GoState) -> Self {
        let (from, to) = (State::Go(from), State::Go(to));
        Self { resource: id.into(), reason: BStr::new(""), stack: None, from, to }
    }

    /// Makes a transition of a proc: Go's `trace.MakeProcStateTransition`.
    pub fn of_proc(id: ProcId, from: ProcState, to: ProcState) -> Self {
        let (from, to) = (State::Proc(from), State::Proc(to));
        Self { resource: id.into(), reason: BStr::new(""), stack: None, from, to }
    }

    /// Sets the reason. Only goroutines that stop or block have one.
    #[must_use]
    pub fn with_reason(self, reason: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { reason: BStr::new(reason), ..self }
    }

    /// Sets the stack of the goroutine whose state changes.
    #[must_use]
    pub fn with_stack(self, stack: Stack<'a>) -> Self {
        Self { stack: Some(stack), ..self }
    }
}

impl Metric {
    /// Makes a metric with a value.
    pub fn new(name: &'static str, value: impl Into<Value>) -> Self {
        Self { name, value: value.into() }
    }
}

impl<'a> Label<'a> {
    /// Makes a label for a resource.
    pub fn new(label: &'a (impl AsRef<[u8]> + ?Sized), resource: impl Into<ResourceId>) -> Self {
        Self { label: BStr::new(label), resource: resource.into() }
    }
}

impl<'a> Range<'a> {
    /// Makes a range on a resource.
    pub fn new(name: RangeName<'a>, scope: impl Into<ResourceId>) -> Self {
        Self { name, scope: scope.into() }
    }
}

impl<'a> Task<'a> {
    /// Makes a task; `parent` is [`TaskId::NONE`] if it has none.
    pub fn new(id: TaskId, parent: TaskId, name: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { id, parent, name: BStr::new(name) }
    }
}

impl<'a> Region<'a> {
    /// Makes a region.
    pub fn new(task: TaskId, name: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { task, name: BStr::new(name) }
    }
}

impl<'a> Log<'a> {
    /// Makes a message.
    pub fn new(
        task: TaskId,
        category: &'a (impl AsRef<[u8]> + ?Sized),
        message: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> Self {
        Self { task, category: BStr::new(category), message: BStr::new(message) }
    }
}

impl<'a> ExperimentalBatch<'a> {
    /// Makes a packet of data.
    pub const fn new(experiment: Experiment, thread: ThreadId, data: &'a [u8]) -> Self {
        Self { experiment, thread, data }
    }
}

impl From<u64> for Value {
    /// Go's `trace.Uint64Value`.
    fn from(value: u64) -> Self {
        Self::Uint64(value)
    }
}

impl From<&str> for Value {
    /// Go's `trace.StringValue`.
    fn from(value: &str) -> Self {
        Self::String(value.into())
    }
}

impl From<BString> for Value {
    /// Go's `trace.StringValue`.
    fn from(value: BString) -> Self {
        Self::String(value)
    }
}
