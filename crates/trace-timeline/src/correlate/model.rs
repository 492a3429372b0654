//! What the correlator derives.

use crate::entity::{EntityId, EntityKind};
use crate::event::{Context, Event, FlowKind, SampleKind, State};
use crate::tables::{SampledEventId, StackId, TextId};
use trace_common::Timestamp;

/// Derived data, in the order of its end. The intervals of a woken thread that waits for a CPU come together when it
/// gets one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Derived<'a> {
    /// An interval ended.
    Interval(Interval),
    /// An interval starts, and its end is not known yet: it is given as its start. See
    /// [`CorrelatorOptions::starts`](super::CorrelatorOptions).
    Start(Interval),
    /// One entity made another one continue.
    Flow(ResolvedFlow),
    /// A stop-the-world ended.
    Pause(&'a Pause),
    /// A sample.
    Sample(Sampled),
    /// Any other event, unchanged.
    Event(Event),
}

/// A time in which nothing known of a subject changed. The intervals of a subject partition the
/// time from its first mention to its end. Where the state of a goroutine at its first mention
/// [holds since](crate::EventKind::Since) an earlier time, they begin there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interval {
    /// A kernel thread, goroutine, P or .NET thread.
    pub subject: EntityId,
    /// The kind of the subject.
    pub kind: EntityKind,
    /// The start.
    pub start: Timestamp,
    /// The end.
    pub end: Timestamp,
    /// The state in its own scheduler.
    pub state: State,
    /// Why it is in this state, as the runtime reports it.
    pub reason: TextId,
    /// Where it stopped.
    pub stack: Option<StackId>,
    /// The thread that executes it: the kernel's if it is known, otherwise the runtime's.
    pub thread: Option<EntityId>,
    /// The P of a goroutine that executes.
    pub proc: Option<EntityId>,
    /// The entity that a thread or P executes: a goroutine or a .NET thread.
    pub holder: Option<EntityId>,
    /// The kernel's state of the thread.
    pub kernel: Kernel,
}

impl Interval {
    /// The duration in nanoseconds.
    pub const fn nanos(&self) -> i64 {
        self.end.nanos_since(self.start)
    }
}

/// The kernel's state of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Not known: the scheduler was not recorded, or records were lost.
    #[default]
    Unknown,
    /// No thread executes the subject.
    Absent,
    /// Executes on this CPU.
    OnCpu {
        /// The CPU.
        cpu: EntityId,
    },
    /// Waits for a CPU.
    Runnable {
        /// The CPU whose queue it waits in. Of a woken thread it is the one that it gets, unless the recording
        /// says it ([`EventKind::Queue`](crate::EventKind::Queue)), or if it gets none, the one on which it last
        /// ran.
        cpu: Option<EntityId>,
        /// The occupant of that CPU meanwhile. Of a woken thread that gets another CPU than it had, those before
        /// the last one are not known.
        occupant: Occupant,
        /// Whether the CPU was taken away from it; otherwise it was woken.
        is_preempted: bool,
    },
    /// Waits for something, interruptibly.
    Sleeping,
    /// Waits for the kernel, uninterruptibly: usually for a disk, a page or a lock.
    Blocked,
    /// Stopped by a signal or a debugger.
    Stopped,
}

impl Kernel {
    /// As the state of the thread.
    pub const fn state(self) -> State {
        match self {
            Self::Unknown | Self::Absent => State::Unknown,
            Self::OnCpu { .. } => State::Running,
            Self::Runnable { .. } => State::Runnable,
            Self::Sleeping | Self::Blocked | Self::Stopped => State::Waiting,
        }
    }
}

/// The occupant of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Occupant {
    /// Not known.
    #[default]
    Unknown,
    /// Nothing. A thread that waits for an idle CPU is held back by a CPU quota, a cpuset or the
    /// cost of a migration, or the CPU is about to leave an idle state.
    Idle,
    /// This thread.
    Thread(EntityId),
    /// A thread that was not recorded.
    Unrecorded,
}

impl Occupant {
    /// The thread, if it is known.
    pub const fn thread(self) -> Option<EntityId> {
        match self {
            Self::Thread(thread) => Some(thread),
            _ => None,
        }
    }
}

/// A [flow](crate::EventKind::Flow) across layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedFlow {
    /// The time.
    pub time: Timestamp,
    /// The kind.
    pub kind: FlowKind,
    /// The cause: the goroutine or .NET thread if one executed, otherwise the thread.
    pub from: Option<EntityId>,
    /// The kernel thread that executed it.
    pub from_thread: Option<EntityId>,
    /// The context in which the CPU executed: in an interrupt, nobody is known to have caused it.
    pub context: Context,
    /// The entity that continues.
    pub to: EntityId,
    /// The goroutine or .NET thread that `to` executes, if `to` is a thread.
    pub to_holder: Option<EntityId>,
    /// The stack of the cause.
    pub stack: Option<StackId>,
}

/// A sample, with what the kernel did to the thread at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sampled {
    /// The time.
    pub time: Timestamp,
    /// The sampled goroutine or thread.
    pub entity: EntityId,
    /// Its kernel thread if that is known, otherwise the runtime's thread if the source reports it.
    pub thread: Option<EntityId>,
    /// The kind.
    pub kind: SampleKind,
    /// The stack.
    pub stack: Option<StackId>,
    /// The weight in the [unit](SampleKind::unit) of the kind, or in that of the `event`.
    pub weight: u64,
    /// The event of the kernel that is sampled.
    pub event: SampledEventId,
    /// The task or activity that it belongs to.
    pub of: Option<EntityId>,
    /// The kernel's state of the thread; of a managed sample, when the sampler asked it to stop.
    pub kernel: Kernel,
    /// Of a managed sample: when the sampler asked the thread to stop, if that is known.
    pub stop_requested: Option<Timestamp>,
}

/// A stop-the-world, from the request to the resumption, and who had to stop for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pause {
    /// The process.
    pub process: EntityId,
    /// The reason.
    pub reason: TextId,
    /// The entity that requested it.
    pub by: Option<EntityId>,
    /// What the kernel did with the thread of that one; `None` if the kernel's thread is not known.
    pub requester: Option<Requester>,
    /// The request.
    pub start: Timestamp,
    /// When all had stopped, if it is known.
    pub stopped: Option<Timestamp>,
    /// The resumption.
    pub end: Timestamp,
    /// Those that executed at the request and had to stop, latest last. Of a process with more than 4096 Ps or .NET
    /// threads, the later ones are left out.
    pub stops: Vec<Stop>,
}

impl Pause {
    /// Those that prolonged the wait until all had stopped: they stopped in the last tenth of it. The
    /// latest comes first. A [retaken](Stop::is_retaken) P prolongs no wait.
    pub fn late(&self) -> impl Iterator<Item = &Stop> {
        let waited = self.stops.last().map_or(0, |last| last.time.nanos_since(self.start));
        self.stops.iter().rev().filter(move |stop| {
            let stopped = stop.time.nanos_since(self.start);
            let is_last = stopped > 0 && stopped.saturating_mul(10) >= waited.saturating_mul(9);
            is_last && !stop.is_retaken
        })
    }

    /// The one that stopped last. `None` if all had stopped at once, or the requester was late itself.
    pub(crate) fn latest(&self) -> Option<&Stop> {
        self.stops.last().filter(|stop| !stop.is_retaken)
    }
}

/// The kernel thread that requested a stop-the-world. It does the work of the pause: while it has no
/// CPU, all others wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requester {
    /// The kernel thread.
    pub thread: EntityId,
    /// What it did until all had stopped.
    pub stopping: RequesterTimes,
    /// What it did from then to the resumption.
    pub stopped: RequesterTimes,
    /// What the CPU executed that it waited for, with nanoseconds, longest first. They sum to the
    /// times in which it was runnable.
    pub occupants: Vec<(Occupant, i64)>,
}

/// Nanoseconds of a [`Requester`]. Otherwise it waited, or what it did is not known. The wait for a CPU
/// of a thread that was woken as it left its CPU is not contained: the pause can end before it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequesterTimes {
    /// On a CPU.
    pub on_cpu: i64,
    /// Waiting for a CPU.
    pub runnable: i64,
}

/// A P or .NET thread that had to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stop {
    /// The P or .NET thread.
    pub entity: EntityId,
    /// The goroutine that a P executed.
    pub holder: Option<EntityId>,
    /// The kernel thread.
    pub thread: Option<EntityId>,
    /// When it stopped: its time to the safepoint begins with the pause.
    pub time: Timestamp,
    /// Nanoseconds of that time in which its thread had a CPU.
    pub on_cpu: i64,
    /// Nanoseconds of that time in which its thread waited for a CPU, as in [`RequesterTimes`].
    pub runnable: i64,
    /// Whether its goroutine was in a system call from the request on: the requester took the P away, and waited for
    /// nobody.
    pub is_retaken: bool,
}
