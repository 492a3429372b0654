//! Events of the Linux kernel, as the commands open them.

pub(crate) mod ring;

use crate::failure::Failure;
use perf_monitor::{Error, Event, OpenErrorReason, Tracefs};

/// An error of perf events, for the user.
pub(crate) fn failure(error: Error) -> Failure {
    let is_unknown = matches!(error, Error::UnknownEvent { .. });
    let failure = Failure::new(error);
    if is_unknown { failure.and("triscope perf list shows the events") } else { failure }
}

/// The tracefs: one that is mounted, or else one of this process's own.
pub(crate) fn tracefs() -> perf_monitor::Result<Tracefs> {
    match Tracefs::find() {
        // The remedy is to mount it, or to be someone who needs no mount.
        Err(Error::NoTracefs) => Tracefs::detached().map_err(|_| Error::NoTracefs),
        other => other,
    }
}

/// Whether somebody with more privilege would not have been refused this.
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

/// The event that a description means.
pub(crate) fn event(text: &str) -> perf_monitor::Result<Event> {
    match Event::parse(text) {
        Err(Error::NoTracefs) => Event::parse_in(text, &tracefs()?),
        other => other,
    }
}
