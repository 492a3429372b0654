//! The examples do what they promise: each is run, and its output looked at.
//!
//! `cargo test -p perf-monitor` builds them; needs root, one of them a mounted tracefs. A test that
//! cannot run says so, and fails with `PERF_TEST_STRICT`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicBool, Ordering};

fn cannot(test: &str, why: &str) {
    assert!(std::env::var_os("PERF_TEST_STRICT").is_none(), "{test}: must run here, but: {why}");
    // `eprintln!` is captured by the test harness, and a skip that nobody sees passes for a test.
    let _ = writeln!(std::io::stderr(), "SKIPPED\t{test}\t{why}");
}

/// What this machine does not have, which no user can change.
fn cannot_here(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "PARTLY\t{test}\t{why}: its error was looked at");
}

/// The program of an example, which is built next to the tests.
fn example(test: &str, name: &str) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        cannot(test, "needs root");
        return None;
    }
    let exe = std::env::current_exe().unwrap();
    let path = exe.ancestors().nth(2).unwrap().join("examples").join(name);
    if path.exists() {
        return Some(Command::new(path));
    }
    let why = "the examples are not built (cargo test -p perf-monitor builds them)";
    assert!(std::env::var_os("CI").is_none(), "{test}: {why}");
    cannot(test, why);
    None
}

#[track_caller]
fn stdout(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A program that is busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let mut command = Command::new("/bin/sh");
        Self(command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Busy {
    /// Waits for its end.
    fn output(mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        Output { status: self.0.wait().unwrap(), stdout, stderr }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The number that a line with this word begins with.
fn number_before(text: &str, word: &str) -> u64 {
    let line = text.lines().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
    line.split_whitespace().next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn count_counts_around_a_closure() {
    let Some(mut command) = example("count", "count") else { return };
    let output = command.output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("the sum is 49999995000000\n"), "{text}");
    assert!(number_before(&text, "task-clock") > 100_000, "{text}");
    number_before(&text, "page-faults");
    let refused = String::from_utf8_lossy(&output.stderr).into_owned();
    for event in ["cycles", "instructions"] {
        // It is counted, or the reason why not is printed.
        assert!(text.contains(event) || refused.contains(event), "{event}: {text}{refused}");
    }
}

#[test]
fn sample_shows_where_a_process_is_busy() {
    let Some(mut command) = example("sample", "sample") else { return };
    let busy = Busy::start();
    let text = stdout(&command.args([busy.0.id().to_string(), "1".into()]).output().unwrap());
    let last = text.lines().last().unwrap();
    let samples: u64 = last.split_once(" samples, ").unwrap().0.parse().unwrap();
    assert!(samples > 0 && last.ends_with(" 0 lost"), "{text}");
    let first: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert!(first[1].starts_with("0x") && first[0].parse::<u64>().unwrap() <= samples, "{text}");

    // The process may end first: then the example does, too.
    let waits = ["-c", "read line"];
    let mut short =
        Busy(Command::new("/bin/sh").args(waits).stdin(Stdio::piped()).spawn().unwrap());
    let mut command = example("sample", "sample").unwrap();
    command.args([short.0.id().to_string(), "60".into()]);
    let mut sample = Busy(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut message = String::new();
    BufReader::new(sample.0.stderr.as_mut().unwrap()).read_line(&mut message).unwrap();
    assert!(message.starts_with("sampling process"), "{message}");
    drop(short.0.stdin.take());
    short.0.wait().unwrap();
    let text = stdout(&sample.output());
    assert!(text.contains(" samples, 0 lost"), "{text}");
}

#[test]
fn tracepoint_prints_fields() {
    let Some(mut command) = example("tracepoint", "tracepoint") else { return };
    if perf_monitor::Tracefs::find().is_err() {
        return cannot("tracepoint", "needs a mounted tracefs");
    }
    // CPU 0 has something to switch to.
    let _busy = (Busy::start(), Busy::start(), Busy::start());
    let text = stdout(&command.args(["sched", "sched_switch", "10"]).output().unwrap());
    let lines: Vec<&str> = text.lines().filter(|l| l.contains(" sched_switch ")).collect();
    assert!(lines.len() >= 10, "{text}");
    for field in [" prev_comm=", " prev_pid=", " next_comm=", " next_prio="] {
        assert!(lines.iter().all(|line| line.contains(field)), "{field}: {text}");
    }
    assert!(text.ends_with("\n0 lost\n"), "{text}");
}

#[test]
fn watch_prints_each_write() {
    let Some(mut command) = example("watch", "watch") else { return };
    let text = stdout(&command.output().unwrap());
    let lines: Vec<&str> = text.lines().filter(|l| l.contains(" was written at 0x")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    let address = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
    assert!(lines.iter().all(|line| address(line) == address(lines[0])), "{text}");
    assert!(text.ends_with("3 writes\n"), "{text}");
}

/// Repeats `step` until the example has ended by itself, and returns what it printed.
fn until_it_ends(command: &mut Command, mut step: impl FnMut()) -> String {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Busy(piped.spawn().unwrap());
    let (mut out, mut errors) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
    std::thread::scope(|scope| {
        // If a step fails, the threads end with it.
        let mut child = child;
        // Reads while it runs: a full pipe would stop it.
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let out = scope.spawn(move || read(&mut out));
        let errors = scope.spawn(move || read(&mut errors));
        let status = loop {
            match child.0.try_wait().unwrap() {
                Some(status) => break status,
                None => step(),
            }
        };
        stdout(&Output { status, stdout: out.join().unwrap(), stderr: errors.join().unwrap() })
    })
}

#[test]
fn execsnoop_prints_arguments() {
    let Some(mut command) = example("execsnoop", "execsnoop") else { return };
    let text = until_it_ends(command.arg("20"), || {
        Command::new("/bin/true").args(["an argument", "", "x"]).status().unwrap();
    });
    assert!(text.lines().any(|line| line.ends_with(" /bin/true an argument  x")), "{text}");
    assert!(text.ends_with(" lost\n"), "{text}");
}

#[test]
#[cfg(feature = "tokio")]
fn tokio_prints_programs() {
    let Some(mut command) = example("tokio", "tokio") else { return };
    let mut child = Busy(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufRead::lines(BufReader::new(child.0.stdout.take().unwrap()));
    // Until it records: it prints everything that is executed.
    let found = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !found.load(Ordering::Relaxed) {
                Command::new("/bin/true").status().unwrap();
            }
        });
        let is_found = lines.by_ref().take(10_000).any(|line| line.unwrap().ends_with("/true"));
        found.store(true, Ordering::Relaxed);
        assert!(is_found);
    });
}

#[test]
fn opensnoop_prints_paths_or_what_is_missing() {
    let Some(mut command) = example("opensnoop", "opensnoop") else { return };
    let tracefs = perf_monitor::Tracefs::find_or_detached().unwrap();
    if !tracefs.root().join("kprobe_events").exists() {
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("CONFIG_KPROBE_EVENTS"), "{error}");
        return cannot_here("opensnoop", "this kernel has no kprobes");
    }
    let text = until_it_ends(command.arg("20"), || {
        let _ = std::fs::File::open("/no/such/path of a test");
    });
    assert!(text.lines().any(|l| l.ends_with(" -2 /no/such/path of a test")), "{text}");
}

/// A Rust function that is probed.
#[inline(never)]
extern "C" fn probed(x: u64, y: u64) -> u64 {
    black_box(x.wrapping_add(y))
}

#[test]
fn uprobe_prints_the_arguments_of_a_rust_function() {
    let Some(mut command) = example("uprobe rust", "uprobe") else { return };
    let this = std::env::current_exe().unwrap();
    let text = until_it_ends(command.arg(this).args(["examples::probed", "2", "3"]), || {
        // A constant that the compiler sees would not be passed at all.
        probed(black_box(0x123), black_box(0x456));
    });
    let is_call = |line: &&str| line.ends_with(" examples::probed 0x123 0x456");
    assert!(text.lines().filter(is_call).count() >= 3, "{text}");
}

const GO_PROGRAM: &str = "\
package main

import \"time\"

//go:noinline
func add(a, b int, s string) int { return a + b + len(s) }

func main() {
\tfor {
\t\tadd(0x123, 0x456, \"four\")
\t\ttime.Sleep(time.Millisecond)
\t}
}
";

#[test]
fn uprobe_prints_the_arguments_of_a_go_function() {
    let Some(mut command) = example("uprobe go", "uprobe") else { return };
    let Some(go) = testkit::go::toolchains().pop() else {
        return cannot("uprobe go", "needs a Go toolchain");
    };
    let dir = testkit::directory::Directory::new("perf-example-go-");
    let (source, program) = (dir.join("main.go"), dir.join("program"));
    std::fs::write(&source, GO_PROGRAM).unwrap();
    // Without symbols: the function is found in the table of Go's runtime.
    let mut build = Command::new(go);
    build.args(["build", "-ldflags=-s -w", "-o"]).arg(&program).arg(&source);
    let build = build.env("GOTOOLCHAIN", "local");
    assert!(build.status().unwrap().success());
    let running = Busy(Command::new(&program).spawn().unwrap());
    let text = until_it_ends(command.arg(&program).args(["main.add", "4", "3"]), || {
        std::thread::sleep(std::time::Duration::from_millis(10)); // between two looks
    });
    drop(running);
    let calls: Vec<&str> = text.lines().filter(|line| line.contains(" main.add ")).collect();
    assert!(calls.len() >= 3, "{text}");
    for call in calls {
        // Two integers, and the address and length of a string.
        assert!(call.contains(" main.add 0x123 0x456 0x") && call.ends_with(" 0x4"), "{text}");
    }
}

#[test]
fn ipc_prints_ratios_or_what_is_missing() {
    let Some(mut command) = example("ipc", "ipc") else { return };
    let busy = Busy::start();
    let output = command.args(["1", &busy.0.id().to_string()]).output().unwrap();
    if output.status.success() {
        let text = stdout(&output);
        assert!(text.lines().next().unwrap().contains("IPC"), "{text}");
        assert!(text.lines().any(|line| line.ends_with(" sh")), "{text}");
    } else {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("cycles") && error.contains("does not have the event"), "{error}");
        cannot_here("ipc", "this machine has no hardware counters");
    }
}

#[test]
fn external_attributes_system_calls_to_requests() {
    let Some(mut command) = example("external", "external") else { return };
    let text = stdout(&command.output().unwrap());
    // openat and clock_nanosleep.
    let (open, sleep) = if cfg!(target_arch = "x86_64") { (257, 230) } else { (56, 115) };
    for line in [format!("open: system call {open}"), format!("sleep: system call {sleep}")] {
        assert_eq!(text.lines().filter(|found| **found == line).count(), 1, "{line}: {text}");
    }
}

#[test]
fn schedlat_prints_waits() {
    let Some(mut command) = example("schedlat", "schedlat") else { return };
    // Something has to wait.
    let _busy = (Busy::start(), Busy::start(), Busy::start());
    let text = stdout(&command.arg("1").output().unwrap());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("THREAD") && lines.len() > 3, "{text}");
    // Any number: that depends on how busy the machine is.
    let (front, _) = lines.last().unwrap().split_once(" late").unwrap_or_else(|| panic!("{text}"));
    let late = front.rsplit(' ').next().unwrap().parse::<u64>();
    assert!(late.is_ok(), "{text}");
}

#[test]
fn errors_name_remedies_to_users_without_privileges() {
    // Which of the two is first depends on who may read the tracefs.
    let tracefs = ["mode=0750", "sysctl kernel.perf_event_paranoid="];
    for (name, args, remedies) in
        [("tracepoint", &[][..], &tracefs[..]), ("sample", &["1"], &["run as that user"])]
    {
        let Some(command) = example("refusals", name) else { return };
        if perf_monitor::Tracefs::find().is_err() {
            return cannot("refusals", "needs a mounted tracefs");
        }
        // The folder of the example may be closed to others.
        let dir = testkit::directory::Directory::new("perf-example-");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let open = dir.join(name);
        testkit::program::copy(command.get_program(), &open);
        let nobody = testkit::process::nobody();
        let output = Command::new(&open).args(args).uid(nobody).gid(nobody).output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(remedies.iter().any(|remedy| text.contains(remedy)), "{name}: {text}");
    }
}
