//! FNV-1a with 64 bits: also in Go's standard library, and sufficient to compare texts.

/// A digest of bytes that arrive in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The digest of all bytes so far.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// The digest of `bytes`.
#[must_use]
pub fn of(bytes: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.update(bytes);
    digest.value()
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_answers() {
        // From the reference implementation's own test vectors.
        assert_eq!(super::of(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::of(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::of(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
