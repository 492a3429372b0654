//! Functions of Go programs, with and without symbols, of the oldest and the newest Go toolchain of
//! this machine.

#![cfg(feature = "symbols")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use perf_monitor::Error;
use perf_monitor::probe::{ElfFile, Probe};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "\
package main

//go:noinline
func add(a, b int) int { return a + b }

type adder struct{ n int }

//go:noinline
func (a *adder) add(n int) int { return a.n + n }

func main() { println(add(1, 2), (&adder{3}).add(4)) }
";

/// The oldest and the newest toolchain of the other tests, else the installed one.
fn toolchains() -> Vec<PathBuf> {
    let mut found = testkit::go::toolchains();
    // Each of them compiles Go's library once.
    if found.len() > 2 {
        found.drain(1..found.len() - 1);
    }
    found
}

#[test]
fn stripped_programs_have_the_functions_of_their_symbols() {
    let toolchains = toolchains();
    if !testkit::skip::can("a Go toolchain", !toolchains.is_empty()) {
        return;
    }
    let dir = testkit::directory::Directory::new("perf-go-functions-");
    std::fs::write(dir.join("main.go"), PROGRAM).unwrap();
    for go in &toolchains {
        for mode in ["-buildmode=exe", "-buildmode=pie"] {
            let build = |name: &str, flags: &str| {
                let program = dir.join(name);
                let mut build = Command::new(go);
                build.args(["build", mode, flags, "-o"]).arg(&program).arg("main.go");
                let build = build.current_dir(dir.path()).env("GOTOOLCHAIN", "local");
                assert!(build.env("CGO_ENABLED", "0").status().unwrap().success(), "{go:?}");
                program
            };
            let open = |path: &Path| ElfFile::new(File::open(path).unwrap(), path).unwrap();
            let with = build("with", "-ldflags=-w");
            let without = build("without", "-ldflags=-s -w");
            let (mut with, mut without) = (open(&with), open(&without));
            for name in ["main.add", "main.(*adder).add", "main.main", "runtime.mallocgc"] {
                let expected = with.function(name).unwrap();
                let found = without.function(name).unwrap_or_else(|e| panic!("{go:?} {mode}: {e}"));
                assert_eq!(found.offset, expected.offset, "{go:?} {mode} {name}");
                assert!(found.size >= expected.size, "{go:?} {mode} {name}");
            }
            assert!(matches!(without.function("main.sub"), Err(Error::UnknownSymbol { .. })));
            assert!(without.is_go());
        }
    }
    // A return probe would end the program.
    let error = Probe::uretprobe(dir.join("with"), "main.add").create().unwrap_err();
    assert!(error.to_string().contains("would crash this Go program"), "{error}");
}
