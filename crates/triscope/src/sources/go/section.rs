//! A part of a file that is a trace of its own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Consecutive generations of a trace, behind a header.
#[derive(Clone, Copy)]
pub(super) struct Section {
    pub(super) header: [u8; gotrace::Version::HEADER_LEN],
    /// Where the generations begin in the file, and their number of bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// An open [`Section`].
pub(super) struct OpenSection {
    section: Section,
    file: File,
    at: u64,
}

impl Section {
    pub(super) fn open(self, path: &Path) -> io::Result<OpenSection> {
        Ok(OpenSection { section: self, file: File::open(path)?, at: 0 })
    }
}

impl Read for OpenSection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Section { header, offset, len } = &self.section;
        let start = header.len() as u64;
        let count = if let Some(rest) = self.at.checked_sub(start) {
            self.file.seek(SeekFrom::Start(offset + rest))?;
            self.file.by_ref().take(len.saturating_sub(rest)).read(bytes)?
        } else {
            header.get(self.at as usize..).unwrap_or_default().read(bytes)?
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for OpenSection {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let end = self.section.header.len() as u64 + self.section.len;
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => end.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_section_reads_as_a_file() -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(b"0123456789")?;
        let section = Section { header: *b"HEADER_OF_TRACE_", offset: 3, len: 4 };
        let mut open = section.open(file.path())?;
        let mut text = String::new();
        open.read_to_string(&mut text)?;
        assert_eq!(text, "HEADER_OF_TRACE_3456");
        for (at, expected) in [(15, "_3456"), (16, "3456"), (18, "56"), (20, ""), (99, "")] {
            let mut text = String::new();
            assert_eq!(open.seek(SeekFrom::Start(at))?, at);
            open.read_to_string(&mut text)?;
            assert_eq!(text, expected);
        }
        assert_eq!(open.seek(SeekFrom::End(-1))?, 19);
        assert!(open.seek(SeekFrom::Current(-20)).is_err());
        Ok(())
    }
}
