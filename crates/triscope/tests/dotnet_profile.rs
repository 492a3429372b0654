//! `triscope profile` of .NET programs that spend 60, 30 and 10 % of their time in three methods: by
//! numbers of iterations of one loop.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use testkit::dotnet::{Runtime, Target};
use testkit::sampling::rate;

/// Samples per second of CPU time: about 10 000 samples in all.
const FREQUENCY: u64 = 4999;

fn profile(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command
        .current_dir(dir)
        .args(["profile", "-o", "x.folded", "-F", &rate(FREQUENCY).to_string()])
        .args(args);
    // The program reads its mode from the environment, and has its own directory for its socket.
    command.env("WORKLOAD_MODE", "answers:shares").env("TMPDIR", dir);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    std::fs::read_to_string(dir.join("x.folded")).unwrap()
}

/// The weight of the stacks that contain all of these.
fn weight(folded: &str, parts: &[&str]) -> f64 {
    let is_it = |line: &&str| parts.iter().all(|part| line.contains(part));
    let weight = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
    folded.lines().filter(is_it).map(weight).sum()
}

fn compare(folded: &str, what: &str) {
    let known = [("Sixty()", 60.0), ("Thirty()", 30.0), ("Ten()", 10.0)];
    let found = known.map(|(method, _)| weight(folded, &[&format!("Workload!Answers.{method} [")]));
    let sum: f64 = found.iter().sum();
    for ((method, share), found) in known.into_iter().zip(found) {
        let found = found * 100.0 / sum;
        assert!((found - share).abs() < 3.0, "{what} {method}: {found}\n{folded}");
    }
    // The callers are managed code, below native code of the runtime or of the C library.
    let inner = weight(folded, &["__libc_start", "Workload!Answers.Run(", "Answers.Work(int64) ["]);
    assert!(inner / sum > 0.9, "{what}: {inner} of {sum}\n{folded}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn methods_of_a_command_have_their_share() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let dir = tempfile::tempdir().unwrap();
        let program = runtime.program();
        let folded = profile(dir.path(), &["--", program.to_str().unwrap()]);
        compare(&folded, runtime.version());
    }
}

/// Its session begins while it runs, and ends with it.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn methods_of_a_running_process_have_their_share() {
    let target = Target::of(Runtime::Net9).mode("answers:shares").no_wait().start();
    let dir = target.tmpdir().to_owned();
    let folded = profile(&dir, &["-p", &target.pid().to_string(), "--fold-stubs"]);
    compare(&folded, "a running process");
    assert!(!folded.contains("[runtime stub]"), "{folded}");
}

/// One that still runs at the end lists its methods then.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn methods_of_a_process_that_goes_on_have_names() {
    let target = Target::of(Runtime::Net10).mode("mix").start();
    let args = ["-p", &target.pid().to_string(), "--seconds", "2"];
    let folded = profile(target.tmpdir(), &args);
    let managed = weight(&folded, &["System.Private.CoreLib!"]);
    assert!(managed > 0.0, "{folded}");
}
