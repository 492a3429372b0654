//! Linux kernel events as the commands open them.

pub(crate) mod ring;

use crate::failure::Failure;
use perf_monitor::{Error, Event, OpenErrorReason, Tracefs};

/// Converts an error of perf events to a failure.
pub(crate) fn failure(error: Error) -> Failure {
    let is_unknown = matches!(error, Error::UnknownEvent { .. });
    let failure = Failure::new(error);
    if is_unknown { failure.and("triscope perf list shows the events") } else { failure }
}

/// The mounted tracefs, otherwise a private one.
pub(crate) fn tracefs() -> perf_monitor::Result<Tracefs> {
    match Tracefs::find() {
        // The remedy is to mount it, or to have the privilege for a private mount.
        Err(Error::NoTracefs) => Tracefs::detached().map_err(|_| Error::NoTracefs),
        other => other,
    }
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
