use crate::failure::OneLine;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// A progress bar on standard error, if that is a terminal, for work that takes long.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When to show it; `None` if it is shown, or never will be.
    due: Option<Instant>,
}

impl Progress {
    const PATIENCE: Duration = Duration::from_millis(700);

    /// Progress in bytes of input.
    pub(crate) fn bytes() -> Self {
        let wanted = io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar, due: wanted.then(|| Instant::now() + Self::PATIENCE) }
    }

    /// Progress in bytes of input, for a command that writes text to standard output: no bar if
    /// that is a terminal too.
    pub(crate) fn beside_output() -> Self {
        let mut progress = Self::bytes();
        if io::stdout().is_terminal() {
            progress.due = None;
        }
        progress
    }

    /// Sets the number of bytes that there are.
    pub(crate) fn set_total(&self, bytes: u64) {
        self.bar.set_length(bytes);
    }

    /// Prints a message on standard error, above the bar if there is one.
    pub(crate) fn note(&self, message: &str) {
        self.bar.suspend(|| eprintln!("triscope: {}", OneLine(message)));
    }

    /// Adds to the bytes that are done.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        if self.due.is_some_and(|due| Instant::now() >= due) {
            self.due = None;
            let template = match self.bar.length() {
                Some(_) => "{bar:40} {percent:>3}%  {bytes}/{total_bytes}  {bytes_per_sec}  {eta}",
                None => "{spinner} {bytes}  {bytes_per_sec}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
