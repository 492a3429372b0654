//! `cargo xtask test-record`: `triscope record` of real Go and .NET programs, and `triscope doctor`
//! with other settings of the kernel.

use crate::runtimes;
use task_support::{Result, lane, run};

pub(crate) const OPTIONS: &str = "\
[WORD...]

  WORD   only tests whose name contains it";

pub(crate) fn test(args: &[String]) -> Result {
    let found = conformance_go::newest_go().and_then(|go| Ok((go, runtimes::targets()?)));
    let (go, targets) = match found {
        Ok(found) => found,
        Err(why) => return lane::skip("recordings of Go and .NET programs", &why),
    };
    run::run(
        run::tests(&["programs", "doctor"])
            .args(["--release", "--", "--ignored", "--test-threads=1"])
            .args(args)
            .env("TRISCOPE_GO", go)
            .env(runtimes::VARIABLE, targets),
    )
}
