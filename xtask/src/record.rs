//! `cargo xtask test-record`: `triscope record` and `triscope flight` of real Go and .NET programs, and
//! `triscope doctor` with other settings of the kernel.

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
        run::tests(&["programs", "doctor", "perf"])
            .args(["--release", "--", "--ignored", "--test-threads=1"])
            .args(args)
            .env(testkit::go::VARIABLE, go)
            .env(runtimes::VARIABLE, targets),
    )
}
