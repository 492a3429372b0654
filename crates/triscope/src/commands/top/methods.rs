//! The methods of .NET programs, while they run.

use crate::failure::Failure;
use crate::run::procfs;
use crate::run::threads;
use crate::run::watch::Watch;
use crate::sources::runtimes::Runtimes;
use crate::sources::symbols::managed::Managed;
use crossbeam_channel::bounded;
use nettrace::MethodMap;
use std::collections::BTreeSet;
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace_timeline::sources::perf::PerfSource;

/// Time between two lists of methods: each costs the runtimes some time.
const PERIOD: Duration = Duration::from_secs(10);

/// The same while no runtime is known.
const SOON: Duration = Duration::from_secs(1);

/// Failures that are kept.
const MAX_FAILURES: usize = 16;

/// What a thread that ends sessions returns.
type Listed = (Vec<(u32, MethodMap)>, Vec<Failure>);

/// The sessions with the runtimes of the sampled processes. A runtime lists its methods at the end of a
/// session, so sessions are ended, and others begun, from time to time.
pub(super) struct Methods {
    runtimes: Runtimes,
    is_system_wide: bool,
    /// Processes that were sampled, of the whole machine.
    sampled: BTreeSet<u32>,
    /// The thread that ends the sessions before these.
    ending: Option<JoinHandle<Listed>>,
    /// When the next list is due.
    next: Instant,
    failures: Vec<Failure>,
}

impl Methods {
    pub(super) fn new(is_system_wide: bool) -> Self {
        Self {
            runtimes: Runtimes::new(is_system_wide),
            is_system_wide,
            sampled: BTreeSet::new(),
            ending: None,
            next: Instant::now() + SOON,
            failures: Vec::new(),
        }
    }

    /// Looks for new runtimes from time to time, among these processes and those of the last samples.
    pub(super) fn look(
        &mut self,
        watch: &Watch,
        pids: &[u32],
        sampled: impl FnOnce() -> BTreeSet<u32>,
    ) {
        let known = &mut self.sampled;
        self.runtimes.look(watch, pids, || {
            known.extend(sampled());
            known.retain(|pid| procfs::start_time(*pid).is_some());
            known.clone()
        });
    }

    /// Sessions that follow those that are ended now.
    fn again(&mut self) -> Runtimes {
        std::mem::replace(&mut self.runtimes, Runtimes::new(self.is_system_wide))
    }

    /// Adds the methods of a list that is complete, and asks for the next one. Returns whether there are
    /// any.
    pub(super) fn update(&mut self, source: &PerfSource, managed: &mut Managed) -> bool {
        let is_complete = self.ending.as_ref().is_some_and(JoinHandle::is_finished);
        let is_changed = is_complete && self.add(source, managed);
        if is_complete {
            self.next = Instant::now() + if is_changed { PERIOD } else { SOON };
        }
        if self.ending.is_none() && Instant::now() >= self.next && self.ask().is_err() {
            self.next = Instant::now() + SOON;
        }
        is_changed
    }

    /// Ends the sessions on a thread, as each takes its time. Without a thread, they continue.
    fn ask(&mut self) -> io::Result<()> {
        let (give, take) = bounded::<Runtimes>(1);
        let end = move || take.recv().map_or_else(|_| Listed::default(), Runtimes::methods);
        self.ending = Some(threads::start(end)?);
        let _ = give.send(self.again()); // the thread waits for it
        Ok(())
    }

    /// Waits for a list, and adds its methods.
    fn add(&mut self, source: &PerfSource, managed: &mut Managed) -> bool {
        let failed = || (Vec::new(), vec![Failure::new("the .NET recorder failed")]);
        let Some(ending) = self.ending.take() else { return false };
        let listed = ending.join().unwrap_or_else(|_| failed());
        self.keep(listed, source, managed)
    }

    /// Adds the methods of a list. Returns whether there are any.
    fn keep(&mut self, listed: Listed, source: &PerfSource, managed: &mut Managed) -> bool {
        let (methods, failures) = listed;
        for failure in failures {
            // Each list has the same ones again.
            let is_known = self.failures.iter().any(|known| known.message() == failure.message());
            if !is_known && self.failures.len() < MAX_FAILURES {
                self.failures.push(failure);
            }
        }
        for (pid, methods) in &methods {
            managed.add(*pid, methods, source);
        }
        !methods.is_empty()
    }

    /// Ends the sessions, and adds all methods.
    pub(super) fn finish(mut self, source: &PerfSource, managed: &mut Managed) {
        self.add(source, managed);
        let listed = self.again().methods();
        self.keep(listed, source, managed);
    }
}

impl Drop for Methods {
    /// No session is left behind. The terminal is the user's again.
    fn drop(&mut self) {
        if let Some(Ok((_, failures))) = self.ending.take().map(JoinHandle::join) {
            self.failures.extend(failures);
        }
        self.failures.iter().for_each(Failure::print);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::threads::refusal::without_threads;
    use perf_data::Session;

    #[test]
    fn methods_are_asked_for_again_where_no_thread_could_be_started() {
        let source = PerfSource::new(&Session::default()).unwrap();
        let (mut methods, mut managed) = (Methods::new(false), Managed::default());
        let mut update = |methods: &mut Methods| {
            methods.next = Instant::now();
            assert!(!methods.update(&source, &mut managed));
            methods.ending.is_some()
        };
        assert!(!without_threads(|| update(&mut methods)));
        assert!(update(&mut methods));
    }
}
