//! The description of a Go program for its runtime: `runtime.moduledata`.

use super::pclntab::{PcLnTab, Version};
use crate::elf::{Elf, Segment};
use crate::error::{Result, Unresolved};

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
}

/// Pointers to the table that are looked at. There are a few; more are hostile.
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
        let mut left = MAX_CANDIDATES;
        let mut find_at = |candidate: u64| -> Result<Option<Self>> {
            let what = "the pointers to the table of functions";
            left = left.checked_sub(1).ok_or(Unresolved::Excessive { what })?;
            Ok(Self::at(&words, candidate, table_at, table))
        };
        for (candidate, _) in words.relocations.iter().filter(|(_, value)| *value == table_at) {
            if let Some(found) = find_at(*candidate)? {
                return Ok(Some(found));
            }
        }
        for part in elf.loaded_parts("the data", Segment::is_writable) {
            let (address, bytes) = part?;
            let chunks = bytes.chunks_exact(table.pointer as usize).zip(0u64..);
            for (_, n) in chunks.filter(|(chunk, _)| word(chunk) == Some(table_at)) {
                if let Some(found) = find_at(address.wrapping_add(n * table.pointer))? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Reads the description at an address, if its fields agree with the table.
    fn at(words: &Words<'_>, address: u64, table_at: u64, table: &PcLnTab) -> Option<Self> {
        // To find a word, all segments of the file are searched: other data is left at the first ones.
        let field = |n: u64| words.at(address.checked_add(n * table.pointer)?);
        if field(field::FUNCTION_NAMES)? != table_at.checked_add(table.names)?
            || field(field::FUNCTION_TABLE_LEN)? != table.functions.wrapping_add(1)
        {
            return None;
        }
        let (text, end) = (field(field::TEXT)?, field(field::END_OF_TEXT)?);
        if text.checked_add(table.first()?)? >= end {
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

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: u64 = 0x1000;

    /// A file with writable parts that share this number of pointers to the table.
    fn with_pointers(parts: u16, pointers: u64) -> Elf {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        // The entry, the program headers, the section headers, flags, and the sizes and numbers of headers.
        file.extend([0, 64, 0].map(u64::to_le_bytes).concat());
        file.extend([0, 0, 64, 56, parts, 0, 0, 0].map(u16::to_le_bytes).concat());
        let at = 64 + 56 * u64::from(parts);
        let size = 8 * pointers;
        for _ in 0..parts {
            // `PT_LOAD`, writable.
            file.extend([1, 6].map(u32::to_le_bytes).concat());
            file.extend([at, 0, 0, size, size, 8].map(u64::to_le_bytes).concat());
        }
        file.extend(TABLE.to_le_bytes().repeat(pointers as usize));
        // Parts have at most twice the bytes of the file.
        file.resize(file.len() + (u64::from(parts) * size) as usize, 0);
        Elf::from_bytes(file, 1 << 30).unwrap()
    }

    #[test]
    fn pointers_of_all_parts_have_a_limit() {
        // One function, and its records behind the header.
        let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        table.extend([1, 0, 0, 0, 0, 0, 0, 72].map(u64::to_le_bytes).concat());
        table.extend([0; 12]);
        let table = PcLnTab::parse(table).unwrap();
        let find = |parts, pointers| {
            let found = ModuleData::find(&with_pointers(parts, pointers), TABLE, &table);
            found.map(|found| found.is_some())
        };
        assert_eq!(find(100, 10), Ok(false));
        let what = "the pointers to the table of functions";
        assert_eq!(find(1000, 10), Err(Unresolved::Excessive { what }));
        assert_eq!(find(1, 10_000), Err(Unresolved::Excessive { what }));
    }
}
