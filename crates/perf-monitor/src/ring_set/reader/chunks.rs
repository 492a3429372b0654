//! Reading for recorders: whole chunks of each ring, neither decoded nor ordered.

use super::Reader;
use crate::ring::RingChunk;
use crate::ring_set::RingSet;
use trace_common::Timestamp;

/// Records of one ring of a [`RingSet`], where the kernel wrote them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SetChunk<'a> {
    /// The CPU of the ring.
    pub cpu: u32,
    /// The records.
    pub records: RingChunk<'a>,
}

impl RingSet {
    /// Passes on what the rings contain now, as bytes: each ring for itself, in chunks of at most
    /// about 1 MiB, in the memory of the ring. Returns the number of bytes.
    ///
    /// This is the way to record to a file with few losses: nothing is copied, and only the headers
    /// of the records are read, for the [statistics](Self::stats). One call is one round of a
    /// `perf.data` file. [`EventCounts::delivered`](crate::EventCounts::delivered) does not contain
    /// these samples. Do not mix it with [`round`](Self::round): records that wait for their turn
    /// there are not passed on here.
    ///
    /// # Errors
    ///
    /// The first error of `f`: the next call begins with that chunk.
    pub fn read_chunks<E>(
        &mut self,
        f: impl FnMut(SetChunk<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.reader.read_chunks(f)
    }
}

impl Reader {
    fn read_chunks<E>(
        &mut self,
        mut f: impl FnMut(SetChunk<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.look();
        let mut sum = 0;
        for ring in self.rings.iter_mut().flatten() {
            sum += ring.read_chunks(&mut f)?;
        }
        let now = self.now();
        self.set_end_of_retiring(now);
        self.forget_ended(Timestamp::MAX);
        Ok(sum)
    }
}
