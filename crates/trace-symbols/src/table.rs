//! Symbols by address.

use std::borrow::Cow;
use std::ops::Range;

/// How a symbol binds: of several at one address, the one that binds most is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Binding {
    Weak,
    Local,
    Global,
}

/// A symbol that is added to a table.
#[derive(Clone, Debug)]
pub(crate) struct NewSymbol {
    pub(crate) start: u64,
    /// 0 if it is not known.
    pub(crate) size: u64,
    /// The end of its section: without a size, it ends there at the latest. `None` if it is not known.
    pub(crate) limit: Option<u64>,
    /// The place of the name in the bytes of [`SymbolTable::add_names`].
    pub(crate) name: Range<usize>,
    pub(crate) binding: Binding,
    /// Whether the symbol has a type: a function or an object.
    pub(crate) is_typed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    /// Without a size the end of the section, until the symbols are sorted.
    end: u64,
    name: u32,
    name_len: u32,
    has_size: bool,
    binding: Binding,
    is_typed: bool,
}

/// A symbol at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) start: u64,
}

/// Symbols in the order of their address.
///
/// Names stay where they were read: few of them are ever asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct SymbolTable {
    symbols: Vec<Symbol>,
    /// Where the last symbol that begins before does not reach, but one around it does. In the order of
    /// addresses, without overlaps.
    rests: Vec<Rest>,
    names: Vec<u8>,
}

/// A part of a symbol that is behind another one in it.
#[derive(Clone, Copy, Debug)]
struct Rest {
    start: u64,
    end: u64,
    /// The index of the symbol.
    symbol: u32,
}

impl SymbolTable {
    /// Makes room for this number of symbols.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.symbols.reserve(count);
    }

    /// Adds a symbol, whose name is in the names that are added next. Those without a name, and those
    /// beyond 4 GiB of names, are left out.
    pub(crate) fn push(&mut self, new: &NewSymbol) {
        let (at, len) = (self.names.len() + new.name.start, new.name.len());
        if len == 0 || u32::try_from(at + len).is_err() {
            return;
        }
        let has_size = new.size > 0;
        self.symbols.push(Symbol {
            start: new.start,
            end: if has_size {
                new.start.saturating_add(new.size)
            } else {
                new.limit.unwrap_or(u64::MAX)
            },
            has_size,
            name: at as u32,
            name_len: len as u32,
            binding: new.binding,
            is_typed: new.is_typed,
        });
    }

    /// Adds the names of the symbols that were pushed since the last names.
    pub(crate) fn add_names(&mut self, names: Vec<u8>) {
        if self.names.is_empty() {
            self.names = names;
        } else {
            self.names.extend(names);
        }
    }

    /// Sorts the symbols. Addresses are searched after this.
    #[must_use]
    pub(crate) fn sorted(mut self) -> Self {
        self.symbols.sort_by_key(|symbol| symbol.start);
        // A symbol without a size ends at the next one, or with its section.
        let mut next = None;
        for symbol in self.symbols.iter_mut().rev() {
            if !symbol.has_size {
                // The last one: the rest of its page.
                let next = next.unwrap_or((symbol.start | 0xfff).saturating_add(1));
                symbol.end = symbol.end.min(next);
            }
            next = Some(symbol.start);
        }
        let names = std::mem::take(&mut self.names);
        self.symbols.dedup_by(|later, earlier| {
            let is_same = later.start == earlier.start;
            if is_same && rank(later, &names) > rank(earlier, &names) {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        self.symbols.shrink_to_fit();
        self.rests = rests(&self.symbols);
        self.names = names;
        self
    }

    /// The bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let (symbols, rests) = (size_of_val(&*self.symbols), size_of_val(&*self.rests));
        (self.names.len() + symbols + rests) as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The symbol that contains an address: of those that do, the one that begins last.
    pub(crate) fn at(&self, address: u64) -> Option<Found<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let last = self.symbols.get(after.checked_sub(1)?)?;
        let symbol = if address < last.end { last } else { self.around(address)? };
        let name = String::from_utf8_lossy(name(symbol, &self.names));
        Some(Found { name, start: symbol.start })
    }

    /// The symbol that contains an address behind the end of one in it.
    fn around(&self, address: u64) -> Option<&Symbol> {
        let after = self.rests.partition_point(|rest| rest.start <= address);
        let rest = self.rests.get(after.checked_sub(1)?)?;
        if address < rest.end { self.symbols.get(rest.symbol as usize) } else { None }
    }
}

/// The parts of symbols that are behind others in them. Each symbol ends once, so that it takes a time that
/// grows with their number, however they lie in each other.
fn rests(symbols: &[Symbol]) -> Vec<Rest> {
    let mut rests = Vec::new();
    // Those that may reach beyond the next one, the innermost last.
    let mut open: Vec<(u32, u64)> = Vec::new();
    let starts = symbols.iter().skip(1).map(|symbol| symbol.start).chain([u64::MAX]);
    for ((index, symbol), next) in (0..).zip(symbols).zip(starts) {
        // Up to the next symbol, the innermost one that reaches so far has the addresses.
        let mut from = symbol.end;
        while let Some((outer, end)) = open.last().copied().filter(|_| from < next) {
            if end > from {
                let to = end.min(next);
                rests.push(Rest { start: from, end: to, symbol: outer });
                from = to;
            }
            if end <= next {
                open.pop();
            }
        }
        if symbol.end > next {
            open.push((index, symbol.end));
        }
    }
    rests.shrink_to_fit();
    rests
}

fn name<'a>(symbol: &Symbol, names: &'a [u8]) -> &'a [u8] {
    let start = symbol.name as usize;
    names.get(start..start + symbol.name_len as usize).unwrap_or_default()
}

/// Orders the symbols at one address: by the rules of perf, so that both show the same.
fn rank(symbol: &Symbol, names: &[u8]) -> impl Ord + use<> {
    let name = name(symbol, names);
    // No name has that many.
    let underscores = name.iter().take(64).take_while(|b| **b == b'_').count();
    let has_size = symbol.end > symbol.start;
    (has_size, symbol.is_typed, symbol.binding, std::cmp::Reverse(underscores), name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_of_several_names_is_shown() {
        use Binding::*;
        let mut table = SymbolTable::default();
        for (start, size, name, binding) in [
            (0x90, 0, "_init", Global),
            (0x10, 0x10, "__read", Global),
            (0x50, 0x10, "close", Global),
            (0x10, 0x10, "read", Weak),
            (0x10, 0x10, "_read_long", Global),
            (0x30, 0, "open", Local),
            (0x70, 1, "", Local),
        ] {
            let text = format!("<{name}>");
            let name = 1..1 + name.len();
            let limit = (start == 0x90).then_some(0x98);
            table.push(&NewSymbol { start, size, limit, name, binding, is_typed: true });
            table.add_names(text.into());
        }
        let table = table.sorted();
        let at = |address| {
            let found = table.at(address)?;
            Some((found.name.into_owned(), address - found.start))
        };
        assert_eq!(at(0x18), Some(("_read_long".to_owned(), 8)));
        assert_eq!(at(0x20), None, "behind its end");
        let open = Some(("open".to_owned(), 0x1f));
        assert_eq!(at(0x4f), open, "without a size, to the next one");
        assert_eq!(at(0x97), Some(("_init".to_owned(), 7)));
        assert_eq!(at(0x98), None, "behind its section");
        assert_eq!((at(0xf), at(0x60), at(0x70)), (None, None, None));
        assert_eq!(SymbolTable::default().sorted().at(0), None);
    }

    fn table(symbols: &[(u64, u64)]) -> SymbolTable {
        let mut table = SymbolTable::default();
        for (index, (start, size)) in symbols.iter().copied().enumerate() {
            let text = format!("f{index}");
            let name = 0..text.len();
            let (limit, binding) = (None, Binding::Global);
            table.push(&NewSymbol { start, size, limit, name, binding, is_typed: true });
            table.add_names(text.into());
        }
        table.sorted()
    }

    #[test]
    fn symbols_go_on_behind_others_in_them() {
        let table =
            table(&[(0x100, 0x100), (0x140, 0x10), (0x180, 0x40), (0x190, 8), (0x1f0, 0x20)]);
        let at = |address| table.at(address).map(|found| (found.name.into_owned(), found.start));
        let f = |index: usize, start: u64| Some((format!("f{index}"), start));
        assert_eq!([at(0x13f), at(0x140), at(0x14f)], [f(0, 0x100), f(1, 0x140), f(1, 0x140)]);
        assert_eq!([at(0x150), at(0x17f)], [f(0, 0x100), f(0, 0x100)]);
        assert_eq!([at(0x197), at(0x198), at(0x1bf)], [f(3, 0x190), f(2, 0x180), f(2, 0x180)]);
        assert_eq!([at(0x1c0), at(0x1ef)], [f(0, 0x100), f(0, 0x100)]);
        assert_eq!([at(0x1f0), at(0x20f), at(0x210)], [f(4, 0x1f0), f(4, 0x1f0), None]);
    }

    proptest! {
        /// As a search through all of them does.
        #[test]
        fn each_address_is_that_of_the_last_symbol_that_has_it(
            symbols in proptest::collection::btree_map(0u64..60, 1u64..60, 0..20)
        ) {
            let symbols: Vec<(u64, u64)> = symbols.into_iter().collect();
            let table = table(&symbols);
            for address in 0..130 {
                let has = |(start, size): &&(u64, u64)| (*start..start + size).contains(&address);
                let expected = symbols.iter().rev().find(has).map(|(start, _)| *start);
                prop_assert_eq!(table.at(address).map(|found| found.start), expected);
            }
        }
    }

    /// A crafted file: the search does not walk from one to the next.
    #[test]
    fn many_symbols_in_each_other_have_as_many_parts() {
        let count = 1 << 16;
        let symbols: Vec<_> = (0..count).map(|at| (at, 2 * (count - at))).collect();
        let table = table(&symbols);
        assert!(table.rests.len() <= symbols.len());
        for address in [count, count + 7, 2 * count - 1] {
            assert_eq!(table.at(address).unwrap().start, 2 * count - address - 1);
        }
    }
}
