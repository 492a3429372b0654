//! The corpus of the Go distribution: the inputs of Go's own reader tests, from the toolchains'
//! sources.

use super::matrix::compare_file;
use super::reference::Reference;
use super::toolchain::Toolchain;
use super::{Tools, parallel, toolchain};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run};

/// The toolchains whose generators are run: the releases between them have the same generators.
const GENERATING: [&str; 2] = ["1.22.10", toolchain::NEWEST];

/// The directories with the test traces.
pub(crate) fn items(tools: &Tools, toolchains: &[Toolchain]) -> Result<Vec<PathBuf>> {
    let dir = prepared(tools, toolchains)?;
    let mut items: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    items.sort();
    Ok(items)
}

/// Compares the whole corpus; returns the number of differences.
pub(crate) fn check(tools: &Tools, items: &[PathBuf]) -> Result<usize> {
    let (mut differences, mut accepted, mut texts) = (0, 0, 0);
    let results = parallel(items.to_vec(), |item| compare(tools, &item))?;
    let total = results.len();
    for result in results {
        accepted += usize::from(result.accepted);
        texts += usize::from(result.text);
        differences += result.problems.len();
        for problem in result.problems {
            println!("DIFFERENT: {}: {problem}\n", result.name);
        }
    }
    println!(
        "Go's corpus: {total} traces ({texts} as text), of which both accept {accepted}; \
         {differences} differences"
    );
    Ok(differences)
}

#[derive(Debug)]
struct Compared {
    name: String,
    accepted: bool,
    text: bool,
    problems: Vec<String>,
}

fn compare(tools: &Tools, item: &Path) -> Result<Compared> {
    let reference = Reference::load(item)?;
    let trace = item.join("trace");
    let mut problems = compare_file(tools, &trace, &trace, &reference)?;
    let text = item.join("trace.test");
    if text.exists() {
        let of_text = compare_file(tools, &text, &trace, &reference)?;
        problems.extend(of_text.into_iter().map(|p| format!("read as text: {p}")));
    }
    Ok(Compared {
        name: item.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        accepted: reference.events.accepted(),
        text: text.exists(),
        problems,
    })
}

/// Returns a directory with one directory for each trace of the corpus: `trace`, the `trace.test`
/// that it was generated from if it is text, and the reference's output.
fn prepared(tools: &Tools, toolchains: &[Toolchain]) -> Result<PathBuf> {
    let (sources, generating) = (toolchain::VERSIONS.join(" "), GENERATING.join(" "));
    let hash = toolchain::content_hash(&[("sources", &sources), ("generating", &generating)]);
    cache::entry(&format!("go/corpus/{}-{hash:016x}", tools.newest.version), |dir| {
        eprintln!("collecting Go's own corpus of traces");
        let mut seen = BTreeSet::new();
        let generated = parallel(GENERATING.to_vec(), |version| {
            let toolchain = toolchains.iter().find(|t| t.version == version);
            generate(toolchain.ok_or("a generating toolchain is missing")?, dir)
        })?;
        let mut sources: Vec<(String, PathBuf)> = Vec::new();
        for toolchain in toolchains {
            for (kind, files) in [
                ("shipped", testdata(&toolchain.goroot).join("tests")),
                ("fuzz", testdata(&toolchain.goroot).join("fuzz/FuzzReader")),
                ("v1", toolchain.goroot.join("src/internal/trace/internal/tracev1/testdata")),
                ("v1", toolchain.goroot.join("src/internal/trace/testdata")),
            ] {
                let name = format!("{kind}-1.{}", toolchain.minor());
                sources.push((name, files));
            }
        }
        for (version, files) in GENERATING.into_iter().zip(&generated) {
            sources.push((format!("generated-1.{}", toolchain::minor(version)), files.clone()));
        }
        for (kind, files) in &sources {
            let Ok(entries) = fs::read_dir(files) else { continue }; // not in all versions
            for entry in entries {
                let file = entry?.path();
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let wanted = !kind.starts_with("v1") || name.ends_with("_good");
                if wanted && file.is_file() && seen.insert(fs::read(&file)?) {
                    add(tools, &file, &dir.join(format!("{kind}-{name}")))?;
                }
            }
        }
        for files in generated {
            fs::remove_dir_all(files)?;
        }
        Ok(())
    })
}

fn add(tools: &Tools, file: &Path, item: &Path) -> Result {
    fs::create_dir(item)?;
    let trace = item.join("trace");
    let head = fs::read(file)?;
    if head.starts_with(b"go 1.") {
        fs::copy(file, &trace)?;
    } else {
        run::output(Command::new(&tools.judge).arg("bytes").arg(file).arg(&trace))?;
        if file.extension().is_some_and(|e| e == "test") {
            fs::copy(file, item.join("trace.test"))?;
        }
    }
    Reference::ask(&tools.trace_tool, &trace)?.save(item)
}

/// The directory of the reader's test data in a GOROOT.
fn testdata(goroot: &Path) -> PathBuf {
    let first = goroot.join("src/internal/trace/v2/testdata"); // Go 1.22
    if first.is_dir() { first } else { goroot.join("src/internal/trace/testdata") }
}

/// Runs the toolchain's own generators in a second GOROOT; the `.test` files are written to a
/// separate directory below `dir`.
fn generate(toolchain: &Toolchain, dir: &Path) -> Result<PathBuf> {
    let goroot = dir.join(format!("goroot-{}", toolchain.version));
    toolchain.twin(&goroot)?;
    let data = testdata(&goroot);
    fs::remove_dir_all(data.join("tests"))?; // links to the toolchain's files: must not be written to
    let mut command = toolchain.command_in(&goroot);
    command.current_dir(&data).args(["run", "mktests.go"]);
    // The generators start `go` themselves.
    let mut path = vec![goroot.join("bin")];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    run::output(command.env("PATH", std::env::join_paths(path)?))?;
    let generated = dir.join(format!("generated-{}", toolchain.version));
    fs::rename(data.join("tests"), &generated)?;
    fs::remove_dir_all(goroot)?;
    Ok(generated)
}
