use std::io;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading or writing a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input or output failed.
    #[error("cannot {operation} at byte {offset}: {source}")]
    Io {
        /// The operation, such as `read a record`.
        operation: &'static str,
        /// Offset in the input or output.
        offset: u64,
        /// The error.
        source: io::Error,
    },
    /// The input is not a recording of `perf`.
    #[error("not a perf.data recording: it begins with {}", Shown(.0))]
    NotPerfData([u8; 8]),
    /// The recording was made on a machine of the other byte order.
    #[error("the recording was made on a big-endian machine, which is not supported")]
    BigEndian,
    /// A recording in file mode came through a pipe.
    #[error("a recording in file mode cannot be read from a pipe: read the file itself")]
    NeedsSeek,
    /// The input ends early.
    #[error("{what} at byte {offset} is truncated: it has {wanted} bytes, {left} are left")]
    Truncated {
        /// What was read.
        what: &'static str,
        /// Its offset in the input.
        offset: u64,
        /// Its size.
        wanted: u64,
        /// The bytes that are left.
        left: u64,
    },
    /// The input does not have the documented form.
    #[error("{what} at byte {offset}: {why}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// Its offset in the input.
        offset: u64,
        /// The problem.
        why: &'static str,
    },
    /// Something in the input exceeds a limit.
    #[error("{what} at byte {offset} has {value} bytes, more than the limit of {limit}")]
    Limit {
        /// What was read.
        what: &'static str,
        /// Its offset in the input.
        offset: u64,
        /// Its size.
        value: u64,
        /// The limit, from [`Limits`](trace_common::Limits).
        limit: u64,
    },
    /// The recording is compressed, and this build cannot decompress it.
    #[error("the recording is compressed: build with the feature \"zstd\" of perf-data")]
    Compressed,
    /// Compressed data is damaged.
    #[error("compressed data at byte {offset}: {why}")]
    Decompress {
        /// Offset of the record with the data.
        offset: u64,
        /// The problem.
        why: String,
    },
    /// The events of a recording or their records are inconsistent.
    #[error(transparent)]
    Events(#[from] perf_monitor::Error),
}

struct Shown<'a>(&'a [u8; 8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Error {
    /// For `map_err` of a read or write.
    pub(crate) fn io(operation: &'static str, offset: u64) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, offset, source }
    }

    /// A read beyond the end of something.
    pub(crate) fn read(what: &'static str, error: trace_common::ReadError) -> Self {
        match error.kind {
            trace_common::ReadErrorKind::UnexpectedEnd { wanted, left } => Self::Truncated {
                what,
                offset: error.offset,
                wanted: wanted as u64,
                left: left as u64,
            },
            _ => Self::Malformed { what, offset: error.offset, why: "a number is too large" },
        }
    }
}
