//! A connection that is read until a time.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A peer that sends a byte now and then keeps no thread.
#[derive(Debug)]
pub(crate) struct Timed<S> {
    stream: S,
    until: Option<Instant>,
}

impl<S: AsFd> Timed<S> {
    /// Reads the stream for this time at most. Later, each read is an error of kind `WouldBlock`.
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
}

impl<S: AsFd + Read> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            set_socket_timeout(&self.stream, Timeout::Recv, Some(left))?;
        }
        self.stream.read(buffer)
    }
}
