//! Sessions whose reply comes after its time limit.
//!
//! A runtime whose diagnostic server was busy, or that was stopped, executes a request once it can. If the stream is closed
//! then, it may end (.NET Core 3.1). A thread waits for the reply, stops the session and reads its stream.

use crate::Client;
use crate::message::TracingCommand;
use crate::transport::{Connection, Deadline};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that wait at a time.
const MAX_THREADS: usize = 64;

/// The threads of this process.
static THREADS: Threads = Threads { count: Mutex::new(0), changed: Condvar::new() };

struct Threads {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Threads {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a thread until the value is dropped. `None` if there are too many.
    fn add(&'static self) -> Option<Counted> {
        let mut count = self.lock();
        (*count < MAX_THREADS).then(|| {
            *count += 1;
            Counted(self)
        })
    }
}

/// A thread that is counted.
struct Counted(&'static Threads);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.changed.notify_all();
    }
}

/// Waits for the reply on a connection for as long as a dump may take, and stops the session. Without a thread, the
/// connection is closed.
pub(crate) fn stop(client: &Client, connection: Connection, command: TracingCommand) {
    let Some(counted) = THREADS.add() else { return };
    let client = client.clone();
    let wait = move || {
        let _counted = counted;
        let deadline = Deadline::after(client.current_timeouts().dump);
        // No caller is left to report an error to.
        if let Ok(session) = client.session(connection, command, deadline) {
            let _ = session.stop();
        }
    };
    let _ = std::thread::Builder::new().name("diag-ipc late".into()).spawn(wait);
}

/// Waits until no session is left that began after its caller had got an error, and that has not ended: see
/// [`Client::collect_tracing`]. Returns whether that was within `limit`.
///
/// To be called before a process ends: the end closes the connections, which can crash .NET Core 3.1.
pub fn wait_for_late_sessions(limit: Duration) -> bool {
    let waited = THREADS.changed.wait_timeout_while(THREADS.lock(), limit, |count| *count > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}
