//! Strings and variable-length integers of NetTrace.

use std::borrow::Cow;

use trace_common::{Cursor, ReadError, ReadErrorKind};

use crate::Guid;

/// A NUL-terminated UTF-16 string as its bytes, without the NUL.
pub(crate) fn utf16z<'a>(c: &mut Cursor<'a>) -> Result<&'a [u8], ReadError> {
    let rest = c.rest();
    match rest.chunks_exact(2).position(|unit| unit == [0, 0]) {
        Some(units) => {
            let bytes = c.bytes(units * 2)?;
            c.skip(2)?;
            Ok(bytes)
        }
        None => Err(ReadError {
            offset: c.offset(),
            kind: ReadErrorKind::UnexpectedEnd { wanted: rest.len() + 2, left: rest.len() },
        }),
    }
}

/// A NUL-terminated string of bytes, without the NUL.
pub(crate) fn bytesz<'a>(c: &mut Cursor<'a>) -> Result<&'a [u8], ReadError> {
    let rest = c.rest();
    match rest.iter().position(|&b| b == 0) {
        Some(len) => {
            let bytes = c.bytes(len)?;
            c.skip(1)?;
            Ok(bytes)
        }
        None => Err(ReadError {
            offset: c.offset(),
            kind: ReadErrorKind::UnexpectedEnd { wanted: rest.len() + 1, left: rest.len() },
        }),
    }
}

/// UTF-16LE bytes as text; unpaired surrogates become U+FFFD.
pub(crate) fn utf16_to_string(bytes: &[u8]) -> String {
    char::decode_utf16(bytes.chunks_exact(2).map(|u| match u {
        [lo, hi] => u16::from_le_bytes([*lo, *hi]),
        _ => 0,
    }))
    .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
    .collect()
}

/// A NUL-terminated UTF-16 string as text.
pub(crate) fn string16(c: &mut Cursor<'_>) -> Result<String, ReadError> {
    utf16z(c).map(utf16_to_string)
}

/// A string of version 6: UTF-8 with its length as a varuint32 before it.
pub(crate) fn utf8<'a>(c: &mut Cursor<'a>) -> Result<Cow<'a, str>, ReadError> {
    let len = varuint32(c)? as usize;
    Ok(String::from_utf8_lossy(c.bytes(len)?))
}

/// A varuint that must fit in 32 bits.
#[inline]
pub(crate) fn varuint32(c: &mut Cursor<'_>) -> Result<u32, ReadError> {
    let offset = c.offset();
    u32::try_from(c.uvarint()?)
        .map_err(|_| ReadError { offset, kind: ReadErrorKind::VarintOverflow })
}

/// A zigzag varint of 64 bits.
pub(crate) fn varint64(c: &mut Cursor<'_>) -> Result<i64, ReadError> {
    let v = c.uvarint()?;
    Ok((v >> 1) as i64 ^ -((v & 1) as i64))
}

pub(crate) fn guid(c: &mut Cursor<'_>) -> Result<Guid, ReadError> {
    c.array().map(Guid::from_bytes)
}
