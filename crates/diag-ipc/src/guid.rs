use std::fmt;
use std::str::FromStr;

/// A GUID: on the wire one little-endian `u32`, two little-endian `u16` and eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(u128);

impl Guid {
    /// The GUID whose text form is the hexadecimal digits of `value`.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// The digits of the text form as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Decodes the wire form.
    pub const fn from_wire(mut bytes: [u8; 16]) -> Self {
        swap(&mut bytes);
        Self(u128::from_be_bytes(bytes))
    }

    /// The wire form.
    pub const fn to_wire(self) -> [u8; 16] {
        let mut bytes = self.0.to_be_bytes();
        swap(&mut bytes);
        bytes
    }
}

/// Turns the integer fields around.
const fn swap(b: &mut [u8; 16]) {
    let [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15] = *b;
    *b = [b3, b2, b1, b0, b5, b4, b7, b6, b8, b9, b10, b11, b12, b13, b14, b15];
}

impl fmt::Display for Guid {
    /// `7b1ad2a4-3f4e-4d7e-9d8c-0a1b2c3d4e5f`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
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

/// Text that is not a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID: 32 hexadecimal digits are expected, with or without hyphens and braces")]
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
        if digits == 32 { Ok(Self(value)) } else { Err(ParseGuidError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_wire_forms() {
        let guid: Guid = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
        assert_eq!(
            guid.to_wire(),
            [
                0x33, 0x22, 0x11, 0, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
                0xee, 0xff
            ]
        );
        assert_eq!(Guid::from_wire(guid.to_wire()), guid);
        assert_eq!(guid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!("{00112233445566778899AABBCCDDEEFF}".parse(), Ok(guid));
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
