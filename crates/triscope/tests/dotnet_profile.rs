//! `triscope profile` of .NET programs that spend about 60, 30 and 10 % of their time in three methods,
//! and measure them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use testkit::dotnet::{Runtime, Target};
use testkit::sampling::rate;

/// Samples per second of CPU time: about 10 000 samples in all.
const FREQUENCY: u64 = 4999;

/// The program, with ports in the temporary directory, and without those of the user.
fn triscope() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.env_remove("XDG_RUNTIME_DIR").env_remove("DOTNET_DiagnosticPorts");
    command
}

fn profile(dir: &Path, args: &[&str]) -> String {
    let mut command = triscope();
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

const METHODS: [&str; 3] = ["Sixty()", "Thirty()", "Ten()"];

/// Compares the shares of the methods with those of the CPU time that the program measured.
fn are_those_of_the_program(found: [f64; 3], dir: &Path, what: &str) {
    let measured = std::fs::read_to_string(dir.join("shares")).unwrap();
    let measured: Vec<f64> = measured.split(' ').map(|nanos| nanos.parse().unwrap()).collect();
    let sums: (f64, f64) = (found.iter().sum(), measured.iter().sum());
    assert_eq!(measured.len(), found.len(), "{measured:?}");
    for (method, (found, measured)) in METHODS.into_iter().zip(found.into_iter().zip(&measured)) {
        let (found, measured) = (found / sums.0, measured / sums.1);
        assert!((found - measured).abs() < 0.03, "{what}: {method}: {found}, not {measured}");
    }
}

fn compare(folded: &str, dir: &Path, what: &str) {
    let found = METHODS.map(|method| weight(folded, &[&format!("Workload!Answers.{method} [")]));
    let sum: f64 = found.iter().sum();
    are_those_of_the_program(found, dir, what);
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
        compare(&folded, dir.path(), runtime.version());
    }
}

/// Its session begins while it runs, and ends with it.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn methods_of_a_running_process_have_their_share() {
    let target = Target::of(Runtime::Net9).mode("answers:shares").no_wait().start();
    let dir = target.tmpdir().to_owned();
    let folded = profile(&dir, &["-p", &target.pid().to_string(), "--fold-stubs"]);
    compare(&folded, &dir, "a running process");
    assert!(!folded.contains("[runtime stub]"), "{folded}");
}

/// One that still runs at the end lists its methods then.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn methods_of_a_process_that_continues_have_names() {
    let target = Target::of(Runtime::Net10).mode("mix").start();
    let args = ["-p", &target.pid().to_string(), "--seconds", "2"];
    let folded = profile(target.tmpdir(), &args);
    let managed = weight(&folded, &["System.Private.CoreLib!"]);
    assert!(managed > 0.0, "{folded}");
}

/// Of the whole machine, the runtimes of the processes with samples are asked.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn methods_of_all_programs_of_the_machine_have_names() {
    let start = |runtime| Target::of(runtime).mode("mix").start();
    let targets = [Runtime::Net9, Runtime::Net10].map(start);
    let folded = profile(targets[0].tmpdir(), &["-a", "--seconds", "3"]);
    for target in &targets {
        // The process is the outermost frame of its stacks.
        let pid = target.pid();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let of_it = folded.lines().filter(|line| line.starts_with(&format!("{};", name.trim())));
        let managed = of_it.filter(|line| line.contains("Workload!")).count();
        assert!(managed > 0, "{name} {folded}");
    }
    let mut command = triscope();
    let output = command.args(["top", "-a", "--json", "--delay", "3"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let table: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_ours = |row: &serde_json::Value| row["name"].as_str().unwrap().starts_with("Workload!");
    assert!(table["functions"].as_array().unwrap().iter().any(is_ours), "{table}");
}

/// `top --json`, whose interval is as long as the program runs, names its methods.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn top_names_methods() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = triscope();
        command.args(["top", "--json", "--delay", "600", "-F", &rate(FREQUENCY).to_string(), "--"]);
        command.arg(runtime.program()).env("WORKLOAD_MODE", "answers:shares");
        let output = command.env("TMPDIR", dir.path()).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        // The program prints a line of its own before the table.
        let text = String::from_utf8(output.stdout).unwrap();
        let table: serde_json::Value =
            serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let total = |method: &str| -> f64 {
            let rows = table["functions"].as_array().unwrap().iter();
            let name = format!("Workload!Answers.{method} [");
            let of = rows.filter(|row| row["name"].as_str().unwrap().starts_with(&name));
            of.map(|row| row["total"].as_f64().unwrap()).sum()
        };
        are_those_of_the_program(METHODS.map(total), dir.path(), runtime.version());
    }
}

/// The runtime's own sampler takes the same run: its session is another one.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn shares_are_those_of_the_sampler_of_the_runtime() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let dir = tempfile::tempdir().unwrap();
        let program = runtime.program();
        let inner = [env!("CARGO_BIN_EXE_triscope"), "dotnet", "profile", "-o", "own.folded"];
        let command = [&["--"], &inner[..], &["--duration", "600", "--"]].concat();
        let ours = profile(dir.path(), &[&command[..], &[program.to_str().unwrap()]].concat());
        let own = std::fs::read_to_string(dir.path().join("own.folded")).unwrap();
        let shares = |folded: &str| {
            let of = METHODS.map(|method| weight(folded, &[&format!("Workload!Answers.{method}")]));
            let sum: f64 = of.iter().sum();
            (of.map(|weight| weight / sum), sum)
        };
        // Weights of the sampler are samples; ours are many more.
        let ((found, _), (own_shares, samples)) = (shares(&ours), shares(&own));
        assert!(samples >= 100.0, "{runtime:?}: {own}");
        for (found, own) in found.into_iter().zip(own_shares) {
            let error = (found * (1.0 - found) / samples).sqrt();
            let is_close = (found - own).abs() < 0.03 + 4.0 * error;
            assert!(is_close, "{runtime:?}: {found} {own} of {samples}");
        }
    }
}
