//! A writer of protobuf messages whose lengths need not be known in advance.

/// Bytes of messages under construction.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
}

/// A message that is being written; [`Buffer::close`] it.
#[derive(Debug)]
#[must_use]
pub(super) struct Open {
    /// Start of its content, after a length of one byte.
    start: usize,
}

/// A large message that is being written; [`Buffer::close_large`] it.
#[derive(Debug)]
#[must_use]
pub(super) struct OpenLarge {
    /// Start of its content, after a length of four bytes.
    start: usize,
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;

impl Buffer {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes, to append to them.
    #[cfg(feature = "compress")]
    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Writes bytes that are encoded already.
    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    #[inline]
    pub(super) fn plain_varint(&mut self, mut value: u64) {
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

    #[inline]
    pub(super) fn varint(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        self.plain_varint(value);
    }

    /// Writes an `int32` or `int64`: negative numbers take ten bytes.
    #[inline]
    pub(super) fn int(&mut self, field: u32, value: i64) {
        self.varint(field, value as u64);
    }

    #[inline]
    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, FIXED64);
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, LENGTH_DELIMITED);
        self.plain_varint(value.len() as u64);
        self.raw(value);
    }

    /// Writes a `string`, which must be UTF-8: invalid bytes become U+FFFD.
    pub(super) fn text(&mut self, field: u32, value: &[u8]) {
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
    pub(super) fn open(&mut self, field: u32) -> Open {
        self.tag(field, LENGTH_DELIMITED);
        self.bytes.push(0);
        Open { start: self.bytes.len() }
    }

    #[inline]
    pub(super) fn close(&mut self, message: Open) {
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
    pub(super) fn open_large(&mut self, field: u32) -> OpenLarge {
        self.tag(field, LENGTH_DELIMITED);
        self.raw(&[0; 4]);
        OpenLarge { start: self.bytes.len() }
    }

    #[inline]
    pub(super) fn close_large(&mut self, message: OpenLarge) {
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
