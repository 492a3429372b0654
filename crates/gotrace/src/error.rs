use crate::id::ThreadId;
use crate::spec::EventType;
use std::fmt;
use std::io;
use trace_common::ReadErrorKind;

/// What stopped a reader, and where.
///
/// ```
/// let error = gotrace::Reader::new(&b"not a trace at all"[..]).unwrap_err();
/// assert_eq!(error.to_string(), "not a Go execution trace (at byte 0)");
/// ```
#[derive(Debug)]
pub struct Error(
    /// Boxed: results are passed around for every event, errors are not.
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
    /// The generation, if one was being read.
    pub generation: Option<u64>,
    /// The thread (M) whose events were being read.
    pub thread: Option<ThreadId>,
    /// The event that was being read.
    pub event: Option<EventType>,
}

/// What was wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The source of the bytes failed.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
    /// The input does not begin like a trace.
    #[error("not a Go execution trace")]
    NotATrace,
    /// A trace of a version that is not known.
    #[error("trace of unknown version Go 1.{0}; this reader knows Go 1.11 to 1.26's formats")]
    UnknownVersion(u64),
    /// The bytes end or make no sense where a value was expected.
    #[error("{what}: {cause}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// Why it could not be.
        cause: ReadErrorKind,
    },
    /// A byte that should begin a batch does not.
    #[error("expected a batch, found {0}")]
    NotABatch(EventType),
    /// A batch, string or stack that is larger than the format allows.
    #[error("{what} of {size}, more than the maximum of {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        size: u64,
        /// What the format allows.
        max: u64,
    },
    /// The trace exceeds one of the reader's [`Limits`](trace_common::Limits).
    #[error("{what} exceeds the limit of {limit}")]
    Limit {
        /// The quantity, with the name of the field of [`Limits`](trace_common::Limits).
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Generation 0, which no runtime writes.
    #[error("invalid generation number 0")]
    InvalidGeneration,
    /// Batches of generations that do not follow each other.
    #[error("found a batch of generation {found} in generation {current}")]
    GenerationsOutOfOrder {
        /// The generation being read.
        current: u64,
        /// That of the batch.
        found: u64,
    },
    /// The trace ends within a generation.
    #[error("the trace ends within a generation: cut short?")]
    IncompleteGeneration,
    /// A generation without the frequency of its clock.
    #[error("the generation has no frequency event")]
    NoFrequency,
    /// A generation without a clock snapshot, which Go ≥ 1.25 always writes.
    #[error("the generation has no clock snapshot")]
    NoClockSnapshot,
    /// An event that must not be there, or not there twice.
    #[error("unexpected {0}")]
    UnexpectedEvent(EventType),
    /// A string or stack whose identifier is taken.
    #[error("{what} {id} is defined twice")]
    DuplicateId {
        /// What kind of thing it is.
        what: &'static str,
        /// Its identifier.
        id: u64,
    },
    /// An identifier that is not in the tables of the generation.
    #[error("unknown {what} {id}")]
    UnknownId {
        /// What kind of thing is missing.
        what: &'static str,
        /// Its identifier.
        id: u64,
    },
    /// An event type that no version of Go has.
    #[error("invalid event type {0}")]
    InvalidEvent(u8),
    /// The event contradicts what is known of the goroutine, proc or thread.
    #[error("{0}")]
    Inconsistent(Inconsistency),
    /// An event of a v1 trace contradicts what is known of the goroutine or P.
    #[error("{event}: {problem}")]
    InconsistentV1 {
        /// The v1 event.
        event: &'static str,
        /// The contradiction.
        problem: Inconsistency,
    },
    /// An event of a v1 trace that no version from Go 1.11 on writes.
    #[error("unexpected v1 event {0}")]
    UnexpectedV1Event(&'static str),
    /// An event of a v1 trace before the first batch.
    #[error("{0} outside of any batch")]
    OutsideBatch(&'static str),
    /// An event of a v1 trace with another number of arguments than its type has.
    #[error("{event} has {found} arguments instead of {wanted}")]
    WrongArguments {
        /// The v1 event.
        event: &'static str,
        /// Number of arguments that it should have.
        wanted: usize,
        /// Number that it has.
        found: usize,
    },
    /// A string of a v1 trace without an identifier or without content.
    #[error("string {0} has no identifier or is empty")]
    EmptyString(u64),
    /// The times of a v1 trace contradict the order of its events, or its clock does not
    /// advance: the clocks of the processors differ.
    #[error("times contradict the order of events")]
    TimeOrder,
    /// No thread's next event can be the next one of the trace.
    #[error("no thread can advance: the order of events is broken")]
    BrokenOrder,
    /// The text of a trace cannot be read.
    #[error("line {line}: {message}")]
    Text {
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
}

/// How an event contradicts the events before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// The event needs a thread, proc or goroutine that is not there, or must not have the one
    /// that is.
    #[error("the event {} a {what} here", if *.wanted { "needs" } else { "must not have" })]
    Context {
        /// `thread`, `proc` or `goroutine`.
        what: &'static str,
        /// Whether it is wanted.
        wanted: bool,
    },
    /// A status that the format does not have.
    #[error("invalid status {status} of {what} {id}")]
    InvalidStatus {
        /// `goroutine` or `proc`.
        what: &'static str,
        /// Its identifier.
        id: i64,
        /// The status.
        status: u64,
    },
    /// The state of a goroutine or proc is not what the event says or needs.
    #[error("{what} {id} is not in the state that the event says or needs")]
    WrongState {
        /// `goroutine` or `proc`.
        what: &'static str,
        /// Its identifier.
        id: i64,
    },
    /// The goroutine, proc or thread is not known.
    #[error("{what} {id} is not known")]
    Unknown {
        /// `goroutine`, `proc` or `thread`.
        what: &'static str,
        /// Its identifier.
        id: i64,
    },
    /// The goroutine or task exists already.
    #[error("{what} {id} exists already")]
    Exists {
        /// `goroutine` or `task`.
        what: &'static str,
        /// Its identifier.
        id: i64,
    },
    /// A thread executes another goroutine or proc than the event says.
    #[error("thread {thread} has {what} {found}, not {expected}")]
    WrongBinding {
        /// The thread.
        thread: i64,
        /// `goroutine` or `proc`.
        what: &'static str,
        /// What the thread has.
        found: i64,
        /// What the event says.
        expected: i64,
    },
    /// The event's sequence number does not follow the last one of the proc.
    #[error("sequence number {found} of proc {id} does not follow {last}")]
    Sequence {
        /// The proc.
        id: i64,
        /// The last number.
        last: u64,
        /// The number in the event.
        found: u64,
    },
    /// A range begins that is open, or ends or goes on though it is not.
    #[error("range {range} is {}", if *.open { "open already" } else { "not open" })]
    Range {
        /// The event that begins such a range.
        range: EventType,
        /// Whether it is open.
        open: bool,
    },
    /// A region ends that is not the innermost open one of its goroutine.
    #[error("the region is not the innermost open one of goroutine {0}")]
    Region(i64),
    /// The goroutine does not run where the event says that it does.
    #[error("P {proc} does not run goroutine {goroutine}")]
    NotRunning {
        /// The proc.
        proc: i64,
        /// The goroutine.
        goroutine: i64,
    },
    /// The proc runs a goroutine where the event needs it not to.
    #[error("P {proc} still runs goroutine {goroutine}")]
    Busy {
        /// The proc.
        proc: i64,
        /// The goroutine.
        goroutine: i64,
    },
    /// A region neither begins nor ends.
    #[error("region mode {0} is neither begin (0) nor end (1)")]
    RegionMode(u64),
    /// The phase of the garbage collector is not what the event says.
    #[error("the garbage collector is not in the phase that the event needs")]
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

    /// What was wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.0
    }

    /// Where it was found.
    pub fn position(&self) -> Position {
        self.0.1
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
