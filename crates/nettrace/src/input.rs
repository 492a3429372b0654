/// The pushed bytes that are still needed.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// The needed bytes, then free space. It does not shrink, so that each byte is zeroed only
    /// once.
    buf: Vec<u8>,
    /// Number of filled bytes of `buf`.
    filled: usize,
    /// Offset of `buf[0]` in the whole input.
    base: u64,
    /// Fill level at which the next compaction is due.
    compact_at: usize,
}

impl Input {
    /// Offset of the end of the pushed input.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.filled as u64
    }

    /// The available bytes between two offsets of the whole input.
    #[inline]
    pub(crate) fn slice(&self, from: u64, to: u64) -> &[u8] {
        let from = self.index(from);
        let to = self.index(to).min(self.filled);
        self.buf.get(from..to).unwrap_or_default()
    }

    /// The index of an offset in `buf`; beyond every index if it is beyond the address space, which
    /// a stream of more than 4 GiB can name on a 32-bit target.
    #[inline]
    fn index(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX)
    }

    /// Whether compaction is due before `more` bytes are added. Checked first because computing the
    /// needed range takes time.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.filled + more > self.compact_at
    }

    /// Drops the bytes before `keep`. The next compaction is due when the rest has doubled, so that
    /// each byte is moved once on average.
    pub(crate) fn compact(&mut self, keep: u64) {
        let done = self.index(keep).min(self.filled);
        self.buf.copy_within(done..self.filled, 0);
        self.filled -= done;
        self.base += done as u64;
        self.compact_at = (self.filled * 2).max(MIN_COMPACT);
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.fill(bytes.len());
    }

    /// Free space for `len` more bytes: see [`Input::fill`].
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.filled + len;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        self.buf.get_mut(self.filled..end).unwrap_or_default()
    }

    /// Marks the first `len` bytes of the free space as filled.
    pub(crate) fn fill(&mut self, len: usize) {
        self.filled = (self.filled + len).min(self.buf.len());
    }
}

/// Minimum number of bytes to compact.
const MIN_COMPACT: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_beyond_the_address_space_do_not_wrap() {
        let mut input = Input::default();
        input.push(b"0123456789");
        assert_eq!(input.slice(2, 5), b"234");
        for far in [1 << 32, (1 << 32) + 3, u64::MAX] {
            assert_eq!(input.slice(2, far), b"23456789");
            assert_eq!(input.slice(far, far), b"");
        }
        input.compact(4);
        assert_eq!(input.slice(0, 6), b"45", "what is dropped is not there");
        input.compact((1 << 32) + 6);
        assert_eq!(input.end(), 10, "no more than there is can be dropped");
        assert_eq!(input.slice(0, 10), b"");
    }
}
