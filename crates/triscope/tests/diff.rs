//! `triscope diff` on profiles whose shares are known.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const BEFORE: &str = "main;parse;read 30\nmain;parse 30\nmain;print 40\n";
const AFTER: &str = "main;parse;read 30\nmain;print 20\nmain;new<&> 150\n";

fn diff(args: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.arg("diff").args(args).args(files).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Asserts that a command has failed with one line that ends in this.
#[track_caller]
fn refuses(output: &Output, code: i32, end: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.lines().count() == 1 && error.trim_end().ends_with(end), "{error}");
}

fn files(dir: &Path, contents: [&str; 2], ending: &str) -> [PathBuf; 2] {
    let mut names = ["before", "after"].into_iter().zip(contents);
    std::array::from_fn(|_| {
        let (name, content) = names.next().unwrap();
        let path = dir.join(name).with_extension(ending);
        std::fs::write(&path, content).unwrap();
        path
    })
}

#[test]
fn shares_and_weights_of_functions() {
    let dir = tempfile::tempdir().unwrap();
    let [before, after] = files(dir.path(), [BEFORE, AFTER], "folded");
    let table = diff(&[], &[&before, &after]);
    let rows: Vec<String> = text(&table)
        .lines()
        .skip(3)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "0.00 % 75.00 % +75.00 0.00 % 75.00 % +75.00 new<&>",
        "30.00 % 0.00 % -30.00 60.00 % 15.00 % -45.00 parse",
        "40.00 % 10.00 % -30.00 40.00 % 10.00 % -30.00 print",
        "30.00 % 15.00 % -15.00 30.00 % 15.00 % -15.00 read",
        "0.00 % 0.00 % +0.00 100.00 % 100.00 % +0.00 main",
    ];
    assert_eq!(rows, expected);
    let table = diff(&["--absolute", "--sort", "total", "--rows", "2"], &[&before, &after]);
    let lines: Vec<&str> = text(&table).lines().skip(3).collect();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(lines[0]), ["0", "150", "+150", "0", "150", "+150", "new<&>"]);
    assert_eq!(cells(lines[1]), ["0", "0", "+0", "100", "200", "+100", "main"]);
    assert_eq!(lines[2..], ["3 more functions: --rows 0 prints all"]);
    let json: Value =
        serde_json::from_str(text(&diff(&["--json", "--sort", "name"], &[&before, &after])))
            .unwrap();
    assert_eq!((&json["before"]["total"], &json["after"]["total"]), (&100.into(), &200.into()));
    let parse = &json["functions"][2];
    assert_eq!((&parse["name"], &parse["total"]["before"]), (&"parse".into(), &60.into()));
    let points = |of: &str| parse[of]["points"].as_f64().unwrap();
    assert!(
        (points("total") + 45.0).abs() < 1e-9 && (points("self") + 30.0).abs() < 1e-9,
        "{parse}"
    );
}

#[test]
fn outputs_have_all_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let [before, after] = files(dir.path(), [BEFORE, AFTER], "folded");
    let folded = dir.path().join("difference.folded");
    let ran = diff(&["-o", folded.to_str().unwrap()], &[&before, &after]);
    assert!(text(&ran).contains("FUNCTION"));
    let lines = std::fs::read_to_string(&folded).unwrap();
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    let expected =
        ["main;new<&> 0 150", "main;parse 30 0", "main;parse;read 30 30", "main;print 40 20"];
    assert_eq!(lines, expected);
    let svg = dir.path().join("difference.svg");
    text(&diff(&["-o", svg.to_str().unwrap()], &[&before, &after]));
    let svg = std::fs::read_to_string(&svg).unwrap();
    assert_eq!(svg.matches("<g><title>").count(), 6, "{svg}");
    assert!(svg.contains("<title>new&lt;&amp;&gt; (before 0.00 %, 0; after 75.00 %, 150"), "{svg}");
}

/// The same samples in each format that is read.
#[test]
fn formats_are_recognized_by_their_content() {
    let dir = tempfile::tempdir().unwrap();
    let speedscope = |samples: &str, weights: &str| {
        let frames = r#"[{"name":"main"},{"name":"parse"},{"name":"read"},{"name":"print"}]"#;
        format!(
            r#"{{"shared":{{"frames":{frames}}},"profiles":[
            {{"type":"sampled","unit":"none","samples":{samples},"weights":{weights}}}]}}"#
        )
    };
    let contents = [
        &*speedscope("[[0,1,2],[0,1],[0,3]]", "[30,30,40]"),
        &*speedscope("[[0,1,2],[0,3]]", "[30,70]"),
    ];
    let [before, after] = files(dir.path(), contents, "json");
    let [other, _] = files(dir.path(), [BEFORE, ""], "txt");
    let of = |files: &[&Path]| {
        text(&diff(&["--sort", "name"], files)).lines().skip(2).collect::<String>()
    };
    assert_eq!(of(&[&before, &after]), of(&[&other, &after]));
    // A profile of a Go trace, as pprof has it, beside itself.
    let trace =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/go1.26-mixed.trace.gz");
    let profile = dir.path().join("sync.pb.gz");
    let mut made = Command::new(env!("CARGO_BIN_EXE_triscope"));
    made.args(["go", "profile", "sync"]).arg(trace).arg("-o").arg(&profile);
    assert!(made.output().unwrap().status.success());
    let same: Value =
        serde_json::from_str(text(&diff(&["--json"], &[&profile, &profile]))).unwrap();
    assert_eq!(same["unit"], "nanoseconds");
    let functions = same["functions"].as_array().unwrap();
    assert!(
        functions.len() > 10 && functions.iter().all(|f| f["total"]["points"] == 0.0),
        "{same}"
    );
    let choice = format!(
        "different units: nanoseconds and counts; choose with --samples FILE=NAME: {} has delay, \
         contentions; {} has counts",
        profile.display(),
        before.display()
    );
    refuses(&diff(&[], &[&profile, &before]), 1, &choice);
    // Hints name only options that there are.
    let damaged = dir.path().join("damaged.nettrace");
    let cut =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../nettrace/tests/data/t9-killed.nettrace");
    std::fs::copy(cut, &damaged).unwrap();
    let output = diff(&[], &[&damaged, &profile]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("damaged.nettrace: ") && !error.contains("--recover"), "{error}");
    let contentions = diff(&["--samples", "contentions"], &[&profile, &profile]);
    assert!(text(&contentions).starts_with("before: "));
    let missing = diff(&["--samples", "cycles"], &[&profile, &profile]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no samples of cycles: there are"));
}

/// A recording of several processes and its pprof file, which has them as labels, are the same.
#[test]
fn a_recording_is_equal_to_its_own_profile() {
    let dir = tempfile::tempdir().unwrap();
    let recording =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf-data/tests/data/perf.perf.data");
    let profile = dir.path().join("own.pb.gz");
    let mut made = Command::new(env!("CARGO_BIN_EXE_triscope"));
    made.arg("convert").arg(&recording).arg("-o").arg(&profile);
    assert!(made.output().unwrap().status.success());
    for files in [[&*profile, &*recording], [&*recording, &*profile]] {
        let same: Value = serde_json::from_str(text(&diff(&["--json"], &files))).unwrap();
        assert_eq!(same["before"]["total"], same["after"]["total"]);
        let functions = same["functions"].as_array().unwrap();
        let is_same = |of: &Value| of["before"] == of["after"];
        let are_same = functions.iter().all(|f| is_same(&f["self"]) && is_same(&f["total"]));
        assert!(functions.len() > 5 && are_same, "{same}");
    }
}

/// What is counted, whether each event is one of it or not.
#[test]
fn a_table_says_what_the_profiles_have() {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let trace = data.join("gotrace/tests/data/shop.trace");
    let recording = data.join("perf-data/tests/data/perf.perf.data");
    let [folded, _] = files(dir.path(), [BEFORE, AFTER], "folded");
    let first = |file: &Path| {
        let table = diff(&[], &[file, file]);
        text(&table).lines().next().unwrap().rsplit_once(": ").unwrap().1.to_owned()
    };
    assert_eq!(first(&trace), "5 samples of go-cpu");
    assert_eq!(first(&folded), "100 counts");
    assert!(first(&recording).contains(" samples of "), "{}", first(&recording));
}

/// The entries of a file are stacks with the sums of their weights.
#[test]
fn stacks_of_a_file_are_not_samples() {
    let dir = tempfile::tempdir().unwrap();
    let file = |weights: &str| {
        format!(
            r#"{{"shared":{{"frames":[{{"name":"main"}},{{"name":"read"}}]}},"profiles":[
            {{"type":"sampled","unit":"milliseconds","samples":[[0],[0,1]],"weights":{weights}}}]}}"#
        )
    };
    let [before, after] = files(dir.path(), [&file("[3,4]"), &file("[3,5]")], "json");
    let table = diff(&[], &[&before, &after]);
    let first = text(&table).lines().next().unwrap();
    assert!(first.ends_with(": 2 stacks of nanoseconds, 7.000 ms"), "{first}");
    let json: Value = serde_json::from_str(text(&diff(&["--json"], &[&before, &after]))).unwrap();
    assert_eq!(
        (&json["before"]["events"], &json["unit"]),
        (&"stacks".into(), &"nanoseconds".into())
    );
}

#[test]
fn other_inputs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [before, after] = files(dir.path(), [BEFORE, "<svg/>\n"], "folded");
    let hint = "profiles are pprof files, folded stacks, speedscope files, or traces with samples";
    refuses(&diff(&[], &[&before, &after]), 1, hint);
    let [before, json] = files(dir.path(), [BEFORE, "{\"meta\":{}}"], "json");
    refuses(&diff(&[], &[&before, &json]), 1, "is JSON, but no file of speedscope");
    refuses(
        &diff(&["-o", "x.png"], &[&before, &before]),
        2,
        "the name must end in .svg or .folded",
    );
    let stdin = Path::new("-");
    let only_one = "only one of the profiles can be standard input";
    refuses(&diff(&[], &[stdin, stdin]), 2, only_one);
    let [empty, _] = files(dir.path(), ["main 0\n", ""], "folded");
    refuses(&diff(&[], &[&empty, &empty]), 1, "both profiles are empty");
    let output = before.to_str().unwrap().to_owned() + ".svg";
    std::fs::rename(&before, &output).unwrap();
    let ran = diff(&["-o", &output], &[Path::new(&output), Path::new(&output)]);
    refuses(&ran, 1, "is the input: the output needs another name");
}
