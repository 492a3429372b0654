//! One virtual machine: starts it, watches its console, takes its verdict.

use super::report::Outcome;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use task_support::Result;

/// When a machine is given up.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// One that says nothing for so long hangs.
    silence: Duration,
    /// None runs for longer.
    longest: Duration,
}

const TIMEOUTS: Timeouts =
    Timeouts { silence: Duration::from_secs(120), longest: Duration::from_secs(420) };

/// Whether the tests passed, or why not.
type Verdict = std::result::Result<(), String>;

/// An architecture of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    X86,
    Arm,
}

impl Arch {
    pub(crate) const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Arm } else { Self::X86 };

    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "x86_64" | "amd64" => Ok(Self::X86),
            "aarch64" | "arm64" => Ok(Self::Arm),
            _ => Err(format!("no architecture {name}: x86_64 or aarch64").into()),
        }
    }

    pub(crate) const fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }

    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-unknown-linux-gnu",
            Self::Arm => "aarch64-unknown-linux-gnu",
        }
    }

    pub(crate) const fn qemu(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86_64",
            Self::Arm => "qemu-system-aarch64",
        }
    }

    pub(crate) const fn qemu_package(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86",
            Self::Arm => "qemu-system-arm",
        }
    }

    /// With `-icount` the PMU of the arm64 machine counts instructions, exactly; without it, two
    /// CPUs run at once.
    pub(crate) const fn icount_modes(self) -> &'static [bool] {
        match self {
            Self::X86 => &[false],
            Self::Arm => &[false, true],
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        })
    }
}

/// The first file system, removed when the last machine is done with it.
#[derive(Debug)]
pub(crate) struct Image(pub(crate) PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // in the temporary directory
    }
}

/// A machine to be started.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) arch: Arch,
    pub(crate) version: String,
    pub(crate) kernel: PathBuf,
    pub(crate) image: Arc<Image>,
    pub(crate) icount: bool,
    /// The first file system has our kernel module, for this kernel.
    pub(crate) module: bool,
    pub(crate) filter: Option<String>,
}

impl Machine {
    pub(crate) fn name(&self) -> String {
        let icount = if self.icount { " icount" } else { "" };
        let series: Vec<&str> = self.version.split('.').take(2).collect();
        format!("{} {}{icount}", series.join("."), self.arch)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.arch.qemu());
        let console = match self.arch {
            Arch::X86 => {
                command.args(["-M", "q35", "-cpu", "qemu64", "-m", "512"]);
                "ttyS0"
            }
            Arch::Arm => {
                command.args(["-M", "virt", "-cpu", "cortex-a57", "-m", "768"]);
                "ttyAMA0"
            }
        };
        if self.icount {
            command.args(["-accel", "tcg", "-icount", "shift=0,sleep=off", "-smp", "1"]);
        } else {
            command.args(["-accel", "tcg,thread=multi", "-smp", "2"]);
        }
        let mut append = format!("console={console} quiet panic=-1 rdinit=/init");
        append += " guest.env=PERF_TEST_GUEST=1 guest.env=PERF_TEST_OWN_MOUNTS=1";
        append += " guest.env=PERF_TEST_STRICT=1";
        if self.arch == Arch::X86 {
            // At boot the kernel counts ticks of its timer for a moment, and panics if there are
            // none: as it happens where this machine's processors have other work.
            append += " no_timer_check";
        }
        if self.arch == Arch::Arm {
            append += " guest.env=PERF_TEST_HARDWARE=1";
        }
        if self.icount {
            append += " guest.env=PERF_TEST_ICOUNT=1";
        }
        if self.module {
            append += " guest.env=PERF_TEST_MODULE=1";
        }
        if let Some(filter) = &self.filter {
            append += &format!(" guest.filter={filter}");
        }
        command
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.image.0)
            .args(["-append", &append])
            .args([
                "-nographic",
                "-no-reboot",
                "-nodefaults",
                "-serial",
                "stdio",
                "-monitor",
                "none",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self) -> Outcome {
        let start = Instant::now();
        let mut console = Console::default();
        let verdict = self.watch(&mut console);
        let Console { text, times, cpu } = console;
        Outcome::new(self.name(), self.version.clone(), &text, verdict, start.elapsed())
            .with_times(times, cpu)
    }

    fn watch(&self, console: &mut Console) -> Verdict {
        let mut child = self.command().spawn().map_err(|e| format!("{}: {e}", self.arch.qemu()))?;
        let result = watch_console(&mut child, console, TIMEOUTS);
        // It has powered off, or is to be ended here.
        let _ = child.kill();
        console.cpu = cpu_time(child.id());
        let _ = child.wait();
        let text = &mut console.text;
        if result.is_err() {
            use std::io::Read as _;
            let mut errors = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut errors);
            }
            text.push_str(&errors);
        }
        result
    }
}

/// What a machine said, and when.
#[derive(Debug, Default)]
struct Console {
    text: String,
    /// Lines of tests, and how long after the line of the test before.
    times: Vec<(String, Duration)>,
    /// What the machine took of this one's processors.
    cpu: Option<Duration>,
}

/// The processor time of a process that was not waited for yet, of `/proc/PID/stat`.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 10)) // USER_HZ is 100 for every user
}

/// Reads the console to its end; the verdict is one exact line.
fn watch_console(child: &mut Child, console: &mut Console, timeouts: Timeouts) -> Verdict {
    let stdout = child.stdout.take().ok_or("no console")?;
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if send.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    let start = Instant::now();
    let mut last = start;
    let mut verdicts = Vec::new();
    let mut lockups = 0;
    loop {
        let line = match lines.recv_timeout(timeouts.silence) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!("nothing on the console for {} s", timeouts.silence.as_secs()));
            }
        };
        if let Some(verdict) = line.strip_prefix("guest: verdict ") {
            verdicts.push(verdict.to_owned());
        }
        let panicked = line.contains("end Kernel panic") || line.contains("Kernel panic - ");
        let stalled = line.contains("rcu_sched self-detected stall")
            || line.contains("rcu_preempt self-detected stall");
        lockups += usize::from(line.contains("soft lockup"));
        console.text.push_str(&line);
        console.text.push('\n');
        if line.starts_with("guest: running") {
            console.times.push(("(start)".to_owned(), last.elapsed()));
            last = Instant::now();
        } else if let Some((test, _)) =
            line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
        {
            console.times.push((test.to_owned(), last.elapsed()));
            last = Instant::now();
        }
        if panicked {
            return Err("the kernel panicked".to_owned());
        }
        if stalled || lockups > 1 {
            return Err("the kernel stalled".to_owned());
        }
        if start.elapsed() > timeouts.longest {
            return Err(format!("not done after {} s", timeouts.longest.as_secs()));
        }
    }
    match verdicts.as_slice() {
        [verdict] if verdict == "success" => Ok(()),
        [verdict] if verdict == "failure" => Err("tests failed".to_owned()),
        [] => Err("no verdict: the machine ended early".to_owned()),
        other => Err(format!("not one verdict but {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of a console on which a shell script writes.
    fn verdict(script: &str, timeouts: Timeouts) -> (Verdict, Console) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut console = Console::default();
        let verdict = watch_console(&mut child, &mut console, timeouts);
        let _ = child.kill();
        child.wait().unwrap();
        (verdict, console)
    }

    #[test]
    fn one_exact_line_is_the_verdict() {
        let of = |script: &str| verdict(script, TIMEOUTS).0;
        assert_eq!(of("echo 'guest: verdict success'"), Ok(()));
        assert_eq!(of("echo 'guest: verdict failure'"), Err("tests failed".to_owned()));
        let two = of("echo 'guest: verdict success'; echo 'guest: verdict success'");
        assert!(two.unwrap_err().contains("not one verdict"));
        assert!(of("echo 'guest: verdict succes'").unwrap_err().contains("not one verdict"));
        assert!(of("echo 'x guest: verdict success'").unwrap_err().contains("no verdict"));
        assert!(of("true").unwrap_err().contains("ended early"));
    }

    #[test]
    fn machines_that_panic_stall_or_hang_are_given_up() {
        let of = |script: &str| verdict(script, TIMEOUTS).0.unwrap_err();
        // None of these waits for the script to end.
        let rest = "; echo 'guest: verdict success'; exec sleep 60";
        let panic = of(&format!("echo '[ 1.0] Kernel panic - not syncing: x'{rest}"));
        assert_eq!(panic, "the kernel panicked");
        let stall = of(&format!("echo 'rcu: rcu_preempt self-detected stall on CPU'{rest}"));
        assert_eq!(stall, "the kernel stalled");
        let lockups = "echo 'watchdog: BUG: soft lockup'; echo 'watchdog: BUG: soft lockup'";
        assert_eq!(of(&format!("{lockups}{rest}")), "the kernel stalled");
        let silence = Duration::from_millis(50);
        let (hang, _) = verdict("exec sleep 60", Timeouts { silence, ..TIMEOUTS });
        assert!(hang.unwrap_err().contains("nothing on the console"));
        let endless = "while :; do echo x; done";
        let (long, _) = verdict(endless, Timeouts { longest: silence, ..TIMEOUTS });
        assert!(long.unwrap_err().contains("not done after"));
    }

    #[test]
    fn the_time_of_each_test_is_known() {
        let script = "echo 'guest: running /tests/x'; echo 'test a::b ... ok'; \
                      echo 'guest: verdict success'";
        let (verdict, console) = verdict(script, TIMEOUTS);
        assert_eq!(verdict, Ok(()));
        let names: Vec<&str> = console.times.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["(start)", "a::b"]);
        assert!(cpu_time(std::process::id()).is_some());
    }
}
