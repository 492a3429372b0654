//! `cargo xtask sql`: checks of `triscope-sql`, which is a workspace of its own.

use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, run, workspace};

pub(crate) const OPTIONS: &str = "\
[--check]

  --check   only that it compiles

  Not part of cargo xtask ci, which checks its format and lock file: DataFusion takes minutes to build.";

pub(crate) fn task(args: &[String]) -> Result {
    match args {
        [] => {}
        [flag] if flag == "--check" => {
            consistent()?;
            return run::run(cargo("check").args(["--locked", "--all-targets"]));
        }
        _ => return Err(format!("expected --check or nothing, found {}", args.join(" ")).into()),
    }
    consistent()?;
    run::run(cargo("clippy").args(["--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    run::run(&mut cargo("test"))
}

/// What takes no build: the format, and that the lock file has what the manifests of this workspace and of
/// the crates beside it need.
pub(crate) fn consistent() -> Result {
    run::run(cargo("fmt").arg("--check"))?;
    run::run(cargo("update").args(["--workspace", "--locked", "--quiet"]))
}

/// Builds `triscope-sql` and returns its path.
pub(crate) fn program() -> Result<PathBuf> {
    run::artifact(&mut cargo("build"), "triscope-sql")
}

/// The same, optimized, for measurements.
pub(crate) fn optimized() -> Result<PathBuf> {
    run::artifact(cargo("build").arg("--release"), "triscope-sql")
}

fn cargo(command: &str) -> Command {
    let mut cargo = run::cargo();
    cargo.arg(command).current_dir(workspace().join("sql"));
    cargo
}
