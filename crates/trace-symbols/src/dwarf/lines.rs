//! Bounds of the headers of units and of the line tables that are read.
//!
//! The name and the directory of a unit are searched for their end each time that the unit is read. Many units
//! can have one text of a megabyte.
//!
//! `addr2line` keeps the header of the table of each unit, also where units share a table. The lines of a unit
//! are read when one of its addresses is first asked for, with a path for each file: the directory of the
//! unit, that of the file, and its name.

use super::Slice;
use super::bounds::{Refused, Result, SMALL, len, spend, text_size};
use gimli::{
    AttributeValue, DebugLineOffset, DebugStrOffsetsBase, FileEntry, LineInstruction, Reader,
    Section, Unit, UnitHeader, constants,
};

const WHAT: &str = "the line tables";

/// Bytes of one header: some GiB of memory, if all of its files have a name of one byte.
const MAX_HEADER: u64 = 1 << 24;
/// Bytes of the headers of all units: some seconds.
const MAX_HEADERS: u64 = 1 << 30;
/// Files and directories in the headers of all units: some GiB of memory.
const MAX_ENTRIES: u64 = 1 << 25;
/// Bytes of the programs of lines that are read of one file: some GiB of memory.
const MAX_PROGRAMS: u64 = 1 << 27;
/// Bytes of the paths of files: one GiB of memory.
const MAX_PATHS: u64 = 1 << 30;
/// The same in small files.
const SMALL_PATHS: u64 = 1 << 24;
/// Bytes of the names and directories of all units: some seconds.
const MAX_NAMES: u64 = 1 << 30;
/// Bytes of a path without its text, and of its entry.
const ENTRY: u64 = 128;

/// The work that the line tables of a file may cause.
pub(super) struct Budget {
    headers: u64,
    entries: u64,
    programs: u64,
    paths: u64,
    names: u64,
}

impl Budget {
    pub(super) fn new(dwarf: &gimli::Dwarf<Slice>) -> Self {
        // Units of compilers have a table each. A file has five bytes there.
        let tables = len(&dwarf.debug_line);
        let headers = (64 * tables + SMALL).min(MAX_HEADERS);
        let paths = (256 * tables + SMALL_PATHS).min(MAX_PATHS);
        // The smallest units have some tens of bytes, and paths as long as all others.
        let names = (64 * len(&dwarf.debug_info) + SMALL_PATHS).min(MAX_NAMES);
        Self { headers, entries: MAX_ENTRIES, programs: MAX_PROGRAMS, paths, names }
    }

    /// Reads a unit with the header of its lines. `None` if it is damaged: `addr2line` leaves it out, too.
    pub(super) fn unit(
        &mut self,
        dwarf: &gimli::Dwarf<Slice>,
        header: &UnitHeader<Slice>,
    ) -> Result<Option<Unit<Slice>>> {
        let (names, lines) = root(dwarf, header).unwrap_or_default();
        spend(&mut self.names, names, "the names of units")?;
        let size = lines.and_then(|lines| header_size(dwarf, lines)).unwrap_or_default();
        if size > MAX_HEADER {
            return Err(Refused::Excessive(WHAT));
        }
        spend(&mut self.headers, size, WHAT)?;
        let Ok(unit) = dwarf.unit(header.clone()) else { return Ok(None) };
        if let Some(program) = &unit.line_program {
            let lines = program.header();
            let entries = lines.file_names().len() + lines.include_directories().len();
            spend(&mut self.entries, entries as u64, WHAT)?;
        }
        Ok(Some(unit))
    }

    /// Measures the lines of a unit, and the paths of its files.
    pub(super) fn measure(
        &mut self,
        dwarf: &gimli::Dwarf<Slice>,
        unit: &Unit<Slice>,
    ) -> Result<()> {
        let Some(program) = &unit.line_program else { return Ok(()) };
        let header = program.header();
        spend(&mut self.programs, header.raw_program_buf().len() as u64, WHAT)?;
        let size = |text| dwarf.attr_string(unit, text).map_or(0, |text| text.len() as u64);
        let unit_directory = unit.comp_dir.as_ref().map_or(0, |text| text.len() as u64);
        let paths = &mut self.paths;
        let mut measure = |file: &FileEntry<Slice>| {
            // Number 0 is the directory of the unit.
            let directory = file.directory(header).filter(|_| file.directory_index() != 0);
            let path = unit_directory + directory.map_or(0, &size) + size(file.path_name());
            spend(paths, path + ENTRY, "the paths of files")
        };
        header.file(0).into_iter().chain(header.file_names()).try_for_each(&mut measure)?;
        if header.version() < 5 {
            // The program can add files. `addr2line` stops at a damaged instruction, too.
            let mut instructions = header.instructions();
            while let Ok(Some(instruction)) = instructions.next_instruction(header) {
                if let LineInstruction::DefineFile(file) = instruction {
                    measure(&file)?;
                }
            }
        }
        Ok(())
    }
}

/// The bytes of the name and the directory of a unit, and the place of its lines. `None` if it is damaged.
fn root(
    dwarf: &gimli::Dwarf<Slice>,
    header: &UnitHeader<Slice>,
) -> Option<(u64, Option<DebugLineOffset>)> {
    let abbreviations = dwarf.abbreviations(header).ok()?;
    let mut cursor = header.entries(&abbreviations);
    let (_, root) = cursor.next_dfs().ok()??;
    let (mut name, mut directory, mut lines) = (None, None, None);
    let mut base =
        DebugStrOffsetsBase::default_for_encoding_and_file(header.encoding(), dwarf.file_type);
    let mut attributes = root.attrs();
    while let Some(attribute) = attributes.next().ok()? {
        match (attribute.name(), attribute.value()) {
            (constants::DW_AT_name, value) => name = Some(value),
            (constants::DW_AT_comp_dir, value) => directory = Some(value),
            (constants::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) => {
                lines = Some(offset);
            }
            (constants::DW_AT_str_offsets_base, AttributeValue::DebugStrOffsetsBase(at)) => {
                base = at;
            }
            _ => {}
        }
    }
    let size = |value| text_size(dwarf, header, base, value);
    let names: u64 = [name, directory].into_iter().flatten().filter_map(size).sum();
    Some((names, lines))
}

/// The bytes of the header of lines. `None` if they are damaged.
fn header_size(dwarf: &gimli::Dwarf<Slice>, lines: DebugLineOffset) -> Option<u64> {
    let mut table = dwarf.debug_line.reader().clone();
    table.skip(lines.0).ok()?;
    let (size, format) = table.read_initial_length().ok()?;
    table.truncate(size).ok()?;
    if table.read_u16().ok()? >= 5 {
        // The sizes of addresses and segments.
        table.skip(2).ok()?;
    }
    let size = table.read_length(format).ok()?;
    Some(size.min(table.len()) as u64)
}
