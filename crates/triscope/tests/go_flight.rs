//! `triscope go flight` as a process: what it refuses. `cargo xtask test-go --flight` reads the flight
//! recorders of Go programs.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::process::Command;

#[test]
fn other_programs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("flight.trace");
    let refused_arguments = |arguments: &[&str], code: i32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        let command = command.args(["go", "flight"]).args(arguments);
        let ran = command.arg("-o").arg(&output).output().unwrap();
        assert_eq!(ran.status.code(), Some(code));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        String::from_utf8(ran.stderr).unwrap()
    };
    let refused = |process: &str| refused_arguments(&[process], 1);
    // The largest possible pid_max is 4194304.
    assert_eq!(refused("4194305"), "triscope: there is no process 4194305\n");
    // This process is the parent, which Yama may protect.
    let own = refused(&std::process::id().to_string());
    assert!(own.contains("is not a Go program") || own.contains("ptrace_scope"), "{own}");
    let by_option = refused_arguments(&["--pid", "4194305"], 1);
    assert_eq!(by_option, "triscope: there is no process 4194305\n");
    for option in ["-n", "--name"] {
        // A name may be a number.
        let nobody = refused_arguments(&[option, "4194305"], 1);
        assert!(nobody.ends_with("has the name 4194305\n"), "{nobody}");
    }
    let nobody = refused("no such program");
    assert!(nobody.starts_with("triscope: no Go program that this user can read"), "{nobody}");
    let own = std::env::current_exe().unwrap();
    let core = refused_arguments(&["--core", "/dev/null", "--program", own.to_str().unwrap()], 1);
    assert!(core.contains("is not a Go program"), "{core}");
    for incomplete in [&["--core", "x"][..], &["--program", "x"], &[], &["7", "-p", "7"]] {
        refused_arguments(incomplete, 2);
    }
}
