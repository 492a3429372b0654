//! Threads that may not start: what a trigger is about can use up the processes of a cgroup or a user.

use crate::failure::{Failure, Result};
use crate::run::threads;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};

/// Threads that could not be started.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The number of threads that could not be started.
pub(super) fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Starts a thread for this. One that cannot be started is counted.
pub(super) fn start<T: Send + 'static>(
    what: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    threads::spawn(body).map_err(|error| failure(what, &error))
}

/// As [`start`], within a scope.
pub(super) fn start_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    what: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    threads::spawn_in(scope, body).map_err(|error| failure(what, &error))
}

/// Gives a value to a thread for this. If none can be started, that is counted, and the value is returned.
pub(super) fn give<V: Send + 'static>(
    what: &str,
    value: V,
    body: impl FnOnce(V) + Send + 'static,
) -> std::result::Result<(), (V, Failure)> {
    threads::give(value, body).map_err(|(value, error)| (value, failure(what, &error)))
}

fn failure(what: &str, error: &io::Error) -> Failure {
    REFUSED.fetch_add(1, Ordering::Relaxed);
    Failure::about(format_args!("a thread for {what}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::threads::refusal::without_threads;

    #[test]
    fn a_thread_that_cannot_be_started_is_counted() {
        let before = refused();
        let failure = without_threads(|| start("a test", || ())).unwrap_err();
        let expected = io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
        assert_eq!(failure.message(), format!("a thread for a test: {expected}"));
        assert!(refused() > before);
        assert_eq!(start("a test", || 7).unwrap().join().unwrap(), 7);
    }
}
