//! The end of a command that its caller no longer waits for.

use crate::transport::Connection;
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the commands of a client are waited for.
#[derive(Debug, Default)]
pub(crate) struct Cancellation(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// The last connection, also when its command has ended.
    Connected(OwnedFd),
    Cancelled,
    /// The caller has its result. Other commands of the client are not affected.
    Finished,
}

impl Cancellation {
    /// An error if the commands are cancelled.
    pub(crate) fn check(&self) -> io::Result<()> {
        match *self.lock() {
            State::Cancelled => Err(io::ErrorKind::ConnectionAborted.into()),
            State::Idle | State::Connected(_) | State::Finished => Ok(()),
        }
    }

    /// Closes a connection when the commands are cancelled. An error if they are.
    pub(crate) fn watch(&self, connection: &Connection) -> io::Result<()> {
        let mut state = self.lock();
        match *state {
            State::Cancelled => return Err(io::ErrorKind::ConnectionAborted.into()),
            State::Finished => {}
            State::Idle | State::Connected(_) => {
                if let Some(fd) = connection.as_fd() {
                    *state = State::Connected(fd.try_clone_to_owned()?);
                }
            }
        }
        Ok(())
    }

    /// The caller has its result.
    pub(crate) fn finish(&self) {
        *self.lock() = State::Finished;
    }

    /// Has a thread that waits for a reply return, unless the caller has its result.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        match *state {
            State::Finished => return,
            // It fails if the runtime has closed the connection: there is nothing to wait for then.
            State::Connected(ref fd) => drop(shutdown(fd, Shutdown::Both)),
            State::Idle | State::Cancelled => {}
        }
        *state = State::Cancelled;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
