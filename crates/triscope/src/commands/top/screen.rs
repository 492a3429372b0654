//! The terminal.

use super::view::View;
use crate::failure::{Failure, Result};
use crate::run::cleanup::{self, Guard};
use crate::run::threads;
use crossbeam_channel::{Receiver, unbounded};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

/// The terminal as a screen: restored at the end, by a panic, and by a signal that ends the program.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    events: Receiver<Event>,
    _restored: Guard,
}

impl Screen {
    pub(super) fn start() -> Result<Self> {
        let fail = |error| Failure::about("terminal", error);
        let restored = cleanup::on_exit(ratatui::restore);
        // A panic restores it, too.
        let terminal = ratatui::try_init().map_err(|error| {
            ratatui::restore();
            fail(error)
        })?;
        let (sender, events) = unbounded();
        // It restores the terminal also if there is no thread.
        let this = Self { terminal, events, _restored: restored };
        // It ends with the program, or with the terminal.
        let read = move || {
            while let Ok(event) = event::read() {
                if sender.send(event).is_err() {
                    return;
                }
            }
        };
        threads::start(read).map_err(fail)?;
        Ok(this)
    }

    /// The next key or change of the size, if there is one.
    pub(super) fn event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    pub(super) fn draw(&mut self, view: &mut View) -> Result {
        let drawn = self.terminal.draw(|frame| view.draw(frame));
        drawn.map(drop).map_err(|error| Failure::about("terminal", error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::threads::refusal::without_threads;
    use std::process::{Command, Stdio};

    /// In the terminal where a test runs itself.
    const CHILD: &str = "TRISCOPE_TEST_IN_TERMINAL";

    /// Runs the test with this name in a terminal of `script`, which restores it before this message.
    fn restores_before(name: &str, message: &str) {
        let name = format!("commands::top::screen::tests::{name}");
        let program = std::env::current_exe().unwrap();
        let command = format!("'{}' --exact {name} --nocapture", program.display());
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).env(CHILD, "1");
        let output = script.env("TERM", "xterm").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part:?}: {text:?}"));
        let (entered, left) = (place("\x1b[?1049h"), place("\x1b[?1049l"));
        assert!(entered < left && left < place(message), "{text:?}");
    }

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        if std::env::var_os(CHILD).is_some() {
            let _screen = Screen::start().unwrap();
            panic!("the message");
        }
        restores_before("a_panic_restores_the_terminal_before_its_message", "the message");
    }

    #[test]
    fn a_screen_without_a_thread_is_a_failure_and_no_panic() {
        if std::env::var_os(CHILD).is_some() {
            let failure = without_threads(|| Screen::start().err()).unwrap();
            println!("{}", failure.message());
            return;
        }
        let name = "a_screen_without_a_thread_is_a_failure_and_no_panic";
        restores_before(name, "terminal: no thread could be started");
    }
}
