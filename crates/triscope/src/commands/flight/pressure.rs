//! Triggers of pressure stall information: <https://docs.kernel.org/accounting/psi.html>.

use super::inbox::Outbox;
use super::threads;
use super::trigger::Trigger;
use crate::failure::{Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trace_flight::Cause;

/// Interval between looks whether the trigger is still wanted.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The kernel's directory of pressure.
const DIRECTORY: &str = "/proc/pressure";

/// A trigger that cannot be registered.
pub(super) struct Refused {
    pub(super) failure: Failure,
    /// Whether another user may be able to.
    pub(super) is_privilege: bool,
}

/// A trigger that the kernel has accepted.
pub(super) struct Pressure {
    file: File,
    text: String,
}

impl Pressure {
    /// Registers a trigger at the kernel. `None` if it is no trigger of pressure.
    pub(super) fn open(trigger: &Trigger) -> std::result::Result<Option<Self>, Refused> {
        let Trigger::Pressure { resource, line, stall, window } = trigger else { return Ok(None) };
        let path = format!("{DIRECTORY}/{resource}");
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            // In one call of write(2), with the NUL of a string.
            let text = format!("{line} {} {}\0", stall.as_micros(), window.as_micros());
            file.write_all(text.as_bytes())?;
            Ok(file)
        };
        let file = open().map_err(|error| {
            let is_missing = !Path::new(DIRECTORY).exists();
            let is_privilege = is_privilege(error.kind(), *window, may_have_any_window());
            let why = remedy(resource, error.kind(), is_missing, is_privilege);
            let failure = Failure::about(trigger, format!("{path}: {error}: {why}"));
            Refused { failure, is_privilege }
        })?;
        Ok(Some(Self { file, text: trigger.to_string() }))
    }

    /// Posts a message each time it fires.
    pub(super) fn watch(self, outbox: &Outbox, is_over: &Arc<AtomicBool>) -> Result {
        let (outbox, is_over) = (outbox.clone(), Arc::clone(is_over));
        let what = format!("the trigger {}", self.text);
        threads::start(&what, move || {
            let Self { file, text } = self;
            // Until the settings change.
            while !is_over.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(&file, PollFlags::PRI)];
                match poll(&mut fds, Some(&LOOK)) {
                    Ok(0) => continue,
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(_) => return,
                }
                let [fd] = &fds;
                if fd.revents().contains(PollFlags::ERR) {
                    return; // the source is gone
                }
                outbox.fired(Cause::new("psi", text.clone()));
            }
        })?;
        Ok(())
    }
}

/// The windows without `CAP_SYS_RESOURCE` are multiples of this (Linux 6.4): `psi_trigger_create` of `kernel/sched/psi.c`.
const UNPRIVILEGED: Duration = Duration::from_secs(2);

/// Whether this thread has the capability for windows that are no multiple of [`UNPRIVILEGED`].
fn may_have_any_window() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE))
}

/// Whether another user may be able to register a trigger with this window. The kernel reports a window that is only for
/// privileged users as one that is not valid.
const fn is_privilege(kind: io::ErrorKind, window: Duration, has_any_window: bool) -> bool {
    let is_for_all = window.as_micros().is_multiple_of(UNPRIVILEGED.as_micros());
    match kind {
        io::ErrorKind::PermissionDenied => true,
        io::ErrorKind::InvalidInput => !has_any_window && !is_for_all,
        _ => false,
    }
}

/// Why a trigger of a resource is refused, and what to do. `is_missing` is whether nothing has pressure here.
const fn remedy(resource: &str, kind: io::ErrorKind, is_missing: bool, is_privilege: bool) -> &str {
    let is_irq = matches!(resource.as_bytes(), b"irq");
    match kind {
        io::ErrorKind::NotFound if is_missing => {
            "this kernel has no pressure stall information: boot with psi=1"
        }
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported if is_irq => {
            "this kernel does not account the time of interrupts (Linux 6.1 with \
             CONFIG_IRQ_TIME_ACCOUNTING)"
        }
        io::ErrorKind::NotFound => "this kernel has no pressure stall information of this resource",
        io::ErrorKind::Unsupported => "pressure stall information is off: boot with psi=1",
        io::ErrorKind::InvalidInput if is_privilege => {
            "the kernel refuses it: without CAP_SYS_RESOURCE, the window is a multiple of 2 s"
        }
        io::ErrorKind::InvalidInput => {
            "this kernel does not have this line, or does not accept this time"
        }
        io::ErrorKind::PermissionDenied => "it needs root or CAP_SYS_RESOURCE",
        _ => "the kernel refuses it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::{InvalidInput, NotFound, PermissionDenied, Unsupported};

    #[test]
    fn a_window_that_is_for_privileged_users_needs_a_privilege() {
        let millis = Duration::from_millis;
        for window in [millis(500), millis(2001), millis(9000)] {
            assert!(is_privilege(InvalidInput, window, false), "{window:?}");
            assert!(!is_privilege(InvalidInput, window, true), "{window:?}");
        }
        for window in [millis(2000), millis(4000), millis(10_000)] {
            assert!(!is_privilege(InvalidInput, window, false), "{window:?}");
        }
        assert!(is_privilege(PermissionDenied, millis(2000), false));
        assert!(![NotFound, Unsupported].iter().any(|kind| is_privilege(
            *kind,
            millis(500),
            false
        )));
    }

    #[test]
    fn the_boot_option_is_for_kernels_without_any_pressure() {
        assert!(remedy("irq", NotFound, true, false).contains("psi=1"));
        assert!(remedy("cpu", Unsupported, false, false).contains("psi=1"));
        for kind in [NotFound, Unsupported] {
            let why = remedy("irq", kind, false, false);
            assert!(why.contains("CONFIG_IRQ_TIME_ACCOUNTING") && !why.contains("psi=1"), "{why}");
        }
    }

    /// Linux 5.12 and older have no line `full` of the CPU.
    #[test]
    fn a_line_that_is_refused_is_no_question_of_privileges() {
        let has = |is_privilege| {
            let why = remedy("cpu", InvalidInput, false, is_privilege);
            [why.contains("CAP_SYS_RESOURCE"), why.contains("line")]
        };
        assert_eq!((has(true), has(false)), ([true, false], [false, true]));
    }
}
