//! Delivery to another thread.

use super::run::{Runs, Stop};
use super::runner::Sink;
use super::{Begun, Inner, MonitorSample, lock};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The behaviour of a [`MonitorStream`] whose channel is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// The reader waits. The rings fill up meanwhile, and the kernel counts what does not fit:
    /// [`MonitorCounts::lost`](super::MonitorCounts::lost). When the monitor is stopped, it does not
    /// wait any more: batches that do not fit in the channel are kept until they are taken.
    Block,
    /// The batch is dropped and its samples are counted:
    /// [`MonitorCounts::overflow`](super::MonitorCounts::overflow).
    Drop,
}

/// Batches of samples from the reading thread of [`EventMonitor::spawn`](super::EventMonitor::spawn).
///
/// It ends when the monitor is stopped and everything was taken. Dropping it stops the monitor, if it
/// still runs for this stream. Batches that were passed on and not taken are dropped: their samples are
/// counted as delivered; those that come after that, as overflow.
#[derive(Debug)]
pub struct MonitorStream<T> {
    receiver: Receiver<Vec<MonitorSample<T>>>,
    /// Comes after what the channel has.
    rest: Arc<Rest<T>>,
    stop: Stop,
    thread: JoinHandle<Result<()>>,
}

/// Batches that did not fit in the channel when the monitor was stopped.
type Rest<T> = Mutex<VecDeque<Vec<MonitorSample<T>>>>;

impl<T: Send + 'static> MonitorStream<T> {
    pub(super) fn start(inner: Arc<Inner<T>>, capacity: usize, overflow: Overflow) -> Result<Self> {
        let runs = Arc::clone(&inner.runs);
        let begun = Begun::new(inner)?;
        let stop = begun.run.stop_on_drop();
        let (sender, receiver) = sync_channel(capacity.max(1));
        let rest = Arc::<Rest<T>>::default();
        let mut channel = Channel { sender, rest: Arc::clone(&rest), overflow, runs };
        let thread = std::thread::Builder::new().name("perf-monitor".to_owned());
        let thread = thread.spawn(move || begun.run(&mut channel)).map_err(Error::Thread)?;
        Ok(Self { receiver, rest, stop, thread })
    }
}

impl<T> MonitorStream<T> {
    /// The next batch, in time order; `None` at the end.
    pub fn next_batch(&self) -> Option<Vec<MonitorSample<T>>> {
        self.receiver.recv().ok().or_else(|| self.next_of_rest())
    }

    /// The next batch, if one comes within `timeout`; `None` at the end.
    pub fn next_batch_within(&self, timeout: Duration) -> Option<Vec<MonitorSample<T>>> {
        match self.receiver.recv_timeout(timeout) {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => self.next_of_rest(),
        }
    }

    /// The reader has ended, and the channel is empty.
    fn next_of_rest(&self) -> Option<Vec<MonitorSample<T>>> {
        lock(&self.rest).pop_front()
    }

    /// Stops the monitor, if it still runs for this stream, waits for the end of the reading thread, and
    /// returns its error. Batches that were not taken are dropped.
    ///
    /// # Errors
    ///
    /// Those of [`EventMonitor::run`](super::EventMonitor::run).
    pub fn join(self) -> Result<()> {
        let Self { receiver, rest, stop, thread } = self;
        drop((receiver, rest, stop));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> Iterator for &MonitorStream<T> {
    type Item = Vec<MonitorSample<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch()
    }
}

struct Channel<T> {
    sender: SyncSender<Vec<MonitorSample<T>>>,
    rest: Arc<Rest<T>>,
    overflow: Overflow,
    /// The thread that takes the batches can be the one that waits for the end.
    runs: Arc<Runs>,
}

impl<T> Channel<T> {
    fn keep(&self, batch: Vec<MonitorSample<T>>) -> ControlFlow<()> {
        lock(&self.rest).push_back(batch);
        ControlFlow::Continue(())
    }
}

impl<T> Sink<T> for Channel<T> {
    fn deliver(&mut self, batch: &mut Vec<MonitorSample<T>>) -> ControlFlow<()> {
        /// Interval between attempts while the channel is full.
        const RETRY: Duration = Duration::from_micros(500);
        let capacity = batch.capacity();
        let mut full = std::mem::take(batch);
        if !lock(&self.rest).is_empty() {
            // Without the stream, nothing takes it.
            if Arc::strong_count(&self.rest) == 1 {
                *batch = full;
                return ControlFlow::Break(());
            }
            return self.keep(full);
        }
        loop {
            match self.sender.try_send(full) {
                Ok(()) => {
                    batch.reserve(capacity);
                    return ControlFlow::Continue(());
                }
                Err(TrySendError::Full(rest)) if self.overflow == Overflow::Drop => {
                    *batch = rest;
                    return ControlFlow::Continue(());
                }
                Err(TrySendError::Full(rest)) => {
                    if self.runs.is_stopping() {
                        return self.keep(rest);
                    }
                    full = rest;
                    std::thread::sleep(RETRY);
                }
                Err(TrySendError::Disconnected(rest)) => {
                    *batch = rest;
                    return ControlFlow::Break(());
                }
            }
        }
    }
}
