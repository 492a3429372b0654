//! Checks of live kernels and programs, which are run once more when they fail.
//!
//! A test that watches a real kernel can fail because of something else on the machine: a hypervisor
//! that takes the CPU, a buffer that another process fills. A check that is wrong fails each time.
//! One that fails and then passes is named with [`UNSTEADY`], and is a defect of the test.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use task_support::{Result, run};

/// The mark of what passed only at the second time. Search the output of CI for it.
pub(crate) const UNSTEADY: &str = "==== UNSTEADY";

/// Targets that are run again. More than these are no accident.
const MAX_TARGETS: usize = 3;

/// Runs a check, and once more if it fails. Returns whether it was run once more.
pub(crate) fn attempt(name: &str, check: fn() -> Result) -> Result<bool> {
    let Err(error) = check() else { return Ok(false) };
    once_more(name, &error.to_string(), check).map(|()| true)
}

fn once_more(name: &str, error: &str, check: impl FnOnce() -> Result) -> Result {
    eprintln!("\n==== FAILED: {name}: {error}\n==== once more: {name}");
    check()?;
    eprintln!("\n{UNSTEADY}: {name} failed, and passed when it was run again");
    Ok(())
}

/// Runs `cargo test` with these options on these targets, and once more the targets that fail.
pub(crate) fn cargo_test(options: &[&str], targets: &[&str]) -> Result {
    let (result, failed) = cargo_test_once(options, targets)?;
    let Err(error) = result else { return Ok(()) };
    if failed.is_empty() || failed.len() > MAX_TARGETS {
        return Err(error);
    }
    for target in &failed {
        // Without the other targets, which have passed.
        let only: Vec<&str> = target.split(' ').collect();
        once_more(target, &error.to_string(), || cargo_test_once(options, &only)?.0)?;
    }
    Ok(())
}

/// The result, and the options that select the targets that failed.
fn cargo_test_once(options: &[&str], targets: &[&str]) -> Result<(Result, BTreeSet<String>)> {
    let mut command = run::cargo();
    command.args(["test", "--quiet", "--no-fail-fast"]).args(options).args(targets);
    command.stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut failed = BTreeSet::new();
    if let Some(errors) = child.stderr.take() {
        for line in BufReader::new(errors).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            eprintln!("{line}");
            failed.extend(failed_target(&line));
        }
    }
    let status = child.wait()?;
    let result =
        if status.success() { Ok(()) } else { Err(format!("cargo test: {status}").into()) };
    Ok((result, failed))
}

/// What selects the target in the line with which cargo says that it failed. Not its package:
/// features of a package alone can be other ones.
fn failed_target(line: &str) -> Option<String> {
    let (_, options) = line.strip_prefix("error: ")?.split_once(" failed, to rerun pass `")?;
    let options = options.strip_suffix('`')?;
    let target: Vec<&str> = match options.split(' ').collect::<Vec<_>>().as_slice() {
        ["-p", _, target @ ..] => target.to_vec(),
        target => target.to_vec(),
    };
    (!target.is_empty()).then(|| target.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_check_that_always_fails_fails() {
        assert!(attempt("x", || Err("no".into())).is_err());
        assert!(matches!(attempt("x", || Ok(())), Ok(false)));
    }

    #[test]
    fn a_check_that_fails_once_is_named() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let check = || match CALLS.fetch_add(1, Ordering::Relaxed) {
            0 => Err("the first time".into()),
            _ => Ok(()),
        };
        assert!(matches!(attempt("x", check), Ok(true)));
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn failed_targets_are_found_in_the_output_of_cargo() {
        let line =
            |kind: &str, options: &str| format!("error: {kind} failed, to rerun pass `{options}`");
        let target = |kind, options| failed_target(&line(kind, options));
        assert_eq!(target("test", "-p triscope --test perf").as_deref(), Some("--test perf"));
        assert_eq!(target("test", "--test perf").as_deref(), Some("--test perf"));
        assert_eq!(target("doctest", "-p gotrace --doc").as_deref(), Some("--doc"));
        assert_eq!(target("test", "-p gotrace"), None);
        assert_eq!(failed_target("error: could not compile `gotrace` (lib) due to 1 error"), None);
    }
}
