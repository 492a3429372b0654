//! Symbols by address.

use std::io::{BufRead, BufReader};

/// How a symbol binds: of several at one address, the one that binds most is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Binding {
    Weak,
    Local,
    Global,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u64,
    /// Equal to `start` if it is not known.
    pub(super) end: u64,
    pub(super) name: String,
    pub(super) binding: Binding,
    /// Whether the symbol has a type: a function or an object.
    pub(super) is_typed: bool,
}

/// Symbols in the order of their address.
#[derive(Clone, Debug, Default)]
pub(super) struct SymbolTable(Vec<Symbol>);

impl SymbolTable {
    pub(super) fn new(mut symbols: Vec<Symbol>) -> Self {
        symbols.sort_by_key(|symbol| symbol.start);
        // A symbol without a size ends at the next one.
        let mut next = None;
        for symbol in symbols.iter_mut().rev() {
            if symbol.end == symbol.start {
                symbol.end = next.unwrap_or((symbol.start | 0xfff) + 1);
            }
            next = Some(symbol.start);
        }
        symbols.dedup_by(|later, earlier| {
            let is_same = later.start == earlier.start;
            if is_same && is_better(later, earlier) {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Self(symbols)
    }

    /// The symbol at an address, and the offset in it.
    pub(super) fn at(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.0.partition_point(|symbol| symbol.start <= address);
        let symbol = self.0.get(after.checked_sub(1)?)?;
        (address < symbol.end).then(|| (symbol.name.as_str(), address - symbol.start))
    }
}

/// Whether a symbol is a better name for its address than another one: by the rules of perf, so that
/// both show the same.
fn is_better(symbol: &Symbol, other: &Symbol) -> bool {
    let rank = |s: &Symbol| {
        let underscores = s.name.bytes().take_while(|b| *b == b'_').count();
        (s.end > s.start, s.is_typed, s.binding, std::cmp::Reverse(underscores), s.name.len())
    };
    rank(symbol) > rank(other)
}

/// The symbols of the running kernel. None if this user may not see their addresses.
pub(super) fn of_kernel() -> SymbolTable {
    let Ok(file) = std::fs::File::open("/proc/kallsyms") else { return SymbolTable::default() };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let symbols: Vec<Symbol> = lines.filter_map(|line| kernel_symbol(&line)).collect();
    if symbols.iter().all(|symbol| symbol.start == 0) {
        return SymbolTable::default();
    }
    SymbolTable::new(symbols)
}

/// A line of `/proc/kallsyms`: address, type, name, and `[module]`.
fn kernel_symbol(line: &str) -> Option<Symbol> {
    let mut words = line.split_ascii_whitespace();
    let start = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let name = words.next()?.to_owned();
    let binding = match kind {
        "W" | "w" => Binding::Weak,
        "T" | "D" | "B" => Binding::Global,
        "t" | "d" | "b" => Binding::Local,
        _ => return None,
    };
    Some(Symbol { start, end: start, name, binding, is_typed: true })
}

/// The symbols that a just-in-time compiler wrote.
pub(super) fn of_perf_map(path: &str) -> SymbolTable {
    // The name of the file is guessed by its convention; a pipe there must not block.
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else {
        return SymbolTable::default();
    };
    let symbol = |line: String| {
        let mut words = line.splitn(3, ' ');
        let start = u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
        let size = u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
        let name = words.next()?.to_owned();
        let end = start.checked_add(size)?;
        Some(Symbol { start, end, name, binding: Binding::Global, is_typed: true })
    };
    SymbolTable::new(
        BufReader::new(file).lines().map_while(Result::ok).filter_map(symbol).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(start: u64, end: u64, name: &str, binding: Binding) -> Symbol {
        Symbol { start, end, name: name.into(), binding, is_typed: true }
    }

    #[test]
    fn the_best_of_several_names_is_shown() {
        use Binding::*;
        let table = SymbolTable::new(vec![
            symbol(0x10, 0x20, "__read", Global),
            symbol(0x10, 0x20, "read", Weak),
            symbol(0x10, 0x20, "_read_long", Global),
            symbol(0x30, 0x30, "open", Local),
            symbol(0x50, 0x60, "close", Global),
        ]);
        assert_eq!(table.at(0x18), Some(("_read_long", 8)));
        assert_eq!(table.at(0x20), None, "behind its end");
        assert_eq!(table.at(0x4f), Some(("open", 0x1f)), "without a size, to the next one");
        assert_eq!((table.at(0xf), table.at(0x60)), (None, None));
        assert_eq!(SymbolTable::default().at(0), None);
    }

    #[test]
    fn lines_of_kallsyms_parse() {
        let symbol = kernel_symbol("ffffffffc0000010 t helper\t[module]").unwrap();
        assert_eq!((symbol.start, symbol.name.as_str()), (0xffff_ffff_c000_0010, "helper"));
        assert_eq!(kernel_symbol("0 A absolute"), None);
        assert_eq!(kernel_symbol(""), None);
    }
}
