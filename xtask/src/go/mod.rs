//! Our reading of Go execution traces against Go's own: the newest `go tool trace` is the judge of
//! traces that every toolchain recorded of our own workloads, of the distribution's own corpus and
//! of damaged traces.
//!
//! All that is fetched, built and recorded is kept below the cache directory by what it is made
//! from, so that a second run only compares.

mod batches;
mod bench;
mod compare;
mod corpus;
mod digest;
mod fixtures;
mod judge;
mod matrix;
mod mutants;
mod mutation;
mod random;
mod reference;
pub(crate) mod timeline;
mod toolchain;
mod workload;

use crate::{Result, lane, run};
use reference::Printed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;
use toolchain::Toolchain;

/// What every comparison needs.
#[derive(Debug)]
struct Tools {
    newest: Toolchain,
    trace_tool: PathBuf,
    judge: PathBuf,
    triscope: PathBuf,
}

impl Tools {
    fn ready() -> Result<Tools> {
        let newest = Toolchain::install(toolchain::NEWEST)?;
        Ok(Tools {
            trace_tool: toolchain::trace_tool(&newest)?,
            judge: judge::program(&newest)?,
            triscope: triscope()?,
            newest,
        })
    }

    /// What our own program prints of a trace.
    fn ours(&self, mode: &str, file: &Path) -> Result<Printed> {
        Printed::of(Command::new(&self.triscope).args(["go", mode]).arg(file))
    }
}

/// Builds the program that users have.
fn triscope() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run::run(Command::new(cargo).args(["build", "--quiet", "--release", "--package", "triscope"]))?;
    // target/PROFILE/xtask is this program.
    let me = std::env::current_exe()?;
    let target = me.parent().and_then(Path::parent).ok_or("xtask is not in a target directory")?;
    Ok(target.join("release/triscope"))
}

/// Does `work` for all items on as many threads as there are CPUs; the results keep their order.
fn parallel<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(items.len(), || None);
    let queue = Mutex::new(items.into_iter().zip(results.iter_mut()));
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some((item, slot)) = queue.lock().ok().and_then(|mut q| q.next()) else {
                        return;
                    };
                    match work(item) {
                        Ok(result) => *slot = Some(result),
                        Err(error) => {
                            if let Ok(mut failure) = failure.lock() {
                                failure.get_or_insert(error.to_string());
                            }
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_default() {
        return Err(error.into());
    }
    results.into_iter().map(|r| r.ok_or_else(|| "a thread gave up".into())).collect()
}

/// `cargo xtask test-go [--each N] [WORKLOAD…]`: all workloads or some, and N damaged traces of each
/// kind.
pub(crate) fn test_go(args: &[String]) -> Result {
    let mut each = mutants::EACH;
    let mut only = args;
    if let [flag, number, rest @ ..] = args {
        if flag == "--each" {
            (each, only) = (number.parse()?, rest);
        }
    }
    let toolchains = match parallel(toolchain::VERSIONS.to_vec(), Toolchain::install) {
        Ok(toolchains) => toolchains,
        Err(error) => return lane::missing("Go traces against Go's own reader", &error),
    };
    let tools = Tools::ready()?;
    let start = Instant::now();
    let mut failed = matrix::check(&tools, &toolchains, only)?;
    let corpus = corpus::items(&tools, &toolchains)?;
    failed += corpus::check(&tools, &corpus)?;
    failed += fixtures::check(&tools)?;
    failed += mutants::check(&tools, &corpus, each)?;
    println!("compared in {:.0} s", start.elapsed().as_secs_f64());
    if failed == 0 { Ok(()) } else { Err(format!("{failed} differences").into()) }
}

/// `cargo xtask fixtures-go [NAME…]`.
pub(crate) fn fixtures_go(args: &[String]) -> Result {
    fixtures::make(&Tools::ready()?, args)
}

/// `cargo xtask bench-go [TRACE]`.
pub(crate) fn bench_go(args: &[String]) -> Result {
    bench::run(args)
}
