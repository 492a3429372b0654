//! Symbols of stripped files that distributions keep in the file: an ELF file, compressed with xz, in the
//! section `.gnu_debugdata` ("MiniDebugInfo" of GDB's manual).

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::table::SymbolTable;
use lzma_rust2::XzReader;
use std::io::Read;

const WHAT: &str = "the compressed symbols";
/// Bytes of the compressed file. That of a large library has a few MiB.
const MAX_PACKED: u64 = 64 << 20;
/// Bytes of the file. It has no debug information, only symbols.
const MAX: u64 = 256 << 20;
/// Memory for decompression; xz itself uses at most 65 MiB, with its highest level.
const MAX_KIB: u32 = 80 << 10;

/// The dynamic symbols of a file with those of its `.gnu_debugdata`.
pub(crate) fn symbols(elf: &Elf) -> Result<SymbolTable> {
    let mut table = SymbolTable::default();
    // Without the others, the dynamic symbols are still right.
    if let Ok(Some(mini)) = open(elf) {
        let _ = mini.add_symbols(&mut table); // nothing of a section that is malformed
    }
    elf.add_symbols(&mut table)?;
    Ok(table.sorted())
}

fn open(elf: &Elf) -> Result<Option<Elf>> {
    let Some(section) = elf.section_named(b".gnu_debugdata") else { return Ok(None) };
    if section.size > MAX_PACKED {
        return Err(Unresolved::TooLarge { what: WHAT, size: section.size });
    }
    let packed = elf.bytes(WHAT, section)?;
    let max = elf.max().min(MAX);
    let mut bytes = Vec::new();
    let reader = XzReader::new_mem_limit(&packed[..], false, MAX_KIB);
    let broken = |_| Unresolved::Malformed { what: WHAT, offset: section.offset };
    reader.take(max + 1).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() as u64 > max {
        return Err(Unresolved::TooLarge { what: WHAT, size: bytes.len() as u64 });
    }
    Elf::from_bytes(bytes, max).map(Some)
}
