//! `cargo xtask test-record`: `triscope record` and `triscope flight` of real Go and .NET programs, and
//! `triscope doctor` with other settings of the kernel.

use crate::{golden, runtimes};
use std::process::Command;
use task_support::{Result, lane, run};

pub(crate) const OPTIONS: &str = "\
[WORD...]

  WORD   only tests whose name contains it";

pub(crate) fn test(args: &[String]) -> Result {
    match tests(args) {
        Ok(mut tests) => run::run(&mut tests),
        Err(why) => lane::skip("recordings of Go and .NET programs", &why),
    }
}

/// Compiles the program of `triscope demo` and replaces the committed assembly.
pub(crate) fn update() -> Result {
    let name = "the_assembly_of_the_demo_is_that_of_its_source".to_owned();
    run::run(tests(&[name])?.env(golden::VARIABLE, "1"))
}

/// The tests of these programs whose names contain one of the words.
fn tests(words: &[String]) -> Result<Command> {
    let (go, targets) = (conformance_go::newest_go()?, runtimes::targets()?);
    let mut tests = run::tests(&["programs", "doctor", "perf"]);
    tests.args(["--release", "--", "--ignored", "--test-threads=1"]).args(words);
    tests.env(testkit::go::VARIABLE, go).env(runtimes::VARIABLE, targets);
    Ok(tests)
}
