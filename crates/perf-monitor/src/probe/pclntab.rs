//! The functions of a Go program without symbols, from the table that its runtime uses
//! (`.gopclntab`, Go 1.18 and later): `internal/abi.PCHeader`-like words, then entries of two
//! 32-bit offsets.

use trace_common::{Cursor, ReadError};

/// Magic numbers of Go 1.18 and of Go 1.20.
const MAGIC: [u32; 2] = [0xffff_fff0, 0xffff_fff1];

/// A table of functions.
pub(super) struct GoFunctions<'a> {
    table: &'a [u8],
    /// Entries, and one for the end of the last function.
    functions: &'a [u8],
    /// Names, each with a NUL.
    names: &'a [u8],
}

/// A function: its name, and its offsets from the start of the text.
pub(super) struct GoFunction<'a> {
    /// All names from its own on.
    names: &'a [u8],
    pub(super) start: u32,
    pub(super) end: u32,
}

impl GoFunction<'_> {
    /// Whether it has this name. The end of another one is not looked for: in a crafted file, names overlap.
    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        matches!(self.names.strip_prefix(name), Some([0, ..]))
    }
}

impl<'a> GoFunctions<'a> {
    /// Parses the header of little-endian 64-bit programs.
    pub(super) fn parse(table: &'a [u8]) -> Option<Self> {
        Self::header(table).ok().flatten()
    }

    fn header(table: &'a [u8]) -> Result<Option<Self>, ReadError> {
        let mut cursor = Cursor::new(table);
        let magic = cursor.u32()?;
        let [_, _, _, word] = cursor.array()?;
        if !MAGIC.contains(&magic) || word != 8 {
            return Ok(None);
        }
        let (count, _files, _text) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let names = cursor.u64()?;
        cursor.skip(3 * 8)?;
        let functions = cursor.u64()?;
        let from = |offset: u64| usize::try_from(offset).ok().and_then(|at| table.get(at..));
        let (Some(names), Some(functions)) = (from(names), from(functions)) else {
            return Ok(None);
        };
        let len = usize::try_from(count).ok().and_then(|n| n.checked_mul(8)?.checked_add(4));
        let Some(entries) = len.and_then(|len| functions.get(..len)) else { return Ok(None) };
        Ok(Some(Self { table: functions, functions: entries, names }))
    }

    /// The functions, in the order of their addresses.
    pub(super) fn iter(&self) -> impl Iterator<Item = GoFunction<'a>> + '_ {
        self.functions.chunks_exact(8).enumerate().filter_map(|(i, entry)| {
            let word = |bytes: &[u8], at: usize| {
                Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
            };
            let start = word(entry, 0)?;
            // The data of the function: its start again, then the offset of its name.
            let name = word(self.table, (word(entry, 4)? as usize).checked_add(4)?)?;
            let end = word(self.functions, (i + 1) * 8)?;
            Some(GoFunction { names: self.names.get(name as usize..)?, start, end })
        })
    }

    /// The offsets from the start of the text of the first function and of the end of the last one.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        let offset = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
        Some((offset(self.functions.first_chunk()?), offset(self.functions.last_chunk()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two functions, in the layout of Go 1.20.
    fn table() -> Vec<u8> {
        table_of("main.main\0main.add\0\0\0\0\0\0")
    }

    /// Two functions whose names are at the bytes 0 and 10 of these.
    fn table_of(names: &str) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC[1].to_le_bytes());
        bytes.extend([0, 0, 1, 8]);
        for word in [2u64, 1, 0x40_1000, 72, 0, 0, 0, 72 + names.len() as u64] {
            bytes.extend(word.to_le_bytes());
        }
        assert_eq!(bytes.len(), 72);
        bytes.extend(names.bytes());
        // Two entries, the end, and the data of both.
        for word in [0u32, 20, 0x40, 28, 0x90, 0, 0, 0x40, 10] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn functions_have_names_and_ends() {
        let bytes = table();
        let functions = GoFunctions::parse(&bytes).unwrap();
        assert_eq!(functions.range(), Some((0, 0x90)));
        let named = |name: &str| {
            let of_name = functions.iter().filter(|f| f.is_named(name.as_bytes()));
            of_name.map(|f| (f.start, f.end)).collect::<Vec<_>>()
        };
        assert_eq!(named("main.main"), [(0, 0x40)]);
        assert_eq!(named("main.add"), [(0x40, 0x90)]);
        assert!(["main.mai", "main", "add"].into_iter().all(|name| named(name).is_empty()));
        let mut old = bytes.clone();
        old[0] = 0xfb; // Go 1.2
        assert!(GoFunctions::parse(&old).is_none());
    }

    #[test]
    fn names_are_compared_as_far_as_they_agree() {
        let long = format!("main.main\0{}\0", "x".repeat(10_000));
        let bytes = table_of(&long);
        let functions = GoFunctions::parse(&bytes).unwrap();
        let starts = |name: &str| {
            let of_name = functions.iter().filter(|f| f.is_named(name.as_bytes()));
            of_name.map(|f| f.start).collect::<Vec<_>>()
        };
        assert_eq!(starts(&"x".repeat(10_000)), [0x40]);
        assert!(starts(&"x".repeat(4096)).is_empty());
    }

    proptest! {
        #[test]
        fn damaged_tables_do_no_harm(
            damage in proptest::collection::vec((0usize..140, any::<u8>()), 1..6), cut in 0usize..140,
        ) {
            let mut bytes = table();
            for (at, byte) in damage {
                let len = bytes.len();
                bytes[at % len] = byte;
            }
            bytes.truncate(cut);
            if let Some(functions) = GoFunctions::parse(&bytes) {
                prop_assert!(functions.iter().count() <= bytes.len());
            }
        }
    }
}
