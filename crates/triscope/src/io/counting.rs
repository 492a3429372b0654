//! Bytes that are read and written, counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A writer that counts bytes.
pub(crate) struct Counted<W> {
    writer: W,
    written: Written,
}

/// What a [`Counted`] has written.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<AtomicU64>);

impl Written {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<W> Counted<W> {
    pub(crate) fn new(writer: W) -> (Self, Written) {
        let written = Written::default();
        (Self { writer, written: written.clone() }, written)
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.writer.write(bytes)?;
        self.written.0.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
