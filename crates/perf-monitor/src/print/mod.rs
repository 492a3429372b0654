//! The text of a tracepoint, by the kernel's print format.

mod parse;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::format::{FieldFormat, FieldKind, TracepointFormat};
use parse::Parser;
use std::fmt::{self, Write};

/// The print format of a tracepoint ([`TracepointFormat::print_fmt`]), to be filled with the fields
/// of samples.
///
/// It prints what the file `trace` of tracefs and `perf script` print. Formats are C; those that
/// call functions of the kernel are [errors](Error::Format), and what remains is to print the fields
/// ([`FieldFormat::value`]). Of the 2323 tracepoints of a Linux 6.18, 34 are such.
///
/// Formats and names can be those of a file. The control characters of all texts are escaped, also in the
/// format, so that none reaches a terminal: `\n` is a backslash and an `n`.
///
/// ```
/// use perf_monitor::{PrintFormat, TracepointFormat};
///
/// let format = TracepointFormat::parse("demo", "\
/// name: hit
/// ID: 7
/// format:
/// \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
///
/// \tfield:int state;\toffset:4;\tsize:4;\tsigned:1;
///
/// print fmt: \"state=%s (%03d)\", __print_symbolic(REC->state, { 0, \"off\" }, { 1, \"on\" }), \\
/// REC->state
/// ".replace("\\\n", "").as_str())?;
/// let print = PrintFormat::new(&format)?;
/// assert_eq!(print.display(&[7, 0, 0, 0, 1, 0, 0, 0], &|_| None).to_string(), "state=on (001)");
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrintFormat {
    pieces: Vec<Piece>,
    args: Vec<Arg>,
    /// All fields; arguments have their index.
    fields: Vec<FieldFormat>,
}

/// The names of addresses, for `%pS` and texts that the kernel refers to by their address: a
/// function with the offset in it, or a text.
pub type Names<'a> = dyn Fn(u64) -> Option<String> + 'a;

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Value(Spec),
}

/// Flags of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flag(u8);

impl Flag {
    const LEFT: Self = Self(1);
    const PLUS: Self = Self(2);
    const SPACE: Self = Self(4);
    const ALTERNATE: Self = Self(8);
    const ZERO: Self = Self(16);

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOrAssign for Flag {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// A conversion, such as `%-8s`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Spec {
    flags: Flag,
    width: Option<usize>,
    width_from_arg: bool,
    precision: Option<usize>,
    precision_from_arg: bool,
    bits: u32,
    conversion: char,
    /// What follows `%p`.
    pointer: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: i64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unary {
    Minus,
    Not,
    IsZero,
}

macro_rules! binary {
    ($($name:ident $op:literal $precedence:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Binary { $($name,)* }

        impl Binary {
            /// The operator with its precedence.
            fn of(op: &str) -> Option<(Self, usize)> {
                match op {
                    $($op => Some((Self::$name, $precedence)),)*
                    _ => None,
                }
            }
        }
    };
}

binary! {
    Or "||" 1,
    And "&&" 2,
    BitOr "|" 3,
    BitXor "^" 4,
    BitAnd "&" 5,
    Equal "==" 6,
    NotEqual "!=" 6,
    Less "<" 7,
    Greater ">" 7,
    LessOrEqual "<=" 7,
    GreaterOrEqual ">=" 7,
    Left "<<" 8,
    Right ">>" 8,
    Plus "+" 9,
    Minus "-" 9,
    Times "*" 10,
    Divide "/" 10,
    Rest "%" 10,
}

#[derive(Clone, Debug, PartialEq)]
enum Arg {
    Number(i64),
    Text(String),
    Field(usize),
    /// Number of bytes of a field of variable size.
    Len(usize),
    Bitmask(usize),
    Index(Box<[Self; 2]>),
    Unary(Unary, Box<Self>),
    Binary(Binary, Box<[Self; 2]>),
    Choice(Box<[Self; 3]>),
    /// Bits, and whether the type is signed.
    Cast(u32, bool, Box<Self>),
    Flags(Box<Self>, String, Vec<Entry>),
    Symbolic(Box<Self>, Vec<Entry>),
    Hex(Box<[Self; 2]>, &'static str),
    Array(Box<[Self; 3]>),
}

/// The value of an argument.
enum Value<'a> {
    Number(i64),
    Text(String),
    /// The data of an array or a string.
    Bytes(&'a [u8]),
}

/// A number with these bits.
fn truncated(value: i64, bits: u32, signed: bool) -> i64 {
    match (bits, signed) {
        (8, true) => i64::from(value as i8),
        (8, false) => i64::from(value as u8),
        (16, true) => i64::from(value as i16),
        (16, false) => i64::from(value as u16),
        (32, true) => i64::from(value as i32),
        (32, false) => i64::from(value as u32),
        _ => value,
    }
}

impl Arg {
    /// The value of an expression without fields.
    fn constant(&self) -> Option<i64> {
        match self {
            Self::Field(_) | Self::Len(_) | Self::Bitmask(_) | Self::Index(_) => None,
            _ => match self.value(&[], &[]) {
                Some(Value::Number(number)) => Some(number),
                _ => None,
            },
        }
    }

    fn number(&self, fields: &[FieldFormat], raw: &[u8]) -> Option<i64> {
        match self.value(fields, raw)? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    fn bytes<'a>(&self, fields: &[FieldFormat], raw: &'a [u8]) -> Option<&'a [u8]> {
        match self.value(fields, raw)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// `None` if the data is too short, or the expression has no meaning.
    fn value<'a>(&self, fields: &[FieldFormat], raw: &'a [u8]) -> Option<Value<'a>> {
        let number = |arg: &Self| arg.number(fields, raw);
        Some(match self {
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::Text(text.clone()),
            Self::Field(index) => {
                let field = fields.get(*index)?;
                match field.kind() {
                    FieldKind::Integer => Value::Number(field.i64(raw)?),
                    _ => Value::Bytes(field.bytes(raw)?),
                }
            }
            Self::Len(index) => Value::Number(fields.get(*index)?.bytes(raw)?.len() as i64),
            Self::Bitmask(index) => Value::Text(bitmask(fields.get(*index)?.bytes(raw)?)),
            Self::Index(parts) => {
                let [array, index] = &**parts;
                let index = usize::try_from(number(index)?).ok()?;
                match array {
                    Self::Field(field) => {
                        Value::Number(fields.get(*field)?.elements(raw)?.iter().nth(index)?)
                    }
                    _ => Value::Number(i64::from(*array.bytes(fields, raw)?.get(index)?)),
                }
            }
            Self::Unary(op, arg) => {
                let value = number(arg)?;
                Value::Number(match op {
                    Unary::Minus => value.wrapping_neg(),
                    Unary::Not => !value,
                    Unary::IsZero => i64::from(value == 0),
                })
            }
            Self::Binary(op, parts) => {
                let [left, right] = &**parts;
                Value::Number(binary(*op, number(left)?, || number(right))?)
            }
            Self::Choice(parts) => {
                let [condition, yes, no] = &**parts;
                let chosen = if number(condition)? != 0 { yes } else { no };
                chosen.value(fields, raw)?
            }
            Self::Cast(bits, signed, arg) => match arg.value(fields, raw)? {
                Value::Number(number) => Value::Number(truncated(number, *bits, *signed)),
                other => other,
            },
            Self::Flags(arg, delimiter, entries) => {
                Value::Text(flags(number(arg)?, delimiter, entries))
            }
            Self::Symbolic(arg, entries) => {
                let value = number(arg)?;
                let entry = entries.iter().find(|entry| entry.value == value);
                Value::Text(entry.map_or_else(|| format!("{value:#x}"), |e| e.text.clone()))
            }
            Self::Hex(parts, separator) => {
                let [bytes, count] = &**parts;
                let count = usize::try_from(number(count)?).ok()?;
                let bytes = bytes.bytes(fields, raw)?;
                let bytes = bytes.get(..count.min(bytes.len()))?;
                let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
                Value::Text(hex.join(separator))
            }
            Self::Array(parts) => {
                let [bytes, count, size] = &**parts;
                let count = usize::try_from(number(count)?).ok()?;
                let size = usize::try_from(number(size)?).ok().filter(|size| *size > 0)?;
                let elements = bytes.bytes(fields, raw)?.chunks_exact(size).take(count);
                let elements: Vec<String> =
                    elements.map(|e| format!("{:#x}", little_endian(e))).collect();
                Value::Text(format!("{{{}}}", elements.join(",")))
            }
        })
    }
}

fn binary(op: Binary, left: i64, right: impl FnOnce() -> Option<i64>) -> Option<i64> {
    // The right side is evaluated only if it is needed: it can divide by 0.
    match op {
        Binary::Or if left != 0 => return Some(1),
        Binary::And if left == 0 => return Some(0),
        _ => {}
    }
    let right = right()?;
    Some(match op {
        Binary::Or | Binary::And => i64::from(right != 0),
        Binary::BitOr => left | right,
        Binary::BitXor => left ^ right,
        Binary::BitAnd => left & right,
        Binary::Equal => i64::from(left == right),
        Binary::NotEqual => i64::from(left != right),
        Binary::Less => i64::from(left < right),
        Binary::Greater => i64::from(left > right),
        Binary::LessOrEqual => i64::from(left <= right),
        Binary::GreaterOrEqual => i64::from(left >= right),
        Binary::Left => left.wrapping_shl(right as u32),
        Binary::Right => ((left as u64).wrapping_shr(right as u32)) as i64,
        Binary::Plus => left.wrapping_add(right),
        Binary::Minus => left.wrapping_sub(right),
        Binary::Times => left.wrapping_mul(right),
        Binary::Divide => left.checked_div(right)?,
        Binary::Rest => left.checked_rem(right)?,
    })
}

/// The names of the bits of a number, as the kernel's `__print_flags` joins them.
fn flags(value: i64, delimiter: &str, entries: &[Entry]) -> String {
    let mut rest = value;
    let mut names = Vec::new();
    if let Some(zero) = entries.iter().find(|e| e.value == 0).filter(|_| value == 0) {
        return zero.text.clone();
    }
    for entry in entries.iter().filter(|entry| entry.value != 0) {
        if rest & entry.value == entry.value {
            rest &= !entry.value;
            names.push(entry.text.clone());
        }
    }
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    names.join(delimiter)
}

/// A bitmask as the kernel prints it: words of 32 bits, the highest first.
fn bitmask(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks(4).rev().map(|word| format!("{:08x}", little_endian(word))).collect();
    words.join(",")
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |value, b| value << 8 | u64::from(*b))
}

impl PrintFormat {
    /// Parses the print format of a tracepoint.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] if it is not in the supported part of C.
    pub fn new(format: &TracepointFormat) -> Result<Self> {
        let bad = |why| Error::Format { what: "the print format of a tracepoint", offset: 0, why };
        let (pieces, args) =
            Parser::new(format.print_fmt(), format).and_then(Parser::parse).map_err(bad)?;
        let wanted = pieces.iter().map(|piece| match piece {
            Piece::Text(_) => 0,
            Piece::Value(spec) => {
                1 + usize::from(spec.width_from_arg) + usize::from(spec.precision_from_arg)
            }
        });
        if wanted.sum::<usize>() > args.len() {
            return Err(bad("more conversions than arguments"));
        }
        let fields = format.common_fields().iter().chain(format.fields()).cloned().collect();
        Ok(Self { pieces, args, fields })
    }

    /// The text for the raw data of a sample. Values that are beyond its end are printed as `?`.
    pub fn display<'a>(&'a self, raw: &'a [u8], names: &'a Names<'a>) -> impl fmt::Display + 'a {
        Printed { format: self, raw, names }
    }
}

struct Printed<'a> {
    format: &'a PrintFormat,
    raw: &'a [u8],
    names: &'a Names<'a>,
}

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut args = self.format.args.iter();
        let fields = &self.format.fields;
        let from_arg = |wanted: bool, args: &mut std::slice::Iter<'_, Arg>| {
            let arg = if wanted { args.next() } else { None };
            arg.and_then(|arg| arg.number(fields, self.raw))
        };
        for piece in &self.format.pieces {
            let spec = match piece {
                Piece::Text(text) => {
                    f.write_str(text)?;
                    continue;
                }
                Piece::Value(spec) => spec,
            };
            let mut spec = spec.clone();
            if let Some(width) = from_arg(spec.width_from_arg, &mut args) {
                spec.flags |= if width < 0 { Flag::LEFT } else { Flag::default() };
                spec.width = Some(usize::from(width.unsigned_abs().min(4096) as u16));
            }
            if let Some(precision) = from_arg(spec.precision_from_arg, &mut args) {
                spec.precision = usize::try_from(precision).ok();
            }
            let value = args.next().and_then(|arg| arg.value(fields, self.raw));
            match value {
                Some(value) => spec.print(f, &value, self.names)?,
                None => f.write_str("?")?,
            }
        }
        Ok(())
    }
}

impl Spec {
    fn print(
        &self,
        f: &mut fmt::Formatter<'_>,
        value: &Value<'_>,
        names: &Names<'_>,
    ) -> fmt::Result {
        let text = match (self.conversion, value) {
            ('s', Value::Text(text)) => text.clone(),
            ('s', Value::Bytes(bytes)) => {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                shown(bytes.get(..end).unwrap_or_default())
            }
            // The address of a text.
            ('s', Value::Number(address)) => {
                named(names, *address as u64).unwrap_or_else(|| format!("{address:#x}"))
            }
            ('c', Value::Number(c)) => shown(&[*c as u8]),
            ('p', value) => self.pointer(value, names),
            (_, Value::Number(number)) => return self.integer(f, *number),
            // A number of a text: as perf does, the text.
            (_, Value::Text(text)) => text.clone(),
            (_, Value::Bytes(bytes)) => return self.integer(f, little_endian(bytes) as i64),
        };
        let precision = self.precision.filter(|_| self.conversion == 's').unwrap_or(usize::MAX);
        let text: String = text.chars().take(precision).collect();
        pad(f, self, "", &text, false)
    }

    fn integer(&self, f: &mut fmt::Formatter<'_>, number: i64) -> fmt::Result {
        let signed = matches!(self.conversion, 'd' | 'i');
        let number = truncated(number, self.bits, signed);
        let alternate = self.flags.has(Flag::ALTERNATE) && number != 0;
        let (prefix, mut digits) = match self.conversion {
            'x' => (if alternate { "0x" } else { "" }, format!("{number:x}")),
            'X' => (if alternate { "0X" } else { "" }, format!("{number:X}")),
            'o' => (if alternate { "0" } else { "" }, format!("{number:o}")),
            'u' => ("", (number as u64).to_string()),
            _ if number < 0 => ("-", number.unsigned_abs().to_string()),
            _ if self.flags.has(Flag::PLUS) => ("+", number.to_string()),
            _ if self.flags.has(Flag::SPACE) => (" ", number.to_string()),
            _ => ("", number.to_string()),
        };
        if let Some(precision) = self.precision {
            let missing = precision.min(4096).saturating_sub(digits.len());
            digits.insert_str(0, &"0".repeat(missing));
        }
        let zeros = self.flags.has(Flag::ZERO) && self.precision.is_none();
        pad(f, self, prefix, &digits, zeros)
    }

    fn pointer(&self, value: &Value<'_>, names: &Names<'_>) -> String {
        let address = match value {
            Value::Number(address) => *address as u64,
            Value::Bytes(bytes) => match self.pointer {
                "I4" | "i4" => return dotted(bytes.get(..4).unwrap_or_default()),
                "I6" | "I6c" | "i6" => return ipv6(bytes, self.pointer == "I6c"),
                "M" | "mF" | "m" => {
                    let separator = if self.pointer == "m" { "" } else { ":" };
                    let parts: Vec<String> =
                        bytes.iter().take(6).map(|b| format!("{b:02x}")).collect();
                    return parts.join(separator);
                }
                "U" => return uuid(bytes),
                _ => little_endian(bytes),
            },
            Value::Text(text) => return text.clone(),
        };
        let name = match self.pointer {
            "S" | "B" | "F" => named(names, address),
            // Without the offset in the function.
            "s" | "f" => named(names, address)
                .map(|name| name.split_once('+').map_or(name.as_str(), |(f, _)| f).to_owned()),
            _ => None,
        };
        name.unwrap_or_else(|| format!("{address:#x}"))
    }
}

/// Pads to the width of a conversion.
fn pad(
    f: &mut fmt::Formatter<'_>,
    spec: &Spec,
    prefix: &str,
    text: &str,
    with_zeros: bool,
) -> fmt::Result {
    let len = prefix.len() + text.chars().count();
    let missing = spec.width.unwrap_or(0).saturating_sub(len);
    let fill = |f: &mut fmt::Formatter<'_>, wanted: bool, c: char| {
        (0..missing).filter(|_| wanted).try_for_each(|_| f.write_char(c))
    };
    let is_left = spec.flags.has(Flag::LEFT);
    fill(f, !is_left && !with_zeros, ' ')?;
    f.write_str(prefix)?;
    fill(f, !is_left && with_zeros, '0')?;
    f.write_str(text)?;
    fill(f, is_left, ' ')
}

/// The name of an address.
fn named(names: &Names<'_>, address: u64) -> Option<String> {
    names(address).map(|name| shown(name.as_bytes()))
}

/// Text of a traced program or a file, whose control characters must not reach a terminal.
fn shown(bytes: &[u8]) -> String {
    crate::format::FieldValue::Text(bytes).to_string()
}

fn dotted(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(u8::to_string).collect();
    parts.join(".")
}

fn ipv6(bytes: &[u8], is_short: bool) -> String {
    let Some(bytes) = bytes.first_chunk::<16>() else { return "?".to_owned() };
    if is_short {
        return std::net::Ipv6Addr::from(*bytes).to_string();
    }
    let parts: Vec<String> =
        bytes.chunks_exact(2).map(|b| b.iter().map(|b| format!("{b:02x}")).collect()).collect();
    parts.join(":")
}

fn uuid(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (n, b) in bytes.iter().take(16).enumerate() {
        let _ = write!(out, "{}{b:02x}", if matches!(n, 4 | 6 | 8 | 10) { "-" } else { "" });
    }
    out
}
