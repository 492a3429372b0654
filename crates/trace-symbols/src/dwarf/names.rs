//! Bounds of the names of functions and of inlined calls.
//!
//! `addr2line` reads the names of all inlined calls in a function when one of its addresses is first asked for.
//! The name of each can be at the end of references from entry to entry, and a search of a megabyte. Calls beside
//! each other can share it.

use super::Slice;
use super::bounds::{Refused, Result, len, spend, text_size};
use gimli::{
    Attribute, AttributeValue, DebugInfoOffset, DebugStrOffsetsBase, Unit, UnitHeader, UnitOffset,
    constants,
};
use std::collections::HashMap;

const WHAT: &str = "the names of functions";

/// Entries that refer to one another for one name: `addr2line` reads no more.
const MAX_REFERENCES: usize = 16;
/// Bytes of one name: it is read for each address of its function.
const MAX_NAME: u64 = 1 << 20;
/// Bytes and attributes of all names of one file: some seconds.
const MAX_NAMES: u64 = 1 << 33;
/// The same in small files.
const SMALL_NAMES: u64 = 1 << 26;
/// Entries whose cost is kept.
const MAX_KNOWN: usize = 1 << 16;

/// The header of a unit, and where its texts are.
pub(super) struct Header {
    pub(super) unit: UnitHeader<Slice>,
    texts: DebugStrOffsetsBase,
}

impl Header {
    pub(super) fn new(unit: &Unit<Slice>) -> Self {
        Self { unit: unit.header.clone(), texts: unit.str_offsets_base }
    }
}

/// A file and the one that it shares parts with. The headers are in the order of the file.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub(super) dwarf: &'a gimli::Dwarf<Slice>,
    pub(super) units: &'a [Header],
    pub(super) shared: &'a [Header],
}

/// The place of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    is_shared: bool,
    /// The index of the header.
    unit: usize,
    offset: UnitOffset,
}

impl<'a> File<'a> {
    /// The file with an entry, and the header of its unit.
    fn unit(&self, entry: Entry) -> Option<(&'a gimli::Dwarf<Slice>, &'a Header)> {
        let dwarf = if entry.is_shared { self.dwarf.sup()? } else { self.dwarf };
        Some((dwarf, self.headers(entry.is_shared).get(entry.unit)?))
    }

    const fn headers(&self, is_shared: bool) -> &'a [Header] {
        if is_shared { self.shared } else { self.units }
    }

    /// The entry that another one refers to.
    fn referred(&self, from: Entry, value: &AttributeValue<Slice>) -> Option<Entry> {
        match *value {
            AttributeValue::UnitRef(offset) => Some(Entry { offset, ..from }),
            AttributeValue::DebugInfoRef(at) => self.entry(from.is_shared, at),
            AttributeValue::DebugInfoRefSup(at) if !from.is_shared => self.entry(true, at),
            _ => None,
        }
    }

    fn entry(&self, is_shared: bool, at: DebugInfoOffset) -> Option<Entry> {
        let headers = self.headers(is_shared);
        let start = |header: &Header| header.unit.offset().as_debug_info_offset().map(|at| at.0);
        let after = headers.partition_point(|header| start(header) <= Some(at.0));
        let unit = after.checked_sub(1)?;
        let offset = at.to_unit_offset(&headers.get(unit)?.unit)?;
        Some(Entry { is_shared, unit, offset })
    }
}

/// The work that the names of a file may cause.
pub(super) struct Budget {
    left: u64,
    /// The cost of an entry that others refer to.
    known: HashMap<Entry, u64>,
}

impl Budget {
    pub(super) fn new(dwarf: &gimli::Dwarf<Slice>) -> Self {
        // An inlined call has some tens of bytes, and the name of a template some thousands.
        let left = (1024 * len(&dwarf.debug_info) + SMALL_NAMES).min(MAX_NAMES);
        Self { left, known: HashMap::new() }
    }

    /// Measures the name that an attribute of a function or of an inlined call stands for.
    pub(super) fn measure(
        &mut self,
        file: &File<'_>,
        unit: usize,
        attribute: &Attribute<Slice>,
    ) -> Result<()> {
        let from = Entry { is_shared: false, unit, offset: UnitOffset(0) };
        match attribute.name() {
            constants::DW_AT_linkage_name
            | constants::DW_AT_MIPS_linkage_name
            | constants::DW_AT_name => self.text(file, from, attribute.value()).map(drop),
            constants::DW_AT_abstract_origin | constants::DW_AT_specification => {
                match file.referred(from, &attribute.value()) {
                    Some(first) => self.follow(file, first),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Measures an entry, and those that it refers to. Each is read once, but counts each time.
    fn follow(&mut self, file: &File<'_>, first: Entry) -> Result<()> {
        if let Some(cost) = self.known.get(&first) {
            return spend(&mut self.left, *cost, WHAT);
        }
        let before = self.left;
        let mut next = Some(first);
        for _ in 0..MAX_REFERENCES {
            let Some(entry) = next else { break };
            next = match self.read(file, entry) {
                // `addr2line` ends there, too.
                Err(Refused::Damaged) => None,
                read => read?,
            };
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(first, before - self.left);
        Ok(())
    }

    /// Measures an entry. Returns the one that it refers to, if it has no name.
    fn read(&mut self, file: &File<'_>, entry: Entry) -> Result<Option<Entry>> {
        let Some((dwarf, header)) = file.unit(entry) else { return Ok(None) };
        let abbreviations = dwarf.abbreviations(&header.unit)?;
        let mut entries = header.unit.entries_raw(&abbreviations, Some(entry.offset))?;
        let Some(abbreviation) = entries.read_abbreviation()? else { return Ok(None) };
        let (mut next, mut has_name) = (None, false);
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            spend(&mut self.left, 1, WHAT)?;
            match (attribute.name(), attribute.value()) {
                (constants::DW_AT_abstract_origin | constants::DW_AT_specification, value) => {
                    next = file.referred(entry, &value);
                }
                (
                    constants::DW_AT_linkage_name
                    | constants::DW_AT_MIPS_linkage_name
                    | constants::DW_AT_name,
                    value,
                ) => has_name |= self.text(file, entry, value)?,
                // Its end is searched, too.
                (_, value @ AttributeValue::String(_)) => {
                    self.text(file, entry, value)?;
                }
                _ => {}
            }
        }
        Ok(next.filter(|_| !has_name))
    }

    /// Measures a text. Returns whether it is one.
    fn text(
        &mut self,
        file: &File<'_>,
        entry: Entry,
        value: AttributeValue<Slice>,
    ) -> Result<bool> {
        // The size is known after the search: without anything left, there is none.
        spend(&mut self.left, 1, WHAT)?;
        let unit = file.unit(entry);
        let size =
            unit.and_then(|(dwarf, header)| text_size(dwarf, &header.unit, header.texts, value));
        let bytes = size.unwrap_or_default();
        self.left = self.left.saturating_sub(bytes);
        if bytes > MAX_NAME || self.left == 0 {
            return Err(Refused::Excessive(WHAT));
        }
        Ok(size.is_some())
    }
}
