//! An event with its ring.

use crate::Target;
use crate::builder::EventBuilder;
use crate::counter::{Counter, wait_for_the_last};
use crate::diagnose;
use crate::error::{Error, Result};
use crate::record::{Decoder, RawRecord, Record, RecordLayout};
use crate::ring::{AuxArea, Batch, RingBuffer, RingStats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
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
///     Ok::<(), perf_monitor::Error>(())
/// })?;
/// assert!(!addresses.is_empty(), "touched {} bytes", touched.len());
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Debug)]
pub struct Sampler {
    own: Writer,
    others: Vec<Writer>,
    /// `None` if the kernel does not count losses.
    lost_by_removed: Option<u64>,
    ring: RingBuffer,
    decoder: Decoder,
}

/// An event that writes into a ring.
#[derive(Debug)]
struct Writer {
    counter: Counter,
    /// What the kernel had counted as lost before: the losses of other rings, or of an earlier time in
    /// this one.
    lost_before: u64,
}

impl Writer {
    /// An event that wrote into no ring before.
    const fn new(counter: Counter) -> Self {
        Self { counter, lost_before: 0 }
    }

    /// An event that can have lost records in another ring. If it cannot be read now, that is an error
    /// when its losses are counted.
    fn used(counter: Counter) -> Self {
        let lost_before = lost_by(&counter).ok().flatten().unwrap_or(0);
        Self { counter, lost_before }
    }

    /// The losses in this ring, if the kernel counts them.
    fn lost(&self) -> Result<Option<u64>> {
        Ok(lost_by(&self.counter)?.map(|lost| lost.saturating_sub(self.lost_before)))
    }
}

/// Why [`Sampler::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// The kernel wrote enough data to wake readers.
    pub readable: bool,
    /// The thread exited: no more records will follow. The ring can still contain some, even if
    /// `readable` is false: drain once more, then stop.
    pub hung_up: bool,
}

impl Sampler {
    pub(crate) fn new(counter: Counter, pages: usize) -> Result<Self> {
        counter.check_direction(false)?;
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        let ring = RingBuffer::map(&counter, pages).map_err(|errno| Error::Map {
            pages,
            errno,
            reason: diagnose::map(counter.attr(), counter.follows_thread(), errno),
        })?;
        let decoder = Decoder::new(counter.attr());
        let own = Writer::used(counter);
        Ok(Self { own, others: Vec::new(), lost_by_removed: Some(0), ring, decoder })
    }

    /// The event that the ring was opened with.
    pub const fn counter(&self) -> &Counter {
        &self.own.counter
    }

    /// The ring.
    pub const fn ring_mut(&mut self) -> &mut RingBuffer {
        &mut self.ring
    }

    /// Maps the AUX area of `pages` pages (a power of two) of the event with this id: of a PMU that
    /// writes one, such as Intel PT or Arm SPE. `None` if none of the [`counters`](Self::counters) has
    /// the id.
    ///
    /// # Errors
    ///
    /// [`Error::RingPages`] and [`Error::Map`], also for events without an AUX area;
    /// [`Error::Control`].
    pub fn map_aux(&mut self, id: u64, pages: usize) -> Result<Option<AuxArea>> {
        let Self { own, others, ring, .. } = self;
        for Writer { counter: event, .. } in std::iter::once(&*own).chain(&*others) {
            if event.id()? == id {
                return ring.map_aux(event, pages).map(Some);
            }
        }
        Ok(None)
    }

    /// The layout of the records.
    pub const fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Statistics of the ring so far. Losses after the last record that fitted are only included
    /// after [`finish`](Self::finish) or [`count_losses`](Self::count_losses).
    pub const fn stats(&self) -> RingStats {
        self.ring.stats()
    }

    /// Opens an event that also writes into this ring. It must be on the same CPU or thread and
    /// have the same clock. `SampleFlags::IDENTIFIER` and `sample_id_all` are set for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoCommonId`] if the event of this sampler was opened without
    /// `SampleFlags::IDENTIFIER`, [`Error::Open`], and [`Error::Control`] if the two cannot share a
    /// ring.
    pub fn add(&mut self, event: &EventBuilder, target: Target<'_>) -> Result<&Counter> {
        self.insert(Writer::new, event.for_shared_ring().open(target)?)
    }

    /// Redirects the records of an open event to this ring: see [`add`](Self::add). What it lost before
    /// is not among the losses of this ring.
    ///
    /// # Errors
    ///
    /// [`Error::NoCommonId`] if the ids of its records are at another offset than those of this
    /// sampler's event, and [`Error::Control`].
    pub fn add_counter(&mut self, counter: Counter) -> Result<&Counter> {
        self.insert(Writer::used, counter)
    }

    #[expect(clippy::indexing_slicing, reason = "the place of what was just pushed")]
    fn insert(&mut self, writer: fn(Counter) -> Writer, counter: Counter) -> Result<&Counter> {
        // The reader must know the layout before the first record.
        let mut decoder = self.decoder.clone();
        decoder.add(self.counter().id()?, self.counter().attr())?;
        decoder.add(counter.id()?, counter.attr())?;
        counter.set_output(Some(self.as_fd()))?;
        self.decoder = decoder;
        let place = self.others.len();
        self.others.push(writer(counter));
        Ok(&self.others[place].counter)
    }

    /// Removes an [added](Self::add) event from this ring: its records are no longer written
    /// anywhere. Those in the ring are still decoded. `None` if no added event has this id.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn remove(&mut self, id: u64) -> Result<Option<Counter>> {
        let ids = self.others.iter().map(|w| w.counter.id()).collect::<Result<Vec<_>>>()?;
        let Some(place) = ids.iter().position(|other| *other == id) else { return Ok(None) };
        let writer = self.others.remove(place);
        writer.counter.set_output(None)?;
        wait_for_the_last();
        // Without a kernel count, the losses of this ring are those of its records.
        self.lost_by_removed =
            self.lost_by_removed.zip(writer.lost()?).map(|(a, b)| a.saturating_add(b));
        Ok(Some(writer.counter))
    }

    /// The events that write into the ring: its own first, then the added ones.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.writers().map(|writer| &writer.counter)
    }

    fn writers(&self) -> impl Iterator<Item = &Writer> {
        std::iter::once(&self.own).chain(&self.others)
    }

    /// Enables all [`counters`](Self::counters).
    ///
    /// # Errors
    ///
    /// Those of [`Counter::enable`].
    pub fn enable(&self) -> Result<()> {
        self.counters().try_for_each(Counter::enable)
    }

    /// Disables all [`counters`](Self::counters).
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn disable(&self) -> Result<()> {
        self.counters().try_for_each(Counter::disable)
    }

    /// Completes [`RingStats::lost`] with the losses that no record reported: a `PERF_RECORD_LOST`
    /// is written with the next record that fits, so that no record reports the losses after the
    /// last one. The kernel's own count includes them (`PERF_FORMAT_LOST`, Linux 6.0); on older
    /// kernels nothing is added and [`RingStats::lost_at_end`] stays `None`.
    ///
    /// Call this when the events are disabled and the ring is empty, as [`finish`](Self::finish)
    /// does. Before that, losses that a later record will report are counted early.
    ///
    /// # Errors
    ///
    /// Those of [`Counter::read`].
    pub fn count_losses(&mut self) -> Result<()> {
        let mut sum = self.lost_by_removed;
        for writer in self.writers() {
            sum = sum.zip(writer.lost()?).map(|(a, b)| a.saturating_add(b));
        }
        if let Some(sum) = sum {
            self.ring.set_kernel_losses(sum);
        }
        Ok(())
    }

    /// Ends sampling: disables the events, passes the remaining records to `f`, and
    /// [counts](Self::count_losses) the losses that no record reported.
    ///
    /// # Errors
    ///
    /// Those of [`drain`](Self::drain) and of [`Counter::read`].
    pub fn finish<E: From<Error>>(
        &mut self,
        mut f: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<RingStats, E> {
        self.disable()?;
        wait_for_the_last();
        while self.drain(&mut f)? > 0 {}
        self.count_losses()?;
        Ok(self.stats())
    }

    /// Reads up to 128 KiB of the available records, with their decoder.
    pub fn batch(&mut self) -> (Batch<'_>, &Decoder) {
        (self.ring.batch(), &self.decoder)
    }

    /// Passes every available record to `f`, undecoded and with its layout, and returns their
    /// number. Records written meanwhile are left for the next call, so that a flood does not block
    /// the caller here. Records of unknown events are counted in [`RingStats::unknown_ids`] and
    /// skipped.
    ///
    /// # Errors
    ///
    /// The first error of `f`: the next call resumes after that record.
    pub fn drain_raw<E>(
        &mut self,
        mut f: impl FnMut(&RecordLayout, RawRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let Self { ring, decoder, .. } = self;
        let mut left = ring.available();
        let mut count = 0;
        while left > 0 {
            let mut batch = ring.batch();
            let (mut read, mut unknown) = (0, 0);
            let mut result = Ok(());
            while let Some(raw) = batch.next_record() {
                read += raw.bytes().len() as u64;
                match decoder.layout(raw) {
                    Some(layout) => {
                        result = f(layout, raw);
                        count += 1;
                    }
                    None => unknown += 1,
                }
                if result.is_err() || read >= left {
                    break;
                }
            }
            drop(batch);
            ring.count_unknown_ids(unknown);
            result?;
            if read == 0 {
                break; // only skipped bytes that are not records
            }
            left = left.saturating_sub(read);
        }
        Ok(count)
    }

    /// Passes every available record to `f`, decoded: see [`drain_raw`](Self::drain_raw).
    ///
    /// # Errors
    ///
    /// The first error of `f`, and [`Error::Decode`] for a record that is shorter than the layout of its
    /// event: the next call resumes after that record.
    pub fn drain<E: From<Error>>(
        &mut self,
        mut f: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.drain_raw(|layout, raw| f(layout.decode(raw).map_err(Error::from)?))
    }

    /// Waits until the kernel wakes readers, the thread exits, or `timeout` expires (`None`: no
    /// timeout).
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Readiness> {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(self, PollFlags::IN)];
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
        self.own.counter.as_fd()
    }
}

impl AsRawFd for Sampler {
    /// The descriptor of [`as_fd`](AsFd::as_fd).
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// The losses counted by the kernel, if it counts them.
fn lost_by(counter: &Counter) -> Result<Option<u64>> {
    Ok(counter.read()?.lost)
}
