//! Recordings of `perf.data`, of this program and of `perf`: stacks, inlined calls and names.

use crate::needs_root;
use crate::sampling::{FRAME_POINTERS, Stacks, compiled_from, parsed, read};
use crate::support::{Ran, run_in};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program whose time goes to `inlined`, which `space::called` has, called by `outer`, called by `main`.
fn calls(dir: &Path, options: &[&str]) -> Option<PathBuf> {
    compiled_from(dir, "calls", &[&["-g"], options].concat())
}

#[track_caller]
fn perf_in(dir: &Path, args: &[&str]) -> String {
    let output = testkit::perf::output(Command::new("perf").current_dir(dir).args(args));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The part of the samples in `called` whose stack has its callers, as `perf script` prints them.
fn share_of_whole_stacks(script: &str) -> f64 {
    let samples: Vec<&str> = script.split("\n\n").filter(|text| text.contains("called")).collect();
    assert!(samples.len() > 20, "{script}");
    let is_whole = |sample: &&&str| sample.contains("outer+") && sample.contains(" main+");
    samples.iter().filter(is_whole).count() as f64 / samples.len() as f64
}

/// Callers without frame pointers are found in copies of the stack.
#[test]
fn copies_of_stacks_are_unwound_by_both() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    if calls(dir.path(), &["-fomit-frame-pointer"]).is_none() {
        return;
    }
    let dwarf = ["--call-graph", "dwarf", "-F", "999", "-e", "cpu-clock:u"];
    let args = [&["profile", "-o", "x.data"], &dwarf[..], &["--", "./calls", "300"]].concat();
    run_in(dir.path(), &args).is_good();
    let mut recordings = vec!["x.data"];
    let with_perf = testkit::perf::is_installed();
    if with_perf {
        let args = [&["record", "-q", "-N", "-o", "theirs.data"], &dwarf[..], &["./calls", "300"]];
        perf_in(dir.path(), &args.concat());
        recordings.push("theirs.data");
    }
    for recording in recordings {
        let ours = run_in(dir.path(), &["perf", "script", "-i", recording]);
        ours.is_good();
        let share = share_of_whole_stacks(&ours.stdout);
        assert!(share > 0.9, "{recording}, ours: {share}\n{}", ours.stdout);
        if with_perf {
            let theirs = perf_in(dir.path(), &["script", "-i", recording]);
            let share = share_of_whole_stacks(&theirs);
            assert!(share > 0.9, "{recording}, perf's: {share}\n{theirs}");
        }
    }
}

/// The weight of all stacks, and of those with a function.
fn weights(stacks: &Stacks, function: &str) -> [u64; 2] {
    let has = |(stack, _): &(&Vec<String>, &u64)| stack.iter().any(|frame| frame == function);
    let of = stacks.iter().filter(has).map(|(_, weight)| weight).sum();
    [stacks.values().sum(), of]
}

fn folded(dir: &Path, input: &str) -> (Stacks, Ran) {
    let ran = run_in(dir, &["convert", input, "-o", "x.folded"]);
    ran.is_good();
    (parsed(&read(dir, "x.folded")), ran)
}

#[test]
fn profiles_of_recordings_have_inlined_calls() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    if calls(dir.path(), &FRAME_POINTERS).is_none() {
        return;
    }
    let record = ["profile", "-o", "x.data", "-e", "cpu-clock:u", "--", "./calls", "100"];
    run_in(dir.path(), &record).is_good();
    let [all, inlined] = weights(&folded(dir.path(), "x.data").0, "inlined");
    assert!(inlined as f64 / all as f64 > 0.9, "{inlined} of {all}");
    // `diff` has the same functions.
    run_in(dir.path(), &["convert", "x.data", "-o", "x.pb.gz"]).is_good();
    let ran = run_in(dir.path(), &["diff", "x.pb.gz", "x.data"]);
    ran.is_good();
    let rows: Vec<&str> = ran.stdout.lines().filter(|line| line.contains(" %")).collect();
    assert!(rows.iter().any(|row| row.ends_with("  inlined")), "{}", ran.stdout);
    assert!(rows.iter().all(|row| row.matches("+0.00").count() == 2), "{}", ran.stdout);
}

/// perf(1) reads the build ids at the end of a recording, by path.
#[test]
fn replaced_programs_of_perf_recordings_have_no_names() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let build = |name: &str, more| {
        let program = calls(dir.path(), &[&FRAME_POINTERS[..], &[more]].concat())?;
        std::fs::rename(program, dir.path().join(name)).unwrap();
        Some(())
    };
    let built = build("before", "-DMORE=1").and_then(|()| build("after", "-DMORE=2"));
    if built.is_none() || !testkit::perf::is_installed() {
        return;
    }
    // Another inode: one that was freed can be used again.
    let replace = "cp before server; ./server 100; cp after other; mv other server";
    let rewrite = "cp before server; ./server 100; cp after server";
    let clock = ["-k", "CLOCK_MONOTONIC"];
    for (script, options) in [(replace, &[][..]), (replace, &clock), (rewrite, &clock)] {
        let record = ["record", "-q", "-N", "-g", "-e", "cpu-clock:u", "-o", "x.data"];
        let record = [&record[..], options, &["--", "sh", "-c", script]].concat();
        perf_in(dir.path(), &record);
        let (stacks, ran) = folded(dir.path(), "x.data");
        assert_eq!(weights(&stacks, "space::called")[1], 0, "{script}: {stacks:?}");
        assert!(ran.stderr.contains("/server: ") && ran.stderr.contains("was replaced"), "{ran:?}");
        for command in ["script", "report"] {
            let ran = run_in(dir.path(), &["perf", command, "-i", "x.data"]);
            let is_said = ran.stderr.contains("/server: ") && ran.stderr.contains("was replaced");
            assert!(is_said, "{command}: {}", ran.stderr);
        }
        // The same without the replacement.
        let record = ["record", "-q", "-N", "-g", "-e", "cpu-clock:u", "-o", "y.data"];
        perf_in(dir.path(), &[&record[..], options, &["--", "./server", "100"]].concat());
        let [all, called] = weights(&folded(dir.path(), "y.data").0, "space::called");
        assert!(called as f64 / all as f64 > 0.9, "{called} of {all}");
    }
}

#[test]
fn names_of_cpp_are_those_of_the_source() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    if calls(dir.path(), &[]).is_none() {
        return;
    }
    let record = ["perf", "record", "-e", "cpu-clock:u", "-o", "x.data", "--", "./calls", "100"];
    run_in(dir.path(), &record).is_good();
    let has = |args: &[&str], name: &str| {
        let ran = run_in(dir.path(), args);
        ran.is_good();
        assert!(ran.stdout.contains(name), "{args:?}: {}", ran.stdout);
    };
    let name = " space::called";
    has(&["perf", "script", "-i", "x.data"], name);
    has(&["perf", "report", "-i", "x.data"], name);
    has(&["perf", "script", "--no-demangle", "-i", "x.data"], "_ZN5space6calledEm+");
}

#[test]
fn recordings_without_times_name_the_option() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    if !testkit::perf::is_installed() {
        return;
    }
    let record =
        ["record", "-q", "-N", "--per-thread", "-e", "cpu-clock:u", "-o", "x.data", "true"];
    perf_in(dir.path(), &record);
    let convert = run_in(dir.path(), &["convert", "x.data", "-o", "x.svg"]);
    convert.is_refused(1, &["x.data: the records have no time", "perf record -T"]);
}

#[test]
fn recordings_that_are_not_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    for name in ["threads", "kcore"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        write(&format!("{name}/data"), b"PERFILE2");
    }
    write("threads/data.0", b"");
    std::fs::create_dir(dir.path().join("kcore/kcore_dir")).unwrap();
    write("big.data", b"2ELIFREP\0\0\0\0\0\0\0\x68");
    for (name, why) in [
        ("threads", "perf record --threads, which is not read"),
        ("kcore", "use its file kcore/data"),
        ("big.data", "made on a big-endian machine"),
    ] {
        for command in [&["convert", name, "-o", "x.svg"][..], &["perf", "script", "-i", name]] {
            run_in(dir.path(), command).is_refused(1, &[name, why]);
        }
    }
}
