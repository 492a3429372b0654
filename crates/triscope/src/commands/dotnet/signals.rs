use crate::failure::Result;
use crate::run::stop::{Listener, Next};
use crate::run::watch::timer;
use crossbeam_channel::{Sender, bounded, select};
use diag_ipc::StopHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ends a session when a signal or the time limit asks for it.
///
/// The first signal asks the runtime for the end, which comes with the rest of the stream; the
/// second one does not wait for that.
pub(super) struct StopOnSignal {
    _listener: Listener,
    asked: Arc<AtomicBool>,
    stop_handle: StopHandle,
    /// Closed when this is dropped, which ends the thread that asks.
    _running: Sender<()>,
}

impl StopOnSignal {
    pub(super) fn new(stop_handle: StopHandle, after: Option<Duration>) -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let (signal, signalled) = bounded::<()>(1);
        let (running, ended) = bounded::<()>(0);
        let mut first = true;
        let listener = Listener::start(move |_| {
            if std::mem::take(&mut first) {
                let _ = signal.try_send(()); // the session may be over already
                return Next::Wait;
            }
            eprintln!("triscope: interrupted: the trace is truncated");
            Next::Exit
        })?;
        let time = timer(after);
        // Asking may take its time, and the next signal must not wait for it.
        let ask = {
            let (asked, stop_handle) = (Arc::clone(&asked), stop_handle.clone());
            move || {
                asked.store(true, Ordering::Release);
                if let Err(error) = stop_handle.stop() {
                    eprintln!("triscope: the session cannot be stopped: {error}");
                }
            }
        };
        std::thread::spawn(move || {
            select! {
                recv(signalled) -> signal => if signal.is_ok() { ask() },
                recv(time) -> _ => ask(),
                recv(ended) -> _ => {}
            }
        });
        Ok(Self { _listener: listener, asked, stop_handle, _running: running })
    }

    /// Asks for the end, and says whether that could be done.
    pub(super) fn end(&self) -> bool {
        self.stop_handle.stop().is_ok()
    }

    /// Whether the end was asked for.
    pub(super) fn is_stopping(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
