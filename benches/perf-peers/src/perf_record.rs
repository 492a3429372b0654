//! Commands that write a recording: `perf record` and `triscope perf record`.

use crate::flood::{Flood, Length};
use crate::{Error, Outcome, PAGES};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::stat::Mode;
use nix::sys::time::TimeValLike;
use nix::unistd::mkfifo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const EVENT: &str = "raw_syscalls:sys_enter";

/// CPU time that it takes to start and to end, if it was run at all.
static START_AND_END: OnceLock<u64> = OnceLock::new();

/// `perf record` of the flood; the time that it takes to start and to end is not in the outcome.
pub(crate) fn run(flood: &mut Flood) -> Result<Outcome, Error> {
    let idle = match start_and_end() {
        Some(idle) => idle,
        None => {
            let idle = record(&mut Flood::prepare(Length::Calls(1))?)?.cpu_nanos;
            *START_AND_END.get_or_init(|| idle)
        }
    };
    let outcome = record(flood)?;
    Ok(Outcome { cpu_nanos: outcome.cpu_nanos.saturating_sub(idle), ..outcome })
}

/// CPU time that it takes to start and to end.
pub(crate) fn start_and_end() -> Option<u64> {
    START_AND_END.get().copied()
}

fn record(flood: &mut Flood) -> Result<Outcome, Error> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("perf.data");
    let mut control = Control::new(dir.path())?;
    let before = children_nanos()?;
    let mut perf = Command::new("perf")
        .args(["record", "--quiet", "--event", EVENT, "--count=1", "--no-inherit"])
        .args(["--mmap-pages", &PAGES.to_string(), "--no-buildid", "--no-buildid-cache"])
        .args(["--pid", &flood.pid().to_string(), "--delay=-1", "--control", &control.argument])
        .arg("--output")
        .arg(&file)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| format!("perf: {e}"))?;
    let recorded = control
        .command("enable", &mut perf)
        .and_then(|()| flood.go())
        .and_then(|()| flood.wait())
        .and_then(|()| control.command("stop", &mut perf));
    if recorded.is_err() {
        let _ = perf.kill(); // if it has not ended
    }
    let status = perf.wait()?;
    recorded?;
    if !status.success() {
        return Err(format!("perf record: {status}").into());
    }
    let cpu_nanos = children_nanos()? - before;
    let (read, lost) = counts(&file)?;
    Ok(Outcome { read, lost, cpu_nanos, sum: 0 })
}

/// CPU time of all children that were waited for, with the precision of the scheduler's clock.
fn children_nanos() -> Result<u64, Error> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let nanos = usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds();
    Ok(u64::try_from(nanos)?)
}

/// The pipes that start and stop `perf record`.
struct Control {
    argument: String,
    commands: File,
    answers: File,
}

impl Control {
    fn new(dir: &Path) -> Result<Self, Error> {
        let open = |name: &str| -> Result<_, Error> {
            let path = dir.join(name);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // For both, so that it opens although nobody is at the other end.
            let pipe = OpenOptions::new().read(true).write(true).open(&path)?;
            Ok((pipe, path.to_str().ok_or("a path that is no text")?.to_owned()))
        };
        let (commands, first) = open("commands")?;
        let (answers, second) = open("answers")?;
        Ok(Self { argument: format!("fifo:{first},{second}"), commands, answers })
    }

    /// Gives a command and waits until it is carried out.
    fn command(&mut self, command: &str, perf: &mut Child) -> Result<(), Error> {
        writeln!(self.commands, "{command}")?;
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&second))? == 0 {
            if let Some(status) = perf.try_wait()? {
                return Err(format!("perf record ended early: {status}").into());
            }
        }
        let mut answer = [0; 16];
        let n = self.answers.read(&mut answer)?;
        if answer.get(..n).is_some_and(|a| a.starts_with(b"ack")) {
            return Ok(());
        }
        Err(format!("perf record answers {:?}", String::from_utf8_lossy(&answer)).into())
    }
}

/// CPU time that `triscope perf record` takes to start and to end.
static TRISCOPE_START_AND_END: OnceLock<u64> = OnceLock::new();

/// `triscope perf record` of the flood; the time that it takes to start and to end is not in the
/// outcome.
pub(crate) fn triscope(program: &Path, flood: &mut Flood) -> Result<Outcome, Error> {
    let idle = match TRISCOPE_START_AND_END.get() {
        Some(idle) => *idle,
        None => {
            let idle = triscope_record(program, &mut Flood::prepare(Length::Calls(1))?)?.cpu_nanos;
            *TRISCOPE_START_AND_END.get_or_init(|| idle)
        }
    };
    let outcome = triscope_record(program, flood)?;
    Ok(Outcome { cpu_nanos: outcome.cpu_nanos.saturating_sub(idle), ..outcome })
}

fn triscope_record(program: &Path, flood: &mut Flood) -> Result<Outcome, Error> {
    let dir = tempfile::tempdir()?;
    let (file, log) = (dir.path().join("perf.data"), dir.path().join("log"));
    let before = children_nanos()?;
    let mut recorder = Command::new(program)
        .args(["perf", "record", "--progress", "--event", EVENT, "--count=1"])
        .args(["--mmap-pages", &PAGES.to_string(), "--pid", &flood.pid().to_string()])
        .arg("--output")
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log)?)
        .spawn()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let recorded = until_it_records(&mut recorder, &log)
        .and_then(|()| flood.go())
        .and_then(|()| flood.wait())
        .and_then(|()| {
            let pid = nix::unistd::Pid::from_raw(recorder.id().try_into()?);
            Ok(nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?)
        });
    if recorded.is_err() {
        let _ = recorder.kill(); // if it has not ended
    }
    let status = recorder.wait()?;
    recorded?;
    if !status.success() {
        return Err(format!("triscope perf record: {status}").into());
    }
    let cpu_nanos = children_nanos()? - before;
    let (read, lost) = counts(&file)?;
    Ok(Outcome { read, lost, cpu_nanos, sum: 0 })
}

/// Waits until it reports its progress: its events are enabled.
fn until_it_records(recorder: &mut Child, log: &Path) -> Result<(), Error> {
    loop {
        let text = std::fs::read_to_string(log)?;
        if text.contains(" s: ") {
            return Ok(());
        }
        if let Some(status) = recorder.try_wait()? {
            return Err(format!("triscope perf record ended at its start: {status}: {text}").into());
        }
        std::thread::sleep(Duration::from_millis(1)); // between two looks
    }
}

/// Samples that a recording has and has lost, by `perf report`: behind the totals it has a part
/// for each event, where lost samples are as the kernel counted them.
fn counts(file: &Path) -> Result<(u64, u64), Error> {
    let output = Command::new("perf").args(["report", "--stats", "--input"]).arg(file).output()?;
    let text = String::from_utf8(output.stdout)?;
    let (_, of_event) = text.split_once(&format!("{EVENT} stats:")).ok_or_else(|| {
        format!("perf report says {text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let number = |name: &str| -> Result<u64, Error> {
        let line = of_event.lines().find_map(|line| line.trim().strip_prefix(name));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        Ok(word.map_or(Ok(0), str::parse)?)
    };
    Ok((number("SAMPLE events:")?, number("LOST_SAMPLES events:")?))
}
