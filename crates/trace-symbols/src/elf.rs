//! ELF files: headers, sections and symbols, of 32 and 64 bits, little-endian.
//!
//! Sections are read when they are needed, at most up to a limit, so that the memory of a large
//! program is that of the tables in use.

use crate::error::{Result, Unresolved, malformed};
use crate::files;
use crate::frame::MAX_TEXT;
use crate::table::{Binding, NewSymbol, SymbolTable};
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use trace_common::{BuildId, Cursor, ReadError};

#[cfg(test)]
mod tests;

/// Number of program and section headers that are read.
const MAX_HEADERS: u64 = 1 << 16;
/// Bytes of program or section headers: files have no larger ones than `Elf64_Shdr`.
const MAX_HEADER_BYTES: u64 = MAX_HEADERS * 64;
/// Bytes of all notes together, and of section names.
const MAX_SMALL: u64 = 1 << 20;
/// Bytes of the name of a section: each section has its own, of a table that they share.
const MAX_NAME: usize = 1 << 8;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOTE: u32 = 7;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const SHF_EXECINSTR: u64 = 4;
const SHN_ABS: u16 = 0xfff1;

#[derive(Debug)]
enum Source {
    File(File),
    Bytes(Vec<u8>),
}

/// A loaded part of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) type_: u32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) file_size: u64,
    flags: u32,
}

impl Segment {
    pub(crate) const fn is_loaded(&self) -> bool {
        self.type_ == PT_LOAD
    }

    pub(crate) const fn is_executable(&self) -> bool {
        const PF_X: u32 = 1;
        self.is_loaded() && self.flags & PF_X != 0
    }

    pub(crate) const fn is_writable(&self) -> bool {
        const PF_W: u32 = 2;
        self.is_loaded() && self.flags & PF_W != 0
    }
}

/// The address that the byte at a position of a file is loaded at. `None` for bytes that are not
/// loaded.
pub(crate) fn address_of(segments: &[Segment], position: u64) -> Option<u64> {
    segments.iter().filter(|segment| segment.is_loaded()).find_map(|segment| {
        let at = position.checked_sub(segment.offset)?;
        (at < segment.file_size).then(|| segment.address.wrapping_add(at))
    })
}

/// A section header.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: Vec<u8>,
    type_: u32,
    flags: u64,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    link: u32,
}

impl Section {
    /// Whether the bytes are compressed.
    #[cfg(any(feature = "dwarf", feature = "unwind"))]
    pub(crate) const fn is_compressed(&self) -> bool {
        const SHF_COMPRESSED: u64 = 0x800;
        self.flags & SHF_COMPRESSED != 0
    }

    /// Whether the file has the bytes.
    #[cfg(any(feature = "dwarf", feature = "unwind"))]
    pub(crate) const fn has_bytes(&self) -> bool {
        self.type_ != SHT_NOBITS
    }

    const fn has_code(&self) -> bool {
        self.flags & SHF_EXECINSTR != 0
    }

    fn has_code_or_data(&self) -> bool {
        let contains = |part: &[u8]| self.name.windows(part.len()).any(|window| window == part);
        self.size > 0 && (self.has_code() || contains(b"text") || contains(b"data"))
    }
}

/// An ELF file.
#[derive(Debug)]
pub(crate) struct Elf {
    source: Source,
    len: u64,
    max: u64,
    is_64: bool,
    machine: u16,
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
}

impl Elf {
    /// Opens a file. At most `max` bytes of each section are read.
    pub(crate) fn open(path: &Path, max: u64) -> Result<Self> {
        Self::new(files::open(path)?, max)
    }

    pub(crate) fn new(file: File, max: u64) -> Result<Self> {
        let len = file.metadata()?.len();
        Self::parse(Source::File(file), len, max)
    }

    /// The build id of a file: in its segments, or in its sections. Sections that are damaged have none.
    pub(crate) fn build_id_of(file: File) -> Result<Option<BuildId>> {
        let len = file.metadata()?.len();
        let (mut this, [offset, entry, count, names]) =
            Self::headers(Source::File(file), len, u64::MAX)?;
        if let found @ Some(_) = this.build_id_in_segments() {
            return Ok(found);
        }
        Ok(this.read_sections(offset, entry, count, names).ok().and_then(|()| this.build_id()))
    }

    pub(crate) fn from_bytes(bytes: Vec<u8>, max: u64) -> Result<Self> {
        let len = bytes.len() as u64;
        Self::parse(Source::Bytes(bytes), len, max)
    }

    fn parse(source: Source, len: u64, max: u64) -> Result<Self> {
        let (mut this, [shoff, shentsize, shnum, shstrndx]) = Self::headers(source, len, max)?;
        this.read_sections(shoff, shentsize, shnum, shstrndx)?;
        Ok(this)
    }

    /// The header and the segments, and the numbers of the header about sections.
    fn headers(source: Source, len: u64, max: u64) -> Result<(Self, [u64; 4])> {
        let (segments, sections) = (Vec::new(), Vec::new());
        let mut this = Self { source, len, max, is_64: true, machine: 0, segments, sections };
        let header = this.read("header", 0, len.min(64))?;
        this.is_64 = match header.get(..6) {
            Some(b"\x7fELF\x02\x01") => true,
            Some(b"\x7fELF\x01\x01") => false,
            _ => return Err(Unresolved::NotElf),
        };
        let mut c = Cursor::new(&header);
        let error = malformed("header");
        c.skip(18).map_err(&error)?;
        this.machine = c.u16().map_err(&error)?;
        c.skip(4).map_err(&error)?;
        this.word(&mut c).map_err(&error)?;
        let (phoff, shoff) =
            (this.word(&mut c).map_err(&error)?, this.word(&mut c).map_err(&error)?);
        c.skip(6).map_err(&error)?;
        let mut next = || c.u16().map(u64::from).map_err(&error);
        let [phentsize, phnum, shentsize, shnum, shstrndx] =
            [next()?, next()?, next()?, next()?, next()?];
        this.read_segments(phoff, phentsize, phnum)?;
        Ok((this, [shoff, shentsize, shnum, shstrndx]))
    }

    /// A word of the file's class.
    fn word(&self, c: &mut Cursor<'_>) -> Result<u64, ReadError> {
        if self.is_64 { c.u64() } else { c.u32().map(u64::from) }
    }

    fn read_segments(&mut self, offset: u64, entry: u64, count: u64) -> Result<()> {
        let size = if self.is_64 { 56 } else { 32 };
        if count == 0 || entry < size {
            return Ok(());
        }
        let bytes = self.read_headers("the program headers", offset, entry, count)?;
        for (header, i) in bytes.chunks_exact(entry as usize).zip(0..) {
            let mut c = Cursor::with_base(header, offset + i * entry);
            self.segments.push(self.segment(&mut c).map_err(malformed("program header"))?);
        }
        Ok(())
    }

    /// Reads a table of headers. The file says how large they are, and how many.
    fn read_headers(
        &self,
        what: &'static str,
        offset: u64,
        entry: u64,
        count: u64,
    ) -> Result<Vec<u8>> {
        let size = entry.saturating_mul(count);
        if count > MAX_HEADERS || size > MAX_HEADER_BYTES {
            return Err(Unresolved::TooLarge { what, size });
        }
        self.read(what, offset, size)
    }

    fn segment(&self, c: &mut Cursor<'_>) -> Result<Segment, ReadError> {
        let type_ = c.u32()?;
        let flags = if self.is_64 { Some(c.u32()?) } else { None };
        let (offset, address) = (self.word(c)?, self.word(c)?);
        self.word(c)?;
        let (file_size, _) = (self.word(c)?, self.word(c)?);
        let flags = flags.map_or_else(|| c.u32(), Ok)?;
        Ok(Segment { type_, offset, address, file_size, flags })
    }

    fn read_sections(&mut self, offset: u64, entry: u64, count: u64, names: u64) -> Result<()> {
        let size = if self.is_64 { 64 } else { 40 };
        if offset == 0 || entry < size {
            return Ok(());
        }
        // Numbers that do not fit are in the first header.
        let first = self.read("section header", offset, entry)?;
        let (first, _) = self.section(&mut Cursor::with_base(&first, offset))?;
        let count = if count == 0 { first.size } else { count };
        let names = if names == 0xffff { u64::from(first.link) } else { names };
        let bytes = self.read_headers("the section headers", offset, entry, count)?;
        let mut offsets = Vec::new();
        for (header, i) in bytes.chunks_exact(entry as usize).zip(0..) {
            let mut c = Cursor::with_base(header, offset + i * entry);
            let (section, name) = self.section(&mut c)?;
            self.sections.push(section);
            offsets.push(name);
        }
        let Some(table) = self.sections.get(names as usize) else { return Ok(()) };
        let table = self.read("section names", table.offset, table.size.min(MAX_SMALL))?;
        for (section, offset) in self.sections.iter_mut().zip(offsets) {
            let name = text_at(&table, offset);
            section.name = name.get(..MAX_NAME).unwrap_or(name).to_vec();
        }
        Ok(())
    }

    /// A section with the offset of its name.
    fn section(&self, c: &mut Cursor<'_>) -> Result<(Section, u32)> {
        let mut read = || -> Result<_, ReadError> {
            let (name, type_) = (c.u32()?, c.u32()?);
            let (flags, address) = (self.word(c)?, self.word(c)?);
            let (offset, size) = (self.word(c)?, self.word(c)?);
            let name_bytes = Vec::new();
            let link = c.u32()?;
            Ok((Section { name: name_bytes, type_, flags, address, offset, size, link }, name))
        };
        read().map_err(malformed("section header"))
    }

    /// The number of bytes, if the file has them at the offset and they are within the limit.
    fn length(&self, what: &'static str, offset: u64, size: u64) -> Result<usize> {
        if size > self.max {
            return Err(Unresolved::TooLarge { what, size });
        }
        let end = offset.checked_add(size).filter(|end| *end <= self.len);
        let length = end.and_then(|_| usize::try_from(size).ok());
        length.ok_or(Unresolved::Malformed { what, offset })
    }

    /// Bytes of the file.
    fn read(&self, what: &'static str, offset: u64, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length(what, offset, size)?];
        self.read_into(what, offset, &mut bytes)?;
        Ok(bytes)
    }

    fn read_into(&self, what: &'static str, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.source {
            Source::File(file) => Ok(file.read_exact_at(out, offset)?),
            Source::Bytes(bytes) => {
                let start = offset as usize;
                let bytes = start.checked_add(out.len()).and_then(|end| bytes.get(start..end));
                let bytes = bytes.ok_or(Unresolved::Malformed { what, offset })?;
                out.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// The bytes of a section as they are in the file.
    pub(crate) fn bytes(&self, what: &'static str, section: &Section) -> Result<Vec<u8>> {
        if section.type_ == SHT_NOBITS {
            return Err(Unresolved::NoSymbols);
        }
        self.read(what, section.offset, section.size)
    }

    /// The number of bytes of a section that the file has.
    #[cfg(feature = "dwarf")]
    pub(crate) fn size(&self, what: &'static str, section: &Section) -> Result<usize> {
        self.length(what, section.offset, section.size)
    }

    /// Reads the bytes of a section into a buffer of its size.
    #[cfg(feature = "dwarf")]
    pub(crate) fn bytes_into(
        &self,
        what: &'static str,
        section: &Section,
        out: &mut [u8],
    ) -> Result<()> {
        self.read_into(what, section.offset, out)
    }

    /// Maximum number of bytes that are read at once.
    #[cfg(any(feature = "dwarf", feature = "unwind", feature = "xz"))]
    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    #[cfg(any(feature = "dwarf", feature = "unwind"))]
    pub(crate) const fn is_64(&self) -> bool {
        self.is_64
    }

    /// The architecture of the code, if it is one that can be unwound.
    #[cfg(feature = "unwind")]
    pub(crate) const fn architecture(&self) -> Option<crate::unwind::Architecture> {
        const EM_X86_64: u16 = 62;
        const EM_AARCH64: u16 = 183;
        match self.machine {
            EM_X86_64 if self.is_64 => Some(crate::unwind::Architecture::X86_64),
            EM_AARCH64 if self.is_64 => Some(crate::unwind::Architecture::Aarch64),
            _ => None,
        }
    }

    /// Whether a Go program can have code of C: it is linked dynamically, or by the linker of C. That of Go
    /// writes no `.eh_frame`.
    #[cfg(feature = "dwarf")]
    pub(crate) fn can_have_c(&self) -> bool {
        const PT_INTERP: u32 = 3;
        let is_dynamic = self.segments.iter().any(|segment| segment.type_ == PT_INTERP);
        is_dynamic || self.section_named(b".eh_frame").is_some()
    }

    /// Whether the file has DWARF debug information.
    #[cfg(feature = "dwarf")]
    pub(crate) fn has_dwarf(&self) -> bool {
        self.section_named(b".debug_info").is_some_and(Section::has_bytes)
    }

    pub(crate) fn section_named(&self, name: &[u8]) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The bytes that are loaded at an address, at most `size`.
    pub(crate) fn loaded(&self, what: &'static str, address: u64, size: u64) -> Result<Vec<u8>> {
        let inside = |segment: &&Segment| {
            segment.is_loaded()
                && address.checked_sub(segment.address).is_some_and(|at| at < segment.file_size)
        };
        let segment = self.segments.iter().find(inside);
        let segment = segment.ok_or(Unresolved::Malformed { what, offset: address })?;
        let at = address - segment.address;
        let offset = segment.offset.saturating_add(at);
        self.read(what, offset, size.min(segment.file_size - at))
    }

    /// The bytes of loaded parts with their address, as the caller asks for them. Those of crafted files share
    /// their bytes: together they have at most twice those of the file.
    pub(crate) fn loaded_parts(
        &self,
        what: &'static str,
        is_wanted: impl Fn(&Segment) -> bool,
    ) -> impl Iterator<Item = Result<(u64, Vec<u8>)>> {
        let mut left = self.len.saturating_mul(2);
        let parts = self.segments.iter().filter(|segment| segment.is_loaded());
        parts.filter(move |segment| is_wanted(segment)).map(move |segment| {
            let size = segment.file_size;
            left = left.checked_sub(size).ok_or(Unresolved::TooLarge { what, size })?;
            Ok((segment.address, self.read(what, segment.offset, size)?))
        })
    }

    /// Values of relative relocations by their place, in order: of `R_X86_64_RELATIVE` and
    /// `R_AARCH64_RELATIVE`. A position-independent program keeps its pointers there.
    pub(crate) fn relative_relocations(&self) -> Result<Vec<(u64, u64)>> {
        const R_X86_64_RELATIVE: u32 = 8;
        const R_AARCH64_RELATIVE: u32 = 1027;
        const WHAT: &str = "the relocations";
        let mut found = Vec::new();
        let tables = self.sections.iter().filter(|section| section.type_ == SHT_RELA);
        // Crafted tables can share their bytes.
        let mut size = 0_u64;
        for table in tables.filter(|_| self.is_64) {
            size = size.saturating_add(table.size);
            if size > self.max.min(self.len) {
                return Err(Unresolved::TooLarge { what: WHAT, size });
            }
            let bytes = self.bytes(WHAT, table)?;
            for entry in bytes.chunks_exact(24) {
                let mut c = Cursor::new(entry);
                let mut read =
                    || Some((c.u64().ok()?, c.u32().ok()?, c.u32().ok()?, c.u64().ok()?));
                if let Some((place, R_X86_64_RELATIVE | R_AARCH64_RELATIVE, _, value)) = read() {
                    found.push((place, value));
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The name and the CRC of the file with debug information (`.gnu_debuglink`).
    pub(crate) fn debug_link(&self) -> Option<(Vec<u8>, u32)> {
        let section = self.section_named(b".gnu_debuglink").filter(|s| s.size <= MAX_SMALL)?;
        let bytes = self.bytes("debug link", section).ok()?;
        let name = text_at(&bytes, 0);
        let at = name.len().checked_add(1)?.checked_next_multiple_of(4)?;
        let crc = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some((name.to_vec(), u32::from_le_bytes(crc)))
    }

    /// The path and the build id of the file with the parts of debug information that files share
    /// (`.gnu_debugaltlink`, dwz(1)).
    #[cfg(feature = "dwarf")]
    pub(crate) fn supplementary_link(&self) -> Option<(Vec<u8>, BuildId)> {
        let section = self.section_named(b".gnu_debugaltlink").filter(|s| s.size <= MAX_SMALL)?;
        let bytes = self.bytes("supplementary link", section).ok()?;
        let name = text_at(&bytes, 0);
        let id = BuildId::new(bytes.get(name.len() + 1..)?)?;
        Some((name.to_vec(), id))
    }

    /// The build id in the note segments: the one that the kernel reports with a mapping.
    fn build_id_in_segments(&self) -> Option<BuildId> {
        self.build_id_within(&mut { MAX_SMALL })
    }

    fn build_id_within(&self, left: &mut u64) -> Option<BuildId> {
        let notes = self.segments.iter().filter(|segment| segment.type_ == PT_NOTE);
        notes.map(|notes| (notes.offset, notes.file_size)).find_map(|at| self.notes(at, left))
    }

    /// The build id in the note segments or sections. Go's linker writes a section alone.
    pub(crate) fn build_id(&self) -> Option<BuildId> {
        let mut left = MAX_SMALL;
        self.build_id_within(&mut left).or_else(|| {
            let notes = self.sections.iter().filter(|section| section.type_ == SHT_NOTE);
            notes.map(|notes| (notes.offset, notes.size)).find_map(|at| self.notes(at, &mut left))
        })
    }

    /// The build id in notes. `left` is the number of bytes that may still be read: notes of crafted files
    /// share their bytes.
    fn notes(&self, (offset, size): (u64, u64), left: &mut u64) -> Option<BuildId> {
        let size = size.min(*left);
        *left -= size;
        BuildId::in_notes(&self.read("notes", offset, size).ok()?)
    }

    /// Whether the file has a full table of symbols, not only those for dynamic linking.
    pub(crate) fn has_symtab(&self) -> bool {
        self.sections.iter().any(|section| section.type_ == SHT_SYMTAB && section.size > 0)
    }

    /// The symbols of `.symtab`; of `.dynsym` in a file without.
    pub(crate) fn symbols(&self) -> Result<SymbolTable> {
        let mut table = SymbolTable::default();
        self.add_symbols(&mut table)?;
        Ok(table.sorted())
    }

    /// Adds the symbols of `.symtab`; of `.dynsym` in a file without.
    pub(crate) fn add_symbols(&self, table: &mut SymbolTable) -> Result<()> {
        let kind = if self.has_symtab() { SHT_SYMTAB } else { SHT_DYNSYM };
        let Some(section) = self.sections.iter().find(|section| section.type_ == kind) else {
            return Ok(());
        };
        let bytes = self.bytes("symbols", section)?;
        let names = self.sections.get(section.link as usize);
        let names =
            names.ok_or(Unresolved::Malformed { what: "symbols", offset: section.offset })?;
        let names = self.bytes("symbol names", names)?;
        let size = if self.is_64 { 24 } else { 16 };
        table.reserve(bytes.len() / size);
        let texts = TextTable::new(&names);
        // Once for each section, not for each symbol in it.
        let with_labels: Vec<bool> = self.sections.iter().map(Section::has_code_or_data).collect();
        for entry in bytes.chunks_exact(size) {
            if let Some(symbol) = self.symbol(&mut Cursor::new(entry), &texts, &with_labels) {
                table.push(&symbol);
            }
        }
        table.add_names(names);
        Ok(())
    }

    /// Reads a symbol. `with_labels` says by section whether its labels are functions or data.
    fn symbol(
        &self,
        c: &mut Cursor<'_>,
        names: &TextTable<'_>,
        with_labels: &[bool],
    ) -> Option<NewSymbol> {
        const EM_ARM: u16 = 40;
        const STT_NOTYPE: u8 = 0;
        const STT_OBJECT: u8 = 1;
        const STT_FUNC: u8 = 2;
        const STT_GNU_IFUNC: u8 = 10;
        const STV_INTERNAL: u8 = 1;
        const STV_HIDDEN: u8 = 2;
        let at = c.u32().ok()?;
        let (info, other, index, start, size) = if self.is_64 {
            let (info, other, index) = (c.u8().ok()?, c.u8().ok()?, c.u16().ok()?);
            (info, other, index, c.u64().ok()?, c.u64().ok()?)
        } else {
            let (start, size) = (c.u32().ok()?, c.u32().ok()?);
            let (info, other, index) = (c.u8().ok()?, c.u8().ok()?, c.u16().ok()?);
            (info, other, index, u64::from(start), u64::from(size))
        };
        // Absolute symbols, such as names of versions, are no addresses of the file.
        if index == 0 || index == SHN_ABS {
            return None;
        }
        let is_typed = match info & 0xf {
            STT_FUNC | STT_OBJECT | STT_GNU_IFUNC => true,
            // Hidden labels are places inside of functions, such as `__cp_end` of musl.
            STT_NOTYPE if matches!(other & 3, STV_INTERNAL | STV_HIDDEN) => return None,
            // A label without a type, in code or data.
            STT_NOTYPE => {
                with_labels.get(usize::from(index)).filter(|has| **has)?;
                false
            }
            _ => return None,
        };
        let binding = match info >> 4 {
            0 => Binding::Local,
            2 => Binding::Weak,
            _ => Binding::Global,
        };
        let name = names.at(at);
        // Marks of code and data on ARM are no names.
        let is_mark = !is_typed && name.starts_with(b"$");
        // Bit 0 of a function of 32-bit ARM is the mark of Thumb code, not a part of its address.
        let is_thumb = self.machine == EM_ARM && info & 0xf == STT_FUNC;
        let start = if is_thumb { start & !1 } else { start };
        let at = at as usize;
        let name = at..at.saturating_add(name.len());
        let section = self.sections.get(usize::from(index));
        let limit = section.map(|section| section.address.saturating_add(section.size));
        (!is_mark).then_some(NewSymbol { start, size, limit, name, binding, is_typed })
    }
}

/// A table of texts that end in NUL. Millions of them can be parts of one with many kilobytes, whose end is searched
/// once.
struct TextTable<'a> {
    table: &'a [u8],
    /// By block: the offset of the first NUL in it or behind it, or the end of the table.
    ends: Vec<usize>,
}

impl<'a> TextTable<'a> {
    /// Bytes that are searched for the end of a text.
    const BLOCK: usize = 1 << 8;

    fn new(table: &'a [u8]) -> Self {
        let mut end = table.len();
        let blocks = table.chunks(Self::BLOCK).enumerate().rev().map(|(block, bytes)| {
            if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
                end = block * Self::BLOCK + at;
            }
            end
        });
        let mut ends: Vec<usize> = blocks.collect();
        ends.reverse();
        Self { table, ends }
    }

    /// As [`text_at`].
    fn at(&self, offset: u32) -> &'a [u8] {
        let start = offset as usize;
        let next = start / Self::BLOCK + 1;
        let block_end = next.saturating_mul(Self::BLOCK).min(self.table.len());
        let block = self.table.get(start..block_end).unwrap_or_default();
        let end = match block.iter().position(|byte| *byte == 0) {
            Some(at) => start + at,
            None => self.ends.get(next).copied().unwrap_or(self.table.len()),
        };
        let text = self.table.get(start..end).unwrap_or_default();
        text.get(..MAX_TEXT).unwrap_or(text)
    }
}

/// The text at an offset of a table of texts that end in NUL, up to [`MAX_TEXT`] bytes.
pub(crate) fn text_at(table: &[u8], offset: u32) -> &[u8] {
    let text = table.get(offset as usize..).unwrap_or_default();
    let text = text.get(..MAX_TEXT).unwrap_or(text);
    CStr::from_bytes_until_nul(text).map_or(text, CStr::to_bytes)
}
