//! Contents of sections, decompressed.

use crate::elf::{Elf, Section};
use crate::error::{Result, Unresolved};
use std::io::Read;

/// Compression of a section (`Elf64_Chdr`).
const ELFCOMPRESS_ZLIB: u32 = 1;

/// The bytes of a section, decompressed.
pub(crate) fn bytes(what: &'static str, elf: &Elf, section: &Section) -> Result<Vec<u8>> {
    let bytes = elf.bytes(what, section)?;
    if !section.is_compressed() {
        return Ok(bytes);
    }
    let broken = Unresolved::Malformed { what, offset: section.offset };
    let header = if elf.is_64() { (24, 8) } else { (12, 4) };
    let word = |at: usize| {
        let bytes: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_le_bytes)
    };
    let (Some(kind), Some(size)) = (word(0), word(header.1)) else { return Err(broken) };
    let (kind, size) = (kind, u64::from(size));
    if size > elf.max() {
        return Err(Unresolved::TooLarge { what, size });
    }
    if kind != ELFCOMPRESS_ZLIB {
        return Err(broken);
    }
    let mut out = Vec::new();
    let compressed = bytes.get(header.0..).unwrap_or_default();
    let read = flate2::read::ZlibDecoder::new(compressed).take(size).read_to_end(&mut out);
    match read {
        Ok(read) if read as u64 == size => Ok(out),
        _ => Err(broken),
    }
}
