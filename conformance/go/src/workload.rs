//! Our own programs, each of which does one kind of work and records it (their sources are in
//! `workloads/` and `cgo/`), built and run with every toolchain.

use super::toolchain::{self, Toolchain};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run};

/// A kind of workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// The first Go 1.N that supports it.
    pub(crate) since: u32,
    /// `GODEBUG` during the run.
    pub(crate) debug: &'static str,
    program: Program,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Plain,
    Cgo,
}

const fn plain(name: &'static str, since: u32, debug: &'static str) -> Workload {
    Workload { name, since, debug, program: Program::Plain }
}

/// All workloads. A period of generations (nanoseconds) is for Go ≥ 1.22; older versions ignore it.
pub(crate) const ALL: [Workload; 22] = [
    plain("http", 0, ""),
    plain("shop", 0, ""),
    plain("gc", 0, "traceadvanceperiod=10000000"),
    plain("contention", 0, ""),
    plain("annotations", 0, ""),
    plain("syscalls", 0, ""),
    plain("goroutines", 0, ""),
    plain("churn", 0, ""),
    plain("timers", 0, ""),
    plain("cpuprofile", 0, ""),
    plain("gomaxprocs", 0, ""),
    plain("lockthread", 0, ""),
    plain("deepstacks", 0, ""),
    plain("generations", 0, "traceadvanceperiod=3000000"),
    plain("idle", 0, "traceadvanceperiod=20000000"),
    plain("allocations", 0, "traceallocfree=1"),
    plain("killed", 0, "traceadvanceperiod=10000000"),
    plain("fixture", 0, "traceadvanceperiod=20000000"),
    plain("startstop", 0, ""),
    plain("coroutines", 23, ""),
    plain("flight", 25, "traceadvanceperiod=10000000"),
    Workload { name: "cgo", since: 0, debug: "", program: Program::Cgo },
];

/// Workloads for benchmarks, whose traces are too large for the comparisons.
pub(crate) const BUSY: Workload = plain("busy", 0, "");
pub(crate) const SWARM: Workload = plain("swarm", 0, "");

/// Returns the workload with that name.
pub(crate) fn named(name: &str) -> Result<Workload> {
    let found = ALL.into_iter().find(|w| w.name == name);
    Ok(found.ok_or_else(|| format!("no workload is called {name}"))?)
}

const PLAIN: &[(&str, &str)] = &[
    ("main.go", include_str!("workloads/main.go")),
    ("annotate.go", include_str!("workloads/annotate.go")),
    ("coroutines.go", include_str!("workloads/coroutines.go")),
    ("flight.go", include_str!("workloads/flight.go")),
    ("http.go", include_str!("workloads/http.go")),
    ("memory.go", include_str!("workloads/memory.go")),
    ("sched.go", include_str!("workloads/sched.go")),
    ("system.go", include_str!("workloads/system.go")),
];
const CGO: &[(&str, &str)] = &[("main.go", include_str!("cgo/main.go"))];

impl Workload {
    /// Whether `toolchain` supports it.
    pub(crate) fn runs_with(&self, toolchain: &Toolchain) -> bool {
        toolchain.minor() >= self.since
    }

    /// Whether it needs a C compiler.
    pub(crate) fn needs_c(&self) -> bool {
        self.program == Program::Cgo
    }

    fn sources(&self) -> &'static [(&'static str, &'static str)] {
        match self.program {
            Program::Plain => PLAIN,
            Program::Cgo => CGO,
        }
    }

    /// The cache key of its program and traces for `toolchain`.
    fn key(&self, toolchain: &Toolchain) -> String {
        let hash = toolchain::content_hash(self.sources());
        format!("go/workloads/{}-{hash:016x}-trimmed", toolchain.version)
    }

    /// The program, which is built if necessary.
    pub(crate) fn program(&self, toolchain: &Toolchain) -> Result<PathBuf> {
        let dir = cache::entry(&format!("{}/program", self.key(toolchain)), |dir| {
            eprintln!("building the workloads with Go {}", toolchain.version);
            let source = dir.join("source");
            fs::create_dir(&source)?;
            for (name, text) in self.sources() {
                fs::write(source.join(name), text)?;
            }
            // The language version also determines defaults of GODEBUG.
            let module = format!("module workload\n\ngo 1.{}\n", toolchain.minor());
            fs::write(source.join("go.mod"), module)?;
            let mut build = toolchain.command();
            if self.needs_c() {
                build.env("CGO_ENABLED", "1");
            }
            // Traces contain source paths: directories of this machine must not be among them.
            build.current_dir(&source).args(["build", "-trimpath", "-o"]).arg(dir.join("workload"));
            run::output(&mut build)?;
            Ok(())
        })?;
        Ok(dir.join("workload"))
    }

    /// Records a new trace into `out`.
    pub(crate) fn record(&self, toolchain: &Toolchain, out: &Path) -> Result {
        let mut command = Command::new(self.program(toolchain)?);
        command.arg(self.name).arg(out).env("GODEBUG", self.debug).env("TZ", "UTC");
        run::output(&mut command)?;
        Ok(())
    }

    /// Returns a directory with a trace (`trace`) of this workload by `toolchain`, created once;
    /// `more` adds further files to it. `variant` is the cache key of these files.
    pub(crate) fn recorded(
        &self,
        toolchain: &Toolchain,
        variant: &str,
        more: impl FnOnce(&Path) -> Result,
    ) -> Result<PathBuf> {
        cache::entry(&self.recording_key(toolchain, variant), |dir| {
            self.record(toolchain, &dir.join("trace"))?;
            more(dir)
        })
    }

    /// The directory of [`Workload::recorded`], if there is one.
    pub(crate) fn already_recorded(&self, toolchain: &Toolchain, variant: &str) -> Option<PathBuf> {
        let dir = cache::root().ok()?.join(self.recording_key(toolchain, variant));
        dir.is_dir().then_some(dir)
    }

    fn recording_key(&self, toolchain: &Toolchain, variant: &str) -> String {
        let debug = toolchain::content_hash(&[("GODEBUG", self.debug)]) & 0xffff;
        format!("{}/{}-{debug:04x}-{variant}", self.key(toolchain), self.name)
    }
}
