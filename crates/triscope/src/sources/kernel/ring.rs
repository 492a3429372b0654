//! Rings that several events write into.

use perf_monitor::{
    Counter, Event, EventBuilder, OpenErrorReason, RawRecord, ReadFormat, Result, Sampler,
    Software, Target,
};
use trace_common::Timestamp;

/// A ring with the events that write into it: the one that it was made for and others.
pub(crate) struct Ring {
    pub(crate) sampler: Sampler,
    pub(crate) others: Vec<Counter>,
}

impl Ring {
    /// A ring of so many pages.
    pub(crate) fn open(event: &EventBuilder, target: Target<'_>, pages: usize) -> Result<Self> {
        Ok(Self { sampler: event.open_sampler(target, pages)?, others: Vec::new() })
    }

    /// Another event that writes into it. Returns its place in `others`.
    pub(crate) fn add(&mut self, event: &EventBuilder, target: Target<'_>) -> Result<&Counter> {
        let counter = event.open_into(target, &mut self.sampler)?;
        let place = self.others.len();
        self.others.push(counter);
        Ok(&self.others[place])
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = &Counter> {
        std::iter::once(self.sampler.counter()).chain(&self.others)
    }

    pub(crate) fn enable(&self) -> Result<()> {
        self.counters().try_for_each(Counter::enable)
    }

    pub(crate) fn disable(&self) -> Result<()> {
        self.counters().try_for_each(Counter::disable)
    }

    /// Hands out what is there now, with its time. What is written meanwhile is left for the next
    /// time, so that a flood does not hold it here.
    pub(crate) fn take(
        &mut self,
        mut with: impl FnMut(&perf_monitor::Decoder, RawRecord<'_>, Timestamp) -> Result<()>,
    ) -> Result<()> {
        let mut left = self.sampler.ring_mut().available();
        while left > 0 {
            let (mut batch, decoder) = self.sampler.batch();
            let mut taken = 0;
            while let Some(record) = batch.next_record() {
                taken += record.bytes().len() as u64;
                if let Some(at) = decoder.timestamp(record) {
                    with(decoder, record, at)?;
                }
            }
            if taken == 0 {
                break;
            }
            left = left.saturating_sub(taken);
        }
        Ok(())
    }

    /// What was lost and no record told of, because none came after it. To be asked when the
    /// events are disabled and everything has been taken; known if [`counts_losses`].
    pub(crate) fn lost_at_the_end(&self) -> u64 {
        let of = |counter: &Counter| counter.read().ok().and_then(|count| count.lost).unwrap_or(0);
        let all: u64 = self.counters().map(of).sum();
        all.saturating_sub(self.sampler.stats().lost)
    }
}

/// Opens rings of as many pages as are asked for. If nobody asks: of the usual number, or of half,
/// a quarter… of it, as many as this user may have; what was taken instead is told.
pub(crate) fn with_pages<T>(
    asked: Option<usize>,
    usual: usize,
    mut open: impl FnMut(usize) -> Result<T>,
) -> Result<T> {
    /// Below that too much is lost to be of use.
    const LEAST: usize = 8;
    let mut pages = asked.unwrap_or(usual);
    loop {
        let result = open(pages);
        let too_much = matches!(
            result.as_ref().err().and_then(perf_monitor::Error::reason),
            Some(OpenErrorReason::LockedMemory { .. } | OpenErrorReason::OutOfMemory)
        );
        if asked.is_none() && too_much && pages > LEAST {
            pages /= 2;
            continue;
        }
        if result.is_ok() && asked.is_none() && pages < usual {
            eprintln!(
                "triscope: buffers of {pages} pages for each CPU instead of {usual}, as this user \
                 may not lock more memory (ulimit -l, kernel.perf_event_mlock_kb)"
            );
        }
        return result;
    }
}

/// Whether the kernel counts what events lose (Linux 6.0): the read format to open them with.
pub(crate) fn counts_losses() -> ReadFormat {
    let event = Event::software(Software::Dummy).builder().exclude_kernel(true).exclude_hv(true);
    let opens = event.read_format(ReadFormat::LOST).open(Target::ThisThread).is_ok();
    if opens { ReadFormat::LOST } else { ReadFormat::empty() }
}
