//! Functions of Go programs, with and without symbols, of the oldest and the newest Go toolchain of
//! this machine.

#![cfg(feature = "symbols")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use perf_monitor::probe::{ElfFile, Probe};
use perf_monitor::{Error, Event};
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

const NAMES: [&str; 4] = ["main.add", "main.(*adder).add", "main.main", "runtime.mallocgc"];

/// Builds the program in `dir`, which has its source.
fn build(go: &Path, dir: &Path, name: &str, mode: &str, flags: &str) -> PathBuf {
    let program = dir.join(name);
    let mut build = Command::new(go);
    build.args(["build", mode, flags, "-o"]).arg(&program).arg("main.go").current_dir(dir);
    let cgo = if flags.contains("external") { "1" } else { "0" };
    let build = build.env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("CGO_ENABLED", cgo);
    assert!(build.status().unwrap().success(), "{go:?} {mode} {flags}");
    program
}

fn open(path: &Path) -> ElfFile<File> {
    ElfFile::new(File::open(path).unwrap(), path).unwrap()
}

#[test]
fn stripped_programs_have_the_functions_of_their_symbols() {
    let toolchains = toolchains();
    if !testkit::skip::can("a Go toolchain", !toolchains.is_empty()) {
        return;
    }
    let linkers: &[&str] = if testkit::skip::can("gcc", has("gcc")) {
        &["internal", "external"]
    } else {
        &["internal"]
    };
    let dir = testkit::directory::Directory::new("perf-go-functions-");
    std::fs::write(dir.join("main.go"), PROGRAM).unwrap();
    for go in &toolchains {
        for mode in ["-buildmode=exe", "-buildmode=pie"] {
            for linker in linkers {
                let build = |name: &str, flags: &str| {
                    let flags = format!("-ldflags={flags} -linkmode={linker}");
                    open(&build(go, dir.path(), name, mode, &flags))
                };
                let (mut with, mut without) = (build("with", "-w"), build("without", "-s -w"));
                let what = format!("{go:?} {mode} {linker}");
                // The linker of C puts the table into the section of all relocated data.
                let is_merged = mode.ends_with("pie") && *linker == "external";
                if is_merged && minor_version(go) < 26 {
                    let unknown = without.function("main.add");
                    assert!(matches!(unknown, Err(Error::UnknownSymbol { .. })), "{what}");
                    continue;
                }
                for name in NAMES {
                    let expected = with.function(name).unwrap();
                    let found = without.function(name).unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(found.offset, expected.offset, "{what} {name}");
                    assert_eq!(found.address, expected.address, "{what} {name}");
                    assert!(found.size >= expected.size, "{what} {name}");
                }
                let unknown = without.function("main.sub");
                assert!(matches!(unknown, Err(Error::UnknownSymbol { .. })), "{what}");
                assert!(without.is_go(), "{what}");
            }
        }
    }
    // A return probe would end the program.
    let program = dir.join("with");
    let offset = open(&program).function("main.add").unwrap().offset;
    for error in [
        Probe::uretprobe(&program, "main.add").create().unwrap_err(),
        Probe::uretprobe(&program, offset).definitions().unwrap_err(),
        Event::uretprobe(&program, offset).unwrap_err(),
        Event::parse(&format!("uretprobe:{}:{offset}", program.display())).unwrap_err(),
    ] {
        assert!(error.to_string().contains("would crash this Go program"), "{error}");
    }
}

#[test]
fn functions_without_a_known_start_of_the_code_are_refused() {
    let toolchain = testkit::go::toolchains().pop();
    let is_new = toolchain.as_ref().is_some_and(|go| minor_version(go) >= 26);
    let can = testkit::skip::can;
    let (Some(go), true) = (toolchain, can("Go 1.26 or later", is_new)) else { return };
    if !can("objcopy", has("objcopy")) {
        return;
    }
    let dir = testkit::directory::Directory::new("perf-go-start-");
    std::fs::write(dir.join("main.go"), PROGRAM).unwrap();
    let program = build(&go, dir.path(), "program", "-buildmode=exe", "-ldflags=-s -w");
    let renamed = dir.join("renamed");
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--rename-section", ".go.module=.other"]).arg(&program).arg(&renamed);
    assert!(objcopy.status().unwrap().success());
    assert!(open(&program).function("main.add").is_ok());
    let error = open(&renamed).function("main.add").unwrap_err();
    assert!(matches!(error, Error::UnusableSymbol { .. }), "{error}");
    assert!(error.to_string().contains("where its Go code begins"), "{error}");
}

/// 26 for Go 1.26.
fn minor_version(go: &Path) -> u32 {
    let version = Command::new(go).args(["env", "GOVERSION"]).output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let minor = version.trim().strip_prefix("go1.").and_then(|rest| rest.split('.').next());
    minor.and_then(|minor| minor.parse().ok()).unwrap_or_else(|| panic!("{version}"))
}

fn has(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}
