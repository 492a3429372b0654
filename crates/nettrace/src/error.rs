use std::io;

use trace_common::{ReadError, ReadErrorKind};

/// An error and its position in the input.
#[derive(Debug, thiserror::Error)]
#[error("{kind} at byte {offset}")]
#[non_exhaustive]
pub struct Error {
    /// Bytes from the start of the input to the item that could not be read.
    pub offset: u64,
    /// The kind of error.
    pub kind: ErrorKind,
}

/// The kind of a parse error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input does not begin with the header of a NetTrace or NetPerf stream.
    #[error(
        "not a NetTrace stream: it begins with neither \"Nettrace\" nor a FastSerialization header"
    )]
    NotNetTrace,
    /// A format version that this crate does not know.
    #[error("NetTrace format version {0} is not supported: 3 to 6 are")]
    UnsupportedVersion(i32),
    /// A block is too short for its content, or a number does not fit.
    #[error(transparent)]
    Read(ReadErrorKind),
    /// A tag is not valid at this position. The rest of the stream cannot be read.
    #[error("tag {found:#04x} where {expected} was expected")]
    UnexpectedTag {
        /// The tag that the format requires here.
        expected: &'static str,
        /// The byte found.
        found: u8,
    },
    /// The format does not allow this value.
    #[error("invalid {what}: {value}")]
    Invalid {
        /// Name of the value.
        what: &'static str,
        /// The value found.
        value: i64,
    },
    /// The input exceeds a limit of [`trace_common::Limits`].
    #[error("{what} of {value} exceeds the limit of {limit}")]
    Limit {
        /// Name of the limited value.
        what: &'static str,
        /// The value found.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// An event precedes the `Trace` object, which contains the pointer size and the clock.
    #[error("the stream has no Trace object before its first event")]
    NoTrace,
    /// The stream is truncated: the input ends before its end mark because the writer was killed or
    /// the file was truncated. All events before that point were returned.
    #[error("the stream is truncated: it has no end mark")]
    Truncated,
    /// The underlying reader failed.
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

    /// Whether the input is truncated, not damaged: everything before its end was read.
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
