//! The bytes of a trace, with the part in memory that the reader still needs.

use crate::error::{Error, ErrorKind};
use crate::frontier::{Chunk, Encoded};
use std::io::{self, Read};

/// A window over the input: bytes from `keep` on keep their position until they are released.
#[derive(Debug)]
pub(crate) struct Source<R> {
    input: R,
    buffer: Vec<u8>,
    /// Number of filled bytes of `buffer`.
    filled: usize,
    /// Start of the bytes in the window, as an index into `buffer`.
    keep: usize,
    /// Offset in the input of `buffer[0]`.
    base: u64,
    /// The maximum size of the window.
    limit: usize,
}

/// The minimum size of a read from the input.
const CHUNK: usize = 128 << 10;

/// The input of a source to which bytes are pushed: it has no others.
#[derive(Debug)]
pub(crate) struct Pushed;

impl Read for Pushed {
    fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}

impl Source<Pushed> {
    /// Appends bytes to the window.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        if let Some(room) = self.buffer.get_mut(self.filled..self.filled + bytes.len()) {
            room.copy_from_slice(bytes);
            self.filled += bytes.len();
        }
    }
}

impl<R: Read> Source<R> {
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self::at(0, input, limit)
    }

    /// A source whose first byte has an offset in the trace.
    pub(crate) fn at(base: u64, input: R, limit: usize) -> Self {
        Self { input, buffer: Vec::new(), filled: 0, keep: 0, base, limit }
    }

    /// Uses this memory, of another source.
    pub(crate) fn reuse(&mut self, buffer: Vec<u8>) {
        if self.buffer.is_empty() {
            self.buffer = buffer;
        }
    }

    /// The memory of the window.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Releases the window and its memory.
    pub(crate) fn clear(&mut self) {
        self.base += self.filled as u64;
        (self.buffer, self.filled, self.keep) = (Vec::new(), 0, 0);
    }

    /// The bytes in the window, from the first one that was not released.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "what is kept ends where the buffer is filled")]
    pub(crate) fn window(&self) -> &[u8] {
        &self.buffer[self.keep..self.filled]
    }

    /// Offset in the input of the first byte of [`Source::window`].
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.keep as u64
    }

    /// Releases the first `n` bytes of [`Source::window`].
    pub(crate) fn release(&mut self, n: usize) {
        self.keep = (self.keep + n).min(self.filled);
    }

    /// Reads once from the input; `false` at its end. Bytes in the window keep their index in
    /// [`Source::window`].
    #[expect(clippy::indexing_slicing, reason = "no more is filled than the buffer has")]
    pub(crate) fn fill(&mut self) -> Result<bool, Error> {
        if self.filled - self.keep >= self.limit {
            let what = "the size of one generation in bytes (max_buffer)";
            let kind = ErrorKind::limit(what, self.limit);
            return Err(Error::at(self.offset(), kind));
        }
        if self.filled == self.buffer.len() {
            self.make_room(CHUNK / 2);
        }
        loop {
            match self.input.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    // A `Read` that claims more bytes than fit is wrong and not trusted.
                    self.filled = (self.filled + n).min(self.buffer.len());
                    return Ok(true);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::at(self.base + self.filled as u64, e)),
            }
        }
    }

    /// Makes room for `len` bytes: moves the window to the front if that frees at least as many
    /// bytes as it moves (so that the amortized cost is constant), and grows the buffer if that is
    /// not enough.
    fn make_room(&mut self, len: usize) {
        if self.buffer.len() - self.filled >= len {
            return;
        }
        if self.keep > 0 && self.keep >= self.filled - self.keep {
            self.buffer.copy_within(self.keep..self.filled, 0);
            self.base += self.keep as u64;
            self.filled -= self.keep;
            self.keep = 0;
        }
        if self.buffer.len() - self.filled < len {
            // The capacity doubles; memory that is not touched costs nothing.
            self.buffer.resize(self.filled + len.max(CHUNK), 0);
        }
    }

    /// Makes `window()[..n]` available; `false` if the input ends before that.
    pub(crate) fn ensure(&mut self, n: usize) -> Result<bool, Error> {
        while self.filled - self.keep < n {
            if !self.fill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<R: Read> Encoded for Source<R> {
    fn bytes(&self) -> &[u8] {
        self.window()
    }

    #[inline(always)]
    fn chunk(&self, at: usize) -> Option<&Chunk> {
        self.buffer.get(self.keep + at..)?.first_chunk()
    }
}

impl<R: Read> Read for Source<R> {
    /// Reads and releases.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.keep == self.filled && !self.fill().map_err(io::Error::other)? {
            return Ok(0);
        }
        let n = self.window().read(out)?;
        self.release(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte per read.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            out[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    #[test]
    fn released_bytes_make_room_and_offsets_go_on() {
        let input: Vec<u8> = (0..400_000u32).map(|i| i as u8).collect();
        let mut source = Source::new(&input[..], usize::MAX);
        let mut at = 0usize;
        while source.ensure(1000).unwrap() {
            assert_eq!(source.offset(), at as u64);
            assert_eq!(source.window()[..1000], input[at..at + 1000]);
            source.release(1000);
            at += 1000;
        }
        assert_eq!(at, 400_000);
        assert!(source.buffer.len() <= 3 * CHUNK, "bounded: {}", source.buffer.len());
    }

    #[test]
    fn fill_reads_no_more_than_there_is() {
        let mut source = Source::new(Drip(b"abc"), usize::MAX);
        assert!(source.fill().unwrap());
        assert_eq!(source.window(), b"a");
        assert!(!source.ensure(4).unwrap());
        source.release(1);
        let mut rest = Vec::new();
        source.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bc");
    }

    #[test]
    fn the_limit_holds() {
        let mut source = Source::new(io::repeat(7), 1 << 20);
        let error = source.ensure(2 << 20).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Limit { .. }), "{error}");
    }
}
