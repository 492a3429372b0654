//! CPUs that come online while events are recorded: the kernel has ended the events of the CPU.

use super::{failure, sampling};
use crate::failure::Result;
use perf_monitor::{CpuChanges, RingSet, SetEvent};
use std::time::{Duration, Instant};

/// Time between looks: each reads a file of sysfs.
const INTERVAL: Duration = Duration::from_secs(1);

/// Opens the events of a set on CPUs that come online.
pub(crate) struct Hotplug {
    /// `None` if the events cannot be opened again.
    next: Option<Instant>,
    failure: CpuFailure,
}

impl Hotplug {
    /// The events of a command can only be opened by the thread that starts it.
    pub(crate) fn new(begins_with_command: bool) -> Self {
        let next = (!begins_with_command).then(|| Instant::now() + INTERVAL);
        Self { next, failure: CpuFailure::default() }
    }

    /// Looks once a second. Returns whether events were opened: they have more ids then.
    pub(crate) fn look(&mut self, set: &mut RingSet) -> bool {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        self.next = Some(now + INTERVAL);
        let changes = self.failure.changes(set.check_cpus().map_err(failure));
        changes.is_some_and(|changes| !changes.opened.is_empty())
    }

    /// Looks once a second. Returns the ids of the recorded events if they have more.
    pub(crate) fn ids(
        &mut self,
        set: &mut RingSet,
        writers: &[SetEvent],
    ) -> Result<Option<Vec<Vec<u64>>>> {
        self.look(set).then(|| sampling::ids(set, writers)).transpose().map_err(failure)
    }
}

/// Why the events could not be opened on a CPU, if that is so. The other CPUs are recorded.
#[derive(Default)]
pub(crate) struct CpuFailure(Option<String>);

impl CpuFailure {
    /// The changes that a look found. A failure is printed, unless the look before had the same.
    pub(crate) fn changes(&mut self, found: Result<CpuChanges>) -> Option<CpuChanges> {
        let why = found.as_ref().err().map(|failure| failure.message().to_owned());
        if let Some(why) = why.as_ref().filter(|_| self.0 != why) {
            message!("triscope: a CPU that came online is not recorded: {why}");
        }
        self.0 = why;
        found.ok()
    }

    pub(crate) fn why(&self) -> Option<&str> {
        self.0.as_deref()
    }
}
