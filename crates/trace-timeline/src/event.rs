//! The events of a timeline.

use crate::entity::EntityId;
use crate::tables::{SampledEventId, SpanId, StackId, TextId};
use std::fmt;
use trace_common::{ClockDomain, Timestamp};

/// Something that happened at one moment. Small and without allocations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// The time, on the clock of the timeline.
    pub time: Timestamp,
    /// The kind, with its details.
    pub kind: EventKind,
}

/// The kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// An entity is created, or mentioned for the first time: [`Entity::start`](crate::Entity)
    /// says which. The creation of a thread can follow its first mention, where a recorder listed it
    /// before. Of a process, thread or CPU that several sources mention, each can have one, and a thread has
    /// another one when its process becomes known: the first one counts.
    Start {
        /// The entity.
        entity: EntityId,
    },
    /// An entity ends. Of a CPU it is the end of its recording: no thread's state is known any more.
    End {
        /// The entity.
        entity: EntityId,
    },
    /// A goroutine, P or runtime thread is in this state from now on.
    State {
        /// The goroutine, P or runtime thread.
        entity: EntityId,
        /// The state, as its own scheduler reports it.
        state: State,
        /// The runtime thread that executes it.
        on: Option<EntityId>,
        /// Why it left the state before, e.g. `chan receive`; often empty.
        reason: TextId,
        /// Its stack, where it stopped.
        stack: Option<StackId>,
    },
    /// The state of a goroutine in the event before, with which it is first mentioned, holds since an earlier
    /// time: a Go trace mentions a goroutine that does nothing at the end of its generation.
    Since {
        /// The goroutine.
        entity: EntityId,
        /// Since when.
        since: Timestamp,
    },
    /// The kernel switches a CPU from one thread to another.
    Switch {
        /// The CPU.
        cpu: EntityId,
        /// The thread that leaves it; `None` for the idle thread, and for a thread that was not
        /// recorded.
        prev: Option<EntityId>,
        /// The state of that thread from now on.
        left: ThreadState,
        /// The thread that gets it; `None` as for `prev`.
        next: Option<EntityId>,
        /// Whether `next` is a thread that was not recorded, instead of the idle thread.
        is_next_unknown: bool,
        /// The kernel's priority of `next`: 120 is a nice value of 0, and an unknown priority.
        prio: i16,
    },
    /// One entity makes another one continue.
    Flow {
        /// The kind.
        kind: FlowKind,
        /// The entity that caused it, if any is known: a goroutine, or the thread that did it for
        /// the runtime (network poller, timers).
        from: Option<EntityId>,
        /// The context in which the CPU executed.
        context: Context,
        /// The CPU on which it happened, if it is known.
        on: Option<EntityId>,
        /// The entity that continues.
        to: EntityId,
        /// Of a thread: the CPU on which it last ran; of a new one, the one whose queue it is in.
        cpu: Option<EntityId>,
        /// The stack of the cause.
        stack: Option<StackId>,
    },
    /// A thread that waits for a CPU is in the queue of this one from now on: the kernel has chosen it for a thread
    /// that was woken, or moves the thread. Most recordings do not say it. Then the [`Correlator`](crate::Correlator)
    /// infers it from the CPU that the thread gets.
    Queue {
        /// The thread.
        thread: EntityId,
        /// The CPU from which it is moved.
        from: Option<EntityId>,
        /// The CPU.
        cpu: EntityId,
    },
    /// A span begins. Spans of one entity may overlap.
    Begin {
        /// Its identifier, which [`EventKind::Finish`] repeats.
        span: SpanId,
        /// The entity that it belongs to: a goroutine, a thread, a P, or a process.
        entity: EntityId,
        /// The kind.
        kind: SpanKind,
        /// The name: of a region or task its type, of a stop-the-world its reason.
        name: TextId,
        /// The entity that began it, if that is not `entity`.
        by: Option<EntityId>,
        /// The task, activity, GC or owner of the lock; of a task or activity its parent.
        of: Option<EntityId>,
        /// Where it began.
        stack: Option<StackId>,
    },
    /// A span ends.
    Finish {
        /// Its identifier.
        span: SpanId,
        /// The entity that ended it, if that is not its entity.
        by: Option<EntityId>,
        /// Whether its end is not known, because events are missing, too many spans were open, or its trace
        /// ends: it may have ended before, or last longer. Or whether it is a mark phase of Go that began before its
        /// trace, or before a loss.
        is_cut: bool,
    },
    /// Something without a duration.
    Instant {
        /// The entity that it belongs to.
        entity: EntityId,
        /// The kind.
        kind: InstantKind,
        /// The name or message.
        name: TextId,
        /// The task or activity.
        of: Option<EntityId>,
        /// The stack.
        stack: Option<StackId>,
    },
    /// A named value of the next event, which is of the same source and time and is not an
    /// argument: a begin or end of a span, an instant, a sample, or a loss.
    /// [`Streams`](crate::Streams) keeps them together.
    Argument {
        /// The name.
        name: TextId,
        /// The value.
        value: Value,
    },
    /// A counter has this value from now on.
    Counter {
        /// The entity that it belongs to.
        entity: EntityId,
        /// The name.
        name: TextId,
        /// The unit, e.g. `B`; empty for a number.
        unit: TextId,
        /// The value.
        value: f64,
    },
    /// A sample of a profiler.
    Sample {
        /// The sampled goroutine or thread; if neither is known, the P or the process.
        entity: EntityId,
        /// The kind.
        kind: SampleKind,
        /// The stack.
        stack: Option<StackId>,
        /// The weight in the [unit](SampleKind::unit) of the kind; with an `event` the number of
        /// these since the last sample, in its unit.
        weight: u64,
        /// The thread, if the entity is not one.
        thread: Option<EntityId>,
        /// The CPU, if the profiler reports it.
        cpu: Option<EntityId>,
        /// The event of the kernel that is sampled.
        event: SampledEventId,
        /// The task or activity that it belongs to.
        of: Option<EntityId>,
    },
    /// A reading of another clock.
    Clock {
        /// When it was taken, on the clock of the timeline. The event has the time of the next one of
        /// its source.
        time: Timestamp,
        /// The other clock.
        domain: ClockDomain,
        /// Its time.
        reading: Timestamp,
    },
    /// A cgroup had used up its CPU quota: its threads were runnable and could not run. The kernel
    /// counts this per cgroup.
    Throttle {
        /// A process of the cgroup, or of one below it.
        process: EntityId,
        /// The directory of the cgroup; empty if it is not known. The quota of an ancestor throttles the
        /// processes below it.
        cgroup: TextId,
        /// The time of an earlier reading of the counters: the one before, or the last one before the first of the
        /// periods began.
        since: Timestamp,
        /// Nanoseconds of throttling that ended between `since` and now, summed over CPUs.
        nanos: i64,
        /// Periods in which the cgroup was throttled.
        periods: u32,
    },
    /// Records are missing. The argument `why` of a runtime's trace says why.
    Loss {
        /// The entity that they were about: a CPU, or a process; `None` if it is unknown.
        entity: Option<EntityId>,
        /// The kind.
        kind: LossKind,
        /// Nothing is missing before this time, as far as it is known. A loss before the first event of its trace or
        /// CPU has the time of that event, and one of the kernel whose CPU is unknown that of the end.
        since: Timestamp,
        /// The number of records, or of bytes of a Go trace, if it is known.
        count: Option<u64>,
    },
}

/// The value of an [argument](EventKind::Argument).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// An unsigned integer.
    Uint(u64),
    /// A signed integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(TextId),
    /// An entity.
    Entity(EntityId),
}

/// The state of a goroutine, P or runtime thread in its own scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum State {
    /// Not known: before the first event, or after a loss.
    #[default]
    Unknown,
    /// Executes as far as its scheduler knows. The kernel may have taken the CPU away.
    Running,
    /// Could execute, and waits for its scheduler.
    Runnable,
    /// Waits for something.
    Waiting,
    /// In a system call or in C code.
    Syscall,
    /// A P without work.
    Idle,
}

impl State {
    /// A stable name: `runnable`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Running => "running",
            Self::Runnable => "runnable",
            Self::Waiting => "waiting",
            Self::Syscall => "syscall",
            Self::Idle => "idle",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of a thread that leaves a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ThreadState {
    /// Not known.
    #[default]
    Unknown,
    /// `TASK_RUNNING`: it could continue, and waits for a CPU.
    Preempted,
    /// `TASK_INTERRUPTIBLE` and idle kernel threads: waits for something.
    Sleeping,
    /// `TASK_UNINTERRUPTIBLE`: waits for the kernel, usually for a disk, a page or a lock.
    Blocked,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Ended.
    Dead,
}

/// The kind of a [flow](EventKind::Flow).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FlowKind {
    /// Ends a wait.
    Wakes,
    /// Creates.
    Creates,
    /// Hands its P over: a switch of coroutines.
    HandsOver,
    /// Gives its work to another one: a worker takes the work item or task that it queued, or continues with the
    /// method in which it awaited.
    Continues,
}

/// The context in which a CPU executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Context {
    /// Not known.
    #[default]
    Unknown,
    /// A thread.
    Task,
    /// A hardware interrupt, which interrupted a thread that has nothing to do with it.
    HardIrq,
    /// A software interrupt, such as received packets or timers.
    SoftIrq,
}

/// The kind of a [span](EventKind::Begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// A task of Go's `runtime/trace`: one request, on any number of goroutines.
    Task,
    /// A region of Go's `runtime/trace`.
    Region,
    /// An activity of .NET.
    Activity,
    /// A request that a .NET program serves or sends: an activity of ASP.NET Core's hosting or of
    /// `HttpClient`. Or one that an own source knows. Its entity is an
    /// [`EntityKind::Request`](crate::EntityKind::Request), and the thread that serves it is the `by` of its
    /// begin and end.
    Request,
    /// A garbage collection; in Go its concurrent mark phase.
    Gc,
    /// A goroutine helps the garbage collector because it allocates.
    GcAssist,
    /// A P sweeps.
    GcSweep,
    /// All goroutines or managed threads are stopped, from the request to the resumption.
    StopTheWorld,
    /// A method is compiled.
    Jit,
    /// A thread waits for a lock; `of` is the owner when the wait began, if the runtime reports it
    /// (.NET 8 and later). The first unsigned number among the arguments of its begin identifies the
    /// lock in its process: waits for the same lock say who held it when.
    LockWait,
    /// A thread waits for a wait handle, or in `Monitor.Wait`, as its name says (.NET 9 and later). Such a wait can
    /// be a part of one for a lock or a task.
    HandleWait,
    /// A work item is in the queue of the .NET thread pool, or a task or a continuation is scheduled. The thread that
    /// queued it begins the span, the worker that takes it ends it. One that begins within other work of a
    /// thread, such as a wait for it, has no such worker.
    Queued,
    /// A thread executes a .NET task, a part of an asynchronous method, or the continuation of an await.
    TaskRun,
    /// A thread waits for a .NET task.
    TaskWait,
    /// An asynchronous .NET method awaits a task: from the thread that awaits to the one that continues, which ends the
    /// span if nothing else is known to make it continue.
    Await,
    /// An asynchronous operation of .NET, from its start to its end, on any number of threads.
    Operation,
    /// A thread runs finalizers.
    Finalizers,
    /// A type is loaded.
    TypeLoad,
    /// The methods that are called often are compiled again: .NET's tiered compilation in the background.
    TieredJit,
}

impl SpanKind {
    /// A stable name: `gc_assist`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Region => "region",
            Self::Activity => "activity",
            Self::Request => "request",
            Self::Gc => "gc",
            Self::GcAssist => "gc_assist",
            Self::GcSweep => "gc_sweep",
            Self::StopTheWorld => "stop_the_world",
            Self::Jit => "jit",
            Self::LockWait => "lock",
            Self::HandleWait => "handle_wait",
            Self::Queued => "queued",
            Self::TaskRun => "task_run",
            Self::TaskWait => "task_wait",
            Self::Await => "await",
            Self::Operation => "operation",
            Self::Finalizers => "finalizers",
            Self::TypeLoad => "type_load",
            Self::TieredJit => "tiered_jit",
        }
    }
}

impl fmt::Display for SpanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of an [instant](EventKind::Instant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum InstantKind {
    /// A message of the program.
    Log,
    /// A label of a goroutine.
    Label,
    /// An exception is thrown.
    Exception,
    /// All threads of a stop-the-world have stopped.
    Stopped,
    /// The .NET thread pool adds a worker because queued work items do not start: the workers are
    /// blocked.
    Starvation,
    /// Any other event of the program or runtime.
    Other,
}

/// The kind of a [sample](EventKind::Sample).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SampleKind {
    /// Of a thread on a CPU, by a timer or counter of the kernel.
    Cpu,
    /// Of a thread that was away from the CPU, at its return: the stack where it left, and the
    /// nanoseconds since then.
    OffCpu,
    /// Of a goroutine on a CPU, by the CPU profiler of Go: a signal per 10 ms of CPU time.
    GoCpu,
    /// Of a managed thread, whether it had a CPU or not, by the sample profiler of .NET.
    Managed,
    /// An allocation. The runtimes sample them by bytes.
    Allocation,
}

impl SampleKind {
    /// The unit of the weight: `B` for bytes, `ns` for nanoseconds, empty for a number of samples.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::OffCpu => "ns",
            Self::Allocation => "B",
            _ => "",
        }
    }
}

/// The kind of a [loss](EventKind::Loss).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LossKind {
    /// The kernel's buffer of a CPU was full.
    SchedulerRecords,
    /// The kernel delivered no record of a switch: another thread leaves a CPU than came.
    UnreportedSwitch,
    /// A CPU went offline: no record says that its last thread left it.
    CpuOffline,
    /// The hardware lost samples, or the kernel's buffer of a CPU was full in a recording without the scheduler.
    Samples,
    /// A part of a Go trace is damaged or missing.
    GoTrace,
    /// Buffers of the .NET runtime were full.
    DotnetEvents,
}

impl LossKind {
    /// What the [count](EventKind::Loss) of a loss counts: `bytes` or `records`.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::GoTrace => "bytes",
            _ => "records",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_small() {
        assert!(size_of::<Event>() <= 40, "{}", size_of::<Event>());
    }
}
