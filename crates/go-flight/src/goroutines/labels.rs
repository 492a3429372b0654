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
    pub(super) const SIZE: u64 = 32;
    pub(super) const FLAGS: usize = 8;
    pub(super) const LOG_BUCKETS: usize = 9;
    pub(super) const BUCKETS: usize = 16;
    /// While the map grows, the buckets before: what has been moved is not used there any more.
    pub(super) const OLD_BUCKETS: usize = 24;
    /// The flag of a map that gets as many buckets as it had.
    pub(super) const SAME_SIZE: u8 = 8;
    pub(super) const SLOTS: usize = 8;
    pub(super) const KEYS: usize = 8;
    pub(super) const VALUES: usize = KEYS + 16 * SLOTS;
    /// Of a full bucket, the address of one with more slots.
    pub(super) const NEXT: usize = VALUES + 16 * SLOTS;
    pub(super) const BUCKET: usize = NEXT + 8;
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
    let ([flags], [log]) = (map.bytes(map::FLAGS)?, map.bytes(map::LOG_BUCKETS)?);
    let log = log.min(map::MAX_LOG);
    let old_log = if flags & map::SAME_SIZE == 0 { log.saturating_sub(1) } else { log };
    append_buckets(&mut source, map.word(map::BUCKETS)?, 1 << log, &mut labels)?;
    match map.word(map::OLD_BUCKETS)? {
        0 => {}
        old => append_buckets(&mut source, old, 1 << old_log, &mut labels)?,
    }
    labels.sort();
    Ok(labels)
}

/// Appends the labels in `count` buckets, and in those that they name.
fn append_buckets<M: Memory + ?Sized>(
    source: &mut Source<'_, M>,
    start: u64,
    count: u64,
    labels: &mut Vec<(String, String)>,
) -> Result<()> {
    let len = count * map::BUCKET as u64;
    let mut buckets = Vec::new();
    let buckets = source.object(start, len, &mut buckets)?;
    // Memory that changes meanwhile can have a cycle.
    let mut followed = Vec::new();
    for bucket in buckets.elements(map::BUCKET) {
        append(source, &bucket, labels)?;
        let mut next = bucket.word(map::NEXT)?;
        let is_first = |next: u64| next.wrapping_sub(start) < len;
        while next != 0 && labels.len() < MAX_LABELS && !is_first(next) {
            if followed.contains(&next) {
                break;
            }
            followed.push(next);
            let mut bytes = Vec::new();
            let bucket = source.object(next, map::BUCKET as u64, &mut bytes)?;
            append(source, &bucket, labels)?;
            next = bucket.word(map::NEXT)?;
        }
    }
    Ok(())
}

/// Appends the labels in the slots of a bucket.
fn append<M: Memory + ?Sized>(
    source: &mut Source<'_, M>,
    bucket: &Object<'_>,
    labels: &mut Vec<(String, String)>,
) -> Result<()> {
    for slot in 0..map::SLOTS {
        let [hash] = bucket.bytes(slot)?;
        if hash >= map::USED && labels.len() < MAX_LABELS {
            let key = text(source, bucket, map::KEYS + 16 * slot)?;
            labels.push((key, text(source, bucket, map::VALUES + 16 * slot)?));
        }
    }
    Ok(())
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
