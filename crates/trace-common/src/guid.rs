use std::fmt;
use std::str::FromStr;

/// A GUID as .NET stores it: one little-endian `u32`, two little-endian `u16` and eight bytes.
///
/// ```
/// use trace_common::Guid;
///
/// let guid: Guid = "00112233-4455-6677-8899-aabbccddeeff".parse()?;
/// assert_eq!(guid.to_bytes()[..4], [0x33, 0x22, 0x11, 0x00]);
/// assert_eq!(guid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
/// # Ok::<(), trace_common::ParseGuidError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid([u8; 16]);

impl Guid {
    /// Sixteen zero bytes: `Guid.Empty` in .NET, and "none" in formats with an optional id.
    pub const EMPTY: Self = Self([0; 16]);

    /// Makes the GUID with these bytes, in .NET's order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, in .NET's order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Makes the GUID whose text form has the hexadecimal digits of `value`.
    pub const fn from_u128(value: u128) -> Self {
        Self(swap(value.to_be_bytes()))
    }

    /// The digits of the text form as a number.
    pub const fn as_u128(self) -> u128 {
        u128::from_be_bytes(swap(self.0))
    }

    /// Whether this is [`Guid::EMPTY`].
    pub const fn is_empty(self) -> bool {
        self.as_u128() == 0
    }
}

/// Reverses the bytes of the three integer fields.
const fn swap(bytes: [u8; 16]) -> [u8; 16] {
    let [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15] = bytes;
    [b3, b2, b1, b0, b5, b4, b7, b6, b8, b9, b10, b11, b12, b13, b14, b15]
}

impl fmt::Display for Guid {
    /// `7b1ad2a4-3f4e-4d7e-9d8c-0a1b2c3d4e5f`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.as_u128();
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            v >> 96,
            (v >> 80) & 0xffff,
            (v >> 64) & 0xffff,
            (v >> 48) & 0xffff,
            v & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for text that is not a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID: expected 32 hexadecimal digits, with or without hyphens and braces")]
pub struct ParseGuidError;

impl FromStr for Guid {
    type Err = ParseGuidError;

    fn from_str(s: &str) -> Result<Self, ParseGuidError> {
        let s = s.strip_prefix('{').and_then(|s| s.strip_suffix('}')).unwrap_or(s);
        let mut value = 0u128;
        let mut digits = 0;
        for c in s.chars().filter(|c| *c != '-') {
            value = (value << 4) | u128::from(c.to_digit(16).ok_or(ParseGuidError)?);
            digits += 1;
            if digits > 32 {
                return Err(ParseGuidError);
            }
        }
        if digits == 32 { Ok(Self::from_u128(value)) } else { Err(ParseGuidError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes() {
        let guid: Guid = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
        assert_eq!(
            guid.to_bytes(),
            [
                0x33, 0x22, 0x11, 0, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
                0xee, 0xff
            ]
        );
        assert_eq!(Guid::from_bytes(guid.to_bytes()), guid);
        assert_eq!(Guid::from_u128(guid.as_u128()), guid);
        assert_eq!(guid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!("{00112233445566778899AABBCCDDEEFF}".parse(), Ok(guid));
        assert!(Guid::EMPTY.is_empty() && !guid.is_empty());
        for bad in [
            "",
            "0011",
            "00112233-4455-6677-8899-aabbccddeeff0",
            "zz112233445566778899aabbccddeeff",
        ] {
            assert_eq!(bad.parse::<Guid>(), Err(ParseGuidError));
        }
    }
}
