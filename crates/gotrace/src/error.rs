use crate::id::ThreadId;
use crate::spec::EventType;
use crate::version::Version;
use std::fmt;
use std::io;
use trace_common::ReadErrorKind;

/// An error of a reader, with its [`Position`].
///
/// ```
/// let error = gotrace::Reader::new(&b"not a trace at all"[..]).unwrap_err();
/// assert_eq!(error.to_string(), "not a Go execution trace (at byte 0)");
/// ```
#[derive(Debug)]
pub struct Error(
    /// Boxed to keep results small: one is returned for every event.
    Box<(ErrorKind, Position)>,
);

/// The result of reading a trace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A position in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// Offset from the start of the trace, in bytes.
    pub offset: u64,
    /// The generation that was being read, if any.
    pub generation: Option<u64>,
    /// The thread (M) whose events were being read.
    pub thread: Option<ThreadId>,
    /// The event that was being read.
    pub event: Option<EventType>,
}

/// The kind of an [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Reading the input failed.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
    /// The input does not begin with the header of a trace.
    #[error("not a Go execution trace")]
    NotATrace,
    /// The version of the trace is not supported.
    #[error("trace of unknown version Go 1.{0}; this reader knows Go 1.11 to 1.26's formats")]
    UnsupportedVersion(u64),
    /// A trace of this version has no generations.
    #[error("a trace of {0} has no generations; those of Go 1.22 and later have")]
    NoGenerations(Version),
    /// A value is truncated or malformed.
    #[error("{what}: {cause}")]
    Malformed {
        /// The value that was being read.
        what: &'static str,
        /// The reason.
        cause: ReadErrorKind,
    },
    /// A byte that should begin a batch does not.
    #[error("expected a batch, found {0}")]
    NotABatch(EventType),
    /// A batch, string or stack is larger than the format allows.
    #[error("{what} of {value}, more than the maximum of {limit}")]
    TooLarge {
        /// The item that is too large.
        what: &'static str,
        /// Its size.
        value: u64,
        /// The maximum of the format.
        limit: u64,
    },
    /// The trace exceeds one of the reader's [`Limits`](trace_common::Limits).
    #[error("{what} exceeds the limit of {limit}")]
    Limit {
        /// The quantity, with the name of the field of [`Limits`](trace_common::Limits).
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Generation 0, which no runtime writes.
    #[error("invalid generation number 0")]
    InvalidGeneration,
    /// Batches of generations that are not consecutive.
    #[error("found a batch of generation {found} in generation {current}")]
    GenerationsOutOfOrder {
        /// The generation being read.
        current: u64,
        /// The generation of the batch.
        found: u64,
    },
    /// The trace ends within a generation.
    #[error("the trace ends within a generation: truncated?")]
    IncompleteGeneration,
    /// A generation without the frequency of the trace clock.
    #[error("the generation has no frequency event")]
    NoFrequency,
    /// A generation without a clock snapshot, which Go ≥ 1.25 always writes.
    #[error("the generation has no clock snapshot")]
    NoClockSnapshot,
    /// An event that is not allowed here, or that occurs twice.
    #[error("unexpected {0}")]
    UnexpectedEvent(EventType),
    /// A string or stack whose identifier is already defined.
    #[error("{what} {id} is defined twice")]
    DuplicateId {
        /// The kind of item.
        what: &'static str,
        /// Its identifier.
        id: u64,
    },
    /// An identifier that is not defined in the tables of the generation.
    #[error("unknown {what} {id}")]
    UnknownId {
        /// The kind of item that is missing.
        what: &'static str,
        /// Its identifier.
        id: u64,
    },
    /// An event type that no supported version of Go defines.
    #[error("invalid event type {0}")]
    InvalidEvent(u8),
    /// The event contradicts the state of the goroutine, proc or thread.
    #[error("{0}")]
    Inconsistent(Inconsistency),
    /// An event of a v1 trace contradicts the state of the goroutine or P.
    #[error("{event}: {problem}")]
    InconsistentV1 {
        /// The v1 event.
        event: &'static str,
        /// The contradiction.
        problem: Inconsistency,
    },
    /// An event of a v1 trace that Go 1.11 and later never write.
    #[error("unexpected v1 event {0}")]
    UnexpectedV1Event(&'static str),
    /// An event of a v1 trace before the first batch.
    #[error("{0} outside of any batch")]
    OutsideBatch(&'static str),
    /// An event of a v1 trace with a wrong number of arguments.
    #[error("{event} has {found} arguments instead of {expected}")]
    WrongArguments {
        /// The v1 event.
        event: &'static str,
        /// The number of arguments that the type requires.
        expected: usize,
        /// The number of arguments found.
        found: usize,
    },
    /// A string of a v1 trace without an identifier or without content.
    #[error("string {0} has no identifier or is empty")]
    EmptyString(u64),
    /// The timestamps of a v1 trace contradict the order of its events, or its clock does not
    /// advance: the clocks of the CPUs disagree.
    #[error("times contradict the order of events")]
    TimeOrder,
    /// No thread's next event can follow: the order of events is broken.
    #[error("no thread can advance: the order of events is broken")]
    BrokenOrder,
    /// The text form of a trace is malformed.
    #[error("line {line}: {message}")]
    Text {
        /// The line, from 1.
        line: u64,
        /// The description of the problem.
        message: String,
    },
}

/// The contradiction between an event and the events before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// The event requires a thread, proc or goroutine that is missing, or one is present that must
    /// not be.
    #[error("the event {} a {what} here", if *.wanted { "requires" } else { "must not have" })]
    Context {
        /// `thread`, `proc` or `goroutine`.
        what: &'static str,
        /// Whether it is required.
        wanted: bool,
    },
    /// A status that the format does not define.
    #[error("invalid status {status} of {what} {id}")]
    InvalidStatus {
        /// `goroutine` or `proc`.
        what: &'static str,
        /// Its identifier.
        id: i64,
        /// The status.
        status: u64,
    },
    /// The goroutine or proc is not in the state that the event requires.
    #[error("{what} {id} is not in the state that the event says or needs")]
    WrongState {
        /// `goroutine` or `proc`.
        what: &'static str,
        /// Its identifier.
        id: i64,
    },
    /// The goroutine, proc or thread is unknown.
    #[error("unknown {what} {id}")]
    Unknown {
        /// `goroutine`, `proc` or `thread`.
        what: &'static str,
        /// Its identifier.
        id: i64,
    },
    /// The goroutine or task already exists.
    #[error("{what} {id} already exists")]
    Exists {
        /// `goroutine` or `task`.
        what: &'static str,
        /// Its identifier.
        id: i64,
    },
    /// A thread executes a different goroutine or proc than the event states.
    #[error("thread {thread}: expected {what} {expected}, found {found}")]
    WrongBinding {
        /// The thread.
        thread: i64,
        /// `goroutine` or `proc`.
        what: &'static str,
        /// The one that the thread executes.
        found: i64,
        /// The one that the event states.
        expected: i64,
    },
    /// The event's sequence number does not follow the previous one of the proc.
    #[error("sequence number {found} of proc {id} does not follow {last}")]
    Sequence {
        /// The proc.
        id: i64,
        /// The previous number.
        last: u64,
        /// The number in the event.
        found: u64,
    },
    /// A range begins that is already open, or a range ends or is reported active that is not open.
    #[error("range {range} is {}", if *.open { "already open" } else { "not open" })]
    Range {
        /// The event that begins such a range.
        range: EventType,
        /// Whether the range is open.
        open: bool,
    },
    /// A region ends that is not the innermost open one of its goroutine.
    #[error("the region is not the innermost open one of goroutine {0}")]
    Region(i64),
    /// The goroutine does not run on the P that the event states.
    #[error("P {proc} does not run goroutine {goroutine}")]
    NotRunning {
        /// The proc.
        proc: i64,
        /// The goroutine.
        goroutine: i64,
    },
    /// The P runs a goroutine where the event requires none.
    #[error("P {proc} still runs goroutine {goroutine}")]
    Busy {
        /// The proc.
        proc: i64,
        /// The goroutine.
        goroutine: i64,
    },
    /// A region event that is neither a begin nor an end.
    #[error("region mode {0} is neither begin (0) nor end (1)")]
    RegionMode(u64),
    /// The garbage collector is not in the phase that the event requires.
    #[error("the garbage collector is not in the phase that the event requires")]
    GcPhase,
}

impl Error {
    pub(crate) fn new(kind: impl Into<ErrorKind>, position: Position) -> Self {
        Self(Box::new((kind.into(), position)))
    }

    pub(crate) fn at(offset: u64, kind: impl Into<ErrorKind>) -> Self {
        Self::new(kind, Position { offset, ..Position::default() })
    }

    pub(crate) fn position_mut(&mut self) -> &mut Position {
        &mut self.0.1
    }

    /// The kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.0
    }

    /// The position of the error.
    pub fn position(&self) -> Position {
        self.0.1
    }
}

impl ErrorKind {
    pub(crate) const fn limit(what: &'static str, limit: usize) -> Self {
        Self::Limit { what, limit: limit as u64 }
    }
}

impl From<Inconsistency> for ErrorKind {
    fn from(what: Inconsistency) -> Self {
        Self::Inconsistent(what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = self.position();
        write!(f, "{} (at byte {}", self.kind(), position.offset)?;
        if let Some(generation) = position.generation {
            write!(f, ", generation {generation}")?;
        }
        if let Some(thread) = position.thread {
            write!(f, ", M {thread}")?;
        }
        if let Some(event) = position.event {
            write!(f, ", in {event}")?;
        }
        f.write_str(")")
    }
}
