//! Threads where the system may permit no more: `std::thread::spawn` panics there.

use crossbeam_channel::bounded;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread.
///
/// # Errors
///
/// Where the limit of threads (`RLIMIT_NPROC`, `pids.max` of the cgroup) is reached, or there is no memory.
pub(crate) fn start<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let refused = |error: io::Error| {
        io::Error::new(error.kind(), format!("no thread could be started: {error}"))
    };
    spawn(body).map_err(refused)
}

/// As [`start`], with the error of the system.
pub(crate) fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    builder().spawn(body)
}

/// As [`spawn`], within a scope.
pub(crate) fn spawn_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    builder().spawn_scoped(scope, body)
}

/// Gives a value to a thread. If none can be started, returns the value and the error of the system.
pub(crate) fn give<V: Send + 'static>(
    value: V,
    body: impl FnOnce(V) + Send + 'static,
) -> Result<(), (V, io::Error)> {
    let (give, take) = bounded(1);
    let started = spawn(move || {
        if let Ok(value) = take.recv() {
            body(value);
        }
    });
    match started {
        Ok(_) => drop(give.send(value)), // the thread waits for it
        Err(error) => return Err((value, error)),
    }
    Ok(())
}

/// Runs this on a thread, or on the calling one if none can be started.
pub(crate) fn start_or_run(body: impl FnOnce() + Send + 'static) {
    if let Err((body, _)) = give(body, |body| body()) {
        body();
    }
}

#[cfg(not(test))]
fn builder() -> Builder {
    Builder::new()
}

#[cfg(test)]
fn builder() -> Builder {
    refusal::builder()
}

/// A system that permits no more threads.
#[cfg(test)]
pub(crate) mod refusal {
    use super::Builder;
    use std::cell::Cell;

    thread_local! {
        static REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    /// Calls this, where the calling thread can start no other one: the error is that of a limit of processes.
    pub(crate) fn without_threads<T>(body: impl FnOnce() -> T) -> T {
        REFUSED.set(true);
        let result = body();
        REFUSED.set(false);
        result
    }

    pub(super) fn builder() -> Builder {
        /// There is no memory for such a stack.
        const TOO_LARGE: usize = 1 << 60;
        match REFUSED.get() {
            true => Builder::new().stack_size(TOO_LARGE),
            false => Builder::new(),
        }
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
