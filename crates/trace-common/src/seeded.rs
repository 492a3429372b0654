//! Hashing of identifiers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// Hashes the identifiers of untrusted input with one multiplication.
///
/// The seed is random and the same for the whole process, so input cannot choose identifiers that
/// collide. It is meant for integers of 64 bits; other keys are hashed byte by byte, which is slow.
///
/// ```
/// use std::collections::HashMap;
/// use trace_common::SeededState;
///
/// let mut names: HashMap<u64, &str, SeededState> = HashMap::default();
/// names.insert(17, "worker");
/// assert_eq!(names.get(&17), Some(&"worker"));
/// ```
#[derive(Clone, Debug)]
pub struct SeededState(u64);

impl Default for SeededState {
    fn default() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        Self(*SEED.get_or_init(|| RandomState::new().hash_one(0u64)))
    }
}

impl BuildHasher for SeededState {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

/// The hasher of a [`SeededState`].
#[derive(Debug)]
pub struct SeededHasher(u64);

impl Hasher for SeededHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        // The two halves of a 128-bit product folded: every bit of the input moves every bit.
        let product = u128::from(value ^ self.0) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    #[inline]
    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
}
