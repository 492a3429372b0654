//! A connection that is read until a time.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A client that sends a byte now and then keeps no thread.
pub(crate) struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    /// Reads the stream for this time at most. Later, each read is an error of kind `WouldBlock`.
    pub(crate) fn new(stream: &'a TcpStream, time: Duration) -> Self {
        Self { stream, until: Instant::now() + time }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}
