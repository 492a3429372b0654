//! `perf` is the judge: it reads what we write as we mean it, and we read and decode what it writes
//! as it shows it. `linux-perf-data` reads ours, too.
//!
//! Needs root, the `perf` command and, for tracepoints, a mounted tracefs. A test that cannot run
//! prints why, and fails with `PERF_TEST_STRICT`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

mod decoding;
mod files;

use perf_monitor::Tracefs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Whether a test can run here.
pub(crate) fn can(tracefs: bool) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if Command::new("perf").arg("--version").output().is_err() {
        "the perf command (linux-perf)"
    } else if tracefs && Tracefs::find().is_err() {
        "a mounted tracefs"
    } else {
        return true;
    };
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(std::env::var_os("PERF_TEST_STRICT").is_none(), "{name} must run here: {missing}");
    // Not through what the test harness captures.
    let _ = writeln!(std::io::stderr(), "SKIPPED\t{name}\tneeds {missing}");
    false
}

/// The output of perf for this recording.
pub(crate) fn perf(args: &[&str], file: &Path) -> String {
    let output = Command::new("perf").args(args).arg("-i").arg(file).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The words of each line: `perf` pads its columns.
pub(crate) fn words(text: &str) -> Vec<String> {
    let line = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(line).filter(|l| !l.is_empty()).collect()
}

/// Asserts that two lists of lines are equal, and shows the first difference otherwise.
#[track_caller]
pub(crate) fn assert_same(theirs: &[String], ours: &[String]) {
    for (n, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
        assert_eq!(theirs, ours, "line {n}");
    }
    assert_eq!(theirs.len(), ours.len());
}
