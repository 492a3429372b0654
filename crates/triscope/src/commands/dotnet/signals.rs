use crate::failure::Result;
use crate::run::stop::{self, Listener};
use diag_ipc::StopHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Ends a session when the user or the clock says so.
///
/// The first signal asks the runtime for the end, which comes with the rest of the stream; the
/// second one does not wait for that.
pub(super) struct Ender {
    _listener: Listener,
    asked: Arc<AtomicBool>,
    stop_handle: StopHandle,
    /// Dropped with this, which ends the clock's thread.
    _timer: Option<mpsc::Sender<()>>,
}

impl Ender {
    pub(super) fn new(stop_handle: StopHandle, after: Option<Duration>) -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let stop = {
            let (asked, stop_handle) = (Arc::clone(&asked), stop_handle.clone());
            move || {
                asked.store(true, Ordering::Release);
                if let Err(error) = stop_handle.stop() {
                    eprintln!("triscope: the session could not be asked to end: {error}");
                }
            }
        };
        let mut first = Some(stop.clone());
        let listener = Listener::start(move |signal| match first.take() {
            // Not here: asking may take its time, and the next signal must not wait for it.
            Some(stop) => drop(std::thread::spawn(stop)),
            None => {
                eprintln!("triscope: left before the end of the session: the trace is cut");
                std::process::exit(stop::exit_code(signal).into());
            }
        })?;
        let timer = after.map(|after| {
            let (timer, ended) = mpsc::channel::<()>();
            std::thread::spawn(move || {
                if ended.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                    stop();
                }
            });
            timer
        });
        Ok(Self { _listener: listener, asked, stop_handle, _timer: timer })
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
