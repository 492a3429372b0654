//! `cargo xtask fuzz`: every fuzz target for a while, from the committed fixtures as seeds.

use crate::{Result, lane, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

pub(crate) fn task(args: &[String]) -> Result {
    let mut seconds = "60".to_owned();
    let mut filter = String::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => seconds = args.next().ok_or("--seconds takes a number")?.clone(),
            name if !name.starts_with('-') => name.clone_into(&mut filter),
            other => {
                return Err(format!("unknown option {other}; known: --seconds N, TARGET").into());
            }
        }
    }
    smoke(&seconds.parse::<u32>()?.to_string(), &filter)
}

/// Fuzzes each target whose name contains `filter` for that many seconds.
pub(crate) fn smoke(seconds: &str, filter: &str) -> Result {
    if run::output(Command::new("cargo").args(["+nightly", "fuzz", "--version"])).is_err() {
        let why = "it needs a nightly toolchain and cargo-fuzz (`cargo install cargo-fuzz`)";
        return lane::missing("fuzzing", &why);
    }
    let list = run::output(cargo_fuzz("list").args(["--fuzz-dir", "fuzz"]))?;
    let list = String::from_utf8(list)?;
    let targets: Vec<&str> = list.lines().filter(|t| t.contains(filter)).collect();
    if targets.is_empty() {
        return Err(format!("no fuzz target's name contains {filter:?}").into());
    }
    run::run(cargo_fuzz("build").args(["--fuzz-dir", "fuzz", "--target-dir", "fuzz/target"]))?;
    for target in targets {
        eprintln!("fuzzing {target} for {seconds} s");
        let corpus = PathBuf::from("fuzz/corpus").join(target);
        fs::create_dir_all(&corpus)?;
        let mut command = cargo_fuzz("run");
        command.args(["--fuzz-dir", "fuzz", "--target-dir", "fuzz/target", target]);
        command.arg(&corpus).args(seeds(target)?);
        command.args(["--", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=0"]);
        command.arg(format!("-max_total_time={seconds}"));
        run::output(&mut command)?;
    }
    Ok(())
}

fn cargo_fuzz(subcommand: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", subcommand]);
    // What this process was started with concerns its own build.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO_TARGET_DIR");
    command
}

/// Folders of fixtures of the crate that the target is for: `gotrace_v2` is for `gotrace`.
fn seeds(target: &str) -> Result<Vec<PathBuf>> {
    let crates = env::current_dir()?.join("crates");
    let mut seeds = Vec::new();
    for entry in fs::read_dir(crates)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        if target.starts_with(&format!("{name}_")) {
            seeds.extend([path.join("tests/data")].into_iter().filter(|p: &PathBuf| has_files(p)));
        }
    }
    Ok(seeds)
}

fn has_files(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.any(|e| e.is_ok_and(|e| e.path().is_file())))
}
