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
use testkit::process::nobody;

/// A user who runs the program in a directory that belongs to that user.
struct User {
    dir: TempDir,
    uid: Option<u32>,
    /// Options of `setpriv`.
    capabilities: &'static [&'static str],
}

impl User {
    /// This user.
    fn own() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), uid: None, capabilities: &[] }
    }

    /// A user without capabilities, [`nobody`]; `None` if this user may not become that one.
    fn nobody() -> Option<Self> {
        if !testkit::skip::can("root, to become nobody", rustix::process::geteuid().is_root()) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(nobody()), Some(nobody())).unwrap();
        testkit::program::copy(env!("CARGO_BIN_EXE_triscope"), dir.path().join("triscope"));
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Some(Self { dir, uid: Some(nobody()), capabilities: &[] })
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = match self.uid {
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
                command.args(self.capabilities);
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
        let profiled = self.run(&["profile", "-o", "out.data", "true"]);
        let error = String::from_utf8_lossy(&profiled.stderr);
        let expected = match (profiled.status.success(), error.contains("user space only")) {
            (true, false) => "yes",
            (true, true) => "partly",
            (false, _) => "no",
        };
        assert_eq!(works("profiling"), expected, "{error}");
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
    let inside = |command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc"]).args(command).output().unwrap()
    };
    let refused = inside(&["true"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    if !testkit::skip::can(&format!("a PID namespace: {error}"), refused.status.success()) {
        return;
    }
    let output = inside(&[env!("CARGO_BIN_EXE_triscope"), "doctor", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(doctor["machine"]["container"].is_string(), "{doctor:#}");
    let checks = doctor["checks"].as_array().unwrap();
    let scheduler = checks.iter().find(|check| check["id"] == "scheduler").unwrap();
    assert_eq!(scheduler["works"], "no");
}

/// Capabilities of a user namespace are shown as such, and no more of them are advised.
#[test]
fn a_user_namespace_gives_no_privilege() {
    let Some(nobody) = User::nobody() else { return };
    let uid = testkit::process::nobody();
    let output = Command::new("setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={uid}")])
        .args(["--clear-groups", "unshare", "-Ur"])
        .arg(nobody.dir.path().join("triscope"))
        .arg("doctor")
        .current_dir(nobody.dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if !testkit::skip::can("user namespaces", !text.is_empty()) {
        return;
    }
    assert!(text.contains("(of a user namespace: no effect on perf events)"), "{text}");
    assert!(text.contains("run triscope outside of this user namespace"), "{text}");
    assert!(!text.contains("setcap"), "{text}");
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

/// `go env` in a module downloads the toolchain that the module names.
#[test]
fn no_toolchain_is_downloaded() {
    let user = User::own();
    let script = "#!/bin/sh\necho $GOTOOLCHAIN $GO111MODULE $(pwd)\n";
    testkit::program::script(user.dir.path().join("go"), script);
    let path = format!("{}:{}", user.dir.path().display(), std::env::var("PATH").unwrap());
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_triscope"));
    doctor.args(["doctor", "--json"]).env("PATH", path).env("GOTOOLCHAIN", "go9.99.0+auto");
    let output = doctor.current_dir(user.dir.path()).output().unwrap();
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let go = checks.iter().find(|check| check["id"] == "go-toolchain").unwrap();
    assert_eq!(go["note"], "local off /");
}

/// The fix of the scheduler has every part: a privilege alone does not open a tracefs.
#[test]
fn the_fix_of_the_scheduler_is_complete() {
    let Some(nobody) = User::nobody() else { return };
    let doctor = nobody.doctor();
    let checks = doctor["checks"].as_array().unwrap();
    let scheduler = checks.iter().find(|check| check["id"] == "scheduler").unwrap();
    if !testkit::skip::can("users who may not record the scheduler", scheduler["works"] != "yes") {
        return;
    }
    let machine = &doctor["machine"];
    let is_contained = machine["container"].as_str().is_some()
        && scheduler["note"].as_str().unwrap().contains("PID");
    if !testkit::skip::can(&format!("the PIDs of the machine: {scheduler}"), !is_contained) {
        return;
    }
    let fix = scheduler["fix"].as_str().unwrap();
    let is_for_all = machine["perf_event_paranoid"].as_i64().is_some_and(|level| level <= -1);
    assert_eq!(fix.contains("cap_perfmon"), !is_for_all, "{fix}");
    assert_eq!(fix.contains("/sys/kernel/tracing"), machine["tracefs_readable"] == false, "{fix}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_filter_of_system_calls_is_named() {
    let run =
        |args: &[&str]| testkit::perf::filtered(env!("CARGO_BIN_EXE_triscope")).args(args).output();
    let output = match run(&["doctor", "--json"]) {
        Ok(output) => output,
        Err(error) => {
            testkit::skip::can(&format!("perl: {error}"), false);
            return;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(doctor["machine"]["seccomp"], true);
    let checks = doctor["checks"].as_array().unwrap();
    for id in ["user-events", "kernel-events", "cpu-wide", "hardware", "profiling", "rings"] {
        let check = checks.iter().find(|check| check["id"] == id).unwrap();
        assert_eq!(check["works"], "no", "{check}");
        assert!(check["note"].as_str().unwrap().contains("seccomp"), "{check}");
        assert!(check["fix"].as_str().unwrap().contains("--cap-add PERFMON"), "{check}");
    }
    let output = run(&["perf", "stat", "-e", "task-clock:u", "true"]).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("seccomp"), "{error}");
}

/// `kernel.perf_event_paranoid`; the value that was set before is restored.
struct Paranoid(String);

impl Paranoid {
    const FILE: &str = "/proc/sys/kernel/perf_event_paranoid";

    fn set(level: i64) {
        std::fs::write(Self::FILE, level.to_string()).unwrap();
    }
}

impl Drop for Paranoid {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, self.0.trim());
    }
}

/// At each level, each claim is tried, and each fix that names another level works.
#[test]
#[ignore = "changes kernel.perf_event_paranoid: cargo xtask test-record"]
fn fixes_work_at_every_level() {
    let Some(nobody) = User::nobody() else { panic!("only root can set the level") };
    let _restored = Paranoid(std::fs::read_to_string(Paranoid::FILE).unwrap());
    let mut fixed = 0;
    for level in -1..=4 {
        Paranoid::set(level);
        nobody.check();
        let doctor = nobody.doctor();
        assert_eq!(doctor["machine"]["perf_event_paranoid"], level);
        for check in doctor["checks"].as_array().unwrap() {
            let fix = check["fix"].as_str().unwrap_or_default();
            let Some((_, rest)) = fix.split_once("sudo sysctl kernel.perf_event_paranoid=") else {
                continue;
            };
            // The scheduler needs a tracefs, too.
            if check["id"] == "scheduler" {
                continue;
            }
            let other = rest.split(|c: char| c != '-' && !c.is_ascii_digit()).next().unwrap();
            Paranoid::set(other.parse().unwrap());
            let after = nobody.doctor();
            let after = after["checks"].as_array().unwrap();
            let after = after.iter().find(|after| after["id"] == check["id"]).unwrap();
            assert_eq!(after["works"], "yes", "{check} {after}");
            fixed += 1;
            Paranoid::set(level);
        }
    }
    assert!(fixed >= 4, "{fixed}");
}

/// The capabilities of the fix are enough at every level.
#[test]
#[ignore = "changes kernel.perf_event_paranoid: cargo xtask test-record"]
fn capabilities_work_at_every_level() {
    let Some(mut user) = User::nobody() else { panic!("only root can set the level") };
    user.capabilities = &["--inh-caps=+perfmon", "--ambient-caps=+perfmon"];
    let _restored = Paranoid(std::fs::read_to_string(Paranoid::FILE).unwrap());
    for level in -1..=4 {
        Paranoid::set(level);
        user.check();
        let doctor = user.doctor();
        for id in ["user-events", "kernel-events", "cpu-wide", "profiling", "rings"] {
            let checks = doctor["checks"].as_array().unwrap();
            let check = checks.iter().find(|check| check["id"] == id).unwrap();
            assert_ne!(check["works"], "no", "{check}");
        }
    }
}
