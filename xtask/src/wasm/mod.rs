//! WebAssembly: its toolchain, and `cargo xtask test-wasm`: the tests of the libraries there.

mod test;

pub(crate) use test::{OPTIONS, task};

use crate::debian::Debian;
use crate::rust;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run, target_dir};

/// The target: WASI has files and arguments.
const TARGET: &str = "wasm32-wasip1";

/// Makes cargo compile for WebAssembly, with the toolchain of this machine if it has the target, or
/// otherwise with Debian's. Returns the directory of its programs, by profile.
pub(crate) fn target(command: &mut Command) -> Result<PathBuf> {
    command.args(["--target", TARGET]);
    let sysroot = run::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let libraries = Path::new(String::from_utf8(sysroot)?.trim()).join("lib/rustlib");
    if libraries.join(TARGET).is_dir() {
        return Ok(target_dir().join(TARGET));
    }
    let toolchain = rust::oldest()?;
    toolchain.apply(command, "wasm");
    let libc = libc()?;
    let linker = libraries.join("x86_64-unknown-linux-gnu/bin/rust-lld");
    // Newer standard libraries need a newer C library than Debian's.
    command.arg("--ignore-rust-version");
    let flags = format!(
        "{} -C linker-flavor=wasm-ld -C link-self-contained=no -C link-arg={}/crt1-command.o -L {}",
        rust::UNSTABLE,
        libc.display(),
        libc.display(),
    );
    command
        .arg("-Zbuild-std=std,panic_abort,test")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_WASM32_WASIP1_LINKER", linker)
        .env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", flags)
        .env_remove("RUSTFLAGS");
    Ok(target_dir().join("wasm").join(TARGET))
}

/// Debian's C library for WASI.
fn libc() -> Result<PathBuf> {
    let debian = Debian::open()?;
    let package = debian.newest_from("wasi-libc", "amd64", "trixie")?;
    let key = format!("debian/wasi-libc/{}", package.file_name());
    let root = cache::entry(&key, |dir| debian.unpack(std::slice::from_ref(&package), dir))?;
    Ok(root.join("usr/lib/wasm32-wasi"))
}
