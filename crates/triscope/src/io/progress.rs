//! Progress and status of a command on standard error.

use super::counting::Tally;
use crate::failure::OneLine;
use crate::message;
use crate::run::threads;
use crate::timeline::size;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// A progress bar on standard error, if that is a terminal, for long operations.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When to show it; `None` if it is already shown, or never will be.
    due: Option<Instant>,
    prints_notes: bool,
}

impl Progress {
    const DELAY: Duration = Duration::from_millis(700);

    /// Progress in bytes of input.
    pub(crate) fn bytes() -> Self {
        let wanted = io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let due = wanted.then(|| Instant::now() + Self::DELAY);
        Self { bar, due, prints_notes: true }
    }

    /// Progress in bytes of input that is read again: the first pass printed the messages.
    pub(crate) fn again() -> Self {
        let mut progress = Self::bytes();
        progress.prints_notes = false;
        progress
    }

    /// Progress in bytes of input, for a command that writes text to standard output: no bar if
    /// that is also a terminal.
    pub(crate) fn beside_output() -> Self {
        let mut progress = Self::bytes();
        if io::stdout().is_terminal() {
            progress.due = None;
        }
        progress
    }

    /// Sets the total number of bytes.
    pub(crate) fn set_total(&self, bytes: u64) {
        self.bar.set_length(bytes);
    }

    /// Prints a message on standard error, above the bar if there is one.
    pub(crate) fn note(&self, message: &str) {
        if self.prints_notes {
            self.bar.suspend(|| message!("triscope: {}", OneLine(message)));
        }
    }
}

impl Tally for Progress {
    fn add(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        if self.due.is_some_and(|due| Instant::now() >= due) {
            self.due = None;
            let template = match self.bar.length() {
                Some(_) => "{bar:40} {percent:>3}%  {read}/{total}  {rate}  {eta}",
                None => "{spinner} {read}  {rate}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(with_sizes(style));
            }
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        }
    }
}

/// Adds the sizes of the template: read, total, and read per second.
fn with_sizes(style: ProgressStyle) -> ProgressStyle {
    let read = |state: &ProgressState, out: &mut dyn Write| _ = out.write_str(&size(state.pos()));
    let total = |state: &ProgressState, out: &mut dyn Write| {
        _ = out.write_str(&size(state.len().unwrap_or_default()));
    };
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        _ = write!(out, "{}/s", size(state.per_sec() as u64));
    };
    style.with_key("read", read).with_key("total", total).with_key("rate", rate)
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The status of a recording on standard error: an updated line on a terminal, or with `--progress`
/// one line per second elsewhere.
pub(crate) struct Status {
    bar: Option<Bar>,
    start: Instant,
    last: Instant,
    interval: Duration,
}

impl Status {
    /// Creates the status of a recording; without a terminal it is shown only if it is `wanted`.
    pub(crate) fn new(wanted: bool) -> Self {
        message::begin();
        let is_terminal = io::stderr().is_terminal();
        // The recording does without.
        let bar = is_terminal.then(Bar::start).and_then(io::Result::ok);
        let interval = match (is_terminal, wanted) {
            (true, _) => Duration::from_millis(500),
            (false, true) => Duration::from_secs(1),
            (false, false) => Duration::MAX,
        };
        let now = Instant::now();
        Self { bar, start: now, last: now, interval }
    }

    /// Shows the result of `message` if an update is due. `message` gets the time since its last
    /// call.
    pub(crate) fn update(&mut self, message: impl FnOnce(Duration) -> String) {
        let now = Instant::now();
        let since = now.duration_since(self.last);
        if since < self.interval {
            return;
        }
        self.last = now;
        let message = message(since);
        match &self.bar {
            Some(bar) => bar.show(message),
            None => {
                message!("triscope: {} s: {message}", now.duration_since(self.start).as_secs());
            }
        }
    }
}

/// A line of a terminal that a thread draws: a terminal that is stopped (Ctrl-S) does not stop a recording.
struct Bar {
    /// The texts to show.
    texts: Option<Sender<String>>,
    /// Closed when the line is cleared.
    cleared: Receiver<()>,
}

impl Bar {
    /// Interval at which a line without a new text is drawn.
    const TICK: Duration = Duration::from_millis(500);

    /// Time limit for a terminal to clear the line.
    const END: Duration = Duration::from_secs(1);

    fn start() -> io::Result<Self> {
        let (texts, shown) = bounded(1);
        let (drawing, cleared) = bounded(0);
        threads::start(move || {
            let _drawing: Sender<()> = drawing;
            Self::draw(&shown);
        })?;
        Ok(Self { texts: Some(texts), cleared })
    }

    fn draw(texts: &Receiver<String>) {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise}  {msg}") {
            bar.set_style(style);
        }
        // A ticker of the bar would be a thread that may not start, which panics.
        loop {
            match texts.recv_timeout(Self::TICK) {
                Ok(text) => bar.set_message(text),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            bar.tick();
        }
        bar.finish_and_clear();
    }

    /// Shows a text, unless the one before waits for the terminal.
    fn show(&self, text: String) {
        let _ = self.texts.as_ref().map(|texts| texts.try_send(text));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.texts = None;
        let _ = self.cleared.recv_timeout(Self::END);
    }
}
