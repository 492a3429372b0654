//! `cargo xtask lint-perfetto FILE...`: Perfetto traces against the official schema.

use crate::{Result, lane, pypi, run};
use std::process::Command;

/// The check itself, in the language that the official schema is published for.
const SCRIPT: &str = include_str!("lint_perfetto.py");
/// The schema: package and version.
const PACKAGES: &[&str] = &["perfetto==0.59.1", "protobuf==7.36.2"];

/// A Python that knows Perfetto's schema.
pub(crate) fn python() -> Result<std::path::PathBuf> {
    pypi::environment("perfetto-0.59.1", PACKAGES)
}

/// Checks the files that are named.
pub(crate) fn task(files: &[String]) -> Result {
    if files.is_empty() {
        return Err("usage: cargo xtask lint-perfetto FILE...".into());
    }
    let python = match python() {
        Ok(python) => python,
        Err(error) => return lane::missing("lint-perfetto", &error),
    };
    run::run(Command::new(python).args(["-c", SCRIPT]).args(files))
}
