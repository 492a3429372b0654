//! Build ids: of ELF files, of the running kernel, and in recordings.

use crate::bytes::{Section, text};
use crate::error::Result;
use crate::layout::{MISC_BUILD_ID_SIZE, STRING_ALIGN, record_type};
use perf_sys::{
    PERF_RECORD_MISC_CPUMODE_MASK, PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER,
    perf_event_header,
};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use trace_common::Cursor;
use zerocopy::IntoBytes;

/// A build id, of at most 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BuildId {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl BuildId {
    /// Maximum number of bytes.
    pub const MAX: usize = 20;

    /// A build id with these bytes; longer ones are cut. `None` without bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut this = Self { bytes: [0; Self::MAX], len: bytes.len().min(Self::MAX) as u8 };
        for (to, from) in this.bytes.iter_mut().zip(bytes) {
            *to = *from;
        }
        (this.len > 0).then_some(this)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&self.bytes)
    }

    /// The build id of an ELF file. `None` if it cannot be read or has none.
    ///
    /// Special files are not opened: a pipe would block.
    pub fn of_file(path: impl AsRef<Path>) -> Option<Self> {
        let path = path.as_ref();
        if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            return None;
        }
        of_elf(&mut File::open(path).ok()?)
    }

    /// The build id of the running kernel (`/sys/kernel/notes`).
    pub fn of_kernel() -> Option<Self> {
        in_notes(&read_start("/sys/kernel/notes")?)
    }

    /// The build id of a loaded module of the running kernel.
    pub fn of_module(name: &str) -> Option<Self> {
        let file = format!("/sys/module/{name}/notes/.note.gnu.build-id");
        in_notes(&read_start(&file)?)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A mapped file with its build id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildIdEntry {
    /// The process; -1 is any process of the machine.
    pub pid: i32,
    /// The kernel or one of its modules, not a file of a process.
    pub is_kernel: bool,
    /// The build id.
    pub build_id: BuildId,
    /// The file, or `[kernel.kallsyms]`.
    pub file: String,
}

/// Bytes of the build id in a record: 20, their number, padding.
const FIELD: usize = 24;

impl BuildIdEntry {
    /// An entry for every process of the machine.
    pub const fn new(build_id: BuildId, file: String, is_kernel: bool) -> Self {
        Self { pid: -1, is_kernel, build_id, file }
    }

    /// Appends the entry as a record.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let name = (self.file.len() + 1).next_multiple_of(STRING_ALIGN);
        let mode = if self.is_kernel { PERF_RECORD_MISC_KERNEL } else { PERF_RECORD_MISC_USER };
        let size = size_of::<perf_event_header>() + 4 + FIELD + name;
        // Names of files have at most 4096 bytes; a longer one has no place in a record.
        let Ok(size) = u16::try_from(size) else { return };
        let header = perf_event_header {
            type_: record_type::HEADER_BUILD_ID,
            misc: mode | MISC_BUILD_ID_SIZE,
            size,
        };
        let end = out.len() + usize::from(size);
        out.extend(header.as_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(self.build_id.bytes);
        out.extend([self.build_id.len, 0, 0, 0]);
        out.extend(self.file.as_bytes());
        out.resize(end, 0);
    }

    /// Reads the next record. `None` at the end, and for an empty build id.
    pub(crate) fn parse_next(section: &mut Section<'_>) -> Result<Option<Self>> {
        let at = section.cursor.offset();
        section.u32()?; // The type is not always set.
        let sizes = section.u32()?;
        let (misc, size) = (sizes as u16, u64::from(sizes >> 16));
        let fixed = (size_of::<perf_event_header>() + 4 + FIELD) as u64;
        let Some(name) = size.checked_sub(fixed) else {
            return Err(section.malformed(at, "a record that is too short"));
        };
        let pid = section.u32()? as i32;
        let field = section.bytes(FIELD as u64)?;
        let file = text(section.bytes(name)?);
        let len = match field.get(BuildId::MAX) {
            Some(len) if misc & MISC_BUILD_ID_SIZE != 0 => usize::from(*len),
            _ => BuildId::MAX,
        };
        let build_id = field.get(..len.min(BuildId::MAX)).and_then(BuildId::new);
        let is_kernel = misc & PERF_RECORD_MISC_CPUMODE_MASK == PERF_RECORD_MISC_KERNEL;
        Ok(build_id.map(|build_id| Self { pid, is_kernel, build_id, file }))
    }
}

/// Notes and program headers are short; more than this is not read.
const LIMIT: u64 = 1 << 16;

fn read_start(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LIMIT).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The build id in the note segments of an ELF file of 64 bits, little-endian.
fn of_elf(file: &mut (impl Read + Seek)) -> Option<BuildId> {
    const IDENT: &[u8] = b"\x7fELF\x02\x01";
    const PT_NOTE: u32 = 4;
    let mut read = |offset: u64, size: u64| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset)).ok()?;
        file.take(size.min(LIMIT)).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let header = read(0, 64)?;
    if !header.starts_with(IDENT) {
        return None;
    }
    let mut c = Cursor::new(header.get(32..)?);
    let table = c.u64().ok()?;
    c.skip(14).ok()?;
    let (entry, count) = (usize::from(c.u16().ok()?), usize::from(c.u16().ok()?));
    let headers = read(table, (entry * count) as u64)?;
    for header in headers.chunks_exact(entry.max(56)) {
        let mut c = Cursor::new(header);
        let type_ = c.u32().ok()?;
        c.skip(4).ok()?;
        let offset = c.u64().ok()?;
        c.skip(16).ok()?;
        let size = c.u64().ok()?;
        if type_ == PT_NOTE {
            let found = in_notes(&read(offset, size)?);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The build id among ELF notes.
fn in_notes(notes: &[u8]) -> Option<BuildId> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let mut c = Cursor::new(notes);
    loop {
        let (name_size, size, type_) = (c.u32().ok()?, c.u32().ok()?, c.u32().ok()?);
        let padded = |size: u32| (size as usize).checked_next_multiple_of(4);
        let name = c.bytes(padded(name_size)?).ok()?;
        // The last one may lack its padding.
        let wanted = padded(size)?.min(c.remaining());
        let bytes = c.bytes(wanted).ok()?;
        if type_ == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return BuildId::new(bytes.get(..size as usize)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor as File;
    use trace_common::Limits;

    #[test]
    fn entries_round_trip() {
        for (len, is_kernel) in [(20, true), (16, false), (1, false)] {
            let build_id = BuildId::new(&[7; 20][..len]).unwrap();
            let entry = BuildIdEntry::new(build_id, "/usr/lib/libc.so.6".into(), is_kernel);
            let mut bytes = Vec::new();
            entry.put(&mut bytes);
            let mut section =
                Section { what: "test", cursor: Cursor::new(&bytes), limits: Limits::default() };
            assert_eq!(BuildIdEntry::parse_next(&mut section).unwrap(), Some(entry));
            assert!(section.cursor.is_empty());
        }
        assert_eq!(BuildId::new(&[]), None);
        assert_eq!(BuildId::new(&[0xab, 1]).unwrap().to_string(), "ab01");
    }

    #[test]
    fn notes_are_searched() {
        let mut notes = Vec::new();
        for (name, type_, desc) in [(&b"Linux\0"[..], 3, &b"12345"[..]), (b"GNU\0", 3, &[9; 20])] {
            notes.extend((name.len() as u32).to_le_bytes());
            notes.extend((desc.len() as u32).to_le_bytes());
            notes.extend((type_ as u32).to_le_bytes());
            for part in [name, desc] {
                notes.extend(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        }
        assert_eq!(in_notes(&notes), BuildId::new(&[9; 20]));
        assert_eq!(in_notes(&notes[..notes.len() - 1]), None);
    }

    #[test]
    fn this_kernel_and_this_program_agree_with_their_files() {
        // Rust's linker adds a build id on some systems only; whichever it is, nothing fails.
        let own = std::env::current_exe().unwrap();
        let _ = BuildId::of_file(own);
        assert_eq!(BuildId::of_file("/dev/null"), None);
        assert_eq!(BuildId::of_file("/proc/self/maps"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes: Vec<u8>) {
            let _ = in_notes(&bytes);
            let mut elf = b"\x7fELF\x02\x01".to_vec();
            elf.extend(bytes);
            let _ = of_elf(&mut File::new(elf));
        }
    }
}
