//! The limit of open files: each event has a descriptor for each thread or CPU.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The limit of open files.
struct Limit {
    /// The one that this process began with, if it was raised.
    before: Option<Rlimit>,
    /// Descriptors below that limit, for the start of a program.
    reserved: Vec<File>,
}

static LIMIT: Mutex<Limit> = Mutex::new(Limit { before: None, reserved: Vec::new() });

/// `/dev/null` for each of the three standard files, which are open at the same time, and two for the C library
/// or the pipe of an error.
const RESERVED: usize = 5;

fn limit() -> MutexGuard<'static, Limit> {
    LIMIT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Raises the soft limit to the hard one, as `perf` does. The usual soft limit is for programs with
/// `select(2)`, which this one does not have.
pub(crate) fn raise() {
    let mut limit = limit();
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    if limit.before.is_none() {
        // A failure is that of the event that needs one more.
        if now == raised || setrlimit(Resource::Nofile, raised).is_err() {
            return;
        }
        limit.before = Some(now);
    }
    while limit.reserved.len() < RESERVED {
        let Ok(file) = File::open("/dev/null") else { return };
        limit.reserved.push(file);
    }
}

/// Starts a program by `start`, with the limit that this process began with.
pub(crate) fn as_before<T>(start: impl FnOnce() -> T) -> T {
    let mut limit = limit();
    let Some(Rlimit { current, maximum }) = limit.before else { return start() };
    limit.reserved.clear();
    let raised = getrlimit(Resource::Nofile);
    // Files that are open stay so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    let started = start();
    let _ = setrlimit(Resource::Nofile, raised);
    started
}
