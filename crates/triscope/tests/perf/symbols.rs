//! Names of code whose files have changed, or cannot be read: right, or unknown with a reason.

use crate::needs_root;
use crate::sampling::{FRAME_POINTERS, Stacks, compiled_from, parsed, read};
use crate::support::{self, Ran, Running, can, run_in};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program whose time goes to this function.
fn program(dir: &Path, function: &str, options: &[&str]) -> Option<PathBuf> {
    let define = format!("-DFUNCTION={function}");
    let program = compiled_from(dir, "exec", &[&FRAME_POINTERS[..], options, &[&define]].concat())?;
    let named = dir.join(function);
    std::fs::rename(program, &named).unwrap();
    Some(named)
}

fn copy(from: &Path, to: &Path) {
    // By another process: a file that is open for writing, also in a child that another test starts
    // meanwhile, cannot be executed.
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// The weight of the stacks with this function.
fn weight(stacks: &Stacks, function: &str) -> u64 {
    let has = |(stack, _): &(&Vec<String>, &u64)| stack.iter().any(|frame| frame == function);
    stacks.iter().filter(has).map(|(_, weight)| weight).sum()
}

fn convert(dir: &Path) -> (Stacks, Ran) {
    let ran = run_in(dir, &["convert", "x.data", "-o", "x.folded"]);
    ran.is_good();
    (parsed(&read(dir, "x.folded")), ran)
}

/// Replaces a program after it was recorded, and while `top` and `profile` record a script with both.
fn replaced_program_has_no_wrong_names(
    dir: &Path,
    builds: [&Path; 2],
    argument: &str,
    names: [&str; 2],
) {
    let program = dir.join("server");
    for in_place in [true, false] {
        copy(builds[0], &program);
        let record = ["profile", "-o", "x.data", "--", "./server", argument];
        run_in(dir, &record).is_good();
        let (stacks, _) = convert(dir);
        assert!(weight(&stacks, names[0]) > 0, "{stacks:?}");
        if !in_place {
            std::fs::remove_file(&program).unwrap();
        }
        copy(builds[1], &program);
        let (stacks, ran) = convert(dir);
        let [old, new] = names.map(|name| weight(&stacks, name));
        assert_eq!((old, new), (0, 0), "{stacks:?}");
        let is_said = ran.stderr.contains("was replaced") && ran.stderr.contains("server");
        assert!(is_said, "{}", ran.stderr);
    }
    // Code of the first program is not that of the second one.
    copy(builds[0], &program);
    let script =
        format!("./server {argument}; cp {} server; ./server {argument}", builds[1].display());
    let run = ["profile", "-o", "x.folded", "--", "sh", "-c", &script];
    run_in(dir, &run).is_good();
    let stacks = parsed(&read(dir, "x.folded"));
    assert_eq!(weight(&stacks, names[0]), 0, "{stacks:?}");
    // `perf top` names the code of each while it runs: half of it is that of the first one.
    copy(builds[0], &program);
    let ran = run_in(dir, &["perf", "top", "--json", "--", "sh", "-c", &script]);
    ran.is_good();
    let (mut old, mut all) = (0, 0);
    for table in ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        for row in table["rows"].as_array().unwrap().iter().filter(|row| row["comm"] == "server") {
            let samples = row["samples"].as_u64().unwrap();
            let is_old = row["symbol"].as_str().unwrap().ends_with(names[0]);
            (old, all) = (old + if is_old { samples } else { 0 }, all + samples);
        }
    }
    assert!(all > 0 && old * 4 < all * 3, "{old} of {all}: {}", ran.stdout);
}

#[test]
fn replaced_programs_have_no_wrong_names() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    for id in ["-Wl,--build-id=sha1", "-Wl,--build-id=none"] {
        // The same code but for a constant, so that the build ids differ.
        let build = |function, constant| program(dir.path(), function, &[id, constant]);
        let (Some(first), Some(second)) = (build("before", "-DMORE=1"), build("after", "-DMORE=2"))
        else {
            return;
        };
        let names = ["before", "after"];
        replaced_program_has_no_wrong_names(dir.path(), [&first, &second], "100", names);
    }
}

#[test]
fn replaced_go_programs_have_no_wrong_names() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let build = |function: &str| {
        let mut go = support::go()?;
        let source = dir.path().join(format!("{function}.go"));
        let text = include_str!("shares/named.go.txt").replace("Named", function);
        std::fs::write(&source, text).unwrap();
        let program = dir.path().join(function);
        let built = go.args(["build", "-o"]).arg(&program).arg(&source).status().unwrap();
        built.success().then_some(program)
    };
    let (Some(first), Some(second)) = (build("Alpha"), build("Gamma")) else { return };
    let names = ["main.Alpha", "main.Gamma"];
    replaced_program_has_no_wrong_names(dir.path(), [&first, &second], "100", names);
}

/// Profiles a script. Returns what is said of a file.
fn said(dir: &Path, script: &str, file: &str) -> (String, Ran) {
    let ran = run_in(dir, &["profile", "-o", "x.folded", "--", "sh", "-c", script]);
    ran.is_good();
    let line = ran.stderr.lines().find(|line| line.contains(file) && line.contains("frame"));
    (line.unwrap_or_else(|| panic!("{file}: {}", ran.stderr)).to_owned(), ran)
}

/// A check of a container maps the program last, and ends.
#[test]
fn programs_of_containers_have_names_after_another_process_has_ended() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    if program(dir.path(), "contained", &["-static"]).is_none() {
        return;
    }
    std::fs::create_dir(dir.path().join("root")).unwrap();
    // A file system of its own: its path is the same as that of no file here.
    let script = "mount -t tmpfs none root && mkdir root/old && cp contained root/inside && \
                  cd root && pivot_root . old && echo ready && exec /inside 600000";
    let mut unshare = Command::new("unshare");
    unshare.current_dir(dir.path()).args(["--mount", "sh", "-c", script]);
    let mut container = Running::start(&mut unshare);
    container.wait_for("ready");
    let pid = container.id().to_string();
    let check = ["nsenter", "-t", &pid, "--mount", "--root", "/inside", "50"];
    let ran =
        run_in(dir.path(), &[&["profile", "-a", "-o", "x.folded", "--"][..], &check].concat());
    ran.is_good();
    container.still_runs();
    let stacks = parsed(&read(dir.path(), "x.folded"));
    assert!(weight(&stacks, "contained") > 0, "{}", ran.stderr);
    assert!(!ran.stderr.contains("/inside: "), "{}", ran.stderr);
}

#[test]
fn files_that_cannot_be_read_are_reported() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(whole) = program(dir.path(), "whole", &[]) else { return };
    // The kernel needs the segments only; the headers of the sections are at the end.
    let bytes = std::fs::read(&whole).unwrap();
    let headers = u64::from_le_bytes(bytes[40..48].try_into().unwrap());
    let size = (headers + 8).to_string();
    let script = "cp whole cut && truncate -s $0 cut";
    let mut cut = Command::new("sh");
    cut.current_dir(dir.path()).args(["-c", script, &size]);
    assert!(cut.status().unwrap().success());
    let (line, _) = said(dir.path(), "./cut 100", "/cut");
    assert!(line.contains("without a function: the file is malformed"), "{line}");
    let (line, ran) = said(dir.path(), "cp whole gone; ./gone 100; rm gone", "/gone");
    assert!(line.contains("the file cannot be read: entity not found"), "{line}");
    // The same for recordings.
    let record = ["profile", "-o", "x.data", "--", "./cut", "100"];
    run_in(dir.path(), &record).is_good();
    let (stacks, converted) = convert(dir.path());
    assert_eq!(weight(&stacks, "whole"), 0);
    assert!(converted.stderr.contains("/cut: "), "{} {}", converted.stderr, ran.stderr);
    assert!(converted.stderr.contains("the file is malformed"), "{}", converted.stderr);
}

#[test]
fn perf_maps_of_other_users_and_ambiguous_ones_are_reported() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled_from(dir.path(), "jit", &[]) else { return };
    let program = program.to_str().unwrap();
    for (change, reason) in [
        ("chown 65534 $map", "refused: it belongs to user 65534"),
        ("rm $map; ln -s /etc/passwd $map", "refused: it is not a regular file"),
        ("rm $map; mkfifo $map", "refused: it is not a regular file"),
        (
            "echo 0 ffffffffffffff first > $map; echo 0 ffffffffffffff second >> $map",
            "several methods",
        ),
    ] {
        let script =
            format!("map=/tmp/perf-$$.map; : > $map; {change}; echo $map; exec {program} 300");
        let (line, ran) = said(dir.path(), &script, "/tmp/perf-");
        std::fs::remove_file(ran.stdout.trim()).unwrap();
        assert!(line.contains(ran.stdout.trim()) && line.contains(reason), "{line}");
        let stacks = parsed(&read(dir.path(), "x.folded"));
        assert_eq!(weight(&stacks, "first") + weight(&stacks, "second"), 0, "{stacks:?}");
    }
}

/// Node describes its code in a jitdump file alone, which it maps for recorders.
#[test]
fn code_of_node_has_the_names_of_its_jitdump_file() {
    needs_root!(beside others);
    let version = Command::new("node").arg("--version").output();
    if !can("node", version.is_ok()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let text = "function hotLoop(n) { let s = 0; for (let i = 0; i < n; i++) s += i % 7; return s; }\n\
                let sum = 0; for (let i = 0; i < 40; i++) sum += hotLoop(5e6); console.log(sum);\n";
    std::fs::write(dir.path().join("hot.js"), text).unwrap();
    let node = ["node", "--perf-prof", "--interpreted-frames-native-stack", "hot.js"];
    let of_hot = |stacks: &Stacks| {
        let is_hot = |frame: &String| frame.starts_with("JS:") && frame.contains("hotLoop");
        let hot = stacks.iter().filter(|(stack, _)| stack.iter().any(is_hot));
        let hot: u64 = hot.map(|(_, weight)| weight).sum();
        (hot, stacks.values().sum::<u64>())
    };
    for output in ["x.folded", "x.data"] {
        let profile = [&["profile", "-o", output, "--"][..], &node].concat();
        run_in(dir.path(), &profile).is_good();
        let stacks = match output {
            "x.data" => convert(dir.path()).0,
            _ => parsed(&read(dir.path(), output)),
        };
        let (hot, all) = of_hot(&stacks);
        assert!(hot > all / 2, "{hot} of {all}: {stacks:?}");
    }
}
