//! `cargo xtask <task>`: the table of development tasks.
//!
//! One file per task. Shared code is in the crate `task-support`; the comparison with Go's own
//! reader is in `conformance/go`.
#![forbid(unsafe_code)]

mod again;
mod bench_perf;
mod bench_profile;
mod bench_record;
mod ci;
mod dataset;
mod debian;
mod deny;
#[cfg(test)]
mod file_names;
mod fuzz;
mod golden;
mod html;
mod ignored;
mod package;
mod perfetto;
mod procfs;
mod public_api;
mod push;
mod record;
mod runtimes;
mod rust;
mod samply;
mod sanitize;
mod soak;
mod sql;
mod test_kernel;
mod timeline;
mod turn;
mod wasm;
mod web;
#[cfg(test)]
mod wording;

use std::process::ExitCode;
use task_support::Result;

struct Task {
    name: &'static str,
    help: &'static str,
    /// The text that `--help` prints after the name.
    options: &'static str,
    run: fn(&[String]) -> Result,
}

const TASKS: &[Task] = &[
    Task {
        name: "ci",
        help: "run every check, or those whose name contains a word",
        options: ci::OPTIONS,
        run: ci::task,
    },
    Task {
        name: "check-platforms",
        help: "check the libraries with the oldest supported Rust, and for Windows",
        options: "",
        run: rust::check_platforms,
    },
    Task {
        name: "test-targets",
        help: "run the tests of the portable crates on 32-bit and big-endian targets",
        options: rust::TARGETS_OPTIONS,
        run: rust::test_targets,
    },
    Task {
        name: "miri",
        help: "look for undefined behaviour in what miri can run",
        options: "",
        run: sanitize::miri,
    },
    Task {
        name: "sanitize",
        help: "run the tests of unsafe code with the address and thread sanitizers",
        options: "",
        run: sanitize::sanitize,
    },
    Task {
        name: "package",
        help: "pack every published crate, and test the packages by themselves",
        options: "",
        run: package::task,
    },
    Task {
        name: "deny",
        help: "check licences, sources and advisories of all dependencies",
        options: "",
        run: deny::task,
    },
    Task {
        name: "public-api",
        help: "compare the public API of the libraries with the committed lists",
        options: public_api::OPTIONS,
        run: public_api::task,
    },
    Task {
        name: "fuzz",
        help: "run the fuzz targets for a while",
        options: fuzz::OPTIONS,
        run: fuzz::task,
    },
    Task {
        name: "update-golden",
        help: "regenerate the expected output that tests compare with",
        options: golden::OPTIONS,
        run: golden::task,
    },
    Task {
        name: "test-go",
        help: "compare gotrace with Go's own reader",
        options: conformance_go::TEST_OPTIONS,
        run: conformance_go::test,
    },
    Task {
        name: "bench-go",
        help: "measure gotrace beside Go's own reader",
        options: conformance_go::BENCH_OPTIONS,
        run: conformance_go::bench,
    },
    Task {
        name: "go-layouts",
        help: "compare the layouts of go-flight with the debug information of Go programs",
        options: conformance_go::layouts::OPTIONS,
        run: conformance_go::layouts::task,
    },
    Task {
        name: "runtimes",
        help: "fetch the .NET runtimes that tests need",
        options: "",
        run: runtimes::fetch,
    },
    Task {
        name: "test-runtimes",
        help: "run the tests that need real .NET runtimes",
        options: runtimes::OPTIONS,
        run: runtimes::test,
    },
    Task {
        name: "test-record",
        help: "run the tests that record real Go and .NET programs",
        options: record::OPTIONS,
        run: record::test,
    },
    Task {
        name: "lint-perfetto",
        help: "check Perfetto traces against the official schema",
        options: perfetto::LINT_OPTIONS,
        run: perfetto::lint,
    },
    Task {
        name: "perfetto-bytes",
        help: "print the bytes of an event in Perfetto traces, by kind of trace",
        options: perfetto::BYTES_OPTIONS,
        run: perfetto::bytes,
    },
    Task {
        name: "draw-timeline",
        help: "draw a part of a Perfetto trace as SVG",
        options: perfetto::DRAW_OPTIONS,
        run: perfetto::draw,
    },
    Task {
        name: "test-timeline",
        help: "compare timelines with what Go and .NET programs measure themselves",
        options: timeline::OPTIONS,
        run: timeline::task,
    },
    Task {
        name: "test-dataset",
        help: "read datasets of triscope export with DuckDB and Arrow",
        options: dataset::OPTIONS,
        run: dataset::task,
    },
    Task {
        name: "sql",
        help: "check and test triscope-sql, which has DataFusion",
        options: sql::OPTIONS,
        run: sql::task,
    },
    Task {
        name: "bench-fleet",
        help: "write the dataset of a fleet, and ask all questions with DuckDB: times and bytes",
        options: dataset::fleet::OPTIONS,
        run: dataset::fleet::task,
    },
    Task {
        name: "test-push",
        help: "receive profiles of triscope push by the official definitions of OTLP and pprof",
        options: "",
        run: push::task,
    },
    Task {
        name: "test-html",
        help: "use the pages of triscope report --html and flame graphs in headless Chromium",
        options: html::OPTIONS,
        run: html::task,
    },
    Task {
        name: "web",
        help: "build the web page that reads traces in a browser: target/web/index.html",
        options: web::OPTIONS,
        run: web::task,
    },
    Task {
        name: "test-web",
        help: "use the web page in headless Chromium, and compare it with the native program",
        options: web::TEST_OPTIONS,
        run: web::test,
    },
    Task {
        name: "test-wasm",
        help: "run the tests of the portable libraries as WebAssembly, in Node.js",
        options: wasm::OPTIONS,
        run: wasm::task,
    },
    Task {
        name: "test-kernel",
        help: "test perf-monitor on real kernels: this one and virtual machines",
        options: test_kernel::OPTIONS,
        run: test_kernel::task,
    },
    Task {
        name: "test-flight",
        help: "test the flight recorder in a virtual machine whose clock, CPUs and power change",
        options: test_kernel::flight::OPTIONS,
        run: test_kernel::flight::task,
    },
    Task {
        name: "test-samply",
        help: "import recordings of triscope perf record with samply, which is built first",
        options: "",
        run: samply::task,
    },
    Task {
        name: "bench-perf",
        help: "measure perf-monitor beside other readers of perf events",
        options: bench_perf::OPTIONS,
        run: bench_perf::task,
    },
    Task {
        name: "bench-profile",
        help: "compare triscope profile with perf record and samply: CPU time",
        options: bench_profile::OPTIONS,
        run: bench_profile::task,
    },
    Task {
        name: "bench-record",
        help: "measure the CPU time and memory of triscope record beside perf sched record",
        options: bench_record::OPTIONS,
        run: bench_record::task,
    },
    Task {
        name: "soak",
        help: "run the flight recorder for long, idle and busy: CPU time, memory, and that no record is lost uncounted",
        options: soak::OPTIONS,
        run: soak::task,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(task) = args.first().and_then(|name| TASKS.iter().find(|t| t.name == name)) else {
        eprintln!("usage: cargo xtask TASK [OPTIONS], cargo xtask TASK --help\n");
        for task in TASKS {
            eprintln!("  {:<16} {}", task.name, task.help);
        }
        return ExitCode::from(2);
    };
    let args = &args[1..];
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{}\n\nusage: cargo xtask {} {}", task.help, task.name, task.options);
        return ExitCode::SUCCESS;
    }
    match (task.run)(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {}: {error}", task.name);
            ExitCode::FAILURE
        }
    }
}
