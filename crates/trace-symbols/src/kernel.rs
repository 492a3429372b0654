//! Symbols of the running kernel.

use crate::build_id;
use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Texts};
use crate::module::{Module, ModuleKind};
use crate::table::{Binding, NewSymbol, SymbolTable};
use trace_common::BuildId;

/// A snapshot of `/proc/kallsyms`.
#[derive(Debug)]
pub(crate) struct KernelSymbols {
    table: SymbolTable,
    build_id: Option<BuildId>,
}

impl KernelSymbols {
    /// Reads the symbols of the running kernel and its modules.
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read("/proc/kallsyms")?;
        Ok(Self { table: parse(text)?, build_id: build_id::of_kernel() })
    }

    /// The function at an address. The module is the one that the mappings report.
    pub(crate) fn frame(&self, module: &Module, address: u64, texts: &mut Texts) -> Result<Frame> {
        let running = || match module.kind {
            ModuleKind::KernelModule => {
                build_id::of_module(module.name.trim_matches(|c| c == '[' || c == ']'))
            }
            _ => self.build_id,
        };
        // That of a module is in a file.
        if module.build_id.is_some_and(|expected| running().is_some_and(|id| id != expected)) {
            return Err(Unresolved::OtherKernel);
        }
        let found = self.table.at(address).ok_or(Unresolved::NoSymbol)?;
        Ok(texts.frame(&found.name, Some(address - found.start)))
    }
}

/// Bytes of a line of `/proc/kallsyms`, about.
const LINE: usize = 40;

/// Bytes of a function, with the rest of its page: `/proc/kallsyms` does not have the ends of modules, and
/// of programs of BPF. The longest functions of a kernel have 20 KiB.
const MAX_FUNCTION: u64 = 1 << 16;

/// Parses `/proc/kallsyms`: lines of address, type, name, and `[module]`.
///
/// There are more than 100 000 lines: the names stay in the text, and each byte is read once.
fn parse(text: Vec<u8>) -> Result<SymbolTable> {
    let mut table = SymbolTable::default();
    table.reserve(text.len() / LINE);
    let mut is_hidden = true;
    let mut rest = &text[..];
    while !rest.is_empty() {
        if let Some((symbol, after)) = symbol(rest, text.len()) {
            is_hidden &= symbol.start == 0;
            table.push(&symbol);
            rest = after;
        }
        let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
        rest = rest.get(end..).unwrap_or_default();
    }
    if is_hidden {
        return Err(Unresolved::KernelRestricted);
    }
    table.add_names(text);
    Ok(table.sorted())
}

/// The symbol of the line at the start of the rest of a text, and what follows its name.
fn symbol(rest: &[u8], len: usize) -> Option<(NewSymbol, &[u8])> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (start, after) = rest.split_at_checked(digits)?;
    let [b' ', kind, b' ', after @ ..] = after else { return None };
    // Data is not executed: an address behind it belongs to other code.
    let binding = match kind {
        b'W' | b'w' => Binding::Weak,
        b'T' => Binding::Global,
        b't' => Binding::Local,
        _ => return None,
    };
    let start = hex(start)?;
    let at = len.checked_sub(after.len())?;
    let size = after.iter().position(u8::is_ascii_whitespace).unwrap_or(after.len());
    let name = at..at + size;
    // Code ends at these: what is behind them is data, or code of modules and programs that have ended.
    let is_end = matches!(after.get(..size), Some(b"_etext" | b"_einittext"));
    let limit = Some((start | 0xfff).saturating_add(MAX_FUNCTION));
    let size_of_code = u64::from(is_end);
    let symbol = NewSymbol { start, size: size_of_code, limit, name, binding, is_typed: true };
    (size > 0).then(|| (symbol, after.get(size..).unwrap_or_default()))
}

/// A number of hexadecimal digits, with or without `0x`. `None` above 64 bits.
pub(crate) fn hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let most = usize::try_from(u64::BITS / 4).ok()?;
    let zeros = digits.len().saturating_sub(most);
    let is_large = digits.iter().take(zeros).any(|digit| *digit != b'0');
    if digits.is_empty() || is_large {
        return None;
    }
    digits.iter().try_fold(0, |number: u64, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(number << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_parse() {
        let text = b"ffffffff81000000 T _stext\nffffffff81000040 t helper\n\
              ffffffffc0000010 t helper2\t[module]\n0 A absolute\n\nx\n10 T \n20 tt x\n\
              ffffffff81000080 W last";
        let table = parse(text.to_vec()).unwrap();
        let at = |address| table.at(address).map(|found| found.name.into_owned());
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(at(0xffff_ffff_8100_003f), name("_stext"));
        assert_eq!(at(0xffff_ffff_c000_0011), name("helper2"));
        assert_eq!(at(0xffff_ffff_8100_0080), name("last"));
        assert_eq!([at(0), at(0x10), at(0x20)], [None, None, None]);
    }

    #[test]
    fn addresses_behind_code_have_no_name() {
        let text = b"ffffffff81000000 T _stext\nffffffff81000100 t last\n\
              ffffffff81001200 T _etext\nffffffff81001240 t init\nffffffff81001280 T _einittext\n\
              ffffffff82000000 D __start_early_lsm_info\nffffffffc0000010 t bpf_prog\t[bpf]\n";
        let table = parse(text.to_vec()).unwrap();
        let at = |address| table.at(address).map(|found| found.name.into_owned());
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(at(0xffff_ffff_8100_11ff), name("last"));
        assert_eq!(at(0xffff_ffff_8100_1201), None);
        assert_eq!(at(0xffff_ffff_8100_127f), name("init"));
        assert_eq!([at(0xffff_ffff_8100_1281), at(0xffff_ffff_8200_0000)], [None, None]);
        // A program of BPF that has ended, far behind another one.
        assert_eq!(at(0xffff_ffff_c000_0fff), name("bpf_prog"));
        assert_eq!(at(0xffff_ffff_c002_0000), None);
    }

    #[test]
    fn hidden_addresses_are_a_reason() {
        let hidden = b"0000000000000000 T _stext\n0000000000000000 t helper\n";
        assert_eq!(parse(hidden.to_vec()).unwrap_err(), Unresolved::KernelRestricted);
    }

    #[test]
    fn numbers_have_64_bits() {
        assert_eq!(hex(b"0xfFfffffff81000aB"), Some(0xffff_ffff_f810_00ab));
        assert_eq!(hex(b"00ffffffffffffffff"), Some(u64::MAX));
        assert_eq!([hex(b"10000000000000000"), hex(b""), hex(b"1g")], [None; 3]);
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text: Vec<u8>) {
            let _ = parse(text);
        }

        #[test]
        fn any_lines_are_those_of_the_words(
            lines in proptest::collection::vec("[0-9a-f]{0,4} ?[tTaw]? [a-c_]{0,3}(\t\\[m\\])?", 0..8)
        ) {
            let text = lines.join("\n") + "\nffffffffffff0000 T end\n";
            let table = parse(text.clone().into_bytes()).unwrap();
            let parts = |line: &str| {
                let mut words = line.split([' ', '\t']);
                let start = hex(words.next()?.as_bytes())?;
                let kind = words.next()?;
                let name = words.next().filter(|name| !name.is_empty())?.to_owned();
                "tTw".contains(kind).then_some(()).filter(|()| kind.len() == 1)?;
                Some((start, name))
            };
            let known: Vec<_> = text.lines().filter_map(parts).collect();
            for (start, _) in &known {
                let found = table.at(*start).unwrap();
                prop_assert_eq!(found.start, *start);
                prop_assert!(known.contains(&(*start, found.name.into_owned())));
            }
        }
    }
}
