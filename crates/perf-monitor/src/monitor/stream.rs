//! Delivery to another thread.

use super::runner::Sink;
use super::{Inner, MonitorSample};
use crate::error::{Error, Result};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The behaviour of a [`MonitorStream`] whose channel is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// The reader waits. The rings fill up meanwhile, and the kernel counts what does not fit:
    /// [`MonitorCounts::lost`](super::MonitorCounts::lost).
    Block,
    /// The batch is dropped and its samples are counted:
    /// [`MonitorCounts::overflow`](super::MonitorCounts::overflow).
    Drop,
}

/// Batches of samples from the reading thread of [`EventMonitor::spawn`](super::EventMonitor::spawn).
///
/// It ends when the monitor is stopped and everything was taken. Dropping it stops the monitor; what
/// was not taken is counted as overflow.
#[derive(Debug)]
pub struct MonitorStream<T> {
    receiver: Receiver<Vec<MonitorSample<T>>>,
    thread: JoinHandle<Result<()>>,
}

impl<T: Send + 'static> MonitorStream<T> {
    pub(super) fn start(inner: Arc<Inner<T>>, capacity: usize, overflow: Overflow) -> Result<Self> {
        inner.begin()?;
        let (sender, receiver) = sync_channel(capacity.max(1));
        let of_thread = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("perf-monitor".to_owned()).spawn(move || {
            let is_abandoned = &of_thread.is_abandoned;
            of_thread.run_begun(&mut Channel { sender, overflow, is_abandoned })
        });
        match thread {
            Ok(thread) => Ok(Self { receiver, thread }),
            Err(error) => {
                inner.end();
                Err(Error::Thread(error))
            }
        }
    }
}

impl<T> MonitorStream<T> {
    /// The next batch, in time order; `None` at the end.
    pub fn next_batch(&self) -> Option<Vec<MonitorSample<T>>> {
        self.receiver.recv().ok()
    }

    /// The next batch, if one comes within `timeout`; `None` at the end.
    pub fn next_batch_within(&self, timeout: Duration) -> Option<Vec<MonitorSample<T>>> {
        match self.receiver.recv_timeout(timeout) {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Waits for the end of the reading thread, and returns its error. Batches that were not taken
    /// are dropped.
    ///
    /// # Errors
    ///
    /// Those of [`EventMonitor::run`](super::EventMonitor::run).
    pub fn join(self) -> Result<()> {
        let Self { receiver, thread } = self;
        drop(receiver);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> Iterator for &MonitorStream<T> {
    type Item = Vec<MonitorSample<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch()
    }
}

struct Channel<'a, T> {
    sender: SyncSender<Vec<MonitorSample<T>>>,
    overflow: Overflow,
    /// Nothing takes batches any more.
    is_abandoned: &'a AtomicBool,
}

impl<T> Sink<T> for Channel<'_, T> {
    fn deliver(&mut self, batch: &mut Vec<MonitorSample<T>>) -> ControlFlow<()> {
        /// Interval between attempts while the channel is full.
        const RETRY: Duration = Duration::from_micros(500);
        let capacity = batch.capacity();
        let mut full = std::mem::take(batch);
        loop {
            match self.sender.try_send(full) {
                Ok(()) => {
                    batch.reserve(capacity);
                    return ControlFlow::Continue(());
                }
                Err(TrySendError::Full(rest)) => {
                    let may_wait = self.overflow == Overflow::Block
                        && !self.is_abandoned.load(Ordering::Acquire);
                    if !may_wait {
                        *batch = rest;
                        return ControlFlow::Continue(());
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
