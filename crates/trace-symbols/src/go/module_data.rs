//! The description of a Go program for its runtime: `runtime.moduledata`.

use super::pclntab::{PcLnTab, Version};
use crate::elf::{Elf, Segment};
use crate::error::Result;

/// The fields that the table of functions refers to.
#[derive(Debug)]
pub(super) struct ModuleData {
    /// The address of the code.
    pub(super) text: u64,
    /// The data of functions, from `go:func.*` to the end of its section.
    pub(super) functions: Vec<u8>,
}

/// Fields of `runtime.moduledata`, in words.
mod field {
    pub(super) const FUNCTION_NAMES: u64 = 1;
    pub(super) const FUNCTION_TABLE_LEN: u64 = 17;
    pub(super) const TEXT: u64 = 22;
    pub(super) const END_OF_TEXT: u64 = 23;
    pub(super) const TYPES: u64 = 37;
    /// Go 1.18 and 1.19: `covctrs` and `ecovctrs` are missing.
    pub(super) const GO18_FUNCTIONS: u64 = 38;
    /// Go 1.20 to 1.26.
    pub(super) const GO20_FUNCTIONS: u64 = 40;
    /// From Go 1.27 on: `typedesclen`, `itaboffset` and `itabsize` are new.
    pub(super) const GO27_FUNCTIONS: u64 = 43;
    pub(super) const COUNT: u64 = 44;
}

/// Pointers to the table that are looked at, of one part. There are a few; more are hostile.
const MAX_CANDIDATES: usize = 1 << 10;

/// The words of a file as they are when it is loaded at its own addresses.
struct Words<'a> {
    elf: &'a Elf,
    relocations: Vec<(u64, u64)>,
    size: u64,
}

impl Words<'_> {
    fn at(&self, address: u64) -> Option<u64> {
        let found = self.relocations.binary_search_by_key(&address, |(place, _)| *place);
        if let Some((_, value)) = found.ok().and_then(|index| self.relocations.get(index)) {
            return Some(*value);
        }
        let bytes = self.elf.loaded("a word", address, self.size).ok()?;
        word(&bytes)
    }
}

fn word(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [_, _, _, _] => bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes).into()),
        _ => bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
    }
}

impl ModuleData {
    /// Finds the description that refers to a table at this address.
    pub(super) fn find(elf: &Elf, table_at: u64, table: &PcLnTab) -> Result<Option<Self>> {
        let words = Words { elf, relocations: elf.relative_relocations()?, size: table.pointer };
        let relocated = words.relocations.iter();
        let relocated = relocated.filter(|(_, value)| *value == table_at).map(|(place, _)| *place);
        let relocated: Vec<u64> = relocated.take(MAX_CANDIDATES).collect();
        for candidate in relocated {
            if let Some(found) = Self::at(&words, candidate, table_at, table) {
                return Ok(Some(found));
            }
        }
        for part in elf.loaded_parts("the data", Segment::is_writable) {
            let (address, bytes) = part?;
            let chunks = bytes.chunks_exact(table.pointer as usize).zip(0u64..);
            let candidates = chunks.filter(|(chunk, _)| word(chunk) == Some(table_at));
            for (_, n) in candidates.take(MAX_CANDIDATES) {
                let candidate = address.wrapping_add(n * table.pointer);
                if let Some(found) = Self::at(&words, candidate, table_at, table) {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Reads the description at an address, if its fields agree with the table.
    fn at(words: &Words<'_>, address: u64, table_at: u64, table: &PcLnTab) -> Option<Self> {
        let fields: Vec<u64> = (0..field::COUNT)
            .map_while(|n| words.at(address.checked_add(n * table.pointer)?))
            .collect();
        let field = |n: u64| fields.get(n as usize).copied();
        let (text, end) = (field(field::TEXT)?, field(field::END_OF_TEXT)?);
        let is_ours = field(field::FUNCTION_NAMES)? == table_at.checked_add(table.names)?
            && field(field::FUNCTION_TABLE_LEN)? == table.functions.wrapping_add(1)
            && text.checked_add(table.first()?)? < end;
        if !is_ours {
            return None;
        }
        let has_length = field(field::TYPES + 1) < field(field::TYPES);
        let functions = match table.version {
            Version::Go18 => field(field::GO18_FUNCTIONS),
            _ if has_length => field(field::GO27_FUNCTIONS),
            _ => field(field::GO20_FUNCTIONS),
        };
        let functions = functions.and_then(|address| {
            let contains = |s: &&crate::elf::Section| {
                address.checked_sub(s.address).is_some_and(|at| at < s.size)
            };
            let section = words.elf.sections.iter().find(contains);
            let size = section.map_or(u64::MAX, |s| s.size - (address - s.address));
            words.elf.loaded("the data of functions", address, size).ok()
        });
        Some(Self { text, functions: functions.unwrap_or_default() })
    }
}
