//! `cargo xtask update-golden`: regenerates every committed expected output.
//!
//! Review the difference before you commit it.

use crate::{public_api, record, test_kernel};
use lexopt::prelude::*;
use task_support::{Result, run};

pub(crate) const OPTIONS: &str = "\
[--record] [NAME...]

  --record   first record the inputs again: Go traces with every toolchain, perf records and
             tracepoint formats of this kernel, the results of every kernel (needs root), the
             program of the demo
  NAME       only these Go traces (with --record)";

/// Tests that write their expected files when [`VARIABLE`] is set: package and test name.
const TESTS: &[(&str, &str)] = &[
    ("perf-data", "recordings"),
    ("perf-monitor", "fixtures"),
    ("trace-export", "go"),
    ("trace-export", "timeline"),
    ("triscope", "answers"),
];

/// Read by `testkit::golden`.
pub(crate) const VARIABLE: &str = "UPDATE_GOLDEN";

pub(crate) fn task(args: &[String]) -> Result {
    let (mut records, mut names) = (false, Vec::new());
    let mut args = lexopt::Parser::from_args(args);
    while let Some(arg) = args.next()? {
        match arg {
            Long("record") => records = true,
            Value(name) => names.push(name.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if records {
        if names.is_empty() {
            test_kernel::record_fixtures()?;
            test_kernel::task(&["--write".into()])?;
            record::update()?;
        }
        conformance_go::record(&names)?;
    } else if !names.is_empty() {
        return Err("names of Go traces need --record".into());
    }
    conformance_go::update_expected()?;
    for (package, test) in TESTS {
        let mut command = run::cargo();
        command.args(["test", "--quiet", "--all-features", "--package", package, "--test", test]);
        run::run(command.env(VARIABLE, "1"))?;
    }
    public_api::task(&["--write".into()])
}
