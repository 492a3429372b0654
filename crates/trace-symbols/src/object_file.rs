//! The functions of one ELF file.

use crate::debug_file;
#[cfg(feature = "dwarf")]
use crate::dwarf::Dwarf;
use crate::elf::{self, Elf, Segment};
use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Texts};
use crate::go::GoSymbols;
use crate::module::Module;
use crate::options::Options;
use crate::table::SymbolTable;
use crate::{source, vdso};
use std::ops::Range;
use std::path::Path;
use trace_common::BuildId;

/// The functions of an ELF file, by position in the file or by address.
///
/// ```
/// use trace_symbols::{ObjectFile, Options};
///
/// let own = ObjectFile::open(std::env::current_exe()?, &Options::default())?;
/// println!("build id {:?}", own.build_id());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ObjectFile {
    build_id: Option<BuildId>,
    segments: Vec<Segment>,
    #[cfg(feature = "dwarf")]
    dwarf: Option<Dwarf>,
    /// Why the debug information is not used.
    #[cfg(feature = "dwarf")]
    problem: Option<Unresolved>,
    go: Option<GoSymbols>,
    symbols: SymbolTable,
    demangle: bool,
}

impl ObjectFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Unresolved::File`], [`Unresolved::NotElf`], [`Unresolved::Malformed`] and
    /// [`Unresolved::TooLarge`].
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        Self::with_debug_file(&Elf::open(path, options.max_bytes)?, path, None, options)
    }

    /// Reads a file in memory, such as the image of the vdso.
    ///
    /// # Errors
    ///
    /// As of [`ObjectFile::open`].
    pub fn parse(bytes: Vec<u8>, options: &Options) -> Result<Self> {
        Self::of(&Elf::from_bytes(bytes, options.max_bytes)?, None, None, options)
    }

    /// Reads a file that a process has mapped.
    pub(crate) fn of_module(module: &Module, options: &Options) -> Result<Self> {
        let elf = source::open(module, options)?;
        Self::with_debug_file(&elf, module.path(), module.process, options)
    }

    /// Reads the image of the vdso.
    pub(crate) fn of_vdso(module: &Module, options: &Options) -> Result<Self> {
        Self::of(&vdso::image(module, options)?, None, None, options)
    }

    fn with_debug_file(
        elf: &Elf,
        path: &Path,
        process: Option<u32>,
        options: &Options,
    ) -> Result<Self> {
        let debug = debug_file::find(elf, path, process, options);
        Self::of(elf, debug.as_ref(), process, options)
    }

    #[cfg_attr(not(feature = "dwarf"), expect(unused_variables, reason = "of debug information"))]
    fn of(elf: &Elf, debug: Option<&Elf>, process: Option<u32>, options: &Options) -> Result<Self> {
        let segments = elf.segments.iter().filter(|segment| segment.is_loaded()).copied().collect();
        // A file with debug information alone has the addresses of the file, but no code.
        let symbols = match debug.filter(|debug| debug.has_symtab()) {
            Some(debug) => debug.symbols()?,
            #[cfg(feature = "xz")]
            None if !elf.has_symtab() => crate::mini_debug::symbols(elf)?,
            None => elf.symbols()?,
        };
        // What can be read of the others is enough for the names of functions.
        let go = GoSymbols::read(elf).or_else(|error| unless(!symbols.is_empty(), error))?;
        #[cfg(feature = "dwarf")]
        let read = |elf: &Elf| Dwarf::read(elf, || debug_file::supplement(elf, process, options));
        #[cfg(feature = "dwarf")]
        let dwarf = match debug {
            Some(debug) if options.lines => read(debug),
            // A Go program without code of C needs none: its own table has all.
            None if options.lines && (go.is_none() || elf.can_have_c()) => read(elf),
            _ => Ok(None),
        };
        #[cfg(feature = "dwarf")]
        let problem = dwarf.as_ref().err().cloned();
        Ok(Self {
            build_id: elf.build_id(),
            segments,
            #[cfg(feature = "dwarf")]
            dwarf: dwarf.or_else(|error| unless(!symbols.is_empty() || go.is_some(), error))?,
            #[cfg(feature = "dwarf")]
            problem,
            go,
            symbols,
            demangle: options.demangle,
        })
    }

    /// The bytes in memory, without what is found in debug information.
    pub(crate) fn bytes(&self) -> u64 {
        let tables = self.symbols.bytes() + self.go.as_ref().map_or(0, GoSymbols::bytes);
        #[cfg(feature = "dwarf")]
        return tables + self.dwarf.as_ref().map_or(0, Dwarf::bytes);
        #[cfg(not(feature = "dwarf"))]
        tables
    }

    /// The build id.
    pub const fn build_id(&self) -> Option<BuildId> {
        self.build_id
    }

    /// Why debug information of the file is not used, although functions have names: all of it, or that of the
    /// addresses that were asked for. `None` if it is used, or the file has none.
    pub fn problem(&self) -> Option<&Unresolved> {
        #[cfg(feature = "dwarf")]
        return self.problem.as_ref().or_else(|| self.dwarf.as_ref()?.problem());
        #[cfg(not(feature = "dwarf"))]
        None
    }

    /// The positions in the file of the loaded parts with code.
    pub fn code(&self) -> Vec<Range<u64>> {
        let code = self.segments.iter().filter(|segment| segment.is_executable());
        code.map(|s| s.offset..s.offset.saturating_add(s.file_size)).collect()
    }

    /// The address that the byte at a position of the file is loaded at, before relocation of the
    /// whole file. `None` for bytes that are not loaded.
    pub fn address_of(&self, position: u64) -> Option<u64> {
        elf::address_of(&self.segments, position)
    }

    /// The functions at an address of the file: inlined ones first, the function that has the
    /// code last. The address is one of the file's own, as of the tables of symbols.
    ///
    /// # Errors
    ///
    /// [`Unresolved::NoSymbol`], or [`Unresolved::NoSymbols`] of a file without any.
    pub fn frames(&self, address: u64) -> Result<Vec<Frame>> {
        let mut out = Vec::new();
        self.find(address, &mut Texts::new(self.demangle), &mut out)?;
        Ok(out)
    }

    pub(crate) fn find(&self, address: u64, texts: &mut Texts, out: &mut Vec<Frame>) -> Result<()> {
        if self.go.as_ref().is_some_and(|go| go.find(address, texts, out)) {
            return Ok(());
        }
        let symbol = self.symbols.at(address);
        let symbol = symbol.as_ref();
        #[cfg(feature = "dwarf")]
        if let Some(dwarf) = &self.dwarf {
            let start = out.len();
            if dwarf.find(address, texts, out) {
                // The name and the start are those of the symbol, as of a file without debug
                // information.
                if let (Some(symbol), Some(frame)) = (symbol, out.last_mut()) {
                    let named = texts.frame(&symbol.name, Some(address - symbol.start));
                    *frame = Frame {
                        file: frame.file.take(),
                        line: frame.line,
                        column: frame.column,
                        ..named
                    };
                }
                return Ok(());
            }
            out.truncate(start);
        }
        let Some(symbol) = symbol else {
            let is_empty = self.symbols.is_empty() && self.go.is_none();
            return Err(if is_empty { Unresolved::NoSymbols } else { Unresolved::NoSymbol });
        };
        #[allow(unused_mut, reason = "changed with the feature dwarf")]
        let mut frame = texts.frame(&symbol.name, Some(address - symbol.start));
        #[cfg(feature = "dwarf")]
        if let Some(dwarf) = &self.dwarf {
            dwarf.line(address, texts, &mut frame);
        }
        out.push(frame);
        Ok(())
    }
}

/// Nothing, if there is something else; otherwise the error.
pub(crate) const fn unless<T>(has_others: bool, error: Unresolved) -> Result<Option<T>> {
    if has_others { Ok(None) } else { Err(error) }
}
