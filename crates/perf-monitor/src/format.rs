//! The layout of a tracepoint's data, from the `format` files of tracefs, and typed access to the
//! fields.

use crate::error::{Error, Result};
use std::fmt;

/// The layout of one tracepoint's data (the raw data of its samples).
///
/// ```
/// use perf_monitor::TracepointFormat;
///
/// let format = TracepointFormat::parse("demo", "\
/// name: hit
/// ID: 7
/// format:
/// \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
///
/// \tfield:int delta;\toffset:4;\tsize:4;\tsigned:1;
/// \tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;
///
/// print fmt: \"delta=%d\", REC->delta
/// ")?;
/// let raw = [7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 12, 0, 3, 0, b'h', b'i', 0];
/// assert_eq!(format.field("delta").and_then(|f| f.i64(&raw)), Some(-1));
/// assert_eq!(format.field("name").and_then(|f| f.text(&raw)), Some(&b"hi"[..]));
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointFormat {
    system: String,
    name: String,
    id: u64,
    fields: Vec<FieldFormat>,
    common: usize,
    print_fmt: String,
}

/// Name, type and position of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFormat {
    name: String,
    type_name: String,
    offset: usize,
    size: usize,
    signed: bool,
    kind: FieldKind,
    is_text: bool,
}

/// The kind of a field, which determines its decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldKind {
    /// An integer of 1, 2, 4 or 8 bytes, including pointers.
    Integer,
    /// An array with elements of `element` bytes, in place.
    Array {
        /// Size of an element in bytes.
        element: usize,
    },
    /// `__data_loc`: four bytes with the offset and size of the elements in the data.
    DataLoc {
        /// Size of an element in bytes.
        element: usize,
    },
    /// `__rel_loc` (Linux 5.17): like `__data_loc`, with the offset from the end of these four
    /// bytes.
    RelLoc {
        /// Size of an element in bytes.
        element: usize,
    },
    /// A structure, or an integer of another size: bytes.
    Opaque,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldValue<'a> {
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A pointer.
    Pointer(u64),
    /// A string, without its NUL. It can contain invalid UTF-8.
    Text(&'a [u8]),
    /// The elements of an array.
    Array(ArrayValue<'a>),
    /// Bytes of a structure.
    Bytes(&'a [u8]),
}

/// Integers in a field, of 1, 2, 4 or 8 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayValue<'a> {
    bytes: &'a [u8],
    size: usize,
    signed: bool,
}

impl<'a> ArrayValue<'a> {
    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.size
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, sign-extended if the type is signed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = i64> + 'a {
        let signed = self.signed;
        self.bytes.chunks_exact(self.size).map(move |b| integer(b, signed).unwrap_or(0) as i64)
    }
}

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signed(v) => write!(f, "{v}"),
            Self::Unsigned(v) => write!(f, "{v}"),
            Self::Pointer(v) => write!(f, "{v:#x}"),
            // Control characters from a traced program must not reach a terminal.
            Self::Text(bytes) => {
                for chunk in bytes.utf8_chunks() {
                    for c in chunk.valid().chars() {
                        if c.is_control() {
                            write!(f, "{}", c.escape_default())?;
                        } else {
                            write!(f, "{c}")?;
                        }
                    }
                    for b in chunk.invalid() {
                        write!(f, "\\x{b:02x}")?;
                    }
                }
                Ok(())
            }
            Self::Array(elements) => {
                f.write_str("[")?;
                for (i, e) in elements.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { " " })?;
                    if elements.signed {
                        write!(f, "{e}")?;
                    } else {
                        write!(f, "{:#x}", e as u64)?;
                    }
                }
                f.write_str("]")
            }
            Self::Bytes(bytes) => {
                for b in *bytes {
                    write!(f, "{b:02x}")?;
                }
                Ok(())
            }
        }
    }
}

impl TracepointFormat {
    /// Parses a `format` file of tracefs.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] with the offset of the problem.
    pub fn parse(system: &str, text: &str) -> Result<Self> {
        const WHAT: &str = "the format file of a tracepoint";
        let bad = |offset: usize, why| Error::Format { what: WHAT, offset: offset as u64, why };
        let mut this = Self {
            system: system.to_owned(),
            name: String::new(),
            id: 0,
            fields: Vec::new(),
            common: 0,
            print_fmt: String::new(),
        };
        let mut offset = 0;
        for line in text.split_inclusive('\n') {
            let at = offset;
            offset += line.len();
            let line = line.trim();
            if let Some(name) = line.strip_prefix("name:") {
                this.name = name.trim().to_owned();
            } else if let Some(id) = line.strip_prefix("ID:") {
                this.id = id.trim().parse().map_err(|_| bad(at, "ID is not a number"))?;
            } else if let Some(field) = line.strip_prefix("field:") {
                let field = FieldFormat::parse(field).map_err(|why| bad(at, why))?;
                this.fields.push(field);
            } else if line.starts_with("print fmt:") {
                // The rest of the file: the text can contain line breaks.
                this.print_fmt = text
                    .get(at..)
                    .unwrap_or("")
                    .trim()
                    .trim_start_matches("print fmt:")
                    .trim()
                    .to_owned();
                break;
            } else if line.is_empty() && this.common == 0 {
                // The common fields end at an empty line.
                this.common = this.fields.len();
            }
        }
        if this.name.is_empty() {
            return Err(bad(0, "no name"));
        }
        if this.fields.is_empty() {
            return Err(bad(0, "no field"));
        }
        if this.common == 0 || this.common > this.fields.len() {
            this.common = this.fields.iter().take_while(|f| f.name.starts_with("common_")).count();
        }
        Ok(this)
    }

    /// The system of the tracepoint, such as `sched`.
    pub fn system(&self) -> &str {
        &self.system
    }

    /// The name of the tracepoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number: `perf_event_attr::config`, and the field `common_type` of its data.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The kernel's print format, in C syntax.
    pub fn print_fmt(&self) -> &str {
        &self.print_fmt
    }

    /// The fields of this tracepoint, without the common ones.
    pub fn fields(&self) -> &[FieldFormat] {
        self.fields.get(self.common..).unwrap_or_default()
    }

    /// The fields that every tracepoint has: `common_type`, `common_pid` and so on.
    pub fn common_fields(&self) -> &[FieldFormat] {
        self.fields.get(..self.common).unwrap_or_default()
    }

    /// Index of a field, counted with the common ones.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|f| f.name == name)
    }

    /// The field of a [`position`](Self::position).
    pub(crate) fn at(&self, position: usize) -> Option<&FieldFormat> {
        self.fields.get(position)
    }

    /// A field by name, including common ones. Look it up once, not for each sample.
    pub fn field(&self, name: &str) -> Option<&FieldFormat> {
        self.fields.iter().find(|f| f.name == name)
    }
}

impl FieldFormat {
    /// Parses the text after `field:`.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.split(';').map(str::trim);
        let declaration = parts.next().unwrap_or("");
        let (mut offset, mut size, mut signed) = (None, None, false);
        for part in parts {
            match part.split_once(':') {
                Some(("offset", n)) => offset = n.parse::<usize>().ok(),
                Some(("size", n)) => size = n.parse::<usize>().ok(),
                Some(("signed", n)) => signed = n == "1",
                _ => {}
            }
        }
        let (Some(offset), Some(size)) = (offset, size) else {
            return Err("a field without offset or size");
        };
        if offset.checked_add(size).is_none_or(|end| end > usize::from(u16::MAX)) {
            return Err("a field beyond 64 KiB, the size of the biggest record");
        }

        let (declaration, location) = match declaration.split_once(' ') {
            Some(("__data_loc", rest)) => (rest.trim(), Some(false)),
            Some(("__rel_loc", rest)) => (rest.trim(), Some(true)),
            _ => (declaration, None),
        };
        if let Some(relative) = location {
            // `char[] name`, seldom `cpumask_t name` or `char name[]`.
            let (type_name, name) = declaration.rsplit_once(' ').ok_or("a field without a name")?;
            let name = name.trim_end_matches("[]");
            let base = type_name.trim().trim_end_matches("[]").trim();
            if size != 4 {
                return Err("a __data_loc or __rel_loc that is not 4 bytes");
            }
            let element = size_of_type(base).unwrap_or(1);
            let kind = if relative {
                FieldKind::RelLoc { element }
            } else {
                FieldKind::DataLoc { element }
            };
            return Ok(Self {
                name: name.to_owned(),
                type_name: type_name.to_owned(),
                offset,
                size,
                signed,
                kind,
                is_text: is_char(base),
            });
        }

        let (before, dimension) = match declaration.split_once('[') {
            Some((before, rest)) => (before.trim(), Some(rest.split(']').next().unwrap_or(""))),
            None => (declaration, None),
        };
        let at = before.rfind([' ', '*']).map(|i| i + 1).ok_or("a field without a name")?;
        let (type_name, name) = before.split_at(at);
        let (type_name, name) = (type_name.trim(), name.trim());
        if name.is_empty() {
            return Err("a field without a name");
        }
        let kind = match dimension {
            Some(dimension) => {
                let count = dimension.trim().parse::<usize>().ok().filter(|n| *n > 0);
                let element = match count {
                    Some(count) if size % count == 0 => size / count,
                    // The dimension can be the name of a constant.
                    _ => size_of_type(type_name).unwrap_or(1),
                };
                if is_integer(element) { FieldKind::Array { element } } else { FieldKind::Opaque }
            }
            None if is_integer(size) => FieldKind::Integer,
            // A bitmap by its type name alone, such as cpumask_t.
            None if type_name.contains("cpumask") && size % 8 == 0 && size > 0 => {
                FieldKind::Array { element: 8 }
            }
            None => FieldKind::Opaque,
        };
        Ok(Self {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            offset,
            size,
            signed,
            kind,
            is_text: dimension.is_some() && is_char(type_name),
        })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type in C syntax, without the dimension of an array.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Offset from the start of the data, in bytes.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Size in place, in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Whether the integers are signed.
    pub const fn is_signed(&self) -> bool {
        self.signed
    }

    /// Whether the elements are characters.
    pub const fn is_text(&self) -> bool {
        self.is_text
    }

    /// The kind of the field.
    pub const fn kind(&self) -> FieldKind {
        self.kind
    }

    /// The bytes of the field: in place, or at the position of its `__data_loc` or `__rel_loc`.
    /// `None` if the data is too short.
    #[inline]
    pub fn bytes<'a>(&self, raw: &'a [u8]) -> Option<&'a [u8]> {
        let place = raw.get(self.offset..self.offset + self.size)?;
        let from = match self.kind {
            FieldKind::DataLoc { .. } => 0,
            FieldKind::RelLoc { .. } => self.offset + self.size,
            _ => return Some(place),
        };
        let word = u32::from_ne_bytes(place.first_chunk().copied()?);
        let (offset, len) = ((word & 0xffff) as usize + from, (word >> 16) as usize);
        raw.get(offset..offset + len)
    }

    /// An integer field; signed ones are sign-extended.
    #[inline]
    pub fn u64(&self, raw: &[u8]) -> Option<u64> {
        if self.kind != FieldKind::Integer {
            return None;
        }
        integer(raw.get(self.offset..self.offset + self.size)?, self.signed)
    }

    /// An integer field, as a signed number.
    #[inline]
    pub fn i64(&self, raw: &[u8]) -> Option<i64> {
        self.u64(raw).map(|v| v as i64)
    }

    /// A string, up to its NUL.
    #[inline]
    pub fn text<'a>(&self, raw: &'a [u8]) -> Option<&'a [u8]> {
        if !self.is_text {
            return None;
        }
        let bytes = self.bytes(raw)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        bytes.get(..end)
    }

    /// The integers of an array.
    pub fn elements<'a>(&self, raw: &'a [u8]) -> Option<ArrayValue<'a>> {
        let size = self.element_size()?;
        Some(ArrayValue { bytes: self.bytes(raw)?, size, signed: self.signed })
    }

    /// Size of an integer of the field, in bytes.
    pub(crate) const fn element_size(&self) -> Option<usize> {
        match self.kind {
            FieldKind::Integer => Some(self.size),
            FieldKind::Array { element }
            | FieldKind::DataLoc { element }
            | FieldKind::RelLoc { element } => Some(element),
            FieldKind::Opaque => None,
        }
    }

    /// The value, of any kind.
    pub fn value<'a>(&self, raw: &'a [u8]) -> Option<FieldValue<'a>> {
        Some(match self.kind {
            FieldKind::Integer if self.type_name.ends_with('*') => {
                FieldValue::Pointer(self.u64(raw)?)
            }
            FieldKind::Integer if self.signed => FieldValue::Signed(self.i64(raw)?),
            FieldKind::Integer => FieldValue::Unsigned(self.u64(raw)?),
            FieldKind::Opaque => FieldValue::Bytes(self.bytes(raw)?),
            _ if self.is_text => FieldValue::Text(self.text(raw)?),
            _ => FieldValue::Array(self.elements(raw)?),
        })
    }
}

const fn is_integer(size: usize) -> bool {
    matches!(size, 1 | 2 | 4 | 8)
}

fn is_char(type_name: &str) -> bool {
    matches!(
        type_name.trim().trim_start_matches("const "),
        "char" | "unsigned char" | "signed char"
    )
}

/// The size of a C type by its name; `None` for unknown names.
fn size_of_type(name: &str) -> Option<usize> {
    let name = name.trim().trim_start_matches("const ").trim();
    if name.ends_with('*') {
        return Some(8);
    }
    let bare = name.trim_start_matches("unsigned ").trim_start_matches("signed ");
    Some(match bare {
        "char" | "u8" | "s8" | "__u8" | "__s8" | "uint8_t" | "int8_t" | "bool" => 1,
        "short" | "u16" | "s16" | "__u16" | "__s16" | "__le16" | "__be16" | "uint16_t"
        | "int16_t" => 2,
        "int" | "unsigned" | "u32" | "s32" | "__u32" | "__s32" | "__le32" | "__be32"
        | "uint32_t" | "int32_t" | "pid_t" | "gfp_t" => 4,
        "long" | "long long" | "u64" | "s64" | "__u64" | "__s64" | "__le64" | "__be64"
        | "uint64_t" | "int64_t" | "size_t" | "ssize_t" | "cpumask_t" => 8,
        _ => return None,
    })
}

/// An integer of 1, 2, 4 or 8 bytes, sign-extended if it is signed.
#[inline]
fn integer(bytes: &[u8], signed: bool) -> Option<u64> {
    Some(match (bytes.len(), signed) {
        (8, _) => u64::from_ne_bytes(*bytes.first_chunk()?),
        (4, false) => u64::from(u32::from_ne_bytes(*bytes.first_chunk()?)),
        (4, true) => i64::from(i32::from_ne_bytes(*bytes.first_chunk()?)) as u64,
        (2, false) => u64::from(u16::from_ne_bytes(*bytes.first_chunk()?)),
        (2, true) => i64::from(i16::from_ne_bytes(*bytes.first_chunk()?)) as u64,
        (1, false) => u64::from(*bytes.first()?),
        (1, true) => i64::from(*bytes.first()? as i8) as u64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMAT: &str = "\
name: everything
ID: 1234
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:unsigned long args[6];\toffset:24;\tsize:48;\tsigned:0;
\tfield:char name[TASK_COMM_LEN];\toffset:72;\tsize:16;\tsigned:1;
\tfield:const char * device;\toffset:88;\tsize:8;\tsigned:0;
\tfield:s16 small;\toffset:96;\tsize:2;\tsigned:1;
\tfield:__data_loc char[] msg;\toffset:100;\tsize:4;\tsigned:0;
\tfield:__rel_loc u16[] words;\toffset:104;\tsize:4;\tsigned:0;
\tfield:struct thing t;\toffset:108;\tsize:12;\tsigned:0;
\tfield:__data_loc cpumask_t mask;\toffset:120;\tsize:4;\tsigned:0;
\tfield:bool on;\toffset:124;\tsize:1;\tsigned:0;

print fmt: \"%s
more\", REC->comm
";

    fn raw() -> Vec<u8> {
        let mut raw = vec![0; 125];
        raw[8..12].copy_from_slice(b"init");
        raw[24..32].copy_from_slice(&7u64.to_ne_bytes());
        raw[88..96].copy_from_slice(&0xffff_0000u64.to_ne_bytes());
        raw[96..98].copy_from_slice(&(-2i16).to_ne_bytes());
        raw[100..104].copy_from_slice(&(125u32 | 4 << 16).to_ne_bytes()); // "hey\0" at 125
        raw[104..108].copy_from_slice(&((129 - 108) | 4u32 << 16).to_ne_bytes());
        raw[120..124].copy_from_slice(&(133u32 | 8 << 16).to_ne_bytes());
        raw.extend_from_slice(b"hey\0");
        raw.extend_from_slice(&1u16.to_ne_bytes());
        raw.extend_from_slice(&513u16.to_ne_bytes());
        raw.extend_from_slice(&5u64.to_ne_bytes());
        raw
    }

    #[test]
    fn every_kind_of_field_is_read() {
        let format = TracepointFormat::parse("test", FORMAT).unwrap();
        assert_eq!(
            (format.name(), format.id(), format.common_fields().len()),
            ("everything", 1234, 2)
        );
        assert_eq!(format.print_fmt(), "\"%s\nmore\", REC->comm");
        let raw = raw();
        let shown: Vec<String> = format
            .fields()
            .iter()
            .map(|f| format!("{}={}", f.name(), f.value(&raw).unwrap()))
            .collect();
        assert_eq!(
            shown,
            [
                "comm=init",
                "args=[0x7 0x0 0x0 0x0 0x0 0x0]",
                "name=",
                "device=0xffff0000",
                "small=-2",
                "msg=hey",
                "words=[0x1 0x201]",
                "t=000000000000000000000000",
                "mask=[0x5]",
                "on=0",
            ]
        );
        let words = format.field("words").unwrap().elements(&raw).unwrap();
        assert_eq!(words.iter().collect::<Vec<_>>(), [1, 513]);
    }

    /// The kernel says it of the elements.
    #[test]
    fn elements_at_a_location_have_the_sign_of_their_field() {
        for (type_name, signed) in [("size_t", 0), ("struct thing", 0), ("int", 1), ("long", 1)] {
            let text = format!(
                "name: x\nID: 1\n\
                 field:__data_loc {type_name}[] list;\toffset:0;\tsize:4;\tsigned:{signed};\n"
            );
            let format = TracepointFormat::parse("test", &text).unwrap();
            let list = format.field("list").unwrap();
            assert_eq!(list.is_signed(), signed == 1, "{type_name}");
            let raw = [&(4u32 | 8 << 16).to_ne_bytes()[..], &[0xff; 8]].concat();
            let shown = list.value(&raw).unwrap().to_string();
            assert_eq!(shown.contains('-'), signed == 1, "{type_name}: {shown}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(FieldValue::Text(b"a\x1b[31m\xff\n").to_string(), "a\\u{1b}[31m\\xff\\n");
    }

    #[test]
    fn broken_files_are_refused_with_the_place() {
        let refused = |text: &str| match TracepointFormat::parse("s", text) {
            Err(Error::Format { offset, why, .. }) => (offset, why),
            other => panic!("{text:?}: {other:?}"),
        };
        assert_eq!(refused("").1, "no name");
        assert_eq!(refused("name: x\nID: y\n"), (8, "ID is not a number"));
        assert_eq!(refused("name: x\nfield:int a;\n"), (8, "a field without offset or size"));
        assert_eq!(
            refused("name: x\nfield:int;\toffset:0;\tsize:4;\n").1,
            "a field without a name"
        );
        assert_eq!(
            refused("name: x\nfield:int a;\toffset:70000;\tsize:4;\n").1,
            "a field beyond 64 KiB, the size of the biggest record"
        );
    }

    proptest! {
        #[test]
        fn no_data_and_no_file_panics(text: String, raw: Vec<u8>, cut in 0usize..160) {
            let _ = TracepointFormat::parse("s", &text);
            let format = TracepointFormat::parse("test", FORMAT).unwrap();
            let mut full = self::raw();
            for (a, b) in full.iter_mut().zip(&raw) {
                *a ^= b;
            }
            full.truncate(cut);
            for field in format.fields().iter().chain(format.common_fields()) {
                if let Some(value) = field.value(&full) {
                    let _ = value.to_string();
                }
            }
        }
    }
}
