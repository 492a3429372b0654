//! Checks of live kernels and programs, which are run once more when they fail.
//!
//! A test that watches a real kernel can fail because of something else on the machine: a hypervisor
//! that takes the CPU, a buffer that another process fills. A check that is wrong fails each time.
//! One that fails and then passes is named with `==== UNSTEADY`, and is a defect of the test.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use task_support::remark::{self, Kind};
use task_support::{Result, lane, run};

/// The integration tests that watch a live kernel or live programs: package and name. What another
/// target finds once, such as a property test with its random input, is a defect, and is not run again.
const LIVE: &[(&str, &str)] = &[
    ("perf-data", "perf"),
    ("perf-monitor", "examples"),
    ("perf-monitor", "kernel"),
    ("perf-monitor", "tokio"),
    ("trace-symbols", "go"),
    ("trace-symbols", "unwind"),
    ("triscope", "doctor"),
    ("triscope", "found"),
    ("triscope", "perf"),
    ("triscope", "top"),
];

/// Targets that are run again. More than these are no accident.
const MAX_TARGETS: usize = 3;

/// Runs a check, and once more if it fails.
pub(crate) fn attempt(name: &str, check: fn() -> Result) -> Result {
    check().or_else(|error| once_more(name, &error.to_string(), check))
}

fn once_more(name: &str, error: &str, check: impl FnOnce() -> Result) -> Result {
    eprintln!("\n==== FAILED: {name}: {error}\n==== once more: {name}");
    check()?;
    let what = format_args!("{name} failed, and passed when it was run again");
    remark::add(Kind::Unsteady, &what);
    Ok(())
}

/// Runs `cargo test` with these options on these targets. If only tests of [`LIVE`] fail, they are run
/// once more.
pub(crate) fn cargo_test(options: &[&str], targets: &[&str]) -> Result {
    cargo_test_by(run::cargo, options, targets)
}

/// The same where a tracefs is mounted. Needs root.
pub(crate) fn cargo_test_with_tracefs(options: &[&str], targets: &[&str]) -> Result {
    let cargo = || {
        let mut cargo = run::with_tracefs(run::cargo().get_program().as_ref());
        waiting(&mut cargo);
        cargo
    };
    cargo_test_by(cargo, options, targets)
}

fn cargo_test_by(cargo: fn() -> Command, options: &[&str], targets: &[&str]) -> Result {
    let Run { result, failed, tests } = cargo_test_once(cargo(), options, targets)?;
    let Err(error) = result else { return Ok(()) };
    if failed.is_empty() || failed.len() > MAX_TARGETS || !failed.iter().all(Failed::is_live) {
        return Err(error);
    }
    // Without the targets that have passed; of all packages: features of a package alone can be other
    // ones.
    let names: BTreeSet<&str> = failed.iter().map(|failed| failed.test.as_str()).collect();
    let targets: Vec<&str> = names.iter().flat_map(|name| ["--test", *name]).collect();
    let names = Vec::from_iter(names).join(", ");
    once_more(&names, &error.to_string(), || {
        let options = [options, &targets, &["--"], &tests.filter()].concat();
        let again = cargo_test_once(cargo(), &options, &[])?;
        again.result.and_then(|()| tests.are_among(&again.tests))
    })
}

/// Runs a test program, and once more those of its tests that failed. Returns how many passed.
pub(crate) fn program(name: &str, test: impl Fn() -> Command) -> Result<usize> {
    let once = |filter: &[&str]| -> Result<(Result, Tests)> {
        let output = run::attempt(test().args(filter))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let result: Result = match output.status.success() {
            true => Ok(()),
            false => Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)).into()),
        };
        Ok((result, Tests::parse(&text)))
    };
    let (result, tests) = once(&[])?;
    if let Err(error) = result {
        once_more(name, &error.to_string(), || {
            let (result, again) = once(&tests.filter())?;
            result.and_then(|()| tests.are_among(&again))
        })?;
    }
    Ok(tests.passed + tests.failed.len())
}

/// What test harnesses print about their tests.
#[derive(Debug, Default)]
pub(crate) struct Tests {
    failed: BTreeSet<String>,
    passed: usize,
    /// Whether the next line can have the name of one that failed.
    is_list: bool,
}

impl Tests {
    /// Those of this output.
    pub(crate) fn parse(output: &str) -> Self {
        let mut this = Self::default();
        output.lines().for_each(|line| this.add(line));
        this
    }

    fn add(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) if self.is_list => _ = self.failed.insert(name.to_owned()),
            _ => self.is_list = line == "failures:",
        }
        if let Some(counts) = line.strip_prefix("test result: ") {
            let passed =
                counts.split_once(" passed").and_then(|(text, _)| text.split(' ').next_back());
            self.passed += passed.and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
        }
    }

    /// Arguments of a harness that select those that failed. All, if none is known: the program can have
    /// ended before it printed them.
    pub(crate) fn filter(&self) -> Vec<&str> {
        let exact = (!self.failed.is_empty()).then_some("--exact");
        exact.into_iter().chain(self.failed.iter().map(String::as_str)).collect()
    }

    /// Whether those that failed are all among those that passed in another run: a filter that selects
    /// no test is no error of the harness.
    pub(crate) fn are_among(&self, again: &Self) -> Result {
        let (passed, wanted) = (again.passed, self.failed.len().max(1));
        if passed < wanted {
            return Err(format!("{passed} of {wanted} tests were run again").into());
        }
        Ok(())
    }
}

/// Runs more tests at a time than there are CPUs: they wait for most of their time.
pub(crate) fn waiting(tests: &mut Command) {
    tests.env("RUST_TEST_THREADS", "4");
}

/// In CI, makes a test that cannot run fail: what tests need is installed there.
pub(crate) fn strictly(command: &mut Command) -> Result {
    if lane::is_ci() {
        command.env("PERF_TEST_STRICT", "1");
        command.env(testkit::go::VARIABLE, conformance_go::newest_go()?);
    }
    Ok(())
}

/// A run of `cargo test`.
struct Run {
    result: Result,
    /// The targets that failed.
    failed: BTreeSet<Failed>,
    tests: Tests,
}

fn cargo_test_once(mut command: Command, options: &[&str], targets: &[&str]) -> Result<Run> {
    command.args(["test", "--quiet", "--no-fail-fast"]).args(targets).args(options);
    strictly(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let mut child = command.spawn()?;
    let (mut failed, mut tests) = (BTreeSet::new(), Tests::default());
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let output = scope.spawn(|| {
            lines(output, |line| {
                println!("{line}");
                tests.add(line);
            })
        });
        lines(errors, |line| {
            eprintln!("{line}");
            failed.extend(Failed::parse(line));
        })?;
        output.join().map_err(|_| std::io::Error::other("the reader of the output failed"))?
    })?;
    let status = child.wait()?;
    let result =
        if status.success() { Ok(()) } else { Err(format!("cargo test: {status}").into()) };
    Ok(Run { result, failed, tests })
}

/// Calls `each` with the lines of an output.
fn lines(output: Option<impl Read>, mut each: impl FnMut(&str)) -> std::io::Result<()> {
    for line in output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n')) {
        each(&String::from_utf8_lossy(&line?));
    }
    Ok(())
}

/// A target that failed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Failed {
    package: String,
    /// The integration test; empty for another target.
    test: String,
}

impl Failed {
    /// Parses the line with which cargo reports it.
    fn parse(line: &str) -> Option<Self> {
        let (_, options) = line.strip_prefix("error: ")?.split_once(" failed, to rerun pass `")?;
        let options = options.strip_suffix('`')?.strip_prefix("-p ")?;
        let (package, target) = options.split_once(' ').unwrap_or((options, ""));
        let test = target.strip_prefix("--test ").unwrap_or_default();
        Some(Self { package: package.to_owned(), test: test.to_owned() })
    }

    fn is_live(&self) -> bool {
        LIVE.contains(&(self.package.as_str(), self.test.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_a_check_that_fails_once_is_unsteady() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        assert!(attempt("what fails", || Err("no".into())).is_err());
        attempt("what passes", || Ok(())).unwrap();
        let once = || match CALLS.fetch_add(1, Ordering::Relaxed) {
            0 => Err("the first time".into()),
            _ => Ok(()),
        };
        attempt("a check", once).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
        // Other tests of this program add remarks at the same time. This is the only one that takes them.
        let mut remarks = remark::take();
        remarks.retain(|one| {
            ["what fails", "what passes", "a check"].iter().any(|name| one.text.starts_with(name))
        });
        let text = "a check failed, and passed when it was run again".to_owned();
        assert_eq!(remarks, [remark::Remark { kind: Kind::Unsteady, text }]);
    }

    #[test]
    fn tests_that_failed_are_selected_alone() {
        let output = "\
            running 3 tests\n\
            a::b --- FAILED\n\n\
            failures:\n\n\
            ---- a::b stdout ----\n    no name\n\n\n\
            failures:\n    a::b\n    c\n\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured\n\n\
            test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured\n";
        let tests = Tests::parse(output);
        assert_eq!(tests.filter(), ["--exact", "a::b", "c"]);
        assert_eq!(tests.passed, 8);
        let passed = |passed| Tests { passed, ..Tests::default() };
        assert!(tests.are_among(&passed(1)).is_err());
        tests.are_among(&passed(2)).unwrap();
        // The program ended before: all of its tests are run.
        assert!(Tests::default().filter().is_empty());
        assert!(Tests::default().are_among(&passed(0)).is_err());
    }

    #[test]
    fn a_program_runs_again_with_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls");
        let script = "echo \"$@\" >>\"$0\"; [ $# = 0 ] || { echo 'test result: ok. 1 passed'; exit; }; \
                      printf 'failures:\\n    a::b\\n\\ntest result: FAILED. 4 passed; 1 failed\\n'; exit 1";
        let test = || {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(&path);
            command
        };
        assert_eq!(program("a program", test).unwrap(), 5);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\n--exact a::b\n");
        assert!(program("another", || Command::new("false")).is_err());
    }

    #[test]
    fn failed_targets_are_found_in_the_output_of_cargo() {
        let failed = |options: &str| {
            Failed::parse(&format!("error: test failed, to rerun pass `-p {options}`")).unwrap()
        };
        let target =
            |package: &str, test: &str| Failed { package: package.into(), test: test.into() };
        assert_eq!(failed("triscope --test perf"), target("triscope", "perf"));
        assert_eq!(failed("gotrace --doc"), target("gotrace", ""));
        assert_eq!(Failed::parse("error: could not compile `gotrace` (lib) due to 1 error"), None);
        assert!(failed("triscope --test perf").is_live());
        // A test of another package with the same name as one that is live.
        for other in
            ["gotrace --lib", "gotrace --doc", "triscope --bin triscope", "trace-export --test go"]
        {
            assert!(!failed(other).is_live(), "{other}");
        }
    }

    #[test]
    fn live_tests_exist() {
        for (package, test) in LIVE {
            let tests = task_support::workspace().join("crates").join(package).join("tests");
            let is_there = |name: String| tests.join(name).is_file();
            assert!(
                is_there(format!("{test}.rs")) || is_there(format!("{test}/main.rs")),
                "{test}"
            );
        }
    }
}
