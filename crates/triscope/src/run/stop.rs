//! Signals that stop the program: one policy for all commands.
//!
//! | SIGINT, SIGTERM, SIGHUP | with a COMMAND | live, without a COMMAND | files only |
//! | --- | --- | --- | --- |
//! | first | goes to the COMMAND | recording ends, output is completed | exit |
//! | second | SIGTERM to the COMMAND | exit | |
//! | third | SIGKILL to the COMMAND | | |
//!
//! A failure of this program does not end a COMMAND that runs: see `Watch::see_out`.
//!
//! "Exit" means: temporary files are removed, and the status is 128 + the signal number. SIGTERM
//! and SIGHUP stay ignored if they were ignored at startup, as with `nohup`. SIGINT does not: a
//! shell that runs a script starts background jobs with SIGINT ignored, and `kill -INT $!` must end
//! a recording there. `perf record` does the same.

use super::cleanup;
use crate::failure::{Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// The effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The program continues and ends by itself.
    Wait,
    /// The program exits now.
    Exit,
}

/// Receives SIGINT, SIGTERM and SIGHUP on a thread. From then on, the signals have no other effect
/// until the program ends.
pub(crate) struct Listener {
    handle: Handle,
}

impl Listener {
    /// Calls `on_signal` with every signal.
    pub(crate) fn start(on_signal: impl FnMut(i32) -> Next + Send + 'static) -> Result<Self> {
        Self::of(&not_ignored(&[SIGINT, SIGTERM, SIGHUP]), on_signal)
    }

    /// Calls `on_signal` with these signals, also with those that were ignored at startup.
    pub(crate) fn of(
        signals: &[i32],
        on_signal: impl FnMut(i32) -> Next + Send + 'static,
    ) -> Result<Self> {
        Self::of_by(signals, || (), on_signal)
    }

    /// As [`of`](Self::of), on a thread that calls `begin` first.
    pub(crate) fn of_by(
        signals: &[i32],
        begin: fn(),
        mut on_signal: impl FnMut(i32) -> Next + Send + 'static,
    ) -> Result<Self> {
        let mut signals = Signals::new(signals).map_err(|e| Failure::about("signals", e))?;
        let handle = signals.handle();
        std::thread::spawn(move || {
            begin();
            for signal in &mut signals {
                if on_signal(signal) == Next::Exit {
                    cleanup::run();
                    std::process::exit(exit_code(signal).into());
                }
            }
        });
        Ok(Self { handle })
    }

    /// Exits on the first signal.
    pub(crate) fn exit() -> Result<Self> {
        Self::start(|_| Next::Exit)
    }

    /// Calls `stop` on the first signal. The second one ends the program.
    pub(crate) fn stop(stop: impl FnOnce() + Send + 'static) -> Result<Self> {
        let mut stop = Some(stop);
        Self::start(move |_| match stop.take() {
            Some(stop) => {
                stop();
                Next::Wait
            }
            None => Next::Exit,
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// The exit status that shells report for a process killed by this signal.
pub(crate) const fn exit_code(signal: i32) -> u8 {
    128 + signal as u8
}

/// A set of signals in the kernel's format: one bit for each.
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

/// Those of these signals that were not ignored at startup, and SIGINT.
pub(crate) fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = Set::of_status(&status, "SigIgn");
    let is_wanted = |signal: &i32| *signal == SIGINT || !ignored.has(*signal);
    signals.iter().copied().filter(is_wanted).collect()
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
