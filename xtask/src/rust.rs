//! Other Rust toolchains than the current one: Debian's `rustc-web`, unpacked.
//!
//! Debian builds it to compile browsers; it is an ordinary compiler. The release `bookworm` has
//! exactly the minimum supported version of the libraries.

use crate::debian::{Debian, Package, ensure_package, ensure_program};
use serde_json::Value as Json;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, lane, run, target_dir};

/// A toolchain without cargo.
#[derive(Debug)]
pub(crate) struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    /// The newest compiler of a Debian suite, with the standard library for x86-64, and with these
    /// packages of the same version.
    pub(crate) fn fetch(debian: &Debian, suite: &str, more: &[(&str, &str)]) -> Result<Self> {
        let rustc = debian.newest_from("rustc-web", "amd64", suite)?;
        let more_names: String =
            more.iter().map(|(name, arch)| format!("+{name}-{arch}")).collect();
        let key = format!("debian/rust-{suite}{more_names}/{}", rustc.file_name());
        let root = cache::entry(&key, |dir| {
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

    /// Makes cargo compile with it, into a subdirectory of `target` with this name: artifacts of
    /// several compilers must not be mixed.
    pub(crate) fn apply(&self, command: &mut Command, name: &str) {
        command
            .env("RUSTC", self.root.join("bin/rustc"))
            .env("LD_LIBRARY_PATH", self.root.join("lib/x86_64-linux-gnu"))
            .env("CARGO_TARGET_DIR", target_dir().join(name));
    }

    /// Copies the standard library's source, from the package `rust-web-src`, to the path that
    /// cargo expects.
    fn link_source(&self) -> Result {
        let link = self.root.join("lib/rustlib/src/rust");
        if link.exists() {
            return Ok(());
        }
        let mut sources = std::fs::read_dir(self.root.join("src"))?.filter_map(std::io::Result::ok);
        let is_rust = |e: &DirEntry| e.file_name().to_string_lossy().starts_with("rustc-");
        let source = sources.find(is_rust).ok_or("the packages have no source of Rust")?;
        std::fs::create_dir_all(link.with_file_name(""))?;
        std::os::unix::fs::symlink(Path::new("../../../src").join(source.file_name()), link)?;
        Ok(())
    }
}

/// Crates that support the minimum Rust version, with all their features but [`NEWER`].
pub(crate) const LIBRARIES: &[&str] = &[
    "trace-common",
    "perf-sys",
    "perf-monitor",
    "perf-data",
    "diag-ipc",
    "nettrace",
    "gotrace",
    "go-flight",
    "trace-symbols",
    "trace-timeline",
    "trace-dataset",
    "trace-flight",
    "trace-export",
];

/// A feature of some of them that needs a newer Rust.
const NEWER: &str = "zstd";

/// The program, which has that feature.
const PROGRAM: &str = "triscope";

/// What that feature needs, and Rust 1.85 has as an unstable function. It is stable since Rust 1.87.
pub(crate) const UNSTABLE: &str = "-Zcrate-attr=feature(unsigned_is_multiple_of)";

/// Those of them that also support other systems than Linux.
const PORTABLE: &[&str] =
    &["trace-common", "diag-ipc", "nettrace", "gotrace", "go-flight", "trace-export"];

/// Those of them that need no sockets and files of a system.
const SANS_IO: &[&str] = &["trace-common", "nettrace", "gotrace", "trace-export"];

/// Those that decode records of perf: on other systems, if they are little-endian.
const PERF: &[&str] = &["perf-sys", "perf-monitor", "perf-data", "trace-timeline"];

/// `cargo xtask check-platforms`: the libraries and the program with the minimum Rust version, and the
/// libraries for Windows, macOS and WebAssembly.
pub(crate) fn check_platforms(_: &[String]) -> Result {
    let toolchain = match oldest() {
        Ok(toolchain) => toolchain,
        Err(why) => return lane::skip("the oldest Rust, and other platforms", &why),
    };
    let metadata = run::metadata()?;
    let check = |crates: &[&str]| {
        let mut command = run::cargo();
        command.args(["check", "--quiet", "--features", &features(&metadata, crates, NEWER)]);
        command.args(crates.iter().flat_map(|name| ["--package", name]));
        toolchain.apply(&mut command, "oldest-rust");
        command
    };
    run::run(&mut check(LIBRARIES))?;
    eprintln!("{} libraries: good with Rust {OLDEST}", LIBRARIES.len());
    // No package has Rust 1.87: this finds what 1.85 does not have but for one function.
    let mut program = check(&[PROGRAM]);
    program.arg("--ignore-rust-version").env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", UNSTABLE);
    run::run(program.env("CARGO_TARGET_DIR", target_dir().join("oldest-rust/program")))?;
    eprintln!("{PROGRAM}: good with Rust {OLDEST} and that function of 1.87");
    // No package has the standard library of these targets: it is checked from its source first, with
    // the variable that permits a stable compiler to do so.
    for (target, name, crates) in [
        ("x86_64-pc-windows-msvc", "Windows", PORTABLE),
        ("aarch64-apple-darwin", "macOS", PORTABLE),
        ("wasm32-unknown-unknown", "WebAssembly", SANS_IO),
    ] {
        let platform = ["--target", target, "-Zbuild-std=std,panic_abort"];
        let crates = [crates, PERF].concat();
        let mut check = check(&crates);
        // Of its own: build scripts of some dependencies run again when the variable changes.
        check.env("CARGO_TARGET_DIR", target_dir().join("oldest-rust/platforms"));
        run::run(check.args(platform).env("RUSTC_BOOTSTRAP", "1"))?;
        eprintln!("{} libraries: good for {name}", crates.len());
    }
    Ok(())
}

/// All features of these crates but one.
pub(crate) fn features(metadata: &Json, crates: &[&str], but: &str) -> String {
    let mut all = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let features = package["features"].as_object().filter(|_| crates.contains(&name));
        let features = features.into_iter().flat_map(|features| features.keys());
        all.extend(features.filter(|f| *f != but).map(|feature| format!("{name}/{feature}")));
    }
    all.join(",")
}

/// The minimum version of the libraries.
const OLDEST: &str = "1.85";

/// The compiler of that version, with the source of its standard library.
pub(crate) fn oldest() -> Result<Toolchain> {
    let more = [("rust-web-src", "amd64")];
    let toolchain = Toolchain::fetch(&Debian::open()?, "bookworm", &more)?;
    let mut version = Command::new(toolchain.root.join("bin/rustc"));
    version.arg("--version").env("LD_LIBRARY_PATH", toolchain.root.join("lib/x86_64-linux-gnu"));
    let version = String::from_utf8(run::output(&mut version)?)?;
    if !version.starts_with(&format!("rustc {OLDEST}.")) {
        return Err(format!("Debian has {} and not {OLDEST}", version.trim()).into());
    }
    toolchain.link_source()?;
    Ok(toolchain)
}

/// Integration tests that read recorded bytes of every format, and write them.
const READING: &[&str] = &["layouts", "reading", "roundtrip", "perfetto", "go"];

/// A target whose tests run under emulation.
struct Emulated {
    target: &'static str,
    qemu: &'static str,
    /// The prefix of Debian's cross compiler and of its packages.
    gnu: &'static str,
    libc: &'static str,
    why: &'static str,
}

const EMULATED: &[Emulated] = &[
    Emulated {
        target: "i686-unknown-linux-gnu",
        qemu: "qemu-i386",
        gnu: "i686-linux-gnu",
        libc: "libc6-dev-i386-cross",
        why: "32 bits",
    },
    Emulated {
        target: "s390x-unknown-linux-gnu",
        qemu: "qemu-s390x",
        gnu: "s390x-linux-gnu",
        libc: "libc6-dev-s390x-cross",
        why: "big-endian",
    },
];

pub(crate) const TARGETS_OPTIONS: &str = "\
[TARGET...]

  TARGET   i686-unknown-linux-gnu (32 bits) or s390x-unknown-linux-gnu (big-endian);
           default: both";

/// `cargo xtask test-targets`: the tests of the portable crates on a 32-bit and on a big-endian
/// target, under qemu-user.
///
/// Unit tests, and [`READING`]. Not those of perf-sys and perf-monitor: qemu-user has no perf events,
/// and the kernel's headers are compiled for this machine.
pub(crate) fn test_targets(args: &[String]) -> Result {
    let known = |name: &String| EMULATED.iter().any(|e| e.target == name);
    if let Some(name) = args.iter().find(|name| !known(name)) {
        return Err(format!("unknown target {name}").into());
    }
    for emulated in EMULATED {
        if !args.is_empty() && !args.iter().any(|name| name == emulated.target) {
            continue;
        }
        let lane = format!("tests on {} ({})", emulated.target, emulated.why);
        match emulated.toolchain() {
            Ok(toolchain) => emulated.test(&toolchain)?,
            Err(why) => lane::skip(&lane, &why)?,
        }
    }
    Ok(())
}

impl Emulated {
    fn toolchain(&self) -> Result<Toolchain> {
        ensure_program(self.qemu, "qemu-user")?;
        let gcc = format!("{}-gcc", self.gnu);
        ensure_program(&gcc, &format!("gcc-{}", self.gnu))?;
        let libc = format!("/usr/{}/lib/libc.a", self.gnu);
        ensure_package(Path::new(&libc), self.libc)?;
        let more = [("rust-web-src", "amd64")];
        let toolchain = Toolchain::fetch(&Debian::open()?, "bookworm-security", &more)?;
        toolchain.link_source()?;
        Ok(toolchain)
    }

    fn test(&self, toolchain: &Toolchain) -> Result {
        let name = self.target.to_uppercase().replace('-', "_");
        let mut test = run::cargo();
        test.args(["test", "--quiet", "--target", self.target, "-Zbuild-std", "--lib"]);
        test.args(READING.iter().flat_map(|name| ["--test", name]));
        test.args(PORTABLE.iter().flat_map(|name| ["--package", name]));
        toolchain.apply(&mut test, "emulated");
        test.env("RUSTC_BOOTSTRAP", "1")
            .env(format!("CARGO_TARGET_{name}_LINKER"), format!("{}-gcc", self.gnu))
            .env(format!("CARGO_TARGET_{name}_RUNNER"), self.qemu)
            // Static: running it needs no libraries of the target.
            .env(format!("CARGO_TARGET_{name}_RUSTFLAGS"), "-C target-feature=+crt-static")
            // Emulation is slow, and debug information is not needed.
            .env("PROPTEST_CASES", "16")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("RUSTFLAGS");
        run::run(&mut test)?;
        eprintln!("{}: good ({})", self.target, self.why);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_the_libraries_have_the_minimum_version() {
        let metadata = run::metadata().unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        for name in LIBRARIES {
            let package = packages.iter().find(|package| package["name"] == *name).unwrap();
            assert_eq!(package["rust_version"], OLDEST, "{name}");
        }
    }
}
