//! The methods of .NET processes: sessions with their runtimes, which list all methods at the end.

use crate::failure::{Failure, Result};
use crate::run::family::Family;
use crate::run::runtimes::{self, Recorder};
use crate::run::watch::Watch;
use crate::sources::symbols::managed::Managed;
use nettrace::{MethodMap, Order, Reader};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Seek as _, SeekFrom};
use std::time::{Duration, Instant};
use trace_timeline::sources::perf::PerfSource;

/// Time between looks for runtimes.
const LOOK: Duration = Duration::from_millis(100);

/// The sessions with the runtimes of the profiled processes.
pub(crate) struct Runtimes {
    recorder: Recorder,
    is_system_wide: bool,
    family: Vec<Family>,
    /// When the next look is due.
    next: Instant,
}

impl Runtimes {
    /// Of the processes of a watch, and of their descendants. If the whole machine is profiled, of the
    /// processes with samples: no other needs names, and each list costs its runtime some time.
    pub(crate) fn new(is_system_wide: bool) -> Self {
        let recorder = Recorder::of_family(None, runtimes::names());
        Self { recorder, is_system_wide, family: Vec::new(), next: Instant::now() }
    }

    /// Looks for new runtimes from time to time, among these processes and those with samples.
    pub(crate) fn look(
        &mut self,
        watch: &Watch,
        pids: &[u32],
        sampled: impl FnOnce() -> BTreeSet<u32>,
    ) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + LOOK;
        if self.family.is_empty() {
            self.family =
                watch.command_pid().iter().chain(pids).map(|pid| Family::new(*pid)).collect();
        }
        let mut processes: BTreeSet<u32> = self.family.iter_mut().flat_map(Family::look).collect();
        if self.is_system_wide {
            processes.extend(sampled());
        }
        self.recorder.look(&processes);
    }

    /// Ends the sessions, and prints failures: runtimes that still run list their methods now.
    pub(crate) fn finish(self, source: &PerfSource) -> Managed {
        let mut managed = Managed::default();
        let (methods, failures) = self.methods();
        failures.iter().for_each(Failure::print);
        for (pid, methods) in methods {
            managed.add(pid, &methods, source);
        }
        managed
    }

    /// Ends the sessions. Returns the methods of each process, and failures.
    pub(crate) fn methods(self) -> (Vec<(u32, MethodMap)>, Vec<Failure>) {
        let (recordings, mut failures) = self.recorder.finish();
        let mut all = Vec::new();
        for recording in recordings {
            failures.extend(recording.failure);
            match methods(recording.file) {
                Ok(methods) => all.push((recording.pid, methods)),
                Err(failure) => {
                    let what = format!("the methods of process {}", recording.pid);
                    failures.push(failure.and(what));
                }
            }
        }
        (all, failures)
    }
}

/// The methods of a session. Of one that ends early, those before.
fn methods(mut file: File) -> Result<MethodMap> {
    let mut methods = MethodMap::new();
    file.seek(SeekFrom::Start(0)).map_err(Failure::new)?;
    let mut options = nettrace::Options::default();
    options.order = Order::Stream;
    let mut reader = Reader::with_options(BufReader::new(file), options);
    let read = reader.for_each(|event| {
        methods.push(&event);
    });
    match read {
        Err(error) if methods.methods().is_empty() => Err(Failure::new(error)),
        _ => Ok(methods),
    }
}
