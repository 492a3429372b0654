//! Other work of the machine.

use crate::Error;
use std::process::{Child, Command};

/// Processes that compute while it lives.
pub(crate) struct Busy(Vec<Child>);

impl Busy {
    pub(crate) fn start(count: usize) -> Result<Self, Error> {
        let mut this = Self(Vec::new());
        for _ in 0..count {
            this.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(this)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
