//! Messages of protobuf, in which numbers that are 0 take no bytes.

use crate::proto::Buffer;

/// A protobuf message.
#[derive(Default)]
pub(super) struct Message(Buffer);

impl Message {
    pub(super) fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// Adds the fields of a message.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.raw(other.as_slice());
    }

    /// A number; 0 is the default and takes no bytes.
    pub(super) fn int(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.present_int(field, value);
        }
    }

    /// A number that is written also if it is 0, where the field says which kind of value it is.
    pub(super) fn present_int(&mut self, field: u32, value: u64) {
        self.0.varint(field, value);
    }

    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.0.fixed64(field, value);
        }
    }

    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.0.bytes(field, bytes);
    }

    pub(super) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let message = self.0.open(field);
        fill(self);
        self.0.close(message);
    }

    /// Numbers of type `int64`: greater ones are its maximum. Sums saturate at more.
    pub(super) fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let message = self.0.open(field);
        values.into_iter().for_each(|value| self.0.plain_varint(value.min(i64::MAX as u64)));
        self.0.close(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_saturated_are_not_negative() {
        let mut message = Message::default();
        message.packed(2, [u64::MAX]);
        // The field, the length, and 63 bits that are 1.
        let expected = [&[0x12, 9][..], &[0xff; 8], &[0x7f]].concat();
        assert_eq!(message.as_slice(), expected);
    }
}
