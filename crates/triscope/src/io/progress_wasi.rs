//! Progress of a command: the host sees what is read, and shows it.

use super::counting::Tally;
use crate::failure::OneLine;

#[derive(Clone)]
pub(crate) struct Progress {
    prints_notes: bool,
}

impl Progress {
    pub(crate) const fn bytes() -> Self {
        Self { prints_notes: true }
    }

    pub(crate) const fn again() -> Self {
        Self { prints_notes: false }
    }

    pub(crate) const fn beside_output() -> Self {
        Self::bytes()
    }

    pub(crate) const fn set_total(&self, _: u64) {}

    /// Prints a message on standard error.
    pub(crate) fn note(&self, message: &str) {
        if self.prints_notes {
            message!("triscope: {}", OneLine(message));
        }
    }
}

impl Tally for Progress {
    fn add(&mut self, _: u64) {}
}
