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

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

fn cannot(test: &str, why: &str) {
    assert!(std::env::var_os("PERF_TEST_STRICT").is_none(), "{test}: must run here, but: {why}");
    // `eprintln!` is captured by the test harness, and a skip that nobody sees passes for a test.
    let _ = writeln!(std::io::stderr(), "SKIPPED\t{test}\t{why}");
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
    cannot(test, "the examples are not built (cargo test -p perf-monitor builds them)");
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
        // It is counted, or it is told why not.
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
    let mut short = Command::new("sleep").arg("0.3").spawn().unwrap();
    let mut command = example("sample", "sample").unwrap();
    let text = stdout(&command.args([short.id().to_string(), "60".into()]).output().unwrap());
    short.wait().unwrap();
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
        let open = std::env::temp_dir().join(format!("perf-example-{}-{name}", std::process::id()));
        std::fs::copy(command.get_program(), &open).unwrap();
        let output = Command::new(&open).args(args).uid(65534).gid(65534).output();
        std::fs::remove_file(&open).unwrap();
        let output = output.unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(remedies.iter().any(|remedy| text.contains(remedy)), "{name}: {text}");
    }
}
