//! What the executable file says: the version of Go, and where the tracer's variable is.

use crate::error::{Error, Result};
use crate::layout::{Architecture, Layout};
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::{recorder, search};
use object::LittleEndian;
use object::elf::{self, FileHeader64, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use std::io::{Read, Seek};
use std::ops::Range;
use trace_common::{Cursor, Limits};

const LE: LittleEndian = LittleEndian;

/// The variable with the subscribers of the tracer.
const TRACING: &[u8] = b"runtime/trace.tracing\0";

/// A function of every Go program.
const MAIN: &[u8] = b"runtime.main\0";

/// The first bytes of the section `.go.buildinfo`; its version is inline from Go 1.18
/// (`debug/buildinfo`).
const MAGIC: &[u8] = b"\xff Go buildinf:";
const INLINE: u8 = 2;

/// Bytes of a table of symbols or of their names.
const MAX_TABLE: u64 = 512 << 20;
/// Program and section headers.
const MAX_HEADERS: u32 = 1 << 16;
/// Bytes of `.go.buildinfo`, which has the build settings of every module.
const MAX_BUILDINFO: u64 = 16 << 20;
/// Bytes of a version.
const MAX_VERSION: usize = 1 << 10;

/// An executable file of a Go program, with what is needed to find its flight recorder.
#[derive(Clone, Debug)]
pub struct Program {
    version: String,
    layout: &'static Layout,
    tracing: Tracing,
    program_headers: u64,
}

/// The place of `runtime/trace.tracing`: addresses in the file.
#[derive(Clone, Debug)]
enum Tracing {
    At(u64),
    /// The program has no Go symbols.
    In(Range<u64>),
}

impl Program {
    /// Reads the headers and the symbols of an ELF file.
    ///
    /// # Errors
    ///
    /// [`Error::Elf`], [`Error::NotGo`], [`Error::UnsupportedArchitecture`],
    /// [`Error::UnsupportedVersion`], and [`Error::NotLinked`] for a program with Go symbols that
    /// does not use `runtime/trace`.
    pub fn parse<R: Read + Seek>(file: R) -> Result<Self> {
        let cache = ReadCache::new(file);
        File::new(&cache)?.program()
    }

    /// The version of Go that built it, such as `go1.26.6`.
    pub fn go_version(&self) -> &str {
        &self.version
    }

    /// Whether the program has Go symbols. Otherwise each snapshot searches its data for the flight
    /// recorder.
    pub const fn has_symbols(&self) -> bool {
        matches!(self.tracing, Tracing::At(_))
    }

    /// The difference between the addresses in a process and those in the file.
    ///
    /// `program_headers` is the address of the program headers in the process: `AT_PHDR` of its
    /// auxiliary vector (`getauxval(3)`). The difference is 0 unless the program is position
    /// independent.
    pub const fn load_bias(&self, program_headers: u64) -> u64 {
        program_headers.wrapping_sub(self.program_headers)
    }

    /// Reads the finished generations of the flight recorder in the memory of a process.
    ///
    /// The process need not be stopped. Reads what changed again until the snapshot is consistent.
    ///
    /// `limits.max_buffer` is the maximum number of bytes of the snapshot, and of the data that are
    /// searched in a program without symbols.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`], [`Error::NotFound`] or [`Error::Ambiguous`],
    /// [`Error::NoGeneration`], [`Error::Changing`], [`Error::Memory`], [`Error::Malformed`] and
    /// [`Error::LimitExceeded`].
    pub fn snapshot<M: Memory + ?Sized>(
        &self,
        memory: &mut M,
        load_bias: u64,
        limits: Limits,
    ) -> Result<Snapshot> {
        let tracing = match &self.tracing {
            Tracing::At(address) => address.wrapping_add(load_bias),
            Tracing::In(range) => {
                let moved = |address: u64| address.wrapping_add(load_bias);
                let range = moved(range.start)..moved(range.end);
                search::tracing(memory, self.layout, range, limits)?
            }
        };
        recorder::read(memory, self.layout, tracing, limits)
    }
}

/// The release of Go that built a program, and its architecture.
pub(crate) struct Build {
    pub(crate) version: String,
    pub(crate) architecture: Architecture,
}

// Those of running processes.
#[cfg(unix)]
impl Build {
    /// Reads them from an executable file.
    pub(crate) fn read<R: Read + Seek>(file: R) -> Result<Self> {
        let cache = ReadCache::new(file);
        File::new(&cache)?.build()
    }

    /// The N of Go 1.N; `None` for other versions.
    pub(crate) fn minor(&self) -> Option<u32> {
        minor(&self.version)
    }
}

type Headers = FileHeader64<LittleEndian>;
type Section = <Headers as FileHeader>::SectionHeader;

/// An ELF file in which everything is read by offset.
struct File<'c, R: ReadCacheOps> {
    data: &'c ReadCache<R>,
    header: &'c Headers,
}

impl<'c, R: ReadCacheOps> File<'c, R> {
    fn new(data: &'c ReadCache<R>) -> Result<Self> {
        let not_elf = Error::Elf("it is not a 64-bit little-endian ELF file");
        let Ok(header) = Headers::parse(data) else { return Err(not_elf) };
        header.endian().map_err(|_| not_elf)?;
        let is_too_many = |count: object::read::Result<u32>| count.is_ok_and(|n| n > MAX_HEADERS);
        if is_too_many(header.phnum(LE, data)) || is_too_many(header.shnum(LE, data)) {
            return Err(Error::Elf("it has too many headers"));
        }
        Ok(Self { data, header })
    }

    fn program(&self) -> Result<Program> {
        let sections = self.header.sections(LE, self.data);
        let sections = sections.map_err(|_| Error::Elf("its section headers are malformed"))?;
        let section = |name: &[u8]| sections.section_by_name(LE, name).map(|(_, section)| section);
        let Build { version, architecture } = self.build()?;
        let layout = minor(&version).and_then(|minor| Layout::of(minor, architecture));
        let Some(layout) = layout else { return Err(Error::UnsupportedVersion { version }) };
        let symbols = sections.iter().find(|s| s.sh_type(LE) == elf::SHT_SYMTAB);
        let found = match symbols {
            Some(table) => {
                let link = table.sh_link(LE) as usize;
                let names = sections.iter().nth(link);
                let names = names.ok_or(Error::Elf("its symbols have no names"))?;
                let (symbols, names) =
                    (self.bytes(table, MAX_TABLE)?, self.bytes(names, MAX_TABLE)?);
                let found = find(symbols, names, TRACING);
                // Of a program that is linked by a C linker, `strip -x` removes the Go symbols.
                if found.is_none() && find(symbols, names, MAIN).is_some() {
                    return Err(Error::NotLinked);
                }
                found
            }
            None => None,
        };
        let tracing = match found {
            Some(address) => Tracing::At(address),
            None => {
                let data = section(b".bss").ok_or(Error::Elf("it has no section .bss"))?;
                let start = data.sh_addr(LE);
                Tracing::In(start..start.saturating_add(data.sh_size(LE)))
            }
        };
        Ok(Program { version, layout, tracing, program_headers: self.program_headers()? })
    }

    /// The release of Go and the architecture.
    fn build(&self) -> Result<Build> {
        let sections = self.header.sections(LE, self.data);
        let sections = sections.map_err(|_| Error::Elf("its section headers are malformed"))?;
        let section = sections.section_by_name(LE, b".go.buildinfo").ok_or(Error::NotGo)?;
        let version = self.version(section.1)?;
        let architecture = match self.header.e_machine(LE) {
            elf::EM_X86_64 => Architecture::Amd64,
            elf::EM_AARCH64 => Architecture::Arm64,
            machine => return Err(Error::UnsupportedArchitecture { machine: machine.0 }),
        };
        Ok(Build { version, architecture })
    }

    /// The bytes of a section, at most `max`.
    fn bytes(&self, section: &Section, max: u64) -> Result<&'c [u8]> {
        let malformed = Error::Elf("a section is outside of the file, or too large");
        match section.file_range(LE) {
            Some((offset, size)) if size <= max => {
                self.data.read_bytes_at(offset, size).map_err(|()| malformed)
            }
            _ => Err(malformed),
        }
    }

    fn version(&self, section: &Section) -> Result<String> {
        let info = self.bytes(section, MAX_BUILDINFO)?;
        let old = || Error::UnsupportedVersion { version: "a Go before 1.18".to_owned() };
        match info.get(15) {
            Some(flags) if info.starts_with(MAGIC) && flags & INLINE != 0 => {}
            Some(_) if info.starts_with(MAGIC) => return Err(old()),
            _ => return Err(Error::NotGo),
        }
        let mut cursor = Cursor::new(info.get(32..).unwrap_or_default());
        let len = cursor.uvarint().ok().and_then(|len| usize::try_from(len).ok());
        let text = len.filter(|len| *len <= MAX_VERSION).and_then(|len| cursor.bytes(len).ok());
        let text = text.and_then(|text| String::from_utf8(text.to_vec()).ok());
        text.ok_or(Error::Elf("its section .go.buildinfo is malformed"))
    }

    /// The address of the program headers.
    fn program_headers(&self) -> Result<u64> {
        let malformed = Error::Elf("its program headers are malformed");
        let offset = self.header.e_phoff(LE);
        let Ok(headers) = self.header.program_headers(LE, self.data) else { return Err(malformed) };
        let loaded = headers.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD);
        let address = loaded.filter_map(|segment| {
            let inside = offset.checked_sub(segment.p_offset(LE))?;
            (inside < segment.p_filesz(LE)).then(|| segment.p_vaddr(LE).wrapping_add(inside))
        });
        address.min().ok_or(malformed)
    }
}

/// The address of a variable or function in a table of symbols; its name ends with 0.
fn find(symbols: &[u8], names: &[u8], wanted: &[u8]) -> Option<u64> {
    let symbols = object::pod::slice_from_all_bytes::<Sym64<LittleEndian>>(symbols).ok()?;
    let is_wanted = |symbol: &&Sym64<LittleEndian>| {
        let name = names.get(symbol.st_name.get(LE) as usize..);
        name.is_some_and(|name| name.starts_with(wanted))
    };
    symbols.iter().find(is_wanted).map(|symbol| symbol.st_value.get(LE))
}

/// The N of a version `go1.N`, `go1.N.M`, `go1.NrcM`, possibly with more words. A development version
/// `go1.N-devel_HASH` can have other layouts than the release.
fn minor(version: &str) -> Option<u32> {
    let rest = version.strip_prefix("go1.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = rest.split_at_checked(digits)?;
    if suffix.starts_with("-devel") { None } else { number.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors() {
        for (version, expected) in [
            ("go1.26", Some(26)),
            ("go1.26.6", Some(26)),
            ("go1.27rc1", Some(27)),
            ("go1.25.5 X:nodwarf5", Some(25)),
            ("devel go1.24-0123abc", None),
            ("go1.28-devel_0123abc Mon Nov 2 10:00:00 2026", None),
            ("go1.", None),
            ("go2.25", None),
        ] {
            assert_eq!(minor(version), expected, "{version}");
        }
    }
}
