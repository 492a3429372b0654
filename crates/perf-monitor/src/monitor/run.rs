//! The runs of a monitor: one at a time.

use super::lock;
use crate::error::{Error, Result};
use crate::ring_set::Alarm;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

/// What starts and stops the runs of a monitor. It outlives the monitor, so that the end of a run can be
/// reported after the monitor is dropped.
#[derive(Debug)]
pub(super) struct Runs {
    state: Mutex<State>,
    idle: Condvar,
    is_stopping: AtomicBool,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct State {
    /// Number of runs so far.
    number: u64,
    is_running: bool,
    /// The thread of the run, once that has started.
    thread: Option<ThreadId>,
}

/// A run. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Run {
    runs: Arc<Runs>,
    number: u64,
}

/// Stops one run, and no later one, when it is dropped.
#[derive(Debug)]
pub(super) struct Stop {
    runs: Arc<Runs>,
    number: u64,
}

impl Runs {
    pub(super) fn new(alarm: Alarm) -> Arc<Self> {
        let (state, idle) = (Mutex::default(), Condvar::new());
        Arc::new(Self { state, idle, is_stopping: AtomicBool::new(false), alarm })
    }

    /// Begins a run by `start`, unless there is one.
    pub(super) fn begin(self: &Arc<Self>, start: impl FnOnce() -> Result<()>) -> Result<Run> {
        let mut state = lock(&self.state);
        if state.is_running {
            return Err(Error::MonitorRuns);
        }
        start()?;
        *state = State { number: state.number + 1, is_running: true, thread: None };
        // A request to stop is meant for this run from now on.
        self.is_stopping.store(false, Ordering::Release);
        Ok(Run { runs: Arc::clone(self), number: state.number })
    }

    pub(super) fn is_running(&self) -> bool {
        lock(&self.state).is_running
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Asks the run to end. With `wait`, this returns at its end, except on its own thread.
    pub(super) fn stop(&self, wait: bool) {
        // A run that begins meanwhile would forget the request.
        let mut state = lock(&self.state);
        self.request();
        // The reader cannot wait for itself.
        let this = Some(std::thread::current().id());
        while wait && state.is_running && state.thread != this {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn request(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.alarm.ring();
    }
}

impl Run {
    pub(super) fn starts_on_this_thread(&self) {
        lock(&self.runs.state).thread = Some(std::thread::current().id());
    }

    pub(super) fn stop_on_drop(&self) -> Stop {
        Stop { runs: Arc::clone(&self.runs), number: self.number }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        lock(&self.runs.state).is_running = false;
        self.runs.idle.notify_all();
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        // No other run begins meanwhile.
        let state = lock(&self.runs.state);
        if state.number == self.number {
            self.runs.request();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::yield_now;
    use std::time::{Duration, Instant};

    #[test]
    fn a_request_during_the_start_is_for_that_run() {
        let runs = Runs::new(Alarm::idle().unwrap());
        let (starts, started) = channel();
        let other = Arc::clone(&runs);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                started.recv().unwrap();
                other.stop(true);
            });
            let run = runs.begin(|| {
                starts.send(()).unwrap();
                // The other thread has time for a request.
                (0..10_000).take_while(|_| !runs.is_stopping()).for_each(|_| yield_now());
                Ok(())
            });
            let run = run.unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            while !runs.is_stopping() && Instant::now() < deadline {
                yield_now();
            }
            let is_stopping = runs.is_stopping();
            // The other thread waits for it.
            drop(run);
            assert!(is_stopping);
        });
    }
}
