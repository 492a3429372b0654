//! Debug information: files, lines and inlined calls of native code.

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Room, Texts};
use crate::section;
use addr2line::{LookupContinuation, LookupResult};
use gimli::{EndianArcSlice, LittleEndian};
use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;
use units::Units;

mod abbreviations;
mod bounds;
mod lines;
mod names;
mod units;

type Slice = EndianArcSlice<LittleEndian>;

const WHAT: &str = "debug information";

/// The debug information of a file.
pub(crate) struct Dwarf {
    sections: Arc<gimli::Dwarf<Slice>>,
    units: Units,
    context: addr2line::Context<Slice>,
    /// Of the sections.
    bytes: u64,
    /// Why a part of it is not used.
    problem: OnceCell<Unresolved>,
}

impl fmt::Debug for Dwarf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dwarf").finish_non_exhaustive()
    }
}

impl Dwarf {
    /// Reads the debug information of a file. `None` if it has none. `supplement` finds the file with the
    /// parts that it shares with others.
    pub(crate) fn read(
        elf: &Elf,
        supplement: impl FnOnce() -> Option<Elf>,
    ) -> Result<Option<Self>> {
        if !elf.has_dwarf() {
            return Ok(None);
        }
        let (mut sections, mut bytes) = load(elf)?;
        let (problem, mut shared_units) = (OnceCell::new(), Vec::new());
        if elf.supplementary_link().is_some() {
            let shared = supplement().ok_or(Unresolved::OtherDebugFile);
            match shared.and_then(|elf| load_shared(&elf)) {
                Ok((shared, units, size)) => {
                    sections.set_sup(shared);
                    shared_units = units;
                    bytes = bytes.saturating_add(size);
                }
                // Functions of other parts have names.
                Err(why) => drop(problem.set(why)),
            }
        }
        let units = Units::read(&mut sections, shared_units)?;
        let sections = Arc::new(sections);
        let context = addr2line::Context::from_arc_dwarf(Arc::clone(&sections));
        let context = context.map_err(malformed)?;
        Ok(Some(Self { sections, units, context, bytes, problem }))
    }

    /// The bytes of the sections.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Why a part of it is not used, of the addresses that were asked for.
    pub(crate) fn problem(&self) -> Option<&Unresolved> {
        self.problem.get()
    }

    /// Whether the units with an address may be read.
    fn admits(&self, address: u64) -> bool {
        match self.units.admit(&self.sections, address) {
            // `addr2line` looks for the next address, too.
            Ok(()) => address < u64::MAX,
            Err(why) => {
                // The first one counts.
                let _ = self.problem.set(why.into());
                false
            }
        }
    }

    /// Appends the functions at an address. `false` if the debug information has none there.
    pub(crate) fn find(&self, address: u64, texts: &mut Texts, out: &mut Vec<Frame>) -> bool {
        let start = out.len();
        if !self.admits(address) || self.append(address, texts, out).is_none() {
            out.truncate(start);
        }
        let Some(last) = out.get_mut(start..).and_then(|found| found.last_mut()) else {
            return false;
        };
        last.is_inlined = false;
        true
    }

    fn append(&self, address: u64, texts: &mut Texts, out: &mut Vec<Frame>) -> Option<()> {
        let mut lookup = self.context.find_frames(address);
        let mut frames = loop {
            lookup = match lookup {
                LookupResult::Output(frames) => break frames.ok()?,
                LookupResult::Load { continuation, .. } => {
                    let _ = self.problem.set(Unresolved::OtherDebugFile);
                    continuation.resume(None)
                }
            };
        };
        let mut room = Room::default();
        let mut is_named = false;
        while let Some(frame) = frames.next().ok()? {
            // The caller of an inlined call without a name has the line of the call.
            is_named = frame.function.is_some();
            let Some(function) = frame.function else { continue };
            let name = function.raw_name().ok()?;
            let mut found = texts.frame(room.cut(&name), None);
            found.is_inlined = true;
            if let Some(location) = frame.location {
                found.file = location.file.map(|file| texts.get(room.cut(file)));
                found.line = location.line.unwrap_or_default();
                found.column = location.column.unwrap_or_default();
            }
            out.push(found);
        }
        // The last one has the code.
        is_named.then_some(())
    }

    /// The file, line and column at an address without a function.
    pub(crate) fn line(&self, address: u64, texts: &mut Texts, frame: &mut Frame) {
        if !self.admits(address) {
            return;
        }
        if let Ok(Some(location)) = self.context.find_location(address) {
            frame.file = location.file.map(|file| texts.get(Room::default().cut(file)));
            frame.line = location.line.unwrap_or_default();
            frame.column = location.column.unwrap_or_default();
        }
    }
}

/// The sections of a file, and their bytes.
fn load(elf: &Elf) -> Result<(gimli::Dwarf<Slice>, u64)> {
    // Sections can share their bytes, and a compressed one can have a thousand times its size.
    let max = elf.max().saturating_mul(2);
    let mut left = max;
    let sections = gimli::Dwarf::load(|id: gimli::SectionId| -> Result<Slice> {
        let section = elf.section_named(id.name().as_bytes());
        let section = section.filter(|section| section.has_bytes() && is_used(id));
        let bytes =
            section.map(|section| section::shared(WHAT, elf, section, &mut left)).transpose()?;
        let mut bytes = bytes.unwrap_or_default();
        if let (gimli::SectionId::DebugAbbrev, Some(bytes)) = (id, Arc::get_mut(&mut bytes)) {
            abbreviations::leave_out_lines(bytes);
        }
        let slice = Slice::new(bytes, LittleEndian);
        if matches!(id, gimli::SectionId::DebugStr | gimli::SectionId::DebugLineStr) {
            // A text without an end is an error. It is found each time that it is read, with a search of all of it.
            let end = slice.bytes().iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
            return Ok(slice.range_to(..end));
        }
        Ok(slice)
    })?;
    Ok((sections, max - left))
}

/// The sections of the file with the parts that others share, its units, and the bytes.
fn load_shared(elf: &Elf) -> Result<(gimli::Dwarf<Slice>, Vec<names::Header>, u64)> {
    let (mut sections, bytes) = load(elf)?;
    let units = units::measure_shared(&mut sections)?;
    Ok((sections, units, bytes))
}

/// Whether functions, files and lines are found with a section. Others have the places of variables,
/// macros and types: they are as large, and take long to decompress.
const fn is_used(id: gimli::SectionId) -> bool {
    use gimli::SectionId::*;
    !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro | DebugTypes)
}

fn malformed(_: gimli::Error) -> Unresolved {
    Unresolved::Malformed { what: WHAT, offset: 0 }
}
