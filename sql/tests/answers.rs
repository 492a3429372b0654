//! The program with datasets that are complete, and with damaged ones.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use trace_dataset::QUESTIONS;

/// Continuous integration builds it as a part of the tests of that crate.
#[path = "../../crates/trace-dataset/tests/given/mod.rs"]
mod given;

fn ask(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope-sql"));
    command.args(args).arg(dir).output().unwrap()
}

fn answer(args: &[&str], dir: &Path) -> String {
    let output = ask(args, dir);
    assert!(output.status.success(), "{args:?} {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the message of a failure, which is one line.
fn failure(args: &[&str], dir: &Path) -> String {
    let output = ask(args, dir);
    let text = String::from_utf8(output.stderr).unwrap();
    // Not a signal, and not a panic.
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?} {:?} {text}", output.status);
    assert!(text.starts_with("triscope-sql: ") && text.lines().count() == 1, "{text}");
    text
}

/// Exports a Go trace. Returns the number of intervals of goroutines.
fn export(dir: &Path, recording: i64, host: Option<&str>) -> u64 {
    let summary = given::go_trace(dir, recording, host, |_| {});
    given::rows(&summary, "goroutine_states")
}

/// The file of a table of a host.
fn file(dir: &Path, table: &str, host: &str) -> PathBuf {
    let found = fs::read_dir(dir.join(table).join("date=2026-11-23").join(format!("host={host}")));
    found.unwrap().next().unwrap().unwrap().path()
}

#[test]
fn all_questions_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let rows = export(dir.path(), 1, Some("a b/c")) + export(dir.path(), 2, None);
    for question in QUESTIONS {
        let text = answer(&["--json", question.name], dir.path());
        assert!(text.starts_with('[') && text.ends_with("]\n"), "{} {text}", question.name);
    }
    let count = "SELECT count(*) AS n FROM goroutine_states";
    assert_eq!(answer(&["--csv", count], dir.path()), format!("n\n{rows}\n"));
    let hosts = "SELECT date, host FROM recordings ORDER BY recording";
    assert_eq!(
        answer(&["--json", hosts], dir.path()),
        "[{\"date\":\"2026-11-23\",\"host\":\"a b/c\"},{\"date\":\"2026-11-23\",\"host\":null}]\n"
    );
    assert_eq!(
        answer(&[hosts], dir.path()),
        "date        host\n2026-11-23  a b/c\n2026-11-23  NULL\n"
    );
    // A table that this dataset does not have is empty.
    fs::remove_dir_all(dir.path().join("samples")).unwrap();
    let samples = "SELECT count(host) + count(recording) AS n FROM samples";
    assert_eq!(answer(&["--csv", samples], dir.path()), "n\n0\n");
    let columns = "SELECT count(*) FROM samples WHERE \"stack\" > 0 AND date > ''";
    assert!(answer(&[columns], dir.path()).ends_with("0\n"));
}

/// Those that have the characters of a pattern had no rows, as had those whose name is no text.
#[test]
fn datasets_in_directories_of_any_name_have_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let question = "SELECT count(duration) AS n FROM goroutine_states WHERE host = 'web-1'";
    for name in ["a[1]", "b*", "c?", "[d", "e f#%41"] {
        let dir = dir.path().join(name);
        let rows = export(&dir, 1, Some("web-1"));
        assert_eq!(answer(&["--csv", question], &dir), format!("n\n{rows}\n"), "{name}");
    }
    let dir = dir.path().join(OsStr::from_bytes(b"\xff"));
    export(&dir, 1, Some("web-1"));
    assert!(failure(&[question], &dir).contains("not UTF-8"));
}

#[test]
fn a_table_is_within_the_limit_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    export(dir.path(), 1, None);
    // 6 MB of text.
    let wide = "SELECT repeat('x', 1000) FROM goroutine_states a, goroutine_states b LIMIT 6000";
    assert_eq!(answer(&["--memory", "4", "--csv", wide], dir.path()).lines().count(), 6001);
    let text = failure(&["--memory", "4", wide], dir.path());
    assert!(text.contains("the table does not fit into the memory"), "{text}");
    let narrow = wide.replace("6000", "60");
    let text = answer(&["--memory", "4", &narrow], dir.path());
    assert!(text.lines().skip(1).eq([&*"x".repeat(1000); 60]), "{text}");
}

#[test]
fn nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    export(dir.path(), 1, Some("web-1"));
    let file = dir.path().join("x.csv");
    for sql in [
        &format!("COPY (SELECT 1) TO '{}'", file.display()),
        &format!("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{}'", file.display()),
        "CREATE VIEW x AS SELECT 1",
        "DROP VIEW sched",
        "INSERT INTO sched SELECT * FROM sched",
        "SET datafusion.execution.batch_size = 1",
        "SELECT 1; DROP VIEW sched",
        "SELECT * FROM '/etc/passwd'",
        "SELECT nothing FROM sched",
        "SELECT",
        "",
        "no_question",
    ] {
        failure(&[sql], dir.path());
    }
    assert!(!file.exists());
    for bad in [&["--nothing", "cpu_time"][..], &[], &["cpu_time", "sched"]] {
        failure(bad, dir.path());
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(failure(&["cpu_time"], empty.path()).contains("no dataset"));
    assert!(failure(&["cpu_time"], Path::new("/nowhere")).contains("/nowhere: No such file"));
}

#[test]
fn a_help_that_cannot_be_written_is_an_error_of_the_output() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope-sql"));
    let output = command.arg("--help").stdout(full).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("triscope-sql: standard output: "), "{text}");
}

#[test]
fn only_the_files_of_the_named_partition_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let rows = export(dir.path(), 1, Some("web-1"));
    export(dir.path(), 2, Some("web-2"));
    fs::write(file(dir.path(), "goroutine_states", "web-2"), "no Parquet file").unwrap();
    let question = |host: &str| format!("SELECT count(duration) AS n FROM goroutine_states{host}");
    let of_one = question(" WHERE host = 'web-1'");
    assert_eq!(answer(&["--csv", &of_one], dir.path()), format!("n\n{rows}\n"));
    let text = failure(&[&question("")], dir.path());
    assert!(text.contains("/host=web-2/") && text.contains("is not complete"), "{text}");
}

#[test]
fn damaged_files_are_errors_or_have_other_values() {
    let dir = tempfile::tempdir().unwrap();
    export(dir.path(), 1, Some("web-1"));
    let path = file(dir.path(), "goroutine_states", "web-1");
    let whole = fs::read(&path).unwrap();
    let sql =
        "SELECT state, count(*), sum(duration), max(stack) FROM goroutine_states GROUP BY state";
    let attempt = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        let output = ask(&["--csv", sql], dir.path());
        if !output.status.success() {
            failure(&["--csv", sql], dir.path());
        }
        output.status.success()
    };
    assert!(attempt(&whole));
    // The metadata are at the end.
    for len in [0, 3, 4, 8, 12, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        assert!(!attempt(&whole[..len]), "{len} bytes");
    }
    let metadata = whole.len() - 600;
    let positions = (0..24).map(|n| n * metadata / 24).chain((0..24).map(|n| metadata + n * 25));
    for position in positions {
        let mut damaged = whole.clone();
        damaged[position] ^= 0xff;
        attempt(&damaged);
    }
}

/// The kinds of entities whose tables are documented have their keys there.
#[test]
fn entities_are_in_their_tables() {
    let dir = tempfile::tempdir().unwrap();
    given::counters(dir.path());
    let sql = "SELECT c.cpu, v.value FROM counters v JOIN cpus c USING (recording, entity)";
    assert_eq!(answer(&["--csv", sql], dir.path()), "cpu,value\n3,3.0\n");
}

/// The reading of an ancestor's counters has a row for each process below it.
#[test]
fn a_reading_of_several_cgroups_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    given::reading_of_several_cgroups(dir.path());
    let text = answer(&["--csv", "throttling"], dir.path());
    let rows: Vec<_> = text.lines().skip(1).collect();
    assert_eq!(rows.len(), 1, "{text}");
    assert!(rows[0].contains(",/sys/fs/cgroup/s,,2,50,1,"), "{text}");
}

/// Longer than a `BIGINT`.
#[test]
fn sums_of_durations_have_no_limit() {
    let dir = tempfile::tempdir().unwrap();
    given::long_times(dir.path());
    for (question, sum) in [
        ("goroutine_waits", ",2,10000000000000000000,"),
        ("goroutine_times", ",10000000000000000000,"),
        ("off_cpu", ",preempted,2,10000000000000000000,"),
        ("noisy_neighbours", ",10000000000000000000,"),
        // The threads that wait run for a moment before and after.
        ("cpu_time", ",10000000000000000004,1.0"),
        ("scheduling_latency", ",10000000000000000000\n"),
    ] {
        let text = answer(&["--csv", question], dir.path());
        assert!(text.contains(sum), "{question}: {text}");
    }
}
