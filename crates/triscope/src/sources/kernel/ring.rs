//! Rings shared by several events.

use perf_monitor::{
    Counter, EventBuilder, OpenErrorReason, RawRecord, RecordLayout, Result, Sampler, Target,
};
use trace_common::Timestamp;

/// A ring with the events that write into it.
pub(crate) struct Ring {
    pub(crate) sampler: Sampler,
}

impl Ring {
    /// A ring of `pages` pages.
    pub(crate) fn open(event: &EventBuilder, target: Target<'_>, pages: usize) -> Result<Self> {
        Ok(Self { sampler: event.open_sampler(target, pages)? })
    }

    /// Adds an event to it.
    pub(crate) fn add(&mut self, event: &EventBuilder, target: Target<'_>) -> Result<&Counter> {
        self.sampler.add(event, target)
    }

    pub(crate) fn enable(&self) -> Result<()> {
        self.sampler.enable()
    }

    pub(crate) fn disable(&self) -> Result<()> {
        self.sampler.disable()
    }

    /// Passes the available records with their time to `with`. Records written meanwhile are left
    /// for the next call, so that a flood does not block the caller here.
    pub(crate) fn take(
        &mut self,
        mut with: impl FnMut(&RecordLayout, RawRecord<'_>, Timestamp) -> Result<()>,
    ) -> Result<()> {
        self.sampler
            .drain_raw(|layout, record| match layout.timestamp(record) {
                Some(at) => with(layout, record, at),
                None => Ok(()),
            })
            .map(drop)
    }

    /// The losses that no record reported, because none followed them. Call this when the events
    /// are disabled and all records were read.
    pub(crate) fn lost_at_the_end(&mut self) -> Result<u64> {
        self.sampler.count_losses()?;
        Ok(self.sampler.stats().lost_at_end.unwrap_or(0)) // unknown before Linux 6.0
    }
}

/// Opens rings with the requested number of pages. Without a request, tries the default, then half,
/// a quarter and so on, until this user may map it; a smaller number is reported.
pub(crate) fn with_pages<T>(
    asked: Option<usize>,
    usual: usize,
    mut open: impl FnMut(usize) -> Result<T>,
) -> Result<T> {
    /// With fewer pages, losses are too frequent.
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
