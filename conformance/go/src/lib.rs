//! Compares `gotrace` with Go's own reader. The newest `go tool trace` is the reference for traces
//! of our workloads recorded by every toolchain, for the corpus of the Go distribution, and for
//! damaged traces.
//!
//! Downloads, builds and recordings are kept below the cache directory, keyed by their inputs. A
//! second run only compares.
#![forbid(unsafe_code)]

mod analyses;
pub mod answers;
mod batches;
mod bench;
mod compare;
mod corpus;
mod fixtures;
mod flight;
mod footprint;
mod goroutines;
mod judge;
pub mod layouts;
mod matrix;
mod mutants;
mod mutation;
mod parts;
mod paths;
mod pieces;
mod profile_differences;
mod recovery;
mod reference;
mod restricted;
pub mod timeline;
mod toolchain;
mod workload;

pub use bench::OPTIONS as BENCH_OPTIONS;
use lexopt::prelude::*;
use reference::Printed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use task_support::{Result, lane, parallel, run};
use toolchain::Toolchain;

/// The programs and toolchains that every comparison needs.
#[derive(Debug)]
struct Tools {
    newest: Toolchain,
    trace_tool: PathBuf,
    pprof_tool: PathBuf,
    judge: PathBuf,
    triscope: PathBuf,
}

impl Tools {
    fn ready() -> Result<Tools> {
        let newest = Toolchain::install(toolchain::NEWEST)?;
        Ok(Tools {
            trace_tool: toolchain::tool(&newest, "trace")?,
            pprof_tool: toolchain::tool(&newest, "pprof")?,
            judge: judge::program(&newest)?,
            triscope: run::triscope()?,
            newest,
        })
    }

    /// The cache key of recordings that the reference has judged.
    fn variant(&self) -> String {
        format!("judged-by-{}", self.newest.version)
    }

    /// Every trace of Go's corpus and every recorded workload, with a name for messages. If `only` is
    /// not empty, only the workloads with these names.
    fn traces(
        &self,
        toolchains: &[Toolchain],
        corpus: &[PathBuf],
        only: &[String],
    ) -> Vec<(String, PathBuf)> {
        let mut traces = Vec::new();
        for item in corpus.iter().filter(|_| only.is_empty()) {
            let name = item.file_name().unwrap_or_default().to_string_lossy().into_owned();
            traces.push((name, item.join("trace")));
        }
        let is_chosen = |name: &str| only.is_empty() || only.iter().any(|chosen| chosen == name);
        for workload in workload::ALL.into_iter().filter(|workload| is_chosen(workload.name)) {
            for toolchain in toolchains {
                if let Some(dir) = workload.already_recorded(toolchain, &self.variant()) {
                    let name = format!("{} of Go 1.{}", workload.name, toolchain.minor());
                    traces.push((name, dir.join("trace")));
                }
            }
        }
        traces
    }

    /// The output of our own program for a trace.
    fn ours(&self, mode: &str, file: &Path) -> Result<Printed> {
        Printed::of(Command::new(&self.triscope).args(["go", mode]).arg(file))
    }
}

/// The `go` command of the newest toolchain, which is downloaded if it is missing.
///
/// # Errors
///
/// Those of the download.
pub fn newest_go() -> Result<PathBuf> {
    Ok(Toolchain::install(toolchain::NEWEST)?.goroot.join("bin/go"))
}

/// `go tool pprof` of the newest toolchain, which is built if it is missing.
///
/// # Errors
///
/// Those of the download and of the build.
pub fn pprof_tool() -> Result<PathBuf> {
    toolchain::tool(&Toolchain::install(toolchain::NEWEST)?, "pprof")
}

/// The options of `cargo xtask test-go`.
pub const TEST_OPTIONS: &str = "\
[--full] [--recovery | --analyses | --parts | --flight | --goroutines] [--each N] [WORKLOAD...]

  --full     measure recovery over every trace, at 50 positions of each kind, and compare the
             analyses and parts of large traces too (default: a sample)
  --recovery only measure recovery, over the traces that are already recorded
  --analyses only compare the analyses of those traces
  --parts    only compare parts of those traces
  --flight   only read flight recorders from the memory of programs
  --goroutines only compare the goroutines of samples with execution traces
  --each N   damage each trace N times in each way (default: 12)
  WORKLOAD   only these workloads (default: all)";

/// `cargo xtask test-go`.
///
/// # Errors
///
/// A difference between gotrace and Go's reader, or a program that fails.
pub fn test(args: &[String]) -> Result {
    let mut each = mutants::EACH;
    let (mut full, mut only_recovery, mut only_analyses) = (false, false, false);
    let (mut only_parts, mut only_flight, mut only_goroutines) = (false, false, false);
    let mut only = Vec::new();
    let mut args = lexopt::Parser::from_args(args);
    while let Some(arg) = args.next()? {
        match arg {
            Long("full") => full = true,
            Long("recovery") => only_recovery = true,
            Long("analyses") => only_analyses = true,
            Long("parts") => only_parts = true,
            Long("flight") => only_flight = true,
            Long("goroutines") => only_goroutines = true,
            Long("each") => each = args.value()?.parse()?,
            Value(workload) => only.push(workload.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    let toolchains = match parallel(toolchain::VERSIONS.to_vec(), Toolchain::install) {
        Ok(toolchains) => toolchains,
        Err(error) => return lane::skip("Go traces against Go's own reader", &error),
    };
    if only_goroutines {
        return differences(goroutines::check(&toolchains)?);
    }
    let tools = Tools::ready()?;
    if only_recovery {
        let corpus = corpus::items(&tools, &toolchains)?;
        return recovery::check(&tools, &toolchains, &corpus, full);
    }
    if only_analyses {
        let corpus = corpus::items(&tools, &toolchains)?;
        let mut failed = analyses::check(&tools, &toolchains, &corpus, &only, full)?;
        failed += restricted::check(&tools, &toolchains)?;
        failed += profile_differences::check(&tools, &toolchains, &corpus)?;
        return differences(failed + paths::check(&tools, &toolchains)?);
    }
    if only_parts {
        let corpus = corpus::items(&tools, &toolchains)?;
        return differences(parts::check(&tools, &toolchains, &corpus, full)?);
    }
    if only_flight {
        return differences(flight::check(&tools, &toolchains)? + layouts::check(&toolchains)?);
    }
    let start = Instant::now();
    let mut failed = matrix::check(&tools, &toolchains, &only)?;
    let corpus = corpus::items(&tools, &toolchains)?;
    failed += corpus::check(&tools, &corpus)?;
    failed += pieces::check(&corpus)?;
    failed += fixtures::check(&tools)?;
    failed += mutants::check(&tools, &corpus, each)?;
    failed += analyses::check(&tools, &toolchains, &corpus, &only, full)?;
    failed += restricted::check(&tools, &toolchains)?;
    failed += profile_differences::check(&tools, &toolchains, &corpus)?;
    failed += parts::check(&tools, &toolchains, &corpus, full)?;
    failed += paths::check(&tools, &toolchains)?;
    failed += layouts::check(&toolchains)?;
    failed += flight::check(&tools, &toolchains)?;
    failed += goroutines::check(&toolchains)?;
    println!("compared in {:.0} s", start.elapsed().as_secs_f64());
    differences(failed)?;
    recovery::check(&tools, &toolchains, &corpus, full)
}

fn differences(count: usize) -> Result {
    if count > 0 { Err(format!("{count} differences").into()) } else { Ok(()) }
}

/// Records the committed traces again: all or the named ones.
///
/// # Errors
///
/// A program fails, or no recording has the events that a trace requires.
pub fn record(names: &[String]) -> Result {
    fixtures::record(&Tools::ready()?, names)
}

/// Regenerates the committed output of Go's reader.
///
/// # Errors
///
/// A program fails.
pub fn update_expected() -> Result {
    fixtures::update_expected(&Tools::ready()?)
}

/// `cargo xtask bench-go`.
///
/// # Errors
///
/// A program fails, or the readers disagree.
pub fn bench(args: &[String]) -> Result {
    bench::run(args)
}
