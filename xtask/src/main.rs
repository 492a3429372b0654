//! `cargo xtask <task>`: everything that checks this workspace, in one place.
//!
//! One file per task. What tasks share: [`cache`] (downloads, kept by version), [`pypi`]
//! (packages that carry toolchains), [`run`] (child processes), [`lane`] (what cannot run here).
#![forbid(unsafe_code)]

mod bench_perf;
mod cache;
mod ci;
mod debian;
mod fuzz;
mod go;
mod lane;
mod perfetto;
mod pypi;
mod run;
mod runtimes;
mod rust;
mod test_kernel;

use std::process::ExitCode;

/// Anything that ends a task early, as text for a person.
type Error = Box<dyn std::error::Error>;
type Result<T = ()> = std::result::Result<T, Error>;

struct Task {
    name: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result,
}

const TASKS: &[Task] = &[
    Task { name: "ci", help: "every check; or those whose name contains a word", run: ci::task },
    Task {
        name: "check-platforms",
        help: "the libraries with the oldest Rust, and for Windows",
        run: rust::check_platforms,
    },
    Task { name: "fuzz", help: "fuzz targets for a while [TARGET] [--seconds N]", run: fuzz::task },
    Task { name: "test-go", help: "Go traces: ours against Go's own reader", run: go::test_go },
    Task { name: "fixtures-go", help: "record gotrace's test data anew", run: go::fixtures_go },
    Task {
        name: "bench-go",
        help: "Go traces: speed and memory beside Go's own reader",
        run: go::bench_go,
    },
    Task { name: "runtimes", help: "fetch the .NET runtimes for tests", run: runtimes::fetch },
    Task { name: "test-runtimes", help: "test against real .NET runtimes", run: runtimes::test },
    Task {
        name: "lint-perfetto",
        help: "Perfetto traces against the official schema: ours, or FILE...",
        run: perfetto::lint,
    },
    Task {
        name: "draw-timeline",
        help: "a part of a Perfetto trace as a picture: FILE -o OUT.svg, --help",
        run: perfetto::draw,
    },
    Task {
        name: "test-timeline",
        help: "kernel and Go events of one program: are they on one clock?",
        run: go::timeline::task,
    },
    Task {
        name: "test-kernel",
        help: "perf-monitor on real kernels: this one and virtual machines [--kernel …]",
        run: test_kernel::task,
    },
    Task {
        name: "bench-perf",
        help: "perf events: perf-monitor beside other readers [--rounds N] [--realtime]",
        run: bench_perf::task,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(task) = args.first().and_then(|name| TASKS.iter().find(|t| t.name == name)) else {
        eprintln!("usage: cargo xtask <task> [options]\n");
        for task in TASKS {
            eprintln!("  {:<16}{}", task.name, task.help);
        }
        return ExitCode::from(2);
    };
    match (task.run)(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {}: {error}", task.name);
            ExitCode::FAILURE
        }
    }
}
