//! Signals that ask the program to end.

use super::procfs::is_running;
use crate::failure::{Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Hears of SIGINT, SIGTERM and SIGHUP on a thread of its own. Once started they do nothing but
/// what it does, until the program ends.
pub(crate) struct Listener {
    handle: Handle,
}

impl Listener {
    /// Calls `on_signal` with every signal that comes; not with those that whoever started the
    /// program has it ignore, as `nohup` does.
    pub(crate) fn start(mut on_signal: impl FnMut(i32) + Send + 'static) -> Result<Self> {
        let ignored = ignored();
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !ignored.has(*signal));
        let mut signals = Signals::new(wanted).map_err(|e| Failure::about("signals", e))?;
        let handle = signals.handle();
        std::thread::spawn(move || signals.forever().for_each(&mut on_signal));
        Ok(Self { handle })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Until when what runs already is watched: a signal, the time, or the end of all of it.
pub(crate) struct Until {
    signals: mpsc::Receiver<i32>,
    _listener: Listener,
    deadline: Option<Instant>,
    /// Whose ends to wait for; empty if nothing ends.
    pids: Vec<u32>,
}

impl Until {
    /// `clean_up` is called before a second signal ends this process.
    pub(crate) fn new(
        seconds: Option<Duration>,
        pids: &[u32],
        clean_up: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let (sender, signals) = mpsc::channel();
        let mut asked = false;
        let listener = Listener::start(move |signal| {
            // The second one does not wait.
            if std::mem::replace(&mut asked, true) {
                clean_up();
                std::process::exit(exit_code(signal).into());
            }
            let _ = sender.send(signal); // whoever waited has gone: it ends already
        })?;
        // What is too far away to be told never comes.
        let deadline = seconds.and_then(|s| Instant::now().checked_add(s));
        Ok(Self { signals, _listener: listener, deadline, pids: pids.to_vec() })
    }

    /// Waits for so long at most, and says whether that was the end.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        match self.signals.recv_timeout(left.map_or(most, |left| left.min(most))) {
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => return true,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let over = self.deadline.is_some_and(|at| Instant::now() >= at);
        over || !self.pids.is_empty() && !self.pids.iter().any(|pid| is_running(*pid))
    }
}

/// What a shell reports of a process that this signal has ended.
pub(crate) const fn exit_code(signal: i32) -> u8 {
    128 + signal as u8
}

/// A set of signals, as the kernel shows it: a bit for each.
struct Set(u64);

impl Set {
    const fn has(&self, signal: i32) -> bool {
        self.0 >> (signal - 1) & 1 == 1
    }

    /// The set in a line of `/proc/PID/status`: see `proc_pid_status(5)`.
    fn of_status(status: &str, name: &str) -> Self {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Self(line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0))
    }
}

fn ignored() -> Set {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Set::of_status(&status, "SigIgn")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        let set = Set::of_status("SigBlk:\t0\nSigIgn:\t0000000000001001\nSigCgt:\t4\n", "SigIgn");
        assert!(set.has(SIGHUP) && set.has(13) && !set.has(SIGINT) && !set.has(SIGTERM));
        assert!(!Set::of_status("", "SigIgn").has(SIGHUP));
    }
}
