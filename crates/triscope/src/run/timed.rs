//! A connection that is read and written until a time.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A peer that sends a byte now and then keeps no thread.
#[derive(Debug)]
pub(crate) struct Timed<S> {
    stream: S,
    until: Option<Instant>,
}

impl<S: AsFd> Timed<S> {
    /// Reads and writes the stream for this time at most. Later, each attempt is an error of kind `WouldBlock`.
    pub(crate) fn new(stream: S, time: Duration) -> Self {
        Self::until(stream, Some(Instant::now() + time))
    }

    /// As [`Timed::new`], with the time of the end if there is one.
    pub(crate) const fn until(stream: S, until: Option<Instant>) -> Self {
        Self { stream, until }
    }

    /// Lifts the limit of all reads. From now on, each read by itself takes at most `time`.
    pub(crate) fn each(&mut self, time: Option<Duration>) -> io::Result<()> {
        self.until = None;
        Ok(set_socket_timeout(&self.stream, Timeout::Recv, time)?)
    }

    /// Sets the time that is left as the limit of the next attempt.
    fn limit(&self, which: Timeout) -> io::Result<()> {
        let Some(until) = self.until else { return Ok(()) };
        set_limit(&self.stream, which, until)
    }
}

/// Sets the time that is left until then as the limit of each attempt of a socket.
pub(crate) fn set_limit(socket: impl AsFd, which: Timeout, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(set_socket_timeout(socket, which, Some(left))?)
}

impl<S: AsFd + Read> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit(Timeout::Recv)?;
        self.stream.read(buffer)
    }
}

impl<S: AsFd + Write> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit(Timeout::Send)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nothing_is_read_or_written_after_the_time() {
        let (ours, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"a").unwrap();
        let mut buffer = [0; 2];
        let mut late = Timed::until(&ours, Some(Instant::now()));
        assert_eq!(late.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(late.write(b"b").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut timed = Timed::new(&ours, Duration::from_secs(60));
        timed.write_all(b"c").unwrap();
        assert_eq!((timed.read(&mut buffer).unwrap(), buffer[0]), (1, b'a'));
        assert_eq!((other.read(&mut buffer).unwrap(), buffer[0]), (1, b'c'));
    }
}
