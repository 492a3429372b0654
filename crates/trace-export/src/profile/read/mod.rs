//! Profiles of other tools, and those that were written here.

mod folded;
mod pprof;

pub use folded::read_folded;
pub use pprof::{PprofFile, read_pprof};

use std::io;

/// Limits of what is read of a profile, so that no input needs memory or time without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadLimits {
    /// Bytes of a profile after decompression.
    pub bytes: usize,
    /// Samples, values, functions, locations, mappings and texts in all, and the labels of samples, once
    /// for each sample type.
    pub items: usize,
    /// Frames of all samples in all.
    pub frames: usize,
    /// Frames of one sample.
    pub depth: usize,
}

impl Default for ReadLimits {
    /// 256 MiB, 16 Mi items, 256 Mi frames and 64 Ki frames of a sample.
    fn default() -> Self {
        Self { bytes: 256 << 20, items: 16 << 20, frames: 256 << 20, depth: 64 << 10 }
    }
}

impl ReadLimits {
    fn check_depth(&self, depth: usize) -> Result<(), Error> {
        let (what, limit) = ("frames of a sample", self.depth);
        if depth > limit { Err(Error::TooLarge { what, limit }) } else { Ok(()) }
    }
}

/// The reason why a profile cannot be read. Offsets are those after decompression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The data ends early, or a number is malformed.
    #[error(transparent)]
    Data(#[from] trace_common::ReadError),
    /// The data is compressed, and damaged or truncated.
    #[error("decompression failed: {0}")]
    Compression(io::Error),
    /// A field has a type that it cannot have.
    #[error("field {field} has the wire type {wire_type} at byte {offset}")]
    WireType {
        /// The number of the field in its message.
        field: u64,
        /// Its type in the encoding of protobuf.
        wire_type: u8,
        /// The position.
        offset: u64,
    },
    /// A text, function, location or mapping does not exist.
    #[error("there is no {what} {id} at byte {offset}")]
    Reference {
        /// The kind of item.
        what: &'static str,
        /// Its number.
        id: u64,
        /// The position of the message that refers to it.
        offset: u64,
    },
    /// The profile has no kind of value.
    #[error("the profile has no sample types")]
    NoSampleTypes,
    /// A sample has more or fewer values than the profile has kinds of values.
    #[error("expected {expected} values, found {found} at byte {offset}")]
    Values {
        /// The number of sample types.
        expected: usize,
        /// The number of values.
        found: usize,
        /// The position of the sample.
        offset: u64,
    },
    /// A value is negative: the profile is a difference.
    #[error("the value {value} is negative at byte {offset}: the profile is a difference")]
    Negative {
        /// The value.
        value: i64,
        /// The position of the sample.
        offset: u64,
    },
    /// A line is no stack with its weight.
    #[error("line {line} is no stack with its weight")]
    Line {
        /// Its number, from 1.
        line: u64,
    },
    /// The profile is larger than a limit.
    #[error("more than {limit} {what}")]
    TooLarge {
        /// The counted items.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// The rest of a limit.
struct Budget {
    what: &'static str,
    limit: usize,
    used: usize,
}

impl Budget {
    const fn new(what: &'static str, limit: usize) -> Self {
        Self { what, limit, used: 0 }
    }

    fn take(&mut self, count: usize) -> Result<(), Error> {
        self.used = self.used.saturating_add(count);
        if self.used > self.limit {
            return Err(Error::TooLarge { what: self.what, limit: self.limit });
        }
        Ok(())
    }
}
