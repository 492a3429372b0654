//! `triscope sql` with a program that stands for `triscope-sql`. `cargo xtask sql` and
//! `cargo xtask test-dataset --triscope-sql` test the real one.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use testkit::process::Running;

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gotrace/tests/data/shop.trace");

/// A trace that ends in the middle.
const CUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../nettrace/tests/data/t9-killed.nettrace");

/// Prints its arguments, and which tables the dataset has, which is the last one.
const PROGRAM: &str = "#!/bin/sh
for last; do echo \"argument $last\"; done
[ \"$1\" = --help ] || ls \"$last\"
[ \"$last\" != \"${last%fails}\" ] && { echo failed >&2; exit 3; }
exit 0
";

fn ask(programs: &Path, args: &[&str]) -> Output {
    command(programs, args).output().unwrap()
}

fn command(programs: &Path, args: &[&str]) -> Command {
    let path = std::env::join_paths([programs, "/usr/bin".as_ref(), "/bin".as_ref()]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.arg("sql").args(args).env("PATH", path).env("TMPDIR", programs);
    command
}

#[test]
fn datasets_and_traces_reach_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("triscope-sql");
    testkit::program::script(&program, PROGRAM);
    let dataset = dir.path().join("dataset");
    fs::create_dir_all(dataset.join("recordings")).unwrap();
    let name = dataset.to_str().unwrap();

    let output = ask(dir.path(), &["--csv", "--memory", "500", "SELECT -1", name]);
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = ["--csv", "--memory", "500", "--", "SELECT -1", name];
    assert_eq!(text, expected.map(|arg| format!("argument {arg}\n")).concat() + "recordings\n");
    assert!(output.status.success());

    let cohorts = ["--before", "host = 'a'", "--after", "host = 'b'"];
    let output = ask(dir.path(), &[&cohorts[..], &["latency_regression", name]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("argument --\nargument -- Scheduling latency of two"), "{text}");
    assert!(text.contains("    host = 'a'\n") && text.contains("    host = 'b'\n"), "{text}");
    let output = ask(dir.path(), &[&cohorts[..], &["SELECT 1", name]].concat());
    assert_eq!(output.status.code(), Some(2));

    let output = ask(dir.path(), &["--json", "cpu_time", TRACE]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("argument --json\nargument --\nargument cpu_time\n"), "{text}");
    assert!(text.contains("\ngoroutine_states\n") && text.contains("\nrecordings\n"), "{text}");
    assert!(errors.contains(" rows in "), "{errors}");

    // Of a damaged trace, what could be read is asked.
    let output = ask(dir.path(), &["cpu_time", CUT]);
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(text.contains("argument cpu_time\n") && text.contains("\nrecordings\n"), "{text}");
    let errors = String::from_utf8_lossy(&errors);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    // The option of the hint.
    assert!(errors.contains("; --recover resumes after damage"), "{errors}");
    let output = ask(dir.path(), &["cpu_time", "--recover", CUT]);
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    let errors = String::from_utf8_lossy(&errors);
    assert!(text.contains("argument cpu_time\n") && !errors.contains("--recover"), "{errors}");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let output = ask(dir.path(), &["cpu_time", TRACE, "--offset", "x"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--offset: x is not a number of seconds"), "{errors}");
    for option in [&["--recover"][..], &["--offset", "-1"]] {
        let output = ask(dir.path(), &[&["cpu_time", name], option].concat());
        assert_eq!(output.status.code(), Some(2), "{option:?}");
    }

    let failing = dir.path().join("fails");
    fs::create_dir_all(failing.join("recordings")).unwrap();
    let output = ask(dir.path(), &["cpu_time", failing.to_str().unwrap()]);
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(3), &b"failed\n"[..]));

    let output = ask(dir.path(), &["cpu_time", name, TRACE]);
    assert_eq!(output.status.code(), Some(2));
    let output = ask(dir.path(), &["cpu_time", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    // The temporary dataset is gone.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn a_missing_program_is_an_error_with_the_command_that_installs_it() {
    let dir = tempfile::tempdir().unwrap();
    for input in [TRACE, dir.path().to_str().unwrap()] {
        fs::create_dir_all(dir.path().join("recordings")).unwrap();
        let output = ask(dir.path(), &["cpu_time", input]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("cargo install --path sql"), "{text}");
    }
}

/// Waits until it is asked to end.
const WAITING: &str = "#!/bin/sh
[ \"$1\" = --help ] && exit
echo $$ > \"${0%/*}/pid\"
exec sleep 600
";

#[test]
fn a_signal_ends_the_program_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    testkit::program::script(dir.path().join("triscope-sql"), WAITING);
    let mut child = Running::spawn(&mut command(dir.path(), &["cpu_time", TRACE]));
    let pid = dir.path().join("pid");
    testkit::wait::until("the program", || {
        fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let pid = fs::read_to_string(pid).unwrap();
    child.signal("TERM");
    let status = child.child().wait().unwrap();
    assert_eq!(status.code(), Some(128 + 15), "{status}");
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the program and its number");
}
