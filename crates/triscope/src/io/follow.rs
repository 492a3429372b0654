//! Files that are still being written.

use crate::failure::{Failure, Result};
use crate::run::stop::Listener;
use crate::run::threads;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that is read while it grows. At its end, reading waits for more. It ends when the writer
/// closes the file, or at the first SIGINT, SIGTERM or SIGHUP.
pub(crate) struct Follow {
    file: File,
    changes: Receiver<Change>,
    /// Ready at a signal.
    stopping: Receiver<()>,
    has_ended: bool,
    is_stopped: Arc<AtomicBool>,
    _listener: Listener,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Grown,
    Closed,
}

impl Follow {
    /// Opens a file, and watches it from before the first read on.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let fail = |error: io::Error| Failure::about(path.display(), error);
        let watch = inotify::init(CreateFlags::CLOEXEC).map_err(|error| fail(error.into()))?;
        let file = File::open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            let message = "is not a file that can be followed: pipes and sockets are read to \
                           their end without --follow";
            return Err(Failure::about(path.display(), message));
        }
        inotify::add_watch(&watch, path, WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE)
            .map_err(|error| fail(error.into()))?;
        // One change that waits stands for all before the next read.
        let (sender, changes) = bounded(1);
        let (stop, stopping) = bounded(1);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let listener = Listener::stop(move || {
            stopped.store(true, Ordering::SeqCst);
            let _ = stop.send(()); // reading may have ended
        })?;
        threads::start(move || report(&watch, &sender)).map_err(fail)?;
        Ok(Self { file, changes, stopping, has_ended: false, is_stopped, _listener: listener })
    }

    /// Becomes true at a signal.
    pub(crate) fn stopped(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_stopped)
    }
}

impl Read for Follow {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.file.read(out)?;
            if count > 0 || self.has_ended || out.is_empty() {
                return Ok(count);
            }
            // What was written before a change is there: read again after each.
            self.has_ended = select! {
                recv(self.stopping) -> _ => true,
                recv(self.changes) -> change => change != Ok(Change::Grown),
            };
        }
    }
}

/// Passes on changes of the file, until it is closed or nobody reads it.
fn report(watch: &OwnedFd, changes: &Sender<Change>) {
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    loop {
        let change = match reader.next() {
            Ok(event) => match event.events() {
                // It was deleted, too: then there is no further change.
                flags if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::IGNORED) => {
                    Change::Closed
                }
                _ => Change::Grown,
            },
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => Change::Closed,
        };
        if !pass_on(change, changes) || change == Change::Closed {
            return;
        }
    }
}

/// Returns whether somebody reads the file. Its end waits for the reader, which reads all before it.
fn pass_on(change: Change, changes: &Sender<Change>) -> bool {
    match change {
        // The reader has not yet read after the one that waits.
        Change::Grown => !matches!(changes.try_send(change), Err(TrySendError::Disconnected(_))),
        Change::Closed => changes.send(change).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_do_not_pile_up_before_a_reader_that_is_slow() {
        let (sender, changes) = bounded(1);
        assert!((0..1000).all(|_| pass_on(Change::Grown, &sender)));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(pass_on(Change::Closed, &sender)));
            assert_eq!([changes.recv(), changes.recv()], [Ok(Change::Grown), Ok(Change::Closed)]);
        });
        drop(changes);
        assert!(!pass_on(Change::Grown, &sender) && !pass_on(Change::Closed, &sender));
    }
}
