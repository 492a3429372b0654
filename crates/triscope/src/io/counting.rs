//! Counts of bytes read or written.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of bytes.
pub(crate) trait Tally {
    /// Adds bytes.
    fn add(&mut self, bytes: u64);
}

/// A number of bytes that other threads can read while it grows.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally for Count {
    fn add(&mut self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A reader or writer whose bytes are counted.
pub(crate) struct Counted<T, C = Count> {
    inner: T,
    tally: C,
}

impl<T, C: Tally> Counted<T, C> {
    pub(crate) const fn new(inner: T, tally: C) -> Self {
        Self { inner, tally }
    }
}

impl<T, C> Counted<T, C> {
    /// The reader or writer.
    pub(crate) fn into_inner(self) -> T {
        self.inner
    }
}

impl<R: Read, C: Tally> Read for Counted<R, C> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(out)?;
        self.tally.add(len as u64);
        Ok(len)
    }
}

impl<W: Write, C: Tally> Write for Counted<W, C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.inner.write(bytes)?;
        self.tally.add(len as u64);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
