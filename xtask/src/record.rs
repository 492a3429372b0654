//! `cargo xtask test-record`: `triscope record` and `triscope flight` of real Go and .NET programs, and
//! `triscope doctor` with other settings of the kernel.

use crate::{golden, ignored, runtimes, turn};
use std::path::PathBuf;
use task_support::{Result, lane};

pub(crate) const OPTIONS: &str = "\
[WORD...]

  WORD   only tests whose name contains it";

const TASK: &str = "test-record";

pub(crate) fn test(args: &[String]) -> Result {
    match targets() {
        Ok(targets) => {
            let _turn = turn::of_kernel()?;
            ignored::test(TASK, 1, args, targets)
        }
        Err(why) => lane::skip("recordings of Go and .NET programs", &why),
    }
}

/// Compiles the program of `triscope demo` and replaces the committed assembly.
pub(crate) fn update() -> Result {
    let name = "the_assembly_of_the_demo_is_that_of_its_source".to_owned();
    let environment = targets()?.into_iter().chain([(golden::VARIABLE, PathBuf::from("1"))]);
    ignored::test(TASK, 1, &[name], environment)
}

/// The variables that name the `go` command and the .NET runtimes.
fn targets() -> Result<[(&'static str, PathBuf); 2]> {
    let (go, targets) = (conformance_go::newest_go()?, runtimes::targets()?);
    Ok([(testkit::go::VARIABLE, go), (runtimes::VARIABLE, targets)])
}
