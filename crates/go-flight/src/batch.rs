//! The structure of batches of a trace: enough to detect memory that is something else.

use trace_common::{Cursor, ReadError};

/// `tracev2.EvEventBatch`, `EvExperimentalBatch` (with a byte before the generation) and
/// `EvEndOfGeneration` (alone).
const EVENT_BATCH: u8 = 1;
const EXPERIMENTAL_BATCH: u8 = 49;
const END_OF_GENERATION: u8 = 52;

/// The longest batch: `tracev2.MaxBatchSize` and a header of two bytes and four integers.
pub(crate) const MAX_LEN: u64 = (64 << 10) + 2 + 4 * 10;

/// Whether these bytes are one complete batch of a generation.
pub(crate) fn is_batch_of(generation: u64, bytes: &[u8]) -> bool {
    let mut cursor = Cursor::new(bytes);
    match cursor.u8() {
        Ok(END_OF_GENERATION) => cursor.is_empty(),
        Ok(EVENT_BATCH) => has_header(generation, cursor).unwrap_or(false),
        Ok(EXPERIMENTAL_BATCH) => {
            cursor.skip(1).and_then(|()| has_header(generation, cursor)).unwrap_or(false)
        }
        _ => false,
    }
}

fn has_header(generation: u64, mut cursor: Cursor<'_>) -> Result<bool, ReadError> {
    let found = cursor.uvarint()?;
    let (_thread, _time) = (cursor.uvarint()?, cursor.uvarint()?);
    Ok(found == generation && cursor.uvarint()? == cursor.remaining() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_recognized() {
        assert!(is_batch_of(7, &[52]));
        assert!(is_batch_of(7, &[1, 7, 3, 100, 2, 8, 9]));
        assert!(is_batch_of(7, &[49, 1, 7, 3, 100, 2, 8, 9]));
        // A size in ten bytes, as the runtime writes it.
        let padded = [1, 7, 3, 100, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 5];
        assert!(is_batch_of(7, &padded));
        for bad in [
            &[][..],
            &[0],
            &[52, 0],
            &[1],
            &[1, 8, 3, 100, 2, 8, 9],
            &[1, 7, 3, 100, 3, 8, 9],
            &[1, 7, 3, 100, 1, 8, 9],
            &[49, 7, 3, 100, 2, 8, 9],
        ] {
            assert!(!is_batch_of(7, bad), "{bad:?}");
        }
    }
}
