//! A kernel module with a tracepoint with `__rel_loc` fields, which no tested kernel has (they came
//! with user events, which Debian does not enable).
//!
//! It is built with Debian's headers of the kernel and the compiler that they require.

use super::machine::Arch;
use crate::debian::{self, Debian, Package, ensure_program};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run};

/// The series that it is built for: its compiler is in the Debian release that runs the tests.
pub(crate) const SERIES: &str = "6.1";
const SUITE: &str = "bookworm-security";
const SOURCES: &[&str] = &["Makefile", "rel_loc.c", "trace.h"];

/// Builds the module for this version of the x86-64 cloud kernel.
pub(crate) fn build(debian: &Debian, version: &str) -> Result<PathBuf> {
    if Arch::HOST != Arch::X86 {
        return Err("Debian's build tools of the kernel run on x86-64 only here".into());
    }
    let source = Path::new("xtask/guest/module");
    let mut hash = DefaultHasher::new();
    for name in SOURCES {
        fs::read(source.join(name))?.hash(&mut hash);
    }
    let key = format!("debian/module-x86_64/{}-{:x}", debian::file_name(version), hash.finish());
    let dir = cache::entry(&key, |dir| {
        ensure_program("make", "make")?;
        let meta = Package {
            name: "linux-headers-cloud-amd64".into(),
            arch: "amd64".into(),
            version: version.to_owned(),
        };
        let headers = only(debian.dependencies(&meta, "linux-headers-", SUITE)?)?;
        let common = only(debian.dependencies(&headers, "linux-headers-", SUITE)?)?;
        let kbuild = only(debian.dependencies(&headers, "linux-kbuild-", SUITE)?)?;
        // linux-compiler-gcc-12-x86
        let compiler = only(debian.dependencies(&headers, "linux-compiler-", SUITE)?)?.name;
        let compiler = compiler.trim_start_matches("linux-compiler-").trim_end_matches("-x86");
        ensure_program(compiler, compiler)?;
        let names = (headers.name.clone(), common.name.clone());
        debian.unpack(&[headers, common, kbuild], dir)?;
        let own = dir.join("module");
        fs::create_dir(&own)?;
        for name in SOURCES {
            fs::copy(source.join(name), own.join(name))?;
        }
        let root = dir.join("usr/src");
        run::output(
            Command::new("make")
                .arg("-s")
                .arg("-C")
                .arg(root.join(names.1))
                .arg(format!("O={}", root.join(names.0).display()))
                .arg(format!("M={}", own.display()))
                .arg(format!("CC={compiler}"))
                .arg("modules"),
        )?;
        let built = dir.join("rel_loc.ko");
        fs::copy(own.join("rel_loc.ko"), &built)?;
        run::output(Command::new("strip").arg("--strip-debug").arg(&built))?;
        for rest in ["module", "usr", "lib"] {
            let _ = fs::remove_dir_all(dir.join(rest));
        }
        Ok(())
    })?;
    Ok(dir.join("rel_loc.ko"))
}

fn only(mut packages: Vec<Package>) -> Result<Package> {
    match (packages.pop(), packages.pop()) {
        (Some(one), None) => Ok(one),
        _ => Err("the headers of the kernel do not depend on what they should".into()),
    }
}
