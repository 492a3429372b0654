//! Names of code whose files have changed, or cannot be read: right, or unknown with a reason.

use crate::needs_root;
use crate::sampling::{FRAME_POINTERS, Stacks, compiled_from, parsed, read};
use crate::support::{self, Ran, can, run_in};
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
}

#[test]
fn replaced_programs_have_no_wrong_names() {
    needs_root!();
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
    needs_root!();
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
