//! `record --freq` and `record --off-cpu`.

use crate::needs_root;
use crate::record::{open_directory, read, reported};
use crate::sampling::{FRAME_POINTERS, compiled};
use crate::support::{Ran, as_nobody, can, names, run_in, users_may_count};
use testkit::sampling::rate;

/// Samples and waits with this function.
fn stacks_of(timeline: &testkit::perfetto::Timeline, function: &str) -> usize {
    let is_it = |line: &&String| {
        [" sample ", "/Off CPU: begin "].iter().any(|what| line.contains(what))
            && line.contains(function)
    };
    timeline.lines.iter().filter(is_it).count()
}

/// Stacks of a program that runs and sleeps in known functions are on the timeline, and in what is
/// kept.
#[test]
fn stacks_are_on_the_timeline_and_kept() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    let script = format!("{program} on 20 && {program} sleep 20");
    let options =
        ["record", "-F", &rate(999).to_string(), "--off-cpu", "--keep", "raw", "-o", "out"];
    let ran = run_in(dir.path(), &[&options[..], &["sh", "-c", &script]].concat());
    ran.is_good();
    let (samples, waits) = (reported(&ran, "samples of"), reported(&ran, "stacks of waits"));
    let timeline = read(&dir.path().join("out"));
    assert_eq!(timeline.count(" sample ") as u64, samples, "{}", ran.stderr);
    assert_eq!(timeline.count("/Off CPU: begin ") as u64, waits, "{}", ran.stderr);
    // On and off the CPU.
    assert!(samples > 0 && waits > 0, "{}", ran.stderr);
    for function in ["sixty", "wait_for", "main"] {
        assert!(stacks_of(&timeline, function) > 0, "{function}: {}", timeline.text());
    }
    // Nothing of threads that are not drawn: they have no track with their name.
    let names = ["triscope", "sh", "shares", "other", "others"];
    let others: Vec<&String> = timeline
        .lines
        .iter()
        .filter(|line| line.starts_with("track "))
        .filter(|line| {
            line.rsplit([' ', '/']).next().is_some_and(|word| word.parse::<u64>().is_ok())
        })
        .filter(|line| !names.iter().any(|name| line.contains(name)))
        .collect();
    assert!(others.is_empty(), "{others:?}");

    let folded = ["convert", "raw", "--samples", "off-cpu", "-o", "raw.folded"];
    run_in(dir.path(), &folded).is_good();
    let stacks = std::fs::read_to_string(dir.path().join("raw.folded")).unwrap();
    assert!(stacks.contains("main;sixty;wait_for;"), "{stacks}");

    // The thread that sleeps is the last one.
    let is_wait = |line: &&String| line.contains("/Off CPU: begin ") && line.contains("wait_for");
    let waits = timeline.lines.iter().rev().find(is_wait);
    let (thread, _) = waits.unwrap().split_once("/Off CPU: ").unwrap();
    let tid = thread.rsplit(' ').next().unwrap();
    let explained = run_in(dir.path(), &["explain", "--json", "--thread", tid, "raw"]);
    assert!(explained.stdout.contains("wait_for"), "{tid}: {}", explained.stdout);
}

#[test]
fn a_user_samples_the_command_alone() {
    let dir = open_directory();
    let out = dir.path().join("out");
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let run = |options: &[&str]| -> Ran {
        let command = ["-o", out.to_str().unwrap(), "sh", "-c", script];
        as_nobody(&[&["record"][..], options, &command].concat()).output().unwrap().into()
    };
    if !can("perf events of own processes", users_may_count()) {
        return;
    }
    let ran = run(&["--off-cpu"]);
    ran.is_refused(1, &["triscope: "]);
    assert_eq!(names(dir.path()), [""; 0]);
    let ran = run(&["-F", &rate(999).to_string()]);
    ran.is_good();
    let timeline = read(&out);
    let samples = reported(&ran, "samples of");
    assert_eq!(timeline.count(" sample ") as u64, samples, "{}", ran.stderr);
    assert!(samples > 0, "{}", ran.stderr);
}
