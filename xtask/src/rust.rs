//! Other Rust toolchains than the one that runs this: Debian's `rustc-web`, unpacked.
//!
//! Debian builds it for its own needs (a browser), and it is an ordinary compiler: the release
//! `bookworm` has the very version that the libraries promise to work with.

use crate::debian::{Debian, Package};
use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, cache, lane, run};

/// A toolchain without cargo.
#[derive(Debug)]
pub(crate) struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    /// The newest compiler of a suite of Debian, with the standard library for x86-64, and with
    /// these packages of the same version.
    pub(crate) fn fetch(debian: &Debian, suite: &str, more: &[(&str, &str)]) -> Result<Self> {
        let rustc = debian.newest_from("rustc-web", "amd64", suite)?;
        let root = cache::entry(&format!("debian/rust-{suite}/{}", rustc.file_name()), |dir| {
            let of_version = |&(name, arch): &(&str, &str)| Package {
                name: name.into(),
                arch: arch.into(),
                version: rustc.version.clone(),
            };
            let std = of_version(&("libstd-rust-web-dev", "amd64"));
            let mut packages = vec![rustc.clone(), std.clone()];
            packages.extend(more.iter().map(of_version));
            for shared in debian.dependencies(&std, "libstd-rust-web-", suite)? {
                packages.extend(debian.dependencies(&shared, "libllvm", suite)?);
                packages.push(shared);
            }
            debian.unpack(&packages, dir)
        })?;
        Ok(Self { root: root.join("usr") })
    }

    /// Makes cargo compile with it, into a directory below `target` of this name: artifacts of
    /// several compilers do not go together.
    pub(crate) fn apply(&self, command: &mut Command, name: &str) {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        command
            .env("RUSTC", self.root.join("bin/rustc"))
            .env("LD_LIBRARY_PATH", self.root.join("lib/x86_64-linux-gnu"))
            .env("CARGO_TARGET_DIR", target.join(name));
    }
}

/// Crates that promise to work with the oldest Rust, with all their features.
const LIBRARIES: &[&str] = &[
    "trace-common",
    "perf-sys",
    "perf-monitor",
    "diag-ipc",
    "nettrace",
    "gotrace",
    "trace-export",
];

/// Those of them that are for other systems than Linux too.
const PORTABLE: &[&str] = &["trace-common", "diag-ipc", "nettrace", "gotrace", "trace-export"];

/// `cargo xtask check-platforms`: the libraries with the oldest Rust, and for Windows.
pub(crate) fn check_platforms(_: &[String]) -> Result {
    let toolchain = match oldest() {
        Ok(toolchain) => toolchain,
        Err(why) => return lane::skip("the oldest Rust, and Windows", &why),
    };
    let check = |crates: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(["check", "--quiet", "--all-features"]);
        command.args(crates.iter().flat_map(|name| ["--package", name]));
        toolchain.apply(&mut command, "oldest-rust");
        command
    };
    run::run(&mut check(LIBRARIES))?;
    eprintln!("{} libraries: good with Rust {OLDEST}", LIBRARIES.len());
    // No package has this target's standard library: it is checked from its source first, which
    // a stable compiler does if it is told that it may.
    let mut windows = check(PORTABLE);
    windows.args(["--target", "x86_64-pc-windows-msvc", "-Zbuild-std=std,panic_abort"]);
    run::run(windows.env("RUSTC_BOOTSTRAP", "1"))?;
    eprintln!("{} libraries: good for Windows", PORTABLE.len());
    Ok(())
}

/// What `rust-version` says in the workspace's manifest.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

fn oldest() -> Result<Toolchain> {
    let more = [("rust-web-src", "amd64")];
    let toolchain = Toolchain::fetch(&Debian::open()?, "bookworm", &more)?;
    let mut version = Command::new(toolchain.root.join("bin/rustc"));
    version.arg("--version").env("LD_LIBRARY_PATH", toolchain.root.join("lib/x86_64-linux-gnu"));
    let version = String::from_utf8(run::output(&mut version)?)?;
    if !version.starts_with(&format!("rustc {OLDEST}.")) {
        return Err(format!("Debian has {} and not {OLDEST}", version.trim()).into());
    }
    // Where cargo looks for the standard library's source.
    let link = toolchain.root.join("lib/rustlib/src/rust");
    if !link.exists() {
        let source = format!("../../../src/rustc-{OLDEST}.0");
        std::fs::create_dir_all(link.with_file_name(""))?;
        std::os::unix::fs::symlink(source, link)?;
    }
    Ok(toolchain)
}
