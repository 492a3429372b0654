use crate::failure::{Failure, Result};
use crate::run::stop::{Listener, Next};
use crate::run::threads;
use crate::run::watch::timer;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded, select};
use diag_ipc::StopHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval between requests that cannot be sent.
const RETRY: Duration = Duration::from_secs(1);

/// Stops a session on a signal or at the time limit.
///
/// The first signal requests the end from the runtime, which then sends the rest of the stream. The
/// second signal does not wait for it, except with a command: then further signals end the command
/// (see [`stop`](crate::run::stop)), and the stream ends with it.
pub(super) struct StopOnSignal {
    _listener: Listener,
    asked: Arc<AtomicBool>,
    /// Whether a signal has asked for the end.
    interrupted: Arc<AtomicBool>,
    stop_handle: StopHandle,
    /// Has the thread request the end.
    request: Sender<()>,
    /// Closed when this is dropped, which ends the thread that sends stop requests.
    _running: Sender<()>,
}

impl StopOnSignal {
    pub(super) fn new(
        stop_handle: StopHandle,
        after: Option<Duration>,
        has_command: bool,
    ) -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let (signal, signalled) = bounded::<()>(1);
        let (request, requested) = bounded::<()>(1);
        let (running, ended) = bounded::<()>(0);
        let mut first = true;
        let interrupted = Arc::new(AtomicBool::new(false));
        let on_signal = Arc::clone(&interrupted);
        let listener = Listener::start(move |_| {
            on_signal.store(true, Ordering::Release);
            if std::mem::take(&mut first) {
                let _ = signal.try_send(()); // the session may have ended
                return Next::Wait;
            }
            if has_command {
                return Next::Wait;
            }
            message!("triscope: interrupted: the trace is truncated");
            Next::Exit
        })?;
        let time = timer(after);
        // A request can take time, and the next signal must not wait for it.
        let ask = {
            let (asked, stop_handle) = (Arc::clone(&asked), stop_handle.clone());
            let ended = ended.clone();
            move || {
                asked.store(true, Ordering::Release);
                let mut is_first = true;
                while let Err(error) = stop_handle.stop() {
                    if std::mem::take(&mut is_first) {
                        message!("triscope: the session cannot be stopped, trying again: {error}");
                    }
                    if ended.recv_timeout(RETRY) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                }
            }
        };
        let wait = move || {
            select! {
                recv(signalled) -> signal => if signal.is_ok() { ask() },
                recv(requested) -> request => if request.is_ok() { ask() },
                recv(time) -> _ => ask(),
                recv(ended) -> _ => {}
            }
        };
        threads::start(wait).map_err(Failure::new)?;
        let _listener = listener;
        Ok(Self { _listener, asked, interrupted, stop_handle, request, _running: running })
    }

    /// Has the end requested, as a signal does, without waiting for it.
    pub(super) fn ask(&self) {
        let _ = self.request.try_send(()); // there is a request already
    }

    /// Requests the end, and returns whether the request was sent.
    pub(super) fn end(&self) -> bool {
        self.stop_handle.stop().is_ok()
    }

    /// Whether there was a signal.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }

    /// Whether the end was requested.
    pub(super) fn is_stopping(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
