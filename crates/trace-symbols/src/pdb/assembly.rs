//! PDB files in assemblies: entries of their debug directory.

use super::PortablePdb;
use crate::error::{Result, Unresolved, malformed};
use flate2::read::DeflateDecoder;
use std::io::Read;
use trace_common::{Cursor, ReadError};

/// Maximum number of sections that are searched.
const MAX_SECTIONS: u16 = 1024;

/// Maximum number of entries of the debug directory that are read.
const MAX_ENTRIES: u32 = 256;

/// Bytes of the headers: with all sections that a compiler writes.
const MAX_HEADERS: usize = 1 << 16;

/// Reads bytes of an assembly: at an offset, at most this number.
pub(super) type ReadAt<'a> = dyn Fn(u64, usize) -> Result<Vec<u8>> + 'a;

/// The Portable PDB file in an assembly, if it has one. It has at most `max` bytes.
///
/// # Errors
///
/// [`Unresolved::Malformed`] and [`Unresolved::TooLarge`].
pub fn embedded(assembly: &[u8], max: u64) -> Result<Option<PortablePdb>> {
    read(
        &|offset, size| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(assembly.len());
            let rest = assembly.get(start..).unwrap_or_default();
            Ok(rest.get(..size).unwrap_or(rest).to_vec())
        },
        max,
    )
}

/// The Portable PDB file in an assembly that is read piece by piece.
pub(super) fn read(read_at: &ReadAt<'_>, max: u64) -> Result<Option<PortablePdb>> {
    const EMBEDDED_PORTABLE_PDB: u32 = 17;
    let headers = read_at(0, MAX_HEADERS)?;
    let Some((start, size)) = debug_directory(&headers)? else { return Ok(None) };
    let count = (size / ENTRY).min(MAX_ENTRIES);
    let directory = read_at(start, (count * ENTRY) as usize)?;
    let mut entries = Cursor::with_base(&directory, start);
    let short = malformed("the debug directory");
    for _ in 0..count {
        let mut entry = entries.sub(ENTRY as usize).map_err(&short)?;
        entry.skip(12).map_err(&short)?;
        let kind = entry.u32().map_err(&short)?;
        let size = entry.u32().map_err(&short)?;
        entry.skip(4).map_err(&short)?;
        let offset = entry.u32().map_err(&short)?;
        if kind == EMBEDDED_PORTABLE_PDB {
            return decompress(read_at, offset.into(), size, max).map(Some);
        }
    }
    Ok(None)
}

/// Bytes of an entry of the debug directory.
const ENTRY: u32 = 28;

fn decompress(read_at: &ReadAt<'_>, offset: u64, size: u32, max: u64) -> Result<PortablePdb> {
    const WHAT: &str = "the PDB file in an assembly";
    let too_large = |size: u32| Unresolved::TooLarge { what: WHAT, size: size.into() };
    if u64::from(size) > max {
        return Err(too_large(size));
    }
    let data = read_at(offset, size as usize)?;
    let mut cursor = Cursor::with_base(&data, offset);
    let bad = || Unresolved::Malformed { what: WHAT, offset };
    if cursor.array() != Ok(*b"MPDB") {
        return Err(bad());
    }
    let unpacked = cursor.u32().map_err(malformed(WHAT))?;
    if u64::from(unpacked) > max {
        return Err(too_large(unpacked));
    }
    // The buffer grows with what is there.
    let mut bytes = Vec::new();
    let mut decoder = DeflateDecoder::new(cursor.rest()).take(u64::from(unpacked) + 1);
    decoder.read_to_end(&mut bytes).map_err(|_| bad())?;
    if bytes.len() != unpacked as usize {
        return Err(bad());
    }
    PortablePdb::parse(bytes)
}

/// The offset of the debug directory in the file, and its size.
fn debug_directory(headers: &[u8]) -> Result<Option<(u64, u32)>> {
    const DEBUG: u32 = 6;
    let what = "the headers of the assembly";
    let short = malformed(what);
    let mut cursor = Cursor::new(headers);
    let at = |offset: u64| -> Result<Cursor<'_>, ReadError> {
        let mut cursor = Cursor::new(headers);
        cursor.skip(usize::try_from(offset).unwrap_or(usize::MAX))?;
        Ok(cursor)
    };
    if cursor.array() != Ok(*b"MZ") {
        return Err(Unresolved::Malformed { what, offset: 0 });
    }
    let pe = at(0x3c).and_then(|mut cursor| cursor.u32()).map_err(&short)?;
    let mut coff = at(pe.into()).map_err(&short)?;
    if coff.array() != Ok(*b"PE\0\0") {
        return Err(Unresolved::Malformed { what, offset: pe.into() });
    }
    coff.skip(2).map_err(&short)?;
    let sections = coff.u16().map_err(&short)?.min(MAX_SECTIONS);
    coff.skip(12).map_err(&short)?;
    let optional_size = coff.u16().map_err(&short)?;
    coff.skip(2).map_err(&short)?;
    let mut optional = coff.sub(optional_size.into()).map_err(&short)?;
    // The fields before the directories are wider in files of 64 bits.
    let before_count = match optional.u16().map_err(&short)? {
        0x10b => 90,
        0x20b => 106,
        _ => return Err(Unresolved::Malformed { what, offset: optional.offset() }),
    };
    optional.skip(before_count).map_err(&short)?;
    let directories = optional.u32().map_err(&short)?;
    if directories <= DEBUG {
        return Ok(None);
    }
    optional.skip(8 * DEBUG as usize).map_err(&short)?;
    let address = optional.u32().map_err(&short)?;
    let size = optional.u32().map_err(&short)?;
    if size == 0 {
        return Ok(None);
    }
    for _ in 0..sections {
        let mut section = coff.sub(40).map_err(&short)?;
        section.skip(12).map_err(&short)?;
        let start = section.u32().map_err(&short)?;
        let in_file = section.u32().map_err(&short)?;
        let offset = section.u32().map_err(&short)?;
        if let Some(inside) = address.checked_sub(start).filter(|inside| *inside < in_file) {
            return Ok(Some((u64::from(offset) + u64::from(inside), size)));
        }
    }
    Ok(None)
}
