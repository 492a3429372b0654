/// The bytes that were pushed and are still needed.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buf: Vec<u8>,
    /// Offset of `buf[0]` in the whole input.
    base: u64,
    /// Size of `buf` at which to look for what can be dropped.
    compact_at: usize,
}

impl Input {
    /// Offset of the end of what was pushed.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.buf.len() as u64
    }

    /// The bytes between two offsets of the whole input, as far as they are here.
    #[inline]
    pub(crate) fn slice(&self, from: u64, to: u64) -> &[u8] {
        let from = from.saturating_sub(self.base) as usize;
        let to = (to.saturating_sub(self.base) as usize).min(self.buf.len());
        self.buf.get(from..to).unwrap_or_default()
    }

    /// Whether it is time to drop what is not needed any more before `more` bytes are added.
    /// Asked first because what is needed takes a while to find out.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.buf.len() + more > self.compact_at
    }

    /// Drops what lies before `keep`. The next time is when the rest has doubled, so that each
    /// byte is moved once on average.
    pub(crate) fn compact(&mut self, keep: u64) {
        let done = (keep.saturating_sub(self.base) as usize).min(self.buf.len());
        self.buf.drain(..done);
        self.base += done as u64;
        self.compact_at = (self.buf.len() * 2).max(MIN_COMPACT);
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Room for `len` more bytes. What is not used is given back with [`Input::give_back`].
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let filled = self.buf.len();
        self.buf.resize(filled + len, 0);
        self.buf.get_mut(filled..).unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, unused: usize) {
        self.buf.truncate(self.buf.len().saturating_sub(unused));
    }
}

/// Bytes below which moving things is not worth the while.
const MIN_COMPACT: usize = 1 << 18;
