use crate::failure::{Failure, Result};
use std::io::{self, StdoutLock, Write};

/// Standard output with one large append buffer.
///
/// When a command fails, the buffer is written before its message, so [`Output::finish`] must be
/// called on every return path.
pub(crate) struct Output {
    pub(crate) buffer: Vec<u8>,
    sink: StdoutLock<'static>,
}

impl Output {
    /// Large enough that the cost of system calls is negligible.
    const CAPACITY: usize = 128 << 10;

    pub(crate) fn new() -> Self {
        Self { buffer: Vec::with_capacity(2 * Self::CAPACITY), sink: io::stdout().lock() }
    }

    /// Writes the buffer if it holds at least [`Self::CAPACITY`] bytes.
    #[inline]
    pub(crate) fn write_if_full(&mut self) -> Result {
        if self.buffer.len() >= Self::CAPACITY { self.write() } else { Ok(()) }
    }

    /// Writes the whole buffer.
    pub(crate) fn write(&mut self) -> Result {
        let result = self.sink.write_all(&self.buffer).and_then(|()| self.sink.flush());
        self.buffer.clear();
        result.map_err(|error| Failure::output(&error))
    }

    /// Writes the remaining data.
    pub(crate) fn finish(mut self) -> Result {
        self.write()
    }
}
