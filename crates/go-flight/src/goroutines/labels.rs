//! The labels of a goroutine (`runtime/pprof.labelMap`).

use crate::error::Result;
use crate::memory::{Memory, Object, Source};

/// Labels of a goroutine, and bytes of each key and value.
const MAX_LABELS: usize = 64;
const MAX_TEXT: u64 = 256;

/// Bytes that are read for one goroutine.
const MAX_BYTES: usize = 64 << 10;

/// From Go 1.24 on it is a slice of pairs of strings; it was a map.
const SLICE_SINCE: u32 = 24;

/// A pair of strings.
const PAIR: u64 = 32;

/// `runtime.hmap` and `runtime.bmap` with strings for keys and values: eight hashes, the keys, the
/// values, and the next bucket.
mod map {
    pub(super) const SIZE: u64 = 24;
    pub(super) const LOG_BUCKETS: usize = 9;
    pub(super) const BUCKETS: usize = 16;
    pub(super) const SLOTS: usize = 8;
    pub(super) const KEYS: usize = 8;
    pub(super) const VALUES: usize = KEYS + 16 * SLOTS;
    pub(super) const BUCKET: usize = VALUES + 16 * SLOTS + 8;
    /// The least hash of a used slot, `minTopHash`.
    pub(super) const USED: u8 = 5;
    /// More buckets have more labels than are read.
    pub(super) const MAX_LOG: u8 = 4;
}

/// Reads the labels at an address.
pub(super) fn read<M: Memory + ?Sized>(
    memory: &mut M,
    minor: u32,
    address: u64,
) -> Result<Vec<(String, String)>> {
    let mut labels = Vec::new();
    if address == 0 {
        return Ok(labels);
    }
    let mut source = Source::new(memory, MAX_BYTES);
    let mut buffer = Vec::new();
    if minor >= SLICE_SINCE {
        let list = source.object(address, 16, &mut buffer)?.slice(0)?;
        let len = list.len.min(MAX_LABELS as u64);
        let mut pairs = Vec::new();
        for pair in source.object(list.address, len * PAIR, &mut pairs)?.elements(PAIR as usize) {
            labels.push((text(&mut source, &pair, 0)?, text(&mut source, &pair, 16)?));
        }
        return Ok(labels);
    }
    let map = source.word(address)?;
    if map == 0 {
        return Ok(labels);
    }
    let map = source.object(map, map::SIZE, &mut buffer)?;
    let [log] = map.bytes(map::LOG_BUCKETS)?;
    let count = 1u64 << log.min(map::MAX_LOG);
    let mut buckets = Vec::new();
    let buckets =
        source.object(map.word(map::BUCKETS)?, count * map::BUCKET as u64, &mut buckets)?;
    for bucket in buckets.elements(map::BUCKET) {
        for slot in 0..map::SLOTS {
            let [hash] = bucket.bytes(slot)?;
            if hash >= map::USED && labels.len() < MAX_LABELS {
                let key = text(&mut source, &bucket, map::KEYS + 16 * slot)?;
                labels.push((key, text(&mut source, &bucket, map::VALUES + 16 * slot)?));
            }
        }
    }
    labels.sort();
    Ok(labels)
}

/// A string; a long one without its end.
fn text<M: Memory + ?Sized>(
    source: &mut Source<'_, M>,
    object: &Object<'_>,
    offset: usize,
) -> Result<String> {
    let text = object.slice(offset)?;
    let mut bytes = Vec::new();
    source.append(text.address, text.len.min(MAX_TEXT), &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
