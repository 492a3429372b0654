//! `triscope doctor` as a process: what it promises is what the other commands can do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A user who runs the program in a directory that belongs to that user.
struct User {
    dir: TempDir,
    uid: Option<u32>,
}

impl User {
    /// This user.
    fn own() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), uid: None }
    }

    /// The user `nobody`, who has no capabilities; `None` if this user may not become that one.
    fn nobody() -> Option<Self> {
        const NOBODY: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run as nobody: only root may change the user");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_triscope"), dir.path().join("triscope")).unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Some(Self { dir, uid: Some(NOBODY) })
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = match self.uid {
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
                command.arg("--clear-groups").arg(self.dir.path().join("triscope"));
                command
            }
            None => Command::new(env!("CARGO_BIN_EXE_triscope")),
        };
        let command = command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn doctor(&self) -> Value {
        let output = self.run(&["doctor", "--json"]);
        assert_eq!(output.status.code(), Some(0));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Every promise beside the command that depends on it.
    fn check(&self) {
        let doctor = self.doctor();
        let works = |id: &str| -> String {
            let checks = doctor["checks"].as_array().unwrap();
            let check = checks.iter().find(|check| check["id"] == id);
            let check = check.unwrap_or_else(|| panic!("{id}: {doctor:#}"));
            check["works"].as_str().unwrap().to_owned()
        };
        let recorded = self.run(&["record", "-o", "out.pftrace", "true"]);
        let error = String::from_utf8_lossy(&recorded.stderr).into_owned();
        assert_eq!(
            works("scheduler") == "yes",
            recorded.status.success() && !error.contains("only on-CPU intervals"),
            "{error}"
        );
        if works("scheduler") == "no" {
            assert_eq!(works("own-switches") == "partly", recorded.status.success(), "{error}");
        }
        for (id, args) in [
            ("user-events", &["perf", "stat", "-e", "task-clock:u", "true"][..]),
            ("cpu-wide", &["perf", "stat", "-a", "-e", "cpu-clock", "true"]),
            ("hardware", &["perf", "stat", "-e", "cycles:u", "true"]),
        ] {
            let output = self.run(args);
            assert_eq!(
                works(id) == "yes",
                output.status.success(),
                "{id}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn promises_to_this_user_hold() {
    User::own().check();
}

#[test]
fn promises_to_an_unprivileged_user_hold() {
    if let Some(nobody) = User::nobody() {
        nobody.check();
    }
}

/// Whatever does not work has a reason, and missing privileges have a fix.
#[test]
fn refusals_have_reasons() {
    for user in [Some(User::own()), User::nobody()].into_iter().flatten() {
        let doctor = user.doctor();
        for check in doctor["checks"].as_array().unwrap() {
            assert_ne!(check["note"], "", "{check}");
            let is_privilege = check["note"].as_str().unwrap().contains("perf_event_paranoid is");
            if check["works"] == "no" && is_privilege {
                assert!(check["fix"].is_string(), "{check}");
            }
        }
        assert_eq!(
            doctor["machine"]["uid"],
            user.uid.unwrap_or(rustix::process::geteuid().as_raw())
        );
    }
}

/// A PID namespace is recognized, and the scheduler is not promised there.
#[test]
fn a_pid_namespace_is_no_host() {
    let program = env!("CARGO_BIN_EXE_triscope");
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", program, "doctor", "--json"])
        .output()
        .unwrap();
    if !output.status.success() {
        eprintln!("not run: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(doctor["machine"]["container"].is_string(), "{doctor:#}");
    let checks = doctor["checks"].as_array().unwrap();
    let scheduler = checks.iter().find(|check| check["id"] == "scheduler").unwrap();
    assert_eq!(scheduler["works"], "no");
}

#[test]
fn the_text_has_every_check() {
    let user = User::own();
    let text = user.run(&["doctor"]);
    let text = String::from_utf8(text.stdout).unwrap();
    let doctor = user.doctor();
    for check in doctor["checks"].as_array().unwrap() {
        let line =
            format!("{:<7} {} ", check["works"].as_str().unwrap(), check["what"].as_str().unwrap());
        assert!(text.contains(&line), "{line:?}: {text}");
    }
}
