//! CPUs that come online while events are recorded: the kernel has ended the events of the CPU.

use super::failure;
use crate::failure::Failure;
use perf_monitor::RingSet;
use std::time::{Duration, Instant};

/// Time between looks: each reads a file of sysfs.
const INTERVAL: Duration = Duration::from_secs(1);

/// Opens the events of a set on CPUs that come online.
pub(crate) struct Hotplug {
    next: Instant,
    has_failed: bool,
}

impl Hotplug {
    pub(crate) fn new() -> Self {
        Self { next: Instant::now() + INTERVAL, has_failed: false }
    }

    /// Looks once a second. Returns whether events were opened: they have more ids then. A failure is printed
    /// once, and the other CPUs are recorded.
    pub(crate) fn look(&mut self, set: &mut RingSet) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + INTERVAL;
        match set.check_cpus() {
            Ok(changes) => !changes.opened.is_empty(),
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    let what = "a CPU that came online is not recorded";
                    Failure::about(what, failure(error).message()).print();
                }
                false
            }
        }
    }
}
