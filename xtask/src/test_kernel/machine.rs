//! One virtual machine: starts it, reads its console, returns its verdict.

use super::report::Outcome;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use task_support::Result;
use task_support::remark::{self, Kind};
use tempfile::TempPath;

/// Limits after which a machine is considered hung.
///
/// CPU time distinguishes a machine that hangs from one that gets no CPU on a loaded host. The wall
/// clock limit only stops a machine that is idle permanently.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// CPU time without a line on the console.
    silent_cpu: Duration,
    /// Wall clock time without a line on the console.
    silent: Duration,
    /// Total CPU time.
    cpu: Duration,
}

const TIMEOUTS: Timeouts = Timeouts {
    silent_cpu: Duration::from_secs(90),
    silent: Duration::from_secs(600),
    cpu: Duration::from_secs(400),
};

/// Whether the tests passed, or the reason for a failure.
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

    /// With `-icount` the PMU of the arm64 machine counts instructions exactly; without it, there are two
    /// CPUs.
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

/// A machine to start.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) arch: Arch,
    /// A series, such as `6.12`; `7` is the newest release of 7.
    pub(crate) series: &'static str,
    pub(crate) version: String,
    pub(crate) kernel: PathBuf,
    /// The initial file system, removed after the last machine that uses it.
    pub(crate) image: Arc<TempPath>,
    pub(crate) icount: bool,
    /// Whether the initial file system contains our kernel module, for this kernel.
    pub(crate) module: bool,
    pub(crate) filter: Option<String>,
    /// Whether the tests suspend it.
    pub(crate) suspends: bool,
}

impl Machine {
    pub(crate) fn name(&self) -> String {
        let icount = if self.icount { " icount" } else { "" };
        format!("{} {}{icount}", self.series, self.arch)
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
            // With a thread per virtual CPU, one of them can execute what it translated before the other
            // one patched it: 6.12 panicked on x86-64 in 3 of 15 runs and 7.3 once ("Oops: int3" in the
            // scheduler), and on arm64 a tracepoint had no events in two tests of one run. One thread
            // takes no more CPU time.
            command.args(["-accel", "tcg,thread=single", "-smp", "2"]);
        }
        let mut append = format!("console={console} quiet panic=-1 rdinit=/init");
        append += " guest.env=PERF_TEST_GUEST=1 guest.env=PERF_TEST_OWN_MOUNTS=1";
        append += " guest.env=PERF_TEST_STRICT=1";
        // On a loaded host a virtual CPU can be without CPU time for many seconds.
        append += " nowatchdog rcupdate.rcu_cpu_stall_suppress=1";
        if self.arch == Arch::X86 {
            // At boot the kernel counts ticks of its timer for a moment, and panics if there are
            // none. This occurs when the host's CPUs are busy.
            append += " no_timer_check";
        }
        if self.arch == Arch::Arm {
            append += " guest.env=PERF_TEST_HARDWARE=1";
            // With an address space of its own at a random place, the kernel changes page tables at each system
            // call. QEMU forgets what it translated then: half of the CPU time of a machine.
            append += " nokaslr";
        }
        if self.icount {
            append += " guest.env=PERF_TEST_ICOUNT=1";
        }
        if self.module {
            append += " guest.env=PERF_TEST_MODULE=1";
        }
        if self.suspends {
            // The kernel reports errors of the emulated hardware, in lines of the tests.
            append += " guest.restart loglevel=1";
        }
        if let Some(filter) = &self.filter {
            append += &format!(" guest.filter={filter}");
        }
        command
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(self.image.as_os_str())
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

    /// Runs it to its end. Boots it once more if the kernel panics during boot, or at an
    /// instruction that it was patching.
    pub(crate) fn run(&self) -> Outcome {
        let start = Instant::now();
        let mut console = Console::default();
        let mut verdict = self.watch(&mut console);
        if verdict.is_err() && console.deserves_another_try() {
            let lines: Vec<&str> = console.text.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            let what =
                format_args!("the kernel of {} panicked, and is booted again\n{tail}", self.name());
            remark::add(Kind::Unsteady, &what);
            console = Console::default();
            verdict = self.watch(&mut console);
        }
        let Console { text, times, cpu } = console;
        Outcome::new(self.name(), self.version.clone(), &text, verdict, start.elapsed())
            .with_times(times, cpu)
    }

    fn watch(&self, console: &mut Console) -> Verdict {
        let mut child = self.command().spawn().map_err(|e| format!("{}: {e}", self.arch.qemu()))?;
        let result = watch_console(&mut child, console, TIMEOUTS);
        // It has powered off, or must be killed here.
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

/// The console output of a machine, with times.
#[derive(Debug, Default)]
struct Console {
    text: String,
    /// Lines of tests, each with the time since the line of the previous test.
    times: Vec<(String, Duration)>,
    /// CPU time that the machine used on the host.
    cpu: Option<Duration>,
}

impl Console {
    /// Whether the kernel panicked for a reason that is not the tests': before it ran its first
    /// program, or at a breakpoint that it sets while it patches an instruction. The emulator can
    /// execute that breakpoint after the kernel has removed it.
    fn deserves_another_try(&self) -> bool {
        self.text.contains(PANIC)
            && (!self.text.contains("guest: ") || self.text.contains("Oops: int3"))
    }
}

/// Begins the kernel's panic report.
const PANIC: &str = "Kernel panic - ";

/// The CPU time of a process that was not waited for yet, from `/proc/PID/stat`.
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
    let cpu = || cpu_time(child.id()).unwrap_or_default();
    let mut last_test = Instant::now();
    let (mut last_line, mut cpu_at_last_line) = (Instant::now(), cpu());
    let mut verdicts = Vec::new();
    loop {
        let line = match lines.recv_timeout(Duration::from_secs(1).min(timeouts.silent)) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let (silent, silent_cpu) = (last_line.elapsed(), cpu() - cpu_at_last_line);
                if silent >= timeouts.silent || silent_cpu >= timeouts.silent_cpu {
                    return Err(format!(
                        "nothing on the console for {} s ({} s of CPU)",
                        silent.as_secs(),
                        silent_cpu.as_secs()
                    ));
                }
                continue;
            }
        };
        (last_line, cpu_at_last_line) = (Instant::now(), cpu());
        if let Some(verdict) = line.strip_prefix("guest: verdict ") {
            verdicts.push(verdict.to_owned());
        }
        let panicked = line.contains(PANIC);
        console.text.push_str(&line);
        console.text.push('\n');
        if line.starts_with("guest: running") {
            console.times.push(("(start)".to_owned(), last_test.elapsed()));
            last_test = Instant::now();
        } else if let Some((test, _)) =
            line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
        {
            console.times.push((test.to_owned(), last_test.elapsed()));
            last_test = Instant::now();
        }
        if panicked {
            return Err("the kernel panicked".to_owned());
        }
        if cpu_at_last_line > timeouts.cpu {
            return Err(format!("not done after {} s of CPU", timeouts.cpu.as_secs()));
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

    /// The result for a console written by a shell script.
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
    fn machines_that_panic_or_hang_are_stopped() {
        // None of these waits for the script to exit.
        let rest = "; echo 'guest: verdict success'; exec sleep 600";
        let panic = format!("echo '[ 1.0] Kernel panic - not syncing: x'{rest}");
        assert_eq!(verdict(&panic, TIMEOUTS).0.unwrap_err(), "the kernel panicked");
        let silent = Timeouts { silent: Duration::from_millis(50), ..TIMEOUTS };
        let (hang, _) = verdict("exec sleep 600", silent);
        assert!(hang.unwrap_err().contains("nothing on the console"));
        let silent_cpu = Timeouts { silent_cpu: Duration::from_millis(50), ..TIMEOUTS };
        let (busy, _) = verdict("while :; do :; done", silent_cpu);
        assert!(busy.unwrap_err().contains("nothing on the console"));
        let cpu = Timeouts { cpu: Duration::from_millis(50), ..TIMEOUTS };
        let (endless, _) = verdict("while :; do echo x; done", cpu);
        assert!(endless.unwrap_err().contains("not done after"));
    }

    #[test]
    fn only_panics_that_tests_do_not_cause_are_tried_again() {
        let deserves = |script: &str| verdict(script, TIMEOUTS).1.deserves_another_try();
        let panic = "echo 'Kernel panic - not syncing: Fatal exception'";
        let started = "echo 'guest: Linux 6.12 up 2.1'";
        assert!(deserves(panic));
        assert!(!deserves(&format!("{started}; {panic}")));
        assert!(deserves(&format!("{started}; echo '[ 5.3] Oops: int3: 0000 [#1]'; {panic}")));
        assert!(!deserves(&format!("{started}; echo 'Oops: int3: 0000 [#1]'")));
        assert!(!deserves("true"));
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
