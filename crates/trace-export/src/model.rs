//! The timeline model and the [`Sink`] trait.

use crate::intern::{Frame, StackId, TextId};
use std::io;
pub use trace_common::CpuMode;
use trace_common::{ClockDomain, Timestamp};

/// The identifier of a track, from [`Sink::track`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(u32);

impl TrackId {
    /// The identifier of the track with this number: for an implementation of [`Sink`], which numbers its
    /// tracks.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number, as a position: for tables of a sink.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A row of the timeline, or a group of rows.
///
/// ```
/// use trace_export::{Track, Unit};
/// # fn f(sink: &mut impl trace_export::Sink) -> std::io::Result<()> {
/// let process = sink.track(&Track::process(42, b"server"))?;
/// let heap = sink.track(&Track::counter(b"heap", Unit::Bytes).child_of(process).rank(1))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Track<'a> {
    /// The kind of the track.
    pub kind: TrackKind,
    /// The name.
    pub name: &'a [u8],
    /// The track that this one is shown below, usually a process or a group.
    pub parent: Option<TrackId>,
    /// The rank among its siblings, smallest first, if the parent orders its children
    /// [by rank](Track::ordered).
    pub rank: i32,
    /// Whether the children are ordered by rank. Otherwise they are ordered by name.
    pub ordered: bool,
    /// A description for the reader of the timeline. May be empty.
    pub description: &'a [u8],
    /// The name of the unit of a counter, in place of its [`Unit`], if it is not empty.
    pub unit_name: &'a [u8],
    /// Whether the name stands in for one that is not known: it does not replace another.
    pub(crate) is_placeholder: bool,
}

/// The kind of a [`Track`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrackKind {
    /// A process of the operating system.
    Process {
        /// The process identifier.
        pid: u32,
    },
    /// A thread of the operating system.
    Thread {
        /// The process identifier.
        pid: u32,
        /// The thread identifier.
        tid: u32,
    },
    /// Slices, states and instants of anything else. Without events it is a group.
    Custom,
    /// The values of a counter.
    Counter(Unit),
}

impl TrackKind {
    /// The identity of a process or thread, which its tracks share.
    pub(crate) const fn ids(self) -> Option<(u32, Option<u32>)> {
        match self {
            // A process and its main thread have the same number.
            Self::Process { pid } => Some((pid, None)),
            Self::Thread { pid, tid } => Some((pid, Some(tid))),
            Self::Custom | Self::Counter(_) => None,
        }
    }
}

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A number without a unit.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

impl<'a> Track<'a> {
    const fn new(kind: TrackKind, name: &'a [u8]) -> Self {
        Self {
            kind,
            name,
            parent: None,
            rank: 0,
            ordered: false,
            description: b"",
            unit_name: b"",
            is_placeholder: false,
        }
    }

    /// The track of a process.
    pub const fn process(pid: u32, name: &'a [u8]) -> Self {
        Self::new(TrackKind::Process { pid }, name)
    }

    /// The track of thread `tid` of process `pid`.
    pub const fn thread(pid: u32, tid: u32, name: &'a [u8]) -> Self {
        Self::new(TrackKind::Thread { pid, tid }, name)
    }

    /// A track of slices, states and instants, or a group of tracks.
    pub const fn custom(name: &'a [u8]) -> Self {
        Self::new(TrackKind::Custom, name)
    }

    /// A track of a counter's values.
    pub const fn counter(name: &'a [u8], unit: Unit) -> Self {
        Self::new(TrackKind::Counter(unit), name)
    }

    /// Shows the track below `parent`.
    #[must_use]
    pub const fn child_of(self, parent: TrackId) -> Self {
        Self { parent: Some(parent), ..self }
    }

    /// Marks the name as one that does not replace another.
    #[cfg(feature = "timeline")]
    pub(crate) const fn placeholder(self, is_placeholder: bool) -> Self {
        Self { is_placeholder, ..self }
    }

    /// The name, if it replaces that of a known process or thread.
    pub(crate) fn new_name(&self) -> Option<&'a [u8]> {
        Some(self.name).filter(|name| !name.is_empty() && !self.is_placeholder)
    }

    /// Sets the rank among the children of an [ordered](Track::ordered) parent.
    #[must_use]
    pub const fn rank(self, rank: i32) -> Self {
        Self { rank, ..self }
    }

    /// Orders the children of the track by rank.
    #[must_use]
    pub const fn ordered(self) -> Self {
        Self { ordered: true, ..self }
    }

    /// Sets the name of a counter's unit, for units that [`Unit`] does not have.
    #[must_use]
    pub const fn unit_name(self, unit_name: &'a [u8]) -> Self {
        Self { unit_name, ..self }
    }

    /// Sets the description.
    #[must_use]
    pub const fn description(self, description: &'a [u8]) -> Self {
        Self { description, ..self }
    }
}

/// A name: an [interned](Sink::text) text, or one that is written inline.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Name<'a> {
    /// An interned text, for names that repeat.
    Text(TextId),
    /// A text that is written with the event, for names that seldom repeat.
    Inline(&'a [u8]),
}

impl From<TextId> for Name<'_> {
    fn from(id: TextId) -> Self {
        Self::Text(id)
    }
}

impl<'a> From<&'a [u8]> for Name<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self::Inline(text)
    }
}

/// The content of a state, slice or instant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TrackEvent<'a> {
    /// The name.
    pub name: Name<'a>,
    /// The call stack at which it happened.
    pub stack: Option<StackId>,
    /// The flow (arrow) that it belongs to.
    pub flow: Option<Flow>,
    /// Its subject.
    pub category: Option<Category>,
    /// Named values.
    pub args: &'a [DebugAnnotation<'a>],
}

impl<'a> TrackEvent<'a> {
    /// An event with a name only.
    #[inline]
    pub fn new(name: impl Into<Name<'a>>) -> Self {
        Self { name: name.into(), stack: None, flow: None, category: None, args: &[] }
    }

    /// Adds a stack.
    #[must_use]
    #[inline]
    pub fn stack(mut self, stack: impl Into<Option<StackId>>) -> Self {
        self.stack = stack.into();
        self
    }

    /// Adds the event to a flow.
    #[must_use]
    #[inline]
    pub fn flow(mut self, flow: impl Into<Option<Flow>>) -> Self {
        self.flow = flow.into();
        self
    }

    /// Sets the subject.
    #[must_use]
    #[inline]
    pub const fn category(mut self, category: Category) -> Self {
        self.category = Some(category);
        self
    }

    /// Adds named values.
    #[must_use]
    #[inline]
    pub const fn args(mut self, args: &'a [DebugAnnotation<'a>]) -> Self {
        self.args = args;
        self
    }
}

/// The subject of an event, by which a reader of the timeline can filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Category {
    /// The kernel's scheduler: waits for a CPU, throttling.
    Sched,
    /// Processes: their start and exit.
    Process,
    /// Goroutines and the Ps and threads that execute them.
    Go,
    /// Other events of a .NET runtime.
    Dotnet,
    /// Garbage collection and stop-the-world pauses.
    Gc,
    /// Compilation at run time.
    Jit,
    /// Waits for a lock.
    Lock,
    /// Work that waits for a thread pool.
    Pool,
    /// Tasks, regions, activities and requests of the program.
    Task,
    /// Messages and labels of the program.
    Log,
    /// Exceptions.
    Exception,
    /// Samples.
    Sample,
    /// Data that was lost.
    Loss,
}

impl Category {
    /// All categories, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::Sched,
        Self::Process,
        Self::Go,
        Self::Dotnet,
        Self::Gc,
        Self::Jit,
        Self::Lock,
        Self::Pool,
        Self::Task,
        Self::Log,
        Self::Exception,
        Self::Sample,
        Self::Loss,
    ];

    /// The name in the formats.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sched => "sched",
            Self::Process => "process",
            Self::Go => "go",
            Self::Dotnet => "dotnet",
            Self::Gc => "gc",
            Self::Jit => "jit",
            Self::Lock => "lock",
            Self::Pool => "pool",
            Self::Task => "task",
            Self::Log => "log",
            Self::Exception => "exception",
            Self::Sample => "sample",
            Self::Loss => "loss",
        }
    }
}

/// An arrow through events of different tracks: all events with the same flow number, in time
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// The flow starts or continues here.
    Through(u64),
    /// The flow ends here. Its number may be reused.
    Ends(u64),
}

/// A named value of a [`TrackEvent`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DebugAnnotation<'a> {
    /// The name.
    pub name: TextId,
    /// The value.
    pub value: Value<'a>,
}

impl<'a> DebugAnnotation<'a> {
    /// A value with a name.
    #[inline]
    pub const fn new(name: TextId, value: Value<'a>) -> Self {
        Self { name, value }
    }
}

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CounterValue {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
}

impl CounterValue {
    /// Whether a chart has a place for it. The sinks omit and count the others: the scale of a chart is that of its
    /// greatest value.
    pub(crate) const fn is_finite(self) -> bool {
        match self {
            Self::Int(_) => true,
            Self::Double(value) => value.is_finite(),
        }
    }
}

impl From<i64> for CounterValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for CounterValue {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}

/// The value of a [`DebugAnnotation`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// An unsigned integer.
    Uint(u64),
    /// A signed integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(Name<'a>),
}

/// A sample of a profiler.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The CPU, if it is known.
    pub cpu: Option<u32>,
    /// The mode of the CPU.
    pub mode: CpuMode,
    /// The call stack.
    pub stack: Option<StackId>,
}

impl Sample {
    /// A sample of thread `tid` of process `pid`.
    pub const fn new(pid: u32, tid: u32) -> Self {
        Self { pid, tid, cpu: None, mode: CpuMode::Unknown, stack: None }
    }
}

/// A thread in an event of the kernel's scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Task<'a> {
    /// The thread identifier (`pid` in the tracepoint). 0 is the idle thread.
    pub tid: u32,
    /// The name.
    pub comm: &'a [u8],
    /// The kernel's priority: 120 is a nice value of 0.
    pub prio: i32,
}

impl<'a> Task<'a> {
    /// Thread `tid` with the name `comm` and the kernel's priority `prio`.
    pub const fn new(tid: u32, comm: &'a [u8], prio: i32) -> Self {
        Self { tid, comm, prio }
    }
}

/// A context switch: the `sched:sched_switch` tracepoint.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SchedSwitch<'a> {
    /// The CPU.
    pub cpu: u32,
    /// The thread that is switched out.
    pub prev: Task<'a>,
    /// The state of that thread, with the bits of the tracepoint: 0 if it is runnable.
    pub prev_state: i64,
    /// The thread that is switched in.
    pub next: Task<'a>,
}

impl<'a> SchedSwitch<'a> {
    /// A switch on `cpu` from `prev`, which is left in the state `prev_state`, to `next`.
    pub const fn new(cpu: u32, prev: Task<'a>, prev_state: i64, next: Task<'a>) -> Self {
        Self { cpu, prev, prev_state, next }
    }
}

/// A wake-up: the `sched:sched_waking` tracepoint.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SchedWaking<'a> {
    /// The CPU of the waker.
    pub cpu: u32,
    /// The thread that is woken.
    pub task: Task<'a>,
    /// The CPU that the woken thread last ran on.
    pub target_cpu: u32,
    /// The interrupt that made it. `None` if the thread on the CPU did, or if it is not known.
    pub interrupt: Option<Interrupt>,
}

impl<'a> SchedWaking<'a> {
    /// A wake-up on `cpu` of `task`, which last ran on `target_cpu`.
    pub const fn new(cpu: u32, task: Task<'a>, target_cpu: u32) -> Self {
        Self { cpu, task, target_cpu, interrupt: None }
    }

    /// Sets the interrupt that made it, or `None` if the thread on the CPU did.
    #[must_use]
    pub fn interrupt(self, interrupt: impl Into<Option<Interrupt>>) -> Self {
        Self { interrupt: interrupt.into(), ..self }
    }
}

/// The kind of an interrupt. The thread that it interrupted has nothing to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Interrupt {
    /// A hardware interrupt.
    Hard,
    /// A software interrupt, such as received packets or timers.
    Soft,
}

/// Data that was lost and is missing from the timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Loss<'a> {
    /// The kind of the lost data, e.g. `samples`.
    pub what: &'a [u8],
    /// The number lost, if it is known.
    pub count: Option<u64>,
    /// The reason, if it is known. May be empty.
    pub why: &'a [u8],
}

impl<'a> Loss<'a> {
    /// A loss of an unknown number, for an unknown reason.
    pub const fn new(what: &'a [u8]) -> Self {
        Self { what, count: None, why: b"" }
    }

    /// Sets the number lost, or `None` if it is not known.
    #[must_use]
    pub fn count(self, count: impl Into<Option<u64>>) -> Self {
        Self { count: count.into(), ..self }
    }

    /// Sets the reason.
    #[must_use]
    pub const fn why(self, why: &'a [u8]) -> Self {
        Self { why, ..self }
    }
}

/// The consumer of a timeline.
///
/// Tracks, texts and stacks are those of one sink. An identifier of another sink is a mistake that is not
/// always an error: it can be that of another track or name here.
///
/// Calls stream. Times ascend on each track. Across tracks an earlier time is accepted. All times
/// are on the sink's [`ClockDomain`]. A sink omits what its format cannot express; its
/// documentation lists these cases.
///
/// Names and stacks that repeat are interned once ([`Sink::text`], [`Sink::stack`]) and then
/// referred to by identifier. The tables are bounded: check an identifier that outlives the next
/// event with [`Sink::holds_text`] or [`Sink::holds_stack`] before it is used again. An evicted
/// one is drawn as `?`.
///
/// `examples/json_lines.rs` is a sink outside of the crate: [`Interner`](crate::Interner) has its names and
/// stacks, and it numbers its tracks ([`TrackId::new`]).
///
/// ```
/// use trace_export::{TrackEvent, Sink, TextId, Timestamp, TrackId};
///
/// struct Job { name: TextId }
///
/// fn started(job: &mut Job, at: Timestamp, on: TrackId, sink: &mut impl Sink) -> std::io::Result<()> {
///     if !sink.holds_text(job.name) {
///         job.name = sink.text(b"job");
///     }
///     sink.begin(at, on, &TrackEvent::new(job.name))
/// }
/// ```
pub trait Sink {
    /// The clock of all times.
    fn clock_domain(&self) -> ClockDomain;

    /// Adds readings of several clocks that were taken at one moment.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer, and [`io::ErrorKind::InvalidInput`] without a reading of
    /// [`Sink::clock_domain`].
    fn clock_snapshot(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()>;

    /// Adds a track. A process or thread that is added again keeps its track: processes and threads
    /// are identified by their identifiers. It has the last name that is not empty.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn track(&mut self, track: &Track<'_>) -> io::Result<TrackId>;

    /// Adds what is known of a process. See [`Process::draw`](crate::Process::draw), which draws its
    /// lifetime too. By default it is omitted.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer.
    fn process(&mut self, _process: &crate::Process<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Interns a text.
    fn text(&mut self, text: &[u8]) -> TextId;

    /// As [`Sink::text`], for a text that was not interned before and repeats in a few events: a
    /// sink need not look for an equal one.
    fn unique_text(&mut self, text: &[u8]) -> TextId {
        self.text(text)
    }

    /// Interns a stack, innermost frame first.
    fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId;

    /// Whether `id` is still valid.
    fn holds_text(&self, id: TextId) -> bool;

    /// Whether `id` is still valid.
    fn holds_stack(&self, id: StackId) -> bool;

    /// A flow number that no other [`Flow`] of the timeline has.
    fn new_flow(&mut self) -> u64;

    /// Forgets a flow of which no other event comes. Its number is not used again. By default nothing is
    /// forgotten.
    fn forget_flow(&mut self, _flow: u64) {}

    /// Sets the state of the track until its next state; `None` ends the state.
    ///
    /// States may be inside a slice of the same track. Slices inside a state need a separate
    /// track.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn state(
        &mut self,
        at: Timestamp,
        track: TrackId,
        entry: Option<&TrackEvent<'_>>,
    ) -> io::Result<()>;

    /// Begins a slice inside those that are open on the track.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()>;

    /// Ends the innermost open slice of the track, and the state inside it. `args` are values that
    /// are known only at the end.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn end(
        &mut self,
        at: Timestamp,
        track: TrackId,
        args: &[DebugAnnotation<'_>],
    ) -> io::Result<()>;

    /// Adds an event without a duration.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &TrackEvent<'_>) -> io::Result<()>;

    /// Sets the value of a counter.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn counter(&mut self, at: Timestamp, track: TrackId, value: CounterValue) -> io::Result<()>;

    /// Adds a sample of a profiler.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer.
    fn sample(&mut self, at: Timestamp, sample: &Sample) -> io::Result<()>;

    /// Adds a context switch.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. [`io::ErrorKind::InvalidInput`] if the format needs another clock and
    /// no [snapshot](Sink::clock_snapshot) relates it.
    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()>;

    /// Adds a wake-up.
    ///
    /// # Errors
    ///
    /// As [`Sink::sched_switch`].
    fn sched_waking(&mut self, at: Timestamp, waking: &SchedWaking<'_>) -> io::Result<()>;

    /// Marks a loss at about this time, on `track` or on a common track.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer. An unknown track is [`io::ErrorKind::InvalidInput`].
    fn lost(&mut self, at: Timestamp, track: Option<TrackId>, loss: &Loss<'_>) -> io::Result<()>;

    /// Writes everything that is buffered. Open slices stay open in the file.
    ///
    /// # Errors
    ///
    /// I/O errors of the writer.
    fn finish(&mut self) -> io::Result<()>;
}
