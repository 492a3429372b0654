//! Events of the Linux kernel, as the commands open them.

pub(crate) mod ring;

use crate::failure::Failure;
use perf_monitor::{Error, Event, OpenErrorReason, Tracefs};

/// A refusal of the kernel, for the user.
pub(crate) fn failure(error: Error) -> Failure {
    Failure::new(error)
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
