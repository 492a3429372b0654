//! Options that would measure something else, or nothing, are refused; and what is printed for them.

use crate::needs_root;
use crate::support::{Ran, as_nobody, can, is_root, run, run_in, users_may_count};
use serde_json::Value;

fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn cpus_that_are_not_online_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["perf", "record", "-C", "0,65535", "true"][..],
        &["perf", "top", "-C", "65535", "--seconds", "1"],
    ] {
        run_in(dir.path(), args).is_refused(1, &["CPU 65535"]);
    }
    needs_root!();
    let trace = ["perf", "trace", "-e", "sched:sched_switch", "-C", "65535", "--seconds", "1"];
    run(&trace).is_refused(1, &["CPU 65535"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no recording is left");
}

#[test]
fn options_without_an_effect_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["perf", "record", "-e", "cpu-clock", "--filter", "pid > 0", "true"][..],
        &["perf", "record", "-e", "page-faults", "-c", "0", "true"],
        &["profile", "-o", "x.svg", "-e", "page-faults", "-c", "0", "true"],
    ] {
        let ran = run_in(dir.path(), args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no output is left");
}

#[test]
fn a_period_of_a_tracepoint_has_an_effect() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    // On one CPU: each has a count of its own. Others can fork there, too.
    let forks = "i=0; while [ $i -lt 300 ]; do (:); i=$((i+1)); done";
    let record = ["perf", "record", "-a", "-c", "100", "-e", "sched:sched_process_fork", "--"];
    let command = ["taskset", "-c", "0", "sh", "-c", forks];
    run_in(dir.path(), &[&record[..], &command].concat()).is_good();
    let report = run_in(dir.path(), &["perf", "report", "--json"]);
    report.is_good();
    let event = &lines(&report)[0]["events"][0];
    let samples = event["samples"].as_u64().unwrap();
    assert!((3..300).contains(&samples), "{event}");
    assert_eq!(event["periods"].as_u64(), Some(100 * samples));
}

#[test]
fn ids_of_a_report_are_numbers() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let command = "read -r pid rest < /proc/self/stat; echo $pid";
    let record = ["perf", "record", "-e", "page-faults", "-c", "1", "sh", "-c", command];
    let ran = run_in(dir.path(), &record);
    ran.is_good();
    let pid: i64 = ran.stdout.trim().parse().unwrap();
    let report = run_in(dir.path(), &["perf", "report", "--json", "-s", "pid,tid,cpu"]);
    report.is_good();
    let row = &lines(&report)[0]["events"][0]["rows"][0];
    assert_eq!((row["pid"].as_i64(), row["tid"].as_i64()), (Some(pid), Some(pid)), "{row}");
    assert!(row["cpu"].is_u64(), "{row}");
}

#[test]
fn names_of_the_list_are_events() {
    let ran = run(&["perf", "list", "--json", "context"]);
    ran.is_good();
    let expected = serde_json::json!({
        "name": "context-switches", "aliases": ["cs"], "kind": "software"
    });
    assert!(lines(&ran).contains(&expected), "{}", ran.stdout);
    assert_eq!(run(&["perf", "list", "--json", "SYMBOL"]).code, Some(1));
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let ran = run(&["perf", "list", "--features", "--json"]);
    ran.is_good();
    let features = &lines(&ran)[0];
    assert!(features["privileged"].is_boolean() && features["perf_event_attr"].is_u64());
    let paranoid = i64::from(crate::support::paranoid());
    assert_eq!(features["perf_event_paranoid"], paranoid);
}

#[test]
fn a_user_sees_where_own_processes_spend_their_time() {
    if !can("perf events", users_may_count()) {
        return;
    }
    let top = ["perf", "top", "--json", "-e", "cpu-clock", "-d", "60", "--"];
    let spin = ["sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 3"];
    let ran: Ran = as_nobody(&[&top[..], &spin].concat()).output().unwrap().into();
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let table = &lines(&ran)[0];
    assert!(table["rows"][0]["comm"] == "sh" && table["rows"][0]["dso"].is_string(), "{table}");
    if crate::support::paranoid() == 2 {
        assert_eq!(table["event"], "cpu-clock:u");
    }
}

#[test]
fn idle_cpus_are_counted_apart() {
    needs_root!();
    let top = ["perf", "top", "--json", "-a", "-e", "cpu-clock", "-d", "60", "--", "sleep", "0.2"];
    let ran = run(&top);
    ran.is_good();
    let table = &lines(&ran)[0];
    assert!(table["idle"].is_u64(), "{table}");
    let rows = table["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["comm"] != "swapper"), "{table}");
}

/// In a PID namespace, threads outside of it have the number of the idle ones.
#[test]
fn threads_outside_of_the_pid_namespace_are_not_idle() {
    needs_root!();
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_triscope")]);
    command.args(["perf", "top", "--json", "-a", "-e", "cpu-clock", "-d", "60"]);
    let ran = Ran::from(command.args(["--", "sleep", "0.2"]).output().unwrap());
    ran.is_good();
    let table = &lines(&ran)[0];
    assert_eq!(table["idle"], 0, "{table}");
    let mut rows = table["rows"].as_array().unwrap().iter();
    assert!(rows.any(|row| row["comm"] == "[outside of this PID namespace]"), "{table}");
    assert!(ran.stderr.contains("PID namespace"), "{}", ran.stderr);
}

#[test]
fn a_table_of_a_command_ends_as_the_command() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let top = ["top", "--json", "-e", "cpu-clock", "--delay", "600", "--", "sh", "-c"];
    assert_eq!(run(&[&top[..], &["exit 3"]].concat()).code, Some(3));
}
