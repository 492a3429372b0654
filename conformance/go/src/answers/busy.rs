//! Processes that keep CPUs busy while a program is recorded.

use std::process::{Child, Command, Stdio};
use task_support::Result;

/// Processes that compute, one on each of some CPUs. Dropping it ends them.
pub(super) struct Busy(Vec<Child>);

impl Busy {
    /// Keeps all CPUs but the first from becoming idle, in the class `SCHED_IDLE`, which any other
    /// thread preempts at once.
    ///
    /// The kernel of a virtual machine left out a third of the switches of idle CPUs (Linux 6.18),
    /// and almost none of busy ones. CPU 0 has none: programs that are pinned to it measure their
    /// waits.
    pub(super) fn awake() -> Result<Self> {
        let cpus = 1..std::thread::available_parallelism()?.get();
        Self::start(cpus, &["chrt", "--idle", "0"])
    }

    /// Competes for a CPU, in the ordinary class.
    pub(super) fn compete(cpu: usize) -> Result<Self> {
        Self::start(cpu..cpu + 1, &[])
    }

    /// Starts a process on each CPU, by a command that sets its class.
    fn start(cpus: std::ops::Range<usize>, class: &[&str]) -> Result<Self> {
        let mut this = Self(Vec::new());
        for cpu in cpus {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string()]).args(class);
            command.args(["sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            this.0.push(command.spawn()?);
        }
        Ok(this)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // Fails only if it has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
