use crate::failure::{Failure, Result};
use diag_ipc::Stopper;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Ends a session when the user or the clock says so.
///
/// The first signal asks the runtime for the end, which comes with the rest of the stream; the
/// second one does not wait for that.
pub(super) struct Ender {
    handle: Handle,
    asked: Arc<AtomicBool>,
    stopper: Stopper,
    timer: Option<mpsc::Sender<()>>,
}

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: i32 = 128 + SIGINT;

impl Ender {
    pub(super) fn new(stopper: Stopper, after: Option<Duration>) -> Result<Self> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|e| Failure::about("signals", e))?;
        let handle = signals.handle();
        let asked = Arc::new(AtomicBool::new(false));
        let stop = {
            let (asked, stopper) = (Arc::clone(&asked), stopper.clone());
            move || {
                asked.store(true, Ordering::Release);
                if let Err(error) = stopper.stop() {
                    eprintln!("triscope: the session could not be asked to end: {error}");
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
        std::thread::spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                // Not here: asking may take its time, and the next signal must not wait for it.
                std::thread::spawn(stop);
            }
            if signals.next().is_some() {
                eprintln!("triscope: left before the end of the session: the trace is cut");
                std::process::exit(INTERRUPTED);
            }
        });
        Ok(Self { handle, asked, stopper, timer })
    }

    /// Asks for the end, and says whether that could be done.
    pub(super) fn end(&self) -> bool {
        self.stopper.stop().is_ok()
    }

    /// Whether the end was asked for.
    pub(super) fn is_stopping(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl Drop for Ender {
    fn drop(&mut self) {
        self.handle.close();
        drop(self.timer.take());
    }
}
