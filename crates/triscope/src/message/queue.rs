//! Messages that a thread writes: standard error can be a pipe or a terminal whose reader has stopped, for which
//! neither the kernel's buffers nor a signal wait.

use crate::run::threads;
use crate::timeline::counted;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages that wait.
const LINES: usize = 256;

/// Time limit for the messages that wait at the end of the program.
const END: Duration = Duration::from_secs(5);

/// The same, if a signal ends it.
const END_AT_SIGNAL: Duration = Duration::from_secs(1);

/// How long messages wait for room in all, until those that wait are written. A burst is more than the queue has, for which
/// a file needs no longer.
const PATIENCE: Duration = Duration::from_millis(100);

static QUEUE: Queue = Queue::new(PATIENCE);

/// Has a thread write the messages from now on, until the program ends. Without a thread, they are written as before.
pub(crate) fn begin() {
    let mut state = QUEUE.lock();
    if !state.has_begun {
        state.has_begun = threads::start(|| QUEUE.write(std::io::stderr())).is_ok();
    }
}

/// Waits until all messages are written, for 5 s at most.
fn flush() {
    QUEUE.flush(END);
}

/// Waits until all messages are written, for 1 s at most.
pub(crate) fn flush_at_signal() {
    QUEUE.flush(END_AT_SIGNAL);
}

/// Waits for the messages when it is dropped, also by a panic.
pub(crate) struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        flush();
    }
}

/// Adds a line. Returns it if no thread writes it.
pub(super) fn push(line: String) -> Option<String> {
    QUEUE.push(line)
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    patience: Duration,
}

struct State {
    has_begun: bool,
    waiting: VecDeque<String>,
    /// Messages for which there was no room, after those that wait.
    dropped: u64,
    is_writing: bool,
    /// The time for which messages waited, since none was left to write.
    stalled: Duration,
}

impl State {
    /// Whether there is room for a line, with the one before it that counts those that were dropped.
    fn has_room(&self) -> bool {
        self.waiting.len() + 1 + usize::from(self.dropped > 0) <= LINES
    }

    /// The line about the messages that were dropped, if there are any.
    fn take_dropped(&mut self) -> Option<String> {
        let dropped = std::mem::take(&mut self.dropped);
        let what = "dropped: standard error was blocked";
        (dropped > 0).then(|| format!("triscope: {} {what}\n", counted(dropped, "message")))
    }
}

impl Queue {
    const fn new(patience: Duration) -> Self {
        let state = State {
            has_begun: false,
            waiting: VecDeque::new(),
            dropped: 0,
            is_writing: false,
            stalled: Duration::ZERO,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), patience }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: String) -> Option<String> {
        let mut state = self.lock();
        if !state.has_begun {
            return Some(line);
        }
        state = self.wait_for_room(state);
        if state.has_room() {
            let dropped = state.take_dropped();
            state.waiting.extend(dropped.into_iter().chain([line]));
        } else {
            state.dropped += 1;
        }
        self.changed.notify_all();
        None
    }

    /// Waits for room as long as the patience lasts.
    fn wait_for_room<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let left = self.patience.saturating_sub(state.stalled);
        if state.has_room() || left.is_zero() {
            return state;
        }
        let start = Instant::now();
        let waited = self.changed.wait_timeout_while(state, left, |state| !state.has_room());
        let (mut state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        state.stalled = match result.timed_out() {
            true => self.patience,
            false => state.stalled.saturating_add(start.elapsed()),
        };
        state
    }

    /// Writes the lines as they come.
    fn write(&self, mut out: impl Write) {
        loop {
            let line = self.next();
            let _ = out.write_all(line.as_bytes()); // nobody can be informed of it
        }
    }

    /// Waits for the next line. The one before was written.
    fn next(&self) -> String {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        loop {
            let line = state.waiting.pop_front();
            if let Some(line) = line.or_else(|| state.take_dropped()) {
                state.is_writing = true;
                return line;
            }
            state.stalled = Duration::ZERO;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all lines are written. Returns whether they are.
    fn flush(&self, limit: Duration) -> bool {
        let is_busy =
            |state: &mut State| state.is_writing || !state.waiting.is_empty() || state.dropped > 0;
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// Standard error with a reader that takes each line when it wants.
    struct Slow(SyncSender<String>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let line = String::from_utf8(bytes.to_vec()).unwrap();
            self.0.send(line).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue, and what is read of it.
    fn queue(patience: Duration) -> (Arc<Queue>, Receiver<String>) {
        let queue = Arc::new(Queue::new(patience));
        assert_eq!(queue.push("direct".to_owned()).as_deref(), Some("direct"));
        queue.lock().has_begun = true;
        let (to, read) = sync_channel(0);
        let writer = Arc::clone(&queue);
        // Ends with the process of the tests.
        std::thread::spawn(move || writer.write(Slow(to)));
        (queue, read)
    }

    #[test]
    fn a_reader_that_has_stopped_blocks_nobody() {
        let (queue, read) = queue(Duration::from_millis(1));
        let print = |n: usize| assert_eq!(queue.push(format!("{n}\n")), None);
        print(0);
        while !queue.lock().is_writing {
            std::thread::yield_now();
        }
        (1..LINES + 10).for_each(print);
        assert!(!queue.flush(Duration::ZERO));
        let number = |n: usize| assert_eq!(read.recv().unwrap(), format!("{n}\n"));
        (0..=LINES).for_each(number);
        // They are counted where they are missing.
        let missing = "triscope: 9 messages dropped: standard error was blocked\n";
        assert_eq!(read.recv().unwrap(), missing);
        print(LINES + 10);
        number(LINES + 10);
        assert!(queue.flush(Duration::from_secs(600)));
        assert_eq!(queue.lock().stalled, Duration::ZERO, "the next one can wait again");
    }

    #[test]
    fn a_burst_that_is_read_is_complete() {
        let (queue, read) = queue(Duration::from_secs(600));
        let reader = std::thread::spawn(move || {
            (0..4 * LINES).for_each(|n| assert_eq!(read.recv().unwrap(), format!("{n}\n")));
        });
        (0..4 * LINES).for_each(|n| assert_eq!(queue.push(format!("{n}\n")), None));
        reader.join().unwrap();
    }
}
