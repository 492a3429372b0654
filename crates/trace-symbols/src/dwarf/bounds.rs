//! Bounds of the work that the debug information of a file causes.
//!
//! `addr2line` follows each reference as often as the file has it, and calls itself for each inlined call
//! in another one. Small files can thus cost gigabytes of memory, or the stack. What it reads is measured
//! before: abbreviations and the headers of units when the file is opened, entries and lines when one of
//! their addresses is first asked for.

use super::Slice;
use crate::error::Unresolved;
use gimli::{AttributeValue, DebugStrOffsetsBase, Reader, Section, UnitHeader};

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

/// The bytes of a text of a unit, whose end is searched. `None` if it is damaged, or none.
pub(super) fn text_size(
    dwarf: &gimli::Dwarf<Slice>,
    unit: &UnitHeader<Slice>,
    base: DebugStrOffsetsBase,
    text: AttributeValue<Slice>,
) -> Option<u64> {
    let text = match text {
        AttributeValue::String(text) => Ok(text),
        AttributeValue::DebugStrRef(offset) => dwarf.string(offset),
        AttributeValue::DebugStrRefSup(offset) => dwarf.sup_string(offset),
        AttributeValue::DebugLineStrRef(offset) => dwarf.line_string(offset),
        AttributeValue::DebugStrOffsetsIndex(index) => {
            let offset = dwarf.debug_str_offsets.get_str_offset(unit.format(), base, index);
            dwarf.string(offset.ok()?)
        }
        _ => return None,
    };
    Some(text.ok()?.len() as u64)
}

pub(super) fn len(section: &impl Section<Slice>) -> u64 {
    section.reader().len() as u64
}
