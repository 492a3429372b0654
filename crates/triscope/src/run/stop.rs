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

use super::{cleanup, threads};
use crate::failure::{Failure, Result};
use crate::message;
use crossbeam_channel::bounded;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Origin};
use signal_hook::{SigId, flag, low_level};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The program continues and ends by itself.
    Wait,
    /// The program exits now.
    Exit,
}

/// A signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) signal: i32,
    /// Whether it is of the kernel, as Ctrl-C is, and not of `kill(2)`.
    pub(crate) is_of_kernel: bool,
}

impl From<Origin> for Received {
    fn from(origin: Origin) -> Self {
        let is_of_kernel = !matches!(origin.cause, Cause::Sent(_));
        Self { signal: origin.signal, is_of_kernel }
    }
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
        mut on_signal: impl FnMut(i32) -> Next + Send + 'static,
    ) -> Result<Self> {
        Self::of_by(signals, || (), move |received| on_signal(received.signal))
    }

    /// As [`of`](Self::of), on a thread that calls `begin` first.
    pub(crate) fn of_by(
        signals: &[i32],
        begin: fn(),
        mut on_signal: impl FnMut(Received) -> Next + Send + 'static,
    ) -> Result<Self> {
        let fail = |error| Failure::about("signals", error);
        let (give, take) = bounded::<SignalsInfo<WithOrigin>>(1);
        let listen = move || {
            begin();
            let Ok(mut signals) = take.recv() else { return };
            loop {
                let received = one_of_each(signals.wait().map(Received::from));
                if signals.is_closed() {
                    return;
                }
                for received in received {
                    if on_signal(received) == Next::Exit {
                        exit(received.signal);
                    }
                }
            }
        };
        threads::start(listen).map_err(fail)?;
        // Not before there is a thread: the effect that a signal had does not come back.
        let signals = SignalsInfo::<WithOrigin>::new(signals).map_err(fail)?;
        let handle = signals.handle();
        let _ = give.send(signals); // the thread waits for it
        Ok(Self { handle })
    }

    /// Exits on the first signal. `None` where no more threads may start: signals keep their effect. By default they end
    /// the program, and leave what it would have removed.
    pub(crate) fn exit() -> Option<Self> {
        Self::start(|_| Next::Exit).ok()
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

/// Signals that came together, one of each number: `timeout(1)` sends the same one to its child and to the group.
fn one_of_each(received: impl Iterator<Item = Received>) -> Vec<Received> {
    let mut each: Vec<Received> = Vec::new();
    for received in received {
        match each.iter_mut().find(|before| before.signal == received.signal) {
            // The command has that of the kernel already.
            Some(before) => before.is_of_kernel |= received.is_of_kernel,
            None => each.push(received),
        }
    }
    each
}

/// Exits at a signal that comes before a recording begins, when there can be files of it already. Where one that has not
/// begun is dropped, its failure is not reported any more.
pub(crate) struct Beginning {
    state: Arc<Mutex<State>>,
    flags: Vec<SigId>,
    _listener: Listener,
}

#[derive(Default)]
struct State {
    has_begun: bool,
    /// The last signal, or 0. The handler sets it: the thread that receives signals may be late.
    asked: Arc<AtomicUsize>,
    /// What is to be removed as long as nothing was recorded.
    guards: Vec<cleanup::Guard>,
}

impl Beginning {
    pub(crate) fn start() -> Result<Self> {
        Self::start_by(|| ())
    }

    /// As [`start`](Self::start). The thread that receives signals calls `begin` first.
    pub(crate) fn start_by(begin: fn()) -> Result<Self> {
        let state = State::default();
        let signals = not_ignored(&[SIGINT, SIGTERM, SIGHUP]);
        let set = |signal: &i32| {
            flag::register_usize(*signal, Arc::clone(&state.asked), signal.unsigned_abs() as usize)
        };
        let flags = signals.iter().map(set).collect::<std::io::Result<_>>();
        let flags = flags.map_err(|error| Failure::about("signals", error))?;
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let listener = Listener::of_by(&signals, begin, move |_| State::on_signal(&shared))?;
        let this = Self { state, flags, _listener: listener };
        // One that came before the thread listened.
        drop(this.state());
        Ok(this)
    }

    /// The state, for which a signal waits. Does not return if this program exits.
    fn state(&self) -> MutexGuard<'_, State> {
        let state = State::lock(&self.state);
        if let Some(signal) = state.exits_by() {
            // The thread that receives signals waits for ever.
            std::mem::forget(state);
            exit(signal);
        }
        state
    }

    /// Creates files that an action at the exit removes: a signal waits meanwhile, and nothing is created after one. As
    /// it waits, `create` must not wait for others.
    pub(crate) fn create<T>(&self, create: impl FnOnce() -> T) -> T {
        let _state = self.state();
        create()
    }

    /// Keeps the action at an exit until the end of this.
    pub(crate) fn keep(&self, guard: cleanup::Guard) {
        self.state().guards.push(guard);
    }

    /// Leaves signals to another listener, which is there already: none is lost, as the handler of each one before has
    /// set the flag. Does not return if this program exits.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.has_begun = true;
        state.guards.clear();
    }
}

impl Drop for Beginning {
    /// Waits for an exit that has begun: what it has removed is not there any more, which would be a failure.
    fn drop(&mut self) {
        self.end();
        for flag in self.flags.drain(..) {
            low_level::unregister(flag);
        }
    }
}

impl State {
    fn lock(state: &Mutex<Self>) -> MutexGuard<'_, Self> {
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The signal by which this program exits.
    fn exits_by(&self) -> Option<i32> {
        let asked = self.asked.load(Ordering::SeqCst);
        i32::try_from(asked).ok().filter(|signal| *signal != 0 && !self.has_begun)
    }

    fn on_signal(state: &Mutex<Self>) -> Next {
        let state = Self::lock(state);
        if state.has_begun {
            return Next::Wait;
        }
        // The recording, and the command, must not begin any more.
        std::mem::forget(state);
        Next::Exit
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Ends the program. The reader of standard error can have stopped: messages have a time limit.
fn exit(signal: i32) -> ! {
    message::begin();
    cleanup::run();
    message::flush_at_signal();
    std::process::exit(exit_code(signal).into());
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
    use super::super::threads::refusal::without_threads;
    use super::*;
    use signal_hook::consts::SIGUSR2;

    #[test]
    fn without_a_thread_signals_keep_their_effect() {
        assert!(without_threads(Listener::exit).is_none());
        assert!(without_threads(|| Listener::of(&[SIGUSR2], |_| Next::Exit)).is_err());
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(!Set::of_status(&status, "SigCgt").has(SIGUSR2));
    }

    #[test]
    fn a_signal_ends_only_what_has_not_begun() {
        let beginning = Beginning::start().unwrap();
        beginning.keep(cleanup::on_exit(|| ()));
        beginning.end();
        assert_eq!(State::on_signal(&beginning.state), Next::Wait);
        assert!(State::lock(&beginning.state).guards.is_empty());
        let state = Mutex::new(State::default());
        assert_eq!(State::on_signal(&state), Next::Exit);
        assert!(state.try_lock().is_err(), "it would begin");
    }

    /// The thread that receives it has not run yet.
    #[test]
    fn a_signal_whose_handler_ran_ends_what_has_not_begun() {
        let mut state = State::default();
        assert_eq!(state.exits_by(), None);
        state.asked.store(15, Ordering::SeqCst);
        assert_eq!(state.exits_by(), Some(SIGTERM));
        state.has_begun = true;
        assert_eq!(state.exits_by(), None, "it is for another listener");
    }

    #[test]
    fn a_beginning_that_is_dropped_leaves_signals_alone() {
        let state = {
            let beginning = Beginning::start().unwrap();
            assert_eq!(beginning.create(|| 7), 7);
            Arc::clone(&beginning.state)
        };
        assert_eq!(State::on_signal(&state), Next::Wait);
    }

    #[test]
    fn a_signal_that_is_sent_twice_is_one() {
        let received = |signal, is_of_kernel| Received { signal, is_of_kernel };
        let (sent, typed) = (received(SIGINT, false), received(SIGINT, true));
        let other = received(SIGTERM, false);
        assert_eq!(one_of_each([sent, other, sent].into_iter()), [sent, other]);
        assert_eq!(one_of_each([sent, typed].into_iter()), [typed]);
        assert_eq!(one_of_each([typed, sent].into_iter()), [typed]);
        assert!(one_of_each(std::iter::empty()).is_empty());
    }

    #[test]
    fn ignored_signals_are_read() {
        let set = Set::of_status("SigBlk:\t0\nSigIgn:\t0000000000001001\nSigCgt:\t4\n", "SigIgn");
        assert!(set.has(SIGHUP) && set.has(13) && !set.has(SIGINT) && !set.has(SIGTERM));
        assert!(!Set::of_status("", "SigIgn").has(SIGHUP));
    }
}
