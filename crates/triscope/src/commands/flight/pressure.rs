//! Triggers of pressure stall information: <https://docs.kernel.org/accounting/psi.html>.

use super::inbox::{Message, Outbox};
use super::trigger::Trigger;
use crate::failure::{Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trace_flight::Cause;

/// Interval between looks whether the trigger is still wanted.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A trigger that the kernel has accepted.
pub(super) struct Pressure {
    file: File,
    text: String,
}

impl Pressure {
    /// Registers a trigger at the kernel. `None` if it is no trigger of pressure.
    pub(super) fn open(trigger: &Trigger) -> Result<Option<Self>> {
        let Trigger::Pressure { resource, line, stall, window } = trigger else { return Ok(None) };
        let path = format!("/proc/pressure/{resource}");
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            // In one call of write(2), with the NUL of a string.
            let text = format!("{line} {} {}\0", stall.as_micros(), window.as_micros());
            file.write_all(text.as_bytes())?;
            Ok(file)
        };
        let file = open().map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::NotFound => {
                    "this kernel has no pressure stall information: boot with psi=1"
                }
                io::ErrorKind::Unsupported => "pressure stall information is off: boot with psi=1",
                io::ErrorKind::InvalidInput => {
                    "the kernel refuses it: the window is from 500 ms to 10 s, and without \
                     CAP_SYS_RESOURCE a multiple of 2 s"
                }
                io::ErrorKind::PermissionDenied => "it needs root or CAP_SYS_RESOURCE",
                _ => "the kernel refuses it",
            };
            Failure::about(trigger, format!("{path}: {error}: {why}"))
        })?;
        Ok(Some(Self { file, text: trigger.to_string() }))
    }

    /// Posts a message each time it fires.
    pub(super) fn watch(self, outbox: &Outbox, is_over: &Arc<AtomicBool>) {
        let (outbox, is_over) = (outbox.clone(), Arc::clone(is_over));
        std::thread::spawn(move || {
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
                outbox.post(Message::Fired(Cause::new("psi", text.clone())));
            }
        });
    }
}
