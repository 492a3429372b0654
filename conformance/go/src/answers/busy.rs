//! A process that competes for a CPU while a program is recorded.

use std::process::{Child, Command, Stdio};
use task_support::Result;

/// A process that computes. Dropping it ends it.
pub(super) struct Busy(Child);

impl Busy {
    /// Starts one on a CPU.
    pub(super) fn compete(cpu: usize) -> Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "sh", "-c", "while :; do :; done"]);
        Ok(Self(command.stdin(Stdio::null()).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
