//! Encodings of values.
//!
//! Source: `Encodings.md` of Apache Parquet.

use trace_common::append_uvarint;

/// Maps integers of small magnitude to small ones.
pub(super) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Number of bits that a value needs.
pub(super) const fn width(value: u64) -> u8 {
    (u64::BITS - value.leading_zeros()) as u8
}

/// Appends values of `width` bits each, from the least significant bit on.
fn pack(values: impl Iterator<Item = u64>, width: u8, out: &mut Vec<u8>) {
    let (mut bits, mut filled) = (0_u128, 0);
    for value in values {
        bits |= u128::from(value) << filled;
        filled += u32::from(width);
        while filled >= 8 {
            out.push(bits as u8);
            bits >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(bits as u8);
    }
}

/// `RLE`: runs of equal values, and groups of eight values of `width` bits (1 to 32).
pub(super) fn hybrid(values: &[u32], width: u8, out: &mut Vec<u8>) {
    const GROUP: usize = 8;
    let packed = |values: &[u32], out: &mut Vec<u8>| {
        if values.is_empty() {
            return;
        }
        let groups = values.len().div_ceil(GROUP);
        append_uvarint((groups as u64) << 1 | 1, out);
        let padding = std::iter::repeat_n(0, groups * GROUP - values.len());
        pack(values.iter().map(|value| u64::from(*value)).chain(padding), width, out);
    };
    // Those before `at` and not before `from` are to be packed.
    let (mut from, mut at) = (0, 0);
    while let Some(value) = values.get(at) {
        let rest = values.get(at..).unwrap_or_default();
        let run = rest.iter().take_while(|other| *other == value).count();
        // A group that has begun is filled first.
        let fill = (at - from).next_multiple_of(GROUP) - (at - from);
        if run >= GROUP + fill {
            at += fill;
            packed(values.get(from..at).unwrap_or_default(), out);
            append_uvarint(((run - fill) as u64) << 1, out);
            let bytes = value.to_le_bytes();
            out.extend(bytes.iter().take(usize::from(width.div_ceil(8))));
            at += run - fill;
            from = at;
        } else {
            at += run;
        }
    }
    packed(values.get(from..).unwrap_or_default(), out);
}

/// `DELTA_BINARY_PACKED`: differences to the value before, in blocks with their own widths.
pub(super) fn delta(values: &[i64], out: &mut Vec<u8>) {
    const BLOCK: usize = 128;
    const MINIBLOCKS: usize = 4;
    append_uvarint(BLOCK as u64, out);
    append_uvarint(MINIBLOCKS as u64, out);
    append_uvarint(values.len() as u64, out);
    append_uvarint(zigzag(values.first().copied().unwrap_or(0)), out);
    let deltas: Vec<i64> =
        values.iter().zip(values.iter().skip(1)).map(|(a, b)| b.wrapping_sub(*a)).collect();
    for block in deltas.chunks(BLOCK) {
        let least = block.iter().copied().min().unwrap_or(0);
        append_uvarint(zigzag(least), out);
        let above = |delta: &i64| delta.wrapping_sub(least) as u64;
        let miniblocks = || block.chunks(BLOCK / MINIBLOCKS);
        let widths: Vec<u8> = miniblocks()
            .map(|values| width(values.iter().map(above).fold(0, |all, value| all | value)))
            .collect();
        out.extend_from_slice(&widths);
        out.extend(std::iter::repeat_n(0, MINIBLOCKS - widths.len()));
        for (values, width) in miniblocks().zip(widths) {
            let padding = std::iter::repeat_n(0, BLOCK / MINIBLOCKS - values.len());
            pack(values.iter().map(above).chain(padding), width, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use trace_common::Cursor;

    fn unpack(bytes: &[u8], width: u8, count: usize) -> Vec<u64> {
        let bit = |n: usize| u64::from(bytes[n / 8] >> (n % 8) & 1);
        let value =
            |n: usize| (0..usize::from(width)).map(move |b| bit(n * usize::from(width) + b) << b);
        (0..count).map(|n| value(n).sum()).collect()
    }

    fn read_hybrid(bytes: &[u8], width: u8, count: usize) -> Vec<u32> {
        let mut cursor = Cursor::new(bytes);
        let mut values = Vec::new();
        while values.len() < count {
            let header = cursor.uvarint().unwrap();
            if header & 1 == 1 {
                let count = (header >> 1) as usize * 8;
                let bytes = cursor.bytes(count / 8 * usize::from(width)).unwrap();
                values.extend(unpack(bytes, width, count).into_iter().map(|v| v as u32));
            } else {
                let bytes = cursor.bytes(usize::from(width.div_ceil(8))).unwrap();
                let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
                values.extend(std::iter::repeat_n(value, (header >> 1) as usize));
            }
        }
        assert_eq!(cursor.remaining(), 0, "bytes are left");
        assert!(values.len() < count + 8);
        values.truncate(count);
        values
    }

    fn read_delta(bytes: &[u8]) -> Vec<i64> {
        let unzigzag = |v: u64| (v >> 1) as i64 ^ -((v & 1) as i64);
        let mut cursor = Cursor::new(bytes);
        let (block, minis) = (cursor.uvarint().unwrap(), cursor.uvarint().unwrap() as usize);
        let count = cursor.uvarint().unwrap() as usize;
        let mini = block as usize / minis;
        let mut last = unzigzag(cursor.uvarint().unwrap());
        let mut values = vec![last];
        while values.len() < count {
            let least = unzigzag(cursor.uvarint().unwrap());
            let widths = cursor.bytes(minis).unwrap();
            for width in widths {
                if values.len() >= count {
                    break;
                }
                let bytes = cursor.bytes(mini / 8 * usize::from(*width)).unwrap();
                for above in unpack(bytes, *width, mini) {
                    last = last.wrapping_add(least).wrapping_add(above as i64);
                    values.push(last);
                }
            }
        }
        assert_eq!(cursor.remaining(), 0, "bytes are left");
        values.truncate(count);
        values
    }

    proptest! {
        #[test]
        fn hybrids_are_read_back(
            runs in proptest::collection::vec((0..5_u32, 1..20_usize), 0..60),
            width in 3..=32_u8,
        ) {
            let values: Vec<u32> =
                runs.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count)).collect();
            let mut bytes = Vec::new();
            hybrid(&values, width, &mut bytes);
            prop_assert_eq!(read_hybrid(&bytes, width, values.len()), values);
        }

        #[test]
        fn deltas_are_read_back(
            values in proptest::collection::vec(prop_oneof![any::<i64>(), 0..1000_i64], 1..600),
        ) {
            let mut bytes = Vec::new();
            delta(&values, &mut bytes);
            prop_assert_eq!(read_delta(&bytes), values);
        }
    }

    #[test]
    fn examples_of_the_specification() {
        let mut bytes = Vec::new();
        hybrid(&[0, 1, 2, 3, 4, 5, 6, 7], 3, &mut bytes);
        assert_eq!(bytes, [3, 0b1000_1000, 0b1100_0110, 0b1111_1010]);
        bytes.clear();
        hybrid(&[1; 100], 1, &mut bytes);
        assert_eq!(bytes, [0xc8, 1, 1]);
        bytes.clear();
        delta(&[1, 2, 3, 4, 5], &mut bytes);
        assert_eq!(bytes, [0x80, 1, 4, 5, 2, 2, 0, 0, 0, 0]);
    }
}
