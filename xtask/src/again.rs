//! Checks of live kernels and programs, which are run once more when they fail.
//!
//! A test that watches a real kernel can fail because of something else on the machine: a hypervisor
//! that takes the CPU, a buffer that another process fills. A check that is wrong fails each time.
//! One that fails and then passes is named with `==== UNSTEADY`, and is a defect of the test.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
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
    let cargo = || run::with_tracefs(run::cargo().get_program().as_ref());
    cargo_test_by(cargo, options, targets)
}

fn cargo_test_by(cargo: fn() -> Command, options: &[&str], targets: &[&str]) -> Result {
    let (result, failed) = cargo_test_once(cargo(), options, targets)?;
    let Err(error) = result else { return Ok(()) };
    if failed.is_empty() || failed.len() > MAX_TARGETS || !failed.iter().all(Failed::is_live) {
        return Err(error);
    }
    for Failed { test, .. } in &failed {
        // Without the other targets, which have passed; of all packages: features of a package alone
        // can be other ones.
        let only = ["--test", test];
        once_more(test, &error.to_string(), || cargo_test_once(cargo(), options, &only)?.0)?;
    }
    Ok(())
}

/// In CI, makes a test that cannot run fail: what tests need is installed there.
pub(crate) fn strictly(command: &mut Command) -> Result {
    if lane::is_ci() {
        command.env("PERF_TEST_STRICT", "1");
        command.env(testkit::go::VARIABLE, conformance_go::newest_go()?);
    }
    Ok(())
}

/// The result, and the targets that failed.
fn cargo_test_once(
    mut command: Command,
    options: &[&str],
    targets: &[&str],
) -> Result<(Result, BTreeSet<Failed>)> {
    command.args(["test", "--quiet", "--no-fail-fast"]).args(options).args(targets);
    strictly(command.stderr(Stdio::piped()))?;
    let mut child = command.spawn()?;
    let mut failed = BTreeSet::new();
    if let Some(errors) = child.stderr.take() {
        for line in BufReader::new(errors).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            eprintln!("{line}");
            failed.extend(Failed::parse(&line));
        }
    }
    let status = child.wait()?;
    let result =
        if status.success() { Ok(()) } else { Err(format!("cargo test: {status}").into()) };
    Ok((result, failed))
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
        assert!(attempt("x", || Err("no".into())).is_err());
        attempt("x", || Ok(())).unwrap();
        assert_eq!(remark::take(), []);
        let once = || match CALLS.fetch_add(1, Ordering::Relaxed) {
            0 => Err("the first time".into()),
            _ => Ok(()),
        };
        attempt("a check", once).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
        let remarks = remark::take();
        assert!(matches!(&remarks[..], [one] if one.kind == Kind::Unsteady), "{remarks:?}");
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
