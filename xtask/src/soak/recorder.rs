//! The recorder, seen from outside.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use task_support::Result;

/// Time limit for the start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// `USER_HZ`.
const TICKS: f64 = 100.0;

pub(super) struct Recorder {
    child: Option<Child>,
    dir: PathBuf,
    log: PathBuf,
}

/// What the kernel and the recorder say about the tracepoints at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// The kernel's count.
    pub(super) count: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// Counted, but neither delivered nor lost.
    pub(super) missing: u64,
}

impl Recorder {
    /// Starts it in `base`, and waits until it records.
    pub(super) fn start(triscope: &Path, base: &Path, options: &[&str]) -> Result<Self> {
        let (dir, log) = (base.join("flight"), base.join("log"));
        let mut command = Command::new(triscope);
        command.args(["flight", "-d"]).arg(&dir).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut this = Self { child: Some(command.spawn()?), dir, log };
        let start = Instant::now();
        while !this.log()?.contains(": recording") {
            let ended = this.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || start.elapsed() > START_TIMEOUT {
                return Err(format!("the recorder does not record: {}", this.log()?).into());
            }
            std::thread::sleep(Duration::from_millis(20)); // between two looks
        }
        Ok(this)
    }

    pub(super) fn segments(&self) -> PathBuf {
        self.dir.join("segments")
    }

    pub(super) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// CPU time in seconds, and the resident set in KiB.
    pub(super) fn usage(&self) -> Result<(f64, u64)> {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = line.ok_or("the recorder has ended")?.trim().trim_end_matches(" kB");
        Ok((cpu_time(pid)?, resident.parse()?))
    }

    /// Its numbers, by name.
    pub(super) fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let mut stream = UnixStream::connect(self.dir.join("control.sock"))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let (_, text) = reply.split_once("\r\n\r\n").ok_or("no reply")?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').ok_or("a metric without a value")?;
                let name = name.strip_prefix("triscope_flight_").unwrap_or(name);
                Ok((name.to_owned(), value.parse()?))
            })
            .collect()
    }

    /// Ends it, and waits for that.
    pub(super) fn end(&mut self) -> Result {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status()?;
        let status = child.wait()?;
        if killed.success() && status.success() {
            Ok(())
        } else {
            Err(format!("the recorder: {status}: {}", self.log()?).into())
        }
    }

    /// The account of all tracepoints.
    pub(super) fn account(&self) -> Result<Account> {
        let log = self.log()?;
        let line = log.lines().find(|line| line.contains(" of the kernel, "));
        let line = line.ok_or_else(|| format!("no account at the end: {log}"))?;
        match numbers(line)[..] {
            [count, delivered, lost, missing, ..] => {
                Ok(Account { count, delivered, lost, missing })
            }
            _ => Err(format!("no account: {line}").into()),
        }
    }

    /// The account of one of them. It has a line of its own if it has losses.
    pub(super) fn losses_of(&self, event: &str) -> Result<Account> {
        let log = self.log()?;
        let line = log.lines().find_map(|line| line.strip_prefix(&format!("triscope: {event}: ")));
        match numbers(line.unwrap_or_default())[..] {
            [lost, missing] => Ok(Account { lost, missing, ..Account::default() }),
            [] => Ok(Account::default()),
            _ => Err(format!("no account of {event}: {log}").into()),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

/// CPU time of a process in seconds.
///
/// Source: `proc_pid_stat(5)`, fields 14 and 15.
pub(super) fn cpu_time(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").ok_or("no name in stat")?.1;
    let ticks = |n: usize| -> Result<u64> {
        Ok(fields.split(' ').nth(n).ok_or("no CPU time in stat")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) as f64 / TICKS)
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).flat_map(str::parse).collect()
}
