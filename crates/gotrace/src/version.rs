use crate::spec::{EventSpec, EventType};
use std::fmt;

/// The version in the header of a trace.
///
/// Go writes a new version only when the format changes: Go 1.24 writes [`Version::Go123`],
/// Go 1.27 writes [`Version::Go126`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// Go 1.11 to 1.18, format v1.
    Go111 = 11,
    /// Go 1.19 and 1.20, format v1.
    Go119 = 19,
    /// Go 1.21, format v1.
    Go121 = 21,
    /// Go 1.22: the first of format v2.
    Go122 = 22,
    /// Go 1.23 and 1.24: coroutines, experiments.
    Go123 = 23,
    /// Go 1.25: sync batches with clock snapshots.
    Go125 = 25,
    /// Go 1.26 and later: generations end explicitly.
    Go126 = 26,
}

impl Version {
    /// Every version that this crate reads, oldest first.
    pub const ALL: [Self; 7] =
        [Self::Go111, Self::Go119, Self::Go121, Self::Go122, Self::Go123, Self::Go125, Self::Go126];

    /// Length of the header of a trace, in bytes.
    pub const HEADER_LEN: usize = 16;

    /// Returns the version of `go 1.<minor> trace`, if this crate supports it.
    pub fn from_minor(minor: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.minor() == minor)
    }

    /// The number after `1.`.
    pub const fn minor(self) -> u32 {
        self as u32
    }

    /// Whether the trace is in format v1 (Go ≤ 1.21).
    pub const fn is_v1(self) -> bool {
        self.minor() < Self::Go122.minor()
    }

    /// Returns the header of a trace of this version.
    pub fn header(self) -> [u8; Self::HEADER_LEN] {
        let mut header = *b"go 1.?? trace\0\0\0";
        header[5] = b'0' + (self.minor() / 10) as u8;
        header[6] = b'0' + (self.minor() % 10) as u8;
        header
    }

    /// Returns the specification of `ty` if this version's wire format defines it.
    ///
    /// The ordered [`Reader`](crate::Reader) is more lenient, as Go's is: it accepts every defined
    /// type in any v2 trace.
    pub fn spec(self, ty: EventType) -> Option<&'static EventSpec> {
        if ty <= self.last_type() { ty.spec() } else { None }
    }

    /// The highest event type in this version; 0 for format v1, which has different types.
    pub(crate) const fn last_type(self) -> EventType {
        match self {
            Self::Go111 | Self::Go119 | Self::Go121 => EventType(0),
            Self::Go122 => EventType::USER_LOG,
            Self::Go123 => EventType::EXPERIMENTAL_BATCH,
            Self::Go125 => EventType::CLOCK_SNAPSHOT,
            Self::Go126 => EventType::GOROUTINE_STACK_FREE,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Go 1.{}", self.minor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_know_their_events() {
        assert!(Version::Go122.spec(EventType::USER_LOG).is_some());
        assert!(Version::Go122.spec(EventType::GO_SWITCH).is_none());
        assert!(Version::Go123.spec(EventType::SPAN).is_none(), "as in Go's raw reader");
        assert!(Version::Go126.spec(EventType::SPAN).is_some());
        assert!(Version::Go121.spec(EventType::GO_START).is_none());
        assert_eq!(&Version::Go126.header(), b"go 1.26 trace\0\0\0");
        assert_eq!(Version::from_minor(24), None);
        assert_eq!(Version::from_minor(21), Some(Version::Go121));
    }
}
