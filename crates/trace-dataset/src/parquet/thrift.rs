//! Thrift's compact protocol, as far as the metadata of Parquet needs it.
//!
//! Source: `thrift-compact-protocol.md` of Apache Thrift.

use super::encoding::zigzag;
use trace_common::append_uvarint;

/// Types of fields and of elements of lists.
pub(super) mod kind {
    pub(crate) const TRUE: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const I32: u8 = 5;
    pub(crate) const I64: u8 = 6;
    pub(crate) const BINARY: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const STRUCT: u8 = 12;
}

/// A writer of one struct with the structs inside it. Fields ascend.
#[derive(Debug, Default)]
pub(super) struct Struct {
    out: Vec<u8>,
    /// The last field of this struct and of those around it.
    last: i16,
    around: Vec<i16>,
}

impl Struct {
    pub(super) fn i32(&mut self, field: i16, value: i32) {
        self.field(field, kind::I32);
        self.i32_element(value);
    }

    pub(super) fn i64(&mut self, field: i16, value: i64) {
        self.field(field, kind::I64);
        append_uvarint(zigzag(value), &mut self.out);
    }

    pub(super) fn bool(&mut self, field: i16, value: bool) {
        self.field(field, if value { kind::TRUE } else { kind::FALSE });
    }

    pub(super) fn binary(&mut self, field: i16, value: &[u8]) {
        self.field(field, kind::BINARY);
        self.binary_element(value);
    }

    /// Begins a struct in a field; [`end`](Self::end) ends it.
    pub(super) fn begin(&mut self, field: i16) {
        self.field(field, kind::STRUCT);
        self.begin_element();
    }

    /// Begins a list: its elements follow.
    pub(super) fn list(&mut self, field: i16, kind: u8, len: usize) {
        self.field(field, kind::LIST);
        match u8::try_from(len) {
            Ok(len @ 0..15) => self.out.push(len << 4 | kind),
            _ => {
                self.out.push(0xf0 | kind);
                append_uvarint(len as u64, &mut self.out);
            }
        }
    }

    pub(super) fn i32_element(&mut self, value: i32) {
        append_uvarint(zigzag(value.into()), &mut self.out);
    }

    pub(super) fn binary_element(&mut self, value: &[u8]) {
        append_uvarint(value.len() as u64, &mut self.out);
        self.out.extend_from_slice(value);
    }

    pub(super) fn begin_element(&mut self) {
        self.around.push(std::mem::take(&mut self.last));
    }

    /// Ends a struct that is a field or an element.
    pub(super) fn end(&mut self) {
        self.out.push(0);
        self.last = self.around.pop().unwrap_or_default();
    }

    /// The bytes of the whole struct.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.push(0);
        self.out
    }

    fn field(&mut self, field: i16, kind: u8) {
        match u8::try_from(field - self.last) {
            Ok(delta @ 1..=15) => self.out.push(delta << 4 | kind),
            _ => {
                self.out.push(kind);
                append_uvarint(zigzag(field.into()), &mut self.out);
            }
        }
        self.last = field;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_has_the_bytes_of_the_specification() {
        let mut s = Struct::default();
        s.i32(1, -1);
        s.binary(2, b"ab");
        s.bool(3, true);
        s.list(20, kind::I32, 2);
        s.i32_element(1);
        s.i32_element(2);
        s.begin(21);
        s.i64(4, 300);
        s.end();
        s.bool(22, false);
        let expected = [
            0x15, 1, 0x18, 2, b'a', b'b', 0x11, 0x09, 40, 0x25, 2, 4, 0x1c, 0x46, 0xd8, 4, 0, 0x12,
            0,
        ];
        assert_eq!(s.finish(), expected);
    }
}
