//! USDT probes, and their arguments in the syntax of the kernel.
//!
//! The [notes of SystemTap][sdt] describe an argument as assembly does, `SIZE@OPERAND`: `-4@%edi`,
//! `8@-16(%rbp)`, `4@$7` on x86, `8@x0`, `-4@[sp, 12]` on arm64.
//!
//! [sdt]: https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation

use super::fetch::FetchType;
use crate::error::Error;
use std::fmt;

/// One place of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsdtProbe {
    /// The provider.
    pub provider: String,
    /// The name.
    pub name: String,
    /// The offset of its instruction in the file.
    pub offset: u64,
    /// The offset of its semaphore in the file, which programs test before they compute arguments.
    pub semaphore: Option<u64>,
    /// The descriptions of its arguments.
    pub arguments: Vec<UsdtArgument>,
}

/// The description of an argument of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtArgument {
    text: String,
    machine: Machine,
}

/// Whose registers and operands these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "symbols"), allow(dead_code, reason = "comes from the header of a file"))]
pub(super) enum Machine {
    X86,
    Arm64,
    Other,
}

impl fmt::Display for UsdtArgument {
    /// As in the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl UsdtProbe {
    #[cfg(feature = "symbols")]
    pub(super) fn new(
        provider: String,
        name: String,
        offset: u64,
        semaphore: Option<u64>,
        arguments: &str,
        machine: Machine,
    ) -> Self {
        let arguments = split(arguments)
            .into_iter()
            .map(|text| UsdtArgument { text: text.to_owned(), machine })
            .collect();
        Self { provider, name, offset, semaphore, arguments }
    }

    /// Argument `n`, from 1, as the kernel fetches it, and its type.
    pub(super) fn fetch(&self, n: u8) -> Result<(String, FetchType), Error> {
        let refused = |text: &str, why| Error::UsdtArgument {
            probe: format!("{}:{}", self.provider, self.name),
            argument: n,
            text: text.to_owned(),
            why,
        };
        let argument = usize::from(n).checked_sub(1).and_then(|at| self.arguments.get(at));
        let argument = argument.ok_or_else(|| refused("", "the probe has no such argument"))?;
        argument.translate().map_err(|why| refused(&argument.text, why))
    }
}

/// Splits at white space, which can also be in the brackets of an operand.
#[cfg(feature = "symbols")]
fn split(arguments: &str) -> Vec<&str> {
    const MAX_ARGUMENTS: usize = 255;
    let mut depth = 0i32;
    arguments
        .split(|c: char| {
            match c {
                '[' | '(' => depth += 1,
                ']' | ')' => depth -= 1,
                _ => {}
            }
            c.is_ascii_whitespace() && depth <= 0
        })
        .filter(|text| !text.is_empty())
        .take(MAX_ARGUMENTS)
        .collect()
}

impl UsdtArgument {
    fn translate(&self) -> Result<(String, FetchType), &'static str> {
        let (size, operand) = match self.text.split_once('@') {
            Some((size, operand)) => (size, operand.trim()),
            // Old notes have no sizes.
            None if self.machine == Machine::X86 => ("8", self.text.trim()),
            None => return Err("it has no size"),
        };
        let type_ = match size {
            "1" => FetchType::U8,
            "2" => FetchType::U16,
            "4" => FetchType::U32,
            "8" => FetchType::U64,
            "-1" => FetchType::S8,
            "-2" => FetchType::S16,
            "-4" => FetchType::S32,
            "-8" => FetchType::S64,
            _ if size.ends_with('f') => return Err("the kernel cannot read floating point"),
            _ => return Err("it has an unknown size"),
        };
        let fetch = match self.machine {
            Machine::X86 => x86(operand)?,
            Machine::Arm64 => arm64(operand)?,
            Machine::Other => return Err("the operands of this machine are not supported"),
        };
        Ok((fetch, type_))
    }
}

fn constant(text: &str) -> Result<String, &'static str> {
    Ok(format!("\\{}", integer(text).ok_or("it is not a number")?))
}

/// A number in C syntax with an optional sign.
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1i128, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    // Unsigned constants of 64 bits wrap.
    match sign * i128::from(value) {
        value if value >= i128::from(i64::MIN) => Some(value as i64),
        _ => None,
    }
}

fn memory(base: &str, offset: i64) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    format!("{sign}{}({base})", offset.unsigned_abs())
}

fn x86(operand: &str) -> Result<String, &'static str> {
    if let Some(value) = operand.strip_prefix('$') {
        return constant(value);
    }
    if operand.starts_with('%') {
        return x86_register(operand);
    }
    let (offset, rest) = operand.split_once('(').ok_or("it is a symbol, not a register")?;
    let base = rest.strip_suffix(')').ok_or("its operand has no closing parenthesis")?;
    if base.contains(',') {
        return Err("the kernel cannot add two registers");
    }
    if base == "%rip" || base == "%eip" {
        return Err("it is a variable at an address relative to the instruction");
    }
    let offset = if offset.is_empty() { Some(0) } else { integer(offset) };
    let offset = offset.ok_or("its offset is not a number")?;
    Ok(memory(&x86_register(base)?, offset))
}

/// `%edi` is `%di`: the names of the kernel are those of 16 bits.
fn x86_register(text: &str) -> Result<String, &'static str> {
    const UNKNOWN: &str = "the kernel cannot read this register";
    let name = text.strip_prefix('%').ok_or(UNKNOWN)?;
    if let Some(number) =
        name.strip_prefix('r').filter(|n| n.starts_with(|c: char| c.is_ascii_digit()))
    {
        let number = number.trim_end_matches(['d', 'w', 'b']);
        return match number.parse::<u8>() {
            Ok(8..=15) => Ok(format!("%r{number}")),
            _ => Err(UNKNOWN),
        };
    }
    if matches!(name, "ah" | "bh" | "ch" | "dh") {
        return Err("the kernel cannot read the second byte of a register");
    }
    let wide = name.strip_prefix(['r', 'e']).unwrap_or(name);
    let word = match wide {
        "al" => "ax",
        "bl" => "bx",
        "cl" => "cx",
        "dl" => "dx",
        "sil" => "si",
        "dil" => "di",
        "bpl" => "bp",
        "spl" => "sp",
        "ax" | "bx" | "cx" | "dx" | "si" | "di" | "bp" | "sp" => wide,
        _ => return Err(UNKNOWN),
    };
    Ok(format!("%{word}"))
}

fn arm64(operand: &str) -> Result<String, &'static str> {
    if let Some(inner) = operand.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("its operand has no closing bracket")?;
        let (base, offset) = match inner.split_once(',') {
            Some((base, offset)) => {
                let offset = offset.trim().trim_start_matches('#');
                (base.trim(), integer(offset).ok_or("the kernel cannot add two registers")?)
            }
            None => (inner.trim(), 0),
        };
        return Ok(memory(&arm64_register(base)?, offset));
    }
    if operand.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return constant(operand);
    }
    arm64_register(operand)
}

fn arm64_register(name: &str) -> Result<String, &'static str> {
    const UNKNOWN: &str = "the kernel cannot read this register";
    if name == "sp" {
        return Ok("%sp".to_owned());
    }
    let number = name.strip_prefix(['x', 'w']).ok_or(UNKNOWN)?;
    match number.parse::<u8>() {
        Ok(0..=30) => Ok(format!("%x{number}")),
        _ => Err(UNKNOWN),
    }
}

#[cfg(test)]
#[cfg_attr(not(feature = "symbols"), allow(dead_code, reason = "for the tests of files"))]
pub(super) mod test_file {
    /// An ELF file, assembled: a segment at address 0x2000 and offset 0x100, symbols and two notes.
    pub(in crate::probe) fn build() -> Vec<u8> {
        let names = b"\0main\0twice\0imported\0outside\0chosen\0versioned@@V1\0";
        let name = |text: &str| {
            names.windows(text.len()).position(|w| w == text.as_bytes()).unwrap() as u32
        };
        const FUNC: u8 = 2;
        const IFUNC: u8 = 10;
        const GLOBAL: u8 = 1 << 4;
        let mut symbols = vec![0; 24];
        for (text, info, section, address) in [
            ("main", GLOBAL | FUNC, 1u16, 0x2010u64),
            ("twice", FUNC, 1, 0x2018),
            ("twice", FUNC, 1, 0x2020),
            ("imported", GLOBAL | FUNC, 0, 0),
            ("outside", GLOBAL | FUNC, 1, 0x9000),
            ("chosen", GLOBAL | IFUNC, 1, 0x2028),
            ("versioned", GLOBAL | FUNC, 1, 0x2030),
        ] {
            symbols.extend(name(text).to_le_bytes());
            symbols.extend([info, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend(address.to_le_bytes());
            symbols.extend(8u64.to_le_bytes());
        }
        let mut notes = Vec::new();
        for address in [0x2014u64, 0x2024] {
            let mut content = Vec::new();
            // Moved by 0x1000 since the note was written.
            for word in [address - 0x1000, 0x3000, 0x2080 - 0x1000] {
                content.extend(u64::to_le_bytes(word));
            }
            content.extend(b"prov\0probe\x00-4@%edi 8@-16(%rbp)\0");
            for word in [8, content.len() as u32, 3] {
                notes.extend(u32::to_le_bytes(word));
            }
            notes.extend(b"stapsdt\0");
            content.resize(content.len().next_multiple_of(4), 0);
            notes.extend(content);
        }
        let section_names = b"\0.text\0.symtab\0.strtab\0.note.stapsdt\0.stapsdt.base\0.shstrtab\0";
        let section_name = |text: &str| {
            let with_nul = format!("{text}\0");
            let found =
                section_names.windows(with_nul.len()).position(|w| w == with_nul.as_bytes());
            found.unwrap() as u32
        };
        let mut file = vec![0; 0x200];
        let mut place = |bytes: &[u8]| {
            let offset = file.len() as u64;
            file.extend(bytes);
            (offset, bytes.len() as u64)
        };
        let places = [place(&symbols), place(names), place(&notes), place(section_names)];
        file.resize(file.len().next_multiple_of(8), 0);
        let table = file.len() as u64;
        let sections = [
            ("", 0u32, 0u64, (0, 0), 0u32),
            (".text", 1, 0x2000, (0x100, 0x100), 0),
            (".symtab", 2, 0, places[0], 3),
            (".strtab", 3, 0, places[1], 0),
            (".note.stapsdt", 7, 0, places[2], 0),
            (".stapsdt.base", 1, 0x4000, (0x100, 1), 0),
            (".shstrtab", 3, 0, places[3], 0),
        ];
        for (text, type_, address, (offset, size), link) in sections {
            let at = if text.is_empty() { 0 } else { section_name(text) };
            file.extend(at.to_le_bytes());
            file.extend(type_.to_le_bytes());
            for word in [0, address, offset, size] {
                file.extend(u64::to_le_bytes(word));
            }
            file.extend(link.to_le_bytes());
            file.extend(0u32.to_le_bytes());
            file.extend(1u64.to_le_bytes());
            file.extend(0u64.to_le_bytes());
        }
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(16, 0);
        header.extend(3u16.to_le_bytes()); // ET_DYN
        header.extend(62u16.to_le_bytes()); // EM_X86_64
        header.extend(1u32.to_le_bytes());
        for word in [0, 64, table] {
            header.extend(u64::to_le_bytes(word));
        }
        header.extend(0u32.to_le_bytes());
        for half in [64u16, 56, 1, 64, sections.len() as u16, sections.len() as u16 - 1] {
            header.extend(half.to_le_bytes());
        }
        header.extend(1u32.to_le_bytes()); // PT_LOAD
        header.extend(5u32.to_le_bytes()); // readable, executable
        for word in [0x100u64, 0x2000, 0x2000, 0x100, 0x100, 0x1000] {
            header.extend(word.to_le_bytes());
        }
        file[..header.len()].copy_from_slice(&header);
        file
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
impl UsdtProbe {
    /// A probe of this machine with one argument.
    pub(super) fn with_argument(text: &str) -> Self {
        let machine = if cfg!(target_arch = "x86_64") { Machine::X86 } else { Machine::Arm64 };
        let arguments = vec![UsdtArgument { text: text.to_owned(), machine }];
        let (provider, name) = ("provider".to_owned(), "name".to_owned());
        Self { provider, name, offset: 0, semaphore: None, arguments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(machine: Machine, text: &str) -> Result<String, &'static str> {
        let argument = UsdtArgument { text: text.to_owned(), machine };
        argument.translate().map(|(fetch, type_)| format!("{fetch}:{type_}"))
    }

    #[test]
    fn operands_of_x86_translate() {
        let ok = |text| translate(Machine::X86, text).unwrap();
        assert_eq!(ok("-4@%edi"), "%di:s32");
        assert_eq!(ok("8@%rax"), "%ax:u64");
        assert_eq!(ok("1@%sil"), "%si:u8");
        assert_eq!(ok("2@%r9w"), "%r9:u16");
        assert_eq!(ok("8@-16(%rbp)"), "-16(%bp):u64");
        assert_eq!(ok("8@(%rdi)"), "+0(%di):u64");
        assert_eq!(ok("-4@$-5"), "\\-5:s32");
        assert_eq!(ok("8@$0x10"), "\\16:u64");
        for (text, why) in [
            ("8@(%rax,%rbx,8)", "two registers"),
            ("4@counter(%rip)", "relative to the instruction"),
            ("8@counter", "a symbol"),
            ("8f@%xmm0", "floating point"),
            ("8@%xmm0", "this register"),
            ("1@%ah", "second byte"),
            ("8@%r77", "this register"),
            ("3@%rax", "unknown size"),
            ("8@(%rax", "closing"),
        ] {
            let error = translate(Machine::X86, text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn operands_of_arm64_translate() {
        let ok = |text| translate(Machine::Arm64, text).unwrap();
        assert_eq!(ok("8@x0"), "%x0:u64");
        assert_eq!(ok("-4@w19"), "%x19:s32");
        assert_eq!(ok("8@[sp, 24]"), "+24(%sp):u64");
        assert_eq!(ok("-4@[x29,-8]"), "-8(%x29):s32");
        assert_eq!(ok("4@[x1]"), "+0(%x1):u32");
        assert_eq!(ok("4@7"), "\\7:u32");
        for text in ["8@[x0, x1]", "8@x31", "8@d0", "x0", "8@[x0"] {
            assert!(translate(Machine::Arm64, text).is_err(), "{text}");
        }
        assert!(translate(Machine::Other, "8@x0").is_err());
    }

    #[cfg(feature = "symbols")]
    #[test]
    fn arguments_are_split_outside_brackets() {
        assert_eq!(split("8@x0 -4@[sp, 24]  4@7"), ["8@x0", "-4@[sp, 24]", "4@7"]);
        assert_eq!(split("8@(%rax) 4@)( 1@%al").len(), 3);
        assert_eq!(split(&"8@x0 ".repeat(1000)).len(), 255);
    }
}
