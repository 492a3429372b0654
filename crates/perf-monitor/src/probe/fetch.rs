//! Fetch arguments: the values that a probe reads when it is hit.

use super::definition::{self, Place};
use crate::error::Result;
use std::fmt;

/// A value that a probe reads: the typed form of a fetch argument of tracefs.
///
/// ```
/// use perf_monitor::probe::{Fetch, FetchType};
///
/// // The string at the second argument of a kernel function, which is an address of user space.
/// assert_eq!(Fetch::arg(2).user_string().to_string(), "+0($arg2):ustring");
/// // The field at offset 16 of the structure that the first argument points to.
/// assert_eq!(Fetch::arg(1).field(16).typed(FetchType::U32).to_string(), "+16($arg1):u32");
/// assert_eq!(Fetch::return_value().typed(FetchType::S32).to_string(), "$retval:s32");
/// // Anything else, in the syntax of the kernel.
/// assert_eq!(Fetch::raw("@jiffies:u64").to_string(), "@jiffies:u64");
/// ```
///
/// [`Documentation/trace/kprobetrace.rst`][k] and [`uprobetracer.rst`][u] describe the syntax.
///
/// [k]: https://www.kernel.org/doc/html/latest/trace/kprobetrace.html
/// [u]: https://www.kernel.org/doc/html/latest/trace/uprobetracer.html
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    source: Source,
    /// Offsets of the dereferences, innermost first.
    derefs: Vec<Deref>,
    type_: Option<FetchType>,
    /// Number of elements, 0 if it is no array.
    array: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Raw(String),
    Arg(u8),
    GoArg(u8),
    Register(String),
    ReturnValue,
    Stack(Option<u16>),
    Comm,
    Symbol(String, i64),
    Address(u64),
    FileOffset(u64),
    Immediate(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deref {
    offset: i64,
    user: bool,
}

/// The type of a fetched value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FetchType {
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// Signed, 1 byte.
    S8,
    /// Signed, 2 bytes.
    S16,
    /// Signed, 4 bytes.
    S32,
    /// Signed, 8 bytes.
    S64,
    /// Unsigned, 1 byte, printed in hexadecimal.
    X8,
    /// Unsigned, 2 bytes, printed in hexadecimal.
    X16,
    /// Unsigned, 4 bytes, printed in hexadecimal.
    X32,
    /// Unsigned, 8 bytes, printed in hexadecimal.
    X64,
    /// A character (Linux 6.3).
    Char,
    /// A string of the kernel; of user space in a uprobe.
    String,
    /// A string of user space.
    UserString,
    /// An address of the kernel, printed as its symbol.
    Symbol,
    /// An address of the kernel, recorded as the name of its symbol (Linux 6.2).
    SymbolString,
    /// Bits of a value.
    Bitfield {
        /// Number of bits.
        width: u8,
        /// Number of the first bit.
        offset: u8,
        /// Number of bits of the value: 8, 16, 32 or 64.
        container: u8,
    },
}

impl fmt::Display for FetchType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::S8 => "s8",
            Self::S16 => "s16",
            Self::S32 => "s32",
            Self::S64 => "s64",
            Self::X8 => "x8",
            Self::X16 => "x16",
            Self::X32 => "x32",
            Self::X64 => "x64",
            Self::Char => "char",
            Self::String => "string",
            Self::UserString => "ustring",
            Self::Symbol => "symbol",
            Self::SymbolString => "symstr",
            Self::Bitfield { width, offset, container } => {
                return write!(f, "b{width}@{offset}/{container}");
            }
        })
    }
}

impl Fetch {
    const fn new(source: Source) -> Self {
        Self { source, derefs: Vec::new(), type_: None, array: 0 }
    }

    /// A fetch argument in the syntax of the kernel, such as `+0($arg2):ustring`. `$argN` is
    /// [`Fetch::arg`] also in a uprobe, where the kernel does not know it.
    pub fn raw(text: impl Into<String>) -> Self {
        let text = text.into();
        let digits = text.strip_prefix("$arg").filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
        let source = match digits.and_then(|digits| digits.parse().ok()) {
            Some(n) => Source::Arg(n),
            None => Source::Raw(text),
        };
        Self::new(source)
    }

    /// The `n`th argument of the function, from 1, by the calling convention of C: `$argN` in a
    /// kprobe, the register of the argument in a uprobe. In a USDT probe, its `n`th argument, with
    /// its type unless another one is given.
    ///
    /// Of a function, only integers and pointers are numbered, only the first six (x86-64) or eight
    /// (arm64, riscv64) have registers, and only at its start. Rust functions follow the
    /// same convention for such arguments in practice, but do not promise to: `extern "C"` ones do.
    pub const fn arg(n: u8) -> Self {
        Self::new(Source::Arg(n))
    }

    /// The `n`th word of the arguments of a Go function, from 1, in a uprobe: the registers of Go's
    /// internal calling convention (Go 1.17 on x86-64, 1.18 on arm64).
    ///
    /// A string is two words (address and length), a slice three (address, length, capacity), an
    /// interface two. The receiver of a method is first.
    pub const fn go_arg(n: u8) -> Self {
        Self::new(Source::GoArg(n))
    }

    /// A register by the kernel's name, without `%`: `di` on x86-64, `x0` on arm64.
    pub fn register(name: impl Into<String>) -> Self {
        Self::new(Source::Register(name.into()))
    }

    /// The return value, in a probe at the return of a function. Give it the type of the function:
    /// the upper half of the register is undefined for an `int`.
    pub const fn return_value() -> Self {
        Self::new(Source::ReturnValue)
    }

    /// The `n`th word of the stack, from 0.
    pub const fn stack(n: u16) -> Self {
        Self::new(Source::Stack(Some(n)))
    }

    /// The stack pointer.
    pub const fn stack_pointer() -> Self {
        Self::new(Source::Stack(None))
    }

    /// The name of the current thread, a string.
    pub const fn comm() -> Self {
        Self::new(Source::Comm)
    }

    /// The value at a symbol of the kernel, plus `offset` bytes. Only in kprobes.
    pub fn kernel_symbol(symbol: impl Into<String>, offset: i64) -> Self {
        Self::new(Source::Symbol(symbol.into(), offset))
    }

    /// The value at an address.
    pub const fn address(address: u64) -> Self {
        Self::new(Source::Address(address))
    }

    /// The value at an offset of the probed file, such as a global variable. Only in uprobes.
    pub const fn file_offset(offset: u64) -> Self {
        Self::new(Source::FileOffset(offset))
    }

    /// A constant (Linux 5.4).
    pub const fn constant(value: i64) -> Self {
        Self::new(Source::Immediate(value))
    }

    fn deref(mut self, offset: i64, user: bool) -> Self {
        self.derefs.push(Deref { offset, user });
        self
    }

    /// Dereferences: the value `offset` bytes after the address read so far. In a kprobe, of the
    /// kernel's memory.
    #[must_use]
    pub fn field(self, offset: i64) -> Self {
        self.deref(offset, false)
    }

    /// Dereferences an address of user space in a kprobe: see [`field`](Self::field). A uprobe reads
    /// user space in any case.
    #[must_use]
    pub fn user_field(self, offset: i64) -> Self {
        self.deref(offset, true)
    }

    /// The string, up to its NUL, at the address read so far.
    #[must_use]
    pub fn string(self) -> Self {
        self.deref(0, false).typed(FetchType::String)
    }

    /// The string at the address of user space read so far.
    #[must_use]
    pub fn user_string(self) -> Self {
        self.deref(0, false).typed(FetchType::UserString)
    }

    /// The type of the value. Without one it is an unsigned word.
    #[must_use]
    pub const fn typed(mut self, type_: FetchType) -> Self {
        self.type_ = Some(type_);
        self
    }

    /// An array of up to 64 values of the [type](Self::typed), at the address of the last
    /// dereference (Linux 5.0).
    #[must_use]
    pub const fn array(mut self, len: u8) -> Self {
        self.array = len;
        self
    }

    /// The text for the kernel, at such a probe.
    pub(super) fn render(&self, place: Place<'_>) -> Result<String> {
        let mut type_ = self.type_;
        let source = match &self.source {
            Source::Raw(text) => {
                definition::check_word(text)?;
                with_arguments(text, place)?
            }
            Source::Arg(n) => {
                let (source, own_type) = argument(*n, place)?;
                // Not of what its address points to.
                type_ = type_.or(own_type.filter(|_| self.derefs.is_empty()));
                source
            }
            Source::GoArg(n) => register(GO_REGISTERS, *n, place)?,
            Source::Register(name) => {
                definition::check_word(name)?;
                format!("%{name}")
            }
            Source::Symbol(symbol, _) => {
                definition::check_word(symbol)?;
                self.source.to_string()
            }
            other => other.to_string(),
        };
        Ok(self.with_source(&source, type_))
    }

    fn with_source(&self, source: &str, type_: Option<FetchType>) -> String {
        let mut text = source.to_owned();
        for Deref { offset, user } in &self.derefs {
            let u = if *user { "u" } else { "" };
            let sign = if *offset < 0 { '-' } else { '+' };
            text = format!("{sign}{u}{}({text})", offset.unsigned_abs());
        }
        if let Some(type_) = type_ {
            text.push_str(&format!(":{type_}"));
        }
        if self.array > 0 {
            text.push_str(&format!("[{}]", self.array));
        }
        text
    }
}

/// Argument `n`, and its type if it is known.
fn argument(n: u8, place: Place<'_>) -> Result<(String, Option<FetchType>)> {
    match place.usdt {
        Some(probe) => probe.fetch(n).map(|(source, type_)| (source, Some(type_))),
        None if place.is_user => Ok((register(C_REGISTERS, n, place)?, None)),
        None => Ok((format!("$arg{n}"), None)),
    }
}

/// Replaces `$argN`, which the kernel does not know in user space.
fn with_arguments(text: &str, place: Place<'_>) -> Result<String> {
    if !place.is_user {
        return Ok(text.to_owned());
    }
    let mut parts = text.split("$arg");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = part.split_at(digits);
        match number.parse() {
            Ok(n) => out.push_str(&argument(n, place)?.0),
            Err(_) => out.push_str("$arg"),
        }
        out.push_str(rest);
    }
    Ok(out)
}

/// Registers of the arguments of C functions, by the kernel's names.
const C_REGISTERS: &[&str] = if cfg!(target_arch = "x86_64") {
    &["di", "si", "dx", "cx", "r8", "r9"]
} else if cfg!(target_arch = "aarch64") {
    &["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"]
} else if cfg!(target_arch = "riscv64") {
    &["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"]
} else {
    &[]
};

/// Registers of the integer arguments of Go functions: `src/cmd/compile/abi-internal.md`.
const GO_REGISTERS: &[&str] = if cfg!(target_arch = "x86_64") {
    &["ax", "bx", "cx", "di", "si", "r8", "r9", "r10", "r11"]
} else if cfg!(target_arch = "aarch64") {
    &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
        "x14", "x15",
    ]
} else {
    &[]
};

fn register(registers: &[&str], n: u8, place: Place<'_>) -> Result<String> {
    let refused = |why| Err(definition::refused(&format!("argument {n}"), 0, why));
    if !place.is_user {
        return refused("kprobes know their arguments as $argN");
    }
    if place.is_return {
        return refused("the arguments are gone when a function returns");
    }
    match usize::from(n).checked_sub(1).and_then(|at| registers.get(at)) {
        Some(name) => Ok(format!("%{name}")),
        None => refused("it has no register"),
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(text) => f.write_str(text),
            Self::Arg(n) | Self::GoArg(n) => write!(f, "$arg{n}"),
            Self::Register(name) => write!(f, "%{name}"),
            Self::ReturnValue => f.write_str("$retval"),
            Self::Stack(Some(n)) => write!(f, "$stack{n}"),
            Self::Stack(None) => f.write_str("$stack"),
            Self::Comm => f.write_str("$comm"),
            Self::Symbol(symbol, 0) => write!(f, "@{symbol}"),
            Self::Symbol(symbol, offset) => write!(f, "@{symbol}{offset:+}"),
            Self::Address(address) => write!(f, "@{address:#x}"),
            Self::FileOffset(offset) => write!(f, "@+{offset:#x}"),
            Self::Immediate(value) => write!(f, "\\{value}"),
        }
    }
}

impl fmt::Display for Fetch {
    /// The syntax of the kernel, as in a kprobe.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_source(&self.source.to_string(), self.type_))
    }
}

impl From<&str> for Fetch {
    fn from(text: &str) -> Self {
        Self::raw(text)
    }
}

impl From<String> for Fetch {
    fn from(text: String) -> Self {
        Self::raw(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    use crate::probe::UsdtProbe;

    const KERNEL: Place<'_> = Place { is_user: false, is_return: false, usdt: None };
    const USER: Place<'_> = Place { is_user: true, is_return: false, usdt: None };
    const USER_RETURN: Place<'_> = Place { is_user: true, is_return: true, usdt: None };

    #[test]
    fn typed_arguments_render_in_the_syntax_of_the_kernel() {
        let text = |fetch: Fetch| fetch.render(KERNEL).unwrap();
        assert_eq!(text(Fetch::arg(3)), "$arg3");
        assert_eq!(
            text(Fetch::arg(1).field(8).field(-16).typed(FetchType::X64)),
            "-16(+8($arg1)):x64"
        );
        assert_eq!(text(Fetch::arg(1).user_field(4).typed(FetchType::S8)), "+u4($arg1):s8");
        assert_eq!(text(Fetch::stack(2)), "$stack2");
        assert_eq!(text(Fetch::stack_pointer().field(8)), "+8($stack)");
        assert_eq!(text(Fetch::comm()), "$comm");
        assert_eq!(text(Fetch::kernel_symbol("jiffies", -8)), "@jiffies-8");
        assert_eq!(text(Fetch::address(0x10)), "@0x10");
        assert_eq!(text(Fetch::file_offset(0x10)), "@+0x10");
        assert_eq!(text(Fetch::constant(-5).typed(FetchType::S32)), "\\-5:s32");
        assert_eq!(text(Fetch::arg(1).field(0).typed(FetchType::U8).array(16)), "+0($arg1):u8[16]");
        let bits = FetchType::Bitfield { width: 3, offset: 1, container: 32 };
        assert_eq!(text(Fetch::register("ax").typed(bits)), "%ax:b3@1/32");
        assert_eq!(text("+0($arg2):ustring".into()), "+0($arg2):ustring");
        assert_eq!(text(Fetch::raw("%di").field(8).typed(FetchType::U16)), "+8(%di):u16");
    }

    #[test]
    fn arguments_of_user_functions_are_registers() {
        let first = if cfg!(target_arch = "x86_64") { "%di" } else { "%x0" };
        assert_eq!(Fetch::arg(1).render(USER).unwrap(), first);
        assert_eq!(Fetch::raw("+8($arg1):u32").render(USER).unwrap(), format!("+8({first}):u32"));
        assert_eq!(Fetch::raw("$argx").render(USER).unwrap(), "$argx");
        let go = if cfg!(target_arch = "x86_64") { "%bx" } else { "%x1" };
        assert_eq!(Fetch::go_arg(2).render(USER).unwrap(), go);
        for (fetch, place, why) in [
            (Fetch::arg(0), USER, "no register"),
            (Fetch::arg(200), USER, "no register"),
            (Fetch::raw("$arg9"), USER, "no register"),
            (Fetch::arg(1), USER_RETURN, "are gone"),
            (Fetch::go_arg(1), KERNEL, "$argN"),
        ] {
            let error = fetch.render(place).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn arguments_of_usdt_probes_have_their_type() {
        let (text, register) = match cfg!(target_arch = "x86_64") {
            true => ("-4@%edi", "%di"),
            false => ("-4@w0", "%x0"),
        };
        let usdt = UsdtProbe::with_argument(text);
        let place = Place { usdt: Some(&usdt), ..USER };
        for fetch in [Fetch::arg(1), Fetch::raw("$arg1")] {
            assert_eq!(fetch.render(place).unwrap(), format!("{register}:s32"));
        }
        let typed = Fetch::raw("$arg1").typed(FetchType::X8);
        assert_eq!(typed.render(place).unwrap(), format!("{register}:x8"));
        // The type is not that of memory.
        for fetch in [Fetch::raw("$arg1").field(8), Fetch::raw("+8($arg1)")] {
            assert_eq!(fetch.render(place).unwrap(), format!("+8({register})"));
        }
    }

    #[test]
    fn no_argument_smuggles_another_command_in() {
        for text in ["$arg1\np:x/y z", "$arg1 %di", "a#b", "", "\0", "a\tb"] {
            assert!(Fetch::raw(text).render(KERNEL).is_err(), "{text:?}");
            assert!(Fetch::register(text).render(KERNEL).is_err(), "{text:?}");
            assert!(Fetch::kernel_symbol(text, 0).render(KERNEL).is_err(), "{text:?}");
        }
    }
}
