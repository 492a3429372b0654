/// The bytes that were pushed and are still needed.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// What is needed, and room behind it. It does not shrink: room is set to zero once only.
    buf: Vec<u8>,
    /// How much of `buf` was pushed.
    filled: usize,
    /// Offset of `buf[0]` in the whole input.
    base: u64,
    /// How much may be filled before it is time to look for what can be dropped.
    compact_at: usize,
}

impl Input {
    /// Offset of the end of what was pushed.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.filled as u64
    }

    /// The bytes between two offsets of the whole input, as far as they are here.
    #[inline]
    pub(crate) fn slice(&self, from: u64, to: u64) -> &[u8] {
        let from = from.saturating_sub(self.base) as usize;
        let to = (to.saturating_sub(self.base) as usize).min(self.filled);
        self.buf.get(from..to).unwrap_or_default()
    }

    /// Whether it is time to drop what is not needed any more before `more` bytes are added.
    /// Asked first because what is needed takes a while to find out.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.filled + more > self.compact_at
    }

    /// Drops what lies before `keep`. The next time is when the rest has doubled, so that each
    /// byte is moved once on average.
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

    /// Room for `len` more bytes: see [`Input::fill`].
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.filled + len;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        self.buf.get_mut(self.filled..end).unwrap_or_default()
    }

    /// The first `len` bytes of the room hold input now.
    pub(crate) fn fill(&mut self, len: usize) {
        self.filled = (self.filled + len).min(self.buf.len());
    }
}

/// Bytes below which moving things is not worth the while.
const MIN_COMPACT: usize = 1 << 18;
