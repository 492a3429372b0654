//! The build information of Go programs.

use object::{Object, ObjectSection, ObjectSegment, ReadCache};
use std::fs::File;
use std::path::Path;

/// The first bytes of the section `.go.buildinfo` (`debug/buildinfo` of Go).
const MAGIC: &[u8] = b"\xff Go buildinf:";

/// The release from which traces are on `CLOCK_MONOTONIC`.
pub(crate) const SAME_CLOCK: (u32, u32) = (1, 22);

/// The version of Go that built a program, such as `go1.24.3`; `None` if it is no Go program.
pub(crate) fn version(program: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(program).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let info = file.section_by_name(".go.buildinfo")?.data().ok()?;
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
        let at = |address, len| {
            let mut segments = file.segments();
            segments.find_map(|segment| segment.data_range(address, len).ok().flatten())
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

/// Major and minor number of a version of Go; `None` for development versions.
pub(crate) fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix("go")?.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
