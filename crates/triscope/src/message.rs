//! Messages on standard error.

#[cfg(unix)]
mod queue;

#[cfg(unix)]
pub(crate) use queue::{AtEnd, begin, flush_at_signal};
use std::fmt;
use std::io::Write as _;

/// As `eprintln!`, which panics where standard error is full or closed: that ends no recording here.
macro_rules! message {
    ($($text:tt)*) => {
        $crate::message::print(format_args!($($text)*))
    };
}

/// Prints a message on a line.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    #[cfg(unix)]
    let Some(line) = queue::push(line) else { return };
    // Nobody can be informed of an error.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
