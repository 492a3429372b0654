//! Symbols of ELF files, by their offset in the file.

use super::table::{Binding, Symbol, SymbolTable};
use object::{File, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind, SymbolSection};
use perf_data::BuildId;
use std::fs;

/// Larger files are not read. Those of debug information have hundreds of megabytes.
const MAX_SIZE: u64 = 1 << 30;

/// The symbols of a file, or of the file with its debug information. None if the file is now another
/// one than in the recording.
pub(super) fn symbols(path: &str, build_id: Option<BuildId>) -> SymbolTable {
    let own_id = BuildId::of_file(path);
    if build_id.is_some() && build_id != own_id {
        return SymbolTable::default();
    }
    let Some(own) = read(path) else { return SymbolTable::default() };
    let segments = segments(&own);
    let debug = own_id.and_then(|id| {
        let id = id.to_string();
        let (front, rest) = id.split_at_checked(2)?;
        read(&format!("/usr/lib/debug/.build-id/{front}/{rest}.debug"))
    });
    let debug = debug.and_then(|debug| parse(&debug, &segments, true));
    debug.or_else(|| parse(&own, &segments, false)).map(SymbolTable::new).unwrap_or_default()
}

fn read(path: &str) -> Option<Vec<u8>> {
    let metadata = fs::metadata(path).ok()?;
    // Special files are not opened: a pipe would block.
    (metadata.is_file() && metadata.len() <= MAX_SIZE).then(|| fs::read(path).ok()).flatten()
}

/// A segment of a file: its bytes from `offset` on are loaded at `address`.
struct Segment {
    address: u64,
    size: u64,
    offset: u64,
}

/// The segments of a file. Those of a file with debug information alone have other offsets.
fn segments(bytes: &[u8]) -> Vec<Segment> {
    let Ok(file) = File::parse(bytes) else { return Vec::new() };
    let segment = |s: object::Segment<'_, '_>| Segment {
        address: s.address(),
        size: s.size(),
        offset: s.file_range().0,
    };
    file.segments().map(segment).collect()
}

/// The symbols of `.symtab`; of `.dynsym` in a file without, unless it has to have them.
fn parse(bytes: &[u8], segments: &[Segment], must_have_all: bool) -> Option<Vec<Symbol>> {
    let file = File::parse(bytes).ok()?;
    let convert = |symbol| convert(&file, segments, &symbol);
    if file.symbols().next().is_some() {
        return Some(file.symbols().filter_map(convert).collect());
    }
    (!must_have_all).then(|| file.dynamic_symbols().filter_map(convert).collect())
}

fn convert<'a>(
    file: &File<'a>,
    segments: &[Segment],
    symbol: &impl ObjectSymbol<'a>,
) -> Option<Symbol> {
    let name = String::from_utf8_lossy(symbol.name_bytes().ok()?);
    // Absolute symbols, such as names of versions, are no addresses of the file.
    let is_absolute = symbol.section() == SymbolSection::Absolute;
    if name.is_empty() || symbol.is_undefined() || is_absolute {
        return None;
    }
    let is_typed = match symbol.kind() {
        SymbolKind::Text | SymbolKind::Data => true,
        // A label without a type, in code or data.
        SymbolKind::Unknown | SymbolKind::Label if is_in_code_or_data(file, symbol.section()) => {
            false
        }
        _ => return None,
    };
    // An address is that of the segment that it is loaded with.
    let address = symbol.address();
    let is_in = |s: &&Segment| address >= s.address && address - s.address < s.size;
    let segment = segments.iter().find(is_in)?;
    let start = (address - segment.address).checked_add(segment.offset)?;
    Some(Symbol {
        start,
        end: start.saturating_add(symbol.size()),
        name: name.into_owned(),
        binding: match () {
            () if symbol.is_weak() => Binding::Weak,
            () if symbol.is_global() => Binding::Global,
            () => Binding::Local,
        },
        is_typed,
    })
}

fn is_in_code_or_data(file: &File<'_>, section: SymbolSection) -> bool {
    let section = section.index().and_then(|index| file.section_by_index(index).ok());
    section.is_some_and(|section| {
        let name = String::from_utf8_lossy(section.name_bytes().unwrap_or_default()).into_owned();
        section.size() > 0 && (name.contains("text") || name.contains("data"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_its_functions() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let table = symbols(own, None);
        let file = read(own).unwrap();
        let parsed = parse(&file, &segments(&file), false).unwrap();
        let main = parsed.iter().find(|symbol| symbol.name == "main").unwrap();
        assert_eq!(table.at(main.start), Some(("main", 0)));
        // A file other than the recorded one is of no use.
        assert_eq!(symbols(own, BuildId::new(&[1])).at(main.start), None);
    }

    #[test]
    fn what_is_no_elf_file_has_no_symbols() {
        for path in ["/dev/null", "/nonexistent", "/proc/self/maps", "/etc/passwd"] {
            assert_eq!(symbols(path, None).at(0), None);
        }
        assert_eq!(parse(b"\x7fELF\x02\x01\x01", &[], false), None);
    }
}
