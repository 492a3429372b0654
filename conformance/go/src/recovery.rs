//! Recovery after damage, over the whole corpus.
//!
//! The measurement itself is the test `readers::recovery` of gotrace, which needs only the traces.

use super::toolchain::Toolchain;
use super::{Tools, batches};
use gotrace::Reader;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use task_support::{Result, run};

/// Positions per trace, and the size above which a trace is left out, in bytes, of a run that is
/// not full.
const SAMPLED_POSITIONS: u64 = 8;
const SAMPLED_SIZE: u64 = 500_000;

/// Positions per trace of a full run.
const POSITIONS: u64 = 50;

/// Damages the traces of the corpus and of the workloads; fails if too little is recovered.
pub(crate) fn check(
    tools: &Tools,
    toolchains: &[Toolchain],
    corpus: &[PathBuf],
    full: bool,
) -> Result {
    let mut list = String::new();
    let (mut listed, mut omitted) = (0, 0);
    for (name, path) in tools.traces(toolchains, corpus, &[]) {
        if !is_whole(&path)? {
            continue;
        }
        if full || fs::metadata(&path)?.len() <= SAMPLED_SIZE {
            writeln!(list, "{name}\t{}", path.display())?;
            listed += 1;
        } else {
            omitted += 1;
        }
    }
    let scratch = tempfile::NamedTempFile::new()?;
    fs::write(scratch.path(), list)?;
    let positions = if full { POSITIONS } else { SAMPLED_POSITIONS };
    println!("recovery: {listed} traces, {positions} cuts and {positions} flips of each");
    if omitted > 0 {
        println!("  {omitted} larger ones are left out: see --full");
    }
    let mut test = run::tests(&["readers"]);
    test.args(["--release", "--quiet", "recovery::", "--", "--nocapture"]);
    test.env("GOTRACE_RECOVERY", scratch.path());
    test.env("GOTRACE_RECOVERY_POSITIONS", positions.to_string());
    let output = run::attempt(&mut test)?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    // A word that no test has selects none, and that is a success.
    if output.status.success() && text.contains("test result: ok. 1 passed") {
        Ok(())
    } else {
        Err(format!("the test of recovery: {}", output.status).into())
    }
}

/// Whether a trace can be read to its end, has the format of Go 1.22 or later, and has events.
pub(crate) fn is_whole(path: &Path) -> Result<bool> {
    let trace = fs::read(path)?;
    if batches::minor(&trace) < 22 {
        return Ok(false);
    }
    let mut events = 0;
    let Ok(mut reader) = Reader::new(&trace[..]) else { return Ok(false) };
    loop {
        match reader.next_event() {
            Ok(Some(_)) => events += 1,
            Ok(None) => return Ok(events > 0),
            Err(_) => return Ok(false),
        }
    }
}
