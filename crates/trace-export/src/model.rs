//! What a timeline is made of, and what it is written to.

use crate::intern::{Frame, StackId, TextId};
use std::io;
use trace_common::{ClockDomain, Timestamp};

/// A track of a timeline, as [`Sink::track`] gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub(crate) u32);

/// A row of the timeline, or a group of rows.
///
/// ```
/// use trace_export::{Track, Unit};
/// # fn f(sink: &mut impl trace_export::Sink) -> std::io::Result<()> {
/// let process = sink.track(&Track::process(42, b"server"))?;
/// let heap = sink.track(&Track::counter(b"heap", Unit::Bytes).below(process).rank(1))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Track<'a> {
    /// What the track shows.
    pub kind: TrackKind,
    /// The name.
    pub name: &'a [u8],
    /// The track that this one is shown below; a process or a group, mostly.
    pub parent: Option<TrackId>,
    /// The place among its siblings, smallest first, if the parent orders its children
    /// [by rank](Track::ordered).
    pub rank: i32,
    /// Whether the children are shown by their rank; by name otherwise.
    pub ordered: bool,
    /// What the track is, for a person; may be empty.
    pub description: &'a [u8],
}

/// What a [`Track`] shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrackKind {
    /// A process of the operating system.
    Process {
        /// Its identifier.
        pid: i32,
    },
    /// A thread of the operating system.
    Thread {
        /// The identifier of its process.
        pid: i32,
        /// Its own identifier.
        tid: i32,
    },
    /// Slices, states and instants of anything else; a group, if nothing is written to it.
    Custom,
    /// The values of a counter.
    Counter(Unit),
}

/// What the values of a counter are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

impl<'a> Track<'a> {
    const fn new(kind: TrackKind, name: &'a [u8]) -> Self {
        Self { kind, name, parent: None, rank: 0, ordered: false, description: b"" }
    }

    /// The track of a process.
    pub const fn process(pid: i32, name: &'a [u8]) -> Self {
        Self::new(TrackKind::Process { pid }, name)
    }

    /// The track of thread `tid` of process `pid`.
    pub const fn thread(pid: i32, tid: i32, name: &'a [u8]) -> Self {
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
    pub const fn below(self, parent: TrackId) -> Self {
        Self { parent: Some(parent), ..self }
    }

    /// Gives the track its place among the children of an [ordered](Track::ordered) parent.
    #[must_use]
    pub const fn rank(self, rank: i32) -> Self {
        Self { rank, ..self }
    }

    /// Shows the children of the track by their rank.
    #[must_use]
    pub const fn ordered(self) -> Self {
        Self { ordered: true, ..self }
    }

    /// Says what the track is.
    #[must_use]
    pub const fn described(self, description: &'a [u8]) -> Self {
        Self { description, ..self }
    }
}

/// A name: of an [interned](Sink::text) text, or one that is not worth keeping.
#[derive(Clone, Copy, Debug)]
pub enum Name<'a> {
    /// A text that comes again and again.
    Text(TextId),
    /// A text that hardly comes twice.
    Once(&'a [u8]),
}

impl From<TextId> for Name<'_> {
    fn from(id: TextId) -> Self {
        Self::Text(id)
    }
}

impl<'a> From<&'a [u8]> for Name<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self::Once(text)
    }
}

/// What a state, slice or instant says.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// What is drawn on it.
    pub name: Name<'a>,
    /// Where in the program it happened.
    pub stack: Option<StackId>,
    /// The arrow that it is a part of.
    pub flow: Option<Flow>,
    /// Further particulars.
    pub args: &'a [Arg<'a>],
}

impl<'a> Entry<'a> {
    /// An entry with a name and nothing else.
    #[inline]
    pub fn new(name: impl Into<Name<'a>>) -> Self {
        Self { name: name.into(), stack: None, flow: None, args: &[] }
    }

    /// Adds a stack.
    #[must_use]
    #[inline]
    pub const fn stack(self, stack: Option<StackId>) -> Self {
        Self { stack, ..self }
    }

    /// Makes the entry a part of an arrow.
    #[must_use]
    #[inline]
    pub const fn flow(self, flow: Option<Flow>) -> Self {
        Self { flow, ..self }
    }

    /// Adds particulars.
    #[must_use]
    #[inline]
    pub const fn args(self, args: &'a [Arg<'a>]) -> Self {
        Self { args, ..self }
    }
}

/// An arrow through entries of different tracks: all that have the same number, in order of
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The arrow starts here or goes on.
    Through(u64),
    /// The arrow ends here; its number may be used again.
    Ends(u64),
}

/// A particular of an [`Entry`].
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    /// What it is.
    pub name: TextId,
    /// The value.
    pub value: Value<'a>,
}

/// The value of an [`Arg`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Value<'a> {
    /// An unsigned number.
    Uint(u64),
    /// A signed number.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(Name<'a>),
}

/// In which mode a processor was when a sample was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuMode {
    /// Not known.
    #[default]
    Unknown,
    /// Kernel.
    Kernel,
    /// User space.
    User,
    /// Hypervisor.
    Hypervisor,
    /// The kernel of a guest.
    GuestKernel,
    /// User space of a guest.
    GuestUser,
}

/// A sample of a profiler.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The processor, if it is known.
    pub cpu: Option<u32>,
    /// The mode of the processor.
    pub mode: CpuMode,
    /// Where the thread was.
    pub stack: Option<StackId>,
}

impl Sample {
    /// A sample of thread `tid` of process `pid`.
    pub const fn new(pid: i32, tid: i32) -> Self {
        Self { pid, tid, cpu: None, mode: CpuMode::Unknown, stack: None }
    }
}

/// A thread, as the kernel's scheduler names it.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The thread (the kernel calls it pid); 0 is the idle thread.
    pub tid: i32,
    /// Its name.
    pub comm: &'a [u8],
    /// Its priority, as the kernel counts: 120 is a nice value of 0.
    pub prio: i32,
}

/// A processor goes from one thread to another: the `sched:sched_switch` tracepoint.
#[derive(Clone, Copy, Debug)]
pub struct SchedSwitch<'a> {
    /// The processor.
    pub cpu: u32,
    /// The thread that leaves it.
    pub prev: Task<'a>,
    /// The state that it is left in, as in the tracepoint: 0 if it could go on.
    pub prev_state: i64,
    /// The thread that gets it.
    pub next: Task<'a>,
}

/// A thread is about to be woken up: the `sched:sched_waking` tracepoint.
#[derive(Clone, Copy, Debug)]
pub struct SchedWaking<'a> {
    /// The processor on which the waker runs.
    pub cpu: u32,
    /// The thread that is woken.
    pub task: Task<'a>,
    /// The processor that it last ran on.
    pub target_cpu: u32,
}

/// Something that is not on the timeline though it happened.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// What was lost, e.g. `samples`.
    pub what: &'a [u8],
    /// How much, if that is known.
    pub count: Option<u64>,
    /// Why, as far as it is known; may be empty.
    pub why: &'a [u8],
}

/// What tracers write a timeline to.
///
/// Calls stream: times go forward on each track, and over all tracks as far as the source can
/// tell; a sink accepts an earlier time on another track. All times are in the sink's own
/// [`ClockDomain`]. A format that has no place for something leaves it out, as its sink says.
///
/// Names and stacks that come often are handed to the sink once ([`Sink::text`],
/// [`Sink::stack`]) and used by their identifier. The tables are bounded: an identifier that is
/// kept for longer than the next event is asked for with [`Sink::holds_text`] or
/// [`Sink::holds_stack`] before it is used again. One that is gone draws as `?`.
///
/// ```
/// use trace_export::{Entry, Sink, TextId, Timestamp, TrackId};
///
/// struct Job { name: TextId }
///
/// fn started(job: &mut Job, at: Timestamp, on: TrackId, sink: &mut impl Sink) -> std::io::Result<()> {
///     if !sink.holds_text(job.name) {
///         job.name = sink.text(b"job");
///     }
///     sink.begin(at, on, &Entry::new(job.name))
/// }
/// ```
pub trait Sink {
    /// The clock that all times are on.
    fn domain(&self) -> ClockDomain;

    /// Readings of several clocks at one moment.
    fn clock_snapshot(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()>;

    /// Adds a track. Processes and threads may be added again: they are one by their
    /// identifiers.
    fn track(&mut self, track: &Track<'_>) -> io::Result<TrackId>;

    /// Interns a text.
    fn text(&mut self, text: &[u8]) -> TextId;

    /// Interns a stack, innermost frame first.
    fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId;

    /// Whether `id` can be used still.
    fn holds_text(&self, id: TextId) -> bool;

    /// Whether `id` can be used still.
    fn holds_stack(&self, id: StackId) -> bool;

    /// A number for an arrow that no other arrow of the timeline has: see [`Flow`].
    fn new_flow(&mut self) -> u64;

    /// The track is in the state `entry` from now until its next state; `None`: in none.
    ///
    /// States may be inside a slice of the same track. Slices inside a state go on a track of
    /// their own.
    fn state(&mut self, at: Timestamp, track: TrackId, entry: Option<&Entry<'_>>)
    -> io::Result<()>;

    /// A slice begins, inside those that are open on its track.
    fn begin(&mut self, at: Timestamp, track: TrackId, entry: &Entry<'_>) -> io::Result<()>;

    /// The innermost open slice of the track ends, and the state inside it. `args` are what is
    /// known of it only now.
    fn end(&mut self, at: Timestamp, track: TrackId, args: &[Arg<'_>]) -> io::Result<()>;

    /// Something happens that takes no time.
    fn instant(&mut self, at: Timestamp, track: TrackId, entry: &Entry<'_>) -> io::Result<()>;

    /// The counter has this value from now on.
    fn counter(&mut self, at: Timestamp, track: TrackId, value: i64) -> io::Result<()>;

    /// A profiler took a sample.
    fn sample(&mut self, at: Timestamp, sample: &Sample) -> io::Result<()>;

    /// A processor goes from one thread to another.
    fn sched_switch(&mut self, at: Timestamp, switch: &SchedSwitch<'_>) -> io::Result<()>;

    /// A thread is woken up.
    fn sched_waking(&mut self, at: Timestamp, waking: &SchedWaking<'_>) -> io::Result<()>;

    /// Something was lost, at about this time: on `track`, or anywhere.
    fn lost(&mut self, at: Timestamp, track: Option<TrackId>, loss: &Loss<'_>) -> io::Result<()>;

    /// Writes what is held back. Slices that are open stay so: they go on past the end.
    fn finish(&mut self) -> io::Result<()>;
}
