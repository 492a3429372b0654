//! Every runtime starts, runs the workload and ends.

use testkit::dotnet::{Runtime, Target};

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn every_runtime_runs_the_workload_and_ends() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("mix").seconds(1).start();
        target.assert_alive();
        assert_eq!(target.wait().code(), Some(0), "{runtime:?}\n{}", target.output());
    }
}
