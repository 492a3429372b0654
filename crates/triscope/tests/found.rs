//! `triscope record` without named sources, `triscope demo`, and reports of their recordings.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

struct Ran {
    stdout: String,
    stderr: String,
    is_good: bool,
}

fn run_in(dir: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let output = command.args(args).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        is_good: output.status.success(),
    }
}

/// Whether this user may record the scheduler, as `triscope doctor` found out.
fn has_scheduler(dir: &Path) -> bool {
    let doctor: Value = serde_json::from_str(&run_in(dir, &["doctor", "--json"]).stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let scheduler = checks.iter().find(|check| check["id"] == "scheduler").unwrap();
    if scheduler["works"] != "yes" {
        eprintln!("not run: {scheduler}");
    }
    scheduler["works"] == "yes"
}

/// The command writes a Go trace to a file that its command line names.
#[test]
fn a_written_go_trace_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    let shop = shop.to_str().unwrap();
    let ran = run_in(dir.path(), &["record", "cp", shop, "written.trace"]);
    assert!(ran.is_good, "{}", ran.stderr);
    assert!(ran.stderr.contains("150 goroutines"), "{}", ran.stderr);
    assert!(dir.path().join("timeline.pftrace").exists(), "the default output");
    // A trace that was there before is not one of this command.
    let ran = run_in(dir.path(), &["record", "ls", "written.trace"]);
    assert!(ran.is_good && !ran.stderr.contains("goroutine"), "{}", ran.stderr);
    // A named source is the only one.
    let ran = run_in(dir.path(), &["record", "--sched", "cp", shop, "other.trace"]);
    assert!(!ran.stderr.contains("goroutine"), "{}", ran.stderr);
}

/// The kernel's own count of the time that a thread had a CPU.
#[test]
fn time_on_a_cpu_is_that_of_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let script = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done
                  read run wait slices < /proc/$$/schedstat; echo $$ $run";
    let ran = run_in(dir.path(), &["record", "--keep", "recording", "sh", "-c", script]);
    assert!(ran.is_good, "{}", ran.stderr);
    let mut counted = ran.stdout.split_whitespace().map(|word| word.parse::<i64>().unwrap());
    let (pid, nanos) = (counted.next().unwrap(), counted.next().unwrap());
    let report = run_in(dir.path(), &["report", "--json", "recording"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let threads = report["threads"].as_array().unwrap();
    assert!(threads.iter().all(|thread| thread["process"]["pid"] == pid), "{threads:#?}");
    let on_cpu = threads.iter().find(|t| t["tid"] == pid).unwrap()["times"]["on_cpu"].as_i64();
    let difference = (on_cpu.unwrap() - nanos).abs();
    assert!(difference <= nanos / 100, "recorded {on_cpu:?} ns, the kernel counted {nanos} ns");
    // Every process of the machine is in the recording.
    let all = run_in(dir.path(), &["report", "--json", "--all", "recording"]);
    let all: Value = serde_json::from_str(&all.stdout).unwrap();
    assert!(all["threads"].as_array().unwrap().len() > threads.len());
    let text = run_in(dir.path(), &["report", "recording"]).stdout;
    assert!(text.contains(&format!("process {pid} and its children")), "{text}");
}

#[test]
fn the_demo_writes_a_timeline_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let ran = run_in(dir.path(), &["demo", "--no-go"]);
    assert!(ran.is_good, "{}", ran.stderr);
    assert!(std::fs::metadata(dir.path().join("timeline.pftrace")).unwrap().len() > 10_000);
    let page = std::fs::read_to_string(dir.path().join("timeline.html")).unwrap();
    assert!(page.contains("<title>demo</title>") && page.ends_with("</html>\n"));
    assert!(!ran.stderr.contains("next:"), "{}", ran.stderr);
}
