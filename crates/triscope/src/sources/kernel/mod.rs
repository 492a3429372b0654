//! Linux kernel events as the commands open them.

pub(crate) mod events;

use crate::failure::Failure;
use perf_monitor::{Error, Event, Hardware, OpenErrorReason, RingSet, Target, Tracefs};

/// Converts an error of perf events to a failure.
pub(crate) fn failure(error: Error) -> Failure {
    let is_unknown = matches!(error, Error::UnknownEvent { .. });
    let failure = Failure::new(error);
    if is_unknown { failure.and("triscope perf list shows the events") } else { failure }
}

/// The mounted tracefs, otherwise a private one.
pub(crate) fn tracefs() -> perf_monitor::Result<Tracefs> {
    Tracefs::find_or_detached()
}

/// Whether more privileges would avoid this error.
pub(crate) fn is_privilege(error: &Error) -> bool {
    match error {
        Error::NoTracefs | Error::File { .. } => true,
        other => {
            let refusal = other.reason();
            matches!(
                refusal,
                Some(OpenErrorReason::Privilege { .. } | OpenErrorReason::LockedMemory { .. })
            )
        }
    }
}

/// Parses the description of an event.
pub(crate) fn event(text: &str) -> perf_monitor::Result<Event> {
    match Event::parse(text) {
        Err(Error::NoTracefs) => Event::parse_in(text, &tracefs()?),
        other => other,
    }
}

/// Reports that the rings are smaller than intended because this user may not map more.
pub(crate) fn report_small_rings(set: &RingSet, usual: usize) {
    let pages = set.pages();
    if pages < usual {
        eprintln!(
            "triscope: buffers of {pages} pages for each CPU instead of {usual}, as this user may \
             not lock more memory (ulimit -l, kernel.perf_event_mlock_kb)"
        );
    }
}

/// Options of a set of rings with the requested number of pages; without a request, at most `usual`.
pub(crate) fn rings(asked: Option<usize>, usual: usize) -> perf_monitor::RingSetBuilder {
    match asked {
        Some(pages) => RingSet::builder().pages(pages),
        None => RingSet::builder().max_pages(usual),
    }
}

/// The event to sample without a request: cycles, or cpu-clock on machines that do not count them.
pub(crate) fn usual_event() -> perf_monitor::Result<Event> {
    let cycles = Event::hardware(Hardware::CpuCycles);
    let without_kernel = cycles.builder().exclude_kernel(true).exclude_hv(true);
    match without_kernel.open(Target::ThisThread) {
        Ok(_) => Ok(cycles),
        Err(_) => event("cpu-clock"),
    }
}
