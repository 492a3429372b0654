//! Tests that `cargo test` ignores, because they need what a task provides. The reason names the task:
//! `#[ignore = "needs real runtimes: cargo xtask test-runtimes"]`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use task_support::{Result, run, workspace};

/// Runs the tests of a task, optimized: all of them, or those whose name contains one of the words.
///
/// # Errors
/// A test fails, one of all does not run, or no name contains one of the words.
pub(crate) fn test(
    task: &str,
    threads: u32,
    words: &[String],
    environment: impl IntoIterator<Item = (&'static str, PathBuf)>,
) -> Result {
    let suites = suites(task)?;
    let names: Vec<&str> = suites.keys().map(String::as_str).collect();
    let mut tests = run::tests(&names);
    tests.args(["--release", "--", "--ignored", &format!("--test-threads={threads}")]).args(words);
    let passed = run::passed(tests.envs(environment))?.count;
    let all: usize = suites.values().sum();
    if passed == 0 || words.is_empty() && passed != all {
        return Err(format!("{passed} of the {all} tests that name {task} passed").into());
    }
    eprintln!("{passed} tests of {task} passed");
    Ok(())
}

/// The integration tests with tests of this task, and their number.
fn suites(task: &str) -> Result<BTreeMap<String, usize>> {
    let mut suites = BTreeMap::new();
    for package in files(&workspace().join("crates"))? {
        let tests = package.join("tests");
        for path in if tests.is_dir() { files(&tests)? } else { Vec::new() } {
            let count = if path.join("main.rs").is_file() || path.is_file() {
                reasons(&path, &format!("cargo xtask {task}\""))?
            } else {
                0
            };
            if count > 0 {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                *suites.entry(name).or_default() += count;
            }
        }
    }
    Ok(suites)
}

/// The number of reasons with this text in a source file, or in those of a directory.
fn reasons(path: &Path, text: &str) -> Result<usize> {
    if path.is_dir() {
        return files(path)?.iter().map(|file| reasons(file, text)).sum();
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return Ok(0);
    }
    let source = fs::read_to_string(path)?;
    let is_reason = |line: &&str| line.trim().starts_with("#[ignore = ") && line.contains(text);
    Ok(source.lines().filter(is_reason).count())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_found_by_the_reasons_of_their_tests() {
        let suites = suites("test-runtimes").unwrap();
        // Of one file, of a directory, and of several crates.
        assert!(suites["dotnet_lines"] > 0 && suites["runtimes"] > 20 && suites["dotnet"] > 1);
        assert!(!suites.contains_key("programs"));
        assert!(super::suites("test-record").unwrap().contains_key("programs"));
        assert!(super::suites("test-nothing").unwrap().is_empty());
    }

    /// Nothing would run a test whose reason names another task, or that is in a library.
    #[test]
    fn tests_with_a_reason_that_names_a_task_are_in_its_suites() {
        let total = |task| suites(task).unwrap().values().sum::<usize>();
        let all = reasons(&workspace().join("crates"), "cargo xtask").unwrap();
        assert_eq!(total("test-runtimes") + total("test-record"), all);
    }
}
