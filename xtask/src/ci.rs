//! `cargo xtask ci`: every check, in the order that finds mistakes soonest. Those that often wait run
//! beside the others.

use crate::{
    again, bench_perf, dataset, deny, fuzz, html, package, perfetto, public_api, push, record,
    runtimes, rust, sanitize, soak, sql, test_kernel, timeline, turn, wasm, web,
};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use task_support::remark::{self, Kind, Remark};
use task_support::{Result, run};

pub(crate) const OPTIONS: &str = "\
[WORD]

  WORD   only checks whose name contains it";

/// A check.
struct Step {
    name: &'static str,
    run: fn() -> Result,
    /// Whether it often waits: others run meanwhile.
    waits: bool,
    /// Whether it measures the CPU: nothing runs beside it.
    is_alone: bool,
    /// Whether it watches live programs: if it fails, it is run once more.
    is_live: bool,
    /// Whether it is one of the checks of which one runs at a time on a machine: they use the whole
    /// tracefs, or change `kernel.perf_event_paranoid` for a moment. See [`turn`].
    is_of_kernel: bool,
}

const fn step(name: &'static str, run: fn() -> Result) -> Step {
    Step { name, run, waits: false, is_alone: false, is_live: false, is_of_kernel: false }
}

impl Step {
    const fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    const fn alone(mut self) -> Self {
        self.is_alone = true;
        self
    }

    const fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    const fn of_kernel(mut self) -> Self {
        self.is_of_kernel = true;
        self
    }

    /// Whether it may run while these others do.
    fn may_run(&self, beside: &[&Self]) -> bool {
        let most = match self {
            Self { is_alone: true, .. } => 0,
            Self { waits: true, .. } => MOST_BESIDE - 1,
            _ => MOST_BESIDE,
        };
        beside.len() <= most && !(self.is_of_kernel && beside.iter().any(|step| step.is_of_kernel))
    }

    fn run(&self) -> Result {
        let _turn = self.is_of_kernel.then(turn::of_kernel).transpose()?;
        if self.is_live { again::attempt(self.name, self.run) } else { (self.run)() }
    }
}

const STEPS: &[Step] = &[
    step("format", || cargo(&["fmt", "--all", "--check"])),
    step("format and lock file of triscope-sql", sql::consistent),
    step("lock file of the fuzz targets", fuzz::consistent),
    step("clippy", || {
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
    step("public API, and its documentation", || public_api::task(&[])),
    step("documentation of the other packages", || {
        let mut command =
            command(&["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
        command.args(rust::LIBRARIES.iter().flat_map(|name| ["--exclude", name]));
        run::run(command.env("RUSTDOCFLAGS", "-D warnings"))
    }),
    step("integration tests, debug", integration_tests).waits(),
    step("live programs, release", live_tests).waits().of_kernel(),
    step("kernels of virtual machines", test_kernel::other_kernels).waits().live(),
    step("tests, release", optimized_tests),
    step("feature powerset", || {
        // Not with --no-dev-deps, which changes the manifests while other checks build.
        // The default is one of the other combinations. The packages that are not published have no
        // features.
        // Two at a time; clippy checks all of them together.
        let args = ["hack", "check", "--feature-powerset", "--depth", "2", "--ignore-private"];
        cargo(&[&args[..], &["--exclude-features", "default", "--workspace", "--quiet"]].concat())
    }),
    step("oldest Rust, and Windows", || rust::check_platforms(&[])),
    step("miri", || sanitize::miri(&[])),
    step("dependencies", || deny::task(&[])),
    step("sanitizers", || sanitize::sanitize(&[])),
    step("triscope perf and record, debug", test_kernel::programs).waits().of_kernel(),
    step("packages, with unit tests, debug", || package::task(&[])),
    step("benches run", || {
        // Of the workspace: of their package alone, the libraries have fewer features, and are compiled
        // again.
        let benches = targets("bench")?;
        let benches: Vec<&str> = benches.iter().flat_map(|name| ["--bench", name]).collect();
        let bench = ["bench", "--quiet", "--workspace"];
        cargo(&[&bench[..], &benches, &["--", "--test"]].concat())?;
        // Fails above its limit on memory.
        let example = ["build", "--release", "--workspace", "--example", "profile_hour"];
        run::run(&mut Command::new(run::artifact(&mut command(&example), "profile_hour")?))
    }),
    step("Perfetto's own schema", || perfetto::lint(&[])),
    step("perf-monitor's peers run", bench_perf::smoke),
    // Node.js has aborted for reasons of its own.
    step("tests as WebAssembly", || wasm::task(&[])).live(),
    step("web page", || web::test(&[])).live(),
    step("fuzzing, briefly", fuzz::smoke),
    step(".NET runtimes", || runtimes::test(&[])).waits().live(),
    step("kernel of this machine", test_kernel::host_kernel).live().of_kernel(),
    step("Go's own reader", || conformance_go::test(&[])).waits().live(),
    step("recordings of Go and .NET programs", || record::test(&[])).waits().live().of_kernel(),
    step("flight recorder in a machine", || test_kernel::flight::task(&[])).live(),
    step("pages in a browser", || html::task(&[])).live(),
    step("datasets in DuckDB and Arrow", || dataset::task(&[])).live(),
    step("datasets of a fleet", || dataset::fleet::task(&[])).live(),
    step("profiles to servers", || push::task(&[])).live(),
    // Last: they wait for all others.
    step("kernel, Go and .NET on one clock", || timeline::task(&[])).live().alone(),
    step("flight recorder, briefly", soak::smoke).live().alone(),
];

pub(crate) fn task(args: &[String]) -> Result {
    let filter = args.first().map_or("", String::as_str);
    let steps: Vec<&'static Step> =
        STEPS.iter().filter(|step| step.name.contains(filter)).collect();
    if steps.is_empty() {
        return Err(format!("no check's name contains {filter:?}").into());
    }
    let mut report = Report::default();
    let mut beside = Vec::new();
    let mut result = run(&steps, &mut report, &mut beside);
    for rest in beside {
        result = match (result, report.finish(rest)) {
            (Err(error), Err(also)) => Err(format!("{error}\n{also}").into()),
            (result, rest) => result.and(rest),
        };
    }
    let lacking = report.lacking().len();
    let verdict = match (&result, lacking) {
        (Err(_), _) => "failed".to_owned(),
        (Ok(()), 0) => "all green".to_owned(),
        (Ok(()), _) => {
            format!("green, but {lacking} of {} checks were not run, or only in part", steps.len())
        }
    };
    eprintln!("\n==== {verdict}\n{report}");
    result?;
    println!("{} passed, 0 failed, {lacking} not run or only in part", steps.len() - lacking);
    Ok(())
}

/// The most checks that run beside the others at a time.
const MOST_BESIDE: usize = 3;

/// Runs each check, and those that wait beside the others: the first one that may run now.
fn run(steps: &[&'static Step], report: &mut Report, beside: &mut Vec<Beside>) -> Result {
    let (sender, ended) = channel();
    let mut rest = steps.to_vec();
    while !rest.is_empty() {
        while let Ok(name) = ended.try_recv() {
            finish(name, report, beside)?;
        }
        let running: Vec<&Step> = beside.iter().map(|other| other.step).collect();
        let Some(place) = rest.iter().position(|step| step.may_run(&running)) else {
            finish(ended.recv()?, report, beside)?;
            continue;
        };
        let step = rest.remove(place);
        if step.waits && steps.len() > 1 {
            beside.push(Beside::start(step, sender.clone())?);
            continue;
        }
        eprintln!("\n==== {}", step.name);
        let (start, cpu) = (Instant::now(), children_cpu()?);
        let result = step.run();
        report.remark(step.name, remark::take());
        result.map_err(|error| format!("{}: {error}", step.name))?;
        report.add(step.name, start.elapsed(), children_cpu()? - cpu);
    }
    Ok(())
}

/// Takes the end of a check that runs beside the others.
fn finish(name: &str, report: &mut Report, beside: &mut Vec<Beside>) -> Result {
    let place = beside.iter().position(|other| other.step.name == name);
    place.map_or(Ok(()), |place| report.finish(beside.remove(place)))
}

/// The checks that have passed.
#[derive(Default)]
struct Report {
    /// A line with the times of each.
    times: String,
    /// What their success does not show.
    remarks: Vec<(&'static str, Remark)>,
}

impl Report {
    fn add(&mut self, name: &str, wall: Duration, cpu: f64) {
        let wall = wall.as_secs_f64();
        self.times.push_str(&format!("{wall:>6.1} s  {cpu:>6.1} s of CPU  {name}\n"));
    }

    fn remark(&mut self, name: &'static str, remarks: impl IntoIterator<Item = Remark>) {
        for remark in remarks.into_iter().map(|remark| (name, remark)) {
            // A check that is run again skips the same.
            if !self.remarks.contains(&remark) {
                self.remarks.push(remark);
            }
        }
    }

    /// The checks that were not run, or only in part.
    fn lacking(&self) -> BTreeSet<&str> {
        let not_run = self.remarks.iter().filter(|(_, remark)| remark.kind == Kind::NotRun);
        not_run.map(|(name, _)| *name).collect()
    }

    /// Waits for a check that runs beside the others, and prints its output.
    fn finish(&mut self, Beside { step, start, thread }: Beside) -> Result {
        let name = step.name;
        let End { output, wall, cpu } =
            thread.join().map_err(|_| format!("{name}: the thread failed"))??;
        eprintln!("\n==== {name} (beside others for {:.1} s)", start.elapsed().as_secs_f64());
        let mut errors = std::io::stderr().lock();
        errors.write_all(&output.stdout)?;
        errors.write_all(&output.stderr)?;
        drop(errors);
        self.remark(name, remark::parse(&String::from_utf8_lossy(&output.stderr)));
        if !output.status.success() {
            return Err(format!("{name}: {}", output.status).into());
        }
        self.add(name, wall, cpu);
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.times)?;
        for (title, kind) in [("unsteady", Kind::Unsteady), ("not run", Kind::NotRun)] {
            let remarks: Vec<_> =
                self.remarks.iter().filter(|(_, remark)| remark.kind == kind).collect();
            if !remarks.is_empty() {
                writeln!(f, "{} {title}:", remarks.len())?;
            }
            for (name, Remark { text, .. }) in remarks {
                writeln!(f, "  {name}: {text}")?;
            }
        }
        Ok(())
    }
}

/// A check that runs in a process of its own.
struct Beside {
    step: &'static Step,
    start: Instant,
    thread: JoinHandle<std::io::Result<End>>,
}

/// The end of a check that runs in a process of its own.
struct End {
    output: Output,
    wall: Duration,
    cpu: f64,
}

/// CPU time of the processes of checks that have ended beside others, in milliseconds.
static BESIDE_CPU: AtomicU64 = AtomicU64::new(0);

impl Beside {
    /// Starts it. Its name is sent when it has ended.
    fn start(step: &'static Step, ended: Sender<&'static str>) -> Result<Self> {
        let name = step.name;
        eprintln!("\n==== {name}: begins, and its output follows at its end");
        let start = Instant::now();
        // Not by its path, where a check can write another build.
        let mut command = Command::new("/proc/self/exe");
        command.args(["ci", name]);
        let thread = std::thread::spawn(move || {
            let output = command.output();
            // Nobody waits for it after another check has failed.
            let _ = ended.send(name);
            let output = output?;
            let wall = start.elapsed();
            let cpu = reported_cpu(&String::from_utf8_lossy(&output.stderr), name).unwrap_or(0.0);
            BESIDE_CPU.fetch_add((cpu * 1e3) as u64, Ordering::Relaxed);
            Ok(End { output, wall, cpu })
        });
        Ok(Self { step, start, thread })
    }
}

/// The CPU time of a check in the report of its process, in seconds.
fn reported_cpu(report: &str, name: &str) -> Option<f64> {
    let times = report.lines().rev().find_map(|line| line.strip_suffix(name))?;
    times.trim_end().strip_suffix(" s of CPU")?.split_whitespace().next_back()?.parse().ok()
}

/// CPU time of the child processes that have ended, except of checks beside others, in seconds.
///
/// Source: `proc_pid_stat(5)`, fields 16 and 17 in units of 1/100 s.
fn children_cpu() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in /proc/self/stat")?;
    let mut ticks = 0;
    for field in fields.split_ascii_whitespace().skip(16 - 3).take(2) {
        ticks += field.parse::<u64>()?;
    }
    Ok(ticks as f64 / 100.0 - BESIDE_CPU.load(Ordering::Relaxed) as f64 / 1e3)
}

/// Integration tests that have checks of their own, as root and where none may be skipped: they wait for
/// most of their time, and run the examples.
const OF_KERNELS: &[&str] = &["examples", "kernel", "perf"];

/// [`OF_KERNELS`], optimized. Other checks run them without optimization.
fn live_tests() -> Result {
    test_kernel::optimized()?;
    // perf mounts a tracefs where it finds none: not while other tests look for it.
    again::cargo_test_with_tracefs(&["--release"], &["--test", "perf"])
}

/// Integration tests, and unit tests of this program, without optimization. The packages have the unit
/// tests of the other ones, and the examples of the documentation.
fn integration_tests() -> Result {
    let tests = names_of_integration_tests()?;
    let tests = tests.iter().flat_map(|name| ["--test", name]);
    again::cargo_test(&[], &["--bin", "xtask"].into_iter().chain(tests).collect::<Vec<_>>())
}

/// Integration tests, and unit tests of libraries.
///
/// Not unit tests of programs: the integration tests run the programs themselves, optimized. Not the
/// examples of the documentation, which rustdoc does not optimize: the packages have them.
fn optimized_tests() -> Result {
    let tests = names_of_integration_tests()?;
    let tests = tests.iter().flat_map(|name| ["--test", name]);
    again::cargo_test(&["--release"], &["--lib"].into_iter().chain(tests).collect::<Vec<_>>())
}

/// The integration tests of all packages except [`OF_KERNELS`].
fn names_of_integration_tests() -> Result<BTreeSet<String>> {
    let mut names = targets("test")?;
    names.retain(|name| !OF_KERNELS.contains(&name.as_str()));
    Ok(names)
}

/// The names of the targets of one kind, of all packages.
fn targets(kind: &str) -> Result<BTreeSet<String>> {
    let metadata = run::metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array()).flatten();
    let targets = targets.filter(|target| target["kind"][0] == kind);
    Ok(targets.filter_map(|target| target["name"].as_str()).map(str::to_owned).collect())
}

fn cargo(args: &[&str]) -> Result {
    run::run(&mut command(args))
}

fn command(args: &[&str]) -> Command {
    let mut command = run::cargo();
    command.args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_checks_that_wait_name_one_check() {
        for name in STEPS.iter().filter(|step| step.waits).map(|step| step.name) {
            assert_eq!(STEPS.iter().filter(|step| step.name.contains(name)).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_check_runs_beside_those_that_permit_it() {
        let nothing = || -> Result { Ok(()) };
        let (usual, waits) = (step("usual", nothing), step("waits", nothing).waits());
        let (kernel, alone) = (step("kernel", nothing).of_kernel(), step("alone", nothing).alone());
        assert!([&usual, &waits, &kernel, &alone].iter().all(|step| step.may_run(&[])));
        let others = [&waits; MOST_BESIDE];
        assert!(waits.may_run(&others[1..]) && !waits.may_run(&others));
        assert!(usual.may_run(&others));
        assert!(kernel.may_run(&[&waits]) && !kernel.may_run(&[&kernel]));
        assert!(!alone.may_run(&[&usual]));
    }

    #[test]
    fn tests_of_kernels_are_among_all() {
        let names = targets("test").unwrap();
        let others = ["doctor", "layouts", "reading"];
        let all = OF_KERNELS.iter().chain(&others);
        assert!(all.into_iter().all(|name| names.contains(*name)), "{names:?}");
    }

    #[test]
    fn the_summary_names_what_a_success_does_not_show() {
        let mut report = Report::default();
        report.add("miri", Duration::from_secs(1), 0.5);
        assert_eq!(report.to_string(), "   1.0 s     0.5 s of CPU  miri\n");
        let printed = format!("==== all green\n{report}\n1 passed\n");
        assert_eq!(reported_cpu(&printed, "miri"), Some(0.5));
        assert_eq!(reported_cpu(&printed, "fuzzing"), None);
        let mut remark =
            |name, kind, text: &str| report.remark(name, [Remark { kind, text: text.into() }]);
        remark("miri", Kind::NotRun, "miri: not installed");
        remark("kernels of virtual machines", Kind::Unsteady, "6.1 panicked");
        remark("kernels of virtual machines", Kind::NotRun, "6.12: no QEMU");
        remark("kernels of virtual machines", Kind::NotRun, "7: no QEMU");
        assert_eq!(
            report.to_string().lines().skip(1).collect::<Vec<_>>(),
            [
                "1 unsteady:",
                "  kernels of virtual machines: 6.1 panicked",
                "3 not run:",
                "  miri: miri: not installed",
                "  kernels of virtual machines: 6.12: no QEMU",
                "  kernels of virtual machines: 7: no QEMU",
            ]
        );
        assert_eq!(report.lacking(), BTreeSet::from(["miri", "kernels of virtual machines"]));
    }

    #[test]
    fn cpu_time_of_children_is_counted() {
        let before = children_cpu().unwrap();
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        assert!(children_cpu().unwrap() > before);
    }
}
