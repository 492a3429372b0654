//! Reads the fields of a payload, each when it is asked for, without copying.

use std::fmt;

use trace_common::{Cursor, ReadError, ReadErrorKind, Timestamp};

use crate::Guid;
use crate::cursor::{bytesz, guid, utf16_to_string, utf16z, varint64};
use crate::types::{Field, FieldType};

/// Text as it is in a payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Text<'a> {
    /// UTF-16, little-endian.
    Utf16(&'a [u8]),
    /// UTF-8.
    Utf8(&'a [u8]),
}

impl Text<'_> {
    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Utf16(bytes) | Self::Utf8(bytes) => bytes.is_empty(),
        }
    }

    /// Whether this is `text`, without making a string of it.
    pub fn is(&self, text: &str) -> bool {
        match self {
            Self::Utf8(bytes) => *bytes == text.as_bytes(),
            Self::Utf16(bytes) => {
                let units = bytes.chunks_exact(2).map(|u| match u {
                    [lo, hi] => u16::from_le_bytes([*lo, *hi]),
                    _ => 0,
                });
                units.eq(text.encode_utf16())
            }
        }
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Utf16(bytes) => f.write_str(&utf16_to_string(bytes)),
            Self::Utf8(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
        }
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

/// A Windows FILETIME: 100 ns since 1601, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime(pub i64);

impl FileTime {
    /// Nanoseconds since the Unix epoch, clamped at the ends of `i64`.
    pub const fn unix(self) -> Timestamp {
        const UNIX_EPOCH: i64 = 116_444_736_000_000_000;
        Timestamp::from_nanos(self.0.saturating_sub(UNIX_EPOCH).saturating_mul(100))
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A truth value.
    Bool(bool),
    /// A UTF-16 code unit.
    Char(u16),
    /// A signed integer of 8 bits.
    I8(i8),
    /// An unsigned integer of 8 bits.
    U8(u8),
    /// A signed integer of 16 bits.
    I16(i16),
    /// An unsigned integer of 16 bits.
    U16(u16),
    /// A signed integer of 32 bits.
    I32(i32),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A signed integer of 64 bits.
    I64(i64),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// An address or handle.
    Pointer(u64),
    /// A single-precision number.
    F32(f32),
    /// A double-precision number.
    F64(f64),
    /// .NET's `decimal`, as its bytes.
    Decimal([u8; 16]),
    /// A date and time.
    DateTime(FileTime),
    /// A GUID.
    Guid(Guid),
    /// Text.
    Text(Text<'a>),
    /// Bytes: arrays of `byte`.
    Bytes(&'a [u8]),
    /// An array.
    Array(Array<'a>),
    /// An object with fields of its own.
    Object(Fields<'a>),
}

impl<'a> Value<'a> {
    /// The value as an unsigned integer, if it is one or a signed one that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Bool(v) => Some(v.into()),
            Self::Char(v) | Self::U16(v) => Some(v.into()),
            Self::U8(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) | Self::Pointer(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a signed integer, if it is an integer and fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v),
            _ => self.as_u64()?.try_into().ok(),
        }
    }

    /// The value as a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => match self.as_i64() {
                Some(v) => Some(v as f64),
                None => self.as_u64().map(|v| v as f64),
            },
        }
    }

    /// The value as text, if it is text.
    pub fn as_text(&self) -> Option<Text<'a>> {
        if let Self::Text(text) = *self { Some(text) } else { None }
    }

    /// The value as an array, if it is one.
    pub fn as_array(&self) -> Option<Array<'a>> {
        if let Self::Array(array) = *self { Some(array) } else { None }
    }

    /// The value as an object, if it is one.
    pub fn as_object(&self) -> Option<Fields<'a>> {
        if let Self::Object(object) = *self { Some(object) } else { None }
    }
}

impl fmt::Display for Value<'_> {
    /// As a person would write it: text without quotes, addresses in hexadecimal, dates as
    /// seconds since the Unix epoch, arrays as `[1, 2]`, objects as `{name=value, …}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => fmt::Display::fmt(v, f),
            Self::Char(v) => match char::from_u32((*v).into()) {
                Some(c) => fmt::Display::fmt(&c, f),
                None => write!(f, "\\u{v:04x}"),
            },
            Self::I8(v) => fmt::Display::fmt(v, f),
            Self::U8(v) => fmt::Display::fmt(v, f),
            Self::I16(v) => fmt::Display::fmt(v, f),
            Self::U16(v) => fmt::Display::fmt(v, f),
            Self::I32(v) => fmt::Display::fmt(v, f),
            Self::U32(v) => fmt::Display::fmt(v, f),
            Self::I64(v) => fmt::Display::fmt(v, f),
            Self::U64(v) => fmt::Display::fmt(v, f),
            Self::Pointer(v) => write!(f, "{v:#x}"),
            Self::F32(v) => fmt::Display::fmt(v, f),
            Self::F64(v) => fmt::Display::fmt(v, f),
            Self::Decimal(bytes) => bytes.iter().try_for_each(|b| write!(f, "{b:02x}")),
            Self::DateTime(v) => fmt::Display::fmt(&v.unix(), f),
            Self::Guid(v) => fmt::Display::fmt(v, f),
            Self::Text(v) => fmt::Display::fmt(v, f),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|b| write!(f, "{b:02x}")),
            Self::Array(array) => {
                f.write_str("[")?;
                for (i, value) in array.enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Object(fields) => {
                f.write_str("{")?;
                for (i, (name, value)) in fields.enumerate() {
                    write!(f, "{}{name}={value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// The elements of an array.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: &'a FieldType,
    count: usize,
    rest: Cursor<'a>,
    payload: &'a [u8],
    pointer_size: u32,
}

impl Array<'_> {
    /// Elements that have not been iterated over.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no element is left.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> Iterator for Array<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.count = self.count.checked_sub(1)?;
        let reader = Reader { payload: self.payload, pointer_size: self.pointer_size };
        let value = reader.value(self.element, &mut self.rest, None);
        if value.is_err() {
            self.count = 0;
        }
        value.ok()
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.eq_by_items(*other)
    }
}

impl<'a> Array<'a> {
    fn eq_by_items(self, other: Array<'_>) -> bool {
        let mut other = other;
        self.count == other.count && { self }.all(|a| other.next().is_some_and(|b| a == b))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// The fields of a payload, or of an object in it: an iterator over names and values.
///
/// It ends where the payload ends: an older writer may have written fewer fields than the
/// manifest knows, and a newer one more.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    fields: &'a [Field],
    /// Index of the next field.
    next: usize,
    /// The object's bytes, from its first field on.
    data: &'a [u8],
    /// Where the next field begins in `data`.
    position: usize,
    payload: &'a [u8],
    pointer_size: u32,
}

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) fn of_payload(fields: &'a [Field], payload: &'a [u8], pointer_size: u32) -> Self {
        Self { fields, next: 0, data: payload, position: 0, payload, pointer_size }
    }

    /// The value of the field with an index.
    #[inline]
    pub fn at(&self, index: usize) -> Option<Value<'a>> {
        let field = self.fields.get(index)?;
        let reader = self.reader();
        if let Some(offset) = field.offset {
            let mut c = Cursor::new(self.data.get(offset as usize..)?);
            return reader.value(&field.ty, &mut c, Some(self)).ok();
        }
        Fields { next: 0, position: 0, ..*self }.nth(index).map(|(_, value)| value)
    }

    /// The value of the field called `name`.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        self.at(self.fields.iter().position(|f| &*f.name == name)?)
    }

    /// The bytes after the fields that have been iterated over.
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    const fn reader(&self) -> Reader<'a> {
        Reader { payload: self.payload, pointer_size: self.pointer_size }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a str, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.fields.get(self.next)?;
        let mut c = Cursor::new(self.data.get(self.position..)?);
        match self.reader().value(&field.ty, &mut c, Some(self)) {
            Ok(value) => {
                self.position += c.position();
                self.next += 1;
                Some((&field.name, value))
            }
            Err(_) => {
                self.next = self.fields.len();
                None
            }
        }
    }
}

impl PartialEq for Fields<'_> {
    fn eq(&self, other: &Self) -> bool {
        let mut other = *other;
        { *self }.all(|a| other.next().is_some_and(|b| a == b)) && other.next().is_none()
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(*self).finish()
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    payload: &'a [u8],
    pointer_size: u32,
}

type Read<T> = Result<T, ReadError>;

impl<'a> Reader<'a> {
    /// The value at the cursor, which is then after it. `siblings` are the fields around it.
    #[inline]
    fn value(
        self,
        ty: &'a FieldType,
        c: &mut Cursor<'a>,
        siblings: Option<&Fields<'a>>,
    ) -> Read<Value<'a>> {
        Ok(match ty {
            FieldType::I32 => Value::I32(c.i32()?),
            FieldType::U32 => Value::U32(c.u32()?),
            FieldType::I64 => Value::I64(c.i64()?),
            FieldType::U64 => Value::U64(c.u64()?),
            FieldType::U16 => Value::U16(c.u16()?),
            FieldType::U8 => Value::U8(c.u8()?),
            FieldType::F64 => Value::F64(c.f64()?),
            FieldType::Bool32 => Value::Bool(c.u32()? != 0),
            FieldType::Utf16 => Value::Text(Text::Utf16(utf16z(c)?)),
            _ => return self.rare_value(ty, c, siblings),
        })
    }

    fn rare_value(
        self,
        ty: &'a FieldType,
        c: &mut Cursor<'a>,
        siblings: Option<&Fields<'a>>,
    ) -> Read<Value<'a>> {
        Ok(match ty {
            FieldType::Bool8 => Value::Bool(c.u8()? != 0),
            FieldType::Utf16Unit => Value::Char(c.u16()?),
            FieldType::Utf8Unit | FieldType::U8 => Value::U8(c.u8()?),
            FieldType::I8 => Value::I8(c.u8()? as i8),
            FieldType::I16 => Value::I16(c.i16()?),
            FieldType::F32 => Value::F32(c.f32()?),
            FieldType::Decimal => Value::Decimal(c.array()?),
            FieldType::DateTime => Value::DateTime(FileTime(c.i64()?)),
            FieldType::Guid => Value::Guid(guid(c)?),
            FieldType::VarInt => Value::I64(varint64(c)?),
            FieldType::VarUInt => Value::U64(c.uvarint()?),
            FieldType::Pointer if self.pointer_size == 4 => Value::Pointer(c.u32()?.into()),
            FieldType::Pointer => Value::Pointer(c.u64()?),
            FieldType::Utf8Z => Value::Text(Text::Utf8(bytesz(c)?)),
            FieldType::Utf8Len16 => {
                let len = c.u16()?;
                Value::Text(Text::Utf8(c.bytes(len.into())?))
            }
            FieldType::Object(fields) => {
                let object = Fields { fields, next: 0, data: c.rest(), position: 0, ..self.none() };
                for field in fields.iter().enumerate() {
                    let (index, field) = field;
                    self.skip(&field.ty, c, Some((&object, index)))?;
                }
                Value::Object(object)
            }
            FieldType::Array(element) => {
                let count = c.u16()?;
                self.array(element, count.into(), c)?
            }
            FieldType::FixedArray(element, count) => self.array(element, (*count).into(), c)?,
            FieldType::Counted(element, by) => {
                let count = siblings.and_then(|s| s.at(*by)).and_then(|v| v.as_u64());
                self.array(element, count.unwrap_or(0) as usize, c)?
            }
            FieldType::RelLoc(element) | FieldType::DataLoc(element) => {
                let at = c.offset();
                let location = c.u32()?;
                let (size, position) = ((location >> 16) as usize, (location & 0xffff) as usize);
                // What is left of the payload after this field is what is left at the cursor.
                let from = match ty {
                    FieldType::RelLoc(_) => self.payload.len().saturating_sub(c.remaining()),
                    _ => 0,
                };
                let start = from + position;
                let Some(data) = self.payload.get(start..start + size) else {
                    let left = self.payload.len().saturating_sub(start);
                    let kind = ReadErrorKind::UnexpectedEnd { wanted: size, left };
                    return Err(ReadError { offset: at, kind });
                };
                let count = match element.fixed_size(self.pointer_size) {
                    Some(0) | None => 0,
                    Some(each) => size / each as usize,
                };
                self.array(element, count, &mut Cursor::new(data))?
            }
            // `value` has the rest.
            _ => return self.value(ty, c, siblings),
        })
    }

    const fn none(self) -> Fields<'a> {
        Fields {
            fields: &[],
            next: 0,
            data: &[],
            position: 0,
            payload: self.payload,
            pointer_size: self.pointer_size,
        }
    }

    /// Goes over a value.
    fn skip(
        self,
        ty: &'a FieldType,
        c: &mut Cursor<'a>,
        place: Option<(&Fields<'a>, usize)>,
    ) -> Read<()> {
        match ty.fixed_size(self.pointer_size) {
            Some(size) => c.skip(size as usize),
            None => self.value(ty, c, place.map(|(siblings, _)| siblings)).map(drop),
        }
    }

    fn array(self, element: &'a FieldType, count: usize, c: &mut Cursor<'a>) -> Read<Value<'a>> {
        let start = *c;
        match element.fixed_size(self.pointer_size) {
            Some(size) => c.skip(count.saturating_mul(size as usize))?,
            None => {
                for _ in 0..count {
                    self.skip(element, c, None)?;
                }
            }
        }
        let bytes = start.rest().get(..c.position() - start.position()).unwrap_or_default();
        Ok(match element {
            FieldType::U8 => Value::Bytes(bytes),
            FieldType::Utf16Unit => Value::Text(Text::Utf16(bytes)),
            FieldType::Utf8Unit => Value::Text(Text::Utf8(bytes)),
            _ => Value::Array(Array {
                element,
                count,
                rest: start,
                payload: self.payload,
                pointer_size: self.pointer_size,
            }),
        })
    }
}
