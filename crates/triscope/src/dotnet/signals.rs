use crate::failure::{Failure, Result};
use diag_ipc::Stopper;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Ends a session when the user or the clock says so.
///
/// The first signal asks the runtime for the end, which comes with the rest of the stream; the
/// second one gives up on that.
pub(super) struct Ender {
    handle: Handle,
    asked: Arc<AtomicU8>,
    failed: Arc<AtomicBool>,
    timer: Option<mpsc::Sender<()>>,
}

impl Ender {
    pub(super) fn new(stopper: Stopper, after: Option<Duration>) -> Result<Self> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| Failure::about("signals", e))?;
        let handle = signals.handle();
        let asked = Arc::new(AtomicU8::new(0));
        let failed = Arc::new(AtomicBool::new(false));
        let stop = {
            let (asked, failed) = (Arc::clone(&asked), Arc::clone(&failed));
            move || {
                if asked.fetch_add(1, Ordering::AcqRel) == 0 && stopper.stop().is_err() {
                    failed.store(true, Ordering::Release);
                }
            }
        };
        let timer = after.map(|after| {
            let (timer, ended) = mpsc::channel::<()>();
            let stop = stop.clone();
            std::thread::spawn(move || {
                if ended.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                    stop();
                }
            });
            timer
        });
        std::thread::spawn(move || signals.forever().for_each(|_| stop()));
        Ok(Self { handle, asked, failed, timer })
    }

    /// Whether the end was asked for.
    pub(super) fn is_stopping(&self) -> bool {
        self.asked.load(Ordering::Acquire) > 0
    }

    /// Whether to leave at once: asked twice, or the runtime could not be asked.
    pub(super) fn gives_up(&self) -> bool {
        self.asked.load(Ordering::Acquire) > 1 || self.failed.load(Ordering::Acquire)
    }
}

impl Drop for Ender {
    fn drop(&mut self) {
        self.handle.close();
        drop(self.timer.take());
    }
}
