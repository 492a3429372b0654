//! Primitives of FastSerialization, the container of `.gcdump` files.
//!
//! Integers are little-endian. A string is its length in UTF-16 units as `i32` (-1 is null), then
//! each unit as one, two or three bytes of UTF-8 (surrogates are encoded one by one). An object is
//! a tag, its type (an object itself), its fields and an end tag. Labels are 32-bit file offsets.

use trace_common::Cursor;

pub(super) const SIGNATURE: &[u8] = b"!FastSerialization.1";

pub(super) const NULL_REFERENCE: u8 = 1;
pub(super) const OBJECT_REFERENCE: u8 = 2;
pub(super) const BEGIN_OBJECT: u8 = 4;
pub(super) const END_OBJECT: u8 = 6;
pub(super) const BYTE: u8 = 8;
pub(super) const INT16: u8 = 9;
pub(super) const INT32: u8 = 10;
pub(super) const INT64: u8 = 11;
pub(super) const SKIP_REGION: u8 = 12;
pub(super) const STRING: u8 = 13;
pub(super) const BLOB: u8 = 14;

/// Appends a string, or null.
pub(super) fn put_string(out: &mut Vec<u8>, text: Option<&str>) {
    let Some(text) = text else {
        out.extend((-1i32).to_le_bytes());
        return;
    };
    let length_at = out.len();
    out.extend([0; 4]);
    let mut length = 0i32;
    for unit in text.encode_utf16() {
        length += 1;
        let [high, low] = [(unit >> 6) as u8, (unit & 0x3f) as u8];
        match unit {
            0..0x80 => out.push(unit as u8),
            0x80..0x800 => out.extend([0xc0 | high, 0x80 | low]),
            _ => out.extend([0xe0 | (unit >> 12) as u8, 0x80 | (high & 0x3f), 0x80 | low]),
        }
    }
    if let Some(place) = out.get_mut(length_at..length_at + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

/// Reads a string; `Ok(None)` is null. Unpaired surrogates become U+FFFD.
pub(super) fn string(c: &mut Cursor<'_>) -> Result<Option<String>, trace_common::ReadError> {
    let Ok(length) = usize::try_from(c.i32()?) else { return Ok(None) };
    // Each unit takes at least one byte, so the input bounds the allocation.
    let mut units = Vec::with_capacity(length.min(c.remaining()));
    for _ in 0..length {
        let first = u16::from(c.u8()?);
        units.push(match first {
            0..0x80 => first,
            0x80..0xe0 => (first & 0x1f) << 6 | low_bits(c.u8()?),
            _ => (first & 0xf) << 12 | low_bits(c.u8()?) << 6 | low_bits(c.u8()?),
        });
    }
    Ok(Some(String::from_utf16_lossy(&units)))
}

fn low_bits(byte: u8) -> u16 {
    u16::from(byte & 0x3f)
}

/// Appends a signed integer in groups of 7 bits, the most significant group first.
pub(super) fn put_compressed(out: &mut Vec<u8>, value: i32) {
    // The first group carries the sign in its bit 6.
    let groups = (1..5).find(|n| fits(value, 7 * n)).unwrap_or(5);
    for group in (1..groups).rev() {
        out.push((value >> (7 * group)) as u8 | 0x80);
    }
    out.push(value as u8 & 0x7f);
}

fn fits(value: i32, bits: u32) -> bool {
    value << (32 - bits) >> (32 - bits) == value
}

/// Reads an integer that [`put_compressed`] wrote.
pub(super) fn compressed(c: &mut Cursor<'_>) -> Result<i32, trace_common::ReadError> {
    let mut byte = c.u8()?;
    let mut value = i32::from(byte) << 25 >> 25;
    for _ in 1..5 {
        if byte & 0x80 == 0 {
            break;
        }
        byte = c.u8()?;
        value = value << 7 | i32::from(byte & 0x7f);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn compressed_integers_take_the_bytes_that_the_format_says() {
        for (value, bytes) in [
            (0, vec![0x00]),
            (63, vec![0x3f]),
            (-64, vec![0x40]),
            (64, vec![0x80, 0x40]),
            (-65, vec![0xff, 0x3f]),
            (i32::MAX, vec![0x87, 0xff, 0xff, 0xff, 0x7f]),
            (i32::MIN, vec![0xf8, 0x80, 0x80, 0x80, 0x00]),
        ] {
            let mut out = Vec::new();
            put_compressed(&mut out, value);
            assert_eq!(out, bytes, "{value}");
        }
    }

    proptest! {
        #[test]
        fn compressed_integers_round_trip(values: Vec<i32>) {
            let mut out = Vec::new();
            for &value in &values {
                put_compressed(&mut out, value);
            }
            let mut c = Cursor::new(&out);
            for value in values {
                prop_assert_eq!(compressed(&mut c), Ok(value));
            }
            prop_assert!(c.is_empty());
        }

        #[test]
        fn strings_round_trip(text: Option<String>) {
            let mut out = Vec::new();
            put_string(&mut out, text.as_deref());
            let mut c = Cursor::new(&out);
            prop_assert_eq!(string(&mut c), Ok(text));
            prop_assert!(c.is_empty());
        }
    }
}
