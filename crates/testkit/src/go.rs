//! Programs in Go, built by a real toolchain.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names the `go` command.
pub const VARIABLE: &str = "TRISCOPE_GO";

/// The `go` command.
pub fn command() -> PathBuf {
    std::env::var_os(VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
        panic!("{VARIABLE} is not set: run these tests by `cargo xtask test-record`")
    })
}

/// Builds `main.go` of a directory.
pub fn build(source: &Path, program: &Path) {
    let mut build = Command::new(command());
    build.env("GOTOOLCHAIN", "local").env("GOWORK", "off").env("GOFLAGS", "");
    build.env("CGO_ENABLED", "0").arg("build").arg("-o").arg(program);
    let status = build.arg("main.go").current_dir(source).status().expect("the go command");
    assert!(status.success(), "{} is not built", source.display());
}
