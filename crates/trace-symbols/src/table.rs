//! Symbols by address.

/// How a symbol binds: of several at one address, the one that binds most is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Binding {
    Weak,
    Local,
    Global,
}

/// A symbol that is added to a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSymbol<'a> {
    pub(crate) start: u64,
    /// 0 if it is not known.
    pub(crate) size: u64,
    pub(crate) name: &'a [u8],
    pub(crate) binding: Binding,
    /// Whether the symbol has a type: a function or an object.
    pub(crate) is_typed: bool,
    /// A number of the caller: that of the module, in the table of the kernel.
    pub(crate) group: u16,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    /// Equal to `start` if it is not known.
    end: u64,
    name: u32,
    name_len: u32,
    binding: Binding,
    is_typed: bool,
    group: u16,
}

/// A symbol at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) name: &'a str,
    pub(crate) start: u64,
    pub(crate) group: u16,
}

/// Symbols in the order of their address.
#[derive(Clone, Debug, Default)]
pub(crate) struct SymbolTable {
    symbols: Vec<Symbol>,
    names: String,
}

impl SymbolTable {
    /// Adds a symbol. Those without a name, and those beyond 4 GiB of names, are left out.
    pub(crate) fn push(&mut self, new: &NewSymbol<'_>) {
        let name = String::from_utf8_lossy(new.name);
        let (at, len) = (self.names.len(), name.len());
        if len == 0 || u32::try_from(at + len).is_err() {
            return;
        }
        self.names.push_str(&name);
        self.symbols.push(Symbol {
            start: new.start,
            end: new.start.saturating_add(new.size),
            name: at as u32,
            name_len: len as u32,
            binding: new.binding,
            is_typed: new.is_typed,
            group: new.group,
        });
    }

    /// Sorts the symbols. Addresses are searched after this.
    #[must_use]
    pub(crate) fn sorted(mut self) -> Self {
        self.symbols.sort_by_key(|symbol| symbol.start);
        // A symbol without a size ends at the next one.
        let mut next = None;
        for symbol in self.symbols.iter_mut().rev() {
            if symbol.end == symbol.start {
                symbol.end = next.unwrap_or((symbol.start | 0xfff).saturating_add(1));
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
        self.names = names;
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The symbol that contains an address.
    pub(crate) fn at(&self, address: u64) -> Option<Found<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        let found =
            Found { name: name(symbol, &self.names), start: symbol.start, group: symbol.group };
        (address < symbol.end).then_some(found)
    }
}

fn name<'a>(symbol: &Symbol, names: &'a str) -> &'a str {
    let start = symbol.name as usize;
    names.get(start..start + symbol.name_len as usize).unwrap_or_default()
}

/// Orders the symbols at one address: by the rules of perf, so that both show the same.
fn rank(symbol: &Symbol, names: &str) -> impl Ord + use<> {
    let name = name(symbol, names);
    let underscores = name.bytes().take_while(|b| *b == b'_').count();
    let has_size = symbol.end > symbol.start;
    (has_size, symbol.is_typed, symbol.binding, std::cmp::Reverse(underscores), name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_several_names_is_shown() {
        use Binding::*;
        let mut table = SymbolTable::default();
        for (start, size, name, binding) in [
            (0x10, 0x10, "__read", Global),
            (0x50, 0x10, "close", Global),
            (0x10, 0x10, "read", Weak),
            (0x10, 0x10, "_read_long", Global),
            (0x30, 0, "open", Local),
            (0x70, 1, "", Local),
        ] {
            let name = name.as_bytes();
            table.push(&NewSymbol { start, size, name, binding, is_typed: true, group: 0 });
        }
        let table = table.sorted();
        let at = |address| table.at(address).map(|found| (found.name, address - found.start));
        assert_eq!(at(0x18), Some(("_read_long", 8)));
        assert_eq!(at(0x20), None, "behind its end");
        assert_eq!(at(0x4f), Some(("open", 0x1f)), "without a size, to the next one");
        assert_eq!((at(0xf), at(0x60), at(0x70)), (None, None, None));
        assert_eq!(SymbolTable::default().sorted().at(0), None);
    }
}
