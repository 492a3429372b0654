//! Symbols of the running kernel.

use crate::build_id;
use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Texts};
use crate::module::{Module, ModuleKind};
use crate::table::{Binding, NewSymbol, SymbolTable};
use std::collections::HashMap;
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
        Ok(Self { table: parse(&text)?, build_id: build_id::of_kernel() })
    }

    /// The function at an address. The module is the one that the mappings report.
    pub(crate) fn frame(&self, module: &Module, address: u64, texts: &mut Texts) -> Result<Frame> {
        let running = match module.kind {
            ModuleKind::KernelModule => {
                build_id::of_module(module.name.trim_matches(|c| c == '[' || c == ']'))
            }
            _ => self.build_id,
        };
        if module.build_id.is_some_and(|expected| running.is_some_and(|id| id != expected)) {
            return Err(Unresolved::OtherKernel);
        }
        let found = self.table.at(address).ok_or(Unresolved::NoSymbol)?;
        Ok(texts.frame(found.name, Some(address - found.start)))
    }
}

/// Parses `/proc/kallsyms`: lines of address, type, name, and `[module]`.
fn parse(text: &[u8]) -> Result<SymbolTable> {
    let mut table = SymbolTable::default();
    let mut modules: HashMap<&[u8], u16> = HashMap::new();
    let mut is_hidden = true;
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (Some(start), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some(start) = hex(start) else { continue };
        let binding = match kind {
            b"W" | b"w" => Binding::Weak,
            b"T" | b"D" | b"B" => Binding::Global,
            b"t" | b"d" | b"b" => Binding::Local,
            _ => continue,
        };
        is_hidden &= start == 0;
        let next = modules.len() as u16 + 1;
        let group = words.next().map_or(0, |module| *modules.entry(module).or_insert(next));
        table.push(&NewSymbol { start, size: 0, name, binding, is_typed: true, group });
    }
    if is_hidden {
        return Err(Unresolved::KernelRestricted);
    }
    Ok(table.sorted())
}

/// A number of hexadecimal digits, with or without `0x`.
pub(crate) fn hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_parse() {
        let table = parse(
            b"ffffffff81000000 T _stext\nffffffff81000040 t helper\n\
              ffffffffc0000010 t helper2\t[module]\n0 A absolute\n\nx\n",
        );
        let table = table.unwrap();
        let at = |address| table.at(address).map(|found| (found.name, found.group));
        assert_eq!(at(0xffff_ffff_8100_003f), Some(("_stext", 0)));
        assert_eq!(at(0xffff_ffff_c000_0011), Some(("helper2", 1)));
        assert_eq!(at(0), None);
    }

    #[test]
    fn hidden_addresses_are_a_reason() {
        let hidden = b"0000000000000000 T _stext\n0000000000000000 t helper\n";
        assert_eq!(parse(hidden).unwrap_err(), Unresolved::KernelRestricted);
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text: Vec<u8>) {
            let _ = parse(&text);
        }
    }
}
