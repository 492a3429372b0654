//! Integers of one, two or four bytes, as ECMA-335 II.23.2 describes them.

use crate::error::{Result, Unresolved, malformed};
use trace_common::Cursor;

/// Reads the bits of an integer, and how many there are.
fn bits(cursor: &mut Cursor<'_>, what: &'static str) -> Result<(u32, u32)> {
    let offset = cursor.offset();
    let short = malformed(what);
    let first = cursor.u8().map_err(&short)?;
    let mut next = || cursor.u8().map_err(&short).map(u32::from);
    let first = u32::from(first);
    if first & 0x80 == 0 {
        Ok((first, 7))
    } else if first & 0xc0 == 0x80 {
        Ok(((first & 0x3f) << 8 | next()?, 14))
    } else if first & 0xe0 == 0xc0 {
        Ok(((first & 0x1f) << 24 | next()? << 16 | next()? << 8 | next()?, 29))
    } else {
        Err(Unresolved::Malformed { what, offset })
    }
}

/// Reads an unsigned integer.
pub(super) fn unsigned(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u32> {
    bits(cursor, what).map(|(value, _)| value)
}

/// Reads a signed integer: the sign is the lowest bit.
pub(super) fn signed(cursor: &mut Cursor<'_>, what: &'static str) -> Result<i32> {
    let (value, width) = bits(cursor, what)?;
    let magnitude = (value >> 1) as i32;
    Ok(if value & 1 == 0 { magnitude } else { magnitude - (1 << (width - 1)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the standard.
    #[test]
    fn integers_of_the_standard() {
        let read = |bytes: &[u8]| unsigned(&mut Cursor::new(bytes), "a number").unwrap();
        for (value, bytes) in [
            (0x03, &[0x03][..]),
            (0x7f, &[0x7f]),
            (0x80, &[0x80, 0x80]),
            (0x2e57, &[0xae, 0x57]),
            (0x3fff, &[0xbf, 0xff]),
            (0x4000, &[0xc0, 0x00, 0x40, 0x00]),
            (0x1fff_ffff, &[0xdf, 0xff, 0xff, 0xff]),
        ] {
            assert_eq!(read(bytes), value);
        }
        let read = |bytes: &[u8]| signed(&mut Cursor::new(bytes), "a number").unwrap();
        for (value, bytes) in [
            (3, &[0x06][..]),
            (-3, &[0x7b]),
            (64, &[0x80, 0x80]),
            (-64, &[0x01]),
            (8192, &[0xc0, 0x00, 0x40, 0x00]),
            (-8192, &[0x80, 0x01]),
            (268_435_455, &[0xdf, 0xff, 0xff, 0xfe]),
            (-268_435_456, &[0xc0, 0x00, 0x00, 0x01]),
        ] {
            assert_eq!(read(bytes), value);
        }
    }

    #[test]
    fn other_bytes_are_errors() {
        for bytes in [&[][..], &[0x80], &[0xc0, 0, 0], &[0xff]] {
            let found = unsigned(&mut Cursor::with_base(bytes, 7), "a number");
            assert!(
                matches!(found, Err(Unresolved::Malformed { offset: 7..=10, .. })),
                "{bytes:?} {found:?}"
            );
        }
    }
}
