//! `/init` of a virtual machine: mounts the file systems that tests need, runs every program in
//! `/tests`, shows their reports, prints one verdict line, and powers off.
//!
//! The kernel's command line configures it: `guest.env=NAME=VALUE` sets an environment variable of
//! the tests, `guest.filter=WORD` is an argument of the tests, `guest.restart` ends by a restart. The commands of `/bin/busybox` are
//! installed, if it is there.
#![forbid(unsafe_code)]

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const REPORT: &str = "/tmp/report";
const BUSYBOX: &str = "/bin/busybox";

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("guest-init is the first process of a virtual machine, not a command");
        return ExitCode::FAILURE;
    }
    let verdict = match run() {
        Ok(true) => "success",
        Ok(false) => "failure",
        Err(error) => {
            println!("guest: {error}");
            "failure"
        }
    };
    println!("guest: verdict {verdict}");
    rustix::fs::sync();
    // A machine that was suspended can hang when it is powered off. A restart ends QEMU, too.
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let restarts = command_line.split_whitespace().any(|word| word == "guest.restart");
    match reboot(if restarts { RebootCommand::Restart } else { RebootCommand::PowerOff }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("guest: cannot end: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    for (kind, dir) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", "/tmp"),
        ("tracefs", "/sys/kernel/tracing"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        // Later ones are in file systems that earlier ones mount.
        let _ = std::fs::create_dir_all(dir);
        // The image has programs at the paths that they have on the host: below /tmp, too.
        if kind == "tmpfs" && std::fs::read_dir(dir)?.next().is_some() {
            continue;
        }
        match mount(kind, dir, kind, MountFlags::empty(), None) {
            // The kernel can already have mounted /dev.
            Err(rustix::io::Errno::BUSY) | Ok(()) => {}
            Err(error) => return Err(format!("mounting {kind}: {error}").into()),
        }
    }
    if Path::new(BUSYBOX).exists() {
        let status = Command::new(BUSYBOX).args(["--install", "-s", "/bin"]).status()?;
        if !status.success() {
            return Err(format!("{BUSYBOX} --install: {status}").into());
        }
    }
    let command_line = std::fs::read_to_string("/proc/cmdline")?;
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    println!("guest: Linux {} up {}", release(), uptime.trim());
    let values = |key: &'static str| {
        command_line.split_whitespace().filter_map(move |word| word.strip_prefix(key))
    };
    let mut tests: Vec<PathBuf> =
        std::fs::read_dir("/tests")?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    tests.sort();
    if tests.is_empty() {
        return Err("no tests".into());
    }
    let mut good = true;
    for test in tests {
        let mut command = Command::new(&test);
        command.arg("--test-threads=1").args(values("guest.filter="));
        command.env("PATH", "/bin").env("PERF_TEST_REPORT", REPORT).env("RUST_BACKTRACE", "1");
        for (name, value) in values("guest.env=").filter_map(|v| v.split_once('=')) {
            command.env(name, value);
        }
        println!("guest: running {}", test.display());
        let status = command.status()?;
        println!("guest: {}: {status}", test.display());
        good &= status.success();
        show_report();
    }
    Ok(good)
}

fn show_report() {
    if let Ok(text) = std::fs::read_to_string(Path::new(REPORT)) {
        for line in text.lines() {
            println!("guest: report\t{line}");
        }
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
