//! `cargo xtask sql`: checks of `triscope-sql`, which is a workspace of its own.

use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, run, workspace};

pub(crate) const OPTIONS: &str = "

  Not part of cargo xtask ci: DataFusion takes minutes to build.";

pub(crate) fn task(_: &[String]) -> Result {
    run::run(cargo("fmt").arg("--check"))?;
    run::run(cargo("clippy").args(["--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    run::run(&mut cargo("test"))
}

/// Builds `triscope-sql` and returns its path.
pub(crate) fn program() -> Result<PathBuf> {
    run::artifact(&mut cargo("build"), "triscope-sql")
}

fn cargo(command: &str) -> Command {
    let mut cargo = run::cargo();
    cargo.arg(command).current_dir(workspace().join("sql"));
    cargo
}
