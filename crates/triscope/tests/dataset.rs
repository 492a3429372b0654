//! `triscope export` and `triscope questions` as processes. `cargo xtask test-dataset` reads the files.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The exit code, the standard output, and the standard error.
fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let output = command.args(args).current_dir(dir).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// As of `convert`: what is before the damage is exported, and the exit code is 1.
#[test]
fn of_damaged_traces_there_is_what_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let cut = format!("{DATA}/nettrace/tests/data/t9-killed.nettrace");
    let (code, _, errors) = run(dir.path(), &["export", &cut, "-o", "dotnet"]);
    assert_eq!(code, Some(1));
    // A row more than the trace has: the loss of the rest.
    assert!(errors.starts_with("dotnet (partial): 3385 rows in "), "{errors}");
    assert!(errors.contains("the stream is truncated"), "{errors}");
    assert!(names(&dir.path().join("dotnet")).contains(&"recordings".to_owned()));

    // Nothing is before the damage: no file.
    let shop = fs::read(format!("{DATA}/gotrace/tests/data/shop.trace")).unwrap();
    fs::write(dir.path().join("head.trace"), &shop[..30_000]).unwrap();
    let (code, _, errors) = run(dir.path(), &["export", "head.trace", "-o", "go"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("the traces have no events"), "{errors}");
    assert!(!dir.path().join("go").exists(), "neither does the directory stay");
    // One that was there before stays.
    fs::create_dir(dir.path().join("there")).unwrap();
    let (code, ..) = run(dir.path(), &["export", "head.trace", "-o", "there"]);
    assert_eq!((code, names(&dir.path().join("there"))), (Some(1), Vec::new()));
}

/// As `report` prints it: here events of .NET that have no table.
#[test]
fn parts_that_are_not_exported_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    let trace = format!("{DATA}/nettrace/tests/data/t31-selfdesc.nettrace");
    let (_, report, _) = run(dir.path(), &["report", "--json", &trace]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let notes = report["notes"].as_array().unwrap();
    assert!(!notes.is_empty());
    let (code, _, errors) = run(dir.path(), &["export", &trace, "-o", "dataset"]);
    assert_eq!(code, Some(0), "{errors}");
    for note in notes {
        let line = format!("triscope: {}\n", note.as_str().unwrap());
        assert_eq!(errors.matches(&line).count(), 1, "{errors}");
    }
}

/// The second export replaces the files of the first one.
#[test]
fn the_order_of_the_traces_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["t10-activity", "t10-counters"]
        .map(|name| format!("{DATA}/nettrace/tests/data/{name}.nettrace"));
    let export = |traces: [&str; 2], more: &[&str]| {
        let args = [&["export", "-o", "dataset", "--host", "a"], &traces[..], more].concat();
        let (code, _, errors) = run(dir.path(), &args);
        assert_eq!(code, Some(0), "{errors}");
        let partitions = dir.path().join("dataset/recordings");
        let dates = names(&partitions);
        let hosts = dates.iter().map(|date| partitions.join(date).join("host=a"));
        hosts.flat_map(|host| names(&host)).collect::<Vec<_>>()
    };
    let first = export([&one, &other], &[]);
    assert_eq!(first.len(), 1);
    assert_eq!(export([&other, &one], &[]), first);
    // Another begin is another recording.
    assert_eq!(export([&other, &one], &["--start", "1790000000"]).len(), 2);
    assert_eq!(export([&other, &one], &["--start", "0"]).len(), 3);
}

/// A recording is read twice: first for the time at which it began.
#[test]
fn files_without_names_are_listed_once() {
    let dir = tempfile::tempdir().unwrap();
    let stacks = format!("{DATA}/perf-data/tests/data/stacks.perf.data");
    let args = ["export", &stacks, "-o", "dataset", "--start", "1790000000"];
    let (code, _, errors) = run(dir.path(), &args);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(errors.matches(" frames without a function: ").count(), 1, "{errors}");
}

#[test]
fn a_directory_that_cannot_be_created_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let trace = format!("{DATA}/gotrace/tests/data/shop.trace");
    let (code, _, errors) = run(dir.path(), &["export", &trace, "-o", "/proc/x"]);
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("triscope: /proc/x: cannot be written: "), "{errors}");
}

#[test]
fn views_need_a_dataset() {
    let dir = tempfile::tempdir().unwrap();
    for (views, code, what) in [
        ("", 2, "triscope: --views: the name of the directory is empty\n"),
        ("nowhere", 1, "triscope: nowhere: no dataset of triscope export"),
    ] {
        let (status, text, errors) = run(dir.path(), &["questions", "--views", views]);
        assert_eq!((status, &*text), (Some(code), ""));
        assert!(errors.starts_with(what), "{errors}");
    }
    for table in ["recordings", "sched"] {
        let host = dir.path().join("dataset").join(table).join("date=2026-11-22/host=a");
        fs::create_dir_all(&host).unwrap();
        fs::write(host.join("0000000000000001.parquet"), "").unwrap();
    }
    let (_, text, _) = run(dir.path(), &["questions", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (_, sql, _) = run(dir.path(), &["questions", "cpu_time"]);
    let is_it = |question: &&serde_json::Value| question["name"] == "cpu_time";
    let found = list.as_array().unwrap().iter().find(is_it).unwrap();
    assert_eq!(found["sql"], sql);
    let (code, text, _) = run(dir.path(), &["questions", "--views", "dataset"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("read_parquet('dataset/sched/*/*/*.parquet'"), "{text}");
    // A table of a newer version is empty.
    assert_eq!(text.matches("read_parquet(").count(), 2, "{text}");
    assert!(text.contains("CREATE OR REPLACE VIEW waits AS SELECT * FROM (SELECT "), "{text}");
}

#[test]
fn conditions_choose_the_cohorts_of_a_question() {
    let dir = tempfile::tempdir().unwrap();
    let cohorts = ["--before", "host = 'a'", "--after", "host = 'b'"];
    for more in [&[][..], &["--spark"]] {
        let args = [&["questions", "latency_regression"], &cohorts[..], more].concat();
        let (code, text, errors) = run(dir.path(), &args);
        assert_eq!(code, Some(0), "{errors}");
        assert!(text.contains("WHERE (\n    host = 'a'\n  )\n"), "{text}");
        assert!(text.contains("WHERE (\n    host = 'b'\n  )\n), sums AS ("), "{text}");
    }
    for (args, what) in [
        (&["cpu_time"][..], "cpu_time: --before and --after are for flame_graph_difference and "),
        (&[], "--before and --after need the name of a question"),
        (&["nothing"], "no question is named nothing"),
    ] {
        let (code, _, errors) = run(dir.path(), &[&["questions"], args, &cohorts].concat());
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains(what), "{errors}");
    }
    for args in [&cohorts[..2], &["--before", " ", "--after", "true"]] {
        let (code, _, errors) =
            run(dir.path(), &[&["questions", "latency_regression"], args].concat());
        assert_eq!(code, Some(2), "{errors}");
    }
}
