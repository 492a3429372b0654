use std::fmt;

use crate::payload::{Array, Object};
use crate::strings::utf16_to_string;
use crate::{FileTime, Guid};

/// Text in the encoding of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Text<'a> {
    /// UTF-16, little-endian.
    Utf16(&'a [u8]),
    /// UTF-8.
    Utf8(&'a [u8]),
}

impl Text<'_> {
    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Utf16(bytes) | Self::Utf8(bytes) => bytes.is_empty(),
        }
    }

    /// Whether it equals `text`, without allocating a string.
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
    /// .NET's `decimal`, as raw bytes.
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
    Object(Object<'a>),
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

    /// The value as a floating-point number, if it is a number.
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
    pub fn as_object(&self) -> Option<Object<'a>> {
        if let Self::Object(object) = *self { Some(object) } else { None }
    }
}

impl fmt::Display for Value<'_> {
    /// Text without quotes, addresses in hexadecimal, dates in ISO 8601, arrays as `[1, 2]`,
    /// objects as `{name=value, …}`.
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
            Self::DateTime(v) => fmt::Display::fmt(v, f),
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
