//! CPUs that come online while events are recorded: the kernel has ended the events of the CPU.

use super::{failure, sampling};
use crate::failure::Result;
use perf_monitor::{CpuChanges, RingSet, SetEvent, Timestamp};
use std::collections::VecDeque;
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

    /// Looks once a second. Returns what has changed: events that were opened have more ids.
    pub(crate) fn look(&mut self, set: &mut RingSet) -> CpuChanges {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return CpuChanges::default();
        }
        self.next = Some(now + INTERVAL);
        self.failure.changes(set.check_cpus().map_err(failure)).unwrap_or_default()
    }

    /// Looks once a second. Returns the ids of the recorded events if they have more.
    pub(crate) fn ids(
        &mut self,
        set: &mut RingSet,
        writers: &[SetEvent],
    ) -> Result<Option<Vec<Vec<u64>>>> {
        let has_more = !self.look(set).opened.is_empty();
        has_more.then(|| sampling::ids(set, writers)).transpose().map_err(failure)
    }
}

/// CPUs that went offline, until all records of before are passed on.
///
/// The last switch of such a CPU is to the kernel's thread that ends its events. No record says that this one left the
/// CPU.
#[derive(Debug, Default)]
pub(crate) struct GoneCpus(VecDeque<(Timestamp, u32)>);

impl GoneCpus {
    /// Adds CPUs that were found to be gone at this time.
    pub(crate) fn add(&mut self, time: Timestamp, cpus: &[u32]) {
        self.0.extend(cpus.iter().map(|cpu| (time, *cpu)));
    }

    /// Takes the next one that was found by this time, if everything up to it is passed on.
    #[inline]
    pub(crate) fn next(&mut self, passed: Timestamp) -> Option<(Timestamp, u32)> {
        let (time, _) = self.0.front()?;
        if *time <= passed { self.0.pop_front() } else { None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn cpus(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(_, cpu)| *cpu)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_gone_once_all_that_was_before_is_passed_on() {
        let at = Timestamp::from_nanos;
        let mut gone = GoneCpus::default();
        gone.add(at(20), &[1, 3]);
        gone.add(at(30), &[2]);
        assert_eq!(gone.next(at(19)), None);
        assert!(gone.cpus().eq([1, 3, 2]));
        let taken: Vec<_> = std::iter::from_fn(|| gone.next(at(20))).collect();
        assert_eq!(taken, [(at(20), 1), (at(20), 3)]);
        assert_eq!((gone.next(Timestamp::MAX), gone.is_empty()), (Some((at(30), 2)), true));
    }
}
