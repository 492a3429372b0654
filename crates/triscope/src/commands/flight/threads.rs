//! Threads that may not start: what a trigger is about can use up the processes of a cgroup or a user.

use crate::failure::{Failure, Result};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

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
    builder().spawn(body).map_err(|error| failure(what, &error))
}

/// As [`start`], within a scope.
pub(super) fn start_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    what: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    builder().spawn_scoped(scope, body).map_err(|error| failure(what, &error))
}

fn failure(what: &str, error: &io::Error) -> Failure {
    REFUSED.fetch_add(1, Ordering::Relaxed);
    Failure::about(format_args!("a thread for {what}"), error)
}

#[cfg(not(test))]
fn builder() -> Builder {
    Builder::new()
}

#[cfg(test)]
fn builder() -> Builder {
    tests::builder()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static IS_REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    /// Threads that this thread starts are refused meanwhile, with the error of a limit of processes.
    pub(in super::super) fn while_refused<T>(act: impl FnOnce() -> T) -> T {
        IS_REFUSED.set(true);
        let result = act();
        IS_REFUSED.set(false);
        result
    }

    pub(super) fn builder() -> Builder {
        /// There is no memory for such a stack.
        const TOO_LARGE: usize = 1 << 60;
        match IS_REFUSED.get() {
            true => Builder::new().stack_size(TOO_LARGE),
            false => Builder::new(),
        }
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_counted() {
        let before = refused();
        let failure = while_refused(|| start("a test", || ())).unwrap_err();
        let expected = io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
        assert_eq!(failure.message(), format!("a thread for a test: {expected}"));
        assert!(refused() > before);
        assert_eq!(start("a test", || 7).unwrap().join().unwrap(), 7);
    }
}
