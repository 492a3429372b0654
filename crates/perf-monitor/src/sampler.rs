//! An event with its ring.

use crate::counter::Counter;
use crate::diagnose;
use crate::error::{Error, Result};
use crate::record::{Decoder, Record};
use crate::ring::{Batch, RingBuffer, RingStats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A sampling event with its ring and the layout of its records.
///
/// ```
/// use perf_monitor::{Event, Record, SampleFlags, Software, Target};
/// use std::time::Duration;
///
/// let mut faults = Event::software(Software::PageFaults)
///     .builder()
///     .exclude_kernel(true)
///     .exclude_hv(true)
///     .sample_period(1)
///     .wakeup_events(1)
///     .sample(SampleFlags::IP | SampleFlags::TID | SampleFlags::ADDR)
///     .open_sampler(Target::ThisThread, 8)?;
/// faults.counter().enable()?;
/// let touched = vec![1u8; 1 << 20];
/// faults.counter().disable()?;
///
/// let mut addresses = Vec::new();
/// faults.drain(|record| {
///     if let Record::Sample(sample) = record {
///         addresses.extend(sample.addr);
///     }
/// })?;
/// assert!(!addresses.is_empty(), "{} bytes were touched", touched.len());
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Debug)]
pub struct Sampler {
    counter: Counter,
    ring: RingBuffer,
    decoder: Decoder,
}

/// Why [`Sampler::wait`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// Enough was written to wake a reader.
    pub readable: bool,
    /// The thread is gone: no more will come. Records may still be there, also if `readable` is
    /// false: drain once more, then stop.
    pub hung_up: bool,
}

impl Sampler {
    pub(crate) fn new(counter: Counter, pages: usize) -> Result<Self> {
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        let ring = RingBuffer::map(&counter, pages).map_err(|errno| Error::Map {
            pages,
            errno,
            reason: diagnose::map(counter.attr(), counter.follows_thread(), errno),
        })?;
        let decoder = Decoder::new(counter.attr());
        Ok(Self { counter, ring, decoder })
    }

    /// The event.
    pub const fn counter(&self) -> &Counter {
        &self.counter
    }

    /// The ring.
    pub const fn ring_mut(&mut self) -> &mut RingBuffer {
        &mut self.ring
    }

    /// The layout of the records.
    pub const fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// What went through the ring so far.
    pub const fn stats(&self) -> RingStats {
        self.ring.stats()
    }

    pub(crate) fn expect_records_of(&mut self, counter: &Counter) -> Result<()> {
        self.decoder.add(self.counter.id()?, self.counter.attr());
        self.decoder.add(counter.id()?, counter.attr());
        Ok(())
    }

    /// Takes what is there, up to 128 KiB, with what decodes it.
    pub fn batch(&mut self) -> (Batch<'_>, &Decoder) {
        (self.ring.batch(), &self.decoder)
    }

    /// Hands every record that is there now to `f`, and returns how many. What is written
    /// meanwhile is left for the next time, so that a flood does not hold it here.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] for a record that is not in the layout of its event; those before it
    /// were handed over, and the next call goes on after it.
    pub fn drain(&mut self, mut f: impl FnMut(Record<'_>)) -> Result<usize> {
        let mut left = self.ring.available();
        let mut count = 0;
        while left > 0 {
            let mut batch = self.ring.batch();
            if batch.is_empty() {
                break;
            }
            let before = count;
            while let Some(raw) = batch.next_record() {
                left = left.saturating_sub(raw.bytes().len() as u64);
                count += 1;
                f(self.decoder.decode(raw)?);
                if left == 0 {
                    break;
                }
            }
            if count == before {
                break; // nothing but bytes that are no records, which were skipped
            }
        }
        Ok(count)
    }

    /// Waits until a reader is to be woken, the thread is gone, or the time is over (`None`:
    /// never).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Readiness> {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(&self.counter, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::System { call: "poll", errno }),
        }
        let events = fds.iter().fold(PollFlags::empty(), |all, fd| all | fd.revents());
        Ok(Readiness {
            readable: events.contains(PollFlags::IN),
            hung_up: events.intersects(PollFlags::HUP | PollFlags::ERR),
        })
    }
}

impl AsFd for Sampler {
    /// For `poll`, `epoll` and asynchronous runtimes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }
}
