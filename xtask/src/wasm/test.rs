//! The tests of the portable libraries as WebAssembly, in Node.js.

use super::target;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use task_support::{Result, lane, run, target_dir, workspace};

pub(crate) const OPTIONS: &str = "\
[CRATE...]

  CRATE   only these crates";

/// The tests of a crate.
struct Suite {
    package: &'static str,
    /// Integration tests that cannot be built, and why. No crate has others with these names.
    absent: &'static [(&'static str, &'static str)],
    /// Tests, or modules of tests, that cannot run, and why. No crate has others with these names.
    skipped: &'static [(&'static str, &'static str)],
}

const THREADS: &str = "threads";
const ZSTD: &str = "the compressor is a C library";
const UNIX: &str = "programs, sockets or the kernel of Linux";

const SUITES: &[Suite] = &[
    Suite { package: "trace-common", absent: &[], skipped: &[] },
    Suite {
        package: "gotrace",
        absent: &[("parallel", THREADS)],
        skipped: &[("events_go_to_other_threads", THREADS)],
    },
    Suite { package: "nettrace", absent: &[("runtimes", UNIX)], skipped: &[] },
    Suite { package: "perf-data", absent: &[("compressed", ZSTD), ("perf", UNIX)], skipped: &[] },
    Suite { package: "trace-timeline", absent: &[], skipped: &[] },
    Suite { package: "trace-export", absent: &[], skipped: &[("perfetto::compress", THREADS)] },
];

/// Runs a program of the tests.
const RUNNER: &str = include_str!("node.js");

pub(crate) fn task(args: &[String]) -> Result {
    let known = |name: &String| SUITES.iter().any(|suite| suite.package == name);
    if let Some(name) = args.iter().find(|name| !known(name)) {
        return Err(format!("{name} has no tests as WebAssembly").into());
    }
    if !run::have("node") {
        return lane::skip("tests as WebAssembly", &"Node.js is not installed");
    }
    let all = args.is_empty();
    build_and_test(
        SUITES.iter().filter(|suite| all || args.iter().any(|name| name == suite.package)),
    )
}

/// Runs the tests of these crates, built together: one crate after the other selects other features
/// of what they depend on, and compiles that again.
fn build_and_test<'a>(suites: impl Iterator<Item = &'a Suite>) -> Result {
    let suites: Vec<(&Suite, BTreeSet<String>)> =
        suites.map(|suite| Ok((suite, suite.tests()?))).collect::<Result<_>>()?;
    let runner = target_dir().join("wasm-tests/node.js");
    fs::create_dir_all(runner.with_file_name(""))?;
    fs::write(&runner, RUNNER)?;
    let mut test = run::cargo();
    test.args(["test", "--no-fail-fast", "--all-features", "--lib"]);
    test.args(suites.iter().flat_map(|(suite, _)| ["--package", suite.package]));
    let tests: BTreeSet<&String> = suites.iter().flat_map(|(_, tests)| tests).collect();
    test.args(tests.iter().flat_map(|name| ["--test", name]));
    target(&mut test)?;
    let skipped = || suites.iter().flat_map(|(suite, _)| suite.skipped);
    test.arg("--").args(skipped().flat_map(|(name, _)| ["--skip", name]));
    let runner = format!("node --no-warnings {}", runner.display());
    test.env("CARGO_TARGET_WASM32_WASIP1_RUNNER", runner)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("PROPTEST_CASES", "16")
        .env("PROPTEST_FAILURE_PERSISTENCE", "off");
    let output = run::attempt(&mut test)?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
        return Err(format!("tests as WebAssembly: {}", output.status).into());
    }
    for (suite, tests) in &suites {
        let package = suite.package;
        for (name, why) in suite.absent {
            println!("{package}: the test {name} was not built: {why}");
        }
        for (name, why) in suite.skipped {
            println!("{package}: {name} was not run: {why}");
        }
        println!("{package}: {} test programs", tests.len() + 1);
    }
    let outcome = Outcome::of(&text);
    for ignored in &outcome.ignored {
        println!("{ignored}");
    }
    println!("{} tests passed in {} programs", outcome.passed, outcome.programs);
    let programs: usize = suites.iter().map(|(_, tests)| tests.len() + 1).sum();
    if outcome.programs != programs || outcome.passed == 0 {
        return Err(format!("the crates have {programs} test programs").into());
    }
    Ok(())
}

impl Suite {
    /// The integration tests that run.
    fn tests(&self) -> Result<BTreeSet<String>> {
        let dir = workspace().join("crates").join(self.package).join("tests");
        let mut names = BTreeSet::new();
        let entries = if dir.is_dir() { Some(fs::read_dir(dir)?) } else { None };
        for entry in entries.into_iter().flatten() {
            let path: PathBuf = entry?.path();
            let is_test =
                path.join("main.rs").is_file() || path.extension().is_some_and(|e| e == "rs");
            if let (true, Some(name)) = (is_test, path.file_stem()) {
                names.insert(name.to_string_lossy().into_owned());
            }
        }
        for (skipped, _) in self.absent {
            if !names.remove(*skipped) {
                return Err(format!("{} has no test {skipped}", self.package).into());
            }
        }
        Ok(names)
    }
}

/// What the harness printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    programs: usize,
    passed: u64,
    /// Tests that were not run, with the reason.
    ignored: Vec<String>,
}

impl Outcome {
    fn of(text: &str) -> Self {
        let mut this = Self::default();
        for line in text.lines() {
            if let Some(counts) = line.strip_prefix("test result: ok. ") {
                let passed = counts.split_once(" passed").and_then(|(n, _)| n.parse::<u64>().ok());
                this.passed += passed.unwrap_or(0);
                this.programs += 1;
            } else if let Some((test, why)) =
                line.strip_prefix("test ").and_then(|test| test.split_once(" ... ignored"))
            {
                this.ignored.push(format!("{test} was not run{}", why.replacen(',', ":", 1)));
            }
        }
        this
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_harness_is_read() {
        let text = "running 3 tests\ntest a ... ok\ntest b::c ... ignored, threads\ntest d ... ok\n\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
            test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let ignored = vec!["b::c was not run: threads".to_owned()];
        assert_eq!(Outcome::of(text), Outcome { programs: 2, passed: 42, ignored });
    }

    #[test]
    fn tests_that_are_not_built_exist_in_one_crate() {
        let tests: Vec<BTreeSet<String>> =
            SUITES.iter().map(|suite| suite.tests().unwrap()).collect();
        for (name, _) in SUITES.iter().flat_map(|suite| suite.absent) {
            assert!(!tests.iter().any(|tests| tests.contains(*name)), "{name} would be built");
        }
    }
}
