//! Functions and USDT probes of an ELF file, and their offsets in it.
//!
//! The input is untrusted: sizes are checked against the file and against limits before anything is
//! read, and names are scanned up to a limit.

use super::pclntab::GoFunctions;
use super::usdt::{Machine, UsdtProbe};
use crate::error::{Error, Result};
use crate::system;
use object::elf::{self, FileHeader32, FileHeader64, Sym32, Sym64};
use object::endian::Endianness;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use trace_common::Cursor;

/// Bytes of a table of symbols or of their names.
const MAX_TABLE: u64 = 512 << 20;
/// Number of program or section headers, and bytes of the names of sections.
const MAX_HEADERS: u32 = 1 << 16;
const MAX_SECTION_NAMES: u64 = 16 << 20;
const MAX_NOTES: u64 = 16 << 20;
/// The names of generic functions have a few hundred bytes.
const MAX_NAME: usize = 4096;
/// Bytes of names that one search reads: in a crafted file, names overlap.
const MAX_SCAN: usize = 1 << 30;
/// Sections of the functions of Go programs; the second in a PIE.
const GO_TABLES: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
const NOT_IN_CODE: &str = "its address is not in executable code of the file";
/// Symbols that are compared to find similar names.
const MAX_COMPARED: usize = 1 << 18;

/// An ELF file: an executable or a shared library.
///
/// ```
/// use perf_monitor::probe::ElfFile;
/// use std::fs::File;
///
/// let path = std::env::current_exe()?;
/// let mut program = ElfFile::new(File::open(&path)?, &path)?;
/// let main = program.function("main")?;
/// assert!(main.offset > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ElfFile<R> {
    reader: R,
    path: PathBuf,
    headers: Headers,
}

/// A function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The symbol.
    pub symbol: String,
    /// The virtual address in the file, which is not that in a process.
    pub address: u64,
    /// The size in bytes; 0 if unknown.
    pub size: u64,
    /// The offset of its first instruction in the file.
    pub offset: u64,
    path: PathBuf,
}

impl Function {
    /// The offset in the file of an instruction `offset` bytes into the function.
    ///
    /// # Errors
    ///
    /// [`Error::UnusableSymbol`] if it is outside the function.
    pub fn at(&self, offset: u64) -> Result<u64> {
        let end = if self.size == 0 { u64::MAX } else { self.size };
        self.offset.checked_add(offset).filter(|_| offset == 0 || offset < end).ok_or_else(|| {
            Error::UnusableSymbol {
                path: self.path.clone(),
                name: format!("{}+{offset:#x}", self.symbol),
                why: "the offset is beyond the end of the function",
            }
        })
    }
}

#[derive(Debug)]
struct Headers {
    is_64: bool,
    endian: Endianness,
    machine: elf::Machine,
    segments: Vec<Segment>,
    sections: Vec<Section>,
}

/// A loaded segment.
#[derive(Debug)]
struct Segment {
    address: u64,
    offset: u64,
    size: u64,
    is_executable: bool,
}

#[derive(Debug)]
struct Section {
    name: String,
    type_: elf::SectionType,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

impl Headers {
    fn parse<'a, H, R>(data: R) -> object::read::Result<Self>
    where
        H: FileHeader<Endian = Endianness>,
        R: ReadRef<'a>,
    {
        let header = H::parse(data)?;
        let endian = header.endian()?;
        if header.phnum(endian, data)? > MAX_HEADERS || header.shnum(endian, data)? > MAX_HEADERS {
            return Ok(Self::empty(header.is_type_64(), endian, header.e_machine(endian)));
        }
        let is_loaded = |s: &&H::ProgramHeader| s.p_type(endian) == elf::PT_LOAD;
        let segments = header.program_headers(endian, data)?.iter().filter(is_loaded);
        let sections = header.section_headers(endian, data)?;
        let names = sections
            .get(header.shstrndx(endian, data)? as usize)
            .and_then(|section| section.file_range(endian))
            .filter(|(_, size)| *size <= MAX_SECTION_NAMES)
            .and_then(|(offset, size)| data.read_bytes_at(offset, size).ok())
            .unwrap_or_default();
        let sections = sections
            .iter()
            .map(|section| {
                let (offset, size) = section.file_range(endian).unwrap_or_default();
                Section {
                    name: String::from_utf8_lossy(name_at(names, section.sh_name(endian), 64))
                        .into_owned(),
                    type_: section.sh_type(endian),
                    address: section.sh_addr(endian).into(),
                    offset,
                    size,
                    link: section.sh_link(endian),
                }
            })
            .collect();
        let segments = segments
            .map(|segment| Segment {
                address: segment.p_vaddr(endian).into(),
                offset: segment.p_offset(endian).into(),
                size: segment.p_filesz(endian).into(),
                is_executable: segment.p_flags(endian).contains(elf::PF_X),
            })
            .collect();
        let this = Self::empty(header.is_type_64(), endian, header.e_machine(endian));
        Ok(Self { segments, sections, ..this })
    }

    const fn empty(is_64: bool, endian: Endianness, machine: elf::Machine) -> Self {
        Self { is_64, endian, machine, segments: Vec::new(), sections: Vec::new() }
    }
}

/// A symbol that can be a function.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    name: u32,
    address: u64,
    size: u64,
    type_: elf::SymbolType,
    is_undefined: bool,
    is_local: bool,
}

/// A table of symbols with their names.
struct Table {
    symbols: Vec<u8>,
    names: Vec<u8>,
    is_64: bool,
    endian: Endianness,
}

impl Table {
    fn symbols(&self) -> Box<dyn Iterator<Item = Symbol> + '_> {
        if self.is_64 {
            self.typed::<Sym64<Endianness>>()
        } else {
            self.typed::<Sym32<Endianness>>()
        }
    }

    fn typed<S: Sym<Endian = Endianness>>(&self) -> Box<dyn Iterator<Item = Symbol> + '_> {
        let symbols = object::pod::slice_from_all_bytes::<S>(&self.symbols).unwrap_or_default();
        let endian = self.endian;
        let symbols = symbols.iter().map(move |symbol| Symbol {
            name: symbol.st_name(endian),
            address: symbol.st_value(endian).into(),
            size: symbol.st_size(endian).into(),
            type_: symbol.st_type(),
            is_undefined: symbol.is_undefined(endian),
            is_local: symbol.is_local(),
        });
        Box::new(symbols.filter(|symbol| {
            matches!(symbol.type_, elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE)
        }))
    }

    fn name(&self, symbol: Symbol) -> &[u8] {
        name_at(&self.names, symbol.name, MAX_NAME)
    }

    /// Whether the symbol has this name, without or with a version (`NAME@VERSION`).
    fn is_named(&self, symbol: Symbol, name: &[u8]) -> bool {
        let rest = self.names.get(symbol.name as usize..).and_then(|text| text.strip_prefix(name));
        matches!(rest.and_then(|rest| rest.first()), Some(0 | b'@'))
    }
}

/// The bytes up to a NUL, at most `max`.
fn name_at(names: &[u8], at: u32, max: usize) -> &[u8] {
    let text = names.get(at as usize..).unwrap_or_default();
    let text = text.get(..max).unwrap_or(text);
    text.split(|b| *b == 0).next().unwrap_or_default()
}

/// Refuses a probe at the return of a function of a Go program. A file that is no ELF file is for the kernel
/// to refuse.
pub(crate) fn check_return(file: &File, path: &Path, location: &str) -> Result<()> {
    match ElfFile::new(file, path) {
        Ok(elf) if elf.is_go() => Err(Error::UnusableSymbol {
            path: path.to_owned(),
            name: location.to_owned(),
            why: "a probe at the return of a function would crash this Go program",
        }),
        _ => Ok(()),
    }
}

impl<R: Read + Seek> ElfFile<R> {
    /// Reads the headers of a file. `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Elf`] if it is not an ELF file, or is malformed.
    pub fn new(mut reader: R, path: &Path) -> Result<Self> {
        let elf_error = |why: String| Error::Elf { path: path.to_owned(), why };
        let cache = ReadCache::new(&mut reader);
        let ident = (&cache).read_bytes_at(0, 5).unwrap_or_default();
        let headers = match ident {
            [0x7f, b'E', b'L', b'F', 2] => Headers::parse::<FileHeader64<Endianness>, _>(&cache),
            [0x7f, b'E', b'L', b'F', 1] => Headers::parse::<FileHeader32<Endianness>, _>(&cache),
            _ => return Err(elf_error("it does not begin with \\x7fELF".to_owned())),
        };
        let headers = headers.map_err(|error| elf_error(error.to_string()))?;
        drop(cache);
        Ok(Self { reader, path: path.to_owned(), headers })
    }

    /// Whether it is a Go program.
    pub fn is_go(&self) -> bool {
        let is_go = |name: &str| GO_TABLES.contains(&name) || name == ".go.buildinfo";
        self.headers.sections.iter().any(|section| is_go(&section.name))
    }

    /// The function with this name: a symbol of `.symtab`, otherwise of `.dynsym`, otherwise the
    /// demangled name of a Rust function (`crate::module::function`, without generic arguments),
    /// otherwise a function of a Go program without symbols (`package.Function`, Go 1.18).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSymbol`] with similar names, [`Error::AmbiguousSymbol`] with all candidates,
    /// [`Error::UnusableSymbol`] for a symbol that is imported or not in the file, and
    /// [`Error::Elf`].
    pub fn function(&mut self, name: &str) -> Result<Function> {
        let tables = [self.table(elf::SHT_SYMTAB)?, self.table(elf::SHT_DYNSYM)?];
        for table in tables.iter().flatten() {
            let symbols = table.symbols().filter(|s| table.is_named(*s, name.as_bytes()));
            if let Some(found) = self.choose(name, table, symbols)? {
                return Ok(found);
            }
        }
        if name.contains("::") {
            for table in tables.iter().flatten() {
                let symbols = demangled(table, name);
                if let Some(found) = self.choose(name, table, symbols.into_iter())? {
                    return Ok(found);
                }
            }
        }
        if let Some(found) = self.go_function(name)? {
            return Ok(found);
        }
        let is_imported = tables.iter().flatten().any(|table| {
            table.symbols().any(|s| s.is_undefined && table.is_named(s, name.as_bytes()))
        });
        if is_imported {
            return Err(self.unusable(name, "it is imported: probe the library that defines it"));
        }
        Err(Error::UnknownSymbol {
            path: self.path.clone(),
            what: "function",
            name: name.to_owned(),
            near: near(tables.iter().flatten(), name),
        })
    }

    /// The function that contains this offset of the file, demangled if it is Rust's, and the offset
    /// in the function. `None` if no symbol does.
    pub fn function_at(&mut self, offset: u64) -> Option<(String, u64)> {
        let address = self.headers.segments.iter().find_map(|s| s.address_of(offset))?;
        for type_ in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let Ok(Some(table)) = self.table(type_) else { continue };
            let inside =
                |s: &Symbol| address.checked_sub(s.address).filter(|at| *at < s.size.max(1));
            let symbols = table.symbols().filter(|s| !s.is_undefined);
            if let Some((symbol, at)) =
                symbols.filter_map(|s| Some((s, inside(&s)?))).min_by_key(|(_, at)| *at)
            {
                let text = String::from_utf8_lossy(table.name(symbol));
                let name = text.split('@').next().unwrap_or_default();
                return Some((demangle(name).unwrap_or_else(|| name.to_owned()), at));
            }
        }
        None
    }

    fn unusable(&self, name: &str, why: &'static str) -> Error {
        Error::UnusableSymbol { path: self.path.clone(), name: name.to_owned(), why }
    }

    /// A function of a Go program whose symbols were stripped.
    fn go_function(&mut self, name: &str) -> Result<Option<Function>> {
        let sections = &self.headers.sections;
        let table = sections.iter().find(|s| GO_TABLES.contains(&s.name.as_str()));
        let Some(&Section { address: table, offset, size, .. }) = table else { return Ok(None) };
        let bytes = self.read(offset, size, MAX_TABLE)?;
        let Some(functions) = GoFunctions::parse(&bytes) else { return Ok(None) };
        let found = functions.iter().find(|f| f.is_named(name.as_bytes()));
        let Some(found) = found else { return Ok(None) };
        let text = self.go_text(table, &functions)?.ok_or_else(|| {
            self.unusable(
                name,
                "the file does not say where its Go code begins: link it without -s",
            )
        })?;
        let address = text.wrapping_add(u64::from(found.start));
        let offset = self.offset_of(address).ok_or_else(|| self.unusable(name, NOT_IN_CODE))?;
        Ok(Some(Function {
            symbol: name.to_owned(),
            address,
            size: u64::from(found.end.saturating_sub(found.start)),
            offset,
            path: self.path.clone(),
        }))
    }

    /// The address that the offsets of the functions of a Go program are relative to. `table` is the
    /// address of their table.
    ///
    /// It is not the start of `.text`: with an external linker, code of C is before that of Go.
    fn go_text(&mut self, table: u64, functions: &GoFunctions<'_>) -> Result<Option<u64>> {
        /// The text of the table's header, in words.
        const TEXT: u64 = 3;
        /// Fields of `runtime.moduledata`, in words.
        const MIN_PC: u64 = 20;
        const MAX_PC: u64 = 21;
        const MODULE_TEXT: u64 = 22;
        if let [Some(text @ 1..)] = self.words([(table, TEXT)])? {
            return Ok(Some(text));
        }
        // From Go 1.26 on, the header has 0 and the description of the program its own section.
        let sections = &self.headers.sections;
        let module = sections.iter().find(|s| s.name == ".go.module").map(|s| s.address);
        let Some(module) = module else { return Ok(None) };
        let fields = [0, MIN_PC, MAX_PC, MODULE_TEXT].map(|field| (module, field));
        let [Some(header), Some(min), Some(max), Some(text)] = self.words(fields)? else {
            return Ok(None);
        };
        // In a large program the linker can separate parts of the code. Then the end differs.
        let code = (min.wrapping_sub(text), max.wrapping_sub(text));
        Ok((header == table && functions.range() == Some(code)).then_some(text))
    }

    /// Words of 64 bits by an address and their number from there, as they are when the file is loaded
    /// at its own addresses: those of a position-independent program are in relocations.
    fn words<const N: usize>(&mut self, places: [(u64, u64); N]) -> Result<[Option<u64>; N]> {
        const R_X86_64_RELATIVE: u32 = 8;
        const R_AARCH64_RELATIVE: u32 = 1027;
        let places = places.map(|(address, n)| address.wrapping_add(n * 8));
        let mut words = [None; N];
        for (word, place) in words.iter_mut().zip(places) {
            let segments = &self.headers.segments;
            let Some(offset) = segments.iter().find_map(|s| s.offset_of(place)) else { continue };
            *word = self.read(offset, 8, 8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        }
        let tables = self.headers.sections.iter().filter(|s| s.type_ == elf::SHT_RELA);
        let tables: Vec<_> = tables.map(|table| (table.offset, table.size)).collect();
        // Crafted tables can share their bytes.
        let mut left = MAX_TABLE;
        for (offset, size) in tables {
            let table = self.read(offset, size, left)?;
            left -= size;
            for entry in table.chunks_exact(24) {
                let mut entry = Cursor::new(entry);
                let (Ok(place), Ok(type_)) = (entry.u64(), entry.u32()) else { continue };
                let (Ok(_symbol), Ok(value)) = (entry.u32(), entry.u64()) else { continue };
                let n = places.iter().position(|p| *p == place);
                let word = n.and_then(|n| words.get_mut(n));
                if let (Some(word), R_X86_64_RELATIVE | R_AARCH64_RELATIVE) = (word, type_) {
                    *word = Some(value);
                }
            }
        }
        Ok(words)
    }

    /// The one function among symbols of the same name.
    fn choose(
        &self,
        name: &str,
        table: &Table,
        symbols: impl Iterator<Item = Symbol>,
    ) -> Result<Option<Function>> {
        let mut found: Vec<Symbol> = symbols.filter(|s| !s.is_undefined).take(1 << 10).collect();
        // Labels of assembly have no type; they matter where there is nothing else.
        if found.iter().any(|s| s.type_ != elf::STT_NOTYPE) {
            found.retain(|s| s.type_ != elf::STT_NOTYPE);
        }
        found.sort_by_key(|s| (s.address, s.is_local));
        found.dedup_by_key(|s| s.address);
        if found.iter().filter(|s| !s.is_local).count() == 1 {
            found.retain(|s| !s.is_local);
        }
        let symbol_name = |s: Symbol| String::from_utf8_lossy(table.name(s)).into_owned();
        match found.as_slice() {
            [] => Ok(None),
            [symbol] if symbol.type_ == elf::STT_GNU_IFUNC => Err(self.unusable(
                name,
                "its address is that of a resolver, which chooses an implementation at startup: \
                 probe the implementation",
            )),
            [symbol] => {
                let offset = self
                    .offset_of(symbol.address)
                    .ok_or_else(|| self.unusable(name, NOT_IN_CODE))?;
                Ok(Some(Function {
                    symbol: symbol_name(*symbol),
                    address: symbol.address,
                    size: symbol.size,
                    offset,
                    path: self.path.clone(),
                }))
            }
            several => Err(Error::AmbiguousSymbol {
                path: self.path.clone(),
                name: name.to_owned(),
                candidates: several
                    .iter()
                    .filter_map(|s| Some((symbol_name(*s), self.offset_of(s.address)?)))
                    .collect(),
            }),
        }
    }

    /// The offset in the file of an address of code. In a PIE, segments are at other offsets than
    /// addresses.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let segments = &self.headers.segments;
        segments.iter().filter(|s| s.is_executable).find_map(|s| s.offset_of(address))
    }

    /// The USDT probes of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Elf`].
    pub fn usdt_probes(&mut self) -> Result<Vec<UsdtProbe>> {
        let place = |section: &Section| (section.offset, section.size, section.address);
        let find = |name: &str| self.headers.sections.iter().find(|s| s.name == name).map(place);
        let Some((offset, size, _)) = find(".note.stapsdt") else { return Ok(Vec::new()) };
        let base = find(".stapsdt.base").map(|(_, _, address)| address);
        let machine = match self.headers.machine {
            elf::EM_X86_64 | elf::EM_386 => Machine::X86,
            elf::EM_AARCH64 => Machine::Arm64,
            _ => Machine::Other,
        };
        let notes = self.read(offset, size, MAX_NOTES)?;
        let mut cursor = Cursor::new(&notes);
        let mut probes = Vec::new();
        while let Ok(note) = UsdtNote::read(&mut cursor, self.headers.is_64) {
            let Some(note) = note else { continue };
            // Prelink moves the sections of code, but not these addresses.
            let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
            let Some(offset) = self.offset_of(note.address.wrapping_add(moved)) else { continue };
            let semaphore = note.semaphore.wrapping_add(moved);
            let semaphore = (note.semaphore != 0)
                .then(|| self.headers.segments.iter().find_map(|s| s.offset_of(semaphore)))
                .flatten();
            probes.push(UsdtProbe::new(
                note.provider,
                note.name,
                offset,
                semaphore,
                &note.arguments,
                machine,
            ));
        }
        Ok(probes)
    }

    /// All places of a USDT probe.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSymbol`] with similar names, and [`Error::Elf`].
    pub fn usdt_probes_of(&mut self, provider: &str, name: &str) -> Result<Vec<UsdtProbe>> {
        let all = self.usdt_probes()?;
        let mut found: Vec<UsdtProbe> =
            all.iter().filter(|p| p.provider == provider && p.name == name).cloned().collect();
        found.sort_by_key(|probe| probe.offset);
        found.dedup_by_key(|probe| probe.offset);
        if found.is_empty() {
            let asked = format!("{provider}:{name}");
            let names: Vec<String> = all
                .iter()
                .take(MAX_COMPARED)
                .map(|probe| format!("{}:{}", probe.provider, probe.name))
                .collect();
            let mut near = system::near_matches(&asked, names.iter().map(String::as_str), 16);
            near.dedup();
            near.truncate(3);
            return Err(Error::UnknownSymbol {
                path: self.path.clone(),
                what: "USDT probe",
                name: asked,
                near,
            });
        }
        Ok(found)
    }

    fn table(&mut self, type_: elf::SectionType) -> Result<Option<Table>> {
        let sections = &self.headers.sections;
        let Some(section) = sections.iter().find(|s| s.type_ == type_) else { return Ok(None) };
        let names = sections.get(section.link as usize).map_or((0, 0), |s| (s.offset, s.size));
        let (offset, size) = (section.offset, section.size);
        let entry = if self.headers.is_64 {
            size_of::<Sym64<Endianness>>()
        } else {
            size_of::<Sym32<Endianness>>()
        };
        // Whole entries only.
        let size = size - size % entry as u64;
        Ok(Some(Table {
            symbols: self.read(offset, size, MAX_TABLE)?,
            names: self.read(names.0, names.1, MAX_TABLE)?,
            is_64: self.headers.is_64,
            endian: self.headers.endian,
        }))
    }

    fn read(&mut self, offset: u64, size: u64, max: u64) -> Result<Vec<u8>> {
        let error = |why: &str| Error::Elf { path: self.path.clone(), why: why.to_owned() };
        if size > max {
            return Err(error("a section is too large"));
        }
        let io = |e: std::io::Error| Error::file(&self.path, e);
        self.reader.seek(SeekFrom::Start(offset)).map_err(io)?;
        let mut bytes = Vec::new();
        (&mut self.reader).take(size).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 != size {
            return Err(error("a section is beyond the end of the file"));
        }
        Ok(bytes)
    }
}

impl Segment {
    fn address_of(&self, offset: u64) -> Option<u64> {
        let inside = offset.checked_sub(self.offset).filter(|inside| *inside < self.size)?;
        self.address.checked_add(inside).filter(|_| self.is_executable)
    }

    fn offset_of(&self, address: u64) -> Option<u64> {
        let inside = address.checked_sub(self.address).filter(|inside| *inside < self.size)?;
        self.offset.checked_add(inside)
    }
}

/// A note of `.note.stapsdt`.
struct UsdtNote {
    address: u64,
    base: u64,
    semaphore: u64,
    provider: String,
    name: String,
    arguments: String,
}

impl UsdtNote {
    /// The next note; `None` if it is another one or malformed.
    fn read(cursor: &mut Cursor<'_>, is_64: bool) -> Result<Option<Self>, trace_common::ReadError> {
        const NT_STAPSDT: u32 = 3;
        let (name_size, size, type_) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let padded = |n: u32| (n as usize).next_multiple_of(4);
        let owner = cursor.bytes(padded(name_size))?;
        // The last note can lack its padding.
        let content = cursor.bytes(padded(size).min(cursor.remaining().max(size as usize)))?;
        if type_ != NT_STAPSDT || !owner.starts_with(b"stapsdt\0") {
            return Ok(None);
        }
        Ok(Self::parse(&mut Cursor::new(content), is_64).ok())
    }

    fn parse(content: &mut Cursor<'_>, is_64: bool) -> Result<Self, trace_common::ReadError> {
        let mut word = || if is_64 { content.u64() } else { content.u32().map(u64::from) };
        let (address, base, semaphore) = (word()?, word()?, word()?);
        let mut texts = content
            .rest()
            .splitn(4, |b| *b == 0)
            .map(|text| String::from_utf8_lossy(text).into_owned());
        let mut text = || texts.next().unwrap_or_default();
        Ok(Self { address, base, semaphore, provider: text(), name: text(), arguments: text() })
    }
}

/// The symbols of Rust functions with this demangled name.
fn demangled(table: &Table, name: &str) -> Vec<Symbol> {
    // Both ways of mangling have identifiers as they are: most symbols need no demangling.
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let last = name.rsplit(|c| !is_part(c)).find(|part| !part.is_empty()).unwrap_or("");
    let mut scanned = 0;
    let mut found = Vec::new();
    for symbol in table.symbols().filter(|s| !s.is_undefined) {
        let text = table.name(symbol);
        scanned += text.len();
        if scanned > MAX_SCAN {
            break;
        }
        if !(text.starts_with(b"_ZN") || text.starts_with(b"_R")) || !contains(text, last) {
            continue;
        }
        let full = demangle(&String::from_utf8_lossy(text));
        if full.as_deref().is_some_and(|full| full == name || without_generics(full) == name) {
            found.push(symbol);
        }
    }
    found
}

fn contains(text: &[u8], part: &str) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part.as_bytes())
}

/// The name of a Rust function, without the hash.
fn demangle(symbol: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = Limited(String::new());
    write!(text, "{name:#}").ok()?;
    Some(text.0)
}

/// Text that ends with an error where a crafted symbol would make it long.
struct Limited(String);

impl std::fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// A demangled name without generic arguments, as a user writes it: `<a::Type<u8>>::f::<i32>` is
/// `a::Type::f`. Implementations of traits keep their brackets: `<a::Type as b::Trait>::f`.
fn without_generics(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    // The type of an inherent method.
    if let Some((inner, after)) = name.strip_prefix('<').and_then(split_bracket) {
        if inner.contains(" as ") {
            out.push('<');
            out.push_str(inner);
            out.push('>');
        } else {
            out.push_str(&without_generics(inner));
        }
        rest = after;
    }
    while let Some((before, after)) = rest.split_once('<') {
        out.push_str(before.strip_suffix("::").unwrap_or(before));
        match split_bracket(after) {
            Some((_, after)) => rest = after,
            None => return name.to_owned(),
        }
    }
    out.push_str(rest);
    out
}

/// Splits at the `>` that closes a bracket which is open.
fn split_bracket(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1u32;
    let mut before = b' ';
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if before != b'-' => depth -= 1, // not the arrow of a function type
            _ => {}
        }
        if depth == 0 {
            return Some((text.get(..at)?, text.get(at + 1..)?));
        }
        before = byte;
    }
    None
}

/// Names of functions that are similar to `name`.
fn near<'a>(tables: impl Iterator<Item = &'a Table>, name: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut scanned = 0;
    for table in tables {
        for symbol in table.symbols().filter(|s| s.type_ == elf::STT_FUNC && !s.is_undefined) {
            let text = table.name(symbol);
            scanned += text.len();
            if names.len() >= MAX_COMPARED || scanned > MAX_SCAN / 16 {
                break;
            }
            let text = String::from_utf8_lossy(text);
            names.push(demangle(&text).map(|n| without_generics(&n)).unwrap_or(text.into_owned()));
        }
    }
    names.sort_unstable();
    names.dedup();
    system::near_matches(name, names.iter().map(String::as_str), 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor as Bytes;

    #[test]
    fn generic_arguments_need_not_be_written() {
        for (full, short) in [
            ("a::f", "a::f"),
            ("a::f::<i32>", "a::f"),
            ("<a::Type>::f", "a::Type::f"),
            ("<a::Type<u8>>::f::<fn(u8) -> u8>", "a::Type::f"),
            ("<a::Type as b::Trait>::f::<u8>", "<a::Type as b::Trait>::f"),
            ("a::Vec<T>::push", "a::Vec::push"),
            ("a::b<c", "a::b<c"),
            ("<", "<"),
        ] {
            assert_eq!(without_generics(full), short);
        }
    }

    #[test]
    fn both_manglings_are_demangled() {
        assert_eq!(
            demangle("_ZN4core3fmt5write17h0123456789abcdefE").as_deref(),
            Some("core::fmt::write")
        );
        assert_eq!(demangle("_RNvC7mycrate3foo").as_deref(), Some("mycrate::foo"));
        assert_eq!(demangle("main.add"), None);
    }

    /// This program: with symbols, position-independent.
    fn this() -> ElfFile<File> {
        let path = std::env::current_exe().unwrap();
        ElfFile::new(File::open(&path).unwrap(), &path).unwrap()
    }

    #[test]
    fn a_function_of_this_program_is_found() {
        let mut elf = this();
        let name = "perf_monitor::probe::elf::demangle";
        let function = elf.function(name).unwrap();
        assert!(function.size > 0 && function.offset != function.address);
        assert_eq!(elf.function(&function.symbol).unwrap(), function, "by its symbol");
        assert_eq!(function.at(1).unwrap(), function.offset + 1);
        assert!(function.at(function.size).is_err());
        assert_eq!(elf.function_at(function.offset + 1), Some((name.to_owned(), 1)));
        // The bytes in the file are those in memory.
        let bytes = elf.read(function.offset, function.size.min(64), 64).unwrap();
        let code = demangle as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.lines().any(|line| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next().unwrap().split_once('-').unwrap();
            let hex = |text| usize::from_str_radix(text, 16).unwrap();
            let start = hex(words.nth(1).unwrap());
            (hex(from)..hex(to)).contains(&code)
                && code - hex(from) + start == function.offset as usize
        }));
        assert!(!bytes.is_empty());
        let error = elf.function("perf_monitor::probe::elf::demangel").unwrap_err().to_string();
        assert!(error.contains("did you mean") && error.contains(name), "{error}");
        assert!(!elf.is_go());
        assert!(elf.usdt_probes_of("no", "such").is_err());
    }

    #[test]
    fn files_other_than_elf_are_refused() {
        for bytes in [&b""[..], b"\x7fELF", b"\x7fELF\x03", b"#!/bin/sh\n", &[0; 64]] {
            assert!(matches!(
                ElfFile::new(Bytes::new(bytes), Path::new("x")),
                Err(Error::Elf { .. })
            ));
        }
    }

    fn exercise(bytes: &[u8]) {
        if let Ok(mut elf) = ElfFile::new(Bytes::new(bytes), Path::new("x")) {
            let _ = (elf.is_go(), elf.function_at(0x110));
            for name in ["main", "a::b", "", "_ZN1a1bE"] {
                let _ = elf.function(name).map(|f| f.at(1));
            }
            for probe in elf.usdt_probes().unwrap_or_default() {
                for argument in &probe.arguments {
                    let _ = argument.to_string();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn damaged_files_do_no_harm(
            damage in proptest::collection::vec((0usize..4096, any::<u8>()), 1..8),
            cut in 0usize..8192,
        ) {
            let mut bytes = small_elf();
            for (at, byte) in damage {
                let len = bytes.len();
                bytes[at % len] = byte;
            }
            bytes.truncate(cut.max(64));
            exercise(&bytes);
        }
    }

    /// A 64-bit file with one segment, `.symtab`, `.strtab` and a USDT note.
    fn small_elf() -> Vec<u8> {
        super::super::usdt::test_file::build()
    }

    #[test]
    fn functions_and_usdt_probes_of_a_known_file() {
        let mut elf = ElfFile::new(Bytes::new(small_elf()), Path::new("x")).unwrap();
        let main = elf.function("main").unwrap();
        // The segment is at address 0x2000 and offset 0x100.
        assert_eq!((main.address, main.offset, main.size), (0x2010, 0x110, 8));
        assert!(matches!(elf.function("twice"), Err(Error::AmbiguousSymbol { candidates, .. })
            if candidates.len() == 2));
        let error = elf.function("imported").unwrap_err().to_string();
        assert!(error.contains("library that defines it"), "{error}");
        let error = elf.function("outside").unwrap_err().to_string();
        assert!(error.contains("not in executable code"), "{error}");
        let error = elf.function("chosen").unwrap_err().to_string();
        assert!(error.contains("resolver"), "{error}");
        assert_eq!(elf.function("versioned").unwrap().offset, 0x130);
        let probes = elf.usdt_probes_of("prov", "probe").unwrap();
        assert_eq!(probes.len(), 2);
        assert_eq!((probes[0].offset, probes[0].semaphore), (0x114, Some(0x180)));
        assert_eq!(probes[0].arguments.len(), 2);
        let error = elf.usdt_probes_of("prov", "prob").unwrap_err().to_string();
        assert!(error.contains("did you mean prov:probe?"), "{error}");
    }
}
