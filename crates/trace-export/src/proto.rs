//! A writer of protobuf messages whose lengths need not be known in advance.

/// Bytes of messages under construction.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
}

/// A message that is being written; [`Buffer::close`] it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Open {
    /// Start of its content, after a length of one byte.
    start: usize,
}

/// A large message that is being written; [`Buffer::close_large`] it.
#[derive(Debug)]
#[must_use]
pub(crate) struct OpenLarge {
    /// Start of its content, after a length of four bytes.
    start: usize,
}

pub(crate) const VARINT: u32 = 0;
const FIXED64: u32 = 1;
pub(crate) const LENGTH_DELIMITED: u32 = 2;

/// A varint of at most four bytes as a number, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) bytes: u32,
    /// From 1 to 4; 0 of [`Packed::NONE`].
    pub(crate) len: u32,
}

impl Packed {
    /// A value below 128.
    #[inline]
    pub(crate) const fn byte(value: u8) -> Self {
        debug_assert!(value < 0x80);
        Self { bytes: value as u32, len: 1 }
    }

    /// No bytes, which no value takes.
    pub(crate) const NONE: Self = Self { bytes: 0, len: 0 };

    /// `None` if it needs more than four bytes.
    #[inline]
    pub(crate) const fn new(value: u64) -> Option<Self> {
        match value {
            0..0x4000 => {
                // Without a branch: one and two bytes are hard to predict.
                let (low, high) = (value as u32 & 0x7f, value as u32 >> 7);
                let is_long = (high != 0) as u32;
                Some(Self { bytes: low | is_long << 7 | high << 8, len: 1 + is_long })
            }
            0x4000..0x1000_0000 => Some(Self::long(value as u32)),
            _ => None,
        }
    }

    /// A value of three or four bytes.
    const fn long(value: u32) -> Self {
        let groups = value & 0x7f
            | (value & 0x7f << 7) << 1
            | (value & 0x7f << 14) << 2
            | (value & 0x7f << 21) << 3;
        let is_longer = (value >= 1 << 21) as u32;
        Self { bytes: groups | 0x8080 | is_longer << 23, len: 3 + is_longer }
    }

    pub(crate) const fn is_none(self) -> bool {
        self.len == 0
    }
}

/// A part of a message as a number, little endian: at most 8 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    bytes: u64,
    pub(crate) len: u32,
}

impl Part {
    pub(crate) const NONE: Self = Self { bytes: 0, len: 0 };

    /// The first `len` bytes of `bytes`.
    #[inline]
    pub(crate) const fn new(bytes: u64, len: u32) -> Self {
        Self { bytes, len }
    }

    /// A field whose number is below 2048.
    #[inline]
    pub(crate) const fn varint(field: u32, value: Packed) -> Self {
        let tag = field << 3 | VARINT;
        let (tag, len) = match tag {
            0..0x80 => (tag, 1),
            _ => (tag & 0x7f | 0x80 | tag >> 7 << 8, 2),
        };
        Self { bytes: tag as u64 | (value.bytes as u64) << (8 * len), len: len + value.len }
    }

    /// Both, of at most 8 bytes.
    #[inline]
    pub(crate) const fn then(self, next: Self) -> Self {
        Self { bytes: self.bytes | next.bytes << (8 * self.len), len: self.len + next.len }
    }
}

/// Bytes that [`Buffer::parts`] can write, and 8 that the last part may write over.
const PARTS: usize = 48;

/// Where [`Buffer::parts`] writes.
pub(crate) struct Parts<'a> {
    room: &'a mut [u8; PARTS],
    len: usize,
}

impl Parts<'_> {
    #[inline]
    pub(crate) fn put(&mut self, part: Part) {
        if let Some(place) = self.room.get_mut(self.len..self.len + 8) {
            place.copy_from_slice(&part.bytes.to_le_bytes());
        }
        self.len += part.len as usize;
        debug_assert!(self.len <= PARTS - 8);
    }
}

impl Buffer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes.
    #[cfg(feature = "profile")]
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the bytes, to append to them.
    #[cfg(feature = "compress")]
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Writes bytes that are encoded already.
    #[inline]
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes parts of at most 40 bytes in total.
    ///
    /// Each is one store, and copies of a fixed size are no calls. Numbers of 16 bytes would take
    /// fewer stores, and more instructions to put together.
    #[inline]
    pub(crate) fn parts(&mut self, write: impl FnOnce(&mut Parts<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; PARTS]);
        let Some(room) = self.bytes.last_chunk_mut() else { return };
        let mut parts = Parts { room, len: 0 };
        write(&mut parts);
        let len = parts.len;
        self.bytes.truncate(start + len);
    }

    #[inline]
    pub(crate) fn plain_varint(&mut self, value: u64) {
        if value < 0x80 {
            self.bytes.push(value as u8);
            return;
        }
        match Packed::new(value) {
            Some(Packed { bytes, len }) => {
                self.parts(|parts| parts.put(Part::new(bytes.into(), len)));
            }
            None => self.long_varint(value),
        }
    }

    /// Writes the elements of a packed field.
    #[inline]
    pub(crate) fn packed(&mut self, values: &[u64]) {
        let all = values.iter().fold(0, |all, value| all | value);
        let mut end = self.bytes.len();
        match all {
            // Most columns have small numbers only.
            0..0x80 => self.bytes.extend(values.iter().map(|value| *value as u8)),
            0x80..0x4000 => {
                self.bytes.resize(end + 2 * values.len(), 0);
                for value in values {
                    let (low, high) = (*value as u16 & 0x7f, *value as u16 >> 7);
                    let is_long = u16::from(high != 0);
                    if let Some(place) = self.bytes.get_mut(end..end + 2) {
                        place.copy_from_slice(&(low | is_long << 7 | high << 8).to_le_bytes());
                    }
                    end += 1 + usize::from(is_long);
                }
                self.bytes.truncate(end);
            }
            0x4000..0x1000_0000 => {
                self.bytes.resize(end + 4 * values.len(), 0);
                for Packed { bytes, len } in values.iter().copied().filter_map(Packed::new) {
                    if let Some(place) = self.bytes.get_mut(end..end + 4) {
                        place.copy_from_slice(&bytes.to_le_bytes());
                    }
                    end += len as usize;
                }
                self.bytes.truncate(end);
            }
            _ => values.iter().for_each(|value| self.plain_varint(*value)),
        }
    }

    #[cold]
    fn long_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    #[inline]
    fn tag(&mut self, field: u32, wire_type: u32) {
        self.plain_varint(u64::from(field << 3 | wire_type));
    }

    /// Writes a field whose number is below 2048.
    // Always inline: most numbers of fields are constants, and half of it is then known.
    #[inline(always)]
    pub(crate) fn varint(&mut self, field: u32, value: u64) {
        match Packed::new(value) {
            Some(value) => self.parts(|parts| parts.put(Part::varint(field, value))),
            None => self.long_field(field, value),
        }
    }

    #[cold]
    fn long_field(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        self.long_varint(value);
    }

    /// Writes an `int32` or `int64`: negative numbers take ten bytes.
    #[inline]
    pub(crate) fn int(&mut self, field: u32, value: i64) {
        self.varint(field, value as u64);
    }

    #[inline]
    pub(crate) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, FIXED64);
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, LENGTH_DELIMITED);
        self.plain_varint(value.len() as u64);
        self.raw(value);
    }

    /// Writes a `string`, which must be UTF-8: invalid bytes become U+FFFD.
    pub(crate) fn text(&mut self, field: u32, value: &[u8]) {
        if std::str::from_utf8(value).is_ok() {
            return self.bytes(field, value);
        }
        let message = self.open(field);
        for chunk in value.utf8_chunks() {
            self.raw(chunk.valid().as_bytes());
            if !chunk.invalid().is_empty() {
                self.raw("\u{fffd}".as_bytes());
            }
        }
        self.close(message);
    }

    /// Begins a message that is likely to be shorter than 128 bytes.
    #[inline]
    pub(crate) fn open(&mut self, field: u32) -> Open {
        self.tag(field, LENGTH_DELIMITED);
        self.bytes.push(0);
        Open { start: self.bytes.len() }
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "opening it wrote its length: it starts behind that byte"
    )]
    pub(crate) fn close(&mut self, message: Open) {
        let len = self.bytes.len() - message.start;
        if len < 0x80 {
            self.bytes[message.start - 1] = len as u8;
        } else {
            self.close_long(message.start, len);
        }
    }

    /// The length needs more than the one reserved byte: makes room.
    #[cold]
    fn close_long(&mut self, start: usize, len: usize) {
        let mut encoded = Self::default();
        encoded.plain_varint(len as u64);
        self.bytes.splice(start - 1..start, encoded.bytes);
    }

    /// Begins a message that may be long. Its length always takes four bytes, which every reader of
    /// protobuf accepts; it must be below 2^28.
    #[inline]
    pub(crate) fn open_large(&mut self, field: u32) -> OpenLarge {
        self.tag(field, LENGTH_DELIMITED);
        self.raw(&[0; 4]);
        OpenLarge { start: self.bytes.len() }
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "opening it wrote its length: it starts behind those bytes"
    )]
    pub(crate) fn close_large(&mut self, message: OpenLarge) {
        let len = self.bytes.len() - message.start;
        debug_assert!(len < 1 << 28);
        let byte = |i: u32| (len >> (7 * i)) as u8 & 0x7f | if i < 3 { 0x80 } else { 0 };
        let place = message.start - 4..message.start;
        self.bytes[place].copy_from_slice(&[byte(0), byte(1), byte(2), byte(3)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Buffer)) -> Vec<u8> {
        let mut buffer = Buffer::default();
        write(&mut buffer);
        buffer.bytes
    }

    #[test]
    fn scalars() {
        // The example of the protobuf documentation: field 1 is 150.
        assert_eq!(written(|b| b.varint(1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(written(|b| b.bytes(2, b"testing")), b"\x12\x07testing");
        assert_eq!(written(|b| b.int(58, -1)).len(), 2 + 10);
        assert_eq!(written(|b| b.fixed64(47, 1)), [0xf9, 0x02, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(written(|b| b.text(1, b"a\xffb")), b"\x0a\x05a\xef\xbf\xbdb");
    }

    #[test]
    fn varints_of_any_length() {
        for bits in 0..64 {
            for value in [(1 << bits) - 1, 1 << bits] {
                let bytes = written(|b| b.plain_varint(value));
                let mut cursor = trace_common::Cursor::new(&bytes);
                assert_eq!((cursor.uvarint().unwrap(), cursor.rest()), (value, &[][..]));
                for field in [1, 15, 16, 87] {
                    let whole = written(|b| b.varint(field, value));
                    let tag = written(|b| b.plain_varint(u64::from(field) << 3));
                    assert_eq!(whole, [&tag[..], &bytes[..]].concat());
                }
            }
        }
    }

    #[test]
    fn packed_fields_are_those_of_one_varint_each() {
        for limit in [0x80, 1 << 14, 1 << 28, u64::MAX] {
            let values: Vec<u64> =
                (0..200).map(|n: u64| n.pow(8) % limit).chain([limit - 1]).collect();
            let each = written(|b| values.iter().for_each(|value| b.plain_varint(*value)));
            let packed = written(|b| {
                b.raw(&[7]);
                b.packed(&values);
                b.raw(&[9]);
            });
            assert_eq!(packed, [&[7][..], &each, &[9]].concat());
        }
    }

    #[test]
    fn messages_of_any_length() {
        for len in [0, 1, 127, 128, 20_000] {
            let inner = vec![7u8; len];
            let expected = written(|b| b.bytes(3, &inner));
            let small = written(|b| {
                let m = b.open(3);
                b.raw(&inner);
                b.close(m);
            });
            assert_eq!(small, expected);
            let large = written(|b| {
                let m = b.open_large(3);
                b.raw(&inner);
                b.close_large(m);
            });
            let mut length = trace_common::Cursor::new(&large[1..5]);
            assert_eq!(length.uvarint().unwrap(), len as u64);
            assert_eq!(&large[5..], inner);
        }
        // Nested messages whose lengths both need more than one byte.
        let nested = written(|b| {
            let outer = b.open(1);
            let inner = b.open(2);
            b.raw(&[9; 200]);
            b.close(inner);
            b.close(outer);
        });
        assert_eq!(&nested[..6], [0x0a, 0xcb, 0x01, 0x12, 0xc8, 0x01]);
    }
}
