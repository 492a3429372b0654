//! `cargo xtask bench-perf`: compares perf-monitor with other readers of perf events in one run.
//!
//! The readers are in `benches/perf-peers`, a separate workspace.

use crate::debian;
use std::process::Command;
use task_support::{Result, lane, run};

const MANIFEST: &str = "benches/perf-peers/Cargo.toml";

/// Options of perf-peers.
pub(crate) const OPTIONS: &str = "\
[--calls N | --seconds N [--rate N]] [--rounds N] [--only READER] [--realtime] [--busy N]

  --calls N       system calls per round
  --seconds N     length of a round, instead
  --rate N        system calls per second at most, with --seconds
  --rounds N      measure N times
  --only READER   only this reader
  --realtime      run with SCHED_FIFO, for a machine with other work
  --busy N        N other processes compute all the time";

pub(crate) fn task(args: &[String]) -> Result {
    compare(args, true)
}

fn compare(args: &[String], is_measured: bool) -> Result {
    let can_mount = run::output(&mut run::with_tracefs("true".as_ref()));
    if let Err(why) = can_mount {
        return lane::skip("perf-monitor beside its peers", &why);
    }
    // Without it, only that reader is missing from the table.
    if let Err(why) = debian::ensure_program("perf", "linux-perf") {
        lane::skip("`perf record` beside perf-monitor", &why)?;
    }
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked", "--manifest-path", MANIFEST]);
    if !is_measured {
        build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    }
    let peers = run::artifact(&mut build, "perf-peers")?;
    let triscope = run::triscope()?;
    run::run(run::with_tracefs(&peers).args(args).arg("--triscope").arg(triscope))
}

/// A run that is too short to measure: checks that all readers still work.
pub(crate) fn smoke() -> Result {
    compare(&["--calls", "20000", "--rounds", "1"].map(str::to_owned), false)
}
