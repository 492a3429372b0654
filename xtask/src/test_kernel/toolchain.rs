//! The static programs of the virtual machines, for any architecture.
//!
//! For arm64 the standard library and the compiler come from Debian ([`crate::rust`]), so that no
//! other toolchain must be installed; the linker is Debian's cross compiler.

use super::machine::Arch;
use crate::debian::{Debian, ensure_package, ensure_program};
use crate::rust::Toolchain;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::run::Artifacts;
use task_support::{Result, run};

/// The programs that run in a virtual machine.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) init: PathBuf,
    pub(crate) test: PathBuf,
}

const TEST: &[&str] = &["test", "--no-run", "--package", "perf-monitor", "--test", "kernel"];

/// Test programs of a package, for this machine, and the examples that one of them can run.
pub(crate) fn host_tests(profile: &[&str], package: &str, names: &[&str]) -> Result<Vec<PathBuf>> {
    // As programs: `cargo test --examples` would compile them as tests.
    run::run(run::cargo().args(["build", "--quiet", "--examples"]).args(profile))?;
    let built = Artifacts::build(run::tests(names).arg("--no-run").args(profile))?;
    names.iter().map(|name| built.executable_of(package, name)).collect()
}

/// Builds the init and the tests, static.
pub(crate) fn guest_programs(arch: Arch, debian: &Debian) -> Result<Programs> {
    Ok(Programs { init: guest_init(arch, debian)?, test: build(arch, debian, TEST, "kernel")? })
}

/// Builds the init, static.
pub(crate) fn guest_init(arch: Arch, debian: &Debian) -> Result<PathBuf> {
    build(arch, debian, &["build", "--package", "guest-init"], "guest-init")
}

fn build(arch: Arch, debian: &Debian, args: &[&str], name: &str) -> Result<PathBuf> {
    let mut command = run::cargo();
    command.args(args).args(["--target", arch.target()]);
    let target = arch.target().to_uppercase().replace('-', "_");
    command
        .env(format!("CARGO_TARGET_{target}_RUSTFLAGS"), "-C target-feature=+crt-static")
        // The machines are slow: optimise for speed and size, and keep the checks of a debug
        // build.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        // Tests probe functions of their own, by name.
        .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
        .env_remove("RUSTFLAGS");
    if arch != Arch::HOST {
        cross(arch, debian, &mut command)?;
    }
    run::artifact(&mut command, name)
}

/// Makes `command` compile for another architecture.
fn cross(arch: Arch, debian: &Debian, command: &mut Command) -> Result {
    if arch != Arch::Arm {
        return Err(format!("no way to compile for {arch} here").into());
    }
    ensure_program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")?;
    let libc = Path::new("/usr/aarch64-linux-gnu/lib/libc.a");
    ensure_package(libc, "libc6-dev-arm64-cross")?;
    let std = [("libstd-rust-web-dev", "arm64")];
    Toolchain::fetch(debian, SUITE, &std)?.apply(command, "guest-aarch64");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    Ok(())
}

/// Built for the oldest release that has it; it also runs on newer ones.
const SUITE: &str = "bookworm-security";
