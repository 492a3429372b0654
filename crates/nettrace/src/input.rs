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
        let from = from.saturating_sub(self.base) as usize;
        let to = (to.saturating_sub(self.base) as usize).min(self.filled);
        self.buf.get(from..to).unwrap_or_default()
    }

    /// Whether compaction is due before `more` bytes are added. Checked first because computing the
    /// needed range takes time.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.filled + more > self.compact_at
    }

    /// Drops the bytes before `keep`. The next compaction is due when the rest has doubled, so that
    /// each byte is moved once on average.
    pub(crate) fn compact(&mut self, keep: u64) {
        let done = (keep.saturating_sub(self.base) as usize).min(self.filled);
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
