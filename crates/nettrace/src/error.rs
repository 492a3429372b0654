use std::io;

use trace_common::{ReadError, ReadErrorKind};

/// What went wrong, and where in the input.
#[derive(Debug, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct Error {
    /// Bytes from the start of the input to the item that could not be read.
    pub offset: u64,
    /// What was wrong there.
    pub kind: ErrorKind,
}

/// Why the input could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input does not begin as a NetTrace or NetPerf stream does.
    #[error(
        "not a NetTrace stream: it begins with neither \"Nettrace\" nor a FastSerialization header"
    )]
    NotNetTrace,
    /// A format version that this crate does not know.
    #[error("NetTrace format version {0} is not supported: 3 to 6 are")]
    UnsupportedVersion(i32),
    /// A block whose content ends too early, or a number that does not fit.
    #[error(transparent)]
    Read(ReadErrorKind),
    /// A tag that cannot stand where it does: the stream is damaged from here on.
    #[error("tag {found:#04x} where {expected} was expected")]
    UnexpectedTag {
        /// What the format has at this place.
        expected: &'static str,
        /// The byte found.
        found: u8,
    },
    /// A value that the format does not allow.
    #[error("invalid {what}: {value}")]
    Invalid {
        /// What the value is of.
        what: &'static str,
        /// The value found.
        value: i64,
    },
    /// The input asks for more memory than [`trace_common::Limits`] allows.
    #[error("{what} of {value} exceeds the limit of {limit}")]
    Limit {
        /// What the limit is on.
        what: &'static str,
        /// The value found.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// An event before the `Trace` object, which says how wide pointers are and what the time is.
    #[error("the stream has no Trace object before its first event")]
    NoTrace,
    /// The input ended before the stream's own end mark: the writer was killed or the file cut.
    /// Every event before the cut has been given.
    #[error("the stream was cut: it has no end mark")]
    Truncated,
    /// The reader that the input comes from failed.
    #[error("reading the input failed: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    pub(crate) const fn new(offset: u64, kind: ErrorKind) -> Self {
        Self { offset, kind }
    }

    pub(crate) const fn invalid(offset: u64, what: &'static str, value: i64) -> Self {
        Self::new(offset, ErrorKind::Invalid { what, value })
    }

    pub(crate) const fn limit(offset: u64, what: &'static str, value: u64, limit: usize) -> Self {
        Self::new(offset, ErrorKind::Limit { what, value, limit: limit as u64 })
    }

    /// Whether the input was cut, as opposed to damaged: all that is before the cut was read.
    pub const fn is_truncated(&self) -> bool {
        matches!(self.kind, ErrorKind::Truncated)
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Self::new(error.offset, ErrorKind::Read(error.kind))
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
