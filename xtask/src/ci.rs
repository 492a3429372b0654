//! `cargo xtask ci`: every check, in the order that finds mistakes soonest.

use crate::{
    bench_perf, deny, fuzz, html, package, perfetto, public_api, runtimes, rust, sanitize,
    test_kernel, timeline,
};
use std::process::Command;
use std::time::Instant;
use task_support::{Result, run};

pub(crate) const OPTIONS: &str = "\
[WORD]

  WORD   only checks whose name contains it";

/// A check and how to run it.
type Step = (&'static str, fn() -> Result);

const STEPS: &[Step] = &[
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("clippy", || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
    }),
    ("documentation", || {
        let mut command =
            command(&["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
        run::run(command.env("RUSTDOCFLAGS", "-D warnings"))
    }),
    ("public API", || public_api::task(&[])),
    ("tests, debug", || {
        cargo(&["test", "--quiet"])?;
        // No other package of the workspace enables this feature.
        cargo(&["test", "--quiet", "-p", "perf-monitor", "--features", "tokio", "--test", "tokio"])
    }),
    ("tests, release", || cargo(&["test", "--quiet", "--release"])),
    ("feature powerset", || {
        cargo(&["hack", "check", "--feature-powerset", "--no-dev-deps", "--workspace", "--quiet"])
    }),
    ("oldest Rust, and Windows", || rust::check_platforms(&[])),
    ("miri", || sanitize::miri(&[])),
    ("sanitizers", || sanitize::sanitize(&[])),
    ("packages", || package::task(&[])),
    ("dependencies", || deny::task(&[])),
    ("benches run", || {
        cargo(&["bench", "--quiet", "--package", "triscope-benches", "--", "--test"])
    }),
    ("Go's own reader", || conformance_go::test(&[])),
    ("Perfetto's own schema", || perfetto::lint(&[])),
    ("pages in a browser", || html::task(&[])),
    ("kernel, Go and .NET on one clock", || timeline::task(&[])),
    (".NET runtimes", || runtimes::test(&[])),
    ("perf-monitor's peers run", bench_perf::smoke),
    ("real kernels", || test_kernel::task(&[])),
    ("fuzzing, briefly", || fuzz::smoke(10, "")),
];

pub(crate) fn task(args: &[String]) -> Result {
    let filter = args.first().map_or("", String::as_str);
    let mut report = Vec::new();
    for (name, step) in STEPS.iter().filter(|(name, _)| name.contains(filter)) {
        eprintln!("\n==== {name}");
        let start = Instant::now();
        step().map_err(|error| format!("{name}: {error}"))?;
        report.push(format!("{:>6.1} s  {name}", start.elapsed().as_secs_f64()));
    }
    if report.is_empty() {
        return Err(format!("no check's name contains {filter:?}").into());
    }
    eprintln!("\n==== all green\n{}", report.join("\n"));
    println!("{} passed, 0 failed", report.len());
    Ok(())
}

fn cargo(args: &[&str]) -> Result {
    run::run(&mut command(args))
}

fn command(args: &[&str]) -> Command {
    let mut command = run::cargo();
    command.args(args);
    command
}
