//! The layouts of the types of `runtime/trace` that the reader follows.

use crate::layouts::LAYOUTS;
use std::fmt;

/// An architecture with known layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    #[cfg(unix)]
    pub(crate) const fn of_this_machine() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::Amd64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Arm64)
        } else {
            None
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}

/// Layouts of one release of Go on one architecture: offsets of fields and sizes, in bytes.
///
/// The types are `runtime/trace.traceMultiplexer`, `recorder`, `FlightRecorder` and `rawGeneration`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The N of Go 1.N.
    pub(crate) minor: u32,
    pub(crate) architecture: Architecture,
    pub(crate) multiplexer: usize,
    pub(crate) multiplexer_enabled: usize,
    pub(crate) multiplexer_subscribers: usize,
    pub(crate) multiplexer_flight_recorder: usize,
    pub(crate) recorder_r: usize,
    pub(crate) flight_recorder: usize,
    pub(crate) flight_recorder_err: usize,
    pub(crate) flight_recorder_header: usize,
    pub(crate) flight_recorder_active: usize,
    pub(crate) flight_recorder_ring: usize,
    pub(crate) flight_recorder_enabled: usize,
    pub(crate) generation: usize,
    pub(crate) generation_gen: usize,
    pub(crate) generation_size: usize,
    pub(crate) generation_min_time: usize,
    pub(crate) generation_batches: usize,
    /// The size of an element of `rawGeneration.batches`.
    pub(crate) batch: usize,
    /// The slice of bytes in it.
    pub(crate) batch_data: usize,
}

impl Layout {
    pub(crate) fn of(minor: u32, architecture: Architecture) -> Option<&'static Self> {
        LAYOUTS.iter().find(|l| l.minor == minor && l.architecture == architecture)
    }
}

/// The releases with known layouts, such as `1.25, 1.26`.
pub(crate) fn known() -> String {
    list(LAYOUTS.iter().map(|layout| layout.minor))
}

/// A list of releases, of which equal ones are neighbours.
pub(crate) fn list(minors: impl Iterator<Item = u32>) -> String {
    let mut minors: Vec<u32> = minors.collect();
    minors.dedup();
    minors.iter().map(|minor| format!("1.{minor}")).collect::<Vec<_>>().join(", ")
}
