use std::io::{self, Write};
use trace_common::Timestamp;

/// The finished generations of a flight recorder: a complete trace.
///
/// The bytes are those that the program's own `FlightRecorder.WriteTo` writes for these generations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The header of the trace, such as `go 1.26 trace`, padded with zeros.
    pub header: [u8; 16],
    /// The generations, oldest first; there is at least one.
    pub generations: Vec<Generation>,
    /// The generation that the program is recording. It is not part of the trace: its strings and
    /// stacks are not written yet.
    pub unfinished: Unfinished,
    /// Whether the recorder failed to store a batch since it was started (`FlightRecorder.err`): the
    /// trace then lacks it, and so does that of `WriteTo`. Known to happen to the experimental
    /// batches of `GODEBUG=traceallocfree=1`.
    pub has_failed: bool,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// Its number. It increases with every generation of the process.
    pub number: u64,
    /// The time of its first batch, in nanoseconds of `CLOCK_MONOTONIC`.
    pub first_time: Timestamp,
    /// Its batches.
    pub bytes: Vec<u8>,
}

/// The generation in progress, as far as it was at the time of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// Bytes that the recorder has of it. The runtime's own buffers may have more.
    pub bytes: u64,
}

impl Snapshot {
    /// The size of the trace in bytes.
    pub fn size(&self) -> u64 {
        let generations = self.generations.iter().map(|generation| generation.bytes.len() as u64);
        self.header.len() as u64 + generations.sum::<u64>()
    }

    /// Writes the trace.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write_to(&self, mut writer: impl Write) -> io::Result<()> {
        writer.write_all(&self.header)?;
        self.generations.iter().try_for_each(|generation| writer.write_all(&generation.bytes))
    }
}
