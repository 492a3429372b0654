//! `cargo xtask test-flight`: the flight recorder in a virtual machine whose clock is set, that is
//! suspended, and whose CPUs go offline and come back.
//!
//! The programs are those of `cargo test`, with the libraries of this system, at the paths that they
//! have here.

use super::machine::{Arch, Machine};
use super::{initramfs, kernel, toolchain};
use crate::debian::{Debian, ensure_program};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use task_support::run::Artifacts;
use task_support::{Result, cache, lane, run};

pub(crate) const OPTIONS: &str = "\
[SERIES]

  SERIES   the kernel: 5.10, 6.1, 6.12 (the default) or 7";

/// The tests that need a machine.
const TESTS: &str = "flight_faults::";

/// Their number: a filter that selects nothing is no success.
const COUNT: usize = 3;

const SUITE: &str = "bookworm";

pub(crate) fn task(args: &[String]) -> Result {
    let series = args.first().map_or("6.12", String::as_str);
    let Some(series) = super::X86.iter().find(|known| **known == series) else {
        return Err(format!("no kernel {series}: {}", super::X86.join(", ")).into());
    };
    let dir = tempfile::tempdir()?;
    let outcome = prepare(series, dir.path()).map(|machine| machine.run());
    dir.close()?;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return lane::skip("the flight recorder in a virtual machine", &why),
    };
    outcome.print();
    match outcome.passed() {
        COUNT if outcome.is_good() => Ok(()),
        passed => Err(format!("{passed} of {COUNT} tests of the flight recorder passed").into()),
    }
}

fn prepare(series: &'static str, dir: &Path) -> Result<Machine> {
    let arch = Arch::X86;
    if arch != Arch::HOST {
        return Err("the programs of this machine do not run in one of x86-64".into());
    }
    ensure_program(arch.qemu(), arch.qemu_package())?;
    let debian = Debian::open()?;
    let built = Artifacts::build(run::tests(&["perf"]).arg("--no-run"))?;
    let programs = [built.executable_of("triscope", "perf")?, built.executable("triscope")?];
    let mut files = vec![("bin/busybox".to_owned(), busybox(&debian)?)];
    for (program, place) in programs.iter().zip(["tests/perf".into(), inside(&programs[1])?]) {
        let stripped = dir.join(place.replace('/', "-"));
        run::output(
            Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(program),
        )?;
        files.push((place, stripped));
        for library in libraries(program)? {
            files.push((inside(&library)?, library));
        }
    }
    files.sort();
    files.dedup();
    let files: Vec<(&str, &Path)> =
        files.iter().map(|(name, file)| (name.as_str(), file.as_path())).collect();
    let image = tempfile::NamedTempFile::new_in(dir)?.into_temp_path();
    initramfs::write(&image, &toolchain::guest_init(arch, &debian)?, &files)?;
    let (version, kernel) = kernel(&debian, arch, series)?;
    Ok(Machine {
        arch,
        series,
        version,
        kernel,
        image: Arc::new(image),
        icount: false,
        module: false,
        filter: Some(TESTS.to_owned()),
        suspends: true,
    })
}

/// The path in an archive.
fn inside(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or("a path that is not UTF-8")?;
    Ok(text.trim_start_matches('/').to_owned())
}

/// The libraries of a program, and what loads them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = run::output(Command::new("ldd").arg(program))?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

/// The commands of the machine, static.
fn busybox(debian: &Debian) -> Result<PathBuf> {
    let package = debian.newest_from("busybox-static", Arch::X86.debian(), SUITE)?;
    let key = format!("debian/busybox/{}", package.file_name());
    let dir = cache::entry(&key, |dir| debian.unpack(std::slice::from_ref(&package), dir))?;
    Ok(dir.join("bin/busybox"))
}
