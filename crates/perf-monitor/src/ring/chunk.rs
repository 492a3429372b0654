//! Records where the kernel wrote them, for recorders.

use super::{HEADER, Mapping, RingBuffer, count};
use crate::record::RawRecord;
use perf_sys::PERF_RECORD_SAMPLE;

/// Maximum number of bytes of a chunk, and one record: the ring has room again after each chunk.
const MAX: usize = 1 << 20;

/// Whole records in the memory of a ring, in the order of the ring.
///
/// They are two slices if they wrap at the end of the ring; one record can be in both.
#[derive(Clone, Copy, Debug)]
pub struct RingChunk<'a> {
    front: &'a [u8],
    back: &'a [u8],
    /// A copy of the record that is in both slices.
    split: &'a [u8],
    /// Offset of the first record in all data of the ring.
    start: u64,
    records: u64,
    samples: u64,
    /// Offsets of the first and the last sample in the chunk.
    sample_range: Option<(usize, usize)>,
}

impl<'a> RingChunk<'a> {
    /// The bytes of all records. The second slice is empty unless they wrap.
    pub const fn slices(&self) -> [&'a [u8]; 2] {
        [self.front, self.back]
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "a chunk has at least one record")]
    pub const fn len(&self) -> usize {
        self.front.len() + self.back.len()
    }

    /// Number of records.
    pub const fn record_count(&self) -> u64 {
        self.records
    }

    /// Number of samples among them.
    pub const fn sample_count(&self) -> u64 {
        self.samples
    }

    /// The first sample.
    pub fn first_sample(&self) -> Option<RawRecord<'a>> {
        self.record_at(self.sample_range?.0)
    }

    /// The last sample.
    pub fn last_sample(&self) -> Option<RawRecord<'a>> {
        self.record_at(self.sample_range?.1)
    }

    /// All records.
    pub fn records(&self) -> impl Iterator<Item = RawRecord<'a>> {
        let (this, mut at) = (*self, 0);
        std::iter::from_fn(move || {
            let record = this.record_at(at)?;
            at += record.bytes().len();
            Some(record)
        })
    }

    fn record_at(&self, at: usize) -> Option<RawRecord<'a>> {
        let size = size_at(self.front, self.back, at)?;
        let end = at + size;
        let bytes = if end <= self.front.len() {
            self.front.get(at..end)?
        } else if at < self.front.len() {
            self.split
        } else {
            self.back.get(at - self.front.len()..end - self.front.len())?
        };
        Some(RawRecord::new(bytes, self.start.wrapping_add(at as u64)))
    }
}

/// The size in the header of the record at this offset. A header is never in both slices: the sizes
/// of rings and of the kernel's records are multiples of 8.
#[inline]
fn size_at(front: &[u8], back: &[u8], at: usize) -> Option<usize> {
    let bytes = match front.get(at..) {
        Some(rest) if !rest.is_empty() => rest,
        _ => back.get(at - front.len()..)?,
    };
    let header = bytes.first_chunk::<HEADER>()?;
    Some(usize::from(u16::from_ne_bytes([header[6], header[7]])))
}

impl Mapping {
    /// The `len` bytes from position `at` of the ring that starts at byte `start` of the mapping and
    /// has `size` bytes, in two slices if they wrap.
    ///
    /// Panics if the ring is not in the mapping or is smaller than `len`; callers guarantee both.
    ///
    /// # Safety
    ///
    /// Nothing writes these bytes while the slices live.
    unsafe fn slices(&self, start: usize, size: usize, at: u64, len: usize) -> [&[u8]; 2] {
        assert!(start <= self.memory.len() && size <= self.memory.len() - start && len <= size);
        if len == 0 {
            return [&[], &[]];
        }
        let from = (at % size as u64) as usize;
        let first = len.min(size - from);
        // SAFETY: `start + size` is in the mapping and `from` is below `size`.
        let source = unsafe { self.memory.as_ptr().add(start + from) };
        // SAFETY: `first` bytes are left of the ring at `from`; mapped memory is initialized and
        // lives as long as `self`; nothing writes the bytes, as the caller guarantees.
        let front = unsafe { std::slice::from_raw_parts(source.cast_const(), first) };
        // SAFETY: `start` is in the mapping.
        let source = unsafe { self.memory.as_ptr().add(start) };
        // SAFETY: as above; `len - first` is at most `from`, so that the slices do not overlap.
        let back = unsafe { std::slice::from_raw_parts(source.cast_const(), len - first) };
        [front, back]
    }
}

impl RingBuffer {
    /// Passes the available records to `f`, in the memory of the ring: at most `left` bytes and one
    /// record, and at most about 1 MiB. Returns the number of bytes that were freed; 0 means that
    /// there are no records.
    ///
    /// Their space is freed when `f` returns. After an error or a panic of `f` they are passed again.
    ///
    /// # Errors
    ///
    /// Those of `f`.
    pub(crate) fn lend_chunk<E>(
        &mut self,
        left: u64,
        f: impl FnOnce(RingChunk<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let available = self.acquire();
        let Self { mapping, start, size, tail, split, stats, .. } = self;
        let tail = *tail;
        // SAFETY: the kernel does not write between `data_tail` and `data_head`, which were just
        // acquired. The tail is moved below, when the slices are not used any more, and by other
        // methods of this ring, which is borrowed mutably until then.
        let [front, back] = unsafe { mapping.slices(*start, *size, tail, available as usize) };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(MAX);
        let mut walked = *stats;
        let (mut end, mut sample_range) = (0, None);
        split.clear();
        while end < most.min(available as usize) {
            let size = size_at(front, back, end).unwrap_or(0);
            if size < HEADER || size > available as usize - end {
                break;
            }
            let at = end;
            end += size;
            let record = if end <= front.len() {
                front.get(at..end)
            } else if at < front.len() {
                split.extend_from_slice(front.get(at..).unwrap_or_default());
                split.extend_from_slice(back.get(..end - front.len()).unwrap_or_default());
                Some(&split[..])
            } else {
                back.get(at - front.len()..end - front.len())
            };
            let record = RawRecord::new(record.unwrap_or_default(), tail.wrapping_add(at as u64));
            count(&mut walked, record);
            if record.type_() == PERF_RECORD_SAMPLE {
                sample_range = Some((sample_range.map_or(at, |(first, _)| first), at));
            }
        }
        let mut freed = end as u64;
        if end > 0 {
            let border = end.min(front.len());
            f(RingChunk {
                front: front.get(..border).unwrap_or_default(),
                back: back.get(..end - border).unwrap_or_default(),
                split,
                start: tail,
                records: walked.records - stats.records,
                samples: walked.samples - stats.samples,
                sample_range,
            })?;
        } else {
            // Bytes that are not records. No kernel writes that.
            walked.corrupt_bytes = walked.corrupt_bytes.saturating_add(available);
            freed = available;
        }
        *stats = walked;
        self.release(freed);
        Ok(freed)
    }
}
