//! Threads where the system may permit no more: `std::thread::spawn` panics there.

use crossbeam_channel::bounded;
use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread.
///
/// # Errors
///
/// Where the limit of threads (`RLIMIT_NPROC`, `pids.max` of the cgroup) is reached, or there is no memory.
pub(crate) fn start<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    #[cfg(test)]
    if refusal::REFUSED.get() {
        return Err(refused(&io::ErrorKind::WouldBlock.into()));
    }
    Builder::new().spawn(body).map_err(|error| refused(&error))
}

fn refused(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("no thread could be started: {error}"))
}

/// Runs this on a thread, or on the calling one if none can be started.
pub(crate) fn start_or_run<F: FnOnce() + Send + 'static>(body: F) {
    let (give, take) = bounded::<F>(1);
    let started = start(move || {
        if let Ok(body) = take.recv() {
            body();
        }
    });
    match started {
        Ok(_) => drop(give.send(body)), // the thread waits for it
        Err(_) => body(),
    }
}

/// A system that permits no more threads.
#[cfg(test)]
pub(crate) mod refusal {
    use std::cell::Cell;

    thread_local! {
        pub(super) static REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    /// Calls this, where the calling thread can start no other one.
    pub(crate) fn without_threads<T>(body: impl FnOnce() -> T) -> T {
        REFUSED.set(true);
        let result = body();
        REFUSED.set(false);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::refusal::without_threads;
    use super::*;
    use std::thread::current;

    #[test]
    fn what_has_no_thread_runs_on_the_calling_one() {
        let (to, ran) = bounded(2);
        let send = |to: crossbeam_channel::Sender<_>| move || to.send(current().id()).unwrap();
        start_or_run(send(to.clone()));
        assert_ne!(ran.recv().unwrap(), current().id());
        without_threads(|| start_or_run(send(to)));
        assert_eq!(ran.recv().unwrap(), current().id());
        let error = without_threads(|| start(|| ())).unwrap_err();
        assert!(error.to_string().starts_with("no thread could be started"), "{error}");
    }
}
