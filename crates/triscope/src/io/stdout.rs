use crate::failure::{Failure, Result};
use std::io::{self, StdoutLock, Write};

/// Standard output through one large buffer to append to.
///
/// What is in the buffer when a command fails is written before its message: [`Output::finish`]
/// must be called on every way out.
pub(crate) struct Output {
    pub(crate) buffer: Vec<u8>,
    sink: StdoutLock<'static>,
}

impl Output {
    /// Large enough that a system call is nothing to what it writes.
    const CAPACITY: usize = 128 << 10;

    pub(crate) fn new() -> Self {
        Self { buffer: Vec::with_capacity(2 * Self::CAPACITY), sink: io::stdout().lock() }
    }

    /// Writes the buffer if there is enough in it.
    #[inline]
    pub(crate) fn write_if_full(&mut self) -> Result {
        if self.buffer.len() >= Self::CAPACITY { self.write() } else { Ok(()) }
    }

    /// Writes all that is in the buffer.
    pub(crate) fn write(&mut self) -> Result {
        let result = self.sink.write_all(&self.buffer).and_then(|()| self.sink.flush());
        self.buffer.clear();
        result.map_err(|error| Failure::output(&error))
    }

    /// Writes all that is left.
    pub(crate) fn finish(mut self) -> Result {
        self.write()
    }
}
