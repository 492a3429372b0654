//! A process that competes for a CPU while a program is recorded.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use task_support::Result;

/// Time limit until it has stopped, on a heavily loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Computes, and ends soon after this process, also if that is killed.
const LOOP: &str = "while [ -d /proc/$PPID ]; do \
                    i=100000; while [ $i -gt 0 ]; do i=$((i - 1)); done; done";

/// A process that computes. Dropping it ends it.
pub(super) struct Busy(Child);

impl Busy {
    /// Starts one on a CPU.
    pub(super) fn compete(cpu: usize) -> Result<Self> {
        Self::start(cpu, LOOP)
    }

    /// The same, stopped until it gets SIGCONT.
    pub(super) fn stopped(cpu: usize) -> Result<Self> {
        let mut this = Self::start(cpu, &format!("kill -STOP $$; {LOOP}"))?;
        let (stat, start) = (format!("/proc/{}/stat", this.pid()), Instant::now());
        while !fs::read_to_string(&stat)?.contains(") T ") {
            if let Some(status) = this.0.try_wait()? {
                return Err(format!("the busy process ended: {status}").into());
            }
            if start.elapsed() > LIMIT {
                return Err("the busy process does not stop".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(this)
    }

    fn start(cpu: usize, script: &str) -> Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "sh", "-c", script]);
        Ok(Self(command.stdin(Stdio::null()).spawn()?))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
