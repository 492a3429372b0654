//! Values that arrive together: those of an interval.

use crate::failure::{Failure, Result};
use crate::run::threads;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time without a value after which the values of an interval are complete.
const QUIET: Duration = Duration::from_millis(100);

/// Longest time until a value is shown.
const LATEST: Duration = Duration::from_millis(500);

/// Shows values when the others of their interval are there. A thread does it, because the reader waits for
/// the next value.
pub(super) struct Bursts<T> {
    values: Sender<T>,
    /// Until its result is known.
    showing: Option<JoinHandle<Result>>,
}

impl<T: Send + 'static> Bursts<T> {
    /// `begin` is called by the thread, and returns what shows the values.
    pub(super) fn start<F: FnMut(Vec<T>) -> Result>(
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self> {
        let (values, received) = unbounded();
        let show = move || each_burst(&received, begin());
        let showing = threads::start(show).map_err(Failure::new)?;
        Ok(Self { values, showing: Some(showing) })
    }

    pub(super) fn add(&mut self, value: T) -> Result {
        // The thread ends before its values do if it cannot write.
        let Err(_) = self.values.send(value) else { return Ok(()) };
        joined(self.showing.take())
    }

    /// Shows the rest.
    pub(super) fn finish(self) -> Result {
        drop(self.values);
        joined(self.showing)
    }
}

fn joined(showing: Option<JoinHandle<Result>>) -> Result {
    showing.and_then(|showing| showing.join().ok()).unwrap_or(Ok(()))
}

/// Calls `show` with the values that arrive together.
fn each_burst<T>(values: &Receiver<T>, mut show: impl FnMut(Vec<T>) -> Result) -> Result {
    while let Ok(first) = values.recv() {
        let (mut burst, deadline) = (vec![first], Instant::now() + LATEST);
        while Instant::now() < deadline {
            let Ok(value) = values.recv_timeout(QUIET) else { break };
            burst.push(value);
        }
        show(burst)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::threads::refusal::without_threads;

    #[test]
    fn without_a_thread_there_is_a_failure_and_no_panic() {
        let begin = || |_: Vec<i32>| Ok(());
        let failure = without_threads(|| Bursts::start(begin).err()).unwrap();
        assert!(failure.message().starts_with("no thread could be started"));
        assert!(Bursts::start(begin).is_ok());
    }

    #[test]
    fn a_burst_is_shown_with_its_last_value_before_the_next_one() {
        let (shown, bursts) = unbounded();
        let begin = || move |burst: Vec<i32>| shown.send(burst).map_err(Failure::new);
        let mut values = Bursts::start(begin).unwrap();
        for interval in 0..2 {
            let burst = [interval, 10 + interval, 20 + interval];
            burst.iter().for_each(|value| assert!(values.add(*value).is_ok()));
            // The next value has not been sent.
            let mut found = Vec::new();
            while found.len() < burst.len() {
                found.extend(bursts.recv().unwrap_or_default());
            }
            assert_eq!(found, burst);
        }
        assert!(values.finish().is_ok());
    }
}
