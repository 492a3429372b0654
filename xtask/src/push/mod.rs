//! `cargo xtask test-push`: profiles that `triscope push` sends, received by a server that is built from
//! the official definitions of OTLP, and that reads pprof with Go's own tool.

use serde_json::json;
use std::fs;
use std::process::Command;
use task_support::{Result, lane, pypi, run, workspace};

const CHECK: &str = include_str!("check.py");

/// The definitions of OTLP, compiled.
const PACKAGES: &[&str] = &["opentelemetry-proto==1.45.2"];

/// A command that is busy in native code, then in the kernel: both have many samples.
const BUSY: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done
    head -c 1000000000 /dev/zero > /dev/null";

pub(crate) fn task(_: &[String]) -> Result {
    let tools =
        pypi::environment(PACKAGES).and_then(|python| Ok((python, conformance_go::pprof_tool()?)));
    let (python, pprof) = match tools {
        Ok(tools) => tools,
        Err(why) => return lane::skip("profiles to servers", &why),
    };
    let triscope = run::triscope()?;
    let dir = tempfile::tempdir()?;
    let recorded = dir.path().join("recorded.data");
    let mut command = Command::new(&triscope);
    command.args(["profile", "-e", "cpu-clock", "-o"]).arg(&recorded);
    run::run(command.args(["--", "sh", "-c", BUSY]))?;
    let written = dir.path().join("written.pb.gz");
    let trace = workspace().join("crates/gotrace/tests/data/shop.trace");
    let mut command = Command::new(&triscope);
    command.args(["go", "profile", "sync"]).arg(&trace).arg("-o").arg(&written);
    run::run(&mut command)?;
    let (input, check) = (dir.path().join("input.json"), dir.path().join("check.py"));
    let text = json!({
        "triscope": triscope,
        "pprof": pprof,
        "profiles": [recorded, trace, written],
        "dir": dir.path(),
    });
    fs::write(&input, text.to_string())?;
    fs::write(&check, CHECK)?;
    run::run(Command::new(python).arg(&check).arg(&input))
}
