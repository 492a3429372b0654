//! Bounds of the work that the debug information of a file causes.
//!
//! `addr2line` follows each reference as often as the file has it, and calls itself for each inlined call
//! in another one. Small files can thus cost gigabytes of memory, or the stack. What it reads is measured
//! before: abbreviations and the headers of units when the file is opened, entries and lines when one of
//! their addresses is first asked for.

use super::Slice;
use crate::error::Unresolved;
use gimli::{Reader, Section};

/// Why a unit is not read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    Damaged,
    Excessive(&'static str),
}

pub(super) type Result<T> = std::result::Result<T, Refused>;

impl From<gimli::Error> for Refused {
    fn from(_: gimli::Error) -> Self {
        Self::Damaged
    }
}

impl From<Refused> for Unresolved {
    fn from(why: Refused) -> Self {
        match why {
            Refused::Damaged => Self::Malformed { what: super::WHAT, offset: 0 },
            Refused::Excessive(what) => Self::Excessive { what },
        }
    }
}

/// Added to limits that grow with the file: those of small files do not depend on their size.
pub(super) const SMALL: u64 = 1 << 16;

pub(super) fn spend(left: &mut u64, count: u64, what: &'static str) -> Result<()> {
    *left = left.checked_sub(count).ok_or(Refused::Excessive(what))?;
    Ok(())
}

pub(super) fn len(section: &impl Section<Slice>) -> u64 {
    section.reader().len() as u64
}
