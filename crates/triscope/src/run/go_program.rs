//! The build information of Go programs.

use crate::io::regular;
use object::elf::{FileHeader32, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, FileKind, ReadCache, ReadCacheOps, ReadRef};
use std::ops::Range;
use std::path::Path;

/// The section of the build information, and its first bytes (`debug/buildinfo` of Go).
const SECTION: &[u8] = b".go.buildinfo\0";
const MAGIC: &[u8] = b"\xff Go buildinf:";

/// Maximum number of bytes of that section that are read: the version is at its start.
const INFO: u64 = 1 << 16;

/// The release from which traces are on `CLOCK_MONOTONIC`.
pub(crate) const SAME_CLOCK: (u32, u32) = (1, 22);

/// The version of Go that built a program, such as `go1.24.3`; `None` if it is no Go program.
///
/// The program can be that of any user, and its headers can claim any lengths.
pub(crate) fn version(program: &Path) -> Option<String> {
    version_of(regular::open(program).ok()?)
}

fn version_of(file: impl ReadCacheOps) -> Option<String> {
    let cache = ReadCache::new(file);
    let data = Limited(&cache);
    match FileKind::parse(data).ok()? {
        FileKind::Elf32 => version_in::<FileHeader32<Endianness>, _>(data),
        FileKind::Elf64 => version_in::<FileHeader64<Endianness>, _>(data),
        _ => None,
    }
}

fn version_in<Elf, R>(data: Limited<'_, R>) -> Option<String>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadCacheOps,
{
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.section_headers(endian, data).ok()?;
    let names = sections.get(header.shstrndx(endian, data).ok()? as usize)?;
    let names = names.data(endian, data).ok()?;
    let section = sections.iter().find(|section| {
        let name = names.get(section.sh_name(endian) as usize..);
        name.is_some_and(|name| name.starts_with(SECTION))
    })?;
    let (offset, len) = section.file_range(endian)?;
    let info = data.read_bytes_at(offset, len.min(INFO)).ok()?;
    if !info.starts_with(MAGIC) {
        return None;
    }
    let (pointer_size, flags) = (usize::from(*info.get(14)?), *info.get(15)?);
    let text = if flags & 2 != 0 {
        // Go 1.18: the version is a string with its length before it.
        let mut cursor = trace_common::Cursor::new(info.get(32..)?);
        let len = usize::try_from(cursor.uvarint().ok()?).ok()?;
        cursor.bytes(len).ok()?.to_vec()
    } else {
        // Before: the address of a string header.
        let word = |bytes: &[u8]| -> Option<u64> {
            let word = bytes.get(..pointer_size)?;
            let digit = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
            Some(match flags & 1 {
                0 => word.iter().rev().fold(0, digit),
                _ => word.iter().fold(0, digit),
            })
        };
        let segments = header.program_headers(endian, data).ok()?;
        let at = |address: u64, len: u64| {
            let mut loaded = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD);
            loaded.find_map(|segment| {
                let inside = address.checked_sub(segment.p_vaddr(endian).into())?;
                let (offset, size): (u64, u64) = segment.file_range(endian);
                (inside.checked_add(len)? <= size).then_some(())?;
                data.read_bytes_at(offset.checked_add(inside)?, len).ok()
            })
        };
        if !matches!(pointer_size, 4 | 8) {
            return None;
        }
        let header = at(word(info.get(16..)?)?, 2 * pointer_size as u64)?;
        let (data, len) = (word(header)?, word(header.get(pointer_size..)?)?);
        /// No version is longer.
        const LONGEST: u64 = 1 << 10;
        at(data, len.min(LONGEST))?.to_vec()
    };
    String::from_utf8(text).ok()
}

/// A file of which no more than some bytes are read at once: headers and tables of a program have fewer.
struct Limited<'a, R: ReadCacheOps>(&'a ReadCache<R>);

impl<R: ReadCacheOps> Clone for Limited<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ReadCacheOps> Copy for Limited<'_, R> {}

impl<R: ReadCacheOps> Limited<'_, R> {
    const LIMIT: u64 = 1 << 20;
}

impl<'a, R: ReadCacheOps> ReadRef<'a> for Limited<'a, R> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > Self::LIMIT { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let end = range.end.min(range.start.saturating_add(Self::LIMIT));
        self.0.read_bytes_at_until(range.start..end, delimiter)
    }
}

/// Major and minor number of a version of Go; `None` for development versions.
pub(crate) fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix("go")?.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::{self, File};
    use std::io::{self, Read, Seek, SeekFrom};

    #[test]
    fn releases_parse() {
        assert_eq!(release("go1.24.3"), Some((1, 24)));
        assert_eq!(release("go1.22rc1"), Some((1, 22)));
        assert_eq!(release("devel +abc"), None);
    }

    #[test]
    fn a_rust_program_is_no_go_program() {
        assert_eq!(version(Path::new("/proc/self/exe")), None);
        assert_eq!(version(Path::new("/proc/self/status")), None);
        assert_eq!(version(Path::new("/nonexistent")), None);
    }

    /// A program of 64 bits with these sections: their name, type, offset and size. The names are at 0x1000.
    fn program(path: &Path, names: &[u8], sections: &[[u64; 4]], len: u64) {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        bytes[40] = 64; // the offset of the sections
        bytes[52] = 64;
        bytes[58] = 64; // the size of each
        bytes[60] = 1 + sections.len() as u8;
        bytes[62] = 1; // the names
        bytes.resize(128, 0);
        for [name, kind, offset, size] in sections {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&(*name as u32).to_le_bytes());
            section[4..8].copy_from_slice(&(*kind as u32).to_le_bytes());
            section[24..32].copy_from_slice(&offset.to_le_bytes());
            section[32..40].copy_from_slice(&size.to_le_bytes());
            bytes.extend(section);
        }
        bytes.resize(0x1000, 0);
        bytes.extend(names);
        bytes.resize(0x2000, 0);
        bytes.extend(MAGIC);
        bytes.extend([8, 2]);
        bytes.resize(0x2020, 0);
        bytes.extend(b"\x08go1.24.3");
        fs::write(path, bytes).unwrap();
        File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    }

    /// A file, and the number of its bytes that are read: they stay in memory.
    struct Counted<'a>(File, &'a Cell<u64>);

    impl Read for Counted<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = Read::read(&mut self.0, buf)?;
            self.1.set(self.1.get() + len as u64);
            Ok(len)
        }
    }

    impl Seek for Counted<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            Seek::seek(&mut self.0, to)
        }
    }

    #[test]
    fn sparse_programs_take_little_memory() {
        const HUGE: u64 = 1 << 30;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let names = b"\0.go.buildinfo\0.symtab\0.strtab\0";
        let names_section = [23, 3, 0x1000, names.len() as u64];
        let info = |size| [1, 1, 0x2000, size];
        let read = Cell::new(0);
        let of = |sections: &[[u64; 4]]| {
            program(&path, names, sections, HUGE);
            version_of(Counted(File::open(&path).unwrap(), &read))
        };
        assert_eq!(of(&[names_section, info(64)]).as_deref(), Some("go1.24.3"));
        let symbols = [15, 2, 0x3000, HUGE - 0x3000];
        let found = of(&[names_section, info(HUGE - 0x2000), symbols]);
        assert_eq!(found.as_deref(), Some("go1.24.3"));
        // Names without an end.
        assert_eq!(of(&[[23, 3, 0x1000, HUGE - 0x1000], info(64)]), None);
        assert!((1..8 << 20).contains(&read.get()), "{} bytes", read.get());
    }
}
