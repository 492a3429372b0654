//! Symbols of the running kernel.

use crate::build_id;
use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Texts};
use crate::module::{Module, ModuleKind};
use crate::table::{Binding, NewSymbol, SymbolTable};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use trace_common::{BuildId, KernelReference};

/// A snapshot of `/proc/kallsyms`.
#[derive(Debug)]
pub(crate) struct KernelSymbols {
    table: SymbolTable,
    places: Places,
    build_id: Option<BuildId>,
}

/// Where the kernel and its modules are in memory.
#[derive(Debug, Default)]
struct Places {
    /// The addresses of the symbols of references.
    symbols: HashMap<Box<str>, u64>,
    /// The ends of the kernel's code and of modules, by their start.
    images: BTreeMap<u64, u64>,
}

impl KernelSymbols {
    /// Reads the symbols of the running kernel and its modules.
    pub(crate) fn read() -> Result<Self> {
        let (table, mut places) = parse(std::fs::read("/proc/kallsyms")?)?;
        // A kernel without support of modules has no such file.
        places.add_modules(&std::fs::read_to_string("/proc/modules").unwrap_or_default());
        Ok(Self { table, places, build_id: build_id::of_kernel() })
    }

    /// The function at an address. The module is the one that the mappings report.
    pub(crate) fn frame(&self, module: &Module, address: u64, texts: &mut Texts) -> Result<Frame> {
        let is_module = module.kind == ModuleKind::KernelModule;
        if let Some(expected) = module.build_id {
            let running = if is_module { id_of_module(module) } else { self.build_id };
            // A module without one is not loaded, or was built without one, where sysfs shows them. There is always a
            // kernel: it can hide its own.
            let is_other = match running {
                Some(id) => id != expected,
                None => is_module && Path::new("/sys/module").is_dir(),
            };
            if is_other {
                return Err(Unresolved::OtherKernel);
            }
        }
        let address = match &module.reference {
            Some(reference) => self.places.now(reference, address)?,
            None => address,
        };
        let found = self.table.at(address).ok_or(Unresolved::NoSymbol)?;
        Ok(texts.frame(&found.name, Some(address - found.start)))
    }
}

/// The build id of the loaded module with the name of a module.
fn id_of_module(module: &Module) -> Option<BuildId> {
    build_id::of_module(module.name.trim_matches(|c| c == '[' || c == ']'))
}

impl Places {
    /// Adds the modules of `/proc/modules`: lines of name, size, references, users, state and address.
    fn add_modules(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split(' ');
            let (Some(name), Some(size)) = (words.next(), words.next()) else { continue };
            let start = words.find_map(|word| hex(word.strip_prefix("0x")?.as_bytes()));
            let (Some(start), Ok(size)) = (start, size.parse()) else { continue };
            self.symbols.insert(format!("[{name}]").into(), start);
            self.images.insert(start, start.saturating_add(size));
        }
    }

    /// The start of the kernel's code or of the module that has an address.
    fn image(&self, address: u64) -> Option<u64> {
        let (start, end) = self.images.range(..=address).next_back()?;
        (address < *end).then_some(*start)
    }

    /// The present address of code, where a symbol of the same image had another address.
    fn now(&self, reference: &KernelReference, address: u64) -> Result<u64> {
        let symbol = self.symbols.get(&reference.symbol).ok_or(Unresolved::OtherKernel)?;
        // Programs of BPF and trampolines are in no image, and where they were in a boot in which the kernel is
        // at this place.
        if reference.address == *symbol && self.image(address).is_none() {
            return Ok(address);
        }
        let now = address.wrapping_sub(reference.address).wrapping_add(*symbol);
        // The modules around it are not those of then.
        let is_in_image = self.image(*symbol).is_some_and(|image| self.image(now) == Some(image));
        is_in_image.then_some(now).ok_or(Unresolved::NoSymbol)
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
fn parse(text: Vec<u8>) -> Result<(SymbolTable, Places)> {
    let (mut table, mut places) = (SymbolTable::default(), Places::default());
    let mut end = 0;
    table.reserve(text.len() / LINE);
    let mut is_hidden = true;
    let mut rest = &text[..];
    while !rest.is_empty() {
        if let Some((symbol, after)) = symbol(rest, text.len()) {
            is_hidden &= symbol.start == 0;
            table.push(&symbol);
            match text.get(symbol.name.clone()) {
                // A module can have a symbol with this name, later.
                Some(name @ (b"_text" | b"_stext")) => {
                    let name = String::from_utf8_lossy(name).into();
                    places.symbols.entry(name).or_insert(symbol.start);
                }
                _ if symbol.size > 0 => end = end.max(symbol.start),
                _ => {}
            }
            rest = after;
        }
        let line = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
        rest = rest.get(line..).unwrap_or_default();
    }
    if is_hidden {
        return Err(Unresolved::KernelRestricted);
    }
    table.add_names(text);
    if let Some(start) = places.symbols.values().copied().min() {
        places.images.insert(start, end);
    }
    Ok((table.sorted(), places))
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
    // Marks of code and data in modules of Arm, such as `$x`, are no names.
    if after.starts_with(b"$") {
        return None;
    }
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
              ffffffffc0000010 t helper2\t[module]\nffffffffc0000010 t $x\t[module]\n\
              ffffffffc0000014 t $d\t[module]\n0 A absolute\n\nx\n10 T \n20 tt x\n\
              ffffffff81000080 W last";
        let (table, _) = parse(text.to_vec()).unwrap();
        let at = |address| table.at(address).map(|found| found.name.into_owned());
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(at(0xffff_ffff_8100_003f), name("_stext"));
        assert_eq!(at(0xffff_ffff_c000_0011), name("helper2"));
        assert_eq!(at(0xffff_ffff_c000_0014), name("helper2"), "marks of Arm are no functions");
        assert_eq!(at(0xffff_ffff_8100_0080), name("last"));
        assert_eq!([at(0), at(0x10), at(0x20)], [None, None, None]);
    }

    #[test]
    fn addresses_behind_code_have_no_name() {
        let text = b"ffffffff81000000 T _stext\nffffffff81000100 t last\n\
              ffffffff81001200 T _etext\nffffffff81001240 t init\nffffffff81001280 T _einittext\n\
              ffffffff82000000 D __start_early_lsm_info\nffffffffc0000010 t bpf_prog\t[bpf]\n";
        let (table, _) = parse(text.to_vec()).unwrap();
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
    fn addresses_are_those_of_the_boot_of_their_reference() {
        let text = b"1000 T _stext\n1000 T _text\n1100 t last\n1200 T _etext\n1300 T _einittext\n\
              8000 t of_module\t[a]\n8000 t _stext\t[a]\n9000 t of_other\t[b]\n";
        let (_, mut places) = parse(text.to_vec()).unwrap();
        places.add_modules("a 4096 1 b, Live 0x8000 (OE)\nb 256 0 - Live 0x0000000000009000\nx\n");
        let now = |symbol: &str, was: u64, address: u64| {
            places.now(&KernelReference { symbol: symbol.into(), address: was }, address)
        };
        assert_eq!(
            [now("_text", 0x1000, 0x1104), now("_text", 0x5000, 0x5104)],
            [const { Ok(0x1104) }; 2]
        );
        assert_eq!(now("_stext", 0x50, 0x154), Ok(0x1104));
        assert_eq!(now("[a]", 0x2_0000, 0x2_0fff), Ok(0x8fff));
        // It is behind the image, where another module is now.
        assert_eq!(now("[a]", 0x2_0000, 0x2_1000), Err(Unresolved::NoSymbol));
        assert_eq!(
            [
                now("_text", 0x1000, 0x8000),
                now("_text", 0x5000, 0x4fff),
                now("_text", 0x5000, 0xe000)
            ],
            [const { Err(Unresolved::NoSymbol) }; 3]
        );
        // In this boot, code is where it was, also in no image.
        assert_eq!(now("_text", 0x1000, 0xa000), Ok(0xa000));
        // Neither is loaded.
        for symbol in ["[c]", "_end"] {
            assert_eq!(now(symbol, 0x1000, 0x1000), Err(Unresolved::OtherKernel));
        }
    }

    #[test]
    fn a_module_is_another_one_if_its_build_id_is_unknown() {
        let text = b"1000 T _text\n1100 t last\n1200 T _etext\n8000 t of_module\t[a]\n";
        let (table, places) = parse(text.to_vec()).unwrap();
        let kernel = KernelSymbols { table, places, build_id: None };
        let name = |module: &Module, address| {
            let frame = kernel.frame(module, address, &mut Texts::new(false));
            frame.map(|frame| frame.function.to_string())
        };
        let id = BuildId::new(&[7; 20]);
        let module = |id| Module::kernel_module("no_module_has_this_name", id);
        assert_eq!(name(&module(None), 0x8000), Ok("of_module".to_owned()));
        assert_eq!(name(&module(id), 0x8000), Err(Unresolved::OtherKernel));
        assert_eq!(name(&Module::kernel(id), 0x1100), Ok("last".to_owned()));
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
            let (table, _) = parse(text.clone().into_bytes()).unwrap();
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
