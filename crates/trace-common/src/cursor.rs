/// A bounds-checked reader over borrowed bytes.
///
/// All multi-byte integers are little-endian, as in every format of this workspace. A failed read
/// leaves the position unchanged and reports its offset in the *whole input*: see
/// [`Cursor::with_base`].
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
    base: u64,
}

/// The error of a failed read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct ReadError {
    /// Offset of the item that could not be read, from the start of the whole input.
    pub offset: u64,
    /// The cause.
    pub kind: ReadErrorKind,
}

/// The cause of a [`ReadError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadErrorKind {
    /// Fewer bytes are left than the item needs.
    #[error("unexpected end of data: {wanted} bytes wanted, {left} left")]
    UnexpectedEnd {
        /// Number of bytes that the item needs; for a variable-length integer, one more than are
        /// left.
        wanted: usize,
        /// Number of bytes that are left.
        left: usize,
    },
    /// A variable-length integer does not fit in 64 bits.
    #[error("variable-length integer overflows 64 bits")]
    VarintOverflow,
}

macro_rules! little_endian {
    ($($name:ident: $ty:ty),*) => {$(
        #[doc = concat!("Reads a little-endian `", stringify!($ty), "`.")]
        ///
        /// # Errors
        ///
        /// [`ReadErrorKind::UnexpectedEnd`] if fewer bytes are left; the position does not change.
        #[inline]
        pub fn $name(&mut self) -> Result<$ty, ReadError> {
            self.array().map(<$ty>::from_le_bytes)
        }
    )*};
}

impl<'a> Cursor<'a> {
    /// Makes a cursor at the start of `data`; offsets count from 0.
    #[inline]
    pub const fn new(data: &'a [u8]) -> Self {
        Self::with_base(data, 0)
    }

    /// Makes a cursor at the start of `data`, which itself begins at offset `base` of the input.
    #[inline]
    pub const fn with_base(data: &'a [u8], base: u64) -> Self {
        Self { data, pos: 0, base }
    }

    /// Offset of the next byte, from the start of the whole input.
    #[inline]
    pub const fn offset(&self) -> u64 {
        self.base + self.pos as u64
    }

    /// Index of the next byte in the slice given to [`Cursor::new`].
    #[inline]
    pub const fn position(&self) -> usize {
        self.pos
    }

    /// Number of bytes that are left.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.data.len() - self.pos
    }

    /// Whether no bytes are left.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.pos == self.data.len()
    }

    /// The remaining bytes, without reading them.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.pos..).unwrap_or_default()
    }

    /// The next byte, without reading it.
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.data.get(self.pos).copied()
    }

    /// Reads `n` bytes.
    ///
    /// # Errors
    ///
    /// [`ReadErrorKind::UnexpectedEnd`] if fewer bytes are left; the position does not change.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], ReadError> {
        match self.rest().get(..n) {
            Some(bytes) => {
                self.pos += n;
                Ok(bytes)
            }
            None => Err(self.short(n)),
        }
    }

    /// Reads `N` bytes as an array.
    ///
    /// # Errors
    ///
    /// [`ReadErrorKind::UnexpectedEnd`] if fewer bytes are left; the position does not change.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        match self.rest().first_chunk::<N>() {
            Some(bytes) => {
                self.pos += N;
                Ok(*bytes)
            }
            None => Err(self.short(N)),
        }
    }

    /// Reads `n` bytes as a separate cursor, whose offsets still count from the start of the whole
    /// input.
    ///
    /// # Errors
    ///
    /// [`ReadErrorKind::UnexpectedEnd`] if fewer bytes are left; the position does not change.
    #[inline]
    pub fn sub(&mut self, n: usize) -> Result<Self, ReadError> {
        let base = self.offset();
        Ok(Self::with_base(self.bytes(n)?, base))
    }

    /// Skips `n` bytes.
    ///
    /// # Errors
    ///
    /// [`ReadErrorKind::UnexpectedEnd`] if fewer bytes are left; the position does not change.
    #[inline]
    pub fn skip(&mut self, n: usize) -> Result<(), ReadError> {
        self.bytes(n).map(drop)
    }

    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// [`ReadErrorKind::UnexpectedEnd`] if fewer bytes are left; the position does not change.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, ReadError> {
        self.array::<1>().map(|[b]| b)
    }

    little_endian!(u16: u16, u32: u32, u64: u64, i16: i16, i32: i32, i64: i64, f32: f32, f64: f64);

    /// Reads an unsigned LEB128 integer of at most 64 bits.
    ///
    /// Padded encodings (trailing groups of zero) are accepted up to ten bytes, as Go's
    /// `binary.ReadUvarint` does.
    ///
    /// # Errors
    ///
    /// [`ReadErrorKind::UnexpectedEnd`] if the data ends within the integer, and
    /// [`ReadErrorKind::VarintOverflow`] if it does not fit in 64 bits; the position does not change.
    #[inline]
    pub fn uvarint(&mut self) -> Result<u64, ReadError> {
        // Most integers of a trace fit in one byte, and most others in two.
        match *self.rest() {
            [b, ..] if b < 0x80 => {
                self.pos += 1;
                Ok(u64::from(b))
            }
            [b, b2, ..] if b2 < 0x80 => {
                self.pos += 2;
                Ok(u64::from(b & 0x7f) | u64::from(b2) << 7)
            }
            _ => self.uvarint_long(),
        }
    }

    fn uvarint_long(&mut self) -> Result<u64, ReadError> {
        let mut value = 0u64;
        let rest = self.rest();
        for (i, &b) in rest.iter().take(10).enumerate() {
            if i == 9 && b > 1 {
                return Err(self.error(ReadErrorKind::VarintOverflow));
            }
            value |= u64::from(b & 0x7f) << (7 * i);
            if b < 0x80 {
                self.pos += i + 1;
                return Ok(value);
            }
        }
        if rest.len() >= 10 {
            return Err(self.error(ReadErrorKind::VarintOverflow));
        }
        Err(self.short(rest.len() + 1))
    }

    #[cold]
    fn short(&self, wanted: usize) -> ReadError {
        self.error(ReadErrorKind::UnexpectedEnd { wanted, left: self.remaining() })
    }

    #[cold]
    fn error(&self, kind: ReadErrorKind) -> ReadError {
        ReadError { offset: self.offset(), kind }
    }
}

/// Appends an unsigned LEB128 integer, as [`Cursor::uvarint`] reads it, without padding.
///
/// ```
/// let mut bytes = Vec::new();
/// trace_common::append_uvarint(624_485, &mut bytes);
/// assert_eq!(bytes, [0xe5, 0x8e, 0x26]);
/// ```
#[inline]
pub fn append_uvarint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_report_the_offset_in_the_whole_input() {
        let mut c = Cursor::with_base(&[1, 2, 3], 100);
        assert_eq!(c.u16().unwrap(), 0x0201);
        let err = c.u32().unwrap_err();
        assert_eq!(err.offset, 102);
        assert_eq!(err.kind, ReadErrorKind::UnexpectedEnd { wanted: 4, left: 1 });
        assert_eq!(c.remaining(), 1, "a failed read does not move the cursor");
        let sub = c.sub(1).unwrap();
        assert_eq!((sub.offset(), sub.remaining(), c.offset()), (102, 1, 103));
    }

    #[test]
    fn varints_are_written_without_padding() {
        let written = |value| {
            let mut bytes = Vec::new();
            append_uvarint(value, &mut bytes);
            bytes
        };
        assert_eq!((written(0), written(0x7f)), (vec![0], vec![0x7f]));
        assert_eq!((written(0x80), written(0x3fff)), (vec![0x80, 1], vec![0xff, 0x7f]));
        assert_eq!(written(u64::MAX), [&[0xff_u8; 9][..], &[1]].concat());
    }

    #[test]
    fn padded_varints_are_accepted_to_ten_bytes_and_no_further() {
        let padded = [0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00];
        assert_eq!(Cursor::new(&padded).uvarint(), Ok(1));
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Cursor::new(&max).uvarint(), Ok(u64::MAX));
        for bad in [
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
        ] {
            let err = Cursor::new(&bad).uvarint().unwrap_err();
            assert_eq!((err.offset, err.kind), (0, ReadErrorKind::VarintOverflow));
        }
        let err = Cursor::new(&[0x80, 0x80]).uvarint().unwrap_err();
        assert_eq!(err.kind, ReadErrorKind::UnexpectedEnd { wanted: 3, left: 2 });
    }

    proptest! {
        #[test]
        fn varints_round_trip(values: Vec<u64>, cut in 0usize..64) {
            let mut bytes = Vec::new();
            for &v in &values {
                append_uvarint(v, &mut bytes);
            }
            let mut c = Cursor::new(&bytes);
            for &v in &values {
                prop_assert_eq!(c.uvarint(), Ok(v));
            }
            prop_assert!(c.is_empty());

            // Truncated anywhere, it ends with an error and never reads past the end.
            let mut c = Cursor::new(&bytes[..cut.min(bytes.len())]);
            while c.uvarint().is_ok() {}
            prop_assert!(c.offset() as usize <= cut);
        }
    }
}
