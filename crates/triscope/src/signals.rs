//! Signals that ask the program to end.

use crate::failure::{Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

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
