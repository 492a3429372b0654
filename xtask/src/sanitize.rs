//! Undefined behaviour and data races: miri, and the sanitizers of LLVM.
//!
//! Both need a nightly compiler. Miri finds more, but is a component that no package registry has.

use std::process::Command;
use task_support::{Result, lane, run, target_dir};

/// The cargo of the nightly toolchain. Only rustup's proxy in `PATH` can choose a toolchain.
fn nightly() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg("+nightly").env_remove("RUSTC").env_remove("RUSTDOC");
    cargo
}

/// Crates whose unit tests do not call the kernel: all of them, or those of some modules.
const TESTS: &[(&str, &[&str])] =
    &[("trace-common", &[]), ("perf-monitor", &["ring::", "record::"])];

/// `cargo xtask miri`: checks for undefined behaviour in the cursor, the merge, records and the
/// ring.
pub(crate) fn miri(_: &[String]) -> Result {
    if run::output(nightly().args(["miri", "--version"])).is_err() {
        let why = "needs `rustup component add --toolchain nightly miri rust-src`";
        return lane::skip("miri", &why);
    }
    for (package, filters) in TESTS {
        let mut test = nightly();
        test.args(["miri", "test", "--quiet", "--lib", "--package", package, "--"]);
        test.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "8");
        run_tests(&mut test, filters)?;
    }
    Ok(())
}

/// Runs the tests whose names contain one of the filters, and requires one for each.
fn run_tests(test: &mut Command, filters: &[&str]) -> Result {
    let passed = run::passed(test.arg("--format=pretty").args(filters))?;
    let is_used = |filter: &&&str| passed.names.iter().any(|name| name.contains(**filter));
    match filters.iter().find(|filter| !is_used(filter)) {
        Some(unused) => Err(format!("the name of no test contains {unused:?}").into()),
        None if passed.count == 0 => Err("no test ran".into()),
        None => Ok(()),
    }
}

/// The modules of these crates whose tests run with the sanitizers.
const MODULES: [&str; 4] = ["ring::", "record::", "merge::", "cursor::"];

/// The target must be named, so that build scripts are compiled without the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// How the test harness hands a test to its thread and takes the result: the standard library is not
/// instrumented, so that the thread sanitizer does not see how it synchronizes. The patterns name
/// types of the harness that are in no stack of a test itself.
const SUPPRESSED: &str = "race:Option<test::run_test\nrace:CompletedTest\n";

/// `cargo xtask sanitize`: the same tests with the address sanitizer and with the thread sanitizer.
pub(crate) fn sanitize(_: &[String]) -> Result {
    if run::output(nightly().arg("--version")).is_err() {
        return lane::skip("sanitizers", &"needs a nightly compiler");
    }
    run_tests(&mut test("address", "-Zsanitizer=address"), &MODULES)?;
    let suppressed = tempfile::NamedTempFile::new()?;
    std::fs::write(suppressed.path(), SUPPRESSED)?;
    let mut threads = test("thread", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    threads.env("TSAN_OPTIONS", format!("suppressions={}", suppressed.path().display()));
    run_tests(&mut threads, &MODULES)
}

fn test(name: &str, flags: &str) -> Command {
    let mut test = nightly();
    test.args(["test", "--quiet", "--lib", "--target", TARGET]);
    test.arg("--target-dir").arg(target_dir().join(format!("sanitize-{name}")));
    test.args(TESTS.iter().flat_map(|(package, _)| ["--package", package]));
    test.arg("--");
    // Without debug information, also that of the standard library, inlined functions are missing
    // from stacks. `SUPPRESSED` names some.
    test.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    test.env_remove("CARGO_PROFILE_TEST_DEBUG");
    test.env("RUSTFLAGS", flags).env("PROPTEST_CASES", "16");
    test
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_has_a_test_that_passed() {
        let run = |output: &str, filters: &[&str]| {
            let output = format!("printf '{output}'");
            run_tests(Command::new("sh").args(["-c", &output]), filters)
        };
        let one = "test ring::a ... ok\\ntest result: ok. 1 passed;\\n";
        assert!(run(one, &["ring::"]).is_ok() && run(one, &[]).is_ok());
        assert!(run(one, &["ring::", "merge::"]).is_err());
        assert!(run("test result: ok. 0 passed;\\n", &[]).is_err());
    }
}
