//! The thread that looks for Go traces: it reads whole programs, which can take longer than the kernel's buffers last.

use super::go_traces::{GoTrace, GoTraces, Wanted};
use crate::failure::{Failure, Result};
use crate::run::threads;
use crossbeam_channel::{
    Receiver, Sender, TryRecvError, TrySendError, bounded, never, select, tick,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between looks at traces that were requested to end.
const TICK: Duration = Duration::from_millis(10);

/// The traces, and for the processes without one the reasons.
type Found = (Vec<GoTrace>, Vec<Failure>);

/// Looks for Go traces until it is finished. When it is dropped, the connections to programs are closed.
pub(super) struct GoRecorder {
    /// The processes to look at.
    looks: Sender<BTreeSet<u32>>,
    /// Those for which it was too busy.
    missed: Option<BTreeSet<u32>>,
    requests: Sender<Request>,
    /// Closed when the traces that are served are complete, after they were requested to end.
    complete: Receiver<()>,
    thread: JoinHandle<Option<Found>>,
}

enum Request {
    /// The end of all traces that are served.
    Stop,
    /// The end, after a look at these processes.
    Finish(Option<BTreeSet<u32>>),
}

impl GoRecorder {
    /// Traces that are served are on the file system of `dir`.
    pub(super) fn start(wanted: Wanted, dir: PathBuf) -> Result<Self> {
        let (looks, processes) = bounded(1);
        let (requests, requested) = bounded(2);
        let (incomplete, complete) = bounded(0);
        let body = move || watch(GoTraces::new(wanted, dir), processes, &requested, incomplete);
        let thread = threads::start(body).map_err(Failure::new)?;
        Ok(Self { looks, missed: None, requests, complete, thread })
    }

    /// Looks at the recorded processes.
    pub(super) fn look(&mut self, processes: &BTreeSet<u32>) {
        // While it is busy, it gets the processes of a later look, or the last ones at the end.
        let sent = self.looks.try_send(processes.clone());
        self.missed = sent.err().map(TrySendError::into_inner);
    }

    /// Requests the end of all traces that are served.
    pub(super) fn stop(&self) {
        let _ = self.requests.try_send(Request::Stop); // once is enough
    }

    /// Whether all traces that are served are complete, after they were requested to end.
    pub(super) fn are_complete(&self) -> bool {
        self.complete.try_recv() == Err(TryRecvError::Disconnected)
    }

    pub(super) fn finish(self) -> Found {
        let failed = || (Vec::new(), vec![Failure::new("the Go recorder failed")]);
        let _ = self.requests.send(Request::Finish(self.missed)); // an error is that of the thread
        self.thread.join().ok().flatten().unwrap_or_else(failed)
    }
}

/// Looks until the end. `None` if nobody wants the traces.
fn watch(
    mut traces: GoTraces,
    processes: Receiver<BTreeSet<u32>>,
    requests: &Receiver<Request>,
    incomplete: Sender<()>,
) -> Option<Found> {
    let (mut processes, mut incomplete) = (processes, Some(incomplete));
    let mut is_stopped = false;
    let mut look = never();
    loop {
        select! {
            recv(processes) -> found => traces.look(&found.ok()?),
            recv(requests) -> request => match request.ok()? {
                Request::Stop => {
                    traces.stop();
                    // Others begin no more.
                    (processes, look, is_stopped) = (never(), tick(TICK), true);
                }
                Request::Finish(missed) => {
                    let missed = missed.filter(|_| !is_stopped);
                    processes.try_iter().chain(missed).for_each(|found| traces.look(&found));
                    return Some(traces.finish());
                }
            },
            recv(look) -> _ => if traces.are_complete() {
                drop(incomplete.take());
                look = never();
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::threads::refusal::without_threads;

    #[test]
    fn traces_are_complete_once_they_were_requested_to_end() {
        let mut recorder =
            GoRecorder::start(Wanted::of_process(1, None), std::env::temp_dir()).unwrap();
        recorder.look(&[std::process::id()].into());
        assert!(!recorder.are_complete());
        recorder.stop();
        recorder.stop();
        let _ = recorder.complete.recv(); // closed
        assert!(recorder.are_complete());
        let (traces, failures) = recorder.finish();
        assert!(traces.is_empty() && failures.is_empty(), "this is no Go program");
    }

    /// The thread is busy with a look while it gets two more.
    #[test]
    fn the_last_look_is_at_the_newest_processes() {
        let (looks, _busy) = bounded(1);
        let (requests, requested) = bounded(2);
        let (_incomplete, complete) = bounded(0);
        let thread = threads::start(move || match requested.recv() {
            Ok(Request::Finish(missed)) => {
                let missed = missed.into_iter().flatten().map(|pid| Failure::new(pid.to_string()));
                Some((Vec::new(), missed.collect()))
            }
            _ => None,
        });
        let thread = thread.unwrap();
        let mut recorder = GoRecorder { looks, missed: None, requests, complete, thread };
        for pid in 1..=3 {
            recorder.look(&[pid].into());
        }
        let (_, missed) = recorder.finish();
        assert_eq!(missed.iter().map(Failure::message).collect::<Vec<_>>(), ["3"]);
    }

    #[test]
    fn the_thread_ends_with_the_recorder() {
        let recorder =
            GoRecorder::start(Wanted::of_process(1, None), std::env::temp_dir()).unwrap();
        let GoRecorder { looks, requests, thread, .. } = recorder;
        drop((looks, requests));
        assert!(thread.join().unwrap().is_none());
        let wanted = Wanted::of_process(1, None);
        let refused = without_threads(|| GoRecorder::start(wanted, std::env::temp_dir()).err());
        assert!(refused.unwrap().message().contains("no thread"));
    }
}
