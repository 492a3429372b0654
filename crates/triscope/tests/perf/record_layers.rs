//! `triscope record` of a runtime together with the scheduler: the layers are related in its output.

use crate::needs_root;
use crate::record::{open_directory, read, reported};
use crate::support::{
    Ran, Running, WITHOUT_TRACEFS, as_nobody, as_nobody_with, can, go, is_able, names, paranoid,
    run_in, users_may_count,
};
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;
use testkit::perfetto::Timeline;

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gotrace/tests/data/shop.trace");

/// Lines of goroutines and Ps in order, without the name of their process: the file of a trace that was
/// kept is called by its process id.
fn of_runtime(timeline: &Timeline) -> Vec<String> {
    let of_track = |line: &String| {
        let (at, track) = line.split_once(' ')?;
        let (_, track) = track.split_once('/')?;
        let is_runtime = track.starts_with("Goroutines/") || track.starts_with("Procs/");
        is_runtime.then(|| format!("{at} {track}"))
    };
    let mut lines: Vec<String> = timeline.lines.iter().filter_map(of_track).collect();
    lines.sort();
    lines
}

fn record_shop(dir: &Path) -> Ran {
    let options = ["record", "--sched", "--go-trace", "go.trace", "--keep", "raw", "-o", "out"];
    run_in(dir, &[&options[..], &["cp", SHOP, "go.trace"]].concat())
}

/// The output is that of `convert`, and the recording ends in one line with the next step.
#[test]
fn the_timeline_of_a_recording_is_that_of_its_records() {
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    let dir = tempdir().unwrap();
    let ran = record_shop(dir.path());
    ran.is_good();
    assert_eq!(reported(&ran, "goroutines"), 150, "{}", ran.stderr);
    let last = ran.stderr.lines().last().unwrap();
    assert!(last.starts_with("next: triscope report raw --html raw.html; or open it"), "{last}");
    let steps = ran.stderr.lines().filter(|line| line.contains("perfetto.dev")).count();
    assert_eq!(steps, 1, "{}", ran.stderr);
    assert_eq!(names(dir.path()), ["go.trace", "out", "raw"]);

    run_in(dir.path(), &["convert", "raw", "-o", "kept"]).is_good();
    let live = of_runtime(&read(&dir.path().join("out")));
    let kept = of_runtime(&read(&dir.path().join("kept")));
    assert!(live.len() > 1000, "{}", live.len());
    let difference = live.iter().zip(&kept).find(|(a, b)| a != b);
    assert_eq!((difference, live.len()), (None, kept.len()));
    let timeline = read(&dir.path().join("out"));
    assert_eq!(timeline.count("Command: begin cp "), 1);
}

/// Builds the program `busy` in a directory, if there is a Go toolchain.
fn build_busy(dir: &Path) -> bool {
    let Some(mut go) = go() else { return false };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/busy/main.go");
    go.env("CGO_ENABLED", "0").args(["build", "-o"]).arg(dir.join("busy")).arg(source);
    assert!(go.status().unwrap().success());
    true
}

/// The process of the trace is not that of the command.
#[test]
fn a_trace_that_is_named_is_of_the_process_that_writes_it() {
    needs_root!();
    let dir = tempdir().unwrap();
    if !build_busy(dir.path()) {
        return;
    }
    // On a busy machine, the program can end before the recorder has looked at it.
    let is_found = ["1", "2", "3", "4", "5"].into_iter().any(|keep| {
        let options = ["record", "--sched", "--go-trace", "trace", "--keep", keep, "-o", "out"];
        let command = ["sh", "-c", "./busy trace & echo $!; wait"];
        let ran = run_in(dir.path(), &[&options[..], &command].concat());
        ran.is_good();
        let kept = format!("go-{}.trace", ran.stdout.trim());
        names(&dir.path().join(keep)).contains(&kept)
    });
    assert!(is_found);
    let states = of_runtime(&read(&dir.path().join("out")));
    assert!(states.iter().any(|line| line.contains(": begin Running") && line.contains(" on=")));
}

#[test]
fn a_preempted_goroutine_is_drawn_as_preempted() {
    needs_root!();
    let dir = tempdir().unwrap();
    if !build_busy(dir.path()) {
        return;
    }
    // Without `--keep`, nothing is left of the records.
    run_in(dir.path(), &["record", "-o", "out", "./busy", "trace"]).is_good();
    assert_eq!(names(dir.path()), ["busy", "out", "trace"]);
    let ran = run_in(dir.path(), &["record", "--keep", "raw", "-o", "out", "./busy", "trace"]);
    ran.is_good();
    let timeline = read(&dir.path().join("out"));
    let states = of_runtime(&timeline);
    let with = |words: &[&str]| {
        states.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    assert!(with(&[": begin Running", " on="]) > 0, "{}", ran.stderr);
    assert!(with(&[": begin Preempted", " on=", " by="]) > 0, "{}", ran.stderr);
    run_in(dir.path(), &["convert", "raw", "-o", "kept"]).is_good();
    let kept = of_runtime(&read(&dir.path().join("kept")));
    let difference = states.iter().zip(&kept).find(|(a, b)| a != b);
    assert_eq!((difference, states.len()), (None, kept.len()));
}

/// The live timeline stays, and has each layer by itself.
#[test]
fn layers_that_cannot_be_related_are_drawn_by_themselves() {
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    let dir = tempdir().unwrap();
    std::fs::create_dir(dir.path().join("out.related.partial")).unwrap();
    let ran = record_shop(dir.path());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("the timeline has each layer by itself"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the layers are not related"), "{}", ran.stderr);
    let timeline = read(&dir.path().join("out"));
    let states = of_runtime(&timeline);
    assert!(states.len() > 1000 && !states.iter().any(|line| line.contains(" on=")));
}

#[test]
fn a_user_keeps_the_switches_of_the_command() {
    if !can("perf events of own processes", users_may_count()) {
        return;
    }
    let dir = open_directory();
    let run =
        |args: &[&str]| -> Ran { as_nobody(args).current_dir(dir.path()).output().unwrap().into() };
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.05; :";
    let ran = run(&["record", "-o", "out", "--keep", "raw", "sh", "-c", script]);
    ran.is_good();
    assert!(ran.stderr.contains("next: triscope report raw"), "{}", ran.stderr);
    let report = run(&["report", "--json", "raw"]);
    report.is_good();
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let threads = report["threads"].as_array().unwrap();
    let shell = threads.iter().find(|thread| thread["name"] == "sh").expect("a thread");
    assert!(shell["times"]["on_cpu"].as_i64().unwrap() > 0, "{shell}");

    let demo = run(&["demo", "--no-go", "--no-dotnet"]);
    demo.is_good();
    let last = demo.stderr.lines().last().unwrap();
    assert!(last.starts_with("open timeline.html in a browser, and timeline.pftrace"), "{last}");
    assert!(reported(&demo, "intervals") > 0, "{}", demo.stderr);
    assert_eq!(names(dir.path()), ["out", "raw", "timeline.html", "timeline.pftrace"]);
}

#[test]
fn a_refusal_names_every_remedy() {
    needs_root!();
    if !can("kernel.perf_event_paranoid of 0 or more", paranoid() > -1) {
        return;
    }
    let sleep = Running::start(Command::new("sleep").arg("60"));
    let pid = sleep.id().to_string();
    let dir = open_directory();
    let out = dir.path().join("out");
    let args = ["record", "-o", out.to_str().unwrap(), "--pid", &pid];
    let ran = as_nobody_with(WITHOUT_TRACEFS, "-all", &args);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let is_confined = ran.stderr.contains("container") || ran.stderr.contains("locked down");
    assert!(!ran.stderr.contains("next:"), "{}", ran.stderr);
    if !is_confined {
        ran.is_refused(1, &["setcap", "mount -t tracefs"]);
    }
}
