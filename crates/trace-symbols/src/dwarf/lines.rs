//! Bounds of the line tables that are read.
//!
//! `addr2line` keeps the header of the table of each unit, also where units share a table. The lines of a unit
//! are read when one of its addresses is first asked for.

use super::Slice;
use super::bounds::{Result, SMALL, len, spend};
use gimli::{AttributeValue, Reader, Section, Unit, UnitHeader, constants};

const WHAT: &str = "the line tables";

/// Bytes of the headers of all units: some seconds.
const MAX_HEADERS: u64 = 1 << 30;
/// Files and directories in the headers of all units: some GiB of memory.
const MAX_ENTRIES: u64 = 1 << 25;
/// Bytes of the programs of lines that are read of one file: some GiB of memory.
const MAX_PROGRAMS: u64 = 1 << 27;

/// The work that the line tables of a file may cause.
pub(super) struct Budget {
    headers: u64,
    entries: u64,
    programs: u64,
}

impl Budget {
    pub(super) fn new(dwarf: &gimli::Dwarf<Slice>) -> Self {
        // Units of compilers have a table each.
        let headers = (64 * len(&dwarf.debug_line) + SMALL).min(MAX_HEADERS);
        Self { headers, entries: MAX_ENTRIES, programs: MAX_PROGRAMS }
    }

    /// Reads a unit with the header of its lines. `None` if it is damaged: `addr2line` leaves it out, too.
    pub(super) fn unit(
        &mut self,
        dwarf: &gimli::Dwarf<Slice>,
        header: &UnitHeader<Slice>,
    ) -> Result<Option<Unit<Slice>>> {
        spend(&mut self.headers, header_size(dwarf, header).unwrap_or_default(), WHAT)?;
        let Ok(unit) = dwarf.unit(header.clone()) else { return Ok(None) };
        if let Some(program) = &unit.line_program {
            let lines = program.header();
            let entries = lines.file_names().len() + lines.include_directories().len();
            spend(&mut self.entries, entries as u64, WHAT)?;
        }
        Ok(Some(unit))
    }

    /// Measures the lines of a unit.
    pub(super) fn measure(&mut self, unit: &Unit<Slice>) -> Result<()> {
        let Some(program) = &unit.line_program else { return Ok(()) };
        spend(&mut self.programs, program.header().raw_program_buf().len() as u64, WHAT)
    }
}

/// The bytes of the header of the lines of a unit. `None` if it has none, or they are damaged.
fn header_size(dwarf: &gimli::Dwarf<Slice>, header: &UnitHeader<Slice>) -> Option<u64> {
    let abbreviations = dwarf.abbreviations(header).ok()?;
    let mut cursor = header.entries(&abbreviations);
    let (_, root) = cursor.next_dfs().ok()??;
    let (mut attributes, mut lines) = (root.attrs(), None);
    while let Some(attribute) = attributes.next().ok()? {
        if let (constants::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) =
            (attribute.name(), attribute.value())
        {
            lines = Some(offset);
        }
    }
    let mut table = dwarf.debug_line.reader().clone();
    table.skip(lines?.0).ok()?;
    let (size, format) = table.read_initial_length().ok()?;
    table.truncate(size).ok()?;
    if table.read_u16().ok()? >= 5 {
        // The sizes of addresses and segments.
        table.skip(2).ok()?;
    }
    let size = table.read_length(format).ok()?;
    Some(size.min(table.len()) as u64)
}
