//! `cargo xtask test-samply`: samply imports recordings of `triscope perf record`.
//!
//! On demand only: samply is built from its published crate, which takes minutes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run};

/// The published version.
const SAMPLY: &str = "0.13.1";

/// A thread that computes, and short processes.
const WORK: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; true | cat";

/// Samples by name and id of the thread.
type Threads = BTreeMap<(String, String), u64>;

/// The program, built from its published crate.
pub(crate) fn installed() -> Result<PathBuf> {
    let samply = cache::entry(&format!("samply/{SAMPLY}"), |dir| {
        let mut install = run::cargo();
        install.args(["install", "samply", "--locked", "--version", SAMPLY, "--root"]).arg(dir);
        run::run(&mut install)
    })?;
    Ok(samply.join("bin/samply"))
}

pub(crate) fn task(_args: &[String]) -> Result {
    let samply = installed()?;
    let mut build = run::cargo();
    build.args(["build", "--locked", "--package", "triscope"]);
    let triscope = run::artifact(&mut build, "triscope")?;
    let dir = tempfile::tempdir()?;
    for (name, options) in [("flat", &[][..]), ("chains", &["-g"])] {
        let recording = dir.path().join(name);
        let mut record = Command::new(&triscope);
        record.args(["perf", "record", "-e", "cpu-clock", "-o"]).arg(&recording).args(options);
        run::run(record.args(["--", "sh", "-c", WORK]))?;
        let profile = dir.path().join("profile.json");
        let mut import = Command::new(&samply);
        run::run(import.arg("import").arg(&recording).args(["--save-only", "-o"]).arg(&profile))?;
        let (ours, theirs) = (of_triscope(&triscope, &recording)?, of_samply(&profile)?);
        if ours.is_empty() || ours != theirs {
            return Err(format!("{name}: triscope has {ours:?}, samply {theirs:?}").into());
        }
        println!("{name}: {} samples of {} threads", ours.values().sum::<u64>(), ours.len());
    }
    Ok(())
}

/// The lines of `perf script` begin with name and id.
fn of_triscope(triscope: &Path, recording: &Path) -> Result<Threads> {
    let mut script = Command::new(triscope);
    let text = run::output(script.args(["perf", "script", "-i"]).arg(recording))?;
    let mut threads = Threads::new();
    for line in String::from_utf8(text)?.lines().filter(|line| line.contains(" cpu-clock:")) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(name), Some(tid)) = (words.next(), words.next()) else { continue };
        *threads.entry((name, tid)).or_default() += 1;
    }
    Ok(threads)
}

/// The number of samples in a Firefox profile.
pub(crate) fn samples(profile: &Path) -> Result<u64> {
    Ok(of_samply(profile)?.values().sum())
}

/// The threads of a Firefox profile that have samples.
fn of_samply(profile: &Path) -> Result<Threads> {
    let profile: serde_json::Value = serde_json::from_slice(&std::fs::read(profile)?)?;
    let mut threads = Threads::new();
    for thread in profile["threads"].as_array().ok_or("a profile without threads")? {
        let text = |field: &str| thread[field].as_str().unwrap_or_default().to_owned();
        // A thread whose name changed is several, with ids such as 12.1.
        let tid = text("tid").split('.').next().unwrap_or_default().to_owned();
        let weights = thread["samples"]["weight"].as_array();
        let samples: u64 =
            weights.into_iter().flatten().filter_map(serde_json::Value::as_u64).sum();
        if samples > 0 {
            *threads.entry((text("name"), tid)).or_default() += samples;
        }
    }
    Ok(threads)
}
